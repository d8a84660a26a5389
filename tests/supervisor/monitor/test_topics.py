"""Metrics of single topics: a cap, series that stay, counters that never fall."""

from __future__ import annotations

import pytest

from dro.bus.listing import ProxyRow
from supervisor.monitor.answers.top import BETWEEN_S, OLD_S, SPAN_S, Top
from supervisor.monitor.answers.topics import MAX_TOPICS, TopicMetrics, topics_wanted
from supervisor.samples.exposition import Texts


def proxy(topic: str, fragments: int, otid: str = "01", portal: str = "P1", kind: str = "source") -> ProxyRow:
    return ProxyRow(portal, kind, topic, "topic", (1,), otid, f"TCP:{otid}", "P2", fragments)


class Scene:
    def __init__(self, limit: int) -> None:
        self.rows: list[ProxyRow] = []
        self.metrics = TopicMetrics(lambda: self.rows, limit)

    def values(self) -> dict[str, float]:
        text = Texts().encoded(self.metrics.families("A"), "")[0].decode()
        lines = [line for line in text.splitlines() if line.startswith("dro_topic")]
        return {name.partition("topic=")[2].strip('"}') or "left out": float(value)
                for name, value in (line.rsplit(" ", 1) for line in lines)}  # fmt: skip


def test_the_largest_come_in_first_and_stay() -> None:
    scene = Scene(2)
    scene.rows = [proxy("a", 5), proxy("b", 7), proxy("c", 9), proxy("d", 99, kind="receiver")]
    assert scene.values() == {"b": 7, "c": 9, "left out": 1}
    scene.rows = [proxy("a", 500), proxy("b", 8), proxy("c", 9)]
    assert scene.values() == {"b": 8, "c": 9, "left out": 1}
    scene.rows = [proxy("a", 500), proxy("c", 9)]
    assert scene.values() == {"c": 9, "a": 500, "left out": 0}


def test_a_counter_never_falls_while_its_topic_is_there() -> None:
    scene = Scene(10)
    scene.rows = [proxy("a", 5, "01"), proxy("a", 3, "02")]
    assert scene.values()["a"] == 8
    scene.rows = [proxy("a", 6, "01")]
    assert scene.values()["a"] == 9
    scene.rows = [proxy("a", 1, "01"), proxy("a", 2, "03")]  # 01 counts anew: its portal was restarted
    assert scene.values()["a"] == 6 + 3 + 1 + 2


@pytest.mark.parametrize(("text", "count"), [("", 0), ("0", 0), ("100", 100), (str(MAX_TOPICS), MAX_TOPICS)])
def test_how_many_is_in_the_environment(text: str, count: int) -> None:
    assert topics_wanted(text) == count


@pytest.mark.parametrize("text", ["x", "-1", str(MAX_TOPICS + 1)])
def test_what_is_no_number_of_topics_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"x|from 0 to"):
        topics_wanted(text)


def test_the_fastest_are_known_after_a_second_look() -> None:
    now = [100.0]
    rows = [proxy("slow", 10), proxy("fast", 10), proxy("fast", 0, "02"), proxy("idle", 4)]
    top = Top(lambda: rows, lambda: now[0])
    assert top.topics(9) == ([], 0.0)
    rows[:] = [proxy("slow", 14), proxy("fast", 30), proxy("fast", 8, "02"), proxy("idle", 4)]
    assert top.topics(9) == ([], 0.0), "not yet a second one"
    now[0] += BETWEEN_S
    found, looked_s = top.topics(9)
    assert ([(row.topic, row.fragments_per_s) for row in found], looked_s) == ([("fast", 14), ("slow", 2)], BETWEEN_S)
    assert [(row.topic, row.otid, row.fragments_per_s) for row in top.sources(2)[0]] == [
        ("fast", "01", 10), ("fast", "02", 4),
    ]  # fmt: skip
    rows[:] = [proxy("slow", 6), proxy("new", 8)]
    now[0] += BETWEEN_S
    found, _ = top.topics(9)
    assert [(row.topic, row.fragments_per_s) for row in found] == [("new", 2), ("slow", 1.5)], "one of them began anew"
    now[0] += OLD_S
    assert top.topics(9) == ([], 0.0), "the look before is too old"


def test_the_fastest_are_those_of_ten_seconds() -> None:
    now, fragments = [100.0], [0]
    top = Top(lambda: [proxy("bursts", fragments[0])], lambda: now[0])
    rates, spans = [], []
    for look in range(1, 31):
        now[0] += BETWEEN_S
        fragments[0] += 100 if look % 3 == 0 else 0
        found, span_s = top.sources(1)
        rates += [row.fragments_per_s for row in found]
        spans.append(span_s)
    assert max(spans) < 2 * SPAN_S
    assert min(spans[8:]) >= SPAN_S
    assert all(rate == pytest.approx(100 / 6, rel=0.5) for rate in rates[8:])
