"""Streams that are cut anew: the same bytes, whatever order and pieces they came in."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from tests.rigs.netns.streams import cut_anew, tcp_ports

PORTS = ["tcp.port==14371-14395,lbttcp"]
FILE_HEADER = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, 1)
START = 0xFFFFF000  # the stream passes the end of the number space
SYN, FIN, ACK = 2, 1, 16


def frame(seq: int, payload: bytes = b"", flags: int = ACK, port: int = 14371) -> bytes:
    tcp = struct.pack("!HHIIBBHHH", port, 40000, seq & 0xFFFFFFFF, 1, 5 << 4, flags, 1000, 0, 0)
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 40 + len(payload), 7, 0, 64, 6, 0, b"\x0a\0\0\1", b"\x0a\0\0\2")
    return bytes(12) + b"\x08\x00" + ip + tcp + payload


def write(path: Path, frames: list[bytes]) -> Path:
    records = [struct.pack("<IIII", n, 0, len(f), len(f)) + f for n, f in enumerate(frames)]
    path.write_bytes(FILE_HEADER + b"".join(records))
    return path


def read(path: Path) -> list[tuple[int, int, bytes]]:
    """(seq, flags, payload) of each frame of the port range."""
    raw = path.read_bytes()
    assert raw[:24] == FILE_HEADER
    found, at = [], 24
    while at < len(raw):
        size = struct.unpack_from("<8xII", raw, at)[0]
        content = raw[at + 16 : at + 16 + size]
        assert struct.unpack_from("!H", content, 16)[0] == size - 14
        found.append((struct.unpack_from("!I", content, 38)[0], content[47], content[54:]))
        at += 16 + size
    return found


def message(size: int) -> bytes:
    return struct.pack("!BBH", 0, 0, size) + bytes(size - 4)


@pytest.mark.parametrize("seed", range(20))
def test_every_message_gets_a_segment_of_its_own(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    messages = [message(rng.randint(4, 3000)) for _ in range(40)]
    stream = b"".join(messages)
    frames, at = [], 0
    while at < len(stream):
        size = rng.randint(1, 1448)
        frames.append(frame(START + 1 + at, stream[at : at + size]))
        if rng.random() < 0.2:  # sent again, with what follows
            frames.append(frame(START + 1 + at, stream[at : at + size + 100]))
        at += size
    for _ in range(5):
        k = rng.randrange(len(frames) - 1)
        frames[k], frames[k + 1] = frames[k + 1], frames[k]
    ends = [frame(START, flags=SYN), *frames, frame(START + 1 + len(stream), flags=FIN | ACK)]
    done = read(cut_anew(write(tmp_path / "in.pcap", ends), tmp_path / "out.pcap", tcp_ports(PORTS)))
    assert [payload for _, _, payload in done[1:-1]] == messages
    expected = START + 1
    for seq, _, payload in done[1:]:
        assert seq == expected & 0xFFFFFFFF
        expected += len(payload)
    assert (done[0][1], done[-1][1]) == (SYN, FIN | ACK)


def test_what_cannot_be_split_stays_visible(tmp_path: Path) -> None:
    junk = message(20) + b"\x00\x00\x00\x03junk"
    frames = [frame(START, flags=SYN), frame(START + 1, junk), frame(START + 29, b"more")]
    done = read(cut_anew(write(tmp_path / "in.pcap", frames), tmp_path / "out.pcap", tcp_ports(PORTS)))
    assert [payload for _, _, payload in done] == [b"", message(20), b"\x00\x00\x00\x03junk", b"more"]


def test_a_message_without_its_end_is_kept(tmp_path: Path) -> None:
    frames = [frame(START + 1, message(100)[:60])]  # no SYN: the capture began later
    done = read(cut_anew(write(tmp_path / "in.pcap", frames), tmp_path / "out.pcap", tcp_ports(PORTS)))
    assert done == [(START + 1, ACK, message(100)[:60])]


def test_other_ports_are_left_alone(tmp_path: Path) -> None:
    frames = [frame(5, b"\x00\x00\x00\x00", port=80), frame(5, b"", port=80)]
    path = write(tmp_path / "in.pcap", frames)
    assert cut_anew(path, tmp_path / "out.pcap", tcp_ports(PORTS)) == path
    both = write(tmp_path / "both.pcap", [*frames, frame(START + 1, message(8))])
    done = read(cut_anew(both, tmp_path / "out.pcap", tcp_ports(PORTS)))
    assert [payload for _, _, payload in done] == [b"\x00\x00\x00\x00", b"", message(8)]
