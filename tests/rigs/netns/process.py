"""Commands and Python functions that run inside a network namespace, each ended by its own process id.

`Process` is an executed command, `Task` a function in a forked child. Both lead a process group of their own, write
their output to files, and are killed by the kernel when the thread that started them ends, so a crashed test run
leaves none behind.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Generic, NoReturn, TypeVar

from tests.rigs.loaded import Loaded, is_loaded
from tests.rigs.netns.namespace import die_with_parent, enter
from tests.rigs.waiting import readable, wait_until

ROOT = Path(__file__).resolve().parents[3]
T = TypeVar("T")


class TaskFailed(Exception):
    """A function in a namespace raised or died; the text is its traceback or the way it ended."""


def _wait_match(
    name: str, pattern: str, path: Path, has_ended: Callable[[], bool], tail: Callable[[], str], timeout_s: float
) -> re.Match[str]:
    compiled = re.compile(pattern, re.MULTILINE)

    def found() -> re.Match[str] | None:
        ended = has_ended()  # asked first, so the last words of one that ends are not missed
        if match := compiled.search(path.read_text(errors="replace")):
            return match
        if ended:
            raise TaskFailed(f"{name} ended before printing {pattern!r}; {tail()}")
        return None

    try:
        return wait_until(found, f"{name} printing {pattern!r}", timeout_s)
    except TimeoutError as e:
        raise TimeoutError(f"{e}; {tail()}") from None


class Process:
    """One command in a namespace."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        namespace: str,
        folder: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
    ) -> None:
        """Starts at once. Output goes to `<folder>/<name>.out` and `.err`; `env` is added to the environment."""
        self.name = name
        self.argv = tuple(argv)
        self.stdout_path = folder / f"{name}.out"
        self.stderr_path = folder / f"{name}.err"
        where = {"namespace": namespace} if is_loaded(argv) else {}
        wrapped = argv if where else ["setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec", namespace, *argv]
        with self.stdout_path.open("wb") as out, self.stderr_path.open("wb") as err:
            self._popen: subprocess.Popen[bytes] = Loaded(
                wrapped,
                **where,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=cwd,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        self.pid = self._popen.pid  # setpriv and ip replace themselves, so this is the command

    @property
    def stdout(self) -> str:
        return self.stdout_path.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return self.stderr_path.read_text(errors="replace")

    @property
    def returncode(self) -> int | None:
        """None while it runs, else the exit status, negative for a signal."""
        return self._popen.poll()

    def wait(self, timeout_s: float = 30.0) -> int:
        """The exit status. Raises: TimeoutError, and the process runs on."""
        try:
            return self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.name} still runs after {timeout_s} s; {self._tail()}") from None

    def wait_output(self, pattern: str, timeout_s: float = 10.0, *, stderr: bool = False) -> re.Match[str]:
        """The first match of a regular expression in the output. Raises: TimeoutError, TaskFailed when it ended."""
        path = self.stderr_path if stderr else self.stdout_path
        return _wait_match(self.name, pattern, path, lambda: self._popen.poll() is not None, self._tail, timeout_s)

    def _tail(self) -> str:
        return f"status {self.returncode} stdout: {self.stdout[-500:]!r} stderr: {self.stderr[-2000:]!r}"

    def signal(self, number: int) -> None:
        """Signal the command alone, not its children."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def stop(self, timeout_s: float = 5.0) -> int:
        """Ask it to end, then kill what is left of its process group; returns the exit status."""
        self.signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(timeout_s)
        return self.kill()

    def kill(self) -> int:
        """Kill the command and its process group; returns the exit status."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        return self._popen.wait(10)


class Task(Generic[T]):
    """One Python function in a forked child of this process; the result comes back pickled."""

    def __init__(self, name: str, function: Callable[[], T], namespace: str, folder: Path) -> None:
        """Starts at once. What it prints goes to `<folder>/<name>.err`."""
        self.name = name
        self.output_path = folder / f"{name}.err"
        self._received = b""
        self._status: int | None = None
        self.output_path.touch()
        self._fd, writer = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # fork beside the threads of a test runner
            self.pid = os.fork()
        if self.pid == 0:
            os.close(self._fd)
            _run_child(function, namespace, self.output_path, writer)
        os.close(writer)

    def result(self, timeout_s: float = 30.0) -> T:
        """What the function returned. Raises: TaskFailed with its traceback, TimeoutError while it still runs."""
        deadline = time.monotonic() + timeout_s
        while self._fd >= 0:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not readable([self._fd], left_s):
                raise TimeoutError(f"{self.name} still runs after {timeout_s} s")
            chunk = os.read(self._fd, 1 << 16)
            self._received += chunk
            if not chunk:
                self._close()
        if not self._received:
            raise TaskFailed(f"{self.name} ended with {self._reap()} and without a result")
        succeeded, value = pickle.loads(self._received)
        if not succeeded:
            raise TaskFailed(value)
        result: T = value
        return result

    def wait_output(self, pattern: str, timeout_s: float = 10.0) -> re.Match[str]:
        """The first match in what the function prints. Raises: TimeoutError, TaskFailed when it ended before."""
        return _wait_match(self.name, pattern, self.output_path, self._has_ended, self.output_path.read_text, timeout_s)

    def _has_ended(self) -> bool:
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status is not None

    def kill(self) -> None:
        """End it now, whatever it does; idempotent."""
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._reap()
        self._close()

    def _reap(self) -> int:
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _run_child(function: Callable[[], object], namespace: str, output: Path, writer: int) -> NoReturn:
    """The forked child: never returns into the test runner, never runs its exit handlers."""
    status = 1
    try:
        os.setsid()
        die_with_parent()
        fd = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        sys.stdout = sys.stderr = os.fdopen(fd, "w", buffering=1)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            enter(namespace)
            answer = pickle.dumps((True, function()))
            status = 0
        except BaseException:
            answer = pickle.dumps((False, traceback.format_exc()))
        with os.fdopen(writer, "wb") as out:
            out.write(answer)
    finally:
        os._exit(status)
