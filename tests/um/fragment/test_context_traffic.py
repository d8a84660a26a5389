"""What a context does not look at, and what it says in one datagram."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from dro.clock import s
from dro.config.um.options import UmOptions
from dro.log.events import LogEvent
from dro.proto.context.sources import BoundSource
from dro.transport.session import SessionCounts
from dro.um.fragment.context import FragmentContext
from dro.um.fragment.resolution import ContextSettings
from dro.um.message.client_config import Config
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.options import FINAL_COST
from dro.wire.source_string import LbtrmAddress, TcpAddress
from tests.builders.tir_options import tir_options
from tests.fakes.simulated_network import SimulatedNetwork
from tests.fakes.um_contexts import RecordingSink, Stepper

TIR = lbmr.Tir(b"t", TcpAddress(0x7F000001, 14371, 1), lbmr.TIR_TTL, 7, lbmr.TirOptions((lbmr.OtidOption(bytes(32)),)))
GROUP = LbtrmAddress(0x7F000001, 0xEFC90009, 5, 14499, 14498)
USUAL = ContextSettings()
STRANGER = lbmr.standard_options(b"stranger", 0, 0)


class Wire:
    """Contexts of one TRD on a simulated network, and a stranger in its channel."""

    def __init__(self, config: Config, stepper: Stepper, network: SimulatedNetwork, stack: ExitStack) -> None:
        self._config = config
        self._stack = stack
        self.stepper = stepper
        self.network = network

    def context(self, settings: ContextSettings = USUAL, sink: RecordingSink | None = None) -> FragmentContext:
        core = FragmentContext(
            self._config.options,
            self.stepper.loop,
            sink=sink or RecordingSink(),
            rng=random.Random(),
            settings=settings,
        )
        self._stack.callback(core.close)
        return core

    def say(self, body: lbmr.Body, options: lbmr.PacketOptions = STRANGER) -> None:
        self.say_raw(lbmr.encode(lbmr.Packet(lbmr.VERSION, options, body)))

    def say_raw(self, datagram: bytes) -> None:
        self.network.say(datagram)


@pytest.fixture
def wire(um_config: Config, stepper: Stepper, network: SimulatedNetwork) -> Iterator[Wire]:
    with ExitStack() as stack:
        yield Wire(um_config, stepper, network, stack)


def heard_by(core: FragmentContext) -> list[lbmr.Body]:
    bodies: list[lbmr.Body] = []
    core.on_tr_packet = lambda packet, _ip, _now: bodies.append(packet.body)
    return bodies


def test_what_is_wanted_together_is_asked_for_together(wire: Wire) -> None:
    core, other = wire.context(), wire.context()
    heard = heard_by(other)
    with core.together():
        for n in range(20):
            core.want_topic(b"topic.%d" % n)
        with core.together():
            core.want_topic(b"another")
    wire.stepper.until(lambda: bool(heard))
    assert isinstance(heard[0], lbmr.Queries)
    assert len(heard[0].tqrs) == 21


# what a context tells, counts and logs


def lines(caplog: pytest.LogCaptureFixture, *names: str) -> list[tuple[object, ...]]:
    return [(r.msg, *(vars(r)[name] for name in names if name in vars(r))) for r in caplog.records]


def dro(domain_id: int, source_id: bytes = b"some dro") -> lbmr.PacketOptions:
    return lbmr.standard_options(source_id, lbmr.SenderType.DRO, domain_id)


def tir(topic: bytes, index: int = 7, otid: bytes = bytes(32), cost: lbmr.Cost | None = None) -> lbmr.Tir:
    return replace(TIR, topic=topic, transport=GROUP, topic_index=index, options=tir_options(otid=otid, cost=cost))


def test_a_context_counts_its_topics_sources_and_sessions(wire: Wire) -> None:
    sink = RecordingSink()
    core = wire.context(ContextSettings(name="east"), sink)
    assert (core.name, core.domain_id, core.is_closed) == ("east", 0, False)
    assert (core.source_count, core.topic_count, core.unresolved_topic_count, core.finals_pending) == (0, 0, 0, 0)
    source = core.open_source(b"own")
    core.want_topic(b"own")
    core.want_topic(b"nobody")
    core.want_pattern(b"^o", 1, lambda topic: topic.startswith(b"o"))
    wire.stepper.until(lambda: bool(sink.bound))
    wire.stepper.run(100)
    assert (core.source_count, core.topic_count, core.unresolved_topic_count) == (1, 2, 1)
    (bound,) = core.bound_sources
    key = b"own", source.transport.address, source.topic_index
    assert core.bound_source(key) is bound is sink.bound[0]
    assert core.bound_source((b"own", source.transport.address, 0)) is None
    assert core.matched_topics(b"^o", 1) == {b"own"}
    assert core.counts() == SessionCounts()
    source.close(final=True, linger_ns=0)
    assert (core.source_count, core.finals_pending) == (0, 1)
    wire.stepper.run(2000)
    assert (core.finals_pending, core.unresolved_topic_count) == (0, 2)
    core.close()
    assert core.is_closed


def test_a_malformed_datagram_is_counted_by_what_is_wrong_and_told_with_its_sender(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    core = wire.context()
    heard = heard_by(core)
    wire.say_raw(b"\x08")
    wire.say_raw(b"\x50\x00\x00\x00")
    wire.say_raw(b"\x09")
    wire.say(lbmr.Queries(tqrs=(b"t",)))
    wire.stepper.until(lambda: bool(heard))
    assert core.stats.malformed == {"packet": 2, "packet.version": 1}
    assert (core.stats.tr_dgrams_dropped_malformed, core.counts()) == (3, SessionCounts(bad=3))
    told = lines(caplog, "from", "dropped")
    assert told == [(LogEvent.TR_MALFORMED, "127.0.0.1", n) for n in (1, 2, 3)]
    assert str(vars(caplog.records[1])["error"]).startswith("packet.version")


@pytest.mark.parametrize("kinds", [255, 256])
def test_kinds_of_malformed_datagrams_are_bounded(wire: Wire, kinds: int) -> None:
    core = wire.context()
    core.stats.malformed.update({f"kind {number}": 1 for number in range(kinds)})
    for datagram in (b"\x08", b"\x50\x00\x00\x00", b"\x08"):
        wire.say_raw(datagram)
    wire.stepper.until(lambda: core.stats.tr_dgrams_dropped_malformed == 3)
    new = {where: count for where, count in core.stats.malformed.items() if not where.startswith("kind")}
    assert new == ({"packet": 2, "other": 1} if kinds == 255 else {"other": 3})


def test_the_domain_is_learnt_from_a_dro_and_told_on_every_packet_from_then_on(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    core, other = wire.context(ContextSettings(name="east")), wire.context()
    own: list[int | None] = []
    other.on_tr_packet = lambda packet, _ip, _now: own.append(packet.options.local_domain if packet.options else None)
    wire.say(lbmr.Queries(tqrs=(b"t",)), lbmr.standard_options(b"stranger", 0, 0))
    core.want_topic(b"before")
    wire.stepper.until(lambda: len(own) >= 2)
    wire.say(lbmr.Queries(), dro(7))
    wire.stepper.until(lambda: core.domain_id == 7)
    assert core.packet_options.local_domain == 7
    assert (LogEvent.DOMAIN_DISCOVERED, "east", 7) in lines(caplog, "context", "domain_id")
    own.clear()
    dropped = core.stats.tr_dgrams_dropped_own
    core.want_topic(b"after")
    wire.stepper.until(lambda: bool(own))
    assert set(own) == {7}
    assert core.stats.tr_dgrams_dropped_own > dropped, "what comes back is known for its own"


def test_packets_of_another_domain_are_dropped_and_told(wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
    sink = RecordingSink()
    core = wire.context(ContextSettings(domain_id=9), sink)
    heard = heard_by(core)
    core.want_topic(b"t")
    wire.say(lbmr.Queries(tirs=(TIR,)), dro(8))
    wire.say(lbmr.Queries(tqrs=(b"marker",)), lbmr.standard_options(b"stranger", 0, 0))
    wire.say(lbmr.Queries(tqrs=(b"marker",)), lbmr.standard_options(b"stranger", 0, 9))
    wire.stepper.until(lambda: len(heard) == 2)
    assert (core.stats.tr_dgrams_dropped_domain, sink.bound, core.domain_id) == (1, [], 9)
    assert lines(caplog, "from", "domain_id", "own") == [(LogEvent.FOREIGN_DOMAIN, "127.0.0.1", 8, 9)]


def test_domain_routes_are_handed_on(wire: Wire) -> None:
    core = wire.context(ContextSettings(domain_id=9))
    routes: list[tuple[tuple[int, ...], int, int]] = []
    core.on_domain_route = lambda domains, ip, port: routes.append((domains, ip, port))
    wire.say(lbmr.RemoteDomainRoute(0x0A000001, 14380, 0, (1, 2)), dro(9))
    wire.stepper.until(lambda: bool(routes))
    assert routes == [((1, 2), 0x0A000001, 14380)]


def test_queries_by_pattern_are_answered_and_a_bad_pattern_is_told_once(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    core, other = wire.context(), wire.context()
    core.open_source(b"quotes.IBM")
    wire.stepper.run(10_000, 100)
    heard = heard_by(other)
    for _ in range(2):
        wire.say(lbmr.WildcardQueries((lbmr.WildcardTqr(1, b"("), lbmr.WildcardTqr(1, b"^trades"))))
    wire.stepper.run(100)
    assert not any(isinstance(body, lbmr.Queries) and body.tirs for body in heard)
    assert lines(caplog, "pattern") == [(LogEvent.QUERY_PATTERN_BAD, b"(")]
    wire.say(lbmr.WildcardQueries((lbmr.WildcardTqr(1, b"^quotes"),)))
    wire.stepper.run(100)
    assert [tir.topic for body in heard if isinstance(body, lbmr.Queries) for tir in body.tirs] == [b"quotes.IBM"]


def test_a_search_that_was_given_up_is_told(wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
    wire.context().resolution.on_pattern_limit(b"(a+)+$")
    assert lines(caplog, "pattern") == [(LogEvent.PATTERN_LIMIT, b"(a+)+$")]


def test_other_attributes_of_a_source_are_told_and_another_otid_is_not_believed(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    sink = RecordingSink()
    core = wire.context(ContextSettings(domain_id=9), sink)
    changed: list[BoundSource[Any]] = []
    core.on_source_changed = changed.append
    core.want_topic(b"t")
    wire.say(lbmr.Queries(tirs=(tir(b"t", cost=lbmr.Cost(1, 5)),)), dro(9))
    wire.stepper.until(lambda: bool(sink.bound))
    wire.say(lbmr.Queries(tirs=(tir(b"t", cost=lbmr.Cost(1, 6)),)), dro(9))
    wire.stepper.until(lambda: bool(changed))
    assert changed == sink.bound
    assert changed[0].tir.options == tir_options(otid=bytes(32), cost=lbmr.Cost(1, 6))
    wire.say(lbmr.Queries(tirs=(tir(b"t", otid=bytes(31) + b"x", cost=lbmr.Cost(1, 6)),)), dro(9))
    wire.say(lbmr.Queries(tirs=(tir(b"u"),)), dro(9))
    wire.stepper.run(100)
    assert (LogEvent.SOURCE_OTHER_OTID, b"t") in lines(caplog, "topic")
    assert (len(changed), len(sink.bound)) == (1, 1)


def test_a_topic_that_only_a_pattern_wanted_is_left_when_its_source_stays_away(wire: Wire) -> None:
    sink = RecordingSink()
    core = wire.context(sink=sink)
    told: list[tuple[object, ...]] = []
    core.on_topic_matched = lambda *what: told.append(("matched", *what))
    core.on_topic_unmatched = lambda *what: told.append(("unmatched", *what))
    core.want_pattern(b"^t", 1, lambda topic: topic.startswith(b"t"))
    wire.say(lbmr.Queries(tirs=(tir(b"t.1", cost=lbmr.Cost(1, 0)),)))
    wire.stepper.until(lambda: bool(sink.bound))
    wire.say(lbmr.Queries(tirs=(tir(b"t.1", cost=lbmr.Cost(1, FINAL_COST)),)))
    wire.stepper.until(lambda: len(told) == 2)
    assert told == [("matched", b"^t", 1, b"t.1"), ("unmatched", b"^t", 1, b"t.1")]
    assert (core.topic_count, core.bound_sources, core.matched_topics(b"^t", 1)) == (0, [], frozenset())


def test_queries_that_nobody_answers_are_told(wire: Wire) -> None:
    core = wire.context()
    told: list[bytes] = []
    core.on_no_source = told.append
    options = UmOptions().with_("receiver", "resolution_no_source_notification_threshold", 2)
    core.want_topic(b"t", options)
    wire.stepper.until(lambda: bool(told))
    assert told == [b"t"]


@pytest.mark.parametrize("is_heard", [True, False])
def test_a_proxy_that_is_idle_lives_as_long_as_its_dro_says_anything(wire: Wire, is_heard: bool) -> None:
    """Its TCP session says nothing, but the DRO asks for topics."""
    sink = RecordingSink()
    core = wire.context(ContextSettings(domain_id=9), sink)
    core.want_topic(b"t")
    proxy = replace(tir(b"t", cost=lbmr.Cost(1, 5)), transport=TIR.transport)
    wire.network.strangers.add(proxy.transport)
    wire.say(lbmr.Queries(tirs=(proxy,)), dro(9))
    wire.stepper.until(lambda: bool(sink.bound))
    wire.stepper.clock.time_ns += s(12)
    if is_heard:
        wire.say(lbmr.Queries(tqrs=(b"x",)), dro(9))
        wire.stepper.settle()
    another = tir(b"t", 8, cost=lbmr.Cost(1, 6))
    wire.say(lbmr.Queries(tirs=(another,)), lbmr.standard_options(b"another ", 0, 9))
    wire.stepper.settle()
    assert core.stats.sources_replaced == (not is_heard)


def test_what_is_sent_by_hand_goes_out_until_the_context_is_closed(wire: Wire) -> None:
    core, other = wire.context(), wire.context()
    heard = heard_by(other)
    datagram = lbmr.encode(lbmr.Packet(lbmr.VERSION, core.packet_options, lbmr.Queries((b"by hand",))))
    core.resolution.send([datagram, datagram])
    wire.stepper.until(lambda: len(heard) == 2)
    assert heard == [lbmr.Queries((b"by hand",))] * 2
    core.close()
    core.resolution.send([datagram])
    wire.stepper.run(100)
    assert len(heard) == 2


def test_a_judge_is_heard_at_once_and_again_when_it_changes(wire: Wire) -> None:
    sink = RecordingSink()
    core = wire.context(sink=sink)
    core.open_source(b"t")
    core.set_judge(lambda topic, session: False)
    core.want_topic(b"t")
    wire.stepper.run(500)
    assert sink.bound == []
    core.set_judge(None)
    assert [source.topic for source in sink.bound] == [b"t"]
    core.unwant_topic(b"t")
    assert len(sink.unbound) == 1


def test_what_follows_in_a_batch_is_not_looked_at_once_the_context_is_closed(wire: Wire) -> None:
    core = wire.context()
    heard: list[lbmr.Body] = []

    def close(packet: lbmr.Packet, _ip: int, _now_ns: int) -> None:
        heard.append(packet.body)
        core.close()

    core.on_tr_packet = close
    datagrams = [
        (lbmr.encode(lbmr.Packet(lbmr.VERSION, STRANGER, lbmr.Queries((name,)))), 0x7F000001) for name in (b"a", b"b")
    ]
    core.resolution._on_datagrams(iter(datagrams), wire.stepper.loop.now_ns())
    assert heard == [lbmr.Queries((b"a",))]
    core.resolution.pump()
    core.resolution.send([b"nothing"])


def test_known_sources_are_rejoined_and_left_unless_somebody_wants_them(wire: Wire) -> None:
    sink = RecordingSink()
    core = wire.context(sink=sink)
    known = [tir(b"t", 7), tir(b"u", 8, otid=bytes(31) + b"x")]
    for one in known:
        core.join_known(one, source_ip=0x7F000001, is_from_dro=True, source_id=b"some dro")
    assert [source.topic for source in sink.bound] == [b"t", b"u"]
    assert [source.is_from_dro for source in sink.bound] == [True, True]
    core.want_topic(b"u")
    core.leave_unwanted()
    assert [(source.topic, ended) for source, ended in sink.unbound] == [(b"t", False)]
    assert core.bound_sources == [sink.bound[1]]
