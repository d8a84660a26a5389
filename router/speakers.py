"""Decide who is believed about another DRO, where several tell of it.

A speaker is the portal by which messages come and, in a TRD, the connection. All speakers pass on what the DRO has
said, so one that is ahead is confirmed by the others. One that is not confirmed, and is then overtaken by the speaker
that was believed before, has spoken for a DRO that has denied it: a DRO that hears its own node id with news answers
with a newer version. Nothing is taken from that speaker about this DRO, for as long as others tell of it.

Ours: ROUTE of itself has no authentication; this is what can be known without `router.authentication`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

from dro.clock import s
from router.route_info import RouteHead
from router.topology import VERSION_MASK

Speaker: TypeAlias = tuple[int, int, int]
"""Worker, and in a TRD address and port of the connection, else 0."""
DOUBTED_NS: Final = s(60)
"""How long a speaker is doubted after it has told what it may not tell."""
SQNS_AHEAD: Final = 64
"""By more, a repeated message is not one that was a little faster."""
_SPEAKERS_MAX: Final = 16


@dataclass(slots=True)
class Speakers:
    """Who tells of a DRO. `current` is the one that is believed."""

    current: Speaker
    displaced: Speaker | None = None
    """It was believed before, and has not told yet what the current one has."""
    _displaced_ns: int = 0
    _is_cut: bool = False  # the current one, so it can confirm nothing
    _claimants: dict[Speaker, None] = field(default_factory=dict)  # that have told something else than `displaced`
    _doubted: dict[Speaker, int] = field(default_factory=dict)  # until when

    def is_doubted(self, speaker: Speaker, now_ns: int) -> bool:
        """Say whether one is doubted; each of its messages makes it longer."""
        key = self._key(speaker)
        if now_ns >= self._doubted.get(key, 0):
            return False
        self._doubted[key] = now_ns + DOUBTED_NS
        return True

    def _key(self, speaker: Speaker) -> Speaker:
        """Make the key of a speaker: in a TRD whoever has that address, unless the one that is believed has it too."""
        return speaker if speaker[:2] == self.current[:2] else (*speaker[:2], 0)

    def on_repeated(self, speaker: Speaker, version: int, known: RouteHead) -> None:
        if speaker == self.displaced and version == known.version:
            self._confirmed()

    def _confirmed(self) -> None:
        self.displaced = None
        self._claimants.clear()

    def on_taken(
        self, speaker: Speaker, head: RouteHead, known: RouteHead, heard_ns: int, now_ns: int, timeout_ns: int
    ) -> bool:
        """`speaker` has told something newer than `known`, of `heard_ns`. The result: the one before has to confirm."""
        if self.displaced is not None and now_ns - self._displaced_ns >= timeout_ns:
            self._confirmed()  # by its silence
        if speaker == self.displaced:
            claimants = list(self._claimants)
            self.current = speaker
            self._confirmed()
            for claimant in claimants:
                self._doubted[self._key(claimant)] = now_ns + DOUBTED_NS
            while len(self._doubted) > _SPEAKERS_MAX:
                del self._doubted[next(iter(self._doubted))]
            return False
        is_jump = head.version != known.version or (head.sqn - known.sqn) & VERSION_MASK > SQNS_AHEAD
        can_confirm = not self._is_cut and now_ns - heard_ns < timeout_ns
        self._is_cut = False
        if speaker != self.current and is_jump and self.displaced is None and can_confirm:
            self.displaced, self._displaced_ns = self.current, now_ns
        if self.displaced is not None and len(self._claimants) < _SPEAKERS_MAX:
            self._claimants[speaker] = None
        self.current = speaker
        return self.displaced is not None and is_jump

    def on_silent(self, speaker: Speaker) -> None:
        """The others tell nothing any more: it is taken at its word."""
        self._doubted.pop(self._key(speaker), None)

    def on_worker_gone(self, worker: int) -> None:
        """What others tell of the DRO need not be confirmed by that portal."""
        if self.displaced is not None and self.displaced[0] == worker:
            self._confirmed()
        if self.current[0] == worker:
            self._is_cut = True
            self._doubted.clear()
