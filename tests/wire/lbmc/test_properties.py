"""Message properties: both byte orders, all types, and blocks that lie."""

from __future__ import annotations

import contextlib
import math
import struct
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.dissect import packet as dissect
from dro.errors import DecodeError, LocalProtocolError
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc import properties
from dro.wire.lbmc.properties import Property, PropertyType
from tests.builders.lbmc_messages import data_message, properties_chain

SAMPLE: Final = (
    Property(b"flag", PropertyType.BOOLEAN, True),
    Property(b"byte", PropertyType.BYTE, -7),
    Property(b"short", PropertyType.SHORT, -300),
    Property(b"int", PropertyType.INT, -5),
    Property(b"long", PropertyType.LONG, 1 << 40),
    Property(b"float", PropertyType.FLOAT, 0.25),
    Property(b"double", PropertyType.DOUBLE, math.pi),
    Property(b"text", PropertyType.STRING, b"caf\xc3\xa9"),
    Property(b"", PropertyType.STRING, b"", 5),
)
ORDERS: Final[tuple[properties.ByteOrder, ...]] = ("big", "little")


@pytest.mark.parametrize("order", ORDERS)
def test_every_type_survives_in_both_orders(order: properties.ByteOrder) -> None:
    block = properties.encode(SAMPLE, order)
    assert block[:4] == bytes.fromhex("abacdaba" if order == "big" else "badaacab")
    assert properties.decode(block) == SAMPLE
    assert properties.decode(properties.encode((), order)) == ()


def test_properties_are_the_tail_of_the_payload() -> None:
    block = properties.encode(SAMPLE)
    message = data_message(9, 0, b"body" + block, blocks=(properties_chain(len(block)),))
    assert properties.split(lbmc.decode(lbmc.encode(message))) == (b"body", block)
    assert properties.split(data_message(9, 0, b"body")) == (b"body", b"")
    printed = dissect.fields("lbmc", lbmc.encode(message))
    assert printed.error is None
    assert printed.values["data.data"] == "62:6f:64:79"
    assert printed.values["lbmc.lbm_msg_properties.hdr.int_value"] == str(2**32 - 5)
    assert printed.values["lbmc.lbm_msg_properties.hdr.double_value"] == "3.14159265358979"


def test_a_length_beyond_the_payload_is_refused() -> None:
    message = data_message(9, 0, b"body", blocks=(properties_chain(5),))
    with pytest.raises(DecodeError):
        properties.split(message)
    assert dissect.fields("lbmc", lbmc.encode(message)).error is not None


def block_of(count: int, *entries: tuple[int, int, int], tail: bytes = b"", head: str = "abacdaba") -> bytes:
    fixed = bytes.fromhex(head) + struct.pack(">HBB", count, 0, 0)
    return fixed + b"".join(struct.pack(">IIII", key, value, 0, kind) for key, value, kind in entries) + tail


BAD: Final = {
    "empty": b"",
    "seven bytes": bytes.fromhex("abacdaba000000"),
    "magic": block_of(0, head="abacdabb"),
    "version": bytes.fromhex("abacdaba00001000"),
    "more fields than bytes": block_of(2, (24, 26, 2), tail=b"k\0\7"),
    "key outside": block_of(1, (99, 26, 2), tail=b"k\0\7"),
    "key without end": block_of(1, (24, 24, 2), tail=b"k"),
    "value outside": block_of(1, (24, 27, 2), tail=b"k\0\7"),
    "value cut": block_of(1, (24, 26, 4), tail=b"k\0\0\0\7"),
    "string without end": block_of(1, (24, 26, 8), tail=b"k\0text"),
    "type 0": block_of(1, (24, 26, 0), tail=b"k\0\0\0\0\0"),
    "type 9": block_of(1, (24, 26, 9), tail=b"k\0\0\0\0\0"),
}


@pytest.mark.parametrize("block", BAD.values(), ids=BAD)
def test_a_bad_block_is_refused(block: bytes) -> None:
    with pytest.raises(DecodeError):
        properties.decode(block)
    message = data_message(9, 0, block, blocks=(properties_chain(len(block)),))
    if block:
        assert dissect.fields("lbmc", lbmc.encode(message)).error is not None


def test_values_that_share_bytes_cannot_multiply_the_memory() -> None:
    count = 2000
    start = 8 + 16 * count
    block = block_of(count, *[(start, start, 8)] * count, tail=b"x" * 30000 + b"\0")
    with pytest.raises(DecodeError, match="overlap"):
        properties.decode(block)
    message = data_message(9, 0, block, blocks=(properties_chain(len(block)),))
    printed = dissect.fields("lbmc", lbmc.encode(message))
    assert printed.error is not None
    assert sum(len(text) for values in printed.values.values() for text in values) < 20 * len(block)


@pytest.mark.parametrize(
    "item",
    [
        Property(b"k", PropertyType.BYTE, 128),
        Property(b"k", PropertyType.INT, 1.5),
        Property(b"k", PropertyType.STRING, 1),
        Property(b"k", PropertyType.STRING, b"a\0b"),
        Property(b"a\0b", PropertyType.BYTE, 1),
        Property(b"k", PropertyType.FLOAT, 1e300),
    ],
    ids=repr,
)
def test_what_does_not_fit_is_our_own_fault(item: Property) -> None:
    with pytest.raises(LocalProtocolError):
        properties.encode([item])


texts = st.binary(max_size=20).map(lambda raw: raw.replace(b"\0", b"."))
values = st.one_of(
    st.tuples(st.just(PropertyType.BOOLEAN), st.booleans()),
    st.tuples(st.just(PropertyType.BYTE), st.integers(-128, 127)),
    st.tuples(st.just(PropertyType.SHORT), st.integers(-(2**15), 2**15 - 1)),
    st.tuples(st.just(PropertyType.INT), st.integers(-(2**31), 2**31 - 1)),
    st.tuples(st.just(PropertyType.LONG), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just(PropertyType.FLOAT), st.floats(width=32, allow_nan=False)),
    st.tuples(st.just(PropertyType.DOUBLE), st.floats(allow_nan=False)),
    st.tuples(st.just(PropertyType.STRING), texts),
)
items = st.builds(lambda key, value: Property(key, *value), texts, values)


@given(st.lists(items, max_size=8), st.sampled_from(ORDERS))
def test_round_trip(sample: list[Property], order: properties.ByteOrder) -> None:
    assert properties.decode(properties.encode(sample, order)) == tuple(sample)


@given(st.binary(max_size=120), st.sampled_from([b"", bytes.fromhex("abacdaba"), bytes.fromhex("badaacab")]))
def test_arbitrary_bytes_raise_nothing_but_decode_errors(tail: bytes, magic: bytes) -> None:
    with contextlib.suppress(DecodeError):
        properties.decode(magic + tail)
