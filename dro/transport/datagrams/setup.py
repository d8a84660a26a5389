"""Describes what a session that is sent in datagrams begins with."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

from dro.kept.log import SharedLog
from dro.transport.stream import nothing
from dro.wire.source_string import LbtrmAddress, LbtruAddress


@dataclass(frozen=True, slots=True)
class DatagramSenderSetup:
    """One session to be sent on; its data has headers of `header_bytes`.

    Receivers say what they have to say to the `control_socket`, which may be the `data_socket`. `interface` is the
    address of the one that data leaves from. `pack_bytes`: fragments that are sent at once share datagrams up to this
    size. `log`: of what is sent, for a session that outlives its process, which has room for the window with
    `window_log_bytes`; `forget` is called when it does not any more.
    """

    address: LbtrmAddress | LbtruAddress
    data_socket: socket.socket
    control_socket: socket.socket
    interface: str
    datagram_max_bytes: int
    transport_index: int
    header_bytes: int
    pack_bytes: int = 0
    log: SharedLog | None = None
    window_log_bytes: int = 0
    forget: Callable[[], object] = nothing
