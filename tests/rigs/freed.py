"""What is there of the program, for tests of what is freed: the collector of cycles is off in them."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tests.rigs.census import OURS


@contextmanager
def collector_off() -> Iterator[None]:
    """Only reference counting frees anything meanwhile."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def living(*kinds: type) -> Counter[str]:
    """How many there are of each kind, also where nobody refers to them but they to each other.

    A list of all objects, as compiled classes know no weak references.
    """
    return Counter(type(thing).__name__ for thing in gc.get_objects() if type(thing) in kinds)


def only_in_cycles() -> Counter[str]:
    """Objects of the program's classes that a collection finds, and frees, now."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        kinds = map(type, gc.garbage)
        return Counter(kind.__name__ for kind in kinds if str(kind.__module__).partition(".")[0] in OURS)
    finally:
        gc.garbage.clear()
        gc.set_debug(0)
        gc.collect()
