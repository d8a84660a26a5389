"""The message level on both hosts, on no real network: who hears what, callbacks, refusals, and the end."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from dro.errors import ConfigError
from dro.patterns import PatternError
from dro.um.async_api import Context
from dro.um.blocking_api import BlockingContext, BlockingReceiver, BlockingSource
from dro.um.message.client_config import Config
from dro.um.message.events import (
    BOS,
    Data,
    Event,
    MessageBatch,
    UsageError,
)
from tests.fakes.um_contexts import PATIENCE_S

pytestmark = pytest.mark.usefixtures("network")


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


def test_a_receiver_hears_a_source_of_its_own_context(um_config: Config, transport: str) -> None:
    with BlockingContext(um_config) as a:
        source = a.source("t")
        receiver = a.receiver("t")
        ready(source, receiver, transport)
        source.send(b"to myself")
        assert take(receiver, 1)[0].data == b"to myself"


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
    caplog.set_level(logging.INFO)
    with BlockingContext(tcp_config) as a:
        a.source("t")
        assert "without effect" not in caplog.text
        a.source("t", ume_store_activity_timeout=1)
        a.source("u", ume_store_activity_timeout=1)
    assert caplog.text.count("without effect") == 1


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
