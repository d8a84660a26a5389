"""Unicast messages of one context: the ways to other contexts, what waits for them, and who takes what comes.

State: which DROs take messages for other domains, and for each way the messages that have not left. One message at most
is with the connection, the next follows when it has left; so the pieces of large messages do not fill its buffer, and
whoever sends is told of each message that is not sent. A message for a domain that no DRO has offered yet waits for an
offer, `ROUTE_WAIT_NS` at most, since offers come about once a second. Nothing says that a message arrives.

DROs drop what does not fit their queues, which are made for what the options of UM say (65,536 bytes for a context,
100,000 for a peer link), and nobody is told. So what goes to a DRO leaves in pieces of `PIECE_BYTES`, and no faster
than `PACE_BYTES` a second.

Source: client library notes, sections 7 and 8. Guess: the limits.
"""

from __future__ import annotations

import logging
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from dro.clock import NS_PER_S, ms, s
from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.loop import Loop
from dro.proto.interest.announced import DomainRouteTable
from dro.proto.unicast.connections import Outcome
from dro.proto.unicast.messages import (
    MESSAGE_MAX_BYTES,
    ControlMessage,
    Immediate,
    NotTaken,
    ReceivedResponse,
    Retransmission,
    UnicastReader,
    UnicastWriter,
)
from dro.timers import Timer
from dro.transport.sockets import ip_number, ip_text
from dro.um.fragment.context import FragmentContext
from dro.um.fragment.request_port import Sender
from dro.um.message.events import NoRoute, UsageError, check_data
from dro.wire.lbmc.block import Block
from dro.wire.lbmc.blocks import AnyBlock
from dro.wire.lbmc.codes import MESSAGE_MAX
from dro.wire.lbmc.headers import ContextAddress

limited = LimitedLogger(logging.getLogger(__name__)).event

UNICAST_MAX_BYTES: Final = MESSAGE_MAX_BYTES
"""Limits one message."""
QUEUED_MAX_BYTES: Final = 1 << 26
"""Limits what waits on all ways."""
ASKED_MAX_BYTES: Final = 1 << 22
"""Limits what is sent again to one context that asks, and has not left."""
WAITING_MAX: Final = 256
ROUTE_WAIT_NS: Final = s(3)
_CONTROL_BYTES: Final = 128
PIECE_BYTES: Final = 1 << 14
PACE_BYTES: Final = 5_000_000
_ROUTE_CHECK_NS: Final = ms(50)
_REPEATED: Final = object()
"""The owner of messages that others ask for again, so that these cannot take all the room of the application."""
_GROUPS: Final = 0xE0000000  # addresses of multicast, and beyond
_TARGET_FORM: Final = "TCP:ip:port or TCP:domain:ip:port with the address and port of a host"
_NO_ROUTE_REMEDY: Final = "see that a DRO here has a route to it"
_REASONS: Final = {
    Outcome.FULL: "too much waits to be sent",
    Outcome.FAILED: "the connection was refused or broke, or nobody is there",
}

B = TypeVar("B", bound=Block)
OnFailed = Callable[[str, str], object]
"""(why, remedy)"""
OnSent = Callable[[], object]
OnControl = Callable[[B, ControlMessage], object]


def parse_target(target: str) -> ContextAddress:
    """Read the address of a request port. Raises: UsageError."""
    kind, *parts = target.split(":")
    try:
        if kind != "TCP" or len(parts) not in (2, 3) or not all(part.isdecimal() for part in (*parts[:-2], parts[-1])):
            raise ValueError
        domain_id, ip, port = int(parts[0]) if len(parts) == 3 else 0, ip_number(parts[-2]), int(parts[-1])
        if not (0 <= domain_id <= 0xFFFFFFFF and 0 < port <= 0xFFFF and 0 < ip < _GROUPS) or parts[-2].count(".") != 3:
            raise ValueError
    except (ValueError, OSError):
        raise UsageError(f"target {target[:80]!r} is not {_TARGET_FORM}") from None
    return ContextAddress(domain_id, ip, port)


