"""Where one running DRO keeps its files: a run directory for sockets and a directory in shared memory.

Both are called `dro-<name>-<pid>-<start>`, have mode 0700, hold a locked file for as long as any process of that DRO
lives, and go when it ends. What a killed DRO left behind is removed at the next start of any DRO of the same user:
only directories of this user whose process is gone and whose lock is free.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dro.errors import ResourceError

SHARED_MEMORY: Final = Path("/dev/shm")
LOCK_NAME: Final = "lock"
MAX_NAME: Final = 24
_NAME: Final = re.compile(r"dro-[A-Za-z0-9._-]*-(\d{1,10})-(\d{1,20})")


def default_run_base() -> Path:
    """`$XDG_RUNTIME_DIR`, or /tmp."""
    named = os.environ.get("XDG_RUNTIME_DIR")
    return Path(named) if named and Path(named).is_dir() else Path("/tmp")


def start_time_of(pid: int) -> int | None:
    """When that process started, in clock ticks since boot; None when there is none."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    after_name = line.rpartition(")")[2].split()  # the name may hold anything
    return int(after_name[19])


@dataclass(frozen=True, slots=True)
class Places:
    """The two directories of this DRO."""

    run: Path
    shm: Path

    def counters(self, worker: int) -> Path:
        return self.shm / f"counters.{worker}"

    def ring(self, worker: int, incarnation: int) -> Path:
        return self.shm / f"ring.{worker}.{incarnation}"

    def remove_incarnation(self, worker: int, incarnation: int) -> None:
        """Remove what that life of a worker made; its counter page stays."""
        self.ring(worker, incarnation).unlink(missing_ok=True)
        for leftover in self.run.glob(f"w{worker}.{incarnation}.*"):
            leftover.unlink(missing_ok=True)

    def remove(self) -> None:
        for directory in (self.run, self.shm):
            shutil.rmtree(directory, ignore_errors=True)


def make_places(name: str, *, run_base: Path | None = None, shm_base: Path = SHARED_MEMORY) -> Places:
    """Sweep what the dead left and make the directories of this process. Raises: ResourceError."""
    run_base = default_run_base() if run_base is None else run_base
    for base in (run_base, shm_base):
        sweep(base)
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:MAX_NAME]
    own = f"dro-{safe}-{os.getpid()}-{start_time_of(os.getpid())}"
    places = Places(run_base / own, shm_base / own)
    try:
        _make_locked(places.run)
        _make_locked(places.shm)
    except OSError as e:
        if not isinstance(e, FileExistsError):
            places.remove()
        where = e.filename or run_base
        raise ResourceError(f"cannot make {where}: {e.strerror}", remedy="check XDG_RUNTIME_DIR and /dev/shm") from e
    return places


def _make_locked(directory: Path) -> None:
    """The lock is held by a descriptor that nobody closes: forked workers share it, the last to end frees it."""
    directory.mkdir(mode=0o700)
    fd = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def sweep(base: Path) -> list[Path]:
    """Remove the directories of dead DROs in `base`; returns them."""
    removed: list[Path] = []
    with contextlib.suppress(OSError):
        for entry in sorted(base.iterdir()):
            named = _NAME.fullmatch(entry.name)
            if named and _is_ours(entry) and _is_dead(entry, int(named[1]), int(named[2])):
                shutil.rmtree(entry, ignore_errors=True)
                removed.append(entry)
    return removed


def _is_ours(directory: Path) -> bool:
    try:
        status = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def _is_dead(directory: Path, pid: int, start: int) -> bool:
    if start_time_of(pid) == start:
        return False
    try:
        fd = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False  # its process is not in sight (another PID namespace), or workers are still ending
    finally:
        os.close(fd)
    return True
