"""Where one running DRO keeps its files: a run directory for sockets and a directory in shared memory.

Both are named `dro-<name>-<pid>-<start>`, have mode 0700, contain a file that is locked as long as any process of that
DRO runs, and are removed when it ends. What a killed DRO left behind is removed at the next start of any DRO of the
same user: only directories whose process is gone and whose lock is free. A directory gets its name when its lock is
held, so one without a lock never belongs to a running DRO. The operator may name a run directory instead; that one is
not shared.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from dro.errors import ResourceError
from dro.os_errors import remedy_of

SHARED_MEMORY: Final = Path("/dev/shm")
LOCK_NAME: Final = "lock"
RUN_LINK: Final = "run"
"""In the directory in shared memory: leads to the run directory, which may lie anywhere."""
MAX_NAME: Final = 24
UNFINISHED_S: Final = 60.0
"""A directory that some other PID namespace began to make is left alone for so long."""
_NAME: Final = re.compile(r"dro-([A-Za-z0-9._-]*)-(\d{1,10})-(\d{1,20})(?:\.new-([0-9]+))?")
_ENDED: Final = frozenset("ZXx")  # states of a process that nobody has waited for yet
_SUN_PATH_MAX: Final = 107
_LONGEST_SOCKET: Final = len("w255.9999999.data")
_LOCK: Final = re.compile(r"open-dro (\d{1,10}) (\d{1,20}) ([0-9]+)\n")


def default_run_base(uid: int | None = None) -> Path:
    """`$XDG_RUNTIME_DIR`, or /tmp; always /tmp for another user than that of this process."""
    named = os.environ.get("XDG_RUNTIME_DIR")
    is_mine = uid is None or uid == os.getuid()
    return Path(named) if named and is_mine and Path(named).is_dir() else Path("/tmp")


def start_time_of(pid: int | Literal["self"]) -> int | None:
    """Find when that process started, in clock ticks since boot; None when there is none or it has ended.

    "self" is this process, also where /proc shows another PID namespace.
    """
    try:
        line = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    after_name = line.rpartition(")")[2].split()  # the name may hold anything
    return None if after_name[0] in _ENDED else int(after_name[19])


def pid_namespace() -> str:
    """The number of the PID namespace of this process; process ids mean nothing outside of it."""
    try:
        return re.sub(r"\D", "", os.readlink("/proc/self/ns/pid")) or "0"
    except OSError:
        return "0"


@dataclass(frozen=True, slots=True)
class Instance:
    """One life of a DRO, as the names of its directories tell it."""

    name: str  # as in file names
    pid: int
    start: int  # clock ticks since boot


def instance_of(directory_name: str) -> Instance | None:
    """Find whose directory that is; None for other names."""
    named = _NAME.fullmatch(directory_name)
    return Instance(named[1], int(named[2]), int(named[3])) if named and named[4] is None else None


@dataclass(frozen=True, slots=True)
class RunDirs:
    """The two directories of this DRO."""

    run: Path
    shm: Path
    keeps_run: bool = False  # the run directory was there before and stays

    def counters(self, worker: int) -> Path:
        return self.shm / f"counters.{worker}"

    def ring(self, worker: int, incarnation: int) -> Path:
        return self.shm / f"ring.{worker}.{incarnation}"

    def kept(self, worker: int) -> Path:
        return self.shm / f"kept.{worker}"

    @property
    def locks(self) -> tuple[Path, Path]:
        return self.run / LOCK_NAME, self.shm / LOCK_NAME

    def link(self) -> None:
        """Let those find the run directory who look for running DROs. Raises: ResourceError."""
        link = self.shm / RUN_LINK
        try:
            link.symlink_to(self.run.absolute())
        except OSError as e:
            raise ResourceError(f"cannot make {link}: {e.strerror}", remedy=remedy_of(e.errno)) from e

    def make_again(self) -> None:
        """Make what somebody has removed of both, but for what workers have made. Raises: OSError, ResourceError."""
        for directory, lock in zip((self.run, self.shm), self.locks, strict=True):
            directory.mkdir(mode=0o700, exist_ok=True)
            status = directory.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
                raise OSError(errno.EPERM, "somebody else has made it", str(directory))
            if not lock.exists():
                _lock_new(lock)
        if not (self.shm / RUN_LINK).is_symlink():
            self.link()

    def remove_incarnation(self, worker: int, incarnation: int) -> None:
        """Remove what that life of a worker made; its counter page stays."""
        self.ring(worker, incarnation).unlink(missing_ok=True)
        for leftover in self.run.glob(f"w{worker}.{incarnation}.*"):
            leftover.unlink(missing_ok=True)

    def give_to(self, uid: int, gid: int) -> None:
        """Make another user the owner of both. Raises: OSError."""
        for directory in (self.run, self.shm):
            for path in (directory, *directory.iterdir()):
                os.chown(path, uid, gid, follow_symlinks=False)

    def remove(self) -> None:
        """Remove both, the locks last, so that nobody takes them for free before they are."""
        shutil.rmtree(self.shm, ignore_errors=True)
        _empty(self.run)
        with contextlib.suppress(OSError):
            (self.run / LOCK_NAME).unlink()
        if not self.keeps_run:
            shutil.rmtree(self.run, ignore_errors=True)


def safe_name(name: str) -> str:
    """The name of a DRO as a part of file names."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:MAX_NAME]


