"""The DROs of the demonstration, as their admin sockets show them: links, paths, counters.

A thread of its own looks at them twice a second, and does what an operator would do before a link is taken out of
service: `DemoNetwork` raises the cost of a portal by a reload, waits until the routes of all DROs avoid the link, and
pauses the portal; later it does the reverse. `tnwgdctl` sends the same requests.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dro.bus.listing import PATH, TOPOLOGY
from dro.errors import DroError
from dro.metrics.slots import Slot
from supervisor.admin.client import Client, CommandError, find_dro
from supervisor.admin.lists import rows_of
from supervisor.admin.status import ROUTE_MANAGER_NAME, PortalsStatus, PortalStatus
from supervisor.tools.demo.resolvers import DemoResolver, ResolverFigures, figures_of
from supervisor.tools.demo.screen import CounterRates


@dataclass(frozen=True)
class DemoLayout:
    """DROs between TRD 1, where the source is, and the other TRDs."""

    title: str
    files: Mapping[str, str]  # by name of the DRO
    links: tuple[tuple[str, str], ...]
    receiving: tuple[int, int]  # the TRD of the receiver, and of the wildcard receiver
    dros_to: Mapping[int, tuple[str, ...]]
    """To each receiving TRD when all links are up."""
    detour: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """The same while the link of `CUT_PORTAL` is cut; empty where no link is ever cut."""
    resolvers: tuple[DemoResolver, ...] = ()
    """Daemons of topic resolution; without any, topics are resolved by multicast."""
    trd_files: Mapping[int, str] = field(default_factory=dict)
    """The files of UM options of TRDs that have one of their own."""

    @property
    def trds(self) -> tuple[int, ...]:
        return (1, *self.dros_to)


LINKS: Final = (("A", "B"), ("A", "C"), ("B", "C"))
TRIANGLE: Final = DemoLayout(
    "three DROs in a triangle", {name: f"triangle-{name.lower()}.xml" for name in "ABC"}, LINKS, (2, 3),
    {2: ("A", "B"), 3: ("A", "C")}, {2: ("A", "B"), 3: ("A", "B", "C")},
)  # fmt: skip
DIRECT: Final = DemoLayout("TRD 1 -> tnwgd -> TRD 2", {"DEMO": "direct.xml"}, (), (2, 2), {2: ("DEMO",)})
CLOUD: Final = DemoLayout(
    "two TRDs without multicast", {name: f"cloud-{name.lower()}.xml" for name in "AB"}, (("A", "B"),), (2, 2),
    {2: ("A", "B")}, {},
    tuple(DemoResolver(name, name.rstrip("12")) for name in ("lbmrd1", "lbmrd2", "umsrs")),
    {1: "cloud-trd1.cfg", 2: "cloud-trd2.cfg"},
)  # fmt: skip
CUT_PORTAL: Final = "A-C"
COST, DETOUR_COST = 1, 10
LOOK_S: Final = 0.25
READY, WHOLE = "ready", "all links are up"
STEP_LIMIT_S: Final = 20.0
LAST_MESSAGES_S: Final = 0.5
"""After the routes avoid a link: what it still carries."""


@dataclass(frozen=True)
class LinkState:
    name: str
    is_up: bool
    cost: int  # of the portal at its first end
    messages: int  # in both directions
    per_s: float


@dataclass(frozen=True)
class NetworkState:
    """All DROs at one moment."""

    links: tuple[LinkState, ...] = ()
    dros_to: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """From TRD 1 to the other ones: the DROs of the path; empty while they have different routes, or none."""
    troubled: tuple[str, ...] = ()
    """Portals that do not work, with their states."""
    resolvers: Mapping[str, ResolverFigures] = field(default_factory=dict)
    """Those that answer, by name."""


class DemoNetwork(threading.Thread):
    """See the module text. `view` and `note` are for the main thread; `error` is set when an order failed."""

    def __init__(
        self,
        pids: Mapping[str, int],
        folder: Path,
        stop: threading.Event,
        layout: DemoLayout = TRIANGLE,
        limit_s: float = STEP_LIMIT_S,
        ports: Mapping[str, int] | None = None,
    ) -> None:
        """`limit_s`: how long one step may take; who watches may have paused something. `ports`: by name."""
        super().__init__(name="demo-network", daemon=True)
        self.layout: Final = layout
        self._pids = pids
        self._file = folder / "triangle-a.xml"
        self._stop_event = stop
        self._limit_s = limit_s
        self._ports = ports or {}
        self._resting: set[str] = set()  # portals of A that are paused, by this or by who watches
        self.is_told_to_cut = threading.Event()
        self.is_told_to_mend = threading.Event()
        self._rates = CounterRates()
        self.view = NetworkState()
        self.note = "the DROs find each other"
        self.error = ""
        self.is_whole = False
        """All links are up and carry what they should."""

    def cut(self) -> None:
        self.is_whole = False
        self.is_told_to_cut.set()

    def mend(self) -> None:
        self.is_told_to_mend.set()

    def run(self) -> None:
        try:
            self._look()
            for _ in self._steps():
                if self._stop_event.wait(LOOK_S):
                    return
                self._look()
        except DroError as e:
            if not self._stop_event.is_set():
                self.error = str(e)

    @property
    def now(self) -> str:
        """Name what is done here, and what is down besides."""
        down = [*self.view.troubled, *(f"link {link.name} is down" for link in self.view.links if not link.is_up)]
        others = [text for text in down if CUT_PORTAL not in text or self.note == WHOLE]
        return "; ".join(([] if others and self.note == WHOLE else [self.note]) + others)

    # what is ordered

    def _steps(self) -> Iterator[None]:
        while not (self._is_path(self.layout.dros_to) and all(link.is_up for link in self.view.links)):
            yield  # for as long as the main thread waits: the DROs start
        while True:
            self.note, self.is_whole = WHOLE if self.layout.links else "the route is there", True
            if not self.layout.links:
                return  # nothing will change, and looking costs time that messages wait for
            while not self.is_told_to_cut.is_set():
                yield
            self.is_told_to_cut.clear()
            self.note = f"portal {CUT_PORTAL} costs {DETOUR_COST} now; the DROs calculate other routes"
            self._set_cost(COST, DETOUR_COST)
            yield from self._until(lambda: self._is_path(self.layout.detour))
            began = time.monotonic()
            while time.monotonic() < began + LAST_MESSAGES_S:
                yield
            if CUT_PORTAL not in self._resting:
                self._order("portal pause", name=CUT_PORTAL)
                self._resting.add(CUT_PORTAL)
            self.note = f"link {CUT_PORTAL} is cut"
            while not self.is_told_to_mend.is_set():
                yield
            self.is_told_to_mend.clear()
            self.note = f"portal {CUT_PORTAL} is resumed"
            if CUT_PORTAL in self._resting:
                self._order("portal resume", name=CUT_PORTAL)
                self._resting.discard(CUT_PORTAL)
            yield from self._until(lambda: all(link.is_up for link in self.view.links))
            self.note = f"portal {CUT_PORTAL} costs {COST} again; the DROs calculate other routes"
            self._set_cost(DETOUR_COST, COST)
            yield from self._until(lambda: self._is_path(self.layout.dros_to))

    def _until(self, is_true: Callable[[], bool]) -> Iterator[None]:
        """Wait until it is true. Raises: DroError when that takes too long."""
        deadline = time.monotonic() + self._limit_s
        while not is_true():
            if time.monotonic() > deadline:
                raise DroError(f"not within {self._limit_s:g} s: {self.note}")
            yield

    def _is_path(self, dros_to: Mapping[int, tuple[str, ...]]) -> bool:
        return self.view.dros_to == dros_to

    def _set_cost(self, old: int, new: int) -> None:
        text = self._file.read_text()
        name = f"<name>{CUT_PORTAL}</name>\n      "
        self._file.write_text(text.replace(f"{name}<cost>{old}</cost>", f"{name}<cost>{new}</cost>"))
        self._order("reload", no_wait=False)

    def _order(self, command: str, **arguments: str | bool) -> None:
        with Client(find_dro(str(self._pids["A"]))) as client:
            client.request(command, within_s=STEP_LIMIT_S, **arguments)

    # what is seen

    def _look(self) -> None:
        portals: dict[str, PortalStatus] = {}
        linked: set[tuple[str, str]] = set()
        dros_to: list[dict[int, tuple[str, ...]]] = []
        for name, pid in self._pids.items():
            try:
                with Client(find_dro(str(pid))) as client:
                    portals |= {p.name: p for p in client.ask(PortalsStatus, "portals").portals}
                    linked |= {(name, other) for other in _neighbours(client)}
                    dros_to.append({trd: _path(client, trd) for trd in self.layout.dros_to})
            except DroError:
                return  # it starts
        self._resting = {name for name, portal in portals.items() if portal.state in ("paused", "drained")}
        ends = [(portals[f"{a}-{b}"], portals[f"{b}-{a}"], {(a, b), (b, a)} <= linked) for a, b in self.layout.links]
        rates = self._rates.of({name: portal[Slot.SENT] for name, portal in portals.items()})
        links = [
            LinkState(a.name, is_up, a.cost, a[Slot.SENT] + b[Slot.SENT], (rates[a.name] + rates[b.name]) * is_up)
            for a, b, is_up in ends
        ]
        agreed = {trd: path if all(other[trd] == path for other in dros_to) else () for trd, path in dros_to[0].items()}
        troubled = tuple(f"{name} is {portal.state}" for name, portal in portals.items() if portal.state != READY)
        resolvers = {one.name: figures_of(one, self._ports[one.metrics]) for one in self.layout.resolvers}
        seen = {name: figures for name, figures in resolvers.items() if figures is not None}
        silent = tuple(f"{name} does not answer" for name in resolvers if name not in seen)
        self.view = NetworkState(tuple(links), agreed, troubled + silent, seen)


def _neighbours(client: Client) -> set[str]:
    """Ask for the DROs to which the asked one has a link."""
    rows = rows_of(client, TOPOLOGY, ROUTE_MANAGER_NAME, "")
    return {_short(row.neighbour_name) for row in rows if row.is_own and row.kind == "DRO" and not row.remark}


def _path(client: Client, trd: int) -> tuple[str, ...]:
    """Find the DROs of the path from TRD 1; none where there is no path."""
    with contextlib.suppress(CommandError):
        rows = rows_of(client, PATH, ROUTE_MANAGER_NAME, f"1 {trd}")
        return tuple(_short(row.dro) for row in rows if row.kind == "DRO")
    return ()


def _short(dro: str) -> str:
    """Return the name of a DRO without the part that makes it unique on the host."""
    return dro.partition("-")[0]
