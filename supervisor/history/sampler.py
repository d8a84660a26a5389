"""Takes samples of a DRO from its counter pages: exact to the last fragment, also of a process that was killed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dro.bus.counters import CounterPage
from dro.bus.listing import TopologyRow
from dro.errors import ResourceError
from dro.metrics.table import ENDPOINT
from supervisor.admin.status import WORKING, DroStatus, PortalPlace, WorkerStatus
from supervisor.history.store import US_PER_S, Store
from supervisor.history.tables import PAIR, tables
from supervisor.samples.events import EventRow
from supervisor.samples.pages import Pages
from supervisor.samples.processes import Processes
from supervisor.samples.watch import KnownDros

SOURCE: Final = "pages"
_ZEROS: Final = {name: 0 for name, _, may_lack in tables()["portal"].cells if not may_lack}
Row = dict[str, Any]


class Sampler:
    """Adds the samples of one DRO to a store. What a portal had counted when it was taken out is its last sample."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._processes = Processes()
        self._seen: dict[int, tuple[WorkerStatus, PortalPlace]] = {}  # portals, by index
        self._before_us = 0  # the sample before
        self._added = self._seen, self._before_us  # by the last `add`

    def add(self, known: KnownDros) -> None:
        """Add a sample of everything; `on_kept` follows when it is on the disk. Raises: ResourceError when a page
        cannot be read."""
        status, now_us = known.status, _us(time.time())
        base = self._base(status, now_us, boot_us())
        places = {place.name: place for place in status.portals}
        portals = {w.index: (w, places[w.name]) for w in status.workers if w.is_portal and w.name in places}
        gone = {index: pair for index, pair in self._seen.items() if index not in portals}
        new = {index: pair for index, pair in portals.items() if index not in self._seen}
        zero = self._base(status, self._before_us or _us(status.start_s), None)
        self._put("portal", status, ({**zero, **_about(*pair, known), **_ZEROS} for pair in new.values()))
        with contextlib.closing(Pages(Path(status.shm))) as pages:
            self._put("portal", status, self._portals(pages, known, base, {**portals, **gone}, gone))
            self._put("worker", status, self._workers(pages, status, base))
            self._put("dro", status, self._dro(pages, status, base))
        self._put(PAIR, status, _pairs(status, portals, base))
        self._put("other", status, _others(known.topology, base))
        self._added = portals, now_us

    def on_kept(self) -> None:
        """Take what was added as told: what is new or gone is not told again."""
        self._seen, self._before_us = self._added

    def add_events(self, status: DroStatus, events: Sequence[EventRow]) -> None:
        """Add log events."""
        run = _us(status.start_s)
        self._put("event", status, (
            {"ts": _us(e.time_s), "run": run, "source": SOURCE, "serial": e.serial, "severity": e.level,
             "event": e.event, "name": e.name, "worker": e.worker, "category": e.category, "text": e.text,
             "fields": e.fields}
            for e in events
        ))  # fmt: skip

    def _put(self, table: str, status: DroStatus, rows: Iterator[Row]) -> None:
        self._store.add(table, status.name, rows)

    def _base(self, status: DroStatus, ts: int, seq: int | None) -> Row:
        return {"ts": ts, "run": _us(status.start_s), "seq": seq, "source": SOURCE}

    def _portals(
        self, pages: Pages, known: KnownDros, base: Row, portals: Mapping[int, tuple[WorkerStatus, PortalPlace]],
        gone: Mapping[int, object],
    ) -> Iterator[Row]:  # fmt: skip
        for index, (worker, place) in portals.items():
            if index not in pages:
                continue
            row = {**base, **_about(worker, place, known), **tables()["portal"].of_page(pages.values_of(worker))}
            is_working = worker.state in WORKING and index not in gone
            row["up"] = is_working and (worker.role == ENDPOINT or bool(row["link_up"]))
            row["state"] = "removed" if index in gone else worker.state
            yield row

    def _workers(self, pages: Pages, status: DroStatus, base: Row) -> Iterator[Row]:
        for worker in status.workers:
            figures = self._processes.figures(worker.pid)
            cpu_s = self._processes.cpu_of_worker(worker.name, worker.pid, figures.cpu_s)
            cells = tables()["worker"].of_page(pages[worker.index]) if worker.index in pages else {}
            yield {
                **base, "worker": worker.name, "role": worker.role, "pid": worker.pid, "state": worker.state,
                "restarts": worker.restarts, "cpu_us": _us(cpu_s), "resident_bytes": figures.resident_bytes, **cells,
            }  # fmt: skip

    def _dro(self, pages: Pages, status: DroStatus, base: Row) -> Iterator[Row]:
        manager = status.manager
        cells = {}
        if manager is not None and manager.index in pages:
            cells = tables()["dro"].of_page(pages[manager.index])
        parent, others = self._processes.figures(status.pid), [self._processes.figures(w.pid) for w in status.workers]
        yield {
            **base, "dro_id": status.node_id, "version": status.version, "up": status.is_running,
            "config_loaded": _us(status.config_loaded), "cpu_us": _us(self._processes.cpu_of_all(parent, others)),
            "resident_bytes": parent.resident_bytes + sum(f.resident_bytes for f in others), **cells,
        }  # fmt: skip


def boot_us() -> int:
    """Read the clock that nobody sets."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def _about(worker: WorkerStatus, place: PortalPlace, known: KnownDros) -> Row:
    """Describe a portal: the columns that are no counters."""
    row: Row = {
        "portal": worker.name, "portal_type": worker.role, "page": worker.index, "dro_id": known.status.node_id,
        "cost": place.cost, "restarts": worker.restarts,
    }  # fmt: skip
    if worker.role == ENDPOINT:
        row["domain_id"] = place.domain_id
    else:
        row["adjacent_dro_id"] = next(
            (r.neighbour for r in known.topology if r.is_own and r.kind == "DRO" and r.portal == worker.name), None
        )
    return row


def _pairs(status: DroStatus, portals: Mapping[int, tuple[WorkerStatus, PortalPlace]], base: Row) -> Iterator[Row]:
    """Read what each portal has handed to each other one."""
    for index, (worker, _) in portals.items():
        with contextlib.suppress(ResourceError):  # of a portal that could not be added
            page = CounterPage.open(Path(status.shm) / f"counters.{index}", readonly=True)
            try:
                for other, (sibling, _) in portals.items():
                    at = page.pair(other)
                    values = page.slots[at : at + page.pair_slots].tolist()
                    if any(values):
                        about = {"portal": worker.name, "to_portal": sibling.name, "page": index}
                        yield {**base, **about, **tables()[PAIR].of_page(values)}
            finally:
                page.close()


def _others(topology: Sequence[TopologyRow], base: Row) -> Iterator[Row]:
    """Make a row for each portal of each other DRO."""
    for row in topology:
        if not row.is_own:
            yield {
                **base, "other_dro": row.dro or row.node_id, "other_dro_id": row.node_id, "link_version": row.version,
                "signature": int(row.signature, 16), "adjacent_type": row.kind.lower(), "adjacent_id": row.neighbour,
                "cost": row.egress_cost,
            }  # fmt: skip


def _us(seconds: float) -> int:
    return round(seconds * US_PER_S)
