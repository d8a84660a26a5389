"""The log file: one file that many processes append to, rolled without losing, splitting or doubling a line.

* A line is one `write` with O_APPEND. The kernel serialises such writes, so writing a line takes no lock
  and never waits.
* Before each line the path is looked up. Another file there, or none, means that the log was rolled, moved or
  deleted: it is opened again. A line whose writer checked just before a roll ends up in the rolled file, once.
* A process that finds the log due for rolling takes an flock on the file, without waiting. If it fails, it continues
  to write to the old file, as all do while the owner of the lock is stopped; a dead process holds no lock.
* A process that is killed in the middle of a `write` can leave a partial line. The next writer sees that no line end
  precedes its own line, and overwrites the partial line with blanks.

The log must be in a local file system: O_APPEND of several hosts is not atomic on NFS. Source: DRO guide, "DRO Rolling
Logs", element `<log>`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import stat
import time
from collections.abc import Callable
from struct import Struct
from typing import Final

from dro.clock import NS_PER_S
from dro.errors import ResourceError

_PART_MAX: Final = 1 << 18  # bytes to look back for the beginning of a part of a line
_MODE: Final = 0o640
PERIODS_NS: Final = {"hourly": 3600 * NS_PER_S, "test": 10 * NS_PER_S}  # Guess: of `test`, which is internal
_RETRY_NS: Final = 60 * NS_PER_S  # after a roll that was refused
_STATE: Final = Struct("=QQQ")  # rolls so far; day of the last daily roll; when the next timed one is due, monotonic


class Rolls:
    """What the processes of a DRO know together about its rolls; made before the first fork.

    Written under the lock of the file only. A process that dies in between leaves a number unused at worst.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    def get(self) -> tuple[int, int, int]:
        rolls, day, due_ns = _STATE.unpack_from(self._memory)
        return rolls, day, due_ns

    def put(self, rolls: int, day: int, due_ns: int) -> None:
        _STATE.pack_into(self._memory, 0, rolls, day, due_ns)

    def begin(self, day: int, frequency: str, now_ns: int) -> None:
        """Let a period begin now: at the start, and when another file or frequency is configured."""
        self.put(self.get()[0], day, now_ns + PERIODS_NS.get(frequency, 0))


