"""Python programs in processes of their own that start at once: each is forked from one process that has loaded them.

`Loaded` is `subprocess.Popen` for `[sys.executable, "-m", MODULE, ...]`. Of every start from disk, four fifths would be
spent on imports, so a test starts its programs from here unless it is about the start of an interpreter: environment
variables that Python itself reads, closed standard streams, what is loaded when, process listings.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import pickle
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, AnyStr, Final

from tests.rigs.netns.namespace import die_with_parent, enter
from tests.rigs.waiting import readable

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("dro", "portals", "router", "supervisor")
RIGS: Final = ("application", "census", "circumstances", "dro_process", "faulty_dro", "flow", "netns.relay",
               "parse_cost", "quick_dro", "replay")  # fmt: skip
LATER: Final = ("encodings.idna", "encodings.utf_8_sig")
"""What the library loads when it is needed, from where another user may not read."""
TITLE: Final = "-" * 512
"""An argument that leaves room for what a program shows as its name and arguments."""
REQUEST_MAX: Final = 1 << 20


@dataclass(frozen=True)
class Program:
    """What the process is to become."""

    module: str
    arguments: Sequence[str]
    unbuffered: bool
    folder: str
    environment: dict[str, str]
    new_session: bool
    namespace: str
    niceness: int
    prepare: Callable[[], None] | None


class Image:
    """The process that has loaded everything, as its user sees it."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            argv = [sys.executable, "-m", "tests.rigs.loaded", str(theirs.fileno()), TITLE]
            subprocess.run(argv, cwd=ROOT, pass_fds=[theirs.fileno()], check=True)  # it goes on in the background
        self._lock = threading.Lock()
        self._statuses: dict[int, int] = {}

    def start(self, program: Program, streams: Sequence[int]) -> int:
        """Its process id. `streams`: file descriptors of standard input, output and errors."""
        with self._lock:
            socket.send_fds(self._control, [pickle.dumps(program)], streams)
            while True:
                pid, status = self._receive()
                if status is None:
                    return pid
                self._statuses[pid] = status

    def status(self, pid: int, seconds: float) -> int | None:
        """The status of a process that has ended, as `os.waitpid` gives it; None when it runs on."""
        with self._lock:
            while pid not in self._statuses and readable([self._control.fileno()], seconds):
                ended, status = self._receive()
                assert status is not None
                self._statuses[ended] = status
            return self._statuses.pop(pid, None)

    def _receive(self) -> tuple[int, int | None]:
        data = self._control.recv(REQUEST_MAX)
        if not data:
            raise RuntimeError("the process that forks programs has ended; see its standard error")
        pid, status = pickle.loads(data)
        return pid, status


_images: dict[int, Image] = {}  # by owner, and no cache of a function: the fuzzer empties those


def _image(owner: int) -> Image:
    if owner not in _images:
        _images[owner] = Image()
    return _images[owner]


def prepare() -> None:
    """Start the process that forks, in the namespace of the caller: it ends with that one."""
    _image(os.getpid())


def _of_interpreter(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith("PYTHON")}


_AT_START: Final = _of_interpreter(os.environ)


def is_loaded(argv: Sequence[str]) -> bool:
    """Is it a module of this interpreter, `python [-u] -m MODULE ...`?"""
    return argv[0] == sys.executable and "-m" in (argv[1], *argv[2 : 2 + (argv[1] == "-u")])


