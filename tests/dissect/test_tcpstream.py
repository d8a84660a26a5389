"""TCP of a capture: order, holes, overlaps; LBMC framing over it."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dro.dissect.ipv4 import ACK, FIN, RST, SYN, TCP, Segment
from dro.dissect.lbmcstream import LbmcStream, StreamPiece, find_messages
from dro.dissect.tcpstream import MAX_DIRECTIONS, MAX_HELD, Closed, Missing, Opened, Piece, TcpStreams
from dro.sqn import MASK

A = (0x0A000001, 14371)
B = (0x0A000002, 40000)
MESSAGES = [bytes([0, 0, 0, 12 + n]) + bytes([0, 0, 0, 7, 0, 0, 0, n]) + bytes([65 + n]) * n for n in range(20)]
STREAM = b"".join(MESSAGES)


def segment(
    seq: int, payload: bytes = b"", flags: int = ACK, ack: int = 0, *, cut: int = 0, back: bool = False
) -> Segment:
    (src, sport), (dst, dport) = (B, A) if back else (A, B)
    return Segment(1, 0, TCP, src, sport, dst, dport, payload, cut, seq & MASK, ack & MASK, flags)


def pieces(streams: TcpStreams, *segments: Segment) -> list[Piece]:
    return [p for s in segments for _, found in streams.on_segment(s) for p in found]


def joined(found: list[Piece]) -> bytes:
    return b"".join(p for p in found if isinstance(p, bytes))


@given(
    isn=st.sampled_from([0, 1000, MASK - 50, MASK]),
    cuts=st.lists(st.integers(1, len(STREAM) - 1), max_size=12),
    extra=st.lists(st.tuples(st.integers(0, len(STREAM) - 1), st.integers(1, 60)), max_size=6),
    order=st.randoms(use_true_random=False),
)
def test_segments_in_any_order_with_repeats_and_overlaps_give_the_stream(
    isn: int, cuts: list[int], extra: list[tuple[int, int]], order: object
) -> None:
    borders = [0, *sorted(set(cuts)), len(STREAM)]
    ranges = list(pairwise(borders)) + [(at, at + size) for at, size in extra]
    order.shuffle(ranges)  # type: ignore[attr-defined]  # hypothesis gives no public type for its random
    streams = TcpStreams()
    found = pieces(streams, segment(isn, flags=SYN))
    assert found == [Opened()]
    found = pieces(streams, *(segment(isn + 1 + at, STREAM[at:to]) for at, to in ranges))
    assert joined(found) == STREAM
    assert all(isinstance(piece, bytes) for piece in found)
    assert streams.counts.holes == 0
    assert streams.finish() == []


def test_a_hole_is_given_out_when_the_other_side_has_acknowledged_what_follows() -> None:
    streams = TcpStreams()
    pieces(streams, segment(99, flags=SYN))
    assert pieces(streams, segment(100, b"aaaa"), segment(110, b"cccc")) == [b"aaaa"]
    assert pieces(streams, segment(5, flags=ACK, ack=104, back=True)) == []
    assert pieces(streams, segment(5, flags=ACK, ack=114, back=True)) == [Missing(6), b"cccc"]
    assert streams.counts.missing_bytes == 6
    assert pieces(streams, segment(104, b"bbbbbb")) == []  # too late


def test_a_hole_is_given_out_when_too_much_waits_behind_it() -> None:
    streams = TcpStreams()
    pieces(streams, segment(99, flags=SYN), segment(100, b"a"))
    block = bytes(60000)
    found: list[Piece] = []
    sent = 0
    while not found:
        found = pieces(streams, segment(102 + sent, block))
        sent += len(block)
        assert sent <= MAX_HELD + len(block)
    assert found[0] == Missing(1)
    assert joined(found) == bytes(sent)


def test_what_waits_is_given_out_at_the_end_of_the_capture() -> None:
    streams = TcpStreams()
    pieces(streams, segment(99, flags=SYN), segment(103, b"dd"))
    assert streams.finish() == [((*A, *B), [Missing(3), b"dd"])]


def test_a_connection_that_was_open_before_the_capture_starts_with_an_unknown_hole() -> None:
    streams = TcpStreams()
    assert pieces(streams, segment(500, b"xy"), segment(502, b"z")) == [Missing(-1), b"xy", b"z"]


def test_bytes_that_the_capture_cut_off_are_a_hole() -> None:
    streams = TcpStreams()
    pieces(streams, segment(99, flags=SYN))
    assert pieces(streams, segment(100, b"abc", cut=7), segment(110, b"next")) == [b"abc"]
    assert pieces(streams, segment(1, ack=114, back=True)) == [Missing(7), b"next"]


def test_the_end_comes_once_and_after_the_last_byte() -> None:
    streams = TcpStreams()
    pieces(streams, segment(99, flags=SYN))
    assert pieces(streams, segment(102, b"cd", flags=FIN | ACK)) == []
    assert pieces(streams, segment(100, b"ab")) == [b"ab", b"cd", Closed()]
    assert pieces(streams, segment(102, b"cd", flags=FIN | ACK)) in ([], [Closed()])


def test_a_reset_gives_out_what_waits() -> None:
    streams = TcpStreams()
    pieces(streams, segment(99, flags=SYN))
    assert pieces(streams, segment(102, b"cd"), segment(104, flags=RST)) == [Missing(2), b"cd", Closed()]


def test_a_repeated_syn_changes_nothing_and_a_new_one_starts_over() -> None:
    streams = TcpStreams()
    found = pieces(streams, segment(99, flags=SYN), segment(100, b"a"), segment(99, flags=SYN), segment(101, b"b"))
    assert found == [Opened(), b"a", b"b"]
    assert pieces(streams, segment(7_000_000, flags=SYN), segment(7_000_001, b"c")) == [Opened(), b"c"]


def test_the_number_of_directions_is_bounded() -> None:
    streams = TcpStreams()
    for n in range(MAX_DIRECTIONS + 5):
        streams.on_segment(Segment(1, 0, TCP, n, 1, 2, 3, b"x", 0, 1, 0, ACK))
    assert streams.counts.dropped_directions == 5


# LBMC framing


def run_all(stream: LbmcStream, found: list[Piece]) -> list[StreamPiece]:
    return [run for piece in found if (run := stream.on_piece(piece)) is not None]


def opened(*, is_named: bool = False) -> LbmcStream:
    stream = LbmcStream(is_named=is_named)
    stream.on_piece(Opened())
    return stream


@given(st.lists(st.integers(1, len(STREAM) - 1), max_size=20))
def test_messages_are_whole_however_the_stream_is_split(cuts: list[int]) -> None:
    borders = [0, *sorted(set(cuts)), len(STREAM)]
    runs = run_all(opened(), [STREAM[a:b] for a, b in pairwise(borders)])
    assert b"".join(run.data for run in runs) == STREAM
    assert all(run.error is None and run.lost == 0 for run in runs)
    for run in runs:
        assert find_messages(run.data) == 0


def test_one_byte_at_a_time_gives_one_message_at_a_time() -> None:
    runs = run_all(opened(), [bytes([byte]) for byte in STREAM])
    assert [run.data for run in runs] == MESSAGES


def test_a_hole_inside_a_message_costs_that_message_only() -> None:
    at = len(MESSAGES[0]) + 6  # in the header of the second message, behind its length
    found: list[Piece] = [STREAM[:at], Missing(5), STREAM[at + 5 :]]
    runs = run_all(opened(), found)
    assert [run.data for run in runs] == [MESSAGES[0], b"".join(MESSAGES[2:])]
    assert [run.lost for run in runs] == [0, 5]


def test_after_a_hole_of_unknown_place_messages_are_found_again() -> None:
    tail = b"".join(MESSAGES[5:])
    runs = run_all(opened(), [MESSAGES[0], Missing(1000), b"zzzzzzz" + tail])
    assert [run.data for run in runs] == [MESSAGES[0], tail]
    assert runs[1].lost == 1007


def test_a_stream_that_starts_in_the_middle_is_read_from_the_first_believable_message() -> None:
    runs = run_all(LbmcStream(is_named=False), [Missing(-1), MESSAGES[9][5:] + b"".join(MESSAGES[10:])])
    assert [run.data for run in runs] == [b"".join(MESSAGES[10:])]


def test_a_capture_that_starts_with_half_a_message_reads_it() -> None:
    for cut in (1, 3, 5, 14):
        runs = run_all(LbmcStream(is_named=False), [Missing(-1), MESSAGES[9][:cut], MESSAGES[9][cut:]])
        assert [run.data for run in runs] == [MESSAGES[9]], cut


def test_a_length_that_cannot_be_is_an_error_after_the_messages_before_it() -> None:
    (run,) = run_all(opened(), [MESSAGES[3] + b"\x00\x00\x00\x05rest"])
    assert run.data == MESSAGES[3]
    assert run.error is not None
    assert "length 5" in str(run.error)
    assert run.error.offset == len(MESSAGES[3])


def test_a_stream_that_is_something_else_is_left_alone_unless_the_user_names_it() -> None:
    tls = bytes.fromhex("1603010200010001fc0303")
    stream = opened()
    assert run_all(stream, [tls, tls]) == []
    assert stream.is_foreign
    (run,) = run_all(opened(is_named=True), [tls])
    assert run.error is not None


def test_a_connection_that_ends_inside_a_message_is_an_error() -> None:
    runs = run_all(opened(), [MESSAGES[2][:7], Closed()])
    assert [str(run.error) for run in runs] == ["lbttcp: the stream ends 7 bytes into a message"]
    assert run_all(opened(), [MESSAGES[2], Closed()])[-1].error is None


@given(st.booleans(), st.lists(st.one_of(st.binary(max_size=80), st.builds(Missing, st.integers(-1, 90))), max_size=12))
def test_arbitrary_streams_give_whole_messages_or_errors(is_named: bool, found: list[bytes | Missing]) -> None:
    stream = LbmcStream(is_named=is_named)
    for run in run_all(stream, [piece for piece in found if piece != b"" and piece != Missing(0)]):
        pos = 0
        while len(run.data) - pos >= 4:
            pos += int.from_bytes(run.data[pos + 2 : pos + 4], "big")
        assert pos == len(run.data)
