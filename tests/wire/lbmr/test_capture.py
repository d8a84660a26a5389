"""Packets that UM 6.14 sent: all LBMR of the capture, and those that were annotated byte by byte."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from dro.dissect.fields import FieldList
from dro.dissect.lbmr import lbmr_fields
from dro.wire import otid
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.options import SenderVersion
from dro.wire.source_string import LbtrmAddress, format_source
from tests.builders.tir_options import tir_options

CAPTURE: Final = Path(__file__).parents[2] / "golden" / "captures" / "um-lbtrm-single-source.pcap"
OPTIONS_R: Final = "810c80000d5f10a7eba3f94a8204800083088001060e0000840880000000000080040024"
OPTIONS_W: Final = "810c800027a4abdfc5eeaba58204800083088001060e0000840880000000000080040024"
OPTIONS_A: Final = "810c8000c64aaecb2b0204c88204800083088001060e0000840880000000000080040024"
OPTIONS_B: Final = "810c800012c4ba70db622fd28204800083088001060e0000840880000000000080040024"
TOPIC_0: Final = "3239776573742e6578616d706c652e6d756c74692e3000"
TOPIC_1: Final = "3239776573742e6578616d706c652e6d756c74692e3100"
BODY_B: Final = "0e10800038380000" + "0a1d047900000000" + "0a1d0479ef65030aa7f1056138402f3b"
ANNOTATED: Final = {
    "tqr": "18010000" + TOPIC_0 + OPTIONS_R,
    "wildcard": "1901000001" + "5e3239776573745c2e6578616d706c655c2e6d756c74695c2e5b30315d2400" + OPTIONS_W,
    "creation": "18000001" + TOPIC_0 + "9010001050a53ee90004003808248000"
    "100a1d04792f3aef65030a38403e4fd7f950a53ee9f8fe40d8db32fc97000001"
    "0e108000383700000a1d0479000000000a1d0479ef65030af9d74f3e38402f3a" + OPTIONS_A,
    "two_tirs": "18000002" + TOPIC_0 + "9010003c1aea39860004003808248000"
    "100a1d04792f3bef65030a38406105f1a71aea3986d4b7f3478a26a49d000001"
    + BODY_B
    + TOPIC_1
    + "9010003c1aea39870004003808248000"
    "100a1d04792f3bef65030a38406105f1a71aea3987d4b7f3478a26a49d000001" + BODY_B + OPTIONS_B,
    "two_tqrs": "18020000" + TOPIC_0 + TOPIC_1 + OPTIONS_W,
}


def udp_payloads(port: int) -> Iterator[bytes]:
    """Payloads of all UDP packets to `port`: classic little-endian pcap, Ethernet, IPv4."""
    data = CAPTURE.read_bytes()
    assert struct.unpack_from("<I", data)[0] == 0xA1B2C3D4
    at = 24
    while at < len(data):
        size = struct.unpack_from("<I", data, at + 8)[0]
        frame = data[at + 16 : at + 16 + size]
        at += 16 + size
        if frame[12:14] != b"\x08\x00" or frame[23] != 17:
            continue
        udp = 14 + 4 * (frame[14] & 15)
        _, dport, length = struct.unpack_from("!HHH", frame, udp)
        if dport == port:
            yield frame[udp + 8 : udp + length]


PACKETS: Final = tuple(udp_payloads(12965))


def test_the_capture_holds_what_its_description_says() -> None:
    kinds: Counter[str] = Counter()
    for data in PACKETS:
        match lbmr.decode(data).body:
            case lbmr.Queries(tqrs, tirs):
                kinds[f"{len(tqrs)} tqr, {len(tirs)} tir"] += 1
            case lbmr.WildcardQueries(patterns, ()):
                kinds[f"{len(patterns)} wildcard"] += 1
            case other:
                kinds[type(other).__name__] += 1
    assert kinds == {"1 tqr, 0 tir": 41, "2 tqr, 0 tir": 1, "1 wildcard": 18, "0 tqr, 1 tir": 62}


def test_every_packet_of_the_capture_is_written_as_it_came() -> None:
    assert len(PACKETS) == 122
    for data in PACKETS:
        assert lbmr.encode(lbmr.decode(data)) == data


def test_every_packet_of_the_capture_carries_the_five_packet_options() -> None:
    for data in PACKETS:
        packet = lbmr.decode(data)
        assert packet.version == 1
        assert packet.options is not None
        assert [type(item) for item in packet.options.items] == [
            lbmr.SourceId,
            lbmr.SourceType,
            SenderVersion,
            lbmr.LocalDomain,
        ]
        assert packet.options.source_type == lbmr.SenderType.APPLICATION
        assert packet.options.version == 0x060E0000
        assert packet.options.local_domain == 0


def test_the_otid_of_every_tir_is_what_its_transport_and_index_say() -> None:
    ttls: Counter[int] = Counter()
    for data in PACKETS:
        body = lbmr.decode(data).body
        for tir in body.tirs if isinstance(body, lbmr.Queries) else ():
            assert tir.otid is not None
            name = otid.decode(tir.otid)
            assert (name.address, name.topic_index) == (tir.transport, tir.topic_index)
            assert otid.encode(name.address, name.topic_index, name.context_id, name.transport_index) == tir.otid
            assert name.context_id == 4177412312
            assert str(name) == "LBTRM:10.29.4.121:12090:f9d74f3e:239.101.3.10:14400[1353006825]"
            ttls[tir.ttl] += 1
    assert ttls == {lbmr.FIRST_TIR_TTL: 1, lbmr.TIR_TTL: 61}


def test_every_packet_of_the_capture_can_be_dissected() -> None:
    for data in PACKETS:
        out = FieldList()
        lbmr_fields(data, out)
        assert out.as_dict()["lbmr.opt.len.total_len"] == "36"


@pytest.mark.parametrize("name", ANNOTATED)
def test_an_annotated_packet_is_written_as_it_came(name: str) -> None:
    data = bytes.fromhex(ANNOTATED[name])
    assert lbmr.encode(lbmr.decode(data)) == data


def test_the_creation_advertisement_can_be_made_from_its_values() -> None:
    address = LbtrmAddress(0x0A1D0479, 0xEF65030A, 0xF9D74F3E, 14400, 12090)
    tir = lbmr.Tir(
        b"29west.example.multi.0",
        address,
        lbmr.FIRST_TIR_TTL,
        1353006825,
        tir_options(
            otid=otid.encode(address, 1353006825, 4177412312, 0xDB32FC97),
            extended=lbmr.ExtendedFunctionality(14391, 0x0A1D0479, 0),
        ),
    )
    options = lbmr.PacketOptions(
        (
            lbmr.SourceId(bytes.fromhex("c64aaecb2b0204c8")),
            lbmr.SourceType(lbmr.SenderType.APPLICATION),
            SenderVersion(0x060E0000),
            lbmr.LocalDomain(0),
        )
    )
    assert lbmr.encode(lbmr.Packet(1, options, lbmr.Queries((), (tir,)))).hex() == ANNOTATED["creation"]
    assert lbmr.pack_tirs([tir], options, 8192) == [bytes.fromhex(ANNOTATED["creation"])]
    assert format_source(address, tir.topic_index) == "LBTRM:10.29.4.121:12090:f9d74f3e:239.101.3.10:14400[1353006825]"


def test_two_sources_of_one_context_differ_in_the_topic_index_of_their_otids() -> None:
    body = lbmr.decode(bytes.fromhex(ANNOTATED["two_tirs"])).body
    assert isinstance(body, lbmr.Queries)
    first, second = (otid.decode(tir.otid) for tir in body.tirs if tir.otid)
    assert first.address == second.address
    assert (first.topic_index, second.topic_index) == (0x1AEA3986, 0x1AEA3987)
    assert first.context_id == second.context_id == 3568825159
    assert first.transport_index == second.transport_index == 0x8A26A49D


def test_standard_options_are_those_of_the_capture_but_for_the_version() -> None:
    made = lbmr.standard_options(bytes.fromhex("0d5f10a7eba3f94a"), lbmr.SenderType.APPLICATION, 0)
    data = lbmr.encode(lbmr.Packet(1, made, lbmr.Queries((b"29west.example.multi.0",))))
    assert data.hex() == ANNOTATED["tqr"].replace("060e0000", "06110000")
