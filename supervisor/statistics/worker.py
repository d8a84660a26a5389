"""Main function of the statistics worker: sends what a thread of it samples, and answers control requests."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from dro.bus.actor import WorkerContext
from dro.bus.worker_guards import start_thread
from dro.clock import ms, s
from dro.config.dro_xml.model import DroConfig
from dro.errors import DroError
from dro.log.events import LogEvent
from dro.metrics.slots import WorkerSlot as Slot
from supervisor.samples.watch import DroObserver, first_status

if TYPE_CHECKING:
    from dro.um.message.events import Data
    from supervisor.statistics.publisher import Publisher
    from supervisor.statistics.sampling import Outgoing

Carrier = tuple[str, object]
NICE: Final = 5
"""Lets portals come first where processors are scarce."""
AGAIN_NS: Final = s(5)
"""Between two attempts to open what could not be had."""
TURN_NS: Final = ms(10)
TURN_BYTES: Final = 32 << 10
"""Sent at once: sessions have room for so much, so that no receiver that reads misses any."""
LEAVE_NS: Final = s(1)
"""How long the last messages are given to leave, for receivers that take them."""
MAX_WAITING: Final = 16 << 20
"""Bytes of messages that wait while receivers do not take what was sent before; what comes then is dropped."""
FAILURES: Final = {
    "csv": Slot.PUBLISH_FAILURES_CSV, "pb": Slot.PUBLISH_FAILURES_PB, "binary": Slot.PUBLISH_FAILURES_BINARY,
}  # fmt: skip


def run_statistics(ctx: WorkerContext, config: DroConfig) -> None:
    """Publish the statistics of a DRO until it is told to end."""
    os.nice(NICE)
    worker = StatisticsWorker(ctx, config)
    worker.start()
    ctx.ready()
    ctx.run()
    worker.close()


class StatisticsWorker:
    """Owns what messages leave by, and the thread that makes them."""

    def __init__(self, ctx: WorkerContext, config: DroConfig) -> None:
        from supervisor.statistics.requests import Requests, Rights
        from supervisor.statistics.sampling import Sampling

        self._ctx, self._config = ctx, config
        self._publishers: dict[str, Publisher] = {}
        self._waiting: deque[Outgoing] = deque()
        self._waiting_bytes = 0
        self._is_sending = self._is_failing = False
        self._leave_ns = 0  # until when the last messages may leave; 0 while there are more to come
        self._host = "0.0.0.0"
        self._portals = [portal.name for portal in config.all_portals]
        self._rights = Rights(snapshots=False, changes=False)
        self._take_rights()
        self._requests = Requests(
            ctx.counters, ctx.loop.now_ns, ctx.log, ctx.limited, lambda request: self._sampling.order(request)
        )
        self._open_all()
        watch = DroObserver(ctx.run_dir, first_status(ctx, config))
        self._sampling = Sampling(watch, config, ctx.kept, lambda: self._host, self._put, self._tell)

    def start(self) -> None:
        """Begin to take samples."""
        self._ctx.on_stop = self._sampling.stop
        self._ctx.on_reconfigure = self._on_reconfigure
        start_thread(self._run)

    def close(self) -> None:
        for publisher in self._publishers.values():
            publisher.close()
        self._publishers.clear()

    def _open_all(self) -> None:
        """Open what is configured and not open; what cannot be had is tried again, and keeps nothing else waiting."""
        is_whole = True
        for kind in _carriers(self._config).keys() - self._publishers.keys():
            try:
                self._open(kind)
            except DroError as e:
                is_whole = False
                self._ctx.limited(LogEvent.STATISTICS_NOT_OPEN, extra={"element": f"<{kind}>", "reason": str(e)})
        if not is_whole:
            self._ctx.loop.call_later(AGAIN_NS, self._open_all)

    def _open(self, kind: str) -> None:
        """Open the context or socket of `<monitor>` or `<daemon-monitor>`. Raises: ResourceError, ConfigError."""
        from supervisor.statistics.publisher import UdpPublisher, UmPublisher
        from supervisor.statistics.sampling import MONITOR

        daemon, log, loop = self._config.daemon, self._ctx.log, self._ctx.loop
        monitor, one = daemon.monitor, daemon.daemon_monitor
        made: Publisher
        if kind == MONITOR and monitor is not None:
            made = (
                UdpPublisher(monitor.udp)
                if monitor.udp is not None
                else UmPublisher(loop, monitor.um, monitor.topic, self._on_command)
            )
            extra: dict[str, object] = {"interval_s": monitor.interval_s, "format": monitor.format_module}
            extra |= {"transport": monitor.transport_module, "topic": made.topic, "target": made.target}
            log.info(LogEvent.STATISTICS_BEGIN, extra=extra)
        elif one is not None:
            made = UmPublisher(loop, one.um, one.topic, self._on_request)
            if not one.lbm_config:
                log.info(LogEvent.STATISTICS_DEFAULTS)
            log.info(LogEvent.DAEMON_STATISTICS_BEGIN, extra={"topic": made.topic, "target": made.target})
        self._publishers[kind], self._host = made, made.host

    def _on_reconfigure(self, config: object) -> None:
        """Take over what changes: what is as before goes on. Raises: DroError; then all is as it was."""
        assert isinstance(config, DroConfig)
        former, before, after = self._config, _carriers(self._config), _carriers(config)
        changed = [kind for kind in {**before, **after} if before.get(kind) != after.get(kind)]
        self._config = config
        try:
            for kind in changed:
                self._change(kind, before.get(kind), after.get(kind))
        except DroError:
            self._config = former
            for kind in changed:
                self._close(kind)
            self._open_all()
            raise
        self._take_rights()
        self._portals = [portal.name for portal in config.all_portals]
        self._sampling.change(config)

    def _change(self, kind: str, before: Carrier | None, after: Carrier | None) -> None:
        """Go over to another topic, or close and open. Raises: DroError."""
        publisher = self._publishers.get(kind)
        if publisher is not None and before is not None and after is not None and before[1] == after[1]:
            publisher.change_topic(after[0])
            return
        self._close(kind)
        if after is not None:
            self._open(kind)

    def _close(self, kind: str) -> None:
        if (publisher := self._publishers.pop(kind, None)) is not None:
            publisher.close()

    def _take_rights(self) -> None:
        from supervisor.statistics.requests import Rights

        one = self._config.daemon.daemon_monitor
        self._rights = Rights(one is not None and one.answers_snapshots, one is not None and one.obeys_changes)

    def _on_request(self, request: Data) -> None:
        self._requests.answer(request, lambda data: self._rights.read(data, self._portals))

    def _on_command(self, request: Data) -> None:
        from supervisor.statistics.requests import read_command

        self._requests.answer(request, read_command)

    # from the thread

    def _run(self) -> None:
        try:
            self._sampling.run()
        finally:
            self._ctx.loop.call_soon_threadsafe(self._end)

    def _put(self, messages: Sequence[Outgoing]) -> None:
        self._ctx.loop.call_soon_threadsafe(lambda: self._take(messages))

    def _tell(self, error: DroError | None) -> None:
        """Log once what fails; counters lose nothing by it."""
        if error is not None and not self._is_failing:
            self._ctx.log.error(LogEvent.STATISTICS_NOT_SAMPLED, extra={"reason": str(error)})
        self._is_failing = error is not None

    # on the loop

    def _take(self, messages: Sequence[Outgoing]) -> None:
        for one in messages:
            if self._waiting_bytes + len(one.message) > MAX_WAITING:
                self._fail(one, f"{MAX_WAITING} bytes wait already")
                continue
            self._waiting.append(one)
            self._waiting_bytes += len(one.message)
        if not self._is_sending:
            self._is_sending = True
            self._send()

    def _send(self) -> None:
        """Send a piece of what waits, and go on a moment later."""
        sent = 0
        while self._waiting and sent < TURN_BYTES:
            one = self._waiting[0]
            publisher = self._publishers.get(one.to)
            if publisher is not None and publisher.is_blocked:
                break
            self._waiting.popleft()
            self._waiting_bytes -= len(one.message)
            sent += len(one.message)
            if publisher is not None:  # else it was switched off meanwhile
                problem = publisher.send(one.message)
                if problem:
                    self._fail(one, problem)
                else:
                    self._ctx.counters.add(Slot.STATISTICS_PUBLISHED, 1)
        self._is_sending = bool(self._waiting)
        if self._is_sending:
            self._ctx.loop.call_later(TURN_NS, self._send)

    def _fail(self, one: Outgoing, reason: str) -> None:
        self._ctx.counters.add(FAILURES[one.form], 1)
        self._sampling.forget_sent()
        self._ctx.limited(LogEvent.STATISTICS_NOT_SENT, extra={"format": one.form, "reason": reason})

    def _end(self) -> None:
        """Wait until the last messages have left, for who takes them."""
        now_ns = self._ctx.loop.now_ns()
        self._leave_ns = self._leave_ns or now_ns + LEAVE_NS
        is_out = not self._waiting and all(publisher.has_left for publisher in self._publishers.values())
        if now_ns < self._leave_ns and not is_out:
            self._ctx.loop.call_later(TURN_NS, self._end)
            return
        self._ctx.finish()


def _carriers(config: DroConfig) -> dict[str, Carrier]:
    """Return topic and all else that decides on contexts and sockets, of the elements that are in use."""
    monitor, one = config.daemon.monitor, config.daemon.daemon_monitor
    found: dict[str, Carrier] = {}
    if monitor is not None and monitor.interval_s and not monitor.is_held:
        found["monitor"] = monitor.topic, (monitor.udp, monitor.um)
    if one is not None:
        found["daemon-monitor"] = one.topic, one.um
    return found
