"""What siblings give back to a portal that returns, so that it need not learn it from its TRD first."""

from __future__ import annotations

from dro.clock import s
from dro.proto.interest.events import InterestGained
from portals.decisions.acl_enforcement import OPEN
from portals.decisions.core import AT_ONCE, PortalCore
from portals.decisions.effects import (
    ChangeForwarding,
    CheckKnown,
    CloseProxySource,
    DelayDeletion,
    Effect,
    FeedProxySource,
    GoOn,
    JoinKnownSource,
    OpenProxySource,
    ReadQueue,
    RecordKnownInterest,
    SendInitialState,
    SendToSibling,
)
from portals.decisions.messages import (
    PATTERN_NONE,
    ForwardStart,
    ForwardStop,
    KnownInterest,
    KnownProxiesSent,
    KnownProxy,
    KnownSource,
    SourceSeen,
    StateConfirmed,
)
from tests.builders.routes import whole
from tests.portals.decisions.test_acl import lists
from tests.portals.decisions.test_core import DELAY, OTID, Dro

WAY = b"joined so"


def flowing(portals: int = 3) -> Dro:
    """A source in domain 1, for all others."""
    dro = Dro(portals)
    for worker in range(2, portals + 1):
        dro.want(worker, b"AAA")
    dro.cores[1].own.add(OTID, b"AAA", 1, 0, 0, b"", WAY)
    dro.settle()
    for worker in dro.cores:
        dro.take(worker)
    return dro


def kill_and_start(dro: Dro, worker: int) -> None:
    dro.kill(worker)
    dro.start(worker)


def test_a_returned_ingress_joins_again_under_the_old_handle_what_its_siblings_are_fed_with() -> None:
    dro = flowing()
    (handle,) = dro.cores[1].own.seen
    kill_and_start(dro, 1)
    seen = SourceSeen(handle, OTID, b"AAA", 1, 0, 0, b"", WAY)
    assert [e for e in dro.take(1) if isinstance(e, JoinKnownSource)] == [JoinKnownSource(seen)], "once for both"
    for worker in (2, 3):
        dro.take(worker)
    assert dro.cores[1].own.add(OTID, b"AAA", 1, 0, 0, b"", WAY) == handle
    dro.settle()
    assert dro.take(1)[-1] == ChangeForwarding(handle, (2, 3)), "nobody had to ask"
    dro.relearn()
    dro.pass_time(s(600))
    assert [dro.take(worker) for worker in (2, 3)] == [[CheckKnown()]] * 2, "the proxies go on as they are"
    (offer,) = dro.cores[2].siblings.offers(OTID)
    assert (offer.incarnation, offer.source) == (2, seen)


def test_a_sibling_that_says_so_later_gets_the_fragments_as_well() -> None:
    dro = flowing()
    (handle,) = dro.cores[1].own.seen
    seen = next(iter(dro.cores[1].own.seen.values()))
    kill_and_start(dro, 1)
    core = dro.cores[1]
    list(core.own.keep_wanted(3))
    core.own.add(OTID, b"AAA", 1, 0, 0, b"", WAY)
    dro.settle()
    assert dro.take(1)[-1] == ChangeForwarding(handle, (2,))
    core.on_message(3, 1, KnownSource(seen), 0)
    dro.settle()
    assert dro.take(1) == [ChangeForwarding(handle, (2, 3))]


def test_another_source_or_another_life_gets_a_handle_of_its_own() -> None:
    dro = flowing()
    (handle,) = dro.cores[1].own.seen
    kill_and_start(dro, 1)
    own = dro.cores[1].own
    assert own.add(OTID, b"BBB", 1, 0, 0, b"") != handle, "the same OTID with another topic"
    own.forget_known()
    assert own.add(OTID, b"AAA", 1, 0, 0, b"") != handle
    dro.settle()
    assert [type(e) for e in dro.take(2)][-1:] == [FeedProxySource]


def test_who_wants_it_no_more_before_it_is_joined_does_not_get_it() -> None:
    dro = flowing(2)
    (handle,) = dro.cores[1].own.seen
    kill_and_start(dro, 1)
    core = dro.cores[1]
    core.on_message(2, 1, ForwardStop(handle), 0)
    dro.take(1)
    core.own.add(OTID, b"AAA", 1, 0, 0, b"", WAY)
    dro.settle()
    assert not any(isinstance(e, ChangeForwarding) for e in dro.take(1))


