"""Logs of what was sent, where shared memory is scarce: they stay small, and leave room for fragment rings."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from dro.kept.log import MIN_CAPACITY, SharedLog
from dro.kept.rows import KeptRows
from dro.kept.store import TurnNumber

CAPACITY = 8 << 20
PIECE = bytes(1000)


def opened(folder: Path, rows: KeptRows) -> SharedLog:
    row = rows.row(b"sent", b"1")
    assert row is not None
    log = SharedLog.open(folder / "log", CAPACITY, row, TurnNumber())
    assert log is not None
    return log


@pytest.mark.parametrize("left", [MIN_CAPACITY, 3 * MIN_CAPACITY])
def test_a_log_gets_no_larger_than_what_is_to_spare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int) -> None:
    total = 64 << 20
    taken = 0

    def scarce(fd: int) -> SimpleNamespace:
        free = total // 4 + left - os.fstat(fd).st_blocks * 512
        return SimpleNamespace(f_bavail=max(0, free), f_frsize=1, f_blocks=total)

    monkeypatch.setattr(os, "fstatvfs", scarce)
    rows = KeptRows.open(tmp_path / "rows")
    log = opened(tmp_path, rows)
    log.begin(0, 7)
    for sqn in range(5000):
        assert log.append(sqn, 1, len(PIECE), len(PIECE), memoryview(b"%06d" % sqn + PIECE[6:]), sqn + 1)
    taken = os.stat(tmp_path / "log").st_blocks * 512
    assert taken <= left
    again = opened(tmp_path, KeptRows.open(tmp_path / "rows"))
    found = [(record.first, bytes(record.data[:6])) for record in again.newest_first()]
    assert found == [(sqn, b"%06d" % sqn) for sqn in range(4999, 4999 - len(found), -1)]
    assert len(found) * len(PIECE) > left // 3
    assert (again.after, again.mark) == (5000, 7)


def test_a_log_without_any_room_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fstatvfs", lambda _: SimpleNamespace(f_bavail=0, f_frsize=1, f_blocks=1 << 20))
    log = opened(tmp_path, KeptRows.open(tmp_path / "rows"))
    log.begin(0, 7)
    assert not log.append(0, 1, len(PIECE), len(PIECE), memoryview(PIECE), 1)
