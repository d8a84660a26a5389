"""The end of forwarding: what still goes to a sibling that leaves, and when nothing does any more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dro.bus.counters import CounterPage
from dro.bus.descriptors import BatchDescriptor
from dro.proto.context.sources import BoundSource
from dro.shared_memory.ring import RingReader, RingWriter
from dro.transport.runs import KIND_CONTROL, KIND_TSNI, RunTable, read_messages
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.data_blocks import TopicIdx
from dro.wire.lbmr.packet import Tir
from dro.wire.source_string import TcpAddress
from portals.datapath.handover import LOOK_TICKS, QUIET_TICKS, ForwardEntry, Handover
from portals.datapath.ingress import Ingress
from tests.fakes.queues import table_at
from tests.fakes.transport import FakeTransport

ADDRESS = TcpAddress(0x7F000001, 14371, 1)
TOPIC = 77
LAST = 0xFFFFFFFF
STAYS, LEAVES = 1, 2


def whole(sqn: int, size: int = 20) -> bytes:
    return lbmc.HEADER.pack(0, 0, 12 + size, TOPIC, sqn) + bytes(size)


def part(sqn: int, first: int, offset: int, total: int, size: int = 20) -> bytes:
    """A fragment of a message of `total` bytes that began with the sqn `first`."""
    return lbmc.FRAG_HEADER.pack(0, 1, 28 + size, TOPIC, sqn, 0, 16, 0, first, offset, total) + bytes(size)


class Portal:
    """The receiving half of a portal with one source, and what it gave to whom."""

    def __init__(self, folder: Path) -> None:
        self.page = CounterPage.create(folder / "page", pair_blocks=4)
        self.ring = RingWriter.create(folder / "ring", 1 << 20, 1)
        self.reader = RingReader.open(folder / "ring", 1)
        self.ingress = Ingress(self.ring, self.page, self, lambda _: None, chunk_max_bytes=1 << 18)
        self.got: dict[int, list[int]] = {STAYS: [], LEAVES: []}
        self.others: dict[int, list[int]] = {STAYS: [], LEAVES: []}  # kinds of what is no data
        self.transport = FakeTransport(ADDRESS)
        self.transport.at = 0
        source: BoundSource[Any] = BoundSource(
            b"t", bytes(32), TOPIC, self.transport, Tir(b"t", ADDRESS, 60, TOPIC), False
        )
        self.entry = ForwardEntry(1000, source)
        self.entry.want((STAYS, LEAVES))
        source.user = self.entry
        self.transport.sources[TOPIC] = source

    def put(self, reader: int, slot: BatchDescriptor) -> bool:
        for run in table_at(self.reader, slot)[0]:
            if run.kind:
                self.others[reader].append(run.kind)
            else:
                self.got[reader] += [(run.first_sqn + i) & LAST for i in range(run.fragments)]
        return True

    def hear(self, *messages: bytes) -> None:
        batch = b"".join(messages)
        table = RunTable()
        read_messages(batch, 0, len(batch), 0, table)
        self.ingress.on_fragments(memoryview(batch), [(self.transport, table)], 0)

    def begin(self, *leaving: int) -> Handover:
        return Handover(iter([self.entry]), leaving or {LEAVES})

    def leave(self, *messages: bytes) -> Handover:
        """Begin a handover and look, while these come."""
        handover = self.begin()
        self.hear(*messages)
        for _ in range(LOOK_TICKS):
            assert not handover.on_tick()
        assert not handover.is_looking
        return handover

    def close(self) -> None:
        self.reader.close()
        self.ring.close()
        self.page.close()


@pytest.fixture
def portal(tmp_path: Path) -> Iterator[Portal]:
    made = Portal(tmp_path)
    yield made
    made.close()


def finish(handover: Handover) -> int:
    """Ticks until it is over."""
    for ticks in range(1, 100):
        if handover.on_tick():
            return ticks
    raise AssertionError("not over")


def test_who_leaves_gets_nothing_new_and_who_stays_everything(portal: Portal) -> None:
    portal.hear(*map(whole, range(10, 13)))
    handover = portal.leave(whole(13), whole(14))
    portal.hear(*map(whole, range(15, 18)))
    assert portal.got == {STAYS: [*range(10, 18)], LEAVES: [*range(10, 15)]}
    assert finish(handover) == QUIET_TICKS
    portal.hear(whole(18), whole(14))
    assert portal.got == {STAYS: [*range(10, 19), 14], LEAVES: [*range(10, 15)]}
    assert portal.entry.closing == {}


def test_what_was_missing_before_still_comes_and_is_waited_for(portal: Portal) -> None:
    portal.hear(whole(10), whole(13), whole(14))
    portal.transport.at, portal.transport.whole_to = 105, 101
    handover = portal.begin()
    for _ in range(3 * QUIET_TICKS):
        assert not handover.on_tick()
    assert handover.is_looking, "until what was missing at the beginning is there"
    assert handover.waiting == 1
    portal.hear(whole(15), whole(12), whole(17), whole(11))
    portal.transport.at, portal.transport.whole_to = 108, 106
    assert not handover.on_tick()
    assert not handover.is_looking
    portal.hear(whole(18), whole(16), whole(19))
    assert portal.got[LEAVES] == [10, 13, 14, 15, 12, 17, 11, 16]
    for _ in range(3 * QUIET_TICKS):
        assert not handover.on_tick()
    portal.transport.whole_to = 108
    assert handover.on_tick()


def test_what_lies_before_the_edge_goes_when_the_run_crosses_it(portal: Portal) -> None:
    portal.leave(whole(LAST - 1), whole(2))
    portal.hear(*[whole(sqn & LAST) for sqn in range(LAST, LAST + 6)])
    assert portal.got[LEAVES] == [LAST - 1, 2, LAST, 0, 1, 2]
    assert portal.got[STAYS] == [LAST - 1, 2, LAST, 0, 1, 2, 3, 4]


def test_a_message_that_was_begun_is_finished(portal: Portal) -> None:
    handover = portal.leave(whole(9), part(10, 10, 0, 100), part(11, 10, 20, 100))
    portal.transport.at = 7  # what comes next has to be whole as well
    portal.hear(part(12, 10, 40, 100), part(13, 10, 60, 100))
    assert not handover.on_tick()
    assert handover.waiting == 1
    portal.hear(part(14, 10, 80, 100), part(15, 15, 0, 40), part(16, 15, 20, 40), whole(17))
    assert portal.got[LEAVES] == [9, 10, 11, 12, 13, 14]
    portal.transport.whole_to = 7
    assert finish(handover) > QUIET_TICKS, "the edge has moved meanwhile"


def test_a_message_of_a_source_that_was_silent_while_looking_is_finished(portal: Portal) -> None:
    portal.hear(part(10, 10, 0, 60))
    portal.leave()
    portal.hear(part(11, 10, 20, 60), part(12, 10, 40, 60), part(13, 13, 0, 60), part(14, 13, 20, 60))
    assert portal.got[LEAVES] == [10, 11, 12]


def test_silent_sources_that_wake_up_do_not_make_it_longer(portal: Portal) -> None:
    portal.hear(whole(10))
    handover = portal.leave()
    for _ in range(QUIET_TICKS - 1):
        assert not handover.on_tick()
    portal.hear(whole(11))
    assert handover.on_tick()
    assert portal.got[LEAVES] == [10]


def test_a_piece_that_is_missing_in_the_message_that_was_begun_is_waited_for(portal: Portal) -> None:
    handover = portal.leave(part(10, 10, 0, 100))
    portal.hear(part(12, 10, 40, 100))  # 11 was lost
    portal.transport.at, portal.transport.whole_to = 50, 48
    assert not handover.on_tick()
    portal.hear(part(13, 10, 60, 100), part(14, 10, 80, 100), whole(15), part(11, 10, 20, 100))
    assert sorted(portal.got[LEAVES]) == [10, 11, 12, 13, 14]
    for _ in range(3 * QUIET_TICKS):
        assert not handover.on_tick()
    portal.transport.whole_to = 50
    assert finish(handover) <= QUIET_TICKS


def test_when_the_end_of_the_message_is_lost_the_next_one_shows_where_it_was(portal: Portal) -> None:
    handover = portal.leave(part(10, 10, 0, 40))
    portal.hear(whole(12))
    portal.hear(part(11, 10, 20, 40), whole(13))
    assert portal.got[LEAVES] == [10, 11]
    portal.transport.at = portal.transport.whole_to = 9
    finish(handover)


def test_what_a_source_says_about_itself_is_not_told_to_who_leaves(portal: Portal) -> None:
    tsni = lbmc.encode(lbmc.tsni_message([(TOPIC, 30)]))
    portal.leave(whole(10), tsni)
    portal.hear(tsni)
    assert portal.others == {STAYS: [KIND_TSNI, KIND_TSNI], LEAVES: [KIND_TSNI]}
    portal.hear(*map(whole, range(11, 32)))
    assert portal.got[LEAVES][-1] == 30, "it was told that there is a message 30"


def test_a_control_message_goes_while_looking_and_moves_no_edge(portal: Portal) -> None:
    control = lbmc.encode(lbmc.control_message(TopicIdx(TOPIC)))
    portal.leave(whole(0xFFFFFF00), control)
    portal.hear(control, whole(0xFFFFFF01), whole(0xFFFFFEFF))
    assert portal.others[LEAVES] == [KIND_CONTROL]
    assert portal.got[LEAVES] == [0xFFFFFF00, 0xFFFFFEFF]


def test_a_broken_chain_ends_the_message(portal: Portal) -> None:
    portal.leave(part(10, 10, 0, 100))
    broken = bytearray(part(11, 10, 20, 100))
    broken[13] = 2  # length of the block
    portal.hear(bytes(broken))
    assert portal.got[LEAVES] == [10]


def test_nothing_to_hand_over_is_over_at_once(portal: Portal) -> None:
    portal.entry.want((STAYS,))
    assert finish(portal.begin()) == 1


def test_a_sibling_that_wants_it_no_more_or_dies_is_not_waited_for(portal: Portal) -> None:
    portal.leave(whole(10))
    portal.entry.want((STAYS,))
    portal.hear(whole(10))
    assert portal.got[LEAVES] == [10]
    portal.entry.want((STAYS, LEAVES))
    portal.begin().cancel()
    portal.hear(whole(10))
    assert portal.got[LEAVES] == [10]
    assert portal.entry.closing == {}


def test_another_sibling_that_begins_to_want_the_source_does_not_bring_back_the_one_that_leaves(portal: Portal) -> None:
    portal.entry.want((LEAVES,))
    handover = portal.leave(whole(10))
    portal.entry.want((STAYS, LEAVES))
    portal.hear(whole(11))
    assert portal.got == {STAYS: [11], LEAVES: [10]}
    finish(handover)


def test_two_that_leave_one_after_the_other_have_their_own_edges(portal: Portal) -> None:
    first = portal.leave(whole(10), whole(12))
    second = portal.begin(STAYS, LEAVES)
    portal.hear(whole(13), whole(15))
    for _ in range(LOOK_TICKS):
        second.on_tick()
    portal.hear(whole(16), whole(14), whole(11))
    assert portal.got == {STAYS: [10, 12, 13, 15, 14, 11], LEAVES: [10, 12, 11]}
    for _ in range(2 * QUIET_TICKS):
        assert not second.on_tick(), "it is over after the first"
    finish(first)
    assert set(portal.entry.closing) == {STAYS}
    assert second.on_tick()
