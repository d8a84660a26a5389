"""Writes the files of a store in a thread of its own, so that one that is slow or away delays no sample."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from dro.bus.worker_guards import start_thread
from dro.errors import DroError, ResourceError
from supervisor.history.store import Store

TEND_S: Final = 1.0
CLOSE_S: Final = 60.0
REMOTE_CLOSE_S: Final = 3.0
"""How long the end waits for another store; the journal has what is not in it then."""


class StoreThread:
    """Writes what others commit; begins at once, with what a killed one has left."""

    def __init__(self, store: Store, attempt: Callable[[Callable[[], object]], object]) -> None:
        """`attempt` does what it is given, and tells when that raises ResourceError; in the thread. Raises: OSError."""
        self._store, self._attempt = store, attempt
        self._refusal: ResourceError | None = None
        self._is_checked, self._is_over = threading.Event(), threading.Event()
        self._thread = start_thread(self._run)

    def check(self, limit_s: float) -> None:
        """Raise ResourceError where there is no such store, as far as that is known within `limit_s`."""
        self._is_checked.wait(limit_s)
        if self._refusal is not None:
            raise self._refusal

    def close(self) -> str:
        """Write what is left, and use the store no more; say what is not written, which the next writer of the name
        finishes."""
        self._is_over.set()
        self._thread.join(REMOTE_CLOSE_S if self._store.is_remote else CLOSE_S)
        if self._thread.is_alive() or self._store.waiting():
            return f"not all is in {self._store.shown}: {self._store.journals} has the rest, for the next start"
        return ""

    def _run(self) -> None:
        try:
            self._store.check()
        except ResourceError as e:
            self._refusal = e
        self._is_checked.set()
        self._try(self._store.roll)
        while not self._is_over.wait(TEND_S):
            self._try(self._store.tend)
        self._try(self._store.close)

    def _try(self, work: Callable[[], object]) -> None:
        def told() -> object:
            try:
                return work()
            except DroError:
                raise
            except Exception as e:  # a file that nobody foresaw must not end the thread in silence
                raise ResourceError(f"cannot write files of the history at {self._store.shown}: {e!r}") from e

        self._attempt(told)
