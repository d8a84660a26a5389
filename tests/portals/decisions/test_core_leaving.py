"""Endpoint cores when a portal is drained or removed: what it and its siblings open, close, tell and forget."""

from __future__ import annotations

import pytest

from dro.clock import s
from dro.proto.interest.events import InterestGained
from portals.decisions.core import PortalCore
from portals.decisions.effects import (
    ChangeForwarding,
    CloseProxyReceiver,
    CloseProxySource,
    DelayDeletion,
    FeedProxySource,
    OpenProxyReceiver,
    OpenProxySource,
    SendInitialState,
    SendToSibling,
    UpdateProxyReceiver,
)
from portals.decisions.messages import (
    PATTERN_PCRE,
    InitialStateSent,
    InterestAdded,
    KnownProxiesSent,
    KnownSourcesSent,
    PortalHello,
    SourceGone,
    SourceSeen,
    StateConfirmed,
    Withdraw,
)
from portals.decisions.relearning import RELEARN_LIMIT_NS, Relearning
from portals.decisions.siblings import REJOIN_HOLD_NS
from tests.builders.routes import whole
from tests.portals.decisions.test_core import DELAY, OTID, Dro

OTHER = bytes(range(1, 33))


def flowing() -> Dro:
    """Three portals: a source in domain 1 for 2 and 3, another in domain 2 for 1."""
    dro = Dro(3)
    for worker, topic in ((2, b"AAA"), (3, b"AAA"), (1, b"BBB")):
        dro.want(worker, topic)
    dro.source(1, b"AAA")
    dro.source(2, b"BBB", OTHER)
    for worker in (1, 2, 3):
        dro.take(worker)
    return dro


def test_a_withdrawn_portal_makes_nothing_new() -> None:
    dro = flowing()
    dro.cores[2].withdraw()
    dro.want(2, b"CCC")
    dro.source(1, b"CCC", b"c" * 32)
    dro.source(1, b"AAA", b"a" * 32)
    dro.want(1, b"DDD")
    dro.want(3, b"BBB")
    assert dro.take(2) == []
    assert not any(isinstance(e, OpenProxyReceiver) and e.symbol == b"CCC" for e in dro.take(1))
    dro.cores[2].on_routes(2, [], 0)
    dro.settle()
    assert dro.take(2) == [], "a route that went is no reason to lose what is held"


def test_a_withdrawn_portal_keeps_its_proxy_sources_when_their_sources_end_or_starve() -> None:
    dro = flowing()
    dro.source(1, b"AAA", b"a" * 32)
    dro.take(2)
    dro.cores[1].own.end(next(h for h, seen in dro.cores[1].own.seen.items() if seen.otid == OTID))
    dro.settle()
    assert [type(e) for e in dro.take(2)] == [DelayDeletion]
    dro.cores[2].withdraw()
    dro.kill(1)
    dro.pass_time(REJOIN_HOLD_NS + 2 * DELAY)
    dro.unwant(2, b"AAA")
    assert not any(isinstance(e, CloseProxySource) for e in dro.take(2))
    dro.cores[2].close_sources()
    dro.settle()
    assert {e.otid for e in dro.take(2) if isinstance(e, CloseProxySource)} == {OTID, b"a" * 32}
    assert dro.cores[2].next_deadline() is None


def test_ends_of_own_sources_are_told_at_the_end() -> None:
    dro = flowing()
    core = dro.cores[2]
    second = dro.source(2, b"BBB", b"b" * 32)
    dro.take(1)
    core.withdraw()
    core.own.end(second)
    dro.settle()
    assert dro.take(1) == []
    core.close_receivers()
    dro.settle()
    assert dro.take(2)[-1] == CloseProxyReceiver(b"BBB", 0, (1,))
    core.end_sources()
    dro.settle()
    assert {e.otid for e in dro.take(1) if isinstance(e, DelayDeletion)} == {OTHER, b"b" * 32}
    assert core.own.seen == {}
    dro.pass_time(DELAY)
    assert {e.otid for e in dro.take(1) if isinstance(e, CloseProxySource)} == {OTHER, b"b" * 32}
    core.own.end(second)
    core.end_sources()
    assert core.take_effects() == []


