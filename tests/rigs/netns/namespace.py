"""Network namespaces: unique names, entering one, and sweeping those that a crashed test run left behind.

A name reads `dro-<pid>-<start>-<serial>-<label>`: the process that made it, that process's start time in clock
ticks (so a reused pid is told apart), and a serial number. Whoever finds a name whose process is gone may delete it.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

PREFIX: Final = "dro"
NAMES: Final = Path("/run/netns")
CLONE_NEWNET: Final = 0x40000000
PR_SET_PDEATHSIG: Final = 1
_NAME: Final = re.compile(rf"{PREFIX}-(\d+)-(\d+)-\d+-.*")
_libc: Final = ctypes.CDLL(None, use_errno=True)
_serial: Final = itertools.count(1)


class CommandFailed(Exception):
    """A command of the harness itself did not succeed; the text holds the command and its standard error."""


def start_ticks(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[19])


def new_name(label: str) -> str:
    return f"{PREFIX}-{os.getpid()}-{start_ticks(os.getpid())}-{next(_serial)}-{label}"


def command(argv: Sequence[str], stdin: str = "") -> str:
    """Run a short administrative command; returns its standard output. Raises: CommandFailed."""
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise CommandFailed(f"{' '.join(argv)}: {done.stderr.strip()}" + (f"\n{stdin}" if stdin else ""))
    return done.stdout


def ip(*lines: str, namespace: str = "") -> None:
    """Run lines of `ip` in one process, inside `namespace` when given; stops at the first that fails."""
    where = ["-n", namespace] if namespace else []
    command(["ip", *where, "-batch", "-"], "\n".join(lines) + "\n")


def enter(namespace: str) -> None:
    """Move the calling thread into a namespace for good; for a forked child."""
    fd = os.open(NAMES / namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _setns(fd)
    finally:
        os.close(fd)


def die_with_parent() -> None:
    """Let the kernel kill the calling process when the thread that started it ends."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """The calling thread is in `namespace` for the length of the block.

    A socket belongs for life to the namespace in which it was made, so sockets made here can be used anywhere.
    """
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(namespace)
        try:
            yield
        finally:
            _setns(home)
    finally:
        os.close(home)


def _setns(fd: int) -> None:
    if _libc.setns(fd, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "setns")


def pids(namespace: str) -> tuple[int, ...]:
    """Processes whose network namespace this is."""
    return tuple(int(pid) for pid in command(["ip", "netns", "pids", namespace]).split())


def delete(namespace: str) -> tuple[int, ...]:
    """Kill every process in a namespace, then delete its name; returns the processes that were killed."""
    killed = pids(namespace)
    for pid in killed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    command(["ip", "netns", "del", namespace])
    return killed


def sweep() -> tuple[str, ...]:
    """Delete the namespaces of test runs whose process is gone; returns their names. Safe to run concurrently."""
    swept = []
    for name in sorted(os.listdir(NAMES)) if NAMES.is_dir() else ():
        match = _NAME.fullmatch(name)
        if match and start_ticks(int(match[1])) != int(match[2]):
            with contextlib.suppress(CommandFailed):  # another process swept it first
                delete(name)
                swept.append(name)
    return tuple(swept)
