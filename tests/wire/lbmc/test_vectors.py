"""Every golden LBMC and transport packet: printed fields, block codes, bytes as they came, and every shortened form."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from dro.dissect import packet as dissect
from dro.dissect.lbmcstream import LbmcStream
from dro.dissect.tcpstream import Opened
from dro.errors import DecodeError
from dro.wire import lbtrm, lbtru
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc import properties
from dro.wire.lbmc.data_blocks import AppHdrChain, Frag
from tests.builders.lbmc_messages import decode_all

FOLDER: Final = Path(__file__).parents[2] / "golden" / "vectors"

# Made by the frame layer of the decoder that recorded the vectors, not by a dissector of these protocols.
FRAME_LAYER: Final = ("frame.", "_ws.")


@dataclass(frozen=True, slots=True)
class Vector:
    name: str
    proto: str
    data: bytes
    expect: dict[str, str | list[str]]
    blocks: list[list[str]]
    segments: list[bytes]


def load(name: str) -> list[Vector]:
    rows = [json.loads(line) for line in (FOLDER / name).read_text().splitlines()]
    return [
        Vector(
            row["name"],
            row["proto"],
            bytes.fromhex(row["hex"]),
            {key: value for key, value in row["expect"].items() if not key.startswith(FRAME_LAYER)},
            row.get("blocks", []),
            [bytes.fromhex(segment) for segment in row.get("segments", [])],
        )
        for row in rows
    ]


LBMC: Final = load("lbmc.jsonl")
TRANSPORTS: Final = load("transports.jsonl")
TCP: Final = [v for v in TRANSPORTS if v.proto == "lbttcp"]
DATAGRAMS: Final = [v for v in TRANSPORTS if v.proto != "lbttcp"]


def name_of(vector: Vector) -> str:
    return vector.name


def recode(vector: Vector) -> bytes:
    match vector.proto:
        case "lbtrm":
            return lbtrm.encode(lbtrm.decode(vector.data))
        case "lbtru":
            return lbtru.encode(lbtru.decode(vector.data))
        case _:
            return b"".join(map(lbmc.encode, decode_all(vector.data)))


def test_all_vectors_are_there() -> None:
    assert (len(LBMC), len(TRANSPORTS), len(TCP)) == (117, 61, 10)


@pytest.mark.parametrize("vector", LBMC + TRANSPORTS, ids=name_of)
def test_fields_equal_those_of_the_standard_dissectors(vector: Vector) -> None:
    got = dissect.fields(vector.proto, vector.data)
    assert got.error is None
    assert got.values == vector.expect
    assert list(got.values) == list(vector.expect)


@pytest.mark.parametrize("vector", LBMC + TRANSPORTS, ids=name_of)
def test_what_was_decoded_encodes_to_the_same_bytes(vector: Vector) -> None:
    assert recode(vector) == vector.data


@pytest.mark.parametrize("vector", LBMC, ids=name_of)
def test_the_chain_of_blocks_is_the_recorded_one(vector: Vector) -> None:
    messages = decode_all(vector.data)
    assert [[f"0x{block.code:02x}" for block in message.blocks] for message in messages] == vector.blocks
    spans = lbmc.walk(vector.data, 0, len(vector.data))
    walked = [[f"0x{code:02x}" for code, _, _ in lbmc.chain(vector.data, *span)[0]] for span in spans]
    assert walked == vector.blocks


@pytest.mark.parametrize("vector", LBMC, ids=name_of)
def test_the_fast_walk_finds_the_payload_that_the_records_hold(vector: Vector) -> None:
    data = vector.data
    for message, (pos, msglen) in zip(decode_all(data), lbmc.walk(data, 0, len(data)), strict=True):
        at = lbmc.payload_at(memoryview(data), pos, msglen)
        assert (data[at : pos + msglen] if at >= 0 else b"") == message.payload
        frag = message.get(Frag)
        expected = None if frag is None else (frag.first_sqn, frag.offset, frag.length, at)
        assert lbmc.frag_of(memoryview(data), pos, msglen) == expected


def test_no_vector_asks_to_be_dropped() -> None:
    assert not [v.name for v in LBMC for message in decode_all(v.data) if message.must_drop]


@pytest.mark.parametrize("vector", [v for v in LBMC if v.name.startswith("msg_properties")], ids=name_of)
def test_properties_encode_to_the_same_bytes(vector: Vector) -> None:
    (message,) = decode_all(vector.data)
    data, block = properties.split(message)
    assert data == b"body"
    order, count = properties.read_head(block)
    decoded = properties.decode(block)
    assert len(decoded) == count
    assert properties.encode(decoded, order) == block


@pytest.mark.parametrize("vector", LBMC, ids=name_of)
def test_every_shortened_message_is_an_error(vector: Vector) -> None:
    whole = {pos + length for pos, length in lbmc.walk(vector.data, 0, len(vector.data))} | {0}
    for size in range(len(vector.data)):
        stray = min(size - edge for edge in whole if edge <= size)
        cut = vector.data[:size]
        if stray < 4:  # a few stray bytes at the end of a datagram are ignored
            assert b"".join(map(lbmc.encode, decode_all(cut))) == cut[: size - stray]
            continue
        with pytest.raises(DecodeError):
            decode_all(cut)
        assert dissect.fields("lbmc", cut).error is not None


@pytest.mark.parametrize("vector", LBMC, ids=name_of)
def test_every_message_with_a_shortened_end_is_read_or_refused(vector: Vector) -> None:
    """The length field agrees with the cut, so that the fault lies in a block or nowhere."""
    for pos, length in lbmc.walk(vector.data, 0, len(vector.data)):
        for size in range(length):
            cut = bytearray(vector.data[pos : pos + size])
            cut[2:4] = size.to_bytes(2, "big")
            try:
                assert lbmc.encode(lbmc.decode(bytes(cut))) == cut[:size]
            except DecodeError:
                assert dissect.fields("lbmc", bytes(cut)).error is not None or size < 4


def decoder_of(proto: str) -> Callable[[bytes], object]:
    return lbtrm.decode if proto == "lbtrm" else lbtru.decode


@pytest.mark.parametrize("vector", DATAGRAMS, ids=name_of)
def test_every_shortened_datagram_is_read_or_refused(vector: Vector) -> None:
    lists_nothing_behind = vector.data[0] & 0x0F != 0
    for size in range(len(vector.data)):
        cut = vector.data[:size]
        if lists_nothing_behind:
            with pytest.raises(DecodeError):
                decoder_of(vector.proto)(cut)
            assert dissect.fields(vector.proto, cut).error is not None
            continue
        try:
            decoder_of(vector.proto)(cut)
        except DecodeError:
            assert dissect.fields(vector.proto, cut).error is not None


@pytest.mark.parametrize("vector", TCP + LBMC, ids=name_of)
def test_a_stream_is_cut_the_same_however_it_arrives(vector: Vector) -> None:
    whole = [lbmc.encode(message) for message in decode_all(vector.data)]
    one_by_one = [vector.data[i : i + 1] for i in range(len(vector.data))]
    for pieces in ([vector.data], vector.segments or [vector.data], one_by_one):
        stream = LbmcStream(is_named=True)
        stream.on_piece(Opened())
        runs = [run for piece in pieces if (run := stream.on_piece(piece)) is not None]
        assert all(run.error is None for run in runs)
        assert b"".join([run.data for run in runs]) == b"".join(whole)


def test_a_vector_with_properties_announces_them() -> None:
    (message,) = decode_all(next(v.data for v in LBMC if v.name == "msg_properties_big_endian"))
    chain = message.get(AppHdrChain)
    assert chain is not None
    assert chain.properties_length == 121
