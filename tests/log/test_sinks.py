"""Console and syslog: a destination that takes nothing costs lines, which are counted, and never time."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import pty
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from dro.clock import s
from dro.log.events import LogEvent
from dro.log.file import Rolls
from dro.log.handler import LogHandler, Settings
from dro.log.sinks import PENDING_MAX, SYSLOG_MAX, Console, Syslog

F_SETPIPE_SZ: Final = 1031
LINE: Final = b"x" * 999 + b"\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """(read end, write end) of a small pipe."""
    ends = os.pipe()
    fcntl.fcntl(ends[1], F_SETPIPE_SZ, 4096)
    yield ends
    for fd in ends:
        with contextlib.suppress(OSError):
            os.close(fd)


def drain(fd: int) -> bytes:
    os.set_blocking(fd, False)
    found = b""
    with contextlib.suppress(BlockingIOError):
        while part := os.read(fd, 1 << 16):
            found += part
    return found


HandlerTo = Callable[[Settings], tuple[logging.Logger, LogHandler]]


@pytest.fixture
def handler_to() -> Iterator[HandlerTo]:
    made: list[LogHandler] = []

    def make(settings: Settings) -> tuple[logging.Logger, LogHandler]:
        made.append(LogHandler("E1", settings, Rolls(), os.getpid()))
        logger = logging.Logger("t")
        logger.addHandler(made[-1])
        return logger, made[-1]

    yield make
    for handler in made:
        handler.close()


def test_what_a_console_does_not_take_waits_in_a_bounded_buffer(pipe: tuple[int, int]) -> None:
    console = Console(pipe[1])
    taken = sum(console.write(LINE) for _ in range(1000))
    assert PENDING_MAX // 1000 <= taken <= PENDING_MAX // 1000 + 5
    got = b""
    while not console.flush():
        got += drain(pipe[0])
    assert got + drain(pipe[0]) == LINE * taken


def test_the_descriptor_itself_keeps_its_mode(pipe: tuple[int, int]) -> None:
    """It is shared with the shell, and with the programs before and after us."""
    Console(pipe[1]).write(LINE)
    assert os.get_blocking(pipe[1])


def test_a_console_of_another_user_is_asked_before_each_write(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then it cannot be opened once more."""

    def refuse(path: str, flags: int) -> int:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        console = Console(pipe[1])
    taken = sum(console.write(LINE) for _ in range(1000))
    assert taken < 300
    drain(pipe[0])
    console.flush()
    assert LINE in drain(pipe[0])


@pytest.mark.parametrize("kind", ["socket", "terminal", "file"])
def test_consoles_of_every_kind(kind: str, tmp_path: Path) -> None:
    if kind == "socket":
        theirs, mine = (end.detach() for end in socket.socketpair())
    elif kind == "terminal":
        theirs, mine = pty.openpty()
    else:
        mine = os.open(tmp_path / "log", os.O_CREAT | os.O_WRONLY)
        theirs = os.open(tmp_path / "log", os.O_RDONLY)
    os.write(mine, b"before\n")
    console = Console(mine)
    assert console.write(b"line\n")
    console.close()
    os.write(mine, b"after\n")  # what was given stays open
    assert drain(theirs).split() == [b"before", b"line", b"after"]
    os.close(mine)
    os.close(theirs)


def test_a_stopped_terminal_holds_nobody_up() -> None:
    theirs, mine = pty.openpty()
    console = Console(mine)
    began = time.monotonic()
    taken = sum(console.write(LINE) for _ in range(1000))
    assert 200 < taken < 400
    console.close(wait_s=0)
    assert time.monotonic() - began < 10
    os.close(mine)
    os.close(theirs)


def test_a_console_that_is_gone_takes_everything(pipe: tuple[int, int]) -> None:
    console = Console(pipe[1])
    os.close(pipe[0])
    assert all(console.write(LINE) for _ in range(1000))
    closed = Console(pipe[0])
    assert closed.write(LINE)
    closed.close()


def test_lines_that_a_console_does_not_take_are_told_and_counted(
    pipe: tuple[int, int], handler_to: HandlerTo, capfd: pytest.CaptureFixture[str]
) -> None:
    log, handler = handler_to(Settings(console_fd=pipe[1]))
    for i in range(3000):
        log.info(f"line {i}", extra={"filler": "x" * 150})
    got = drain(pipe[0])
    while not handler.destination.flush():
        got += drain(pipe[0])
    handler.tick()
    log.info("room again")
    lines = (got + drain(pipe[0])).decode().splitlines()
    written = [line for line in lines if "] line " in line]
    lost = 3000 - len(written)
    assert lost > 1000
    assert [re.search(r"\] line (\d+) ", line)[1] for line in written] == [  # type: ignore[index]
        str(i) for i in range(len(written))
    ]
    assert [line[28:] for line in lines[-2:]] == [
        f' [warning] log lines lost lines={lost} reason="it takes nothing" process=E1',
        " [information] room again process=E1",
    ]
    assert capfd.readouterr().err.count("log console: it takes nothing; lines are lost and counted") == 1


