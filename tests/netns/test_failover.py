"""The fast profile and canaries between real processes: a link that goes silent, and links that carry nothing."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.netns.test_peer_links import COST, Dros, Flows, dros_of
from tests.rigs.netns.capture import judge, ports
from tests.rigs.netns.harness import Net
from tests.rigs.netns.namespace import command
from tests.rigs.network import Plan, late

pytestmark = [pytest.mark.netns, pytest.mark.tshark, pytest.mark.slow]

FAST: Final = "<extensions><fast-recalculation/></extensions>"
SILENCE_S: Final = 5.0
"""A second would do; with default timers it is 20."""
DEGRADED: Final = "the link is up and carries nothing"
REPEATED: Final = ("D-SACK Sequence",)


def triangle(folder: Path, peer_xml: str, udp: str | None = None) -> Plan:
    """With default timers but for what is named. Links by B are cheaper; messages leave at once."""
    dros: dict[str, list[int | str]] = {"A": [1, "B", "C"], "B": [2, "A", "C"], "C": [3, "A", "B"]}
    peer_xml = f"<smart-batch>1</smart-batch>{peer_xml}"
    return Plan(folder, dros, portal_xml={"A-C": COST, "C-A": COST}, peer_xml=peer_xml, daemon=FAST, udp=udp)


@contextmanager
def dropped(dros: Dros, *matches: str) -> Iterator[None]:
    """Packets that match are lost."""
    lines = ["add table ip fault", "add chain ip fault in { type filter hook input priority 0; }"]
    lines += [f"add rule ip fault in {match} drop" for match in matches]
    nft = ["ip", "netns", "exec", dros.host.namespace, "nft"]
    command([*nft, "-f", "-"], "\n".join(lines) + "\n")
    try:
        yield
    finally:
        command([*nft, "delete", "table", "ip", "fault"])


@contextmanager
def flowing(dros: Dros) -> Iterator[Flows]:
    """All links are up and all flows go by B; at the end all has come once and in order, and the DROs end."""
    for name in "ABC":
        dros.start(name)
    flows = Flows(dros)
    try:
        flows.until(lambda: "routes=6" in dros.processes["B"].stdout)
        flows.again()
        yield flows
        for got in flows.got():
            assert len(got) == len(set(got)), "nothing twice"
            assert late(got) == sorted(late(got)), "what waited for a link while the rest went round it"
    finally:
        flows.close()
    for process in dros.processes.values():
        process.signal(signal.SIGTERM)
    assert [process.wait(20) for process in dros.processes.values()] == [0, 0, 0]


def peers(dros: Dros, flows: Flows, name: str) -> dict[str, dict[str, Any]]:
    pid = str(dros.processes[name].pid)
    order = dros.host.start_python("-m", "supervisor.tools.ctl.main", "peers", "--json", "--dro", pid)
    flows.until(lambda: order.returncode is not None)
    return {row["portal"]: row for row in json.loads(order.stdout)["peers"]}


def test_with_the_fast_profile_a_silent_link_is_left_in_a_second(net: Net, tmp_path: Path) -> None:
    with dros_of(net, triangle(tmp_path, "<fast-keepalive/>")) as dros:
        capture = net.start_capture(dros.host.namespace, "lo", "lo", "")
        with flowing(dros) as flows:
            flows.until(lambda: [r["keepalive_timeout_ms"] for r in peers(dros, flows, "A").values()] == [700, 700])
            port = dros.plan.link_port("A", "B")
            with dropped(dros, f"tcp sport {port}", f"tcp dport {port}"):
                began_ns = dros.loop.now_ns()
                flows.until(lambda: "nothing came for 7" in dros.processes["A"].stdout)
                flows.again()
                assert (dros.loop.now_ns() - began_ns) / 1e9 < SILENCE_S
        verdict = judge(capture.stop(), dros.decoding(), allow=REPEATED)
    verdict.assert_clean({"lbttcp": 500, "lbtrm.data": 500})


@pytest.mark.parametrize(
    "is_udp", [pytest.param(False, id="large packets", marks=pytest.mark.long), pytest.param(True, id="datagrams")]
)
def test_a_link_that_is_up_and_carries_nothing_is_degraded_and_no_route_takes_it(
    net: Net, tmp_path: Path, is_udp: bool
) -> None:
    canary = '<canary interval="200" timeout="1000"/>'
    with dros_of(net, triangle(tmp_path, canary, "" if is_udp else None)) as dros:
        capture = net.start_capture(dros.host.namespace, "lo", "lo", "")
        with flowing(dros) as flows:
            flows.until(lambda: [row["state"] for row in peers(dros, flows, "A").values()] == ["up", "up"])
            if is_udp:
                ends = ("A", "B"), ("B", "A")
                matches = [f"udp dport {dros.plan.udp_port(*one)}" for one in ends]
            else:
                port = dros.plan.link_port("A", "B")
                matches = [f"tcp {way} {port} ip length > 700" for way in ("sport", "dport")]
            with dropped(dros, *matches):
                for line in (DEGRADED, "LINK WENT DOWN"):
                    flows.until(lambda line=line: all(line in dros.processes[name].stdout for name in "AB"))  # type: ignore[misc]
                flows.again()
                row = peers(dros, flows, "A")["A-B"]
                assert (row["state"], row["error"]) == ("degraded", "no canary is answered")
            flows.until(lambda: peers(dros, flows, "A")["A-B"]["state"] == "up")
            flows.again()
        first = dros.plan.udp_port("B", "A") if is_udp else 1
        rules = [*dros.decoding(), ports("udp", first, "lbtru", first + 5)]
        verdict = judge(capture.stop(), rules, allow=REPEATED)
    least = {"lbtrm.data": 500, "lbtru.data": 500} if is_udp else {"lbtrm.data": 500, "lbttcp": 500}
    verdict.assert_clean(least)
