"""A slow wire: frames between two TAP devices, delayed, jittered, reordered or lost by one small process.

The kernel's own emulation (netem) is not on every machine; TAP devices are. `Net.host` puts a relay between a host and
the bridge of a TRD when it is given a `Link`. Such an interface has no checksum offload, so a sender that asks the
kernel to segment datagram trains (UDP_SEGMENT) is refused there with EIO.
"""

from __future__ import annotations

import argparse
import fcntl
import heapq
import itertools
import os
import random
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.rigs.netns.namespace import inside
from tests.rigs.waiting import readable

TUN: Final = Path("/dev/net/tun")
TUNSETIFF: Final = 0x400454CA
IFF_TAP: Final = 0x0002
IFF_NO_PI: Final = 0x1000
ETHERTYPE_IPV4: Final = b"\x08\x00"
FRAME_MAX: Final = 65536
BATCH: Final = 64


@dataclass(frozen=True, slots=True)
class Link:
    """What a wire does to every frame, in each direction. `loss` (0 to 1) concerns IPv4 only, so ARP always works.

    With `in_order` a frame never overtakes another; without it, jitter reorders.
    """

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    loss: float = 0.0
    seed: int = 1
    in_order: bool = True

    def arguments(self) -> list[str]:
        values = [f"--delay-ms={self.delay_ms}", f"--jitter-ms={self.jitter_ms}", f"--loss={self.loss}"]
        return [*values, f"--seed={self.seed}", *(() if self.in_order else ("--reorder",))]


class Line:
    """One direction: frames waiting for their time. Sans-IO."""

    def __init__(self, link: Link, seed: int) -> None:
        self._link = link
        self._random = random.Random(seed)
        self._queue: list[tuple[int, int, bytes]] = []
        self._serial = itertools.count()
        self._last_due_ns = 0

    def on_frame(self, frame: bytes, now_ns: int) -> None:
        if frame[12:14] == ETHERTYPE_IPV4 and self._random.random() < self._link.loss:
            return
        due_ns = now_ns + round((self._link.delay_ms + self._random.random() * self._link.jitter_ms) * 1e6)
        if self._link.in_order:
            self._last_due_ns = due_ns = max(due_ns, self._last_due_ns)
        heapq.heappush(self._queue, (due_ns, next(self._serial), frame))

    def next_deadline(self) -> int | None:
        return self._queue[0][0] if self._queue else None

    def take_due(self, now_ns: int) -> list[bytes]:
        due = []
        while self._queue and self._queue[0][0] <= now_ns:
            due.append(heapq.heappop(self._queue)[2])
        return due


def open_tap(namespace: str, name: str) -> int:
    """A new TAP device in a namespace; it exists as long as the descriptor is open."""
    with inside(namespace):
        fd = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return fd


def relay(left: int, right: int, link: Link) -> None:
    """Carry frames between two TAP descriptors for ever."""
    lines = {left: (Line(link, link.seed), right), right: (Line(link, link.seed + 1), left)}
    while True:
        deadlines = [due for line, _ in lines.values() if (due := line.next_deadline()) is not None]
        wait_s = max(0, min(deadlines) - time.monotonic_ns()) / 1e9 if deadlines else None
        for fd in readable([left, right], wait_s):
            _read(fd, lines[fd][0])
        now_ns = time.monotonic_ns()
        for line, target in lines.values():
            for frame in line.take_due(now_ns):
                _write(target, frame)


def _read(fd: int, line: Line) -> None:
    for _ in range(BATCH):
        try:
            frame = os.read(fd, FRAME_MAX)
        except OSError:  # nothing left, or a device that is down
            return
        line.on_frame(frame, time.monotonic_ns())


def _write(fd: int, frame: bytes) -> None:
    try:
        os.write(fd, frame)
    except OSError:  # a device that is down carries nothing
        return


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="relay", description="Join two new TAP devices by a slow wire.")
    parser.add_argument("ends", nargs=4, metavar="NAME", help="namespace and device of each end")
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--jitter-ms", type=float, default=0.0)
    parser.add_argument("--loss", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--reorder", action="store_true")
    a = parser.parse_args(argv)
    left, right = open_tap(a.ends[0], a.ends[1]), open_tap(a.ends[2], a.ends[3])
    print("ready", flush=True)
    relay(left, right, Link(a.delay_ms, a.jitter_ms, a.loss, a.seed, not a.reorder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
