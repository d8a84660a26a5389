"""Source strings, both ways."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.errors import DecodeError
from dro.wire.source_string import (
    BrokerAddress,
    IpcAddress,
    LbtrmAddress,
    LbtruAddress,
    RdmaAddress,
    SmxAddress,
    SourceString,
    TcpAddress,
    TransportAddress,
    UnknownTransport,
    format_source,
    ip_text,
    parse_ip,
    parse_source,
)
from tests.fakes import lbmr_strategies as some

IP = 0xC000020A
PAIRS = [
    ("TCP:192.0.2.10:14371:0a1b2c3d[42]", TcpAddress(IP, 14371, 0x0A1B2C3D), 42),
    ("TCP:192.0.2.10:14371", TcpAddress(IP, 14371), None),
    ("TCP:192.0.2.10:14371[0]", TcpAddress(IP, 14371), 0),
    (
        "LBTRM:192.0.2.10:14393:9e8d7c6b:224.10.10.12:14400[7]",
        LbtrmAddress(IP, 0xE00A0A0C, 0x9E8D7C6B, 14400, 14393),
        7,
    ),
    (
        "LBTRM:10.29.4.121:12090:f9d74f3e:239.101.3.10:14400[1353006825]",
        LbtrmAddress(0x0A1D0479, 0xEF65030A, 0xF9D74F3E, 14400, 12090),
        1353006825,
    ),
    ("LBT-RU:192.0.2.10:14381:00c0ffee[4294967295]", LbtruAddress(IP, 14381, 0x00C0FFEE), 4294967295),
    ("LBT-RU:192.0.2.10:14381", LbtruAddress(IP, 14381), None),
    ("LBT-IPC:5f6e7d8c:20003[1]", IpcAddress(0, 0x5F6E7D8C, 20003), 1),
    ("LBT-SMX:0000007f:20003", SmxAddress(0, 0x7F, 20003), None),
    ("LBT-RDMA:192.0.2.10:20020:55aa55aa[3]", RdmaAddress(IP, 20020, 0x55AA55AA), 3),
    ("BROKER", BrokerAddress(), None),
]


@pytest.mark.parametrize(("text", "address", "topic_index"), PAIRS, ids=[text for text, _, _ in PAIRS])
def test_a_canonical_string_means_an_address_and_back(
    text: str, address: TransportAddress | BrokerAddress, topic_index: int | None
) -> None:
    assert parse_source(text) == SourceString(address, topic_index)
    assert format_source(address, topic_index) == text


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("tcp:192.0.2.10:14371:A1B[42]", "TCP:192.0.2.10:14371:00000a1b[42]"),
        ("lbt-ru:192.0.2.10:0014:0", "LBT-RU:192.0.2.10:14"),
        ("LbtRm:192.000.2.10:14393:1:224.0.0.0:0", "LBTRM:192.0.2.10:14393:00000001:224.0.0.0:0"),
    ],
)
def test_other_forms_are_read_and_written_canonically(text: str, canonical: str) -> None:
    read = parse_source(text)
    assert format_source(read.address, read.topic_index) == canonical


BAD = {
    "": "source.kind",
    "UDP:1.2.3.4:5": "source.kind",
    "TCP": "source",
    "TCP:1.2.3.4": "source",
    "TCP:1.2.3.4:5:6:7": "source",
    "LBTRM:1.2.3.4:5:6:224.1.1.1": "source",
    "LBT-IPC:1": "source",
    "BROKER:1": "source",
    "TCP:1.2.3:5": "source.ip",
    "TCP:1.2.3.256:5": "source.ip",
    "TCP:1.2.3.-4:5": "source.ip",
    "TCP:1.2.3.\u0664:5": "source.ip",
    "TCP: 1.2.3.4:5": "source.ip",
    "TCP:1.2.3.4\n:5": "source.ip",
    "TCP:1.2.3.4:65536": "source.port",
    "TCP:1.2.3.4:": "source.port",
    "TCP:1.2.3.4:+5": "source.port",
    "TCP:1.2.3.4:\u0665": "source.port",
    "TCP:1.2.3.4:99999999999": "source.port",
    "TCP:1.2.3.4:5:": "source.session_id",
    "TCP:1.2.3.4:5:123456789": "source.session_id",
    "TCP:1.2.3.4:5:0x12": "source.session_id",
    "TCP:1.2.3.4:5[": "source.port",
    "TCP:1.2.3.4:5]": "source.topic_index",
    "TCP:1.2.3.4:5[]": "source.topic_index",
    "TCP:1.2.3.4:5[4294967296]": "source.topic_index",
    "TCP:1.2.3.4:5[-1]": "source.topic_index",
    "LBTRM:1.2.3.4:5:6:223.1.1.1:7": "source.group",
    "LBTRM:1.2.3.4:5:6:240.1.1.1:7": "source.group",
    "LBT-IPC:1:65536": "source.transport_id",
    "TCP:" * 100: "source",
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_string_is_refused_and_its_bad_part_named(text: str) -> None:
    with pytest.raises(DecodeError) as caught:
        parse_source(text)
    assert caught.value.where == BAD[text]


def test_a_transport_that_is_not_known_is_shown_but_not_parsed() -> None:
    text = format_source(UnknownTransport(0x11, b"\x01\xff"), 4)
    assert text == "UNKNOWN:11:01ff[4]"
    with pytest.raises(DecodeError):
        parse_source(text)


def test_sessions_compare_without_the_form_of_their_tir() -> None:
    assert TcpAddress(IP, 1, long_form=True) == TcpAddress(IP, 1)
    assert hash(LbtruAddress(IP, 1, long_form=True)) == hash(LbtruAddress(IP, 1))


@given(st.integers(0, 0xFFFFFFFF))
def test_addresses_read_back(ip: int) -> None:
    assert parse_ip(ip_text(ip)) == ip


@given(some.session_addresses, st.none() | some.u32)
def test_every_session_of_ours_reads_back(address: TransportAddress, topic_index: int | None) -> None:
    match address:
        case IpcAddress(_, session, transport_id):
            address = IpcAddress(0, session, transport_id)
        case SmxAddress(_, session, transport_id):
            address = SmxAddress(0, session, transport_id)
        case LbtrmAddress(ip, group, session, dport, nak_port):
            address = LbtrmAddress(ip, 0xE0000000 | group & 0x0FFFFFFF, session, dport, nak_port)
    assert parse_source(format_source(address, topic_index)) == SourceString(address, topic_index)


@given(st.text(max_size=60) | st.from_regex(r"(TCP|LBTRM|LBT-RU|LBT-IPC):[0-9a-f:.\[\]]{0,40}", fullmatch=True))
def test_arbitrary_text_raises_only_decode_errors(text: str) -> None:
    try:
        read = parse_source(text)
    except DecodeError:
        return
    assert parse_source(format_source(read.address, read.topic_index)) == read
