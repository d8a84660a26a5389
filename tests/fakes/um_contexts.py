"""Client contexts for tests: options that collide with nobody, a clock that tests move, a sink that keeps records."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import count
from typing import Any

from dro.clock import NS_PER_MS, NS_PER_S
from dro.loop import Loop
from dro.proto.context.sources import BoundSource
from dro.transport.lbtrm.kind import LbtrmReceivers
from dro.transport.lbtrm.receiver import LbtrmGroup
from dro.transport.runs import KIND_DATA, Run
from dro.transport.session import ReceiverTransport
from dro.um.fragment.receiver_sessions import ReceiverSessions
from dro.um.message.client_config import Config
from tests.fakes.clock import SteppedClock
from tests.fakes.loopback import wait_for_loopback
from tests.fakes.runs import RunSink

PATIENCE_S = 60.0
_serial = count()


def private_config(transport: str, **more: str | int) -> Config:
    """Options on the loopback interface with groups and ports of this process and call alone.

    `more`: further options as `scope__name=value`.
    """
    number = next(_serial)
    pid = os.getpid()
    group = f"239.{192 + (pid >> 8) % 60}.{pid % 256}"
    low = number * 4 % 240
    base = 1500 + (pid * 41 + number * 7) % 7900  # below the blocks of sites
    config = Config.parse(f"""
        context default_interface 127.0.0.1
        context resolver_multicast_interface 127.0.0.1
        context resolver_multicast_address {group}.{low + 1}
        context resolver_multicast_port {base}
        context transport_lbtrm_multicast_address_low {group}.{low + 2}
        context transport_lbtrm_multicast_address_high {group}.{low + 4}
        context transport_lbtrm_source_port_low {base}
        context transport_lbtrm_source_port_high {base + 500}
        context transport_lbtrm_data_rate_limit 300000000
        context transport_lbtrm_retransmit_rate_limit 100000000
        source transport_lbtrm_destination_port {base + 1}
        context transport_tcp_port_low {base}
        context transport_tcp_port_high {base + 500}
        context request_tcp_port_low {base + 501}
        context request_tcp_port_high {base + 1000}
        source transport {transport}
    """)
    for key, value in more.items():
        scope, _, name = key.partition("__")
        config = config.with_(scope, name, value)
    return config


class Stepper:
    """A loop on real sockets and stepped time."""

    def __init__(self) -> None:
        self.clock = SteppedClock(NS_PER_S)
        self.loop = Loop(self.clock)

    def run(self, milliseconds: int, step_ms: int = 10) -> None:
        """Let so much time pass, in steps; whatever is sent in a step arrives in it."""
        for at in range(0, milliseconds, step_ms):
            self.clock.time_ns += step_ms * NS_PER_MS
            if not at or self.loop.run_once(0):  # else nothing was sent, and to ask the kernel takes most of the time
                self.settle()

    def settle(self) -> None:
        """Turn the loop until nothing is left to do at this time.

        A busy kernel hands over later what was sent on loopback, in order; an own datagram shows that nothing is left.
        """
        idle = 0
        while idle < 3:
            if idle == 1:
                wait_for_loopback()
            idle = 0 if self.loop.run_once(0) else idle + 1

    def until(self, is_true: Callable[[], bool], *, limit_ms: int = 60_000, step_ms: int = 10) -> None:
        """Let time pass until something holds; fails after `limit_ms` of it."""
        for _ in range(0, limit_ms, step_ms):
            self.settle()
            if is_true():
                return
            self.run(step_ms, step_ms)
        raise AssertionError(f"not within {limit_ms} ms")


def turn_until(loop: Loop, is_true: Callable[[], bool]) -> None:
    """Turn a loop in real time until something holds; fails after `PATIENCE_S`."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < deadline, "nothing came in time"
        loop.run_once(20 * NS_PER_MS)


class RecordingSink(RunSink):
    """A fragment sink that keeps what it is told."""

    def __init__(self) -> None:
        self.bound: list[BoundSource[Any]] = []
        self.unbound: list[tuple[BoundSource[Any], bool]] = []
        self.began: list[ReceiverTransport] = []
        self.fragments: list[tuple[bytes, int, bytes]] = []  # topic, sqn, LBMC message

    @property
    def current(self) -> list[BoundSource[Any]]:
        gone = {id(source) for source, _ in self.unbound}
        return [source for source in self.bound if id(source) not in gone]

    def on_bound(self, source: BoundSource[Any], now_ns: int) -> None:
        self.bound.append(source)

    def on_runs(self, transport: ReceiverTransport, view: memoryview, runs: list[Run], now_ns: int) -> None:
        for run in runs:
            source = transport.sources.get(run.topic_index)
            if source is None or run.kind != KIND_DATA:
                continue
            for i in range(run.fragments):
                at = run.offset + i * run.stride
                self.fragments.append((source.topic, run.first_sqn + i, bytes(view[at : at + run.length])))

    def on_began(self, transport: ReceiverTransport, now_ns: int) -> None:
        self.began.append(transport)

    def on_unbound(self, source: BoundSource[Any], *, ended: bool, now_ns: int) -> None:
        self.unbound.append((source, ended))


def groups(joined: ReceiverSessions) -> list[LbtrmGroup]:
    """Groups whose sockets are open."""
    receivers = joined.kinds["lbtrm"]
    assert isinstance(receivers, LbtrmReceivers)
    return list(receivers.groups.values())
