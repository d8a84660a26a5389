"""What each page shows, as typed data: the template of the page and its JSON are made from the same.

Source: DRO guide, 5.4: main, configuration, endpoint portal, peer portal, topology info, path info, memory figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from dro.bus.listing import BLOCKED, LISTS, LOSSES, PEERS, BlockedRow, LossRow, PathRow, TopologyRow
from dro.clock import duration
from dro.metrics.table import ENDPOINT, ROUTE_MANAGER, metrics
from supervisor.admin.status import ROUTE_MANAGER as MANAGER
from supervisor.admin.status import ConfigRecord, PortalStatus
from supervisor.monitor.answers.answers import Answers, path_summary, sorted_rows
from supervisor.monitor.answers.drops import DropRow
from supervisor.monitor.answers.lists import Listing
from supervisor.monitor.answers.models import ApiError, DroView, ExplainView, LinkView, MemoryRow, WorkerView
from supervisor.monitor.answers.top import TopRow
from supervisor.monitor.known.events import EventRow, Events
from supervisor.monitor.pages.lines import Group, groups, portal_groups

SHOWN: Final = 100
"""Rows on one page of a list."""
FIRST: Final = 8
"""Rows of what is shown at a glance."""


@dataclass(frozen=True, slots=True)
class PortalLine:
    """A portal on the main page. Rates are messages a second of the last look, None before there are two."""

    name: str
    kind: str
    state: str
    leads_to: str
    received_per_s: float | None
    sent_per_s: float | None
    received: int
    sent: int
    dropped: int
    queued_bytes: int


@dataclass(frozen=True, slots=True)
class MainView:
    """The main page."""

    dro: DroView
    portals: list[PortalLine]
    drops: list[DropRow]
    blocked: list[BlockedRow]
    losses: list[LossRow]
    events: list[EventRow]
    problems: list[str]


@dataclass(frozen=True, slots=True)
class ConfigurationView:
    """The configuration in force, or the part of one portal."""

    config: ConfigRecord
    portal: str
    portals: list[str]


@dataclass(frozen=True, slots=True)
class PortalView:
    """All counters of a portal, and of a peer portal what is known of its link."""

    portal: PortalStatus
    leads_to: str
    groups: list[Group]
    peer: dict[str, Any]
    problems: list[str]


@dataclass(frozen=True, slots=True)
class Fact:
    """A value with its name in the guide."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class DroFacts:
    """One DRO of the network, as this one sees it."""

    is_own: bool
    facts: list[Fact]
    portals: list[list[Fact]]


@dataclass(frozen=True, slots=True)
class TopologyView:
    """The network as the route manager knows it."""

    dros: list[DroFacts]
    rows: list[TopologyRow]
    age_s: float


