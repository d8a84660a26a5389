"""The receiving half of LBT-TCP on a clock that the test moves: joining, runs, counts, faults and times."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from dro.clock import ms, s
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.loop import Loop
from dro.proto.context.sources import BoundSource
from dro.proto.tcp.filter_requests import EXCLUDE_AFTER_NS, RETRY_NS
from dro.proto.tcp.filters import EXCLUDE, INCLUDE, requests_in
from dro.proto.tcp.receiver import TcpReceiverConfig, TcpReceiverCore, TcpReceiverStats
from dro.proto.unicast.connections import OnOutcome, Outcome
from dro.transport import sockets
from dro.transport.read_space import READ_BYTES, ReadSpace
from dro.transport.runs import KIND_CONTROL, KIND_DATA, KIND_TSNI, Run
from dro.transport.session import ReceiverSessionStatistics, SessionCounts
from dro.transport.stream import PlainStream
from dro.transport.tcp.receiver import TcpReceiver
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.data_blocks import SSF_DEFAULT_EXCLUDE, SSF_DEFAULT_INCLUDE, SsfCreq, SsfInit
from dro.wire.lbmc.message import HEADER as LBMC
from dro.wire.lbmr.packet import Tir
from dro.wire.source_string import TcpAddress, format_source
from tests.fakes.clock import SteppedClock
from tests.fakes.faulty_sockets import FaultySockets
from tests.fakes.session_sink import Message, RunsSink

LOOPBACK = "127.0.0.1"
BEGAN = s(5)
SESSION = 0xA1B2C3D4


class Receiver:
    """A session that is to be joined, and the listener of its source."""

    def __init__(
        self,
        *,
        session_id: int = SESSION,
        interface: str = LOOPBACK,
        buffer_bytes: int = 0,
        keepalive: bool = False,
        read_bytes: int = READ_BYTES,
    ) -> None:
        self.clock = SteppedClock(BEGAN)
        self.loop = Loop(self.clock)
        self.listener = socket.create_server((LOOPBACK, 0))
        self.listener.setblocking(False)
        self.address = TcpAddress(sockets.ip_number(LOOPBACK), self.listener.getsockname()[1], session_id)
        self.core = TcpReceiverCore(TcpReceiverConfig(session_id=session_id, activity_timeout_ns=s(3)))
        self.sink = RunsSink()
        self.sockets = FaultySockets()
        self.session = TcpReceiver(
            self.loop, self.address, self.core, self.sink, self.sink.on_ended, space=ReadSpace(read_bytes),
            send_unicast=self._send_unicast,
            connect=partial(
                self.sockets.connecting, (LOOPBACK, self.address.port), interface, buffer_bytes=buffer_bytes,
                keepalive=keepalive,
            ),
        )  # fmt: skip
        self.source: socket.socket | None = None
        self.asked: list[tuple[int, int, bytes, OnOutcome]] = []

    def _send_unicast(self, ip: int, port: int, message: bytes, on_outcome: OnOutcome) -> None:
        self.asked.append((ip, port, message, on_outcome))

    def said(self) -> list[tuple[int, int]]:
        """Modes and topics of the requests to filter since the last call, all of which have left."""
        asked, self.asked = self.asked, []
        requests = [request for *_, message, _ in asked for request in requests_in(message)]
        for *_, on_outcome in asked:
            on_outcome(Outcome.SENT)
        return [(request.mode, request.topic_index) for request in requests]

    def close(self) -> None:
        self.session.leave()
        self.listener.close()
        if self.source is not None:
            self.source.close()
        self.loop.close()

    def joined(self) -> socket.socket:
        """Connect; the source's end of the connection."""
        self.session.advertised(self.clock.time_ns)
        self.turn()
        assert self.session.is_connected
        self.source, _ = self.listener.accept()
        self.source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self.source

    def turn(self, to_ns: int | None = None) -> None:
        if to_ns is not None:
            self.clock.time_ns = to_ns
        idle = 0
        while idle < 3:
            idle = 0 if self.loop.run_once(0) else idle + 1

    def put(self, *messages: bytes) -> None:
        assert self.source is not None
        self.source.send(b"".join(messages))
        self.turn()

    def stats(self, **counts: int) -> ReceiverSessionStatistics:
        return ReceiverSessionStatistics(format_source(self.address), TcpReceiverStats(**counts))


