"""Ingress and egress joined by a real ring and a list: what comes out, in which order, and do the books balance?"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dro.bus.counters import CounterPage
from dro.bus.descriptors import BatchDescriptor as QueueSlot
from dro.bus.ring_size import ring_bytes
from dro.clock import ms, s
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.metrics.slots import DROP_SLOTS, PairSlot, Slot
from dro.proto.context.sources import BoundSource
from dro.shared_memory.ring import RingReader, RingWriter
from dro.transport.frames import drop_first
from dro.transport.runs import KIND_DATA, KIND_TSNI, Run, RunTable, read_messages
from dro.transport.session import SenderTransport
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmr.packet import Tir
from dro.wire.source_string import TcpAddress
from portals.datapath import descriptor, egress
from portals.datapath.descriptor import BatchKind
from portals.datapath.duplicate_window import DuplicateWindow
from portals.datapath.egress import Egress
from portals.datapath.handover import ForwardEntry
from portals.datapath.ingress import Ingress
from portals.datapath.outgoing import ProxySource, set_apart
from tests.fakes.queues import FakeQueues
from tests.fakes.runs import table_of
from tests.fakes.transport import FakeSender, FakeTransport
from tests.fakes.worker import logged

LBMC = lbmc.HEADER

ADDRESS = TcpAddress(0x7F000001, 14371, 1)
P, Q = 1, 2


class BlockingSender(FakeSender):
    """Takes `room` fragments, then blocks; keeps (topic index, sqn, payload) of what it took."""

    def __init__(self, room: int = 1 << 30, fragment_max: int = 8172) -> None:
        self.room = room
        self.fragment_max_bytes = fragment_max
        self.on_unblocked: Callable[[], object] | None = None
        self.sent: list[tuple[int, int, bytes]] = []
        self.tsnis: list[int] = []
        self.flushes = 0

    @property
    def is_blocked(self) -> bool:
        return not self.room

    def send_batch(self, buffer: bytearray, table: RunTable, now_ns: int) -> int:
        taken = 0
        for run in list(table):
            if run.kind == KIND_TSNI:
                if not self.room:
                    break
                self.tsnis.append(run.first_sqn)
                taken += 1
                continue
            count = min(run.fragments, self.room)
            for i in range(count):
                at = run.offset + i * run.stride
                _, _, length, _, sqn = LBMC.unpack_from(buffer, at)
                self.sent.append((run.topic_index, sqn, bytes(buffer[at + 12 : at + length])))
            self.room -= count
            taken += count
            if count < run.fragments:
                break
        drop_first(table, taken)
        return taken

    def flush(self) -> None:
        self.flushes += 1

    def send_message(self, message: bytes, now_ns: int, payload_bytes: int = 0) -> bool:
        return self.room > 0

    def close(self, linger_ns: int, now_ns: int) -> None:
        raise AssertionError("not of this test")


def forwarded(transport: FakeTransport, topic_index: int, out: SenderTransport) -> tuple[ProxySource, int]:
    """A source of the transport that goes to Q, as a proxy source there, and its handle."""
    source: BoundSource[Any] = BoundSource(
        b"t", bytes(32), topic_index, transport, Tir(b"t", ADDRESS, 60, topic_index), False
    )
    source.user = entry = ForwardEntry(1000 + topic_index, source)
    entry.egress = (Q,)
    transport.sources[topic_index] = source
    return ProxySource(bytes(32), b"t", 5000 + topic_index, out, DuplicateWindow(16384, 2048)), entry.handle


class Link:
    """Portal P receives, portal Q sends; each with its page."""

    def __init__(self, folder: Path, max_queue: int = 1_000_000, capacity: int = 1 << 20) -> None:
        self.ring = RingWriter.create(folder / "ring", capacity, 1)
        self.page_p = CounterPage.create(folder / "p", pair_blocks=4)
        self.page_q = CounterPage.create(folder / "q", pair_blocks=4)
        self.queues = FakeQueues()
        self.handover_ns = 0  # from the receipt of a batch to its announcement
        self.ingress = Ingress(
            self.ring, self.page_p, self.queues, lambda _: None, chunk_max_bytes=1 << 18,
            now_ns=lambda: self.now_ns + self.handover_ns,
        )  # fmt: skip
        self.max_queue = max_queue
        self.now_ns = 0
        self.timers: list[tuple[int, Callable[[], object]]] = []
        self.egress = Egress(self.page_q, max_queue, lambda: self.now_ns, self.call_later)
        self.reader = RingReader.open(folder / "ring", 1)
        self.egress.on_ring(P, self.reader)
        self.transport = FakeTransport(ADDRESS)
        self.proxies: list[ProxySource] = []

    def close(self) -> None:
        self.ring.close()
        self.reader.close()

    def call_later(self, delay_ns: int, then: Callable[[], object]) -> None:
        self.timers.append((self.now_ns + delay_ns, then))

    def wait(self, duration_ns: int) -> None:
        end_ns = self.now_ns + duration_ns
        while due := [timer for timer in self.timers if timer[0] <= end_ns]:
            self.timers.remove(due[0])
            self.now_ns, then = due[0]
            then()
        self.now_ns = end_ns

    def add_source(self, topic_index: int, out: BlockingSender) -> ProxySource:
        proxy, handle = forwarded(self.transport, topic_index, out)
        self.egress.feed(proxy, P, handle)
        self.proxies.append(proxy)
        return proxy

    def receive(self, datagram: bytes, headroom: int = 0) -> None:
        table = RunTable()
        read_messages(datagram, headroom, len(datagram), headroom, table)
        self.ingress.on_fragments(memoryview(datagram), [(self.transport, table)], 0)

    def hear(self, view: bytes, run: Run) -> None:
        self.ingress.on_fragments(memoryview(view), [(self.transport, table_of([run]))], 0)

    def carry(self) -> None:
        announced, self.queues.announced = self.queues.announced, []
        for worker, slot in announced:
            assert worker == Q
            self.egress.on_batch(P, slot)
        self.egress.flush_sessions()

    def books(self) -> None:
        """The identity of the guide, per pair and in total, fragments and bytes."""
        for step in (0, 1):
            handed = self.page_p[self.page_p.pair(Q) + PairSlot.HANDED + step]
            refused = sum(
                self.page_p[self.page_p.pair(Q) + why + step] for why in (PairSlot.REFUSED, PairSlot.NO_MEMORY)
            )
            pair = self.page_q.pair(P)
            accounted, queued = (
                self.page_q[pair + PairSlot.ACCOUNTED + step],
                self.page_q[pair + PairSlot.QUEUED + step],
            )
            assert handed == refused + accounted + queued
            dropped = sum(self.page_q[slot + step] for slot in DROP_SLOTS.values())
            total_queued = self.page_q[Slot.QUEUED_BYTES] if step else self.page_q[Slot.QUEUED]
            assert self.page_q[Slot.FORWARDED + step] == self.page_q[Slot.SENT + step] + dropped + total_queued
            assert total_queued == queued
            if not self.queues.announced:  # nothing is on its way
                assert self.page_q[Slot.FORWARDED + step] == handed - refused


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Link]:
    made = Link(tmp_path)
    yield made
    made.close()


def data(topic_index: int, sqn: int, payload: bytes) -> bytes:
    return LBMC.pack(0, 0, 12 + len(payload), topic_index, sqn) + payload


def request(topic_index: int, sqn: int, payload: bytes) -> bytes:
    """31 bytes with a payload of 7."""
    return LBMC.pack(0, 0x04, 24 + len(payload), topic_index, sqn) + bytes([0, 12]) + bytes(10) + payload


def control(topic_index: int) -> bytes:
    """20 bytes: an option block, and the topic that it is about."""
    blocks = bytes([0x65, 8]) + bytes(6) + bytes([0, 8, 0, 0]) + topic_index.to_bytes(4, "big")
    return bytes([8, 0x66, 0, 20]) + blocks


def test_fragments_arrive_whole_in_order_under_the_index_of_the_proxy_source(link: Link) -> None:
    out = BlockingSender()
    link.add_source(1, out)
    link.add_source(2, out)
    link.receive(b"".join(data(1 + i % 2, i // 2, bytes([i] * i)) for i in range(40)))
    link.carry()
    assert out.sent == [(5001 + i % 2, i // 2, bytes([i] * i)) for i in range(40)]
    link.books()


def test_a_run_around_a_duplicate_is_sent_without_it(link: Link) -> None:
    out = BlockingSender()
    link.add_source(1, out)
    for sqns in ([2], range(5)):
        link.receive(b"".join(data(1, sqn, b"%04d" % sqn) for sqn in sqns))
        link.carry()
    assert out.sent == [(5001, sqn, b"%04d" % sqn) for sqn in (2, 0, 1, 3, 4)]
    assert (link.page_q[Slot.DROPPED_DUP], link.page_q[Slot.DROPPED_DUP_BYTES]) == (1, 16)
    link.books()


def test_a_steady_stream_is_one_run_with_room_for_the_header(link: Link) -> None:
    out = BlockingSender()
    link.add_source(1, out)
    view = b"".join(bytes(20) + data(1, i, bytes([i] * 50)) for i in range(64))
    link.ingress.on_fragments(
        memoryview(view), [(link.transport, table_of([Run(1, 0, 64, 20, 62, 82, 20, 0, KIND_DATA)]))], 0
    )
    assert len(link.queues.announced) == 1
    link.carry()
    assert out.sent == [(5001, i, bytes([i] * 50)) for i in range(64)]
    assert link.page_p[Slot.TOPIC_RCVD] == 64
    link.books()


def test_a_repair_passes_however_many_newer_fragments_have_passed(link: Link) -> None:
    """The default window of the sqns that were seen is 16,384 long."""
    out = BlockingSender()
    link.add_source(1, out)
    for first in range(0, 30_000, 100):
        link.receive(b"".join(data(1, first + i, b"") for i in range(first == 200, 100)))
        link.carry()
    for sqn in (200, 200, 199):
        link.receive(data(1, sqn, b""))
        link.carry()
    assert [sqn for _, sqn, _ in out.sent] == [*range(200), *range(201, 30_000), 200]
    assert (link.page_q[Slot.DROPPED_OLD], link.page_q[Slot.DROPPED_DUP]) == (2, 0)
    link.books()


def test_one_forged_sqn_does_not_silence_the_flow(link: Link) -> None:
    out = BlockingSender()
    link.add_source(1, out)
    link.receive(data(1, 0, b"") + data(1, 0x7000_0000, b"forged"))
    link.carry()
    for sqn in range(1, 300):
        link.now_ns += 10_000_000
        link.receive(data(1, sqn, b""))
        link.carry()
    assert [sqn for _, sqn, _ in out.sent] == [0, 0x7000_0000, *range(1, 300)]
    assert link.page_q[Slot.FLOWS_RESTARTED] == 1
    link.books()


def test_repeats_are_dropped_and_counted_and_late_repairs_pass(link: Link) -> None:
    out = BlockingSender()
    link.add_source(1, out)
    for sqn in (0, 1, 3, 1, 2, 2, 3, 4):
        link.receive(data(1, sqn, b"x"))
    link.carry()
    assert [sqn for _, sqn, _ in out.sent] == [0, 1, 3, 2, 4]
    assert link.page_q[Slot.DROPPED_DUP] == 3
    link.books()


def test_a_fragment_larger_than_the_datagram_of_the_proxy_source_is_a_size_error(link: Link) -> None:
    out = BlockingSender(fragment_max=100)
    link.add_source(1, out)
    link.receive(data(1, 0, bytes(89)) + data(1, 1, bytes(88)))
    link.carry()
    assert [sqn for _, sqn, _ in out.sent] == [1]
    assert (link.page_q[Slot.DROPPED_SIZE], link.page_q[Slot.DROPPED_SIZE_BYTES]) == (1, 101)
    link.books()


def test_what_is_blocked_waits_up_to_the_limit_and_the_newest_is_dropped(tmp_path: Path) -> None:
    link = Link(tmp_path, max_queue=12 * 10 * 5)
    out = BlockingSender(room=3)
    link.add_source(1, out)
    for sqn in range(20):
        link.receive(data(1, sqn, bytes(108)))  # 120 bytes each: five fit the queue
    link.carry()
    link.books()
    assert [sqn for _, sqn, _ in out.sent] == [0, 1, 2]
    assert (link.page_q[Slot.QUEUED], link.page_q[Slot.DROPPED_BLOCKED]) == (5, 12)
    out.room = 100
    link.egress.drain(out)
    link.receive(data(1, 20, bytes(108)))
    link.carry()
    assert [sqn for _, sqn, _ in out.sent] == [0, 1, 2, 3, 4, 5, 6, 7, 20]
    assert link.egress.queue.nbytes == 0
    link.books()
    link.close()


def test_a_tsni_waits_behind_the_data_of_its_source_and_only_one_waits(link: Link) -> None:
    out = BlockingSender(room=0)
    link.add_source(1, out)
    link.receive(data(1, 0, b"x"))
    for sqn in (0, 0, 0):
        link.ingress.on_fragments(
            memoryview(b""), [(link.transport, table_of([Run(1, sqn, 1, 0, 0, 0, 0, 0, KIND_TSNI)]))], 0
        )
    link.carry()
    assert out.tsnis == []
    link.books()
    out.room = 10
    link.egress.drain(out)
    assert (len(out.sent), out.tsnis) == (1, [0])
    assert (link.page_q[Slot.DROPPED_BLOCKED], link.page_q[Slot.DROPPED_DUP]) == (2, 0)
    link.books()


def test_a_tsni_waits_again_when_the_session_blocks_again(link: Link) -> None:
    out = BlockingSender(room=0)
    link.add_source(1, out)
    for life in range(3):
        out.room = 0
        link.ingress.on_fragments(
            memoryview(b""), [(link.transport, table_of([Run(1, life, 1, 0, 0, 0, 0, 0, KIND_TSNI)]))], 0
        )
        link.carry()
        out.room = 1
        link.egress.drain(out)
        assert out.tsnis == list(range(life + 1))
    assert link.page_q[Slot.DROPPED_BLOCKED] == 0
    link.books()


def test_a_tsni_that_the_queue_had_no_room_for_does_not_stand_for_the_next_one(tmp_path: Path) -> None:
    link = Link(tmp_path, max_queue=20)
    out = BlockingSender(room=0)
    proxies = [link.add_source(topic, out) for topic in (1, 2)]
    link.receive(data(1, 0, bytes(9)) + lbmc.encode(lbmc.tsni_message([(2, 5)])))  # 21 bytes, then a TSNI
    link.carry()
    assert link.page_q[Slot.DROPPED_BLOCKED] == 2
    assert not any(proxy.tsni_waits for proxy in proxies)
    link.hear(b"", Run(2, 6, 1, 0, 0, 0, 0, 0, KIND_TSNI))
    link.carry()
    out.room = 1
    link.egress.drain(out)
    assert out.tsnis == [6]
    link.books()
    link.close()


def test_what_waits_for_other_proxy_sources_keeps_its_order_when_one_is_deleted(link: Link) -> None:
    out = BlockingSender(room=0)
    proxies = [link.add_source(topic, out) for topic in (1, 2, 3)]
    for sqn in range(3):
        for topic in (1, 2, 3):
            link.receive(data(topic, sqn, b"%d" % topic))
            link.carry()
    link.egress.flush(proxies[1])
    link.books()
    out.room = 100
    link.egress.drain(out)
    assert [(topic, sqn) for topic, sqn, _ in out.sent] == [(5000 + t, sqn) for sqn in range(3) for t in (1, 3)]
    assert link.page_q[Slot.DROPPED_DELETED] == 3
    link.books()


def test_a_slow_reader_loses_what_the_writer_has_overwritten_and_never_sends_anything_else(tmp_path: Path) -> None:
    link = Link(tmp_path, capacity=1 << 16)
    out = BlockingSender()
    link.add_source(1, out)
    for sqn in range(100):
        link.receive(data(1, sqn, bytes([sqn]) * 4000))
    link.carry()
    assert 0 < len(out.sent) < 17
    assert all(payload == bytes([sqn]) * 4000 for _, sqn, payload in out.sent)
    assert link.page_q[Slot.DROPPED_BLOCKED] == 100 - len(out.sent)
    link.books()
    link.close()


def test_a_full_channel_refuses_and_the_refusal_is_in_the_books(link: Link) -> None:
    out = BlockingSender()
    link.add_source(1, out)
    link.queues.room = 2
    for sqn in range(5):
        link.receive(data(1, sqn, b"x"))
    assert link.page_p[link.page_p.pair(Q) + PairSlot.REFUSED] == 3
    link.carry()
    link.books()


def test_what_a_dead_portal_had_is_booked_as_worker_restart(tmp_path: Path) -> None:
    link = Link(tmp_path)
    out = BlockingSender(room=1)
    link.add_source(1, out)
    for sqn in range(4):
        link.receive(data(1, sqn, b"x"))
    link.carry()  # one sent, three queued
    link.receive(data(1, 4, b"x"))
    link.queues.announced.clear()  # and one on its way when Q dies
    reborn = Egress(link.page_q, link.max_queue, lambda: 0, link.call_later)
    pair = link.page_p.pair(Q)
    handed, nbytes = link.page_p[pair + PairSlot.HANDED], link.page_p[pair + PairSlot.HANDED_BYTES]
    assert reborn.reconcile(P, handed, nbytes) == 1
    assert link.page_q[Slot.DROPPED_RESTART] == 4
    assert reborn.reconcile(P, handed, nbytes) == 0
    link.books()
    link.close()


def test_what_waits_here_is_not_lost_when_a_sibling_comes_back(link: Link) -> None:
    out = BlockingSender(room=1)
    link.add_source(1, out)
    for sqn in range(4):
        link.receive(data(1, sqn, bytes(10)))
    link.carry()  # one sent, three queued
    assert link.egress.reconcile(P, *link.ingress.handed(Q)) == 0
    assert link.page_q[Slot.DROPPED_RESTART] == link.page_q[Slot.DROPPED_RESTART_BYTES] == 0
    link.books()
    out.room = 100
    link.egress.drain(out)
    assert [sqn for _, sqn, _ in out.sent] == [0, 1, 2, 3]
    link.books()


def test_a_full_channel_is_logged_when_it_begins_and_when_it_ends(link: Link, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    link.add_source(1, BlockingSender())
    now_ns = 0

    def receive() -> None:
        table = RunTable()
        message = data(1, now_ns // ms(10), b"x")
        read_messages(message, 0, len(message), 0, table)
        link.ingress.on_fragments(memoryview(message), [(link.transport, table)], now_ns)

    receive()
    assert caplog.messages == []
    for room in (1, 0, 0, 0):
        link.queues.room = room
        receive()
        now_ns += ms(10)
    link.carry()
    link.queues.room = 100
    receive()
    assert caplog.messages == ["a sibling takes no fragments, they are dropped", "a sibling takes fragments again"]
    begin, end = caplog.records
    assert (begin.levelname, vars(begin)["sibling"]) == ("WARNING", "2")
    assert (end.levelname, vars(end)["sibling"], vars(end)["refused"]) == ("INFO", "2", 4)
    for _ in range(50):  # a channel that is full every other time fills no log
        now_ns += ms(10)
        link.queues.room = 0
        receive()
        link.queues.room = 100
        receive()
        link.queues.announced.clear()
    assert len(caplog.messages) == 2


class Killed(Exception):
    """The process ended here."""


class FragilePage(CounterPage):
    """Its writer dies after so many more entries."""

    left = 1 << 30

    def _count(self) -> None:
        if not self.left:
            raise Killed
        self.left -= 1

    def add(self, slot: int, count: int = 1) -> None:
        self._count()
        super().add(slot, count)

    def add_sized(self, slot: int, count: int, nbytes: int) -> None:
        self.add(slot, count)
        self.add(slot + 1, nbytes)

    def set(self, slot: int, value: int) -> None:
        self._count()
        super().set(slot, value)


@pytest.mark.parametrize("room", [0, 2, 100])
def test_the_books_balance_wherever_between_two_entries_the_portal_dies(
    tmp_path_factory: pytest.TempPathFactory, room: int
) -> None:
    survived, entries = False, 0
    while not survived:
        link = Link(tmp_path_factory.mktemp("link"), max_queue=600)
        fragile = FragilePage.open(link.page_q.path)
        assert isinstance(fragile, FragilePage)
        link.egress = Egress(fragile, 600, lambda: 0, link.call_later)
        link.egress.on_ring(P, link.reader)
        out = BlockingSender(room=room)
        link.add_source(1, out)
        try:
            fragile.left = entries
            for sqn in (0, 1, 2, 1, 3, 4, 5, 6, 7, 8):  # each in a turn of its own
                link.receive(data(1, sqn, bytes(100)))
                link.carry()
            out.room += 3
            link.egress.drain(out)
            survived = True
        except Killed:
            link.queues.announced.clear()
        fragile.left = 1 << 30
        reborn = Egress(link.page_q, 600, lambda: 0, link.call_later)
        pair = link.page_p.pair(Q)
        reborn.reconcile(P, link.page_p[pair + PairSlot.HANDED], link.page_p[pair + PairSlot.HANDED_BYTES])
        link.books()
        link.close()
        entries += 1
    assert entries > 50


def test_fragments_for_a_deleted_proxy_source_are_counted(link: Link) -> None:
    out = BlockingSender(room=1)
    proxy = link.add_source(1, out)
    link.receive(data(1, 0, b"x") + data(1, 1, b"x"))
    link.carry()
    link.egress.flush(proxy)
    link.receive(data(1, 2, b"x"))
    link.carry()
    assert link.page_q[Slot.DROPPED_DELETED] == 2
    link.books()


def test_the_queue_of_a_session_is_gone_with_its_last_waiting_proxy_source(
    link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    out = BlockingSender(room=0)
    first, second = link.add_source(1, out), link.add_source(2, out)
    link.receive(data(1, 0, b"x") + data(2, 0, b"x"))
    link.carry()
    link.egress.flush(first)
    assert "completed flushing queue" not in caplog.messages
    link.egress.flush(second)
    assert "completed flushing queue" in caplog.messages
    link.books()


def test_a_proxy_source_is_deleted_after_all_that_waited_has_been_sent(link: Link) -> None:
    out = BlockingSender(room=0)
    proxy = link.add_source(1, out)
    link.receive(data(1, 0, b"x") + data(1, 1, b"x"))
    link.carry()
    out.room = 100
    link.egress.drain(out)
    link.egress.flush(proxy)
    assert link.page_q[Slot.DROPPED_DELETED] == 0
    assert [sqn for _, sqn, _ in out.sent] == [0, 1]
    link.books()


steps = st.lists(
    st.one_of(
        st.tuples(st.just("data"), st.lists(st.tuples(st.integers(1, 3), st.integers(0, 300)), max_size=12)),
        st.tuples(st.just("room"), st.integers(0, 20)),
        st.tuples(st.just("carry"), st.none()),
    ),
    max_size=40,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps)
def test_order_holds_and_the_books_balance_whatever_blocks_when(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, object]]
) -> None:
    link = Link(tmp_path_factory.mktemp("link"), max_queue=3000)
    out = BlockingSender(room=5)
    sent: dict[int, list[bytes]] = {1: [], 2: [], 3: []}
    for topic in sent:
        link.add_source(topic, out)
    for kind, value in steps:
        if kind == "data":
            assert isinstance(value, list)
            messages = b""
            for topic, size in value:
                payload = (len(sent[topic]).to_bytes(2, "big") * 151)[:size]
                messages += data(topic, len(sent[topic]), payload)
                sent[topic].append(payload)
            link.receive(messages)
        elif kind == "room":
            assert isinstance(value, int)
            out.room += value
            link.egress.drain(out)
        else:
            link.carry()
            link.books()
    link.carry()
    out.room = 1 << 30
    link.egress.drain(out)
    link.books()
    for topic, payloads in sent.items():
        got = [(sqn, payload) for index, sqn, payload in out.sent if index == 5000 + topic]
        assert got == sorted(got, key=lambda x: x[0])
        assert all(payloads[sqn] == payload for sqn, payload in got)
    link.close()


def test_of_a_run_that_does_not_fit_the_queue_the_first_part_waits(
    link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    out = BlockingSender(room=3)
    link.add_source(1, out)
    link.egress.queue.set_limit(5 * 20)
    link.receive(b"".join(data(1, sqn, b"%08d" % sqn) for sqn in range(12)))
    link.carry()
    page = link.page_q
    assert [page[slot] for slot in (Slot.SENT, Slot.QUEUED, Slot.DROPPED_BLOCKED)] == [3, 5, 4]
    link.books()
    out.room = 100
    link.egress.drain(out)
    assert [(sqn, payload) for _, sqn, payload in out.sent] == [(sqn, b"%08d" % sqn) for sqn in range(8)]
    assert [event for _, event, _ in logged(caplog)] == [LogEvent.ENQUEUEING_BEGAN, LogEvent.QUEUE_FLUSHED]
    assert [page[slot] for slot in (Slot.SENT, Slot.QUEUED, Slot.DROPPED_BLOCKED)] == [8, 0, 4]
    link.books()


def test_a_proxy_source_that_is_deleted_twice_takes_nothing_from_its_successor(link: Link) -> None:
    old, new = BlockingSender(room=0), BlockingSender()
    proxy = link.add_source(1, old)
    link.receive(data(1, 0, b"x"))
    link.carry()
    link.egress.flush(proxy)
    link.add_source(1, new)
    link.egress.flush(proxy)
    link.receive(data(1, 1, b"y"))
    link.carry()
    assert [payload for _, _, payload in new.sent] == [b"y"]
    assert link.page_q[Slot.DROPPED_DELETED] == 1
    link.books()


def test_a_sibling_is_told_what_its_channel_took(link: Link) -> None:
    link.add_source(1, BlockingSender())
    for room in (1, 1, 2):
        link.queues.room = room
        link.receive(data(1, 0, b"x") + data(1, 1, b"yy"))
    assert link.ingress.handed(Q) == (4, 2 * (13 + 14))


@pytest.mark.parametrize(("size", "is_copied"), [(4 * 58, False), (4 * 58 + 1, True)])
def test_what_waits_is_copied_when_it_fills_less_than_a_quarter_of_its_buffer(size: int, is_copied: bool) -> None:
    area = bytearray(bytes(range(62)) + bytes(62)) + bytearray(size - 124)
    table = table_of([Run(1, 8, 2, 33, 29, 31, 2, 0, KIND_DATA)])
    buffer = set_apart(area, table)
    assert (buffer is not area) is is_copied
    (run,) = table
    assert (run.fragments, run.first_sqn) == (2, 8)
    assert buffer[run.offset : run.offset + 29] == bytes(range(33, 62))
    assert buffer[run.offset + run.stride :][:29] == bytes(29)


def test_what_finds_no_shared_memory_is_refused(
    link: Link, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = BlockingSender()
    link.add_source(1, out)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        link.receive(data(1, 0, b"x") + data(1, 1, b"yy"))
        link.receive(data(1, 2, b"x" * 100))
    assert link.queues.announced == []
    level, event, fields = logged(caplog)[0]
    assert (level, event) == ("ERROR", LogEvent.RING_FULL)
    assert "ring; give the machine more shared memory" in str(fields["error"])
    link.receive(data(1, 3, b"z"))
    link.carry()
    assert [(sqn, payload) for _, sqn, payload in out.sent] == [(3, b"z")]
    base = link.page_p.pair(Q)
    assert [link.page_p[base + slot] for slot in (PairSlot.HANDED, PairSlot.NO_MEMORY)] == [4, 3]
    link.books()


def test_what_is_no_source_data_is_an_error_among_it(link: Link) -> None:
    out = BlockingSender()
    link.add_source(1, out)
    link.receive(data(1, 0, b"x") + data(1, 1, b"yy"))
    ((worker, slot),) = link.queues.announced
    link.queues.announced = [(worker, slot._replace(kind=BatchKind.UNICAST))]
    link.carry()
    assert (out.sent, link.page_q[Slot.DROPPED_ERROR]) == ([], 2)
    link.books()


def test_a_descriptor_that_lies_beyond_all_rings_costs_its_fragments(link: Link) -> None:
    out = BlockingSender()
    link.add_source(1, out)
    for sqn in range(3):
        link.receive(data(1, sqn, bytes(88)))
    worker, slot = link.queues.announced[1]
    link.queues.announced[1] = (worker, slot._replace(table=2**64 - 1))
    link.carry()
    assert [sqn for _, sqn, _ in out.sent] == [0, 2]
    assert link.page_q[Slot.DROPPED_BLOCKED] == 1


def test_the_ring_is_four_times_the_queue_and_16_mib_at_least() -> None:
    assert [ring_bytes(nbytes) for nbytes in (0, 4 << 20, (4 << 20) + 1)] == [16 << 20, 16 << 20, (16 << 20) + 4]


def test_what_is_dropped_and_thrown_away_is_logged(
    link: Link, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(egress, "faults", LimitedLogger(egress.log))
    monkeypatch.setattr(egress, "events", LimitedLogger.of_events(egress.log))
    now_ns = 0
    link.egress = Egress(link.page_q, 30, lambda: now_ns, link.call_later)
    link.egress.on_ring(P, link.reader)
    out = BlockingSender(room=0, fragment_max=20)
    proxy = link.add_source(1, out)
    link.receive(data(1, 0, bytes(9)))
    link.carry()
    assert logged(caplog) == [("ERROR", LogEvent.FRAGMENT_TOO_LARGE, {"topic": b"t", "bytes": 21, "limit": 20})]
    told = []
    for sqn, now_ns in enumerate((s(1), s(1) + 1, s(2) + 1, s(2) + 2)):
        link.receive(data(1, sqn, bytes(8)))
        link.carry()
        told += [(now_ns, event, fields) for _, event, fields in logged(caplog)]
    assert told == [
        (s(1), LogEvent.ENQUEUEING_BEGAN, {}),
        (s(1) + 1, LogEvent.QUEUE_DROPS, {"dropped": 1, "max_queue": 30}),
        (s(2) + 2, LogEvent.QUEUE_DROPS, {"dropped": 3, "max_queue": 30}),
    ]
    link.egress.flush(proxy)
    link.egress.flush(proxy)
    assert logged(caplog) == [
        ("INFO", LogEvent.QUEUE_FLUSHED, {}),
        ("INFO", LogEvent.QUEUED_DATA_DROPPED, {"topic": b"t"}),
    ]
    assert link.egress.accounted(P) == link.page_q[link.page_q.pair(P) + PairSlot.ACCOUNTED] == 5


@pytest.mark.parametrize("what", ["table", "fragments", "bytes", "rows"])
def test_a_broken_descriptor_costs_its_fragments_and_nothing_else(
    link: Link, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(egress, "limited", LimitedLogger(egress.log).event)
    out = BlockingSender()
    link.add_source(1, out)
    for sqn in range(3):
        link.receive(data(1, sqn, bytes(88)))
    worker, slot = link.queues.announced[1]
    wrong = {
        "table": slot._replace(table=0, rows=2),
        "fragments": slot._replace(fragments=2),
        "bytes": slot._replace(nbytes=101),
        "rows": slot._replace(rows=0),
    }[what]
    link.queues.announced[1] = (worker, wrong)
    link.carry()
    assert [sqn for _, sqn, _ in out.sent] == [0, 2]
    assert link.page_q[Slot.DROPPED_ERROR] == wrong.fragments
    assert [event for _, event, _ in logged(caplog)] == [LogEvent.DESCRIPTOR_BROKEN]


# batches that come together


class Turn:
    """What was put off to the end of the turn."""

    def __init__(self, link: Link) -> None:
        self.calls: dict[Callable[[], object], None] = {}
        link.ingress = Ingress(
            link.ring, link.page_p, link.queues, lambda _: None, chunk_max_bytes=1 << 18,
            at_turn_end=lambda call: self.calls.setdefault(call),
        )  # fmt: skip
        link.ring.needs.append(link.ingress.has_placed)

    def end(self) -> None:
        while self.calls:
            self.calls.popitem()[0]()


@pytest.fixture
def turn(link: Link) -> Turn:
    return Turn(link)


def test_what_comes_in_one_turn_is_announced_as_one(link: Link, turn: Turn) -> None:
    out = BlockingSender()
    for topic in (1, 2):
        link.add_source(topic, out)
    sent = [(1 + i % 2, i // 2, bytes([i]) * (i % 50)) for i in range(40)]
    for message in sent:
        link.receive(bytes(9) + data(*message), headroom=9)
    assert link.queues.announced == []
    assert link.ingress.has_placed()
    turn.end()
    ((_, slot),) = link.queues.announced
    assert (slot.rows, slot.fragments) == (40, 40)
    assert not link.ingress.has_placed()
    link.carry()
    assert out.sent == [(5000 + topic, sqn, payload) for topic, sqn, payload in sent]
    assert out.flushes == 1
    link.books()


def test_much_is_announced_before_the_turn_ends(link: Link, turn: Turn) -> None:
    out = BlockingSender()
    link.add_source(1, out)
    link.ring.needs.append(lambda: bool(link.queues.announced))
    for sqn in range(41):
        link.receive(data(1, sqn, bytes(8000)))
    assert [slot.fragments for _, slot in link.queues.announced] == [13, 13, 13]
    turn.end()
    link.carry()
    assert [sqn for _, sqn, _ in out.sent] == list(range(41))
    link.books()


def test_what_has_blocks_joins_no_run_of_another_batch(link: Link, turn: Turn) -> None:
    """Equal fragments of a stream that would go on with each other if they lay in one buffer."""
    out = BlockingSender()
    link.add_source(1, out)
    first, second = (LBMC.pack(0, 2, 40, 1, sqn) + bytes([1, 28, sqn, 0]) + bytes([sqn]) * 24 for sqn in (0, 1))
    link.receive(first)
    link.hear(bytes(40) + second, Run(1, 1, 1, 40, 40, 40, 0, 2, KIND_DATA))
    turn.end()
    link.carry()
    assert [payload[4:] for _, _, payload in out.sent] == [bytes(24), b"\x01" * 24]
    link.books()


def test_what_is_not_announced_yet_outlives_a_ring_that_begins_anew(tmp_path: Path) -> None:
    link = Link(tmp_path, capacity=65536)
    turn, out = Turn(link), BlockingSender()
    link.add_source(1, out)
    for sqn in range(100):
        link.receive(data(1, sqn, bytes([sqn]) * 3000))
        if sqn % 7 == 6:
            turn.end()
            link.carry()
    turn.end()
    link.carry()
    assert [(sqn, payload) for _, sqn, payload in out.sent] == [(sqn, bytes([sqn]) * 3000) for sqn in range(100)]
    link.books()
    link.close()


def test_what_lies_far_apart_is_copied_close_together(link: Link, turn: Turn) -> None:
    out = BlockingSender()
    link.add_source(1, out)
    link.receive(data(1, 0, b"a"))
    area = data(1, 1, b"b") + bytes(300_000) + data(1, 2, b"c")
    table = table_of([Run(1, 1, 1, 0, 13, 13, 0, 0, 0), Run(1, 2, 1, 300_013, 13, 13, 0, 0, 0)])
    link.ingress.on_fragments(memoryview(area), [(link.transport, table)], 0)
    link.receive(data(1, 3, b"d"))
    turn.end()
    assert [slot.fragments for _, slot in link.queues.announced] == [4]
    assert link.ring.position < 1000
    link.carry()
    assert [payload for _, _, payload in out.sent] == [b"a", b"b", b"c", b"d"]
    link.books()


def test_siblings_that_want_the_same_of_it_share_a_copy(link: Link, turn: Turn) -> None:
    out = BlockingSender()
    for topic in (1, 2):
        link.add_source(topic, out)
    sources = link.transport.sources
    for topic, workers in ((1, (0, 1, Q)), (2, (Q,))):
        entry = sources[topic].user
        assert entry is not None
        entry.egress = workers
    area = data(1, 0, bytes(1000)) + bytes(100_000) + data(2, 0, bytes(1000))
    table = table_of([Run(1, 0, 1, 0, 1012, 1012, 0, 0, 0), Run(2, 0, 1, 101_012, 1012, 1012, 0, 0, 0)])
    link.ingress.on_fragments(memoryview(area), [(link.transport, table)], 0)
    assert 3 * 1012 < link.ring.position < 4 * 1012  # one copy for two siblings, and the other's
    turn.end()
    assert [(worker, slot.fragments, slot.nbytes) for worker, slot in link.queues.announced] == [
        (0, 1, 1012),
        (1, 1, 1012),
        (Q, 2, 2024),
    ]
    tables = [link.reader.copy(slot.table, descriptor.table_bytes(slot.rows)) for _, slot in link.queues.announced]
    assert tables[0] == tables[1]


def test_what_a_sibling_got_was_counted_before(link: Link) -> None:
    """A portal may be killed as soon as the descriptor is there."""

    class Killed(BaseException):
        pass

    class Killing(FakeQueues):
        def put(self, reader: int, slot: QueueSlot) -> bool:
            super().put(reader, slot)
            raise Killed

    out = BlockingSender()
    link.add_source(1, out)
    link.queues = Killing()
    link.ingress = Ingress(link.ring, link.page_p, link.queues, lambda _: None)
    with pytest.raises(Killed):
        link.receive(data(1, 0, b"last"))
    link.carry()
    assert [payload for _, _, payload in out.sent] == [b"last"]
    link.books()


def test_no_shared_memory_costs_only_what_had_none(link: Link, turn: Turn, monkeypatch: pytest.MonkeyPatch) -> None:
    out = BlockingSender(fragment_max=65000)
    link.add_source(1, out)
    link.receive(data(1, 0, b"x"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        link.receive(b"".join(data(1, sqn, bytes(60_000)) for sqn in (1, 2, 3)))  # the ring has 128 KiB
    turn.end()
    link.carry()
    assert [sqn for _, sqn, _ in out.sent] == [0]
    base = link.page_p.pair(Q)
    assert [link.page_p[base + slot] for slot in (PairSlot.HANDED, PairSlot.NO_MEMORY)] == [4, 3]
    link.books()


def test_batches_that_wait_together_are_sent_as_one_up_to_a_size(link: Link) -> None:
    class Counting(BlockingSender):
        batches = 0

        def send_batch(self, buffer: bytearray, table: RunTable, now_ns: int) -> int:
            self.batches += 1
            return super().send_batch(buffer, table, now_ns)

    out = Counting(fragment_max=65000)
    link.add_source(1, out)
    for sqn in range(30):
        link.receive(data(1, sqn, bytes([sqn]) * 10))
    link.carry()
    assert out.batches == 1
    for sqn in range(30, 40):
        link.receive(data(1, sqn, bytes([sqn]) * 15_000))
    link.carry()
    assert out.batches == 1 + 2, "seven make the first"
    assert [payload[:1] for _, _, payload in out.sent] == [bytes([sqn]) for sqn in range(40)]
    link.books()


def test_a_broken_batch_among_others_costs_its_fragments_alone(link: Link) -> None:
    out = BlockingSender()
    link.add_source(1, out)
    for sqn in range(3):
        link.receive(data(1, sqn, bytes([sqn])))
    worker, slot = link.queues.announced[1]
    link.queues.announced[1] = (worker, slot._replace(nbytes=slot.nbytes + 1))
    link.page_p.add(link.page_p.pair(Q) + PairSlot.HANDED_BYTES, 1)
    link.carry()
    assert [sqn for _, sqn, _ in out.sent] == [0, 2]
    assert link.page_q[Slot.DROPPED_ERROR] == 1
    link.books()


def test_books_are_compared_when_all_that_was_taken_is_sent(link: Link) -> None:
    out = BlockingSender()
    link.add_source(1, out)
    link.receive(data(1, 0, b"x"))
    ((_, slot),) = link.queues.announced
    link.egress.on_batch(P, slot)
    assert link.egress.reconcile(P, *link.ingress.handed(Q)) == 0
    assert link.egress.accounted(P) == 1
    link.receive(data(1, 1, b"x"))
    link.egress.on_batch(P, link.queues.announced[1][1])
    assert link.egress.accounted(P) == 2
    link.queues.announced.clear()
    link.books()
