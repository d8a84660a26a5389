"""A log that the next process goes on with: whether its memory is there before it is written to."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from dro.kept.log import SharedLog
from dro.kept.rows import KeptRows
from dro.kept.store import TurnNumber

CAPACITY = 300 << 10


def opened(folder: Path, rows: KeptRows) -> SharedLog:
    row = rows.row(b"sent", b"1")
    assert row is not None
    log = SharedLog.open(folder / "sent.1", CAPACITY, row, TurnNumber())
    assert log is not None
    return log


def test_what_lies_behind_the_longest_way_round_gets_memory_first(tmp_path: Path) -> None:
    """It went round without the last bytes, so these have none: on a full machine a write there would kill."""
    rows = KeptRows.open(tmp_path / "rows")
    log = opened(tmp_path, rows)
    log.begin(0, 7)
    for first, size in enumerate((100 << 10, 100 << 10, 150 << 10)):
        assert log.append(first, 1, size, 0, memoryview(bytes(size)), first + 1)
    file = tmp_path / "sent.1"
    assert file.stat().st_blocks * 512 < CAPACITY
    rows.close()
    rows = KeptRows.open(tmp_path / "rows")
    log = opened(tmp_path, rows)
    assert (log.after, log.mark) == (3, 7)
    assert log.append(3, 1, 1000, 0, memoryview(bytes(1000)), 4)
    assert log.append(4, 1, 130 << 10, 0, memoryview(bytes(130 << 10)), 5)
    assert file.stat().st_blocks * 512 >= log._extent >= (280 << 10)
    log.close()
    rows.close()


@pytest.mark.parametrize(("size", "left"), [(64 << 20, 16 << 20), (8 << 30, 64 << 20)])
def test_a_log_leaves_memory_to_the_rings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, left: int
) -> None:
    """A ring that has given its memory back, and gets none, loses all data."""
    free = left + (200 << 10)

    def fstatvfs(_: int) -> SimpleNamespace:
        return SimpleNamespace(f_bavail=free >> 12, f_blocks=size >> 12, f_frsize=4096)

    monkeypatch.setattr(os, "fstatvfs", fstatvfs)
    rows = KeptRows.open(tmp_path / "rows")
    log = opened(tmp_path, rows)
    log.begin(0, 7)
    assert log.append(0, 1, 1000, 0, memoryview(bytes(1000)), 1)
    free -= 128 << 10
    assert not log.append(1, 1, 128 << 10, 0, memoryview(bytes(128 << 10)), 2)
    log.close()
    rows.close()
