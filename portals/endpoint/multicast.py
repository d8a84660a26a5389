"""Multicast immediate messages between this TRD and the rest of the network.

The receiving context hears the group `mim_incoming_address` of the TRD, all sessions but that of this portal; the
sending context sends what comes from other TRDs to `mim_outgoing_address`. Source: forwarding notes, section 12.
Guess: a message without an OTID gets that of its session, with topic index and context 0, which all DROs of a TRD make
alike.
"""

from __future__ import annotations

import zlib
from functools import lru_cache

from dro.bus.actor import WorkerContext
from dro.config.dro_xml.model import EndpointConfig
from dro.proto.resolver.cache import address_rank
from dro.proto.unicast.connections import OnOutcome
from dro.transport.sockets import ip_text
from dro.um.fragment.context import FragmentContext
from dro.wire import otid
from dro.wire.lbmr.records import write_transport
from dro.wire.source_string import TransportAddress
from portals.shell.link import Link
from portals.shell.multicast import IMMEDIATE_SHARE, ImmediateTraffic
from portals.shell.portal import PortalShell


@lru_cache(maxsize=1024)
def otid_of(session: TransportAddress) -> bytes:
    code, body = write_transport(session)
    return otid.encode(session, 0, 0, zlib.crc32(bytes((code,)) + body))


class TrdImmediate:
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
        """Raises: ResourceError."""
        self._traffic = ImmediateTraffic(ctx, shell.addressed, config.domain_id, link)
        shell.engine.on_entering.append(self._traffic.on_entering)
        self._sending = sending.immediate
        self.on_config(config)
        receiving.immediate.ignored = self._sending
        receiving.immediate.listen(self._on_message)

    def on_config(self, config: EndpointConfig) -> None:
        self._sending.queue_max_bytes = config.max_queue_bytes // IMMEDIATE_SHARE

    def _on_message(self, message: bytes, session: TransportAddress) -> None:
        ip, port, _ = address_rank(session)
        self._traffic.on_received(message, f"{ip_text(ip)}:{port}", otid_of(session))

    def send(self, message: bytes, on_outcome: OnOutcome) -> None:
        self._sending.send(message, on_outcome)
