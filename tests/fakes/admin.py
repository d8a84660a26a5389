"""The admin socket of a DRO in the test's own process, as `tnwgdctl` uses it."""

from __future__ import annotations

import json
from typing import Any, cast

from dro.bus.codec import JsonObject
from dro.bus.messages import ListRows, Role, Rows
from supervisor.admin.client import Client, CommandError
from supervisor.admin.server import Arguments
from supervisor.admin.status import DroStatus, PortalsStatus, WorkerStatus
from supervisor.commands.explain import explain, query_of
from tests.builders.portal_status import idle
from tests.rigs.network import Dro

ROLES = {Role.ROUTE_MANAGER: "route manager", Role.ENDPOINT: "endpoint", Role.PEER: "peer"}


class FakeAdmin:
    """Answers what a running DRO would."""

    def __init__(self, dro: Dro) -> None:
        self._dro = dro
        self.states: dict[str, str] = {}
        """Of portals that are not ready, by name."""
        self.queued: dict[str, int] = {}
        """Bytes in the queue, by portal, of 100."""

    def ask(self, kind: type[Any], command: str, *, within_s: float = 0.0, **arguments: Any) -> Any:  # noqa: ANN401
        del kind, within_s
        status = self.status()
        if command == "status":
            return status
        if command == "portals":
            portals = [w for w in status.workers if w.role != ROLES[Role.ROUTE_MANAGER]]
            return PortalsStatus(
                0.0, tuple(idle(w.name, w.state, QUEUED_BYTES=self.queued.get(w.name, 0)) for w in portals)
            )
        assert command == "explain"
        return explain(self._dro.config, query_of(Arguments(arguments)))

    def status(self) -> DroStatus:
        workers = tuple(
            WorkerStatus(w.name, ROLES[w.role], w.index, self.states.get(w.name, "ready"), 1, 1, 0, 1.0, "")
            for w in self._dro.workers.values()
        )
        name = self._dro.config.daemon.name
        return DroStatus(name, "1", str(self._dro.node_id), 1, 1.0, "", 0.0, is_running=True, workers=workers)

    def request(self, command: str, **arguments: Any) -> JsonObject:  # noqa: ANN401 - as Client.request
        assert command == "list"
        worker = next(w for w in self._dro.workers.values() if w.name == arguments["worker"])
        question = ListRows(1, arguments["what"], arguments["topic"], arguments["cursor"])
        rows = cast(Rows, worker.told["on_list"](question))
        if rows.problem:
            raise CommandError({"kind": "refused", "what": rows.problem, "remedy": ""})
        return {"rows": json.loads(rows.rows), "cursor": rows.cursor}


def client_of(admin: FakeAdmin) -> Client:
    return cast(Client, admin)
