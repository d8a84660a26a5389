"""`tnwgdctl peers`: the link of each peer portal; and which neighbours are expected and not there, for all commands."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Final

from dro.bus.listing import DEGRADED, PEERS, TOPOLOGY, PeerRow, TopologyRow
from dro.log.lines import printable
from supervisor.admin.client import Client, CommandError
from supervisor.admin.lists import rows_of
from supervisor.admin.status import DroStatus
from supervisor.ctl.lists import ROUTE_MANAGER, WORKING
from supervisor.ctl.output import EXIT_FAILED, EXIT_OK, Commands, connect, duration, put, put_json

PEER: Final = "peer"
_EXPIRES_SOON_DAYS: Final = 30
_LINKED: Final = ("up", DEGRADED)
_TOLD_S: Final = 10  # by then a companion has told its node id


@dataclass(frozen=True, slots=True)
class Problem:
    """A neighbour that the configuration, or another DRO, speaks of, and that is not there."""

    portal: str
    what: str
    remedy: str

    def __str__(self) -> str:
        remedy = f"; {self.remedy}" if self.remedy else ""
        return f"{self.portal}: {self.what}{remedy}" if self.portal else f"{self.what}{remedy}"


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    peers = commands.add_parser(
        PEERS, parents=[common], help="links to other DROs: state, addresses, round trip times, traffic",
        description="Show the link of each peer portal.",
        epilog="Counters are those since the start of the portal, bytes of the stream since the link is up.",
    )  # fmt: skip
    peers.add_argument("--portal", metavar="NAME", default="", help="this portal alone")
    peers.set_defaults(run=show_peers)


def show_peers(args: argparse.Namespace) -> int:
    with connect(args) as client:
        status = client.ask(DroStatus, "status")
        rows, problems = links(client, status, args.portal)
    if args.portal and args.portal not in (w.name for w in status.workers if w.role == PEER):
        problems.append(Problem(args.portal, "this DRO has no such peer portal", ""))
    if args.json:
        put_json({PEERS: [asdict(row) for row in rows], "problems": [asdict(problem) for problem in problems]})
    else:
        lines = [line for row in rows for line in peer_lines(row)]
        lines += [f"{problem}" for problem in problems]
        put("\n".join(map(printable, lines)) if lines else "this DRO has no peer portal")
    return EXIT_FAILED if problems else EXIT_OK


def links(client: Client, status: DroStatus, portal: str = "") -> tuple[list[PeerRow], list[Problem]]:
    """The rows of all peer portals that answer; of the others, why not. Raises: UnreachableError."""
    rows: list[PeerRow] = []
    problems = []
    for worker in status.workers:
        if worker.role != PEER or portal not in ("", worker.name):
            continue
        if worker.state not in WORKING:
            problems.append(Problem(worker.name, f"is {worker.state}", ""))
            continue
        try:
            rows += rows_of(client, PEERS, worker.name, "")
        except CommandError as e:
            problems.append(Problem(worker.name, str(e), ""))
    return rows, problems


def neighbour_problems(client: Client, status: DroStatus) -> list[Problem]:
    """Everything that a DRO with peer portals expects and that is not there. Raises: UnreachableError."""
    if not any(worker.role == PEER for worker in status.workers):
        return []
    rows, problems = links(client, status)
    problems += absent_companions(rows)
    for worker in status.workers:
        if worker.role == ROUTE_MANAGER and worker.state in WORKING:
            try:
                problems += one_sided_links(rows_of(client, TOPOLOGY, worker.name, ""))
            except CommandError as e:
                problems.append(Problem(worker.name, str(e), ""))
    return problems


def absent_companions(rows: Iterable[PeerRow]) -> Iterator[Problem]:
    for row in rows:
        if row.state == DEGRADED:
            yield Problem(row.portal, f"its link is up and carries nothing: {row.error}", row.remedy)
        elif row.state != "up":
            yield Problem(row.portal, f"no link for {duration(row.since_s)}: {row.error}", row.remedy)
        elif not row.node_id and row.since_s >= _TOLD_S:
            what = f"{row.dro} has told no node id on a link that is up for {duration(row.since_s)}"
            yield Problem(row.portal, what, f"look at tnwgdctl status of {row.dro}: its route manager has to run")


def one_sided_links(rows: Iterable[TopologyRow]) -> Iterator[Problem]:
    """Links that nothing passes though their portal works."""
    for row in rows:
        if not row.remark or (row.is_own and not row.neighbour):  # the portal itself says it
            continue
        where = "" if row.is_own else f"{row.dro or row.node_id} has a link to {row.neighbour_name or row.neighbour}: "
        remedy = "start that DRO, or look at its tnwgdctl peers and topology"
        yield Problem(row.portal, f"{where}{row.remark}", remedy)


# for people


def peer_lines(row: PeerRow) -> Iterator[str]:
    yield f"{row.portal}  {row.role}, {row.state}{_when(row)}"
    if row.state == DEGRADED:
        yield f"  {row.error}, no route takes it; remedy: {row.remedy}"
    if row.state not in _LINKED:
        where = f"to {row.remote}" if row.role == "initiator" else f"on {row.local}"
        yield f"  {where}: {row.error}"
        yield f"  remedy: {row.remedy}"
        if row.attempts:
            due = f", the next one in {row.next_attempt_s:g} s" if row.next_attempt_s >= 0 else ""
            yield f"  attempts {row.attempts}{due}"
    else:
        node = f", node {row.node_id}" if row.node_id else ", has told no node id yet"
        yield f"  companion {row.dro}{node}"
        yield f"  {row.local} to {row.remote}, {row.transport}{_certificate(row)}"
        yield f"  round trip {_round_trip(row)}; {_keepalive(row)}"
        yield (
            f"  interest told {row.interest_told}, heard {row.interest_heard}; sources told {row.sources_told}, "
            f"heard {row.sources_heard}{f', not taken {row.ignored_sources}' if row.ignored_sources else ''}"
        )
        yield f"  stream: sent {row.bytes_sent} bytes, received {row.bytes_received}, waiting {row.waiting_bytes}"
    yield (
        f"  fragments: sent {row.fragments_sent} ({row.fragments_sent_bytes} bytes) in {row.batches} batches"
        f"{_batch_sizes(row)}, received {row.fragments_received} "
        f"({row.fragments_received_bytes} bytes)"
    )
    yield f"  queue: {row.queued} fragments, {row.queued_bytes} of {row.queue_limit_bytes} bytes"
    lost = f", lost with connections {row.lost_bytes} bytes at most" if row.lost_bytes else ""
    yield f"  reconnects {row.reconnects}{lost}, repairs by digest {row.repairs}"


def _when(row: PeerRow) -> str:
    return f" for {duration(row.since_s)}" if row.state in _LINKED else f", no link for {duration(row.since_s)}"


def _certificate(row: PeerRow) -> str:
    if row.certificate_days < 0 and not row.certificate:
        return ""
    own = f", own certificate valid for {row.own_certificate_days} days"
    soon = " (renew it)" if row.own_certificate_days < _EXPIRES_SOON_DAYS else ""
    return f", certificate of {row.certificate or 'no name'} valid for {row.certificate_days} days{own}{soon}"


def _batch_sizes(row: PeerRow) -> str:
    if not row.batches:
        return ""
    return f" (bytes: least {row.batch_min_bytes}, mean {row.batch_mean_bytes}, most {row.batch_max_bytes})"


def _round_trip(row: PeerRow) -> str:
    if not row.rtt_samples:
        return "not measured yet"
    return (
        f"{row.rtt_last_us} us (least {row.rtt_min_us}, mean {row.rtt_mean_us}, most {row.rtt_max_us}, "
        f"{row.rtt_samples} samples, the last {row.answered_s:g} s ago)"
    )


def _keepalive(row: PeerRow) -> str:
    if not row.keepalive_interval_ms:
        return "keepalive off"
    idle = " when idle" if row.keepalive_only_when_idle else ""
    return f"keepalive every {row.keepalive_interval_ms} ms{idle}, timeout {row.keepalive_timeout_ms} ms"
