"""The interface of a portal kind to the shell: its link to a TRD (`portals.endpoint`), or to a companion DRO.

A link joins sources, opens proxies and learns interest; it decides nothing about them. It passes joined sources to the
shell (`PortalShell.add_source` and similar) and interest to `take_interest`; `perform` carries out effects of the core.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from dro.bus.messages import Origin, PortalGone, PortalUp
from dro.proto.interest.events import InterestEvent
from dro.proto.unicast.connections import OnOutcome
from portals.decisions.drain import Quiescence
from portals.decisions.effects import ProxyEffect


class Link(Protocol):
    """See the module text. Times are those of the loop."""

    # the two cores

    def take_interest(self) -> list[InterestEvent]:
        """Return what receivers behind this portal began or ceased to want."""

    def perform(self, effect: ProxyEffect, now_ns: int) -> None: ...

    def together(self) -> AbstractContextManager[object]:
        """Effects carried out within it may go out together."""

    def can_deliver(self, now_ns: int) -> bool:
        """Whether what the proxy sources send now reaches those who want it: receivers have joined, the link is up."""

    def send_pending(self, now_ns: int) -> None:
        """Called when the core and the link have nothing more to ask of each other."""

    def next_deadline(self) -> int | None: ...

    def on_timer(self, now_ns: int) -> None: ...

    # routes

    def describe(self) -> PortalUp | PortalGone:
        """The portal, for the route manager."""

    def on_routes(self, reachable: set[int], now_ns: int) -> None:
        """The domains that can be reached through this portal by those behind it."""

    def on_origins(self, origins: tuple[Origin, ...]) -> None:
        """The paths from other domains to this DRO."""

    def on_route_info(self, message: bytes) -> None:
        """An LBMC message of the route manager, for the other DROs behind this portal."""

    # unicast messages, see `portals.shell.unicast`

    def send_unicast(self, domain_id: int, message: bytes, on_outcome: OnOutcome) -> None:
        """Send it towards that domain; `on_outcome` is called once with what has become of it. Raises: DecodeError."""

    def on_context_info(self, worker: int, message: bytes) -> None:
        """A question for a context or an answer, from a sibling or from behind this portal. Raises: DecodeError."""

    # multicast immediate messages, see `portals.shell.multicast`

    def send_immediate(self, message: bytes, on_outcome: OnOutcome) -> None:
        """Send it to whoever is behind this portal; `on_outcome` as above."""

    # the drain, see `portals.decisions.drain.DrainablePortal`

    def quiescence(self, worker: int | None, now_ns: int) -> Quiescence: ...

    def finals_pending(self) -> int: ...

    # the end

    def stop(self) -> int:
        """Close all proxy sources; returns how long, in ns, `close` has to wait for that."""

    def close(self) -> None: ...

    def refresh_gauges(self) -> None: ...
