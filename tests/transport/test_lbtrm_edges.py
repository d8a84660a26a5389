"""The LBT-RM shells where it gets tight: refused sends, wraps, shared buffers, strangers, ends within callbacks."""

from __future__ import annotations

import errno
import os
import random
import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dro.clock import ms, s
from dro.config.um.options import UmOptions
from dro.errors import DecodeError
from dro.log.events import LogEvent
from dro.loop import Loop
from dro.proto.ratelimit import RateLimiter
from dro.proto.repair.loss import LossConfig
from dro.proto.repair.receiver import ReceiverSession
from dro.proto.repair.source import SourceConfig, SourceSession
from dro.sqn import MASK
from dro.transport import mmsg, sockets
from dro.transport.datagrams.receiver import DatagramReceiver
from dro.transport.datagrams.setup import DatagramSenderSetup
from dro.transport.kind import SessionHost
from dro.transport.lbtrm.receiver import LbtrmGroup
from dro.transport.lbtrm.sender import LbtrmSender
from dro.transport.runs import KIND_DATA, Run, RunTable, read_messages
from dro.transport.session import ReceiverTransport, SenderTransport
from dro.transport.sockets import OS_SOCKETS
from dro.wire import lbtrm
from dro.wire.lbmc.message import HEADER as LBMC
from dro.wire.lbtrm import DATA_HEADER
from dro.wire.source_string import LbtrmAddress
from tests.fakes.fussy_socket import FussySocket
from tests.fakes.runs import send_run
from tests.fakes.session_sink import KeepingSink, Message

LOOPBACK = "127.0.0.1"


def data(topic: int, sqn: int, payload: bytes) -> bytes:
    return LBMC.pack(0, 0, 12 + len(payload), topic, sqn & MASK) + payload


