"""What an LBT-RM source puts on the wire, byte by byte, and when: a real socket and a clock that the test moves."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from dro.clock import ms, s
from dro.log.events import LogEvent
from dro.loop import Loop
from dro.proto.ratelimit import RateLimiter
from dro.proto.repair.source import SourceConfig, SourceSession, SourceStats
from dro.sqn import MASK
from dro.transport import mmsg, sockets
from dro.transport.datagrams.setup import DatagramSenderSetup
from dro.transport.lbtrm.sender import LbtrmSender
from dro.transport.runs import KIND_CONTROL, KIND_DATA, Run
from dro.transport.session import SenderTransport, SessionCounts, SourceSessionStatistics
from dro.wire import lbtrm
from dro.wire.lbmc.message import HEADER as LBMC
from dro.wire.lbtrm import DATA_HEADER
from dro.wire.source_string import LbtrmAddress, format_source
from tests.fakes.clock import SteppedClock
from tests.fakes.fussy_socket import FussySocket, no_buffer_space
from tests.fakes.runs import send_run

LOOPBACK = "127.0.0.1"
BEGAN = s(5)
SESSION = 0xA1B2C3D4
DEFAULTS = SourceConfig()


class Source:
    """One sender; what leaves its data socket comes out at `wire`."""

    def __init__(
        self,
        config: SourceConfig = DEFAULTS,
        *,
        datagram_max: int = 8192,
        data_bps: int = 0,
        retransmit_bps: int = 0,
        interface: str = LOOPBACK,
        tgsz_log2: int = 3,
        pack_bytes: int = 0,
    ) -> None:
        self.clock = SteppedClock(BEGAN)
        self.loop = Loop(self.clock)
        self.wire, self.naks, nak_socket = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(3))
        self.wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        for sock in (self.wire, nak_socket):
            sock.bind((LOOPBACK, 0))
            sock.setblocking(False)
        self.naks.connect(nak_socket.getsockname())
        data = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        data.connect(self.wire.getsockname())
        data.setblocking(False)
        self.data = FussySocket.of(data)
        self.nak_socket = nak_socket
        self.closed: list[SenderTransport] = []
        self.woken: list[int] = []
        self.limiter = RateLimiter(data_bps, ms(10), BEGAN)
        self.core = SourceSession(config, self.limiter, RateLimiter(retransmit_bps, ms(10), BEGAN), BEGAN)
        port = nak_socket.getsockname()[1]
        self.address = LbtrmAddress(sockets.ip_number(LOOPBACK), 0xE00A0A0A, SESSION, 14400, port)
        self.sender = LbtrmSender(
            self.loop,
            DatagramSenderSetup(
                self.address, self.data, nak_socket, interface, datagram_max, 77, DATA_HEADER, pack_bytes
            ),
            self.core,
            self.limiter,
            mmsg.DatagramBatch(),
            self.closed.append,
            tgsz_log2,
        )
        self.sender.on_unblocked = lambda: self.woken.append(self.clock.time_ns)

    def close(self) -> None:
        self.sender.close(0, self.clock.time_ns)
        for sock in (self.wire, self.naks):
            sock.close()
        self.loop.close()

    def run(self, fragments: int, size: int, first: int = 0, gap: int = 20) -> tuple[bytearray, Run]:
        """LBMC messages of `size` bytes for topic index 99, each behind a gap."""
        buffer = bytearray(3)
        for sqn in range(first, first + fragments):
            buffer += bytes(gap) + message(99, sqn, size)
        return buffer, Run(99, first, fragments, gap, size, size + gap, gap, 0, KIND_DATA)

    def send(self, fragments: int, size: int = 50, *, first: int = 0, topic: int = 7) -> int:
        buffer, run = self.run(fragments, size)
        return send_run(self.sender, buffer, run, 3, topic, self.clock.time_ns, first=first)

    def datagram(self, sqn: int, content: bytes, trail: int = 0, *, again: bool = False) -> bytes:
        """As it should be with groups of eight."""
        head = bytes(2) + self.address.nak_port.to_bytes(2, "big") + bytes.fromhex("a1b2c3d4")
        numbers = sqn.to_bytes(4, "big") + trail.to_bytes(4, "big")
        return head + numbers + bytes([0xA0 if again else 0x80, 3, 0, sqn % 8]) + content

    def take(self) -> list[bytes]:
        """What has left since the last time."""
        found: list[bytes] = []
        while True:
            try:
                found.append(self.wire.recv(70_000))
            except BlockingIOError:
                return found

    def turn(self, to_ns: int | None = None) -> list[bytes]:
        """Let time come to `to_ns`; returns what leaves then."""
        if to_ns is not None:
            self.clock.time_ns = to_ns
        while self.loop.run_once(0):
            pass
        return self.take()

    def nak(self, *sqns: int) -> list[bytes]:
        """A receiver asks; returns what leaves at once."""
        self.naks.send(lbtrm.encode(lbtrm.Nak(self.address.nak_port, SESSION, sqns)))
        return self.turn()


def message(topic: int, sqn: int, size: int) -> bytes:
    return LBMC.pack(0, 0, size, topic, sqn) + bytes([sqn & 0xFF]) * (size - 12)


@pytest.fixture
def source() -> Iterator[Source]:
    made = Source()
    yield made
    made.close()


def test_fragments_become_datagrams_and_every_count_says_so(source: Source) -> None:
    sender = source.sender
    assert source.send(3) == 3
    assert source.take() == [source.datagram(i, message(7, i, 50)) for i in range(3)]
    assert sender.send_message(b"one message", BEGAN, 5) is True
    assert source.take() == [source.datagram(3, b"one message")]
    assert sender.send_packed([b"two ", b"messages"], 7, BEGAN) == 2
    assert source.take() == [source.datagram(4, b"two messages")]
    sent = 3 * 70 + 31 + 32
    assert sender.statistics() == SourceSessionStatistics(
        format_source(source.address), SourceStats(msgs_sent=5, bytes_sent=sent), txw_msgs=5, txw_bytes=3 * 38 + 5 + 7
    )
    assert sender.counts() == SessionCounts(trains=1)
    before = sender.statistics()
    source.send(1)
    assert before.counters.msgs_sent == 5, "a snapshot"
    assert (sender.is_blocked, sender.is_flushing, sender.is_read_on) == (False, False, False)
    assert (sender.transport_index, sender.datagram_max_bytes, sender.fragment_max_bytes) == (77, 8192, 8172)


@pytest.mark.parametrize(("gap", "is_in_place"), [(20, True), (0, False), (19, False), (21, False), (40, False)])
def test_only_fragments_with_just_the_room_for_a_header_are_sent_from_where_they_lie(
    source: Source, gap: int, is_in_place: bool
) -> None:
    buffer, run = source.run(4, 30, gap=gap)
    given = bytes(buffer)
    assert send_run(source.sender, buffer, run, 3, 7, BEGAN, first=1) == 3
    expected = [source.datagram(i, message(7, i + 1, 30)) for i in range(3)]
    assert source.take() == expected
    assert (bytes(buffer) == given[:53] + b"".join(expected)) is is_in_place


def test_topic_indexes_are_rewritten_also_in_control_messages(source: Source) -> None:
    assert source.send(2, topic=5) == 2
    assert source.take() == [source.datagram(i, message(5, i, 50)) for i in range(2)]
    control = bytes.fromhex("0865000cff08000000000063")
    run = Run(99, 0, 1, 0, 12, 12, 0, 0x65, KIND_CONTROL)
    assert send_run(source.sender, bytearray(control), run, 0, 0x01020304, BEGAN) == 1
    assert source.take() == [source.datagram(2, control[:8] + bytes([1, 2, 3, 4]))]
    assert source.core.txw_bytes == 2 * 38, "a control message has no user data"


@pytest.mark.parametrize(("tgsz_log2", "symbols"), [(0, [0, 0, 0, 0]), (1, [0, 1, 0, 1]), (3, [6, 7, 0, 1])])
def test_numbers_wrap_and_the_group_symbol_is_the_place_in_its_group(tgsz_log2: int, symbols: list[int]) -> None:
    source = Source(SourceConfig(first_sqn=MASK - 1, window_size_bytes=3 * 38), tgsz_log2=tgsz_log2)
    for _ in range(4):
        source.send(1)
    packets = [lbtrm.decode(datagram) for datagram in source.take()]
    assert [(p.sqn, p.trail, p.tgsz, p.fec_symbol) for p in packets if isinstance(p, lbtrm.Data)] == [
        (MASK - 1, MASK - 1, tgsz_log2, symbols[0]),
        (MASK, MASK - 1, tgsz_log2, symbols[1]),
        (0, MASK - 1, tgsz_log2, symbols[2]),
        (1, MASK - 1, tgsz_log2, symbols[3]),
    ]
    source.send(1)
    last = lbtrm.decode(source.take()[0])
    assert isinstance(last, lbtrm.Data)
    assert (last.sqn, last.trail) == (2, MASK)
    source.close()


# trains


@pytest.mark.parametrize(
    ("interface", "mtu", "size", "count", "tries"),
    [
        (LOOPBACK, 65536, 80, 1, [100]),
        (LOOPBACK, 65536, 80, 2, [200]),
        (LOOPBACK, 65536, 80, 64, [6400]),
        (LOOPBACK, 65536, 80, 65, [6400, 100]),
        (LOOPBACK, 65536, 80, 66, [6400, 200]),
        ("10.1.2.3", 1500, 80, 16, [1600]),
        ("10.1.2.3", 1500, 80, 18, [1600, 200]),
        ("10.1.2.3", 1500, 1452, 2, [2944]),  # as large as fits an unfragmented packet
        ("10.1.2.3", 1500, 1453, 2, [1473, 1473]),
        (LOOPBACK, 65536, 21647, 4, [43334, 43334]),  # three would be 65001
        (LOOPBACK, 65536, 32480, 4, [65000, 65000]),
        (LOOPBACK, 65536, 32481, 3, [32501] * 3),  # two would be too large for one packet
    ],
)
def test_runs_leave_in_trains_as_long_as_the_network_takes_them(
    interface: str, mtu: int, size: int, count: int, tries: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "interface_mtu", {interface: mtu}.__getitem__)
    source = Source(interface=interface, datagram_max=65535)
    assert source.send(count, size) == count
    assert source.data.sizes == tries
    assert source.take() == [source.datagram(i, message(7, i, size)) for i in range(count)]
    assert source.sender.counts().trains == sum(tried != size + 20 for tried in tries) == source.data.calls["sendmsg"]
    source.close()


@pytest.mark.parametrize(
    ("code", "same", "shorter"),
    [
        (errno.EINVAL, False, True),
        (errno.EMSGSIZE, False, True),
        (errno.EIO, False, False),
        (errno.EOPNOTSUPP, False, False),
        (errno.ENOPROTOOPT, False, False),
    ],
)
def test_a_refused_train_goes_out_singly_and_what_it_says_of_later_ones_is_kept(
    source: Source, code: int, same: bool, shorter: bool
) -> None:
    source.data.answers = iter([code])
    assert source.send(3, 80) == 3
    assert source.data.sizes == [300, 100, 100, 100]
    for size, in_a_train in ((80, same), (81, same), (79, shorter)):
        source.data.sizes.clear()
        assert source.send(2, size) == 2
        assert source.data.sizes == ([2 * size + 40] if in_a_train else [size + 20] * 2)
    assert len(source.take()) == 9
    assert source.sender.counts().trains == shorter
    assert source.sender.send_errors == 0


def test_without_segmentation_offload_there_are_no_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "supports_gso", lambda sock: False)
    source = Source()
    assert source.send(3, 80) == 3
    assert source.data.sizes == [100] * 3
    source.close()


# sends that fail, sessions that block


def test_failed_sends_are_told_at_powers_of_two_and_count_as_sent(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    source.data.answers = iter([errno.EPERM] * 9)
    for _ in range(8):
        assert source.send(1) == 1
    assert source.send(2) == 2, "a train is one failure"
    assert source.send(1) == 1
    assert [datagram[8:12] for datagram in source.take()] == [(10).to_bytes(4, "big")]
    assert (source.sender.send_errors, source.sender.is_blocked) == (9, False)
    assert [(r.msg, vars(r)["session"], vars(r)["error"], vars(r)["failed"]) for r in caplog.records] == [
        (LogEvent.SEND_FAILED, format_source(source.address), "Operation not permitted", n) for n in (1, 2, 4, 8)
    ]
    assert source.core.stats.msgs_sent == 11
    assert source.sender.counts().unsent == 10


def test_naks_that_find_a_full_receive_buffer_are_counted_also_after_the_end(source: Source) -> None:
    source.nak_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    for _ in range(100):
        source.naks.send(bytes(1000))
    source.turn()
    counts = source.sender.counts()
    assert (0 < counts.bad < 100, counts.bad + counts.socket_drops) == (True, 100)
    source.sender.close(0, BEGAN)
    assert source.sender.counts() == counts


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.ENOBUFS])
@pytest.mark.parametrize(("answers", "sent"), [([0], 0), ([1, 0], 64), ([1, 1, 0], 128), ([1, 1, 1, 0], 129)], ids=str)
def test_a_busy_socket_blocks_the_session_until_it_may_have_room(
    source: Source, code: int, answers: list[int], sent: int
) -> None:
    """Two trains, and two datagrams that each make one."""
    source.data.answers = iter([0 if ok else code for ok in answers])
    buffer, run = source.run(129, 80)
    assert send_run(source.sender, buffer, run, 3, 7, BEGAN) == min(sent, 129)
    if sent == 129:
        assert source.sender.send_message(b"refused", BEGAN) is False
    assert source.sender.is_blocked
    assert send_run(source.sender, buffer, run, 3, 7, BEGAN, first=sent) == 0
    assert source.sender.send_message(b"", BEGAN) is False
    assert source.sender.send_packed([b"", b""], 0, BEGAN) == 0
    assert len(source.data.sizes) == len(answers), "a blocked session tries nothing"
    if code == errno.ENOBUFS:  # such a socket stays writable
        source.turn(BEGAN + ms(1) - 1)
        assert source.woken == []
        source.turn(BEGAN + ms(1))
    else:
        source.turn()
    assert source.woken == [source.clock.time_ns]
    assert not source.sender.is_blocked
    assert send_run(source.sender, buffer, run, 3, 7, BEGAN, first=sent) == 129 - sent
    source.turn(BEGAN + ms(50))
    assert len(source.woken) == 1
    assert source.core.stats.msgs_sent == 129


def test_the_rate_limit_blocks_until_its_next_interval_and_keeps_a_place_in_the_line() -> None:
    source = Source(data_bps=8_000_000)  # 10000 bytes in 10 ms
    assert source.send(12, 980) == 10
    assert source.sender.is_blocked
    assert not source.limiter.take(1, BEGAN, "another"), "the blocked one is first"
    source.turn(BEGAN + ms(10) - 1)
    assert source.woken == []
    source.turn(BEGAN + ms(10))
    assert (source.woken, source.sender.is_blocked) == ([BEGAN + ms(10)], False)
    assert source.limiter.take(1, source.clock.time_ns, "another"), "nobody waits any more"
    source.sender.on_unblocked = None
    assert source.send(12, 980) == 9
    source.turn(BEGAN + ms(20))
    assert not source.sender.is_blocked
    source.close()


def test_a_session_that_blocks_again_while_it_is_woken_stays_first_in_the_line() -> None:
    source = Source(data_bps=8_000_000)
    source.sender.on_unblocked = lambda: source.woken.append(source.send(25, 980))
    assert source.send(11, 980) == 10
    source.turn(BEGAN + ms(10))
    assert (source.woken, source.sender.is_blocked) == ([10], True)
    assert not source.limiter.take(1, source.clock.time_ns, "another")
    source.turn(BEGAN + ms(20))
    assert source.woken == [10, 10]
    source.close()


# repairs and session messages


def test_a_nak_is_answered_with_what_was_sent_or_with_the_reason_why_not() -> None:
    source = Source(SourceConfig(window_size_bytes=2 * 38, ignore_ns=ms(500), sm_min_ns=s(30), sm_max_ns=s(30)))
    source.send(3)
    first = source.take()
    again = [source.datagram(sqn, first[sqn][20:], 1, again=True) for sqn in (1, 2)]
    assert source.nak(2, 1) == again
    ncf = bytes.fromhex("0400") + source.address.nak_port.to_bytes(2, "big") + bytes.fromhex("a1b2c3d400000001")
    assert source.nak(0, 1, 9) == [
        ncf + bytes.fromhex("0001 0000 00000000"),  # out of the window
        ncf + bytes.fromhex("0001 0010 00000001"),  # sent again a moment ago; nobody has sent a 9
    ]
    source.clock.time_ns += ms(500)
    assert source.nak(1) == again[:1]
    assert source.sender.counts() == SessionCounts(retransmitted=3, trains=1)
    assert source.core.stats == replace(
        SourceStats(), msgs_sent=3, bytes_sent=210, nak_pckts_rcved=3, naks_rcved=6, naks_ignored=1, rxs_sent=3,
        rx_bytes_sent=210,
    )  # fmt: skip
    assert source.loop.next_deadline() == BEGAN + s(30)
    source.close()


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"garbage",
        lbtrm.encode(lbtrm.Ncf(1, SESSION, 0, 0, 0, (1,))),
        lbtrm.encode(lbtrm.Nak(1, SESSION, (0,))),
        None,  # of another session on this port
    ],
)
def test_what_comes_to_the_nak_port_and_is_no_nak_of_the_session_is_counted(
    source: Source, packet: bytes | None
) -> None:
    source.send(1)
    source.take()
    source.naks.send(packet if packet is not None else lbtrm.encode(lbtrm.Nak(source.address.nak_port, 5, (0,))))
    assert source.turn() == []
    assert source.sender.counts() == SessionCounts(bad=1)
    assert source.core.stats.nak_pckts_rcved == 0
    assert len(source.nak(0)) == 1


def test_more_naks_than_a_batch_holds_are_taken_in_the_next_turn(source: Source) -> None:
    for _ in range(mmsg.BATCH + 1):
        source.naks.send(b"")
    assert source.loop.run_once(0)
    assert source.sender.bad_packets == mmsg.BATCH
    assert source.loop.next_deadline() == 0, "there may be more"
    source.turn()
    assert source.sender.bad_packets == mmsg.BATCH + 1
    assert source.loop.next_deadline() is None


def test_a_fault_of_the_nak_socket_is_told_and_the_next_nak_is_heard(
    source: Source, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source.send(1)
    source.take()

    with monkeypatch.context() as patch:
        patch.setattr(mmsg, "_receive", no_buffer_space)
        source.naks.send(b"")
        source.loop.run_once(0)
        assert source.loop.next_deadline() == BEGAN + ms(200), "not again at once"
    assert [(r.msg, vars(r)["error"]) for r in caplog.records] == [
        (LogEvent.NAK_SOCKET_FAILED, os.strerror(errno.ENOBUFS))
    ]
    assert len(source.nak(0)) == 1


class CostlyClock(SteppedClock):
    """Each look at it takes a millisecond."""

    def now_ns(self) -> int:
        self.time_ns += ms(1)
        return self.time_ns


def test_many_naks_are_answered_in_some_turns(source: Source) -> None:
    source.send(40)
    source.take()
    for sqn in range(40):
        source.naks.send(lbtrm.encode(lbtrm.Nak(source.address.nak_port, SESSION, (sqn,))))
    source.sender._loop.clock = CostlyClock(BEGAN)
    answered = []
    while source.loop.run_once(0) and source.core.stats.nak_pckts_rcved < 40:
        answered.append(source.core.stats.nak_pckts_rcved)
    assert len(answered) >= 20
    assert [sqn for sqn, _ in sqns(source.take())] == list(range(40))


def test_session_messages_follow_the_last_data_at_growing_distances() -> None:
    source = Source(SourceConfig(sm_min_ns=ms(200), sm_max_ns=ms(700), window_size_bytes=38))
    assert source.loop.next_deadline() is None, "nothing was sent"
    source.send(3)
    source.clock.time_ns += ms(50)
    source.send(1)
    source.take()
    last = BEGAN + ms(50)
    head = bytes.fromhex("0200") + source.address.nak_port.to_bytes(2, "big") + bytes.fromhex("a1b2c3d4")
    for number, after in enumerate((ms(200), ms(600), ms(1300), ms(2000))):
        assert source.turn(last + after - 1) == []
        told = source.turn(last + after)
        assert told == [head + bytes.fromhex(f"{number:08x} 00000003 00000003 80 03 0000")]
    source.send(1)
    source.take()
    assert source.turn(last + ms(2199)) == []
    assert len(source.turn(last + ms(2200))) == 1, "however far away the next one was before this data"
    source.close()


def test_a_retransmission_beyond_the_limit_follows_when_there_is_credit_again() -> None:
    source = Source(SourceConfig(ignore_ns=0, sm_min_ns=s(30), sm_max_ns=s(30)), retransmit_bps=80_000)
    source.send(2)
    source.take()
    assert [len(answer) for answer in source.nak(0, 1)] == [70, 20], "a repair, and that the other one is delayed"
    assert source.loop.next_deadline() == BEGAN + ms(10)
    source.turn(BEGAN + ms(10))
    assert source.core.stats.rxs_sent == 2
    source.close()


QUIET = SourceConfig(sm_min_ns=s(30), sm_max_ns=s(30))


def sqns(datagrams: list[bytes]) -> list[tuple[int, bool]]:
    """(sqn, is it a repair?) of each DATA packet."""
    return [(int.from_bytes(d[8:12], "big"), bool(d[16] & 0x20)) for d in datagrams if d[0] == 0 and d[1] == 0]


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.ENOBUFS])
def test_repairs_that_meet_a_full_socket_leave_first_when_it_has_room(code: int) -> None:
    source = Source(QUIET)
    source.send(4)
    source.take()
    source.data.answers = iter([code, code, code])
    source.sender.on_packet(lbtrm.encode(lbtrm.Nak(source.address.nak_port, SESSION, (1, 2))), 0, BEGAN)
    assert source.send(1) == 0
    assert (source.sender.is_blocked, source.take(), source.sender.send_errors) == (True, [], 0)
    source.sender.on_unblocked = lambda: source.woken.append(source.send(1))
    left = [datagram for i in range(1, 4) for datagram in source.turn(BEGAN + ms(i))]  # twice it is full again
    assert sqns(left) == [(1, True), (2, True), (4, False)]
    assert (source.woken, source.sender.is_blocked, source.core.stats.rxs_sent) == ([1], False, 2)
    source.turn(BEGAN + ms(50))
    assert source.woken == [1]
    source.close()


def test_repairs_wait_behind_data_that_found_the_socket_full() -> None:
    source = Source(QUIET)
    source.send(2)
    source.take()
    source.data.answers = iter([errno.EAGAIN])
    assert source.send(1) == 0
    source.sender.on_packet(lbtrm.encode(lbtrm.Nak(source.address.nak_port, SESSION, (1,))), 0, BEGAN)
    source.sender.on_unblocked = lambda: source.woken.append(source.send(1))
    assert sqns(source.turn()) == [(1, True), (2, False)]
    assert source.woken == [1]
    source.close()


def test_data_that_waits_for_its_limit_is_not_woken_by_room_in_the_socket_nor_passes_repairs() -> None:
    source = Source(QUIET, data_bps=8_000_000)
    assert source.send(11, 980) == 10
    source.take()
    source.data.answers = iter([errno.EAGAIN])
    source.sender.on_packet(lbtrm.encode(lbtrm.Nak(source.address.nak_port, SESSION, (1,))), 0, BEGAN)
    assert sqns(source.turn()) == [(1, True)]
    assert source.woken == []
    source.data.answers = iter([errno.ENOBUFS] * 20)
    source.clock.time_ns = BEGAN + ms(9) + ms(1) // 2
    source.sender.on_packet(lbtrm.encode(lbtrm.Nak(source.address.nak_port, SESSION, (2,))), 0, BEGAN + ms(9))
    source.turn(BEGAN + ms(10))
    assert (source.woken, source.sender.is_blocked) == ([], True)
    source.data.answers = iter([])
    assert sqns(source.turn(BEGAN + ms(11))) == [(2, True)]
    assert source.woken == [BEGAN + ms(11)]
    source.close()


def test_a_repair_that_did_not_leave_is_not_ignored_when_it_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is refused, the second waits, the third finds no place: only the second one counts as sent."""
    monkeypatch.setattr("dro.transport.datagrams.sender.MAX_KEPT", 1)
    source = Source(QUIET)
    source.send(3)
    source.take()
    source.data.answers = iter([errno.EPERM, errno.EAGAIN, errno.EAGAIN])
    source.sender.on_packet(lbtrm.encode(lbtrm.Nak(source.address.nak_port, SESSION, (0, 1, 2))), 0, BEGAN)
    assert (source.core.stats.rxs_sent, source.core.stats.rx_bytes_sent, source.sender.send_errors) == (1, 70, 1)
    assert sqns(source.turn()) == [(1, True)]
    assert sqns(source.nak(0, 1, 2)) == [(0, True), (2, True)]
    assert source.core.stats.naks_ignored == 1
    source.close()


