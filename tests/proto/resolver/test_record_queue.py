"""Rate limits of the resolver: tenths of a second, records and bits."""

from __future__ import annotations

from dro.clock import ms
from dro.proto.resolver.record_queue import (
    ALONE_COSTS_RECORDS,
    DATAGRAM_OVERHEAD_BYTES,
    DRAIN_MAX,
    ClassLimit,
    Rate,
    RecordQueue,
)


def queue(rate: Rate, count: int) -> RecordQueue[bytes]:
    q: RecordQueue[bytes] = RecordQueue(rate, lambda record: record)
    for n in range(count):
        q.put(lambda n=n: b"%03d" % n)  # type: ignore[misc]  # a default that binds the loop variable
    return q


def test_records_per_tenth_of_a_second() -> None:
    q = queue(Rate(0, 50), 12)
    assert [len(run) for run in q.take_runs(ms(99))] == [5]
    assert q.take_runs(ms(99)) == []
    assert q.next_deadline(ms(99)) == ms(100)
    assert q.take_runs(ms(100)) == [[b"005", b"006", b"007", b"008", b"009"]]
    assert q.take_runs(ms(250)) == [[b"010", b"011"]]
    assert q.next_deadline(ms(250)) is None


def test_bits_per_tenth_of_a_second_may_be_exceeded_by_one_record() -> None:
    per_interval = (DATAGRAM_OVERHEAD_BYTES + 3 + 3) * 8 - 1
    q = queue(Rate(per_interval * 10, 0), 5)
    assert [len(run) for run in q.take_runs(0)] == [2]


def test_a_rate_below_one_record_still_sends_one_per_interval() -> None:
    for rate in (Rate(3, 0), Rate(0, 3)):
        q = queue(rate, 3)
        assert [q.take_runs(ms(100 * k)) for k in range(3)] == [[[b"000"]], [[b"001"]], [[b"002"]]]


def test_another_limit_has_an_account_of_its_own() -> None:
    q = queue(Rate(0, 10), 5)
    assert q.take_runs(0) == [[b"000"]]
    q.set_rate(Rate(0, 10))
    assert q.take_runs(0) == []
    q.set_rate(Rate(0, 20))
    assert q.take_runs(0) == [[b"001", b"002"]]


def test_zero_is_unlimited_and_a_turn_is_not() -> None:
    q = queue(Rate(), 2 * DRAIN_MAX + 1)
    pieces = []
    while q.next_deadline(0) == 0:
        pieces += [len(run) for run in q.take_runs(0)]
    assert pieces == [DRAIN_MAX, DRAIN_MAX, 1]


def test_of_datagrams_with_one_record_fewer_leave_in_a_turn() -> None:
    q: RecordQueue[bytes] = RecordQueue(Rate(), lambda record: record)
    for _ in range(DRAIN_MAX):
        q.put_group([lambda: b"a"])
    assert len(q.take_runs(0)) == DRAIN_MAX // (1 + ALONE_COSTS_RECORDS)
    q = queue(Rate(), 1)
    q.put_group([lambda: b"a"] * DRAIN_MAX)
    assert [len(run) for run in q.take_runs(0)] == [DRAIN_MAX - ALONE_COSTS_RECORDS], (
        "a large group is hardly more than records"
    )


def test_records_that_have_become_void_count_for_the_turn() -> None:
    q: RecordQueue[bytes] = RecordQueue(Rate(), lambda record: record)
    for _ in range(DRAIN_MAX):
        q.put(lambda: None)
    q.put(lambda: b"a")
    assert (q.take_runs(0), q.take_runs(0)) == ([], [[b"a"]])


def test_groups_stand_alone_and_leave_before_what_waits_but_what_is_ahead_as_well() -> None:
    q = queue(Rate(0, 40), 2)
    q.put(lambda: b"first", ahead=True)
    q.put_group([lambda: b"a", lambda: b"b", lambda: b"c"])
    q.put(lambda: b"second", ahead=True)
    q.put(lambda: b"d")
    assert len(q) == 8
    assert q.take_runs(0) == [[b"first"], [b"a", b"b", b"c"]]
    assert (len(q), q.next_deadline(0)) == (4, ms(100))
    assert q.take_runs(ms(100)) == [[b"second"], [b"000", b"001", b"d"]]
    assert q.next_deadline(ms(100)) is None


def test_records_that_became_void_cost_nothing() -> None:
    q: RecordQueue[bytes] = RecordQueue(Rate(0, 10), lambda record: record)
    for _ in range(5):
        q.put(lambda: None)
    q.put(lambda: b"x")
    assert q.take_runs(0) == [[b"x"]]


def test_an_interval_begins_at_multiples() -> None:
    limit = ClassLimit(Rate(0, 10))
    assert limit.has_room(ms(50))
    limit.charge(1)
    assert not limit.has_room(ms(99))
    assert limit.has_room(ms(100))
