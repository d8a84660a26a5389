"""One originating source over the sessions that carry it: loss, sessions that change, sources that are away."""

from __future__ import annotations

import weakref

import pytest

from dro.clock import NS_PER_S, ms, s
from dro.proto.delivery.config import DeliveryConfig
from dro.proto.delivery.order import DeliveryEvent, Lost
from dro.proto.delivery.reassembly import Delivered
from dro.proto.stream.stream import PARK_NS, Carrier, SessionBegan, SessionEnded, SourceChange, StreamEvent
from dro.state import restore, snapshot
from dro.wire.lbmr.packet import Cost
from dro.wire.source_string import TcpAddress, format_source
from tests.fakes.session_view import ToldSession
from tests.fakes.streams import StreamScene, lbtrm, session_of, stream_of

TCP = TcpAddress(0x0A000001, 14371, 5)
CHECKED = DeliveryConfig(loss_check_interval_ns=ms(500))


@pytest.fixture
def scene() -> StreamScene:
    return StreamScene()


def names(*sources: Carrier) -> list[str]:
    return [format_source(source.address, source.topic_index) for source in sources]


def test_a_gap_is_reported_once_the_transport_has_given_up(scene: StreamScene) -> None:
    source = scene.bind(lbtrm(1))
    scene.data(source, 0, 2)
    scene.run(9_900)
    scene.data(source, 3)
    assert scene.sqns == [0]
    scene.run(200)
    assert scene.sqns == [0], "nothing came that could tell"
    scene.data(source, 4)
    assert scene.sqns == [0, 2, 3, 4]
    assert scene.events[3] == Lost(1)


def test_a_tcp_gap_is_lost_at_once_and_a_tsni_shows_the_last_one(scene: StreamScene) -> None:
    source = scene.bind(TCP)
    scene.data(source, 0, 2)
    scene.tsni(source, 3)
    name = format_source(TCP, 1)
    assert scene.events == [
        SourceChange(name, added=True), SessionBegan(name, ""), Delivered(0, 0, b"", 0), Lost(1),
        Delivered(2, 2, b"", 0), Lost(3),
    ]  # fmt: skip


@pytest.mark.parametrize("hops", [0, 1, 2])
def test_a_tcp_gap_behind_a_dro_is_waited_for(hops: int) -> None:
    scene = StreamScene(DeliveryConfig(dro_loss_recovery_timeout_ns=ms(500)))
    source = scene.bind(TCP, cost=Cost(hops, 0))
    scene.data(source, 0, 2)
    assert scene.sqns == ([0] if hops else [0, 2])
    scene.run(500)
    assert scene.sqns == [0, 2]


@pytest.mark.parametrize(("generation_s", "waits_s"), [(3, 3), (0, 7)])
def test_a_gap_is_waited_for_as_long_as_the_session_repairs_and_else_as_the_option_says(
    generation_s: int, waits_s: int
) -> None:
    scene = StreamScene(DeliveryConfig(generation_interval_ns=s(7), loss_check_interval_ns=ms(100)))
    source = scene.bind(ToldSession(lbtrm(1), generation_ns=generation_s * NS_PER_S))
    scene.data(source, 0, 2)
    scene.run(waits_s * 1000 - 1)
    assert scene.sqns == [0]
    scene.run(1)
    assert (scene.sqns, scene.streams.next_deadline()) == ([0, 2], None)
    assert scene.streams.on_timer(scene.now_ns) == []


def test_a_loss_check_is_due_while_a_gap_is_open_and_no_longer() -> None:
    scene = StreamScene(CHECKED)
    source = scene.bind(lbtrm(1))
    scene.data(source, 0)
    assert scene.streams.next_deadline() is None
    scene.data(source, 2)
    assert scene.streams.next_deadline() == stream_of(source).controller.next_deadline() is not None
    scene.data(source, 1)
    assert scene.streams.next_deadline() is None


# sessions that change


