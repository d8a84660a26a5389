"""Order of the sources of a link with `<udp>`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dro.proto.peerlink.source_order import WAIT_BYTES, SourceOrder
from dro.sqn import MASK

BEFORE_WRAP = MASK - 20


def sqn_of(nth: int) -> int:
    return BEFORE_WRAP + nth & MASK


@given(st.lists(st.integers(1, 3), max_size=60), st.data())
def test_each_source_goes_on_in_order_and_whole_whatever_comes_late(owners: list[int], data: st.DataObject) -> None:
    """One message in each datagram; some come late, some never."""
    counts = dict.fromkeys((1, 2, 3), 0)
    datagrams = []
    for owner in owners:
        datagrams.append((owner, counts[owner]))
        counts[owner] += 1
    numbers = range(len(datagrams))
    delays = data.draw(st.lists(st.integers(0, 30), min_size=len(numbers), max_size=len(numbers)))
    lost = data.draw(st.sets(st.sampled_from(numbers))) if datagrams else set()
    order, out = SourceOrder(), []
    order.note((1, 2, 3), (BEFORE_WRAP,) * 3, {})
    came: set[int] = set()
    for nth in sorted(numbers, key=lambda number: number + delays[number]):
        if nth in lost:
            continue
        came.add(nth)
        newest = max(came)
        contiguous = next(number for number in range(len(datagrams) + 1) if number not in came) - 1
        owner, sqn = datagrams[nth]
        out += order.put(owner, sqn_of(sqn), b"%d %d" % (owner, sqn), newest)
        out += order.release(contiguous & MASK)
    out += order.release(len(datagrams))  # the rest is given up
    assert not order.is_waiting
    got = [tuple(map(int, message.split())) for message in out]
    for owner in (1, 2, 3):
        expected = [sqn for nth, (of, sqn) in enumerate(datagrams) if of == owner and nth not in lost]
        assert [sqn for of, sqn in got if of == owner] == expected


def test_only_the_source_that_lacks_something_waits() -> None:
    order = SourceOrder()
    order.note((1, 2), (10, 20), {})
    assert order.put(2, 20, b"other", 5) == [b"other"]
    assert order.put(1, 11, b"behind", 6) == []
    assert order.release(3) == []
    assert order.is_waiting
    assert order.put(1, 10, b"late", 6) == [b"late", b"behind"]
    assert not order.is_waiting


def test_what_came_again_goes_on_and_is_counted_by_others() -> None:
    order = SourceOrder()
    order.note((1,), (10,), {})
    assert order.put(1, 9, b"again", 5) == [b"again"]


def test_a_source_that_is_new_while_something_is_missing_waits() -> None:
    order = SourceOrder()
    assert order.put(7, 1, b"second", 4) == []
    assert order.put(7, 0, b"first", 4) == []
    assert order.release(4) == [b"first", b"second"]


def test_what_came_late_when_nothing_is_missing_any_more_goes_on_at_once() -> None:
    order = SourceOrder()
    assert order.release(4) == []
    assert order.put(7, 1, b"one", 4) == []
    assert order.release(4) == [b"one"]


def test_a_tsni_that_is_ahead_tells_nothing_yet() -> None:
    order = SourceOrder()
    order.note((1,), (10,), {})
    assert not order.is_known_already(1, 9)
    assert order.is_known_already(1, 10)
    assert order.is_known_already(2, 0)


def test_not_too_much_waits() -> None:
    order, size = SourceOrder(), WAIT_BYTES // 4
    order.note((1, 2), (0, 0), {})
    out: list[bytes] = []
    for sqn in range(1, 4):
        for number in (1, 2):
            assert order.put(number, sqn, bytes([number]) * size, 9) == []
            out += order.release(0)
    assert [message[0] for message in out] == [1, 1, 1]
    assert order.put(1, 4, b"next", 9) == [b"next"]


def test_sources_that_are_gone_are_forgotten() -> None:
    order = SourceOrder()
    for number in range(3000):
        order.note((number,), (1,), {})
    assert order.is_known_already(0, 0)
    assert not order.is_known_already(2999, 0)
