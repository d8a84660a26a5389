"""A daemon of topic resolution (`lbmrd`, `umsrs`) as a process on a free port, and what it logs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.rigs.waiting import wait_until

ROOT: Final = Path(__file__).parents[2]


class ResolverDaemon:
    """See the module text. It runs when this is made."""

    def __init__(self, name: str, folder: Path, *arguments: str, environ: dict[str, str] | None = None) -> None:
        self.log_path = folder / f"{name}.log"
        command = [sys.executable, "-m", f"supervisor.resolvers.{name}", "-p", "0", "-L", str(self.log_path),
                   "--log-json", *arguments]  # fmt: skip
        self.process = subprocess.Popen(command, cwd=ROOT, env=os.environ | (environ or {}))
        host, _, port = str(self.logged("daemon runs")["address"]).partition(":")
        self.address = host, int(port)

    def logged(self, text: str) -> dict[str, object]:
        """The fields of the first line that says this."""

        def find() -> dict[str, object] | None:
            lines = self.log_path.read_text().splitlines() if self.log_path.exists() else []
            found = (json.loads(line) for line in lines)
            return next((line["fields"] | {"": 1} for line in found if line["text"] == text), None)

        return wait_until(find, text, detail=lambda: self.log_path.read_text())

    def metrics(self) -> dict[str, float]:
        """Its figures, where it serves them."""
        address = str(self.logged("metrics are served")["address"])
        with urllib.request.urlopen(address, timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}

    def end(self) -> int:
        """End it in good order; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)


@contextlib.contextmanager
def running(
    name: str, folder: Path, *arguments: str, environ: dict[str, str] | None = None
) -> Iterator[ResolverDaemon]:
    """Run a daemon while this is open."""
    made = ResolverDaemon(name, folder, *arguments, environ=environ)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()
