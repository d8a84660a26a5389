"""Lists of a running DRO for its clients, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dro.bus.codec import from_json
from dro.bus.listing import LISTS
from dro.errors import DecodeError
from supervisor.admin.client import Client, UnreachableError


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
