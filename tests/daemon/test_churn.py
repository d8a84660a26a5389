"""What comes and goes leaves nothing behind: sources, receivers and patterns through a running DRO."""

from __future__ import annotations

from pathlib import Path

import pytest

from dro.metrics.slots import Slot
from tests.bench.churn import GAUGES, Order, churn, running, table
from tests.rigs.effort import IS_LONG

ALIVE = 100 if IS_LONG else 30
OBJECTS = len(Order) * ALIVE  # each order of deletion has its wave


@pytest.mark.slow
def test_sources_receivers_and_patterns_come_and_go_and_leave_nothing_behind(tmp_path: Path) -> None:
    with running(tmp_path) as site:
        report = churn(site, OBJECTS, ALIVE)
    shown = "\n".join(table(report))
    assert report.problems() == [], shown
    # and there was something that could have been left
    peak = {trd: dict(zip(GAUGES, values, strict=True)) for trd, values in report.gauges_peak.items()}
    assert peak["TRD 1"][Slot.PROXY_RECEIVERS] == 2 * ALIVE
    assert peak["TRD 2"][Slot.PROXY_SOURCES] == ALIVE
    assert all(report.census_peak[who].total_ours > 10 * ALIVE for who in ("P1", "P2", "sources", "receivers")), shown
    assert report.peak["P1"].fds > report.after["P1"].fds
