"""What the daemons of topic resolution share: arguments, log, signals, metrics, the service manager, and their run.

A daemon is a `Program`: its parser, its DTD, the reader of its file, and what starts it on a loop. The order is that in
which things can fail, as for `tnwgd`: configuration, log, sockets. Each failure is reported with its reason, with file
and line if there is one.

Exit status: 0 after an orderly end, 1 for a configuration or a host that prevents the start, 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Final, Generic, Protocol, TypeVar

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from dro.clock import s
from dro.command_line import Parser, add_version, version
from dro.config.dro_xml.model import LogConfig
from dro.config.reading.dtd import dtd_of
from dro.config.reading.problems import Warn
from dro.errors import ConfigError, ResourceError
from dro.log.events import LogEvent, configuration_warning
from dro.log.handler import FILE, Settings
from dro.log.setup import finish, hold, set_up, tick
from dro.loop import Loop
from dro.standard_streams import close_others, open_standard_streams, output_lost, say
from dro.start_folder import absolute, keep_start_folder
from supervisor.host.early_signals import EarlySignals
from supervisor.host.service_manager import READY, STOPPING, ServiceManager
from supervisor.parent.log_settings import log_settings

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
TICK_NS: Final = s(1)
C = TypeVar("C")


class Service(Protocol):
    """A daemon at work."""

    address: str
    """Where clients reach it."""

    def metrics(self) -> Iterable[Metric]:
        """Return its figures; called by the thread of the metrics server."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Program(Generic[C]):
    """What one daemon is. `C` is its configuration."""

    name: str
    arguments: Callable[[], Parser]
    """The parser has what `add_common` adds."""
    load: Callable[[argparse.Namespace, Warn], C]
    """Reads the file, if one is given, and applies the arguments, which win. Raises: ConfigError."""
    log_of: Callable[[C], tuple[LogConfig, int]]
    """The log that the file asks for, and the line of the element."""
    start: Callable[[C, Loop, logging.Logger], Service]
    """Raises: ConfigError, ResourceError."""


