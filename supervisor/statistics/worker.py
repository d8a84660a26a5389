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
    from dro.um.message.requests import UnicastRequest
    from supervisor.statistics.publisher import Publisher
    from supervisor.statistics.sampling import Outgoing

NICE: Final = 5
"""Lets portals come first where processors are scarce."""
TURN_NS: Final = ms(10)
TURN_BYTES: Final = 32 << 10
"""Sent at once: sessions have room for so much, so that no receiver that reads misses any."""
LEAVE_NS: Final = s(2)
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
        """Raises: ResourceError, ConfigError when a context or socket cannot be had."""
        from supervisor.statistics.requests import Requests, Rights
        from supervisor.statistics.sampling import Sampling

        self._ctx, self._config = ctx, config
        self._publishers: dict[str, Publisher] = {}
        self._waiting: deque[Outgoing] = deque()
        self._waiting_bytes = 0
        self._is_sending = self._is_failing = False
        self._leave_ns = 0  # until when the last messages may leave; 0 while there are more to come
        self._portals = [portal.name for portal in config.all_portals]
        self._rights = Rights(snapshots=False, changes=False)
        self._requests = Requests(
            ctx.counters, ctx.loop.now_ns, ctx.log, ctx.limited, lambda request: self._sampling.order(request)
        )
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        watch = DroObserver(ctx.run_dir, first_status(ctx, config))
        self._host = next((p.host for p in self._publishers.values()), "0.0.0.0")
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

    def _open(self) -> None:
        """Open what is configured. Raises: ResourceError, ConfigError."""
        from supervisor.statistics.publisher import UdpPublisher, UmPublisher
        from supervisor.statistics.requests import Rights
        from supervisor.statistics.sampling import DAEMON, MONITOR

        daemon, log = self._config.daemon, self._ctx.log
        if (monitor := daemon.monitor) is not None and monitor.interval_s and not monitor.is_held:
            udp, um = monitor.udp, monitor.um
            loop = self._ctx.loop
            target = ""
            if udp is not None:
                self._publishers[MONITOR] = UdpPublisher(udp)
            else:
                publisher = UmPublisher(loop, um, monitor.topic, self._on_command)
                self._publishers[MONITOR], target = publisher, publisher.context.request_target
            extra = {
                "interval_s": monitor.interval_s,
                "format": monitor.format_module,
                "transport": monitor.transport_module,
                "topic": "" if udp is not None else monitor.topic,
                "target": target or "none",
            }
            log.info(LogEvent.STATISTICS_BEGIN, extra=extra)
        if (one := daemon.daemon_monitor) is not None:
            self._rights = Rights(one.answers_snapshots, one.obeys_changes)
            made = UmPublisher(self._ctx.loop, one.um, one.topic, self._on_request)
            self._publishers[DAEMON] = made
            if not one.lbm_config:
                log.info(LogEvent.STATISTICS_DEFAULTS)
            extra = {"topic": one.topic, "target": made.context.request_target or "none"}
            log.info(LogEvent.DAEMON_STATISTICS_BEGIN, extra=extra)

    def _on_reconfigure(self, config: object) -> None:
        """Take over what changes: sources that are as before stay. Raises: DroError; nothing has changed then."""
        assert isinstance(config, DroConfig)
        before, former = self._config, self._publishers
        self._config, self._publishers = config, {}
        try:
            if _carriers(before) == _carriers(config):
                self._publishers = former
            else:
                self._open()
                for publisher in former.values():
                    publisher.close()
        except DroError:
            self.close()
            self._config, self._publishers = before, former
            raise
        self._take_rights()
        self._portals = [portal.name for portal in config.all_portals]
        self._sampling.change(config)

    def _take_rights(self) -> None:
        from supervisor.statistics.requests import Rights

        one = self._config.daemon.daemon_monitor
        self._rights = Rights(one is not None and one.answers_snapshots, one is not None and one.obeys_changes)

    def _on_request(self, request: UnicastRequest) -> None:
        self._requests.answer(request, lambda data: self._rights.read(data, self._portals))

    def _on_command(self, request: UnicastRequest) -> None:
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


def _carriers(config: DroConfig) -> object:
    """Return all that decides on contexts, sources and sockets."""
    monitor, daemon = config.daemon.monitor, config.daemon.daemon_monitor
    of_monitor = monitor and (monitor.interval_s > 0, monitor.is_held, monitor.udp, monitor.um, monitor.topic)
    return of_monitor, daemon and (daemon.topic, daemon.um)
