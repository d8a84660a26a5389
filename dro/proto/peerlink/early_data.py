"""Data that comes by UDP before the SOURCE message that goes by TCP: kept for a moment, in order, source by source.

State: messages of unknown sources, bounded in bytes and time. Guess: all of it; the notes say only that data of a
source that was never told is dropped and counted. As datagrams are repaired while TCP goes on, a source that has ended
lingers likewise: what was sent before its end may still come.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dro.clock import ms, s
from dro.sqn import HALF, MASK

HOLD_NS: Final = s(2)
HOLD_BYTES: Final = 4 << 20
LINGER_NS: Final = ms(500)
"""At least, after SOURCE END: the last datagrams may be found missing by the next session message only."""
CHECK_NS: Final = ms(50)


class EarlyData:
    """See the module text."""

    def __init__(self) -> None:
        self._dropped: list[bytes] = []
        self._by_source: dict[int, tuple[int, list[bytes], int]] = {}  # oldest first: since when, what, and a floor
        self._bytes = 0

    def floor_of(self, number: int) -> int:
        """Return the `floor` of `put` of the first message of that source; 0 when there is none."""
        return self._by_source[number][2] if number in self._by_source else 0

    @property
    def floor(self) -> int | None:
        """The oldest of all; None when there is nothing."""
        return min((floor for _, _, floor in self._by_source.values()), default=None)

    def put(self, number: int, message: bytes, now_ns: int, floor: int = 0) -> None:
        """A message of an unknown source; the oldest sources are dropped when there is too much.

        `floor`: so many datagrams certainly came before that of the message.
        """
        self._by_source.setdefault(number, (now_ns, [], floor))[1].append(message)
        self._bytes += len(message)
        while self._bytes > HOLD_BYTES:
            self._drop()

    def take(self, number: int) -> list[bytes]:
        """The source was told."""
        if number not in self._by_source:
            return []
        _, messages, _ = self._by_source.pop(number)
        self._bytes -= sum(map(len, messages))
        return messages

    def next_deadline(self) -> int | None:
        return next((since + HOLD_NS for since, _, _ in self._by_source.values()), None)

    def on_timer(self, now_ns: int) -> None:
        while (due_ns := self.next_deadline()) is not None and due_ns <= now_ns:
            self._drop()

    def drop_all(self) -> None:
        """No source is told any more."""
        while self._by_source:
            self._drop()

    def take_dropped(self) -> list[bytes]:
        """Messages that were dropped since the last call."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def _drop(self) -> None:
        self._dropped += self.take(next(iter(self._by_source)))


@dataclass(slots=True)
class _Ended:
    number: int
    due_ns: int
    end_ns: int  # not whole then: it goes all the same
    mark: int | None = None  # sqn before which nothing may be missing, once `due_ns` was over


class LingeringSources:
    """Sources that have ended: each goes when what was on its way has come, or is given up."""

    def __init__(self, generation_ns: int) -> None:
        self._generation_ns = generation_ns
        self._by_otid: dict[bytes, _Ended] = {}

    def on_end(self, otid: bytes, number: int, now_ns: int) -> None:
        due_ns = now_ns + LINGER_NS
        self._by_otid[otid] = _Ended(number, due_ns, due_ns + self._generation_ns)

    def take(self, otid: bytes) -> int | None:
        """The source is offered anew: the number that is to be removed now."""
        found = self._by_otid.pop(otid, None)
        return None if found is None else found.number

    def all(self) -> list[int]:
        """Their numbers."""
        return [ended.number for ended in self._by_otid.values()]

    def next_deadline(self) -> int | None:
        return min([ended.due_ns for ended in self._by_otid.values()], default=None)

    def pop_due(self, now_ns: int, expected: int, contiguous: int) -> list[int]:
        """Numbers to be removed. `expected` comes next, and nothing is missing up to `contiguous`."""
        gone = []
        for otid, ended in list(self._by_otid.items()):
            if now_ns < ended.due_ns:
                continue
            if ended.mark is None:
                ended.mark = expected
            if now_ns >= ended.end_ns or (contiguous + 1 - ended.mark) & MASK < HALF:
                del self._by_otid[otid]
                gone.append(ended.number)
            else:
                ended.due_ns = now_ns + CHECK_NS
        return gone
