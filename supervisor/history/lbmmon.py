"""Reads the packets of UM's own monitoring (`lbmmon`): protobuf and CSV, in files and in the database of a collector.

A file has packets one after another, as they were received. A database is that of the commercial collection service:
SQLite, with a table for each kind of message and the message as JSON. Source: UM operations guide, monitoring; names
and numbers of fields are in `data/lbmmon-fields.csv`, orders of CSV fields in `data/lbmmon-csv.csv`.
"""

from __future__ import annotations

import csv
import json
import socket
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from struct import Struct
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.message import DecodeError

from supervisor.history.messages import Made, MessageField, message_classes

SIGNATURE: Final = 0x1B33041B
HEADER: Final = Struct("!IHHHH")
_PAIR: Final = Struct("!HH")
MAX_FILE: Final = 1 << 30
"""Bytes of a file of packets that is read at a time."""
CSV, PB = 1, 2  # modules
SOURCE, RECEIVER, EVENT_QUEUE, CONTEXT, DRO = 0, 1, 2, 3, 7
NAMES: Final[Mapping[int, str]] = {
    SOURCE: "source_transport", RECEIVER: "receiver_transport", EVENT_QUEUE: "event_queue", CONTEXT: "context",
}  # fmt: skip
_SQLITE: Final = b"SQLite format 3\0"
_TABLES: Final = {"dromonmsg": "DROMonMsg", "umsmonmsg": "UMSMonMsg"}
_TRANSPORTS: Final = {0: "tcp", 1: "lbtru", 4: "lbtsmx", 16: "lbtrm", 64: "lbtipc"}


@dataclass(frozen=True, slots=True)
class MonitorSender:
    """Names who sent a message, and when (s since 1970)."""

    time_s: int
    application: str
    host: str
    pid: int
    object_id: int


@dataclass(frozen=True, slots=True)
class LibraryStats:
    """Holds what the UM library counted for one object of a context. `source`: of a transport session, as UM has it."""

    sender: MonitorSender
    kind: str
    source: str
    values: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class DroStats:
    """One message of a DRO: a `DROMonMsg`."""

    sender: MonitorSender
    message: Made


@dataclass(frozen=True, slots=True)
class Unread:
    """Says what could not be read: where and why."""

    what: str


Message = DroStats | LibraryStats | Unread


@cache
def message_class(name: str) -> Made:
    """Give `DROMonMsg` or `UMSMonMsg`."""
    text = files("supervisor.history").joinpath("data/lbmmon-fields.csv").read_text()
    fields = [
        MessageField(r["message"], r["field"], int(r["number"]), r["type"], r["label"] == "repeated")
        for r in csv.DictReader(text.splitlines())
    ]
    return message_classes("lbmmon", fields)[name]


@cache
def _orders() -> Mapping[tuple[int, str], tuple[str, ...]]:
    """Read the fields of CSV texts by packet type and transport."""
    text = files("supervisor.history").joinpath("data/lbmmon-csv.csv").read_text()
    found = {(int(r["packet"]), r["transport"]): tuple(r["fields"].split()) for r in csv.DictReader(text.splitlines())}
    queue = message_class("UMSMonMsg").DESCRIPTOR.nested_types_by_name["Stats"].nested_types_by_name["EventQueue"]
    found[EVENT_QUEUE, ""] = tuple(field.name for field in sorted(queue.fields, key=lambda field: field.number))
    return found


def messages_of(path: Path) -> Iterator[Message]:
    """All messages of a file of packets or a collector's database, in the order in which they are there. Raises:
    OSError."""
    with path.open("rb") as file:
        first = file.read(len(_SQLITE))
        if first == _SQLITE:
            yield from _of_database(path)
            return
        data = first + file.read(MAX_FILE - len(first))
        if file.read(1):
            yield Unread(f"{path}: only the first {MAX_FILE} bytes are read: split it")
    yield from _of_packets(path, data)


def _of_packets(path: Path, data: bytes) -> Iterator[Message]:
    signature = SIGNATURE.to_bytes(4, "big")
    at = 0
    while at < len(data):
        if data[at : at + 4] != signature or len(data) - at < HEADER.size:
            following = data.find(signature, at + 1)
            following = len(data) if following < 0 else following
            yield Unread(f"{path}: byte {at}: no packet of lbmmon, {following - at} bytes are skipped")
            at = following
            continue
        _, kind, attributes, length, _ = HEADER.unpack_from(data, at)
        begin = at + HEADER.size + attributes
        end = begin + length
        if not length:  # too long for its field: up to the next packet
            following = data.find(signature, begin)
            end = len(data) if following < 0 else following
        if end > len(data):
            yield Unread(f"{path}: byte {at}: the packet is cut off")
            return
        try:
            yield from _of_packet(kind, data[at + HEADER.size : begin], data[begin:end])
        except (ValueError, DecodeError, csv.Error) as e:
            yield Unread(f"{path}: byte {at}: {e}")
        at = end


