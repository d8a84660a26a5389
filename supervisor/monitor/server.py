"""The web server of the monitor: its socket, the limits on clients, and the tasks beside it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Final, TypeVar, cast

import uvicorn

from dro.bus.actor import WorkerContext
from dro.command_line import version
from dro.config.dro_xml.model import DroConfig, WebMonitorConfig
from dro.log.events import LogEvent
from dro.log.to_monitor import EVENTS_SOCKET
from dro.metrics.slots import WorkerSlot as Slot
from dro.os_errors import remedy_of
from supervisor.monitor.answers.answers import Answers
from supervisor.monitor.answers.topics import TOPICS_VARIABLE, topics_wanted
from supervisor.monitor.app import make_app
from supervisor.monitor.guard import MAX_HEADERS, GuardedProtocol, HostGuard, Limits, full_names, own_names
from supervisor.monitor.known.events import Events
from supervisor.monitor.known.metrics import Metrics
from supervisor.monitor.orders import TOKENS_VARIABLE, Orders
from supervisor.samples.watch import Asker, DroObserver, first_status

AGAIN_S: Final = 2.0
"""Between two attempts to listen: the address may be free later, and forwarding goes on without."""
KEEP_ALIVE_S: Final = 30
REVISION_VARIABLE: Final = "DRO_REVISION"
_BACKLOG: Final = 128

T = TypeVar("T")


class WebServer:
    """Made after the fork; serves until `close`."""

    def __init__(self, ctx: WorkerContext, where: WebMonitorConfig, config: DroConfig) -> None:
        self._ctx = ctx
        self._where = where
        self._watch = DroObserver(ctx.run_dir, first_status(ctx, config))
        self._answers = Answers(lambda: self._watch.known, Asker(ctx.run_dir))
        self._server: _Server | None = None
        self._is_closing = False
        self._events = Events(ctx.run_dir / EVENTS_SOCKET, lambda: ctx.counters.add(Slot.MONITOR_EVENTS_MALFORMED))
        self.limits = Limits(
            lambda why: ctx.limited(LogEvent.MONITOR_CLIENT_DROPPED, key=why, extra={"reason": why}), self._on_failed
        )

    async def run(self) -> None:
        """Listen as soon as that is possible, and serve."""
        tasks = [asyncio.create_task(work) for work in (self._watch.run(), self._answers.look())]
        self._events.start()
        try:
            await self._watch.refresh()  # so that no counter falls when a monitor follows another
            sock = await self._listen()
            if sock is not None:
                await self._serve(sock)
        finally:
            self._events.close()
            for task in tasks:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def close(self) -> None:
        """Make `run` return soon."""
        self._is_closing = True
        if self._server is not None:
            self._server.should_exit = self._server.force_exit = True

    async def _listen(self) -> socket.socket | None:
        """Open the listening socket; None when closed meanwhile."""
        address = f"{self._where.interface or '*'}:{self._where.port}"
        while not self._is_closing:
            looking = apart(lambda: address_of(self._where))
            while not looking.done() and not self._is_closing:
                await asyncio.wait((looking,), timeout=AGAIN_S)
            if not looking.done():
                break
            try:
                sock = listening_socket(*looking.result())
            except OSError as e:
                extra = {"address": address, "reason": e.strerror or str(e), "remedy": remedy_of(e.errno)}
                self._ctx.limited(LogEvent.MONITOR_CANNOT_LISTEN, extra=extra)
                await asyncio.sleep(AGAIN_S)
            else:
                self._ctx.log.info(LogEvent.MONITOR_LISTENS, extra={"address": address})
                return sock
        return None

    async def _serve(self, sock: socket.socket) -> None:
        protocol = type("Protocol", (GuardedProtocol,), {"limits": self.limits})
        metrics = Metrics(version(), os.environ.get(REVISION_VARIABLE, ""))
        orders = Orders(self._ctx.run_dir, os.environ.get(TOKENS_VARIABLE, ""), self._on_order)
        app = make_app(self._watch, metrics, self.limits, self._events, self._answers, orders, self._topics())
        names = own_names()
        apart(full_names).add_done_callback(lambda found: names.update(found.result()))
        config = uvicorn.Config(
            HostGuard(app, names, self.limits), http=protocol, ws="none", lifespan="off", loop="none",
            log_config=None, access_log=False, server_header=False, timeout_keep_alive=KEEP_ALIVE_S,
            h11_max_incomplete_event_size=MAX_HEADERS,
        )  # fmt: skip
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # clients that break the protocol are theirs to mend
        self._server = _Server(config)
        await self._server.serve(sockets=[sock])

    def _topics(self) -> int:
        """Read how many topics may have metrics of their own."""
        try:
            return topics_wanted(os.environ.get(TOPICS_VARIABLE, ""))
        except ValueError as e:
            self._ctx.log.error(LogEvent.MONITOR_BAD_VARIABLE, extra={"variable": TOPICS_VARIABLE, "reason": str(e)})
            return 0

    def _on_failed(self, path: str, error: Exception) -> None:
        place = traceback.extract_tb(error.__traceback__)[-1:]
        where = f" ({place[0].filename}:{place[0].lineno})" if place else ""
        extra = {"path": path, "reason": f"{type(error).__name__}: {error}{where}"}
        self._ctx.limited(LogEvent.MONITOR_REQUEST_FAILED, key=type(error).__name__, extra=extra)

    def _on_order(self, event: dict[str, str]) -> None:
        if event["who"]:
            self._ctx.log.info(LogEvent.MONITOR_ORDER, extra=event)
        else:  # who has no token can send as many as wanted, each with another name
            self._ctx.limited(LogEvent.MONITOR_ORDER, key=event["result"], extra=event)


def apart(work: Callable[[], T]) -> asyncio.Future[T]:
    """Do work that may wait for minutes in a thread that neither the loop nor the end of the process waits for.

    An exception of the work is that of the future; OSError when no thread can be started.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: Exception | None) -> None:
        if error is None:
            future.set_result(cast(T, result))
        else:
            future.set_exception(error)

    def run() -> None:
        result = error = None
        try:
            result = work()
        except Exception as e:
            error = e
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(tell, result, error)

    try:
        threading.Thread(target=run, daemon=True, name="apart").start()
    except RuntimeError as e:
        future.set_exception(OSError(errno.EAGAIN, str(e)))
    return future


class _Server(uvicorn.Server):
    """Leaves signals to the worker."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listening_socket(family: socket.AddressFamily, address: tuple[object, ...]) -> socket.socket:
    """Open a listening socket. Raises: OSError."""
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def address_of(where: WebMonitorConfig) -> tuple[socket.AddressFamily, tuple[object, ...]]:
    """Family and address to listen on. Raises: OSError."""
    found = socket.getaddrinfo(where.interface or None, where.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return found[0], found[4]