def test_a_session_message_that_cannot_be_sent_is_a_failed_send(source: Source) -> None:
    source.send(1)
    source.data.answers = iter([errno.EAGAIN])
    source.turn(BEGAN + ms(200))
    assert (source.sender.send_errors, source.sender.is_blocked) == (1, False)


# the end


@pytest.mark.parametrize(
    ("sent", "linger_ns", "closed_after_ns"),
    [
        (0, s(10), 0),
        (1, 0, 0),
        (1, 1, ms(200) + 1),
        (1, s(10), s(10) + ms(200)),
    ],
)
def test_a_source_that_closes_stays_while_receivers_may_ask(sent: int, linger_ns: int, closed_after_ns: int) -> None:
    source = Source()
    for _ in range(sent):
        source.send(1)
    data, naks = source.data, source.nak_socket
    source.sender.close(linger_ns, BEGAN)
    if closed_after_ns:
        source.turn(BEGAN + closed_after_ns - 1)
        assert source.closed == []
        assert len(source.nak(0)) == 1, "it repairs"
        source.turn(BEGAN + closed_after_ns)
    assert source.closed == [source.sender]
    assert data.fileno() == naks.fileno() == -1
    assert source.loop.next_deadline() is None
    source.sender.close(s(1), source.clock.time_ns)
    source.sender.close(0, source.clock.time_ns)
    assert source.closed == [source.sender]
    assert source.send(1) == 0
    assert source.loop.next_deadline() is None
    source.close()


