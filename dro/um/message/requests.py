"""Requests without a topic and their responses: unicast immediate messages between contexts, also of other domains.

State: the open requests, by index, and which DROs take messages for other domains. A request for a domain that no DRO
has offered yet waits for an offer, `ROUTE_WAIT_NS` at most, since offers come about once a second. Nothing says that a
message arrives: an application asks again when no response has come.

Source: client library notes, sections 7 and 8. Guess: the limits.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable
from typing import Final, TypeVar

from dro.clock import ms, s
from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.loop import Loop
from dro.proto.interest.announced import DomainRouteTable
from dro.proto.unicast.connections import Outcome
from dro.proto.unicast.requests import (
    MESSAGE_MAX_BYTES,
    ContextAddress,
    NotTaken,
    ReceivedRequest,
    ReceivedResponse,
    RequestReader,
    RequestWriter,
)
from dro.sqn import add
from dro.timers import Timer
from dro.transport.sockets import ip_number, ip_text
from dro.um.fragment.context import FragmentContext
from dro.um.fragment.request_port import Sender
from dro.um.message.events import UsageError

log = logging.getLogger(__name__)
limited = LimitedLogger(log).event

REQUESTS_MAX: Final = 16_384
WAITING_MAX: Final = 256
ROUTE_WAIT_NS: Final = s(3)
_ROUTE_CHECK_NS: Final = ms(50)
_TARGET_FORM: Final = "TCP:ip:port or TCP:domain:ip:port"
_REASONS: Final = {
    Outcome.FULL: "too much waits for that address",
    Outcome.FAILED: "the connection was refused or broke, or nobody is there",
}

A = TypeVar("A")
OnResponse = Callable[[bytes], object]
OnRequestFailed = Callable[[ResourceError], object]


def parse_target(target: str) -> ContextAddress:
    """Read the address of a request port. Raises: UsageError."""
    kind, *parts = target.split(":")
    try:
        if kind != "TCP" or len(parts) not in (2, 3) or not all(part.isdecimal() for part in (*parts[:-2], parts[-1])):
            raise ValueError
        domain_id, ip, port = int(parts[0]) if len(parts) == 3 else 0, ip_number(parts[-2]), int(parts[-1])
        if not (0 <= domain_id <= 0xFFFFFFFF and 0 < port <= 0xFFFF and ip) or parts[-2].count(".") != 3:
            raise ValueError
    except (ValueError, OSError):
        raise UsageError(f"target {target[:80]!r} is not {_TARGET_FORM}") from None
    return ContextAddress(domain_id, ip, port)


def target_text(address: ContextAddress) -> str:
    """Write the address of a request port as `parse_target` reads it."""
    domain = f"{address.domain_id}:" if address.domain_id else ""
    return f"TCP:{domain}{ip_text(address.ip)}:{address.port}"


class UnicastRequest:
    """A request that has come. `sender`: the connection that it came on, "ip:port", which may be that of a DRO."""

    __slots__ = ("_received", "_requests", "data", "sender")

    def __init__(self, requests: UnicastRequests, received: ReceivedRequest, sender: str) -> None:
        self._requests = requests
        self._received = received
        self.data = received.data
        self.sender = sender

    def respond(self, data: bytes) -> None:
        """Send a response, as often as wanted; on the loop or under its lock. What cannot be sent is logged.

        Raises: UsageError when it is too large, or the context is closed.
        """
        self._requests.respond(self._received, data)


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


class _Outgoing:
    """One request or response on its way; its pieces leave one after the other, so that one at most waits."""

    __slots__ = ("_core", "_on_failed", "_pieces", "_way", "data", "end_ns", "handle", "index", "to")

    def __init__(
        self,
        to: ContextAddress,
        data: bytes,
        index: int,
        handle: UnicastRequestHandle | None,
        end_ns: int,
    ) -> None:
        """`handle`: of a request; None for a response. `end_ns`: until when it waits for a way."""
        self.to = to
        self.data = data
        self.index = index
        self.handle = handle
        self.end_ns = end_ns

    def start(self, core: FragmentContext, way: Sender, pieces: list[bytes]) -> None:
        self._core = core
        self._way = way
        self._pieces = pieces[::-1]
        self._on_outcome(Outcome.SENT)

    def _on_outcome(self, outcome: Outcome) -> None:
        if outcome is not Outcome.SENT:
            self.fail(_REASONS[outcome])
        elif self._pieces:
            self._core.send_unicast(*self._way, self._pieces.pop(), self._on_outcome)

    def fail(self, why: str, remedy: str = "") -> None:
        if self.handle is not None:
            self.handle.fail(why, remedy)
        else:
            limited(LogEvent.RESPONSE_NOT_SENT, extra={"target": target_text(self.to), "reason": why})


class UnicastRequests:
    """The requests and responses of one context."""

    def __init__(self, loop: Loop, core: FragmentContext, rng: random.Random) -> None:
        self.on_request: Callable[[UnicastRequest], object] | None = None
        self._loop = loop
        self._core = core
        self._reader = RequestReader()
        self._writer = RequestWriter(core.context_instance, rng.getrandbits(32))
        self._routes = DomainRouteTable()
        self._open: dict[int, UnicastRequestHandle] = {}
        self._last_index = rng.getrandbits(32)
        self._waiting: list[_Outgoing] = []
        self._timer: Timer | None = None
        self._is_closed = False
        core.on_unicast = self._on_unicast
        core.on_domain_route = self._on_domain_route

    @property
    def dropped(self) -> Counter[NotTaken]:
        """Messages that came and were not taken, by reason."""
        return self._reader.dropped

    def __len__(self) -> int:
        """Open requests."""
        return len(self._open)

    @property
    def own_address(self) -> ContextAddress:
        """The request port of the context; port 0 without one."""
        return ContextAddress(self._core.domain_id, *self._core.request_address)

    # sending

    def request(
        self, target: str, data: bytes, on_response: OnResponse, on_failed: OnRequestFailed
    ) -> UnicastRequestHandle:
        """See `MessageContext.request`."""
        to = parse_target(target)
        self._check(data)
        if not self.own_address.port:
            remedy = "set request_tcp_bind_request_port to 1"
            raise ResourceError(f"request to {target}: the context has no request port for responses", remedy=remedy)
        if len(self._open) >= REQUESTS_MAX:
            raise UsageError(f"{REQUESTS_MAX} requests of the context are open; close those that are over")
        index = self._last_index = self._free_index()
        handle = self._open[index] = UnicastRequestHandle(self, index, target, on_response, on_failed)
        self._send(_Outgoing(to, data, index, handle, self._loop.now_ns() + ROUTE_WAIT_NS))
        return handle

    def _free_index(self) -> int:
        """Find the next number that no open request has. 0 is that of messages which answer nothing."""
        index = add(self._last_index, 1)
        while not index or index in self._open:
            index = add(index, 1)
        return index

    def respond(self, received: ReceivedRequest, data: bytes) -> None:
        """See `UnicastRequest.respond`."""
        self._check(data)
        end_ns = self._loop.now_ns() + ROUTE_WAIT_NS
        self._send(_Outgoing(received.requester, data, received.request_index, None, end_ns))

    def _check(self, data: bytes) -> None:
        if self._is_closed:
            raise UsageError("the context is closed")
        if len(data) > MESSAGE_MAX_BYTES:
            raise UsageError(f"message of {len(data)} bytes, at most {MESSAGE_MAX_BYTES} can be sent")

    def _send(self, message: _Outgoing) -> None:
        to, own = message.to, self.own_address
        now_ns = self._loop.now_ns()
        if to.domain_id in (0, own.domain_id):
            way: Sender | None = (to.ip, to.port)
        else:
            way = self._routes.find(to.domain_id, now_ns)
        if way is not None:
            write = self._writer.response if message.handle is None else self._writer.request
            message.start(self._core, way, write(message.data, message.index, to, own))
        elif now_ns >= message.end_ns or len(self._waiting) >= WAITING_MAX:
            message.fail(f"no DRO offers domain {to.domain_id}", "see that a DRO here has a route to it")
        else:
            self._waiting.append(message)
            if self._timer is None:
                self._timer = self._loop.call_later(_ROUTE_CHECK_NS, self._check_ways)

    def _check_ways(self) -> None:
        self._timer = None
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            self._send(message)

    def _on_domain_route(self, domains: tuple[int, ...], ip: int, port: int) -> None:
        self._routes.learn(domains, ip, port, self._loop.now_ns())

    def forget(self, handle: UnicastRequestHandle) -> None:
        """Drop what is kept of a request that is closed."""
        if self._open.get(handle.index) is handle:
            del self._open[handle.index]
            self._waiting = [message for message in self._waiting if message.handle is not handle]

    # receiving

    def _on_unicast(self, message: bytes, sender: Sender) -> None:
        taken = self._reader.read(message, sender)
        peer = f"{ip_text(sender[0])}:{sender[1]}"
        if isinstance(taken, ReceivedRequest):
            if self.on_request is not None:
                _call(self.on_request, UnicastRequest(self, taken, peer))
                return
            taken = self._reader.drop(NotTaken.NOBODY)
        elif isinstance(taken, ReceivedResponse):
            if (handle := self._open.get(taken.request_index)) is not None:
                handle.on_response(taken.data)
                return
            taken = self._reader.drop(NotTaken.NOBODY)
        if taken is not None:
            limited(LogEvent.UNICAST_NOT_TAKEN, extra={"peer": peer, "reason": taken.value})

    def close(self) -> None:
        """Close all requests, each told that the context is closed."""
        self._is_closed = True
        self.on_request = None
        if self._timer is not None:
            self._timer.cancel()
        self._waiting.clear()
        for handle in list(self._open.values()):
            handle.fail("the context is closed")


def _call(callback: Callable[[A], object], argument: A) -> None:
    try:
        callback(argument)
    except Exception:  # the application's code: the loop goes on whatever it does
        log.exception(LogEvent.REQUEST_CALLBACK)
