"""Metrics of single topics, for who asks for them and says of how many: `DRO_TOPIC_METRICS`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final

from dro.bus.listing import ProxyRow
from supervisor.samples.exposition import Families
from supervisor.samples.growth import growths

TOPICS_VARIABLE: Final = "DRO_TOPIC_METRICS"
MAX_TOPICS: Final = 10_000

Key = tuple[str, str]  # portal, topic


def topics_wanted(text: str) -> int:
    """Read how many topics may have series, from the environment, 0 when it is empty. Raises: ValueError."""
    count = int(text) if text else 0
    if not 0 <= count <= MAX_TOPICS:
        raise ValueError(f"{count} is not from 0 to {MAX_TOPICS}")
    return count


class TopicMetrics:
    """Counts what portals take to be sent of each topic. Series that exist stay as long as a portal has a proxy source
    of the topic; while there is room, those with the most fragments come in first."""

    def __init__(self, proxies: Callable[[], Iterable[ProxyRow]], limit: int) -> None:
        self._proxies = proxies
        self._limit = limit
        self._seen: dict[Key, dict[str, int]] = {}  # fragments of each source, by OTID
        self._totals: dict[Key, int] = {}  # with those of sources that are gone

    def families(self, dro: str) -> Families:
        """Collect what `/metrics/topics` has."""
        now: defaultdict[Key, dict[str, int]] = defaultdict(dict)
        for row in self._proxies():
            if row.proxy == "source":
                now[row.portal, row.symbol][row.otid] = row.fragments
        for key in [key for key in self._seen if key not in now]:
            del self._seen[key], self._totals[key]
        free = self._limit - len(self._seen)
        new = sorted((key for key in now if key not in self._seen), key=lambda key: (-sum(now[key].values()), key))
        for key in new[:free]:
            self._seen[key], self._totals[key] = {}, 0
        for key, before in self._seen.items():
            self._totals[key] += sum(growths(before, now[key]).values())
            self._seen[key] = now[key]
        found = Families()
        for (portal, topic), total in self._totals.items():
            labels = {"dro": dro, "portal": portal, "topic": topic}
            text = "Fragments of a topic that a portal took to be sent"
            found.add("dro_topic_fragments_total", "counter", text, labels, total)
        text = "Topics of portals that have no series, for want of room"
        found.add("dro_topics_left_out", "gauge", text, {"dro": dro}, len(now) - len(self._seen))
        return found
