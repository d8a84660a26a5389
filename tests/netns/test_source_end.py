"""How the end of a source crosses a DRO: source-deletion-delay (1 s), then final advertisements of the proxy source."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import pytest

from dro.metrics.slots import PairSlot, Slot
from tests.rigs.netns.app import App, Board, assert_same, wait_delivered
from tests.rigs.netns.harness import Net
from tests.rigs.netns.judged import Watch
from tests.rigs.netns.topology import Dro, app_hosts, running_dro, trd_name
from tests.rigs.waiting import wait_until

pytestmark = [pytest.mark.netns, pytest.mark.tshark]

Judged = Callable[..., AbstractContextManager[Watch]]
SILENT = "receiver transport_lbtrm_activity_timeout 2000\n"
LATE_S = 4.0  # what a loaded machine may add
ENDS_S = 5.0


@pytest.mark.parametrize(
    ("first", "second", "how", "expected_s"),
    [
        ("tcp", "lbtrm", "closed", 1.0),  # the stream ends: at once, and the delay
        pytest.param("tcp", "tcp", "killed", 1.0, marks=pytest.mark.long),
        ("lbtrm", "tcp", "final", 1.0),
        pytest.param("lbtrm", "lbtrm", "final", 1.0, marks=pytest.mark.long),
        ("lbtrm", "tcp", "closed", 3.0),  # the activity timeout of 2 s, and the delay
    ],
)
def test_a_source_ends(net: Net, judged: Judged, first: str, second: str, how: str, expected_s: float) -> None:
    """The receiver is told by a final advertisement. What was sent just before the end arrives."""
    messages, board = 1000, Board()
    with judged(trd_name(1), trd_name(2)) as watch, running_dro(net, {1: first, 2: second}, um={1: SILENT}) as dro:
        hosts = app_hosts(net, 1, 2)
        source, receiver = App(hosts[1], dro.configs[1], board, "source"), App(hosts[2], dro.configs[2], board)
        receiver.receive(b"quotes", cell=0)
        otid, _ = source.open("s", b"quotes")
        receiver.wait_heard(b"quotes")
        source.send("s", messages, sizes=(1, 500), window=messages, cells=(0,))
        sent = source.wait_sent("s")
        if how == "killed":  # the system sends what the socket has taken
            source.kill()
        else:
            source.close_source("s", final=how == "final")
        ended = time.monotonic()
        wait_until(
            lambda: receiver.report().heard[otid].ended, "the end of the source", expected_s + LATE_S, every_s=0.05
        )
        heard = receiver.report().heard[otid]
        assert_same(heard, sent)
        assert (heard.bound, heard.ended) == (0, 1)
        # the last session message may have come a little before the end
        assert expected_s - 0.3 <= heard.ended_at - ended
        dro.wait_slot(2, Slot.PROXY_SOURCES, 0)
        assert dro.books[1, Slot.PROXY_RECEIVERS] == 1
        dro.wait_balanced()
        assert not any(dro.books.dropped(2).values())
        receiver.end()
        if how != "killed":
            source.end()
    assert watch.total("lbmr.final_tir") >= 1, watch[trd_name(2)].counts


def test_a_source_that_comes_back_keeps_its_proxy(net: Net, judged: Judged) -> None:
    """Its TCP connection is cut: within the deletion delay the portal is back, and the receiver notices nothing."""
    board = Board()
    with judged(trd_name(1), trd_name(2)), running_dro(net, {1: "tcp", 2: "lbtrm"}) as dro:
        hosts = app_hosts(net, 1, 2)
        source, receiver = App(hosts[1], dro.configs[1], board, "source"), App(hosts[2], dro.configs[2], board)
        receiver.receive(b"quotes", cell=0)
        otid, _ = source.open("s", b"quotes")
        receiver.wait_heard(b"quotes")
        source.send("s", 200, cells=(0,))
        wait_delivered(board, {0: 200})
        hosts[1].run(["ss", "-K", "-t", "state", "established", "sport", "=", ":14371"])
        # probes until the portal is back, of which some may be lost with the connection, then messages
        source.send("s", 200, seed=2, window=200, cells=(0,))
        wait_until(lambda: len(receiver.arrivals(otid)) == 400, "what was sent on the new connection", 20)
        sqns = [sqn for sqn, _ in receiver.arrivals(otid)]
        assert sqns == sorted(set(sqns))
        assert sqns[200:] == list(range(sqns[200], sqns[200] + 200))
        heard = receiver.report().heard[otid]
        assert (heard.bound, heard.ended, len(heard.sources)) == (1, 0, 1)
        assert dro.logged("proxy source created") == 1
        assert dro.logged("proxy source deleted") == 0
        dro.wait_balanced()
        for app in (source, receiver):
            app.end()


def is_left(dro: Dro) -> bool:
    """Has the DRO no TCP connection to a source of TRD 1 any more?"""
    found = dro.host.run(["ss", "-Htn", "state", "connected", "dst", "10.1.0.0/24", "dport", "=", ":14371"])
    return not found.stdout.strip()


def test_the_end_does_not_overtake_what_was_sent_before(net: Net, judged: Judged) -> None:
    """The portal of the receivers is frozen, while its sibling hands over the last messages and reports the end."""
    board = Board()
    with judged(trd_name(1), trd_name(2)), running_dro(net, {1: "tcp", 2: "lbtrm"}) as dro:
        hosts = app_hosts(net, 1, 2)
        source, receiver = App(hosts[1], dro.configs[1], board, "source"), App(hosts[2], dro.configs[2], board)
        receiver.receive(b"quotes", cell=0)
        otid, _ = source.open("s", b"quotes")
        receiver.wait_heard(b"quotes")
        source.send("s", 100, cells=(0,))
        wait_delivered(board, {0: 100})
        frozen = int(dro.wait_log(r"worker started worker=G1-TRD2 pid=(\d+)")[1])
        dro.wait_balanced()
        page = dro.books.pages[1]
        handed = page.pair(2) + PairSlot.HANDED
        before = page[handed]
        os.kill(frozen, signal.SIGSTOP)
        try:
            source.send("s", 200, seed=2, sizes=(1, 2000), window=200)
            sent = source.wait_sent("s")
            source.close_source("s", final=False)
            wait_until(lambda: page[handed] == before + 200, "the messages being handed over")
            wait_until(partial(is_left, dro), "the first portal noticing the end")
        finally:
            os.kill(frozen, signal.SIGCONT)
        wait_until(lambda: receiver.report().heard[otid].ended, "the end of the source", 20, every_s=0.05)
        assert_same(receiver.report().heard[otid], sent)
        dro.wait_balanced()
        assert not any(dro.books.dropped(2).values())
        for app in (source, receiver):
            app.end()


@pytest.mark.parametrize("second", [pytest.param("tcp", marks=pytest.mark.long), "lbtrm"])
def test_a_dro_that_is_stopped_ends_what_it_has_advertised(net: Net, judged: Judged, second: str) -> None:
    """It tells the end of its proxy sources by final advertisements, and is gone in less than five seconds."""
    board = Board()
    with judged(trd_name(1), trd_name(2)) as watch, running_dro(net, {1: "lbtrm", 2: second}) as dro:
        hosts = app_hosts(net, 1, 2)
        source, receiver = App(hosts[1], dro.configs[1], board, "source"), App(hosts[2], dro.configs[2], board)
        receiver.receive(b"quotes", cell=0)
        otid, _ = source.open("s", b"quotes")
        receiver.wait_heard(b"quotes")
        source.send("s", 200, cells=(0,))
        wait_delivered(board, {0: 200})
        dro.process.signal(signal.SIGTERM)
        began = time.monotonic()
        assert dro.process.wait(ENDS_S) == 0
        assert time.monotonic() - began < ENDS_S
        wait_until(lambda: receiver.report().heard[otid].ended, "the end of the proxy source", LATE_S, every_s=0.05)
        for app in (source, receiver):
            app.end()
    assert watch[trd_name(2)].counts["lbmr.final_tir"] >= 1
