"""Source-side filtering, the receiving half: what one connection has still to ask its source for.

State: topics (by index) that are wanted, which of them are still to be asked for, which are wanted no more, and how
many requests are on their way. Made when the source has offered to filter; the shell sends what `take` returns, each
as a unicast message, and reports what has become of it. So many are on their way at most that they find room in the
buffer of a connection; the others follow when all of them have left.

    wanted          include, at once
    not wanted      exclude, `EXCLUDE_AFTER_NS` later, unless it is wanted again before
    not sent        again, `RETRY_NS` later
    all             again, every `REPEAT_NS`: nobody answers, so one that got lost with a connection is not noticed

Source: wire notes LBMC, 5.3. Guess: the times. Topics are asked for whichever default the offer names: that of the
public dissector may be meant the other way round, and a source that sends them anyway loses nothing.
"""

from __future__ import annotations

from typing import Final

from dro.clock import ms, s
from dro.proto.tcp.filters import EXCLUDE, INCLUDE
from dro.wire.lbmc.data_blocks import SsfCreq, SsfInit

EXCLUDE_AFTER_NS: Final = ms(500)
"""A receiver that is closed and opened again at once misses nothing, which would count as loss."""
RETRY_NS: Final = s(1)
REPEAT_NS: Final = s(60)
AT_ONCE: Final = 1000
"""20 kB, with their headers."""


class FilterRequests:
    """See the module text."""

    __slots__ = ("_leaving", "_new", "_repeat_ns", "_rest_ns", "_wanted", "offer", "on_way")

    def __init__(self, offer: SsfInit, now_ns: int) -> None:
        self.offer = offer
        self._wanted: dict[int, None] = {}
        self._repeat_ns = now_ns + REPEAT_NS
        self._new: dict[int, None] = {}
        self._leaving: dict[int, int] = {}  # and when that is to be said, or a little later
        self._rest_ns = 0
        self.on_way = 0

    def want(self, topic_index: int) -> None:
        """A source of the session was joined."""
        self._wanted[topic_index] = self._new[topic_index] = None
        self._leaving.pop(topic_index, None)

    def unwant(self, topic_index: int, now_ns: int) -> None:
        """A source of the session was left."""
        del self._wanted[topic_index]
        self._new.pop(topic_index, None)
        self._leaving[topic_index] = now_ns + EXCLUDE_AFTER_NS

    def next_deadline(self) -> int | None:
        if self.on_way or not (self._wanted or self._leaving):
            return None
        due_ns = 0 if self._new else self._repeat_ns
        return max(self._rest_ns, min(due_ns, next(iter(self._leaving.values()), due_ns)))

    def take(self, now_ns: int) -> list[SsfCreq]:
        """Take what is to be sent now."""
        due_ns = self.next_deadline()
        if due_ns is None or due_ns > now_ns:
            return []
        if now_ns >= self._repeat_ns:
            self._repeat_ns = now_ns + REPEAT_NS
            self._new |= self._wanted
        modes = [(INCLUDE, index) for index in self._new]
        modes += [(EXCLUDE, index) for index, at_ns in self._leaving.items() if at_ns <= now_ns]
        offer = self.offer
        taken = [SsfCreq(mode, offer.transport_index, index, offer.client_index) for mode, index in modes[:AT_ONCE]]
        for request in taken:
            del (self._new if request.mode == INCLUDE else self._leaving)[request.topic_index]
        self.on_way = len(taken)
        return taken

    def on_outcome(self, request: SsfCreq, now_ns: int, *, is_sent: bool) -> None:
        """One of the requests has left, or has failed."""
        self.on_way -= 1
        if is_sent:
            return
        self._rest_ns = now_ns + RETRY_NS
        index, is_wanted = request.topic_index, request.topic_index in self._wanted
        if request.mode == INCLUDE and is_wanted:
            self._new[index] = None
        elif request.mode == EXCLUDE and not is_wanted:
            self._leaving[index] = now_ns
