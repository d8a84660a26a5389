"""Handles of the sources that a portal hears."""

from __future__ import annotations

import pytest

from dro.transport.runs import RunTable
from portals.decisions.heard_sources import NUMBERS, HeardSources


def heard(incarnation: int) -> HeardSources:
    return HeardSources(incarnation, lambda message: None, lambda effect: None)


def add(sources: HeardSources, number: int) -> int:
    return sources.add(bytes([number]) * 32, b"T", 1, 0, 1, b"")


@pytest.mark.parametrize("incarnation", [1, 255, 256, 511])
def test_handles_stay_in_the_range_of_their_incarnation(incarnation: int) -> None:
    sources = heard(incarnation)
    first = add(sources, 0)
    sources._number = NUMBERS - 1  # after 16 million sources
    last, again = add(sources, 1), add(sources, 2)
    assert {handle >> 24 for handle in (first, last, again)} == {incarnation & 0xFF}
    assert (first & NUMBERS, last & NUMBERS, again & NUMBERS) == (1, NUMBERS, 2), "the first is in use"
    sources.end(first)
    sources._number = NUMBERS
    assert add(sources, 3) == first


def test_the_last_handle_fits_into_a_table_of_runs() -> None:
    sources = heard(255)
    sources._number = NUMBERS - 1
    table = RunTable(1)
    table.words[0] = add(sources, 1)
    assert table.words[0] == 0xFFFF_FFFF
    table.words[0] = add(sources, 2)
    assert table.words[0] == 0xFF00_0001
