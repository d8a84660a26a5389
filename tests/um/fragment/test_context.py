"""Contexts at fragment level, on real sockets of the loopback interface and stepped time."""

from __future__ import annotations

import errno
import os
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dro.clock import ms
from dro.config.um.sets import ResolverOptions
from dro.errors import DecodeError, ResourceError
from dro.proto.resolver.record_queue import DRAIN_MAX
from dro.transport import mmsg
from dro.um.fragment.context import FragmentContext
from dro.um.fragment.own_source import FragmentSource
from dro.um.fragment.resolution import ContextSettings
from dro.um.message.client_config import Config
from dro.wire import otid
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.options import ContextInstance
from dro.wire.source_string import IpcAddress, TcpAddress
from tests.builders.tir_options import tir_options
from tests.fakes.fussy_socket import no_buffer_space
from tests.fakes.um_contexts import RecordingSink, Stepper, groups, private_config

DRO = 1


@contextmanager
def context(
    config: Config, stepper: Stepper, *, source_type: int = 0, domain_id: int = 0
) -> Iterator[tuple[FragmentContext, RecordingSink]]:
    sink = RecordingSink()
    core = FragmentContext(
        config.options,
        stepper.loop,
        sink=sink,
        settings=ContextSettings(source_type=source_type, domain_id=domain_id),
        rng=random.Random(),
    )
    try:
        yield core, sink
    finally:
        core.close()


def send(source: FragmentSource, stepper: Stepper, sqn: int, payload: bytes = b"hello") -> None:
    header = lbmc.HEADER.pack(0, 0, 12 + len(payload), source.topic_index, sqn)
    assert source.transport.send_message(header + payload, stepper.loop.now_ns())


def tr_socket(config: Config) -> socket.socket:
    """A socket that sends into the TR channel of these options."""
    o = ResolverOptions.of(config.options)
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
    sock.connect((o.outgoing_address, o.outgoing_port))
    return sock


def test_a_source_is_found_bound_heard_and_gone(um_config: Config, stepper: Stepper) -> None:
    with context(um_config, stepper) as (a, _), context(um_config, stepper) as (b, sink):
        source = a.open_source(b"quotes.IBM")
        b.want_topic(b"quotes.IBM")
        stepper.until(lambda: len(sink.bound) == 1)
        bound = sink.bound[0]
        assert (bound.topic, bound.otid, bound.topic_index) == (b"quotes.IBM", source.otid, source.topic_index)
        assert bound.address == source.transport.address
        assert bound.source_id == a.context_instance
        stepper.run(50)  # a TCP session connects
        for sqn in range(3):
            send(source, stepper, sqn)
        stepper.until(lambda: len(sink.fragments) == 3)
        assert [sqn for _, sqn, _ in sink.fragments] == [0, 1, 2]
        assert [t.address for t in sink.began] == [bound.address]
        source.close(final=True, linger_ns=0)
        stepper.until(lambda: bool(sink.unbound))
        assert sink.unbound == [(bound, True)]


def test_what_was_sent_before_a_final_advertisement_is_heard(um_config: Config, stepper: Stepper) -> None:
    with context(um_config, stepper) as (a, _), context(um_config, stepper) as (b, sink):
        source = a.open_source(b"quotes.IBM")
        b.want_topic(b"quotes.IBM")
        stepper.until(lambda: len(sink.bound) == 1)
        stepper.run(50)
        for sqn in range(600):  # more than a turn takes in
            send(source, stepper, sqn)
        source.close(final=True, linger_ns=1_000_000_000)
        stepper.until(lambda: bool(sink.unbound))
        assert [sqn for _, sqn, _ in sink.fragments] == list(range(600))
        assert sink.unbound == [(sink.bound[0], True)]


def test_what_is_advertised(lbtrm_config: Config, stepper: Stepper) -> None:
    heard: list[lbmr.Tir] = []

    def on_packet(packet: lbmr.Packet, sender_ip: int, now_ns: int) -> None:
        assert sender_ip == 0x7F000001
        if isinstance(packet.body, lbmr.Queries):
            heard.extend(packet.body.tirs)

    with context(lbtrm_config, stepper) as (a, _), context(lbtrm_config, stepper) as (b, _):
        b.on_tr_packet = on_packet
        first = a.open_source(b"t.1")
        second = a.open_source(b"t.2")
        stepper.until(lambda: {tir.topic for tir in heard} == {b"t.1", b"t.2"})
        tir = heard[0]
        assert tir.options is not None
        assert [type(item) for item in tir.options.items] == [lbmr.OtidOption, lbmr.ExtendedFunctionality]
        assert tir.options.extended is not None
        assert (tir.options.extended.ip, tir.options.extended.port) == a.request_address
        with socket.create_connection(("127.0.0.1", a.request_address[1])):
            pass  # the advertised port is real
        assert second.topic_index == (first.topic_index + 1) & 0xFFFFFFFF
        named = otid.decode(first.otid)
        assert (named.address, named.topic_index, named.context_id) == (
            first.transport.address, first.topic_index, a.context_id,
        )  # fmt: skip
        assert named.transport_index == first.transport.transport_index


