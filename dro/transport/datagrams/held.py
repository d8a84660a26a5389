"""Datagrams that wait for what the former process has lost: receivers behind a stream would take a gap for a loss.

Between a session that goes on and its first whole sequence of numbers, what comes is held back, and handed up in order
when nothing is missing any more, or after a limit in time or bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dro.clock import NS_PER_S
from dro.errors import DecodeError
from dro.sqn import ahead
from dro.transport.runs import FLAG_REPAIR, MINIMAL_BYTES, RunTable, read_messages

HOLD_NS: Final = NS_PER_S
HOLD_BYTES: Final = 16 << 20
_BATCH_BYTES: Final = 64 << 10


class HeldDatagrams:
    """Keeps those of one session."""

    def __init__(self) -> None:
        self._until_ns: int | None = None
        self._nbytes = 0
        self._datagrams: dict[int, tuple[bytes, int, bool]] = {}

    def keep(self, sqn: int, datagram: bytes, header: int, *, is_repair: bool, now_ns: int) -> None:
        """Keep a datagram, whose messages begin behind `header` bytes."""
        if self._until_ns is None:
            self._until_ns = now_ns + HOLD_NS
        self._nbytes += len(datagram)
        self._datagrams[sqn] = datagram, header, is_repair

    def is_over(self, missing: int, now_ns: int) -> bool:
        """Say whether it is time to hand up; `missing`: datagrams that are asked for."""
        until_ns = self._until_ns
        return until_ns is not None and (not missing or now_ns >= until_ns or self._nbytes > HOLD_BYTES)

    def batches(self) -> Iterator[tuple[memoryview, RunTable, int]]:
        """Hand out all in order: what lies together, its runs, and how many messages there are."""
        first = next(iter(self._datagrams), 0)
        ordered = sorted(self._datagrams, key=lambda sqn: ahead(sqn, first))
        buffer, table, messages = bytearray(), RunTable(), 0
        for sqn in ordered:
            datagram, header, is_repair = self._datagrams[sqn]
            if buffer and (len(buffer) > _BATCH_BYTES or table.room * MINIMAL_BYTES < len(datagram)):
                yield memoryview(buffer), table, messages
                buffer, table, messages = bytearray(), RunTable(), 0
            at = len(buffer)
            buffer += datagram
            rows = table.rows
            try:
                marks = FLAG_REPAIR if is_repair else 0
                end = at + len(datagram)
                with memoryview(buffer) as view:
                    messages += read_messages(view, at + header, end, min(header, 255), table, marks)
            except DecodeError:
                table.rows = rows
        if table.rows:
            yield memoryview(buffer), table, messages
