"""`kill -9` of the processes of a loaded DRO: what comes back, what goes on, and whether the books balance.

Asserted is the behaviour; how many milliseconds it takes is reported by `python -m tests.bench.portal_recovery`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from dro.clock import NS_PER_S
from dro.metrics.slots import DROP_SLOTS, Slot
from dro.um.blocking_api import BlockingContext
from dro.um.message.client_config import Config
from dro.um.message.events import Data, Event, Loss, LossBurst
from supervisor.parent.backoff import LONG_LIFE_NS
from tests.bench.portal_recovery import MIXED_TURNS, MixedLink, unaccounted
from tests.bench.traffic import generator
from tests.bench.traffic.workload import Workload
from tests.bench.traffic.workload import running as running_load
from tests.rigs.books import Books
from tests.rigs.effort import IS_LONG
from tests.rigs.flow import BOUND, DUPLICATES, MISSING, RECEIVED, SENT, WRONG, Board
from tests.rigs.ring import WORKERS, Ring
from tests.rigs.site import ROUTE_MANAGER, Site, life_of
from tests.rigs.waiting import wait_until

TOPICS = 34  # of each flow: a hundred in all
RATE = 400
GROWING = (
    Slot.TOPIC_RCVD, Slot.TOPIC_RCVD_BYTES, Slot.FORWARDED, Slot.FORWARDED_BYTES, Slot.SENT, Slot.SENT_BYTES,
    Slot.TRAINS_OUT, Slot.NAKS_SENT, Slot.BAD_DATAGRAMS, *DROP_SLOTS.values(),
)  # fmt: skip

pytestmark = pytest.mark.slow


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, 3)
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def ring(site: Site) -> Ring:
    return Ring(site, TOPICS, RATE)


def values(books: Books, worker: int) -> dict[Slot, int]:
    return {slot: books[worker, slot] for slot in GROWING}


def assert_nothing_missing(flow: Board) -> None:
    assert flow.is_complete, flow.story()
    assert (flow[MISSING], flow[DUPLICATES], flow[WRONG]) == (0, 0, 0), flow.story()


@pytest.mark.parametrize("worker", [pytest.param(WORKERS[0], marks=pytest.mark.long), WORKERS[1]])
def test_a_killed_portal_comes_back_and_the_flow_past_it_notices_nothing(ring: Ring, worker: str) -> None:
    site, index = ring.site, int(worker[1:])
    with site.books() as books:
        before = values(books, index)
        others = {name: pid for name, pid in site.workers().items() if name != worker}
        killed = site.kill(worker)
        ring.wait_flowing_again()
        assert site.worker(worker) != killed
        assert others.items() <= site.workers().items(), "the others lived on"
        after = values(books, index)
        assert all(after[slot] >= before[slot] for slot in GROWING), (before, after)
        assert after[Slot.SENT] > before[Slot.SENT]
        ring.settle()
        assert books.problems() == []
        ring.wait(lambda: ring.past(worker).is_complete, "all of the third flow")
        lost = sum(flow[MISSING] for flow in ring.flows.values())
        received = [flow[RECEIVED] for flow in (ring.entering(worker), ring.leaving(worker))]
        assert lost <= sum(ring.flows[n][SENT] for n in ring.flows) - sum(received)
    assert_nothing_missing(ring.past(worker))
    for flow in ring.flows.values():
        assert (flow[DUPLICATES], flow[WRONG]) == (0, 0), flow.story()
        assert flow[BOUND] == TOPICS, "each topic is heard on one session, the dead one was left"


def test_one_portal_after_the_other_is_killed_and_one_twice(ring: Ring) -> None:
    site = ring.site
    for worker in (*WORKERS, *(WORKERS if IS_LONG else WORKERS[:1])):
        others_missing = ring.past(worker)[MISSING]
        site.kill(worker)
        ring.wait_flowing_again()
        assert ring.past(worker)[MISSING] <= others_missing, ring.past(worker).story()
    ring.settle()
    with site.books() as books:
        assert books.problems() == []
        assert {n: books[n, Slot.DROPPED_BLOCKED] for n in books.pages} == dict.fromkeys(books.pages, 0)
    doubled = [flow.story() for flow in ring.flows.values() if (flow[DUPLICATES], flow[WRONG]) != (0, 0)]
    assert doubled == []
    assert "two portals in one domain" not in site.log
    assert site.stop() == 0


def test_all_portals_killed_at_once_come_back(ring: Ring) -> None:
    for pid in [ring.site.worker(name) for name in WORKERS]:
        os.kill(pid, signal.SIGKILL)
    ring.wait_flowing_again()
    ring.settle()
    with ring.site.books() as books:
        assert books.problems() == []
    assert all((flow[DUPLICATES], flow[WRONG]) == (0, 0) for flow in ring.flows.values())


def test_flows_go_on_without_the_route_manager_and_its_successor_serves_a_returning_portal(ring: Ring) -> None:
    site = ring.site
    lives = {name: life_of(pid) for name, pid in site.workers().items()}
    killed = site.kill(ROUTE_MANAGER)
    ring.wait_flowing_again()
    site.wait(lambda: site.workers().get(ROUTE_MANAGER, killed) != killed, "a new route manager")
    site.wait(lambda: site.log.count("route recalculation took") >= 2, "its routes")
    ring.wait_flowing_again()
    assert {n: life_of(p) for n, p in site.workers().items() if n in WORKERS} == {n: lives[n] for n in WORKERS}
    for flow in ring.flows.values():
        assert flow[BOUND] == TOPICS
        assert flow[DUPLICATES] == 0
    site.kill("P3")
    ring.wait_flowing_again()
    ring.settle()
    ring.wait(lambda: ring.past("P3").is_complete, "all of the third flow")
    assert_nothing_missing(ring.past("P3"))
    with site.books() as books:
        assert books.problems() == []


def test_workers_end_with_a_killed_parent_and_the_next_start_sweeps_and_forwards(ring: Ring) -> None:
    site = ring.site
    assert site.daemon is not None
    killed, workers = site.pid, list(site.workers().values())
    assert len(workers) == 4
    assert site.leftovers(killed)
    site.daemon.kill()
    site.daemon.wait()
    site.daemon = None
    wait_until(lambda: all(life_of(pid) is None for pid in workers), "workers without a parent end", 15)
    site.start()
    assert site.leftovers(killed) == [], "swept at the start of this DRO, or of another one meanwhile"
    assert len(site.leftovers(site.pid)) == 2
    ring.wait_flowing_again()
    assert all(flow[DUPLICATES] == 0 for flow in ring.flows.values())
    ring.settle()
    with site.books() as books:
        assert books.problems() == []
    running = site.pid
    assert site.stop() == 0
    assert site.leftovers(running) == []


APART_S = 1.1 * LONG_LIFE_NS / NS_PER_S
"""Between two deaths of a portal: the next life after a shorter one starts clean, and may lose something."""


@pytest.mark.skipif(not generator.is_possible(), reason="the load generator needs gcc")
@pytest.mark.parametrize("transport", ["lbtrm", pytest.param("tcp", marks=pytest.mark.long)])
def test_mixed_traffic_is_in_the_books_over_kills_and_comes_once(tmp_path: Path, transport: str) -> None:
    workload = Workload("mixed", transport, topics=30, rate=3000, window=1 << 30, has_books=True)
    with generator.built() as program, running_load(program, tmp_path / "site", workload) as who:
        link = MixedLink(who)
        with link.site.books() as books:
            link.load.tell("resume")
            for workers in MIXED_TURNS:
                one = link.kill(books, workers, workload.topics)
                link.pause(APART_S)
                if workers == ("P2",):
                    assert "source_deleted" not in one.dropped, "what came meanwhile waited for its proxy sources"
            counts = link.settle(books)
            assert unaccounted(books, counts) == []
            assert books[2, Slot.SENT] > 0


RECOVERY_S = 7.0  # of the 10 s for which NAKs go on by default; a new portal takes a fraction of a second


class Inbox:
    """What an application hears of numbered messages: each number once and in order, or a loss for it."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.lost = 0
        self.heard_s = 0.0
        self.longest_s = 0.0  # between two messages

    def on_event(self, event: Event) -> None:
        match event:
            case Data(data=data):
                now_s = time.monotonic()
                self.longest_s = max(self.longest_s, now_s - (self.heard_s or now_s))
                self.heard_s = now_s
                self.numbers.append(int(data))
            case Loss():
                self.lost += 1
            case LossBurst(count=count):
                self.lost += count
            case _:
                pass


