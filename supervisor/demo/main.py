"""A live demonstration of the DRO: a source in TRD 1, receivers in TRD 2, a real `tnwgd` between them.

Everything runs on the loopback interface with groups and ports of its own, so several demonstrations (and a real
DRO) can run on one host. On a terminal a table is redrawn twice a second; otherwise a line is printed each second.
The exit status is 0 only if every message arrived once, at both receivers.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from struct import Struct
from types import FrameType
from typing import Final

from dro.command_line import Parser
from dro.standard_streams import open_standard_streams, output_lost, say
from dro.um.blocking_api import BlockingContext, BlockingReceiver, BlockingWildcardReceiver
from dro.um.message.client_config import Config
from dro.um.message.events import Data, Event, Loss, LossBurst

TOPIC: Final = "demo.prices.ACME"
PATTERN: Final = r"^demo\.prices\."
PORTS_PER_TRD: Final = 30
STAMP: Final = Struct("!IQ")  # serial number, monotonic clock in ns
PAYLOAD_BYTES: Final = 200
ALL_ARRIVED_S: Final = 15.0
RESOLVED_S: Final = 30.0
REDRAW_S: Final = 0.5
SETTLE_S: Final = 0.3
"""After the receivers have joined: a message sent meanwhile would be older than their session, not lost."""


@dataclass
class Arrivals:
    """What one receiver got. Written by its context's thread, read by the main thread."""

    name: str
    received: int = 0
    lost: int = 0
    duplicates: int = 0
    out_of_order: int = 0
    source: str = ""
    latencies_ns: deque[int] = field(default_factory=lambda: deque(maxlen=5000))
    _next: int = 0
    _gaps: set[int] = field(default_factory=set)  # serial numbers below `_next` that have not come

    def on_event(self, event: Event) -> None:
        now_ns = time.monotonic_ns()
        match event:
            case Data(data=data, source=source):
                serial, sent_ns = STAMP.unpack_from(data)
                if serial >= self._next:
                    self._gaps.update(range(self._next, serial))
                    self._next = serial + 1
                elif serial in self._gaps:
                    self._gaps.remove(serial)
                    self.out_of_order += 1
                else:
                    self.duplicates += 1
                    return
                self.source = source
                self.received += 1
                self.latencies_ns.append(now_ns - sent_ns)
            case Loss() | LossBurst():
                self.lost += 1
            case _:
                pass

    def percentile_us(self, fraction: float) -> float:
        values = sorted(self.latencies_ns.copy())
        return values[min(len(values) - 1, int(len(values) * fraction))] / 1000 if values else 0.0


def write_configuration(folder: Path) -> None:
    """The files of the demonstration, with a multicast net and port blocks that nobody else uses now."""
    data = resources.files("supervisor.demo").joinpath("data")
    folder.joinpath("demo.xml").write_text(data.joinpath("demo.xml").read_text())
    template = data.joinpath("demo-trd.cfg").read_text()
    for trd in (1, 2):
        base = _free_block(PORTS_PER_TRD)
        ports = {f"port{i}": base + i for i in range(PORTS_PER_TRD)}
        net = f"239.{192 + os.getpid() % 60}.{base // 256 % 250}"
        folder.joinpath(f"trd{trd}.cfg").write_text(template.format(trd=trd, net=net, **ports))


def _free_block(size: int) -> int:
    """First of `size` ports that are free now, for UDP and TCP, below the ephemeral range."""
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
class Worker:
    pid: int
    name: str
    cpu_s: float
    memory_kib: int


