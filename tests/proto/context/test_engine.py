"""Contexts of one TRD without a network: what is found, joined, switched, left, told and said."""

from __future__ import annotations

from dataclasses import astuple, replace

import pytest

from dro.clock import s
from dro.errors import DecodeError
from dro.proto.context import effects as do
from dro.proto.context.engine import ContextStats
from dro.proto.resolver import events as ev
from dro.proto.resolver.schedule import QueryOptions, WildcardQueryOptions
from dro.timers import DUE_MAX
from dro.wire import otid
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.options import FINAL_COST, ContextInstance
from dro.wire.source_string import IpcAddress
from tests.builders.tir_options import tir_options
from tests.fakes.engine_trd import IP, PCRE, STRANGER, EngineHost, EngineTrd

OTID = bytes(range(32))
OTHER_HOST = 0x0A0000BB
T = (b"^t", PCRE)


@pytest.fixture(params=[False, True], ids=["datagrams", "stream"])
def trd(request: pytest.FixtureRequest) -> EngineTrd:
    """Sessions that show life while they are idle, and streams, which do not."""
    return EngineTrd(is_stream=request.param)


def dro(domain_id: int, source_id: bytes = b"some dro") -> lbmr.PacketOptions:
    return lbmr.standard_options(source_id, lbmr.SenderType.DRO, domain_id)


def tir(
    trd: EngineTrd, topic: bytes = b"t", index: int = 7, *, source_otid: bytes = OTID, cost: lbmr.Cost | None = None
) -> lbmr.Tir:
    """An advertisement of a stranger, on a session of its own."""
    return lbmr.Tir(topic, trd.address(), lbmr.TIR_TTL, index, tir_options(otid=source_otid, cost=cost))


def costs(trd: EngineTrd) -> list[lbmr.Cost]:
    return [
        found.options.cost
        for body in trd.take_sent(lbmr.Queries)
        for found in body.tirs
        if found.options is not None and found.options.cost is not None
    ]


# found and gone


@pytest.mark.parametrize("is_source_first", [True, False])
def test_a_source_is_found_joined_and_gone(trd: EngineTrd, is_source_first: bool) -> None:
    a, b = trd.context(), trd.context()
    if is_source_first:
        source = a.open(b"quotes.IBM")
        trd.run(100)
    b.want(b"quotes.IBM")
    trd.settle()
    if not is_source_first:
        source = a.open(b"quotes.IBM")
    trd.until(lambda: bool(b.bound), limit_ms=1000)
    (bound,) = b.bound
    assert (bound.topic, bound.otid, bound.topic_index) == (b"quotes.IBM", source.otid, source.topic_index)
    assert (bound.address, bound.source_id, bound.source_ip, bound.is_from_dro) == (a.address, a.source_id, IP, False)
    a.end(source)
    trd.until(lambda: bool(b.unbound))
    session = bound.transport
    assert b.done[-2:] == [do.LeaveSession(session), do.Unbound(bound, ended=True)]
    assert (b.sessions, b.current) == ({}, [])


def test_what_is_heard_after_a_final_advertisement_is_waited_for(trd: EngineTrd) -> None:
    a, b = trd.context(), trd.context()
    source = a.open(b"t")
    b.want(b"t")
    trd.until(lambda: bool(b.bound))
    a.end(source)
    for _ in range(22):
        trd.run(10)
        trd.hear_on(a.address)
        assert b.unbound == []
    trd.run(100)
    assert b.unbound == [(b.bound[0], True)]


def test_a_context_hears_its_own_sources_and_a_dro_does_not(trd: EngineTrd) -> None:
    application, portal = trd.context(), trd.dro()
    application.open(b"u")
    portal.open(b"t")
    for context in (application, portal):
        context.want(b"t")
        context.want(b"u")
    trd.run(1000)
    assert sorted(bound.topic for bound in application.bound) == [b"t", b"u"]
    assert [bound.topic for bound in portal.bound] == [b"u"]
    assert portal.engine.stats.tr_dgrams_dropped_own > 0


def test_an_own_packet_is_known_in_whatever_order_its_options_stand(trd: EngineTrd) -> None:
    context = trd.context()
    own = lbmr.standard_options(context.source_id, 0, 0)
    trd.say(lbmr.Queries(tqrs=(b"a",)), lbmr.PacketOptions(own.items[::-1]))
    trd.say(lbmr.Queries(tqrs=(b"b",)))
    assert context.heard == [lbmr.Queries(tqrs=(b"b",))]
    assert context.engine.stats == ContextStats(tr_dgrams_dropped_own=1)


def test_what_is_advertised_of_an_own_source(trd: EngineTrd) -> None:
    a, b = trd.context(), trd.context()
    sources = [a.open(topic) for topic in (b"t.1", b"t.2")]
    trd.run(100)
    heard = [found for body in b.heard if isinstance(body, lbmr.Queries) for found in body.tirs]
    assert {found.topic for found in heard} == {b"t.1", b"t.2"}
    assert heard[0].options is not None
    assert [type(item) for item in heard[0].options.items] == [lbmr.OtidOption, lbmr.ExtendedFunctionality]
    assert sources[1].topic_index == sources[0].topic_index + 1
    named = otid.decode(sources[0].otid)
    assert (named.address, named.topic_index) == (a.address, sources[0].topic_index)


