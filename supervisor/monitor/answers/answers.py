"""Answers what the admin API and the pages tell: asked of the DRO, and read from its counter pages."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from dro.bus.listing import LISTS, PATH, PEERS, PROXIES, ROUTES, TOPOLOGY, PathRow, PeerRow
from dro.errors import DroError, ResourceError
from dro.metrics.slots import WorkerSlot
from supervisor.admin.client import Client, CommandError, UnreachableError
from supervisor.admin.lists import rows_of
from supervisor.admin.status import WORKING, ConfigRecord, DroStatus, PortalsStatus, PortalStatus
from supervisor.explain.network import joined
from supervisor.monitor.answers.drops import DropRow, drop_rows
from supervisor.monitor.answers.dros import ASK_LIMIT_S, neighbours
from supervisor.monitor.answers.lists import RECENT_S, Listing, Lists
from supervisor.monitor.answers.models import (
    ApiError,
    DroView,
    EndView,
    ExplainView,
    HopView,
    LinkView,
    MemoryRow,
    WorkerView,
)
from supervisor.monitor.answers.top import Top
from supervisor.monitor.answers.turns import Turns
from supervisor.monitor.known.health import unready
from supervisor.monitor.known.hour import INTERVAL_S, Hour
from supervisor.monitor.known.metrics import open_pages, values_of
from supervisor.monitor.known.network import SeenNetwork
from supervisor.samples.processes import Processes
from supervisor.samples.watch import Asker, KnownDros

CONFIG_LIMIT_S: Final = 20.0
NETWORK_S: Final = 1.0
"""Between two looks at what is known of the network."""
T = TypeVar("T")


class Answers:
    """Made once for a monitor; used by many threads."""

    def __init__(self, known: Callable[[], KnownDros], asker: Asker) -> None:
        """`asker`: a connection of its own, as an answer may take long."""
        self._known = known
        self._asker = asker
        self._processes = Processes()
        self.hour: Final = Hour()
        self.network: Final = SeenNetwork()
        self._turns = Turns()
        self._configs: dict[bool, tuple[float, ConfigRecord]] = {}  # when they were told; by whether with defaults
        self._lists: Final = Lists(asker, lambda: known().status, self._turns)
        self.top: Final = Top(lambda: self.list_of(PROXIES).rows)

    @property
    def known(self) -> KnownDros:
        return self._known()

    def dro(self) -> DroView:
        """Tell what the parent said last."""
        known = self.known
        return DroView(known.status, unready(known), round(min(known.age_s, 1e9), 3))

    def portals(self) -> tuple[PortalStatus, ...]:
        """Read the counters of all portals."""
        status = self.known.status
        with contextlib.closing(open_pages(status)) as pages:
            return pages.portals(status.workers, status.portals)

    async def look(self) -> None:
        """Look at the network, and at the counters for the charts of the last hour, until it is cancelled."""
        next_s = 0.0
        while True:
            self.network.look(time.time(), self.known.topology, self.known.status)
            if time.monotonic() >= next_s:
                next_s = time.monotonic() + INTERVAL_S
                with contextlib.suppress(ResourceError):  # changed all the time
                    portals, now_s = await asyncio.to_thread(lambda: (self.portals(), time.time()))
                    self.hour.look(now_s, portals)
            await asyncio.sleep(NETWORK_S)

    def portal(self, name: str) -> PortalStatus:
        """Read the counters of one portal. Raises: ApiError."""
        found = next((portal for portal in self.portals() if portal.name == name), None)
        if found is None:
            raise self.no_portal(name)
        return found

    def no_portal(self, name: str) -> ApiError:
        """Make the answer for a portal that does not exist."""
        there = ", ".join(place.name for place in self.known.status.portals)
        return ApiError(404, f"this DRO has no portal {name!r}", f"there are {there}")

    def cells(self, index: int) -> Sequence[int]:
        """Read the counter page of a worker."""
        status = self.known.status
        worker = next(worker for worker in status.workers if worker.index == index)
        with contextlib.closing(open_pages(status)) as pages:
            return values_of(pages, worker)

    def workers(self) -> list[WorkerView]:
        """Look at all processes but the parent."""
        status, found = self.known.status, []
        with contextlib.closing(open_pages(status)) as pages:
            for worker in status.workers:
                figures = self._processes.figures(worker.pid)
                turn_us = values_of(pages, worker)[WorkerSlot.LONGEST_TURN_US]
                found.append(WorkerView(
                    worker, round(figures.cpu_s, 2), figures.resident_bytes, figures.threads, figures.open_fds,
                    turn_us / 1e6,
                ))  # fmt: skip
        return found

    def memory(self) -> list[MemoryRow]:
        """Tell what the allocators of all workers have."""
        status, found = self.known.status, []
        slots = [WorkerSlot[name] for name in ("ARENA", "ORDBLKS", "HBLKS", "HBLKHD", "UORDBLKS", "FORDBLKS")]
        with contextlib.closing(open_pages(status)) as pages:
            for worker in status.workers:
                cells = values_of(pages, worker)
                found.append(MemoryRow(worker.name, *(cells[slot] for slot in slots)))
        return found

    def drops(self, portal: str = "") -> list[DropRow]:
        """Tell what portals have dropped, by traffic and reason. Raises: ApiError."""
        return list(drop_rows([self.portal(portal)] if portal else self.portals()))

    def list_of(self, what: str, portal: str = "", text: str = "") -> Listing:
        """Collect a list of the workers. Raises: ApiError for a portal that does not exist."""
        status = self.known.status
        if portal and portal not in (place.name for place in status.portals):
            raise self.no_portal(portal)
        found = self._lists.of(what, portal if what in _OF_PORTALS else "", text)
        if portal and what in _AT_PORTALS:
            names = _AT_PORTALS[what]
            rows = tuple(row for row in found.rows if portal in [getattr(row, name) for name in names])
            return replace(found, rows=rows)
        return found

    def path(self, source: int, interested: int, otid: str = "") -> Listing:
        """Ask the route manager for the paths between two domains. Raises: ApiError when there is none."""
        manager = self.known.status.manager
        if manager is None:
            raise ApiError(503, "there is no route manager yet", "ask again")
        rows = self.ask(
            lambda client: list(rows_of(client, PATH, manager.name, f"{source} {interested} {otid}".strip())), 404
        )
        return Listing(tuple(rows), (), time.monotonic())

    def config(self, *, with_defaults: bool) -> ConfigRecord:
        """Ask for the configuration in force. Raises: ApiError."""
        told_s, record = self._configs.get(with_defaults, (-RECENT_S, None))
        if record is None or time.monotonic() - told_s >= RECENT_S:
            record = self.ask(
                lambda client: client.ask(ConfigRecord, "config", within_s=CONFIG_LIMIT_S, defaults=with_defaults)
            )
            self._configs[with_defaults] = time.monotonic(), record
        return record

    def explain(self, question: Mapping[str, Any]) -> ExplainView:
        """Ask this DRO and those of its network on this host how a topic gets across. Raises: ApiError."""
        try:
            with self._turns.take(), Client(self._asker.run_dir) as own, neighbours(self.known) as others:
                configured, network = joined([own, *others.values()], dict(question))
        except CommandError as e:
            raise ApiError(422, str(e)) from e
        except DroError as e:
            raise ApiError(503, str(e)) from e
        if network is None:
            return ExplainView(configured, None, [], 0, None, [])
        path = [
            HopView(hop.dro, hop.entered_at, hop.left_at, hop.ingress_cost, hop.egress_cost, hop.facts is not None)
            for hop in network.hops
        ]
        return ExplainView(configured, network.finding, path, network.cost, network.way, list(network.problems))

    def link(self, name: str) -> LinkView:
        """Look at both ends of the link of a peer portal. Raises: ApiError."""
        portal, status = self.portal(name), self.known.status
        if portal.kind != "peer":
            raise ApiError(422, f"{name} is an endpoint portal", "name a peer portal")
        row: PeerRow | None = next(iter(self.list_of(PEERS, name).rows), None)
        near = EndView(status.name, name, portal.state, row, portal.counters)
        if row is None or not row.node_id:
            return LinkView(near, None, "which DRO is at the other end is known while the link is up")
        with self._turns.take(), neighbours(self.known) as others:
            if row.node_id not in others:
                return LinkView(near, None, f"{row.dro or row.node_id} does not run on this host, or not for this user")
            try:
                return LinkView(near, _far_end(others[row.node_id], status.node_id, row), "")
            except DroError as e:
                return LinkView(near, None, str(e))

    def ask(self, question: Callable[[Client], T], refused: int = 422) -> T:
        """Ask the parent. Raises: ApiError; `refused` is its status when the parent refuses."""
        try:
            with self._turns.take():
                return self._asker.ask(question)
        except CommandError as e:
            raise ApiError(refused, str(e)) from e
        except (UnreachableError, DroError) as e:
            raise ApiError(503, str(e)) from e


_AT_PORTALS: Final = {ROUTES: ("ingress", "egress"), TOPOLOGY: ("portal",)}
"""Lists of the route manager, and the fields of a row that name a portal."""
_OF_PORTALS: Final = frozenset(LISTS) - {*_AT_PORTALS, PATH}


def _far_end(client: Client, own_node_id: str, near: PeerRow) -> EndView | None:
    """Find the other end: of two links of these DROs the one with the addresses of the near end. Raises: DroError."""
    status = client.ask(DroStatus, "status", within_s=ASK_LIMIT_S)
    rows = [
        row
        for worker in status.workers
        if worker.role == "peer" and worker.state in WORKING
        for row in rows_of(client, PEERS, worker.name, "")
        if row.node_id == own_node_id
    ]
    row = next((r for r in rows if (r.local, r.remote) == (near.remote, near.local)), rows[0] if rows else None)
    if row is None:
        return None
    portals = client.ask(PortalsStatus, "portals", within_s=ASK_LIMIT_S).portals
    portal = next(portal for portal in portals if portal.name == row.portal)
    return EndView(status.name, row.portal, portal.state, row, portal.counters)


def sorted_rows(rows: Iterable[Any], sort: str) -> list[Any]:
    """Sort by a field; with a `-` before its name, from the highest. Without a name rows stay as they are."""
    if not sort:
        return list(rows)
    name = sort.removeprefix("-")

    def key(row: Any) -> Any:  # noqa: ANN401 - of any field
        value = getattr(row, name)
        return str(value) if isinstance(value, dict) else value

    return sorted(rows, key=key, reverse=sort.startswith("-"))


def path_summary(rows: Sequence[PathRow]) -> tuple[int, int]:
    """Hops and cost of the first path: hops are the steps from one node to the next."""
    nodes = [row for row in rows if row.way == 1]
    return max(0, len(nodes) - 1), sum(row.ingress_cost + row.egress_cost for row in nodes)
