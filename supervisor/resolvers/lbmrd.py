"""`lbmrd`, the unicast topic resolution daemon: one UDP socket, and the core that says who gets what.

A turn of the loop takes some batches of datagrams, answers keepalives, and passes others on for `dro.loop.SLICE_NS`,
one at least; so timers and the service manager have their turns however much comes. Source: public manual, lbmrd man
page.
"""

from __future__ import annotations

import argparse
import logging
import os
import socket
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dro.clock import NS_PER_MS, s
from dro.command_line import Parser
from dro.config.dro_xml.model import LogConfig
from dro.config.reading.problems import Warn
from dro.config.resolvers.lbmrd import LbmrdConfig, load_lbmrd
from dro.config.um.interfaces import ANY, LOOPBACK, SYSTEM, resolve_interface
from dro.errors import ConfigError, ResourceError
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.loop import Loop
from dro.os_errors import remedy_of
from dro.proto.lbmrd.daemon import ClientGroup, ClientSend, LbmrdCore, NoteKind
from dro.transport.fan_out import FanOut
from dro.transport.mmsg import BATCH, DatagramBatch, address_of
from dro.transport.sockets import ip_text, receive_drops, set_buffer
from supervisor.resolvers.service import Program, parser_of, run_program, whole

NAME: Final = "lbmrd"
CLIENTS_MAX: Final = 20_000
BATCHES_PER_TURN: Final = 8
_UINT32_MAX: Final = 2**32 - 1
_INT32_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class LbmrdSettings:
    """What the file and the arguments come to."""

    config: LbmrdConfig
    clients_max: int


def arguments() -> Parser:
    """Make the parser of the command line."""
    parser = parser_of(NAME, "Unicast topic resolution daemon: passes on what contexts tell each other about topics.")
    add = parser.add_argument
    add(
        "-a",
        "--activity",
        metavar="MS",
        type=whole(1, _UINT32_MAX),
        help="look for silent clients that often (default 60000)",
    )
    add(
        "-i",
        "--interface",
        metavar="ADDR",
        help='address, network, host or "device" to receive on (default: the first one)',
    )
    add("-p", "--port", metavar="PORT", type=whole(0, 65535), help="UDP port (default 15380); 0: one that is free")
    add("-r", "--rcv-buf", metavar="BYTES", type=whole(0, _INT32_MAX), help="receive buffer of the socket")
    add("-s", "--snd-buf", metavar="BYTES", type=whole(0, _INT32_MAX), help="send buffer of the socket")
    add(
        "-t",
        "--ttl",
        metavar="SECONDS",
        type=whole(1, _UINT32_MAX),
        help="how long a client may be silent (default 60)",
    )
    add("--max-clients", metavar="N", type=whole(1, 1_000_000), default=CLIENTS_MAX,
        help="refuse further clients (default %(default)s)")  # fmt: skip
    return parser


def _load(args: argparse.Namespace, warn: Warn) -> LbmrdSettings:
    config = load_lbmrd(args.config, warn)
    given = {
        "activity_ms": args.activity, "interface": args.interface, "port": args.port, "ttl_s": args.ttl,
        "receive_buffer_bytes": args.rcv_buf, "send_buffer_bytes": args.snd_buf,
    }  # fmt: skip
    values = {name: value for name, value in given.items() if value is not None}
    try:
        interface = resolve_interface(values.get("interface", config.daemon.interface))
    except ConfigError as e:
        if args.interface is not None:
            raise ConfigError(e.what, element="--interface", remedy=e.remedy) from e
        place = {"file": config.file, "line": config.interface_line, "element": "<interface>"}
        raise ConfigError(e.what, remedy=e.remedy, **place) from e  # type: ignore[arg-type]  # of two types
    values["interface"] = _first_interface() if interface == ANY else interface
    return LbmrdSettings(replace(config, daemon=replace(config.daemon, **values)), args.max_clients)


