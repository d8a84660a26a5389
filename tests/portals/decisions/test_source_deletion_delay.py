"""Proxy sources that wait for their deletion: in order, and a bounded number at once."""

from __future__ import annotations

from dro.clock import ms
from portals.decisions.source_deletion_delay import AT_ONCE, SourceDeletionDelay


def test_many_are_due_in_order_and_a_part_of_them_at_once() -> None:
    delay = SourceDeletionDelay(ms(100))
    names = [b"%d" % number for number in range(2 * AT_ONCE + 1)]
    for number, name in enumerate(names):
        assert delay.begin(name, number) == number + ms(100)
    assert delay.due(ms(100) - 1) == []
    assert delay.due(ms(100) + 1) == names[:2]
    found: list[bytes] = []
    while delay.next_deadline() is not None:
        due = delay.due(ms(200))
        assert 0 < len(due) <= AT_ONCE
        found += due
        for name in due:
            delay.end(name)
    assert found == names
    assert delay.due(ms(200)) == []
