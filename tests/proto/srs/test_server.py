"""The server of topic resolution over TCP: connections, registration, domain, extensions, limits; on a fake clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dro.clock import NS_PER_S
from dro.proto.srs.server import SrsNoteKind
from dro.proto.srs.settings import SrsLimits, SrsSettings, SrsTimes
from dro.wire.lbmr import packet as lbmr
from dro.wire.srs import messages, rsocket
from dro.wire.srs.messages import EXT_DOMAIN, EXT_LBMR, ApplicationType, InterestMode, RegistrationResponse
from dro.wire.srs.rsocket import (
    CancelFrame,
    ErrorFrame,
    ExtFrame,
    FrameType,
    KeepaliveFrame,
    OtherFrame,
    PayloadFrame,
    RequestFrame,
    RequestNFrame,
    SetupFrame,
)
from tests.fakes.srs import STREAM, FakeSrsClient, SrsSite, source


def route(*domains: int, port: int = 14391) -> bytes:
    return lbmr.pack_domain_routes(
        0x0A000001, port, 0, domains, lbmr.standard_options(bytes(8), lbmr.SenderType.DRO, 1), 60_000
    )[0]


def context_name(name: bytes) -> bytes:
    return lbmr.encode(lbmr.Packet(1, None, lbmr.ContextInfo(0, lbmr.ContextFlag.QUERY, name=name)))


def limited(**limits: int) -> SrsSettings:
    return SrsSettings(limits=SrsLimits(**limits))


# connections


def test_a_client_is_registered_whatever_the_portions() -> None:
    site = SrsSite()
    client = FakeSrsClient(site, 1)
    request = messages.encode(client.registration)
    for byte in rsocket.encode(SetupFrame(500, 3000)) + rsocket.encode(
        RequestFrame(7, FrameType.REQUEST_RESPONSE, request)
    ):
        site.server.on_bytes(client.connection, bytes((byte,)), site.now_ns)
        site.settle()
    assert client.frames == [PayloadFrame(7, messages.encode(RegistrationResponse(1, 0)), is_complete=True)]
    assert len(site.server.clients) == 1


def test_keepalives_are_answered_when_asked_for() -> None:
    site = SrsSite()
    client = site.client()
    client.frames.clear()
    client.send(KeepaliveFrame(False, 7, b"x"), KeepaliveFrame(True, 8, b"y"))
    site.settle()
    assert client.frames == [KeepaliveFrame(False, 0, b"y")]


def test_silence_ends_a_connection_after_its_lifetime() -> None:
    site = SrsSite()
    client, other = site.client(1), site.client(2)
    site.wait(2.9)
    client.keeps_alive = False
    site.wait(2.9)
    assert not client.is_closed
    site.wait(1)
    assert client.is_closed
    assert client.errors == [b"nothing was heard for its lifetime"]
    assert not other.is_closed
    assert site.server.counts.closed == {"silent": 1}


@pytest.mark.parametrize(("lifetime_ms", "open_s", "closed_s"), [(1, 0.9, 2), (3_600_000, 299, 301)])
def test_the_lifetime_has_bounds(lifetime_ms: int, open_s: float, closed_s: float) -> None:
    site = SrsSite()
    client = FakeSrsClient(site, 1)
    client.keeps_alive = False
    client.send(
        SetupFrame(500, lifetime_ms), RequestFrame(1, FrameType.REQUEST_RESPONSE, messages.encode(client.registration))
    )
    site.settle()
    site.wait(open_s)
    assert not client.is_closed
    site.wait(closed_s - open_s)
    assert client.is_closed


def test_who_does_not_register_is_closed() -> None:
    site = SrsSite()
    mute, half = FakeSrsClient(site, 1), FakeSrsClient(site, 2)
    half.send(SetupFrame(500, 60_000))
    mute.keeps_alive = False
    site.wait(9)
    assert not mute.is_closed
    assert not half.is_closed
    site.wait(2)
    assert mute.is_closed
    assert half.is_closed
    assert site.server.counts.closed == {"half open": 2}


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([KeepaliveFrame(True)], b"first frame"),
        ([SetupFrame(1, 2), SetupFrame(1, 2)], b"second SETUP"),
        ([SetupFrame(1, 2, resume_token=b"x")], b"resumption"),
        ([SetupFrame(1, 2, major=2)], b"versions"),
        ([SetupFrame(1, 2), OtherFrame(1, FrameType.REQUEST_CHANNEL, 0, b"")], b"not served"),
        ([SetupFrame(1, 2), RequestFrame(5, FrameType.REQUEST_FNF, messages.encode(source(b"A")))], b"before a"),
    ],
)
def test_what_breaks_the_rules_ends_the_connection_with_an_error(frames: list[rsocket.Frame], why: bytes) -> None:
    site = SrsSite()
    client = FakeSrsClient(site, 1)
    client.send(*frames)
    site.settle()
    assert client.is_closed
    (error,) = client.errors
    assert why in error
    assert site.server.connection_count == 0
    assert site.server.queued_bytes == 0


def test_unknown_frames_that_may_be_ignored_are() -> None:
    site = SrsSite()
    client = site.client()
    client.send(OtherFrame(0, FrameType.LEASE, 0x200, b"x"), ExtFrame(77, b"x"), ExtFrame(EXT_DOMAIN, b"1234"))
    client.tell(source(b"A"))
    assert not client.is_closed
    assert site.server.records.source_count == 1


def test_bytes_that_are_no_frames_end_the_connection_and_records_that_cannot_be_read_do_not() -> None:
    site = SrsSite()
    good, bad = site.client(1), site.client(2)
    raw = messages.encode(source(b"A", 1)) + b"\0\x63" + messages.encode(source(b"B", 2))
    good.send(RequestFrame(5, FrameType.REQUEST_FNF, raw))
    site.server.on_bytes(bad.connection, b"\xff\xff\xff\xff", site.now_ns)
    site.settle()
    assert (good.is_closed, bad.is_closed) == (False, True)
    assert site.server.records.source_count == 1
    assert site.server.counts.unreadable == 2
    assert any("99" in text for text in site.notes(SrsNoteKind.UNREADABLE))


def test_only_so_many_connections_and_clients() -> None:
    site = SrsSite(limited(connections=3, clients=2))
    site.client(1).want(b"A")
    second, third = site.client(2), site.client(3)
    assert third.errors == [b"too many clients"]
    assert site.server.connect("late", site.now_ns) is not None
    assert site.server.connect("later", site.now_ns) is None
    second.want(b"B")
    second.lose()
    fourth = site.client(4)  # the place of the one that is lost
    assert not fourth.errors
    assert len(site.server.clients) == 2
    assert site.server.records.interest_count == 1


def test_what_comes_before_a_registration_is_small_and_all_unfinished_frames_are_bounded() -> None:
    site = SrsSite(limited(inputs_bytes=200_000))
    early = FakeSrsClient(site, 1)
    site.server.on_bytes(early.connection, (5000).to_bytes(3, "big") + bytes(10), site.now_ns)
    clients = [site.client(number) for number in range(2, 7)]
    for client in clients:
        site.server.on_bytes(client.connection, (900_000).to_bytes(3, "big") + bytes(60_000), site.now_ns)
        site.settle()
    assert early.is_closed
    assert not any(client.is_closed for client in clients)
    site.server.on_bytes(clients[0].connection, bytes(10_000), site.now_ns)
    site.settle()
    assert [client.is_closed for client in clients] == [True, False, False, False, False]


def test_a_frame_as_large_as_allowed_is_taken() -> None:
    site = SrsSite()
    client = site.client()
    batch = b"".join(messages.encode(source(b"T%d" % number, number)) for number in range(6000))
    client.send(RequestFrame(5, FrameType.REQUEST_FNF, batch))
    assert len(batch) > 700_000
    assert not client.connection.wants_bytes or len(batch) < 1 << 20
    site.settle()
    assert client.connection.wants_bytes
    assert site.server.records.source_count == 6000


# the stream


def test_credit_bounds_what_is_sent_and_is_renewed() -> None:
    site = SrsSite(limited(batch_bytes=200))
    client = FakeSrsClient(site, 1, InterestMode.FLOOD)
    client.register()
    client.open_stream(2)
    site.client(2).tell(*(source(b"T%d" % number, number) for number in range(5)))
    assert len(client.take()) == 2
    client.send(RequestNFrame(STREAM, 1), RequestNFrame(99, 5))
    assert len(client.take()) == 1
    client.send(RequestNFrame(STREAM, rsocket.UNBOUNDED_N))
    assert len(client.take()) == 2


def test_a_canceled_stream_is_sent_nothing_more() -> None:
    site = SrsSite()
    client, other = site.client(1, InterestMode.FLOOD_AND_FORWARD), site.client(2)
    client.send(CancelFrame(99))
    other.tell(source(b"A", 1))
    assert client.take_topics() == [b"A"]
    client.send(CancelFrame(STREAM))
    site.settle()
    other.tell(source(b"B", 2))
    other.want(b"C")
    assert client.take() == []
    again = site.client(1, InterestMode.FLOOD)
    assert again.take_topics() == [b"A", b"B"]


@pytest.mark.parametrize("frames", [[], [CancelFrame(STREAM)]])
def test_a_second_stream_request_ends_the_connection(frames: list[rsocket.Frame]) -> None:
    site = SrsSite()
    client = site.client()
    client.send(*frames)
    client.open_stream()
    site.settle()
    assert client.is_closed
    assert client.errors == [b"a second stream request"]
    assert site.server.counts.closed == {"stream": 1}


def test_a_slow_reader_is_cut_off_and_others_are_not() -> None:
    site = SrsSite(limited(queue_bytes=100_000))
    slow, other, teller = site.client(1, InterestMode.FLOOD), site.client(2, InterestMode.FLOOD), site.client(3)
    slow.is_slow = True
    teller.tell(*(source(b"T%d" % number, number) for number in range(2000)))
    assert len(other.take_topics()) == 2000
    assert slow.connection.is_closing
    slow.read()
    assert slow.errors[-1] == b"reads too slowly for what changes"
    assert site.server.queued_bytes == 0
    slow.is_slow = False
    slow.connect()
    slow.register()
    slow.open_stream()
    slow.records.clear()
    assert len(slow.take_topics()) == 2000


def test_the_longest_queue_goes_when_all_are_too_long() -> None:
    site = SrsSite(limited(queues_bytes=200_000))
    early, late, teller = site.client(1, InterestMode.FLOOD), site.client(2, InterestMode.FLOOD), site.client(3)
    early.is_slow = True
    teller.tell(*(source(b"T%d" % number, number) for number in range(500)))
    late.is_slow = True
    teller.tell(*(source(b"U%d" % number, 1000 + number) for number in range(1000)))
    assert early.connection.is_closing
    assert not late.connection.is_closing


def test_who_takes_nothing_for_long_is_cut_off() -> None:
    site = SrsSite()
    client, teller = site.client(1, InterestMode.FLOOD), site.client(2)
    site.wait(200)
    client.is_slow = True
    teller.tell(source(b"A"))
    site.wait(55)
    assert not client.connection.is_closing
    site.wait(10)
    assert client.connection.is_closing


def test_who_takes_no_record_for_long_is_cut_off_whatever_else_it_takes() -> None:
    site = SrsSite()
    client, teller = FakeSrsClient(site, 1, InterestMode.FLOOD), site.client(2)
    client.register()
    client.open_stream(1)
    teller.tell(source(b"A"))
    for second in range(130):
        client.send(KeepaliveFrame(True))
        site.wait(1)
        if second == 50:
            teller.tell(source(b"B", 2))
        assert client.connection.is_closing == (second >= 111), second
    assert client.take_topics() == [b"A"]
    assert client.errors == [b"takes nothing of what waits for it"]
    assert site.server.counts.closed == {"stalled": 1}


def test_a_canceled_stream_leaves_nothing_that_waits() -> None:
    site = SrsSite()
    client = FakeSrsClient(site, 1, InterestMode.FLOOD)
    client.register()
    client.open_stream(0)
    site.client(2).tell(source(b"A"))
    assert site.server.queued_bytes > 0
    client.send(CancelFrame(STREAM))
    site.settle()
    assert site.server.queued_bytes == client.connection.queued_bytes == 0
    site.wait(200)
    assert not client.connection.is_closing


def test_what_was_there_is_not_queued_for_a_slow_reader() -> None:
    site = SrsSite()
    site.client(1).tell(*(source(b"T%d" % number, number) for number in range(5000)))
    slow = FakeSrsClient(site, 2, InterestMode.FLOOD)
    slow.is_slow = True
    slow.register()
    slow.open_stream()
    site.settle()
    assert site.server.queued_bytes < 100_000
    slow.is_slow = False
    slow.read()
    assert sorted(slow.take_topics()) == sorted(b"T%d" % number for number in range(5000))


def test_one_who_floods_does_not_keep_others_waiting() -> None:
    site = SrsSite()
    flood, other = site.client(1), site.client(2)
    for batch in messages.pack_records([source(b"T%d" % number, number) for number in range(20_000)], 30_000):
        flood.send(RequestFrame(5, FrameType.REQUEST_FNF, batch))
    other.send(RequestFrame(5, FrameType.REQUEST_FNF, messages.encode(source(b"mine", 99_999))))
    for _ in range(4):
        assert site.server.work(site.now_ns)
    assert len(other.connection.walks) == 0
    assert site.server.records.source_count < 300
    taker = site.client(3)
    taker.want(b"mine")
    assert taker.take_topics() == [b"mine"]


# clients that come again


def test_a_second_connection_of_a_client_takes_the_place_of_the_first() -> None:
    site = SrsSite()
    first = site.client(1)
    first.want(b"A")
    again = site.client(1)
    assert first.is_closed
    assert first.errors == [b"the client has registered again"]
    assert again.response.client_id == first.response.client_id
    assert len(site.server.clients) == 1
    site.client(2).tell(source(b"A"))
    assert again.take_topics() == [b"A"]


def test_a_second_registration_on_a_connection_is_refused() -> None:
    site = SrsSite()
    client = site.client()
    client.send(RequestFrame(9, FrameType.REQUEST_RESPONSE, messages.encode(client.registration)))
    site.settle()
    assert client.errors == [b"a second registration"]


def test_an_error_of_the_client_ends_the_connection() -> None:
    site = SrsSite()
    client = site.client()
    client.send(ErrorFrame(0, rsocket.ErrorCode.CONNECTION_CLOSE, b"bye"))
    site.settle()
    assert client.is_closed


# the domain


def test_the_domain_is_learnt_from_a_dro_and_told_to_all() -> None:
    site = SrsSite()
    early = site.client(1)
    assert early.response.domain_id == 0
    dro = site.client(2, InterestMode.FILTER_AND_FORWARD, application_type=ApplicationType.DRO, domain_id=5)
    assert dro.response.domain_id == 5
    assert early.extensions(EXT_DOMAIN) == [(5).to_bytes(4, "big")]
    assert site.client(3, application_type=0, domain_id=9).response.domain_id == 5
    wrong = site.client(4, application_type=ApplicationType.DRO, domain_id=6)
    assert wrong.errors == [b"this TRD has domain id 5, not 6"]
    assert site.server.counts.domain_conflicts == 1
    dro.lose()
    right = site.client(4, application_type=ApplicationType.DRO, domain_id=6)
    assert right.response.domain_id == 6


def test_a_configured_domain_is_never_another() -> None:
    site = SrsSite(SrsSettings(domain_id=7))
    assert site.client(1).response.domain_id == 7
    assert site.client(2, application_type=ApplicationType.DRO, domain_id=7).response.domain_id == 7
    assert site.client(3, application_type=ApplicationType.DRO, domain_id=8).errors


# extensions


def test_datagrams_without_a_message_of_srs_are_passed_on_and_routes_kept() -> None:
    site = SrsSite()
    dro, other = site.client(1), site.client(2)
    dro.send(ExtFrame(EXT_LBMR, route(3)), ExtFrame(EXT_LBMR, route(3, 4)), ExtFrame(EXT_LBMR, context_name(b"store")))
    site.settle()
    assert other.extensions(EXT_LBMR) == [route(3), route(3, 4), context_name(b"store")]
    assert all(frame.is_ignorable for frame in other.frames if isinstance(frame, ExtFrame))
    assert dro.extensions(EXT_LBMR) == []
    site.wait(20)
    assert site.client(3).extensions(EXT_LBMR) == [route(3, 4)]
    site.wait(11)
    assert site.client(4).extensions(EXT_LBMR) == []


def test_routes_that_are_kept_count_as_records_do() -> None:
    site = SrsSite(limited(client_record_bytes=100))
    dro = site.client(1)
    dro.send(ExtFrame(EXT_LBMR, route(3)))
    site.settle()
    assert 0 < site.server.records.record_bytes <= 100
    dro.send(ExtFrame(EXT_LBMR, route(*range(1, 50))))
    site.settle()
    assert site.server.records.record_bytes == 0
    dro.send(ExtFrame(EXT_LBMR, route(4)), ExtFrame(EXT_LBMR, route(5) + bytes(65_507)))
    site.settle()
    assert site.client(2).extensions(EXT_LBMR) == [route(4)]
    site.wait(31)
    assert site.server.records.record_bytes == 0


def test_what_is_passed_on_has_a_rate_and_is_a_datagram() -> None:
    site = SrsSite(limited(relayed_datagrams_s=3, relayed_bytes_s=1000))
    one, other = site.client(1), site.client(2)
    one.send(ExtFrame(EXT_LBMR, b"no datagram"), *(ExtFrame(EXT_LBMR, context_name(b"a")) for _ in range(5)))
    site.settle()
    assert len(other.extensions(EXT_LBMR)) == 3
    assert site.server.counts.unrelayed == 3
    site.wait(1)
    one.send(ExtFrame(EXT_LBMR, route(*range(1, 200))), ExtFrame(EXT_LBMR, route(*range(1, 200))))
    site.settle()
    assert len(other.extensions(EXT_LBMR)) == 4


def test_times_and_limits_have_the_documented_defaults() -> None:
    times = SrsTimes()
    assert (times.source_state_ns, times.interest_state_ns) == (86_400 * NS_PER_S, 86_400 * NS_PER_S)
    assert (times.route_state_ns, times.source_leave_backoff_ns) == (30 * NS_PER_S, NS_PER_S // 2)
    assert SrsLimits().connections == 10_000
    assert replace(SrsSettings(), domain_id=3).domain_id == 3
