"""The network as it was seen: what goes keeps its place, with since when; what comes back is as before."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from dro.bus.listing import TopologyRow
from supervisor.admin.status import PortalPlace
from supervisor.monitor.known.network import KEPT_S, SeenNetwork, SeenRow
from supervisor.monitor.pages.picture import network_picture
from tests.builders.monitored import known

START_S = 1_700_000_000.0
NAMES = ("A", "B", "C")
IDS = {name: str((1 << 63) + number) for number, name in enumerate(NAMES)}


def triangle(ids: dict[str, str] = IDS, *, links: Iterable[str] = ("AB", "AC", "BC")) -> list[TopologyRow]:
    """Three DROs with a TRD each; A is asked."""
    rows, pairs = [], [set(pair) for pair in links]
    for number, name in enumerate(NAMES):
        base = TopologyRow(name, ids[name], 1, "0", is_own=name == "A")
        trd = replace(base, kind="TRD", neighbour=str(number + 1), ingress_cost=1, egress_cost=1)
        rows.append(replace(trd, portal="A-TRD" if base.is_own else ""))
        for other in NAMES:
            if {name, other} in pairs and name != other:
                link = replace(base, kind="DRO", neighbour=ids[other], neighbour_name=other, portal="")
                rows.append(replace(link, portal=f"A-{other}" if base.is_own else ""))
    return rows


class Scene:
    def __init__(self) -> None:
        self.network = SeenNetwork()
        status = known(Path("unused"), 0).status
        own = [PortalPlace("A-TRD", 1, 1), PortalPlace("A-B", 0, 1), PortalPlace("A-C", 0, 1)]
        workers = [replace(status.workers[0], name=place.name, state="ready") for place in own]
        self.status = replace(status, portals=tuple(own), workers=tuple(workers))
        self.now_s = START_S

    def look(self, rows: Iterable[TopologyRow], **states: str) -> list[SeenRow]:
        """Look a minute later. `states`: of portals, by name with _ for -."""
        workers = tuple(
            replace(worker, state=states.get(worker.name.replace("-", "_"), "ready")) for worker in self.status.workers
        )
        status = replace(self.status, workers=workers)
        self.now_s += 60
        self.network.look(self.now_s, tuple(rows), status)
        return [*self.network.rows]

    def lost(self) -> dict[str, tuple[str, float]]:
        """What is wrong, and for how many seconds, by edge."""
        return {
            row.portal or f"{row.dro}-{row.neighbour_name or row.neighbour}": (row.remark, self.now_s - row.since_s)
            for row in self.network.rows
            if row.remark
        }


def places(rows: Iterable[SeenRow]) -> list[tuple[str, ...]]:
    """All that says where something is, in order."""
    text = network_picture(list(rows))
    return re.findall(r'<(?:rect|circle|polyline)[^>]*?(?: c?x="([^"]*)" c?y="([^"]*)"| points="([^"]*)")', text)


def test_a_portal_that_is_paused_keeps_its_place_and_says_since_when() -> None:
    scene = Scene()
    whole = scene.look(triangle())
    assert scene.lost() == {}
    cut = [row for row in triangle(links=("AB", "BC")) if row.portal != "A-C"]
    for minutes in range(3):
        rows = scene.look(cut, A_C="paused")
        assert scene.lost() == {"A-C": ("paused", 60 * minutes), "C-A": ("down", 60 * minutes)}
        assert places(rows) == places(whole)
    rows = scene.look(triangle())
    assert scene.lost() == {}
    assert rows == whole


def test_a_dro_that_is_not_heard_is_cut_with_all_that_only_it_has() -> None:
    scene = Scene()
    whole = scene.look(triangle())
    rest = [row for row in triangle(links=("AB",)) if row.dro != "C" and row.portal != "A-C"]
    waiting = replace(triangle()[0], portal="A-C", kind="", neighbour="", remark="no neighbour for 7 s")
    rows = scene.look([*rest, waiting])
    assert scene.lost() == {
        "A-C": ("no neighbour", 0), "B-C": ("down", 0), "C-3": ("not heard", 0), "C-A": ("not heard", 0),
        "C-B": ("not heard", 0),
    }  # fmt: skip
    assert places(rows) == places(whole)
    text = network_picture(rows)
    assert len(re.findall(r'class="dro cut"', text)) == len(re.findall(r'class="trd cut"', text)) == 1
    assert "since 22:15" in text


def test_a_dro_that_starts_again_has_another_node_id_and_the_same_place() -> None:
    scene = Scene()
    whole = scene.look(triangle())
    scene.look([row for row in triangle(links=("AB",)) if row.dro != "C" and row.portal != "A-C"])
    rows = scene.look(triangle(IDS | {"C": "9" * 19}))
    assert scene.lost() == {}
    assert len(rows) == len(whole)
    assert places(rows) == places(whole)


def test_what_never_worked_is_not_seen_and_has_no_time() -> None:
    scene = Scene()
    scene.look([row for row in triangle(links=("AB",)) if row.portal != "A-C"], A_C="waiting")
    (row,) = [row for row in scene.network.rows if row.remark]
    assert (row.portal, row.remark, row.since_s, row.is_seen) == ("A-C", "waiting", 0.0, False)
    scene.look(triangle())
    scene.look([row for row in triangle(links=("AB",)) if row.portal != "A-C"], A_C="waiting")
    assert scene.lost()["A-C"] == ("waiting", 0)
    assert [row.is_seen for row in scene.network.rows if row.portal == "A-C"] == [True]


def test_a_portal_that_works_and_is_not_listed_yet_is_down_and_not_ready() -> None:
    scene = Scene()
    scene.look(triangle())
    scene.look([row for row in triangle(links=("AB", "BC")) if row.portal != "A-C"], A_C="ready")
    assert scene.lost()["A-C"] == ("down", 0)


def test_what_a_reload_has_removed_is_gone_and_the_rest_is_forgotten_after_a_day() -> None:
    scene = Scene()
    scene.look(triangle())
    kept = scene.status.portals[:2]
    scene.status = replace(scene.status, portals=kept)
    scene.look([row for row in triangle(links=("AB",)) if row.dro != "C"])
    assert "A-C" not in scene.lost()
    assert "C-3" in scene.lost()
    scene.now_s += KEPT_S
    scene.look([row for row in triangle(links=("AB",)) if row.dro != "C"])
    assert scene.lost() == {}


@pytest.mark.parametrize("topology", [(), "the same"])
def test_nothing_new_changes_nothing(topology: object) -> None:
    scene = Scene()
    scene.look(triangle())
    rows = scene.network.rows
    again = () if topology == () else scene.network._last
    scene.network.look(START_S + 1e6, again, scene.status)
    assert scene.network.rows is rows
