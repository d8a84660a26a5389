"""Which descriptors of which sibling reach the egress, and when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from dro.bus.counters import CounterPage
from dro.bus.descriptors import ADDRESSED, SOURCE_DATA, BatchDescriptor, DescriptorWriter
from dro.metrics.slots import Slot as Slots
from dro.shared_memory.ring import RingReader, RingWriter
from portals.datapath.addressed import AddressedData
from portals.datapath.descriptor import BatchKind
from portals.datapath.egress import Egress
from portals.datapath.intake import BATCHES_PER_TURN, MESSAGES_PER_TURN, Intake

ME = 9


class Batches:
    """In place of an egress: what it was given."""

    def __init__(self) -> None:
        self.got: list[tuple[int, int]] = []
        self.rings: list[tuple[int, bool]] = []
        self.flushes = 0
        self.expired: list[int] = []

    def on_expired(self, worker: int, slot: BatchDescriptor) -> None:
        self.expired.append(slot.table)

    def on_ring(self, worker: int, ring: object) -> None:
        self.rings.append((worker, ring is not None))

    def on_batch(self, worker: int, slot: BatchDescriptor) -> None:
        self.got.append((worker, slot.table))

    def flush_sessions(self) -> None:
        self.flushes += 1

    def on_mail(self, worker: int, domain_id: int, message: memoryview) -> None:
        self.got.append((worker, -domain_id))

    def take(self) -> list[tuple[int, int]]:
        got, self.got = self.got, []
        return got


class Siblings:
    """Siblings 1 and 2 with their rings."""

    def __init__(self, folder: Path) -> None:
        self.egress = Batches()
        self.woken: list[int] = []
        self.rings = {n: RingWriter.create(folder / f"ring{n}", 1 << 16, 1) for n in (1, 2, ME)}
        self.writers = {n: DescriptorWriter(ring) for n, ring in self.rings.items()}
        self.page = CounterPage.create(folder / "page")
        self.senders = {
            n: AddressedData(ring, self.page, DescriptorWriter(ring, ADDRESSED), self.woken.append)
            for n, ring in self.rings.items()
        }
        self.senders[ME].handlers[BatchKind.UNICAST] = self.egress.on_mail
        self.intake = Intake(cast(Egress, self.egress), self.senders[ME], self.page)

    def add(self, worker: int, *, polled: bool = True) -> None:
        self.intake.add(worker, RingReader.open(self.rings[worker].path, 1), ME)
        if polled:
            self.intake.poll(worker)

    def announce(self, worker: int, *tables: int) -> None:
        for table in tables:
            assert self.writers[worker].put(ME, BatchDescriptor(table, 1, 1, 12, 0))

    def take_all(self) -> None:
        while self.intake.take():
            pass

    def mail(self, worker: int, *domains: int) -> None:
        for domain_id in domains:
            assert self.senders[worker].send(ME, BatchKind.UNICAST, domain_id, b"message")

    def close(self) -> None:
        for worker in (1, 2):
            self.intake.remove(worker)
            self.take_all()


@pytest.fixture
def siblings(tmp_path: Path) -> Iterator[Siblings]:
    made = Siblings(tmp_path)
    yield made
    made.close()


def test_siblings_are_served_in_turn_and_each_turn_is_bounded(siblings: Siblings) -> None:
    for worker in (1, 2):
        siblings.add(worker)
    siblings.announce(1, *range(BATCHES_PER_TURN + 2))
    siblings.announce(2, 50)
    assert siblings.intake.take()
    assert siblings.egress.take() == [*((1, n) for n in range(BATCHES_PER_TURN)), (2, 50)]
    assert siblings.egress.flushes == 1, "when no more follow"
    assert siblings.intake.take()
    assert siblings.egress.take() == [(1, BATCHES_PER_TURN), (1, BATCHES_PER_TURN + 1)]
    assert not siblings.intake.take()
    assert siblings.egress.flushes == 2


def test_until_a_sibling_greets_only_what_it_counts_is_taken(siblings: Siblings) -> None:
    """Else what it handed over after it had counted would make up for what was lost before."""
    siblings.announce(1, 1, 2, 3)
    siblings.add(1, polled=False)
    assert not siblings.intake.take()
    assert siblings.intake.before_sleep(), "nothing that it waits for"
    compared: list[list[tuple[int, int]]] = []
    siblings.intake.on_hello(1, 2, lambda: compared.append(siblings.egress.take()))
    siblings.intake.on_hello(7, 2, lambda: compared.append([]))  # not there any more
    siblings.intake.deliver(7)
    assert not siblings.intake.take()
    assert siblings.intake.before_sleep(), "nor can it be delivered"
    siblings.intake.deliver(1)
    assert not siblings.intake.before_sleep()
    assert siblings.intake.take()
    assert compared == [[(1, 1), (1, 2)]]
    siblings.take_all()
    assert siblings.egress.take() == [(1, 3)]
    assert siblings.intake.before_sleep()


def test_what_came_before_a_greeting_is_taken_a_few_batches_a_turn(siblings: Siblings) -> None:
    siblings.add(1, polled=False)
    count = 3 * BATCHES_PER_TURN
    siblings.announce(1, *range(count + 1))
    compared: list[bool] = []
    siblings.intake.deliver(1)
    siblings.intake.on_hello(1, count, lambda: compared.append(True))
    for turn in range(3):
        assert not compared
        assert siblings.intake.take()
        assert len(siblings.egress.take()) == BATCHES_PER_TURN + (turn == 2), "then one that came after it"
    assert compared == [True]


def test_what_waited_for_too_long_is_dropped_before_the_rest_can_be_delivered(siblings: Siblings) -> None:
    siblings.announce(1, *range(5))
    siblings.add(1, polled=False)
    compared: list[list[tuple[int, int]]] = []
    siblings.writers[1].expire(ME)
    siblings.announce(1, 5, 6)
    siblings.intake.on_hello(1, 6, lambda: compared.append(siblings.egress.take()), siblings.writers[1].expired(ME))
    siblings.intake.take()
    assert siblings.egress.expired == [0, 1, 2, 3, 4]
    assert not compared
    siblings.intake.deliver(1)
    siblings.take_all()
    assert compared == [[(1, 5)]]
    assert siblings.egress.take() == [(1, 6)]
    siblings.intake.remove(1)
    siblings.take_all()
    siblings.add(1, polled=False)
    siblings.announce(1, 7)
    siblings.intake.on_hello(1, 8, lambda: None)
    assert not siblings.intake.take(), "nothing can be delivered of its next life"


def test_a_queue_that_is_full_of_what_waited_for_too_long_has_room_again(siblings: Siblings) -> None:
    """Nothing else in it would ever be taken, and so nothing more be put into it."""
    full = SOURCE_DATA.slots
    siblings.announce(1, *range(full))
    assert not siblings.writers[1].put(ME, BatchDescriptor(0, 1, 1, 12, 0))
    siblings.writers[1].expire(ME)
    siblings.add(1, polled=False)
    siblings.intake.on_hello(1, full, lambda: None, siblings.writers[1].expired(ME))
    siblings.intake.deliver(1)
    siblings.take_all()
    siblings.announce(1, full)
    siblings.take_all()
    assert siblings.egress.take() == [(1, full)]


def test_what_a_dead_sibling_announced_is_taken_a_few_batches_a_turn_before_the_next_one_is_met(
    siblings: Siblings,
) -> None:
    siblings.add(1)
    siblings.announce(1, *range(2 * BATCHES_PER_TURN))
    siblings.intake.remove(1)
    met: list[int] = []
    siblings.intake.when_gone(1, lambda: met.append(1))
    siblings.intake.when_gone(2, lambda: met.append(2))
    for _ in range(2):
        assert met == [2], "there is nothing to wait for"
        assert not siblings.intake.before_sleep()
        assert siblings.intake.take()
        assert len(siblings.egress.take()) == BATCHES_PER_TURN
    assert met == [2, 1]


def test_who_dies_again_meanwhile_is_not_met(siblings: Siblings) -> None:
    siblings.add(1)
    siblings.intake.remove(1)
    siblings.intake.when_gone(1, lambda: pytest.fail("it is gone"))
    siblings.intake.remove(1)
    siblings.take_all()


@pytest.mark.parametrize("polled", [False, True])
def test_of_a_sibling_that_is_gone_all_is_taken_that_it_announced(siblings: Siblings, polled: bool) -> None:
    siblings.add(1, polled=polled)
    siblings.announce(1, 1, 2, 3)
    assert 1 in siblings.intake
    siblings.intake.remove(1)
    siblings.intake.remove(1)
    siblings.take_all()
    assert siblings.egress.take() == [(1, 1), (1, 2), (1, 3)]
    assert siblings.egress.rings == [(1, True), (1, False)]
    assert 1 not in siblings.intake
    assert siblings.intake.before_sleep()


def test_who_sleeps_is_woken_by_the_next_announcement(siblings: Siblings) -> None:
    siblings.add(1)
    assert siblings.intake.before_sleep()
    siblings.announce(1, 1)
    assert siblings.writers[1].must_wake(ME)
    siblings.intake.after_sleep()
    siblings.announce(1, 2)
    assert not siblings.writers[1].must_wake(ME)
    assert not siblings.intake.before_sleep(), "two wait"


def test_addressed_data_comes_after_source_data_and_a_part_of_it_in_each_turn(siblings: Siblings) -> None:
    for worker in (1, 2):
        siblings.add(worker)
    siblings.mail(1, *range(1, MESSAGES_PER_TURN + 2))
    siblings.mail(2, 50)
    siblings.announce(1, 1)
    siblings.announce(2, 2)
    assert siblings.woken.count(ME) == MESSAGES_PER_TURN + 2
    assert siblings.intake.take()
    first = [(1, -n) for n in range(1, MESSAGES_PER_TURN + 1)]
    assert siblings.egress.take() == [(1, 1), (2, 2), *first, (2, -50)]
    siblings.announce(2, 3)
    assert not siblings.intake.before_sleep()
    assert siblings.intake.take()
    assert siblings.egress.take() == [(2, 3), (1, -MESSAGES_PER_TURN - 1)]
    assert siblings.intake.before_sleep()


def test_a_flood_of_addressed_data_takes_no_room_from_source_data(siblings: Siblings) -> None:
    siblings.add(1)
    siblings.mail(1, *range(1, ADDRESSED.slots + 1))
    assert not siblings.senders[1].send(ME, BatchKind.UNICAST, 1, b"one too many")
    assert siblings.senders[1].send(7, BatchKind.UNICAST, 1, b"to another portal")
    assert siblings.page[Slots.ADDRESSED_REFUSED] == 1
    siblings.announce(1, *range(SOURCE_DATA.slots))
    assert not siblings.writers[1].put(ME, BatchDescriptor(1, 1, 1, 12, 0))
    siblings.intake.take()
    siblings.mail(1, *range(1, MESSAGES_PER_TURN + 1))


def test_of_a_sibling_that_is_gone_all_addressed_data_is_taken(siblings: Siblings) -> None:
    siblings.add(1, polled=False)
    siblings.mail(1, *range(1, 21))
    siblings.intake.remove(1)
    siblings.take_all()
    assert siblings.egress.take() == [(1, -n) for n in range(1, 21)]
