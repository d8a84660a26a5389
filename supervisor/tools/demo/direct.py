"""One DRO between TRD 1, with a source, and TRD 2, with receivers."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from pathlib import Path

from dro.um.blocking_api import BlockingContext, BlockingReceiver, BlockingWildcardReceiver
from dro.um.message.client_config import Config
from supervisor.tools.demo.arrivals import Arrivals, exit_status
from supervisor.tools.demo.flow import PATTERN, RESOLVED_S, SETTLE_S, TOPIC, Sender, send_until, wait_arrived
from supervisor.tools.demo.ground import ended, running_tnwgd, web_addresses, workers_of, write_configuration
from supervisor.tools.demo.screen import LATENCY_HEAD, REDRAW_S, Picture, PlainLines, Rates, latency_cells


class Screen:
    """A table that is redrawn on a terminal; plain lines elsewhere."""

    def __init__(self, tnwgd: subprocess.Popen[bytes], folder: Path) -> None:
        self._tnwgd = tnwgd
        self._folder = folder
        self._picture = Picture() if sys.stdout.isatty() else None
        self._plain = PlainLines()
        self._rates = Rates()

    def show(self, elapsed_s: float, sent: int, arrivals: list[Arrivals], *, last: bool = False) -> None:
        rates = self._rates.of({"": sent} | {a.name: a.received for a in arrivals})
        if self._picture is not None:
            self._picture.draw(self._lines(elapsed_s, sent, arrivals, rates))
        elif self._plain.is_due(elapsed_s, last=last):
            receiver = arrivals[0]
            print(
                f"{elapsed_s:6.1f} s  sent {sent}  received {receiver.received}  lost {receiver.lost}  "
                f"rate {rates[receiver.name]:.0f}/s  latency p50 {receiver.percentile_us(0.5):.0f} us  "
                f"p99 {receiver.percentile_us(0.99):.0f} us",
                flush=True,
            )

    def _lines(self, elapsed_s: float, sent: int, arrivals: list[Arrivals], rates: dict[str, float]) -> list[str]:
        lines = [
            f"open DRO demonstration: TRD 1 -> tnwgd -> TRD 2, {elapsed_s:.0f} s   (Ctrl-C stops)",
            "",
            f"  {'':17}{'messages':>10}{'per s':>9}{'lost':>7}{'dup':>6}{LATENCY_HEAD}",
            f"  {'source, TRD 1':17}{sent:>10}{rates['']:>9.0f}",
        ]
        lines += [
            f"  {a.name:17}{a.received:>10}{rates[a.name]:>9.0f}{a.lost:>7}{a.duplicates:>6}{latency_cells(a)}"
            for a in arrivals
        ]
        lines += ["", f"  {'process':17}{'pid':>10}{'CPU s':>9}{'memory MiB':>13}"]
        lines += [
            f"  {w.name:17}{w.pid:>10}{w.cpu_s:>9.2f}{w.memory_kib / 1024:>13.1f}" for w in workers_of(self._tnwgd.pid)
        ]
        return [*lines, "", f"  receivers hear it as  {arrivals[0].source or '(not yet)'}", f"  files  {self._folder}"]


def run(folder: Path, stop: threading.Event, seconds: float, rate: int) -> int:
    """Returns the exit status. `seconds` 0: until stopped."""
    ports = write_configuration(folder)
    print(f"web monitor: http://{web_addresses(ports)[0]}, metrics at /metrics", flush=True)
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
        sender = Sender(source, rate)
        next_redraw = 0.0

        def each_turn() -> bool:
            nonlocal next_redraw
            if sender.elapsed_s >= next_redraw:
                next_redraw += REDRAW_S
                screen.show(sender.elapsed_s, sender.sent, arrivals)
            return not ended({"tnwgd.log": tnwgd}, folder)

        if not send_until(lambda: 0 < seconds <= sender.elapsed_s, sender, stop, each_turn):
            return 1
        wait_arrived(lambda: all(a.received + a.lost >= sender.sent for a in arrivals))
        screen.show(sender.elapsed_s, sender.sent, arrivals, last=True)
    sent = sender.sent
    lost = max(sent - a.received for a in arrivals)
    duplicates = sum(a.duplicates for a in arrivals)
    print(f"demo: sent {sent}, received {arrivals[0].received}, lost {lost}, duplicates {duplicates}")
    return exit_status(sent, arrivals)


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