def test_what_was_known_does_not_take_a_handle_that_is_in_use() -> None:
    dro = flowing(2)
    core = dro.cores[1]
    core.on_message(2, 1, KnownSource(SourceSeen(7, b"x" * 32, b"X", 1, 0, 0, b"", WAY)), 0)
    first = core.own._of_incarnation | core.own._number + 1
    core.on_message(2, 1, KnownSource(SourceSeen(first, b"y" * 32, b"Y", 1, 0, 0, b"", WAY)), 0)
    assert core.own.add(b"y" * 32, b"Y", 1, 0, 0, b"") == first
    assert core.own.add(b"x" * 32, b"X", 1, 0, 0, b"") == 7
    assert core.own.add(b"z" * 32, b"Z", 1, 0, 0, b"") == first + 1
    core.on_message(2, 1, KnownSource(SourceSeen(7, b"q" * 32, b"Q", 1, 0, 0, b"", WAY)), 0)
    assert core.own.seen[7].otid == b"x" * 32


def test_the_first_of_the_siblings_gives_a_returned_portal_its_interest_back() -> None:
    dro = flowing()
    dro.want(3, b"^A", 1)
    kill_and_start(dro, 3)
    found = [e for e in dro.take(3) if isinstance(e, RecordKnownInterest)]
    assert sorted(found, key=str) == [RecordKnownInterest(b"AAA", 0, 3), RecordKnownInterest(b"^A", 1, 3)]
    dro.cores[3].on_interest(InterestGained((b"AAA", PATTERN_NONE), 3), 0)
    dro.settle()
    assert dro.take(3) == [], "it had a proxy source before"
    dro.relearn()
    assert dro.take(3) == [CheckKnown()]


def test_a_returned_egress_opens_its_proxies_before_it_knows_of_any_interest() -> None:
    dro = flowing()
    (seen,) = dro.cores[1].own.seen.values()
    kill_and_start(dro, 3)
    assert [e for e in dro.take(3) if isinstance(e, OpenProxySource)] == [OpenProxySource(1, seen)]
    assert not [e for e in dro.take(1) if isinstance(e, ChangeForwarding)], "it has got the fragments all the time"
    assert [e for e in dro.take(2) if isinstance(e, OpenProxySource)] == []


def test_what_waits_for_a_returned_egress_is_read_when_its_proxies_are_open() -> None:
    """Also when siblings have named them before there are routes, and many of them."""
    core = PortalCore(2, 2, 2, source_deletion_delay_ns=DELAY, matcher=lambda pattern, kind: None)
    core.on_sibling_up(1, 1, 0, 0, 0)
    core.on_sibling_up(3, 1, 0, 0, 0)
    sources = [SourceSeen(n, n.to_bytes(32, "big"), b"AAA", 1, 0, 0, b"", WAY) for n in range(2 * AT_ONCE)]
    for source in sources:
        core.on_message(1, 1, KnownProxy(source), 0)
    core.on_message(1, 1, KnownProxiesSent(), 0)
    assert not [e for e in core.take_effects() if isinstance(e, ReadQueue | OpenProxySource)]
    core.on_routes(1, whole([(1, 2, 1, 2), (3, 2, 3, 2)]), 0)
    core.on_message(3, 1, KnownProxiesSent(), 0)
    effects: list[Effect] = []
    while found := core.take_effects():
        for effect in found:
            if isinstance(effect, GoOn):
                list(effect.steps)
        effects += found
    order = [type(e) for e in effects if isinstance(e, ReadQueue | OpenProxySource)]
    assert order == [OpenProxySource] * len(sources) + [ReadQueue] * 2
    core.on_message(1, 1, KnownProxiesSent(), 0)
    assert core.take_effects() == [ReadQueue(1)], "at once later"


def test_a_proxy_that_turns_out_not_to_be_wanted_is_closed() -> None:
    dro = flowing(2)
    dro.kill(2)
    dro.cores[1].own.add(b"n" * 32, b"NEW", 1, 0, 0, b"", WAY)
    for known in list(dro.cores[1].siblings.interest_before(2, 9)):
        assert known is not None
        dro.cores[1].siblings.remove_interest(2, *known)  # so that nobody gives it back
    dro.start(2)
    assert [type(e) for e in dro.take(2)] == [OpenProxySource], "none for what it had not wanted"
    dro.take(1)
    dro.relearn()
    dro.settle()
    assert dro.take(2) == [CloseProxySource(OTID), CheckKnown()]
    assert ChangeForwarding(next(iter(dro.cores[1].own.seen)), ()) in dro.take(1)


