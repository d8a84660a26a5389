"""The command line of `tnwgd`: check the configuration and report all its problems, or run the DRO.

Exit status: 0 after an orderly end, 1 for a configuration or a host that prevents the start, 2 for wrong arguments, 3
when a process had to be killed at the end. Source: DRO guide, "Tnwgd Man Page", which knows 0 and others.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from dro.command_line import Parser, add_version
from dro.config.dro_xml.load import load_dro
from dro.config.dro_xml.model import DroConfig
from dro.config.lint.rules import lint
from dro.config.lint.together import lint_together
from dro.config.reading.problems import Warn
from dro.config.report.effective import effective_config
from dro.errors import ConfigError
from dro.log.events import configuration_warning
from dro.log.handler import Settings
from dro.log.setup import set_up
from dro.standard_streams import output_lost, say
from supervisor.history.tables import NEEDS
from supervisor.history.worker import INTERVAL_S, HistoryOptions
from supervisor.host.early_signals import EarlySignals
from supervisor.parent.parent import EXIT_OK
from supervisor.parent.process_plan import plan_of
from supervisor.start.start import EXIT_FAILED, PROCESS, CommandLine, refuse_unsupported, run
from supervisor.start.tls_findings import tls_findings
from supervisor.tools.init import main as init

EXIT_INTERRUPTED: Final = 130
SIMULATE: Final = "simulate"
EPILOG: Final = """\
The DRO runs until SIGTERM or SIGINT, which end it in good order; a second one ends it at once.
`tnwgd init` writes a first configuration, `tnwgd simulate` tries out a network without running it, `tnwgdctl` talks to
a DRO that runs.

exit status: 0 success, with -f: the DRO runs; 1 the configuration or the machine does not let it start, with -v: there
are errors, or this release refuses to run the file; 2 wrong arguments; 3 a process of the DRO had to be killed at the
end
"""


def arguments() -> argparse.ArgumentParser:
    parser = Parser(
        prog=PROCESS,
        description="Dynamic Routing Option daemon: joins topic resolution domains.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", metavar="CONFIG", nargs="*", help="DRO configuration file (XML)")
    parser.add_argument("-d", "--dump-dtd", action="store_true", help="print the DTD of the configuration and exit")
    parser.add_argument("-v", "--validate", action="store_true", help="check files, print every problem and exit")
    parser.add_argument(
        "--print-config", action="store_true", help="print what CONFIG comes to, with origins, and exit"
    )
    parser.add_argument("--with-defaults", action="store_true", help="with --print-config: also UM options not set")
    parser.add_argument("-f", "--detach", action="store_true", help="leave the terminal as soon as the DRO runs")
    parser.add_argument("--run-dir", metavar="DIR", help="run directory, of this DRO alone (default: one is made)")
    parser.add_argument("--history", metavar="DIR", help="keep a history of all counters below DIR, or a URI")
    parser.add_argument(
        "--history-journal", metavar="DIR", type=Path, help="of samples in no file yet (default DIR/journal)"
    )
    parser.add_argument(
        "--history-interval", metavar="SECONDS", type=float, help=f"between two samples (default {INTERVAL_S:g})"
    )
    parser.add_argument("-u", "--use-utc", action="store_true", help="log times in UTC")
    parser.add_argument("--debug", action="store_true", help="log more")
    parser.add_argument("--log-json", action="store_true", help="log JSON objects, one per line")
    add_version(parser)
    return parser


def put(text: str) -> int:
    """Write to standard output; the exit status."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as e:
        error = output_lost(e)
        if error is not None:
            say(sys.stderr, f"{PROCESS}: {error}\n")
            return EXIT_FAILED
    return EXIT_OK


def validate(path: str, log: logging.Logger, loaded: list[DroConfig]) -> int:
    """The exit status for one file that is only looked at; its problems go to standard error."""
    try:
        config = load_dro(path, warn=configuration_warning(log))
    except ConfigError as e:
        say(sys.stderr, f"{e}\n")
        return EXIT_FAILED
    loaded.append(config)
    try:
        refuse_unsupported(config, log)
        plan_of(config)
        refused = ""
    except ConfigError as e:
        say(sys.stderr, f"{e}\n")
        refused = ", but this release refuses to run it"
    for finding in (*lint(config), *tls_findings(config, time.time())):
        say(sys.stderr, f"{finding}\n")
    return put(f"{path}: no errors{refused}\n") or (EXIT_FAILED if refused else EXIT_OK)


