"""Interest as a DRO portal keeps it (use queries, remote interest) and tells it (interest records, domain routes)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dro.clock import ms, s
from dro.config.dro_xml.model import EndpointConfig
from dro.proto.interest.announced import (
    INTEREST_OPTIONS,
    INTEREST_RATE,
    ROUTE_OPTIONS,
    ROUTE_RATE,
    DomainRouteSender,
    DomainRouteTable,
    InitialRequest,
    InterestSender,
    IntervalOptions,
)
from dro.proto.interest.events import InterestGained, InterestLost
from dro.proto.interest.remote_domains import RemoteInterest, RemoteInterestOptions
from dro.proto.interest.tqr_use_query import USE_QUERY_RATE, LocalInterest, UseQueryOptions
from dro.proto.new_entries import NewEntryRate
from dro.proto.resolver.record_queue import DRAIN_MAX, Rate
from dro.timers import DUE_MAX
from dro.wire.lbmr import packet as lbmr
from tests.builders.dro_file import parse_dro
from tests.fakes.channel import packet
from tests.fakes.steps import steps

AAA = (b"AAA", 0)
DRO = b"""<tnw-gateway version="1.0"><daemon/><portals>
  <endpoint><name>A</name><domain-id>1</domain-id>
    <lbm-attributes><option name="resolver_multicast_address" scope="context" value="239.1.1.1"/></lbm-attributes>
  </endpoint>
  <endpoint><name>B</name><domain-id>2</domain-id></endpoint>
