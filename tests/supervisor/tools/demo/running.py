"""A demonstration that runs until it is told to stop, and what it leaves."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from supervisor.host.run_dirs import SHARED_MEMORY
from tests.rigs.waiting import wait_until

ROOT = Path(__file__).parents[4]
LIMIT_S = 150


def processes_of(session: int) -> list[str]:
    """What still runs in it, with its command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] not in "ZX":
                    found.append(f"{entry.name} {(entry / 'cmdline').read_text()}")
            except OSError:
                continue
    return found


def files_of(demo: int) -> list[Path]:
    """Directories of its DROs, whose names have its process id."""
    bases = {SHARED_MEMORY, Path(os.environ.get("XDG_RUNTIME_DIR", "/tmp")), Path("/tmp")}
    return [path for base in bases for path in base.glob(f"dro-?-demo{demo}-*")]


class Demo:
    """One that runs, with its own folder for temporary files."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self._output = folder / "output"
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "supervisor.tools.demo.main", *arguments],
                cwd=ROOT, env=os.environ | {"TMPDIR": str(self.temporary)}, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip

    @property
    def output(self) -> str:
        return self._output.read_text()

    def wait_for(self, pattern: str) -> re.Match[str]:
        """What it prints."""

        def look() -> re.Match[str] | None:
            assert self.process.poll() is None, self.output
            return re.search(pattern, self.output)

        return wait_until(look, f"{pattern!r} of the demonstration", LIMIT_S, lambda: self.output)

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(LIMIT_S)
        finally:
            for line in processes_of(self.process.pid):
                os.kill(int(line.split()[0]), signal.SIGKILL)
