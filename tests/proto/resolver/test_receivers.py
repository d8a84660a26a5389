"""The receiver side of the resolver: what is asked when, what is told, and what is forgotten."""

from __future__ import annotations

import sys

import pytest

from dro.clock import ms, s
from dro.proto.resolver.core import Resolver
from dro.proto.resolver.events import NoSource, SourceFinal, SourceFound, SourceSwitched, TopicMatched, TopicUnmatched
from dro.proto.resolver.output import ResolverRates
from dro.proto.resolver.record_queue import DRAIN_MAX, Rate
from dro.proto.resolver.schedule import QueryOptions, WildcardQueryOptions
from dro.timers import DUE_MAX
from dro.wire.lbmr import packet as lbmr
from tests.fakes.channel import Channel, packet, tir
from tests.fakes.steps import steps
from tests.proto.resolver.test_core import hear, names, resolver

SILENT = WildcardQueryOptions(minimum_interval_ns=0)  # a wildcard receiver that asks for nothing itself
ONE_EACH_100_MS = Rate(0, 10)


def wildcard(r: Resolver, at_ms: float = 0, options: WildcardQueryOptions = SILENT) -> int:
    return r.add_wildcard(b"A", 1, lambda topic: topic.startswith(b"A"), ms(at_ms), options)


def ended(r: Resolver, at_ms: float, *, port: int = 14371, topic: bytes = b"AAA") -> list[object]:
    r.on_source_ended(topic, tir(port=port).transport, 7, ms(at_ms))
    return [*r.take_events()]


def request(r: Resolver, at_ms: float) -> None:
    r.on_packet(packet(lbmr.TopicResolutionRequest(0x43)), 0, ms(at_ms))


# what is wanted


def test_a_second_receiver_changes_nothing_on_the_channel() -> None:
    a = resolver()
    c = Channel(a)
    a.add_receiver(b"AAA", 0)
    hear(a, tir())
    c.run(7000)
    a.add_receiver(b"AAA", ms(7000))
    assert a.take_events() == []
    c.run(9000)
    assert c.times(a, lbmr.Queries)[-3:] == [6100, 7100, 8100]


def test_a_receiver_of_a_topic_that_a_pattern_has_found_asks_by_its_own_options() -> None:
    a = resolver()
    c = Channel(a)
    wildcard(a)
    hear(a, tir())
    ended(a, 0)
    c.run(4000)
    a.add_receiver(b"AAA", ms(4500), QueryOptions(no_source_threshold=3))
    c.clear()
    c.flush(4500)
    c.run(4639)
    assert (c.times(a, lbmr.Queries), a.take_events()) == ([4500, 4520, 4560], [])
    c.run(5000)
    assert a.take_events() == [NoSource(b"AAA")]


def test_a_receiver_is_told_of_a_missing_source_although_a_pattern_was() -> None:
    a = resolver()
    c = Channel(a)
    wildcard(a)
    hear(a, tir())
    ended(a, 0)
    c.run(10_500)
    assert a.take_events() == [NoSource(b"AAA")]
    a.add_receiver(b"AAA", ms(10_500), QueryOptions(no_source_threshold=1))
    c.run(11_500)
    assert a.take_events() == [NoSource(b"AAA")], "and the sub-receiver stays, since the topic is wanted"


def test_the_last_receiver_of_a_topic_that_a_pattern_wants_ends_the_queries_alone() -> None:
    a = resolver()
    c = Channel(a)
    wildcard(a)
    a.add_receiver(b"AAA", 0)
    hear(a, tir())
    c.run(7000)
    a.remove_receiver(b"AAA", ms(7000))
    c.run(7200)
    assert a.next_deadline() is None
    assert a.cache.has_joined(b"AAA")


def test_a_topic_that_nobody_wants_any_more_is_joined_anew() -> None:
    a = resolver()
    a.add_receiver(b"AAA", 0)
    assert len(hear(a, tir())) == 1
    a.remove_receiver(b"AAA", 0)
    assert not a.cache.has_joined(b"AAA")
    assert hear(a, tir()) == []
    a.add_receiver(b"AAA", 0)
    assert [type(event) for event in a.take_events()] == [SourceFound]


@pytest.mark.parametrize("removed_ms", [500, 10_500])
def test_a_pattern_takes_along_the_queries_and_the_linger_time_of_what_it_found(removed_ms: int) -> None:
    a = resolver()
    c = Channel(a)
    handle = wildcard(a)
    hear(a, tir())
    ended(a, 0)
    c.run(removed_ms)
    a.take_events()
    list(a.remove_wildcard(handle, ms(removed_ms)))
    c.run(removed_ms + 200)
    assert (a.next_deadline(), a.take_events()) == (None, [])
    assert c.times(a, lbmr.TopicManagement) == [removed_ms, removed_ms + 100, removed_ms + 200]


