"""Episodes of unrecoverable loss: what is one, how many are kept, and how they are told."""

from __future__ import annotations

from typing import Any, cast

from dro.bus.listing import TOPICS_MAX, LossRow
from dro.clock import NS_PER_S, ms, s
from dro.proto.context.sources import BoundSource
from portals.shell.losses import APART_NS, EPISODES_MAX, Losses

WALL_S = 1_700_000_000.0


class Scene:
    """Losses at times of both clocks, which the test moves."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.losses = Losses(lambda: WALL_S + self.now_ns / NS_PER_S)

    def lose(self, source: str, carried: list[BoundSource[Any]], lost: int, cause: str, at_ns: int) -> None:
        self.now_ns = at_ns
        self.losses.on_lost(source, carried, lost, cause, at_ns)

    def rows(self, text: bytes = b"") -> list[LossRow]:
        return [row for row in self.losses.rows("P1", text) if row is not None]


def carried(*topics: bytes) -> list[BoundSource[Any]]:
    nothing = cast(Any, None)
    return [
        BoundSource(topic, bytes([number]) * 2, number, nothing, nothing, False) for number, topic in enumerate(topics)
    ]


def test_losses_of_a_session_within_a_second_are_one_episode() -> None:
    scene = Scene()
    for at_ns, lost in ((s(10), 3), (s(10) + APART_NS, 4), (s(11) + APART_NS, 5), (s(12) + APART_NS + 1, 6)):
        scene.lose("LBTRM:a", carried(b"one"), lost, "timeout", at_ns)
    first, second = scene.rows()
    assert first == LossRow("P1", "LBTRM:a", WALL_S + 10, WALL_S + 12, 12, "timeout", ("one",), "0000")
    assert (second.lost, second.began_s, second.ended_s) == (6, WALL_S + 13, WALL_S + 13)


def test_other_sessions_and_causes_are_other_episodes() -> None:
    scene = Scene()
    for lost in (1, 10):
        scene.lose("a", carried(b"one"), lost, "timeout", s(10))
        scene.lose("b", carried(b"one"), lost, "timeout", s(10) + ms(1))
        scene.lose("a", carried(b"one"), lost, "window advance", s(10) + ms(2))
    found = [(row.source, row.cause, row.lost) for row in scene.rows()]
    assert found == [("a", "timeout", 11), ("b", "timeout", 11), ("a", "window advance", 11)]


def test_a_row_names_eight_topics_at_most_and_the_otid_of_an_only_source() -> None:
    scene = Scene()
    scene.lose("many", carried(*[b"t%d" % number for number in range(10)]), 1, "timeout", 0)
    scene.lose("twice", carried(b"same", b"same"), 1, "timeout", 0)
    scene.lose("none", [], 1, "timeout", 0)
    many, twice, none = scene.rows()
    assert many.topics == tuple(f"t{number}" for number in range(TOPICS_MAX))
    assert (twice.topics, twice.otid) == (("same",), "")
    assert (none.topics, none.otid) == ((), "")
    assert scene.rows(b"am") == [twice]
    assert scene.rows(b"x") == []


def test_the_last_200_episodes_are_kept_and_one_that_went_is_not_continued() -> None:
    scene = Scene()
    for number in range(EPISODES_MAX + 1):
        scene.lose(f"s{number}", [], 1, "timeout", ms(number))
    assert [row.source for row in scene.rows()] == [f"s{number}" for number in range(1, EPISODES_MAX + 1)]
    scene.lose("s0", [], 1, "timeout", ms(300))
    assert [row.source for row in scene.rows()][-1] == "s0"
    assert len(scene.rows()) == len(scene.losses._newest) == EPISODES_MAX == 200
    for number in range(2 * EPISODES_MAX):
        scene.lose("again", [], 1, "timeout", s(2 * number))
    assert len(scene.losses._newest) == 1
    scene.lose("again", [], 1, "timeout", s(4 * EPISODES_MAX - 2))
    assert [row.lost for row in scene.rows()] == [1] * (EPISODES_MAX - 1) + [2]
