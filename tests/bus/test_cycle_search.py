"""A child looks for reference cycles; all objects of this process are collected when it is worth that."""

from __future__ import annotations

import gc
import weakref

import pytest

from dro.bus.cycle_collector import WORTH_BYTES, CycleCollector
from tests.fakes.um_contexts import Stepper
from tests.rigs.waiting import wait_until


class Cycle:
    def __init__(self, nbytes: int) -> None:
        self.own = self
        self.buffer = b"x" * nbytes


@pytest.mark.parametrize("nbytes", [0, 2 * WORTH_BYTES])
def test_all_is_swept_when_a_child_finds_that_it_is_worth_it(nbytes: int) -> None:
    gc.unfreeze()
    gc.collect()  # other tests may have left something
    stepper = Stepper()
    collector = CycleCollector(stepper.loop)
    collector.start()
    cycle = Cycle(nbytes)
    gone = weakref.ref(cycle)
    del cycle
    gc.freeze()
    collector._swept_ns = -1
    collector._search()
    wait_until(lambda: stepper.loop.run_once(0) or collector._swept_ns >= 0, "the child's answer", 20)
    assert (gone() is None) == bool(nbytes), "a sweep finds all, a child nothing that is its parent's"
    collector.stop()
    stepper.loop.close()