def target_text(address: ContextAddress) -> str:
    """Write the address of a request port as `parse_target` reads it."""
    domain = f"{address.domain_id}:" if address.domain_id else ""
    return f"TCP:{domain}{ip_text(address.ip)}:{address.port}"


def failure(what: str, why: str, remedy: str) -> ResourceError:
    """Make the error of a message that was not sent, of what an `OnFailed` is told."""
    kind = NoRoute if remedy == _NO_ROUTE_REMEDY else ResourceError
    return kind(f"{what}: {why}", remedy=remedy)


def ignore_failure(_why: str, _remedy: str) -> None:
    """Ignore that a message was not sent: who asked for it asks again."""


def _ignore_sent() -> None:
    pass


@dataclass(slots=True, eq=False)
class _Outgoing:
    """One message on its way. `pieces`: those that have not left, the next one last."""

    to: ContextAddress
    write: Callable[[ContextAddress], list[bytes]]
    on_failed: OnFailed
    size: int
    end_ns: int  # until when it waits for a way
    owner: object
    on_sent: OnSent
    pieces: list[bytes] | None = None
    is_paced: bool = False


class _Way:
    """The messages for one request port, of a context or of a DRO, in order."""

    def __init__(
        self, loop: Loop, core: FragmentContext, address: Sender, on_gone: Callable[[_Outgoing], object]
    ) -> None:
        self._loop = loop
        self._core = core
        self._address = address
        self._on_gone = on_gone
        self._queue: deque[_Outgoing] = deque()
        self._is_sending = False
        self._is_looping = False  # an outcome may come from within
        self._free_ns = 0  # when the pace lets the next piece go
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, message: _Outgoing) -> None:
        self._queue.append(message)
        self._send_next()

    def _send_next(self) -> None:
        """Send pieces until one does not leave at once."""
        if self._is_looping:
            return
        self._is_looping = True
        try:
            while self._queue and not self._is_sending:
                pieces = self._queue[0].pieces
                assert pieces
                self._is_sending = True
                if self._queue[0].is_paced and not self._is_free(len(pieces[-1])):
                    self._timer = self._loop.call_at(self._free_ns, self._go_on)
                    return
                self._core.send_unicast(*self._address, pieces.pop(), self._on_outcome)
        finally:
            self._is_looping = False

    def _is_free(self, size: int) -> bool:
        """Say whether the pace lets a piece go, and count it if so."""
        now_ns = self._loop.now_ns()
        if self._free_ns > now_ns:
            return False
        self._free_ns = now_ns + size * NS_PER_S // PACE_BYTES
        return True

    def _go_on(self) -> None:
        self._is_sending = False
        self._send_next()

    def _on_outcome(self, outcome: Outcome) -> None:
        self._is_sending = False
        if not self._queue:
            return  # closed
        message = self._queue[0]
        if outcome is not Outcome.SENT or not message.pieces:
            self._queue.popleft()
            self._on_gone(message)
            if outcome is Outcome.SENT:
                message.on_sent()
            else:
                message.on_failed(_REASONS[outcome], "")
        self._send_next()

    def close(self) -> None:
        """Send nothing more; what waits has failed."""
        if self._timer is not None:
            self._timer.cancel()
        queue, self._queue = self._queue, deque()
        for message in queue:
            self._on_gone(message)
            message.on_failed(_REASONS[Outcome.FAILED], "")


