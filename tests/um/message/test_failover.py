"""Hot failover at contexts of both interfaces: merged streams, events, options, and what is refused."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from dro.clock import ms
from dro.config.um.options import UmOptions
from dro.errors import ConfigError
from dro.um.async_api import Context
from dro.um.blocking_api import BlockingContext, BlockingHFSource, BlockingReceiver, BlockingWildcardReceiver
from dro.um.message.client_config import Config
from dro.um.message.context import MessageContext
from dro.um.message.events import (
    BOS,
    EOS,
    FLAG_HF_32,
    FLAG_HF_64,
    FLAG_HF_DUPLICATE,
    FLAG_HF_OPTIONAL,
    FLAG_HF_PASS_THROUGH,
    FLAG_IMMEDIATE,
    Data,
    Event,
    HFReset,
    Loss,
    LossBurst,
    UsageError,
)
from dro.um.message.failover import FailoverNumbering
from dro.um.message.receiver import CallbackListener
from dro.wire.lbmc.failover import HotFailover
from tests.fakes.um_contexts import PATIENCE_S, Stepper

pytestmark = pytest.mark.usefixtures("network")
END = b"end"


def joined(receiver: BlockingReceiver, sources: list[BlockingHFSource], transport: str, receivers: int = 1) -> None:
    receiver.wait_sources(len(sources), timeout=PATIENCE_S)
    for source in sources if transport == "tcp" else ():
        source.wait_receivers(receivers, timeout=PATIENCE_S)


def until_end(receiver: BlockingReceiver | BlockingWildcardReceiver, ends: int = 1) -> list[Event]:
    """All events up to so many messages that say that it is the end."""
    found: list[Event] = []
    while ends:
        event = receiver.get(PATIENCE_S)
        found.append(event)
        ends -= isinstance(event, Data) and event.data == END
    return found


def messages(events: list[Event]) -> list[tuple[bytes, int | None, int]]:
    return [
        (event.data, event.hf_sqn, event.flags) for event in events if isinstance(event, Data) and event.data != END
    ]


@pytest.mark.parametrize("mode", [1, -1])
def test_each_number_once_from_two_sources(um_config: Config, transport: str, mode: int) -> None:
    config = um_config.with_("receiver", "ordered_delivery", mode)
    with BlockingContext(config) as a, BlockingContext(config) as b, BlockingContext(config) as c:
        receiver, plain = c.hf_receiver("t"), c.receiver("t")
        sources = [a.hf_source("t"), b.hf_source("t")]
        joined(receiver, sources, transport)
        for number in range(50):
            for source in sources if number % 2 else reversed(sources):
                if number % 7 or source is sources[0]:
                    source.send(b"%d" % number, number, bits=64, properties={"n": number})
        for source in sources:
            source.send(END, 50, bits=64)
        got, all_of_it = until_end(receiver), until_end(plain, 2)
    assert sorted(messages(got)) == sorted((b"%d" % number, number, FLAG_HF_64) for number in range(50))
    if mode == 1:
        assert [number for _, number, _ in messages(got)] == list(range(50))
    assert all(
        event.properties == {"n": event.hf_sqn} for event in got if isinstance(event, Data) and event.data != END
    )
    assert len(messages(all_of_it)) == 50 + 42  # a plain receiver has every copy


def test_options_of_the_receiver_count(um_config: Config, transport: str) -> None:
    with BlockingContext(um_config) as a, BlockingContext(um_config) as b, BlockingContext(um_config) as c:
        everything = c.hf_receiver("t", hf_duplicate_delivery=1)
        no_optional = c.hf_receiver("t", hf_optional_messages=0)
        sources = [a.hf_source("t"), b.hf_source("t")]
        joined(everything, sources, transport)
        for source in sources:
            source.send(b"must", 1)
            source.send(b"may", 2, optional=True)
        for source in sources:
            source.send(END, 3)
        got, fewer = messages(until_end(everything, 2)), messages(until_end(no_optional))
    optional = FLAG_HF_32 | FLAG_HF_OPTIONAL
    assert [flags for _, _, flags in got if not flags & FLAG_HF_DUPLICATE] == [FLAG_HF_32, optional]
    assert sorted(flags & ~FLAG_HF_DUPLICATE for _, _, flags in got) == sorted([FLAG_HF_32, optional] * 2)
    assert fewer == [(b"must", 1, FLAG_HF_32)]


def test_a_reset_is_one_event_and_numbers_begin_anew(um_config: Config, transport: str) -> None:
    with BlockingContext(um_config) as a, BlockingContext(um_config) as b, BlockingContext(um_config) as c:
        receiver = c.hf_receiver("t")
        sources = [a.hf_source("t"), b.hf_source("t")]
        joined(receiver, sources, transport)
        for source in sources:
            source.send(b"old", 9)
        for source in sources:
            source.reset()
            source.send(b"new", 0)
        for source in sources:
            source.send(END, 1)
        got = until_end(receiver)
    kinds = [event if isinstance(event, HFReset) else event.data for event in got if isinstance(event, Data | HFReset)]
    assert [type(kind) for kind in kinds] == [bytes, HFReset, bytes, bytes]
    assert [kinds[0], *kinds[2:]] == [b"old", b"new", END]


def test_what_has_no_number_passes_through(um_config: Config, transport: str) -> None:
    with BlockingContext(um_config) as a, BlockingContext(um_config) as c:
        receiver = c.hf_receiver("t")
        source, plain = a.hf_source("t"), a.source("t")
        joined(receiver, [source], transport)
        receiver.wait_sources(2, timeout=PATIENCE_S)
        plain.send(b"plain")
        source.send(END, 1)
        got: list[Event] = []
        while len(messages(got)) + sum(isinstance(event, BOS) for event in got) < 2 or not any(
            isinstance(event, Data) and event.data == END for event in got
        ):
            got.append(receiver.get(PATIENCE_S))
        source.close()
        plain.close()
        if transport == "tcp":
            while not isinstance(got[-1], EOS):
                got.append(receiver.get(PATIENCE_S))
    assert messages(got) == [(b"plain", None, FLAG_HF_PASS_THROUGH)]
    flags = {event.flags for event in got if isinstance(event, BOS | EOS)}
    assert flags == {FLAG_HF_PASS_THROUGH}


def test_a_number_in_an_immediate_message_moves_nothing(tcp_config: Config) -> None:
    """It is of no source: it passes through."""
    with BlockingContext(tcp_config) as a, BlockingContext(tcp_config) as c:
        receiver = c.hf_receiver("t")
        source = a.hf_source("t")
        joined(receiver, [source], "tcp")
        source.send(b"0", 0)
        number = HotFailover(2_000_000_000)
        with c.lock:
            for listener in c.core._listeners_of(b"t"):
                listener.on_events([Data("t", "TCP:127.0.0.1:1", 0, b"im", FLAG_IMMEDIATE, failover=number)])
        got = [receiver.get(PATIENCE_S)]
        while not (isinstance(got[-1], Data) and got[-1].data == b"im"):
            got.append(receiver.get(PATIENCE_S))
        source.send(b"1", 1)
        source.send(END, 2)
        got += until_end(receiver)
        source.close()
    found = [(data, number) for data, number, _ in messages(got)]
    assert sorted(found) == [(b"0", 0), (b"1", 1), (b"im", 2_000_000_000)]
    assert not [event for event in got if isinstance(event, Loss | LossBurst)]


def test_a_source_that_ends_leaves_the_other(um_config: Config, transport: str) -> None:
    with BlockingContext(um_config) as a, BlockingContext(um_config) as b, BlockingContext(um_config) as c:
        receiver = c.hf_receiver("t")
        first, second = a.hf_source("t"), b.hf_source("t")
        joined(receiver, [first, second], transport)
        first.send(b"1", 1)
        second.send(b"1", 1)
        first.close(final=True)
        second.send(b"5", 5)  # nobody else could have what lies between
        second.send(END, 6)
        got = until_end(receiver)
    assert [number for _, number, _ in messages(got)] == [1, 5]


def test_wildcard_receivers_have_a_stream_for_each_topic(um_config: Config, transport: str) -> None:
    with BlockingContext(um_config) as a, BlockingContext(um_config) as b, BlockingContext(um_config) as c:
        receiver = c.wildcard_receiver("^t[12]$", hf_receiver=1)
        sources = [context.hf_source(topic) for topic in ("t1", "t2") for context in (a, b)]
        receiver.wait_topics(2, timeout=PATIENCE_S)
        for source in sources if transport == "tcp" else ():
            source.wait_receivers(timeout=PATIENCE_S)
        plain = [c.receiver(topic) for topic in ("t1", "t2")]
        for one in plain:
            one.wait_sources(2, timeout=PATIENCE_S)
        for number in range(5):
            for source in sources:
                source.send(source.topic.encode(), number)
        for source in sources:
            source.send(END, 5)
        got = messages(until_end(receiver, 2))
    for topic in (b"t1", b"t2"):
        assert [number for data, number, _ in got if data == topic] == list(range(5))


@pytest.mark.parametrize(
    ("kind", "options"),
    [("hf_source", {"use_hotlink": 1}), ("hf_receiver", {"use_hotlink": 1}), ("wildcard_receiver", {"hf_receiver": 1})],
)
def test_hot_failover_and_hotlinks_are_refused_together(um_config: Config, kind: str, options: dict[str, int]) -> None:
    config = um_config.with_("receiver", "use_hotlink", 1) if kind == "wildcard_receiver" else um_config

    async def run() -> None:
        async with Context(config) as context:
            await getattr(context, kind)("t", **options)

    with BlockingContext(config) as context:
        with pytest.raises(ConfigError, match="hot failover cannot be combined with use_hotlink"):
            getattr(context, kind)("t", **options)
        assert context.core.children == 0
    with pytest.raises(ConfigError, match="hot failover cannot be combined with use_hotlink"):
        asyncio.run(run())


@pytest.mark.parametrize(("number", "bits"), [(1 << 32, 32), (-1, 64), (0, 16)])
def test_a_number_that_does_not_fit_is_refused(tcp_config: Config, number: int, bits: int) -> None:
    with (
        BlockingContext(tcp_config) as context,
        context.hf_source("t") as source,
        pytest.raises(UsageError, match="hot failover number"),
    ):
        source.send(b"", number, bits=bits)


def test_asyncio_has_the_same(um_config: Config, transport: str) -> None:
    async def run() -> list[Event]:
        async with Context(um_config) as a, Context(um_config) as b:
            receiver = await b.hf_receiver("t")
            sources = [await a.hf_source("t"), await a.hf_source("t")]
            await receiver.wait_sources(2)
            for source in sources if transport == "tcp" else ():
                await source.wait_receivers()
            for source in sources:
                await source.send(b"old", 4)
            for source in sources:
                await source.reset()
                await source.send(END, 0)
            found: list[Event] = []
            async for event in receiver:
                found.append(event)
                if isinstance(event, Data) and event.data == END:
                    break
            return found

    got = asyncio.run(asyncio.wait_for(run(), PATIENCE_S))
    assert [type(event) for event in got if not isinstance(event, BOS)] == [Data, HFReset, Data]


def test_a_receiver_that_is_closed_leaves_nothing(lbtrm_config: Config, stepper: Stepper) -> None:
    a, b = MessageContext(lbtrm_config, stepper.loop), MessageContext(lbtrm_config, stepper.loop)
    events: list[Event] = []
    receiver = b.receiver("t", CallbackListener(events.append), UmOptions(), hot_failover=True)
    sources = [a.source("t", UmOptions(), hot_failover=True) for _ in range(2)]
    stepper.until(lambda: len(b.core.bound_sources) == 2)
    for number in (1, 3):  # the second source says nothing, so a gap is open
        made = FailoverNumbering().compose(b"", number, 32, is_optional=False, properties=None, channel=None)
        sources[0].send(made.data, blocks=made.blocks)
    stepper.until(lambda: any(isinstance(event, Data) for event in events))
    stepper.settle()
    listener = weakref.ref(receiver._listener)
    gc.disable()
    try:
        receiver.close()
        del receiver
        stepper.settle()
        assert listener() is None
    finally:
        gc.enable()
    for context in (a, b):
        context.close_children()
        context.close()


def test_each_topic_of_a_pattern_waits_its_own_time(lbtrm_config: Config, stepper: Stepper) -> None:
    """One of two sources of each topic says nothing; the gap of "late" begins 300 ms after that of "early"."""
    config = lbtrm_config.with_("wildcard_receiver", "hf_receiver", 1)
    a, b = MessageContext(config, stepper.loop), MessageContext(config, stepper.loop)
    events: list[Event] = []
    b.wildcard("^(early|late)$", CallbackListener(events.append), UmOptions())
    sources = {
        topic: [a.source(topic, UmOptions(), hot_failover=True) for _ in range(2)] for topic in ("early", "late")
    }
    stepper.until(lambda: len(b.core.bound_sources) == 4)
    began_ns = {}
    for topic, (source, _) in sources.items():
        for number in (1, 3):
            made = FailoverNumbering().compose(b"", number, 32, is_optional=False, properties=None, channel=None)
            source.send(made.data, blocks=made.blocks)
        began_ns[topic] = stepper.loop.now_ns()
        stepper.run(300)
    over_ns: dict[str, int] = {}

    def is_over(topic: str) -> bool:
        return any(isinstance(event, Data) and event.topic == topic and event.hf_sqn == 3 for event in events)

    for topic in began_ns:
        stepper.until(lambda topic=topic: is_over(topic))  # type: ignore[misc]
        over_ns[topic] = stepper.loop.now_ns()
        assert is_over("late") == (topic == "late")
    wait_ns = {topic: over_ns[topic] - began_ns[topic] for topic in began_ns}
    assert abs(wait_ns["early"] - wait_ns["late"]) < ms(50)
    for context in (a, b):
        context.close_children()
        context.close()
