"""The open requests of one context, and how to respond to those that have come.

State: the open requests, by index, whatever way they went. Nothing says that a request or a response arrives: an
application asks again when no response has come. Source: client library notes, section 7. Guess: the limits.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol, TypeVar

from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.loop import Loop
from dro.proto.unicast.messages import ReceivedResponse
from dro.sqn import add
from dro.um.message.events import ResponseMsg, UsageError
from dro.um.message.properties import properties_size, read_content
from dro.um.message.unicast import UnicastMessages, failure, target_text
from dro.wire.lbmc.blocks import AnyBlock
from dro.wire.lbmc.data_blocks import ODomain, Request
from dro.wire.lbmc.headers import ContextAddress, ReturnAddress
from dro.wire.lbmc.return_address import decode_return, encode_return

log = logging.getLogger(__name__)
limited = LimitedLogger(log).event

REQUESTS_MAX: Final = 16_384
WAITING_MAX_BYTES: Final = 1 << 26
"""Limits the responses to one request that the application has not taken."""
_RESPONSE_BYTES: Final = 200  # what one of no data counts

A = TypeVar("A")
OnResponse = Callable[[ResponseMsg], object]
OnRequestFailed = Callable[[ResourceError], object]


class HasRequests(Protocol):
    """A context without its host."""

    @property
    def requests(self) -> UnicastRequests: ...


class HasContext(Protocol):
    """A context of the asyncio or the blocking interface."""

    @property
    def core(self) -> HasRequests: ...


class Response:
    """Responds to one request, as often as wanted, from any place and at any time: it never waits."""

    __slots__ = ("_requests", "_returns_to")

    def __init__(self, requests: UnicastRequests, returns_to: ReturnAddress) -> None:
        self._requests = requests
        self._returns_to = returns_to

    def send(self, data: bytes) -> None:
        """Send a response. What cannot be sent is logged.

        Raises: UsageError when it is too large, or the context is closed.
        """
        self._requests.respond(self._returns_to, data)

    def serialize(self) -> bytes:
        """Return bytes by which another program can respond, in any TRD."""
        return encode_return(self._requests.in_domain(self._returns_to))

    @classmethod
    def deserialize(cls, context: HasContext, data: bytes) -> Response:
        """Make one of what `serialize` gave, perhaps in another program. Raises: DecodeError."""
        return cls(context.core.requests, decode_return(data))


class OpenRequest:
    """A request of ours; responses come until it is closed. `what` names it in errors."""

    __slots__ = ("_on_failed", "_on_response", "_requests", "blocks", "index", "what")

    def __init__(
        self,
        requests: UnicastRequests,
        index: int,
        what: str,
        blocks: Sequence[AnyBlock],
        on_response: OnResponse,
        on_failed: OnRequestFailed,
    ) -> None:
        self.index = index
        self.what = what
        self.blocks = blocks
        """To stand before the data of the request."""
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

    def on_response(self, response: ResponseMsg) -> None:
        if self._on_response is not None:
            call(self._on_response, response)

    def fail(self, why: str, remedy: str = "") -> None:
        """Close it, and tell the application why."""
        on_failed = self._on_failed
        self.close()
        if on_failed is not None:
            call(on_failed, failure(f"request to {self.what}", why, remedy))


class WaitingResponses:
    """Responses that the application has not taken yet; `tell` is called for each."""

    def __init__(self, tell: Callable[[], object]) -> None:
        self._tell = tell
        self._waiting: deque[ResponseMsg] = deque()
        self._waiting_bytes = 0
        self.failed: ResourceError | UsageError | None = None

    @property
    def has_news(self) -> bool:
        return bool(self._waiting) or self.failed is not None

    def put(self, response: ResponseMsg) -> None:
        """Keep it; dropped while too many wait."""
        size = _size(response)
        if self._waiting_bytes + size <= WAITING_MAX_BYTES:
            self._waiting.append(response)
            self._waiting_bytes += size
            self._tell()

    def fail(self, error: ResourceError | UsageError) -> None:
        """Note that nothing comes any more, and why; the first reason stays."""
        if self.failed is None:
            self.failed = error
            self._tell()

    def take(self) -> ResponseMsg:
        """Return the next one, while there is news. Raises: ResourceError after a failure, UsageError after the end."""
        if not self._waiting:
            assert self.failed is not None
            raise self.failed
        response = self._waiting.popleft()
        self._waiting_bytes -= _size(response)
        return response


def _size(response: ResponseMsg) -> int:
    return len(response.data) + _RESPONSE_BYTES + properties_size(response.properties)


class UnicastRequests:
    """The requests and responses of one context."""

    def __init__(self, messages: UnicastMessages, loop: Loop, rng: random.Random) -> None:
        self._messages = messages
        self._lock: AbstractContextManager[object] = loop if isinstance(loop, AbstractContextManager) else nullcontext()
        self._open: dict[int, OpenRequest] = {}
        self._last_index = rng.getrandbits(32)
        messages.on_response = self._on_response

    def __len__(self) -> int:
        """Open requests."""
        return len(self._open)

    # requests

    def open(self, what: str, on_response: OnResponse, on_failed: OnRequestFailed = lambda _: None) -> OpenRequest:
        """Open a request, which the caller sends with its blocks. Raises: UsageError; ResourceError without a port."""
        own = self._messages.own_address
        if not own.port:
            remedy = "set request_tcp_bind_request_port to 1"
            raise ResourceError(f"request to {what}: the context has no request port for responses", remedy=remedy)
        if len(self._open) >= REQUESTS_MAX:
            raise UsageError(f"{REQUESTS_MAX} requests of the context are open; close those that are over")
        index = self._last_index = self._free_index()
        blocks = (Request(index, own.ip, own.port), ODomain(own.domain_id))
        request = self._open[index] = OpenRequest(self, index, what, blocks, on_response, on_failed)
        return request

    def send(self, request: OpenRequest, to: ContextAddress, data: bytes, before: Sequence[AnyBlock] = ()) -> None:
        """Send one by unicast. Raises: UsageError."""
        try:
            blocks = (*before, *request.blocks)
            self._messages.send_data(to, data, blocks=blocks, on_failed=request.fail, owner=request)
        except UsageError:
            request.close()
            raise

    def _free_index(self) -> int:
        """Find the next number that no open request has. 0 is that of messages which answer nothing."""
        index = add(self._last_index, 1)
        while not index or index in self._open:
            index = add(index, 1)
        return index

    def forget(self, request: OpenRequest) -> None:
        """Drop what is kept of a request that is closed."""
        if self._open.get(request.index) is request:
            del self._open[request.index]
            self._messages.forget(request)

    def _on_response(self, response: ReceivedResponse, peer: str) -> bool:
        request = self._open.get(response.request_index)
        if request is None:
            return False
        source = target_text(response.origin) if response.origin is not None else f"TCP:{peer}"
        content = read_content(response.data, response.headers)
        request.on_response(ResponseMsg(content.data, source, content.properties))
        return True

    # responses

    def response(self, returns_to: ReturnAddress) -> Response:
        """Make what responds to a request that has come."""
        return Response(self, returns_to)

    def in_domain(self, returns_to: ReturnAddress) -> ReturnAddress:
        """Fill in the domain of a requester in the own one."""
        to = returns_to.requester
        domain_id = to.domain_id or self._messages.own_address.domain_id
        return ReturnAddress(returns_to.request_index, ContextAddress(domain_id, to.ip, to.port))

    def respond(self, returns_to: ReturnAddress, data: bytes) -> None:
        """See `Response.send`."""
        to = returns_to.requester

        def fail(why: str, _remedy: str) -> None:
            limited(LogEvent.RESPONSE_NOT_SENT, extra={"target": target_text(to), "reason": why})

        with self._lock:
            self._messages.send_data(to, data, index=returns_to.request_index, on_failed=fail)

    def close(self) -> None:
        """Close all requests, each told that the context is closed."""
        for request in list(self._open.values()):
            request.fail("the context is closed")


def call(callback: Callable[[A], object], argument: A) -> None:
    """Call the application, whose errors are logged."""
    try:
        callback(argument)
    except Exception:  # the application's code: the loop goes on whatever it does
        log.exception(LogEvent.REQUEST_CALLBACK)