def _first_interface() -> str:
    """Choose the address of the first interface, which clients can name; loopback when there is no other."""
    return next((i.address for i in SYSTEM.interfaces() if i.is_up and not i.is_loopback), LOOPBACK)


def _log_of(settings: LbmrdSettings) -> tuple[LogConfig, int]:
    return settings.config.daemon.log, settings.config.log_line


def _key_of(ip: str, port: int) -> int:
    """Return an address as `DatagramBatch` gives it."""
    return int.from_bytes(struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(ip), "little")


def _shown(key: int) -> str:
    ip, port = address_of(key)
    return f"{ip_text(ip)}:{port}"


class Lbmrd:
    """The daemon at work. Implements `Service`."""

    def __init__(self, settings: LbmrdSettings, loop: Loop, log: logging.Logger) -> None:
        """Open the socket and begin. Raises: ResourceError."""
        daemon = settings.config.daemon
        self._socket = _open(daemon.interface, daemon.port)
        own = _key_of(*self._socket.getsockname())
        self.address = _shown(own)
        set_buffer(self._socket, socket.SO_RCVBUF, daemon.receive_buffer_bytes)
        set_buffer(self._socket, socket.SO_SNDBUF, daemon.send_buffer_bytes)
        self._core = LbmrdCore(
            settings.config.translation,
            own=own,
            ttl_ns=s(daemon.ttl_s),
            activity_ns=daemon.activity_ms * NS_PER_MS,
            clients_max=settings.clients_max,
            now_ns=loop.now_ns(),
        )
        self._clients_max = settings.clients_max
        self._loop = loop
        self._news = LimitedLogger.of_events(log)
        self._faults = LimitedLogger(log)
        self._batch = DatagramBatch()
        self._fans: dict[str, FanOut] = {}
        self._receive_errors = self._told_failed = 0
        self._is_forwarding = False
        loop.add_reader(self._socket, self._on_readable)
        self._arm()

    def _on_readable(self) -> bool:
        """Take some batches of datagrams; True when there may be more."""
        for _ in range(BATCHES_PER_TURN):
            if (count := self._take()) < BATCH:
                break
        self._tell()
        if not self._is_forwarding:
            self._is_forwarding = True
            self._loop.run_in_slices(self._forward())
        return count == BATCH

    def _take(self) -> int:
        """Take a batch; return how many there were."""
        try:
            count = self._batch.receive(self._socket.fileno())
        except OSError as e:
            self._receive_errors += 1
            self._faults.event(LogEvent.TR_RECEIVE_FAILED, {"error": e.strerror})
            return 0
        now_ns, batch, core = self._loop.now_ns(), self._batch, self._core
        for at, length, sender in zip(batch.offsets[:count], batch.lengths, batch.senders, strict=False):
            self._send(core.on_datagram(bytes(batch.view[at : at + length]), sender, now_ns))
        return count

    def _forward(self) -> Iterator[None]:
        """Pass on what waits, a datagram in each step."""
        while self._socket.fileno() >= 0 and (sends := self._core.next_sends()) is not None:
            self._send(sends)
            yield
        self._is_forwarding = False
        self._tell()

    def _send(self, sends: Iterable[ClientSend]) -> None:
        for send in sends:
            self._fan_of(send.group).send(self._socket.fileno(), send.data, send.start, send.stop)

    def _fan_of(self, group: ClientGroup) -> FanOut:
        fan = self._fans.get(group.domain)
        if fan is None:
            fan = self._fans[group.domain] = FanOut(group.addresses)
        return fan

    def _arm(self) -> None:
        self._loop.call_at(self._core.next_deadline(), self._on_timer)

    def _on_timer(self) -> None:
        self._core.on_timer(self._loop.now_ns())
        self._tell()
        self._arm()

    def _tell(self) -> None:
        """Log what has happened, as far as there may be lines of it."""
        for kind, sender, text in self._core.take_notes():
            who = _shown(sender)
            match kind:
                case NoteKind.REGISTERED:
                    self._news.event(LogEvent.CLIENT_REGISTERED, {"client": who} | ({"domain": text} if text else {}))
                case NoteKind.EXPIRED:
                    self._news.event(LogEvent.CLIENT_EXPIRED, {"client": who})
                case NoteKind.REFUSED:
                    extra = {"from": who, "clients": self._clients_max, "remedy": "raise --max-clients"}
                    self._faults.event(LogEvent.CLIENT_REFUSED, extra)
                case NoteKind.MALFORMED:
                    extra = {"from": who, "error": text, "dropped": self._core.counts.malformed}
                    self._faults.event(LogEvent.TR_MALFORMED, extra)
                case NoteKind.OVERLOAD:
                    extra = {"from": who, "dropped": self._core.counts.overload}
                    self._faults.event(LogEvent.TR_OVERLOAD, extra)
                case NoteKind.UNTRANSLATED:
                    self._faults.event(LogEvent.TR_UNTRANSLATED, {"from": who, "error": text})
        failed = sum(fan.failed + fan.blocked for fan in self._fans.values())
        if failed > self._told_failed:
            self._told_failed = failed
            codes = [code for fan in self._fans.values() if (code := fan.take_error())]
            error = os.strerror(codes[0]) if codes else "the send buffer is full"
            self._faults.event(LogEvent.TR_NOT_SENT, {"error": error, "failed": failed})

    def metrics(self) -> Iterable[Metric]:
        counts, fans = self._core.counts, list(self._fans.values())

        def counter(name: str, text: str, value: int) -> Metric:
            return CounterMetricFamily(f"{NAME}_{name}", text, value)

        def counters(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
            family = CounterMetricFamily(f"{NAME}_{name}", text, labels=[label])
            for value, number in values.items():
                family.add_metric([value], number)
            return family

        yield GaugeMetricFamily(f"{NAME}_clients", "Clients now.", self._core.client_count)
        yield GaugeMetricFamily(f"{NAME}_clients_max", "Clients that there may be.", self._clients_max)
        yield counter("clients_registered", "Clients that were registered.", counts.registered)
        yield counter("clients_expired", "Clients that were removed, as they were silent.", counts.expired)
        kinds = {"tr": counts.tr_datagrams, "keepalive": counts.keepalives}
        yield counters("received_datagrams", "Datagrams of clients.", "kind", kinds)
        reasons = {
            "malformed": counts.malformed, "client_refused": counts.refused, "overload": counts.overload,
            "receive_buffer_full": receive_drops(self._socket),
        }  # fmt: skip
        yield counters("received_datagrams_dropped", "Received datagrams that had no effect.", "reason", reasons)
        yield counter("receive_errors", "Receive calls that failed.", self._receive_errors)
        yield counter("sent_datagrams", "Datagrams sent to clients.", sum(fan.sent for fan in fans))
        reasons = {
            "send_buffer_full": sum(fan.blocked for fan in fans), "error": sum(fan.failed for fan in fans),
        }  # fmt: skip
        yield counters("sent_datagrams_dropped", "Datagrams that were not sent.", "reason", reasons)
        yield counter("translated_datagrams", "Datagrams translated for a network domain.", counts.translated)
        yield counter(
            "untranslated_datagrams", "Datagrams kept from a network domain: not translated.", counts.untranslated
        )

    def close(self) -> None:
        self._loop.remove_reader(self._socket)
        self._socket.close()


def _open(interface: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setblocking(False)
    try:
        sock.bind((interface, port))
    except OSError as e:
        sock.close()
        remedy = remedy_of(e.errno, "choose another port or interface, or end what uses it")
        raise ResourceError(f"cannot receive on {interface}:{port}: {e.strerror}", remedy=remedy) from e
    return sock


PROGRAM: Final = Program(NAME, arguments, _load, _log_of, Lbmrd)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status."""
    return run_program(PROGRAM, argv)


if __name__ == "__main__":
    sys.exit(main())
