"""What the exchange and the calculation need of each other: links, changes of other DROs, signatures, time."""

from __future__ import annotations

import pytest

from dro.bus.messages import PortalUp
from dro.clock import ms, s
from router.core import OneSidedLink, OwnDro, RouteManagerCore, SignaturesDiffer
from router.own_portals import DUPLICATE, LOOP, LinkRefused, OwnPortals, Portal
from router.route_info import read_head, write_route
from router.route_info_exchange import ExchangeTiming, SendInfo
from router.route_recalculation import SendTable, StillChanging, Timing, TopologyChange, TopologyChanged
from router.topology import DroRecord, Neighbour, topology_signature
from tests.router.networks import DRO_BIT

ME, OTHER = DRO_BIT | 1, DRO_BIT | 2
GUIDE = Timing(check_ns=ms(750), backoff_ns=s(5), warning_ns=s(10))


def core() -> RouteManagerCore:
    return RouteManagerCore(OwnDro(ME, "G1"), GUIDE, ExchangeTiming(), incarnation=1, now_ns=0)


def record(version: int = 1, *neighbours: int) -> DroRecord:
    listed = neighbours or (ME, 2)
    return DroRecord(OTHER, tuple(Neighbour(n, 1, 1) for n in sorted(listed)), version=version, name="G2")


def route(described: DroRecord, sqn: int = 1, topology: int = 0) -> bytes:
    return write_route(described, sqn=sqn, ttl=9, topology=topology, configuration=0, gateway_version=0)


def linked() -> RouteManagerCore:
    """In domain 1, linked to a DRO that is in domain 2; calculated at 6 s."""
    c = core()
    c.on_portal_up(PortalUp(1, 1, 1), 0)
    c.on_portal_up(PortalUp(2, 0, 1), 0)
    c.on_route_info(2, route(record()), 0)
    c.on_portal_up(PortalUp(2, 0, 1, OTHER), 0)
    for n in range(1, 8):
        keep_alive(c, n, s(n))
    c.take_effects()
    return c


def keep_alive(c: RouteManagerCore, sqn: int, now_ns: int, described: DroRecord | None = None) -> None:
    c.on_route_info(2, route(described or record(), sqn + 1, c.routes.signature), now_ns)
    c.on_timer(now_ns)


def changes(c: RouteManagerCore) -> list[TopologyChange]:
    return [e.what for e in c.take_effects() if isinstance(e, TopologyChanged)]


def infos(c: RouteManagerCore) -> list[tuple[tuple[int, ...], int]]:
    return [(e.workers, read_head(e.message).node_id) for e in c.take_effects() if isinstance(e, SendInfo)]


def test_a_link_whose_end_is_not_known_gets_information_and_no_traffic() -> None:
    c = core()
    c.on_portal_up(PortalUp(1, 1, 1), 0)
    assert infos(c) == [((1,), ME)]
    c.on_portal_up(PortalUp(2, 0, 1), ms(5))
    assert infos(c) == [((2,), ME)]
    assert c.unknown_since_ns == {2: ms(5)}
    assert [n.node_id for n in c.routes.own().neighbours] == [1]
    c.on_portal_up(PortalUp(2, 0, 1, OTHER), ms(9))
    assert c.unknown_since_ns == {}
    assert infos(c) == [((1, 2), ME)], "both learn of the neighbour"
    assert c.routes.own().version == 2


@pytest.mark.parametrize("report", [PortalUp(2, 0, 1, OTHER), PortalUp(2, 0, 5, OTHER)])
def test_a_link_that_reports_again_is_told_nothing_twice(report: PortalUp) -> None:
    c = linked()
    c.on_portal_up(report, s(8))
    assert all(node == ME for _, node in infos(c))


@pytest.mark.parametrize("neighbour", [0, OTHER + 1])
def test_a_link_with_another_end_is_a_new_one(neighbour: int) -> None:
    c = linked()
    c.on_portal_up(PortalUp(2, 0, 1, neighbour), s(8))
    assert ((2,), OTHER) in infos(c)
    c = linked()
    c.on_portal_up(PortalUp(2, 0, 1, neighbour), s(8))
    up = [TopologyChange.LINK_UP] if neighbour else []
    assert changes(c) == [TopologyChange.LINK_DOWN, *up]


