"""Asks running DROs for the path of a topic, and what each DRO of it knows.

Of several paths of equal cost it is that of one source of the topic, which a DRO that was asked hears at the beginning.

A DRO answers for itself; the more of them are asked, the more is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from dro.bus.codec import JsonObject
from dro.bus.listing import PATH, TOPIC, PathRow
from supervisor.admin.client import Client, CommandError
from supervisor.admin.explanation import ExplainRecord
from supervisor.admin.lists import rows_of
from supervisor.admin.status import ROUTE_MANAGER, WORKING, DroStatus, PortalsStatus
from supervisor.explain.first_reason import BLOCKED, Facts, Hop, PathFinding, first_reason, hops_of
from supervisor.explain.neighbours import NeighbourProblem, links, neighbour_problems

QUERY_LIMIT_S: Final = 75.0


@dataclass(frozen=True, slots=True)
class SharedPath:
    """One of several of equal cost. `otid`: of the source that takes it; empty when none was heard."""

    number: int
    count: int
    share: int  # percent of the sources
    otid: str

    def __str__(self) -> str:
        whose = f"of source {self.otid}" if self.otid else "no source is heard here"
        return f"path {self.number} of {self.count}, {self.share} % of the sources, {whose}"


@dataclass(frozen=True, slots=True)
class NetworkAnswer:
    """`problems`: what else is wrong with neighbours and DROs that were asked."""

    finding: PathFinding
    hops: tuple[Hop, ...]
    problems: tuple[str, ...] = ()
    way: SharedPath | None = None

    @property
    def cost(self) -> int:
        return sum(hop.ingress_cost + hop.egress_cost for hop in self.hops)

    def to_json(self) -> JsonObject:
        path = [asdict(replace(hop, facts=None)) | {"was_asked": hop.facts is not None} for hop in self.hops]
        for hop in path:
            del hop["facts"]
        answer = asdict(self.finding) | {"path": path, "cost": self.cost, "problems": list(self.problems)}
        return answer | ({} if self.way is None else {"way": asdict(self.way)})


@dataclass(slots=True)
class _Asked:
    """One DRO."""

    client: Client
    status: DroStatus
    path: list[PathRow]
    problem: str = ""  # why there is no path

    @property
    def hop(self) -> Hop | None:
        """The hop of this DRO, if it is on the path."""
        return next((hop for hop in hops_of(self.path) if hop.entered_at or hop.left_at), None)


def joined(
    clients: Sequence[Client], asked: JsonObject, unreachable: Sequence[str] = ()
) -> tuple[ExplainRecord, NetworkAnswer | None]:
    """The answers of all, and what the configuration of the first says. Raises: UnreachableError, CommandError."""
    dros = [_look(client, asked) for client in clients]
    path = _choose_path(dros, asked)
    configured = [_configured(dro, asked) for dro in dros]
    if asked["from_domain"] == asked["to_domain"]:
        return configured[0], None
    hops = list(hops_of(next((dro.path for dro in dros if dro.path), [])))
    missed = [neighbour_problems(dro.client, dro.status) for dro in dros]
    problems = [*unreachable, *(f"{d.status.name}: {p}" for d, found in zip(dros, missed, strict=True) for p in found)]
    for dro, config in zip(dros, configured, strict=True):
        if (hop := dro.hop) is not None:
            facts = _facts(dro, hop, asked["topic"], config, path.otid if path is not None else "")
            hops = [replace(hop, facts=facts) if other.dro == hop.dro else other for other in hops]
    ends = asked["from_domain"], asked["to_domain"]
    finding = first_reason(hops, *ends) if hops else _no_path(dros[0], missed[0])
    return configured[0], NetworkAnswer(finding, tuple(hops), tuple(problems), path)


def _look(client: Client, asked: JsonObject) -> _Asked:
    status = client.ask(DroStatus, "status")
    manager = status.manager
    assert manager is not None
    if manager.state not in WORKING:
        return _Asked(client, status, [], f"the {ROUTE_MANAGER} is {manager.state}")
    try:
        dro = _Asked(client, status, _path(client, status, f"{asked['from_domain']} {asked['to_domain']}"))
    except CommandError as e:
        return _Asked(client, status, [], str(e))
    hop = dro.hop
    if hop is None or (hop.entered_at and hop.left_at):
        return dro
    return _Asked(client, status, [], "a link of the last path is gone, and routes are calculated anew in a moment")


def _path(client: Client, status: DroStatus, ends: str) -> list[PathRow]:
    assert status.manager is not None
    return list(rows_of(client, PATH, status.manager.name, ends))


def _choose_path(dros: Sequence[_Asked], asked: JsonObject) -> SharedPath | None:
    """Leave one of several in the paths of all; None when there is one only."""
    count = max((row.way for dro in dros for row in dro.path), default=1)
    if count == 1:
        return None
    first = next(dro for dro in dros if dro.path)
    otids = {otid for dro in dros for otid in _otids(dro, asked)}
    otid = min(otids, default="")
    rows = first.path
    if otid:
        rows = _path(first.client, first.status, f"{asked['from_domain']} {asked['to_domain']} {otid}")
    for dro in dros:
        dro.path = [row for row in dro.path if row.way == rows[0].way]
    return SharedPath(rows[0].way, count, rows[0].share, otid)


def _otids(dro: _Asked, asked: JsonObject) -> Iterator[str]:
    """List the sources of the topic in the domain, as the DRO hears them where a path enters it."""
    for portal in {row.entered_at for row in dro.path if row.entered_at}:
        for row in _rows(dro.client, "sources", portal, asked["topic"]):
            if (row.topic, row.domain_id) == (asked["topic"], asked["from_domain"]):
                yield row.otid


def _no_path(dro: _Asked, missed: Sequence[NeighbourProblem]) -> PathFinding:
    """Explain why there is no route, by portals that do not work here; without one, the reason is elsewhere."""
    resume = "tnwgdctl portal resume, or the log if nobody has paused it"
    stopped = [NeighbourProblem(w.name, f"is {w.state}", resume) for w in dro.status.workers if w.state not in WORKING]
    found = [*stopped, *(problem for problem in missed if problem.portal not in (p.portal for p in stopped))]
    why = "".join(f"; {problem.portal}: {problem.what}" for problem in found)
    remedy = found[0].remedy if found else "compare the domain ids and remarks with tnwgdctl topology"
    return PathFinding(
        BLOCKED, f"no route: {dro.problem}{why}", remedy, dro.status.name, found[0].portal if found else ""
    )


def _configured(dro: _Asked, asked: JsonObject) -> ExplainRecord:
    hop = dro.hop
    portals = {"ingress": hop.entered_at, "egress": hop.left_at} if hop is not None else {}
    return dro.client.ask(ExplainRecord, "explain", within_s=QUERY_LIMIT_S, **asked, **portals)


def _facts(dro: _Asked, hop: Hop, topic: str, configured: ExplainRecord, otid: str) -> Facts:
    """Ask a DRO for all about the topic; `otid`: of the only source that is looked at; empty for all."""
    client, entered, left = dro.client, hop.entered_at, hop.left_at
    portals = {p.name: p for p in client.ask(PortalsStatus, "portals").portals if p.name in (entered, left)}
    peers = {row.portal: row for row in links(client, dro.status)[0]}
    return Facts(
        portals,
        peers,
        next(iter(_rows(client, TOPIC, entered, topic)), None),
        next(iter(_rows(client, TOPIC, left, topic)), None),
        tuple(r for r in _rows(client, "sources", entered, topic) if r.topic == topic and otid in ("", r.otid)),
        tuple(
            r for r in _rows(client, "proxies", left, topic)
            if (r.symbol, r.proxy) == (topic, "source") and otid in ("", r.otid)
        ),
        configured,
    )  # fmt: skip


def _rows(client: Client, what: str, portal: str, topic: str) -> list[Any]:
    """List rows of a portal, none when it does not answer; its state tells why."""
    try:
        return list(rows_of(client, what, portal, topic))
    except CommandError:
        return []
