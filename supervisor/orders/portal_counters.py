"""`portals` on the admin socket: the counters of each portal."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Final

from dro.bus.counters import CounterPage
from dro.config.dro_xml.model import DroConfig
from dro.errors import ResourceError
from portals.datapath.counters import DROP_SLOTS, IMMEDIATE_DROP_SLOTS, UNICAST_DROP_SLOTS, PairSlot, Slot
from supervisor.admin.status import PortalsStatus, PortalStatus, WorkerStatus
from supervisor.parent.parent import Parent
from supervisor.parent.workers import State

_WORKING: Final = (State.READY.value, State.DRAINING.value)  # in any other state gauges tell of the past


def portals_status(parent: Parent[DroConfig]) -> PortalsStatus:
    """The portals that belong to the DRO now, whatever state they are in."""
    configured = {portal.name: portal for portal in parent.configuration.current.all_portals}
    with contextlib.closing(Pages(parent.run_dirs.shm, parent.workers.indices)) as pages:
        portals = tuple(
            pages.status_of(worker, getattr(portal, "domain_id", 0), portal.cost)
            for worker in parent.worker_status()
            if (portal := configured.get(worker.name)) is not None
        )
    return PortalsStatus(round(time.monotonic(), 6), portals)


class Pages:
    """The counter pages of all portals that this DRO has or had, open for one look."""

    def __init__(self, folder: Path, indices: range) -> None:
        self._pages: dict[int, CounterPage] = {}
        for index in indices:
            with contextlib.suppress(ResourceError):  # of a portal that could not be added
                self._pages[index] = CounterPage.open(folder / f"counters.{index}", readonly=True)
        # what a portal's full channel did not take is counted by its siblings
        self._refused = self._sums(PairSlot.REFUSED)
        self._refused_bytes = self._sums(PairSlot.REFUSED_BYTES)

    def close(self) -> None:
        for page in self._pages.values():
            page.close()

    def status_of(self, worker: WorkerStatus, domain_id: int, cost: int) -> PortalStatus:
        page = self._pages[worker.index]
        refused, refused_bytes = self._refused[worker.index], self._refused_bytes[worker.index]
        dropped = {reason: page[slot] for reason, slot in DROP_SLOTS.items()}
        dropped["would_block"] += refused

        def gauge(*slots: Slot) -> int:
            return sum(page[slot] for slot in slots) if worker.state in _WORKING else 0

        return PortalStatus(
            name=worker.name,
            kind=worker.role,
            state=worker.state,
            domain_id=domain_id,
            cost=cost,
            proxy_receivers=gauge(Slot.PROXY_RECEIVERS),
            proxy_sources=gauge(Slot.PROXY_SOURCES),
            local_topics=gauge(Slot.LOCAL_TOPICS),
            local_patterns=gauge(Slot.LOCAL_PCRE, Slot.LOCAL_REGEX),
            remote_topics=gauge(Slot.REMOTE_TOPICS),
            remote_patterns=gauge(Slot.REMOTE_PCRE, Slot.REMOTE_REGEX),
            received=page[Slot.TOPIC_RCVD],
            received_bytes=page[Slot.TOPIC_RCVD_BYTES],
            control_received=page[Slot.CONTROL_RCVD],
            forwarded=page[Slot.FORWARDED] + refused,
            forwarded_bytes=page[Slot.FORWARDED_BYTES] + refused_bytes,
            sent=page[Slot.SENT],
            sent_bytes=page[Slot.SENT_BYTES],
            dropped=dropped,
            queued=page[Slot.QUEUED],
            queued_bytes=page[Slot.QUEUED_BYTES],
            queued_bytes_max=page[Slot.QUEUED_BYTES_MAX],
            queue_limit_bytes=page[Slot.QUEUE_LIMIT],
            unrecovered=page[Slot.UNRECOVERABLE],
            naks_sent=page[Slot.NAKS_SENT],
            bad_datagrams=page[Slot.BAD_DATAGRAMS],
            retransmitted=page[Slot.RETRANSMITTED],
            socket_drops=page[Slot.SOCKET_DROPS],
            unsent=page[Slot.UNSENT],
            discarded=page[Slot.DISCARDED],
            unicast_received=page[Slot.UNICAST_DATA_RCVD] + page[Slot.UNICAST_CONTROL_RCVD],
            unicast_forwarded=page[Slot.UNICAST_FORWARDED],
            unicast_sent=page[Slot.UNICAST_SENT],
            unicast_dropped={why: sum(page[slot] for slot in slots) for why, slots in UNICAST_DROP_SLOTS.items()},
            immediate_received=page[Slot.IMMEDIATE_TOPIC_RCVD] + page[Slot.IMMEDIATE_TOPICLESS_RCVD],
            immediate_forwarded=page[Slot.IMMEDIATE_TOPIC_FORWARDED] + page[Slot.IMMEDIATE_TOPICLESS_FORWARDED],
            immediate_sent=page[Slot.IMMEDIATE_TOPIC_SENT] + page[Slot.IMMEDIATE_TOPICLESS_SENT],
            immediate_dropped={why: sum(page[slot] for slot in slots) for why, slots in IMMEDIATE_DROP_SLOTS.items()},
            gateway_control_received=page[Slot.GATEWAY_CONTROL_RCVD],
            gateway_control_sent=page[Slot.GATEWAY_CONTROL_SENT],
            gateway_control_dropped=page[Slot.GATEWAY_CONTROL_LIMITED] + page[Slot.GATEWAY_CONTROL_DROPPED],
            unknown_source=page[Slot.NO_TOPIC_RCVD],
            link_up=bool(gauge(Slot.LINK_UP)),
            link_reconnects=page[Slot.LINK_RECONNECTS],
            link_repairs=page[Slot.LINK_REPAIRS],
            link_lost_bytes=page[Slot.LINK_LOST_BYTES],
            batches=page[Slot.LINK_BATCHES],
            batch_min_bytes=page[Slot.LINK_BATCH_MIN_BYTES],
            batch_mean_bytes=page[Slot.LINK_BATCH_MEAN_BYTES],
            batch_max_bytes=page[Slot.LINK_BATCH_MAX_BYTES],
            rtt_samples=page[Slot.RTT_SAMPLES],
            rtt_min_us=page[Slot.RTT_MIN_US],
            rtt_mean_us=page[Slot.RTT_MEAN_US],
            rtt_max_us=page[Slot.RTT_MAX_US],
            keepalive_answered_s=page[Slot.KEEPALIVE_ANSWERED_S],
        )

    def _sums(self, slot: PairSlot) -> list[int]:
        """By egress, over all ingress portals. In whole columns: with 255 portals there are 65,000 pairs."""
        columns = (page.slots[page.general_slots + slot :: page.pair_slots].tolist() for page in self._pages.values())
        return [sum(column) for column in zip(*columns, strict=True)]
