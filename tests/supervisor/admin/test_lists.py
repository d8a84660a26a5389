"""Shows who is asked for a list of a running DRO."""

from __future__ import annotations

import pytest

from dro.bus.listing import BLOCKED, PEERS, ROUTES, TOPOLOGY
from supervisor.admin.lists import holders
from supervisor.admin.status import ROUTE_MANAGER, DroStatus, WorkerStatus


def worker(name: str, role: str, state: str = "ready") -> WorkerStatus:
    return WorkerStatus(name, role, 0, state, 1, 1, 0, 0.0, "")


STATUS = DroStatus(
    "N", "0", "1", 1, 0.0, "f", 0.0, True,
    workers=(
        worker("route-manager", ROUTE_MANAGER), worker("E", "endpoint"), worker("P", "peer", "draining"),
        worker("Q", "peer", "paused"), worker("monitor", "monitor"),
    ),
)  # fmt: skip


@pytest.mark.parametrize(
    ("what", "portal", "able", "problems"),
    [
        (BLOCKED, "", ["E", "P"], ["Q is paused"]),
        (BLOCKED, "P", ["P"], []),
        (BLOCKED, "Q", [], ["Q is paused"]),
        (PEERS, "", ["P"], ["Q is paused"]),
        (ROUTES, "", ["route-manager"], []),
        (TOPOLOGY, "", ["route-manager"], []),
    ],
)
def test_a_list_comes_from_the_workers_that_have_it_and_work(
    what: str, portal: str, able: list[str], problems: list[str]
) -> None:
    assert holders(STATUS, what, portal) == (able, problems)


def test_a_status_without_a_route_manager_has_none() -> None:
    assert STATUS.manager == STATUS.workers[0]
    assert DroStatus("N", "0", "1", 1, 0.0, "f", 0.0, True).manager is None