class LbtrmBench:
    """One loop, one group, any number of senders to it."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.batch = mmsg.DatagramBatch()
        worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
        self.group_ip = sockets.ip_number(f"239.202.{worker}.{random.randrange(1, 255)}")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((LOOPBACK, 0))
            self.port = probe.getsockname()[1]
        self.naks = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.naks.bind((LOOPBACK, 0))
        self.naks.setblocking(False)
        self.emptied = 0
        host = SessionHost(self.loop, UmOptions(), self.batch, random.Random(1))
        self.group = LbtrmGroup(
            host, self.group_ip, self.port, LOOPBACK, buffer_bytes=8 << 20, nak_socket=self.naks,
            on_empty=self._on_empty,
        )  # fmt: skip
        self.senders: list[LbtrmSender] = []
        self.closed: list[SenderTransport] = []
        self.limiter = RateLimiter(0, ms(10), self.loop.now_ns())
        self.others: list[socket.socket] = []

    def _on_empty(self, group: LbtrmGroup) -> None:
        self.emptied += 1
        group.close()

    def close(self) -> None:
        for sender in self.senders:
            sender.close(0, self.loop.now_ns())
        self.group.close()
        for sock in (self.naks, *self.others):
            sock.close()
        self.loop.close()

    def data_socket(self) -> FussySocket:
        plain = OS_SOCKETS.multicast_sender(self.group_ip, self.port, LOOPBACK, ttl=0, buffer_bytes=4 << 20)
        return FussySocket.of(plain)

    def stranger(self) -> socket.socket:
        self.others.append(self.data_socket())
        return self.others[-1]

    def sender(
        self,
        sock: FussySocket | None = None,
        *,
        datagram_max: int = 8192,
        config: SourceConfig | None = None,
        retransmit_bps: int = 0,
    ) -> LbtrmSender:
        nak = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        nak.bind((LOOPBACK, 0))
        nak.setblocking(False)
        address = LbtrmAddress(
            sockets.ip_number(LOOPBACK), self.group_ip, random.randrange(1, 1 << 32), self.port, nak.getsockname()[1]
        )
        now = self.loop.now_ns()
        core = SourceSession(config or SourceConfig(), self.limiter, RateLimiter(retransmit_bps, ms(10), now), now)
        sender = LbtrmSender(
            self.loop,
            DatagramSenderSetup(
                address,
                sock or self.data_socket(),
                nak,
                LOOPBACK,
                datagram_max,
                transport_index=1,
                header_bytes=DATA_HEADER,
            ),
            core,
            self.limiter,
            self.batch,
            self.closed.append,
            tgsz_log2=3,
        )
        self.senders.append(sender)
        return sender

    def join(self, sender: LbtrmSender, config: LossConfig | None = None) -> tuple[DatagramReceiver, KeepingSink]:
        sink = KeepingSink()
        core = ReceiverSession(config or LossConfig(), random.Random(1).random, self.loop.now_ns())
        return self.group.join(sender.address, core, sink, sink.on_ended), sink

    def pair(
        self, sock: FussySocket | None = None, *, datagram_max: int = 8192, config: SourceConfig | None = None
    ) -> tuple[LbtrmSender, DatagramReceiver, KeepingSink]:
        sender = self.sender(sock, datagram_max=datagram_max, config=config)
        return (sender, *self.join(sender))

    def offer(self, sender: LbtrmSender, first: int, payloads: list[bytes], topic: int = 7) -> list[Message]:
        """Send equal payloads as one run, waiting while the session is blocked."""
        buffer, run = as_run(first, payloads)
        done = 0
        while done < len(payloads):
            taken = send_run(sender, buffer, run, 0, topic, self.loop.now_ns(), first=done)
            done += taken
            if done < len(payloads):
                assert sender.is_blocked
                self.until(lambda: not sender.is_blocked)
        return [(topic, (first + i) & MASK, payload) for i, payload in enumerate(payloads)]

    def until(self, condition: Callable[[], bool], seconds: float = 10) -> None:
        deadline = self.loop.now_ns() + s(seconds)
        while not condition():
            assert self.loop.now_ns() < deadline, "deadline"
            self.loop.run_once(ms(20))


def as_run(first: int, payloads: list[bytes], gap: int = DATA_HEADER) -> tuple[bytearray, Run]:
    size = 12 + len(payloads[0])
    buffer = bytearray()
    for i, payload in enumerate(payloads):
        buffer += bytes(gap) + LBMC.pack(0, 0, size, 99, (first + i) & MASK) + payload
    return buffer, Run(99, first & MASK, len(payloads), gap, size, size + gap, gap, 0, KIND_DATA)


@pytest.fixture
def bench() -> Iterator[LbtrmBench]:
    made = LbtrmBench()
    yield made
    made.close()


# sends that fail


@pytest.mark.parametrize("code", [errno.EIO, errno.EINVAL, errno.EMSGSIZE, errno.EOPNOTSUPP])
def test_a_train_that_is_refused_goes_out_one_by_one_and_is_not_tried_again(bench: LbtrmBench, code: int) -> None:
    sock = bench.data_socket()
    sender, _, sink = bench.pair(sock)
    sock.answers = iter([code])
    expected = bench.offer(sender, 0, [bytes([i]) * 100 for i in range(30)])
    assert sock.calls == {"sendmsg": 1, "send": 30}
    expected += bench.offer(sender, 30, [bytes([i]) * 100 for i in range(30)])
    assert sock.calls == {"sendmsg": 1, "send": 60}
    bench.until(lambda: len(sink.got) == 60)
    assert sink.got == expected
    bench.offer(sender, 60, [bytes(10)] * 30)
    is_of_size = code in (errno.EINVAL, errno.EMSGSIZE)  # then shorter datagrams may do
    assert sock.calls["sendmsg"] == (2 if is_of_size else 1)
    assert sender.send_errors == 0


def test_a_socket_that_fills_up_in_the_middle_of_a_run_goes_on_where_it_stopped(bench: LbtrmBench) -> None:
    sock = bench.data_socket()
    sender, _, sink = bench.pair(sock)
    sock.answers = iter([0, errno.EAGAIN, 0, errno.EAGAIN, errno.EAGAIN])
    woken: list[bool] = []
    sender.on_unblocked = lambda: woken.append(sender.is_blocked)
    expected = bench.offer(sender, 0, [bytes([i]) * 100 for i in range(200)])
    bench.until(lambda: len(sink.got) == 200)
    assert sink.got == expected
    assert woken == [False] * 3
    assert sender.core.next_sqn == 200


def test_a_device_without_buffers_is_tried_again_later_and_not_all_the_time(bench: LbtrmBench) -> None:
    """Such a socket stays writable."""
    sock = bench.data_socket()
    sender, _, sink = bench.pair(sock)
    sock.answers = iter([errno.ENOBUFS] * 5)
    began = bench.loop.now_ns()
    expected = bench.offer(sender, 0, [bytes([i]) * 100 for i in range(10)])
    assert bench.loop.now_ns() - began >= ms(4)
    bench.until(lambda: len(sink.got) == 10)
    assert sink.got == expected


def test_a_send_that_fails_counts_as_sent_and_is_repaired(bench: LbtrmBench, caplog: pytest.LogCaptureFixture) -> None:
    sock = bench.data_socket()
    sender, receiver, sink = bench.pair(sock)
    expected = bench.offer(sender, 0, [b"x"])
    sock.answers = iter([errno.ENETUNREACH, errno.EPERM])
    expected += bench.offer(sender, 1, [bytes([i]) * 50 for i in range(20)])
    expected += bench.offer(sender, 21, [b"y"])
    expected += bench.offer(sender, 22, [b"z"])
    bench.until(lambda: len(sink.got) == len(expected))
    assert sorted(sink.got) == expected
    assert sender.send_errors == 2
    told = [(record.msg, record.__dict__["error"], record.__dict__["failed"]) for record in caplog.records]
    codes = (errno.ENETUNREACH, errno.EPERM)
    assert told == [(LogEvent.SEND_FAILED, os.strerror(code), n) for n, code in enumerate(codes, start=1)]
    assert receiver.core.stats.lost == 21


@pytest.mark.parametrize("payload", [21_000, 32_490, 32_500, 65_000 - 32, 65_001 - 32, 65_507 - 32])
def test_datagrams_of_any_size_go_out(bench: LbtrmBench, payload: int) -> None:
    sender, _, sink = bench.pair(datagram_max=65535)
    expected = bench.offer(sender, 0, [bytes([i]) * payload for i in range(4)])
    bench.until(lambda: len(sink.got) == 4)
    assert sink.got == expected


def test_no_fragment_is_allowed_that_udp_cannot_carry(bench: LbtrmBench) -> None:
    assert bench.sender(datagram_max=65535).fragment_max_bytes == 65507 - DATA_HEADER
    assert bench.sender(datagram_max=8192).fragment_max_bytes == 8192 - DATA_HEADER


# the rate limit


def test_two_sessions_share_the_limit_and_closing_one_that_is_blocked_frees_the_line(bench: LbtrmBench) -> None:
    bench.limiter = RateLimiter(8_000_000, ms(10), bench.loop.now_ns())  # 10000 bytes in 10 ms
    first, second = bench.sender(), bench.sender()
    _, sink = bench.join(second)
    buffer, run = as_run(0, [bytes(968)] * 30)
    assert send_run(first, buffer, run, 0, 1, bench.loop.now_ns()) == 10
    assert first.is_blocked
    assert send_run(second, bytearray(buffer), run, 0, 1, bench.loop.now_ns()) == 0
    assert second.is_blocked
    first.on_unblocked = lambda: pytest.fail("woken after the end")
    first.close(0, bench.loop.now_ns())
    bench.until(lambda: not second.is_blocked)
    bench.offer(second, 0, [bytes(968)] * 30)
    bench.until(lambda: len(sink.got) == 30)


def test_what_is_sent_from_within_the_wakeup_may_block_again(bench: LbtrmBench) -> None:
    bench.limiter = RateLimiter(8_000_000, ms(10), bench.loop.now_ns())
    sender, _, sink = bench.pair()
    buffer, run = as_run(0, [bytes([i]) * 968 for i in range(45)])
    done = send_run(sender, buffer, run, 0, 7, bench.loop.now_ns())

    def on_unblocked() -> None:
        nonlocal done
        assert not sender.is_blocked
        done += send_run(sender, buffer, run, 0, 7, bench.loop.now_ns(), first=done)

    sender.on_unblocked = on_unblocked
    bench.until(lambda: len(sink.got) == 45)
    assert sink.got == [(7, i, bytes([i]) * 968) for i in range(45)]
    assert not sender.is_blocked


# numbers and buffers


def test_sqns_wrap_within_a_batch(bench: LbtrmBench) -> None:
    first = MASK - 70
    sender, _, sink = bench.pair(config=SourceConfig(first_sqn=first))
    expected: list[Message] = []
    for at in range(0, 200, 50):
        expected += bench.offer(sender, first + 5 + at, [bytes([at + i]) * 40 for i in range(50)])
        bench.until(lambda: len(sink.got) >= len(expected))  # noqa: B023  # called at once
    assert sink.got == expected
    assert sender.core.next_sqn == (first + 200) & MASK


def test_retransmissions_are_right_when_many_runs_share_one_buffer(bench: LbtrmBench) -> None:
    """As an egress does it: one chunk with runs of several sizes and headrooms, each sent from where it lies."""
    sender, _, sink = bench.pair()
    rng = random.Random(4)
    chunk = bytearray()
    builder = RunTable()
    sqns = [0, 0, 0]
    expected: list[Message] = []
    for _ in range(120):
        start = len(chunk) + DATA_HEADER
        chunk += bytes(DATA_HEADER)
        topic, size = rng.randrange(3), rng.choice([0, 10, 10, 400])
        for _ in range(rng.choice([1, 1, 3])):
            payload = rng.randbytes(size)
            chunk += data(topic, sqns[topic], payload)
            expected.append((topic, sqns[topic], payload))
            sqns[topic] += 1
        read_messages(chunk, start, len(chunk), DATA_HEADER, builder)
    for run in builder.take():
        assert send_run(sender, chunk, run, 0, run.topic_index, bench.loop.now_ns()) == run.fragments
    bench.until(lambda: len(sink.got) == len(expected))
    assert sink.got == expected
    count = sender.core.next_sqn
    assert count == len(expected)
    hearing = OS_SOCKETS.multicast_receiver(bench.group_ip, bench.port, LOOPBACK, buffer_bytes=8 << 20, option="test")
    bench.others.append(hearing)
    nak = lbtrm.Nak(sender.address.nak_port, sender.address.session_id, tuple(range(count)))
    sender.on_packet(lbtrm.encode(nak), 0, bench.loop.now_ns())
    again = []
    for sqn in range(count):
        packet = lbtrm.decode(hearing.recv(65536))
        assert isinstance(packet, lbtrm.Data)
        assert (packet.sqn, packet.trail, packet.flags) == (sqn, 0, lbtrm.FLAG_UCAST_NAKS | lbtrm.FLAG_RETRANSMISSION)
        _, _, length, topic, topic_sqn = LBMC.unpack_from(packet.payload)
        assert length == len(packet.payload)
        again.append((topic, topic_sqn, packet.payload[12:]))
    assert again == expected


# strangers


def junk() -> st.SearchStrategy[bytes]:
    """Bytes that are more and more like packets."""
    u32 = st.one_of(st.integers(0, 20), st.integers(0, MASK))
    head = st.tuples(
        st.sampled_from([0, 0, 0, 2, 3, 4, 1, 0x10, 0xFF]), st.sampled_from([0, 0, 0, 5, 0xFF]), st.booleans()
    )
    return st.one_of(
        st.binary(max_size=80),
        st.builds(
            lambda head, words, tail: (
                bytes(head[:2])
                + (b"SESSION!"[:6] if head[2] else bytes(6))
                + b"".join(word.to_bytes(4, "big") for word in words)
                + tail
            ),
            head,
            st.lists(u32, max_size=6),
            st.one_of(st.binary(max_size=60), st.just(data(1, 1, b"payload"))),
        ),
    )


class Strangers:
    """A genuine session that tells when everything before has been handled, and a socket for what strangers send."""

    def __init__(self, bench: LbtrmBench) -> None:
        self.bench = bench
        self.sender, _, self.sink = bench.pair()
        self.victim = bench.sender()
        self.socket = bench.stranger()

    def send(self, datagrams: list[bytes]) -> None:
        for at in range(0, len(datagrams), 20):  # within what a socket buffer holds
            for datagram in datagrams[at : at + 20]:
                self.socket.send(datagram)
            count = len(self.sink.got)
            self.bench.offer(self.sender, count, [b"genuine"])
            self.bench.until(lambda: len(self.sink.got) > count)  # noqa: B023  # called at once
            assert self.sink.got[-1] == (7, count, b"genuine")

    def counted(self) -> int:
        return sum(asdict(self.bench.group.stats).values())


@pytest.fixture
def strangers(bench: LbtrmBench) -> Strangers:
    return Strangers(bench)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(datagrams=st.lists(junk(), max_size=30))
def test_datagrams_of_no_session_are_counted_once_each(strangers: Strangers, datagrams: list[bytes]) -> None:
    before = strangers.counted()
    strangers.send(datagrams)
    assert strangers.counted() == before + len(datagrams)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(datagrams=st.lists(junk(), max_size=30))
def test_whatever_carries_the_session_of_a_source_harms_that_session_alone(
    strangers: Strangers, datagrams: list[bytes]
) -> None:
    """A stranger on the source's host can do that."""
    address = strangers.victim.address
    receiver, _ = strangers.bench.join(strangers.victim)
    key = address.nak_port.to_bytes(2, "big") + address.session_id.to_bytes(4, "big")
    forged = [datagram.replace(b"SESSIO", key) for datagram in datagrams]
    control = 0
    for datagram in forged:
        try:
            packet = lbtrm.decode(datagram)
        except DecodeError:
            continue
        control += datagram[2:8] == key and isinstance(packet, lbtrm.SessionMessage | lbtrm.Ncf)
    before = strangers.counted()
    strangers.send(forged)
    assert strangers.counted() - before + control + receiver.core.stats.msgs_rcved >= len(forged)
    receiver.leave()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(datagrams=st.lists(junk(), max_size=20))
