"""Peer portals of real DROs that are killed under load: all arrives, once and in order, and the books are exact."""

from __future__ import annotations

import json
import random
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.bench.links import KINDS
from tests.bench.resets import plan_of
from tests.daemon.test_peers import Chain
from tests.rigs.link_kills import PEERS, kill_peers
from tests.rigs.orders import order, tnwgdctl
from tests.rigs.waiting import wait_until

pytestmark = pytest.mark.slow

KILLS = 5


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in ("TCP", "UDP+TLS+LZ4") else pytest.mark.long) for kind in KINDS]
)
def test_nothing_is_lost_when_a_peer_portal_is_killed(tmp_path: Path, kind: str) -> None:
    result = kill_peers(tmp_path, kind, KILLS, random.Random(kind))
    assert result.log == ()
    assert (result.lost, result.doubled, result.disordered) == (0, 0, 0)


def test_nothing_is_lost_when_all_portals_of_a_dro_are_killed(tmp_path: Path) -> None:
    """A peer portal, or both of the link, and the endpoint portal that is the only one that could name what it had."""
    result = kill_peers(tmp_path, "TCP", KILLS, random.Random(1), others=("A-1", "B-2"))
    assert result.log == ()
    assert (result.lost, result.doubled, result.disordered) == (0, 0, 0)


def test_an_idle_link_is_made_anew_by_whichever_portal_is_restarted(tmp_path: Path) -> None:
    """Such a portal has nothing to wait for, and no sibling has named anything."""
    plan = plan_of(tmp_path, "TCP")
    pair = Chain(plan)
    with ExitStack() as stack:
        stack.callback(plan.close)
        for dro in ("B", "A"):
            pair.start_dro(dro)
            stack.callback(pair.end, dro)

        def links() -> list[str]:
            answers = [tnwgdctl(pair.processes[dro].pid, "peers", "--json") for dro, _ in PEERS]
            found = [json.loads(answer.stdout) for answer in answers if not answer.returncode]
            return [link["state"] for each in found for link in each["peers"]]

        wait_until(lambda: links() == ["up", "up"], "the link")
        for dro, name in PEERS:
            order(pair.processes[dro].pid, "portal", "restart", name)
            wait_until(lambda: links() == ["up", "up"], f"the link after a restart of {name}")
