"""Which sources are joined, left and taken for dead: effects in order, words to the resolver, times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dro.clock import ms, s
from dro.proto.context import effects as do
from dro.proto.context.bound import BoundSources
from dro.proto.resolver.core import Resolver, ResolverConfig
from dro.proto.resolver.events import FoundSource
from dro.timers import DUE_MAX, Calendar
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.options import FINAL_COST
from dro.wire.source_string import TcpAddress, TransportAddress
from tests.builders.tir_options import tir_options
from tests.fakes.session_view import ToldSession
from tests.fakes.steps import steps

A, B, C = (TcpAddress(0x0A000001, port, 1) for port in (14371, 14372, 14373))
OTID = bytes(range(32))
HOST, OTHER_HOST = 0x0A0000AA, 0x0A0000BB
OLD, NEW = b"old ctx.", b"new ctx."


class ToldResolver(Resolver):
    """One that keeps what it is told of the ends of sources, and of topics that nobody wants."""

    def __init__(self) -> None:
        super().__init__(ResolverConfig(b"instance"))
        self.ended: list[tuple[bytes, TransportAddress, int, int]] = []
        self.topics_left: list[bytes] = []

    def on_source_ended(self, topic: bytes, address: TransportAddress, topic_index: int, now_ns: int) -> None:
        self.ended.append((topic, address, topic_index, now_ns))

    def leave_topic(self, topic: bytes) -> None:
        self.topics_left.append(topic)


class Scene:
    """Bound sources on sessions that only exist; time that moves when a test says so.

    `refused`: sessions that are not joined.
    """

    def __init__(self) -> None:
        self.now_ns = s(100)
        self.unwanted: set[bytes] = set()
        self.refused: set[TransportAddress] = set()
        self.joined: dict[TransportAddress, ToldSession] = {}
        self.done: list[do.ContextEffect] = []
        self.resolver = ToldResolver()
        self.calendar = Calendar()
        self._effects: list[do.ContextEffect] = []
        self.sources = BoundSources(self.resolver, self._is_wanted, self.calendar, self._effects)

    def _is_wanted(self, topic: bytes) -> bool:
        return topic not in self.unwanted

    @property
    def now(self) -> BoundSources:
        """The sources, for an input at this time."""
        self.sources.now_ns = self.now_ns
        return self.sources

    def perform(self) -> None:
        """Join and leave sessions as a host does."""
        while self._effects:
            effect = self._effects.pop(0)
            self.done.append(effect)
            match effect:
                case do.JoinSession(source=source) if source.address not in self.refused:
                    session = self.joined.setdefault(source.address, ToldSession(source.address))
                    self.now.on_joined(source, session)
                case do.LeaveSession(session=session):
                    assert self.joined.pop(session.address) is session

    # what happens

    def found(self, address: TransportAddress = A, topic: bytes = b"t", index: int = 1, **more: Any) -> FoundSource:  # noqa: ANN401  as `found`
        source = found(address, topic, index, **more)
        self.now.on_found(source)
        self.perform()
        return source

    def gone(self, source: FoundSource) -> None:
        self.now.on_gone(source)
        self.perform()

    def switched(self, old: FoundSource, new: FoundSource) -> None:
        self.now.on_switched(old, new)
        self.perform()

    def refuse(self, source: FoundSource) -> None:
        self.now.on_refused(source)
        self.perform()

    def ended(self, session: ToldSession) -> None:
        self.now.on_session_ended(session)
        self.perform()

    def leave_unwanted(self, *topics: bytes) -> None:
        for topic in topics:
            self.now.leave_unwanted(topic)
        self.perform()

    def advertised(self, *tirs: lbmr.Tir, source_id: bytes = NEW, is_dro: bool = True, ip: int = HOST) -> None:
        self.now.replace_dead(tirs, lbmr.standard_options(source_id, 1 if is_dro else 0, 1), ip)
        self.perform()

    def run(self, milliseconds: int) -> None:
        """Let so much time pass; what is due is done at its time."""
        until_ns = self.now_ns + ms(milliseconds)
        while (due_ns := self.calendar.next_deadline()) is not None and due_ns <= until_ns:
            self.now_ns = max(self.now_ns, due_ns)
            self.work()
        self.now_ns = until_ns

    def work(self) -> None:
        """Do what is due, as far as one call does it."""
        self.now.now_ns = self.now_ns
        self.calendar.run_due(self.now_ns)
        self.perform()

    # what was seen

    def of(self, kind: type[Any]) -> list[Any]:
        return [effect for effect in self.done if isinstance(effect, kind)]

    @property
    def bound(self) -> list[tuple[TransportAddress, int]]:
        return [(source.address, source.topic_index) for source in self.sources.sources]

    @property
    def unbound(self) -> list[tuple[TransportAddress, int, bool]]:
        return [(effect.source.address, effect.source.topic_index, effect.ended) for effect in self.of(do.Unbound)]

    @property
    def left(self) -> list[TransportAddress]:
        return [effect.session.address for effect in self.of(do.LeaveSession)]

    @property
    def told(self) -> list[tuple[bytes, TransportAddress, int, int]]:
        return self.resolver.ended

    @property
    def replaced(self) -> list[TransportAddress]:
        return [effect.source.address for effect in self.of(do.ProxyLeft)]


def found(
    address: TransportAddress = A, topic: bytes = b"t", index: int = 1, *, cost: lbmr.Cost | None = None,
    from_dro: bool = True, source_id: bytes | None = OLD, ip: int = HOST, otid: bytes = OTID,
) -> FoundSource:  # fmt: skip
    tir = tir_of(address, topic, index, cost=cost, otid=otid)
    return FoundSource(topic, tir, otid, False, 0, 0, from_dro, source_id, ip)


def tir_of(
    address: TransportAddress, topic: bytes = b"t", index: int = 1, *, cost: lbmr.Cost | None = None,
    otid: bytes | None = OTID, hotlink_index: int = 0,
) -> lbmr.Tir:  # fmt: skip
    extended = lbmr.ExtendedFunctionality(port=1, ip=1, reserved=hotlink_index) if hotlink_index else None
    return lbmr.Tir(topic, address, 60, index, tir_options(otid=otid, cost=cost, extended=extended))


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    assert made.calendar.next_deadline() is None


# joining


def test_a_source_is_joined_once_with_everything_that_is_known_of_it(scene: Scene) -> None:
    source = scene.found()
    scene.found()
    join, bound_effect = scene.done
    assert join == do.JoinSession(source)
    (bound,) = scene.sources.sources
    assert bound_effect == do.Bound(bound)
    assert (bound.topic, bound.otid, bound.topic_index, bound.transport) == (b"t", OTID, 1, scene.joined[A])
    assert (bound.tir, bound.is_from_dro, bound.source_id, bound.source_ip) == (source.tir, True, OLD, HOST)
    assert bound.address == A
    assert scene.sources.find((b"t", A, 1)) is bound
    assert scene.sources.find((b"t", A, 2)) is None
    assert scene.sources.topics() == {b"t"}


def test_a_topic_that_nobody_wants_is_not_joined(scene: Scene) -> None:
    scene.unwanted.add(b"t")
    scene.found()
    assert (scene.bound, scene.done, scene.sources.topics()) == ([], [], set())


def test_a_known_source_is_joined_before_it_is_wanted_and_left_when_nobody_comes(scene: Scene) -> None:
    scene.unwanted |= {b"t", b"u"}
    for topic, index in ((b"t", 1), (b"u", 2)):
        source = found(topic=topic, index=index)
        scene.now.on_found(source, is_known=True)
        scene.perform()
        assert scene.done[-2:] == [do.JoinSession(source, is_known=True), do.Bound(scene.sources.sources[-1])]
    scene.unwanted.remove(b"u")
    scene.now.leave_all_unwanted()
    scene.perform()
    assert (scene.unbound, scene.bound) == ([(A, 1, False)], [(A, 2)])
    assert scene.resolver.topics_left == [b"t"], "the resolver takes it for joined no longer"


def test_a_session_that_was_not_joined_is_asked_for_again_when_its_source_is_found_again(scene: Scene) -> None:
    scene.refused.add(A)
    source = scene.found()
    assert (scene.done, scene.bound, scene.told) == ([do.JoinSession(source)], [], [])
    scene.refused.clear()
    scene.found()
    assert scene.bound == [(A, 1)]


def test_a_topic_index_of_another_topic_is_named(scene: Scene) -> None:
    scene.found()
    other = scene.found(topic=b"u")
    assert scene.bound == [(A, 1)]
    assert scene.done[2:] == [do.JoinSession(other), do.IndexTaken(other)]
    assert (scene.told, scene.left, scene.sources.topics()) == ([], [], {b"t"})


def test_sources_of_one_session_are_left_one_by_one_and_the_session_with_the_last(scene: Scene) -> None:
    for index, topic in ((1, b"t"), (2, b"u"), (3, b"v")):
        scene.found(topic=topic, index=index)
    scene.unwanted |= {b"t", b"u"}
    scene.leave_unwanted(b"t", b"u", b"v", b"w")
    assert scene.unbound == [(A, 1, False), (A, 2, False)]
    assert (scene.left, scene.bound) == ([], [(A, 3)])
    scene.refuse(found(topic=b"v", index=3))
    scene.refuse(found(topic=b"v", index=3))
    assert scene.unbound[2:] == [(A, 3, False)]
    assert (scene.left, scene.bound, scene.sources.topics()) == ([A], [], set())
    assert scene.told == []


def test_leaving_a_topic_costs_the_same_however_many_are_bound(scene: Scene) -> None:
    def cost_of_leaving(topics: int) -> int:
        names = [b"%d" % number for number in range(topics)]
        for number, name in enumerate(names):
            scene.found(topic=name, index=number)
        scene.unwanted.update(names)
        cost = steps(lambda: scene.leave_unwanted(*names))
        assert (scene.bound, scene.sources.topics()) == ([], set())
        scene.unwanted.clear()
        return cost // topics

    assert cost_of_leaving(200) < 1.5 * cost_of_leaving(20)


def test_a_switch_stays_on_both_ways_for_a_quarter_of_a_second(scene: Scene) -> None:
    """However quiet the old one is: the new one begins somewhere in the middle."""
    old = scene.found()
    scene.switched(old, found(B))
    scene.run(249)
    assert (scene.unbound, scene.bound, scene.left) == ([], [(A, 1), (B, 1)], [])
    scene.run(1)
    assert (scene.unbound, scene.bound, scene.left) == ([(A, 1, True)], [(B, 1)], [A])
    scene.switched(old, found(C))
    scene.run(300)
    assert scene.bound == [(B, 1), (C, 1)]


def test_a_final_advertisement_leaves_time_for_another_way(scene: Scene) -> None:
    source = scene.found()
    scene.gone(source)
    scene.found(B)
    scene.run(249)
    assert scene.bound == [(A, 1), (B, 1)]
    scene.run(1)
    assert (scene.unbound, scene.bound) == ([(A, 1, True)], [(B, 1)])


def test_a_second_final_advertisement_leaves_as_much_time_as_the_first(scene: Scene) -> None:
    source = scene.found()
    scene.found(B)
    scene.gone(source)
    scene.run(100)
    scene.found()
    scene.run(50)
    scene.gone(source)
    scene.run(249)
    assert scene.bound == [(A, 1), (B, 1)]
    scene.run(1)
    assert (scene.unbound, scene.bound) == ([(A, 1, True)], [(B, 1)])


def test_a_switch_away_from_a_source_that_ends_leaves_as_much_time_as_any(scene: Scene) -> None:
    source = scene.found()
    scene.gone(source)
    scene.run(5)
    scene.switched(source, found(B))
    scene.run(249)
    assert scene.bound == [(A, 1), (B, 1)]
    scene.run(1)
    assert (scene.unbound, scene.bound) == ([(A, 1, True)], [(B, 1)])


def test_other_attributes_of_a_bound_source_are_kept_and_told(scene: Scene) -> None:
    scene.found()
    (bound,) = scene.sources.sources
    changed = found(cost=lbmr.Cost(2, 3), from_dro=False, source_id=NEW, ip=OTHER_HOST)
    scene.now.on_changed(changed)
    scene.perform()
    assert scene.of(do.Changed) == [do.Changed(bound)]
    assert (bound.tir, bound.is_from_dro, bound.source_id, bound.source_ip) == (changed.tir, False, NEW, OTHER_HOST)
    scene.now.on_changed(found(B))
    scene.perform()
    assert len(scene.of(do.Changed)) == 1, "that one is not bound"


def test_everything_is_forgotten_in_silence(scene: Scene) -> None:
    scene.gone(scene.found())
    scene.found(B, topic=b"u")
    scene.sources.clear()
    scene.perform()
    assert (scene.bound, scene.sources.topics(), scene.unbound, scene.left) == ([], set(), [], [])
    assert scene.calendar.next_deadline() is None, "nothing is looked at any more"


# ends


def test_a_session_that_ended_ends_its_sources_and_the_resolver_hears_of_each(scene: Scene) -> None:
    scene.found()
    scene.found(topic=b"u", index=2)
    scene.ended(scene.joined[A])
    assert scene.unbound == [(A, 1, True), (A, 2, True)]
    assert scene.left == [A]
    assert scene.told == [(b"t", A, 1, s(100)), (b"u", A, 2, s(100))]


def test_a_session_without_bound_sources_may_end_too(scene: Scene) -> None:
    scene.ended(ToldSession(A))
    assert (scene.done, scene.told) == ([], [])


def test_the_many_sources_of_a_session_that_ended_end_over_several_calls(scene: Scene) -> None:
    count = 3 * DUE_MAX
    for index in range(count):
        scene.found(topic=b"%d" % index, index=index)
    scene.ended(scene.joined[A])
    assert len(scene.told) == len(scene.unbound) == DUE_MAX
    last = count - 1
    scene.found(topic=b"%d" % last, index=last)
    assert len(scene.of(do.Bound)) == count, "it has not ended yet"
    scene.refuse(found(topic=b"%d" % (last - 1), index=last - 1))
    assert scene.calendar.next_deadline() == scene.now_ns, "there is more to do at once"
    scene.work()
    assert len(scene.told) == 2 * DUE_MAX
    scene.work()
    scene.work()
    assert len(scene.told) == count - 1, "of the one that was left the resolver hears nothing"
    assert (scene.bound, scene.sources.topics(), scene.left) == ([], set(), [A])
    scene.found(topic=b"%d" % last, index=last)
    assert scene.bound == [(A, last)], "and on a new session it is bound again"


def test_a_source_that_is_bound_anew_before_its_turn_does_not_end_with_the_old_session(scene: Scene) -> None:
    for index in range(DUE_MAX + 1):
        scene.found(topic=b"%d" % index, index=index)
    old = scene.joined[A]
    scene.ended(old)
    key = b"%d" % DUE_MAX, DUE_MAX
    scene.refuse(found(topic=key[0], index=key[1]))
    assert scene.left == [A]
    scene.found(topic=key[0], index=key[1])
    assert scene.joined[A] is not old
    scene.work()
    assert (scene.bound, len(scene.told)) == ([(A, DUE_MAX)], DUE_MAX)


def test_the_topics_of_a_pattern_are_left_as_they_are_taken_from_it(scene: Scene) -> None:
    names = [b"%d" % index for index in range(2 * DUE_MAX)]
    for index, name in enumerate(names):
        scene.found(topic=name, index=index)

    def taken() -> Iterator[bytes]:
        for name in names:
            scene.unwanted.add(name)
            yield name

    scene.now.leave_in_slices(taken())
    scene.perform()
    assert len(scene.unbound) == DUE_MAX
    scene.run(0)
    assert (scene.bound, len(scene.unbound), scene.told) == ([], 2 * DUE_MAX, [])


def test_what_is_due_goes_on_beside_sources_that_are_left_in_slices(scene: Scene) -> None:
    names = [b"%d" % index for index in range(3 * DUE_MAX)]
    for index, name in enumerate(names):
        scene.found(topic=name, index=index)
    ending = scene.found(B, topic=b"ending")
    scene.gone(ending)
    scene.unwanted.update(names)
    scene.run(20 - 1)
    scene.now.leave_in_slices(iter(names))
    scene.perform()
    scene.now_ns += ms(1)
    scene.work()
    assert scene.unbound[DUE_MAX] == (B, 1, True), "before the next part of the others"
    scene.run(0)
    assert scene.bound == []


def test_a_final_advertisement_ends_a_quiet_source_after_two_looks(scene: Scene) -> None:
    source = scene.found()
    scene.gone(source)
    scene.gone(source)
    scene.run(19)
    assert scene.unbound == []
    scene.run(1)
    assert (scene.unbound, scene.told) == ([(A, 1, True)], [])
    scene.gone(source)


@pytest.mark.parametrize(("talks_for_ms", "ends_after_ms"), [(5, 20), (15, 30), (35, 50), (225, 240), (1000, 250)])
def test_a_source_that_is_still_heard_is_waited_for_at_most_a_quarter_of_a_second(
    scene: Scene, talks_for_ms: int, ends_after_ms: int
) -> None:
    source = scene.found()
    scene.gone(source)
    for passed in range(1, 400):
        if passed <= talks_for_ms and (transport := scene.joined.get(A)) is not None:
            transport.active_ns = scene.now_ns + 1
        scene.run(1)
        if scene.unbound:
            break
    assert (scene.unbound, passed) == ([(A, 1, True)], ends_after_ms)


def test_a_source_that_is_advertised_again_goes_on(scene: Scene) -> None:
    source = scene.found()
    scene.gone(source)
    scene.run(12)
    scene.found()
    scene.run(500)
    assert scene.unbound == []
    scene.ended(scene.joined[A])
    assert len(scene.told) == 1, "it was not known to be gone"


def test_a_session_that_ends_while_its_last_words_are_waited_for_is_no_news(scene: Scene) -> None:
    source = scene.found()
    scene.gone(source)
    scene.ended(scene.joined[A])
    scene.run(100)
    assert (scene.unbound, scene.told) == ([(A, 1, True)], [])
    scene.found()
    scene.ended(scene.joined[A])
    assert len(scene.told) == 1, "a new one is news"


def test_what_is_left_while_its_last_words_are_waited_for_ends_once(scene: Scene) -> None:
    for when_ms in (5, 15):
        source = scene.found()
        scene.gone(source)
        scene.run(when_ms)
        scene.refuse(source)
        scene.found()  # another one of the same key
        scene.run(100)
        scene.refuse(source)
    assert scene.unbound == [(A, 1, False)] * 4
    assert len(scene.left) == 4


# DROs that died


def proxy(scene: Scene, *, heard_s: int = 100, **more: Any) -> None:  # noqa: ANN401  as `found`
    """A proxy source of the context OLD of HOST, which was last heard at that time."""
    scene.found(**more)
    scene.joined[A].active_ns = s(heard_s)


def test_a_restarted_dro_is_followed_at_once(scene: Scene) -> None:
    proxy(scene, cost=lbmr.Cost(1, 2))
    (bound,) = scene.sources.sources
    scene.advertised(tir_of(A), source_id=OLD)
    scene.now_ns += 1
    scene.advertised(tir_of(B, cost=lbmr.Cost(1, 2)))
    assert scene.done[2:] == [do.ProxyLeft(bound), do.LeaveSession(bound.transport), do.Unbound(bound, ended=True)]
    assert scene.told == [(b"t", A, 1, s(100) + 1)]


@pytest.mark.parametrize(
    ("tir", "more"),
    [
        (tir_of(B, cost=lbmr.Cost(1, 3)), {}),
        (tir_of(B, cost=lbmr.Cost(2, 2)), {}),
        (tir_of(B), {}),
        (tir_of(B, cost=lbmr.Cost(1, 2), hotlink_index=1), {}),
        (tir_of(B, cost=lbmr.Cost(1, 2), otid=None), {}),
        (tir_of(B, cost=lbmr.Cost(1, 2), otid=bytes(32)), {}),
        (tir_of(B, b"u", cost=lbmr.Cost(1, 2)), {}),
        (tir_of(A, cost=lbmr.Cost(1, 2)), {}),
        (tir_of(B, cost=lbmr.Cost(1, 2)), {"source_id": OLD}),
        (tir_of(B, cost=lbmr.Cost(1, 2)), {"is_dro": False}),
        (tir_of(B, cost=lbmr.Cost(1, 2)), {"ip": OTHER_HOST}),
    ],
    ids=["cost", "hops", "no cost", "hotlink", "no OTID", "OTID", "topic", "session", "context", "application", "host"],
)
def test_what_is_advertised_is_no_restart_when_anything_differs(
    scene: Scene, tir: lbmr.Tir, more: dict[str, object]
) -> None:
    proxy(scene, cost=lbmr.Cost(1, 2))
    scene.advertised(tir_of(A), source_id=OLD)
    scene.now_ns += 1
    scene.advertised(tir, **more)  # type: ignore[arg-type]  # as there
    assert (scene.unbound, scene.replaced) == ([], [])
    scene.now_ns += 1
    scene.advertised(tir, tir_of(C, cost=lbmr.Cost(1, 2)), source_id=b"newer c.")
    assert scene.unbound == [(A, 1, True)], "the others of a packet are looked at as well"


def test_two_dros_of_one_host_that_both_live_are_no_restart(scene: Scene) -> None:
    proxy(scene)
    scene.advertised(tir_of(B, b"u"))
    for context, address in ((OLD, A), (NEW, B), (OLD, A), (NEW, B)):
        scene.advertised(tir_of(address), source_id=context)
        scene.now_ns += 1
    assert scene.unbound == []


def test_a_dro_that_advertises_nothing_meanwhile_but_is_heard_is_not_dead(scene: Scene) -> None:
    proxy(scene, cost=lbmr.Cost(1, 2))
    scene.advertised(tir_of(C, b"u"))
    scene.now_ns += 1
    for heard, left in ((True, []), (False, [(A, 1, True)])):
        if heard:
            scene.now.on_dro_packet(HOST, OLD)
        scene.advertised(tir_of(B, cost=lbmr.Cost(1, 2)), source_id=NEW if heard else b"newer c.")
        assert scene.unbound == left
        scene.now_ns += 1


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
    scene.now_ns += 1
    scene.advertised(other, is_dro=is_dro, ip=OTHER_HOST)
    assert (scene.unbound, scene.replaced) == ([(A, 1, True)], [A])


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
    now_ns, scene.now_ns = scene.now_ns, s(89)
    scene.now.on_dro_packet(HOST)
    scene.now_ns = now_ns
    scene.advertised(tir_of(B), ip=OTHER_HOST)
    assert scene.unbound == []
    scene.now_ns += 1
    scene.advertised(tir_of(B), ip=OTHER_HOST)
    assert scene.unbound == [(A, 1, True)]


def test_an_advertisement_without_options_is_another_way_too(scene: Scene) -> None:
    proxy(scene, heard_s=1)
    scene.now.replace_dead((tir_of(B),), None, OTHER_HOST)
    scene.perform()
    assert scene.unbound == [(A, 1, True)]
    scene.found(B, source_id=None)
    scene.joined[B].active_ns = 0
    scene.now.replace_dead((tir_of(C),), None, OTHER_HOST)
    scene.perform()
    assert scene.bound == [(B, 1)], "neither says which context it is"


def test_every_dead_way_to_a_source_is_left(scene: Scene) -> None:
    proxy(scene, heard_s=1)
    scene.found(C, index=4)
    scene.joined[C].active_ns = 1
    scene.found(B, index=5)
    scene.joined[B].active_ns = 2
    scene.advertised(tir_of(C, index=4), ip=OTHER_HOST)
    assert scene.unbound == [(A, 1, True), (B, 5, True)]
    assert scene.sources.topics() == {b"t"}
    scene.advertised(tir_of(B), ip=OTHER_HOST)
    assert scene.unbound[2:] == [(C, 4, True)]
    assert scene.sources.topics() == set()
