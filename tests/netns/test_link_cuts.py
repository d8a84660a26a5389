"""A link between two DROs is cut at random, in many ways, and is back within keepalive timeout and one retry."""

from __future__ import annotations

import os
import random
import re
import signal
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.rigs.netns.examples import LINKS, Example, Flow, Network, network_of
from tests.rigs.netns.harness import Host, Net
from tests.rigs.netns.judged import Watch
from tests.rigs.netns.namespace import command, ip
from tests.rigs.network import QUICK

pytestmark = [pytest.mark.netns, pytest.mark.tshark, pytest.mark.slow]

Judged = Callable[..., AbstractContextManager[Watch]]
CUTS: Final = int(os.environ.get("DRO_CUTS", "7"))
SEED: Final = int(os.environ.get("DRO_SEED", "1"))
INTERVAL_MS, TIMEOUT_MS, RETRY_MS = 300, 900, 400
KEEPALIVE: Final = f'<gateway-keepalive idle="yes" interval="{INTERVAL_MS}" timeout="{TIMEOUT_MS}"/>'
ROUTES_MS: Final = 1500
"""Until data flows on a link that is up: recalculation at both ends, interest and proxies, on a busy machine."""
REPEATED: Final = ("D-SACK Sequence",)
"""What TCP says about segments that came twice, as those do that are kept from one direction."""
NAME: Final = "companion.test"
SENDING_NS: Final = 10_000_000
RESET: Final = "tcp flags & rst == 0 reject with tcp reset"  # but let resets pass
RULES: Final = {
    "reset": ("input", RESET, "output", RESET),
    "black hole": ("input", "drop", "output", "drop"),
    "one direction in": ("input", "drop"),
    "one direction out": ("output", "drop"),
}


def quick(name: str, folder: Path) -> Example:
    """With timers that are short enough for many cuts."""
    example = Example(name, folder, QUICK)
    for dro in example.dros.values():
        path = example.folder / dro["config"]
        text = path.read_text().replace("</peer>", f"{KEEPALIVE}</peer>")
        path.write_text(re.sub(r'reconnect-interval="\d+"', f'reconnect-interval="{RETRY_MS}"', text))
    return example


@contextmanager
def ruled(host: Host, port: int, *rules: str) -> Iterator[None]:
    """What a host does to the packets of a connection; pairs of a hook and a verdict."""
    lines = ["add table ip cut"]
    for hook, verdict in zip(rules[::2], rules[1::2], strict=True):
        lines.append(f"add chain ip cut {hook} {{ type filter hook {hook} priority 0; }}")
        lines += [f"add rule ip cut {hook} tcp {way} {port} {verdict}" for way in ("sport", "dport")]
    nft = ["ip", "netns", "exec", host.namespace, "nft"]
    command([*nft, "-f", "-"], "\n".join(lines) + "\n")
    try:
        yield
    finally:
        command([*nft, "delete", "table", "ip", "cut"])


@contextmanager
def without_address(host: Host, address: str = "") -> Iterator[None]:
    """A host that has no address on the link."""
    address = address or str(host.interfaces[LINKS])
    ip(f"address del {address} dev {LINKS}", namespace=host.namespace)
    try:
        yield
    finally:
        ip(f"address add {address} brd + dev {LINKS}", namespace=host.namespace)


class Companion:
    """G2 by its name, which G1 looks up in a file of its own. G2 listens on all its addresses; it moves between two."""

    def __init__(self, network: Network, folder: Path) -> None:
        self._network = network
        self.names = folder / "hosts"
        self._host = network.hosts["G2"]
        interface = self._host.interfaces[LINKS]
        self.interface, self._other = str(interface), f"{interface.ip + 100}/{interface.network.prefixlen}"
        self.config = network.example.folder / network.example.dros["G1"]["config"]
        text = self.config.read_text()
        self.config.write_text(text.replace(f"<address>{interface.ip}", f"<address>{NAME}"))
        there = network.example.folder / network.example.dros["G2"]["config"]
        there.write_text(there.read_text().replace(f"<interface>{interface.ip}", "<interface>0.0.0.0"))
        self.call(self.interface)

    def call(self, interface: str) -> None:
        """From now on the name means this address."""
        self.names.write_text(f"{interface.partition('/')[0]} {NAME}\n")

    def start(self) -> None:
        """G1."""
        run = f"mount --bind {self.names} /etc/hosts && exec {sys.executable} -u -m supervisor.main {self.config}"
        self._network.processes["G1"] = self._network.hosts["G1"].start(["unshare", "--mount", "sh", "-c", run], "G1")

    @contextmanager
    def moved(self) -> Iterator[None]:
        """It has another address, which it is called by in the end."""
        self.interface, self._other = self._other, self.interface
        ip(
            f"address del {self._other} dev {LINKS}", f"address add {self.interface} brd + dev {LINKS}",
            namespace=self._host.namespace,
        )  # fmt: skip
        yield
        self.call(self.interface)


