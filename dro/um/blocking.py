"""The client library for threads and scripts: blocking calls and callbacks, no asyncio.

    with BlockingContext(Config.load("trd1.cfg")) as ctx:
        source = ctx.source("quotes.IBM")
        receiver = ctx.receiver("quotes.IBM", on_event=print)
        source.send(b"...")

Callbacks run on the context's own thread; from there no call may wait. A receiver without a callback is iterated over,
or asked with `get`. Any thread may use any object. A full queue stops the reading of data, as in `dro.um.context`.

Source: client library notes, sections 1 to 4.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final, Self

from dro.um.client_config import Config, OptionValue, object_options
from dro.um.events import Event, MessageBatch, SourceEvent, SqnRange, UsageError, WouldBlock
from dro.um.hosts import ThreadLoop
from dro.um.message_context import MessageContext
from dro.um.receiver import CallbackListener, OnEvent, OnMessages, OnSource, ReceiverCore
from dro.um.source import SourceCore
from dro.um.stats import Statistics, collect
from dro.um.wildcard import OnTopic, WildcardCore

__all__ = ["BlockingContext", "BlockingReceiver", "BlockingSource", "BlockingWildcardReceiver"]

QUEUE_MAX: Final = 50_000
DRAIN_TIMEOUT_S: Final = 5.0
DRAIN_CHECK_S: Final = 0.005


class _Changes:
    """Threads that wait for something to change; `tell` is called with the loop's lock held."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._count = 0

    def tell(self) -> None:
        with self._condition:
            self._count += 1
            self._condition.notify_all()

    def wait_until(self, is_true: Callable[[], bool], timeout: float | None, what: str) -> None:
        """Raises: TimeoutError."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._condition:
                seen = self._count
            if is_true():  # takes the loop's lock, so not under the condition's
                return
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(what)
            self._wait_past(seen, left)

    def _wait_past(self, seen: int, timeout: float | None) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._count != seen, timeout)


class _Queue(CallbackListener):
    """Events for other threads; more than `limit` of them pause the loop until half of them are taken."""

    def __init__(self, loop: ThreadLoop, limit: int, on_source: OnSource | None) -> None:
        super().__init__(None, None, on_source)
        self._loop = loop
        self._limit = limit
        self._events: deque[Event] = deque()
        self._condition = threading.Condition()
        self._is_ended = False

    def on_events(self, events: list[Event]) -> None:
        with self._condition:
            if self._is_ended:
                return
            self._events.extend(events)
            self._condition.notify()
            if len(self._events) > self._limit:
                self._loop.pause(self)  # under the condition, so that who takes the events sees it

    def get(self, timeout: float | None) -> Event | None:
        """The next event; None after the end. Raises: TimeoutError."""
        with self._condition:
            if not self._events:
                self._loop.check_may_wait()
            if not self._condition.wait_for(lambda: self._events or self._is_ended, timeout):
                raise TimeoutError("no event")
            if self._is_ended:
                return None
            event = self._events.popleft()
            is_low = len(self._events) <= self._limit // 2
        if is_low and self._loop.is_paused:
            with self._loop:
                self._loop.resume(self)
        return event

    def close(self) -> None:
        super().close()
        self._loop.resume(self)
        with self._condition:
            self._is_ended = True
            self._events.clear()
            self._condition.notify_all()


class BlockingSource:
    """One source. Made by `BlockingContext.source`."""

    def __init__(self, loop: ThreadLoop, core: SourceCore, changes: _Changes) -> None:
        self._loop = loop
        self._core = core
        self._changes = changes

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
        with self._loop:
            return frozenset(self._core.clients)

    def send(self, data: bytes, *, flush: bool = True, block: bool = True, timeout: float | None = None) -> SqnRange:
        """Send one message; waits while the session is blocked, at most `timeout` seconds.

        `flush` False: it may wait for others to share a datagram with. Raises: WouldBlock, if not `block`;
        TimeoutError; UsageError, also for a call from a callback that would have to wait.
        """
        core, loop = self._core, self._loop
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            with loop:
                try:
                    return core.send(data, flush=flush)
                except WouldBlock:
                    if not block:
                        core.tell_wakeup()
                        raise
                    loop.check_may_wait()
                    ready = threading.Event()
                    core.writer.call_when_ready(ready.set)
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not ready.wait(left):
                raise TimeoutError("the session is blocked")

    def flush(self) -> None:
        """Send what waits for more messages."""
        with self._loop:
            self._core.flush()

    def wait_receivers(self, count: int = 1, timeout: float | None = None) -> None:
        """Until so many receivers are connected; not for LBT-RM. Raises: TimeoutError."""
        self._loop.check_may_wait()
        self._changes.wait_until(lambda: len(self.clients) >= count, timeout, "receivers have not connected")

    def close(self, *, final: bool | None = None) -> None:
        """Stop being a source, once everything is handed to the session. `final`: advertise the end (None: option)."""
        with self._loop:
            self._core.flush()
        if not self._loop.is_own_thread:
            deadline = time.monotonic() + DRAIN_TIMEOUT_S
            while not self._is_idle() and time.monotonic() < deadline:
                time.sleep(DRAIN_CHECK_S)
        with self._loop:
            self._core.close(final=final)

    def _is_idle(self) -> bool:
        with self._loop:
            return self._core.is_closed or self._core.writer.is_idle

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Receiving:
    """What plain and wildcard receivers share."""

    def __init__(self, loop: ThreadLoop, queue: _Queue | None, changes: _Changes) -> None:
        self._loop = loop
        self._queue = queue
        self._changes = changes

    def _next(self, timeout: float | None) -> Event | None:
        if self._queue is None:
            raise UsageError("this receiver hands its events to a callback")
        return self._queue.get(timeout)

    def get(self, timeout: float | None = None) -> Event:
        """The next event. Raises: TimeoutError; UsageError after the receiver was closed."""
        event = self._next(timeout)
        if event is None:
            raise UsageError("the receiver is closed")
        return event

    def __iter__(self) -> Iterator[Event]:
        while (event := self._next(None)) is not None:
            yield event


class BlockingReceiver(_Receiving):
    """One receiver of one topic. Made by `BlockingContext.receiver`."""

    def __init__(self, loop: ThreadLoop, core: ReceiverCore, queue: _Queue | None, changes: _Changes) -> None:
        super().__init__(loop, queue, changes)
        self._core = core

    @property
    def topic(self) -> str:
        return self._core.topic

    @property
    def sources(self) -> list[str]:
        """Source strings of the joined sources."""
        with self._loop:
            return self._core.sources

    def wait_sources(self, count: int = 1, timeout: float | None = None) -> None:
        """Until so many sources are joined. Raises: TimeoutError."""
        self._loop.check_may_wait()
        self._changes.wait_until(lambda: len(self.sources) >= count, timeout, f"no {count} sources of {self.topic!r}")

    def close(self) -> None:
        with self._loop:
            self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class BlockingWildcardReceiver(_Receiving):
    """A receiver for every topic that matches a pattern. Made by `BlockingContext.wildcard_receiver`."""

    def __init__(self, loop: ThreadLoop, core: WildcardCore, queue: _Queue | None, changes: _Changes) -> None:
        super().__init__(loop, queue, changes)
        self._core = core

    @property
    def pattern(self) -> str:
        return self._core.pattern

    @property
    def topics(self) -> frozenset[str]:
        """Topics that have a sub-receiver."""
        with self._loop:
            return frozenset(self._core.topics)

    def wait_topics(self, count: int = 1, timeout: float | None = None) -> None:
        """Until so many topics have matched. Raises: TimeoutError."""
        self._loop.check_may_wait()
        what = f"no {count} topics for {self.pattern!r}"
        self._changes.wait_until(lambda: len(self.topics) >= count, timeout, what)

    def close(self) -> None:
        with self._loop:
            self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class BlockingContext:
    """One UM context with a thread of its own.

    `linger`: seconds that leaving `with` waits for receivers to ask for lost messages. Raises: ResourceError naming
    the option that cannot be satisfied.
    """

    def __init__(
        self, config: Config | None = None, name: str = "", *, linger: float = 0.0, rng: random.Random | None = None
    ) -> None:
        self._name = name
        self._linger = linger
        self._loop = ThreadLoop(f"um-context-{name}" if name else "um-context")
        try:
            self._core = MessageContext(config or Config(), self._loop, name=name, rng=rng)
        except BaseException:
            self._loop.close()
            raise
        self._is_closed = False
        self._loop.start()

    @property
    def name(self) -> str:
        return self._name

    @property
    def core(self) -> MessageContext:
        """The context without its host; to be touched under `lock` only."""
        return self._core

    @property
    def lock(self) -> ThreadLoop:
        """`with ctx.lock:` keeps the context's thread out."""
        return self._loop

    @property
    def domain_id(self) -> int:
        """Of the TRD; 0 while it is not known."""
        return self._core.core.domain_id

    @property
    def request_address(self) -> str:
        """Target of unicast immediate messages to this context; empty without a request port."""
        return self._core.request_target

    def source(
        self, topic: str, *, on_event: Callable[[SourceEvent], object] | None = None, **options: OptionValue
    ) -> BlockingSource:
        """A source; `options` are source options by name. Raises: ResourceError, ConfigError, UsageError."""
        changes = _Changes()

        def on_source_event(event: SourceEvent) -> None:
            changes.tell()
            if on_event is not None:
                on_event(event)

        chosen = object_options("source", options)
        with self._loop:
            return BlockingSource(self._loop, self._core.source(topic, chosen, on_source_event), changes)

    def receiver(
        self,
        topic: str,
        *,
        on_event: OnEvent | None = None,
        on_messages: OnMessages | None = None,
        on_source: OnSource | None = None,
        queue_max: int = QUEUE_MAX,
        **options: OptionValue,
    ) -> BlockingReceiver:
        """A receiver; without `on_event` and `on_messages` its events wait in a queue.

        `on_messages` takes messages that came in a row at once, which is faster. Raises: ConfigError, UsageError.
        """
        changes = _Changes()
        queue, listener = self._listener(changes, on_event, on_messages, on_source, queue_max)
        chosen = object_options("receiver", options)
        with self._loop:
            return BlockingReceiver(self._loop, self._core.receiver(topic, listener, chosen), queue, changes)

    def wildcard_receiver(
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
    ) -> BlockingWildcardReceiver:
        """A receiver for all topics in which `pattern` occurs. `on_created`, `on_deleted`: topics come and go.

        Raises: PatternError, ConfigError, UsageError.
        """
        changes = _Changes()
        queue, listener = self._listener(changes, on_event, on_messages, on_source, queue_max)

        def on_topic(topic: str) -> None:
            changes.tell()
            if on_created is not None:
                on_created(topic)

        chosen = object_options("wildcard_receiver", options)
        with self._loop:
            core = self._core.wildcard(pattern, listener, chosen, on_topic, on_deleted)
            return BlockingWildcardReceiver(self._loop, core, queue, changes)

    def _listener(
        self,
        changes: _Changes,
        on_event: OnEvent | None,
        on_messages: OnMessages | None,
        on_source: OnSource | None,
        queue_max: int,
    ) -> tuple[_Queue | None, CallbackListener]:
        def on_change(topic: str, source: str, added: bool) -> None:
            changes.tell()
            if on_source is not None:
                on_source(topic, source, added)

        if on_event is None and on_messages is None:
            queue = _Queue(self._loop, queue_max, on_change)
            return queue, queue
        return None, CallbackListener(on_event, on_messages, on_change)

    def stats(self) -> Statistics:
        """Counters of the context and of its sessions, as of now."""
        with self._loop:
            return collect(self._core)

    def close(self) -> None:
        """End the context and its thread. Raises: UsageError while sources or receivers are open, or in a callback."""
        if self._is_closed:
            return
        self._loop.check_may_wait()
        with self._loop:
            self._core.close()
        self._is_closed = True
        self._loop.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_closed:
            return
        if error is None:
            self._settle(lambda: self._core.is_drained)
            if self._linger:
                time.sleep(self._linger)
        with self._loop:
            self._core.close_children()
        if error is None:
            self._settle(lambda: self._core.has_ended)
        self.close()

    def _settle(self, is_done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DRAIN_TIMEOUT_S
        while time.monotonic() < deadline:
            with self._loop:
                if is_done():
                    return
            time.sleep(DRAIN_CHECK_S)
