"""What a worker's shell finds of its former incarnation, and what it does without memory for more."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dro.bus.actor import FORMER_RING, RING, WorkerContext
from dro.bus.control import control_pair
from dro.bus.kept_sockets import SocketsAtFork
from dro.loop import Loop
from tests.bus.test_actor import identity
from tests.fakes.clock import SteppedClock


class Parent:
    """Starts one incarnation after the other in this process, which go on."""

    def __init__(self, run_dir: Path) -> None:
        self.loop = Loop(SteppedClock())
        self.run_dir = run_dir
        self.lives: list[WorkerContext] = []
        self.ends: list[socket.socket] = []

    def start(self, kept_dir: Path, **sockets: socket.socket) -> WorkerContext:
        (self.run_dir / "counters").unlink(missing_ok=True)
        mine, other = control_pair()
        kept, theirs = control_pair()
        self.ends += mine, kept
        by_name = {name.encode(): os.dup(sock.fileno()) for name, sock in sockets.items()}
        number = len(self.lives) + 1
        who = replace(
            identity(self.run_dir), incarnation=number, ring_path=self.run_dir / f"ring.{number}", kept_dir=kept_dir,
            goes_on=True, sockets=SocketsAtFork(theirs, by_name),
        )  # fmt: skip
        self.lives.append(WorkerContext(who, other, self.loop, logging.getLogger("tests")))
        return self.lives[-1]

    def close(self) -> None:
        for life in self.lives:
            life.close()
        for end in self.ends:
            end.close()
        self.loop.close()


@pytest.fixture
def parent(run_dir: Path) -> Iterator[Parent]:
    made = Parent(run_dir)
    yield made
    made.close()


def test_without_memory_for_rows_nothing_is_gone_on_with_and_no_socket_stays_open(
    parent: Parent, run_dir: Path
) -> None:
    one, other = socket.socketpair()
    with one, other:
        life = parent.start(run_dir / "not-there", source=one)
        assert not life.goes_on
        assert life.kept_sockets.names() == []
        assert life.kept_state.gate.is_open
        assert parent.ends[-1].recv(100) == b"dsource"


def test_the_ring_of_the_former_life_is_opened_once_and_leaves_no_file(parent: Parent, tmp_path: Path) -> None:
    for number in (1, 2):
        life = parent.start(tmp_path)
        life.create_ring(1)
        assert (tmp_path / RING).exists()
        assert (tmp_path / FORMER_RING).exists() is (number == 2)
    assert life.former_ring(7) is None
    ring = life.former_ring(1)
    assert ring is not None
    ring.close()
    assert not (tmp_path / FORMER_RING).exists()


def test_a_ring_that_cannot_be_kept_is_one_nevertheless(
    parent: Parent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.link", refuse)
    assert parent.start(tmp_path).create_ring(1).incarnation == 1
