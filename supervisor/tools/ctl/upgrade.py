"""`tnwgdctl upgrade`: the running DRO moves to another version of the program without losing anything."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Final

from dro.standard_streams import say
from supervisor.admin.client import Client, UnreachableError
from supervisor.admin.status import UpgradeState
from supervisor.tools.ctl.output import EXIT_FAILED, EXIT_OK, Commands, connect, put, put_answer

CHECK_LIMIT_S: Final = 180.0
AWAY_LIMIT_S: Final = 60.0
"""How long the DRO may be out of reach, while its process becomes another program."""
LIMIT_S: Final = 3600.0
_LOOK_S: Final = 0.2


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    upgrade = commands.add_parser(
        "upgrade", parents=[common], help="move the running DRO to another version, without loss",
        description="Move the running DRO to another version, in place: its process becomes that program and replaces "
        "worker by worker, each going on where the one before was. Goes back when that fails.",
    )  # fmt: skip
    upgrade.add_argument(
        "--to", metavar="PLACE", type=_place,
        help="Python interpreter of the other version, or folder of its environment (default: what is installed now "
        "in the place of the program that runs)",
    )  # fmt: skip
    upgrade.set_defaults(run=order_upgrade)


def _place(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("it is empty: name a place, or leave --to away")
    return os.path.abspath(text)


def order_upgrade(args: argparse.Namespace) -> int:
    arguments = {"to": args.to} if args.to else {}
    with connect(args) as client:
        begun = client.ask(UpgradeState, "upgrade", within_s=CHECK_LIMIT_S, **arguments)
        run_dir = client.run_dir
    if not args.json:
        put(f"upgrade from {begun.former} to {begun.version}")
    state = _awaited(run_dir)
    put_answer(args, state, "" if state.problem else f"every process runs {state.version}")
    if not state.problem:
        return EXIT_OK
    if not args.json:
        text = f"the upgrade has failed, the DRO runs {state.version}: {state.problem}"
        say(sys.stderr, f"tnwgdctl: {text}{f'; {state.remedy}' if state.remedy else ''}\n")
    return EXIT_FAILED


def _awaited(run_dir: Path) -> UpgradeState:
    """Wait until the upgrade is over. Raises: UnreachableError when the DRO is away for too long."""
    seen = began = time.monotonic()
    while True:
        time.sleep(_LOOK_S)
        now = time.monotonic()
        try:
            with Client(run_dir) as client:
                state = client.ask(UpgradeState, "upgrade-state")
        except UnreachableError:
            if now - seen > AWAY_LIMIT_S or not run_dir.exists():  # it has ended
                raise
            continue
        seen = now
        if not state.is_under_way or now - began > LIMIT_S:
            return state
