"""Plans carried out on a DRO of fakes: in which order, and that each failure leads back to where it began."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import cast

import pytest

from dro.config.change.difference import Portal, portals_of
from dro.config.dro_xml.model import DroConfig
from dro.errors import RefusedError, ResourceError
from dro.log.handler import Settings
from supervisor.parent.operations import Done, OperationOutcome
from supervisor.parent.parent import Parent
from supervisor.reload.plan import plan_reload
from supervisor.reload.steps import Result, Transaction, swapping_portals
from tests.builders.dro_file import parse_dro
from tests.fakes.lookup import FakeLookup

OLD_LOG, NEW_LOG = Settings(), Settings(utc=True)


def endpoint(name: str, domain: int, more: str = "") -> str:
    resolver = f'<option scope="context" name="resolver_multicast_port" value="{15000 + domain}"/>'
    return (
        f"<endpoint><name>{name}</name><domain-id>{domain}</domain-id>{more}"
        f"<lbm-attributes>{resolver}</lbm-attributes></endpoint>"
    )


def dro(*portals: str, daemon: str = "") -> DroConfig:
    inner = "".join(portals)
    raw = f'<tnw-gateway version="1.0"><daemon>{daemon}</daemon><portals>{inner}</portals></tnw-gateway>'
    return parse_dro(raw.encode(), "r.xml", warn=lambda _: None, lookup=FakeLookup(), environ={})


@dataclass
class FakeControl:
    """A DRO whose portals know the configuration that they have. `fails` are orders that fail, once each."""

    config: DroConfig
    portals: dict[str, Portal] = field(default_factory=dict)
    resting: set[str] = field(default_factory=set)
    route_info: object = None
    log: Settings = OLD_LOG
    fails: set[str] = field(default_factory=set)
    refuses: set[str] = field(default_factory=set)
    orders: list[str] = field(default_factory=list)
    soon: deque[Callable[[], object]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.portals = dict(portals_of(self.config))
        self.route_info = self.config.daemon.route_info

    @property
    def configuration(self) -> FakeControl:
        return self

    @property
    def operations(self) -> FakeControl:
        return self

    def state(self) -> tuple[object, ...]:
        return dict(self.portals), set(self.resting), self.route_info, self.log, self.config

    def pump(self) -> None:
        while self.soon:
            self.soon.popleft()()

    def set_config(self, config: DroConfig) -> None:
        self._refuse("set_config")
        self.config = config

    def reconfigure(
        self, config: DroConfig, done: Callable[[Mapping[str, str]], object], *, only: frozenset[str]
    ) -> None:
        self._refuse("live")
        self.config = config
        problems = {}
        for name in sorted(only):
            order = f"live {name}"
            self.orders.append(order)
            if order in self.fails:
                self.fails.discard(order)
                problems[name] = "no"
            elif name == "route-manager":
                self.route_info = config.daemon.route_info
            else:
                self.portals[name] = replace(self.portals[name], cost=portals_of(config)[name].cost)
        self.soon.append(lambda: done(problems))

    def set_log(self, settings: Settings) -> None:
        self._refuse("log")
        self.orders.append("log")
        self.log = settings

    def is_resting(self, name: str) -> bool:
        return name in self.resting

    def add(self, name: str, done: Done) -> None:
        assert name not in self.portals

        def act() -> None:
            self.portals[name] = portals_of(self.config)[name]

        self._order("add", name, done, act)

    def remove(self, name: str, done: Done) -> None:
        def act() -> None:
            del self.portals[name]
            self.resting.discard(name)

        self._order("remove", name, done, act)

    def restart(self, name: str, done: Done, *, clean: bool = False) -> None:
        assert clean, "its configuration is another one"
        """One that cannot start is tried again and again with the configuration of then."""
        self._order("restart", name, done, lambda: None)
        self.portals[name] = portals_of(self.config)[name]

    def pause(self, name: str, done: Done) -> None:
        self._order("pause", name, done, lambda: self.resting.add(name))

    def resume(self, name: str, done: Done) -> None:
        self.portals[name] = portals_of(self.config)[name]
        self._order("resume", name, done, lambda: None)
        self.resting.discard(name)

    def _refuse(self, order: str) -> None:
        if order in self.refuses:
            self.refuses.discard(order)
            raise ResourceError(f"{order} cannot be")

    def _order(self, kind: str, name: str, done: Done, act: Callable[[], object]) -> None:
        order = f"{kind} {name}"
        if order in self.refuses:
            self.refuses.discard(order)
            raise RefusedError(f"{name} is busy")
        self.orders.append(order)
        if order in self.fails:
            self.fails.discard(order)
            outcome = OperationOutcome(name, "waiting", "no port left", "free one")
        else:
            act()
            outcome = OperationOutcome(name, "ready", note="one message given up" if kind == "remove" else "")
        self.soon.append(lambda: done(outcome))


OLD = dro(
    endpoint("A", 1), endpoint("B", 2), endpoint("C", 3), endpoint("D", 4), endpoint("X", 7), endpoint("Y", 8),
    endpoint("Z", 10),
)  # fmt: skip
NEW = dro(
    endpoint("A", 1, "<cost>5</cost>"), endpoint("B", 2, '<sqn-window size="8192"/>'), endpoint("D", 4),
    endpoint("E", 5), endpoint("X", 8), endpoint("Y", 7), endpoint("Z", 11), endpoint("L", 10),
    daemon='<log type="syslog"/><route-info check-interval="3"/>',
)  # fmt: skip


PLAN = plan_reload(OLD, NEW)


def transaction(control: FakeControl, old: DroConfig = OLD, new: DroConfig = NEW) -> Transaction:
    plan = PLAN if (old, new) == (OLD, NEW) else plan_reload(old, new)
    return Transaction(cast("Parent[DroConfig]", control), plan, old, new, (OLD_LOG, NEW_LOG))


def carry_out(control: FakeControl, work: Transaction) -> Result:
    results: list[Result] = []
    work.begin(results.append)
    control.pump()
    [result] = results
    return result


def take_back(control: FakeControl, work: Transaction) -> Result:
    results: list[Result] = []
    work.take_back(results.append)
    control.pump()
    [result] = results
    return result


ORDERS = [
    "live A", "live route-manager", "log", "remove C", "add E", "restart B", "restart Z", "pause X", "pause Y",
    "resume X", "resume Y", "add L",
]  # fmt: skip


def test_a_plan_is_carried_out_in_its_order() -> None:
    control = FakeControl(OLD)
    result = carry_out(control, transaction(control))
    assert result == Result((), ("portal C: one message given up",))
    assert control.orders == ORDERS
    assert control.portals == portals_of(NEW)
    assert (control.log, control.route_info, control.resting) == (NEW_LOG, NEW.daemon.route_info, set())
    assert control.config is NEW


def test_those_that_change_places_are_known() -> None:
    assert swapping_portals(OLD, NEW, ("B", "X", "Y", "Z")) == {"X", "Y"}


FAILURES = [order for order in ORDERS if order != "log"]


@pytest.mark.parametrize("order", FAILURES)
def test_each_failure_leads_back(order: str) -> None:
    control = FakeControl(OLD, fails={order})
    before = control.state()
    work = transaction(control)
    result = carry_out(control, work)
    [problem] = result.problems
    assert order.split()[1] in problem
    reached = ORDERS.index(order)
    assert not [late for late in ORDERS[reached + 3 :] if late in control.orders], "later steps were not begun"
    assert take_back(control, work).is_ok
    assert control.state() == before


@pytest.mark.parametrize("order", ["live", "log", "set_config", *(o for o in FAILURES if not o.startswith("live"))])
def test_each_refusal_leads_back(order: str) -> None:
    old, new = (OLD, NEW) if order != "set_config" else (OLD, dro(*map(endpoint, "ABCDXYZ", [1, 2, 3, 4, 7, 8, 11])))
    control = FakeControl(old, refuses={order})
    before = control.state()
    work = transaction(control, old, new)
    assert not carry_out(control, work).is_ok
    assert take_back(control, work).is_ok
    assert control.state() == before


@pytest.mark.parametrize(("order", "resting"), list(product([*FAILURES[2:], ""], ["B", "C", "D", "X"])))
def test_portals_that_an_operator_has_stopped_stay_stopped(order: str, resting: str) -> None:
    control = FakeControl(OLD, resting={resting}, fails={order})
    before = control.state()
    work = transaction(control)
    result = carry_out(control, work)
    assert f"restart {resting}" not in control.orders
    assert f"resume {resting}" not in control.orders
    is_reached = order in control.orders
    assert result.is_ok == (not is_reached)
    if result.is_ok:
        is_told = f"portal {resting} is stopped by order: it is new when it is resumed" in result.notes
        assert is_told == (resting in ("B", "X"))
    if is_reached:
        assert take_back(control, work).is_ok
        assert control.state() == before
    else:
        assert control.resting == ({resting} - {"C"})


def test_what_was_carried_out_can_be_taken_back_later() -> None:
    control = FakeControl(OLD)
    before = control.state()
    work = transaction(control)
    assert carry_out(control, work).is_ok
    assert control.state() != before
    assert take_back(control, work).is_ok
    assert control.state() == before


def test_what_was_done_is_undone_in_the_opposite_order() -> None:
    control = FakeControl(OLD)
    work = transaction(control)
    assert carry_out(control, work).is_ok
    control.orders.clear()
    assert take_back(control, work).is_ok
    assert control.orders == [
        "remove L", "restart B", "restart Z", "pause X", "pause Y", "resume X", "resume Y", "remove E", "add C", "log",
        "live A", "live route-manager",
    ]  # fmt: skip


def test_a_portal_that_does_not_pause_does_not_keep_the_others_from_being_taken_back() -> None:
    control = FakeControl(OLD)
    work = transaction(control)
    assert carry_out(control, work).is_ok
    control.orders.clear()
    control.fails = {"pause X"}
    assert take_back(control, work).problems == ("portal X: no port left; free one",)
    assert [order for order in control.orders if order[-1] in "XY"] == ["pause X", "pause Y", "resume Y"]
    assert control.resting == set()
    assert (control.portals["Y"], control.log) == (portals_of(OLD)["Y"], OLD_LOG)


def test_what_cannot_be_taken_back_is_told_and_the_rest_is_taken_back() -> None:
    control = FakeControl(OLD, fails={"add L"})
    work = transaction(control)
    assert not carry_out(control, work).is_ok
    control.fails = {"add C"}
    result = take_back(control, work)
    assert result.problems == ("portal C: no port left; free one",)
    assert control.portals == {name: portal for name, portal in portals_of(OLD).items() if name != "C"}
    assert control.log == OLD_LOG


def test_several_parts_of_a_step_that_fail_are_all_told() -> None:
    control = FakeControl(OLD, fails={"restart B", "restart Z"})
    problems = carry_out(control, transaction(control)).problems
    assert problems == ("portal B: no port left; free one", "portal Z: no port left; free one")


def test_an_empty_plan_gives_the_new_configuration_and_nothing_else() -> None:
    control = FakeControl(OLD)
    again = dro(*(endpoint(n, d) for n, d in zip("ZYXDCBA", [10, 8, 7, 4, 3, 2, 1], strict=True)))
    assert carry_out(control, transaction(control, OLD, again)).is_ok
    assert control.orders == []
    assert control.config is again
