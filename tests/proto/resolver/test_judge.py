"""Sources that the owner of a resolver does not accept: not joined, replaced by another way, judged anew on demand."""

from __future__ import annotations

from collections.abc import Callable

from dro.clock import ms
from dro.proto.resolver.core import Resolver, ResolverConfig
from dro.proto.resolver.events import NoSource, ResolverEvent, SourceChanged, SourceFound, SourceRefused, SourceSwitched
from dro.proto.resolver.joining import Judge
from dro.timers import DUE_MAX
from dro.wire.lbmr import packet as lbmr
from dro.wire.source_string import TcpAddress, TransportAddress
from tests.fakes.channel import packet, tir


def not_port(*ports: int) -> Judge:
    def judge(topic: bytes, address: TransportAddress) -> bool:
        return not (isinstance(address, TcpAddress) and address.port in ports)

    return judge


def resolver(judge: Judge | None) -> Resolver:
    r = Resolver(ResolverConfig(b"resolver"), compile_pattern=lambda pattern, kind: None)
    r.set_judge(judge, 0)
    r.add_receiver(b"AAA", 0)
    return r


def hear(r: Resolver, *records: lbmr.Tir, at: float = 0) -> list[ResolverEvent]:
    r.on_packet(packet(lbmr.Queries((), records)), 0x0A000001, ms(at))
    return r.take_events()


def judged_anew(r: Resolver, judge: Judge | None, at: float = 0) -> list[ResolverEvent]:
    r.set_judge(judge, ms(at))
    return r.take_events()


def test_a_refused_source_is_not_joined_however_often_it_is_heard() -> None:
    asked: list[TransportAddress] = []

    def judge(topic: bytes, address: TransportAddress) -> bool:
        asked.append(address)
        return False

    r = resolver(judge)
    for at in range(5):
        assert hear(r, tir(port=1, cost=(0, at)), at=at) == []
    assert len(asked) == 1, "one verdict for one source"


def test_a_source_that_nobody_wants_is_not_judged() -> None:
    asked: list[bytes] = []

    def judge(topic: bytes, address: TransportAddress) -> bool:
        asked.append(topic)
        return True

    r = resolver(judge)
    assert hear(r, tir(b"BBB")) == []
    assert asked == []
    r.add_receiver(b"BBB", 0)
    assert [type(e) for e in r.take_events()] == [SourceFound]
    assert asked == [b"BBB"]


def test_the_dearer_way_is_taken_when_the_cheaper_one_is_refused() -> None:
    r = resolver(not_port(1))
    (event,) = hear(r, tir(port=1, cost=(1, 2)), tir(port=2, cost=(1, 9)))
    assert isinstance(event, SourceFound)
    assert event.source.tir == tir(port=2, cost=(1, 9))
    assert hear(r, tir(port=1, cost=(1, 1)), at=1) == [], "no switch to a refused way"


def test_a_pattern_finds_no_refused_source() -> None:
    r = Resolver(ResolverConfig(b"resolver"), compile_pattern=lambda pattern, kind: None)
    r.set_judge(not_port(1), 0)
    matcher: Callable[[bytes], bool] = lambda topic: topic.startswith(b"A")  # noqa: E731
    r.add_wildcard(b"A", 1, matcher, 0)
    events = hear(r, tir(port=1), tir(b"AB", index=9, port=2, otid=2))
    assert [e.source.topic for e in events if isinstance(e, SourceFound)] == [b"AB"]


def test_a_judge_that_says_the_same_changes_nothing() -> None:
    r = resolver(not_port(1))
    hear(r, tir(port=1), tir(port=2), tir(index=8, port=3, otid=2))
    r.take_outgoing()
    assert judged_anew(r, not_port(1), at=50_000) == []
    assert r.take_outgoing() == []
    assert r.cache.refused == 1
    judged_anew(r, None, at=50_001)
    assert r.cache.refused == 0


def test_a_source_refused_later_is_left_for_a_living_way_or_for_nothing() -> None:
    r = resolver(None)
    hear(r, tir(port=1), tir(port=2), tir(index=8, port=1, otid=2))
    events = judged_anew(r, not_port(1), at=10)
    assert [(type(e), e.source.address.port) for e in events if isinstance(e, SourceRefused | SourceFound)
            and isinstance(e.source.address, TcpAddress)] == [
        (SourceRefused, 1), (SourceFound, 2), (SourceRefused, 1)
    ]  # fmt: skip
    assert len(events) == 3


def test_a_refused_source_is_not_replaced_by_a_way_that_was_not_heard_lately() -> None:
    r = resolver(None)
    hear(r, tir(port=1), tir(port=2), at=0)
    hear(r, tir(port=1), at=20_000)
    (event,) = judged_anew(r, not_port(1), at=20_001)
    assert isinstance(event, SourceRefused)
    (event,) = hear(r, tir(port=2), at=20_002)
    assert isinstance(event, SourceFound)


