"""Hears packets of statistics, on topics of a UM context or as datagrams, and hands them on one by one.

A packet is handed on by the context's thread or the main one, never by both.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Final

from dro.errors import DroError
from dro.tools.lbm.ending import EndRequest
from dro.tools.lbmmon.options import UdpPlace, UmPlace
from dro.tools.text import shown
from dro.transport.sockets import OS_SOCKETS, ip_number
from dro.um.blocking_api import BlockingContext
from dro.um.message.client_config import Config
from dro.um.message.events import Data, Event, Loss, LossBurst
from dro.um.message.receiver import OnEvent

_DATAGRAM_MAX: Final = 65_535
_DATAGRAMS: Final = 256
"""That are read at a time, between two looks whether to end."""
_RECEIVE_BUFFER: Final = 8 << 20
_LONG_S: Final = 3600.0

OnPacket = Callable[[bytes, str], object]
"""A packet, and where it came from, as text for a terminal."""


class StatisticsListener:
    """Waits until the end is requested. What handing on raises ends the wait, and is raised there."""

    def __init__(self, stop: EndRequest, on_open: Callable[[], object], on_lost: Callable[[str], object]) -> None:
        """`on_open`: packets are heard from now on. `on_lost` is told where messages of a source were lost."""
        self._stop = stop
        self._on_open = on_open
        self._on_lost = on_lost
        self._failure: DroError | OSError | None = None

    def hear(self, place: UmPlace | UdpPlace, on_packet: OnPacket) -> None:
        """Hear one place. Raises: ResourceError, ConfigError."""
        match place:
            case UdpPlace():
                self._hear_datagrams(place, on_packet)
            case UmPlace(config=config, topic=topic, pattern=""):
                self.hear_topics(config, {topic: on_packet})
            case UmPlace(config=config, pattern=pattern):
                with BlockingContext(config) as context:
                    self._stop.hold()
                    context.wildcard_receiver(pattern, on_event=self._events(on_packet))
                    self._wait()

    def hear_topics(self, config: Config, topics: Mapping[str, OnPacket]) -> None:
        """Hear some topics of one context. Raises: ResourceError, ConfigError."""
        with BlockingContext(config) as context:
            self._stop.hold()
            for topic, on_packet in topics.items():
                context.receiver(topic, on_event=self._events(on_packet))
            self._wait()

    def _events(self, on_packet: OnPacket) -> OnEvent:
        def on_event(event: Event) -> None:
            match event:
                case Data():
                    self._take(on_packet, event.data, _place(event))
                case Loss() | LossBurst():
                    self._on_lost(_place(event))

        return on_event

    def _take(self, on_packet: OnPacket, packet: bytes, where: str) -> None:
        if self._failure is None:
            try:
                on_packet(packet, where)
            except (DroError, OSError) as e:
                self._failure = e
                self._stop.request()

    def _wait(self) -> None:
        self._on_open()
        while not self._stop.wait(_LONG_S):
            pass
        self._end()

    def _hear_datagrams(self, place: UdpPlace, on_packet: OnPacket) -> None:
        with self._open(place) as sock:
            self._stop.hold()
            self._on_open()
            while self._stop.wait_readable(sock.fileno()):
                for _ in range(_DATAGRAMS):
                    try:
                        packet, (host, port) = sock.recvfrom(_DATAGRAM_MAX)
                    except BlockingIOError:
                        break
                    self._take(on_packet, packet, f"{host}:{port}")
        self._end()

    def _open(self, place: UdpPlace) -> socket.socket:
        if place.group:
            return OS_SOCKETS.multicast_receiver(
                ip_number(place.group), place.port, place.interface, buffer_bytes=_RECEIVE_BUFFER, option="mcgroup"
            )
        return OS_SOCKETS.bind_in_range(socket.SOCK_DGRAM, place.interface, (place.port,), option="port")

    def _end(self) -> None:
        if self._failure is not None:
            raise self._failure


def _place(event: Data | Loss | LossBurst) -> str:
    return shown(f"[{event.topic}][{event.source}]")
