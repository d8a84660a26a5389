"""The sending half of LBT-TCP on a clock that the test moves: bytes, counts, options of sockets, refusals, the end."""

from __future__ import annotations

import errno
import logging
import os
import random
import socket
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from fcntl import ioctl

import pytest

from dro.clock import ms, s
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.loop import Loop
from dro.proto.tcp.source import SlowReceiver, TcpSourceConfig, TcpSourceCore, TcpSourceStats
from dro.transport import sockets
from dro.transport.kind import SenderEvents
from dro.transport.runs import KIND_CONTROL, KIND_DATA, Run
from dro.transport.session import SenderTransport, SessionCounts, SourceSessionStatistics
from dro.transport.tcp.sender import TcpSender, TcpSenderSetup
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.message import HEADER as LBMC
from dro.wire.source_string import TcpAddress, format_source
from tests.fakes.clock import SteppedClock
from tests.fakes.runs import send_run

LOOPBACK = "127.0.0.1"
BEGAN = s(5)
SESSION = 0xA1B2C3D4


ARRIVAL_S = 0.5  # what a full receive buffer keeps back does not come


class Listener(socket.socket):
    """Keeps what it accepts; the next accepts fail as `answers` say, 0 lets one through."""

    answers: Iterator[int] = iter(())
    accepted: list[socket.socket]

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        if code := next(self.answers, 0):
            raise OSError(code, os.strerror(code))
        sock, peer = super().accept()
        self.accepted.append(sock)
        return sock, peer


class Source:
    """A sender and the receivers that connect to it."""

    def __init__(
        self,
        *,
        datagram_max: int = 8192,
        nodelay: bool = True,
        send_buffer: int = 0,
        keepalive_ns: int = 0,
        session_id: int = SESSION,
        session_buffer: int = 1 << 20,
        max_clients: int = 1024,
        is_watched: bool = True,
    ) -> None:
        self.clock = SteppedClock(BEGAN)
        self.loop = Loop(self.clock)
        self.listener = Listener(socket.AF_INET, socket.SOCK_STREAM)
        self.listener.accepted = []
        self.listener.bind((LOOPBACK, 0))
        self.listener.listen(5)
        self.listener.setblocking(False)
        self.clients: list[tuple[str, bool]] = []
        self.closed: list[SenderTransport] = []
        self.woken = 0
        self.ends: list[socket.socket] = []
        config = TcpSourceConfig(SlowReceiver.NORMAL, session_buffer, session_id, max_clients=max_clients)
        self.core = TcpSourceCore(config, random.Random(1).random)
        self.address = TcpAddress(sockets.ip_number(LOOPBACK), self.listener.getsockname()[1], session_id)
        setup = TcpSenderSetup(self.address, self.listener, datagram_max, 77, nodelay, send_buffer, keepalive_ns)
        events = SenderEvents(lambda _, name, connected: self.clients.append((name, connected)), self.closed.append)
        self.sender = TcpSender(self.loop, setup, self.core, events if is_watched else None)
        self.sender.on_unblocked = self._on_unblocked

    def _on_unblocked(self) -> None:
        assert not self.sender.is_blocked
        self.woken += 1

    def close(self) -> None:
        self.sender.close(0, self.clock.time_ns)
        for sock in (self.listener, *self.ends):
            sock.close()
        self.loop.close()

    def connect(self, *, small: bool = False) -> socket.socket:
        """A receiver's end; a small one takes little before it is read."""
        sock = socket.socket()
        if small:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect((LOOPBACK, self.address.port))
        sock.setblocking(False)
        self.ends.append(sock)
        self.turn()
        return sock

    def turn(self, to_ns: int | None = None) -> None:
        if to_ns is not None:
            self.clock.time_ns = to_ns
        idle, deadline = 0, time.monotonic() + ARRIVAL_S
        while idle < 3:
            is_awaited = self._is_on_the_way() and time.monotonic() < deadline
            idle = 0 if self.loop.run_once(0) or is_awaited else idle + 1

    def _is_on_the_way(self) -> bool:
        """Whether the kernel has yet to hand over something that an end has sent."""
        ends = [end for end in self.ends if end.fileno() >= 0]
        return any(int.from_bytes(ioctl(end, termios.TIOCOUTQ, bytes(4)), sys.byteorder) for end in ends)

    def read(self, sock: socket.socket) -> bytes:
        """All that comes; the loop turns."""
        found = bytearray()
        while True:
            self.turn()
            try:
                piece = sock.recv(1 << 20)
            except BlockingIOError:
                return bytes(found)
            if not piece:
                return bytes(found)
            found += piece

    def fill(self) -> int:
        """Send until the session blocks; how many messages of 1000 bytes it took."""
        sent = 0
        while self.sender.send_message(message(7, sent, 1000), self.clock.time_ns, 988):
            sent += 1
        return sent


