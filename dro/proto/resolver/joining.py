"""Which sessions of the sources of a context are joined: by what its owner accepts, by cost, and one in each plane.

Several advertisements of one topic with one OTID are sessions of one source. A receiver joins one of them, the
cheapest. A receiver with `use_hotlink` joins the cheapest session of each hotlink index: all carry every message, and
what comes first counts. A session that the owner refuses is never joined; another one of the same source may be. What
the owner does not take on is not joined at all.

No state but the judge and its verdicts, which are in the cache. Part of `dro.proto.resolver.receivers`.
Source: DRO guide, "DRO Hotlinks"; forwarding notes, section 14. Guess: a session that is advertised without an index is
in a plane of its own, and an index that two DROs share is one plane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from dro.proto.resolver.cache import FRESH_NS, PLANES_MAX, CachedSource, TopicCache
from dro.proto.resolver.events import SourceChanged, SourceFound, SourceRefused, SourceSwitched, found
from dro.proto.resolver.output import Channel
from dro.proto.resolver.schedule import QueryOptions
from dro.wire.source_string import TransportAddress

Judge: TypeAlias = Callable[[bytes, TransportAddress], bool]
"""Whether a source may be joined: (topic, session). Asked once for each session of a source that is wanted."""
Carries: TypeAlias = Callable[[bytes, int], bool]
"""Whether the owner takes a source on: (OTID, domain where it originates, 0 for this one). Asked before the judge."""
Near: TypeAlias = Callable[[TransportAddress], bool]
"""Whether a session can be joined from here at all. Asked before the others."""
_Plane: TypeAlias = int | None
"""A hotlink index, or None: any, for a topic without hotlinks."""


class Joining:
    """See the module text."""

    def __init__(self, channel: Channel, cache: TopicCache, options_of: Callable[[bytes], QueryOptions | None]) -> None:
        """`options_of` a wanted topic; None for one that nobody wants."""
        self._channel = channel
        self._cache = cache
        self._options_of = options_of
        self._judge: Judge | None = None
        self._carries: Carries | None = None
        self.is_near: Near = lambda _: True
        self._judgement = 0  # how often the judge has changed

    # accepting

    def set_judge(self, judge: Judge | None, carries: Carries | None = None) -> None:
        """Ask these from now on, also about what was decided before: leave and join what follows, and no more."""
        self._judge, self._carries = judge, carries
        self._judgement += 1
        self._channel.run_in_slices(self._review_all(self._judgement))

    def _review_all(self, judgement: int) -> Iterator[None]:
        for topic in self._cache.topics():
            if judgement != self._judgement:
                return  # judged anew meanwhile
            for otid in self._cache.otids(topic):
                if self._options_of(topic) is not None:
                    for plane in self._planes(topic, otid):
                        self._review(topic, otid, plane)
                else:
                    for session in self._cache.sessions(topic, otid):
                        self._forget_verdict(session)
            yield

    def _review(self, topic: bytes, otid: bytes, plane: _Plane) -> None:
        sessions = [session for session in self._cache.sessions(topic, otid) if plane in (None, session.plane)]
        before = [session.is_accepted for session in sessions]
        is_new = bool(
            [
                session
                for session, was in zip(sessions, before, strict=True)
                if self.is_accepted(session) and was is False
            ]
        )
        joined = self._cache.joined(topic, otid, plane)
        if joined is None:
            if is_new:
                self._join(topic, otid, plane, heard_since_ns=0)
        elif not self.is_accepted(joined):
            joined.is_joined = False
            self._channel.events.append(SourceRefused(found(joined)))
            self._join(topic, otid, plane, heard_since_ns=0 if is_new else None)
        elif is_new:
            self._switch(joined, plane)

    def is_accepted(self, entry: CachedSource) -> bool:
        if entry.is_accepted is None or entry.judgement != self._judgement:
            self._forget_verdict(entry)
            entry.judgement = self._judgement
            entry.is_carried = self.is_near(entry.tir.transport) and (
                self._carries is None or self._carries(entry.otid, entry.domain_id)
            )
            is_let_in = self._judge is None or not entry.is_carried or self._judge(entry.tir.topic, entry.tir.transport)
            entry.is_accepted = entry.is_carried and is_let_in
            self._cache.refused += entry.is_refused
        return entry.is_accepted

    def _forget_verdict(self, entry: CachedSource) -> None:
        self._cache.refused -= entry.is_refused
        entry.is_accepted = None

    # joining

    def choose(self, entry: CachedSource, *, has_changed: bool) -> None:
        """`entry` was just advertised and its topic is wanted."""
        topic, plane = entry.tir.topic, self._plane_of(entry)
        joined = self._cache.joined(topic, entry.otid, plane)
        if joined is None:
            self._join(topic, entry.otid, plane)
        elif not self._switch(joined, plane) and has_changed:
            self._channel.events.append(SourceChanged(found(entry)))

    def join_topic(self, topic: bytes) -> None:
        """A topic is wanted from now on: take everything the cache has, however old."""
        for otid in self._cache.otids(topic):
            for plane in self._planes(topic, otid):
                if self._cache.joined(topic, otid, plane) is None:
                    self._join(topic, otid, plane, heard_since_ns=0)

    def rejoin(self, gone: CachedSource) -> None:
        """A joined session of a source has ended: take another one."""
        self._join(gone.tir.topic, gone.otid, self._plane_of(gone))

    def _uses_hotlinks(self, topic: bytes) -> bool:
        options = self._options_of(topic)
        return options is not None and options.use_hotlink

    def _planes(self, topic: bytes, otid: bytes) -> list[int] | list[None]:
        return self._cache.planes(topic, otid) if self._uses_hotlinks(topic) else [None]

    def _plane_of(self, entry: CachedSource) -> _Plane:
        return entry.plane if self._uses_hotlinks(entry.tir.topic) else None

    def _switch(self, joined: CachedSource, plane: _Plane) -> bool:
        """Take a cheaper session of the same source, if one was heard a moment ago."""
        since_ns = self._channel.now_ns - FRESH_NS
        best = self._cache.best(joined.tir.topic, joined.otid, self.is_accepted, since_ns, plane)
        if best is None or best is joined or best.cost >= joined.cost:
            return False
        joined.is_joined, best.is_joined = False, True
        self._channel.events.append(SourceSwitched(found(joined), found(best)))
        return True

    def _join(self, topic: bytes, otid: bytes, plane: _Plane, heard_since_ns: int | None = None) -> None:
        if heard_since_ns is None:
            heard_since_ns = self._channel.now_ns - FRESH_NS
        best = self._cache.best(topic, otid, self.is_accepted, heard_since_ns, plane)
        if best is None or best.is_joined:
            return
        if sum(session.is_joined for session in self._cache.sessions(topic, otid)) < PLANES_MAX:
            best.is_joined = True
            self._channel.events.append(SourceFound(found(best)))
