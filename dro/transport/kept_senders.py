"""Sender sessions that outlive their process: what the former incarnation has left, and what this one leaves.

A session leaves its sockets, and a log of what it has sent (`dro.kept.log`), which has the name of its transport index.
State: those of the former incarnation that nobody has taken.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from dro.kept.log import LogRecord, SharedLog
from dro.kept.store import Kept
from dro.sqn import MASK
from dro.transport.runs import KIND_DATA, MINIMAL_BYTES, ROWS, RunTable, read_messages

Runs = list[tuple[int, int]]
"""(first topic sqn, fragments)"""
_ROW: Final = b"sent"
PIECES: Final = 256
"""Of a log, at least the newest so many are looked through for what was sent."""


@dataclass(slots=True, eq=False)
class FormerSession:
    """Holds what a session has left; `sockets` by part."""

    sockets: dict[bytes, socket.socket]
    log: SharedLog

    def close(self) -> None:
        """Close the sockets, which nobody goes on with."""
        for sock in self.sockets.values():
            sock.close()


class SentLog(Protocol):
    """Shows what was sent."""

    def newest_first(self) -> Iterator[LogRecord]:
        """Read the records, back to the oldest. Raises: DecodeError."""


class SentBefore:
    """Knows what the former incarnation has sent on one session, by topic index."""

    def __init__(self, log: SentLog, header: int, former_turn: int) -> None:
        """Read it out of a log, whose pieces have `header` bytes in front of messages. Raises: DecodeError.

        Only what was sent last: what siblings give once more is of the turn that was not finished.
        """
        self._runs: dict[int, Runs] = {}
        records: list[LogRecord] = []
        pieces = 0
        for record in log.newest_first():
            records.append(record)
            pieces += record.pieces
            if pieces >= PIECES and record.turn <= former_turn:
                break
        table = RunTable()
        for record in reversed(records):
            for number in range(record.pieces):
                begin, end = record.place(number)
                if table.room * MINIMAL_BYTES < end - begin:
                    self._note(table)
                    table = RunTable(max(ROWS, (end - begin) // MINIMAL_BYTES + 1))
                read_messages(record.data, begin + header, end, 0, table)
            self._note(table)
            table.clear()

    def _note(self, table: RunTable) -> None:
        for run in table:
            if run.kind == KIND_DATA:
                runs = self._runs.setdefault(run.topic_index, [])
                if runs and runs[-1][0] + runs[-1][1] & MASK == run.first_sqn:
                    runs[-1] = runs[-1][0], runs[-1][1] + run.fragments
                else:
                    runs.append((run.first_sqn, run.fragments))

    def of(self, topic_index: int) -> Runs:
        """Return what was sent on that topic index, in order."""
        return self._runs.get(topic_index, [])


class KeptSenders:
    """The sessions of one kind. Each has a transport index, and a key of numbers by which a new source finds it."""

    def __init__(self, kept: Kept, kind: bytes) -> None:
        self._kept = kept
        self._kind = kind
        self._waiting: dict[int, tuple[int, ...]] = {}
        self._parts: dict[int, list[bytes]] = {}  # of sessions that wait, and of those that were kept
        for name in kept.sockets.names():
            found, *numbers, part = name.split(b" ")
            if found == kind:
                index, *key = map(int, numbers)
                self._waiting[index] = tuple(key)
                self._parts.setdefault(index, []).append(part)

    @property
    def keeps(self) -> bool:
        """Whether sessions outlive this process."""
        return self._kept.rows is not None

    def key_of(self, transport_index: int) -> tuple[int, ...] | None:
        """Return the key of a session that waits."""
        return self._waiting.get(transport_index)

    def waiting_at(self, key: tuple[int, ...]) -> int | None:
        """Return the transport index of the session that waits under that key."""
        return next((index for index, found in self._waiting.items() if found == key), None)

    def take(self, transport_index: int, parts: Iterable[bytes], capacity: int) -> FormerSession | None:
        """Take a session that waits; None, and it is forgotten, when something of it is missing or cannot be read."""
        key = self._waiting.pop(transport_index)
        prefix = self._prefix(transport_index, key)
        held = self._parts[transport_index]
        found = {part: sock for part in held if (sock := self._kept.sockets.take(prefix + part)) is not None}
        log = self._open_log(transport_index, capacity)
        if log is not None and log.goes_on and all(part in found for part in parts):
            return FormerSession(found, log)
        for sock in found.values():
            sock.close()
        self.forget(transport_index, key, log)
        return None

    def log(self, transport_index: int, capacity: int, after: int, mark: int) -> SharedLog | None:
        """Make the log of a new session; None when it does not outlive this process."""
        log = self._open_log(transport_index, capacity)
        if log is not None:
            log.begin(after, mark)
        return log

    def _open_log(self, transport_index: int, capacity: int) -> SharedLog | None:
        rows, folder = self._kept.rows, self._kept.folder
        row = rows.row(_ROW, b"%d" % transport_index) if rows is not None else None
        if row is None or folder is None:
            return None
        return SharedLog.open(folder / f"sent.{transport_index}", capacity, row, self._kept.turn)

    def keep(self, transport_index: int, key: tuple[int, ...], part: bytes, sock: socket.socket) -> None:
        """Keep a socket of a session."""
        self._parts.setdefault(transport_index, []).append(part)
        self._kept.sockets.keep(self._prefix(transport_index, key) + part, sock)

    def drop(self, transport_index: int, key: tuple[int, ...], part: bytes) -> None:
        """Keep one socket of a session no longer."""
        with contextlib.suppress(KeyError, ValueError):
            self._parts[transport_index].remove(part)
        self._kept.sockets.drop(self._prefix(transport_index, key) + part)

    def forget(self, transport_index: int, key: tuple[int, ...], log: SharedLog | None) -> None:
        """Keep nothing of a session any more: it ends with its process."""
        for part in self._parts.pop(transport_index, ()):
            self._kept.sockets.drop(self._prefix(transport_index, key) + part)
        if log is not None:
            log.close()
        if self._kept.rows is not None:  # behind the log: `_forget_logs` finds it by its row
            self._kept.rows.free(_ROW, b"%d" % transport_index)

    def forget_waiting(self) -> None:
        """Forget the sessions that nobody has taken: no source needs them any more."""
        for index, key in list(self._waiting.items()):
            former = self.take(index, (), 0)
            if former is not None:
                former.close()
                self.forget(index, key, former.log)
        self._forget_logs()

    def _forget_logs(self) -> None:
        """Remove the logs of sessions whose sockets were not kept, so that nobody can take them."""
        rows, folder = self._kept.rows, self._kept.folder
        if rows is None or folder is None:
            return
        for path in folder.glob("sent.*"):
            name = path.suffix[1:].encode()
            if rows.former(_ROW, name) is not None:  # nobody has asked for it in this life
                path.unlink(missing_ok=True)
                rows.free(_ROW, name)

    def _prefix(self, transport_index: int, key: tuple[int, ...]) -> bytes:
        return b" ".join([self._kind, *(b"%d" % number for number in (transport_index, *key)), b""])
