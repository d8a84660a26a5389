"""Receivers of histories that tests send samples to; what histories have, as it is on the disk."""

from __future__ import annotations

import contextlib
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, cast

import cramjam
import msgpack
import pyarrow.parquet as pq

from supervisor.history import remote_write
from supervisor.history.journal import records
from tests.rigs.circumstances import Step
from tests.rigs.loaded import Loaded
from tests.rigs.site import ROOT, reserve_block
from tests.rigs.waiting import wait_until
from tests.rigs.web import fetch

TS_MS: Final = 1_700_000_100_000


def rows_of(folder: Path, table: str, columns: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of all Parquet files."""
    return [
        row
        for path in sorted(folder.glob(f"table={table}/*/*/*.parquet"))
        for row in pq.ParquetFile(path).read(list(columns)).to_pylist()
    ]


def journalled(folder: Path, table: str) -> Iterator[dict[str, Any]]:
    """Give the rows that are in no Parquet file yet."""
    for path in sorted(folder.glob("journal/*.[0-9]*")):
        with contextlib.suppress(FileNotFoundError):  # they are in one by now
            for record in records(path):
                found = cast(list[tuple[str, list[dict[str, Any]]]], msgpack.unpackb(record))
                yield from (row for name, rows in found if name == table for row in rows)


def request(first: int, count: int) -> bytes:
    """Samples of a counter at so many times; it says at which."""
    made = remote_write._classes()[0]()
    series = made.timeseries.add()
    labels = (("__name__", "dro_portal_connects_total"), ("dro", "A"), ("portal", "P"), ("portal_type", "peer"))
    for name, text in labels:
        series.labels.add(name=name, value=text)
    for nth in range(first, first + count):
        series.samples.add(value=nth, timestamp=TS_MS + nth)
    return bytes(cramjam.snappy.compress_raw(made.SerializeToString()))


class Receiver:
    """A receiver that is killed and started again."""

    def __init__(self, folder: Path, prepare: Step | None = None) -> None:
        port, self._guard = reserve_block(1)
        self.folder, self._prepare, self._address = folder, prepare, f"127.0.0.1:{port}"
        self.acknowledged: set[int] = set()
        self._sent = 0
        self.refusal = ""
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.process = Loaded(
            [sys.executable, "-m", "supervisor.history.main", "receive", "--history", str(self.folder), "--listen",
             self._address, "--roll", "0.05"], cwd=ROOT, preexec_fn=self._prepare,
        )  # fmt: skip
        wait_until(lambda: fetch(self._address, "/metrics")[0] == 200, "the receiver", 60)

    def send(self, count: int) -> bool:
        """Send the next samples; whether they were acknowledged."""
        first, self._sent = self._sent, self._sent + count
        return self.send_again(first, count)

    def send_again(self, first: int, count: int) -> bool:
        """Send samples, the first of which is that; `refusal` says why they were not acknowledged."""
        headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
        asked = urllib.request.Request(
            f"http://{self._address}/api/v1/write", request(first, count), headers, method="POST"
        )
        try:
            with urllib.request.urlopen(asked, timeout=30) as answer:
                assert answer.status == 204
        except urllib.error.HTTPError as e:
            self.refusal = f"{e.code} {e.read().decode()}"
            return False
        except OSError as e:
            self.refusal = str(e)
            return False
        self.acknowledged |= set(range(first, first + count))
        return True

    def wait_until_rolled(self, folder: Path) -> None:
        """Wait until all that was acknowledged is in Parquet files. `folder`: where this process sees them."""
        wait_until(lambda: not list(folder.glob("journal/*.[0-9]*")), "Parquet files", 30)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(30)
        self._guard.close()
