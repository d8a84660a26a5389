"""The delivery controller against a naive model, and its invariants under any input."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from dro.clock import ms
from dro.proto.delivery.config import DeliveryConfig
from dro.proto.delivery.fragment import fragments
from dro.proto.delivery.order import (
    ARRIVAL,
    ARRIVAL_FRAGMENTS,
    IN_ORDER,
    DeliveryController,
    DeliveryEvent,
    LossBurst,
    Lost,
)
from dro.proto.delivery.reassembly import PARTIALS_MAX, ArrivalReassembly, Delivered
from dro.sqn import MASK, add, ahead

ROOM = 3


@dataclass(frozen=True)
class Piece:
    """A fragment as the wire carries it."""

    sqn: int
    frag: tuple[int, int, int] | None
    payload: bytes
    message: int


def stream(lengths: list[int], first: int) -> tuple[list[Piece], list[bytes]]:
    """Messages of these lengths, cut where they are longer than the room."""
    pieces: list[Piece] = []
    messages = []
    sqn = first
    for number, length in enumerate(lengths):
        payload = bytes((number + k) & 0xFF for k in range(length))
        messages.append(payload)
        if length <= ROOM:
            pieces.append(Piece(sqn, None, payload, number))
            sqn = add(sqn, 1)
            continue
        cut = fragments(payload, sqn, ROOM)
        pieces += [Piece(f.sqn, (f.first_sqn, f.offset, f.total), bytes(f.piece), number) for f in cut]
        sqn = add(pieces[-1].sqn, 1)
    return pieces, messages


LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=25)
FIRSTS = st.sampled_from([0, 5, MASK - 3, 0x7FFFFFFE])


@settings(max_examples=300, deadline=None)
@given(
    lengths=LENGTHS,
    first=FIRSTS,
    fate=st.lists(st.sampled_from(["ok", "ok", "ok", "lost", "twice", "late"]), min_size=120, max_size=120),
    shuffle=st.lists(st.integers(0, 6), min_size=240, max_size=240),
)
def test_in_order_delivery_is_what_a_naive_receiver_would_do(
    lengths: list[int], first: int, fate: list[str], shuffle: list[int]
) -> None:
    """Reordering within the generation interval, duplicates, losses: each message once in order, or its loss once."""
    pieces, messages = stream(lengths, first)
    arrivals: list[tuple[float, int, Piece]] = []
    lost: set[int] = set()
    for nth, (piece, what) in enumerate(zip(pieces, fate, strict=False)):
        if nth == 0 or what != "lost":
            arrivals.append((nth + (shuffle[nth] if nth else 0), nth, piece))
        else:
            lost.add(piece.sqn)
        if what in ("twice", "late") and piece.sqn not in lost:
            arrivals.append((nth + (50 if what == "late" else 1) + shuffle[nth + 120], nth, piece))
    c = DeliveryController(DeliveryConfig(generation_interval_ns=ms(1000)))
    events: list[DeliveryEvent] = []
    for at, _, piece in sorted(arrivals, key=lambda a: (a[0], a[1])):
        c.on_fragment(piece.sqn, piece.frag, piece.payload, ms(at))
        events += c.take_events()
    end = pieces[-1].sqn
    c.on_tsni(end, ms(500))
    c.on_tsni(end, ms(5000))
    events += c.take_events()

    expect: list[object] = []
    broken: set[int] = set()
    for piece in pieces:
        if piece.sqn in lost:
            expect.append(("lost", piece.sqn))
            broken.add(piece.message)
        elif piece.message not in broken:
            is_last = piece.frag is None or piece.frag[1] + len(piece.payload) == piece.frag[2]
            if is_last:
                expect.append(messages[piece.message])
    if expect and broken and 0 in broken:
        delivered_first = next((k for k, e in enumerate(expect) if isinstance(e, bytes)), len(expect))
        expect = expect[delivered_first:]  # nothing is reported before the first message
    got: list[object] = [
        bytes(e.payload) if isinstance(e, Delivered) else ("lost", e.sqn) if isinstance(e, Lost) else e for e in events
    ]
    assert got == expect
    assert len(c._held) == 0
    assert not c.is_waiting


INPUTS = st.lists(
    st.tuples(
        st.sampled_from(["fragment", "whole", "tsni", "timer", "run", "end"]),
        st.one_of(st.integers(-5, 60), st.sampled_from([2000, -2000, 100_000])),
        st.integers(0, 5),
        st.integers(0, 30),
        st.integers(0, 400),
    ),
    max_size=80,
)


@settings(max_examples=300, deadline=None)
@given(
    inputs=INPUTS,
    mode=st.sampled_from([IN_ORDER, ARRIVAL, ARRIVAL_FRAGMENTS]),
    immediate=st.booleans(),
    check_ms=st.sampled_from([0, 100]),
    base=FIRSTS,
)
def test_every_sqn_is_settled_once_whatever_comes(
    inputs: list[tuple[str, int, int, int, int]], mode: int, immediate: bool, check_ms: int, base: int
) -> None:
    c = DeliveryController(
        DeliveryConfig(
            ordered_delivery=mode,
            generation_interval_ns=ms(300),
            burst_limit=100,
            map_limit=16,
            immediate=immediate,
            loss_check_interval_ns=ms(check_ms),
            message_max_bytes=20,
            held_max_bytes=200,
        )
    )
    now = 0
    start: int | None = None
    handed: list[int] = []
    given_up: set[int] = set()
    for what, offset, size, total, step in inputs:
        now += ms(step)
        sqn = add(base, offset)
        match what:
            case "fragment":
                c.on_fragment(sqn, (add(sqn, -(offset % 3)), offset % 3 * size, total), bytes(size), now)
            case "whole":
                c.on_fragment(sqn, None, bytes(size), now)
            case "tsni":
                c.on_tsni(sqn, now)
            case "timer":
                c.on_timer(now)
            case "run":
                before = c.expected
                if c.accept_run(sqn, 1 + size):
                    assert before in (None, sqn)
                    handed += [add(sqn, k) for k in range(1 + size)]
            case _:
                c.on_end()
        if start is None and c.expected is not None:
            start = c.expected
        assert len(c._held) <= 17
        for event in c.take_events():
            match event:
                case Delivered(sqn=last, first_sqn=begin):
                    span = (
                        [last] if mode == ARRIVAL_FRAGMENTS else [add(begin, k) for k in range(ahead(last, begin) + 1)]
                    )
                    handed += span
                case Lost(sqn=lost):
                    assert lost not in given_up
                    given_up.add(lost)
                case LossBurst(first_sqn=begin, count=count):
                    assert count > 0
                    burst = {add(begin, k) for k in range(min(count, 3000))}
                    assert not burst & given_up
                    given_up |= burst
    if mode == IN_ORDER:
        assert len(handed) == len(set(handed))
        assert all(ahead(b, a) > 0 for a, b in pairwise(handed))
        assert not given_up & set(handed)


@settings(max_examples=200, deadline=None)
@given(
    sqns=st.lists(st.tuples(st.integers(0, MASK), st.integers(0, MASK), st.integers(0, MASK), st.booleans())),
    mode=st.sampled_from([IN_ORDER, ARRIVAL, ARRIVAL_FRAGMENTS]),
)
def test_numbers_without_sense_do_no_harm(sqns: list[tuple[int, int, int, bool]], mode: int) -> None:
    c = DeliveryController(DeliveryConfig(ordered_delivery=mode, burst_limit=MASK, generation_interval_ns=0))
    for sqn, offset, total, is_tsni in sqns:
        if is_tsni:
            c.on_tsni(sqn, 0)
        else:
            c.on_fragment(sqn, (sqn ^ offset % 2, offset % 3, total), b"x", 0)
        assert len(c.take_events()) <= (1 << 18) + 8
        assert len(c._held) <= len(sqns)


def test_memory_is_bounded_by_the_limits() -> None:
    """A stranger who leaves a gap before each of very many messages cannot make more wait than the limits allow."""
    c = DeliveryController(DeliveryConfig(map_limit=1000, held_max_bytes=100_000))
    c.on_fragment(0, None, b"x", 0)
    most = 0
    for sqn in range(2, 40_000, 2):
        c.on_fragment(sqn, None, bytes(1000), sqn)
        c.take_events()
        most = max(most, len(c._held))
    assert most <= 101
    tiny = DeliveryController(DeliveryConfig(map_limit=1000))
    tiny.on_fragment(0, None, b"x", 0)
    for sqn in range(2, 40_000, 2):
        tiny.on_fragment(sqn, None, b"", sqn)
        tiny.take_events()
        assert len(tiny._held) <= 1001


def test_messages_under_way_are_bounded_in_arrival_order() -> None:
    c = DeliveryController(DeliveryConfig(ordered_delivery=ARRIVAL, message_max_bytes=10_000))
    for sqn in range(0, 40_000, 2):
        c.on_fragment(sqn, (sqn, 0, 2000), bytes(1000), 0)
        c.on_fragment(add(sqn, 1), None, b"", 0)
    assert c._joiner._have <= 11_000


def test_messages_under_way_are_bounded_in_number_however_small() -> None:
    c = DeliveryController(DeliveryConfig(ordered_delivery=ARRIVAL))
    for sqn in range(0, 4 * PARTIALS_MAX, 2):
        c.on_fragment(sqn, (sqn, 0, 2), b"x", 0)
        c.on_fragment(add(sqn, 1), None, b"", 0)
    assert isinstance(c._joiner, ArrivalReassembly)
    assert len(c._joiner._partials) == PARTIALS_MAX
