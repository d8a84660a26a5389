"""The table of UM library statistics: a row of `data/library.csv` is a figure of one kind of object.

Names are those of the protobuf form of UM's monitoring, and in its order. `behaviour` says what becomes of a figure
when its process is replaced: counters go on from what was there, a total is of the whole run already, the least minimum
and the highest maximum hold, gauges and means are those of the new process. `why_zero`: nothing moves it, and why.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from operator import add
from typing import Final

SOURCE, RECEIVER, CONTEXT, EVENT_QUEUE = "source_transport", "receiver_transport", "context", "event_queue"
NO_SAMPLE: Final = (1 << 64) - 1
"""A minimum before the first sample."""


def _latest(_: int, value: int) -> int:
    """Return what the new process has."""
    return value


AFTER: Final[Mapping[str, Callable[[int, int], int]]] = {
    "counter": add, "total": max, "minimum": min, "maximum": max, "gauge": _latest, "mean": _latest,
}  # fmt: skip
"""By behaviour, see `LibraryFigure.after`."""


@dataclass(frozen=True, slots=True)
class LibraryFigure:
    """One row."""

    name: str
    behaviour: str
    why_zero: str
    after: Callable[[int, int], int]
    """What is shown when the former process left one value and the new one has another."""

    @property
    def at_first(self) -> int:
        """Value before anything happens."""
        return NO_SAMPLE if self.behaviour == "minimum" else 0


@cache
def library_figures() -> Mapping[tuple[str, str], tuple[LibraryFigure, ...]]:
    """List the figures by kind of object and transport, which only sessions have."""
    text = files("dro.metrics").joinpath("data/library.csv").read_text(encoding="utf-8")
    found: dict[tuple[str, str], tuple[LibraryFigure, ...]] = {}
    for row in csv.DictReader(text.splitlines()):
        key = row["kind"], row["transport"]
        figure = LibraryFigure(row["name"], row["behaviour"], row["why_zero"], AFTER[row["behaviour"]])
        found[key] = (*found.get(key, ()), figure)
    return found
