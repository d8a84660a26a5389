"""Samples of a DRO that is made here: its pages, its file, and somebody who answers for its parent."""

from __future__ import annotations

import contextlib
import json
import os
import socketserver
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from dro.bus.counters import CounterPage
from dro.metrics.slots import Slot, WorkerSlot
from supervisor.admin.client import UnreachableError
from supervisor.admin.last_status import FILE_NAME, LastStatus, write_last_status
from supervisor.admin.server import SOCKET_NAME
from supervisor.admin.status import DroStatus
from supervisor.host.run_dirs import LOCK_NAME, RUN_LINK, start_time_of, sweep
from supervisor.tools.top.looker import Looker
from supervisor.tools.top.places import DroPlace, place_of
from supervisor.tools.top.sample import ParentAnswer
from tests.builders.top_samples import STATUS, WORKERS
from tests.rigs.waiting import wait_until

ME = os.getpid()
ALIVE = replace(STATUS, pid=ME, workers=tuple(replace(worker, pid=ME) for worker in WORKERS))


@pytest.fixture
def base() -> Iterator[Path]:
    """Short: a socket lives in it."""
    with tempfile.TemporaryDirectory(prefix="dro-t-") as name:
        yield Path(name)


def make(base: Path, *, is_alive: bool = True, status: DroStatus = ALIVE) -> DroPlace:
    """Pages of three workers, of which the second has received 7 and has a longest turn of 9 ms."""
    shm = base / f"dro-NORTH-{ME}-{start_time_of('self') if is_alive else 1}"
    shm.mkdir(mode=0o700)
    (shm / LOCK_NAME).touch()
    (shm / RUN_LINK).symlink_to(base)
    for worker in status.workers:
        with contextlib.closing(CounterPage.create(shm / f"counters.{worker.index}")) as page:
            if worker.index == 1:
                page.set(Slot.TOPIC_RCVD, 7)
                page.set(WorkerSlot.LONGEST_TURN_US, 9000)
            page.publish()
    write_last_status(shm, LastStatus(1.0, status))
    place = place_of(shm)
    assert place is not None
    return place


@contextlib.contextmanager
def answering(base: Path, status: DroStatus) -> Iterator[list[str]]:
    """The admin socket of a DRO that answers only `status`; the commands that came."""
    commands: list[str] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for line in self.rfile:
                commands.append(json.loads(line)["command"])
                self.wfile.write(json.dumps({"ok": True, "result": asdict(status)}).encode() + b"\n")

    class Server(socketserver.ThreadingUnixStreamServer):
        daemon_threads = True
        block_on_close = False

    with Server(str(base / SOCKET_NAME), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield commands
        finally:
            server.shutdown()
            thread.join()


def test_an_answer_counts_and_pages_are_read(base: Path) -> None:
    told = replace(ALIVE, routes=42, workers=ALIVE.workers[:2])  # no peer portal whose link would be asked for
    place = make(base)
    with answering(base, told), contextlib.closing(Looker(place)) as looker:
        seen = looker.look()
    assert (seen.has_answered, seen.status.routes, seen.parent, seen.has_pages) == (True, 42, ParentAnswer.ALIVE, True)
    assert seen.silent_s < 2
    assert [(portal.name, portal[Slot.TOPIC_RCVD]) for portal in seen.portals] == [("P1", 7)]
    assert seen.longest_turns_us == {0: 0, 1: 9000}
    assert seen.processes[ME].resident_bytes > 1 << 20


def test_without_an_answer_the_file_says_what_there_is(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.tools.top.looker.FIRST_ANSWER_S", 0.0)
    with contextlib.closing(Looker(make(base))) as looker:
        seen = looker.look()
    assert (seen.has_answered, seen.status, seen.status_s) == (False, ALIVE, 1.0)
    assert [portal.name for portal in seen.portals] == ["P1", "P2"]


def test_another_dro_in_the_same_run_directory_does_not_answer_for_this_one(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.tools.top.looker.FIRST_ANSWER_S", 0.0)
    other = replace(ALIVE, pid=1, name="OTHER", workers=())
    place = make(base)
    with answering(base, other) as commands, contextlib.closing(Looker(place)) as looker:
        wait_until(lambda: len(commands) >= 4, "questions")
        seen = looker.look()
    assert (seen.has_answered, seen.status.name) == (False, "NORTH")


def test_nobody_removes_what_a_dead_dro_left_while_it_is_looked_at(base: Path) -> None:
    place = make(base, is_alive=False)
    with contextlib.closing(Looker(place)) as looker:
        seen = looker.look()
        assert (seen.parent, seen.living, seen.has_pages) == (ParentAnswer.DEAD, frozenset(), True)
        assert sweep(base) == []
    assert sweep(base) == [place.shm]


def test_what_was_removed_meanwhile_is_seen_no_more_but_remembered(base: Path) -> None:
    place = make(base, is_alive=False)
    with contextlib.closing(Looker(place)) as looker:
        before = looker.look()
        for path in place.shm.iterdir():
            path.unlink()
        place.shm.rmdir()
        after = looker.look()
    assert (before.has_pages, after.has_pages) == (True, False)
    assert after.portals == before.portals
    assert after.longest_turns_us == before.longest_turns_us


def test_without_file_and_answer_there_is_nothing_to_show(base: Path) -> None:
    place = make(base, is_alive=False)
    (place.shm / FILE_NAME).unlink()
    with pytest.raises(UnreachableError, match="has no file that says what its portals are"):
        Looker(place)
