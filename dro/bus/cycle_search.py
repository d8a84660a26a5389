"""Ask a child process how many bytes of reference cycles this process holds, without a pause in its own work.

A child has all objects of its parent, in the same memory until either changes it. It collects its own, says how much
less memory it has then, and ends. The parent pays for the fork: 3 ms for each 100 MB.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dro.clock import s
from dro.loop import Loop

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_OBJECT_BYTES: Final = 64
"""Counts for each object in a cycle: small ones do not give their memory back to the system."""
_REAP_NS: Final = s(1)
_ANSWER_BYTES: Final = 8


def own_bytes(process: int | str = "self") -> int:
    """Measure the memory that a process does not share; rings and counter pages are shared."""
    _, resident, shared, *_ = Path(f"/proc/{process}/statm").read_text().split()
    return (int(resident) - int(shared)) * _PAGE_BYTES


def _trimmed_bytes() -> int:
    with contextlib.suppress(AttributeError):  # another C library than that of GNU
        ctypes.CDLL(None).malloc_trim(0)
    return own_bytes()


def search(loop: Loop, on_found: Callable[[int], object]) -> None:
    """Call `on_found` from the loop with the bytes that a collection of all objects would free; 0 if nobody says.

    Raises: OSError when there can be no child.
    """
    answer, told = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        pid = os.fork()
    except OSError:
        os.close(answer)
        os.close(told)
        raise
    if not pid:
        try:
            _tell(told)
        finally:
            os._exit(0)
    os.close(told)

    def on_answer() -> None:
        loop.remove_reader(answer)
        found = int.from_bytes(os.read(answer, _ANSWER_BYTES), "big")
        os.close(answer)
        reap()
        on_found(found)

    def reap() -> None:
        try:
            is_there = os.waitpid(pid, os.WNOHANG) == (0, 0)
        except ChildProcessError:
            return
        if is_there:  # it gives its memory back, which takes a moment
            loop.call_later(_REAP_NS, reap)

    loop.add_reader(answer, on_answer)


def _tell(told: int) -> None:
    """Collect in the child, which has nothing to do with what its parent has open."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    os.closerange(0, told)
    os.closerange(told + 1, os.sysconf("SC_OPEN_MAX"))
    os.nice(19)
    gc.callbacks.clear()
    gc.unfreeze()
    before = _trimmed_bytes()
    count = gc.collect()
    found = max(0, before - _trimmed_bytes()) + _OBJECT_BYTES * count
    os.write(told, found.to_bytes(_ANSWER_BYTES, "big"))
