"""Files of a running DRO that somebody removes: its run directory, its directory in shared memory, or parts of them.

A service manager does so at the logout of a user, and cleaners of /tmp do. Workers that run have all open that they
need, but one that starts later finds neither the sockets nor the rings of its siblings. So directories, lock, admin
socket and counter pages are made anew at once, operators are told, and when one worker ends, all others are started
anew with it.
"""

from __future__ import annotations

import logging
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from dro.clock import s
from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from supervisor.admin.server import SOCKET_NAME
from supervisor.parent.parent import Parent
from supervisor.parent.workers import Worker

LOOK_NS: Final = s(1)
KEEP: Final = "keep them from being removed (loginctl enable-linger, RemoveIPC=no, an exception of the cleaner)"
REMEDY: Final = f"{KEEP}, then restart one portal in a quiet moment: all others start anew with it"
TROUBLE: Final = "its files were removed, siblings that start cannot reach it: see the log"


class FileKeeper:
    """Looks regularly, from now on."""

    def __init__(self, parent: Parent[Any], log: logging.Logger) -> None:
        self._parent = parent
        self._limited = LimitedLogger(log, parent.loop.now_ns, burst=3).event
        self._without: dict[int, int] = {}
        """Workers that run without their files, and their incarnations."""
        parent.loop.call_later(LOOK_NS, self._look)

    def _look(self) -> None:
        parent = self._parent
        parent.loop.call_later(LOOK_NS, self._look)
        if parent.is_stopping or not parent.is_running:
            return
        if gone := [path for path in self._expected() if not _is_there(path)]:
            self._mend(gone)
        alive = {worker.index: worker.incarnation for worker in parent.workers if worker.is_alive}
        if any(alive.get(index) != incarnation for index, incarnation in self._without.items()):
            left = [w for w in parent.workers if w.is_alive and self._without.get(w.index) == w.incarnation]
            self._without.clear()
            parent.kill(LogEvent.WORKER_WITHOUT_FILES, left)

    def _expected(self) -> Iterator[Path]:
        dirs = self._parent.run_dirs
        yield from (dirs.run / SOCKET_NAME, *dirs.locks, *self._of_workers())

    def _of_workers(self) -> Iterator[Path]:
        for worker in self._parent.workers:
            if worker.is_announced and self._without.get(worker.index) != worker.incarnation:
                yield from _files_of(worker)
                yield self._parent.run_dirs.counters(worker.index)

    def _mend(self, gone: list[Path]) -> None:
        parent = self._parent
        is_of_workers = not set(gone).isdisjoint(self._of_workers())
        extra = {"gone": str(gone[0]), "count": len(gone), "remedy": REMEDY if is_of_workers else KEEP}
        self._limited(LogEvent.FILES_GONE, extra=extra)
        for worker in parent.workers if is_of_workers else ():
            if worker.is_alive and worker.spec.is_on_bus:
                self._without[worker.index] = worker.incarnation
                worker.trouble = TROUBLE
        try:
            parent.run_dirs.make_again()
            for worker in parent.workers:
                parent.processes.prepare(worker)
            if not _is_there(socket := parent.run_dirs.run / SOCKET_NAME):
                parent.admin.listen(socket)
        except (OSError, ResourceError) as e:
            self._limited(LogEvent.FILES_NOT_MADE, extra={"reason": str(e), "remedy": f"remove what is there; {KEEP}"})


def _is_there(path: Path) -> bool:
    """Say whether it is of the kind that it was made as: a socket or a file, nothing else in its place."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    return stat.S_ISSOCK(mode) if path.suffix == ".ctl" or path.name == SOCKET_NAME else stat.S_ISREG(mode)


def _files_of(worker: Worker) -> Iterator[Path]:
    assert worker.ready is not None
    if worker.ready.ring:
        yield Path(worker.ready.ring)
    yield Path(worker.ready.ctl.removeprefix("ipc://"))
