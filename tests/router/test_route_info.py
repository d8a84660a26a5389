"""The ROUTE message, and what of it is refused."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.errors import DecodeError
from dro.wire.lbmc.block import RawBlock
from dro.wire.lbmc.codes import BlockType
from dro.wire.lbmc.dro_blocks import GatewayName, RouteInfo, RouteInfoNeighbor
from dro.wire.lbmc.message import control_message, decode, encode
from router.route_info import (
    COST_MAX,
    NEIGHBOURS_MAX,
    RefusedRouteError,
    RouteHead,
    is_repeat,
    read_head,
    read_record,
    with_ttl,
    write_route,
)
from router.topology import DroRecord, Hotlink, Neighbour
from tests.router.networks import DRO_BIT

NODE = DRO_BIT | 5
costs = st.integers(1, COST_MAX)


@st.composite
def records(draw: st.DrawFn) -> DroRecord:
    ids = st.one_of(st.integers(1, 0xFFFF_FFFF), st.integers(DRO_BIT, 2 * DRO_BIT - 1).filter(lambda n: n != NODE))
    neighbours = tuple(Neighbour(n, draw(costs), draw(costs)) for n in sorted(draw(st.sets(ids, max_size=90))))
    indexed = [n.node_id for n in neighbours if n.node_id <= 0xFFFF_FFFF and draw(st.booleans())]
    hotlinks = tuple(Hotlink(domain, draw(st.integers(1, 0xFFFF))) for domain in indexed)
    name = draw(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40))
    return DroRecord(NODE, neighbours, hotlinks, draw(st.integers(0, 0xFFFF)), name, draw(st.integers(0, 255)))


def written(record: DroRecord, sqn: int = 1, ttl: int = 9, topology: int = 7) -> bytes:
    return write_route(record, sqn=sqn, ttl=ttl, topology=topology, configuration=8, gateway_version=0x01020300)


@given(records(), st.integers(0, 1 << 20), st.integers(1, 400))
def test_it_is_read_as_it_was_written(record: DroRecord, sqn: int, ttl: int) -> None:
    data = written(record, sqn, ttl)
    assert read_record(data) == record
    assert read_head(data) == RouteHead(NODE, 7, record.version, sqn & 0xFFFF, min(ttl, 255))
    passed_on = with_ttl(data, 3)
    assert read_head(passed_on) == replace(read_head(data), ttl=3)
    assert is_repeat(passed_on, data)


def test_its_blocks_are_those_of_the_wire_notes() -> None:
    record = DroRecord(NODE, (Neighbour(3, 1, 2),), (Hotlink(3, 4),), 6, "G1", sharing=1)
    assert decode(written(record)) == control_message(
        RouteInfo(NODE, 6, 1, 9, 7, 8, 0x01020300),
        GatewayName(b"G1"),
        RouteInfoNeighbor(3, 1, 2),
        RawBlock(BlockType.EXTOPT, bytes.fromhex("c000f0050000 00000003 0004")),
        RawBlock(BlockType.EXTOPT, bytes.fromhex("c000f00b0000 01")),
    )


def test_many_indexes_are_spread_over_blocks_that_each_stand_alone() -> None:
    neighbours = tuple(Neighbour(n, 1, 1) for n in range(1, 101))
    record = DroRecord(NODE, neighbours, tuple(Hotlink(n, n) for n in range(1, 101)))
    message = decode(written(record))
    options = [block.data for block in message.blocks if isinstance(block, RawBlock)]
    assert [(o[0], int.from_bytes(o[4:6], "big"), len(o)) for o in options] == [
        (0xE0, 0, 252), (0xE0, 246, 252), (0xC0, 492, 114),
    ]  # fmt: skip
    assert read_record(encode(message)) == record


def test_the_most_neighbours_fit_a_message() -> None:
    neighbours = tuple(Neighbour(n, 1, 1) for n in range(1, NEIGHBOURS_MAX + 1))
    record = DroRecord(NODE, neighbours, tuple(Hotlink(n.node_id, 1) for n in neighbours), name="x" * 400)
    assert len(read_record(written(record)).neighbours) == NEIGHBOURS_MAX
    with pytest.raises(RefusedRouteError, match="more than 2400"):
        read_record(written(DroRecord(NODE, (*neighbours, Neighbour(DRO_BIT, 1, 1)))))


def test_what_says_the_same_is_recognised() -> None:
    record = DroRecord(NODE, (Neighbour(3, 1, 2),), version=6, name="G1")
    data = written(record)
    assert is_repeat(written(record, sqn=2, ttl=3, topology=4), data)
    for other in (replace(record, version=7), replace(record, name="G2"), replace(record, neighbours=())):
        assert not is_repeat(written(other), data)


INFO = RouteInfo(NODE, 1, 1, 1)


@pytest.mark.parametrize(
    ("blocks", "why"),
    [
        ((replace(INFO, node_id=77),), "77 is the id of a domain"),
        ((INFO, RouteInfoNeighbor(0, 1, 1)), "0 cannot be its neighbour"),
        ((INFO, RouteInfoNeighbor(NODE, 1, 1)), f"{NODE} cannot be its neighbour"),
        ((INFO, RouteInfoNeighbor(3, 1, 1), RouteInfoNeighbor(3, 1, 1)), "3 twice"),
        ((INFO, RouteInfoNeighbor(3, 0, 1)), "0 to 3, costs are from 1 to 2147483647"),
        ((INFO, RouteInfoNeighbor(3, 1, COST_MAX + 1)), "2147483648 to 3, costs are from 1 to 2147483647"),
        ((INFO, RawBlock(0xEE, b"\0\0")), "has a block that is not known and must not be skipped"),
        ((INFO, RawBlock(0xFE, bytes.fromhex("c000f0050000000000030004"))), "index is of a domain that is not its"),
    ],
)
def test_what_cannot_be_is_refused(blocks: tuple[RouteInfo, ...], why: str) -> None:
    data = encode(control_message(*blocks))
    read_head(data)
    with pytest.raises(RefusedRouteError, match=why):
        read_record(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        encode(control_message(RawBlock(0xFE, bytes(40)))),
        encode(control_message(INFO)) + b"\0",
        encode(control_message(INFO))[:-1],
        b"\0" + encode(control_message(INFO))[1:],
    ],
)
def test_what_is_no_route_is_malformed(data: bytes) -> None:
    with pytest.raises(DecodeError):
        read_head(data)


def test_an_index_cut_short_is_malformed_and_other_options_are_skipped() -> None:
    neighbour = RouteInfoNeighbor(3, 1, 1)
    with pytest.raises(DecodeError, match="5 bytes are no pairs of 6"):
        read_record(encode(control_message(INFO, neighbour, RawBlock(0xFE, bytes.fromhex("c000f0050000 0000000300")))))
    for option in ("c000f0010000 7531", "c000f0"):
        assert (
            read_record(encode(control_message(INFO, neighbour, RawBlock(0xFE, bytes.fromhex(option))))).hotlinks == ()
        )


def test_a_method_of_sharing_is_a_byte_and_more_of_it_is_for_later() -> None:
    head = RouteInfo(NODE, 1, 1, 9, 7, 8, 0)
    for option, sharing in (("01", 1), ("02ffff", 2), ("00", 0)):
        block = RawBlock(BlockType.EXTOPT, bytes.fromhex("c000f00b0000" + option))
        assert read_record(encode(control_message(head, block))).sharing == sharing
    with pytest.raises(DecodeError, match="no method"):
        read_record(encode(control_message(head, RawBlock(BlockType.EXTOPT, bytes.fromhex("c000f00b0000")))))


@given(records(), st.data())
def test_whatever_comes_is_read_or_a_decode_error(record: DroRecord, data: st.DataObject) -> None:
    sound = bytearray(written(record))
    for _ in range(data.draw(st.integers(0, 4))):
        sound[data.draw(st.integers(0, len(sound) - 1))] = data.draw(st.integers(0, 255))
    broken = bytes(sound[: data.draw(st.integers(0, len(sound)))])
    with contextlib.suppress(DecodeError):
        read_head(broken)
        read_record(broken)


@given(st.binary(max_size=100))
def test_any_bytes_are_no_more_than_a_decode_error(data: bytes) -> None:
    with contextlib.suppress(DecodeError):
        read_head(data)
        read_record(data)
