"""Run `tnwgd-history`: receive, scrape, import or compact the history of DROs."""

from __future__ import annotations

import argparse
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from dro.command_line import Parser, add_version
from dro.errors import ConfigError, DroError, ResourceError
from dro.os_errors import remedy_of
from supervisor.history.tables import NEEDS

if TYPE_CHECKING:
    import uvicorn

    from supervisor.history.published import PublishedStatistics
    from supervisor.history.sample_writer import SampleWriter
    from supervisor.history.store import Store

_TOLD: Final = 20
"""Lines about what could not be read."""
STOP_S: Final = 5
"""Given to requests under way when the program is told to end."""
CHECK_S: Final = 5.0
"""How long the start waits to hear whether there is such a store."""
_log: Final = logging.getLogger("tnwgd-history")


def main(given: Sequence[str] | None = None) -> int:
    """Do what the command line says; the exit status."""
    options = arguments().parse_args(given)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO, stream=sys.stderr)
    try:
        return int(options.run(options))
    except ImportError as e:
        print(f"tnwgd-history: {NEEDS}: {e}", file=sys.stderr)
    except DroError as e:
        print(f"tnwgd-history: {e}", file=sys.stderr)
    return 1


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is no ADDRESS:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return text
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is no address of HTTP, such as http://127.0.0.1:15305/metrics")


def _seconds(text: str) -> float:
    try:
        if 0 < (seconds := float(text)) < 1e6:
            return seconds
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")


def _whole(text: str) -> int:
    if text.isdigit() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")


def arguments() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = Parser(prog="tnwgd-history", description="Write histories of DROs.")
    add_version(parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    receive = commands.add_parser("receive", help="take what Prometheus sends by remote write")
    receive.add_argument("--listen", metavar="ADDRESS:PORT", default="127.0.0.1:9201", type=_address,
                         help="default %(default)s")  # fmt: skip
    receive.add_argument("--um", metavar="FILE", action="append", default=[],
                         help="UM configuration file: also take statistics that are published over UM")  # fmt: skip
    receive.add_argument("--um-topic", metavar="TOPIC", default="", help="their topic (default /29west/statistics)")
    receive.set_defaults(run=_receive)
    scrape = commands.add_parser("scrape", help="fetch /metrics of DROs again and again, without Prometheus")
    scrape.add_argument("url", metavar="URL", nargs="+", type=_url, help="such as http://127.0.0.1:15305/metrics")
    scrape.add_argument("--interval", metavar="SECONDS", type=_seconds, default=10.0, help="default %(default)g")
    scrape.set_defaults(run=_scrape)
    bring = commands.add_parser("import", help="bring in what UM's own monitoring has kept")
    bring.add_argument("file", metavar="FILE", nargs="+", type=Path,
                       help="packets of lbmmon (pb or csv), or the database of a collector")  # fmt: skip
    bring.set_defaults(run=_import, roll=1e9)
    join = commands.add_parser("compact", help="join the files of past days, remove days that are too old or too much")
    join.add_argument("--keep-days", metavar="N", type=_whole, default=0, help="remove days before the last N")
    join.add_argument("--keep-bytes", metavar="N", type=_whole, default=0, help="remove the oldest days beyond N bytes")
    join.set_defaults(run=_compact)
    for command in (receive, scrape, bring, join):
        command.add_argument("--history", metavar="DIR", required=True, help="directory or URI of the history")
    for command in (receive, scrape, bring):
        command.add_argument("--journal", metavar="DIR", type=Path,
                             help="of samples in no file yet (default DIR/journal)")  # fmt: skip
    for command in (receive, scrape):
        command.add_argument("--roll", metavar="SECONDS", type=_seconds, default=600.0,
                             help="how long samples may wait for their Parquet file (default %(default)g)")  # fmt: skip
    return parser


def _receive(options: argparse.Namespace) -> int:
    import uvicorn

    from supervisor.history.receive import PATH, make_app

    if options.um_topic and not options.um:
        raise ConfigError("--um-topic is nothing without --um", remedy="name a UM configuration file by --um")
    host, port = options.listen
    with ExitStack() as stack:
        writer = stack.enter_context(_writer(options, "receive"))
        sock = stack.enter_context(_listening(host, port))
        figures: Callable[[], Mapping[str, int]] = dict
        if options.um:
            figures = stack.enter_context(_published(options)).figures
        shown = f"[{host}]" if ":" in host else host
        print(f"remote write to http://{shown}:{port}{PATH}, history in {options.history}", flush=True)
        app = make_app(writer, figures=figures)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            ws="none",
            timeout_graceful_shutdown=STOP_S,
        )
        server = _server(config)
        _on_stop(lambda: setattr(server, "should_exit", True))
        server.run(sockets=[sock])
    return 0 if server.started else 1


