"""The dissector: dispatch, the layout notation, field lists, and what it prints of bytes that are wrong."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.dissect import packet as dissect
from dro.dissect.fields import FieldList, colon_hex, flag, hexint, ip4
from dro.dissect.spec import compile_spec, printed_text
from dro.errors import DecodeError, LocalProtocolError


def raw(text: str) -> bytes:
    return bytes.fromhex(text)


def test_a_protocol_that_is_none_is_our_own_fault() -> None:
    with pytest.raises(LocalProtocolError):
        dissect.fields("lbmx", b"")
    assert set(dissect.PROTOCOLS) == {"lbmr", "lbmc", "lbtrm", "lbtru", "lbttcp", "lbmsrs"}


def test_a_name_that_occurs_again_becomes_a_list() -> None:
    out = FieldList()
    out.add("b", "1")
    out.add("a", "2")
    out.add("b", "3")
    assert out.as_dict() == {"b": ["1", "3"], "a": "2"}
    assert list(out.as_dict()) == ["b", "a"]
    assert len(out) == 3


def test_printed_forms() -> None:
    assert hexint(0xAB, 4) == "0x00ab"
    assert colon_hex(b"\x00\xff") == "00:ff"
    assert colon_hex(b"") == ""
    assert ip4(0x0A1D0358) == ip4(raw("0a1d0358")) == "10.29.3.88"
    assert (flag(0), flag(0x80), flag(True)) == ("0", "1", "1")
    assert printed_text(b"a\\b\n\xff\xc3\xa9\x00rest") == "a\\b\n\ufffd\ufffd\ufffd"


def test_the_layout_notation() -> None:
    layout = compile_spec("p.rec", "flags:x2[ignore=8000,low=f:d,wide=f0:x4] _:d1[^other=80] -1 @3 n:i8 a:ip b:b2 t:s*")
    out = FieldList()
    data = raw("80a7 80 fffffffffffffffe 01020304 abcd") + b"text"
    assert layout.print_fields(data, 0, 0, len(data), out) == len(data)
    assert out.as_dict() == {
        "p.rec.flags": "0x80a7",
        "p.rec.flags.ignore": "1",
        "p.rec.flags.low": "7",
        "p.rec.flags.wide": "0x000a",
        "p.other": "1",
        "p.rec.n": "-2",
        "p.rec.a": "1.2.3.4",
        "p.rec.b": "ab:cd",
        "p.rec.t": "text",
    }


def test_a_layout_that_runs_out_names_the_field_and_keeps_what_it_printed() -> None:
    layout = compile_spec("p.rec", "a:d2 b:d4")
    out = FieldList()
    with pytest.raises(DecodeError) as caught:
        layout.print_fields(raw("0001 0002 00"), 0, 0, 5, out)
    assert (caught.value.where, caught.value.offset) == ("p.rec.b", 2)
    assert out.as_dict() == {"p.rec.a": "1"}


def test_fields_before_the_fault_are_printed() -> None:
    got = dissect.fields("lbmc", raw("0001 0018 00000007 00000009 00 0a 0000 00000001 0000") + b"zz")
    assert got.error is not None
    assert got.values["lbmc.frag.first_sqn"] == "1"
    assert "lbmc.frag.offset" not in got.values


def test_a_message_past_the_end_is_printed_and_refused() -> None:
    got = dissect.fields("lbtrm", raw("00003836 e0679abb 00000000 00000000 80030000 0000001d 00000007 00000009 41"))
    assert got.error is not None
    assert got.error.offset == 20
    assert got.values["data.data"] == "41"


def test_another_version_is_printed_and_refused() -> None:
    message = raw("0000000d 00000007 00000009 41")
    for proto, data in (
        ("lbmc", b"\x10" + message[1:]),
        ("lbtrm", raw("10003836 e0679abb 00000000 00000000 80030000") + message),
        ("lbtru", raw("10000000 00000000 00000000") + message),
    ):
        got = dissect.fields(proto, data)
        assert got.error is not None
        assert got.values["data.data"] == "41"


def test_an_unknown_block_is_shown_by_its_head_and_is_no_fault() -> None:
    got = dissect.fields("lbmc", raw("086c0012 6b06 8000aabb ff08 0000 00000001"))
    assert got.error is None
    assert got.values["lbmc.unhandled.hdr_len"] == "6"
    assert got.values["lbmc.tcp_sid.sid"] == "0x00000001"


def test_a_stream_that_ends_within_a_message_is_a_fault() -> None:
    whole = raw("0000000d 00000007 00000009 41")
    assert dissect.fields("lbttcp", whole).error is None
    for size in range(1, len(whole)):
        assert dissect.fields("lbttcp", whole[:size]).error is not None
        assert dissect.fields("lbttcp", whole + whole[:size]).error is not None


def test_pieces_of_an_extended_option_must_follow_each_other() -> None:
    got = dissect.fields("lbmc", raw("08fe001a fe0b 20010101 0003 616263 ff0b 00010101 0000 646566"))
    assert got.error is not None
    assert got.values["lbmc.extopt.data"] == "61:62:63"


@given(st.sampled_from(["lbmc", "lbtrm", "lbtru", "lbttcp"]), st.binary(max_size=300))
def test_arbitrary_bytes_raise_nothing(proto: str, data: bytes) -> None:
    got = dissect.fields(proto, data)
    assert sum(len(v) for v in got.values.values()) <= 400 * (len(data) + 1)


codes = st.integers(1, 0xFE)
block = st.tuples(codes, st.binary(min_size=2, max_size=253))


@given(st.lists(block, max_size=5), st.binary(max_size=80))
def test_arbitrary_blocks_raise_nothing(blocks: list[tuple[int, bytes]], payload: bytes) -> None:
    follow = [code for code, _ in blocks] + [0]
    chain = b"".join(bytes((after, 2 + len(body))) + body for (_, body), after in zip(blocks, follow[1:], strict=True))
    size = 12 + len(chain) + len(payload)
    dissect.fields("lbmc", bytes((0, follow[0])) + size.to_bytes(2, "big") + bytes(8) + chain + payload)


def test_the_largest_message_of_the_smallest_blocks_is_printed_in_bounded_time() -> None:
    """Counts and lengths inside blocks do not multiply the work."""
    for code, body in ((0xFE, raw("20010100 ffff")), (0x52, raw("0001") + bytes(16) + raw("ffffffff") + bytes(8))):
        one = bytes((code, 2 + len(body))) + body
        count = (65535 - 4) // len(one)
        data = bytes((8, code)) + (4 + count * len(one)).to_bytes(2, "big") + one * count
        start = time.process_time()
        got = dissect.fields("lbmc", data)
        assert time.process_time() - start < 20
        assert got.error is not None
