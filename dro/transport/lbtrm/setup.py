"""Describes what a session that is sent on LBT-RM begins with."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

from dro.kept.log import SharedLog
from dro.transport.stream import nothing
from dro.wire.source_string import LbtrmAddress


@dataclass(frozen=True, slots=True)
class LbtrmSenderSetup:
    """One session to be sent on. `tgsz_log2` goes into the TGSZ byte; the FEC symbol is the sqn modulo that group size.

    `interface` is the address of the one that data leaves from. `pack_bytes`: fragments that are sent at once share
    datagrams up to this size. `log`: of what is sent, for a session that outlives its process, which has room for the
    window with `window_log_bytes`; `forget` is called when it does not any more.
    """

    address: LbtrmAddress
    data_socket: socket.socket
    nak_socket: socket.socket
    interface: str
    datagram_max_bytes: int
    transport_index: int
    tgsz_log2: int
    pack_bytes: int = 0
    log: SharedLog | None = None
    window_log_bytes: int = 0
    forget: Callable[[], object] = nothing