@dataclass(frozen=True, slots=True)
class PathView:
    """The way between two domains; `problem`: why there is none, empty while nothing was asked."""

    source: int
    interested: int
    hops: int
    cost: int
    nodes: list[PathRow]
    problem: str


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic: who knows of it, and how it gets from one domain to another."""

    topic: str
    source: int
    interested: int
    found: list[Any]
    explained: ExplainView | None
    problem: str


@dataclass(frozen=True, slots=True)
class ListView:
    """A part of a list. `columns` are the fields of a row."""

    what: str
    columns: list[str]
    rows: list[dict[str, Any]]
    total: int
    offset: int
    sort: str
    portal: str
    topic: str
    portals: list[str]
    problems: list[str]


@dataclass(frozen=True, slots=True)
class MemoryView:
    """Figures of the allocators and of the processes."""

    rows: list[MemoryRow]
    workers: list[WorkerView]


Rates = Callable[[str], tuple[float, float] | None]


class Views:
    """Makes them."""

    def __init__(self, answers: Answers, events: Events, rates: Rates) -> None:
        """`rates`: messages received and sent a second by a portal; None: not known yet."""
        self.answers: Final = answers
        self._events = events
        self._rates = rates

    def main(self) -> MainView:
        blocked, losses = (self.answers.list_of(what) for what in (BLOCKED, LOSSES))
        drops = [row for row in self.answers.drops() if row.messages]
        return MainView(
            self.answers.dro(),
            [self._portal_line(portal) for portal in self.answers.portals()],
            sorted(drops, key=lambda row: -row.messages)[:FIRST],
            sorted(blocked.rows, key=lambda row: -row.blocked_s)[:FIRST],
            sorted(losses.rows, key=lambda row: -row.ended_s)[:FIRST],
            self._events.recent("notice", limit=FIRST)[0][::-1],
            list(dict.fromkeys((*blocked.problems, *losses.problems))),
        )

    def _portal_line(self, portal: PortalStatus) -> PortalLine:
        rates = self._rates(portal.name)
        received, sent, dropped = traffic(portal)
        return PortalLine(
            portal.name, portal.kind, portal.state, self._leads_to(portal), *(rates or (None, None)), received, sent,
            dropped, portal.counters.get("QUEUED_BYTES", 0),
        )  # fmt: skip

    def _leads_to(self, portal: PortalStatus) -> str:
        if portal.kind == ENDPOINT:
            return f"TRD {portal.domain_id}"
        rows = (row for row in self.answers.known.topology if row.is_own and row.portal == portal.name)
        return next((f"DRO {row.neighbour_name or row.neighbour}" for row in rows if row.neighbour), "no DRO")

    def configuration(self, portal: str = "", *, defaults: bool = False) -> ConfigurationView:
        config = self.answers.config(with_defaults=defaults or bool(portal))
        portals = [place.name for place in self.answers.known.status.portals]
        if not portal:
            return ConfigurationView(config, "", portals)
        if portal not in portals:
            raise self.answers.no_portal(portal)
        text = portal_part(config.text, portals.index(portal))
        return ConfigurationView(ConfigRecord(config.file, config.loaded, text), portal, portals)

    def portal(self, name: str) -> PortalView:
        portal = self.answers.portal(name)
        listing = self.answers.list_of(PEERS, name) if portal.kind != ENDPOINT else Listing(())
        peer = asdict(listing.rows[0]) if listing.rows else {}
        return PortalView(portal, self._leads_to(portal), portal_groups(portal), peer, list(listing.problems))

    def link(self, portal: str) -> LinkView:
        return self.answers.link(portal)

    def topology(self) -> TopologyView:
        known = self.answers.known
        age_s = round(time.time() - known.topology_s, 1) if known.topology_s else -1.0
        return TopologyView(list(self._dros(known.topology)), list(known.topology), age_s)

    def _dros(self, rows: tuple[TopologyRow, ...]) -> Iterator[DroFacts]:
        by_dro: dict[str, list[TopologyRow]] = {}
        for row in sorted(rows, key=lambda row: (not row.is_own, row.dro, row.node_id)):
            by_dro.setdefault(row.node_id, []).append(row)
        for of_one in by_dro.values():
            first = of_one[0]
            yield DroFacts(first.is_own, self._dro_facts(first), [self._portal_facts(row) for row in of_one])

    def _dro_facts(self, row: TopologyRow) -> list[Fact]:
        local = "Local " if row.is_own else ""
        facts = [Fact(f"{local}UM Router Name", row.dro or "none"), Fact(f"{local}UM Router ID", row.node_id)]
        if not row.is_own:
            return [
                *facts, Fact("Version", str(row.version)), Fact("Topology Signature", row.signature),
                Fact("Last Activity", f"{row.age_s:.0f} seconds ago"),
            ]  # fmt: skip
        manager = next((w for w in self.answers.known.status.workers if w.role == MANAGER), None)
        cells = dict(enumerate(self.answers.cells(manager.index))) if manager is not None else {}
        lines = [line for group in groups(metrics(ROUTE_MANAGER), cells) for line in group.lines] if cells else []
        return [*facts, *(Fact(line.title, " ".join(line.shown)) for line in lines)]

    def _portal_facts(self, row: TopologyRow) -> list[Fact]:
        adjacent = "Adjacent Domain ID" if row.kind == "TRD" else "Adjacent UM Router ID"
        name = f" ({row.neighbour_name})" if row.neighbour_name else ""
        facts = [
            Fact("Portal Name", row.portal), Fact(adjacent, f"{row.neighbour or 'none'}{name}"),
            Fact("Cost", str(row.egress_cost)),
        ]  # fmt: skip
        if row.is_own and row.portal:
            portal = self.answers.portal(row.portal)
            for name, slot in _RECALCULATIONS.items():
                facts.append(Fact(name, f"{portal.counters.get(slot, 0) / 1e6:.6f} seconds"))
        return [fact for fact in facts if fact.value] + ([Fact("Remark", row.remark)] if row.remark else [])

    def path(self, source: int = 0, interested: int = 0) -> PathView:
        if not source or not interested:
            return PathView(source, interested, 0, 0, [], "")
        try:
            rows = list(self.answers.path(source, interested).rows)
        except ApiError as e:
            return PathView(source, interested, 0, 0, [], e.problem.what)
        return PathView(source, interested, *path_summary(rows), rows, "")

    def topic(self, topic: str = "", source: int = 0, interested: int = 0) -> TopicView:
        if not topic:
            return TopicView("", source, interested, [], None, "")
        found = self.answers.list_of("topics", "", topic)
        problems = list(found.problems)
        explained = None
        if source and interested:
            try:
                explained = self.answers.explain(
                    {"topic": topic, "from_domain": source, "to_domain": interested, "transport": ""}
                )
            except ApiError as e:
                problems.append(e.problem.what)
        return TopicView(topic, source, interested, list(found.rows[:SHOWN]), explained, "; ".join(problems))

    def list_of(self, what: str, portal: str = "", topic: str = "", sort: str = "", offset: int = 0) -> ListView:
        if what == "drops":
            rows, problems, kind = self.answers.drops(portal), (), DropRow
            rows = [row for row in rows if topic in row.reason]
        elif what == "events":
            rows, problems, kind = (
                [r for r in self._events.recent(limit=1000)[0][::-1] if topic in r.text],
                (),
                EventRow,
            )
        elif what == "top":
            rows, problems, kind = *self._top(), TopRow
        else:
            found = self.answers.list_of(what, portal, topic)
            rows, problems, kind = list(found.rows), found.problems, LISTS[what]
        columns = [field.name for field in fields(kind)]
        if sort.removeprefix("-") not in columns:
            sort = ""
        rows = sorted_rows(rows, sort)
        portals = [place.name for place in self.answers.known.status.portals]
        return ListView(
            what, columns, [asdict(row) for row in rows[offset : offset + SHOWN]], len(rows), offset, sort, portal, topic,
            portals, list(problems),
        )  # fmt: skip

    def _top(self) -> tuple[list[TopRow], tuple[str, ...]]:
        rows, looked_s = self.answers.top.sources(SHOWN)
        return rows, () if looked_s else ("rates are known after a second look, in two seconds",)

    def memory(self) -> MemoryView:
        return MemoryView(self.answers.memory(), self.answers.workers())


_RECALCULATIONS: Final = {
    "Last interest recalc duration": "INTEREST_RECALCULATION_US",
    "Last proxy receiver recalc duration": "PROXY_RECALCULATION_US",
}


def traffic(portal: PortalStatus) -> tuple[int, int, int]:
    """Messages of all kinds that it received, sent and dropped since the start of the DRO."""
    counters, sums = portal.counters, []
    for names in _TRAFFIC[portal.kind]:
        sums.append(sum(counters.get(name, 0) for name in names))
    received, sent, dropped = sums
    return received, sent, dropped


def _rows_of(kind: str, *metric_names: str) -> tuple[str, ...]:
    return tuple(m.row for m in metrics("portal", kind) if m.name in {f"dro_portal_{name}" for name in metric_names})


_TRAFFIC: Final = {
    kind: (
        _rows_of(kind, "received_messages_total"),
        _rows_of(kind, "sent_messages_total"),
        _rows_of(kind, "dropped_messages_total", "receive_exception_messages_total"),
    )
    for kind in ("endpoint", "peer")
}


def portal_part(text: str, index: int) -> str:
    """The element of the portal with that index among all, endpoint portals first, from an effective configuration."""
    from lxml import etree

    root = etree.fromstring(text.encode())
    portals = [*root.iterfind(".//endpoint"), *root.iterfind(".//peer")]
    part: str = etree.tostring(portals[index], encoding="unicode", with_tail=False)
    return part + "\n"


def age_of(seconds: float) -> str:
    """Write how long ago, for people."""
    return duration(seconds) if seconds >= 0 else "never"