def test_a_portal_that_dies_again_before_it_has_asked_has_its_proxies_afterwards() -> None:
    dro = flowing(2)
    core = dro.cores[1]
    for incarnation in (2, 3):
        core.on_sibling_down(2, 0)
        core.on_sibling_up(2, incarnation, 0, 0, 0)
    everything = [e for e in core.take_effects() if isinstance(e, SendInitialState)][-1]
    assert any(isinstance(m, KnownProxy) for m in everything.messages)
    core.on_message(2, 3, StateConfirmed(), 0)
    assert list(core.own.wanted_before(2)) == []


def test_one_that_asks_again_before_it_was_stopped_gets_its_fragments() -> None:
    """Another sibling that was stopped first had left it out, and the two cores did not notice."""
    core = flowing(3).cores[1]
    (handle,) = core.own.seen
    for worker in (2, 3):
        assert list(core.own.keep_wanted(worker)) == []
    stops = {worker: core.own.forget_wanted_before(worker) for worker in (2, 3)}
    assert list(stops[2]) == [None]
    core.own.forward(3, handle, is_wanted=True)
    assert list(stops[3]) == [None]
    changes = [e for e in core.take_effects() if isinstance(e, ChangeForwarding)]
    assert changes == [ChangeForwarding(handle, ()), ChangeForwarding(handle, (3,))]


def test_what_a_portal_wanted_that_dies_again_and_again_is_bounded_and_forgotten() -> None:
    dro = flowing(2)
    core = dro.cores[1]
    (handle,) = core.own.seen
    for incarnation in range(2, 20):
        core.on_sibling_down(2, 0)
        core.on_sibling_up(2, incarnation, 0, 0, 0)
        core.on_message(2, incarnation, ForwardStart(handle), 0)
    assert len(list(core.own.wanted_before(2))) == 2
    core.on_sibling_down(2, 0)
    core.on_timer(s(600))
    assert list(core.own.wanted_before(2)) == []


def test_interest_of_a_domain_behind_it_does_not_end_what_was_given_back() -> None:
    (seen,) = flowing(2).cores[1].own.seen.values()
    core = Dro(2).cores[2]
    core.on_message(1, 1, KnownProxy(seen), 0)
    core.take_effects()
    core.on_interest(InterestGained((b"AAA", PATTERN_NONE), 9), 0)
    assert not any(isinstance(e, CloseProxySource | DelayDeletion) for e in core.take_effects())


def test_an_access_list_that_was_changed_meanwhile_holds() -> None:
    dro = flowing(2)
    (seen,) = dro.cores[1].own.seen.values()
    for access, opened in ((lists(outbound="-AAA"), []), (OPEN, [OpenProxySource])):
        core = Dro(2).cores[2]
        core.on_acl(access, 0)
        core.take_effects()
        core.on_message(1, 1, KnownProxy(seen), 0)
        assert [type(e) for e in core.take_effects() if not isinstance(e, SendToSibling)] == opened


def test_a_portal_that_knows_its_domain_again_takes_nothing_back() -> None:
    dro = flowing(2)
    dro.relearn()
    dro.take(1)
    dro.cores[1].on_message(2, 1, KnownSource(SourceSeen(7, b"x" * 32, b"X", 1, 0, 0, b"", WAY)), 0)
    dro.cores[1].on_message(2, 1, KnownInterest(b"X", 0, 1), 0)
    dro.cores[1].on_message(2, 1, KnownProxy(SourceSeen(8, b"y" * 32, b"Y", 2, 0, 0, b"", WAY)), 0)
    assert dro.cores[1].take_effects() == []


def test_nothing_is_given_back_that_was_never_told_or_by_a_portal_that_leaves() -> None:
    dro = flowing(2)
    core = dro.cores[2]
    core.on_sibling_down(1, 0)
    core.on_sibling_up(1, 2, 0, 0, 0)
    (everything,) = [e for e in core.take_effects() if isinstance(e, SendInitialState)]
    core.withdraw()
    assert not any(isinstance(m, KnownSource | KnownProxy | KnownInterest) for m in everything.messages)
    fresh = Dro(2)
    assert not any(isinstance(e, JoinKnownSource | RecordKnownInterest) for e in fresh.take(1) + fresh.take(2))