def test_whatever_comes_to_the_nak_port_is_answered_or_counted(strangers: Strangers, datagrams: list[bytes]) -> None:
    sender, bench = strangers.victim, strangers.bench
    address = sender.address
    key = address.nak_port.to_bytes(2, "big") + address.session_id.to_bytes(4, "big")
    before = sender.bad_packets + sender.core.stats.nak_pckts_rcved
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for datagram in datagrams:
            sock.sendto(datagram.replace(b"SESSIO", key), (LOOPBACK, address.nak_port))
        bench.until(lambda: sender.bad_packets + sender.core.stats.nak_pckts_rcved == before + len(datagrams))


def test_empty_datagrams_end_nothing(strangers: Strangers) -> None:
    strangers.send([b""] * 100)
    assert strangers.bench.group.stats.dgrams_dropped_size == 100


# ends and callbacks


def test_the_beginning_is_told_before_the_first_data(bench: LbtrmBench) -> None:
    sender, _, sink = bench.pair()
    bench.offer(sender, 0, [b"x"] * 3)
    bench.until(lambda: len(sink.got) == 3)
    assert sink.order == ["began", "runs"]


@pytest.mark.parametrize("event", ["began", "runs"])
def test_after_leaving_in_a_callback_nothing_is_reported(bench: LbtrmBench, event: str) -> None:
    sender, receiver, sink = bench.pair()
    other, _, untouched = bench.pair()

    def on_event(what: str, session: ReceiverTransport) -> None:
        if what == event:
            session.leave()

    sink.on_event = on_event
    for i in range(3):
        bench.offer(sender, i, [b"x"])
        bench.offer(other, i, [b"y"])
    bench.until(lambda: len(untouched.got) == 3)
    assert sink.order == {"began": ["began"], "runs": ["began", "runs"]}[event]
    assert not receiver.is_joined
    bench.until(lambda: not bench.loop.run_once(0))
    assert receiver.timer is None or not receiver.timer.is_pending


