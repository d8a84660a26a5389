"""The client library for asyncio: `Context`, `Source`, `Receiver`, `WildcardReceiver`.

    async with Context(Config.load("trd1.cfg")) as ctx:
        source = await ctx.source("quotes.IBM")
        receiver = await ctx.receiver("quotes.IBM")
        await source.send(b"...")
        async for event in receiver:
            match event: ...

Everything runs on the asyncio loop that entered the context. A receiver without a callback queues its events; a queue
that is full stops the reading of data for the whole context until the application has caught up. An application that
does not read for longer than the activity timeout of its sessions loses them.

Source: client library notes, sections 1 to 4 and 14.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Final, Self

from dro.clock import s
from dro.um.client_config import Config, OptionValue, object_options
from dro.um.events import Event, MessageBatch, SourceEvent, SqnRange, UsageError, WouldBlock
from dro.um.hosts import AsyncLoop
from dro.um.message_context import MessageContext
from dro.um.receiver import CallbackListener, OnEvent, OnMessages, OnSource, ReceiverCore
from dro.um.source import SourceCore
from dro.um.stats import Statistics, collect
from dro.um.wildcard import OnTopic, WildcardCore

__all__ = ["Config", "Context", "Receiver", "Source", "WildcardReceiver"]

QUEUE_MAX: Final = 50_000
SENDS_PER_TURN: Final = 32
DRAIN_TIMEOUT_NS: Final = s(5)
DRAIN_CHECK_S: Final = 0.005


class _Waiters:
    """Coroutines that wait for something to change."""

    def __init__(self) -> None:
        self._futures: list[asyncio.Future[None]] = []

    def wake(self) -> None:
        futures, self._futures = self._futures, []
        for future in futures:
            if not future.done():
                future.set_result(None)

    async def wait(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures.append(future)
        await future


class _Queue(CallbackListener):
    """Events for `async for`; more than `limit` of them pause the loop until half of them are taken."""

    def __init__(self, loop: AsyncLoop, limit: int, on_source: OnSource | None) -> None:
        super().__init__(None, None, on_source)
        self._loop = loop
        self._limit = limit
        self.events: deque[Event] = deque()
        self.waiters = _Waiters()
        self.is_ended = False

    def on_events(self, events: list[Event]) -> None:
        if self.is_ended:
            return
        self.events.extend(events)
        self.waiters.wake()
        if len(self.events) > self._limit:
            self._loop.pause(self)

    async def get(self) -> Event | None:
        """The next event; None after the end."""
        while not self.events:
            if self.is_ended:
                return None
            await self.waiters.wait()
        event = self.events.popleft()
        if self._loop.is_paused and len(self.events) <= self._limit // 2:
            self._loop.resume(self)
        return event

    def close(self) -> None:
        super().close()
        self.is_ended = True
        self.events.clear()
        self._loop.resume(self)
        self.waiters.wake()


class _Sources:
    """Calls the application's source callback and wakes who waits for sources."""

    def __init__(self, on_source: OnSource | None) -> None:
        self._on_source = on_source
        self.waiters = _Waiters()

    def __call__(self, topic: str, source: str, added: bool) -> None:
        self.waiters.wake()
        if self._on_source is not None:
            self._on_source(topic, source, added)


class Source:
    """One source. Made by `Context.source`."""

    def __init__(self, core: SourceCore, waiters: _Waiters) -> None:
        self._core = core
        self._waiters = waiters
        self._unyielded = 0

    @property
    def topic(self) -> str:
        return self._core.topic

    @property
    def source_string(self) -> str:
        return self._core.source_string

    @property
    def otid(self) -> bytes:
        return self._core.fragments.otid

    @property
    def clients(self) -> frozenset[str]:
        """Connected receivers of the session; LBT-RM knows none."""
        return frozenset(self._core.clients)

    async def send(self, data: bytes, *, flush: bool = True, block: bool = True) -> SqnRange:
        """Send one message; waits while the session is blocked.

        `flush` False: it may wait for others to share a datagram with. Raises: WouldBlock, if not `block`; UsageError.
        """
        core = self._core
        self._unyielded += 1
        if self._unyielded >= SENDS_PER_TURN:  # a sender that is never refused must not keep the loop to itself
            self._unyielded = 0
            await asyncio.sleep(0)
        while True:
            try:
                return core.send(data, flush=flush)
            except WouldBlock:
                if not block:
                    core.tell_wakeup()
                    raise
                waiters = _Waiters()
                core.writer.call_when_ready(waiters.wake)
                await waiters.wait()

    async def flush(self) -> None:
        """Send what waits for more messages."""
        self._core.flush()

    async def wait_receivers(self, count: int = 1) -> None:
        """Until so many receivers are connected; not for LBT-RM, which has no connections."""
        while len(self._core.clients) < count:
            await self._waiters.wait()

    async def close(self, *, final: bool | None = None) -> None:
        """Stop being a source, once everything is handed to the session. `final`: advertise the end (None: option)."""
        core = self._core
        core.flush()
        deadline = asyncio.get_running_loop().time() + DRAIN_TIMEOUT_NS / s(1)
        while not core.is_closed and not core.writer.is_idle and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(DRAIN_CHECK_S)
        core.close(final=final)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _Receiving:
    """What plain and wildcard receivers share."""

    def __init__(self, queue: _Queue | None, waiters: _Waiters) -> None:
        self._queue = queue
        self._waiters = waiters

    async def get(self) -> Event:
        """The next event. Raises: UsageError after the receiver was closed, or when it has callbacks."""
        event = await self._next()
        if event is None:
            raise UsageError("the receiver is closed")
        return event

    async def _next(self) -> Event | None:
        if self._queue is None:
            raise UsageError("this receiver hands its events to a callback")
        return await self._queue.get()

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (event := await self._next()) is not None:
            yield event