def test_a_later_close_decides_how_long_the_session_stays(source: Source) -> None:
    source.send(1)
    source.sender.close(s(10), BEGAN)
    source.sender.close(s(2), BEGAN)
    source.turn(BEGAN + s(2) + ms(199))
    assert source.closed == []
    source.turn(BEGAN + s(2) + ms(200))
    assert source.closed == [source.sender]
    assert source.loop.next_deadline() is None


def test_a_blocked_source_that_closes_is_not_woken_and_leaves_the_line() -> None:
    for code, bps in ((0, 8_000_000), (errno.ENOBUFS, 0), (errno.EAGAIN, 0)):
        source = Source(data_bps=bps)
        source.data.answers = iter([0, code])
        source.send(1)
        source.send(11, 980)
        assert source.sender.is_blocked
        source.sender.close(0, BEGAN)
        assert source.limiter.take(1, BEGAN + ms(10), "another")
        assert source.loop.next_deadline() is None
        source.turn(BEGAN + s(1))
        assert source.woken == []
        source.close()


def test_repairs_that_waited_for_their_limit_end_with_the_session() -> None:
    source = Source(SourceConfig(ignore_ns=0, sm_min_ns=s(30), sm_max_ns=s(30)), retransmit_bps=80_000)
    source.send(2)
    source.nak(0, 1)
    assert source.core.rctlr_rx_msgs == 1
    source.sender.close(0, BEGAN)
    assert source.core.rctlr_rx_msgs == 0
    assert source.core.next_deadline() is None
    source.close()