def test_another_session_of_the_same_source_goes_on_by_sequence_number(scene: StreamScene) -> None:
    old = scene.bind(lbtrm(1))
    scene.data(old, 0, 1, 2)
    new = scene.bind(lbtrm(2), topic_index=9)
    scene.unbind(old)
    assert stream_of(new).source == format_source(old.address, 1)
    scene.data(new, *range(5))
    first, second = names(old, new)
    assert scene.sqns == [0, 1, 2, 3, 4]
    assert [event for event in scene.events if not isinstance(event, Delivered)] == [
        SourceChange(first, added=True), SessionBegan(first, ""), SourceChange(second, added=True),
        SessionEnded(first, ""), SourceChange(first, added=False), SessionBegan(second, ""),
    ]  # fmt: skip
    assert stream_of(new).source == second


def test_the_session_that_sends_is_the_live_one_and_begins_once(scene: StreamScene) -> None:
    old, new = scene.bind(lbtrm(1)), scene.bind(lbtrm(2), topic_index=9)
    stream = stream_of(old)
    scene.data(old, 0)
    scene.data(new, 1)
    scene.data(old, 2)
    assert (stream.live, stream.source) == (old, format_source(old.address, 1))
    scene.unbind(old)
    assert stream.live is None
    assert sum(isinstance(event, SessionBegan) for event in scene.events) == 2
    scene.unbind(new)
    stream.on_began(new)  # too late
    assert (stream.live, stream.take_events()) == (None, [])


def test_a_newcomer_learns_of_every_session(scene: StreamScene) -> None:
    begun, silent = scene.bind(lbtrm(1)), scene.bind(lbtrm(2), topic_index=9)
    scene.data(begun, 0)
    first, second = names(begun, silent)
    assert stream_of(begun).known() == [
        SourceChange(first, added=True), SessionBegan(first, ""), SourceChange(second, added=True),
    ]  # fmt: skip


def test_leaving_is_no_end(scene: StreamScene) -> None:
    source = scene.bind(lbtrm(1))
    scene.data(source, 0)
    scene.unbind(source, ended=False)
    assert scene.events[-1] == SourceChange(format_source(source.address, 1), added=False)
    assert not any(isinstance(event, SessionEnded) for event in scene.events)
    assert scene.streams.all() == []
    assert scene.streams.on_unbound(source, ended=True, now_ns=scene.now_ns) is None, "it is nobody's any more"


def test_a_connection_that_never_stood_has_no_end(scene: StreamScene) -> None:
    source = scene.bind(ToldSession(TCP, was_connected=False))
    scene.unbind(source)
    assert [type(event) for event in scene.events] == [SourceChange, SourceChange]
    assert scene.streams.all() == []


@pytest.mark.parametrize("use_hotlink", [False, True])
def test_a_session_that_was_left_is_known_to_nobody(use_hotlink: bool) -> None:
    scene = StreamScene(use_hotlink=use_hotlink)
    old, new = scene.bind(lbtrm(1)), scene.bind(lbtrm(2))
    scene.data(old, 0)
    session = weakref.ref(session_of(old))
    scene.unbind(old)
    del old
    assert (session(), stream_of(new).live) == (None, None)


# takeovers


def test_what_only_a_dead_session_could_repair_is_lost_at_once(scene: StreamScene) -> None:
    old = scene.bind(lbtrm(1))
    scene.data(old, 0, 1, 3)
    scene.unbind(old)
    new = scene.bind(lbtrm(2))
    scene.data(new, 6, 8)
    assert scene.sqns == [0, 1, 3, 6]
    assert scene.lost == [2, 4, 5], "7 is what the new session repairs"
    scene.data(new, 7)
    assert scene.sqns[-2:] == [7, 8]


def test_while_the_other_session_lives_its_repairs_are_waited_for(scene: StreamScene) -> None:
    old = scene.bind(lbtrm(1))
    scene.data(old, 0, 2)
    new = scene.bind(lbtrm(2), topic_index=9)
    scene.data(new, 4)
    assert (scene.sqns, scene.lost) == ([0], [])
    scene.data(old, 1)
    assert (scene.sqns, scene.lost) == ([0, 1, 2], [])
    scene.unbind(old)
    assert (scene.sqns, scene.lost) == ([0, 1, 2, 4], [3])
    assert stream_of(new).takeover is None