def test_a_proxy_source_repeats_what_it_is_given(trd: EngineTrd) -> None:
    portal, b = trd.dro(9), trd.context()
    origin = (lbmr.DomainId(7), lbmr.ExtendedFunctionality(port=1234, ip=IP), ContextInstance(b"instance"))
    source = portal.open(b"t", otid=OTID, tir_items=(lbmr.Cost(3, 12), *origin))
    b.want(b"t")
    trd.until(lambda: bool(b.bound))
    (bound,) = b.bound
    options = bound.tir.options
    assert options is not None
    assert [type(item) for item in options.items] == [
        lbmr.Cost, lbmr.OtidOption, ContextInstance, lbmr.DomainId, lbmr.ExtendedFunctionality,
    ]  # fmt: skip
    assert (options.otid, options.extended, bound.is_from_dro) == (OTID, origin[1], True)
    assert b.engine.resolver.domain_id == 9, "learnt from the DRO"
    portal.own.update(source, (lbmr.Cost(3, 13), *origin), trd.now_ns)
    trd.until(lambda: bool(b.of(do.Changed)))
    assert b.of(do.Changed) == [do.Changed(bound)]
    assert bound.tir.options is not None
    assert (bound.tir.options.cost, b.unbound) == (lbmr.Cost(3, 13), [])


def test_a_source_that_ended_is_found_again_when_it_comes_back(trd: EngineTrd) -> None:
    a, b = trd.context(), trd.context()
    b.want(b"t")
    for count in range(1, 4):
        source = a.open(b"t")
        trd.until(lambda: len(b.bound) == count)  # noqa: B023  # called at once
        a.end(source)
        trd.until(lambda: len(b.unbound) == count)  # noqa: B023
    assert [ended for _, ended in b.unbound] == [True] * 3
    assert b.sessions == {}


def test_the_end_of_an_own_source_is_taken_back(trd: EngineTrd) -> None:
    portal, b = trd.dro(), trd.context()
    b.want(b"t")
    source = portal.proxy(b"t", OTID, 5)
    trd.until(lambda: bool(b.bound))
    portal.own.end(source, trd.now_ns)
    trd.until(lambda: bool(b.unbound))
    portal.own.update(source, source.tir_items, trd.now_ns, again=True)
    trd.until(lambda: len(b.bound) == 2)
    assert [bound.otid for bound in b.bound] == [OTID] * 2


def test_final_advertisements_go_out_while_the_context_waits(trd: EngineTrd) -> None:
    a = trd.context()
    a.end(a.open(b"t"))
    assert (a.engine.resolver.finals_pending, len(a.own)) == (1, 0)
    trd.run(2000)
    assert a.engine.resolver.finals_pending == 0
    assert any(cost.is_final for cost in costs(trd))


# wanted


def test_wanting_is_counted(trd: EngineTrd) -> None:
    a, b = trd.context(), trd.context()
    a.open(b"t.1")
    b.want(b"t.1")
    b.want(b"t.1")
    b.want_pattern(b"^t")
    trd.until(lambda: len(b.bound) == 1)
    assert not b.unwant(b"t.1")
    b.unwant_pattern(b"^t")
    trd.settle()
    assert b.unbound == []
    assert b.unwant(b"t.1")
    trd.settle()
    assert b.unbound == [(b.bound[0], False)]
    assert b.sessions == {}
    b.want(b"t.1")
    trd.settle()
    assert len(b.bound) == 2, "known to the cache"


def test_sources_share_sessions_and_leave_them_with_the_last(trd: EngineTrd) -> None:
    a, b = trd.context(), trd.context()
    topics = [b"t.%d" % number for number in range(4)]
    for topic in topics:
        a.open(topic)
        b.want(topic)
    a.open(b"alone", at=trd.address())
    b.want(b"alone")
    trd.until(lambda: len(b.bound) == 5)
    assert len(b.sessions) == 2
    for left, topic in enumerate(topics, 1):
        b.unwant(topic)
        trd.settle()
        assert (a.address in b.sessions) == (left < len(topics))
    assert [effect.session.address for effect in b.of(do.LeaveSession)] == [a.address]
    assert len(b.sessions) == 1


@pytest.mark.parametrize("is_wanted_too", [True, False])
def test_a_pattern_binds_what_matches(trd: EngineTrd, is_wanted_too: bool) -> None:
    a, b = trd.context(), trd.context()
    for topic in (b"t.1", b"u.1", b"t.2"):
        a.open(topic)
    if is_wanted_too:
        b.want(b"t.1")
    b.want_pattern(b"^t")
    trd.until(lambda: len(b.bound) == 2)
    trd.run(200)
    assert sorted(bound.topic for bound in b.bound) == [b"t.1", b"t.2"]
    assert sorted((effect.pattern, effect.topic) for effect in b.of(do.TopicFound)) == [(T, b"t.1"), (T, b"t.2")]
    assert b.engine.wanted.topics_of(T) == {b"t.1", b"t.2"}
    b.unwant_pattern(b"^t")
    trd.settle()
    left = [b"t.2"] if is_wanted_too else [b"t.1", b"t.2"]
    assert sorted(bound.topic for bound, _ in b.unbound) == left
    assert bool(b.sessions) == is_wanted_too


