"""Targets of the history: what Prometheus sends and UM's own monitoring has kept, down to the columns of its tables."""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import cramjam
import msgpack
import pyarrow as pa

from dro.errors import DecodeError
from dro.lbmmon.fields import message_class
from dro.lbmmon.packet import HEADER, SIGNATURE
from dro.lbmmon.records import DroStats, LibraryStats, Unread
from supervisor.history import remote_write
from supervisor.history.importer import Importer
from supervisor.history.journal import records
from supervisor.history.lbmmon import messages_of
from supervisor.history.remote_write import V1, V2, BadRequestError, samples_of
from supervisor.history.series import BadSampleError, SeriesRows
from supervisor.history.store import Store, _merged
from supervisor.history.tables import FIGURES, MAP, schema_of, tables
from tests.fuzz.target import Target

_LABELS: Final = {"__name__": "dro_portal_up", "dro": "A", "portal": "P1"}


def _write_request(proto: str, series: Iterable[Mapping[str, str]]) -> bytes:
    v1, v2 = remote_write._classes()
    request = (v1 if proto == V1 else v2)()
    for labels in ({"dro": "G1", **one} for one in series):
        made = request.timeseries.add()
        if proto == V1:
            for name, text in labels.items():
                made.labels.add(name=name, value=text)
        else:
            made.labels_refs.extend(range(len(request.symbols), len(request.symbols) + 2 * len(labels)))
            request.symbols.extend(text for label in labels.items() for text in label)
        made.samples.add(value=1, timestamp=1_700_000_100_000)
    return bytes(request.SerializeToString())


def _write_requests(proto: str, *, is_packed: bool) -> list[bytes]:
    content = _write_request(proto, [_LABELS])
    return [bytes(cramjam.snappy.compress_raw(content)) if is_packed else content]


def _remote_write(proto: str, *, is_packed: bool) -> Callable[[bytes], Hashable]:
    def check(data: bytes) -> Hashable:
        body = data if is_packed else bytes(cramjam.snappy.compress_raw(data))
        samples = samples_of(body, proto)
        return min(len(samples), 5), len(samples[0].series) if samples else 0

    return check


def _in_file(read: Callable[[Path], Hashable]) -> Callable[[bytes], Hashable]:
    """For readers of files: one in memory, always the same."""

    def check(data: bytes) -> Hashable:
        fd = os.memfd_create("fuzz")
        try:
            os.write(fd, data)
            return read(Path(f"/proc/self/fd/{fd}"))
        finally:
            os.close(fd)

    return check


def _journal(path: Path) -> Hashable:
    found = list(records(path))
    if not found:
        raise DecodeError("journal", "no record")
    return min(len(found), 5)


def _journal_seeds() -> list[bytes]:
    return [
        b"".join([struct.pack("<II", len(record), zlib.crc32(record)) + record for record in some])
        for some in ((b"one",), (b"", b"two" * 50, b"three"))
    ]


def _lbmmon(path: Path) -> Hashable:
    found = list(messages_of(path))
    if all(isinstance(message, Unread) for message in found):
        raise DecodeError("lbmmon", "nothing that can be read")
    return tuple({type(message).__name__ for message in found})


def _lbmmon_seeds() -> list[bytes]:
    dro, library = message_class("DROMonMsg")(), message_class("UMSMonMsg")()
    for made in (dro, library):
        made.attributes.timestamp, made.attributes.process_id = 1_700_000_000, 9
        made.attributes.application_id, made.attributes.sender_ipv4_address = "G1", "10.0.0.1"
    dro.stats.local.gateway_name = "G1"
    portal = dro.stats.portals.add()
    portal.portal_name, portal.endpoint.domain_id = "P1", 1
    library.stats.context.SetInParent()
    library.stats.source_transports.add()

    def packet(kind: int, module: bytes, data: bytes, *attributes: tuple[int, bytes]) -> bytes:
        told = ((3, module), *attributes)
        block = struct.pack("!HH", len(told), 0) + b"".join([struct.pack("!HH", k, len(v)) + v for k, v in told])
        return HEADER.pack(SIGNATURE, kind, len(block), len(data), 0) + block + data

    csv = packet(
        0, b"\1\5", b'0,"TCP:10.0.0.1:14371",1,2,a,ff\0', (0, b"\x0a\0\0\1"), (1, b"\x65\0\0\0"), (2, b"app\0")
    )
    whole = [packet(7, b"\2\1", dro.SerializeToString()), packet(3, b"\2\1", library.SerializeToString()), csv]
    return [*whole, b"".join(whole)]