def test_signatures_are_those_of_all_records_and_agree_without_a_change() -> None:
    c = linked()
    assert c.routes.signature == topology_signature([c.routes.own(), record()])
    keep_alive(c, 9, s(9), record(2))
    assert changes(c) == [TopologyChange.NODE_UPDATED]
    assert c.routes.signature == topology_signature([c.routes.own(), record(2)])
    assert c.routes.is_settled, "a new version with the same neighbours needs no other routes"


def test_a_dro_that_is_not_heard_takes_its_routes_along() -> None:
    c = linked()
    assert c.routes.table is not None
    assert len(c.routes.table.routes) == 2
    c.on_timer(ms(10_500))
    assert changes(c) == []
    c.on_timer(ms(11_250))
    assert changes(c) == [TopologyChange.DRO_TIMED_OUT]
    c.on_timer(ms(16_500))
    (table,) = (e for e in c.take_effects() if isinstance(e, SendTable))
    assert table.table.routes == ()
    assert table.is_new


def test_a_dro_that_times_out_after_its_link_is_lost_does_not_lengthen_the_wait() -> None:
    c = linked()
    c.on_portal_gone(2, ms(9_100))
    c.on_timer(ms(11_250))
    assert changes(c) == [TopologyChange.LINK_DOWN, TopologyChange.DRO_TIMED_OUT]
    c.on_timer(ms(14_000))
    assert not c.routes.is_settled
    c.take_effects()
    c.on_timer(ms(14_250))
    (table,) = (e for e in c.take_effects() if isinstance(e, SendTable))
    assert table.table.routes == ()


def test_differing_signatures_are_warned_about_once_while_they_differ() -> None:
    c = linked()
    warnings = []
    for n in range(8, 40):
        c.on_route_info(2, route(record(), n + 1, 1 if n < 30 else c.routes.signature), s(n))
        c.on_timer(s(n))
        warnings += [(n, e) for e in c.take_effects() if isinstance(e, SignaturesDiffer)]
    ((at, warning),) = warnings
    assert 18 <= at <= 20
    assert [other.record.name for other in warning.dros] == ["G2"]
    for n in range(40, 60):
        c.on_route_info(2, route(record(), n + 1, 1), s(n))
        c.on_timer(s(n))
        warnings += [(n, e) for e in c.take_effects() if isinstance(e, SignaturesDiffer)]
    assert len(warnings) == 2


def test_no_warning_about_signatures_while_the_topology_changes() -> None:
    c = linked()
    for n in range(8, 40):
        keep_alive(c, n, s(n), record(n, ME, 2, n))
    effects = c.take_effects()
    assert not any(isinstance(e, SignaturesDiffer) for e in effects)
    assert sum(isinstance(e, StillChanging) for e in effects) == 2, "in each wait of ten seconds"


@pytest.mark.parametrize(
    ("neighbour", "reason"), [(DRO_BIT | 9, "the neighbour is not heard"), (ME, "the neighbour does not list it")]
)
def test_a_link_that_only_one_dro_lists_is_told_once(neighbour: int, reason: str) -> None:
    c = linked()
    if neighbour == ME:
        c.on_portal_gone(2, s(8))
        c.on_portal_up(PortalUp(2, 0, 1), s(8))  # to another DRO, which has told nothing
    described = record(2, ME, neighbour, 2) if neighbour != ME else record()
    found = []
    for n in range(8, 60):
        c.on_route_info(2, route(described, n + 1, c.routes.signature), s(n))
        c.on_timer(s(n))
        found += [(n, e) for e in c.take_effects() if isinstance(e, OneSidedLink)]
    ((at, link),) = found
    assert 18 <= at <= 24
    assert (link.dro, link.reason) == ("G2", reason)
    assert link.neighbour == ("G1" if neighbour == ME else str(neighbour))


