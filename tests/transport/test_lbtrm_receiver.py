"""The receiving half of LBT-RM on a clock that the test moves: what a batch becomes, every count, NAKs, the end."""

from __future__ import annotations

import errno
import logging
import os
import random
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from dro.clock import ms, s
from dro.config.um.options import UmOptions
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.loop import Loop
from dro.proto.repair.loss import LossConfig
from dro.proto.repair.receiver import ReceiverSession, ReceiverStats
from dro.sqn import MASK
from dro.transport import mmsg, sockets
from dro.transport.datagrams.drops import DroppedDatagrams
from dro.transport.datagrams.receiver import DatagramReceiver
from dro.transport.kind import SessionHost
from dro.transport.lbtrm.receiver import LbtrmGroup
from dro.transport.runs import KIND_CONTROL, KIND_DATA, KIND_TSNI, ROWS, Run
from dro.transport.session import ReceiverSessionStatistics, SessionCounts
from dro.transport.sockets import OS_SOCKETS
from dro.wire import lbtrm
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.message import HEADER as LBMC
from dro.wire.source_string import LbtrmAddress, format_source
from dro.wire.transport import DropReason, TransportOption
from tests.fakes.clock import SteppedClock
from tests.fakes.fussy_socket import no_buffer_space
from tests.fakes.session_sink import KeepingSink, Message, RunsSink

LOOPBACK = "127.0.0.1"
BEGAN = s(5)
SESSION = 0xA1B2C3D4
LOSS = LossConfig(initial_backoff_ns=0, backoff_ns=ms(20), generation_ns=ms(100), activity_timeout_ns=s(3))


class Group:
    """A group with one session, the socket of its source, and where its NAKs arrive."""

    def __init__(self, config: LossConfig = LOSS) -> None:
        self.clock = SteppedClock(BEGAN)
        self.loop = Loop(self.clock)
        group = sockets.ip_number(f"239.206.{os.getpid() % 250}.{random.randrange(1, 255)}")
        self.nak_socket, self.source_naks = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
        for sock in (self.nak_socket, self.source_naks):
            sock.bind((LOOPBACK, 0))
            sock.setblocking(False)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((LOOPBACK, 0))
            port = probe.getsockname()[1]
        self.nak_port: int = self.source_naks.getsockname()[1]
        self.address = LbtrmAddress(sockets.ip_number(LOOPBACK), group, SESSION, port, self.nak_port)
        self.emptied: list[LbtrmGroup] = []
        host = SessionHost(self.loop, UmOptions(), mmsg.DatagramBatch(), random.Random(1))
        self.group = LbtrmGroup(
            host, group, port, LOOPBACK, buffer_bytes=8 << 20, nak_socket=self.nak_socket,
            on_empty=self._on_empty,
        )  # fmt: skip
        self.source = OS_SOCKETS.multicast_sender(group, port, LOOPBACK, ttl=0, buffer_bytes=4 << 20)
        self.sink = RunsSink()
        self.session = self.join(self.sink, config)

    def _on_empty(self, group: LbtrmGroup) -> None:
        self.emptied.append(group)
        group.close()

    def join(self, sink: KeepingSink, config: LossConfig = LOSS, session_id: int = SESSION) -> DatagramReceiver:
        core = ReceiverSession(config, random.Random(1).random, self.clock.time_ns)
        return self.group.join(replace(self.address, session_id=session_id), core, sink, sink.on_ended)

    def close(self) -> None:
        if not self.emptied:
            self.group.close()
        for sock in (self.nak_socket, self.source_naks, self.source):
            sock.close()
        self.loop.close()

    def data(self, sqn: int, *messages: bytes, flags: int = 0x80, session_id: int = SESSION, trail: int = 0) -> bytes:
        packet = lbtrm.Data(self.nak_port, session_id, sqn & MASK, trail, flags, payload=b"".join(messages))
        return lbtrm.encode(packet)

    def put(self, *datagrams: bytes) -> None:
        """All in one batch."""
        for datagram in datagrams:
            self.source.send(datagram)
        self.turn()

    def warm(self, size: int) -> int:
        """Two batches of that size, after which a third one is taken as a stream; returns the next sqn."""
        for first in (0, 3):
            self.put(*[self.data(first + i, message(7, first + i, size)) for i in range(3)])
        self.sink.calls.clear()
        self.sink.got.clear()
        return 6

    def turn(self, to_ns: int | None = None) -> None:
        if to_ns is not None:
            self.clock.time_ns = to_ns
        while self.loop.run_once(0):
            pass

    def naks(self) -> list[bytes]:
        found = []
        while True:
            try:
                found.append(self.source_naks.recv(65536))
            except BlockingIOError:
                return found

    def nak(self, *sqns: int) -> bytes:
        return (
            bytes.fromhex("0300") + self.nak_port.to_bytes(2, "big") + bytes.fromhex("a1b2c3d4")
            + len(sqns).to_bytes(2, "big") + bytes(2) + b"".join(sqn.to_bytes(4, "big") for sqn in sqns)
        )  # fmt: skip

    def stats(self, **counts: int) -> ReceiverSessionStatistics:
        return ReceiverSessionStatistics(format_source(self.address), ReceiverStats(**counts))


