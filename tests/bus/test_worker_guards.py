"""Checks of a worker before it begins, and how it ends with its parent."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from dro.bus import worker_guards
from dro.bus.worker_guards import die_with, end_with, require_files, require_threads

PR_GET_PDEATHSIG = 2


@pytest.fixture
def forked() -> Iterator[Callable[[Callable[[], object]], int]]:
    """Runs a function in a child, which is killed with the test. Status 99: the function came back."""
    children = []

    def fork(body: Callable[[], object]) -> int:
        pid = os.fork()
        if not pid:
            try:
                body()
                os._exit(99)
            finally:
                os._exit(98)
        children.append(pid)
        return pid

    yield fork
    for pid in children:
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


Fork = Callable[[Callable[[], object]], int]


def status_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_the_kernel_is_asked_to_end_a_worker_with_its_parent(forked: Fork) -> None:
    parent = os.getpid()

    def ask() -> None:
        die_with(parent)
        number = ctypes.c_int()
        ctypes.CDLL(None).prctl(PR_GET_PDEATHSIG, ctypes.byref(number))
        os._exit(number.value)

    assert status_of(forked(ask)) == signal.SIGTERM


@pytest.mark.parametrize("guard", [die_with, end_with])
def test_a_worker_whose_parent_has_ended_meanwhile_ends_in_peace(forked: Fork, guard: Callable[[int], None]) -> None:
    ended = forked(lambda: None)
    assert status_of(ended) == 99
    assert status_of(forked(lambda: guard(ended))) == 0  # nobody has this number
    assert status_of(forked(lambda: guard(1))) == 0  # somebody has, who is not the parent


def test_a_worker_that_hangs_is_ended_after_its_grace_period(forked: Fork) -> None:
    parent = forked(signal.pause)
    told, tells = os.pipe()

    def hang() -> None:
        os.getppid = lambda: parent
        time.sleep = lambda seconds: os.write(tells, str(seconds).encode())  # type: ignore[assignment]  # no sleep
        end_with(parent)
        os.write(tells, b"guarded ")
        signal.pause()

    worker = forked(hang)
    assert os.read(told, 100) == b"guarded "
    os.kill(parent, signal.SIGKILL)
    assert status_of(worker) == 4
    assert os.read(told, 100) == b"2.0"
    os.close(told)
    os.close(tells)


@pytest.mark.parametrize(("limit", "is_enough"), [(95, False), (96, True), (resource.RLIM_INFINITY, True)])
def test_a_worker_needs_96_files(monkeypatch: pytest.MonkeyPatch, limit: int, is_enough: bool) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda what: (limit, limit) if what == resource.RLIMIT_NOFILE else None)
    if is_enough:
        require_files()
        return
    with pytest.raises(OSError, match="95 open files are allowed, a worker needs 96") as e:
        require_files()
    assert e.value.errno == errno.EMFILE


@pytest.mark.parametrize(("room", "is_enough"), [(0, False), (1, False), (2, True)])
def test_a_worker_needs_room_for_two_threads(monkeypatch: pytest.MonkeyPatch, room: int, is_enough: bool) -> None:
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if len(started) == room:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    before = threading.active_count(), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    monkeypatch.setattr(threading.Thread, "start", limited)
    if is_enough:
        require_threads()
    else:
        with pytest.raises(OSError, match="cannot start a thread") as e:
            require_threads()
        assert e.value.errno == errno.EAGAIN
    assert (len(started), all(thread.daemon for thread in started)) == (room, True)
    assert (threading.active_count(), signal.pthread_sigmask(signal.SIG_BLOCK, ())) == before


def test_signals_are_left_to_the_main_thread() -> None:
    masks: list[set[signal.Signals | int]] = []
    thread = worker_guards.start_thread(lambda: masks.append(set(signal.pthread_sigmask(signal.SIG_BLOCK, ()))))
    thread.join()
    assert masks[0] >= {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM, signal.SIGCHLD}
