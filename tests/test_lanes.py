"""A test that does what its lane is without fails, and each entry of the table of lanes leads to tests."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lanes import LANES, TESTS, Lane, lane_of, only


def bind() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))


def connect() -> None:
    with socket.socket() as sock:
        sock.connect(("127.0.0.1", 9))


def send() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.sendto(b"", ("127.0.0.1", 9))


def run() -> None:
    subprocess.run([sys.executable, "--version"], check=True)


def fork() -> None:
    os.fork()  # refused before there is a child


SOCKETS, PROCESSES = (bind, connect, send), (run, fork)


@pytest.mark.parametrize(
    ("lane", "use"),
    [*itertools.product([Lane.FAST], [*SOCKETS, *PROCESSES]), *itertools.product([Lane.LOOPBACK], PROCESSES)],
)
def test_what_a_lane_is_without_fails_a_test(lane: Lane, use: Callable[[], None]) -> None:
    with only(lane), pytest.raises(pytest.fail.Exception, match=f"in a test of the lane {lane.name.lower()}"):
        use()


@pytest.mark.parametrize("use", [bind, run])
def test_each_test_runs_so(use: Callable[[], None]) -> None:
    """This one as well, which is a fast one."""
    assert lane_of(Path(__file__)) is Lane.FAST
    with pytest.raises(pytest.fail.Exception, match="in a test of the lane fast"):
        use()


def test_what_a_lane_is_for_is_permitted() -> None:
    with only(Lane.LOOPBACK):
        bind()
    with only(Lane.PROCESSES):
        bind()
        run()


def test_the_longest_path_decides() -> None:
    assert lane_of(TESTS / "daemon/test_of_any_name.py") is Lane.PROCESSES
    assert lane_of(TESTS / "test_of_any_name.py") is Lane.FAST
    for path, lane in LANES.items():
        assert lane_of(TESTS / path) is lane
        above = max((other for other in LANES if path.startswith(f"{other}/")), key=len, default="")
        assert lane is not LANES.get(above, Lane.FAST), f"{path} says what {above or 'no entry'} says"


@pytest.mark.parametrize("path", LANES)
def test_an_entry_leads_to_tests(path: str) -> None:
    assert (TESTS / path).suffix == ".py" or [*(TESTS / path).rglob("test_*.py")]
    assert (TESTS / path).exists()
