"""Every golden LBMR packet: fields as the standard dissector prints them, and bytes as they came."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from dro.dissect.fields import FieldList
from dro.dissect.lbmr import lbmr_fields
from dro.errors import DecodeError
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.options import Functionality
from dro.wire.lbmr.tnwg import TnwgAddress, TnwgContextInstance, TnwgDomain, TnwgName

VECTORS: Final = Path(__file__).parents[2] / "golden" / "vectors" / "lbmr.jsonl"

REWRITTEN: Final = {  # the codec writes other bytes for what it read, and why
    "tir_opt_umq_qinfo": "a counted string goes out with a NUL; here it came without",
    "tnwg_interest_topic_unterminated": "a counted string goes out with a NUL; here it came without",
    "rctxinfo_two_records": "a counted string goes out with a NUL; here one of two came without",
}
OPEN_ENDED: Final = {"qmgmt_instance_list", "qmgmt_join_request"}  # a queue name that ends with the packet


@dataclass(frozen=True, slots=True)
class Vector:
    name: str
    data: bytes
    expect: dict[str, str | list[str]]


def load() -> list[Vector]:
    rows = [json.loads(line) for line in VECTORS.read_text().splitlines()]
    return [Vector(row["name"], bytes.fromhex(row["hex"]), row["expect"]) for row in rows]


ALL: Final = load()
BY_NAME: Final = {v.name: v for v in ALL}
every = pytest.mark.parametrize("vector", ALL, ids=lambda v: v.name)


def test_all_vectors_are_there() -> None:
    assert len(ALL) == 100
    assert REWRITTEN.keys() | OPEN_ENDED <= BY_NAME.keys()


@every
def test_fields_equal_those_of_the_standard_dissector(vector: Vector) -> None:
    out = FieldList()
    lbmr_fields(vector.data, out)
    assert out.as_dict() == vector.expect


@every
def test_encoding_what_was_decoded_gives_the_same_bytes(vector: Vector) -> None:
    again = lbmr.encode(lbmr.decode(vector.data))
    assert (again == vector.data) is (vector.name not in REWRITTEN)
    assert lbmr.decode(again) == lbmr.decode(vector.data)


@every
def test_every_truncated_prefix_is_refused(vector: Vector) -> None:
    full = lbmr.decode(vector.data)
    for length in range(len(vector.data)):
        packet, trouble = lbmr.decode_lenient(vector.data[:length])
        if vector.name in OPEN_ENDED and trouble is None:
            assert length >= 44
            continue
        assert trouble is not None, length
        with pytest.raises(DecodeError):
            lbmr.decode(vector.data[:length])
        if packet is not None:
            assert type(packet.body) is type(full.body)


@every
def test_fields_of_a_truncated_prefix_are_those_before_the_error(vector: Vector) -> None:
    for length in range(len(vector.data)):
        out = FieldList()
        if lbmr.decode_lenient(vector.data[:length])[1] is None:
            assert vector.name in OPEN_ENDED
            lbmr_fields(vector.data[:length], out)
            continue
        with pytest.raises(DecodeError):
            lbmr_fields(vector.data[:length], out)
        if length > 3 and out.as_dict():
            assert out.as_dict()["lbmr.hdr.type"] == vector.expect["lbmr.hdr.type"]


@every
def test_bytes_behind_the_body_are_ignored(vector: Vector) -> None:
    """With packet options they stand between body and options; a queue name takes what is there."""
    packet = lbmr.decode(vector.data)
    if vector.name in OPEN_ENDED:
        return
    if packet.options is None:
        longer = vector.data + b"\xff\x00\x01"
    else:
        size = int.from_bytes(vector.data[-2:], "big")
        longer = vector.data[:-size] + b"\xff\x00\x01" + vector.data[-size:]
    assert lbmr.decode(longer) == packet


def test_lenient_decoding_keeps_the_records_before_the_error() -> None:
    data = BY_NAME["tir_four_transports"].data
    full = lbmr.decode(data).body
    assert isinstance(full, lbmr.Queries)
    seen = set()
    for length in range(4, len(data)):
        packet, trouble = lbmr.decode_lenient(data[:length])
        assert trouble is not None
        assert packet is not None
        assert isinstance(packet.body, lbmr.Queries)
        assert packet.body.tirs == full.tirs[: len(packet.body.tirs)]
        seen.add(len(packet.body.tirs))
    assert seen == {0, 1, 2, 3}


def test_a_proxy_source_advertisement_of_a_dro_reads_as_one() -> None:
    packet = lbmr.decode(BY_NAME["dro_proxy_source_tir"].data)
    assert packet.options is not None
    assert packet.options.is_from_dro
    assert packet.options.source_id == bytes.fromhex("0f1e2d3c4b5a6978")
    assert packet.options.local_domain == 2
    assert packet.options.version == 0x06100000
    assert isinstance(packet.body, lbmr.Queries)
    (tir,) = packet.body.tirs
    assert tir.options is not None
    assert tir.otid == bytes(range(0x20, 0x40))
    assert tir.options.cost == lbmr.Cost(2, 11)
    assert tir.options.domain_id == 1
    assert tir.options.context_instance == bytes.fromhex("a1b2c3d4e5f60718")
    assert tir.options.extended == lbmr.ExtendedFunctionality(14391, 0x0A010101, Functionality.LATE_JOIN)
    assert not tir.is_final


def test_a_cost_of_minus_one_is_a_final_advertisement() -> None:
    body = lbmr.decode(BY_NAME["tir_opt_cost_minus_one"].data).body
    assert isinstance(body, lbmr.Queries)
    assert body.tirs[0].is_final


def test_four_tnwg_options_which_the_standard_dissector_cannot_show() -> None:
    data = bytes.fromhex(
        "1705003c00010000"
        "00340300f000000000000000"
        "000c00001122334455667788"
        "010c0000383700000a010203"
        "0208000000000009"
        "0308000063747800"
    )
    packet = lbmr.decode(data)
    assert packet.body == lbmr.TnwgContextInfo(
        3,
        0xF0000000,
        0,
        (
            TnwgContextInstance(bytes.fromhex("1122334455667788")),
            TnwgAddress(14391, 0x0A010203),
            TnwgDomain(9),
            TnwgName(b"ctx"),
        ),
    )
    assert lbmr.encode(packet) == data
    out = FieldList()
    lbmr_fields(data, out)
    assert out.as_dict()["lbmr.tnwg.opt_name.name"] == "ctx"
