"""LBMR against arbitrary packets and arbitrary bytes."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dro.dissect.fields import FieldList
from dro.dissect.lbmr import lbmr_fields
from dro.errors import DecodeError
from dro.wire.lbmr import packet as lbmr
from tests.builders import lbmr_strategies as some


@given(some.packets)
def test_decoding_what_was_encoded_gives_it_back(packet: lbmr.Packet) -> None:
    data = lbmr.encode(packet)
    assert lbmr.decode(data) == packet
    assert lbmr.encode(lbmr.decode(data)) == data
    out = FieldList()
    lbmr_fields(data, out)
    assert out.as_dict()["lbmr.hdr.ver"] == str(packet.version)


@given(some.packets, st.data())
def test_a_truncated_packet_raises_only_decode_errors(packet: lbmr.Packet, data: st.DataObject) -> None:
    whole = lbmr.encode(packet)
    check(whole[: data.draw(st.integers(0, len(whole)))])


@given(some.packets, st.data())
def test_a_packet_with_a_byte_changed_raises_only_decode_errors(packet: lbmr.Packet, data: st.DataObject) -> None:
    raw = bytearray(lbmr.encode(packet))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(some.u8)
    check(bytes(raw))


@given(st.binary(max_size=400))
@example(b"\x07\x02\x00\x01")
@example(b"\x08\x00\x00\x00\x80\x04\x00\x04")
def test_arbitrary_bytes_raise_only_decode_errors(data: bytes) -> None:
    check(data)


@given(some.u8, some.u8, st.binary(max_size=200))
def test_arbitrary_bytes_behind_a_header_raise_only_decode_errors(first: int, second: int, rest: bytes) -> None:
    check(bytes((first & 0x1F, second % 9)) + rest)


def check(data: bytes) -> None:
    """Strict and lenient decoding and the dissector agree on whether the packet is sound, and raise nothing else."""
    packet, trouble = lbmr.decode_lenient(data)
    out = FieldList()
    if trouble is None:
        assert packet is not None
        assert lbmr.decode(data) == packet
        lbmr_fields(data, out)
    else:
        with pytest.raises(DecodeError):
            lbmr.decode(data)
        with pytest.raises(DecodeError):
            lbmr_fields(data, out)
    if packet is not None:  # whatever was read can be written, and means the same then
        again = lbmr.decode(lbmr.encode(packet))
        assert again == packet


def worst_cases() -> list[bytes]:
    size = 65507
    return [
        b"\x10\xff\xff\xff" + bytes(size - 4),
        b"\x10\x00\xff\xff" + (b"\0\x02\0" + bytes(6)) * ((size - 4) // 9),
        b"\x11\xff\xff\xff" + bytes(size - 4),
        b"\x14\x00\x00\x00\xff\xdf\xff\xff" + b"\0\x05\0\0\0" * ((size - 8) // 5),
        b"\x16\xff\xff\xff" + b"\0\0" + b"\xff" * (size - 6),
        b"\x17\x05\xff\xe3\0\0\0\0\xff\xdb\xff\xff" + b"\0\x08\0\0\0\0\0\0" * ((size - 12) // 8),
        b"\x17\x06\xff\xff" + bytes(8) + b"\x00\x04\x00\x0c" + b"\1" * (size - 16),
        b"\x17\x07\xff\xe3\xff\xff\0\0" + b"\0\x04\0\0" * ((size - 8) // 4),
        b"\x17\x02\0\1" + bytes(38) + b"\xff\xff" + b"\1" * (size - 44),
        b"\x18\0\0\0" + b"\x90\x04\x80\0" * ((size - 8) // 4) + b"\x80\x04\xff\xdc",
    ]


@pytest.mark.parametrize("data", worst_cases(), ids=lambda data: data[:4].hex())
def test_the_largest_datagram_costs_bounded_time_and_memory(data: bytes) -> None:
    assert len(data) <= 65507
    began = time.process_time()
    lbmr.decode_lenient(data)
    assert time.process_time() - began < 1.0
    tracemalloc.start()
    try:
        lbmr.decode_lenient(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 * 1024 * 1024
