"""Messages without a source, by unicast and by multicast: who gets those that come, and how the others are sent.

    with a topic    the receivers of exactly this topic, else all whose pattern matches, else `on_immediate_topic`
    without         `on_immediate`

What nobody takes is dropped and counted. Receivers get such messages among their others. State: the numbers of the
session that multicast messages are sent on. Source: client library notes, sections 8 and 9; forwarding notes, 11 and
12. Guess: a loss of multicast messages that is told at once has the first of its sqns.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from dro.config.um.application_options import ImmediateDeliveryOptions
from dro.errors import DecodeError
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.loop import Loop
from dro.proto.unicast.connections import Outcome
from dro.proto.unicast.messages import Immediate
from dro.proto.unicast.multicast import (
    MulticastEvent,
    MulticastLimits,
    MulticastLoss,
    MulticastReader,
    MulticastWriter,
)
from dro.timers import Timer
from dro.transport.session import SenderTransport
from dro.um.fragment.context import FragmentContext
from dro.um.message.events import FLAG_IMMEDIATE, FLAG_TOPICLESS, Data, HFReset, UsageError, WouldBlock, check_data
from dro.um.message.listeners import Listener, topic_bytes, topic_text
from dro.um.message.properties import make_event
from dro.um.message.requests import UnicastRequests, call
from dro.um.message.unicast import OnFailed, UnicastMessages, target_text
from dro.wire import otid
from dro.wire.lbmc.blocks import AnyBlock
from dro.wire.lbmc.data_blocks import ODomain, TopicName
from dro.wire.source_string import TransportAddress

MULTICAST_MAX_BYTES: Final = 1_000_000
NAME_MAX_BYTES: Final = 251
"""Limits a topic that travels in the message."""

limited = LimitedLogger(logging.getLogger(__name__)).event

OnImmediateData = Callable[[Data], object]


def topic_blocks(topic: str | None) -> tuple[AnyBlock, ...]:
    """Make the block that names the topic, if there is one. Raises: UsageError."""
    if topic is None:
        return ()
    name = topic_bytes(topic)
    if len(name) > NAME_MAX_BYTES:
        raise UsageError(f"{topic[:80]!r} has {len(name)} bytes; in an immediate message at most {NAME_MAX_BYTES}")
    return (TopicName(name),)


class ImmediateData:
    """See the module text. `listeners_of(topic)`: who listens to it here; `on_headers_malformed`: as of `Delivery`."""

    def __init__(
        self,
        loop: Loop,
        core: FragmentContext,
        unicast: UnicastMessages,
        requests: UnicastRequests,
        listeners_of: Callable[[bytes], Sequence[Listener]],
        on_headers_malformed: Callable[[str, str, DecodeError], object],
    ) -> None:
        """Raises: ResourceError."""
        self.on_immediate: OnImmediateData | None = None
        """Called on the loop for what comes without a topic."""
        self.on_immediate_topic: OnImmediateData | None = None
        """Called on the loop for what comes with a topic that nobody here receives."""
        self.on_mim_loss: Callable[[str, int], object] | None = None
        """Called on the loop with (source, sqn) for a multicast message that is lost."""
        self.not_taken = 0
        """Multicast messages that nobody took."""
        self._loop = loop
        self._core = core
        self._requests = requests
        self._listeners_of = listeners_of
        self._on_headers_malformed = on_headers_malformed
        self.reader = MulticastReader(ImmediateDeliveryOptions.filling(MulticastLimits, core.options))
        self._timer: Timer | None = None
        self._is_closed = False
        self._session: SenderTransport | None = None
        self._writer: MulticastWriter | None = None
        unicast.on_immediate = self._on_unicast
        core.immediate.listen(self._on_multicast)

    # receiving

    def _on_unicast(self, message: Immediate, peer: str) -> bool:
        return self._is_taken(message, f"TCP:{peer}" if message.origin is None else target_text(message.origin), 0, b"")

    def _on_multicast(self, message: bytes, session: TransportAddress) -> None:
        self._take(self.reader.read(message, session, self._loop.now_ns()))

    def _take(self, events: list[MulticastEvent]) -> None:
        for event in events:
            if self._is_closed:
                return
            if isinstance(event, MulticastLoss):
                call(self._tell_loss, event)
            elif not self._is_taken(event.immediate, event.source, event.sqn, event.otid):
                self.not_taken += 1
        deadline = None if self._is_closed else self.reader.next_deadline()
        if deadline is not None and (self._timer is None or not self._timer.is_pending):
            self._timer = self._loop.call_at(deadline, self._on_timer)

    def _tell_loss(self, loss: MulticastLoss) -> None:
        if self.on_mim_loss is not None:
            self.on_mim_loss(loss.source, loss.sqn)

    def _on_timer(self) -> None:
        self._take(self.reader.on_timer(self._loop.now_ns()))

    def _is_taken(self, message: Immediate, source: str, sqn: int, source_otid: bytes) -> bool:
        """Give it to those who want it; False when there is nobody."""
        topic, flags = "", FLAG_IMMEDIATE | FLAG_TOPICLESS
        listeners: Sequence[Listener] = ()
        callback = self.on_immediate
        if message.topic is not None:
            topic, flags = topic_text(message.topic), FLAG_IMMEDIATE
            listeners = self._listeners_of(message.topic)
            callback = self.on_immediate_topic
        if message.headers is None:
            event = Data(topic, source, sqn, message.data, flags, source_otid)
        else:
            made = make_event(
                topic, source, sqn, message.data, flags, source_otid, message.headers,
                self._requests.response, self._on_headers_malformed,
            )  # fmt: skip
            if isinstance(made, HFReset):
                return False
            event = made
        for listener in listeners:
            listener.on_events([event])
        if listeners:
            return True
        if callback is not None:
            call(callback, event)
        return callback is not None

    # sending

    def send(self, data: bytes, topic: str | None, request_blocks: Sequence[AnyBlock] = ()) -> None:
        """Send to all TRDs. Raises: WouldBlock, with nothing taken; UsageError; ResourceError."""
        immediate = self._core.immediate
        check_data(data)
        if len(data) > MULTICAST_MAX_BYTES:
            raise UsageError(
                f"multicast immediate message of {len(data)} bytes, at most {MULTICAST_MAX_BYTES} can be sent"
            )
        name = topic_blocks(topic)
        session = immediate.session()
        if self._writer is None or session is not self._session:
            own = otid.encode(session.address, 0, self._core.context_id, session.transport_index)
            self._session, self._writer = session, MulticastWriter(own)
        blocks = (*name, ODomain(self._core.domain_id), *(b for b in request_blocks if not isinstance(b, ODomain)))
        try:
            pieces = self._writer.pieces(data, blocks, session.fragment_max_bytes)
        except DecodeError as e:
            raise UsageError(f"multicast immediate message: {e.why}") from e
        size = sum(map(len, pieces))
        if size > immediate.queue_max_bytes:
            raise UsageError(
                f"multicast immediate message of {len(data)} bytes takes {size} in {len(pieces)} pieces, at most "
                f"{immediate.queue_max_bytes} can wait; take larger datagrams"
            )
        if size > immediate.room_bytes:
            raise WouldBlock("multicast immediate messages wait for the rate limit of LBT-RM")
        for piece in pieces:
            immediate.send(piece, _tell_failure)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.on_immediate = self.on_immediate_topic = self.on_mim_loss = None
        self._writer = self._session = None
        self._is_closed = True


def log_failure(target: str) -> OnFailed:
    """Make what logs that a message was not sent, for an application that does not wait for that."""
    return lambda why, _remedy: limited(LogEvent.IMMEDIATE_NOT_SENT, extra={"target": target, "reason": why})


def _tell_failure(outcome: Outcome) -> None:
    if outcome is not Outcome.SENT:
        limited(LogEvent.IMMEDIATE_NOT_SENT, extra={"reason": outcome.value})
