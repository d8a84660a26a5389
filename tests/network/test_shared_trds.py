"""DROs that are joined by the TRDs that they share: all to all, each message once, along the cheapest path."""

from __future__ import annotations

import pytest

from tests.network.conftest import Make
from tests.network.test_delivery import TOPIC, Everybody, by_topic
from tests.rigs.network import Network

CHAIN = {"A": [1, 2], "B": [2, 3], "C": [3, 4]}
CENTRAL_TRD = {"A": [1, 9], "B": [2, 9], "C": [3, 9]}
RING_WITH_CENTRAL_TRD = {"A": [1, 9, "B", "C"], "B": [2, 9, "A"], "C": [3, 9, "A"]}
THREE_TRDS_AND_A_LINK = {"A": [1, 2, 3, "B"], "B": [4, "A"]}
FIVE_TRDS = {"A": [1, 2, 3, 4, 5]}
PLANS = {
    "chain": CHAIN, "central TRD": CENTRAL_TRD, "ring with central TRD": RING_WITH_CENTRAL_TRD,
    "three TRDs and a link": THREE_TRDS_AND_A_LINK, "five TRDs": FIVE_TRDS,
}  # fmt: skip


def know_all(net: Network) -> bool:
    """From every TRD there is a way to every other one."""
    endpoints = [endpoint for dro in net.dros.values() for endpoint in dro.endpoints.values()]
    leaving = [way for endpoint in endpoints for way in endpoint.core.routes.table.leaving.items()]
    pairs = {(origin, wanted) for wanted, ways in leaving for _, _, sources in ways for origin in sources}
    trds = net.plan.trds
    return pairs >= {(origin, wanted) for origin in trds for wanted in trds if origin != wanted}


@pytest.mark.parametrize("name", PLANS)
def test_all_hear_all_once(make: Make, name: str) -> None:
    net = make(PLANS[name])
    net.start()
    net.until(lambda: know_all(net))
    everybody = Everybody(net)
    everybody.open_sources()
    everybody.open_receivers((by_topic,))
    everybody.settle()
    net.run(2000)
    for source, application in everybody.sources.items():
        application.send(source, 20)
    net.run(2000)
    for receiver in everybody.receivers:
        for source in everybody.sources:
            assert receiver.got(source) == [*range(20)]


def test_the_hop_count_grows_by_one_at_each_dro(make: Make) -> None:
    net = make(CHAIN)
    net.start()
    net.until(lambda: know_all(net))
    sender, receiver = net.application(1), net.application(4)
    sender.source(TOPIC)
    receiver.context.want_topic(TOPIC)
    net.until(lambda: bool(receiver.bound(TOPIC)))
    (bound,) = receiver.bound(TOPIC)
    assert bound.tir.options is not None
    assert bound.tir.options.cost is not None
    assert (bound.tir.options.cost.hop_count, bound.tir.options.cost.cost) == (3, 6)
