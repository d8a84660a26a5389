"""Hosts of a link's core: its effects in order, and what the engine of the portal asks of the core.

State: effects that are not carried out yet. A process (`portals.peer.process.portal`) adds sockets and the data path,
the simulator (`supervisor.tools.simulate.peer`) a pipe.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

from dro.bus.messages import Origin, PortalGone, PortalUp
from dro.proto.interest.events import InterestEvent
from portals.decisions.effects import JoinKnownSource, ProxyEffect
from portals.peer.link_core import LinkCore
from portals.peer.link_effects import LinkCoreEffect


class LinkHost(ABC):
    """Implements the part of `portals.decisions.engine.EngineLink` that concerns the core alone."""

    def __init__(self, link: LinkCore) -> None:
        self.link = link
        self._effects: deque[LinkCoreEffect] = deque()  # not carried out yet
        self._is_performing = False

    @abstractmethod
    def _carry_out_one(self, effect: LinkCoreEffect) -> None:
        """Carry out an effect of the core."""

    @abstractmethod
    def _act_soon(self) -> None:
        """Let the core of the portal act in this turn."""

    def _carry_out(self) -> None:
        """Carry out effects; what that calls back only adds to them, and the outermost call goes on with it."""
        if self._is_performing:
            return
        self._is_performing = True
        try:
            while True:
                self._effects += self.link.take_effects()
                if not self._effects:
                    break
                self._carry_out_one(self._effects.popleft())
        finally:
            self._is_performing = False

    def _follow(self) -> None:
        """Carry out effects, then let the portal decide about what they have changed."""
        self._carry_out()
        self._act_soon()

    def _step_by_step(self, steps: Iterator[None]) -> Iterator[None]:
        for _ in steps:
            self._follow()
            yield
        self._follow()

    # the link, as the engine sees it

    def take_interest(self) -> list[InterestEvent]:
        return self.link.heard.take_events()

    def perform(self, effect: ProxyEffect, now_ns: int) -> None:
        if isinstance(effect, JoinKnownSource):
            self.link.join_known(effect.source)
        else:
            self.link.perform(effect)
        self._carry_out()

    def together(self) -> AbstractContextManager[object]:
        return nullcontext()

    def describe(self) -> PortalUp | PortalGone:
        return self.link.describe()

    def on_routes(self, reachable: set[int], now_ns: int) -> None:
        self.link.on_routes()
        self._carry_out()

    def on_origins(self, origins: tuple[Origin, ...]) -> None:
        self.link.on_origins(origins)
        self._carry_out()

    def on_route_info(self, message: bytes) -> None:
        self.link.on_route_info(message)
        self._carry_out()
