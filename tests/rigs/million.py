"""Two DROs, traffic that is counted at both ends, and everything that can become of a message on its way.

A source in TRD 1 and receivers in TRD 2 and 3 are those of the load generator; its LBT-RM datagrams have one message
each. DRO A joins TRD 1 and 4, DRO B joins TRD 2 and 3. TRD 3 has datagrams that are too small for some of the messages;
TRD 4 has TCP, and a receiver that can be told not to read. A second source in TRD 1 has a topic that an access control
list keeps out, on the session of a topic that is let in, and loses datagrams for good.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from dro.loop import Loop
from dro.metrics.slots import Slot
from dro.transport.lbtrm.sender import LbtrmSender
from dro.transport.sockets import ip_text
from dro.um.fragment.context import FragmentContext
from dro.um.fragment.own_source import FragmentSource
from dro.um.message.client_config import Config
from dro.wire.lbmc import message as lbmc
from dro.wire.lbtrm import DATA_HEADER
from dro.wire.source_string import TcpAddress
from tests.bench.traffic.generator import Counts, Load
from tests.bench.traffic.resolution import Channel, Origin, Seeker, resolve
from tests.bench.traffic.workload import (
    GROUP_LOW,
    UNLIMITED,
    Workload,
    addresses,
    describe_sink,
    describe_source,
    topics_of,
    wait_flowing,
)
from tests.fakes.um_contexts import RecordingSink
from tests.rigs.books import Books, books_of
from tests.rigs.figures import Figures, figures
from tests.rigs.loaded import Loaded
from tests.rigs.network import PATIENT, Plan, Ports
from tests.rigs.site import ROOT, drained, workers_of
from tests.rigs.web import fetch

DROS: Final[Ports] = {"A": [1, 4, "B"], "B": [2, 3, "A"]}
SMALL: Final = 500  # datagrams of TRD 3
LARGE: Final = 700  # payload of some messages
SIZES: Final = (*[64] * 9, LARGE)
PLAIN: Final = b"other.plain"
SECRET: Final = b"other.secret"
ACL: Final = (
    f'<acl><inbound><ace match="reject"><topic>{SECRET.decode()}</topic></ace>'
    '<ace match="accept"><pcre-pattern>.*</pcre-pattern></ace></inbound></acl>'
)
NAKS_MS: Final = 3000  # then a proxy receiver gives up
RESTS_S: Final = 0.7  # what has not changed for so long is at rest
MOVING: Final = (Slot.TOPIC_RCVD, Slot.NO_TOPIC_RCVD, Slot.SENT, Slot.UNRECOVERABLE, Slot.NAKS_SENT, Slot.RETRANSMITTED)
_SESSION: Final = struct.Struct("!BBHBBHI")  # what a TCP receiver says first


class Reader:
    """A TCP receiver of TRD 4 that reads while it may; counts messages and their bytes."""

    def __init__(self) -> None:
        self.messages = self.nbytes = 0
        self._may_read = threading.Event()
        self._may_read.set()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.go_on()
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def connect(self, address: TcpAddress) -> bool:
        """Hear a session; False when it is gone."""
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)  # soon full
        try:
            sock.connect((ip_text(address.ip), address.port))
            sock.sendall(_SESSION.pack(8, 0x6B, _SESSION.size, 0xFF, 8, 0, address.session_id))
        except OSError:
            sock.close()
            return False
        self._sockets.append(sock)
        self._threads.append(threading.Thread(target=self._read, args=(sock,)))
        self._threads[-1].start()
        return True

    def stop_reading(self) -> None:
        self._may_read.clear()

    def go_on(self) -> None:
        self._may_read.set()

    def _read(self, sock: socket.socket) -> None:
        left = b""
        with sock, contextlib.suppress(ConnectionError):
            while self._may_read.wait() and (data := sock.recv(1 << 18)):
                left = self._count(left + data)

    def _count(self, data: bytes) -> bytes:
        """Count what is whole; the rest."""
        at = 0
        while len(data) - at >= 4:
            length = int.from_bytes(data[at + 2 : at + 4], "big")
            if length > len(data) - at:
                break
            at += length
            self.messages += 1
            self.nbytes += length
        return data[at:]


class OtherSource:
    """The second source of TRD 1: topics that share an LBT-RM session, which repairs nothing."""

    def __init__(self, plan: Plan) -> None:
        self._loop = Loop()
        file = plan.folder / "other.cfg"
        group = f"source transport_lbtrm_multicast_address {plan.net(1)}.40\n"
        file.write_text(plan.config(1).read_text() + group)
        self._context = FragmentContext(Config.load(file).options, self._loop, sink=RecordingSink())
        self._sources = {topic: self._context.open_source(topic) for topic in (PLAIN, SECRET)}
        self._sqn = dict.fromkeys(self._sources, 0)
        (self._transport,) = {source.transport for source in self._sources.values()}
        assert isinstance(self._transport, LbtrmSender)
        self._loop.remove_reader(self._transport._control_socket)

    def close(self) -> None:
        self._context.close()
        self._loop.close()

    def step(self) -> None:
        self._loop.run_once(0)

    def send(self, topic: bytes) -> None:
        assert self._transport.send_message(self._message(self._sources[topic], topic), self._loop.now_ns())

    def lose(self) -> None:
        """A message of the topic that is let in does not leave, and its number is used up."""
        transport = self._transport
        assert isinstance(transport, LbtrmSender)
        datagram = bytearray(DATA_HEADER) + self._message(self._sources[PLAIN], PLAIN)
        transport._write_headers(datagram, (0,))
        transport.core.on_sent_mixed([len(datagram)], [0], datagram, self._loop.now_ns())

    def _message(self, source: FragmentSource, topic: bytes) -> bytes:
        payload = b"%s %d" % (topic, self._sqn[topic])
        header = lbmc.HEADER.pack(0, 0, lbmc.HEADER.size + len(payload), source.topic_index, self._sqn[topic])
        self._sqn[topic] += 1
        return header + payload


class Million:
    """The running rig, paused: everything flows, and `other` is joined."""

    def __init__(self, plan: Plan, load: Load, reader: Reader, other: OtherSource) -> None:
        self.plan, self.load, self.reader, self.other = plan, load, reader, other
        self.dros: dict[str, subprocess.Popen[bytes]] = {}
        self.origin: Origin
        self.seekers: dict[int, Seeker] = {}
        self._heard: set[TcpAddress] = set()

    def step(self) -> None:
        """What applications do between messages, and the TCP receiver when there is another session."""
        self.origin.step()
        self.other.step()
        for seeker in self.seekers.values():
            seeker.step()
        for address in self.tcp_sessions() - self._heard:
            if self.reader.connect(address):
                self._heard.add(address)

    def tcp_sessions(self) -> set[TcpAddress]:
        found = {tir.transport for tir in self.seekers[4].found.values()}
        return {address for address in found if isinstance(address, TcpAddress)}

    def wait(self, holds: Callable[[], object], what: str, seconds: float = 40) -> None:
        """Until it holds. Raises: AssertionError."""
        until = time.monotonic() + seconds
        while not holds():
            self.step()
            for name, process in self.dros.items():
                assert process.poll() is None, f"{name} ended\n{self.logs()}"
            assert time.monotonic() < until, f"not within {seconds} s: {what}; {self.load.counts()}\n{self.logs()}"
            time.sleep(0.002)  # between two looks

    def logs(self) -> str:
        return "\n".join(path.read_text()[-3000:] for path in sorted(self.plan.folder.glob("?.log")))

    @contextmanager
    def books(self) -> Iterator[list[Books]]:
        with ExitStack() as stack:
            yield [stack.enter_context(books_of(p.pid, len(DROS[name]))) for name, p in self.dros.items()]

    def portals(self) -> dict[str, Figures]:
        """All counters of all portals."""
        names = [(dro, f"{dro}-{port}") for dro, ports in DROS.items() for port in ports]
        return {name: figures(self.plan.web(dro), name) for dro, name in names}

    def settle(self) -> Counts:
        """Wait until nothing is on its way; the counts of the load."""
        with self.books() as books:
            before: object = None
            while True:
                self.wait(lambda: all(drained(of_one) for of_one in books), "books")
                moved = (of_one[n, slot] for of_one in books for n in of_one.pages for slot in MOVING)
                now = (self.load.counts(), self.reader.messages, *moved)
                if now == before:
                    return self.load.counts()
                before, until = now, time.monotonic() + RESTS_S
                self.wait(lambda: time.monotonic() > until, "time passes")  # noqa: B023 - called at once

    def kill(self, dro: str, worker: str) -> None:
        """Kill a worker as `kill -9` does, and wait until it lives again and everything flows."""
        parent = self.dros[dro].pid
        pid = workers_of(parent)[worker]
        os.kill(pid, signal.SIGKILL)
        self.wait(lambda: workers_of(parent).get(worker, pid) != pid, f"another {worker}")
        if worker == "monitor":
            self.wait(lambda: fetch(self.plan.web(dro), "/readyz")[0] == 200, "its answer")
        self.load.tell("mark")
        self.wait(lambda: self.load.counts().topics >= len(self.seekers[2].wanted), f"a flow after {dro} {worker}")


@contextmanager
def million(program: Path, folder: Path, workload: Workload) -> Iterator[Million]:
    """Start it all; returns when everything flows, paused. `program`: of `tests.bench.traffic.generator`."""
    with ExitStack() as stack:
        plan = Plan(
            folder, DROS, transport={1: "lbtrm", 2: "lbtrm", 3: "lbtrm", 4: "tcp"}, portal_xml={"A-1": ACL},
            daemon=PATIENT, has_monitors=True,
        )  # fmt: skip
        stack.callback(plan.close)
        _write_options(plan, workload)
        load = stack.enter_context(Load(program))
        sessions = addresses(workload, plan)
        topics = topics_of(workload, sessions)
        describe_source(load, workload, sessions, topics)
        other = OtherSource(plan)
        stack.callback(other.close)
        made = Million(plan, load, stack.enter_context(Reader()), other)
        for dro in DROS:
            with (folder / f"{dro}.log").open("ab") as log:
                command = [sys.executable, "-m", "supervisor.main", str(plan.file(dro))]
                made.dros[dro] = Loaded(command, cwd=ROOT, stdout=log, stderr=log)
            stack.callback(_end, made.dros[dro])
        channels = {trd: Channel(f"{plan.net(trd)}.1", plan.port(trd), trd, is_strict=False) for trd in plan.trds}
        for channel in channels.values():
            stack.callback(channel.close)
        names = [topic.name for topic in topics]
        made.origin = Origin(channels[1], topics)
        made.seekers = {2: Seeker(channels[2], names), 3: Seeker(channels[3], names), 4: Seeker(channels[4], names)}
        resolve(made.origin, list(made.seekers.values()), 60)
        for trd in (2, 3):
            describe_sink(load, plan, trd, workload.sessions, sessions)
        load.tell("start")
        wait_flowing(load, workload)
        for dro in DROS:
            made.wait(lambda: fetch(plan.web(dro), "/readyz")[0] == 200, "the monitor")  # noqa: B023 - called at once
        _find_other(made)
        made.settle()
        yield made


def _write_options(plan: Plan, workload: Workload) -> None:
    more = {
        1: f"receiver transport_lbtrm_nak_generation_interval {NAKS_MS}\n",
        3: f"context transport_lbtrm_datagram_max_size {SMALL}\n",
        4: "source transport_tcp_sender_socket_buffer 65536\ncontext transport_tcp_maximum_ports 1\n",
    }
    for trd in plan.trds:
        high = f"{plan.net(trd)}.{GROUP_LOW + workload.sessions - 1}"
        pool = f"context transport_lbtrm_multicast_address_high {high}\n"
        with plan.config(trd).open("a") as file:
            file.write(UNLIMITED + pool + more.get(trd, ""))


def _find_other(made: Million) -> None:
    """Until TRD 4 hears the other source, whose second topic it wants as well, in vain."""
    seeker = made.seekers[4]
    seeker.wanted |= dict.fromkeys((PLAIN, SECRET))
    asked_s = 0.0

    def is_heard() -> bool:
        nonlocal asked_s
        if time.monotonic() > asked_s:
            asked_s = time.monotonic() + 0.5
            seeker.query()
        return PLAIN in seeker.found and len(made.tcp_sessions()) == 1

    made.wait(is_heard, "the other source")
    made.wait(lambda: figures(made.plan.web("A"), "A-1")["TOPICS_NOT_IN"] == 1, "a topic that is kept out")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
