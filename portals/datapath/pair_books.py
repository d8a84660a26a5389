"""What a portal has accounted for of a sibling's fragments, as the next incarnation of the portal finds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from dro.bus.counters import CounterPage
from dro.metrics.slots import DROP_SLOTS, PairSlot, Slot

NOTHING_AGAIN: Final = (0, 0)
_ACCOUNTED, _QUEUED = int(PairSlot.ACCOUNTED), int(PairSlot.QUEUED)  # their bytes follow


def books_of(page: CounterPage, worker: int, again: Sequence[int] = NOTHING_AGAIN) -> tuple[int, int]:
    """Return fragments and bytes of the sibling that were ever sent or dropped, or that wait.

    `again`: what was accounted for and comes once more.
    """
    base = page.pair(worker)
    accounted, queued = base + _ACCOUNTED, base + _QUEUED
    return page[accounted] + page[queued] - again[0], page[accounted + 1] + page[queued + 1] - again[1]


def settle_restart(page: CounterPage, waited: Callable[[int], tuple[int, int]]) -> None:
    """Settle what an earlier incarnation of this portal had taken over and queued, which died with it.

    `waited` says what of a sibling's fragments did not. It may have died between two of its entries. The pairs are
    written first, so they are right: what they have and the portal's totals have not is counted as `worker_restart`,
    and what the totals had taken over but nobody had accounted for is taken back, as the sibling's `PortalHello` will
    bring it again.
    """
    accounted = [0, 0]
    for worker in range(page.pair_blocks):
        base = page.pair(worker)
        kept = waited(worker)
        for step in range(2):
            queued = page[base + PairSlot.QUEUED + step]
            page.set(base + PairSlot.QUEUED + step, 0)
            if (lost := queued - kept[step]) > 0:
                page.add(base + PairSlot.ACCOUNTED + step, lost)
                page.add(Slot.DROPPED_RESTART + step, lost)
            accounted[step] += page[base + PairSlot.ACCOUNTED + step]
    for step, total in enumerate(accounted):
        known = page[Slot.SENT + step] + sum([page[slot + step] for slot in DROP_SLOTS.values()])
        if total > known:
            page.add(Slot.DROPPED_RESTART + step, total - known)
        page.set(Slot.FORWARDED + step, max(total, known))


def counted_beyond(page: CounterPage, worker: int, fragments: int, nbytes: int) -> list[int]:
    """Return how many fragments and bytes were accounted for beyond these."""
    base = page.pair(worker)
    return [max(0, page[base + PairSlot.ACCOUNTED] - fragments), max(0, page[base + PairSlot.ACCOUNTED_BYTES] - nbytes)]


def count_again(
    page: CounterPage, worker: int, again: list[int], fragments: int, length: int, dropped: Slot | None
) -> None:
    """Count what the incarnation before had sent, or `dropped`: once, wherever that was killed.

    `again`: how much it had counted of what comes once more; less than that comes then.
    """
    counted = min(fragments, again[0])
    again[0] -= counted
    again[1] -= counted * length
    page.add_sized(Slot.FORWARDED, -counted, -counted * length)
    new, nbytes = fragments - counted, (fragments - counted) * length
    base = page.pair(worker)
    page.add_sized(base + PairSlot.ACCOUNTED, new, nbytes)
    page.add_sized(Slot.SENT if dropped is None else dropped, new, nbytes)
    if dropped is None:
        page.add_sized(base + PairSlot.SENT, new, nbytes)
