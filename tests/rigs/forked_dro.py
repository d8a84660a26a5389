"""Real DROs by the dozen: each is forked from one image that has `tnwgd` loaded already, so a start costs a tenth of a
second. Used by programs that have no threads; every DRO is a process group of its own, with a run directory and a log
below `folder`, and portals on ports and groups that nobody else has.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

import portals.endpoint.portal
import router.worker  # noqa: F401 - loaded before the first fork, as are the modules of the portals
from dro.log.setup import finish
from supervisor.host.run_dirs import SHARED_MEMORY
from supervisor.main import main
from tests.rigs.site import Site
from tests.rigs.waiting import wait_until

assert portals.endpoint.portal
RUNNING: Final = "has started"
ENDED_S: Final = 15.0
Hook = Callable[[FrameType, str, object], None]


def members_of(group: int) -> list[int]:
    """Living processes of a process group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                after_name = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(after_name[2]) == group and after_name[0] not in "ZX":
                found.append(int(entry.name))
    return found


class ForkedDro:
    """One place for a DRO, in which one after the other can run."""

    def __init__(self, name: str, portals: int = 2) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dro-t-"))  # short: sockets live in it
        self.name = name
        self.site = Site(self.folder, portals)
        self.config = self.folder / "dro.xml"
        self.edit(f"<name>{self.site.name}</name>", f"<name>{name}</name>")
        self.run_base = self.folder / "run"
        self.run_base.mkdir()
        self.log_path = self.folder / "tnwgd.log"
        self.pid = 0
        self.status: int | None = None
        self._log_began = 0

    def edit(self, old: str, new: str) -> None:
        text = self.config.read_text()
        assert old in text
        self.config.write_text(text.replace(old, new))

    @property
    def log(self) -> str:
        """Of the DRO that was started last."""
        return self.log_path.read_text()[self._log_began :] if self.log_path.exists() else ""

    def start(self, hook: Hook | None = None, *more: str) -> None:
        """`hook` is the profile function of the parent process."""
        self._log_began = len(self.log_path.read_text()) if self.log_path.exists() else 0
        self.status = None
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                status = self._be_tnwgd(hook, more)
            finally:
                os._exit(status)

    def _be_tnwgd(self, hook: Hook | None, more: tuple[str, ...]) -> int:
        os.setpgid(0, 0)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.environ["XDG_RUNTIME_DIR"] = str(self.run_base)
        fd = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for standard in (1, 2):
            os.dup2(fd, standard)
        if hook is not None:
            sys.setprofile(hook)
        try:
            status = main([*more, str(self.config)])
        except SystemExit as e:
            status = int(e.code or 0)
        finally:
            sys.setprofile(None)
            finish()
        return status

    def poll(self) -> int | None:
        """As of `subprocess`: the exit status, or minus the signal; None while it runs."""
        if self.status is None and self.pid:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status

    def wait_running(self) -> None:
        wait_until(lambda: RUNNING in self.log or self.poll() is not None, "the DRO runs", 40, lambda: self.log)
        assert self.poll() is None, self.log

    def wait_ended(self, seconds: float = ENDED_S) -> int:
        """The exit status, when the whole group is gone."""
        wait_until(self._is_over, "all processes end", seconds, self._state)
        assert self.status is not None
        return self.status

    def _is_over(self) -> bool:
        return self.poll() is not None and not members_of(self.pid)

    def _state(self) -> str:
        return f"status {self.status}, processes {members_of(self.pid)}\n{self.log}"

    def leftovers(self) -> list[str]:
        """In the run base, and in shared memory by the name, whatever process they are of."""
        return [*map(str, self.run_base.iterdir()), *map(str, SHARED_MEMORY.glob(f"dro-{self.name}-*"))]

    def stop(self) -> float:
        """Stop it with SIGTERM; seconds until every process was gone. The exit status must be 0."""
        began = time.monotonic()
        os.kill(self.pid, signal.SIGTERM)
        status = self.wait_ended()
        took = time.monotonic() - began
        assert status == 0, f"status {status}\n{self.log}"
        return took

    def close(self) -> None:
        if self.pid and self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        if self.pid:
            for pid in members_of(self.pid):
                os.kill(pid, signal.SIGKILL)
            wait_until(self._is_over, "all processes end", 10, self._state)
        for leftover in SHARED_MEMORY.glob(f"dro-{self.name}-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        self.site.close()
        shutil.rmtree(self.folder)
