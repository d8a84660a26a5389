"""Topic resolution of three real contexts (UM 6.14), replayed: our core in the place of each sends what it sent.

A is a source, R a receiver, W a wildcard receiver. Allowed differences are those of the ticks: the phase of the
original's timers is not known, so what is scheduled may be off by one tick; answers may not be off at all.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dro.clock import ms
from dro.proto.resolver.core import Resolver, ResolverConfig, SourceAd
from dro.proto.resolver.events import SourceFound
from dro.wire.lbmr import packet as lbmr
from tests.builders.udp_capture import read_udp

CAPTURE = Path(__file__).parents[2] / "golden" / "captures" / "um-lbtrm-single-source.pcap"
RESOLUTION_PORT = 12965
A, R, W = 42180, 35101, 54247  # UDP source ports of the three contexts
LATE_MS = 125.0  # one sustaining tick and the lateness of the original


@pytest.fixture(scope="module")
def packets() -> list[tuple[float, int, lbmr.Packet]]:
    """Milliseconds from the first packet, sender, packet."""
    datagrams = [d for d in read_udp(CAPTURE) if d.dport == RESOLUTION_PORT]
    return [((d.time_ns - datagrams[0].time_ns) / 1e6, d.sport, lbmr.decode(d.payload)) for d in datagrams]


class Replay:
    """Our context in the place of one of the original's: hears all others, records when it sends."""

    def __init__(self, resolver: Resolver) -> None:
        self.resolver = resolver
        self.sent: list[tuple[float, lbmr.Body]] = []

    def until(self, at_ms: float) -> None:
        self.flush()
        while (due := self.resolver.next_deadline()) is not None and due <= ms(at_ms):
            self.resolver.on_timer(due)
            self.flush(due / 1_000_000)

    def flush(self, at_ms: float = 0.0) -> None:
        self.sent += [(at_ms, lbmr.decode(raw).body) for raw in self.resolver.take_outgoing()]

    def hear(self, at_ms: float, packet: lbmr.Packet) -> None:
        self.until(at_ms)
        self.resolver.on_packet(packet, 0, ms(at_ms))
        self.flush(at_ms)


def match(ours: list[float], theirs: list[float]) -> None:
    assert len(ours) == len(theirs)
    for mine, original in zip(ours, theirs, strict=True):
        assert abs(mine - original) < LATE_MS, (mine, original)


def test_source_a(packets: list[tuple[float, int, lbmr.Packet]]) -> None:
    theirs = [(at, p) for at, who, p in packets if who == A]
    created_ms, first = theirs[0]
    assert isinstance(first.body, lbmr.Queries)
    last_ms = theirs[-1][0]
    grid_ms = 2.0  # the original's ticks: the first scheduled record came 2 ms after the creation
    resolver = Resolver(
        ResolverConfig(b"ourselfA"),
        compile_pattern=lambda pattern, _: lambda topic: topic.startswith(b"29west"),
        jitter=lambda _: ms(created_ms + grid_ms),
    )
    replay = Replay(resolver)
    replay.until(created_ms)
    resolver.add_source(SourceAd(first.body.tirs[0]), ms(created_ms))
    replay.flush(created_ms)
    queries = []
    for at, who, packet in packets:
        if who != A and created_ms < at <= last_ms:
            replay.hear(at, packet)
            queries.append(at)
    replay.until(last_ms)
    ours = [at for at, _ in replay.sent]
    assert set(queries) <= set(ours), "each query has its answer at once"
    unsolicited = [at for at in ours if at not in queries]
    their_answers = {min((at for at, _ in theirs if at >= asked), default=0.0) for asked in queries}
    their_unsolicited = [at for at, _ in theirs if at not in their_answers]
    assert len(unsolicited) == len(their_unsolicited) == 17
    for mine, original in zip(unsolicited, their_unsolicited, strict=True):
        assert abs(mine - original) < 21, (mine, original)
    assert [b.tirs[0] for _, b in replay.sent if isinstance(b, lbmr.Queries)] == [
        p.body.tirs[0] for _, p in theirs if isinstance(p.body, lbmr.Queries)
    ], "the same records in the same order, first one with ttl 16"


def test_receiver_r(packets: list[tuple[float, int, lbmr.Packet]]) -> None:
    theirs = [(at, p) for at, who, p in packets if who == R]
    (topic,) = {topic for _, p in theirs if isinstance(p.body, lbmr.Queries) for topic in p.body.tqrs}
    extra_ms = 12_269.8  # its source's session ended: the only query out of turn
    resolver = Resolver(ResolverConfig(b"ourselfR"))
    replay = Replay(resolver)
    resolver.add_receiver(topic, 0)
    joined = []
    for at, who, packet in packets:
        if who != R and at < extra_ms:
            replay.hear(at, packet)
            joined += [e.source for e in resolver.take_events() if isinstance(e, SourceFound)]
    (source,) = joined
    replay.until(extra_ms)
    resolver.on_source_ended(topic, source.address, source.topic_index, ms(extra_ms))
    replay.flush(extra_ms)
    replay.until(theirs[-1][0])
    assert all(body == lbmr.Queries((topic,)) for _, body in replay.sent)
    match([at for at, _ in replay.sent], [at for at, _ in theirs])


def test_wildcard_receiver_w(packets: list[tuple[float, int, lbmr.Packet]]) -> None:
    theirs = [(at, p.body) for at, who, p in packets if who == W and isinstance(p.body, lbmr.WildcardQueries)]
    created_ms, first = theirs[0]
    (pattern,) = first.patterns
    resolver = Resolver(ResolverConfig(b"ourselfW"))
    replay = Replay(resolver)
    replay.until(created_ms)
    resolver.add_wildcard(
        pattern.pattern, pattern.pattern_type, lambda topic: topic.startswith(b"29west"), ms(created_ms)
    )
    replay.flush(created_ms)
    for at, who, packet in packets:
        if who != W and at <= theirs[-1][0]:
            replay.hear(at, packet)
    replay.until(theirs[-1][0] + 20)
    assert all(body == first for _, body in replay.sent), "topics found by the pattern are not queried"
    match([at for at, _ in replay.sent], [at for at, _ in theirs])
