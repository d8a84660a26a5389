"""How much counters have grown between two readings, by one rule: what began anew meanwhile has counted from 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from supervisor.admin.status import PortalStatus

K = TypeVar("K")
Number = TypeVar("Number", int, float)


def growth(before: Number, now: Number) -> Number:
    """Find by how much a counter has grown; one that fell began anew."""
    return now - before if now >= before else now


def growths(before: Mapping[K, int], now: Mapping[K, int]) -> dict[K, int]:
    """Find the growth of each counter; one that was not there before has counted from 0."""
    return {name: growth(before.get(name, 0), count) for name, count in now.items()}


def growth_of_portal(before: PortalStatus, now: PortalStatus) -> PortalStatus:
    """Put the growth of each counter in its place; a portal that was taken out and added again has another index."""
    return replace(now, counters=growths(before.counters if before.index == now.index else {}, now.counters))