def validate_all(paths: Sequence[str], log: logging.Logger) -> int:
    """The exit status for all files; at the end what does not fit together, if they are of one network."""
    loaded: list[DroConfig] = []
    status = max(validate(path, log, loaded) for path in paths)
    for finding in lint_together(loaded):
        say(sys.stderr, f"{finding}\n")
    return status


def print_config(path: str, warn: Warn, *, with_defaults: bool) -> int:
    """The exit status."""
    try:
        config = load_dro(path, warn=warn)
    except ConfigError as e:
        say(sys.stderr, f"{e}\n")
        return EXIT_FAILED
    return put(effective_config(config, with_defaults=with_defaults))


def check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Refuse what would have no effect."""
    modes = [option for option, given in (("-d", args.dump_dtd), ("-v", args.validate),
                                          ("--print-config", args.print_config)) if given]  # fmt: skip
    running = [option for option, given in (("-f", args.detach), ("--run-dir", args.run_dir is not None),
                                            ("--history", args.history is not None),
                                            ("--log-json", args.log_json)) if given]  # fmt: skip
    logging_ = [option for option, given in (("-u", args.use_utc), ("--debug", args.debug)) if given]
    if len(modes) > 1:
        parser.error(f"{' and '.join(modes)} exclude each other")
    if modes and running:
        parser.error(f"{', '.join(running)} without effect: {modes[0]} runs no DRO")
    if args.dump_dtd and (logging_ or args.config):
        parser.error(f"{', '.join(logging_ or args.config)} without effect: -d prints the DTD and reads no file")
    if args.with_defaults and not args.print_config:
        parser.error("--with-defaults without effect: it goes with --print-config")
    for name in ("history_interval", "history_journal"):
        if getattr(args, name) is not None and args.history is None:
            parser.error(f"--{name.replace('_', '-')} without effect: it goes with --history")
    if args.history is not None and "://" in args.history and args.history_journal is None:
        parser.error(
            "--history-journal is missing: samples are on this machine's disk before they are in another store"
        )
    if args.history is not None and find_spec("pyarrow") is None:
        parser.error(f"--history: {NEEDS}")
    if args.history_interval is not None and not 0.1 <= args.history_interval <= 3600:
        parser.error("--history-interval is from 0.1 to 3600 seconds")
    if args.run_dir == "":
        parser.error("--run-dir is empty")
    if not args.config and not args.dump_dtd:
        parser.error("CONFIG is missing")
    if len(args.config) > 1 and not args.validate:
        parser.error("one CONFIG only, unless -v is given")


def _history_of(args: argparse.Namespace) -> HistoryOptions | None:
    """Take paths as they are from here: the daemon leaves this directory."""
    if args.history is None:
        return None
    history = args.history if "://" in args.history else str(Path(args.history).absolute())
    journal = args.history_journal.absolute() if args.history_journal else None
    return HistoryOptions(history, args.history_interval or INTERVAL_S, journal)


def command(given: Sequence[str], signals: EarlySignals) -> int:
    """Carry out the arguments; the exit status. `signals` hold until it is known that no DRO is to run."""
    if given[:1] == [init.COMMAND]:
        signals.undo()
        return init.main(given[1:])
    if given[:1] == [SIMULATE]:
        from supervisor.tools.simulate.main import main as simulate  # a daemon never needs it

        signals.undo()
        return simulate(given[1:])
    parser = arguments()
    args = parser.parse_args(given)
    check(parser, args)
    if args.dump_dtd:
        return put(resources.files("dro.config").joinpath("data/dro-config.dtd").read_text(encoding="utf-8"))
    settings = Settings(level=logging.DEBUG if args.debug else logging.INFO, utc=args.use_utc, json=args.log_json)
    if not args.validate and not args.print_config:
        return run(CommandLine(args.config[0], settings, args.detach, args.run_dir or "", _history_of(args)), signals)
    signals.undo()
    log = set_up(PROCESS, replace(settings, console_fd=2))
    try:
        if args.validate:
            return validate_all(args.config, log)
        return print_config(args.config[0], configuration_warning(log), with_defaults=args.with_defaults)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
