"""A changed configuration on its way to the workers, with a clock that only the test moves."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from dro.bus.messages import ParentMessage, Reconfigure, Reconfigured, Role
from dro.errors import ResourceError
from dro.loop import Loop
from supervisor.parent.rollout import ANSWER_LIMIT_NS, Rollout
from supervisor.parent.workers import Event, Worker, Workers, WorkerSpec, WorkerState
from tests.fakes.clock import SteppedClock


class RolloutBench:
    """Three ready workers; `sent` is what was sent to each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = SteppedClock()
        self.loop = Loop(self.clock)
        self.workers = Workers([WorkerSpec(name, Role.ENDPOINT, lambda _: None) for name in ("A", "B", "C")])
        self.sent: dict[str, list[Reconfigure]] = {"A": [], "B": [], "C": []}
        self.ends: list[Mapping[str, str]] = []
        self.taken_over: list[str] = []
        self.rollout = Rollout(self.workers, self.loop, self.send, lambda worker: self.taken_over.append(worker.name))
        self.rollout.run_dir = folder
        for worker in self.workers:
            worker.move(Event.FORKED)
            worker.move(Event.BECAME_READY)

    def send(self, worker: Worker, message: ParentMessage) -> None:
        assert isinstance(message, Reconfigure)
        self.sent[worker.name].append(message)

    def begin(self, config: object, only: frozenset[str] | None = None) -> None:
        self.rollout.begin(config, self.ends.append, only=only)

    def answer(self, name: str, problem: str = "", serial: int = 0) -> None:
        worker = self.workers.of(name)
        self.rollout.on_answer(worker, Reconfigured(serial or self.sent[name][-1].serial, problem))

    def turn(self, after_ns: int = 0) -> list[Mapping[str, str]]:
        self.clock.time_ns += after_ns
        self.loop.run_once(0)
        self.loop.run_once(0)
        return self.ends

    def read(self, name: str) -> object:
        return pickle.loads(Path(self.sent[name][-1].path).read_bytes())


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[RolloutBench]:
    made = RolloutBench(tmp_path)
    yield made
    made.loop.close()


def test_all_get_the_same_file_and_the_last_answer_ends_it(bench: RolloutBench) -> None:
    bench.begin({"cost": 3})
    assert [bench.read(name) for name in "ABC"] == [{"cost": 3}] * 3
    assert Path(bench.sent["A"][0].path).stat().st_mode & 0o777 == 0o600
    bench.answer("A")
    bench.answer("B")
    assert bench.turn() == []
    bench.answer("C")
    assert bench.turn() == [{}]
    bench.answer("C")
    assert bench.turn(ANSWER_LIMIT_NS) == [{}]


def test_problems_are_told_by_name(bench: RolloutBench) -> None:
    bench.begin(1)
    bench.answer("A", "queue too small")
    bench.answer("B")
    bench.answer("C")
    assert bench.turn() == [{"A": "queue too small"}]


def test_who_does_not_answer_is_named(bench: RolloutBench) -> None:
    bench.begin(1)
    bench.answer("A")
    bench.turn(ANSWER_LIMIT_NS - 1)
    assert bench.ends == []
    assert bench.turn(1) == [{"B": "it has not answered within 15 s", "C": "it has not answered within 15 s"}]
    bench.answer("B")
    assert len(bench.turn()) == 1


def test_only_those_that_are_named(bench: RolloutBench) -> None:
    bench.begin(1, only=frozenset({"B"}))
    assert [len(bench.sent[name]) for name in "ABC"] == [0, 1, 0]
    bench.answer("B")
    assert bench.turn() == [{}]


def test_who_is_not_running_is_not_asked(bench: RolloutBench) -> None:
    bench.workers.of("A").move(Event.DRAIN)
    bench.workers.of("B").move(Event.STOP)
    bench.workers.of("C").move(Event.AGAIN)
    bench.begin(1)
    assert bench.turn() == [{}]


def test_one_that_was_starting_is_told_when_it_is_ready(bench: RolloutBench) -> None:
    late, forked_later = bench.workers.of("B"), bench.workers.of("C")
    for worker in (late, forked_later):
        worker.move(Event.AGAIN)
    late.move(Event.FORKED)
    late.config_serial = bench.rollout.serial
    bench.begin("new")
    bench.answer("A")
    assert bench.turn() == [{}]
    forked_later.move(Event.FORKED)
    forked_later.config_serial = bench.rollout.serial
    for worker in (late, forked_later):
        worker.move(Event.BECAME_READY)
        bench.rollout.on_ready(worker)
    assert bench.read("B") == "new"
    assert bench.sent["C"] == []  # it was forked with it


def test_one_that_dies_meanwhile_is_not_waited_for(bench: RolloutBench) -> None:
    bench.begin(1)
    bench.answer("A")
    bench.answer("B")
    dead = bench.workers.of("C")
    dead.move(Event.AGAIN)
    bench.rollout.on_end(dead)
    assert bench.turn() == [{}]


def test_a_newer_one_ends_the_older_and_removes_its_file(bench: RolloutBench) -> None:
    bench.begin("old")
    old = bench.sent["A"][0]
    bench.answer("A")
    bench.begin("new")
    assert [sorted(problems) for problems in bench.turn()] == [["B", "C"]]
    assert not Path(old.path).exists()
    for name in "ABC":
        bench.answer(name, serial=old.serial)
    assert len(bench.turn()) == 1
    for name in "ABC":
        bench.answer(name)
    assert bench.turn()[1] == {}
    assert bench.read("A") == "new"


def test_a_file_that_cannot_be_written_changes_nothing(bench: RolloutBench, tmp_path: Path) -> None:
    bench.rollout.run_dir = tmp_path / "not there"
    with pytest.raises(ResourceError, match="cannot be written"):
        bench.rollout.begin(1, bench.ends.append)
    assert bench.sent == {"A": [], "B": [], "C": []}
    assert bench.rollout.serial == 0
    assert bench.turn() == []
    assert all(worker.state is WorkerState.READY for worker in bench.workers)


def test_a_worker_that_fails_to_read_it_says_so(bench: RolloutBench) -> None:
    bench.begin(1, only=frozenset({"A"}))
    bench.answer("A", "No such file or directory")
    assert bench.turn() == [{"A": "No such file or directory"}]


def test_whoever_has_taken_over_the_newest_configuration_is_told_of(bench: RolloutBench) -> None:
    bench.begin("first")
    bench.begin("second")
    bench.answer("A", serial=1)
    bench.answer("B", "no")
    assert bench.taken_over == []
    bench.answer("C")
    assert bench.taken_over == ["C"]
