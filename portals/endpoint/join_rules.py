"""Which sources of its TRD an endpoint portal joins, and at which cost it reports them to its siblings.

What an access control list lets in, and, where equally good paths are shared, sources of the trees that enter here.
Knows the routes and the list; asked by the receiving context of a process, and by the simulator.
"""

from __future__ import annotations

from dro.proto.resolver.joining import Carries, Judge
from dro.shares import share_of
from dro.wire.lbmr import packet as lbmr
from dro.wire.source_string import TransportAddress
from portals.decisions.acl_enforcement import AclEnforcement
from portals.decisions.routes import Routes


class JoinRules:
    """See the module text. `acl` is replaced when another list holds."""

    def __init__(self, domain_id: int, routes: Routes, acl: AclEnforcement) -> None:
        self.acl = acl
        self._domain_id = domain_id
        self._routes = routes

    @property
    def judges(self) -> tuple[Judge | None, Carries | None]:
        """Return `may_enter` and `carries`; None for one that could never refuse."""
        judge = self.may_enter if self.acl.judges_sources else None
        return judge, self.carries if self._routes.is_divided else None

    def may_enter(self, topic: bytes, address: TransportAddress) -> bool:
        """Whether the list lets that source in."""
        return self.acl.may_enter(topic, address)

    def carries(self, otid: bytes, domain_id: int) -> bool:
        """Whether the paths of the source's tree enter the DRO here. `domain_id`: 0 for the portal's own."""
        return self._routes.carries(domain_id or self._domain_id, share_of(otid))


def cost_through(cost: lbmr.Cost | None, own_cost: int) -> tuple[int, int]:
    """Return hop count and cost of what is advertised with `cost`, with that of this portal."""
    return (cost.hop_count, cost.cost + own_cost) if cost is not None else (0, own_cost)
