"""Writes `analytics/data`: the columns of this release, for histories that are made by chance. Run it as a module after
a change of the metric tables."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from analytics.store.objects import write_parquet
from supervisor.history.tables import schema_of

DATA: Final = Path(__file__).parents[2] / "analytics/data"
TABLES: Final = ("portal", "dro")

if __name__ == "__main__":
    for name in TABLES:
        write_parquet(str(DATA / f"{name}.parquet"), schema_of(name), [])
