"""Portals of a loaded DRO are drained, removed and added by command: what was accepted arrives, others notice nothing.

Three flows go round three portals (`tests.rigs.ring`): what is done to P2 concerns the flow into it and the flow out
of it, while the third passes it by.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from dro.metrics.slots import PairSlot, Slot
from dro.um.blocking_api import BlockingContext
from dro.um.message.client_config import Config
from dro.um.message.events import EOS, Data, Event, Loss, LossBurst
from tests.rigs.books import Books, books_of
from tests.rigs.effort import IS_LONG
from tests.rigs.flow import BOUND, DUPLICATES, MISSING, PAUSE, RECEIVED, WRONG, Board
from tests.rigs.orders import begin, order, tnwgdctl
from tests.rigs.ring import WORKERS, Ring
from tests.rigs.site import Site, life_of, running
from tests.rigs.waiting import wait_until

TOPICS = 34
RATE = 400
SHORT = """\
receiver transport_lbtrm_nak_generation_interval 2000
receiver transport_lbtrm_nak_suppress_interval 100
source transport_lbtrm_ignore_interval 50
"""
"""A drain waits for as long as receivers may ask for repairs, ten seconds unless set; here they ask more often."""
LIMIT = ("--limit", "100")  # a loaded machine takes its time
FAILED = 1
PATIENCE_S = 90
WINDOW = 20  # messages on their way

pytestmark = pytest.mark.slow


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with running(Site(tmp_path, 3, um=dict.fromkeys((1, 2, 3), SHORT))) as made:
        yield made


@pytest.fixture
def ring(site: Site) -> Ring:
    return Ring(site, TOPICS, RATE)


@dataclass
class Account:
    """Of one flow: what the egress portal has sent for it, and what its receiver has got."""

    books: Books
    flow: Board
    ingress: int
    egress: int

    def __post_init__(self) -> None:
        self.before = self._sent(), self.flow[RECEIVED]

    def _sent(self) -> int:
        page = self.books.pages[self.egress]
        return page[page.pair(self.ingress) + PairSlot.SENT]

    @property
    def differences(self) -> tuple[int, int]:
        """Messages since this account was opened: sent by the DRO, received."""
        sent, received = self.before
        return self._sent() - sent, self.flow[RECEIVED] - received


@contextmanager
def accounts(ring: Ring, worker: str) -> Iterator[tuple[Account, Account]]:
    """Of the flows into and out of a portal, from a moment on at which nothing is on its way."""
    number = int(worker[1:])
    before, after = ring.before(number), number % 3 + 1
    ring.settle()
    with ring.site.books() as books:
        for flow in ring.flows.values():
            ring.wait(lambda f=flow: f.is_caught_up(f), "all that was sent")
        opened = (
            Account(books, ring.leaving(worker), before, number),
            Account(books, ring.entering(worker), number, after),
        )
        for flow in ring.flows.values():
            flow[PAUSE] = 0
        ring.wait_flowing_again()
        yield opened


def assert_past_is_whole(ring: Ring, worker: str) -> None:
    past = ring.past(worker)
    past[PAUSE] = 1
    ring.wait(lambda: past.is_complete, "all of the third flow")
    assert (past[MISSING], past[DUPLICATES], past[WRONG]) == (0, 0, 0), past.story()
    past[PAUSE] = 0


def processes(site: Site, *but: str) -> dict[str, int]:
    return {name: pid for name, pid in site.workers().items() if name not in but}


@pytest.mark.parametrize("how", ["drain", "remove"] if IS_LONG else ["remove"])
def test_a_portal_goes_without_loss_comes_back_restarts_and_pauses(ring: Ring, how: str) -> None:
    site = ring.site
    with accounts(ring, "P2") as concerned:
        others = processes(site, "P2")
        answer = order(site.pid, "portal", how, "P2", *LIMIT)
        assert answer == {"portal": "P2", "state": {"drain": "drained", "remove": "removed"}[how], "note": ""}
        assert "P2" not in site.workers()
        for account in concerned:
            ring.wait(lambda a=account: a.flow[BOUND] == 0, "the end of its sources")
            sent, received = account.differences
            assert sent == received > 0, account.flow.story()
            assert (account.flow[MISSING], account.flow[DUPLICATES], account.flow[WRONG]) == (0, 0, 0)
        ring.settle()  # the third flow went on until now
        assert concerned[0].books.problems() == []
        for flow in ring.flows.values():
            flow[PAUSE] = 0
        assert not any(count for n in (1, 2, 3) for count in concerned[0].books.dropped(n).values())
    assert_past_is_whole(ring, "P2")
    for orders in (({"drain": "resume", "remove": "add"}[how],), ("restart",), ("pause", "resume")):
        for ordered in orders:
            order(site.pid, "portal", ordered, "P2")
        ring.wait_flowing_again()
        assert_past_is_whole(ring, "P2")
        assert processes(site, "P2") == others
    assert "two portals in one domain" not in site.log
    ring.settle()
    with books_of(site.pid, 3 if how == "drain" else 4) as books:
        assert books.problems() == []
        assert books[{"drain": 2, "remove": 4}[how], Slot.SENT] > 0
    assert all((flow[DUPLICATES], flow[WRONG]) == (0, 0) for flow in ring.flows.values())
    assert site.stop() == 0


@contextmanager
def draining(site: Site, name: str, frozen: str) -> Iterator[subprocess.Popen[str]]:
    """The order to drain a portal, which goes on for as long as its sibling `frozen` stands still."""
    pid = site.worker(frozen)
    begun = site.log.count("drain begins")
    os.kill(pid, signal.SIGSTOP)
    try:
        ordered = begin(site.pid, "portal", "drain", name, *LIMIT)
        site.wait(lambda: site.log.count("drain begins") > begun, "the beginning of the drain", PATIENCE_S)
        yield ordered
    finally:
        if life_of(pid) is not None:
            os.kill(pid, signal.SIGCONT)


def test_a_drain_goes_on_when_a_sibling_dies_and_when_it_dies_itself_it_is_over(ring: Ring) -> None:
    site = ring.site
    with draining(site, "P2", frozen="P1") as ordered:
        busy = tnwgdctl(site.pid, "portal", "drain", "P2")
        assert (busy.returncode, "is under way" in busy.stderr) == (FAILED, True), busy.stderr
        site.kill("P1")
        said, _ = ordered.communicate(timeout=180)
        assert ordered.returncode == 0, said
    order(site.pid, "portal", "resume", "P2")
    ring.wait_flowing_again()
    with draining(site, "P3", frozen="P2") as ordered:
        site.kill("P3")
        said, _ = ordered.communicate(timeout=180)
        assert ordered.returncode == FAILED
        assert "it ended while it drained" in said
    site.wait(lambda: ring.entering("P3")[BOUND] == 0, "the end of what it fed its siblings", PATIENCE_S)
    order(site.pid, "portal", "resume", "P3")
    ring.wait_flowing_again()
    ring.settle()
    with site.books() as books:
        assert books.problems() == []
    assert all((flow[DUPLICATES], flow[WRONG]) == (0, 0) for flow in ring.flows.values())


def test_two_drains_at_once_and_the_end_of_the_dro_in_the_middle_of_a_third(ring: Ring) -> None:
    site = ring.site
    drains = [begin(site.pid, "portal", "drain", name, *LIMIT) for name in WORKERS[:2]]
    for drain in drains:
        said, _ = drain.communicate(timeout=180)
        assert drain.returncode == 0, said
    for flow in ring.flows.values():
        ring.wait(lambda f=flow: f[BOUND] == 0, "the end of its sources")
        assert (flow[MISSING], flow[DUPLICATES], flow[WRONG]) == (0, 0, 0), flow.story()
    with site.books() as books:
        assert books.problems() == []
        assert not any(count for n in books.pages for count in books.dropped(n).values())
    for name in WORKERS[:2]:
        order(site.pid, "portal", "resume", name)
    ring.wait_flowing_again()
    with draining(site, "P3", frozen="P2") as ordered:
        assert site.daemon is not None
        site.daemon.terminate()
        site.wait(lambda: "stopping" in site.log, "the beginning of the end", PATIENCE_S)
    assert site.daemon.wait(30) == 0
    site.daemon = None
    ordered.communicate(timeout=180)
    assert ordered.returncode != 0


def test_what_is_queued_is_sent_before_a_portal_goes(tmp_path: Path) -> None:
    """The TRD of P2 takes 1 Mbit/s; the queue has some seconds of it."""
    slow = SHORT + "context transport_lbtrm_data_rate_limit 1000000\ncontext transport_lbtrm_rate_interval 10\n"
    site = Site(tmp_path, 2, um={1: SHORT, 2: slow}, portal_xml={2: "<max-queue>8000000</max-queue>"})
    with running(site):
        flow = Board.create(tmp_path, "flow", 4)
        site.python("-m", "tests.rigs.flow", str(site.config(1)), "--send", str(flow.path), "--rate", "300",
                    "--payload", "1000", name="sender")  # fmt: skip
        site.python("-m", "tests.rigs.flow", str(site.config(2)), "--receive", str(flow.path), name="receiver")
        site.wait(lambda: flow.is_flowing, "flow", PATIENCE_S)
        with site.books() as books:
            site.wait(lambda: books[2, Slot.QUEUED_BYTES] > 100_000, "a queue", PATIENCE_S)
            flow[PAUSE] = 1
            site.wait(lambda: books.pairs()[0].on_the_way == 0, "nothing between the portals", PATIENCE_S)
            assert books[2, Slot.QUEUED] > 0
            answer = order(site.pid, "portal", "drain", "P2", *LIMIT)
            assert answer["note"] == ""
            assert books.problems() == []
            assert books[2, Slot.QUEUED] == 0
            assert not any(books.dropped(2).values())
        site.wait(lambda: flow[BOUND] == 0, "the end of its sources", PATIENCE_S)
        assert flow.is_complete, flow.story()
        assert (flow[DUPLICATES], flow[WRONG]) == (0, 0)


def test_at_its_limit_a_drain_tells_what_it_gave_up(tmp_path: Path) -> None:
    """The receiver behind P2 stands still, so TCP takes nothing more."""
    site = Site(tmp_path, 2, transports={1: "tcp", 2: "tcp"}, portal_xml={2: "<max-queue>8000000</max-queue>"})
    with running(site):
        flow = Board.create(tmp_path, "flow", 4)
        site.python("-m", "tests.rigs.flow", str(site.config(1)), "--send", str(flow.path), "--rate", "10000",
                    "--payload", "4000", name="sender")  # fmt: skip
        receiver = site.python(
            "-m", "tests.rigs.flow", str(site.config(2)), "--receive", str(flow.path), name="receiver"
        )
        site.wait(lambda: flow.is_flowing, "flow", PATIENCE_S)
        receiver.send_signal(signal.SIGSTOP)
        with site.books() as books:
            site.wait(lambda: books[2, Slot.QUEUED] > 0, "a queue", PATIENCE_S)
            done = tnwgdctl(site.pid, "portal", "drain", "P2", "--limit", "1")
            assert done.returncode == FAILED
            assert "queued fragments of P1 to be sent" in done.stderr
            assert "is drained" in done.stdout
            flow[PAUSE] = 1
            site.wait(lambda: not books.problems(), "books, with what was thrown away", PATIENCE_S)
            assert books[2, Slot.DROPPED_DELETED] > 0
        receiver.send_signal(signal.SIGCONT)
        site.wait(lambda: flow[BOUND] == 0, "the end of its sources", PATIENCE_S)
        order(site.pid, "portal", "resume", "P2")
        flow[PAUSE] = 0
        flow.mark()
        site.wait(lambda: min(flow.after_mark()) >= 0, "all topics flow again", PATIENCE_S)


class Inbox:
    """What an application hears of one topic, as words."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.others: list[str] = []

    @property
    def next(self) -> float:
        """Number of the message that should come next; what comes before the first one is not waited for."""
        return int(self.bodies[-1].split()[0]) + 1 if self.bodies else math.inf

    def on_event(self, event: Event) -> None:
        match event:
            case Data(data=data):
                self.bodies.append(data)
            case EOS():
                self.others.append("end")
            case Loss() | LossBurst():
                self.others.append("loss")
            case _:
                pass


