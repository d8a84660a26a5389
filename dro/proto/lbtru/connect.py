"""A receiver's end of an LBT-RU session: it asks to be sent to until it is, and acknowledges from then on.

State: CONNECTING until the first data or session message of the session, then CONNECTED. An acknowledgement is a sign
of life, not a flow control.

Source: transport notes, section 7; UM Configuration Guide, `transport_lbtru_connect_interval`,
`_maximum_connect_attempts`, `_acknowledgement_interval`. Guess: data that comes before the answer to a request is one;
the first acknowledgement leaves at once, and with an interval of 0 no other; requests are at least 1 ms apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from dro.clock import NS_PER_MS, ms
from dro.proto.repair.receiver import ReceiverSession


@dataclass(frozen=True, slots=True)
class ConnectConfig:
    """Receiver options of one session, times in ns."""

    interval_ns: int = ms(100)
    attempts: int = 600
    acknowledgement_ns: int = ms(500)


@dataclass(frozen=True, slots=True)
class SendConnectRequest:
    """Ask the source to send to this receiver."""

    at_ns: int


@dataclass(frozen=True, slots=True)
class SendAcknowledgement:
    """Tell the source that this receiver is there; `sqn`: up to which it misses nothing."""

    sqn: int
    at_ns: int


class ConnectCore:
    """Joins the connection of one session with its loss recovery, `session`, which is told of data by others."""

    def __init__(self, cfg: ConnectConfig, session: ReceiverSession, now_ns: int) -> None:
        self.session = session
        self.is_connected = False
        self._cfg = cfg
        self._attempts = 0
        self._due_ns: int | None = now_ns
        self._sends: list[SendConnectRequest | SendAcknowledgement] = []

    def on_heard(self, now_ns: int) -> None:
        """Call it before data and session messages of the session are given to `session`."""
        if not self.is_connected:
            self.is_connected = True
            self._due_ns = now_ns

    def on_reset(self, now_ns: int) -> None:
        """The source knows nothing of this receiver."""
        if not self.session.has_ended:
            self.session.end(now_ns)

    def next_deadline(self) -> int | None:
        """Return when `on_timer` has work, ns; None once the session has ended."""
        if self.session.has_ended:
            return None
        of_session = self.session.next_deadline() if self.is_connected else None
        return min((due for due in (self._due_ns, of_session) if due is not None), default=None)

    def on_timer(self, now_ns: int) -> None:
        """Do everything that is due at or before `now_ns`."""
        if self.is_connected:
            self.session.on_timer(now_ns)
        if self.session.has_ended or self._due_ns is None or now_ns < self._due_ns:
            return
        if self.is_connected:
            self._sends.append(SendAcknowledgement(self.session.contiguous, now_ns))
            interval_ns = self._cfg.acknowledgement_ns
            self._due_ns = now_ns + interval_ns if interval_ns else None
        elif self._attempts >= self._cfg.attempts:
            self.session.end(now_ns)
        else:
            self._attempts += 1
            self._sends.append(SendConnectRequest(now_ns))
            self._due_ns = now_ns + max(self._cfg.interval_ns, NS_PER_MS)

    def take_sends(self) -> list[SendConnectRequest | SendAcknowledgement]:
        """Return what is to be sent since the last call, in order."""
        sends, self._sends = self._sends, []
        return sends
