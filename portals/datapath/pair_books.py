"""What a portal has accounted for of a sibling's fragments, as the next incarnation of the portal finds it."""

from __future__ import annotations

from dro.bus.counters import CounterPage
from dro.metrics.slots import PairSlot


def books_of(page: CounterPage, worker: int) -> tuple[int, int]:
    """Return fragments and bytes of the sibling that were ever sent or dropped, or that wait."""
    base = page.pair(worker)
    return (
        page[base + PairSlot.ACCOUNTED] + page[base + PairSlot.QUEUED],
        page[base + PairSlot.ACCOUNTED_BYTES] + page[base + PairSlot.QUEUED_BYTES],
    )


def go_back(page: CounterPage, worker: int, fragments: int, nbytes: int) -> int:
    """Take back what was accounted for beyond these; returns how many fragments that is."""
    base = page.pair(worker)
    accounted, accounted_bytes = page[base + PairSlot.ACCOUNTED], page[base + PairSlot.ACCOUNTED_BYTES]
    page.set(base + PairSlot.ACCOUNTED, min(accounted, fragments))
    page.set(base + PairSlot.ACCOUNTED_BYTES, min(accounted_bytes, nbytes))
    return max(0, accounted - fragments)
