"""One DRO in the middle of four TRDs: who hears whom, and which proxies there are for it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime

import pytest

from dro.metrics.slots import Slot
from tests.rigs.netns.app import App, Board, assert_same, wait_delivered
from tests.rigs.netns.harness import Net
from tests.rigs.netns.judged import Watch
from tests.rigs.netns.topology import Dro, app_hosts, running_dro, trd_name
from tests.rigs.waiting import wait_until

pytestmark = [pytest.mark.netns, pytest.mark.tshark]

Judged = Callable[..., AbstractContextManager[Watch]]
TRDS = (1, 2, 3, 4)
MIXED = {1: "lbtrm", 2: "tcp", 3: "lbtrm", 4: "tcp"}
QUICK = """
      <topic-resolution>
        <topic-use-query timeout="300" max="3"/>
        <pattern-use-query timeout="250" max="4"/>
      </topic-resolution>"""


def proxies(dro: Dro) -> dict[int, tuple[int, int]]:
    """(proxy receivers, proxy sources) of each portal."""
    return {k: (dro.books[k, Slot.PROXY_RECEIVERS], dro.books[k, Slot.PROXY_SOURCES]) for k in dro.configs}


def wait_proxies(dro: Dro, wanted: dict[int, tuple[int, int]], seconds: float = 20) -> None:
    try:
        wait_until(lambda: proxies(dro) == wanted, "", seconds, every_s=0.05)
    except TimeoutError:
        raise AssertionError(f"(proxy receivers, proxy sources) are {proxies(dro)}, not {wanted}") from None


def log_time(dro: Dro, pattern: str) -> float:
    """When the one log line that matches was written, as seconds of `time.time`."""
    lines = [line for line in dro.process.stdout.splitlines() if re.search(pattern, line)]
    assert len(lines) == 1, lines
    return datetime.fromisoformat(lines[0][1:27]).timestamp()


@pytest.mark.slow
def test_any_to_any(net: Net, judged: Judged) -> None:
    """A source in every TRD, received in the three others."""
    messages, board = 500, Board()
    with judged(*map(trd_name, TRDS)) as watch, running_dro(net, MIXED) as dro:
        apps = {trd: App(host, dro.configs[trd], board) for trd, host in app_hosts(net, *TRDS).items()}
        cell = {(source, receiver): 10 * source + receiver for source in TRDS for receiver in TRDS}
        for trd, app in apps.items():
            app.open("own", b"topic%d" % trd)
            for other in TRDS:
                if other != trd:
                    app.receive(b"topic%d" % other, cell=cell[other, trd])
        for trd, app in apps.items():
            for other in TRDS:
                if other != trd:
                    app.wait_heard(b"topic%d" % other)
        for trd, app in apps.items():
            cells = tuple(cell[trd, other] for other in TRDS if other != trd)
            app.send("own", messages, seed=trd, sizes=(1, 3000), cells=cells)
        wait_delivered(board, {cell[s, r]: messages for s in TRDS for r in TRDS if s != r})
        reports = {trd: app.report() for trd, app in apps.items()}
        for receiver in TRDS:
            assert len(reports[receiver].heard) == 3
            for source in TRDS:
                if source != receiver:
                    (heard,) = reports[receiver].of_topic(b"topic%d" % source)
                    assert_same(heard, reports[source].sent["own"])
                    assert (heard.hops, heard.domain_id, len(heard.sources)) == (1, source, 1)
                    assert dro.host.address(trd_name(receiver)) in heard.sources[0]
        # where the sources are nobody knows: each topic is wanted from every TRD, on behalf of the others
        wait_proxies(dro, dict.fromkeys(TRDS, (4, 3)))
        dro.wait_balanced()
        assert not any(count for k in TRDS for count in dro.books.dropped(k).values())
        assert dro.books.total(Slot.TOPIC_RCVD) * 3 == dro.books.total(Slot.SENT)
        for app in apps.values():
            app.end()
    for trd in TRDS:
        assert watch[trd_name(trd)].counts["lbtrm.data" if MIXED[trd] == "lbtrm" else "lbttcp"] >= 4 * messages


def test_three_sources_of_a_topic(net: Net, judged: Judged) -> None:
    """Two in TRD 1 and one in TRD 3 give three proxy sources in TRD 2, fed by one proxy receiver in each TRD."""
    messages, board = 300, Board()
    names = {"a": 1, "b": 1, "c": 3}
    with judged(*map(trd_name, TRDS)) as watch, running_dro(net, MIXED) as dro:
        hosts = app_hosts(net, 1, 2, 3)
        apps = {"receiver": App(hosts[2], dro.configs[2], board)}
        apps["receiver"].receive(b"shared", cell=0)
        for name, trd in names.items():
            apps[name] = App(hosts[trd], dro.configs[trd], board, name)
            apps[name].open(name, b"shared")
        heard = apps["receiver"].wait_heard(b"shared", 3)
        assert sorted(h.domain_id for h in heard) == [1, 1, 3]
        wait_proxies(dro, {1: (1, 0), 2: (0, 3), 3: (1, 0), 4: (1, 0)})
        for serial, name in enumerate(names):  # one after the other: they share the receiver's cell
            apps[name].send(name, messages, seed=serial, sizes=(1, 2000), cells=(0,))
            wait_delivered(board, {0: (serial + 1) * messages})
        report = apps["receiver"].report()
        for name in names:
            sent = apps[name].report().sent[name]
            assert_same(report.heard[sent.otid], sent)
        wait_proxies(dro, {1: (1, 0), 2: (0, 3), 3: (1, 0), 4: (1, 0)})
        dro.wait_balanced()
        for app in apps.values():
            app.end()
    assert watch[trd_name(4)].counts["lbttcp"] == 0


def test_a_wildcard_receiver_gets_exactly_what_matches(net: Net, judged: Judged) -> None:
    board = Board()
    here = {b"eq.IBM": 1, b"eq.MSFT": 3, b"fx.EUR": 1, b"xeq.IBM": 3, b"EQ.IBM": 4}
    with judged(*map(trd_name, TRDS)), running_dro(net, MIXED) as dro:
        apps = {trd: App(host, dro.configs[trd], board) for trd, host in app_hosts(net, *TRDS).items()}
        apps[2].match(rb"^eq\.", cell=0)
        for topic, trd in here.items():
            apps[trd].open(topic.decode(), topic)
        for topic in (b"eq.IBM", b"eq.MSFT"):
            apps[2].wait_heard(topic)
        apps[4].open("eq.LATE", b"eq.LATE")
        apps[2].wait_heard(b"eq.LATE")
        apps[2].receive(b"eq.IBM", cell=0)  # topic and pattern at once: still one proxy source
        wait_proxies(dro, {1: (2, 0), 2: (0, 3), 3: (2, 0), 4: (2, 0)})
        matching, delivered = {b"eq.IBM": 1, b"eq.MSFT": 3, b"eq.LATE": 4}, 0
        for serial, (topic, trd) in enumerate((here | matching).items()):
            is_matching = topic in matching
            apps[trd].send(topic.decode(), 100, seed=serial, sizes=(1, 500), cells=(0,) if is_matching else ())
            apps[trd].wait_sent(topic.decode())
            if is_matching:
                delivered += 100
                wait_delivered(board, {0: delivered})
        report = apps[2].report()
        assert {heard.topic for heard in report.heard.values()} == set(matching)
        for topic, trd in matching.items():
            (heard,) = report.of_topic(topic)
            assert_same(heard, apps[trd].report().sent[topic.decode()])
        dro.wait_balanced()
        assert dro.books[2, Slot.PROXY_SOURCES] == 3
        created = re.findall(r"proxy source created topic=(\S+) .*process=G1-TRD2", dro.process.stdout)
        assert sorted(created) == sorted(topic.decode() for topic in matching)
        for app in apps.values():
            app.end()


def test_without_receivers_nothing_crosses(net: Net, judged: Judged) -> None:
    """Sources without receivers, and with receivers in their own TRD only, make no traffic beyond it."""
    board = Board()
    with judged(*map(trd_name, TRDS)) as watch, running_dro(net, {1: "lbtrm", 2: "tcp", 3: "tcp", 4: "lbtrm"}) as dro:
        hosts = app_hosts(net, *TRDS)
        apps = {trd: App(host, dro.configs[trd], board) for trd, host in hosts.items()}
        for trd, app in apps.items():
            app.open("alone", b"alone%d" % trd)
            app.send("alone", 50, sizes=(10, 10))
        for app in apps.values():
            app.wait_sent("alone")
        assert proxies(dro) == dict.fromkeys(TRDS, (0, 0))
        assert dro.books.total(Slot.LOCAL_TOPICS) == 0
        apps[1].open("local", b"local")
        neighbour = App(hosts[1], dro.configs[1], board, "neighbour")
        neighbour.receive(b"local", cell=0)
        neighbour.wait_heard(b"local")
        apps[1].send("local", 200, sizes=(10, 1000), cells=(0,))
        wait_delivered(board, {0: 200})
        # the other TRDs are asked for the topic, in vain
        wait_proxies(dro, {1: (0, 0), 2: (1, 0), 3: (1, 0), 4: (1, 0)})
        wait_until(lambda: dro.books[1, Slot.LOCAL_TOPICS] == 1, "local interest")
        assert dro.books.total(Slot.TOPIC_RCVD) == dro.books.total(Slot.SENT) == 0
        assert dro.logged("proxy source created") == 0
        for app in (*apps.values(), neighbour):
            app.end()
    assert watch[trd_name(1)].counts["lbtrm.data"] >= 250
    assert watch[trd_name(4)].counts["lbtrm.data"] == 50  # its own source
    assert watch[trd_name(2)].counts["lbttcp"] == watch[trd_name(3)].counts["lbttcp"] == 0
    for trd in (2, 3, 4):
        assert watch[trd_name(trd)].counts["lbmr.tqr"]
        assert watch[trd_name(trd)].counts["lbmr.tir"]  # of the application, which the DRO does not repeat
    assert watch.total("lbmr.proxy_tir") == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "more", "expected_s"),
    [
        pytest.param("topic", QUICK, 0.9, id="topic"),
        pytest.param("pattern", QUICK, 1.0, id="pattern"),
        pytest.param("topic", "", 15.0, id="defaults", marks=pytest.mark.long),
    ],
)
def test_a_deleted_receiver_takes_the_proxies_away(
    net: Net, judged: Judged, kind: str, more: str, expected_s: float
) -> None:
    """Leave, then use queries without an answer: 3 x 300 ms for topics, 4 x 250 ms for patterns, 5 x 3 s by default."""
    board = Board()
    with judged(trd_name(1), trd_name(2)), running_dro(net, {1: "lbtrm", 2: "lbtrm"}, more={2: more}) as dro:
        hosts = app_hosts(net, 1, 2)
        source = App(hosts[1], dro.configs[1], board, "source")
        source.open("s", b"quotes.IBM")
        receivers = [App(hosts[2], dro.configs[2], board, f"receiver{n}") for n in (0, 1)]
        for cell, app in enumerate(receivers):
            if kind == "topic":
                app.receive(b"quotes.IBM", cell=cell)
            else:
                app.match(b"^quotes", cell=cell)
            app.wait_heard(b"quotes.IBM")
        source.send("s", 100, cells=(0, 1))
        wait_delivered(board, {0: 100, 1: 100})
        wait_proxies(dro, {1: (1, 0), 2: (0, 1)})

        def leave(app: App) -> None:
            if kind == "topic":
                app.unreceive(b"quotes.IBM")
            else:
                app.unmatch(b"^quotes")

        leave(receivers[0])  # the other one answers the use query: nothing changes
        source.send("s", 500, cells=(1,), per_second=200)  # 2.5 s
        wait_delivered(board, {1: 600})
        assert proxies(dro) == {1: (1, 0), 2: (0, 1)}
        assert dro.logged("proxy (source|receiver) deleted") == 0
        left = time.time()
        leave(receivers[1])
        wait_proxies(dro, {1: (0, 0), 2: (0, 0)}, expected_s + 20)
        gone = log_time(dro, "proxy source deleted")
        assert expected_s - 0.01 <= gone - left < expected_s + 3
        assert abs(log_time(dro, "proxy receiver deleted") - gone) < 2
        source.send("s", 100)  # to nobody
        source.wait_sent("s")
        dro.wait_balanced()
        received = dro.books[1, Slot.TOPIC_RCVD]
        assert dro.books[2, Slot.SENT] == received
        for app in (source, *receivers):
            app.end()


def test_a_receiver_whose_process_died(net: Net, judged: Judged) -> None:
    """No leave: the silence of a periodic interval (1 s here), then two use queries of 300 ms."""
    more = '<topic-resolution><topic-use-query timeout="300" max="2" periodic-interval="1000"/></topic-resolution>'
    board = Board()
    quiet = "receiver resolver_query_minimum_initial_duration 100\nreceiver resolver_query_sustain_interval 0\n"
    with (
        judged(trd_name(1), trd_name(2)),
        running_dro(net, {1: "tcp", 2: "lbtrm"}, um={2: quiet}, more={2: more}) as dro,
    ):
        hosts = app_hosts(net, 1, 2)
        source, receiver = App(hosts[1], dro.configs[1], board), App(hosts[2], dro.configs[2], board)
        source.open("s", b"quotes")
        receiver.receive(b"quotes", cell=0)
        receiver.wait_heard(b"quotes")
        # lives on use responses alone for several intervals
        source.send("s", 300, cells=(0,), per_second=100)
        wait_delivered(board, {0: 300})
        assert proxies(dro) == {1: (1, 0), 2: (0, 1)}
        receiver.kill()
        died = time.time()
        wait_proxies(dro, {1: (0, 0), 2: (0, 0)})
        # the interval began with the last answer, at most 1 s before the end
        assert 0.6 - 0.05 <= log_time(dro, "proxy source deleted") - died < 1.6 + 3
        dro.wait_balanced()
        source.end()
