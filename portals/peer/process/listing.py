"""Lists of a peer portal for operators: topics, sources, interest and proxies as of an endpoint, and its link.

What an endpoint hears in its TRD, a peer hears from its companion. Each list begins with the keys that exist at that
moment; those removed before their row is built are left out.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dro.bus.actor import WorkerContext
from dro.bus.listing import (
    BLOCKED,
    DEGRADED,
    LOSSES,
    PEERS,
    TOPIC,
    BlockedRow,
    LossRow,
    PeerRow,
    Row,
    SourceRow,
    TopicRow,
)
from dro.clock import NS_PER_MS, NS_PER_S
from dro.metrics.slots import Slot
from dro.proto.peerlink.messages import SourceRecord
from dro.transport.stream import PlainStream, StreamMaker
from dro.transport.tls_files import days_left
from dro.wire.source_string import address_text
from portals.datapath.outgoing import ProxySource
from portals.decisions.core import PortalCore
from portals.decisions.messages import PATTERN_NONE
from portals.peer.link_core import LinkCore
from portals.peer.link_watch import NO_ANSWER
from portals.peer.options import options_of
from portals.peer.process.proxies import LinkProxySources
from portals.peer.stream.connection import PeerConnection
from portals.peer.stream.connector import Acceptor, Initiator
from portals.peer.stream.peer_tls import PeerStreamMaker, PeerTlsStream
from portals.peer.stream.sender import LinkSender
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
class PeerLists:
    """Registers itself with the worker. It reads the state of the portal and changes nothing."""

    ctx: WorkerContext
    core: PortalCore
    matchers: Matchers
    proxies: LinkProxySources
    sender: LinkSender
    link: LinkCore
    connector: Initiator | Acceptor
    make_stream: StreamMaker
    connection: Callable[[int | None], PeerConnection | None]
    """By its number."""
    losses: Losses | None
    """None on TCP, which loses nothing that it could name."""

    def __post_init__(self) -> None:
        serve(
            self.ctx,
            {
                "topics": self._topics,
                "sources": self._sources,
                "interest": lambda text: interest_rows(self.core, self.ctx.name, 0, text),
                "proxies": lambda text: proxy_rows(self.ctx, self.core, self.proxies.by_otid, self._shown, text),
                TOPIC: self._one_topic,
                PEERS: self._link,
                BLOCKED: self._blocked,
                LOSSES: self._lost,
            },
        )

    @property
    def _up(self) -> PeerConnection | None:
        """The connection that is the link."""
        return self.connection(self.link.link.number if self.link.link is not None else None)

    @property
    def _newest(self) -> PeerConnection | None:
        """The newest one whose dialogue is not up yet."""
        return self.connection(self.link.newcomers.newest)

    # as of an endpoint

    def _offered(self) -> Iterator[SourceRecord]:
        offers = self.link.offers
        return offers.all() if offers is not None else iter(())

    def _topics(self, text: bytes) -> Iterator[Row | None]:
        """List topics offered by the companion, wanted or asked for there, or offered by siblings."""
        core, sources, joined = self.core, Counter[bytes](), Counter[bytes]()
        for record in self._offered():
            if text in record.topic:
                sources[record.topic] += 1
                joined[record.topic] += self._is_joined(record)
            yield None
        for topic in sources:
            yield self._topic(topic, sources[topic], joined[topic])
        listed = dict.fromkeys(sources)
        for table in (core.recorded.domains, core.proxy_receivers):
            for topic, pattern in table.snapshot():
                if pattern != PATTERN_NONE or topic in listed or text not in topic:
                    yield None
                else:
                    listed[topic] = None
                    yield self._topic(topic)
        for topic in core.siblings.by_topic.snapshot():
            yield None if topic in listed or text not in topic else self._topic(topic)

    def _topic(self, topic: bytes, sources: int = 0, joined: int = 0) -> TopicRow:
        by_otid = self.proxies.by_otid
        proxies = sum(otid in by_otid for otid in self.core.siblings.by_topic.get(topic, ()))
        return topic_row(self.core, self.ctx.name, topic, sources, joined, proxies)

    def _one_topic(self, topic: bytes) -> Iterator[Row | None]:
        sources = joined = 0
        for record in self._offered():
            if record.topic == topic:
                sources += 1
                joined += self._is_joined(record)
            yield None
        yield from one_topic(self._topic(topic, sources, joined), asked_by_patterns(self.core, topic, self.matchers))

    def _is_joined(self, record: SourceRecord) -> bool:
        link = self._up
        return link is not None and record.srcidx in link.receiver.sources

    def _sources(self, text: bytes) -> Iterator[Row | None]:
        for record in self._offered():
            yield self._source(record) if text in record.topic else None

    def _source(self, record: SourceRecord) -> SourceRow:
        link = self._up
        bound = link.receiver.sources.get(record.srcidx) if link is not None else None
        forward = bound.user if bound is not None else None
        return SourceRow(
            self.ctx.name,
            shown(record.topic),
            record.otid.hex(),
            record.domain_id,
            self._number(record.srcidx),
            "rejected" if bound is None else "joined",
            tuple(map(self.ctx.name_of, forward.egress)) if forward is not None else (),
            *self.link.costs.to(record.domain_id),
        )

    def _number(self, srcidx: int) -> str:
        """Write the number of a source as another transport's source string."""
        link = self._up
        return f"PEER:{address_text(link.address)}[{srcidx}]" if link is not None else f"PEER:[{srcidx}]"

    def _shown(self, proxy: ProxySource) -> tuple[str, int]:
        return self._number(proxy.topic_index), proxy.window.taken

    # the link

    def _link(self, _text: bytes) -> Iterator[PeerRow]:
        page, core, connector, link = self.ctx.counters, self.link, self.connector, self._up
        watch, rtt, initiator, offers = core.watch, core.rtt, core.connecting, core.offers
        now_ns, wall_s = self.ctx.loop.now_ns(), time.time()
        hello = link.session.hello if link is not None else None
        some = link or self._newest
        due_ns = initiator.next_deadline() if initiator is not None and some is None else None
        why, remedy = (
            watch.why_not() if not watch.is_up else (watch.error, watch.remedy) if watch.carries else NO_ANSWER
        )
        transport, names, days = _transport(some, has_udp=core.config.udp is not None, now_s=wall_s)
        counters = self.sender.counters
        alive = some.session.options if some is not None else options_of(core.config)
        yield PeerRow(
            self.ctx.name, "initiator" if initiator is not None else "acceptor", self._state(due_ns),
            round((now_ns - watch.since_ns) / NS_PER_S, 1),
            dro=hello.name.decode(errors="replace") if hello is not None else "",
            node_id=str(core.neighbour or ""),
            local=_local(some) or ("" if initiator is not None else connector.address),
            remote=self._remote(some),
            error=why, remedy=remedy,
            attempts=initiator.attempts if initiator is not None else 0,
            next_attempt_s=round(max(0, due_ns - now_ns) / NS_PER_S, 1) if due_ns is not None else -1.0,
            transport=transport, certificate=", ".join(names), certificate_days=days,
            own_certificate_days=days_left(self.make_stream.expires_s, wall_s)
            if isinstance(self.make_stream, PeerStreamMaker) else -1,
            rtt_samples=rtt.us.count, rtt_last_us=rtt.last_us, rtt_min_us=rtt.us.minimum, rtt_max_us=rtt.us.maximum,
            rtt_mean_us=rtt.us.mean,
            answered_s=round((now_ns - rtt.last_ns) / NS_PER_S, 1) if rtt.us.count else -1.0,
            keepalive_interval_ms=alive.interval_ns // NS_PER_MS, keepalive_timeout_ms=alive.timeout_ns // NS_PER_MS,
            keepalive_only_when_idle=alive.only_when_idle,
            interest_told=len(core.told), interest_heard=len(core.heard),
            sources_told=len(core.offered), sources_heard=len(offers) if offers is not None else 0,
            fragments_sent=page[Slot.SENT], fragments_sent_bytes=page[Slot.SENT_BYTES],
            fragments_received=page[Slot.TOPIC_RCVD], fragments_received_bytes=page[Slot.TOPIC_RCVD_BYTES],
            batches=counters.batch_bytes.count, batch_min_bytes=counters.batch_bytes.minimum,
            batch_mean_bytes=counters.batch_bytes.mean, batch_max_bytes=counters.batch_bytes.maximum,
            bytes_sent=link.writer.written if link is not None else 0,
            bytes_received=link.receiver.bytes_rcved if link is not None else 0,
            waiting_bytes=link.writer.waiting if link is not None else 0,
            queued=page[Slot.QUEUED], queued_bytes=page[Slot.QUEUED_BYTES], queue_limit_bytes=page[Slot.QUEUE_LIMIT],
            repairs=watch.repairs, reconnects=max(0, watch.links - 1), lost_bytes=counters.lost_bytes,
            ignored_sources=offers.ignored if offers is not None else 0,
        )  # fmt: skip

    def _lost(self, text: bytes) -> Iterator[LossRow | None]:
        if self.losses is None:
            return iter(())
        return self.losses.rows(self.ctx.name, text)

    def _remote(self, connection: PeerConnection | None) -> str:
        if connection is not None:
            return address_text(connection.address)
        return self.connector.address if isinstance(self.connector, Initiator) else ""

    def _blocked(self, text: bytes) -> Iterator[BlockedRow | None]:
        by_otid = self.proxies.by_otid
        if self._stuck() is None:
            return
        topics: list[str] = []
        proxies = (proxy for otid in by_otid.snapshot() if (proxy := by_otid.get(otid)) is not None)
        yield from some_topics(proxies, text, topics)
        stuck, page = self._stuck(), self.ctx.counters
        if stuck is None or (text and not topics):
            return
        state, since_ns, waiting = stuck
        blocked_s = round((self.ctx.loop.now_ns() - since_ns) / NS_PER_S, 1)
        dropped = page[Slot.DROPPED_BLOCKED] + page[Slot.DROPPED_NOT_OPERATIONAL]
        where = self._remote(self._up or self._newest)
        yield BlockedRow(self.ctx.name, where, state, blocked_s, waiting, dropped, tuple(topics))

    def _stuck(self) -> tuple[str, int, int] | None:
        """Return state and since when of a link that does not take what waits, and how many bytes that are."""
        link, queued = self._up, self.ctx.counters[Slot.QUEUED_BYTES] + self.sender.kept_bytes
        if link is None or not self.link.watch.is_up:
            return ("down", self.link.watch.since_ns, queued) if queued else None
        writer = link.writer
        since_ns = writer.stuck_ns
        if since_ns is None:
            return None
        return "waiting" if writer.has_room else "blocking", since_ns, queued + writer.waiting

    def _state(self, due_ns: int | None) -> str:
        if self._up is not None:
            if self.link.watch.is_up:
                return "up" if self.link.watch.carries else DEGRADED
            return "handshake"
        if (newest := self._newest) is not None:
            return "handshake" if newest.writer.is_open else "connecting"
        if isinstance(self.connector, Initiator):
            return "connecting" if due_ns is None else "waiting"
        return "listening" if self.connector.is_listening else "cannot listen"


def _local(connection: PeerConnection | None) -> str:
    base = connection.base if connection is not None else None
    return base.local if isinstance(base, PlainStream) else ""


def _transport(connection: PeerConnection | None, *, has_udp: bool, now_s: float) -> tuple[str, tuple[str, ...], int]:
    """Say what carries the link; names in the certificate of the companion, and for how many days it is valid."""
    if connection is None:
        return "", (), -1
    names: tuple[str, ...] = ()
    parts, days = ["TCP"], -1
    if isinstance(connection.base, PeerTlsStream):
        version, names, expires_s = connection.base.agreed()
        parts.append(version or "TLS")
        days = days_left(expires_s, now_s) if expires_s else -1
    parts += ["LZ4"] * connection.is_compressed + ["UDP"] * has_udp
    return " + ".join(parts), names, days
