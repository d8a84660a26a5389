"""Lists what portals have dropped, by traffic and reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from dro.metrics.table import PORTAL, metrics
from supervisor.admin.status import PortalStatus

_DROPS: Final = ("dro_portal_dropped_messages_total", "dro_portal_receive_exception_messages_total")


@dataclass(frozen=True, slots=True)
class DropRow:
    """Messages of one portal that were dropped for one reason, since the start of the DRO; fragments count as messages.

    `direction`: received and not passed on, or not sent.
    """

    portal: str
    direction: str
    traffic: str
    reason: str
    messages: int
    bytes: int
    meaning: str


def drop_rows(portals: Iterable[PortalStatus]) -> Iterator[DropRow]:
    """List all reasons of all portals, also those for which nothing was dropped."""
    for portal in portals:
        for metric in metrics(PORTAL, portal.kind):
            if metric.name in _DROPS:
                labels = dict(metric.labels)
                counters = portal.counters
                yield DropRow(
                    portal.name,
                    "send" if metric.name == _DROPS[0] else "receive",
                    labels["traffic"],
                    labels["reason"],
                    counters.get(metric.row, 0),
                    counters.get(f"{metric.row}_BYTES", 0),
                    metric.title,
                )