class LogFile:
    """One process's way into the log file."""

    def __init__(
        self,
        path: str,
        *,
        size_bytes: int = 0,
        frequency: str = "disable",
        rolls: Rolls | None = None,
        pid: int = 0,
        complain: Callable[[str], object] = lambda _: None,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`pid` stands in the names of rolled files: that of the daemon. Raises: ResourceError."""
        self._path = path
        self._size = size_bytes
        self._frequency = frequency
        self._rolls = rolls or Rolls()
        self._pid = pid or os.getpid()
        self._complain = complain
        self._now_ns = now_ns
        self._fd = -1
        self._id = (0, 0)
        self._is_regular = True
        self._is_blind = False  # nothing can be read back, or the position is another process's too
        self._retry_ns = 0
        self._told: set[str] = set()
        self._day = 0
        try:
            self._open()
        except OSError as e:
            raise ResourceError(f"log file {path}: {e.strerror}", remedy=_remedy(e)) from e
        self._end_the_last_line()

    def begin(self, day: int) -> None:
        """Let the periods of rolling begin on that day (yyyymmdd); by the daemon, before it forks."""
        self._rolls.begin(day, self._frequency, self._now_ns())

    def after_fork(self) -> None:
        """Get a position of our own. Without the right to open the file, that of the parent has to do."""
        old, self._fd = self._fd, -1
        try:
            self._open()
        except OSError:
            self._fd, self._is_blind = old, True
        else:
            os.close(old)

    def give_to(self, uid: int, gid: int) -> None:
        """Make that user the owner of the file, before its rights are all that is left. Raises: OSError."""
        os.fchown(self._fd, uid, gid)

    def write(self, data: bytes, day: int) -> None:
        """Append lines written on `day` (yyyymmdd) in one piece. Raises: OSError, and nothing of them counts."""
        if self._is_regular:
            self._prepare(day)
        if self._fd < 0:
            self._open()
        written = os.write(self._fd, data)
        if written < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self._is_regular and not self._is_blind:
            self._look_before(data)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # opening

    def _open(self) -> None:
        """Open the file to append to it, and to read it where that is permitted. Raises: OSError."""
        flags = os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
        try:
            fd = os.open(self._path, os.O_RDWR | flags, _MODE)
        except PermissionError:
            fd = os.open(self._path, os.O_WRONLY | flags, _MODE)
            self._is_blind = True
        else:
            self._is_blind = False
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        status = os.fstat(fd)
        self._id = (status.st_dev, status.st_ino)
        self._is_regular = stat.S_ISREG(status.st_mode)

    def _end_the_last_line(self) -> None:
        """End the last line of what stood in the file before, which may lack its end; it is not ours to blank."""
        if not self._is_regular or self._is_blind:
            return
        with contextlib.suppress(OSError):
            size = os.fstat(self._fd).st_size
            if size and os.pread(self._fd, 1, size - 1) != b"\n":
                os.write(self._fd, b"\n")

    def _prepare(self, day: int) -> None:
        """Open the file that has the path now, if it is another one, and roll it if that is due."""
        try:
            status = os.stat(self._path)
            is_ours = (status.st_dev, status.st_ino) == self._id
        except OSError:
            is_ours = False
        if not is_ours:
            status = self._reopen()
        if self._is_due(status.st_size, day):
            self._roll(day)

    def _reopen(self) -> os.stat_result:
        """Open the file that is there now. One that cannot be had leaves us where we are, told once."""
        try:
            self._open()
        except OSError as e:
            self._tell(f"log file {self._path} cannot be opened again: {e.strerror}")
        else:
            self._told.clear()
        return os.fstat(self._fd)

    # rolling

    def _is_due(self, size: int, day: int) -> bool:
        if self._size and size >= self._size:
            return True
        if self._frequency == "disable":
            return False
        _, began, due_ns = self._rolls.get()
        return day > began if self._frequency == "daily" else self._now_ns() >= due_ns

    def _roll(self, day: int) -> None:
        now_ns = self._now_ns()
        if now_ns < self._retry_ns:
            return
        fd = self._fd
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return  # somebody else rolls, or has stopped while at it
        try:
            status = os.stat(self._path)
            if (status.st_dev, status.st_ino) == self._id and self._is_due(status.st_size, day):
                self._rename(status.st_size, day, now_ns)
            fcntl.flock(fd, fcntl.LOCK_UN)
            self._open()
        except FileNotFoundError:  # it has just been rolled by somebody else
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)
            self._reopen()
        except OSError as e:
            self._retry_ns = now_ns + _RETRY_NS
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)
            advice = "; let the user of the DRO write to its directory" if isinstance(e, PermissionError) else ""
            self._tell(f"log file {self._path} cannot be rolled: {e.strerror}{advice}")

    def _rename(self, size: int, day: int, now_ns: int) -> None:
        rolls, began, due_ns = self._rolls.get()
        if self._frequency == "daily":
            began = max(began, day)
        elif self._frequency in PERIODS_NS and now_ns >= due_ns:
            due_ns = now_ns + PERIODS_NS[self._frequency]
        if not size:
            self._rolls.put(rolls, began, due_ns)
            return
        if not self._is_blind and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")  # it may be a line that is being written: then this one is empty
            self._look_before(b"\n")
        while True:
            rolls += 1
            name = rolled_name(self._path, self._pid, day, rolls)
            if not os.path.lexists(name):
                break
        self._rolls.put(rolls, began, due_ns)
        os.rename(self._path, name)

    # parts of lines

    def _look_before(self, data: bytes) -> None:
        """Blank a part of a line before `data`, which we have just written: nobody writes the rest of it any more."""
        begin = os.lseek(self._fd, 0, os.SEEK_CUR) - len(data)
        if begin > 0 and os.pread(self._fd, 1, begin - 1) != b"\n" and os.pread(self._fd, len(data), begin) == data:
            self._blank_part(begin)

    def _blank_part(self, end: int) -> None:
        """Blank out the part of a line that ends before offset `end`: its writer died, or its disk was full."""
        begin = max(0, end - _PART_MAX)
        before = os.pread(self._fd, end - begin, begin)
        begin += before.rfind(b"\n") + 1
        with contextlib.suppress(OSError):
            fd = os.open(f"/proc/self/fd/{self._fd}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.pwrite(fd, b" " * (end - begin - 1) + b"\n", begin)
            finally:
                os.close(fd)

    def _tell(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._complain(what)


def rolled_name(path: str, pid: int, day: int, number: int) -> str:
    """Name of the rolled file. Source: DRO guide, "DRO Rolling Logs"."""
    text = str(day)
    return f"{path}_{pid}.{text[:4]}-{text[4:6]}-{text[6:]}.{number}"


def _remedy(e: OSError) -> str:
    if isinstance(e, FileNotFoundError):
        return "make its directory, or write another path into <log>"
    if isinstance(e, PermissionError):
        return "give the user of the daemon the right to write there, or write another path into <log>"
    return "write the path of a file into <log>"