def message(topic: int, sqn: int, size: int) -> bytes:
    return LBMC.pack(0, 0, size, topic, sqn) + bytes([sqn & 0xFF]) * (size - 12)


def run_of(fragments: int, size: int, gap: int = 0, in_front: int = 3) -> tuple[bytearray, Run]:
    buffer = bytearray(in_front)
    for sqn in range(fragments):
        buffer += bytes(gap) + message(99, sqn, size)
    return buffer, Run(99, 0, fragments, gap, size, size + gap, gap, 0, KIND_DATA)


def name_of(sock: socket.socket) -> str:
    return "{}:{}".format(*sock.getsockname())


@pytest.fixture
def source() -> Iterator[Source]:
    made = Source()
    yield made
    made.close()


# sending


def test_what_is_sent_comes_out_as_one_stream_and_every_count_says_so(source: Source) -> None:
    one, two = source.connect(), source.connect()
    sender = source.sender
    buffer, run = run_of(4, 50, gap=20)
    assert send_run(sender, buffer, run, 3, 7, BEGAN, first=1) == 3
    assert sender.send_message(message(1, 5, 30), BEGAN, 18) is True
    assert sender.send_packed([message(1, 6, 20), message(2, 7, 25)], 21, BEGAN) == 2
    stream = b"".join(message(7, i, 50) for i in (1, 2, 3)) + message(1, 5, 30) + message(1, 6, 20) + message(2, 7, 25)
    assert source.read(one) == source.read(two) == stream
    stats = TcpSourceStats(num_clients=2, msgs_sent=6, bytes_sent=len(stream))
    assert sender.statistics() == SourceSessionStatistics(format_source(source.address), stats)
    assert sender.counts() == SessionCounts()
    before = sender.statistics()
    sender.send_message(message(1, 8, 12), BEGAN)
    assert before.counters.msgs_sent == 6, "a snapshot"
    assert (sender.is_blocked, sender.is_flushing, sender.is_read_on) == (False, False, True)
    assert (sender.transport_index, sender.datagram_max_bytes, sender.fragment_max_bytes) == (77, 8192, 8192)
    assert source.clients == [(name_of(one), True), (name_of(two), True)]
    assert source.loop.next_deadline() is None


def test_what_nobody_hears_is_counted_as_sent(source: Source) -> None:
    buffer, run = run_of(9, 50)
    given = bytes(buffer)
    assert send_run(source.sender, buffer, run, 3, 7, BEGAN, first=2) == 7
    assert bytes(buffer) == given
    assert source.core.stats == TcpSourceStats(msgs_sent=7, bytes_sent=350)
    send_run(source.sender, buffer, run, 3, 7, BEGAN)
    assert source.core.stats == TcpSourceStats(msgs_sent=16, bytes_sent=800)


