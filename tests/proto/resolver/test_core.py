"""The resolver core on a simulated channel: times and packing of what it sends, and what it joins."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dro.clock import ms, s
from dro.proto.resolver.cache import make_otid
from dro.proto.resolver.core import Resolver, ResolverConfig, SourceAd
from dro.proto.resolver.events import (
    BadPattern,
    DomainIdLearned,
    DomainMismatch,
    DomainRoute,
    NoSource,
    OtidMismatch,
    ResolverEvent,
    SourceChanged,
    SourceFinal,
    SourceFound,
    SourceSwitched,
    TopicMatched,
    TopicUnmatched,
)
from dro.proto.resolver.output import ResolverRates
from dro.proto.resolver.record_queue import Rate
from dro.proto.resolver.schedule import AdvertisingOptions, QueryOptions
from dro.proto.resolver.told_domains import MAX_TOLD, ToldDomains
from dro.wire import otid as otid_codec
from dro.wire.lbmr import packet as lbmr
from dro.wire.source_string import TcpAddress, UnknownTransport
from tests.builders.tir_options import tir_options
from tests.fakes.channel import Channel, lbtrm_tir, packet, tir
from tests.fakes.patterns import compile_pattern


def resolver(name: bytes = b"resolver", **config: object) -> Resolver:
    return Resolver(ResolverConfig(name, **config), compile_pattern=compile_pattern)  # type: ignore[arg-type]  # as given


def hear(r: Resolver, *records: lbmr.Tir, at: float = 0, source_type: int = 0) -> list[ResolverEvent]:
    r.on_packet(packet(lbmr.Queries((), records), source_type=source_type), 0x0A000001, ms(at))
    return r.take_events()


def names(packet_bytes: list[bytes]) -> list[lbmr.Body]:
    return [lbmr.decode(raw).body for raw in packet_bytes]


# ---------------------------------------------------------------------------------------------------- sources


def test_a_source_advertises_itself_by_the_table() -> None:
    a = resolver()
    c = Channel(a)
    a.add_source(SourceAd(tir()), 0)
    c.run(66_000)
    initial = [0, 0, 10, 30, 70, 150, 310, 630, 1130, 1630, 2130, 2630, 3130, 3630, 4130, 4630, 5130]
    assert c.times(a, lbmr.Queries) == initial + [5200 + 1000 * k for k in range(1, 61)]
    records = [record for body in c.bodies(a, lbmr.Queries) for record in body.tirs]
    assert [record.ttl for record in records] == [16] + [60] * 76
    assert records[0].options == tir().options


def test_no_creation_record_when_it_is_switched_off() -> None:
    a = resolver()
    c = Channel(a)
    a.add_source(SourceAd(tir(), AdvertisingOptions(send_initial=False)), 0)
    c.run(20)
    assert c.times(a, lbmr.Queries) == [0, 10]


def test_every_packet_carries_the_five_options() -> None:
    a = resolver(source_type=lbmr.SenderType.DRO, domain_id=7)
    a.add_source(SourceAd(tir()), 0)
    (raw,) = a.take_outgoing()
    assert lbmr.decode(raw).options == lbmr.standard_options(b"resolver", 1, 7)


def test_a_query_is_answered_at_once_and_alone() -> None:
    a = resolver()
    a.add_source(SourceAd(tir(b"AAA", index=1)), 0)
    a.add_source(SourceAd(tir(b"AAA", index=2)), 0)
    a.add_source(SourceAd(tir(b"BBB", index=3)), 0)
    a.take_outgoing()
    a.on_packet(packet(lbmr.Queries((b"AAA", b"XXX", b"AAA"))), 0, ms(5))
    bodies = names(a.take_outgoing())
    assert [[t.topic_index for t in body.tirs] for body in bodies if isinstance(body, lbmr.Queries)] == [[1], [2]]


def test_a_wildcard_query_is_answered_in_one_datagram() -> None:
    a = resolver()
    for index, topic in enumerate((b"AAA", b"AAB", b"XYZ")):
        a.add_source(SourceAd(tir(topic, index=index)), 0)
    a.take_outgoing()
    a.on_packet(packet(lbmr.WildcardQueries((lbmr.WildcardTqr(1, b"^AA"),))), 0, ms(5))
    (body,) = names(a.take_outgoing())
    assert isinstance(body, lbmr.Queries)
    assert [t.topic for t in body.tirs] == [b"AAA", b"AAB"]


def test_a_bad_pattern_is_told_once_and_ignored() -> None:
    a = resolver()
    a.add_source(SourceAd(tir()), 0)
    a.take_outgoing()
    for at in (1, 2):
        a.on_packet(packet(lbmr.WildcardQueries((lbmr.WildcardTqr(1, b"("),))), 0, ms(at))
    assert a.take_events() == [BadPattern(b"(", 1)]
    assert a.take_outgoing() == []


def test_answers_may_be_switched_off() -> None:
    a = resolver()
    a.add_source(SourceAd(tir(), AdvertisingOptions(send_immediate_response=False)), 0)
    a.take_outgoing()
    a.on_packet(packet(lbmr.Queries((b"AAA",))), 0, ms(5))
    assert a.take_outgoing() == []


def test_an_answer_postpones_the_sustaining_record_and_not_the_initial_one() -> None:
    a = resolver()
    c = Channel(a)
    a.add_source(SourceAd(tir()), 0)
    c.run(35)
    c.clear()
    a.on_packet(packet(lbmr.Queries((b"AAA",))), 0, ms(40))
    c.flush(40)
    c.run(200)
    assert c.times(a, lbmr.Queries) == [40, 70, 150]
    c.run(7250)
    c.clear()
    a.on_packet(packet(lbmr.Queries((b"AAA",))), 0, ms(7300))
    c.flush(7300)
    c.run(9000)
    assert c.times(a, lbmr.Queries) == [7300, 8300]


def test_a_quiescent_source_answers_and_sustains_again() -> None:
    a = resolver()
    c = Channel(a)
    a.add_source(SourceAd(tir()), 0)
    c.run(100_000)
    c.clear()
    a.on_packet(packet(lbmr.Queries((b"AAA",))), 0, ms(100_000))
    c.run(200_000)
    assert c.times(a, lbmr.Queries) == [100_000 + 1000 * k for k in range(61)]


def test_a_request_makes_every_source_advertise() -> None:
    a = resolver()
    c = Channel(a)
    for index in range(3):
        a.add_source(SourceAd(tir(index=index)), 0)
    c.run(100_000)
    c.clear()
    a.on_packet(packet(lbmr.TopicResolutionRequest(lbmr.RequestFlag.ADVERTISEMENT)), 0, ms(100_000))
    (body,) = names(a.take_outgoing())
    assert isinstance(body, lbmr.Queries)
    assert len(body.tirs) == 3


def test_final_advertisements() -> None:
    a = resolver()
    c = Channel(a)
    handle = a.add_source(SourceAd(tir(cost=(2, 11))), 0)
    c.run(1000)
    c.clear()
    a.remove_source(handle, ms(1000), final=True)
    assert a.finals_pending == 1
    c.run(10_000)
    assert c.times(a, lbmr.Queries) == [1000, 1100, 1300, 1700, 2500]
    for body in c.bodies(a, lbmr.Queries):
        (record,) = body.tirs
        assert record.is_final
        assert record.options is not None
        assert record.options.cost == lbmr.Cost(2, -1)
        assert (record.topic_index, record.otid) == (7, tir().otid)
    assert a.finals_pending == 0


def test_nothing_is_sent_at_deletion_without_final_advertisements() -> None:
    a = resolver()
    c = Channel(a)
    handle = a.add_source(SourceAd(tir()), 0)
    a.on_packet(packet(lbmr.Queries((b"AAA",))), 0, 0)
    a.remove_source(handle, 0)
    c.run(10_000)
    assert c.sent == []
    assert a.next_deadline() is None


def test_a_source_that_comes_back_ends_its_final_advertisements() -> None:
    a = resolver()
    c = Channel(a)
    handle = a.add_source(SourceAd(tir()), 0)
    c.run(100)
    a.remove_source(handle, ms(100), final=True)
    c.run(250)
    a.add_source(SourceAd(tir()), ms(250))
    c.clear()
    c.run(5000)
    assert not any(t.is_final for body in c.bodies(a, lbmr.Queries) for t in body.tirs)


def test_a_source_that_comes_back_under_another_index_takes_its_old_one_back() -> None:
    a, b = resolver(), resolver(b"receiver")
    c = Channel(a, b)
    b.add_receiver(b"AAA", 0)
    handle = a.add_source(SourceAd(tir(index=7)), 0)
    c.run(100)
    a.remove_source(handle, ms(100), final=True)
    a.add_source(SourceAd(tir(index=8)), ms(100))
    c.run(5000)
    assert [
        (type(event), event.source.topic_index)
        for event in b.take_events()
        if isinstance(event, SourceFound | SourceFinal)
    ] == [(SourceFound, 7), (SourceFinal, 7), (SourceFound, 8)]
    finals = [t.topic_index for body in c.bodies(a, lbmr.Queries) for t in body.tirs if t.is_final]
    assert finals == [7] * 5


def test_an_update_is_advertised_at_once() -> None:
    a = resolver()
    handle = a.add_source(SourceAd(tir()), 0)
    a.take_outgoing()
    a.update_source(handle, tir(cost=(1, 5)), ms(3))
    (body,) = names(a.take_outgoing())
    assert isinstance(body, lbmr.Queries)
    assert body.tirs[0].options is not None
    assert body.tirs[0].options.cost == lbmr.Cost(1, 5)


def test_records_share_datagrams_up_to_the_maximum() -> None:
    a = resolver(datagram_max_bytes=500)
    for index in range(20):
        a.add_source(SourceAd(tir(b"topic%02d" % index, index=index)), 0)
    out = a.take_outgoing()
    assert all(len(raw) <= 500 for raw in out)
    assert len(out) == 4
    got = [t.topic_index for body in names(out) if isinstance(body, lbmr.Queries) for t in body.tirs]
    assert got == list(range(20))


def test_a_datagram_has_8192_bytes_at_most_unless_told_otherwise() -> None:
    longest = 0
    for rest in range(1, 250):
        a = resolver()
        for n in range(33):
            a.add_receiver(b"%03d" % n + b"x" * (247 if n else rest), 0)
        longest = max(longest, *map(len, a.take_outgoing()))
    assert longest == 8192


def test_rate_limits_stretch_the_schedule() -> None:
    a = resolver(rates=ResolverRates(initial_advertisements=Rate(0, 100)))
    c = Channel(a)
    for index in range(25):
        a.add_source(SourceAd(tir(index=index), AdvertisingOptions(minimum_initial_interval_ns=0)), 0)
    c.run(250)
    assert c.times(a, lbmr.Queries) == [0, 100, 200]
    assert [len(body.tirs) for body in c.bodies(a, lbmr.Queries)] == [10, 10, 5]


def test_names_that_cannot_be_written_are_refused_at_once() -> None:
    a = resolver()
    with pytest.raises(lbmr.DecodeError):
        a.add_source(SourceAd(tir(b"x" * 256)), 0)
    with pytest.raises(lbmr.DecodeError):
        a.add_receiver(b"a\0b", 0)
    with pytest.raises(lbmr.DecodeError):
        a.add_wildcard(b"x" * 256, 1, lambda topic: True, 0)
    assert a.take_outgoing() == []


# ---------------------------------------------------------------------------------------------------- receivers


def test_a_receiver_queries_by_the_table_whether_it_is_answered_or_not() -> None:
    a = resolver()
    c = Channel(a)
    a.add_receiver(b"AAA", 0)
    hear(a, tir())
    c.run(66_000)
    expect = [0, 20, 60, 140, *range(300, 5101, 200), *range(6100, 65101, 1000)]
    assert c.times(a, lbmr.Queries) == expect
    assert all(body.tqrs == (b"AAA",) for body in c.bodies(a, lbmr.Queries))


def test_a_wildcard_receiver_queries_by_the_table() -> None:
    a = resolver()
    c = Channel(a)
    a.add_wildcard(b"A.*", 1, lambda topic: True, 0)
    c.run(66_000)
    expect = [-(-at // 30) * 30 for at in (0, 50, 150, 350, 750, 1550, *range(2550, 60551, 1000))]
    assert c.times(a, lbmr.WildcardQueries) == expect
    assert c.bodies(a, lbmr.WildcardQueries)[0].patterns == (lbmr.WildcardTqr(1, b"A.*"),)


def test_an_advertisement_of_a_wanted_topic_is_found_once() -> None:
    a = resolver()
    a.add_receiver(b"AAA", 0)
    (event,) = hear(a, tir(cost=(1, 5)), tir(b"BBB"), at=3, source_type=1)
    assert isinstance(event, SourceFound)
    f = event.source
    assert (f.topic, f.topic_index, f.otid, f.otid_made, f.cost, f.hop_count, f.from_dro, f.source_id, f.source_ip) == (
        b"AAA",
        7,
        tir().otid,
        False,
        5,
        1,
        True,
        b"stranger",
        0x0A000001,
    )
    assert hear(a, tir(cost=(1, 5)), at=4) == []


def test_a_receiver_takes_what_the_cache_has() -> None:
    a = resolver()
    assert hear(a, tir(), tir(index=8, otid=2)) == []
    a.add_receiver(b"AAA", s(1000))
    found = a.take_events()
    assert [e.source.topic_index for e in found if isinstance(e, SourceFound)] == [7, 8]


def test_a_changed_advertisement_of_a_joined_source_is_told() -> None:
    a = resolver()
    a.add_receiver(b"AAA", 0)
    hear(a, tir())
    (event,) = hear(a, tir(cost=(2, 3)))
    assert isinstance(event, SourceChanged)
    assert (event.source.tir, event.source.cost, event.source.hop_count) == (tir(cost=(2, 3)), 3, 2)
    (event,) = hear(a, tir())
    assert isinstance(event, SourceChanged)
    assert (event.source.tir, event.source.cost, event.source.hop_count) == (tir(), 0, 0)


def test_equal_otids_are_one_source_and_the_cheapest_way_is_joined() -> None:
    a = resolver()
    near, far, nearer = tir(port=1, cost=(1, 5)), tir(port=2, cost=(2, 9)), tir(port=3, cost=(1, 2))
    hear(a, far, near)
    a.add_receiver(b"AAA", 0)
    (event,) = a.take_events()
    assert isinstance(event, SourceFound)
    assert event.source.tir == near
    assert hear(a, far) == []
    assert hear(a, tir(port=0, cost=(9, 5))) == [], "equal cost is no reason to switch"
    (event,) = hear(a, nearer)
    assert isinstance(event, SourceSwitched)
    assert (event.old.tir, event.new.tir) == (near, nearer)


def test_equal_costs_are_decided_by_the_address() -> None:
    a = resolver()
    hear(a, tir(port=2), tir(port=1), tir(port=3))
    a.add_receiver(b"AAA", 0)
    (event,) = a.take_events()
    assert isinstance(event, SourceFound)
    assert event.source.tir == tir(port=1)


def test_a_joined_way_that_becomes_dearer_is_left_for_a_living_one() -> None:
    a = resolver()
    a.add_receiver(b"AAA", 0)
    hear(a, tir(port=1, cost=(1, 5)), tir(port=2, cost=(1, 6)))
    (event,) = hear(a, tir(port=1, cost=(1, 8)), at=10)
    assert isinstance(event, SourceSwitched)
    assert event.new.tir == tir(port=2, cost=(1, 6))


def test_the_end_of_a_source_brings_one_query_and_the_other_way() -> None:
    a = resolver()
    c = Channel(a)
    a.add_receiver(b"AAA", 0)
    c.run(100_000)
    hear(a, tir(port=1), tir(port=2), at=99_000)
    c.clear()
    a.on_source_ended(b"AAA", tir(port=1).transport, 7, ms(100_000))
    (event,) = a.take_events()
    assert isinstance(event, SourceFound)
    assert event.source.tir == tir(port=2)
    c.run(103_000)
    assert c.times(a, lbmr.Queries) == [100_000, 101_000, 102_000, 103_000]


def test_an_alternative_that_was_heard_ten_seconds_ago_is_joined_at_once() -> None:
    a = resolver()
    a.add_receiver(b"AAA", 0)
    hear(a, tir(port=1), tir(port=2), at=0)
    a.on_source_ended(b"AAA", tir(port=1).transport, 7, ms(10_000))
    assert [type(event) for event in a.take_events()] == [SourceFound]


def test_an_old_alternative_waits_for_its_next_advertisement() -> None:
    a = resolver()
    a.add_receiver(b"AAA", 0)
    hear(a, tir(port=1), tir(port=2), at=0)
    a.on_source_ended(b"AAA", tir(port=1).transport, 7, ms(10_001))
    assert a.take_events() == []
    (event,) = hear(a, tir(port=2), at=10_002)
    assert isinstance(event, SourceFound)


def test_a_final_advertisement_ends_a_source() -> None:
    a = resolver()
    a.add_receiver(b"AAA", 0)
    hear(a, tir(), at=50_000)
    a.take_outgoing()
    (event,) = hear(a, tir(cost=(0, -1)), at=60_000)
    assert isinstance(event, SourceFinal)
    assert event.source.tir == tir()
    (body,) = names(a.take_outgoing())
    assert body == lbmr.Queries((b"AAA",))
    assert hear(a, tir(cost=(0, -1)), at=60_100) == [], "repeats mean nothing"
    assert len(a.cache) == 0


def test_a_final_advertisement_is_for_its_own_session_and_index_only() -> None:
    a = resolver()
    a.add_receiver(b"AAA", 0)
    hear(a, tir())
    assert hear(a, tir(port=9, cost=(0, -1)), tir(index=8, cost=(0, -1)), tir(b"BBB", cost=(0, -1))) == []
    assert hear(a, tir(otid=5, cost=(0, -1))) == [], "another source's goodbye"
    assert len(a.cache) == 1


def test_a_known_source_under_another_otid_is_ignored_while_it_is_joined() -> None:
    a = resolver()
    hear(a, tir(otid=1))
    hear(a, tir(otid=2))
    assert a.cache.otids(b"AAA") == [(2).to_bytes(32, "big")]
    a.add_receiver(b"AAA", 0)
    a.take_events()
    assert hear(a, tir(otid=3)) == [OtidMismatch(b"AAA", tir(otid=3))]
    a.on_source_ended(b"AAA", tir().transport, 7, 0)
    (event,) = hear(a, tir(otid=3))
    assert isinstance(event, SourceFound)


def test_an_otid_is_made_for_a_source_without_one() -> None:
    a = resolver()
    a.add_receiver(b"AAA", 0)
    record = lbtrm_tir(b"AAA", 0xF9D74F3E, 7)
    bare = lbmr.Tir(record.topic, record.transport, 60, 7, None)
    (event,) = hear(a, bare)
    assert isinstance(event, SourceFound)
    assert event.source.otid_made
    made = otid_codec.decode(event.source.otid)
    assert (made.address, made.topic_index, made.context_id) == (record.transport, 7, 0)
    assert event.source.otid == make_otid(bare)


def test_a_transport_that_is_not_known_is_never_joined() -> None:
    a = resolver()
    a.add_receiver(b"AAA", 0)
    assert hear(a, lbmr.Tir(b"AAA", UnknownTransport(0x11, b"abc"), 60, 1)) == []
    assert len(a.cache) == 0


def test_the_cache_is_bounded_and_keeps_what_is_joined() -> None:
    a = resolver(cache_max=100)
    a.add_receiver(b"AAA", 0)
    hear(a, tir())
    for index in range(1000):
        hear(a, tir(b"T%d" % index, index=index, otid=index), at=index)
    assert len(a.cache) == 100
    assert a.cache.has_joined(b"AAA")
    for index in range(1000):
        hear(a, tir(port=1 + index), at=2000 + index)
    assert len(a.cache) <= 100
    for entry in a.cache.entries():
        a.cache.drop(entry.key)
    assert [*a.cache.topics()] == []


def test_the_last_receiver_says_goodbye_three_times() -> None:
    a = resolver()
    c = Channel(a)
    a.add_receiver(b"AAA", 0)
    a.add_receiver(b"AAA", 0)
    c.run(7000)
    a.remove_receiver(b"AAA", ms(7000))
    c.run(8000)
    c.clear()
    a.remove_receiver(b"AAA", ms(8000))
    c.run(100_000)
    assert [at for at, _, _ in c.sent] == [8000, 8100, 8200]
    assert c.bodies(a, lbmr.TopicManagement)[0].records == (lbmr.Tmr(lbmr.TmrType.LEAVE, 0, b"AAA"),)


def test_where_all_is_told_once_the_goodbye_to_a_topic_that_nobody_has_is_one_series() -> None:
    a = resolver(tells_once=True)
    c = Channel(a)
    a.add_receiver(b"AAA", 0)
    c.run(100)
    a.remove_receiver(b"AAA", ms(100))
    c.run(10_000)
    assert c.times(a, lbmr.TopicManagement) == [100, 200, 300]


@pytest.mark.parametrize(("back_ms", "leaves"), [(50, [0]), (150, [0, 100]), (250, [0, 100, 200])])
def test_a_receiver_that_comes_back_ends_the_goodbye(back_ms: int, leaves: list[int]) -> None:
    a = resolver()
    c = Channel(a)
    a.add_receiver(b"AAA", 0)
    a.remove_receiver(b"AAA", 0)
    c.run(back_ms)
    a.add_receiver(b"AAA", ms(back_ms))
    c.run(1000)
    assert c.times(a, lbmr.TopicManagement) == leaves


def test_a_pattern_says_goodbye_as_a_pattern() -> None:
    a = resolver()
    first = a.add_wildcard(b"A", lbmr.PatternType.REGEX, lambda topic: True, 0)
    second = a.add_wildcard(b"A", lbmr.PatternType.REGEX, lambda topic: True, 0)
    a.take_outgoing()
    list(a.remove_wildcard(first, 0))
    assert a.take_outgoing() == []
    list(a.remove_wildcard(second, 0))
    assert names(a.take_outgoing()) == [lbmr.TopicManagement((lbmr.Tmr(0, lbmr.TmrFlag.REGEX, b"A"),))]


def test_use_queries_are_answered_for_what_is_spelt_exactly_so() -> None:
    a = resolver()
    a.add_receiver(b"AAA", 0)
    a.add_wildcard(b"^A", lbmr.PatternType.PCRE, lambda topic: True, 0)
    hear(a, tir(b"AAB"))
    a.take_outgoing()
    queries = (
        lbmr.Tmr(1, 0, b"AAA"),
        lbmr.Tmr(1, lbmr.TmrFlag.PCRE, b"^A"),
        lbmr.Tmr(1, lbmr.TmrFlag.REGEX, b"^A"),
        lbmr.Tmr(1, 0, b"AAB"),
        lbmr.Tmr(1, lbmr.TmrFlag.RESPONSE, b"AAA"),
        lbmr.Tmr(0, 0, b"AAA"),
        lbmr.Tmr(1, 0, b"AAA"),
    )
    a.on_packet(packet(lbmr.TopicManagement(queries)), 0, ms(30_000))
    (body,) = names(a.take_outgoing())
    assert body == lbmr.TopicManagement((lbmr.Tmr(1, 0x80, b"AAA"), lbmr.Tmr(1, 0xC0, b"^A")))


def test_proxies_do_not_answer_use_queries() -> None:
    a = resolver(answers_use_queries=False)
    a.add_receiver(b"AAA", 0)
    a.take_outgoing()
    a.on_packet(packet(lbmr.TopicManagement((lbmr.Tmr(1, 0, b"AAA"),))), 0, ms(1))
    assert a.take_outgoing() == []


def test_a_request_makes_quiet_receivers_speak() -> None:
    a = resolver()
    c = Channel(a)
    a.add_receiver(b"AAA", 0)
    a.add_wildcard(b"B", 1, lambda topic: False, 0)
    c.run(100_000)
    c.clear()
    a.on_packet(packet(lbmr.TopicResolutionRequest(0x43)), 0, ms(100_000))
    c.run(102_000)
    assert c.times(a, lbmr.Queries) == [100_000, 101_000, 102_000]
    assert c.times(a, lbmr.WildcardQueries)[:4] == [100_000, 100_050, 100_170, 100_350]


REQUESTS = (lbmr.RequestFlag.ADVERTISEMENT, lbmr.RequestFlag.QUERY, lbmr.RequestFlag.WILDCARD_QUERY)


@pytest.mark.parametrize("flag", REQUESTS)
def test_a_request_is_for_what_it_names_alone(flag: int) -> None:
    a = resolver()
    c = Channel(a)
    a.add_source(SourceAd(tir()), 0)
    a.add_receiver(b"BBB", 0)
    a.add_wildcard(b"B", 1, lambda topic: False, 0)
    c.run(100_000)
    c.clear()
    a.on_packet(packet(lbmr.TopicResolutionRequest(flag)), 0, ms(100_000))
    c.flush(100_000)
    said = [len(c.times(a, lbmr.Queries, where="tirs")), len(c.times(a, lbmr.Queries, where="tqrs")),
            len(c.times(a, lbmr.WildcardQueries))]  # fmt: skip
    assert said == [flag is of for of in REQUESTS]


def test_enough_sources_end_the_sustaining_phase_and_the_end_of_one_renews_it() -> None:
    a = resolver()
    c = Channel(a)
    a.add_receiver(b"AAA", 0, QueryOptions(source_threshold=2))
    hear(a, tir(index=1, otid=1), tir(index=2, otid=2))
    c.run(20_000)
    assert c.times(a, lbmr.Queries)[-1] == 5100
    c.clear()
    a.on_source_ended(b"AAA", tir().transport, 1, ms(20_000))
    c.run(22_000)
    assert c.times(a, lbmr.Queries) == [20_000, 21_000, 22_000]


def test_a_threshold_of_zero_means_no_queries_at_all() -> None:
    a = resolver()
    c = Channel(a)
    a.add_receiver(b"AAA", 0, QueryOptions(source_threshold=0))
    c.run(10_000)
    a.on_packet(packet(lbmr.TopicResolutionRequest(0x02)), 0, ms(10_000))
    c.run(20_000)
    assert c.sent == []


@pytest.mark.parametrize(("threshold", "told_ms"), [(1, 20), (3, 140)], ids=["with the second", "with the fourth"])
def test_unanswered_queries_make_one_notification(threshold: int, told_ms: int) -> None:
    a = resolver()
    c = Channel(a)
    a.add_receiver(b"AAA", 0, QueryOptions(no_source_threshold=threshold))
    c.run(told_ms - 1)
    assert a.take_events() == []
    c.run(told_ms)
    assert a.take_events() == [NoSource(b"AAA")]
    c.run(20_000)
    assert a.take_events() == []


# ---------------------------------------------------------------------------------------------------- wildcards


def test_a_pattern_finds_topics_and_does_not_query_them() -> None:
    a = resolver()
    c = Channel(a)
    hear(a, tir(b"AAA"), tir(b"XXX", index=9, otid=9))
    handle = a.add_wildcard(b"^A", 1, lambda topic: topic.startswith(b"A"), 0)
    matched, found = a.take_events()
    assert matched == TopicMatched(handle, b"AAA")
    assert isinstance(found, SourceFound)
    matched, found = hear(a, tir(b"AAB", index=8, otid=8))
    assert matched == TopicMatched(handle, b"AAB")
    assert isinstance(found, SourceFound)
    c.run(70_000)
    assert c.times(a, lbmr.Queries) == []


def test_topics_found_by_a_pattern_query_once_their_session_ends() -> None:
    a = resolver()
    a.add_wildcard(b"A", 1, lambda topic: True, 0)
    hear(a, tir(b"AAA", index=1, otid=1), tir(b"AAB", index=2, otid=2))
    a.take_outgoing()
    a.on_source_ended(b"AAA", tir().transport, 1, ms(13_000))
    a.on_source_ended(b"AAB", tir().transport, 2, ms(13_000))
    assert names(a.take_outgoing()) == [lbmr.Queries((b"AAA", b"AAB"))]


def test_a_topic_without_a_source_is_let_go_after_ten_queries_and_the_linger_time() -> None:
    a = resolver()
    c = Channel(a)
    handle = a.add_wildcard(b"A", 1, lambda topic: True, 0)
    hear(a, tir())
    a.on_source_ended(b"AAA", tir().transport, 7, 0)
    c.run(9999)
    assert a.take_events() == []
    assert len(c.times(a, lbmr.Queries)) == 10
    c.run(10_999)
    assert a.take_events() == [NoSource(b"AAA")]
    c.run(12_000)
    assert a.take_events() == [TopicUnmatched(handle, b"AAA")]
    c.clear()
    c.run(60_000)
    assert c.times(a, lbmr.Queries) == []
    matched, found = hear(a, tir(), at=60_000)
    assert matched == TopicMatched(handle, b"AAA")
    assert isinstance(found, SourceFound)


def test_a_source_that_returns_during_the_linger_time_keeps_the_sub_receiver() -> None:
    a = resolver()
    c = Channel(a)
    a.add_wildcard(b"A", 1, lambda topic: True, 0)
    hear(a, tir())
    a.on_source_ended(b"AAA", tir().transport, 7, 0)
    c.run(10_500)
    assert a.take_events() == [NoSource(b"AAA")]
    (event,) = hear(a, tir(), at=10_600)
    assert isinstance(event, SourceFound)
    c.clear()
    c.run(30_000)
    assert a.take_events() == []
    assert c.times(a, lbmr.Queries) == []


def test_removing_a_pattern_leaves_what_a_receiver_still_wants() -> None:
    a = resolver()
    handle = a.add_wildcard(b"A", 1, lambda topic: True, 0)
    a.add_receiver(b"AAA", 0)
    hear(a, tir(b"AAA"), tir(b"AAB", index=8, otid=8))
    list(a.remove_wildcard(handle, 0))
    assert a.cache.has_joined(b"AAA")
    assert not a.cache.has_joined(b"AAB")
    assert hear(a, tir(b"AAB", index=8, otid=8)) == []


# ---------------------------------------------------------------------------------------------------- the packet


def test_the_domain_is_learnt_from_a_dro_and_then_told() -> None:
    a = resolver()
    a.add_source(SourceAd(tir()), 0)
    a.take_outgoing()
    a.on_packet(packet(lbmr.Queries((b"AAA",)), domain_id=5), 0, 0)
    assert (a.domain_id, a.take_events()) == (0, []), "an application is not believed"
    a.take_outgoing()
    a.on_packet(packet(lbmr.Queries((b"AAA",)), domain_id=7, source_type=1), 0, 0)
    assert (a.domain_id, a.take_events()) == (7, [DomainIdLearned(7)])
    (raw,) = a.take_outgoing()
    got = lbmr.decode(raw)
    assert got.options is not None
    assert got.options.local_domain == 7
    assert isinstance(got.body, lbmr.Queries)
    assert got.body.tirs[0].options is not None
    assert got.body.tirs[0].options.domain_id == 7


def test_a_domain_is_learnt_anew_when_no_dro_tells_the_old_one() -> None:
    """Applications that ran while `<domain-id>` changed heard nothing any more."""
    a = resolver()
    a.add_source(SourceAd(tir()), 0)

    def hear(domain_id: int, ip: int, at_ns: int, source_type: int = 1) -> bool:
        body = lbmr.Queries((b"AAA",))
        return a.on_packet(packet(body, domain_id=domain_id, source_type=source_type), ip, at_ns)

    assert hear(7, 1, 0)
    assert hear(7, 2, 0)
    a.take_outgoing()
    a.take_events()
    assert not hear(8, 1, s(60)), "the other DRO still has the old one"
    assert not hear(8, 9, s(60), source_type=0), "an application is not believed"
    assert hear(7, 2, s(61))
    a.on_timer(s(62) + 1)
    assert a.domain_id == 7
    assert not hear(8, 2, s(61.5)), "too soon: both ids from one address may be two DROs"
    assert not hear(8, 2, s(63.4)), "what is repeated does not put it off"
    a.on_timer(s(63.5) + 1)
    assert a.take_events()[-1] == DomainIdLearned(8)
    assert hear(8, 2, s(64))
    assert not hear(7, 2, s(64), source_type=0)
    records = [lbmr.decode(raw) for raw in a.take_outgoing()]
    told = {t.options.domain_id for r in records if isinstance(r.body, lbmr.Queries) for t in r.body.tirs if t.options}
    assert told == {8}, "own sources are of the new one"
    assert not hear(9, 3, s(65))
    a.on_timer(s(200))
    assert a.domain_id == 8
    assert not hear(9, 3, s(300))
    a.on_timer(s(303))
    assert a.domain_id == 9, "those that told the old one are gone"


def test_the_domain_of_a_dro_is_as_configured() -> None:
    a = resolver(domain_id=7, source_type=1)
    assert not a.on_packet(packet(lbmr.Queries(), domain_id=8, source_type=1), 1, 0)
    assert not a.on_packet(packet(lbmr.Queries(), domain_id=8, source_type=1), 1, s(1000))
    assert a.domain_id == 7


def test_what_is_remembered_of_domains_is_bounded() -> None:
    told = ToldDomains()
    for ip in range(10 * MAX_TOLD):
        told.hear(ip, ip, ip)
    assert len(told._heard_ns) == MAX_TOLD


def test_a_packet_of_another_domain_is_dropped() -> None:
    a = resolver(domain_id=7, source_type=1)
    a.add_source(SourceAd(tir()), 0)
    a.take_outgoing()
    assert not a.on_packet(packet(lbmr.Queries((b"AAA",)), domain_id=8), 0x0A000009, 0)
    assert a.take_events() == [DomainMismatch(8, 0x0A000009)]
    assert a.take_outgoing() == []
    a.on_packet(packet(lbmr.Queries((b"AAA",)), domain_id=0), 0, 0)
    (raw,) = a.take_outgoing()
    body = lbmr.decode(raw).body
    assert isinstance(body, lbmr.Queries)
    assert body.tirs[0].options == tir().options, "a proxy's domain id is the origin's, not ours"


def test_propagation_from_everybody_and_only_while_a_dro_is_heard() -> None:
    a = resolver(domain_propagation_ns=-1)
    a.on_packet(packet(lbmr.Queries(), domain_id=5), 0, 0)
    assert a.domain_id == 5
    assert a.packet_options().local_domain == 5
    b = resolver(domain_propagation_ns=s(3))
    b.on_packet(packet(lbmr.Queries(), domain_id=5), 0, 0)
    assert (b.domain_id, b.packet_options().local_domain) == (5, 0)
    b.on_packet(packet(lbmr.Queries(), domain_id=5, source_type=1), 0, s(1))
    assert b.packet_options().local_domain == 5
    b.on_timer(s(4) + 1)
    assert b.packet_options().local_domain == 0


def test_domain_routes_are_passed_on() -> None:
    a = resolver()
    a.on_packet(packet(lbmr.RemoteDomainRoute(0x0A080001, 14391, 0, (1, 2))), 0, 0)
    assert a.take_events() == [DomainRoute((1, 2), 0x0A080001, 14391)]


def test_jitter_moves_the_ticks() -> None:
    a = Resolver(ResolverConfig(b"resolver"), jitter=lambda ns: ns * 3 // 100)
    c = Channel(a)
    a.add_source(SourceAd(tir()), 0)
    c.run(100)
    assert c.times(a, lbmr.Queries) == [0, 3, 13, 33, 73]


def test_a_source_and_a_receiver_find_each_other() -> None:
    """Source, receiver and wildcard receiver in one TRD: every matching query is answered by every match at once."""
    a, r, w = resolver(b"sender.."), resolver(b"receiver"), resolver(b"wildcard")
    c = Channel(a, r, w)
    a.add_source(SourceAd(tir()), ms(0))
    c.run(700)
    r.add_receiver(b"AAA", ms(700))
    w.add_wildcard(b"^A", 1, lambda topic: topic.startswith(b"A"), ms(700))
    c.flush(700)
    c.run(6000)
    queries = {*c.times(r, lbmr.Queries), *c.times(w, lbmr.WildcardQueries)}
    unsolicited = {0, 10, 30, 70, 150, 310, 630, 1130, 1630, 2130, 2630, 3130, 3630, 4130, 4630, 5130}
    assert set(c.times(a, lbmr.Queries)) == queries | unsolicited
    assert len(queries) > 30
    assert sum(isinstance(e, SourceFound) for e in r.take_events()) == 1
    assert [type(e) for e in w.take_events()] == [TopicMatched, SourceFound]


# ---------------------------------------------------------------------------------------------------- robustness

TOPICS = st.sampled_from([b"AAA", b"AAB", b"B", b""])
TIRS = st.builds(
    tir,
    TOPICS,
    port=st.integers(1, 3),
    index=st.integers(0, 2),
    otid=st.sampled_from([None, 1, 2, 3]),
    cost=st.sampled_from([None, (0, -1), (1, 2), (255, -5), (2, 2)]),
)
TMRS = st.builds(lbmr.Tmr, st.integers(0, 255), st.integers(0, 255), TOPICS)
PATTERNS = st.builds(lbmr.WildcardTqr, st.integers(0, 255), st.sampled_from([b"^A", b"(", b"", b"B"]))
BODIES = st.one_of(
    st.builds(lbmr.Queries, st.lists(TOPICS, max_size=3).map(tuple), st.lists(TIRS, max_size=4).map(tuple)),
    st.builds(lbmr.WildcardQueries, st.lists(PATTERNS, max_size=3).map(tuple), st.lists(TIRS, max_size=2).map(tuple)),
    st.builds(lbmr.TopicManagement, st.lists(TMRS, max_size=4).map(tuple)),
    st.builds(lbmr.TopicResolutionRequest, st.integers(0, 0xFFFF)),
    st.builds(lbmr.RemoteDomainRoute, st.just(1), st.just(2), st.just(0), st.just((1,))),
)
STEPS = st.one_of(
    BODIES,
    st.tuples(st.sampled_from(["source", "gone", "receiver", "left", "wildcard", "forgotten", "ended", "time"]), TIRS),
)


@settings(max_examples=200, deadline=None)
@given(steps=st.lists(STEPS, max_size=40), gaps=st.lists(st.integers(0, 3000), min_size=40, max_size=40))
def test_no_sequence_of_inputs_breaks_it(steps: list[object], gaps: list[int]) -> None:
    a = resolver(cache_max=8)
    sources: list[int] = []
    receivers: list[bytes] = []
    wildcards: list[int] = []
    now = 0
    joined: set[tuple[object, ...]] = set()
    for step, gap in zip(steps, gaps, strict=False):
        now += ms(gap)
        if isinstance(step, tuple):
            what, record = step
            if what == "source":
                sources.append(a.add_source(SourceAd(record), now))
            elif what == "gone" and sources:
                a.remove_source(sources.pop(), now, final=gap % 2 == 0)
            elif what == "receiver":
                receivers.append(record.topic)
                a.add_receiver(record.topic, now)
            elif what == "left" and receivers:
                a.remove_receiver(receivers.pop(), now)
            elif what == "wildcard":
                wildcards.append(a.add_wildcard(b"^A", 1, lambda topic: topic.startswith(b"A"), now))
            elif what == "forgotten" and wildcards:
                list(a.remove_wildcard(wildcards.pop(), now))
            elif what == "ended":
                a.on_source_ended(record.topic, record.transport, record.topic_index, now)
                joined.discard((record.topic, record.transport, record.topic_index))
        else:
            a.on_packet(packet(step, domain_id=gap % 3, source_type=gap % 2), 1, now)  # type: ignore[arg-type]  # a body
        while (at := a.next_deadline()) is not None and at <= now:
            a.on_timer(now)
            for raw in a.take_outgoing():
                lbmr.decode(raw)
        for raw in a.take_outgoing():
            assert len(raw) <= 8192
            lbmr.decode(raw)
        for event in a.take_events():
            if isinstance(event, SourceFound):
                wanted = event.source.topic in receivers or (wildcards and event.source.topic.startswith(b"A"))
                assert wanted
                assert event.source.cost != -1
        assert len(a.cache) <= 8


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_never_break_it(data: bytes) -> None:
    a = resolver()
    a.add_source(SourceAd(tir(b"")), 0)
    a.add_receiver(b"", 0)
    a.add_wildcard(b"", 1, lambda topic: True, 0)
    got, _ = lbmr.decode_lenient(data)
    if got is not None:
        a.on_packet(got, 0, 0)
        a.take_outgoing()


def own_tir() -> lbmr.Tir:
    return lbmr.Tir(b"AAA", TcpAddress(1, 2, 3), 60, 7, tir_options(otid=bytes(32)))


def test_a_context_that_hears_itself_finds_its_own_sources_and_their_end() -> None:
    resolver = Resolver(ResolverConfig(b"own-ctx1", hears_itself=True))
    resolver.add_receiver(b"AAA", 0)
    handle = resolver.add_source(SourceAd(own_tir()), 0)
    (found,) = [event for event in resolver.take_events() if isinstance(event, SourceFound)]
    assert (found.source.tir, found.source.source_id) == (own_tir(), b"own-ctx1")
    assert (found.source.source_ip, found.source.from_dro) == (0, False)
    dearer = replace(own_tir(), options=tir_options(otid=bytes(32), cost=lbmr.Cost(1, 5)))
    resolver.update_source(handle, dearer, ms(4))
    assert [event.source.cost for event in resolver.take_events() if isinstance(event, SourceChanged)] == [5]
    resolver.remove_source(handle, ms(5))
    assert [event.source.otid for event in resolver.take_events() if isinstance(event, SourceFinal)] == [bytes(32)]


def test_a_proxy_context_does_not_hear_itself() -> None:
    resolver = Resolver(ResolverConfig(b"own-ctx1"))
    resolver.add_receiver(b"AAA", 0)
    resolver.add_source(SourceAd(own_tir()), 0)
    assert resolver.take_events() == []


def test_queries_under_a_spent_limit_queue_one_answer_for_each_source() -> None:
    rates = ResolverRates(initial_advertisements=Rate(per_second=10), sustain_advertisements=Rate(per_second=10))
    r = resolver(rates=rates)
    quiet = AdvertisingOptions(send_initial=False, minimum_initial_interval_ns=0, sustain_interval_ns=0)
    for number in (1, 2):
        r.add_source(SourceAd(tir(index=number, port=number, otid=number), quiet), 0)
    for at in range(50):
        r.on_packet(packet(lbmr.Queries((b"AAA",))), 0x0A000001, ms(at))
    sent = []
    for at in range(0, 2000, 50):
        r.on_timer(ms(at))
        sent += names(r.take_outgoing())
    assert sum(len(body.tirs) for body in sent if isinstance(body, lbmr.Queries)) <= 3