def body(number: int) -> bytes:
    return b"%d " % number * 12_000  # some sixty kilobytes: many fragments


@pytest.mark.parametrize("transport", ["lbtrm", "tcp"] if IS_LONG else ["lbtrm"])
def test_no_message_is_cut_in_two(tmp_path: Path, transport: str) -> None:
    """Large messages both ways, ordered delivery: whole messages, one after the other, then the end, and no loss."""
    site = Site(tmp_path, 2, transports={1: transport, 2: transport}, um=dict.fromkeys((1, 2), SHORT))
    with (
        running(site),
        BlockingContext(Config.load(site.config(1))) as first,
        BlockingContext(Config.load(site.config(2))) as second,
    ):
        inboxes = {"up": Inbox(), "down": Inbox()}
        second.receiver("up", on_event=inboxes["up"].on_event)
        first.receiver("down", on_event=inboxes["down"].on_event)
        sources = {"up": first.source("up"), "down": second.source("down")}
        sent = dict.fromkeys(sources, 0)
        drain: subprocess.Popen[str] | None = None
        try:
            while drain is None or drain.poll() is None:
                for name, source in sources.items():
                    if sent[name] - inboxes[name].next < WINDOW:
                        source.send(body(sent[name]))
                        sent[name] += 1
                time.sleep(0.005)  # the pace of the senders
                if drain is None and all(len(inbox.bodies) > 5 for inbox in inboxes.values()):
                    drain = begin(site.pid, "portal", "drain", "P2", *LIMIT)
        finally:
            if drain is not None:
                said, _ = drain.communicate(timeout=180)
        assert drain.returncode == 0, said
        wait_until(lambda: all("end" in inbox.others for inbox in inboxes.values()), "the ends", 90, lambda: site.logs)
        for name, inbox in inboxes.items():
            assert inbox.others == ["end"], name
            at = int(inbox.bodies[0].split()[0])
            assert inbox.bodies == [body(at + n) for n in range(len(inbox.bodies))]
            assert len(inbox.bodies) < sent[name]
