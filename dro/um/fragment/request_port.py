"""The request port of a context: the TCP port that its advertisements name for unicast immediate messages.

Owns the listening socket, so that the advertised address is real. Connections are accepted and closed: requests are not
supported yet. Source: UM Configuration Guide, `request_tcp_*`.
"""

from __future__ import annotations

import logging
import socket
from typing import Final

from dro.config.um.sets import RequestOptions
from dro.log.events import LogEvent
from dro.loop import Loop
from dro.um.transport import sockets

log = logging.getLogger(__name__)

ACCEPTS_PER_TURN: Final = 16


class RequestPort:
    """Raises: ResourceError naming the option when no port of the range is free."""

    def __init__(self, loop: Loop, options: RequestOptions, fallback_ip: int) -> None:
        """`fallback_ip`: what to advertise when the port listens on every interface."""
        self._loop = loop
        is_fixed = options.port != 0
        ports = (options.port,) if is_fixed else range(options.port_low, options.port_high + 1)
        self._listener = sockets.bind_in_range(
            socket.SOCK_STREAM,
            options.interface,
            ports,
            option="request_tcp_port" if is_fixed else "request_tcp_port_low/_high",
        )
        self._listener.listen(options.listen_backlog)
        host, port = self._listener.getsockname()
        self.address = (fallback_ip if host == sockets.ANY else sockets.ip_number(host), int(port))
        self.refused = 0
        loop.add_reader(self._listener, self._on_accept)

    def _on_accept(self) -> bool:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return False
            except OSError as e:
                log.warning(LogEvent.REQUEST_PORT_FAILED, extra={"error": e.strerror})
                return False
            sock.close()
            self.refused += 1
        return True

    def close(self) -> None:
        self._loop.remove_reader(self._listener)
        self._listener.close()