def test_a_proxy_source_repeats_what_it_is_given(lbtrm_config: Config, stepper: Stepper) -> None:
    given = (
        lbmr.Cost(3, 12),
        lbmr.DomainId(7),
        lbmr.ExtendedFunctionality(port=1234, ip=0x0A000001),
        ContextInstance(b"instance"),
    )
    with (
        context(lbtrm_config, stepper, source_type=DRO, domain_id=9) as (dro, _),
        context(lbtrm_config, stepper) as (b, sink),
    ):
        source = dro.open_source(b"t", otid=bytes(range(32)), tir_options=given)
        b.want_topic(b"t")
        stepper.until(lambda: bool(sink.bound))
        options = sink.bound[0].tir.options
        assert options is not None
        assert [type(item) for item in options.items] == [
                lbmr.Cost, lbmr.OtidOption, ContextInstance, lbmr.DomainId, lbmr.ExtendedFunctionality,
            ]  # fmt: skip
        assert options.otid == bytes(range(32))
        assert options.extended == given[2]
        assert sink.bound[0].is_from_dro
        assert b.domain_id == 9  # learnt from the DRO
        source.update((lbmr.Cost(3, 13), *given[1:]))
        cost = lbmr.Cost(3, 13)
        stepper.until(lambda: sink.bound[0].tir.options is not None and sink.bound[0].tir.options.cost == cost)
        assert sink.unbound == []


def test_a_source_that_the_owner_refuses_is_left_and_has_not_ended(lbtrm_config: Config, stepper: Stepper) -> None:
    with context(lbtrm_config, stepper) as (a, _), context(lbtrm_config, stepper) as (b, sink):
        a.open_source(b"t.1")
        b.want_topic(b"t.1")
        stepper.until(lambda: len(sink.bound) == 1)
        b.set_judge(lambda topic, session: False)
        assert sink.unbound == [(sink.bound[0], False)]
        assert groups(b.joined) == []


def test_wanting_is_counted(lbtrm_config: Config, stepper: Stepper) -> None:
    with context(lbtrm_config, stepper) as (a, _), context(lbtrm_config, stepper) as (b, sink):
        a.open_source(b"t.1")
        b.want_topic(b"t.1")
        b.want_topic(b"t.1")
        b.want_pattern(b"^t", 1, lambda topic: topic.startswith(b"t"))
        stepper.until(lambda: len(sink.bound) == 1)
        b.unwant_topic(b"t.1")
        b.unwant_pattern(b"^t", 1)
        assert sink.unbound == []
        b.unwant_topic(b"t.1")
        assert [(source.topic, ended) for source, ended in sink.unbound] == [(b"t.1", False)]
        assert groups(b.joined) == []
        b.want_topic(b"t.1")
        assert len(sink.bound) == 2  # known to the cache


def test_a_pattern_binds_what_matches(lbtrm_config: Config, stepper: Stepper) -> None:
    with context(lbtrm_config, stepper) as (a, _), context(lbtrm_config, stepper) as (b, sink):
        matched: list[bytes] = []
        b.on_topic_matched = lambda pattern, kind, topic: matched.append(topic)
        for topic in (b"t.1", b"u.1", b"t.2"):
            a.open_source(topic)
        b.want_pattern(b"^t", 1, lambda topic: topic.startswith(b"t"))
        stepper.until(lambda: len(sink.bound) == 2)
        stepper.run(200)
        assert sorted(source.topic for source in sink.bound) == [b"t.1", b"t.2"]
        assert sorted(matched) == [b"t.1", b"t.2"]
        assert b.matched_topics(b"^t", 1) == {b"t.1", b"t.2"}
        b.unwant_pattern(b"^t", 1)
        assert sorted(source.topic for source, _ in sink.unbound) == [b"t.1", b"t.2"]


