"""The pid file of a daemon: the process id of the parent, in a file that is locked as long as the DRO runs.

The file is written atomically, by renaming. Whether it may be replaced is decided by its lock and by start times, never
by a signal: a locked file belongs to a running DRO; one that names no process, or a process that started after the file
was written, is stale; one that names an older process may be in use and is not touched, nor is a file with other
content.

Source: DRO guide, element `pidfile`. Guess: one line with the number; the file is removed at the end.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import time
from pathlib import Path
from typing import Final

from dro.errors import ResourceError
from dro.os_errors import remedy_of
from supervisor.host.run_dirs import start_time_of

_MODE: Final = 0o644
_MAX_BYTES: Final = 64
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_CONTENT: Final = re.compile(rb"\s*([0-9]{1,10})?\s*")
_SLACK_S: Final = 2.0
"""Start times have a resolution of 10 ms, and the clock may have been set a little since."""


class PidFileHeldError(ResourceError):
    """A process of ours holds the lock; `pid` is what the file says, 0 for nothing."""

    def __init__(self, what: str, *, pid: int, remedy: str) -> None:
        super().__init__(what, remedy=remedy)
        self.pid = pid


class PidFile:
    """A pid file that is ours. Processes that are forked later hold its lock, too, until they end."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def give_to(self, uid: int, gid: int) -> None:
        """Make another user the owner. Raises: OSError."""
        os.fchown(self._fd, uid, gid)

    def remove(self) -> None:
        """Remove the file, or empty it where its directory does not let us; another one in its place is left."""
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(self.path, follow_symlinks=False), os.fstat(self._fd)):
                try:
                    self.path.unlink()
                except OSError:
                    os.ftruncate(self._fd, 0)
        self.close()

    def close(self) -> None:
        """Let go of the file without removing it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def take_pid_file(path: Path) -> PidFile:
    """Write the id of this process into `path`.

    Raises: ResourceError when another process has the file, it is no pid file, or it cannot be written;
    `PidFileHeldError` when its lock is held.
    """
    path = path.absolute()
    try:
        try:
            fd = _written(made := path.with_name(f".{path.name}.{os.getpid()}"))
        except PermissionError:
            fd = _overwritten(path)
        else:
            try:
                _put_in_place(made, path)
            except BaseException:
                os.close(fd)
                raise
            finally:
                made.unlink(missing_ok=True)
    except OSError as e:
        remedy = remedy_of(e.errno, "name another file")
        raise ResourceError(f"cannot write the pid file {path}: {e.strerror}", remedy=remedy) from e
    return PidFile(path, fd)


def _written(path: Path) -> int:
    """Make a new locked file with our process id, under a name that nobody reads."""
    path.unlink(missing_ok=True)  # of a process with our number that was killed here
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _write(fd)
    except BaseException:
        os.close(fd)
        path.unlink(missing_ok=True)
        raise
    return fd


def _put_in_place(made: Path, path: Path) -> None:
    """Give the file its name, if that is free or a stale file has it."""
    while True:
        with contextlib.suppress(FileExistsError):
            try:
                os.link(made, path)
            except OSError as e:
                if e.errno not in _NO_LINKS:
                    raise
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE))
            else:
                return
        old = _locked(path)
        if old is not None:
            try:
                _check(path, old)
                made.rename(path)
            finally:
                os.close(old)
            return


def _overwritten(path: Path) -> int:
    """Write our process id into the file that is there; for a directory that takes no new one."""
    while (fd := _locked(path)) is None:
        if not path.exists():
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    try:
        _check(path, fd)
        _write(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _write(fd: int) -> None:
    content = f"{os.getpid()}\n".encode()
    if os.pwrite(fd, content, 0) != len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(fd, len(content))


def _locked(path: Path) -> int | None:
    """Lock the file of this name; None when it is not there, or was replaced meanwhile."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(fd)):
            return fd
    except FileNotFoundError:
        pass
    except BlockingIOError as e:
        try:
            pid = _pid_in(path, fd)
        finally:
            os.close(fd)
        whom = f"the running DRO with process id {pid}" if pid else "another DRO"
        remedy = "stop that one, or name another file"
        raise PidFileHeldError(f"the pid file {path} is that of {whom}", pid=pid, remedy=remedy) from e
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


def _pid_in(path: Path, fd: int) -> int:
    """Read what the file says, 0 for nothing. Raises: ResourceError when it is not a pid file."""
    found = None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        content = os.pread(fd, _MAX_BYTES + 1, 0)
        found = _CONTENT.fullmatch(content) if len(content) <= _MAX_BYTES else None
    if found is None:
        raise ResourceError(f"{path} is there and is not a pid file", remedy="name another file, or remove that one")
    return int(found[1] or 0)


def _check(path: Path, fd: int) -> None:
    """Check the process that the file names. Raises: ResourceError when it lives and may have written the file."""
    pid = _pid_in(path, fd)
    if pid in (0, os.getpid()) or not _started_before(pid, os.fstat(fd).st_mtime):
        return
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return  # ended just now
    what = f"the pid file {path} names the living process {pid} ({name})"
    raise ResourceError(what, remedy="stop that one or name another file; remove the file if it is wrong")


def _started_before(pid: int, moment: float) -> bool:
    """Say whether that process lives, and did so when the clock showed `moment`."""
    ticks = start_time_of(pid)
    if ticks is None:
        return False
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return booted + ticks / os.sysconf("SC_CLK_TCK") <= moment + _SLACK_S
