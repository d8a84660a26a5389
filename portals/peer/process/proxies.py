"""The proxy sources of a peer portal in the data path: what is offered to the companion is sent as the egress gives it.

What is offered keeps its number for as long as it exists, over every reconnect, so data that waits for a link that is
down a moment can be sent when it is back.

Source: peer link notes, section 9; forwarding notes, section 5.
"""

from __future__ import annotations

from collections.abc import Iterator

from dro.bus.actor import WorkerContext
from dro.config.dro_xml.model import SqnWindowConfig
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.proto.peerlink.sources import source_message
from dro.table import Table
from portals.datapath.duplicate_window import DuplicateWindow
from portals.datapath.egress import Egress
from portals.datapath.outgoing import ProxySource
from portals.decisions.effects import FeedProxySource
from portals.peer.link_effects import CloseProxy, OpenProxy
from portals.peer.stream.sender import LinkSender
from portals.peer.stream.writer import count_lost
from portals.shell.matchers import shown
from portals.shell.quiescence import SenderQuiescence, fed_by


class LinkProxySources:
    """See the module text."""

    def __init__(self, ctx: WorkerContext, sqn_window: SqnWindowConfig, sender: LinkSender, egress: Egress) -> None:
        self._page = ctx.counters
        self._events = LimitedLogger.of_events(ctx.log, ctx.loop.now_ns)
        self._sqn_window = sqn_window
        self._sender = sender
        self._egress = egress
        self.by_otid: Table[bytes, ProxySource] = Table()
        sender.number_of = self._number_of

    def __len__(self) -> int:
        return len(self.by_otid)

    def open(self, effect: OpenProxy) -> None:
        seen, record = effect.source, effect.record
        self._sender.topics[record.srcidx] = record.topic_index
        window = DuplicateWindow(self._sqn_window.size, self._sqn_window.increment)
        for sqn, fragments in self._sender.sent_before.pop(record.srcidx, ()):
            window.take_run(sqn, fragments)
        proxy = ProxySource(seen.otid, seen.topic, record.srcidx, self._sender, window)
        self.by_otid[seen.otid] = proxy
        self.tell(source_message(record))
        self._egress.feed(proxy, effect.worker, seen.handle)
        self._events.event(LogEvent.PROXY_SOURCE_CREATED, {"topic": shown(seen.topic), "otid": seen.otid.hex()})

    def _number_of(self, otid: bytes) -> int | None:
        proxy = self.by_otid.get(otid)
        return proxy.topic_index if proxy is not None else None

    def tell(self, message: bytes) -> None:
        """Send a message about a source in its place."""
        if not self._sender.send_control(message):
            count_lost(self._page, message)

    def feed(self, effect: FeedProxySource) -> None:
        proxy = self.by_otid[effect.source.otid]
        self._egress.feed(proxy, effect.worker, effect.source.handle, is_beside=effect.is_beside)

    def close(self, effect: CloseProxy) -> None:
        proxy = self.by_otid.pop(effect.otid)
        self._egress.flush(proxy)
        self._sender.topics.pop(proxy.topic_index, None)
        self.tell(effect.end)
        self._events.event(LogEvent.PROXY_SOURCE_DELETED, {"topic": shown(proxy.topic), "otid": effect.otid.hex()})

    def drop_waiting(self) -> Iterator[None]:
        """Throw away, in steps, what waits for a companion that is away, and take nothing more for it."""
        for otid in self.by_otid.snapshot():
            if (proxy := self.by_otid.get(otid)) is not None:
                self._egress.flush(proxy)
            yield

    def quiescence(self, worker: int | None, now_ns: int) -> SenderQuiescence:
        """Watch those that the sibling feeds, or all."""
        return SenderQuiescence(fed_by(worker, self.by_otid.values()), 0, now_ns, is_all=worker is None)
