"""What a process finds itself in: limits, another user, file systems without room. For `preexec_fn` of a process."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from collections.abc import Callable
from functools import partial
from typing import Final

Step = Callable[[], None]

CLONE_NEWNS: Final = 0x00020000
MS_REC: Final = 0x4000
MS_PRIVATE: Final = 1 << 18
_libc: Final = ctypes.CDLL(None, use_errno=True)


def limited(name: str, soft: int, hard: int | None = None) -> Step:
    """`name` as in `resource.RLIMIT_*`; `hard`: as `soft`."""
    return partial(resource.setrlimit, getattr(resource, f"RLIMIT_{name}"), (soft, soft if hard is None else hard))


def mounted(options: str, where: str = "/dev/shm") -> Step:
    """A file system in memory, with options as `mount -o` has them, which nobody else sees."""
    return partial(_mount, options, where)


def as_user(user: int, group: int) -> Step:
    """Without other groups, and without capabilities."""
    return partial(_become, user, group)


def in_turn(*steps: Step) -> Step:
    return partial(_do, steps)


def on_terminal(path: str) -> Step:
    """With this as the controlling terminal, in the foreground; for a process that begins a session."""
    return partial(_open_terminal, path)


def _mount(options: str, where: str) -> None:
    _check(_libc.unshare(CLONE_NEWNS))
    _check(_libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    _check(_libc.mount(b"none", where.encode(), b"tmpfs", 0, options.encode()))


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _become(user: int, group: int) -> None:
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)


def _do(steps: tuple[Step, ...]) -> None:
    for step in steps:
        step()


def _open_terminal(path: str) -> None:
    os.close(os.open(path, os.O_RDWR))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background may have it ignored
