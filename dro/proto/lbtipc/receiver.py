"""The receiver side of one LBT-IPC session: connection, activity, beginning and end.

    state       event                      next       effects
    APART       made, or time to try       APART      Connect
    APART       connected                  JOINED     (none)
    JOINED      records, message of life   JOINED     Began at the first of them
    JOINED      connection ended           APART      (none: Connect when it is time to try)
    both        silence                    ENDED      Ended

The activity timeout counts from the last records or message of life, or from when the session was made; a connection
that ends says nothing about it. Source: transport notes, sections 6 and 9. Guess: with a timeout of 0 there is none
while there is a connection, and the session ends with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dro.clock import s
from dro.proto.session_events import Began, Ended


class IpcState(Enum):
    APART = "apart"
    JOINED = "joined"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class IpcReceiverConfig:
    """Receiver options. `retry_ns` is ours."""

    activity_timeout_ns: int = s(60)
    retry_ns: int = s(1)


@dataclass(frozen=True, slots=True)
class ConnectMemory:
    """Ask the source for its memory."""

    at_ns: int


IpcReceiverEvent = ConnectMemory | Began | Ended


@dataclass(slots=True)
class IpcReceiverStats:
    """Statistics of one receiver session, under the names of the C API; `msgs_rcved` are records.

    `lbm_msgs_no_topic_rcved` and `lbm_reqs_rcved` belong to whoever decodes.
    """

    msgs_rcved: int = 0
    bytes_rcved: int = 0
    lbm_msgs_rcved: int = 0
    lbm_msgs_no_topic_rcved: int = 0
    lbm_reqs_rcved: int = 0


class IpcReceiverCore:
    """One session that this side has joined. `active_ns`: when it was last heard, or made."""

    __slots__ = ("_begun", "_cfg", "_events", "_tried_ns", "active_ns", "state", "stats", "was_connected")

    def __init__(self, cfg: IpcReceiverConfig, now_ns: int) -> None:
        self._cfg = cfg
        self.state = IpcState.APART
        self.stats = IpcReceiverStats()
        self.was_connected = False
        self.active_ns = now_ns
        self._events: list[IpcReceiverEvent] = []
        self._begun = False
        self._tried_ns: int | None = None

    def on_connected(self, now_ns: int) -> None:
        """The source has given its memory."""
        if self.state is IpcState.APART:
            self.state = IpcState.JOINED
            self.was_connected = True

    def on_closed(self, now_ns: int) -> None:
        """The connection failed, was refused, or ended and all that was in the memory has been read."""
        if self.state is IpcState.JOINED:
            self.state = IpcState.APART

    def on_broken(self, now_ns: int) -> None:
        """What is in the memory cannot be read."""
        if self.state is not IpcState.ENDED:
            self._end(now_ns)

    def on_records(self, records: int, messages: int, nbytes: int, now_ns: int) -> None:
        """So much has been read."""
        stats = self.stats
        stats.msgs_rcved += records
        stats.lbm_msgs_rcved += messages
        stats.bytes_rcved += nbytes
        self.on_life(now_ns)

    def on_life(self, now_ns: int) -> None:
        """Something was heard, such as a message of life."""
        if self.state is not IpcState.ENDED:
            self.active_ns = now_ns
            if not self._begun:
                self._begun = True
                self._events.append(Began(now_ns))

    def _silent_ns(self) -> int | None:
        """Return when the silence is too long, None for never."""
        if self.state is IpcState.ENDED or (self.state is IpcState.JOINED and not self._cfg.activity_timeout_ns):
            return None
        return self.active_ns + self._cfg.activity_timeout_ns

    def next_deadline(self) -> int | None:
        silent_ns = self._silent_ns()
        if self.state is not IpcState.APART or silent_ns is None:
            return silent_ns
        return self.active_ns if self._tried_ns is None else min(silent_ns, self._tried_ns + self._cfg.retry_ns)

    def on_timer(self, now_ns: int) -> None:
        """Try to connect, or end. The first call tries in any case."""
        silent_ns = self._silent_ns()
        if self.state is IpcState.APART and (self._tried_ns is None or now_ns >= self._tried_ns + self._cfg.retry_ns):
            is_first, self._tried_ns = self._tried_ns is None, now_ns
            if is_first or silent_ns is None or now_ns < silent_ns:
                self._events.append(ConnectMemory(now_ns))
                return
        if silent_ns is not None and now_ns >= silent_ns:
            self._end(now_ns)

    def _end(self, now_ns: int) -> None:
        self.state = IpcState.ENDED
        self._events.append(Ended(now_ns))

    def take_events(self) -> list[IpcReceiverEvent]:
        events, self._events = self._events, []
        return events
