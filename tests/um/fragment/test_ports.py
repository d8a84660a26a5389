"""The TR channel of a context, with every count and log line. The request port: `test_request_port`."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from dro.config.um.sets import ResolverOptions
from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.transport import mmsg, sockets
from dro.transport.mmsg import BATCH, DatagramBatch
from dro.um.fragment.tr_channel import TURN_NS, ChannelStats, MulticastChannel
from tests.fakes.fussy_socket import no_buffer_space
from tests.fakes.um_contexts import Stepper, private_config

LOOPBACK = sockets.ip_number("127.0.0.1")


class Channel:
    def __init__(self, stepper: Stepper, **more: object) -> None:
        self.stepper = stepper
        self.options = replace(ResolverOptions.of(private_config("tcp").options), **more)  # type: ignore[arg-type]
        self.got: list[tuple[bytes, int]] = []
        self.times: list[int] = []
        self.cost_ns = 0  # of each datagram
        self.made = MulticastChannel(stepper.loop, self.options, DatagramBatch(), self._on_datagrams)

    def _on_datagrams(self, datagrams: Iterator[tuple[bytes, int]], now_ns: int) -> None:
        for datagram in datagrams:
            self.got.append(datagram)
            self.stepper.clock.time_ns += self.cost_ns
        self.times.append(now_ns)


@pytest.fixture
def channel(stepper: Stepper) -> Iterator[Channel]:
    made = Channel(stepper)
    yield made
    made.made.close()


def test_what_is_sent_comes_back_with_its_sender_and_everything_is_counted(channel: Channel) -> None:
    assert channel.made.local_address == LOOPBACK
    channel.made.send([b"one", b"four"])
    channel.stepper.settle()
    assert channel.got == [(b"one", LOOPBACK), (b"four", LOOPBACK)]
    assert channel.times == [channel.stepper.clock.time_ns]
    assert channel.made.stats == ChannelStats(
        tr_dgrams_sent=2, tr_bytes_sent=7, tr_dgrams_rcved=2, tr_bytes_rcved=7, tr_dgrams_send_failed=0
    )
    channel.made.send([b"", b"three"])
    channel.stepper.settle()
    assert channel.made.stats == ChannelStats(4, 12, 4, 12, 0)


def test_datagrams_that_take_long_are_spread_over_turns_in_their_order(channel: Channel) -> None:
    sent = [b"%d" % number for number in range(BATCH + 3)]
    channel.cost_ns = TURN_NS // 2
    channel.made.send(sent)
    counts = []
    while len(channel.got) < len(sent):
        before = len(channel.got)
        assert channel.stepper.loop.run_once(0)
        counts.append(len(channel.got) - before)
    assert max(counts) == 2
    assert [datagram for datagram, _ in channel.got] == sent
    assert not channel.stepper.loop.run_once(0)


def test_a_channel_that_is_closed_in_the_midst_of_a_turn_hands_up_no_more(channel: Channel) -> None:
    channel.cost_ns = TURN_NS
    channel.made.send([b"one", b"two"])
    channel.stepper.loop.run_once(0)
    channel.made.close()
    channel.stepper.settle()
    assert channel.got == [(b"one", LOOPBACK)]


def test_more_than_a_batch_is_taken_in_the_next_turn(channel: Channel) -> None:
    channel.made.send([b"%d" % number for number in range(BATCH + 3)])
    channel.stepper.loop.run_once(0)
    assert len(channel.got) == BATCH
    assert channel.stepper.loop.next_deadline() == 0, "there may be more"
    channel.stepper.loop.run_once(0)
    assert [datagram for datagram, _ in channel.got] == [b"%d" % number for number in range(BATCH + 3)]
    assert channel.stepper.loop.next_deadline() is None


def test_what_the_system_refuses_is_counted_and_told_at_powers_of_two(
    channel: Channel, caplog: pytest.LogCaptureFixture
) -> None:
    too_large = bytes(70_000)
    channel.made.send([too_large] * 5 + [b"fits"])
    channel.stepper.settle()
    assert channel.got == [(b"fits", LOOPBACK)]
    assert channel.made.stats == ChannelStats(1, 4, 1, 4, 5)
    error = os.strerror(errno.EMSGSIZE)
    assert [(r.msg, vars(r)["error"], vars(r)["failed"]) for r in caplog.records] == [
        (LogEvent.TR_NOT_SENT, error, failed) for failed in (1, 2, 4)
    ]


def test_a_fault_of_the_socket_is_told_and_not_tried_again_at_once(
    channel: Channel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(mmsg, "_receive", no_buffer_space)
        channel.made.send([b"x"])
        channel.stepper.loop.run_once(0)
        assert channel.stepper.loop.next_deadline() is None
    assert [(r.msg, vars(r)["error"]) for r in caplog.records] == [
        (LogEvent.TR_RECEIVE_FAILED, os.strerror(errno.ENOBUFS))
    ]
    channel.stepper.settle()
    assert channel.got == [(b"x", LOOPBACK)]


def test_a_channel_that_closes_hears_and_holds_nothing(channel: Channel) -> None:
    before = os.listdir("/proc/self/fd")
    second = Channel(channel.stepper)
    second.made.send([b"unheard"])
    second.made.close()
    channel.stepper.settle()
    assert second.got == []
    assert os.listdir("/proc/self/fd") == before


def test_a_burst_of_advertisements_has_room_in_the_system(stepper: Stepper, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    genuine = sockets.set_buffer

    def set_buffer(sock: socket.socket, option: int, size: int) -> int:
        asked.append((option, size))
        return genuine(sock, option, size)

    monkeypatch.setattr(sockets, "set_buffer", set_buffer)
    channel = Channel(stepper, receive_buffer_bytes=123_456)
    assert asked == [(socket.SO_RCVBUF, 123_456), (socket.SO_SNDBUF, 1 << 20)]
    channel.made.close()


def test_without_an_incoming_address_nothing_is_heard(stepper: Stepper) -> None:
    channel = Channel(stepper, incoming_address="0.0.0.0")
    channel.made.send([b"x"])
    stepper.settle()
    assert (channel.got, channel.made.stats) == ([], ChannelStats(1, 1))
    channel.made.close()


def test_a_channel_that_cannot_be_had_says_why_and_leaves_nothing_open(stepper: Stepper) -> None:
    before = os.listdir("/proc/self/fd")
    for more, why in (
        ({"incoming_address": "10.1.1.1"}, "change resolver_multicast_incoming_address and _port or the interface"),
        ({"outgoing_address": "255.255.255.255"}, "cannot send to group"),
    ):
        with pytest.raises(ResourceError, match=why):
            Channel(stepper, **more)
    assert os.listdir("/proc/self/fd") == before
