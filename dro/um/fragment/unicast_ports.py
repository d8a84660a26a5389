"""Both ends of unicast immediate messages of one context: its request port, and connections to those of others."""

from __future__ import annotations

from functools import partial

from dro.config.um.options import UmOptions
from dro.config.um.sets import RequestOptions, TlsOptions
from dro.loop import Loop
from dro.transport.sockets import Sockets
from dro.transport.tls import stream_maker
from dro.um.fragment.request_port import OnUnicast, RequestPort
from dro.um.fragment.unicast_sender import UnicastSender


class UnicastPorts:
    """See the module text. Raises: ResourceError naming the option when no port is free."""

    def __init__(self, loop: Loop, options: UmOptions, own_ip: int, on_message: OnUnicast, sockets: Sockets) -> None:
        """`own_ip`: what to advertise when the port listens on every interface."""
        request, tls = RequestOptions.of(options), TlsOptions.of(options)
        self._port: RequestPort | None = None
        if request.bind:
            maker = partial(stream_maker, tls, is_server=True)
            self._port = RequestPort(loop, request, own_ip, on_message, maker, sockets)
        self.limit_bytes = request.response_buffer_bytes
        self._sender = UnicastSender(loop, request, partial(stream_maker, tls, is_server=False), sockets)
        self.send = self._sender.send

    @property
    def address(self) -> tuple[int, int]:
        """Address (u32) and port of the request port; (0, 0) without one."""
        return self._port.address if self._port is not None else (0, 0)

    @property
    def broken(self) -> int:
        """Connections that were closed because what came is no LBMC messages."""
        return self._port.broken if self._port is not None else 0

    def close(self) -> None:
        if self._port is not None:
            self._port.close()
        self._sender.close()
