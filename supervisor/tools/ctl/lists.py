"""`tnwgdctl topics`, `sources`, `interest`, `proxies`, `blocked`, `losses` and `routes`: the current state of
the DRO.

Each portal is asked for one page after the other, see `dro.bus.listing`; routes come from the route manager.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from dro.bus.codec import Record
from dro.bus.listing import BLOCKED, LOSSES, ROUTES
from dro.log.lines import printable
from dro.standard_streams import say
from supervisor.admin.client import Client, CommandError
from supervisor.admin.lists import holders, rows_of
from supervisor.admin.status import DroStatus
from supervisor.tools.ctl.output import (
    EXIT_FAILED,
    EXIT_OK,
    Commands,
    connect,
    positive,
    put,
    put_json,
    topic,
    wide_table,
)

ROWS_SHOWN: Final = 1000


@dataclass(frozen=True, slots=True)
class _List:
    help: str
    head: tuple[str, ...]
    fields: str  # of a row, in the order of `head`
    epilog: str = ""


_LISTS: Final[Mapping[str, _List]] = {
    "topics": _List(
        "topics that portals hear, or that receivers want",
        ("PORTAL", "TOPIC", "SOURCES", "JOINED", "WANTED BY", "ASKED FOR", "PROXIES", "REJECTED"),
        "portal topic sources joined wanted_by asked_for proxies rejected",
        "SOURCES: heard in the TRD of the portal; JOINED: received from there. WANTED BY: domains that get the topic "
        "through the portal; ASKED FOR: domains for which it asks its TRD. PROXIES: proxy sources that it sends on.",
    ),
    "sources": _List(
        "sources that portals hear, and where they are forwarded",
        ("PORTAL", "TOPIC", "STATE", "DOMAIN", "SOURCE", "HOPS", "COST", "FORWARDED TO", "OTID"),
        "portal topic state domain_id source hop_count cost forwarded_to otid",
        "A source is joined, not wanted by anybody, rejected by the access control list of the portal, or the "
        "alternative to another way to the same source.",
    ),
    "interest": _List(
        "topics and patterns that receivers want, by domain",
        ("PORTAL", "DOMAIN", "VIA", "KIND", "TOPIC OR PATTERN", "REJECTED"),
        "portal domain_id via kind symbol rejected",
        "Local interest is that of the TRD of the portal, remote interest lies behind other DROs in it.",
    ),
    "proxies": _List(
        "proxy sources and proxy receivers",
        ("PORTAL", "PROXY", "KIND", "TOPIC OR PATTERN", "DOMAINS", "FED BY", "FRAGMENTS", "SOURCE", "OTID"),
        "portal proxy kind symbol domains fed_by fragments source otid",
        "DOMAINS of a receiver: on whose behalf it asks; of a source: where it originates. FRAGMENTS: of a source, "
        "since it exists.",
    ),
    BLOCKED: _List(
        "TCP receivers and links that do not take what waits for them",
        ("PORTAL", "ADDRESS", "STATE", "SECONDS", "WAITING BYTES", "DROPPED", "TOPICS"),
        "portal address state blocked_s waiting_bytes dropped topics",
        "STATE: waiting (others of the session go on), blocking (the session takes nothing more, so they wait too), or "
        "down (there is no link). SECONDS: since something was taken last. DROPPED: messages. TOPICS: a few of those "
        "that it gets.",
    ),
    LOSSES: _List(
        "last losses that nobody can repair",
        ("PORTAL", "BEGAN", "ENDED", "LOST", "CAUSE", "SOURCE", "TOPICS", "OTID"),
        "portal began_s ended_s lost cause source topics otid",
        "LOST: datagrams. CAUSE: timeout, window advance (the source cannot send them any more), jump (too many at "
        "once), or link ended. TOPICS: a few of those that the session carried.",
    ),
    ROUTES: _List(
        "routes between domains through this DRO",
        ("FROM DOMAIN", "TO DOMAIN", "ENTERS AT", "LEAVES AT", "SHARE %"),
        "from_domain to_domain ingress egress share",
        "SHARE: of the sources, where others go another way of equal cost.",
    ),
}


def _cell(row: Record, name: str) -> object:
    value = getattr(row, name)
    if name in ("began_s", "ended_s"):
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
    if name == "share":
        return value if value != 100 else ""
    return ("outbound" if value else "") if isinstance(value, bool) else value  # only interest is rejected or not


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    for name, made in _LISTS.items():
        one = commands.add_parser(
            name, parents=[common], help=made.help, description=f"List the {made.help}.", epilog=made.epilog
        )
        one.add_argument("--portal", metavar="NAME", default="", help="this portal alone")
        if name != ROUTES:
            one.add_argument("--topic", metavar="TEXT", type=topic, default="", help="only names with this in them")
        one.add_argument(
            "--limit", metavar="N", type=positive, default=ROWS_SHOWN, help=f"rows at most (default {ROWS_SHOWN})"
        )
        one.set_defaults(run=show_list, what=name, topic="")


@dataclass(slots=True)
class Found:
    """The rows of one list, and what kept it from being whole."""

    rows: list[Any] = field(default_factory=list)
    has_more: bool = False
    problems: list[str] = field(default_factory=list)


def show_list(args: argparse.Namespace) -> int:
    with connect(args) as client:
        status = client.ask(DroStatus, "status")
        found = _collect(client, status, args)
    made = _LISTS[args.what]
    if args.json:
        answer: dict[str, Any] = {args.what: [asdict(row) for row in found.rows]}
        if args.what == ROUTES:
            answer["is_calculated"] = status.routes >= 0
        put_json(answer | {"has_more": found.has_more, "problems": found.problems})
    elif found.rows:
        put(wide_table(made.head, [[_cell(row, name) for name in made.fields.split()] for row in found.rows]))
    elif not found.problems:
        put(routes_text(status) if args.what == ROUTES and status.routes <= 0 else "none")
    if found.has_more and not args.json:
        say(sys.stderr, f"tnwgdctl: there are more than {args.limit}; name a --portal or --topic, or raise --limit\n")
    for problem in found.problems:
        say(sys.stderr, f"tnwgdctl: not listed: {printable(problem)}\n")
    return EXIT_FAILED if found.problems else EXIT_OK


def routes_text(status: DroStatus) -> str:
    if status.routes < 0:
        return f"no routes yet; the first come {status.routes_wait_s:g} s after the last portal was ready"
    return f"{status.routes} routes between domains"


def _collect(client: Client, status: DroStatus, args: argparse.Namespace) -> Found:
    found = Found()
    is_routes = args.what == ROUTES
    portals = [w.name for w in status.workers if w.is_portal]
    if args.portal and args.portal not in portals:
        found.problems.append(f"this DRO has no portal {args.portal!r}; it has {', '.join(portals)}")
        return found
    asked, found.problems = holders(status, args.what, "" if is_routes else args.portal)
    for worker in asked:
        try:
            for row in rows_of(client, args.what, worker, args.topic):
                if is_routes and args.portal not in ("", row.ingress, row.egress):
                    continue
                if len(found.rows) == args.limit:
                    found.has_more = True
                    return found
                found.rows.append(row)
        except CommandError as e:
            found.problems.append(str(e))
    return found
