"""The part of `tnwgdctl explain` that asks running DROs.

`--via` names more of them, whose sockets can be reached from here; for the others the command to type on their hosts
is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path

from dro.bus.codec import JsonObject
from supervisor.admin.client import Client, UnreachableError, find_dro
from supervisor.admin.explanation import ExplainRecord
from supervisor.explain.first_reason import Hop
from supervisor.explain.network import NetworkAnswer, joined


def explained(args: argparse.Namespace, asked: JsonObject) -> tuple[ExplainRecord, NetworkAnswer | None]:
    """Return what the configuration of the DRO says, and the network. Raises: UnreachableError, CommandError."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(find_dro(args.dro, args.run_dir)))]
        unreachable = []
        for name in args.via:
            try:
                clients.append(stack.enter_context(Client(_directory(name))))
            except UnreachableError as e:
                unreachable.append(str(e))
        return joined(clients, asked, unreachable)


def _directory(name: str) -> Path:
    return Path(name) if "/" in name else find_dro(name)


# for people


def network_lines(answer: NetworkAnswer, topic: str, source: int, interested: int) -> Iterator[str]:
    finding = answer.finding
    where = f" (at {finding.dro})" if finding.dro else ""
    yield f"topic {topic} from domain {source} to domain {interested}: {finding.verdict}"
    yield f"  reason: {finding.reason}{where}"
    if finding.remedy:
        yield f"  remedy: {finding.remedy}"
    if finding.ask:
        command = (
            f"tnwgdctl explain {shlex.quote(topic)} --from {source} --to {interested} --dro {shlex.quote(finding.ask)}"
        )
        yield f"  next, on the host of {finding.ask}: {command}"
        yield f"  or here, if it runs on this host: the same command as now with --via {shlex.quote(finding.ask)}"
    if answer.hops:
        yield f"  path, cost {answer.cost}{f', {answer.way}' if answer.way is not None else ''}:"
        yield f"    domain {source}"
        for hop in answer.hops:
            yield f"    {_hop_text(hop)}"
        yield f"    domain {interested}"
    for problem in answer.problems:
        yield f"  neighbours: {problem}"


def _hop_text(hop: Hop) -> str:
    if hop.facts is None:
        return f"{hop.dro}, costs {hop.ingress_cost} and {hop.egress_cost}, not asked"
    facts = hop.facts
    enters = f"enters at {hop.entered_at} (cost {hop.ingress_cost})"
    text = f"{hop.dro}, {enters}, leaves at {hop.left_at} (cost {hop.egress_cost})"
    if facts.entry is None or facts.exit is None:
        return text
    domains = ", ".join(map(str, facts.exit.wanted_by)) or "none"
    states = ", ".join(sorted({row.state for row in facts.sources})) or "none heard"
    return f"{text}; wanted there by domains: {domains}; sources: {states}; proxy sources: {len(facts.proxies)}"
