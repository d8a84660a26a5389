"""Main function of the monitor worker: the loop of its control socket inside asyncio, and the web server.

What it is made of is imported here, after the fork, so that neither parent nor portals carry it.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final

from dro.bus.actor import WorkerContext
from dro.clock import NS_PER_S
from dro.config.dro_xml.model import DroConfig, WebMonitorConfig
from dro.loop import Loop

if TYPE_CHECKING:
    from supervisor.monitor.server import WebServer

NICE: Final = 5
"""Where processors are scarce, portals come first."""
TURN_S: Final = 0.5
"""Between two turns of the worker's loop that neither a descriptor nor a timer asks for: a timer that code of asyncio
adds may be so much late. Each turn costs 0.3 ms."""


def run_monitor(ctx: WorkerContext, where: WebMonitorConfig, config: DroConfig) -> None:
    """Be the monitor of a DRO until it is told to end."""
    from supervisor.monitor.server import WebServer

    os.nice(NICE)
    asyncio.run(_run(ctx, WebServer(ctx, where, config)))


async def _run(ctx: WorkerContext, server: WebServer) -> None:
    is_over = asyncio.Event()
    ctx.on_stop = is_over.set
    aio, loop = asyncio.get_running_loop(), ctx.loop
    aio.add_reader(loop.fileno(), loop.run_once, 0)
    ctx.ready()
    serving, stopping = asyncio.create_task(server.run()), asyncio.create_task(is_over.wait())
    while not is_over.is_set():
        loop.run_once(0)
        await asyncio.wait((stopping,), timeout=_pause_s(loop))
    await server.close()
    await serving
    aio.remove_reader(loop.fileno())
    ctx.finish()


def _pause_s(loop: Loop) -> float:
    """Return the time until the next timer of the worker's loop, or less."""
    due_ns = loop.next_deadline()
    return TURN_S if due_ns is None else min(TURN_S, max(0, due_ns - loop.now_ns()) / NS_PER_S)
