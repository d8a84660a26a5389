"""What outlives the processes of a worker, with a worker that has none: when it is there, and what is told of it."""

from __future__ import annotations

import logging
import os
import socket
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dro.bus.kept_sockets import KeptSockets, SocketsAtFork
from dro.bus.messages import Role
from dro.clock import s
from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.loop import Loop
from supervisor.parent.estate import Estate
from supervisor.parent.workers import Event, Worker, WorkerSpec
from tests.bus.conftest import files_by_name
from tests.fakes.clock import SteppedClock
from tests.fakes.worker import logged

KILLED = 9


class Bench:
    """A portal `P` whose lives are told, and what each of them finds."""

    def __init__(self, folder: Path, role: Role = Role.ENDPOINT) -> None:
        self.clock = SteppedClock()
        self.loop = Loop(self.clock)
        self.worker = Worker(WorkerSpec("P", role, lambda _: None, ("cost", 1)), 1)
        self.directory = folder / "kept.1"
        log = logging.getLogger("tests.estate")
        log.setLevel(logging.INFO)
        self.estate = Estate(self.worker, self.directory, self.loop, log, lambda _why, _remedy: None)

    def start(self) -> bool:
        """Begin a life that leaves a file and a socket; whether it goes on, which it must find as well."""
        goes_on, at_fork = self.estate.open()
        self.estate.on_start()
        assert goes_on == ("state" in os.listdir(self.directory)) == bool(at_fork and at_fork.by_name)
        self.worker.move(Event.FORKED)
        if at_fork is not None:
            sockets = KeptSockets(self.loop, SocketsAtFork(at_fork.end, {}))
            with socket.socket() as kept:
                sockets.keep(b"link", kept)
            sockets.close()
        (self.directory / "state").touch()
        (self.directory / "logs").mkdir(exist_ok=True)
        self.estate.succession.on_ready()
        self.worker.move(Event.BECAME_READY)
        self.clock.time_ns += s(10)
        return goes_on

    def end(self, status: int = KILLED) -> None:
        self.estate.on_end(status)
        self.worker.move(Event.AGAIN)

    def is_empty(self) -> bool:
        return not os.listdir(self.directory) and not len(self.estate.sockets)

    def close(self) -> None:
        self.estate.close()
        self.loop.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    before = files_by_name()
    made = Bench(tmp_path)
    yield made
    made.close()
    assert not made.directory.exists()
    assert files_by_name() <= before


def told(caplog: pytest.LogCaptureFixture) -> list[object]:
    found = [(event, fields["worker"], fields["reason"], fields["sockets"]) for _, event, fields in logged(caplog)]
    assert {event for event, *_ in found} <= {LogEvent.WORKER_STARTS_CLEAN}
    return [tuple(rest) for _, *rest in found]


def test_the_directory_is_for_the_user_alone(bench: Bench) -> None:
    assert stat.S_IMODE(bench.directory.stat().st_mode) == 0o700


def test_a_life_goes_on_from_one_that_was_killed(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    assert not bench.start()
    for _ in range(2):
        bench.end()
        assert bench.start()
    assert told(caplog) == []


def test_an_end_in_good_order_is_told_and_leaves_nothing(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.start()
    bench.end(status=0)
    assert bench.is_empty()
    assert told(caplog) == [("P", "it ended in good order", 1)]
    assert not bench.start()
    assert told(caplog) == [], "once"


@pytest.mark.parametrize("event", [Event.STOP, Event.DRAIN])
def test_an_order_leaves_nothing(bench: Bench, caplog: pytest.LogCaptureFixture, event: Event) -> None:
    """Also when the process is killed after it, as it did not end in time."""
    bench.start()
    bench.worker.operation = "drain"
    bench.worker.move(event)
    bench.estate.on_end(KILLED)
    assert bench.is_empty()
    bench.estate.on_order()
    assert told(caplog) == [("P", "ordered: drain", 1)]


@pytest.mark.parametrize("status", [0, KILLED])
def test_a_life_goes_on_from_one_that_handed_over(bench: Bench, caplog: pytest.LogCaptureFixture, status: int) -> None:
    """Also when it was killed, as it did not end in time."""
    bench.start()
    bench.worker.hands_over = True
    bench.worker.move(Event.STOP)
    bench.end(status)
    assert bench.start()
    assert told(caplog) == []


def test_a_start_that_was_a_trial_leaves_what_it_found(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.start()
    bench.end()
    _, at_fork = bench.estate.open()
    assert at_fork is not None
    at_fork.end.close()
    bench.estate.on_start()
    bench.worker.is_tried = True
    bench.worker.move(Event.FORKED)
    bench.end(3)
    assert bench.start()
    assert told(caplog) == []


def test_an_order_to_a_worker_that_waits_for_its_start_leaves_nothing(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.start()
    bench.end()
    bench.worker.operation = "pause"
    bench.estate.on_order()
    assert bench.is_empty()
    assert told(caplog) == [("P", "ordered: pause", 1)]


def test_the_end_of_the_dro_is_no_news(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.start()
    bench.worker.move(Event.STOP)
    bench.estate.on_end(0)
    assert bench.is_empty()
    assert told(caplog) == []


@pytest.mark.parametrize("is_late", [False, True])
def test_a_changed_configuration_begins_clean(bench: Bench, caplog: pytest.LogCaptureFixture, is_late: bool) -> None:
    """While it ran, or while it waited for its next start."""
    bench.start()
    changed = replace(bench.worker.spec, part=("cost", 2))
    if not is_late:
        bench.worker.spec = changed
    bench.end()
    assert bench.is_empty() == (not is_late)
    bench.worker.spec = changed
    assert not bench.start()
    assert told(caplog) == [("P", "its configuration has changed", 1)]
    bench.end()
    assert bench.start()


@pytest.mark.parametrize("is_mended", [False, True])
def test_a_directory_that_was_removed_begins_clean(
    bench: Bench, caplog: pytest.LogCaptureFixture, is_mended: bool
) -> None:
    bench.start()
    for path in sorted(bench.directory.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    bench.directory.rmdir()
    if is_mended:
        bench.estate.prepare()
    bench.end()
    assert not bench.start()
    assert told(caplog) == [("P", "its files were removed", 1)]


def test_without_a_place_for_it_there_is_no_start(bench: Bench, tmp_path: Path) -> None:
    bench.start()
    bench.end()
    bench.directory.rename(tmp_path / "elsewhere")
    bench.estate.directory = tmp_path / "none" / "kept.1"
    with pytest.raises(ResourceError, match=r"cannot make .*none/kept\.1"):
        bench.estate.prepare()
    with pytest.raises(FileNotFoundError):
        bench.estate.open()
    bench.estate.directory = bench.directory
    assert not bench.start()


def test_who_is_no_portal_keeps_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(tmp_path, Role.ROUTE_MANAGER)
    bench.start()
    bench.end()
    goes_on, at_fork = bench.estate.open()
    assert (goes_on, at_fork, bench.is_empty()) == (False, None, True)
    bench.close()
