"""One DRO between two TRDs: what is sent on one side is what is received on the other, once and in order."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from dro.metrics.slots import Slot
from tests.rigs.effort import IS_LONG
from tests.rigs.netns.app import App, Board, assert_same, wait_delivered
from tests.rigs.netns.harness import Host, Net
from tests.rigs.netns.judged import Watch
from tests.rigs.netns.process import Process
from tests.rigs.netns.topology import app_hosts, running_dro, trd_name
from tests.rigs.waiting import wait_until

pytestmark = [pytest.mark.netns, pytest.mark.tshark]

Judged = Callable[..., AbstractContextManager[Watch]]
MESSAGES = 10_000 if IS_LONG else 3_000
DATA_PORTS: Final[dict[str, int | tuple[int, int]]] = {"lbtrm": 14400, "lbtru": (14360, 14389)}


COMBINATIONS = [
    ("lbtrm", "lbtrm", 0.02),
    ("lbtru", "lbtru", 0.05),
    ("lbtrm", "tcp", 0.0),
    ("tcp", "tcp", 0.0),
    *([("lbtrm", "lbtrm", 0.0), ("tcp", "lbtrm", 0.0), ("lbtrm", "tcp", 0.02), ("tcp", "lbtrm", 0.02)] * IS_LONG),
]
"""Each kind of portal next to each; in a long run with and without loss."""


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second", "loss"), COMBINATIONS)
def test_both_directions_at_once(net: Net, judged: Judged, first: str, second: str, loss: float) -> None:
    """Messages of 1 to 7,000 bytes each way, TRD 1 on `first` and TRD 2 on `second`; `loss` of LBT-RM and LBT-RU.

    With loss between two such portals datagrams cross as IP fragments, else in one frame each.
    """
    board = Board()
    net.mtu = 1500 if loss and first == second else 9000
    net.capture_mib = 64
    hosts = app_hosts(net, 1, 2)
    with judged(trd_name(1), trd_name(2)) as watch, running_dro(net, {1: first, 2: second}) as dro:
        apps = {trd: App(host, dro.configs[trd], board) for trd, host in hosts.items()}
        lost = [host.lose(loss, dports=[*DATA_PORTS.values()]) for host in (*hosts.values(), dro.host)] if loss else []
        apps[1].receive(b"south", cell=1)
        apps[2].receive(b"north", cell=2)
        apps[1].open("north", b"north")
        apps[2].open("south", b"south")
        apps[1].wait_heard(b"south")
        apps[2].wait_heard(b"north")
        apps[1].send("north", MESSAGES, seed=1, cells=(2,))
        apps[2].send("south", MESSAGES, seed=2, cells=(1,))
        wait_delivered(board, {1: MESSAGES, 2: MESSAGES})
        reports = {trd: app.report() for trd, app in apps.items()}
        for receiver, sender, name in ((2, 1, "north"), (1, 2, "south")):
            sent = reports[sender].sent[name]
            (got,) = reports[receiver].of_topic(name.encode())
            assert_same(got, sent)
            assert got.messages == MESSAGES
            assert dro.host.address(trd_name(receiver)) in got.sources[-1]
            assert (got.hops, got.domain_id) == (1, sender)
        dro.wait_balanced()
        for portal in (1, 2):
            assert dro.books[portal, Slot.SENT] >= MESSAGES
            assert not any(dro.books.dropped(portal).values())
        assert all(rule.remove().dropped for rule in lost if rule.count().seen)
        for app in apps.values():
            app.end()
    for kind in {first, second} & DATA_PORTS.keys() if loss else ():
        assert watch.total(f"{kind}.nak")
        assert watch.total(f"{kind}.rx")
    for trd, kind in ((1, first), (2, second)):
        assert watch[trd_name(trd)].counts[f"{kind}.data" if kind in DATA_PORTS else "lbttcp"] > 1000
    if first == "lbtru":
        assert all(watch.total(f"lbtru.{packet}") for packet in ("creq", "ack", "sm"))


def tool(host: Host, name: str, *arguments: str, stdin: Path | None = None) -> Process:
    command = [sys.executable, "-u", "-m", f"dro.tools.lbm.{name}", *arguments]
    if stdin is None:
        return host.start(command, name)
    return host.start(["sh", "-c", 'exec "$@" < "$0"', str(stdin), *command], name)


def is_connected(host: Host) -> bool:
    """Has a receiver on this host a TCP connection to a source?"""
    found = host.run(["ss", "-Htn", "state", "established", "dport", ">=", ":14371", "and", "dport", "<=", ":14390"])
    return bool(found.stdout.strip())


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [("lbtrm", "tcp"), pytest.param("tcp", "lbtrm", marks=pytest.mark.long)])
def test_the_tools_at_both_ends(net: Net, judged: Judged, first: str, second: str) -> None:
    """`lbmsrc` and `lbmrcv`: verifiable messages of up to 20,000 bytes, in fragments and batches, both ways at once."""
    count = "2000" if IS_LONG else "1000"
    um = dict.fromkeys((1, 2), "source implicit_batching_minimum_length 2048\n")
    more = dict.fromkeys((1, 2), "<max-queue>16000000</max-queue>")
    net.capture_mib = 64
    kinds = {1: first, 2: second}
    with judged(trd_name(1), trd_name(2)) as watch, running_dro(net, kinds, um=um, more=more) as dro:
        hosts = app_hosts(net, 1, 2)
        receivers, sources, gates = {}, {}, {}
        for trd, host in hosts.items():
            config = str(dro.configs[trd])
            receivers[trd] = tool(host, "lbmrcv", "-c", config, "-V", "-O", "-r", count, "--payload-sha256", f"to{trd}")
            gate = net.folder / f"gate{trd}"
            os.mkfifo(gate)
            gates[trd] = os.open(gate, os.O_RDWR)
            sources[trd] = tool(
                host, "lbmsrc", "-c", config, "-V", "-M", count, "-l", "16-20000", "-P", "2", "-L", "10",
                "--payload-sha256", "--wait-for-line", f"to{3 - trd}", stdin=gate,
            )  # fmt: skip
        for trd, process in receivers.items():
            process.wait_output(rf"^\[to{trd}\]\[.*{re.escape(dro.host.address(trd_name(trd)))}.*source found", 20)
        for trd, kind in kinds.items():
            if kind == "tcp":  # the portal is connected before it has a proxy source, and the receiver soon after
                wait_until(partial(is_connected, hosts[trd]), "the connection of the receiver")
        for gate_fd in gates.values():
            os.write(gate_fd, b"go\n")
            os.close(gate_fd)
        assert [process.wait(50) for process in receivers.values()] == [0, 0], [p.stdout for p in receivers.values()]
        for process in sources.values():
            process.signal(signal.SIGTERM)  # it only lingers
            assert process.wait(20) == 0
            assert re.search(rf"^lbmsrc: sent {count} messages", process.stdout, re.MULTILINE)
        for trd, process in receivers.items():
            (sent,) = re.findall(r"sha256 (\w{64})", sources[3 - trd].stdout)
            (received,) = re.findall(r"sha256 (\w{64})", process.stdout)
            assert received == sent
            last = process.stdout.splitlines()[-1]
            assert re.fullmatch(rf"lbmrcv: received {count} messages, \d+ bytes, lost 0, bursts 0, bad 0", last)
        dro.wait_balanced()
        assert not any(lost for portal in (1, 2) for lost in dro.books.dropped(portal).values())
    assert watch.total("lbmc.fragment") > 1000
