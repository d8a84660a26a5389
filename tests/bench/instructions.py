"""Instructions per message in a turn with one message, of the ingress and the egress portal.

A DRO with two portals runs under callgrind. A source sends one message at a time, and waits until it has come: each is
a turn of its own in either portal. What the portals do in the same time without messages is measured as well, and taken
off. Instructions do not depend on the load of the machine; system calls are not in them. Needs valgrind.

`--functions` also shows which functions cost most, by portal.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from dro import compiled_steps
from dro.bus import process_name
from dro.um.blocking_api import BlockingContext
from dro.um.message.client_config import Config
from dro.um.message.events import Data
from tests.rigs.site import Site
from tests.rigs.waiting import wait_until

PORTALS: Final = {"ingress": "P1", "egress": "P2"}
START_S: Final = 300.0


class SlowSite(Site):
    """Its daemon runs under callgrind, which counts nothing yet."""

    PROGRAM = "tests.bench.instructions"

    def POPEN(self, command: list[str], **more: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401
        tool = ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={self.folder}/cg.%p"]
        return subprocess.Popen([*tool, *command], **more)

    def wait(self, holds: Callable[[], object], what: str, _: float = 0.0) -> None:
        super().wait(holds, what, START_S)


def counted(site: Site) -> dict[str, int]:
    """Instructions of each portal since the last call."""
    return {role: _dumped(site, role, site.worker(name)) for role, name in PORTALS.items()}


def _dumped(site: Site, role: str, pid: int) -> int:
    """Have a portal write what it has counted, as a file with the role's name."""

    def dumps() -> list[Path]:
        return [path for path in site.folder.glob(f"cg.{pid}.*") if "totals:" in path.read_text(errors="replace")]

    os.kill(pid, signal.SIGUSR2)
    wait_until(dumps, "a dump", 60)
    [path] = dumps()
    path = path.rename(site.folder / f"{role}.{path.suffix[1:]}")
    return int(re.findall(r"^totals: (\d+)", path.read_text(errors="replace"), re.MULTILINE)[-1])


def measure(transport: str, messages: int, folder: Path, size: int) -> dict[str, float]:
    """Instructions a message, by portal."""
    site = SlowSite(folder, 2, transports=dict.fromkeys((1, 2), transport))
    try:
        site.start()
        with (
            BlockingContext(Config.load(site.config(1))) as sender,
            BlockingContext(Config.load(site.config(2))) as ear,
        ):
            source, receiver = sender.source("t"), ear.receiver("t")

            def come() -> bool:
                source.send(bytes(size))
                try:
                    return isinstance(receiver.get(timeout=1), object)
                except TimeoutError:
                    return False

            wait_until(come, "the way", START_S)
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                source.send(bytes(size))
                while not isinstance(receiver.get(timeout=30), Data):
                    pass
            counted(site)
            began = time.monotonic()
            for _ in range(messages):
                source.send(bytes(size))
                while not isinstance(receiver.get(timeout=30), Data):
                    pass
                time.sleep(0.005)
            took = time.monotonic() - began
            busy = counted(site)
            time.sleep(took)
            idle = counted(site)
    finally:
        site.close()
    return {role: (busy[role] - idle[role]) / messages for role in PORTALS}


TOOL: Final = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void dump(void) { CALLGRIND_DUMP_STATS; }
"""


def daemon() -> None:
    """Run a DRO whose parent does without descriptors of processes: valgrind has none."""
    pids: dict[int, int] = {}

    def pidfd_open(pid: int, flags: int = 0) -> int:
        fd = os.eventfd(0)
        pids[fd] = pid
        return fd

    def send_signal(fd: int, number: int, *_: object) -> None:
        os.kill(pids[fd], number)

    os.pidfd_open = pidfd_open
    signal.pidfd_send_signal = send_signal
    process_name.show_name = lambda name: None  # a title would lie where valgrind has its own arguments
    folder = Path(sys.argv[1]).parent
    (folder / "tool.c").write_text(TOOL)
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", folder / "tool.so", folder / "tool.c"], check=True)
    tool = ctypes.CDLL(str(folder / "tool.so"))
    begin = iter([tool.begin])

    def on_signal(*_: object) -> None:
        for first in begin:
            first()
        tool.dump()

    signal.signal(signal.SIGUSR2, on_signal)
    runpy.run_module("supervisor.main", run_name="__main__")


def by_function(path: Path, inclusive: bool) -> dict[str, int]:
    """Instructions by function of a dump; `inclusive`: with those of what it calls."""
    words = ["callgrind_annotate", f"--inclusive={'yes' if inclusive else 'no'}", "--threshold=100", str(path)]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    found: dict[str, int] = {}
    for line in said.splitlines():
        if match := re.match(r" *([\d,]+) \( *[\d.]+%\)  (\S+?):(\S+)", line):
            name = match[3].split("'")[0]
            found[name] = found.get(name, 0) + int(match[1].replace(",", ""))
    return found


def show(folder: Path, role: str, most: int, messages: int, inclusive: bool) -> None:
    """Print which functions of a portal cost most."""
    _, busy, idle = (
        by_function(p, inclusive) for p in sorted(folder.glob(f"{role}.*"), key=lambda p: int(p.suffix[1:]))
    )
    costs = {name: (count - idle.get(name, 0)) / messages for name, count in busy.items()}
    print(role)
    for name, cost in sorted(costs.items(), key=lambda item: -item[1])[:most]:
        print(f"{cost:9.0f}  {name}")


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1].endswith(".xml"):
        return daemon()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=300)
    parser.add_argument("--size", type=int, default=300, help="bytes of a message")
    parser.add_argument("--transports", nargs="+", default=["lbtrm", "tcp"])
    parser.add_argument("--functions", type=int, default=0, metavar="N", help="show the N that cost most")
    parser.add_argument("--inclusive", action="store_true", help="show them with what they call")
    arguments = parser.parse_args()
    for tool in ("valgrind", "gcc"):
        if shutil.which(tool) is None:
            print(f"instructions: {tool} is not installed: nothing is measured")
            return None
    print("steps:", compiled_steps.form())
    for transport in arguments.transports:
        with tempfile.TemporaryDirectory() as name:
            found = measure(transport, arguments.messages, Path(name), arguments.size)
            print(transport, {role: round(count) for role, count in found.items()}, flush=True)
            if arguments.functions:
                for role in PORTALS:
                    show(Path(name), role, arguments.functions, arguments.messages, arguments.inclusive)


if __name__ == "__main__":
    main()
