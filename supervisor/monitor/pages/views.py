"""What each page shows, as typed data: the template of the page and its JSON are made from the same.

Source: DRO guide, 5.4: main, configuration, endpoint portal, peer portal, topology info, path info, memory figures.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from lxml import etree

from dro.bus.listing import BLOCKED, LISTS, LOSSES, PEERS, BlockedRow, LossRow, PathRow, PeerRow, TopologyRow
from dro.metrics.table import ENDPOINT, ROUTE_MANAGER, metrics
from supervisor.admin.status import WORKING, ConfigRecord, PortalStatus
from supervisor.monitor.answers.answers import Answers, path_summary, sorted_rows
from supervisor.monitor.answers.drops import DropRow, drop_rows
from supervisor.monitor.answers.lists import Listing
from supervisor.monitor.answers.models import ApiError, DroView, ExplainView, LinkView, MemoryRow, WorkerView
from supervisor.monitor.answers.top import TopRow
from supervisor.monitor.known.events import KEPT, Events
from supervisor.monitor.known.hour import DROPPED, RECEIVED, SENT, counts_of
from supervisor.monitor.pages.charts import chart
from supervisor.monitor.pages.lines import Group, Line, groups, portal_groups
from supervisor.monitor.pages.picture import network_picture, since
from supervisor.samples.events import EventRow

EVENT_COLUMNS: Final = ("time_s", "level", "category", "worker", "text", "fields", "event", "name", "serial")
SHOWN: Final = 100
"""Rows on one page of a list."""
SECOND_LOOK: Final = "rates are known after a second look, in two seconds"
TOLD: Final = ("topology", "portal", "configuration")
"""Categories of events that the overview shows whatever their severity."""
FIRST: Final = 8
"""Rows of what is shown at a glance."""


@dataclass(frozen=True, slots=True)
class PortalLine:
    """A portal on the main page. Rates are messages a second over ten seconds, None before that."""

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
    lost: list[str]
    """Portals that work and that nothing passes, and why."""
    silent: list[str]
    """Portals whose resolver daemons or SRSes do not answer."""


@dataclass(frozen=True, slots=True)
class ConfigurationView:
    """The configuration in force, or the part of one portal."""

    config: ConfigRecord
    portal: str
    portals: list[str]


@dataclass(frozen=True, slots=True)
class PortalPageView:
    """All counters of a portal, and of a peer portal what is known of its link."""

    portal: PortalStatus
    leads_to: str
    groups: list[Group]
    peer: PeerRow | None
    problems: list[str]


@dataclass(frozen=True, slots=True)
class Fact:
    """A value with its name in the guide, which calls a DRO a UM Router as well."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class DroFacts:
    """One DRO of the network, as this one sees it; `more`: what its route manager counts beyond the guide."""

    is_own: bool
    facts: list[Fact]
    portals: list[list[Fact]]
    more: list[Fact]


@dataclass(frozen=True, slots=True)
class TopologyView:
    """The network as the route manager knows it."""

    dros: list[DroFacts]
    rows: list[TopologyRow]
    age_s: float


@dataclass(frozen=True, slots=True)
class PathView:
    """The path between two domains; `problem`: why there is none, empty while nothing was asked."""

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


