"""`umsrs`, the daemon of topic resolution over TCP (SRS): a listening socket, connections, and the core that decides.

Connections are read 64 KiB at a time, and not at all while the core has work of theirs; the core works in slices of the
loop. What is written is what a connection has pending, a few chunks a time.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import logging
import os
import resource
import socket
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dro.bus.cycle_collector import CycleCollector
from dro.clock import s
from dro.command_line import Parser
from dro.config.dro_xml.model import LogConfig
from dro.config.reading.problems import Warn
from dro.config.resolvers.umsrs import SrsConfig, load_umsrs
from dro.config.um.interfaces import resolve_interface
from dro.errors import ConfigError, ResourceError
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.loop import Loop
from dro.os_errors import remedy_of
from dro.proto.srs.connection import SrsConnection
from dro.proto.srs.server import SrsNote, SrsNoteKind, SrsServer
from dro.proto.srs.settings import MIB, SrsLimits, SrsSettings
from dro.start_folder import absolute
from supervisor.host.pidfile import PidFile, take_pid_file
from supervisor.resolvers.service import Program, parser_of, run_program, whole

NAME: Final = "umsrs"
READ_BYTES: Final = 64 * 1024
_ACCEPTS: Final = 64  # in one turn
_CHUNKS: Final = 8  # that are written in one turn of a connection
_RESUMED: Final = 16
_BACKLOG: Final = 1024
_SPARE_FILES: Final = 100
_PAUSE_NS: Final = s(1)
_UINT32_MAX: Final = 2**32 - 1
_DEFAULTS: Final = SrsLimits()


@dataclass(frozen=True, slots=True)
class UmsrsSettings:
    """What the file and the arguments come to."""

    config: SrsConfig
    core: SrsSettings


def arguments() -> Parser:
    """Make the parser of the command line."""
    parser = parser_of(NAME, "Daemon of topic resolution over TCP: keeps what contexts tell, and tells it to others.")
    add = parser.add_argument
    add("-i", "--interface", metavar="ADDR", help='address, network, host or "device" to listen on')
    add("-p", "--port", metavar="PORT", type=whole(0, 65535), help="TCP port (default 27000); 0: one that is free")
    add("--domain-id", metavar="N", type=whole(0, _UINT32_MAX), default=0,
        help="domain id of the TRD (default: that of the first DRO)")  # fmt: skip
    add("--max-connections", metavar="N", type=whole(1, 1_000_000), default=_DEFAULTS.connections,
        help="refuse further connections (default %(default)s)")  # fmt: skip
    add("--max-records", metavar="MIB", type=whole(1, 1_000_000), default=_DEFAULTS.record_bytes // MIB,
        help="memory for records of all clients (default %(default)s)")  # fmt: skip
    add("--max-client-records", metavar="MIB", type=whole(1, 1_000_000), default=_DEFAULTS.client_record_bytes // MIB,
        help="memory for records of one client (default %(default)s)")  # fmt: skip
    add("--max-queue", metavar="MIB", type=whole(1, 1_000_000), default=_DEFAULTS.queue_bytes // MIB,
        help="what may wait for a client that reads slowly (default %(default)s)")  # fmt: skip
    return parser


def _load(args: argparse.Namespace, warn: Warn) -> UmsrsSettings:
    config = load_umsrs(args.config, warn)
    given = {"interface": args.interface, "port": args.port}
    values = {name: value for name, value in given.items() if value is not None}
    try:
        values["interface"] = resolve_interface(values.get("interface", config.service.interface))
    except ConfigError as e:
        if args.interface is not None:
            raise ConfigError(e.what, element="--interface", remedy=e.remedy) from e
        raise ConfigError(
            e.what, file=config.file, line=config.interface_line, element="<interface>", remedy=e.remedy
        ) from e
    limits = replace(
        _DEFAULTS,
        connections=args.max_connections,
        clients=max(_DEFAULTS.clients, args.max_connections),
        record_bytes=args.max_records * MIB,
        client_record_bytes=args.max_client_records * MIB,
        queue_bytes=args.max_queue * MIB,
        queues_bytes=max(_DEFAULTS.queues_bytes, args.max_queue * MIB),
    )
    core = SrsSettings(config.times, limits, args.domain_id)
    return UmsrsSettings(replace(config, service=replace(config.service, **values)), core)


def _log_of(settings: UmsrsSettings) -> tuple[LogConfig, int]:
    return settings.config.daemon.log, settings.config.log_line


class Umsrs:
    """The daemon at work. Implements `Service`."""

    def __init__(self, settings: UmsrsSettings, loop: Loop, log: logging.Logger) -> None:
        """Open the socket and begin. Raises: ConfigError, ResourceError."""
        self._pid_file = _take_pid_file(settings.config)
        try:
            self._listener = _open(settings.config.service.interface, settings.config.service.port)
        except ResourceError:
            self._end_pid_file()
            raise
        self.address = _shown(self._listener.getsockname())
        self._loop = loop
        self._news = LimitedLogger.of_events(log)
        self._faults = LimitedLogger(log)
        self._server = SrsServer(settings.core, loop.now_ns())
        self._limits = settings.core.limits
        self._sockets: dict[SrsConnection, socket.socket] = {}
        self._paused: dict[SrsConnection, None] = {}  # that are not read
        self._buffer = bytearray(READ_BYTES)
        self._view = memoryview(self._buffer)
        self._received_bytes = self._sent_bytes = self._accept_errors = 0
        self._refused = 0  # records, as far as it was logged
        self._is_working = False
        self._timer = loop.call_at(self._server.next_deadline(), self._on_timer)
        _allow_files(self._limits.connections + _SPARE_FILES)
        self._collector = CycleCollector(loop)
        self._collector.start()
        loop.add_reader(self._listener, self._on_acceptable)

    # connections

    def _on_acceptable(self) -> bool:
        """Take some of the connections that wait; True when there may be more."""
        for _ in range(_ACCEPTS):
            try:
                accepted, address = self._listener.accept()
            except BlockingIOError:
                return False
            except OSError as e:
                self._on_accept_failed(e)
                return False
            peer = _shown(address)
            connection = self._server.connect(peer, self._loop.now_ns())
            if connection is None:
                accepted.close()
                extra = {"from": peer, "clients": self._limits.connections, "remedy": "raise --max-connections"}
                self._faults.event(LogEvent.CLIENT_REFUSED, extra)
                continue
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets[connection] = accepted
            self._read_on(connection)
        return True

    def _on_accept_failed(self, error: OSError) -> None:
        """Wait a while where nothing can be taken, as the socket would be ready all the time."""
        self._accept_errors += 1
        self._faults.event(LogEvent.SRS_ACCEPT_FAILED, {"error": error.strerror})
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
            self._loop.remove_reader(self._listener)
            self._loop.call_later(_PAUSE_NS, self._accept_again)

    def _accept_again(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._on_acceptable)

    def _read_on(self, connection: SrsConnection) -> None:
        self._loop.add_reader(self._sockets[connection], lambda: self._on_readable(connection))

    def _on_readable(self, connection: SrsConnection) -> bool:
        """Read once; True when there may be more."""
        sock = self._sockets[connection]
        if not connection.wants_bytes:
            self._loop.remove_reader(sock)
            self._paused[connection] = None
            self._work()
            return False
        try:
            count = sock.recv_into(self._buffer)
        except BlockingIOError:
            return False
        except OSError:
            count = 0
        if not count:
            self._end(connection)
            return False
        self._received_bytes += count
        self._server.on_bytes(connection, self._view[:count], self._loop.now_ns())
        self._work()
        return count == READ_BYTES

    def _end(self, connection: SrsConnection) -> None:
        """Close the socket of a connection that is over."""
        sock = self._sockets.pop(connection)
        self._paused.pop(connection, None)
        self._loop.remove_reader(sock)
        self._loop.remove_writer(sock)
        if connection.is_closing:  # what is unread would make the system drop the error that was written
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
                sock.recv_into(self._buffer)
        sock.close()
        self._server.on_closed(connection)
        self._work()

    # work

    def _work(self) -> None:
        if not self._is_working:
            self._is_working = True
            self._loop.run_in_slices(self._steps())

    def _steps(self) -> Iterator[None]:
        """Let the core work and write what comes of it, in small pieces."""
        while True:
            self._server.work(self._loop.now_ns())
            for connection in self._server.take_ready():
                if connection in self._sockets:
                    self._write(connection)
            for note in self._server.take_notes():
                self._tell(note)
            self._resume()
            if not self._server.has_work:
                break
            yield
        self._is_working = False
        self._tell_refused()
        self._arm()

    def _resume(self) -> None:
        """Read on where what has been read is worked on; a few are looked at a time."""
        for connection in list(islice(self._paused, _RESUMED)):
            del self._paused[connection]
            if connection.wants_bytes:
                self._read_on(connection)
            else:
                self._paused[connection] = None

    def _write(self, connection: SrsConnection) -> None:
        sock = self._sockets[connection]
        for _ in range(_CHUNKS):
            pending = connection.pending()
            if not pending:
                self._loop.remove_writer(sock)
                break
            try:
                count = sock.send(pending)
            except BlockingIOError:
                self._loop.add_writer(sock, lambda: self._write_on(connection))
                break
            except OSError:
                self._end(connection)
                return
            self._sent_bytes += count
            self._server.on_sent(connection, count, self._loop.now_ns())
        else:
            self._loop.add_writer(sock, lambda: self._write_on(connection))
        if connection.is_closing:
            self._end(connection)

    def _write_on(self, connection: SrsConnection) -> None:
        if connection in self._sockets:
            self._write(connection)
            self._work()

    def _arm(self) -> None:
        due_ns = self._server.next_deadline()
        if not self._timer.is_pending or due_ns < self._timer.when_ns:
            self._timer.cancel()
            self._timer = self._loop.call_at(due_ns, self._on_timer)

    def _on_timer(self) -> None:
        self._server.on_timer(self._loop.now_ns())
        self._work()
        self._arm()

    # log and metrics

    def _tell(self, note: SrsNote) -> None:
        """Log what has happened, as far as there may be lines of it."""
        match note.kind:
            case SrsNoteKind.REGISTERED:
                self._news.event(LogEvent.SRS_CLIENT_REGISTERED, {"from": note.who, "client": note.text})
            case SrsNoteKind.LOST:
                self._news.event(LogEvent.SRS_CLIENT_LOST, {"from": note.who, "client": note.text})
            case SrsNoteKind.CLOSED:
                self._faults.event(LogEvent.SRS_CONNECTION_ENDED, {"from": note.who, "reason": note.text})
            case SrsNoteKind.UNREADABLE:
                self._faults.event(LogEvent.SRS_UNREADABLE, {"from": note.who, "error": note.text})
            case SrsNoteKind.DOMAIN:
                self._news.event(LogEvent.SRS_DOMAIN, {"from": note.who, "domain": note.text})

    def _tell_refused(self) -> None:
        counts = self._server.records.counts
        refused = counts.refused_bytes + counts.refused_patterns + counts.other_topic
        if refused > self._refused:
            self._refused = refused
            remedy = "see the metric umsrs_records_refused_total for reasons, and raise --max-records"
            self._faults.event(LogEvent.SRS_RECORDS_REFUSED, {"refused": refused, "remedy": remedy})

    def metrics(self) -> Iterable[Metric]:
        server = self._server
        counts, records, clients = server.counts, server.records, server.clients

        def gauge(name: str, text: str, value: int) -> Metric:
            return GaugeMetricFamily(f"{NAME}_{name}", text, value)

        def counter(name: str, text: str, value: int) -> Metric:
            return CounterMetricFamily(f"{NAME}_{name}", text, value)

        def counters(name: str, text: str, values: dict[str, int]) -> Metric:
            family = CounterMetricFamily(f"{NAME}_{name}", text, labels=["reason"])
            for value, number in values.items():
                family.add_metric([value], number)
            return family

        yield gauge("connections", "Connections now.", server.connection_count)
        yield gauge("clients", "Clients that are remembered, with a connection or without.", len(clients))
        yield gauge("clients_lost", "Clients that are remembered without a connection.", len(clients.lost))
        yield gauge("sources", "Sources that clients have told.", records.source_count)
        yield gauge("interest", "Topics and patterns that clients want.", records.interest_count)
        yield gauge("record_bytes", "Memory that records are counted with.", records.record_bytes)
        yield gauge("queued_bytes", "Bytes that wait for clients.", server.queued_bytes)
        yield gauge("domain_id", "Domain id of the TRD; 0 while it is not known.", server.domain_id)
        yield counter("connections_opened", "Connections that were taken.", counts.connections)
        yield counter("connections_refused", "Connections beyond the limit.", counts.refused_connections)
        yield counters("connections_ended", "Connections that the daemon ended.", dict(counts.closed))
        yield counter("accept_errors", "Connections that could not be taken.", self._accept_errors)
        yield counter("registrations", "Registrations of clients.", clients.counts.registrations)
        yield counter("clients_returned", "Registrations of clients that were known.", clients.counts.returned)
        yield counter("clients_forgotten", "Lost clients forgotten to make room.", clients.counts.forgotten)
        yield counter("records_received", "Records that clients have told.", counts.records)
        yield counter("records_told", "Records queued for clients.", records.counts.told_records)
        reasons = {
            "unreadable": counts.unreadable, "bytes": records.counts.refused_bytes,
            "pattern": records.counts.refused_patterns, "other_topic": records.counts.other_topic,
        }  # fmt: skip
        yield counters("records_refused", "Records and frames that had no effect.", reasons)
        yield counter("patterns_given_up", "Patterns that took too long.", records.counts.given_up_patterns)
        yield counter("source_leaves", "Sources that receivers have left.", counts.source_leaves)
        yield counter("domain_conflicts", "Registrations of DROs with another domain id.", counts.domain_conflicts)
        yield counter("relayed_datagrams", "Datagrams passed on to all clients.", counts.relayed)
        yield counter("relayed_datagrams_dropped", "Datagrams that were not passed on.", counts.unrelayed)
        yield counter("received_bytes", "Bytes received.", self._received_bytes)
        yield counter("sent_bytes", "Bytes sent.", self._sent_bytes)

    def close(self) -> None:
        self._timer.cancel()
        self._collector.stop()
        for sock in (self._listener, *self._sockets.values()):
            self._loop.remove_reader(sock)
            self._loop.remove_writer(sock)
            sock.close()
        self._end_pid_file()

    def _end_pid_file(self) -> None:
        if self._pid_file is not None:
            self._pid_file.remove()


def _take_pid_file(config: SrsConfig) -> PidFile | None:
    """Write the pid file, if there is to be one. Raises: ConfigError."""
    if not config.daemon.pid_file:
        return None
    try:
        return take_pid_file(Path(absolute(config.daemon.pid_file)))
    except ResourceError as e:
        place = {"file": config.file, "element": "<pid-file>", "remedy": e.remedy}
        raise ConfigError(e.what, line=config.pid_file_line, **place) from e


def _open(interface: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((interface, port))
        sock.listen(_BACKLOG)
    except OSError as e:
        sock.close()
        remedy = remedy_of(e.errno, "choose another port or interface, or end what uses it")
        raise ResourceError(f"cannot listen on {interface}:{port}: {os.strerror(e.errno or 0)}", remedy=remedy) from e
    return sock


def _allow_files(count: int) -> None:
    """Raise the limit of open files, as far as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and most > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _shown(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"


PROGRAM: Final = Program(NAME, arguments, _load, _log_of, Umsrs)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status."""
    return run_program(PROGRAM, argv)


if __name__ == "__main__":
    sys.exit(main())
