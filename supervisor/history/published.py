"""Takes statistics that applications and DROs publish over UM into a history, as an import of them would.

The thread of a UM context puts packets into a queue, another one brings them in: a disk that is slow or full makes
packets wait, and what exceeds `MAX_WAITING` is dropped and counted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from dro.errors import DecodeError, DroError
from dro.lbmmon.packet import decode
from dro.lbmmon.records import Unread
from dro.um.blocking_api import BlockingContext
from dro.um.message.client_config import Config
from dro.um.message.events import Data, Event
from supervisor.history.importer import BATCH, Importer
from supervisor.history.store import Store

WRITER: Final = "published"
MAX_WAITING: Final = 32 << 20
"""Bytes of packets."""
TURN_S: Final = 1.0
"""Between two attempts to write, and two looks whether a Parquet file is due."""
TELL_S: Final = 60.0
_log: Final = logging.getLogger("tnwgd-history")


class PublishedStatistics:
    """Owns the context and the thread; both end with `with`. Raises: ResourceError, ConfigError."""

    def __init__(self, store: Store, config: Config, topic: str, *, max_waiting: int = MAX_WAITING) -> None:
        self._importer = Importer(store, self._on_unread, WRITER)
        self._max_waiting = max_waiting
        self._queue: deque[bytes] = deque()
        self._waiting = self._lost = self._dropped = 0
        self._why = ""
        self._told: tuple[int, ...] = ()
        self._told_s = 0.0
        self._changed = threading.Condition()
        self._is_ending = False
        self._context = BlockingContext(config)
        self._thread = threading.Thread(target=self._run, name="published", daemon=True)
        self._receiver = self._context.receiver(topic, on_event=self._on_event)

    def figures(self) -> Mapping[str, int]:
        """Count messages, for the metrics of the program."""
        counts = dict(self._importer.counts)
        unread = counts.pop("unread", 0)
        return {
            "published_messages_total": sum(counts.values()),
            "published_unread_total": unread,
            "published_dropped_total": self._dropped,
            "published_lost_total": self._lost,
        }

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        """Bring in what waits, in one attempt."""
        self._receiver.close()
        self._context.close()
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        self._thread.join()

    # on the thread of the context

    def _on_event(self, event: Event) -> None:
        if not isinstance(event, Data):
            self._lost += type(event).__name__.startswith("Loss")
            return
        with self._changed:
            if self._waiting + len(event.data) > self._max_waiting:
                self._dropped += 1
            else:
                self._queue.append(event.data)
                self._waiting += len(event.data)
                self._changed.notify()

    # on the other one

    def _run(self) -> None:
        while not (self._is_ending and not self._queue):
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._is_ending, TURN_S)
                packets = [self._queue.popleft() for _ in range(min(len(self._queue), BATCH))]
            for packet in packets:
                self._read(packet)
            if packets:
                self._write()
            with self._changed:
                self._waiting -= sum(map(len, packets))
            self._tell()

    def _read(self, packet: bytes) -> None:
        try:
            self._importer.take([message for message in decode(packet) if not isinstance(message, Unread)])
        except DecodeError as e:
            self._importer.unread(str(e))
        except Exception as e:  # what a stranger sends ends nothing
            _log.exception("a packet of statistics")
            self._importer.unread(repr(e))

    def _write(self) -> None:
        """Write what was taken, as often as it takes, until the program ends."""
        told = ""
        while True:
            try:
                self._importer.commit()
                return
            except (OSError, DroError) as e:
                if told != str(e):
                    told = str(e)
                    _log.error("%s", e)
                with self._changed:
                    if self._changed.wait_for(lambda: self._is_ending, TURN_S):
                        self._queue.clear()
                        return

    def _on_unread(self, what: str) -> None:
        self._why = what

    def _tell(self) -> None:
        """Say now and then what was lost."""
        counts = (self._importer.counts["unread"], self._dropped, self._lost)
        if any(counts) and counts != self._told and time.monotonic() - self._told_s >= TELL_S:
            self._told, self._told_s = counts, time.monotonic()
            _log.warning(
                "statistics over UM so far: %d could not be read (the last: %s), %d dropped for a slow disk, %d lost",
                counts[0],
                self._why or "none",
                *counts[1:],
            )
