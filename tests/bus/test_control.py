"""The control socket between parent and worker."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from dro.bus import control
from dro.bus.control import ControlSocket, control_pair
from dro.bus.messages import (
    PARENT_MESSAGES,
    WORKER_REPORTS,
    ParentMessage,
    Ping,
    Pong,
    StartFailed,
    WorkerReport,
)
from dro.errors import LocalProtocolError, ResourceError
from dro.loop import Loop
from tests.bus.conftest import open_files

Until = Callable[[Callable[[], bool]], None]


class Parent:
    """The parent's end, and the bare socket of the other."""

    def __init__(self, loop: Loop) -> None:
        self.heard: list[WorkerReport] = []
        self.closed = 0
        mine, self.other = control_pair()
        self.end = ControlSocket[ParentMessage, WorkerReport](
            loop, mine, PARENT_MESSAGES, WORKER_REPORTS, self.heard.append, self._on_closed
        )

    def _on_closed(self) -> None:
        self.closed += 1


@pytest.fixture
def parent(loop: Loop) -> Iterator[Parent]:
    made = Parent(loop)
    yield made
    made.end.close()
    made.other.close()


def test_messages_cross_whole_and_in_order(loop: Loop, until: Until, parent: Parent) -> None:
    pings: list[ParentMessage] = []
    worker = ControlSocket[WorkerReport, ParentMessage](
        loop, parent.other, WORKER_REPORTS, PARENT_MESSAGES, pings.append, lambda: None
    )
    for n in range(200):
        parent.end.send(Ping(n))
        worker.send(Pong(n))
    until(lambda: len(pings) == 200 and len(parent.heard) == 200)
    assert pings == [Ping(n) for n in range(200)]
    assert parent.heard == [Pong(n) for n in range(200)]
    worker.close()


def test_what_the_kernel_does_not_take_waits(loop: Loop, until: Until, parent: Parent) -> None:
    for n in range(3000):
        parent.end.send(Ping(n))
    assert len(parent.end._waiting) > 0
    pings: list[ParentMessage] = []
    worker = ControlSocket[WorkerReport, ParentMessage](
        loop, parent.other, WORKER_REPORTS, PARENT_MESSAGES, pings.append, lambda: None
    )
    until(lambda: len(pings) == 3000)
    assert pings == [Ping(n) for n in range(3000)]
    worker.close()


def test_a_side_that_never_listens_is_an_error(parent: Parent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "MAX_WAITING", 10)

    def flood() -> None:
        for n in range(10_000):
            parent.end.send(Ping(n))

    with pytest.raises(ResourceError, match="the control socket is full"):
        flood()
    assert len(parent.end._waiting) == 10


def test_a_message_too_large_for_a_packet_is_a_bug(loop: Loop) -> None:
    mine, other = control_pair()
    assert [end.getblocking() or end.get_inheritable() for end in (mine, other)] == [False, False]
    worker = ControlSocket[WorkerReport, ParentMessage](
        loop, mine, WORKER_REPORTS, PARENT_MESSAGES, lambda _: None, lambda: None
    )
    most = 131_072 - 8
    with pytest.raises(LocalProtocolError, match="StartFailed takes 131073 bytes"):
        worker.send(StartFailed("x" * (most + 1), ""))
    worker.send(StartFailed("x" * most, ""))
    assert WORKER_REPORTS.decode(other.recv(1 << 20)) == StartFailed("x" * most, "")
    worker.close()
    other.close()


def test_a_turn_hears_64_messages(loop: Loop, parent: Parent) -> None:
    for n in range(100):
        parent.other.send(WORKER_REPORTS.encode(Pong(n)))
    loop.run_once(0)
    assert parent.heard == [Pong(n) for n in range(64)]
    loop.run_once(0)
    assert parent.heard == [Pong(n) for n in range(100)]


def test_an_end_may_be_closed_by_what_it_hears(loop: Loop) -> None:
    mine, other = control_pair()
    heard: list[WorkerReport] = []

    def hear(message: WorkerReport) -> None:
        heard.append(message)
        end.close()

    end = ControlSocket[ParentMessage, WorkerReport](loop, mine, PARENT_MESSAGES, WORKER_REPORTS, hear, heard.clear)
    for n in range(3):
        other.send(WORKER_REPORTS.encode(Pong(n)))
    loop.run_once(0)
    assert heard == [Pong(0)]
    end.send(Ping(1))
    end.drain()  # comes back
    other.close()


def test_a_closed_end_forgets_what_waits(loop: Loop, parent: Parent) -> None:
    before = open_files()
    while not parent.end._waiting:
        parent.end.send(Ping(1))
    parent.end.close()
    assert open_files() == before - 1
    while parent.other.recv(100):
        pass
    loop.run_once(0)


def test_a_forked_child_gives_up_the_descriptor_alone(loop: Loop) -> None:
    mine, other = control_pair()
    end = ControlSocket[ParentMessage, WorkerReport](
        loop, mine, PARENT_MESSAGES, WORKER_REPORTS, lambda _: None, lambda: None
    )
    loop.remove_reader(mine)
    end.close_inherited()
    assert mine.fileno() == -1
    assert other.recv(100) == b""
    other.close()


def test_the_end_of_the_other_side_shows_once(loop: Loop, until: Until, parent: Parent) -> None:
    parent.other.send(WORKER_REPORTS.encode(Pong(1)))
    parent.other.close()
    until(lambda: parent.closed == 1)
    assert parent.heard == [Pong(1)]
    parent.end.send(Ping(1))  # into nothing, without a fuss
    parent.end.close()
    loop.run_once(0)
    assert parent.closed == 1


def test_a_send_to_a_dead_side_does_no_harm(until: Until, parent: Parent) -> None:
    parent.other.close()
    parent.end.send(Ping(1))
    until(lambda: parent.closed == 1)


@pytest.mark.parametrize("packet", [b"\xff", b"\x91\x63", b"garbage"])
def test_a_side_that_speaks_another_language_counts_as_gone(until: Until, parent: Parent, packet: bytes) -> None:
    parent.other.send(packet)
    until(lambda: parent.closed == 1)
    assert parent.heard == []


def test_last_words_are_heard(parent: Parent) -> None:
    for n in range(100):
        parent.other.send(WORKER_REPORTS.encode(Pong(n)))
    parent.other.shutdown(socket.SHUT_RDWR)
    parent.end.drain()
    assert parent.heard == [Pong(n) for n in range(100)]
    assert parent.closed == 1
