"""The engine of a portal: effects of its core to host and link, interest of the link to the core, in one order.

State: effects that are not carried out yet, and interest that is not passed on yet. A portal has three hosts: the shell
of a process (`portals.shell.portal`), the same shell on the loop of a test, and the simulator
(`supervisor.tools.simulate.portal`). A host gives the time and the turns, and performs what concerns siblings and the
data path. Nothing new is begun while effects wait for a later turn.

Source: forwarding notes, sections 2 to 10.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from typing import Final, Protocol

from dro.bus.messages import Origin, Route, RouteTable
from dro.clock import ms
from dro.proto.interest.events import InterestEvent
from portals.decisions.core import PortalCore
from portals.decisions.effects import Effect, GoOn, HostEffect, ProxyEffect
from portals.decisions.relearning import Relearning
from portals.decisions.routes import entering_routes

INTEREST_AT_ONCE: Final = 16
"""Topics and patterns that are passed on in a turn; one datagram can ask for 700."""
ACT_NS: Final = ms(3)
"""Bounds a turn: what is not under way by then is left to the next."""
STEP: Final = 24
"""Steps at once: about two milliseconds when each of them opens a proxy source; less costs more for each."""


class EngineLink(Protocol):
    """Connects the portal with a TRD, or with the companion of a peer link. Times are those of the host."""

    def take_interest(self) -> list[InterestEvent]:
        """Return what receivers behind this portal began or ceased to want."""

    def perform(self, effect: ProxyEffect, now_ns: int) -> None: ...

    def together(self) -> AbstractContextManager[object]:
        """Effects carried out within it may go out together."""

    def send_pending(self, now_ns: int) -> None:
        """Called when the core and the link have nothing more to ask of each other."""

    def next_deadline(self) -> int | None: ...

    def on_timer(self, now_ns: int) -> None: ...

    def on_routes(self, reachable: set[int], now_ns: int) -> None:
        """The domains that can be reached through this portal by those behind it."""

    def on_origins(self, origins: tuple[Origin, ...]) -> None:
        """The paths from other domains to this DRO."""


class EngineHost(Protocol):
    """Gives what a process has around the cores. Nothing of it calls back from within, but `act_soon` later."""

    def now_ns(self) -> int: ...

    def act_soon(self) -> None:
        """Call `on_due` soon: once for all messages and packets of this turn."""

    def run_in_slices(self, steps: Iterator[None]) -> object: ...

    @property
    def is_returning(self) -> bool:
        """Whether siblings still give the portal back what it had: new interest waits for that, as data does."""

    def perform(self, effect: HostEffect) -> None: ...

    def on_interest(self, event: InterestEvent) -> None:
        """Count a change of interest, which the core takes next."""

    def on_acted(self) -> None:
        """Send what waits for siblings, and set the timer for `next_deadline`."""


class PortalEngine:
    """Made before the link, which needs it; nothing happens before `start`."""

    def __init__(self, core: PortalCore, host: EngineHost) -> None:
        self.core = core
        self._host = host
        self._link: EngineLink
        self._relearning = Relearning(host.now_ns())
        self._is_acting = False
        self._effects: deque[Effect] = deque()  # of the core, not carried out yet
        self._interest: deque[InterestEvent] = deque()  # of the link, not passed on yet
        self._room = 0  # for more of it in this turn
        self.on_entering: list[Callable[[tuple[Route, ...]], object]] = []
        """Told of the routes by which traffic enters the DRO here, as often as they change."""

    def start(self, link: EngineLink) -> None:
        self._link = link
        self.act()

    # what is to be done

    @property
    def is_behind(self) -> bool:
        """Whether something that the core asked for waits for a later turn."""
        return bool(self._effects)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is left that core or link asked for."""
        return not self._effects and not self._interest and not self.core.has_effects

    def act(self, limit_ns: int | None = ACT_NS) -> None:
        """Carry out what the core asks for and what the link reports, for so long; None: however long it takes.

        The next turn goes on with what is left. What is carried out may call back (a cached source is found at once);
        the outermost call goes on with that.
        """
        if self._is_acting:
            return
        self._is_acting = True
        self._room = INTEREST_AT_ONCE
        end_ns = None if limit_ns is None else self._host.now_ns() + limit_ns
        is_done = False
        try:
            while self._exchange(end_ns):
                pass
            is_done = self.is_quiet
        finally:
            self._is_acting = False
            if not is_done:
                self._host.act_soon()
        self._link.send_pending(self._host.now_ns())
        self._host.on_acted()

    def carry_out(self, effect: Effect) -> None:
        """Carry out what was asked for earlier, behind what waits."""
        self._effects.append(effect)
        self._host.act_soon()

    def act_on_all(self) -> None:
        """Do the same until nothing that the core has asked for so far waits."""
        self.act(None)

    def _exchange(self, end_ns: int | None) -> bool:
        """Carry effects of the core to siblings and link, or else interest of the link to the core.

        False: there is neither, or no time for more.
        """
        effects = self._effects
        effects += self.core.take_effects()
        now_ns = self._host.now_ns()
        if not effects:
            return self._pass_interest(now_ns)
        with self._link.together():
            while effects:
                self._perform(effects.popleft(), now_ns)
                now_ns = self._host.now_ns()
                if end_ns is not None and now_ns >= end_ns:
                    return False
        return True

    def _pass_interest(self, now_ns: int) -> bool:
        if self._host.is_returning:
            return False
        self._interest += self._link.take_interest()
        events = [self._interest.popleft() for _ in range(min(self._room, len(self._interest)))]
        self._room -= len(events)
        for event in events:
            self._host.on_interest(event)
            self.core.on_interest(event, now_ns)
        return bool(events)

    def _perform(self, effect: Effect, now_ns: int) -> None:
        if isinstance(effect, GoOn):
            self._host.run_in_slices(self._go_on(effect.steps))
        elif isinstance(effect, HostEffect):
            self._host.perform(effect)
        else:
            self._link.perform(effect, now_ns)

    def _go_on(self, steps: Iterator[object]) -> Iterator[None]:
        while self._effects or self._take_steps(steps) == STEP:
            self.act()
            yield
        self.act()

    def _take_steps(self, steps: Iterator[object]) -> int:
        """Take `STEP` at most, and return how many there were."""
        self.core.deletion_delay.pass_time(self._host.now_ns())
        return sum(1 for _ in islice(steps, STEP))

    # time

    def next_deadline(self) -> int | None:
        """Return the next deadline; the core has none while what it asked for before waits."""
        deadlines = (None if self._effects else self.core.next_deadline(), self._link.next_deadline())
        return min((at for at in deadlines if at is not None), default=None)

    def on_due(self) -> None:
        """Core and link do what is due."""
        now_ns = self._host.now_ns()
        for part in (self._link,) if self._effects else (self.core, self._link):
            if (deadline := part.next_deadline()) is not None and deadline <= now_ns:
                part.on_timer(now_ns)
        self.act()

    def check_relearnt(self) -> bool:
        """Whether the portal knows its TRD again; to be called every `CHECK_NS` until it does."""
        core, now_ns = self.core, self._host.now_ns()
        if not self._relearning.is_over(core.known, now_ns, is_told=core.siblings.have_sent_initial_state):
            return False
        self.act_on_all()  # sources that have still to be joined are not forgotten
        core.on_relearnt(now_ns)
        self.act()
        return True

    # routes

    def on_routes(self, table: RouteTable) -> None:
        """Take a route table; what it leads to here is decided at once or in slices. `on_paths` follows."""
        self.core.on_routes(table.version, table.routes, self._host.now_ns())

    def on_paths(self, table: RouteTable) -> None:
        """Tell all but the core what the table says of what enters and leaves here."""
        entering = entering_routes(self.core.me, table.routes)
        for take in self.on_entering:
            take(entering)
        self._link.on_routes({route.interested_domain for route in entering}, self._host.now_ns())
        self._link.on_origins(table.origins)
        self._host.act_soon()
