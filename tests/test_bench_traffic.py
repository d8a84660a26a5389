"""The load generator of the benches: what it sends is what UM sends, and it loses and counts nothing twice."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dro.transport import sockets
from dro.transport.sockets import OS_SOCKETS
from dro.wire import lbtrm
from dro.wire.lbmc import message as lbmc
from dro.wire.source_string import LbtrmAddress, TcpAddress, TransportAddress
from tests.bench.mix import balance, measure, settled
from tests.bench.traffic import generator
from tests.bench.traffic.generator import Load
from tests.bench.traffic.workload import Workload, describe_source, running, topics_of
from tests.rigs.site import reserve_block
from tests.rigs.waiting import wait_until

pytestmark = pytest.mark.skipif(not generator.is_possible(), reason="the load generator needs gcc")
LOOPBACK = sockets.ip_number("127.0.0.1")


@pytest.fixture(scope="module")
def program() -> Iterator[Path]:
    with generator.built() as path:
        yield path


@pytest.fixture
def base() -> Iterator[int]:
    first, guard = reserve_block(8)
    yield first
    guard.close()


def group(base: int, nth: int) -> str:
    return f"239.{193 + base // 256 % 62}.{base % 256}.{10 + nth}"


def lbtrm_sessions(base: int, count: int) -> list[TransportAddress]:
    return [
        LbtrmAddress(LOOPBACK, sockets.ip_number(group(base, n)), 0x1000 + n, base, base + 1 + n) for n in range(count)
    ]


def all_sent(load: Load, messages: int) -> None:
    """Send that many (of a large one, all fragments) and wait until they are on their way."""
    before = load.counts().sent
    load.tell(f"resume {messages}")
    wait_until(lambda: load.counts().sent >= before + messages, "messages", 30)
    load.tell("pause")


def test_repairs_bring_every_lbtrm_message_once(program: Path, base: int) -> None:
    workload = Workload("", topics=20, sessions=3, large=0.02)
    with Load(program) as load:
        sessions = lbtrm_sessions(base, 3)
        describe_source(load, workload, sessions, topics_of(workload, sessions))
        load.tell("sink", *(f"join {group(base, n)} {base}" for n in range(3)), "start")
        all_sent(load, 500)  # a session begins with the first datagram that is heard
        assert settled(load).received[0] == load.counts().sent
        load.set(loss=50_000, sinkloss=50_000)
        load.tell("mark")
        all_sent(load, 5000)
        load.set(loss=0, sinkloss=0)
        counts = settled(load)
    assert counts.received[0] == counts.sent >= 5500
    assert counts.written_off == 0
    assert counts.omitted > 100
    assert counts.repaired >= counts.omitted
    assert counts.topics == 20
    assert counts.latency_us["p50"] > 0


def test_tcp_sinks_count_every_message(program: Path, base: int) -> None:
    workload = Workload("", transport="tcp", topics=7, sessions=2, sizes=(12, 5000), large=0.02, large_bytes=200_000)
    sessions: list[TransportAddress] = [TcpAddress(LOOPBACK, base + n, 77 + n) for n in range(2)]
    with Load(program) as load:
        describe_source(load, workload, sessions, topics_of(workload, sessions))
        for _ in range(2):
            load.tell("sink", *(f"connect 127.0.0.1 {base + n} {77 + n}" for n in range(2)))
        load.tell("start")
        all_sent(load, 5000)
        counts = settled(load)
    assert counts.received == (counts.sent, counts.sent)
    assert counts.duplicates == 0


@pytest.mark.parametrize("is_packed", [False, True])
def test_datagrams_are_those_of_a_um_source(program: Path, base: int, *, is_packed: bool) -> None:
    workload = Workload("", topics=5, sessions=1, sizes=(64, 512), large=0.05, is_packed=is_packed)
    sessions = lbtrm_sessions(base, 1)
    topics = topics_of(workload, sessions)
    receiver = OS_SOCKETS.multicast_receiver(
        sockets.ip_number(group(base, 0)), base, "127.0.0.1", buffer_bytes=1 << 22, option=""
    )
    with Load(program) as load, receiver:
        describe_source(load, workload, sessions, topics)
        load.tell("sink", f"join {group(base, 0)} {base}", "start")
        all_sent(load, 400)
        sent = settled(load).sent
        datagrams = list(drained(receiver))
    packets = [lbtrm.decode(datagram) for datagram in datagrams]
    data = [packet for packet in packets if isinstance(packet, lbtrm.Data)]
    assert [packet.sqn for packet in data] == list(range(len(data)))
    assert {(packet.session_id, packet.ucast_port, packet.fec_symbol) for packet in data} == {
        (0x1000, base + 1, symbol) for symbol in range(8)
    }
    sqns: dict[int, int] = dict.fromkeys((topic.index for topic in topics), 0)
    totals = []
    for packet in data:
        for at, length in lbmc.walk(packet.payload, 0, len(packet.payload)):
            message = lbmc.decode(packet.payload, at)
            assert message.topic_index is not None
            assert message.sqn == sqns[message.topic_index]
            sqns[message.topic_index] += 1
            piece = lbmc.frag_of(packet.payload, at, length)
            totals += [piece[2]] if piece else []
    assert sum(sqns.values()) == sent
    assert set(totals) == {30_000}
    assert (len(data) < sent / 2) is is_packed


@pytest.mark.parametrize("transport", ["lbtrm", pytest.param("tcp", marks=pytest.mark.long)])
def test_a_dro_carries_mixed_traffic_whole(program: Path, tmp_path: Path, transport: str) -> None:
    workload = Workload(
        "", transport, topics=30, sessions=3, hosts=2, loss=0.01, egress=2, receivers=2, large=0.02, is_packed=True
    )
    with running(program, tmp_path / "site", workload) as who:
        found = measure(who, 0.3)
        assert balance(who) == {"drops": {}, "given up": {}, "problems": []}
    assert found.lost == 0
    assert found.messages > 0
    assert set(found.us_by_process) == {"P1", "P2", "P3"}
    assert all(us > 0 for us in found.us_by_process.values())


def drained(receiver: socket.socket) -> Iterator[bytes]:
    while True:
        try:
            yield receiver.recv(65536)
        except BlockingIOError:
            return
