"""Control requests: each text of the grammar is read, and what is no request says why."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.errors import DecodeError
from dro.lbmmon.control import (
    GROUPS,
    MAX_REQUEST,
    OF_PORTALS,
    ControlRequest,
    MonitorCommand,
    decode_command,
    encode_command,
    parse_request,
)
from dro.lbmmon.fields import CONTROL, PB, message_class
from dro.lbmmon.packet import HEADER, attribute_table, format_attribute, framed
from tests.builders.golden_statistics import published_class

BLANKS = st.text(" \t", max_size=3)
BETWEEN = st.text(" \t", min_size=1, max_size=3)
NAMES = st.text(st.characters(codec="utf-8", exclude_characters='"\0'), min_size=1, max_size=20)


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, ControlRequest]:
    """A text of the grammar, and what it asks for."""
    verb = draw(st.sampled_from(["version", "snap", "interval"]))
    portal = draw(st.none() | NAMES) if verb != "version" else None
    group = "" if verb == "version" else draw(st.sampled_from(GROUPS if portal is None else OF_PORTALS))
    if verb == "snap" and portal is None and draw(st.booleans()):
        group = ""
    seconds = draw(st.integers(0, (1 << 31) - 1)) if verb == "interval" else None
    words = [f'"{portal}"'] if portal is not None else []
    words += {"version": ["version"], "snap": ["snap", group], "interval": [group, str(seconds)]}[verb]
    text = draw(BLANKS) + "".join(word + draw(BETWEEN) for word in words[:-1] if word) + words[-1] + draw(BLANKS)
    end = draw(st.sampled_from(["", "\0"]))
    return (text + end).encode(), ControlRequest(verb, group, portal, seconds)


@given(requests())
def test_a_request_of_the_grammar_is_read(made: tuple[bytes, ControlRequest]) -> None:
    text, request = made
    assert parse_request(text) == request


def reason(body: bytes) -> str:
    with pytest.raises(DecodeError) as told:
        parse_request(body)
    return told.value.why


@pytest.mark.parametrize(
    "body",
    [b"", b"\0", b"  ", b"snapshot", b"version 1", b"snap x", b"snap ri gcfg", b'"P" snap', b'"P" snap ri',
     b'"P" version', b'"P" ri 5', b'"P"snap pcfg', b'"" snap pcfg', b'"P snap pcfg', b'snap "P" pcfg', b"Snap",
     b"snap\n", b"snap\0\0", b"\0snap", b"snap\0 ", b"5 ri", b"ri5", b'"P"', b"\xff\xfe", b'"a"b" snap pcfg',
     b"snap\xa0ri"],
)  # fmt: skip
def test_what_is_no_request_is_not_understood(body: bytes) -> None:
    assert reason(body) == "unknown request"


@pytest.mark.parametrize(
    "body",
    [b"ri", b"ri ", b"ri x", b"ri -1", b"ri +1", b"ri 1.5", b"ri 2147483648", b"pstat 5 6", b'"P" pcfg', b"mallinfo 1s",
     b"gcfg 99999999999999999999999999", b"ri \xd9\xa3", b"ri \xb2"],
)  # fmt: skip
def test_a_number_that_is_no_interval(body: bytes) -> None:
    assert reason(body) == "bad interval"


@pytest.mark.parametrize("end", [b"", b"\0"])
def test_a_name_may_have_blanks_and_a_request_255_bytes(end: bytes) -> None:
    assert parse_request(b'"P 1  east" snap pstat' + end) == ControlRequest("snap", "pstat", "P 1  east")
    for size in (MAX_REQUEST, MAX_REQUEST + 1):
        name = b"n" * (size - len(b'"" pstat 10') - len(end))
        body = b'"' + name + b'" pstat 10' + end
        assert len(body) == size
        if size <= MAX_REQUEST:
            assert parse_request(body) == ControlRequest("interval", "pstat", name.decode(), 10)
        else:
            assert reason(body) == "request too long"


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    try:
        request = parse_request(body)
    except DecodeError as e:
        told = e.why
    else:
        told = request.verb
    assert told in ("version", "snap", "interval", "unknown request", "bad interval", "request too long")


def test_published_definitions_read_a_control_message() -> None:
    packet = encode_command(MonitorCommand("SET_INTERVAL", "GATEWAY", "dro1", "30"))
    _, kind, block, _, _ = HEADER.unpack_from(packet)
    read = published_class("UMMonControlMsg").FromString(packet[HEADER.size + block :])
    assert (kind, read.command, read.node_type, read.application_id, read.data) == (9, 0, 8, "dro1", "30")


@pytest.mark.parametrize(
    "command",
    [MonitorCommand("SNAP"), MonitorCommand("SET_INTERVAL", "GATEWAY", "dro1", "5"),
     MonitorCommand("CLEAR_INTERVAL", "CONTEXT", "a"), MonitorCommand("SET_FILTER_OPTIONS", data="x"),
     MonitorCommand("SET_DEBUG_INFO"), MonitorCommand("SAMPLE", "EVENT_QUEUE")],
)  # fmt: skip
def test_a_control_message_comes_back(command: MonitorCommand) -> None:
    assert decode_command(encode_command(command)) == command


def control(**fields: int | str) -> bytes:
    return framed(
        CONTROL, attribute_table(format_attribute(PB)), message_class("UMMonControlMsg")(**fields).SerializeToString()
    )


@pytest.mark.parametrize(
    ("packet", "why"),
    [
        (control(command=8), "command 8 is not known"),
        (control(command=3, node_type=9), "node_type 9 is not known"),
        (control(command=3, data="x"), "SNAP has no data"),
        (control(command=0), "bad interval"),
        (control(command=0, data="9" * 5000), "bad interval"),
        (control(command=0, data="0"), "an interval of 0 is CLEAR_INTERVAL"),
        (framed(3, attribute_table(format_attribute(PB)), b""), "no control message"),
        (control(command=3)[:-1], "the packet is cut off"),
        (framed(CONTROL, attribute_table(format_attribute(PB)), b"\xff"), "no protobuf message"),
    ],
)
def test_what_is_no_control_message_is_refused(packet: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        decode_command(packet)
