"""What the service manager is told: to whom, what, and how often."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dro.clock import ms
from dro.loop import Loop
from supervisor.host.service_manager import ALIVE, LONGEST_NS, READY, SHORTEST_NS, ServiceManager
from tests.fakes.clock import SteppedClock


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind("")  # the kernel chooses an abstract name
        made.setblocking(False)
        yield made


def address(listener: socket.socket) -> str:
    name: bytes = listener.getsockname()
    return "@" + name[1:].decode()


def received(listener: socket.socket) -> list[bytes]:
    messages = []
    while True:
        try:
            messages.append(listener.recv(1024))
        except BlockingIOError:
            return messages


def test_assignments_are_lines_of_one_datagram(listener: socket.socket) -> None:
    ServiceManager({"NOTIFY_SOCKET": address(listener)}).say(READY, "STATUS=2 portals run")
    assert received(listener) == [b"READY=1\nSTATUS=2 portals run"]


def test_a_socket_in_the_file_system(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(path)
        ServiceManager({"NOTIFY_SOCKET": path}).say(READY)
        assert listener.recv(64) == b"READY=1"


def test_signs_of_life_go_on_after_one_that_failed() -> None:
    clock = SteppedClock()
    manager = ServiceManager({"NOTIFY_SOCKET": "@nobody", "WATCHDOG_USEC": "1000000"})
    with contextlib.closing(Loop(clock)) as loop:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ServiceManager, "say", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                manager.watch(loop)
        said: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ServiceManager, "say", lambda _, text: said.append(text))
            clock.time_ns += manager.interval_ns
            loop.run_once(0)
    assert said == [ALIVE]


def test_a_queue_that_is_full_is_given_time_to_have_room(listener: socket.socket) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as filler:
        filler.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                filler.sendto(b"X", listener.getsockname())
    with ThreadPoolExecutor(1) as pool:
        said = pool.submit(ServiceManager({"NOTIFY_SOCKET": address(listener)}).say, READY)
        listener.setblocking(True)
        listener.settimeout(10)
        while (message := listener.recv(64)) == b"X":
            pass
        said.result(10)
    assert message == READY.encode()


def test_its_variables_are_not_left_for_other_processes(listener: socket.socket) -> None:
    environ = {"NOTIFY_SOCKET": address(listener), "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "HOME": "/"}
    ServiceManager(environ)
    assert environ == {"HOME": "/"}


@pytest.mark.parametrize("where", ["", "@open-dro-test-nobody", "/nonexistent/notify", "@" + "x" * 200])
def test_nobody_listens(where: str) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": where})
    manager.say(READY)
    assert manager.interval_ns == 0


@pytest.mark.parametrize(
    ("variables", "interval_ns"),
    [
        ({"WATCHDOG_USEC": "20000000"}, ms(10_000)),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": str(os.getpid())}, ms(250)),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": "1"}, 0),
        ({"WATCHDOG_USEC": "soon"}, 0),
        ({"WATCHDOG_USEC": "0"}, 0),
        ({"WATCHDOG_USEC": "-5"}, 0),
        ({"WATCHDOG_USEC": "1"}, SHORTEST_NS),
        ({"WATCHDOG_USEC": "9" * 20}, LONGEST_NS),
        ({"WATCHDOG_USEC": "9" * 5000}, 0),
        ({}, 0),
    ],
)
def test_interval_of_signs_of_life(variables: dict[str, str], interval_ns: int) -> None:
    assert ServiceManager({"NOTIFY_SOCKET": "@x", **variables}).interval_ns == interval_ns


def test_a_sign_of_life_in_each_interval(listener: socket.socket) -> None:
    clock = SteppedClock()
    loop = Loop(clock)
    ServiceManager({"NOTIFY_SOCKET": address(listener), "WATCHDOG_USEC": "1000000"}).watch(loop)
    for _ in range(4):
        clock.time_ns += ms(250)
        loop.run_once(0)
    assert received(listener) == [ALIVE.encode()] * 3  # at 0, 500 and 1,000 ms
    loop.close()
