"""The books of a pair of portals when either is killed: what comes once more is counted once, and nothing is lost."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from dro.bus.counters import CounterPage
from dro.bus.descriptors import ADDRESSED, BatchDescriptor, DescriptorWriter
from dro.kept.store import Kept
from dro.metrics.slots import DROP_SLOTS, PairSlot, Slot
from dro.shared_memory.ring import RingReader, RingWriter
from dro.transport.runs import RunTable, read_messages
from portals.datapath.addressed import AddressedData
from portals.datapath.egress import Egress
from portals.datapath.ingress import Ingress
from portals.datapath.intake import Intake
from tests.fakes.kept import Killed, Lives
from tests.fakes.transport import FakeTransport
from tests.portals.datapath.test_data_path import ADDRESS, BlockingSender, data, forwarded

P, Q = 1, 2
TOPIC = 1


class DeadlyQueues:
    """The queues of a ring; the process ends `before` the next descriptor is in its queue, or behind that."""

    def __init__(self, ring: RingWriter) -> None:
        self._queues = DescriptorWriter(ring)
        self.dies = ""

    @property
    def announced(self) -> int:
        return self._queues.announced(Q)

    def put(self, reader: int, slot: BatchDescriptor) -> bool:
        if self.dies == "before":
            raise Killed
        taken = self._queues.put(reader, slot)
        if self.dies:
            raise Killed
        return taken


class DeadlySender(BlockingSender):
    """The process ends when it has sent, or when that is in the books."""

    dies = ""

    def send_batch(self, buffer: bytearray, table: RunTable, now_ns: int) -> int:
        taken = super().send_batch(buffer, table, now_ns)
        if self.dies == "sent":
            raise Killed
        return taken

    def flush(self) -> None:
        if self.dies == "entered":
            raise Killed


class KilledPair:
    """Portal P that receives, portal Q that sends, and what each leaves."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.page_p = CounterPage.create(folder / "p", pair_blocks=4)
        self.page_q = CounterPage.create(folder / "q", pair_blocks=4)
        for name in "pq":
            (folder / f"of {name}").mkdir()
        self._lives_p, self._lives_q = Lives(folder / "of p"), Lives(folder / "of q")
        self._rings: list[RingWriter] = []
        self._own = RingWriter.create(folder / "own", 1 << 16, 1)
        self.sent: list[int] = []
        self.transport = FakeTransport(ADDRESS)
        self._begin_p(self._lives_p.kept)
        self._begin_q(self._lives_q.kept)
        self.meet()

    def _begin_p(self, kept: Kept) -> None:
        number = len(self._rings) + 1
        ring = RingWriter.create(self._folder / f"ring{number}", 1 << 20, number)
        self._rings.append(ring)
        self.queues = DeadlyQueues(ring)
        self.ingress = Ingress(ring, self.page_p, self.queues, lambda _: None, rows=kept.rows)

    def next_p(self) -> None:
        """The process of P has ended; Q has not taken anything of the next one yet."""
        former = len(self._rings)
        self._begin_p(self._lives_p.next_life())
        self.ingress.go_on(lambda incarnation: self._ring(former) if incarnation == former else None)

    def _ring(self, number: int) -> RingReader:
        return RingReader.open(self._folder / f"ring{number}", number)

    def _older(self, first: int) -> list[RingReader]:
        return [self._ring(number) for number in range(first, len(self._rings))]

    def _begin_q(self, kept: Kept) -> None:
        self.egress = Egress(self.page_q, 1 << 20, lambda: 0, lambda *_: None, kept)
        addressed = AddressedData(self._own, self.page_q, DescriptorWriter(self._own, ADDRESSED), lambda _: None)
        self.intake = Intake(self.egress, addressed, self.page_q, kept)
        self.out = DeadlySender()
        proxy, handle = forwarded(self.transport, TOPIC, self.out)
        for sqn in self.sent:
            proxy.window.take_run(sqn, 1)
        self.egress.feed(proxy, P, handle)

    def meet(self, *, delivers: bool = True) -> None:
        """Q meets P. `delivers`: and has all its proxy sources."""
        self.intake.add(P, self._ring(len(self._rings)), Q, self._older)
        self.intake.on_hello(P, 0, lambda: None)
        if delivers:
            self.intake.deliver(P)

    def next_q_clean(self) -> None:
        """The process of Q has ended, and the next one knows nothing of it."""
        self.note_sent()
        announced, handed = self.queues.announced, self.handed()
        kept = self._lives_q.clean_life()
        before, self.sent = self.sent, []
        self._begin_q(kept)
        self.sent = before
        self.intake.add(P, self._ring(len(self._rings)), Q, self._older)
        self.intake.on_hello(P, announced, lambda: self.egress.reconcile(P, *handed))
        self.intake.deliver(P)

    def next_q(self, *, delivers: bool = True) -> None:
        """The process of Q has ended."""
        self.note_sent()
        self._begin_q(self._lives_q.next_life())
        self.meet(delivers=delivers)

    def next_both(self) -> None:
        """Both processes have ended."""
        self.next_p()
        self.next_q()

    def drain(self) -> None:
        """The session has room for everything."""
        self.out.room = 1 << 30
        self.egress.drain(self.out)

    def note_sent(self) -> None:
        self.sent += [sqn for _, sqn, _ in self.out.sent]
        self.out.sent.clear()

    def hear(self, *sqns: int) -> None:
        datagram = b"".join(data(TOPIC, sqn, bytes(20)) for sqn in sqns)
        table = RunTable()
        read_messages(datagram, 0, len(datagram), 0, table)
        self.ingress.on_fragments(memoryview(datagram), [(self.transport, table)], 0)

    def take(self) -> None:
        while self.intake.take():
            pass

    def handed(self) -> tuple[int, int]:
        base = self.page_p.pair(Q) + PairSlot.HANDED
        return self.page_p[base], self.page_p[base + 1]

    def check(self, sent: int, *, again: int = 0) -> None:
        """All was sent once, and both sides agree on that."""
        self.take()
        self.note_sent()
        assert self.sent == list(range(sent))
        base = self.page_q.pair(P)
        for step, unit in enumerate((1, 32)):
            assert self.handed()[step] == (sent + again) * unit
            assert self.page_q[base + PairSlot.ACCOUNTED + step] == (sent + again) * unit
            assert self.page_q[base + PairSlot.SENT + step] == sent * unit
            assert self.page_q[Slot.SENT + step] == sent * unit
            assert self.page_q[Slot.FORWARDED + step] == (sent + again) * unit
            dropped = {slot for slot in DROP_SLOTS.values() if self.page_q[slot + step]}
            assert dropped == ({Slot.DROPPED_DUP} if again else set())

    def close(self) -> None:
        self._lives_p.close()
        self._lives_q.close()
        vars(self).clear()
        gc.collect()  # the memory of processes that ended is open else while others count files


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[KilledPair]:
    made = KilledPair(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("before", [0, 3])
def test_an_ingress_killed_before_it_announces_counts_what_comes_again_once(pair: KilledPair, before: int) -> None:
    """What it had counted as handed over was in no queue."""
    for sqn in range(before):
        pair.hear(sqn)
    pair.take()
    pair.queues.dies = "before"
    with pytest.raises(Killed):
        pair.hear(before, before + 1)
    assert pair.handed() == (before + 2, 32 * (before + 2))
    pair.next_p()
    assert pair.handed() == (before, 32 * before)


def test_nor_does_the_first_announcement_of_a_later_life(pair: KilledPair) -> None:
    pair.hear(0)
    pair.take()
    pair.next_p()
    pair.queues.dies = "before"
    with pytest.raises(Killed):
        pair.hear(1)
    pair.next_p()
    assert pair.handed() == (1, 32)


@pytest.mark.parametrize("before", [0, 3])
def test_an_ingress_killed_behind_the_announcement_has_handed_it_over(pair: KilledPair, before: int) -> None:
    for sqn in range(before):
        pair.hear(sqn)
    pair.queues.dies = "behind"
    with pytest.raises(Killed):
        pair.hear(before)
    pair.take()
    pair.next_p()
    pair.check(before + 1)


@pytest.mark.parametrize("dies", ["sent", "entered"])
@pytest.mark.parametrize("before", [0, 2])
def test_what_a_killed_egress_had_sent_is_sent_and_counted_once(pair: KilledPair, before: int, dies: str) -> None:
    """It takes the descriptor again, and knows from its log what of it was sent."""
    for sqn in range(before):
        pair.hear(sqn)
    pair.take()
    pair.out.dies = dies
    pair.hear(*range(before, before + 3))
    with pytest.raises(Killed):
        pair.take()
    assert pair.page_q[Slot.SENT] == before + (3 if dies == "entered" else 0)
    pair.next_q()
    pair.hear(before + 3)
    pair.check(before + 4)


@pytest.mark.parametrize("dies", ["sent", "entered"])
def test_a_clean_life_sends_nothing_that_the_killed_one_may_have_sent(pair: KilledPair, dies: str) -> None:
    """Its windows are empty, so it could not tell."""
    pair.hear(0)
    pair.take()
    pair.out.dies = dies
    pair.hear(1, 2)
    with pytest.raises(Killed):
        pair.take()
    pair.hear(3)
    pair.next_q_clean()
    pair.hear(4)
    pair.take()
    pair.note_sent()
    assert pair.sent == [0, 1, 2, 3, 4]
    base, page = pair.page_q.pair(P), pair.page_q
    booked = 0 if dies == "entered" else 2  # sent before it was counted
    assert page[Slot.DROPPED_RESTART] == booked
    assert (page[base + PairSlot.SENT], page[base + PairSlot.ACCOUNTED]) == (5 - booked, 5)
    assert (page[Slot.FORWARDED], page[base + PairSlot.ACCOUNTED_BYTES]) == (5, pair.handed()[1])


def test_an_egress_that_is_killed_again_and_again_is_exact(pair: KilledPair) -> None:
    sqn = 0
    for number in range(12):
        pair.out.dies = ("", "sent", "entered")[number % 3]
        pair.hear(*range(sqn, sqn + number % 4 + 1))
        sqn += number % 4 + 1
        if pair.out.dies:
            with pytest.raises(Killed):
                pair.take()
        else:
            pair.take()
        pair.next_q()
    pair.check(sqn)


def test_what_comes_twice_later_is_a_duplicate(pair: KilledPair) -> None:
    pair.out.dies = "entered"
    pair.hear(0, 1)
    with pytest.raises(Killed):
        pair.take()
    pair.next_q()
    for sqn in range(2, 12):
        pair.hear(sqn)
        pair.take()
    pair.hear(5)
    pair.check(12, again=1)


def test_a_loss_that_was_booked_is_not_taken_back(pair: KilledPair) -> None:
    """Else it is booked again when the sibling greets the next life."""
    pair.hear(0)
    pair.take()
    pair.intake.on_hello(P, 1, lambda: pair.egress.reconcile(P, 6, 192))
    pair.intake.deliver(P)
    pair.take()
    assert pair.page_q[Slot.DROPPED_RESTART] == 5
    pair.next_q()
    pair.take()
    assert pair.egress.reconcile(P, 6, 192) == 0
    assert pair.page_q[Slot.DROPPED_RESTART] == 5


def test_what_two_portals_had_under_way_when_both_were_killed_is_sent(pair: KilledPair) -> None:
    pair.hear(0)
    pair.take()
    pair.hear(1)
    pair.hear(2)
    pair.next_both()
    pair.hear(3)
    pair.check(4)
    pair.next_both()
    pair.check(4)


@pytest.mark.parametrize("deaths", [1, 2])
def test_what_a_sibling_left_that_died_before_it_could_be_delivered_is_sent(pair: KilledPair, deaths: int) -> None:
    pair.hear(0)
    pair.take()
    pair.hear(1)
    pair.next_q(delivers=False)
    for sqn in range(2, 2 + deaths):
        pair.hear(sqn)
        pair.intake.remove(P)
        pair.take()
        pair.next_p()
        pair.meet(delivers=False)
    assert pair.out.sent == [], "what it is for may not be there yet"
    pair.hear(2 + deaths)
    pair.intake.deliver(P)
    pair.check(3 + deaths)
    pair.next_both()
    pair.check(3 + deaths)


def test_what_a_sibling_left_that_does_not_come_back_is_taken_in_the_end(pair: KilledPair) -> None:
    pair.hear(0)
    pair.next_q(delivers=False)
    pair.hear(1)
    pair.intake.remove(P)
    pair.take()
    assert pair.out.sent == []
    pair.intake.leave(P)
    pair.check(2)
    pair.intake.leave(P)
    assert P not in pair.intake


@pytest.mark.parametrize("room", [0, 2])
def test_what_waits_when_an_egress_is_killed_is_sent_by_its_next_life(pair: KilledPair, room: int) -> None:
    pair.out.room = room
    pair.hear(0, 1, 2)
    pair.hear(3)
    pair.take()
    assert pair.page_q[Slot.QUEUED] == 4 - room
    pair.next_q()
    pair.out.room = 0
    pair.take()
    assert pair.page_q[Slot.QUEUED] == 4 - room, "it waits again"
    pair.next_q()
    pair.hear(4)
    pair.check(5)


def test_what_was_sent_of_what_waits_is_neither_kept_nor_sent_again(pair: KilledPair, tmp_path: Path) -> None:
    pair.out.room = 0
    pair.hear(*range(300))
    pair.take()
    pair.drain()
    pair.next_q()
    assert pair.egress.logs.waited == {}
    pair.take()
    assert [path.name for path in (tmp_path / "of q").glob("waits.*")] == ["waits.1"]
    pair.egress.logs.forget_former()
    assert list((tmp_path / "of q").glob("waits.*")) == []
    pair.check(300)


def test_what_waits_of_a_proxy_source_that_is_deleted_is_dropped_once(pair: KilledPair) -> None:
    pair.out.room = 0
    pair.hear(0, 1)
    pair.take()
    (lane,) = pair.egress.lanes()
    (proxy,) = lane.proxies.values()
    pair.egress.flush(proxy)
    pair.next_q()
    pair.take()
    assert pair.out.sent == []
    assert (pair.page_q[Slot.DROPPED_DELETED], pair.page_q[Slot.FORWARDED]) == (2, 2)


@pytest.mark.parametrize("seed", range(10))
def test_whatever_is_killed_and_blocked_nothing_is_lost_or_doubled(pair: KilledPair, seed: int) -> None:
    chance = random.Random(seed)
    sqn = 0
    for _ in range(60):
        pair.out.dies = chance.choice(("", "", "sent", "entered"))
        pair.out.room = chance.choice((0, 1, 5, 1 << 30))
        count = chance.randrange(4)
        if count:
            pair.hear(*range(sqn, sqn + count))
            sqn += count
        is_killed = chance.random() < 0.3
        try:
            for _ in range(chance.randrange(3)):
                pair.intake.take()
            if chance.random() < 0.5:
                pair.egress.drain(pair.out)
        except Killed:
            is_killed = True
        if is_killed:
            chance.choice((pair.next_q, pair.next_q, pair.next_both))()
    pair.out.dies = ""
    pair.out.room = 1 << 30
    pair.take()
    pair.drain()
    pair.check(sqn)
