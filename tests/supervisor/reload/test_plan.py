"""Plans of reloads: which action follows from which change, and that carrying them out leads to the new file."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dro.config.change.difference import Portal, differences, portals_of
from dro.config.change.reload_class import ReloadClass, reload_class, um_reload_class
from dro.config.dro_xml.model import DaemonConfig, DroConfig, EndpointConfig
from dro.config.dro_xml.unsupported import limit_of
from dro.config.reading.problems import ConfigErrors
from dro.config.reading.schema import elements
from dro.config.um.options import option_table
from supervisor.reload.plan import LIVE_OWNERS, Action, ActionKind, ReloadPlan, after_reload, part_for, plan_reload
from supervisor.reload.records import plan_record
from tests.builders.dro_documents import documents
from tests.builders.dro_file import parse_dro
from tests.builders.whole_document import Place, places, text, values
from tests.fakes.lookup import FakeLookup

HOST = FakeLookup()
MANY = int(os.environ.get("DRO_EXAMPLES", "20"))
LIVE, REMOVE, ADD, RESTART, PENDING = ActionKind


def load(raw: str | bytes) -> DroConfig:
    raw = raw.encode() if isinstance(raw, str) else raw
    return parse_dro(raw, "r.xml", warn=lambda _: None, lookup=HOST, environ={})


def endpoint(name: str, domain: int, more: str = "", *, port: int = 0) -> str:
    resolver = f'<option scope="context" name="resolver_multicast_port" value="{port or 15000 + domain}"/>'
    return (
        f"<endpoint><name>{name}</name><domain-id>{domain}</domain-id>{more}"
        f"<lbm-attributes>{resolver}</lbm-attributes></endpoint>"
    )


def dro(*portals: str, daemon: str = "") -> DroConfig:
    inner = "".join(portals)
    return load(f'<tnw-gateway version="1.0"><daemon>{daemon}</daemon><portals>{inner}</portals></tnw-gateway>')


A, B, C = (endpoint(name, domain) for domain, name in enumerate("ABC", start=1))


def actions(old: DroConfig, new: DroConfig) -> list[tuple[ActionKind, str]]:
    return [(action.kind, action.target) for action in plan_reload(old, new).actions]


def test_the_same_meaning_is_no_action() -> None:
    plan = plan_reload(dro(A, B), dro(B, A, daemon="<!-- nothing --><route-info/>"))
    assert plan == ReloadPlan((), ())
    assert plan.is_empty


def test_statistics_begin_and_end_with_the_daemon_and_hear_of_everything_meanwhile() -> None:
    on, other = '<monitor interval="5"/>', '<monitor interval="6"/><daemon-monitor/>'
    assert actions(dro(A), dro(A, daemon=on)) == [(PENDING, "monitor")]
    assert actions(dro(A, daemon=on), dro(A, daemon="<daemon-monitor/>")) == [(LIVE, "statistics")]
    assert actions(dro(A, daemon=other), dro(A)) == [(PENDING, "monitor"), (PENDING, "daemon-monitor")]
    assert actions(dro(A, daemon=on), dro(A, daemon=other)) == [(LIVE, "statistics")]
    assert actions(dro(A, daemon=on), dro(A, B, daemon=on)) == [(LIVE, "statistics"), (ADD, "B")]
    assert actions(dro(A, daemon=on), dro(A, daemon=on + "<pidfile>p</pidfile>")) == [(PENDING, "pidfile")]
    config = dro(A, B, daemon=on)
    assert part_for(config, frozenset({"A"})).all_portals == config.portals[:1]
    assert part_for(config, frozenset({"A", "statistics"})).all_portals == config.portals


def test_an_interval_of_a_portal_restarts_none() -> None:
    def interval(seconds: int) -> DroConfig:
        option = f'<option scope="context" name="monitor_interval" value="{seconds}"/></lbm-attributes>'
        return dro(A.replace("</lbm-attributes>", option))

    assert actions(interval(5), interval(6)) == [(LIVE, "statistics")]
    [change] = [one for one in plan_reload(interval(5), interval(6)).changes if one.path == "daemon/monitor"]
    assert (change.old, change.new) == ("every 5 s by lbm as csv", "every 6 s by lbm as csv")
    plan = plan_reload(dro(A), interval(6))
    assert [(action.kind, action.target) for action in plan.actions] == [(PENDING, "monitor")]
    running = after_reload(dro(A), interval(6), plan)
    assert running.daemon.monitor is None
    assert [change.path for change in plan_reload(running, interval(6)).pending] == ["daemon/monitor"]


def test_the_order_of_actions() -> None:
    old = dro(A, B, C, endpoint("D", 4), endpoint("S", 6))
    new = dro(
        endpoint("A", 1, "<cost>2</cost>"), endpoint("B", 2, '<sqn-window size="8192"/>'), endpoint("E", 5), C,
        endpoint("S", 16), endpoint("T", 6),
        daemon='<name>x</name><log type="syslog"/><route-info check-interval="9"/>',
    )  # fmt: skip
    assert actions(old, new) == [
        (LIVE, "log"), (LIVE, "route-manager"), (LIVE, "A"), (REMOVE, "D"), (ADD, "E"), (RESTART, "B"), (RESTART, "S"),
        (ADD, "T"), (PENDING, "name"),
    ]  # fmt: skip


def test_a_changed_domain_id_is_warned_about() -> None:
    """It made the running applications of that TRD deaf without a word."""
    plan = plan_reload(dro(A, B), dro(A, endpoint("B", 3, port=15002)))
    [warning] = plan_record("r.xml", plan, ("first",)).warnings[1:]
    assert warning.startswith("endpoint[B]/domain-id: 2 -> 3: every other DRO of this TRD needs 3 as well; ")
    assert plan_reload(dro(A, B), dro(A, endpoint("B", 2, "<cost>3</cost>"))).warnings == ()


def test_a_portal_that_restarts_is_not_changed_in_place_as_well() -> None:
    new = dro(endpoint("A", 1, '<cost>2</cost><sqn-window size="8192"/>'), B)
    assert actions(dro(A, B), new) == [(RESTART, "A")]


def test_a_portal_that_takes_over_a_channel_or_a_port_comes_after_the_one_that_gives_it_up() -> None:
    old = dro(endpoint("A", 1, port=100))
    assert actions(old, dro(endpoint("A", 1, port=101), endpoint("N", 2, port=100))) == [(RESTART, "A"), (ADD, "N")]
    assert actions(old, dro(endpoint("A", 1, port=101), endpoint("N", 2, port=102))) == [(ADD, "N"), (RESTART, "A")]
    port = '<option scope="context" name="request_tcp_port" value="{}"/></lbm-attributes>'
    first, second = (A.replace("</lbm-attributes>", port.format(n)) for n in (7001, 7002))
    other = B.replace("</lbm-attributes>", port.format(7001))
    assert actions(dro(first), dro(second, other)) == [(RESTART, "A"), (ADD, "B")]


def test_a_portal_that_becomes_another_kind_goes_and_comes() -> None:
    peer = "<peer><name>B</name><single-tcp><acceptor><listen-port>1</listen-port></acceptor></single-tcp></peer>"
    assert actions(dro(A, B), dro(A, peer)) == [(REMOVE, "B"), (ADD, "B")]


@pytest.mark.parametrize("name", ["a/b", "daemon", "x@y", "[1]", "log", "endpoint[B]/cost@x"])
def test_names_that_look_like_something_else(name: str) -> None:
    old, new = (dro(A, endpoint(name, 2, f"<cost>{n}</cost>")) for n in (1, 2))
    assert actions(old, new) == [(LIVE, name)]
    assert actions(old, dro(A)) == [(REMOVE, name)]


def test_what_waits_for_the_daemon_does_not_hold_up_the_rest() -> None:
    old = dro(A, daemon="<name>x</name><uid>1</uid>")
    new = dro(endpoint("A", 1, "<cost>2</cost>"), daemon="<name>y</name><uid>1</uid><pidfile>p</pidfile>")
    plan = plan_reload(old, new)
    assert [(a.kind, a.target) for a in plan.actions] == [(LIVE, "A"), (PENDING, "name"), (PENDING, "pidfile")]
    assert [(c.path, c.old, c.new) for c in plan.pending] == [
        ("daemon/name", "x", "y"), ("daemon/pidfile", "", "p"),
    ]  # fmt: skip
    running = after_reload(old, new, plan)
    assert (running.daemon.name, running.daemon.pidfile, running.portals[0].cost) == ("x", "", 2)
    again = plan_reload(running, new)
    assert again.is_empty
    assert again.pending == plan.pending
    assert (
        plan_reload(running, dro(endpoint("A", 1, "<cost>2</cost>"), daemon="<name>x</name><uid>1</uid>")).pending == ()
    )
    assert plan_reload(old, dro(A, daemon="<name>x</name><uid>2</uid>")).is_empty, "nothing is to be done now"


def test_every_live_element_of_the_daemon_has_somebody_who_takes_it_over() -> None:
    for name in elements()["daemon"].children:
        if reload_class(name) is ReloadClass.LIVE and name not in LIVE_OWNERS:
            assert limit_of(name), f"nobody takes over a change of <{name}>"


# --- the whole table -----------------------------------------------------------------------------------------------


def cases() -> list[Place]:
    found = [p for p in places() if "endpoint[2]" not in p.path and len(p.path) > 1 and values(p)[0] != values(p)[1]]
    return [p for p in found if "peer[2]" not in p.path or "acceptor" in p.path]


OWNERS = {
    "log": "log", "monitor": "statistics", "daemon-monitor": "statistics", "route-info": "route-manager",
    "route-recalculation": "route-manager", "extensions": "route-manager",
}  # fmt: skip
IN_PLACE = {
    "cost", "max-queue", "source-deletion-delay", "smart-batch", "acl", "topic-resolution", "remote-topic",
    "remote-pattern", "context-query", "publishing-interval", "batching", "gateway-keepalive",
    "fast-keepalive", "canary",
}  # fmt: skip
WAITS = {"name", "uid", "gid", "pidfile", "web-monitor"}
OLD_FORMS = {
    "topic-purge", "topic-interest-generate", "topic-domain-activity", "pattern-purge", "pattern-interest-generate",
    "pattern-domain-activity", "topic-use-check", "pattern-use-check",
}  # fmt: skip


TOLD = Action(LIVE, "statistics", of_daemon=True)
"""The worker that tells of all of the DRO hears of every change that comes into force."""


def expected(place: Place) -> list[Action]:
    found = _expected(place)
    if not found or found[0].kind is PENDING or TOLD in found:
        return found
    at = int(found[0].of_daemon)
    return [*found[:at], TOLD, *found[at:]]


def _expected(place: Place) -> list[Action]:
    if place.path[1] == "daemon":
        child = place.path[2]
        if child in WAITS:
            return [Action(PENDING, child, of_daemon=True)]
        return [Action(LIVE, OWNERS[child], of_daemon=True)] if child in OWNERS else []
    child = place.path[3]
    name = values(Place((*place.path[:3], "name"), ""))[0]
    if child == "name":
        return [Action(REMOVE, name), Action(ADD, "else")]
    if child in OLD_FORMS:
        return []
    return [Action(LIVE if child in IN_PLACE else RESTART, name)]


@pytest.fixture(scope="module")
def whole() -> DroConfig:
    return load(text())


@pytest.mark.parametrize("place", cases(), ids=str)
def test_the_action_of_every_value_of_the_table(place: Place, whole: DroConfig) -> None:
    assert list(plan_reload(whole, load(text(place))).actions) == expected(place)


# --- a DRO that carries out plans ----------------------------------------------------------------------------------

_IN_PLACE_FIELDS = (
    "cost", "source_deletion_delay_ms", "max_queue_bytes", "smart_batch", "acl", "publishing", "context_query",
)  # fmt: skip
_ENDPOINT_FIELDS = ("topic_resolution", "remote_topic", "remote_pattern")
_ROUTE_FIELDS = (
    "route_info", "route_recalculation", "fast_recalculation", "equal_cost_sharing", "route_authentication",
)  # fmt: skip
_PEER_FIELDS = ("keepalive", "fast_keepalive", "canary", "batch_min_bytes", "batch_interval_ms")


@dataclass
class FakeDro:
    """Portals that know what they were started with, and take over in place only what they can."""

    daemon: DaemonConfig
    portals: dict[str, Portal] = field(default_factory=dict)
    touched: list[str] = field(default_factory=list)

    def carry_out(self, plan: ReloadPlan, new: DroConfig) -> None:
        told = portals_of(new)
        for action in plan.actions:
            if not action.of_daemon:
                self.touched.append(action.target)
            match action.kind, action.target:
                case ActionKind.LIVE, "log" if action.of_daemon:
                    self.daemon = replace(self.daemon, log=new.daemon.log)
                case ActionKind.LIVE, "route-manager" if action.of_daemon:
                    values = {name: getattr(new.daemon, name) for name in _ROUTE_FIELDS}
                    self.daemon = replace(self.daemon, **values)
                case ActionKind.LIVE, "statistics" if action.of_daemon:
                    values = {name: getattr(new.daemon, name) for name in ("monitor", "daemon_monitor")}
                    self.daemon = replace(self.daemon, **values)
                case ActionKind.LIVE, name:
                    self._in_place(name, told[name])
                case ActionKind.REMOVE, name:
                    del self.portals[name]
                case ActionKind.ADD, name:
                    assert name not in self.portals
                    self.portals[name] = told[name]
                case ActionKind.RESTART, name:
                    assert type(self.portals[name]) is type(told[name])
                    self.portals[name] = told[name]

    def _in_place(self, name: str, new: Portal) -> None:
        own = _ENDPOINT_FIELDS if isinstance(new, EndpointConfig) else _PEER_FIELDS
        values = {name: getattr(new, name) for name in (*_IN_PLACE_FIELDS, *own)}
        self.portals[name] = replace(self.portals[name], **values)

    def config(self, like: DroConfig) -> DroConfig:
        """What runs, with the tree of `like` for places."""
        endpoints = tuple(p for p in self.portals.values() if isinstance(p, EndpointConfig))
        peers = tuple(p for p in self.portals.values() if not isinstance(p, EndpointConfig))
        return replace(like, daemon=self.daemon, portals=endpoints, peers=peers)


def element_of(path: str) -> str:
    """The child of the daemon that a change is in: below it the trees of `FakeDro` show nothing."""
    return path.split("/")[1].partition("@")[0]


def means(portal: Portal) -> dict[str, object]:
    """A portal without what is known to make no difference."""
    found = {f.name: getattr(portal, f.name) for f in fields(portal) if f.compare}
    for name in ("lbm_config", "um", "sending", "receiving"):
        found.pop(name)
    acl = portal.acl
    if acl is not None:
        found["acl"] = [None if side is None else [(ace.accept, set(ace.conditions)) for ace in side]
                        for side in (acl.inbound, acl.outbound)]  # fmt: skip
        if found["acl"] == [None, None]:
            found["acl"] = None
    if portal.publishing is not None:
        found["publishing"] = dict(portal.publishing.intervals_s)
    for key, option in option_table().items():
        if um_reload_class(option) is ReloadClass.PORTAL and not option.sets_also:
            found[str(key)] = portal.um.value(*key)
    return found


NO_EFFECT = ("license_file", "topic_map", "pattern_map", "xml_config")


@settings(max_examples=MANY, deadline=None)
@given(documents(), documents())
def test_carrying_out_a_plan_leads_to_the_new_configuration(one: bytes, other: bytes) -> None:
    try:
        old, new = load(one), load(other)
    except ConfigErrors:
        return
    running = FakeDro(old.daemon, portals_of(old))
    plan = plan_reload(old, new)
    running.carry_out(plan, new)
    nobody = {name: getattr(new.daemon, name) for name in NO_EFFECT}  # what no process has
    running.daemon = replace(running.daemon, **nobody)
    left = [c for c in differences(running.config(new), new) if c.reload is not ReloadClass.NONE]
    assert {change.reload for change in left} <= {ReloadClass.DAEMON}
    assert {element_of(change.path) for change in left} == {element_of(change.path) for change in plan.pending}
    reached = differences(running.config(new), after_reload(old, new, plan))
    assert all(change.reload is ReloadClass.NONE for change in reached), "a portal keeps what has no effect"
    assert set(running.portals) == set(portals_of(new))
    for name, portal in portals_of(new).items():
        assert means(running.portals[name]) == means(portal)


@settings(max_examples=MANY, deadline=None)
@given(documents(), st.sampled_from(cases()))
def test_there_and_back_are_the_same_portals(raw: bytes, place: Place) -> None:
    try:
        old = load(raw)
    except ConfigErrors:
        return
    new = load(text(place))
    there, back = plan_reload(old, new), plan_reload(new, old)
    for kind, opposite in ((REMOVE, ADD), (ADD, REMOVE), (RESTART, RESTART), (LIVE, LIVE)):
        assert sorted(there.portals(kind)) == sorted(back.portals(opposite))
    assert len(there.changes) == len(back.changes)
