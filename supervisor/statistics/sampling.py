"""Takes samples when they are due and turns them into messages, in a thread of its own: neither a slow parent nor a
large network keeps the loop of the worker waiting, which sends what comes from here.
"""

from __future__ import annotations

import contextlib
import json
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from dro.bus.kept_bytes import KeptBytes
from dro.clock import NS_PER_S, s
from dro.config.dro_xml.model import DaemonMonitorConfig, DroConfig, MonitorConfig, PublishingConfig
from dro.config.report.effective import option_values
from dro.config.um.layers import RECEIVER, SOURCE, WILDCARD_RECEIVER
from dro.errors import DroError
from dro.lbmmon import binary
from dro.lbmmon.control import ControlRequest, MonitorCommand
from dro.lbmmon.fields import CSV, PB
from dro.lbmmon.packet import encode
from dro.lbmmon.records import DroStats, LibraryStats, MonitorSender
from dro.metrics.library_rows import LIBRARY, read_library
from supervisor.admin.status import ConfigRecord
from supervisor.samples.pages import Pages
from supervisor.samples.watch import DroObserver, KnownDros
from supervisor.statistics.dro_stats import dro_message, portal_list
from supervisor.statistics.intervals import (
    GATEWAY_CONFIG,
    PORTAL_CONFIG,
    PORTAL_STATS,
    TOPOLOGY,
    DueGroup,
    IntervalsCore,
)
from supervisor.statistics.requests import INTERVAL, Request, group_of

REPEATED: Final = 10
"""A message of a DRO, as protobuf, has the configuration in the first of so many: who comes late needs it."""
CONFIG_LIMIT_S: Final = 60.0
ASKED_AGAIN_S: Final = 0.5  # until the parent has told when the DRO began
MODULES: Final = {"csv": CSV, "pb": PB}
MONITOR, DAEMON = "monitor", "daemon-monitor"
"""Ways of a message: as `<monitor>` says, or as `<daemon-monitor>` does."""
_AGE: Final = slice(12, 20)  # of another DRO, in what follows the header: grows by itself


