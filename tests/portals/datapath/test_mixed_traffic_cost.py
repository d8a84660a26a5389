"""Mixed traffic may cost more than a stream of equal messages, but not in kind: the work is done by batch.

Real contexts and sockets carry datagrams of a plain socket through both portals in one process. What is counted are
calls of functions, C functions included, per fragment: a number that no other load of the machine changes, and that
grows as soon as a step of the path works fragment by fragment again.
"""

from __future__ import annotations

import contextlib
import random
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

from dro.errors import DecodeError
from dro.transport import sockets
from dro.transport.sockets import OS_SOCKETS
from dro.wire import lbtrm
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.codes import MessageType
from dro.wire.source_string import LbtrmAddress, TcpAddress, TransportAddress
from tests.bench.traffic.resolution import Channel, Origin, Seeker, Topic
from tests.bench.traffic.workload import DATA_PORT, GROUP_LOW, SIZES, Workload, addresses, topics_of
from tests.fakes.um_contexts import Stepper
from tests.rigs.one_process import OneProcess, one_process
from tests.rigs.site import Site

GROUPS = 4  # of the pool of a site
WARM_UP, BATCHES, BATCH = 2, 5, 64 * GROUPS  # a batch for the socket of each group
STEADY = Workload("steady", topics=1, sessions=1, sizes=(200,))
MIXED = Workload("mixed", topics=100, sessions=GROUPS, sizes=SIZES)
HOSTS = Workload("two hosts on each group", topics=100, sessions=GROUPS, hosts=2, sizes=SIZES)
UM_DEFAULT: Final = "source implicit_batching_minimum_length 2048\n"  # sites of tests say one message a datagram
MOST: Final = {
    (STEADY, "lbtrm"): 10,
    (STEADY, "tcp"): 4,
    (MIXED, "lbtrm"): 27,
    (MIXED, "tcp"): 30,
    (HOSTS, "lbtrm"): 34,
    (HOSTS, "tcp"): 42,
}
"""A quarter more than what was counted when the path worked in flat run tables; with objects for each fragment it was
4.6 and 2.2 in a steady stream, 77 to 84 in mixed traffic."""


class Calls:
    """Counts the calls of all functions while it is entered."""

    def __init__(self) -> None:
        self.count = 0

    def _on_event(self, _frame: FrameType, event: str, _arg: Any) -> None:  # noqa: ANN401  # as sys.setprofile has it
        self.count += event in ("call", "c_call")

    @contextmanager
    def counted(self) -> Iterator[None]:
        before = sys.getprofile()
        sys.setprofile(self._on_event)
        try:
            yield
        finally:
            sys.setprofile(before)


class PlainSource:
    """A source of ours: messages by chance, as its workload says, each in a datagram of its own."""

    def __init__(self, workload: Workload, topics: list[Topic]) -> None:
        self._topics = topics
        self._sizes = workload.sizes
        self._rng = random.Random(1)
        self._topic_sqns = dict.fromkeys((topic.name for topic in topics), 0)
        self._sqns = dict.fromkeys((topic.address for topic in topics), 0)
        self._sockets = {address: _socket_of(address) for address in self._sqns}

    def close(self) -> None:
        for sock in self._sockets.values():
            sock.close()

    def send(self, count: int) -> None:
        streams = dict.fromkeys(self._sockets, b"")
        for _ in range(count):
            topic = self._rng.choice(self._topics)
            size = self._rng.choice(self._sizes)
            message = lbmc.HEADER.pack(0, 0, 12 + size, topic.index, self._topic_sqns[topic.name]) + bytes(size)
            self._topic_sqns[topic.name] += 1
            a, sqn = topic.address, self._sqns[topic.address]
            if isinstance(a, LbtrmAddress):
                self._sqns[a] += 1
                data = lbtrm.Data(a.nak_port, a.session_id, sqn, 0, fec_symbol=sqn % 8, payload=message)
                self._sockets[a].send(lbtrm.encode(data))
            else:
                streams[a] += message
        for address, stream in streams.items():
            if stream:
                self._sockets[address].sendall(stream)

    def accept(self) -> None:
        """The connections of the ingress portal, on TCP, in place of the sockets that listen."""
        for address, sock in self._sockets.items():
            if isinstance(address, TcpAddress):
                self._sockets[address], _ = sock.accept()
                sock.close()