def message(topic: int, sqn: int, size: int, kind: int = 0, head: int = 0) -> bytes:
    return LBMC.pack(kind, head, size, topic, sqn & MASK) + bytes([sqn & 0xFF]) * (size - 12)


def of(topic: int, *sqns: int, size: int = 40) -> list[Message]:
    return [(topic, sqn & MASK, bytes([sqn & 0xFF]) * (size - 12)) for sqn in sqns]


@pytest.fixture
def group() -> Iterator[Group]:
    made = Group()
    yield made
    made.close()


# batches


@pytest.mark.parametrize("size", [12, 40, 1400])
def test_a_steady_stream_is_one_run_a_batch_and_is_counted_exactly(group: Group, size: int) -> None:
    sqn = group.warm(size)
    group.clock.time_ns += ms(7)
    group.put(*[group.data(sqn + i, message(7, sqn + i, size)) for i in range(10)])
    assert group.sink.calls == [[Run(7, sqn, 10, 20, size, size + 20, 20, 0, KIND_DATA)]]
    assert group.sink.got == of(7, *range(sqn, sqn + 10), size=size)
    count = sqn + 10
    assert group.session.statistics() == group.stats(
        msgs_rcved=count, bytes_rcved=count * (size + 20), lbm_msgs_rcved=count
    )
    assert group.session.active_ns == BEGAN + ms(7)
    assert (group.session.mark(), group.session.has_begun, group.sink.events) == (count, True, ["began"])
    assert (group.session.was_connected, group.session.is_in_order, group.session.shows_life) == (True, False, True)
    assert (group.session.generation_ns, group.session.sources) == (0, {})
    assert (group.group.stats, group.group.counts(), group.session.counts()) == (
        DroppedDatagrams(), SessionCounts(), SessionCounts(),
    )  # fmt: skip


Make = Callable[[Group, int], list[bytes]]


def each(count: int, of_one: Callable[[Group, int, int], bytes]) -> Make:
    """Datagrams `i` that begin at sqn `first`."""
    return lambda group, first: [of_one(group, first + i, i) for i in range(count)]


