"""Ways of several planes: a receiver with `use_hotlink` joins one of each, others join one of all."""

from __future__ import annotations

from dataclasses import replace

from dro.clock import ms
from dro.proto.resolver.cache import ALTERNATIVES_MAX, PLANES_MAX
from dro.proto.resolver.core import Resolver, ResolverConfig
from dro.proto.resolver.events import ResolverEvent, SourceFinal, SourceFound, SourceSwitched
from dro.proto.resolver.joining import Judge
from dro.proto.resolver.schedule import QueryOptions
from dro.wire.lbmr import options
from dro.wire.lbmr import packet as lbmr
from dro.wire.source_string import TcpAddress, TransportAddress
from tests.fakes.channel import packet, tir

HOTLINK = QueryOptions(use_hotlink=True)


def session(port: int, index: int, cost: int = 2) -> lbmr.Tir:
    """As the portal with that hotlink index advertises the source of the origin; 0: none."""
    made = tir(port=port, cost=(1, cost))
    assert made.options is not None
    marked = options.ExtendedFunctionality(port=1, ip=2, reserved=index)
    return replace(made, options=made.options.replacing(marked))


def resolver(queries: QueryOptions = HOTLINK, judge: Judge | None = None) -> Resolver:
    r = Resolver(ResolverConfig(b"resolver"), compile_pattern=lambda pattern, kind: None)
    r.set_judge(judge, 0)
    r.add_receiver(b"AAA", 0, queries)
    return r


def hear(r: Resolver, *records: lbmr.Tir, at: float = 0) -> list[ResolverEvent]:
    r.on_packet(packet(lbmr.Queries((), records)), 0x0A000001, ms(at))
    return r.take_events()


def found(events: list[ResolverEvent]) -> list[int]:
    """Ports of what is joined."""
    addresses: list[TransportAddress] = [e.source.tir.transport for e in events if isinstance(e, SourceFound)]
    return [address.port for address in addresses if isinstance(address, TcpAddress)]


def test_one_way_of_each_plane_is_joined() -> None:
    r = resolver()
    assert found(hear(r, session(1, 1), session(2, 2), session(3, 1))) == [1, 2]
    assert hear(r, session(1, 1), session(2, 2), at=1) == []


def test_without_the_option_one_way_of_all_is_joined() -> None:
    assert found(hear(resolver(QueryOptions()), session(1, 1), session(2, 2))) == [1]


def test_what_the_cache_has_is_joined_in_all_planes() -> None:
    r = Resolver(ResolverConfig(b"resolver"), compile_pattern=lambda pattern, kind: None)
    hear(r, session(1, 1), session(2, 2), session(3, 0))
    r.add_receiver(b"AAA", 0, HOTLINK)
    assert sorted(found(r.take_events())) == [1, 2, 3]


def test_a_cheaper_way_replaces_that_of_its_plane_only() -> None:
    r = resolver()
    hear(r, session(1, 1), session(2, 2))
    (event,) = hear(r, session(3, 2, cost=1), at=1)
    assert isinstance(event, SourceSwitched)
    assert (event.old.tir, event.new.tir) == (session(2, 2), session(3, 2, cost=1))


def test_what_ends_is_replaced_within_its_plane() -> None:
    r = resolver()
    hear(r, session(1, 1), session(2, 2), session(3, 2))
    r.on_source_ended(b"AAA", session(2, 2).transport, session(2, 2).topic_index, ms(1))
    assert found(r.take_events()) == [3]
    final = replace(session(1, 1), options=tir(cost=(1, -1)).options)
    events = hear(r, final, at=2)
    assert [type(event) for event in events] == [SourceFinal], "no other way in that plane"


def test_verdicts_count_in_each_plane() -> None:
    r = resolver()
    hear(r, session(1, 1), session(2, 2), session(3, 2))
    r.set_judge(lambda topic, address: getattr(address, "port", 0) != 2, ms(1))
    assert found(r.take_events()) == [3]


def test_a_stranger_with_many_planes_is_bounded() -> None:
    r = resolver()
    sessions = [session(port, port) for port in range(1, 2 * ALTERNATIVES_MAX)]
    assert len(found(hear(r, *sessions))) == PLANES_MAX
