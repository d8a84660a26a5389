"""The end of forwarding: what still goes to a sibling that leaves, and when nothing does any more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dro.bus.counters import CounterPage
from dro.bus.ring import RingWriter
from dro.um.runs import KIND_CONTROL, KIND_TSNI, Run, RunBuilder, read_messages
from dro.um.session import BoundSource, ReceiverTransport
from dro.wire import lbmc
from dro.wire.lbmr import Tir
from dro.wire.source_string import TcpAddress
from portals import descriptor
from portals.endpoint.handover import QUIET_TICKS, Edge, ForwardEntry, Handover, note
from portals.endpoint.ingress import Ingress

ADDRESS = TcpAddress(0x7F000001, 14371, 1)
TOPIC = 77
LAST = 0xFFFFFFFF
STAYS, LEAVES = 1, 2


class FakeSessions:
    """One session; the test says where it is and up to where it is whole."""

    def __init__(self) -> None:
        self.at = 0
        self.whole_to = 0

    def mark(self, transport: ReceiverTransport) -> int | None:
        return self.at

    def is_whole(self, transport: ReceiverTransport, mark: int | None) -> bool:
        assert mark is not None
        return self.whole_to >= mark


def whole(sqn: int, size: int = 20) -> bytes:
    return lbmc.HEADER.pack(0, 0, 12 + size, TOPIC, sqn) + bytes(size)


def part(sqn: int, first: int, offset: int, total: int, size: int = 20) -> bytes:
    """A fragment of a message of `total` bytes that began with the sqn `first`."""
    return lbmc.FRAG_HEADER.pack(0, 1, 28 + size, TOPIC, sqn, 0, 16, 0, first, offset, total) + bytes(size)


class Portal:
    """The receiving half of a portal with one source, and what it gave to whom."""

    def __init__(self, folder: Path) -> None:
        self.sessions = FakeSessions()
        self.page = CounterPage.create(folder / "page", pair_blocks=4)
        self.ring = RingWriter.create(folder / "ring", 1 << 20, 1)
        self.ingress = Ingress(self.ring, self.page, self._send, chunk_max_bytes=1 << 18)
        self.got: dict[int, list[int]] = {STAYS: [], LEAVES: []}
        self.others: dict[int, list[int]] = {STAYS: [], LEAVES: []}  # kinds of what is no data
        self.transport = ReceiverTransport(ADDRESS, lambda: None)
        source = BoundSource(b"t", bytes(32), TOPIC, self.transport, Tir(b"t", ADDRESS, 60, TOPIC), False)
        self.entry = ForwardEntry(1000, source)
        self.entry.want((STAYS, LEAVES))
        source.user = self.entry
        self.transport.sources[TOPIC] = source

    def _send(self, worker: int, frame: bytes) -> bool:
        for run in descriptor.decode(frame).runs:
            if run.kind:
                self.others[worker].append(run.kind)
            else:
                self.got[worker] += [(run.first_sqn + i) & LAST for i in range(run.fragments)]
        return True

    def hear(self, *messages: bytes) -> None:
        batch = b"".join(messages)
        builder = RunBuilder()
        read_messages(batch, 0, len(batch), 0, builder)
        self.ingress.on_fragments(self.transport, memoryview(batch), builder.take(), 0)

    def leave(self) -> Handover:
        return Handover(self.sessions, [self.entry], {LEAVES})

    def close(self) -> None:
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
    portal.hear(*map(whole, range(10, 15)))
    handover = portal.leave()
    portal.hear(*map(whole, range(15, 18)))
    assert portal.got == {STAYS: [*range(10, 18)], LEAVES: [*range(10, 15)]}
    assert finish(handover) == QUIET_TICKS
    portal.hear(whole(18), whole(14))
    assert portal.got == {STAYS: [*range(10, 19), 14], LEAVES: [*range(10, 15)]}


def test_what_was_missing_before_the_end_still_comes_and_is_waited_for(portal: Portal) -> None:
    portal.hear(whole(10), whole(13), whole(14))
    portal.sessions.at, portal.sessions.whole_to = 105, 101
    handover = portal.leave()
    for _ in range(3 * QUIET_TICKS):
        assert not handover.on_tick()
    assert handover.waiting == 1
    portal.hear(whole(15), whole(12), whole(11), whole(16))
    portal.sessions.at = 107
    assert portal.got[LEAVES] == [10, 13, 14, 12, 11]
    portal.sessions.whole_to = 105
    assert handover.on_tick()
    assert portal.entry.closing == {}


def test_what_lies_before_the_edge_goes_when_the_run_crosses_it(portal: Portal) -> None:
    portal.hear(whole(LAST - 1), whole(2))
    portal.leave()
    portal.hear(*[whole(sqn & LAST) for sqn in range(LAST, LAST + 6)])
    assert portal.got[LEAVES] == [LAST - 1, 2, LAST, 0, 1, 2]
    assert portal.got[STAYS] == [LAST - 1, 2, LAST, 0, 1, 2, 3, 4]


def test_a_message_that_was_begun_is_finished(portal: Portal) -> None:
    portal.hear(whole(9), part(10, 10, 0, 100), part(11, 10, 20, 100))
    handover = portal.leave()
    portal.sessions.at = 7  # what comes next has to be whole as well
    portal.hear(part(12, 10, 40, 100), part(13, 10, 60, 100))
    assert not handover.on_tick()
    assert handover.waiting == 1
    portal.hear(part(14, 10, 80, 100), part(15, 15, 0, 40), part(16, 15, 20, 40), whole(17))
    assert portal.got[LEAVES] == [9, 10, 11, 12, 13, 14]
    portal.sessions.whole_to = 7
    assert finish(handover) > QUIET_TICKS, "the edge has moved meanwhile"


def test_a_piece_that_is_missing_in_the_message_that_was_begun_is_waited_for(portal: Portal) -> None:
    portal.hear(part(10, 10, 0, 100))
    handover = portal.leave()
    portal.hear(part(12, 10, 40, 100))  # 11 was lost
    portal.sessions.at, portal.sessions.whole_to = 50, 48
    assert not handover.on_tick()
    portal.hear(part(13, 10, 60, 100), part(14, 10, 80, 100), whole(15), part(11, 10, 20, 100))
    assert sorted(portal.got[LEAVES]) == [10, 11, 12, 13, 14]
    for _ in range(3 * QUIET_TICKS):
        assert not handover.on_tick()
    portal.sessions.whole_to = 50
    assert finish(handover) <= QUIET_TICKS


def test_when_the_end_of_the_message_is_lost_the_next_one_shows_where_it_was(portal: Portal) -> None:
    portal.hear(part(10, 10, 0, 40))
    handover = portal.leave()
    portal.hear(whole(12))
    portal.hear(part(11, 10, 20, 40), whole(13))
    assert portal.got[LEAVES] == [10, 11]
    portal.sessions.at = portal.sessions.whole_to = 9
    finish(handover)


def test_what_a_source_says_about_itself_is_not_told_to_who_leaves(portal: Portal) -> None:
    tsni = lbmc.encode(lbmc.tsni_message([(TOPIC, 30)]))
    portal.hear(whole(10), tsni)
    portal.leave()
    portal.hear(tsni)
    assert portal.others == {STAYS: [KIND_TSNI, KIND_TSNI], LEAVES: [KIND_TSNI]}
    portal.hear(*map(whole, range(11, 32)))
    assert portal.got[LEAVES][-1] == 30, "it was told that there is a message 30"


def test_a_control_message_moves_no_edge() -> None:
    entry = ForwardEntry(1, BoundSource(b"t", bytes(32), 1, ReceiverTransport(ADDRESS, lambda: None),
                                        Tir(b"t", ADDRESS, 60, 1), False))  # fmt: skip
    note(entry, Run(1, 0, 1, 0, 40, 40, 0, 0, KIND_CONTROL))
    assert entry.next_sqn is None


def test_a_sibling_that_had_nothing_gets_nothing(portal: Portal) -> None:
    handover = portal.leave()
    portal.hear(whole(5), whole(6))
    assert portal.got == {STAYS: [5, 6], LEAVES: []}
    finish(handover)


def test_a_broken_chain_ends_the_message(portal: Portal) -> None:
    portal.hear(part(10, 10, 0, 100))
    portal.leave()
    broken = bytearray(part(11, 10, 20, 100))
    broken[13] = 2  # length of the block
    portal.hear(bytes(broken))
    assert portal.got[LEAVES] == [10]


def test_nothing_to_hand_over_is_over_at_once(portal: Portal) -> None:
    portal.entry.want((STAYS,))
    assert finish(portal.leave()) == 1


def test_a_sibling_that_wants_it_no_more_or_dies_is_not_waited_for(portal: Portal) -> None:
    portal.hear(whole(10))
    portal.leave()
    portal.entry.want((STAYS,))
    portal.hear(whole(10))
    assert portal.got[LEAVES] == [10]
    portal.entry.want((STAYS, LEAVES))
    portal.leave().cancel()
    portal.hear(whole(10))
    assert portal.got[LEAVES] == [10]
    assert portal.entry.closing == {}


def test_another_sibling_that_begins_to_want_the_source_does_not_bring_back_the_one_that_leaves(portal: Portal) -> None:
    portal.entry.want((LEAVES,))
    portal.hear(whole(10))
    handover = portal.leave()
    portal.entry.want((STAYS, LEAVES))
    portal.hear(whole(11))
    assert portal.got == {STAYS: [11], LEAVES: [10]}
    finish(handover)


def test_two_that_leave_one_after_the_other_have_their_own_edges(portal: Portal) -> None:
    portal.hear(whole(10), whole(12))
    first = portal.leave()
    portal.hear(whole(13), whole(15))
    second = Handover(portal.sessions, [portal.entry], {STAYS, LEAVES})
    portal.hear(whole(16), whole(14), whole(11))
    assert portal.got == {STAYS: [10, 12, 13, 15, 14, 11], LEAVES: [10, 12, 11]}
    finish(first)
    assert set(portal.entry.closing) == {STAYS}
    finish(second)


def test_an_edge_of_nothing_lets_nothing_pass(portal: Portal) -> None:
    edge = Edge(None, portal.leave())
    data = whole(3)
    assert edge.before(memoryview(data), Run(TOPIC, 3, 1, 0, len(data), len(data), 0, 0, 0)) == 0
