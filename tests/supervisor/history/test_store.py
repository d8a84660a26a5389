"""The journal and the Parquet files of a history: nothing is lost, torn or there twice, wherever it stops."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

import supervisor.history.store_thread
from analytics.store.objects import ObjectStore
from dro.errors import ResourceError
from dro.log.events import LogEvent
from supervisor.history.journal import Journal, records
from supervisor.history.store import MANY, US_PER_S, Store
from supervisor.history.store_thread import StoreThread
from supervisor.history.worker import _Recorder
from tests.rigs.waiting import wait_until

DAY_US = 86_400 * US_PER_S
MIDNIGHT_US = 20_000 * DAY_US  # 2024-10-04


def row(ts: int, portal: str = "P1", **cells: object) -> dict[str, Any]:
    return {"ts": ts, "run": MIDNIGHT_US, "source": "pages", "portal": portal, **cells}


def rows_of(folder: Path, table: str = "portal") -> list[dict[str, Any]]:
    paths = sorted(folder.glob(f"table={table}/day=*/dro=*/*.parquet"))
    return [found for path in paths for found in pq.ParquetFile(path).read().to_pylist()]


def test_a_record_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal(path)
    for record in (b"one", b"", b"three" * 1000):
        journal.append(record)
    journal.close()
    whole = path.read_bytes()
    assert list(records(path)) == [b"one", b"", b"three" * 1000]
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert list(records(path)) == [b"one", b"", b"three" * 1000][: (length >= 11) + (length >= 19)]
    path.write_bytes(whole[:20] + b"\xff" + whole[21:])
    assert list(records(path)) == [b"one", b""]


def test_a_full_disk_leaves_the_journal_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "j")
    journal.append(b"kept")
    write, room = os.pwrite, [5]

    def full(fd: int, data: bytes, at: int) -> int:
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data[: room.pop()], at)

    monkeypatch.setattr("os.pwrite", full)
    with pytest.raises(OSError, match="No space"):
        journal.append(b"lost" * 100)
    monkeypatch.setattr("os.pwrite", write)
    journal.append(b"later")
    journal.close()
    assert list(records(tmp_path / "j")) == [b"kept", b"later"]


def test_rows_come_to_the_file_of_their_day_and_dro(tmp_path: Path) -> None:
    store = Store(tmp_path, "w")
    store.add("portal", "A/1 %", [row(MIDNIGHT_US - 1, sent=1), row(MIDNIGHT_US, sent=2)])
    store.add("portal", "B", [row(MIDNIGHT_US, sent=3)])
    store.commit()
    assert rows_of(tmp_path) == []
    store.close()
    found = {path.parent.parent.name + " " + path.parent.name for path in tmp_path.glob("table=portal/*/*/*")}
    assert found == {"day=2024-10-03 dro=A%2F1%20%25", "day=2024-10-04 dro=A%2F1%20%25", "day=2024-10-04 dro=B"}
    assert sorted(r["sent"] for r in rows_of(tmp_path)) == [1, 2, 3]
    assert [path.name for path in (tmp_path / "journal").iterdir()] == ["w.lock"]


def test_parts_of_a_row_become_one_and_get_the_run_of_their_dro(tmp_path: Path) -> None:
    store = Store(tmp_path, "w")
    part = {"ts": MIDNIGHT_US + 5, "source": "prometheus", "portal": "P1"}
    store.add("portal", "A", [{**part, "sent": 4}, {**part, "portal": "P2"}])
    store.commit()
    store.add("portal", "A", [{**part, "forwarded": 7}])
    store.add("dro", "A", [{"ts": MIDNIGHT_US + 5, "run": MIDNIGHT_US}])
    store.commit()
    store.close()
    first, second = rows_of(tmp_path)
    assert (first["portal"], first["sent"], first["forwarded"], second["sent"]) == ("P1", 4, 7, None)
    assert {int(r["run"].timestamp()) for r in (first, second)} == {MIDNIGHT_US // US_PER_S}


def stop_at(monkeypatch: pytest.MonkeyPatch, target: str, times: int) -> None:
    """Let the call number `times` of a function end the program, as far as files go."""
    left = [times]
    owner: object = Path if target != "fsync" else os
    real: Callable[..., object] = getattr(owner, target)

    def stops(*args: object, **more: object) -> object:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return real(*args, **more)

    monkeypatch.setattr(owner, target, stops)


@pytest.mark.parametrize("target", ["rename", "fsync", "unlink"])
@pytest.mark.parametrize("times", range(5))
def test_a_crash_while_files_are_written_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, times: int
) -> None:
    store = Store(tmp_path, "w")
    for day in range(3):
        store.add("portal", "A", [row(MIDNIGHT_US + day * DAY_US + n, sent=n) for n in range(4)])
        store.commit()
    with monkeypatch.context() as patch:
        stop_at(patch, target, times)
        with contextlib.suppress(KeyboardInterrupt):
            store.roll()
    os.close(store._lock)
    again = Store(tmp_path, "w")
    again.roll()
    again.close()
    assert len(rows_of(tmp_path)) == 12
    assert {(r["ts"].day, r["sent"]) for r in rows_of(tmp_path)} == {(d, n) for d in (4, 5, 6) for n in range(4)}
    assert [path.name for path in tmp_path.rglob(".*")] == []


def test_two_writers_of_a_name_are_refused_and_of_two_names_not(tmp_path: Path) -> None:
    first, other = Store(tmp_path, "w"), Store(tmp_path, "v")
    with pytest.raises(ResourceError, match="another process writes this history as w"):
        Store(tmp_path, "w")
    first.close()
    other.close()
    Store(tmp_path, "w").close()


def test_files_are_written_when_the_journal_is_old_or_large(tmp_path: Path) -> None:
    now = [0.0]
    store = Store(tmp_path, "w", roll_s=10, clock=lambda: now[0])
    for at, files in ((0.0, 0), (9.9, 0), (10.0, 1), (19.0, 1), (28.9, 1), (29.0, 2)):
        now[0] = at
        store.add("portal", "A", [row(MIDNIGHT_US + int(at * 10))])
        store.commit()
        store.tend()
        assert len(list(tmp_path.glob("table=portal/*/*/*"))) == files, at
    store.close()


def test_what_cannot_be_written_is_told_with_the_place(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError, match=f"cannot write the history at {tmp_path}/file"):
        Store(tmp_path / "file", "w")


def rolled(store: Store) -> None:
    """Roll, and join all that is to be joined."""
    store.roll()
    for _ in range(4):
        store.tend()


def files_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("table=portal/*/*/*"))


def test_small_files_become_one_each_hour_and_a_crash_in_between_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path, "w")
    other = Store(tmp_path, "w-1")
    for nth in range(2 * MANY):
        store.add("portal", "A", [row(MIDNIGHT_US + nth * 600 * US_PER_S, sent=nth)])
        store.commit()
        with monkeypatch.context() as patch:
            if nth == 1:
                patch.setattr(Path, "unlink", refuse)
            if nth == MANY - 1:
                patch.setattr(ObjectStore, "remove", lambda _, paths: list(map(refuse, paths)))
            with contextlib.suppress(ResourceError) if nth in (1, MANY - 1) else contextlib.nullcontext():
                rolled(store)
        if nth < MANY - 1:
            other.add("portal", "A", [row(MIDNIGHT_US + nth * 600 * US_PER_S, "P2", sent=nth)])
            other.commit()
            rolled(other)
    names = files_of(tmp_path)
    assert len([name for name in names if name.startswith("part-w+")]) == 2
    assert not [name for name in names if name.startswith("part-w-") and not name.startswith("part-w-1-")]
    assert len([name for name in names if name.startswith("part-w-1-")]) == MANY - 1
    rows = [found["sent"] or 0 for found in rows_of(tmp_path) if found["portal"] == "P1"]
    assert sorted(rows) == list(range(2 * MANY))
    store.close()
    other.close()


def test_a_day_that_is_over_becomes_one_file_when_nothing_comes_for_it_any_more(tmp_path: Path) -> None:
    """Files of ten minutes from 23:00 to 1:00; that of midnight has rows of both days. Restarts change nothing."""
    left: list[tuple[int, int]] = []
    store = Store(tmp_path, "w")
    for nth in range(-6, 6):
        if nth % 4 == 2:
            store.close()
            store = Store(tmp_path, "w")
        store.add("portal", "A", [row(MIDNIGHT_US + (nth * 600 + s) * US_PER_S, sent=nth + 6) for s in (0, 599)])
        if nth == 0:
            store.add("portal", "A", [row(MIDNIGHT_US - US_PER_S, "P2", sent=99)])
        store.commit()
        rolled(store)
        days = sorted({path.parent.parent for path in tmp_path.glob("table=portal/*/*/*")})
        left.append((len(list(days[0].rglob("*.parquet"))), len(list(days[-1].rglob("*.parquet")))))
    assert left == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (1, 1), (2, 1), (1, 2), (1, 3), (1, 4), (1, 5), (1, 1)]
    found = rows_of(tmp_path)
    assert sorted(one["sent"] or 0 for one in found) == sorted([*range(12), *range(12), 99])
    store.add("portal", "A", [row(MIDNIGHT_US - 2 * US_PER_S, "P3")])
    store.commit()
    store.close()
    assert len(rows_of(tmp_path)) == len(found) + 1


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.EROFS, "Read-only file system")


def test_a_store_that_fails_is_told_once_and_again_when_it_has_taken_something() -> None:
    told: list[LogEvent] = []
    log = SimpleNamespace(error=lambda event, extra: told.append(event), info=lambda event, extra: told.append(event))
    recorder: Any = SimpleNamespace(_ctx=SimpleNamespace(log=log), _failing=set(), _shown="s3://bucket")

    def attempt(what: str, outcome: object) -> None:
        def work() -> object:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        _Recorder._try(recorder, what, work)

    down = ResourceError("it does not answer")
    for what, outcome in (
        ("store", False), ("journal", None), ("store", down), ("journal", None), ("store", False), ("store", down),
        ("journal", down), ("store", False), ("journal", None), ("store", True), ("store", True),
    ):  # fmt: skip
        attempt(what, outcome)
    lost, found = LogEvent.HISTORY_NOT_WRITTEN, LogEvent.HISTORY_WRITTEN_AGAIN
    assert told == [lost, lost, found, found]


def test_a_file_that_nobody_foresaw_is_told_and_the_next_ones_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path, "w")
    monkeypatch.setattr(supervisor.history.store_thread, "TEND_S", 0.01)
    told: list[str] = []

    def attempt(work: Callable[[], object]) -> None:
        try:
            work()
        except ResourceError as e:
            told.append(str(e))

    def fails() -> bool:
        raise TypeError("no such column")

    with monkeypatch.context() as patch:
        patch.setattr(store, "tend", fails)
        thread = StoreThread(store, attempt)
        wait_until(lambda: len(told) > 1, "an attempt and the next one", 10)
    store.add("portal", "A", [row(MIDNIGHT_US)])
    store.commit()
    assert thread.close() == ""
    assert told[0] == f"cannot write files of the history at {tmp_path}: TypeError('no such column')"
    assert len(rows_of(tmp_path)) == 1
