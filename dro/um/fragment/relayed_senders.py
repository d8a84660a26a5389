"""Who sent a datagram that a resolver daemon has passed on: DROs by the address that they name in their packets.

State: the addresses of DRO contexts, bounded. Called by the topic resolution of a context whose channel is relayed. The
engine tells living DROs from dead ones by address, and behind a daemon all packets come from one. Guess: the first
address that a DRO context names, in an advertisement or a domain route, stands for its host in all that it sends. Of
other contexts nothing depends on the address but limits, which then hold for the daemon.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from dro.wire.lbmr import packet as lbmr

DROS_MAX: Final = 1024


class RelayedSenders:
    """See the module text."""

    def __init__(self) -> None:
        self._dros: OrderedDict[bytes, int] = OrderedDict()

    def address_of(self, packet: lbmr.Packet, relay: int) -> int:
        """Return the IPv4 address of the DRO that sent the packet; that of the `relay` for all others."""
        options = packet.options
        if options is None or not options.is_from_dro or options.source_id is None:
            return relay
        known = self._dros.get(options.source_id)
        if known is not None:
            self._dros.move_to_end(options.source_id)
            return known
        match packet.body:
            case lbmr.RemoteDomainRoute(address=address):
                pass
            case lbmr.Queries(tirs=(first, *_)) | lbmr.WildcardQueries(tirs=(first, *_)):
                address = getattr(first.transport, "ip", relay)
            case _:
                return relay
        self._dros[options.source_id] = address
        if len(self._dros) > DROS_MAX:
            self._dros.popitem(last=False)
        return address
