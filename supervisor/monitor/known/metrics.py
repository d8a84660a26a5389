"""All Prometheus metrics of a DRO, from its counter pages and what the monitor knows of it."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from dro.bus.counters import GENERAL_SLOTS
from dro.bus.listing import TopologyRow
from dro.errors import ResourceError
from dro.metrics.slots import Slot, WorkerSlot
from dro.metrics.table import ENDPOINT, PORTAL, ROUTE_MANAGER, WORKER, Metric, metrics
from supervisor.admin.status import DEGRADED, WORKING, DroStatus, WorkerStatus
from supervisor.samples.exposition import Families
from supervisor.samples.pages import Pages
from supervisor.samples.processes import Processes
from supervisor.samples.watch import KnownDros

STATES: Final = ("waiting", "starting", "ready", DEGRADED, "draining", "stopping", "paused", "drained", "ended")
_NOTHING: Final = (0,) * GENERAL_SLOTS
_EACH: Final = "worker_longest_turn_seconds"  # no sum over workers says anything


def worker_metrics(*, is_sum: bool) -> tuple[Metric, ...]:
    """List the metrics that every process has; `is_sum`: that can be added up over processes."""
    return tuple(m for m in metrics(WORKER) if not is_sum or not m.name.endswith(_EACH))


class Metrics:
    """Makes them; remembers only what keeps counters from falling."""

    def __init__(self, version: str, revision: str) -> None:
        self._version = version
        self._revision = revision
        self._processes = Processes()

    def of_dro(self, known: KnownDros) -> Families:
        """Collect what `/metrics` has."""
        status, base = known.status, {"dro": known.status.name}
        found = Families()
        with contextlib.closing(open_pages(status)) as pages:
            values = {worker.index: values_of(pages, worker) for worker in status.workers}
            self._add_daemon(found, status, base)
            _add_portals(found, status, pages, known.topology, base)
        manager = status.manager
        found.add_page(metrics(ROUTE_MANAGER), values[manager.index] if manager is not None else _NOTHING, base)
        sums = [sum(column) for column in zip(*values.values(), strict=True)] or [*_NOTHING]
        for severity, count in status.logged.items():
            sums[WorkerSlot[f"LOG_{severity.upper()}"]] += count
        found.add_page(worker_metrics(is_sum=True), sums, base)
        _add_others(found, known, base)
        self._add_processes(found, status)
        return found

    def of_workers(self, known: KnownDros, clients_dropped: Mapping[str, int]) -> Families:
        """Collect what `/metrics/workers` has. `clients_dropped`: of the monitor, for each reason."""
        status, found = known.status, Families()
        for reason, count in clients_dropped.items():
            labels = {"dro": status.name, "reason": reason.lower().replace(" ", "_")}
            text = "Clients of the web monitor that were dropped, by reason"
            found.add("dro_monitor_clients_dropped_total", "counter", text, labels, count)
        with contextlib.closing(open_pages(status)) as pages:
            for worker in status.workers:
                base = {"dro": status.name, "worker": worker.name, "role": worker.role}
                figures = self._processes.figures(worker.pid)
                cpu_s = self._processes.cpu_of_worker(worker.name, worker.pid, figures.cpu_s)
                for name, kind, text, value in (
                    ("cpu_seconds_total", "counter", "Processor time of the process and those before it", cpu_s),
                    ("resident_memory_bytes", "gauge", "Memory, its part of what is shared", figures.resident_bytes),
                    ("threads", "gauge", "Threads of the process", figures.threads),
                    ("open_fds", "gauge", "Open descriptors of the process", figures.open_fds),
                    ("restarts_total", "counter", "Processes after the first", worker.restarts),
                    ("uptime_seconds", "gauge", "Age of the process; 0 while there is none", worker.uptime_s),
                    ("up", "gauge", "1 while the process works", worker.state in WORKING),
                ):
                    found.add(f"dro_worker_{name}", kind, text, base, value)
                found.add_states("dro_worker_state", "1 for the state of the process", base, STATES, worker.state)
                found.add_page(worker_metrics(is_sum=False), values_of(pages, worker), base)
        return found

    def _add_daemon(self, found: Families, status: DroStatus, base: Mapping[str, str]) -> None:
        build = {"version": self._version, "revision": self._revision, "python": platform.python_version()}
        found.add("dro_build_info", "gauge", "What runs", {**base, **build}, 1)
        found.add("dro_info", "gauge", "The DRO", {**base, "dro_id": status.node_id}, 1)
        start_s = status.start_s
        found.add("dro_start_time_seconds", "gauge", "When the DRO started, since 1970", base, start_s)
        found.add(
            "dro_up", "gauge", "1 while all portals have been ready and the DRO does not stop", base, status.is_running
        )
        text = "When the configuration was read, since 1970"
        found.add("dro_config_load_timestamp_seconds", "gauge", text, base, status.config_loaded)

    def _add_processes(self, found: Families, status: DroStatus) -> None:
        """Add the series with the usual names, for all processes of the DRO together."""
        figures = [self._processes.figures(worker.pid) for worker in status.workers]
        parent = self._processes.figures(status.pid)
        cpu_s, of_all = self._processes.cpu_of_all(parent, figures), [parent, *figures]
        base = {"dro": status.name}
        for name, kind, text, value in (
            ("cpu_seconds_total", "counter", "Processor time of all processes", cpu_s),
            ("resident_memory_bytes", "gauge", "Memory of all processes", sum(f.resident_bytes for f in of_all)),
            ("virtual_memory_bytes", "gauge", "Address space of all processes", sum(f.virtual_bytes for f in of_all)),
            ("open_fds", "gauge", "Open descriptors of all processes", sum(f.open_fds for f in of_all)),
            ("threads", "gauge", "Threads of all processes", sum(f.threads for f in of_all)),
            ("start_time_seconds", "gauge", "When the parent started, since 1970", status.start_s),
        ):
            found.add(f"process_{name}", kind, text, base, value)


def open_pages(status: DroStatus) -> Pages:
    """The counter pages of all workers; close it when done."""
    return Pages(Path(status.shm))


def values_of(pages: Pages, worker: WorkerStatus) -> Sequence[int]:
    """Read the cells of a process; zeros while it has no page."""
    with contextlib.suppress(KeyError, ResourceError):  # it has no page, or changes it all the time
        return pages[worker.index]
    return _NOTHING


def _add_portals(
    found: Families, status: DroStatus, pages: Pages, topology: tuple[TopologyRow, ...], base: Mapping[str, str]
) -> None:
    adjacent = {row.portal: row.neighbour for row in topology if row.is_own and row.kind == "DRO"}
    workers = {worker.name: worker for worker in status.workers}
    for place in status.portals:
        worker = workers.get(place.name)
        if worker is None:
            continue
        labels = {**base, "portal": place.name, "portal_type": worker.role}
        values = pages.values_of(worker) if worker.index in pages else _NOTHING
        is_endpoint = worker.role == ENDPOINT
        about = (
            {"domain_id": str(place.domain_id)} if is_endpoint else {"adjacent_dro_id": adjacent.get(place.name, "")}
        )
        found.add(
            "dro_portal_info",
            "gauge",
            "What the portal connects to",
            {"domain_id": "", "adjacent_dro_id": "", **labels, **about},
            1,
        )
        found.add("dro_portal_cost", "gauge", "Cost of the portal", labels, place.cost)
        text = "Another one when the portal was taken out and added again: its counters began anew"
        found.add("dro_portal_index", "gauge", text, labels, worker.index)
        is_up = worker.state in WORKING and (is_endpoint or bool(values[Slot.LINK_UP]))
        found.add(
            "dro_portal_up", "gauge", "1 while the portal works and, of a peer portal, its link is up", labels, is_up
        )
        found.add(
            "dro_portal_restarts_total", "counter", "Processes of the portal after the first", labels, worker.restarts
        )
        found.add_states("dro_portal_state", "1 for the state of the portal", labels, STATES, worker.state)
        found.add_page(metrics(PORTAL, worker.role), values, labels)


def _add_others(found: Families, known: KnownDros, base: Mapping[str, str]) -> None:
    """Add what is known of other DROs. These series come and go with them."""
    seen = set()
    for row in known.topology:
        if row.is_own:
            continue
        labels = {**base, "other_dro": row.dro or row.node_id}
        if row.node_id not in seen:
            seen.add(row.node_id)
            found.add("dro_other_info", "gauge", "Another DRO", {**labels, "other_dro_id": row.node_id}, 1)
            found.add("dro_other_version", "gauge", "Version of its link state", labels, row.version)
            text = "Signature of the topology as it sees it"
            found.add("dro_other_topology_signature", "gauge", text, labels, int(row.signature, 16))
            text = "When it was heard last, since 1970"
            heard_s = round(known.topology_s - row.age_s, 1)
            found.add("dro_other_last_activity_timestamp_seconds", "gauge", text, labels, heard_s)
        if row.neighbour:
            adjacent = {"adjacent_type": row.kind.lower(), "adjacent_id": row.neighbour}
            found.add("dro_other_portal_cost", "gauge", "Cost of its portal", {**labels, **adjacent}, row.egress_cost)
