"""Debian 12 for tests: a root that is made once, and machines whose changes to it are their own.

    with Machine(tmp_path / "one") as machine:
        machine.run(["dpkg", "--install", "/package.deb"])
    with Machine(tmp_path / "two", machine.changes) as machine:  # begins with what the first one has become
        machine.run(["tnwgd", "--version"])

The root is made from Debian's mirror, with `PACKAGES`, when none is in `build/debian`; it stays there for later runs.
A test that uses it carries the marker `debian`. A machine has a network of its own with loopback alone, its own
processes, and its own shared memory; all of it ends with the block, or with the thread that made it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from tests.rigs.waiting import wait_until

RELEASE: Final = "bookworm"
PACKAGES: Final = ("adduser", "bash-completion", "man-db", "python3", "systemd")
FOLDER: Final = Path(__file__).parents[2] / "build/debian"
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Process 1 waits for those that lost their parents.
_MACHINE: Final = """\
set -e
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/changes,workdir=$2/work" "$2/root"
cd "$2/root"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount --rbind /dev dev
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t tmpfs -o mode=755 tmpfs run
ip link set lo up
exec chroot . sh -c 'touch /run/is-up; sleep infinity & wait'
"""
_BOOTED: Final = """\
set -e
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/changes,workdir=$2/work" "$2/root"
exec systemd-nspawn --quiet --register=no --keep-unit --private-network --console=pipe --boot --directory "$2/root"
"""


def debian_root() -> Path:
    """A root of Debian 12 that all tests share; nobody may change it. Raises: CalledProcessError."""
    root = FOLDER / "-".join((RELEASE, *PACKAGES))
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            partial = FOLDER / "partial"
            shutil.rmtree(partial, ignore_errors=True)
            # fmt: off
            command = [
                "mmdebstrap", "--quiet", "--variant=minbase", "--dpkgopt=force-unsafe-io",
                "--dpkgopt=path-exclude=/usr/share/locale/*", f"--include={','.join(PACKAGES)}", RELEASE, str(partial),
            ]
            # fmt: on
            subprocess.run(command, check=True, timeout=900)
            partial.rename(root)
    return root


class Machine:
    """Debian in namespaces of its own; a context manager."""

    _script = _MACHINE
    _own: tuple[str, ...] = ("--mount", "--net", "--pid", "--fork", "--kill-child")
    """Options of unshare: what the script needs."""

    def __init__(self, folder: Path, *below: Path) -> None:
        """Its changes are kept in `folder`, on a file system that is no overlay itself; `below`: those of others."""
        self._folder = folder
        self._below = below
        self.changes = folder / "changes"
        self._pid = 0
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Machine:
        for name in ("changes", "work", "root"):
            (self._folder / name).mkdir(parents=True)
        wrapped = ["setpriv", "--pdeathsig", "KILL", "unshare", *self._own]
        layers = ":".join(map(str, (*self._below, debian_root())))
        script = ["sh", "-c", self._script, "machine", layers, str(self._folder)]
        with (self._folder / "console").open("wb") as console:
            self._outer = subprocess.Popen([*wrapped, *script], stdin=subprocess.DEVNULL, stdout=console)
        try:
            wait_until(self._is_up, "the machine to be up", 90, every_s=0.1)
        except BaseException:
            self._end()
            raise
        return self

    def _end(self) -> None:
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)  # with it end all of its namespace
        self._outer.kill()
        for process in (self._outer, *self._started):
            process.wait()

    def _has_process_1(self) -> bool:
        """Look for it anew: what makes namespaces may fork more than once."""
        assert self._outer.poll() is None, f"the machine has ended\n{(self._folder / 'console').read_text()}"
        found = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text().split()
        self._pid = int(found[-1]) if found else 0
        return bool(found)

    def _is_up(self) -> bool:
        return self._has_process_1() and self.path("/run/is-up").exists()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def path(self, name: str) -> Path:
        """A file of the machine, as seen from outside."""
        return Path(f"/proc/{self._pid}/root") / name.lstrip("/")

    def command(self, argv: Sequence[str], user: str = "root") -> list[str]:
        """What runs `argv` in the machine as `user`, with an environment of its own."""
        inside = ["nsenter", "--target", str(self._pid), "--mount", "--net", "--pid", "--root", "--wd"]
        environment = [
            "env",
            "--ignore-environment",
            f"PATH={PATH}",
            "LC_ALL=C.UTF-8",
            "DEBIAN_FRONTEND=noninteractive",
        ]
        as_user = [] if user == "root" else ["runuser", "--user", user, "--"]
        return [*inside, *environment, *as_user, *argv]

    def run(
        self, argv: Sequence[str], user: str = "root", *, check: bool = True, timeout_s: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; standard error is part of its output. Raises: AssertionError, TimeoutExpired."""
        done = subprocess.run(
            self.command(argv, user), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{' '.join(argv)}: {done.returncode}\n{done.stdout}"
        return done

    def start(self, argv: Sequence[str], output: Path, user: str = "root") -> subprocess.Popen[bytes]:
        """Start a command that writes to a file outside; it ends with the machine."""
        with output.open("wb") as out:
            command = self.command(argv, user)
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        self._started.append(process)
        return process

    def put(self, source: Path, name: str) -> None:
        """Copy a file into the machine."""
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, self.path(name))


class Booted(Machine):
    """A machine whose process 1 is systemd, with its units and journal."""

    _script = _BOOTED
    _own = ("--mount",)

    def _is_up(self) -> bool:
        if not self._has_process_1():
            return False
        state = self.run(["systemctl", "is-system-running"], check=False).stdout.strip()
        return state in ("running", "degraded")
