"""`tnwgdctl reload`, `confirm`, `rollback`, `diff` and `explain`.

`diff` ends with 0 when a reload would change nothing in the meaning of the configuration, with 4 when it would.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from typing import Final

from dro.config.elements_acl import NUMBER_KINDS
from dro.config.fetch import is_url
from dro.config.model import DroConfig
from dro.log import printable
from dro.streams import say
from supervisor.ctl_output import EXIT_OK, Commands, connect, put, put_json
from supervisor.explain import SESSION_PARTS, TRANSPORTS, ExplainRecord, explain
from supervisor.explain_question import checked_question
from supervisor.records import JsonObject
from supervisor.reload_plan import plan_reload
from supervisor.reload_records import MAX_CONFIRM_S, ConfirmRecord, PlanRecord, ReloadRecord, plan_record

EXIT_DIFFERENT: Final = 4
RELOAD_LIMIT_S: Final = 900.0  # a trial, drains, starts and the way back, each with its own limit in the DRO
QUESTION_LIMIT_S: Final = 75.0


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    _add_reload(commands, common)
    confirm = commands.add_parser("confirm", parents=[common], help="keep what `reload --confirm` has changed")
    confirm.set_defaults(run=run_confirm)
    rollback = commands.add_parser("rollback", parents=[common], help="take back what `reload --confirm` has changed")
    rollback.set_defaults(run=run_rollback)
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
    reload.set_defaults(run=run_reload)


def _add_diff(commands: Commands, common: argparse.ArgumentParser) -> None:
    diff = commands.add_parser(
        "diff", parents=[common], help="what a reload of a file would do",
        description="What differs, by meaning, between the running configuration and a file, and what a reload would "
        "do about it. Exit status 0: nothing differs; 4: something does.",
    )  # fmt: skip
    diff.add_argument("file", metavar="FILE", nargs="?", help="default: the file of the running DRO, as it is now")
    diff.add_argument("--against", metavar="OLD", help="compare with this file instead; no DRO is asked")
    diff.set_defaults(run=run_diff, parser=diff)


def _add_explain(commands: Commands, common: argparse.ArgumentParser) -> None:
    explained = commands.add_parser(
        "explain", parents=[common], help="what the configuration says about a topic between two domains",
        description="Portals, access lists and UM options on the way of a topic from one domain to another, as the "
        "configuration has them. What is known of the transport session of the source can be given.",
    )  # fmt: skip
    explained.add_argument("topic", metavar="TOPIC")
    explained.add_argument("--from", metavar="DOMAIN", dest="from_domain", type=int, required=True, help="of sources")
    explained.add_argument("--to", metavar="DOMAIN", dest="to_domain", type=int, required=True, help="of receivers")
    explained.add_argument("--file", metavar="FILE", help="ask this configuration file instead of a running DRO")
    session = explained.add_argument_group("transport session of the source, by the names of ACL conditions")
    session.add_argument("--transport", choices=TRANSPORTS)
    for kind in SESSION_PARTS:
        is_number = kind in NUMBER_KINDS
        session.add_argument(f"--{kind}", metavar="N" if is_number else "ADDRESS", type=int if is_number else str)
    explained.set_defaults(run=run_explain)


def _confirm_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from e
    if not 1 <= seconds <= MAX_CONFIRM_S:
        raise argparse.ArgumentTypeError(f"write 1 to {MAX_CONFIRM_S:g} seconds")
    return seconds


# --- reload --------------------------------------------------------------------------------------------------------


def run_reload(args: argparse.Namespace) -> int:
    with connect(args) as client:
        done = client.ask(
            ReloadRecord, "reload", confirm=args.confirm, no_wait=not args.wait, within_s=RELOAD_LIMIT_S
        )  # fmt: skip
    if args.json:
        put_json(done)
    else:
        _warn(done.plan)
        put("\n".join(_reload_lines(done)))
    return EXIT_OK


def _reload_lines(done: ReloadRecord) -> Iterator[str]:
    if not done.plan.changes:
        yield f"{done.plan.file}: nothing has changed"
        return
    yield from change_lines(done.plan)
    for action in done.plan.actions:
        yield f"{action.action}: {action.target}"
    for note in done.notes:
        yield f"note: {note}"
    if not done.is_done:
        yield "begun; the log tells the end"
    else:
        yield f"done in {done.took_s:.1f} s"
    if done.confirm_s:
        yield f"taken back in {done.confirm_s:g} s unless you say: tnwgdctl confirm"


def run_confirm(args: argparse.Namespace) -> int:
    return _settle(args, "confirm", "confirmed")


def run_rollback(args: argparse.Namespace) -> int:
    return _settle(args, "rollback", "taken back; the file still has the change")


def _settle(args: argparse.Namespace, command: str, text: str) -> int:
    with connect(args) as client:
        done = client.ask(ConfirmRecord, command, within_s=RELOAD_LIMIT_S)
    if args.json:
        put_json(done)
    else:
        put("\n".join([text, *(f"note: {note}" for note in done.notes)]))
    return EXIT_OK


# --- diff ----------------------------------------------------------------------------------------------------------


def run_diff(args: argparse.Namespace) -> int:
    """Raises: ConfigError when a file cannot be used."""
    if args.against is not None and args.file is None:
        args.parser.error("--against needs FILE as well")
    if args.against is None:
        with connect(args) as client:
            asked: JsonObject = {} if args.file is None else {"file": _absolute(args.file)}
            plan = client.ask(PlanRecord, "diff", within_s=QUESTION_LIMIT_S, **asked)
    else:
        old, _ = _read(args.against)
        new, warnings = _read(args.file)
        plan = plan_record(args.file, plan_reload(old, new), warnings)
    if args.json:
        put_json(plan)
    else:
        _warn(plan)
        lines = [*change_lines(plan), *(f"{action.action}: {action.target}" for action in plan.actions)]
        if plan.is_empty:
            lines = [f"{plan.file}: no difference"]
        elif not plan.actions:
            lines.append("a reload would do nothing")
        put("\n".join(lines))
    return EXIT_OK if plan.is_empty else EXIT_DIFFERENT


def _read(file: str) -> tuple[DroConfig, tuple[str, ...]]:
    """A file without a DRO. Raises: ConfigError."""
    from supervisor.reload_trial import read_new  # half a second of imports that other commands do not need

    return read_new(file)


def _absolute(file: str) -> str:
    """The DRO has another working directory."""
    return file if is_url(file) else os.path.abspath(file)


def _warn(plan: PlanRecord) -> None:
    for warning in plan.warnings:
        say(sys.stderr, f"{printable(warning)}\n")


def change_lines(plan: PlanRecord) -> Iterator[str]:
    """One line for each change: what, from, to, class and place."""
    for change in plan.changes:
        if change.old is None:
            what = f"{change.path}: new: {change.new}"
        elif change.new is None:
            what = f"{change.path}: gone: {change.old}"
        else:
            what = f"{change.path}: {change.old or '(empty)'} -> {change.new or '(empty)'}"
        is_portal = change.path.endswith(f"[{change.portal}]") and change.portal
        told = ["" if is_portal else change.reload, change.origin or (f"was {change.was}" if change.was else "")]
        yield f"{what}  [{'; '.join(filter(None, told))}]"


# --- explain -------------------------------------------------------------------------------------------------------


def run_explain(args: argparse.Namespace) -> int:
    """Raises: ConfigError, RefusedError."""
    asked: JsonObject = {"topic": args.topic, "from_domain": args.from_domain, "to_domain": args.to_domain}
    if args.transport is not None:
        asked["transport"] = args.transport
    for kind in SESSION_PARTS:
        value = getattr(args, kind.replace("-", "_"))
        if value is not None:
            asked[kind] = value
    if args.file is None:
        with connect(args) as client:
            answer = client.ask(ExplainRecord, "explain", within_s=QUESTION_LIMIT_S, **asked)
    else:
        answer = explain(_read(args.file)[0], checked_question(asked))
    if args.json:
        put_json(answer)
    else:
        put("\n".join(_explain_lines(answer)))
    return EXIT_OK


def _explain_lines(answer: ExplainRecord) -> Iterator[str]:
    head = f"topic {answer.topic} from domain {answer.source_domain} to domain {answer.interested_domain}"
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
        entry = f", entry {one.ace}" if one.ace else ""
        place = f"  [{one.file}:{one.line}]" if one.file else ""
        yield f"  {one.direction} of {one.portal}: {one.verdict}: {one.reason}{entry}{place}"
    for portal, proxy in ((answer.ingress, "receiver"), (answer.egress, "source")):
        found = [option for option in answer.options if (option.portal, option.proxy) == (portal, proxy)]
        yield f"  proxy {proxy} of {portal}: {'options that are set' if found else 'no option is set'}"
        for option in found:
            yield f"    {option.option} = {option.value}  [{option.origin or 'set'}]"
