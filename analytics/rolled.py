"""Adds up the minutes of a DRO and a day by hour and day, and keeps those in which something was lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from analytics.bronze import ABOUT, HOUR_US, MINUTE_US, Ints, begins, codes, counts
from analytics.sums import HIGHEST, LAST

STEPS: Final = {"hour": HOUR_US, "day": 24 * HOUR_US}
HIGH: Final = 0.95
"""The share of the minutes that `sent_bytes_p95` is not exceeded in."""
_LAST: Final = tuple(name for names in LAST.values() for name in names)
_HIGHEST: Final = tuple(name for names in HIGHEST.values() for name in names)
_ROLLED: Final = ("covered_us", "gaps", "clock_steps", "busiest_minute_bytes", "sent_bytes_p95")
_NO_SUMS: Final = {
    "dro", "portal", "to_portal", "run", "page", "day", "minute", "ts_first", "ts_last", "is_first", "is_gap",
    "is_clock_step", "interval_us", "hour", *ABOUT, *_LAST, *_HIGHEST, *_ROLLED,
}  # fmt: skip
LOSSES: Final = ("dropped_messages", "dropped_bytes", "receive_exception_messages", "unrecoverable_datagrams",
                 "udp_unrecovered_datagrams", "link_lost_bytes", "send_blocked_us", "restarts")  # fmt: skip
_TIME: Final = pa.timestamp("us", tz="UTC")


def sums(columns: Iterable[str]) -> list[str]:
    """Name the columns that are added up: counters."""
    return [name for name in columns if name not in _NO_SUMS]


def tables(grown: Mapping[str, tuple[pa.Table, Sequence[str]]]) -> dict[str, pa.Table]:
    """Make the tables of gold of a DRO and a day. `grown`: by minute, and of pairs by hour, rows and the names of all
    counters; those that rows do not have are 0."""
    minutes, names = grown["minute"]
    made = {step: _with_zeros(rolled(minutes, ("portal",), step), names) for step in STEPS}
    made["loss_minute"] = losses(minutes, names)
    if "pair" in grown:
        pairs, names = grown["pair"]
        handed = _with_zeros(rolled(pairs, ("portal", "to_portal"), "hour"), names)
        made["domain_hour"] = domains(handed, made["hour"])
    return made


def _with_zeros(rows: pa.Table, names: Iterable[str]) -> pa.Table:
    there, nothing = dict(zip(rows.column_names, rows.columns, strict=True)), pa.array(np.zeros(len(rows), np.int64))
    return pa.table(there | {name: nothing for name in names if name not in there})


def rolled(minutes: pa.Table, keys: Sequence[str], step: str) -> pa.Table:
    """Add up minutes by hour or day: `covered_us` (how much of it has samples), `gaps`, `clock_steps`, counters; gauges
    as they were last or highest; the bytes of the busiest minute, and what 95 % of the minutes do not exceed."""
    begin = codes(minutes["minute"]) * MINUTE_US // STEPS[step] * STEPS[step]
    by = [*(codes(minutes[name]) for name in keys), begin]
    order = np.lexsort((codes(minutes["ts_last"]), *by[::-1]))  # the last one of a step has its last gauges
    minutes = minutes.take(order)
    starts = begins(*(key[order] for key in by))
    last = minutes.take(np.append(starts[1:], len(minutes)) - 1) if len(starts) else minutes

    def each(of: np.ufunc, values: Ints) -> pa.Array:
        return pa.array(of.reduceat(values, starts) if len(starts) else values)

    made = {name: last[name] for name in (*keys, *(n for n in (*ABOUT, *_LAST) if n in minutes.column_names))}
    if step != "day":  # a day is in the path
        made[step] = pa.array(begin[order][starts], pa.int64()).cast(_TIME)
    made["covered_us"] = each(np.add, counts(minutes["interval_us"]))
    made["gaps"] = each(np.add, codes(minutes["is_gap"]))
    made["clock_steps"] = each(np.add, codes(minutes["is_clock_step"]))
    if "to_portal" not in keys:
        sent, received = (_counted(minutes, name) for name in ("sent_bytes", "received_bytes"))
        made["busiest_minute_bytes"] = each(np.maximum, received + sent)
        made["sent_bytes_p95"] = pa.array(_high(sent, starts))
    for name in _HIGHEST:
        if name in minutes.column_names:
            highest = each(np.maximum, codes(minutes[name]))
            made[name] = pc.if_else(pc.less(highest, 0), None, highest)
    made |= {name: each(np.add, counts(minutes[name])) for name in sums(minutes.column_names)}
    return pa.table(made)


def _counted(rows: pa.Table, name: str) -> Ints:
    return counts(rows[name]) if name in rows.column_names else np.zeros(len(rows), np.int64)


def _high(values: Ints, starts: Ints) -> NDArray[np.float64]:
    """Find what the given share of the values of each group does not exceed, between two values in proportion."""
    sizes = np.diff(starts, append=len(values))
    values = values[np.lexsort((values, np.repeat(np.arange(len(starts)), sizes)))].astype(np.float64)
    place = HIGH * (sizes - 1)
    low = np.floor(place)
    under, over = (values[starts + edge.astype(np.int64)] for edge in (low, np.ceil(place)))
    found: NDArray[np.float64] = under + (over - under) * (place - low)
    return found


def losses(minutes: pa.Table, counters: Iterable[str]) -> pa.Table:
    """Keep the minutes in which a portal lost something, was blocked or started anew."""
    lost = sum((_counted(minutes, name) for name in LOSSES), np.zeros(len(minutes), np.int64))
    found = minutes.filter(pa.array(lost > 0)).filter(pc.not_equal(pc.field("portal"), ""))
    by_reason = [name for name in counters if name.startswith(("dropped_messages_", "receive_exception_messages_"))]
    found = _with_zeros(found, (*LOSSES, *by_reason))
    names = dict.fromkeys((*LOSSES, *by_reason, *_HIGHEST))
    minute = pc.multiply(found["minute"], MINUTE_US).cast(_TIME)
    made: Mapping[str, pa.ChunkedArray] = {name: found[name] for name in ("portal", "ts_last", "interval_us", *names)
                                           if name in found.column_names}  # fmt: skip
    return pa.table({**made, "minute": minute})


def domains(pairs: pa.Table, portals: pa.Table) -> pa.Table:
    """Add up what portals handed to one another by what they lead to: `from_` and `to_`, each a domain id or the node
    id of a companion."""
    names = [name for name in sums(pairs.column_names) if name not in ("samples", "up_samples")]
    leads = {
        (portal, hour): (domain, dro)
        for portal, hour, domain, dro in zip(
            *(portals[name].to_pylist() for name in ("portal", "hour", "domain_id", "adjacent_dro_id")), strict=True
        )
    }
    hours = pairs["hour"].to_pylist()
    made = {"hour": pairs["hour"]}
    for end, portal in (("from", "portal"), ("to", "to_portal")):
        told = [leads.get(place, (None, None)) for place in zip(pairs[portal].to_pylist(), hours, strict=True)]
        made[f"{end}_domain_id"] = pa.array([domain for domain, _ in told], pa.int64())
        made[f"{end}_dro_id"] = pa.array([dro for _, dro in told], pa.string())
    keys = list(made)
    found = pa.table(made | {name: pairs[name] for name in names})
    found = found.group_by(keys, use_threads=False).aggregate([(name, "sum") for name in names])
    return found.rename_columns(
        [name.removesuffix("_sum") if name not in keys else name for name in found.column_names]
    )
