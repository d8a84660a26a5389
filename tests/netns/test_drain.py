"""A portal is drained, removed and added on real networks that lose datagrams, under load.

What a drained flow had accepted arrives whole, then its end is told; flows of other portals notice nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import pytest

from dro.metrics.slots import PairSlot, Slot
from tests.rigs.effort import IS_LONG
from tests.rigs.netns.app import App, Board, Digest, Heard, Payloads, Report, assert_same, wait_delivered
from tests.rigs.netns.harness import Host, Net
from tests.rigs.netns.judged import Watch
from tests.rigs.netns.loss import NOT_THE_FIRST
from tests.rigs.netns.topology import Dro, app_hosts, running_dro, trd_name
from tests.rigs.orders import order
from tests.rigs.waiting import wait_until

pytestmark = [pytest.mark.netns, pytest.mark.tshark, pytest.mark.slow]

Judged = Callable[..., AbstractContextManager[Watch]]
SIZES = (1, 3000)
WINDOW = 64
ENDLESS = 10_000_000
PER_SECOND = 1000
QUICK = """\
receiver transport_lbtrm_nak_generation_interval 3000
receiver transport_lbtrm_nak_suppress_interval 100
source transport_lbtrm_ignore_interval 50
"""
"""A drain waits for as long as receivers may ask for repairs, ten seconds unless set; here they ask more often."""


def digest_of(*parts: tuple[int, int]) -> str:
    """Digest so many messages of the sequence with each seed, one sequence after the other."""
    digest = Digest()
    for seed, count in parts:
        payloads = Payloads(seed, *SIZES)
        for _ in range(count):
            digest.add(payloads.next())
    return digest.text()


def heard_of(report: Report, topic: bytes) -> Heard:
    (heard,) = report.of_topic(topic)
    return heard


def has_ended(app: App, topic: bytes) -> bool:
    return heard_of(app.report(), topic).ended > 0


def sent_to(dro: Dro, ingress: int, egress: int) -> int:
    """Fragments of one portal that another has sent."""
    page = dro.books.pages[egress]
    return page[page.pair(ingress) + PairSlot.SENT]


def lossy(host: Host, fraction: float) -> None:
    host.lose(fraction, dports=[14400], where=NOT_THE_FIRST)


VARIANTS = [("lbtrm", 0.03, "drain"), *([("tcp", 0.0, "remove")] if IS_LONG else [])]


@pytest.mark.parametrize(("transport", "loss", "how"), VARIANTS)
def test_drained_flows_end_whole_and_the_others_go_on(
    net: Net, judged: Judged, transport: str, loss: float, how: str
) -> None:
    """Source in TRD 1 for receivers in 2 and 3, source in TRD 2 for 3; the portal in TRD 2 is drained."""
    board = Board()
    kinds = dict.fromkeys((1, 2, 3), transport)
    with judged(*map(trd_name, kinds)) as watch, running_dro(net, kinds, um=dict.fromkeys(kinds, QUICK)) as dro:
        hosts = app_hosts(net, *kinds)
        apps = {trd: App(host, dro.configs[trd], board, f"app{trd}") for trd, host in hosts.items()}
        apps[2].receive(b"one", cell=12)
        apps[3].receive(b"one", cell=13)
        apps[3].receive(b"two", cell=23)
        apps[1].open("one", b"one")
        apps[2].open("two", b"two")
        apps[2].wait_heard(b"one")
        apps[3].wait_heard(b"one")
        apps[3].wait_heard(b"two")
        for host in (dro.host, *hosts.values()):
            if loss:
                lossy(host, loss)
        # cells of receivers that are not drained set the pace of the first source; the second has nobody else
        apps[1].send("one", 100, seed=1, sizes=SIZES, window=WINDOW, cells=(12, 13))
        apps[2].send("two", 100, seed=2, sizes=SIZES, window=WINDOW, cells=(23,))
        wait_delivered(board, {12: 100, 13: 100, 23: 100})
        dro.wait_balanced()
        assert not any(count for k in kinds for count in dro.books.dropped(k).values())
        before = {
            pair: (sent_to(dro, *pair), board.messages[cell], board.probes[cell])
            for pair, cell in {(1, 2): 12, (2, 3): 23}.items()
        }
        apps[1].send("one", 2000, seed=11, sizes=SIZES, window=WINDOW, cells=(13,), per_second=PER_SECOND)
        apps[2].send("two", ENDLESS, seed=22, sizes=SIZES, window=4096, cells=(23,), per_second=PER_SECOND)
        wait_delivered(board, {12: 400, 13: 400, 23: 400})
        answer = order(dro.process.pid, "portal", how, "G1-TRD2", "--limit", "100")
        assert answer["note"] == "", answer
        assert answer["state"] == {"drain": "drained", "remove": "removed"}[how]
        for app, topic in ((apps[2], b"one"), (apps[3], b"two")):
            wait_until(partial(has_ended, app, topic), f"the end of {topic!r}", 60)
        for pair, cell, app, topic, seeds in (
            ((1, 2), 12, apps[2], b"one", (1, 11)),
            ((2, 3), 23, apps[3], b"two", (2, 22)),
        ):
            heard = heard_of(app.report(), topic)
            sent, messages, probes = before[pair]
            assert (heard.bound, heard.ended, heard.duplicates, heard.held, heard.missing) == (0, 1, 0, 0, 0)
            assert sent_to(dro, *pair) - sent == board.messages[cell] - messages + board.probes[cell] - probes, (
                "the last of what the portal took has arrived"
            )
            first, second = seeds
            assert heard.digest == digest_of((first, 100), (second, heard.messages - 100)), "a prefix of what was sent"
        wait_delivered(board, {13: 2100})
        assert_same(heard_of(apps[3].report(), b"one"), apps[1].report().sent["one"])
        assert not any(count for k in kinds for count in dro.books.dropped(k).values())
        assert dro.books[2, Slot.PROXY_SOURCES] == 0
        for app in apps.values():
            app.end()
    assert watch.total("lbmr.final_tir") >= 2
