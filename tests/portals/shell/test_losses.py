"""Episodes of unrecoverable loss: what is one, how many are kept, and how they are told."""

from __future__ import annotations

from typing import Any, cast

from dro.bus.listing import TOPICS_MAX, LossRow
from dro.clock import ms, s
from dro.um.transport.session import BoundSource
from portals.shell.losses import APART_NS, EPISODES_MAX, Losses

WALL_S = 1_700_000_000.0


def carried(*topics: bytes) -> list[BoundSource]:
    nothing = cast(Any, None)
    return [
        BoundSource(topic, bytes([number]) * 2, number, nothing, nothing, False) for number, topic in enumerate(topics)
    ]


def rows(losses: Losses, text: bytes = b"", now_ns: int = s(100)) -> list[LossRow]:
    return [row for row in losses.rows("P1", text, now_ns, WALL_S) if row is not None]


def test_losses_of_a_session_within_a_second_are_one_episode() -> None:
    losses = Losses()
    for at_ns, lost in ((s(10), 3), (s(10) + APART_NS, 4), (s(11) + APART_NS, 5), (s(12) + APART_NS + 1, 6)):
        losses.on_lost("LBTRM:a", carried(b"one"), lost, "timeout", at_ns)
    first, second = rows(losses)
    assert first == LossRow("P1", "LBTRM:a", WALL_S - 90, WALL_S - 88, 12, "timeout", ("one",), "0000")
    assert (second.lost, second.began_s, second.ended_s) == (6, WALL_S - 87, WALL_S - 87)


def test_other_sessions_and_causes_are_other_episodes() -> None:
    losses = Losses()
    for lost in (1, 10):
        losses.on_lost("a", carried(b"one"), lost, "timeout", s(10))
        losses.on_lost("b", carried(b"one"), lost, "timeout", s(10) + ms(1))
        losses.on_lost("a", carried(b"one"), lost, "window advance", s(10) + ms(2))
    found = [(row.source, row.cause, row.lost) for row in rows(losses)]
    assert found == [("a", "timeout", 11), ("b", "timeout", 11), ("a", "window advance", 11)]


def test_a_row_names_eight_topics_at_most_and_the_otid_of_an_only_source() -> None:
    losses = Losses()
    losses.on_lost("many", carried(*[b"t%d" % number for number in range(10)]), 1, "timeout", 0)
    losses.on_lost("twice", carried(b"same", b"same"), 1, "timeout", 0)
    losses.on_lost("none", [], 1, "timeout", 0)
    many, twice, none = rows(losses)
    assert many.topics == tuple(f"t{number}" for number in range(TOPICS_MAX))
    assert (twice.topics, twice.otid) == (("same",), "")
    assert (none.topics, none.otid) == ((), "")
    assert rows(losses, b"am") == [twice]
    assert rows(losses, b"x") == []


def test_the_last_200_episodes_are_kept_and_one_that_went_is_not_continued() -> None:
    losses = Losses()
    for number in range(EPISODES_MAX + 1):
        losses.on_lost(f"s{number}", [], 1, "timeout", ms(number))
    assert [row.source for row in rows(losses)] == [f"s{number}" for number in range(1, EPISODES_MAX + 1)]
    losses.on_lost("s0", [], 1, "timeout", ms(300))
    assert [row.source for row in rows(losses)][-1] == "s0"
    assert len(rows(losses)) == len(losses._newest) == EPISODES_MAX == 200
    for number in range(2 * EPISODES_MAX):
        losses.on_lost("again", [], 1, "timeout", s(2 * number))
    assert len(losses._newest) == 1
    losses.on_lost("again", [], 1, "timeout", s(4 * EPISODES_MAX - 2))
    assert [row.lost for row in rows(losses)] == [1] * (EPISODES_MAX - 1) + [2]
