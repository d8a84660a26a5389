"""Sends that a session refuses, by both interfaces: real sessions with a rate limit."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from dro.um.async_api import Context
from dro.um.blocking_api import BlockingContext
from dro.um.message.client_config import Config
from dro.um.message.events import BOS, Data, SqnRange, WouldBlock
from tests.fakes.um_contexts import PATIENCE_S, private_config


def test_a_refused_send_waits_or_tells_by_an_event(lbtrm_config: Config) -> None:
    config = lbtrm_config.with_("context", "transport_lbtrm_data_rate_limit", 1_000_000)

    async def scenario() -> None:
        async with Context(config) as context:
            await refused(context)

    async def refused(context: Context) -> None:
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

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_a_refused_send_waits_its_time_or_tells_by_an_event(lbtrm_config: Config) -> None:
    config = lbtrm_config.with_("context", "transport_lbtrm_data_rate_limit", 1_000_000)
    told = threading.Event()
    with BlockingContext(config) as context:
        source = context.source("t", on_event=lambda event: told.set())
        sent = 0
        with context.lock:  # its thread can wake nobody meanwhile
            with pytest.raises(WouldBlock):  # noqa: PT012  # as many as it takes
                while True:
                    source.send(bytes(7000), block=False)
                    sent += 1
            with pytest.raises(TimeoutError, match=r"^the session is blocked$"):
                source.send(bytes(7000), timeout=0)
        assert source.send(bytes(7000)) == SqnRange(sent, sent)
        assert told.wait(PATIENCE_S)


def test_a_long_message_leaves_at_its_rate_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes two seconds, four times as long as the wait without progress."""
    monkeypatch.setattr("dro.um.blocking_waits.DRAIN_TIMEOUT_S", 0.5)
    config = private_config("lbtrm", context__transport_lbtrm_data_rate_limit=4_000_000)
    with BlockingContext(config, linger=0.5) as context, BlockingContext(config) as other:
        receiver, source = other.receiver("t"), context.source("t")
        receiver.wait_sources(1, PATIENCE_S)
        began = time.monotonic()
        source.send(bytes(1_000_000))
        source.close()
        assert time.monotonic() - began > 1
        assert isinstance(receiver.get(PATIENCE_S), BOS)
        message = receiver.get(PATIENCE_S)
        assert isinstance(message, Data)
        assert message.data == bytes(1_000_000)
