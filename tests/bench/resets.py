"""Resets a peer link under load, again and again: what is lost, doubled or out of order, and how long it is away.

`python -m tests.bench.resets`: two real `tnwgd` and a relay between them that ends both of its connections with a RST
at a random time, so what the three systems had under way is gone. A topic goes each way, over TCP in both TRDs, at a
fixed rate. Once for each kind of link; with `--old` one end confirms nothing, as a DRO without that extension. Routes
have default timers, as a machine that is busy for a second must not be taken for a DRO that is gone. Pause: the
longest time without a message after a reset; back: from a reset to the link's next connection.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import select
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import SimpleNamespace, TracebackType
from typing import Final, Self

from dro.clock import NS_PER_MS
from dro.log.events import LogEvent
from dro.loop import Loop
from dro.um.fragment.own_source import FragmentSource
from tests.bench.links import KINDS, LZ4, UDP, tls
from tests.daemon.test_peers import Chain
from tests.network.plans import PAIR
from tests.rigs.certificates import Authority
from tests.rigs.network import PATIENT, Application, Plan

HOST: Final = "127.0.0.1"
RATE: Final = 1000
SIZE: Final = 500
BUFFER_BYTES: Final = 1 << 16
QUEUE: Final = "<max-queue>8000000</max-queue>"
"""So that a machine that is slow for some seconds drops nothing."""
PATIENCE_NS: Final = 60 * 1000 * NS_PER_MS
BEHIND_NS: Final = 20 * NS_PER_MS
OLD: Final = "tests.rigs.dro_without_resuming"
_DROPS: Final = (LogEvent.QUEUE_DROPS, LogEvent.PEER_DATA_FORGOTTEN, LogEvent.PEER_DATAGRAMS_LOST)
_RST: Final = struct.pack("ii", 1, 0)


class ResetRelay:
    """Passes bytes on between the initiator and the acceptor, in a thread of its own; a context manager."""

    def __init__(self, port: int, to: int) -> None:
        self._to = to
        self._listener = socket.create_server((HOST, port))
        self._ends: dict[socket.socket, socket.socket] = {}
        self._is_over = self._is_reset = False
        self.connections = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._is_over = True
        self._thread.join()
        self._close()
        self._listener.close()

    def reset(self) -> None:
        """In a moment."""
        self._is_reset = True

    def _close(self) -> None:
        for end in self._ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST)
            end.close()
        self._ends.clear()

    def _run(self) -> None:
        while not self._is_over:
            if self._is_reset:
                self._is_reset = False
                self._close()
            for end in select.select([self._listener, *self._ends], [], [], 0.002)[0]:
                if end is self._listener:
                    self._accept()
                elif end in self._ends:
                    self._pass_on(end)

    def _accept(self) -> None:
        one, _ = self._listener.accept()
        self._close()
        try:
            other = socket.create_connection((HOST, self._to))
        except OSError:
            one.close()
            return
        self._ends = {one: other, other: one}
        self.connections += 1

    def _pass_on(self, end: socket.socket) -> None:
        try:
            data = end.recv(BUFFER_BYTES)
            if data:
                self._ends[end].sendall(data)
        except OSError:
            data = b""
        if not data:
            self._close()


@dataclass(slots=True)
class ResetResult:
    """What has come of all that was sent both ways; times in ms."""

    resets: int = 0
    sent: int = 0
    lost: int = 0
    doubled: int = 0
    disordered: int = 0
    pauses_ms: tuple[float, ...] = ()
    backs_ms: tuple[float, ...] = ()
    log: tuple[str, ...] = ()
    """What the DROs say of data that was dropped, or was not kept."""


class Load:
    """A topic each way, at a fixed rate."""

    def __init__(self, plan: Plan, loop: Loop, rate: int) -> None:
        network = SimpleNamespace(plan=plan, loop=loop)
        self.loop = loop
        self.applications = [Application(network, trd) for trd in (1, 2)]  # type: ignore[arg-type]
        sources = [end.source(b"from %d" % trd) for trd, end in enumerate(self.applications, start=1)]
        self.ways: list[tuple[Application, FragmentSource, Application]] = list(
            zip(self.applications, sources, reversed(self.applications), strict=True)
        )
        for _, source, receiver in self.ways:
            receiver.context.want_topic(source.topic)
        self._gap_ns = 1_000_000_000 // rate
        self._due_ns = 0
        self.first = [0, 0]
        self.heard_ns = [0, 0]
        self._heard = [0, 0]
        self.pause_ns = 0

    def until(self, holds: Callable[[], bool], *, sends: bool = True) -> None:
        loop = self.loop
        end_ns = loop.now_ns() + PATIENCE_NS
        while not holds():
            now_ns = loop.now_ns()
            assert now_ns < end_ns, "nothing came in time"
            self._due_ns = max(self._due_ns, now_ns - BEHIND_NS)
            while sends and self._due_ns <= now_ns:
                for sender, source, _ in self.ways:
                    if not source.transport.is_blocked:
                        sender.send(source, size=SIZE)
                self._due_ns += self._gap_ns
            loop.run_once(NS_PER_MS)
            for nth, (_, _, receiver) in enumerate(self.ways):
                count = len(receiver.sink.fragments)
                if count != self._heard[nth]:
                    self.pause_ns = max(self.pause_ns, now_ns - self.heard_ns[nth])
                    self._heard[nth], self.heard_ns[nth] = count, now_ns

    def run(self, seconds: float) -> None:
        end_ns = self.loop.now_ns() + int(seconds * 1e9)
        self.until(lambda: self.loop.now_ns() >= end_ns)

    def begin(self) -> None:
        """Count from what comes next."""
        self.until(lambda: all(receiver.bound(source.topic) for _, source, receiver in self.ways), sends=False)
        self.until(lambda: all(receiver.sink.fragments for _, _, receiver in self.ways))
        self.run(0.3)
        self.first = [sender.sent(source) for sender, source, _ in self.ways]

    def result(self, resets: int, pauses: Sequence[int], backs: Sequence[int]) -> ResetResult:
        found = ResetResult(resets)
        for begin, (sender, source, receiver) in zip(self.first, self.ways, strict=True):
            got = [number for number in receiver.got(source) if number >= begin]
            found.sent += sender.sent(source) - begin
            found.lost += sender.sent(source) - begin - len(set(got))
            found.doubled += len(got) - len(set(got))
            found.disordered += sum(one > other for one, other in pairwise(got))
        found.pauses_ms = tuple(value / NS_PER_MS for value in pauses)
        found.backs_ms = tuple(value / NS_PER_MS for value in backs)
        return found

    def has_come(self) -> bool:
        return all(
            receiver.sink.fragments and receiver.last_sqn() == sender.sent(source) - 1
            for sender, source, receiver in self.ways
        )

    def close(self) -> None:
        for application in self.applications:
            application.context.close()


def plan_of(
    folder: Path, kind: str, *, delays_ms: dict[tuple[str, str], int] | None = None, daemon: str = PATIENT
) -> Plan:
    """Plan two DROs with a link of that kind."""
    has_udp, has_tls, has_lz4 = KINDS[kind]
    more = (tls(Authority(folder), "dro") if has_tls else "") + (LZ4 if has_lz4 else "")
    plan = Plan(
        folder,
        PAIR,
        transport="tcp",
        tcp=more,
        udp=UDP if has_udp else None,
        delays_ms=delays_ms,
        daemon=daemon,
        portal_xml={f"{dro}-{port}": QUEUE for dro, ports in PAIR.items() for port in ports},
    )
    for name in PAIR:
        text = plan.file(name).read_text()
        plan.file(name).write_text(text.replace('reconnect-interval="1000"', 'reconnect-interval="100"'))
    return plan


def reset_often(
    folder: Path, kind: str, resets: int, *, rate: int = RATE, is_old: bool = False, daemon: str = ""
) -> ResetResult:
    """Reset a link of that kind so often. `is_old`: one end confirms nothing. `daemon`: XML of route timers."""
    rng = random.Random(kind)
    plan = plan_of(folder, kind, delays_ms={("A", "B"): 0}, daemon=daemon)
    pair, loop = Chain(plan), Loop()
    with ExitStack() as stack:
        stack.callback(plan.close)
        stack.callback(loop.close)
        relay = stack.enter_context(ResetRelay(plan.relay_port("A", "B"), plan.link_port("A", "B")))
        for dro in ("B", "A"):
            pair.start(dro, OLD if is_old and dro == "B" else "supervisor.main", str(plan.file(dro)))
            stack.callback(pair.end, dro)
        load = Load(plan, loop, rate)
        stack.callback(load.close)
        load.begin()
        pauses, backs = [], []
        for _ in range(resets):
            load.run(0.12 + 0.1 * rng.random())
            load.pause_ns, before, at_ns = 0, relay.connections, loop.now_ns()
            relay.reset()
            load.until(lambda before=before: relay.connections > before)  # type: ignore[misc]
            backs.append(loop.now_ns() - at_ns)
            marks = [len(receiver.sink.fragments) for _, _, receiver in load.ways]
            time_ns = loop.now_ns()

            def is_through(marks: list[int] = marks, time_ns: int = time_ns) -> bool:
                flows = all(len(way[2].sink.fragments) > mark for way, mark in zip(load.ways, marks, strict=True))
                return flows and loop.now_ns() >= time_ns + 20 * NS_PER_MS

            load.until(is_through)
            pauses.append(load.pause_ns)
        end_s = time.monotonic() + 5
        with contextlib.suppress(AssertionError):
            load.until(lambda: load.has_come() or time.monotonic() >= end_s, sends=False)
        result = load.result(resets, pauses, backs)
        lines = [line for name in PAIR for line in (folder / f"{name}.log").read_text().splitlines()]
        result.log = tuple(line for line in lines if any(event in line for event in _DROPS))
        return result


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="resets", description=__doc__.split("\n")[0])
    parser.add_argument("--resets", type=int, default=1000, help="of each kind of link (default 1000)")
    parser.add_argument("--rate", type=int, default=RATE, help=f"messages a second each way (default {RATE})")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--old", action="store_true", help="one end confirms nothing")
    arguments = parser.parse_args(words)
    print("| link | resets | sent | lost | doubled | out of order | pause ms: median, most | back ms: median, most |")
    print("|---|---|---|---|---|---|---|---|")
    for kind in arguments.kinds:
        with tempfile.TemporaryDirectory(prefix="dro-resets-") as folder:
            made = reset_often(Path(folder), kind, arguments.resets, rate=arguments.rate, is_old=arguments.old)
        pauses, backs = ([*times] or [0.0] for times in (made.pauses_ms, made.backs_ms))
        print(
            f"| {kind} | {made.resets} | {made.sent} | {made.lost} | {made.doubled} | {made.disordered} "
            f"| {median(pauses):.0f}, {max(pauses):.0f} | {median(backs):.0f}, {max(backs):.0f} |",
            flush=True,
        )
        for line in made.log[:10]:
            print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
