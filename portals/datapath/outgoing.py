"""Outgoing runs of a portal, and their proxy sources.

A proxy source survives a change of its feeder (the sibling that forwards to it, with the handle of the source there),
and keeps its duplicate window.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dro.sqn import MASK
from dro.um.transport.runs import KIND_DATA, Run
from dro.um.transport.session import SenderTransport
from portals.datapath.duplicate_window import DuplicateWindow

COPY_BELOW_SHARE: Final = 4
"""What waits and fills less than this fraction of its buffer is copied, so that it does not keep the rest alive."""


@dataclass(slots=True, eq=False)
class ProxySource:
    """What the data path knows of one proxy source.

    `send_tsni(sqn, now_ns)` sends topic sequence number information; False when the session is blocked.
    """

    otid: bytes
    topic: bytes
    topic_index: int
    transport: SenderTransport
    window: DuplicateWindow
    send_tsni: Callable[[int, int], bool]
    feeder: tuple[int, int] | None = None
    queued: int = 0  # runs that wait
    tsni_waits: bool = False


@dataclass(slots=True)
class OutgoingRun:
    """A run from a sibling, of which the fragments from `first` on are still to be sent."""

    proxy: ProxySource
    worker: int
    buffer: bytearray
    run: Run
    first: int
    is_request: bool

    @property
    def rest(self) -> int:
        """Fragments that are still to be sent."""
        return self.run.fragments - self.first

    def follows(self, other: OutgoingRun) -> bool:
        """Does this run lie right behind one of equal fragments, for the same session? Both are of one descriptor."""
        mine, before = self.run, other.run
        step = mine.length + mine.headroom
        return (
            mine.kind == before.kind == KIND_DATA
            and mine.offset == before.offset + before.fragments * step
            and mine.length == before.length
            and mine.headroom == before.headroom
            and self.proxy.transport is other.proxy.transport
            and (mine.fragments == 1 or mine.stride == step)
            and (before.fragments == 1 or before.stride == step)
        )

    def set_apart(self) -> None:
        """Copy the fragments when they would keep alive a much larger buffer."""
        run, first = self.run, self.first
        count, step = self.rest, run.length + run.headroom
        if count * step * COPY_BELOW_SHARE >= len(self.buffer):
            return
        starts = [run.offset - run.headroom + i * run.stride for i in range(first, run.fragments)]
        self.buffer = bytearray().join([self.buffer[at : at + step] for at in starts])
        sqn = (run.first_sqn + first) & MASK
        self.run = run._replace(first_sqn=sqn, fragments=count, offset=run.headroom, stride=step)
        self.first = 0
