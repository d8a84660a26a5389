"""The UDP part of a peer portal, over all its connections: rate limits, counts, and what the link has of it now.

Each connection gets a session id and, with TLS, a key of its own, which the companion is told in HELLO. The link works
only with both TCP and UDP: when packets do not get through, the whole link is made anew.

Source: peer link notes, section 15; DRO guide, 2.1.1 and `<udp>`. Guess: unicast messages stay on TCP, as nothing would
tell of their loss.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from dataclasses import replace

from dro.bus.actor import WorkerContext
from dro.bus.totals import Totals
from dro.clock import ms
from dro.config.dro_xml.model import PeerConfig
from dro.log.events import LogEvent
from dro.metrics.slots import Slot
from dro.os_errors import remedy_of
from dro.proto.peerlink.datagram_session import DatagramCounts, DatagramSession, SessionIds
from dro.proto.peerlink.early_data import LingeringSources
from dro.proto.peerlink.messages import Hello
from dro.proto.peerlink.session import CloseLink, LinkEnd, LinkUp
from dro.proto.ratelimit import RateLimiter
from dro.timers import Timer
from dro.transport import sockets
from dro.transport.session import SessionSink
from dro.wire.peer_datagram import KEY_BYTES, SALT_BYTES, DatagramKey, DatagramReader, DatagramWriter
from dro.wire.source_string import address_text
from portals.peer.datagrams.gauges import datagram_totals, recovery_gauges
from portals.peer.datagrams.link_datagrams import DatagramAddresses, LinkDatagrams
from portals.peer.datagrams.packet_sender import PacketSender
from portals.peer.datagrams.packet_writer import PacketWriter
from portals.peer.link_sources import LinkSources
from portals.peer.options import batching_of, datagram_options_of
from portals.peer.stream.connection import PeerConnection
from portals.peer.stream.receiver import LinkReceiver
from portals.shell.losses import Losses


def _key(told: bytes) -> DatagramKey | None:
    return DatagramKey(told[:KEY_BYTES], told[KEY_BYTES:]) if told else None


class UdpPart:
    """Implements `portals.peer.datagrams.link_datagrams.DatagramOwner` and `portals.peer.link_sources.LateData`."""

    def __init__(
        self,
        ctx: WorkerContext,
        config: PeerConfig,
        on_up: Callable[[], object],
        remove: Callable[[LinkSources, int], object],
    ) -> None:
        """`on_up`: packets get through, both ways; `remove` removes a source that has lingered."""
        assert config.udp is not None
        self._ctx = ctx
        self._udp = udp = config.udp
        self._uses_tls = config.tcp.tls is not None
        self._on_up = on_up
        self._remove = remove
        self._options = datagram_options_of(udp)
        self.sender = PacketSender(ctx.loop, batching_of(config))
        self.sender.linger_ns = self._options.loss.generation_ns
        now_ns, interval_ns = ctx.loop.now_ns(), ms(udp.rate_interval_ms)
        self._data_limiter = RateLimiter(udp.data_rate_bps, interval_ns, now_ns)
        self._rx_limiter = RateLimiter(udp.retransmit_rate_bps, interval_ns, now_ns)
        self.counts = DatagramCounts()
        self.losses = Losses()
        self._send_errors = self._unsent = 0
        self._lost = 0  # of the counts, what was logged
        self._datagrams: LinkDatagrams | None = None
        self._connection: PeerConnection | None = None
        self._held: LinkDatagrams | None = None  # of the connection before, which may go on
        self._offers: LinkSources | None = None
        self._lingering = LingeringSources(self._options.loss.generation_ns)
        self._timer: Timer | None = None
        self._totals = Totals(ctx.counters, self._counted())

    def complete_hello(self, own: Hello) -> Hello:
        """Add to HELLO what is of one connection alone."""
        key = secrets.token_bytes(KEY_BYTES + SALT_BYTES) if self._uses_tls else b""
        session = secrets.randbelow(0xFFFFFFFF) + 1
        return replace(own, udp_port=self._udp.port, udp_session=session, udp_key=key)

    # a link

    def connect(
        self, connection: PeerConnection, up: LinkUp, offers: LinkSources, sink: SessionSink
    ) -> LinkDatagrams | None:
        """Both have said who they are. None: it has ended the connection."""
        own, other, udp, loop = connection.session.own, up.hello, self._udp, self._ctx.loop
        if self._uses_tls and not other.udp_key:
            remedy = "use a DRO there that seals datagrams"
            connection.end("the companion has told no key for UDP", remedy, LinkEnd.NEGOTIATION)
            return None
        self._connection, self._offers = connection, offers
        codec = None
        if up.is_compressed or self._uses_tls:
            codec = (
                DatagramWriter(compresses=up.is_compressed, key=_key(own.udp_key)),
                DatagramReader(is_compressed=up.is_compressed, key=_key(other.udp_key)),
            )
        core = DatagramSession(
            self._options,
            SessionIds(own.udp_session, other.udp_session),
            self._data_limiter,
            self._rx_limiter,
            random.random,
            loop.now_ns(),
            self.counts,
        )
        writer = PacketWriter(
            loop, core.source, own.udp_session, self._data_limiter, codec[0] if codec is not None else None,
            connection.writer, self.sender.on_room, self._on_send_error,
        )  # fmt: skip
        place = DatagramAddresses(connection.local_ip, udp.port, sockets.ip_text(connection.address.ip), other.udp_port)
        try:
            datagrams = LinkDatagrams(loop, udp, place, core, codec, writer, connection.receiver, sink, self)
        except OSError as e:
            what = f"UDP port {udp.port} of {place.local_ip} cannot be used: {e.strerror}"
            connection.end(what, remedy_of(e.errno), LinkEnd.ERROR)
            return None
        self._datagrams = datagrams
        self.sender.attach_packets(writer, sockets.interface_mtu(place.local_ip))
        datagrams.start()
        return datagrams

    def close(self, *, resumes: bool) -> None:
        """The link is over. `resumes`: what it lacks may yet come over another connection."""
        datagrams, offers, lingering = self._datagrams, self._offers, self._lingering
        self._connection = None
        if datagrams is not None:
            datagrams.close(resumes=resumes)
            if resumes and self._held is None:  # else the companion has not said where it goes on, and repeats all
                self._held = datagrams
        self._datagrams = self._offers = None
        self._lingering = LingeringSources(self._options.loss.generation_ns)
        if self._timer is not None:
            self._timer.cancel()
        if offers is not None and not resumes:  # else they are held as all others
            for number in lingering.all():
                self._remove(offers, number)

    def on_resumed(self, *, is_whole: bool) -> None:
        """The companion sends what the connection before lacked, and all behind it once more, or cannot."""
        held, self._held = self._held, None
        if held is not None and not is_whole and self._connection is not None:
            held.give_up(self._connection.receiver)

    def on_away(self) -> None:
        """The link was not back in time: what it lacked is lost."""
        held, self._held = self._held, None
        if held is not None:
            held.give_up(held.receiver)

    # sources

    def on_source(self, number: int) -> None:
        """Take data that has come before the source was told: it is joined now."""
        if self._datagrams is not None:
            self._datagrams.on_source(number)

    def take(self, otid: bytes) -> int | None:
        return self._lingering.take(otid)

    def on_end(self, otid: bytes, number: int) -> None:
        self._lingering.on_end(otid, number, self._ctx.loop.now_ns())
        if self._timer is None or not self._timer.is_pending:
            self._arm()

    def _arm(self) -> None:
        due_ns = self._lingering.next_deadline()
        if due_ns is not None:
            self._timer = self._ctx.loop.call_at(due_ns, self._on_timer)

    def _on_timer(self) -> None:
        if self._datagrams is None or self._offers is None:
            return
        receiver = self._datagrams.core.receiver
        for number in self._lingering.pop_due(self._ctx.loop.now_ns(), receiver.expected or 0, receiver.contiguous):
            self._remove(self._offers, number)
        self._arm()

    # what the datagrams report

    def on_canary(self, raw: bytes) -> bool:
        return self._connection is not None and self._connection.on_canary(raw)

    def is_known(self, number: int) -> bool:
        return self._offers is not None and self._offers.is_known(number)

    def on_datagrams_up(self) -> None:
        assert self._connection is not None
        self._ctx.log.info(LogEvent.PEER_UDP_UP, extra={"peer": self._peer(), "port": self._udp.port})
        self._on_up()

    def on_datagrams_over(self, over: CloseLink) -> None:
        if self._connection is not None:
            self._connection.end(over.text, over.remedy, over.end)

    def on_given_up(self, receiver: LinkReceiver, count: int, cause: str) -> None:
        source, now_ns = f"PEER:{address_text(receiver.peer)}", self._ctx.loop.now_ns()
        self.losses.on_lost(source, receiver.sources.values(), count, cause, now_ns)

    def on_dropped(self, reason: str, address: str, remedy: str) -> None:
        extra = {"peer": address, "reason": reason, "remedy": remedy}
        self._ctx.limited(LogEvent.PEER_DATAGRAM_DROPPED, extra=extra, key=(LogEvent.PEER_DATAGRAM_DROPPED, reason))

    def _on_send_error(self, error: OSError, datagrams: int) -> None:
        """Count datagrams as sent and lost: they are in the window, and the companion asks for them again."""
        self._unsent += datagrams
        self._send_errors += 1
        extra = {"session": self._peer(), "error": error.strerror, "failed": self._send_errors}
        self._ctx.limited(LogEvent.SEND_FAILED, extra=extra)

    def _peer(self) -> str:
        if self._connection is None:
            return ""
        return sockets.ip_text(self._connection.address.ip)

    # counters

    def _counted(self) -> dict[Slot, int]:
        counts = self.counts
        return datagram_totals(counts) | {
            Slot.BAD_DATAGRAMS: sum(counts.dropped.values()),
            Slot.UNRECOVERABLE: counts.unrecoverable,
            Slot.UNSENT: self._unsent,
        }

    def refresh_gauges(self) -> None:
        counts, page = self.counts, self._ctx.counters
        self._totals.show(self._counted())
        for slot, value in recovery_gauges(counts.recoveries).items():
            page.set(slot, value)
        if counts.unrecoverable > self._lost:
            extra = {"lost": counts.unrecoverable - self._lost}
            self._lost = counts.unrecoverable
            self._ctx.limited(LogEvent.PEER_DATAGRAMS_LOST, extra=extra)
