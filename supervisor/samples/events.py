"""The log events of all processes of a DRO, as they come over a UNIX socket, one in a datagram."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dro.errors import ResourceError
from dro.log.lines import SEVERITIES
from dro.log.to_monitor import MAX_DATAGRAM, MAX_FIELD, MAX_TEXT
from dro.os_errors import remedy_of

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
    "blocked": "ENQUEUEING_ QUEUE_FLUSHED SIBLING_ WORKER_HUNG WORKER_STUCK WORKER_DEAF",
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


class EventSocket:
    """Receives them in whatever loop calls `read`."""

    def __init__(self, path: Path, on_event: Callable[[EventRow], object], on_malformed: Callable[[], object]) -> None:
        """Bind the socket at `path`, also when a killed process has left one there. Raises: ResourceError."""
        self._on_event, self._on_malformed = on_event, on_malformed
        self.serial = time.time_ns() // 1000  # above those of the process before
        self._socket = _bound(path)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def read(self) -> None:
        """Take what is there, a batch at most."""
        for _ in range(_BATCH):
            try:
                data = self._socket.recv(MAX_DATAGRAM + 1)
            except OSError:  # nothing there
                return
            row = row_of(data, self.serial + 1)
            if row is None:
                self._on_malformed()
                continue
            self.serial = row.serial
            self._on_event(row)


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
    """Cut a text to its limit. Raises: ValueError for what is no text that can be sent on."""
    if not isinstance(value, str):
        raise ValueError("not a text")
    value[:limit].encode()  # a lone surrogate is a ValueError
    return value[:limit]


def category_of(name: str) -> str:
    """Find a category by the longest prefix of the name of an event."""
    return next((category for prefix, category in _PREFIXES if name.startswith(prefix)), OTHER)


def _bound(path: Path) -> socket.socket:
    """Bind a socket for datagrams. Raises: ResourceError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        path.unlink(missing_ok=True)
        os.fchmod(sock.fileno(), 0o600)  # the file gets the mode of the socket
        sock.bind(str(path))
    except OSError as e:
        sock.close()
        raise ResourceError(f"cannot bind {path}: {e.strerror}", remedy=remedy_of(e.errno)) from e
    return sock