def test_a_forced_calculation_comes_after_the_backoff_though_nothing_has_changed() -> None:
    c = linked()
    c.force(s(8))
    assert changes(c) == [TopologyChange.FORCED]
    keep_alive(c, 9, s(9), record(2))
    for n in range(10, 16):
        keep_alive(c, n, s(n), record(2))
    assert sum(isinstance(e, SendTable) and e.is_new for e in c.take_effects()) == 1


def test_every_deadline_is_met_by_its_own_timer() -> None:
    c = linked()
    now_ns = s(7)
    for _ in range(200):
        deadline = c.next_deadline()
        assert deadline is not None
        assert deadline > now_ns or deadline in (0, now_ns)
        now_ns = max(now_ns, deadline)
        c.on_timer(now_ns)
    assert now_ns > s(20), "time goes on"


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_of_two_links_to_a_dro_both_ends_take_the_older_one(order: tuple[int, int]) -> None:
    portals = OwnPortals(ME)
    for worker in order:
        portals.set(worker, Portal(0, 1))
    for worker in order:
        portals.set(worker, Portal(0, 1, OTHER, since_us=1000 + worker))
    assert (list(portals.accepted), list(portals.refused)) == ([1], [2])
    portals.remove(1)
    portals.set(1, Portal(0, 1, OTHER, since_us=2000))
    assert (list(portals.accepted), list(portals.refused)) == ([2], [1]), "it is the older one now"


def test_a_link_that_leads_back_is_refused() -> None:
    c = core()
    for worker in (2, 3):
        c.on_portal_up(PortalUp(worker, 0, 1, ME), 0)
    refused = [e for e in c.take_effects() if isinstance(e, LinkRefused)]
    assert {e.worker: e for e in refused} == {w: LinkRefused(w, ME, LOOP) for w in (2, 3)}
    assert c.routes.own().neighbours == ()


def test_a_second_link_is_told_of_routes_when_the_first_one_goes() -> None:
    c = linked()
    c.on_portal_up(PortalUp(3, 0, 4), s(8))
    c.on_portal_up(PortalUp(3, 0, 4, OTHER), s(8))
    effects = c.take_effects()
    assert LinkRefused(3, OTHER, DUPLICATE) in effects
    assert not any(isinstance(e, TopologyChanged) for e in effects)
    c.on_portal_gone(2, s(9))
    assert changes(c) == [TopologyChange.LINK_DOWN, TopologyChange.LINK_UP]
    assert c.routes.own().neighbours[-1] == Neighbour(OTHER, 4, 4)


def test_a_large_calculation_is_done_in_pieces_and_others_are_heard_meanwhile() -> None:
    c = core()
    for worker in range(1, 251):
        c.on_portal_up(PortalUp(worker, worker, 1), 0)
    c.take_effects()
    c.on_timer(ms(5250))
    assert c.routes.is_calculating
    assert c.next_deadline() == 0
    c.on_route_info(1, route(record(1, 7)), ms(5260))
    assert ((tuple(range(2, 251)), OTHER)) in infos(c)
    pieces = 0
    while c.routes.is_calculating:
        c.on_timer(ms(5300))
        pieces += 1
    assert pieces > 1
    assert c.routes.table is not None
    assert len(c.routes.table.routes) == 250 * 249
    assert not c.routes.is_settled, "what came meanwhile is calculated next"


def test_a_change_undone_during_a_calculation_leaves_the_signature_of_now() -> None:
    c = core()
    for worker in range(1, 251):
        c.on_portal_up(PortalUp(worker, worker, 1), 0)
    while not c.routes.is_settled:
        c.on_timer(ms(5250))
    c.force(s(6))
    c.on_timer(ms(11_250))
    assert c.routes.is_calculating
    c.on_portal_up(PortalUp(1, 1, 9), ms(11_260))
    c.on_portal_up(PortalUp(1, 1, 1), ms(11_270))
    while c.routes.is_calculating:
        c.on_timer(ms(11_300))
    assert c.routes.is_settled
    assert c.routes.signature == topology_signature([c.routes.own()])
