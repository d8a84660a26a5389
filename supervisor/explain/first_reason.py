"""Why a topic does not get from one domain to another: the first reason along the path, from what DROs have said.

Interest travels from the receivers to the source, data the other way. Each DRO of the path that was asked is looked at
in the sequence in which things have to happen: from the last DRO to the first for interest, then from the first to
the last for the source and its data. What a DRO has heard says that everything behind its neighbour was in order, so
a DRO that was not asked is only in question when its neighbour has heard nothing from it. Pure.

Source: forwarding notes, sections 2, 5, 10 and 15; `docs/decisions.md`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from dro.bus.listing import DEGRADED, PathRow, PeerRow, ProxyRow, SourceRow, TopicRow
from dro.metrics.slots import Slot
from supervisor.admin.explanation import INBOUND, OUTBOUND, REJECTED, ExplainRecord
from supervisor.admin.status import WORKING, PortalStatus

FLOWS: Final = "nothing hinders it"
BLOCKED: Final = "does not flow"
OPEN: Final = "not known here"


@dataclass(frozen=True, slots=True)
class Facts:
    """What a DRO of the path says about the topic. Rows are missing where a portal does not answer."""

    portals: Mapping[str, PortalStatus]
    peers: Mapping[str, PeerRow]
    entry: TopicRow | None = None  # at the portal where the topic enters
    exit: TopicRow | None = None
    sources: tuple[SourceRow, ...] = ()  # of the topic, heard where it enters
    proxies: tuple[ProxyRow, ...] = ()  # proxy sources of the topic where it leaves
    configured: ExplainRecord | None = None


@dataclass(frozen=True, slots=True)
class Hop:
    """One DRO of the path; portals have names only when it was asked."""

    dro: str
    entered_at: str = ""
    left_at: str = ""
    ingress_cost: int = 0
    egress_cost: int = 0
    facts: Facts | None = field(default=None)


@dataclass(frozen=True, slots=True)
class PathFinding:
    """`dro` and `portal` are where the reason is; `ask` names the DRO that knows more."""

    verdict: str
    reason: str
    remedy: str = ""
    dro: str = ""
    portal: str = ""
    ask: str = ""


def hops_of(rows: list[PathRow]) -> list[Hop]:
    return [
        Hop(r.dro or r.node_id, r.entered_at, r.left_at, r.ingress_cost, r.egress_cost) for r in rows if r.kind == "DRO"
    ]


def first_reason(hops: list[Hop], source: int, interested: int) -> PathFinding:
    """`source`, `interested`: the domains at both ends."""
    for finding in (*_interest(hops, interested), *_data(hops, source)):
        return finding
    unasked = [hop.dro for hop in hops if hop.facts is None]
    if not unasked:
        return PathFinding(FLOWS, "receivers want it, a source is there, and each DRO forwards it")
    asked = [at for at, hop in enumerate(hops) if hop.facts is not None]
    if not asked:
        return PathFinding(OPEN, "this DRO is not on the path", ask=hops[0].dro)
    # what was heard speaks for the DROs in front of the last that was asked; those behind it know the rest
    behind = hops[asked[-1] + 1 :]
    if not behind:
        return PathFinding(FLOWS, "receivers want it, a source is heard, and each DRO that was asked forwards it")
    known = f"receivers want it, a source is heard, and {hops[asked[-1]].dro} forwards it to {behind[0].dro}"
    return PathFinding(OPEN, known, ask=behind[0].dro)


# interest, from the receivers to the source


def _interest(hops: list[Hop], interested: int) -> Iterator[PathFinding]:
    for at in reversed(range(len(hops))):
        hop = hops[at]
        if hop.facts is None:
            continue
        yield from _portal(hop, hop.left_at)
        if hop.facts.exit is None or hop.facts.entry is None:
            silent = hop.left_at if hop.facts.exit is None else hop.entered_at
            yield PathFinding(OPEN, f"{silent} does not answer", "look at tnwgdctl status and the log", hop.dro, silent)
            continue
        yield from _heard(hops, at, interested)
        if OUTBOUND in hop.facts.exit.rejected:
            yield _acl(hop, hop.left_at, OUTBOUND)
        yield from _portal(hop, hop.entered_at)
        entry = hop.facts.entry
        if interested in entry.asked_for:
            continue
        if INBOUND in entry.rejected:
            yield _acl(hop, hop.entered_at, INBOUND)
        reason = f"{hop.entered_at} does not ask for it on behalf of domain {interested}, though {hop.left_at} wants it"
        remedy = "wait a moment if routes or portals are new; else compare tnwgdctl routes and topology"
        yield PathFinding(BLOCKED, reason, remedy, hop.dro, hop.entered_at)


def _heard(hops: list[Hop], at: int, interested: int) -> Iterator[PathFinding]:
    hop = hops[at]
    assert hop.facts is not None
    if hop.facts.exit is None or interested in hop.facts.exit.wanted_by:
        return
    portal = hop.left_at
    yield from _cut_off(hop, portal)
    if at == len(hops) - 1:
        remedy = "start a receiver there, and compare its topic and topic resolution options with those of the portal"
        yield PathFinding(
            BLOCKED, f"no receiver in domain {interested} wants it, as {portal} hears", remedy, hop.dro, portal
        )
        return
    other = hops[at + 1]
    reason = f"{portal} has heard no interest of domain {interested} from {other.dro}"
    if other.facts is None:
        yield PathFinding(BLOCKED, reason, "", hop.dro, portal, ask=other.dro)
    else:
        remedy = f"{other.dro} asks for it: wait a moment, then look at the network between the two and at both logs"
        yield PathFinding(BLOCKED, reason, remedy, hop.dro, portal)


def _portal(hop: Hop, name: str) -> Iterator[PathFinding]:
    """Look for a portal that does not work, or has no link."""
    assert hop.facts is not None
    status, peer = hop.facts.portals.get(name), hop.facts.peers.get(name)
    if status is not None and status.state not in WORKING:
        yield PathFinding(BLOCKED, f"{name} is {status.state}", f"tnwgdctl portal resume {name}", hop.dro, name)
    elif peer is not None and peer.state == DEGRADED:
        yield PathFinding(BLOCKED, f"{name} carries nothing: {peer.error}", peer.remedy, hop.dro, name)
    elif peer is not None and peer.state != "up":
        yield PathFinding(BLOCKED, f"{name} has no link: {peer.error}", peer.remedy, hop.dro, name)


def _cut_off(hop: Hop, name: str) -> Iterator[PathFinding]:
    """Look for a portal that hears of nothing new, as no server of its TRD answers."""
    assert hop.facts is not None
    status = hop.facts.portals.get(name)
    if status is not None and status.is_cut_off:
        reason = f"{name} hears of nothing: no {' and no '.join(status.silent_servers)} of its TRD answers"
        remedy = "tnwgdctl doctor asks each of them: start them, and let their ports through"
        yield PathFinding(BLOCKED, reason, remedy, hop.dro, name)


def _acl(hop: Hop, portal: str, direction: str) -> PathFinding:
    assert hop.facts is not None
    reason, configured = f"the {direction} access list of {portal} rejects it", hop.facts.configured
    for one in configured.verdicts if configured is not None else ():
        if (one.portal, one.direction, one.verdict) == (portal, direction, REJECTED):
            entry = f", entry {one.ace}" if one.ace else ""
            place = f" [{one.file}:{one.line}]" if one.file else ""
            reason = f"{reason}: {one.reason}{entry}{place}"
    return PathFinding(BLOCKED, reason, "change the list and reload, if the topic shall pass", hop.dro, portal)


# data, from the source to the receivers


def _data(hops: list[Hop], source: int) -> Iterator[PathFinding]:
    for at, hop in enumerate(hops):
        if hop.facts is None or hop.facts.entry is None:
            continue
        found = [row for row in hop.facts.sources if row.domain_id == source]
        if not found:
            yield from _cut_off(hop, hop.entered_at)
            yield _no_source(hops, at, source)
            continue
        yield from _forwarded(hop, found)
        yield from _queue(hop)


def _no_source(hops: list[Hop], at: int, source: int) -> PathFinding:
    hop = hops[at]
    if at == 0:
        remedy = "start the source there, and compare its topic and topic resolution options with those of the portal"
        return PathFinding(
            BLOCKED, f"{hop.entered_at} hears no source of domain {source}", remedy, hop.dro, hop.entered_at
        )
    other = hops[at - 1]
    reason = f"{hop.entered_at} hears no source of domain {source} from {other.dro}"
    if other.facts is None:
        return PathFinding(BLOCKED, reason, "", hop.dro, hop.entered_at, ask=other.dro)
    remedy = f"{other.dro} forwards it: wait a moment, then look at the network between the two and at both logs"
    return PathFinding(BLOCKED, reason, remedy, hop.dro, hop.entered_at)


def _forwarded(hop: Hop, found: list[SourceRow]) -> Iterator[PathFinding]:
    assert hop.facts is not None
    if all(row.state == "rejected" for row in found):
        yield _acl(hop, hop.entered_at, INBOUND)
    elif not any(row.state == "joined" for row in found):
        reason = f"{hop.entered_at} hears the source and has not joined its session"
        remedy = "wait a moment; the log says which sessions cannot be joined"
        yield PathFinding(BLOCKED, reason, remedy, hop.dro, hop.entered_at)
    elif not any(hop.left_at in row.forwarded_to for row in found):
        yield PathFinding(
            BLOCKED, f"{hop.entered_at} does not forward the source to {hop.left_at}",
            f"wait a moment; {hop.left_at} may get it at another portal: see tnwgdctl proxies --topic", hop.dro,
            hop.entered_at,
        )  # fmt: skip
    elif not {row.otid for row in found}.intersection(row.otid for row in hop.facts.proxies):
        reason = f"{hop.left_at} has no proxy source of it"
        yield PathFinding(BLOCKED, reason, "the log of the DRO says which proxy sources fail", hop.dro, hop.left_at)


def _queue(hop: Hop) -> Iterator[PathFinding]:
    """Look for a queue that is long: its receivers, or the companion, take less than comes."""
    assert hop.facts is not None
    status = hop.facts.portals.get(hop.left_at)
    queued, limit = (status[Slot.QUEUED_BYTES], status[Slot.QUEUE_LIMIT]) if status is not None else (0, 0)
    if limit and 2 * queued >= limit:
        reason = f"the queue of {hop.left_at} has {queued} of {limit} bytes"
        remedy = "look for a slow receiver or link behind it, or raise its rate limit"
        yield PathFinding(BLOCKED, reason, remedy, hop.dro, hop.left_at)
