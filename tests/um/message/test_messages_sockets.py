"""The message level on both hosts and on real sockets: what is sent arrives, once, in order, whole."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Sized
from contextlib import suppress

import pytest

from dro.um.async_api import Context
from dro.um.blocking_api import BlockingContext
from dro.um.message.client_config import Config
from dro.um.message.events import (
    BOS,
    EOS,
    Connect,
    Data,
    Disconnect,
    Event,
    SourceEvent,
    Wakeup,
    WouldBlock,
)
from tests.fakes.um_contexts import PATIENCE_S, private_config
from tests.um.message.test_messages import ready, take


def messages_of(seed: int, count: int, sizes: tuple[int, ...]) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(rng.choice(sizes)) for _ in range(count)]


def in_thread(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_five_thousand_messages_arrive_in_order_and_equal(um_config: Config, transport: str) -> None:
    payloads = messages_of(1, 5000, (1, 2, 13, 64, 500, 1400, 8000, 8172, 8173, 20000))
    with BlockingContext(um_config) as a, BlockingContext(um_config) as b:
        source = a.source("quotes.IBM")
        receiver = b.receiver("quotes.IBM")
        ready(source, receiver, transport)
        sender = in_thread(lambda: [source.send(payload) for payload in payloads])
        got = take(receiver, len(payloads))
        sender.join(60)
        assert [message.data for message in got] == payloads
        sqns = [message.sqn for message in got]
        assert sqns == sorted(set(sqns))
        assert {message.topic for message in got} == {"quotes.IBM"}
        assert {message.source for message in got} == {source.source_string}
        assert {message.otid for message in got} == {source.otid}


def test_the_same_with_asyncio(um_config: Config, transport: str) -> None:
    payloads = messages_of(2, 2000, (0, 1, 64, 1400, 20000))

    async def run() -> list[bytes]:
        async with Context(um_config) as a, Context(um_config) as b:
            source = await a.source("quotes.IBM")
            receiver = await b.receiver("quotes.IBM")
            await receiver.wait_sources()
            if transport == "tcp":
                await source.wait_receivers()

            async def send() -> None:
                for payload in payloads:
                    await source.send(payload)

            sending = asyncio.create_task(send())
            got: list[bytes] = []
            async for event in receiver:
                if isinstance(event, Data):
                    got.append(event.data)
                    if len(got) == len(payloads):
                        break
            await sending
            return got

    assert asyncio.run(asyncio.wait_for(run(), 60)) == payloads


def test_bos_data_eos_in_this_order_on_both_hosts(um_config: Config, transport: str) -> None:
    """One scenario, told the same by threads and by asyncio."""

    def in_threads() -> list[Event]:
        with BlockingContext(um_config) as a, BlockingContext(um_config) as b:
            source = a.source("t", resolver_send_final_advertisements=1)
            receiver = b.receiver("t")
            ready(source, receiver, transport)
            for i in range(3):
                source.send(b"%d" % i)
            events = [receiver.get(PATIENCE_S) for _ in range(4)]
            source.close()
            return [*events, receiver.get(PATIENCE_S)]

    async def in_asyncio() -> list[Event]:
        async with Context(um_config) as a, Context(um_config) as b:
            source = await a.source("t", resolver_send_final_advertisements=1)
            receiver = await b.receiver("t")
            await receiver.wait_sources()
            if transport == "tcp":
                await source.wait_receivers()
            for i in range(3):
                await source.send(b"%d" % i)
            events = [await receiver.get() for _ in range(4)]
            await source.close()
            return [*events, await receiver.get()]

    for events in (in_threads(), asyncio.run(asyncio.wait_for(in_asyncio(), 60))):
        assert [type(event) for event in events] == [BOS, Data, Data, Data, EOS]
        assert [event.data for event in events if isinstance(event, Data)] == [b"0", b"1", b"2"]
        assert [event.sqn for event in events if isinstance(event, Data)] == [0, 1, 2]
        assert len({event.source for event in events if isinstance(event, BOS | EOS)}) == 1


def test_fragments_fit_every_transport_with_datagrams_of_that_size(um_config: Config, transport: str) -> None:
    """A DRO passes fragments from TCP on to LBT-RM as they are, so on TCP there is room for the LBT-RM header too."""
    config = um_config.with_("context", f"transport_{transport}_datagram_max_size", 8192)
    with BlockingContext(config) as a, BlockingContext(config) as b:
        source, receiver = a.source("t"), b.receiver("t")
        ready(source, receiver, transport)
        sizes = {8160: 1, 8161: 2, 8144 * 2: 2, 8144 * 2 + 1: 3}
        for size, count in sizes.items():
            sqns = source.send(bytes(size))
            assert sqns.last - sqns.first + 1 == count
        assert [len(message.data) for message in take(receiver, len(sizes))] == list(sizes)


def test_messages_without_flush_share_datagrams(um_config: Config, transport: str) -> None:
    with BlockingContext(um_config) as a, BlockingContext(um_config) as b:
        source = a.source("t", implicit_batching_interval=100, implicit_batching_minimum_length=2048)
        receiver = b.receiver("t")
        ready(source, receiver, transport)
        for i in range(100):
            source.send(b"%099d" % i, flush=False)
        assert [int(message.data) for message in take(receiver, 100)] == list(range(100))
        if transport == "lbtrm":
            assert a.stats().sources[0].counters.msgs_sent == 6  # 18 of 111 bytes reach 2048... and the rest
        source.send(b"waits", flush=False)
        source.send(b"takes it along")
        assert [message.data for message in take(receiver, 2)] == [b"waits", b"takes it along"]
        source.send(b"flushed", flush=False)
        source.flush()
        assert take(receiver, 1)[0].data == b"flushed"


def test_lost_datagrams_are_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    config = private_config(
        "lbtrm", receiver__transport_lbtrm_nak_initial_backoff_interval=5,
        receiver__transport_lbtrm_nak_backoff_interval=20, source__transport_lbtrm_ignore_interval=5,
        source__transport_lbtrm_sm_minimum_interval=20,
    )  # fmt: skip
    rng = random.Random(7)
    dropped = 0

    def lossy(_view: object, _offsets: object, lengths: Sized, _senders: object, at: int, *_: object) -> int:
        """Leaves all datagrams to the group, but for the lost ones."""
        nonlocal dropped
        while at < len(lengths) and rng.random() < 0.1:
            dropped += 1
            at += 1
        return at

    module = "dro.transport.datagrams.receiver."
    monkeypatch.setattr(module + "scan_datagrams", lossy)
    payloads = messages_of(3, 1000, (10, 1000, 20000))
    with BlockingContext(config) as a, BlockingContext(config) as b:
        source = a.source("t")
        receiver = b.receiver("t")
        ready(source, receiver, "lbtrm")
        source.send(b"first")  # nothing before the first one heard is ever asked for
        sender = in_thread(lambda: [source.send(payload) for payload in payloads])
        first = take(receiver, 1)[0]
        got = [
            first,
            *take(receiver, len(payloads) - (0 if first.data == b"first" else payloads.index(first.data) + 1)),
        ]
        sender.join(60)
    assert dropped > 100
    everything = [b"first", *payloads]
    assert [message.data for message in got] == everything[everything.index(first.data) :]


def test_a_blocked_session_refuses_and_wakes_up(um_config: Config, transport: str) -> None:
    config = um_config.with_("context", "transport_lbtrm_data_rate_limit", 1_000_000)
    events: list[SourceEvent] = []
    woken = threading.Event()

    def on_event(event: SourceEvent) -> None:
        events.append(event)
        if isinstance(event, Wakeup):
            woken.set()

    with BlockingContext(config) as a, BlockingContext(config) as b:
        source = a.source("t", on_event=on_event)
        receiver = b.receiver("t", queue_max=10)  # pauses the reading, so that TCP blocks too
        ready(source, receiver, transport)
        sent = 0

        def send_on() -> None:
            nonlocal sent
            while True:
                source.send(bytes(7000), block=False)
                sent += 1

        with pytest.raises(WouldBlock):
            send_on()
        got = take(receiver, sent)
        assert len(got) == sent
        assert woken.wait(PATIENCE_S)
        source.send(b"again", block=False)
        assert take(receiver, 1)[0].data == b"again"
        assert events.count(Wakeup()) == 1


def test_a_full_queue_holds_a_tcp_source_back(tcp_config: Config) -> None:
    payloads = [b"%06d" % i + bytes(1000) for i in range(20_000)]
    with BlockingContext(tcp_config) as a, BlockingContext(tcp_config) as b:
        source = a.source("t")
        receiver = b.receiver("t", queue_max=100)
        ready(source, receiver, "tcp")
        sender = in_thread(lambda: [source.send(payload) for payload in payloads])
        first = take(receiver, 1)
        until(lambda: b.lock.is_paused)
        got = [*first, *take(receiver, len(payloads) - 1)]
        sender.join(60)
        assert [message.data for message in got] == payloads


def test_a_receiver_that_is_closed_with_a_full_queue_holds_the_others_back_no_more(tcp_config: Config) -> None:
    with BlockingContext(tcp_config) as a, BlockingContext(tcp_config) as b:
        unread, read = a.source("unread"), a.source("read")
        full, receiver = b.receiver("unread", queue_max=2), b.receiver("read")
        ready(unread, full, "tcp")
        ready(read, receiver, "tcp")
        for _ in range(5):
            unread.send(b"x")
        until(lambda: b.lock.is_paused)
        full.close()
        read.send(b"y")
        assert take(receiver, 1)[0].data == b"y"


def test_a_slow_reader_in_asyncio_holds_a_tcp_source_back(tcp_config: Config) -> None:
    async def run() -> list[int]:
        async with Context(tcp_config) as a, Context(tcp_config) as b:
            source = await a.source("t")
            receiver = await b.receiver("t", queue_max=50)
            await source.wait_receivers()
            sent = 0

            async def send() -> None:
                nonlocal sent
                for i in range(5000):
                    await source.send(b"%06d" % i + bytes(5000))
                    sent += 1

            sending = asyncio.create_task(send())
            seen = -1
            while sent != seen:  # until the source stands still
                seen = sent
                await asyncio.sleep(0.1)
            assert 50 < sent < 5000
            got: list[int] = []
            async for event in receiver:
                if isinstance(event, Data):
                    got.append(int(event.data[:6]))
                    if len(got) == 5000:
                        break
            await sending
            return got

    assert asyncio.run(asyncio.wait_for(run(), 60)) == list(range(5000))


def test_a_send_that_cannot_wait_times_out(tcp_config: Config) -> None:
    with BlockingContext(tcp_config) as a, BlockingContext(tcp_config) as b:
        source = a.source("t")
        receiver = b.receiver("t")
        ready(source, receiver, "tcp")
        with b.lock:  # nobody reads
            b.lock.pause("test")

        def send_on() -> None:
            while True:
                source.send(bytes(60_000), timeout=0.2)

        with pytest.raises(TimeoutError):
            send_on()
        with b.lock:
            b.lock.resume("test")


def test_a_send_waits_within_its_time_until_the_session_takes_messages_again(tcp_config: Config) -> None:
    with BlockingContext(tcp_config) as a, BlockingContext(tcp_config) as b:
        source = a.source("t")
        receiver = b.receiver("t")
        ready(source, receiver, "tcp")
        with b.lock:  # nobody reads
            b.lock.pause("test")
        sent = 0
        with suppress(WouldBlock):
            while True:
                source.send(bytes(60_000), block=False)
                sent += 1
        reading = in_thread(lambda: take(receiver, sent + 1))
        sending = in_thread(lambda: source.send(b"last", timeout=PATIENCE_S))
        with b.lock:
            b.lock.resume("test")
        reading.join(PATIENCE_S)
        assert not reading.is_alive()
        sending.join(PATIENCE_S)


def test_connections_are_told_to_tcp_sources(tcp_config: Config) -> None:
    events: list[SourceEvent] = []
    gone = threading.Event()

    def on_event(event: SourceEvent) -> None:
        events.append(event)
        if isinstance(event, Disconnect):
            gone.set()

    with BlockingContext(tcp_config) as a, BlockingContext(tcp_config) as b:
        source = a.source("t", on_event=on_event)
        with b.receiver("t"):
            source.wait_receivers(timeout=PATIENCE_S)
            assert len(source.clients) == 1
        assert gone.wait(PATIENCE_S)
        assert [type(event) for event in events] == [Connect, Disconnect]
        assert source.clients == frozenset()


def test_what_was_sent_leaves_before_the_context_does(tcp_config: Config) -> None:
    with BlockingContext(tcp_config) as b:
        receiver = b.receiver("t")
        with BlockingContext(tcp_config) as a:
            source = a.source("t")
            ready(source, receiver, "tcp")
            for i in range(500):
                source.send(b"%d" % i + bytes(3000), flush=False)
        assert len(take(receiver, 500)) == 500
        assert isinstance(receiver.get(PATIENCE_S), EOS)


def test_statistics_count_what_happened(lbtrm_config: Config) -> None:
    with BlockingContext(lbtrm_config) as a, BlockingContext(lbtrm_config) as b:
        source = a.source("t")
        receiver = b.receiver("t")
        b.receiver("nobody")
        ready(source, receiver, "lbtrm")
        for _ in range(10):
            source.send(b"x" * 100)
        take(receiver, 10)
        sending, receiving = a.stats(), b.stats()
        assert sending.context.tr_src_topics == 1
        assert sending.sources[0].counters.msgs_sent == 10
        assert sending.sources[0].txw_msgs == 10
        assert sending.sources[0].txw_bytes == 1000
        assert receiving.context.tr_rcv_topics == 2
        assert receiving.context.tr_rcv_unresolved_topics == 1
        assert receiving.context.tr_dgrams_rcved > 0
        assert receiving.receivers[0].counters.lbm_msgs_rcved == 10
        assert receiving.receivers[0].source == sending.sources[0].source
        assert a.request_address.startswith("TCP:127.0.0.1:")
