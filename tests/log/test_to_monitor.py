"""Log events on their way to the monitor: whole, bounded, and dropped rather than waited for."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dro.log.events import LogEvent
from dro.log.to_monitor import EVENTS_SOCKET, MAX_DATAGRAM, EventSender, dropped

OPENED = {"operation": "pause", "worker": "P1"}


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    dropped.clear()
    yield tmp_path / EVENTS_SOCKET
    dropped.clear()


@pytest.fixture
def receiver(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(path))
        made.settimeout(10)
        yield made


@pytest.fixture
def log(path: Path) -> Iterator[logging.Logger]:
    logger = logging.Logger("portals.shell", logging.INFO)
    handler = EventSender([path], "P1")
    logger.addHandler(handler)
    yield logger
    handler.close()


def test_an_event_is_one_datagram(receiver: socket.socket, log: logging.Logger) -> None:
    log.debug(LogEvent.SESSION_JOINED, extra={"source": "below the level"})
    log.info(LogEvent.QUEUE_DROPS, extra={"dropped": 3, "max_queue": 4})
    found = json.loads(receiver.recv(1 << 16))
    assert found.pop("time_s") > 0
    assert found == {
        "level": "information",
        "event": "Gwd-6945-2",
        "name": "QUEUE_DROPS",
        "worker": "P1",
        "text": "Portal [P1] dropping data due to high volume",
        "fields": {"dropped": "3", "max_queue": "4"},
    }


def test_records_of_libraries_are_not_sent(receiver: socket.socket, log: logging.Logger) -> None:
    log.error("Task exception was never retrieved")
    log.info(LogEvent.DRAIN_OVER)
    assert json.loads(receiver.recv(1 << 16))["name"] == "DRAIN_OVER"


def test_without_a_socket_events_are_dropped_and_counted_until_there_is_one(path: Path, log: logging.Logger) -> None:
    log.info(LogEvent.DRAIN_OVER)
    assert dropped == {"ENOENT": 1}
    stale = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    stale.bind(str(path))
    stale.close()
    log.info(LogEvent.DRAIN_BEGINS, extra={"limit_ms": 1})
    assert dropped == {"ENOENT": 1, "ECONNREFUSED": 1}
    path.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(path))
        receiver.settimeout(10)
        log.info(LogEvent.OPERATION_DONE, extra=OPENED)
        assert json.loads(receiver.recv(1 << 16))["fields"] == OPENED


@pytest.mark.timeout(30)
def test_a_full_socket_is_not_waited_for(receiver: socket.socket, log: logging.Logger) -> None:
    sent = 2000  # more than the longest queue that hosts have
    for number in range(sent):
        log.info(LogEvent.DRAIN_BEGINS, extra={"limit_ms": number})
    receiver.setblocking(False)
    taken = 0
    while True:
        try:
            receiver.recv(1 << 16)
        except BlockingIOError:
            break
        taken += 1
    assert 0 < taken < sent
    assert dropped == {"EAGAIN": sent - taken}


@pytest.mark.parametrize("text", ["x", '"', "\N{SNOWMAN}", "\N{PILE OF POO}", "\udc80", "\x00", "\\"])
def test_what_is_too_long_is_cut(receiver: socket.socket, log: logging.Logger, text: str) -> None:
    log.error(LogEvent.CONFIG_WARNING, text * 10_000, extra={f"field_{n}": text * 10_000 for n in range(100)})
    data = receiver.recv(1 << 16)
    assert len(data) <= MAX_DATAGRAM
    assert json.loads(data)["name"] == "CONFIG_WARNING"


def test_the_same_again_and_again_is_counted(receiver: socket.socket, log: logging.Logger) -> None:
    (handler,) = log.handlers
    assert isinstance(handler, EventSender)
    for _ in range(50):
        log.info(LogEvent.DRAIN_OVER)
    handler.tick(at_once=True)
    receiver.setblocking(False)
    found: list[dict[str, Any]] = []
    while not found or found[-1]["name"] != "LINES_REPEATED":
        found.append(json.loads(receiver.recv(1 << 16)))
    assert len(found) < 5
    assert found[-1]["fields"]["line"] == "drain is over"


def test_a_forked_process_has_a_socket_of_its_own(receiver: socket.socket, log: logging.Logger) -> None:
    (handler,) = log.handlers
    assert isinstance(handler, EventSender)
    log.info(LogEvent.DRAIN_OVER)
    dropped["ENOENT"] = 5
    pid = os.fork()
    if pid == 0:
        try:
            handler.after_fork()
            handler.process = "P2"
            log.info(LogEvent.DRAIN_BEGINS, extra={"limit_ms": dropped.total()})
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    log.info(LogEvent.RELOAD_CONFIRMED)
    found = [json.loads(receiver.recv(1 << 16)) for _ in range(3)]
    assert [(one["worker"], one["name"]) for one in found] == [
        ("P1", "DRAIN_OVER"), ("P2", "DRAIN_BEGINS"), ("P1", "RELOAD_CONFIRMED"),
    ]  # fmt: skip
    assert found[1]["fields"] == {"limit_ms": "0"}
