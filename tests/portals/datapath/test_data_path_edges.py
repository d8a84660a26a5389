"""The data path where it gets tight: real sessions that block, sparse and huge batches, what waits or is too large."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dro.bus.counters import CounterPage
from dro.clock import ms, s
from dro.loop import Loop
from dro.metrics.slots import DROP_SLOTS, PairSlot, Slot
from dro.proto.ratelimit import RateLimiter
from dro.proto.repair.source import SourceConfig, SourceSession
from dro.proto.tcp.source import SlowReceiver, TcpSourceConfig, TcpSourceCore
from dro.shared_memory.ring import RingReader, RingWriter
from dro.transport import mmsg, sockets
from dro.transport.datagrams.setup import DatagramSenderSetup
from dro.transport.lbtrm.sender import LbtrmSender
from dro.transport.runs import KIND_CONTROL, KIND_DATA, KIND_TSNI, Run, RunTable, read_messages
from dro.transport.session import SenderTransport
from dro.transport.sockets import OS_SOCKETS
from dro.transport.tcp.sender import TcpSender, TcpSenderSetup
from dro.wire import lbtrm
from dro.wire.lbmc import message as lbmc
from dro.wire.lbtrm import DATA_HEADER
from dro.wire.source_string import LbtrmAddress, TcpAddress
from portals.datapath import max_queue
from portals.datapath.egress import Egress
from portals.datapath.ingress import Ingress
from portals.datapath.outgoing import ProxySource
from tests.fakes.queues import FakeQueues, table_at
from tests.fakes.runs import table_of
from tests.fakes.transport import FakeTransport
from tests.portals.datapath.test_data_path import forwarded

LBMC = lbmc.HEADER

LOOPBACK = "127.0.0.1"
ADDRESS = TcpAddress(0x7F000001, 14371, 1)
P, Q = 1, 2
CHUNK_MAX = 1 << 18
Message = tuple[int, int, bytes]


def data(topic: int, sqn: int, payload: bytes) -> bytes:
    return LBMC.pack(0, 0, 12 + len(payload), topic, sqn) + payload


class DataPath:
    """Portal P with one incoming session, portal Q with sessions of the tests' choice."""

    def __init__(self, folder: Path, max_queue: int = 1_000_000, capacity: int = 16 << 20) -> None:
        self.loop = Loop()
        self.ring = RingWriter.create(folder / "ring", capacity, 1)
        self.page_p = CounterPage.create(folder / "p", pair_blocks=4)
        self.page_q = CounterPage.create(folder / "q", pair_blocks=4)
        self.queues = FakeQueues()
        self.ingress = Ingress(self.ring, self.page_p, self.queues, lambda _: None, chunk_max_bytes=CHUNK_MAX)
        self.egress = Egress(self.page_q, max_queue, self.loop.now_ns, self.loop.call_later)
        self.reader = RingReader.open(folder / "ring", 1)
        self.egress.on_ring(P, self.reader)
        self.transport = FakeTransport(ADDRESS)
        self.closing: list[SenderTransport | socket.socket] = []

    def close(self) -> None:
        for thing in self.closing:
            if isinstance(thing, socket.socket):
                thing.close()
            else:
                thing.close(0, self.loop.now_ns())
        self.ring.close()
        self.reader.close()
        self.loop.close()

    def add_source(self, topic_index: int, out: SenderTransport) -> ProxySource:
        proxy, handle = forwarded(self.transport, topic_index, out)
        self.egress.feed(proxy, P, handle)
        return proxy

    def receive(self, datagram: bytes) -> None:
        table = RunTable()
        read_messages(datagram, 0, len(datagram), 0, table)
        self.ingress.on_fragments(memoryview(datagram), [(self.transport, table)], 0)

    def carry(self) -> None:
        announced, self.queues.announced = self.queues.announced, []
        for _, slot in announced:
            self.egress.on_batch(P, slot)
        self.egress.flush_sessions()

    def tables(self) -> list[tuple[RunTable, int]]:
        """What is announced, and the bytes of each chunk."""
        return [table_at(self.reader, slot) for _, slot in self.queues.announced]

    def books(self) -> None:
        for step in (0, 1):
            handed = self.page_p[self.page_p.pair(Q) + PairSlot.HANDED + step]
            pair = self.page_q.pair(P)
            queued = self.page_q[pair + PairSlot.QUEUED + step]
            assert handed == self.page_q[pair + PairSlot.ACCOUNTED + step] + queued
            dropped = sum(self.page_q[slot + step] for slot in DROP_SLOTS.values())
            assert self.page_q[Slot.FORWARDED + step] == self.page_q[Slot.SENT + step] + dropped + queued

    def tcp(self, behavior: SlowReceiver = SlowReceiver.NORMAL, *, buffer_bytes: int = 65536) -> TcpSender:
        listener = OS_SOCKETS.bind_in_range(socket.SOCK_STREAM, LOOPBACK, (0,), option="test")
        sender = TcpSender(
            self.loop,
            TcpSenderSetup(
                TcpAddress(sockets.ip_number(LOOPBACK), listener.getsockname()[1], 0),
                listener,
                datagram_max_bytes=65535,
                transport_index=1,
                send_buffer_bytes=16384,
            ),
            TcpSourceCore(TcpSourceConfig(behavior=behavior, max_buffer_bytes=buffer_bytes), random.random),
        )
        self.closing.append(sender)
        return sender

    def listener(self, sender: TcpSender, receive_buffer: int) -> socket.socket:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.connect((LOOPBACK, sender.address.port))
        sock.setblocking(False)
        self.closing.append(sock)
        while not sender.core.stats.num_clients:
            self.loop.run_once(ms(10))
        return sock

    def lbtrm(self, limit_bps: int, pack_bytes: int = 0) -> tuple[LbtrmSender, socket.socket]:
        """A rate-limited session and a socket that hears its datagrams."""
        group = sockets.ip_number(f"239.203.7.{random.randrange(1, 255)}")
        nak = OS_SOCKETS.bind_in_range(socket.SOCK_DGRAM, LOOPBACK, (0,), option="test")
        hearing = OS_SOCKETS.multicast_receiver(group, 0, LOOPBACK, buffer_bytes=8 << 20, option="test")
        port = hearing.getsockname()[1]
        now = self.loop.now_ns()
        limiter = RateLimiter(limit_bps, ms(10), now)
        sender = LbtrmSender(
            self.loop,
            DatagramSenderSetup(
                LbtrmAddress(sockets.ip_number(LOOPBACK), group, 77, port, nak.getsockname()[1]),
                OS_SOCKETS.multicast_sender(group, port, LOOPBACK, ttl=0, buffer_bytes=1 << 20),
                nak,
                LOOPBACK,
                datagram_max_bytes=8192,
                transport_index=1,
                header_bytes=DATA_HEADER,
                pack_bytes=pack_bytes,
            ),
            SourceSession(SourceConfig(), limiter, RateLimiter(0, ms(10), now), now),
            limiter,
            mmsg.DatagramBatch(),
            tgsz_log2=3,
        )
        self.closing += [sender, hearing]
        return sender, hearing


