"""Work that may take long or fail, in a forked child: the parent's loop continues, and gets the result once.

The child's result is pickled and returned over a pipe. The child is killed at its time limit, when its answer is too
large and when it is cancelled; a crash is an ordinary failure and changes nothing here. It inherits the state of the
parent by the fork and returns only its answer.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, NoReturn, TypeVar

from dro.bus.actor import FORK_MASK
from dro.bus.process_name import name_process, show_name
from dro.clock import NS_PER_S
from dro.config.reading.problems import ConfigErrors
from dro.errors import ConfigError, DroError, RefusedError, ResourceError
from dro.loop import Loop
from dro.start_folder import enter_start_folder
from dro.timers import Timer

MAX_ANSWER: Final = 256 << 20  # bytes
_CHUNK: Final = 1 << 20
_PR_SET_PDEATHSIG: Final = 1
_PROBLEM_CHARACTERS: Final = 4000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TaskProblem:
    """One thing that is wrong, in the parts of an error: exceptions do not travel between processes."""

    what: str
    file: str = ""
    line: int = 0
    element: str = ""
    remedy: str = ""

    def error(self) -> ConfigError:
        return ConfigError(self.what, file=self.file, line=self.line, element=self.element, remedy=self.remedy)


@dataclass(frozen=True, slots=True)
class Failed:
    """The work was not done, for these reasons."""

    problems: tuple[TaskProblem, ...]

    def error(self) -> ConfigError:
        """All of them as one error."""
        errors = [problem.error() for problem in self.problems]
        return errors[0] if len(errors) == 1 else ConfigErrors(errors)


def problems_of(error: DroError) -> tuple[TaskProblem, ...]:
    """An error taken apart."""
    match error:
        case ConfigErrors():
            return tuple(problem for one in error.errors for problem in problems_of(one))
        case ConfigError():
            return (TaskProblem(error.what, error.file, error.line, error.element, error.remedy),)
        case ResourceError() | RefusedError():
            return (TaskProblem(error.what, remedy=error.remedy),)
        case _:
            return (TaskProblem(str(error)),)


def failure(what: str, remedy: str = "") -> Failed:
    return Failed((TaskProblem(what, remedy=remedy),))


def fork(child: Callable[[], object], status: int) -> tuple[int, int]:
    """Process id and descriptor of a process that does what `child` does and ends, with that exit status.

    Raises: OSError, leaving nothing behind.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, FORK_MASK)
    try:
        pid = os.fork()
        if pid == 0:
            try:
                enter_start_folder()
                child()
            finally:
                os._exit(status)
        try:
            return pid, os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORK_MASK)


class ForkedTask(Generic[T]):
    """One piece of work. `done` gets its result, or a `Failed`, once and later; never after `cancel`."""

    def __init__(
        self,
        loop: Loop,
        work: Callable[[], T],
        done: Callable[[T | Failed], object],
        *,
        limit_ns: int,
        what: str,
        in_child: Callable[[], object] = lambda: None,
    ) -> None:
        """`what` names the work in messages; `in_child` lets go of what a fork inherits, above all descriptors.

        Errors that `work` raises come back as they are when they are DroErrors; anything else is a crash.
        """
        self._loop = loop
        self._done = done
        self._what = what
        self._parts: list[bytes] = []
        self._size = 0
        self._is_over = False
        self._timer: Timer | None = None
        self._pid = 0
        self._pidfd = -1
        self._pipe = -1
        try:
            self._fork(work, in_child)
        except OSError as e:
            reason = e.strerror or str(e)
            failed = failure(f"{what}: no process can be started: {reason}", "free memory or raise the limits")
            loop.call_soon(lambda: self._finish(failed))
            return
        loop.add_reader(self._pipe, self._on_readable)
        loop.add_reader(self._pidfd, self._on_exit)
        late = f"{what}: not done after {limit_ns / NS_PER_S:g} s"
        self._timer = loop.call_later(limit_ns, lambda: self._give_up(late))

    def cancel(self) -> None:
        """Kill the child; `done` is not called any more."""
        self._is_over = True
        self._kill()

    def close_inherited(self) -> None:
        """Close the descriptors in a process forked meanwhile and touch nothing else."""
        for fd in (self._pipe, self._pidfd):
            if fd >= 0:
                os.close(fd)

    # the parent's side

    def _fork(self, work: Callable[[], T], in_child: Callable[[], object]) -> None:
        """Fork a child that does the work. Raises: OSError, leaving nothing behind."""
        parent = os.getpid()
        reading, writing = os.pipe2(os.O_CLOEXEC)

        def child() -> None:
            os.close(reading)
            _live(parent, writing, work, in_child)

        try:
            self._pid, self._pidfd = fork(child, 1)
        except OSError:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        os.set_blocking(reading, False)
        self._pipe = reading

    def _on_readable(self) -> bool:
        try:
            part = os.read(self._pipe, _CHUNK)
        except BlockingIOError:
            return False
        if part:
            self._parts.append(part)
            self._size += len(part)
            if self._size > MAX_ANSWER:
                self._give_up(f"{self._what}: the answer has more than {MAX_ANSWER} bytes")
            return self._pipe >= 0
        self._close_pipe()
        return False

    def _on_exit(self) -> None:
        """Finish the task: the child is gone, and what it wrote is in the pipe."""
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid == 0:
            return
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        while self._pipe >= 0 and self._on_readable():
            pass
        self._close_pipe()
        self._finish(self._result(status))

    def _result(self, status: int) -> T | Failed:
        if status == 0:
            with contextlib.suppress(Exception):  # half an answer, or one that cannot be read, is none
                is_done, value = _read(b"".join(self._parts))
                return value if is_done else Failed(value)
        if os.WIFSIGNALED(status):
            cause = f"killed by signal {os.WTERMSIG(status)}"
        else:
            cause = f"exit status {os.waitstatus_to_exitcode(status)}"
        return failure(f"{self._what}: its process failed: {cause}")

    def _give_up(self, why: str) -> None:
        self._kill()
        self._finish(failure(why))

    def _kill(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._close_pipe()
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _close_pipe(self) -> None:
        if self._pipe >= 0:
            self._loop.remove_reader(self._pipe)
            os.close(self._pipe)
            self._pipe = -1

    def _finish(self, result: T | Failed) -> None:
        if self._is_over:
            return
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        self._parts.clear()
        self._done(result)


def _read(answer: bytes) -> tuple[bool, Any]:
    """Read our own child's answer, without the collector, which would look through it often: three times as long."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        is_done, value = pickle.loads(answer)
    finally:
        if was_enabled:
            gc.enable()
    return is_done, value


# the child's side


def _live(parent: int, pipe: int, work: Callable[[], object], in_child: Callable[[], object]) -> NoReturn:
    """Do the work, write the answer, end. Nothing of the parent's (exit handlers, buffers) may run here."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORK_MASK)
    name_process("tnwgd-trial")
    show_name("trial")
    in_child()
    gc.disable()  # it ends before that is worth while
    answer: tuple[bool, object]
    try:
        answer = (True, work())
    except DroError as e:
        answer = (False, problems_of(e))
    except BaseException as e:
        text = "".join(traceback.format_exception(e))[-_PROBLEM_CHARACTERS:]
        answer = (False, (TaskProblem(f"a fault of this program: {text}", remedy="report it"),))
    data = memoryview(pickle.dumps(answer, pickle.HIGHEST_PROTOCOL))
    while data:
        data = data[os.write(pipe, data) :]
    os._exit(0)
