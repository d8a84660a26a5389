"""The sources that a portal hears and has joined: what was reported to siblings, and which get their fragments.

Part of `portals.decisions.core`; it decides nothing: siblings request fragments and get them. A sibling that is down
goes on to get what it wanted: that waits in its queue for its next incarnation, until this one has said what it wants,
or is waited for no longer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from dro.table import Table
from portals.decisions.effects import ChangeForwarding, Effect
from portals.decisions.messages import PortalMessage, SourceGone, SourceSeen

_NUMBER_BITS: Final = 24
NUMBERS: Final = (1 << _NUMBER_BITS) - 1
"""How many handles an incarnation has; with its last eight bits they fill the 32 bits of a `RunTable`."""
BEFORE: Final = 2
"""Older incarnations of a sibling whose wishes are remembered: one that dies again has not asked for all."""


class HeardSources:
    """Handles are unique within an incarnation of the portal."""

    def __init__(
        self, incarnation: int, send_to_all: Callable[[PortalMessage], object], ask: Callable[[Effect], object]
    ) -> None:
        """`send_to_all` sends to all siblings that are up; `ask` asks the shell."""
        self.seen: Table[int, SourceSeen] = Table()  # by handle
        self._forward: Table[int, set[int]] = Table()  # by handle: the siblings that get the fragments
        self._wanted_by: defaultdict[int, Table[int, None]] = defaultdict(
            Table
        )  # handles, by the sibling that wants them
        self._wanted_before: defaultdict[int, list[Table[int, None]]] = defaultdict(list)  # by older incarnations of it
        # unlike those of the incarnation before, so nothing of it can be mistaken for ours
        self._of_incarnation = (incarnation & 0xFF) << _NUMBER_BITS
        self._number = 0  # of the newest handle
        self._kept_ends: list[SourceGone] | None = None
        self._known: Table[bytes, SourceSeen] = Table()  # of an older incarnation, by OTID, not joined yet
        self._known_by: defaultdict[int, Table[int, None]] = defaultdict(
            Table
        )  # handles of these, by the sibling that gets them
        self._send_to_all = send_to_all
        self._ask = ask

    def know(self, worker: int, source: SourceSeen) -> bool:
        """An older incarnation of this portal had the source joined for that sibling; whether it has to be joined.

        As soon as it is, it has the handle that it had, under which the sibling goes on to take its fragments.
        """
        if (seen := self.seen.get(source.handle)) is not None:
            if seen.otid == source.otid:
                self.forward(worker, source.handle, is_wanted=True)
            return False
        is_first = source.otid not in self._known
        if self._known.setdefault(source.otid, source).handle == source.handle:
            self._known_by[worker][source.handle] = None
        return is_first

    def forget_known(self) -> None:
        """What has not been joined by now is not there any more."""
        self._known.clear()
        self._known_by.clear()

    def add(
        self,
        otid: bytes,
        topic: bytes,
        domain_id: int,
        hop_count: int,
        cost: int,
        pass_through: bytes,
        join_info: bytes = b"",
    ) -> int:
        """A source was joined; returns its handle."""
        known = self._known.pop(otid, None)
        workers: list[int] = []
        if known is None or (known.topic, known.domain_id) != (topic, domain_id) or known.handle in self.seen:
            known, handle = None, self._new_handle()
        else:
            handle = known.handle
            workers = [worker for worker, handles in self._known_by.items() if handle in handles]
        how = (hop_count, cost, pass_through, join_info)
        if known is not None and (known.hop_count, known.cost, known.pass_through, known.join_info) == how:
            seen = known
        else:
            seen = SourceSeen(handle, otid, topic, domain_id, *how)
        self.seen[handle] = seen
        self._forward[handle] = set()
        self._send_to_all(seen)
        for worker in workers:
            self.forward(worker, handle, is_wanted=True)
        return handle

    def _new_handle(self) -> int:
        """Choose the next that no source has; after the last number of the incarnation comes its first one again."""
        while True:
            self._number = self._number % NUMBERS + 1
            if (handle := self._of_incarnation | self._number) not in self.seen:
                return handle

    def change(self, handle: int, hop_count: int, cost: int, pass_through: bytes, join_info: bytes = b"") -> None:
        """Take a source whose advertisement differs, or whose cost to reach this portal does."""
        seen = self.seen.get(handle)
        if seen is None:
            return
        now = replace(seen, hop_count=hop_count, cost=cost, pass_through=pass_through, join_info=join_info)
        if now != seen:
            self.seen[handle] = now
            self._send_to_all(now)

    def end(self, handle: int) -> None:
        """The source is gone, or nobody wants it any more."""
        if self.seen.pop(handle, None) is None:
            return
        for worker in self._forward.pop(handle):
            self._wanted_by[worker].pop(handle, None)
        if self._kept_ends is None:
            self._send_to_all(SourceGone(handle))
        else:
            self._kept_ends.append(SourceGone(handle))

    def keep_ends(self) -> None:
        """Keep from the siblings, from now on, which sources end."""
        if self._kept_ends is None:
            self._kept_ends = []

    def end_all(self) -> Iterator[None]:
        """Report the end of every source to the siblings, one by one, also of those that were kept from them."""
        kept, self._kept_ends = self._kept_ends or [], None
        return self._end_all(kept, list(self.seen))

    def _end_all(self, kept: list[SourceGone], handles: list[int]) -> Iterator[None]:
        for gone in kept:
            self._send_to_all(gone)
            yield
        for handle in handles:
            self.end(handle)
            yield

    def forward(self, worker: int, handle: int, *, is_wanted: bool) -> None:
        """A sibling wants the fragments of a source, or no more."""
        workers = self._forward.get(handle)
        if workers is None:
            self._known_by[worker].pop(handle, None)
            return  # the source may have gone while the message was on its way; SourceGone reports it to the sibling
        was_getting = self._gets(worker, handle)  # False for one that is about to be stopped, too
        if is_wanted:
            self._wanted_by[worker][handle] = None
        else:
            for handles in (self._wanted_by[worker], *self._wanted_before[worker]):
                handles.pop(handle, None)
        if is_wanted == (worker in workers) and (was_getting or not is_wanted):
            return
        if is_wanted:
            workers.add(worker)
        else:
            workers.remove(worker)
        self._ask(ChangeForwarding(handle, self.getting(handle)))

    def getting(self, handle: int) -> tuple[int, ...]:
        """List the siblings that get the fragments of a source, but for those that are about to be stopped."""
        return tuple(sorted(worker for worker in self._forward[handle] if self._gets(worker, handle)))

    def _gets(self, worker: int, handle: int) -> bool:
        """Say whether the sibling wants the source, or an incarnation of it that is down did."""
        return handle in self._wanted_by[worker] or any(handle in had for had in self._wanted_before[worker])

    def wanted_before(self, worker: int) -> Iterator[SourceSeen | None]:
        """Sources that older incarnations of the sibling wanted, as they are now, None for one that is gone.

        One may come twice.
        """
        for handle in [handle for handles in self._wanted_before[worker] for handle in handles]:
            yield self.seen.get(handle)

    def keep_wanted(self, worker: int) -> Iterator[None]:
        """The sibling is down: go on to give it what it wanted. Stops, in steps, what too old an incarnation wanted."""
        before = self._wanted_before[worker]
        if had := self._wanted_by.pop(worker, None):
            before.append(had)
        self._known_by.pop(worker, None)
        older, self._wanted_before[worker] = before[:-BEFORE], before[-BEFORE:]
        return self._stop(worker, older)

    def forget_wanted_before(self, worker: int) -> Iterator[None]:
        """Stop, source by source, what the sibling does not want now."""
        return self._stop(worker, self._wanted_before.pop(worker, []))

    def forward_nothing(self) -> None:
        """A handover to all siblings is over: what one of them ends or asks for brings no other its fragments again."""
        self._wanted_by.clear()
        self._wanted_before.clear()

    def _stop(self, worker: int, before: list[Table[int, None]]) -> Iterator[None]:
        for handles in before:
            for handle in handles:
                if not self._gets(worker, handle):
                    self.forward(worker, handle, is_wanted=False)
                yield
