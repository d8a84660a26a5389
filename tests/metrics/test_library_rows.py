"""Rows of what the UM library counts: read at any time, whole over kill -9, and never lower than they were."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dro.errors import ResourceError
from dro.metrics import library_rows as module
from dro.metrics.library import CONTEXT, EVENT_QUEUE, NO_SAMPLE, RECEIVER, SOURCE, library_figures
from dro.metrics.library_rows import (
    HEADER_CELLS,
    LAYOUT_VERSION,
    QUEUE,
    RECEIVING,
    ROW_CELLS,
    SENDING,
    STEP,
    LibraryKey,
    LibraryRow,
    LibraryRows,
    read_library,
)

INSTANCE: Final = b"instance"
SOURCE_STRING: Final = "LBTRM:10.0.0.1:14390:a1b2c3d4:224.1.1.1:14400"
SESSION: Final = LibraryKey(RECEIVER, RECEIVING, "lbtrm", SOURCE_STRING)
ROUNDS: Final = 12
PATIENCE_S: Final = 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "library.1"


@pytest.fixture
def rows(path: Path) -> Iterator[LibraryRows]:
    made = LibraryRows.open(path)
    yield made
    made.close()


def numbers(key: LibraryKey, first: int = 1) -> list[int]:
    """For each figure another one."""
    return list(range(first, first + len(library_figures()[key.kind, key.transport])))


def show(rows: LibraryRows, key: LibraryKey, values: Sequence[int] = ()) -> None:
    rows.show(key, values or numbers(key), instance=INSTANCE, domain_id=7)


def row(path: Path, key: LibraryKey) -> LibraryRow:
    (found,) = [row for row in read_library(path) if row.key == key]
    return found


def test_every_kind_of_object_is_read_as_it_was_shown(path: Path, rows: LibraryRows) -> None:
    parts = {CONTEXT: SENDING, EVENT_QUEUE: QUEUE, SOURCE: SENDING, RECEIVER: RECEIVING}
    keys = [
        LibraryKey(kind, parts[kind], transport, transport and SOURCE_STRING) for kind, transport in library_figures()
    ]
    for n, key in enumerate(keys):
        rows.show(key, numbers(key, 100 * n), instance=INSTANCE, domain_id=n, is_mim=key.kind == SOURCE)
    read = {row.key: row for row in read_library(path)}
    assert list(read) == keys
    for n, (key, found) in enumerate(read.items()):
        figures = library_figures()[key.kind, key.transport]
        prefix = f"{key.transport}." if key.transport else ""
        minima = {f.name for f in figures if f.behaviour == "minimum"}
        assert {k.removeprefix(prefix): v for k, v in found.values.items()} == {
            figure.name: value for figure, value in zip(figures, numbers(key, 100 * n), strict=True)
        }, minima
        assert (found.domain_id, found.context_instance, found.is_mim) == (n, INSTANCE, key.kind == SOURCE)
    assert len({found.object_id for found in read.values()}) == len(keys)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("behaviour", ["counter", "total", "gauge", "mean", "minimum", "maximum"])
@pytest.mark.parametrize(("before", "after"), [(5, 3), (3, 5)])
def test_the_next_process_goes_on(path: Path, behaviour: str, before: int, after: int) -> None:
    expected = {
        "counter": before + after, "total": 5, "maximum": 5, "minimum": 3, "gauge": after, "mean": after,
    }[behaviour]  # fmt: skip
    kind, transport, at = next(
        (kind, transport, at)
        for (kind, transport), figures in library_figures().items()
        for at, figure in enumerate(figures)
        if figure.behaviour == behaviour
    )
    key = LibraryKey(kind, RECEIVING, transport)
    seen = []
    for value in (before, after):
        rows = LibraryRows.open(path)
        values = [0] * len(library_figures()[kind, transport])
        values[at] = value
        show(rows, key, values)
        show(rows, key, values)
        rows.close()
        seen.append(row(path, key))
    assert seen[0].object_id == seen[1].object_id
    assert list(seen[1].values.values())[at] == expected


def test_what_the_next_process_has_not_is_taken_out_when_it_knows(path: Path, rows: LibraryRows) -> None:
    other = SESSION._replace(source="LBTRM:10.0.0.2:1:2:224.1.1.1:3")
    show(rows, SESSION)
    show(rows, other)
    following = LibraryRows.open(path)
    show(following, other)
    assert {found.key for found in read_library(path)} == {SESSION, other}, "it may come yet"
    following.forget_former()
    assert [found.key for found in read_library(path)] == [other]
    following.forget_former()
    show(following, SESSION)
    assert list(row(path, SESSION).values.values()) == numbers(SESSION), "nothing of the former one is left"
    following.close()


def test_an_object_that_ended_and_came_again_is_another_one(path: Path, rows: LibraryRows) -> None:
    show(rows, SESSION)
    before = row(path, SESSION)
    rows.free(SESSION)
    rows.free(SESSION)
    assert read_library(path) == []
    show(rows, SESSION)
    after = row(path, SESSION)
    assert after.object_id != before.object_id
    assert after.values == before.values, "it counts from nothing"


def test_a_minimum_of_nothing_is_the_highest_number_from_the_beginning(
    path: Path, rows: LibraryRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed between the first two steps leaves a row that the next one can go on with."""
    claim = rows._claim

    def cut_off(key: LibraryKey, *, is_mim: bool) -> None:
        claim(key, is_mim=is_mim)
        raise KeyboardInterrupt

    monkeypatch.setattr(rows, "_claim", cut_off)
    with pytest.raises(KeyboardInterrupt):
        show(rows, SESSION)
    values = row(path, SESSION).values
    assert {name for name, value in values.items() if value} == {"lbtrm.nak_stm_min", "lbtrm.nak_tx_min"}
    assert values["lbtrm.nak_stm_min"] == NO_SAMPLE


