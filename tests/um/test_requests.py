"""Requests by the blocking and the asyncio interface, each with a real answerer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from dro.errors import ResourceError
from dro.um.async_api import Context
from dro.um.blocking_api import BlockingContext, BlockingRequest
from dro.um.message.client_config import Config
from dro.um.message.events import Data, RequestMsg, UsageError
from tests.fakes.um_contexts import PATIENCE_S
from tests.um.message.test_requests import closed_port

Ask = Callable[[str, bytes, float], bytes]


def ask_blocking(config: Config) -> Ask:
    def ask(target: str, data: bytes, timeout_s: float) -> bytes:
        with BlockingContext(config) as context:
            return context.request(target, data, timeout_s)

    return ask


def ask_async(config: Config) -> Ask:
    async def run(target: str, data: bytes, timeout_s: float) -> bytes:
        async with Context(config) as context:
            return await context.request(target, data, timeout_s)

    return lambda *arguments: asyncio.run(run(*arguments))


@pytest.mark.parametrize("kind", [ask_blocking, ask_async])
def test_the_first_response_is_returned(tcp_config: Config, kind: Callable[[Config], Ask]) -> None:
    def respond(request: Data) -> None:
        assert isinstance(request, RequestMsg)
        for number in (b"1", b"2"):
            request.response.send(request.data + number)

    with BlockingContext(tcp_config) as answerer:
        answerer.on_immediate = respond
        assert kind(tcp_config)(answerer.request_address, b"ask", PATIENCE_S) == b"ask1"
        assert answerer.on_immediate is respond


@pytest.mark.parametrize("kind", [ask_blocking, ask_async])
def test_silence_is_an_error_that_names_the_target(tcp_config: Config, kind: Callable[[Config], Ask]) -> None:
    with BlockingContext(tcp_config) as answerer:
        target = answerer.request_address
        with pytest.raises(TimeoutError, match=rf"^request to {target}: no response within 0.1 s$"):
            kind(tcp_config)(target, b"ask", 0.1)


@pytest.mark.parametrize("kind", [ask_blocking, ask_async])
def test_a_refused_connection_is_an_error_that_names_the_target(
    tcp_config: Config, kind: Callable[[Config], Ask]
) -> None:
    target = f"TCP:127.0.0.1:{closed_port()}"
    with pytest.raises(ResourceError, match=rf"^request to {target}: the connection was refused"):
        kind(tcp_config)(target, b"ask", PATIENCE_S)


def test_a_callback_may_not_wait_for_a_response(tcp_config: Config) -> None:
    raised: list[Exception] = []
    done = threading.Event()
    with BlockingContext(tcp_config) as context:

        def ask() -> None:
            try:
                context.request(context.request_address, b"")
            except UsageError as e:
                raised.append(e)
            done.set()

        with context.lock:
            context.lock.call_soon(ask)
        assert done.wait(PATIENCE_S)
    assert "callback" in str(raised[0])


def test_who_waits_for_a_response_is_woken_by_the_end_of_request_and_context(tcp_config: Config) -> None:
    found: list[str] = []

    def wait(request: BlockingRequest) -> threading.Thread:
        def get() -> None:
            try:
                request.get(PATIENCE_S)
            except (UsageError, ResourceError) as e:
                found.append(str(e))

        thread = threading.Thread(target=get, daemon=True)
        thread.start()
        return thread

    context = BlockingContext(tcp_config)
    source = context.source("t")
    closed, left = source.request(b"?"), source.request(b"?")
    threads = [wait(closed)]
    closed.close()
    threads[0].join(PATIENCE_S)
    threads.append(wait(left))
    source.close()
    context.close()
    threads[1].join(PATIENCE_S)
    assert found == ["the request is closed", "request to topic 't': the context is closed"]
    with pytest.raises(ResourceError, match="the context is closed"):
        left.get(PATIENCE_S)


def test_a_task_that_waits_for_a_response_is_woken_by_the_end(tcp_config: Config) -> None:
    async def scenario() -> None:
        async with Context(tcp_config) as context:
            source = await context.source("t")
            requests = [await source.request(b"?"), await source.request(b"?")]
            waiting = [asyncio.ensure_future(request.get()) for request in requests]
            await asyncio.sleep(0)
            await requests[0].close()
            with pytest.raises(UsageError, match="the request is closed"):
                await waiting[0]
        with pytest.raises(ResourceError, match="request to topic 't': the context is closed"):
            await waiting[1]

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))