def test_a_session_that_is_left_by_the_sink_of_another_gets_nothing_more(bench: LbtrmBench) -> None:
    first, first_receiver, first_sink = bench.pair()
    second, second_receiver, second_sink = bench.pair()
    first_sink.on_event = lambda what, session: second_receiver.leave()
    second_sink.on_event = lambda what, session: first_receiver.leave()
    bench.offer(first, 0, [b"x"])
    bench.offer(second, 0, [b"y"])
    bench.until(lambda: bool(first_sink.order or second_sink.order))
    for _ in range(3):
        bench.loop.run_once(0)
    assert sorted([first_sink.order, second_sink.order]) == [[], ["began", "runs"]]


def test_the_last_session_may_close_the_group_in_the_middle_of_a_batch(bench: LbtrmBench) -> None:
    sender, receiver, sink = bench.pair()
    sink.on_event = lambda what, session: session.leave()
    for i in range(300):
        bench.offer(sender, i, [bytes(i % 7)])
    bench.until(lambda: bench.emptied == 1)
    assert sink.order == ["began"]
    assert not receiver.is_joined


def test_silence_ends_a_session_and_its_timers(bench: LbtrmBench) -> None:
    sender = bench.sender()
    receiver, sink = bench.join(sender, LossConfig(activity_timeout_ns=ms(30)))
    bench.offer(sender, 0, [b"x"])
    bench.until(lambda: "ended" in sink.order)
    assert sink.order == ["began", "runs", "ended"]
    assert bench.emptied == 1
    sender.close(0, bench.loop.now_ns())
    bench.until(lambda: bench.loop.next_deadline() is None)  # a turn may have been left that reads nothing
    assert not receiver.is_joined


