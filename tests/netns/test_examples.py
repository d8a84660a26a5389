"""The example networks run as they are described: what takes which path, at what cost, and once."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import permutations
from pathlib import Path

import pytest

from tests.rigs.effort import IS_LONG
from tests.rigs.netns.examples import CALCULATED, Example, Flow, Network, Pair, network_of, steps
from tests.rigs.netns.harness import Net
from tests.rigs.netns.judged import Watch
from tests.rigs.network import QUICK

pytestmark = [pytest.mark.netns, pytest.mark.tshark]

Judged = Callable[..., AbstractContextManager[Watch]]
SLOWEST = ("cost-choice", "loop-and-spur", "loop-central-trd")
OTHERS = (
    "peer-link", "transit-trd", "parallel-links", "cost-choice", "cost-sum", "loop", "loop-central-trd",
    "star-central-dro", "mesh", "mesh-six", "loop-and-spur",
)  # fmt: skip
RUNNING = ("direct-link", "peer-link-udp", "star-central-trd", "palm-tree", "dumbbell", *(OTHERS if IS_LONG else ()))
"""The supported ones without hotlinks: of each kind of way between two TRDs one, or all."""
HOTLINKED = ("hotlinks-mixed", *(("hotlinks",) if IS_LONG else ()))
ORDERED = RESTARTED = ("peer-link-udp", *(("parallel-links", "loop", *SLOWEST) if IS_LONG else ()))
LOAD_NS = 5_000_000
KEPT_S = 20.0
"""More than what a path of the routes before is kept for."""
IN_A_ROW = 30


def flows_of(network: Network, pairs: list[Pair]) -> dict[Pair, Flow]:
    """A topic for each pair of domains, with a source in one and a receiver in the other."""
    stations = {domain: network.station(domain) for domain in network.example.domains}
    for sender, receiver in pairs:
        stations[receiver].context.want_topic(b"%d-%d" % (sender, receiver))
    return {pair: Flow(b"%d-%d" % pair, stations[pair[0]], [stations[pair[1]]]) for pair in pairs}


def until_heard(network: Network, flows: list[Flow]) -> None:
    """Send until each is heard; until all that was sent is there."""
    send_until(network, flows, lambda: all(flow.is_heard for flow in flows))


def until_settled(network: Network, flows: list[Flow]) -> None:
    """Send until each is heard without a gap, and all is there; what came before that last one does not count.

    DROs that agree may have still to calculate. A receiver in a TRD with several DROs then moves to the one on the
    better way, and may miss a message meanwhile.
    """
    send_until(network, flows, lambda: all(flow.flows(0, IN_A_ROW) for flow in flows))
    for flow in flows:
        flow.forget()


def send_until(network: Network, flows: list[Flow], holds: Callable[[], bool]) -> None:
    def look() -> bool:
        for flow in flows:
            flow.go_on()
        return holds()

    network.until(look)
    network.until(lambda: all(flow.is_caught_up for flow in flows))


def passed(network: Network, flows: dict[Pair, Flow], counts: dict[Pair, int]) -> Counter[tuple[str, str]]:
    """Send so many messages of each; what the portals have counted when all are there."""
    before = network.counters()
    left = dict(counts)

    def look() -> bool:
        for pair, flow in flows.items():
            if left[pair]:
                left[pair] -= 1
                flow.send()
        return not any(left.values()) and all(flow.is_caught_up for flow in flows.values())

    network.until(look)
    return network.counters() - before


def assert_passed(
    network: Network, flows: dict[Pair, Flow], counts: dict[Pair, int], expected: Counter[tuple[str, str]]
) -> None:
    """Send so many messages of each; the portals count what is expected, once nothing goes the ways of before."""
    deadline = time.monotonic() + KEPT_S  # a path of routes that were before goes on for a while
    sent = {pair: flows[pair] for pair in counts}
    while (found := passed(network, sent, counts)) != expected:
        assert time.monotonic() < deadline, (found - expected, expected - found)


def assert_paths(network: Network, flows: dict[Pair, Flow]) -> None:
    """All pairs at once, each with a number of messages of its own; pairs with several best paths one by one."""
    paths = network.example.paths()
    plain = {pair: 20 + 7 * nth for nth, (pair, path) in enumerate(paths.items()) if len(path.routes) == 1}
    expected: Counter[tuple[str, str]] = Counter()
    for pair, count in plain.items():
        for step in steps(paths[pair].routes[0]):
            expected[step] += count
    assert_passed(network, flows, plain, expected)
    for pair in paths.keys() - plain.keys():
        ways = [Counter(dict.fromkeys(steps(route), 30)) for route in paths[pair].routes]
        assert passed(network, {pair: flows[pair]}, {pair: 30}) in ways, pair


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNNING)
def test_data_takes_the_described_path(net: Net, judged: Judged, tmp_path: Path, name: str) -> None:
    example = Example(name, tmp_path)
    paths = example.paths()
    with network_of(net, example) as network, judged(*example.networks(), decode_as=example.decoding()):
        network.start()
        flows = flows_of(network, list(paths))
        network.until_known()
        for pair, path in paths.items():
            answer = network.ask(next(iter(network.processes)), "path", *map(str, pair))
            assert answer["cost"] == path.cost, pair
        until_settled(network, list(flows.values()))
        assert_paths(network, flows)
        assert not [fault for flow in flows.values() for fault in flow.faults()]
        network.stop()


@pytest.mark.slow
@pytest.mark.parametrize("name", HOTLINKED)
def test_hotlinks_carry_every_message_over_all_ways(net: Net, judged: Judged, tmp_path: Path, name: str) -> None:
    """Pairs with several paths use all of them at once, and each receiver takes a message once, in order.

    Paths over two DROs that are hotlinked beside each other do not exist.
    """
    example = Example(name, tmp_path)
    paths = example.paths()
    usable = {p: [r for r in way.routes if not example.shows_both_planes(r)] for p, way in paths.items()}
    with network_of(net, example) as network, judged(*example.networks(), decode_as=example.decoding()):
        network.start()
        stations = {domain: network.station(domain) for domain in example.domains}
        into = {domain: [f"{one}-{other}" for one, other in paths if other == domain] for domain in example.domains}
        heard = {domain: network.receivers(domain, topics, ())[0] for domain, topics in into.items()}
        flows = {pair: Flow(b"%d-%d" % pair, stations[pair[0]], [heard[pair[1]]]) for pair in paths}
        network.until_known()
        until_heard(network, [flows[pair] for pair, routes in usable.items() if routes])
        counts = {pair: 20 + 7 * nth for nth, (pair, routes) in enumerate(usable.items()) if routes}
        expected: Counter[tuple[str, str]] = Counter()
        for pair, routes in usable.items():
            for step in {step for route in routes for step in steps(route)}:
                expected[step] += counts[pair]
            if not routes:
                flows[pair].send()
        assert_passed(network, flows, counts, expected)
        assert not [fault for pair, flow in flows.items() if usable[pair] for fault in flow.faults()]
        assert {pair for pair, flow in flows.items() if flow.is_heard} == {pair for pair in usable if usable[pair]}
        network.stop()


def orders(names: list[str]) -> Iterator[tuple[str, ...]]:
    """In which the DROs are started: all, or as few as put each of them first once, and last once."""
    if IS_LONG:
        yield from permutations(names)
    else:
        yield from (tuple(names[nth:] + names[:nth]) for nth in range(len(names)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ORDERED)
def test_the_order_of_the_starts_does_not_matter(net: Net, judged: Judged, tmp_path: Path, name: str) -> None:
    """All DROs are stopped and started in another order; sources and receivers live on."""
    example = Example(name, tmp_path, QUICK)
    paths = example.paths()
    net.capture_mib = 64
    with network_of(net, example) as network, judged(*example.networks(), decode_as=example.decoding()):
        for order in orders(list(example.dros)):
            network.start(*order)
            flows = flows_of(network, list(paths))
            network.until_known()
            until_settled(network, list(flows.values()))
            assert_paths(network, flows)
            assert not [fault for flow in flows.values() for fault in flow.faults()], order
            network.close()
            network.stop()


@pytest.mark.slow
@pytest.mark.parametrize("name", RESTARTED)
def test_each_dro_is_restarted_under_load(net: Net, judged: Judged, tmp_path: Path, name: str) -> None:
    """Receivers of a topic, of a pattern and of both, in every TRD; nothing comes twice, or out of order."""
    example = Example(name, tmp_path, QUICK)
    net.capture_mib = 64
    with network_of(net, example) as network, judged(*example.networks(), decode_as=example.decoding()):
        network.start()
        senders = {domain: network.station(domain) for domain in example.domains}
        topics, patterns = [f"of {domain}" for domain in example.domains], ["^of "]
        kinds = ((topics, ()), ((), patterns), (topics, patterns))
        receivers = [
            heard for domain in example.domains for kind in kinds for heard in network.receivers(domain, *kind)
        ]
        flows = [Flow(b"of %d" % domain, sender, receivers) for domain, sender in senders.items()]

        def until(holds: Callable[[], bool]) -> None:
            def look() -> bool:
                for flow in flows:
                    flow.go_on(LOAD_NS)
                return holds()

            network.until(look)

        def flow_again() -> None:
            edges = [flow.sent for flow in flows]
            until(lambda: all(flow.flows(edge, IN_A_ROW) for flow, edge in zip(flows, edges, strict=True)))

        until(lambda: all(flow.is_heard for flow in flows))
        network.until_known()
        for name in example.dros:
            network.kill(name)
            network.start(name)
            until(lambda name=name: CALCULATED in network.processes[name].stdout)  # type: ignore[misc]
            flow_again()
        network.until_known()
        assert not [fault for flow in flows for fault in flow.faults(gaps=True)]
        network.close()
        network.stop()


def test_two_endpoints_in_one_trd_are_refused(tmp_path: Path) -> None:
    example = Example("unsupported-two-endpoints", tmp_path)
    command = [sys.executable, "-m", "supervisor.main", example.dros["G1"]["config"]]
    done = subprocess.run(command, cwd=example.folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "domain-id 2 is already used by the endpoint in line" in done.stderr


def test_a_second_link_between_two_dros_carries_nothing(net: Net, judged: Judged, tmp_path: Path) -> None:
    example = Example("unsupported-two-peer-links", tmp_path)
    with network_of(net, example) as network, judged(*example.networks(), decode_as=example.decoding()):
        network.start()
        flows = flows_of(network, [(1, 2), (2, 1)])
        until_heard(network, list(flows.values()))
        for process in network.processes.values():
            process.wait_output("uplicate adjacent", 10)
        there, back = (passed(network, {pair: flow}, {pair: 30}) for pair, flow in flows.items())
        assert {name for name, _ in there} == {name for name, _ in back}
        assert len(there) == len(back) == 4
        assert not [fault for flow in flows.values() for fault in flow.faults()]
        network.stop()


def test_a_trd_with_two_domain_ids_is_not_routed_through(net: Net, judged: Judged, tmp_path: Path) -> None:
    example = Example("unsupported-two-domain-ids", tmp_path)
    with network_of(net, example) as network, judged(*example.networks(), decode_as=example.decoding()):
        network.start()
        flows = flows_of(network, [(1, 2), (1, 4), (4, 2), (4, 1)])
        for process in network.processes.values():
            process.wait_output("of another domain dropped", 60)
        edges = [flow.sent + IN_A_ROW for flow in flows.values()]

        def look() -> bool:
            for flow in flows.values():
                flow.go_on()
            return all(flow.sent >= edge for flow, edge in zip(flows.values(), edges, strict=True))

        network.until(look)
        assert not flows[1, 4].is_heard
        assert not flows[4, 1].is_heard
        network.stop()


def test_hotlinked_pairs_one_behind_the_other_are_not_crossed(net: Net, judged: Judged, tmp_path: Path) -> None:
    example = Example("unsupported-hotlink-chain", tmp_path)
    with network_of(net, example) as network, judged(*example.networks(), decode_as=example.decoding()):
        network.start()
        flows = flows_of(network, [(1, 2), (2, 4), (1, 4)])
        until_heard(network, [flows[1, 2], flows[2, 4]])
        network.processes["1A"].wait_output("paths over two hotlinks one after the other are not used", 60)
        network.processes["2A"].wait_output("DROs of a TRD use the same hotlink index", 60)
        for _ in range(IN_A_ROW):
            flows[1, 4].send()
        passed(network, {pair: flows[pair] for pair in ((1, 2), (2, 4))}, {(1, 2): 30, (2, 4): 30})
        assert not flows[1, 4].is_heard
        network.stop()
