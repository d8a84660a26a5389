"""Whatever is killed, and whenever: what was acknowledged is there, once."""

from __future__ import annotations

import random
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import cramjam
import pyarrow.parquet as pq
import pytest

from supervisor.history import remote_write
from tests.rigs.effort import IS_LONG
from tests.rigs.loaded import Loaded
from tests.rigs.site import ROOT, reserve_block
from tests.rigs.waiting import wait_until
from tests.rigs.web import fetch

KILLS = 20 if IS_LONG else 5
TS_MS = 1_700_000_100_000


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

    def __init__(self, folder: Path) -> None:
        port, self._guard = reserve_block(1)
        self.folder, self._address = folder, f"127.0.0.1:{port}"
        self.acknowledged: set[int] = set()
        self._sent = 0
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.process = Loaded(
            [sys.executable, "-m", "supervisor.history.main", "receive", "--history", str(self.folder), "--listen",
             self._address, "--roll", "0.05"], cwd=ROOT,
        )  # fmt: skip
        wait_until(lambda: fetch(self._address, "/metrics")[0] == 200, "the receiver", 60)

    def send(self, count: int) -> bool:
        """Send the next samples; whether they were acknowledged."""
        first, self._sent = self._sent, self._sent + count
        headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
        asked = urllib.request.Request(
            f"http://{self._address}/api/v1/write", request(first, count), headers, method="POST"
        )
        try:
            with urllib.request.urlopen(asked, timeout=30) as answer:
                assert answer.status == 204
        except (urllib.error.URLError, OSError):
            return False
        self.acknowledged |= set(range(first, first + count))
        return True

    def close(self) -> None:
        self.process.kill()
        self.process.wait(30)
        self._guard.close()


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    made = Receiver(tmp_path / "history")
    yield made
    made.close()


@pytest.mark.slow
def test_a_killed_receiver_loses_nothing_that_it_acknowledged(receiver: Receiver) -> None:
    chance = random.Random(1)
    for _ in range(KILLS):
        until = len(receiver.acknowledged) + chance.randrange(500)
        while receiver.send(chance.randint(1, 50)) and len(receiver.acknowledged) < until:
            pass
        killer = wait_and_kill(receiver, chance.random() * 0.2)
        while receiver.send(chance.randint(1, 50)):
            pass
        killer.join()
        receiver.process.wait(30)
        receiver.start()
    receiver.process.terminate()
    assert receiver.process.wait(30) == 0
    rows = [
        row
        for path in receiver.folder.glob("table=portal/*/*/*.parquet")
        for row in pq.ParquetFile(path).read(["ts", "connects"]).to_pylist()
    ]
    found = {round(row["ts"].timestamp() * 1000) - TS_MS: row["connects"] for row in rows}
    assert len(found) == len(rows), "each time once"
    assert all(at == value for at, value in found.items())
    assert receiver.acknowledged <= found.keys()
    assert len(receiver.acknowledged) > 100 * KILLS


def wait_and_kill(receiver: Receiver, delay_s: float) -> threading.Timer:
    killer = threading.Timer(delay_s, receiver.process.kill)
    killer.start()
    return killer