def message(topic: int, sqn: int, size: int = 40, kind: int = 0, head: int = 0) -> bytes:
    return LBMC.pack(kind, head, size, topic, sqn) + bytes([sqn & 0xFF]) * (size - 12)


def of(topic: int, *sqns: int, size: int = 40) -> list[Message]:
    return [(topic, sqn, bytes([sqn & 0xFF]) * (size - 12)) for sqn in sqns]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


# joining


def test_a_session_is_joined_at_the_time_that_was_set_and_says_its_name(receiver: Receiver) -> None:
    assert receiver.loop.next_deadline() is None
    receiver.session.connect_at(BEGAN + ms(20))
    receiver.turn(BEGAN + ms(20) - 1)
    with pytest.raises(BlockingIOError):
        receiver.listener.accept()
    receiver.turn(BEGAN + ms(20))
    source, _ = receiver.listener.accept()
    assert source.recv(100) == lbmc.encode(lbmc.tcp_sid_message(SESSION))
    source.close()
    assert receiver.session.active_ns == BEGAN + ms(20)
    assert receiver.loop.next_deadline() == BEGAN + ms(20) + s(3)
    assert (receiver.session.is_in_order, receiver.session.shows_life) == (True, False)
    assert (receiver.session.mark(), receiver.session.is_whole(5), receiver.session.generation_ns) == (None, True, 0)


def test_a_session_without_an_id_says_nothing() -> None:
    receiver = Receiver(session_id=0)
    source = receiver.joined()
    source.setblocking(False)
    with pytest.raises(BlockingIOError):
        source.recv(1)
    receiver.close()


@pytest.mark.parametrize("interface", [LOOPBACK, "127.0.0.4", sockets.ANY])
@pytest.mark.parametrize(("buffer_bytes", "keepalive"), [(0, False), (30_000, True)])
def test_a_connection_has_the_options_of_the_receiver(interface: str, buffer_bytes: int, keepalive: bool) -> None:
    receiver = Receiver(interface=interface, buffer_bytes=buffer_bytes, keepalive=keepalive)
    receiver.session.advertised(BEGAN)
    (sock,) = receiver.sockets.opened
    assert sock.getsockname()[0] == (LOOPBACK if interface == sockets.ANY else interface)
    assert not sock.getblocking()
    assert (sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 2 * buffer_bytes) is bool(buffer_bytes)
    assert bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)) is keepalive
    receiver.close()
    assert sock.fileno() == -1


@pytest.mark.parametrize("code", [0, errno.EINPROGRESS, errno.ENETUNREACH, errno.EADDRNOTAVAIL])
def test_an_attempt_that_fails_at_once_ends_and_one_that_takes_time_is_waited_for(
    receiver: Receiver, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket.socket, "connect_ex", lambda sock, address: code)
    receiver.session.advertised(BEGAN)
    is_waited_for = code in (0, errno.EINPROGRESS)
    assert receiver.sink.order == ([] if is_waited_for else ["ended"])
    assert receiver.loop.next_deadline() == (BEGAN + s(10) if is_waited_for else None)
    assert (receiver.session.was_connected, receiver.session.is_connected) == (is_waited_for, False)


def test_an_address_that_does_not_answer_is_given_up_after_ten_seconds(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlainStream, "start", lambda stream, events: None)
    receiver.session.advertised(BEGAN)
    receiver.turn(BEGAN + s(10) - 1)
    assert receiver.sink.order == []
    receiver.turn(BEGAN + s(10))
    assert (receiver.sink.order, receiver.session.was_connected) == (["ended"], False)
    assert receiver.loop.next_deadline() is None