@pytest.mark.parametrize(
    ("make", "expected", "counts"),
    [
        pytest.param(
            each(4, lambda g, sqn, i: g.data(sqn, message(7 + i % 2, sqn, 40))),
            [*of(7, 6), *of(8, 7), *of(7, 8), *of(8, 9)],
            {"msgs_rcved": 4, "bytes_rcved": 240, "lbm_msgs_rcved": 4},
            id="two topics",
        ),
        pytest.param(
            each(4, lambda g, sqn, i: g.data(sqn, message(7, sqn + 5 * (i // 2), 40))),
            of(7, 6, 7, 13, 14),
            {"msgs_rcved": 4, "bytes_rcved": 240, "lbm_msgs_rcved": 4},
            id="topic sqns leave a gap",
        ),
        pytest.param(
            each(3, lambda g, sqn, i: g.data(sqn, message(7, sqn, 40, head=0x10 * (i == 1)))),
            of(7, 6, 7, 8),
            {"msgs_rcved": 3, "bytes_rcved": 180, "lbm_msgs_rcved": 3},
            id="a block in one",
        ),
        pytest.param(
            each(3, lambda g, sqn, i: g.data(sqn, message(7, 2 * sqn, 20), message(7, 2 * sqn + 1, 20))),
            of(7, *range(12, 18), size=20),
            {"msgs_rcved": 3, "bytes_rcved": 180, "lbm_msgs_rcved": 6},
            id="two messages in each",
        ),
        pytest.param(
            each(3, lambda g, sqn, i: g.data(sqn, message(7, sqn, 40), session_id=SESSION + (i == 1))),
            of(7, 6),
            {"msgs_rcved": 2, "bytes_rcved": 120, "lbm_msgs_rcved": 2, "lost": 1},
            id="one of another session",
        ),
        pytest.param(
            each(3, lambda g, sqn, i: g.data(sqn + 2 * (i == 2), message(7, sqn, 40))),
            of(7, 6, 7, 8),
            {"msgs_rcved": 3, "bytes_rcved": 180, "lbm_msgs_rcved": 3, "lost": 2},
            id="a gap",
        ),
        pytest.param(
            each(3, lambda g, sqn, i: g.data(sqn + 1, message(7, sqn, 40))),
            of(7, 6, 7, 8),
            {"msgs_rcved": 3, "bytes_rcved": 180, "lbm_msgs_rcved": 3, "lost": 1},
            id="a gap in front",
        ),
        pytest.param(
            each(3, lambda g, sqn, i: g.data(sqn - (i > 0), message(7, sqn, 40))),
            of(7, 6, 8),
            {"msgs_rcved": 3, "bytes_rcved": 180, "lbm_msgs_rcved": 2, "duplicate_data": 1},
            id="a duplicate",
        ),
        pytest.param(
            each(3, lambda g, sqn, i: g.data(sqn - 6, message(7, sqn, 40), flags=0xA0)),
            [],
            {"msgs_rcved": 3, "bytes_rcved": 180, "duplicate_data": 3},
            id="repairs that nobody missed",
        ),
        pytest.param(
            each(3, lambda g, sqn, i: g.data(sqn, message(7, sqn, 40), flags=0xA0)),
            of(7, 6, 7, 8),
            {"msgs_rcved": 3, "bytes_rcved": 180, "lbm_msgs_rcved": 3},
            id="repairs of what is next",
        ),
        pytest.param(
            each(3, lambda g, sqn, i: g.data(sqn, message(7, sqn, 40), flags=0x80 + i % 2)),
            of(7, 6, 7, 8),
            {"msgs_rcved": 3, "bytes_rcved": 180, "lbm_msgs_rcved": 3},
            id="other flags",
        ),
        pytest.param(
            each(3, lambda g, sqn, i: g.data(sqn, message(7, sqn, 40, kind=1 if i == 1 else 0))),
            of(7, 6, 8),
            {"msgs_rcved": 3, "bytes_rcved": 180, "lbm_msgs_rcved": 3},
            id="an end of transport among them",
        ),
    ],
)
def test_a_batch_that_is_no_steady_stream_is_taken_datagram_by_datagram(
    group: Group, make: Make, expected: list[Message], counts: dict[str, int]
) -> None:
    sqn = group.warm(40)
    before = group.session.statistics().counters
    group.put(*make(group, sqn))
    if counts.get("lost"):
        expected = [*expected, *[m for m in of(7, 8) if m not in expected and len(expected) == 1]]
    assert group.sink.got == expected
    stats = group.session.statistics().counters
    changed = {name: new - old for name, new in vars_of(stats).items() if (old := vars_of(before)[name]) != new}
    assert changed == counts | {k: v for k, v in changed.items() if k.startswith("nak")}
    assert group.session.active_ns == BEGAN
    assert len(group.sink.calls) == bool(expected)


def vars_of(stats: object) -> dict[str, int]:
    return {name: getattr(stats, name) for name in ReceiverStats.__dataclass_fields__}


def test_sessions_of_one_group_get_their_own_and_each_hears_its_part_of_a_batch_at_once(group: Group) -> None:
    other = RunsSink()
    session = group.join(other, session_id=9)
    group.put(*[group.data(i // 2, message(i % 2, i, 40), session_id=(SESSION, 9)[i % 2]) for i in range(8)])
    assert group.sink.got == of(0, 0) + of(0, 2) + of(0, 4) + of(0, 6)
    assert other.got == of(1, 1) + of(1, 3) + of(1, 5) + of(1, 7)
    assert (len(group.sink.calls), len(other.calls)) == (1, 1)
    assert session.statistics().counters.bytes_rcved == 240
    assert [group.group.has(x) for x in (group.session, session)] == [True, True]
    session.leave()
    assert [group.group.has(x) for x in (group.session, session)] == [True, False]
    assert group.emptied == []
    group.put(group.data(4, message(1, 8, 40), session_id=9))
    assert group.group.counts() == SessionCounts(unknown=1)


def test_more_than_four_batches_are_taken_in_the_next_turn(group: Group) -> None:
    for i in range(4 * mmsg.BATCH + 5):
        group.source.send(group.data(i, message(7, i, 40)))
    assert group.loop.run_once(0)
    assert len(group.sink.got) == 4 * mmsg.BATCH
    assert group.loop.next_deadline() == 0, "there may be more"
    group.turn()
    assert group.sink.got == of(7, *range(4 * mmsg.BATCH + 5))


def test_a_datagram_with_options_is_read_like_others_and_in_its_place(group: Group) -> None:
    plain, packet = group.data(0, message(7, 0, 40)), lbtrm.Data(group.nak_port, SESSION, 1, 0)
    options = (TransportOption(0x7F, b"\1\2"),)
    optional = lbtrm.encode(replace(packet, payload=message(7, 1, 40), options=options))
    group.put(plain, optional, group.data(2, message(7, 2, 40)))
    assert group.sink.got == of(7, 0, 1, 2)
    assert [run.headroom for runs in group.sink.calls for run in runs] == [20, 26, 20]
    sizes = len(plain) * 2 + len(optional)
    assert group.session.statistics() == group.stats(msgs_rcved=3, bytes_rcved=sizes, lbm_msgs_rcved=3)
    again = lbtrm.encode(replace(packet, flags=0xA0, payload=message(7, 1, 40), options=options))
    group.put(again)
    assert len(group.sink.got) == 3


def test_control_messages_come_with_the_data(group: Group) -> None:
    topic_idx = bytes.fromhex("0865000cff08000000000063")
    group.put(group.data(0, lbmc.encode(lbmc.tsni_message([(7, 41)])), topic_idx, message(7, 42, 40)))
    assert [run.kind for runs in group.sink.calls for run in runs] == [KIND_TSNI, KIND_CONTROL, KIND_DATA]
    assert (group.sink.tsnis, group.sink.controls, group.sink.got) == ([(7, 41)], [topic_idx], of(7, 42))
    assert group.session.statistics() == group.stats(msgs_rcved=1, bytes_rcved=20 + 16 + 12 + 40, lbm_msgs_rcved=3)


# what is dropped


@pytest.mark.parametrize(
    ("datagram", "counter"),
    [
        (b"", "dgrams_dropped_size"),
        (bytes(7), "dgrams_dropped_size"),
        (bytes.fromhex("0000") + bytes(17), "dgrams_dropped_size"),
        (bytes.fromhex("0200") + bytes(6), "dgrams_dropped_size"),
        (bytes.fromhex("1000") + bytes(30), "dgrams_dropped_version"),
        (bytes.fromhex("0100") + bytes(30), "dgrams_dropped_type"),
        (bytes.fromhex("0300") + bytes(10), "dgrams_dropped_type"),
        (bytes.fromhex("00050000") + bytes(30), "dgrams_dropped_hdr"),
        (bytes.fromhex("0000") + bytes(18), "unknown_msgs_rcved"),
        (bytes.fromhex("0200") + bytes(26), "unknown_msgs_rcved"),
    ],
)
def test_a_datagram_that_is_of_no_use_is_counted_once(group: Group, datagram: bytes, counter: str) -> None:
    group.put(datagram)
    assert group.group.stats == DroppedDatagrams(**{counter: 1})
    is_unknown = counter == "unknown_msgs_rcved"
    assert group.group.counts() == SessionCounts(bad=not is_unknown, unknown=is_unknown)
    assert (group.sink.order, group.session.statistics()) == ([], group.stats())
    group.put(datagram)
    assert group.group.stats == DroppedDatagrams(**{counter: 2})
    assert group.group.counts() == SessionCounts(bad=2 * (not is_unknown), unknown=2 * is_unknown)


def test_every_reason_to_drop_a_datagram_has_its_count() -> None:
    named = {
        DropReason.SIZE: "dgrams_dropped_size",
        DropReason.VERSION: "dgrams_dropped_version",
        DropReason.TYPE: "dgrams_dropped_type",
        DropReason.HEADER: "dgrams_dropped_hdr",
    }
    for reason in DropReason:
        stats = DroppedDatagrams()
        stats.dropped(reason)
        stats.dropped(reason)
        assert stats == DroppedDatagrams(**{named.get(reason, "dgrams_dropped_other"): 2})


def test_a_message_that_is_broken_costs_what_follows_in_its_datagram(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    group.put(group.data(0, message(7, 0, 40), LBMC.pack(0, 0, 500, 7, 1)), group.data(1, message(7, 2, 40)))
    assert group.sink.got == of(7, 0, 2)
    assert group.group.counts() == SessionCounts(bad=1)
    told = [vars(record)["error"] for record in caplog.records if record.msg is LogEvent.LBMC_BROKEN]
    assert len(told) == 1
    assert "500 bytes declared, 12 left" in told[0]


def test_a_fault_of_the_socket_is_told_and_the_next_datagram_is_heard(
    group: Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dro.transport.datagrams.receiver.limited", LimitedLogger(logging.getLogger("test")).event)

    with monkeypatch.context() as patch:
        patch.setattr(mmsg, "_receive", no_buffer_space)
        group.source.send(b"")
        group.loop.run_once(0)
        assert group.loop.next_deadline() == BEGAN + s(3), "not again at once"
    assert [(r.msg, vars(r)["group"], vars(r)["error"]) for r in caplog.records] == [
        (LogEvent.RECEIVE_FAILED, sockets.ip_text(group.address.group), os.strerror(errno.ENOBUFS))
    ]
    group.put(group.data(0, message(7, 0, 40)))
    assert group.sink.got == of(7, 0)


def test_what_finds_a_full_receive_buffer_is_counted(group: Group) -> None:
    group.group._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    for sqn in range(100):
        group.source.send(group.data(sqn, message(7, sqn, 1000)))
    group.turn()
    received = len(group.sink.got)
    assert 0 < received < 100
    assert group.group.counts() == SessionCounts(socket_drops=100 - received)


# NAKs, session messages, NCFs


def test_what_is_missing_is_asked_for_on_time_and_given_up_on_time(group: Group) -> None:
    group.put(group.data(0, message(7, 0, 40)))
    group.clock.time_ns += ms(1)
    group.put(group.data(3, message(7, 3, 40)))
    group.turn()
    assert group.naks() == [group.nak(1, 2)]
    assert group.loop.next_deadline() == group.session.core.next_deadline()
    group.clock.time_ns += ms(2)
    group.put(group.data(1, message(7, 1, 40), flags=0xA0))
    assert group.sink.got == of(7, 0, 3, 1)
    due = group.session.core.next_deadline()
    assert due is not None
    assert group.loop.next_deadline() is not None
    group.turn(due)
    assert group.naks() == [group.nak(2)]
    assert group.session.counts() == SessionCounts(naks_sent=3, lost=2)
    group.turn(BEGAN + ms(101) - 1)
    assert group.session.counts().unrecoverable == 0
    group.turn(BEGAN + ms(101))
    assert group.session.counts() == SessionCounts(
        unrecoverable=1, naks_sent=group.session.core.stats.naks_sent, lost=2
    )
    assert group.loop.next_deadline() == BEGAN + ms(3) + s(3)


def test_session_messages_and_ncfs_reach_the_session(group: Group) -> None:
    group.put(group.data(0, message(7, 0, 40)))
    group.clock.time_ns += ms(5)
    group.put(lbtrm.encode(lbtrm.SessionMessage(group.nak_port, SESSION, 0, 2, 0)))
    assert group.session.active_ns == BEGAN + ms(5)
    assert group.naks() == [group.nak(1, 2)]
    group.put(lbtrm.encode(lbtrm.Ncf(group.nak_port, SESSION, 0, 1, 0, (1, 9))))
    group.put(lbtrm.encode(lbtrm.Ncf(group.nak_port, SESSION, 0, 0, 0, (2,))))
    assert group.session.counts() == SessionCounts(unrecoverable=1, naks_sent=2, lost=2)
    assert group.session.core.stats.ncfs_ignored == 2
    group.put(lbtrm.encode(lbtrm.SessionMessage(group.nak_port, SESSION, 1, 2, 2)))
    assert group.session.counts() == SessionCounts(unrecoverable=2, naks_sent=2, lost=2), "out of the source's window"


def test_a_session_begins_with_a_session_message_too(group: Group) -> None:
    group.put(lbtrm.encode(lbtrm.SessionMessage(group.nak_port, SESSION, 0, MASK, 0)))
    assert (group.sink.order, group.session.mark()) == (["began"], 0)


def test_a_session_that_no_data_has_come_of_has_no_table(group: Group) -> None:
    session, sink = group.session, group.sink
    group.put(lbtrm.encode(lbtrm.SessionMessage(group.nak_port, SESSION, 0, MASK, 0)))
    assert session.stream.table.capacity == 0
    other = RunsSink()
    idle = group.join(other, session_id=9)
    group.put(*[group.data(i, message(7, i, 40)) for i in range(3)])
    assert sink.got == of(7, 0, 1, 2)
    table = session.stream.table
    group.put(*[group.data(3 + i, message(7, 3 + i, 40)) for i in range(3)])
    assert sink.got == of(7, *range(6))
    assert session.stream.table is table
    assert (table.capacity, idle.stream.table.capacity) == (ROWS, 0)


def test_a_long_list_is_asked_for_in_several_packets() -> None:
    group = Group(replace(LOSS, max_naks_per_packet=1500))
    group.put(group.data(0, message(7, 0, 40)), group.data(4002, message(7, 1, 40)))
    assert group.naks() == [group.nak(*range(1, 1501)), group.nak(*range(1501, 2001))]
    assert group.session.counts().naks_sent == 2000
    group.close()


def test_sessions_that_are_due_together_share_turns_with_the_sockets(group: Group) -> None:
    """60 sessions have lost 60,000 datagrams each."""
    ids = range(1, 61)
    for session_id in ids:
        group.join(RunsSink(), session_id=session_id)
    for sqn in (0, 60_001):
        group.put(*[group.data(sqn, message(7, sqn, 40), session_id=session_id) for session_id in ids])
    group.clock.time_ns += ms(60)
    group.naks()
    most = turns = 0
    while group.loop.run_once(0):
        turns += 1
        most = max(most, len(group.naks()))
    assert turns > 3
    assert most < 60


class NoNaks:
    """In the place of the socket for NAKs."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.calls = 0

    def sendto(self, packet: bytes, to: tuple[str, int]) -> int:
        self.calls += 1
        raise OSError(self.code, os.strerror(self.code))

    def close(self) -> None: ...


@pytest.mark.parametrize(("code", "is_told"), [(errno.ECONNREFUSED, False), (errno.EAGAIN, False), (errno.EPERM, True)])
def test_naks_that_cannot_be_sent_are_told_unless_that_is_nothing_new(
    group: Group,
    code: int,
    is_told: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("dro.transport.datagrams.receiver.limited", LimitedLogger(logging.getLogger("test")).event)
    refusing = NoNaks(code)
    monkeypatch.setattr(group.group, "_nak_socket", refusing)
    group.put(group.data(0, message(7, 0, 40)), group.data(2, message(7, 2, 40)))
    assert refusing.calls == 1
    assert [(r.msg, vars(r)["to"], vars(r)["error"]) for r in caplog.records] == (
        [(LogEvent.NAK_NOT_SENT, LOOPBACK, os.strerror(code))] * is_told
    )


# the end


def test_silence_ends_a_session_to_the_nanosecond(group: Group) -> None:
    assert group.loop.next_deadline() == BEGAN + s(3)
    group.turn(BEGAN + s(2))
    group.put(group.data(0, message(7, 0, 40)))
    group.turn(BEGAN + s(5) - 1)
    assert group.sink.events == ["began"]
    told: list[tuple[str, bool]] = []
    group.sink.on_event = lambda event, session: told.append((event, group.session.is_joined))
    group.turn(BEGAN + s(5))
    assert told == [("ended", False)], "left before it is told"
    assert group.emptied == [group.group]
    assert (group.loop.next_deadline(), group.session.is_left) == (None, True)
    group.put(group.data(1, message(7, 1, 40)))
    assert len(group.sink.got) == 1


@pytest.mark.parametrize("how", ["leave", "close"])
def test_a_session_that_was_left_is_silent_and_has_nothing_due(group: Group, how: str) -> None:
    group.put(group.data(0, message(7, 0, 40)))
    (group.session.leave if how == "leave" else group.group.close)()
    assert group.loop.next_deadline() is None
    assert not group.group.has(group.session)
    group.put(group.data(1, message(7, 1, 40)))
    group.turn(BEGAN + s(60))
    assert (len(group.sink.got), group.sink.events) == (1, ["began"])
    group.session.leave()
    assert group.emptied == ([group.group] if how == "leave" else [])


def test_a_session_that_is_left_when_it_begins_gets_no_data(group: Group) -> None:
    group.sink.on_event = lambda event, session: session.leave()
    group.put(group.data(0, message(7, 0, 40)), group.data(2, message(7, 2, 40)))
    assert group.sink.order == ["began"]
    assert group.naks() == []
    assert group.loop.next_deadline() is None
