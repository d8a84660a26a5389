"""Reads what UM's own monitoring (`lbmmon`) has left: packets in files, and the database of a collector.

A file has packets one after another, as they were received. A database is that of the commercial collection service:
SQLite, with a table for each kind of message and the message as JSON. Source: UM operations guide, monitoring.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from google.protobuf import json_format

from dro.errors import DecodeError
from dro.lbmmon.fields import message_class
from dro.lbmmon.packet import HEADER, SIGNATURE, decode
from dro.lbmmon.pb_form import messages_of as messages_in
from dro.lbmmon.records import Message, Unread

MAX_FILE: Final = 1 << 30
"""Bytes of a file of packets that is read at a time."""
_SQLITE: Final = b"SQLite format 3\0"
_TABLES: Final = {"dromonmsg": "DROMonMsg", "umsmonmsg": "UMSMonMsg"}


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
        _, _, attributes, length, _ = HEADER.unpack_from(data, at)
        begin = at + HEADER.size + attributes
        end = begin + length
        if not length:  # too long for its field: up to the next packet
            following = data.find(signature, begin)
            end = len(data) if following < 0 else following
        if end > len(data):
            yield Unread(f"{path}: byte {at}: the packet is cut off")
            return
        try:  # statistics of others, such as stores, are no rows of a history
            yield from [message for message in decode(data[at:end]) if not isinstance(message, Unread)]
        except DecodeError as e:
            yield Unread(f"{path}: byte {at}: {e}")
        at = end


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
    yield from messages_in(made)
