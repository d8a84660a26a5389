"""Streams that several sessions carry side by side: what comes first is handed up, and loss is what none supplies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dro.config.um.options import UmOptions
from dro.proto.context.sources import BoundSource
from dro.um.message.events import BOS, EOS, Data, Loss
from dro.wire import otid as otid_codec
from dro.wire.source_string import LbtrmAddress, TcpAddress, TransportAddress, format_source
from tests.fakes.um_contexts import Stepper
from tests.um.message.test_delivery import GENERATION_NS, OTID, Ear, Scene, lbtrm

ORIGIN = LbtrmAddress(0x0A000009, 0xE00A0A0A, 77, 14400, 14390)
ORIGIN_OTID = otid_codec.encode(ORIGIN, 5, 6, 7)
ONE, OTHER = TcpAddress(1, 2, 3), TcpAddress(4, 5, 6)


@pytest.fixture
def scene() -> Iterator[tuple[Scene, Ear]]:
    stepper = Stepper()
    scene, ear = Scene(stepper, UmOptions().with_("receiver", "use_hotlink", 1)), Ear()
    scene.listen(ear)
    yield scene, ear
    scene.delivery.close()
    stepper.loop.close()


def sqns(ear: Ear) -> list[int]:
    return [event.sqn for event in ear.events if isinstance(event, Data)]


def lost(ear: Ear) -> list[int]:
    return [event.sqn for event in ear.events if isinstance(event, Loss)]


def two(
    scene: Scene, one: TransportAddress = ONE, other: TransportAddress = OTHER
) -> tuple[BoundSource[Any], BoundSource[Any]]:
    return scene.bind(one, otid=ORIGIN_OTID), scene.bind(other, otid=ORIGIN_OTID)


def test_the_second_copy_is_dropped_whoever_is_ahead(scene: tuple[Scene, Ear]) -> None:
    s, ear = scene
    one, other = two(s)
    s.data(one, 0, 1, 2)
    s.data(other, 0, 1, 2, 3, 4)
    s.data(one, 3, 4, 5)
    s.data(other, 5)
    assert sqns(ear) == list(range(6))
    [stream] = s.delivery.streams()
    assert stream.controller.stats.duplicates == 6


def test_a_gap_is_filled_by_the_other_session(scene: tuple[Scene, Ear]) -> None:
    s, ear = scene
    one, other = two(s)
    s.data(one, 0)
    s.data(other, 0)
    s.data(one, 3)
    assert sqns(ear) == [0], "TCP brings it no more, the other session may"
    s.data(other, 1, 2)
    assert (sqns(ear), lost(ear)) == ([0, 1, 2, 3], [])


def test_what_all_sessions_have_passed_is_lost_at_once(scene: tuple[Scene, Ear]) -> None:
    s, ear = scene
    one, other = two(s)
    for session in (one, other):
        s.data(session, 0)
    s.data(one, 2)
    s.data(other, 3)
    assert (sqns(ear), lost(ear)) == ([0, 2, 3], [1])


def test_a_session_that_ends_is_not_waited_for(scene: tuple[Scene, Ear]) -> None:
    s, ear = scene
    one, other = two(s)
    for session in (one, other):
        s.data(session, 0)
    s.data(one, 2)
    assert lost(ear) == []
    s.unbind(other)
    assert (sqns(ear), lost(ear)) == ([0, 2], [1])


def test_sessions_with_repairs_are_waited_for(scene: tuple[Scene, Ear]) -> None:
    s, ear = scene
    one, other = two(s, lbtrm(1), lbtrm(2))
    for session in (one, other):
        s.data(session, 0, 2)
    assert lost(ear) == []
    s.stepper.run(GENERATION_NS // 1_000_000 + 1000, 1000)
    s.data(one, 3)
    assert (sqns(ear), lost(ear)) == ([0, 2, 3], [1])


def test_events_name_the_origin_and_the_session(scene: tuple[Scene, Ear]) -> None:
    s, ear = scene
    one, other = two(s)
    s.data(one, 0)
    s.data(other, 0)
    s.unbind(one)
    s.unbind(other)
    origin = format_source(ORIGIN, 5)
    names = [format_source(address, 1) for address in (ONE, OTHER)]
    told = [(type(e), e.source, e.proxy_source) for e in ear.events if isinstance(e, BOS | EOS)]
    assert told == [(kind, origin, name) for kind in (BOS, EOS) for name in names]
    assert ear.sources == [(origin, True), (origin, False)]


def test_a_listener_that_comes_later_hears_of_one_source(scene: tuple[Scene, Ear]) -> None:
    s, _ = scene
    one, other = two(s)
    s.data(one, 0)
    s.data(other, 0)
    late = Ear()
    s.listen(late)
    assert late.sources == [(format_source(ORIGIN, 5), True)]
    assert len(late.events) == 2
    assert s.delivery.sources_of(b"t") == [format_source(ORIGIN, 5)]


def test_an_otid_without_a_layout_names_the_first_session(scene: tuple[Scene, Ear]) -> None:
    s, ear = scene
    source = s.bind(ONE, otid=b"\xff" * len(OTID))
    s.data(source, 0)
    assert ear.events[0] == BOS("t", format_source(ONE, 1))
