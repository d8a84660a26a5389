"""A TCP session of a source that outlives its process: its listener, its connections, and the stream in a log.

How far each connection has come is known to the system: what was written to it is what its other end has acknowledged
and what waits to be. A connection gets what was sent from when it was kept on, without a gap; one for which something
was discarded is not gone on with.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from struct import Struct
from typing import Final

from dro.errors import DecodeError
from dro.kept.log import SharedLog
from dro.kept.store import Kept
from dro.transport import sockets
from dro.transport.kept_senders import FormerSession, KeptSenders

SOURCE_KIND: Final = b"tcp"
LISTENER: Final = b"listener"
LOG_LEAST: Final = 1 << 20
_ROW: Final = b"tcp-client"
_ACKNOWLEDGED: Final = Struct("=Q")  # in TCP_INFO
_ACKNOWLEDGED_AT: Final = 120
_INFO_BYTES: Final = 128
_TRIES: Final = 100


def written_bytes(sock: socket.socket) -> int:
    """Return how many bytes were ever written to a connection, counted from any place. Raises: OSError."""
    before = -1
    for _ in range(_TRIES):
        waiting = sockets.unacknowledged_bytes(sock)
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        written: int = _ACKNOWLEDGED.unpack_from(info, _ACKNOWLEDGED_AT)[0] + waiting
        if written == before:
            break
        before = written
    return written


class KeptStream:
    """What one session leaves to the next incarnation of its process."""

    def __init__(self, kept: Kept, senders: KeptSenders, transport_index: int, port: int, log: SharedLog) -> None:
        self._rows = kept.rows
        self._senders = senders
        self._index = transport_index
        self._key = (port,)
        self._log: SharedLog | None = log
        self._clients: set[str] = set()

    def note(self, data: memoryview) -> None:
        """Log what is about to be written to the connections."""
        log = self._log
        if log is not None:
            size = len(data)
            if not log.append(log.after, 1, size, 0, data, log.after + size):
                self.forget()

    def keep(self, name: str, sock: socket.socket) -> None:
        """Keep a connection that nothing was written to yet."""
        log, rows = self._log, self._rows
        if log is None or rows is None:
            return
        with contextlib.suppress(OSError):  # it is broken, as is found out in a moment
            base = written_bytes(sock)
            if (row := rows.row(_ROW, self._name(name))) is not None:
                row.write(log.after, base, 1)
                self._clients.add(name)
                self._senders.keep(self._index, self._key, b"c" + name.encode(), sock)

    def drop(self, name: str) -> None:
        """Keep a connection no longer."""
        if name in self._clients and self._rows is not None:
            self._clients.remove(name)
            self._rows.free(_ROW, self._name(name))
            self._senders.drop(self._index, self._key, b"c" + name.encode())

    def forget(self) -> None:
        """Keep nothing any more."""
        log, self._log = self._log, None
        if log is not None:
            for name in list(self._clients):
                self.drop(name)
            self._senders.forget(self._index, self._key, log)

    def connections(self, former: FormerSession) -> Iterator[tuple[str, socket.socket, bytes]]:
        """Go on with the connections of the former incarnation: the name of each, and what it has yet to get."""
        for part, sock in former.sockets.items():
            if part == LISTENER:
                continue
            name = part[1:].decode()
            self._clients.add(name)
            missing = self._missing(name, sock, former)
            if missing is None:
                sock.close()
                self.drop(name)
            else:
                yield name, sock, missing

    def _missing(self, name: str, sock: socket.socket, former: FormerSession) -> bytes | None:
        """Return what a connection has yet to get; None when that is not known."""
        row = self._rows.row(_ROW, self._name(name)) if self._rows is not None else None
        if row is None or row.former is None or not row.former.c:
            return None
        joined, base, _, _ = row.former
        try:
            at = joined + written_bytes(sock) - base
        except OSError:
            return None
        end = former.log.after
        pieces = []
        try:
            for record in former.log.newest_first():
                if end <= at:
                    break
                pieces.append(record.data[max(0, at - record.first) : record.size])
                end = record.first
        except DecodeError:
            return None
        return b"".join(reversed(pieces)) if end <= at <= former.log.after else None

    def _name(self, name: str) -> bytes:
        return b"%d %s" % (self._index, name.encode())


def open_stream(
    kept: Kept, senders: KeptSenders, transport_index: int, port: int, capacity: int, session_id: int
) -> KeptStream | None:
    """Make what a new session leaves; None when sessions end with their process."""
    log = senders.log(transport_index, capacity, 0, session_id) if senders.keeps else None
    return None if log is None else KeptStream(kept, senders, transport_index, port, log)
