"""A frozen portal and a receiver that stops reading harm nobody else; what they miss is counted where it is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dro.metrics.slots import Slot
from tests.bench.cost_unit import memory_bytes
from tests.rigs.books import Books
from tests.rigs.flow import DUPLICATES, LATE, MISSING, RECEIVED, WRONG
from tests.rigs.star import Star, star_site

pytestmark = pytest.mark.slow

RATE = 1200
PAYLOAD = 1200
MORE = 4000  # messages that the flows carry while the others fail
GROWTH_MAX = 16 << 20


@pytest.fixture
def star(tmp_path: Path) -> Iterator[Star]:
    site = star_site(tmp_path)
    try:
        site.start()
        yield Star(site, rate=RATE, other_rate=RATE // 3, payload=PAYLOAD)
    finally:
        site.close()


def dropped(books: Books, worker: int) -> dict[str, int]:
    """What was dropped at a portal, by reason, without the reasons that have nothing."""
    return {reason: count for reason, count in books.dropped(worker).items() if count}


def test_a_frozen_portal_and_a_receiver_that_stops_reading_harm_no_other_flow(star: Star) -> None:
    site = star.site
    memory = {name: memory_bytes(pid) for name, pid in site.workers().items()}
    with site.books() as books:
        limit = books[4, Slot.QUEUE_LIMIT]
        star.disturb()
        star.wait(lambda: dropped(books, 2).get("would_block", 0) > 0, "the frozen portal's channel is full")
        star.wait(lambda: dropped(books, 4).get("would_block", 0) > 0, "the blocked session's queue is full")
        assert 0 < books[4, Slot.QUEUED_BYTES] <= limit
        assert books[4, Slot.QUEUED_BYTES_MAX] <= limit
        goal = star.shared[RECEIVED] + MORE
        star.wait(lambda: star.shared[RECEIVED] >= goal, "the healthy flows go on")
        grown = {name: memory_bytes(pid) - memory[name] for name, pid in site.workers().items()}
        assert max(grown.values()) < GROWTH_MAX, grown
        assert (dropped(books, 1), dropped(books, 3)) == ({}, {})
        assert site.workers().keys() == memory.keys()

        star.release()
        star.wait_flowing_again()
        star.settle()
        star.wait(lambda: all(board.is_caught_up(star.shared) for board in (star.behind_frozen, star.behind_slow)),
                  "those that failed have caught up")  # fmt: skip
        star.wait(lambda: star.shared.is_complete and star.other.is_complete, "the healthy flows are complete")
        for board in (star.shared, star.other):
            assert [board[cell] for cell in (MISSING, LATE, DUPLICATES, WRONG)] == [0, 0, 0, 0], board.story()
        for board in (star.behind_frozen, star.behind_slow):
            assert [board[cell] for cell in (DUPLICATES, WRONG)] == [0, 0], board.story()
        assert star.behind_slow[LATE] == 0, star.behind_slow.story()
        assert books.problems() == []
        assert [dropped(books, n) for n in (1, 3)] == [{}, {}]
        assert dropped(books, 2) == {"would_block": star.behind_frozen[MISSING]}
        assert dropped(books, 4) == {"would_block": star.behind_slow[MISSING]}
        assert books[4, Slot.QUEUED_BYTES] == 0
    assert "began enqueueing data" in site.log
    assert "dropping data due to high volume" in site.log
    assert "completed flushing queue" in site.log
