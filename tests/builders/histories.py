"""Writes small histories: rows as tests say them, in files as the store writes them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

from analytics.store.objects import ObjectStore
from supervisor.history.store import US_PER_S, partition, write_rows

Row = Mapping[str, Any]
START_S: Final = 1_709_164_800  # 29 February 2024, 0:00 UTC


def write(folder: Path, table: str, rows: Iterable[Row], name: str = "1") -> None:
    """Write rows, each with `dro` and times in microseconds, to a file for each day and DRO."""
    found: dict[tuple[date, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        day = datetime.fromtimestamp(row["ts"] / US_PER_S, UTC).date()
        found[day, row["dro"]].append({key: value for key, value in row.items() if key != "dro"})
    for (day, dro), part in found.items():
        write_rows(ObjectStore(str(folder)), f"{partition(table, day, dro)}/part-{name}.parquet", table, part)
