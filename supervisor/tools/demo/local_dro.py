"""Runs `tnwgd` and other daemons for a demonstration: files with free ports, real processes, and what these take.

Everything runs on the loopback interface with groups and ports of its own, so several demonstrations (and a real DRO)
can run on one host.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

from supervisor.samples.processes import Processes, ProcessFigures
from supervisor.tools.demo.network import DIRECT, DemoLayout

PORTS_PER_TRD: Final = 30
TRD_FILE: Final = "demo-trd.cfg"
LAST_LINES: Final = 5
"""Of the log of a DRO that has ended."""


def write_configuration(folder: Path, layout: DemoLayout = DIRECT, others: tuple[str, ...] = ()) -> dict[str, int]:
    """Write the files of a demonstration, with multicast nets and ports that nobody else uses now.

    Returns the ports of links, of web monitors (one for each DRO) and of resolvers, which the files have as `{link0}`,
    `{web0}`, `{umsrs}` and so on, and those of `others`; `{run}` is part of the names of DROs, which are unique on a
    host.
    """
    data = resources.files("supervisor.tools.demo").joinpath("data")
    trds, files = layout.trds, layout.files.values()
    names = [*(f"link{i}" for i in range(len(layout.links))), *(f"web{i}" for i in range(len(files))), *others]
    names += [port for one in layout.resolvers for port in one.ports]
    first = _free_block(len(trds) * PORTS_PER_TRD + len(names))
    made = {name: first + len(trds) * PORTS_PER_TRD + i for i, name in enumerate(names)}
    for trd in trds:
        base = first + (trd - 1) * PORTS_PER_TRD
        ports = {f"port{i}": base + i for i in range(PORTS_PER_TRD)}
        net = f"239.{192 + os.getpid() % 60}.{base // 30 % 250}"
        template = data.joinpath(layout.trd_files.get(trd, TRD_FILE)).read_text()
        folder.joinpath(f"trd{trd}.cfg").write_text(template.format(trd=trd, net=net, **ports, **made))
    for name in files:
        folder.joinpath(name).write_text(data.joinpath(name).read_text().format(run=run_name(), **made))
    return made


def run_name() -> str:
    """Name the end of the names of the DROs of this demonstration, which are unique on a host."""
    return f"demo{os.getpid()}"


def tnwgdctl() -> str:
    """The command as it can be typed here: PATH need not have it."""
    beside = Path(sys.executable).with_name("tnwgdctl")
    if not beside.exists():
        return f"{sys.executable} -m supervisor.tools.ctl.main"
    with contextlib.suppress(ValueError):
        return str(beside.relative_to(Path.cwd()))
    return str(beside)


def web_addresses(ports: Mapping[str, int]) -> list[str]:
    """List where the web monitors of the demonstration listen."""
    return [f"127.0.0.1:{port}" for name, port in ports.items() if name.startswith("web")]


def _free_block(size: int) -> int:
    """Find the first of `size` ports that are free now, for UDP and TCP, below the ephemeral range."""
    start = 20000 + (os.getpid() * 37 + time.monotonic_ns() // 1000) % 11000
    for base in range(start, start + 1000, size):
        if all(_is_free(port, kind) for port in range(base, base + size) for kind in
               (socket.SOCK_STREAM, socket.SOCK_DGRAM)):  # fmt: skip
            return base
    raise SystemExit("demo: no block of free ports on 127.0.0.1")


def _is_free(port: int, kind: int) -> bool:
    with socket.socket(socket.AF_INET, kind) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@dataclass(frozen=True)
class WorkerUse:
    pid: int
    name: str
    figures: ProcessFigures


def workers_of(pid: int, processes: Processes) -> list[WorkerUse]:
    """The processes of the DRO whose parent is `pid`, that one first."""
    found = []
    children = Path(f"/proc/{pid}/task/{pid}/children")
    pids = [pid, *(int(child) for child in (children.read_text().split() if children.exists() else []))]
    for number in pids:
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{number}/comm").read_text().strip()
            found.append(WorkerUse(number, name, processes.figures(number)))
    return found


def running_tnwgd(
    folder: Path, file: str = DIRECT.files["DEMO"], log: str = "tnwgd.log", arguments: Sequence[str] = ()
) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """A `tnwgd` on that configuration in `folder`, its log beside it; stopped with SIGTERM at the end."""
    return running(folder, "supervisor.main", log, (*arguments, file))


@contextlib.contextmanager
def running(folder: Path, module: str, log: str, arguments: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon in `folder`, its log beside it; stopped with SIGTERM at the end."""
    tree = str(Path(__file__).resolve().parents[3])  # found from `folder` too when the package is not installed
    path = os.pathsep.join(filter(None, [tree, os.environ.get("PYTHONPATH")]))
    with folder.joinpath(log).open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": path},
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,  # Ctrl-C is for the demonstration, which waits for its messages before it stops this
        )
    with stopped_at_the_end(process):
        yield process


@contextlib.contextmanager
def stopped_at_the_end(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Stop it with SIGTERM, or after ten seconds with SIGKILL."""
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def ended(processes: Mapping[str, subprocess.Popen[bytes]], folder: Path) -> bool:
    """Say whether one of them, by the name of its log, runs no more, and print the end of that log."""
    for log, process in processes.items():
        if process.poll() is not None:
            lines = folder.joinpath(log).read_text().splitlines()[-LAST_LINES:]
            print(*lines, f"demo: the daemon of {log} ended with status {process.returncode}", sep="\n")
            return True
    return False
