"""Other DROs of the same network on this host, over their admin sockets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from dro.errors import DroError
from supervisor.admin.client import Client, running_dros
from supervisor.admin.status import DroStatus
from supervisor.samples.watch import KnownDros

ASK_LIMIT_S: Final = 3.0
MAX_DROS: Final = 16
"""That are asked for one answer."""


@contextlib.contextmanager
def neighbours(known: KnownDros) -> Iterator[dict[str, Client]]:
    """Connect to those that the route manager knows of and that can be reached from here; by node id."""
    wanted = {row.node_id: row.dro for row in known.topology if not row.is_own}
    names = set(wanted.values())
    with contextlib.ExitStack() as stack:
        found: dict[str, Client] = {}
        candidates = [dro for dro in running_dros() if dro.name in names and dro.pid != known.status.pid]
        for dro in candidates[:MAX_DROS]:
            with contextlib.suppress(DroError):
                client = stack.enter_context(Client(dro.run_dir))
                node_id = client.ask(DroStatus, "status", within_s=ASK_LIMIT_S).node_id
                if node_id in wanted:
                    found[node_id] = client
        yield found