def test_a_topic_of_two_patterns_is_left_with_the_last_of_them(trd: EngineTrd) -> None:
    a, b = trd.context(), trd.context()
    a.open(b"tu")
    for pattern in (b"^t", b"u$"):
        b.want_pattern(pattern)
    trd.until(lambda: len(b.of(do.TopicFound)) == 2)
    assert len(b.bound) == 1
    b.unwant_pattern(b"^t")
    trd.run(1000)
    assert b.unbound == []
    b.unwant_pattern(b"u$")
    trd.settle()
    assert b.unbound == [(b.bound[0], False)]


def test_a_topic_that_only_a_pattern_wanted_is_lost_when_its_source_stays_away(trd: EngineTrd) -> None:
    b = trd.context()
    b.want_pattern(b"^t")
    found = tir(trd, b"t.1", cost=lbmr.Cost(1, 0))
    trd.say(lbmr.Queries(tirs=(found,)))
    assert len(b.bound) == 1
    last = replace(found, options=tir_options(otid=OTID, cost=lbmr.Cost(1, FINAL_COST)))
    trd.say(lbmr.Queries(tirs=(last,)))
    trd.until(lambda: bool(b.of(do.TopicLost)))
    assert b.of(do.TopicFound) == [do.TopicFound(T, b"t.1")]
    assert b.of(do.TopicLost) == [do.TopicLost(T, b"t.1")]
    assert (b.engine.wanted.all_topics(), b.current, b.engine.wanted.topics_of(T)) == (set(), [], frozenset())
    trd.run(60_000)
    trd.say(lbmr.Queries(tirs=(found,)))
    assert len(b.of(do.TopicFound)) == 2, "until it comes back"


def test_a_topic_is_lost_after_the_queries_that_its_options_say(trd: EngineTrd) -> None:
    b = trd.context()
    b.want_pattern(b"^t", WildcardQueryOptions(no_source_threshold=2))
    a = trd.context()
    source = a.open(b"t.1")
    trd.until(lambda: bool(b.bound))
    a.end(source)
    trd.until(lambda: bool(b.unbound))
    ended_ns = trd.now_ns
    trd.until(lambda: bool(b.of(do.TopicLost)))
    assert trd.now_ns - ended_ns < s(3)


def test_a_topic_that_is_found_for_a_pattern_just_removed_is_nothing_to_tell(trd: EngineTrd) -> None:
    b = trd.context()
    b.want_pattern(b"^t")
    trd.settle()
    packet = lbmr.Packet(lbmr.VERSION, STRANGER, lbmr.Queries(tirs=(tir(trd, b"t.1"),)))
    b.hear(packet, IP)
    b.unwant_pattern(b"^t")
    trd.run(1000)
    assert (b.of(do.TopicFound), b.current, b.sessions) == ([], [], {})


def test_a_topic_that_is_lost_for_a_pattern_just_removed_is_nothing_to_tell(trd: EngineTrd) -> None:
    a, b = trd.context(), trd.context()
    b.want_pattern(b"^t")
    source = a.open(b"t.1")
    trd.until(lambda: bool(b.bound))
    a.end(source)
    trd.until(lambda: bool(b.unbound))
    trd.sent.clear()
    while not any(isinstance(event, ev.TopicUnmatched) for event in b.engine._events):
        trd.now_ns = b.engine.next_deadline() or 0
        b.engine.on_timer(trd.now_ns)
        b.engine._events.extend(b.engine.resolver.take_events())
        b.engine.resolver.take_outgoing()
    b.unwant_pattern(b"^t")
    trd.settle()
    assert (b.of(do.TopicLost), b.current, b.sessions) == ([], [], {})


def test_the_many_topics_of_a_pattern_are_left_in_several_calls(trd: EngineTrd) -> None:
    a, b = trd.context(), trd.context()
    count = DUE_MAX + 50
    for number in range(count):
        a.open(b"t.%d" % number)
    b.want_pattern(b"^t")
    trd.until(lambda: len(b.bound) == count)
    trd.now_ns += 5
    b.unwant_pattern(b"^t")
    trd.settle()
    assert len(b.unbound) == DUE_MAX
    assert b.engine.next_deadline() == trd.now_ns
    trd.run(0)
    assert (len(b.unbound), b.current, b.sessions) == (count, [], {})


def test_queries_that_nobody_answers_are_told_when_there_were_so_many(trd: EngineTrd) -> None:
    contexts = {threshold: trd.context() for threshold in (1, 3)}
    for threshold, context in contexts.items():
        context.want(b"t", QueryOptions(no_source_threshold=threshold))
    trd.until(lambda: bool(contexts[1].of(ev.NoSource)))
    assert contexts[3].of(ev.NoSource) == []
    trd.run(2000)
    assert [context.of(ev.NoSource) for context in contexts.values()] == [[ev.NoSource(b"t")]] * 2


