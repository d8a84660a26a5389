"""What the asyncio and the blocking interface have in common: the application's objects around those of the library.

`lock` keeps the thread of the loop out while something is read; inside asyncio there is nothing to keep out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, Generic, ParamSpec, TypeVar

from dro.um.message.context import MessageContext
from dro.um.message.events import Event, UsageError
from dro.um.message.receiver import MessageReceiver
from dro.um.message.requests import UnicastRequest
from dro.um.message.source import MessageSource
from dro.um.message.wildcard_receiver import PatternReceiver

QUEUE_MAX: Final = 50_000
DRAIN_TIMEOUT_S: Final = 5.0
DRAIN_CHECK_S: Final = 0.005
NO_RESPONSE: Final = "request to {}: no response within {:g} s"

P = ParamSpec("P")
L = TypeVar("L", bound=AbstractContextManager[object])
R = TypeVar("R", bound=MessageReceiver | PatternReceiver)
W = TypeVar("W")  # those who wait for a change
Q = TypeVar("Q")  # a queue of events


def telling(tell: Callable[[], object], callback: Callable[P, object] | None) -> Callable[P, None]:
    """Tells those who wait for a change, and then the application."""

    def both(*args: P.args, **kwargs: P.kwargs) -> None:
        tell()
        if callback is not None:
            callback(*args, **kwargs)

    return both


class SourceHandle(Generic[L, W]):
    def __init__(self, core: MessageSource, lock: L, changes: W) -> None:
        self._core = core
        self._lock = lock
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
        with self._lock:
            return frozenset(self._core.clients)


class ReceiverHandle(Generic[R, L, W, Q]):
    def __init__(self, core: R, lock: L, changes: W, queue: Q | None) -> None:
        self._core = core
        self._lock = lock
        self._changes = changes
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
    def on_request(self) -> Callable[[UnicastRequest], object] | None:
        """Return what is called, where callbacks run, for each request without a topic; None: they are dropped."""
        return self.core.on_request

    @on_request.setter
    def on_request(self, callback: Callable[[UnicastRequest], object] | None) -> None:
        self.core.on_request = callback
