"""What `tnwgd` does by its arguments: read the configuration, say everything that is wrong with it, or run the DRO.

Exit status: 0 after an orderly end, 1 for a configuration or a machine that does not let it start, 2 for wrong
arguments, 3 when a process had to be killed at the end. Source: DRO guide, "Tnwgd Man Page", which knows 0 and others.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from typing import Final

from dro.config.effective import effective_config
from dro.config.lint import lint
from dro.config.lint_together import lint_together
from dro.config.load import load_dro
from dro.config.model import DroConfig
from dro.config.problems import Warn
from dro.config.unsupported import ConfigWarning, unsupported
from dro.errors import ConfigError
from dro.log import Settings, set_up
from dro.streams import output_lost, say
from supervisor import init
from supervisor.early import EarlySignals
from supervisor.parent import EXIT_OK
from supervisor.start import EXIT_FAILED, PROCESS, Order, run, version

EXIT_INTERRUPTED: Final = 130
EPILOG: Final = """\
The DRO runs until SIGTERM or SIGINT, which end it in good order; a second one ends it at once.
`tnwgd init` writes a first configuration, `tnwgdctl` talks to a DRO that runs.

exit status: 0 success, with -f: the DRO runs; 1 the configuration or the machine does not let it start, with -v: there
are errors; 2 wrong arguments; 3 a process of the DRO had to be killed at the end
"""


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
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
    parser.add_argument("-u", "--use-utc", action="store_true", help="log times in UTC")
    parser.add_argument("--debug", action="store_true", help="log more")
    parser.add_argument("--log-json", action="store_true", help="log JSON objects, one per line")
    parser.add_argument("--version", action="version", version=f"{PROCESS} {version()}")
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


def validate(path: str, warn: Warn, loaded: list[DroConfig]) -> int:
    """The exit status for one file that is only looked at; its problems go to standard error."""
    try:
        config = load_dro(path, warn=warn, strict=True)
    except ConfigError as e:
        say(sys.stderr, f"{e}\n")
        return EXIT_FAILED
    loaded.append(config)
    limits = unsupported(config)
    for limit in limits:
        warn(str(limit))
    for finding in lint(config):
        warn(str(finding))
    is_refused = any(not isinstance(limit, ConfigWarning) for limit in limits)
    return put(f"{path}: no errors{', but this release refuses to run it' if is_refused else ''}\n")


def validate_all(paths: Sequence[str], warn: Warn) -> int:
    """The exit status for all files; at the end what does not fit together, if they are of one network."""
    loaded: list[DroConfig] = []
    status = max(validate(path, warn, loaded) for path in paths)
    for finding in lint_together(loaded):
        warn(str(finding))
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
    if args.run_dir == "":
        parser.error("--run-dir is empty")
    if not args.config and not args.dump_dtd:
        parser.error("CONFIG is missing")
    if len(args.config) > 1 and not args.validate:
        parser.error("one CONFIG only, unless -v is given")


def command(given: Sequence[str], signals: EarlySignals) -> int:
    """Carry out the arguments; the exit status. `signals` hold until it is known that no DRO is to run."""
    if given[:1] == [init.COMMAND]:
        signals.undo()
    if given[:1] == [init.COMMAND]:
        return init.main(given[1:])
    parser = arguments()
    args = parser.parse_args(given)
    check(parser, args)
    if args.dump_dtd:
        return put(resources.files("dro.config").joinpath("data/dro-config.dtd").read_text(encoding="utf-8"))
    settings = Settings(level=logging.DEBUG if args.debug else logging.INFO, utc=args.use_utc, json=args.log_json)
    if not args.validate and not args.print_config:
        return run(Order(args.config[0], settings, detached=args.detach, run_dir=args.run_dir or ""), signals)
    signals.undo()
    log = set_up(PROCESS, replace(settings, console_fd=2))
    try:
        if args.validate:
            return validate_all(args.config, log.warning)
        return print_config(args.config[0], log.warning, with_defaults=args.with_defaults)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