def test_what_the_new_session_itself_is_missing_is_waited_for(scene: StreamScene) -> None:
    old = scene.bind(lbtrm(1))
    scene.data(old, 0)
    scene.unbind(old)
    new = scene.bind(lbtrm(2))
    session_of(new).at, session_of(new).whole_to = 20, 18
    scene.data(new, 4)
    assert (scene.sqns, scene.lost) == ([0], [])
    scene.data(new, 3)
    assert (scene.sqns, scene.lost) == ([0], []), "it repairs, and is not done"
    session_of(new).whole_to = 20
    scene.data(new, 5)
    assert (scene.sqns, scene.lost) == ([0, 3, 4, 5], [1, 2])


def test_a_second_session_that_never_carries_data_takes_nothing_over(scene: StreamScene) -> None:
    old = scene.bind(lbtrm(1))
    scene.data(old, 0, 2)
    silent = scene.bind(lbtrm(2), topic_index=9)
    scene.begin(silent)
    scene.unbind(silent)
    scene.data(old, 3)
    assert (scene.sqns, scene.lost) == ([0], [])
    scene.data(old, 1)
    assert scene.sqns == [0, 1, 2, 3]


def test_a_new_session_that_dies_before_it_was_whole_takes_nothing_over(scene: StreamScene) -> None:
    old = scene.bind(lbtrm(1))
    scene.data(old, 0, 2)
    new = scene.bind(lbtrm(2), topic_index=9)
    session_of(new).at = 20
    scene.data(new, 6)
    scene.unbind(new)
    session_of(new).whole_to = 20  # as a session that was left
    scene.data(old, 3)
    assert (scene.sqns, scene.lost) == ([0], [])
    scene.data(old, 1)
    assert scene.sqns == [0, 1, 2, 3]


def test_a_takeover_begins_with_the_data_of_the_new_session(scene: StreamScene) -> None:
    old = scene.bind(lbtrm(1))
    scene.data(old, 0)
    new = scene.bind(lbtrm(2), topic_index=9)
    scene.begin(new)
    scene.data(old, 3)  # still by the old one
    scene.unbind(old)
    assert (scene.sqns, scene.lost) == ([0], [])
    scene.data(new, 5)
    assert (scene.sqns, scene.lost) == ([0, 3, 5], [1, 2, 4])
    scene.data(new, 8)
    assert scene.sqns == [0, 3, 5], "what it misses from then on it repairs"


# sources that are away for a while


def test_a_source_that_comes_back_soon_is_the_same_one(scene: StreamScene) -> None:
    first = scene.bind(TCP)
    scene.data(first, 0, 1)
    scene.unbind(first)
    scene.run(5_000)
    second = scene.bind(TcpAddress(0x0A000002, 14371, 6))
    scene.data(second, 1, 2, 4)
    assert (scene.sqns, scene.lost) == ([0, 1, 2, 4], [3])


def test_a_source_that_stays_away_is_forgotten(scene: StreamScene) -> None:
    source = scene.bind(lbtrm(1))
    scene.data(source, 0, 2)
    scene.unbind(source)
    (stream,) = scene.streams.all()
    assert scene.streams.next_deadline() == scene.now_ns + PARK_NS
    scene.run(59_999)
    assert scene.streams.all() == [stream]
    scene.run(1)
    assert (scene.streams.all(), scene.streams.of_topic(b"t"), scene.streams.next_deadline()) == ([], [], None)
    assert (scene.sqns, scene.lost) == ([0], []), "what waited behind the gap is gone without a word"
    assert stream.controller.stats.discarded == 1


def test_a_gap_that_is_due_while_the_source_is_away_is_given_up() -> None:
    scene = StreamScene(CHECKED)
    source = scene.bind(lbtrm(1))
    scene.data(source, 0, 2)
    scene.unbind(source)
    scene.run(10_500)
    assert (scene.sqns, scene.lost) == ([0, 2], [1])
    scene.run(50_000)
    assert scene.streams.all() == []


def test_a_source_that_came_back_is_not_forgotten_later(scene: StreamScene) -> None:
    source = scene.bind(lbtrm(1))
    scene.data(source, 0)
    scene.unbind(source)
    again = scene.bind(lbtrm(2))
    scene.streams.forget_parked(b"t")
    assert scene.streams.next_deadline() is None
    scene.run(61_000)
    assert scene.streams.all() == [again.user]


