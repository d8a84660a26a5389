"""Proxy receivers and proxy sources of a working DRO, as the portal has them."""

from __future__ import annotations

from pathlib import Path

from portals.decisions.messages import PATTERN_PCRE
from tests.fakes.um_contexts import Stepper
from tests.rigs.one_process import one_process


def test_a_pattern_that_nobody_wants_any_more_joins_nothing(tmp_path: Path, stepper: Stepper) -> None:
    with one_process(tmp_path, stepper, 2) as dro:
        a, b = dro.application(1), dro.application(2)
        a.source(b"AAA")
        b.context.want_pattern(b"^A", PATTERN_PCRE, lambda topic: topic.startswith(b"A"))
        dro.until(lambda: b.topics() == {b"AAA"})
        b.context.unwant_pattern(b"^A", PATTERN_PCRE)
        dro.until(lambda: not dro.portals[1].receiving.bound_sources)


def test_the_sessions_that_a_sibling_feeds_are_those_of_its_sources(tmp_path: Path, stepper: Stepper) -> None:
    with one_process(tmp_path, stepper, 3) as dro:
        b, c = dro.application(2), dro.application(3)
        source = c.source(b"AAA")
        b.context.want_topic(b"AAA")
        dro.until(lambda: b.topics() == {b"AAA"})
        c.send(source)
        dro.until(lambda: b.heard(b"AAA") == [0])
        now_ns = dro.loop.now_ns()
        is_over = {worker: dro.portals[2].rest(worker, now_ns).is_over(now_ns) for worker in (1, 3)}
        assert is_over == {1: True, 3: False}
