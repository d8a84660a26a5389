"""What a sibling has still to be told: what replaces what, how much leaves, and when the sibling breaks its promise."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from dro.clock import NS_PER_S, ms, s
from portals.decisions.messages import (
    PORTAL_MESSAGES,
    ForwardingStopped,
    ForwardStart,
    ForwardStop,
    HandoverAcked,
    HandoverEnded,
    InterestAdded,
    InterestRemoved,
    PortalHello,
    PortalMessage,
    SourceGone,
    SourceSeen,
    StateConfirmed,
    Withdraw,
)
from portals.decisions.outbox import (
    BATCH_BYTES,
    BATCH_RECORDS,
    BATCHES_ON_THE_WAY,
    BURST,
    PACE,
    SILENT_TICKS,
    Outbox,
)

HELLO = PortalHello(1, 1, 0, 0)
ONCE: list[PortalMessage] = [HELLO, Withdraw(), ForwardingStopped(1), HandoverEnded(2), HandoverAcked()]


def added(number: int) -> InterestAdded:
    return InterestAdded(b"%d" % number, 0, 2)


def removed(number: int) -> InterestRemoved:
    return InterestRemoved(b"%d" % number, 0, 2)


def seen(handle: int, cost: int = 0, more: bytes = b"") -> SourceSeen:
    return SourceSeen(handle, handle.to_bytes(32, "big"), b"T", 2, 0, cost, more)


def holding(*messages: PortalMessage) -> Outbox:
    outbox = Outbox(0)
    put(outbox, *messages)
    return outbox


def put(outbox: Outbox, *messages: PortalMessage) -> None:
    for message in messages:
        outbox.put(message, PORTAL_MESSAGES.encode(message))


def batch(outbox: Outbox, now_ns: int = 0) -> list[PortalMessage]:
    """The next one, which is confirmed at once."""
    frame = outbox.take(now_ns)
    outbox.on_acked(1 if frame else 0)
    return list(PORTAL_MESSAGES.decode_all(frame))


def told(outbox: Outbox, now_ns: int = 0) -> list[PortalMessage]:
    """All that may leave at that time."""
    found: list[PortalMessage] = []
    while messages := batch(outbox, now_ns):
        found += messages
    return found


@pytest.mark.parametrize(
    ("messages", "left"),
    [
        ([added(1), removed(1)], [removed(1)]),
        ([removed(1), added(1)], [added(1)]),
        ([added(1), removed(1), added(1)], [added(1)]),
        ([added(1), InterestAdded(b"1", 0, 3)], [added(1), InterestAdded(b"1", 0, 3)]),
        ([added(1), InterestAdded(b"1", 1, 2)], [added(1), InterestAdded(b"1", 1, 2)]),
        ([seen(1), seen(1, 5)], [seen(1, 5)]),
        ([seen(1), SourceGone(1)], [SourceGone(1)]),
        ([seen(1), ForwardStart(1)], [seen(1), ForwardStart(1)]),
        ([ForwardStart(1), ForwardStop(1), ForwardStart(1)], [ForwardStart(1)]),
        ([ForwardStart(1), ForwardStop(2)], [ForwardStart(1), ForwardStop(2)]),
        ([ForwardingStopped(1), ForwardingStopped(2)], [ForwardingStopped(2)]),
        (ONCE, ONCE),
    ],
)
def test_of_one_thing_the_newest_state_is_told(messages: list[PortalMessage], left: list[PortalMessage]) -> None:
    outbox = holding(*messages)
    assert len(outbox) == len(left)
    assert told(outbox) == left
    assert len(outbox) == 0


def test_what_waits_for_a_sibling_that_takes_nothing_is_bounded_by_what_there_is() -> None:
    outbox = holding(*map(ForwardStart, range(BATCHES_ON_THE_WAY * BATCH_RECORDS)))
    for _ in range(BATCHES_ON_THE_WAY):
        assert outbox.take(0)
    for n in range(100_000):
        put(outbox, seen(n % 100, cost=n), added(n % 100), removed(n % 100))
    assert (outbox.take(0), len(outbox)) == (b"", 200)
    outbox.on_acked(BATCHES_ON_THE_WAY)
    assert {m.cost for m in told(outbox) if isinstance(m, SourceSeen)} == set(range(99_900, 100_000))


def test_the_exchange_comes_after_changes_as_things_are_then_and_its_end_last() -> None:
    state = {1: seen(1), 2: seen(2)}

    def everything() -> Iterator[PortalMessage]:
        for handle in list(state):
            yield state[handle]

    outbox = holding(HELLO, StateConfirmed())
    outbox.put_all(everything())
    put(outbox, added(7))
    state[2] = seen(2, cost=9)
    assert told(outbox) == [HELLO, added(7), seen(1), seen(2, cost=9), StateConfirmed()]
    assert told(outbox) == []


def test_a_batch_has_so_many_records_or_bytes() -> None:
    outbox = Outbox(0)
    outbox.put_all(map(seen, range(BATCH_RECORDS + 1)))
    assert [len(batch(outbox)) for _ in range(3)] == [BATCH_RECORDS, 1, 0]
    outbox.put_all(seen(n, more=bytes(8000)) for n in range(20))
    frame = outbox.take(0)
    assert BATCH_BYTES <= len(frame) < BATCH_BYTES + 8200


def test_the_next_batch_leaves_when_one_was_confirmed() -> None:
    outbox = Outbox(0)
    made: list[int] = []

    def everything() -> Iterator[PortalMessage]:
        for n in range(10 * BATCH_RECORDS):
            made.append(n)
            yield seen(n)

    outbox.put_all(everything())
    assert [bool(outbox.take(0)) for _ in range(BATCHES_ON_THE_WAY + 1)] == [True] * BATCHES_ON_THE_WAY + [False]
    assert len(made) == BATCHES_ON_THE_WAY * BATCH_RECORDS, "nothing is made before its turn"
    outbox.on_acked(0)
    assert outbox.take(0) == b""
    outbox.on_acked(1)
    assert [bool(outbox.take(0)) for _ in range(2)] == [True, False]


def test_a_flood_of_new_interest_is_paced_and_holds_up_nothing_else() -> None:
    outbox = holding(*map(added, range(BURST + PACE + 1)))
    first = told(outbox)
    assert len(first) == BURST
    assert outbox.next_deadline() == BATCH_RECORDS * NS_PER_S // PACE
    assert told(outbox, ms(1)) == [added(n) for n in range(BURST, BURST + PACE // 1000)]
    put(outbox, ForwardStart(1), removed(BURST + PACE), seen(3))
    assert told(outbox, ms(1)) == [ForwardStart(1), removed(BURST + PACE), seen(3)]
    assert len(told(outbox, s(1))) == PACE - PACE // 1000
    assert outbox.next_deadline() is None
    put(outbox, *map(added, range(BURST)), *map(ForwardStart, range(BATCHES_ON_THE_WAY * BATCH_RECORDS)))
    assert all(outbox.take(s(1)) for _ in range(BATCHES_ON_THE_WAY))
    assert outbox.next_deadline() is None, "a confirmation comes first"
    outbox.on_acked(1)
    assert outbox.take(s(1)) == b""
    assert outbox.next_deadline() is not None


def test_the_end_of_the_exchange_waits_for_interest_that_waits() -> None:
    outbox = holding(*map(added, range(BURST + 1)), StateConfirmed())
    assert StateConfirmed() not in told(outbox)
    assert told(outbox, s(1)) == [added(BURST), StateConfirmed()]


def test_who_withdraws_wants_nothing_new_any_more() -> None:
    outbox = holding(added(1), ForwardStart(1), Withdraw())
    assert told(outbox) == [ForwardStart(1), Withdraw()]


def test_a_sibling_that_confirms_nothing_for_long_has_broken_its_promise() -> None:
    outbox = holding(ForwardStart(1))
    assert [outbox.on_tick() for _ in range(20)] == [False] * 20, "nothing is on the way to it"
    assert outbox.take(0)
    assert [outbox.on_tick() for _ in range(SILENT_TICKS)] == [False] * SILENT_TICKS
    outbox.on_acked(0)
    assert [outbox.on_tick() for _ in range(SILENT_TICKS + 1)] == [False] * SILENT_TICKS + [True]
    outbox.on_acked(1)
    assert [outbox.on_tick() for _ in range(20)] == [False] * 20


def test_what_comes_and_goes_while_another_waits_takes_no_room() -> None:
    outbox = holding(added(1))
    for _ in range(1000):
        put(outbox, added(2), removed(2))
    put(outbox, added(2))
    assert len(outbox._new_interest._order) < 200
    assert told(outbox) == [added(1), added(2)]


def test_who_waits_for_a_message_is_told_when_its_batch_is_worked_off() -> None:
    outbox = Outbox(0)
    done: list[int] = []
    for number in range(BATCH_RECORDS + 2):
        message = ForwardStart(number)
        outbox.put(message, PORTAL_MESSAGES.encode(message), partial(done.append, number))
    for replaced in (ForwardStop(1), ForwardStart(2)):
        outbox.put(replaced, PORTAL_MESSAGES.encode(replaced))
    assert [bool(outbox.take(0)) for _ in range(3)] == [True, True, False]
    assert (outbox.on_acked(0), done) == ([], [])
    for last in (BATCH_RECORDS, BATCH_RECORDS + 2):
        for on_worked_off in outbox.on_acked(1):
            on_worked_off()
        assert done == [number for number in range(last) if number not in (1, 2)]
    assert outbox.on_acked(5) == []
