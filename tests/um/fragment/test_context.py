"""The host of one engine: what it makes of a user's calls and of what the engine asks for. On no real network."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from dro.clock import ms
from dro.config.um.options import UmOptions
from dro.errors import DecodeError, ResourceError
from dro.log.events import LogEvent
from dro.proto.resolver.record_queue import DRAIN_MAX
from dro.timers import DUE_MAX
from dro.um.fragment.context import FragmentContext
from dro.um.fragment.own_source import FragmentSource
from dro.um.fragment.resolution import ContextSettings
from dro.um.message.client_config import Config
from dro.wire import otid
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmr import packet as lbmr
from dro.wire.source_string import IpcAddress, LbtrmAddress, RdmaAddress, SmxAddress, TransportAddress, format_source
from tests.builders.tir_options import tir_options
from tests.fakes.simulated_network import SimulatedNetwork, SimulatedReceivers
from tests.fakes.um_contexts import RecordingSink, Stepper, private_config

pytestmark = pytest.mark.usefixtures("network")

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
        assert b.joined.sessions() == []
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
        assert len(b.joined.sessions()) == 1
        b.unwant_topic(sources[3].topic)
        assert b.joined.sessions() == []


def test_a_topic_that_cannot_be_sent_is_refused(lbtrm_config: Config, stepper: Stepper) -> None:
    with context(lbtrm_config, stepper) as (a, _):
        with pytest.raises(DecodeError):
            a.open_source(b"with\0nul")
        with pytest.raises(DecodeError):
            a.want_topic(b"with\0nul")
        with pytest.raises(DecodeError):
            a.want_pattern(b"with\0nul", 1, lambda topic: True)
        assert a.source_count == a.topic_count == 0


# the end


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
        stepper.settle()
        assert stepper.loop.next_deadline() is None


def test_what_is_wanted_at_once_goes_out_over_several_turns(stepper: Stepper) -> None:
    unlimited = {f"context__resolver_initial_{kind}": 0 for kind in ("queries_per_second", "query_bps")}
    topics = {b"topic %d" % number for number in range(3 * DRAIN_MAX)}
    with context(private_config("tcp", **unlimited), stepper) as (core, _):
        asked: list[int] = []
        core.resolution.channel.send = lambda datagrams: asked.append(  # type: ignore[method-assign]  # instead of the network
            sum(len(body.tqrs) for d in datagrams if isinstance(body := lbmr.decode(d).body, lbmr.Queries))
        )
        with core.together():
            for topic in topics:
                core.want_topic(topic)
        while stepper.loop.run_once(0):
            pass
        assert [count for count in asked if count] == [DRAIN_MAX] * 3


def test_what_is_advertised(um_config: Config, stepper: Stepper) -> None:
    with context(um_config, stepper) as (a, _), context(um_config, stepper) as (b, sink):
        first, second = a.open_source(b"t.1"), a.open_source(b"t.2")
        for source in (first, second):
            b.want_topic(source.topic)
        stepper.until(lambda: len(sink.bound) == 2)
        options = sink.bound[0].tir.options
        assert options is not None
        assert [type(item) for item in options.items] == [lbmr.OtidOption, lbmr.ExtendedFunctionality]
        assert options.extended is not None
        assert (options.extended.ip, options.extended.port) == a.request_address
        assert second.topic_index == (first.topic_index + 1) & 0xFFFFFFFF
        named = otid.decode(first.otid)
        assert (named.address, named.topic_index, named.context_id) == (
            first.transport.address, first.topic_index, a.context_id,
        )  # fmt: skip
        assert named.transport_index == first.transport.transport_index


def test_the_sources_of_a_session_are_known_to_it_while_they_are_bound(um_config: Config, stepper: Stepper) -> None:
    with context(um_config, stepper) as (a, _), context(um_config, stepper) as (b, sink):
        source = a.open_source(b"t")
        b.want_topic(b"t")
        stepper.until(lambda: bool(sink.bound))
        (session,) = b.joined.sessions()
        assert session.sources == {source.topic_index: sink.bound[0]}
        stepper.run(20)
        for sqn in range(3):
            send(source, stepper, sqn)
        stepper.settle()
        assert [sqn for _, sqn, _ in sink.fragments] == [0, 1, 2]
        assert sink.began == [session]
        b.unwant_topic(b"t")
        assert (session.sources, sink.unbound, b.joined.sessions()) == ({}, [(sink.bound[0], False)], [])


def test_a_source_may_leave_its_index_to_another(stepper: Stepper) -> None:
    """The sink may do as it likes with a session that is handed to it."""
    config = private_config("tcp", context__transport_tcp_maximum_ports=1)
    with context(config, stepper) as (a, _), context(config, stepper) as (b, sink):
        for topic in (b"t", b"another"):
            a.open_source(topic)
            b.want_topic(topic)
        stepper.until(lambda: len(sink.bound) == 2)
        (session,) = b.joined.sessions()
        other = replace(sink.bound[0], topic=b"u")
        session.sources[other.topic_index] = other
        b.unwant_topic(sink.bound[0].topic)
        assert session.sources[other.topic_index] is other
        b.unwant_topic(sink.bound[1].topic)
        assert b.joined.sessions() == []


def test_a_session_that_ends_by_itself_ends_its_sources(
    um_config: Config, stepper: Stepper, network: SimulatedNetwork
) -> None:
    with context(um_config, stepper) as (a, _), context(um_config, stepper) as (b, sink):
        a.open_source(b"t")
        b.want_topic(b"t")
        stepper.until(lambda: bool(sink.bound))
        network.joined[0].end()
        stepper.settle()
        assert sink.unbound == [(sink.bound[0], True)]
        stepper.until(lambda: len(sink.bound) == 2)
        assert len(b.joined.sessions()) == 1


def test_a_session_is_joined_with_the_options_of_the_first_who_wants_its_topic(
    tcp_config: Config, stepper: Stepper
) -> None:
    own = UmOptions().with_("receiver", "resolver_query_minimum_initial_interval", 70)
    with context(tcp_config, stepper) as (a, _), context(tcp_config, stepper) as (b, sink):
        sessions = b.joined.kinds["tcp"]
        assert isinstance(sessions, SimulatedReceivers)
        b.want_topic(b"t", own)
        b.want_topic(b"t")
        b.want_topic(b"u")
        b.want_topic(b"v", UmOptions())
        b.want_pattern(b"^w", 1, lambda topic: topic == b"w", own)
        sources = [a.open_source(topic) for topic in (b"t", b"u", b"v", b"w")]
        stepper.until(lambda: len(sink.bound) == 4)
        options = [sessions.options[source.transport.address] for source in sources]
        assert options[0] == b.options.merged(own)
        assert all(given is b.options for given in options[1:]), "those of a pattern are for its queries alone"
        for _ in range(2):
            b.unwant_topic(b"t")
        b.want_topic(b"t")
        assert sessions.options[sources[0].transport.address] is b.options, "the first one is gone"


def test_a_source_that_cannot_be_advertised_gives_its_session_back(um_config: Config, stepper: Stepper) -> None:
    with context(um_config, stepper) as (a, _):
        for wrong in ({"topic": b"with\0nul"}, {"topic": b"t", "tir_options": (lbmr.Cost(1 << 40, 1),)}):
            with pytest.raises(DecodeError):
                a.open_source(**wrong)
        assert (a.source_count, a.pools.senders()) == (0, [])
        source = a.open_source(b"t")
        assert a.pools.senders() == [source.transport]
        source.close(final=False, linger_ns=0)
        assert a.pools.senders() == []


def test_silent_sources_are_advertised_one_by_one(um_config: Config, stepper: Stepper) -> None:
    with context(um_config, stepper) as (a, _), context(um_config, stepper) as (b, sink):
        for topic in (b"t.1", b"t.2"):
            a.open_source(topic, is_silent=True)
            b.want_topic(topic)
        stepper.run(500)
        assert (sink.bound, a.own.has_silent) == ([], True)
        for count in (1, 2):
            assert a.own.advertise_silent() is None
            stepper.run(100)
            assert len(sink.bound) == count
        assert (a.own.has_silent, a.own.advertise_silent()) == (False, None)


def test_the_many_topics_of_a_pattern_are_left_over_several_turns_without_a_wait(
    lbtrm_config: Config, stepper: Stepper
) -> None:
    with context(lbtrm_config, stepper) as (a, _), context(lbtrm_config, stepper) as (b, sink):
        count = 2 * DUE_MAX + 10
        with a.together():
            for number in range(count):
                a.open_source(b"t.%d" % number)
        b.want_pattern(b"^t", 1, lambda topic: topic.startswith(b"t"))
        stepper.until(lambda: len(sink.bound) == count)
        b.unwant_pattern(b"^t", 1)
        assert len(sink.unbound) == DUE_MAX
        stepper.settle()
        assert (len(sink.unbound), b.joined.sessions()) == (count, [])


# what the host tells in the log and counts


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[object, dict[str, object]]]:
    return [
        (r.msg, {k: v for k, v in vars(r).items() if k in ("source", "error", "topic", "reason")})
        for r in caplog.records
    ]


def advertise(network: SimulatedNetwork, *tirs: lbmr.Tir) -> None:
    packet = lbmr.Packet(1, lbmr.standard_options(b"stranger", 0, 0), lbmr.Queries((), tirs))
    network.say(lbmr.encode(packet))


def tir_of(address: TransportAddress, topic: bytes = b"t", index: int = 5) -> lbmr.Tir:
    return lbmr.Tir(topic, address, 60, index, tir_options(otid=topic.ljust(32)))


def test_a_session_that_cannot_be_joined_is_told_and_tried_again(
    lbtrm_config: Config, stepper: Stepper, network: SimulatedNetwork,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def fail(*_: object) -> None:
        raise ResourceError("no socket", remedy="buy one")

    address = LbtrmAddress(0x7F000001, 0xEFC90009, 5, 14400, 14390)
    with context(lbtrm_config, stepper) as (b, sink):
        b.want_topic(b"t")
        with monkeypatch.context() as patch:
            patch.setattr(b.joined, "join", fail)
            advertise(network, tir_of(address))
            stepper.settle()
        assert (b.stats.sessions_failed, sink.bound) == (1, [])
        name = format_source(address, 5)
        assert lines(caplog) == [(LogEvent.SESSION_NOT_JOINED, {"source": name, "error": "no socket; buy one"})]
        stepper.run(2000)
        advertise(network, tir_of(address))
        stepper.until(lambda: bool(sink.bound))


def test_sources_on_unknown_transports_and_with_a_taken_index_are_told(
    lbtrm_config: Config, stepper: Stepper, network: SimulatedNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    known, unknown = LbtrmAddress(0x7F000001, 0xEFC90009, 5, 14400, 14390), RdmaAddress(1, 2, 3)
    memory = SmxAddress(1, 2, 3)
    reason = "the layout of its memory is not public, and none of our applications sends by it"
    with context(lbtrm_config, stepper) as (b, sink):
        for topic in (b"s", b"t", b"u", b"v"):
            b.want_topic(topic)
        advertise(network, tir_of(unknown, b"s"), tir_of(IpcAddress(1, 2, 3), b"s"))
        stepper.settle()
        assert (b.stats.sessions_unsupported, b.stats.sessions_failed, sink.bound) == (1, 0, [])
        advertise(network, tir_of(memory, b"v"))
        stepper.settle()
        advertise(network, tir_of(known), tir_of(known, b"u"))
        stepper.settle()
        assert [source.topic for source in sink.bound] == [b"t"]
        told = [line for line in lines(caplog) if line[0] is not LogEvent.IPC_ELSEWHERE]  # once in a process
        assert told == [
            (LogEvent.SOURCE_TRANSPORT, {"source": format_source(unknown, 5)}),
            (LogEvent.SOURCE_TRANSPORT, {"source": format_source(memory, 5), "reason": reason}),
            (LogEvent.SOURCE_INDEX, {"source": format_source(known, 5)}),
        ]


def test_a_proxy_that_was_left_for_a_restarted_dro_is_told_and_counted(
    um_config: Config, stepper: Stepper, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "dro.um.fragment.resolution")
    given = {"otid": bytes(range(32)), "tir_options": (lbmr.Cost(1, 2),)}
    with context(um_config, stepper) as (b, sink):
        b.want_topic(b"t")
        with context(um_config, stepper, source_type=DRO, domain_id=1) as (before, _):
            old = before.open_source(b"t", **given)  # type: ignore[arg-type]  # as there
            stepper.until(lambda: len(sink.bound) == 1)
            before.resolution.close()  # its session goes on
            stepper.run(50)
            with context(um_config, stepper, source_type=DRO, domain_id=1) as (after, _):
                after.open_source(b"t", **given)  # type: ignore[arg-type]  # as there
                stepper.until(lambda: len(sink.bound) == 2, limit_ms=500)
                assert sink.unbound == [(sink.bound[0], True)]
                assert sink.current[0].source_id == after.context_instance
                assert b.stats.sources_replaced == 1
    told = (LogEvent.PROXY_SOURCE_LEFT, {"topic": b"t", "source": old.source_string})
    assert told in lines(caplog)
