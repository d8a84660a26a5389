"""The proxies of an endpoint portal in its TRD, as objects: receivers in one UM context, sources in the other.

`portals.decisions.core` decides which ones exist; their options by topic come from `portals.endpoint.options`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from dro.bus.actor import WorkerContext
from dro.clock import ms, s
from dro.config.dro_xml.model import EndpointConfig
from dro.errors import DecodeError, ResourceError
from dro.kept.store import NOTHING_KEPT, Kept
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.table import Table
from dro.timers import Timer
from dro.um.fragment.context import FragmentContext
from dro.um.fragment.own_source import FormerPlace, FragmentSource
from portals.datapath.duplicate_window import DuplicateWindow
from portals.datapath.egress import Egress
from portals.datapath.outgoing import ProxySource
from portals.decisions.advertisement import proxy_options
from portals.decisions.engine import STEP
from portals.decisions.messages import PATTERN_NONE, SourceSeen
from portals.endpoint.options import ProxyOptions
from portals.shell.matchers import Matchers, shown
from portals.shell.quiescence import SenderQuiescence, fed_by

_ROW: Final = b"proxy"
CALM_NS: Final = ms(20)
FORWARDED_NS: Final = s(1)
"""After so long a source is advertised although its feeder has not said that it forwards: it may have ended."""
JOINING_NS: Final = ms(300)
"""After so long without another session that gets its first receiver, sessions without one are waited for no longer."""


def _symbol(symbol: bytes, pattern: int) -> dict[str, object]:
    return {"topic" if pattern == PATTERN_NONE else "pattern": shown(symbol)}


class ProxyReceivers:
    """Proxy receivers look for sources in the TRD."""

    def __init__(
        self,
        ctx: WorkerContext,
        context: FragmentContext,
        options: ProxyOptions,
        matchers: Matchers,
    ) -> None:
        self._context = context
        self._options = options
        self._matchers = matchers
        self._events = LimitedLogger.of_events(ctx.log, ctx.loop.now_ns)

    def open(self, symbol: bytes, pattern: int, domains: tuple[int, ...]) -> None:
        self._events.event(LogEvent.PROXY_RECEIVER_CREATED, _symbol(symbol, pattern) | {"domains": domains})
        if pattern == PATTERN_NONE:
            self._context.want_topic(symbol, self._options.receiver(symbol))
        elif (matcher := self._matchers(symbol, pattern)) is not None:
            self._context.want_pattern(symbol, pattern, matcher, self._options.wildcard_receiver(symbol, pattern))

    def close(self, symbol: bytes, pattern: int) -> None:
        self._events.event(LogEvent.PROXY_RECEIVER_DELETED, _symbol(symbol, pattern))
        if pattern == PATTERN_NONE:
            self._context.unwant_topic(symbol)
        elif self._matchers(symbol, pattern) is not None:
            self._context.unwant_pattern(symbol, pattern)


class ProxySources:
    """Proxy sources advertise in the TRD what is heard behind other portals, and send what the egress gives them."""

    def __init__(
        self,
        ctx: WorkerContext,
        config: EndpointConfig,
        context: FragmentContext,
        egress: Egress,
        options: ProxyOptions,
        is_busy: Callable[[], bool] = lambda: False,
        kept: Kept = NOTHING_KEPT,
    ) -> None:
        """`is_busy`: siblings have said more than has been worked off; sources are advertised later then.

        `kept`: what the former incarnation of the portal has left there is gone on with.
        """
        self._rows = kept.rows
        self._is_busy = is_busy
        self._is_waiting = False  # to advertise what was opened while there was much to do
        self._late: Timer | None = None  # for what nobody has said to advertise
        self._is_awaited = False  # data waits for these
        self._advertised_ns = self._joined_ns = ctx.loop.now_ns()  # one of the sources; one more of the sessions
        self._heard = 0  # sessions that have receivers
        self._loop = ctx.loop
        self._log = ctx.log
        self._events = LimitedLogger.of_events(ctx.log, ctx.loop.now_ns)
        self._cost = config.cost  # added to what origins advertise
        self._hotlink_index = config.hotlink_index
        self._sqn_window = config.sqn_window
        self._context = context
        self._egress = egress
        self._options = options
        self.by_otid: Table[bytes, tuple[FragmentSource, ProxySource]] = Table()
        self._offers: Table[bytes, SourceSeen] = Table()  # what each was made or changed from last

    def __len__(self) -> int:
        return len(self.by_otid)

    def open(self, worker: int, seen: SourceSeen) -> None:
        try:
            source = self._context.open_source(
                seen.topic,
                options=self._options.source(seen.topic),
                otid=seen.otid,
                tir_options=proxy_options(seen, self._cost, self._hotlink_index),
                is_silent=True,
                former=self._former(seen.otid),
            )
        except (ResourceError, DecodeError) as e:  # DecodeError: the origin's options do not fit into our datagram
            self._log.error(LogEvent.PROXY_SOURCE_REFUSED, extra={"topic": shown(seen.topic), "error": str(e)})
            return
        window = DuplicateWindow(self._sqn_window.size, self._sqn_window.increment)
        for sqn, fragments in source.sent_before:
            window.take_run(sqn, fragments)
        source.sent_before = []
        if self._rows is not None and (row := self._rows.row(_ROW, seen.otid)) is not None:
            row.write(source.transport.transport_index, source.topic_index)
        proxy = ProxySource(seen.otid, seen.topic, source.topic_index, source.transport, window)
        self.by_otid[seen.otid] = (source, proxy)
        self._offers[seen.otid] = seen
        self._egress.feed(proxy, worker, seen.handle)
        if not self._is_waiting and self._is_busy():
            self._is_waiting = True
            self._loop.call_later(CALM_NS, self._advertise_silent)
        elif not self._is_waiting and (self._late is None or not self._late.is_pending):
            self._late = self._loop.call_later(FORWARDED_NS, self._advertise_late)
        self._events.event(LogEvent.PROXY_SOURCE_CREATED, {"topic": shown(seen.topic), "otid": seen.otid.hex()})

    def _former(self, otid: bytes) -> FormerPlace | None:
        """Find where the proxy source was in the former incarnation of this portal."""
        found = None if self._rows is None else self._rows.former(_ROW, otid)
        return FormerPlace(found.a, found.b) if found is not None and found.a else None

    def advertise_opened(self, otid: bytes) -> None:
        """Advertise one that was opened, unless there is so much to do that all wait."""
        found = self.by_otid.get(otid)
        if found is None or (self._is_waiting and not self._is_awaited):
            return
        self._advertised_ns = self._loop.now_ns()
        try:
            found[0].advertise()
        except DecodeError as e:
            self._log.error(LogEvent.PROXY_SOURCE_REFUSED, extra={"topic": shown(found[1].topic), "error": str(e)})

    def _advertise_late(self) -> None:
        if not self._is_waiting:
            self._loop.run_in_slices(self._advertise_steps())

    def _advertise_silent(self) -> None:
        """Advertise what was opened while there was much to do, as soon as there is less."""
        if self._is_busy() and not self._is_awaited:
            self._loop.call_later(CALM_NS, self._advertise_silent)
        else:
            self._loop.run_in_slices(self._advertise_steps())

    def _advertise_steps(self) -> Iterator[None]:
        while self._context.own.has_silent:
            with self._context.together():
                for _ in range(STEP):
                    if (trouble := self._context.own.advertise_silent()) is not None:
                        self._log.error(LogEvent.PROXY_SOURCE_REFUSED, extra={"error": str(trouble)})
            yield
            if self._is_busy() and not self._is_awaited:
                self._loop.call_later(CALM_NS, self._advertise_silent)
                return
        self._is_waiting = False
        self._advertised_ns = self._loop.now_ns()

    def can_deliver(self, now_ns: int) -> bool:
        """Tell whether their sessions have receivers, or all have been advertised and receivers seem not to come."""
        self._is_awaited = is_waiting = self._is_waiting or self._context.own.has_silent
        sessions = self._egress.sessions()
        since_ns = now_ns if is_waiting else self._advertised_ns  # before that, only sessions that go on are heard
        heard = sum(session.is_heard(since_ns, now_ns) for session in sessions)
        if heard != self._heard:
            self._heard, self._joined_ns = heard, now_ns
        quiet_ns = now_ns - max(self._advertised_ns, self._joined_ns)
        return heard == len(sessions) or (not is_waiting and quiet_ns >= JOINING_NS)

    def feed(self, worker: int, seen: SourceSeen, *, is_beside: bool = False) -> None:
        found = self.by_otid.get(seen.otid)
        if found is None:
            self.open(worker, seen)
            return
        self.advertise(seen, again=True)
        self._egress.feed(found[1], worker, seen.handle, is_beside=is_beside)

    def advertise(self, seen: SourceSeen, *, again: bool = False) -> None:
        """The proxy source of that OTID advertises what its origin does, with the cost of the way to here.

        One that has advertised its end does so only when it is to be advertised `again`."""
        found = self.by_otid.get(seen.otid)
        if found is None:
            return
        self._offers[seen.otid] = seen
        try:
            found[0].update(proxy_options(seen, self._cost, self._hotlink_index), again=again)
        except DecodeError as e:
            self._log.warning(LogEvent.ADVERTISEMENT_UNCHANGED, extra={"topic": shown(seen.topic), "error": str(e)})

    def set_cost(self, cost: int) -> Iterator[None]:
        """Set the cost that new proxy sources advertise from now on, and the others step by step."""
        self._cost = cost
        return self._advertise_all(self._offers.snapshot())

    def _advertise_all(self, otids: Iterator[bytes]) -> Iterator[None]:
        while some := list(islice(otids, STEP)):
            with self._context.together():
                for otid in some:
                    if (seen := self._offers.get(otid)) is not None:
                        self.advertise(seen)
            yield

    def end(self, otid: bytes) -> None:
        """Advertise the end of a proxy source that still sends; `feed` advertises it again."""
        if (found := self.by_otid.get(otid)) is not None:
            found[0].end()

    def close(self, otid: bytes, linger_ns: int) -> None:
        found = self.by_otid.pop(otid, None)
        if found is None:
            return
        del self._offers[otid]
        source, proxy = found
        if self._rows is not None:
            self._rows.free(_ROW, otid)
        self._egress.flush(proxy)
        source.close(final=True, linger_ns=linger_ns)
        self._events.event(LogEvent.PROXY_SOURCE_DELETED, {"topic": shown(proxy.topic), "otid": otid.hex()})

    def close_all(self) -> None:
        """Close all without repairs: the portal ends."""
        for otid in list(self.by_otid):
            self.close(otid, 0)

    def quiescence(self, worker: int | None, linger_ns: int, now_ns: int) -> SenderQuiescence:
        """Watch the sessions of all, or of those that the sibling feeds."""
        sources = fed_by(worker, (proxy for _, proxy in self.by_otid.values()))
        return SenderQuiescence(sources, linger_ns, now_ns, is_all=worker is None)
