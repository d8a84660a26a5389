"""Route information that is signed, between whole DROs: A and B beside each other in TRD 2, B and C with a link."""

from __future__ import annotations

from supervisor.admin.lists import rows_of
from tests.builders.dro_file import OTHER_KEYS, ROUTE_KEYS
from tests.fakes.admin import FakeAdmin, client_of
from tests.network.conftest import Make
from tests.rigs.network import QUICK, Network

ROW = {"A": [1, 2], "B": [2, "C"], "C": [4, "B"]}


def keyed(file: str) -> str:
    given = f"<route-authentication><key-file>{file}</key-file></route-authentication>"
    return f"{QUICK}<extensions>{given}</extensions>"


def known(net: Network, dro: str) -> set[str]:
    """First letters of the DROs of the network, as one of them sees it."""
    rows = rows_of(client_of(FakeAdmin(net.dros[dro])), "topology", "route-manager", "")
    return {row.dro[0] for row in rows if row.dro}


def test_data_crosses_trds_and_links_with_keys(make: Make) -> None:
    net = make(ROW, daemon=keyed(ROUTE_KEYS))
    net.start()
    sender, receiver = net.application(1), net.application(4)
    source = sender.source(b"T")
    receiver.context.want_topic(b"T")
    net.until(lambda: bool(receiver.bound(b"T")))
    first = sender.sent(source)
    sender.send(source, 5)
    net.until(lambda: receiver.got(source)[-5:] == [*range(first, first + 5)])
    assert known(net, "A") == {"A", "B", "C"}


def test_a_dro_with_another_key_is_no_part_of_the_network(make: Make) -> None:
    net = make(ROW, daemon=keyed(ROUTE_KEYS))
    file = net.plan.file("B")
    file.write_text(file.read_text().replace(ROUTE_KEYS, OTHER_KEYS))
    net.start()
    net.run(5000)
    assert {name: known(net, name) for name in net.dros} == {name: {name} for name in net.dros}
