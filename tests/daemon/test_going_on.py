"""Ends of portals, again and again under load: receivers miss and double nothing, and get all in order."""

from __future__ import annotations

import random
import time
from functools import partial
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from dro.metrics.slots import Slot
from tests.rigs.books import Books
from tests.rigs.flow import DUPLICATES, MISSING, PAUSE, WRONG, Board
from tests.rigs.going_on import PAUSE_S, kill_portals, restart_portals
from tests.rigs.orders import order
from tests.rigs.site import Site, drained, running

pytestmark = pytest.mark.slow

KILLS = 8  # for each transport of the sources
RESTARTS = 6
KILLS_AT_ONCE = 4
ALL = ("lbtrm", "lbtru", "tcp", "lbtipc")


def of_four(*short: str) -> list[ParameterSet]:
    """Name all transports of sources, where a run that is not long tries these."""
    return [pytest.param(one, marks=() if one in short else pytest.mark.long) for one in ALL]


@pytest.mark.parametrize("transport", ALL)
def test_receivers_miss_and_double_nothing_while_portals_are_killed(tmp_path: Path, transport: str) -> None:
    outcome = kill_portals(tmp_path, transport, KILLS, random.Random(transport))
    assert outcome.problems == []
    assert len(outcome.pauses_ms) == KILLS


@pytest.mark.parametrize("transport", of_four("lbtru", "lbtipc"))
def test_receivers_miss_and_double_nothing_while_portals_are_restarted(tmp_path: Path, transport: str) -> None:
    outcome = restart_portals(tmp_path, transport, RESTARTS)
    assert outcome.problems == []
    assert len(outcome.pauses_ms) == RESTARTS


@pytest.mark.parametrize("transport", of_four("lbtru", "tcp"))
def test_nor_while_several_are_killed_at_once(tmp_path: Path, transport: str) -> None:
    """Two or three of the portals and the route manager: what one needs of another is not lost with that."""
    outcome = kill_portals(tmp_path, transport, KILLS_AT_ONCE, random.Random(transport), at_once=(2, 3))
    assert outcome.problems == []


def _waits(books: Books, least: int) -> bool:
    return books[2, Slot.QUEUED_BYTES] > least


def _is_back(site: Site, before: int) -> bool:
    return site.workers().get("P2", before) != before


def test_what_waits_in_a_queue_is_sent_when_its_portal_is_killed(tmp_path: Path) -> None:
    """The TRD of P2 takes 1 Mbit/s; the queue has some seconds of it. It is made longer while the portal runs."""
    slow = "context transport_lbtrm_data_rate_limit 1000000\ncontext transport_lbtrm_rate_interval 10\n"
    site = Site(tmp_path, 2, um={2: slow}, portal_xml={2: "<max-queue>8000000</max-queue>"})
    with running(site):
        flow = Board.create(tmp_path, "flow", 4)
        site.python("-m", "tests.rigs.flow", str(site.config(1)), "--send", str(flow.path), "--rate", "300",
                    "--payload", "1000", name="sender")  # fmt: skip
        site.python("-m", "tests.rigs.flow", str(site.config(2)), "--receive", str(flow.path), name="receiver")
        site.wait(lambda: flow.is_flowing, "flow")
        with site.books() as books:
            file = site.folder / "dro.xml"
            file.write_text(file.read_text().replace("8000000", "9000000"))
            order(site.pid, "reload")
            for waiting in (100_000, 300_000):
                site.wait(partial(_waits, books, waiting), "a queue")
                before = site.kill("P2")
                site.wait(partial(_is_back, site, before), "the next process")
                site.wait(partial(_waits, books, 0), "the queue again")
                time.sleep(PAUSE_S)
            assert books[2, Slot.QUEUE_LIMIT] == 9_000_000
            flow[PAUSE] = 1
            site.wait(lambda: drained(books), "all of it sent")
            assert books.problems() == []
            assert not any(books.dropped(2).values())
        site.wait(lambda: flow.is_complete, "the last messages")
        assert (flow[MISSING], flow[DUPLICATES], flow[WRONG]) == (0, 0, 0)
