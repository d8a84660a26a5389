"""Writes samples of Prometheus series to a history, on the disk before it is said that they are kept."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from supervisor.history.series import BadSampleError, RemoteSample, SeriesRows
from supervisor.history.store import Store

_log: Final = logging.getLogger("tnwgd-history")


class SampleWriter:
    """Used by one thread at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rows = SeriesRows()
        self.written = self.bad = 0
        """Samples."""

    def keep(self, samples: Iterable[RemoteSample]) -> tuple[int, str]:
        """Keep what is right; how many samples, and what is wrong with the first other. Raises: ResourceError."""
        count, problem, foreign = 0, "", set(self._rows.foreign)
        for sent in samples:
            try:
                self._rows.add(sent.series, sent.ts_ms * 1000, sent.value)
                count += 1
            except BadSampleError as e:
                self.bad += 1
                problem = problem or str(e)
        if new := sorted(set(self._rows.foreign) - foreign):
            _log.info("not kept, as no DRO has them: %s", ", ".join(new))
        for table, dro, rows in self._rows.take():
            self._store.add(table, dro, rows)
        try:
            self._store.commit()
        except BaseException:
            self._store.forget()
            raise
        self.written += count
        return count, problem
