"""Brings what UM's own monitoring has kept into a history: messages of DROs, and those of the UM library in their
portals.

A message does not say when its DRO was started. A run ends where the process id is another one or a counter has
fallen; the run that is there first began at a time that nobody knows, so its growth begins with its first message.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from dro.errors import ResourceError
from dro.lbmmon.pb_form import flat
from dro.lbmmon.records import DroStats, LibraryStats, Message, Unread
from dro.metrics.table import COUNTER, ENDPOINT, PEER, PORTAL, metrics
from supervisor.history.lbmmon import messages_of
from supervisor.history.series import is_ahead
from supervisor.history.store import US_PER_S, Store, fits
from supervisor.history.tables import MAX_LONG

SOURCE: Final = "import"
BATCH: Final = 500
"""Messages between two commits."""
DROS_MAX, RUNS_MAX = 8192, 1000
"""DROs, and runs of each, that are remembered."""
_FIRST: Final = "Gateway_Portal_"
_PARTS: Final = ("_rcv_ctx", "_src_ctx", "_event_queue")
Row = dict[str, Any]


@cache
def _columns(portal_type: str) -> Mapping[str, str]:
    """Find the columns of a history by the fields of a portal."""
    found: dict[str, str] = {}
    for metric in metrics(PORTAL, portal_type):
        if metric.field and len(metric.slots) == 1:
            found.setdefault(metric.field, metric.row.lower())
    return found


@cache
def _counters(portal_type: str) -> frozenset[str]:
    return frozenset(metric.row.lower() for metric in metrics(PORTAL, portal_type) if metric.kind == COUNTER)


class Importer:
    """Adds messages to a store. What it knows of runs is kept with the history: more can be brought in later."""

    def __init__(self, store: Store, on_unread: Callable[[str], object], name: str = "import") -> None:
        """`name`: of the writer, which has runs of its own."""
        self._store, self._on_unread = store, on_unread
        self._path = store.journals / f"{name}.runs.json"
        self._runs: dict[str, Row] = {}
        if self._path.exists():
            try:
                self._runs = dict(json.loads(self._path.read_text()))
            except ValueError as e:
                remedy = "remove it: growth of each DRO then begins with the first message that comes"
                raise ResourceError(f"{self._path} is broken", remedy=remedy) from e
        self.counts: dict[str, int] = defaultdict(int)

    def add(self, path: Path) -> None:
        """Bring in a file. Raises: OSError, ResourceError; what was committed stays, and comes again unharmed."""
        batch: list[Message] = []
        for message in messages_of(path):
            batch.append(message)
            if len(batch) == BATCH:
                self.take(batch)
                self.commit()
                self._store.tend()
                batch.clear()
        self.take(batch)
        self.commit()

    def take(self, batch: Iterable[Message]) -> None:
        """Take messages, which the next commit brings in."""
        for message in batch:
            match message:
                case DroStats():
                    self._dro(message)
                case LibraryStats():
                    self._library(message)
                case Unread(what):
                    self.unread(what)

    def unread(self, what: str) -> None:
        """Count what cannot be read, and say why."""
        self.counts["unread"] += 1
        self._on_unread(what)

    def commit(self) -> None:
        """Put on the disk what was taken. Raises: OSError, ResourceError; it can be tried again."""
        self._store.commit()
        unnamed = self._path.with_suffix(f".{os.getpid()}")
        unnamed.write_text(json.dumps(self._runs))
        unnamed.rename(self._path)

    def _dro(self, told: DroStats) -> None:
        local, stats = told.message.stats.local, told.message.stats
        dro = local.gateway_name or told.sender.application
        if not dro or not told.sender.time_s or is_ahead(told.sender.time_s * US_PER_S) or not fits(dro):
            self.unread(f"a message of a DRO without a name or time that can be, of process {told.sender.pid}")
            return
        if dro not in self._runs and len(self._runs) >= DROS_MAX:
            self.unread(f"a message of one more DRO than {DROS_MAX}, of process {told.sender.pid}")
            return
        self.counts["messages of DROs"] += 1
        base: Row = {"ts": told.sender.time_s * US_PER_S, "source": SOURCE}
        rows = [_portal(portal) for portal in stats.portals]
        base["run"] = self._run(dro, told, rows)
        node_id = str(local.gateway_id) if local.gateway_id else None
        if stats.HasField("local"):
            took_us = local.recalc_duration_sec * US_PER_S + local.recalc_duration_usec
            self._store.add("dro", dro, [_bounded({
                **base, "dro_id": node_id, "up": True, "version": None, "own_version": local.version,
                "signature": local.topology_signature, "graph_version": local.graph_version,
                "network_dros": local.gateway_count, "network_trds": local.trd_count, "recalculation_us": took_us,
            })])  # fmt: skip
        self._store.add("portal", dro, [_bounded({**base, "dro_id": node_id, **row}) for row in rows])
        self._store.add("other", dro, [
            _bounded({**base, "other_dro": other.gateway_name or str(other.gateway_id),
             "other_dro_id": str(other.gateway_id), "link_version": other.version,
             "signature": other.topology_signature,
             "adjacent_type": "dro" if portal.adjacent_gateway_id else "trd",
             "adjacent_id": str(portal.adjacent_gateway_id or portal.adjacent_domain_id), "cost": portal.cost})
            for other in stats.other_gateways for portal in other.other_portals
        ])  # fmt: skip

    def _run(self, dro: str, told: DroStats, rows: Iterable[Row]) -> int:
        """Find when the run of the message began (us)."""
        values = {
            row["portal"]: {name: row[name] for name in _counters(row["portal_type"]) if row.get(name) is not None}
            for row in rows
        }
        ts = told.sender.time_s * US_PER_S
        known = self._runs.get(dro)
        if known is not None and ts < known["ts"]:  # late: it says nothing of now
            return max((run for run in known["runs"] if run <= ts), default=0)
        fell = known is not None and any(
            value < known["values"].get(portal, {}).get(name, 0)
            for portal, of_portal in values.items()
            for name, value in of_portal.items()
        )
        runs: list[int] = [0] if known is None else known["runs"]
        if known is not None and (fell or known["pid"] != told.sender.pid):
            runs = [*runs[-RUNS_MAX:], ts]
        self._runs[dro] = {"runs": runs, "pid": told.sender.pid, "ts": ts, "values": values}
        return runs[-1]

    def _library(self, told: LibraryStats) -> None:
        sender = told.sender
        if is_ahead(sender.time_s * US_PER_S) or not fits(sender.host):
            self.unread(f"a message of the UM library without a host or time that can be, of process {sender.pid}")
            return
        name = sender.application.removeprefix(_FIRST)
        part = next((part for part in _PARTS if name.endswith(part)), "")
        self.counts["messages of the UM library"] += 1
        self._store.add("library", sender.host or "unknown", [{
            "ts": sender.time_s * US_PER_S, "source": SOURCE, "application": sender.application, "pid": sender.pid,
            "portal": name.removesuffix(part) if part else None, "kind": told.kind, "session": told.source,
            "object_id": min(sender.object_id, MAX_LONG),
            "figures": {name: min(value, MAX_LONG) for name, value in told.values.items()}
            | ({"source_flag": 1} if sender.is_mim else {}),
        }])  # fmt: skip


def _bounded(row: Row) -> Row:
    """Bring numbers to the 63 bits that columns have."""
    return {name: min(value, MAX_LONG) if isinstance(value, int) else value for name, value in row.items()}


def _portal(portal: Any) -> Row:  # noqa: ANN401  a message
    """Make the columns of one portal."""
    is_peer = portal.HasField("peer")
    portal_type = PEER if is_peer else ENDPOINT
    row: Row = {
        "portal": portal.portal_name, "portal_type": portal_type, "page": portal.portal_index, "cost": portal.cost,
        "up": True,
    }  # fmt: skip
    if is_peer:
        row["adjacent_dro_id"] = str(portal.peer.adjacent_gateway_id) if portal.peer.adjacent_gateway_id else None
        row["up"] = bool(portal.peer.adjacent_gateway_id)
    else:
        row["domain_id"] = portal.endpoint.domain_id
    columns = _columns(portal_type)
    for path, value in flat(portal).items():
        if (column := columns.get(path.rpartition(".")[2])) is not None:
            row[column] = value if value <= MAX_LONG else None  # a least value before the first
    row["interest_recalculation_us"] = portal.recalc_duration_sec * US_PER_S + portal.recalc_duration_usec
    row["proxy_recalculation_us"] = (
        portal.proxy_rec_recalc_duration_sec * US_PER_S + portal.proxy_rec_recalc_duration_usec
    )
    return row