def test_a_pattern_that_is_removed_is_not_asked_for_again() -> None:
    a = resolver(rates=ResolverRates(wildcard_queries=ONE_EACH_100_MS))
    c = Channel(a)
    handles = [wildcard(a, options=WildcardQueryOptions()) for _ in range(2)]
    c.run(10)
    assert len(c.times(a, lbmr.WildcardQueries)) == 1
    request(a, 20)
    for handle in handles:
        list(a.remove_wildcard(handle, ms(30)))
    c.flush(30)
    c.run(1000)
    assert len(c.times(a, lbmr.WildcardQueries)) == 1
    assert a.next_deadline() is None


def test_a_query_for_a_pattern_waits_once_however_often_it_is_due() -> None:
    a = resolver(rates=ResolverRates(wildcard_queries=ONE_EACH_100_MS))
    c = Channel(a)
    for pattern in (b"A", b"B", b"C"):
        a.add_wildcard(pattern, 1, lambda topic: False, 0)
    c.run(799)
    asked = b"".join(query.pattern for body in c.bodies(a, lbmr.WildcardQueries) for query in body.patterns)
    assert asked == b"ABCABCAB"


@pytest.mark.parametrize(("back_ms", "leaves"), [(50, [0]), (150, [0, 100]), (250, [0, 100, 200])])
def test_a_pattern_that_comes_back_ends_the_goodbye(back_ms: int, leaves: list[int]) -> None:
    a = resolver()
    c = Channel(a)
    list(a.remove_wildcard(wildcard(a), 0))
    c.run(back_ms)
    wildcard(a, back_ms)
    c.run(1000)
    assert c.times(a, lbmr.TopicManagement) == leaves


def test_of_a_topic_that_is_no_longer_wanted_nothing_is_kept() -> None:
    a = resolver()
    c = Channel(a)
    name = b"".join((b"AA", b"A"))
    count = sys.getrefcount(name)
    for at in (0, 10_000):
        a.add_receiver(name, ms(at))
        c.run(at + 9000)
        a.remove_receiver(name, ms(at + 9000))
        c.run(at + 9500)
        c.clear()
    assert sys.getrefcount(name) == count


# which sources


def test_what_is_not_joined_ends_in_silence() -> None:
    a = resolver()
    a.add_receiver(b"AAA", 0)
    hear(a, tir(port=1), tir(port=2))
    assert ended(a, 10, port=2) == []
    assert ended(a, 20, port=3) == [], "not known at all"
    assert ended(a, 30, port=1) == []


def test_after_a_switch_the_old_way_is_left() -> None:
    a = resolver()
    a.add_receiver(b"AAA", 0)
    events = hear(a, tir(port=1, cost=(1, 5)), tir(port=2, cost=(1, 2)))
    assert [type(event) for event in events] == [SourceFound, SourceSwitched]
    assert [entry.tir.transport for entry in a.cache.entries() if entry.is_joined] == [tir(port=2).transport]
    assert ended(a, 10, port=1) == []


def test_a_goodbye_on_one_way_is_followed_by_another_one_that_lives() -> None:
    a = resolver()
    a.add_receiver(b"AAA", 0)
    hear(a, tir(port=1), tir(port=2))
    gone, found = hear(a, tir(port=1, cost=(0, lbmr.FINAL_COST)), at=10)
    assert isinstance(gone, SourceFinal)
    assert isinstance(found, SourceFound)
    assert found.source.tir == tir(port=2)


def test_a_source_heard_at_the_start_of_time_is_joined_later() -> None:
    a = resolver()
    hear(a, tir(), at=0)
    wildcard(a, 100_000)
    assert [type(event) for event in a.take_events()] == [TopicMatched, SourceFound]


# queries


@pytest.mark.parametrize(("threshold", "queries"), [(0, 0), (1, 1)])
def test_the_end_of_a_source_makes_a_query_unless_there_are_none_at_all(threshold: int, queries: int) -> None:
    a = resolver()
    c = Channel(a)
    a.add_receiver(b"AAA", 0, QueryOptions(source_threshold=threshold))
    hear(a, tir())
    c.run(100_000)
    assert bool(c.sent) == bool(queries)
    c.clear()
    ended(a, 100_000)
    assert len(a.take_outgoing()) == queries
    assert (a.next_deadline() is None) == (queries == 0)


