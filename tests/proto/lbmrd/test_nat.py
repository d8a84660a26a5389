"""Translation: addresses change, and nothing else does."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from ipaddress import IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.errors import DecodeError
from dro.proto.lbmrd.nat import NatRule, Translation, translated
from dro.wire.lbmr import packet as lbmr
from dro.wire.source_string import LbtrmAddress, LbtruAddress, RdmaAddress, TcpAddress, TransportAddress
from tests.builders import lbmr_strategies as some
from tests.fuzz.seeds import vectors

IPS = st.integers(0, 2**32 - 1)
PORTS = st.integers(0, 65535)
TIRS = st.lists(some.tir, max_size=4).map(tuple)
PACKETS = st.builds(
    lbmr.Packet,
    st.integers(0, 1),
    st.none() | some.packet_options,
    st.builds(lbmr.Queries, st.lists(some.name, max_size=3).map(tuple), TIRS)
    | st.builds(lbmr.WildcardQueries, st.lists(some.wildcard_tqr, max_size=3).map(tuple), TIRS),
)
RULES = st.lists(
    st.builds(NatRule, *(st.none() | st.sampled_from(few) | values for few, values in (
        ((0x0A000001, 0x0A1D034C), IPS), ((14371, 12090), PORTS), ((1,), IPS), ((1,), PORTS),
    ))),
    max_size=3,
)  # fmt: skip


def expected(address: TransportAddress, rules: list[NatRule]) -> TransportAddress:
    """What a record says after the first rule that matches it."""
    if not isinstance(address, TcpAddress | LbtruAddress | LbtrmAddress | RdmaAddress):
        return address
    port = address.nak_port if isinstance(address, LbtrmAddress) else address.port
    for rule in rules:
        if rule.match_ip in (None, address.ip) and rule.match_port in (None, port):
            ip = address.ip if rule.ip is None else rule.ip
            port = port if rule.port is None else rule.port
            if isinstance(address, LbtrmAddress):
                return replace(address, ip=ip, nak_port=port)
            return replace(address, ip=ip, port=port)
    return address


def check(data: bytes, rules: list[NatRule]) -> None:
    before, after = lbmr.decode(data), lbmr.decode(translated(data, rules))
    assert isinstance(before.body, lbmr.Queries | lbmr.WildcardQueries)
    tirs = tuple(replace(tir, transport=expected(tir.transport, rules)) for tir in before.body.tirs)
    assert after == replace(before, body=replace(before.body, tirs=tirs))


@given(PACKETS, RULES)
def test_a_translated_packet_is_the_same_but_for_the_addresses(packet: lbmr.Packet, rules: list[NatRule]) -> None:
    check(lbmr.encode(packet), rules)


@given(RULES)
def test_published_packets_translate(rules: list[NatRule]) -> None:
    for data in vectors("lbmr"):
        if data[0] & 7 in (0, 1):
            check(data, rules)


@given(st.binary(min_size=4, max_size=80), RULES)
def test_other_bytes_are_refused_or_keep_their_length(data: bytes, rules: list[NatRule]) -> None:
    with contextlib.suppress(DecodeError):
        assert len(translated(data, rules)) == len(data)


def test_without_a_match_the_datagram_itself_comes_back() -> None:
    tir = lbmr.Tir(b"AAA", TcpAddress(1, 2, 3), 60, 7)
    data = lbmr.encode(lbmr.Packet(1, None, lbmr.Queries((b"Q",), (tir,))))
    assert translated(data, [NatRule(9, None, 1, 1)]) is data


def test_a_body_of_the_wrong_size_is_refused() -> None:
    data = b"\x10\0\0\x01AAA\0" + bytes((0, 7, 0, 60, 0, 0, 0, 1)) + bytes(7)
    with pytest.raises(DecodeError, match=r"tir\.transport: 7 bytes"):
        translated(data, [])


def test_the_longest_prefix_names_the_domain() -> None:
    networks = {"10.0.0.0/8": "a", "10.1.0.0/16": "b", "10.1.2.3/32": "c"}
    translation = Translation(tuple((IPv4Network(text), name) for text, name in networks.items()))
    found = [translation.domain_of(ip) for ip in (0x0A020000, 0x0A010001, 0x0A010203, 0x0B000000)]
    assert found == ["a", "b", "c", ""]
