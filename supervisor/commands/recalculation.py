"""`recalculate` on the admin socket: passed on to the route manager, which logs and does it."""

from __future__ import annotations

from dro.bus.messages import Recalculate, Role
from dro.config.dro_xml.model import DroConfig
from dro.errors import RefusedError
from supervisor.admin.server import Arguments, Reply
from supervisor.parent.parent import Parent
from supervisor.parent.workers import WorkerState


def serve_recalculation(parent: Parent[DroConfig]) -> None:
    def answer(arguments: Arguments, reply: Reply) -> None:
        arguments.done()
        for worker in parent.workers:
            if worker.spec.role is Role.ROUTE_MANAGER:
                if worker.state is not WorkerState.READY:
                    raise RefusedError(f"{worker.name} is {worker.state.value}", remedy="try again when it is ready")
                parent.processes.send(worker, Recalculate())
        reply.ok({})

    parent.admin.add("recalculate", answer)
