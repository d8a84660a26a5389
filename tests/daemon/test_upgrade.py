"""A DRO is replaced under load in the ways of docs/upgrade.md that are to lose nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.upgrade import WAYS
from tests.rigs.effort import IS_LONG

RATE = 500
TOPICS = 20

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("transport", ["lbtrm", "tcp"] if IS_LONG else ["lbtrm"])
@pytest.mark.parametrize("way", ["beside", "another-way", "in-place"])
def test_a_drained_dro_is_replaced_without_loss(tmp_path: Path, way: str, transport: str) -> None:
    outcome = WAYS[way](tmp_path, transport, RATE, TOPICS, is_quick=True)
    assert outcome.sent > 2 * RATE
    assert outcome.lost == 0, outcome
