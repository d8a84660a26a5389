"""Lists of an endpoint portal for operators: topics, sources, interest and proxies.

Each list begins with the keys that exist at that moment; those removed before their row is built are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dro.bus.actor import WorkerContext
from dro.bus.listing import BLOCKED, LOSSES, TOPIC, BlockedRow, LossRow, Row, SourceRow, TopicRow
from dro.clock import NS_PER_S
from dro.proto.resolver.cache import CachedSource
from dro.table import Table
from dro.um.fragment.context import FragmentContext
from dro.um.fragment.own_source import FragmentSource
from dro.wire.source_string import format_source
from portals.datapath.egress import Egress
from portals.datapath.outgoing import ProxySource
from portals.decisions.core import PortalCore
from portals.decisions.messages import PATTERN_NONE
from portals.shell.listing import (
    asked_by_patterns,
    interest_rows,
    one_topic,
    proxy_rows,
    serve,
    some_topics,
    topic_row,
)
from portals.shell.losses import Losses
from portals.shell.matchers import Matchers, shown


@dataclass(frozen=True, slots=True)
class PortalLists:
    """Registers itself with the worker."""

    ctx: WorkerContext
    domain_id: int
    core: PortalCore
    receiving: FragmentContext
    matchers: Matchers
    proxies: Table[bytes, tuple[FragmentSource, ProxySource]]  # by OTID
    egress: Egress
    losses: Losses

    def __post_init__(self) -> None:
        serve(
            self.ctx,
            {
                "topics": self._topics,
                "sources": self._sources,
                "interest": lambda text: interest_rows(self.core, self.ctx.name, self.domain_id, text),
                "proxies": lambda text: proxy_rows(self.ctx, self.core, self.proxies, _shown, text),
                TOPIC: self._one_topic,
                BLOCKED: self._blocked,
                LOSSES: self._lost,
            },
        )

    def _one_topic(self, topic: bytes) -> Iterator[Row | None]:
        return one_topic(self._topic(topic), asked_by_patterns(self.core, topic, self.matchers))

    def _topics(self, text: bytes) -> Iterator[Row | None]:
        """List topics heard in the TRD, wanted there, asked for there, or offered by siblings."""
        core, cache = self.core, self.receiving.resolver.cache
        for topic in cache.topics():
            yield self._topic(topic) if text in topic else None
        for topic, pattern in core.recorded.domains.snapshot():
            is_listed = pattern != PATTERN_NONE or cache.source_count(topic)
            yield None if is_listed or text not in topic else self._topic(topic)
        for key in core.proxy_receivers.snapshot():
            is_listed = key[1] != PATTERN_NONE or key in core.recorded.domains or cache.source_count(key[0])
            yield None if is_listed or text not in key[0] else self._topic(key[0])
        for topic in core.siblings.by_topic.snapshot():
            key = (topic, PATTERN_NONE)
            is_listed = key in core.recorded.domains or key in core.proxy_receivers or cache.source_count(topic)
            yield None if is_listed or text not in topic else self._topic(topic)

    def _topic(self, topic: bytes) -> TopicRow:
        cache, otids = self.receiving.resolver.cache, self.receiving.resolver.cache.otids(topic)
        joined = sum(cache.joined(topic, otid) is not None for otid in otids)
        proxies = sum(otid in self.proxies for otid in self.core.siblings.by_topic.get(topic, ()))
        return topic_row(self.core, self.ctx.name, topic, len(otids), joined, proxies)

    def _sources(self, text: bytes) -> Iterator[Row | None]:
        for entry in self.receiving.resolver.cache.entries():
            is_there = self.receiving.resolver.cache.get(entry.key) is entry
            yield self._source(entry) if is_there and text in entry.key[0] else None

    def _source(self, entry: CachedSource) -> SourceRow:
        topic, address, topic_index = entry.key
        bound = self.receiving.bound_source(entry.key)
        forward = bound.user if bound is not None else None
        if bound is not None:
            state = "joined"
        elif entry.is_refused:
            state = "rejected"
        else:
            session = self.receiving.resolver.cache.joined(topic, entry.otid)
            state = "not wanted" if session is None else "alternative"
        return SourceRow(
            self.ctx.name,
            shown(topic),
            entry.otid.hex(),
            entry.tir.domain_id or self.domain_id,
            format_source(address, topic_index),
            state,
            tuple(map(self.ctx.name_of, forward.egress)) if forward is not None else (),
            entry.hop_count,
            entry.cost,
        )

    def _blocked(self, text: bytes) -> Iterator[BlockedRow | None]:
        for lane in self.egress.lanes():
            if not lane.transport.statistics().blocked:
                yield None
                continue
            topics: list[str] = []
            yield from some_topics(tuple(lane.proxies.values()), text, topics)
            queued = sum([waiting.nbytes for waiting in lane.waiting])
            for receiver in lane.transport.statistics().blocked if topics else ():
                yield BlockedRow(
                    self.ctx.name,
                    receiver.address,
                    "blocking" if receiver.blocks_others else "waiting",
                    round(receiver.blocked_ns / NS_PER_S, 1),
                    receiver.waiting_bytes + queued,
                    receiver.discarded,
                    tuple(topics),
                )

    def _lost(self, text: bytes) -> Iterator[LossRow | None]:
        return self.losses.rows(self.ctx.name, text)


def _shown(found: tuple[FragmentSource, ProxySource]) -> tuple[str, int]:
    source, proxy = found
    return source.source_string, proxy.window.taken
