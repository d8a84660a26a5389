"""DROs in TRDs without multicast: topic resolution by unicast daemons and over TCP, with daemons that die.

In these networks nftables drops all multicast of every host. Source: guide 2.2, 3.1.1 and chapter 9; feature table.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from dro.metrics.slots import Slot
from tests.rigs.netns.app import App, Board, assert_same, wait_delivered
from tests.rigs.netns.harness import Net
from tests.rigs.netns.judged import Watch
from tests.rigs.netns.resolvers import SRS_RULE, Resolvers, Unheard, write_srs
from tests.rigs.netns.topology import Dro, address_in, running_dro, start_dro, trd_name, write_dro, write_um
from tests.rigs.waiting import wait_until

pytestmark = [pytest.mark.netns, pytest.mark.tshark]

Judged = Callable[..., AbstractContextManager[Watch]]
FOUND_S: Final = 2.0
"""Within this time what is new is found, from the moment at which a daemon runs again."""
PER_SECOND: Final = 200
REPEATED: Final = ("D-SACK Sequence",)
"""Of segments of TCP that come twice on a busy machine."""
AHEAD: Final = 1 << 20
BOTH: Final = {1: 2, 2: 1}
DOWN_S: Final = 10.0
KEPT_S: Final = 2
"""How long a server keeps the interest of a context that is lost."""
QUICK: Final = """
      <topic-resolution>
        <topic-use-query timeout="300" max="3"/>
        <pattern-use-query timeout="250" max="4"/>
      </topic-resolution>"""


class Party:
    """Applications of TRDs, each on a host of its own, and flows between them under a steady load."""

    def __init__(self, net: Net, configs: Mapping[int, Path], *, multicast: Sequence[int] = ()) -> None:
        """`multicast`: TRDs that have it."""
        self._net, self._configs, self._multicast = net, configs, multicast
        self.board = Board()
        self.apps: dict[str, App] = {}
        self.unheard: list[Unheard] = []
        self._flows: dict[bytes, tuple[App, App, int]] = {}
        self._cells, self._numbers = count(), count(1)

    def app(self, name: str, trd: int) -> App:
        """An application that is new, or there."""
        if name not in self.apps:
            host = self._net.host(name, {trd_name(trd): f"{address_in(trd, next(self._numbers))}/24"})
            if trd not in self._multicast:
                self.unheard.append(Unheard(host))
            self.apps[name] = App(host, self._configs[trd], self.board, name)
        return self.apps[name]

    def pair(self, topic: bytes, sender: App, receiver: App) -> int:
        """A receiver there, then a source here; returns the cell of what is heard."""
        cell = next(self._cells)
        receiver.receive(topic, cell=cell)
        sender.open(topic.decode(), topic)
        return cell

    def flow(self, topic: bytes, sender: App, receiver: App) -> None:
        """Begin with a load."""
        cell = self.pair(topic, sender, receiver)
        receiver.wait_heard(topic)
        self._flows[topic] = sender, receiver, cell
        sender.send(topic.decode(), AHEAD, sizes=(1, 300), window=AHEAD, cells=(cell,), per_second=PER_SECOND)

    def wait_flowing(self, messages: int = 20, seconds: float = 10.0) -> None:
        """Until so many more have come of each flow."""
        edges = {cell: self.board.messages[cell] + messages for _, _, cell in self._flows.values()}
        wait_delivered(self.board, edges, seconds)

    def wait_resumed(self, messages: int = 20, seconds: float = 30.0) -> None:
        """Until so many more have come of each flow, of which some may be missing in between."""

        def come() -> dict[bytes, int]:
            found: dict[bytes, int] = {}
            for topic, (_, receiver, _) in self._flows.items():
                (heard,) = receiver.report().of_topic(topic)
                assert not heard.duplicates
                found[topic] = heard.messages + heard.held
            return found

        before = come()
        wait_until(lambda: all(now >= before[topic] + messages for topic, now in come().items()), "flows", seconds)

    def end_flows(self) -> None:
        """All has come once and in order."""
        for topic, (sender, receiver, cell) in self._flows.items():
            sent = sender.stop(topic.decode())
            wait_delivered(self.board, {cell: sent})
            (heard,) = receiver.report().of_topic(topic)
            assert_same(heard, sender.report().sent[topic.decode()])
            assert len(heard.sources) == 1, "one session"
        self._flows.clear()

    def end(self) -> None:
        """Nobody has tried to send to a group."""
        for app in self.apps.values():
            app.end()
        assert not any(one.dropped(way) for one in self.unheard for way in ("input", "output"))


def assert_found(receiver: App, since: float, *topics: bytes) -> None:
    """A source of each is found soon."""
    for topic in topics:
        receiver.wait_heard(topic)
        assert time.monotonic() - since < FOUND_S, topic


def kill_portal(dro: Dro, trd: int) -> None:
    pid = dro.process.pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        if Path(f"/proc/{child}/comm").read_text().strip().endswith(trd_name(trd).upper()):
            os.kill(int(child), signal.SIGKILL)
            return
    raise AssertionError(f"no portal of TRD {trd}")


def test_the_rule_drops_all_multicast(net: Net, judged: Judged, tmp_path: Path) -> None:
    """Out of a host and into one: a source is found when neither host drops any more, and not before."""
    with judged("trd1", minimum={"trd1": {"lbmr.tir": 8}}):
        _until_nobody_drops(net, tmp_path)


def _until_nobody_drops(net: Net, tmp_path: Path) -> None:
    config, board = write_um(tmp_path, 1, "tcp"), Board()
    here, there = (net.host(f"app{n}", {"trd1": f"{address_in(1, n)}/24"}) for n in (1, 2))
    out, into = Unheard(here), Unheard(there)
    sender, receiver = App(here, config, board), App(there, config, board)
    receiver.receive(b"unheard", cell=0)
    sender.open("s", b"unheard")
    wait_until(lambda: out.dropped("output") >= 8, "advertisements that are not sent")
    assert not into.dropped("input")
    out.remove()
    wait_until(lambda: into.dropped("input") >= 8, "advertisements that are not heard")
    assert not receiver.report().heard
    into.remove()
    receiver.wait_heard(b"unheard")
    sender.end()
    receiver.end()


@pytest.mark.slow
def test_flows_by_unicast_daemons_that_die(net: Net, judged: Judged) -> None:
    """Of two in each TRD one dies, and all of them for ten seconds; then a portal, while one is dead."""
    with judged("trd1", "trd2", allow=REPEATED, minimum={trd_name(trd): {"lbmr.tir": 20} for trd in BOTH}):
        daemons = {trd: Resolvers(net, trd, "lbmrd", 2) for trd in BOTH}
        options = {trd: some.options for trd, some in daemons.items()}
        with running_dro(net, dict.fromkeys(BOTH, "tcp"), um=options) as dro:
            party = Party(net, dro.configs)
            party.unheard.append(Unheard(dro.host))
            apps = {trd: party.app(f"app{trd}", trd) for trd in BOTH}
            for trd, other in BOTH.items():
                party.flow(b"from %d" % trd, apps[trd], apps[other])
            party.wait_flowing()
            daemons[1][0].kill()
            began = time.monotonic()
            party.pair(b"one is down", apps[1], apps[2])
            assert_found(apps[2], began, b"one is down")
            party.wait_flowing()
            daemons[1][0].start()
            began = time.monotonic()
            party.pair(b"one is back", apps[1], apps[2])
            assert_found(apps[2], began, b"one is back")
            daemons[1].kill()
            daemons[2].kill()
            killed = time.monotonic()
            late = {trd: party.app(f"late{trd}", trd) for trd in BOTH}
            party.pair(b"old to new", apps[1], late[2])
            party.pair(b"new to new", late[1], late[2])
            party.pair(b"new to old", late[2], apps[1])
            wait_until(lambda: time.monotonic() > killed + DOWN_S, "the time that all daemons are dead")
            party.wait_flowing()
            assert not late[2].report().heard
            daemons[1][1].start()
            daemons[2][0].start()
            began = time.monotonic()
            party.pair(b"just back", apps[2], apps[1])
            assert_found(apps[1], began, b"just back", b"new to old")
            assert_found(late[2], began, b"old to new", b"new to new")
            daemons[2][1].start()
            party.wait_flowing()
            party.end_flows()
            dro.wait_balanced()
            for trd, other in BOTH.items():
                party.flow(b"again from %d" % trd, apps[trd], apps[other])
            party.wait_flowing()
            kill_portal(dro, 1)
            party.wait_resumed()
            party.pair(b"new portal", apps[1], apps[2])
            assert_found(apps[2], time.monotonic(), b"new portal")
            party.end()


@pytest.mark.slow
def test_flows_over_tcp_with_servers_that_die(net: Net, judged: Judged) -> None:
    """Of two in a TRD one dies, and in the other TRD the only one."""
    with judged(
        "trd1", "trd2", decode_as=[SRS_RULE], allow=REPEATED, minimum={trd_name(trd): {"lbmsrs": 20} for trd in BOTH}
    ) as watch:
        daemons = {1: Resolvers(net, 1, "umsrs", 2), 2: Resolvers(net, 2, "umsrs")}
        options = {trd: some.options for trd, some in daemons.items()}
        with running_dro(net, dict.fromkeys(BOTH, "tcp"), um=options) as dro:
            party = Party(net, dro.configs)
            party.unheard.append(Unheard(dro.host))
            apps = {trd: party.app(f"app{trd}", trd) for trd in BOTH}
            for trd, other in BOTH.items():
                party.flow(b"from %d" % trd, apps[trd], apps[other])
            party.wait_flowing()
            daemons[1][0].kill()
            began = time.monotonic()
            party.pair(b"one is down", apps[1], apps[2])
            assert_found(apps[2], began, b"one is down")
            daemons[2].kill()
            late = {trd: party.app(f"late{trd}", trd) for trd in BOTH}
            party.pair(b"old to new", apps[1], late[2])
            party.pair(b"new to new", late[1], late[2])
            party.pair(b"new to old", late[2], apps[1])
            party.wait_flowing(PER_SECOND)
            assert not late[2].report().heard
            daemons[2][0].start()
            began = time.monotonic()
            party.pair(b"just back", apps[2], apps[1])
            assert_found(apps[1], began, b"just back", b"new to old")
            assert_found(late[2], began, b"old to new", b"new to new")
            daemons[1][0].start()
            began = time.monotonic()
            party.pair(b"both are back", apps[1], apps[2])
            assert_found(apps[2], began, b"both are back")
            party.wait_flowing()
            party.end_flows()
            dro.wait_balanced()
            party.end()
    assert not watch.total("lbmr")


@pytest.mark.parametrize(
    ("more", "gone_s"),
    [
        pytest.param(QUICK, 0.9, id="quick"),
        pytest.param("", 15.0, id="defaults", marks=[pytest.mark.slow, pytest.mark.long]),
    ],
)
def test_interest_over_tcp_ends_with_the_receiver(net: Net, judged: Judged, more: str, gone_s: float) -> None:
    """At once when it says so; when it is killed, after the time that the server keeps what a lost context has told."""
    with judged("trd1", "trd2", decode_as=[SRS_RULE], allow=REPEATED) as watch:
        short = write_srs(net.folder, f"<interest-state-lifetime>{KEPT_S}</interest-state-lifetime>")
        daemons = {1: Resolvers(net, 1, "umsrs"), 2: Resolvers(net, 2, "umsrs", 1, str(short))}
        options = {trd: some.options for trd, some in daemons.items()}
        with running_dro(net, dict.fromkeys(BOTH, "tcp"), um=options, more=dict.fromkeys(BOTH, more)) as dro:
            party = Party(net, dro.configs)
            party.unheard.append(Unheard(dro.host))
            sender, ends, dies = party.app("sender", 1), party.app("ends", 2), party.app("dies", 2)

            def proxies() -> tuple[int, int]:
                return dro.books[1, Slot.RECEIVER_TOPICS], dro.books[2, Slot.PROXY_SOURCES]

            sender.open("nobody wants it", b"nobody wants it")
            party.pair(b"ends", sender, ends)
            party.pair(b"dies", sender, dies)
            ends.wait_heard(b"ends")
            dies.wait_heard(b"dies")
            wait_until(lambda: proxies() == (2, 2), "the proxies of two topics")
            began = time.monotonic()
            party.apps.pop("ends").end()
            party.apps.pop("dies").kill()
            for left, least_s in (((1, 1), gone_s), ((0, 0), gone_s + KEPT_S)):
                wait_until(lambda left=left: proxies() == left, f"proxies {left}", least_s + 5.0)  # type: ignore[misc]
                assert time.monotonic() - began > least_s
            dro.wait_balanced()
            party.end()
    assert not watch.total("lbmr")


def test_three_ways_of_topic_resolution_in_one_dro(net: Net, judged: Judged) -> None:
    """TRD 1 by multicast, TRD 2 by a unicast daemon, TRD 3 over TCP: all pairs, topics and patterns."""
    trds, messages = (1, 2, 3), 500
    with judged(*map(trd_name, trds), decode_as=[SRS_RULE], allow=REPEATED) as watch:
        daemons = {2: Resolvers(net, 2, "lbmrd"), 3: Resolvers(net, 3, "umsrs")}
        options = {trd: some.options for trd, some in daemons.items()}
        with running_dro(net, {1: "lbtrm", 2: "tcp", 3: "tcp"}, um=options) as dro:
            for trd in daemons:
                Unheard(dro.host, trd_name(trd))
            party = Party(net, dro.configs, multicast=[1])
            apps = {trd: party.app(f"app{trd}", trd) for trd in trds}
            others = {trd: [other for other in trds if other != trd] for trd in trds}
            cell = {(to, of): 10 * to + of for to in trds for of in others[to]}
            for trd, app in apps.items():
                app.match(rb"^wild\.", cell=trd)
                for of in others[trd]:
                    app.receive(b"from %d" % of, cell=cell[trd, of])
                app.open("own", b"from %d" % trd)
                app.open("wild", b"wild.%d" % trd)
                app.open("tame", b"tame.%d" % trd)
            for trd, app in apps.items():
                for of in others[trd]:
                    app.wait_heard(b"from %d" % of)
                    app.wait_heard(b"wild.%d" % of)
            for trd, app in apps.items():
                app.send("own", messages, seed=trd, sizes=(1, 3000), cells=tuple(cell[to, trd] for to in others[trd]))
            wait_delivered(party.board, dict.fromkeys(cell.values(), messages))
            delivered = dict.fromkeys(trds, 0)
            for trd in trds:  # one after the other: they share the cells of receivers
                apps[trd].send("wild", messages, seed=10 + trd, sizes=(1, 300), cells=tuple(others[trd]))
                for to in others[trd]:
                    delivered[to] += messages
                wait_delivered(party.board, delivered)
                apps[trd].wait_sent("wild")
            reports = {trd: app.report() for trd, app in apps.items()}
            for trd, report in reports.items():
                for of in others[trd]:
                    for name, topic in (("own", b"from %d" % of), ("wild", b"wild.%d" % of)):
                        (heard,) = report.of_topic(topic)
                        assert_same(heard, reports[of].sent[name])
                        assert (heard.hops, heard.domain_id) == (1, of) or trd == 3, "SRS has no word for hops"
                assert not [heard for heard in report.heard.values() if heard.topic.startswith(b"tame")]
            dro.wait_balanced()
            party.end()
    assert watch["trd2"].counts["lbmr"]
    assert watch["trd3"].counts["lbmsrs"]
    assert not watch["trd3"].counts["lbmr"]


@pytest.mark.parametrize(("program", "kind"), [("lbmrd", "lbmr.interest"), ("umsrs", "lbmsrs")])
def test_two_dros_meet_in_a_trd_without_multicast(net: Net, judged: Judged, program: str, kind: str) -> None:
    """TRD 1 - D1 - TRD 2 - D2 - TRD 3: interest and messages cross both, also when D1 was killed and is back."""
    with judged("trd1", "trd2", "trd3", decode_as=[SRS_RULE], allow=REPEATED) as watch:
        options = Resolvers(net, 2, program).options
        kinds = {1: "lbtrm", 2: "tcp", 3: "lbtrm"}
        configs = {trd: write_um(net.folder, trd, one, options if trd == 2 else "") for trd, one in kinds.items()}
        files, hosts = {}, {}
        for name, number, trds in (("D1", 8, (1, 2)), ("D2", 9, (2, 3))):
            files[name] = write_dro(net.folder, {trd: configs[trd] for trd in trds}, name=name)
            hosts[name] = net.host(name, {trd_name(trd): f"{address_in(trd, number)}/24" for trd in trds})
            Unheard(hosts[name], "trd2")
        dros = {name: start_dro(hosts[name], files[name], 2) for name in files}
        party = Party(net, configs, multicast=[1, 3])
        apps = {trd: party.app(f"app{trd}", trd) for trd in (1, 3)}
        party.flow(b"south", apps[1], apps[3])
        party.flow(b"north", apps[3], apps[1])
        party.wait_flowing()
        for pid in reversed(hosts["D1"].pids()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        dros["D1"].wait()
        dros["D1"] = start_dro(hosts["D1"], files["D1"], 2)
        party.wait_resumed()
        party.end()
        assert [process.stop(10) for process in dros.values()] == [0, 0]
    assert watch["trd2"].counts[kind] >= 4


def test_topics_are_found_when_datagrams_are_lost(net: Net, judged: Judged) -> None:
    """A fifth of what comes to the daemon, and of what comes from it."""
    topics = [b"topic %d" % n for n in range(20)]
    with judged("trd1", "trd2", allow=REPEATED):
        daemons = {trd: Resolvers(net, trd, "lbmrd") for trd in BOTH}
        options = {trd: some.options for trd, some in daemons.items()}
        losses = [some.host.lose(0.2, dports=[15380]) for some in daemons.values()]
        with running_dro(net, dict.fromkeys(BOTH, "tcp"), um=options) as dro:
            losses.append(dro.host.lose(0.2, where="udp sport 15380"))
            party = Party(net, dro.configs)
            party.unheard.append(Unheard(dro.host))
            apps = {trd: party.app(f"app{trd}", trd) for trd in BOTH}
            losses += [net.hosts[f"app{trd}"].lose(0.2, where="udp sport 15380") for trd in BOTH]
            for topic in topics:
                party.pair(topic, apps[1], apps[2])
            for topic in topics:
                apps[2].wait_heard(topic)
            party.flow(b"back", apps[2], apps[1])
            party.wait_flowing()
            party.end_flows()
            assert all(0 < loss.count().dropped < loss.count().seen for loss in losses)
            party.end()
