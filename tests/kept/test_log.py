"""A log that outlives its process: the newest records, whole and in order, wherever its writer was killed."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dro.errors import DecodeError
from dro.kept import log as module
from dro.kept.log import SharedLog
from dro.kept.rows import KeptRow, KeptRows
from dro.kept.store import TurnNumber
from tests.fakes.kept import Killed

CAPACITY = 4096
HEAD = 56
MARK = 4711
ROW = b"log"


@pytest.fixture(autouse=True, scope="module")
def small_logs() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MIN_CAPACITY", CAPACITY)
        yield


class DeadlyRow:
    """In place of a row: lets `writes` pass, then the process ends."""

    def __init__(self, row: KeptRow, writes: int) -> None:
        self.row = row
        self.writes = writes

    def write(self, *values: int) -> None:
        if not self.writes:
            raise Killed
        self.writes -= 1
        self.row.write(*values)


class LoggedPieces(NamedTuple):
    """A record as it should be read."""

    first: int
    turn: int
    pieces: list[bytes]
    payloads: list[int]
    nbytes: int  # in the log


def read(log: SharedLog) -> list[LoggedPieces]:
    """All that a log has, the oldest first."""
    found = []
    for record in log.newest_first():
        places = [record.place(number) for number in range(record.pieces)]
        pieces = [bytes(record.data[begin:end]) for begin, end in places]
        assert all(len(piece) == end - begin for piece, (begin, end) in zip(pieces, places, strict=True))
        if record.size:
            payloads = [record.payload] * record.pieces
        else:
            payloads = [after - before for before, after in pairwise([0, *record.paid])]
        found.append(LoggedPieces(record.first, record.turn, pieces, payloads, 0))
    return found[::-1]


def let_go(log: SharedLog) -> None:
    """Forget a log as a dying process does: the file stays."""
    os.close(log._fd)
    with suppress(BufferError):
        log._mv.release()
        log._area.close()


class LogWriter:
    """One process after the other that writes to the same log."""

    def __init__(self, folder: Path, capacity: int = CAPACITY) -> None:
        self.path = folder / "log"
        self._rows_path = folder / "rows"
        self._capacity = capacity
        self.turn = TurnNumber()
        self.number = 0  # what follows
        self.model: list[LoggedPieces] = []
        self.cut_short: list[LoggedPieces] = []  # as they were logged; a byte that says how many count may have changed
        self.is_newest = False  # whether the newest record was written in this life
        self.largest = 0  # of the records that room was made for, also of those that were not written
        self.begin()
        self.log.begin(0, MARK)

    def begin(self) -> None:
        self.rows = KeptRows.open(self._rows_path)
        log = self.open(self.rows)
        assert log is not None
        self.log = log
        self.is_newest = False

    def open(self, rows: KeptRows) -> SharedLog | None:
        row = rows.row(ROW, b"")
        assert row is not None
        return SharedLog.open(self.path, self._capacity, row, self.turn)

    def die(self) -> None:
        let_go(self.log)
        self.rows.close()

    def next_life(self) -> None:
        self.die()
        self.begin()
        assert self.log.mark == MARK
        assert self.log.after == self.number

    def append(self, count: int, size: int, payload: int) -> bool:
        data = bytes((self.number + i) & 0xFF for i in range(count) for _ in range(size))
        taken = self.log.append(self.number, count, size, payload, memoryview(data), self.number + count)
        if taken:
            pieces = [data[at : at + size] for at in range(0, count * size, size)]
            self._note(LoggedPieces(self.number, self.turn.now, pieces, [payload] * count, HEAD + len(data)))
        return taken

    def append_mixed(self, sizes: Sequence[int]) -> bool:
        pieces = [bytes([(self.number + i) & 0xFF]) * size for i, size in enumerate(sizes)]
        payloads = [size // 2 for size in sizes]
        data, count = b"".join(pieces), len(sizes)
        ends = [*accumulate(sizes)]
        taken = self.log.append_mixed(self.number, ends, payloads, memoryview(data), self.number + count)
        if taken:
            self._note(LoggedPieces(self.number, self.turn.now, pieces, payloads, HEAD + 8 * count + len(data)))
        return taken

    def _note(self, entry: LoggedPieces) -> None:
        self.model.append(entry)
        self.is_newest = True
        self.largest = max(self.largest, entry.nbytes + 8)
        self.number += len(entry.pieces)

    def cut(self, count: int) -> None:
        """Take back what was not sent of what was logged just now."""
        if self.is_newest:
            entry = self.model[-1]
            self.cut_short.append(entry)
            count = min(count, len(entry.pieces))
            self.number = entry.first + count
            self.model[-1] = entry._replace(pieces=entry.pieces[:count], payloads=entry.payloads[:count])
            self.log.cut(count, self.number)

    def killed_in(self, writes: int, count: int, size: int) -> None:
        """The process ends in an append, behind so many writes to the row."""
        row, model, number = self.log._row, list(self.model), self.number
        self.largest = max(self.largest, HEAD + count * size + 8)
        self.log._row = DeadlyRow(row, writes)  # type: ignore[assignment]
        try:
            self.append(count, size, 0)
        except Killed:
            self.model, self.number = model, number
            self.next_life()
        else:
            self.log._row = row

    def read_anew(self) -> list[LoggedPieces]:
        """What a next process finds, with the numbers of bytes of the model."""
        rows = KeptRows.open(self._rows_path)
        log = self.open(rows)
        assert log is not None
        found = read(log)
        assert log.after == self.number
        assert log.first == (found[0].first if found else self.number)
        let_go(log)
        rows.close()
        own = self.model[len(self.model) - len(found) :]
        return [entry._replace(nbytes=mine.nbytes) for entry, mine in zip(found, own, strict=True)]

    def check(self) -> None:
        """The newest are there, and no more than room had to be made for has gone."""
        found = self.read_anew()
        assert found == self.model[len(self.model) - len(found) :]
        if len(found) < len(self.model):
            assert sum(entry.nbytes + 8 for entry in found) > CAPACITY - 3 * self.largest


@contextmanager
def a_writer() -> Iterator[LogWriter]:
    with tempfile.TemporaryDirectory() as name:
        made = LogWriter(Path(name))
        try:
            yield made
        finally:
            made.die()


SIZES = st.integers(1, 300)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 6), SIZES, st.integers(0, 50)),
        st.tuples(st.just("append_mixed"), st.lists(SIZES, min_size=1, max_size=6)),
        st.tuples(st.just("cut"), st.integers(0, 6)),
        st.tuples(st.just("next_life")),
        st.tuples(st.just("killed_in"), st.integers(0, 1), st.integers(1, 6), SIZES),
    ),
    max_size=60,
)


@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_a_next_process_finds_the_newest_records_whole_and_in_order(steps: list[tuple[str, ...]]) -> None:
    with a_writer() as writer:
        for name, *arguments in steps:
            writer.turn.now += 1
            getattr(writer, name)(*arguments)
            writer.check()


@pytest.mark.parametrize("size", [1, 7, 50, 129, 977, CAPACITY - HEAD])
def test_many_rounds_through_a_small_log(size: int, tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    for n in range(10 * CAPACITY // (HEAD + size)):
        assert writer.append(1, size, 0)
        if n % 7 == 0:
            writer.next_life()
        writer.check()
    assert len(writer.read_anew()) < len(writer.model)
    writer.die()


def test_a_record_larger_than_the_log_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    assert writer.append(2, 100, 90)
    assert not writer.append(1, CAPACITY, 0)
    assert not writer.append_mixed([CAPACITY])
    assert writer.read_anew() == writer.model
    writer.die()


def filled(folder: Path) -> LogWriter:
    """A log that has gone round, of records of both shapes."""
    writer = LogWriter(folder)
    for n in range(24):
        assert writer.append(3, 60 + n, 20)
        assert writer.append_mixed([30, 1 + n, 70])
    writer.cut(2)
    return writer


def heads_and_tables(writer: LogWriter) -> list[int]:
    """Where in the file the bytes lie that are not data."""
    places: list[int] = []
    log = writer.log
    for record in log.newest_first():
        with memoryview(log._area) as whole:
            at = next(
                at for at in range(0, CAPACITY - HEAD, 8)
                if int.from_bytes(whole[at + 16 : at + 24], "little") == record.first and
                int.from_bytes(whole[at + 32 : at + 40], "little") == record.turn
            )  # fmt: skip
        places += range(at, at + HEAD + (0 if record.size else 8 * 3))
    return places


def splits(entries: Sequence[LoggedPieces]) -> set[tuple[int, ...]]:
    """The sizes of the first pieces of each record, however many of them count."""
    return {tuple(map(len, entry.pieces[:count])) for entry in entries for count in range(len(entry.pieces) + 1)}


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_a_changed_byte_of_a_head_or_table_never_splits_a_record_wrongly(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        writer = filled(Path(name))
        at = data.draw(st.sampled_from(heads_and_tables(writer)))
        with writer.path.open("r+b") as file:
            file.seek(at)
            before = file.read(1)[0]
            file.seek(at)
            file.write(bytes([before ^ data.draw(st.integers(1, 255))]))
        judge(writer)
        writer.die()


@settings(max_examples=100, deadline=None)
@given(st.integers(0, CAPACITY - 1))
def test_nor_does_a_file_whose_end_is_gone(length: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        writer = filled(Path(name))
        content = writer.path.read_bytes()[:length]
        writer.path.write_bytes(content + bytes(CAPACITY - length))
        judge(writer)
        writer.die()


def judge(writer: LogWriter) -> None:
    """Refuse the log, or find nothing but whole records in it, up to one that is refused."""
    rows = KeptRows.open(writer.path.with_name("rows"))
    log = writer.open(rows)
    if log is not None:
        known = splits([*writer.model, *writer.cut_short])
        try:
            for record in log.newest_first():
                places = [record.place(number) for number in range(record.pieces)]
                assert tuple(len(record.data[begin:end]) for begin, end in places) in known
        except DecodeError:
            pass
        let_go(log)
    rows.close()


def refuse_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)


def test_without_room_a_record_is_refused_and_those_before_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FIRST_BYTES", 1024)
    writer = LogWriter(tmp_path)
    assert writer.append(1, 500, 0)
    refuse_memory(monkeypatch)
    assert writer.append(1, 100, 0), "there is room for it already"
    assert not writer.append(1, 500, 0)
    assert not writer.append_mixed([400, 100])
    monkeypatch.undo()
    assert writer.read_anew() == writer.model
    writer.die()


def test_what_was_left_out_at_the_end_has_no_memory_in_the_next_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that did not fit there begins at the front: memory behind it was never asked for."""
    monkeypatch.setattr(module, "_FIRST_BYTES", 256)
    writer = LogWriter(tmp_path)
    assert writer.append(1, 1500, 0)
    assert writer.append(1, CAPACITY - 1200, 0)
    writer.next_life()
    refuse_memory(monkeypatch)
    assert not writer.append(1, 1000, 0)
    writer.die()


