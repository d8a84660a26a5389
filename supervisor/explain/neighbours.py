"""Which neighbours of a DRO are expected and not there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from dro.bus.listing import DEGRADED, PEERS, TOPOLOGY, PeerRow, TopologyRow
from dro.clock import duration
from dro.metrics.table import PEER
from supervisor.admin.client import Client, CommandError
from supervisor.admin.lists import holders, rows_of
from supervisor.admin.status import WORKING, DroStatus

_TOLD_S: Final = 10  # by then a companion has told its node id


@dataclass(frozen=True, slots=True)
class NeighbourProblem:
    """A neighbour that the configuration, or another DRO, speaks of, and that is not there."""

    portal: str
    what: str
    remedy: str

    def __str__(self) -> str:
        remedy = f"; {self.remedy}" if self.remedy else ""
        return f"{self.portal}: {self.what}{remedy}" if self.portal else f"{self.what}{remedy}"


def links(client: Client, status: DroStatus, portal: str = "") -> tuple[list[PeerRow], list[NeighbourProblem]]:
    """The rows of all peer portals that answer; of the others, why not. Raises: UnreachableError."""
    rows: list[PeerRow] = []
    problems = []
    for worker in status.workers:
        if worker.role != PEER or portal not in ("", worker.name):
            continue
        if worker.state not in WORKING:
            problems.append(NeighbourProblem(worker.name, f"is {worker.state}", ""))
            continue
        try:
            rows += rows_of(client, PEERS, worker.name, "")
        except CommandError as e:
            problems.append(NeighbourProblem(worker.name, str(e), ""))
    return rows, problems


def neighbour_problems(client: Client, status: DroStatus) -> list[NeighbourProblem]:
    """Everything that a DRO with peer portals expects and that is not there. Raises: UnreachableError."""
    if not any(worker.role == PEER for worker in status.workers):
        return []
    rows, problems = links(client, status)
    problems += absent_companions(rows)
    for worker in holders(status, TOPOLOGY)[0]:
        try:
            problems += one_sided_links(rows_of(client, TOPOLOGY, worker, ""))
        except CommandError as e:
            problems.append(NeighbourProblem(worker, str(e), ""))
    return problems


def absent_companions(rows: Iterable[PeerRow]) -> Iterator[NeighbourProblem]:
    for row in rows:
        if row.state == DEGRADED:
            yield NeighbourProblem(row.portal, f"its link is up and carries nothing: {row.error}", row.remedy)
        elif row.state != "up":
            yield NeighbourProblem(row.portal, f"no link for {duration(row.since_s)}: {row.error}", row.remedy)
        elif not row.node_id and row.since_s >= _TOLD_S:
            what = f"{row.dro} has told no node id on a link that is up for {duration(row.since_s)}"
            yield NeighbourProblem(
                row.portal, what, f"look at tnwgdctl status of {row.dro}: its route manager has to run"
            )


def one_sided_links(rows: Iterable[TopologyRow]) -> Iterator[NeighbourProblem]:
    """Links that nothing passes though their portal works."""
    for row in rows:
        if not row.remark or (row.is_own and not row.neighbour):  # the portal itself says it
            continue
        where = "" if row.is_own else f"{row.dro or row.node_id} has a link to {row.neighbour_name or row.neighbour}: "
        remedy = "start that DRO, or look at its tnwgdctl peers and topology"
        yield NeighbourProblem(row.portal, f"{where}{row.remark}", remedy)
