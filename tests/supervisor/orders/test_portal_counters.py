"""What `tnwgdctl portals` says, from counter pages made for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dro.bus.counters import CounterPage
from portals.datapath.counters import PairSlot, Slot
from supervisor.admin.status import WorkerStatus
from supervisor.orders.portal_counters import Pages

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
        page.close()
    made = Pages(tmp_path, range(6))  # 4 and 5 never got a page
    yield made
    made.close()


def test_every_figure_comes_from_its_slot(pages: Pages) -> None:
    status = pages.status_of(worker(P1), 17, 5)
    assert (status.name, status.kind, status.state, status.domain_id, status.cost) == ("P1", "endpoint", "ready", 17, 5)
    assert status.proxy_receivers == 1000 + Slot.PROXY_RECEIVERS
    assert status.proxy_sources == 1000 + Slot.PROXY_SOURCES
    assert status.local_topics == 1000 + Slot.LOCAL_TOPICS
    assert status.local_patterns == 2000 + Slot.LOCAL_PCRE + Slot.LOCAL_REGEX
    assert status.remote_topics == 1000 + Slot.REMOTE_TOPICS
    assert status.remote_patterns == 2000 + Slot.REMOTE_PCRE + Slot.REMOTE_REGEX
    assert (status.received, status.received_bytes) == (1000 + Slot.TOPIC_RCVD, 1000 + Slot.TOPIC_RCVD_BYTES)
    assert status.control_received == 1000 + Slot.CONTROL_RCVD
    assert (status.sent, status.sent_bytes) == (1000 + Slot.SENT, 1000 + Slot.SENT_BYTES)
    assert (status.queued, status.queued_bytes) == (1000 + Slot.QUEUED, 1000 + Slot.QUEUED_BYTES)
    assert (status.queued_bytes_max, status.queue_limit_bytes) == (
        1000 + Slot.QUEUED_BYTES_MAX,
        1000 + Slot.QUEUE_LIMIT,
    )
    assert (status.unrecovered, status.naks_sent) == (1000 + Slot.UNRECOVERABLE, 1000 + Slot.NAKS_SENT)
    assert status.bad_datagrams == 1000 + Slot.BAD_DATAGRAMS
    assert status.retransmitted == 1000 + Slot.RETRANSMITTED
    assert (status.socket_drops, status.unsent) == (1000 + Slot.SOCKET_DROPS, 1000 + Slot.UNSENT)
    assert status.discarded == 1000 + Slot.DISCARDED
    assert status.unicast_received == 2000 + Slot.UNICAST_DATA_RCVD + Slot.UNICAST_CONTROL_RCVD
    assert status.unicast_forwarded == 1000 + Slot.UNICAST_FORWARDED
    assert status.unicast_sent == 1000 + Slot.UNICAST_SENT
    assert status.unicast_dropped["no_route"] == 2000 + Slot.UNICAST_DATA_NO_ROUTE + Slot.UNICAST_CONTROL_NO_ROUTE
    assert status.unicast_dropped["error"] == 1000 + Slot.UNICAST_DROPPED_ERROR
    of_both = 2000 + Slot.IMMEDIATE_TOPIC_RCVD + Slot.IMMEDIATE_TOPICLESS_RCVD
    assert status.immediate_received == of_both
    assert status.immediate_forwarded == 2000 + Slot.IMMEDIATE_TOPIC_FORWARDED + Slot.IMMEDIATE_TOPICLESS_FORWARDED
    assert status.immediate_sent == 2000 + Slot.IMMEDIATE_TOPIC_SENT + Slot.IMMEDIATE_TOPICLESS_SENT
    assert status.immediate_dropped["no_domain"] == 1000 + Slot.IMMEDIATE_NO_DOMAIN
    assert status.gateway_control_received == 1000 + Slot.GATEWAY_CONTROL_RCVD
    assert status.gateway_control_sent == 1000 + Slot.GATEWAY_CONTROL_SENT
    dropped = Slot.GATEWAY_CONTROL_LIMITED + Slot.GATEWAY_CONTROL_DROPPED
    assert status.gateway_control_dropped == 2000 + dropped
    assert (status.link_up, status.link_reconnects) == (True, 1000 + Slot.LINK_RECONNECTS)
    assert (status.link_repairs, status.unknown_source) == (1000 + Slot.LINK_REPAIRS, 1000 + Slot.NO_TOPIC_RCVD)
    assert status.link_lost_bytes == 1000 + Slot.LINK_LOST_BYTES
    assert (status.batches, status.batch_min_bytes) == (1000 + Slot.LINK_BATCHES, 1000 + Slot.LINK_BATCH_MIN_BYTES)
    assert status.batch_mean_bytes == 1000 + Slot.LINK_BATCH_MEAN_BYTES
    assert status.batch_max_bytes == 1000 + Slot.LINK_BATCH_MAX_BYTES
    assert (status.rtt_samples, status.rtt_min_us) == (1000 + Slot.RTT_SAMPLES, 1000 + Slot.RTT_MIN_US)
    assert (status.rtt_mean_us, status.rtt_max_us) == (1000 + Slot.RTT_MEAN_US, 1000 + Slot.RTT_MAX_US)
    assert status.keepalive_answered_s == 1000 + Slot.KEEPALIVE_ANSWERED_S
    assert status.dropped["duplicate"] == 1000 + Slot.DROPPED_DUP
    assert status.dropped["source_deleted"] == 1000 + Slot.DROPPED_DELETED


def test_what_its_full_channel_refused_is_forwarded_and_dropped(pages: Pages) -> None:
    """Also that of a portal which has left: the sum stays forwarded = sent + dropped + queued."""
    status = pages.status_of(worker(P1), 1, 1)
    assert status.dropped["would_block"] == 1000 + Slot.DROPPED_BLOCKED + 3 * P2 + 3 * GONE
    assert status.forwarded == 1000 + Slot.FORWARDED + 3 * P2 + 3 * GONE
    assert status.forwarded_bytes == 1000 + Slot.FORWARDED_BYTES + 50 * P2 + 50 * GONE
    assert pages.status_of(worker(P2), 2, 1).dropped_total == 0


@pytest.mark.parametrize("state", ["paused", "drained", "waiting", "starting", "stopping"])
def test_a_portal_that_does_not_work_has_no_gauges_but_its_counters(pages: Pages, state: str) -> None:
    status = pages.status_of(worker(P1, state), 1, 1)
    assert (status.proxy_receivers, status.proxy_sources, status.local_topics, status.remote_patterns) == (0, 0, 0, 0)
    assert status.sent == 1000 + Slot.SENT
