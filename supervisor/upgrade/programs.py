"""Programs that can take a DRO over: how one is run, and whether it could take over this DRO."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final, NoReturn

from dro.errors import RefusedError
from dro.start_folder import absolute
from supervisor.upgrade.description import Description, ProgramRecord, let_through, write

TAKE_OVER: Final = "--take-over"
CHECK: Final = "--upgrade-check"
CHECK_LIMIT_S: Final = 60.0
_MODULE: Final = ("-P", "-m", "supervisor.main")
_SHOWN: Final = 300  # characters of what a program says


def own_command() -> tuple[str, ...]:
    """Return what runs this program, without its arguments."""
    before = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]
    is_script = "-m" not in before[1:] and len(before) > 1
    return (sys.executable, *before[1:-1], absolute(before[-1])) if is_script else (sys.executable, *before[1:])


def command_of(place: str) -> tuple[str, ...]:
    """Return what runs the program of an interpreter or of the environment in a folder. Raises: RefusedError."""
    path = Path(place)
    python = path / "bin" / "python3" if path.is_dir() else path
    if not path.is_absolute() or not os.access(python, os.X_OK) or python.is_dir():
        remedy = "name a Python interpreter, or the folder of an environment that has one in bin"
        raise RefusedError(f"{python} is no program that this user can run", remedy=remedy)
    return (str(python), *_MODULE)


def ask(command: tuple[str, ...], environment: dict[str, str], description: Description) -> str:
    """Have a program say whether it could take over; its version. Waits for it. Raises: RefusedError."""
    fd = write(description)
    remedy = f"run it to see why: {' '.join(command)} --version"
    try:
        done = subprocess.run(
            [*command, CHECK, str(fd)], env=environment, pass_fds=[fd], stdin=subprocess.DEVNULL, capture_output=True,
            timeout=CHECK_LIMIT_S, text=True, errors="replace",
        )  # fmt: skip
        lines = done.stdout.splitlines()
        answer = json.loads(lines[-1]) if lines else None
    except subprocess.TimeoutExpired as e:
        raise RefusedError(f"the program does not answer within {CHECK_LIMIT_S:g} s", remedy=remedy) from e
    except OSError as e:
        raise RefusedError(f"the program cannot be run: {e.strerror or e}", remedy=remedy) from e
    except ValueError:
        answer = None
    finally:
        os.close(fd)
    match answer:
        case {"version": str(version), "problem": "", "remedy": str()}:
            return version
        case {"version": str(version), "problem": str(problem), "remedy": str(better)}:
            raise RefusedError(f"version {version} cannot take over: {problem}", remedy=better)
        case _:
            said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1][:_SHOWN]
            raise RefusedError(f"the program does not start, or is too old to take over: {said}", remedy=remedy)


def become(program: ProgramRecord, description: Description) -> NoReturn:
    """Run that program in this process, to take over. Raises: OSError, and this one is still there, unchanged."""
    fd = write(description)
    try:
        let_through(description, is_let=True)
        os.set_inheritable(fd, True)
        words = [*program.command, TAKE_OVER, str(fd), description.config_file]  # the last one is for ps
        os.execve(program.command[0], words, program.environment)
    except OSError:
        os.close(fd)
        let_through(description, is_let=False)
        raise