def workers_of(pid: int) -> list[Worker]:
    """The processes of the DRO whose parent is `pid`, that one first."""
    found = []
    children = Path(f"/proc/{pid}/task/{pid}/children")
    pids = [pid, *(int(child) for child in (children.read_text().split() if children.exists() else []))]
    tick = os.sysconf("SC_CLK_TCK")
    for number in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            stat = Path(f"/proc/{number}/stat").read_text()
            name, rest = stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 2 :].split()
            cpu_s = (int(rest[11]) + int(rest[12])) / tick
            found.append(Worker(number, name, cpu_s, int(rest[21]) * os.sysconf("SC_PAGE_SIZE") // 1024))
    return found


class Screen:
    """A table that is redrawn on a terminal; plain lines elsewhere."""

    def __init__(self, tnwgd: subprocess.Popen[bytes], folder: Path) -> None:
        self._tnwgd = tnwgd
        self._folder = folder
        self._is_terminal = sys.stdout.isatty()
        self._lines = 0
        self._next_plain_s = 0.0
        self._before = (time.monotonic(), 0, [0, 0])

    def show(self, elapsed_s: float, sent: int, arrivals: list[Arrivals], *, last: bool = False) -> None:
        now = time.monotonic()
        then, sent_then, received_then = self._before
        span = max(now - then, 1e-9)
        rates = [(a.received - before) / span for a, before in zip(arrivals, received_then, strict=True)]
        if self._is_terminal:
            self._draw(elapsed_s, sent, (sent - sent_then) / span, arrivals, rates)
        elif elapsed_s >= self._next_plain_s or last:
            self._next_plain_s = elapsed_s + 1
            receiver = arrivals[0]
            print(
                f"{elapsed_s:6.1f} s  sent {sent}  received {receiver.received}  lost {receiver.lost}  "
                f"rate {rates[0]:.0f}/s  latency p50 {receiver.percentile_us(0.5):.0f} us  "
                f"p99 {receiver.percentile_us(0.99):.0f} us",
                flush=True,
            )
        self._before = (now, sent, [a.received for a in arrivals])

    def _draw(self, elapsed_s: float, sent: int, rate: float, arrivals: list[Arrivals], rates: list[float]) -> None:
        lines = [
            f"open DRO demonstration: TRD 1 -> tnwgd -> TRD 2, {elapsed_s:.0f} s   (Ctrl-C stops)",
            "",
            f"  {'':17}{'messages':>10}{'per s':>9}{'lost':>7}{'dup':>6}{'p50 us':>9}{'p99 us':>9}{'p99.9 us':>10}",
            f"  {'source, TRD 1':17}{sent:>10}{rate:>9.0f}",
        ]
        for a, per_s in zip(arrivals, rates, strict=True):
            lines.append(
                f"  {a.name:17}{a.received:>10}{per_s:>9.0f}{a.lost:>7}{a.duplicates:>6}"
                f"{a.percentile_us(0.5):>9.0f}{a.percentile_us(0.99):>9.0f}{a.percentile_us(0.999):>10.0f}"
            )
        lines += ["", f"  {'process':17}{'pid':>10}{'CPU s':>9}{'memory MiB':>13}"]
        lines += [
            f"  {w.name:17}{w.pid:>10}{w.cpu_s:>9.2f}{w.memory_kib / 1024:>13.1f}" for w in workers_of(self._tnwgd.pid)
        ]
        lines += ["", f"  receivers hear it as  {arrivals[0].source or '(not yet)'}", f"  files  {self._folder}"]
        up = f"\x1b[{self._lines}A" if self._lines else ""
        width = shutil.get_terminal_size().columns  # a line that wraps would shift the next picture
        sys.stdout.write(up + "".join(f"\x1b[2K{line[:width]}\n" for line in lines) + "\x1b[J")
        sys.stdout.flush()
        self._lines = len(lines)


@contextlib.contextmanager
def running_tnwgd(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A `tnwgd` on the configuration in `folder`, its log beside it; stopped with SIGTERM at the end."""
    tree = str(Path(__file__).resolve().parents[2])  # found from `folder` too when the package is not installed
    path = os.pathsep.join(filter(None, [tree, os.environ.get("PYTHONPATH")]))
    with folder.joinpath("tnwgd.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "supervisor.main", "demo.xml"],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": path},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def run(seconds: float, rate: int) -> int:
    """Returns the exit status. `seconds` 0: until interrupted."""
    stop = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    with tempfile.TemporaryDirectory(prefix="dro-demo-") as name:
        folder = Path(name)
        write_configuration(folder)
        with running_tnwgd(folder) as tnwgd:
            return _run(folder, tnwgd, stop, seconds, rate)


def _run(folder: Path, tnwgd: subprocess.Popen[bytes], stop: threading.Event, seconds: float, rate: int) -> int:
    arrivals = [Arrivals("receiver, TRD 2"), Arrivals("wildcard, TRD 2")]
    screen = Screen(tnwgd, folder)
    with (
        BlockingContext(Config.load(folder / "trd1.cfg")) as trd1,
        BlockingContext(Config.load(folder / "trd2.cfg")) as trd2,
    ):
        print(
            f"tnwgd runs as process {tnwgd.pid} between TRD 1 and TRD 2; waiting for the receivers to find the source"
        )
        receiver = trd2.receiver(TOPIC, on_event=arrivals[0].on_event)
        wildcard = trd2.wildcard_receiver(PATTERN, on_event=arrivals[1].on_event)
        source = trd1.source(TOPIC)
        if not _wait_resolved(receiver, wildcard, tnwgd, stop):
            sys.stdout.write(folder.joinpath("tnwgd.log").read_text())
            print("demo: the receivers did not find the source")
            return 1
        sent, began = 0, time.monotonic()
        next_redraw = began
        padding = bytes(PAYLOAD_BYTES - STAMP.size)
        while not stop.is_set() and (not seconds or time.monotonic() - began < seconds):
            due = int((time.monotonic() - began) * rate)
            while sent < due:
                source.send(STAMP.pack(sent, time.monotonic_ns()) + padding)
                sent += 1
            if time.monotonic() >= next_redraw:
                next_redraw += REDRAW_S
                screen.show(time.monotonic() - began, sent, arrivals)
            if tnwgd.poll() is not None:
                sys.stdout.write(folder.joinpath("tnwgd.log").read_text())
                print(f"demo: tnwgd ended with status {tnwgd.returncode}")
                return 1
            stop.wait(0.002)
        deadline = time.monotonic() + ALL_ARRIVED_S
        while time.monotonic() < deadline and any(a.received + a.lost < sent for a in arrivals):
            time.sleep(0.02)
        screen.show(time.monotonic() - began, sent, arrivals, last=True)
    lost = max(sent - a.received for a in arrivals)
    duplicates = sum(a.duplicates for a in arrivals)
    print(f"demo: sent {sent}, received {arrivals[0].received}, lost {lost}, duplicates {duplicates}")
    return exit_status(sent, arrivals)


def exit_status(sent: int, arrivals: Sequence[Arrivals]) -> int:
    """0 when every receiver got every message once and in order."""
    is_right = all(a.received == sent and not a.duplicates and not a.out_of_order for a in arrivals)
    return 0 if sent and is_right else 1


def _wait_resolved(
    receiver: BlockingReceiver,
    wildcard: BlockingWildcardReceiver,
    tnwgd: subprocess.Popen[bytes],
    stop: threading.Event,
) -> bool:
    deadline = time.monotonic() + RESOLVED_S
    while time.monotonic() < deadline and tnwgd.poll() is None and not stop.is_set():
        with contextlib.suppress(TimeoutError):
            receiver.wait_sources(timeout=0.2)
            wildcard.wait_topics(timeout=0.2)
            return not stop.wait(SETTLE_S)
    return False


def main() -> None:
    open_standard_streams()
    parser = Parser(prog="python -m supervisor.demo.main", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=0, help="stop after so many seconds (default: at Ctrl-C)")
    parser.add_argument("--rate", type=int, default=500, help="messages per second (default 500)")
    arguments = parser.parse_args()
    if arguments.seconds < 0 or not 0 < arguments.rate <= 100_000:
        parser.error("--seconds must not be negative, --rate from 1 to 100000")
    try:
        status = run(arguments.seconds, arguments.rate)
        sys.stdout.flush()
    except OSError as e:
        error = output_lost(e)
        if error is not None:
            say(sys.stderr, f"demo: {error}\n")
        status = 1
    sys.exit(status)


if __name__ == "__main__":
    main()
