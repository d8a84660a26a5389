"""Whatever is killed, and whenever: what was acknowledged is there, once."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote

import pytest

from dro.metrics.slots import Slot
from supervisor.history.store import Store
from tests.rigs.effort import IS_LONG
from tests.rigs.flow import PAUSE, PAUSED, Board
from tests.rigs.histories import TS_MS, Receiver, journalled, rows_of
from tests.rigs.site import Site, drained

KILLS = 20 if IS_LONG else 5
INTERVAL_S = 0.2

pytestmark = pytest.mark.slow


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    made = Receiver(tmp_path / "history")
    yield made
    made.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, 2)
    made.arguments = ("--history", str(tmp_path / "history"), "--history-interval", str(INTERVAL_S))
    yield made
    made.close()


def test_a_killed_receiver_loses_nothing_that_it_acknowledged(receiver: Receiver) -> None:
    chance = random.Random(1)
    for _ in range(KILLS):
        until = len(receiver.acknowledged) + chance.randrange(500)
        while receiver.send(chance.randint(1, 50)) and len(receiver.acknowledged) < until:
            pass
        killer = wait_and_kill(receiver.process.kill, chance.random() * 0.2)
        while receiver.send(chance.randint(1, 50)):
            pass
        killer.join()
        receiver.process.wait(30)
        receiver.start()
    receiver.process.terminate()
    assert receiver.process.wait(30) == 0
    rows = rows_of(receiver.folder, "portal", ["ts", "connects"])
    found = {round(row["ts"].timestamp() * 1000) - TS_MS: row["connects"] for row in rows}
    assert len(found) == len(rows), "each time once"
    assert all(at == value for at, value in found.items())
    assert receiver.acknowledged <= found.keys()
    assert len(receiver.acknowledged) > 100 * KILLS


def test_a_killed_history_worker_loses_no_sample_and_counts_none_twice(site: Site) -> None:
    history = site.folder / "history"
    site.start()
    board = Board.create(site.folder, "T", 5)
    site.python("-m", "tests.rigs.flow", str(site.config(2)), "--receive", str(board.path), name="receiver")
    site.python("-m", "tests.rigs.flow", str(site.config(1)), "--send", str(board.path), "--rate", "200", name="source")
    chance = random.Random(2)
    seen: set[tuple[int, str]] = set()
    for _ in range(KILLS):
        before = site.worker("history")
        site.wait(lambda: next(journalled(history, "portal"), None), "samples")
        seen |= {(row["ts"], row["portal"]) for row in journalled(history, "portal")}
        killer = wait_and_kill(partial(os.kill, before, signal.SIGKILL), chance.random() * 2 * INTERVAL_S)
        site.wait(lambda old=before: site.workers().get("history", old) != old, "the next one")  # type: ignore[misc]
        killer.join()
    site.wait(lambda: board.is_flowing, "it flows")
    board[PAUSE] = 1
    site.wait(lambda: board[PAUSED] and board.is_complete, "all messages")
    with site.books() as books:
        site.wait(lambda: drained(books), "books")
        counted = {"P1": books[1, Slot.TOPIC_RCVD], "P2": books[2, Slot.SENT]}
    assert site.stop() == 0
    rows = rows_of(history, "portal", ["ts", "portal", "run", "topic_rcvd", "sent"])
    keys = Counter((int(row["ts"].timestamp() * 1_000_000 + 0.5), row["portal"]) for row in rows)
    assert seen <= keys.keys(), "what was on the disk is there"
    starts = [row for row in rows if row["ts"] == row["run"]]
    assert all(row["topic_rcvd"] == row["sent"] == 0 for row in starts)
    assert len(rows) - len(keys) == len(starts) - 2, "each time once, but that each worker says that all began at 0"
    assert len({row["run"] for row in rows}) == 1
    for portal, column in (("P1", "topic_rcvd"), ("P2", "sent")):
        found = sorted((row["ts"], row[column]) for row in rows if row["portal"] == portal)
        assert all(earlier <= later for (_, earlier), (_, later) in pairwise(found))
        assert found[-1][1] == counted[portal] > 0
    assert list(journalled(history, "portal")) == []


def wait_and_kill(kill: Callable[[], object], delay_s: float) -> threading.Timer:
    killer = threading.Timer(delay_s, kill)
    killer.start()
    return killer


def test_a_store_that_hangs_costs_no_sample(tmp_path: Path) -> None:
    """It takes connections and answers none; a writer is killed, and the next one finds what that has left."""
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        where = quote(f"127.0.0.1:{hanging.getsockname()[1]}", safe="")
        site = Site(tmp_path, 2)
        uri = f"s3://key:secret@bucket/h?endpoint_override={where}&scheme=http&region=us-east-1"
        site.arguments = ("--history", uri, "--history-interval", "0.2", "--history-journal", str(tmp_path / "journal"))
        try:
            site.start()

            def times() -> list[int]:
                return [row["ts"] for row in journalled(tmp_path, "dro")]

            site.wait(lambda: len(times()) > 5, "samples")
            os.kill(site.workers()["history"], signal.SIGKILL)
            known = len(times())
            site.wait(lambda: len(times()) > known + 10, "samples of the next one", 30)
            assert site.stop() == 0
        finally:
            site.close()
    *_, last = journalled(tmp_path, "dro")
    taken = times()
    assert last["up"] is False, "the last sample is taken when all portals have ended"
    assert f"not all is in s3://bucket/h: {tmp_path}/journal has the rest" in site.log
    Store(tmp_path / "found", site.name, journal=tmp_path / "journal").close()
    rows = rows_of(tmp_path / "found", "dro", ["ts"])
    assert sorted(round(row["ts"].timestamp() * 1_000_000) for row in rows) == sorted(set(taken))