def test_a_sender_that_lingers_goes_on_repairing_and_then_ends(bench: LbtrmBench) -> None:
    config = SourceConfig(sm_min_ns=ms(20), ignore_ns=0)
    sender, _, sink = bench.pair(config=config)
    began = bench.loop.now_ns()
    bench.offer(sender, 0, [b"x"] * 3)
    bench.until(lambda: len(sink.got) == 3)
    sender.close(s(1), bench.loop.now_ns())
    assert bench.closed == []
    nak = lbtrm.Nak(sender.address.nak_port, sender.address.session_id, (0, 1))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(lbtrm.encode(nak), (LOOPBACK, sender.address.nak_port))
    bench.until(lambda: sender.core.stats.rxs_sent == 2)
    bench.until(lambda: bench.closed == [sender])
    assert bench.loop.now_ns() - began >= s(1)
    buffer, run = as_run(0, [b"x"])
    assert send_run(sender, buffer, run, 0, 1, bench.loop.now_ns()) == 0
    assert not sender.send_message(data(1, 1, b""), bench.loop.now_ns())
    bench.group.close()
    assert bench.loop.next_deadline() is None


def test_closing_again_ends_the_lingering_and_leaves_no_timer(bench: LbtrmBench) -> None:
    sender, receiver, sink = bench.pair()
    bench.offer(sender, 0, [b"x"])
    bench.until(lambda: len(sink.got) == 1)
    sender.close(s(10), bench.loop.now_ns())
    sender.close(0, bench.loop.now_ns())
    sender.close(0, bench.loop.now_ns())
    assert bench.closed == [sender]
    receiver.leave()
    assert bench.loop.next_deadline() is None


