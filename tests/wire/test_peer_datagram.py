"""Datagrams of a peer link: what was written is read, once; what was changed, repeated or kept back is not."""

from __future__ import annotations

import os

import lz4.block
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from dro.wire.peer_datagram import WINDOW, DatagramDrop, DatagramKey, DatagramReader, DatagramWriter

KEY = DatagramKey(bytes(range(32)), b"salt")
PACKETS = st.one_of(
    st.binary(max_size=300), st.builds(lambda b, n: b * n, st.binary(min_size=1, max_size=9), st.integers(0, 7000))
)
KEYS = st.sampled_from([None, KEY])


def pair(*, compresses: bool = False, key: DatagramKey | None = KEY) -> tuple[DatagramWriter, DatagramReader]:
    return DatagramWriter(compresses=compresses, key=key), DatagramReader(is_compressed=compresses, key=key)


@given(st.lists(PACKETS, max_size=5), st.booleans(), KEYS)
def test_packets_come_back(packets: list[bytes], compresses: bool, key: DatagramKey | None) -> None:
    writer, reader = pair(compresses=compresses, key=key)
    for packet in packets:
        datagram = writer.write(packet)
        assert len(datagram) <= len(packet) + writer.overhead
        assert reader.read(datagram) == packet
    assert not reader.drops


def test_the_bytes_are_those_of_the_description() -> None:
    writer, _ = pair(compresses=True)
    packet = b"abc" * 100
    for counter in (1, 2):
        prefix = bytes([1, 0, 0, 0]) + counter.to_bytes(8, "big")
        datagram = writer.write(packet)
        assert datagram[:12] == prefix
        body = AESGCM(KEY.key).decrypt(b"salt" + counter.to_bytes(8, "big"), datagram[12:], prefix)
        assert body[:4] == bytes([1, 0]) + len(packet).to_bytes(2, "big")
        assert lz4.block.decompress(body[4:], uncompressed_size=300) == packet
    assert DatagramWriter(compresses=True, key=None).write(b"xyz") == b"\x00\x00\x00\x03xyz"
    assert DatagramWriter(compresses=False, key=None).write(b"xyz") == b"xyz"


def test_nothing_can_be_read_or_changed_on_its_way() -> None:
    writer, reader = pair()
    datagram = writer.write(b"confidential")
    assert b"confidential" not in datagram
    for at in range(len(datagram)):
        changed = bytearray(datagram)
        changed[at] ^= 0x40
        assert reader.read(bytes(changed)) in (DatagramDrop.LAYOUT, DatagramDrop.FORGED)
    for end in range(len(datagram)):
        assert isinstance(reader.read(datagram[:end]), DatagramDrop)
    other = DatagramReader(is_compressed=False, key=DatagramKey(KEY.key, b"SALT"))
    assert other.read(datagram) is DatagramDrop.FORGED
    assert reader.read(datagram) == b"confidential", "what was forged leaves no mark"


@given(st.lists(st.integers(1, 3 * WINDOW), max_size=40))
def test_each_is_taken_once_and_none_that_is_late(counters: list[int]) -> None:
    """Against a set of what was taken."""
    _, reader = pair()
    taken: set[int] = set()
    for counter in counters:
        prefix = bytes([1, 0, 0, 0]) + counter.to_bytes(8, "big")
        datagram = prefix + AESGCM(KEY.key).encrypt(KEY.nonce(counter), b"x", prefix)
        if max(taken, default=0) - counter > WINDOW:
            assert reader.read(datagram) is DatagramDrop.LATE
        elif counter in taken:
            assert reader.read(datagram) is DatagramDrop.REPLAYED
        else:
            assert reader.read(datagram) == b"x"
            taken.add(counter)


def test_the_edges_of_the_window_and_a_great_jump() -> None:
    writer, reader = pair()
    early = [writer.write(b"%d" % i) for i in range(WINDOW + 2)]
    assert reader.read(early[-1]) == b"%d" % (WINDOW + 1)
    assert reader.read(early[0]) is DatagramDrop.LATE
    assert reader.read(early[1]) == b"1"
    assert reader.read(early[1]) is DatagramDrop.REPLAYED
    writer._counter = 2**64 - 2
    assert reader.read(writer.write(b"last")) == b"last"
    assert reader._seen.bit_length() <= WINDOW + 1
    assert reader.drops == {DatagramDrop.LATE: 1, DatagramDrop.REPLAYED: 1}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", DatagramDrop.LAYOUT),
        (b"\x00\x00\x00", DatagramDrop.LAYOUT),
        (b"\x02\x00\x00\x01x", DatagramDrop.LAYOUT),
        (b"\x00\x01\x00\x01x", DatagramDrop.LAYOUT),
        (b"\x00\x00\x00\x02x", DatagramDrop.COMPRESSION),
        (b"\x01\x00\x00\x02\xff\xff\xff", DatagramDrop.COMPRESSION),
        (b"\x01\x00\x00\x05" + lz4.block.compress(bytes(4), store_size=False), DatagramDrop.COMPRESSION),
        (b"\x01\x00\x00\x05" + lz4.block.compress(bytes(60_000), store_size=False), DatagramDrop.COMPRESSION),
    ],
)
def test_what_is_no_compressed_packet(body: bytes, why: DatagramDrop) -> None:
    _, reader = pair(compresses=True, key=None)
    assert reader.read(body) is why
    assert reader.drops == {why: 1}


@given(st.binary(max_size=100), st.booleans(), KEYS)
def test_any_bytes_are_a_packet_or_dropped(data: bytes, compresses: bool, key: DatagramKey | None) -> None:
    _, reader = pair(compresses=compresses, key=key)
    found = reader.read(data)
    assert isinstance(found, (bytes, DatagramDrop))
    assert reader.drops.total() == isinstance(found, DatagramDrop)


def test_noise_is_stored() -> None:
    writer, reader = pair(compresses=True)
    noise = os.urandom(16_000)
    datagram = writer.write(noise)
    assert len(datagram) == len(noise) + writer.overhead == len(noise) + 32
    assert reader.read(datagram) == noise