EVERYTHING: Final = MonitorCommand("SAMPLE")
_KINDS: Final = {
    "CONTEXT": "context", "SOURCE": "source_transport", "RECEIVER": "receiver_transport", "EVENT_QUEUE": "event_queue",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message, where it goes, and what it is in."""

    to: str
    form: str  # csv, pb or binary
    message: bytes


@dataclass(frozen=True, slots=True)
class _Changed:
    """The configuration is another one."""

    config: DroConfig


class Sampling:
    """What the thread does. Others call `order`, `change` and `stop`; `put` gets what is to be sent."""

    def __init__(
        self,
        watch: DroObserver,
        config: DroConfig,
        kept: KeptBytes,
        host: Callable[[], str],
        put: Callable[[Sequence[Outgoing]], object],
        tell: Callable[[DroError | None], object],
    ) -> None:
        """`host`: the address that messages come from. `tell` hears what fails, and None when it works again. `kept`:
        what control requests have changed, which lasts until the DRO stops."""
        self._watch, self._config, self._host, self._put, self._tell = watch, config, host, put, tell
        self._intervals = IntervalsCore()
        self._orders: queue.SimpleQueue[Request | _Changed | None] = queue.SimpleQueue()
        self._sent: dict[object, bytes] = {}  # of the daemon, by what it is about
        self._text: tuple[float, str] = (-1.0, "")  # of the configuration, and when it was loaded
        self._monitor_ns = 0  # when `<monitor>` is due next
        self._messages = 0  # of the DRO as protobuf
        self._ordered_s = 0  # interval of `<monitor>` by request, instead of the configured one
        self._kept = kept
        self._configure(time.monotonic_ns())
        if (ordered := kept.get()) is not None:
            found = json.loads(ordered)
            self._ordered_s = found[MONITOR]
            self._intervals.restore(found[DAEMON], time.monotonic_ns())
            self._configure(time.monotonic_ns())

    # from other threads

    def order(self, request: Request) -> None:
        """Do what a request asks for."""
        self._orders.put(request)

    def change(self, config: DroConfig) -> None:
        """Take over another configuration, and publish it."""
        self._orders.put(_Changed(config))

    def forget_sent(self) -> None:
        """Send statistics of the daemon again although they have not changed: some were dropped."""
        self._sent = {}

    def stop(self) -> None:
        """Take the last sample and end."""
        self._orders.put(None)

    # in the thread

    def run(self) -> None:
        """Take samples until told to stop."""
        while not self._knows_start():
            time.sleep(ASKED_AGAIN_S)
        while True:
            try:
                order = self._orders.get(timeout=max(0.0, (self._deadline_ns() - time.monotonic_ns()) / NS_PER_S))
            except queue.Empty:
                self._try(self._on_due)
                continue
            match order:
                case None:
                    self._try(self._last)
                    return
                case _Changed(config=config):
                    self._config = config
                    self._configure(time.monotonic_ns())
                    self._messages, self._text = 0, (-1.0, "")
                    self._try(lambda: self._daemon([*self._all(GATEWAY_CONFIG), *self._all(PORTAL_CONFIG)]))
                case ControlRequest():
                    self._try(lambda order=order: self._obey(order))  # type: ignore[misc]
                case MonitorCommand():
                    self._try(lambda order=order: self._command(order))  # type: ignore[misc]

    def _knows_start(self) -> bool:
        """Ask when this run of the DRO began; False while nobody has told, unless the worker is to end."""
        return self._watch.look().asked_s >= 0 or not self._orders.empty()

    def _try(self, work: Callable[[], object]) -> None:
        try:
            work()
        except DroError as e:
            self._tell(e)
        else:
            self._tell(None)

    @property
    def _monitor(self) -> MonitorConfig | None:
        monitor = self._config.daemon.monitor
        return monitor if monitor is not None and monitor.interval_s and not monitor.is_held else None

    @property
    def _daemon_monitor(self) -> DaemonMonitorConfig | None:
        return self._config.daemon.daemon_monitor

    def _configure(self, now_ns: int) -> None:
        publishing = {p.name: p.publishing or PublishingConfig() for p in self._config.all_portals}
        daemon = self._daemon_monitor
        if daemon is not None:
            self._intervals.configure(daemon.publishing, publishing, now_ns)
        interval_ns = s(self._interval_s)
        if not interval_ns:
            self._monitor_ns = 0
        elif not 0 < self._monitor_ns <= now_ns + interval_ns:
            self._monitor_ns = now_ns + interval_ns

    @property
    def _interval_s(self) -> int:
        monitor = self._monitor
        return 0 if monitor is None else self._ordered_s or monitor.interval_s

    def _deadline_ns(self) -> int:
        deadlines = (self._monitor_ns or None, self._intervals.next_deadline())
        return min((at for at in deadlines if at is not None), default=time.monotonic_ns() + s(3600))

    def _on_due(self) -> None:
        now_ns = time.monotonic_ns()
        if (monitor := self._monitor) is not None and self._monitor_ns <= now_ns:
            self._monitor_ns = max(self._monitor_ns + s(self._interval_s), now_ns)
            self._publish(monitor)
        if due := self._intervals.take_due(now_ns):
            self._daemon(due)

    def _obey(self, request: ControlRequest) -> None:
        group, portal = group_of(request), request.portal or ""
        if request.verb == INTERVAL:
            self._intervals.order(group, portal, request.seconds or 0, time.monotonic_ns())
            self._keep()
        else:
            self._daemon(self._intervals.snapshot(group, portal))

    def _command(self, command: MonitorCommand) -> None:
        """Do what a control message to the context of `<monitor>` says. Raises: DroError."""
        if command.command in ("SET_INTERVAL", "CLEAR_INTERVAL"):
            self._ordered_s = int(command.data or 0)
            self._monitor_ns = 0
            self._configure(time.monotonic_ns())
            self._keep()
        elif (monitor := self._monitor) is not None:
            if command.command == "SNAP":
                self._messages = 0
            self._publish(monitor, command)

    def _keep(self) -> None:
        """Keep what requests have changed for the next process."""
        with contextlib.suppress(OSError):  # no memory: then it holds for this process alone
            self._kept.put(json.dumps({MONITOR: self._ordered_s, DAEMON: self._intervals.ordered()}).encode())

    def _all(self, group: str) -> list[DueGroup]:
        return self._intervals.snapshot(group, "")

    def _last(self) -> None:
        if (monitor := self._monitor) is not None:
            self._publish(monitor)
        if self._daemon_monitor is not None:
            self._daemon(self._intervals.snapshot("", ""))

    # samples

    @contextlib.contextmanager
    def _sample(self) -> Iterator[tuple[KnownDros, Pages]]:
        known = self._watch.look()
        with contextlib.closing(Pages(Path(known.status.shm))) as pages:
            yield known, pages

    def _publish(self, monitor: MonitorConfig, only: MonitorCommand = EVERYTHING) -> None:
        """Send what `<monitor>` says, a packet for each object that is asked for. Raises: DroError."""
        with self._sample() as (known, pages):
            packets: list[LibraryStats | DroStats] = list(self._library(known))
            if monitor.format_module == "pb":
                made = self._message(known, pages)
                if self._messages % REPEATED == 0:
                    self._add_configs(made, known)
                self._messages += 1
                sender = self._sender(known, known.status.name, int(known.status.node_id))
                packets.append(DroStats(sender, made))
        packets = [one for one in packets if _is_meant(one, only)]
        form = monitor.format_module
        self._put([Outgoing(MONITOR, form, encode(one, MODULES[form], monitor.separator)) for one in packets])

    def _message(self, known: KnownDros, pages: Pages) -> Any:  # noqa: ANN401
        return dro_message(known, pages, {peer.name for peer in self._config.peers if peer.udp is not None})

    def _sender(self, known: KnownDros, application: str, object_id: int) -> MonitorSender:
        return MonitorSender(int(time.time()), application, self._host(), known.status.pid, object_id)

    def _library(self, known: KnownDros) -> Iterator[LibraryStats]:
        """Yield what the contexts of each portal have counted."""
        for worker in known.status.workers:
            if worker.is_portal:
                path = Path(known.status.shm) / f"{LIBRARY}.{worker.index}"
                rows = read_library(path) if path.exists() else []
                for row in rows:
                    sender = replace(
                        self._sender(known, f"Gateway_Portal_{worker.name}_{row.part}", row.object_id),
                        is_mim=row.is_mim,
                        context_instance=row.context_instance,
                        domain_id=row.domain_id,
                    )
                    yield LibraryStats(sender, row.kind, row.source, row.values)

    def _add_configs(self, made: Any, known: KnownDros) -> None:  # noqa: ANN401
        made.configs.gateway.config_data = self._config_text(known)
        for index, name, portal_type in portal_list(known):
            portal = made.configs.portals.add()
            portal.portal_index, portal.portal_name, portal.portal_type = index, name, portal_type

    def _config_text(self, known: KnownDros) -> str:
        """Return the configuration in force, secrets hidden. Raises: DroError."""
        if self._text[0] != known.status.config_loaded:
            told = self._watch.asker.ask(
                lambda client: client.ask(ConfigRecord, "config", within_s=CONFIG_LIMIT_S, defaults=False)
            )
            self._text = known.status.config_loaded, told.text
        return self._text[1]

    # the daemon, in binary form

    def _daemon(self, due: Sequence[DueGroup]) -> None:
        """Send these groups, of what is not forced only what has changed. Raises: DroError."""
        if not due or self._daemon_monitor is None:
            return
        with self._sample() as (known, pages):
            made = self._message(known, pages)
            found = [message for one in due for message in self._of_group(one, known, made)]
        self._put([Outgoing(DAEMON, "binary", message) for message in found])

    def _of_group(self, due: DueGroup, known: KnownDros, made: Any) -> Iterator[bytes]:  # noqa: ANN401
        time_ns = time.time_ns()
        if due.group == GATEWAY_CONFIG:
            yield binary.gateway_config(self._config_text(known), time_ns)
        elif due.group == PORTAL_CONFIG:
            yield from self._portal_config(due.portal, known, time_ns)
        else:
            portal = due.portal if due.group == PORTAL_STATS else None
            messages = binary.binary_messages(made, due.group, time_ns=time_ns, portal=portal)
            yield from self._changed(messages, due)

    def _changed(self, messages: Sequence[tuple[object, bytes]], due: DueGroup) -> Iterator[bytes]:
        """Leave out what was sent before; another DRO and its neighbours go together."""
        together: list[tuple[list[bytes], bool]] = []
        sent = self._sent  # another thread may put a new one in its place
        for key, message in messages:
            body = bytearray(message[binary.HEADER_BYTES :])
            kind = binary.type_of(message)
            if kind == binary.RM_OTHERGW:
                body[_AGE] = bytes(8)
            content = bytes(body)
            is_new = sent.get(key) != content
            sent[key] = content
            if kind == binary.RM_OTHERGW_NBR and together:
                told, was_new = together.pop()
                together.append(([*told, message], was_new or is_new))
            else:
                together.append(([message], is_new))
        if due.group == TOPOLOGY:  # what is not there any more may come back
            kept = {key for key, _ in messages}
            for key in [k for k in sent if isinstance(k, tuple) and k[0] == TOPOLOGY and k not in kept]:
                del sent[key]
        for told, is_new in together:
            if is_new or due.is_forced:
                yield from told

    def _portal_config(self, name: str, known: KnownDros, time_ns: int) -> Iterator[bytes]:
        place = next(((n, kind) for n, portal, kind in portal_list(known) if portal == name), None)
        part = next((p for p in self._config.all_portals if p.name == name), None)
        if place is None or part is None:
            return
        index, portal_type = place
        sending, receiving = part.sending.context(), part.receiving.context()
        sets = [("source context", sending, "context"), ("receiver context", receiving, "context")]
        if not portal_type:
            sets += [("source", sending, SOURCE), ("receiver", receiving, RECEIVER),
                     ("wildcard receiver", receiving, WILDCARD_RECEIVER)]  # fmt: skip
        sets.append(("event queue", part.um, "event_queue"))
        for what, options, scope in sets:
            yield binary.portal_config(index, portal_type, name, what, option_values(options, scope), time_ns)


def _is_meant(stats: LibraryStats | DroStats, command: MonitorCommand) -> bool:
    """Say whether a control message is for that object."""
    if command.application not in ("", stats.sender.application):
        return False
    if isinstance(stats, DroStats):
        return command.node_type in ("ALL_NODES", "GATEWAY")
    return command.node_type == "ALL_NODES" or _KINDS.get(command.node_type) == stats.kind
