"""Sends statistics, on a source of a context of their own or as datagrams. Neither ever waits for who reads.

Source: UM operations guide, monitoring: transports `lbm`, `lbmsnmp` and `udp`.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Final, Protocol

from dro.config.dro_xml.model import UdpConfig
from dro.config.um.options import DEFAULTS, UmOptions
from dro.config.um.used import STATISTICS_CONTEXT
from dro.errors import ResourceError
from dro.loop import Loop
from dro.os_errors import remedy_of
from dro.transport.sockets import ip_number, ip_text
from dro.um.message.client_config import Config
from dro.um.message.context import MessageContext
from dro.um.message.events import UsageError, WouldBlock
from dro.um.message.immediate import OnImmediateData

_UNLESS_SET: Final = (
    ("source", "transport_tcp_multiple_receiver_behavior", "source_paced"),
    ("context", "request_tcp_reuseaddr", 1),  # a fixed port is had again at once, whoever was connected to it
)
MAX_DATAGRAM: Final = 65_507  # bytes, of UDP over IPv4


class Publisher(Protocol):
    """Takes messages to who listens."""

    def send(self, message: bytes) -> str:
        """Send one; why it was not sent, or nothing."""

    @property
    def host(self) -> str:
        """Address that messages come from."""

    @property
    def is_blocked(self) -> bool:
        """Would a message not be taken now?"""

    @property
    def has_left(self) -> bool:
        """Has all that was sent left this host, as far as its receivers take it?"""

    @property
    def topic(self) -> str:
        """Topic that is sent on; empty for datagrams."""

    @property
    def target(self) -> str:
        """Where requests to it go; `none` without a port for them."""

    def change_topic(self, topic: str) -> None:
        """Send on another topic. Raises: ResourceError, ConfigError."""

    def close(self) -> None: ...


class UmPublisher:
    """A source of a UM context. Unless its options say otherwise, a receiver over TCP that does not read misses what is
    sent, and others wait for it no more than forwarding does."""

    def __init__(self, loop: Loop, options: UmOptions, topic: str, on_request: OnImmediateData) -> None:
        """Raises: ResourceError, ConfigError."""
        for scope, name, value in _UNLESS_SET:
            if not options.is_set(scope, name):
                options = options.with_(scope, name, value)
        self.context = MessageContext(Config(options), loop, name=STATISTICS_CONTEXT)
        self.context.on_immediate = on_request
        try:
            self._source = self.context.source(topic, DEFAULTS)
        except BaseException:
            self.close()
            raise

    @property
    def topic(self) -> str:
        return self._source.topic

    @property
    def target(self) -> str:
        return self.context.request_target or "none"

    def change_topic(self, topic: str) -> None:
        made = self.context.source(topic, DEFAULTS)
        self._source.close()
        self._source = made

    def send(self, message: bytes) -> str:
        try:
            self._source.send(message)
        except WouldBlock:
            return "a receiver does not take what was sent before"
        except (UsageError, OSError) as e:
            return str(e)
        return ""

    @property
    def host(self) -> str:
        return ip_text(self.context.core.resolution.channel.local_address)

    @property
    def is_blocked(self) -> bool:
        return self._source.writer.is_blocked

    @property
    def has_left(self) -> bool:
        return self.context.is_drained

    def close(self) -> None:
        self.context.close_children()
        self.context.close()


class UdpPublisher:
    """Datagrams to a multicast group, a broadcast address or a host."""

    def __init__(self, udp: UdpConfig) -> None:
        """Raises: ResourceError."""
        self._target = (udp.mcgroup or udp.bcaddress or udp.address, udp.port)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            if udp.mcgroup:
                self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, udp.ttl)
                self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(udp.interface))
            elif udp.bcaddress:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            self._socket.connect(self._target)
        except OSError as e:
            self._socket.close()
            what = f"statistics cannot be sent to {self._target[0]} port {self._target[1]}: {e.strerror}"
            remedy = remedy_of(e.errno, "correct the options of <transport-module>")
            raise ResourceError(what, remedy=remedy) from e

    def send(self, message: bytes) -> str:
        if len(message) > MAX_DATAGRAM:
            return f"{len(message)} bytes are more than a datagram has room for: use the transport module lbm"
        for _ in range(2):  # an error of the datagram before is told once, and says nothing of this one
            try:
                self._socket.send(message)
            except ConnectionRefusedError:
                continue
            except OSError as e:
                return e.strerror or str(e)
            return ""
        return ""

    @property
    def host(self) -> str:
        with contextlib.suppress(OSError):
            return str(self._socket.getsockname()[0])
        return ip_text(ip_number("0.0.0.0"))

    @property
    def is_blocked(self) -> bool:
        return False

    @property
    def has_left(self) -> bool:
        return True

    topic = ""
    target = "none"

    def change_topic(self, topic: str) -> None:
        """Go on: datagrams have no topic."""

    def close(self) -> None:
        self._socket.close()
