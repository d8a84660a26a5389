"""`tnwgd`: read the configuration, say everything that is wrong with it, or run the DRO in the foreground.

Exit status: 0 after an orderly end, 1 for a configuration or a machine that does not let it start, 2 for wrong
arguments. Source: DRO guide, "Tnwgd Man Page"; `--detach` is left to the service manager.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata, resources
from typing import Final

from dro.config.effective import effective_config
from dro.config.lint import lint
from dro.config.load import load_dro
from dro.config.model import DroConfig
from dro.config.problems import ConfigErrors, Warn
from dro.config.unsupported import ConfigWarning, unsupported
from dro.errors import ConfigError
from dro.log import Settings, hold, set_up
from dro.streams import open_standard_streams, output_lost, say
from supervisor import init
from supervisor.commands import serve_commands
from supervisor.log_settings import open_log
from supervisor.parent import Parent
from supervisor.plan import plan_of

PROCESS: Final = "tnwgd"
EXIT_OK: Final = 0
EXIT_FAILED: Final = 1


def version() -> str:
    """Of the installed package; a source tree that is not installed has none."""
    try:
        return metadata.version("open-dro")
    except metadata.PackageNotFoundError:
        return "unknown (not installed)"


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROCESS,
        description="Dynamic Routing Option daemon: joins topic resolution domains.",
        epilog="Runs until SIGTERM or SIGINT; a second one ends it at once. `tnwgd init` writes a first configuration.",
    )
    parser.add_argument("config", metavar="CONFIG", nargs="*", help="DRO configuration file (XML)")
    parser.add_argument("-d", "--dump-dtd", action="store_true", help="print the DTD of the configuration and exit")
    parser.add_argument("-v", "--validate", action="store_true", help="check files, print every problem and exit")
    parser.add_argument(
        "--print-config", action="store_true", help="print what CONFIG comes to, with origins, and exit"
    )
    parser.add_argument("--with-defaults", action="store_true", help="with --print-config: also UM options not set")
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


def validate(path: str, warn: Warn) -> int:
    """The exit status for one file that is only looked at; its problems go to standard error."""
    try:
        config = load_dro(path, warn=warn, strict=True)
    except ConfigError as e:
        say(sys.stderr, f"{e}\n")
        return EXIT_FAILED
    limits = unsupported(config)
    for limit in limits:
        warn(str(limit))
    for finding in lint(config):
        warn(str(finding))
    is_refused = any(not isinstance(limit, ConfigWarning) for limit in limits)
    return put(f"{path}: no errors{', but this release refuses to run it' if is_refused else ''}\n")


def refuse_unsupported(config: DroConfig, warn: Warn) -> None:
    """Raises: ConfigErrors for what would make this DRO do something else than the file says."""
    errors = []
    for limit in unsupported(config):
        if isinstance(limit, ConfigWarning):
            warn(str(limit))
        else:
            errors.append(limit)
    if errors:
        raise ConfigErrors(errors)


def main(argv: Sequence[str] | None = None) -> int:
    open_standard_streams()
    given = sys.argv[1:] if argv is None else list(argv)
    if given[:1] == [init.COMMAND]:
        return init.main(given[1:])
    parser = arguments()
    args = parser.parse_args(given)
    if args.dump_dtd:
        return put(resources.files("dro.config").joinpath("data/dro-config.dtd").read_text(encoding="utf-8"))
    if not args.config:
        parser.error("CONFIG is missing")
    if len(args.config) > 1 and not args.validate:
        parser.error("one CONFIG only, unless -v is given")
    base = Settings(level=logging.DEBUG if args.debug else logging.INFO, utc=args.use_utc, json=args.log_json)
    only_looks = args.validate or args.print_config
    log = set_up(PROCESS, replace(base, console_fd=2)) if only_looks else hold(base.level)
    if args.validate:
        return max(validate(path, log.warning) for path in args.config)
    try:
        config = load_dro(args.config[0], warn=log.warning)
        if args.print_config:
            return put(effective_config(config, with_defaults=args.with_defaults))
        refuse_unsupported(config, log.warning)
        plan_of(config)
        open_log(PROCESS, config, base)
    except ConfigError as e:
        set_up(PROCESS, replace(base, console_fd=2))  # for what was logged so far
        say(sys.stderr, f"{e}\n")
        return EXIT_FAILED
    name = config.daemon.name or PROCESS
    log.info("starting", extra={"dro": name, "version": version(), "config": config.file})
    parent = Parent(name, config, plan_of, log)
    serve_commands(parent, version(), log.warning)
    return parent.run()


if __name__ == "__main__":
    sys.exit(main())