def test_topic_indexes_are_rewritten_also_in_control_messages(source: Source) -> None:
    end = source.connect()
    for topic in (99, 0x01020304):
        buffer, run = run_of(2, 50)
        assert send_run(source.sender, buffer, run, 3, topic, BEGAN) == 2
        control = bytes.fromhex("0865000cff08000000000063")
        run = Run(99, 0, 1, 0, 12, 12, 0, 0x65, KIND_CONTROL)
        assert send_run(source.sender, bytearray(control), run, 0, topic, BEGAN) == 1
        expected = message(topic, 0, 50) + message(topic, 1, 50) + control[:8] + topic.to_bytes(4, "big")
        assert source.read(end) == expected


@pytest.mark.parametrize(("datagram_max", "largest"), [(1500, 1500), (65535, 65535), (70000, 65535)])
def test_no_message_is_larger_than_its_length_field_can_say(datagram_max: int, largest: int) -> None:
    source = Source(datagram_max=datagram_max)
    assert (source.sender.datagram_max_bytes, source.sender.fragment_max_bytes) == (datagram_max, largest)
    source.close()


@pytest.mark.parametrize(("in_front", "gap", "is_held"), [(0, 0, True), (150, 0, True), (151, 0, False), (0, 1, False)])
def test_a_small_part_of_a_buffer_is_copied_so_that_it_does_not_keep_the_rest(
    in_front: int, gap: int, is_held: bool
) -> None:
    """Two messages of 25 bytes, behind a receiver that takes nothing; a quarter of the buffer is no small part."""
    source = Source(send_buffer=4096)
    end = source.connect(small=True)
    while not source.core.stats.bytes_buffered:
        assert source.sender.send_message(message(1, 0, 60000), BEGAN)
    buffer, run = run_of(2, 25, gap, in_front)
    assert send_run(source.sender, buffer, run, in_front, 7, BEGAN) == 2
    try:
        buffer += b"more"
    except BufferError:
        assert is_held
    else:
        assert not is_held
    assert source.read(end).endswith(message(7, 0, 25) + message(7, 1, 25))
    source.close()


def test_a_full_session_refuses_until_a_receiver_has_taken_enough() -> None:
    source = Source(send_buffer=4096, session_buffer=5000)
    slow, fast = source.connect(small=True), source.connect()
    sent = source.fill()
    assert source.sender.is_blocked
    assert 0 < source.core.stats.bytes_buffered <= 5000
    buffer, run = run_of(2, 50)
    given = bytes(buffer)
    for _ in range(2):
        assert send_run(source.sender, buffer, run, 3, 7, BEGAN) == 0
        assert source.sender.send_message(message(1, 1, 12), BEGAN) is False
        assert source.sender.send_packed([message(1, 1, 12)], 0, BEGAN) == 0
    assert bytes(buffer) == given
    assert source.core.stats.msgs_sent == sent
    expected = b"".join(message(7, i, 1000) for i in range(sent))
    assert source.read(fast) == expected
    assert source.woken == 0
    assert source.read(slow) == expected
    assert (source.woken, source.sender.is_blocked, source.core.stats.bytes_buffered) == (1, False, 0)
    assert send_run(source.sender, buffer, run, 3, 7, BEGAN) == 2
    assert source.read(slow) == source.read(fast) == message(7, 0, 50) + message(7, 1, 50)
    assert source.woken == 1
    source.close()


def test_a_receiver_is_blocked_since_it_took_something_last() -> None:
    with closing(Source(send_buffer=4096, session_buffer=20_000)) as source:
        end, sender = source.connect(small=True), source.sender
        source.fill()
        (first,) = sender.statistics().blocked
        assert (first.address, first.blocked_ns, first.discarded, first.blocks_others) == (name_of(end), 0, 0, True)
        assert first.waiting_bytes == source.core.stats.bytes_buffered > 4000
        source.clock.time_ns += s(3)
        still = replace(first, blocked_ns=s(3))
        assert sender.statistics().blocked == (still,)
        sender._on_writable(next(iter(sender._waiting)))  # without room after all
        assert sender.statistics().blocked == (still,)
        while (now := sender.statistics().blocked) == (still,):
            end.recv(1000)
            source.turn()
        assert 0 < now[0].waiting_bytes < first.waiting_bytes
        assert now[0].blocked_ns == 0
        source.read(end)
        assert sender.statistics().blocked == ()