@contextmanager
def _published(options: argparse.Namespace) -> Iterator[PublishedStatistics]:
    """Take in what is published over UM, as a writer of its own."""
    from dro.config.um.used import STATISTICS_TOPIC
    from dro.um.statistics import statistics_config
    from supervisor.history.published import WRITER, PublishedStatistics
    from supervisor.history.store import Store

    topic = options.um_topic or STATISTICS_TOPIC
    with (
        _files_of(Store(options.history, WRITER, journal=options.journal, roll_s=options.roll)) as store,
        PublishedStatistics(store, statistics_config(options.um), topic) as published,
    ):
        print(f"statistics over UM of topic {topic}", flush=True)
        yield published


def _listening(host: str, port: int) -> socket.socket:
    try:
        (family, *_), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return socket.create_server((host, port), family=family)
    except OSError as e:
        remedy = remedy_of(e.errno, "choose another address or port by --listen")
        raise ResourceError(f"cannot listen at {host} port {port}: {e.strerror or e}", remedy=remedy) from e


def _server(config: uvicorn.Config) -> uvicorn.Server:
    import uvicorn

    class Server(uvicorn.Server):
        """Leaves signals to us: after its work it would end the process by the one that came."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    return Server(config)


def _scrape(options: argparse.Namespace) -> int:
    from supervisor.history.scrape import Scraper

    with _writer(options, "scrape") as writer:
        scraper = Scraper(options.url, writer)
        _on_stop(scraper.stop)
        scraper.run(options.interval)
    return 0


def _import(options: argparse.Namespace) -> int:
    from supervisor.history.importer import Importer
    from supervisor.history.store import Store

    unread: list[str] = []
    store = Store(options.history, "import", journal=options.journal, roll_s=options.roll)
    try:
        importer = Importer(store, unread.append)
        for path in options.file:
            try:
                importer.add(path)
            except OSError as e:
                unread.append(f"{path}: {e.strerror}")
    finally:
        store.close()
    for line in unread[:_TOLD]:
        print(f"tnwgd-history: {line}", file=sys.stderr)
    if len(unread) > _TOLD:
        print(f"tnwgd-history: and {len(unread) - _TOLD} more that could not be read", file=sys.stderr)
    print(", ".join(f"{n} {what}" for what, n in importer.counts.items()) or "nothing to bring in")
    return 1 if unread else 0


def _compact(options: argparse.Namespace) -> int:
    from supervisor.history.compact import compact

    bad: list[str] = []
    today = datetime.now(UTC).date()
    done = compact(options.history, today, options.keep_days, options.keep_bytes, bad.append)
    for line in bad:
        print(f"tnwgd-history: {line}", file=sys.stderr)
    print(f"{done.files_before} files became {done.files_after}; {done.days_removed} days removed,"
          f" {done.bytes_removed} bytes")  # fmt: skip
    return 1 if bad else 0


def _on_stop(stop: Callable[[], object]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop())


@contextmanager
def _files_of(store: Store) -> Iterator[Store]:
    """Write the files of a store beside the block. Raises: ResourceError, there is no such store."""
    from supervisor.history.store_thread import StoreThread

    def attempt(work: Callable[[], object]) -> None:
        try:
            work()
        except ResourceError as e:
            _log.error("%s", e)

    files = StoreThread(store, attempt)
    try:
        files.check(CHECK_S)
        yield store
    finally:
        if left := files.close():
            _log.warning("%s", left)


@contextmanager
def _writer(options: argparse.Namespace, name: str) -> Iterator[SampleWriter]:
    from supervisor.history.sample_writer import SampleWriter
    from supervisor.history.store import Store

    with _files_of(Store(options.history, name, journal=options.journal, roll_s=options.roll)) as store:
        yield SampleWriter(store)


if __name__ == "__main__":
    sys.exit(main())
