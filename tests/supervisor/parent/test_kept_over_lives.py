"""What a portal keeps over its lives, with real processes: a connection survives kill -9, and ends with an order."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

from tests.rigs.dro_process import sockets_of
from tests.rigs.dro_run import FakeDro

Start = Callable[..., FakeDro]
NAME = "keeping-1"
NOT_USED = "what a worker had kept for its next life is not used"


def connect(dro: FakeDro, life: int) -> socket.socket:
    """A connection with that life, which has not read what was sent to it."""
    port = dro.wait_for("ready", count=life, worker=NAME)[-1]["port"]
    client = socket.create_connection(("127.0.0.1", port), timeout=20)
    client.sendall(b"unread")
    accepted = dro.wait_for("accepted", worker=NAME)[-1]
    dro.wait_until(lambda: accepted["socket"] in sockets_of(dro.process.pid))
    return client


def kill(dro: FakeDro, name: str, life: int) -> dict[str, Any]:
    """Kill the worker; what its next life says."""
    os.kill(dro.pid_of(name), signal.SIGKILL)
    return dro.wait_for("ready", count=life, worker=name)[-1]


def is_closed(client: socket.socket) -> bool:
    try:
        return client.recv(100) == b""
    except ConnectionResetError:
        return True


def lines(dro: FakeDro) -> list[str]:
    dro.wait_until(lambda: NOT_USED in dro.log)
    return [line.partition(NOT_USED)[2] for line in dro.log.splitlines() if NOT_USED in line]


def test_a_connection_survives_one_kill_and_not_a_second_one_soon_after(start: Start) -> None:
    dro = start("plain-0", NAME, "plain-2")
    first = dro.wait_for("ready", worker=NAME)[0]
    assert (first["goes_on"], first["names"], first["files"], first["mode"]) == (False, [], ["rows"], "0o700")
    with connect(dro, 1) as client:
        second = kill(dro, NAME, 2)
        kept = ["connection", "listener", "strange"]
        assert (second["goes_on"], second["names"], second["port"]) == (True, kept, first["port"])
        assert second["files"] == [f"of {first['incarnation']}", "rows"]
        assert dro.wait_for("read")[0]["text"] == "unread"
        assert client.recv(100) == b"answer"
        shown = dro.told("accepted")[0]["socket"]
        kill(dro, "plain-2", 2)  # forked while the parent holds sockets
        holders = [pid for pid in {dro.process.pid, *map(dro.pid_of, dro.names)} if shown in sockets_of(pid)]
        assert sorted(holders) == sorted([dro.process.pid, dro.pid_of(NAME)])
        assert NOT_USED not in dro.log
        third = kill(dro, NAME, 3)
        assert (third["goes_on"], third["names"], third["files"]) == (False, [], ["rows"])
        assert is_closed(client)
    assert [line.strip() for line in lines(dro)] == [
        f'worker={NAME} reason="it went on and died soon after" sockets=2 process=tnwgd'
    ]
    fourth = kill(dro, NAME, 4)
    assert (fourth["goes_on"], fourth["names"]) == (True, ["listener"]), "a life that began clean is gone on from"
    dro.signal(signal.SIGTERM)
    assert dro.wait_exit() == 0
    assert len(lines(dro)) == 1, "the end of a DRO is no loss"
    assert dro.leftovers() == []


def test_a_connection_survives_ordered_restarts_however_soon(start: Start) -> None:
    dro = start("plain-0", NAME)
    with connect(dro, 1) as client:
        for life, sent in ((2, "unread"), (3, "more")):
            dro.signal(signal.SIGHUP)
            found = dro.wait_for("ready", count=life, worker=NAME)[-1]
            assert (found["goes_on"], found["names"][:2]) == (True, ["connection", "listener"])
            assert dro.wait_for("read", count=life - 1)[-1]["text"] == sent
            assert client.recv(100) == b"answer"
            client.sendall(b"more")
    assert NOT_USED not in dro.log


def test_a_connection_ends_with_a_restart_that_is_to_be_clean(start: Start) -> None:
    dro = start("plain-0", NAME)
    (dro.directory / "clean").touch()
    with connect(dro, 1) as client:
        dro.signal(signal.SIGHUP)
        second = dro.wait_for("ready", count=2, worker=NAME)[-1]
        assert (second["goes_on"], second["names"], second["files"]) == (False, [], ["rows"])
        assert is_closed(client)
    assert [line.strip() for line in lines(dro)] == [f'worker={NAME} reason="ordered: restart" sockets=3 process=tnwgd']
    of_task = json.loads((dro.directory / "task").read_text())
    assert dro.told("accepted")[0]["socket"] not in of_task
