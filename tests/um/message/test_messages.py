"""The message level on both hosts: what is sent arrives, once, in order, whole."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Sized
from contextlib import suppress

import pytest

from dro.errors import ConfigError
from dro.patterns import PatternError
from dro.um.async_api import Context
from dro.um.blocking_api import BlockingContext, BlockingReceiver, BlockingSource
from dro.um.message.client_config import Config
from dro.um.message.events import (
    BOS,
    EOS,
    Connect,
    Data,
    Disconnect,
    Event,
    MessageBatch,
    SourceEvent,
    UsageError,
    Wakeup,
    WouldBlock,
)
from tests.fakes.um_contexts import PATIENCE_S, private_config


def ready(source: BlockingSource, receiver: BlockingReceiver, transport: str) -> None:
    """Wait until what is sent will be heard."""
    receiver.wait_sources(timeout=PATIENCE_S)
    if transport == "tcp":
        source.wait_receivers(timeout=PATIENCE_S)


def take(receiver: BlockingReceiver, count: int) -> list[Data]:
    """The next messages; other events are passed over."""
    messages: list[Data] = []
    while len(messages) < count:
        event = receiver.get(timeout=PATIENCE_S)
        if isinstance(event, Data):
            messages.append(event)
    return messages


def messages_of(seed: int, count: int, sizes: tuple[int, ...]) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(rng.choice(sizes)) for _ in range(count)]


def in_thread(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


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


def test_a_receiver_made_before_its_source(um_config: Config, transport: str) -> None:
    with BlockingContext(um_config) as a, BlockingContext(um_config) as b:
        receiver = b.receiver("t")
        source = a.source("t")
        ready(source, receiver, transport)
        source.send(b"x")
        assert take(receiver, 1)[0].data == b"x"


def test_a_late_receiver_gets_what_is_sent_from_then_on(um_config: Config, transport: str) -> None:
    with BlockingContext(um_config) as a, BlockingContext(um_config) as b:
        source = a.source("t")
        early = b.receiver("t")
        ready(source, early, transport)
        for i in range(10):
            source.send(b"%d" % i)
        take(early, 10)
        late = b.receiver("t")  # shares the session: BOS at once
        assert late.get(PATIENCE_S) == BOS("t", source.source_string)
        with BlockingContext(um_config) as c:
            stranger = c.receiver("t")
            stranger.wait_sources(timeout=PATIENCE_S)
            if transport == "tcp":
                source.wait_receivers(2, timeout=PATIENCE_S)
            source.send(b"new")
            assert [message.data for message in take(early, 1)] == [b"new"]
            assert take(late, 1)[0].sqn == 10
            assert take(stranger, 1)[0].data == b"new"


def test_several_sources_of_one_topic_keep_their_own_order(um_config: Config, transport: str) -> None:
    with BlockingContext(um_config) as a, BlockingContext(um_config) as b, BlockingContext(um_config) as c:
        sources = [a.source("t"), a.source("t"), c.source("t")]
        receiver = b.receiver("t")
        receiver.wait_sources(3, timeout=PATIENCE_S)
        if transport == "tcp":
            for source in sources:
                source.wait_receivers(timeout=PATIENCE_S)
        for i in range(200):
            for source in sources:
                source.send(b"%d" % i)
        got = take(receiver, 600)
        for source in sources:
            mine = [message for message in got if message.source == source.source_string]
            assert [int(message.data) for message in mine] == list(range(200))


def test_receivers_of_one_topic_share_what_arrives(um_config: Config, transport: str) -> None:
    with BlockingContext(um_config) as a, BlockingContext(um_config) as b:
        source = a.source("t")
        bulk: list[MessageBatch] = []
        plain = b.receiver("t")
        done = threading.Event()

        def on_messages(batch: MessageBatch) -> None:
            bulk.append(batch)
            if sum(len(other.payloads) for other in bulk) == 300:
                done.set()

        b.receiver("t", on_messages=on_messages)
        wild = b.wildcard_receiver("^t$")
        ready(source, plain, transport)
        for i in range(300):
            source.send(b"%03d" % i)
        expected = [b"%03d" % i for i in range(300)]
        assert [message.data for message in take(plain, 300)] == expected
        assert done.wait(PATIENCE_S)
        assert [payload for batch in bulk for payload in batch.payloads] == expected
        assert bulk[0].first_sqn == 0
        got = [wild.get(PATIENCE_S) for _ in range(301)]
        assert [event.data for event in got if isinstance(event, Data)] == expected
        assert b.stats().receivers[0].counters.lbm_msgs_rcved == 300  # once, for all of them


def test_wildcard_receivers(um_config: Config, transport: str) -> None:
    created: list[str] = []
    with BlockingContext(um_config) as a, BlockingContext(um_config) as b:
        first = a.source("quotes.IBM")
        a.source("trades.IBM")
        wild = b.wildcard_receiver(r"^quotes\.", on_created=created.append)
        wild.wait_topics(timeout=PATIENCE_S)
        second = a.source("quotes.SUNW")
        wild.wait_topics(2, timeout=PATIENCE_S)
        assert wild.topics == {"quotes.IBM", "quotes.SUNW"}
        if transport == "tcp":
            first.wait_receivers(timeout=PATIENCE_S)
            second.wait_receivers(timeout=PATIENCE_S)
        first.send(b"1")
        second.send(b"2")
        got: dict[str, bytes] = {}
        while len(got) < 2:
            event = wild.get(PATIENCE_S)
            if isinstance(event, Data):
                got[event.topic] = event.data
        assert got == {"quotes.IBM": b"1", "quotes.SUNW": b"2"}
        assert sorted(created) == ["quotes.IBM", "quotes.SUNW"]
        again = b.wildcard_receiver(r"^quotes\.")  # the same pattern: everything is known
        assert again.topics == wild.topics
        with pytest.raises(PatternError):
            b.wildcard_receiver("(")
        with pytest.raises(ConfigError, match="pattern_type"):
            b.wildcard_receiver("x", pattern_type="appcb")


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

    module = "dro.transport.lbtrm.receiver."
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


def test_a_receiver_hears_a_source_of_its_own_context(um_config: Config, transport: str) -> None:
    with BlockingContext(um_config) as a:
        source = a.source("t")
        receiver = a.receiver("t")
        ready(source, receiver, transport)
        source.send(b"to myself")
        assert take(receiver, 1)[0].data == b"to myself"


# blocking and back-pressure


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
        with b.lock:
            assert b.lock.is_paused or len(payloads) > 100
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
        deadline = time.monotonic() + PATIENCE_S
        while not b.lock.is_paused:
            assert time.monotonic() < deadline
            time.sleep(0.001)
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


def test_waiting_in_asyncio_can_be_cancelled(tcp_config: Config) -> None:
    async def run() -> Data:
        async with Context(tcp_config) as a, Context(tcp_config) as b:
            source = await a.source("t")
            receiver = await b.receiver("t")
            await source.wait_receivers()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(receiver.get(), 0.01)
            await source.send(b"x")
            events = [await receiver.get(), await receiver.get()]
            assert isinstance(events[1], Data)
            return events[1]

    assert asyncio.run(asyncio.wait_for(run(), 60)).data == b"x"


def test_a_feature_that_is_not_there_is_told(tcp_config: Config, caplog: pytest.LogCaptureFixture) -> None:
    with BlockingContext(tcp_config) as a:
        a.source("t")
        assert "without effect" not in caplog.text
        a.source("t", late_join=1)
        a.source("u", late_join=1)
    assert caplog.text.count("without effect") == 1


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


def test_callbacks_may_send_but_not_wait(tcp_config: Config) -> None:
    results: list[object] = []
    done = threading.Event()
    with BlockingContext(tcp_config) as a, BlockingContext(tcp_config) as b:
        source = a.source("t")
        answers = b.source("answer")
        heard = a.receiver("answer")

        def on_event(event: Event) -> None:
            if isinstance(event, Data):
                results.append(answers.send(b"answer to " + event.data))
                for wait in (answers.wait_receivers, b.close):
                    try:
                        wait()
                    except UsageError as e:
                        results.append(e)
                done.set()

        receiver = b.receiver("t", on_event=on_event)
        ready(source, receiver, "tcp")
        ready(answers, heard, "tcp")
        source.send(b"question")
        assert take(heard, 1)[0].data == b"answer to question"
        assert done.wait(PATIENCE_S)
        assert [type(result).__name__ for result in results] == ["SqnRange", "UsageError", "UsageError"]


def test_a_callback_that_fails_is_logged_and_no_more(tcp_config: Config, caplog: pytest.LogCaptureFixture) -> None:
    got: list[bytes] = []
    done = threading.Event()

    def on_event(event: Event) -> None:
        if isinstance(event, Data):
            got.append(event.data)
            if len(got) == 2:
                done.set()
            raise ValueError("the application's fault")

    with BlockingContext(tcp_config) as a, BlockingContext(tcp_config) as b:
        source = a.source("t")
        receiver = b.receiver("t", on_event=on_event)
        ready(source, receiver, "tcp")
        source.send(b"1")
        source.send(b"2")
        assert done.wait(PATIENCE_S)
    assert got == [b"1", b"2"]
    assert "callback of a receiver failed" in caplog.text


def test_a_receiver_closed_in_its_callback_hears_nothing_more(um_config: Config, transport: str) -> None:
    got: list[bytes] = []
    with BlockingContext(um_config) as a, BlockingContext(um_config) as b:
        source = a.source("t")
        other = b.receiver("t")

        def on_event(event: Event) -> None:
            if isinstance(event, Data):
                got.append(event.data)
                receiver.close()

        receiver = b.receiver("t", on_event=on_event)
        ready(source, other, transport)
        for i in range(100):
            source.send(b"%d" % i)
        take(other, 100)
    assert got == [b"0"]


# life and death


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


def test_a_context_with_children_cannot_be_closed(um_config: Config) -> None:
    a = BlockingContext(um_config)
    source = a.source("t")
    receiver = a.receiver("t")
    wild = a.wildcard_receiver("t")
    for child in (source, receiver, wild):
        with pytest.raises(UsageError, match="open"):
            a.close()
        child.close()
        child.close()
    a.close()
    a.close()
    with pytest.raises(UsageError):
        a.source("t")
    with pytest.raises(UsageError):
        source.send(b"x")
    with pytest.raises(UsageError):
        receiver.get(1)

    async def in_asyncio() -> None:
        context = await Context(um_config).open()
        child = await context.receiver("t")
        with pytest.raises(UsageError, match="open"):
            await context.close()
        await child.close()
        await context.close()
        with pytest.raises(UsageError):
            await context.source("t")

    asyncio.run(asyncio.wait_for(in_asyncio(), 30))


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


def test_topics_options_and_patterns_are_checked(um_config: Config) -> None:
    with BlockingContext(um_config) as a:
        for topic in ("", "x" * 256, "with\0nul"):
            with pytest.raises(UsageError):
                a.source(topic)
            with pytest.raises(UsageError):
                a.receiver(topic)
        with pytest.raises(ConfigError, match="unknown UM option"):
            a.source("t", no_such_option=1)
        with pytest.raises(ConfigError):
            a.receiver("t", ordered_delivery="sideways")
        a.receiver("näme").close()
        assert a.core.children == 0


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