</portals></tnw-gateway>"""


class Timed(Protocol):
    def next_deadline(self) -> int | None: ...
    def on_timer(self, now_ns: int) -> object: ...


T = TypeVar("T")


def drive(core: Timed, take: Callable[[], list[T]], until_ms: float) -> list[tuple[float, T]]:
    """Everything sent up to a time, with the times in ms."""
    out = [(-1.0, item) for item in take()]
    for _ in range(200_000):
        due = core.next_deadline()
        if due is None or due > ms(until_ms):
            return out
        core.on_timer(due)
        out += [(due / 1_000_000, item) for item in take()]
    raise AssertionError("time does not advance")


# ---------------------------------------------------------------------------------------------------- use queries


def use(name: bytes, flags: int = 0) -> lbmr.Tmr:
    return lbmr.Tmr(lbmr.TmrType.USE, flags, name)


def test_interest_is_gained_by_queries_of_applications_and_stores_only() -> None:
    table = LocalInterest()
    table.on_packet(packet(lbmr.Queries((b"AAA", b"AAA"))), 0)
    table.on_packet(
        packet(lbmr.WildcardQueries((lbmr.WildcardTqr(1, b"^A"), lbmr.WildcardTqr(9, b"x"))), source_type=2), 0
    )
    table.on_packet(packet(lbmr.Queries((b"BBB",)), source_type=1), 0)
    table.on_packet(packet(lbmr.TopicManagement((use(b"CCC", 0x80), use(b"DDD")))), 0)
    assert table.take_events() == [
        InterestGained(AAA, 0),
        InterestGained((b"^A", 1)),
        InterestGained((b"CCC", 0)),
    ]
    assert AAA in table
    assert len(table) == 3
    assert table.symbols() == [AAA, (b"^A", 1), (b"CCC", 0)]


def test_silent_interest_is_queried_and_removed_after_fifteen_seconds() -> None:
    table = LocalInterest()
    table.on_sign(AAA, 0)
    table.take_events()
    got = drive(table, table.take_outgoing, 1_000_000)
    assert got == [(300_000 + 3000 * k, use(b"AAA")) for k in range(5)]
    assert table.take_events() == [InterestLost(AAA, 0)]
    assert AAA not in table


def test_the_removal_comes_three_seconds_after_the_last_query() -> None:
    table = LocalInterest()
    table.on_sign(AAA, 0)
    drive(table, table.take_outgoing, 314_999)
    assert AAA in table
    assert table.next_deadline() == ms(315_000)
    drive(table, table.take_outgoing, 315_000)
    assert AAA not in table


def test_queries_of_receivers_suppress_use_queries() -> None:
    table = LocalInterest()
    for at in range(0, 3000, 60):
        table.on_sign(AAA, s(at))
        assert drive(table, table.take_outgoing, at * 1000 + 59_999) == []
    got = drive(table, table.take_outgoing, 10_000_000)
    assert got[0][0] == (2940 + 300) * 1000


def test_an_answer_ends_the_series() -> None:
    table = LocalInterest()
    table.on_sign(AAA, 0)
    drive(table, table.take_outgoing, 304_000)
    table.on_packet(packet(lbmr.TopicManagement((use(b"AAA", 0x80),))), ms(304_000))
    got = drive(table, table.take_outgoing, 10_000_000)
    assert got == [(604_000 + 3000 * k, use(b"AAA")) for k in range(5)], "the next series is a whole one"


def test_a_leave_starts_the_series_at_once() -> None:
    table = LocalInterest()
    table.on_sign((b"^A", 2), 0)
    leave = lbmr.Tmr(lbmr.TmrType.LEAVE, lbmr.TmrFlag.REGEX, b"^A")
    table.on_packet(packet(lbmr.TopicManagement((leave, leave))), ms(1000))
    assert table.take_outgoing() == [use(b"^A", lbmr.TmrFlag.REGEX)]
    table.on_packet(packet(lbmr.TopicManagement((leave,))), ms(1100))
    got = drive(table, table.take_outgoing, 100_000)
    assert [at for at, _ in got] == [4000, 7000, 10_000, 13_000]
    assert table.take_events()[-1] == InterestLost((b"^A", 2))


def test_a_leave_of_another_dro_or_of_something_unknown_means_nothing() -> None:
    table = LocalInterest()
    table.on_sign(AAA, 0)
    leave = lbmr.TopicManagement((lbmr.Tmr(0, 0, b"AAA"), lbmr.Tmr(0, 0, b"BBB")))
    table.on_packet(packet(leave, source_type=1), 0)
    assert table.take_outgoing() == []


def test_what_was_known_before_is_asked_for_one_after_the_other() -> None:
    table = LocalInterest(rate=Rate(0, 0))
    names = [b"T%d" % n for n in range(40)]
    for name in names:
        table.take_known((name, 0), 0)
    assert table.take_events() == [InterestGained((name, 0)) for name in names]
    table.on_sign((b"T0", 0), ms(1000))
    table.check_known(ms(7000))
    got = drive(table, table.take_outgoing, 7034)
    assert [(at, record.name) for at, record in got] == [
        (7000.0 + 10 * -(-(n - 1) // 10), b"T%d" % n) for n in range(1, 32)
    ], "a millisecond each, in steps of 10; not the one that was heard"
    table.on_sign((b"T39", 0), ms(7034))
    got = drive(table, table.take_outgoing, 7100)
    assert [record.name for _, record in got] == names[32:39], "nor one that is heard before its turn"
    drive(table, table.take_outgoing, 60_000)
    assert table.take_events() == [InterestLost((b"T%d" % n, 0)) for n in range(1, 39)]
    table.take_known((b"T0", 0), ms(60_000))
    assert table.take_events() == [], "no news"


def test_other_intervals_do_not_end_the_check_of_what_was_known() -> None:
    table = LocalInterest(rate=Rate(0, 0))
    for n in range(100):
        table.take_known((b"T%d" % n, 0), 0)
    table.check_known(0)
    never = UseQueryOptions(periodic_interval_ns=0)
    table.set_options(never, never, (Rate(0, 0), Rate(0, 0)), ms(20))
    table.on_sign((b"T99", 0), ms(30))
    got = drive(table, table.take_outgoing, 90_000)
    assert {record.name for _, record in got} == {b"T%d" % n for n in range(99)}, "the last one was heard"
    assert table.symbols() == [(b"T99", 0)]


def test_the_rate_limit_delays_queries_and_the_time_for_their_answers() -> None:
    table = LocalInterest(rate=Rate(0, 100))
    for n in range(30):
        table.on_sign((b"T%d" % n, 0), 0)
    got = drive(table, table.take_outgoing, 300_250)
    assert [at for at, _ in got] == [300_000] * 10 + [300_100] * 10 + [300_200] * 10
    got = drive(table, table.take_outgoing, 303_199)
    assert [at for at, _ in got] == [303_000] * 10 + [303_100] * 10


def test_a_query_that_waits_is_dropped_by_a_sign_of_life() -> None:
    table = LocalInterest(rate=Rate(0, 10))
    for n in range(3):
        table.on_sign((b"T%d" % n, 0), 0)
    drive(table, table.take_outgoing, 300_000)
    table.on_sign((b"T1", 0), ms(300_001))
    got = drive(table, table.take_outgoing, 300_400)
    assert [tmr.name for _, tmr in got] == [b"T2"]


def test_a_sign_of_life_between_two_reasons_to_ask_leaves_one_query() -> None:
    table = LocalInterest(rate=Rate(0, 10))
    for name in (b"T1", b"T2"):
        table.on_sign((name, 0), 0)
    drive(table, table.take_outgoing, 299_999)
    table.on_timer(ms(300_000))
    table.on_sign((b"T2", 0), ms(300_000))
    table.on_leave((b"T2", 0), ms(300_000))
    got = drive(table, table.take_outgoing, 302_000)
    assert [(at, tmr.name) for at, tmr in got] == [(-1, b"T1"), (300_100, b"T2")]


def test_every_input_lets_go_out_what_waited_for_its_time() -> None:
    table = LocalInterest(rate=Rate(0, 10))
    for n in range(4):
        table.on_sign((b"T%d" % n, 0), 0)
    assert (table.next_deadline(), table.take_outgoing()) == (ms(300_000), [])
    drive(table, table.take_outgoing, 300_000)
    table.on_sign((b"T0", 0), ms(300_150))
    assert [tmr.name for tmr in table.take_outgoing()] == [b"T1"]
    table.set_options(UseQueryOptions(), UseQueryOptions(), (Rate(0, 10), Rate()), ms(300_250))
    assert [tmr.name for tmr in table.take_outgoing()] == [b"T2"]
    table.set_options(UseQueryOptions(), UseQueryOptions(), (Rate(0, 20), Rate()), ms(300_251))
    assert [tmr.name for tmr in table.take_outgoing()] == [b"T3"], "another limit has an account of its own"


def test_periodic_queries_are_spread() -> None:
    asked: list[int] = []

    def jitter(ns: int) -> int:
        asked.append(ns)
        return ms(7)

    table = LocalInterest(jitter=jitter)
    table.on_sign(AAA, 0)
    assert table.next_deadline() == ms(300_010), "times are rounded up to 10 ms"
    assert asked == [ms(300_000) // 64]


def test_the_cores_have_the_defaults_of_the_dro_file() -> None:
    endpoint = parse_dro(DRO, "dro.xml", warn=print).portals[0]
    assert isinstance(endpoint, EndpointConfig)
    tr = endpoint.topic_resolution
    for asked in (tr.topic_use_query, tr.pattern_use_query):
        assert UseQueryOptions(ms(asked.timeout_ms), asked.max, ms(asked.periodic_interval_ms)) == UseQueryOptions()
        assert Rate(asked.rate_limit.bps, asked.rate_limit.objects_per_second) == USE_QUERY_RATE
    for kept in (endpoint.remote_topic, endpoint.remote_pattern):
        options = RemoteInterestOptions(ms(kept.check_interval_ms), kept.max, ms(kept.timeout_ms))
        assert options == RemoteInterestOptions()
    for told, options_told, rate in (
        (tr.remote_topic_interest, INTEREST_OPTIONS, INTEREST_RATE),
        (tr.remote_pattern_interest, INTEREST_OPTIONS, INTEREST_RATE),
        (tr.domain_route, ROUTE_OPTIONS, ROUTE_RATE),
    ):
        assert IntervalOptions(ms(told.min_interval_ms), ms(told.max_interval_ms)) == options_told
        assert Rate(told.rate_limit.bps, told.rate_limit.objects_per_second) == rate
    local, remote, sender, routes = LocalInterest(), RemoteInterest(), InterestSender(), DomainRouteSender()
    assert [core.next_deadline() for core in (local, remote, sender, routes)] == [None] * 4
    assert [*local.take_outgoing(), *sender.take_outgoing(), *routes.take_outgoing()] == []


def test_strangers_cannot_make_it_remember_without_end() -> None:
    table = LocalInterest(entries_max=10)
    for n in range(100):
        table.on_sign((b"T%d" % n, 0), 0, source_ip=n)
    assert (len(table), table.refused) == (10, 90)


def test_use_queries_and_interest_that_wait_for_the_limit_cost_nothing_while_they_wait() -> None:
    def cost_of_queries(topics: int) -> int:
        table = LocalInterest(UseQueryOptions(ms(10), 1, ms(100)), rate=Rate(0, 10))
        for n in range(topics):
            table.on_sign((b"T%d" % n, 0), 0)
        table.on_timer(ms(100))
        return steps(lambda: drive(table, table.take_outgoing, 5000))

    def cost_of_interest(topics: int) -> int:
        sender = InterestSender(rate=Rate(0, 10))
        for n in range(topics):
            sender.want((b"T%d" % n, 0), 3, 0)
        return steps(lambda: drive(sender, sender.take_outgoing, 5000))

    for cost in (cost_of_queries, cost_of_interest):
        assert cost(200) < 1.2 * cost(60)


def test_what_falls_due_at_once_is_done_in_bounded_pieces() -> None:
    table = LocalInterest(UseQueryOptions(ms(10), 1, ms(100)), rate=Rate())
    sender = InterestSender(rate=Rate())
    for n in range(4 * DUE_MAX):
        table.on_sign((b"T%d" % n, 0), 0)
        sender.want((b"T%d" % n, 0), 3, 0)
    assert len(table.take_events()) == 4 * DUE_MAX
    drive(sender, sender.take_outgoing, 500)
    for core in (table, sender):
        pieces = []
        while (due := core.next_deadline()) is not None and due <= ms(1000):
            core.on_timer(ms(1000))
            pieces.append(len(core.take_outgoing()))
        assert (sum(pieces), max(pieces)) == (4 * DUE_MAX, DRAIN_MAX)
    sender.tell_all(ms(1000))
    sender.tell_all(ms(1000))
    pieces = [len(sender.take_outgoing())]
    while sender.next_deadline() == ms(1000):
        sender.on_timer(ms(1000))
        pieces.append(len(sender.take_outgoing()))
    assert (sum(pieces), max(pieces)) == (4 * DUE_MAX, DRAIN_MAX)


def test_one_address_may_fill_half_of_the_table_and_leaves_with_its_entries() -> None:
    table = LocalInterest(UseQueryOptions(ms(10), 1, ms(100)), entries_max=5)
    for n in range(10):
        table.on_sign((b"T%d" % n, 0), 0, source_ip=1)
    assert (len(table), table.refused, table.kinds) == (3, 7, {0: 3})
    for n in range(10):
        table.on_sign((b"U%d" % n, 1), 0, source_ip=2)
    assert (len(table), table.refused, table.kinds) == (5, 15, {0: 3, 1: 2})
    table.on_sign((b"T0", 0), 0, source_ip=2)
    assert table.refused == 15, "what is known is not refused, whoever says so"
    drive(table, table.take_outgoing, 5000)
    assert [symbol in table for symbol in ((b"T0", 0), (b"U0", 1))] == [False, True]
    table.on_sign((b"T9", 0), ms(5000), source_ip=1)
    assert ((b"T9", 0) in table, table.kinds[0]) == (True, 1)


def test_new_interest_is_taken_at_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dro.proto.interest.tqr_use_query.NEW_INTEREST", NewEntryRate(in_all=3, of_one=2))
    table = LocalInterest()
    for n, ip in enumerate((1, 1, 1, 2, 3)):
        table.on_packet(packet(lbmr.Queries((b"T%d" % n,))), 0, ip)
    table.on_packet(packet(lbmr.WildcardQueries((lbmr.WildcardTqr(1, b"P"),))), 0, 4)
    table.on_packet(packet(lbmr.TopicManagement((use(b"U", 0x80),))), 0, 5)
    assert (table.symbols(), table.limited, table.refused) == ([(b"T0", 0), (b"T1", 0), (b"T3", 0)], 4, 0)
    table.on_packet(packet(lbmr.Queries((b"T2",))), ms(1000), 1)
    assert (b"T2", 0) in table


def test_new_interest_of_other_domains_is_taken_at_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dro.proto.interest.remote_domains.NEW_INTEREST", NewEntryRate(in_all=3, of_one=2))
    table = RemoteInterest()
    for n, ip in enumerate((1, 1, 1, 2, 3)):
        table.on_packet(packet(lbmr.TnwgInterest((interest(b"T%d" % n),)), source_type=1), 0, ip)
    assert (len(table), table.kinds[0], table.limited, table.refused) == (3, 3, 2, 0)
    table.on_record(interest(b"T2"), b"A", ms(1000), 1)
    assert (len(table), table.kinds[0]) == (4, 4)


def test_remote_interest_counts_what_is_wanted_and_how_often() -> None:
    table = RemoteInterest()
    for domain in (3, 4):
        for teller in (b"A", b"B"):
            table.on_record(lbmr.InterestRecord(domain, b"T"), teller, 0)
    assert (table.kinds, len(table)) == ({0: 1}, 2)
    for domain, symbols, entries in ((3, 1, 1), (4, 0, 0)):
        for teller in (b"A", b"B"):
            table.on_record(lbmr.InterestRecord(domain, b"T", lbmr.InterestFlag.CANCEL), teller, 0)
        assert (table.kinds[0], len(table)) == (symbols, entries)


def test_options_of_topics_and_patterns_are_apart() -> None:
    table = LocalInterest(UseQueryOptions(ms(10), 1, ms(100)), UseQueryOptions(ms(20), 2, ms(1000)))
    table.on_sign(AAA, 0)
    table.on_sign((b"^A", 1), 0)
    got = drive(table, table.take_outgoing, 5000)
    assert [at for at, _ in got] == [100, 1000, 1020]


# ---------------------------------------------------------------------------------------------------- remote interest


def interest(name: bytes = b"AAA", domain: int = 3, flags: int = 0, pattern_type: int = 0) -> lbmr.InterestRecord:
    return lbmr.InterestRecord(domain, name, flags, pattern_type)


CANCEL = int(lbmr.InterestFlag.CANCEL)


def test_interest_records_of_dros_are_kept() -> None:
    table = RemoteInterest(own_domain_id=2)
    body = lbmr.TnwgInterest((interest(), interest(domain=4), interest(domain=2), interest(domain=0), interest()))
    table.on_packet(packet(body, source_type=0), 0)
    assert table.take_events() == []
    table.on_packet(packet(body, source_type=1), 0)
    assert table.take_events() == [InterestGained(AAA, 3), InterestGained(AAA, 4)]
    assert (AAA, 3) in table
    assert table.items() == [(AAA, 3), (AAA, 4)]


def test_topics_and_patterns_have_tables_of_their_own() -> None:
    pattern = interest(b"^A", flags=lbmr.InterestFlag.PATTERN, pattern_type=1)
    topics, patterns = RemoteInterest(), RemoteInterest(is_for_patterns=True)
    for table in (topics, patterns):
        table.on_record(pattern, b"x", 0)
        table.on_record(interest(), b"x", 0)
        table.on_record(interest(domain=1), b"x", 0)
    assert topics.items() == [(AAA, 3), (AAA, 1)], "no domain is the own one unless told so"
    assert patterns.items() == [((b"^A", 1), 3)]


def test_a_cancel_removes_at_once_but_only_what_its_sender_said() -> None:
    table = RemoteInterest()
    table.on_record(interest(), b"A", 0)
    table.on_record(interest(), b"B", 0)
    table.on_record(interest(flags=CANCEL), b"A", 1)
    table.on_record(interest(flags=CANCEL), b"C", 1)
    assert table.take_events() == [InterestGained(AAA, 3)]
    table.on_record(interest(flags=CANCEL), b"B", 2)
    assert table.take_events() == [InterestLost(AAA, 3)]
    assert table.next_deadline() is None


@pytest.mark.parametrize("repeat_at", [0, 1, 59_999, 60_000, 89_999])
def test_unrefreshed_interest_goes_after_300_to_390_seconds(repeat_at: int) -> None:
    table = RemoteInterest()
    table.on_record(interest(), b"A", 0)
    table.on_record(interest(flags=lbmr.InterestFlag.REFRESH), b"A", ms(repeat_at))
    table.take_events()
    gone_at = None
    while gone_at is None:
        due = table.next_deadline()
        assert due is not None
        table.on_timer(due)
        if table.take_events():
            gone_at = due / 1_000_000
    assert 300_000 <= gone_at - repeat_at <= 390_000


def test_many_entries_are_tested_in_rounds_50_ms_apart() -> None:
    table = RemoteInterest(RemoteInterestOptions(ms(90_000), 100, ms(300_000)))
    table.on_record(interest(b"T"), b"A", 0)
    for n in range(999):
        table.on_record(interest(b"T%d" % n), b"A", 0)
    rounds = []
    while table.next_deadline() is not None:
        due = table.next_deadline()
        assert due is not None
        rounds.append(due / 1_000_000)
        table.take_events()
        table.on_timer(due)
        assert len(table.take_events()) <= 100
    assert rounds[:4] == [90_000, 90_050, 90_100, 90_150]
    assert rounds[-1] == 360_450
    assert len(table) == 0


def test_a_timeout_of_whole_checks_ends_with_the_last_of_them() -> None:
    table = RemoteInterest(RemoteInterestOptions(ms(100), 100, ms(300)))
    table.on_record(interest(), b"A", 0)
    for at in (100, 200, 300):
        assert (table.next_deadline(), len(table)) == (ms(at), 1)
        table.on_timer(ms(at))
    assert (table.next_deadline(), len(table)) == (None, 0)


def test_a_round_tests_one_entry_at_least() -> None:
    table = RemoteInterest(RemoteInterestOptions(ms(100), 0, ms(100)))
    for n in range(2):
        table.on_record(interest(b"T%d" % n), b"A", 0)
    table.on_timer(ms(100))
    assert (table.next_deadline(), len(table)) == (ms(150), 1)


def test_a_domain_told_late_is_tested_by_its_own_time() -> None:
    table = RemoteInterest()
    table.on_record(interest(b"A"), b"A", 0)
    table.on_record(interest(b"B"), b"A", ms(89_999))
    table.on_timer(ms(90_000))
    assert table.next_deadline() == ms(179_999)


def test_remote_interest_is_bounded() -> None:
    table = RemoteInterest(entries_max=5)
    for n in range(50):
        table.on_record(interest(b"T%d" % n), b"A", 0)
    assert (len(table), table.refused) == (5, 45)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(1, 3), st.sampled_from([0, CANCEL]), st.sampled_from([b"A", b"B"]))
    )
)
def test_the_table_is_what_the_living_tellers_said(steps: list[tuple[str, int, int, bytes]]) -> None:
    table = RemoteInterest()
    model: set[tuple[str, int, bytes]] = set()
    known: set[tuple[tuple[bytes, int], int]] = set()
    for name, domain, flags, teller in steps:
        table.on_record(interest(name.encode(), domain, flags), teller, 0)
        (model.discard if flags else model.add)((name, domain, teller))
        for event in table.take_events():
            key = (event.symbol, event.domain_id)
            if isinstance(event, InterestGained):
                assert key not in known
                known.add(key)
            else:
                known.remove(key)
        assert known == {((name.encode(), 0), domain) for name, domain, _ in model} == set(table.items())


# ---------------------------------------------------------------------------------------------------- telling


def test_interest_is_told_at_once_and_repeated_up_to_every_minute() -> None:
    sender = InterestSender()
    sender.want(AAA, 3, 0)
    got = drive(sender, sender.take_outgoing, 250_000)
    times = [at for at, _ in got]
    assert times == [-1, 1000, 3000, 7000, 15_000, 31_000, 63_000, 123_000, 183_000, 243_000]
    assert [record.flags for _, record in got] == [0] + [lbmr.InterestFlag.REFRESH] * 9
    assert got[0][1] == lbmr.InterestRecord(3, b"AAA", 0, 0)


def test_interest_wanted_twice_is_told_once() -> None:
    sender = InterestSender()
    sender.want((b"^A", 1), 3, ms(5))
    sender.want((b"^A", 1), 3, ms(5))
    assert sender.take_outgoing() == [lbmr.InterestRecord(3, b"^A", lbmr.InterestFlag.PATTERN, 1)]
    assert len(sender) == 1


def test_lost_interest_is_cancelled_three_times() -> None:
    sender = InterestSender()
    sender.want(AAA, 3, 0)
    drive(sender, sender.take_outgoing, 5000)
    sender.unwant(AAA, 3, ms(5000))
    got = drive(sender, sender.take_outgoing, 100_000)
    assert [(at, record.flags) for at, record in got] == [(-1, CANCEL), (5100, CANCEL), (5200, CANCEL)]
    assert len(sender) == 0


def test_of_lost_interest_nothing_is_kept() -> None:
    name = b"".join((b"A", b"AA"))
    count = sys.getrefcount(name)
    sender = InterestSender()
    for at in (0, 10_000):
        sender.unwant((name, 0), 3, ms(at))  # not wanted: nothing to say
        sender.want((name, 0), 3, ms(at))
        sender.set_options(ROUTE_OPTIONS, ROUTE_OPTIONS, (Rate(), Rate()), ms(at))
        sender.unwant((name, 0), 3, ms(at + 1))
        sender.unwant((name, 0), 3, ms(at + 2))
        got = drive(sender, sender.take_outgoing, at + 9000)
        assert [record.flags for _, record in got] == [CANCEL] * 3
        assert sender.next_deadline() is None
        del got
        assert sys.getrefcount(name) == count


def test_interest_that_returns_ends_the_cancels() -> None:
    sender = InterestSender()
    sender.want(AAA, 3, 0)
    drive(sender, sender.take_outgoing, 5000)
    sender.unwant(AAA, 3, ms(5000))
    sender.want(AAA, 3, ms(5000))
    got = drive(sender, sender.take_outgoing, 6500)
    assert [(at, record.flags) for at, record in got] == [(-1, 0), (6000, lbmr.InterestFlag.REFRESH)]


def test_a_request_brings_everything_at_once() -> None:
    sender = InterestSender()
    sender.want(AAA, 3, 0)
    sender.want((b"BBB", 0), 4, 0)
    sender.take_outgoing()
    for _ in range(2):
        sender.tell_all(ms(10))
    assert [record.symbol for record in sender.take_outgoing()] == [b"AAA", b"BBB"]


def test_every_input_lets_go_out_what_waited() -> None:
    sender = InterestSender(rate=Rate(0, 10))
    for n in range(4):
        sender.want((b"T%d" % n, 0), 3, 0)
    assert [record.symbol for record in sender.take_outgoing()] == [b"T0"]
    sender.want(AAA, 3, ms(150))
    assert [record.symbol for record in sender.take_outgoing()] == [b"T1"]
    sender.set_options(INTEREST_OPTIONS, INTEREST_OPTIONS, (Rate(0, 10), Rate()), ms(250))
    assert [record.symbol for record in sender.take_outgoing()] == [b"T2"]
    sender.tell_all(ms(350))
    assert [record.symbol for record in sender.take_outgoing()] == [b"T3"]


def test_domain_routes_slow_down_after_a_change() -> None:
    sender = DomainRouteSender()

    def take() -> list[tuple[int, ...]]:
        got = sender.take_outgoing()
        return [got] if got else []

    sender.set_domains((2, 1, 2), 0)
    got = drive(sender, take, 3600)
    assert got == [(at, (1, 2)) for at in (-1, 100, 300, 700, 1500, 2500, 3500)]
    sender.set_domains((1,), ms(3600))
    assert drive(sender, take, 3700) == [(-1, (1,)), (3700, (1,))]
    sender.set_domains((), ms(3750))
    assert drive(sender, take, 10_000) == []
    for wrong in (0, 1 << 32):
        with pytest.raises(ValueError, match="domain id"):
            sender.set_domains((wrong,), 0)
    sender.set_domains(((1 << 32) - 1,), s(20))
    assert sender.take_outgoing() == ((1 << 32) - 1,)


def test_domain_routes_are_limited_to_fifty_domains_a_second() -> None:
    sender = DomainRouteSender()
    sender.set_domains(range(1, 13), 0)

    def take() -> list[tuple[int, ...]]:
        got = sender.take_outgoing()
        return [got] if got else []

    got = drive(sender, take, 399)
    assert [len(domains) for _, domains in got] == [5, 5, 5, 5]
    assert {domain for _, domains in got for domain in domains} == set(range(1, 13))


def test_a_domain_waits_once_however_often_it_is_due() -> None:
    sender = DomainRouteSender(rate=Rate(0, 10))
    sender.set_domains((1, 2, 3), 0)
    got = drive(sender, lambda: list(sender.take_outgoing()), 699)
    assert got == [(-1, 1), (100, 2), (200, 3), (300, 1), (400, 2), (500, 3)]


def test_a_context_forgets_a_route_that_is_not_repeated() -> None:
    table = DomainRouteTable(entries_max=3)
    table.learn((1, 2, 3, 4), 0x0A000001, 14391, 0)
    assert len(table) == 3
    assert table.find(1, s(3)) == (0x0A000001, 14391)
    table.learn((1,), 0x0A000002, 14391, s(2))
    assert table.find(1, s(2)) == (0x0A000002, 14391), "the one that began last"
    assert table.find(2, s(2)) == (0x0A000001, 14391)
    table.learn((1,), 0x0A000001, 14391, s(3))
    assert table.find(1, s(3)) == (0x0A000002, 14391), "a repetition begins nothing"
    assert table.find(1, s(5) + 1) == (0x0A000001, 14391), "the other is void"
    table.learn((9,), 0x0A000002, 14391, s(5))
    assert table.find(9, s(5)) is None, "full"
    assert table.find(2, s(5)) is None
    assert len(table) == 2
    table.learn((9,), 0x0A000002, 14391, s(5))
    assert table.find(9, s(5)) == (0x0A000002, 14391)


def test_so_many_dros_can_offer_a_domain_at_a_time() -> None:
    table = DomainRouteTable(offers_max=2)
    for ip in (1, 2, 3):
        table.learn((7,), ip, 14391, ip)
    assert table.find(7, 3) == (2, 14391)
    table.learn((7,), 3, 14391, s(4))
    assert table.find(7, s(4)) == (3, 14391)
    table = DomainRouteTable()
    table.learn(range(1, 70_000), 0x0A000001, 14391, 0)
    assert len(table) == 65_536


def test_one_request_a_second_for_ten_seconds() -> None:
    request = InitialRequest(ms(5))
    times = []
    while (due := request.next_deadline()) is not None:
        assert request.on_timer(due - 1) is None
        assert request.on_timer(due) == lbmr.TopicResolutionRequest(0x43)
        times.append(due / 1_000_000)
    assert times == [5 + 1000 * k for k in range(10)]
    assert InitialRequest(0, 0).next_deadline() is None
    late = InitialRequest(ms(5))
    assert late.on_timer(ms(3700)) is not None
    assert late.next_deadline() == ms(4005)
