"""`list` on the admin socket: the page of a worker goes to the client that asked, or the reason why there is none."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from dro.bus.messages import ListRows, ParentMessage, Role, Rows
from dro.loop import Loop
from supervisor.admin.server import AdminServer, Reply
from supervisor.parent.lists import ANSWER_LIMIT_NS, WorkerLists
from supervisor.parent.workers import Event, Worker, Workers, WorkerSpec
from tests.fakes.clock import SteppedClock


class ListsBench:
    """Workers A and B are ready, C waits; `told` is what they were asked, `answers` what clients got."""

    def __init__(self) -> None:
        self.clock = SteppedClock()
        self.loop = Loop(self.clock)
        self.workers = Workers([WorkerSpec(name, Role.ENDPOINT, lambda _: None) for name in ("A", "B", "C")])
        for name in ("A", "B"):
            self.workers.of(name).move(Event.FORKED)
            self.workers.of(name).move(Event.BECAME_READY)
        self.told: list[tuple[str, ListRows]] = []
        self.answers: list[dict[str, Any]] = []
        self.admin = AdminServer(self.loop, logging.getLogger("test"))
        self.lists = WorkerLists(self.workers, self.loop, self.tell, self.admin)

    def tell(self, worker: Worker, message: ParentMessage) -> None:
        assert isinstance(message, ListRows)
        self.told.append((worker.name, message))

    def ask(self, **arguments: object) -> None:
        line = json.dumps({"command": "list", **arguments}).encode()
        self.admin.handle(line, Reply(self.answers.append), {})

    def error(self) -> str:
        answer = self.answers.pop()
        assert not answer["ok"]
        return str(answer["error"]["what"])


@pytest.fixture
def bench() -> Iterator[ListsBench]:
    made = ListsBench()
    yield made
    made.loop.close()


def test_a_page_goes_to_the_client_that_asked_for_it(bench: ListsBench) -> None:
    bench.ask(what="topics", worker="A", topic="x")
    bench.ask(what="sources", worker="B", cursor=7)
    (a, first), (b, second) = bench.told
    assert (a, first.what, first.text, first.cursor) == ("A", "topics", "x", 0)
    assert (b, second.what, second.text, second.cursor) == ("B", "sources", "", 7)
    bench.lists.on_rows(Rows(second.serial, '[{"n": 2}]', 9, ""))
    bench.lists.on_rows(Rows(first.serial, "[]", 0, ""))
    bench.lists.on_rows(Rows(first.serial, "[1]", 0, ""))
    results = [answer["result"] for answer in bench.answers]
    assert results == [{"rows": [{"n": 2}], "cursor": 9}, {"rows": [], "cursor": 0}]


def test_a_worker_that_does_not_answer_is_waited_for_so_long(bench: ListsBench) -> None:
    bench.ask(what="topics", worker="A")
    bench.clock.time_ns = ANSWER_LIMIT_NS - 1
    bench.loop.run_once(0)
    assert bench.answers == []
    bench.clock.time_ns = ANSWER_LIMIT_NS
    bench.loop.run_once(0)
    assert bench.error() == "A has not answered within 5 s"
    bench.lists.on_rows(Rows(bench.told[0][1].serial, "[]", 0, ""))
    assert bench.answers == []


def test_a_worker_that_ends_answers_nothing_more(bench: ListsBench) -> None:
    bench.ask(what="topics", worker="A")
    bench.ask(what="topics", worker="B")
    bench.lists.on_end(bench.workers.of("A"))
    assert bench.error() == "A has ended"
    bench.clock.time_ns = ANSWER_LIMIT_NS
    bench.loop.run_once(0)
    assert [bench.error()] == ["B has not answered within 5 s"]
    assert bench.answers == []


def test_a_worker_may_refuse(bench: ListsBench) -> None:
    bench.ask(what="routes", worker="A")
    bench.lists.on_rows(Rows(bench.told[0][1].serial, "[]", 0, "A lists no routes"))
    assert bench.error() == "A: A lists no routes"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"what": "secrets", "worker": "A"}, "there is no list 'secrets'"),
        ({"what": "topics", "worker": "Z"}, "this DRO has no portal 'Z'"),
        ({"what": "topics", "worker": "C"}, "C is waiting"),
        ({"what": "topics", "worker": "A", "cursor": -1}, "'cursor' has to be a number from 0"),
        ({"what": "topics", "worker": "A", "depth": 1}, "no such argument: 'depth'"),
    ],
)
def test_what_cannot_be_asked(bench: ListsBench, arguments: dict[str, object], why: str) -> None:
    bench.ask(**arguments)
    assert bench.told == []
    assert bench.error().startswith(why)
