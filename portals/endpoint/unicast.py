"""Unicast messages between this TRD and the rest: request ports of the portal, the other DROs, contexts by instance.

    request ports of both contexts      every message, to `portals.shell.unicast`; a request without a domain gets that
                                        of the TRD, so that responses find back
    out into the TRD                    own domain: to the address in the message; else to a DRO that offers it
    route information                   to the request port of each other DRO of the TRD; a new one makes the portal
                                        report itself again, so that the route manager says everything it knows
    context information                 of the TRD to `portals.decisions.immediate.contexts` and back

Source: forwarding notes, sections 10 and 11; peer link notes, sections 7, 11 and 12; wire notes LBMR, 8.2 to 8.6.
Guess: in the TRD questions are asked in the plain form (8.2), answers about other TRDs have the remote form (8.6).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from dro.bus.actor import WorkerContext
from dro.config.dro_xml.model import EndpointConfig
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.metrics.slots import Slot
from dro.proto.interest.announced import DomainRouteTable
from dro.proto.unicast.connections import OnOutcome, Outcome
from dro.proto.unicast.contexts import ContextPlace
from dro.proto.unicast.neighbour_dros import NeighbourDro, NeighbourDros
from dro.transport import sockets
from dro.um.fragment.context import FragmentContext
from dro.wire.lbmc.addressing import read_addressing
from dro.wire.lbmc.dro_blocks import CTXINFO_QUERY
from dro.wire.lbmc.origin import request_with_domain
from dro.wire.lbmr import options as tir
from dro.wire.lbmr import packet as lbmr
from portals.decisions.immediate.contexts import BEHIND
from portals.decisions.immediate.unicast import UnicastForwarding
from portals.endpoint.context_packets import info_of, infos_of_remote, question_packet, remote_packet
from portals.shell.context_traffic import ContextTraffic
from portals.shell.link import Link
from portals.shell.portal import PortalShell
from portals.shell.unicast import UnicastTraffic

NO_PORT_REMEDY: Final = "set request_tcp_bind_request_port to 1"


class TrdUnicast:
    """The part of an endpoint portal that the module text describes."""

    def __init__(
        self,
        ctx: WorkerContext,
        config: EndpointConfig,
        shell: PortalShell,
        link: Link,
        sending: FragmentContext,
        receiving: FragmentContext,
    ) -> None:
        self._ctx = ctx
        self._domain_id = config.domain_id
        self._shell = shell
        self._sending = sending
        self._packet_options = receiving.packet_options
        self._routes = DomainRouteTable()
        own = NeighbourDro(sending.context_instance, *sending.request_address)
        self._come = LimitedLogger.of_events(ctx.log, ctx.loop.now_ns)
        self._neighbours = NeighbourDros(own, config.domain_id, ctx.loop.now_ns())
        self._contexts = ContextTraffic(ctx, shell, config.context_query)
        self.on_context_info = self._contexts.on_context_info
        self._forwarding = UnicastForwarding(ctx.index, config.domain_id, self._contexts.known)
        self._forwarding.own_addresses = frozenset({sending.request_address, receiving.request_address})
        shell.engine.on_entering.append(self._forwarding.on_routes)
        self._traffic = UnicastTraffic(
            ctx, shell.addressed, self._forwarding, link, shell.report_route_info, self._contexts.on_unknown,
            self._neighbours.is_there,
        )  # fmt: skip
        receiving.on_domain_route = self._on_domain_route
        for context in (sending, receiving):
            context.on_unicast = self._on_unicast
        ctx.counters.set(Slot.UNICAST_QUEUE_LIMIT, sending.unicast.limit_bytes)
        if not own.port:
            ctx.log.warning(LogEvent.NO_REQUEST_PORT, extra={"remedy": NO_PORT_REMEDY})

    # from the TRD

    def _on_unicast(self, message: bytes, sender: tuple[int, int]) -> None:
        ip, port = sender
        message = request_with_domain(message, self._domain_id)
        self._traffic.on_received(message, f"{sockets.ip_text(ip)}:{port}", ip, port)

    def _on_domain_route(self, domains: tuple[int, ...], ip: int, port: int) -> None:
        self._routes.learn(domains, ip, port, self._ctx.loop.now_ns())

    def on_packet(self, packet: lbmr.Packet, sender_ip: int, now_ns: int) -> None:
        """A packet of another context of the TRD."""
        match packet.body:
            case lbmr.TnwgContextInfo():
                self._neighbours.on_packet(packet, now_ns, sender_ip)
                if news := self._neighbours.take_news():
                    self._log_neighbours(news)
                    self._shell.report_up()
            case lbmr.ContextInfo() as body if (info := info_of(body, self._domain_id)) is not None:
                self._contexts.questions.on_info(info, BEHIND, now_ns)
            case lbmr.RemoteContextInfo() as body:
                for info in infos_of_remote(body):
                    self._contexts.questions.on_info(info, BEHIND, now_ns)

    def _log_neighbours(self, neighbours: list[NeighbourDro]) -> None:
        for neighbour in neighbours:
            address = f"{sockets.ip_text(neighbour.ip)}:{neighbour.port}"
            extra = {"address": address, "instance": neighbour.instance.hex()}
            self._come.event(LogEvent.NEIGHBOUR_DRO, extra)

    def on_source(self, advertised: lbmr.Tir, domain_id: int, now_ns: int) -> None:
        """Advertisements say where the context of their source is."""
        options = advertised.options.items if advertised.options else ()
        instance = next((item.instance for item in options if isinstance(item, tir.ContextInstance)), None)
        request = next((item for item in options if isinstance(item, tir.ExtendedFunctionality)), None)
        if instance is not None and request is not None:
            self._contexts.known.learn(instance, ContextPlace(domain_id, request.ip, request.port), now_ns)

    # into the TRD

    def on_route_info(self, message: bytes) -> None:
        """Send what the route manager says to the other DROs of the TRD."""
        on_outcome = partial(self._traffic.count_control, len(message))
        for neighbour in self._neighbours:
            self._sending.send_unicast(neighbour.ip, neighbour.port, message, on_outcome)

    def send_unicast(self, domain_id: int, message: bytes, on_outcome: OnOutcome) -> None:
        """A message for a context of this TRD, or for one behind another DRO of it. Raises: DecodeError."""
        if domain_id == self._domain_id:
            reason, address = "it has no address", self._address_in(message)
        else:
            reason, address = "no DRO offers the domain", self._routes.find(domain_id, self._ctx.loop.now_ns())
        if address is None or not all(address) or sockets.is_multicast(address[0]):
            ip, port = address or (0, 0)
            extra = {"reason": reason, "domain_id": domain_id, "ip": sockets.ip_text(ip), "port": port}
            self._ctx.limited(LogEvent.UNICAST_NOT_SENT, extra=extra)
            on_outcome(Outcome.FAILED)
        else:
            self._sending.send_unicast(*address, message, on_outcome)

    def _address_in(self, message: bytes) -> tuple[int, int] | None:
        to = read_addressing(message)
        if to.destination is not None:
            return to.destination.ip, to.destination.port
        place = self._contexts.known.find(to.instance, self._ctx.loop.now_ns()) if to.instance is not None else None
        return None if place is None or place.domain_id != self._domain_id else (place.ip, place.port)

    # time and output, as the shell asks for them

    def on_config(self, config: EndpointConfig) -> None:
        self._contexts.questions.set_options(config.context_query)

    def next_deadline(self) -> int | None:
        deadlines = (self._neighbours.next_deadline(), self._contexts.questions.next_deadline())
        return min((at for at in deadlines if at is not None), default=None)

    def on_timer(self, now_ns: int) -> None:
        self._neighbours.on_timer(now_ns)
        self._contexts.questions.on_timer(now_ns)

    def take_datagrams(self) -> list[bytes]:
        """Take what is for the TRD; questions and answers for siblings leave at once."""
        infos = self._contexts.take_for_link()
        asked = [question_packet(info) if info.flags & CTXINFO_QUERY else remote_packet(info) for info in infos]
        bodies: list[lbmr.Body] = [*self._neighbours.take_outgoing(), *asked]
        return [lbmr.encode(lbmr.Packet(lbmr.VERSION, self._options_of(body), body)) for body in bodies]

    def _options_of(self, body: lbmr.Body) -> lbmr.PacketOptions | None:
        """Return the packet's options; TNWG context information has none: those of its body reach to the end."""
        return None if isinstance(body, lbmr.TnwgContextInfo) else self._packet_options
