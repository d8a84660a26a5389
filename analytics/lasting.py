"""Brings the tables of what lasts longer than a day up to date: from the losses of days that have changed, or that an
event that has changed touches; what else there was stays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analytics.bronze import MINUTE_US, SECOND_US
from analytics.episodes import COSTS, PAUSE_US, TIME, Event, blocked_episodes, costs

Losses = Callable[[str], pa.Table]
"""The minutes of losses of a day; without columns when there are none."""


def with_costs(events: pa.Table, old: pa.Table | None, touched: AbstractSet[str], losses: Losses) -> pa.Table:
    """Add to events (`kind`, `begin_us`, `end_us`, `is_over`, `ends`) what they cost."""
    rows = events.to_pylist()
    known = {_key(row): row for row in _plain(old)} if old is not None else {}
    days = [days_of(row["begin_us"] - MINUTE_US, row["end_us"] + MINUTE_US) for row in rows]
    new = [nth for nth, row in enumerate(rows) if _key(row) not in known or not touched.isdisjoint(days[nth])]
    found = {name: np.array([known.get(_key(row), {}).get(name, 0) for row in rows], np.int64) for name in COSTS}
    for name in COSTS:
        found[name][new] = 0
    by_day: dict[str, list[int]] = {}
    for nth in new:
        for day in days[nth]:
            by_day.setdefault(day, []).append(nth)
    for day, concerned in sorted(by_day.items()):
        if len(rows_of_day := losses(day)):
            for name, values in costs([rows[nth] for nth in concerned], rows_of_day).items():
                found[name][concerned] += values
    begin, end = events["begin_us"], events["end_us"]
    return pa.table({
        "kind": events["kind"], "begin": begin.cast(TIME), "end": end.cast(TIME),
        "duration_us": pc.subtract(end, begin), "is_over": events["is_over"], "ends": events["ends"],
        **{name: pa.array(values) for name, values in found.items()},
    })  # fmt: skip


def blocked(old: pa.Table | None, touched: Iterable[str], days: Sequence[str], losses: Losses) -> pa.Table:
    """Make the episodes of days that have changed, and of those that they reach; keep the others."""
    old_rows = old.to_pylist() if old is not None else []
    spans = [days_of(_us(row["begin"]) - PAUSE_US, _us(row["end"]) + PAUSE_US) for row in old_rows]
    near = {day for one in touched for day in (_next(one, -1), one, _next(one, 1))}
    while more := {day for span in spans if not near.isdisjoint(span) for day in span} - near:
        near |= more
    parts = [rows for day in days if day in near and len(rows := losses(day))]
    kept = pa.array([near.isdisjoint(span) for span in spans], pa.bool_())
    made = [blocked_episodes(pa.concat_tables(parts, promote_options="default"))] if parts else []
    made += [old.filter(kept)] if old is not None else []
    return pa.concat_tables(made) if made else blocked_episodes(_NOTHING)


_NOTHING = pa.schema({
    "dro": pa.string(), "portal": pa.string(), **dict.fromkeys((
        "ts_last", "interval_us", "send_blocked_us", "send_queue_max_bytes_data", "send_queue_limit_bytes_data",
        "dropped_messages_would_block",
    ), pa.int64()),
}.items()).empty_table()  # fmt: skip


def days_of(begin_us: int, end_us: int) -> list[str]:
    """Name the days from one time to another."""
    first, last = (datetime.fromtimestamp(at // SECOND_US, UTC).date() for at in (begin_us, end_us))
    return [(first + timedelta(days=nth)).isoformat() for nth in range((last - first).days + 1)]


def _next(day: str, days: int) -> str:
    return (datetime.fromisoformat(day) + timedelta(days=days)).date().isoformat()


def _us(at: datetime) -> int:
    return round(at.timestamp() * SECOND_US)


def _plain(events: pa.Table) -> list[Event]:
    return [{**row, "begin_us": _us(row["begin"]), "end_us": _us(row["end"])} for row in events.to_pylist()]


def _key(event: Event) -> tuple[object, ...]:
    ends = tuple((end["dro"], end["portal"]) for end in event["ends"])
    return event["kind"], event["begin_us"], event["end_us"], event["is_over"], ends
