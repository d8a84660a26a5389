"""Rows that outlive a process: what a next one finds in whatever file it gets, and what a full machine leaves."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dro.errors import DecodeError, ResourceError
from dro.kept import rows as module
from dro.kept.rows import HEADER_CELLS, LAYOUT_VERSION, ROW_CELLS, STEP, KeptRow, KeptRows, RowValues

KIND = b"test"
U64 = st.integers(0, 0xFFFF_FFFF_FFFF_FFFF)
VALUES = st.tuples(U64, U64, U64, U64)
FIRST_ROW = 8 * HEADER_CELLS
ROW_BYTES = 8 * ROW_CELLS

NO_VALUES = RowValues(0, 0, 0, 0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows"


@pytest.fixture
def rows(path: Path) -> Iterator[KeptRows]:
    made = KeptRows.open(path)
    yield made
    made.close()


def row_of(rows: KeptRows, name: bytes) -> KeptRow:
    row = rows.row(KIND, name)
    assert row is not None
    return row


def found(path: Path, *names: bytes) -> list[RowValues | None]:
    """What a next process finds under these names."""
    rows = KeptRows.open(path)
    try:
        return [rows.former(KIND, name) for name in names]
    finally:
        rows.close()


def test_a_next_process_finds_what_was_written_last(path: Path, rows: KeptRows) -> None:
    first, second = row_of(rows, b"first"), row_of(rows, b"second")
    for n in range(5):
        first.write(n, n + 1, n + 2, n + 3)
    second.write(2**64 - 1)
    assert first.former is None
    assert found(path, b"first", b"second", b"third") == [(4, 5, 6, 7), (2**64 - 1, 0, 0, 0), None]


def test_a_row_goes_on_and_keeps_what_it_held_in_mind(path: Path, rows: KeptRows) -> None:
    row_of(rows, b"name").write(1)
    following = KeptRows.open(path)
    row = row_of(following, b"name")
    assert row.former == (1, 0, 0, 0)
    assert following.former(KIND, b"name") is None, "it was asked for"
    row.write(2)
    assert row_of(following, b"name") is row
    following.close()
    assert found(path, b"name") == [(2, 0, 0, 0)]


def test_kinds_and_names_are_told_apart(path: Path, rows: KeptRows) -> None:
    one, other = rows.row(b"a", b"b"), rows.row(b"a\0b", b"")
    assert one is not None
    assert other is not None
    one.write(1)
    other.write(2)
    following = KeptRows.open(path)
    assert following.former(b"a", b"b") == (1, 0, 0, 0)
    following.close()


def test_a_row_that_was_freed_is_used_again_and_nothing_of_it_is_left(path: Path, rows: KeptRows) -> None:
    for n in range(3):
        row_of(rows, b"%d" % n).write(n + 1, 7, 7, 7)
    rows.free(KIND, b"1")
    rows.free(KIND, b"unknown")
    row_of(rows, b"new")
    assert found(path, b"0", b"1", b"2", b"new") == [(1, 7, 7, 7), None, (3, 7, 7, 7), NO_VALUES]
    in_use = int.from_bytes(path.read_bytes()[16:24], "little")
    assert in_use == 3


def test_what_nobody_asked_for_is_forgotten(path: Path, rows: KeptRows) -> None:
    for n in range(4):
        row_of(rows, b"%d" % n).write(n)
    following = KeptRows.open(path)
    row_of(following, b"1")
    following.free(KIND, b"2")
    following.free_rest()
    following.close()
    assert found(path, b"0", b"1", b"2", b"3") == [None, (1, 0, 0, 0), None, None]


def test_another_layout_is_refused(path: Path, rows: KeptRows) -> None:
    row_of(rows, b"name").write(1)
    with path.open("r+b") as file:
        file.seek(8)
        file.write((LAYOUT_VERSION + 1).to_bytes(8, "little"))
    with pytest.raises(DecodeError, match=f"layout {LAYOUT_VERSION + 1}"):
        KeptRows.open(path)


@pytest.mark.parametrize("size", [1, 100, FIRST_ROW, FIRST_ROW + ROW_BYTES * 3])
def test_a_file_of_another_size_is_refused(path: Path, size: int) -> None:
    path.write_bytes(bytes(size))
    with pytest.raises(DecodeError, match=f"{size} bytes"):
        KeptRows.open(path)


def image(written: list[tuple[int, int, int, int]]) -> tuple[bytes, dict[bytes, list[tuple[int, ...]]]]:
    """A file of three rows, without its empty end, and all that was ever written to each."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "rows"
        rows = KeptRows.open(path)
        history: dict[bytes, list[tuple[int, ...]]] = {b"%d" % n: [NO_VALUES] for n in range(3)}
        made = {each: row_of(rows, each) for each in history}
        for n, values in enumerate(written):
            each = b"%d" % (n % 3)
            made[each].write(*values)
            history[each].append(values)
        with path.open("rb") as file:
            content = file.read(FIRST_ROW + 3 * ROW_BYTES)
        rows.close()
    return content, history