def test_a_topic_whose_source_is_back_is_not_asked_for() -> None:
    a = resolver()
    wildcard(a)
    hear(a, tir())
    ended(a, 0)
    assert len(a.take_outgoing()) == 1
    assert a.next_deadline() is not None
    hear(a, tir(), at=500)
    assert a.next_deadline() is None


@pytest.mark.parametrize("is_known_before", [False, True])
def test_each_end_of_a_source_is_worth_ten_queries(is_known_before: bool) -> None:
    """The tenth comes 9 s after the end; the next one finds that they were in vain."""
    a = resolver()
    c = Channel(a)
    if is_known_before:
        hear(a, tir())
    handle = wildcard(a)
    if not is_known_before:
        hear(a, tir())
    a.take_events()
    for at in (0, 7000):
        assert ended(a, at) == []
        c.run(at + 6999)
        assert a.take_events() == []
        if at == 0:
            assert len(hear(a, tir(), at=6999)) == 1
    c.run(16_999)
    assert a.take_events() == []
    c.run(17_000)
    assert a.take_events() == [NoSource(b"AAA")]
    c.run(18_000)
    assert a.take_events() == [TopicUnmatched(handle, b"AAA")]
    assert a.next_deadline() is None


def test_a_topic_that_is_let_go_is_forgotten_with_all_its_ways() -> None:
    a = resolver()
    c = Channel(a)
    hear(a, tir(port=1), tir(port=2))
    handle = wildcard(a)
    c.run(20_000)
    ended(a, 20_000, port=1)
    c.run(29_999)
    assert a.take_events() == []
    c.run(40_000)
    assert a.take_events() == [NoSource(b"AAA"), TopicUnmatched(handle, b"AAA")]
    assert len(a.cache) == 0
    assert [type(event) for event in hear(a, tir(port=2), at=40_000)] == [TopicMatched, SourceFound]


def test_queries_of_the_initial_phase_have_an_account_of_their_own() -> None:
    a = resolver(rates=ResolverRates(initial_queries=ONE_EACH_100_MS, sustain_queries=Rate()))
    for n in range(3):
        a.add_receiver(b"T%d" % n, 0)
    assert names(a.take_outgoing()) == [lbmr.Queries((b"T0",))]
    b = resolver(rates=ResolverRates(initial_queries=Rate(), sustain_queries=ONE_EACH_100_MS))
    c = Channel(b)
    for n in range(3):
        b.add_receiver(b"T%d" % n, 0)
    c.run(5100)
    assert {len(body.tqrs) for body in c.bodies(b, lbmr.Queries)} == {3}
    c.clear()
    c.run(7000)
    assert [body.tqrs for body in c.bodies(b, lbmr.Queries)] == [(b"T0",), (b"T1",), (b"T2",)]
    c.clear()
    request(b, 10_050)
    ended(b, 10_050, topic=b"T1")
    c.flush(10_050)
    c.run(10_299)
    assert c.times(b, lbmr.Queries) == [10_050, 10_100, 10_200], "requests and ends are of the second account"


def test_only_use_queries_are_answered() -> None:
    a = resolver()
    for topic in (b"A", b"B", b"C"):
        a.add_receiver(topic, 0)
    a.take_outgoing()
    records = (lbmr.Tmr(0, 0, b"A"), lbmr.Tmr(1, lbmr.TmrFlag.RESPONSE, b"B"), lbmr.Tmr(1, 0, b"C"))
    a.on_packet(packet(lbmr.TopicManagement(records)), 0, s(30))
    assert names(a.take_outgoing()) == [lbmr.TopicManagement((lbmr.Tmr(1, lbmr.TmrFlag.RESPONSE, b"C"),))]


def test_a_pattern_is_removed_at_the_cost_of_the_topics_that_it_found() -> None:
    def cost(others: int, patterns: int) -> int:
        a = resolver()
        handle = wildcard(a)
        hear(a, tir(b"AAA"))
        for _ in range(patterns):
            a.add_wildcard(b"B", 1, lambda topic: topic.startswith(b"B"), 0)
        for number in range(others):
            hear(a, tir(b"B%d" % number, index=number, otid=number))
        return steps(lambda: list(a.remove_wildcard(handle, 0)))

    assert cost(others=100, patterns=30) < 1.5 * cost(others=1, patterns=1)


def test_a_use_query_is_answered_at_the_same_cost_however_many_patterns_are_wanted() -> None:
    def cost(patterns: int) -> int:
        a = resolver()
        for number in range(patterns):
            a.add_wildcard(b"%d" % number, 1, lambda topic: False, 0)
        asked = packet(lbmr.TopicManagement((lbmr.Tmr(1, lbmr.TmrFlag.PCRE, b"unknown"),)))
        return steps(lambda: a.on_packet(asked, 0, s(1)))

    assert cost(1) == cost(100)


