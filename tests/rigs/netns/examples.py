"""The example networks of `tests/golden/examples` as real processes: each DRO a host of its own, each TRD a bridge.

The files are those of the folder but for addresses: what is 127.0.0.1 there, where all of a network runs on one host,
is 10.<domain>.0.0/24 in the file of a TRD, and a peer link between 127.0.<a>.<b> is one between 10.127.<a>.<b>. The
applications of all TRDs are in this process, on one host that has an address in each TRD.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dro.config.um.options import UmOptions
from dro.loop import Loop
from dro.proto.context.sources import BoundSource
from dro.transport.runs import KIND_DATA, Run
from dro.transport.session import ReceiverTransport
from dro.um.fragment.context import FragmentContext
from dro.um.message.client_config import Config
from dro.um.message.context import MessageContext
from dro.um.message.events import Data, Event
from dro.um.message.receiver import CallbackListener
from dro.wire.lbmc import message as lbmc
from supervisor.tools.ctl.main import main
from tests.fakes.runs import RunSink
from tests.fakes.um_contexts import turn_until
from tests.rigs.netns.capture import ports
from tests.rigs.netns.harness import Host, Net
from tests.rigs.netns.process import Process
from tests.rigs.netns.relay import Link
from tests.rigs.netns.topology import address_in, trd_name
from tests.rigs.network import late
from tests.rigs.waiting import wait_until

EXAMPLES: Final = Path(__file__).parents[2] / "golden" / "examples"
LINKS: Final = "links"
CALCULATED: Final = "route recalculation took"
APPLICATIONS: Final = 1
FIRST_DRO: Final = 11
START_S: Final = 60.0
NOTHING: Final = UmOptions()
KNOCK_NS: Final = 20_000_000
PAYLOAD: Final = 60

Pair = tuple[int, int]
"""Domains of a source and of receivers."""
Portal = tuple[str, str]
"""A portal by name, and `received` or `sent`."""


@dataclass(frozen=True)
class Way:
    """What `topology.json` says about two domains."""

    cost: int
    routes: tuple[tuple[str, ...], ...]
    """Names of portals, from the first domain to the second; several when they cost the same."""


class Example:
    """A folder of the examples, written anew with the addresses of namespaces."""

    def __init__(self, name: str, folder: Path, daemon: str = "") -> None:
        """`daemon`: further elements at the end of each `<daemon>`."""
        self.name, self.folder = name, folder / name
        source = EXAMPLES / name
        self.topology: dict[str, Any] = json.loads((source / "topology.json").read_text())
        self.folder.mkdir()
        self.blocks: dict[int, int] = {}  # domain -> first port
        self.shared: dict[int, int] = {}  # domain -> the domain whose network it is
        for trd in self.topology["trds"]:
            own = self.shared[trd["id"]] = trd.get("same_as", trd["id"])
            if own == trd["id"]:
                self.blocks[own] = trd["port_block"][0]
                text = (source / trd["config"]).read_text().replace("127.0.0.1", f"10.{own}.0.0/24")
                (self.folder / trd["config"]).write_text(text)
        for dro in self.topology["dros"]:
            text = re.sub(r"\b127\.0\.(\d+\.\d\d)\b", r"10.127.\1", (source / dro["config"]).read_text())
            (self.folder / dro["config"]).write_text(text.replace("</daemon>", f"{daemon}</daemon>"))
        self.dros: dict[str, dict[str, Any]] = {dro["name"]: dro for dro in self.topology["dros"]}
        self.domains = list(self.blocks)
        self.links: list[dict[str, str]] = self.topology["links"]

    def config(self, domain: int) -> Path:
        name: str = next(trd["config"] for trd in self.topology["trds"] if trd["id"] == domain)
        return self.folder / name

    def paths(self) -> dict[Pair, Way]:
        """Of both directions."""
        found = {}
        for path in self.topology["paths"]:
            routes = [[step.partition("/")[2] for step in route if "/" in step] for route in path["routes"]]
            there, back = tuple(map(tuple, routes)), tuple(tuple(reversed(route)) for route in routes)
            found[path["from"], path["to"]] = Way(path["cost"], there)
            found[path["to"], path["from"]] = Way(path["cost"], back)
        return found

    def shows_both_planes(self, route: Sequence[str]) -> bool:
        """It passes two DROs with a hotlink index in the same TRD, which do not see each other."""
        portals = {p["name"]: (name, p) for name, dro in self.dros.items() for p in dro["portals"]}
        passed = {portals[name][0] for name in route}
        indexed = {(name, p["domain_id"]) for name, p in portals.values() if p.get("hotlink_index")}
        return max(Counter(domain for name, domain in indexed if name in passed).values(), default=0) > 1

    def networks(self) -> list[str]:
        """TRDs by the name of their bridge, and that of the peer links."""
        return [trd_name(domain) for domain in self.domains] + ([LINKS] if self.links else [])

    def decoding(self) -> Iterator[str]:
        """Rules for a dissector."""
        for base in self.blocks.values():
            yield ports("udp", base, "lbmr")
            yield ports("udp", base + 1, "lbtrm", base + 2)
            yield ports("udp", base + 65, "lbtrm", base + 76)
            yield ports("udp", base + 77, "lbtru", base + 99)
            yield ports("tcp", base + 5, "lbttcp", base + 64)
        for link in self.links:
            yield ports("tcp", int(link["tcp"].rpartition(":")[2]), "lbttcp")
        for portal in itertools.chain.from_iterable(dro["portals"] for dro in self.dros.values()):
            if "udp_port" in portal:
                yield ports("udp", portal["udp_port"], "lbtru")


def steps(route: Sequence[str]) -> list[Portal]:
    """What counts a message on its way: it comes in by one portal of a DRO and leaves by another."""
    return [(portal, ("received", "sent")[nth % 2]) for nth, portal in enumerate(route)]


class Station(RunSink):
    """An application of one TRD: a context that keeps the numbers of what it hears."""

    def __init__(self, network: Network, domain: int) -> None:
        self.loop = network.loop
        options = Config.load(network.example.config(domain)).options
        self.context = FragmentContext(options, network.loop, sink=self)
        self.got: defaultdict[bytes, list[int]] = defaultdict(list)  # by topic, as it came

    def on_runs(self, transport: ReceiverTransport, view: memoryview, runs: list[Run], now_ns: int) -> None:
        for run in runs:
            source = transport.sources.get(run.topic_index)
            if source is not None and run.kind == KIND_DATA:
                self.got[source.topic] += range(run.first_sqn, run.first_sqn + run.fragments)

    def on_bound(self, source: BoundSource[Any], now_ns: int) -> None:
        pass

    def on_began(self, transport: ReceiverTransport, now_ns: int) -> None:
        pass

    def on_unbound(self, source: BoundSource[Any], *, ended: bool, now_ns: int) -> None:
        pass


class Heard:
    """What one receiver of the library gets: messages, without what another session has brought already."""

    def __init__(self) -> None:
        self.got: defaultdict[bytes, list[int]] = defaultdict(list)  # by topic, as it came
        self.listener = CallbackListener(self._on_event)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Data):
            self.got[event.topic.encode()].append(event.sqn)


class Flow:
    """One source and those who want it."""

    def __init__(self, topic: bytes, sender: Station, receivers: Sequence[Station | Heard]) -> None:
        self.topic, self.receivers = topic, receivers
        self._loop = sender.loop
        self._source = sender.context.open_source(topic)
        self.sent = 0
        self._next_ns = 0

    def send(self) -> None:
        """Raises: AssertionError when the session takes no more."""
        length = lbmc.HEADER.size + PAYLOAD
        header = lbmc.HEADER.pack(0, 0, length, self._source.topic_index, self.sent)
        assert self._source.transport.send_message(header + bytes(PAYLOAD), self._loop.now_ns())
        self.sent += 1

    def go_on(self, interval_ns: int = KNOCK_NS) -> None:
        """Send one when it is time for it."""
        if self._loop.now_ns() >= self._next_ns:
            self._next_ns = self._loop.now_ns() + interval_ns
            self.send()

    @property
    def is_heard(self) -> bool:
        return all(receiver.got[self.topic] for receiver in self.receivers)

    @property
    def is_caught_up(self) -> bool:
        return all(max(receiver.got[self.topic], default=-1) == self.sent - 1 for receiver in self.receivers)

    def forget(self) -> None:
        """Count nothing of what has come but the last."""
        for receiver in self.receivers:
            del receiver.got[self.topic][:-1]

    def flows(self, first: int, count: int) -> bool:
        """The last so many that each has got followed each other, and were sent as `first` or later."""
        tails = (receiver.got[self.topic][-count:] for receiver in self.receivers)
        return all(len(tail) == count and tail == list(range(max(first, tail[0]), tail[-1] + 1)) for tail in tails)

    def faults(self, *, gaps: bool = False) -> list[str]:
        """What is twice or out of order and, unless `gaps` are well, missing.

        A station hears sessions as they are: what a slower way brings late is put in order first.
        """
        found = []
        for nth, receiver in enumerate(self.receivers):
            got = receiver.got[self.topic]
            if isinstance(receiver, Station) and (behind := late(got)) == sorted(behind):
                got = sorted(got)
            pairs = itertools.pairwise(got)
            odd = [(one, other) for one, other in pairs if other <= one or (not gaps and other != one + 1)]
            if odd:
                found.append(f"{self.topic.decode()}, receiver {nth}: after each other came {odd[:10]}")
        return found


@dataclass
class Network:
    """An example that runs."""

    example: Example
    net: Net
    loop: Loop
    hosts: dict[str, Host]
    processes: dict[str, Process] = field(default_factory=dict)
    stations: list[Station | MessageContext] = field(default_factory=list)

    def start(self, *names: str) -> None:
        """These DROs, or all of them in the order of the example."""
        for name in names or self.example.dros:
            self.processes[name] = self.hosts[name].start_python(
                "-m", "supervisor.main", self.example.dros[name]["config"], name=name, cwd=self.example.folder
            )

    def stop(self) -> None:
        """All DROs, in good order. Raises: AssertionError for a status but 0."""
        for process in self.processes.values():
            process.signal(signal.SIGTERM)
        statuses = {name: process.wait(30) for name, process in self.processes.items()}
        self.processes.clear()
        assert not any(statuses.values()), statuses

    def kill(self, name: str) -> None:
        """All processes of a DRO; they are gone afterwards."""
        process = self.processes.pop(name)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for pid in (process.pid, *map(int, children)):
            os.kill(pid, signal.SIGKILL)
        process.wait()
        wait_until(
            lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), f"the workers of {name} are gone"
        )

    def ask(self, name: str, *words: str) -> dict[str, Any]:
        """The answer of `tnwgdctl --json` about a DRO, in this process: there are dozens of questions."""
        with contextlib.redirect_stdout(io.StringIO()) as out:
            status = main([*words, "--dro", str(self.processes[name].pid), "--json"])
        assert status == 0, words
        answer: dict[str, Any] = json.loads(out.getvalue())
        return answer

    def until(self, holds: Callable[[], bool]) -> None:
        turn_until(self.loop, holds)

    def until_known(self) -> None:
        """Until the DROs that run know each other and agree."""
        for process in self.processes.values():
            self.until(lambda process=process: CALCULATED in process.stdout)  # type: ignore[misc]
        self.until(self._is_known)

    def _is_known(self) -> bool:
        for name in self.processes:
            dros = self.ask(name, "topology")["dros"]
            links = sum(len(dro["neighbours"]) for dro in dros)
            wanted = sum(len(self.example.dros[running]["portals"]) for running in self.processes)
            if not all(dro["agrees"] for dro in dros) or {dro["dro"] for dro in dros} != self.processes.keys():
                return False
            if links != wanted or any(link["remark"] for dro in dros for link in dro["neighbours"]):
                return False
        return True

    def counters(self) -> Counter[Portal]:
        """Fragments that each portal has received and sent."""
        found: Counter[Portal] = Counter()
        for name in self.processes:
            for portal in self.ask(name, "portals")["portals"]:
                found[portal["name"], "received"] = portal["counters"]["TOPIC_RCVD"]
                found[portal["name"], "sent"] = portal["counters"]["SENT"]
        return found

    def station(self, domain: int) -> Station:
        made = Station(self, domain)
        self.stations.append(made)
        return made

    def receivers(self, domain: int, topics: Sequence[str], patterns: Sequence[str]) -> list[Heard]:
        """In one application: one of all these topics, and one of all these patterns, if there are any."""
        context = MessageContext(Config.load(self.example.config(domain)), self.loop)
        self.stations.append(context)
        found = [Heard() for some in (topics, patterns) if some]
        for topic in topics:
            context.receiver(topic, found[0].listener, NOTHING)
        for pattern in patterns:
            context.wildcard(pattern, found[-1].listener, NOTHING)
        return found

    def close(self) -> None:
        """All applications, in good order."""
        while self.stations:
            station = self.stations.pop()
            if isinstance(station, Station):
                station.context.close()
            else:
                station.close_children()
                station.close()


@contextmanager
def network_of(net: Net, example: Example, wire: Link | None = None) -> Iterator[Network]:
    """Hosts of an example, on which nothing runs yet. This thread is on that of the applications.

    `wire`: between the first DRO and its peer links.
    """
    for name in example.networks():
        net.trd(name)
    hosts = {}
    for nth, (name, dro) in enumerate(example.dros.items()):
        addresses = {}
        for portal in dro["portals"]:
            if portal["type"] == "endpoint":
                domain = example.shared[portal["domain_id"]]
                addresses[trd_name(domain)] = f"{address_in(domain, FIRST_DRO + nth)}/24"
            else:
                addresses[LINKS] = f"{portal['interface'].replace('127.0.', '10.127.')}/16"
        hosts[name] = net.host(name, addresses, {LINKS: wire} if wire is not None and nth == 0 else None)
    applications = net.host(
        "apps", {trd_name(domain): f"{address_in(domain, APPLICATIONS)}/24" for domain in example.domains}
    )
    with applications.inside():
        loop = Loop()
        try:
            network = Network(example, net, loop, hosts)
            try:
                yield network
            finally:
                network.close()
        finally:
            loop.close()
