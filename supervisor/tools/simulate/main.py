"""`tnwgd simulate`: runs the DROs of some files, or of a topology, on a fake clock and network, and says what they do.

Nothing is opened and nothing is sent: weeks of a network take minutes, on any machine.

Exit status: 0 all that must hold did, 1 something did not, or the files cannot be used, 2 wrong arguments.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Final

from dro.clock import NS_PER_S, s
from dro.command_line import Parser
from dro.config.reading.problems import Warn
from dro.errors import ConfigError
from dro.standard_streams import output_lost, say
from supervisor.tools.simulate.network import SimNetwork
from supervisor.tools.simulate.plan import load
from supervisor.tools.simulate.scenario import Scenario, ScenarioResult, interest_in_all
from supervisor.tools.simulate.script import ACTIONS, read_script

PROGRAM: Final = "tnwgd simulate"
EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
_SHOWN: Final = 20
"""Violations, unless --json is given."""


def arguments() -> Parser:
    parser = Parser(prog=PROGRAM, description="Run a network of DROs on a fake clock: plan it, and try faults on it.")
    parser.add_argument("files", metavar="FILE", nargs="+", help="DRO XML files of the network, or one topology.json")
    parser.add_argument("--script", metavar="FAULTS", help=f"lines AT ACTION NAME; actions: {', '.join(ACTIONS)}")
    parser.add_argument(
        "--seconds", type=_positive, default=40, help="of simulated time after the last fault (default: 40)"
    )
    parser.add_argument(
        "--rate", type=_positive, default=10, help="messages a second of each TRD's source (default: 10)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of node ids and spread times (default: 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1_000_000:
        raise ValueError
    return value


def _warner() -> Warn:
    return lambda finding: say(sys.stderr, f"{PROGRAM}: {finding}\n")


def main(given: Sequence[str]) -> int:
    args = arguments().parse_args(given)
    try:
        logging.disable()  # what the cores would log is not of this host
        plan = load(args.files, _warner())
        faults = read_script(args.script) if args.script else []
        network = SimNetwork(plan, args.seed)
        network.add_applications(interest_in_all(plan))
        resolution = plan.resolution()
        result = Scenario(network, interval_ns=round(NS_PER_S / args.rate)).run(faults, round(args.seconds * s(1)))
    except ConfigError as e:
        say(sys.stderr, f"{PROGRAM}: {e}\n")
        return EXIT_FAILED
    finally:
        logging.disable(logging.NOTSET)
    text = (
        json.dumps(as_json(result) | {"resolution": resolution}, indent=2)
        if args.json
        else "\n".join([*as_text(result), *resolution_lines(resolution)])
    ) + "\n"
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as e:
        if error := output_lost(e):
            say(sys.stderr, f"{PROGRAM}: {error}\n")
            return EXIT_FAILED
    return EXIT_FAILED if result.violations else EXIT_OK


def as_json(result: ScenarioResult) -> dict[str, object]:
    return {**asdict(result), "violations": result.violations}


def resolution_lines(resolution: Mapping[int, Sequence[str]]) -> Iterator[str]:
    """Tell how topics are resolved, where that is not one multicast channel."""
    for domain_id, ways in resolution.items():
        if len(ways) != 1 or not ways[0][0].isdigit():
            by = " and ".join(ways) or "nothing"
            yield f"TRD {domain_id}: topics by {by}; all in it are taken to hear each other"


def as_text(result: ScenarioResult) -> Iterator[str]:
    """Lines."""
    yield f"{'at s':>8}  {'settled s':>9}  {'silent s':>8}  {'lost':>6}  {'repeated':>8}  what"
    for period in result.periods:
        settled = "-" if period.settled_s is None else f"{period.settled_s:.2f}"
        yield (
            f"{period.at_s:8g}  {settled:>9}  {period.silent_s:8.2f}  {period.lost:6}  {period.repeated:8}  "
            f"{period.what}"
        )
    yield ""
    yield f"{'from':>6}  {'to':>6}  {'cost':>5}  {'sent':>7}  {'got':>7}  path"
    for path in result.paths:
        passed = " ".join(path.way) if path.cost is not None else "none"
        cost = "-" if path.cost is None else str(path.cost)
        yield f"{path.source:6}  {path.receiver:6}  {cost:>5}  {path.sent:7}  {path.got:7}  {passed}"
    yield ""
    for kind, count in result.messages.items():
        yield f"{count:10}  {kind}"
    yield ""
    found = result.violations
    yield from (f"WRONG: {text}" for text in found[:_SHOWN])
    if len(found) > _SHOWN:
        yield f"WRONG: {len(found) - _SHOWN} more, see --json"
    if not found:
        yield "all that must hold did: each message once, on a cheapest path, no loop, all DROs agree"
