"""Streams that several sessions carry side by side: what comes first is handed up, and loss is what none supplies."""

from __future__ import annotations

import pytest

from dro.proto.delivery.config import DeliveryConfig
from dro.proto.delivery.reassembly import Delivered
from dro.proto.stream.stream import Carrier, SessionBegan, SessionEnded, SourceChange
from dro.wire import otid as otid_codec
from dro.wire.source_string import LbtrmAddress, TcpAddress, TransportAddress, format_source
from tests.fakes.streams import GENERATION_NS, OTID, StreamScene, lbtrm, stream_of

ORIGIN = LbtrmAddress(0x0A000009, 0xE00A0A0A, 77, 14400, 14390)
ORIGIN_OTID = otid_codec.encode(ORIGIN, 5, 6, 7)
ONE, OTHER = TcpAddress(1, 2, 3), TcpAddress(4, 5, 6)


@pytest.fixture
def scene() -> StreamScene:
    return StreamScene(use_hotlink=True)


def two(scene: StreamScene, one: TransportAddress = ONE, other: TransportAddress = OTHER) -> tuple[Carrier, Carrier]:
    return scene.bind(one, otid=ORIGIN_OTID), scene.bind(other, otid=ORIGIN_OTID)


def test_the_second_copy_is_dropped_whoever_is_ahead(scene: StreamScene) -> None:
    one, other = two(scene)
    scene.data(one, 0, 1, 2)
    scene.data(other, 0, 1, 2, 3, 4)
    scene.data(one, 3, 4, 5)
    scene.data(other, 5)
    assert scene.sqns == list(range(6))
    assert stream_of(one).controller.stats.duplicates == 6


def test_a_gap_is_filled_by_the_other_session(scene: StreamScene) -> None:
    one, other = two(scene)
    scene.data(one, 0)
    scene.data(other, 0)
    scene.data(one, 3)
    assert scene.sqns == [0], "TCP brings it no more, the other session may"
    scene.data(other, 1, 2)
    assert (scene.sqns, scene.lost) == ([0, 1, 2, 3], [])


def test_what_all_sessions_have_passed_is_lost_at_once(scene: StreamScene) -> None:
    one, other = two(scene)
    for session in (one, other):
        scene.data(session, 0)
    scene.data(one, 2)
    scene.data(other, 3)
    assert (scene.sqns, scene.lost) == ([0, 2, 3], [1])


def test_a_session_passes_what_was_said_to_have_been_sent(scene: StreamScene) -> None:
    one, other = two(scene)
    for session in (one, other):
        scene.data(session, 0)
    scene.data(one, 2)
    scene.tsni(other, 0)
    assert scene.lost == []
    scene.tsni(other, 1)
    assert (scene.sqns, scene.lost) == ([0, 2], [1])


def test_a_session_that_ends_is_not_waited_for(scene: StreamScene) -> None:
    one, other = two(scene)
    for session in (one, other):
        scene.data(session, 0)
    scene.data(one, 2)
    assert scene.lost == []
    scene.unbind(other)
    assert (scene.sqns, scene.lost) == ([0, 2], [1])


def test_sessions_with_repairs_are_waited_for(scene: StreamScene) -> None:
    one, other = two(scene, lbtrm(1), lbtrm(2))
    for session in (one, other):
        scene.data(session, 0, 2)
    assert scene.lost == []
    scene.run(GENERATION_NS // 1_000_000 + 1000)
    scene.data(one, 3)
    assert (scene.sqns, scene.lost) == ([0, 2, 3], [1])


def test_a_gap_behind_dros_is_waited_for_although_all_have_passed_it() -> None:
    scene = StreamScene(DeliveryConfig(dro_loss_recovery_timeout_ns=500), use_hotlink=True)
    one, other = two(scene)
    for session in (one, other):
        scene.data(session, 0, 2)
    assert (scene.sqns, scene.lost) == ([0], [])


def test_events_name_the_origin_and_the_session(scene: StreamScene) -> None:
    one, other = two(scene)
    scene.data(one, 0)
    scene.data(other, 0)
    origin = format_source(ORIGIN, 5)
    names = [format_source(address, 1) for address in (ONE, OTHER)]
    found = [SourceChange(origin, added=True), *(SessionBegan(origin, name) for name in names)]
    assert stream_of(one).known() == found
    scene.unbind(one)
    scene.unbind(other)
    ended = [*(SessionEnded(origin, name) for name in names), SourceChange(origin, added=False)]
    assert [event for event in scene.events if not isinstance(event, Delivered)] == [*found, *ended]


def test_an_otid_without_a_layout_names_the_first_session(scene: StreamScene) -> None:
    source = scene.bind(ONE, otid=b"\xff" * len(OTID))
    scene.data(source, 0)
    assert scene.events[1] == SessionBegan(format_source(ONE, 1), "")