def test_a_full_console_is_told_once(handler_to: HandlerTo, capfd: pytest.CaptureFixture[str]) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    log, handler = handler_to(Settings(console_fd=full))
    handler.greet()
    for i in range(3):
        log.info(f"line {i}")
        handler.tick()
    os.close(full)
    assert capfd.readouterr().err == (
        f"tnwgd[{os.getpid()}]: log console: No space left on device; lines are lost and counted until it works again\n"
    )


@pytest.fixture
def syslogd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "log"))
        yield sock


def received(sock: socket.socket) -> list[str]:
    sock.setblocking(False)
    found = []
    with contextlib.suppress(BlockingIOError):
        while True:
            found.append(sock.recv(1 << 16).decode())
    return found


def test_syslog_gets_priority_tag_and_text(syslogd: socket.socket, handler_to: HandlerTo) -> None:
    log, _ = handler_to(Settings("syslog", syslog_path=syslogd.getsockname(), json=True))
    log.info(LogEvent.ENQUEUEING_BEGAN)
    log.critical("x", extra={"n": 1})
    log.debug("y")
    try:
        raise RuntimeError("why")
    except RuntimeError:
        log.exception("failed")
    head = f"tnwgd[{os.getpid()}]: "
    got = received(syslogd)
    assert got[:3] == [
        f"<30>{head}Gwd-6945-1: Portal [E1] began enqueueing data process=E1",
        f"<26>{head}x n=1 process=E1",
        f"<31>{head}y process=E1",
    ]
    assert got[3] == f"<27>{head}failed process=E1"
    assert got[-1] == f"<27>{head}RuntimeError: why"


def test_another_daemon_has_a_tag_of_its_own(syslogd: socket.socket, handler_to: HandlerTo) -> None:
    log, _ = handler_to(Settings("syslog", syslog_path=syslogd.getsockname(), syslog_tag="lbmrd"))
    log.info("x")
    assert received(syslogd) == [f"<30>lbmrd[{os.getpid()}]: x process=E1"]


def test_a_missing_syslog_is_told_once_and_gets_what_waited(tmp_path: Path) -> None:
    now = 0
    told: list[str] = []
    path = tmp_path / "log"
    syslog = Syslog(told.append, path=str(path), now_ns=lambda: now)
    assert syslog.put("<30>tnwgd[1]: a")
    now = s(2)
    assert syslog.put("<30>tnwgd[1]: b")
    assert told == [f"syslog socket {path}: No such file or directory; it is tried again each second"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.bind(str(path))
        assert not syslog.flush()  # too early
        now = s(4)
        assert syslog.put("<30>tnwgd[1]: c")
        assert received(daemon) == [f"<30>tnwgd[1]: {text}" for text in "abc"]
        path.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.bind(str(path))  # restarted
        assert syslog.put("<30>tnwgd[1]: d")
        assert received(daemon) == ["<30>tnwgd[1]: d"]
    assert len(told) == 1
    path.unlink()
    assert syslog.put("<30>tnwgd[1]: e")
    assert len(told) == 2
    syslog.close()


def test_a_burst_waits_for_a_busy_syslog(syslogd: socket.socket) -> None:
    """Its queue is short, of ten datagrams on many machines."""
    syslog = Syslog(pytest.fail, path=syslogd.getsockname())
    assert all(syslog.put(f"<30>t: {i}") for i in range(1000))
    got = received(syslogd)
    while not syslog.flush():
        got += received(syslogd)
    assert got + received(syslogd) == [f"<30>t: {i}" for i in range(1000)]
    syslog.close()


def test_a_syslog_that_takes_nothing_costs_lines_which_are_counted(
    syslogd: socket.socket, handler_to: HandlerTo
) -> None:
    log, handler = handler_to(Settings("syslog", syslog_path=syslogd.getsockname()))
    for i in range(2000):
        log.info(f"line {i}", extra={"filler": "x" * 300})
    got = received(syslogd)
    while not handler.destination.flush():
        got += received(syslogd)
    got += received(syslogd)
    handler.tick()
    assert 0 < len(got) < 2000
    (told,) = received(syslogd)
    assert f"log lines lost lines={2000 - len(got)} " in told


def test_a_datagram_is_bounded(syslogd: socket.socket) -> None:
    syslog = Syslog(pytest.fail, path=syslogd.getsockname())
    assert syslog.put("<30>t: " + "x" * 100_000)
    (got,) = received(syslogd)
    syslog.close()
    assert len(got) == SYSLOG_MAX
    assert got.endswith("x...")


def test_a_socket_of_another_kind_is_no_syslog(tmp_path: Path) -> None:
    told: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.bind(str(tmp_path / "log"))
        stream.listen()
        Syslog(told.append, path=str(tmp_path / "log")).put("<30>t: a")
    assert "Protocol wrong type for socket" in told[0]
