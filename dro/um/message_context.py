"""The message level of one context on one loop; the asyncio and blocking faces put a host around it.

Owns the fragment-level context, the delivery layer, and the sources and receivers made here. Every method runs on the
loop's thread, or under the lock that stands for it. Source: client library notes, section 1.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Final

from dro.config.options import UmOptions, find_option
from dro.config.um_sets import BatchingOptions
from dro.errors import DecodeError
from dro.loop import Loop
from dro.um.client_config import Config
from dro.um.context_core import ContextCore
from dro.um.delivery import Delivery, Listener, topic_bytes
from dro.um.events import SourceEvent, UsageError
from dro.um.pools import Sender
from dro.um.receiver import ReceiverCore
from dro.um.session import SenderTransport
from dro.um.source import SourceCore
from dro.um.tcp_io import TcpSender
from dro.um.wildcard import OnTopic, WildcardCore
from dro.um.writer import SessionWriter
from dro.wire.source_string import ip_text

log = logging.getLogger(__name__)

_WITHOUT_EFFECT: Final = (("source", "late_join"), ("source", "use_hotlink"), ("receiver", "use_hotlink"))
"""Switches of features that are not there yet; who turns one on is told."""


class MessageContext:
    """Raises on creation: ResourceError naming the option that cannot be satisfied."""

    def __init__(self, config: Config, loop: Loop, *, name: str = "", rng: random.Random | None = None) -> None:
        self.loop = loop
        self.options = config.options
        self.delivery = Delivery(loop, config.options)
        self.core = ContextCore(config.options, loop, sink=self.delivery, name=name, rng=rng)
        self.core.on_no_source = self.delivery.on_no_source
        self.core.on_topic_matched = self._on_matched
        self.core.on_topic_unmatched = self._on_unmatched
        self.core.on_client = self._on_client
        self.is_closed = False
        self._sources: list[SourceCore] = []
        self._receivers: list[ReceiverCore] = []
        self._wildcards: dict[tuple[bytes, int], list[WildcardCore]] = {}
        self._writers: dict[Sender, SessionWriter] = {}
        self._ending: list[TcpSender] = []
        self._warned: set[tuple[str, str]] = set()

    # children

    def source(
        self, topic: str, options: UmOptions, on_event: Callable[[SourceEvent], object] | None = None
    ) -> SourceCore:
        """Raises: ResourceError, UsageError."""
        self._check_open()
        merged = self.options.merged(options)
        self._warn_without_effect("source", merged)
        try:
            fragments = self.core.open_source(topic_bytes(topic), options=options)
        except DecodeError as e:
            raise UsageError(f"topic {topic[:80]!r} cannot be used: {e.why}") from e
        writer = self._writers.get(fragments.sender)
        if writer is None:
            writer = SessionWriter(self.loop, fragments.sender, BatchingOptions.of(merged))
            self._writers[fragments.sender] = writer
        writer.users += 1
        source = SourceCore(self, topic, fragments, writer, merged, on_event)
        self._sources.append(source)
        return source

    def receiver(self, topic: str, listener: Listener, options: UmOptions) -> ReceiverCore:
        """Raises: UsageError."""
        self._check_open()
        self._warn_without_effect("receiver", self.options.merged(options))
        receiver = ReceiverCore(self, topic, listener, options)
        self._receivers.append(receiver)
        return receiver

    def wildcard(
        self,
        pattern: str,
        listener: Listener,
        options: UmOptions,
        on_created: OnTopic | None = None,
        on_deleted: OnTopic | None = None,
    ) -> WildcardCore:
        """Raises: PatternError, ConfigError, UsageError."""
        self._check_open()
        return WildcardCore(self, pattern, listener, options, on_created, on_deleted)

    def _warn_without_effect(self, scope: str, options: UmOptions) -> None:
        for key in _WITHOUT_EFFECT:
            if key[0] == scope and find_option(*key) is not None and key not in self._warned and options.get_bool(*key):
                self._warned.add(key)
                log.warning("option without effect: not supported yet", extra={"option": " ".join(key)})

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
        ip, port = self.core.request_address
        if not port:
            return ""
        domain = self.core.domain_id
        return f"TCP:{domain}:{ip_text(ip)}:{port}" if domain else f"TCP:{ip_text(ip)}:{port}"

    def on_source_closed(self, source: SourceCore) -> None:
        self._sources.remove(source)
        writer = source.writer
        writer.users -= 1
        if not writer.users:
            del self._writers[writer.sender]
            writer.close()
        if isinstance(writer.sender, TcpSender):
            self._ending = [sender for sender in self._ending if sender.is_open]
            if not writer.users:
                self._ending.append(writer.sender)

    def on_receiver_closed(self, receiver: ReceiverCore) -> None:
        if receiver in self._receivers:
            self._receivers.remove(receiver)

    def on_wildcard_opened(self, wildcard: WildcardCore) -> None:
        self._wildcards.setdefault(wildcard.key, []).append(wildcard)

    def on_wildcard_closed(self, wildcard: WildcardCore) -> None:
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
        return all(writer.is_idle for writer in self._writers.values())

    @property
    def has_ended(self) -> bool:
        """Have the connections of closed sources delivered what they could?"""
        return not any(sender.is_open for sender in self._ending)

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
        """Raises: UsageError while sources or receivers are open."""
        if self.is_closed:
            return
        if self.children:
            raise UsageError(f"{self.children} sources and receivers of the context are still open")
        self.is_closed = True
        self.delivery.close()
        self.core.close()
