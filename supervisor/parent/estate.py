"""What outlives the processes of one worker: memory, sockets and a directory, and whether the next life uses them."""

from __future__ import annotations

import contextlib
import logging
import shutil
from pathlib import Path

from dro.bus.kept_bytes import KeptBytes
from dro.bus.kept_sockets import Refused, SocketKeeper, SocketsAtFork
from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.loop import Loop
from dro.os_errors import remedy_of
from supervisor.parent.succession import Succession
from supervisor.parent.workers import Worker, WorkerState


class Estate:
    """Made when a worker is prepared, closed when it is taken out."""

    def __init__(
        self, worker: Worker, directory: Path, loop: Loop, log: logging.Logger, refused: Refused, memory_fd: int = -1
    ) -> None:
        """`refused` is told of sockets that cannot be kept; `memory_fd`: of memory that is there.

        Raises: ResourceError.
        """
        self.memory = KeptBytes(memory_fd)
        self.directory = directory
        self.succession = Succession(is_portal=worker.spec.is_portal)
        self.sockets = SocketKeeper(loop, refused)
        self._worker, self._loop, self._log = worker, loop, log
        self.prepare()

    def prepare(self) -> None:
        """Make the directory, unless it is there. Raises: ResourceError."""
        try:
            self._make()
        except OSError as e:
            raise ResourceError(f"cannot make {self.directory}: {e.strerror}", remedy=remedy_of(e.errno)) from e

    def _make(self) -> None:
        with contextlib.suppress(FileExistsError):
            self.directory.mkdir(mode=0o700)
            self.succession.on_files_lost()

    def open(self) -> tuple[bool, SocketsAtFork | None]:
        """Prepare it for a fork: whether that life goes on, and its sockets, of a portal. Raises: OSError."""
        self._make()
        part = self._worker.spec.part
        if why := self.succession.obstacle(part):
            self._clear(why)
        return not why, self.sockets.attach() if self._worker.spec.is_portal else None

    def on_start(self) -> None:
        self.succession.on_start(self._loop.now_ns(), self._worker.spec.part)

    def on_taken_over(self) -> None:
        """Note that the process has the newest configuration, as far as it can while it runs."""
        self.succession.part = self._worker.spec.taken_over(self.succession.part)

    def on_end(self, status: int) -> None:
        """Note that the process is gone, and let go of what no next life uses."""
        self.sockets.detach()
        if self._worker.is_tried and self._worker.ready is None:
            self.succession.take_back()
            return
        hands_over = self._worker.hands_over
        if self._worker.state in (WorkerState.STOPPING, WorkerState.DRAINING) and not hands_over:
            self.on_order()
            return
        if status or not hands_over:
            self.succession.on_death(self._loop.now_ns(), in_good_order=status == 0)
        if why := self.succession.obstacle(self._worker.spec.part):
            self._clear(why)

    def on_order(self) -> None:
        """Let go of all: an operator's order stands between the lives, or the DRO ends."""
        self.succession.on_order(self._worker.operation)
        self._clear(f"ordered: {self._worker.operation}" if self._worker.operation else "")

    def _clear(self, why: str) -> None:
        """Close the sockets and empty the directory; a line tells of it unless there is nothing or no reason."""
        with contextlib.suppress(OSError):
            if why and (len(self.sockets) or any(self.directory.iterdir())):
                extra = {"worker": self._worker.name, "reason": why, "sockets": len(self.sockets)}
                self._log.info(LogEvent.WORKER_STARTS_CLEAN, extra=extra)
        self.sockets.clear()
        shutil.rmtree(self.directory, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.directory.mkdir(mode=0o700)

    def close(self) -> None:
        """Remove all of it, for good."""
        self.sockets.detach()
        self.sockets.clear()
        self.memory.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def close_inherited(self, *, is_own: bool) -> None:
        """Close in a forked child what is not for it: of its own estate, the parent's end of the pair."""
        self.sockets.close_inherited(keeps_sockets=is_own)
        if not is_own:
            self.memory.close()