@pytest.mark.parametrize("topic", [b"with\0nul", b"x" * 256])
def test_a_topic_that_cannot_be_sent_is_refused(trd: EngineTrd, topic: bytes) -> None:
    a = trd.context()
    with pytest.raises(DecodeError):
        a.open(topic)
    with pytest.raises(DecodeError):
        a.want(topic)
    with pytest.raises(DecodeError):
        a.engine.wanted.add_pattern((topic, PCRE), lambda _: True, trd.now_ns)
    trd.run(1000)
    assert (len(a.own), a.engine.wanted.all_topics(), trd.sent) == (0, set(), [])


@pytest.mark.parametrize("kind", [lbmr.Queries, lbmr.WildcardQueries])
def test_queries_are_answered_by_who_has_what_they_ask_for(
    trd: EngineTrd, kind: type[lbmr.Queries | lbmr.WildcardQueries]
) -> None:
    a = trd.context()
    a.open(b"quotes.IBM")
    trd.run(120_000)
    assert [found.topic for body in trd.take_sent(lbmr.Queries) for found in body.tirs]
    trd.run(1000)
    assert trd.take_sent(lbmr.Queries) == [], "it is quiet by now"
    others: lbmr.Body = lbmr.Queries((b"trades",))
    asking: lbmr.Body = lbmr.Queries((b"quotes.IBM",))
    if kind is lbmr.WildcardQueries:
        others, asking = (lbmr.WildcardQueries((lbmr.WildcardTqr(1, p),)) for p in (b"^trades", b"^quotes"))
    trd.say(others)
    trd.run(100)
    assert [found for body in trd.take_sent(lbmr.Queries) for found in body.tirs] == []
    trd.say(asking)
    trd.run(100)
    assert [found.topic for body in trd.take_sent(lbmr.Queries) for found in body.tirs] == [b"quotes.IBM"]


def test_a_pattern_that_cannot_be_used_is_told_once(trd: EngineTrd) -> None:
    a = trd.context()
    a.open(b"t")
    for _ in range(2):
        trd.say(lbmr.WildcardQueries((lbmr.WildcardTqr(1, b"("),)))
    assert a.of(ev.BadPattern) == [ev.BadPattern(b"(", 1)]


# known from before, and judged


def test_a_known_source_is_rejoined_and_left_when_nobody_comes_to_want_it(trd: EngineTrd) -> None:
    b = trd.context()
    known = [tir(trd, topic, source_otid=bytes([number]) * 32) for number, topic in enumerate((b"t", b"u"))]
    for found in known:
        b.engine.resolver.join_known(found, source_ip=IP, from_dro=False, source_id=b"before", now_ns=trd.now_ns)
    trd.settle()
    assert [(effect.source.topic, effect.is_known) for effect in b.of(do.JoinSession)] == [(b"t", True), (b"u", True)]
    b.want(b"t")
    b.engine.leave_unwanted(trd.now_ns)
    trd.settle()
    assert [(bound.topic, ended) for bound, ended in b.unbound] == [(b"u", False)]
    assert [bound.topic for bound in b.current] == [b"t"]
    b.want(b"u")
    trd.say(lbmr.Queries(tirs=(known[1],)))
    assert [bound.topic for bound in b.current] == [b"t", b"u"], "and is found again when it is wanted"


def test_many_known_sources_are_left_in_several_calls(trd: EngineTrd) -> None:
    b = trd.context()
    count, at = DUE_MAX + 50, trd.address()
    for number in range(count):
        otid_of = tir_options(otid=number.to_bytes(32))
        known = lbmr.Tir(b"t.%d" % number, at, lbmr.TIR_TTL, number, otid_of)
        b.engine.resolver.join_known(known, source_ip=IP, from_dro=False, source_id=b"before", now_ns=trd.now_ns)
    trd.settle()
    assert len(b.current) == count
    trd.now_ns += 5
    b.engine.leave_unwanted(trd.now_ns)
    trd.settle()
    assert (len(b.unbound), b.engine.next_deadline()) == (DUE_MAX, trd.now_ns)
    b.want(b"t.%d" % (count - 1))
    trd.run(0)
    assert [bound.topic for bound in b.current] == [b"t.%d" % (count - 1)], "what was wanted meanwhile stays"


def test_a_source_that_is_refused_is_left_and_has_not_ended(trd: EngineTrd) -> None:
    a, b = trd.context(), trd.context()
    a.open(b"t")
    b.want(b"t")
    trd.until(lambda: bool(b.bound))
    b.engine.resolver.set_judge(lambda topic, session: False, trd.now_ns)
    trd.settle()
    assert (b.unbound, b.sessions) == ([(b.bound[0], False)], {})
    b.engine.resolver.set_judge(None, trd.now_ns)
    trd.settle()
    assert len(b.bound) == 2


