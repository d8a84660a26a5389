"""A peer link with `<udp>` through a NAT that hides the initiator and gives its packets other source ports."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import pytest

from tests.netns.test_udp_links import Readable, linked, trds_of, udp_port, until_heard, until_sent
from tests.rigs.netns.capture import judge
from tests.rigs.netns.examples import LINKS, network_of
from tests.rigs.netns.harness import Net
from tests.rigs.netns.judged import Watch
from tests.rigs.netns.namespace import command, ip
from tests.rigs.waiting import wait_until

pytestmark = [pytest.mark.netns, pytest.mark.tshark, pytest.mark.slow]

Judged = Callable[..., AbstractContextManager[Watch]]
OUTSIDE: Final = "10.127.3.99"
COUNT: Final = 300
RULES: Final = """add table ip nat
add chain ip nat prerouting {{ type nat hook prerouting priority dstnat; }}
add chain ip nat postrouting {{ type nat hook postrouting priority srcnat; }}
add rule ip nat prerouting ip daddr {outside} udp dport {port} dnat to {inside}
add rule ip nat postrouting oifname {links} ip protocol udp counter snat to {outside}:40000-50000
add rule ip nat postrouting oifname {links} ip protocol tcp snat to {outside}
add table ip early
add chain ip early prerouting {{ type filter hook prerouting priority raw; }}
add rule ip early prerouting ip daddr {outside} udp dport {port} drop
"""
"""Until the initiator has sent, nothing gets in: else its packets would be answers, which keep their port."""


def test_a_udp_link_crosses_a_nat_that_changes_source_ports(net: Net, judged: Judged, tmp_path: Path) -> None:
    """The UDP port of the initiator is forwarded to it, as guide 4.6.2 has it; the acceptor sees the NAT alone."""
    example = linked(tmp_path, {"G1": "", "G2": ""})
    with network_of(net, example) as network, judged(*trds_of(example), decode_as=example.decoding()):
        hidden, acceptor = network.hosts["G1"], network.hosts["G2"]
        ip(f"address add {OUTSIDE}/16 dev {LINKS}", namespace=hidden.namespace)
        values = {"outside": OUTSIDE, "inside": hidden.address(LINKS), "port": udp_port(example, "G1"), "links": LINKS}
        nft = ["ip", "netns", "exec", hidden.namespace, "nft"]
        command([*nft, "-f", "-"], RULES.format(**values))
        capture = acceptor.capture(LINKS)
        network.start()
        rules = [*nft, "list", "chain", "ip", "nat", "postrouting"]
        wait_until(lambda: re.search(r"counter packets [1-9]", command(rules)), "a datagram of the initiator", 30)
        command([*nft, "delete", "table", "ip", "early"])
        receivers = {domain: network.receivers(domain, [f"to {domain}"], [])[0] for domain in (1, 2)}
        flows = [Readable(b"to %d" % to, network.station(3 - to), [heard]) for to, heard in receivers.items()]
        network.until_known()
        until_heard(network, flows)
        until_sent(network, flows, COUNT)
        for flow, heard in zip(flows, receivers.values(), strict=True):
            got = heard.got[flow.topic]
            assert got == list(range(got[0], COUNT))
        assert f"peer={OUTSIDE}:" in network.processes["G2"].stdout
        network.close()
        network.stop()
        path = capture.stop()
    judge(path, example.decoding()).assert_clean({"lbtru.data": COUNT})
    shown = command(["tshark", "-r", str(path), "-Y", "udp", "-T", "fields", "-e", "ip.src", "-e", "udp.srcport"])
    sent = {tuple(line.split()) for line in shown.splitlines()}
    assert not [address for address, _ in sent if address == hidden.address(LINKS)]
    assert [port for address, port in sent if address == OUTSIDE and 40000 <= int(port) <= 50000]
