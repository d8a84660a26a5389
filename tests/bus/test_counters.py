"""Counter pages: written by one process, read by others, kept over restarts."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import time
from collections.abc import Iterator
from enum import IntEnum
from itertools import pairwise
from pathlib import Path

import pytest

from dro.bus.counters import GENERAL_SLOTS, MASK, MAX_WORKERS, PAIR_SLOTS, CounterPage, Histogram
from dro.errors import LocalProtocolError, ResourceError
from dro.os_errors import remedy_of
from tests.bus.conftest import open_files


class Slot(IntEnum):
    RECEIVED = 0
    DROPPED = 3


@pytest.fixture
def page(tmp_path: Path, open_umask: None) -> Iterator[CounterPage]:
    opened = CounterPage.create(tmp_path / "page")
    yield opened
    opened.close()


def test_a_new_page_is_zero_and_private(page: CounterPage) -> None:
    assert len(page) == GENERAL_SLOTS + MAX_WORKERS * PAIR_SLOTS
    assert not any(page.slots)
    assert stat.S_IMODE(page.path.stat().st_mode) == 0o600


def test_adding_and_setting(page: CounterPage) -> None:
    page.add(Slot.RECEIVED)
    page.add(Slot.RECEIVED, 41)
    page.set(Slot.DROPPED, MASK)
    page.add(Slot.DROPPED, 3)
    page.slots[5] += 2
    assert (page[Slot.RECEIVED], page[Slot.DROPPED], page[5]) == (42, 2, 2)
    page.add(5, -3)
    assert page[5] == MASK


def test_a_count_and_its_bytes_are_added_side_by_side(page: CounterPage) -> None:
    page.add_sized(5, 2, 100)
    page.add_sized(5, 1, 11)
    assert [page[slot] for slot in (4, 5, 6, 7)] == [0, 3, 111, 0]
    page.set(5, MASK)
    page.set(6, MASK - 1)
    page.add_sized(5, 2, 4)
    assert (page[5], page[6]) == (1, 2)
    page.set(5, -1)
    assert page[5] == MASK


def test_the_file_of_a_page_has_one_layout(tmp_path: Path) -> None:
    """Pages outlive workers, and any other layout is not read: a change here needs another version."""
    full = CounterPage.create(tmp_path / "full")
    full.close()
    assert (tmp_path / "full").stat().st_size == 8 * (8 + 3 * 512 + 256 * 16)
    page = CounterPage.create(tmp_path / "page", general_slots=3, pair_blocks=2, pair_slots=4)
    page.set(0, 11)
    page.set(page.pair(1), 12)
    content = bytearray(page.path.read_bytes())
    assert len(content) == 8 * (8 + 3 * 3 + 2 * 4)
    cells = memoryview(content).cast("Q")
    magic = int.from_bytes(b"DROCNTR\0", "little")
    assert {at: value for at, value in enumerate(cells) if value} == {0: magic, 1: 2, 2: 3, 3: 2, 4: 4, 8: 11, 15: 12}
    again = CounterPage.open(page.path)
    assert (again.path, again.general_slots, again.pair_blocks, again.pair_slots) == (page.path, 3, 2, 4)
    assert (len(again), again.pair(0), again.pair(1)) == (11, 3, 7)
    before = open_files()
    for at in range(5):
        cells[at] += 1
        (tmp_path / "other").write_bytes(content)
        cells[at] -= 1
        with pytest.raises(ResourceError, match=f"{tmp_path}/other is not a counter page of layout 2") as wrong:
            CounterPage.open(tmp_path / "other")
        assert open_files() == before
        del wrong
    for size in (0, 56, 63, 64 + 1, len(content) + 8):
        (tmp_path / "other").write_bytes(bytes(content[:size].ljust(size, b"\0")))
        with pytest.raises(ResourceError, match="is not a counter page"):
            CounterPage.open(tmp_path / "other")
    again.close()
    page.close()
    assert open_files() == before - 2


def test_a_page_that_cannot_be_made_leaves_nothing_behind(
    page: CounterPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = open_files()
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ResourceError) as no:
        CounterPage.create(tmp_path / "huge")
    assert (no.value.what, no.value.remedy) == (
        f"no room for the counter page {tmp_path}/huge: No space left on device", remedy_of(errno.ENOSPC)
    )  # fmt: skip
    with pytest.raises(ResourceError) as exists:
        CounterPage.create(page.path)
    assert (exists.value.what, exists.value.remedy) == (
        f"cannot create the counter page {page.path}: File exists", remedy_of(errno.EEXIST)
    )  # fmt: skip
    (tmp_path / "link").symlink_to(page.path)
    with pytest.raises(ResourceError, match=r"cannot open the counter page .*: Too many levels of symbolic links"):
        CounterPage.open(tmp_path / "link")
    assert not (tmp_path / "huge").exists()
    assert open_files() == before


def test_a_page_of_header_alone_is_one(tmp_path: Path) -> None:
    CounterPage.create(tmp_path / "page", general_slots=0, pair_blocks=0, pair_slots=0).close()
    page = CounterPage.open(tmp_path / "page")
    assert len(page) == 0
    page.close()


def test_pair_blocks_do_not_overlap(page: CounterPage) -> None:
    bases = [page.pair(worker) for worker in range(MAX_WORKERS)]
    assert bases[0] == GENERAL_SLOTS
    assert all(b - a == PAIR_SLOTS for a, b in pairwise(bases))
    page.add(bases[-1] + PAIR_SLOTS - 1)
    with pytest.raises(LocalProtocolError):
        page.pair(MAX_WORKERS)
    with pytest.raises(LocalProtocolError):
        page.pair(-1)


def test_counts_outlive_the_writer(page: CounterPage) -> None:
    pid = os.fork()
    if pid == 0:
        CounterPage.open(page.path).add(Slot.RECEIVED, 9)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    again = CounterPage.open(page.path)
    again.add(Slot.RECEIVED)
    assert page[Slot.RECEIVED] == 10
    again.close()


def test_a_monitor_cannot_write(page: CounterPage) -> None:
    view = CounterPage.open(page.path, readonly=True)
    page.add(Slot.DROPPED, 7)
    assert view[Slot.DROPPED] == 7
    with pytest.raises((TypeError, IndexError)):  # plain, compiled
        view.add(Slot.DROPPED)
    with pytest.raises(TypeError):
        view.set(Slot.DROPPED, 1)
    assert view[Slot.DROPPED] == 7
    view.close()


def test_only_a_page_is_opened_as_one(page: CounterPage, tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="File exists"):
        CounterPage.create(page.path)
    with pytest.raises(ResourceError, match="No such file"):
        CounterPage.open(tmp_path / "none")
    for name, content in {"short": b"abc", "zero": bytes(4096)}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ResourceError, match="not a counter page"):
            CounterPage.open(tmp_path / name)


def test_a_reader_sees_what_was_published_and_what_belongs_together(tmp_path: Path) -> None:
    page = CounterPage.create(tmp_path / "page")
    reader = CounterPage.open(tmp_path / "page", readonly=True)
    assert not any(reader.snapshot())
    page.add_sized(3, 1, 100)
    page.publish()
    page.add_sized(3, 1, 100)
    assert reader.snapshot()[3:5] == [1, 100]
    page.publish()
    assert reader.snapshot()[3:5] == [2, 200]
    page.close()
    reader.close()


def test_a_page_that_changes_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    """A writer in a process of its own keeps two cells equal; no reader ever sees them differ."""
    path = tmp_path / "page"
    CounterPage.create(path).close()
    child = os.fork()
    if not child:
        writer = CounterPage.open(path)
        while True:
            writer.add(0)
            writer.add(511)
            writer.publish()
    try:
        reader = CounterPage.open(path, readonly=True)
        seen: list[list[int]] = []
        deadline = time.monotonic() + 60
        while len(seen) < 3000 and time.monotonic() < deadline:
            with contextlib.suppress(ResourceError):  # this writer, unlike a portal, never pauses
                seen.append(reader.snapshot())
        reader.close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert len(seen) == 3000
    assert all(values[0] == values[511] for values in seen)
    assert [values[0] for values in seen] == sorted(values[0] for values in seen)
    assert seen[-1][0] > seen[0][0]


def test_a_histogram_counts_each_value_in_the_first_bucket_that_holds_it(tmp_path: Path) -> None:
    page = CounterPage.create(tmp_path / "page")
    histogram = Histogram(page, 10, (1, 10, 100))
    for value in (0, 1, 2, 10, 11, 101):
        histogram.observe(value)
    histogram.observe(50, 3)
    assert [page[slot] for slot in range(10, 15)] == [2, 2, 4, 1, 0 + 1 + 2 + 10 + 11 + 101 + 150]
    page.close()