def test_naks_that_cannot_be_sent_harm_nobody(bench: LbtrmBench, caplog: pytest.LogCaptureFixture) -> None:
    """The port comes out of an advertisement, so it may be any."""
    sender = bench.sender()
    address = LbtrmAddress(sender.address.ip, bench.group_ip, 5, bench.port, 0)
    sink = KeepingSink()
    config = LossConfig(initial_backoff_ns=0, backoff_ns=ms(1), generation_ns=ms(100))
    core = ReceiverSession(config, random.Random(1).random, bench.loop.now_ns())
    receiver = bench.group.join(address, core, sink, sink.on_ended)
    sock = bench.stranger()
    for sqn in (0, 9):
        sock.send(lbtrm.encode(lbtrm.Data(0, 5, sqn, 0, payload=data(1, sqn, b"x"))))
    bench.until(lambda: receiver.unrecoverable_dgrams > 0)
    assert core.stats.naks_sent > 100
    assert len(caplog.records) < 10


def test_what_a_far_jump_leaves_out_is_unrecoverable(bench: LbtrmBench) -> None:
    sender = bench.sender()
    receiver, sink = bench.join(sender, LossConfig(max_gap=10, generation_ns=s(60)))
    sock = bench.stranger()
    for sqn in (0, 100, 101):  # the second one is believed with the third
        port, session_id = sender.address.nak_port, sender.address.session_id
        sock.send(lbtrm.encode(lbtrm.Data(port, session_id, sqn, 0, payload=data(1, sqn, b"x"))))
    bench.until(lambda: len(sink.got) == 2)
    assert receiver.unrecoverable_dgrams == 90


