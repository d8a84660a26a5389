"""The merged stream of hot failover: numbers, gaps, waits, generations, and a model of sources that lose messages."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.clock import NS_PER_S, s
from dro.proto.stream import failover as core
from dro.proto.stream.failover import FailoverConfig, FailoverStream, Merged, NumbersLost, NumbersReset
from dro.wire.lbmc.failover import HotFailover

WAIT = FailoverConfig().wait_ns


class Rig:
    """A merged stream with the sources A and B, or as many as are named; items are numbers."""

    def __init__(self, sources: str = "AB", **config: object) -> None:
        self.stream: FailoverStream[object] = FailoverStream(FailoverConfig(**config))  # type: ignore[arg-type]
        self.now = NS_PER_S
        for source in sources:
            self.stream.on_source(source, added=True, now_ns=self.now)

    def send(self, source: str, *numbers: int, whole: bool = True, **more: object) -> list[object]:
        for number in numbers:
            made = HotFailover(number, **more)  # type: ignore[arg-type]
            self.stream.on_message(source, made, f"{source}{number}", 10, self.now, is_whole=whole)
        return self.told()

    def reset(self, source: str, generation: int = 1) -> list[object]:
        self.stream.on_message(source, HotFailover(None, generation=generation), "", 0, self.now)
        return self.told()

    def leave(self, source: str) -> list[object]:
        self.stream.on_source(source, added=False, now_ns=self.now)
        return self.told()

    def wait(self, ns: int = WAIT) -> list[object]:
        self.now += ns
        deadline = self.stream.next_deadline()
        if deadline is not None and deadline <= self.now:
            self.stream.on_timer(self.now)
        return self.told()

    def told(self) -> list[object]:
        """Messages as their text, "=" before duplicates; losses as (first, count)."""
        found: list[object] = []
        for event in self.stream.take_events():
            match event:
                case Merged(item=item, is_duplicate=is_duplicate):
                    found.append(f"={item}" if is_duplicate else item)
                case NumbersLost(first=first, count=count):
                    found.append((first, count))
                case NumbersReset(source=source):
                    found.append(f"reset {source}")
        return found


def test_each_number_comes_from_the_source_that_is_first() -> None:
    rig = Rig()
    assert rig.send("A", 5, 6) == ["A5", "A6"]
    assert rig.send("B", 5, 6, 7) == ["B7"]
    assert rig.send("A", 7, 8) == ["A8"]
    assert rig.stream.stats.duplicates == 3


def test_duplicates_are_handed_up_when_they_are_wanted() -> None:
    rig = Rig(duplicate_delivery=True)
    assert rig.send("A", 1) + rig.send("B", 1) == ["A1", "=B1"]


def test_what_one_source_lost_comes_from_another() -> None:
    rig = Rig()
    rig.send("A", 1)
    rig.send("B", 1)
    rig.stream.on_lost("A")
    assert rig.send("A", 3) == []
    assert rig.stream.next_deadline() == rig.now + WAIT
    assert rig.send("B", 2, 3) == ["B2", "A3"]
    assert rig.stream.next_deadline() is None


def test_an_intentional_gap_is_settled_when_all_have_passed_it() -> None:
    rig = Rig()
    rig.send("A", 1)
    rig.send("B", 1)
    assert rig.send("A", 1000) == []
    assert rig.send("B", 1000) == ["A1000"]
    assert rig.stream.stats.intended == 998


def test_one_source_alone_is_never_waited_for() -> None:
    rig = Rig("A")
    assert rig.send("A", 1, 7) == ["A1", "A7"]


def test_a_source_that_leaves_is_waited_for_no_longer() -> None:
    rig = Rig()
    rig.send("A", 1)
    rig.send("B", 1)
    assert rig.send("A", 3) == []
    assert rig.leave("B") == ["A3"]


def test_what_all_have_lost_is_reported_with_its_number() -> None:
    rig = Rig()
    rig.send("A", 1)
    rig.send("B", 1)
    rig.stream.on_lost("A")
    assert rig.send("A", 4) == []
    rig.stream.on_lost("B")
    assert rig.send("B", 4) == [(2, 2), "A4"]
    assert rig.stream.stats.lost == 2


def test_a_number_that_one_source_skipped_on_purpose_is_not_lost() -> None:
    rig = Rig()
    rig.send("A", 10)
    rig.send("B", 10)
    rig.stream.on_lost("A")
    assert rig.send("A", 30) == []
    assert rig.send("B", 20, 30) == ["B20", "A30"]
    assert rig.stream.stats.lost == 0


def test_the_wait_for_a_silent_source_ends() -> None:
    rig = Rig(wait_ns=s(3))
    rig.send("A", 1)
    rig.stream.on_lost("A")
    assert rig.send("A", 3) == []
    assert rig.wait(s(3) - 1) == []
    assert rig.wait(1) == [(2, 1), "A3"]
    assert rig.send("B", 2) == []  # too late


def test_messages_beside_a_gap_come_in_arrival_order() -> None:
    rig = Rig(is_in_order=False)
    rig.send("A", 1)
    rig.send("B", 1)
    assert rig.send("A", 3, whole=False) == ["A3"]
    assert rig.send("B", 3) == []
    assert rig.send("A", 2) == ["A2"]
    assert rig.send("B", 4) == ["B4"]
    assert (rig.stream.stats.lost, rig.stream.stats.duplicates) == (0, 2)


def test_loss_in_arrival_order_is_reported_when_nobody_may_have_it() -> None:
    rig = Rig("A", is_in_order=False)
    rig.send("A", 1)
    assert rig.send("A", 3, whole=False) == ["A3"]
    rig.stream.on_lost("A")
    assert rig.send("A", 4) == ["A4", (2, 1)]


def test_optional_messages_are_left_out_but_count() -> None:
    rig = Rig("A", optional_messages=False)
    assert rig.send("A", 1) + rig.send("A", 2, is_optional=True) + rig.send("A", 3) == ["A1", "A3"]
    assert rig.stream.stats.intended == 0


@pytest.mark.parametrize("bits", [32, 64])
def test_numbers_wrap(bits: int) -> None:
    rig = Rig("A")
    last = (1 << bits) - 1
    assert rig.send("A", last - 1, last, 0, 1, bits=bits) == [f"A{last - 1}", f"A{last}", "A0", "A1"]
    assert rig.send("A", last, bits=bits) == []


def test_a_jump_beyond_the_largest_gap_gives_up_all_before() -> None:
    rig = Rig()
    rig.send("A", 0)
    rig.send("B", 0)
    far = core.GAP_MAX + 4
    assert rig.send("A", 2) == []
    assert rig.send("A", far) == ["A2", (3, core.GAP_MAX + 1), f"A{far}"]


def test_a_reset_begins_anew_once_for_all_sources() -> None:
    rig = Rig()
    rig.send("A", 8, 9)
    rig.send("B", 8)
    assert rig.reset("A") == ["reset A"]
    assert rig.send("A", 0, generation=1) == ["A0"]
    assert rig.send("B", 9) == []  # of the numbers that are over
    assert rig.reset("B") == []
    assert rig.send("B", 0, 1, generation=1) == ["B1"]
    assert rig.send("A", 1, 2, generation=1) == ["A2"]
    assert rig.stream.stats.outdated == 1


def test_a_reset_that_is_lost_shows_in_what_comes_after() -> None:
    rig = Rig()
    rig.send("A", 8)
    assert rig.send("A", 0, generation=1) == ["reset A", "A0"]


def test_a_reset_hands_up_what_is_held() -> None:
    rig = Rig()
    rig.send("A", 1)
    rig.send("B", 1)
    rig.stream.on_lost("A")
    rig.send("A", 3)
    assert rig.reset("A") == [(2, 1), "A3", "reset A"]


def test_a_source_that_is_found_later_is_in_the_generation_of_the_others() -> None:
    rig = Rig("A")
    rig.send("A", 1, generation=7)
    rig.reset("A", 8)
    rig.stream.on_source("B", added=True, now_ns=rig.now)
    assert rig.send("A", 1, generation=8) == ["A1"]
    assert rig.send("B", 1, 2, generation=0) == ["B2"]
    rig.stream.on_source("C", added=True, now_ns=rig.now)
    assert rig.reset("C", 1) == []
    assert rig.send("C", 3, generation=1) == ["C3"]


def test_the_source_that_is_left_is_never_outdated() -> None:
    rig = Rig()
    rig.send("A", 1)
    rig.send("B", 1)
    rig.reset("A")
    rig.leave("A")
    assert rig.send("B", 2) == ["B2"]


def test_more_than_may_be_held_gives_up_the_oldest_gap() -> None:
    rig = Rig(map_limit=3)
    rig.send("A", 0)
    rig.send("B", 0)
    rig.stream.on_lost("A")
    assert rig.send("A", 2, 3, 4) == []
    assert rig.send("A", 5) == [(1, 1), "A2", "A3", "A4", "A5"]


@dataclass
class Copy:
    """One source of the model: what of 0 to n - 1 it lost, and how far it has come."""

    name: str
    lost: frozenset[int]
    at: int = 0
    has_lost: bool = False
    carried: set[int] = field(default_factory=set)


STEPS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 6)), max_size=60)
LOSSES = st.lists(st.frozensets(st.integers(1, 39), max_size=15), min_size=3, max_size=3)
ENDS = st.lists(st.none() | st.integers(0, 40), min_size=3, max_size=3)


@given(losses=LOSSES, steps=STEPS, ends=ENDS, stride=st.sampled_from([1, 3]), in_order=st.booleans())
def test_each_number_once_and_no_gap_that_a_source_could_fill(
    losses: list[frozenset[int]], steps: list[tuple[int, int]], ends: list[int | None], stride: int, *, in_order: bool
) -> None:
    """Three sources send numbers 0, 1, 2, ... or 0, 3, 6, ... at their own pace, lose some, and go on elsewhere."""
    rig = Rig("012", is_in_order=in_order)
    copies = [Copy(str(which), lost) for which, lost in enumerate(losses)]
    told: list[object] = []

    def advance(which: int, count: int) -> None:
        copy = copies[which]
        for _ in range(count):
            if copy.at == ends[which]:
                ends[which] = None
                rig.stream.on_source("abc"[which], added=True, now_ns=rig.now)
                told.extend(rig.leave(copy.name))
                copy.name = "abc"[which]
            if copy.at == 40:
                return
            if copy.at in copy.lost:
                copy.has_lost = True
            else:
                if copy.has_lost:
                    rig.stream.on_lost(copy.name)
                    copy.has_lost = False
                copy.carried.add(copy.at)
                told.extend(rig.send(copy.name, copy.at * stride))
            copy.at += 1

    for which in range(3):  # all have begun
        advance(which, 1)
    for which, count in steps:
        advance(which, count)
    for which in range(3):
        advance(which, 40)
    told.extend(rig.wait())
    numbers = [int(str(event)[1:]) // stride for event in told if isinstance(event, str)]
    assert len(numbers) == len(set(numbers))
    assert set(numbers) == set().union(*(copy.carried for copy in copies))
    if in_order:
        assert numbers == sorted(numbers)
    lost = {number for event in told if isinstance(event, tuple) for number in range(event[0], sum(event))}
    assert not lost & {number * stride for number in numbers}
    assert lost >= {number * stride for number in range(max(numbers)) if number not in numbers}
