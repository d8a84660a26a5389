"""Takes samples of one DRO: its counter pages, its processes, and what its parent answers.

Pages and /proc are read at every look. The parent is asked in threads, as it may not answer; what it told last, or had
written to its file, says which portals there are meanwhile. Once all processes of a dead DRO have ended, its lock is
held here, shared, so that no other DRO removes the files while somebody looks at them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from dro.bus.listing import BLOCKED, BlockedRow
from dro.clock import duration
from dro.errors import DroError, ResourceError
from dro.metrics.slots import Slot, WorkerSlot
from supervisor.admin.client import Client, UnreachableError
from supervisor.admin.last_status import read_last_status
from supervisor.admin.lists import rows_of
from supervisor.admin.status import DroStatus, PortalStatus
from supervisor.explain.neighbours import neighbour_problems
from supervisor.host.run_dirs import LOCK_NAME, start_time_of
from supervisor.samples.pages import Pages
from supervisor.samples.processes import Processes
from supervisor.tools.top.places import DroPlace
from supervisor.tools.top.sample import Complaint, ParentAnswer, Sample

ASK_S: Final = 0.5
COMPLAINTS_S: Final = 5.0  # between two looks at neighbours, which are work for portals and route manager
FIRST_ANSWER_S: Final = 2.0
PATIENCE_S: Final = 86_400.0
"""A question to a stopped parent waits in its socket, and more questions would only be more to answer later."""

T = TypeVar("T")


class Asking(Generic[T]):
    """Asks the parent the same again and again, in a thread of its own that ends with the program."""

    def __init__(self, run_dir: Path, question: Callable[[Client], T], every_s: float) -> None:
        self.last: tuple[float, T] | None = None
        """When the last answer came, and what it was."""
        self._run_dir = run_dir
        self._question = question
        self._every_s = every_s
        self._is_over = threading.Event()
        self._has_come = threading.Event()
        threading.Thread(target=self._run, name="asking", daemon=True).start()

    def wait(self, seconds: float) -> bool:
        """Whether there is an answer within that time."""
        return self._has_come.wait(seconds)

    def close(self) -> None:
        self._is_over.set()

    def _run(self) -> None:
        while not self._is_over.is_set():
            with contextlib.suppress(DroError), Client(self._run_dir) as client:
                while not self._is_over.is_set():
                    answer = self._question(client)
                    self.last = time.monotonic(), answer
                    self._has_come.set()
                    self._is_over.wait(self._every_s)
            self._is_over.wait(ASK_S)


class Looker:
    """Looks at one DRO; close it when done."""

    def __init__(self, place: DroPlace) -> None:
        """Raises: UnreachableError when nothing says what the DRO is."""
        self.place = place
        self._began_s = time.monotonic()
        self._processes = Processes()
        self._lock_fd = -1
        self._before: Sample | None = None
        self._queueing: tuple[str, ...] = ()
        self._status: Asking[DroStatus] | None = None
        self._complaints: Asking[tuple[Complaint, ...]] | None = None
        self._file = read_last_status(place.shm)
        if place.is_alive and place.run_dir is not None:
            self._status = Asking(place.run_dir, self._status_of, ASK_S)
            self._complaints = Asking(place.run_dir, self._complaints_of, COMPLAINTS_S)
            self._status.wait(FIRST_ANSWER_S)
        if self._last_status() is None:
            self.close()
            what = f"{place} does not answer, and {place.shm} has no file that says what its portals are"
            raise UnreachableError(what, remedy="a DRO writes it half a second after its start")

    def close(self) -> None:
        for asking in (self._status, self._complaints):
            if asking is not None:
                asking.close()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def look(self) -> Sample:
        now_s = time.monotonic()
        parent = _parent_of(self.place)
        if parent is ParentAnswer.DEAD:
            self._hold_lock()
        last = self._last_status()
        assert last is not None
        status_s, status, has_answered = last
        heard_s = status_s if has_answered else self._began_s
        living = frozenset(
            pid for pid in (status.pid, *(w.pid for w in status.workers)) if pid and start_time_of(pid) is not None
        )
        if parent is ParentAnswer.DEAD:
            living -= {status.pid}  # whoever has that id now
            if self._lock_fd >= 0:
                living = frozenset()
        read = self._read_pages(status)
        before = self._before
        portals, turns = read or ((before.portals, before.longest_turns_us) if before is not None else ((), {}))
        self._queueing = tuple(p.name for p in portals if p[Slot.QUEUED_BYTES] or p[Slot.SEND_BLOCKED])
        told = self._complaints.last if self._complaints is not None else None
        self._before = Sample(
            time_s=now_s,
            clock_s=time.time(),
            status=status,
            status_s=status_s,
            silent_s=max(0.0, now_s - heard_s),
            parent=parent,
            has_answered=has_answered,
            living=living,
            has_pages=read is not None,
            portals=portals,
            processes={pid: self._processes.figures(pid) for pid in living},
            longest_turns_us=turns,
            complaints=told[1] if told is not None and parent is ParentAnswer.ALIVE else (),
        )
        return self._before

    def _last_status(self) -> tuple[float, DroStatus, bool] | None:
        """Return when it was told or written, the status, and whether it was told."""
        told = self._status.last if self._status is not None else None
        if told is not None:
            return (*told, True)
        return None if self._file is None else (self._file.time_s, self._file.status, False)

    def _read_pages(self, status: DroStatus) -> tuple[tuple[PortalStatus, ...], dict[int, int]] | None:
        """Read the pages; None when they are not there, or change too fast to be read."""
        with contextlib.closing(Pages(self.place.shm)) as pages:
            workers = [worker for worker in status.workers if worker.index in pages]
            try:
                turns = {w.index: pages[w.index][WorkerSlot.LONGEST_TURN_US] for w in workers}
                return (pages.portals(workers, status.portals), turns) if workers else None
            except ResourceError:
                return None

    def _hold_lock(self) -> None:
        if self._lock_fd >= 0:
            return
        with contextlib.suppress(OSError):
            fd = os.open(self.place.shm / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:  # processes of it still end
                os.close(fd)
                raise
            self._lock_fd = fd

    def _status_of(self, client: Client) -> DroStatus:
        """Ask for the status. Raises: UnreachableError, also when a later DRO has taken the run directory."""
        status = client.ask(DroStatus, "status", within_s=PATIENCE_S)
        if status.pid != self.place.instance.pid:
            raise UnreachableError(f"{self.place.run_dir} is that of another DRO now")
        return status

    def _complaints_of(self, client: Client) -> tuple[Complaint, ...]:
        status = self._status_of(client)
        found = [Complaint(f"neighbours {p.portal} {p.remedy}", str(p)) for p in neighbour_problems(client, status)]
        for portal in self._queueing:
            found += [_blocked(row) for row in rows_of(client, BLOCKED, portal, "")]
        return tuple(found)


def _blocked(row: BlockedRow) -> Complaint:
    text = f"{row.portal}: {row.address} is {row.state} for {duration(row.blocked_s)}, {row.waiting_bytes} bytes wait"
    return Complaint(f"blocked {row.portal} {row.address}", text)


def _parent_of(place: DroPlace) -> ParentAnswer:
    if not place.is_alive:
        return ParentAnswer.DEAD
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{place.instance.pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state in "Tt":
            return ParentAnswer.STOPPED
    return ParentAnswer.ALIVE