def test_closed_receivers_stay_closed() -> None:
    dro = flowing()
    dro.cores[2].withdraw()
    dro.cores[2].close_receivers()
    dro.cores[2].on_routes(2, whole([(a, b, a, b) for a in (1, 2, 3) for b in (1, 2, 3) if a != b]), 0)
    dro.unwant(1, b"BBB")
    dro.want(1, b"BBB")
    assert {type(e) for e in dro.take(2)} == {CloseProxyReceiver, ChangeForwarding}
    assert dro.cores[2].proxy_receivers == {}


def test_a_portal_whose_handover_is_over_forwards_nothing_again() -> None:
    """Also when one of two siblings, which both had the source, wants it no more."""
    dro = flowing()
    core = dro.cores[1]
    core.withdraw()
    core.close_receivers()
    dro.take(1)
    dro.unwant(3, b"AAA")
    assert [e.workers for e in dro.take(1) if isinstance(e, ChangeForwarding)] == [()]
    core.end_sources()
    dro.settle()
    assert core.own.seen == {}


def test_a_withdrawn_portal_greets_a_sibling_and_tells_it_nothing() -> None:
    dro = flowing()
    core = dro.cores[2]
    core.withdraw()
    core.on_sibling_up(1, 5, 7, 70, 0)
    *effects, everything = core.take_effects()
    assert effects == [SendToSibling(1, PortalHello(2, 1, 7, 70))]
    assert isinstance(everything, SendInitialState)
    assert list(filter(None, everything.messages)) == [KnownProxiesSent(), KnownSourcesSent(), InitialStateSent()]


def test_what_is_told_for_a_drain_keeps_its_place_among_the_decisions() -> None:
    dro = flowing()
    core = dro.cores[2]
    core.on_interest(InterestGained((b"CCC", 0), 2), 0)
    core.send(1, Withdraw())
    assert [e.message for e in core.take_effects() if isinstance(e, SendToSibling) and e.worker == 1] == [
        InterestAdded(b"CCC", 0, 2),
        Withdraw(),
    ]
    core.on_sibling_down(1, 0)
    core.send(1, Withdraw())
    assert not any(isinstance(e, SendToSibling) and e.worker == 1 for e in core.take_effects())
    assert core.siblings.up == [3]


def test_a_released_sibling_counts_no_more() -> None:
    dro = flowing()
    dro.want(2, b"A", PATTERN_PCRE)
    dro.take(1)
    dro.cores[1].on_forwarding_stopped(2)
    dro.settle()
    assert {type(e) for e in dro.take(1)} == {ChangeForwarding, CloseProxyReceiver, UpdateProxyReceiver}
    assert dro.cores[1].proxy_receivers == {(b"AAA", 0): {3}}
    dro.cores[1].on_forwarding_stopped(3)
    dro.settle()
    assert dro.cores[1].proxy_receivers == {}


def test_a_removed_sibling_is_forgotten_at_once() -> None:
    dro = flowing()
    dro.kill(1)
    assert dro.take(2) == []
    for core in (dro.cores[2], dro.cores[3]):
        core.on_sibling_removed(1, dro.now_ns)
    dro.settle()
    assert {type(e) for e in dro.take(2)} == {DelayDeletion, CloseProxyReceiver, ChangeForwarding}
    dro.pass_time(DELAY)
    assert [e for e in dro.take(2) if isinstance(e, CloseProxySource)] == [CloseProxySource(OTID)]
    assert dro.cores[2].next_deadline() is None, "nobody is waited for"
    dro.cores[2].on_sibling_removed(1, s(9))
    dro.cores[2].on_sibling_removed(77, s(9))
    dro.settle()
    assert dro.take(2) == []


