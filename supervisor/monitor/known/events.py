"""The log events of all processes of the DRO: received over a UNIX socket, the newest kept, and told to who listens."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dro.errors import ResourceError
from dro.log.lines import SEVERITIES
from dro.log.to_monitor import MAX_DATAGRAM, MAX_FIELD, MAX_TEXT
from dro.os_errors import remedy_of

KEPT: Final = 1000
MAX_LISTENERS: Final = 32
MAX_WAITING: Final = 256
"""Events that one listener may leave unread."""
_BATCH: Final = 64  # datagrams that are read at a time
_MAX_FIELDS: Final = 64

OTHER: Final = "other"
CATEGORIES: Final = ("topology", "interest", "drops", "blocked", "configuration", "portal", OTHER)
LEVELS: Final = {name: level for level, name in SEVERITIES.items()}

_CATEGORY_OF: Final = {
    "topology": "LINK_ RECALCULATION_ DRO_DISCOVERED DRO_TIMED_OUT NODE_ ROUTE ROUTES_ SIGNATURES_ NAMED_LINK_ HOTLINK_"
    " TOO_MANY_DROS DOMAIN_ FOREIGN_DOMAIN NEIGHBOUR_DRO",
    "interest": "PROXY_ ADVERTISEMENT_ TOPIC_NOT_ SOURCE_ INTEREST_ NEW_NAMES_ PATTERN_ QUERY_PATTERN_ RECEIVERS_DIFFER"
    " PEER_SOURCE_ PEER_REPAIRED SESSION_",
    "drops": "QUEUE_DROPS QUEUED_DATA_ RING_FULL FRAGMENT IMMEDIATE_ UNICAST_ GATEWAY_CONTROL_ PEER_DATAGRAM"
    " TR_MALFORMED TR_NOT_SENT TCP_DISCARDED SEND_FAILED RECEIVE_FAILED",
    "blocked": "ENQUEUEING_ QUEUE_FLUSHED SIBLING_ WORKER_STUCK WORKER_DEAF",
    "configuration": "CONFIG DEPRECATED_ FILE_NOT_ CHANGE_ RELOAD_ HANGUP_ TLS_FILES_ CERTIFICATE_ LOG_UNCHANGED"
    " PORTAL_CONFIGURED",
    "portal": "PEER_ WORKER_ OPERATION_ DRAIN_ CONTEXT_ CANNOT_START_ ORDER_",
}
_PREFIXES: Final = sorted(
    ((prefix, category) for category, prefixes in _CATEGORY_OF.items() for prefix in prefixes.split()),
    key=lambda pair: -len(pair[0]),
)


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event. `serial` grows, also over restarts of the monitor; `event`: the public id, `name`: that of the
    constant in `dro.log.events`, where there is one."""

    serial: int
    time_s: float
    level: str
    event: str
    name: str
    worker: str
    text: str
    category: str
    fields: dict[str, str]


class Listener:
    """What waits for one reader; `is_late` when it would have been too much."""

    def __init__(self, wants: Callable[[EventRow], bool], on_late: Callable[[], object]) -> None:
        self.wants: Final = wants
        self.waiting: Final[asyncio.Queue[EventRow]] = asyncio.Queue(MAX_WAITING)
        self.is_late = False
        self._on_late = on_late

    def tell(self, row: EventRow) -> None:
        """Take an event that it wants."""
        if self.is_late or not self.wants(row):
            return
        try:
            self.waiting.put_nowait(row)
        except asyncio.QueueFull:
            self.is_late = True
            self._on_late()


class Events:
    """Used in the loop of the monitor alone."""

    def __init__(self, path: Path, on_malformed: Callable[[], object]) -> None:
        """Bind the socket at `path`, also when a killed monitor has left one there. Raises: ResourceError."""
        self._on_malformed = on_malformed
        self._rows: deque[EventRow] = deque(maxlen=KEPT)
        self._serial = time.time_ns() // 1000  # above those of the monitor before
        self.listeners: Final[set[Listener]] = set()
        self._socket = _bound(path)

    def start(self) -> None:
        """Receive from now on, in the running loop."""
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._read)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        self._socket.close()

    def recent(
        self, level: str = "", category: str = "", after: int = 0, limit: int = 100
    ) -> tuple[list[EventRow], int]:
        """The newest ones, oldest first, and how many there are in all: of that severity or above, of that category,
        with a higher serial than `after`. Raises: ValueError for a level or category that does not exist."""
        wants, after = wanted(level, category), self.known(after)
        found = [row for row in self._rows if row.serial > after and wants(row)]
        return found[max(0, len(found) - limit) :], len(found)

    def known(self, after: int) -> int:
        """`after`, or 0 if no event has had that serial yet: it is another DRO's, or the clock was set back."""
        return after if after <= self._serial else 0

    def _read(self) -> None:
        for _ in range(_BATCH):
            try:
                data = self._socket.recv(MAX_DATAGRAM + 1)
            except OSError:  # nothing there
                return
            row = row_of(data, self._serial + 1)
            if row is None:
                self._on_malformed()
                continue
            self._serial = row.serial
            self._rows.append(row)
            for listener in self.listeners:
                listener.tell(row)


def wanted(level: str, category: str) -> Callable[[EventRow], bool]:
    """Whether an event has at least that severity and that category; empty: any. Raises: ValueError."""
    if category and category not in CATEGORIES:
        raise ValueError(f"no category {category!r}; there are {', '.join(CATEGORIES)}")
    if level and level not in LEVELS:
        raise ValueError(f"no level {level!r}; there are {', '.join(LEVELS)}")
    least = LEVELS[level] if level else logging.NOTSET
    return lambda row: LEVELS[row.level] >= least and category in ("", row.category)


def row_of(data: bytes, serial: int) -> EventRow | None:
    """The event in a datagram; None when it is none."""
    if len(data) > MAX_DATAGRAM:
        return None
    try:
        told: Any = json.loads(data)
        level, fields = told["level"], told["fields"]
        if level not in LEVELS or not isinstance(fields, dict) or len(fields) > _MAX_FIELDS:
            return None
        time_s = float(told["time_s"])
        if not 0 <= time_s < 1e11:  # of nan also
            return None
        event, name, worker = (_text(told[key], MAX_FIELD) for key in ("event", "name", "worker"))
        values = {_text(key, MAX_FIELD): _text(value, MAX_FIELD) for key, value in fields.items()}
        return EventRow(serial, time_s, level, event, name, worker, _text(told["text"], MAX_TEXT),
                        category_of(name), values)  # fmt: skip
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _text(value: object, limit: int) -> str:
    """Raises: ValueError for what is no text that can be sent on."""
    if not isinstance(value, str):
        raise ValueError("not a text")
    value[:limit].encode()  # a lone surrogate is a ValueError
    return value[:limit]


def category_of(name: str) -> str:
    """By the longest prefix of the name of an event."""
    return next((category for prefix, category in _PREFIXES if name.startswith(prefix)), OTHER)


def _bound(path: Path) -> socket.socket:
    """Raises: ResourceError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        path.unlink(missing_ok=True)
        os.fchmod(sock.fileno(), 0o600)  # the file gets the mode of the socket
        sock.bind(str(path))
    except OSError as e:
        sock.close()
        raise ResourceError(f"cannot bind {path}: {e.strerror}", remedy=remedy_of(e.errno)) from e
    return sock
