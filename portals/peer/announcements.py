"""Tells the companion of a peer portal what is wanted from it, and which sources are offered to it.

What is offered keeps its number for as long as it exists, over every reconnect. Part of `portals.peer.link_core`.

Source: peer link notes, sections 8 and 9.
"""

from __future__ import annotations

from collections.abc import Callable

from dro.errors import DecodeError
from dro.log.events import LogEvent
from dro.proto.peerlink.interest import ToldInterest
from dro.proto.peerlink.messages import SourceRecord, fits
from dro.proto.peerlink.sources import OPTIONS_MAX, OfferedSources, SourceNumbers, source_message
from dro.wire import otid as otid_codec
from portals.decisions.effects import (
    AdvertiseProxySource,
    CheckKnown,
    CloseProxyReceiver,
    CloseProxySource,
    DelayDeletion,
    FeedProxySource,
    JoinKnownSource,
    OpenProxyReceiver,
    OpenProxySource,
    ProxyEffect,
    RecordKnownInterest,
    ReviewSources,
    UpdateProxyReceiver,
    UpdateProxySource,
)
from portals.decisions.messages import SourceSeen
from portals.peer.link_effects import (
    CloseProxy,
    CountLost,
    LinkCoreEffect,
    Log,
    OpenProxy,
    SendAllInterest,
    SendInOrder,
    SendInterest,
)


def topic_index_of(otid: bytes) -> int:
    """Return where the source originates; 0 for an OTID of unknown layout."""
    try:
        return otid_codec.decode(otid).topic_index
    except DecodeError:
        return 0


def _unfit(seen: SourceSeen) -> str:
    """Say why the source cannot be told over a link; empty if it can."""
    if not fits(seen.topic):
        return f"a name of {len(seen.topic)} bytes does not fit into a message of the link"
    if len(seen.pass_through) > OPTIONS_MAX:
        return f"{len(seen.pass_through)} bytes of advertisement options do not fit into a message of the link"
    return ""


def _record(seen: SourceSeen) -> SourceRecord:
    index = topic_index_of(seen.otid)
    return SourceRecord(0, seen.domain_id, seen.topic, seen.otid, index, options=seen.pass_through)


class Announcements:
    """See the module text."""

    def __init__(self, ask: Callable[[LinkCoreEffect], object], numbers: SourceNumbers | None = None) -> None:
        self._ask = ask
        self.offered = OfferedSources(numbers)
        self.told = ToldInterest()
        self.is_linked = False
        """Somebody hears it."""

    def perform(self, effect: ProxyEffect) -> None:
        """Tell what the portal has decided."""
        match effect:
            case OpenProxyReceiver(symbol=symbol, pattern=pattern, domains=domains):
                self._change_interest(symbol, pattern, domains, ())
            case UpdateProxyReceiver(symbol=symbol, pattern=pattern, added=added, removed=removed):
                self._change_interest(symbol, pattern, added, removed)
            case CloseProxyReceiver(symbol=symbol, pattern=pattern, domains=domains):
                self._change_interest(symbol, pattern, (), domains)
            case OpenProxySource(worker=worker, source=source):
                self._open(worker, source)
            case FeedProxySource(worker=worker, source=source):
                if not self.offered.has(source.otid):
                    self._open(worker, source)
                else:
                    self._change_source(source)
                    self._ask(effect)
            case UpdateProxySource(source=source):
                self._change_source(source)
            case CloseProxySource(otid=otid):
                self._close(otid)
            case (
                AdvertiseProxySource()
                | DelayDeletion()
                | JoinKnownSource()
                | RecordKnownInterest()
                | CheckKnown()
                | ReviewSources()
            ):
                pass  # the companion tells everything anew by itself

    def _change_interest(self, symbol: bytes, pattern: int, added: tuple[int, ...], removed: tuple[int, ...]) -> None:
        messages = tuple(self.told.change((symbol, pattern), added, removed))
        self._ask(SendInterest(messages) if self.is_linked else CountLost(messages))

    def repeat_interest(self) -> None:
        if self.is_linked:
            self._ask(SendAllInterest(self.told.all(is_refresh=True)))

    def _open(self, worker: int, seen: SourceSeen) -> None:
        if error := _unfit(seen):
            self._ask(Log(LogEvent.PROXY_SOURCE_REFUSED, {"topic": _shown(seen.topic), "error": error}))
        else:
            self._ask(OpenProxy(worker, seen, self.offered.offer(_record(seen))))

    def _change_source(self, seen: SourceSeen) -> None:
        if error := _unfit(seen):
            self._ask(Log(LogEvent.ADVERTISEMENT_UNCHANGED, {"topic": _shown(seen.topic), "error": error}))
        elif (record := self.offered.change(_record(seen))) is not None:
            self._ask(SendInOrder(source_message(record)))

    def _close(self, otid: bytes) -> None:
        if self.offered.has(otid):
            self._ask(CloseProxy(otid, self.offered.end(otid)))

    def close_all(self) -> None:
        """Take back all that is offered."""
        for otid in self.offered.otids():
            self._close(otid)


def _shown(topic: bytes) -> str:
    return topic.decode(errors="replace")
