"""What `tnwgdctl portals` says, from counter pages made for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dro.bus.counters import CounterPage
from dro.metrics.slots import PairSlot, Slot
from supervisor.admin.status import WorkerStatus
from supervisor.samples.pages import Pages

ROUTE_MANAGER, P1, P2, GONE = range(4)


def worker(index: int, state: str = "ready") -> WorkerStatus:
    return WorkerStatus(f"P{index}", "endpoint", index, state, 4711, 7, 0, 1.5, "")


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[Pages]:
    for index in (ROUTE_MANAGER, P1, P2, GONE):
        page = CounterPage.create(tmp_path / f"counters.{index}")
        if index == P1:
            for slot in Slot:
                page.set(slot, 1000 + slot)
        if index in (P2, GONE):
            page.set(page.pair(P1) + PairSlot.REFUSED, 3 * index)
            page.set(page.pair(P1) + PairSlot.REFUSED_BYTES, 50 * index)
        page.publish()
        page.close()
    made = Pages(tmp_path)
    yield made
    made.close()


def test_every_figure_comes_from_its_slot(pages: Pages) -> None:
    status = pages.status_of(worker(P1), 17, 5)
    refused = dict.fromkeys((Slot.FORWARDED, Slot.DROPPED_BLOCKED), 3 * P2 + 3 * GONE)
    refused |= dict.fromkeys((Slot.FORWARDED_BYTES, Slot.DROPPED_BLOCKED_BYTES), 50 * P2 + 50 * GONE)
    assert (status.name, status.kind, status.state, status.domain_id, status.cost) == ("P1", "endpoint", "ready", 17, 5)
    assert status.counters == {slot.name: 1000 + slot + refused.get(slot, 0) for slot in Slot}
    unicast, immediate = status.dropped("unicast", "unicast_data", "unicast_control"), status.dropped("immediate")
    assert unicast["no_route"] == 2000 + Slot.UNICAST_DATA_NO_ROUTE + Slot.UNICAST_CONTROL_NO_ROUTE
    assert unicast["error"] == 1000 + Slot.UNICAST_DROPPED_ERROR
    assert immediate["no_domain"] == 1000 + Slot.IMMEDIATE_NO_DOMAIN
    assert status.dropped("transport_topic")["source_deleted"] == 1000 + Slot.DROPPED_DELETED


def test_what_its_full_channel_refused_is_forwarded_and_dropped(pages: Pages) -> None:
    """Also that of a portal which has left: the sum stays forwarded = sent + dropped + queued."""
    status = pages.status_of(worker(P1), 1, 1)
    assert status[Slot.DROPPED_BLOCKED] == 1000 + Slot.DROPPED_BLOCKED + 3 * P2 + 3 * GONE
    assert status[Slot.FORWARDED] == 1000 + Slot.FORWARDED + 3 * P2 + 3 * GONE
    assert status[Slot.FORWARDED_BYTES] == 1000 + Slot.FORWARDED_BYTES + 50 * P2 + 50 * GONE
    assert pages.status_of(worker(P2), 2, 1).dropped_total == 0


@pytest.mark.parametrize("state", ["paused", "drained", "waiting", "starting", "stopping"])
def test_a_portal_that_does_not_work_has_no_gauges_but_its_counters(pages: Pages, state: str) -> None:
    status = pages.status_of(worker(P1, state), 1, 1)
    gauges = (Slot.PROXY_RECEIVERS, Slot.PROXY_SOURCES, Slot.LOCAL_TOPICS, Slot.REMOTE_PCRE)
    assert [status[slot] for slot in gauges] == [0, 0, 0, 0]
    assert status[Slot.SENT] == 1000 + Slot.SENT
