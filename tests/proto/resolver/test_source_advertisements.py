"""The source side of the resolver: what waits for a limit, what ends with a source, and compiled patterns of others."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import cast

import pytest

from dro.clock import ms
from dro.errors import DecodeError
from dro.proto.resolver.core import Resolver, ResolverConfig, SourceAd
from dro.proto.resolver.output import ResolverRates
from dro.proto.resolver.record_queue import DRAIN_MAX, Rate
from dro.proto.resolver.schedule import AdvertisingOptions
from dro.proto.resolver.source_advertisements import MATCHING_MAX, PATTERNS_MAX, Matcher, PatternCompiler
from dro.timers import DUE_MAX
from dro.wire.lbmr import packet as lbmr
from tests.fakes import patterns as fake_patterns
from tests.fakes.channel import Channel, packet, tir
from tests.fakes.steps import steps
from tests.proto.resolver.test_core import hear, resolver

ONE_EACH_100_MS = Rate(0, 10)
LIMITED_AT_FIRST = ResolverRates(initial_advertisements=ONE_EACH_100_MS, sustain_advertisements=Rate())
LIMITED_LATER = ResolverRates(initial_advertisements=Rate(), sustain_advertisements=ONE_EACH_100_MS)
IN_ANSWERS_ALONE = AdvertisingOptions(False, 0, 0, 0, 0, 0)
BY_SCHEDULE_ALONE = AdvertisingOptions(send_initial=False)


def ask(r: Resolver, at_ms: float, *topics: bytes) -> None:
    r.on_packet(packet(lbmr.Queries(topics)), 0, ms(at_ms))


def ask_pattern(r: Resolver, *patterns: bytes) -> None:
    r.on_packet(packet(lbmr.WildcardQueries(tuple(lbmr.WildcardTqr(1, p) for p in patterns))), 0, 0)


def sent(c: Channel, a: Resolver) -> list[list[int]]:
    """The topic indexes of each packet."""
    return [[t.topic_index for t in body.tirs] for body in c.bodies(a, lbmr.Queries)]


def sources(a: Resolver, count: int = 3, options: AdvertisingOptions = BY_SCHEDULE_ALONE) -> None:
    for index in range(count):
        a.add_source(SourceAd(tir(index=index, otid=index), options), 0)


# limits


def test_scheduled_advertisements_of_each_phase_have_an_account_of_their_own() -> None:
    a = resolver(rates=LIMITED_AT_FIRST)
    c = Channel(a)
    sources(a)
    c.run(5300)
    c.clear()
    c.run(8300)
    assert [sorted(indexes) for indexes in sent(c, a)] == [[0, 1, 2]] * 3
    b = resolver(rates=LIMITED_LATER)
    c = Channel(b)
    sources(b)
    c.run(5130)
    assert sent(c, b) == [[0, 1, 2]] * 16
    c.clear()
    c.run(6500)
    assert sent(c, b) == [[0], [1], [2]]


@pytest.mark.parametrize(
    ("rates", "at_ms", "leaves"),
    [
        (LIMITED_AT_FIRST, 0, [[0]]),
        (LIMITED_LATER, 0, [[0], [1], [2]]),
        (LIMITED_AT_FIRST, 100_000, [[0], [1], [2]]),
        (LIMITED_LATER, 100_000, [[0]]),
    ],
)
def test_answers_are_of_the_account_of_their_phase(rates: ResolverRates, at_ms: float, leaves: list[list[int]]) -> None:
    a = resolver(rates=rates)
    c = Channel(a)
    sources(a, options=AdvertisingOptions(send_initial=False, sustain_interval_ns=ms(1_000_000)))
    if at_ms:
        c.run(at_ms - 1)
        c.clear()
    ask(a, at_ms, b"AAA")
    c.flush(at_ms)
    assert sent(c, a) == leaves


def test_a_scheduled_advertisement_waits_once_however_often_it_is_due() -> None:
    a = resolver(rates=LIMITED_AT_FIRST)
    c = Channel(a)
    sources(a)
    c.run(899)
    assert sent(c, a) == [[0], [1], [2]] * 3


# the end of a source


def test_an_advertisement_that_waits_for_the_limit_costs_nothing_while_it_waits() -> None:
    def cost(count: int) -> int:
        a = resolver(rates=LIMITED_AT_FIRST)
        sources(a, count, AdvertisingOptions())
        return steps(lambda: Channel(a).run(4000))

    assert cost(300) < 1.1 * cost(50)


def test_a_phase_lasts_until_its_last_advertisement_has_left() -> None:
    a = resolver(rates=ResolverRates(initial_advertisements=Rate(0, 10), sustain_advertisements=Rate()))
    c = Channel(a)
    sources(a, 100)
    c.run(80_000)
    times = [
        at for at, _, heard in c.sent for record in cast(lbmr.Queries, heard.body).tirs if record.topic_index == 99
    ]
    assert times[0] == 9900, "ten a second"
    assert times[1:] == [9900 + 1000 * n for n in range(1, 61)]


def test_first_advertisements_and_answers_leave_before_repeats() -> None:
    a = resolver(rates=ResolverRates(initial_advertisements=Rate(0, 50)))
    c = Channel(a)
    for at_ms, indexes in ((0, range(10)), (60, range(10, 20))):  # repeats of the first five are due in between
        c.run(at_ms)
        for index in indexes:
            a.add_source(SourceAd(tir(b"%d" % index, index=index, otid=index)), ms(at_ms))
    ask(a, 60, b"19")  # which waits for its first one
    c.run(399)
    assert [index for indexes in sent(c, a) for index in indexes] == list(range(20))
    c.clear()
    ask(a, 399, b"17")
    c.run(400)
    assert sent(c, a)[0] == [17]


def test_final_advertisements_that_wait_are_not_made_up_for() -> None:
    a = resolver(rates=LIMITED_LATER)
    c = Channel(a)
    for handle in [a.add_source(SourceAd(tir(index=n, otid=n), BY_SCHEDULE_ALONE), 0) for n in range(20)]:
        a.remove_source(handle, 0, final=True)
    c.run(10_000)
    assert a.finals_pending == 0
    counts = Counter(indexes[0] for indexes in sent(c, a))
    assert (counts[0], counts[19]) == (2, 1)


def test_of_a_source_that_is_removed_nothing_is_kept() -> None:
    name = b"".join((b"AA", b"A"))
    count = sys.getrefcount(name)
    a = resolver()
    c = Channel(a)
    for final in (False, True):
        first, second = (a.add_source(SourceAd(tir(name, index=index)), 0) for index in (1, 2))
        c.run(6000)
        ask(a, 6000, name)
        c.flush(6000)
        assert a.next_deadline() == ms(7000)
        a.remove_source(first, ms(6100))
        c.clear()
        ask(a, 6100, name)
        c.flush(6100)
        assert sent(c, a) == [[2]], "the other one answers"
        a.remove_source(second, ms(6200), final=final)
        ask(a, 6200, name)
        ask_pattern(a, b".")
        c.run(8000)
        c.clear()
        assert a.next_deadline() is None
        assert sys.getrefcount(name) == count
        c.now_ms = 0


def test_a_goodbye_that_waits_for_the_limit_does_not_leave_when_the_source_is_back() -> None:
    a = resolver(rates=LIMITED_LATER)
    quiet = AdvertisingOptions(send_initial=False, minimum_initial_interval_ns=0, sustain_interval_ns=0)
    handles = [a.add_source(SourceAd(tir(index=index, otid=index), quiet), 0) for index in (1, 2)]
    for handle in handles:
        a.remove_source(handle, 0, final=True)
    a.on_timer(0)
    c = Channel(a)
    c.flush(0)
    assert sent(c, a) == [[1]]
    a.add_source(SourceAd(tir(index=2, otid=2), quiet), ms(10))
    c.run(99)
    c.run(2500)
    assert {index for packet_of in sent(c, a) for index in packet_of} == {1}


def test_a_goodbye_without_a_cost_is_from_the_origin() -> None:
    a = resolver()
    handle = a.add_source(SourceAd(tir()), 0)
    a.take_outgoing()
    a.remove_source(handle, ms(1), final=True)
    a.on_timer(ms(1))
    (raw,) = a.take_outgoing()
    body = lbmr.decode(raw).body
    assert isinstance(body, lbmr.Queries)
    assert body.tirs[0].options is not None
    assert body.tirs[0].options.cost == lbmr.Cost(0, lbmr.FINAL_COST)


def test_an_update_that_cannot_be_written_is_refused_at_once() -> None:
    a = resolver()
    handle = a.add_source(SourceAd(tir()), 0)
    a.take_outgoing()
    with pytest.raises(DecodeError):
        a.update_source(handle, tir(b"x" * 256), 0)
    assert a.take_outgoing() == []


# patterns of others


def test_a_pattern_is_compiled_once_while_it_is_among_the_last_1024() -> None:
    compiled: list[bytes] = []

    def compile_pattern(pattern: bytes, pattern_type: int) -> Matcher:
        compiled.append(pattern)
        return lambda topic: False

    a = Resolver(ResolverConfig(b"resolver"), compile_pattern=compile_pattern)
    ask_pattern(a, b"nobody is there to answer")
    assert compiled == []
    a.add_source(SourceAd(tir()), 0)
    many = [b"%d" % n for n in range(PATTERNS_MAX)]
    assert len(many) == 1024
    for _ in range(2):
        for start in range(0, PATTERNS_MAX, 64):
            ask_pattern(a, *many[start : start + 64])
    assert compiled == many
    ask_pattern(a, many[0])
    ask_pattern(a, b"one more")
    compiled.clear()
    ask_pattern(a, many[0], many[2], many[-1])
    assert compiled == []
    ask_pattern(a, many[1])
    assert compiled == [many[1]]


def test_a_source_that_comes_back_costs_the_same_however_many_are_leaving() -> None:
    def cost_of_coming_back(count: int) -> int:
        a = resolver()
        ads = [SourceAd(tir(index=index, otid=index), BY_SCHEDULE_ALONE) for index in range(count)]
        for handle in [a.add_source(ad, 0) for ad in ads]:
            a.remove_source(handle, 0, final=True)
        assert a.finals_pending == count
        cost = steps(lambda: [a.add_source(ad, 0) for ad in ads])
        assert a.finals_pending == 0
        return cost // count

    assert cost_of_coming_back(200) < 1.5 * cost_of_coming_back(20)


# patterns of others, many sources


def ask_at(a: Resolver, at_ms: float, pattern: bytes) -> list[int]:
    """The topic indexes of the answers to one query for a pattern, in all slices."""
    a.on_packet(packet(lbmr.WildcardQueries((lbmr.WildcardTqr(1, pattern),))), 0, ms(at_ms))
    indexes = []
    for _ in range(1000):
        for body in (lbmr.decode(raw).body for raw in a.take_outgoing()):
            indexes += [record.topic_index for record in cast(lbmr.Queries, body).tirs]
        due = a.next_deadline()
        if due is None or due > ms(at_ms):
            return indexes
        a.on_timer(ms(at_ms))
    raise AssertionError("no end")


def with_topics(
    names: Iterable[bytes], compile_pattern: PatternCompiler = fake_patterns.compile_pattern
) -> tuple[Resolver, list[int]]:
    """A resolver with a source of each topic, all of them quiescent, and the handles."""
    config = ResolverConfig(b"resolver", rates=ResolverRates(*[Rate()] * 5))
    a = Resolver(config, compile_pattern=compile_pattern)
    ads = [SourceAd(tir(name, index=n, otid=n), IN_ANSWERS_ALONE) for n, name in enumerate(names)]
    return a, [a.add_source(ad, 0) for ad in ads]


def test_only_new_topics_are_compared_with_a_pattern_that_was_asked_for_before() -> None:
    compared: list[bytes] = []

    def compile_pattern(pattern: bytes, kind: int) -> Matcher:
        def matcher(topic: bytes) -> bool:
            compared.append(topic)
            return topic.startswith(pattern)

        return matcher

    a, handles = with_topics([b"A", b"B", b"AA"], compile_pattern)
    assert (ask_at(a, 0, b"A"), compared) == ([0, 2], [b"A", b"B", b"AA"])
    compared.clear()
    assert (ask_at(a, 100, b"A"), compared) == ([0, 2], [])
    a.remove_source(handles[0], ms(100))
    a.add_source(SourceAd(tir(b"C", index=7), IN_ANSWERS_ALONE), ms(100))
    a.add_source(SourceAd(tir(b"A", index=8), IN_ANSWERS_ALONE), ms(100))
    a.add_source(SourceAd(tir(b"AA", index=9, otid=9), IN_ANSWERS_ALONE), ms(100))
    a.take_outgoing()
    assert (ask_at(a, 200, b"A"), compared) == ([2, 9, 8], [b"C", b"A"])
    assert ask_at(a, 300, b"AA") == [2, 9]


def test_a_pattern_that_very_many_match_is_not_remembered_with_them() -> None:
    a, _ = with_topics([b"A%d" % n for n in range(MATCHING_MAX + 1)])
    everything = list(range(MATCHING_MAX + 1))
    assert ask_at(a, 0, b"A") == everything
    assert ask_at(a, 10_000, b"A") == everything


def test_after_a_large_answer_the_same_pattern_gets_none_for_a_second_or_longer() -> None:
    a, _ = with_topics([b"A%d" % n for n in range(3000)])
    few, some, many = b"A[1-6].$", b"A1..$", b"A"
    assert [len(ask_at(a, at_ms, few)) for at_ms in (0, 10)] == [60, 60]
    assert [len(ask_at(a, at_ms, some)) for at_ms in (0, 999, 1000)] == [100, 0, 100]
    assert [len(ask_at(a, at_ms, many)) for at_ms in (0, 2999, 3000)] == [3000, 0, 3000]


def test_a_pattern_is_compared_and_answered_in_bounded_pieces() -> None:
    a, handles = with_topics([b"A%d" % n for n in range(10 * DUE_MAX)])
    a.on_packet(packet(lbmr.WildcardQueries((lbmr.WildcardTqr(1, b"no such topic"),))), 0, 0)
    pieces = 0
    while a.next_deadline() == 0:
        a.on_timer(0)
        pieces += 1
    assert pieces == 10
    request = packet(lbmr.TopicResolutionRequest(lbmr.RequestFlag.ADVERTISEMENT))
    for _ in range(2):  # the second is part of the first
        a.on_packet(request, 0, 0)
    a.remove_source(handles[-1], 0)
    answered = []
    while a.next_deadline() == 0:
        a.on_timer(0)
        answered.append(sum(len(cast(lbmr.Queries, lbmr.decode(raw).body).tirs) for raw in a.take_outgoing()))
    assert (sum(answered), max(answered) <= DRAIN_MAX) == (10 * DUE_MAX - 1, True)


def test_many_new_patterns_of_one_packet_are_compared_in_bounded_pieces() -> None:
    compared = 0

    def compile_pattern(pattern: bytes, kind: int) -> Matcher:
        def matcher(topic: bytes) -> bool:
            nonlocal compared
            compared += 1
            return False

        return matcher

    a, _ = with_topics([b"A%d" % n for n in range(2 * DUE_MAX)], compile_pattern)
    a.on_packet(packet(lbmr.WildcardQueries(tuple(lbmr.WildcardTqr(1, b"%d" % n) for n in range(50)))), 0, 0)
    pieces = [compared]
    while a.next_deadline() == 0:
        a.on_timer(0)
        pieces.append(compared)
    assert compared == 100 * DUE_MAX
    assert max(after - before for before, after in pairwise([0, *pieces])) <= DUE_MAX


def test_topics_that_are_gone_are_no_work_for_a_new_pattern() -> None:
    def cost(gone: int) -> int:
        a, handles = with_topics([b"%d" % n for n in range(gone)], lambda pattern, kind: pattern.__eq__)
        for handle in handles:
            a.remove_source(handle, 0)
        a.add_source(SourceAd(tir(b"A"), IN_ANSWERS_ALONE), 0)
        return steps(lambda: ask_pattern(a, b"A"))

    assert cost(1) == cost(200)


# time


@pytest.mark.parametrize(
    "act",
    [
        lambda a, at: a.add_source(SourceAd(tir(b"B"), BY_SCHEDULE_ALONE), at),
        lambda a, at: a.update_source(1, tir(cost=(1, 2)), at),
        lambda a, at: a.remove_source(1, at),
        lambda a, at: a.add_receiver(b"B", at),
        lambda a, at: a.remove_receiver(b"R", at),
        lambda a, at: a.add_wildcard(b"B", 1, lambda topic: False, at),
        lambda a, at: list(a.remove_wildcard(1, at)),
        lambda a, at: a.on_packet(packet(lbmr.Queries()), 0, at),
        lambda a, at: a.on_source_ended(b"B", tir().transport, 7, at),
        lambda a, at: a.set_judge(None, at),
        lambda a, at: a.on_timer(at),
    ],
)
def test_every_input_lets_go_out_what_waited_for_its_time(act: Callable[[Resolver, int], object]) -> None:
    a = resolver(rates=ResolverRates(initial_queries=ONE_EACH_100_MS))
    assert (a.next_deadline(), a.take_outgoing()) == (None, [])
    a.add_source(SourceAd(tir()), 0)
    a.add_wildcard(b"A", 1, lambda topic: False, 0)
    a.add_receiver(b"R", 0)
    a.add_receiver(b"S", 0)

    def queried() -> list[bytes]:
        bodies = [lbmr.decode(raw).body for raw in a.take_outgoing()]
        return [topic for body in bodies if isinstance(body, lbmr.Queries) for topic in body.tqrs]

    assert queried() == [b"R"]
    act(a, ms(150))
    assert queried() == [b"S"]


def test_what_is_heard_is_as_old_as_its_packet() -> None:
    a = resolver()
    hear(a, tir(), at=77)
    assert [entry.heard_ns for entry in a.cache.entries()] == [ms(77)]