def make_run_dirs(
    name: str,
    *,
    run_base: Path | None = None,
    shm_base: Path = SHARED_MEMORY,
    run_dir: Path | None = None,
    uid: int | None = None,
) -> RunDirs:
    """Sweep what the dead left and make the directories of this process, or take `run_dir` for the first of them.

    `uid`: the user who gets them, if not that of this process. Raises: ResourceError, also when another DRO has
    `run_dir`.
    """
    run_base = default_run_base(uid) if run_base is None else run_base
    owners = {os.getuid(), os.getuid() if uid is None else uid}
    for base in (run_base, shm_base):
        sweep(base, owners)
    own = f"dro-{safe_name(name)}-{os.getpid()}-{start_time_of('self')}"
    shm = shm_base / own
    if run_dir is not None:
        keeps = _take_named(run_dir, owners)
        made = RunDirs(run_dir.absolute(), shm, keeps_run=keeps)
    else:
        made = RunDirs(run_base / own, shm)
    try:
        _check_length(made.run)
        if run_dir is None:
            _make_locked(made.run)
        _make_locked(made.shm)
    except OSError as e:
        if not isinstance(e, FileExistsError):
            made.remove()
        where = e.filename or run_base
        remedy = remedy_of(e.errno)
        remedy = f"check XDG_RUNTIME_DIR and /dev/shm{f': {remedy}' if remedy else ''}"
        raise ResourceError(f"cannot make {where}: {e.strerror}", remedy=remedy) from e
    return made


def _check_length(run: Path) -> None:
    """Check the names of sockets. Raises: OSError when those in the directory would be too long."""
    if len(os.fsencode(run)) + 1 + _LONGEST_SOCKET > _SUN_PATH_MAX:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), str(run))


