"""The asyncio interface: queues, waiting, names, and what happens in the wrong order. Nothing is sent here."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from dro.errors import ConfigError, ResourceError
from dro.um.async_api import SENDS_PER_TURN, Context, Receiver
from dro.um.handles import QUEUE_MAX
from dro.um.message.client_config import Config
from dro.um.message.context import MessageContext
from dro.um.message.events import Event, NoSource, SqnRange, UsageError, WouldBlock
from tests.fakes.um_contexts import private_config

T = TypeVar("T")


def run(of: Callable[[Context], Awaitable[T]], config: Config, **more: object) -> T:
    """In a context that is open for it."""

    async def whole() -> T:
        async with Context(config, "east", **more) as context:  # type: ignore[arg-type]  # as there
            return await of(context)

    return asyncio.run(asyncio.wait_for(whole(), 30))


def happen(context: Context, count: int) -> None:
    """So many events for receivers of the topic t."""
    for _ in range(count):
        context.core.delivery.on_no_source(b"t")


@pytest.mark.parametrize(("queue_max", "resumed_at"), [(4, 2), (5, 2), (1, 0), (0, 0)])
def test_a_queue_that_is_too_full_pauses_the_data_until_half_of_it_is_taken(
    tcp_config: Config, queue_max: int, resumed_at: int
) -> None:
    async def scenario(context: Context) -> None:
        receiver = await context.receiver("t", queue_max=queue_max)
        happen(context, queue_max)
        assert not context.core.loop.is_paused  # type: ignore[attr-defined]  # the loop of a client
        happen(context, 1)
        for left in range(queue_max, -1, -1):
            assert context.core.loop.is_paused  # type: ignore[attr-defined]  # as above
            assert await receiver.get() == NoSource("t")
            if left <= resumed_at:
                break
        assert not context.core.loop.is_paused  # type: ignore[attr-defined]  # as above
        assert left == resumed_at

    run(scenario, tcp_config)


def test_two_full_queues_pause_until_both_have_room(tcp_config: Config) -> None:
    async def scenario(context: Context) -> list[bool]:
        receivers = [await context.receiver("t", queue_max=1) for _ in range(2)]
        happen(context, 2)
        paused = []
        for receiver in receivers:
            for _ in range(2):
                await receiver.get()
            paused.append(context.core.loop.is_paused)  # type: ignore[attr-defined]  # the loop of a client
        return paused

    assert run(scenario, tcp_config) == [True, False]


def test_a_closed_receiver_gives_nothing_more_and_holds_nobody_up(tcp_config: Config) -> None:
    async def scenario(context: Context) -> None:
        receiver = await context.receiver("t", queue_max=1)
        waiting = asyncio.create_task(receiver.get())
        await asyncio.sleep(0)
        happen(context, 1)
        assert await waiting == NoSource("t")
        happen(context, 2)
        async with receiver as same:
            assert same is receiver
        assert not context.core.loop.is_paused  # type: ignore[attr-defined]  # the loop of a client
        assert [event async for event in receiver] == []
        with pytest.raises(UsageError, match="the receiver is closed"):
            await receiver.get()
        late = await context.receiver("t")
        ending = asyncio.create_task(take_all(late))
        await asyncio.sleep(0)
        happen(context, 2)
        await asyncio.sleep(0)
        await late.close()
        assert await ending == [NoSource("t")] * 2

    run(scenario, tcp_config)


async def take_all(receiver: Receiver) -> list[Event]:
    return [event async for event in receiver]


def test_events_go_to_the_queue_or_to_the_callbacks(tcp_config: Config) -> None:
    async def scenario(context: Context) -> None:
        told: list[Event] = []
        by_event = await context.receiver("t", on_event=told.append)
        by_messages = await context.receiver("t", on_messages=lambda batch: None)
        wild = await context.wildcard_receiver("^t$", on_event=told.append)
        wild_messages = await context.wildcard_receiver("^t$", on_messages=lambda batch: None)
        happen(context, 1)
        assert told == [NoSource("t")]
        for receiver in (by_event, by_messages, wild, wild_messages):
            with pytest.raises(UsageError, match="this receiver hands its events to a callback"):
                await receiver.get()

    run(scenario, tcp_config)


def test_everything_has_its_name(tcp_config: Config) -> None:
    async def scenario(context: Context) -> None:
        changes: list[tuple[str, str, bool]] = []
        assert (context.name, context.domain_id) == ("east", 0)
        assert context.request_address.startswith("TCP:127.0.0.1:")
        source = await context.source("t")
        receiver = await context.receiver("t", on_source=lambda *change: changes.append(change))
        wild = await context.wildcard_receiver("^t")
        await asyncio.gather(receiver.wait_sources(), wild.wait_topics(), source.wait_receivers())
        assert (source.topic, receiver.topic, wild.pattern) == ("t", "t", "^t")
        assert receiver.sources == [source.source_string]
        assert changes == [("t", source.source_string, True)]
        assert (wild.topics, len(source.otid), len(source.clients)) == (frozenset({"t"}), 32, 1)
        assert context.stats().context.tr_src_topics == 1
        assert context.core.children == 3

    run(scenario, tcp_config)


def test_sub_receivers_of_a_pattern_are_told(tcp_config: Config) -> None:
    async def scenario(context: Context) -> list[tuple[str, str]]:
        told: list[tuple[str, str]] = []
        await context.source("t")
        wild = await context.wildcard_receiver(
            "^t", on_created=lambda t: told.append(("+", t)), on_deleted=lambda t: told.append(("-", t))
        )
        await wild.wait_topics()
        context.core.core.on_topic_unmatched(b"^t", 1, b"t")
        assert wild.topics == frozenset()
        return told

    assert run(scenario, tcp_config) == [("+", "t"), ("-", "t")]


def test_waiting_for_several_goes_on_until_all_are_there(tcp_config: Config) -> None:
    async def scenario(context: Context) -> None:
        receiver, wild = await context.receiver("t.1"), await context.wildcard_receiver("^t")
        both = asyncio.gather(receiver.wait_sources(2), wild.wait_topics(2))
        await context.source("t.1")
        await receiver.wait_sources()
        await wild.wait_topics()
        assert not both.done()
        source = await context.source("t.1")
        await context.source("t.2")
        await both
        assert len(receiver.sources) == 2
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(source.wait_receivers(2), 0.05)

    run(scenario, tcp_config)


def test_a_sender_that_is_never_refused_lets_others_run(tcp_config: Config) -> None:
    async def scenario(context: Context) -> list[int]:
        source = await context.source("t")
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        seen = []
        for _ in range(3 * SENDS_PER_TURN):
            await source.send(b"x")
            seen.append(turns)
        task.cancel()
        return seen

    seen = run(scenario, tcp_config)
    assert SENDS_PER_TURN == 32
    assert [seen.count(turns) for turns in range(4)] == [31, 32, 32, 1]


def test_a_refused_send_waits_or_tells_by_an_event(lbtrm_config: Config) -> None:
    config = lbtrm_config.with_("context", "transport_lbtrm_data_rate_limit", 1_000_000)

    async def scenario(context: Context) -> None:
        told: list[object] = []
        source = await context.source("t", on_event=told.append)
        sent = 0
        with pytest.raises(WouldBlock):  # noqa: PT012  # as many as it takes
            while True:
                await source.send(bytes(7000), block=False)
                sent += 1
        assert await source.send(bytes(7000)) == SqnRange(sent, sent)
        await asyncio.sleep(0)
        assert len(told) == 1

    run(scenario, config)


# the wrong order


def test_a_context_is_opened_once_and_closed_when_nothing_is_open(tcp_config: Config) -> None:
    async def scenario() -> None:
        context = Context(tcp_config)
        for use in (lambda: context.core, context.stats, lambda: context.domain_id):
            with pytest.raises(UsageError, match="the context is not open"):
                use()
        await context.close()
        async with context as opened:
            assert opened is context
            with pytest.raises(UsageError, match="the context is open already"):
                await context.open()
            receiver = await context.receiver("t")
            with pytest.raises(UsageError, match="1 sources and receivers of the context are still open"):
                await context.close()
            await receiver.close()
            await context.close()
            await context.close()
        with pytest.raises(UsageError, match="the context is not open"):
            await context.receiver("t")
        await context.open()  # anew
        assert context.name == ""
        await context.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_a_context_that_cannot_be_opened_leaves_nothing_open(
    tcp_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ResourceError("no group")

    async def scenario() -> None:
        before = os.listdir("/proc/self/fd")
        with monkeypatch.context() as patch:
            patch.setattr("dro.um.message.context.FragmentContext", fail)
            with pytest.raises(ResourceError):
                await Context(tcp_config).open()
        assert os.listdir("/proc/self/fd") == before

    asyncio.run(scenario())


def test_leaving_waits_for_what_was_sent_and_lingers_unless_something_failed(
    tcp_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: dict[str, list[bool]] = {"is_drained": [], "has_ended": []}
    for name, seen in checks.items():

        def answer(core: MessageContext, seen: list[bool] = seen) -> bool:
            seen.append(core.is_closed)
            return len(seen) == 3

        monkeypatch.setattr(MessageContext, name, property(answer))
    slept: list[float] = []
    genuine = asyncio.sleep

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await genuine(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)

    async def nothing(context: Context) -> None:
        await context.receiver("t")

    run(nothing, tcp_config, linger=0.75)
    assert checks == {"is_drained": [False] * 3, "has_ended": [False] * 3}
    assert slept == [0.005, 0.005, 0.75, 0.005, 0.005]
    slept.clear()

    async def fail(context: Context) -> None:
        await context.receiver("t")
        raise ValueError("the application's fault")

    with pytest.raises(ValueError, match="fault"):
        run(fail, tcp_config, linger=0.75)
    assert slept == []
    assert {name: len(seen) for name, seen in checks.items()} == {"is_drained": 3, "has_ended": 3}


def test_waiting_for_the_end_gives_up_after_five_seconds(tcp_config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dro.um.async_api.DRAIN_TIMEOUT_S", 0.05)
    monkeypatch.setattr(MessageContext, "is_drained", property(lambda core: False))

    async def nothing(context: Context) -> None:
        pass

    run(nothing, tcp_config)


def test_options_of_an_object_are_checked(tcp_config: Config) -> None:
    async def scenario(context: Context) -> None:
        for make in (context.source, context.receiver, context.wildcard_receiver):
            with pytest.raises(ConfigError, match="unknown UM option"):
                await make("t", no_such_option=1)
        assert context.core.children == 0

    run(scenario, tcp_config)


def test_a_queue_holds_fifty_thousand_unless_told_otherwise(tcp_config: Config) -> None:
    async def scenario(context: Context) -> list[bool]:
        await context.receiver("t")
        await context.wildcard_receiver("^t$")
        happen(context, QUEUE_MAX)
        before = context.core.loop.is_paused  # type: ignore[attr-defined]  # the loop of a client
        happen(context, 1)
        return [before, context.core.loop.is_paused]  # type: ignore[attr-defined]  # as above

    assert QUEUE_MAX == 50_000
    assert run(scenario, tcp_config) == [False, True]


def test_without_a_configuration_that_of_the_environment_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    config = private_config("tcp")
    monkeypatch.setattr(Config, "load", classmethod(lambda cls: config))

    async def scenario() -> None:
        async with Context() as context:
            assert context.core.options.get_str("source", "transport") == "tcp"

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_a_source_that_closes_waits_until_its_messages_are_handed_over(
    tcp_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(context: Context) -> list[int]:
        seen: list[int] = []

        def is_idle(writer: object) -> bool:
            seen.append(context.core.children)
            return len(seen) >= 3

        source = await context.source("t")
        with monkeypatch.context() as patch:
            patch.setattr("dro.um.message.writer.SessionWriter.is_idle", property(is_idle))
            await source.close()
            await source.close()
        return [*seen, context.core.children]

    assert run(scenario, tcp_config) == [1, 1, 1, 0], "and no longer"
