"""Values by number that outlive the process, wherever that is killed."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from dro.kept.values import FILES, SPARE_BYTES, KeptValues


def reopened(folder: Path, values: KeptValues) -> KeptValues:
    values.close()
    return KeptValues(folder, "values")


def test_the_next_process_finds_the_newest_value_of_each_number(tmp_path: Path) -> None:
    values = KeptValues(tmp_path, "values")
    assert (values.is_whole, values.former) == (False, {}), "there was nobody before"
    for number in range(3 * FILES):
        values.put(number, b"old")
        values.put(number, b"new %d" % number)
    values.put(5, b"")
    for _ in range(2):
        values = reopened(tmp_path, values)
        assert values.is_whole
        assert values.former == {number: b"new %d" % number for number in range(3 * FILES) if number != 5}
    values.close()


def test_what_is_noted_already_is_not_written_again(tmp_path: Path) -> None:
    values = KeptValues(tmp_path, "values")
    values.put(1, b"same")
    values.put(2, b"old")
    values = reopened(tmp_path, values)
    size = (tmp_path / "values.1").stat().st_size
    values.put(1, b"same")
    values.put(2, b"new")
    assert (tmp_path / "values.1").stat().st_size == size
    values.put(1, b"other")
    values.put(1, b"same")
    values = reopened(tmp_path, values)
    assert values.former == {1: b"same", 2: b"new"}
    values.put(1, b"")
    values = reopened(tmp_path, values)
    assert values.former == {2: b"new"}
    values.close()


@pytest.mark.parametrize("left", range(1, 22))
def test_a_record_that_was_not_written_whole_is_as_if_it_was_not_written(tmp_path: Path, left: int) -> None:
    values = KeptValues(tmp_path, "values")
    values.put(1, b"before")
    size = (tmp_path / "values.1").stat().st_size
    values.put(1, b"behind")
    os.truncate(tmp_path / "values.1", size + left)
    values = reopened(tmp_path, values)
    assert (values.is_whole, values.former) == (True, {1: b"before"})
    values.put(1, b"later")
    values = reopened(tmp_path, values)
    assert values.former == {1: b"later"}, "what follows can be read"
    values.close()


def test_a_file_that_is_mostly_outdated_is_written_anew(tmp_path: Path) -> None:
    values = KeptValues(tmp_path, "values")
    for n in range(200):
        values.put(1, b"%04d" % n * 250)
    assert (tmp_path / "values.1").stat().st_size < SPARE_BYTES + 3000
    values = reopened(tmp_path, values)
    assert values.former == {1: b"0199" * 250}
    values.close()


def test_without_room_nothing_is_left_that_could_be_taken_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = KeptValues(tmp_path, "values")
    values.put(1, b"value")
    monkeypatch.setattr(os, "fstatvfs", lambda _: SimpleNamespace(f_bavail=0, f_frsize=1, f_blocks=1 << 20))
    values.put(2, b"value")
    values.put(3, b"value")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    values = reopened(tmp_path, values)
    assert (values.is_whole, values.former) == (False, {})
    values.close()
