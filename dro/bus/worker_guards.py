"""Checks of a worker process before it begins: it ends with its parent, and it has enough resources."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import select
import signal
import threading
import time
from collections.abc import Callable
from typing import Final

EXIT_OK: Final = 0
EXIT_ORPHANED: Final = 4
ORPHAN_GRACE_MS: Final = 1_000
LEAST_FILES: Final = 96
"""Of the limit of open files, for a worker to begin; a portal has some 40 before anybody connects."""
ORPHAN_MARGIN_MS: Final = 1_000
"""Beyond the grace period: then a worker without a parent is ended wherever it is."""
_ZMQ_THREADS: Final = 2
_PR_SET_PDEATHSIG: Final = 1


def die_with(parent_pid: int) -> None:
    """Have the kernel send SIGTERM to this process when that one ends; ends at once if it has ended already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent_pid:  # it went before the request was in place
        os._exit(EXIT_OK)


def end_with(parent_pid: int) -> None:
    """See to it that this process ends soon after its parent, also when it does not get round to its signals.

    The thread sleeps in the kernel until the parent has ended, without the interpreter's lock. Raises: OSError.
    """
    ended = select.poll()
    try:
        ended.register(os.pidfd_open(parent_pid), select.POLLIN)
    except ProcessLookupError:
        os._exit(EXIT_OK)
    if os.getppid() != parent_pid:
        os._exit(EXIT_OK)

    def watch() -> None:
        ended.poll()
        time.sleep((ORPHAN_GRACE_MS + ORPHAN_MARGIN_MS) / 1000)
        os._exit(EXIT_ORPHANED)

    start_thread(watch)


def start_thread(target: Callable[[], object]) -> threading.Thread:
    """Start a thread that gets no signals. Raises: OSError."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals are the main thread's
    try:
        thread = threading.Thread(target=target, daemon=True)
        thread.start()
    except RuntimeError as e:
        raise OSError(errno.EAGAIN, "cannot start a thread") from e
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return thread


def require_threads() -> None:
    """Try to start threads: ZeroMQ aborts a process that has no room for its own. Raises: OSError if none is left."""
    done = threading.Event()
    threads = []
    try:
        for _ in range(_ZMQ_THREADS):
            threads.append(start_thread(done.wait))  # noqa: PERF401 - those that started have to be ended
    finally:
        done.set()
        for thread in threads:
            thread.join()


def require_files() -> None:
    """Check the limit of descriptors: ZeroMQ aborts the process that has none left. Raises: OSError when too few."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < LEAST_FILES:
        raise OSError(errno.EMFILE, f"{soft} open files are allowed, a worker needs {LEAST_FILES}")
