"""Pages of a listing: all rows once, bounded in rows, bytes and time, and the listings under way bounded, too."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from dro.bus.control import MAX_PACKET
from dro.bus.listing import LISTINGS_MAX, PAGE_BYTES, PAGE_NS, PAGE_ROWS, Listings, RouteRow, Row, TopicRow
from dro.bus.messages import WORKER_REPORTS, ListRows, Rows

Begin = Callable[[], Iterator[Row | None]]


class Ticking:
    """A clock that advances with each look at it."""

    def __init__(self, step_ns: int) -> None:
        self.ns, self.step_ns = 0, step_ns

    def __call__(self) -> int:
        self.ns += self.step_ns
        return self.ns


def routes(count: int) -> Begin:
    return lambda: iter([RouteRow(n, n + 1, "A", "B") for n in range(count)])


def pages(listings: Listings, begin: Begin) -> list[Rows]:
    found = [listings.page(ListRows(1, "routes", "", 0), begin)]
    while found[-1].cursor:
        found.append(listings.page(ListRows(1, "routes", "", found[-1].cursor), begin))
    return found


def test_all_rows_come_once_and_in_order() -> None:
    found = pages(Listings(lambda: 0), routes(2 * PAGE_ROWS + 7))
    sizes = [len(json.loads(page.rows)) for page in found]
    assert sizes == [500, 500, 7]
    assert found[-1] == Rows(1, found[-1].rows, 0, "")
    assert [page.cursor for page in found] == [1, 2, 0]
    numbers = [row["from_domain"] for page in found for row in json.loads(page.rows)]
    assert numbers == list(range(2 * PAGE_ROWS + 7))


def test_a_row_has_every_field() -> None:
    row = TopicRow("P1", "a", 2, 1, (1, 2), (), 3, "inbound")
    (page,) = pages(Listings(lambda: 0), lambda: iter([row]))
    assert json.loads(page.rows) == [
        {"portal": "P1", "topic": "a", "sources": 2, "joined": 1, "wanted_by": [1, 2], "asked_for": [], "proxies": 3,
         "rejected": "inbound"}
    ]  # fmt: skip


def test_a_page_of_long_rows_fits_the_control_socket() -> None:
    long = RouteRow(1, 2, "\N{REPLACEMENT CHARACTER}" * 255, "B" * 4000)
    found = pages(Listings(lambda: 0), lambda: iter([long] * 100))
    assert len(found) > 5
    assert sum(len(json.loads(page.rows)) for page in found) == 100
    assert max(len(WORKER_REPORTS.encode(page)) for page in found) < MAX_PACKET
    assert max(len(page.rows) for page in found) < PAGE_BYTES + 8000


@pytest.mark.parametrize(
    ("lengths", "rows"), [([100] * 900, 600), ([101] * 900, 595), ([100] * 599 + [99] + [100] * 9, 601)]
)
def test_a_page_ends_with_the_row_that_fills_it(lengths: list[int], rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dro.bus.listing.PAGE_ROWS", 10_000)
    bare = len('{"from_domain": 1, "to_domain": 2, "ingress": "", "egress": "", "share": 100},')
    found = iter([RouteRow(1, 2, "", "x" * (length - bare)) for length in lengths])
    page = Listings(lambda: 0).page(ListRows(1, "routes", "", 0), lambda: found)
    assert len(json.loads(page.rows)) == rows


def test_a_page_ends_in_time_also_when_nothing_matches() -> None:
    looked = 0

    def nothing() -> Iterator[Row | None]:
        nonlocal looked
        for _ in range(100_000):
            looked += 1
            yield None

    listings = Listings(Ticking(1000))
    page = listings.page(ListRows(1, "topics", "x", 0), nothing)
    assert page.rows == "[]"
    assert page.cursor
    assert looked == PAGE_NS // 1000 == 5000
    rest = 1
    while page.cursor:
        page = listings.page(ListRows(1, "topics", "x", page.cursor), nothing)
        rest += 1
    assert (looked, rest) == (100_000, 100_000 // (PAGE_NS // 1000) + 1)


def test_a_cursor_is_good_once() -> None:
    listings = Listings(lambda: 0)
    first = listings.page(ListRows(1, "routes", "", 0), routes(PAGE_ROWS + 1))
    last = listings.page(ListRows(2, "routes", "", first.cursor), routes(0))
    assert (len(json.loads(last.rows)), last.cursor, last.serial) == (1, 0, 2)
    again = listings.page(ListRows(3, "routes", "", first.cursor), routes(0))
    assert (again.rows, again.cursor, again.problem) == ("[]", 0, "the listing has lapsed; ask again")


def test_abandoned_listings_give_way_to_later_ones() -> None:
    listings = Listings(lambda: 0)
    cursors = [
        listings.page(ListRows(1, "routes", "", 0), routes(PAGE_ROWS + 1)).cursor for _ in range(LISTINGS_MAX + 1)
    ]
    problems = [listings.page(ListRows(1, "routes", "", cursor), routes(0)).problem for cursor in cursors]
    assert problems == ["the listing has lapsed; ask again", *[""] * LISTINGS_MAX]
