"""Equal-cost sharing in a square: A and D with receivers and sources, B and C between them, all ways of one cost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dro.shares import share_of
from dro.um.fragment.own_source import FragmentSource
from supervisor.admin.lists import rows_of
from supervisor.explain.network import joined
from supervisor.tools.ctl.network import network_lines
from supervisor.tools.ctl.topology import paths_of, topology_text
from tests.fakes.admin import FakeAdmin, client_of
from tests.network.conftest import Make
from tests.rigs.network import QUICK, Application, Network

SQUARE = {"A": [1, "B", "C"], "B": ["A", "D"], "C": ["A", "D"], "D": [4, "B", "C"]}
READY = "<extensions><equal-cost-sharing/></extensions>"


def topology(net: Network) -> str:
    return topology_text(list(rows_of(client_of(FakeAdmin(net.dros["A"])), "topology", "route-manager", "")))


def otids(net: Network, dro: str) -> set[str]:
    """Of the sources for which a DRO in the middle has a proxy source towards D."""
    return {row.otid for row in rows_of(client_of(FakeAdmin(net.dros[dro])), "proxies", f"{dro}-D", "") if row.otid}


def begin(net: Network) -> tuple[Application, list[FragmentSource], Application]:
    """Sources in TRD 1, of which two have trees that never choose alike, and their receiver in TRD 4."""
    net.start()
    sender, receiver = net.application(1), net.application(4)
    sources: list[FragmentSource] = []
    trees: set[int] = set()
    while len(sources) < 6 or not any(tree ^ 1 in trees for tree in trees):
        sources.append(sender.source(b"topic %d" % len(sources)))
        receiver.context.want_topic(sources[-1].topic)
        trees.add(share_of(sources[-1].otid).bit_length() - 1)
    net.until(lambda: all(receiver.bound(source.topic) for source in sources))
    return sender, sources, receiver


def flows(net: Network, sender: Application, sources: list[FragmentSource], receiver: Application) -> None:
    """Each source's next messages arrive, once and in order."""
    first = {source: sender.sent(source) for source in sources}
    for source in sources:
        sender.send(source, 5)
    net.until(lambda: all(receiver.got(s)[-1:] == [first[s] + 4] for s in sources))
    for source in sources:
        assert receiver.got(source)[-5:] == [*range(first[source], first[source] + 5)]
        assert receiver.got(source) == sorted(set(receiver.got(source)))


def test_each_source_goes_by_one_of_the_ways_and_all_by_the_last_one_that_is_left(make: Make) -> None:
    net = make(SQUARE, daemon=QUICK + READY)
    sender, sources, receiver = begin(net)
    net.until(lambda: len(otids(net, "B") | otids(net, "C")) == len(sources))
    net.run(3000)
    flows(net, sender, sources, receiver)
    all_otids = {source.otid.hex() for source in sources}
    by_b, by_c = otids(net, "B"), otids(net, "C")
    assert by_b | by_c == all_otids
    assert not by_b & by_c
    assert by_b
    assert by_c
    assert topology(net).endswith("equal-cost sharing is in use")

    (one, other) = paths_of(list(rows_of(client_of(FakeAdmin(net.dros["A"])), "path", "route-manager", "1 4")))
    assert (one[0].share, other[0].share) == (50, 50)
    clients = [client_of(FakeAdmin(dro)) for dro in net.dros.values()]
    for source in sources:
        answer = joined(clients, {"topic": source.topic.decode(), "from_domain": 1, "to_domain": 4})[1]
        assert answer is not None
        assert answer.way is not None
        assert (answer.way.otid, answer.way.count, answer.way.share) == (source.otid.hex(), 2, 50)
        middle = "B" if source.otid.hex() in by_b else "C"
        assert [hop.dro[0] for hop in answer.hops] == ["A", middle, "D"]
        assert answer.finding.verdict == "nothing hinders it"
        assert f"of source {source.otid.hex()}" in "\n".join(network_lines(answer, "topic", 1, 4))
    unheard = joined(clients, {"topic": "other", "from_domain": 1, "to_domain": 4})[1]
    assert unheard is not None
    assert str(unheard.way) == "path 1 of 2, 50 % of the sources, no source is heard here"

    net.kill("C")
    net.until(lambda: otids(net, "B") == all_otids)
    net.run(3000)
    flows(net, sender, sources, receiver)
    assert by_c <= otids(net, "B")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda texts: texts | {"B": texts["B"].replace(READY, "")},
        lambda texts: texts | {"D": texts["D"].replace("<domain-id>4</domain-id>", "<domain-id>4</domain-id>"
                                                       "<hotlink-index>1</hotlink-index>")},
    ],
    ids=["one is not ready", "one has a hotlink"],
)  # fmt: skip
def test_all_go_by_one_way_while_one_dro_hinders_it(
    make: Make, spoil: Callable[[dict[str, str]], dict[str, str]]
) -> None:
    net = make(SQUARE, daemon=QUICK + READY)
    texts = spoil({name: net.plan.file(name).read_text() for name in net.plan.dros})
    for name, text in texts.items():
        net.plan.file(name).write_text(text)
    sender, sources, receiver = begin(net)
    net.run(3000)
    flows(net, sender, sources, receiver)
    by_b, by_c = otids(net, "B"), otids(net, "C")
    assert sorted((len(by_b), len(by_c))) == [0, len(sources)]
    assert "equal-cost sharing is not in use: " in topology(net)


BESIDE = {"A": [1, 4], "B": [1, 4]}


def test_dros_beside_each_other_join_only_the_sources_that_they_forward(make: Make) -> None:
    net = make(BESIDE, daemon=QUICK + READY)
    sender, sources, receiver = begin(net)
    every = {source.otid.hex() for source in sources}

    def joined_by(dro: str) -> set[str]:
        found = rows_of(client_of(FakeAdmin(net.dros[dro])), "sources", f"{dro}-1", "")
        return {row.otid for row in found if row.state == "joined"}

    def is_divided() -> bool:
        by_a, by_b = joined_by("A"), joined_by("B")
        return bool(by_a and by_b) and not by_a & by_b and by_a | by_b == every

    net.until(is_divided)
    net.run(3000)
    flows(net, sender, sources, receiver)
    net.kill("A")
    net.until(lambda: joined_by("B") == every)
