"""Logs what waits in a lane in shared memory: the next incarnation of a portal that is killed sends it.

A record for each `Waiting`, in the order in which they came, with the handles of the sources at the sibling that they
are from. It is let go of when all of it has been sent. The next incarnation takes it as if the sibling announced it
once more, before what the sibling has announced since: what was sent of it is a duplicate. A record counts only when
the turn that it is of was finished: else its descriptors are taken once more.

    log        `waits.<number>`, with a row of that name; one more row has the last number: none is used twice
    `taken`    a row for each sibling: logs from this number on hold what is still to be sent of it
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

from dro.errors import DecodeError
from dro.kept.log import SharedLog
from dro.kept.store import Kept
from dro.transport.runs import FRAGMENTS, KIND_SHIFT, KIND_TSNI, LENGTH, ROW, RunTable
from portals.datapath.outgoing import Lane, Waiting

_LOG: Final = b"waits"
_TAKEN: Final = b"waits-taken"
_FILE: Final = "waits"
_HEAD: Final = Struct("=IIQQ")  # sibling, rows, incarnation of its ring, descriptors of it that were taken by then
MORE_BYTES: Final = 1 << 20
"""Is the room of a log beyond `<max-queue>`, for tables."""
KEPT_BYTES: Final = 128 << 10
"""A larger log is removed when nothing waits."""

Place = tuple[int, int]
"""Incarnation of a sibling's ring, descriptors taken of it."""


class Waited(NamedTuple):
    """Holds what waited in a former incarnation; the table has handles, the first fragment is in front in `data`."""

    place: Place
    table: RunTable
    data: bytearray


class SharedLaneLog:
    """Implements `LaneLog`: the log of one lane, while something waits there."""

    def __init__(self, log: SharedLog, forget: Callable[[], object]) -> None:
        self._log = log
        self._forget = forget
        self._next = self._oldest = 1

    def add(self, waiting: Waiting, lane: Lane, place: Place) -> None:
        """Log it, and note its number in it; without memory it is lost if the process is killed."""
        record = _record(waiting, lane, place)
        if self._log.append(self._next, 1, len(record), 0, memoryview(record), self._next + 1):
            waiting.number = self._next
            self._next += 1

    def keep_from(self, number: int) -> None:
        """Let go of what was logged before that one."""
        if number > self._oldest:
            self._oldest = number
            self._log.let_go(number)

    def is_over(self) -> bool:
        """Let go of all, as nothing waits; whether the log should be closed, as it has grown large."""
        self.keep_from(self._next)
        return self._log.extent > KEPT_BYTES

    def close(self) -> None:
        self._log.close()
        self._forget()


