"""A lossy network in simulated time: one `SourceSession` and any number of `ReceiverSession`s.

Every packet to a receiver is lost, delayed and reordered for itself; NAKs suffer the same. Time moves from one
event to the next, so a run of minutes takes milliseconds and gives the same result every time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from random import Random

from dro.clock import ms
from dro.proto.ratelimit import RateLimiter
from dro.proto.repair.effects import Retransmit, SendNcf
from dro.proto.repair.loss import LossConfig, NakDue, Skipped, Unrecoverable
from dro.proto.repair.receiver import ReceiverSession
from dro.proto.repair.retransmit import Chunk
from dro.proto.repair.session_messages import SendSm
from dro.proto.repair.source import Effect, SourceConfig, SourceSession
from dro.proto.session_events import Began, Ended
from tests.fakes.receiver_bench import sqns_of


class Station:
    """One receiver: its session and everything that it was given."""

    def __init__(self, session: ReceiverSession) -> None:
        self.session = session
        self.delivered: list[int] = []
        self.unrecoverable: list[int] = []
        self.naks: list[tuple[int, tuple[int, ...]]] = []
        self.began_ns: int | None = None
        self.ended_ns: int | None = None


class Wire:
    """Joins a source and its receivers. `loss` and `reorder` are probabilities, `delay_ns` is one way."""

    def __init__(
        self,
        seed: int,
        loss: float = 0.0,
        delay_ns: int = ms(1),
        reorder: float = 0.0,
        *,
        receivers: int = 1,
        loss_config: LossConfig | None = None,
        source_config: SourceConfig | None = None,
        rx_bps: int = 0,
    ) -> None:
        self.random = Random(seed)
        self.now_ns = 0
        self.loss = loss
        self._delay_ns = delay_ns
        self._reorder = reorder
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._serial = 0
        self.source = SourceSession(
            source_config or SourceConfig(), RateLimiter(0, ms(10), 0), RateLimiter(rx_bps, ms(10), 0), 0
        )
        config = loss_config or LossConfig()
        self.stations = [Station(ReceiverSession(config, self.random.random, 0)) for _ in range(receivers)]
        self.packets_lost = 0

    def at(self, when_ns: int, call: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._queue, (when_ns, self._serial, call))

    def send_at(self, when_ns: int, count: int = 1) -> None:
        """Let the source send `count` datagrams; the content of each is its own sqn."""
        self.at(when_ns, lambda: self._send(count))

    def run(self, until_ns: int) -> None:
        """Let everything happen that is due at or before `until_ns`, in order of time."""
        while True:
            deadlines = [self._queue[0][0] if self._queue else None, self.source.next_deadline()]
            deadlines += [station.session.next_deadline() for station in self.stations]
            now_ns = min((when for when in deadlines if when is not None), default=until_ns + 1)
            if now_ns > until_ns:
                self.now_ns = until_ns
                return
            self.now_ns = max(self.now_ns, now_ns)
            while self._queue and self._queue[0][0] <= self.now_ns:
                heapq.heappop(self._queue)[2]()
            due = self.source.next_deadline()
            if due is not None and due <= self.now_ns:
                self._perform(self.source.on_timer(self.now_ns))
            for station in self.stations:
                due = station.session.next_deadline()
                if due is not None and due <= self.now_ns:
                    station.session.on_timer(self.now_ns)
                    self._take_events(station)

    def _send(self, count: int) -> None:
        source = self.source
        first, trail = source.next_sqn, source.trail
        sqns = [(first + i) & 0xFFFFFFFF for i in range(count)]
        buffer = b"".join(b"head" + sqn.to_bytes(4) + b"....." for sqn in sqns)
        source.on_sent_run(count, 4, Chunk(buffer, 4, 13, 4), self.now_ns)
        for i, sqn in enumerate(sqns):
            self._broadcast_data(sqn, trail, buffer[4 + 13 * i : 8 + 13 * i], is_retransmission=False)

    def _broadcast_data(self, sqn: int, trail: int, content: bytes, *, is_retransmission: bool) -> None:
        def arrive(station: Station) -> None:
            if station.session.on_data(sqn, trail, is_retransmission, self.now_ns):
                station.delivered.append(int.from_bytes(content))

        self._broadcast(arrive)

    def _broadcast(self, arrive: Callable[[Station], None]) -> None:
        for station in self.stations:
            self._post(lambda station=station: self._arrive(station, arrive))  # type: ignore[misc]  # bound by default

    def _arrive(self, station: Station, arrive: Callable[[Station], None]) -> None:
        arrive(station)
        self._take_events(station)

    def _post(self, call: Callable[[], None]) -> None:
        if self.random.random() < self.loss:
            self.packets_lost += 1
            return
        late = self._delay_ns * self.random.randrange(1, 20) if self.random.random() < self._reorder else 0
        self.at(self.now_ns + self._delay_ns + late, call)

    def _perform(self, effects: Sequence[Effect]) -> None:
        trail = self.source.trail
        for effect in effects:
            match effect:
                case Retransmit(sqn=sqn, buffer=buffer, offset=offset, length=length):
                    content = bytes(buffer[offset : offset + length])
                    self._broadcast_data(sqn, trail, content, is_retransmission=True)
                case SendNcf(reason=reason, sqns=sqns):
                    self._broadcast_ncf(sqns, reason, trail)
                case SendSm(lead=lead, trail=sm_trail):
                    self._broadcast_sm(lead, sm_trail)

    def _broadcast_ncf(self, sqns: tuple[int, ...], reason: int, trail: int) -> None:
        self._broadcast(lambda station: station.session.on_ncf(sqns, reason, trail, self.now_ns))

    def _broadcast_sm(self, lead: int, trail: int) -> None:
        self._broadcast(lambda station: station.session.on_session_message(lead, trail, self.now_ns))

    def _take_events(self, station: Station) -> None:
        if not station.session.has_events:
            return
        for event in station.session.take_events():
            match event:
                case NakDue(sqns=sqns, at_ns=at_ns):
                    station.naks.append((at_ns, sqns))
                    self._post_nak(sqns)
                case Unrecoverable(ranges=ranges):
                    station.unrecoverable += sqns_of(ranges)
                case Skipped(first_sqn=first, count=count):
                    station.unrecoverable += [(first + i) & 0xFFFFFFFF for i in range(count)]
                case Began(at_ns=at_ns):
                    assert station.began_ns is None
                    station.began_ns = at_ns
                case Ended(at_ns=at_ns):
                    assert station.ended_ns is None
                    station.ended_ns = at_ns

    def _post_nak(self, sqns: tuple[int, ...]) -> None:
        self._post(lambda: self._perform(self.source.on_nak(sqns, self.now_ns)))
