"""Ends of portals, again and again under load: receivers miss and double nothing, and get all in order."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.rigs.going_on import kill_portals, restart_portals

pytestmark = pytest.mark.slow

KILLS = 15  # for each transport of the sources
RESTARTS = 6


@pytest.mark.parametrize("transport", ["lbtrm", "tcp"])
def test_receivers_miss_and_double_nothing_while_portals_are_killed(tmp_path: Path, transport: str) -> None:
    outcome = kill_portals(tmp_path, transport, KILLS, random.Random(transport))
    assert outcome.problems == []
    assert len(outcome.pauses_ms) == KILLS


@pytest.mark.parametrize("transport", ["lbtrm", "tcp"])
def test_receivers_miss_and_double_nothing_while_portals_are_restarted(tmp_path: Path, transport: str) -> None:
    outcome = restart_portals(tmp_path, transport, RESTARTS)
    assert outcome.problems == []
    assert len(outcome.pauses_ms) == RESTARTS
