"""`tnwgdctl portals` and `tnwgdctl portal ACTION NAME`: counters of portals, and orders to them."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Final

from dro.metrics.slots import Slot
from dro.metrics.table import ENDPOINT
from dro.standard_streams import say
from supervisor.admin.client import Client
from supervisor.admin.status import LeaveResult, OperationResult, PortalsStatus, PortalStatus
from supervisor.samples.growth import growth_of_portal
from supervisor.tools.ctl.output import (
    EXIT_FAILED,
    EXIT_OK,
    NONE,
    Commands,
    connect,
    positive,
    put_answer,
    put_json,
    redraw,
    seconds,
    table,
    wide_table,
)

LEGEND: Final = """\
LOCAL: topics + patterns that receivers of the TRD want
REMOTE: those that other DROs there or beyond the link want
CONTROL: messages; RECEIVED, FORWARDED to QUEUED: fragments"""
WATCH_INTERVAL_S: Final = 1.0
WATCH_LEAST_S: Final = 0.1
DRAIN_LIMIT_S: Final = 30.0
SLACK_S: Final = 90.0
"""Beyond the limit of a drain: for the stop, and for a portal to become ready, which each have limits in the DRO."""

_ACTIONS: Final = {
    "restart": "replace its process by one with the current configuration that goes on where that one was",
    "pause": "stop it in good order until it is resumed",
    "resume": "start it again after pause or drain",
    "drain": "stop it without losing what it has accepted",
    "add": "start a portal that is new in the configuration file; all others are left alone",
    "remove": "drain it and take it out of the running DRO; the file is not changed",
}
_WITH_LIMIT: Final = ("drain", "remove")
LEAVE_LIMIT_S: Final = 60.0


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    portals = commands.add_parser("portals", parents=[common], help="what each portal forwards, sends and drops")
    portals.add_argument(
        "-w", "--watch", metavar="SECONDS", nargs="?", type=_interval, const=WATCH_INTERVAL_S,
        help=f"rates over that interval, until interrupted (default {WATCH_INTERVAL_S:g})",
    )  # fmt: skip
    portals.add_argument("--count", metavar="N", type=positive, help="with --watch: end after N intervals")
    portals.set_defaults(run=show_portals, parser=portals)
    leave = commands.add_parser(
        "drain", parents=[common], help="let the whole DRO leave its network without loss, and end",
        description="Make routes avoid this DRO, drain all its portals, and end it.",
    )  # fmt: skip
    leave.add_argument("--all", action="store_true", required=True, help="all portals; one alone: portal drain NAME")
    leave.add_argument(
        "--limit", metavar="SECONDS", type=seconds, default=LEAVE_LIMIT_S,
        help=f"for the routes, for what moves to them, and for the portals, each (default {LEAVE_LIMIT_S:g})",
    )  # fmt: skip
    leave.set_defaults(run=leave_network)
    portal = commands.add_parser(
        "portal", parents=[common], help="restart, pause, resume, drain, add or remove one portal"
    )
    actions = portal.add_subparsers(metavar="ACTION", required=True, title="actions", dest="action")
    for name, what in _ACTIONS.items():
        action = actions.add_parser(name, parents=[common], help=what, description=f"{what[0].upper()}{what[1:]}.")
        action.add_argument("name", metavar="NAME", help="name of the portal")
        if name in _WITH_LIMIT:
            action.add_argument(
                "--limit", metavar="SECONDS", type=seconds, default=DRAIN_LIMIT_S,
                help=f"give up what is still held after so long (default {DRAIN_LIMIT_S:g})",
            )  # fmt: skip
        if name == "restart":
            action.add_argument(
                "--clean", action="store_true",
                help="stop it in good order and start it as the first time, with new sessions",
            )  # fmt: skip
        action.set_defaults(run=operate)


def _interval(text: str) -> float:
    return seconds(text, WATCH_LEAST_S)


# one portal


def operate(args: argparse.Namespace) -> int:
    arguments: dict[str, object] = {"name": args.name}
    within_s = SLACK_S
    if args.action in _WITH_LIMIT:
        arguments["limit_s"] = args.limit
        within_s += args.limit
    if args.action == "restart" and args.clean:
        arguments["clean"] = True
    with connect(args) as client:
        result = client.ask(OperationResult, f"portal {args.action}", within_s=within_s, **arguments)
    put_answer(args, result, f"{result.portal} is {result.state}")
    if not result.note:
        return EXIT_OK
    if not args.json:
        say(sys.stderr, f"tnwgdctl: {result.portal}: {result.note}\n")
    return EXIT_FAILED if args.action in _WITH_LIMIT else EXIT_OK


def leave_network(args: argparse.Namespace) -> int:
    with connect(args) as client:
        result = client.ask(LeaveResult, "drain-all", within_s=3 * args.limit + SLACK_S, limit_s=args.limit)
    put_answer(args, result, f"drained {', '.join(result.drained) or 'nothing'}; the DRO ends")
    for note in () if args.json else result.notes:
        say(sys.stderr, f"tnwgdctl: {note}\n")
    if result.paths > 0 and not args.json:
        say(sys.stderr, f"tnwgdctl: {result.paths} paths between domains had no other way than through this DRO\n")
    return EXIT_FAILED if result.notes else EXIT_OK


# all portals


@dataclass(frozen=True, slots=True)
class PortalRates:
    """Rates of one portal, per second."""

    name: str
    received: float
    forwarded: float
    sent: float
    sent_bits: float
    dropped: float


def rates(before: PortalsStatus, after: PortalsStatus) -> tuple[PortalRates, ...]:
    """Find the rates between two looks, for the portals that are in both."""
    span_s = max(after.time_s - before.time_s, 1e-6)
    earlier = {portal.name: portal for portal in before.portals}
    found = []
    for portal in after.portals:
        if (old := earlier.get(portal.name)) is not None:
            grown = growth_of_portal(old, portal)
            received, forwarded, sent = grown[Slot.TOPIC_RCVD], grown[Slot.FORWARDED], grown[Slot.SENT]
            counts = received, forwarded, sent, grown[Slot.SENT_BYTES] * 8, grown.dropped_total
            found.append(PortalRates(portal.name, *(round(count / span_s, 1) for count in counts)))
    return tuple(found)


def show_portals(args: argparse.Namespace) -> int:
    if args.count is not None and args.watch is None:
        args.parser.error("--count goes with --watch")
    with connect(args) as client:
        if args.watch is None:
            status = client.ask(PortalsStatus, "portals")
            put_answer(args, status, portals_text(status))
            return EXIT_OK
        for before, after in _pairs(client, args.watch, args.count):
            found = rates(before, after)
            if args.json:
                is_read = put_json(asdict(after) | {"rates": [asdict(rate) for rate in found]})
            else:
                is_read = redraw(rates_text(after, found))
            if not is_read:
                break
    return EXIT_OK


def _pairs(client: Client, interval_s: float, count: int | None) -> Iterator[tuple[PortalsStatus, PortalsStatus]]:
    before = client.ask(PortalsStatus, "portals")
    done = 0
    while count is None or done < count:
        time.sleep(interval_s)
        after = client.ask(PortalsStatus, "portals")
        yield before, after
        before = after
        done += 1


def portals_text(status: PortalsStatus) -> str:
    head = ("PORTAL", "STATE", "DOMAIN", "COST", "RECEIVERS", "SOURCES", "LOCAL", "REMOTE",
            "RECEIVED", "CONTROL", "FORWARDED", "SENT", "DROPPED", "QUEUED")  # fmt: skip
    rows = [
        (
            p.name, p.state, p.domain_id if p.kind == ENDPOINT else NONE, p.cost,
            p[Slot.PROXY_RECEIVERS], p[Slot.PROXY_SOURCES],
            f"{p[Slot.LOCAL_TOPICS]}+{p[Slot.LOCAL_PCRE] + p[Slot.LOCAL_REGEX]}",
            f"{p[Slot.REMOTE_TOPICS]}+{p[Slot.REMOTE_PCRE] + p[Slot.REMOTE_REGEX]}",
            p[Slot.TOPIC_RCVD], p[Slot.CONTROL_RCVD], p[Slot.FORWARDED], p[Slot.SENT], p.dropped_total, p[Slot.QUEUED],
        )
        for p in status.portals
    ]  # fmt: skip
    lines = [wide_table(head, rows), *([LEGEND] if rows else [])]
    for portal in status.portals:
        lines += remarks(portal)
    return "\n".join(lines)


_REMARKS: Final = (
    (Slot.UNRECOVERABLE, "gave up {} datagrams of its {} as lost"),
    (Slot.BAD_DATAGRAMS, "dropped {} datagrams of its {} that are broken or of others"),
    (Slot.UNKNOWN_SENDERS, "dropped {} datagrams of topic resolution whose sender is no lbmrd of its {}"),
    (Slot.SOCKET_DROPS, "lost {} datagrams to full receive buffers; some may have come again"),
    (Slot.UNSENT, "could not send {} datagrams"),
    (Slot.DISCARDED, "discarded {} messages for slow receivers"),
)
_TRAFFIC: Final = {
    "unicast": ("unicast", "unicast_data", "unicast_control"),
    "immediate": ("immediate", "immediate_topic", "immediate_topicless"),
    "gateway control": ("gateway_control",),
}


def remarks(portal: PortalStatus) -> Iterator[str]:
    """Yield what an operator should know and a column has no room for."""
    side = "link" if portal.kind == "peer" else "TRD"
    if portal.dropped_total:
        yield f"{portal.name} dropped {_reasons(portal.dropped('transport_topic', 'data'))}"
    if portal[Slot.QUEUED_BYTES]:
        yield f"{portal.name} queues {portal[Slot.QUEUED_BYTES]} of {portal[Slot.QUEUE_LIMIT]} bytes"
    for kind in portal.silent_servers:
        yield f"{portal.name} gets no answer from any {kind} of its TRD"
    for slot, text in _REMARKS:
        if count := portal[slot]:
            yield f"{portal.name} {text.format(count, side)}"
    for kind, traffic in _TRAFFIC.items():
        if reasons := _reasons(portal.dropped(*traffic)):
            yield f"{portal.name} dropped {kind} messages: {reasons}"


def _reasons(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in dropped.items() if count)


def rates_text(status: PortalsStatus, found: tuple[PortalRates, ...]) -> str:
    head = ("PORTAL", "STATE", "RECEIVED/s", "FORWARDED/s", "SENT/s", "SENT Mbit/s", "DROPPED/s", "QUEUED")
    by_name = {rate.name: rate for rate in found}
    rows = []
    for portal in status.portals:
        numbers: tuple[str, ...] = ("",) * 5
        if (r := by_name.get(portal.name)) is not None:
            received, forwarded, sent, dropped = (f"{n:.0f}" for n in (r.received, r.forwarded, r.sent, r.dropped))
            numbers = (received, forwarded, sent, f"{r.sent_bits / 1e6:.2f}", dropped)
        rows.append((portal.name, portal.state, *numbers, portal[Slot.QUEUED]))
    return table(head, rows)