def test_a_session_that_nobody_wakes_goes_on_as_well() -> None:
    source = Source(send_buffer=4096, session_buffer=5000)
    slow = source.connect(small=True)
    source.sender.on_unblocked = None
    source.fill()
    source.read(slow)
    assert not source.sender.is_blocked
    source.close()


# receivers


@pytest.mark.parametrize("nodelay", [True, False])
@pytest.mark.parametrize(("send_buffer", "keepalive_ns"), [(0, 0), (30_000, s(20))])
def test_accepted_connections_have_the_options_of_the_session(
    nodelay: bool, send_buffer: int, keepalive_ns: int
) -> None:
    source = Source(nodelay=nodelay, send_buffer=send_buffer, keepalive_ns=keepalive_ns)
    source.connect()
    (sock,) = source.listener.accepted
    assert not sock.getblocking()
    assert bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)) is nodelay
    assert (sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 2 * send_buffer) is bool(send_buffer)
    assert bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)) is bool(keepalive_ns)
    source.close()


def test_a_session_is_without_delay_and_with_the_buffers_of_the_system_unless_told_otherwise() -> None:
    address = TcpAddress(1, 2, 3)
    with socket.socket() as listener:
        assert TcpSenderSetup(address, listener, 8192, 1) == TcpSenderSetup(address, listener, 8192, 1, True, 0, 0)


@pytest.mark.parametrize(
    ("code", "pauses"),
    [
        (errno.EAGAIN, None),
        (errno.ECONNABORTED, False),
        (errno.EMFILE, True),
        (errno.ENFILE, True),
        (errno.ENOBUFS, True),
        (errno.ENOMEM, True),
    ],
)
def test_a_connection_that_cannot_be_accepted_is_told_and_waited_for_when_something_is_exhausted(
    code: int, pauses: bool | None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dro.transport.tcp.sender.limited", LimitedLogger(logging.getLogger("test")).event)
    source = Source()
    source.listener.answers = iter([code])
    source.connect()
    text = [(r.msg, vars(r)["port"], vars(r)["error"]) for r in caplog.records]
    assert text == ([] if pauses is None else [(LogEvent.TCP_ACCEPT_FAILED, source.address.port, os.strerror(code))])
    if pauses:
        assert source.loop.next_deadline() == BEGAN + ms(100)
        source.turn(BEGAN + ms(100) - 1)
        assert source.clients == []
        source.turn(BEGAN + ms(100))
    assert [connected for _, connected in source.clients] == [True]
    assert source.loop.next_deadline() is None
    source.close()


def test_all_that_wait_are_accepted_in_turns(source: Source) -> None:
    waiting = [socket.create_connection((LOOPBACK, source.address.port)) for _ in range(4)]
    source.ends += waiting
    assert source.loop.run_once(0)
    assert source.loop.next_deadline() == 0, "there may be more"
    source.turn()
    assert source.clients == [(name_of(sock), True) for sock in waiting]


def closed_lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(vars(r)["client"], vars(r)["reason"]) for r in caplog.records if r.msg is LogEvent.TCP_RECEIVER_CLOSED]