@pytest.fixture
def path(tmp_path: Path) -> Iterator[DataPath]:
    made = DataPath(tmp_path)
    yield made
    made.close()


def split(stream: bytes) -> list[Message]:
    found = []
    pos = 0
    while len(stream) - pos >= 12:
        kind, _, length, topic, sqn = LBMC.unpack_from(stream, pos)
        assert kind in (0, 8)
        if pos + length > len(stream):
            break
        if kind == 0:
            found.append((topic, sqn, stream[pos + 12 : pos + length]))
        pos += length
    return found


# sessions that block


@pytest.mark.parametrize("behavior", [SlowReceiver.NORMAL, SlowReceiver.BOUNDED_LATENCY])
def test_what_waits_for_a_tcp_session_goes_out_once_and_in_order(path: DataPath, behavior: SlowReceiver) -> None:
    """The batches are far larger than the session buffer, so one send is many parts with wake-ups between them."""
    out = path.tcp(behavior, buffer_bytes=2000)
    for topic in (1, 2):
        path.add_source(topic, out)
    sock = path.listener(out, 4096)
    rng = random.Random(9)
    expected: list[Message] = []
    sqns = {1: 0, 2: 0}
    stream = b""
    for _ in range(60):
        batch = b""
        for _ in range(rng.randrange(1, 5)):
            topic, size = rng.choice((1, 2)), rng.choice((10, 300, 700))
            for _ in range(rng.choice((1, 20))):
                payload = rng.randbytes(size)
                batch += data(topic, sqns[topic], payload)
                expected.append((5000 + topic, sqns[topic], payload))
                sqns[topic] += 1
        path.receive(batch)
        path.carry()
        path.books()
        for _ in range(rng.randrange(4)):
            path.loop.run_once(0)
            try:
                stream += sock.recv(rng.choice((500, 5000, 50_000)))
            except BlockingIOError:
                continue
    assert path.page_q[Slot.QUEUED_BYTES_MAX] > 0
    deadline = path.loop.now_ns() + s(10)
    while len(stream) < sum(12 + len(payload) for _, _, payload in expected):
        assert path.loop.now_ns() < deadline
        path.loop.run_once(0)
        try:
            stream += sock.recv(1 << 20)
        except BlockingIOError:
            continue
    assert split(stream) == expected
    assert path.egress.queue.nbytes == 0
    path.books()


