"""The datagrams of one connection of a peer link: one LBT-RU session in each direction, between the same two ports.

Each side is the source of one session and the only client of the other. It asks the companion to be served, again and
again until a session message with SYN answers: then packets get through both ways, and data may leave. The first
datagram of a session has number 0, so none is missed at the beginning. Loss, repairs and session messages are those
of LBT-RM.

State: the two cores, and how often was asked. Source: peer link notes, section 15; DRO guide, 2.1.1 and `<connect>`,
`<session-message>`. Guess: the session id of a side is in its HELLO, subtype 0xF009, and new for each connection, so
that datagrams of a former one are known; a companion that tells none sends 0. Guess: a request that comes while this
side still waits for an answer lets it ask at once, once. Guess: ACK and RST are not sent and change nothing; session
messages show life, and the connection ends with TCP. Guess: an activity timeout of 0 is none.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from dro.clock import ms
from dro.proto.peerlink.session import CloseLink, LinkEnd
from dro.proto.ratelimit import RateLimiter
from dro.proto.repair.effects import Retransmit, SendNcf
from dro.proto.repair.loss import LBTRU_LOSS, LossConfig, NakDue, Rng, Skipped, Unrecoverable
from dro.proto.repair.receiver import ReceiverSession, ReceiverStats, Recoveries
from dro.proto.repair.session_messages import SendSm
from dro.proto.repair.source import LBTRU_SOURCE, Effect, SourceConfig, SourceSession, SourceStats
from dro.proto.session_events import Ended
from dro.wire import lbtru

NAKS_PER_PACKET: Final = 340
"""So that a NAK or NCF is no longer than 1,400 bytes."""
NEVER_NS: Final = 1 << 62
"""An activity timeout that is never over."""


LINK_LOSS: Final = replace(LBTRU_LOSS, max_naks_per_packet=NAKS_PER_PACKET)
LINK_SOURCE: Final = replace(LBTRU_SOURCE, sm_before_data=True, max_ncfs_per_packet=NAKS_PER_PACKET)


@dataclass(frozen=True, slots=True)
class DatagramOptions:
    """`<udp>`, times in ns."""

    loss: LossConfig = LINK_LOSS
    source: SourceConfig = LINK_SOURCE
    attempt_ns: int = ms(200)
    attempts: int = 10


@dataclass(frozen=True, slots=True)
class SessionIds:
    """Ids of the session that this side sends on, and of that of the companion."""

    own: int
    companion: int


@dataclass(frozen=True, slots=True)
class SendPacket:
    """To the companion, ahead of data."""

    packet: bytes


@dataclass(frozen=True, slots=True)
class DatagramsUp:
    """Packets get through, both ways."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """So many datagrams of the companion are lost."""

    count: int
    cause: str


DatagramEffect = SendPacket | Retransmit | DatagramsUp | GivenUp | CloseLink


class DatagramState(Enum):
    ASKING = "asking"
    UP = "up"
    OVER = "over"


@dataclass(slots=True)
class DatagramCounts:
    """Counts the datagrams of a portal, over all its connections; `sent` and `received` are of those with data.

    `dropped`: datagrams that were not taken, by reason.
    """

    unrecoverable: int = 0
    """Given up, also those that were missing when a connection ended."""
    received: ReceiverStats = field(default_factory=ReceiverStats)
    recoveries: Recoveries = field(default_factory=Recoveries)
    sent: SourceStats = field(default_factory=SourceStats)
    dropped: dict[str, int] = field(default_factory=dict)

    def drop(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1


class DatagramSession:
    """`source` and `receiver` are the cores of the two sessions; the shell gives them data, and has the rest done."""

    def __init__(
        self,
        options: DatagramOptions,
        ids: SessionIds,
        data_limiter: RateLimiter,
        rx_limiter: RateLimiter,
        rng: Rng,
        now_ns: int,
        counts: DatagramCounts,
    ) -> None:
        self.ids = ids
        self.state = DatagramState.ASKING
        self.source = SourceSession(options.source, data_limiter, rx_limiter, now_ns, stats=counts.sent)
        self.receiver = ReceiverSession(options.loss, rng, now_ns, stats=counts.received, recoveries=counts.recoveries)
        self.receiver.expected = options.source.first_sqn
        self.counts = counts
        self._options = options
        self._own_sid = (lbtru.sid_option(ids.own),)
        self._companion_sid = (lbtru.sid_option(ids.companion),)
        self._effects: list[DatagramEffect] = []
        self._asked = 0
        self._ask_ns = now_ns
        self._was_asked = False

    def take_effects(self) -> list[DatagramEffect]:
        effects, self._effects = self._effects, []
        return effects

    @property
    def is_up(self) -> bool:
        return self.state is DatagramState.UP

    # packets

    def is_mine(self, packet: lbtru.Packet) -> bool:
        """Say whether it is of one of the two sessions."""
        is_of_source = isinstance(packet, lbtru.Nak | lbtru.Ack | lbtru.ConnectRequest)
        return packet.session_id == (self.ids.own if is_of_source else self.ids.companion)

    def on_packet(self, packet: lbtru.Packet, now_ns: int) -> None:
        """Anything but data, of one of the two sessions."""
        if self.state is DatagramState.OVER:
            return
        match packet:
            case lbtru.ConnectRequest():
                self._on_request(now_ns)
            case lbtru.SessionMessage(lead=lead, trail=trail, flags=flags):
                self.receiver.on_session_message(lead, trail, now_ns)
                if flags & lbtru.FLAG_SYN and self.state is DatagramState.ASKING:
                    self.state = DatagramState.UP
                    self._effects.append(DatagramsUp())
            case lbtru.Ncf(sqns=sqns, reason=reason, trail=trail):
                self.receiver.on_ncf(sqns, reason, trail, now_ns)
            case lbtru.Nak(sqns=sqns):
                self._perform(self.source.on_nak(sqns, now_ns))
            case _:
                pass

    def _on_request(self, now_ns: int) -> None:
        self._send_sm(self.source.make_sm(now_ns), lbtru.FLAG_SYN)
        if self.state is DatagramState.ASKING and not self._was_asked:
            self._was_asked = True
            self._send_request()

    def _send_request(self) -> None:
        self._send(lbtru.ConnectRequest(options=self._companion_sid))

    def _send(self, packet: lbtru.Packet) -> None:
        self._effects.append(SendPacket(lbtru.encode(packet)))

    def _send_sm(self, sm: SendSm, flags: int = 0) -> None:
        self._send(lbtru.SessionMessage(sm.sm_sqn, sm.lead, sm.trail, flags, options=self._own_sid))

    # what the two sessions want

    def settle(self) -> None:
        """Look at what data has led to in the receiving session."""
        for event in self.receiver.take_events() if self.receiver.has_events else ():
            match event:
                case NakDue(sqns=sqns):
                    self._send(lbtru.Nak(sqns, options=self._companion_sid))
                case Unrecoverable() | Skipped():
                    self.counts.unrecoverable += event.count
                    self._effects.append(GivenUp(event.count, event.cause))
                case Ended():
                    silent_ms = self._options.loss.activity_timeout_ns // 1_000_000
                    self._close(f"no datagram came for {silent_ms} ms", "check the network between the two for UDP")
                case _:
                    pass

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Retransmit():
                    self._effects.append(effect)
                case SendNcf(reason=reason, sqns=sqns):
                    self._send(lbtru.Ncf(self.source.trail, reason, 0, sqns, options=self._own_sid))
                case SendSm():
                    self._send_sm(effect)

    def _close(self, text: str, remedy: str) -> None:
        """Close the link after silence."""
        self.state = DatagramState.OVER
        self._effects.append(CloseLink(text, remedy, LinkEnd.TIMEOUT))

    # time

    def next_deadline(self) -> int | None:
        if self.state is DatagramState.OVER:
            return None
        deadlines = [self.receiver.next_deadline(), self.source.next_deadline()]
        if self.state is DatagramState.ASKING:
            deadlines.append(self._ask_ns)
        return min([deadline for deadline in deadlines if deadline is not None], default=None)

    def on_timer(self, now_ns: int) -> None:
        if self.state is DatagramState.OVER:
            return
        if self.state is DatagramState.ASKING and now_ns >= self._ask_ns:
            if self._asked == self._options.attempts:
                what = f"UDP does not get through: {self._asked} requests were not answered"
                self._close(what, "let UDP pass in both directions, to the <port> of <udp> of either side")
                return
            self._asked += 1
            self._ask_ns = now_ns + self._options.attempt_ns
            self._send_request()
        self.receiver.on_timer(now_ns)
        self.settle()
        self._perform(self.source.on_timer(now_ns))

    def close(self) -> None:
        """The connection is over."""
        self.state = DatagramState.OVER
        self.source.close()
