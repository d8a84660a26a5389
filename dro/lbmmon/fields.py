"""Reads the table of protobuf fields, the orders of csv texts, and the numbers that both have in common.

Source: UM operations guide, monitoring; `data/fields.csv` has the published definitions, `data/csv.csv` the orders.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Final

from dro.lbmmon.made import Made, MessageField, message_classes

CSV, PB = 1, 2
"""Modules of formats."""
SOURCE, RECEIVER, EVENT_QUEUE, CONTEXT, RECEIVER_TOPIC, WILDCARD_RECEIVER, STORE, DRO, UMDS, CONTROL, SRS = range(11)
"""Types of packets."""
KINDS: Final[Mapping[int, str]] = {
    SOURCE: "source_transport", RECEIVER: "receiver_transport", EVENT_QUEUE: "event_queue", CONTEXT: "context",
}  # fmt: skip
TRANSPORTS: Final[Mapping[int, str]] = {0: "tcp", 1: "lbtru", 4: "lbtsmx", 16: "lbtrm", 64: "lbtipc"}
"""Numbers of transports in csv texts, and how the protobuf form calls them."""
NO_SAMPLE: Final = (1 << 64) - 1
"""A minimum before the first sample."""


def rows_of(name: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a table of this room."""
    yield from csv.DictReader(files("dro.lbmmon").joinpath(f"data/{name}.csv").read_text().splitlines())


@cache
def _classes() -> Mapping[str, Made]:
    fields = []
    for row in rows_of("fields"):
        label, _, oneof = row["label"].partition(" ")
        is_repeated, group = label == "repeated", oneof if label == "oneof" else ""
        fields.append(MessageField(row["message"], row["field"], int(row["number"]), row["type"], is_repeated, group))
    return message_classes("lbmmon", fields)


def message_class(name: str) -> Made:
    """Give a class by its name with those around it: `DROMonMsg`, `UMSMonMsg.Stats.Context`."""
    return _classes()[name]


def names_in(name: str) -> tuple[str, ...]:
    """List the fields of a message by their numbers."""
    return tuple(f.name for f in sorted(message_class(name).DESCRIPTOR.fields, key=lambda f: f.number))


@cache
def csv_orders() -> Mapping[tuple[int, str], tuple[str, ...]]:
    """List the fields of csv texts by packet type and transport, in their order there."""
    found = {
        (int(row["packet"]), TRANSPORTS[int(row["transport"])] if row["transport"] else ""): tuple(
            row["fields"].split()
        )
        for row in rows_of("csv")
    }
    return found | {(EVENT_QUEUE, ""): names_in("UMSMonMsg.Stats.EventQueue")}
