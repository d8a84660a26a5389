"""What the asyncio and the blocking interface have in common: the application's objects around those of the library.

`lock` keeps the thread of the loop out while something is read; inside asyncio there is nothing to keep out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sized
from contextlib import AbstractContextManager
from typing import ClassVar, Final, Generic, ParamSpec, Protocol, TypeVar

from dro.errors import ResourceError
from dro.um.message.context import MessageContext
from dro.um.message.events import Event, ResponseMsg, UsageError
from dro.um.message.immediate import OnImmediateData
from dro.um.message.receiver import MessageReceiver
from dro.um.message.requests import OnResponse, OpenRequest, WaitingResponses
from dro.um.message.source import MessageSource
from dro.um.message.wildcard_receiver import PatternReceiver

QUEUE_MAX: Final = 50_000
DRAIN_TIMEOUT_S: Final = 5.0
DRAIN_CHECK_S: Final = 0.005
NO_RESPONSE: Final = "request to {}: no response within {:g} s"
ANSWER_TIMEOUT_S: Final = 5.0


def undelivered(what: str) -> ResourceError:
    """Make the error of an end that leaves messages behind."""
    why = f"{what} ends with messages that have not left: nothing was taken for {DRAIN_TIMEOUT_S:g} s"
    return ResourceError(why, remedy="see that all its receivers read what comes")


class Waiters(Protocol):
    """Keeps those who wait for a change."""

    def wake(self) -> None: ...


P = ParamSpec("P")
L = TypeVar("L", bound=AbstractContextManager[object])
C = TypeVar("C", bound=MessageSource | MessageReceiver | PatternReceiver)
R = TypeVar("R", bound=MessageReceiver | PatternReceiver)
W = TypeVar("W", bound=Waiters)
Q = TypeVar("Q")  # a queue of events


def telling(tell: Callable[[], object], callback: Callable[P, object] | None) -> Callable[P, None]:
    """Tells those who wait for a change, and then the application."""

    def both(*args: P.args, **kwargs: P.kwargs) -> None:
        tell()
        if callback is not None:
            callback(*args, **kwargs)

    return both


class _Handle(Generic[C, W]):
    """Is closed by the application, or with its context; who waits for a change is told."""

    _KIND: ClassVar[str]

    def __init__(self, core: C, changes: W) -> None:
        self._core = core
        self._changes = changes
        core.on_closed = changes.wake

    def _is_enough(self, found: Sized, count: int) -> bool:
        """Say whether it is what was waited for. Raises: UsageError when no more can come."""
        if len(found) < count and self._core.is_closed:
            raise UsageError(f"the {self._KIND} is closed")
        return len(found) >= count


class SourceHandle(_Handle[MessageSource, W], Generic[L, W]):
    _KIND = "source"

    def __init__(self, core: MessageSource, lock: L, changes: W) -> None:
        super().__init__(core, changes)
        self._lock = lock

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
        with self._lock:
            return frozenset(self._core.clients)


class ReceiverHandle(_Handle[R, W], Generic[R, L, W, Q]):
    _KIND = "receiver"

    def __init__(self, core: R, lock: L, changes: W, queue: Q | None) -> None:
        super().__init__(core, changes)
        self._lock = lock
        self._queue = queue

    def _events(self) -> Q:
        if self._queue is None:
            raise UsageError("this receiver hands its events to a callback")
        return self._queue

    @staticmethod
    def _given(event: Event | None) -> Event:
        if event is None:
            raise UsageError("the receiver is closed")
        return event


class RequestHandle(Generic[L, W]):
    """An open request. Made by `request`, `uim_request` and `mim_request`.

    Without a callback its responses wait here: iterate over `responses`, or ask with `get`.
    """

    def __init__(self, lock: L, changes: W, tell: Callable[[], object], on_response: OnResponse | None) -> None:
        self._core: OpenRequest | None = None
        self._lock = lock
        self._changes = changes
        self._waiting = WaitingResponses(tell)
        self.take: OnResponse = on_response or self._waiting.put
        """Takes the responses."""
        self.fail = self._waiting.fail
        """Told that it cannot be sent."""

    def begin(self, core: OpenRequest) -> None:
        """Note that it was sent."""
        self._core = core

    def _has_news(self) -> bool:
        with self._lock:
            return self._waiting.has_news

    def _take(self) -> ResponseMsg:
        with self._lock:
            return self._waiting.take()

    def _end(self) -> None:
        with self._lock:
            if self._core is not None:
                self._core.close()
            self._waiting.fail(UsageError("the request is closed"))


class ContextHandle(ABC):
    _name: str

    @property
    def name(self) -> str:
        return self._name

    @property
    @abstractmethod
    def core(self) -> MessageContext:
        """The context without its host."""

    @property
    def domain_id(self) -> int:
        """Return the domain id of the TRD; 0 while it is not known."""
        return self.core.core.domain_id

    @property
    def request_address(self) -> str:
        """Target of unicast immediate messages to this context; empty without a request port."""
        return self.core.request_target

    @property
    def on_immediate(self) -> OnImmediateData | None:
        """Return what is called, where callbacks run, for each immediate message without a topic; None: dropped.

        It gets a `Data`, or a `RequestMsg` to respond to.
        """
        return self.core.immediate.on_immediate

    @on_immediate.setter
    def on_immediate(self, callback: OnImmediateData | None) -> None:
        self.core.immediate.on_immediate = callback

    @property
    def on_immediate_topic(self) -> OnImmediateData | None:
        """Return what is called for each immediate message with a topic that no receiver here has; None: dropped."""
        return self.core.immediate.on_immediate_topic

    @on_immediate_topic.setter
    def on_immediate_topic(self, callback: OnImmediateData | None) -> None:
        self.core.immediate.on_immediate_topic = callback

    @property
    def on_mim_loss(self) -> Callable[[str, int], object] | None:
        """Return what is called with (source, sqn) for multicast immediate messages that are lost."""
        return self.core.immediate.on_mim_loss

    @on_mim_loss.setter
    def on_mim_loss(self, callback: Callable[[str, int], object] | None) -> None:
        self.core.immediate.on_mim_loss = callback