def test_a_query_that_waits_for_the_limit_costs_nothing_while_it_waits() -> None:
    def cost(topics: int) -> int:
        a = resolver(rates=ResolverRates(initial_queries=ONE_EACH_100_MS))
        for number in range(topics):
            a.add_receiver(b"%d" % number, 0)
        return steps(lambda: Channel(a).run(5000))

    assert cost(300) < 1.1 * cost(50)


def test_what_falls_due_at_once_is_done_in_bounded_pieces() -> None:
    a = resolver(rates=ResolverRates(initial_queries=Rate(), sustain_queries=Rate()))
    for number in range(10 * DUE_MAX):
        a.add_receiver(b"%d" % number, 0)
    Channel(a).run(5999)
    pieces = []
    while (due := a.next_deadline()) is not None and due <= ms(6100):
        a.on_timer(ms(6100))
        records = [topic for body in names(a.take_outgoing()) for topic in body.tqrs]  # type: ignore[union-attr]
        pieces.append(len(records))
    assert (sum(pieces), max(pieces)) == (10 * DUE_MAX, DRAIN_MAX)


def test_another_source_of_a_known_topic_is_not_compared_with_the_patterns_again() -> None:
    compared: list[bytes] = []

    def matcher(topic: bytes) -> bool:
        compared.append(topic)
        return topic.startswith(b"A")

    a = resolver()
    a.add_wildcard(b"A", 1, matcher, 0)
    for index, topic in enumerate((b"A", b"B", b"A", b"B", b"A")):
        hear(a, tir(topic, index=index, otid=index))
    assert compared == [b"A", b"B"]
    a.add_wildcard(b"A", 1, matcher, 0)
    assert compared == [b"A", b"B"] * 2


def test_a_pattern_looks_for_known_topics_in_bounded_pieces() -> None:
    a = resolver()
    topics = [b"A%d" % number for number in range(3 * DUE_MAX)]
    for index, topic in enumerate(topics):
        hear(a, tir(topic, index=index, otid=index))
    wildcard(a)
    found = [event.topic for event in a.take_events() if isinstance(event, TopicMatched)]
    assert found == topics[:DUE_MAX]
    late = tir(b"A late one", index=9999, otid=9999)
    found += [event.topic for event in hear(a, late) if isinstance(event, TopicMatched)]
    hear(a, tir(topics[-1], index=len(topics) - 1, otid=len(topics) - 1, cost=(0, lbmr.FINAL_COST)))
    while a.next_deadline() == 0:
        a.on_timer(0)
        found += [event.topic for event in a.take_events() if isinstance(event, TopicMatched)]
        a.take_outgoing()
    assert found == [*topics[:DUE_MAX], b"A late one", *topics[DUE_MAX:-1]]
    gone = wildcard(a)
    a.take_events()
    list(a.remove_wildcard(gone, 0))
    while a.next_deadline() == 0:
        a.on_timer(0)
        assert a.take_events() == [], "a pattern that was removed finds nothing more"


def test_receivers_that_are_asked_to_speak_do_so_in_bounded_pieces() -> None:
    a = resolver(rates=ResolverRates(*[Rate()] * 5))
    for number in range(3 * DUE_MAX):
        a.add_receiver(b"%d" % number, 0, QueryOptions(20, 0, 0, ms(1000), ms(1)))
    Channel(a).run(30_000)
    counts = []
    request(a, 30_000)
    request(a, 30_000)
    while a.next_deadline() is not None and a.next_deadline() <= ms(30_000):  # type: ignore[operator]  # not None
        counts.append(sum(len(body.tqrs) for body in names(a.take_outgoing()) if isinstance(body, lbmr.Queries)))
        a.on_timer(ms(30_000))
    assert (sum(counts), max(counts)) == (3 * DUE_MAX, DRAIN_MAX)


def test_first_queries_leave_before_repeats() -> None:
    a = resolver(rates=ResolverRates(initial_queries=Rate(0, 50)))
    c = Channel(a)
    for at_ms, numbers in ((0, range(10)), (60, range(10, 20))):  # repeats of the first five are due in between
        c.run(at_ms)
        for number in numbers:
            a.add_receiver(b"%d" % number, ms(at_ms))
    c.run(399)
    asked = [topic for body in c.bodies(a, lbmr.Queries) for topic in body.tqrs]
    assert asked == [b"%d" % number for number in range(20)]