def test_of_too_many_sources_that_are_away_the_first_that_left_is_forgotten(
    scene: StreamScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dro.proto.stream.stream.PARKED_MAX", 2)
    otids = [bytes([number]) * 32 for number in range(4)]

    def leave(number: int) -> None:
        source = scene.bind(lbtrm(number + 1), otid=otids[number])
        scene.data(source, 0)
        scene.unbind(source)

    def known() -> list[int]:
        return [otids.index(stream.otid) for stream in scene.streams.all()]

    leave(0)
    leave(1)
    assert known() == [0, 1]
    back = scene.bind(lbtrm(1), otid=otids[0])
    leave(2)
    assert known() == [0, 1, 2], "one has come back"
    scene.unbind(back)
    assert known() == [0, 2]
    scene.run(60_000)
    assert (known(), scene.streams.next_deadline()) == ([], None)
    leave(1)
    scene.run(100)
    leave(0)
    assert known() == [1, 0]
    leave(3)
    assert known() == [0, 3], "who has left again has left later"
    scene.run(59_900)
    assert known() == [0, 3]
    scene.run(100)
    assert known() == []


def test_what_is_forgotten_waits_for_nothing_and_is_counted() -> None:
    scene = StreamScene(CHECKED)
    source, other = scene.bind(lbtrm(1)), scene.bind(lbtrm(2), otid=bytes(32))
    scene.data(source, 0, 2)
    stream, left = scene.streams.all()
    scene.unbind(source, ended=False)
    assert (scene.streams.next_deadline(), stream.controller.stats.discarded) == (None, 1)
    assert scene.streams.all() == [left]
    scene.data(other, 0, 2)
    scene.unbind(other)
    scene.streams.forget_parked(b"t")
    assert (scene.streams.next_deadline(), scene.streams.all()) == (None, [])


def test_streams_that_close_leave_nothing_due_and_say_nothing() -> None:
    scene = StreamScene(CHECKED)
    sources = [scene.bind(lbtrm(number), otid=bytes([number]) * 32) for number in range(2)]
    for source in sources:
        scene.data(source, 0, 2)
    scene.unbind(sources[1])
    (stream, _), scene.events = scene.streams.all(), []
    scene.streams.close()
    assert (scene.streams.next_deadline(), scene.streams.all()) == (None, [])
    assert (stream.take_events(), stream.controller.take_events(), sources[0].user) == ([], [], None)


# a new process


@pytest.mark.parametrize("use_hotlink", [False, True])
@pytest.mark.parametrize("after", range(1, 6))
@pytest.mark.parametrize("whole_to", [18, 20])
def test_a_stream_that_is_handed_on_goes_on_as_it_was(after: int, use_hotlink: bool, whole_to: int) -> None:
    one, other = (TCP, TcpAddress(0x0A000002, 14371, 6)) if use_hotlink else (lbtrm(1), lbtrm(2))

    def run(handed_on_after: int) -> object:
        scene = StreamScene(CHECKED, use_hotlink=use_hotlink)
        sessions = [scene.bind(one), scene.bind(other, topic_index=9)]
        events: list[StreamEvent | DeliveryEvent] = []
        for number, (session, sqns) in enumerate([(0, (0, 1, 3)), (1, (6,)), (0, (2, 5)), (1, (8,)), (0, ())]):
            if number == handed_on_after:
                stream, now_ns = stream_of(sessions[0]), scene.now_ns
                cores = [core for core in (stream, stream.planes) if core is not None]
                states = [snapshot(core, sessions) for core in cores]
                events += scene.events
                scene = StreamScene(CHECKED, use_hotlink=use_hotlink)
                sessions = [scene.bind(one), scene.bind(other, topic_index=9)]
                stream, scene.now_ns = stream_of(sessions[0]), now_ns
                for core, state in zip((stream, stream.planes), states, strict=False):
                    restore(core, state, sessions)
                scene.events.clear()
            session_of(sessions[1]).at, session_of(sessions[1]).whole_to = 20, whole_to
            scene.data(sessions[session], *sqns)
            scene.run(100)
        stream = stream_of(sessions[0])
        known = (stream.source, [stream.live is session for session in sessions])
        scene.unbind(sessions[0])
        events += scene.events
        scene.events.clear()
        scene.run(20_000)
        return known, events, scene.events

    assert run(after) == run(0)