def test_sources_share_sessions_and_leave_them_with_the_last(lbtrm_config: Config, stepper: Stepper) -> None:
    with context(lbtrm_config, stepper) as (a, _), context(lbtrm_config, stepper) as (b, sink):
        sources = [a.open_source(b"t.%d" % i) for i in range(4)]  # three groups
        assert sources[0].transport is not sources[1].transport
        shared = next(source for source in sources[:3] if source.transport is sources[3].transport)
        for source in (shared, sources[3]):
            b.want_topic(source.topic)
        stepper.until(lambda: len(sink.bound) == 2)
        assert sink.bound[0].transport is sink.bound[1].transport
        b.unwant_topic(shared.topic)
        assert len(groups(b.joined)) == 1
        b.unwant_topic(sources[3].topic)
        assert groups(b.joined) == []


def test_the_contexts_of_a_dro_do_not_hear_themselves(lbtrm_config: Config, stepper: Stepper) -> None:
    """An application's find their own sources."""
    with (
        context(lbtrm_config, stepper, source_type=lbmr.SenderType.DRO) as (a, sink_a),
        context(lbtrm_config, stepper) as (b, sink_b),
    ):
        a.open_source(b"t")
        b.open_source(b"u")
        for core in (a, b):
            core.want_topic(b"t")
            core.want_topic(b"u")
        stepper.until(lambda: len(sink_b.bound) == 2)
        stepper.run(500)
        assert [bound.topic for bound in sink_a.bound] == [b"u"]
        assert a.stats.tr_dgrams_dropped_own > 0


def test_malformed_datagrams_are_counted_by_reason(lbtrm_config: Config, stepper: Stepper) -> None:
    with context(lbtrm_config, stepper) as (b, sink), tr_socket(lbtrm_config) as sock:
        sock.send(b"\x08")
        sock.send(b"\x50\x00\x00\x00")
        sock.send(b"\x10\x01\x00\x00no terminator")
        for size in range(60):
            sock.send(random.Random(size).randbytes(size))
        stepper.until(lambda: b.resolution.channel.stats.tr_dgrams_rcved == 63)
        assert b.stats.malformed["packet"] >= 1
        assert b.stats.malformed["packet.version"] >= 1
        assert sum(b.stats.malformed.values()) == b.stats.tr_dgrams_dropped_malformed > 10
        assert sink.bound == []


def test_a_topic_that_cannot_be_sent_is_refused(lbtrm_config: Config, stepper: Stepper) -> None:
    with context(lbtrm_config, stepper) as (a, _):
        with pytest.raises(DecodeError):
            a.open_source(b"with\0nul")
        with pytest.raises(DecodeError):
            a.want_topic(b"with\0nul")
        with pytest.raises(DecodeError):
            a.want_pattern(b"with\0nul", 1, lambda topic: True)
        assert a.source_count == a.topic_count == 0


# ways to one source


def test_a_cheaper_way_is_taken_and_the_dearer_one_left(lbtrm_config: Config, stepper: Stepper) -> None:
    source_otid = bytes(range(32))
    with (
        context(lbtrm_config, stepper, source_type=DRO, domain_id=1) as (dear, _),
        context(lbtrm_config, stepper, source_type=DRO, domain_id=1) as (cheap, _),
        context(lbtrm_config, stepper) as (b, sink),
    ):
        b.want_topic(b"t")
        dear.open_source(b"t", otid=source_otid, tir_options=(lbmr.Cost(1, 5),))
        stepper.until(lambda: len(sink.bound) == 1)
        cheap.open_source(b"t", otid=source_otid, tir_options=(lbmr.Cost(1, 2),))
        stepper.until(lambda: len(sink.bound) == 2 and sink.unbound == [(sink.bound[0], True)])
        assert sink.current[0].source_id == cheap.context_instance


def test_the_other_way_is_taken_when_the_joined_one_ends(um_config: Config, stepper: Stepper) -> None:
    source_otid = bytes(range(32))
    with (
        context(um_config, stepper, source_type=DRO, domain_id=1) as (cheap, _),
        context(um_config, stepper, source_type=DRO, domain_id=1) as (dear, _),
        context(um_config, stepper) as (b, sink),
    ):
        b.want_topic(b"t")
        ending = cheap.open_source(b"t", otid=source_otid, tir_options=(lbmr.Cost(1, 2),))
        stepper.until(lambda: len(sink.bound) == 1)
        dear.open_source(b"t", otid=source_otid, tir_options=(lbmr.Cost(1, 5),))
        stepper.run(200)
        assert len(sink.bound) == 1
        ending.close(final=True, linger_ns=0)
        stepper.until(lambda: len(sink.bound) == 2 and bool(sink.unbound))
        assert [bound.source_id for bound in sink.current] == [dear.context_instance]
        assert sink.unbound == [(sink.bound[0], True)]


