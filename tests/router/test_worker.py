"""The route manager's process: what the portals tell it, and what it says to them, to the parent and in the log."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from dro.bus.messages import (
    ROUTE_MESSAGES,
    ListRows,
    Origin,
    PeerDown,
    PeerRemoved,
    PeerUp,
    PortalGone,
    PortalUp,
    Role,
    Route,
    RouteInfoHeard,
    RoutesCalculated,
    RouteTable,
    Rows,
    SendRouteInfo,
)
from dro.clock import ms, s
from dro.config.dro_xml.model import DroConfig
from dro.errors import LocalProtocolError
from dro.log.events import LogEvent
from dro.metrics.slots import RouterSlot as Slot
from dro.shares import METHOD
from router.core import OwnDro
from router.route_info import RouteHead, read_head, read_record, write_route
from router.route_info_exchange import ExchangeTiming
from router.route_recalculation import REPORT_HOLD_NS, Timing
from router.settings import exchange_timing_of, gateway_version, own_dro, timing_of
from router.topology import DroRecord, Hotlink, Neighbour, configuration_signature
from router.worker import RouteManager, run_route_manager
from tests.builders.dro_file import OTHER_KEYS, ROUTE_KEYS, endpoint, gateway, load
from tests.fakes.um_contexts import Stepper
from tests.fakes.worker import FakeWorker, logged

NODE = 1 << 63 | 5
TIMING = Timing(check_ns=ms(10), backoff_ns=ms(100), warning_ns=ms(300))
EXCHANGE = ExchangeTiming(propagation_ns=s(1000), timeout_ns=s(4000), max_hops=9)
ORIGINS = (Origin(10, 1, 0), Origin(20, 1, 0))
BOTH_WAYS = (Route((20,), 10, 2, 1), Route((10,), 20, 1, 2))


class Manager:
    """A route manager and what its portals send; worker k is in domain 10 k."""

    def __init__(self, stepper: Stepper, folder: Path) -> None:
        self.stepper = stepper
        self.told: list[tuple[int, bytes]] = []
        self.began_ns = stepper.clock.time_ns
        self.worker = FakeWorker(stepper.loop, folder, 0, "route-manager", Role.ROUTE_MANAGER)
        self.start()

    def start(self) -> None:
        """A life of the process."""
        RouteManager(self.worker.ctx, OwnDro(NODE, "G1"), TIMING, EXCHANGE)

    def hear(self, worker: int, message: PortalUp | PortalGone | RouteTable | RouteInfoHeard) -> None:
        self.worker.channels.on_ctl(worker, ROUTE_MESSAGES.encode(message))

    def up(self, worker: int, cost: int = 1) -> None:
        self.worker.peers.setdefault(worker, PeerUp(worker, 1, f"P{worker}", Role.ENDPOINT, "", ""))
        self.hear(worker, PortalUp(worker, worker * 10, cost))

    def begin(self, worker: int, role: Role = Role.ENDPOINT) -> None:
        peer = self.worker.peers[worker] = PeerUp(worker, 1, f"P{worker}", role, "", "")
        self.worker.told["on_peer_up"](peer)

    def sent(self) -> list[tuple[int, object]]:
        """Tables, since the last call; what it tells other DROs is in `told`."""
        frames, self.worker.channels.sent = self.worker.channels.sent, []
        decoded = [(worker, ROUTE_MESSAGES.decode(frame)) for worker, frame in frames]
        self.told += [(worker, m.message) for worker, m in decoded if isinstance(m, SendRouteInfo)]
        return [(worker, m) for worker, m in decoded if not isinstance(m, SendRouteInfo)]

    def heads(self) -> list[tuple[int, RouteHead]]:
        """What it has told other DROs since the last call."""
        self.sent()
        told, self.told = self.told, []
        return [(worker, read_head(message)) for worker, message in told]

    def next_after_ms(self) -> float | None:
        """When it wakes up next, in ms from now."""
        deadline = self.stepper.loop.next_deadline()
        after_ms = None if deadline is None else (deadline - self.stepper.clock.time_ns) / ms(1)
        return after_ms if after_ms is not None and after_ms < 900_000 else None  # else its own route information


@pytest.fixture
def manager(stepper: Stepper, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Manager:
    caplog.set_level(logging.INFO)
    return Manager(stepper, tmp_path)


def calculated(manager: Manager, caplog: pytest.LogCaptureFixture) -> None:
    """Portals 1 and 2 work and have their table, version 1."""
    manager.up(1)
    manager.up(2)
    manager.stepper.run(100)
    manager.sent()
    manager.worker.reports.clear()
    logged(caplog)


def test_each_portal_gets_the_routes_that_enter_or_leave_at_it(manager: Manager) -> None:
    """All pairs of 255 domains are 65,000 routes, and those of one portal 508."""
    for worker in (1, 2, 3, 4):
        manager.up(worker)
    manager.stepper.run(100)
    sent = manager.sent()
    assert [worker for worker, _ in sent] == [1, 2, 3, 4]
    for worker, table in sent:
        assert isinstance(table, RouteTable)
        pairs = {(*r.source_domains, r.interested_domain, r.ingress, r.egress) for r in table.routes}
        others = [other for other in (1, 2, 3, 4) if other != worker]
        expected = {(10 * worker, 10 * other, worker, other) for other in others}
        assert pairs == expected | {(b, a, d, c) for a, b, c, d in expected}
        assert len(table.routes) == 6
    assert isinstance(report := manager.worker.reports[-1], RoutesCalculated)
    assert report.routes == 12


def test_the_table_goes_to_every_portal_once_it_was_quiet(manager: Manager, caplog: pytest.LogCaptureFixture) -> None:
    manager.up(1)
    manager.up(2)
    first = (1 << 32) + 1
    assert logged(caplog) == [
        ("INFO", LogEvent.LINK_UP, {"version": 1, "node_id": 10, "route_version": "1.1"}),
        ("INFO", LogEvent.LINK_UP, {"version": 2, "node_id": 20, "route_version": "1.1"}),
    ]
    manager.stepper.run(90)
    assert (manager.sent(), manager.worker.reports) == ([], [])
    manager.stepper.run(10)
    assert manager.sent() == [(worker, RouteTable(first, BOTH_WAYS, ORIGINS)) for worker in (1, 2)]
    assert manager.worker.reports == [RoutesCalculated(first, 2)]
    ((level, event, fields),) = logged(caplog)
    assert 0 < float(str(fields.pop("took_s"))) < 60
    assert (level, event, fields) == ("INFO", LogEvent.ROUTES_CALCULATED, {"route_version": "1.1", "routes": 2})
    assert manager.next_after_ms() is None


def test_a_portal_that_starts_with_the_route_manager_gets_the_table_of_before(
    manager: Manager, caplog: pytest.LogCaptureFixture
) -> None:
    """Both had died: the portal had no routes until the back-off was over, though its siblings held the valid ones."""
    calculated(manager, caplog)
    before = (1 << 32) + 1
    manager.worker.incarnation = 2
    manager.start()
    manager.begin(1)
    manager.up(2)
    assert manager.sent() == [(2, RouteTable(before, BOTH_WAYS, ORIGINS))]
    manager.worker.peers[3] = PeerUp(3, 1, "P3", Role.ENDPOINT, "", "")
    manager.hear(3, PortalUp(3, 10, 1))
    assert manager.sent() == [], "one that leads elsewhere than when it was calculated waits for the next"
    manager.worker.incarnation = 3
    manager.start()
    manager.up(1)
    manager.up(2)
    assert [table for _, table in manager.sent()] == [RouteTable(before, BOTH_WAYS, ORIGINS)] * 2, "it is still kept"
    manager.stepper.run(1200)
    assert {t.version for _, t in manager.sent() if isinstance(t, RouteTable)} == {(3 << 32) + 1}


def test_a_portal_that_returns_unchanged_gets_the_table_and_nobody_else_hears_of_it(
    manager: Manager, caplog: pytest.LogCaptureFixture
) -> None:
    calculated(manager, caplog)
    manager.worker.told["on_peer_down"](PeerDown(1, 1))
    assert manager.next_after_ms() == 300, "the warning; the portal has a second to return"
    manager.begin(1)
    manager.up(1)
    assert manager.sent() == [(1, RouteTable((1 << 32) + 1, BOTH_WAYS, ORIGINS))]
    assert manager.next_after_ms() is None
    assert manager.worker.reports == []
    assert logged(caplog) == [
        ("INFO", LogEvent.LINK_DOWN, {"version": 3, "node_id": 10, "route_version": "1.2"}),
        ("INFO", LogEvent.LINK_UP, {"version": 4, "node_id": 10, "route_version": "1.1"}),
    ]


@pytest.mark.parametrize(
    ("how", "after_ms"),
    [("on_peer_down", 1000), ("on_peer_removed", 100), ("it says so", 100)],
)
def test_a_portal_that_is_gone_takes_its_routes_along(
    manager: Manager, caplog: pytest.LogCaptureFixture, how: str, after_ms: int
) -> None:
    """One that runs and has said so itself, as its link is lost or carries nothing, has to learn that, too."""
    calculated(manager, caplog)
    if how == "it says so":
        manager.hear(2, PortalGone(2))
    else:
        del manager.worker.peers[2]
        manager.worker.told[how](PeerDown(2, 1) if how == "on_peer_down" else PeerRemoved(2, 1))
    manager.stepper.run(after_ms - 10)
    assert manager.sent() == []
    manager.stepper.run(10)
    second = (1 << 32) + 2
    assert manager.sent() == [(worker, RouteTable(second, ())) for worker in manager.worker.peers]
    assert (2 in manager.worker.peers) is (how == "it says so")
    assert manager.worker.reports == [RoutesCalculated(second, 0)]


def test_a_new_cost_is_a_change_and_an_endless_change_is_warned_about_once(
    manager: Manager, caplog: pytest.LogCaptureFixture
) -> None:
    calculated(manager, caplog)
    for cost in range(2, 10):
        manager.up(1, cost)
        manager.stepper.run(50)
    told = logged(caplog)
    updated = {"node_id": NODE, "node_name": "G1", "route_version": "1.2"}
    assert told[:2] == [
        ("INFO", LogEvent.NODE_UPDATED, {**updated, "version": 3}),
        ("INFO", LogEvent.NODE_UPDATED, {**updated, "version": 4}),
    ]
    assert [line for line in told if line[0] == "WARNING"] == [("WARNING", LogEvent.ROUTES_LATE, {"waiting_ms": 300})]


def test_the_second_portal_of_a_domain_is_named(manager: Manager, caplog: pytest.LogCaptureFixture) -> None:
    calculated(manager, caplog)
    manager.hear(3, PortalUp(3, 20, 1))
    assert logged(caplog) == [("ERROR", LogEvent.DOMAIN_TAKEN, {"worker": 3, "domain": 20})]
    assert (manager.sent(), manager.next_after_ms()) == ([], None)


@pytest.mark.parametrize(("role", "is_waited_for"), [(Role.ENDPOINT, True), (Role.PEER, False), (Role.MONITOR, False)])
def test_only_an_endpoint_that_runs_is_waited_for(manager: Manager, role: Role, is_waited_for: bool) -> None:
    manager.up(1)
    manager.stepper.run(50)
    manager.begin(2, role)
    manager.stepper.run(50)
    assert bool(manager.sent()) is not is_waited_for
    if is_waited_for:
        manager.stepper.run(REPORT_HOLD_NS // ms(1) - 60)
        assert manager.sent() == []
        manager.stepper.run(10)
        assert manager.sent() == [(worker, RouteTable((1 << 32) + 1, ())) for worker in (1, 2)]


def test_it_wakes_up_for_a_portal_that_it_waits_for(manager: Manager) -> None:
    manager.up(1)
    manager.begin(2)
    assert manager.next_after_ms() == 300, "the warning"
    manager.stepper.run(300)
    assert manager.next_after_ms() == REPORT_HOLD_NS / ms(1) - 300


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (ROUTE_MESSAGES.encode(RouteTable(1, ())), "^worker 1 sent what the route manager sends$"),
        (b"garbage", "^worker 1 sent what is none of the route manager's: .+"),
    ],
)
def test_what_is_not_for_the_route_manager_is_a_bug(manager: Manager, frame: bytes, why: str) -> None:
    with pytest.raises(LocalProtocolError, match=why):
        manager.worker.channels.on_ctl(1, frame)


OTHER_CHANNEL = (
    '<lbm-attributes><option name="resolver_multicast_address" scope="context" value="239.1.1.1"/></lbm-attributes>'
)


def configured(check_ms: int, backoff_ms: int, warning_ms: int, more: str = "") -> DroConfig:
    recalculation = f'<route-recalculation backoff-interval="{backoff_ms}" warning-interval="{warning_ms}"/>'
    daemon = f'<route-info check-interval="{check_ms}"/>{recalculation}{more}'
    return load(gateway(endpoint("P1", 10), endpoint("P2", 20, OTHER_CHANNEL), daemon=daemon))


def test_the_intervals_are_those_of_the_configuration() -> None:
    assert timing_of(configured(20, 200, 2000)) == Timing(ms(20), ms(200), s(2))


def test_other_intervals_hold_at_once(manager: Manager, caplog: pytest.LogCaptureFixture) -> None:
    calculated(manager, caplog)
    manager.up(1, 7)
    manager.worker.told["on_reconfigure"](configured(10, 100, 300))
    logged(caplog)
    assert manager.next_after_ms() == 100
    changed = ("INFO", LogEvent.CONFIGURATION_CHANGED, {"changed": ["route_info", "route_recalculation"]})
    for _ in range(2):  # the second brings nothing new
        manager.worker.told["on_reconfigure"](configured(10, 40, 300))
        assert manager.next_after_ms() == 40
    assert logged(caplog) == [changed]
    manager.stepper.run(40)
    assert [worker for worker, _ in manager.sent()] == [1, 1, 2]


def test_sharing_may_be_switched_on_while_it_runs(manager: Manager, caplog: pytest.LogCaptureFixture) -> None:
    """Others are told at once, and another DRO that is not ready is named."""
    calculated(manager, caplog)
    manager.hear(1, RouteInfoHeard(1, route_of(neighbours=(40,))))
    manager.stepper.run(500)
    assert {row["sharing"] for row in rows_of(manager, "topology")} == {""}
    manager.worker.told["on_reconfigure"](configured(10, 100, 300))
    manager.heads()
    logged(caplog)
    for _ in range(2):  # the second brings nothing new
        manager.worker.told["on_reconfigure"](
            configured(10, 100, 300, "<extensions><equal-cost-sharing/></extensions>")
        )
    changed = [extra for _, event, extra in logged(caplog) if event is LogEvent.CONFIGURATION_CHANGED]
    assert changed == [{"changed": ["equal_cost_sharing"]}]
    ready = {row["dro"]: row["sharing"] for row in rows_of(manager, "topology")}
    assert ready == {"G1": "ready", "G2": "is not ready for it"}
    manager.sent()
    assert {read_record(message).sharing for _, message in manager.told} == {METHOD}
    manager.stepper.run(500)
    manager.hear(1, RouteInfoHeard(1, route_of(neighbours=(40,), version=2, sharing=METHOD)))
    manager.stepper.run(500)
    assert {row["sharing"] for row in rows_of(manager, "topology")} == {"in use"}


def authenticated(keys: str) -> DroConfig:
    given = f"<extensions><route-authentication><key-file>{keys}</key-file></route-authentication></extensions>"
    return configured(10, 100, 300, given)


def test_keys_of_a_reload_hold_at_once(manager: Manager, caplog: pytest.LogCaptureFixture) -> None:
    """What is signed with none of them is counted and named a few times, with what to do, and no key is."""
    calculated(manager, caplog)
    manager.worker.told["on_reconfigure"](configured(10, 100, 300))
    logged(caplog)
    for _ in range(2):  # the second brings nothing new
        manager.worker.told["on_reconfigure"](authenticated(ROUTE_KEYS))
    assert [extra for _, _, extra in logged(caplog)] == [{"changed": ["route_authentication"]}]
    for _ in range(20):
        manager.hear(1, RouteInfoHeard(1, route_of()))
    named = logged(caplog)
    assert 0 < len(named) < 20
    assert {(level, event) for level, event, _ in named} == {("WARNING", LogEvent.ROUTE_INFO_UNSIGNED)}
    remedy = "give all DROs of the network the same keys; else find who sends it there"
    told = {"portal": "P1", "dro": "", "node_id": OTHER, "reason": "it is not signed", "remedy": remedy}
    assert named[0][2] == told
    assert manager.worker.counters[Slot.INFO_UNAUTHENTIC] == 20
    manager.worker.told["on_reconfigure"](authenticated(OTHER_KEYS))
    assert [extra for _, _, extra in logged(caplog)] == [{"changed": ["route_authentication"]}]


def test_the_keys_of_the_configuration_sign(stepper: Stepper, tmp_path: Path) -> None:
    worker = FakeWorker(stepper.loop, tmp_path, 0, "route-manager", Role.ROUTE_MANAGER)
    run_route_manager(worker.ctx, config := authenticated(ROUTE_KEYS))
    worker.channels.on_ctl(1, ROUTE_MESSAGES.encode(PortalUp(1, 10, 1)))
    told = [ROUTE_MESSAGES.decode(frame) for _, frame in worker.channels.sent]
    keys = own_dro(config, NODE).authentication
    assert keys is not None
    assert [keys.objection(message.message) for message in told if isinstance(message, SendRouteInfo)] == [""]


def test_the_route_manager_lists_its_routes_and_nothing_else(
    manager: Manager, caplog: pytest.LogCaptureFixture
) -> None:
    ask = manager.worker.told["on_list"]
    assert ask(ListRows(1, "routes", "", 0)) == Rows(1, "[]", 0, "")
    for worker in (1, 2):
        manager.begin(worker)
    calculated(manager, caplog)
    rows = rows_of(manager, "routes")
    assert [tuple(row.values()) for row in rows] == [(20, 10, "P2", "P1", 100), (10, 20, "P1", "P2", 100)]
    assert [*rows[0]] == ["from_domain", "to_domain", "ingress", "egress", "share"]
    assert ask(ListRows(3, "topics", "", 0)) == Rows(3, "[]", 0, "route-manager lists no topics")


def test_its_process_is_ready_once_it_can_hear(stepper: Stepper, tmp_path: Path) -> None:
    worker = FakeWorker(stepper.loop, tmp_path, 0, "route-manager", Role.ROUTE_MANAGER)
    run_route_manager(worker.ctx, configured(10, 20, 300))
    assert worker.ends == ["ready", "run"]
    worker.channels.on_ctl(1, ROUTE_MESSAGES.encode(PortalUp(1, 10, 1)))
    assert stepper.loop.next_deadline() == stepper.clock.time_ns + ms(20)


# other DROs

OTHER = 1 << 63 | 9


def route_of(
    node_id: int = OTHER, *, version: int = 1, sqn: int = 1, neighbours: tuple[int, ...] = (20,), sharing: int = 0
) -> bytes:
    links = tuple(Neighbour(n, 1, 1) for n in sorted(neighbours))
    record = DroRecord(node_id, links, version=version, name="G2", sharing=sharing)
    return write_route(record, sqn=sqn, ttl=5, topology=7, configuration=0, gateway_version=0)


def linked(manager: Manager, caplog: pytest.LogCaptureFixture) -> None:
    """Portals 1 and 2 as `calculated`, and 3, a link to a DRO that is known."""
    calculated(manager, caplog)
    for worker, role in ((1, Role.ENDPOINT), (2, Role.ENDPOINT), (3, Role.PEER)):
        manager.begin(worker, role)
    manager.hear(1, PortalUp(1, 10, 1))
    manager.hear(2, PortalUp(2, 20, 1))
    manager.hear(3, PortalUp(3, 0, 1))
    manager.hear(3, RouteInfoHeard(3, route_of(neighbours=(NODE, 30))))
    manager.hear(3, PortalUp(3, 0, 1, OTHER))
    manager.stepper.run(100)


def test_a_link_brings_the_routes_behind_it(manager: Manager, caplog: pytest.LogCaptureFixture) -> None:
    linked(manager, caplog)
    tables = dict(manager.sent())
    assert isinstance(table := tables[3], RouteTable)
    assert set(table.routes) == {
        Route((30,), 10, 3, 1), Route((30,), 20, 3, 2), Route((10,), 30, 1, 3), Route((20,), 30, 2, 3),
    }  # fmt: skip
    assert table.origins == (Origin(10, 1, 0), Origin(20, 1, 0), Origin(30, 3, 1))
    assert isinstance(table := tables[1], RouteTable)
    assert [o.domain_id for o in table.origins] == [10, 20, 30]
    told = [(event, fields.get("node_id"), fields.get("node_name")) for _, event, fields in logged(caplog)]
    assert told[:2] == [(LogEvent.DRO_DISCOVERED, OTHER, "G2"), (LogEvent.LINK_UP, OTHER, "G2")]


def test_a_link_gets_tables_while_it_is_lost_and_again_the_one_that_holds_when_it_is_back(
    manager: Manager, caplog: pytest.LogCaptureFixture
) -> None:
    linked(manager, caplog)
    first = dict(manager.sent())[3]
    manager.hear(3, PortalGone(3))
    manager.hear(3, PortalUp(3, 0, 1))
    assert manager.sent() == [], "nobody knows yet where it leads"
    manager.hear(3, PortalUp(3, 0, 1, OTHER + 1))
    assert manager.sent() == [], "the table is for a link to another DRO"
    manager.hear(3, PortalUp(3, 0, 1, OTHER))
    assert manager.sent() == [(3, first)]
    manager.hear(3, PortalGone(3))
    manager.hear(3, RouteInfoHeard(3, route_of(neighbours=(NODE, 30), sqn=2)))
    manager.stepper.run(100)
    tables = dict(manager.sent())
    assert isinstance(table := tables[3], RouteTable)
    assert isinstance(first, RouteTable)
    assert (table.version, table.routes) == (first.version + 1, ())
    manager.hear(3, PortalUp(3, 0, 1, OTHER))
    assert manager.sent() == [], "another one will come"
    manager.stepper.run(100)
    tables = dict(manager.sent())
    assert isinstance(table := tables[3], RouteTable)
    assert (table.version, table.routes) == (first.version + 2, first.routes)


def test_it_tells_of_itself_and_passes_on_what_it_hears(manager: Manager, caplog: pytest.LogCaptureFixture) -> None:
    linked(manager, caplog)
    own = [(worker, head) for worker, head in manager.heads() if head.node_id == NODE]
    assert own[0] == (1, RouteHead(NODE, 0, 1, 1, 9))
    assert {worker for worker, _ in own} == {1, 2, 3}
    manager.hear(3, RouteInfoHeard(3, route_of(neighbours=(NODE, 30), sqn=2)))
    assert manager.heads() == [(worker, RouteHead(OTHER, 7, 1, 2, 4)) for worker in (1, 2)]
    manager.hear(2, RouteInfoHeard(2, route_of(neighbours=(NODE, 30), sqn=2)))
    assert manager.heads() == []
    page = manager.worker.ctx.counters
    assert (page[Slot.INFO_HEARD], page[Slot.INFO_REPEATED]) == (3, 1)
    assert page[Slot.INFO_SENT] == len(own) + 4


def test_a_new_life_goes_on_with_version_and_sqn(manager: Manager, caplog: pytest.LogCaptureFixture) -> None:
    linked(manager, caplog)
    last = [head for _, head in manager.heads() if head.node_id == NODE][-1]
    manager.start()
    manager.up(1)
    (_, first), *_ = manager.heads()
    assert (first.version, first.sqn) == (last.version + 1, last.sqn + 1)


def test_its_page_shows_the_network_and_what_led_to_calculations(
    manager: Manager, caplog: pytest.LogCaptureFixture
) -> None:
    """Each cause another time; over a restart of the process the counts go on."""
    page = manager.worker.counters
    manager.up(1)
    manager.up(2)
    assert (page[Slot.BACKOFF], page[Slot.NETWORK_DROS], page[Slot.ROUTES]) == (1, 0, 0)
    manager.stepper.run(100)
    assert (page[Slot.BACKOFF], page[Slot.NETWORK_DROS], page[Slot.NETWORK_TRDS], page[Slot.ROUTES]) == (0, 1, 2, 2)
    assert 0 < page[Slot.RECALCULATION_US] < s(60) // 1000
    alone = page[Slot.SIGNATURE]
    for node in (OTHER, OTHER + 1, OTHER + 2):
        manager.hear(1, RouteInfoHeard(1, route_of(node, neighbours=(20, 30 + (node & 0xF)))))
    manager.stepper.run(500)
    assert (page[Slot.NETWORK_DROS], page[Slot.NETWORK_TRDS]) == (4, 5)
    (*_, told) = [head for _, head in manager.heads() if head.node_id == NODE]
    manager.hear(1, RouteInfoHeard(1, route_of(neighbours=(20,), version=2, sqn=2)))
    for _ in range(5):
        manager.worker.told["on_recalculate"]()
    manager.stepper.run(500)
    assert (page[Slot.NETWORK_DROS], page[Slot.NETWORK_TRDS]) == (4, 4)
    for _ in range(4):
        manager.hear(2, PortalGone(2))
        manager.hear(2, PortalUp(2, 20, 1))
    manager.stepper.run(6_000_000, step_ms=10_000)
    assert (page[Slot.NETWORK_DROS], page[Slot.NETWORK_TRDS], page[Slot.ROUTES]) == (1, 2, 2)
    (*_, told_last) = [head for _, head in manager.heads() if head.node_id == NODE]
    assert len({alone, told.topology, told_last.topology}) == 3
    assert page[Slot.SIGNATURE] == told_last.topology
    causes = {
        Slot.RECALCULATED_LINK_UP: 6, Slot.RECALCULATED_LINK_DOWN: 4, Slot.RECALCULATED_FORCED: 5,
        Slot.RECALCULATED_NEW_DRO: 3, Slot.RECALCULATED_NODE_UPDATED: 1, Slot.RECALCULATED_DRO_TIMEOUT: 3,
    }  # fmt: skip
    assert {slot: page[slot] for slot in causes} == causes
    assert page[Slot.GRAPH_VERSION] == sum(causes.values())
    manager.start()
    manager.up(1)
    assert (page[Slot.RECALCULATED_LINK_UP], page[Slot.GRAPH_VERSION]) == (7, sum(causes.values()) + 1)


@pytest.mark.parametrize(
    ("message", "level", "event", "slot"),
    [
        (b"", "ERROR", LogEvent.ROUTE_INFO_MALFORMED, Slot.INFO_MALFORMED),
        (route_of(version=2, neighbours=(0,)), "ERROR", LogEvent.ROUTE_INFO_REFUSED, Slot.INFO_REFUSED),
        (route_of(NODE, version=30000), "ERROR", LogEvent.NODE_ID_USED_TWICE, Slot.INFO_OWN_NODE_ID),
    ],
    ids=["malformed", "refused", "own node id"],
)
def test_what_cannot_be_used_is_counted_and_named_a_few_times(
    manager: Manager, caplog: pytest.LogCaptureFixture, message: bytes, level: str, event: LogEvent, slot: Slot
) -> None:
    linked(manager, caplog)
    logged(caplog)
    manager.heads()
    for _ in range(20):
        manager.hear(3, RouteInfoHeard(3, message))
    assert manager.heads() == []
    assert manager.worker.ctx.counters[slot] == 20
    lines = logged(caplog)
    assert len(lines) == 5
    assert {line[:2] for line in lines} == {(level, event)}
    assert lines[0][2]["portal"] == "P3"


def test_a_second_link_to_a_dro_is_an_error(manager: Manager, caplog: pytest.LogCaptureFixture) -> None:
    linked(manager, caplog)
    logged(caplog)
    for worker, neighbour in ((4, OTHER), (5, NODE + 2)):
        manager.begin(worker, Role.PEER)
        manager.hear(worker, PortalUp(worker, 0, 1, neighbour))
    manager.begin(6, Role.PEER)
    manager.hear(6, PortalUp(6, 0, 1, NODE + 2))
    lines = [line for line in logged(caplog) if line[0] == "ERROR"]
    assert [(event, f["portal"], f.get("dro"), f["reason"]) for _, event, f in lines] == [
        (LogEvent.NAMED_LINK_REFUSED, "P4", "G2", "duplicate adjacent node id"),
        (LogEvent.LINK_REFUSED, "P6", None, "duplicate adjacent node id"),
    ]


def test_indexes_and_signatures_that_do_not_fit_are_named(manager: Manager, caplog: pytest.LogCaptureFixture) -> None:
    calculated(manager, caplog)
    manager.hear(1, PortalUp(1, 10, 1, 0, 3))
    record = DroRecord(OTHER, (Neighbour(10, 1, 1),), (Hotlink(10, 3),), 1, "G2")
    for sqn in range(1, 80):
        message = write_route(record, sqn=sqn, ttl=1, topology=7, configuration=0, gateway_version=0)
        manager.hear(1, RouteInfoHeard(1, message))
        manager.stepper.run(10)
    lines = [(event, fields) for level, event, fields in logged(caplog) if level in ("ERROR", "WARNING")]
    index, differ = lines
    assert index[0] is LogEvent.HOTLINK_INDEX_SHARED
    assert (index[1]["domain"], index[1]["index"], index[1]["dros"]) == (10, 3, ["G1", "G2"])
    assert differ[0] is LogEvent.SIGNATURES_DIFFER
    assert differ[1]["dros"] == ["G2 00000007"]


def test_an_operator_can_force_a_calculation(manager: Manager, caplog: pytest.LogCaptureFixture) -> None:
    calculated(manager, caplog)
    manager.worker.told["on_recalculate"]()
    manager.stepper.run(90)
    assert manager.sent() == []
    manager.stepper.run(20)
    assert [worker for worker, _ in manager.sent()] == [1, 2]
    assert logged(caplog)[0] == ("INFO", LogEvent.RECALCULATION_FORCED, {"version": 3, "route_version": "1.2"})


def rows_of(manager: Manager, what: str, text: str = "") -> list[dict[str, object]]:
    listed: list[dict[str, object]] = []
    cursor = 0
    while True:
        answer = manager.worker.told["on_list"](ListRows(1, what, text, cursor))
        assert isinstance(answer, Rows)
        assert answer.problem == ""
        listed += json.loads(answer.rows)
        if not (cursor := answer.cursor):
            return listed


def test_the_topology_is_listed_with_what_is_wrong_in_it(manager: Manager, caplog: pytest.LogCaptureFixture) -> None:
    linked(manager, caplog)
    for worker in (4, 5, 6):
        manager.begin(worker, Role.PEER)
    manager.hear(4, PortalUp(4, 0, 2, OTHER))
    manager.hear(5, PortalUp(5, 0, 1))
    third = OTHER + 1
    manager.hear(3, RouteInfoHeard(3, route_of(third, neighbours=(OTHER,))))
    manager.hear(3, RouteInfoHeard(3, route_of(third + 1, neighbours=())))
    manager.stepper.run(2000)
    rows = rows_of(manager, "topology")
    shown = [
        (r["dro"], r["is_own"], r["portal"], r["kind"], r["neighbour"], r["ingress_cost"], r["remark"]) for r in rows
    ]
    assert shown[:6] == [
        ("G1", True, "P1", "TRD", "10", 1, ""),
        ("G1", True, "P2", "TRD", "20", 1, ""),
        ("G1", True, "P3", "DRO", str(OTHER), 1, ""),
        ("G1", True, "P4", "DRO", str(OTHER), 2, "duplicate adjacent node id"),
        ("G1", True, "P5", "DRO", "", 1, "no neighbour for 2 s"),
        ("G1", True, "P6", "", "", 0, "down"),
    ]
    assert shown[6:] == [
        ("G2", False, "", "TRD", "30", 1, ""),
        ("G2", False, "", "DRO", str(NODE), 1, ""),
        ("G2", False, "", "DRO", str(OTHER), 1, "that DRO does not list this one"),
        ("G2", False, "", "", "", 0, ""),
    ]
    assert {(r["signature"], r["agrees"], r["age_s"]) for r in rows[6:8]} == {("00000007", False, 2.1)}


def test_a_path_is_listed_node_by_node(manager: Manager, caplog: pytest.LogCaptureFixture) -> None:
    linked(manager, caplog)
    rows = rows_of(manager, "path", "10 30")
    assert [tuple(row.values()) for row in rows] == [
        ("TRD", "10", "", "", 0, "", 0, 1, 100),
        ("DRO", str(NODE), "G1", "P1", 1, "P3", 1, 1, 100),
        ("DRO", str(OTHER), "G2", "", 1, "", 1, 1, 100),
        ("TRD", "30", "", "", 0, "", 0, 1, 100),
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("10 99", "no DRO that is known is in domain 99"),
        ("10", "'10' is no pair of domain ids"),
        (f"10 {OTHER}", f"no DRO that is known is in domain {OTHER}"),
        ("10 40", "domain 40 cannot be reached from domain 10"),
    ],
)
def test_a_path_that_does_not_exist_says_why(
    manager: Manager, caplog: pytest.LogCaptureFixture, text: str, why: str
) -> None:
    ask = manager.worker.told["on_list"]
    assert ask(ListRows(1, "path", "10 20", 0)) == Rows(1, "[]", 0, "no routes are calculated yet")
    calculated(manager, caplog)
    manager.hear(1, RouteInfoHeard(1, route_of(neighbours=(40,))))
    manager.stepper.run(100)
    assert ask(ListRows(1, "path", text, 0)) == Rows(1, "[]", 0, why)


def test_what_a_dro_tells_of_itself_is_that_of_the_configuration() -> None:
    config = configured(10, 20, 300)
    me = own_dro(config, NODE)
    assert me.node_id == NODE
    assert me.configuration_signature == configuration_signature([Neighbour(10, 1, 1), Neighbour(20, 1, 1)])
    assert exchange_timing_of(config) == ExchangeTiming(s(1), s(4), 100)
    assert gateway_version("1.2.3.dev4+g5") == 0x01020300
    assert gateway_version("unknown") == 0
