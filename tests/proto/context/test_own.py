"""Own sources of a context: what is advertised, and when the resolver is told."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dro.clock import ms
from dro.errors import DecodeError
from dro.proto.context.own import OwnSource, OwnSources
from dro.proto.resolver.core import Resolver, ResolverConfig, SourceAd
from dro.proto.resolver.schedule import AdvertisingOptions
from dro.wire import otid
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.options import ContextInstance
from dro.wire.source_string import TcpAddress

REQUEST = (0x0A000001, 14392)
ADDRESS = TcpAddress(0x7F000001, 14371, 1)
USUAL = AdvertisingOptions()
TRANSPORT_INDEX = 7


class Scene:
    """Own sources, in the place of the resolver, on one session. `refuses`: nothing can be advertised."""

    def __init__(self, first_index: int = 0xFFFFFFFE) -> None:
        self.told: list[tuple[object, ...]] = []
        self.ads: list[SourceAd] = []
        self.refuses = False
        self.own = OwnSources(
            cast(Resolver, self), context_id=0x01020304, first_index=first_index, request_address=REQUEST
        )

    def open(self, topic: bytes = b"t", now_ns: int = 5, **more: Any) -> OwnSource:  # noqa: ANN401  as there
        return self.own.open(topic, (ADDRESS, TRANSPORT_INDEX), USUAL, now_ns, **more)

    def _check(self) -> None:
        if self.refuses:
            raise DecodeError("topic", "bad")

    # in the place of the resolver

    def add_source(self, ad: SourceAd, now_ns: int) -> int:
        self._check()
        self.ads.append(ad)
        self.told.append(("+", ad.tir.topic, now_ns))
        return 70 + len(self.ads)

    def update_source(self, handle: int, tir: lbmr.Tir, now_ns: int) -> None:
        self._check()
        self.told.append(("=", handle, tir, now_ns))

    def remove_source(self, handle: int, now_ns: int, *, final: bool = False) -> None:
        self.told.append(("-", handle, now_ns, final))


@pytest.fixture
def scene() -> Scene:
    return Scene()


def items_of(tir: object) -> tuple[lbmr.TirOption, ...]:
    assert isinstance(tir, lbmr.Tir)
    assert tir.options is not None
    return tir.options.items


def test_a_source_is_advertised_with_its_otid_and_the_request_address(scene: Scene) -> None:
    advertising = AdvertisingOptions(minimum_initial_interval_ns=ms(30))
    first = scene.own.open(b"t", (ADDRESS, TRANSPORT_INDEX), advertising, 5)
    assert (first.topic, first.address, first.topic_index) == (b"t", ADDRESS, 0xFFFFFFFE)
    assert first.otid == otid.encode(ADDRESS, 0xFFFFFFFE, 0x01020304, TRANSPORT_INDEX)
    extended = lbmr.ExtendedFunctionality(ip=REQUEST[0], port=REQUEST[1])
    options = lbmr.TirOptions((lbmr.OtidOption(first.otid), extended))
    assert scene.ads == [SourceAd(lbmr.Tir(b"t", ADDRESS, lbmr.TIR_TTL, 0xFFFFFFFE, options), advertising)]
    assert scene.told == [("+", b"t", 5)]
    assert [scene.open(b"u").topic_index for _ in range(2)] == [0xFFFFFFFF, 0]
    assert len(scene.own) == 3


def test_what_a_proxy_is_given_stands_in_ascending_order_and_replaces_the_own(scene: Scene) -> None:
    origin = bytes(range(32))
    extended = lbmr.ExtendedFunctionality(port=1, ip=2)
    given = (extended, ContextInstance(b"instance"), lbmr.OtidOption(bytes(32)), lbmr.Cost(1, 5))
    source = scene.open(source_otid=origin, tir_items=given)
    assert source.otid == origin
    assert items_of(scene.ads[0].tir) == (
        lbmr.Cost(1, 5), lbmr.OtidOption(origin), ContextInstance(b"instance"), extended,
    )  # fmt: skip
    scene.own.update(source, given, 6)
    assert len(scene.told) == 1, "nothing new"
    scene.own.update(source, (lbmr.Cost(1, 6),), 7)
    _, handle, tir, now_ns = scene.told[1]
    assert (handle, now_ns) == (71, 7)
    assert items_of(tir) == (lbmr.Cost(1, 6), lbmr.OtidOption(origin)), "never the own address for its origin's"
    scene.own.update(source, (lbmr.Cost(1, 6),), 8)
    assert len(scene.told) == 2
    scene.own.update(source, given, 9)
    assert len(scene.told) == 3


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_source_that_cannot_be_advertised_is_not_open(scene: Scene, is_silent: bool) -> None:
    scene.refuses = True
    if is_silent:
        scene.open(is_silent=True)
        assert len(scene.own) == 1, "nobody has tried yet"
        return
    with pytest.raises(DecodeError):
        scene.open()
    assert len(scene.own) == 0


@pytest.mark.parametrize("final", [True, False])
def test_a_source_is_closed_once(scene: Scene, final: bool) -> None:
    source = scene.open()
    for now_ns in (6, 7):
        scene.own.close(source, now_ns, final=final)
    assert scene.told[1:] == [("-", 71, 6, final)]
    assert len(scene.own) == 0


def test_a_source_that_has_advertised_its_end_is_advertised_again_when_that_is_wanted(scene: Scene) -> None:
    cost = (lbmr.Cost(1, 6),)
    source = scene.open(tir_items=cost)
    scene.own.end(source, 6)
    scene.own.end(source, 7)
    assert scene.told[1:] == [("-", 71, 6, True)]
    scene.own.update(source, (lbmr.Cost(1, 7),), 8)
    assert len(scene.told) == 2, "a change alone does not take its end back"
    scene.own.update(source, cost, 9, again=True)
    assert scene.told[2:] == [("+", b"t", 9)]
    assert items_of(scene.ads[1].tir)[0] == cost[0]
    scene.own.update(source, cost, 10, again=True)
    assert len(scene.told) == 3, "it is advertised"
    scene.own.end(source, 11)
    scene.own.close(source, 12, final=True)
    assert [entry[0] for entry in scene.told] == ["+", "-", "+", "-"], "its end is said once"


def test_at_the_end_all_sources_are_taken_from_the_resolver_and_closing_one_later_does_nothing(scene: Scene) -> None:
    sources = [scene.open(topic) for topic in (b"t", b"u")]
    scene.open(b"v", is_silent=True)
    scene.told.clear()
    scene.own.remove_all(9)
    assert scene.told == [("-", 71, 9, False), ("-", 72, 9, False)]
    assert len(scene.own) == 0
    scene.own.close(sources[0], 10, final=True)
    assert scene.own.advertise_silent(11) is None
    scene.own.update(sources[1], (lbmr.Cost(1, 6),), 12)
    scene.own.end(sources[1], 13)
    assert (len(scene.told), scene.own.has_silent) == (2, False)


def test_a_silent_source_is_advertised_when_its_turn_comes_as_it_is_by_then(scene: Scene) -> None:
    first, closed, last = [scene.open(topic, is_silent=True) for topic in (b"t", b"u", b"v")]
    assert (scene.told, scene.own.has_silent) == ([], True)
    scene.own.update(first, (lbmr.Cost(1, 6),), 6)
    scene.own.end(first, 6)
    scene.own.close(closed, 7, final=True)
    assert scene.told == [], "nobody has heard of it"
    assert scene.own.advertise_silent(8) is None
    assert scene.told == [("+", b"t", 8)]
    assert items_of(scene.ads[0].tir)[0] == lbmr.Cost(1, 6)
    scene.refuses = True
    assert isinstance(scene.own.advertise_silent(9), DecodeError)
    assert (scene.own.has_silent, scene.own.advertise_silent(10)) == (False, None)
    scene.own.close(last, 11, final=True)
    scene.own.close(first, 12, final=True)
    assert scene.told[1:] == [("-", 71, 12, True)]


def test_a_change_that_cannot_be_advertised_leaves_everything_as_it_was(scene: Scene) -> None:
    before, after = (lbmr.Cost(1, 6),), (lbmr.Cost(1, 7),)
    source = scene.open(tir_items=before)
    scene.refuses = True
    with pytest.raises(DecodeError):
        scene.own.update(source, after, 6)
    assert (source.tir_items, len(scene.told)) == (before, 1)
    scene.refuses = False
    scene.own.update(source, before, 7)
    assert len(scene.told) == 1, "that is what is advertised"
    scene.own.update(source, after, 8)
    assert [entry[:2] for entry in scene.told[1:]] == [("=", 71)], "it is tried again"


def test_a_source_that_cannot_be_advertised_again_has_still_ended(scene: Scene) -> None:
    before, after = (lbmr.Cost(1, 6),), (lbmr.Cost(1, 7),)
    source = scene.open(tir_items=before)
    scene.own.end(source, 6)
    scene.refuses = True
    with pytest.raises(DecodeError):
        scene.own.update(source, after, 7, again=True)
    assert (source.tir_items, source.has_ended, source.handle) == (before, True, None)
    scene.refuses = False
    scene.own.update(source, after, 8, again=True)
    assert [entry[0] for entry in scene.told] == ["+", "-", "+"]
    assert (source.has_ended, source.handle) == (False, 72)


def test_a_real_resolver_refuses_a_change_that_it_cannot_write() -> None:
    resolver = Resolver(ResolverConfig(b"instance"))
    own = OwnSources(resolver, context_id=1, first_index=1)
    source = own.open(b"t", (ADDRESS, TRANSPORT_INDEX), USUAL, 0)
    resolver.take_outgoing()
    too_large = (lbmr.Cost(1 << 40, 6),)
    with pytest.raises(DecodeError):
        own.update(source, too_large, 1)
    assert (source.tir_items, resolver.take_outgoing()) == ((), [])
    own.update(source, (lbmr.Cost(1, 6),), 2)
    (datagram,) = resolver.take_outgoing()
    body = lbmr.decode(datagram).body
    assert isinstance(body, lbmr.Queries)
    (tir,) = body.tirs
    assert lbmr.Cost(1, 6) in items_of(tir)


def test_a_source_that_has_not_ended_is_not_advertised_again(scene: Scene) -> None:
    source = scene.open(tir_items=(lbmr.Cost(1, 6),))
    scene.own.update(source, (lbmr.Cost(1, 6),), 6, again=True)
    assert len(scene.told) == 1
    scene.own.update(source, (lbmr.Cost(1, 7),), 7, again=True)
    assert [entry[:2] for entry in scene.told[1:]] == [("=", 71)]


def test_without_a_request_port_there_is_none_to_advertise(scene: Scene) -> None:
    own = OwnSources(cast(Resolver, scene), context_id=1, first_index=1)
    own.open(b"t", (ADDRESS, TRANSPORT_INDEX), USUAL, 5)
    assert items_of(scene.ads[0].tir)[1] == lbmr.ExtendedFunctionality(port=0, ip=0)
