"""The client side of the admin socket: finds the running DROs of this host and sends requests to one of them."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from dro.bus.codec import JsonObject, Record, from_json
from dro.errors import DecodeError, DroError, ResourceError
from supervisor.admin.server import SOCKET_NAME
from supervisor.host.run_dirs import RUN_LINK, SHARED_MEMORY, default_run_base, instance_of, safe_name, start_time_of

CONNECT_LIMIT_S: Final = 5.0
ANSWER_LIMIT_S: Final = 30.0
FULL_PAUSE_S: Final = 0.05
MAX_ANSWER: Final = 64 << 20  # bytes
_ROOT: Final = 0

R = TypeVar("R", bound=Record)


class UnreachableError(ResourceError):
    """There is no running DRO to talk to, or several and none was named, or it does not answer."""


class CommandError(DroError):
    """The DRO says that it cannot do what it was asked; `answer` is its `error` object."""

    def __init__(self, answer: JsonObject) -> None:
        problems = answer.get("problems")
        parts = problems if isinstance(problems, list) and problems else [answer]
        super().__init__("\n".join(_sentence(part) for part in parts if isinstance(part, dict)))
        self.answer = answer


def _sentence(error: JsonObject) -> str:
    file, line = error.get("file"), error.get("line")
    place = f"{file}:{line}: " if file and line else f"{file}: " if file else ""
    remedy = error.get("remedy")
    return f"{place}{error.get('what', 'no reason given')}{f'; {remedy}' if remedy else ''}"


@dataclass(frozen=True, slots=True)
class RunningDro:
    """A DRO that lives on this host."""

    name: str
    pid: int
    run_dir: Path


def run_bases() -> list[Path]:
    """List where run directories may lie: a daemon and a login shell often have different environments."""
    bases = [default_run_base(), Path(f"/run/user/{os.geteuid()}"), Path("/tmp")]
    return [base for base in dict.fromkeys(bases) if base.is_dir()]


def running_dros(bases: Iterable[Path] | None = None, shm: Path = SHARED_MEMORY) -> list[RunningDro]:
    """DROs of this user (for root: of every user) whose process is alive; leftovers of dead ones are passed over.

    Each has a directory in shared memory that leads to its run directory, wherever that is.
    """
    found: dict[str, RunningDro] = {}
    for base in (shm, *(run_bases() if bases is None else bases)):
        with contextlib.suppress(OSError):
            for entry in sorted(base.iterdir()):
                instance = instance_of(entry.name)
                if instance is None or start_time_of(instance.pid) != instance.start or not is_trusted(entry):
                    continue
                run_dir = _linked(entry) if base == shm else entry
                if run_dir is not None:
                    found.setdefault(entry.name, RunningDro(instance.name, instance.pid, run_dir))
    return sorted(found.values(), key=lambda dro: (dro.name, dro.pid))


def _linked(directory: Path) -> Path | None:
    with contextlib.suppress(OSError):
        return Path(os.readlink(directory / RUN_LINK))
    return None


def is_trusted(directory: Path) -> bool:
    """Say whether it is ours, or we are root: in /tmp anybody can make a directory with such a name."""
    with contextlib.suppress(OSError):
        status = directory.lstat()
        return directory.is_dir() and not directory.is_symlink() and (os.geteuid() in (status.st_uid, _ROOT))
    return False


def find_dro(
    name: str = "", run_dir: str = "", bases: Iterable[Path] | None = None, shm: Path = SHARED_MEMORY, *,
    is_whole: bool = False,
) -> Path:  # fmt: skip
    """Find the run directory of the DRO with that name or process id, or whose name alone begins so.

    `is_whole`: not by the beginning of a name. Raises: UnreachableError that names what there is.
    """
    if run_dir:
        return Path(run_dir)
    dros = running_dros(bases, shm)
    wanted = [dro for dro in dros if not name or dro.name == safe_name(name) or str(dro.pid) == name]
    begins = [dro for dro in dros if dro.name.startswith(safe_name(name))]
    if not wanted and not is_whole:
        wanted = begins
    if len(wanted) == 1:
        return wanted[0].run_dir
    known = ", ".join(f"{dro.name} (pid {dro.pid})" for dro in wanted or dros)
    if wanted:
        remedy = "choose one with --dro NAME, its pid, or --run-dir DIR"
        raise UnreachableError(f"several DROs run here: {known}", remedy=remedy)
    if begins and is_whole:
        names = ", ".join(f"{dro.name} (pid {dro.pid})" for dro in begins)
        remedy = f"what changes a DRO takes its whole name, as in {names}"
        raise UnreachableError(f"no DRO has just the name {name!r}", remedy=remedy)
    if dros:
        raise UnreachableError(f"no DRO {name!r} runs here", remedy=f"there are {known}")
    what = f"no DRO {name!r} runs here, and no other one of this user" if name else "no DRO of this user runs here"
    raise UnreachableError(what, remedy="start one with tnwgd, or name its directory with --run-dir")


class Client:
    """A connection to the admin socket of one DRO."""

    def __init__(self, run_dir: Path) -> None:
        """Raises: UnreachableError."""
        self.run_dir = run_dir
        self._rest = b""
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.settimeout(CONNECT_LIMIT_S)
        try:
            self._connect(str(run_dir / SOCKET_NAME))
        except OSError as e:
            self._sock.close()
            remedy = "name the run directory of one that runs, or leave --run-dir out"
            raise UnreachableError(f"no DRO answers in {run_dir}: {e.strerror or e}", remedy=remedy) from e

    def _connect(self, path: str) -> None:
        """Try to connect, again if a full queue refuses, which for a UNIX socket does not wait. Raises: OSError."""
        deadline = time.monotonic() + CONNECT_LIMIT_S
        while True:
            try:
                self._sock.connect(path)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(FULL_PAUSE_S)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._sock.close()

    @property
    def is_closed(self) -> bool:
        """Whether the DRO has closed the connection, as it does with one that is silent for 30 s."""
        self._sock.settimeout(0)
        try:
            return not self._rest and not self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def request(self, command: str, *, within_s: float = ANSWER_LIMIT_S, **arguments: object) -> JsonObject:
        """The result. Raises: CommandError when the DRO refuses or fails; UnreachableError when it does not answer."""
        self._sock.settimeout(within_s)
        try:
            with contextlib.suppress(BrokenPipeError):  # turned away: the reason is there to be read
                self._sock.sendall(json.dumps({"command": command, **arguments}).encode() + b"\n")
            line = self._take_line()
        except TimeoutError as e:
            raise UnreachableError(f"the DRO in {self.run_dir} has not answered within {within_s:g} s") from e
        except OSError as e:
            raise UnreachableError(f"the DRO in {self.run_dir} is gone: {e.strerror or e}") from e
        return _result(line)

    def ask(self, kind: type[R], command: str, *, within_s: float = ANSWER_LIMIT_S, **arguments: object) -> R:
        """`request`, with the result as a record of that kind."""
        result = self.request(command, within_s=within_s, **arguments)
        try:
            return from_json(kind, result)
        except DecodeError as e:
            raise UnreachableError(f"the answer is of another release: {e}") from e

    def _take_line(self) -> bytes:
        parts, size = [self._rest], len(self._rest)
        while b"\n" not in parts[-1]:
            part = self._sock.recv(1 << 16)
            size += len(part)
            if not part:
                raise ConnectionResetError(0, "it closed the connection")
            if size > MAX_ANSWER:
                raise ConnectionResetError(0, "its answer is too long")
            parts.append(part)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return line


def _result(line: bytes) -> JsonObject:
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    match answer:
        case {"ok": True, "result": dict() as result}:
            return result
        case {"ok": False, "error": dict() as error}:
            raise CommandError(error)
        case _:
            raise UnreachableError("what answers is no DRO")
