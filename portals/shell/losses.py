"""The last losses that nobody can repair, as episodes: what a portal tells operators of them.

State: at most `EPISODES_MAX` episodes. Losses of one transport session for one cause that follow each other within
`APART_NS` are one episode.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from dro.bus.listing import TOPICS_MAX, LossRow
from dro.clock import NS_PER_S
from dro.proto.context.sources import BoundSource
from portals.shell.matchers import shown

EPISODES_MAX: Final = 200
APART_NS: Final = NS_PER_S


@dataclass(slots=True, eq=False)
class _Episode:
    source: str
    cause: str
    topics: tuple[bytes, ...]
    otid: str
    began_s: float
    ended_s: float
    ended_ns: int
    lost: int


class Losses:
    """Keeps those of one portal."""

    def __init__(self, wall_s: Callable[[], float] = time.time) -> None:
        """`wall_s`: the time since 1970."""
        self._wall_s = wall_s
        self._episodes: deque[_Episode] = deque()
        self._newest: dict[tuple[str, str], _Episode] = {}  # by source and cause

    def on_lost(self, source: str, carried: Collection[BoundSource[Any]], lost: int, cause: str, now_ns: int) -> None:
        """Take in how many datagrams of a session are lost. `source`: its source string; `carried`: its sources."""
        found = self._newest.get((source, cause))
        if found is not None and now_ns - found.ended_ns <= APART_NS:
            found.lost += lost
            found.ended_ns, found.ended_s = now_ns, round(self._wall_s(), 3)
            return
        if len(self._episodes) == EPISODES_MAX:
            oldest = self._episodes.popleft()
            if self._newest.get((oldest.source, oldest.cause)) is oldest:
                del self._newest[oldest.source, oldest.cause]
        topics = tuple(dict.fromkeys([one.topic for one in islice(carried, TOPICS_MAX)]))
        otid = next(iter(carried)).otid.hex() if len(carried) == 1 else ""
        at_s = round(self._wall_s(), 3)
        episode = _Episode(source, cause, topics, otid, at_s, at_s, now_ns, lost)
        self._episodes.append(episode)
        self._newest[source, cause] = episode

    def rows(self, portal: str, text: bytes) -> Iterator[LossRow | None]:
        """List those whose topics have the text in them, the oldest first."""
        for one in tuple(self._episodes):
            if text and not any(text in topic for topic in one.topics):
                yield None
                continue
            topics = tuple(map(shown, one.topics))
            yield LossRow(portal, one.source, one.began_s, one.ended_s, one.lost, one.cause, topics, one.otid)