class Views:
    """Makes them."""

    def __init__(self, answers: Answers, events: Events) -> None:
        self.answers: Final = answers
        self._events = events

    def main(self) -> MainView:
        blocked, losses = (self.answers.list_of(what) for what in (BLOCKED, LOSSES))
        portals = self.answers.portals()
        rates = self.answers.hour.all_rates()
        drops = [row for row in drop_rows(portals) if row.messages]
        return MainView(
            self.answers.dro(),
            [self._portal_line(portal, rates.get(portal.name)) for portal in portals],
            sorted(drops, key=lambda row: -row.messages)[:FIRST],
            sorted(blocked.rows, key=lambda row: -row.blocked_s)[:FIRST],
            sorted(losses.rows, key=lambda row: -row.ended_s)[:FIRST],
            self._last_events(),
            list(dict.fromkeys((*blocked.problems, *losses.problems))),
            self._lost(),
            [f"{portal.name} gets no answer from any {kind} of its TRD" for portal in portals
             for kind in portal.silent_servers],
        )  # fmt: skip

    def _lost(self) -> list[str]:
        states = {worker.name: worker.state for worker in self.answers.known.status.workers}
        rows = [
            row for row in self.answers.network.rows if row.is_own and row.remark and states.get(row.portal) in WORKING
        ]
        return [f"{row.portal}: {row.remark} {since(row.since_s)}".rstrip() for row in rows]

    def _last_events(self) -> list[EventRow]:
        """Look for what an operator wants to know: of severity notice and above, or about what the DRO is made of."""
        recent = self._events.recent(limit=KEPT)[0][::-1]
        grave = {row.serial for row in self._events.recent("notice", limit=KEPT)[0]}
        return [row for row in recent if row.serial in grave or row.category in TOLD][:FIRST]

    def _portal_line(self, portal: PortalStatus, rates: tuple[float, float] | None) -> PortalLine:
        counts = counts_of(portal)
        received_per_s, sent_per_s = rates or (None, None)
        return PortalLine(
            portal.name, portal.kind, portal.state, self._leads_to(portal), received_per_s, sent_per_s,
            counts.received, counts.sent, counts.dropped, portal.counters.get("QUEUED_BYTES", 0),
        )  # fmt: skip

    def _leads_to(self, portal: PortalStatus) -> str:
        if portal.kind == ENDPOINT:
            return f"TRD {portal.domain_id}"
        rows = (row for row in self.answers.network.rows if row.is_own and row.portal == portal.name)
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

    def portal(self, name: str) -> PortalPageView:
        portal = self.answers.portal(name)
        listing = self.answers.list_of(PEERS, name) if portal.kind != ENDPOINT else Listing(())
        peer = listing.rows[0] if listing.rows else None
        return PortalPageView(portal, self._leads_to(portal), portal_groups(portal), peer, list(listing.problems))

    def link(self, portal: str) -> LinkView:
        return self.answers.link(portal)

    def picture(self, path: PathView | None = None) -> str:
        """Draw the network, with the rates of now."""
        rates = self.answers.hour.all_rates()
        return network_picture(self.answers.network.rows, path.nodes if path is not None else (), rates)

    def chart(self, name: str, of: str) -> bytes:
        """Draw a chart of the last hour of a portal. Raises: ApiError."""
        self.answers.portal(name)
        wanted = (RECEIVED, SENT, DROPPED) if of == "traffic" else (of,)
        return chart(f"{name}: {of}", [one for one in self.answers.hour.series(name) if one.name in wanted])

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
            own = self._manager_lines() if first.is_own else []
            facts = [*self._dro_facts(first), *(Fact(_dro(line.title), line.shown[0]) for line in own if line.is_guide)]
            more = [Fact(f"{line.help}: {line.title}", line.shown[0]) for line in own if not line.is_guide]
            yield DroFacts(first.is_own, facts, [self._portal_facts(row) for row in of_one], more)

    def _dro_facts(self, row: TopologyRow) -> list[Fact]:
        if row.is_own:
            return [Fact("Local DRO Name", row.dro or "none"), Fact("Local DRO ID", row.node_id)]
        return [
            Fact("DRO Name", row.dro or "none"), Fact("DRO ID", row.node_id),
            Fact("Version", str(row.version)), Fact("Topology Signature", row.signature),
            Fact("Last Activity", f"{row.age_s:.0f} seconds ago"),
        ]  # fmt: skip

    def _manager_lines(self) -> list[Line]:
        manager = self.answers.known.status.manager
        if manager is None:
            return []
        cells = dict(enumerate(self.answers.cells(manager.index)))
        return [line for group in groups(metrics(ROUTE_MANAGER), cells) for line in group.lines]

    def _portal_facts(self, row: TopologyRow) -> list[Fact]:
        adjacent = "Adjacent Domain ID" if row.kind == "TRD" else "Adjacent DRO ID"
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
        portals = [place.name for place in self.answers.known.status.portals]
        if portal and portal not in portals:
            raise self.answers.no_portal(portal)
        kind, found = self._listing(what, portal, topic)
        columns = [*EVENT_COLUMNS] if kind is EventRow else [field.name for field in fields(kind)]
        if sort.removeprefix("-") not in columns:
            sort = ""
        rows = [asdict(row) for row in sorted_rows(found.rows, sort)[offset : offset + SHOWN]]
        return ListView(
            what, columns, rows, len(found.rows), offset, sort, portal, topic, portals, list(found.problems)
        )  # fmt: skip

    def _listing(self, what: str, portal: str, topic: str) -> tuple[type[Any], Listing]:
        match what:
            case "drops":
                rows = [row for row in self.answers.drops(portal) if topic in row.reason]
                return DropRow, Listing(tuple(sorted(rows, key=lambda row: -row.messages)))
            case "events":
                recent = self._events.recent(limit=KEPT)[0][::-1]
                return EventRow, Listing(
                    tuple(row for row in recent if topic in row.text and portal in ("", row.worker))
                )
            case "top":
                fastest, looked_s = self.answers.top.sources(SHOWN)
                return TopRow, Listing(
                    tuple(row for row in fastest if portal in ("", row.portal)), () if looked_s else (SECOND_LOOK,)
                )
            case _:
                return LISTS[what], self.answers.list_of(what, portal, topic)

    def memory(self) -> MemoryView:
        return MemoryView(self.answers.memory(), self.answers.workers())


_RECALCULATIONS: Final = {
    "Last interest recalc duration": "INTEREST_RECALCULATION_US",
    "Last proxy receiver recalc duration": "PROXY_RECALCULATION_US",
}


def _dro(title: str) -> str:
    return title.replace("UM Router", "DRO")


def portal_part(text: str, index: int) -> str:
    """Cut out the element of the portal with that index, endpoint portals first, from an effective configuration."""
    root = etree.fromstring(text.encode())
    portals = [*root.iterfind(".//endpoint"), *root.iterfind(".//peer")]
    part: str = etree.tostring(portals[index], encoding="unicode", with_tail=False)
    return part + "\n"