class Loaded(subprocess.Popen[AnyStr]):
    """As its base, with a network namespace to run in; a process in one ends with the tests at the latest.

    `preexec_fn` must be one that can be pickled (`tests.rigs.circumstances`). Anything but a module of this interpreter
    is executed as usual, and so is one with an environment of its own for the interpreter.
    """

    def __init__(self, argv: Sequence[str], *, namespace: str = "", **options: Any) -> None:  # noqa: ANN401  as there
        self._image: Image | None = None
        self._namespace = namespace
        super().__init__(argv, **options)

    def _execute_child(self, argv: Sequence[str], *given: Any) -> None:  # noqa: ANN401  as in the library
        environment = dict(os.environ if given[5] is None else given[5])
        if not is_loaded(argv) or _of_interpreter(environment) != _AT_START:
            assert not self._namespace
            super()._execute_child(argv, *given)  # type: ignore[misc]  # not of its public interface
            return
        sys.audit("subprocess.Popen", argv[0], argv, None, None)  # as the library does: tests/lanes.py
        unbuffered = argv[1] == "-u"
        pipes = given[9:15]  # of standard input, output and errors: ends to read and to write, -1 for none
        program = Program(
            argv[2 + unbuffered], tuple(argv[3 + unbuffered :]), unbuffered, os.fspath(given[4] or os.getcwd()),
            environment, bool(given[20]), self._namespace,
            os.getpriority(os.PRIO_PROCESS, 0), given[1],
        )  # fmt: skip
        image = self._image = _image(os.getpid())
        theirs = pipes[0], pipes[3], pipes[5]
        try:
            self.pid = image.start(program, [fd if fd >= 0 else n for n, fd in enumerate(theirs)])
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _ended(self, seconds: float) -> tuple[int, int]:
        assert self._image is not None
        status = self._image.status(self.pid, seconds)
        return (0, 0) if status is None else (self.pid, status)

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if self._image is None:
            return super()._try_wait(flags)  # type: ignore[misc,no-any-return]
        return self._ended(0 if flags & os.WNOHANG else 0.05)

    def _internal_poll(self, *given: Any, **more: Any) -> int | None:  # noqa: ANN401  as in the library
        if self._image is None:
            return super()._internal_poll(*given, **more)  # type: ignore[misc,no-any-return]
        if self.returncode is None:
            pid, status = self._ended(0)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def run(argv: Sequence[str], *, timeout: float, **options: Any) -> subprocess.CompletedProcess[str]:  # noqa: ANN401  as there
    """As `subprocess.run` that captures text and checks nothing."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    process: Loaded[str] = Loaded(argv, text=True, **options)
    with process:
        try:
            out, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(argv, process.returncode, out, errors)


# the process that forks


def load() -> None:
    for name in PACKAGES:
        package = importlib.import_module(name)
        for found in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not found.name.endswith("__main__"):
                importlib.import_module(found.name)
    for name in LATER:
        importlib.import_module(name)
    for name in RIGS:
        importlib.import_module(f"tests.rigs.{name}")
    # It imports more when it is called, which another user may have no access to.
    importlib.import_module("dro.command_line").version()


def serve(control: socket.socket) -> Program:
    """Fork a child for each request. Returns in the children alone."""
    awake, waker = socket.socketpair()
    for end in (awake, waker):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    while True:
        ready = readable([control.fileno(), awake.fileno()], None)
        if awake.fileno() in ready:
            with contextlib.suppress(BlockingIOError):
                awake.recv(4096)
            with contextlib.suppress(ChildProcessError):
                while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                    control.send(pickle.dumps(ended))
        if control.fileno() not in ready:
            continue
        request, streams, _, _ = socket.recv_fds(control, REQUEST_MAX, 3)
        if not request:
            os._exit(0)  # nobody is left to ask
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (control, awake, waker):
                end.close()
            program: Program = pickle.loads(request)
            become(program, streams)
            return program
        for fd in streams:
            os.close(fd)
        control.send(pickle.dumps((pid, None)))


def become(program: Program, streams: Sequence[int]) -> None:
    """Put this process where the program is to run."""
    if program.new_session:
        os.setsid()
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, program.niceness)
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
    os.closerange(3, max(streams) + 1)
    if program.namespace:
        die_with_parent()
        enter(program.namespace)
    os.environ.clear()
    os.environ.update(program.environment)
    os.chdir(program.folder)
    if program.prepare is not None:
        program.prepare()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        raw = io.FileIO(number, "w" if number else "r", closefd=False)
        buffered = io.BufferedWriter if number else io.BufferedReader
        binary: Any = raw if number and program.unbuffered else buffered(raw)
        stream = io.TextIOWrapper(
            binary, old.encoding, old.errors, line_buffering=number == 2 or binary.isatty(),
            write_through=bool(number) and program.unbuffered,
        )  # fmt: skip
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
        old.detach()  # its descriptor is the new one's


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    load()
    gc.collect()
    gc.freeze()
    if os.fork():
        os._exit(0)  # whoever started this has no child that it does not know of
    os.setsid()
    wanted = serve(socket.socket(fileno=int(sys.argv[1])))
    warnings.resetwarnings()
    sys.argv[1:] = wanted.arguments
    sys.modules.pop(wanted.module, None)
    runpy.run_module(wanted.module, run_name="__main__", alter_sys=True)