@contextmanager
def frozen(network: Network, name: str) -> Iterator[None]:
    """All processes of a DRO."""
    pid = network.processes[name].pid
    os.killpg(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(pid, signal.SIGCONT)


class Traffic:
    """Both ways, all the time."""

    def __init__(self, network: Network) -> None:
        self._network = network
        ends = {domain: network.station(domain) for domain in network.example.domains}
        one, other = ends
        ends[other].context.want_topic(b"there")
        ends[one].context.want_topic(b"back")
        self.flows = [Flow(b"there", ends[one], [ends[other]]), Flow(b"back", ends[other], [ends[one]])]

    def until(self, holds: Callable[[], bool]) -> None:
        def look() -> bool:
            for flow in self.flows:
                flow.go_on(SENDING_NS)
            return holds()

        self._network.until(look)

    def run(self, ms: float) -> None:
        end_ns = self._network.loop.now_ns() + int(ms * 1e6)
        self.until(lambda: self._network.loop.now_ns() >= end_ns)

    def back_ms(self) -> float:
        """Time until something that is sent from now on has come, both ways."""
        began_ns = self._network.loop.now_ns()
        edges = [flow.sent for flow in self.flows]
        self.until(lambda: all(flow.flows(edge, 1) for flow, edge in zip(self.flows, edges, strict=True)))
        return (self._network.loop.now_ns() - began_ns) / 1e6


def cut_of(kind: str, network: Network, name: str, port: int, companion: Companion) -> AbstractContextManager[None]:
    host = network.hosts[name]
    if kind == "frozen":
        return frozen(network, name)
    if kind == "moved":
        return companion.moved()
    if kind == "no address":
        return without_address(host, companion.interface if name == "G2" else "")
    return ruled(host, port, *RULES[kind])


def test_a_link_that_is_cut_is_back_in_time(net: Net, judged: Judged, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    example = quick("peer-link", tmp_path)
    port = int(example.links[0]["tcp"].rpartition(":")[2])
    kinds = [*RULES, "frozen", "no address", "moved"]
    took: dict[str, list[float]] = defaultdict(list)
    net.capture_mib = 64
    capturing = judged(*example.networks(), decode_as=example.decoding(), allow=REPEATED)
    with network_of(net, example) as network, capturing:
        companion = Companion(network, tmp_path)
        network.start("G2")
        companion.start()
        traffic = Traffic(network)
        traffic.until(lambda: all(flow.is_heard for flow in traffic.flows))
        for nth in range(CUTS):
            kind, name = kinds[nth % len(kinds)], rng.choice(list(example.dros))
            with cut_of(kind, network, name, port, companion):
                traffic.run(rng.uniform(0, 2 * TIMEOUT_MS))
            took[kind].append(ms := traffic.back_ms())
            assert ms <= TIMEOUT_MS + RETRY_MS + ROUTES_MS, f"{nth}: {kind} at {name}: back after {ms:.0f} ms"
        for kind, times in took.items():
            median, longest = statistics.median(times), max(times)
            print(f"{kind}: {len(times)} cuts, back after {median:.0f} ms (median), {longest:.0f} ms (longest)")
        assert not [fault for flow in traffic.flows for fault in flow.faults(gaps=True)]
        network.close()
        network.stop()


@pytest.mark.parametrize("name", ["G1", "G2"])
def test_an_address_that_goes_and_comes_back(net: Net, judged: Judged, tmp_path: Path, name: str) -> None:
    """Of the end that connects, and of the end that listens."""
    example = quick("peer-link", tmp_path)
    capturing = judged(*example.networks(), decode_as=example.decoding(), allow=REPEATED)
    with network_of(net, example) as network, capturing:
        network.start()
        traffic = Traffic(network)
        traffic.until(lambda: all(flow.is_heard for flow in traffic.flows))
        with without_address(network.hosts[name]):
            traffic.until(lambda: all("WENT DOWN" in process.stdout for process in network.processes.values()))
            traffic.run(2 * RETRY_MS)
        assert traffic.back_ms() <= TIMEOUT_MS + RETRY_MS + ROUTES_MS
        network.close()
        network.stop()


@pytest.mark.parametrize(
    ("name", "waits_for"),
    [("G1", "no connection to the companion .*interface={} "), ("G2", "cannot listen for the companion.*address={}:")],
    ids=["initiator", "acceptor"],
)
def test_an_address_that_comes_after_the_start(
    net: Net, judged: Judged, tmp_path: Path, name: str, waits_for: str
) -> None:
    """Of the end that connects, and of the end that listens: its DRO starts, and says what is not there."""
    example = quick("peer-link", tmp_path)
    with network_of(net, example) as network, judged(*example.networks(), decode_as=example.decoding()):
        host = network.hosts[name]
        with without_address(host):
            network.start()
            traffic = Traffic(network)
            line = re.compile(waits_for.format(re.escape(host.address(LINKS))))
            traffic.until(lambda: line.search(network.processes[name].stdout) is not None)
            traffic.run(2 * RETRY_MS)
        ms = traffic.back_ms()
        assert ms <= TIMEOUT_MS + RETRY_MS + ROUTES_MS, f"back after {ms:.0f} ms"
        assert "is waited for" in network.processes[name].stdout
        network.close()
        network.stop()


def test_a_name_that_changes(net: Net, judged: Judged, tmp_path: Path) -> None:
    """It leads to another host first, and then, while the link is up, to an address that the companion has left for
    another one. It is looked up again at each attempt."""
    example = quick("peer-link", tmp_path)
    with network_of(net, example) as network, judged(*example.networks(), decode_as=example.decoding()):
        companion = Companion(network, tmp_path)
        companion.call(network.hosts["G1"].address(LINKS))
        network.start("G2")
        companion.start()
        traffic = Traffic(network)
        traffic.until(lambda: "no connection to the companion" in network.processes["G1"].stdout)
        companion.call(companion.interface)
        assert traffic.back_ms() <= TIMEOUT_MS + RETRY_MS + ROUTES_MS
        with companion.moved():
            traffic.until(lambda: "WENT DOWN" in network.processes["G1"].stdout)
        assert traffic.back_ms() <= TIMEOUT_MS + RETRY_MS + ROUTES_MS
        network.close()
        network.stop()
