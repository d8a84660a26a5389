"""The asyncio interface: queues, waiting, names, and what happens in the wrong order. Nothing is sent here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from dro.um.async_api import SENDS_PER_TURN, Context, Receiver
from dro.um.message.client_config import Config
from dro.um.message.events import Event, NoSource, UsageError

pytestmark = pytest.mark.usefixtures("network")

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


def test_the_end_of_what_more_is_waited_for_ends_the_wait(tcp_config: Config) -> None:
    async def scenario(context: Context) -> None:
        source, receiver = await context.source("t"), await context.receiver("t")
        wild = await context.wildcard_receiver("^t")
        waits = (source.wait_receivers, receiver.wait_sources, wild.wait_topics)
        waiting = [asyncio.create_task(wait(3)) for wait in waits]
        await asyncio.sleep(0)
        for made in (source, receiver, wild):
            await made.close()
        raised = await asyncio.gather(*waiting, return_exceptions=True)
        assert [str(e) for e in raised] == ["the source is closed", *["the receiver is closed"] * 2]
        assert {type(e) for e in raised} == {UsageError}

    run(scenario, tcp_config)


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
