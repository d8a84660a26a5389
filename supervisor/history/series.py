"""Makes rows of a history from Prometheus series: which table and column a sample belongs to, and its value there."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from dro.metrics.table import HISTOGRAM, PORTAL, PORTAL_TYPES, ROUTE_MANAGER, WORKER, Metric, metrics, rows
from supervisor.history.store import US_PER_S, fits
from supervisor.history.tables import MAX_LONG

Labels = Mapping[str, str]
Series = tuple[tuple[str, str], ...]
"""Names and values of all labels, in order; the name of the metric is one of them."""
SOURCE: Final = "prometheus"
MAX_SERIES: Final = 200_000
"""That are remembered; a DRO of 20 portals has 6,000."""
MAX_NAMES: Final = 1000
EARLIEST_US: Final = 946_684_800 * US_PER_S  # the year 2000
AHEAD_US: Final = 24 * 3600 * US_PER_S
"""How much further another clock may be; a day that has not come stays the newest, and keeps its files for ever."""


def is_ahead(ts_us: int) -> bool:
    """Whether that time cannot have come yet anywhere."""
    return ts_us > time.time_ns() // 1000 + AHEAD_US


class RemoteSample(NamedTuple):
    """One sample: `ts_ms` since 1970."""

    series: Series
    ts_ms: int
    value: float


class BadSampleError(ValueError):
    """A sample of ours that cannot be right."""


_Columns = tuple[tuple[str, Callable[[float], Any]], ...]


class _Cell(NamedTuple):
    """Tells where the samples of one series go. `columns`: what makes their values; none if it is kept nowhere."""

    table: str
    dro: str
    key: tuple[tuple[str, str], ...]
    columns: _Columns


class SeriesRows:
    """Collects samples; rows are taken out by table and DRO. Knows the series that came before."""

    def __init__(self) -> None:
        self._cells: dict[Series, _Cell | None] = {}
        self._rows: dict[tuple[str, str], dict[tuple[Any, ...], dict[str, Any]]] = {}
        self.foreign: Counter[str] = Counter()
        """Samples of metrics that no DRO has, by name."""

    def add(self, series: Series, ts_us: int, value: float) -> None:
        """Take one sample. Raises: BadSampleError."""
        try:
            cell = self._cells[series]
        except KeyError:
            if len(self._cells) >= MAX_SERIES:
                self._cells.clear()
            cell = self._cells[series] = _cell_of(dict(series))
        if cell is None:
            name = dict(series).get("__name__", "")
            if name in self.foreign or len(self.foreign) < MAX_NAMES:
                self.foreign[name] += 1
            return
        if ts_us < EARLIEST_US or is_ahead(ts_us):
            why = "is not in this century" if ts_us < EARLIEST_US else "is more than a day ahead of the clock here"
            raise BadSampleError(f"{_shown(series)}: time {ts_us // 1000} ms {why}")
        if math.isnan(value) or not cell.columns:  # the series has ended, or has no value yet; or it is not kept
            return
        try:
            found = [(name, made) for name, to_value in cell.columns if (made := to_value(value)) is not None]
        except (ValueError, OverflowError) as e:
            raise BadSampleError(f"{_shown(series)}: {value} is no value of it: {e}") from e
        if any(isinstance(made, int) and made > MAX_LONG for _, made in found):
            raise BadSampleError(f"{_shown(series)}: a number of more than 63 bits")
        if not fits(cell.dro):
            raise BadSampleError(f"{_shown(series)}: the name of the DRO is too long for a directory")
        rows_of = self._rows.setdefault((cell.table, cell.dro), {})
        row = rows_of.get((ts_us, cell.key))
        if row is None:
            row = rows_of[ts_us, cell.key] = {"ts": ts_us, "source": SOURCE, **dict(cell.key)}
        row.update(found)

    def take(self) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
        """Give all rows away: table, DRO, rows."""
        taken, self._rows = self._rows, {}
        for (table, dro), by_key in taken.items():
            yield table, dro, list(by_key.values())


def _shown(series: Series) -> str:
    name = dict(series).get("__name__", "")
    return f"{name}{{{', '.join(f'{k}={v!r}' for k, v in series if k != '__name__')}}}"


def _scaled(factor: float) -> Callable[[float], int]:
    def to_value(value: float) -> int:
        if not 0 <= value < math.inf:
            raise ValueError("it is negative or not finite")
        return min(round(value * factor), MAX_LONG)

    return to_value


_count: Final = _scaled(1)
_time: Final = _scaled(US_PER_S)


def _flag(value: float) -> bool:
    if value not in (0, 1):
        raise ValueError("it is neither 0 nor 1")
    return bool(value)


@cache
def _of_pages() -> Mapping[tuple[str, Series], tuple[str, _Columns]]:
    """Map the series of counter pages: name and own labels -> table and columns, none of what other series have."""
    found: dict[tuple[str, Series], tuple[str, _Columns]] = {}
    for table, target in ((PORTAL, "portal"), (ROUTE_MANAGER, "dro"), (WORKER, "worker")):
        sums = {f"{row.name}{more}" for row in rows(table) if row.kind == "sum" for more in ("", "_BYTES")}
        for kind in PORTAL_TYPES if table == PORTAL else ("",):
            base = (("portal_type", kind),) if kind else ()
            for metric in metrics(table, kind):
                for name, more, columns in _series_of(metric):
                    labels = tuple(sorted((*base, *metric.labels, *more)))
                    found[name, labels] = target, () if metric.row in sums else columns
    return found


def _series_of(metric: Metric) -> Iterator[tuple[str, Series, _Columns]]:
    """List name, labels beside those of the metric, and columns of each of its series."""
    column, to_value = metric.row.lower(), _scaled(1 / metric.scale)
    if metric.kind != HISTOGRAM:
        yield metric.name, (), ((column, to_value),)
        return
    for at, bound in enumerate((*metric.bounds, math.inf)):
        yield f"{metric.name}_bucket", (("le", f"{bound:g}"),), ((f"{column}_{at}" if at else column, _count),)
    yield f"{metric.name}_count", (), ()
    yield f"{metric.name}_sum", (), ((f"{column}_sum", to_value),)


def _label(column: str, text: str) -> _Columns:
    return ((column, lambda value: text or None),)


def _state(text: str) -> _Columns:
    return (("state", lambda value: text if value == 1 else None),)


def _domain(text: str) -> _Columns:
    return (("domain_id", lambda value: int(text) if text.isdigit() else None),)


_OTHERS: Final[Mapping[str, tuple[str, tuple[str, ...], Callable[[Labels], _Columns]]]] = {
    # name: table, labels of its key, columns
    "dro_portal_info": ("portal", ("portal",), lambda of: (
        *_label("portal_type", of["portal_type"]), *_label("adjacent_dro_id", of.get("adjacent_dro_id", "")),
        *_domain(of.get("domain_id", "")))),
    "dro_portal_cost": ("portal", ("portal",), lambda of: (("cost", _count),)),
    "dro_portal_index": ("portal", ("portal",), lambda of: (("page", _count),)),
    "dro_portal_up": ("portal", ("portal",), lambda of: (("up", _flag),)),
    "dro_portal_restarts_total": ("portal", ("portal",), lambda of: (("restarts", _count),)),
    "dro_portal_state": ("portal", ("portal",), lambda of: _state(of["state"])),
    "dro_info": ("dro", (), lambda of: _label("dro_id", of["dro_id"])),
    "dro_build_info": ("dro", (), lambda of: _label("version", of["version"])),
    "dro_up": ("dro", (), lambda of: (("up", _flag),)),
    "dro_start_time_seconds": ("dro", (), lambda of: (("run", _time),)),
    "dro_config_load_timestamp_seconds": ("dro", (), lambda of: (("config_loaded", _time),)),
    "process_cpu_seconds_total": ("dro", (), lambda of: (("cpu_us", _time),)),
    "process_resident_memory_bytes": ("dro", (), lambda of: (("resident_bytes", _count),)),
    "dro_worker_restarts_total": ("worker", ("worker",), lambda of: (
        ("restarts", _count), *_label("role", of["role"]))),
    "dro_worker_state": ("worker", ("worker",), lambda of: _state(of["state"])),
    "dro_worker_cpu_seconds_total": ("worker", ("worker",), lambda of: (("cpu_us", _time),)),
    "dro_worker_resident_memory_bytes": ("worker", ("worker",), lambda of: (("resident_bytes", _count),)),
    "dro_other_info": ("other", ("other_dro",), lambda of: _label("other_dro_id", of["other_dro_id"])),
    "dro_other_version": ("other", ("other_dro",), lambda of: (("link_version", _count),)),
    "dro_other_topology_signature": ("other", ("other_dro",), lambda of: (("signature", _count),)),
    "dro_other_portal_cost": ("other", ("other_dro", "adjacent_type", "adjacent_id"), lambda of: (("cost", _count),)),
}  # fmt: skip
_NOT_KEPT: Final = {
    "dro_other_last_activity_timestamp_seconds", "dro_monitor_clients_dropped_total", "dro_worker_open_fds",
    "dro_worker_threads", "dro_worker_up", "dro_worker_uptime_seconds", "process_virtual_memory_bytes",
    "process_open_fds", "process_threads", "process_start_time_seconds",
}  # fmt: skip


def _cell_of(labels: dict[str, str]) -> _Cell | None:
    """Find where a series belongs; None when it is not of a DRO."""
    name, dro = labels.pop("__name__", ""), labels.get("dro", "")
    if not dro or not name.startswith(("dro_", "process_")):
        return None
    try:
        if name in _NOT_KEPT:
            return _Cell("dro", dro, (), ())
        if name in _OTHERS:
            table, key, columns = _OTHERS[name]
            return _Cell(table, dro, tuple((part, labels[part]) for part in key), columns(labels))
        own = {k: v for k, v in labels.items() if k in _LABELS}
        if "le" in own:
            own["le"] = f"{float(own['le']):g}"
        table, found = _of_pages()[name, tuple(sorted(own.items()))]
        if table == "portal":
            about = _label("portal_type", labels["portal_type"])
            return _Cell(table, dro, (("portal", labels["portal"]),), found and (*found, *about))
        if table == "worker" and "worker" in labels:
            return _Cell(table, dro, (("worker", labels["worker"]),), found)
        return _Cell(table, dro, (), found if table == "dro" else ())  # the sums over workers are not kept
    except (KeyError, ValueError):
        return None


_LABELS: Final = {"portal_type", "le"} | {
    label for table, kinds in ((PORTAL, PORTAL_TYPES), (ROUTE_MANAGER, ("",)), (WORKER, ("",)))
    for kind in kinds for metric in metrics(table, kind) for label, _ in metric.labels
}  # fmt: skip
"""Labels that tell the series of a metric apart; a scraper adds others, such as `instance`."""
