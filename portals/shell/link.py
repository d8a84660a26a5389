"""The interface of a portal kind to the shell: its link to a TRD (`portals.endpoint`), or to a companion DRO.

A link joins sources, opens proxies and learns interest; it decides nothing about them. It passes joined sources to the
shell (`PortalShell.add_source` and similar) and interest to `take_interest`; `perform` carries out effects of the core.
"""

from __future__ import annotations

from typing import Protocol

from dro.bus.messages import PortalGone, PortalUp
from dro.proto.unicast.connections import OnOutcome
from portals.decisions.drain import Quiescence
from portals.decisions.engine import EngineLink


class Link(EngineLink, Protocol):
    """See the module text. Times are those of the loop."""

    def can_deliver(self, now_ns: int) -> bool:
        """Whether what the proxy sources send now reaches those who want it: receivers have joined, the link is up."""

    # routes

    def describe(self) -> PortalUp | PortalGone:
        """The portal, for the route manager."""

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
