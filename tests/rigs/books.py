"""The counter pages of a running DRO, read from outside, and the identities that they must satisfy."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dro.bus.counters import CounterPage
from dro.metrics.slots import DROP_SLOTS, PairSlot, Slot
from supervisor.host.run_dirs import SHARED_MEMORY, start_time_of

PATIENCE_S: Final = 2.0


@dataclass(frozen=True)
class PairBook:
    """What `ingress` says it handed to `egress`, against what `egress` says became of it; fragments."""

    ingress: int
    egress: int
    handed: int
    refused: int
    accounted: int
    queued: int

    @property
    def on_the_way(self) -> int:
        return self.handed - self.refused - self.accounted - self.queued


class Books:
    """Pages of the portals 1..n of one DRO."""

    def __init__(self, pages: dict[int, CounterPage]) -> None:
        self.pages = pages

    def __getitem__(self, key: tuple[int, Slot]) -> int:
        """Value of a slot of a portal."""
        worker, slot = key
        return self.pages[worker][slot]

    def total(self, slot: Slot) -> int:
        return sum(page[slot] for page in self.pages.values())

    def dropped(self, worker: int) -> dict[str, int]:
        """Fragments dropped at a portal, by reason, refusals of its full channel included."""
        page = self.pages[worker]
        found = {reason: page[slot] for reason, slot in DROP_SLOTS.items()}
        found["would_block"] += sum(pair.refused for pair in self.pairs() if pair.egress == worker)
        return found

    def pairs(self) -> list[PairBook]:
        return [
            PairBook(
                p,
                q,
                page_p[page_p.pair(q) + PairSlot.HANDED],
                page_p[page_p.pair(q) + PairSlot.REFUSED] + page_p[page_p.pair(q) + PairSlot.NO_MEMORY],
                page_q[page_q.pair(p) + PairSlot.ACCOUNTED],
                page_q[page_q.pair(p) + PairSlot.QUEUED],
            )
            for p, page_p in self.pages.items()
            for q, page_q in self.pages.items()
            if p != q
        ]

    def problems(self) -> list[str]:
        """What does not balance, and goes on not to: an idle source's TSNI may pass while the pages are read."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := self._look()) and time.monotonic() < deadline:
            time.sleep(0.02)  # between two looks
        return found

    def _look(self) -> list[str]:
        """What does not balance. Only of use while nothing is on its way, or compared with a bound."""
        found = [f"pair {b}: {b.on_the_way} fragments unaccounted for" for b in self.pairs() if b.on_the_way]
        for worker, page in self.pages.items():
            for step, unit in ((0, "fragments"), (1, "bytes")):
                forwarded, sent = page[Slot.FORWARDED + step], page[Slot.SENT + step]
                dropped = sum(page[slot + step] for slot in DROP_SLOTS.values())
                queued = page[Slot.QUEUED_BYTES] if step else page[Slot.QUEUED]
                if forwarded != sent + dropped + queued:
                    became = f"{sent} sent + {dropped} dropped + {queued} queued"
                    found.append(f"portal {worker}: {forwarded} {unit} forwarded, {became}")
        return found


def _folder_of(pid: int, shm: Path) -> Path:
    (folder,) = shm.glob(f"dro-*-{pid}-{start_time_of(pid)}")
    return folder


@contextmanager
def page_of(pid: int, worker: int, shm: Path = SHARED_MEMORY) -> Iterator[CounterPage]:
    """Open the page of one worker of that DRO."""
    page = CounterPage.open(_folder_of(pid, shm) / f"counters.{worker}", readonly=True)
    try:
        yield page
    finally:
        page.close()


@contextmanager
def books_of(pid: int, portals: int, shm: Path = SHARED_MEMORY) -> Iterator[Books]:
    """Open the pages of the DRO whose parent process is `pid`."""
    folder = _folder_of(pid, shm)
    pages = {k: CounterPage.open(folder / f"counters.{k}", readonly=True) for k in range(1, portals + 1)}
    try:
        yield Books(pages)
    finally:
        for page in pages.values():
            page.close()
