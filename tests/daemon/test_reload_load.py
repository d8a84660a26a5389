"""A loaded DRO is changed in every way that a reload knows: flows that are not concerned lose and repeat nothing.

Three flows go round three portals (`tests.rigs.ring`). A fourth portal comes and goes, and what happens to P2 concerns
the flow into it and the flow out of it, while the third passes it by. The same by command: `test_drain.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from dro.metrics.slots import DROP_SLOTS
from tests.rigs.books import books_of
from tests.rigs.flow import BOUND, DUPLICATES, MISSING, PAUSE, WRONG, Board
from tests.rigs.orders import order
from tests.rigs.ring import Ring
from tests.rigs.site import ROUTES, Site, drained

TOPICS = 20
RATE = 400
SHORT = """\
receiver transport_lbtrm_nak_generation_interval 2000
receiver transport_lbtrm_nak_suppress_interval 100
source transport_lbtrm_ignore_interval 50
"""
P2 = "<domain-id>2</domain-id>"
P3 = "<lbm-config>trd3.cfg</lbm-config>"
NOBODY = """\
<acl>
  <inbound>
    <ace match='reject'><topic>nobody.has.this</topic></ace>
    <ace match='accept'><pcre-pattern>.</pcre-pattern></ace>
  </inbound>
</acl>"""
ONLY_FLOWS = """\
<acl>
  <inbound><ace match='accept'><pcre-pattern>^flow</pcre-pattern></ace></inbound>
  <outbound><ace match='accept'><pcre-pattern>^flow</pcre-pattern></ace></outbound>
</acl>"""

pytestmark = pytest.mark.slow


class Changing:
    """A site of three portals and a file in which there may be a fourth, under load."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.file = site.folder / "dro.xml"
        self.with_fourth = self.file.read_text()
        self.first = re.sub(r" *<endpoint>\s*<name>P4</name>.*?</endpoint>\n", "", self.with_fourth, flags=re.DOTALL)
        self.file.write_text(self.first)
        site.start()
        self.ring = Ring(site, TOPICS, RATE)
        self.pages = 3

    def reload(self, text: str) -> list[tuple[str, str]]:
        """Write the file and reload it; what was done."""
        self.file.write_text(text)
        answer = order(self.site.pid, "reload")
        assert answer["is_done"], answer
        plan = cast(dict[str, list[dict[str, str]]], answer["plan"])
        return [(action["action"], action["target"]) for action in plan["actions"]]

    def assert_whole(self, *flows: Board) -> None:
        """Everything that was sent has come, once."""
        for flow in flows:
            flow[PAUSE] = 1
        for flow in flows:
            self.ring.wait(lambda f=flow: f.is_complete, f"all of {flow.label}", 90)
            assert (flow[MISSING], flow[DUPLICATES], flow[WRONG]) == (0, 0, 0), flow.story()
        for flow in flows:
            flow[PAUSE] = 0

    def assert_balanced(self) -> None:
        for flow in self.ring.flows.values():
            flow[PAUSE] = 1
        with books_of(self.site.pid, self.pages) as books:
            self.ring.wait(lambda: drained(books), "nothing on its way")
            assert books.problems() == []
        for flow in self.ring.flows.values():
            flow[PAUSE] = 0

    def wait_routes(self, count: int) -> None:
        self.site.wait(lambda: f"routes={count} " in self.site.log.rpartition(ROUTES)[2], f"{count} routes", 90)


@pytest.fixture
def dro(tmp_path: Path) -> Iterator[Changing]:
    site = Site(tmp_path, 4, um=dict.fromkeys(range(1, 5), SHORT))
    try:
        yield Changing(site)
    finally:
        site.close()


def test_what_changes_in_place_and_what_comes_and_goes_costs_no_flow_a_message(dro: Changing) -> None:
    site, ring = dro.site, dro.ring
    flows = tuple(ring.flows.values())
    pids = site.workers()
    steps: list[tuple[str, list[tuple[str, str]]]] = [
        (dro.first.replace("  <portals>", "\n<!-- a remark -->\n<portals>"), []),
        (dro.first.replace(P3, P3 + NOBODY), [("change in place", "P3")]),
        (dro.first.replace(P3, P3 + ONLY_FLOWS), [("change in place", "P3")]),
        (dro.first.replace(P2, f"{P2}<cost>9</cost>"), [("change in place", "P2"), ("change in place", "P3")]),
        (dro.first.replace(P2, f"{P2}<max-queue>5000000</max-queue>"), [("change in place", "P2")]),
        (dro.with_fourth, [("start", "P4")]),
        (dro.first, [("drain and remove", "P4")]),
    ]
    for text, wanted in steps:
        done = dro.reload(text)
        taken_back = {("change in place", "P2"), ("change in place", "P3")} if done else set()
        assert set(wanted) <= set(done) <= set(wanted) | taken_back, (done, text)
        if ("start", "P4") in wanted:
            dro.pages = 4
            dro.wait_routes(12)
        dro.assert_whole(*flows)
    dro.wait_routes(6)
    dro.assert_whole(*flows)
    assert site.workers() == pids, "nobody was restarted"
    with books_of(site.pid, 4) as books:
        assert not any(books[n, slot] for n in books.pages for slot in DROP_SLOTS.values())
    dro.assert_balanced()


RESTART = f'{P2}<sqn-window size="8192"/>'


def test_a_portal_restarts_and_is_removed_while_the_flow_past_it_goes_on(dro: Changing) -> None:
    site, ring = dro.site, dro.ring
    past, concerned = ring.past("P2"), (ring.entering("P2"), ring.leaving("P2"))
    others = {name: pid for name, pid in site.workers().items() if name != "P2"}
    without = re.sub(r" *<endpoint>\s*<name>P2</name>.*?</endpoint>\n", "", dro.first, flags=re.DOTALL)
    steps: list[tuple[str, tuple[str, str], Callable[[], object]]] = [
        (dro.first.replace(P2, RESTART), ("restart", "P2"), ring.wait_flowing_again),
        (without, ("drain and remove", "P2"), lambda: None),
        (dro.first, ("start", "P2"), ring.wait_flowing_again),
    ]
    for text, wanted, settled in steps:
        before = [flow[MISSING] for flow in concerned]
        assert dro.reload(text) == [wanted]
        if wanted[0] == "drain and remove":
            for flow, missing in zip(concerned, before, strict=True):
                ring.wait(lambda f=flow: f[BOUND] == 0, "the end of its sources", 90)
                assert flow[MISSING] == missing, "what had been accepted arrived"
        settled()
        dro.assert_whole(past)
        assert all((flow[DUPLICATES], flow[WRONG]) == (0, 0) for flow in concerned)
        assert {name: pid for name, pid in site.workers().items() if name != "P2"} == others
    assert "two portals in one domain" not in site.log
    dro.pages = 4  # P2 is worker 4 now
    dro.assert_balanced()
    assert site.stop() == 0