def _kept(added: Iterable[tuple[str, str, list[dict[str, Any]]]]) -> list[str]:
    """Take rows through a record of the journal into the columns of their tables, and give the tables."""
    rows = [(table, [{"dro": dro, **row} for row in some]) for table, dro, some in added]
    found = []
    for (table, _, _), merged in _merged([msgpack.packb(rows)]).items():
        for name in (column.name for column in tables()[table].columns if column.type in (MAP, FIGURES)):
            merged = [{**row, name: list(row[name].items())} for row in merged]
        pa.Table.from_pylist(merged, schema=schema_of(table))
        found.append(table)
    return found


_SERIES: Final = (
    {"__name__": "dro_portal_info", "portal": "P1", "portal_type": "endpoint", "domain_id": "7"},
    {"__name__": "dro_portal_cost", "portal": "P1"}, {"__name__": "dro_portal_index", "portal": "P1"},
    {"__name__": "dro_portal_up", "portal": "P1"}, {"__name__": "dro_portal_state", "portal": "P1", "state": "ready"},
    {"__name__": "dro_info", "dro_id": "12"}, {"__name__": "dro_start_time_seconds"},
    {"__name__": "dro_worker_cpu_seconds_total", "worker": "portal P1"},
    {"__name__": "dro_other_version", "other_dro": "G2"}, {"__name__": "process_resident_memory_bytes"},
    {"__name__": "dro_other_portal_cost", "other_dro": "G2", "adjacent_type": "trd", "adjacent_id": "3"},
)  # fmt: skip


def _series_seeds() -> list[bytes]:
    """Requests with a sample of each series, and with one of some."""
    made = [_write_request(V1, [labels]) for labels in _SERIES]
    return [*made, _write_request(V1, _SERIES)]


def _series(data: bytes) -> Hashable:
    rows, bad = SeriesRows(), 0
    samples = samples_of(bytes(cramjam.snappy.compress_raw(data)), V1)
    for sent in samples:
        try:
            rows.add(sent.series, sent.ts_ms * 1000, sent.value)
        except BadSampleError:
            bad += 1
    found = _kept(rows.take())
    if not found:
        raise DecodeError("series", "no row")
    return tuple(sorted(found))[:4], bad > 0


class _Rows:
    """Stands in for the store of an importer."""

    journals = Path("nowhere")

    def __init__(self) -> None:
        self.added: list[tuple[str, str, list[dict[str, Any]]]] = []

    def add(self, table: str, dro: str, rows: list[dict[str, Any]]) -> None:
        self.added.append((table, dro, rows))


def _import(path: Path) -> Hashable:
    store, unread = _Rows(), list[str]()
    importer = Importer(cast(Store, store), unread.append)
    for message in messages_of(path):
        if isinstance(message, DroStats):
            importer._dro(message)
        elif isinstance(message, LibraryStats):
            importer._library(message)
    json.dumps(importer._runs)
    found = _kept(store.added)
    if not found:
        raise DecodeError("import", "no row")
    return tuple(sorted(found))[:4], len(unread)


def _targets() -> Iterator[Target]:
    for name, proto in (("v1", V1), ("v2", V2)):
        for end, is_packed in (("", False), ("-packed", True)):
            seeds = partial(_write_requests, proto, is_packed=is_packed)
            check = _remote_write(proto, is_packed=is_packed)
            yield Target(f"remote-write-{name}{end}", seeds, check, (BadRequestError,))
    yield Target("history-series", _series_seeds, _series, (BadRequestError, DecodeError), short=100)
    yield Target("history-journal", _journal_seeds, _in_file(_journal))
    yield Target("lbmmon", _lbmmon_seeds, _in_file(_lbmmon))
    yield Target("lbmmon-import", _lbmmon_seeds, _in_file(_import), short=100)


TARGETS: Final = tuple(_targets())
