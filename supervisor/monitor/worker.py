"""Main function of the monitor worker: the loop of its control socket inside asyncio, and the web server.

What it is made of is imported here, after the fork, so that neither parent nor portals carry it.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from dro.bus.actor import WorkerContext
from dro.config.dro_xml.model import DroConfig, WebMonitorConfig

if TYPE_CHECKING:
    from supervisor.monitor.server import WebServer

NICE = 5
"""Where processors are scarce, portals come first."""
TURN_S = 0.1
"""Between two turns of the worker's loop that no descriptor asks for: its timers may be so much late."""


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
    serving = asyncio.create_task(server.run())
    while not is_over.is_set():
        loop.run_once(0)
        try:
            await asyncio.wait_for(is_over.wait(), TURN_S)
        except TimeoutError:
            continue
    await server.close()
    await serving
    aio.remove_reader(loop.fileno())
    ctx.finish()
