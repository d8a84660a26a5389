"""The client library for threads and scripts: blocking calls and callbacks, no asyncio.

    with BlockingContext(Config.load("trd1.cfg")) as ctx:
        source = ctx.source("quotes.IBM")
        receiver = ctx.receiver("quotes.IBM", on_event=print)
        source.send(b"...")

Callbacks run on the context's own thread; from there no call may wait. A receiver without a callback is iterated over,
or asked with `get`. Any thread may use any object. A full queue stops the reading of data, as in `dro.um.async_api`.

Source: client library notes, sections 1 to 4.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Self, TypeVar

from dro.devices.follower import DeviceFollower
from dro.errors import ResourceError
from dro.um.blocking_waits import ThreadChanges, ThreadClosing, ThreadQueue, settle
from dro.um.failover_sources import BlockingHFSource
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
from dro.um.hosts import ThreadLoop
from dro.um.message.client_config import Config, OptionValue, object_options
from dro.um.message.context import MessageContext
from dro.um.message.events import Event, MessageBatch, ResponseMsg, SourceEvent, SqnRange, WouldBlock
from dro.um.message.immediate import log_failure
from dro.um.message.properties import ComposedMessage, Properties, batch_marks, compose
from dro.um.message.receiver import CallbackListener, MessageReceiver, OnEvent, OnMessages, OnSource
from dro.um.message.requests import OnRequestFailed, OnResponse, OpenRequest
from dro.um.message.stats import Statistics, collect
from dro.um.message.unicast import failure
from dro.um.message.wildcard_receiver import OnTopic, PatternReceiver

__all__ = [
    "BlockingContext",
    "BlockingHFSource",
    "BlockingReceiver",
    "BlockingRequest",
    "BlockingSource",
    "BlockingWildcardReceiver",
]

T = TypeVar("T")


class BlockingSource(SourceHandle[ThreadLoop, ThreadChanges], ThreadClosing):
    """One source. Made by `BlockingContext.source`."""

    def send(
        self,
        data: bytes,
        *,
        flush: bool = True,
        block: bool = True,
        timeout: float | None = None,
        properties: Properties | None = None,
        channel: int | None = None,
        start_batch: bool = False,
        end_batch: bool = False,
    ) -> SqnRange:
        """Send one message; waits while the session is blocked, at most `timeout` seconds.

        `flush` False: it may wait for others to share a datagram with. From a message with `start_batch` on all wait
        for the one with `end_batch`, or until they fill a datagram. Raises: WouldBlock, if not `block`;
        TimeoutError; UsageError, also for a call from a callback that would have to wait.
        """
        message = compose(data, properties, channel)
        return self.send_composed(message, flush, block, timeout, batch_marks(start_batch, end_batch))

    def send_composed(
        self, message: ComposedMessage, flush: bool, block: bool, timeout: float | None, marks: int
    ) -> SqnRange:
        """Send a message whose headers are made. Raises as `send`."""
        send = lambda: self._core.send(message.data, flush=flush, blocks=message.blocks, marks=marks)  # noqa: E731
        return self._until_taken(send, block, timeout)

    def request(
        self, data: bytes, *, on_response: OnResponse | None = None, timeout: float | None = None
    ) -> BlockingRequest:
        """Send a request to the receivers of the topic; waits as `send`.

        Without `on_response` the responses are taken from what is returned. Raises: as `send`; ResourceError without
        a request port.
        """
        return _requested(
            self._lock,
            lambda take, fail: self._until_taken(lambda: self._core.request(data, take, fail), True, timeout),
            on_response,
        )

    def _until_taken(self, send: Callable[[], T], block: bool, timeout: float | None) -> T:
        """Send until the session takes it."""
        core, loop = self._core, self._lock
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            with loop:
                try:
                    return send()
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
        with self._lock:
            self._core.flush()

    def wait_receivers(self, count: int = 1, timeout: float | None = None) -> None:
        """Wait until so many receivers are connected; not for LBT-RM. Raises: TimeoutError, UsageError once closed."""
        self._lock.check_may_wait()
        self._changes.wait_until(lambda: self._is_enough(self.clients, count), timeout, "receivers have not connected")

    def close(self, *, final: bool | None = None, wait: bool = True) -> None:
        """Stop being a source, once everything is handed to the session. `final`: advertise the end (None: option).

        `wait`: false drops what has not been handed. Raises: ResourceError, closed, when nothing is taken for 5 s.
        """
        core, loop = self._core, self._lock
        self.flush()
        is_done = (
            not wait
            or loop.is_own_thread
            or settle(loop, lambda: core.is_closed or core.writer.is_idle, lambda: core.writer.handed)
        )
        with loop:
            core.close(final=final)
        if not is_done:
            raise undelivered(f"source of {core.topic!r}")


class BlockingRequest(RequestHandle[ThreadLoop, ThreadChanges], ThreadClosing):
    """An open request, until it is closed. Responses are lost when nobody asks again: set a time limit."""

    def get(self, timeout: float | None = None) -> ResponseMsg:
        """The next response. Raises: TimeoutError; ResourceError, `NoRoute` if it could not be sent, or the context was
        closed; UsageError after it was closed.
        """
        self._lock.check_may_wait()
        self._changes.wait_until(self._has_news, timeout, "no response")
        return self._take()

    def responses(self, timeout: float | None = None) -> Iterator[ResponseMsg]:
        """Give responses as they come, for so many seconds from now on. Raises: ResourceError as `get`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                yield self.get(None if deadline is None else max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                return

    def close(self) -> None:
        """End it: responses that come later are dropped."""
        self._end()


class _Receiving(ReceiverHandle[R, ThreadLoop, ThreadChanges, ThreadQueue], ThreadClosing):
    """What plain and wildcard receivers share."""

    def get(self, timeout: float | None = None) -> Event:
        """The next event. Raises: TimeoutError; UsageError after the receiver was closed."""
        return self._given(self._events().get(timeout))

    def __iter__(self) -> Iterator[Event]:
        while (event := self._events().get(None)) is not None:
            yield event

    def close(self) -> None:
        with self._lock:
            self._core.close()


class BlockingReceiver(_Receiving[MessageReceiver]):
    """One receiver of one topic. Made by `BlockingContext.receiver`."""

    @property
    def topic(self) -> str:
        return self._core.topic

    @property
    def sources(self) -> list[str]:
        """Source strings of the joined sources."""
        with self._lock:
            return self._core.sources

    def wait_sources(self, count: int = 1, timeout: float | None = None) -> None:
        """Wait until so many sources are joined. Raises: TimeoutError, UsageError once it is closed."""
        self._lock.check_may_wait()
        what = f"no {count} sources of {self.topic!r}"
        self._changes.wait_until(lambda: self._is_enough(self.sources, count), timeout, what)


class BlockingWildcardReceiver(_Receiving[PatternReceiver]):
    """A receiver for every topic that matches a pattern. Made by `BlockingContext.wildcard_receiver`."""

    @property
    def pattern(self) -> str:
        return self._core.pattern

    @property
    def topics(self) -> frozenset[str]:
        """Topics that have a sub-receiver."""
        with self._lock:
            return frozenset(self._core.topics)

    def wait_topics(self, count: int = 1, timeout: float | None = None) -> None:
        """Wait until so many topics have matched. Raises: TimeoutError, UsageError once it is closed."""
        self._lock.check_may_wait()
        what = f"no {count} topics for {self.pattern!r}"
        self._changes.wait_until(lambda: self._is_enough(self.topics, count), timeout, what)


def _requested(
    loop: ThreadLoop, send: Callable[[OnResponse, OnRequestFailed], OpenRequest], on_response: OnResponse | None
) -> BlockingRequest:
    """Send a request; `send` is given who takes its responses, and its failure."""
    changes = ThreadChanges()
    request = BlockingRequest(loop, changes, changes.wake, on_response)
    request.begin(send(request.take, request.fail))
    return request


class BlockingContext(ContextHandle):
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
            self._core = MessageContext(config or Config.load(), self._loop, name=name, rng=rng)
        except BaseException:
            self._loop.close()
            raise
        self._follower = DeviceFollower(self._loop)
        self._is_closed = False
        self._loop.start()

    @property
    def core(self) -> MessageContext:
        """The context without its host; to be touched under `lock` only."""
        return self._core

    @property
    def lock(self) -> ThreadLoop:
        """`with ctx.lock:` keeps the context's thread out."""
        return self._loop

    def source(
        self, topic: str, *, on_event: Callable[[SourceEvent], object] | None = None, **options: OptionValue
    ) -> BlockingSource:
        """A source; `options` are source options by name. Raises: ResourceError, ConfigError, UsageError."""
        changes = ThreadChanges()
        chosen = object_options("source", options)
        with self._loop:
            core = self._core.source(topic, chosen, telling(changes.wake, on_event))
            return BlockingSource(core, self._loop, changes)

    def hf_source(
        self, topic: str, *, on_event: Callable[[SourceEvent], object] | None = None, **options: OptionValue
    ) -> BlockingHFSource:
        """A source for hot failover, whose messages have numbers. Raises: as `source`."""
        changes = ThreadChanges()
        chosen = object_options("source", options)
        with self._loop:
            core = self._core.source(topic, chosen, telling(changes.wake, on_event), hot_failover=True)
            return BlockingHFSource(BlockingSource(core, self._loop, changes))

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
        changes = ThreadChanges()
        on_change = telling(changes.wake, on_source)
        queue = ThreadQueue(self._loop, queue_max, on_change) if on_event is None and on_messages is None else None
        listener = queue or CallbackListener(on_event, on_messages, on_change)
        chosen = object_options("receiver", options)
        with self._loop:
            return BlockingReceiver(self._core.receiver(topic, listener, chosen), self._loop, changes, queue)

    def hf_receiver(
        self,
        topic: str,
        *,
        on_event: OnEvent | None = None,
        on_source: OnSource | None = None,
        queue_max: int = QUEUE_MAX,
        **options: OptionValue,
    ) -> BlockingReceiver:
        """A receiver that joins the sources of hot failover: each number once. As `receiver`, without batches."""
        changes = ThreadChanges()
        on_change = telling(changes.wake, on_source)
        queue = ThreadQueue(self._loop, queue_max, on_change) if on_event is None else None
        listener = queue or CallbackListener(on_event, None, on_change)
        chosen = object_options("receiver", options)
        with self._loop:
            core = self._core.receiver(topic, listener, chosen, hot_failover=True)
            return BlockingReceiver(core, self._loop, changes, queue)

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
        changes = ThreadChanges()
        on_change = telling(changes.wake, on_source)
        queue = ThreadQueue(self._loop, queue_max, on_change) if on_event is None and on_messages is None else None
        listener = queue or CallbackListener(on_event, on_messages, on_change)
        chosen = object_options("wildcard_receiver", options)
        with self._loop:
            core = self._core.wildcard(pattern, listener, chosen, telling(changes.wake, on_created), on_deleted)
            return BlockingWildcardReceiver(core, self._loop, changes, queue)

    def uim(self, target: str, data: bytes, topic: str | None = None, *, block: bool = True) -> None:
        """Send an immediate message to one context: "TCP:ip:port", "TCP:domain:ip:port" or "SOURCE:source string".

        Waits until it has left, which does not say that it arrives; without `block` a failure is logged.
        Raises: NoRoute, ResourceError when it cannot be sent; UsageError, also for a call from a callback that waits.
        """
        if not block:
            with self._loop:
                self._core.uim(target, data, topic, on_failed=log_failure(target))
            return
        self._loop.check_may_wait()
        outcome: SimpleQueue[ResourceError | None] = SimpleQueue()
        with self._loop:
            self._core.uim(
                target,
                data,
                topic,
                on_sent=lambda: outcome.put(None),
                on_failed=lambda why, remedy: outcome.put(failure(f"message to {target}", why, remedy)),
            )
        if (error := outcome.get()) is not None:
            raise error

    def uim_request(
        self, target: str, data: bytes, topic: str | None = None, *, on_response: OnResponse | None = None
    ) -> BlockingRequest:
        """Send a request to one context, as by `uim`. What it could not be sent for is told where responses are taken.

        Raises: UsageError; ResourceError without a request port, or for a source that is not known here.
        """
        return _requested(
            self._loop,
            lambda take, fail: self._locked(lambda: self._core.uim_request(target, data, take, fail, topic)),
            on_response,
        )

    def _locked(self, call: Callable[[], T]) -> T:
        with self._loop:
            return call()

    def mim(self, data: bytes, topic: str | None = None) -> None:
        """Send an immediate message to the contexts of all TRDs that hear them (`mim_incoming_address`).

        Raises: WouldBlock while more waits for the rate limit of LBT-RM than may; UsageError, ResourceError.
        """
        with self._loop:
            self._core.mim(data, topic)

    def mim_request(
        self, data: bytes, topic: str | None = None, *, on_response: OnResponse | None = None
    ) -> BlockingRequest:
        """Send a request as by `mim`. Raises: as `mim`; ResourceError without a request port."""
        return _requested(
            self._loop,
            lambda take, fail: self._locked(lambda: self._core.mim_request(data, take, topic, fail)),
            on_response,
        )

    def request(self, target: str, data: bytes, timeout_s: float = ANSWER_TIMEOUT_S) -> bytes:
        """Send a request without a topic by `uim_request`, and return the first response.

        Raises: TimeoutError; ResourceError when it cannot be sent; UsageError, also for a call from a callback.
        """
        self._loop.check_may_wait()
        with self.uim_request(target, data) as request:
            try:
                return request.get(timeout_s).data
            except TimeoutError:
                raise TimeoutError(NO_RESPONSE.format(target, timeout_s)) from None

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
            self._follower.close()
        self._is_closed = True
        self._loop.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def drain(self, is_stopped: Callable[[], bool] = lambda: False) -> bool:
        """Wait until everything that was sent has left; false when nothing leaves for 5 s, or `is_stopped` says so."""
        return settle(self._loop, lambda: self._core.is_drained, self._core.progress, is_stopped)

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if self._is_closed:
            return
        is_done = True
        if error is None:
            is_done = self.drain()
            if self._linger:
                time.sleep(self._linger)
        with self._loop:
            self._core.close_children()
        if error is None:
            settle(self._loop, lambda: self._core.has_ended)
        self.close()
        if not is_done:
            raise undelivered(f"context {self.name}".rstrip())
