"""Fragments joined into messages, piece by piece: what each piece brings, in topic order and in order of arrival."""

from __future__ import annotations

import pytest

from dro.proto.delivery.reassembly import ArrivalReassembly, Delivered, Frag, InOrderReassembly, Refusal

MALFORMED, TOO_LONG, ORPHAN = Refusal.MALFORMED.name, Refusal.TOO_LONG.name, Refusal.ORPHAN.name
LONGEST = 20

Piece = tuple[int, Frag | None, str]


def fed(joiner: InOrderReassembly | ArrivalReassembly, *pieces: Piece) -> list[str]:
    """What each piece brought: "" nothing yet, a refusal, or a message: sqns, text and flags (piece n has bit n)."""
    told = []
    for number, (sqn, frag, text) in enumerate(pieces):
        match joiner.take(sqn, frag, text.encode(), 1 << number):
            case None:
                told.append("")
            case Refusal(name=name):
                told.append(name)
            case Delivered(last, first, payload, flags, fragment):
                assert fragment is None
                told.append(f"{first}-{last} {bytes(payload).decode()} {flags}")
    return told


@pytest.mark.parametrize(
    ("pieces", "in_order", "in_arrival"),
    [
        ([(7, None, "abc"), (7, (7, 0, 3), "abc"), (7, (7, 0, 0), "")], ["7-7 abc 1", "7-7 abc 2", "7-7  4"], None),
        ([(7, (7, 0, 3), "")], [MALFORMED], None),
        ([(7, (7, 0, 2), "abc")], [MALFORMED], None),
        ([(7, (7, 3, 5), "abc")], [MALFORMED], None),
        ([(8, (7, 3, 5), "abc")], [MALFORMED], None),
        ([(8, (7, 0, 3), "abc")], [MALFORMED], None),
        ([(6, (7, 3, 6), "abc")], [MALFORMED], None),
        ([(8, (7, 3, 5), "abc"), (9, (7, 3, 5), "abc"), (9, (6, 3, 5), "abc")], [MALFORMED, ORPHAN, MALFORMED], None),
        ([(7, (7, 0, 6), "abc"), (8, (7, 3, 6), "def")], ["", "7-8 abcdef 3"], None),
        (
            [(0xFFFFFFFF, (0xFFFFFFFF, 0, 6), "abc"), (0, (0xFFFFFFFF, 3, 6), "def")],
            ["", "4294967295-0 abcdef 3"],
            None,
        ),
        ([(7, (7, 0, 20), "a" * 19), (8, (7, 19, 20), "b")], ["", f"7-8 {'a' * 19}b 3"], None),
        ([(7, (7, 0, 21), "a" * 20), (8, (7, 20, 21), "b")], [TOO_LONG, ORPHAN], [TOO_LONG, ORPHAN]),
        (
            [(7, (7, 0, 21), "a"), (8, (8, 0, 22), "a"), (9, (9, 0, 4), "ab"), (10, (9, 2, 4), "cd")],
            [TOO_LONG, TOO_LONG, "", "9-10 abcd 12"],
            None,
        ),
        (
            [(7, (7, 0, 6), "abc"), (8, (8, 0, 4), "de"), (9, (8, 2, 4), "fg")],
            ["", "", "8-9 defg 6"],
            None,
        ),
        (
            [(7, (7, 0, 7), "abc"), (8, (7, 3, 8), "def"), (9, (7, 6, 7), "g")],
            ["", MALFORMED, ORPHAN],
            None,
        ),
        (
            [(7, (7, 0, 6), "abc"), (8, (7, 2, 6), "def"), (9, (7, 5, 6), "g")],
            ["", MALFORMED, ORPHAN],
            None,
        ),
        ([(7, (7, 0, 6), "abc"), (9, (7, 3, 6), "def")], ["", MALFORMED], None),
        ([(7, (7, 0, 9), "abc"), (8, (7, 6, 9), "ghi")], ["", MALFORMED], ["", ""]),
        ([(8, (7, 3, 6), "def"), (7, (7, 0, 6), "abc")], [ORPHAN, ""], ["", "7-8 abcdef 3"]),
        (
            [(7, (7, 0, 6), "abc"), (8, (5, 3, 6), "xyz"), (8, (7, 3, 6), "def")],
            ["", ORPHAN, ORPHAN],
            ["", "", "7-8 abcdef 5"],
        ),
        (
            [(7, (7, 0, 9), "abc"), (8, None, "x"), (9, (7, 3, 9), "def")],
            ["", "8-8 x 2", ORPHAN],
            ["", "8-8 x 2", ""],
        ),
    ],
)
def test_what_each_piece_brings(pieces: list[Piece], in_order: list[str], in_arrival: list[str] | None) -> None:
    joiner = InOrderReassembly(LONGEST)
    assert fed(joiner, *pieces) == in_order
    assert joiner.is_idle == bool(in_order[-1]), "what is complete or refused is not under way"
    assert fed(ArrivalReassembly(LONGEST), *pieces) == (in_order if in_arrival is None else in_arrival)


def test_what_is_under_way_shows_and_ends_with_a_loss_or_an_end() -> None:
    for joiner in (InOrderReassembly(LONGEST), ArrivalReassembly(LONGEST)):
        assert joiner.is_idle is True
        fed(joiner, (7, (7, 0, 6), "abc"))
        assert joiner.is_idle is False
        joiner.on_lost(8)
        assert joiner.is_idle is True
        fed(joiner, (9, (9, 0, 6), "abc"))
        joiner.drop()
        assert joiner.is_idle is True
        assert fed(joiner, (10, (10, 0, 6), "abc"), (11, (10, 3, 6), "def")) == ["", "10-11 abcdef 3"]
        assert joiner.is_idle is True


