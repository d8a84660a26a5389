"""The networks of the guide's chapter 3.7: which way is taken, and what is left when DROs and links go.

Each message comes once. Named after rows of the feature table: tie, parallel links, loops, loop and spur, central TRD,
mesh.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import pytest

from dro.metrics.slots import Slot
from dro.um.fragment.own_source import FragmentSource
from supervisor.admin.lists import rows_of
from tests.fakes.admin import FakeAdmin, client_of
from tests.network.conftest import Make
from tests.network.plans import RING, SPUR
from tests.network.test_shared_trds import CENTRAL_TRD, RING_WITH_CENTRAL_TRD, know_all
from tests.rigs.network import Network

TOPIC: Final = b"orders"
QUIET_MS: Final = 1000
COUNT: Final = 20
PARALLEL: Final = {"A": [1, "B"], "B": [2, "A"], "C": [1, "D"], "D": [2, "C"]}
MESH: Final = {
    name: [number, *(other for other in "ABCDE" if other != name)] for number, name in enumerate("ABCDE", start=1)
}
DEAR: Final = "<cost>10</cost>"


class Party:
    """A source and a receiver in each TRD: all send to all."""

    def __init__(self, net: Network, trds: Sequence[int]) -> None:
        self.net = net
        self.ends = {trd: net.application(trd) for trd in trds}
        self.sources: dict[int, FragmentSource] = {trd: end.source(TOPIC) for trd, end in self.ends.items()}
        for end in self.ends.values():
            end.context.want_topic(TOPIC)

    def send(self) -> None:
        for trd, end in self.ends.items():
            end.send(self.sources[trd])

    def pairs(self) -> list[tuple[int, int]]:
        return [(here, there) for here in self.ends for there in self.ends]

    def leave(self, *trds: int) -> None:
        for trd in trds:
            self.net.end(self.ends.pop(trd))
            del self.sources[trd]

    def _last(self, here: int, there: int) -> int:
        got = self.ends[there].got(self.sources[here])
        return got[-1] if got else -1

    def flow(self) -> None:
        """Send until what is sent arrives everywhere, ten times in a row."""
        in_a_row = 0

        def look() -> bool:
            nonlocal in_a_row
            arrived = all(
                self._last(here, there) >= self.ends[here].sent(self.sources[here]) - 1 for here, there in self.pairs()
            )
            in_a_row = in_a_row + 1 if arrived else 0
            self.send()
            return in_a_row >= 10

        self.net.until(look)
        self.net.run(QUIET_MS, 50)

    def check(self) -> None:
        """What is sent now comes to each once and in order, nothing came twice before, and then all counters rest."""
        first = {trd: end.sent(self.sources[trd]) for trd, end in self.ends.items()}
        for _ in range(COUNT):
            self.send()
            self.net.run(10)
        self.net.run(QUIET_MS, 50)
        for here, there in self.pairs():
            got = self.ends[there].got(self.sources[here])
            assert [number for number in got if number >= first[here]] == [*range(first[here], first[here] + COUNT)]
            assert len(got) == len(set(got))
        before = counters(self.net)
        self.net.run(3000, 50)
        assert counters(self.net) == before


def counters(net: Network) -> dict[tuple[str, int | str], tuple[int, int]]:
    """What each portal has received and sent."""
    return {
        (name, port): (dro.page(port, Slot.TOPIC_RCVD), dro.page(port, Slot.SENT))
        for name, dro in net.dros.items()
        for port in net.plan.dros[name]
    }


def way(net: Network, dro: str, one: int, other: int) -> list[str]:
    """Nodes of the path between two domains, as a DRO names it."""
    rows = rows_of(client_of(FakeAdmin(net.dros[dro])), "path", "route-manager", f"{one} {other}")
    return [str(row.node_id) for row in rows]


def carry(net: Network, party: Party, *portals: tuple[str, int | str]) -> list[int]:
    """How much each of these portals has sent of the next messages."""
    before = counters(net)
    party.check()
    after = counters(net)
    return [after[portal][1] - before[portal][1] for portal in portals]


def test_all_dros_name_the_same_of_equal_ways_whatever_clients_do(make: Make) -> None:
    """From TRD 1 to TRD 3 by B or D. Sources and receivers that restart change nothing about it."""
    net = make(RING)
    net.start()
    party = Party(net, [1, 3])
    party.flow()
    ways = [way(net, "A", 1, 3), way(net, "A", 3, 1)]
    versions = [dro.endpoints[trd].core.routes.version for trd, dro in enumerate(net.dros.values(), start=1)]
    middles = ("A", "B"), ("A", "D"), ("C", "B"), ("C", "D")
    carried = carry(net, party, *middles)
    assert sorted(carried) == [0, 0, COUNT, COUNT]
    for _ in range(3):
        party.leave(1, 3)
        net.run(QUIET_MS, 50)
        party = Party(net, [3, 1])
        party.flow()
        assert carry(net, party, *middles) == carried
        for name in net.dros:
            assert [way(net, name, 1, 3), way(net, name, 3, 1)] == ways
    assert versions == [dro.endpoints[trd].core.routes.version for trd, dro in enumerate(net.dros.values(), start=1)]


def test_of_parallel_links_the_cheaper_one_is_used_while_it_is_there(make: Make) -> None:
    net = make(PARALLEL, portal_xml={"C-D": DEAR, "D-C": DEAR})
    net.start()
    party = Party(net, [1, 2])
    both = ("A", "B"), ("C", "D")
    party.flow()
    assert carry(net, party, *both) == [COUNT, 0]
    net.dros["A"].close_link("B")
    party.flow()
    assert carry(net, party, *both) == [0, COUNT]
    net.dros["A"].mend("B")
    net.until(lambda: net.dros["A"].has_link("B"))
    net.run(8000, 50)  # until routes are calculated, and what is kept of the ones before is gone
    party.flow()
    assert carry(net, party, *both) == [COUNT, 0]


@pytest.mark.parametrize(("end", "other"), [("B", "C"), ("D", "A")])
def test_a_spur_is_reached_from_all_of_a_ring_that_is_whole_or_cut(make: Make, end: str, other: str) -> None:
    net = make(SPUR)
    net.start()
    party = Party(net, net.plan.trds)
    party.flow()
    party.check()
    net.dros[end].close_link(other)
    party.flow()
    party.check()


@pytest.mark.parametrize("victims", ["CD", "AE"])
def test_of_a_mesh_of_five_three_are_enough(make: Make, victims: str) -> None:
    """Direct links between A, B and C are dear, so what they send each other goes by D, or by what is left."""
    dear = {f"{one}-{other}": DEAR for one in "ABC" for other in "ABC" if one != other}
    net = make(MESH, portal_xml=dear)
    net.start()
    party = Party(net, net.plan.trds)
    party.flow()
    party.check()
    for name in victims:
        net.kill(name)
        party.leave("ABCDE".index(name) + 1)
    party.flow()
    party.check()


@pytest.mark.parametrize("plan", [CENTRAL_TRD, RING_WITH_CENTRAL_TRD], ids=["star", "ring"])
def test_each_trd_has_one_proxy_source_of_each_source(make: Make, plan: dict[str, list[int | str]]) -> None:
    net = make(plan)
    net.start()
    net.until(lambda: know_all(net))
    party = Party(net, net.plan.trds)
    party.flow()
    party.check()
    found: Counter[tuple[int, str]] = Counter()
    for dro in net.dros.values():
        for trd in dro.endpoints:
            rows = rows_of(client_of(FakeAdmin(dro)), "proxies", f"{dro.name}-{trd}", "")
            found.update((trd, row.otid) for row in rows if row.otid)
    others = [(trd, source.otid.hex()) for trd in party.ends for at, source in party.sources.items() if at != trd]
    assert found == Counter(others)
