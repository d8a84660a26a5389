"""Address translation by `lbmrd`: a TRD on both sides of a NAT, with applications and a DRO.

Hosts of neither network have a route to the other one: each knows those of the other network by addresses that the NAT
has in its own. Source: guide 4.6; feature table.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import pytest

from tests.rigs.netns.app import App, Board, assert_same, wait_delivered
from tests.rigs.netns.harness import Host, Net
from tests.rigs.netns.judged import Watch
from tests.rigs.netns.namespace import command, inside, ip
from tests.rigs.netns.resolvers import OPTIONS, Resolver, Unheard
from tests.rigs.netns.topology import running_dro, write_um

pytestmark = [pytest.mark.netns, pytest.mark.tshark]

Judged = Callable[..., AbstractContextManager[Watch]]
APPLICATION, DRO, OUTER = "10.1.0.15", "10.1.0.9", "10.2.0.5"
SEEN: Final = {APPLICATION: "10.2.0.126", DRO: "10.2.0.127", OUTER: "10.1.0.126"}
"""Each host, and the address that it has in the other network."""
INNER_DOOR: Final = "10.1.0.1"
"""Where contexts of the inner network find the daemon."""
COUNT: Final = 500
RULES: Final = """
table ip nat {{
    chain prerouting {{
        type nat hook prerouting priority dstnat;
        ip daddr {seen_application} dnat to {application}
        ip daddr {seen_dro} dnat to {dro}
        ip daddr {seen_outer} dnat to {outer}
        ip daddr {door} udp dport 15380 dnat to {daemon}
    }}
    chain postrouting {{
        type nat hook postrouting priority srcnat;
        oifname trd2 ip saddr {application} snat to {seen_application}
        oifname trd2 ip saddr {dro} snat to {seen_dro}
        oifname trd1 ip saddr {outer} snat to {seen_outer}
    }}
}}
"""
RULE: Final = '<rule><match address="{}" port="*"/><replace address="{}" port="*"/></rule>'
FILE: Final = """<?xml version="1.0"?>
<lbmrd version="1.0">
  <domains>
    <domain name="inside">{inside}</domain>
    <domain name="outside"><network>10.2.0.0/24</network></domain>
  </domains>
  <transformations>
    <transform source="inside" destination="outside">{out}</transform>
    <transform source="outside" destination="inside">{back}</transform>
  </transformations>
</lbmrd>
"""


def nat_host(net: Net, daemon: str) -> Host:
    """The NAT between the networks trd1 and trd2, with the way to the daemon."""
    host = net.host("nat", {"trd1": f"{INNER_DOOR}/24", "trd2": "10.2.0.1/24"})
    ip(f"address add {SEEN[OUTER]}/24 dev trd1", namespace=host.namespace)
    for one in (APPLICATION, DRO):
        ip(f"address add {SEEN[one]}/24 dev trd2", namespace=host.namespace)
    with inside(host.namespace):
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    rules = RULES.format(
        application=APPLICATION, dro=DRO, outer=OUTER, seen_application=SEEN[APPLICATION], seen_dro=SEEN[DRO],
        seen_outer=SEEN[OUTER], door=INNER_DOOR, daemon=daemon,
    )  # fmt: skip
    command(["ip", "netns", "exec", host.namespace, "nft", "-f", "-"], rules)
    return host


def write_lbmrd(folder: Path, networks: tuple[str, ...]) -> Path:
    """The daemon's file; datagrams of the inner network come from these."""
    path = folder / "lbmrd.xml"
    path.write_text(FILE.format(
        inside="".join(f"<network>{network}</network>" for network in networks),
        out="".join(RULE.format(one, SEEN[one]) for one in (APPLICATION, DRO)),
        back=RULE.format(OUTER, SEEN[OUTER]),
    ))  # fmt: skip
    return path


def advertised(capture: Path, to: str) -> Counter[str]:
    """Addresses of sources in what the daemon has sent to a host, as tshark reads it."""
    shown = f"udp.srcport==15380 && ip.dst=={to} && lbmr.tir.tcp.ip"
    argv = ["tshark", "-n", "-r", str(capture), "-d", "udp.port==15380,lbmr", "-Y", shown, "-T", "fields"]
    argv += ["-E", "occurrence=a", "-E", "aggregator= ", "-e", "lbmr.tir.tcp.ip"]
    return Counter(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize("place", ["on the NAT", "outside"])
def test_sources_on_both_sides_of_a_nat_are_received_on_the_other(net: Net, judged: Judged, place: str) -> None:
    """Of applications, and by a DRO in the inner network, whose other TRD is behind it."""
    with judged("trd1", "trd2", "trd3") as watch:
        daemon = "10.2.0.1" if place == "on the NAT" else "10.2.0.20"
        nat = nat_host(net, daemon)
        if place == "on the NAT":  # it sees the hosts of the inner network as they are
            Resolver(nat, "lbmrd", daemon, (str(write_lbmrd(net.folder, ("10.1.0.0/24",))),))
        else:  # it sees them as all others do in its network
            seen = tuple(f"{SEEN[one]}/32" for one in (APPLICATION, DRO))
            host = net.host("daemon", {"trd2": f"{daemon}/24"})
            Resolver(host, "lbmrd", daemon, (str(write_lbmrd(net.folder, seen)),))
        option = OPTIONS["lbmrd"].format
        inner, outer = option(entry=f"{INNER_DOOR}:15380"), option(entry=f"{daemon}:15380")
        um = {1: f"{inner}context request_tcp_interface 10.1.0.0/24\n"}
        with running_dro(net, {1: "tcp", 3: "lbtrm"}, um=um) as dro:
            configs = dro.configs | {2: write_um(net.folder, 2, "tcp", outer)}
            board = Board()
            apps: dict[str, App] = {}
            for name, trd, address in (("inner", 1, APPLICATION), ("outer", 2, OUTER), ("behind", 3, "10.3.0.1")):
                host = net.host(name, {f"trd{trd}": f"{address}/24"})
                if trd != 3:
                    Unheard(host)
                apps[name] = App(host, configs[trd], board, name)
            Unheard(dro.host, "trd1")
            flows = [("inner", "outer"), ("outer", "inner"), ("behind", "outer"), ("outer", "behind")]
            for cell, (sender, receiver) in enumerate(flows):
                topic = f"{sender} to {receiver}"
                apps[receiver].receive(topic.encode(), cell=cell)
                apps[sender].open(topic, topic.encode())
            for cell, (sender, receiver) in enumerate(flows):
                topic = f"{sender} to {receiver}"
                apps[receiver].wait_heard(topic.encode())
                apps[sender].send(topic, COUNT, seed=cell, sizes=(1, 3000), cells=(cell,))
            wait_delivered(board, dict.fromkeys(range(len(flows)), COUNT))
            sources = {}
            for sender, receiver in flows:
                topic = f"{sender} to {receiver}"
                (heard,) = apps[receiver].report().of_topic(topic.encode())
                assert_same(heard, apps[sender].report().sent[topic])
                (sources[topic],) = heard.sources
            for topic, address in (
                ("inner to outer", SEEN[APPLICATION]), ("outer to inner", SEEN[OUTER]), ("behind to outer", SEEN[DRO])
            ):  # fmt: skip
                assert sources[topic].startswith(f"TCP:{address}:")
            dro.wait_balanced()
            for app in apps.values():
                app.end()
    assert set(advertised(watch.paths["trd2"], OUTER)) == {SEEN[APPLICATION], SEEN[DRO]}
    assert set(advertised(watch.paths["trd1"], APPLICATION)) == {SEEN[OUTER], DRO}