def _socket_of(address: TransportAddress) -> socket.socket:
    """What sends to the group of a session, or listens for its receivers; from the host that the session names."""
    assert isinstance(address, LbtrmAddress | TcpAddress)
    ip = sockets.ip_text(address.ip)
    if isinstance(address, TcpAddress):
        return socket.create_server((ip, address.port))
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
    sock.bind((ip, 0))
    sock.connect((sockets.ip_text(address.group), address.dport))
    return sock


class Heard:
    """What the egress portal sends: its groups, or connections to its TCP sessions."""

    def __init__(self, site: Site, found: set[TransportAddress]) -> None:
        self._streams: dict[socket.socket, bytes] = {}
        self._groups: list[socket.socket] = []
        for a in found:
            if isinstance(a, TcpAddress):
                sock = socket.create_connection((sockets.ip_text(a.ip), a.port))
                sock.sendall(lbmc.encode(lbmc.tcp_sid_message(a.session_id)))
                sock.setblocking(False)
                self._streams[sock] = b""
        for n in range(GROUPS if not self._streams else 0):
            group, port = sockets.ip_number(f"{site.net(2)}.{GROUP_LOW + n}"), site.port(2) + DATA_PORT
            self._groups.append(
                OS_SOCKETS.multicast_receiver(group, port, "127.0.0.1", buffer_bytes=8 << 20, option="")
            )

    def close(self) -> None:
        for sock in (*self._groups, *self._streams):
            sock.close()

    def fragments(self) -> int:
        """How many have come since the last call."""
        count = 0
        for sock in self._groups:
            for data in _drained(sock):
                if data[0] == lbtrm.PacketType.DATA:
                    count += sum(1 for _ in lbmc.walk(data, lbtrm.DATA_HEADER, len(data)))
        for sock, rest in self._streams.items():
            stream, end = rest + b"".join(_drained(sock)), 0
            with contextlib.suppress(DecodeError):  # the last message may have come in part
                for at, size in lbmc.walk(stream, 0, len(stream)):
                    count += stream[at] == MessageType.MESSAGE
                    end = at + size
            self._streams[sock] = stream[end:]
        return count


def _drained(sock: socket.socket) -> Iterator[bytes]:
    while True:
        try:
            yield sock.recv(1 << 20)
        except BlockingIOError:
            return


@contextmanager
def flowing(folder: Path, stepper: Stepper, workload: Workload) -> Iterator[tuple[OneProcess, PlainSource, Heard]]:
    """A DRO through which all topics of a workload flow."""
    with ExitStack() as stack:
        dro = stack.enter_context(
            one_process(folder, stepper, 2, transports=dict.fromkeys((1, 2), workload.transport), um={2: UM_DEFAULT})
        )
        site = dro.site
        topics = topics_of(workload, addresses(workload, site))
        source = PlainSource(workload, topics)
        stack.callback(source.close)
        channels = [Channel(f"{site.net(trd)}.1", site.port(trd), trd) for trd in site.trds]
        for channel in channels:
            stack.callback(channel.close)
        origin, seeker = Origin(channels[0], topics), Seeker(channels[1], [topic.name for topic in topics])
        origin.advertise()
        seeker.query()

        def is_resolved() -> bool:
            origin.step()
            seeker.step()
            return seeker.has_all

        dro.until(is_resolved)
        source.accept()
        heard = Heard(site, {tir.transport for tir in seeker.found.values()})
        stack.callback(heard.close)
        stepper.settle()
        yield dro, source, heard


def calls_per_fragment(folder: Path, stepper: Stepper, workload: Workload) -> float:
    with flowing(folder, stepper, workload) as (dro, source, heard):
        calls = Calls()
        for nth in range(WARM_UP + BATCHES):  # sessions begin, and batches find their sizes
            source.send(BATCH)
            if nth == WARM_UP:
                calls.count = 0
            with calls.counted():
                stepper.settle()
        dro.run(20)
        assert heard.fragments() == (WARM_UP + BATCHES) * BATCH
    return calls.count / (BATCHES * BATCH)


@pytest.mark.parametrize(("workload", "transport"), MOST)
def test_calls_per_fragment(tmp_path: Path, stepper: Stepper, workload: Workload, transport: str) -> None:
    found = calls_per_fragment(tmp_path, stepper, replace(workload, transport=transport))
    assert found < MOST[workload, transport]