def test_memory_comes_in_steps_and_what_has_none_is_counted_once(
    path: Path, rows: LibraryRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.stat().st_blocks
    keys = [SESSION._replace(source=str(n)) for n in range(STEP + 2)]
    for key in keys[:STEP]:
        show(rows, key)
    assert path.stat().st_blocks * 512 < path.stat().st_size / 100
    assert path.stat().st_blocks > before

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        for _ in range(3):
            for key in keys[STEP:]:
                show(rows, key)
        assert rows.not_shown == 2
        rows.free(keys[0])
        show(rows, keys[STEP])
    assert {found.key for found in read_library(path)} == {*keys[1 : STEP + 1]}
    show(rows, keys[STEP + 1])
    assert len(read_library(path)) == STEP + 1


def test_there_are_no_more_rows_than_the_limit(path: Path, rows: LibraryRows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS_MAX", 2 * STEP)
    for n in range(2 * STEP + 3):
        show(rows, SESSION._replace(source=str(n)))
    assert len(read_library(path)) == 2 * STEP
    assert rows.not_shown == 3
    for n in range(2 * STEP, 2 * STEP + 3):  # sessions that end leave nothing behind
        rows.free(SESSION._replace(source=str(n)))
    assert not rows._left_out
    assert rows.not_shown == 3


def test_no_memory_for_the_file_is_told_with_a_remedy(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ResourceError, match=r"library\.1") as told:
        LibraryRows.open(path)
    assert told.value.remedy
    assert not path.exists()


@pytest.mark.parametrize("damage", ["size", "magic", "layout", "count"])
def test_what_is_no_such_file_is_refused_by_readers_and_replaced_by_the_writer(path: Path, damage: str) -> None:
    made = LibraryRows.open(path)
    show(made, SESSION)
    made.close()
    with path.open("r+b") as file:
        if damage == "size":
            file.truncate(100)
        else:
            file.seek({"magic": 0, "layout": 8, "count": 16}[damage])
            file.write((LAYOUT_VERSION + (1 << 40)).to_bytes(8, "little"))
    with pytest.raises(ResourceError, match="layout"):
        read_library(path)
    made = LibraryRows.open(path)
    assert read_library(path) == []
    show(made, SESSION)
    assert row(path, SESSION).values
    made.close()
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_file_that_is_not_there_is_refused(path: Path) -> None:
    with pytest.raises(ResourceError, match="cannot open"):
        read_library(path)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2 * ROW_CELLS - 1), st.integers(0, NO_SAMPLE)), max_size=20))
def test_whatever_is_in_the_rows_they_are_read_and_gone_on_with(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.mktemp("rows") / "library.1"
    made = LibraryRows.open(path)
    show(made, SESSION)
    show(made, LibraryKey(CONTEXT, RECEIVING))
    for at, value in damage:
        made._cells[HEADER_CELLS + at] = value
    made.close()
    assert len(read_library(path)) <= 2
    following = LibraryRows.open(path)
    show(following, SESSION)
    following.forget_former()
    assert [found.key for found in read_library(path)] == [SESSION]
    following.close()


def _write_until_killed(path: Path) -> None:
    """Show two objects with values that belong together, and a third one that comes and goes."""
    rows = LibraryRows.open(path)
    count = 0
    while True:
        count += 1
        for key in (SESSION, LibraryKey(CONTEXT, RECEIVING)):
            show(rows, key, [count] * len(numbers(key)))
        passing = SESSION._replace(source=f"passing {count % 3}")
        show(rows, passing, [count] * len(numbers(passing)))
        rows.free(passing)


def _counters(found: LibraryRow) -> list[int]:
    figures = library_figures()[found.kind, found.transport]
    return [v for f, v in zip(figures, found.values.values(), strict=True) if f.behaviour == "counter"]


def test_a_writer_that_is_killed_anywhere_leaves_whole_rows_that_never_fall(path: Path) -> None:
    """Read while it writes, and after each kill -9; the next writer goes on."""
    rng = random.Random(5)
    last: dict[LibraryKey, int] = {}
    ids: dict[LibraryKey, int] = {}

    def check() -> int:
        read = 0
        for found in read_library(path):
            counters = _counters(found)
            assert len(set(counters)) == 1, f"torn: {found}"
            if not found.source.startswith("passing"):
                assert counters[0] >= last.get(found.key, 0), found.key
                last[found.key] = counters[0]
                assert ids.setdefault(found.key, found.object_id) == found.object_id
                read += 1
        return read

    for _ in range(ROUNDS):
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                _write_until_killed(path)
            os._exit(1)
        try:
            begun = sum(last.values())
            deadline = time.monotonic() + PATIENCE_S
            moves = rng.randrange(1, 60)
            while moves:
                assert time.monotonic() < deadline, "nothing is written"
                if path.exists() and check() and sum(last.values()) > begun:
                    begun = sum(last.values())
                    moves -= 1
        finally:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL
        assert check() == 2
    assert len(ids) == 2
