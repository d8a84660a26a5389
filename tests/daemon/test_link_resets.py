"""Links of real DROs whose connections are reset under load: all arrives, once and in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.links import KINDS
from tests.bench.resets import reset_often
from tests.rigs.network import PATIENT

RESETS = 30


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "TCP" else pytest.mark.long) for kind in KINDS]
)
def test_nothing_is_lost_when_a_link_is_reset(tmp_path: Path, kind: str) -> None:
    result = reset_often(tmp_path, kind, RESETS, daemon=PATIENT)
    assert result.sent > 100 * RESETS / 2
    assert (result.lost, result.doubled, result.disordered) == (0, 0, 0)


def test_a_companion_that_confirms_nothing_works_as_before(tmp_path: Path) -> None:
    result = reset_often(tmp_path, "TCP", 5, is_old=True, daemon=PATIENT)
    assert (result.doubled, result.disordered) == (0, 0)
    assert result.lost < result.sent / 2
