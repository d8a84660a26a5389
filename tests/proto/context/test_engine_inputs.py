"""Whatever is found, wanted and ended, in whatever order: what a context asks for fits together, and is freed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sized
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.clock import s
from dro.proto.context import effects as do
from dro.proto.context.bound import BoundKey
from dro.proto.context.sources import BoundSource, SessionView
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.options import FINAL_COST
from dro.wire.source_string import LbtrmAddress, TcpAddress, TransportAddress
from tests.builders.tir_options import tir_options
from tests.fakes.engine_trd import IP, EngineHost, EngineTrd

TOPICS: Final = (b"t.1", b"t.2", b"u.1")
PATTERNS: Final = (b"^t", b"1$")
SESSIONS: Final[tuple[TransportAddress, ...]] = (
    TcpAddress(IP, 14371, 1),
    LbtrmAddress(IP, 0xEFC90009, 2, 14400, 14390),
    TcpAddress(IP, 14372, 3),
)
INDEXES: Final = (1, 2)
CONTEXTS: Final = (
    lbmr.standard_options(b"context1", lbmr.SenderType.APPLICATION, 0),
    lbmr.standard_options(b"some dro", lbmr.SenderType.DRO, 1),
    lbmr.standard_options(b"next dro", lbmr.SenderType.DRO, 1),
)

Act = tuple[Any, ...]
which = st.integers(0, 2)
small = st.integers(0, 1)
ACTS: Final[st.SearchStrategy[Act]] = st.one_of(
    st.tuples(st.just("advertise"), which, which, small, st.integers(0, 3), which),
    st.tuples(st.just("final"), which, which, small, st.integers(0, 3), which),
    st.tuples(st.just("want"), which),
    st.tuples(st.just("unwant"), which),
    st.tuples(st.just("want_pattern"), small),
    st.tuples(st.just("unwant_pattern"), small),
    st.tuples(st.just("session_ended"), which),
    st.tuples(st.just("refuse"), which, st.booleans()),
    st.tuples(st.just("judge"), st.sampled_from([None, *TOPICS])),
    st.tuples(st.just("known"), which, which, small),
    st.tuples(st.just("leave_unwanted")),
    st.tuples(st.just("hear"), which),
    st.tuples(st.just("pass"), st.sampled_from([1, 10, 100, 250, 1000, 12_000])),
)


class Account:
    """What the effects of one context add up to, checked as they come."""

    def __init__(self) -> None:
        self.bound: dict[BoundKey, BoundSource[Any]] = {}
        self.sessions: Counter[SessionView] = Counter()
        self.ended: set[SessionView] = set()
        self._left: SessionView | None = None  # by the effect before

    def book(self, effect: do.ContextEffect) -> None:
        """Check the next effect."""
        left, self._left = self._left, None
        match effect:
            case do.Bound(source=source):
                key = key_of(source)
                assert key not in self.bound, "bound twice"
                self.bound[key] = source
                self.sessions[source.transport] += 1
            case do.LeaveSession(session=session):
                assert self.sessions[session] == 1, "left with sources, or twice"
                self._left = session
            case do.Unbound(source=source):
                assert self.bound.pop(key_of(source)) is source, "not bound, or another one"
                self.sessions[source.transport] -= 1
                assert (left is source.transport) == (self.sessions[source.transport] == 0)
            case do.Changed(source=source) | do.ProxyLeft(source=source):
                assert self.bound[key_of(source)] is source
        assert left is None or isinstance(effect, do.Unbound), "what a session is left for comes next"

    def check(self) -> None:
        """Check that nothing is half done."""
        assert self._left is None
        self.sessions = +self.sessions


def key_of(source: BoundSource[Any]) -> BoundKey:
    return source.topic, source.address, source.topic_index


class World:
    """One context that is told anything."""

    def __init__(self) -> None:
        self.trd = EngineTrd()
        self.context = self.trd.context()
        self.account = Account()
        self._booked = 0
        self.topics: Counter[int] = Counter()
        self.patterns: Counter[int] = Counter()

    def do(self, name: str, *arguments: Any) -> None:  # noqa: ANN401  as the act has them
        act: Callable[..., None] = getattr(self, f"_{name}")
        act(*arguments)
        self.settle()

    def settle(self) -> None:
        self.trd.settle()
        done = self.context.done
        for effect in done[self._booked :]:
            self.account.book(effect)
        self._booked = len(done)
        self.account.check()
        self.compare()

    def compare(self) -> None:
        """Check that the engine, the account and the host know the same."""
        engine, account = self.context.engine, self.account
        assert {key_of(source): source for source in engine.bound.sources} == account.bound
        assert engine.bound.topics() == {topic for topic, _, _ in account.bound}
        assert all(engine.bound.find(key) is source for key, source in account.bound.items())
        joined = {session.address for session in account.sessions}
        assert set(self.context.sessions) >= joined - {session.address for session in account.ended}

    # acts

    def _tir(self, topic: int, session: int, index: int, cost: lbmr.Cost | None) -> lbmr.Tir:
        otid = bytes([topic, index]) * 16
        options = tir_options(otid=otid, cost=cost)
        return lbmr.Tir(TOPICS[topic], SESSIONS[session], lbmr.TIR_TTL, INDEXES[index], options)

    def _advertise(self, topic: int, session: int, index: int, cost: int, sender: int) -> None:
        options = CONTEXTS[sender]
        tir = self._tir(topic, session, index, lbmr.Cost(1, cost) if options.is_from_dro else None)
        self.trd.say(lbmr.Queries(tirs=(tir,)), options, IP + sender)

    def _final(self, topic: int, session: int, index: int, cost: int, sender: int) -> None:
        tir = self._tir(topic, session, index, lbmr.Cost(0, FINAL_COST))
        self.trd.say(lbmr.Queries(tirs=(tir,)), CONTEXTS[sender], IP + sender)

    def _want(self, topic: int) -> None:
        self.topics[topic] += 1
        self.context.want(TOPICS[topic])

    def _unwant(self, topic: int) -> None:
        if self.topics[topic]:
            self.topics[topic] -= 1
            assert self.context.unwant(TOPICS[topic]) == (not self.topics[topic])

    def _want_pattern(self, pattern: int) -> None:
        self.patterns[pattern] += 1
        self.context.want_pattern(PATTERNS[pattern])

    def _unwant_pattern(self, pattern: int) -> None:
        if self.patterns[pattern]:
            self.patterns[pattern] -= 1
            self.context.unwant_pattern(PATTERNS[pattern])

    def _session_ended(self, session: int) -> None:
        address = SESSIONS[session]
        if (joined := self.context.sessions.get(address)) is not None:
            self.account.ended.add(joined)
            self.context.session_ended(address)

    def _refuse(self, session: int, is_refused: bool) -> None:
        change = self.context.refused.add if is_refused else self.context.refused.discard
        change(SESSIONS[session])

    def _judge(self, refused: bytes | None) -> None:
        judge = None if refused is None else lambda topic, _: topic != refused
        self.context.engine.resolver.set_judge(judge, self.trd.now_ns)

    def _known(self, topic: int, session: int, index: int) -> None:
        tir = self._tir(topic, session, index, None)
        self.context.engine.resolver.join_known(
            tir, source_ip=IP, from_dro=False, source_id=b"context1", now_ns=self.trd.now_ns
        )

    def _leave_unwanted(self) -> None:
        self.context.engine.leave_unwanted(self.trd.now_ns)

    def _hear(self, session: int) -> None:
        self.trd.hear_on(SESSIONS[session])

    def _pass(self, milliseconds: int) -> None:
        self.trd.run(milliseconds)

    # afterwards

    def let_everything_go(self) -> None:
        """Want nothing more, and let the time pass in which anything was due."""
        for topic, count in self.topics.items():
            for _ in range(count):
                self.context.unwant(TOPICS[topic])
        for pattern, count in self.patterns.items():
            for _ in range(count):
                self.context.unwant_pattern(PATTERNS[pattern])
        self.context.engine.leave_unwanted(self.trd.now_ns)
        self.settle()
        self.trd.run(400)
        self.settle()


def contents(host: EngineHost) -> list[int]:
    """How much the context remembers, outside of the resolver."""
    bound, wanted = host.engine.bound, host.engine.wanted
    tables: tuple[Sized, ...] = (
        bound._bound,
        bound._ending,
        bound._by_topic,
        bound._by_session,
        bound._ended,
        bound._unchecked,
        wanted._topics,
        wanted._patterns,
    )
    more: tuple[Sized, ...] = (
        wanted._by_handle,
        wanted._matched,
        host.engine._effects,
        host.engine._events,
        host.sessions,
    )
    return [*map(len, tables), *map(len, more), len(host.engine._calendar)]


@given(st.lists(ACTS, min_size=20, max_size=60))
def test_what_is_asked_for_fits_together(acts: list[Act]) -> None:
    world = World()
    for act in acts:
        world.do(*act)
    wanted = world.context.engine.wanted
    world.trd.run(400)
    world.context.engine.leave_unwanted(world.trd.now_ns)
    world.settle()
    assert all(wanted.is_wanted(source.topic) for source in world.context.current)


@given(st.lists(ACTS, max_size=60))
def test_what_nobody_wants_any_more_is_left_and_freed(acts: list[Act]) -> None:
    world = World()
    for act in acts:
        world.do(*act)
    world.let_everything_go()
    assert world.account.bound == {}
    assert contents(world.context) == [0] * len(contents(world.context))


@given(st.lists(ACTS, max_size=40), st.lists(ACTS, max_size=10))
def test_a_closed_context_is_told_anything_and_asks_for_nothing(acts: list[Act], after: list[Act]) -> None:
    world = World()
    for act in acts:
        world.do(*act)
    world.context.close()
    asked = len(world.context.done)
    for name, *arguments in after:
        if name in ("advertise", "final", "hear", "pass"):
            getattr(world, f"_{name}")(*arguments)
    world.context.engine.on_timer(world.trd.now_ns + s(60))
    assert list(world.context.engine.take_effects(world.trd.now_ns)) == []
    assert (len(world.context.done), world.context.current) == (asked, [])


@given(st.lists(ACTS, max_size=60), st.booleans())
def test_wanting_again_finds_what_is_advertised(acts: list[Act], by_pattern: bool) -> None:
    world = World()
    for act in acts:
        world.do(*act)
    world.let_everything_go()
    world.do("judge", None)
    for session in range(len(SESSIONS)):
        world.do("refuse", session, False)
    world.do("pass", 120_000)
    taken = len(world.context.of(do.IndexTaken))
    world.do(*(("want_pattern", 0) if by_pattern else ("want", 0)))
    world.do("advertise", 0, 0, 0, 0, 0)
    found = {topic for topic, _, _ in world.account.bound}  # on this session or a known one
    assert TOPICS[0] in found or len(world.context.of(do.IndexTaken)) > taken


@pytest.mark.parametrize("ends_by", ["final", "session_ended", "unwant", "unwant_pattern", "judge", "dead DRO"])
def test_sources_that_come_and_go_leave_nothing_behind(ends_by: str) -> None:
    world = World()
    sizes = []
    for number in range(40):
        by_pattern = ends_by == "unwant_pattern"
        world.do(*(("want_pattern", 0) if by_pattern else ("want", 0)))
        sender = 1 + number % 2 if ends_by == "dead DRO" else 0
        world.do("advertise", 0, number % 2 if ends_by == "dead DRO" else 0, 0, 1, sender)
        assert world.account.bound
        _end(world, ends_by)
        world.trd.run(13_000)
        world.settle()
        sizes.append(contents(world.context))
    assert bool(world.context.of(do.ProxyLeft)) == (ends_by == "dead DRO")
    assert sizes[-1] == sizes[3 if ends_by == "dead DRO" else 0]


def _end(world: World, ends_by: str) -> None:
    match ends_by:
        case "final":
            world.do("final", 0, 0, 0, 1, 0)
            world.do("pass", 250)
            world.do("unwant", 0)
        case "session_ended":
            world.do("session_ended", 0)
            world.do("unwant", 0)
        case "judge":
            world.do("judge", TOPICS[0])
            world.do("unwant", 0)
            world.do("judge", None)
        case "dead DRO":
            for session in SESSIONS[:2]:
                world.trd.fall_silent(session)  # the next advertisement finds another session
        case _:
            world.do(ends_by, 0)


def test_the_account_finds_what_does_not_fit() -> None:
    world = World()
    world.do("want", 0)
    world.do("advertise", 0, 0, 0, 0, 0)
    (bound,) = world.context.bound
    other = replace(bound, topic_index=9)
    cases: list[list[do.ContextEffect]] = [
        [do.Bound(bound)],
        [do.LeaveSession(bound.transport), do.Bound(other)],
        [do.Unbound(other, ended=True)],
    ]
    for wrong in cases:
        account = Account()
        account.book(do.Bound(bound))
        with pytest.raises((AssertionError, KeyError)):
            book_all(account, wrong)


def book_all(account: Account, effects: list[do.ContextEffect]) -> None:
    for effect in effects:
        account.book(effect)
