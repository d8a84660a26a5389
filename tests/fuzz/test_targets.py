"""Every target stands a short run, the same each time, and what was found once."""

from __future__ import annotations

from random import Random

import pytest

from tests.fuzz.table import TARGETS
from tests.fuzz.target import KEPT, Run, execute


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_takes_its_seeds_and_stands_what_comes_of_them(name: str) -> None:
    target = TARGETS[name]
    run = Run(target, Random(1))
    seeds = len(target.seeds())
    done = run.go_on(count=target.short)
    assert [finding.text for finding in run.found.values()] == []
    assert done.executions == seeds + target.short
    assert run.seeds_taken > seeds // 2, "a target that refuses its seeds tests nothing"
    assert done.taken > run.seeds_taken, "nothing but the seeds is taken"


def test_what_was_found_once_is_stood() -> None:
    files = [path for path in KEPT.glob("*/*") if path.is_file()]
    assert {path.parent.name for path in files} <= TARGETS.keys()
    found = [execute(TARGETS[path.parent.name], path.read_bytes())[2] for path in files]
    assert [(finding.target, finding.text) for finding in found if finding is not None] == []