def _of_packet(kind: int, attributes: bytes, data: bytes) -> Iterator[Message]:
    """Yield the messages of a packet. Raises: ValueError, DecodeError."""
    told = _attributes(attributes)
    module = int.from_bytes(told.get(3, b"\0\0"), "big") >> 8
    if module == PB and kind in (*NAMES, DRO):
        made = message_class("DROMonMsg" if kind == DRO else "UMSMonMsg")()
        made.ParseFromString(data)
        yield from _of_message(made)
    elif module == CSV and kind in NAMES:
        sender = MonitorSender(
            _number(told.get(1)), told.get(2, b"").rstrip(b"\0").decode(errors="replace"),
            socket.inet_ntoa(told[0]) if len(told.get(0, b"")) == 4 else "", _number(told.get(5)), _number(told.get(4)),
        )  # fmt: skip
        yield _of_csv(sender, kind, data.decode(errors="replace"))
    elif module not in (CSV, PB):
        raise ValueError(f"format module {module} is not known: pb and csv are read")
    # others are no counters: topics of receivers, stores, control messages


def _attributes(block: bytes) -> dict[int, bytes]:
    """Read the values by type. Raises: ValueError."""
    if not block:
        return {}
    if len(block) < _PAIR.size:
        raise ValueError("the attribute block is cut off")
    count, _ = _PAIR.unpack_from(block)
    at, found = _PAIR.size, {}
    for _ in range(count):
        if at + _PAIR.size > len(block):
            raise ValueError("an attribute is cut off")
        kind, length = _PAIR.unpack_from(block, at)
        found[kind] = block[at + _PAIR.size : at + _PAIR.size + length]
        at += _PAIR.size + length
    return found


def _number(value: bytes | None) -> int:
    return int.from_bytes(value or b"", "big")


def _of_csv(sender: MonitorSender, kind: int, text: str) -> LibraryStats:
    """Read one text of hexadecimal numbers. Raises: ValueError."""
    separator = next((c for c in text if not (c.isalnum() or c in "\"' \t")), ",")
    fields = next(csv.reader([text.replace("'", '"').rstrip("\0")], delimiter=separator, skipinitialspace=True))
    transport = source = ""
    if kind in (SOURCE, RECEIVER):
        if len(fields) < 2:
            raise ValueError(f"{text[:40]!r} has neither transport nor source")
        (transport, source), fields = fields[:2], fields[2:]
    names = _orders().get((kind, transport))
    if names is None:
        raise ValueError(f"transport {transport!r} is not known")
    prefix = f"{_TRANSPORTS[int(transport)]}." if transport else ""  # as the protobuf form has them
    values = {f"{prefix}{name}": int(value, 16) for name, value in zip(names, fields, strict=False) if value.strip()}
    return LibraryStats(sender, NAMES[kind], source, values)


def _of_database(path: Path) -> Iterator[Message]:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as base:
            names = {
                name.lower(): name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type='table'")
            }
            if not names.keys() & _TABLES.keys():
                yield Unread(f"{path}: a database without the tables {' and '.join(_TABLES)}")
            for table, kind in _TABLES.items():
                if table in names:
                    for nth, row in enumerate(base.execute(f'SELECT * FROM "{names[table]}" ORDER BY rowid'), 1):
                        yield from _of_row(row, kind, f"{path}: row {nth} of {table}")
    except sqlite3.Error as e:
        yield Unread(f"{path}: {e}")


def _of_row(row: tuple[Any, ...], kind: str, where: str) -> Iterator[Message]:
    """Yield the message of a row: the column that has JSON."""
    texts = [cell.decode(errors="replace") if isinstance(cell, bytes) else cell for cell in row]
    text = next((cell for cell in texts if isinstance(cell, str) and cell.lstrip().startswith("{")), None)
    if text is None:
        yield Unread(f"{where}: no column with JSON")
        return
    try:
        found = json.loads(text)
        made = json_format.ParseDict(found, message_class(kind)(), ignore_unknown_fields=True)
    except (ValueError, RecursionError, json_format.ParseError) as e:
        yield Unread(f"{where}: {str(e).splitlines()[0][:200]}")
        return
    yield from _of_message(made)


def _of_message(made: Made) -> Iterator[Message]:
    told = made.attributes
    sender = MonitorSender(
        told.timestamp, told.application_id, told.sender_ipv4_address, told.process_id, told.object_id
    )
    if made.DESCRIPTOR.name == "DROMonMsg":
        yield DroStats(sender, made)
        return
    stats = made.stats
    if stats.HasField("context"):
        yield LibraryStats(sender, NAMES[CONTEXT], "", flat(stats.context))
    for kind, objects in ((RECEIVER, stats.receiver_transports), (SOURCE, stats.source_transports),
                          (EVENT_QUEUE, stats.event_queues)):  # fmt: skip
        for one in objects:
            yield LibraryStats(sender, NAMES[kind], getattr(one, "source_string", ""), flat(one))


def flat(message: Made, prefix: str = "") -> dict[str, int]:
    """All whole numbers of a message, those of messages inside as `name.name`; also what is 0."""
    found: dict[str, int] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if hasattr(value, "DESCRIPTOR"):
            if message.HasField(field.name):
                found |= flat(value, f"{prefix}{field.name}.")
        elif isinstance(value, int):
            found[f"{prefix}{field.name}"] = value
    return found
