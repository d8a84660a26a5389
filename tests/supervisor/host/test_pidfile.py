"""Pid files: who gets one, who is left alone, and that nobody is ever signalled."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dro.errors import ResourceError
from supervisor.host.pidfile import PidFileHeldError, take_pid_file
from tests.rigs.dro_run import is_running
from tests.rigs.effort import IS_LONG
from tests.rigs.waiting import wait_until

GONE = 4194305  # above the largest process id


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "dro.pid"


def content() -> str:
    return f"{os.getpid()}\n"


def test_it_holds_the_process_id_and_goes_at_the_end(path: Path) -> None:
    taken = take_pid_file(path)
    assert path.read_text() == content()
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    taken.remove()
    assert not path.exists()


@pytest.mark.parametrize("text", ["", "\n", f"{GONE}\n", f"  {GONE}", "0"])
def test_a_stale_file_is_taken_over(path: Path, text: str) -> None:
    path.write_text(text)
    take_pid_file(path).remove()
    assert list(path.parent.iterdir()) == []


def test_a_living_holder_is_named(path: Path) -> None:
    taken = take_pid_file(path)
    with pytest.raises(PidFileHeldError, match=f"of the running DRO with process id {os.getpid()}; stop that one") as e:
        take_pid_file(path)
    assert e.value.pid == os.getpid()
    assert path.read_text() == content()
    taken.close()
    take_pid_file(path).remove()  # without the lock it is ours, even though it names this very process


def test_a_forked_process_holds_it_too(path: Path) -> None:
    """As the workers of a killed DRO do while they end."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        taken = take_pid_file(path)
        grandchild = os.fork()
        if grandchild == 0:
            os.read(read, 1)  # until the test closes its end
            taken.close()
        os._exit(0)
    os.waitpid(child, 0)
    os.close(read)
    with pytest.raises(PidFileHeldError) as e:
        take_pid_file(path)
    assert e.value.pid == child
    os.close(write)

    def free() -> bool:
        try:
            take_pid_file(path).remove()
        except PidFileHeldError:
            return False
        return True

    wait_until(free, "the lock is free")


def test_a_living_process_that_may_have_written_it_is_left_alone(path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        path.write_text(f"{other.pid}\n")
        with pytest.raises(ResourceError, match=rf"names the living process {other.pid} \(python") as e:
            take_pid_file(path)
        assert "remove the file if it is wrong" in e.value.remedy
        assert path.read_text() == f"{other.pid}\n"
        assert is_running(other.pid)
        os.utime(path, (0, 0))  # written long before that process started: the number was given away since
        own = take_pid_file(path)
        assert path.read_text() == f"{os.getpid()}\n"
        own.remove()
        assert is_running(other.pid)
        assert other.stdin is not None
        other.stdin.close()


@pytest.mark.parametrize("text", ["root:x:0:0\n", "12 13\n", "-1\n", "12345678901\n", " " * 100, "\u0661"])
def test_another_file_is_not_overwritten(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(ResourceError, match="is not a pid file"):
        take_pid_file(path)
    assert path.read_text() == text
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_what_is_no_file_is_not_taken(path: Path, tmp_path: Path) -> None:
    path.mkdir()
    with pytest.raises(ResourceError, match="cannot write the pid file"):
        take_pid_file(path)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ResourceError, match="is not a pid file"):
        take_pid_file(tmp_path / "fifo")
    (tmp_path / "letter").write_text("7")
    (tmp_path / "link").symlink_to(tmp_path / "letter")
    with pytest.raises(ResourceError, match="a symbolic link is not followed"):
        take_pid_file(tmp_path / "link")
    assert (tmp_path / "letter").read_text() == "7"
    with pytest.raises(ResourceError, match="make its directory first"):
        take_pid_file(tmp_path / "none" / "dro.pid")


def test_another_file_in_its_place_is_left_at_the_end(path: Path) -> None:
    taken = take_pid_file(path)
    path.unlink()
    path.write_text("77\n")
    taken.remove()
    assert path.read_text() == "77\n"


def test_a_file_system_without_links(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    taken = take_pid_file(path)
    assert path.read_text() == content()
    with pytest.raises(PidFileHeldError):
        take_pid_file(path)
    taken.remove()
    assert list(path.parent.iterdir()) == []


def test_a_full_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text(f"{GONE}\n")

    def pwrite(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        with pytest.raises(ResourceError, match=f"cannot write the pid file {path}: No space left.*; make room"):
            take_pid_file(path)
    assert path.read_text() == f"{GONE}\n"
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_directory_that_takes_no_new_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that is there is used, and emptied at the end, as it cannot be removed."""
    path.write_text("")
    opened: Callable[..., int] = os.open

    def deny(name: Path, flags: int, *more: int) -> int:
        if flags & os.O_CREAT:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(name, flags, *more)

    def unlink(_path: Path, missing_ok: bool = False) -> None:
        if not missing_ok:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", deny)
    monkeypatch.setattr(Path, "unlink", unlink)
    taken = take_pid_file(path)
    assert path.read_text() == content()
    taken.remove()
    assert path.read_text() == ""
    with pytest.raises(ResourceError, match="Permission denied"):
        take_pid_file(path.with_name("other.pid"))


def test_many_at_once_one_gets_it(path: Path) -> None:
    """Each of them finds the file of a dead one, or none; none is told that it has the file when it has not."""
    for round_number in range(30 if IS_LONG else 6):
        if round_number % 2:
            path.write_text(f"{GONE}\n")
        go, told = os.pipe(), os.pipe()
        children = []
        for _ in range(8):
            child = os.fork()
            if child == 0:
                os.close(go[1])
                os.read(go[0], 1)  # the end of the file
                word = b"+"
                try:
                    take_pid_file(path)
                except ResourceError:
                    word = b"-"
                os.write(told[1], word)
                signal.pause()  # keeps the lock until all have tried
            children.append(child)
        os.close(go[1])
        os.close(told[1])
        verdicts = b""
        while len(verdicts) < 8:
            part = os.read(told[0], 8)
            assert part, "a process failed"
            verdicts += part
        holder = int(path.read_text())
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        os.close(told[0])
        os.close(go[0])
        assert verdicts.count(b"+") == 1
        assert holder in children
        path.unlink()


def test_the_lock_is_a_lock_of_its_own(path: Path) -> None:
    """A record lock by somebody else (the original uses none) does not make the file a living one."""
    path.write_text(f"{GONE}\n")
    with path.open("r+") as f:
        fcntl.lockf(f, fcntl.LOCK_EX)
        own = take_pid_file(path)
        assert path.read_text() == f"{os.getpid()}\n"
        own.remove()