def test_one_receiver_more_than_allowed_is_sent_away(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    source = Source(max_clients=1)
    first, second = source.connect(), source.connect()
    assert second.recv(1) == b""
    assert source.clients == [(name_of(first), True)]
    assert closed_lines(caplog) == [("?", "too many")]
    source.sender.send_message(message(1, 1, 20), BEGAN)
    assert source.read(first) == message(1, 1, 20)
    source.close()


SID = lbmc.encode(lbmc.tcp_sid_message(SESSION))
OTHER_SID = lbmc.encode(lbmc.tcp_sid_message(SESSION + 1))
TSNI = lbmc.encode(lbmc.tsni_message([(1, 2)]))


@pytest.mark.parametrize("cut", [1, 3, 5, 12, 1000])
@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (SID, None),
        (SID * 3, None),
        (TSNI + SID, None),
        (bytes.fromhex("01 00 0004") + SID, None),  # an end of transport
        (OTHER_SID[:-1], None),
        (OTHER_SID, "session id"),
        (SID + OTHER_SID, "session id"),
        (TSNI + OTHER_SID, "session id"),
        (bytes.fromhex("01 00 0004") + OTHER_SID, "session id"),
        (bytes.fromhex("00 00 0003"), "bad input"),
        (SID + bytes(4), "bad input"),
        (bytes.fromhex("086b000cff07000012345678"), "bad input"),
        (bytes.fromhex("086b0010ff0c00001234567800000000"), "bad input"),
    ],
)
def test_what_a_receiver_says_decides_whether_it_stays(
    source: Source, said: bytes, reason: str | None, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    end = source.connect()
    name = name_of(end)
    for at in range(0, len(said), cut):
        end.send(said[at : at + cut])
        source.turn()
    assert source.clients == [(name, True), (name, False)][: 2 if reason else 1]
    assert closed_lines(caplog) == ([(name, reason)] if reason else [])
    assert source.sender.counts() == SessionCounts(bad=reason == "bad input")
    assert source.core.stats.num_clients == (not reason)


def test_a_receiver_may_say_more_than_is_read_at_once(source: Source) -> None:
    end = source.connect()
    end.send(message(1, 1, 60_000) + OTHER_SID)
    source.turn()
    assert source.core.stats.num_clients == 0


def test_a_session_without_an_id_takes_everybody() -> None:
    source = Source(session_id=0)
    end = source.connect()
    end.send(OTHER_SID)
    source.turn()
    assert source.core.stats.num_clients == 1
    source.close()


def test_a_receiver_that_goes_is_told_and_its_place_is_free(source: Source) -> None:
    for _ in range(3):
        end = source.connect()
        name = name_of(end)
        end.close()
        source.turn()
        assert source.clients[-2:] == [(name, True), (name, False)]
    assert source.core.stats.num_clients == 0
    assert source.loop.next_deadline() is None
    assert {sock.fileno() for sock in source.listener.accepted} == {-1}


def test_the_place_of_a_receiver_that_went_while_it_was_written_to_is_free() -> None:
    """The system gives its number to the next connection."""
    source = Source(send_buffer=4096, session_buffer=5000)
    for _ in range(3):
        slow = source.connect(small=True)
        source.fill()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        slow.close()
        source.turn()
        assert (source.core.stats.num_clients, source.core.stats.bytes_buffered) == (0, 0)
        assert not source.sender.is_blocked
    assert [connected for _, connected in source.clients] == [True, False] * 3
    source.close()


def test_a_session_that_nobody_watches_serves_and_ends() -> None:
    source = Source(is_watched=False)
    end, gone = source.connect(), source.connect()
    gone.close()
    source.turn()
    source.sender.send_message(message(1, 1, 20), BEGAN)
    assert source.read(end) == message(1, 1, 20)
    source.sender.close(0, BEGAN)
    assert end.recv(1) == b""
    source.close()


# the end


@pytest.mark.parametrize("says_first", [True, False])
def test_a_receiver_that_says_the_session_id_late_gets_what_was_sent(says_first: bool) -> None:
    """A close before it does would be answered by a reset, and what its machine has not got would be lost."""
    said = lbmc.encode(lbmc.tcp_sid_message(SESSION))
    with closing(Source(send_buffer=1 << 20)) as source:
        end = source.connect(small=True)
        if says_first:
            end.send(said)
            source.turn()
        sent = [message(1, number, 1000) for number in range(200)]
        assert all(source.sender.send_message(one, BEGAN) for one in sent)
        assert not source.core.stats.bytes_buffered, "the system has it all"
        source.sender.close(s(2), BEGAN)
        assert (source.closed != []) == says_first
        if not says_first:
            end.send(said)
        got = bytearray()
        for step in range(1, 20_000):
            try:
                part = end.recv(1 << 16)
            except BlockingIOError:
                source.turn(BEGAN + step * ms(1) // 10)
                continue
            if not part:
                break
            got += part
        assert bytes(got) == b"".join(sent)
        assert source.closed == [source.sender]


@pytest.mark.parametrize(
    ("linger_ns", "checks"),
    [
        (0, []),
        (ms(3), [ms(3)]),
        (ms(12), [ms(5), ms(10), ms(12)]),
        (s(10), [*range(ms(5), s(2) + 1, ms(5))]),
    ],
)
def test_a_session_waits_for_receivers_that_lag_at_most_two_seconds(linger_ns: int, checks: list[int]) -> None:
    source = Source(send_buffer=4096, session_buffer=5000)
    source.connect(small=True)
    source.fill()
    source.sender.close(linger_ns, BEGAN)
    assert source.listener.fileno() == -1, "nobody else can connect"
    for after in checks:
        assert (source.closed, source.sender.is_flushing) == ([], True)
        assert source.loop.next_deadline() == BEGAN + after
        source.turn(BEGAN + after)
    assert (source.closed, source.sender.is_flushing) == ([source.sender], False)
    assert source.loop.next_deadline() is None
    assert {sock.fileno() for sock in source.listener.accepted} == {-1}
    assert source.sender.send_message(message(1, 1, 12), BEGAN) is False
    assert source.sender.send_packed([message(1, 1, 12)], 0, BEGAN) == 0
    buffer, run = run_of(1, 20)
    assert send_run(source.sender, buffer, run, 3, 7, BEGAN) == 0
    source.sender.close(s(1), BEGAN)
    assert source.closed == [source.sender]
    source.close()


def test_a_session_ends_as_soon_as_its_receivers_have_everything() -> None:
    source = Source(send_buffer=4096, session_buffer=5000)
    slow = source.connect(small=True)
    sent = source.fill()
    source.sender.close(s(1), BEGAN)
    got = source.read(slow)
    assert source.closed == []
    source.turn(BEGAN + ms(5))
    assert source.closed == [source.sender]
    got += source.read(slow)
    assert got == b"".join(message(7, i, 1000) for i in range(sent))
    assert source.loop.next_deadline() is None
    source.close()


def test_a_session_that_could_not_accept_closes_without_trying_again(source: Source) -> None:
    source.listener.answers = iter([errno.EMFILE])
    source.connect()
    source.sender.close(0, BEGAN)
    assert source.loop.next_deadline() is None


def test_what_was_sent_has_settled_when_no_receiver_waits_for_it() -> None:
    source = Source(send_buffer=4096, session_buffer=5000)
    assert source.sender.settling(BEGAN, s(1), is_last=True)(BEGAN)
    slow = source.connect(small=True)
    assert source.sender.settling(BEGAN, s(1), is_last=True)(BEGAN)
    source.fill()
    while_more_follows = source.sender.settling(BEGAN, s(1), is_last=False)
    as_the_last = source.sender.settling(BEGAN, s(1), is_last=True)
    assert not while_more_follows(BEGAN + s(100))
    while not while_more_follows(BEGAN):
        assert not as_the_last(BEGAN)
        slow.recv(500)
        source.turn()
    source.read(slow)
    assert as_the_last(BEGAN)
    source.close()


def test_what_only_the_system_has_taken_counts_for_the_last_data() -> None:
    source = Source(send_buffer=1 << 20)
    slow = source.connect(small=True)
    source.sender.send_message(message(7, 0, 60_000), BEGAN)
    assert source.core.stats.bytes_buffered == 0
    assert source.sender.settling(BEGAN, 0, is_last=False)(BEGAN)
    has_settled = source.sender.settling(BEGAN, 0, is_last=True)
    assert not has_settled(BEGAN)
    while not has_settled(BEGAN):
        source.read(slow)
    source.close()
