"""The LBT-RM shells against each other on loopback: streams, mixtures, loss, foreign and broken datagrams."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable, Iterator

import pytest

from dro.clock import ms, s
from dro.config.um.options import UmOptions
from dro.loop import Loop
from dro.proto.ratelimit import RateLimiter
from dro.proto.repair.loss import LBTRM_LOSS
from dro.proto.repair.receiver import ReceiverSession
from dro.proto.repair.source import SourceConfig, SourceSession
from dro.transport import mmsg, sockets
from dro.transport.datagrams.setup import DatagramSenderSetup
from dro.transport.kind import SessionHost
from dro.transport.lbtrm.receiver import LbtrmGroup
from dro.transport.lbtrm.sender import LbtrmSender
from dro.transport.runs import KIND_CONTROL, KIND_DATA, Run
from dro.transport.sockets import OS_SOCKETS
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.message import HEADER as LBMC
from dro.wire.lbtrm import DATA_HEADER
from dro.wire.source_string import LbtrmAddress
from tests.fakes.runs import send_run
from tests.fakes.session_sink import KeepingSink

LOOPBACK = "127.0.0.1"


class Pair:
    """One sender and one receiver of its session, on one loop."""

    def __init__(self, limit_bps: int = 0) -> None:
        self.loop = Loop()
        self.batch = mmsg.DatagramBatch()
        worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
        group = sockets.ip_number(f"239.201.{worker}.{random.randrange(1, 255)}")
        nak = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        nak.bind((LOOPBACK, 0))
        nak.setblocking(False)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((LOOPBACK, 0))
            port = probe.getsockname()[1]
        data = OS_SOCKETS.multicast_sender(group, port, LOOPBACK, ttl=0, buffer_bytes=1 << 20)
        self.address = LbtrmAddress(
            sockets.ip_number(LOOPBACK), group, random.randrange(1, 1 << 32), port, nak.getsockname()[1]
        )
        now = self.loop.now_ns()
        self.limiter = RateLimiter(limit_bps, ms(10), now)
        self.core = SourceSession(SourceConfig(), self.limiter, RateLimiter(0, ms(10), now), now)
        self.sender = LbtrmSender(
            self.loop,
            DatagramSenderSetup(
                self.address, data, nak, LOOPBACK, datagram_max_bytes=8192, transport_index=1, header_bytes=DATA_HEADER
            ),
            self.core,
            self.limiter,
            self.batch,
            tgsz_log2=3,
        )
        self.naks = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.naks.bind((LOOPBACK, 0))
        self.emptied = 0
        host = SessionHost(self.loop, UmOptions(), self.batch, random.Random(1))
        self.group = LbtrmGroup(
            host, group, port, LOOPBACK, buffer_bytes=8 << 20, nak_socket=self.naks,
            on_empty=lambda _: setattr(self, "emptied", self.emptied + 1),
        )  # fmt: skip
        self.sink = KeepingSink()
        self.receiver_core = ReceiverSession(LBTRM_LOSS, random.Random(1).random, now)
        self.receiver = self.group.join(self.address, self.receiver_core, self.sink, self.sink.on_ended)
        self.sqn: dict[int, int] = {}

    def close(self) -> None:
        self.sender.close(0, 0)
        self.group.close()
        self.naks.close()
        self.loop.close()

    def send(self, topic: int, payloads: list[bytes], *, gap: int = DATA_HEADER) -> list[tuple[int, int, bytes]]:
        """Send equal payloads as one run; returns what the receiver should get."""
        size = 12 + len(payloads[0])
        first = self.sqn.get(topic, 0)
        buffer = bytearray()
        for i, payload in enumerate(payloads):
            buffer += bytes(gap) + LBMC.pack(0, 0, size, 99, first + i) + payload
        run = Run(99, first, len(payloads), gap, size, size + gap, gap, 0, KIND_DATA)
        done = 0
        while done < len(payloads):
            done += send_run(self.sender, buffer, run, 0, topic, self.loop.now_ns(), first=done)
            if done < len(payloads):
                self.until(lambda: not self.sender.is_blocked)
        self.sqn[topic] = first + len(payloads)
        return [(topic, first + i, payload) for i, payload in enumerate(payloads)]

    def until_received(self, count: int) -> None:
        self.until(lambda: len(self.sink.got) == count)

    def until(self, condition: Callable[[], bool], seconds: float = 10) -> None:
        deadline = self.loop.now_ns() + s(seconds)
        while not condition():
            assert self.loop.now_ns() < deadline, "deadline"
            self.loop.run_once(ms(20))


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


@pytest.mark.parametrize("size", [1, 50, 1400, 8160])
@pytest.mark.parametrize("gap", [20, 0, 33])
def test_a_stream_arrives_as_it_was_sent_in_few_runs(pair: Pair, size: int, gap: int) -> None:
    expected: list[tuple[int, int, bytes]] = []
    for batch in range(10):
        expected += pair.send(7, [bytes([i + batch]) * size for i in range(64)], gap=gap)
        pair.until_received(len(expected))
    assert pair.sink.got == expected
    assert pair.sink.runs < 250
    assert pair.sink.events == ["began"]
    assert pair.core.trail == 0
    assert pair.core.next_sqn == 640


def test_topics_and_sizes_may_be_mixed(pair: Pair) -> None:
    rng = random.Random(5)
    expected = []
    for _ in range(300):
        expected += pair.send(rng.randrange(3), [rng.randbytes(rng.randrange(0, 3000))] * rng.randrange(1, 5))
    pair.until(lambda: len(pair.sink.got) == len(expected))
    assert pair.sink.got == expected


def test_lost_datagrams_are_asked_for_and_come_again(pair: Pair) -> None:
    rng = random.Random(6)
    lost = 0

    class Lossy(mmsg.DatagramBatch):
        def receive(self, fd: int, most: int = mmsg.BATCH) -> int:
            """Overwrite the session id of some datagrams: nobody knows them then."""
            nonlocal lost
            count = super().receive(fd, most)
            for i in range(count):
                at = self.offsets[i]
                if self.lengths[i] > 40 and rng.random() < 0.1:
                    self.view[at + 4 : at + 8] = bytes(4)
                    lost += 1
            return count

    pair.group._batch = Lossy()  # loss in front of the code under test
    expected = []
    for i in range(60):
        expected += pair.send(1, [bytes([i]) * 100] * 32)
        pair.loop.run_once(0)
    pair.until(lambda: len(pair.sink.got) == len(expected), 20)
    assert lost > 50
    assert sorted(pair.sink.got) == expected
    stats = pair.receiver_core.stats
    assert stats.naks_sent >= stats.lost > 0
    assert pair.core.stats.rxs_sent >= stats.lost
    assert pair.receiver.unrecoverable_dgrams == 0


def test_control_messages_come_up_and_topic_indexes_are_rewritten(pair: Pair) -> None:
    now = pair.loop.now_ns()
    assert pair.sender.send_message(lbmc.encode(lbmc.tsni_message([(7, 41), (8, 2)])), now)
    pair.until(lambda: len(pair.sink.tsnis) == 2)
    assert pair.sink.tsnis == [(7, 41), (8, 2)]
    topic_idx = bytes.fromhex("0865000cff08000000000001")
    run = Run(1, 0, 1, 0, 12, 12, 0, 0x65, KIND_CONTROL)
    assert send_run(pair.sender, bytearray(topic_idx), run, 0, 77, now) == 1
    pair.until(lambda: bool(pair.sink.controls))
    assert pair.sink.controls == [topic_idx[:-1] + bytes([77])]


def test_the_rate_limit_holds_a_run_back_and_wakes_the_sender() -> None:
    pair = Pair(limit_bps=8_000_000)  # 10000 bytes in 10 ms
    woken = []
    pair.sender.on_unblocked = lambda: woken.append(pair.loop.now_ns())
    began = pair.loop.now_ns()
    expected = pair.send(1, [bytes(968)] * 60)
    pair.until(lambda: len(pair.sink.got) == 60)
    assert pair.sink.got == expected
    assert pair.loop.now_ns() - began >= ms(40)
    assert woken
    pair.close()


@pytest.mark.parametrize(
    ("datagram", "counter"),
    [
        (b"short", "dgrams_dropped_size"),
        (bytes.fromhex("1000") + bytes(30), "dgrams_dropped_version"),
        (bytes.fromhex("0100") + bytes(30), "dgrams_dropped_type"),
        (bytes.fromhex("0300") + bytes(30), "dgrams_dropped_type"),
        (bytes.fromhex("00050000") + bytes(30), "dgrams_dropped_hdr"),
        (bytes.fromhex("0000") + bytes(30), "unknown_msgs_rcved"),
    ],
)
def test_bad_and_foreign_datagrams_are_counted_and_harm_nothing(pair: Pair, datagram: bytes, counter: str) -> None:
    before = pair.send(1, [b"before"])
    pair.until(lambda: len(pair.sink.got) == 1)
    stranger = OS_SOCKETS.multicast_sender(pair.address.group, pair.address.dport, LOOPBACK, ttl=0, buffer_bytes=0)
    stranger.send(datagram)
    pair.until(lambda: getattr(pair.group.stats, counter) == 1)
    after = pair.send(1, [b"after"])
    pair.until(lambda: len(pair.sink.got) == 2)
    assert pair.sink.got == before + after
    stranger.close()


def test_a_message_that_runs_past_its_datagram_is_dropped_and_counted(pair: Pair) -> None:
    pair.send(1, [b"x"])
    pair.until(lambda: len(pair.sink.got) == 1)
    pair.sender.send_datagram(bytearray(20) + LBMC.pack(0, 0, 500, 1, 1) + b"short", 5, pair.loop.now_ns())
    pair.until(lambda: pair.group.stats.dgrams_dropped_size == 1)
    assert len(pair.sink.got) == 1


def test_naks_of_other_sessions_are_counted_and_ignored(pair: Pair) -> None:
    pair.send(1, [b"x"])
    stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    to = (LOOPBACK, pair.address.nak_port)
    stranger.sendto(bytes.fromhex("0300") + pair.address.nak_port.to_bytes(2, "big") + bytes(12), to)
    stranger.sendto(b"garbage", to)
    pair.until(lambda: pair.sender.bad_packets == 2)
    assert pair.core.stats.naks_rcved == 0
    stranger.close()


def test_leaving_the_last_session_empties_the_group(pair: Pair) -> None:
    pair.receiver.leave()
    assert pair.emptied == 1
    assert not pair.receiver.is_joined
    pair.receiver.leave()
    assert pair.emptied == 1
