"""Packing records into datagrams."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.errors import DecodeError
from dro.wire.lbmr import packet as lbmr
from tests.builders import lbmr_strategies as some

OPTIONS = lbmr.standard_options(b"12345678", lbmr.SenderType.DRO, 3)
OPTIONS_SIZE = 36


def bodies(datagrams: list[bytes], kind: type[lbmr.Body]) -> list[lbmr.Body]:
    packets = [lbmr.decode(data) for data in datagrams]
    assert all(packet.version == 1 and packet.options == OPTIONS for packet in packets)
    assert all(type(packet.body) is kind for packet in packets)
    return [packet.body for packet in packets]


def test_no_records_make_no_datagram() -> None:
    assert lbmr.pack_tqrs([], OPTIONS, 500) == []
    assert lbmr.pack_tirs([], OPTIONS, 500) == []
    assert lbmr.pack_domain_routes(1, 2, 0, [], OPTIONS, 500) == []


def test_a_datagram_is_filled_to_the_last_byte() -> None:
    room = 500 - 4 - OPTIONS_SIZE
    topics = [b"A" * 45] * (room // 46)
    assert len(topics) * 46 == room
    (full,) = lbmr.pack_tqrs(topics, OPTIONS, 500)
    assert len(full) == 500
    first, second = lbmr.pack_tqrs([*topics, b""], OPTIONS, 500)
    assert first == full
    assert len(second) == 4 + 1 + OPTIONS_SIZE


def test_a_record_that_is_too_large_is_sent_alone() -> None:
    small, large = lbmr.InterestRecord(1, b"A"), lbmr.InterestRecord(1, b"B" * 255)
    datagrams = lbmr.pack_interest([small, large, small, small], OPTIONS, 200)
    assert [body.records for body in bodies(datagrams, lbmr.TnwgInterest) if isinstance(body, lbmr.TnwgInterest)] == [
        (small,),
        (large,),
        (small, small),
    ]


def test_at_most_255_queries_go_into_a_datagram() -> None:
    sizes = [
        len(body.tqrs)
        for body in bodies(lbmr.pack_tqrs([b"A"] * 600, OPTIONS, 8192), lbmr.Queries)
        if isinstance(body, lbmr.Queries)
    ]
    assert sizes == [255, 255, 90]
    patterns = [lbmr.WildcardTqr(lbmr.PatternType.PCRE, b"A")] * 256
    assert len(lbmr.pack_wildcard_tqrs(patterns, OPTIONS, 8192)) == 2


def test_domains_are_spread_over_datagrams_in_order() -> None:
    domains = list(range(1, 301))
    datagrams = lbmr.pack_domain_routes(0x0A080001, 14391, 0, domains, OPTIONS, 500)
    routes = [body for body in bodies(datagrams, lbmr.RemoteDomainRoute) if isinstance(body, lbmr.RemoteDomainRoute)]
    assert [domain for route in routes for domain in route.domains] == domains
    assert {(route.address, route.port) for route in routes} == {(0x0A080001, 14391)}
    assert max(map(len, datagrams)) == 16 + 4 * 112 + OPTIONS_SIZE


def test_a_datagram_never_exceeds_what_udp_carries() -> None:
    tmrs = [lbmr.Tmr(lbmr.TmrType.USE, 0, b"T" * 255)] * 600
    assert max(map(len, lbmr.pack_tmrs(tmrs, OPTIONS, 1 << 20))) <= 65507


def test_a_topic_that_is_no_name_is_refused() -> None:
    with pytest.raises(DecodeError):
        lbmr.pack_tqrs([b"A\0"], OPTIONS, 500)


@given(st.lists(some.tir, max_size=12), st.integers(100, 1500))
def test_tirs_come_back_complete_and_in_order(tirs: list[lbmr.Tir], max_size: int) -> None:
    datagrams = lbmr.pack_tirs(tirs, OPTIONS, max_size)
    found = [body for body in bodies(datagrams, lbmr.Queries) if isinstance(body, lbmr.Queries)]
    assert [tir for body in found for tir in body.tirs] == tirs
    assert all(len(data) <= max_size or len(body.tirs) == 1 for data, body in zip(datagrams, found, strict=True))


@given(st.lists(some.tmr, max_size=12), st.lists(some.wildcard_tqr, max_size=12), st.integers(100, 600))
def test_other_records_come_back_complete_and_in_order(
    tmrs: list[lbmr.Tmr], patterns: list[lbmr.WildcardTqr], max_size: int
) -> None:
    managed = [lbmr.decode(data).body for data in lbmr.pack_tmrs(tmrs, OPTIONS, max_size)]
    assert [tmr for body in managed if isinstance(body, lbmr.TopicManagement) for tmr in body.records] == tmrs
    asked = [lbmr.decode(data).body for data in lbmr.pack_wildcard_tqrs(patterns, OPTIONS, max_size)]
    assert [tqr for body in asked if isinstance(body, lbmr.WildcardQueries) for tqr in body.patterns] == patterns
