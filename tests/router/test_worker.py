"""The route manager's process: what the portals tell it, and what it says of it."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from dro.bus.messages import ROUTE_MANAGER, ROUTE_MESSAGES, ListRows, PortalGone, RoutesCalculated, Rows
from dro.log.events import LogEvent
from tests.fakes.um_contexts import Stepper
from tests.rigs.one_process import one_process


def test_a_portal_that_says_goodbye_takes_its_routes_along(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    stepper = Stepper()
    with one_process(tmp_path, stepper, 2) as dro:
        reports = dro.workers[ROUTE_MANAGER].reports
        before = len(reports)
        dro.workers[2].channels.send_ctl(ROUTE_MANAGER, ROUTE_MESSAGES.encode(PortalGone(2)))
        dro.until(lambda: len(reports) > before)
        assert reports[before:] == [RoutesCalculated((1 << 32) + 2, 0)]
    told = [
        (r.__dict__["route_version"], r.__dict__["routes"])
        for r in caplog.records
        if r.msg == LogEvent.ROUTES_CALCULATED
    ]
    assert told == [("1.1", 2), ("1.2", 0)]
    stepper.loop.close()


def test_the_route_manager_lists_its_routes_and_nothing_else(tmp_path: Path) -> None:
    stepper = Stepper()
    with one_process(tmp_path, stepper, 2) as dro:
        ask = dro.workers[ROUTE_MANAGER].told["on_list"]
        rows = ask(ListRows(1, "routes", "", 0))
        assert isinstance(rows, Rows)
        found = {(row["from_domain"], row["to_domain"], row["ingress"], row["egress"]) for row in json.loads(rows.rows)}
        assert found == {(1, 2, "P1", "P2"), (2, 1, "P2", "P1")}
        assert ask(ListRows(2, "topics", "", 0)) == Rows(2, "[]", 0, "route-manager lists no topics")
    stepper.loop.close()