def judge(content: bytes, history: dict[bytes, list[tuple[int, ...]]]) -> None:
    """What is found in that file was written as a whole to that row, or the file is refused, or the row is unknown."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "rows"
        KeptRows.open(path).close()
        with path.open("r+b") as file:
            file.write(content)
        try:
            got = found(path, *history)
        except DecodeError:
            return
    for each, values in zip(history, got, strict=True):
        assert values is None or values in history[each]


@settings(max_examples=150, deadline=None)
@given(st.lists(VALUES, max_size=8), st.data())
def test_a_file_that_was_changed_anywhere_gives_what_was_written_or_is_refused(
    written: list[tuple[int, int, int, int]], data: st.DataObject
) -> None:
    content, history = image(written)
    at = data.draw(st.integers(0, len(content) - 1))
    changed = bytearray(content)
    changed[at] ^= data.draw(st.integers(1, 255))
    judge(bytes(changed), history)


@settings(max_examples=100, deadline=None)
@given(st.lists(VALUES, max_size=8), st.data())
def test_a_file_that_was_cut_anywhere_gives_what_was_written_or_is_refused(
    written: list[tuple[int, int, int, int]], data: st.DataObject
) -> None:
    content, history = image(written)
    cut = data.draw(st.integers(0, len(content) - 1))
    judge(content[:cut] + bytes(len(content) - cut), history)


@pytest.mark.parametrize("stores", range(7))
@pytest.mark.parametrize("writes", [0, 1, 2])
def test_whoever_is_killed_in_a_write_leaves_what_was_there_before(path: Path, stores: int, writes: int) -> None:
    """A write is seven stores: check off, number, values, check on."""
    rows = KeptRows.open(path)
    row = row_of(rows, b"name")
    for n in range(writes):
        row.write(n + 1, n + 2, n + 3, n + 4)
    before = found(path, b"name")
    content = path.read_bytes()[: FIRST_ROW + ROW_BYTES]
    row.write(91, 92, 93, 94)
    after = path.read_bytes()[: FIRST_ROW + ROW_BYTES]
    changed = [at for at in range(0, len(after), 8) if after[at : at + 8] != content[at : at + 8]]
    copy = min(changed)
    order = [copy + 40, copy, *range(copy + 8, copy + 40, 8), copy + 40]
    torn = bytearray(content)
    for n, at in enumerate(order[:stores]):
        torn[at : at + 8] = bytes(8) if n == 0 else after[at : at + 8]
    with path.open("r+b") as file:
        file.write(torn)
    assert found(path, b"name") == before
    rows.close()


def test_a_full_file_gives_no_row_until_one_is_free(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", STEP)
    rows = KeptRows.open(path)
    for n in range(STEP):
        assert rows.row(KIND, b"%d" % n) is not None
    assert rows.row(KIND, b"one more") is None
    rows.free(KIND, b"7")
    assert rows.row(KIND, b"one more") is not None
    rows.close()


def refuse_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)


def test_rows_that_get_no_memory_are_not_there(path: Path, rows: KeptRows, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(STEP):
        row_of(rows, b"%d" % n).write(n)
    refuse_memory(monkeypatch)
    assert rows.row(KIND, b"one more") is None
    monkeypatch.undo()
    row_of(rows, b"one more").write(5)
    assert found(path, b"0", b"one more") == [(0, 0, 0, 0), (5, 0, 0, 0)]


def test_no_memory_at_all_is_an_error_with_a_remedy(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_memory(monkeypatch)
    with pytest.raises(ResourceError, match="no room") as caught:
        KeptRows.open(path)
    assert caught.value.remedy
    with pytest.raises(ResourceError, match="cannot open"):
        KeptRows.open(path.parent / "no folder" / "rows")
