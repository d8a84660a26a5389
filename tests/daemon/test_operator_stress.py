"""Operators, kills and garbage at once; `python -m tests.bench.operator_stress` does it for as long as one likes."""

from __future__ import annotations

import os

import pytest

from tests.bench.operator_stress import run

SECONDS = float(os.environ.get("DRO_OPERATORS_SECONDS", "5"))


@pytest.mark.slow
def test_a_dro_survives_its_operators() -> None:
    answers, problems = run(SECONDS, operators=4, seed=7)
    assert problems == []
    assert sum(count for what, count in answers.items() if what.startswith("portal ") and what.endswith("done")) > 5