def test_a_judge_is_heard_before_anything_is_joined(trd: EngineTrd) -> None:
    a, b = trd.context(), trd.context()
    a.open(b"t")
    a.open(b"u")
    b.engine.resolver.set_judge(lambda topic, session: topic == b"u", trd.now_ns)
    b.want(b"t")
    b.want(b"u")
    trd.run(1000)
    assert [bound.topic for bound in b.bound] == [b"u"]


# ways to one source


def test_a_cheaper_way_is_taken_and_the_dearer_one_left(trd: EngineTrd) -> None:
    dear, cheap, b = trd.dro(), trd.dro(), trd.context()
    b.want(b"t")
    dear.proxy(b"t", OTID, 5)
    trd.until(lambda: len(b.bound) == 1)
    cheap.proxy(b"t", OTID, 2)
    trd.until(lambda: len(b.bound) == 2)
    assert b.unbound == [], "both for a while"
    trd.run(249)
    assert len(b.current) == 2
    trd.run(20)
    assert b.unbound == [(b.bound[0], True)]
    assert [bound.source_id for bound in b.current] == [cheap.source_id]


def test_a_cheaper_way_that_is_let_in_later_is_taken_with_both_for_a_while(trd: EngineTrd) -> None:
    dear, cheap, b = trd.dro(), trd.dro(), trd.context()
    b.engine.resolver.set_judge(lambda topic, address: address != cheap.address, trd.now_ns)
    b.want(b"t")
    dear.proxy(b"t", OTID, 5)
    cheap.proxy(b"t", OTID, 2)
    trd.run(8000)
    assert [bound.address for bound in b.bound] == [dear.address]
    dear.vanish()
    cheap.vanish()
    trd.run(600)  # nothing is said
    b.engine.resolver.set_judge(None, trd.now_ns)
    trd.settle()
    trd.run(249)
    assert [bound.address for bound in b.current] == [dear.address, cheap.address]
    trd.run(20)
    assert [bound.address for bound in b.current] == [cheap.address]


@pytest.mark.parametrize("cost", [5, 6, 7])
def test_a_dearer_way_is_not_taken(trd: EngineTrd, cost: int) -> None:
    one, other, b = trd.dro(), trd.dro(), trd.context()
    b.want(b"t")
    one.proxy(b"t", OTID, 5)
    trd.until(lambda: len(b.bound) == 1)
    other.proxy(b"t", OTID, cost)
    trd.run(2000)
    assert len(b.current) == 1
    assert not b.of(do.ProxyLeft)


@pytest.mark.parametrize("ends_by", ["final", "session"])
def test_the_other_way_is_taken_when_the_joined_one_ends(trd: EngineTrd, ends_by: str) -> None:
    cheap, dear, b = trd.dro(), trd.dro(), trd.context()
    b.want(b"t")
    ending = cheap.proxy(b"t", OTID, 2)
    trd.until(lambda: len(b.bound) == 1)
    dear.proxy(b"t", OTID, 5)
    trd.run(200)
    assert len(b.bound) == 1
    if ends_by == "final":
        cheap.end(ending)
    else:
        cheap.vanish()
        b.session_ended(cheap.address)
    trd.until(lambda: len(b.bound) == 2 and bool(b.unbound))
    assert [bound.source_id for bound in b.current] == [dear.source_id]
    assert b.unbound == [(b.bound[0], True)]


@pytest.mark.parametrize("is_dear_source_first", [True, False])
def test_the_source_itself_is_preferred_to_its_proxy(trd: EngineTrd, is_dear_source_first: bool) -> None:
    a, portal, b = trd.context(), trd.dro(), trd.context()
    b.want(b"t")
    origin = a.open(b"t", otid=OTID)
    if is_dear_source_first:
        portal.proxy(b"t", OTID, 5)
    trd.until(lambda: len(b.bound) >= 1)
    if not is_dear_source_first:
        portal.proxy(b"t", OTID, 5)
    trd.run(3000)
    assert [bound.address for bound in b.current] == [a.address]
    a.end(origin)
    trd.until(lambda: [bound.address for bound in b.current] == [portal.address])


@pytest.mark.parametrize(
    ("cost", "same"), [((lbmr.Cost(1, 2),), (lbmr.Cost(1, 2),)), ((), (lbmr.Cost(0, 0),))], ids=["some", "none"]
)
def test_a_restarted_dro_replaces_its_old_session_at_once(
    trd: EngineTrd, cost: tuple[lbmr.TirOption, ...], same: tuple[lbmr.TirOption, ...]
) -> None:
    b, before = trd.context(), trd.dro()
    b.want(b"t")
    before.open(b"t", otid=OTID, tir_items=cost)
    trd.until(lambda: len(b.bound) == 1)
    before.vanish()
    trd.run(50)
    after = trd.dro()
    after.open(b"t", otid=OTID, tir_items=same)
    trd.until(lambda: len(b.bound) == 2, limit_ms=500)
    assert b.of(do.ProxyLeft) == [do.ProxyLeft(b.bound[0])]
    assert b.unbound == [(b.bound[0], True)]
    assert [bound.source_id for bound in b.current] == [after.source_id]


