"""The growth of counters between two readings, also of those that began anew meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dro.metrics.slots import Slot
from supervisor.admin.status import PortalStatus
from supervisor.samples.growth import growth, growth_of_portal, growths

BEFORE = PortalStatus("P1", "endpoint", "ready", 1, 1, 3, {"SENT": 10, "DROPPED_BLOCKED": 4, "DROPPED_SIZE": 9})
AFTER = replace(BEFORE, state="draining", counters={"SENT": 25, "DROPPED_BLOCKED": 5, "DROPPED_SIZE": 2})


@pytest.mark.parametrize(("before", "now", "step"), [(5, 12, 7), (5, 5, 0), (0, 5, 5), (12, 5, 5), (12, 0, 0)])
def test_a_counter_that_fell_has_counted_from_0(before: int, now: int, step: int) -> None:
    assert growth(before, now) == step
    assert growth(before / 2, now / 2) == step / 2


def test_a_counter_that_was_not_there_has_counted_from_0_and_one_that_left_is_left_out() -> None:
    assert growths({"a": 5, "b": 5, "left": 5}, {"a": 7, "b": 4, "new": 3}) == {"a": 2, "b": 4, "new": 3}


def test_growth_of_a_portal_is_that_of_each_counter() -> None:
    grown = growth_of_portal(BEFORE, AFTER)
    assert (grown.name, grown.state, grown.index) == ("P1", "draining", 3)
    assert (grown[Slot.SENT], grown.dropped_total) == (15, 1 + 2)


def test_a_portal_with_another_index_has_counted_from_0() -> None:
    again = replace(AFTER, index=4)
    assert growth_of_portal(BEFORE, again) == again
