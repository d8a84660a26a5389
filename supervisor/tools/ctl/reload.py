"""`tnwgdctl reload`, `confirm`, `rollback`, `diff` and `explain`: a summary, and with `--verbose` every detail.

`diff` ends with 0 when a reload would change nothing in the meaning of the configuration, with 4 when it would;
`explain` with 1 when it has found why a topic does not get there.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from ipaddress import AddressValueError, IPv4Address
from typing import Final

from dro.bus.codec import JsonObject
from dro.config.dro_xml.elements_acl import NUMBER_KINDS
from dro.config.dro_xml.model import DroConfig
from dro.config.reading.fetch import is_url
from dro.config.reading.schema import UINT32_MAX
from dro.errors import RefusedError
from dro.log.lines import printable
from dro.standard_streams import say
from supervisor.admin.explanation import ACCEPTED, REJECTED, ExplainRecord
from supervisor.admin.server import Arguments
from supervisor.commands.explain import SESSION_PARTS, TRANSPORTS, explain, query_of
from supervisor.explain.first_reason import BLOCKED
from supervisor.explain.network import NetworkAnswer
from supervisor.reload.plan import plan_reload
from supervisor.reload.records import MAX_CONFIRM_S, ChangeRecord, ConfirmRecord, PlanRecord, ReloadRecord, plan_record
from supervisor.tools.ctl.network import explained, network_lines
from supervisor.tools.ctl.output import (
    EXIT_FAILED,
    EXIT_OK,
    Commands,
    connect,
    number_of_seconds,
    put_answer,
    topic,
    whole,
)

EXIT_DIFFERENT: Final = 4
RELOAD_LIMIT_S: Final = 900.0  # a trial, drains, starts and the way back, each with its own limit in the DRO
QUERY_LIMIT_S: Final = 75.0


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    _add_reload(commands, common)
    confirm = commands.add_parser("confirm", parents=[common], help="keep what `reload --confirm` has changed")
    confirm.set_defaults(run=run_settle, command="confirm", text="confirmed")
    rollback = commands.add_parser("rollback", parents=[common], help="take back what `reload --confirm` has changed")
    rollback.set_defaults(run=run_settle, command="rollback", text="taken back; the file still has the change")
    _add_diff(commands, common)
    _add_explain(commands, common)


def _add_reload(commands: Commands, common: argparse.ArgumentParser) -> None:
    reload = commands.add_parser(
        "reload", parents=[common], help="read the configuration file again and apply what has changed",
        description="Read the configuration file again and apply what has changed; on any error nothing changes. "
        "SIGHUP does the same.",
    )  # fmt: skip
    reload.add_argument(
        "--confirm", metavar="SECONDS", type=_confirm_seconds, default=0.0,
        help="take it back after so long unless `tnwgdctl confirm` comes",
    )  # fmt: skip
    reload.add_argument(
        "--wait", action=argparse.BooleanOptionalAction, default=True,
        help="end when all is done (default), or as soon as the new file has stood its trial",
    )  # fmt: skip
    _add_verbose(reload, "list each change")
    reload.set_defaults(run=run_reload)


def _add_diff(commands: Commands, common: argparse.ArgumentParser) -> None:
    diff = commands.add_parser(
        "diff", parents=[common], help="what a reload of a file would do",
        description="What differs, by meaning, between the running configuration and a file, and what a reload would "
        "do about it. Exit status 0: nothing differs; 4: something does.",
    )  # fmt: skip
    diff.add_argument("file", metavar="FILE", nargs="?", help="default: the file of the running DRO, as it is now")
    diff.add_argument("--against", metavar="OLD", help="compare with this file instead; no DRO is asked")
    _add_verbose(diff, "list each change, with both values, class and place")
    diff.set_defaults(run=run_diff, parser=diff)


def _add_explain(commands: Commands, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "explain", parents=[common], help="why a topic does or does not get from one domain to another",
        description="The first reason why a topic does not get from one domain to another, from the state of the DROs "
        "that are asked; then portals, access lists and UM options of this DRO, as its configuration has them. What is "
        "known of the transport session of the source can be given.",
        epilog="A DRO answers for itself, and names the next one to ask where it does not know. With --via, all are "
        "asked at once. Exit status 1: it does not get there, or with --file the configuration rejects it.",
    )  # fmt: skip
    parser.add_argument("topic", metavar="TOPIC", type=topic)
    for name, whose in (("from", "sources"), ("to", "receivers")):
        parser.add_argument(
            f"--{name}", metavar="DOMAIN", dest=f"{name}_domain", type=_domain, required=True, help=f"of {whose}"
        )
    parser.add_argument("--file", metavar="FILE", help="ask this configuration file instead of a running DRO")
    parser.add_argument(
        "--via", metavar="DRO", action="append", default=[],
        help="ask this DRO too: its name, process id, or run directory; may be repeated",
    )  # fmt: skip
    _add_verbose(parser, "what every access list says, and the UM options of the proxies")
    session = parser.add_argument_group("transport session of the source, by the names of ACL conditions")
    session.add_argument("--transport", choices=TRANSPORTS)
    for kind in SESSION_PARTS:
        is_number = kind in NUMBER_KINDS
        session.add_argument(
            f"--{kind}", metavar="N" if is_number else "ADDRESS", type=_session_number if is_number else _address
        )
    parser.set_defaults(run=run_explain)


def _domain(text: str) -> int:
    return whole(text, 1, UINT32_MAX)


def _session_number(text: str) -> int:
    return whole(text, 0, 65535)


def _address(text: str) -> str:
    try:
        return str(IPv4Address(text))
    except AddressValueError as e:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not an IPv4 address; write it as in 192.0.2.1") from e


def _add_verbose(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("-v", "--verbose", action="store_true", help=what)


def _confirm_seconds(text: str) -> float:
    seconds = number_of_seconds(text)
    if not 1 <= seconds <= MAX_CONFIRM_S:
        raise argparse.ArgumentTypeError(f"write 1 to {MAX_CONFIRM_S:g} seconds")
    return seconds


# --- reload --------------------------------------------------------------------------------------------------------


def run_reload(args: argparse.Namespace) -> int:
    with connect(args) as client:
        done = client.ask(
            ReloadRecord, "reload", confirm=args.confirm, no_wait=not args.wait, within_s=RELOAD_LIMIT_S
        )  # fmt: skip
    _warn(args, done.plan)
    put_answer(args, done, "\n".join(_reload_lines(done, args.dro, verbose=args.verbose)))
    return EXIT_OK


def _reload_lines(done: ReloadRecord, dro: str, *, verbose: bool) -> Iterator[str]:
    """Write the summary. `dro`: as the DRO was named, if it was."""
    if not done.plan.changes:
        yield f"{done.plan.file}: nothing has changed"
        return
    yield from plan_lines(done.plan, verbose=verbose)
    for note in done.notes:
        yield f"note: {note}"
    if not done.is_done:
        yield "begun; the log tells the end"
    else:
        yield f"done in {done.took_s:.1f} s"
    if done.confirm_s:
        yield f"taken back in {done.confirm_s:g} s unless you say: tnwgdctl{f' --dro {dro}' * bool(dro)} confirm"


def run_settle(args: argparse.Namespace) -> int:
    """`confirm` or `rollback`."""
    with connect(args) as client:
        done = client.ask(ConfirmRecord, args.command, within_s=RELOAD_LIMIT_S)
    put_answer(args, done, "\n".join([args.text, *(f"note: {note}" for note in done.notes)]))
    return EXIT_OK


# --- diff ----------------------------------------------------------------------------------------------------------


def run_diff(args: argparse.Namespace) -> int:
    """Print what a reload would do, or what differs. Raises: ConfigError when a file cannot be used."""
    if args.against is not None and args.file is None:
        args.parser.error("--against needs FILE as well")
    if args.against is None:
        with connect(args) as client:
            asked: JsonObject = {} if args.file is None else {"file": _absolute(args.file)}
            plan = client.ask(PlanRecord, "diff", within_s=QUERY_LIMIT_S, **asked)
    else:
        old, _ = _read(args.against)
        new, warnings = _read(args.file)
        plan = plan_record(args.file, plan_reload(old, new), warnings)
    _warn(args, plan)
    lines = [f"{plan.file}: no difference"] if plan.is_empty else plan_lines(plan, verbose=args.verbose)
    put_answer(args, plan, "\n".join(lines))
    return EXIT_OK if plan.is_empty else EXIT_DIFFERENT


def _read(file: str) -> tuple[DroConfig, tuple[str, ...]]:
    """Read a file without a DRO. Raises: ConfigError."""
    from supervisor.reload.trial import read_new  # half a second of imports that other commands do not need

    return read_new(file)


def _absolute(file: str) -> str:
    """Make a path absolute, as the DRO has another working directory."""
    return file if is_url(file) else os.path.abspath(file)


def _warn(args: argparse.Namespace, plan: PlanRecord) -> None:
    for warning in () if args.json else plan.warnings:
        say(sys.stderr, f"{printable(warning)}\n")


def plan_lines(plan: PlanRecord, *, verbose: bool) -> Iterator[str]:
    """Write how many changes of which class, each of them when `verbose`, and what follows from them."""
    kinds = Counter(_kind(change) for change in plan.changes)
    counted = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    hint = "" if verbose else " (-v lists them)"
    yield f"{plan.file}: {len(plan.changes)} change{'s'[: len(plan.changes) > 1]}: {counted}{hint}"
    if verbose:
        yield from _change_lines(plan)
    for action in plan.actions:
        yield f"{action.action}: {action.target}"
    if not plan.actions:
        yield "nothing is to be done"


def _is_portal(change: ChangeRecord) -> bool:
    """Say whether a whole portal is new or gone."""
    return bool(change.portal) and change.path.endswith(f"[{change.portal}]")


def _kind(change: ChangeRecord) -> str:
    if _is_portal(change):
        return "portal new" if change.old is None else "portal gone"
    return change.reload


def _change_lines(plan: PlanRecord) -> Iterator[str]:
    """Write one line for each change: what, from, to, class and place."""
    for change in plan.changes:
        if change.old is None:
            what = f"{change.path}: new: {change.new}"
        elif change.new is None:
            what = f"{change.path}: gone: {change.old}"
        else:
            what = f"{change.path}: {change.old or '(empty)'} -> {change.new or '(empty)'}"
        kind = "" if _is_portal(change) else change.reload
        origin = change.origin or (f"was {change.was}" if change.was else "")
        yield f"  {what}  [{'; '.join(filter(None, (kind, origin)))}]"


# --- explain -------------------------------------------------------------------------------------------------------


def run_explain(args: argparse.Namespace) -> int:
    """Explain whether a topic would cross. Raises: ConfigError, RefusedError."""
    asked: JsonObject = {"topic": args.topic, "from_domain": args.from_domain, "to_domain": args.to_domain}
    if args.transport is not None:
        asked["transport"] = args.transport
    for kind in SESSION_PARTS:
        value = getattr(args, kind.replace("-", "_"))
        if value is not None:
            asked[kind] = value
    network: NetworkAnswer | None = None
    if args.file is None:
        answer, network = explained(args, asked)
    elif args.via:
        raise RefusedError("--via asks running DROs, --file asks none", remedy="leave one of them out")
    else:
        answer = explain(_read(args.file)[0], query_of(Arguments(asked)))
    lines = list(_explain_lines(answer, verbose=args.verbose))
    if network is not None:
        of_network = network_lines(network, args.topic, args.from_domain, args.to_domain)
        lines = [*map(printable, of_network), "the configuration of this DRO alone:", *lines]
    put_answer(args, asdict(answer) | ({"network": network.to_json()} if network is not None else {}), "\n".join(lines))
    is_blocked = answer.verdict == REJECTED if network is None else network.finding.verdict == BLOCKED
    return EXIT_FAILED if is_blocked else EXIT_OK


def _explain_lines(answer: ExplainRecord, *, verbose: bool) -> Iterator[str]:
    head = f"topic {printable(answer.topic)} from domain {answer.source_domain} to domain {answer.interested_domain}"
    yield f"{head}: {answer.verdict}"
    yield f"  {answer.reason}"
    if answer.missing:
        yield f"  to decide, give {', '.join(f'--{kind}' for kind in answer.missing)}"
    if not answer.ingress:
        return
    yield f"  enters at {answer.ingress}, leaves at {answer.egress}, cost {answer.cost}"
    for state in answer.states:
        yield f"  now: {state}"
    for one in answer.verdicts:
        if not verbose and one.verdict == ACCEPTED:
            continue
        entry = f", entry {one.ace}" if one.ace else ""
        place = f"  [{one.file}:{one.line}]" if one.file else ""
        yield f"  {one.direction} of {one.portal}: {one.verdict}: {one.reason}{entry}{place}"
    if not verbose:
        yield f"  {len(answer.options)} UM options are set for the proxies (-v: each, and what accepts the topic)"
        return
    for portal, proxy in ((answer.ingress, "receiver"), (answer.egress, "source")):
        found = [option for option in answer.options if (option.portal, option.proxy) == (portal, proxy)]
        yield f"  proxy {proxy} of {portal}: {'options that are set' if found else 'no option is set'}"
        for option in found:
            yield f"    {option.option} = {option.value}  [{option.origin or 'set'}]"
