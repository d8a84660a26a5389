"""Contexts and whole SRS servers, without sockets: what is said by one is handed up to those whom it concerns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dro.clock import s
from dro.errors import DecodeError
from dro.proto.resolver_service import client as client_module
from dro.proto.resolver_service.link import LinkFault, ServiceLink
from dro.proto.resolver_service.records import source_info
from dro.proto.resolver_service.told import ToldRecords
from dro.wire import otid
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.options import ContextInstance, Functionality
from dro.wire.lbmr.tnwg import TnwgContextFlag, TnwgContextInstance
from dro.wire.source_string import LbtrmAddress, TcpAddress
from dro.wire.srs import rsocket
from dro.wire.srs.messages import InterestMode, SourceDelete, encode
from tests.fakes.srs_network import SrsContext, SrsNetwork

REQUEST = (14391, 0x0A000001)


def tir(topic: bytes, index: int = 7, *, port: int = 14371, cost: int | None = None, domain_id: int = 0) -> lbmr.Tir:
    address = TcpAddress(0x0A000001, port, 5)
    items: list[lbmr.TirOption] = [] if cost is None else [lbmr.Cost(1, cost)]
    items.append(lbmr.OtidOption(otid.encode(TcpAddress(0x0A000001, 14371, 5), index, 1, 2)))
    if domain_id:
        items.append(lbmr.DomainId(domain_id))
    items.append(lbmr.ExtendedFunctionality(*REQUEST, Functionality.LATE_JOIN))
    return lbmr.Tir(topic, address, lbmr.TIR_TTL, index, lbmr.TirOptions(tuple(items)))


def as_heard(of: lbmr.Tir, context: SrsContext) -> lbmr.Tir:
    assert of.options is not None
    return lbmr.Tir(
        of.topic, of.transport, of.ttl, of.topic_index, of.options.replacing(ContextInstance(context.source_id))
    )


def test_a_source_is_handed_up_where_its_topic_is_wanted_and_so_is_its_end() -> None:
    net = SrsNetwork()
    one, two, three = (net.context(name) for name in (b"one", b"two", b"three"))
    two.say(lbmr.Queries((b"quotes",)))
    three.say(lbmr.Queries((b"other",)))
    net.run(10)
    source = tir(b"quotes")
    one.advertise(source)
    net.run(10)
    (packet,) = two.take()
    assert packet.body == lbmr.Queries((), (as_heard(source, one),))
    assert packet.options == lbmr.standard_options(one.source_id, lbmr.SenderType.APPLICATION, 0)
    for _ in range(5):
        one.advertise(source)  # as the resolver repeats it over UDP
    net.run(1000)
    assert two.take() == []
    one.end(source)
    net.run(400)
    assert two.take() == [], "the server waits whether it comes back"
    net.run(200)
    assert two.topics() == [(b"quotes", True)]
    assert one.take() == three.take() == []


def test_patterns_find_topics_of_now_and_later() -> None:
    net = SrsNetwork()
    one, two = net.context(b"one"), net.context(b"two")
    one.advertise(tir(b"a1", 1))
    net.run(10)
    two.say(lbmr.WildcardQueries((lbmr.WildcardTqr(lbmr.PatternType.PCRE, b"^a"),)))
    net.run(50)
    one.advertise(tir(b"a2", 2))
    one.advertise(tir(b"b1", 3))
    net.run(50)
    assert two.topics() == [(b"a1", False), (b"a2", False)]
    two.say(lbmr.TopicManagement((lbmr.Tmr(lbmr.TmrType.LEAVE, lbmr.TmrFlag.PCRE, b"^a"),)))
    net.run(50)
    one.advertise(tir(b"a3", 4))
    net.run(50)
    assert two.topics() == []


def test_a_context_that_floods_hears_of_everything() -> None:
    net = SrsNetwork()
    one, two = net.context(b"one"), net.context(b"two", mode=InterestMode.FLOOD)
    one.advertise(tir(b"a1", 1))
    net.run(50)
    assert two.topics() == [(b"a1", False)]


def test_interest_of_applications_reaches_dros_as_queries_and_answers() -> None:
    net = SrsNetwork()
    dro, one, two = net.dro(b"dro", 7), net.context(b"one"), net.context(b"two")
    one.say(lbmr.Queries((b"quotes",)))
    two.say(lbmr.Queries((b"quotes",)))
    two.say(lbmr.WildcardQueries((lbmr.WildcardTqr(lbmr.PatternType.PCRE, b"^a"),)))
    net.run(50)
    bodies = [packet.body for packet in dro.take()]
    assert bodies.count(lbmr.Queries((b"quotes",))) == 2
    assert lbmr.WildcardQueries((lbmr.WildcardTqr(lbmr.PatternType.PCRE, b"^a"),)) in bodies
    asked = lbmr.Tmr(lbmr.TmrType.USE, 0, b"quotes")
    of_pattern = lbmr.Tmr(lbmr.TmrType.USE, lbmr.TmrFlag.PCRE, b"^a")
    dro.say(lbmr.TopicManagement((asked, of_pattern, lbmr.Tmr(lbmr.TmrType.USE, 0, b"nobody"))))
    net.run(10)
    answers = [record for packet in dro.take() if isinstance(packet.body, lbmr.TopicManagement)
               for record in packet.body.records]  # fmt: skip
    assert [(answer.name, answer.is_response) for answer in answers] == [(b"quotes", True), (b"^a", True)]
    leave = lbmr.TopicManagement((lbmr.Tmr(lbmr.TmrType.LEAVE, 0, b"quotes"),))
    one.say(leave)
    net.run(50)
    assert dro.take() == [], "another context wants it"
    two.say(leave)
    net.run(50)
    assert [packet.body for packet in dro.take()] == [leave]
    dro.say(lbmr.TopicManagement((asked,)))
    net.run(50)
    assert dro.take() == []
    assert one.take() == two.take() == [], "applications hear no interest"


def test_interest_of_other_domains_passes_between_dros_and_is_refreshed() -> None:
    net = SrsNetwork()
    west, east = net.dro(b"west", 7), net.dro(b"east", 7)
    record = lbmr.InterestRecord(9, b"quotes")
    pattern = lbmr.InterestRecord(9, b"^a", lbmr.InterestFlag.PATTERN, lbmr.PatternType.PCRE)
    west.say(lbmr.TnwgInterest((record, pattern)))
    west.say(lbmr.Queries((b"quotes",)))  # of its proxy receiver
    net.run(50)
    assert [packet.body for packet in east.take()] == [lbmr.TnwgInterest((record,)), lbmr.TnwgInterest((pattern,))]
    west.say(lbmr.TnwgInterest((record,)))
    net.run(200_000, 100)
    times = [packet.body for packet in east.take()].count(lbmr.TnwgInterest((record,)))
    assert 1 <= times <= 3
    cancel = lbmr.InterestRecord(9, b"quotes", lbmr.InterestFlag.CANCEL)
    west.say(lbmr.TnwgInterest((cancel,)))
    net.run(50)
    (packet,) = east.take()
    assert packet.body == lbmr.TnwgInterest((cancel,))
    assert packet.options is not None
    assert packet.options.source_id == west.source_id


def test_the_interest_of_a_dro_brings_it_sources() -> None:
    net = SrsNetwork()
    dro, one = net.dro(b"dro", 7), net.context(b"one")
    one.advertise(tir(b"quotes"))
    dro.say(lbmr.Queries((b"quotes",)))
    net.run(50)
    assert dro.topics() == [(b"quotes", False)]


def test_a_proxy_source_is_handed_up_as_that_of_a_dro() -> None:
    net = SrsNetwork()
    dro, one = net.dro(b"dro", 7), net.context(b"one")
    one.say(lbmr.Queries((b"quotes",)))
    source = tir(b"quotes", cost=4, domain_id=9)
    dro.advertise(source)
    net.run(50)
    (packet,) = one.take()
    assert packet.body == lbmr.Queries((), (source,))
    assert packet.options is not None
    assert packet.options.is_from_dro
    assert packet.options.local_domain == 7


def test_of_two_proxies_of_one_source_each_ends_alone() -> None:
    net = SrsNetwork()
    west, east, one = net.dro(b"west", 7), net.dro(b"east", 7), net.context(b"one")
    one.say(lbmr.Queries((b"quotes",)))
    first, second = tir(b"quotes", cost=4), tir(b"quotes", port=14372, cost=6)
    west.advertise(first)
    east.advertise(second)
    net.run(50)
    assert one.topics() == [(b"quotes", False)] * 2
    west.end(first)
    net.run(1000)
    (packet,) = one.take()
    assert isinstance(packet.body, lbmr.Queries)
    assert [(t.transport, t.is_final) for t in packet.body.tirs] == [(first.transport, True)]


def test_a_source_that_moves_to_another_session_ends_on_the_first() -> None:
    net = SrsNetwork()
    one, two = net.context(b"one"), net.context(b"two")
    two.say(lbmr.Queries((b"quotes",)))
    one.advertise(tir(b"quotes"))
    net.run(50)
    two.take()
    one.advertise(tir(b"quotes", port=14379))
    net.run(50)
    tirs = [t for packet in two.take() if isinstance(packet.body, lbmr.Queries) for t in packet.body.tirs]
    assert [(t.transport.port, t.is_final) for t in tirs if isinstance(t.transport, TcpAddress)] == [
        (14371, True),
        (14379, False),
    ]


def test_a_query_that_is_repeated_is_answered_a_second_later() -> None:
    net = SrsNetwork()
    one, two = net.context(b"one"), net.context(b"two")
    one.advertise(tir(b"quotes"))
    two.say(lbmr.Queries((b"quotes",)))
    net.run(1500)
    assert two.topics() == [(b"quotes", False)]
    for _ in range(10):
        two.say(lbmr.Queries((b"quotes",)))
        net.run(50)
    assert two.topics() == []
    net.run(1000)
    assert two.topics() == [(b"quotes", False)]


def test_the_domain_id_is_learnt_from_the_srs_early_and_late() -> None:
    net = SrsNetwork()
    early = net.context(b"early")
    net.run(50)
    net.dro(b"dro", 7)
    net.run(50)
    late = net.context(b"late")
    net.run(50)
    for context in (early, late):
        known = [packet.options.local_domain for packet in context.packets if packet.options is not None]
        assert known == [7]
        assert context.packets[0].options is not None
        assert context.packets[0].options.is_from_dro


def test_domain_routes_are_told_kept_repeated_and_forgotten() -> None:
    net = SrsNetwork()
    dro, one = net.dro(b"dro", 7), net.context(b"one")
    route = lbmr.RemoteDomainRoute(0x0A000009, 14391, 0, (8, 9))
    for _ in range(5):
        dro.say(route)
        net.run(1000)
    assert [packet.body for packet in one.take()].count(route) in (6, 7)
    late = net.context(b"late")
    net.run(1500)
    assert late.take()[0].body == route
    net.leave(dro)
    net.run(45_000, 100)
    one.take()
    net.run(3000)
    assert one.take() == []
    assert dro.client.connects == 1


def test_other_packets_pass_once() -> None:
    net = SrsNetwork()
    dro, one = net.dro(b"dro", 7), net.context(b"one")
    net.run(50)
    info = lbmr.ContextInfo(0, 0, 14391, 0x0A000001, bytes(8))
    one.say(info)
    one.say(lbmr.TopicResolutionRequest(7))
    net.run(50)
    assert [packet.body for packet in dro.take()] == [info]


def test_what_dros_tell_each_other_of_themselves_passes_without_options() -> None:
    """Two DROs in one TRD need it, and it has no packet options."""
    net = SrsNetwork()
    here, there = net.dro(b"here", 7), net.dro(b"there", 7)
    net.run(50)
    info = lbmr.TnwgContextInfo(0, int(TnwgContextFlag.DRO_SOURCE), options=(TnwgContextInstance(here.source_id),))
    packet = lbmr.Packet(lbmr.VERSION, None, info)
    here.client.send([lbmr.encode(packet)], net.now_ns)
    net.run(50)
    assert [told.body for told in there.take()] == [info]
    assert not there.faults


def test_an_srs_that_is_started_again_is_told_everything_and_nothing_is_lost() -> None:
    net = SrsNetwork()
    one, two, dro = net.context(b"one"), net.context(b"two"), net.dro(b"dro", 7)
    one.advertise(tir(b"first", 1))
    two.say(lbmr.Queries((b"first",)))
    net.run(100)
    assert two.topics() == [(b"first", False)]
    dro.take()
    net.kill(0)
    one.advertise(tir(b"second", 2))
    two.say(lbmr.Queries((b"second",)))
    net.run(20_000, 100)
    assert [t for t in two.topics() if t[0] == b"second"] == []
    net.start(0)
    net.run(100)
    assert two.topics() == [(b"second", False)]
    assert [packet.body for packet in dro.take()] == [lbmr.Queries((b"second",))]
    net.run(60_000, 100)
    assert [end for _, end in two.topics() if end] == []


def test_what_has_ended_while_an_srs_was_away_is_gone_after_the_grace() -> None:
    net = SrsNetwork()
    one, two, dro = net.context(b"one"), net.context(b"two"), net.dro(b"dro", 7)
    source = tir(b"first", 1)
    one.advertise(source)
    two.say(lbmr.Queries((b"first",)))
    net.run(100)
    two.take(), dro.take()
    net.kill(0)
    one.end(source)
    net.leave(two)
    net.start(0)
    three = net.context(b"three")
    three.say(lbmr.Queries((b"first",)))
    net.run(client_module.GRACE_NS // 1_000_000 - 1000, 100)
    assert [packet.body for packet in dro.take()] == [lbmr.Queries((b"first",))], "of three"
    net.run(2000)
    leave = lbmr.TopicManagement((lbmr.Tmr(lbmr.TmrType.LEAVE, 0, b"first"),))
    assert leave not in [packet.body for packet in dro.take()], "three wants it"
    assert three.topics() == []


def test_with_two_srses_one_is_enough_and_nothing_is_handed_up_twice() -> None:
    net = SrsNetwork(2)
    one, two = net.context(b"one"), net.context(b"two")
    two.say(lbmr.Queries((b"first", b"second", b"third")))
    one.advertise(tir(b"first", 1))
    net.run(100)
    assert two.topics() == [(b"first", False)]
    net.kill(0)
    one.advertise(tir(b"second", 2))
    net.run(100)
    assert two.topics()[-1] == (b"second", False)
    one.end(tir(b"first", 1))
    net.run(1000)
    assert (b"first", True) not in two.topics(), "the other one may still have it"
    net.start(0)
    net.run(100)
    one.advertise(tir(b"third", 3))
    net.run(100)
    assert two.topics() == [(b"third", False)]
    net.run(40_000, 100)
    assert two.topics() == [(b"first", True)], "the one that came back has not told it"


def test_very_many_sources_are_handed_up_at_a_bounded_pace() -> None:
    net = SrsNetwork()
    one, two = net.context(b"one"), net.context(b"two", mode=InterestMode.FLOOD)
    for index in range(3000):
        one.advertise(tir(b"t%d" % index, index))
    net.run(300)
    assert 1000 <= len(two.topics()) <= 1300
    net.run(600)
    assert len({topic for topic, _ in two.topics()}) >= 1700


def test_a_context_that_ends_takes_everything_back() -> None:
    net = SrsNetwork()
    one, two, dro = net.context(b"one"), net.context(b"two"), net.dro(b"dro", 7)
    two.say(lbmr.Queries((b"first",)))
    one.advertise(tir(b"first", 1))
    one.say(lbmr.Queries((b"wanted",)))
    net.run(100)
    two.take(), dro.take()
    one.client.end()
    net.run(1000)
    assert two.topics() == [(b"first", True)]
    assert [p.body for p in dro.take()] == [lbmr.TopicManagement((lbmr.Tmr(lbmr.TmrType.LEAVE, 0, b"wanted"),))]
    server = net.servers[0]
    assert server is not None
    assert server.records.source_count == 0


def test_a_server_that_says_nothing_is_left() -> None:
    net = SrsNetwork()
    one = net.context(b"one")
    net.run(100)
    for _ in range(70):
        net.now_ns += s(1) // 10
        faults = one.client.on_timer(net.now_ns)
        if faults:
            break
    assert faults == [(0, "nothing came for 6 s")]


def test_an_srs_that_is_gone_for_good_holds_nothing_while_another_one_is_there() -> None:
    net = SrsNetwork(2)
    one, two = net.context(b"one"), net.context(b"two")
    two.say(lbmr.Queries((b"first",)))
    one.advertise(tir(b"first", 1))
    net.run(100)
    net.kill(0)
    one.end(tir(b"first", 1))
    net.run(59_000, 100)
    assert two.topics() == [(b"first", False)]
    net.run(2000, 100)
    assert two.topics() == [(b"first", True)]


def test_what_was_not_handed_up_yet_ends_without_a_word() -> None:
    told = ToldRecords(b"context.", 7)
    told.on_registered(0)
    source = source_info(tir(b"first", 1), b"other...", 0, 7)
    assert source is not None
    for number in range(100):
        address = b"TCP:10.0.0.1:%d[1]" % (1000 + number)
        told.on_record(0, replace(source, source=address))
    told.on_record(0, replace(source, cost=-1))
    assert told.take_packets(10) == []
    assert not told._held
    assert told._bytes == 0


def test_an_otid_belongs_to_one_topic() -> None:
    told = ToldRecords(b"context.", 7)
    told.on_registered(0)
    source = source_info(tir(b"first", 1), b"other...", 0, 7)
    assert source is not None
    told.on_record(0, source)
    with pytest.raises(DecodeError, match="belongs to another topic"):
        told.on_record(0, replace(source, topic=b"second"))
    told.on_record(0, SourceDelete(source.otid, b"first"))
    assert not told._held


def test_bytes_are_counted_as_records_change() -> None:
    told = ToldRecords(b"context.", 7)
    told.on_registered(0)
    source = source_info(tir(b"first", 1), b"other...", 0, 7)
    assert source is not None
    counted = []
    for text in (b"TCP:10.0.0.1:4[1]", b"LBTRM:10.0.0.1:14390:abcdef01:224.10.10.10:14400[1]", b"TCP:10.0.0.1:4[1]"):
        told.on_record(0, replace(source, source=text))
        counted.append(told._bytes)
    assert counted[0] == counted[2] < counted[1]
    told.on_record(0, SourceDelete(source.otid, b"first"))
    assert told._bytes == 0


def test_a_server_that_does_not_register_or_take_answers_is_left() -> None:
    now_ns = s(10)
    registration = SrsNetwork().context(b"one").registration
    link = ServiceLink(registration, now_ns)
    for second in range(1, 7):
        assert link.on_timer(now_ns + s(second) - 1) == ""
        list(link.on_bytes(rsocket.encode(rsocket.KeepaliveFrame(False)), now_ns + s(second)))
    assert link.on_timer(now_ns + s(6)) == "no registration within 6 s"
    early = ServiceLink(registration, now_ns)
    told = rsocket.PayloadFrame(3, encode(SourceDelete(bytes(32), b"t")))
    with pytest.raises(LinkFault, match="before it registers"):
        list(early.on_bytes(rsocket.encode(told), now_ns))
    asks = rsocket.encode(rsocket.KeepaliveFrame(True, 0, bytes(100_000)))

    def ask() -> None:
        for _ in range(100):
            assert list(link.on_bytes(asks, now_ns)) == []

    with pytest.raises(LinkFault, match="asks for answers and does not take them"):
        ask()


def test_a_source_on_lbtrm_keeps_its_address() -> None:
    net = SrsNetwork()
    one, two = net.context(b"one"), net.context(b"two")
    two.say(lbmr.Queries((b"quotes",)))
    address = LbtrmAddress(0x0A000001, 0xE00A0A0A, 0xABCDEF01, 14400, 14390)
    options = lbmr.TirOptions((lbmr.OtidOption(otid.encode(address, 7, 1, 2)),))
    one.advertise(lbmr.Tir(b"quotes", address, 60, 7, options))
    net.run(50)
    (packet,) = two.take()
    assert isinstance(packet.body, lbmr.Queries)
    assert packet.body.tirs[0].transport == address
