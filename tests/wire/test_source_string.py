"""Source strings of addresses."""

from __future__ import annotations

import pytest

from dro.wire.source_string import (
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
    parse_source,
)

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
]


@pytest.mark.parametrize(("text", "address", "topic_index"), PAIRS, ids=[text for text, _, _ in PAIRS])
def test_an_address_has_one_source_string(text: str, address: TransportAddress, topic_index: int | None) -> None:
    assert parse_source(text, getattr(address, "host_id", 0)) == SourceString(address, topic_index)
    assert format_source(address, topic_index) == text


def test_a_transport_that_is_not_known_is_shown() -> None:
    text = format_source(UnknownTransport(0x11, b"\x01\xff"), 4)
    assert text == "UNKNOWN:11:01ff[4]"


def test_sessions_compare_without_the_form_of_their_tir() -> None:
    assert TcpAddress(IP, 1, long_form=True) == TcpAddress(IP, 1)
    assert hash(LbtruAddress(IP, 1, long_form=True)) == hash(LbtruAddress(IP, 1))


@pytest.mark.parametrize(
    "text",
    [
        "", "TCP", "TCP:1.2.3:4", "TCP:1.2.3.256:4", "TCP:1.2.3.4:65536", "TCP:1.2.3.4:5:123456789", "TCP:1.2.3.4:5[",
        "TCP:1.2.3.4:5[4294967296]", "LBTRM:1.2.3.4:5:6", "UNKNOWN:03:00", "LBT-IPC:1:65536", " TCP:1.2.3.4:5",
    ],
)  # fmt: skip
def test_what_is_no_source_string_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no source string|does not fit"):
        parse_source(text)
