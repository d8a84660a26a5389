"""What concerns many topics at once: how much is decided at once, and what may happen before the rest of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dro.clock import ms
from dro.proto.interest.events import InterestGained, InterestLost
from portals.decisions.acl_enforcement import OPEN
from portals.decisions.core import AT_ONCE, PortalCore
from portals.decisions.effects import (
    ChangeForwarding,
    CloseProxyReceiver,
    CloseProxySource,
    DelayDeletion,
    Effect,
    ExpireQueue,
    GoOn,
    OpenProxyReceiver,
    OpenProxySource,
    SendInitialState,
    SendToSibling,
)
from portals.decisions.messages import (
    PATTERN_NONE,
    PATTERN_PCRE,
    ForwardStart,
    ForwardStop,
    InitialStateSent,
    InterestAdded,
    InterestRemoved,
    KnownProxiesSent,
    KnownSourcesSent,
    PortalMessage,
    SourceGone,
    SourceSeen,
    StateConfirmed,
)
from portals.decisions.routes import HELD_NS, LONGER_NS
from portals.decisions.siblings import REJOIN_HOLD_NS
from portals.decisions.source_deletion_delay import FED_NS
from tests.builders.routes import whole
from tests.fakes.patterns import compile_pattern
from tests.portals.decisions.test_acl import lists

MANY = 3 * AT_ONCE
HERE, THERE, BEYOND = 1, 2, 3  # domains, and the workers of the portals to them
ROUTES = [(a, b, a, b) for a in (1, 2, 3) for b in (1, 2, 3) if a != b]


class Alone:
    """Portal 1 with siblings 2 and 3; `quiescence` is what it left to later turns."""

    def __init__(self) -> None:
        self.core = PortalCore(HERE, 1, HERE, source_deletion_delay_ns=ms(1), matcher=compile_pattern)
        self.quiescence: list[Iterator[object]] = []
        self.kept: list[Effect] = []
        self.core.on_routes(1, whole(ROUTES), 0)
        for worker in (THERE, BEYOND):
            self.core.on_sibling_up(worker, 4, 0, 0, 0)
        self.effects()

    def effects(self) -> list[Effect]:
        found, self.kept = self.kept, []
        for effect in self.core.take_effects():
            if isinstance(effect, GoOn):
                self.quiescence.append(effect.steps)
            else:
                found.append(effect)
        return found

    def told(self) -> list[PortalMessage]:
        """To one of the siblings."""
        return [e.message for e in self.effects() if isinstance(e, SendToSibling) and e.worker == THERE]

    def finish(self) -> None:
        self.kept = self.effects()
        rest, self.quiescence = self.quiescence, []
        for steps in rest:
            for _ in steps:
                pass

    def hear(self, message: PortalMessage, worker: int = THERE, incarnation: int = 4) -> None:
        self.core.on_message(worker, incarnation, message, 0)

    def wanted(self, count: int = MANY) -> None:
        """Here."""
        for n in range(count):
            self.core.on_interest(InterestGained((b"T%d" % n, PATTERN_NONE)), 0)

    def asked(self, count: int = MANY, worker: int = THERE) -> None:
        for n in range(count):
            self.hear(InterestAdded(b"T%d" % n, PATTERN_NONE, worker), worker)

    def offered(self, count: int = MANY, worker: int = THERE, topic: bytes = b"T%d") -> None:
        for n in range(count):
            otid = bytes([worker]) * 24 + n.to_bytes(8, "big")
            self.hear(SourceSeen(n, otid, topic % n, worker, 0, 0, b""), worker)


def kinds(effects: list[Effect]) -> dict[type, int]:
    return {kind: sum(isinstance(e, kind) for e in effects) for kind in {type(e) for e in effects}}


def test_a_change_of_routes_decides_the_first_at_once_and_the_others_later() -> None:
    alone = Alone()
    alone.wanted()
    alone.offered()
    alone.asked()
    alone.effects()
    alone.core.on_routes(2, [], 0)
    assert kinds(alone.effects()) == {}
    alone.finish()
    assert kinds(alone.effects()) == {}, "for a while all goes on"
    alone.core.on_timer(HELD_NS + LONGER_NS)
    assert kinds(alone.effects()) == {CloseProxyReceiver: AT_ONCE}
    alone.finish()
    assert kinds(alone.effects()) == {
        CloseProxyReceiver: MANY - AT_ONCE, DelayDeletion: MANY
    }  # fmt: skip
    alone.core.on_timer(HELD_NS + LONGER_NS + FED_NS)
    assert kinds(alone.effects()) == {SendToSibling: AT_ONCE, DelayDeletion: AT_ONCE}


def test_a_source_whose_end_is_advertised_late_is_fed_as_long_as_the_others() -> None:
    alone = Alone()
    alone.wanted()
    alone.offered()
    alone.core.on_routes(2, [], 0)
    alone.finish()
    alone.core.on_timer(HELD_NS)
    late_ns = HELD_NS + 2 * FED_NS
    alone.core.deletion_delay.pass_time(late_ns)
    alone.finish()
    ends = {effect.delete_at_ns for effect in alone.effects() if isinstance(effect, DelayDeletion) and effect.is_fed}
    assert ends == {HELD_NS + FED_NS, late_ns + FED_NS}


def test_only_what_a_changed_route_touches_is_decided_again(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Alone()
    for worker in (THERE, BEYOND):
        alone.asked(5, worker)
        alone.offered(5, worker, topic=b"T%d" if worker == THERE else b"U%d")
    alone.effects()
    receivers: list[object] = []
    sources: list[bytes] = []
    monkeypatch.setattr(alone.core.receivers, "decide", receivers.append)
    monkeypatch.setattr(alone.core.sources, "decide", lambda otid, _, is_over: sources.append(otid))
    alone.core.on_routes(2, whole([*ROUTES, (7, 8, THERE, BEYOND), (THERE, 9, THERE, BEYOND)]), 0)
    assert (receivers, sources) == ([], []), "paths through other portals"
    alone.core.on_routes(3, whole([*ROUTES, (HERE, 9, HERE, BEYOND)]), 0)
    assert (receivers, sources) == ([], []), "nobody wants anything for domain 9"
    alone.core.on_routes(4, whole([route for route in ROUTES if route[1] != BEYOND]), 0)
    assert (receivers, sources) == ([], []), "kept for a while"
    alone.core.on_timer(HELD_NS + LONGER_NS)
    assert (len(receivers), sources) == (5, [])
    receivers.clear()
    alone.core.on_routes(5, whole([r for r in ROUTES if BEYOND not in (r[0], r[1])]), 0)
    assert receivers == []
    assert [otid[0] for otid in sources] == [BEYOND] * 5


def test_another_table_before_the_rest_of_the_first() -> None:
    alone = Alone()
    alone.asked()
    alone.effects()
    alone.core.on_routes(2, [], 0)
    alone.core.on_routes(3, whole(ROUTES), 0)
    alone.finish()
    alone.effects()
    assert len(alone.core.proxy_receivers) == MANY


def test_a_list_is_applied_topic_by_topic_to_what_siblings_know_then() -> None:
    alone = Alone()
    alone.wanted()
    alone.effects()
    alone.core.on_acl(lists(outbound="-/./"), 0)
    assert len(alone.told()) == AT_ONCE
    first, last = (b"T0", PATTERN_NONE), (b"T%d" % (MANY - 1), PATTERN_NONE)
    for symbol in (first, last):
        alone.core.on_interest(InterestGained(symbol, 9), 0)
    assert alone.told() == [InterestAdded(*last, 9)], "siblings know of it still"
    alone.core.on_interest(InterestLost(last), 0)
    assert alone.told() == [InterestRemoved(*last, HERE)]
    alone.finish()
    told = alone.told()
    assert InterestRemoved(*last, 9) in told
    assert len(told) == MANY - AT_ONCE
    assert len(alone.core.recorded.withheld) == MANY
    alone.core.on_acl(OPEN, 0)
    alone.finish()
    assert len(alone.told()) == MANY + 1, "two domains want the first"
    assert alone.core.recorded.withheld == set()


def test_an_exchange_tells_what_siblings_may_know() -> None:
    alone = Alone()
    alone.core.on_acl(lists(outbound="-T1 +/./"), 0)
    alone.wanted(3)
    alone.core.on_interest(InterestGained((b"T0", PATTERN_NONE), 9), 0)
    handles = [alone.core.own.add(bytes([n]) * 32, b"S", HERE, 0, 0, b"") for n in range(3)]
    alone.effects()
    alone.core.on_sibling_up(THERE, 5, 0, 0, 0)
    (everything,) = [e for e in alone.effects() if isinstance(e, SendInitialState)]
    first = next(everything.messages)
    alone.core.on_interest(InterestLost((b"T2", PATTERN_NONE)), 0)
    alone.core.own.change(handles[0], 3, 3, b"")
    alone.core.own.end(handles[1])
    seen = alone.core.own.seen
    interest = [InterestAdded(b"T0", PATTERN_NONE, domain) for domain in (HERE, 9)]
    assert first == KnownProxiesSent()
    known = [KnownSourcesSent(), *interest, seen[handles[0]], seen[handles[2]], InitialStateSent()]
    assert [*filter(None, everything.messages)] == known


def test_an_exchange_ends_when_the_portal_is_withdrawn() -> None:
    alone = Alone()
    alone.wanted(3)
    alone.core.own.add(bytes(32), b"S", HERE, 0, 0, b"")
    alone.effects()
    alone.core.on_sibling_up(THERE, 5, 0, 0, 0)
    (everything,) = [e for e in alone.effects() if isinstance(e, SendInitialState)]
    next(everything.messages)
    alone.core.withdraw()
    assert list(filter(None, everything.messages)) == [KnownSourcesSent(), InitialStateSent()]


def test_a_new_pattern_finds_topics_step_by_step_until_it_goes() -> None:
    alone = Alone()
    alone.offered()
    alone.core.on_interest(InterestGained((b"^T", PATTERN_PCRE)), 0)
    assert kinds(alone.effects())[OpenProxySource] == AT_ONCE
    alone.hear(SourceSeen(9999, b"n" * 32, b"Tnew", THERE, 0, 0, b""))
    assert kinds(alone.effects())[OpenProxySource] == 1
    alone.finish()
    assert kinds(alone.effects())[OpenProxySource] == MANY - AT_ONCE
    alone.core.on_interest(InterestGained((b"^T1", PATTERN_PCRE)), 0)
    for pattern in (b"^T", b"^T1"):
        alone.core.on_interest(InterestLost((pattern, PATTERN_PCRE)), 0)
    alone.finish()
    assert kinds(alone.effects())[CloseProxySource] == MANY + 1
    assert (alone.core.proxies, alone.core.recorded._found) == ({}, {})


def test_a_pattern_for_one_more_domain_and_for_one_less() -> None:
    alone = Alone()
    alone.core.on_routes(2, whole([*ROUTES, (THERE, 9, THERE, HERE)]), 0)
    alone.offered(2)
    alone.core.on_interest(InterestGained((b"^T", PATTERN_PCRE), 9), 0)
    alone.core.on_interest(InterestGained((b"^T", PATTERN_PCRE)), 0)
    alone.core.on_interest(InterestLost((b"^T", PATTERN_PCRE), 9), 0)
    assert CloseProxySource not in kinds(alone.effects())
    alone.core.on_routes(3, whole([*ROUTES]), 0)
    assert alone.effects() == [], "the domain that is left is reached"
    alone.core.on_interest(InterestLost((b"^T", PATTERN_PCRE)), 0)
    assert kinds(alone.effects())[CloseProxySource] == 2


def test_what_an_older_life_had_said_goes_step_by_step_and_what_is_said_meanwhile_stays() -> None:
    alone = Alone()
    alone.wanted()
    alone.asked()
    alone.offered()
    alone.core.on_sibling_down(THERE, 0)
    alone.core.on_sibling_up(THERE, 5, 0, 0, 0)
    alone.effects()
    alone.hear(StateConfirmed(), incarnation=5)
    assert kinds(alone.effects()) == {CloseProxyReceiver: AT_ONCE}
    last = b"T%d" % (MANY - 1)
    alone.hear(InterestAdded(last, PATTERN_NONE, THERE), incarnation=5)
    otid = bytes([THERE]) * 24 + (MANY - 1).to_bytes(8, "big")
    alone.hear(SourceSeen(7777, otid, last, THERE, 0, 0, b""), incarnation=5)
    alone.finish()
    alone.effects()
    assert [*alone.core.proxy_receivers] == [*alone.core.siblings.symbols] == [(last, PATTERN_NONE)]
    assert [otid for otid, proxy in alone.core.proxies.items() if proxy.feeder is not None] == [otid]


def test_a_number_that_is_given_again_before_the_rest_of_a_removal() -> None:
    alone = Alone()
    alone.asked()
    alone.core.on_sibling_removed(THERE, 0)
    alone.effects()
    alone.core.on_sibling_up(THERE, 9, 0, 0, 0)
    last = (b"T%d" % (MANY - 1), PATTERN_NONE)
    alone.hear(InterestAdded(*last, THERE), incarnation=9)
    alone.finish()
    assert [*alone.core.proxy_receivers] == [last]


def test_forwarding_to_a_dead_sibling_ends_step_by_step_and_its_next_life_keeps_what_it_asks_for() -> None:
    alone = Alone()
    handles = [alone.core.own.add(n.to_bytes(32, "big"), b"S", HERE, 0, 0, b"") for n in range(MANY)]
    for handle in handles:
        for worker in (THERE, BEYOND):
            alone.hear(ForwardStart(handle), worker)
    alone.effects()
    alone.core.on_sibling_down(THERE, 0)
    assert not [e for e in alone.effects() if isinstance(e, ChangeForwarding)], "its queue gets them"
    alone.core.on_timer(REJOIN_HOLD_NS)
    stopped = [e for e in alone.effects() if isinstance(e, ChangeForwarding)]
    assert (len(stopped), {e.workers for e in stopped}) == (AT_ONCE, {(BEYOND,)})
    last = next(h for h in reversed(handles) if h not in {e.handle for e in stopped})
    alone.core.on_sibling_up(9, 4, 0, 0, 0)
    alone.hear(ForwardStart(last), 9)
    assert ChangeForwarding(last, (BEYOND, 9)) in alone.effects(), "and not the dead one again"
    alone.core.on_sibling_up(THERE, 5, 0, 0, 0)
    again = {e.handle for e in stopped[:2]} | {next(h for h in handles if h not in {e.handle for e in stopped})}
    for handle in again:
        alone.hear(ForwardStart(handle), incarnation=5)
    alone.finish()
    assert not [e for e in alone.effects() if isinstance(e, ExpireQueue)], "it is up again"
    own = alone.core.own
    assert {handle for handle in handles if THERE in own._forward[handle]} == again
    own.end(next(iter(again)))
    assert len(own._wanted_by[THERE]) == 2
    for handle in again:
        alone.hear(ForwardStop(handle), incarnation=5)
    assert own._wanted_by[THERE] == set(), "nothing is kept of what ended"


def test_topics_of_siblings_are_looked_up_by_name() -> None:
    """Of many siblings only those that want a topic are looked at."""
    alone = Alone()
    for worker in range(10, 74):
        alone.core.on_sibling_up(worker, 4, 0, 0, 0)
    alone.asked(1)
    assert [*alone.core.siblings.wanting((b"T0", PATTERN_NONE))] == [(THERE, THERE)]
    alone.hear(InterestAdded(b"T0", PATTERN_NONE, 77))
    alone.hear(InterestAdded(b"T0", PATTERN_NONE, BEYOND), BEYOND)
    assert {*alone.core.siblings.wanting((b"T0", PATTERN_NONE))} == {(THERE, THERE), (THERE, 77), (BEYOND, BEYOND)}
    assert OpenProxyReceiver(b"T0", PATTERN_NONE, (THERE,)) in alone.effects()
    alone.hear(InterestRemoved(b"T0", PATTERN_NONE, THERE))
    assert alone.core.siblings.symbols_of(THERE) == {(b"T0", PATTERN_NONE)}
    alone.hear(InterestRemoved(b"T0", PATTERN_NONE, 77))
    alone.hear(InterestRemoved(b"T0", PATTERN_NONE, 77))
    assert alone.core.siblings.symbols_of(THERE) == set()
    assert alone.core.siblings.symbols == {(b"T0", PATTERN_NONE)}


def test_a_source_of_many_topics_that_ends_is_forgotten() -> None:
    alone = Alone()
    alone.core.on_interest(InterestGained((b"^T", PATTERN_PCRE)), 0)
    alone.offered(3)
    for n in range(3):
        alone.hear(SourceGone(n))
    assert (alone.core.recorded._finders, alone.core.siblings.by_topic) == ({}, {})
    assert set(alone.core.siblings.otids) == set()
    assert not any(alone.core.recorded._found.values())


def test_proxy_receivers_are_counted_by_kind_where_they_open_and_close() -> None:
    alone = Alone()
    for symbol in ((b"A", PATTERN_NONE), (b"B", PATTERN_NONE), (b"^A", PATTERN_PCRE)):
        alone.hear(InterestAdded(*symbol, THERE))
        alone.hear(InterestAdded(*symbol, BEYOND), BEYOND)
    assert alone.core.receivers.kinds == {PATTERN_NONE: 2, PATTERN_PCRE: 1}
    for worker in (THERE, BEYOND):
        alone.hear(InterestRemoved(b"A", PATTERN_NONE, worker), worker)
    assert alone.core.receivers.kinds == {PATTERN_NONE: 1, PATTERN_PCRE: 1}
    alone.core.close_receivers()
    assert alone.core.receivers.kinds.total() == 0


def test_a_withdrawn_portal_with_many_topics_closes_step_by_step() -> None:
    alone = Alone()
    alone.wanted()
    alone.asked()
    alone.offered()
    handles = [alone.core.own.add(n.to_bytes(32, "big"), b"S", HERE, 0, 0, b"") for n in range(MANY)]
    alone.effects()
    alone.core.withdraw()
    alone.core.own.end(handles[0])
    alone.core.close_receivers()
    assert kinds(alone.effects()) == {CloseProxyReceiver: AT_ONCE}
    alone.core.close_sources()
    assert kinds(alone.effects()) == {CloseProxySource: AT_ONCE}
    alone.core.end_sources()
    assert len(alone.told()) == AT_ONCE
    alone.core.own.end(handles[-1])
    alone.finish()
    effects = alone.effects()
    assert kinds(effects)[CloseProxyReceiver] == kinds(effects)[CloseProxySource] == MANY - AT_ONCE
    ended = [e.message for e in effects if isinstance(e, SendToSibling) and e.worker == THERE]
    assert len(ended) == len(set(ended)) == MANY - AT_ONCE
    assert (alone.core.proxies, alone.core.proxy_receivers, alone.core.own.seen) == ({}, {}, {})


def test_a_new_pattern_passes_over_the_topics_that_it_does_not_find() -> None:
    alone = Alone()
    for n, topic in enumerate((b"A1", b"B1", b"A2", b"B2", b"A3")):
        alone.hear(SourceSeen(n, bytes([n]) * 32, topic, THERE, 0, 0, b""))
    for _ in range(2):
        alone.core.on_interest(InterestGained((b"^A", PATTERN_PCRE)), 0)
    effects = alone.effects()
    assert [e.source.topic for e in effects if isinstance(e, OpenProxySource)] == [b"A1", b"A2", b"A3"]
    told = [e.message for e in effects if isinstance(e, SendToSibling) and isinstance(e.message, InterestAdded)]
    assert told == [InterestAdded(b"^A", PATTERN_PCRE, HERE)] * 2, "once to each sibling"


def test_a_list_passes_over_the_interest_that_it_does_not_concern() -> None:
    alone = Alone()
    symbols = [(name, PATTERN_NONE) for name in (b"A", b"B", b"C", b"D")]
    symbols.insert(1, (b"^B", PATTERN_PCRE))
    for symbol in symbols:
        alone.core.on_interest(InterestGained(symbol), 0)
    alone.effects()
    alone.core.on_acl(lists(outbound="-B -D +/./"), 0)
    assert alone.told() == [InterestRemoved(name, PATTERN_NONE, HERE) for name in (b"B", b"D")]
    assert alone.core.recorded.withheld == {b"B", b"D"}


def test_a_list_is_applied_to_nothing_that_went_meanwhile() -> None:
    alone = Alone()
    alone.wanted()
    alone.effects()
    alone.core.on_acl(lists(outbound="-/./"), 0)
    for n in range(MANY - 10, MANY):
        alone.core.on_interest(InterestLost((b"T%d" % n, PATTERN_NONE)), 0)
    alone.finish()
    assert len(alone.core.recorded.withheld) == MANY - 10
    assert len(alone.told()) == MANY


def test_what_is_known_are_topics_patterns_and_sources() -> None:
    alone = Alone()
    alone.wanted(3)
    alone.core.on_interest(InterestGained((b"^A", PATTERN_PCRE)), 0)
    for n in range(5):
        alone.core.own.add(bytes([n]) * 32, b"S", HERE, 0, 0, b"")
    assert alone.core.known == 9


def test_a_sibling_that_is_removed_while_it_is_up_gets_no_more() -> None:
    alone = Alone()
    handle = alone.core.own.add(bytes(32), b"S", HERE, 0, 0, b"")
    alone.hear(ForwardStart(handle))
    alone.effects()
    alone.core.on_sibling_removed(THERE, 0)
    assert alone.effects() == [ChangeForwarding(handle, ())]
