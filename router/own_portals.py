"""The working portals of this DRO: what each leads to, and which of them traffic passes.

Each domain and each other DRO is a neighbour by one portal: a domain by the first that reported it, a DRO by the oldest
link, so that both its ends choose the same. A second one is refused, stays up without traffic, and is taken when the
first one goes. A link that leads back to this DRO is always refused. A link whose other end is not known yet is no
neighbour.

Source: DRO guide, "Unsupported Configurations"; log catalogue, "peer link connected but refused logically".
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from router.route_info import COST_MAX, NEIGHBOURS_MAX
from router.topology import Hotlink, Neighbour

DEPARTURE_COST: Final = 1 << 24
"""Guess: more than the sum of all costs that anybody configures."""
DUPLICATE: Final = "duplicate adjacent node id"
LOOP: Final = "the link leads back to this DRO"
TOO_MANY: Final = f"this DRO has {NEIGHBOURS_MAX} neighbours already"


@dataclass(frozen=True, slots=True)
class Portal:
    """A portal as it reports itself. `domain_id` is 0 for a link, whose `neighbour` is 0 until it is known."""

    domain_id: int
    cost: int
    neighbour: int = 0
    hotlink_index: int = 0
    since_us: int = field(default=0, compare=False)
    """Since when the link works; one that has broken and is back is the same portal."""

    @property
    def node_id(self) -> int:
        return self.domain_id or self.neighbour

    @property
    def is_link(self) -> bool:
        return not self.domain_id


@dataclass(frozen=True, slots=True)
class DomainTaken:
    """For the log: a second portal reports that it is in a domain; it is ignored."""

    worker: int
    domain_id: int


@dataclass(frozen=True, slots=True)
class LinkRefused:
    """For the log: no traffic passes that link, and why."""

    worker: int
    neighbour: int
    why: str


class OwnPortals:
    """Own portals that work, in the order in which they came up."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._extra_cost = 0
        self._up: dict[int, Portal] = {}
        self.accepted: dict[int, Portal] = {}
        """By worker: the portals that traffic passes."""
        self.refused: dict[int, str] = {}
        """Why, by worker."""

    def get(self, worker: int) -> Portal | None:
        return self._up.get(worker)

    def raise_costs(self) -> list[DomainTaken | LinkRefused]:
        """Raise the costs of all of them so much that any other path is cheaper."""
        if not self._extra_cost:
            self._extra_cost = DEPARTURE_COST
            self._up = {worker: self._at_cost(portal) for worker, portal in self._up.items()}
        return self._choose()

    def _at_cost(self, portal: Portal) -> Portal:
        return replace(portal, cost=min(COST_MAX, portal.cost + self._extra_cost))

    def set(self, worker: int, portal: Portal) -> list[DomainTaken | LinkRefused]:
        """One that works, or reports other values; what leads elsewhere than before comes last."""
        portal = self._at_cost(portal)
        known = self._up.get(worker)
        if known is not None and known.node_id != portal.node_id:
            del self._up[worker]
        self._up[worker] = portal
        return self._choose()

    def remove(self, worker: int) -> list[DomainTaken | LinkRefused]:
        self._up.pop(worker, None)
        return self._choose()

    def _choose(self) -> list[DomainTaken | LinkRefused]:
        """Choose anew who is accepted; the result names those that were not refused before."""
        before, self.refused, self.accepted = self.refused, {}, {}
        taken = {self._node_id: LOOP}
        told: list[DomainTaken | LinkRefused] = []
        for worker, portal in sorted(self._up.items(), key=lambda item: item[1].since_us):
            if not (node := portal.node_id):
                continue
            why = taken.get(node, TOO_MANY if len(taken) > NEIGHBOURS_MAX else "")
            if not why:
                taken[node] = DUPLICATE
                self.accepted[worker] = portal
                continue
            self.refused[worker] = why
            if before.get(worker) != why:
                told.append(LinkRefused(worker, node, why) if portal.is_link else DomainTaken(worker, node))
        return told

    def workers(self) -> dict[int, int]:
        """The portal to each neighbour."""
        return {portal.node_id: worker for worker, portal in self.accepted.items()}

    def neighbours(self) -> tuple[Neighbour, ...]:
        return tuple(sorted(Neighbour(p.node_id, p.cost, p.cost) for p in self.accepted.values()))

    def hotlinks(self) -> tuple[Hotlink, ...]:
        return tuple(sorted(Hotlink(p.domain_id, p.hotlink_index) for p in self.accepted.values() if p.hotlink_index))
