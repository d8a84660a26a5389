"""The receiver side of one LBT-TCP session: joining, session id, activity, beginning and end.

The stream itself needs no protocol: TCP repairs and orders it, the shell splits it. The shell owns the socket and
reports its events to `TcpReceiverCore`.

    state       event                 next         effects
    CLOSED      advertised            CONNECTING   Connect
    CONNECTING  connected             CONNECTED    SendSessionId, when the advertisement names one
    CONNECTING  failed, time is over  CLOSED       Close, Ended
    CONNECTING  taken over            CONNECTED    (none: the session id was said)
    CONNECTED   messages              CONNECTED    Began at the first ones
    CONNECTED   closed, silence       CLOSED       Close, Ended

Source: UM Configuration Guide, `transport_tcp_activity_timeout`, `_activity_method`; UM Concepts, "LBT-TCP".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dro.clock import s
from dro.proto.session_events import Began, Ended
from dro.state import Same, StateLayout


class TcpState(Enum):
    CLOSED = "closed"
    CONNECTING = "connecting"
    CONNECTED = "connected"


@dataclass(frozen=True, slots=True)
class TcpReceiverConfig:
    """Receiver options. `session_id` 0: the advertisement names none, nothing is sent.

    `activity_timeout_ns` 0 is off (the default); it is the `timer` method, keepalive is a matter of the socket.
    `connect_timeout_ns` and `retry_ns` are ours. Guess: an address that does not answer is given up after 10 s, and
    is not tried more often than once a second however often it is advertised.
    """

    session_id: int = 0
    activity_timeout_ns: int = 0
    connect_timeout_ns: int = s(10)
    retry_ns: int = s(1)


@dataclass(frozen=True, slots=True)
class ConnectSession:
    """Open a connection to the advertised address."""

    at_ns: int


@dataclass(frozen=True, slots=True)
class SendSessionId:
    """Send the LBMC control message that names the session."""

    session_id: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class CloseSession:
    """Close the connection or the attempt; harmless when it is closed already."""

    at_ns: int


TcpReceiverEvent = ConnectSession | SendSessionId | CloseSession | Began | Ended


@dataclass(slots=True)
class TcpReceiverStats:
    """Statistics of one receiver session, under the names of the C API.

    `lbm_msgs_no_topic_rcved` and `lbm_reqs_rcved` belong to whoever decodes.
    """

    bytes_rcved: int = 0
    lbm_msgs_rcved: int = 0
    lbm_msgs_no_topic_rcved: int = 0
    lbm_reqs_rcved: int = 0


class TcpReceiverCore:
    """One TCP session that this side has joined, over all its connections.

    Every connection or attempt that ends gives one `Ended`; a later advertisement joins anew. `active_ns`: when the
    session was last heard; `was_connected`: whether any connection ever stood.
    """

    __slots__ = ("_begun", "_cfg", "_events", "_tried_ns", "active_ns", "has_events", "state", "stats", "was_connected")

    def __init__(self, cfg: TcpReceiverConfig) -> None:
        self._cfg = cfg
        self.state = TcpState.CLOSED
        self.stats = TcpReceiverStats()
        self.has_events = False
        self.was_connected = False
        self._events: list[TcpReceiverEvent] = []
        self.active_ns = 0
        self._begun = False
        self._tried_ns: int | None = None

    def on_advertised(self, now_ns: int) -> None:
        """The session is wanted and advertised: join it, unless that is so already or was tried just now."""
        if self.state is not TcpState.CLOSED:
            return
        if self._tried_ns is not None and now_ns - self._tried_ns < self._cfg.retry_ns:
            return
        self.state = TcpState.CONNECTING
        self._tried_ns = self.active_ns = now_ns
        self._begun = False
        self._emit(ConnectSession(now_ns))

    def on_connected(self, now_ns: int) -> None:
        if self.state is not TcpState.CONNECTING:
            return
        self.state = TcpState.CONNECTED
        self.was_connected = True
        self.active_ns = now_ns
        if self._cfg.session_id:
            self._emit(SendSessionId(self._cfg.session_id, now_ns))

    def on_taken_over(self, now_ns: int) -> None:
        """There is a connection of a former process, which has said all that is to be said."""
        if self.state is not TcpState.CONNECTING:
            return
        self.state = TcpState.CONNECTED
        self.was_connected = True
        self.active_ns = now_ns

    def on_messages(self, count: int, nbytes: int, now_ns: int) -> None:
        """`count` whole LBMC messages of `nbytes` in all have been read. Parts of messages are no activity."""
        if self.state is not TcpState.CONNECTED:
            return
        self.active_ns = now_ns
        self.stats.lbm_msgs_rcved += count
        self.stats.bytes_rcved += nbytes
        if count and not self._begun:
            self._begun = True
            self._emit(Began(now_ns))

    def on_closed(self, now_ns: int) -> None:
        """The connection failed or ended, or its bytes could not be split into messages."""
        if self.state is not TcpState.CLOSED:
            self._end(now_ns)

    def next_deadline(self) -> int | None:
        match self.state:
            case TcpState.CONNECTING:
                return self.active_ns + self._cfg.connect_timeout_ns
            case TcpState.CONNECTED if self._cfg.activity_timeout_ns:
                return self.active_ns + self._cfg.activity_timeout_ns
            case _:
                return None

    def on_timer(self, now_ns: int) -> None:
        deadline_ns = self.next_deadline()
        if deadline_ns is not None and now_ns >= deadline_ns:
            self._end(now_ns)

    def _end(self, now_ns: int) -> None:
        self.state = TcpState.CLOSED
        self._emit(CloseSession(now_ns))
        self._emit(Ended(now_ns))

    def take_events(self) -> list[TcpReceiverEvent]:
        events, self._events = self._events, []
        self.has_events = False
        return events

    def _emit(self, event: TcpReceiverEvent) -> None:
        self._events.append(event)
        self.has_events = True


StateLayout(
    TcpReceiverCore,
    1,
    state=TcpState,
    stats=Same,
    has_events=bool,
    was_connected=bool,
    active_ns=int,
    _events=list[TcpReceiverEvent],
    _tried_ns=int | None,
    _begun=bool,
)
