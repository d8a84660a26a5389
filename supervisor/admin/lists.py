"""Lists of a running DRO for its clients, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dro.bus.codec import from_json
from dro.bus.listing import LISTS, PEERS, PORTAL_LISTS
from dro.errors import DecodeError
from dro.metrics.table import PEER
from supervisor.admin.client import Client, UnreachableError
from supervisor.admin.status import ROUTE_MANAGER, WORKING, DroStatus


def holders(status: DroStatus, what: str, portal: str = "") -> tuple[list[str], list[str]]:
    """Name the workers that can be asked for a list (`portal` alone if given), and say why others cannot."""
    role = PEER if what == PEERS else ROUTE_MANAGER
    able, problems = [], []
    for worker in status.workers:
        has_list = worker.is_portal if what in PORTAL_LISTS else worker.role == role
        if not has_list or portal not in ("", worker.name):
            continue
        if worker.state in WORKING:
            able.append(worker.name)
        else:
            problems.append(f"{worker.name} is {worker.state}")
    return able, problems


def rows_of(client: Client, what: str, worker: str, text: str) -> Iterator[Any]:
    """Ask for the rows of one worker, page by page. Raises: CommandError, UnreachableError."""
    cursor = 0
    while True:
        page = client.request("list", what=what, worker=worker, topic=text, cursor=cursor)
        try:
            yield from [from_json(LISTS[what], row) for row in page["rows"]]
            cursor = int(page["cursor"])
        except (KeyError, TypeError, DecodeError) as e:
            raise UnreachableError(f"the answer is of another release: {e}") from e
        if not cursor:
            return
