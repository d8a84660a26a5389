"""Hears packets of statistics, on topics of a UM context or as datagrams, and hands them on one by one.

A packet is handed on by the context's thread or the main one, never by both at a time.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Final

from dro.errors import DroError
from dro.tools.lbm.ending import EndRequest
from dro.tools.lbmmon.options import UdpPlace, UmPlace
from dro.transport.sockets import OS_SOCKETS, ip_number
from dro.um.blocking_api import BlockingContext
from dro.um.message.client_config import Config
from dro.um.message.events import Data, Event, Loss, LossBurst

_DATAGRAM_MAX: Final = 65_535
_DATAGRAMS: Final = 256
_RECEIVE_BUFFER: Final = 8 << 20

OnPacket = Callable[[bytes, str], object]
"""A packet, and where it came from, as text."""


class Listener:
    """Counts what it hears; what handing on raises ends the wait, and is raised there."""

    def __init__(self, stop: EndRequest, on_packet: OnPacket, on_lost: Callable[[str], object]) -> None:
        self._stop = stop
        self._on_packet = on_packet
        self._on_lost = on_lost
        self._failure: DroError | OSError | None = None

    def take(self, packet: bytes, where: str) -> None:
        if self._failure is None:
            try:
                self._on_packet(packet, where)
            except (DroError, OSError) as e:
                self._failure = e
                self._stop.request()

    def _on_event(self, event: Event) -> None:
        if self._failure is None:
            match event:
                case Data():
                    self.take(event.data, f"[{event.topic}][{event.source}]")
                case Loss() | LossBurst():
                    self._on_lost(f"[{event.topic}][{event.source}]")

    def hear(self, place: UmPlace | UdpPlace, on_open: Callable[[], object]) -> None:
        """Hear one place until the end is requested. Raises: what handing on raised; ResourceError."""
        if isinstance(place, UdpPlace):
            self._hear_datagrams(place, on_open)
        elif place.pattern:
            self.hear_topics(place.config, {}, on_open, pattern=place.pattern)
        else:
            self.hear_topics(place.config, {place.topic: self._on_event}, on_open)

    def hear_topics(
        self,
        config: Config,
        topics: Mapping[str, Callable[[Event], object]],
        on_open: Callable[[], object],
        *,
        pattern: str = "",
    ) -> None:
        """Hear topics, each by its callback, or those that match a pattern, until the end is requested."""
        with BlockingContext(config) as context:
            self._stop.hold()
            for topic, on_event in topics.items():
                context.receiver(topic, on_event=on_event)
            if pattern:
                context.wildcard_receiver(pattern, on_event=self._on_event)
            on_open()
            while not self._stop.wait(3600):
                pass
        self._raise_failure()

    def _hear_datagrams(self, place: UdpPlace, on_open: Callable[[], object]) -> None:
        with self._open(place) as sock:
            self._stop.hold()
            on_open()
            while self._failure is None and self._stop.wait_readable(sock.fileno()):
                for _ in range(_DATAGRAMS):
                    try:
                        packet, (host, port) = sock.recvfrom(_DATAGRAM_MAX)
                    except BlockingIOError:
                        break
                    self.take(packet, f"{host}:{port}")
        self._raise_failure()

    def _open(self, place: UdpPlace) -> socket.socket:
        if place.group:
            return OS_SOCKETS.multicast_receiver(
                ip_number(place.group), place.port, place.interface, buffer_bytes=_RECEIVE_BUFFER, option="mcgroup"
            )
        return OS_SOCKETS.bind_in_range(socket.SOCK_DGRAM, place.interface, (place.port,), option="port")

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
