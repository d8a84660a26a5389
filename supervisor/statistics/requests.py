"""Answers requests to the statistics contexts, which come as unicast immediate requests without a topic.

Those to the daemon statistics are short texts, those to the context of `<monitor>` control messages of UM's monitoring.
The reply comes first, then what was asked for is done, if the reply says so. Source: DRO guide, 8.3; UM operations
guide, monitoring; daemon statistics notes, section 7, which has the texts of replies.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from dro.bus.counters import CounterPage
from dro.clock import NS_PER_S
from dro.errors import DecodeError
from dro.lbmmon.binary import VERSION
from dro.lbmmon.control import MAX_REQUEST, ControlRequest, MonitorCommand, decode_command, parse_request
from dro.log.events import LogEvent
from dro.metrics.slots import WorkerSlot as Slot
from dro.um.message.events import Data, RequestMsg
from supervisor.statistics.intervals import WORDS

PER_S: Final = 20
"""Requests that are answered in a second; of more nothing is heard but a count."""
SHOWN: Final = 80  # characters of a request in the log
INTERVAL: Final = "interval"
NODE_TYPES: Final = ("ALL_NODES", "CONTEXT", "SOURCE", "RECEIVER", "EVENT_QUEUE", "GATEWAY")
"""Kinds of objects that a DRO publishes."""
COMMANDS: Final = ("SET_INTERVAL", "CLEAR_INTERVAL", "SAMPLE", "SNAP")

Request = ControlRequest | MonitorCommand


class Requests:
    """Answers what comes to one context. `tell` is the limited log of the worker, `order` gets what is to be done."""

    def __init__(
        self,
        page: CounterPage,
        now_ns: Callable[[], int],
        log: logging.Logger,
        tell: Callable[..., object],
        order: Callable[[Request], object],
    ) -> None:
        self._page, self._now_ns, self._log, self._tell = page, now_ns, log, tell
        self._order = order
        self._second = self._count = 0

    def answer(self, request: Data, read: Callable[[bytes], Request]) -> None:
        """Answer one that is read so, and do it. What asks for no answer is ignored."""
        if not isinstance(request, RequestMsg):
            return
        second = self._now_ns() // NS_PER_S
        if second != self._second:
            self._second, self._count = second, 0
        self._count += 1
        if self._count > PER_S:
            self._page.add(Slot.REQUESTS_LIMITED, 1)
            self._tell(LogEvent.STATISTICS_REQUESTS_LIMITED, extra={"from": request.source, "limit": PER_S})
            return
        shown = request.data[:SHOWN].decode("ascii", "backslashreplace").rstrip("\0")
        try:
            wanted = read(request.data)
        except DecodeError as e:
            self._page.add(Slot.REQUESTS_REFUSED, 1)
            event = LogEvent.STATISTICS_REQUEST_REFUSED
            if len(request.data) > MAX_REQUEST:
                event = LogEvent.STATISTICS_REQUEST_TOO_LONG
            self._tell(event, extra={"request": shown, "from": request.source, "reason": e.why})
            request.response.send(f"ERROR {e.why}".encode())
            return
        self._page.add(Slot.REQUESTS_ANSWERED, 1)
        if isinstance(wanted, MonitorCommand):
            shown = " ".join(filter(None, (wanted.command, wanted.data, wanted.node_type, wanted.application)))
        self._log.info(LogEvent.STATISTICS_ORDER, extra={"request": shown, "from": request.source})
        if isinstance(wanted, ControlRequest) and wanted.verb == "version":
            request.response.send(f"OK {VERSION}".encode())
            return
        request.response.send(b"OK")
        self._order(wanted)


@dataclass(frozen=True, slots=True)
class Rights:
    """Says what texts may do: `<remote-snapshot-request>` and `<remote-config-changes-request>`."""

    snapshots: bool
    changes: bool

    def read(self, data: bytes, portals: Collection[str]) -> ControlRequest:
        """Read a text, and check whether it may be done. Raises: DecodeError."""
        wanted = parse_request(data)
        if wanted.verb == INTERVAL and not self.changes:
            raise DecodeError("request", "configuration changes are disabled")
        if wanted.verb != INTERVAL and not self.snapshots:
            raise DecodeError("request", "snapshot requests are disabled")
        if wanted.portal is not None and wanted.portal not in portals:
            raise DecodeError("request", f'unknown portal "{wanted.portal}"')
        return wanted


def read_command(data: bytes) -> MonitorCommand:
    """Read a control message, and check whether it can be done. Raises: DecodeError."""
    wanted = decode_command(data)
    if wanted.command not in COMMANDS:
        raise DecodeError("request", f"{wanted.command} is not supported")
    if wanted.node_type not in NODE_TYPES:
        raise DecodeError("request", f"nothing of the kind {wanted.node_type} is published here")
    return wanted


def group_of(request: ControlRequest) -> str:
    """Name the group that a request is about, as the configuration does; empty for all."""
    return WORDS[request.group] if request.group else ""
