"""Topic resolution without multicast on hosts of a `Net`: daemons of it, options that name them, and a rule.

    daemons = Resolvers(net, 1, "lbmrd", 2)        # two of them, on a host in TRD 1
    with running_dro(net, {1: "tcp", 2: "tcp"}, um={1: daemons.options, ...}):
        daemons[0].kill()
        daemons[0].start()

The daemons of a TRD are on one host, each at an address of its own and UM's default port. `Unheard` drops all multicast
of a host, in and out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from tests.rigs.netns.capture import ports
from tests.rigs.netns.harness import MULTICAST, Host, Net
from tests.rigs.netns.namespace import command, ip
from tests.rigs.netns.process import Process
from tests.rigs.netns.topology import address_in, trd_name

RESOLVER_HOST: Final = 20
"""The first daemon of a TRD; the others follow."""
PORTS: Final = {"lbmrd": 15380, "umsrs": 27000}
SRS_RULE: Final = ports("tcp", PORTS["umsrs"], "lbmsrs")
OPTIONS: Final = {
    "lbmrd": "context resolver_unicast_daemon {entry}\n",
    "umsrs": "context resolver_service {entry}\ncontext resolver_disable_udp_topic_resolution 1\n",
}
START_S: Final = 10.0


class Resolver:
    """One daemon at one address; runs from its making."""

    def __init__(self, host: Host, program: str, address: str, arguments: tuple[str, ...]) -> None:
        self.host, self.program, self.address = host, program, address
        self._arguments = arguments
        self.start()

    def start(self) -> None:
        """Returns when it runs."""
        module = f"supervisor.resolvers.{self.program}"
        self.process: Process = self.host.start_python("-m", module, "-i", self.address, *self._arguments)
        self.process.wait_output(r"daemon runs", START_S)

    def kill(self) -> None:
        """As SIGKILL does."""
        self.process.kill()


class Resolvers:
    """The daemons of one TRD."""

    def __init__(self, net: Net, trd: int, program: str, count: int = 1, *arguments: str) -> None:
        """Starts them. `program`: `lbmrd` or `umsrs`, with these arguments besides its address."""
        addresses = [address_in(trd, RESOLVER_HOST + n) for n in range(count)]
        self.host = net.host(f"res{trd}", {trd_name(trd): f"{addresses[0]}/24"})
        for address in addresses[1:]:
            ip(f"address add {address}/24 dev {trd_name(trd)}", namespace=self.host.namespace)
        self.daemons = [Resolver(self.host, program, address, arguments) for address in addresses]
        option = OPTIONS[program]
        self.options = "".join(option.format(entry=f"{address}:{PORTS[program]}") for address in addresses)
        """UM options of contexts in the TRD."""

    def __getitem__(self, number: int) -> Resolver:
        return self.daemons[number]

    def kill(self) -> None:
        """All of them."""
        for daemon in self.daemons:
            daemon.kill()


class Unheard:
    """A rule by which a host neither sends nor takes multicast, with counters of what it drops."""

    def __init__(self, host: Host, device: str = "") -> None:
        """`device`: of this TRD alone."""
        self._nft = ["ip", "netns", "exec", host.namespace, "nft"]
        chains = ""
        for way, key in (("input", "iifname"), ("output", "oifname")):
            match = f"ip daddr {MULTICAST}" + (f" {key} {device}" if device else "")
            chains += f"""
                counter {way} {{ }}
                chain {way} {{
                    type filter hook {way} priority -20; policy accept;
                    {match} meta l4proto != igmp counter name {way} drop
                    {match} drop
                }}"""
        command([*self._nft, "-f", "-"], f"table inet unheard {{{chains}\n}}\n")

    def dropped(self, way: str) -> int:
        """How many datagrams, `input` or `output`; what the kernel says of its memberships is not counted."""
        listing = json.loads(command([*self._nft, "-j", "list", "counter", "inet", "unheard", way]))
        return next(int(one["counter"]["packets"]) for one in listing["nftables"] if "counter" in one)

    def remove(self) -> None:
        command([*self._nft, "delete", "table", "inet", "unheard"])


def write_srs(folder: Path, elements: str) -> Path:
    """A file of `umsrs` with these elements in `<srs>`."""
    path = folder / "srs.xml"
    path.write_text(f'<?xml version="1.0"?>\n<um-srs version="1.0"><srs>{elements}</srs></um-srs>\n')
    return path