def test_the_same_domain_under_another_number_goes_on_with_the_proxy_source() -> None:
    """Added again within the deletion delay: receivers notice nothing, as its source is the same."""
    dro = flowing()
    dro.kill(1)
    for core in (dro.cores[2], dro.cores[3]):
        core.on_sibling_removed(1, dro.now_ns)
    dro.settle()
    dro.take(2)
    routes = [(1, 2, 4, 2), (2, 1, 2, 4), (1, 3, 4, 3), (3, 1, 3, 4), (2, 3, 2, 3), (3, 2, 3, 2)]
    core = dro.cores[2]
    core.on_routes(2, whole(routes), dro.now_ns)
    core.on_sibling_up(4, 9, 0, 0, dro.now_ns)
    core.on_message(4, 9, SourceSeen(900, OTID, b"AAA", 1, 0, 0, b""), dro.now_ns)
    assert [e.worker for e in core.take_effects() if isinstance(e, FeedProxySource)] == [4]
    core.on_message(4, 9, SourceGone(900), dro.now_ns)
    assert not any(isinstance(e, OpenProxySource) for e in core.take_effects())


@pytest.mark.parametrize("has_an_end", [True, False])
def test_what_a_sibling_does_not_confirm_after_a_restart_goes_when_it_has_relearnt(has_an_end: bool) -> None:
    """Although it was never seen down, and at the limit if it never says so."""
    core = PortalCore(1, 1, 1, source_deletion_delay_ns=DELAY, matcher=lambda pattern, kind: None)
    core.on_routes(1, whole([(1, 2, 1, 2), (2, 1, 2, 1)]), 0)
    core.on_sibling_up(2, 1, 0, 0, 0)
    for name in (b"AAA", b"BBB"):
        core.on_message(2, 1, InterestAdded(name, 0, 2), 0)
    core.on_sibling_up(2, 2, 0, 0, s(5))
    core.on_message(2, 2, InterestAdded(b"AAA", 0, 2), s(5))
    core.on_message(2, 1, InterestAdded(b"CCC", 0, 2), s(5))  # of the life before: too late
    core.take_effects()
    assert core.next_deadline() == s(5) + RELEARN_LIMIT_NS
    core.on_timer(s(5) + RELEARN_LIMIT_NS - 1)
    core.on_message(2, 1, StateConfirmed(), s(5))  # of the life before
    assert core.take_effects() == []
    if has_an_end:
        core.on_message(2, 2, StateConfirmed(), s(6))
    else:
        core.on_timer(s(5) + RELEARN_LIMIT_NS)
    assert core.take_effects() == [CloseProxyReceiver(b"BBB", 0, (2,))]
    assert core.next_deadline() is None


def test_a_portal_of_many_topics_that_returns_loses_no_proxies_while_it_relearns() -> None:
    """4000 topics at 1000 a second, as receivers repeat them: siblings wait for what is not said again at once."""
    dro, names = Dro(2), [b"%d" % n for n in range(4000)]
    for name in names:
        dro.want(2, name)
    dro.take(1)
    relearning = Relearning(dro.now_ns)
    dro.kill(2)
    dro.pass_time(s(1))
    dro.start(2)
    checks = 0
    for n, name in enumerate(names[:-1], start=1):  # the last one went meanwhile
        dro.want(2, name)
        if n % 1000 == 0:
            dro.pass_time(s(1))
        if n % 3000 == 0:
            assert not relearning.is_over(dro.cores[2].known, dro.now_ns)
    assert dro.take(1) == []
    while not relearning.is_over(dro.cores[2].known, dro.now_ns):
        dro.pass_time(s(3))
        checks += 1
    assert checks < 3
    dro.cores[2].on_relearnt(0)
    dro.settle()
    assert dro.take(1) == [CloseProxyReceiver(names[-1], 0, (2,))]
