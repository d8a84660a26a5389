"""Datagrams that the former incarnation of the process has sent, read from its log when they are asked for."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from dro.errors import DecodeError
from dro.kept.log import LogRecord, SharedLog
from dro.sqn import ahead

Place = tuple[memoryview, int, int]
"""Buffer, offset, length."""


class FormerDatagrams:
    """Finds them by sequence number, while the log has them."""

    def __init__(self, log: SharedLog) -> None:
        self._after = log.after
        self._unread: Iterator[LogRecord] = log.newest_first()
        self._records: list[LogRecord] = []  # the newest first
        self._behind: list[int] = []  # of each, how far its first datagram lies before what followed then

    def find(self, sqn: int) -> Place | None:
        """Return where a datagram lies; None when there is none."""
        behind = ahead(self._after, sqn)
        try:
            while not self._behind or self._behind[-1] < behind:
                record = next(self._unread)
                if record.pieces:
                    self._records.append(record)
                    self._behind.append(ahead(self._after, record.first))
        except (StopIteration, DecodeError):
            return None
        record = self._records[bisect_right(self._behind, behind - 1)]
        number = ahead(sqn, record.first)
        if not 0 <= number < record.pieces:
            return None
        begin, end = record.place(number)
        return record.data, begin, end - begin