class Receiver(_Receiving):
    """One receiver of one topic. Made by `Context.receiver`; `async for` gives its events until it is closed."""

    def __init__(self, core: ReceiverCore, queue: _Queue | None, waiters: _Waiters) -> None:
        super().__init__(queue, waiters)
        self._core = core

    @property
    def topic(self) -> str:
        return self._core.topic

    @property
    def sources(self) -> list[str]:
        """Source strings of the joined sources."""
        return self._core.sources

    async def wait_sources(self, count: int = 1) -> None:
        """Until so many sources are joined."""
        while len(self._core.sources) < count:
            await self._waiters.wait()

    async def close(self) -> None:
        self._core.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class WildcardReceiver(_Receiving):
    """A receiver for every topic that matches a pattern. Made by `Context.wildcard_receiver`."""

    def __init__(self, core: WildcardCore, queue: _Queue | None, waiters: _Waiters) -> None:
        super().__init__(queue, waiters)
        self._core = core

    @property
    def pattern(self) -> str:
        return self._core.pattern

    @property
    def topics(self) -> frozenset[str]:
        """Topics that have a sub-receiver."""
        return frozenset(self._core.topics)

    async def wait_topics(self, count: int = 1) -> None:
        """Until so many topics have matched."""
        while len(self._core.topics) < count:
            await self._waiters.wait()

    async def close(self) -> None:
        self._core.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Context:
    """One UM context in asyncio. Use it with `async with`, or call `open` and `close`.

    `linger`: seconds that leaving `async with` waits for receivers to ask for lost messages.
    """

    def __init__(
        self, config: Config | None = None, name: str = "", *, linger: float = 0.0, rng: random.Random | None = None
    ) -> None:
        self._config = config or Config()
        self._name = name
        self._rng = rng
        self._linger = linger
        self._loop: AsyncLoop | None = None
        self._core: MessageContext | None = None

    async def open(self) -> Self:
        """Raises: ResourceError naming the option that cannot be satisfied."""
        if self._core is not None:
            raise UsageError("the context is open already")
        loop = AsyncLoop()
        try:
            self._core = MessageContext(self._config, loop, name=self._name, rng=self._rng)
        except BaseException:
            loop.close()
            raise
        self._loop = loop
        loop.attach()
        return self

    def _opened(self) -> tuple[MessageContext, AsyncLoop]:
        if self._core is None or self._loop is None:
            raise UsageError("the context is not open")
        return self._core, self._loop

    @property
    def name(self) -> str:
        return self._name

    @property
    def core(self) -> MessageContext:
        """The context without its host, for statistics and tests."""
        return self._opened()[0]

    @property
    def domain_id(self) -> int:
        """Of the TRD; 0 while it is not known."""
        return self.core.core.domain_id

    @property
    def request_address(self) -> str:
        """Target of unicast immediate messages to this context; empty without a request port."""
        return self.core.request_target

    async def source(
        self, topic: str, *, on_event: Callable[[SourceEvent], object] | None = None, **options: OptionValue
    ) -> Source:
        """A source; `options` are source options by name. Raises: ResourceError, ConfigError, UsageError."""
        core, _ = self._opened()
        waiters = _Waiters()

        def on_source_event(event: SourceEvent) -> None:
            waiters.wake()
            if on_event is not None:
                on_event(event)

        return Source(core.source(topic, object_options("source", options), on_source_event), waiters)

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
        sources = _Sources(on_source)
        queue = _Queue(loop, queue_max, sources) if on_event is None and on_messages is None else None
        listener = queue or CallbackListener(on_event, on_messages, sources)
        return Receiver(core.receiver(topic, listener, object_options("receiver", options)), queue, sources.waiters)

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
        sources = _Sources(on_source)
        queue = _Queue(loop, queue_max, sources) if on_event is None and on_messages is None else None

        def on_topic(topic: str) -> None:
            sources.waiters.wake()
            if on_created is not None:
                on_created(topic)

        listener = queue or CallbackListener(on_event, on_messages, sources)
        wildcard = core.wildcard(pattern, listener, object_options("wildcard_receiver", options), on_topic, on_deleted)
        return WildcardReceiver(wildcard, queue, sources.waiters)

    def stats(self) -> Statistics:
        """Counters of the context and of its sessions, as of now."""
        return collect(self.core)

    async def close(self) -> None:
        """Raises: UsageError while sources or receivers are open."""
        core, loop = self._core, self._loop
        if core is None or loop is None:
            return
        core.close()
        loop.detach()
        loop.close()
        self._core = self._loop = None

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        core = self._core
        if core is None:
            return
        if error is None:
            await self._settle(lambda: core.is_drained)
            if self._linger:
                await asyncio.sleep(self._linger)
        core.close_children()
        if error is None:
            await self._settle(lambda: core.has_ended)
        await self.close()

    @staticmethod
    async def _settle(is_done: Callable[[], bool]) -> None:
        deadline = asyncio.get_running_loop().time() + DRAIN_TIMEOUT_NS / s(1)
        while not is_done() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(DRAIN_CHECK_S)
