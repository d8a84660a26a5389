"""Verifiable payloads: what is made passes, and whatever was changed on the way does not."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.tools.lbm import verify
from dro.tools.lbm.verify import PayloadFault, PayloadVerdict

SEQUENCES = st.integers(0, 2**64 - 1)
LENGTHS = st.integers(verify.MIN_BYTES, 2000)


@given(SEQUENCES, LENGTHS)
def test_what_is_made_passes_and_tells_its_sequence(sequence: int, length: int) -> None:
    payload = verify.make(sequence, length)
    assert len(payload) == length
    assert verify.check(payload) == PayloadVerdict(sequence, None)


@pytest.mark.parametrize("length", [16, 17, 65535, 65536, 65552, 65553, 131_072 + 17, 300_000])
def test_lengths_around_the_size_of_the_table(length: int) -> None:
    for sequence in (0, 1, 65535, 65536, 2**64 - 1):
        payload = verify.make(sequence, length)
        assert len(payload) == length
        assert verify.check(payload) == PayloadVerdict(sequence, None)


def test_the_layout() -> None:
    payload = verify.make(5, 20)
    assert payload[:4] == bytes((0, 0, 0, 20))
    assert payload[4:8] == zlib.crc32(payload[8:]).to_bytes(4, "big")
    assert payload[8:16] == bytes((0, 0, 0, 0, 0, 0, 0, 5))
    # fixed for good: a sender and a receiver of different releases must agree
    assert payload[16:] == bytes.fromhex("e6426a67")


def test_bodies_of_neighbours_differ() -> None:
    bodies = {verify.make(sequence, 64)[16:] for sequence in range(5000)}
    assert len(bodies) == 5000


@given(SEQUENCES, LENGTHS, st.data())
def test_one_changed_bit_is_found(sequence: int, length: int, data: st.DataObject) -> None:
    payload = bytearray(verify.make(sequence, length))
    bit = data.draw(st.integers(0, 8 * length - 1))
    payload[bit // 8] ^= 1 << bit % 8
    assert verify.check(bytes(payload)).fault is not None


@given(SEQUENCES, LENGTHS, st.data())
def test_truncated_and_extended_payloads_are_found(sequence: int, length: int, data: st.DataObject) -> None:
    payload = verify.make(sequence, length)
    cut = data.draw(st.integers(0, length - 1))
    short = PayloadFault.TOO_SHORT if cut < verify.MIN_BYTES else PayloadFault.WRONG_LENGTH
    assert verify.check(payload[:cut]) == PayloadVerdict(-1, short)
    assert verify.check(payload + b"\0") == PayloadVerdict(-1, PayloadFault.WRONG_LENGTH)


def test_a_body_that_belongs_to_another_message_is_found() -> None:
    covered = (7).to_bytes(8, "big") + verify.make(8, 64)[16:]
    payload = (64).to_bytes(4, "big") + zlib.crc32(covered).to_bytes(4, "big") + covered
    assert verify.check(payload) == PayloadVerdict(7, PayloadFault.WRONG_BODY)


def test_a_wrong_checksum_is_named() -> None:
    payload = bytearray(verify.make(7, 64))
    payload[-1] ^= 0xFF
    assert verify.check(bytes(payload)) == PayloadVerdict(-1, PayloadFault.WRONG_CHECKSUM)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing(data: bytes) -> None:
    assert verify.check(data).fault is not None


@pytest.mark.parametrize(("sequence", "length"), [(0, 15), (0, 0), (0, 2**32), (-1, 25), (2**64, 25)])
def test_what_does_not_fit_the_layout_is_refused(sequence: int, length: int) -> None:
    with pytest.raises(ValueError, match=r"payload has|64 bits"):
        verify.make(sequence, length)
