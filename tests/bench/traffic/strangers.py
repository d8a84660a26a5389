"""What disturbs a load from outside: a source whose sequence numbers jump, mutated packets for every open port, new
names without end, and a forged message on a session of the load."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from dro.sqn import MASK
from dro.transport.sockets import OS_SOCKETS, ip_number
from dro.wire import lbtrm
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmr import packet as lbmr
from dro.wire.source_string import LbtrmAddress, TcpAddress
from tests.bench.traffic.resolution import Channel, Origin, Seeker, Topic
from tests.bench.traffic.workload import DATA_PORT, GROUP_LOW, NAK_PORTS, TCP_PORTS, Contestant
from tests.rigs.site import PORTS_PER_TRD

VECTORS: Final = Path(__file__).parents[2] / "golden" / "vectors"
LOOPBACK: Final = ip_number("127.0.0.1")
OTHER_HOST: Final = "127.0.0.2"
FOLLOWING: Final = 8  # datagrams behind a jump
OVERHEARD_S: Final = 0.5
BUFFER: Final = 1 << 20
NAMES: Final = 100
FAR_AHEAD: Final = 1 << 30
STRANGE: Final = b"strange"


def vectors(name: str, protocol: str) -> list[bytes]:
    """Recorded packets."""
    records = [json.loads(line) for line in (VECTORS / name).read_text().splitlines()]
    return [bytes.fromhex(record["hex"]) for record in records if record["proto"] == protocol]


def mutations(rng: random.Random, seeds: Sequence[bytes]) -> Iterator[bytes]:
    """Noise, and real packets cut short, changed in some bytes, or with something behind them."""
    while True:
        packet = rng.choice(seeds)
        match rng.randrange(4):
            case 0:
                yield rng.randbytes(rng.randrange(1, 200))
            case 1:
                yield packet[: rng.randrange(len(packet))]
            case 2:
                changed = bytearray(packet)
                for _ in range(rng.randrange(1, 6)):
                    changed[rng.randrange(len(changed))] = rng.randrange(256)
                yield bytes(changed)
            case _:
                yield packet + rng.randbytes(rng.randrange(1, 9000 - len(packet)))


class Stranger:
    """A source of one more topic in TRD 1, which is wanted in TRD 2, on a session of its own."""

    def __init__(self, who: Contestant, address: LbtrmAddress | TcpAddress) -> None:
        assert who.site is not None
        self._channel = Channel(f"{who.site.net(1)}.1", who.site.port(1), 1, is_strict=False)
        self._origin = Origin(self._channel, [Topic(STRANGE, address, 1)])
        (seeker,) = [end for end in who.ends if isinstance(end, Seeker)]
        seeker.wanted[STRANGE] = None
        seeker.query()
        self._origin.advertise()

    def close(self) -> None:
        self._channel.close()

    def step(self) -> None:
        self._origin.step()


class Jumper(Stranger):
    """It leaves sequence numbers out, and repairs nothing."""

    def __init__(self, who: Contestant) -> None:
        assert who.site is not None
        base, group = who.site.port(1), ip_number(f"{who.site.net(1)}.{GROUP_LOW}")
        self._session = LbtrmAddress(LOOPBACK, group, 0x1A3B5, base + DATA_PORT, base + TCP_PORTS - 1)
        super().__init__(who, self._session)
        self._sqn = self._topic_sqn = 0
        self._socket = OS_SOCKETS.multicast_sender(group, self._session.dport, "127.0.0.1", ttl=0, buffer_bytes=BUFFER)

    def close(self) -> None:
        super().close()
        self._socket.close()

    def send(self, jump: int = 0) -> None:
        """One datagram, `jump` sqns and as many topic sqns behind the one before, and some that follow it."""
        session = self._session
        self._sqn, self._topic_sqn = self._sqn + jump & MASK, self._topic_sqn + jump & MASK
        for _ in range(FOLLOWING):
            message = lbmc.HEADER.pack(0, 0, lbmc.HEADER.size + 20, 1, self._topic_sqn) + bytes(20)
            self._socket.send(
                lbtrm.encode(
                    lbtrm.Data(
                        session.nak_port, session.session_id, self._sqn, 0, lbtrm.FLAG_UCAST_NAKS, 3, self._sqn & 7,
                        message,
                    )
                )
            )  # fmt: skip
            self._sqn, self._topic_sqn = self._sqn + 1 & MASK, self._topic_sqn + 1 & MASK


class Mutants:
    """Mutated packets, one at each `send`, in turn to all that a direct link has open to strangers.

    Seeds are recorded packets and those of the load itself. They come from another host: what comes from the host of a
    source, with its session, is that source. A load over TCP gets a source with a mutated stream beside it, and noise
    on the ports of its proxies.
    """

    def __init__(self, who: Contestant, rng: random.Random, *, is_tcp: bool) -> None:
        assert who.site is not None
        site, self._rng = who.site, rng
        self._targets: list[Callable[[], object]] = []
        self._stack = contextlib.ExitStack()
        self._stranger: Stranger | None = None
        for trd in site.trds:
            group, port = f"{site.net(trd)}.1", site.port(trd)
            self._to_group(group, port, [*vectors("lbmr.jsonl", "lbmr"), *overheard(who, group, port)])
        if is_tcp:
            self._streams(who)
            base = site.port(2)
            ports = [*range(base + 1, base + DATA_PORT), *range(base + TCP_PORTS, base + PORTS_PER_TRD)]
            self._targets.append(lambda: self._noise(rng.choice(ports)))
        else:
            seeds = vectors("transports.jsonl", "lbtrm")
            for n in range(2):
                group, port = f"{site.net(1)}.{GROUP_LOW + n}", site.port(1) + DATA_PORT
                self._to_group(group, port, [*seeds, *overheard(who, group, port)])
            self._to_ports(range(site.port(2) + NAK_PORTS, site.port(2) + TCP_PORTS), seeds)

    def close(self) -> None:
        self._stack.close()

    def step(self) -> None:
        if self._stranger is not None:
            self._stranger.step()

    def send(self, nth: int) -> None:
        with contextlib.suppress(OSError):  # of what nobody reads, and what was closed
            self._targets[nth % len(self._targets)]()

    def _to_group(self, group: str, port: int, seeds: Sequence[bytes]) -> None:
        sock = OS_SOCKETS.multicast_sender(ip_number(group), port, OTHER_HOST, ttl=0, buffer_bytes=BUFFER)
        packets = mutations(self._rng, seeds)
        self._stack.callback(sock.close)
        self._targets.append(lambda: sock.send(next(packets)))

    def _to_ports(self, ports: range, seeds: Sequence[bytes]) -> None:
        sock = self._stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        packets = mutations(self._rng, seeds)
        self._targets.append(lambda: sock.sendto(next(packets), ("127.0.0.1", self._rng.choice(ports))))

    def _streams(self, who: Contestant) -> None:
        listener = self._stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.setblocking(False)
        self._stranger = Stranger(who, TcpAddress(LOOPBACK, listener.getsockname()[1], 5))
        self._stack.callback(self._stranger.close)
        messages = mutations(self._rng, vectors("lbmc.jsonl", "lbmc"))
        joined: list[socket.socket] = []

        def send() -> None:
            with contextlib.suppress(BlockingIOError):
                client = self._stack.enter_context(listener.accept()[0])
                client.setblocking(False)
                joined[:] = [client]
            for client in joined:
                client.send(next(messages))

        self._targets.append(send)

    def _noise(self, port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), 1) as sock:
            sock.sendall(self._rng.randbytes(self._rng.randrange(1, 5000)))


class NewNames:
    """Topics that nobody has heard of: asked for in TRD 2, and advertised in TRD 1, `NAMES` in a datagram, in turn."""

    def __init__(self, who: Contestant) -> None:
        assert who.site is not None
        site = who.site
        self._options = lbmr.standard_options(bytes(range(8)), lbmr.SenderType.APPLICATION, 0)
        group = ip_number(f"{site.net(1)}.{GROUP_LOW}")
        self._session = LbtrmAddress(LOOPBACK, group, 0x2A3B5, site.port(1) + DATA_PORT, site.port(1) + TCP_PORTS - 1)
        self._sockets = {
            trd: OS_SOCKETS.multicast_sender(
                ip_number(f"{site.net(trd)}.1"), site.port(trd), OTHER_HOST, ttl=0, buffer_bytes=BUFFER
            )
            for trd in (1, 2)
        }

    def close(self) -> None:
        for sock in self._sockets.values():
            sock.close()

    def send(self, nth: int) -> None:
        names = [b"new.%d.%d" % (nth, n) for n in range(NAMES)]
        if nth % 2:
            tirs = [Topic(name, self._session, nth * NAMES + n).tir() for n, name in enumerate(names)]
            datagrams = lbmr.pack_tirs(tirs, self._options, 65_000)
        else:
            datagrams = lbmr.pack_tqrs(names, self._options, 65_000)
        for datagram in datagrams:
            self._sockets[1 if nth % 2 else 2].send(datagram)


def forge(who: Contestant) -> None:
    """The next datagram of a session of the load, with a message far ahead of its topic: it is taken for the real one.

    Raises: AssertionError when nothing is heard.
    """
    assert who.site is not None
    group, port = f"{who.site.net(1)}.{GROUP_LOW}", who.site.port(1) + DATA_PORT
    sock = OS_SOCKETS.multicast_sender(ip_number(group), port, "127.0.0.1", ttl=0, buffer_bytes=BUFFER)
    with (
        sock,
        OS_SOCKETS.multicast_receiver(ip_number(group), port, "127.0.0.1", buffer_bytes=BUFFER, option="") as receiver,
    ):
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with contextlib.suppress(BlockingIOError):
                heard = lbtrm.decode(receiver.recv(9000))
                if isinstance(heard, lbtrm.Data):
                    message = bytearray(heard.payload)
                    _, _, _, index, sqn = lbmc.HEADER.unpack_from(message)
                    lbmc.HEADER.pack_into(message, 0, 0, 0, len(message), index, sqn + FAR_AHEAD & MASK)
                    forged = replace(heard, sqn=heard.sqn + 1 & MASK, payload=bytes(message))
                    sock.send(lbtrm.encode(forged))
                    return
            who.step()
    raise AssertionError("nothing is sent on the first session of the load")


def overheard(who: Contestant, group: str, port: int) -> list[bytes]:
    """Some of what is said in the group now."""
    found = []
    with OS_SOCKETS.multicast_receiver(ip_number(group), port, "127.0.0.1", buffer_bytes=BUFFER, option="") as receiver:
        until = time.monotonic() + OVERHEARD_S
        while time.monotonic() < until:
            who.step()
            time.sleep(0.005)
            with contextlib.suppress(BlockingIOError):
                found.append(receiver.recv(9000))
    return [packet for packet in found if packet]
