"""The proxies of a peer portal: what is offered to the companion, and what the companion offers.

What is offered keeps its number for as long as it exists, over every reconnect, so data that waits for a link that is
down a moment can be sent when it is back. What the companion offers has numbers of its connection; the next one takes
over what it offers again, by OTID, with its handle and with the siblings that want it. Hop count and cost come from the
routes, as a link carries neither.

Source: peer link notes, section 9; forwarding notes, section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dro.bus.actor import WorkerContext
from dro.config.dro_xml.model import SqnWindowConfig
from dro.errors import DecodeError
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.proto.peerlink.hold import LinkHold
from dro.proto.peerlink.interest import HeardInterest
from dro.proto.peerlink.messages import SourceEnd, SourceRecord, fits, read_source
from dro.proto.peerlink.sources import OPTIONS_MAX, HeardSources, OfferedSources, Verdict, source_message
from dro.table import Table
from dro.timers import Timer
from dro.um.transport.session import BoundSource
from dro.um.transport.sockets import address_text
from dro.wire import otid as otid_codec
from dro.wire.lbmc.message import Message
from dro.wire.lbmr.packet import TIR_TTL, Tir, TirOptions
from dro.wire.source_string import TcpAddress
from portals.datapath.duplicate_window import DuplicateWindow
from portals.datapath.egress import Egress
from portals.datapath.outgoing import ProxySource
from portals.decisions.messages import SourceSeen
from portals.peer.receiver import LinkReceiver
from portals.peer.sender import LinkSender
from portals.peer.writer import count_lost
from portals.shell.matchers import shown
from portals.shell.portal import PortalShell
from portals.shell.rest import SendersAtRest, fed_by

Judge = Callable[[bytes, TcpAddress], bool]
"""Whether a source of the topic may enter the DRO over the link."""


@dataclass(frozen=True, slots=True)
class Ways:
    """Hop count and cost from each domain to this portal; what the routes do not know is at the companion at least."""

    cost: int
    by_domain: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    def to(self, domain_id: int) -> tuple[int, int]:
        return self.by_domain.get(domain_id, (1, self.cost))


def topic_index_of(otid: bytes) -> int:
    """Where the source originates; 0 for an OTID of unknown layout."""
    try:
        return otid_codec.decode(otid).topic_index
    except DecodeError:
        return 0


def _unfit(seen: SourceSeen) -> str:
    """Why the source cannot be told over a link; empty if it can."""
    if not fits(seen.topic):
        return f"a name of {len(seen.topic)} bytes does not fit into a message of the link"
    if len(seen.pass_through) > OPTIONS_MAX:
        return f"{len(seen.pass_through)} bytes of advertisement options do not fit into a message of the link"
    return ""


class LinkProxySources:
    """What is offered to the companion, and sent to it as the egress gives it."""

    def __init__(
        self,
        ctx: WorkerContext,
        sqn_window: SqnWindowConfig,
        sender: LinkSender,
        egress: Egress,
        offered: OfferedSources,
    ) -> None:
        self._log = ctx.log
        self._page = ctx.counters
        self._events = LimitedLogger.of_events(ctx.log, ctx.loop.now_ns)
        self._sqn_window = sqn_window
        self._sender = sender
        self._egress = egress
        self._offered = offered
        self.by_otid: Table[bytes, ProxySource] = Table()

    def __len__(self) -> int:
        return len(self.by_otid)

    def open(self, worker: int, seen: SourceSeen) -> None:
        if error := _unfit(seen):
            self._log.error(LogEvent.PROXY_SOURCE_REFUSED, extra={"topic": shown(seen.topic), "error": error})
            return
        record = self._offered.offer(self._record(seen))
        number = record.srcidx
        self._sender.topics[number] = record.topic_index
        window = DuplicateWindow(self._sqn_window.size, self._sqn_window.increment)
        proxy = ProxySource(seen.otid, seen.topic, number, self._sender, window)
        self.by_otid[seen.otid] = proxy
        self._tell(source_message(record))
        self._egress.feed(proxy, worker, seen.handle)
        self._events.event(LogEvent.PROXY_SOURCE_CREATED, {"topic": shown(seen.topic), "otid": seen.otid.hex()})

    def _tell(self, message: bytes) -> None:
        if not self._sender.send_control(message):
            count_lost(self._page, message)

    def _record(self, seen: SourceSeen) -> SourceRecord:
        return SourceRecord(
            srcidx=0,
            domain_id=seen.domain_id,
            topic=seen.topic,
            otid=seen.otid,
            topic_index=topic_index_of(seen.otid),
            options=seen.pass_through,
        )

    def feed(self, worker: int, seen: SourceSeen, *, is_beside: bool = False) -> None:
        proxy = self.by_otid.get(seen.otid)
        if proxy is None:
            self.open(worker, seen)
            return
        self.advertise(seen)
        self._egress.feed(proxy, worker, seen.handle, is_beside=is_beside)

    def advertise(self, seen: SourceSeen) -> None:
        """Attributes of the source have changed."""
        if error := _unfit(seen):
            self._log.warning(LogEvent.ADVERTISEMENT_UNCHANGED, extra={"topic": shown(seen.topic), "error": error})
            return
        if (record := self._offered.change(self._record(seen))) is not None:
            self._tell(source_message(record))

    def close(self, otid: bytes) -> None:
        proxy = self.by_otid.pop(otid, None)
        if proxy is None:
            return
        self._egress.flush(proxy)
        self._sender.topics.pop(proxy.topic_index, None)
        self._tell(self._offered.end(otid))
        self._events.event(LogEvent.PROXY_SOURCE_DELETED, {"topic": shown(proxy.topic), "otid": otid.hex()})

    def drop_waiting(self) -> Iterator[None]:
        """In steps: throw away what waits for a companion that is away, and take nothing more for it."""
        for otid in self.by_otid.snapshot():
            if (proxy := self.by_otid.get(otid)) is not None:
                self._egress.flush(proxy)
            yield

    def close_all(self) -> None:
        for otid in list(self.by_otid):
            self.close(otid)

    def rest(self, worker: int | None, now_ns: int) -> SendersAtRest:
        """Watch those that the sibling feeds, or all."""
        return SendersAtRest(fed_by(worker, self.by_otid.values()), 0, now_ns, is_all=worker is None)


class LateData(Protocol):
    """Data of a source may come before the source is told, and after its end."""

    def on_source(self, number: int) -> None:
        """Told, and recorded."""

    def on_end(self, otid: bytes, number: int) -> None:
        """Let a source that has ended linger."""

    def take(self, otid: bytes) -> int | None:
        """The source is offered anew: the number that lingered, which is to be removed now."""


class LinkSources:
    """What the companion offers over one connection, as joined sources."""

    def __init__(
        self,
        ctx: WorkerContext,
        shell: PortalShell,
        receiver: LinkReceiver,
        sources_max: int,
        ways: Ways,
        judge: Judge | None,
        late: LateData | None = None,
        held: Sequence[LinkSources] = (),
    ) -> None:
        """With `late`, a source that has ended stays until `remove`. `held`: those of connections before."""
        self._ctx = ctx
        self._held = held
        self._late = late
        self._shell = shell
        self._receiver = receiver
        self._heard = HeardSources(sources_max)
        self._ways = ways
        self._judge = judge
        self.ignored = 0
        """Sources that were offered and not taken."""

    def __len__(self) -> int:
        return len(self._heard)

    @property
    def digest(self) -> int | None:
        return self._heard.digest

    def all(self) -> Iterator[SourceRecord]:
        return self._heard.all()

    def on_message(self, message: Message, address: TcpAddress) -> None:
        """About one source, from the companion at that address."""
        try:
            about = read_source(message)
        except DecodeError as e:
            extra = {"peer": address_text(address), "error": str(e)}
            self._ctx.limited(LogEvent.PEER_SOURCE_UNREADABLE, extra=extra)
            return
        if isinstance(about, SourceEnd):
            self.on_end(about)
        else:
            self.on_source(about)

    def on_source(self, record: SourceRecord) -> None:
        """New, or offered with other attributes, or in the place of others."""
        verdict, gone = self._heard.on_source(record)
        if verdict is not Verdict.TAKEN:
            self.ignored += 1
            extra = {"topic": shown(record.topic), "otid": record.otid.hex(), "reason": verdict.value}
            self._ctx.limited(LogEvent.PEER_SOURCE_IGNORED, extra=extra)
            return
        for other in gone:
            self.remove(other.srcidx)
        if self._late is not None and (before := self._late.take(record.otid)) is not None:
            self.remove(before)
        self._put(record)
        if self._late is not None:
            self._late.on_source(record.srcidx)

    def is_known(self, number: int) -> bool:
        """Offered, let in or not."""
        return self._heard.has(number)

    def _put(self, record: SourceRecord) -> None:
        known = self._receiver.sources.get(record.srcidx)
        if self._judge is not None and not self._judge(record.topic, self._receiver.peer):
            self.remove(record.srcidx)
        elif known is not None:
            self._shell.change_source(known, *self._ways.to(record.domain_id), record.options)
        else:
            tir = Tir(record.topic, self._receiver.address, TIR_TTL, record.topic_index, TirOptions(()))
            bound = BoundSource(record.topic, record.otid, record.srcidx, self._receiver, tir, is_from_dro=True)
            self._receiver.sources[record.srcidx] = bound
            way = *self._ways.to(record.domain_id), record.options
            if (before := self._taken_over(record)) is None:
                self._shell.add_source(bound, record.domain_id, *way)
            else:
                self._shell.move_source(before, bound)
                self._shell.change_source(bound, *way)

    def _taken_over(self, record: SourceRecord) -> BoundSource | None:
        """The same source, as a connection before had it; it is not held any more."""
        for sources in self._held:
            known = sources._heard.find(record.otid)
            if known is not None and (known.topic, known.domain_id) == (record.topic, record.domain_id):
                bound = sources._receiver.sources.pop(known.srcidx, None)
                if bound is not None:
                    return bound
        return None

    @property
    def left(self) -> int:
        """Count those that are let in and were not removed or taken over."""
        return len(self._receiver.sources)

    def on_end(self, end: SourceEnd) -> None:
        if self._heard.on_end(end) is None:
            return
        if self._late is not None:
            self._late.on_end(end.otid, end.srcidx)
        else:
            self.remove(end.srcidx)

    def remove(self, srcidx: int) -> None:
        if (bound := self._receiver.sources.pop(srcidx, None)) is not None:
            self._shell.remove_source(bound)

    def remove_all(self) -> Iterator[None]:
        """In steps: the connection is over."""
        for number in list(self._receiver.sources):
            self.remove(number)
            yield

    def set_ways(self, ways: Ways) -> Iterator[None]:
        """How the domains are reached has changed: what is offered is told anew where it differs."""
        self._ways, before = ways, self._ways
        return self._tell(lambda record: before.to(record.domain_id) != ways.to(record.domain_id))

    def set_judge(self, judge: Judge | None) -> Iterator[None]:
        """Only what it accepts is let in."""
        self._judge = judge
        return self._tell(lambda _: True)

    def _tell(self, concerns: Callable[[SourceRecord], bool]) -> Iterator[None]:
        for record in self._heard.all():
            if concerns(record):
                self._put(record)
            yield


class HeldLink:
    """What is held of a link that was lost, see `dro.proto.peerlink.hold`: proxies stay, and data waits in the queue.

    It ends at once when another instance of the companion comes: that one is not to be fed with what it does not want.
    """

    def __init__(
        self,
        ctx: WorkerContext,
        shell: PortalShell,
        heard: HeardInterest,
        sender: LinkSender,
        proxies: LinkProxySources,
    ) -> None:
        self.sources: list[LinkSources] = []
        """Of connections before."""
        self._ctx = ctx
        self._heard = heard
        self._sender = sender
        self._shell = shell
        self._proxies = proxies
        self._core = LinkHold()
        self._timer: Timer | None = None
        self._instance = b""  # of the companion that was there last
        self._is_up = False

    def on_down(self, offers: LinkSources | None) -> None:
        if offers is not None:
            self.sources.append(offers)
        self._heard.on_down()
        self._is_up = False
        self._core.on_down(self._ctx.loop.now_ns())
        self._arm()

    def on_up(self, instance: bytes) -> None:
        """Both have said who they are."""
        if instance != self._instance:
            self._end_now()
        self._is_up, self._instance = True, instance
        self._core.on_up(self._ctx.loop.now_ns(), self._left)
        self._arm()

    def on_drain(self, limit_ms: int) -> None:
        """Do not wait for a companion that is away."""
        self._shell.drain.on_drain(limit_ms)
        if not self._is_up:
            self._end_now()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    @property
    def _left(self) -> int:
        return self._heard.held + sum([sources.left for sources in self.sources])

    def _arm(self) -> None:
        self.close()
        if (due_ns := self._core.next_deadline()) is not None:
            self._timer = self._ctx.loop.call_at(due_ns, self._on_timer)

    def _on_timer(self) -> None:
        if self._core.on_timer(self._ctx.loop.now_ns(), self._left):
            self._end()
        self._arm()

    def _end_now(self) -> None:
        if self._core.is_on:
            self._core.end()
            self._arm()
            self._end()

    def _end(self) -> None:
        """Nothing is held any more: what was not confirmed goes."""
        loop, held = self._ctx.loop, self.sources.copy()
        self.sources.clear()
        if not self._is_up:
            self._on_away()
        for sources in held:
            loop.run_in_slices(self._shell.acting(sources.remove_all()))
        loop.run_in_slices(self._shell.acting(self._heard.lose()))

    def _on_away(self) -> None:
        """The link was not back in time: the next one goes on with nothing of this one."""
        self._shell.egress.drop_waiting()
        self._shell.core.forget_routes(self._ctx.loop.now_ns())
        self._shell.act_soon()
        self._sender.throw_away()
        if self._shell.drain.is_draining:  # it decides nothing any more
            self._ctx.loop.run_in_slices(self._proxies.drop_waiting())