@pytest.mark.parametrize("ip", [IP, OTHER_HOST])
def test_two_dros_that_both_live_do_not_replace_each_other(trd: EngineTrd, ip: int) -> None:
    b, one, two = trd.context(), trd.dro(), trd.dro(ip=ip)
    b.want(b"t")
    one.proxy(b"t", OTID, 2)
    trd.until(lambda: len(b.bound) == 1)
    two.proxy(b"t", OTID, 2)
    for _ in range(10):
        trd.run(500)
        trd.hear_on(one.address)
        trd.hear_on(two.address)
    assert len(b.bound) <= 2
    assert len(b.current) == 1


@pytest.mark.parametrize("ip", [IP, OTHER_HOST])
def test_a_silent_session_is_left_for_another_way(trd: EngineTrd, ip: int) -> None:
    b, second = trd.context(), trd.dro(ip=ip)
    b.want(b"t")
    second.open(b"other")  # so that it is the older of the two
    trd.run(100)
    first = trd.dro(ip=OTHER_HOST + 1)
    first.proxy(b"t", OTID, 2)
    trd.until(lambda: len(b.bound) == 1)
    trd.hear_on(first.address)
    first.vanish()
    second.proxy(b"t", OTID, 3)
    trd.run(9_000)
    assert len(b.bound) == 1
    trd.run(4_000)
    assert len(b.bound) == 2
    assert b.unbound == [(b.bound[0], True)]
    assert b.of(do.ProxyLeft) == [do.ProxyLeft(b.bound[0])]


def test_a_cheaper_way_is_joined_before_a_dead_one_is_left(trd: EngineTrd) -> None:
    b, first = trd.context(), trd.dro(ip=OTHER_HOST)
    b.want(b"t")
    first.proxy(b"t", OTID, 5)
    trd.until(lambda: len(b.bound) == 1)
    first.vanish()
    trd.run(12_000)
    before = len(b.done)
    trd.say(lbmr.Queries(tirs=(tir(trd, cost=lbmr.Cost(1, 2)),)), dro(1))
    assert [type(effect) for effect in b.done[before:]] == [
        do.JoinSession, do.Bound, do.ProxyLeft, do.LeaveSession, do.Unbound,
    ]  # fmt: skip


@pytest.mark.parametrize("is_heard", [True, False])
def test_a_proxy_that_is_idle_lives_as_long_as_its_dro_says_anything(trd: EngineTrd, is_heard: bool) -> None:
    """A stream says nothing meanwhile, but the DRO asks for topics."""
    b = trd.context(domain_id=9)
    b.want(b"t")
    trd.say(lbmr.Queries(tirs=(tir(trd, cost=lbmr.Cost(1, 5)),)), dro(9))
    (bound,) = b.bound
    trd.fall_silent(bound.address)
    trd.run(12_000)
    if is_heard:
        trd.say(lbmr.Queries(tqrs=(b"x",)), dro(9))
    another = tir(trd, index=8, cost=lbmr.Cost(1, 6))
    trd.say(lbmr.Queries(tirs=(another,)), lbmr.standard_options(b"another ", 0, 9), OTHER_HOST)
    is_left = not (is_heard and trd.is_stream)
    assert bool(b.of(do.ProxyLeft)) == is_left


def test_a_dro_is_heard_at_the_time_of_its_packet(trd: EngineTrd) -> None:
    """However long ago anything else happened."""
    b = trd.context(domain_id=9)
    b.want(b"t")
    trd.say(lbmr.Queries(tirs=(tir(trd, cost=lbmr.Cost(1, 5)),)), dro(9))
    trd.fall_silent(b.bound[0].address)
    trd.now_ns += s(60)
    packet = lbmr.Packet(lbmr.VERSION, dro(9), lbmr.Queries(tqrs=(b"x",)))
    another = lbmr.Queries(tirs=(tir(trd, index=8, cost=lbmr.Cost(1, 6)),))
    b.hear(packet, IP)
    b.hear(lbmr.Packet(lbmr.VERSION, lbmr.standard_options(b"another ", 0, 9), another), OTHER_HOST)
    trd.settle()
    assert bool(b.of(do.ProxyLeft)) == (not trd.is_stream)


def test_an_idle_session_that_shows_life_is_not_left(trd: EngineTrd) -> None:
    b, one, two = trd.context(), trd.dro(), trd.dro(ip=OTHER_HOST)
    b.want(b"t")
    one.proxy(b"t", OTID, 2)
    trd.until(lambda: len(b.bound) == 1)
    two.proxy(b"t", OTID, 3)
    for _ in range(60):
        trd.run(1000)
        trd.say(lbmr.Queries(tqrs=(b"x",)), dro(1), IP)
    assert (len(b.bound), b.of(do.ProxyLeft)) == (1, [])


# sessions that end or cannot be had


def test_sources_of_a_session_that_ended_are_asked_for_and_found_again(trd: EngineTrd) -> None:
    a, b = trd.context(), trd.context()
    for topic in (b"t", b"u"):
        a.open(topic)
        b.want(topic)
    trd.until(lambda: len(b.bound) == 2)
    trd.take_sent(lbmr.Queries)
    b.session_ended(a.address)
    trd.settle()
    assert [(bound.topic, ended) for bound, ended in b.unbound] == [(b"t", True), (b"u", True)]
    assert {topic for body in trd.take_sent(lbmr.Queries) for topic in body.tqrs} == {b"t", b"u"}
    trd.until(lambda: len(b.bound) == 4)
    assert len(b.sessions) == 1


