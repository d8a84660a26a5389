"""Which sources are joined, left and taken for dead: calls of the sink, words to the resolver, log lines, times."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, cast
from unittest.mock import Mock

import pytest

from dro.clock import s
from dro.config.um.options import UmOptions
from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.proto.context.sources import BoundSource
from dro.proto.resolver.core import Resolver
from dro.proto.resolver.events import FoundSource
from dro.um.fragment.bindings import AT_ONCE, Bindings, ContextStats
from dro.um.fragment.dro_watch import REMEMBERED_MAX, DroWatch
from dro.um.fragment.receiver_sessions import ReceiverSessions
from dro.um.fragment.wanted import WantedTopics
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.options import FINAL_COST
from dro.wire.source_string import TcpAddress, TransportAddress, format_source
from tests.builders.tir_options import tir_options
from tests.fakes.steps import steps
from tests.fakes.transport import FakeTransport
from tests.fakes.um_contexts import RecordingSink, Stepper

A, B, C = (TcpAddress(0x0A000001, port, 1) for port in (14371, 14372, 14373))
OTID = bytes(range(32))
HOST, OTHER_HOST = 0x0A0000AA, 0x0A0000BB
OLD, NEW = b"old ctx.", b"new ctx."


class Scene:
    """Bindings between a resolver that only listens, sessions that only exist, and a sink that keeps records.

    `refuses`: what joining a session does.
    """

    def __init__(self, stepper: Stepper) -> None:
        self.stepper = stepper
        self.sink = RecordingSink()
        self.stats = ContextStats()
        self.unwanted: set[bytes] = set()
        self.refuses: dict[TransportAddress, ResourceError | None] = {}
        self.joined: dict[TransportAddress, FakeTransport] = {}
        self.left: list[TransportAddress] = []
        self.told: list[tuple[bytes, TransportAddress, int, int]] = []
        self.pumps = 0
        self.later: list[Iterator[object]] = []
        self.options = UmOptions()
        self.bindings = Bindings(
            stepper.loop,
            self.sink,
            cast(Resolver, self),
            cast(WantedTopics, self),
            cast(ReceiverSessions, self),
            self.stats,
            LimitedLogger(logging.getLogger("test")),
            self._pump,
        )

    @property
    def now_ns(self) -> int:
        return self.stepper.clock.time_ns

    def _pump(self) -> None:
        self.pumps += 1

    # in the place of the resolver, of the wanted topics and of the sessions

    def on_source_ended(self, topic: bytes, address: TransportAddress, topic_index: int, now_ns: int) -> None:
        assert now_ns == self.now_ns
        self.told.append((topic, address, topic_index, now_ns))

    def is_wanted(self, topic: bytes) -> bool:
        return topic not in self.unwanted

    def options_of(self, topic: bytes) -> UmOptions:
        return self.options

    def join(self, address: TransportAddress, now_ns: int, options: UmOptions) -> FakeTransport | None:
        assert (now_ns, options) == (self.now_ns, self.options)
        if address in self.refuses:
            if (error := self.refuses[address]) is not None:
                raise error
            return None
        return self.joined.setdefault(address, FakeTransport(address))

    def leave(self, transport: FakeTransport) -> None:
        self.left.append(transport.address)
        assert self.joined.pop(transport.address) is transport

    # what happens

    def found(self, address: TransportAddress = A, topic: bytes = b"t", index: int = 1, **more: Any) -> FoundSource:  # noqa: ANN401  as `found`
        source = found(address, topic, index, **more)
        self.bindings.on_found(source, self.now_ns)
        return source

    def advertised(self, *tirs: lbmr.Tir, source_id: bytes = NEW, is_dro: bool = True, ip: int = HOST) -> None:
        options = lbmr.standard_options(source_id, 1 if is_dro else 0, 1)
        self.bindings.replace_dead(tirs, options, ip, self.now_ns)

    @property
    def bound(self) -> list[tuple[TransportAddress, int]]:
        return [(source.address, source.topic_index) for source in self.bindings.sources]

    @property
    def unbound(self) -> list[tuple[TransportAddress, int, bool]]:
        return [(source.address, source.topic_index, ended) for source, ended in self.sink.unbound]


def found(
    address: TransportAddress = A, topic: bytes = b"t", index: int = 1, *, cost: lbmr.Cost | None = None,
    from_dro: bool = True, source_id: bytes | None = OLD, ip: int = HOST, otid: bytes = OTID,
) -> FoundSource:  # fmt: skip
    tir = tir_of(address, topic, index, cost=cost, otid=otid)
    return FoundSource(topic, tir, otid, False, 0, 0, from_dro, source_id, ip)


def tir_of(
    address: TransportAddress, topic: bytes = b"t", index: int = 1, *, cost: lbmr.Cost | None = None,
    otid: bytes | None = OTID,
) -> lbmr.Tir:  # fmt: skip
    return lbmr.Tir(topic, address, 60, index, tir_options(otid=otid, cost=cost))


@pytest.fixture
def scene(stepper: Stepper) -> Iterator[Scene]:
    made = Scene(stepper)
    made.stepper.clock.time_ns = s(100)
    yield made
    assert stepper.loop.next_deadline() is None


# joining


def test_a_source_is_joined_once_with_everything_that_is_known_of_it(scene: Scene) -> None:
    source = scene.found()
    scene.found()
    (bound,) = scene.sink.bound
    transport = scene.joined[A]
    assert (bound.topic, bound.otid, bound.topic_index, bound.transport) == (b"t", OTID, 1, transport)
    assert (bound.tir, bound.is_from_dro, bound.source_id, bound.source_ip) == (source.tir, True, OLD, HOST)
    assert transport.sources == {1: bound}
    assert scene.bindings.find((b"t", A, 1)) is bound
    assert scene.bindings.find((b"t", A, 2)) is None
    assert scene.bindings.topics() == {b"t"}
    assert scene.stats == ContextStats()


def test_a_topic_that_nobody_wants_is_not_joined(scene: Scene) -> None:
    scene.unwanted.add(b"t")
    scene.found()
    assert (scene.bound, scene.joined, scene.bindings.topics()) == ([], {}, set())


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[object, dict[str, object]]]:
    return [(r.msg, {k: v for k, v in vars(r).items() if k in ("source", "error", "topic")}) for r in caplog.records]


def test_a_session_that_cannot_be_joined_is_told_to_the_resolver_and_in_the_log(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.refuses[A] = ResourceError("no socket", remedy="buy one")
    scene.found()
    assert scene.told == [(b"t", A, 1, s(100))]
    assert scene.stats == ContextStats(sessions_failed=1)
    name = format_source(A, 1)
    assert lines(caplog) == [(LogEvent.SESSION_NOT_JOINED, {"source": name, "error": "no socket; buy one"})]
    del scene.refuses[A]
    scene.found()
    assert scene.bound == [(A, 1)]


def test_an_unknown_transport_and_a_topic_index_of_another_topic_are_named(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.refuses[B] = None
    scene.found(B)
    assert scene.stats == ContextStats(sessions_unsupported=1)
    scene.found()
    scene.found(topic=b"u")
    assert scene.bound == [(A, 1)]
    assert scene.told == []
    assert lines(caplog) == [
        (LogEvent.SOURCE_TRANSPORT, {"source": format_source(B, 1)}),
        (LogEvent.SOURCE_INDEX, {"source": format_source(A, 1)}),
    ]


def test_sources_of_one_session_are_left_one_by_one_and_the_session_with_the_last(scene: Scene) -> None:
    for index, topic in ((1, b"t"), (2, b"u"), (3, b"v")):
        scene.found(topic=topic, index=index)
    scene.unwanted |= {b"t", b"u"}
    scene.bindings.leave_unwanted([b"t", b"u", b"v", b"w"], s(100))
    assert scene.unbound == [(A, 1, False), (A, 2, False)]
    assert (scene.left, list(scene.joined[A].sources)) == ([], [3])
    scene.bindings.on_refused(found(topic=b"v", index=3), s(100))
    scene.bindings.on_refused(found(topic=b"v", index=3), s(100))
    assert scene.unbound[2:] == [(A, 3, False)]
    assert (scene.left, scene.bound, scene.bindings.topics()) == ([A], [], set())
    assert scene.told == []


def test_leaving_a_topic_costs_the_same_however_many_are_bound(scene: Scene) -> None:
    def cost_of_leaving(topics: int) -> int:
        names = [b"%d" % number for number in range(topics)]
        for number, name in enumerate(names):
            scene.found(topic=name, index=number)
        scene.unwanted.update(names)
        cost = steps(lambda: scene.bindings.leave_unwanted(names, s(100)))
        assert (scene.bound, scene.bindings.topics()) == ([], set())
        scene.unwanted.clear()
        return cost // topics

    assert cost_of_leaving(200) < 1.5 * cost_of_leaving(20)


def test_a_switch_stays_on_both_ways_for_a_quarter_of_a_second(scene: Scene) -> None:
    """However quiet the old one is: the new one begins somewhere in the middle."""
    old = scene.found()
    scene.bindings.on_switched(old, found(B), scene.now_ns)
    scene.stepper.run(249, 1)
    assert (scene.unbound, scene.bound, scene.left) == ([], [(A, 1), (B, 1)], [])
    scene.stepper.run(1, 1)
    assert (scene.unbound, scene.bound, scene.left) == ([(A, 1, True)], [(B, 1)], [A])
    scene.bindings.on_switched(old, found(C), scene.now_ns)
    scene.stepper.run(300, 1)
    assert scene.bound == [(B, 1), (C, 1)]


def test_a_final_advertisement_leaves_time_for_another_way(scene: Scene) -> None:
    source = scene.found()
    scene.bindings.on_gone(source, scene.now_ns)
    scene.bindings.on_found(found(B), scene.now_ns)
    scene.stepper.run(249, 1)
    assert scene.bound == [(A, 1), (B, 1)]
    scene.stepper.run(1, 1)
    assert (scene.unbound, scene.bound) == ([(A, 1, True)], [(B, 1)])


def test_a_second_final_advertisement_leaves_as_much_time_as_the_first(scene: Scene) -> None:
    source = scene.found()
    scene.bindings.on_found(found(B), scene.now_ns)
    scene.bindings.on_gone(source, scene.now_ns)
    scene.stepper.run(100, 1)
    scene.found()
    scene.stepper.run(50, 1)
    scene.bindings.on_gone(source, scene.now_ns)
    scene.stepper.run(249, 1)
    assert scene.bound == [(A, 1), (B, 1)]
    scene.stepper.run(1, 1)
    assert (scene.unbound, scene.bound) == ([(A, 1, True)], [(B, 1)])


def test_other_attributes_of_a_bound_source_are_kept(scene: Scene) -> None:
    scene.found()
    changed = found(cost=lbmr.Cost(2, 3), from_dro=False, source_id=NEW, ip=OTHER_HOST)
    bound = scene.bindings.on_changed(changed)
    assert bound is scene.sink.bound[0]
    assert (bound.tir, bound.is_from_dro, bound.source_id, bound.source_ip) == (changed.tir, False, NEW, OTHER_HOST)
    assert scene.bindings.on_changed(found(B)) is None


def test_everything_is_forgotten_in_silence(scene: Scene) -> None:
    scene.found()
    scene.bindings.clear()
    assert (scene.bound, scene.bindings.topics(), scene.unbound) == ([], set(), [])


# ends


def test_a_session_that_ended_ends_its_sources_and_the_resolver_hears_of_each(scene: Scene) -> None:
    scene.found()
    scene.found(topic=b"u", index=2)
    transport = scene.joined[A]
    scene.bindings.on_session_ended(transport, s(100))
    assert scene.unbound == [(A, 1, True), (A, 2, True)]
    assert scene.told == [(b"t", A, 1, s(100)), (b"u", A, 2, s(100))]
    assert scene.pumps == 1


def test_the_many_sources_of_a_session_that_ended_end_over_several_turns(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 3 * AT_ONCE
    for index in range(count):
        scene.found(topic=b"%d" % index, index=index)
    transport = scene.joined[A]
    monkeypatch.setattr(scene.bindings, "_loop", Mock(wraps=scene.stepper.loop, run_in_slices=scene.later.append))
    scene.bindings.on_session_ended(transport, s(100))
    assert len(scene.told) == len(scene.unbound) == AT_ONCE
    scene.found(topic=b"90", index=90)
    assert len(scene.sink.bound) == count, "it has not ended yet"
    scene.bindings.on_refused(found(topic=b"91", index=91), s(100))
    (steps_left,) = scene.later
    for _ in range(AT_ONCE):
        next(steps_left)
    assert (len(scene.told), scene.pumps) == (2 * AT_ONCE, 2)
    list(steps_left)
    assert len(scene.told) == count - 1, "of the one that was left the resolver hears nothing"
    assert (scene.bound, scene.bindings.topics(), scene.pumps) == ([], set(), 4)
    scene.found(topic=b"90", index=90)
    assert scene.bound == [(A, 90)], "and on a new session it is bound again"


def test_the_topics_of_a_pattern_are_left_as_they_are_taken_from_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [b"%d" % index for index in range(2 * AT_ONCE)]
    for index, name in enumerate(names):
        scene.found(topic=name, index=index)
    monkeypatch.setattr(scene.bindings, "_loop", Mock(wraps=scene.stepper.loop, run_in_slices=scene.later.append))

    def taken() -> Iterator[bytes]:
        for name in names:
            scene.unwanted.add(name)
            yield name

    scene.bindings.leave_pattern(taken())
    assert len(scene.unbound) == AT_ONCE
    (steps_left,) = scene.later
    list(steps_left)
    assert (scene.bound, len(scene.unbound), scene.told) == ([], 2 * AT_ONCE, [])


def test_a_final_advertisement_ends_a_quiet_source_after_two_looks(scene: Scene) -> None:
    source = scene.found()
    scene.bindings.on_gone(source, s(100))
    scene.bindings.on_gone(source, s(100))
    scene.stepper.run(19, 1)
    assert scene.unbound == []
    scene.stepper.run(1, 1)
    assert (scene.unbound, scene.told, scene.pumps) == ([(A, 1, True)], [], 1)
    scene.bindings.on_gone(source, scene.now_ns)


@pytest.mark.parametrize(("talks_for_ms", "ends_after_ms"), [(5, 20), (15, 30), (35, 50), (225, 240), (1000, 250)])
def test_a_source_that_is_still_heard_is_waited_for_at_most_a_quarter_of_a_second(
    scene: Scene, talks_for_ms: int, ends_after_ms: int
) -> None:
    source = scene.found()
    scene.bindings.on_gone(source, s(100))
    for passed in range(1, 400):
        if passed <= talks_for_ms and (transport := scene.joined.get(A)) is not None:
            transport.heard_ns = scene.now_ns + 1
        scene.stepper.run(1, 1)
        if scene.unbound:
            break
    assert (scene.unbound, passed) == ([(A, 1, True)], ends_after_ms)


def test_a_source_that_is_advertised_again_goes_on(scene: Scene) -> None:
    source = scene.found()
    scene.bindings.on_gone(source, s(100))
    scene.stepper.run(12, 1)
    scene.found()
    scene.stepper.run(500, 10)
    assert scene.unbound == []
    scene.bindings.on_session_ended(scene.joined[A], scene.now_ns)
    assert len(scene.told) == 1, "it was not known to be gone"


def test_a_session_that_ends_while_its_last_words_are_waited_for_is_no_news(scene: Scene) -> None:
    source = scene.found()
    scene.bindings.on_gone(source, s(100))
    scene.bindings.on_session_ended(scene.joined[A], s(100))
    scene.stepper.run(100, 10)
    assert (scene.unbound, scene.told, scene.pumps) == ([(A, 1, True)], [], 1)
    scene.found()
    scene.bindings.on_session_ended(scene.joined[A], scene.now_ns)
    assert len(scene.told) == 1, "a new one is news"


def test_what_is_left_while_its_last_words_are_waited_for_ends_once(scene: Scene) -> None:
    for when_ms in (5, 15):
        source = scene.found()
        scene.bindings.on_gone(source, scene.now_ns)
        scene.stepper.run(when_ms, 1)
        scene.bindings.on_refused(source, scene.now_ns)
        scene.found()  # another one of the same key
        scene.stepper.run(100, 10)
        scene.bindings.on_refused(source, scene.now_ns)
    assert scene.unbound == [(A, 1, False)] * 4
    assert scene.pumps == 0


# DROs that died


def proxy(scene: Scene, *, heard_s: int = 100, **more: Any) -> None:  # noqa: ANN401  as `found`
    """A proxy source of the context OLD of HOST, which was last heard at that time."""
    scene.found(**more)
    scene.joined[A].heard_ns = s(heard_s)


def test_a_restarted_dro_is_followed_at_once(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    proxy(scene, cost=lbmr.Cost(1, 2))
    scene.advertised(tir_of(A), source_id=OLD)
    scene.stepper.clock.time_ns += 1
    scene.advertised(tir_of(B, cost=lbmr.Cost(1, 2)))
    assert scene.unbound == [(A, 1, True)]
    assert scene.told == [(b"t", A, 1, s(100) + 1)]
    assert scene.stats == ContextStats(sources_replaced=1)
    assert lines(caplog) == [(LogEvent.PROXY_SOURCE_LEFT, {"topic": b"t", "source": format_source(A, 1)})]
    assert scene.pumps == 2


@pytest.mark.parametrize(
    ("tir", "more"),
    [
        (tir_of(B, cost=lbmr.Cost(1, 3)), {}),
        (tir_of(B, cost=lbmr.Cost(2, 2)), {}),
        (tir_of(B), {}),
        (tir_of(B, cost=lbmr.Cost(1, 2), otid=None), {}),
        (tir_of(B, cost=lbmr.Cost(1, 2), otid=bytes(32)), {}),
        (tir_of(B, b"u", cost=lbmr.Cost(1, 2)), {}),
        (tir_of(A, cost=lbmr.Cost(1, 2)), {}),
        (tir_of(B, cost=lbmr.Cost(1, 2)), {"source_id": OLD}),
        (tir_of(B, cost=lbmr.Cost(1, 2)), {"is_dro": False}),
        (tir_of(B, cost=lbmr.Cost(1, 2)), {"ip": OTHER_HOST}),
    ],
    ids=["cost", "hops", "no cost", "no OTID", "OTID", "topic", "session", "context", "application", "host"],
)
def test_what_is_advertised_is_no_restart_when_anything_differs(
    scene: Scene, tir: lbmr.Tir, more: dict[str, object]
) -> None:
    proxy(scene, cost=lbmr.Cost(1, 2))
    scene.advertised(tir_of(A), source_id=OLD)
    scene.stepper.clock.time_ns += 1
    scene.advertised(tir, **more)  # type: ignore[arg-type]  # as there
    assert (scene.unbound, scene.stats, scene.pumps) == ([], ContextStats(), 2)
    scene.stepper.clock.time_ns += 1
    scene.advertised(tir, tir_of(C, cost=lbmr.Cost(1, 2)), source_id=b"newer c.")
    assert scene.unbound == [(A, 1, True)], "the others of a packet are looked at as well"


def test_two_dros_of_one_host_that_both_live_are_no_restart(scene: Scene) -> None:
    proxy(scene)
    scene.advertised(tir_of(B, b"u"))
    for context, address in ((OLD, A), (NEW, B), (OLD, A), (NEW, B)):
        scene.advertised(tir_of(address), source_id=context)
        scene.stepper.clock.time_ns += 1
    assert scene.unbound == []


def test_the_source_itself_is_never_taken_for_a_dead_proxy(scene: Scene) -> None:
    proxy(scene, heard_s=1, from_dro=False)
    scene.advertised(tir_of(B))
    assert scene.unbound == []


@pytest.mark.parametrize("is_dro", [True, False])
def test_a_session_silent_for_eleven_seconds_is_left_for_another_way(scene: Scene, is_dro: bool) -> None:
    proxy(scene, heard_s=89)
    other = tir_of(B, cost=lbmr.Cost(9, 9))
    scene.advertised(other, is_dro=is_dro, ip=OTHER_HOST)
    assert scene.unbound == []
    scene.stepper.clock.time_ns += 1
    scene.advertised(other, is_dro=is_dro, ip=OTHER_HOST)
    assert (scene.unbound, scene.stats.sources_replaced) == ([(A, 1, True)], 1)


def test_a_final_advertisement_is_no_other_way(scene: Scene) -> None:
    proxy(scene, heard_s=1)
    final = lbmr.Cost(1, FINAL_COST)
    assert final.is_final
    scene.advertised(tir_of(B, cost=final), ip=OTHER_HOST)
    assert scene.unbound == []
    scene.advertised(tir_of(B, cost=final), tir_of(C), ip=OTHER_HOST)
    assert scene.unbound == [(A, 1, True)]


def test_a_session_that_is_silent_when_idle_is_left_only_when_its_host_is_silent_too(scene: Scene) -> None:
    proxy(scene, heard_s=1)
    scene.joined[A].shows_life = False
    scene.bindings.on_dro_packet(HOST, s(89))
    scene.advertised(tir_of(B), ip=OTHER_HOST)
    assert scene.unbound == []
    scene.stepper.clock.time_ns += 1
    scene.advertised(tir_of(B), ip=OTHER_HOST)
    assert scene.unbound == [(A, 1, True)]


def test_an_advertisement_without_options_is_another_way_too(scene: Scene) -> None:
    proxy(scene, heard_s=1)
    scene.bindings.replace_dead((tir_of(B),), None, OTHER_HOST, s(100))
    assert scene.unbound == [(A, 1, True)]
    scene.found(B, source_id=None)
    scene.joined[B].heard_ns = 0
    scene.bindings.replace_dead((tir_of(C),), None, OTHER_HOST, s(100))
    assert scene.bound == [(B, 1)], "neither says which context it is"


def test_every_dead_way_to_a_source_is_left(scene: Scene) -> None:
    proxy(scene, heard_s=1)
    scene.found(C, index=4)
    scene.joined[C].heard_ns = 1
    scene.found(B, index=5)
    scene.joined[B].heard_ns = 2
    scene.advertised(tir_of(C, index=4), ip=OTHER_HOST)
    assert scene.unbound == [(A, 1, True), (B, 5, True)]
    assert scene.bindings.topics() == {b"t"}
    scene.advertised(tir_of(B), ip=OTHER_HOST)
    assert scene.unbound[2:] == [(C, 4, True)]
    assert scene.bindings.topics() == set()


def test_contexts_and_hosts_are_compared_by_when_they_were_heard() -> None:
    watch = DroWatch()
    watch.on_packet(HOST, OLD, 10)
    watch.on_packet(HOST, NEW, 20)
    assert watch.has_succeeded(NEW, OLD)
    assert not watch.has_succeeded(OLD, NEW)
    assert not watch.has_succeeded(None, OLD)
    assert not watch.has_succeeded(NEW, None)
    watch.on_packet(HOST, OLD, 20)
    assert not watch.has_succeeded(NEW, OLD), "at the same moment"
    assert not watch.has_succeeded(b"unknown", OLD)
    assert watch.has_succeeded(NEW, b"unknown")
    watch.on_packet(HOST, NEW, 30)
    assert not watch.has_succeeded(NEW, OLD), "it appeared before, however often it is heard"
    watch.on_packet(OTHER_HOST, b"first", 0)
    watch.on_packet(OTHER_HOST, b"second", 1)
    assert not watch.has_succeeded(b"unknown", b"first")
    assert watch.has_succeeded(b"second", b"unknown")
    watch.on_packet(HOST, None, 20)
    assert not watch.is_host_silent(HOST, 20 + s(11))
    assert watch.is_host_silent(HOST, 21 + s(11))
    assert not watch.is_host_silent(0x0A0000CC, s(11))
    assert watch.is_host_silent(0x0A0000CC, s(11) + 1)


def test_the_least_recently_heard_of_too_many_is_forgotten() -> None:
    watch = DroWatch()
    for number in range(REMEMBERED_MAX):
        watch.on_packet(number, b"%d" % number, s(100))
    watch.on_packet(0, b"0", s(101))
    watch.on_packet(5000, None, s(101))
    assert not watch.is_host_silent(0, s(101))
    assert watch.is_host_silent(1, s(101)), "as one that was never heard"
    assert not watch.is_host_silent(2, s(101))
    watch.on_packet(5001, b"late", s(101))
    assert [watch.has_succeeded(name, b"unknown") for name in (b"0", b"1", b"2", b"late")] == [True, False, True, True]


def test_a_source_may_leave_its_index_to_another(scene: Scene) -> None:
    """The sink may do as it likes with a session that is handed to it."""
    scene.found()
    other = BoundSource(b"u", OTID, 1, scene.joined[A], tir_of(A, b"u"), False)
    scene.joined[A].sources[1] = other
    scene.bindings.on_refused(found(), s(100))
    assert scene.joined[A].sources == {1: other}
    assert scene.left == []
