"""The message of a DRO against its counter pages: every field has its own number, and that of the guide's page."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from dro.bus.counters import CounterPage
from dro.bus.listing import TopologyRow
from dro.lbmmon.fields import NO_SAMPLE
from dro.metrics.slots import RouterSlot, Slot, WorkerSlot
from dro.metrics.table import ENDPOINT, PEER, PORTAL, metrics
from supervisor.admin.status import ROUTE_MANAGER, DroStatus, PortalPlace, WorkerStatus
from supervisor.samples.pages import Pages
from supervisor.samples.watch import KnownDros
from supervisor.statistics.dro_stats import dro_message, portal_list

FIELDS: Final = Path(__file__).parents[2] / "golden/proto-fields.csv"
ROLES: Final = (ROUTE_MANAGER, ENDPOINT, PEER)
OTHER: Final = TopologyRow(
    "D2", "77", 3, "00000009", age_s=4.25, neighbour="5", kind="TRD", ingress_cost=6, egress_cost=8, portal="elsewhere"
)
OWN: Final = TopologyRow("D1", "42", 1, "00000009", is_own=True, neighbour="77", kind="DRO", portal="peer")


def worker(index: int, role: str) -> WorkerStatus:
    return WorkerStatus(role, role, index, "ready", 100 + index, 1, 0, 1.0, "")


@pytest.fixture
def known(tmp_path: Path) -> KnownDros:
    """A DRO whose pages have a different number in each slot."""
    for index, role in enumerate(ROLES):
        page = CounterPage.create(tmp_path / f"counters.{index}")
        slots: list[int] = [*(RouterSlot if role == ROUTE_MANAGER else Slot), *WorkerSlot]
        for slot in slots:
            page.set(slot, 1_000_000 * (index + 1) + 1000 * int(slot) + 1)
        page.publish()
        page.close()
    status = DroStatus(
        "D1", "1", "42", 99, 1.0, "", 0.0, True,
        workers=tuple(worker(index, role) for index, role in enumerate(ROLES)),
        portals=(PortalPlace(ENDPOINT, 7, 3), PortalPlace(PEER, 0, 4)),
        shm=str(tmp_path),
    )  # fmt: skip
    return KnownDros(status, (OWN, OTHER, TopologyRow("D2", "77", 3, "00000009", neighbour="42", kind="DRO")), 0.0, 1e9)


@pytest.fixture
def made(known: KnownDros) -> Any:  # noqa: ANN401  a message
    with closing(Pages(Path(known.status.shm))) as pages:
        return dro_message(known, pages, {PEER})


def leaves(message: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    """Whole name and value of each field that is set."""
    for field, value in message.ListFields():
        if field.message_type is None:
            yield field.full_name.removeprefix("lbmmon."), value
        else:
            for one in value if field.is_repeated else [value]:
                yield from leaves(one)


def test_every_field_of_the_statistics_is_moved(made: Any) -> None:  # noqa: ANN401
    """Guide: the statistics part of `DROMonMsg`; who sends it and the configuration come with the packet."""
    rows = csv.DictReader(FIELDS.read_text().splitlines())
    wanted = {
        f"{row['message path']}.{row['field name']}"
        for row in rows
        if row["message path"].startswith("DROMonMsg.Stats") and row["type"] in ("uint32", "uint64", "string")
    }
    assert len(wanted) > 250
    assert wanted - {name for name, _ in leaves(made)} == set(), "fields that nothing moves"


@pytest.mark.parametrize("portal_type", [ENDPOINT, PEER])
def test_a_field_has_the_number_of_the_line_of_the_page(made: Any, known: KnownDros, portal_type: str) -> None:  # noqa: ANN401
    portal = made.stats.portals[(ENDPOINT, PEER).index(portal_type)]
    values = {path.rpartition(".")[2]: value for path, value in leaves(portal)}
    with closing(Pages(Path(known.status.shm))) as pages:
        page = pages.values_of(known.status.workers[ROLES.index(portal_type)])
    for metric in metrics(PORTAL, portal_type):
        if metric.field:
            shown = sum(page[slot] for slot in metric.slots)
            wanted = shown // 1000 if metric.field.startswith("nak_stm") else shown
            assert values[metric.field] == wanted, metric.field


def test_numbers_of_others_and_of_the_own_topology(made: Any) -> None:  # noqa: ANN401
    [other] = made.stats.other_gateways
    assert (other.gateway_name, other.gateway_id, other.version, other.topology_signature) == ("D2", 77, 3, 9)
    assert other.last_activity_sec == int(1e9) - 5
    assert other.last_activity_usec == 750_000
    assert [(p.adjacent_domain_id, p.adjacent_gateway_id, p.cost) for p in other.other_portals] == [
        (5, 0, 6),
        (0, 42, 0),
    ]
    peer = made.stats.portals[1]
    assert (peer.portal_name, peer.portal_index, peer.cost, peer.peer.adjacent_gateway_id) == (PEER, 1, 4, 77)
    assert (made.stats.local.gateway_name, made.stats.local.gateway_id) == ("D1", 42)


def test_a_minimum_before_the_first_sample_is_the_highest_number(known: KnownDros) -> None:
    page = CounterPage.open(Path(known.status.shm) / "counters.2")
    for name in ("RTT_MIN_US", "BATCH_MIN_MESSAGES", "LINK_BATCH_MIN_BYTES", "UDP_RECOVERY_MIN_US", "RTT_MEAN_US"):
        page.set(Slot[name], 0)
    page.publish()
    with closing(Pages(Path(known.status.shm))) as pages:
        peer = dro_message(known, pages, {PEER}).stats.portals[1].peer
    assert peer.send.rtt_min == peer.send.batch_msgs_min == peer.send.batch_bytes_min == NO_SAMPLE
    assert peer.udp_receive.nak_stm_min == NO_SAMPLE
    assert peer.send.rtt_mean == 0


def test_a_peer_portal_without_udp_has_no_datagrams(known: KnownDros) -> None:
    with closing(Pages(Path(known.status.shm))) as pages:
        peer = dro_message(known, pages).stats.portals[1].peer
    assert not peer.HasField("udp_receive")
    assert not peer.HasField("udp_send")
    assert peer.send.batches


def test_portals_are_listed_in_the_order_of_the_configuration(known: KnownDros) -> None:
    assert portal_list(known) == [(0, ENDPOINT, 0), (1, PEER, 1)]
