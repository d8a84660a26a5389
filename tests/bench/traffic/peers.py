"""What the DRO is compared with: the naive forwarder, and two NATS servers joined by a leaf-node connection."""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from dro.transport.sockets import ip_number
from dro.wire.source_string import LbtrmAddress, TcpAddress
from tests.bench.traffic.generator import Load
from tests.bench.traffic.resolution import Topic
from tests.bench.traffic.workload import Contestant, Workload, describe_source
from tests.rigs.site import ROOT, reserve_block

SIZE: Final = 300
"""The nearest single size: the mean of the mixed sizes is about 350 bytes."""
NATS: Final = "nats-server"
STARTED_S: Final = 10.0


def find_nats() -> str | None:
    return shutil.which(NATS) or shutil.which(NATS, path="/usr/sbin:/usr/local/sbin")


@contextmanager
def _process(command: Sequence[str], log: Path) -> Iterator[int]:
    with log.open("ab") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
    try:
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_listening(port: int, log: Path) -> None:
    deadline = time.monotonic() + STARTED_S
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"nothing listens on port {port}: {log.read_text()}")


def _wait_arriving(load: Load) -> None:
    """Until messages go all the way."""
    deadline = time.monotonic() + STARTED_S
    while not load.counts().received[0]:
        if time.monotonic() > deadline:
            raise TimeoutError("nothing arrives")
        load.tell("resume 1")
        time.sleep(0.05)
    load.tell("pause")


def _workload(name: str, kind: str, window: int) -> Workload:
    return Workload(name, transport=kind, topics=1, sessions=1, sizes=(SIZE,), window=window)


@contextmanager
def naive_forwarder(program: Path, folder: Path, window: int) -> Iterator[Contestant]:
    """The generator sends it the datagrams of a source of one topic."""
    with ExitStack() as stack:
        base, guard = reserve_block(2)
        stack.callback(guard.close)
        net = f"239.{193 + base // 256 % 62}.{base % 256}"
        log = folder / "naive.log"
        ends = (f"{net}.1:{base}", f"{net}.2:{base + 1}")
        pid = stack.enter_context(_process((sys.executable, "-m", "tests.bench.traffic.naive_forwarder", *ends), log))
        load = stack.enter_context(Load(program))
        address = LbtrmAddress(ip_number("127.0.0.1"), ip_number(f"{net}.1"), random.randrange(1 << 32), base, 1)
        describe_source(load, _workload("", "plain", window), [address], [Topic(b"t", address, 1)])
        load.tell("sink", f"join {net}.2 {base + 1}", "start")
        _wait_arriving(load)
        yield Contestant(f"naive forwarder, {SIZE} B", load, {"forwarder": pid})


@contextmanager
def nats_pair(program: Path, folder: Path, window: int) -> Iterator[Contestant]:
    """The generator publishes to one server and has subscribed at the other."""
    server = find_nats()
    assert server is not None
    with ExitStack() as stack:
        base, guard = reserve_block(3)
        stack.callback(guard.close)
        log = folder / "nats.log"
        hub, leaf = folder / "hub.conf", folder / "leaf.conf"
        hub.write_text(f'listen: "127.0.0.1:{base}"\nleafnodes {{ listen: "127.0.0.1:{base + 2}" }}\n')
        remote = f'{{ url: "nats-leaf://127.0.0.1:{base + 2}" }}'
        leaf.write_text(f'listen: "127.0.0.1:{base + 1}"\nleafnodes {{ remotes: [ {remote} ] }}\n')
        pids = {}
        for name, config, port in (("hub", hub, base), ("leaf", leaf, base + 1)):
            pids[name] = stack.enter_context(_process((server, "-c", str(config)), log))
            _wait_listening(port, log)
        load = stack.enter_context(Load(program))
        address = TcpAddress(ip_number("127.0.0.1"), base)
        describe_source(load, _workload("", "nats", window), [address], [Topic(b"t", address, 1)])
        load.tell("sink", f"connect 127.0.0.1 {base + 1} 0", "start")
        _wait_arriving(load)
        yield Contestant(f"NATS leaf pair, {SIZE} B", load, pids)
