"""Prometheus beside the demonstration: a data directory of its own, and the rules of `deploy/prometheus`."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from supervisor.tools.demo.local_dro import stopped_at_the_end

RULES: Final = Path(__file__).resolve().parents[3] / "deploy/prometheus"
NOT_INSTALLED: Final = "Prometheus is not installed: put `prometheus` on PATH, from a package of that name or https://prometheus.io/download"
INTERVAL: Final = "2s"  # between two scrapes: somebody waits
READY_S: Final = 30.0
LOG: Final = "prometheus.log"
_EXAMPLE_INTERVAL: Final = "10s"
_EXAMPLE_TARGETS: Final = '["127.0.0.1:15304"]'


def configuration(targets: Sequence[str]) -> str:
    """The file of `deploy/prometheus` with these targets, and a short interval."""
    text = (RULES / "prometheus.yml").read_text()
    for part, new in ((_EXAMPLE_TARGETS, json.dumps(list(targets))), (_EXAMPLE_INTERVAL, INTERVAL)):
        if text.count(part) != 2:
            raise LookupError(f"another deploy/prometheus/prometheus.yml? {part} stands {text.count(part)} times in it")
        text = text.replace(part, new)
    return text


@contextlib.contextmanager
def running_prometheus(folder: Path, targets: Sequence[str], port: int, stop: threading.Event) -> Iterator[str]:
    """The address of one that scrapes `targets`, or a sentence that says why there is none."""
    program = shutil.which("prometheus")
    if program is None:
        yield NOT_INSTALLED
        return
    if not RULES.is_dir():
        yield "Prometheus is not started: its rules are in a source tree, in deploy/prometheus"
        return
    own = folder / "prometheus"
    own.mkdir()
    for name in ("recording.yml", "alerts.yml"):
        shutil.copy(RULES / name, own / name)
    (own / "prometheus.yml").write_text(configuration(targets))
    address = f"127.0.0.1:{port}"
    command = [
        program, f"--config.file={own / 'prometheus.yml'}", f"--storage.tsdb.path={own / 'data'}",
        f"--web.listen-address={address}",
    ]  # fmt: skip
    with (folder / LOG).open("wb") as log:
        process = subprocess.Popen(
            command, cwd=own, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
        )  # not that of the terminal, as with tnwgd
    with stopped_at_the_end(process):
        if _is_ready(process, port, stop):
            yield f"Prometheus: http://{address}/graph and http://{address}/alerts"
        else:
            last = (folder / LOG).read_text(errors="replace").splitlines()[-1:]
            yield f"Prometheus is not ready: {last[0] if last else 'it has not said why'}"


def _is_ready(process: subprocess.Popen[bytes], port: int, stop: threading.Event) -> bool:
    deadline = time.monotonic() + READY_S
    while process.poll() is None and time.monotonic() < deadline and not stop.is_set():
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(_connection(port)) as asked:
            asked.request("GET", "/-/ready")
            if asked.getresponse().status == 200:
                return True
        stop.wait(0.1)
    return False


def _connection(port: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", port, timeout=2)
