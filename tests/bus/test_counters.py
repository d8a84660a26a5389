"""Counter pages: written by one process, read by others, kept over restarts."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from enum import IntEnum
from itertools import pairwise
from pathlib import Path

import pytest

from dro.bus.counters import GENERAL_SLOTS, MASK, MAX_WORKERS, PAIR_SLOTS, CounterPage
from dro.errors import LocalProtocolError, ResourceError


class Slot(IntEnum):
    RECEIVED = 0
    DROPPED = 3


@pytest.fixture
def page(tmp_path: Path) -> Iterator[CounterPage]:
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
    with pytest.raises(TypeError):
        view.add(Slot.DROPPED)
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
