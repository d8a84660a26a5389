"""Which topics a portal lists, for whatever reason it knows them: each once."""

from __future__ import annotations

import json
from pathlib import Path

from dro.bus.messages import ListRows, Rows
from portals.decisions.messages import PATTERN_PCRE
from tests.fakes.um_contexts import Stepper
from tests.rigs.one_process import OneProcess, one_process


def topics(dro: OneProcess, portal: int) -> list[tuple[str, int, int, int]]:
    """Topic, sources heard, domains that want it, domains on whose behalf it is asked for."""
    rows = []
    cursor = None
    while cursor != 0:
        answer = dro.workers[portal].told["on_list"](ListRows(1, "topics", "", cursor or 0))
        assert isinstance(answer, Rows)
        rows += json.loads(answer.rows)
        cursor = answer.cursor
    return sorted((row["topic"], row["sources"], len(row["wanted_by"]), len(row["asked_for"])) for row in rows)


def test_a_topic_is_listed_once_whatever_makes_it_known(tmp_path: Path, stepper: Stepper) -> None:
    """Heard, asked for, or offered by the sibling, here because a pattern matches it."""
    with one_process(tmp_path, stepper, 2) as dro:
        here, beyond = dro.application(1), dro.application(2)
        for topic in (b"by.name", b"by.pattern", b"unwanted"):
            here.source(topic)
        for topic in (b"by.name", b"missing"):
            beyond.context.want_topic(topic)
        beyond.context.want_pattern(b"pattern$", PATTERN_PCRE, lambda topic: topic.endswith(b"pattern"))
        dro.until(lambda: beyond.topics() == {b"by.name", b"by.pattern"})
        assert topics(dro, 1) == [
            ("by.name", 1, 0, 1), ("by.pattern", 1, 0, 0), ("missing", 0, 0, 1), ("unwanted", 1, 0, 0),
        ]  # fmt: skip
        assert topics(dro, 2) == [("by.name", 0, 1, 0), ("by.pattern", 0, 1, 0), ("missing", 0, 1, 0)]
