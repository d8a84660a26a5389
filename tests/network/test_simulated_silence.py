"""How long receivers hear nothing when a DRO dies, or starts again: the same simulated as on real sockets."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from dro.clock import NS_PER_MS, ms
from dro.um.message.client_config import Config
from supervisor.tools.simulate.application import SimApplication
from supervisor.tools.simulate.network import SimNetwork
from supervisor.tools.simulate.plan import of_files
from tests.fakes.um_contexts import Stepper
from tests.rigs.network import Plan, network

TAKEN_OVER = {"A": (1, 2), "B": (1, 2), "C": (2, 3)}
ALONE = {"A": (1, 3)}
COSTS = {"B-1": "<cost>5</cost>"}  # while A lives, everything goes by A
EVERY_MS = 50
BEFORE_MS, AWAY_MS, AFTER_MS = 8_000, 1_000, 30_000
Dros = dict[str, tuple[int, int]]


def silence_on_sockets(folder: Path, dros: Dros, transport: str) -> float:
    """Return the longest time in seconds between two messages in TRD 3, from the death of A on; alone, it returns."""
    with network(folder, Stepper(), dros, transport=transport, portal_xml=COSTS) as net:
        sender, receiver = net.application(1), net.application(3)
        source = sender.source(b"t")
        receiver.context.want_topic(b"t")
        net.start()
        arrivals: list[int] = []

        def run(milliseconds: int) -> None:
            for _ in range(0, milliseconds, EVERY_MS):
                had = len(receiver.sink.fragments)
                sender.send(source)
                net.run(EVERY_MS)
                if len(receiver.sink.fragments) > had:
                    arrivals.append(net.loop.now_ns())

        run(BEFORE_MS)
        assert arrivals, "no flow before"
        del arrivals[:-1]
        net.kill("A")
        run(AWAY_MS)
        if dros is ALONE:
            net.start("A")
        run(AFTER_MS)
        return longest(arrivals)


def silence_simulated(folder: Path, dros: Dros, transport: str, seed: int) -> float:
    """Return the same of the simulator, by the files of the same plan."""
    plan = Plan(folder, dros, transport=transport, portal_xml=COSTS)
    try:
        net = SimNetwork(of_files([str(plan.file(name)) for name in dros], warn=lambda _: None), seed)
        names = {name[0]: name for name in net.dros}
        options = {trd: Config.load(plan.config(trd)).options for trd in (1, 3)}
    finally:
        plan.close()
    sender = SimApplication(net.trds[1], Random(seed), b"t", [], options[1])
    receiver = SimApplication(net.trds[3], Random(seed + 1), b"other", [(b"t", 0)], options[3])
    net.start()
    arrivals: list[int] = []

    def run(milliseconds: int) -> None:
        for _ in range(0, milliseconds, EVERY_MS):
            got = receiver.got.get(sender.otid)
            had = got.taken if got is not None else 0
            sender.publish()
            net.run(ms(EVERY_MS))
            got = receiver.got.get(sender.otid)
            if got is not None and got.taken > had:
                arrivals.append(net.clock.now_ns)

    run(BEFORE_MS)
    assert arrivals, "no flow before"
    del arrivals[:-1]
    a = net.dros[names["A"]]
    a.kill()
    run(AWAY_MS)
    if dros is ALONE:
        a.start()
    run(AFTER_MS)
    return longest(arrivals)


def longest(arrivals: list[int]) -> float:
    assert len(arrivals) > 1, "the flow did not go on"
    return max(later - at for at, later in pairwise(arrivals)) / (1000 * NS_PER_MS)


@pytest.mark.parametrize("transport", ["lbtrm", "tcp"])
@pytest.mark.parametrize("dros", [TAKEN_OVER, ALONE], ids=["taken over", "started again"])
def test_silence_after_a_death_is_the_same(tmp_path: Path, dros: Dros, transport: str) -> None:
    for name in ("real", "simulated"):
        (tmp_path / name).mkdir()
    real = silence_on_sockets(tmp_path / "real", dros, transport)
    simulated = [silence_simulated(tmp_path / "simulated", dros, transport, seed) for seed in range(3)]
    assert simulated == pytest.approx([real] * 3, abs=0.2)
