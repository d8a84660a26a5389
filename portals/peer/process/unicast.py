"""Unicast and immediate messages over a peer link, and the contexts that the companion knows.

What comes goes to `portals.shell.unicast`, as from a request port of a TRD, or to `portals.shell.multicast`. What
leaves keeps its place behind the data that waits, up to `<uim-max-queue>` bytes of it. A link that is down takes
nothing.

Source: forwarding notes, sections 10, 11 and 19; peer link notes, sections 11 and 12.
"""

from __future__ import annotations

from typing import Final

from dro.bus.actor import WorkerContext
from dro.config.dro_xml.model import PeerConfig
from dro.errors import DecodeError
from dro.metrics.slots import Slot
from dro.proto.peerlink.messages import MessageKind, kind_of
from dro.proto.unicast.connections import OnOutcome, Outcome
from dro.transport.sockets import ip_text
from dro.wire.lbmc import message as lbmc
from dro.wire.source_string import TcpAddress
from portals.decisions.immediate.unicast import UnicastForwarding
from portals.peer.stream.writer import LinkWriter, count_lost
from portals.shell.context_traffic import ContextTraffic
from portals.shell.link import Link
from portals.shell.multicast import IMMEDIATE_SHARE, ImmediateTraffic
from portals.shell.portal import PortalShell
from portals.shell.unicast import UnicastTraffic

NO_DOMAIN: Final = 0


class LinkUnicast:
    """`writer` is that of the connection that is up, or None."""

    def __init__(self, ctx: WorkerContext, config: PeerConfig, shell: PortalShell, link: Link) -> None:
        self.writer: LinkWriter | None = None
        self._ctx = ctx
        self._shell = shell
        self._contexts = ContextTraffic(ctx, shell, config.context_query)
        self.on_context_info = self._contexts.on_context_info
        self.next_deadline, self.on_timer = self._contexts.questions.next_deadline, self._contexts.questions.on_timer
        forwarding = UnicastForwarding(ctx.index, NO_DOMAIN, self._contexts.known)
        self._traffic = UnicastTraffic(
            ctx, shell.addressed, forwarding, link, shell.report_route_info, self._contexts.on_unknown
        )
        self._immediate = ImmediateTraffic(ctx, shell.addressed, NO_DOMAIN, link)
        shell.engine.on_entering += (forwarding.on_routes, self._immediate.on_entering)
        self.on_config(config)

    def on_config(self, config: PeerConfig) -> None:
        self._contexts.questions.set_options(config.context_query)
        self._most = config.uim_max_queue_bytes or config.max_queue_bytes // IMMEDIATE_SHARE
        self._ctx.counters.set(Slot.UNICAST_QUEUE_LIMIT, self._most)

    def on_message(self, message: bytes, peer: TcpAddress) -> None:
        """Anything from the companion that is for nobody else of the portal."""
        name = f"{ip_text(peer.ip)}:{peer.port}"
        if _is_immediate(message):
            self._immediate.on_received(message, name)
        else:
            self._traffic.on_received(message, name, peer.ip)

    def send_immediate(self, message: bytes, on_outcome: OnOutcome) -> None:
        """Send it to the companion, as unicast messages."""
        self.send_unicast(NO_DOMAIN, message, on_outcome)

    def send_unicast(self, domain_id: int, message: bytes, on_outcome: OnOutcome) -> None:
        """Send it to the companion, whichever domain it is for."""
        if self.writer is None:
            on_outcome(Outcome.DOWN)
        elif self.writer.waiting_unicast + len(message) > self._most:
            on_outcome(Outcome.FULL)
        else:
            self.writer.put_unicast(message, on_outcome)

    def send_pending(self) -> None:
        """Questions and answers about contexts."""
        for info in self._contexts.take_for_link():
            message = lbmc.encode(lbmc.control_message(info))
            if self.writer is not None:
                self.writer.put_urgent(message)
            else:
                count_lost(self._ctx.counters, message)


def _is_immediate(message: bytes) -> bool:
    try:
        return kind_of(message) is MessageKind.IMMEDIATE
    except DecodeError:
        return False