@pytest.mark.parametrize("length", [None, 0, 200, 3000])
def test_a_row_without_its_file_or_with_a_part_of_it_gives_no_log(tmp_path: Path, length: int | None) -> None:
    writer = filled(tmp_path)
    if length is None:
        writer.path.unlink()
    else:
        os.truncate(writer.path, length)
    rows = KeptRows.open(tmp_path / "rows")
    assert writer.open(rows) is None
    assert not writer.path.exists(), "what cannot be gone on with is removed"
    rows.close()
    writer.die()


def test_no_file_no_log(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    writer.path = tmp_path / "no folder" / "log"
    assert writer.open(writer.rows) is None
    writer.die()


def test_what_was_read_stays_when_the_log_is_closed(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path)
    assert writer.append(1, 100, 0)
    record = next(writer.log.newest_first())
    writer.log.close()
    assert not writer.path.exists()
    assert bytes(record.data) == bytes(100)
    writer.rows.close()


def test_what_a_session_may_not_send_yet_is_not_in_the_record(tmp_path: Path) -> None:
    """A rate limit lets the first of some datagrams through; the payloads of all are known."""
    rows = KeptRows.open(tmp_path / "rows")
    log = SharedLog.open(tmp_path / "log", CAPACITY, rows.row(ROW, b""), TurnNumber())  # type: ignore[arg-type]
    assert log is not None
    log.begin(7, 0)
    assert log.append_mixed(7, [30], [10, 20, 30], memoryview(bytes(30)), 8)
    (record,) = log.newest_first()
    assert (record.first, record.pieces, [*record.ends], [*record.paid]) == (7, 1, [30], [10])
    del record
    log.close()
    rows.close()


def test_the_owner_lets_go_of_records_from_the_oldest_on(tmp_path: Path) -> None:
    rows = KeptRows.open(tmp_path / "rows")
    log = SharedLog.open(tmp_path / "log", CAPACITY, rows.row(ROW, b""), TurnNumber())  # type: ignore[arg-type]
    assert log is not None
    log.begin(1, 0)
    for number in range(1, 200):  # several times round
        assert log.append(number, 1, 100, 0, memoryview(bytes([number]) * 100), number + 1)
        log.let_go(number - 2)
        assert [record.first for record in log.newest_first()] == [*range(number, max(0, number - 3), -1)]
        assert log.first == max(1, number - 2)
    log.let_go(200)
    assert (list(log.newest_first()), log.first) == ([], 200)
    log.close()
    rows.close()
