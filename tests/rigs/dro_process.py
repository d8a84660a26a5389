"""A DRO whose workers do nothing but tell what happens to them: the real parent, the real bus, real processes.

Run as a program: `python -m tests.rigs.dro_process DIRECTORY PING_MS NAME...`. Each NAME is a worker, called after
what it does (see `BEHAVIOURS`), and asked each PING_MS whether it lives; events are lines of JSON in DIRECTORY/events,
appended whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

from dro.bus.actor import WorkerContext
from dro.bus.descriptors import ADDRESSED, BatchDescriptor, DescriptorWriter
from dro.bus.messages import ForwardsAgain, PeerDown, PeerUp, Role
from dro.clock import ms, s
from dro.errors import ResourceError
from dro.log.setup import set_up
from dro.metrics.slots import Slot as CounterSlot
from dro.shared_memory.ring import RingReader
from portals.datapath.addressed import AddressedData
from portals.datapath.descriptor import BatchKind
from portals.datapath.egress import Egress
from portals.datapath.intake import Intake
from supervisor.parent import pings, succession
from supervisor.parent.parent import Parent
from supervisor.parent.workers import WorkerSpec

RING_BYTES: Final = 1 << 16
GREETINGS: Final = 3  # counter slot


class Recorder:
    """Appends what a worker sees to the file that the test reads."""

    def __init__(self, directory: Path, ctx: WorkerContext) -> None:
        self._fd = os.open(directory / "events", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._who = {"worker": ctx.name, "incarnation": ctx.incarnation, "pid": os.getpid()}

    def note(self, what: str, **details: object) -> None:
        os.write(self._fd, (json.dumps({"what": what, **self._who, **details}) + "\n").encode())


class Listener:
    """In place of an egress: tells what it gets."""

    def __init__(self, note: Callable[..., None]) -> None:
        self._note = note
        self._rings: dict[int, RingReader | None] = {}

    def on_ring(self, worker: int, ring: RingReader | None) -> None:
        self._rings[worker] = ring

    def on_batch(self, worker: int, slot: BatchDescriptor) -> None:
        ring = self._rings[worker]
        assert ring is not None
        self._note("data", text=bytes(ring.copy(slot.table, slot.rows) or b"").decode())

    def flush_sessions(self) -> None:
        pass


def run_plain(ctx: WorkerContext, note: Callable[..., None]) -> None:
    """Greets every sibling over the control channel and, through the ring, as source data and as addressed data."""
    ring = ctx.create_ring(RING_BYTES)
    queues = DescriptorWriter(ring)

    def wake(worker: int) -> None:
        if queues.must_wake(worker):
            ctx.channels.wake(worker)

    addressed = AddressedData(ring, ctx.counters, DescriptorWriter(ring, ADDRESSED), wake)
    intake = Intake(cast(Egress, Listener(note)), addressed, ctx.counters)

    def on_peer_up(peer: PeerUp) -> None:
        note("peer up", peer=peer.name, peer_incarnation=peer.incarnation, role=peer.role.name)
        ctx.counters.add(GREETINGS)
        ctx.channels.send_ctl(peer.worker, f"hello from {ctx.name}.{ctx.incarnation}".encode())
        if peer.ring:
            intake.add(peer.worker, ctx.open_ring(peer), ctx.index)
            intake.poll(peer.worker)
        pos = ring.write(f"bytes of {ctx.name}.{ctx.incarnation}".encode())
        queues.put(peer.worker, BatchDescriptor(pos, ring.position - pos, 0, 0, 0))
        wake(peer.worker)
        addressed.send(peer.worker, BatchKind.IMMEDIATE, 0, b"nobody takes this")
        addressed.send(peer.worker, BatchKind.UNICAST, ctx.index, f"mail of {ctx.name}.{ctx.incarnation}".encode())

    def on_peer_down(peer: PeerDown) -> None:
        note("peer down", peer=peer.worker, peer_incarnation=peer.incarnation)
        intake.remove(peer.worker)

    def on_mail(worker: int, domain_id: int, message: memoryview) -> None:
        note("mail", peer=worker, domain=domain_id, text=bytes(message).decode())

    def on_stop() -> None:
        note("stop", strange=ctx.counters[CounterSlot.ADDRESSED_ERROR])
        ctx.finish()

    addressed.handlers[BatchKind.UNICAST] = on_mail
    ctx.on_peer_up = on_peer_up
    ctx.on_peer_down = on_peer_down
    ctx.channels.on_ctl = lambda _, message: note("ctl", text=message.decode())
    ctx.loop.add_poller(intake)
    ctx.on_stop = on_stop
    note("ready", greetings=ctx.counters[GREETINGS])
    ctx.ready()
    ctx.run()


def run_unbindable(ctx: WorkerContext, note: Callable[..., None]) -> None:
    note("refused")
    raise ResourceError("port 12345 is taken", remedy="change request_tcp_port_low")


def run_unbindable_later(ctx: WorkerContext, note: Callable[..., None]) -> None:
    """Runs in its first life and finds its port taken in the second; the third is fine."""
    first = ctx.counters[0]
    ctx.counters.add(0)
    if first == 1:
        run_unbindable(ctx, note)
    run_plain(ctx, note)


def run_failing(ctx: WorkerContext, note: Callable[..., None]) -> None:
    """A bug in the first two lives."""
    lives = ctx.counters[0]
    ctx.counters.add(0)
    if lives < 2:
        raise RuntimeError("a bug\nwith two lines")
    run_plain(ctx, note)


def run_stubborn(ctx: WorkerContext, note: Callable[..., None]) -> None:
    """Hears nothing once it runs: neither messages nor signals."""
    ctx.ready()
    ctx.loop.run_once(0)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGALRM})
    note("ready")
    while True:
        time.sleep(60)


def run_slow(ctx: WorkerContext, note: Callable[..., None]) -> None:
    """Never gets as far as being ready."""
    note("starting")
    ctx.run()


def run_keeping(ctx: WorkerContext, note: Callable[..., None]) -> None:
    """Listens and keeps what connects. A life that goes on reads that and answers; the first one never reads."""
    kept = ctx.kept_sockets
    names = [name.decode() for name in sorted(kept.names())]
    files = sorted(path.name for path in ctx.kept_dir.iterdir())
    mode = oct(ctx.kept_dir.stat().st_mode & 0o777)
    (ctx.kept_dir / f"of {ctx.incarnation}").touch()
    listener = kept.take(b"listener")
    if listener is None:
        listener = socket.create_server(("127.0.0.1", 0))
        kept.keep(b"listener", listener)
    connection = kept.take(b"connection")
    kept.drop_rest()
    if connection is not None:
        note("read", text=connection.recv(100).decode())
        connection.send(b"answer")
    held = [] if connection is None else [connection]

    def accept() -> None:
        held.append(listener.accept()[0])
        kept.keep(b"connection", held[-1])
        kept.keep(b"strange", held[-1])
        note("accepted", socket=os.readlink(f"/proc/self/fd/{held[-1].fileno()}"))

    ctx.loop.add_reader(listener, accept)
    port = listener.getsockname()[1]
    ctx.ready()  # first: who is killed before it is not gone on from
    if ctx.goes_on:
        ctx.report(ForwardsAgain())
    note("ready", goes_on=ctx.goes_on, names=names, files=files, mode=mode, port=port)
    ctx.run()


BEHAVIOURS: Final[dict[str, Callable[[WorkerContext, Callable[..., None]], None]]] = {
    "plain": run_plain,
    "unbindable": run_unbindable,
    "later": run_unbindable_later,
    "failing": run_failing,
    "stubborn": run_stubborn,
    "slow": run_slow,
    "keeping": run_keeping,
}


def spec(directory: Path, name: str, role: Role) -> WorkerSpec:
    """A worker `plain-1` behaves as `plain`."""
    behave = BEHAVIOURS[name.partition("-")[0]]

    def run(ctx: WorkerContext) -> None:
        recorder = Recorder(directory, ctx)
        recorder.note("start")
        behave(ctx, recorder.note)

    return WorkerSpec(name, role, run)


def sockets_of(pid: int | str) -> set[str]:
    """The sockets that a process has open, as /proc names them."""
    found = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that looks
            found.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return {link for link in found if link.startswith("socket:")}


def events(directory: Path) -> list[dict[str, Any]]:
    """What the workers have told so far; a last line that is being written is left out."""
    try:
        lines = (directory / "events").read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


def main(directory: Path, ping_ms: int, names: list[str]) -> int:
    log = set_up("tnwgd")
    pings.PING_INTERVAL_NS = ms(ping_ms)  # type: ignore[misc]

    def plan(workers: tuple[str, ...]) -> list[WorkerSpec]:
        roles = [Role.ROUTE_MANAGER] + [Role.ENDPOINT] * (len(workers) - 1)
        return [spec(directory, name, role) for name, role in zip(workers, roles, strict=True)]

    dro = Parent("test/dro", tuple(names), plan, log, run_base=directory / "run", shm_base=directory / "shm")
    keeping = [name for name in names if name.startswith("keeping")]
    if not keeping:
        return dro.run()
    vars(succession)["LONG_LIFE_NS"] = s(3600)  # no life is long, however slow the machine

    def sockets_of_task() -> list[str]:
        return sorted(sockets_of("self"))

    def on_hangup() -> None:
        """Restart what keeps, as by an operator's order, when a forked task has told what it has inherited.

        It starts clean when there is a file `clean`.
        """

        def restart(result: object) -> None:
            with (directory / "task").open("w") as file:
                json.dump(result, file)
            dro.operations.restart(keeping[0], lambda _: None, clean=(directory / "clean").exists())

        dro.run_forked(sockets_of_task, restart, limit_ns=s(60), what="a look")

    return dro.run(on_hangup=on_hangup)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