def test_a_source_that_is_not_there_has_not_been_connected(receiver: Receiver) -> None:
    receiver.listener.close()
    receiver.session.advertised(BEGAN)
    receiver.turn()
    assert (receiver.sink.order, receiver.session.was_connected) == (["ended"], False)
    assert receiver.loop.next_deadline() is None
    receiver.session.advertised(BEGAN + s(1) - 1)
    assert receiver.loop.next_deadline() is None, "not tried again within a second"
    receiver.session.advertised(BEGAN + s(1))
    receiver.turn()
    assert receiver.sink.order == ["ended", "ended"]


# what arrives


@pytest.mark.parametrize("size", [12, 40, 1400])
def test_equal_messages_of_one_read_are_one_run_and_are_counted_exactly(receiver: Receiver, size: int) -> None:
    receiver.joined()
    receiver.clock.time_ns += ms(3)
    receiver.put(*[message(7, i, size) for i in range(50)])
    assert receiver.sink.calls == [[Run(7, 0, 50, 0, size, size, 0, 0, KIND_DATA)]]
    assert receiver.sink.got == of(7, *range(50), size=size)
    assert receiver.session.statistics() == receiver.stats(bytes_rcved=50 * size, lbm_msgs_rcved=50)
    assert receiver.session.counts() == SessionCounts()
    assert receiver.session.active_ns == BEGAN + ms(3)
    assert (receiver.sink.order, receiver.session.has_begun) == (["began", "runs"], True)
    assert receiver.session.was_connected


@pytest.mark.parametrize("broken_at", [0, 1, 3, 15, 16, 17, 40])
@pytest.mark.parametrize(
    "other",
    [
        message(8, 0),
        message(7, 1000),
        message(7, 0, 39),
        message(7, 0, 41),
        message(7, 0, head=0x10),
        message(7, 0, kind=2),
    ],
    ids=["topic", "sqn", "shorter", "longer", "block", "kind"],
)
def test_one_that_differs_among_equal_messages_loses_nothing(receiver: Receiver, other: bytes, broken_at: int) -> None:
    receiver.joined()
    stream = [message(7, i) for i in range(41)]
    kind, head, length, topic, sqn = LBMC.unpack_from(other)
    stream[broken_at] = LBMC.pack(kind, head, length, topic, sqn or broken_at) + other[12:]
    receiver.put(*stream)
    expected = [*map(LBMC.unpack_from, stream)]
    assert [(topic, sqn) for topic, sqn, _ in receiver.sink.got] == [(topic, sqn) for *_, topic, sqn in expected]
    assert receiver.session.statistics() == receiver.stats(bytes_rcved=sum(map(len, stream)), lbm_msgs_rcved=41)
    assert len(receiver.sink.calls) == 1


def test_control_messages_come_in_their_place(receiver: Receiver) -> None:
    receiver.joined()
    topic_idx = bytes.fromhex("0865000cff08000000000063")
    eot = bytes.fromhex("01 00 0004")
    receiver.put(message(7, 0), lbmc.encode(lbmc.tsni_message([(7, 41)])), topic_idx, eot, message(7, 1))
    assert [(r.kind, r.offset) for runs in receiver.sink.calls for r in runs] == [
        (KIND_DATA, 0), (KIND_TSNI, 0), (KIND_CONTROL, 56), (KIND_DATA, 72),
    ]  # fmt: skip
    assert (receiver.sink.tsnis, receiver.sink.controls, receiver.sink.got) == ([(7, 41)], [topic_idx], of(7, 0, 1))
    assert receiver.session.statistics() == receiver.stats(bytes_rcved=112, lbm_msgs_rcved=5)


