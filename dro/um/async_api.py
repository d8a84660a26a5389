"""The client library for asyncio: `Context`, `Source`, `Receiver`, `WildcardReceiver`.

    async with Context(Config.load("trd1.cfg")) as ctx:
        source = await ctx.source("quotes.IBM")
        receiver = await ctx.receiver("quotes.IBM")
        await source.send(b"...")
        async for event in receiver:
            match event: ...

Everything runs on the asyncio loop that entered the context. A receiver without a callback queues its events; a full
queue stops the reading of data for the whole context until the application has caught up. An application that does not
read for longer than the activity timeout of its sessions loses them.

Source: client library notes, sections 1 to 4 and 14.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from typing import Final, Self, TypeVar

from dro.devices.follower import DeviceFollower
from dro.um.async_waits import TaskClosing, TaskQueue, TaskWaiters, settle
from dro.um.failover_sources import HFSource
from dro.um.handles import (
    ANSWER_TIMEOUT_S,
    NO_RESPONSE,
    QUEUE_MAX,
    ContextHandle,
    R,
    ReceiverHandle,
    RequestHandle,
    SourceHandle,
    telling,
    undelivered,
)
from dro.um.hosts import AsyncLoop
from dro.um.message.client_config import Config, OptionValue, object_options
from dro.um.message.context import MessageContext
from dro.um.message.events import Event, MessageBatch, ResponseMsg, SourceEvent, SqnRange, UsageError, WouldBlock
from dro.um.message.immediate import log_failure
from dro.um.message.properties import ComposedMessage, Properties, batch_marks, compose
from dro.um.message.receiver import CallbackListener, MessageReceiver, OnEvent, OnMessages, OnSource
from dro.um.message.requests import OnResponse
from dro.um.message.stats import Statistics, collect
from dro.um.message.unicast import failure
from dro.um.message.wildcard_receiver import OnTopic, PatternReceiver

__all__ = ["Config", "Context", "HFSource", "PendingRequest", "Receiver", "Source", "WildcardReceiver"]

SENDS_PER_TURN: Final = 32


T = TypeVar("T")


class PendingRequest(RequestHandle[nullcontext[None], TaskWaiters], TaskClosing):
    """An open request, until it is closed. Responses are lost when nobody asks again: set a time limit."""

    async def get(self) -> ResponseMsg:
        """The next response. Raises: ResourceError, `NoRoute` if it could not be sent, or the context was closed;
        UsageError after it was closed.
        """
        while not self._has_news():
            await self._changes.wait()
        return self._take()

    async def responses(self, timeout: float | None = None) -> AsyncIterator[ResponseMsg]:
        """Give responses as they come, for so many seconds from now on. Raises: ResourceError as `get`."""
        time = asyncio.get_running_loop().time
        deadline = None if timeout is None else time() + timeout
        while True:
            try:
                response = await asyncio.wait_for(self.get(), None if deadline is None else max(0, deadline - time()))
            except TimeoutError:
                return
            yield response

    async def close(self) -> None:
        """End it: responses that come later are dropped."""
        self._end()


def _new_request(on_response: OnResponse | None) -> PendingRequest:
    waiters = TaskWaiters()
    return PendingRequest(nullcontext(), waiters, waiters.wake, on_response)


class Source(SourceHandle[nullcontext[None], TaskWaiters], TaskClosing):
    """One source. Made by `Context.source`."""

    _unyielded = 0

    async def send(
        self,
        data: bytes,
        *,
        flush: bool = True,
        block: bool = True,
        properties: Properties | None = None,
        channel: int | None = None,
        start_batch: bool = False,
        end_batch: bool = False,
    ) -> SqnRange:
        """Send one message; waits while the session is blocked.

        `flush` False: it may wait for others to share a datagram with. From a message with `start_batch` on all wait
        for the one with `end_batch`, or until they fill a datagram. Raises: WouldBlock, if not `block`; UsageError.
        """
        message = compose(data, properties, channel)
        return await self.send_composed(message, flush, block, batch_marks(start_batch, end_batch))

    async def send_composed(self, message: ComposedMessage, flush: bool, block: bool, marks: int) -> SqnRange:
        """Send a message whose headers are made. Raises as `send`."""
        send = lambda: self._core.send(message.data, flush=flush, blocks=message.blocks, marks=marks)  # noqa: E731
        return await self._until_taken(send, block)

    async def request(self, data: bytes, *, on_response: OnResponse | None = None) -> PendingRequest:
        """Send a request to the receivers of the topic; waits as `send`.

        Without `on_response` the responses are taken from what is returned. Raises: as `send`; ResourceError without
        a request port.
        """
        request = _new_request(on_response)
        request.begin(await self._until_taken(lambda: self._core.request(data, request.take, request.fail), True))
        return request

    async def _until_taken(self, send: Callable[[], T], block: bool) -> T:
        """Send until the session takes it."""
        core = self._core
        self._unyielded += 1
        if self._unyielded >= SENDS_PER_TURN:  # a sender that is never refused must not keep the loop to itself
            self._unyielded = 0
            await asyncio.sleep(0)
        while True:
            try:
                return send()
            except WouldBlock:
                if not block:
                    core.tell_wakeup()
                    raise
                waiters = TaskWaiters()
                core.writer.call_when_ready(waiters.wake)
                await waiters.wait()

    async def flush(self) -> None:
        """Send what waits for more messages."""
        self._core.flush()

    async def wait_receivers(self, count: int = 1) -> None:
        """Wait until so many receivers are connected; not for LBT-RM, which has no connections.

        Raises: UsageError once it is closed.
        """
        while not self._is_enough(self._core.clients, count):
            await self._changes.wait()

    async def close(self, *, final: bool | None = None, wait: bool = True) -> None:
        """Stop being a source, once everything is handed to the session. `final`: advertise the end (None: option).

        `wait`: false drops what has not been handed. Raises: ResourceError, closed, when nothing is taken for 5 s.
        """
        core = self._core
        core.flush()
        is_done = not wait or await settle(lambda: core.is_closed or core.writer.is_idle, lambda: core.writer.handed)
        core.close(final=final)
        if not is_done:
            raise undelivered(f"source of {core.topic!r}")


class _Receiving(ReceiverHandle[R, nullcontext[None], TaskWaiters, TaskQueue], TaskClosing):
    """What plain and wildcard receivers share."""

    async def get(self) -> Event:
        """The next event. Raises: UsageError after the receiver was closed, or when it has callbacks."""
        return self._given(await self._events().get())

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (event := await self._events().get()) is not None:
            yield event

    async def close(self) -> None:
        self._core.close()


class Receiver(_Receiving[MessageReceiver]):
    """One receiver of one topic. Made by `Context.receiver`; `async for` gives its events until it is closed."""

    @property
    def topic(self) -> str:
        return self._core.topic

    @property
    def sources(self) -> list[str]:
        """Source strings of the joined sources."""
        return self._core.sources

    async def wait_sources(self, count: int = 1) -> None:
        """Wait until so many sources are joined. Raises: UsageError once it is closed."""
        while not self._is_enough(self._core.sources, count):
            await self._changes.wait()


class WildcardReceiver(_Receiving[PatternReceiver]):
    """A receiver for every topic that matches a pattern. Made by `Context.wildcard_receiver`."""

    @property
    def pattern(self) -> str:
        return self._core.pattern

    @property
    def topics(self) -> frozenset[str]:
        """Topics that have a sub-receiver."""
        return frozenset(self._core.topics)

    async def wait_topics(self, count: int = 1) -> None:
        """Wait until so many topics have matched. Raises: UsageError once it is closed."""
        while not self._is_enough(self._core.topics, count):
            await self._changes.wait()


class Context(ContextHandle):
    """One UM context in asyncio. Use it with `async with`, or call `open` and `close`.

    `linger`: seconds that leaving `async with` waits for receivers to ask for lost messages.
    """

    def __init__(
        self, config: Config | None = None, name: str = "", *, linger: float = 0.0, rng: random.Random | None = None
    ) -> None:
        self._config = config or Config.load()
        self._name = name
        self._rng = rng
        self._linger = linger
        self._loop: AsyncLoop | None = None
        self._core: MessageContext | None = None

    async def open(self) -> Self:
        """Open the context. Raises: ResourceError naming the option that cannot be satisfied."""
        if self._core is not None:
            raise UsageError("the context is open already")
        loop = AsyncLoop()
        try:
            self._core = MessageContext(self._config, loop, name=self._name, rng=self._rng)
        except BaseException:
            loop.close()
            raise
        self._loop = loop
        self._follower = DeviceFollower(loop)
        loop.attach()
        return self

    def _opened(self) -> tuple[MessageContext, AsyncLoop]:
        if self._core is None or self._loop is None:
            raise UsageError("the context is not open")
        return self._core, self._loop

    @property
    def core(self) -> MessageContext:
        """The context without its host, for statistics and tests."""
        return self._opened()[0]

    async def source(
        self, topic: str, *, on_event: Callable[[SourceEvent], object] | None = None, **options: OptionValue
    ) -> Source:
        """A source; `options` are source options by name. Raises: ResourceError, ConfigError, UsageError."""
        waiters = TaskWaiters()
        core = self.core.source(topic, object_options("source", options), telling(waiters.wake, on_event))
        return Source(core, nullcontext(), waiters)

    async def hf_source(
        self, topic: str, *, on_event: Callable[[SourceEvent], object] | None = None, **options: OptionValue
    ) -> HFSource:
        """A source for hot failover, whose messages have numbers. Raises: as `source`."""
        waiters = TaskWaiters()
        chosen = object_options("source", options)
        core = self.core.source(topic, chosen, telling(waiters.wake, on_event), hot_failover=True)
        return HFSource(Source(core, nullcontext(), waiters))

    async def receiver(
        self,
        topic: str,
        *,
        on_event: OnEvent | None = None,
        on_messages: OnMessages | None = None,
        on_source: OnSource | None = None,
        queue_max: int = QUEUE_MAX,
        **options: OptionValue,
    ) -> Receiver:
        """A receiver; without `on_event` and `on_messages` its events wait in a queue.

        `on_messages` takes messages that came in a row at once, which is faster. Raises: ConfigError, UsageError.
        """
        core, loop = self._opened()
        waiters = TaskWaiters()
        on_change = telling(waiters.wake, on_source)
        queue = TaskQueue(loop, queue_max, on_change) if on_event is None and on_messages is None else None
        listener = queue or CallbackListener(on_event, on_messages, on_change)
        receiver = core.receiver(topic, listener, object_options("receiver", options))
        return Receiver(receiver, nullcontext(), waiters, queue)

    async def hf_receiver(
        self,
        topic: str,
        *,
        on_event: OnEvent | None = None,
        on_source: OnSource | None = None,
        queue_max: int = QUEUE_MAX,
        **options: OptionValue,
    ) -> Receiver:
        """A receiver that joins the sources of hot failover: each number once. As `receiver`, without batches."""
        core, loop = self._opened()
        waiters = TaskWaiters()
        on_change = telling(waiters.wake, on_source)
        queue = TaskQueue(loop, queue_max, on_change) if on_event is None else None
        listener = queue or CallbackListener(on_event, None, on_change)
        receiver = core.receiver(topic, listener, object_options("receiver", options), hot_failover=True)
        return Receiver(receiver, nullcontext(), waiters, queue)

    async def wildcard_receiver(
        self,
        pattern: str,
        *,
        on_event: OnEvent | None = None,
        on_messages: Callable[[MessageBatch], object] | None = None,
        on_source: OnSource | None = None,
        on_created: OnTopic | None = None,
        on_deleted: OnTopic | None = None,
        queue_max: int = QUEUE_MAX,
        **options: OptionValue,
    ) -> WildcardReceiver:
        """A receiver for all topics in which `pattern` occurs. `on_created`, `on_deleted`: topics come and go.

        Raises: PatternError, ConfigError, UsageError.
        """
        core, loop = self._opened()
        waiters = TaskWaiters()
        on_change = telling(waiters.wake, on_source)
        queue = TaskQueue(loop, queue_max, on_change) if on_event is None and on_messages is None else None
        listener = queue or CallbackListener(on_event, on_messages, on_change)
        chosen = object_options("wildcard_receiver", options)
        wildcard = core.wildcard(pattern, listener, chosen, telling(waiters.wake, on_created), on_deleted)
        return WildcardReceiver(wildcard, nullcontext(), waiters, queue)

    async def uim(self, target: str, data: bytes, topic: str | None = None, *, block: bool = True) -> None:
        """Send an immediate message to one context: "TCP:ip:port", "TCP:domain:ip:port" or "SOURCE:source string".

        Waits until it has left, which does not say that it arrives; without `block` a failure is logged.
        Raises: NoRoute, ResourceError when it cannot be sent; UsageError.
        """
        if not block:
            self.core.uim(target, data, topic, on_failed=log_failure(target))
            return
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_failed(why: str, remedy: str) -> None:
            if not outcome.done():
                outcome.set_exception(failure(f"message to {target}", why, remedy))

        self.core.uim(
            target, data, topic, on_sent=lambda: None if outcome.done() else outcome.set_result(None),
            on_failed=on_failed,
        )  # fmt: skip
        await outcome

    async def uim_request(
        self, target: str, data: bytes, topic: str | None = None, *, on_response: OnResponse | None = None
    ) -> PendingRequest:
        """Send a request to one context, as by `uim`. What it could not be sent for is told where responses are taken.

        Raises: UsageError; ResourceError without a request port, or for a source that is not known here.
        """
        request = _new_request(on_response)
        request.begin(self.core.uim_request(target, data, request.take, request.fail, topic))
        return request

    async def mim(self, data: bytes, topic: str | None = None) -> None:
        """Send an immediate message to the contexts of all TRDs that hear them (`mim_incoming_address`).

        Raises: WouldBlock while more waits for the rate limit of LBT-RM than may; UsageError, ResourceError.
        """
        self.core.mim(data, topic)

    async def mim_request(
        self, data: bytes, topic: str | None = None, *, on_response: OnResponse | None = None
    ) -> PendingRequest:
        """Send a request as by `mim`. Raises: as `mim`; ResourceError without a request port."""
        request = _new_request(on_response)
        request.begin(self.core.mim_request(data, request.take, topic, request.fail))
        return request

    async def request(self, target: str, data: bytes, timeout_s: float = ANSWER_TIMEOUT_S) -> bytes:
        """Send a request without a topic by `uim_request`, and return the first response.

        Raises: TimeoutError; ResourceError when it cannot be sent; UsageError.
        """
        async with await self.uim_request(target, data) as request:
            try:
                return (await asyncio.wait_for(request.get(), timeout_s)).data
            except TimeoutError:
                raise TimeoutError(NO_RESPONSE.format(target, timeout_s)) from None

    def stats(self) -> Statistics:
        """Counters of the context and of its sessions, as of now."""
        return collect(self.core)

    async def close(self) -> None:
        """Close the context. Raises: UsageError while sources or receivers are open."""
        core, loop = self._core, self._loop
        if core is None or loop is None:
            return
        core.close()
        self._follower.close()
        loop.detach()
        loop.close()
        self._core = self._loop = None

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        core = self._core
        if core is None:
            return
        is_done = True
        if error is None:
            is_done = await settle(lambda: core.is_drained, core.progress)
            if self._linger:
                await asyncio.sleep(self._linger)
        core.close_children()
        if error is None:
            await settle(lambda: core.has_ended)
        await self.close()
        if not is_done:
            raise undelivered(f"context {self.name}".rstrip())
