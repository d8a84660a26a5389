"""Answers control requests to the daemon: short texts that come as unicast immediate requests.

The reply comes first, then what was asked for is done, if the reply says so. Source: DRO guide, 8.3; daemon statistics
notes, section 7, which has the texts of replies.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from dro.bus.counters import CounterPage
from dro.clock import NS_PER_S
from dro.errors import DecodeError
from dro.lbmmon.control import MAX_REQUEST, ControlRequest, parse_request
from dro.log.events import LogEvent
from dro.metrics.slots import WorkerSlot as Slot
from dro.um.message.requests import UnicastRequest
from supervisor.statistics.intervals import WORDS

VERSION: Final = 1
PER_S: Final = 20
"""Requests that are answered in a second; of more nothing is heard but a count."""
SHOWN: Final = 80  # characters of a request in the log
INTERVAL: Final = "interval"


@dataclass(frozen=True, slots=True)
class Rights:
    """What requests may do: `<remote-snapshot-request>` and `<remote-config-changes-request>`."""

    snapshots: bool
    changes: bool


class ControlRequests:
    """See the module text. `tell` is the limited log of the worker, `order` gets what is to be done."""

    def __init__(
        self,
        page: CounterPage,
        now_ns: Callable[[], int],
        log: logging.Logger,
        tell: Callable[..., object],
        order: Callable[[ControlRequest], object],
        portals: Callable[[], Collection[str]],
    ) -> None:
        self.rights = Rights(snapshots=False, changes=False)
        self._page, self._now_ns, self._log, self._tell = page, now_ns, log, tell
        self._order, self._portals = order, portals
        self._second = self._count = 0

    def on_request(self, request: UnicastRequest) -> None:
        """Answer one, and do it."""
        second = self._now_ns() // NS_PER_S
        if second != self._second:
            self._second, self._count = second, 0
        self._count += 1
        if self._count > PER_S:
            self._page.add(Slot.REQUESTS_LIMITED, 1)
            self._tell(LogEvent.STATISTICS_REQUESTS_LIMITED, extra={"from": request.sender, "limit": PER_S})
            return
        shown = request.data[:SHOWN].decode("ascii", "backslashreplace").rstrip("\0")
        try:
            wanted = parse_request(request.data)
            reply = self._checked(wanted)
        except DecodeError as e:
            self._page.add(Slot.REQUESTS_REFUSED, 1)
            event = LogEvent.STATISTICS_REQUEST_REFUSED
            if len(request.data) > MAX_REQUEST:
                event = LogEvent.STATISTICS_REQUEST_TOO_LONG
            self._tell(event, extra={"request": shown, "from": request.sender, "reason": e.why})
            request.respond(f"ERROR {e.why}".encode())
            return
        self._page.add(Slot.REQUESTS_ANSWERED, 1)
        self._log.info(LogEvent.STATISTICS_ORDER, extra={"request": shown, "from": request.sender})
        request.respond(reply)
        if wanted.group or wanted.verb == "snap":
            self._order(wanted)

    def _checked(self, wanted: ControlRequest) -> bytes:
        """Check whether it may be done, and by whom. Raises: DecodeError."""
        if wanted.verb == INTERVAL:
            if not self.rights.changes:
                raise DecodeError("request", "configuration changes are disabled")
        elif not self.rights.snapshots:
            raise DecodeError("request", "snapshot requests are disabled")
        if wanted.portal is not None and wanted.portal not in self._portals():
            raise DecodeError("request", f'unknown portal "{wanted.portal}"')
        return f"OK {VERSION}".encode() if wanted.verb == "version" else b"OK"


def group_of(request: ControlRequest) -> str:
    """Name the group that a request is about, as the configuration does; empty for all."""
    return WORDS[request.group] if request.group else ""
