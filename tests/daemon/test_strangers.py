"""What strangers send beside a flow of mixed traffic: it loses nothing, no worker ends, no turn of a loop gets long."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dro.metrics.slots import Slot
from tests.bench.isolation import TOPICS, Beside, jumps, mutated, new_names, running_beside, seconds_after_a_forged_sqn
from tests.bench.traffic import generator
from tests.rigs.effort import IS_LONG

RATE = 300
LONGEST_TURN_MS = 60  # of processor time; jumps took seconds when each missing datagram was an object

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not generator.is_possible(), reason="the load generator needs gcc"),
]


def assert_unharmed(found: list[Beside]) -> None:
    for one in found:
        assert one.sent > 0
        assert (one.lost, one.ended, one.problems) == (0, [], []), one
        assert max(one.longest_turn_ms.values()) < LONGEST_TURN_MS, one


def test_jumps_of_another_session_cost_a_flow_nothing(tmp_path: Path) -> None:
    with running_beside(tmp_path / "site", "lbtrm", RATE) as who:
        found = jumps(who, 6 if IS_LONG else 2)
        assert_unharmed(found)
        assert found[-1].again == 0


@pytest.mark.parametrize("transport", ["lbtrm", pytest.param("tcp", marks=pytest.mark.long)])
def test_mutated_packets_on_all_ports_cost_a_flow_nothing(tmp_path: Path, transport: str) -> None:
    with running_beside(tmp_path / "site", transport, RATE) as who:
        found = mutated(who, 2000, is_tcp=transport == "tcp")
    assert_unharmed(found)
    assert all(count > 0 for count in found[-1].bad.values())


def test_new_names_cost_a_flow_nothing_and_a_forged_sqn_two_seconds_at_most(tmp_path: Path) -> None:
    with running_beside(tmp_path / "site", "lbtrm", RATE) as who:
        assert_unharmed(new_names(who, 30_000))
        assert who.site is not None
        with who.site.books() as books:
            for _ in range(20):  # the source's own next datagram may be quicker, and is the one that is taken then
                assert seconds_after_a_forged_sqn(who, TOPICS) < 2
                end = time.monotonic() + 3
                while not books.total(Slot.FLOWS_RESTARTED) and time.monotonic() < end:
                    who.step()
                    time.sleep(0.002)
                if books.total(Slot.FLOWS_RESTARTED):
                    break
            assert books.total(Slot.FLOWS_RESTARTED) == 1