def parser_of(name: str, description: str) -> Parser:
    """A parser with the arguments that all these daemons have."""
    parser = Parser(
        prog=name, description=description, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", metavar="CONFIG", nargs="?", default="", help="configuration file (XML)")
    parser.add_argument("-d", "--dump-dtd", action="store_true", help="print the DTD of the configuration and exit")
    parser.add_argument("-v", "--validate", action="store_true", help="check CONFIG, print every problem and exit")
    parser.add_argument("-L", "--logfile", metavar="FILE", help="write the log to FILE")
    parser.add_argument("--metrics", metavar="[ADDRESS:]PORT", type=endpoint,
                        help="serve metrics for Prometheus there (default address 127.0.0.1)")  # fmt: skip
    parser.add_argument("-u", "--use-utc", action="store_true", help="log times in UTC")
    parser.add_argument("--debug", action="store_true", help="log more")
    parser.add_argument("--log-json", action="store_true", help="log JSON objects, one per line")
    add_version(parser)
    return parser


_EPILOG: Final = """\
An argument wins over the file. SIGTERM and SIGINT end the daemon in good order. SIGHUP changes nothing: a changed
configuration needs a restart.

exit status: 0 success; 1 the configuration or the machine does not let it start, with -v: there are errors; 2 wrong
arguments
"""


def endpoint(text: str) -> tuple[str, int]:
    """Address and port of an argument."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no [ADDRESS:]PORT")
    return host or "127.0.0.1", int(port)


def whole(least: int, most: int) -> Callable[[str], int]:
    """A reader of arguments that are whole numbers in this range."""

    def read(text: str) -> int:
        if text.isascii() and text.isdigit() and len(text) <= 20 and least <= int(text) <= most:
            return int(text)
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} to {most}")

    return read


def run_program(program: Program[C], given: Sequence[str] | None) -> int:
    """Do what the command line says; the exit status."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    open_standard_streams()
    signals = EarlySignals(mask)
    try:
        return _command(program, sys.argv[1:] if given is None else given, signals)
    finally:
        signals.undo()


def _command(program: Program[C], given: Sequence[str], signals: EarlySignals) -> int:
    parser = program.arguments()
    args = parser.parse_args(given)
    if args.dump_dtd:
        return _put(program.name, dtd_of(program.name))
    if args.validate and not args.config:
        parser.error("CONFIG is missing")
    level = logging.DEBUG if args.debug else logging.INFO
    settings = Settings(level=level, utc=args.use_utc, json=args.log_json, syslog_tag=program.name)
    keep_start_folder()
    manager = ServiceManager(os.environ)
    warn = configuration_warning(hold(settings.level))
    try:
        config = program.load(args, warn)
        if args.validate:
            set_up(program.name, replace(settings, console_fd=2))
            return _put(program.name, f"{args.config}: no errors\n")
        close_others()
        log = _open_log(program, config, args, settings)
    except ConfigError as e:
        set_up(program.name, replace(settings, console_fd=2))  # for what was logged so far
        say(sys.stderr, f"{e}\n")
        return EXIT_FAILED
    log.info(LogEvent.SERVICE_STARTS, extra={"daemon": program.name, "version": version(), "config": args.config})
    loop = Loop()
    try:
        with _started(program, config, args, loop, log) as address:
            log.info(LogEvent.SERVICE_RUNS, extra={"daemon": program.name, "address": address})
            _take_signals(program.name, loop, log, signals, manager)
            manager.watch(loop)
            manager.say(READY, f"STATUS={program.name} at {address}")
            loop.run()
        return EXIT_OK
    except (ConfigError, ResourceError) as e:
        log.critical(LogEvent.SERVICE_CANNOT_START, extra={"daemon": program.name, "reason": str(e)})
        if args.logfile or program.log_of(config)[0].type != "console":
            say(sys.stderr, f"{program.name}: {e}\n")
        return EXIT_FAILED
    finally:
        loop.close()
        finish()


def _put(name: str, text: str) -> int:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as e:
        if (error := output_lost(e)) is not None:
            say(sys.stderr, f"{name}: {error}\n")
            return EXIT_FAILED
    return EXIT_OK


def _open_log(program: Program[C], config: C, args: argparse.Namespace, base: Settings) -> logging.Logger:
    """Begin the log of the argument, or of the file. Raises: ConfigError with the place of what asks for it."""
    log, line = program.log_of(config)
    wanted = replace(base, kind=FILE, file=absolute(args.logfile)) if args.logfile else log_settings(log, base)
    try:
        return set_up(program.name, wanted)
    except ResourceError as e:
        if args.logfile:
            raise ConfigError(e.what, element="--logfile", remedy="choose another file") from e
        raise ConfigError(e.what, file=args.config, line=line, element="<log>", remedy=e.remedy) from e


@contextmanager
def _started(
    program: Program[C], config: C, args: argparse.Namespace, loop: Loop, log: logging.Logger
) -> Iterator[str]:
    """Run the daemon, and its metrics server, while this is open; its address. Raises: ConfigError, ResourceError."""
    service = program.start(config, loop, log)
    try:
        with _served(args.metrics, service, log):
            _tick(loop)
            yield service.address
    finally:
        service.close()


def _tick(loop: Loop) -> None:
    tick()
    loop.call_later(TICK_NS, lambda: _tick(loop))


class _Figures(Collector):
    """Hands the metrics of a daemon on."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterable[Metric]:
        return self._service.metrics()


@contextmanager
def _served(where: tuple[str, int] | None, service: Service, log: logging.Logger) -> Iterator[None]:
    """Serve the metrics of a daemon over HTTP, if somewhere. Raises: ResourceError."""
    if where is None:
        yield
        return
    registry = CollectorRegistry()
    registry.register(_Figures(service))
    host, port = where
    try:
        server, thread = start_http_server(port, host, registry)
    except (OSError, UnicodeError) as e:
        why = getattr(e, "strerror", None) or str(e)
        raise ResourceError(f"cannot serve metrics at {host}:{port}: {why}", remedy="change --metrics") from e
    log.info(LogEvent.METRICS_LISTEN, extra={"address": f"http://{host}:{server.server_port}/metrics"})
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _take_signals(name: str, loop: Loop, log: logging.Logger, signals: EarlySignals, manager: ServiceManager) -> None:
    """Let signals be handled by the loop: the handler only remembers."""

    def handle(number: int) -> None:
        if number == signal.SIGHUP:
            log.warning(LogEvent.HANGUP_NEEDS_RESTART)
            return
        log.info(LogEvent.SERVICE_STOPS, extra={"daemon": name, "signal": signal.Signals(number).name})
        manager.say(STOPPING)
        loop.stop()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(lambda: handle(number))

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    for number in numbers:
        signal.signal(number, on_signal)
    signals.hand_over()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
