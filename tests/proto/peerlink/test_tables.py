"""What two sides of a peer link record of each other: interest and sources, with their digests."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dro.clock import ms, s
from dro.proto.interest.events import InterestEvent, InterestGained, InterestLost, Symbol
from dro.proto.peerlink import sources as tables
from dro.proto.peerlink.connecting import PAUSE_NS, ConnectionClaim, InitiatorCore, claim_of
from dro.proto.peerlink.interest import HeardInterest, ToldInterest
from dro.proto.peerlink.messages import Hello, SourceEnd, SourceRecord, read_source
from dro.proto.peerlink.messages import hello as hello_message
from dro.proto.peerlink.session import LinkOptions, LinkSession
from dro.proto.peerlink.sources import (
    OfferedByCompanion,
    OfferedSources,
    OfferVerdict,
    SentSources,
    SourceMessage,
    source_message,
)
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.dro_blocks import CAPABILITY3_PCRE, CAPABILITY3_REGEX, PATTERN_PCRE, PATTERN_REGEX

BOTH = CAPABILITY3_PCRE | CAPABILITY3_REGEX


def hear(heard: HeardInterest, messages: Iterable[bytes]) -> list[InterestEvent]:
    for message in messages:
        assert heard.on_message(lbmc.decode(message))
    return heard.take_events()


def wanted(events: Iterable[InterestEvent], known: set[tuple[Symbol, int]]) -> None:
    """Apply the events, each of which changes something."""
    for event in events:
        key = (event.symbol, event.domain_id)
        if isinstance(event, InterestGained):
            assert key not in known
            known.add(key)
        else:
            known.remove(key)


symbols = st.sampled_from([(b"A", 0), (b"B", 0), (b"^A", PATTERN_PCRE), (b"B$", PATTERN_REGEX), (b"x" * 252, 0)])
domains = st.sets(st.integers(1, 200), max_size=130)


class InterestMachine(RuleBasedStateMachine):
    """One side tells, the other records; the link goes down and comes back in between."""

    def __init__(self) -> None:
        super().__init__()
        self.told, self.heard = ToldInterest(), HeardInterest()
        self.told.capabilities3 = BOTH
        self.is_up = True
        self.model: dict[Symbol, set[int]] = {}
        self.core: set[tuple[Symbol, int]] = set()  # as the portal knows it from the events
        self.leaving: list[object] = []

    @rule(symbol=symbols, added=domains, removed=domains)
    def change(self, symbol: Symbol, added: set[int], removed: set[int]) -> None:
        removed -= added
        messages = self.told.change(symbol, tuple(added), tuple(removed))
        there = self.model.setdefault(symbol, set())
        there |= added
        there -= removed
        if self.is_up:
            wanted(hear(self.heard, messages), self.core)

    @rule()
    def go_down(self) -> None:
        if self.is_up:
            self.is_up = False
            self.heard.on_down()
            assert self.heard.take_events() == [], "it is held"

    @rule()
    def end_hold(self) -> None:
        self.leaving.append(self.heard.lose())

    @rule(steps=st.integers(0, 5))
    def lose(self, steps: int) -> None:
        for steps_left in self.leaving:
            for _ in range(steps):
                next(steps_left, None)  # type: ignore[call-overload]
        wanted(self.heard.take_events(), self.core)

    @rule()
    def come_up(self) -> None:
        if not self.is_up:
            self.is_up = True
            wanted(hear(self.heard, self.told.all(is_refresh=False)), self.core)

    @rule()
    def refresh(self) -> None:
        if self.is_up:
            assert hear(self.heard, self.told.all(is_refresh=True)) == []

    @invariant()
    def digests_agree(self) -> None:
        if self.is_up:
            assert self.told.digest == self.heard.digest

    def teardown(self) -> None:
        for steps in (*self.leaving, self.heard.lose()):
            for _ in steps:  # type: ignore[attr-defined]
                pass
        wanted(self.heard.take_events(), self.core)
        expected = {
            (symbol, domain) for symbol, there in self.model.items() for domain in there if len(symbol[0]) < 252
        }
        assert self.core == (expected if self.is_up else set())


TestInterest = InterestMachine.TestCase
TestInterest.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_pattern_that_the_other_side_cannot_search_for_is_not_told() -> None:
    told, heard = ToldInterest(), HeardInterest()
    told.capabilities3 = CAPABILITY3_PCRE
    assert told.change((b"r", PATTERN_REGEX), (1,), ()) == []
    assert len(told.change((b"p", PATTERN_PCRE), (1,), ())) == 1
    assert told.unfit == 1
    assert len(hear(heard, told.all(is_refresh=False))) == 1
    assert told.digest == heard.digest


def test_a_message_removes_no_domain_that_it_does_not_list() -> None:
    told, heard = ToldInterest(), HeardInterest()
    hear(heard, told.change((b"A", 0), (1, 2), ()))
    assert hear(heard, told.change((b"A", 0), (3,), (1,))) == [InterestGained((b"A", 0), 3), InterestLost((b"A", 0), 1)]


def test_strangers_cannot_fill_the_table() -> None:
    heard, told = HeardInterest(members_max=10), ToldInterest()
    for number in range(20):
        hear(heard, told.change((b"%d" % number, 0), (1,), ()))
    assert (len(heard), heard.refused, heard.digest) == (10, 10, None)
    assert hear(heard, told.change((b"0", 0), (2, 3), (1,))) == [InterestLost((b"0", 0), 1)]
    assert hear(heard, told.change((b"0", 0), (4, 5), ())) == [InterestGained((b"0", 0), 4)]
    heard.on_down()
    assert heard.digest == 0


def test_what_the_next_link_confirms_is_not_reported() -> None:
    told, heard = ToldInterest(), HeardInterest()
    hear(heard, [*told.change((b"A", 0), (1, 2), ()), *told.change((b"B", 0), (1,), ())])
    heard.on_down()
    assert (heard.take_events(), heard.held, len(heard)) == ([], 2, 0)
    told.change((b"A", 0), (), (2,))
    told.change((b"B", 0), (), (1,))
    assert hear(heard, told.all(is_refresh=False)) == []
    assert heard.held == 2, "one domain of A, and B"
    assert hear(heard, told.change((b"B", 0), (1,), ())) == []
    assert [*heard.lose()]
    assert (heard.take_events(), heard.held) == ([InterestLost((b"A", 0), 2)], 0)


def test_a_link_that_goes_down_before_the_first_of_what_is_lost_was_reported_is_held() -> None:
    told, heard = ToldInterest(), HeardInterest()
    hear(heard, told.change((b"A", 0), (1,), ()))
    steps = heard.lose()  # nothing is held
    heard.on_down()
    assert [*steps] == []
    assert (heard.take_events(), heard.held) == ([], 1)


def test_cancels_of_what_is_not_known_are_nothing() -> None:
    heard, told = HeardInterest(), ToldInterest()
    told.change((b"A", 0), (1,), ())
    assert hear(heard, told.change((b"A", 0), (), (1,))) == []
    assert len(heard) == 0


def test_kinds_are_counted() -> None:
    told, heard = ToldInterest(), HeardInterest()
    told.capabilities3 = BOTH
    for symbol in ((b"A", 0), (b"B", 0), (b"p", PATTERN_PCRE)):
        hear(heard, told.change(symbol, (1, 2), ()))
    assert dict(heard.kinds) == {0: 2, PATTERN_PCRE: 1}
    hear(heard, told.change((b"A", 0), (), (1, 2)))
    assert heard.kinds[0] == 1


# sources


def otid(number: int) -> bytes:
    return number.to_bytes(32, "big")


def record(number: int, srcidx: int = 0, topic: bytes = b"T", domain: int = 1, options: bytes = b"") -> SourceRecord:
    return SourceRecord(srcidx, domain, topic, otid(number), number, options=options)


@given(st.lists(st.tuples(st.sampled_from("ocea"), st.integers(1, 6)), max_size=60), st.integers(0, 2**32))
def test_what_is_offered_is_recorded(actions: list[tuple[str, int]], seed: int) -> None:
    rng = random.Random(seed)
    offered, told, heard = OfferedSources(), SentSources(), OfferedByCompanion(1000)
    known: dict[bytes, SourceRecord] = {}

    def hears(message: SourceMessage) -> None:
        told.on_handed_over(message)
        about = read_source(lbmc.decode(message))
        if isinstance(about, SourceEnd):
            assert heard.on_end(about) is not None
        else:
            assert heard.on_source(about) == (OfferVerdict.TAKEN, [])

    for action, number in actions:
        name = otid(number)
        if action == "o" and name not in known:
            known[name] = offered.offer(record(number))
            hears(source_message(known[name]))
        elif action == "c" and name in known:
            made = offered.change(record(number, options=rng.randbytes(3)))
            assert made is not None
            assert made.srcidx == known[name].srcidx
            known[name] = made
            hears(source_message(made))
        elif action == "e" and name in known:
            hears(offered.end(name))
            del known[name]
        elif action == "a":
            for message in offered.all():
                hears(message)
        assert {made.otid: made for made in heard.all()} == known
        assert told.digest == heard.digest
        assert len(offered) == len(heard) == len(known)


def test_numbers_are_never_used_twice() -> None:
    offered = OfferedSources()
    first = offered.offer(record(1))
    offered.end(otid(1))
    assert offered.offer(record(1)).srcidx == first.srcidx + 1


def test_nothing_is_told_when_nothing_has_changed() -> None:
    offered = OfferedSources()
    offered.offer(record(1))
    assert offered.change(record(1)) is None
    assert offered.change(record(2)) is None


def test_a_known_number_is_replaced_and_a_known_source_moves() -> None:
    heard = OfferedByCompanion(10)
    one, two = record(1, 1), record(2, 2)
    heard.on_source(one)
    heard.on_source(two)
    assert heard.on_source(record(3, 1)) == (OfferVerdict.TAKEN, [one])
    assert heard.on_source(record(3, 7)) == (OfferVerdict.TAKEN, [record(3, 1)])
    assert heard.on_source(record(3, 2)) == (OfferVerdict.TAKEN, [two, record(3, 7)])
    assert [*heard.all()] == [record(3, 2)]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (record(1, 9, topic=b"other"), OfferVerdict.OTHER_TOPIC),
        (record(1, 9, domain=2), OfferVerdict.OTHER_TOPIC),
        (record(5, 0), OfferVerdict.BAD_NUMBER),
        (record(5, 1 << 32), OfferVerdict.BAD_NUMBER),
        (record(5, 9), OfferVerdict.FULL),
    ],
)
def test_what_is_not_taken_changes_nothing(bad: SourceRecord, why: OfferVerdict) -> None:
    heard = OfferedByCompanion(1)
    heard.on_source(record(1, 1))
    assert heard.digest
    assert heard.on_source(bad) == (why, [])
    assert [*heard.all()] == [record(1, 1)]
    assert heard.digest is None, "the other end tells more than is recorded"


def test_an_end_of_another_source_is_ignored() -> None:
    heard = OfferedByCompanion(1)
    heard.on_source(record(1, 1))
    assert heard.on_end(SourceEnd(1, otid(2))) is None
    assert heard.on_end(SourceEnd(2, otid(1))) is None
    assert heard.on_end(SourceEnd(1, otid(1))) == record(1, 1)


# connecting

SILENT_NS = s(5)


def greeted(hello: Hello, heard_ns: int = 0) -> LinkSession:
    session = LinkSession(Hello(b"me", b"\1" * 8), LinkOptions(0, 0, only_when_idle=True), 0)
    session.on_connected(0)
    session.on_message(hello_message(hello), 0)
    session.on_received(heard_ns)
    return session


@pytest.mark.parametrize(
    ("newcomer", "silent_ns", "claim"),
    [
        (Hello(b"G1", b"\2" * 8, node_id=5), s(1), ConnectionClaim.ASKS),
        (Hello(b"G1", b"\3" * 8, node_id=5), s(1), ConnectionClaim.ASKS),
        (Hello(b"G1", b"\3" * 8, node_id=6), s(1), ConnectionClaim.CLONE),
        (Hello(b"G1", b"\3" * 8), s(1), ConnectionClaim.CLONE),
        (Hello(b"G9", b"\2" * 8, node_id=5), s(1), ConnectionClaim.SECOND),
        (Hello(b"", b"\2" * 8), s(1), ConnectionClaim.SECOND),
        (Hello(b"G1", b"\3" * 8, node_id=6), SILENT_NS, ConnectionClaim.ASKS),
        (Hello(b"G9", b"\3" * 8, node_id=6), SILENT_NS, ConnectionClaim.ASKS),
    ],
)
def test_who_takes_the_place_of_a_link(newcomer: Hello, silent_ns: int, claim: ConnectionClaim) -> None:
    link = greeted(Hello(b"G1", b"\2" * 8, node_id=5), heard_ns=s(10))
    assert claim_of(greeted(newcomer), link, s(10) + silent_ns, SILENT_NS) is claim


def test_without_node_ids_the_name_counts() -> None:
    link = greeted(Hello(b"G1", b"\2" * 8), heard_ns=s(10))
    assert claim_of(greeted(Hello(b"G1", b"\3" * 8)), link, s(10), SILENT_NS) is ConnectionClaim.ASKS
    assert claim_of(greeted(Hello(b"G1", b"\3" * 8, node_id=5)), link, s(10), SILENT_NS) is ConnectionClaim.CLONE


def test_without_a_name_the_context_instance_counts() -> None:
    link = greeted(Hello(b"", b"\2" * 8), heard_ns=s(10))
    assert claim_of(greeted(Hello(b"", b"\2" * 8)), link, s(10), SILENT_NS) is ConnectionClaim.ASKS
    assert claim_of(greeted(Hello(b"", b"\3" * 8)), link, s(10), SILENT_NS) is ConnectionClaim.SECOND


def test_attempts_follow_each_other_within_a_fifth_more_than_the_interval() -> None:
    rng = random.Random(1)
    core = InitiatorCore(s(1), 0, rng.randrange)
    assert core.next_deadline() == 0
    pauses = set()
    now_ns = 0
    for number in range(100):
        core.on_attempt()
        assert core.next_deadline() is None
        assert core.attempts == number + 1
        core.on_over(now_ns)
        due_ns = core.next_deadline()
        assert due_ns is not None
        pauses.add(due_ns - now_ns)
        now_ns = due_ns
    assert min(pauses) >= s(1)
    assert max(pauses) < ms(1200)
    assert len(pauses) > 20
    core.on_up(now_ns)
    assert core.attempts == 0


@pytest.mark.parametrize("had_link", [True, False])
@pytest.mark.parametrize(("lasted_ns", "is_at_once"), [(s(1), True), (ms(999), False)])
def test_a_link_that_has_lasted_is_made_anew_at_once_and_then_ever_more_seldom(
    lasted_ns: int, is_at_once: bool, had_link: bool
) -> None:
    """A companion whose portal was killed is back after 0.1 s: with one attempt the link was away for 5 s."""
    core = InitiatorCore(s(1), 0, lambda _: 0, had_link=had_link)
    core.on_attempt()
    core.on_up(s(5))
    now_ns = s(5) + lasted_ns
    core.on_over(now_ns)
    pauses = (
        ((0,) if is_at_once else ()) + ((100, 200, 400, 800, 1000) if is_at_once or had_link else (1000,)) + (1000,)
    )
    for pause_ms in pauses:
        assert core.next_deadline() == now_ns + ms(pause_ms)
        core.on_attempt()
        core.on_over(now_ns)


def test_links_that_do_not_last_count_as_attempts() -> None:
    """Two neighbours that are restarted within the interval: their link was away for all of it."""
    core = InitiatorCore(s(5), 0, lambda _: 0)
    core.on_attempt()
    core.on_up(0)
    now_ns = s(60)
    for pause_ms in (0, 100, 200, 400, 800, 1600, 3200, 5000, 5000):
        core.on_over(now_ns)
        assert core.next_deadline() == now_ns + ms(pause_ms)
        now_ns += ms(pause_ms)
        core.on_attempt()
        core.on_up(now_ns)
        now_ns += s(1)
    now_ns += s(5)
    core.on_over(now_ns)
    assert core.next_deadline() == now_ns


def test_without_an_interval_there_is_a_pause_yet() -> None:
    core = InitiatorCore(0, 0, lambda most: most - 1)
    core.on_attempt()
    core.on_over(s(1))
    due_ns = core.next_deadline()
    assert due_ns is not None
    assert s(1) + PAUSE_NS <= due_ns <= s(1) + 2 * PAUSE_NS


def test_options_of_sources_are_bounded_by_bytes_for_each_and_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "OPTIONS_IN_ALL_MAX", 10_000)
    heard = OfferedByCompanion(1000)
    assert heard.on_source(record(1, 1, options=bytes(4097)))[0] is OfferVerdict.OPTIONS
    taken = [n for n in range(1, 9) if heard.on_source(record(n, n, options=bytes(4000)))[0] is OfferVerdict.TAKEN]
    assert taken == [1, 2]
    assert heard.digest is None, "not all was taken"
    assert heard.on_source(record(9, 9, options=bytes(2000)))[0] is OfferVerdict.TAKEN
    assert heard.on_source(record(1, 1, options=b""))[0] is OfferVerdict.TAKEN
    assert heard.on_source(record(3, 3, options=bytes(4000)))[0] is OfferVerdict.TAKEN
    assert heard.on_end(SourceEnd(2, record(2, 2).otid)) is not None
    assert heard.on_source(record(4, 4, options=bytes(4000)))[0] is OfferVerdict.TAKEN
