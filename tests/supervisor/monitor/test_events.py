"""Log events that the monitor receives: kept up to a limit, put into categories, told to listeners."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from dro.log.events import LogEvent
from supervisor.monitor.known.events import KEPT, MAX_WAITING, EventReader, Events
from supervisor.monitor.stream import Category, Level
from supervisor.samples.events import _PREFIXES, CATEGORIES, LEVELS, OTHER, category_of, row_of

LIMIT_S = 10


def told(**more: object) -> dict[str, Any]:
    return {
        "time_s": 1.5, "level": "information", "event": "Gwd-1-1", "name": "OPERATION_DONE", "worker": "tnwgd",
        "text": "operation done", "fields": {"worker": "P1"}, **more,
    }  # fmt: skip


class Sending:
    """A process that sends to the monitor."""

    def __init__(self, path: Path, events: Events, malformed: list[None]) -> None:
        self._path, self.events, self._malformed = str(path), events, malformed
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    async def send(self, *datagrams: bytes) -> None:
        """Until they are read."""
        for data in datagrams:
            before = self.seen
            self._socket.sendto(data, self._path)
            async with asyncio.timeout(LIMIT_S):
                while self.seen == before:
                    await asyncio.sleep(0)

    @property
    def seen(self) -> tuple[int, int]:
        rows, _ = self.events.recent(limit=1)
        return rows[0].serial if rows else 0, len(self._malformed)


def with_events(path: Path, use: Callable[[Sending], Any]) -> None:
    async def run() -> None:
        malformed: list[None] = []
        events = Events(path, lambda: malformed.append(None))
        events.start()
        sending = Sending(path, events, malformed)
        try:
            await use(sending)
        finally:
            sending._socket.close()
            events.close()

    asyncio.run(run())


def test_events_are_kept_up_to_a_limit_and_found_by_level_category_and_serial(tmp_path: Path) -> None:
    async def use(sending: Sending) -> None:
        for number in range(KEPT + 10):
            await sending.send(json.dumps(told(text=str(number))).encode())
        rows, total = sending.events.recent(limit=2)
        assert ([row.text for row in rows], total) == ([str(KEPT + 8), str(KEPT + 9)], KEPT)
        last = rows[-1].serial
        await sending.send(json.dumps(told(level="error", name="RING_FULL")).encode())
        (row,), total = sending.events.recent(after=last)
        assert (row.serial, row.level, row.category, total) == (last + 1, "error", "drops", 1)
        assert sending.events.recent(level="warning") == ([row], 1)
        assert sending.events.recent(category="drops") == ([row], 1)
        assert sending.events.recent(level="warning", category="portal") == ([], 0)
        assert sending.events.recent(after=1 << 62)[1] == KEPT, "a serial that none has had yet"
        with pytest.raises(ValueError, match="no category"):
            sending.events.recent(category="weather")
        with pytest.raises(ValueError, match="no level"):
            sending.events.recent(level="loud")

    with_events(tmp_path / "events", use)


BAD = [
    b"", b"\xff", b"[]", b"null", b"{}", b"[" * 4000, b"x" * 4097, b"{" * 4096,
    *(json.dumps(told(**{name: value})).encode() for name, value in [
        ("level", "loud"), ("level", []), ("level", None), ("fields", []), ("fields", {"a": 1}), ("time_s", "soon"),
        ("time_s", float("nan")), ("time_s", -1), ("time_s", float("inf")), ("text", None), ("name", 3),
        ("worker", {}), ("text", "\udc80"), ("fields", {"\udc80": ""}), ("fields", {str(n): "" for n in range(99)}),
    ]),
]  # fmt: skip


def test_malformed_datagrams_are_counted_and_ignored(tmp_path: Path) -> None:
    async def use(sending: Sending) -> None:
        await sending.send(*BAD, json.dumps(told()).encode())
        assert sending.events.recent()[1] == 1
        assert sending.seen[1] == len(BAD)

    with_events(tmp_path / "events", use)


def test_texts_are_bounded() -> None:
    row = row_of(json.dumps(told(text="x" * 2000, worker="y" * 999, fields={"a": "z" * 500})).encode(), 7)
    assert row is not None
    assert (len(row.text), len(row.worker), len(row.fields["a"])) == (1000, 200, 200)


def test_the_socket_is_for_its_user_alone_and_replaces_that_of_a_killed_monitor(tmp_path: Path) -> None:
    path = tmp_path / "events"
    stale = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    stale.bind(str(path))
    stale.close()

    async def use(sending: Sending) -> None:
        assert path.stat().st_mode & 0o777 == 0o600
        await sending.send(json.dumps(told()).encode())

    with_events(path, use)


def test_a_listener_gets_what_it_wants_until_it_leaves_too_much(tmp_path: Path) -> None:
    async def use(sending: Sending) -> None:
        late: list[str] = []
        all_of, drops = (
            EventReader(lambda _: True, lambda: late.append("all")),
            EventReader(lambda row: row.category == "drops", lambda: late.append("drops")),
        )
        sending.events.listeners.update((all_of, drops))
        for _ in range(MAX_WAITING):
            await sending.send(json.dumps(told()).encode())
        assert (late, all_of.waiting.qsize(), drops.waiting.qsize()) == ([], MAX_WAITING, 0)
        for _ in range(3):
            await sending.send(json.dumps(told(name="QUEUE_DROPS")).encode())
        assert (late, drops.waiting.qsize()) == (["all"], 3)
        assert (all_of.is_late, drops.is_late) == (True, False)

    with_events(tmp_path / "events", use)


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("DRO_DISCOVERED", "topology"), ("LINK_DOWN", "topology"), ("ROUTES_CALCULATED", "topology"),
        ("PROXY_SOURCE_CREATED", "interest"), ("PEER_SOURCE_IGNORED", "interest"), ("QUEUE_DROPS", "drops"),
        ("ENQUEUEING_BEGAN", "blocked"), ("RELOAD_DONE", "configuration"), ("WORKER_ENDED", "portal"),
        ("OPERATION_DONE", "portal"), ("PEER_LINK_LOST", "portal"), ("STARTING", OTHER), ("", OTHER),
    ],
)  # fmt: skip
def test_categories_follow_from_names(name: str, category: str) -> None:
    assert name in {"", *LogEvent.__members__}
    assert category_of(name) == category


@pytest.mark.parametrize("prefix", [prefix for prefix, _ in _PREFIXES])
def test_no_prefix_is_for_nothing(prefix: str) -> None:
    decided = [
        name for name in LogEvent.__members__ if next((p for p, _ in _PREFIXES if name.startswith(p)), "") == prefix
    ]
    assert decided


def test_what_a_request_may_name_is_what_there_is() -> None:
    assert set(get_args(Category)) == {"", *CATEGORIES}
    assert set(get_args(Level)) == {"", *LEVELS}