def test_what_waits_for_a_rate_limit_goes_out_once_and_in_order(path: DataPath) -> None:
    out, hearing = path.lbtrm(8_000_000)  # 10000 bytes in 10 ms
    for topic in (1, 2):
        path.add_source(topic, out)
    expected: list[Message] = []
    for i in range(15):
        batch = [(1 + i % 2, i // 2 * 10 + k, bytes([i, k]) * (100 + i % 4 * 100)) for k in range(10)]
        expected += [(5000 + topic, sqn, payload) for topic, sqn, payload in batch]
        path.receive(b"".join(data(*message) for message in batch))
        path.carry()
        path.books()
    assert path.page_q[Slot.QUEUED] > 0
    deadline = path.loop.now_ns() + s(10)
    while path.egress.queue.nbytes:
        assert path.loop.now_ns() < deadline
        path.loop.run_once(ms(20))
    assert [split(hearing.recv(65536)[20:])[0] for _ in expected] == expected
    path.books()


def test_a_session_that_ends_with_a_queue_leaves_nothing_to_the_next(path: DataPath) -> None:
    """Objects of new sessions may lie where those of old ones lay."""
    for life in range(20):
        out = path.tcp(buffer_bytes=1000)
        proxy = path.add_source(life, out)
        path.listener(out, 4096)
        for sqn in range(100):
            path.receive(data(life, sqn, bytes(900)))
        path.carry()
        assert path.page_q[Slot.QUEUED] > 0
        path.egress.flush(proxy)
        assert path.page_q[Slot.QUEUED] == path.egress.queue.nbytes == 0
        path.closing.remove(out)
        out.close(0, path.loop.now_ns())
        path.books()


# what waits


def blocked(path: DataPath, topics: int) -> None:
    """A session that takes nothing, with sources 0 to `topics`."""
    out, _ = path.lbtrm(1)
    for topic in range(topics):
        path.add_source(topic, out)


def waiting_bytes(path: DataPath) -> int:
    return sum(len(waiting.buffer) for lane in path.egress._lanes.values() for waiting in lane.waiting)


def test_a_small_fragment_that_waits_does_not_keep_its_batch_in_memory(path: DataPath) -> None:
    blocked(path, 1)
    free, hearing = path.lbtrm(0)
    path.add_source(1, free)
    path.receive(data(0, 0, b"the first closes the session") * 1)
    path.carry()
    for sqn in range(50):
        batch = b"".join(data(1, sqn * 40 + i, bytes(1000)) for i in range(40))
        path.receive(batch[:20_240] + data(0, sqn + 1, b"small") + batch[20_240:])
        path.carry()
        while True:
            try:
                hearing.recv(65536)
            except BlockingIOError:
                break
    assert path.page_q[Slot.QUEUED] >= 50
    assert waiting_bytes(path) < 50 * 200


def test_a_part_of_a_run_that_waits_keeps_its_place(path: DataPath) -> None:
    out, hearing = path.lbtrm(800_000)  # 1000 bytes in 10 ms
    path.add_source(1, out)
    path.add_source(2, path.tcp())
    messages = [(1, sqn, bytes([sqn]) * 80) for sqn in range(40)]
    path.receive(b"".join(data(*m) for m in messages) + b"".join(data(2, i, bytes(8000)) for i in range(20)))
    path.carry()
    assert waiting_bytes(path) < 40 * 120
    deadline = path.loop.now_ns() + s(10)
    while path.egress.queue.nbytes:
        assert path.loop.now_ns() < deadline
        path.loop.run_once(ms(20))
    assert [split(hearing.recv(65536)[20:])[0] for _ in messages] == [(5001, q, p) for _, q, p in messages]
    path.books()


def test_what_waits_of_a_source_that_ends_goes_and_the_others_keep_their_order(path: DataPath) -> None:
    out, _ = path.lbtrm(1)
    proxies = [path.add_source(topic, out) for topic in range(4)]
    path.receive(data(3, 0, b"the first closes the session"))
    path.carry()
    for sqn in range(60):
        path.receive(b"".join(data(topic, sqn + (topic == 3), bytes([topic]) * (20 + sqn)) for topic in (0, 1, 2, 3)))
        path.carry()
    (lane,) = path.egress._lanes.values()
    assert path.page_q[Slot.QUEUED] == 241
    path.egress.flush(proxies[1])
    assert (path.page_q[Slot.QUEUED], path.page_q[Slot.DROPPED_DELETED]) == (181, 60)
    left = [(run.topic_index, run.first_sqn) for waiting in lane.waiting for run in waiting.table]
    sqns = [[sqn for topic, sqn in left if topic == proxy.topic_index] for proxy in proxies]
    assert sqns == [list(range(60)), [], list(range(60)), list(range(61))]
    for proxy in (proxies[0], proxies[2], proxies[3]):
        path.egress.flush(proxy)
    assert (path.page_q[Slot.QUEUED], path.egress.queue.nbytes, len(lane.waiting)) == (0, 0, 0)
    assert path.page_q[Slot.DROPPED_DELETED] == 241
    path.books()


def test_the_end_of_a_source_looks_only_at_the_batches_that_have_something_of_it(
    path: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _ = path.lbtrm(1)
    proxies = [path.add_source(topic, out) for topic in range(100)]
    path.receive(data(0, 0, b"the first closes the session"))
    path.carry()
    for topic in range(1, 100):
        path.receive(data(topic, 0, bytes(50)))
        path.carry()
    looked: list[int] = []
    whole = max_queue._without

    def counted(table: RunTable, topic_index: int) -> tuple[RunTable, list[tuple[int, int]]]:
        looked.append(table.rows)
        return whole(table, topic_index)

    monkeypatch.setattr(max_queue, "_without", counted)
    for proxy in proxies:
        path.egress.flush(proxy)
    assert sum(looked) <= 100
    assert path.page_q[Slot.QUEUED] == 0
    path.books()


# sparse and huge batches


def chunk_sizes(path: DataPath) -> list[int]:
    return [size for _, size in path.tables()]


@pytest.mark.parametrize("distance", [30_000, 129_000, 4_000_000])
def test_fragments_that_lie_far_apart_are_copied_without_what_lies_between(path: DataPath, distance: int) -> None:
    out, hearing = path.lbtrm(0)
    path.add_source(1, out)
    area = bytearray(distance + 200)
    for i in range(2):
        area[i * distance + 20 : i * distance + 82] = data(1, i, bytes([i]) * 50)
    run = Run(1, 0, 2, 20, 62, distance, 20, 0, KIND_DATA)
    path.ingress.on_fragments(memoryview(area), [(path.transport, table_of([run]))], 0)
    assert sum(chunk_sizes(path)) < 5000
    path.carry()
    assert [split(hearing.recv(65536)[20:])[0] for _ in range(2)] == [(5001, i, bytes([i]) * 50) for i in range(2)]
    path.books()


@pytest.mark.parametrize(("distance", "size"), [(4390, 2 * 188 + 4096), (4391, 32 + 2 * 62)])
def test_gaps_are_left_in_a_chunk_up_to_a_page_more_than_its_fragments(
    path: DataPath, distance: int, size: int
) -> None:
    path.add_source(1, path.lbtrm(0)[0])
    path.ingress.on_fragments(
        memoryview(bytes(5000)), [(path.transport, table_of([Run(1, 0, 2, 20, 62, distance, 20, 0, KIND_DATA)]))], 0
    )
    assert chunk_sizes(path) == [size]


@pytest.mark.parametrize("before", [0, 10_000, 200_000])
def test_fragments_near_each_other_go_as_they_are_wherever_in_the_batch_they_lie(path: DataPath, before: int) -> None:
    path.add_source(1, path.tcp())
    area = bytes(before) + data(1, 0, bytes(988)) + bytes(1000) + data(1, 1, bytes(988))
    run = Run(1, 0, 2, before, 1000, 2000, 0, 0, KIND_DATA)
    path.ingress.on_fragments(memoryview(area), [(path.transport, table_of([run]))], 0)
    assert chunk_sizes(path) == [min(before, 32) + 3000]


@pytest.mark.parametrize("payload", [3000, 8100, 65000])
def test_no_chunk_is_larger_than_it_may_be(path: DataPath, payload: int) -> None:
    out = path.tcp(SlowReceiver.SOURCE_PACED)
    path.add_source(1, out)
    path.add_source(2, out)
    stride = payload + 32
    area = b"".join(bytes(20) + data(1, i, i.to_bytes(2, "big") * (payload // 2)) for i in range(64))
    runs = [
        Run(2, 5, 1, 0, 0, 0, 0, 0, KIND_TSNI),
        Run(1, 0, 64, 20, payload + 12, stride, 20, 0, KIND_DATA),
        Run(2, 6, 1, 0, 0, 0, 0, 0, KIND_TSNI),
    ]
    path.ingress.on_fragments(memoryview(area), [(path.transport, table_of(runs))], 0)
    sizes = chunk_sizes(path)
    assert max(sizes) <= CHUNK_MAX
    assert sum(sizes) <= 64 * stride
    found = [run for table, _ in path.tables() for run in table]
    assert sum(run.fragments for run in found) == 66
    assert [run.first_sqn for run in found if run.kind == KIND_TSNI] == [5, 6]
    path.carry()
    path.books()
    assert path.page_q[Slot.SENT] == 66


def test_sqns_wrap_where_a_run_is_cut(path: DataPath) -> None:
    path.add_source(1, path.tcp())
    area = b"".join(data(1, (0xFFFFFFFE + i) & 0xFFFFFFFF, bytes(60_000)) for i in range(10))
    run = Run(1, 0xFFFFFFFE, 10, 0, 60_012, 60_012, 0, 0, KIND_DATA)
    path.ingress.on_fragments(memoryview(area), [(path.transport, table_of([run]))], 0)
    found = [run for table, _ in path.tables() for run in table]
    assert len(found) > 1
    sqns = [(run.first_sqn + i) & 0xFFFFFFFF for run in found for i in range(run.fragments)]
    assert sqns == [(0xFFFFFFFE + i) & 0xFFFFFFFF for i in range(10)]
    path.carry()
    path.books()
    assert path.page_q[Slot.DROPPED_DUP] == 0


# too large


def test_a_control_message_that_does_not_fit_is_a_size_error_too(path: DataPath) -> None:
    out, hearing = path.lbtrm(0)
    path.add_source(1, out)
    for size in (8172, 8173):
        chained = b""
        while len(chained) < size - 12 - 251:
            chained += bytes([0x66, 251]) + bytes(249)
        rest = size - 12 - len(chained)
        chained += bytes([0x65, rest]) + bytes(rest - 2)
        message = bytes([8, 0x66]) + size.to_bytes(2, "big") + chained + bytes([0, 8, 0, 0, 0, 0, 0, 1])
        assert len(message) == size
        table = RunTable()
        read_messages(message, 0, size, 0, table)
        runs = list(table)
        assert [run.kind for run in runs] == [KIND_CONTROL]
        path.ingress.on_fragments(memoryview(message), [(path.transport, table_of(runs))], 0)
    path.carry()
    assert len(hearing.recv(65536)) == 8192
    with pytest.raises(BlockingIOError):
        hearing.recv(65536)
    assert (path.page_q[Slot.SENT], path.page_q[Slot.DROPPED_SIZE]) == (1, 1)
    path.books()


# several topics of one session


@pytest.mark.parametrize("limit_bps", [0, 4_000_000])
def test_equal_fragments_of_many_topics_go_out_in_one_send_and_keep_their_order(path: DataPath, limit_bps: int) -> None:
    """A session of many topics is the usual case; it must not cost a send for each fragment."""
    out, hearing = path.lbtrm(limit_bps)
    for topic in (1, 2, 3):
        path.add_source(topic, out)
    expected: list[Message] = []
    for batch in range(6):
        area = b""
        table = RunTable()
        for i in range(60):
            number = batch * 60 + i
            topic, payload = 1 + number % 3, number.to_bytes(2, "big") * 20
            start = len(area) + 20
            area += bytes(20) + data(topic, number // 3, payload)
            expected.append((5000 + topic, number // 3, payload))
            read_messages(area, start, len(area), 20, table)
        path.ingress.on_fragments(memoryview(area), [(path.transport, table)], 0)
        path.carry()
        path.books()
    deadline = path.loop.now_ns() + s(10)
    while path.egress.queue.nbytes:
        assert path.loop.now_ns() < deadline
        path.loop.run_once(ms(20))
    assert [split(hearing.recv(65536)[20:])[0] for _ in expected] == expected
    if not limit_bps:
        assert out.counts().trains == 6
    path.books()
    sqns = tuple(range(out.core.next_sqn))
    out.on_packet(lbtrm.encode(lbtrm.Nak(out.address.nak_port, 77, sqns)), 0, path.loop.now_ns())
    assert [split(hearing.recv(65536)[20:])[0] for _ in expected] == expected


@pytest.mark.parametrize(
    ("places", "counts"), [((20, 102, 302), (1, 2)), ((20, 266, 184), (2, 1))], ids=["the later", "the earlier"]
)
def test_runs_of_which_one_has_gaps_go_out_as_they_are(
    path: DataPath, places: tuple[int, ...], counts: tuple[int, int]
) -> None:
    out, hearing = path.lbtrm(0)
    for topic in (1, 2):
        path.add_source(topic, out)
    messages = [(topic, sqn, bytes([topic, sqn]) * 25) for topic in (1, 2) for sqn in range(counts[topic - 1])]
    area = bytearray(b"\xff" * 400)
    runs: list[Run] = []
    for at, (topic, sqn, payload) in zip(places, messages, strict=True):
        area[at : at + 62] = data(topic, sqn, payload)
        if sqn:
            runs[-1] = runs[-1]._replace(fragments=2, stride=at - runs[-1].offset)
        else:
            runs.append(Run(topic, 0, 1, at, 62, 82, 20, 0, KIND_DATA))
    path.ingress.on_fragments(memoryview(area), [(path.transport, table_of(runs))], 0)
    path.carry()
    expected = [(5000 + topic, sqn, payload) for topic, sqn, payload in messages]
    assert [split(hearing.recv(65536)[20:])[0] for _ in messages] == expected
    path.books()


def test_duplicates_and_deleted_sources_among_many_topics(path: DataPath) -> None:
    out, hearing = path.lbtrm(0)
    proxies = [path.add_source(topic, out) for topic in range(4)]
    path.egress.stop_feeding(proxies[3])
    order = [(0, 0), (1, 0), (0, 0), (2, 0), (3, 0), (1, 1), (1, 0), (0, 1), (2, 2), (2, 1)]
    path.receive(b"".join(data(topic, sqn, b"abcd") for topic, sqn in order))
    path.carry()
    got = [split(hearing.recv(65536)[20:])[0][:2] for _ in range(7)]
    assert got == [(5000, 0), (5001, 0), (5002, 0), (5001, 1), (5000, 1), (5002, 2), (5002, 1)]
    assert (path.page_q[Slot.DROPPED_DUP], path.page_q[Slot.DROPPED_DELETED]) == (2, 1)
    path.books()
