"""A session of LBT-IPC of a source that outlives its process: its listener, its connections, and the memory.

The memory is the log of what was sent. A log of `dro.kept` stands beside it for its row: session id, and nothing else.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dro.kept.log import LogRecord, SharedLog
from dro.shared_memory.records import RecordWriter
from dro.transport.kept_senders import FormerSession, KeptSenders

SOURCE_KIND: Final = b"lbtipc"
LISTENER: Final = b"listener"
_NONE: Final = memoryview(b"")


def memory_path(folder: Path, transport_index: int) -> Path:
    return folder / f"lbtipc.{transport_index}"


class KeptIpc:
    """What one session leaves to the next incarnation of its process."""

    def __init__(self, senders: KeptSenders, transport_index: int, transport_id: int, log: SharedLog) -> None:
        self._senders = senders
        self._index = transport_index
        self._key = (transport_id,)
        self._log = log

    def keep(self, name: str, sock: socket.socket) -> None:
        """Keep a connection."""
        self._senders.keep(self._index, self._key, b"c" + name.encode(), sock)

    def drop(self, name: str) -> None:
        """Keep a connection no longer."""
        self._senders.drop(self._index, self._key, b"c" + name.encode())

    def forget(self) -> None:
        """Keep nothing any more."""
        self._senders.forget(self._index, self._key, self._log)


def connections(former: FormerSession) -> Iterator[tuple[str, socket.socket]]:
    """Name the connections of the former incarnation."""
    for part, sock in former.sockets.items():
        if part != LISTENER:
            yield part[1:].decode(), sock


class SentRecords:
    """Shows a ring of records as what a session has sent."""

    def __init__(self, memory: RecordWriter) -> None:
        self._memory = memory

    def newest_first(self) -> Iterator[LogRecord]:
        for record, data in self._memory.newest_first():
            yield LogRecord(record.number, 1, record.turn, len(data), 0, _NONE, _NONE, data)