@pytest.mark.parametrize(
    ("cost", "same"), [((lbmr.Cost(1, 2),), (lbmr.Cost(1, 2),)), ((), (lbmr.Cost(0, 0),))], ids=["some", "none"]
)
def test_a_restarted_dro_replaces_its_old_session_at_once(
    cost: tuple[lbmr.TirOption, ...], same: tuple[lbmr.TirOption, ...], lbtrm_config: Config, stepper: Stepper
) -> None:
    source_otid = bytes(range(32))
    with context(lbtrm_config, stepper) as (b, sink):
        b.want_topic(b"t")
        with context(lbtrm_config, stepper, source_type=DRO, domain_id=1) as (before, _):
            before.open_source(b"t", otid=source_otid, tir_options=cost)
            stepper.until(lambda: len(sink.bound) == 1)
        stepper.run(50)
        with context(lbtrm_config, stepper, source_type=DRO, domain_id=1) as (after, _):
            after.open_source(b"t", otid=source_otid, tir_options=same)
            stepper.until(lambda: len(sink.bound) == 2, limit_ms=500)
            assert sink.unbound == [(sink.bound[0], True)]
            assert sink.current[0].source_id == after.context_instance
            assert b.stats.sources_replaced == 1


def test_two_dros_on_one_host_do_not_replace_each_other_for_ever(lbtrm_config: Config, stepper: Stepper) -> None:
    source_otid = bytes(range(32))
    with (
        context(lbtrm_config, stepper) as (b, sink),
        context(lbtrm_config, stepper, source_type=DRO, domain_id=1) as (one, _),
        context(lbtrm_config, stepper, source_type=DRO, domain_id=1) as (two, _),
    ):
        b.want_topic(b"t")
        one.open_source(b"t", otid=source_otid, tir_options=(lbmr.Cost(1, 2),))
        stepper.until(lambda: len(sink.bound) == 1)
        two.open_source(b"t", otid=source_otid, tir_options=(lbmr.Cost(1, 2),))
        stepper.run(5000)
        assert len(sink.bound) <= 2


def test_a_silent_session_is_left_for_another_way(lbtrm_config: Config, stepper: Stepper) -> None:
    source_otid = bytes(range(32))
    with (
        context(lbtrm_config, stepper) as (b, sink),
        context(lbtrm_config, stepper, source_type=DRO, domain_id=1) as (second, _),
    ):
        b.want_topic(b"t")
        second.open_source(b"other")  # so that it is the older of the two
        stepper.run(100)
        with context(lbtrm_config, stepper, source_type=DRO, domain_id=1) as (first, _):
            source = first.open_source(b"t", otid=source_otid, tir_options=(lbmr.Cost(1, 2),))
            stepper.until(lambda: len(sink.bound) == 1)
            send(source, stepper, 0)
            stepper.run(100)
        second.open_source(b"t", otid=source_otid, tir_options=(lbmr.Cost(1, 3),))
        stepper.run(9_000, 50)
        assert len(sink.bound) == 1
        stepper.run(4_000, 50)
        assert len(sink.bound) == 2
        assert sink.unbound == [(sink.bound[0], True)]


# sessions that fail


def test_a_tcp_session_that_cannot_be_connected_is_tried_once_a_second(tcp_config: Config, stepper: Stepper) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with context(tcp_config, stepper) as (b, sink), tr_socket(tcp_config) as sock:
        b.want_topic(b"t")
        address = TcpAddress(0x7F000001, port, 77)
        tir = lbmr.Tir(b"t", address, 60, 5, tir_options(otid=otid.encode(address, 5, 1, 1)))
        packet = lbmr.Packet(1, lbmr.standard_options(b"stranger", 0, 0), lbmr.Queries((), (tir,)))
        for _ in range(30):
            sock.send(lbmr.encode(packet))
            stepper.run(100)
        assert 2 <= len(sink.bound) <= 4
        assert all(not source.transport.was_connected for source, _ in sink.unbound)


def test_sources_on_unknown_transports_are_ignored(lbtrm_config: Config, stepper: Stepper) -> None:
    with context(lbtrm_config, stepper) as (b, sink), tr_socket(lbtrm_config) as sock:
        b.want_topic(b"t")
        tir = lbmr.Tir(b"t", IpcAddress(1, 2, 20001), 60, 5, tir_options(otid=bytes(32)))
        packet = lbmr.Packet(1, lbmr.standard_options(b"stranger", 0, 0), lbmr.Queries((), (tir,)))
        sock.send(lbmr.encode(packet))
        stepper.until(lambda: b.stats.sessions_unsupported == 1)
        assert sink.bound == []


