"""The route manager's process: what the portals tell it, and what it says to them, to the parent and in the log."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from dro.bus.counters import LONGEST_TURN_CPU_US, LONGEST_TURN_US
from dro.bus.messages import (
    ROUTE_MESSAGES,
    ListRows,
    PeerDown,
    PeerRemoved,
    PeerUp,
    PortalGone,
    PortalUp,
    Role,
    Route,
    RoutesCalculated,
    RouteTable,
    Rows,
)
from dro.clock import ms, s
from dro.config.dro_xml.model import DroConfig
from dro.errors import LocalProtocolError
from dro.log.events import LogEvent
from router.route_recalculation import REPORT_HOLD_NS, Timing
from router.worker import RouteManager, run_route_manager, timing_of
from tests.builders.dro_file import endpoint, gateway, load
from tests.fakes.um_contexts import Stepper
from tests.fakes.worker import FakeWorker, logged

TIMING = Timing(check_ns=ms(10), backoff_ns=ms(100), warning_ns=ms(300))
BOTH_WAYS = (Route((20,), 10, 2, 1), Route((10,), 20, 1, 2))


class Manager:
    """A route manager and what its portals send; worker k is in domain 10 k."""

    def __init__(self, stepper: Stepper, folder: Path) -> None:
        self.stepper = stepper
        self.began_ns = stepper.clock.time_ns
        self.worker = FakeWorker(stepper.loop, folder, 0, "route-manager", Role.ROUTE_MANAGER)
        RouteManager(self.worker.ctx, TIMING)

    def hear(self, worker: int, message: PortalUp | PortalGone | RouteTable) -> None:
        self.worker.channels.on_ctl(worker, ROUTE_MESSAGES.encode(message))

    def up(self, worker: int, cost: int = 1) -> None:
        self.hear(worker, PortalUp(worker, worker * 10, cost))

    def begin(self, worker: int, role: Role = Role.ENDPOINT) -> None:
        peer = self.worker.peers[worker] = PeerUp(worker, 1, f"P{worker}", role, "", "")
        self.worker.told["on_peer_up"](peer)

    def sent(self) -> list[tuple[int, object]]:
        frames, self.worker.channels.sent = self.worker.channels.sent, []
        return [(worker, ROUTE_MESSAGES.decode(frame)) for worker, frame in frames]

    def next_after_ms(self) -> float | None:
        """When it wakes up next, in ms from now."""
        deadline = self.stepper.loop.next_deadline()
        return None if deadline is None else (deadline - self.stepper.clock.time_ns) / ms(1)


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
        ("INFO", LogEvent.LINK_UP, {"version": 1, "domain": 10, "route_version": "1.1"}),
        ("INFO", LogEvent.LINK_UP, {"version": 2, "domain": 20, "route_version": "1.1"}),
    ]
    manager.stepper.run(90)
    assert (manager.sent(), manager.worker.reports) == ([], [])
    manager.stepper.run(10)
    assert manager.sent() == [(worker, RouteTable(first, BOTH_WAYS)) for worker in (1, 2)]
    assert manager.worker.reports == [RoutesCalculated(first, 2)]
    ((level, event, fields),) = logged(caplog)
    assert 0 < float(str(fields.pop("took_s"))) < 60
    assert (level, event, fields) == ("INFO", LogEvent.ROUTES_CALCULATED, {"route_version": "1.1", "routes": 2})
    assert manager.next_after_ms() is None


def test_a_portal_that_returns_unchanged_gets_the_table_and_nobody_else_hears_of_it(
    manager: Manager, caplog: pytest.LogCaptureFixture
) -> None:
    calculated(manager, caplog)
    manager.worker.told["on_peer_down"](PeerDown(1, 1))
    assert manager.next_after_ms() == 300, "the warning; the portal has a second to return"
    manager.begin(1)
    manager.up(1)
    assert manager.sent() == [(1, RouteTable((1 << 32) + 1, BOTH_WAYS))]
    assert manager.next_after_ms() is None
    assert manager.worker.reports == []
    assert logged(caplog) == [
        ("INFO", LogEvent.LINK_DOWN, {"version": 3, "domain": 10, "route_version": "1.2"}),
        ("INFO", LogEvent.LINK_UP, {"version": 4, "domain": 10, "route_version": "1.1"}),
    ]


@pytest.mark.parametrize(
    ("how", "after_ms"),
    [("on_peer_down", 1000), ("on_peer_removed", 100), ("it says so", 100)],
)
def test_a_portal_that_is_gone_takes_its_routes_along(
    manager: Manager, caplog: pytest.LogCaptureFixture, how: str, after_ms: int
) -> None:
    calculated(manager, caplog)
    if how == "it says so":
        manager.hear(2, PortalGone(2))
    else:
        manager.worker.told[how](PeerDown(2, 1) if how == "on_peer_down" else PeerRemoved(2, 1))
    manager.stepper.run(after_ms - 10)
    assert manager.sent() == []
    manager.stepper.run(10)
    second = (1 << 32) + 2
    assert manager.sent() == [(1, RouteTable(second, ()))]
    assert manager.worker.reports == [RoutesCalculated(second, 0)]


def test_a_new_cost_is_a_change_and_an_endless_change_is_warned_about_once(
    manager: Manager, caplog: pytest.LogCaptureFixture
) -> None:
    calculated(manager, caplog)
    for cost in range(2, 10):
        manager.up(1, cost)
        manager.stepper.run(50)
    told = logged(caplog)
    assert told[:2] == [
        ("INFO", LogEvent.NODE_UPDATED, {"version": 3, "domain": 10, "route_version": "1.2"}),
        ("INFO", LogEvent.NODE_UPDATED, {"version": 4, "domain": 10, "route_version": "1.2"}),
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
        assert manager.sent() == [(1, RouteTable((1 << 32) + 1, ()))]


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


def configured(check_ms: int, backoff_ms: int, warning_ms: int) -> DroConfig:
    recalculation = f'<route-recalculation backoff-interval="{backoff_ms}" warning-interval="{warning_ms}"/>'
    daemon = f'<route-info check-interval="{check_ms}"/>{recalculation}'
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


def test_the_route_manager_lists_its_routes_and_nothing_else(
    manager: Manager, caplog: pytest.LogCaptureFixture
) -> None:
    ask = manager.worker.told["on_list"]
    assert ask(ListRows(1, "routes", "", 0)) == Rows(1, "[]", 0, "")
    for worker in (1, 2):
        manager.begin(worker)
    calculated(manager, caplog)
    answer = ask(ListRows(2, "routes", "", 0))
    assert isinstance(answer, Rows)
    rows = [tuple(row.values()) for row in json.loads(answer.rows)]
    assert rows == [(20, 10, "P2", "P1"), (10, 20, "P1", "P2")]
    assert [*json.loads(answer.rows)[0]] == ["from_domain", "to_domain", "ingress", "egress"]
    assert ask(ListRows(3, "topics", "", 0)) == Rows(3, "[]", 0, "route-manager lists no topics")


def test_its_process_is_ready_once_it_can_hear(stepper: Stepper, tmp_path: Path) -> None:
    worker = FakeWorker(stepper.loop, tmp_path, 0, "route-manager", Role.ROUTE_MANAGER)
    run_route_manager(worker.ctx, configured(10, 20, 300))
    assert worker.ends == ["ready", "run"]
    worker.channels.on_ctl(1, ROUTE_MESSAGES.encode(PortalUp(1, 10, 1)))
    assert stepper.loop.next_deadline() == stepper.clock.time_ns + ms(20)
    stepper.loop.forget_longest_turn()
    stepper.loop.longest_turn_ns, stepper.loop.longest_turn_cpu_ns = 5_000_001_999, 4_000_000_000
    stepper.run(1000)
    page = worker.ctx.counters
    assert (page[LONGEST_TURN_US], page[LONGEST_TURN_CPU_US]) == (5_000_001, 4_000_000)
