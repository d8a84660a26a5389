"""What moves the slots of the data path's times and of what is common to both kinds of portal, see `test_counters`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Final

from dro.bus.counters import CounterPage
from dro.bus.messages import RouteTable
from dro.clock import ms
from dro.metrics.slots import Slot
from dro.metrics.table import PORTAL, bounds_of
from dro.proto.interest.events import InterestGained, InterestLost
from portals.decisions.core import PortalCore
from portals.decisions.messages import PATTERN_NONE, PATTERN_PCRE
from portals.shell.portal import PortalShell
from portals.shell.send_books import SendBooks
from tests.fakes.um_contexts import Stepper
from tests.fakes.worker import FakeWorker
from tests.portals.datapath.test_data_path import BlockingSender, Link, P, data

Pages = tuple[CounterPage, CounterPage]
BOUNDS: Final = bounds_of(PORTAL, "FORWARD_LATENCY")
TRAFFIC: Final = {
    "unicast": ("UNICAST_FORWARDED", "UNICAST_SENT", "UNICAST_QUEUED", "UNICAST_DROPPED_RESTART"),
    "immediate_topic": (
        "IMMEDIATE_TOPIC_FORWARDED", "IMMEDIATE_TOPIC_SENT", "IMMEDIATE_QUEUED_TOPIC",
        "IMMEDIATE_TOPIC_DROPPED_RESTART",
    ),
    "immediate_topicless": (
        "IMMEDIATE_TOPICLESS_FORWARDED", "IMMEDIATE_TOPICLESS_SENT", "IMMEDIATE_QUEUED_TOPICLESS",
        "IMMEDIATE_TOPICLESS_DROPPED_RESTART",
    ),
}  # fmt: skip


def handed_over(link: Link) -> Pages:
    """A fragment for each bucket, and one above all of them."""
    link.add_source(1, BlockingSender())
    for sqn, microseconds in enumerate((*BOUNDS, BOUNDS[-1] + 1)):
        link.handover_ns = microseconds * 1000
        link.receive(data(1, sqn, b"x"))
    return link.page_p, link.page_q


def blocks_for_a_while(link: Link) -> Pages:
    """From 10 to 35 ms, then again from 50 ms on, as is shown at 51 ms."""
    out = BlockingSender(room=0)
    link.add_source(1, out)
    link.now_ns = ms(10)
    link.receive(data(1, 0, b"x") + data(1, 1, b"x"))
    link.carry()
    link.now_ns, out.room = ms(35), 100
    link.egress.drain(out)
    assert link.page_q[Slot.SEND_BLOCKED] == 0
    link.now_ns, out.room = ms(50), 0
    link.receive(data(1, 2, b"x"))
    link.carry()
    link.now_ns = ms(51)
    link.egress.queue.count_blocked()
    return link.page_p, link.page_q


def jumps(link: Link) -> Pages:
    """The third is further ahead than the window is long."""
    link.add_source(1, BlockingSender())
    for sqn in (0, 1, 100_000):
        link.receive(data(1, sqn, b"x"))
        link.carry()
    return link.page_p, link.page_q


def waits_to_leave(link: Link) -> Pages:
    """Three messages of 10 bytes of each traffic shall leave, one does, and the process ends with the others."""
    page = link.page_p
    for traffic, (_, sent, waiting, _) in TRAFFIC.items():
        most = Slot.UNICAST_QUEUED_BYTES_MAX if traffic == "unicast" else None
        books = SendBooks(page, traffic, most)
        for _ in range(3):
            books.begin(10)
            books.note_most()
        books.end(Slot[sent], 10)
        assert (page[Slot[waiting]], page[Slot[waiting] + 1]) == (2, 20)
    for slot in (Slot.UNICAST_FORWARDED, Slot.IMMEDIATE_TOPIC_FORWARDED):  # killed between two entries
        page.add_sized(slot, 1, 10)
    for traffic in TRAFFIC:
        books = SendBooks(page, traffic)
    for traffic in TRAFFIC:
        SendBooks(page, traffic).begin(7)
    return page, link.page_q


def interest_and_routes(link: Link) -> Pages:
    """Three topics and two patterns come, two topics and one pattern go; then the first routes."""
    stepper = Stepper()
    with TemporaryDirectory() as folder:
        worker = FakeWorker(stepper.loop, Path(folder), P, "P")
        core = PortalCore(P, 1, P, source_deletion_delay_ns=0, matcher=lambda pattern, kind: None)
        shell = PortalShell(worker.ctx, core, 1000)
        gained = [InterestGained((name, PATTERN_NONE), 1) for name in (b"A", b"B", b"C")]
        gained += [InterestGained((name, PATTERN_PCRE), 1) for name in (b"D.*", b"E.*")]
        lost = [InterestLost((b"A", PATTERN_NONE), 1), InterestLost((b"B", PATTERN_NONE), 1)]
        lost += [InterestLost((b"D.*", PATTERN_PCRE), 1)]
        fake: Any = SimpleNamespace(
            take_interest=lambda: [*gained, *lost], on_routes=lambda *_: None, on_origins=lambda _: None
        )
        shell._link = shell.engine._link = fake
        shell.engine._room = 100
        shell.engine._pass_interest(0)
        for slot in (Slot.INTEREST_RECALCULATION_US, Slot.PROXY_RECALCULATION_US):
            worker.counters.set(slot, 1 << 40)
        shell._on_routes(RouteTable(1, (), ()))
        for slot in Slot:
            if slot.name.startswith("INTEREST_") or slot is Slot.PROXY_RECALCULATION_US:
                link.page_p.set(slot, worker.counters[slot])
        for slot in (Slot.INTEREST_RECALCULATION_US, Slot.PROXY_RECALCULATION_US):
            link.page_p.set(slot, worker.counters[slot] < 10_000_000)
    stepper.loop.close()
    return link.page_p, link.page_q


def _waiting() -> dict[Slot, tuple[Any, int, int]]:
    found = {}
    for forwarded, _, waiting, restart in TRAFFIC.values():
        torn = forwarded in ("UNICAST_FORWARDED", "IMMEDIATE_TOPIC_FORWARDED")
        for step, each, last in ((0, 1, 1), (1, 10, 7)):
            found[Slot(Slot[waiting] + step)] = waits_to_leave, 0, last
            found[Slot(Slot[restart] + step)] = waits_to_leave, 0, (2 + torn) * each
    return found


SHELL_CASES: Final[dict[Slot, tuple[Any, int, int]]] = {
    **{Slot(Slot.FORWARD_LATENCY + at): (handed_over, 0, 1) for at in range(len(BOUNDS) + 1)},
    Slot.FORWARD_LATENCY_SUM: (handed_over, 0, sum(BOUNDS) + BOUNDS[-1] + 1),
    Slot.SEND_BLOCKED: (blocks_for_a_while, 1, 1),
    Slot.SEND_BLOCKED_EPISODES: (blocks_for_a_while, 1, 2),
    Slot.SEND_BLOCKED_US: (blocks_for_a_while, 1, 25_000 + 1_000),
    Slot.WINDOW_OVERFLOWS: (jumps, 1, 1),
    Slot.UNICAST_QUEUED_BYTES_MAX: (waits_to_leave, 0, 30),
    Slot.INTEREST_TOPICS_ADDED: (interest_and_routes, 0, 3),
    Slot.INTEREST_TOPICS_REMOVED: (interest_and_routes, 0, 2),
    Slot.INTEREST_PATTERNS_ADDED: (interest_and_routes, 0, 2),
    Slot.INTEREST_PATTERNS_REMOVED: (interest_and_routes, 0, 1),
    Slot.INTEREST_RECALCULATION_US: (interest_and_routes, 0, 1),
    Slot.PROXY_RECALCULATION_US: (interest_and_routes, 0, 1),
    **_waiting(),
}
ELSEWHERE: Final = {
    *(Slot(Slot.DROPPED_QUEUE_FAILURE + step) for step in (0, 1)),  # of the pairs of siblings, see `samples/test_pages`
    *(Slot(Slot.UNICAST_DROPPED_QUEUE_FAILURE + step) for step in (0, 1)),
    *(Slot(Slot.GATEWAY_CONTROL_QUEUE_FAILURE + step) for step in (0, 1)),  # 0: a list of a process has always room
    Slot.UNICAST_QUEUE_LIMIT,  # of the option, see `endpoint/test_unicast`
}
"""Slots that nothing in the data path moves."""