def test_a_session_ends_after_its_activity_timeout(stepper: Stepper) -> None:
    config = private_config("lbtrm", receiver__transport_lbtrm_activity_timeout=5000)
    with context(config, stepper) as (b, sink):
        b.want_topic(b"t")
        with context(config, stepper) as (a, _):
            source = a.open_source(b"t")
            stepper.until(lambda: bool(sink.bound))
            send(source, stepper, 0)
            stepper.run(100)
        stepper.run(4_000, 50)
        assert sink.unbound == []
        stepper.run(2_000, 50)
        assert sink.unbound == [(sink.bound[0], True)]
        assert groups(b.joined) == []


def test_what_cannot_be_bound_names_the_option(stepper: Stepper) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        config = private_config("tcp", context__request_tcp_port=port)
        with pytest.raises(ResourceError, match="request_tcp_port"), context(config, stepper):
            pass
        config = private_config("tcp", source__transport_tcp_port=port)
        with context(config, stepper) as (a, _), pytest.raises(ResourceError, match="transport_tcp_port"):
            a.open_source(b"t")
    config = private_config("lbtrm", source__transport_lbtrm_multicast_address="239.1.1.1")
    unsupported = private_config("lbtru")
    with context(unsupported, stepper) as (a, _), pytest.raises(ResourceError, match="lbtru"):
        a.open_source(b"t")
    without = private_config("tcp", context__request_tcp_bind_request_port=0)
    with context(without, stepper) as (a, _):
        assert a.request_address == (0, 0)
    assert config


def test_closing_twice_and_using_nothing_afterwards(um_config: Config, stepper: Stepper) -> None:
    with context(um_config, stepper) as (a, _), context(um_config, stepper) as (b, sink):
        a.open_source(b"t")
        b.want_topic(b"t")
        stepper.until(lambda: bool(sink.bound))
        b.close()
        b.close()
        a.close()
        stepper.run(1000)
        assert sink.unbound == []
        assert b.bound_sources == []


def test_a_context_that_closes_advertises_no_more(lbtrm_config: Config, stepper: Stepper) -> None:
    with context(lbtrm_config, stepper) as (a, _), context(lbtrm_config, stepper) as (b, _):
        heard: list[lbmr.Packet] = []
        b.on_tr_packet = lambda packet, _ip, _now: heard.append(packet)
        a.open_source(b"t")
        stepper.until(lambda: bool(heard))
        heard.clear()
        stepper.clock.time_ns += ms(20)  # an advertisement is due
        a.close()
        stepper.settle()
        assert heard == []


def test_nothing_of_a_closed_context_is_due(lbtrm_config: Config, stepper: Stepper) -> None:
    with context(lbtrm_config, stepper) as (a, _):
        a.want_topic(b"t")
        stepper.run(10_000, 100)
        a.want_topic(b"u")  # is asked for again sooner
        a.close()
        assert stepper.loop.next_deadline() is None


def test_a_fault_of_the_tr_socket_is_told_and_the_next_packet_is_heard(
    lbtrm_config: Config, stepper: Stepper, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with context(lbtrm_config, stepper) as (a, _), tr_socket(lbtrm_config) as sock:
        heard: list[lbmr.Body] = []
        a.on_tr_packet = lambda packet, _ip, _now: heard.append(packet.body)
        packet = lbmr.encode(lbmr.Packet(1, lbmr.standard_options(b"stranger", 0, 0), lbmr.Queries((b"t",))))
        with monkeypatch.context() as patch:
            patch.setattr(mmsg, "_recvmmsg", no_buffer_space)
            sock.send(packet)
            stepper.loop.run_once(0)
        assert [vars(record).get("error") for record in caplog.records] == [os.strerror(errno.ENOBUFS)]
        stepper.until(lambda: bool(heard))


def test_what_is_wanted_at_once_goes_out_over_several_turns(stepper: Stepper) -> None:
    unlimited = {f"context__resolver_initial_{kind}": 0 for kind in ("queries_per_second", "query_bps")}
    topics = {b"topic %d" % number for number in range(3 * DRAIN_MAX)}
    with context(private_config("tcp", **unlimited), stepper) as (core, _):
        asked: list[int] = []
        core.resolution.channel.send = lambda datagrams: asked.append(  # type: ignore[method-assign]  # instead of the socket
            sum(len(body.tqrs) for d in datagrams if isinstance(body := lbmr.decode(d).body, lbmr.Queries))
        )
        with core.together():
            for topic in topics:
                core.want_topic(topic)
        while stepper.loop.run_once(0):
            pass
        assert [count for count in asked if count] == [DRAIN_MAX] * 3
