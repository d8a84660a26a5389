"""The open requests of one context, and the requests that have come: who is told of responses, and how to respond.

State: the open requests, by index. Nothing says that a message arrives: an application asks again when no response has
come. Source: client library notes, section 7. Guess: the limit.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Final, TypeVar

from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.proto.unicast.messages import Immediate, ReceivedResponse
from dro.sqn import add
from dro.um.message.events import UsageError
from dro.um.message.unicast import UnicastMessages, parse_target, target_text
from dro.wire.lbmc.data_blocks import ODomain, Request
from dro.wire.lbmc.headers import ReturnAddress

log = logging.getLogger(__name__)
limited = LimitedLogger(log).event

REQUESTS_MAX: Final = 16_384

A = TypeVar("A")
OnResponse = Callable[[bytes], object]
OnRequestFailed = Callable[[ResourceError], object]


class UnicastRequest:
    """A request that has come. `sender`: the connection that it came on, "ip:port", which may be that of a DRO."""

    __slots__ = ("_requests", "_returns_to", "data", "sender")

    def __init__(self, requests: UnicastRequests, data: bytes, returns_to: ReturnAddress, sender: str) -> None:
        self._requests = requests
        self._returns_to = returns_to
        self.data = data
        self.sender = sender

    def respond(self, data: bytes) -> None:
        """Send a response, as often as wanted; on the loop or under its lock. What cannot be sent is logged.

        Raises: UsageError when it is too large, or the context is closed.
        """
        self._requests.respond(self._returns_to, data)


class UnicastRequestHandle:
    """An open request; responses come until it is closed."""

    __slots__ = ("_on_failed", "_on_response", "_requests", "index", "target")

    def __init__(
        self, requests: UnicastRequests, index: int, target: str, on_response: OnResponse, on_failed: OnRequestFailed
    ) -> None:
        self.index = index
        self.target = target
        self._requests = requests
        self._on_response: OnResponse | None = on_response
        self._on_failed: OnRequestFailed | None = on_failed

    @property
    def is_open(self) -> bool:
        return self._on_response is not None

    def close(self) -> None:
        """Close it: later responses are dropped. It may be closed already."""
        self._on_response = self._on_failed = None
        self._requests.forget(self)

    def on_response(self, data: bytes) -> None:
        if self._on_response is not None:
            _call(self._on_response, data)

    def fail(self, why: str, remedy: str = "") -> None:
        """Close it, and tell the application why."""
        on_failed = self._on_failed
        self.close()
        if on_failed is not None:
            _call(on_failed, ResourceError(f"request to {self.target}: {why}", remedy=remedy))


class UnicastRequests:
    """The requests and responses of one context."""

    def __init__(self, messages: UnicastMessages, rng: random.Random) -> None:
        self.on_request: Callable[[UnicastRequest], object] | None = None
        self._messages = messages
        self._open: dict[int, UnicastRequestHandle] = {}
        self._last_index = rng.getrandbits(32)
        messages.on_immediate = self._on_immediate
        messages.on_response = self._on_response

    def __len__(self) -> int:
        """Open requests."""
        return len(self._open)

    # sending

    def request(
        self, target: str, data: bytes, on_response: OnResponse, on_failed: OnRequestFailed
    ) -> UnicastRequestHandle:
        """See `MessageContext.request`."""
        to = parse_target(target)
        own = self._messages.own_address
        if not own.port:
            remedy = "set request_tcp_bind_request_port to 1"
            raise ResourceError(f"request to {target}: the context has no request port for responses", remedy=remedy)
        if len(self._open) >= REQUESTS_MAX:
            raise UsageError(f"{REQUESTS_MAX} requests of the context are open; close those that are over")
        index = self._free_index()
        handle = UnicastRequestHandle(self, index, target, on_response, on_failed)
        blocks = (Request(index, own.ip, own.port), ODomain(own.domain_id))
        self._open[index] = handle
        try:
            self._messages.send_data(to, data, blocks=blocks, on_failed=handle.fail, owner=handle)
        except UsageError:
            del self._open[index]
            raise
        self._last_index = index
        return handle

    def _free_index(self) -> int:
        """Find the next number that no open request has. 0 is that of messages which answer nothing."""
        index = add(self._last_index, 1)
        while not index or index in self._open:
            index = add(index, 1)
        return index

    def respond(self, returns_to: ReturnAddress, data: bytes) -> None:
        """See `UnicastRequest.respond`."""
        to = returns_to.requester

        def fail(why: str, _remedy: str) -> None:
            limited(LogEvent.RESPONSE_NOT_SENT, extra={"target": target_text(to), "reason": why})

        self._messages.send_data(to, data, index=returns_to.request_index, on_failed=fail)

    def forget(self, handle: UnicastRequestHandle) -> None:
        """Drop what is kept of a request that is closed."""
        if self._open.get(handle.index) is handle:
            del self._open[handle.index]
            self._messages.forget(handle)

    # receiving

    def _on_immediate(self, message: Immediate, peer: str) -> bool:
        returns_to = None if message.headers is None else message.headers.returns_to
        if returns_to is None or message.topic is not None or self.on_request is None:
            return False
        length = 0 if message.headers is None else message.headers.properties_length
        data = message.data[: len(message.data) - length]
        _call(self.on_request, UnicastRequest(self, data, returns_to, peer))
        return True

    def _on_response(self, response: ReceivedResponse) -> bool:
        handle = self._open.get(response.request_index)
        if handle is None:
            return False
        length = 0 if response.headers is None else response.headers.properties_length
        handle.on_response(response.data[: len(response.data) - length])
        return True

    def close(self) -> None:
        """Close all requests, each told that the context is closed."""
        self.on_request = None
        for handle in list(self._open.values()):
            handle.fail("the context is closed")


def _call(callback: Callable[[A], object], argument: A) -> None:
    try:
        callback(argument)
    except Exception:  # the application's code: the loop goes on whatever it does
        log.exception(LogEvent.REQUEST_CALLBACK)