def test_the_shortest_message_is_taken_at_once_and_needs_one_look(receiver: Receiver) -> None:
    source = receiver.joined()
    source.send(bytes.fromhex("01 00 0004"))
    assert receiver.loop.run_once(0)
    assert receiver.session.statistics() == receiver.stats(bytes_rcved=4, lbm_msgs_rcved=1)
    assert receiver.loop.next_deadline() == BEGAN + s(3)


def test_what_lay_in_the_buffer_before_is_not_heard_again(receiver: Receiver) -> None:
    receiver.joined()
    receiver.put(*[message(7, i) for i in range(16)])
    receiver.put(*[message(7, i) for i in range(10)])
    assert receiver.sink.got == of(7, *range(16), *range(10))


def test_a_session_begins_with_its_first_whole_message_whatever_it_is(receiver: Receiver) -> None:
    receiver.joined()
    receiver.put(message(7, 0)[:39])
    assert (receiver.sink.order, receiver.session.has_begun) == ([], False)
    assert receiver.session.statistics() == receiver.stats()
    receiver.clock.time_ns += ms(9)
    receiver.put(message(7, 0)[39:] + message(7, 1)[:20])
    assert receiver.sink.got == of(7, 0)
    assert receiver.session.active_ns == BEGAN + ms(9)
    receiver.put(message(7, 1)[20:])
    assert receiver.sink.got == of(7, 0, 1)
    assert receiver.sink.events == ["began"]


def test_a_turn_reads_twice_and_the_rest_in_the_next() -> None:
    receiver = Receiver(read_bytes=4000)
    receiver.joined().send(b"".join(message(7, i) for i in range(250)))
    assert receiver.loop.run_once(0)
    assert receiver.sink.got == of(7, *range(200))
    assert receiver.loop.next_deadline() == 0, "there may be more"
    receiver.turn()
    assert receiver.sink.got == of(7, *range(250))
    assert receiver.loop.next_deadline() == BEGAN + s(3)
    receiver.close()


# faults