def test_a_session_that_nobody_watches_closes_as_well(source: Source) -> None:
    other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    nak = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    setup = DatagramSenderSetup(source.address, other, nak, LOOPBACK, 8192, 1, DATA_HEADER)
    LbtrmSender(source.loop, setup, source.core, source.limiter, mmsg.DatagramBatch()).close(s(1), BEGAN)
    assert other.fileno() == nak.fileno() == -1


def test_what_was_sent_has_settled_when_nobody_can_ask_for_it_any_more(source: Source) -> None:
    assert source.sender.settling(BEGAN, s(1), is_last=True)(BEGAN), "nothing was sent"
    source.send(1)
    has_settled = source.sender.settling(BEGAN + ms(100), s(1), is_last=False)
    assert not has_settled(BEGAN + s(1) + ms(200) - 1)
    assert has_settled(BEGAN + s(1) + ms(200))


@pytest.mark.parametrize(
    ("pack", "packs_all", "sizes"), [(1, False, [70] * 6), (200, False, [170] * 2), (1, True, [320])]
)
def test_what_is_sent_at_once_shares_datagrams_up_to_the_limit(pack: int, packs_all: bool, sizes: list[int]) -> None:
    source = Source(pack_bytes=pack)
    source.sender.packs_all = packs_all
    assert source.send(6) == 6
    datagrams = source.take()
    assert [len(datagram) for datagram in datagrams] == sizes
    assert b"".join(datagram[20:] for datagram in datagrams) == b"".join(message(7, i, 50) for i in range(6))
    assert source.core.txw_bytes == 6 * 38
    assert source.sender.statistics().counters.msgs_sent == len(sizes)
    source.close()
