"""`tnwgdctl peers`: the link of each peer portal; and which neighbours are expected and not there, for all commands."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

from dro.bus.listing import DEGRADED, PEERS, PeerRow
from dro.clock import duration
from dro.log.lines import printable
from supervisor.admin.status import DroStatus
from supervisor.explain.neighbours import NeighbourProblem, links
from supervisor.tools.ctl.output import EXIT_FAILED, EXIT_OK, Commands, connect, put, put_json

PEER: Final = "peer"
_EXPIRES_SOON_DAYS: Final = 30
_LINKED: Final = ("up", DEGRADED)


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
        problems.append(NeighbourProblem(args.portal, "this DRO has no such peer portal", ""))
    if args.json:
        put_json({PEERS: [asdict(row) for row in rows], "problems": [asdict(problem) for problem in problems]})
    else:
        lines = [line for row in rows for line in peer_lines(row)]
        lines += [f"{problem}" for problem in problems]
        put("\n".join(map(printable, lines)) if lines else "this DRO has no peer portal")
    return EXIT_FAILED if problems else EXIT_OK


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