def test_the_many_sources_of_a_session_that_ended_end_in_several_calls(trd: EngineTrd) -> None:
    a, b = trd.context(), trd.context()
    count = DUE_MAX + 50
    for number in range(count):
        a.open(b"t.%d" % number)
        b.want(b"t.%d" % number)
    trd.until(lambda: len(b.bound) == count)
    a.vanish()
    b.session_ended(a.address)
    trd.settle()
    assert len(b.unbound) == DUE_MAX
    trd.run(0)
    assert (len(b.unbound), b.current, b.sessions) == (count, [], {})


def test_a_session_that_cannot_be_joined_is_tried_with_later_advertisements(trd: EngineTrd) -> None:
    a, b = trd.context(), trd.context()
    b.refused.add(a.address)
    a.open(b"t")
    b.want(b"t")
    trd.run(3000)
    failed = b.engine.stats.sessions_failed
    assert (failed > 1, b.bound) == (True, [])
    b.refused.clear()
    trd.until(lambda: bool(b.bound))
    assert b.engine.stats.sessions_failed == failed


def test_sources_on_unknown_transports_are_asked_of_the_host_and_nothing_else_happens(trd: EngineTrd) -> None:
    b = trd.context()
    b.want(b"t")
    address = IpcAddress(1, 2, 20001)
    b.unknown.add(address)
    found = lbmr.Tir(b"t", address, 60, 5, tir_options(otid=OTID))
    trd.say(lbmr.Queries(tirs=(found,)))
    assert [effect.source.address for effect in b.of(do.JoinSession)] == [address]
    assert (b.bound, b.sessions) == ([], {})


def test_two_sources_with_one_index_on_a_session_are_told(trd: EngineTrd) -> None:
    b = trd.context()
    one = tir(trd, b"t")
    other = replace(one, topic=b"u", options=tir_options(otid=bytes(32)))
    b.want(b"t")
    b.want(b"u")
    trd.say(lbmr.Queries(tirs=(one, other)))
    assert [effect.source.topic for effect in b.of(do.IndexTaken)] == [b"u"]
    assert [bound.topic for bound in b.current] == [b"t"]


def test_another_otid_of_a_joined_source_is_not_believed(trd: EngineTrd) -> None:
    b = trd.context(domain_id=9)
    b.want(b"t")
    one = tir(trd, cost=lbmr.Cost(1, 5))
    trd.say(lbmr.Queries(tirs=(one,)), dro(9))
    other = replace(one, options=tir_options(otid=bytes(32), cost=lbmr.Cost(1, 6)))
    trd.say(lbmr.Queries(tirs=(other,)), dro(9))
    assert b.of(ev.OtidMismatch) == [ev.OtidMismatch(b"t", other)]
    assert (len(b.bound), b.of(do.Changed)) == (1, [])
    assert b.bound[0].otid == OTID


# domains


@pytest.mark.parametrize("tells", [True, False])
def test_the_domain_is_learnt_from_a_dro_and_told_on_every_packet_from_then_on(trd: EngineTrd, tells: bool) -> None:
    context = trd.context(propagation_ns=0 if tells else 1)
    trd.say(lbmr.Queries(tqrs=(b"t",)))
    assert context.engine.resolver.domain_id == 0
    trd.say(lbmr.Queries(), dro(7))
    assert context.of(ev.DomainIdLearned) == [ev.DomainIdLearned(7)]
    trd.run(10)
    trd.sent.clear()
    context.want(b"after")
    trd.run(100)
    domains = {packet.options.local_domain for sender, packet in trd.sent if sender is context and packet.options}
    assert domains == {7 if tells else 0}


def test_a_configured_domain_is_never_unlearnt(trd: EngineTrd) -> None:
    context = trd.dro(9)
    for _ in range(30):
        trd.say(lbmr.Queries(), dro(8))
        trd.run(1000)
    assert context.engine.resolver.domain_id == 9
    assert context.of(ev.DomainIdLearned) == []


@pytest.mark.parametrize("domain_id", [0, 9])
def test_packets_of_another_domain_are_dropped_and_told(trd: EngineTrd, domain_id: int) -> None:
    b = trd.context(domain_id=domain_id)
    if not domain_id:
        trd.say(lbmr.Queries(), dro(9))
    b.heard.clear()
    b.want(b"t")
    trd.say(lbmr.Queries(tirs=(tir(trd),)), dro(8, b"else"))
    assert (b.heard, b.bound, b.engine.stats.tr_dgrams_dropped_domain) == ([], [], 1)
    for known in (0, 9):
        trd.say(lbmr.Queries(tqrs=(b"marker",)), lbmr.standard_options(b"stranger", 0, known))
    assert b.heard == [lbmr.Queries(tqrs=(b"marker",))] * 2
    assert b.of(ev.DomainMismatch) == [ev.DomainMismatch(8, IP)]


