"""Capture files, link layers and IP fragments, as `umdump` reads them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import accumulate
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.dissect.ipv4 import MAX_PENDING, Decapsulator
from dro.dissect.pcap import Frame, read_frames
from dro.errors import DecodeError
from tests.builders.pcapfile import MAC, block, enhanced, interface, ipv4, pcap, section, tcp, udp, udp_body

FRAMES = [udp("10.0.0.1", 1000, "10.0.0.2", 2000, bytes([n]) * n) for n in range(5)]


def frames_of(data: bytes) -> list[Frame]:
    return list(read_frames(io.BytesIO(data)))


def read_until_error(data: bytes) -> tuple[list[Frame], DecodeError | None]:
    got: list[Frame] = []
    try:
        got.extend(read_frames(io.BytesIO(data)))  # keeps what came before the error
    except DecodeError as e:
        return got, e
    return got, None


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("ns", [False, True])
def test_a_classic_file_is_read_in_both_byte_orders_and_both_resolutions(order: str, ns: bool) -> None:
    frames = frames_of(pcap(FRAMES, order=order, ns=ns, start_ns=5_000_000_000 + (7 if ns else 7000)))
    assert [frame.data for frame in frames] == FRAMES
    assert [frame.number for frame in frames] == [1, 2, 3, 4, 5]
    assert frames[0].time_ns == 5_000_000_000 + (7 if ns else 7000)
    assert frames[1].time_ns == frames[0].time_ns + 1_000_000
    assert {frame.link for frame in frames} == {1}


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_pcapng_file_is_read_in_both_byte_orders(order: str) -> None:
    data = section(order) + interface(order=order) + block(5, bytes(12), order)
    data += b"".join(enhanced(frame, 1_000_000 + n, order=order) for n, frame in enumerate(FRAMES))
    frames = frames_of(data)
    assert [frame.data for frame in frames] == FRAMES
    assert frames[2].time_ns == 1_000_002_000


def test_a_section_may_change_the_byte_order_and_forgets_the_interfaces() -> None:
    first = section("<") + interface(link=1) + enhanced(b"abcd")
    second = section(">") + interface(link=101, order=">") + enhanced(b"efgh", order=">")
    assert [(f.number, f.link, f.data) for f in frames_of(first + second)] == [(1, 1, b"abcd"), (2, 101, b"efgh")]
    with pytest.raises(DecodeError, match="interface 0"):
        frames_of(first + section("<") + enhanced(b"xxxx"))


@pytest.mark.parametrize(
    ("tsresol", "ticks", "expected_ns"),
    [(6, 1_500_000, 1_500_000_000), (9, 1_500_000_001, 1_500_000_001), (0x8A, 1536, 1_500_000_000), (0, 3, 3 * 10**9)],
)
def test_the_time_unit_of_an_interface_is_obeyed(tsresol: int, ticks: int, expected_ns: int) -> None:
    (frame,) = frames_of(section() + interface(tsresol=tsresol) + enhanced(b"abcd", ticks))
    assert frame.time_ns == expected_ns


def test_the_time_offset_of_an_interface_is_added() -> None:
    (frame,) = frames_of(section() + interface(tsresol=9, offset=100) + enhanced(b"abcd", 5))
    assert frame.time_ns == 100 * 10**9 + 5


def test_each_interface_has_its_own_link_type() -> None:
    data = section() + interface(1) + interface(101) + enhanced(b"a", index=1) + enhanced(b"b", index=0)
    assert [frame.link for frame in frames_of(data)] == [101, 1]


def test_simple_and_old_packet_blocks_are_read() -> None:
    simple = block(3, pack("<I", 6) + b"abcdef")
    cut = block(3, pack("<I", 60) + b"abcdefgh")
    old = block(2, pack("<HHIIII", 0, 0, 0, 9_000_000, 3, 5) + b"xyz")
    frames = frames_of(section() + interface(snap=8) + old + simple + cut)
    assert [(f.data, f.wire_len) for f in frames] == [(b"xyz", 5), (b"abcdef", 6), (b"abcdefgh", 60)]
    assert [f.time_ns for f in frames] == [9 * 10**9] * 3  # a simple packet has no time of its own


@pytest.mark.parametrize("make", ["pcap", "pcapng"])
def test_every_cut_gives_the_frames_before_it_and_an_error_that_names_the_place(make: str) -> None:
    if make == "pcap":
        parts = [pcap([]), *(pcap([frame])[24:] for frame in FRAMES)]
    else:
        parts = [section(), interface(), *(enhanced(frame) for frame in FRAMES)]
    data = b"".join(parts)
    borders = set(accumulate(map(len, parts)))
    for size in range(len(data)):
        got, error = read_until_error(data[:size])
        assert [frame.data for frame in got] == FRAMES[: len(got)]
        assert len(got) < len(FRAMES)
        if error is None:
            assert size in borders
        else:
            assert 0 <= error.offset <= size
            assert f"at byte {error.offset}" in str(error)
    assert [frame.data for frame in frames_of(data)] == FRAMES


def test_frames_before_a_cut_are_given_before_the_error() -> None:
    data = pcap(FRAMES)
    reader: Iterator[Frame] = read_frames(io.BytesIO(data[:-1]))
    assert [next(reader).data for _ in range(4)] == FRAMES[:4]
    with pytest.raises(DecodeError) as e:
        next(reader)
    assert e.value.offset == len(data) - len(FRAMES[-1])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"PK\x03\x04", r"neither pcap nor pcapng \(give a file of tcpdump"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (pcap([])[:24] + pack("<IIII", 0, 0, 1 << 30, 1 << 30), "more than a frame"),
        (section() + pack("<II", 6, 13), "not possible"),
        (section() + pack("<II", 6, 1 << 31), "more than a frame"),
        (section() + block(1, b"abcd"), "shorter"),
        (section() + enhanced(b"abcd"), "interface 0"),
        (section() + interface() + block(6, pack("<IIIII", 0, 0, 0, 99, 99)), "claims 99"),
        (section()[:-4] + pack("<I", 99), "ends with 99"),
        (b"\x0a\x0d\x0d\x0a" + bytes(24), "byte order"),
    ],
)
def test_a_file_that_is_no_capture_is_refused_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        frames_of(data)


@given(st.sampled_from([b"", pcap([])[:24], section(), section() + interface()]), st.binary(max_size=300))
def test_arbitrary_bytes_give_frames_or_one_error(head: bytes, tail: bytes) -> None:
    decapsulator = Decapsulator()
    got, error = read_until_error(head + tail)
    for frame in got:
        assert len(frame.data) <= frame.wire_len
        decapsulator.segment(frame)
    assert error is None or error.offset <= len(head + tail)


@given(st.sampled_from([0, 1, 12, 101, 108, 113, 228, 229, 276, 147]), st.binary(max_size=120))
def test_arbitrary_frames_never_break_the_decapsulation(link: int, data: bytes) -> None:
    decapsulator = Decapsulator()
    if decapsulator.segment(Frame(1, 0, link, data, len(data))) is None:
        assert decapsulator.other.total() + decapsulator.fragments_waiting == 1


# link layers

INNER = ipv4("10.0.0.1", "10.0.0.2", 17, udp_body(7, 8, b"payload"))
VLAN = b"\x81\x00\x00\x05"


@pytest.mark.parametrize(
    ("link", "frame"),
    [
        (1, MAC + b"\x08\x00" + INNER),
        (1, MAC + b"\x08\x00" + INNER + b"padding to sixty"),
        (1, MAC + VLAN + b"\x08\x00" + INNER),
        (1, MAC + b"\x88\xa8\x00\x07" + VLAN + b"\x08\x00" + INNER),
        (101, INNER),
        (228, INNER),
        (12, INNER),
        (0, pack("<I", 2) + INNER),
        (0, pack(">I", 2) + INNER),
        (108, pack(">I", 2) + INNER),
        (113, bytes(14) + b"\x08\x00" + INNER),
        (113, bytes(14) + VLAN + b"\x08\x00" + INNER),
        (276, b"\x08\x00" + bytes(18) + INNER),
    ],
)
def test_a_datagram_is_found_behind_every_link_header(link: int, frame: bytes) -> None:
    segment = Decapsulator().segment(Frame(3, 99, link, frame, len(frame)))
    assert segment is not None
    assert (segment.frame, segment.time_ns, segment.src, segment.sport, segment.dst, segment.dport) == (
        3,
        99,
        0x0A000001,
        7,
        0x0A000002,
        8,
    )
    assert segment.payload == b"payload"
    assert segment.cut == 0


def test_what_is_no_udp_or_tcp_is_counted_by_name() -> None:
    decapsulator = Decapsulator()
    others = [
        (1, MAC + b"\x08\x06" + bytes(28)),
        (1, MAC + b"\x86\xdd" + bytes(40)),
        (1, MAC + b"\x08\x00" + ipv4("10.0.0.1", "224.0.0.22", 2, bytes(8))),
        (1, MAC + b"\x08\x00" + ipv4("10.0.0.1", "10.0.0.2", 1, bytes(8))),
        (1, MAC + b"\x08\x00" + b"\x65" + bytes(39)),
        (1, MAC + b"\x08\x00" + b"\x45"),
        (147, b"whatever"),
    ]
    for link, data in others:
        assert decapsulator.segment(Frame(1, 0, link, data, len(data))) is None
    assert decapsulator.other == {"arp": 1, "ipv6": 2, "igmp": 1, "icmp": 1, "bad ip": 1, "other link": 1}


def test_a_frame_that_the_capture_cut_says_how_much_is_gone() -> None:
    whole = udp("10.0.0.1", 1, "10.0.0.2", 2, bytes(100))
    segment = Decapsulator().segment(Frame(1, 0, 1, whole[:62], len(whole)))
    assert segment is not None
    assert (len(segment.payload), segment.cut) == (20, 80)
    stream = tcp("10.0.0.1", 1, "10.0.0.2", 2, 5, bytes(100))
    cut = Decapsulator().segment(Frame(1, 0, 1, stream[:60], len(stream)))
    assert cut is not None
    assert (len(cut.payload), cut.cut) == (6, 94)


# IP fragments


def fragments(body: bytes, sizes: list[int], ident: int = 1) -> list[bytes]:
    out = []
    offset = 0
    for size in sizes:
        more = 0x2000 if offset + size < len(body) else 0
        piece = ipv4("10.0.0.1", "10.0.0.2", 17, body[offset : offset + size], ident=ident, frag=more | offset // 8)
        out.append(MAC + b"\x08\x00" + piece)
        offset += size
    return out


BODY = udp_body(7, 8, bytes(range(200)))


@given(st.permutations(list(range(5))), st.lists(st.integers(0, 4), max_size=4))
def test_fragments_are_joined_in_any_order_and_with_repeats(order: list[int], repeats: list[int]) -> None:
    pieces = fragments(BODY, [8, 64, 64, 64, 8])
    decapsulator = Decapsulator()
    sequence = [*repeats, *order] if set(repeats) != set(range(5)) else order
    got = [s for n, i in enumerate(sequence) if (s := decapsulator.segment(Frame(n, n, 1, pieces[i], len(pieces[i]))))]
    assert [s.payload for s in got] == [bytes(range(200))]
    assert decapsulator.reassembled == 1


def test_datagrams_with_missing_fragments_are_given_up_when_there_are_too_many() -> None:
    decapsulator = Decapsulator()
    for ident in range(MAX_PENDING + 10):
        data = fragments(BODY, [104, 104], ident)[0]
        assert decapsulator.segment(Frame(1, 0, 1, data, len(data))) is None
    assert decapsulator.fragments_waiting == MAX_PENDING
    assert decapsulator.fragments_incomplete == 10


def test_an_old_fragment_does_not_mix_with_a_new_datagram_of_the_same_number() -> None:
    decapsulator = Decapsulator()
    old = fragments(BODY, [104, 104])[0]
    new = fragments(udp_body(7, 8, b"n" * 200), [104, 104])
    assert decapsulator.segment(Frame(1, 0, 1, old, len(old))) is None
    assert decapsulator.segment(Frame(2, 31 * 10**9, 1, new[1], len(new[1]))) is None
    segment = decapsulator.segment(Frame(3, 31 * 10**9, 1, new[0], len(new[0])))
    assert segment is not None
    assert segment.payload == b"n" * 200