class WaitingLogs:
    """All of a portal: those that it writes, and what those of the former incarnation hold."""

    def __init__(self, kept: Kept, max_bytes: int) -> None:
        self._kept = kept
        self._max_bytes = max_bytes
        self._former: list[tuple[bytes, SharedLog]] = []
        self._numbers = None if kept.rows is None else kept.rows.row(_LOG, b"")
        former = None if self._numbers is None else self._numbers.former
        self._number = 0 if former is None else former.a
        self._first = self._number + 1  # of this incarnation
        self.waited: dict[int, list[Waited]] = {}  # by sibling, the oldest first
        if kept.folder is not None:
            for number in sorted(int(path.suffix[1:]) for path in kept.folder.glob(f"{_FILE}.*")):
                self._read(number)

    def _open(self, number: int) -> SharedLog | None:
        rows, folder = self._kept.rows, self._kept.folder
        row = None if rows is None else rows.row(_LOG, b"%d" % number)
        if row is None or folder is None:
            return None
        return SharedLog.open(folder / f"{_FILE}.{number}", self._max_bytes * 2 + MORE_BYTES, row, self._kept.turn)

    def _read(self, number: int) -> None:
        rows = self._kept.rows
        if rows is None or (log := self._open(number)) is None:
            return
        self._former.append((b"%d" % number, log))
        try:
            records = [_read(record.data) for record in log.newest_first()] if log.goes_on else []
        except DecodeError:
            return
        for worker, waited in reversed(records):
            row = rows.row(_TAKEN, b"%d" % worker)
            if row is not None and (row.former is None or row.former.a <= number):
                self.waited.setdefault(worker, []).append(waited)

    def total(self, worker: int) -> tuple[int, int]:
        """Count fragments and bytes that waited of a sibling."""
        found = [waited.table.total() for waited in self.waited.get(worker, ())]
        return sum(fragments for fragments, _ in found), sum(nbytes for _, nbytes in found)

    def finished(self, worker: int, place: Place | None) -> tuple[int, int]:
        """Forget what comes once more, as it was taken of the sibling behind that place; count what is left as `total`.

        None: nothing is left.
        """
        waited = self.waited.pop(worker, [])
        if place is not None and (left := [each for each in waited if each.place <= place]):
            self.waited[worker] = left
        return self.total(worker)

    def on_taken(self, worker: int) -> None:
        """Note that what waited of a sibling was sent, or waits again."""
        rows = self._kept.rows
        if rows is not None and (row := rows.row(_TAKEN, b"%d" % worker)) is not None:
            row.write(self._first)
        if not self.waited:
            self.forget_former()

    def forget_former(self) -> None:
        """Remove the logs of the former incarnation."""
        for name, log in self._former:
            log.close()
            self._free(name)
        self._former.clear()
        self.waited.clear()

    def _free(self, name: bytes) -> None:
        if self._kept.rows is not None:
            self._kept.rows.free(_LOG, name)

    def new_log(self) -> SharedLaneLog | None:
        """Make the log of a lane; None where nothing outlives the process."""
        if self._numbers is None:
            return None
        self._number += 1
        self._numbers.write(self._number)
        name = b"%d" % self._number
        log = self._open(self._number)
        if log is None:
            self._free(name)
            return None
        log.begin(1, 0)
        return SharedLaneLog(log, lambda: self._free(name))


def _record(waiting: Waiting, lane: Lane, place: Place) -> bytes:
    """Make the record: head, rows, and fragments, one behind the other."""
    view = memoryview(waiting.buffer)
    table = RunTable(waiting.table.rows)
    pieces: list[bytes | memoryview] = [b"", b""]
    end = 0
    for topic, sqn, fragments, offset, length, stride, shape in ROW.iter_unpack(waiting.table.tobytes()):
        proxy = lane.proxies[topic]
        handle = next((h for worker, h in reversed(proxy.feeders) if worker == waiting.worker), None)
        if handle is None:
            continue  # it has another feeder by now: nobody would know it again
        table.put(handle, sqn, fragments, end, length, length, shape & ~0xFF)
        if shape >> KIND_SHIFT != KIND_TSNI:
            if stride == length:
                pieces.append(view[offset : offset + fragments * length])
            else:
                pieces += [view[at : at + length] for at in range(offset, offset + fragments * stride, stride)]
            end += fragments * length
    pieces[0] = _HEAD.pack(waiting.worker, table.rows, *place)
    pieces[1] = bytes(table.tobytes())
    return b"".join(pieces)


def _read(record: memoryview) -> tuple[int, Waited]:
    """Return the sibling, and what waited. Raises: DecodeError."""
    worker, rows, *place = _HEAD.unpack_from(record) if len(record) >= _HEAD.size else (0, 1 << 32, 0, 0)
    start = _HEAD.size + rows * ROW.size
    if start > len(record):
        raise DecodeError("what waited", f"{len(record)} bytes, and {rows} rows")
    table = RunTable(rows + 1)
    table.rows = rows
    table.tobytes()[:] = record[_HEAD.size : start]
    data = bytearray(record[start:])
    needed = sum(n * length for n, length in zip(table.column(FRAGMENTS), table.column(LENGTH), strict=True))
    if needed != len(data):
        raise DecodeError("what waited", f"{len(data)} bytes for {needed}")
    return worker, Waited((place[0], place[1]), table, data)
