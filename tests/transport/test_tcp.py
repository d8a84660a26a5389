"""The LBT-TCP shells against each other on loopback and against strangers: splits, slow receivers, garbage, ends."""

from __future__ import annotations

import contextlib
import logging
import random
import resource
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from struct import Struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dro.clock import ms, s
from dro.log.events import LogEvent
from dro.loop import Loop
from dro.proto.tcp.receiver import TcpReceiverConfig, TcpReceiverCore, TcpState
from dro.proto.tcp.source import SlowReceiver, TcpSourceConfig, TcpSourceCore
from dro.transport import sockets
from dro.transport.kind import SenderEvents
from dro.transport.read_space import ReadSpace
from dro.transport.runs import KIND_CONTROL, KIND_DATA, Run
from dro.transport.session import ReceiverTransport, SenderTransport
from dro.transport.sockets import OS_SOCKETS
from dro.transport.stream import PlainStream, StreamMaker
from dro.transport.tcp.receiver import TcpReceiver
from dro.transport.tcp.sender import TcpSender, TcpSenderSetup
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.codes import MessageType
from dro.wire.lbmc.message import HEADER as LBMC
from dro.wire.source_string import TcpAddress
from tests.fakes.faulty_sockets import FaultySockets
from tests.fakes.runs import send_run
from tests.fakes.session_sink import KeepingSink, Message

LOOPBACK = "127.0.0.1"
SESSION = 0x12345678


def data(topic: int, sqn: int, payload: bytes) -> bytes:
    return LBMC.pack(0, 0, 12 + len(payload), topic, sqn) + payload


