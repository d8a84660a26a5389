"""The table of UM library statistics: a row of `data/library.csv` is a figure of a context or a transport session.

Names are those of the protobuf form of UM's monitoring, and in its order. `behaviour` says what becomes of a figure
when its process is replaced: counters go on from what was there, a total is of the whole run already, the least minimum
and the highest maximum hold, gauges and means are those of the new process. `why_zero`: nothing moves it, and why.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

SOURCE, RECEIVER, CONTEXT = "source_transport", "receiver_transport", "context"
COUNTER, TOTAL, GAUGE, MINIMUM, MEAN, MAXIMUM = "counter", "total", "gauge", "minimum", "mean", "maximum"
NO_SAMPLE: Final = (1 << 64) - 1
"""A minimum before the first sample."""


@dataclass(frozen=True, slots=True)
class LibraryFigure:
    """One row."""

    name: str
    behaviour: str
    why_zero: str


@cache
def library_figures() -> Mapping[tuple[str, str], tuple[LibraryFigure, ...]]:
    """List the figures by kind of object and transport; that of a context is empty."""
    text = files("dro.metrics").joinpath("data/library.csv").read_text(encoding="utf-8")
    found: dict[tuple[str, str], tuple[LibraryFigure, ...]] = {}
    for row in csv.DictReader(text.splitlines()):
        key = row["kind"], row["transport"]
        found[key] = (*found.get(key, ()), LibraryFigure(row["name"], row["behaviour"], row["why_zero"]))
    return found


def after(figure: LibraryFigure, former: int, value: int) -> int:
    """Return what a figure is when the former process had left `former` and this one has `value`."""
    match figure.behaviour:
        case "counter":
            return former + value
        case "minimum":
            return min(former, value)
        case "total" | "maximum":
            return max(former, value)
        case _:
            return value
