"""The description of a running DRO that one program leaves to the next one in the same process.

It lies, as JSON, in memory without a name, whose descriptor the next program is told. What it speaks of stays open over
the exec by the numbers that it names: process descriptors, control sockets, kept sockets, locks, the admin socket.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Final

from dro.bus.codec import from_json
from dro.errors import DecodeError, RefusedError
from supervisor.parent.succession import SuccessionRecord

VERSION: Final = 1
"""Raise it when a program that reads the fields as they were would be wrong."""
MAX_BYTES: Final = 64 << 20
_REMEDY: Final = "replace the DRO as docs/upgrade.md says for other versions"


@dataclass(frozen=True, slots=True)
class KeptSocketRecord:
    """A socket that the parent holds for the next life of a worker."""

    name: str  # in hexadecimal digits
    fd: int


@dataclass(frozen=True, slots=True)
class EstateRecord:
    """Describes what outlives the processes of a worker."""

    memory_fd: int
    sockets: tuple[KeptSocketRecord, ...]
    end_fd: int  # of the pair by which sockets come; -1 without a process
    succession: SuccessionRecord


@dataclass(frozen=True, slots=True)
class LifeRecord:
    """The process of a worker."""

    pid: int
    pidfd: int
    control_fd: int
    is_ready: bool
    ring: str
    ctl: str
    goes_on: bool


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker, in the order of indexes; one that was removed has no estate."""

    name: str
    role: int
    state: str
    incarnation: int
    is_announced: bool
    was_ready: bool
    starts: int
    started_ns: int
    last_death: str
    trouble: str
    program: int
    version: str
    life: LifeRecord | None
    estate: EstateRecord | None


@dataclass(frozen=True, slots=True)
class LogSettingsRecord:
    """Fields of `dro.log.handler.Settings`."""

    kind: str
    file: str
    frequency: str
    size_bytes: int
    level: int
    utc: bool
    json: bool
    console_fd: int
    syslog_path: str
    syslog_tag: str


@dataclass(frozen=True, slots=True)
class HistoryRecord:
    """Options of the history."""

    directory: str
    interval_s: float
    journal: str = ""


@dataclass(frozen=True, slots=True)
class HostRecord:
    """What the DRO has of its host."""

    run: str
    shm: str
    keeps_run: bool
    lock_fds: tuple[int, ...]
    claim_fds: tuple[int, ...]
    pid_file: str
    pid_fd: int  # -1 without one
    admin_fd: int


@dataclass(frozen=True, slots=True)
class ProgramRecord:
    """A program and how it is run. `number`: see `WorkerProcesses.program`."""

    number: int
    version: str
    command: tuple[str, ...]
    environment: dict[str, str]


@dataclass(frozen=True, slots=True)
class FormerRecord:
    """The process of the former program, which forks workers; see `supervisor.upgrade.former`."""

    number: int
    version: str
    pid: int
    fd: int  # of the socket that leads to it


@dataclass(frozen=True, slots=True)
class Description:
    """See the module text. `program` is the one that has written it."""

    version: int
    layouts: dict[str, str]
    program: ProgramRecord
    number: int
    """Of the program that takes over."""
    back_to: ProgramRecord | None
    """What takes over again when this upgrade fails; None when it is not there any more, or this is the way back."""
    failure: str  # why it goes back; empty on the way to another version
    remedy: str
    name: str
    node_id: str
    start_s: float
    began_ns: int
    config_file: str
    loaded_s: float
    routes_version: int  # -1: not calculated yet
    routes: int
    incarnations: int
    config_serial: int
    host: HostRecord
    workers: tuple[WorkerRecord, ...]
    log: LogSettingsRecord
    history: HistoryRecord | None = None
    logged: dict[str, int] = field(default_factory=dict)
    former: FormerRecord | None = None

    def descriptors(self) -> Iterator[tuple[int, str]]:
        """List what must be open in the next program, with what each is."""
        host = self.host
        yield host.admin_fd, "the admin socket"
        if self.former is not None:
            yield self.former.fd, "the socket of the former program"
        yield from ((fd, "the lock of a directory") for fd in host.lock_fds)
        yield from ((fd, "the claim of a file or name") for fd in host.claim_fds)
        if host.pid_fd >= 0:
            yield host.pid_fd, "the pid file"
        for worker in self.workers:
            if (life := worker.life) is not None:
                yield life.pidfd, f"the process of {worker.name}"
                yield life.control_fd, f"the control socket of {worker.name}"
            if (estate := worker.estate) is not None:
                yield estate.memory_fd, f"the memory of {worker.name}"
                yield from ((kept.fd, f"a socket of {worker.name}") for kept in estate.sockets)
                if estate.end_fd >= 0:
                    yield estate.end_fd, f"the pair of sockets of {worker.name}"


def write(description: Description) -> int:
    """Put it into memory without a name; its descriptor, which no other program gets yet. Raises: OSError."""
    fd = os.memfd_create("dro-upgrade")
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(json.dumps(asdict(description)).encode())
    return fd


def read(fd: int) -> Description:
    """Raises: RefusedError when this program cannot read it."""
    try:
        data = os.pread(fd, MAX_BYTES, 0)
        value = json.loads(data)
    except (OSError, ValueError, RecursionError) as e:
        raise RefusedError(f"the description of the DRO cannot be read: {e}", remedy=_REMEDY) from e
    version = value.get("version") if isinstance(value, dict) else None
    if version != VERSION:
        raise RefusedError(f"the description of the DRO has layout {version}, not {VERSION}", remedy=_REMEDY)
    try:
        return from_json(Description, value)
    except DecodeError as e:
        raise RefusedError(f"the description of the DRO is of another layout: {e}", remedy=_REMEDY) from e


def check_open(description: Description) -> None:
    """Check that all is there of which it speaks. Raises: RefusedError."""
    for fd, what in description.descriptors():
        try:
            os.fstat(fd)
        except OSError as e:
            raise RefusedError(f"{what} is missing: descriptor {fd}: {e.strerror}", remedy="report it") from e


def let_through(description: Description, *, is_let: bool) -> None:
    """Let all of it stay open in the next program, or not. Raises: OSError."""
    for fd, _ in description.descriptors():
        os.set_inheritable(fd, is_let)
