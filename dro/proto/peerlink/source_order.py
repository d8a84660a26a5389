"""Data of a link with `<udp>` in the order of its sources: what follows something missing waits until that has come.

A source waits only while a datagram is missing and its own sqns have a gap; others go on. What was given up is passed
over. State: for each source the next sqn, and messages that wait, bounded in bytes; then the source that waits longest
goes on without what it lacks. Guess: all of it. Receivers of LBT-RM would put fragments in order themselves, those of
TCP take a gap for a loss, so a link keeps the order as TCP does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dro.sqn import MASK, ahead

WAIT_BYTES: Final = 16 << 20
_SPARE: Final = 1024
"""Sources that may be remembered beyond those that there are."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    mark: int  # the newest datagram that was known by then
    message: bytes
    floor: int


class SourceOrder:
    """The order of sources on one connection. Messages are records of the shell, which are not looked into."""

    def __init__(self) -> None:
        self._next: dict[int, int] = {}
        self._waiting: dict[int, dict[int, _Waiting]] = {}  # by source, longest first, and sqn
        self._bytes = 0
        self._released: int | None = None

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def floor(self) -> int | None:
        """The oldest `floor` of `put` of what waits."""
        return min((next(iter(waiting.values())).floor for waiting in self._waiting.values()), default=None)

    def note(self, numbers: Iterable[int], behind: Iterable[int], known: Mapping[int, object]) -> None:
        """Data that went on as it came, while nothing waited or was missing: sources, and the sqn behind each run."""
        self._next.update(zip(numbers, behind, strict=True))
        if len(self._next) > 2 * len(known) + _SPARE:
            self._next = {number: sqn for number, sqn in self._next.items() if number in known}

    def put(self, number: int, sqn: int, message: bytes, newest: int, floor: int = 0) -> list[bytes]:
        """One message, while a datagram is missing or has come late; what goes on because of it, in order.

        `newest`: number of the newest datagram. `floor`: so many datagrams certainly came before that of the message.
        """
        following, waiting = self._next.get(number), self._waiting.get(number)
        lead = 1 if following is None else ahead(sqn, following)
        if lead > 0:
            waiting = self._waiting.setdefault(number, {})
            if sqn not in waiting:
                waiting[sqn] = _Waiting(newest, message, floor)
                self._bytes += len(message)
            if newest == self._released:
                self._released = None
            return []
        if lead < 0:
            return [message]
        self._next[number] = sqn + 1 & MASK
        return [message] if waiting is None else [message, *self._flush(number)]

    def is_known_already(self, number: int, sqn: int) -> bool:
        """Say whether a TSNI with that sqn is ahead of what has gone on, and would make a loss of what is only late."""
        following = self._next.get(number)
        return following is None or ahead(sqn, following) >= 0

    def release(self, contiguous: int) -> list[bytes]:
        """Return what goes on as no datagram is missing up to that number, or as too much waits."""
        out: list[bytes] = []
        if contiguous != self._released:
            self._released = contiguous
            for number in list(self._waiting):
                out += self._release(number, contiguous)
        while self._bytes > WAIT_BYTES:
            out += self._release(next(iter(self._waiting)), None)
        return out

    def release_all(self) -> list[bytes]:
        """Release all that waits: nothing more comes."""
        return [message for number in list(self._waiting) for message in self._release(number, None)]

    def _release(self, number: int, contiguous: int | None) -> list[bytes]:
        waiting = self._waiting[number]
        due = [sqn for sqn, one in waiting.items() if contiguous is None or ahead(contiguous, one.mark) >= 0]
        if not due:
            return []
        first = due[0]
        due.sort(key=lambda sqn: ahead(sqn, first))
        out = [self._take(waiting, sqn) for sqn in due]
        following, behind = self._next.get(number), due[-1] + 1 & MASK
        if following is None or ahead(behind, following) > 0:
            self._next[number] = behind
        return out + self._flush(number)

    def _flush(self, number: int) -> list[bytes]:
        """Take out what follows without a gap."""
        waiting, out = self._waiting[number], []
        sqn = self._next[number]
        while sqn in waiting:
            out.append(self._take(waiting, sqn))
            sqn = sqn + 1 & MASK
        self._next[number] = sqn
        if not waiting:
            del self._waiting[number]
        return out

    def _take(self, waiting: dict[int, _Waiting], sqn: int) -> bytes:
        message = waiting.pop(sqn).message
        self._bytes -= len(message)
        return message