class UnicastMessages:
    """See the module text. What comes is given to the callbacks; what nobody takes is counted."""

    def __init__(self, loop: Loop, core: FragmentContext, rng: random.Random) -> None:
        self.on_immediate: Callable[[Immediate, str], bool] = lambda _message, _peer: False
        """Called with the connection that it came on as well, "ip:port"; whether somebody takes it."""
        self.on_response: Callable[[ReceivedResponse, str], bool] = lambda _message, _peer: False
        self.on_retransmission: Callable[[Retransmission], bool] = lambda _: False
        self._on_control: dict[type[AnyBlock], OnControl[Any]] = {}
        self._loop = loop
        self._core = core
        self._reader = UnicastReader()
        self._writer = UnicastWriter(core.context_instance, rng.getrandbits(32))
        self._routes = DomainRouteTable()
        self._ways: dict[Sender, _Way] = {}
        self._queued_bytes = 0
        self._asked_bytes: Counter[ContextAddress] = Counter()  # of what is queued, by who has asked for it again
        self._waiting: list[_Outgoing] = []
        self._timer: Timer | None = None
        self._is_closed = False
        core.on_unicast = self._on_unicast
        core.on_domain_route = self._on_domain_route

    @property
    def dropped(self) -> Counter[NotTaken]:
        """Messages that came and were not taken, by reason."""
        return self._reader.dropped

    @property
    def own_address(self) -> ContextAddress:
        """The request port of the context; port 0 without one."""
        return ContextAddress(self._core.domain_id, *self._core.request_address)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be sent."""
        return not self._waiting and not any(map(len, self._ways.values()))

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait to be sent."""
        return self._queued_bytes

    # sending

    def send_data(
        self,
        to: ContextAddress,
        data: bytes,
        *,
        index: int = 0,
        blocks: Iterable[AnyBlock] = (),
        on_failed: OnFailed = ignore_failure,
        on_sent: OnSent = _ignore_sent,
        owner: object = None,
    ) -> None:
        """Send an immediate message, or with an index a response; `on_failed` is called once if it does not leave.

        `on_sent`: it is with the connection; nothing says that it arrives. `owner`: see `forget`.
        Raises: UsageError when it is too large, or the context is closed.
        """
        if self._is_closed:
            raise UsageError("the context is closed")
        check_data(data)
        if len(data) > MESSAGE_MAX_BYTES:
            raise UsageError(f"message of {len(data)} bytes, at most {MESSAGE_MAX_BYTES} can be sent")
        blocks = tuple(blocks)

        def write(own: ContextAddress) -> list[bytes]:
            largest = MESSAGE_MAX if to.domain_id in (0, own.domain_id) else PIECE_BYTES
            return self._writer.data(data, index, blocks, to, own, largest)

        self._start(to, write, len(data), on_failed, owner, on_sent)

    def send_control(self, to: ContextAddress, *blocks: AnyBlock, on_failed: OnFailed = ignore_failure) -> None:
        """Send a control message; nothing is sent, or told, when the context is closed."""
        self._start(to, lambda own: [self._writer.control(blocks, to, own)], _CONTROL_BYTES, on_failed, _REPEATED)

    def send_again(
        self, to: ContextAddress, sent: bytes, request_index: int, on_failed: OnFailed = ignore_failure
    ) -> None:
        """Send a message of a source again, to who has asked for it."""
        write = lambda own: [self._writer.retransmission(sent, request_index, to, own)]  # noqa: E731
        self._start(to, write, len(sent), on_failed, _REPEATED)

    def _start(
        self,
        to: ContextAddress,
        write: Callable[[ContextAddress], list[bytes]],
        size: int,
        on_failed: OnFailed,
        owner: object,
        on_sent: OnSent = _ignore_sent,
    ) -> None:
        if self._is_closed:
            return
        if not self._has_room(to, size, is_repeated=owner is _REPEATED):
            on_failed(_REASONS[Outcome.FULL], "")
            return
        message = _Outgoing(to, write, on_failed, size, self._loop.now_ns() + ROUTE_WAIT_NS, owner, on_sent)
        self._queued_bytes += size
        if owner is _REPEATED:
            self._asked_bytes[to] += size
        self._send(message)

    def _has_room(self, to: ContextAddress, size: int, *, is_repeated: bool) -> bool:
        """Say whether a message may be queued; one may when nothing else is."""
        asked = self._asked_bytes.get(to, 0) if is_repeated else 0
        if asked and asked + size > ASKED_MAX_BYTES:
            return False
        most = QUEUED_MAX_BYTES // 2 if is_repeated else QUEUED_MAX_BYTES
        return not self._queued_bytes or self._queued_bytes + size <= most

    def _send(self, message: _Outgoing) -> None:
        """Send it on the way to its domain, or let it wait for one."""
        to, own = message.to, self.own_address
        now_ns = self._loop.now_ns()
        most = WAITING_MAX if message.owner is not _REPEATED else WAITING_MAX // 2
        if to.domain_id in (0, own.domain_id):
            address: Sender | None = (to.ip, to.port)
        else:
            message.is_paced = True
            address = self._routes.find(to.domain_id, now_ns)
        if address is not None:
            message.pieces = message.write(own)[::-1]
            way = self._ways.get(address)
            if way is None:
                self._ways = {at: way for at, way in self._ways.items() if len(way)}
                way = self._ways[address] = _Way(self._loop, self._core, address, self._on_gone)
            way.add(message)
        elif now_ns >= message.end_ns or len(self._waiting) >= most:
            self._on_gone(message)
            message.on_failed(f"no DRO offers domain {to.domain_id}", _NO_ROUTE_REMEDY)
        else:
            self._waiting.append(message)
            if self._timer is None:
                self._timer = self._loop.call_later(_ROUTE_CHECK_NS, self._check_ways)

    def _on_gone(self, message: _Outgoing) -> None:
        self._queued_bytes -= message.size
        if message.owner is _REPEATED:
            self._asked_bytes[message.to] -= message.size
            if not self._asked_bytes[message.to]:
                del self._asked_bytes[message.to]

    def _check_ways(self) -> None:
        self._timer = None
        for _ in range(len(self._waiting)):  # an application that is told of a failure may end others, or all
            if self._waiting:
                self._send(self._waiting.pop(0))

    def _on_domain_route(self, domains: tuple[int, ...], ip: int, port: int) -> None:
        self._routes.learn(domains, ip, port, self._loop.now_ns())

    def forget(self, owner: object) -> None:
        """Drop the messages of an owner that wait for a way."""
        kept = [message for message in self._waiting if message.owner is not owner]
        for message in self._waiting:
            if message.owner is owner:
                self._on_gone(message)
        self._waiting = kept

    # receiving

    def take_control(self, kind: type[B], on_control: OnControl[B]) -> None:
        """Call `on_control` for control messages in which the first block is of that record class."""
        self._on_control[kind] = on_control

    def _on_unicast(self, message: bytes, sender: Sender) -> None:
        taken = self._reader.read(message, sender)
        if taken is None or self._is_closed:
            return
        peer = f"{ip_text(sender[0])}:{sender[1]}"
        match taken:
            case NotTaken():
                why = taken
            case _ if self._is_taken(taken, peer):
                return
            case _:
                why = self._reader.drop(NotTaken.NOBODY)
        limited(LogEvent.UNICAST_NOT_TAKEN, extra={"peer": peer, "reason": why.value})

    def _is_taken(self, record: Immediate | ReceivedResponse | Retransmission | ControlMessage, peer: str) -> bool:
        match record:
            case Immediate():
                return self.on_immediate(record, peer)
            case ReceivedResponse():
                return self.on_response(record, peer)
            case Retransmission():
                return self.on_retransmission(record)
            case ControlMessage():
                for block in record.message.blocks:
                    if (on_control := self._on_control.get(type(block))) is not None:
                        on_control(block, record)
                        return True
        return False

    def close(self) -> None:
        """Forget what waits. Nothing more is sent or taken."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            self._on_gone(message)
            message.on_failed("the context is closed", "")
        for way in self._ways.values():
            way.close()