def test_domain_routes_are_handed_on(trd: EngineTrd) -> None:
    context = trd.context(domain_id=9)
    trd.say(lbmr.RemoteDomainRoute(IP, 14380, 0, (1, 2)), dro(9))
    assert context.of(ev.DomainRoute) == [ev.DomainRoute((1, 2), IP, 14380)]


@pytest.mark.parametrize(
    "body",
    [
        lbmr.ReceiverAlive(),
        lbmr.TopicManagement(()),
        lbmr.TopicResolutionRequest(0xFFFF),
        lbmr.Queries(),
        lbmr.WildcardQueries((lbmr.WildcardTqr(1, b"x"),)),
    ],
    ids=lambda body: type(body).__name__,
)
@pytest.mark.parametrize("options", [STRANGER, None, dro(1)], ids=["options", "no options", "DRO"])
def test_packets_that_advertise_nothing_are_handed_on_and_join_nothing(
    trd: EngineTrd, body: lbmr.Body, options: lbmr.PacketOptions | None
) -> None:
    context = trd.context()
    context.want(b"t")
    trd.settle()
    context.hear(lbmr.Packet(lbmr.VERSION, options, body), IP)
    trd.run(100)
    assert (context.heard, context.of(do.JoinSession), context.current) == ([body], [], [])


# together, and the end


def test_what_is_wanted_before_anything_is_sent_is_asked_for_together(trd: EngineTrd) -> None:
    a = trd.context()
    for number in range(20):
        a.want(b"topic.%d" % number)
    trd.settle()
    first = trd.take_sent(lbmr.Queries)[0]
    assert len(first.tqrs) == 20


def test_nothing_is_counted_at_first(trd: EngineTrd) -> None:
    assert astuple(trd.context().engine.stats) == (0, 0, 0, {}, 0, 0, 0)


def test_what_the_host_does_about_an_effect_comes_before_the_rest(trd: EngineTrd) -> None:
    """A source that is found and ends in one packet is joined first, and then has something to end."""
    b = trd.context()
    b.want(b"t")
    one = tir(trd)
    last = replace(one, options=tir_options(otid=OTID, cost=lbmr.Cost(0, FINAL_COST)))
    trd.say(lbmr.Queries(tirs=(one, last)))
    assert [type(effect) for effect in b.done] == [do.JoinSession, do.Bound]
    trd.run(300)
    assert b.unbound == [(b.bound[0], True)]


@pytest.mark.parametrize("had", ["nothing", "sources", "ending", "slices", "silent"])
def test_an_engine_that_is_closed_asks_for_nothing_more(trd: EngineTrd, had: str) -> None:
    a, b = trd.context(), trd.context()
    sources = []
    if had != "nothing":
        sources = [a.open(b"t.%d" % number) for number in range(2 * DUE_MAX)]
        b.want_pattern(b"^t")
        b.want(b"t.1")
        trd.until(lambda: len(b.bound) == len(sources))
    if had == "ending":
        a.end(sources[0])
        trd.run(15)
        assert b.engine.bound.find((b"t.0", a.address, sources[0].topic_index)) is not None
    if had == "slices":
        b.session_ended(a.address)
    if had == "silent":
        a.vanish()
    before = len(b.done)
    b.close()
    assert list(b.engine.take_effects(trd.now_ns)) == []
    assert (b.current, b.engine.bound.topics()) == ([], set())
    trd.run(60_000)
    b.engine.on_timer(trd.now_ns)
    assert list(b.engine.take_effects(trd.now_ns)) == []
    assert len(b.done) == before


def test_a_context_that_closes_advertises_and_asks_no_more(trd: EngineTrd) -> None:
    a, b = trd.context(), trd.context()
    a.open(b"t")
    a.want(b"u")
    trd.run(12)  # advertisements are due again soon
    a.close()
    trd.sent.clear()
    trd.run(60_000)
    assert [packet for sender, packet in trd.sent if sender is a] == []
    assert b.engine.next_deadline() is None


def test_final_advertisements_are_among_the_last_datagrams(trd: EngineTrd) -> None:
    a, b = trd.context(), trd.context()
    source = a.open(b"t")
    b.want(b"t")
    trd.until(lambda: bool(b.bound))
    trd.now_ns += s(1)
    a.end(source)
    trd.sent.clear()
    a.close()
    assert any(cost.is_final for cost in costs(trd))
    trd.until(lambda: bool(b.unbound))
    assert b.unbound == [(b.bound[0], True)]


def test_contexts_of_one_trd_find_each_others_topics(trd: EngineTrd) -> None:
    contexts: list[EngineHost] = [trd.context() for _ in range(5)]
    for number, context in enumerate(contexts):
        context.open(b"t.%d" % number)
        context.want_pattern(b"^t")
    trd.until(lambda: all(len(context.current) == 5 for context in contexts))
    contexts[0].close()
    gone = contexts[0].address
    for context in contexts[1:]:
        context.session_ended(gone)
    trd.run(1000)
    assert [len(context.current) for context in contexts[1:]] == [4] * 4
