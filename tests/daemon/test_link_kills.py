"""Peer portals of real DROs that are killed under load: all arrives, once and in order, and the books are exact."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.bench.links import KINDS
from tests.rigs.link_kills import kill_peers

pytestmark = pytest.mark.slow

KILLS = 5


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in ("TCP", "UDP+TLS+LZ4") else pytest.mark.long) for kind in KINDS]
)
def test_nothing_is_lost_when_a_peer_portal_is_killed(tmp_path: Path, kind: str) -> None:
    result = kill_peers(tmp_path, kind, KILLS, random.Random(kind))
    assert result.log == ()
    assert (result.lost, result.doubled, result.disordered) == (0, 0, 0)
