"""What the application of the monitor answers, called as the web server calls it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from fastapi import FastAPI

from supervisor.admin.server import SOCKET_NAME
from supervisor.monitor.answers.answers import Answers
from supervisor.monitor.answers.lists import Listing
from supervisor.monitor.answers.turns import WAITING_MAX
from supervisor.monitor.app import make_app
from supervisor.monitor.guard import MAX_HEADERS, HostGuard, Limits
from supervisor.monitor.known.events import Events
from supervisor.monitor.known.metrics import Metrics
from supervisor.monitor.orders import Orders
from supervisor.monitor.server import apart
from supervisor.samples.watch import Asker, DroObserver
from tests.builders.monitored import add_pages, known

PORTALS: Final = 2
LIMIT_S: Final = 20.0
TOKEN: Final = "tökentökentöken1"
MANY: Final = 100
"""Requests at a time: more than the application has threads."""


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:  # noqa: ANN401 - any JSON
        return json.loads(self.body)


class Monitor:
    """The application of a DRO whose parent does not answer."""

    def __init__(self, folder: Path, tokens: str = "") -> None:
        add_pages(folder, PORTALS)
        self.known = known(folder, PORTALS)
        watch = DroObserver(folder, self.known.status)
        watch.known = self.known
        self.answers = Answers(lambda: watch.known, Asker(folder))
        limits = Limits(print, print)
        events = Events(folder / "events.sock", lambda: None)
        metrics, orders = Metrics("1.0", ""), Orders(folder, tokens, print)
        self.app: FastAPI = make_app(watch, metrics, limits, events, self.answers, orders, 0)
        self._guarded = HostGuard(self.app, {"localhost"}, limits)

    async def ask(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """As a client of this host."""
        path, _, query = path.partition("?")
        sent: list[Any] = []
        pairs = [(name.encode(), value.encode()) for name, value in {"host": "localhost", **headers}.items()]
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "root_path": "",
            "method": method, "path": path, "raw_path": path.encode(), "query_string": query.encode(),
            "headers": pairs, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "state": {},
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:  # noqa: ANN401 - of ASGI
            sent.append(message)

        await self._guarded(scope, receive, send)
        found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Answer(sent[0]["status"], found, b"".join(message["body"] for message in sent[1:]))

    def __call__(self, path: str, method: str = "GET", **headers: str) -> Answer:
        return asyncio.run(self.ask(path, method, **headers))


@pytest.fixture
def monitor(tmp_path: Path) -> Monitor:
    return Monitor(tmp_path)


def test_health_is_told_while_all_threads_wait(monitor: Monitor, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def waits(*_: str) -> Listing:
        assert over.wait(LIMIT_S)
        return Listing(())

    monkeypatch.setattr(monitor.answers, "list_of", waits)

    async def health() -> list[int]:
        waiting = [asyncio.create_task(monitor.ask("/lists/topics")) for _ in range(MANY)]
        try:
            asked = [asyncio.wait_for(monitor.ask(path), LIMIT_S / 2) for path in ("/healthz", "/readyz")]
            found = [(await answer).status for answer in asked]
        finally:
            over.set()
        assert {answer.status for answer in await asyncio.gather(*waiting)} == {200}
        return found

    assert set(asyncio.run(health())) <= {200, 503}


@pytest.mark.parametrize(
    "path", ["/nowhere", "/portal", "/path?from=-1&to=2", "/lists/topics?offset=x", "/static/nothing"]
)
def test_an_error_is_a_page_for_a_browser(monitor: Monitor, path: str) -> None:
    shown = monitor(path, accept="text/html,application/xhtml+xml,*/*;q=0.8")
    assert (shown.status in (404, 422), shown.headers["content-type"]) == (True, "text/html; charset=utf-8")
    assert b'role="alert"' in shown.body
    assert b"pattern" not in shown.body


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/v1/nothing", "GET", 404),
        ("/v1/dro", "POST", 405),
        ("/nowhere", "GET", 404),
        ("/v1/topics?limit=x", "GET", 422),
    ],
)
def test_an_error_is_a_problem_for_a_program(monitor: Monitor, path: str, method: str, status: int) -> None:
    told = monitor(path, method)
    assert told.status == status
    assert set(told.json) == {"what", "remedy"}
    assert ("allow" in told.headers) == (status == 405)


def test_head_is_answered_as_get(monitor: Monitor) -> None:
    """The web server sends no body."""
    for path in ("/", "/metrics", "/v1/dro", "/readyz"):
        assert monitor(path, "HEAD").status == monitor(path).status
    assert monitor("/v1/reload", "HEAD").status == 405


def test_headers_that_come_in_one_piece_have_a_limit(monitor: Monitor) -> None:
    assert monitor("/healthz", filler="x" * (MAX_HEADERS // 2)).status in (200, 503)
    assert monitor("/healthz", filler="x" * MAX_HEADERS).status == 431
    assert monitor(f"/{'x' * MAX_HEADERS}").status == 431
    assert monitor(f"/lists/topics?topic={'x' * MAX_HEADERS}").status == 431


def test_a_token_may_have_any_letters(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.touch(0o600)
    path.write_text(f"viewer vic {TOKEN}\n", "utf-8")
    refused = Monitor(tmp_path, str(path))("/v1/reload", "POST", authorization=f"Bearer {TOKEN}")
    assert (refused.status, refused.json["what"]) == (403, "vic is viewer and may not do this")


def test_questions_to_the_network_leave_connections_to_others(monitor: Monitor, tmp_path: Path) -> None:
    """Each has a connection of its own to a parent, which takes sixteen; they take turns."""
    with socket.socket(socket.AF_UNIX) as parent, contextlib.ExitStack() as stack:
        parent.bind(str(tmp_path / SOCKET_NAME))
        parent.listen(MANY)
        taken: list[socket.socket] = []

        async def flood() -> list[int]:
            path = "/v1/explain?topic=t&from=1&to=2"
            asked = [asyncio.create_task(monitor.ask(path)) for _ in range(2 * WAITING_MAX)]
            while len(waiting := [task for task in asked if not task.done()]) > WAITING_MAX:
                assert (await asyncio.wait(waiting, timeout=LIMIT_S, return_when=asyncio.FIRST_COMPLETED))[0]
            parent.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    taken.append(stack.enter_context(parent.accept()[0]))
            parent.close()
            for connection in taken:
                connection.close()
            return [answer.status for answer in await asyncio.gather(*asked)]

        assert set(asyncio.run(flood())) == {503}
        assert len(taken) == 1


def test_the_stream_of_events_is_described_as_one(monitor: Monitor) -> None:
    described = monitor("/v1/openapi.json").json["paths"]["/v1/events/stream"]["get"]["responses"]["200"]["content"]
    assert set(described) == {"text/event-stream"}


def test_nobody_waits_for_work_that_is_done_apart() -> None:
    over, has_ended = threading.Event(), threading.Event()

    def long() -> str:
        assert over.wait(LIMIT_S)
        has_ended.set()
        return "late"

    async def look() -> list[object]:
        waiting = apart(long)
        found: list[object] = [await apart(lambda: 7), waiting.done()]
        with pytest.raises(ZeroDivisionError):
            await apart(lambda: 1 // 0)
        return found

    assert asyncio.run(look()) == [7, False], "and the end of the loop does not wait either"
    over.set()
    assert has_ended.wait(LIMIT_S)
