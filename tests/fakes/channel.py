"""A TR channel in simulated time: drives resolver cores by their deadlines and records what they send."""

from __future__ import annotations

from typing import TypeVar

from dro.clock import ms
from dro.proto.resolver.core import Resolver
from dro.wire.lbmr import packet as lbmr
from dro.wire.source_string import LbtrmAddress, TcpAddress
from tests.builders.tir_options import tir_options

NS_PER_MS = 1_000_000
B = TypeVar("B")


class Channel:
    """Any number of resolvers that hear each other at once; the packets that they sent, with their times in ms."""

    def __init__(self, *resolvers: Resolver) -> None:
        self.resolvers = resolvers
        self.now_ms = 0.0
        self.sent: list[tuple[float, Resolver, lbmr.Packet]] = []

    def flush(self, at_ms: float) -> None:
        """Deliver what everybody has to say, and the answers to it."""
        self.now_ms = at_ms
        for _ in range(100):
            datagrams = [(r, d) for r in self.resolvers for d in r.take_outgoing()]
            if not datagrams:
                return
            for sender, datagram in datagrams:
                packet = lbmr.decode(datagram)
                self.sent.append((at_ms, sender, packet))
                for r in self.resolvers:
                    r.on_packet(packet, 0x0A000001, ms(at_ms))
        raise AssertionError("the channel does not come to rest")

    def run(self, until_ms: float) -> None:
        """Everything due up to `until_ms`, in order of time."""
        self.flush(self.now_ms)
        at_ns = ms(self.now_ms)
        for _ in range(1_000_000):
            due = [at for r in self.resolvers if (at := r.next_deadline()) is not None]
            if not due or min(due) > ms(until_ms):
                self.now_ms = until_ms
                return
            at_ns = max(at_ns, min(due))
            for r in self.resolvers:
                at = r.next_deadline()
                if at is not None and at <= at_ns:
                    r.on_timer(at_ns)
            self.flush(at_ns / NS_PER_MS)
        raise AssertionError("time does not advance")

    def times(self, sender: Resolver, body: type[B], *, where: str = "") -> list[float]:
        """When `sender` sent bodies of a kind; `where` names a tuple of the body that must not be empty."""
        return [
            at
            for at, who, packet in self.sent
            if who is sender and isinstance(packet.body, body) and (not where or getattr(packet.body, where))
        ]

    def bodies(self, sender: Resolver, body: type[B]) -> list[B]:
        return [p.body for _, who, p in self.sent if who is sender and isinstance(p.body, body)]

    def clear(self) -> None:
        self.sent.clear()


def tir(
    topic: bytes = b"AAA",
    *,
    ip: int = 0x0A000001,
    port: int = 14371,
    session: int = 1,
    index: int = 7,
    otid: int | None = 1,
    cost: tuple[int, int] | None = None,
) -> lbmr.Tir:
    """An advertisement on TCP; `otid` a number that stands for the 32 bytes, `cost` (hops, cost)."""
    options = tir_options(
        otid=None if otid is None else otid.to_bytes(32, "big"),
        cost=None if cost is None else lbmr.Cost(*cost),
        extended=lbmr.ExtendedFunctionality(14392, ip),
    )
    return lbmr.Tir(topic, TcpAddress(ip, port, session), lbmr.TIR_TTL, index, options)


def lbtrm_tir(topic: bytes, session: int, index: int) -> lbmr.Tir:
    address = LbtrmAddress(0x0A000001, 0xEF650301, session, 14400, 12090)
    return lbmr.Tir(topic, address, lbmr.TIR_TTL, index, tir_options(otid=bytes(31) + b"\x01"))


def packet(body: lbmr.Body, *, source_id: bytes = b"stranger", source_type: int = 0, domain_id: int = 0) -> lbmr.Packet:
    return lbmr.Packet(1, lbmr.standard_options(source_id, source_type, domain_id), body)