def patterned(size: int, number: int) -> bytes:
    return (number.to_bytes(4, "big") * (size // 4 + 1))[:size]


def split(stream: bytes) -> list[Message]:
    """The data messages of a stream that must be sound but may end in the middle of one."""
    found = []
    pos = 0
    while len(stream) - pos >= 12:
        kind, _, length, topic, sqn = LBMC.unpack_from(stream, pos)
        assert kind == 0
        if pos + length > len(stream):
            break
        found.append((topic, sqn, stream[pos + 12 : pos + length]))
        pos += length
    return found


class TcpBench:
    """One loop with a sender, receivers and strangers on it."""

    def __init__(self, of_sender: StreamMaker = PlainStream, of_receiver: StreamMaker = PlainStream) -> None:
        self.loop = Loop()
        self.space = ReadSpace()
        self.sockets = FaultySockets()
        self.of_sender, self.of_receiver = of_sender, of_receiver
        self.clients: list[tuple[str, bool]] = []
        self.closed: list[SenderTransport] = []
        self.senders: list[TcpSender] = []
        self.receivers: list[TcpReceiver] = []
        self.strangers: list[socket.socket] = []

    def close(self) -> None:
        for receiver in self.receivers:
            receiver.leave()
        for sender in self.senders:
            sender.close(0, self.loop.now_ns())
        for stranger in self.strangers:
            stranger.close()
        self.loop.close()

    def sender(
        self,
        behavior: SlowReceiver = SlowReceiver.NORMAL,
        *,
        buffer_bytes: int = 65536,
        session_id: int = SESSION,
        port: int = 0,
        send_buffer: int = 0,
        listener: socket.socket | None = None,
    ) -> TcpSender:
        config = TcpSourceConfig(behavior=behavior, max_buffer_bytes=buffer_bytes, session_id=session_id)
        listener = listener or OS_SOCKETS.bind_in_range(socket.SOCK_STREAM, LOOPBACK, (port,), option="test")
        listener.setblocking(False)
        sender = TcpSender(
            self.loop,
            TcpSenderSetup(
                TcpAddress(sockets.ip_number(LOOPBACK), listener.getsockname()[1], session_id),
                listener,
                datagram_max_bytes=65535,
                transport_index=1,
                send_buffer_bytes=send_buffer,
                make_stream=self.of_sender,
            ),
            TcpSourceCore(config, random.Random(1).random),
            SenderEvents(lambda _, name, connected: self.clients.append((name, connected)), self.closed.append),
        )
        self.senders.append(sender)
        return sender

    def receiver(self, address: TcpAddress, sink: KeepingSink, **config: int) -> TcpReceiver:
        """A receiver that has been told of an advertisement."""
        core = TcpReceiverCore(TcpReceiverConfig(session_id=address.session_id, **config))
        to = (LOOPBACK, address.port)
        receiver = TcpReceiver(
            self.loop, address, core, sink, sink.on_ended, space=self.space, make_stream=self.of_receiver,
            send_unicast=lambda *_: None,
            connect=partial(self.sockets.connecting, to, LOOPBACK, buffer_bytes=0, keepalive=False),
        )  # fmt: skip
        self.receivers.append(receiver)
        receiver.advertised(self.loop.now_ns())
        return receiver

    def joined(
        self, sender: TcpSender, sink: KeepingSink | None = None, **config: int
    ) -> tuple[TcpReceiver, KeepingSink]:
        sink = sink or KeepingSink()
        before = sender.core.stats.num_clients
        receiver = self.receiver(sender.address, sink, **config)
        self.until(lambda: receiver.is_connected and sender.core.stats.num_clients == before + 1)
        return receiver, sink

    def stranger(self, address: TcpAddress, *, receive_buffer: int = 0) -> socket.socket:
        """A connected socket that nobody reads."""
        sock = socket.socket()
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.connect((LOOPBACK, address.port))
        self.strangers.append(sock)
        name = "{}:{}".format(*sock.getsockname())
        self.until(lambda: (name, True) in self.clients)
        return sock

    def send(self, sender: TcpSender, topic: int, first: int, payloads: list[bytes], gap: int = 0) -> list[Message]:
        """Send equal payloads as one run, waiting when blocked; returns what receivers should get."""
        buffer, run = as_run(first, payloads, gap)
        done = 0
        while done < len(payloads):
            done += send_run(sender, buffer, run, 3, topic, self.loop.now_ns(), first=done)
            if done < len(payloads):
                self.until(lambda: not sender.is_blocked)
        return [(topic, first + i, payload) for i, payload in enumerate(payloads)]

    def until(self, condition: Callable[[], bool], seconds: float = 10) -> None:
        deadline = self.loop.now_ns() + s(seconds)
        while not condition():
            assert self.loop.now_ns() < deadline, "deadline"
            self.loop.run_once(ms(20))

    def settle(self) -> None:
        """Turn until nothing happens any more."""
        while self.loop.run_once(ms(20)):
            pass

    def read(self, sock: socket.socket, until: Callable[[bytes], bool] | None = None) -> bytes:
        """Read a stranger's socket while the loop turns: to its end, or until the condition holds."""
        sock.setblocking(False)
        stream = b""
        deadline = self.loop.now_ns() + s(10)
        while until is None or not until(stream):
            assert self.loop.now_ns() < deadline, "deadline"
            self.loop.run_once(0)
            try:
                piece = sock.recv(1 << 20)
            except BlockingIOError:
                continue
            if not piece:
                assert until is None, "closed"
                return stream
            stream += piece
        return stream


def as_run(first: int, payloads: list[bytes], gap: int = 0) -> tuple[bytearray, Run]:
    size = 12 + len(payloads[0])
    buffer = bytearray(3)
    for i, payload in enumerate(payloads):
        buffer += bytes(gap) + LBMC.pack(0, 0, size, 99, first + i) + payload
    return buffer, Run(99, first, len(payloads), gap, size, size + gap, gap, 0, KIND_DATA)


@pytest.fixture
def bench() -> Iterator[TcpBench]:
    made = TcpBench()
    yield made
    made.close()


# the two against each other


@pytest.mark.parametrize("size", [0, 1, 50, 1400, 8192, 65523])
@pytest.mark.parametrize("gap", [0, 20])
def test_equal_messages_arrive_as_they_were_sent(bench: TcpBench, size: int, gap: int) -> None:
    sender = bench.sender()
    _, sink = bench.joined(sender)
    expected: list[Message] = []
    for batch in range(10):
        expected += bench.send(sender, 7, len(expected), [patterned(size, batch + i) for i in range(64)], gap)
        bench.until(lambda: len(sink.got) >= len(expected))  # noqa: B023  # called at once
    assert sink.got == expected
    assert sink.events == ["began"]
    if size < 1000:
        assert sink.runs < 100
    assert sender.core.stats.bytes_buffered == 0


def test_an_end_of_transport_among_equal_messages_is_no_data(bench: TcpBench) -> None:
    sender = bench.sender()
    _, sink = bench.joined(sender)
    kinds = [0] * 5 + [1] + [0] * 58
    for sqn, kind in enumerate(kinds):
        assert sender.send_message(LBMC.pack(kind, 0, 16, 7, sqn) + b"data", 0)
    bench.until(lambda: len(sink.got) >= 63)
    assert [sqn for _, sqn, _ in sink.got] == [sqn for sqn, kind in enumerate(kinds) if not kind]


def test_topics_and_sizes_may_be_mixed(bench: TcpBench) -> None:
    sender = bench.sender()
    _, sink = bench.joined(sender)
    rng = random.Random(3)
    sqns = [0, 0, 0]
    expected: list[Message] = []
    for _ in range(400):
        topic, count = rng.randrange(3), rng.randrange(1, 9)
        size = rng.choice([0, 1, 30, 500, 5000, rng.randrange(65524)])
        expected += bench.send(sender, topic, sqns[topic], [rng.randbytes(size)] * count)
        sqns[topic] += count
        bench.loop.run_once(0)
    bench.until(lambda: len(sink.got) == len(expected))
    assert sink.got == expected


def test_control_messages_arrive_and_topic_indexes_are_rewritten(bench: TcpBench) -> None:
    sender = bench.sender()
    _, sink = bench.joined(sender)
    assert sender.send_message(lbmc.encode(lbmc.tsni_message([(7, 41), (8, 2)])), 0)
    topic_idx = bytes.fromhex("0865000cff08000000000001")
    run = Run(1, 0, 1, 0, 12, 12, 0, 0x65, KIND_CONTROL)
    assert send_run(sender, bytearray(topic_idx), run, 0, 77, 0) == 1
    bench.until(lambda: bool(sink.controls))
    assert sink.tsnis == [(7, 41), (8, 2)]
    assert sink.controls == [topic_idx[:-1] + bytes([77])]


def test_fifty_receivers_get_everything_sent_after_they_came(bench: TcpBench) -> None:
    sender = bench.sender(buffer_bytes=1 << 20)
    sinks: list[KeepingSink] = []
    expected: list[Message] = []
    for number in range(50):
        sinks.append(bench.joined(sender)[1])
        expected += bench.send(sender, 1, number, [patterned(900, number)])
    bench.until(lambda: len(sinks[-1].got) == 1 and len(sinks[0].got) == 50)
    for number, sink in enumerate(sinks):
        bench.until(lambda sink=sink, number=number: len(sink.got) == 50 - number)  # type: ignore[misc]  # bound now
        assert sink.got == expected[number:]
    bench.receivers[0].leave()
    bench.until(lambda: sender.core.stats.num_clients == 49)
    assert [connected for _, connected in bench.clients] == [True] * 50 + [False]
    assert bench.clients[-1][0] == bench.clients[0][0]


def test_nobody_listens_and_sending_goes_on(bench: TcpBench) -> None:
    sender = bench.sender()
    bench.send(sender, 1, 0, [b"unheard"] * 5000)
    _, sink = bench.joined(sender)
    expected = bench.send(sender, 1, 5000, [b"heard"] * 3)
    bench.until(lambda: len(sink.got) == 3)
    assert sink.got == expected
    assert sender.core.stats.msgs_sent == 5003


# slow receivers


def test_the_slowest_receiver_sets_the_pace_and_nothing_is_lost(bench: TcpBench) -> None:
    sender = bench.sender(send_buffer=8192)
    slow = bench.stranger(sender.address, receive_buffer=4096)
    _, fast = bench.joined(sender)
    woken: list[int] = []
    sender.on_unblocked = lambda: woken.append(bench.loop.now_ns())
    buffer, run = as_run(0, [patterned(1000, i) for i in range(600)])
    taken = send_run(sender, buffer, run, 3, 5, bench.loop.now_ns())
    assert 0 < taken < 600
    assert sender.is_blocked
    assert sender.core.stats.bytes_buffered <= 2 * 65536  # what both had refused of the first part
    assert send_run(sender, buffer, run, 3, 5, bench.loop.now_ns(), first=taken) == 0
    assert not sender.send_message(data(1, 1, b""), bench.loop.now_ns())
    bench.until(lambda: len(fast.got) == taken)
    assert not woken
    expected = [(5, i, patterned(1000, i)) for i in range(600)]
    stream = b""
    while taken < 600:
        stream += bench.read(slow, lambda piece: bool(piece))
        if not sender.is_blocked:
            taken += send_run(sender, buffer, run, 3, 5, bench.loop.now_ns(), first=taken)
    stream += bench.read(slow, lambda rest: len(stream) + len(rest) == 600 * 1012)
    assert woken
    assert split(stream) == expected
    bench.until(lambda: len(fast.got) == 600)
    assert fast.got == expected


def test_a_slow_receiver_of_a_source_paced_session_loses_whole_messages_and_delays_nobody(
    bench: TcpBench, caplog: pytest.LogCaptureFixture
) -> None:
    sender = bench.sender(SlowReceiver.SOURCE_PACED, buffer_bytes=20_000, send_buffer=8192)
    slow = bench.stranger(sender.address, receive_buffer=4096)
    _, fast = bench.joined(sender)
    expected: list[Message] = []
    for i in range(600):
        buffer, run = as_run(i, [patterned(100 + i % 7 * 300, i)])
        assert send_run(sender, buffer, run, 3, 5, bench.loop.now_ns()) == 1
        assert not sender.is_blocked
        expected.append((5, i, patterned(100 + i % 7 * 300, i)))
        bench.until(lambda i=i: len(fast.got) == i + 1)  # type: ignore[misc]  # bound now
    assert fast.got == expected
    stream = bench.read(slow, lambda so_far: bool(so_far) and split(so_far)[-1:] == expected[-1:])
    got = split(stream)
    assert sum(12 + len(payload) for _, _, payload in got) == len(stream)
    assert [message for message in expected if message in got] == got
    assert 10 < len(got) < 600
    assert sender.core.stats.msgs_discarded == sender.counts().discarded == 600 - len(got)
    told = [vars(r)["messages"] for r in caplog.records if r.msg == LogEvent.TCP_DISCARDED]
    assert 0 < sum(told) <= 600 - len(got)


def test_a_message_larger_than_all_buffers_goes_out_in_parts(bench: TcpBench) -> None:
    sender = bench.sender(buffer_bytes=4096, send_buffer=4096)
    slow = bench.stranger(sender.address, receive_buffer=4096)
    expected = data(1, 0, patterned(65523, 9)) + data(1, 1, b"after")
    assert sender.send_message(expected[:65535], 0)
    assert not sender.send_message(expected[65535:], 0)
    stream = bench.read(slow, lambda stream: not sender.is_blocked)
    assert sender.send_message(expected[65535:], 0)
    stream += bench.read(slow, lambda rest: len(stream) + len(rest) == len(expected))
    assert stream == expected


@pytest.mark.parametrize("behavior", list(SlowReceiver))
def test_a_batch_far_beyond_the_session_buffer_goes_out_when_everybody_keeps_up(
    bench: TcpBench, behavior: SlowReceiver
) -> None:
    sender = bench.sender(behavior, buffer_bytes=1000, send_buffer=1 << 20)
    _, sink = bench.joined(sender)
    expected = bench.send(sender, 1, 0, [patterned(400, i) for i in range(500)])
    bench.until(lambda: len(sink.got) == 500)
    assert sink.got == expected


def test_a_session_that_blocks_takes_nothing_more_even_where_a_small_message_would_fit(bench: TcpBench) -> None:
    sender = bench.sender(send_buffer=4096)
    bench.stranger(sender.address, receive_buffer=4096)
    buffer, run = as_run(0, [patterned(1000, i) for i in range(600)])
    assert send_run(sender, buffer, run, 3, 5, bench.loop.now_ns()) < 600
    assert sender.is_blocked
    small = data(5, 0, b"")
    assert sender.send_packed([small], 0, bench.loop.now_ns()) == 0
    assert not sender.send_message(small, bench.loop.now_ns())


def test_the_wakeup_never_comes_while_a_send_is_under_way(bench: TcpBench) -> None:
    """A queue above would send what it is just sending a second time."""
    sender = bench.sender(buffer_bytes=1000, send_buffer=1 << 20)
    _, sink = bench.joined(sender)
    sending = False

    def on_unblocked() -> None:
        assert not sending

    sender.on_unblocked = on_unblocked
    buffer, run = as_run(0, [patterned(400, i) for i in range(50)])
    sending = True
    assert send_run(sender, buffer, run, 3, 1, bench.loop.now_ns()) == 50
    sending = False
    bench.until(lambda: len(sink.got) == 50)


# strangers


def test_a_receiver_of_another_session_is_sent_away(bench: TcpBench) -> None:
    sender = bench.sender()
    _, sink = bench.joined(sender)
    stale = KeepingSink()
    address = TcpAddress(sender.address.ip, sender.address.port, SESSION + 1)
    other = bench.receiver(address, stale)
    bench.until(lambda: stale.events == ["ended"])
    assert not other.is_connected
    assert sender.core.stats.num_clients == 1
    expected = bench.send(sender, 1, 0, [b"still here"])
    bench.until(lambda: bool(sink.got))
    assert sink.got == expected
    assert stale.got == []


@pytest.mark.parametrize(
    "garbage",
    [
        bytes(4),
        bytes.fromhex("08000003"),
        bytes.fromhex("086b000cff07000012345678"),
        bytes.fromhex("086b000cff00000012345678"),
        bytes.fromhex("086b000cffff000012345678"),
        bytes.fromhex("086b000cff08000000000001"),
    ],
)
def test_garbage_from_a_receiver_ends_its_connection_alone(bench: TcpBench, garbage: bytes) -> None:
    sender = bench.sender()
    _, sink = bench.joined(sender)
    stranger = bench.stranger(sender.address)
    for i in range(len(garbage)):
        stranger.send(garbage[i : i + 1])
        bench.loop.run_once(0)
    bench.until(lambda: sender.core.stats.num_clients == 1)
    assert bench.read(stranger) == b""
    assert bench.clients[-1][1] is False
    bench.send(sender, 1, 0, [b"x"])
    bench.until(lambda: bool(sink.got))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=st.lists(st.one_of(st.binary(max_size=40), st.just(lbmc.encode(lbmc.tcp_sid_message(SESSION))))))
def test_whatever_a_receiver_says_the_others_hear_the_source(bench: TcpBench, pieces: list[bytes]) -> None:
    """One sender through all examples, so its state carries over."""
    sender = bench.senders[0] if bench.senders else bench.sender()
    if not bench.receivers:
        bench.joined(sender, KeepingSink())
    sink = bench.receivers[0]._sink
    assert isinstance(sink, KeepingSink)
    stranger = bench.stranger(sender.address)
    for piece in pieces:
        try:
            stranger.send(piece)
        except OSError:
            break  # it has been closed
        bench.loop.run_once(0)
    sink.got.clear()
    expected = bench.send(sender, 1, 5, [b"x"])
    bench.until(lambda: sink.got == expected)
    stranger.close()
    bench.until(lambda: sender.core.stats.num_clients == 1)
    assert len(sender._clients) == len(sender._heard) == len(sender._names) == 1


def fake_source(bench: TcpBench, **config: int) -> tuple[socket.socket, TcpReceiver, KeepingSink]:
    """A connected pair of a plain socket and a receiver that takes it for its source."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        sink = KeepingSink()
        address = TcpAddress(sockets.ip_number(LOOPBACK), listener.getsockname()[1], SESSION)
        receiver = bench.receiver(address, sink, **config)
        bench.until(lambda: receiver.is_connected)
        source, _ = listener.accept()
    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    bench.strangers.append(source)
    return source, receiver, sink


def test_the_receiver_says_which_session_it_wants(bench: TcpBench) -> None:
    source, _, _ = fake_source(bench)
    assert source.recv(100) == lbmc.encode(lbmc.tcp_sid_message(SESSION))


@pytest.mark.parametrize("kind", [MessageType.PROACTIVE_RETRANSMISSION, MessageType.RETRANSMISSION])
def test_retransmitted_messages_of_a_stream_are_one_run(bench: TcpBench, kind: MessageType) -> None:
    source, _, sink = fake_source(bench)
    source.send(b"".join(LBMC.pack(kind, 0, 13, 1, sqn) + b"x" for sqn in range(3)))
    bench.until(lambda: len(sink.got) == 3)
    assert sink.got == [(1, sqn, b"x") for sqn in range(3)]
    assert sink.runs == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    messages=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(1, 9)), min_size=1, max_size=20),
    cuts=st.lists(st.integers(1, 200), min_size=1, max_size=30),
)
def test_segments_may_end_anywhere(bench: TcpBench, messages: list[tuple[int, int, int]], cuts: list[int]) -> None:
    source, receiver, sink = fake_source(bench)
    expected: list[Message] = []
    for topic, size, count in messages:
        expected += [(topic, len(expected) + i, patterned(size, i)) for i in range(count)]
    stream = b"".join(data(*message) for message in expected)
    at = number = 0
    while at < len(stream):
        cut = cuts[number % len(cuts)]
        source.send(stream[at : at + cut])
        at, number = at + cut, number + 1
        bench.loop.run_once(0)
    bench.until(lambda: len(sink.got) >= len(expected))
    assert sink.got == expected
    assert receiver.core.stats.bytes_rcved == len(stream)
    assert receiver.core.stats.lbm_msgs_rcved == len(expected)
    receiver.leave()
    source.close()


@pytest.mark.parametrize(
    "garbage",
    [bytes(12), bytes([0, 0, 0, 11]) + bytes(20), b"\x10\0\0\x0c" + bytes(8), b"HTTP/1.1 400 Bad Request\r\n"],
)
def test_garbage_from_a_source_ends_the_session_after_what_was_sound(bench: TcpBench, garbage: bytes) -> None:
    source, receiver, sink = fake_source(bench)
    source.send(data(1, 0, b"sound") + data(1, 1, b"also") + garbage)
    source.shutdown(socket.SHUT_WR)
    bench.until(lambda: "ended" in sink.events)
    assert sink.got == [(1, 0, b"sound"), (1, 1, b"also")]
    assert sink.events == ["began", "ended"]
    assert receiver.bad_stream == 1
    assert receiver.core.state is TcpState.CLOSED


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(garbage=st.lists(st.binary(max_size=200), max_size=5))
def test_whatever_a_source_sends_nothing_is_raised(bench: TcpBench, garbage: list[bytes]) -> None:
    source, receiver, sink = fake_source(bench)
    for piece in garbage:
        try:
            source.send(piece)
        except OSError:
            break
        bench.loop.run_once(0)
    source.close()
    bench.until(lambda: sink.events[-1:] == ["ended"])
    assert receiver.core.state is TcpState.CLOSED


def test_a_read_that_fills_the_buffer_and_leaves_nothing_is_no_busy_loop(bench: TcpBench) -> None:
    bench.space = ReadSpace(500)
    source, _, sink = fake_source(bench)
    source.send(data(1, 0, bytes(488)))
    bench.until(lambda: len(sink.got) == 1)
    assert not bench.loop.run_once(0)


def test_many_messages_of_alternating_topics_take_time_in_proportion(bench: TcpBench) -> None:
    """Guards against a look at everything that is buffered for each message, which made this a matter of minutes."""
    source, _, sink = fake_source(bench)
    expected = [(i % 2, i, b"ab") for i in range(60_000)]
    stream = b"".join(data(*message) for message in expected)
    source.setblocking(False)
    began = time.process_time()
    while stream:
        stream = stream[source.send(stream[: 1 << 18]) :]
        bench.loop.run_once(0)
        bench.loop.run_once(0)
    bench.until(lambda: len(sink.got) == len(expected))
    assert time.process_time() - began < 5
    assert sink.got == expected


# ends


def test_a_source_that_went_and_returned_is_joined_again_when_it_is_advertised(bench: TcpBench) -> None:
    sender = bench.sender()
    receiver, sink = bench.joined(sender, retry_ns=ms(1))
    first = bench.send(sender, 1, 0, [b"first"])
    bench.until(lambda: len(sink.got) == 1)
    sender.close(0, bench.loop.now_ns())
    bench.until(lambda: sink.events == ["began", "ended"])
    again = bench.sender(port=sender.address.port)
    deadline = bench.loop.now_ns() + s(10)
    while again.core.stats.num_clients == 0:
        assert bench.loop.now_ns() < deadline
        receiver.advertised(bench.loop.now_ns())
        bench.loop.run_once(ms(5))
    second = bench.send(again, 1, 1, [b"second"])
    bench.until(lambda: len(sink.got) == 2)
    assert sink.got == first + second
    assert sink.events == ["began", "ended", "began"]


def test_half_a_message_of_a_lost_connection_is_not_mixed_with_the_next(bench: TcpBench) -> None:
    with socket.create_server((LOOPBACK, 0)) as listener:
        sink = KeepingSink()
        address = TcpAddress(sockets.ip_number(LOOPBACK), listener.getsockname()[1], SESSION)
        receiver = bench.receiver(address, sink, retry_ns=0)
        bench.until(lambda: receiver.is_connected)
        source, _ = listener.accept()
        source.send(data(1, 0, b"whole") + data(1, 1, b"this one is cut")[:20])
        bench.until(lambda: len(sink.got) == 1)
        source.close()
        bench.until(lambda: sink.events == ["began", "ended"])
        receiver.advertised(bench.loop.now_ns())
        bench.until(lambda: receiver.is_connected)
        source, _ = listener.accept()
        source.send(data(1, 2, b"next"))
        bench.until(lambda: len(sink.got) == 2)
        source.close()
    assert sink.got == [(1, 0, b"whole"), (1, 2, b"next")]


def test_a_source_that_is_not_there_ends_the_attempt(bench: TcpBench) -> None:
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
    sink = KeepingSink()
    bench.receiver(TcpAddress(sockets.ip_number(LOOPBACK), port, SESSION), sink)
    bench.until(lambda: sink.events == ["ended"])


def test_no_descriptor_left_for_a_connection_ends_the_attempt(bench: TcpBench) -> None:
    sink = KeepingSink()
    bench.sockets.refused.add("connecting")
    bench.receiver(TcpAddress(sockets.ip_number(LOOPBACK), 9, SESSION), sink)
    assert sink.events == ["ended"]


def test_no_descriptor_left_to_accept_with_is_no_busy_loop(bench: TcpBench, caplog: pytest.LogCaptureFixture) -> None:
    sender = bench.sender()
    waiting = socket.socket()
    bench.strangers.append(waiting)
    waiting.connect((LOOPBACK, sender.address.port))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (waiting.fileno() + 1, hard))
    taken = []
    try:
        with pytest.raises(OSError, match="Too many open files"):  # noqa: PT012  # as many as fit
            while True:
                taken.append(socket.socket())
        turns = 0
        deadline = bench.loop.now_ns() + ms(50)
        while bench.loop.now_ns() < deadline:
            bench.loop.run_once(ms(10))
            turns += 1
        assert turns < 20
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for sock in taken:
            sock.close()
    bench.until(lambda: sender.core.stats.num_clients == 1)
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) <= 2


@pytest.mark.parametrize("event", ["began", "runs"])
def test_after_leaving_in_a_callback_nothing_is_reported(bench: TcpBench, event: str) -> None:
    source, receiver, sink = fake_source(bench, activity_timeout_ns=ms(500))
    reported: list[str] = []

    def on_event(what: str, session: ReceiverTransport) -> None:
        reported.append(what)
        if what == event:
            session.leave()

    sink.on_event = on_event
    source.send(data(1, 0, b"x") * 3)
    bench.until(lambda: event in reported)
    seen = list(reported)
    deadline = bench.loop.now_ns() + ms(600)
    while bench.loop.now_ns() < deadline:
        bench.loop.run_once(ms(10))
    assert reported == seen
    assert bench.loop.next_deadline() is None
    assert not receiver.is_connected


def test_silence_ends_a_session_with_a_timeout(bench: TcpBench) -> None:
    source, receiver, sink = fake_source(bench, activity_timeout_ns=ms(20))
    source.send(data(1, 0, b"x"))
    bench.until(lambda: sink.events == ["began", "ended"])
    assert not receiver.is_connected
    assert bench.loop.next_deadline() is None


def test_a_sender_that_lingers_gives_a_slow_receiver_the_rest(bench: TcpBench) -> None:
    sender = bench.sender(send_buffer=4096)
    slow = bench.stranger(sender.address, receive_buffer=4096)
    buffer, run = as_run(0, [patterned(1000, i) for i in range(600)])
    taken = send_run(sender, buffer, run, 3, 5, bench.loop.now_ns())
    assert sender.core.stats.bytes_buffered > 0
    sender.close(s(10), bench.loop.now_ns())
    assert sender.is_flushing
    assert split(bench.read(slow)) == [(5, i, patterned(1000, i)) for i in range(taken)]
    assert bench.closed == [sender]
    assert not sender.is_flushing
    assert bench.loop.next_deadline() is None


def test_a_sender_stops_lingering_when_the_time_is_over(bench: TcpBench) -> None:
    sender = bench.sender(send_buffer=4096)
    bench.stranger(sender.address, receive_buffer=4096)
    buffer, run = as_run(0, [patterned(1000, i) for i in range(600)])
    send_run(sender, buffer, run, 3, 5, bench.loop.now_ns())
    sender.close(ms(20), bench.loop.now_ns())
    bench.until(lambda: bench.closed == [sender])
    assert send_run(sender, buffer, run, 3, 5, bench.loop.now_ns()) == 0
    assert not sender.send_message(data(1, 1, b""), bench.loop.now_ns())
    assert bench.loop.next_deadline() is None


def test_closing_again_ends_the_lingering_at_once(bench: TcpBench) -> None:
    sender = bench.sender(send_buffer=4096)
    bench.stranger(sender.address, receive_buffer=4096)
    buffer, run = as_run(0, [patterned(1000, i) for i in range(600)])
    send_run(sender, buffer, run, 3, 5, bench.loop.now_ns())
    sender.close(s(10), bench.loop.now_ns())
    sender.close(0, bench.loop.now_ns())
    assert bench.closed == [sender]
    assert bench.loop.next_deadline() is None


def test_the_port_is_free_while_a_sender_lingers(bench: TcpBench) -> None:
    sender = bench.sender(send_buffer=4096)
    bench.stranger(sender.address, receive_buffer=4096)
    buffer, run = as_run(0, [patterned(1000, i) for i in range(600)])
    send_run(sender, buffer, run, 3, 5, bench.loop.now_ns())
    sender.close(s(10), bench.loop.now_ns())
    again = bench.sender(port=sender.address.port)
    _, sink = bench.joined(again)
    expected = bench.send(again, 1, 0, [b"x"])
    bench.until(lambda: sink.got == expected)


def test_what_was_sent_before_the_end_arrives_even_if_the_receiver_had_not_been_heard(bench: TcpBench) -> None:
    """A close with unread bytes resets the connection and takes with it what is on its way."""
    sender = bench.sender(send_buffer=1 << 20, buffer_bytes=1 << 20)
    stranger = bench.stranger(sender.address)
    stranger.send(lbmc.encode(lbmc.tcp_sid_message(SESSION)))
    buffer, run = as_run(0, [patterned(1000, i) for i in range(100)])
    assert send_run(sender, buffer, run, 3, 5, bench.loop.now_ns()) == 100
    sender.close(s(1), bench.loop.now_ns())
    assert split(bench.read(stranger)) == [(5, i, patterned(1000, i)) for i in range(100)]


def test_receivers_that_vanish_while_they_are_written_to_leave_nothing_behind(bench: TcpBench) -> None:
    sender = bench.sender(SlowReceiver.SOURCE_PACED, send_buffer=4096)
    _, sink = bench.joined(sender)
    vanishing = [bench.stranger(sender.address, receive_buffer=4096) for _ in range(5)]
    expected: list[Message] = []
    for i in range(60):
        expected += bench.send(sender, 1, i, [patterned(3000, i)])
        if i % 10 == 9 and vanishing:
            sock = vanishing.pop()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, Struct("ii").pack(1, 0))  # reset, do not finish
            sock.close()
        bench.until(lambda i=i: len(sink.got) == i + 1)  # type: ignore[misc]  # bound now
    assert sink.got == expected
    bench.until(lambda: sender.core.stats.num_clients == 1)
    assert sender.core.stats.bytes_buffered == 0
    assert not sender._waiting


@pytest.mark.parametrize("others", [0, 1])
def test_a_session_blocked_by_a_receiver_that_vanishes_goes_on(bench: TcpBench, others: int) -> None:
    sender = bench.sender(send_buffer=4096)
    sinks = [bench.joined(sender)[1] for _ in range(others)]
    slow = bench.stranger(sender.address, receive_buffer=4096)
    buffer, run = as_run(0, [patterned(1000, i) for i in range(600)])
    done = send_run(sender, buffer, run, 3, 5, bench.loop.now_ns())

    def on_unblocked() -> None:
        nonlocal done
        done += send_run(sender, buffer, run, 3, 5, bench.loop.now_ns(), first=done)

    sender.on_unblocked = on_unblocked
    bench.settle()
    assert sender.is_blocked
    assert done < 600
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, Struct("ii").pack(1, 0))
    slow.close()
    bench.until(lambda: done == 600)
    for sink in sinks:
        bench.until(lambda sink=sink: len(sink.got) == 600)  # type: ignore[misc]  # bound now
        assert sink.got == [(5, i, patterned(1000, i)) for i in range(600)]


class Hesitant(socket.socket):
    """Takes three bytes of a send at most, and every other time none."""

    calls = 0

    def send(self, data: bytes, *args: object) -> int:  # type: ignore[override]  # only as the product calls it
        self.calls += 1
        if self.calls % 2 == 0:
            raise BlockingIOError
        return super().send(data[:3])


def test_the_name_of_the_session_arrives_in_however_small_pieces_it_is_taken(bench: TcpBench) -> None:
    bench.sockets.wrap = lambda sock: Hesitant(fileno=sock.detach())
    source, _, _ = fake_source(bench)
    source.setblocking(False)
    heard = b""
    expected = lbmc.encode(lbmc.tcp_sid_message(SESSION))

    def has_all() -> bool:
        nonlocal heard
        with contextlib.suppress(BlockingIOError):
            heard += source.recv(100)
        return len(heard) >= len(expected)

    bench.until(has_all)
    assert heard == expected
