"""The configuration in force, with workers that have no processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dro.bus.messages import ParentMessage, Reconfigure, Role
from dro.errors import RefusedError
from dro.loop import Loop
from supervisor.parent.config_in_force import ConfigInForce
from supervisor.parent.rollout import Rollout
from supervisor.parent.workers import Event, Worker, Workers, WorkerSpec
from tests.fakes.clock import SteppedClock

Config = tuple[str, ...]


def plan(config: Config) -> list[WorkerSpec]:
    return [WorkerSpec(name, Role.ENDPOINT, lambda _: None) for name in config]


class Bench:
    def __init__(self, folder: Path) -> None:
        self.workers = Workers(plan(("P1", "P2")))
        for worker in self.workers:
            worker.move(Event.FORKED)
            worker.move(Event.BECAME_READY)
        self.loop = Loop(SteppedClock())
        self.sent: list[tuple[str, ParentMessage]] = []
        rollout = Rollout(self.workers, self.loop, self.send)
        rollout.run_dir = folder
        self.configuration: ConfigInForce[Config] = ConfigInForce(
            self.workers, rollout, ("P1", "P2"), plan, lambda config, _: config
        )

    def send(self, worker: Worker, message: ParentMessage) -> None:
        self.sent.append((worker.name, message))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.loop.close()


def test_one_change_at_a_time(bench: Bench) -> None:
    bench.configuration.begin_change("reload", takes_portals=True)
    with pytest.raises(RefusedError, match="reload is under way"):
        bench.configuration.begin_change("rollback")
    assert bench.configuration.claim_of_portals() == "reload"
    bench.configuration.end_change()
    bench.configuration.begin_change("rollback")
    assert bench.configuration.claim_of_portals() == ""


def test_once_closed_it_refuses_changes_with_the_reason(bench: Bench) -> None:
    bench.configuration.close("the DRO is stopping")
    with pytest.raises(RefusedError, match="the DRO is stopping"):
        bench.configuration.begin_change("reload")


def test_a_changed_configuration_goes_to_the_workers_that_are_named_and_to_every_later_start(bench: Bench) -> None:
    before = bench.workers.of("P1").spec
    bench.configuration.reconfigure(("P1", "P2", "P3"), lambda _: None, only=frozenset({"P2"}))
    [(name, message)] = bench.sent
    assert (name, type(message)) == ("P2", Reconfigure)
    assert bench.workers.of("P1").spec is not before
    assert bench.configuration.spec_of("P3").name == "P3"
    with pytest.raises(RefusedError, match="no portal 'P4'"):
        bench.configuration.spec_of("P4")
