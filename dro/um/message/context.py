"""The message level of one context on one loop; the asyncio and blocking interfaces put a host around it.

Owns the fragment-level context, the delivery layer, and the sources and receivers made here. Every method runs on the
loop's thread, or under its lock. Source: client library notes, section 1.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

from dro.config.um.application_options import FailoverOptions
from dro.config.um.honoured import check, check_transport
from dro.config.um.layers import CONTEXT, RECEIVER, SOURCE, WILDCARD_RECEIVER, Asked
from dro.config.um.options import OptionKey, UmOptions
from dro.config.um.sets import BatchingOptions
from dro.errors import DecodeError, DroError, ResourceError
from dro.loop import Loop
from dro.transport.session import SenderTransport
from dro.um.fragment.context import FragmentContext
from dro.um.fragment.resolution import ContextSettings
from dro.um.message.client_config import Config, name_without_effect
from dro.um.message.delivery import Delivery
from dro.um.message.events import SourceEvent, UsageError
from dro.um.message.failover import FailoverListener, refuse_hotlinks
from dro.um.message.immediate import ImmediateData, OnImmediateData, topic_blocks
from dro.um.message.late_join import OriginRequests
from dro.um.message.listeners import Listener, topic_bytes
from dro.um.message.receiver import MessageReceiver
from dro.um.message.requests import OnRequestFailed, OnResponse, OpenRequest, UnicastRequests
from dro.um.message.source import MessageSource
from dro.um.message.targets import find_target
from dro.um.message.unicast import OnFailed, OnSent, UnicastMessages, target_text
from dro.um.message.wildcard_receiver import OnTopic, PatternReceiver
from dro.um.message.writer import SessionWriter

log = logging.getLogger(__name__)


class MessageContext:
    """Raises on creation: ResourceError naming the option that cannot be satisfied, ConfigError."""

    def __init__(self, config: Config, loop: Loop, *, name: str = "", rng: random.Random | None = None) -> None:
        self.loop = loop
        self.options = config.of(Asked(CONTEXT))
        self._config = config
        self._named: set[OptionKey] = set(config.options.explicit)  # those of the rest that do nothing were named
        self._name_without_effect(self.options)
        self.delivery = Delivery(loop, self.options)
        self.core = FragmentContext(
            self.options, loop, sink=self.delivery, settings=ContextSettings(name=name), rng=rng
        )
        self.core.on_no_source = self.delivery.on_no_source
        self.core.on_topic_matched = self._on_matched
        self.core.on_topic_unmatched = self._on_unmatched
        self.core.on_client = self._on_client
        rng = rng or random.Random()
        self.unicast = UnicastMessages(loop, self.core, rng)
        self.requests = UnicastRequests(self.unicast, loop, rng)
        self.delivery.make_response = self.requests.response
        self.late_join = OriginRequests(loop, self.unicast, rng, self.delivery)
        self.delivery.use(self.late_join)
        self.is_closed = False
        self._sources: list[MessageSource] = []
        self._receivers: list[MessageReceiver] = []
        self._wildcards: dict[tuple[bytes, int], list[PatternReceiver]] = {}
        self._writers: dict[SenderTransport, SessionWriter] = {}
        self._ending: list[SenderTransport] = []
        try:
            self.immediate = ImmediateData(
                loop, self.core, self.unicast, self.requests, self._listeners_of, self.delivery.on_headers_malformed
            )
            """Messages without a source."""
        except ResourceError:
            self.core.close()
            raise

    # children

    def source(
        self,
        topic: str,
        options: UmOptions,
        on_event: Callable[[SourceEvent], object] | None = None,
        *,
        hot_failover: bool = False,
    ) -> MessageSource:
        """Open a source. Raises: ConfigError, ResourceError, UsageError."""
        self._check_open()
        options = self._options_of(Asked(SOURCE, topic), options)
        merged = self.options.merged(options)
        check_transport(merged)
        if hot_failover:
            refuse_hotlinks(merged, SOURCE)
        retention = self.late_join.retention_of(merged)
        try:
            fragments = self.core.open_source(topic_bytes(topic), options=options, is_silent=retention is not None)
            if retention is not None:
                self.late_join.advertise(fragments)
                if (trouble := self.core.own.advertise_silent()) is not None:
                    fragments.close(final=False, linger_ns=0)
                    raise trouble
        except DecodeError as e:
            raise UsageError(f"topic {topic[:80]!r} cannot be used: {e.why}") from e
        writer = self._writers.get(fragments.transport)
        if writer is None:
            writer = SessionWriter(self.loop, fragments.transport, BatchingOptions.of(merged))
            self._writers[fragments.transport] = writer
        writer.users += 1
        source = MessageSource(self, topic, fragments, writer, merged, on_event, retention)
        if retention is not None:
            self.late_join.add_source(source)
        self._sources.append(source)
        return source

    def receiver(
        self, topic: str, listener: Listener, options: UmOptions, *, hot_failover: bool = False
    ) -> MessageReceiver:
        """Open a receiver. Raises: ConfigError, UsageError."""
        self._check_open()
        options = self._options_of(Asked(RECEIVER, topic), options)
        if hot_failover:
            listener = FailoverListener(self.loop, self.delivery, listener, self.options.merged(options))
        receiver = MessageReceiver(self, topic, listener, options)
        self._receivers.append(receiver)
        return receiver

    def wildcard(
        self,
        pattern: str,
        listener: Listener,
        options: UmOptions,
        on_created: OnTopic | None = None,
        on_deleted: OnTopic | None = None,
    ) -> PatternReceiver:
        """Open a wildcard receiver. Raises: PatternError, ConfigError, UsageError."""
        self._check_open()
        pattern_type = self.options.merged(options).get_str(WILDCARD_RECEIVER, "pattern_type")
        options = self._options_of(Asked(WILDCARD_RECEIVER, pattern, pattern_type), options)
        merged = self.options.merged(options)
        if FailoverOptions.of(merged).of_patterns:
            listener = FailoverListener(self.loop, self.delivery, listener, merged)
        return PatternReceiver(self, pattern, listener, options, on_created, on_deleted)

    def _options_of(self, asked: Asked, own: UmOptions) -> UmOptions:
        """Find the options of one object that its context has not. Raises: ConfigError when it is not permitted."""
        if self._config.documents:
            made = self._config.of(asked, own)
            kept = {k: v for k, v in made.explicit.items() if k[0] == asked.scope or k in own.explicit}
            own = UmOptions(kept, {key: made.origin(key) for key in kept})
        elif own.explicit:
            check(self.options.merged(own), is_whole=True)
        self._name_without_effect(own)
        return own

    def _name_without_effect(self, options: UmOptions) -> None:
        """Log those of the options that were not named before."""
        new = {k: v for k, v in options.explicit.items() if k not in self._named}
        name_without_effect(UmOptions(new, options.origins))
        self._named.update(options.explicit)

    def _check_open(self) -> None:
        if self.is_closed:
            raise UsageError("the context is closed")

    @property
    def children(self) -> int:
        """Sources and receivers that are not closed."""
        return len(self._sources) + len(self._receivers) + sum(map(len, self._wildcards.values()))

    @property
    def request_target(self) -> str:
        """Where unicast immediate messages to this context go, as text; empty without a request port."""
        own = self.unicast.own_address
        return target_text(own) if own.port else ""

    # messages without a source, and requests

    def uim(
        self,
        target: str,
        data: bytes,
        topic: str | None = None,
        *,
        on_sent: OnSent = lambda: None,
        on_failed: OnFailed,
    ) -> None:
        """Send an immediate message to one context. `target`: see `dro.um.message.targets`.

        `on_sent` or `on_failed` is called once, on the loop. Raises: UsageError; ResourceError for a source that is
        not known here.
        """
        self._check_open()
        to, blocks = find_target(self.core, target), topic_blocks(topic)
        self.unicast.send_data(to, data, blocks=blocks, on_failed=on_failed, on_sent=on_sent)

    def uim_request(
        self,
        target: str,
        data: bytes,
        on_response: OnResponse,
        on_failed: OnRequestFailed = lambda _: None,
        topic: str | None = None,
    ) -> OpenRequest:
        """Send a request to one context, as by `uim`.

        `on_response` is called on the loop for each response until the request is closed, `on_failed` once if it
        cannot be sent. Raises: UsageError; ResourceError as `uim`, and without a request port.
        """
        self._check_open()
        to, blocks = find_target(self.core, target), topic_blocks(topic)
        request = self.requests.open(target, on_response, on_failed)
        self.requests.send(request, to, data, blocks)
        return request

    def mim(self, data: bytes, topic: str | None = None) -> None:
        """Send an immediate message to all TRDs. Raises: WouldBlock, with nothing taken; UsageError, ResourceError."""
        self._check_open()
        self.immediate.send(data, topic)

    def mim_request(
        self,
        data: bytes,
        on_response: OnResponse,
        topic: str | None = None,
        on_failed: OnRequestFailed = lambda _: None,
    ) -> OpenRequest:
        """Send a request as by `mim`. Raises: as `mim`; ResourceError without a request port."""
        self._check_open()
        request = self.requests.open("all TRDs", on_response, on_failed)
        try:
            self.immediate.send(data, topic, request.blocks)
        except DroError:
            request.close()
            raise
        return request

    def _listeners_of(self, topic: bytes) -> list[Listener]:
        """List who gets an immediate message with that topic: receivers of it, else those whose pattern matches."""
        if plain := self.delivery.plain(topic):
            return list(plain)
        wildcards = [wildcard for same in self._wildcards.values() for wildcard in same]
        return [listener for wildcard in wildcards if (listener := wildcard.listener_for(topic)) is not None]

    @property
    def on_immediate(self) -> OnImmediateData | None:
        """Return what is called on the loop for each immediate message without a topic; None: they are dropped."""
        return self.immediate.on_immediate

    @on_immediate.setter
    def on_immediate(self, callback: OnImmediateData | None) -> None:
        self.immediate.on_immediate = callback

    def on_source_closed(self, source: MessageSource) -> None:
        self._sources.remove(source)
        self.late_join.remove_source(source)
        writer = source.writer
        writer.users -= 1
        if not writer.users:
            del self._writers[writer.sender]
            writer.close()
            self._ending = [sender for sender in self._ending if sender.is_flushing]
            self._ending.append(writer.sender)

    def on_receiver_closed(self, receiver: MessageReceiver) -> None:
        if receiver in self._receivers:
            self._receivers.remove(receiver)

    def on_wildcard_opened(self, wildcard: PatternReceiver) -> None:
        self._wildcards.setdefault(wildcard.key, []).append(wildcard)

    def on_wildcard_closed(self, wildcard: PatternReceiver) -> None:
        others = self._wildcards.get(wildcard.key, [])
        others.remove(wildcard)
        if not others:
            del self._wildcards[wildcard.key]

    # from the fragment level

    def _on_matched(self, pattern: bytes, kind: int, topic: bytes) -> None:
        for wildcard in list(self._wildcards.get((pattern, kind), ())):
            wildcard.on_matched(topic)

    def _on_unmatched(self, pattern: bytes, kind: int, topic: bytes) -> None:
        for wildcard in list(self._wildcards.get((pattern, kind), ())):
            wildcard.on_unmatched(topic)

    def _on_client(self, sender: SenderTransport, client: str, connected: bool) -> None:
        for source in list(self._sources):
            if source.writer.sender is sender:
                source.on_client(client, connected=connected)

    # the end

    @property
    def is_drained(self) -> bool:
        """Has everything that was sent left for the network?"""
        return self.unicast.is_idle and all(writer.is_idle for writer in self._writers.values())

    def progress(self) -> int:
        """Return a number that changes as often as something leaves."""
        return self.unicast.queued_bytes + sum(writer.handed for writer in self._writers.values())

    @property
    def has_ended(self) -> bool:
        """Have the connections of closed sources delivered what they could?"""
        return not any(sender.is_flushing for sender in self._ending)

    def close_children(self) -> None:
        """Close everything that was made here, receivers first."""
        for wildcards in list(self._wildcards.values()):
            for wildcard in list(wildcards):
                wildcard.close()
        for receiver in list(self._receivers):
            receiver.close()
        for source in list(self._sources):
            source.close()

    def close(self) -> None:
        """Close the context. Raises: UsageError while sources or receivers are open."""
        if self.is_closed:
            return
        if self.children:
            raise UsageError(f"{self.children} sources and receivers of the context are still open")
        self.is_closed = True
        self.requests.close()
        self.immediate.close()
        self.unicast.close()
        self.delivery.close()
        self.core.close()