def test_a_turn_takes_in_several_batches(bench: LbtrmBench) -> None:
    sender, _, sink = bench.pair()
    count = 2 * mmsg.BATCH + 1
    for sqn in range(count):
        assert sender.send_message(data(7, sqn, b"x"), bench.loop.now_ns())
    bench.until(lambda: bool(sink.got))
    assert len(sink.got) == count


def test_a_batch_is_taken_whole_or_not_at_all(bench: LbtrmBench) -> None:
    bench.limiter = RateLimiter(8_000_000, ms(10), bench.loop.now_ns() + s(60))  # 10000 bytes, not again in this test
    sender = bench.sender()
    batch = [data(7, sqn, bytes(3000)) for sqn in range(2)]
    assert sender.send_packed(batch, 6000, bench.loop.now_ns()) == 2
    assert sender.send_packed(batch, 6000, bench.loop.now_ns()) == 0
    assert sender.is_blocked


def test_a_retransmission_that_waits_for_its_limit_does_not_wait_for_a_session_message(
    bench: LbtrmBench,
) -> None:
    config = SourceConfig(sm_min_ns=s(30), sm_max_ns=s(30), ignore_ns=0)
    sender = bench.sender(config=config, retransmit_bps=800_000)  # a datagram in 10 ms
    bench.offer(sender, 0, [bytes(900)] * 3)
    nak = lbtrm.Nak(sender.address.nak_port, sender.address.session_id, (0, 1, 2))
    sender.on_packet(lbtrm.encode(nak), 0, bench.loop.now_ns())
    assert sender.core.stats.rxs_sent < 3
    bench.until(lambda: sender.core.stats.rxs_sent == 3, 10)


def test_the_same_session_from_another_address_is_another_one(bench: LbtrmBench) -> None:
    sender, receiver, sink = bench.pair()
    bench.offer(sender, 0, [b"ours"])
    address = sender.address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as forger:
        forger.bind(("127.0.0.2", 0))
        forger.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOOPBACK))
        forged = lbtrm.Data(address.nak_port, address.session_id, 1, 0, payload=data(7, 1, b"theirs"))
        forger.sendto(lbtrm.encode(forged), (sockets.ip_text(bench.group_ip), bench.port))
        bench.until(lambda: bench.group.stats.unknown_msgs_rcved == 1)
    bench.offer(sender, 1, [b"ours too"])
    bench.until(lambda: len(sink.got) == 2)
    assert [payload for _, _, payload in sink.got] == [b"ours", b"ours too"]
    assert receiver.core.stats.msgs_rcved == 2