def _make_locked(directory: Path) -> None:
    """Make and lock it, by a descriptor that nobody closes: forked workers share it, the last to end frees the lock."""
    if directory.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(directory))
    unfinished = directory.with_name(f"{directory.name}.new-{pid_namespace()}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    fd = -1
    try:
        fd = _lock_new(unfinished / LOCK_NAME)
        unfinished.rename(directory)
    except OSError:
        if fd >= 0:
            os.close(fd)
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _lock_new(lock: Path) -> int:
    """Make the file and hold its lock; the descriptor. Raises: OSError."""
    fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _sign(fd)
    except OSError:
        os.close(fd)
        raise
    return fd


def _sign(fd: int) -> None:
    """Say in the lock file whose it is."""
    line = f"open-dro {os.getpid()} {start_time_of('self')} {pid_namespace()}\n"
    os.pwrite(fd, line.encode(), 0)
    os.ftruncate(fd, len(line))


def _signed(fd: int) -> tuple[int, int, str] | None:
    """Read process id, start time and PID namespace from a lock file; None when it has nothing of the kind."""
    found = _LOCK.fullmatch(os.pread(fd, 100, 0).decode("ascii", "replace"))
    return (int(found[1]), int(found[2]), found[3]) if found else None


# a run directory that the operator names


def _take_named(directory: Path, owners: Collection[int]) -> bool:
    """Make or take it, lock it, and remove what a dead DRO left in it; whether it was there.

    Raises: ResourceError.
    """
    shown = f"the run directory {directory}"
    try:
        was_there = False
        try:
            directory.mkdir(mode=0o700)
        except FileExistsError:
            was_there = True
        status = directory.stat()
        if not stat.S_ISDIR(status.st_mode):
            raise ResourceError(f"{shown} is no directory", remedy="name another one")
        if status.st_uid not in owners or status.st_mode & 0o022:
            what = (
                f"{shown} can be written by others" if status.st_uid in owners else f"{shown} belongs to another user"
            )
            raise ResourceError(what, remedy=f"chown it to the user of the DRO and chmod go-w {directory}")
        if was_there and not (directory / LOCK_NAME).exists() and any(directory.iterdir()):
            what = f"{shown} is not empty and not that of a DRO"
            raise ResourceError(what, remedy="name an empty one, or one that does not exist")
        _lock_named(directory, shown)
        _empty(directory)
    except OSError as e:
        remedy = remedy_of(e.errno, "name another one")
        raise ResourceError(f"cannot use {shown}: {e.strerror}", remedy=remedy) from e
    return was_there


def _lock_named(directory: Path, shown: str) -> None:
    path = directory / LOCK_NAME
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            signed = _signed(fd)
            os.close(fd)
            whom = f" (process {signed[0]})" if signed else ""
            remedy = "stop that one first, or name another directory"
            raise ResourceError(f"{shown} is that of a running DRO{whom}", remedy=remedy) from e
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or (status.st_size and _signed(fd) is None):
            os.close(fd)
            raise ResourceError(f"{path} is not the lock of a DRO", remedy="name another directory")
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path, follow_symlinks=False), status):
                _sign(fd)
                return
        os.close(fd)  # its owner removed it in between


def _empty(directory: Path) -> None:
    """Remove all files of a run directory but the lock."""
    with contextlib.suppress(OSError):
        for entry in directory.iterdir():
            if entry.name != LOCK_NAME and not stat.S_ISDIR(entry.lstat().st_mode):
                entry.unlink(missing_ok=True)


# what dead DROs left


def sweep(base: Path, owners: Collection[int] | None = None) -> list[Path]:
    """Remove the directories of dead DROs in `base` that belong to one of `owners` (this user); returns them."""
    removed: list[Path] = []
    with contextlib.suppress(OSError):
        for entry in sorted(base.iterdir()):
            named = _NAME.fullmatch(entry.name)
            if not named or not _belongs(entry, {os.getuid()} if owners is None else owners):
                continue
            pid, start = int(named[2]), int(named[3])
            is_dead = _is_dead(entry, pid, start) if named[4] is None else _is_abandoned(entry, pid, start, named[4])
            if is_dead:
                shutil.rmtree(entry, ignore_errors=True)
                removed.append(entry)
    return removed


def is_ending(lock: Path) -> bool:
    """Whether the DRO with that lock file has lost its parent process, and workers of it are still at their end."""
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        signed = _signed(fd)
        if signed is None or signed[2] != pid_namespace() or start_time_of(signed[0]) == signed[1]:
            return False
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False


def _belongs(directory: Path, owners: Collection[int]) -> bool:
    try:
        status = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid in owners


def _is_abandoned(directory: Path, pid: int, start: int, namespace: str) -> bool:
    """Say whether a directory that was never finished is of a process that has ended."""
    if namespace == pid_namespace():
        return start_time_of(pid) != start
    try:
        return time.time() - directory.stat().st_mtime > UNFINISHED_S and _is_dead(directory, pid, start)
    except OSError:
        return False


def _is_dead(directory: Path, pid: int, start: int) -> bool:
    if start_time_of(pid) == start:
        return False
    try:
        fd = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
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