def have_passed(inboxes: list[Inbox], goal: int) -> bool:
    return all(inbox.numbers and inbox.numbers[-1] >= goal for inbox in inboxes)


SHORT_WAIT = "receiver transport_lbtrm_nak_generation_interval 500\n"


@pytest.mark.parametrize(
    ("transport", "um", "kills"),
    [
        ("lbtrm", SHORT_WAIT, ("P1", "P2", "P1")),
        ("tcp", "", ("P1", "P2", "P1")),
        ("lbtrm", "", ("P2", "P2")),
    ],
)
def test_an_application_hears_every_message_once_in_order_or_of_its_loss(
    tmp_path: Path, transport: str, um: str, kills: tuple[str, ...]
) -> None:
    """With default options a killed egress portal costs what it held, and no more time than the new one needs."""
    site = Site(tmp_path, 2, transports={1: transport, 2: transport}, um={2: um})
    inboxes = [Inbox() for _ in range(10)]
    stop = threading.Event()
    sent = 0
    try:
        site.start()
        with (
            BlockingContext(Config.load(site.config(1))) as origin,
            BlockingContext(Config.load(site.config(2))) as destination,
        ):
            sources = []
            for n, inbox in enumerate(inboxes):
                destination.receiver(f"numbers.{n}", on_event=inbox.on_event)
                sources.append(origin.source(f"numbers.{n}"))

            def publish() -> None:
                nonlocal sent
                while not stop.wait(0.01):
                    for source in sources:
                        source.send(b"%d" % sent)
                    sent += 1

            publisher = threading.Thread(target=publish, daemon=True)
            publisher.start()
            try:
                for worker in (None, *kills):
                    if worker is not None:
                        site.kill(worker)
                    goal = sent + 20
                    site.wait(partial(have_passed, inboxes, goal), "messages")
            finally:
                stop.set()
                publisher.join(60)
            site.wait(lambda: all(inbox.numbers[-1] == sent - 1 for inbox in inboxes), "the last messages")
    finally:
        stop.set()
        site.close()
    for inbox in inboxes:
        assert inbox.numbers == sorted(set(inbox.numbers))
        assert inbox.lost == sent - inbox.numbers[0] - len(inbox.numbers)
    assert max(inbox.longest_s for inbox in inboxes) < RECOVERY_S
