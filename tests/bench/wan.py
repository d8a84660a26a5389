"""A peer link over a wire with a long way and losses: TCP beside UDP, in the same run. Root only.

`python -m tests.bench.wan`: two real `tnwgd` on hosts of their own (`peer-link-udp` of the example networks); the wire
between them takes half of `--rtt` each way and loses packets both ways. Messages of many topics are sent at a fixed
rate; what arrived of those that were sent in the time measured also counts late ones, messages per second do not.
Latency: from the send of a message to its arrival in the other TRD, of those that arrived. Prints all and the ratios,
and writes JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from ipaddress import IPv4Interface
from pathlib import Path
from statistics import quantiles
from typing import Final

from dro.transport.runs import Run
from dro.transport.session import ReceiverTransport
from dro.wire.lbmc import message as lbmc
from tests.rigs.netns.examples import LINKS, Example, Network, Station, network_of
from tests.rigs.netns.harness import Net
from tests.rigs.netns.namespace import ip
from tests.rigs.netns.relay import Link
from tests.rigs.network import QUICK

EXAMPLE: Final = "peer-link-udp"
DRAIN_S: Final = 5.0
UDP_RATE: Final = '<peer-rate-limit data="1000000000" retransmit="500000000" interval="10"/>'


@dataclass(frozen=True, slots=True)
class Figures:
    """Rates in messages per second, latencies in ms."""

    kind: str
    loss: float
    sent: int
    delivered: int
    delivered_per_s: float
    p50_ms: float
    p99_ms: float
    p999_ms: float


class Timed(Station):
    """Notes when each message came."""

    def __init__(self, network: Network, domain: int) -> None:
        super().__init__(network, domain)
        self.at_ns: dict[tuple[bytes, int], int] = {}

    def on_runs(self, transport: ReceiverTransport, view: memoryview, runs: list[Run], now_ns: int) -> None:
        super().on_runs(transport, view, runs, now_ns)
        for topic, sqns in self.got.items():
            for sqn in sqns:
                self.at_ns.setdefault((topic, sqn), now_ns)
            sqns.clear()


def example_of(folder: Path, *, has_udp: bool) -> Example:
    """Smart batches at once; without <udp>, or with one that is not the limit."""
    example = Example(EXAMPLE, folder, QUICK)
    for dro in example.dros.values():
        path = example.folder / dro["config"]
        text = path.read_text()
        begin, end = text.index("<udp>"), text.index("</udp>") + len("</udp>")
        udp = text[begin:end].replace("</udp>", f"{UDP_RATE}</udp>") if has_udp else ""
        path.write_text(f"{text[:begin]}{udp}<smart-batch>1</smart-batch>{text[end:]}")
    return example


def measure(folder: Path, kind: str, loss: float, arguments: argparse.Namespace) -> Figures:
    example = example_of(folder, has_udp=kind == "UDP")
    topics, rate, size, seconds = arguments.topics, arguments.rate, arguments.size, arguments.seconds
    wire = Link(delay_ms=arguments.rtt / 2, loss=loss / 100)
    with Net(folder) as net, network_of(net, example, wire) as network:
        for dro in example.dros:
            own = IPv4Interface(network.hosts[dro].interfaces[LINKS])
            route = f"route replace {own.network} dev {LINKS} src {own.ip} congctl {arguments.congestion}"
            ip(route, namespace=network.hosts[dro].namespace)
        network.start()
        sender, receiver = network.station(1), Timed(network, 2)
        network.stations.append(receiver)
        names = [b"wan.%d" % nth for nth in range(topics)]
        for name in names:
            receiver.context.want_topic(name)
        sources = [sender.context.open_source(name) for name in names]
        loop, left_ns = network.loop, list[int]()

        def send() -> None:
            """Of the topics in turn."""
            sqn, nth = divmod(len(left_ns), topics)
            source = sources[nth]
            header = lbmc.HEADER.pack(0, 0, lbmc.HEADER.size + size, source.topic_index, sqn)
            if source.transport.send_message(header + bytes(size), loop.now_ns()):
                left_ns.append(loop.now_ns())

        def run(duration_s: float, per_s: int) -> None:
            """Messages at that rate, some of them late when this process is."""
            begin_ns, count = loop.now_ns(), 0
            while (passed_ns := loop.now_ns() - begin_ns) < duration_s * 1e9:
                while count < passed_ns * per_s // 1_000_000_000:
                    send()
                    count += 1
                loop.run_once(1_000_000)

        while len({name for name, _ in receiver.at_ns}) < topics:
            run(0.1, 500)
        run(1, rate)
        first = len(left_ns)
        run(seconds, rate)
        last = len(left_ns)
        end_ns = loop.now_ns()
        run(DRAIN_S, 50)
        at_ns = [receiver.at_ns.get((names[n % topics], n // topics), 0) for n in range(first, last)]
        came = {n: at for n, at in enumerate(at_ns, first) if at}
        in_time = sum(at < end_ns for at in came.values())
        network.stop()
    cuts = quantiles([(at - left_ns[n]) / 1e6 for n, at in came.items()], n=1000)
    p50, p99, p999 = (round(cuts[nth], 1) for nth in (499, 989, 998))
    return Figures(kind, loss, last - first, len(came), round(in_time / seconds, 1), p50, p99, p999)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="wan", description=__doc__.split("\n")[0])
    parser.add_argument("--loss", type=float, nargs="+", default=[0.1, 0.5, 1.0], help="%% of packets, each way")
    parser.add_argument("--rtt", type=float, default=50.0, help="ms (default 50)")
    parser.add_argument("--topics", type=int, default=100, help="default 100")
    parser.add_argument("--rate", type=int, default=1500, help="messages per second (default 1500)")
    parser.add_argument("--congestion", default="cubic", help="congestion control of TCP (default cubic)")
    parser.add_argument("--size", type=int, default=1000, help="payload bytes (default 1000)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement (default 20)")
    parser.add_argument("--json", type=Path, default=Path("build/wan.json"), help="where the figures go")
    arguments = parser.parse_args(words)
    logging.disable()  # of options that have no effect yet
    found = []
    print(
        f"{'loss %':>7} {'link':>5} {'sent':>7} {'arrived':>8} {'per s':>8} {'p50 ms':>8} {'p99 ms':>8} {'p99.9 ms':>9}"
    )
    for loss in arguments.loss:
        pair = []
        for kind in ("TCP", "UDP"):
            with tempfile.TemporaryDirectory(prefix="dro-wan-") as folder:
                f = measure(Path(folder), kind, loss, arguments)
            pair.append(f)
            print(
                f"{loss:7} {kind:>5} {f.sent:7} {f.delivered:8} {f.delivered_per_s:8} {f.p50_ms:8} {f.p99_ms:8} "
                f"{f.p999_ms:9}",
                flush=True,
            )
        tcp, udp = pair
        rates, tails = udp.delivered_per_s / tcp.delivered_per_s, udp.p999_ms / tcp.p999_ms
        print(f"        UDP / TCP: messages per second {rates:.2f}, p99.9 {tails:.2f}", flush=True)
        found += pair
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps([asdict(f) for f in found], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
