"""Two processes of a loaded DRO die, at once or one after the other, at default timers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from itertools import combinations, permutations
from typing import Final

import pytest

from dro.clock import NS_PER_S
from tests.rigs.effort import IS_LONG
from tests.rigs.flow import DUPLICATES, MISSING, WRONG
from tests.rigs.ring import WORKERS, Ring
from tests.rigs.site import ROUTE_MANAGER, Site

ALL: Final = (ROUTE_MANAGER, *WORKERS)
TOPICS: Final = 5
RATE: Final = 500
SILENCE_S: Final = 2.5
"""Of a busy machine; half a second of a quiet one (docs/performance.md). Without its routes a portal waits for 5 s."""
AT_ONCE: Final = tuple(combinations(ALL if IS_LONG else ALL[:3], 2))
APART: Final = tuple(permutations(ALL, 2)) if IS_LONG else ((ROUTE_MANAGER, "P1"), ("P3", "P1"))

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    site = Site(tmp_path_factory.mktemp("deaths"), 3)
    file = site.folder / "dro.xml"
    lines = [line for line in file.read_text().splitlines() if "<route-" not in line]
    file.write_text("\n".join(lines))
    try:
        site.start()
        yield Ring(site, TOPICS, RATE)
    finally:
        site.close()


def is_back(site: Site, name: str, before: int) -> bool:
    return site.workers().get(name, before) != before


@pytest.mark.parametrize("apart_s", [0.0, 1.0], ids=["at once", "a second apart"])
def test_all_flows_are_back_as_after_one_death(ring: Ring, apart_s: float) -> None:
    """A portal that died with the route manager had no routes for 5 to 10 s, though its siblings had the valid ones."""
    site = ring.site
    for pair in APART if apart_s else AT_ONCE:
        lives = site.workers()
        missing = {n: flow[MISSING] for n, flow in ring.flows.items()}
        for name in pair:
            site.kill(name)
            for flow in ring.flows.values():
                flow.mark()
            if name != pair[-1]:
                time.sleep(apart_s)  # it is the case
        ring.wait(lambda: all(min(flow.after_mark()) >= 0 for flow in ring.flows.values()), f"flows after {pair}")
        silences = {n: max(flow.after_mark()) / NS_PER_S for n, flow in ring.flows.items()}
        assert max(silences.values()) < SILENCE_S, (pair, silences)
        for name in pair:
            site.wait(partial(is_back, site, name, lives[name]), f"the next {name}")
        for n, flow in ring.flows.items():
            if not {f"P{n}", f"P{n % 3 + 1}"} & set(pair):
                assert flow[MISSING] == missing[n], (pair, flow.story())
    assert all((flow[DUPLICATES], flow[WRONG]) == (0, 0) for flow in ring.flows.values())
    with site.books() as books:
        assert books.problems() == []