def test_a_source_accepted_later_is_joined_however_old_its_advertisement_is() -> None:
    r = resolver(not_port(1))
    assert hear(r, tir(port=1), at=0) == []
    (event,) = judged_anew(r, None, at=3_600_000)
    assert isinstance(event, SourceFound)
    assert event.source.tir == tir(port=1)


def test_an_old_way_that_was_accepted_all_the_time_is_not_joined_by_a_new_judge() -> None:
    r = resolver(not_port(7))
    hear(r, tir(port=1), tir(port=2), at=0)
    r.on_source_ended(b"AAA", tir(port=1).transport, 7, ms(20_000))
    assert r.take_events() == []
    assert judged_anew(r, not_port(8), at=20_001) == []


def test_a_cheaper_way_that_is_accepted_now_is_switched_to() -> None:
    r = resolver(not_port(1))
    hear(r, tir(port=1, cost=(1, 2)), tir(port=2, cost=(1, 9)))
    (event,) = judged_anew(r, None, at=10)
    assert isinstance(event, SourceSwitched)
    assert (event.old.cost, event.new.cost) == (9, 2)
    (changed,) = hear(r, tir(port=1, cost=(1, 3)), at=11)
    assert isinstance(changed, SourceChanged)


def test_the_gauge_of_refused_sources_falls_when_they_are_gone() -> None:
    r = resolver(not_port(1))
    hear(r, tir(port=1), tir(index=8, port=1, otid=2), tir(index=9, port=2, otid=3))
    assert r.cache.refused == 2
    hear(r, tir(port=1, cost=(0, lbmr.FINAL_COST)), at=10)
    assert r.cache.refused == 1
    r.on_source_ended(b"AAA", tir(port=1).transport, 8, ms(20))
    assert r.cache.refused == 0


def test_very_many_sources_are_judged_anew_in_bounded_pieces() -> None:
    r = resolver(None)
    topics = [b"%d" % number for number in range(3 * DUE_MAX)]
    for number, topic in enumerate(topics):
        if number % 2:
            r.add_receiver(topic, 0)
        hear(r, tir(topic, port=1, index=number, otid=number))

    def pieces() -> list[int]:
        counts = [len(r.take_events())]
        while r.next_deadline() == 0:
            r.on_timer(0)
            counts.append(len([event for event in r.take_events() if not isinstance(event, NoSource)]))
            r.take_outgoing()
        return [count for count in counts if count]

    r.take_outgoing()
    r.set_judge(not_port(1), 0)
    assert pieces() == [DUE_MAX // 2] * 3
    assert r.cache.refused == len(topics) // 2
    r.set_judge(None, 0)
    r.set_judge(not_port(1), 0)
    assert sum(pieces()) == DUE_MAX, "what the judge between had accepted is left again"
    assert r.cache.refused == len(topics) // 2
    r.set_judge(None, 0)
    assert (sum(pieces()), r.cache.refused) == (len(topics) // 2, 0)


def test_verdicts_on_what_nobody_wants_any_more_are_forgotten() -> None:
    r = resolver(not_port(1))
    hear(r, tir(port=1))
    r.remove_receiver(b"AAA", 0)
    assert r.cache.refused == 1
    r.set_judge(not_port(2), 0)
    assert r.cache.refused == 0


def test_a_source_that_is_heard_before_its_turn_comes_is_judged_then() -> None:
    r = resolver(not_port(1))
    for number in range(DUE_MAX):
        hear(r, tir(b"%d" % number, port=2, index=number, otid=number))
    hear(r, tir(port=1))
    r.set_judge(None, 0)
    assert r.cache.refused == 1
    assert [type(event) for event in hear(r, tir(port=1))] == [SourceFound]
    while r.next_deadline() == 0:
        r.on_timer(0)
        r.take_outgoing()
    assert (r.take_events(), r.cache.refused) == ([], 0)


def test_a_source_that_the_owner_does_not_take_on_is_not_joined_and_not_refused() -> None:
    r = resolver(not_port(2))
    asked: list[tuple[bytes, int]] = []

    def carries(otid: bytes, domain_id: int) -> bool:
        asked.append((otid, domain_id))
        return is_carried

    is_carried = False
    r.set_judge(not_port(2), 0, carries)
    assert hear(r, tir(port=1), tir(port=2)) == []
    assert r.cache.refused == 0
    assert {domain for _, domain in asked} == {0}
    is_carried = True
    r.set_judge(not_port(2), ms(1), carries)
    (event,) = r.take_events()
    assert isinstance(event, SourceFound)
    assert r.cache.refused == 1
    is_carried = False
    r.set_judge(None, ms(2), carries)
    assert [type(event) for event in r.take_events()] == [SourceRefused]
    assert r.cache.refused == 0
