"""A peer portal with `<udp>`, and a companion of the test at the other end: what that hears, and when."""

from __future__ import annotations

import socket
from pathlib import Path
from tempfile import mkdtemp

import pytest

from dro.bus.messages import Role
from dro.proto.peerlink.messages import Hello, hello, read_hello
from dro.sqn import MASK
from dro.transport import mmsg
from dro.transport.runs import RunTable
from dro.transport.sockets import OS_SOCKETS
from dro.wire import lbtru
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.codes import MessageType
from dro.wire.lbmc.data_blocks import SrcIdx
from dro.wire.transport import NCF_RX_DELAY
from portals.peer.process.portal import PeerPortal
from tests.builders.dro_file import load
from tests.fakes.um_contexts import Stepper
from tests.fakes.worker import FakeWorker
from tests.rigs.site import reserve_block

SESSION = 7
DATA = lbmc.encode(lbmc.Message(MessageType.MESSAGE, 1, 0, (SrcIdx(1),), b"x" * 100))
MESSAGES = 100
TICK_NS = 10**7


class _Companion:
    def __init__(self, stepper: Stepper, first_port: int) -> None:
        """The portal has that port for UDP, and the companion the next one."""
        self.stepper = stepper
        self.listener = socket.create_server(("127.0.0.1", 0))
        self._to, self._port = ("127.0.0.1", first_port), first_port + 1
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(("127.0.0.1", first_port + 1))
        self._udp.setblocking(False)
        self._tcp = socket.socket()
        self._session = 0
        self.heard: list[tuple[int, str, tuple[int, ...]]] = []
        self.ended: list[int] = []

    def greet(self) -> None:
        """Take the next connection."""
        self.listener.settimeout(0)
        self._tcp.close()
        while True:
            self.stepper.run(10)
            try:
                self._tcp, _ = self.listener.accept()
                break
            except BlockingIOError:
                continue
        self.stepper.settle()
        greeting = read_hello(lbmc.decode(self._tcp.recv(4096)))
        assert greeting is not None
        self._session = greeting.udp_session
        self._tcp.sendall(hello(Hello(b"companion", b"12345678", udp_port=self._port, udp_session=SESSION)))
        self._tcp.setblocking(False)

    def run(self, milliseconds: int) -> None:
        for _ in range(0, milliseconds, 10):
            self.stepper.run(10)
            self._hear()

    def _hear(self) -> None:
        now = self.stepper.clock.now_ns() // TICK_NS
        while True:
            try:
                packet = lbtru.decode(self._udp.recv(65536))
            except BlockingIOError:
                break
            sqns = getattr(packet, "sqns", ()) or (getattr(packet, "sqn", 0), getattr(packet, "flags", 0))
            self.heard.append((now, type(packet).__name__, sqns))
        try:
            if not self._tcp.recv(1 << 16) and now not in self.ended and len(self.ended) < 2:
                self.ended.append(now)
                self._tcp.close()
        except OSError:
            pass

    def send(self, *packets: lbtru.Packet) -> None:
        for packet in packets:
            self._udp.sendto(lbtru.encode(packet), self._to)

    def data(self, *sqns: int) -> None:
        self.send(*[lbtru.Data(sqn, 0, payload=DATA, options=(lbtru.sid_option(SESSION),)) for sqn in sqns])

    def ask_for(self, *sqns: int) -> None:
        self.send(lbtru.Nak(sqns, options=(lbtru.sid_option(self._session),)))

    def answer(self) -> None:
        self.send(lbtru.SessionMessage(0, MASK, 0, lbtru.FLAG_SYN, options=(lbtru.sid_option(SESSION),)))

    def confirm(self, sqn: int) -> None:
        self.send(lbtru.Ncf(0, NCF_RX_DELAY, 0, (sqn,), options=(lbtru.sid_option(SESSION),)))

    def close(self) -> None:
        for sock in (self.listener, self._tcp, self._udp):
            sock.close()


def datagrams(text: str, folder: Path) -> dict[str, object]:
    """The first peer of the file: its first connection is not answered by UDP, its second one is."""
    first_port, guard = reserve_block(2)
    stepper = Stepper()
    companion = _Companion(stepper, first_port)
    config = load(text.format_map({"udp_port": first_port}))
    original = OS_SOCKETS.connecting

    def connecting(peer: tuple[str, int], interface: str, **options: object) -> socket.socket:
        return original(companion.listener.getsockname()[:2], "127.0.0.1", **options)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(OS_SOCKETS, "connecting", connecting)
        patched.setattr("random.randrange", lambda n: 0)
        patched.setattr("random.random", lambda: 0.5)
        here = Path(mkdtemp(dir=folder))
        portal = PeerPortal(FakeWorker(stepper.loop, here, 1, "P", Role.PEER).ctx, config.peers[0], config)
        try:
            return _life(portal, companion)
        finally:
            portal.close()
            companion.close()
            guard.close()


def _life(portal: PeerPortal, companion: _Companion) -> dict[str, object]:
    companion.greet()
    companion.run(2500)
    companion.greet()
    companion.run(20)
    reads: list[int] = []

    class Counting(mmsg.DatagramBatch):
        def receive(self, fd: int, most: int = mmsg.BATCH) -> int:
            count = super().receive(fd, most)
            reads.append(count)
            return count

    assert portal._udp is not None
    datagrams = portal._udp._datagrams
    assert datagrams is not None
    datagrams._batch = Counting()
    buffers = [datagrams._bound.getsockopt(socket.SOL_SOCKET, one) for one in (socket.SO_RCVBUF, socket.SO_SNDBUF)]
    companion.answer()
    companion.run(20)
    companion.data(*range(30), 31)  # one is missing
    companion.run(600)
    companion.confirm(30)
    companion.run(1200)
    _send(portal, companion)
    companion.ask_for(*range(20))
    companion.run(60)
    companion.run(1500)
    companion.ask_for(MESSAGES - 1)
    companion.run(60)
    companion.ask_for(MESSAGES - 1)
    companion.run(3000)
    return {"buffers": buffers, "reads": reads, "heard": companion.heard, "ended": companion.ended}


def _send(portal: PeerPortal, companion: _Companion) -> None:
    """Messages of 1,000 bytes, each in a packet of its own, as fast as they are taken within two seconds."""
    sender, sqn = portal.sender, 0
    sender.topics[1] = 1
    for _ in range(200):
        while sqn < MESSAGES:
            table = RunTable()
            table.put(1, sqn, 1, 0, 1012, 1012, 0)
            if not sender.send_batch(bytearray(lbmc.HEADER.pack(0, 0, 1012, 1, sqn) + bytes(1000)), table, 0):
                break
            sqn += 1
        companion.run(10)