@pytest.mark.parametrize("kind", [InOrderReassembly, ArrivalReassembly])
def test_a_message_in_one_fragment_is_passed_on_as_it_is(
    kind: type[InOrderReassembly] | type[ArrivalReassembly],
) -> None:
    view = memoryview(b"abc")
    for frag in (None, (7, 0, 3)):
        outcome = kind(LONGEST).take(7, frag, view, 5)
        assert isinstance(outcome, Delivered)
        assert outcome.payload is view


def test_a_loss_ends_the_message_that_begins_with_it_and_not_the_next() -> None:
    joiner = ArrivalReassembly(LONGEST)
    fed(joiner, (8, (7, 3, 6), "def"))
    joiner.on_lost(7)
    assert joiner.is_idle
    fed(joiner, (9, (9, 0, 6), "abc"))
    joiner.on_lost(8)
    assert fed(joiner, (10, (9, 3, 6), "def"), (10, (8, 3, 6), "def")) == ["9-10 abcdef 1", ORPHAN]


def test_messages_that_arrive_between_each_other_are_kept_apart() -> None:
    assert fed(
        ArrivalReassembly(LONGEST),
        (9, (7, 4, 6), "56"), (12, (10, 4, 5), "e"), (8, (7, 2, 6), "34"), (10, (10, 0, 5), "ab"),
        (11, (10, 2, 5), "cd"), (7, (7, 0, 6), "12"),
    ) == ["", "", "", "", "10-12 abcde 26", "7-9 123456 37"]  # fmt: skip


def test_the_same_piece_again_is_left_out_and_another_in_its_place_costs_the_message() -> None:
    joiner = ArrivalReassembly(LONGEST)
    assert fed(joiner, (8, (7, 3, 9), "def"), (8, (7, 3, 9), "def")) == ["", ORPHAN]
    assert fed(joiner, (9, (7, 3, 9), "xyz"), (7, (7, 0, 9), "abc")) == [MALFORMED, ORPHAN]
    assert joiner.is_idle


def test_pieces_that_overlap_or_stand_in_the_wrong_order_are_no_message() -> None:
    for pieces in (
        [(8, (7, 2, 6), "def"), (7, (7, 0, 6), "abc")],
        [(9, (7, 2, 6), "cd"), (8, (7, 4, 6), "ef"), (7, (7, 0, 6), "ab")],
        [(8, (7, 1, 4), "b"), (9, (7, 2, 4), "c"), (10, (7, 3, 4), "d"), (11, (7, 2, 4), "c")],
    ):
        assert fed(ArrivalReassembly(LONGEST), *pieces)[-1] == MALFORMED


def test_a_loss_costs_what_began_before_it_and_nothing_later() -> None:
    joiner = ArrivalReassembly(LONGEST)
    assert fed(joiner, (5, (5, 0, 9), "abc"), (8, (8, 0, 4), "ab"), (10, (10, 0, 4), "ab")) == ["", "", ""]
    joiner.on_lost(8)
    joiner.on_lost(6)  # older than what is known
    assert fed(joiner, (9, (8, 2, 4), "cd"), (9, (5, 6, 9), "ghi"), (11, (10, 2, 4), "cd")) == [
        ORPHAN, ORPHAN, "10-11 abcd 4",
    ]  # fmt: skip
    assert fed(joiner, (9, (9, 0, 4), "ab"), (10, (9, 2, 4), "cd")) == ["", "9-10 abcd 3"]
    assert fed(joiner, (7, (7, 0, 4), "ab"), (8, (7, 2, 4), "cd")) == ["", "7-8 abcd 3"], "before the loss, and whole"


def test_more_bytes_under_way_than_one_message_may_have_cost_the_oldest() -> None:
    def under_way() -> ArrivalReassembly:
        joiner = ArrivalReassembly(10)
        fed(joiner, (1, (1, 0, 8), "123456"), (3, (3, 0, 8), "abcd"))
        return joiner

    assert fed(under_way(), (2, (1, 6, 8), "78"), (4, (3, 4, 8), "efgh")) == ["1-2 12345678 1", "3-4 abcdefgh 2"]
    joiner = under_way()
    assert fed(joiner, (5, (5, 0, 8), "A"), (2, (1, 6, 8), "78")) == ["", ""], "it was given up"
    assert fed(joiner, (4, (3, 4, 8), "efgh"), (6, (5, 1, 8), "BCDEFGH")) == ["3-4 abcdefgh 3", "5-6 ABCDEFGH 3"]
    for end in (joiner.drop, lambda: joiner.on_lost(7)):
        end()
        assert fed(joiner, (11, (11, 0, 8), "123456"), (13, (13, 0, 8), "abcd")) == ["", ""]
        assert fed(joiner, (12, (11, 6, 8), "78"), (14, (13, 4, 8), "efgh")) == ["11-12 12345678 1", "13-14 abcdefgh 2"]


def test_a_thousand_and_twenty_four_messages_are_under_way_at_once() -> None:
    joiner = ArrivalReassembly(10_000)
    fed(joiner, *((sqn, (sqn, 0, 2), "a") for sqn in range(0, 2048, 2)))
    assert fed(joiner, (1, (0, 1, 2), "b")) == ["0-1 ab 1"]
    fed(joiner, (3000, (3000, 0, 2), "a"), (3002, (3002, 0, 2), "a"))
    assert fed(joiner, (5, (4, 1, 2), "b"), (3, (2, 1, 2), "b")) == ["4-5 ab 5", ""]
