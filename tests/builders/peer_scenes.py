"""Scenes of peer portals: one that runs, with a socket of the test at the other end; what it does as plain data."""

from __future__ import annotations

import socket
from pathlib import Path
from tempfile import mkdtemp

import pytest

from dro.bus.messages import Role
from dro.clock import s
from dro.config.dro_xml.model import DroConfig, PeerConfig
from dro.errors import DroError
from dro.proto.peerlink.messages import (
    Hello,
    SourceRecord,
    canary_of,
    canary_response,
    hello,
    read_hello,
    source,
)  # fmt: skip
from dro.proto.peerlink.session import DataPathState, LinkSession, SendCanary
from dro.proto.unicast.connections import Outcome
from dro.transport.runs import RunTable
from dro.transport.sockets import OS_SOCKETS
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.dro_blocks import Domain, TnwgKeepalive
from portals.peer.options import CANARY_BYTES, options_of
from portals.peer.process.portal import PeerPortal
from tests.builders.dro_file import load
from tests.fakes.um_contexts import Stepper
from tests.fakes.worker import FakeWorker
from tests.rigs.certificates import Authority

SECONDS = 60
SOURCES = 40
TALK = lbmc.encode(lbmc.control_message(Domain(domain_id=1)))


def certificates(folder: Path) -> dict[str, str]:
    """Paths by the names that stand in the probes."""
    folder.mkdir(exist_ok=True)
    one, other = Authority(folder, "one"), Authority(folder, "other")
    found = {"one": one.trusted, "other": other.trusted}
    for name, password in (("a", ""), ("b", ""), ("c", "secret")):
        found[f"{name}_pem"], found[f"{name}_key"] = one.leaf(name, password=password)
    return found


def link(text: str, folder: Path) -> dict[str, object]:
    """The first peer of the file for a minute, with a companion that greets it, falls silent, and then refuses."""
    config = load(text.format_map(certificates(folder / "tls")))
    stepper, here = Stepper(), Path(mkdtemp(dir=folder))
    made: list[object] = []
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()[:2]
    original = OS_SOCKETS.connecting

    def connecting(peer: tuple[str, int], interface: str, **options: object) -> socket.socket:
        made.append((stepper.clock.now_ns() // 10**7, peer, interface, options))
        sock = original(address, "127.0.0.1", **options)  # type: ignore[arg-type]
        opened.append(sock)
        return sock

    opened: list[socket.socket] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(OS_SOCKETS, "connecting", connecting)
        patched.setattr("random.randrange", lambda n: 0)
        try:
            portal = PeerPortal(FakeWorker(stepper.loop, here, 1, "P", Role.PEER).ctx, config.peers[0], config)
        except DroError as e:
            listener.close()
            return {"refused": str(e)}
        try:
            return {
                "address": portal._connector.address,
                **_life(portal, config.peers[0], stepper, listener, opened, made),
            }
        finally:
            portal.close()
            for sock in (listener, *opened):
                sock.close()


def _life(
    portal: PeerPortal,
    config: PeerConfig,
    stepper: Stepper,
    listener: socket.socket,
    opened: list[socket.socket],
    made: list[object],
) -> dict[str, object]:
    stepper.settle()
    if config.tcp.initiator is None:
        return {}
    companion, _ = listener.accept()
    listener.close()
    opened.append(companion)
    stepper.settle()
    said = companion.recv(4096)
    if config.tcp.tls is not None:
        return {"tls": said[:1] == b"\x16", "suites": _suites(said)}
    options = {
        name: opened[0].getsockopt(level, option)
        for name, level, option in (
            ("receive buffer", socket.SOL_SOCKET, socket.SO_RCVBUF),
            ("send buffer", socket.SOL_SOCKET, socket.SO_SNDBUF),
            ("keepalive", socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            ("nodelay", socket.IPPROTO_TCP, socket.TCP_NODELAY),
        )
    }
    greeting = read_hello(lbmc.decode(said))
    assert greeting is not None
    own = hello(type(greeting)(b"companion", b"12345678", fast_ms=greeting.fast_ms))
    records = [SourceRecord(n, 1, b"%d" % n, bytes(31) + bytes([n]), n) for n in range(1, SOURCES + 1)]
    companion.sendall(own + b"".join(map(source, records)))
    stepper.settle()
    assert portal.connection is not None
    taken = len(portal.core.own.seen)
    outcomes: list[Outcome] = []
    for _ in range(200):
        portal.send_unicast(1, bytes(1000), outcomes.append)
    batches = _batches(portal, stepper)
    companion.setblocking(False)
    heard = []
    for number in range(SECONDS * 2):
        if number < SECONDS // 2:
            companion.sendall(TALK)
        stepper.run(500)
        try:
            heard.append((stepper.clock.now_ns() // 10**8, len(companion.recv(1 << 20))))
        except BlockingIOError:
            continue
    return {
        **options, "compression": greeting.compression, "sources": taken, "unicast": outcomes.count(Outcome.SENT),
        "batches": batches, "heard": heard, "attempts": made,
    }  # fmt: skip


def canaries(text: str, folder: Path) -> list[tuple[int, object]]:
    """The dialogue for a minute: when it sends canaries, answered for 20 s, and what it takes the link for."""
    options = options_of(load(text).peers[0], bytes(CANARY_BYTES))
    session = LinkSession(Hello(b"A", bytes(8)), options, 0)
    session.on_message(hello(Hello(b"B", b"12345678", has_canaries=True)), 0)
    seen: list[tuple[int, object]] = []
    while (now_ns := session.next_deadline()) is not None and now_ns < s(SECONDS):
        session.on_received(now_ns)
        session.on_timer(now_ns)
        for effect in session.take_effects():
            seen.append((now_ns, effect.is_so if isinstance(effect, DataPathState) else type(effect)))
            if isinstance(effect, SendCanary) and now_ns < s(20):
                message = lbmc.decode(effect.message)
                query = message.get(TnwgKeepalive)
                assert query is not None
                session.on_message(canary_response(query, canary_of(message)), now_ns)
    return seen


def _suites(client_hello: bytes) -> bytes:
    """The cipher suites in the first message of TLS."""
    at = 43 + 1 + client_hello[43]
    size = int.from_bytes(client_hello[at : at + 2], "big")
    return client_hello[at + 2 : at + 2 + size]


def _batches(portal: PeerPortal, stepper: Stepper) -> list[tuple[int, int]]:
    """When so many batches have left, of 5, 30 and 1 messages of 1,000 bytes."""
    sender, found = portal.sender, []
    sender.topics[1] = 1
    for count in (5, 30, 1):
        table = RunTable()
        buffer = bytearray()
        for sqn in range(count):
            table.put(1, sqn, 1, len(buffer), 1012, 1012, 0)
            buffer += lbmc.HEADER.pack(0, 0, 1012, 1, sqn) + bytes(1000)
        sender.send_batch(buffer, table, 0)
        sender.flush()
        for _ in range(40):
            found.append((stepper.clock.now_ns() // 10**7, sender.counters.batch_bytes.count))
            stepper.run(10)
    return found


def wanted_name(config: DroConfig) -> object:
    """What the streams of the first peer compare the companion's certificate with."""
    tls = config.peers[0].tcp.tls
    assert tls is not None
    return tls.peer_name
