"""The set-up of docs/cloud.md, with the files of `deploy/cloud`, and the demonstration of it: no multicast is used."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.rigs.netns.capture import judge, ports
from tests.rigs.netns.harness import Host, Net
from tests.rigs.netns.judged import Watch
from tests.rigs.netns.process import Process
from tests.rigs.netns.resolvers import SRS_RULE
from tests.rigs.waiting import wait_until

pytestmark = [pytest.mark.netns, pytest.mark.tshark]

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "deploy/cloud"
NETWORK: Final = "vpc"
ALL_SYSTEMS: Final = "010000E0"  # 224.0.0.1, which the kernel itself is in
LIMIT_S: Final = 60.0
PORTS: Final = (
    ports("udp", 15382, "lbmr"), ports("tcp", 14420, "lbttcp", 14439), ports("tcp", 26123, "lbttcp"), SRS_RULE,
)  # fmt: skip
REPEATED: Final = ("D-SACK Sequence",)
Judged = Callable[..., AbstractContextManager[Watch]]
DROP: Final = """
table ip no_multicast {
    chain out { type filter hook output priority 0; ip daddr 224.0.0.0/4 drop; }
    chain in { type filter hook input priority 0; ip daddr 224.0.0.0/4 drop; }
}
"""


def lines_of_the_page() -> list[str]:
    """Commands of the page that start daemons, as they stand there."""
    text = (ROOT / "docs/cloud.md").read_text()
    return re.findall(r"^(?:lbmrd|umsrs|tnwgd|lbmsrc|lbmrcv) .*$", text, re.MULTILINE)


def groups_of(host: Host) -> set[str]:
    """Multicast groups that somebody on the host has joined, as the kernel writes them."""
    return set(re.findall(r"^\t+([0-9A-F]{8})", host.run(["cat", "/proc/net/igmp"]).stdout, re.MULTILINE))


def start(host: Host, line: str) -> Process:
    """Run a command of the page on one of its hosts."""
    program, *words = line.removesuffix(" &").split()
    entry = {"tnwgd": "supervisor.main", "lbmrd": "supervisor.resolvers.lbmrd", "umsrs": "supervisor.resolvers.umsrs"}
    module = entry.get(program, "")
    run = ["-m", module] if module else ["-c", f"from dro.tools.entry import {program} as tool; tool()"]
    return host.start_python(*run, *words, name=program, cwd=FOLDER / host.name[0])


@contextmanager
def without_multicast(host: Host, by: str) -> Iterator[None]:
    """Have a host whose device has no multicast, or whose filter drops it; nothing may be sent to a group."""
    host.run(["ip", "route", "del", "224.0.0.0/4"])
    if by == "filter":
        host.run(["nft", DROP])
    else:
        host.run(["ip", "link", "set", NETWORK, "multicast", "off"])
    capture = host.capture(NETWORK, "ip multicast")
    yield
    assert groups_of(host) == {ALL_SYSTEMS}
    assert not judge(capture.stop()).frames


@pytest.mark.slow
@pytest.mark.parametrize("by", ["device", "filter"])
def test_the_hosts_of_the_page_need_no_multicast(net: Net, judged: Judged, by: str) -> None:
    """Files and commands are those of the page; messages go both ways."""
    addresses = {"a": "10.10.1.10/8", "b": "10.20.1.10/8", "a-app": "10.10.1.20/8", "b-app": "10.20.1.20/8"}
    hosts = {name: net.host(name, {NETWORK: address}) for name, address in addresses.items()}
    a, b = hosts["a"], hosts["b"]
    lines = lines_of_the_page()
    of = {name: [line for line in lines if line.startswith(name)] for name in ("lbmrd", "umsrs", "tnwgd")}
    assert {name: len(found) for name, found in of.items()} == {"lbmrd": 2, "umsrs": 1, "tnwgd": 2}
    (sends, back) = (line for line in lines if line.startswith("lbmsrc"))
    (hears, heard_back) = (line for line in lines if line.startswith("lbmrcv"))
    wire = judged(NETWORK, allow=REPEATED, decode_as=PORTS, minimum={NETWORK: {"lbmr": 4, "lbmsrs": 4, "lbmc": 20}})
    with without_multicast(a, by), without_multicast(b, by), wire:
        daemons = [start(a, line) for line in of["lbmrd"]] + [start(b, line) for line in of["umsrs"]]
        dros = [start(host, line) for host, line in zip((a, b), of["tnwgd"], strict=True)]
        receivers = [start(hosts["b-app"], hears), start(hosts["a-app"], heard_back)]
        sources = [start(hosts["a-app"], sends), start(hosts["b-app"], back)]
        for receiver in receivers:
            receiver.wait_output(r"source found", LIMIT_S)
            assert receiver.wait(LIMIT_S) == 0
            assert re.search(r"received 5 messages, .* lost 0, bursts 0, bad 0", receiver.stdout)
        errors = [line for dro in dros for line in dro.stdout.splitlines() if "[error]" in line]
        assert [line for line in errors if "process=A-B" not in line] == [], "A may start first, and say so"
        for process in (*sources, *dros, *daemons):
            process.stop()
        assert [process.returncode for process in (*dros, *daemons)] == [0] * 5


@pytest.mark.slow
def test_the_demonstration_joins_no_group(net: Net) -> None:
    host = net.host("demo", {NETWORK: "10.10.1.10/8"})
    capture = host.capture("lo", "ip multicast")
    demo = host.start_python("-m", "supervisor.tools.demo.main", "--cloud", "--seconds", "5")
    (address,) = {demo.wait_output(r"metrics of umsrs: (http://[\d.:]+)/metrics", LIMIT_S)[1]}
    demo.wait_output(r"sent \d{3,}  TRD 2 received \d{2,}", LIMIT_S)
    assert groups_of(host) == {ALL_SYSTEMS}
    program = f"import urllib.request as r; print(r.urlopen({address!r}).read().decode())"
    assert "umsrs_clients 2.0" in host.run([sys.executable, "-c", program]).stdout
    assert demo.wait(LIMIT_S) == 0, demo.stdout
    assert ", lost 0, duplicates 0, repaired 0" in demo.stdout
    assert not judge(capture.stop()).frames
    wait_until(lambda: not host.pids(), "the end of all daemons", 5)
