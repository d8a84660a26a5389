"""Which unicast messages were seen before: by stream, that is context instance, stream id and sequence number.

State: for each stream the highest sequence number and which of those below it came. A stream from which nothing new has
come for `FORGET_NS` is forgotten, the one silent for longest first when there are too many. Source: DRO guide 5.4.2
("duplicate unicast messages"); peer link notes, section 11. Guess: the size of the window; a number below it counts as
seen.
"""

from __future__ import annotations

from typing import Final

from dro.clock import s
from dro.sqn import ahead as sqn_ahead

WINDOW: Final = 1024
STREAMS_MAX: Final = 16_384
FORGET_NS: Final = s(30)
_BITS: Final = (1 << WINDOW) - 1

Stream = tuple[bytes, int]
"""Context instance and stream id."""


class SeenStreams:
    """See the module text."""

    def __init__(self, streams_max: int = STREAMS_MAX) -> None:
        self._streams_max = streams_max
        # highest sqn, which of it and those below came (bit 0: the highest), when the last new one came
        self._streams: dict[Stream, tuple[int, int, int]] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def is_new(self, stream: Stream, sqn: int, now_ns: int) -> bool:
        """Whether the message was not seen; it is from now on."""
        known = self._streams.get(stream)
        if known is not None and now_ns - known[2] >= FORGET_NS:
            known = None
        if known is None:
            highest, came = sqn, 1
        else:
            highest, came = known[0], known[1]
            ahead = sqn_ahead(sqn, highest)
            if ahead > 0:
                highest, came = sqn, (came << min(ahead, WINDOW) | 1) & _BITS
            elif -ahead >= WINDOW or came >> -ahead & 1:
                return False
            else:
                came |= 1 << -ahead
        self._streams.pop(stream, None)
        self._streams[stream] = (highest, came, now_ns)
        if len(self._streams) > self._streams_max:
            del self._streams[next(iter(self._streams))]
        return True

    def forget_old(self, now_ns: int) -> None:
        """Streams that have been silent; to be called from time to time."""
        while self._streams:
            stream, (_, _, new_ns) = next(iter(self._streams.items()))
            if now_ns - new_ns < FORGET_NS:
                return
            del self._streams[stream]