def test_what_follows_broken_bytes_is_not_read() -> None:
    receiver = Receiver(read_bytes=4000)
    receiver.joined().send(message(7, 0) + bytes(3960) + message(7, 1) * 100)
    assert receiver.loop.run_once(0)
    assert receiver.sink.got == of(7, 0)
    assert receiver.sink.events == ["began", "ended"]
    assert receiver.loop.next_deadline() is None
    receiver.close()


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        (bytes(4), "lbmc.header: type 0x00 with 0 bytes at byte 80"),
        (bytes.fromhex("0000000b"), "lbmc.header: type 0x00 with 11 bytes at byte 80"),
        (bytes.fromhex("08000003"), "lbmc.header: type 0x08 with 3 bytes at byte 80"),
        (bytes.fromhex("0820000cff03000000000000"), "lbmc.block"),
    ],
)
def test_bytes_that_are_no_messages_end_the_session_after_what_was_sound(
    receiver: Receiver,
    broken: bytes,
    error: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("dro.transport.tcp.receiver.limited", LimitedLogger(logging.getLogger("test")).event)
    receiver.joined()
    receiver.put(message(7, 0), message(7, 1), broken, message(7, 2))
    assert receiver.sink.got == of(7, 0, 1)
    assert receiver.sink.order == ["began", "runs", "ended"]
    assert receiver.session.counts() == SessionCounts(bad=1)
    assert receiver.session.statistics() == receiver.stats(bytes_rcved=80, lbm_msgs_rcved=2)
    assert not receiver.session.is_connected
    assert receiver.loop.next_deadline() is None
    (told,) = [r for r in caplog.records if r.msg is LogEvent.TCP_STREAM_BROKEN]
    assert vars(told)["source"] == format_source(receiver.address)
    assert error in vars(told)["error"]


@pytest.mark.parametrize("how", ["end", "reset"])
def test_a_connection_that_ends_ends_the_session(receiver: Receiver, how: str) -> None:
    source = receiver.joined()
    receiver.put(message(7, 0))
    if how == "reset":
        source.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    source.close()
    assert receiver.loop.run_once(0)
    assert receiver.sink.order == ["began", "runs", "ended"]
    assert receiver.session.was_connected
    assert (receiver.session.is_connected, receiver.loop.next_deadline()) == (False, None)
    assert receiver.session.counts() == SessionCounts()


def test_silence_ends_a_session_to_the_nanosecond(receiver: Receiver) -> None:
    source = receiver.joined()
    receiver.turn(BEGAN + s(2))
    receiver.put(message(7, 0))
    receiver.turn(BEGAN + s(5) - 1)
    assert receiver.sink.events == ["began"]
    receiver.turn(BEGAN + s(5))
    assert receiver.sink.events == ["began", "ended"]
    assert receiver.loop.next_deadline() is None
    assert source.recv(100) == lbmc.encode(lbmc.tcp_sid_message(SESSION))
    assert source.recv(1) == b"", "the connection was closed"


@pytest.mark.parametrize("when", ["before it is due", "while it connects", "while it is connected"])
def test_a_session_that_was_left_does_nothing_more(receiver: Receiver, when: str) -> None:
    if when == "before it is due":
        receiver.session.connect_at(BEGAN + ms(1))
    elif when == "while it connects":
        receiver.session.advertised(BEGAN)
    else:
        receiver.joined()
        assert receiver.source is not None
        receiver.source.send(message(7, 0))
    receiver.session.leave()
    receiver.session.leave()
    receiver.session.advertised(BEGAN + s(5))
    assert receiver.loop.next_deadline() is None
    receiver.turn(BEGAN + s(60))
    assert (receiver.sink.order, receiver.session.is_connected) == ([], False)


@pytest.mark.parametrize("event", ["began", "runs"])
def test_nothing_follows_after_a_session_was_left_in_a_callback(receiver: Receiver, event: str) -> None:
    receiver.joined()
    receiver.sink.on_event = lambda what, session: session.leave() if what == event else None
    receiver.put(message(7, 0), bytes(4))
    assert receiver.sink.order == ["began", "runs"][: 1 + (event == "runs")]
    assert receiver.session.counts() == SessionCounts()
    assert receiver.loop.next_deadline() is None


def test_a_name_that_the_socket_does_not_take_at_once_follows(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([errno.EAGAIN, 5, errno.EAGAIN, 5, 5])
    genuine = socket.socket.send

    def hesitant(sock: socket.socket, data: bytes) -> int:
        answer = next(answers)
        if answer == errno.EAGAIN:
            raise BlockingIOError(answer, os.strerror(answer))
        return genuine(sock, data[:answer])

    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "send", hesitant)
        source = receiver.joined()
    assert source.recv(100) == lbmc.encode(lbmc.tcp_sid_message(SESSION))
    assert next(answers, None) is None


def test_a_name_that_cannot_be_sent_is_left_to_the_reader(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(sock: socket.socket, data: bytes) -> int:
        raise OSError(errno.EPIPE, "gone")

    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "send", fail)
        source = receiver.joined()
    source.close()
    receiver.turn()
    assert receiver.sink.order == ["ended"]


# a source that filters

OFFER = SsfInit(77, 9, sockets.ip_number(LOOPBACK), 14391, flags=SSF_DEFAULT_EXCLUDE)


def bound(receiver: Receiver, topic_index: int) -> BoundSource[object]:
    address = receiver.address
    tir = Tir(b"T", address, 60, topic_index)
    return BoundSource(b"T", b"", topic_index, receiver.session, tir, is_from_dro=False)


def offered(receiver: Receiver, *offers: SsfInit) -> None:
    receiver.joined()
    receiver.put(*(lbmc.encode(lbmc.control_message(offer)) for offer in offers))


@pytest.mark.parametrize("flags", [SSF_DEFAULT_EXCLUDE, SSF_DEFAULT_INCLUDE])
def test_a_source_that_filters_is_asked_for_the_topics_as_they_come_and_go(receiver: Receiver, flags: int) -> None:
    one, two, three = (bound(receiver, index) for index in (1, 2, 3))
    receiver.session.add_source(one)
    receiver.session.add_source(two)
    offered(receiver, replace(OFFER, flags=flags), replace(OFFER, client_index=8))
    assert [(ip, port) for ip, port, *_ in receiver.asked] == [(OFFER.ip, OFFER.port)] * 2
    request = lbmc.decode(receiver.asked[0][2]).get(SsfCreq)
    assert request == SsfCreq(INCLUDE, OFFER.transport_index, 1, OFFER.client_index), "the first offer holds"
    receiver.session.add_source(three)
    assert len(receiver.asked) == 2, "the others are on their way"
    assert receiver.said() == [(INCLUDE, 1), (INCLUDE, 2)]
    assert receiver.said() == [(INCLUDE, 3)]
    receiver.session.remove_source(two)
    receiver.session.remove_source(three)
    receiver.session.add_source(three)
    receiver.turn(BEGAN + EXCLUDE_AFTER_NS - 1)
    assert receiver.said() == [(INCLUDE, 3)]
    receiver.turn(BEGAN + EXCLUDE_AFTER_NS)
    assert receiver.said() == [(EXCLUDE, 2)]
    assert list(receiver.session.sources) == [1, 3]
    receiver.session.remove_source(bound(receiver, 3))
    receiver.turn(BEGAN + s(2))
    assert (list(receiver.session.sources), receiver.said()) == ([1, 3], []), "another one"


def test_a_connection_that_is_made_anew_is_asked_anew(receiver: Receiver) -> None:
    receiver.session.add_source(bound(receiver, 1))
    offered(receiver, OFFER)
    outcome = receiver.asked.pop()[3]
    assert receiver.source is not None
    receiver.source.close()
    receiver.turn()
    outcome(Outcome.FAILED)
    receiver.turn(BEGAN + s(2))
    assert receiver.asked == [], "the connection is gone"
    offered(receiver, OFFER)
    assert receiver.said() == [(INCLUDE, 1)]


def test_a_request_that_has_failed_is_sent_again(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    receiver.session.add_source(bound(receiver, 1))
    offered(receiver, OFFER)
    receiver.asked.pop()[3](Outcome.FAILED)
    receiver.turn(BEGAN + RETRY_NS - 1)
    assert receiver.asked == []
    receiver.turn(BEGAN + RETRY_NS)
    assert receiver.said() == [(INCLUDE, 1)]
    told = [vars(r) for r in caplog.records if r.msg == LogEvent.SOURCE_NOT_ASKED]
    assert [(r["source"], r["peer"]) for r in told] == [(format_source(receiver.address), "127.0.0.1:14391")]


@pytest.mark.parametrize(("ip", "port"), [(OFFER.ip, 0), (0, OFFER.port), (0xE0000001, OFFER.port)])
def test_an_offer_without_an_address_is_told(
    receiver: Receiver, caplog: pytest.LogCaptureFixture, ip: int, port: int
) -> None:
    receiver.session.add_source(bound(receiver, 1))
    offered(receiver, replace(OFFER, ip=ip, port=port))
    assert receiver.asked == []
    assert [r.msg for r in caplog.records if r.msg == LogEvent.SOURCE_NOT_ASKED] == [LogEvent.SOURCE_NOT_ASKED]


def test_a_broken_offer_asks_for_nothing(receiver: Receiver) -> None:
    receiver.session.add_source(bound(receiver, 1))
    receiver.joined()
    receiver.put(bytes.fromhex("0810000cff08400000000000"))
    assert receiver.asked == []
