"""Host resources of a running DRO: descriptors, the claims of `single_instance`, its two directories, its pid file, its
user. Acquired in this order by the parent before the first fork, released at the end, or when a step fails.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.log.setup import give_to
from dro.os_errors import remedy_of
from supervisor.host.pidfile import PidFile, PidFileHeldError, take_pid_file
from supervisor.host.privileges import NO_SUCH_ID, Identity, become
from supervisor.host.run_dirs import (
    LOCK_NAME,
    SHARED_MEMORY,
    RunDirs,
    default_run_base,
    instance_of,
    is_ending,
    make_run_dirs,
    safe_name,
    start_time_of,
)
from supervisor.host.single_instance import InstanceClaim, InstanceLocks

ENOUGH_FILES: Final = 65_536
"""The limit of open files is raised to this, or as far as the system lets us."""
_FILES: Final = 128  # of the parent, or of a worker with a handful of TCP receivers
_FILES_PER_WORKER: Final = 4  # in the parent: control socket, that of kept sockets, kept memory, process descriptor
_TASKS_PER_WORKER: Final = 5  # its own thread, that which watches the parent, that of the log file, two of ZeroMQ
_ROOT: Final = 0
ENDING_LIMIT_S: Final = 5.0
"""Longest wait for the workers of a killed DRO to end."""
_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class ResourcePlan:
    """What is wanted; everything but the name may be left open."""

    name: str
    run_base: Path | None = None
    shm_base: Path = SHARED_MEMORY
    run_dir: Path | None = None
    pid_file: Path | None = None
    identity: Identity | None = None
    workers: int = 0
    claims: tuple[InstanceClaim, ...] = ()


class HostResources:
    """Taken once, left once."""

    def __init__(self, plan: ResourcePlan, log: logging.Logger) -> None:
        self._plan = plan
        self._uid = plan.identity.uid if plan.identity else os.getuid()  # the user of the DRO
        self._log = log
        self._run_dirs: RunDirs | None = None
        self._pid_file: PidFile | None = None
        self.locks = InstanceLocks(log)

    @property
    def pid_file(self) -> PidFile | None:
        return self._pid_file

    def adopt(self, run_dirs: RunDirs, pid_file: PidFile | None, claims: Collection[int]) -> None:
        """Have what another program in this process had acquired."""
        self._run_dirs, self._pid_file = run_dirs, pid_file
        self.locks.adopt(claims)

    def acquire(self, is_cancelled: Callable[[], bool]) -> RunDirs | None:
        """Make it all ours; None when `is_cancelled` while it waits. Raises: ResourceError, leaving nothing behind."""
        if self._run_dirs is not None:
            return self._run_dirs
        try:
            raise_file_limit(_FILES + _FILES_PER_WORKER * self._plan.workers)
            plan = self._plan
            if self._uid != _ROOT:  # whom the limit does not bind
                raise_process_limit(1 + _TASKS_PER_WORKER * plan.workers)
            self.locks.take(plan.claims, {os.getuid(), self._uid}, is_cancelled)
            if not self._wait_for_predecessors(is_cancelled):
                return None
            self._run_dirs = make_run_dirs(
                plan.name, run_base=plan.run_base, shm_base=plan.shm_base, run_dir=plan.run_dir, uid=self._uid
            )
            if plan.pid_file is not None:
                self._pid_file = self._take_pid_file(plan.pid_file, is_cancelled)
                if self._pid_file is None:
                    self.release()
                    return None
            if plan.identity is not None:
                self._hand_over(plan.identity, self._run_dirs)
        except BaseException:
            self.release()
            raise
        return self._run_dirs

    def _hand_over(self, identity: Identity, run_dirs: RunDirs) -> None:
        try:
            run_dirs.give_to(identity.uid, identity.gid)
            if self._pid_file is not None:
                self._pid_file.give_to(identity.uid, identity.gid)
            give_to(identity.uid, identity.gid)
        except OSError as e:
            what = f"cannot give {e.filename or 'the pid file'} to user {identity.uid}: {e.strerror}"
            remedy = NO_SUCH_ID if e.errno == errno.EINVAL else "start as root with CAP_CHOWN"
            raise ResourceError(what, remedy=remedy) from e
        become(identity)

    def release(self) -> None:
        """Remove what is ours; harmless when nothing was taken."""
        self.locks.close()
        if self._pid_file is not None:
            self._pid_file.remove()
            self._pid_file = None
        if self._run_dirs is not None:
            self._run_dirs.remove()
            self._run_dirs = None

    # a DRO whose parent was killed

    def _wait_for_predecessors(self, is_cancelled: Callable[[], bool]) -> bool:
        """Let the workers of a killed DRO of the same name end: they hold ports and locks. False when cancelled."""
        deadline = time.monotonic() + ENDING_LIMIT_S
        if self._is_predecessor_ending():
            self._log.info(LogEvent.OLD_WORKERS_AWAITED, extra={"dro": self._plan.name})
        while self._is_predecessor_ending() and time.monotonic() < deadline and not is_cancelled():
            time.sleep(_POLL_S)
        return not is_cancelled()

    def _is_predecessor_ending(self) -> bool:
        plan = self._plan
        if plan.run_dir is not None and is_ending(plan.run_dir / LOCK_NAME):
            return True
        owners = {os.getuid(), self._uid}
        for base in (default_run_base(self._uid) if plan.run_base is None else plan.run_base, plan.shm_base):
            with contextlib.suppress(OSError):
                for entry in base.iterdir():
                    instance = instance_of(entry.name)
                    if instance is None or instance.name != safe_name(plan.name) or entry.lstat().st_uid not in owners:
                        continue
                    if is_ending(entry / LOCK_NAME):
                        return True
        return False

    def _take_pid_file(self, path: Path, is_cancelled: Callable[[], bool]) -> PidFile | None:
        """Take the pid file. The lock of a dead parent is waited for: its workers hold it until they have ended."""
        deadline = time.monotonic() + ENDING_LIMIT_S
        while not is_cancelled():
            try:
                return take_pid_file(path)
            except PidFileHeldError as e:
                if not e.pid or start_time_of(e.pid) is not None or time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_S)
        return None


def raise_file_limit(needed: int) -> None:
    """Raise the soft limit of open files as far as it is of use. Raises: ResourceError when `needed` are too many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(hard, ENOUGH_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    if soft != resource.RLIM_INFINITY and soft < needed:
        what = f"{soft} open files are allowed, this DRO needs {needed}"
        raise ResourceError(what, remedy=remedy_of(errno.EMFILE))


def raise_process_limit(needed: int) -> None:
    """Raise the soft limit of processes and threads to `needed`. Raises: ResourceError when that is too many.

    Whatever else the user runs counts as well, so this is the least and not a promise.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        what = f"{hard} processes and threads are allowed, this DRO needs {needed}"
        raise ResourceError(what, remedy=remedy_of(errno.EAGAIN))
    resource.setrlimit(resource.RLIMIT_NPROC, (needed, hard))
