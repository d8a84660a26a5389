"""Topic resolution over TCP: whole contexts on real sockets that find each other by an SRS."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from dro.config.um.options import UmOptions
from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.proto.resolver_service.link import LIFETIME_NS
from dro.um.fragment.context import FragmentContext
from dro.um.fragment.resolution import ContextSettings
from dro.wire.lbmr import packet as lbmr
from tests.fakes.faulty_sockets import FaultySockets
from tests.fakes.loop_srs import LOOPBACK, LoopSrs
from tests.fakes.um_contexts import RecordingSink, Stepper, private_config


@pytest.fixture
def srs(stepper: Stepper) -> Iterator[LoopSrs]:
    with closing(LoopSrs(stepper.loop)) as made:
        yield made


def options_for(*ports: int, **more: str | int) -> UmOptions:
    return private_config(
        "tcp",
        context__resolver_service=",".join(f"{LOOPBACK}:{port}" for port in ports),
        context__resolver_disable_udp_topic_resolution=1,
        **more,
    ).options


def context(
    stepper: Stepper, options: UmOptions, seed: int, settings: ContextSettings | None = None
) -> tuple[FragmentContext, RecordingSink]:
    sink = RecordingSink()
    more = {} if settings is None else {"settings": settings}
    return FragmentContext(options, stepper.loop, sink=sink, rng=random.Random(seed), **more), sink  # type: ignore[arg-type]


def test_contexts_find_each_other_and_an_end_is_told(stepper: Stepper, srs: LoopSrs) -> None:
    options = options_for(srs.port)
    sending, _ = context(stepper, options, 1)
    receiving, sink = context(stepper, options, 2)
    source = sending.open_source(b"quotes")
    receiving.want_topic(b"quotes")
    receiving.want_topic(b"later")
    stepper.until(lambda: [bound.topic for bound in sink.current] == [b"quotes"], limit_ms=1000)
    stepper.run(70_000, 100)
    assert receiving.resolver.cache.source_count(b"quotes") == 1
    sending.open_source(b"later")
    stepper.until(lambda: len(sink.current) == 2, limit_ms=1000)
    source.close(final=False, linger_ns=0)
    stepper.until(lambda: [bound.topic for bound in sink.current] == [b"later"], limit_ms=5000)
    sending.close()
    stepper.run(1000)
    srs.work()
    assert srs.core.records.source_count == 0
    receiving.close()


def test_topics_and_patterns_without_a_source_are_wanted_no_more(stepper: Stepper, srs: LoopSrs) -> None:
    made, _ = context(stepper, options_for(srs.port), 1)
    for _ in range(3):
        made.want_topic(b"nobody")
        made.want_pattern(b"^n", lbmr.PatternType.PCRE, lambda topic: topic[:1] == b"n")
        stepper.run(300)
        srs.work()
        assert srs.core.records.interest_count == 2
        made.unwant_topic(b"nobody")
        made.unwant_pattern(b"^n", lbmr.PatternType.PCRE)
        stepper.run(50)
    stepper.run(1000)
    srs.work()
    assert srs.core.records.interest_count == 0
    made.close()


def test_what_is_new_while_the_srs_is_away_is_found_when_it_is_back(
    stepper: Stepper, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    first = LoopSrs(stepper.loop)
    options = options_for(first.port)
    sending, _ = context(stepper, options, 1)
    receiving, sink = context(stepper, options, 2)
    sending.open_source(b"old")
    receiving.want_topic(b"old")
    stepper.until(lambda: len(sink.current) == 1)
    assert [(str(one.entry), one.kind, one.answers) for one in sending.resolution.servers()] == [
        (f"{LOOPBACK}:{first.port}", "SRS", True)
    ]
    first.close()
    stepper.run(3000)
    assert [one.answers for one in sending.resolution.servers()] == [False]
    sending.open_source(b"new")
    receiving.want_topic(b"new")
    stepper.run(100_000, 100)
    assert [bound.topic for bound in sink.current] == [b"old"]
    with closing(LoopSrs(stepper.loop, first.port)):
        stepper.until(lambda: len(sink.current) == 2, limit_ms=1500)
        stepper.run(60_000, 100)
        assert len(sink.current) == 2
        events = [r.msg for r in caplog.records if r.msg in (LogEvent.SRS_CONNECTED, LogEvent.SRS_LOST)]
        assert events.count(LogEvent.SRS_CONNECTED) == 4
        assert LogEvent.SRS_LOST in events
        sending.close()
        receiving.close()


def test_udp_and_tcp_are_used_at_the_same_time(stepper: Stepper, srs: LoopSrs) -> None:
    both = private_config("tcp", context__resolver_service=f"{LOOPBACK}:{srs.port}").options
    tcp_only = both.with_("context", "resolver_disable_udp_topic_resolution", "1")
    udp_only = both.with_("context", "resolver_service", "0.0.0.0:0")
    assert udp_only.get_list("context", "resolver_service") == ()
    sending, _ = context(stepper, both, 1)
    receivers = [context(stepper, options, 2 + n) for n, options in enumerate((both, tcp_only, udp_only))]
    sending.open_source(b"quotes")
    for receiving, _ in receivers:
        receiving.want_topic(b"quotes")
    stepper.until(lambda: all(len(sink.current) == 1 for _, sink in receivers), limit_ms=2000)
    assert all(receiving.joined.counts() is not None for receiving, _ in receivers)
    for made in (sending, *(receiving for receiving, _ in receivers)):
        made.close()


def test_a_context_learns_its_domain_and_the_routes_of_a_dro(stepper: Stepper, srs: LoopSrs) -> None:
    options = options_for(srs.port)
    routes: list[tuple[tuple[int, ...], int, int]] = []
    application, _ = context(stepper, options, 1)
    application.on_domain_route = lambda *route: routes.append(route)
    dro, _ = context(stepper, options, 2, ContextSettings("dro", lbmr.SenderType.DRO, 7))
    route = lbmr.RemoteDomainRoute(0x7F000001, 14391, 0, (8, 9))
    stepper.until(lambda: application.domain_id == 7, limit_ms=1000)
    dro.resolution.send([lbmr.encode(lbmr.Packet(1, dro.packet_options, route))])
    stepper.until(lambda: len(routes) >= 3, limit_ms=4000)
    assert set(routes) == {((8, 9), 0x7F000001, 14391)}
    application.close()
    dro.close()


def test_a_context_that_cannot_have_its_channel_connects_to_no_srs(stepper: Stepper, srs: LoopSrs) -> None:
    options = private_config("tcp", context__resolver_service=f"{LOOPBACK}:{srs.port}").options
    sockets = FaultySockets("multicast_sender")
    with pytest.raises(ResourceError, match="no multicast_sender"):
        FragmentContext(options, stepper.loop, sink=RecordingSink(), sockets=sockets)
    stepper.run(2000)
    assert srs.core.counts.connections == 0
    assert stepper.loop.next_deadline() is None


def test_the_srs_may_be_reached_from_an_interface_and_port_of_its_own(stepper: Stepper, srs: LoopSrs) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        port = probe.getsockname()[1]
    options = private_config(
        "tcp",
        context__resolver_service=f"127.0.0.2:{port}->{LOOPBACK}:{srs.port}",
        context__resolver_disable_udp_topic_resolution=1,
    ).options
    made, _ = context(stepper, options, 1)
    stepper.run(50)
    assert [connection.peer for connection in srs._sockets] == [f"127.0.0.2:{port}"]
    made.close()


def test_an_srs_that_accepts_and_says_nothing_is_left_and_tried_again(
    stepper: Stepper, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server((LOOPBACK, 0)) as silent:
        made, _ = context(stepper, options_for(silent.getsockname()[1]), 1)
        stepper.run(LIFETIME_NS // 1_000_000 + 1000, 50)
        lost = [vars(r)["reason"] for r in caplog.records if r.msg == LogEvent.SRS_LOST]
        assert lost == ["no registration within 6 s"]
        made.close()


def test_what_is_no_srs_is_told_and_loses_nothing_else(
    stepper: Stepper, srs: LoopSrs, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = socket.create_server((LOOPBACK, 0))
    wrong.setblocking(False)
    options = options_for(wrong.getsockname()[1], srs.port)
    sending, _ = context(stepper, options, 1)
    receiving, sink = context(stepper, options, 2)
    sending.open_source(b"quotes")
    receiving.want_topic(b"quotes")
    stepper.run(20)
    client, _ = wrong.accept()
    client.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    stepper.until(lambda: len(sink.current) == 1, limit_ms=1000)
    stepper.until(lambda: any(r.msg == LogEvent.SRS_LOST for r in caplog.records), limit_ms=1000)
    (first, *_) = [vars(r)["reason"] for r in caplog.records if r.msg == LogEvent.SRS_LOST]
    assert "frame" in first
    client.close()
    wrong.close()
    sending.close()
    receiving.close()
