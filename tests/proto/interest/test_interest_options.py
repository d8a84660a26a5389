"""Timers and limits of a DRO's interest cores that change while they run: what waits, waits by the new numbers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from dro.clock import ms, s
from dro.proto.interest.announced import DomainRouteSender, InitialRequest, InterestSender, IntervalOptions
from dro.proto.interest.events import InterestLost
from dro.proto.interest.remote_domains import RemoteInterest, RemoteInterestOptions
from dro.proto.interest.tqr_use_query import LocalInterest, UseQueryOptions
from dro.proto.resolver.record_queue import Rate
from dro.proto.resolver.schedule import DoublingSchedule
from dro.timers import DUE_MAX
from dro.wire.lbmr import packet as lbmr
from tests.fakes.steps import steps
from tests.proto.interest.test_dro_interest import drive, interest

FAST = Rate()
BOTH = (FAST, FAST)
QUERIES = UseQueryOptions(ms(3000), 5, ms(300_000))


def query_times(table: LocalInterest, until_ms: float) -> list[float]:
    return [at for at, _ in drive(table, table.take_outgoing, until_ms)]


# local interest


def test_a_shorter_interval_counts_from_the_last_sign_of_life() -> None:
    table = LocalInterest(QUERIES, QUERIES, rate=FAST)
    table.on_sign((b"AAA", 0), 0)
    assert query_times(table, 20_000) == []
    table.set_options(UseQueryOptions(ms(3000), 5, ms(60_000)), QUERIES, BOTH, ms(20_000))
    assert query_times(table, 62_000) == [60_000]


def test_who_is_silent_for_longer_than_the_new_interval_is_asked_now() -> None:
    table = LocalInterest(QUERIES, QUERIES, rate=FAST)
    table.on_sign((b"AAA", 0), 0)
    query_times(table, 100_000)
    table.set_options(UseQueryOptions(ms(3000), 5, ms(50_000)), QUERIES, BOTH, ms(100_000))
    due = table.next_deadline()
    assert due is not None
    assert due <= ms(100_000)
    table.on_timer(ms(100_000))
    assert len(table.take_outgoing()) == 1


def test_a_series_that_runs_goes_on_by_the_new_numbers() -> None:
    table = LocalInterest(QUERIES, QUERIES, rate=FAST)
    table.on_sign((b"AAA", 0), 0)
    table.on_leave((b"AAA", 0), ms(1000))
    assert len(table.take_outgoing()) == 1
    table.set_options(UseQueryOptions(ms(200), 2, ms(500)), QUERIES, BOTH, ms(2000))
    assert query_times(table, 20_000) == [4000], "the first is waited for as it was, the second is the last"
    assert len(table) == 0
    assert table.next_deadline() is None


def test_patterns_and_topics_have_their_own_options_and_accounts() -> None:
    table = LocalInterest(QUERIES, QUERIES, rate=Rate(0, 10), pattern_rate=FAST)
    for n in range(5):
        table.on_sign((b"t%d" % n, 0), 0)
        table.on_sign((b"p%d" % n, 1), 0)
    quick = UseQueryOptions(ms(50_000), 5, ms(1000))
    table.set_options(quick, quick, (Rate(0, 10), FAST), 0)
    records = drive(table, table.take_outgoing, 2000)
    assert [at for at, record in records if record.pattern_type] == [1000] * 5
    topics = [at for at, record in records if not record.pattern_type]
    assert len(topics) == 5
    assert topics[0] == 1000
    assert topics[-1] == 1400, "one in each tenth of a second"


def test_the_same_options_move_no_timer() -> None:
    asked: list[int] = []

    def jitter(ns: int) -> int:
        asked.append(ns)
        return 0

    table = LocalInterest(QUERIES, QUERIES, rate=FAST, jitter=jitter)
    table.on_sign((b"AAA", 0), 0)
    before, deadline = len(asked), table.next_deadline()
    table.set_options(QUERIES, QUERIES, BOTH, ms(10))
    assert (len(asked), table.next_deadline()) == (before, deadline)


def test_periodic_queries_may_be_switched_off_and_on() -> None:
    table = LocalInterest(QUERIES, QUERIES, rate=FAST)
    table.on_sign((b"AAA", 0), 0)
    off = UseQueryOptions(ms(3000), 5, 0)
    table.set_options(off, off, BOTH, ms(10))
    assert table.next_deadline() is None
    table.set_options(QUERIES, QUERIES, BOTH, ms(20))
    assert table.next_deadline() == ms(300_000)


# remote interest


def test_remote_interest_is_tested_by_the_new_interval_at_the_latest() -> None:
    table = RemoteInterest(RemoteInterestOptions(ms(90_000), 100, ms(300_000)), own_domain_id=2)
    for n in range(3):
        table.on_record(interest(b"t%d" % n), b"teller", ms(n * 1000))
    assert table.next_deadline() == ms(90_000)
    table.set_options(RemoteInterestOptions(ms(1000), 100, ms(5000)), ms(2500))
    tests = []
    while (due := table.next_deadline()) is not None and due <= ms(20_000):
        table.on_timer(due)
        tests.append(due)
        table.take_events()
    assert tests[0] == ms(3500)
    assert len(table) == 0
    assert ms(5000) <= tests[-1] <= ms(9000)


def test_a_longer_interval_leaves_the_order_of_the_tests() -> None:
    table = RemoteInterest(RemoteInterestOptions(ms(100), 1, ms(300)), own_domain_id=2)
    for n in range(5):
        table.on_record(interest(b"t%d" % n), b"teller", ms(n))
    table.set_options(RemoteInterestOptions(ms(90_000), 1, ms(300)), ms(50))
    seen = []
    for at in range(0, 200_000, 50):
        table.on_timer(ms(at))
        seen += [event.symbol[0] for event in table.take_events() if isinstance(event, InterestLost)]
    assert seen == [b"t%d" % n for n in range(5)]


# what is told


def told(sender: InterestSender, until_ms: float) -> list[float]:
    return [at for at, _ in drive(sender, sender.take_outgoing, until_ms)]


def test_interest_is_told_again_by_the_new_intervals() -> None:
    slow, quick = IntervalOptions(ms(1000), ms(60_000)), IntervalOptions(ms(100), ms(500))
    sender = InterestSender(slow, slow, rate=FAST)
    sender.want((b"AAA", 0), 3, 0)
    sender.want((b"pat", 1), 3, 0)
    told(sender, 63_000)
    sender.set_options(quick, slow, BOTH, ms(64_000))
    assert told(sender, 64_010) == [], "the change alone tells nothing"
    assert told(sender, 66_000) == [64_500, 65_000, 65_500, 66_000]
    sender.set_options(slow, slow, BOTH, ms(66_100))
    later = told(sender, 200_000)
    assert later[0] == 66_500
    gaps = [b - a for a, b in pairwise(later) if b != a]
    assert max(gaps) <= 60_000


def test_the_same_intervals_change_nothing() -> None:
    options = IntervalOptions(ms(1000), ms(60_000))
    changed, left = (InterestSender(options, options, rate=FAST) for _ in range(2))
    for sender in (changed, left):
        sender.want((b"AAA", 0), 3, 0)
    for at in range(0, 100_000, 7000):
        changed.set_options(options, options, BOTH, ms(at))
        assert told(changed, at) == told(left, at)


def test_cancels_that_are_on_their_way_are_not_disturbed() -> None:
    options = IntervalOptions(ms(1000), ms(60_000))
    sender = InterestSender(options, options, rate=FAST)
    sender.want((b"AAA", 0), 3, 0)
    told(sender, 10)
    sender.unwant((b"AAA", 0), 3, ms(20))
    assert len(sender.take_outgoing()) == 1
    sender.set_options(IntervalOptions(ms(10), ms(20)), options, BOTH, ms(30))
    assert told(sender, 5000) == [120, 220]


def test_domain_routes_take_new_intervals_and_limits() -> None:
    sender = DomainRouteSender(IntervalOptions(ms(100), ms(1000)), rate=Rate(0, 50))
    sender.set_domains(range(1, 4), 0)
    drive(sender, lambda: list(sender.take_outgoing()), 5000)
    sender.set_options(IntervalOptions(ms(100), ms(200)), Rate(0, 10), ms(5000))
    times = [at for at, _ in drive(sender, lambda: list(sender.take_outgoing()), 6000)]
    assert len(times) == pytest.approx(10, abs=2), "ten domains a second from now on"


def test_new_intervals_hold_for_the_next_domains_too() -> None:
    sender = DomainRouteSender(rate=FAST)
    sender.set_options(IntervalOptions(ms(50), ms(50)), FAST, 0)
    sender.set_domains((1,), 0)
    assert [at for at, _ in drive(sender, lambda: list(sender.take_outgoing()), 160)] == [-1, 50, 100, 150]


def test_domain_routes_count_their_bits() -> None:
    """In a tenth of a second one datagram of 40 bytes and 4 for each domain, until 608 bits are reached."""
    sender = DomainRouteSender(rate=Rate(bps=6080))
    sender.set_domains(range(1, 16), 0)
    got = drive(sender, lambda: list(sender.take_outgoing()), 99)
    assert [domain for _, domain in got] == list(range(1, 10))


def test_requests_at_start_change_only_while_they_go_on() -> None:
    request = InitialRequest(0, ms(1000), s(10))
    assert request.on_timer(0) is not None
    assert request.on_timer(ms(1000)) is not None
    request.set_options(ms(100), s(2), ms(1500))
    times = [at for at in range(1500, 6000, 10) if request.on_timer(ms(at)) is not None]
    assert times == [1600, 1700, 1800, 1900]
    for at in (2000, 5000):
        request.set_options(ms(100), s(60), ms(at))
        assert request.next_deadline() is None


# schedules and accounts


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda x: x.set_intervals(ms(100), ms(400), ms(1000)), [1400, 1800, 2200]),
        (lambda x: x.set_intervals(ms(1000), ms(1200), ms(1000)), [1500]),
        (lambda x: x.set_intervals(ms(900), ms(1000), ms(1000)), [1500, 2500]),
        (lambda x: x.set_intervals(0, ms(400), ms(1000)), []),
        (lambda x: x.set_intervals(ms(100), 0, ms(1000)), []),
        (lambda x: None, [1500]),
    ],
)
def test_a_doubling_schedule_that_changes(change: Callable[[DoublingSchedule], object], expected: list[int]) -> None:
    """From 100 ms doubling to 10 s: due at 0, 100, 300, 700 and 1500 ms, then at 3100 ms."""
    schedule = DoublingSchedule(ms(100), ms(10_000), 0)
    for at in range(0, 1000, 10):
        schedule.on_tick(ms(at))
    change(schedule)
    assert [at for at in range(1000, 2600, 10) if schedule.on_tick(ms(at))] == expected


def test_a_schedule_that_was_off_begins() -> None:
    schedule = DoublingSchedule(0, ms(1000), 0)
    assert schedule.next_due() is None
    schedule.set_intervals(ms(100), ms(1000), ms(5000))
    assert schedule.next_due() == ms(5000)


def test_a_limit_that_changes_holds_for_what_waits() -> None:
    sender = InterestSender(rate=Rate(0, 10))
    for n in range(30):
        sender.want((b"t%d" % n, 0), 3, 0)
    assert len(sender.take_outgoing()) == 1
    options = IntervalOptions(ms(1000), ms(60_000))
    sender.set_options(options, options, (Rate(0, 0), FAST), ms(10))
    records = sender.take_outgoing()
    assert len(records) == 29
    assert all(isinstance(record, lbmr.InterestRecord) for record in records)


def test_new_intervals_of_very_much_interest_are_taken_over_in_bounded_pieces() -> None:
    every_second = IntervalOptions(ms(1000), ms(1000))

    def longest_piece(count: int) -> tuple[int, int]:
        table, sender = LocalInterest(QUERIES, QUERIES, rate=FAST), InterestSender(rate=FAST)
        for n in range(count):
            table.on_sign((b"%d" % n, 0), 0)
            sender.want((b"%d" % n, 0), 3, 0)
        drive(sender, sender.take_outgoing, 10)
        sooner = UseQueryOptions(ms(3000), 5, ms(60_000))
        pieces = [steps(lambda: table.set_options(sooner, QUERIES, BOTH, ms(20)))]
        while table.next_deadline() == ms(20):
            pieces.append(steps(lambda: table.on_timer(ms(20))))
        assert len(query_times(table, 60_000)) == count
        more = [steps(lambda: sender.set_options(every_second, every_second, BOTH, ms(20)))]
        while sender.next_deadline() == ms(20):
            more.append(steps(lambda: sender.on_timer(ms(20))))
        return max(pieces), max(more)

    few, many = longest_piece(DUE_MAX), longest_piece(5 * DUE_MAX)
    assert many[0] < 1.5 * few[0]
    assert many[1] < 1.5 * few[1]


def test_of_unchanged_intervals_nothing_is_gone_through() -> None:
    table = LocalInterest(QUERIES, QUERIES, rate=FAST)
    cost = steps(lambda: table.set_options(QUERIES, QUERIES, (Rate(0, 1), FAST), 0))
    for n in range(100):
        table.on_sign((b"%d" % n, 0), 0)
    assert steps(lambda: table.set_options(QUERIES, QUERIES, (Rate(0, 2), FAST), 0)) == cost
