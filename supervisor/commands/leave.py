"""`drain-all` on the admin socket: the DRO leaves its network without losing a message, and ends.

First the route manager raises the costs of this DRO, so that routes take other paths where there are any. When all DROs
have calculated, and what they keep of the routes before is forgotten (`portals.decisions.routes`), or the limit of the
order is over, all portals are drained, and the DRO stops.

Guess: own design; the guide knows only the end of a DRO.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from dro.bus.messages import Leave, Role
from dro.clock import ms, s
from dro.config.dro_xml.model import DroConfig
from dro.errors import RefusedError
from dro.metrics.slots import Slot
from portals.decisions.routes import LONGER_NS, held_ns
from supervisor.admin.server import Arguments, Reply
from supervisor.admin.status import LeaveResult
from supervisor.commands.portal_counters import portals_status
from supervisor.commands.portals import MAX_DRAIN_S
from supervisor.parent.operations import DRAIN_LIMIT_MS, OperationOutcome
from supervisor.parent.parent import Parent
from supervisor.parent.workers import WorkerState

_LOOK_NS: Final = ms(100)
_LONGER_NS: Final = LONGER_NS + s(1)  # then the proxies of the routes before are gone everywhere
_ANSWER_NS: Final = ms(200)  # for the answer to leave before the DRO ends


class LeaveCommand:
    """See the module text. Registers itself with the parent's admin server."""

    def __init__(self, parent: Parent[DroConfig]) -> None:
        self._parent = parent
        parent.admin.add("drain-all", self._begin)

    def _begin(self, arguments: Arguments, reply: Reply) -> None:
        limit_s = arguments.number("limit_s", DRAIN_LIMIT_MS / 1000, minimum=0, maximum=MAX_DRAIN_S)
        arguments.done()
        parent = self._parent
        if busy := [worker.name for worker in parent.workers if worker.operation]:
            raise RefusedError(f"an order for {busy[0]} is under way", remedy="try again when it is done")
        parent.configuration.begin_change("drain --all", takes_portals=True)
        parent.routes_avoid = None
        for worker in parent.workers:
            if worker.spec.role is Role.ROUTE_MANAGER and worker.state is WorkerState.READY:
                parent.processes.send(worker, Leave())
        limit_ns = s(limit_s)
        self._wait(parent.loop.now_ns() + limit_ns, int(limit_s * 1000), reply)

    def _wait(self, until_ns: int, limit_ms: int, reply: Reply) -> None:
        """Wait until routes avoid this DRO, or for the limit, then drain its portals."""
        loop, avoid = self._parent.loop, self._parent.routes_avoid
        if self._parent.is_stopping:
            reply.fail(RefusedError("the DRO is stopping"))
        elif avoid is not None:
            after_ns = min(held_ns(self._topics()), ms(limit_ms)) + _LONGER_NS
            loop.call_later(after_ns, lambda: self._drain(avoid.paths, limit_ms, reply))
        elif loop.now_ns() >= until_ns:
            self._drain(-1, limit_ms, reply)
        else:
            loop.call_later(_LOOK_NS, lambda: self._wait(until_ns, limit_ms, reply))

    def _topics(self) -> int:
        """Count topics that other DROs may move to other ways: as many as this one carries."""
        portals = portals_status(self._parent).portals
        return sum(portal[slot] for portal in portals for slot in (Slot.PROXY_SOURCES, Slot.PROXY_RECEIVERS))

    def _drain(self, paths: int, limit_ms: int, reply: Reply) -> None:
        parent, outcomes = self._parent, list[OperationOutcome]()
        if parent.is_stopping:
            reply.fail(RefusedError("the DRO is stopping"))
            return
        notes = ["routes did not avoid this DRO in time"] if paths < 0 else []
        portals = [w for w in parent.workers if w.spec.is_portal and not w.is_resting]

        def on_done(outcome: OperationOutcome) -> None:
            outcomes.append(outcome)
            if len(outcomes) < len(portals):
                return
            problems = [f"{o.worker}: {o.problem or o.note}" for o in outcomes if o.problem or o.note]
            drained = tuple(sorted(o.worker for o in outcomes if o.is_ok))
            reply.ok(asdict(LeaveResult(paths, drained, (*notes, *problems))))
            parent.loop.call_later(_ANSWER_NS, parent.stop)

        for portal in portals:
            parent.operations.drain(portal.name, on_done, limit_ms=limit_ms)
        if not portals:
            reply.ok(asdict(LeaveResult(paths, (), tuple(notes))))
            parent.loop.call_later(_ANSWER_NS, parent.stop)
