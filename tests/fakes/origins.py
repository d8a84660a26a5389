"""A source that retains messages and a receiver that asks it, with a way between that tests disturb: no sockets."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Final

from dro.clock import ms, s
from dro.proto.delivery.config import DeliveryConfig
from dro.proto.delivery.order import DeliveryController, DeliveryEvent, Lost
from dro.proto.delivery.reassembly import Delivered
from dro.proto.stream.asks import AskAgain, AskLimits, AskNewest, AskRetained, RecoveryConfig
from dro.proto.stream.recovery import Recovery
from dro.proto.stream.retention import Retention, RetentionConfig
from dro.sqn import add

LATE_FLAG: Final = 1
OTR_FLAG: Final = 2
LATE: Final = AskLimits(10, ms(500), ms(500), s(10), LATE_FLAG)
OTR: Final = AskLimits(200, s(1), s(10), s(60), OTR_FLAG)
USUAL: Final = RecoveryConfig(
    late_join=LATE,
    info_interval_ns=s(1),
    info_max=60,
    proximity=5000,
    asks_silent=True,
    silent_interval_ns=s(1),
    silent_max=60,
    otr_delay_ns=s(2),
    otr_threshold=10_000,
)
ALL: Final = RetentionConfig(size_threshold_bytes=1 << 30)


class Talk:
    """One source, one receiver. `loses(kind, number)`: whether that one of its kind is lost on the way.

    Kinds: "live", "ask" and "answer"; numbers count from 0 for each.
    """

    def __init__(
        self,
        config: RecoveryConfig = USUAL,
        delivery: DeliveryConfig | None = None,
        *,
        retains: RetentionConfig = ALL,
        first_sqn: int = 0,
        delay_ns: int = ms(20),
        copies: int = 1,
    ) -> None:
        self.now_ns = s(1)
        self.loses: Callable[[str, int], bool] = lambda _kind, _number: False
        self.retention = Retention(retains)
        self.retention.next_sqn = first_sqn
        self.events: list[DeliveryEvent] = []
        self.asks: list[AskRetained | AskNewest | AskAgain] = []
        self.recovery: Recovery | None = None
        self.most_held = 0
        self._config, self._delivery = config, delivery or DeliveryConfig(recovers=config.otr is not None)
        self._delay_ns, self._copies = delay_ns, copies
        self._counts = {"live": 0, "ask": 0, "answer": 0}
        self._way: list[tuple[int, int, Callable[[], object]]] = []
        self._serial = itertools.count()

    def join(self) -> None:
        self.controller = DeliveryController(self._delivery)
        self.recovery = Recovery(self.controller, self._config, self.now_ns)
        self._take()

    def send(self, count: int = 1, *, every_ms: int = 0, lost: range = range(0)) -> None:
        """Send messages, which the receiver hears if it has joined; `lost`: which of them it does not, by place."""
        for place in range(count):
            sqn = self.retention.next_sqn
            self.retention.add(sqn, [b"%d" % sqn], self.now_ns)
            if self.recovery is not None and place not in lost:
                self._carry("live", lambda sqn=sqn: self._live(sqn))  # type: ignore[misc]
            self.run(every_ms)

    def tsni(self) -> None:
        newest = add(self.retention.next_sqn, -1)
        self._carry("live", lambda: self._on_tsni(newest))

    def run(self, milliseconds: int) -> None:
        """Let so much time pass, with all that arrives and falls due in it."""
        end_ns = self.now_ns + ms(milliseconds)
        while True:
            due = [at for at in (self._way[0][0] if self._way else None, self._deadline()) if at is not None]
            if not due or min(due) > end_ns:
                break
            self.now_ns = max(min(due), self.now_ns)
            if self._way and self._way[0][0] <= self.now_ns:
                heapq.heappop(self._way)[2]()
            elif self.recovery is not None:
                self.controller.on_timer(self.now_ns)
                self.recovery.on_timer(self.now_ns)
            self._take()
        self._take()
        self.now_ns = end_ns

    @property
    def got(self) -> list[int]:
        return [event.sqn for event in self.events if isinstance(event, Delivered)]

    @property
    def lost(self) -> list[int]:
        return [event.sqn for event in self.events if isinstance(event, Lost)]

    def flagged(self, flag: int) -> list[int]:
        return [event.sqn for event in self.events if isinstance(event, Delivered) and event.flags & flag]

    def asked(self, kind: type) -> int:
        return sum(isinstance(ask, kind) for ask in self.asks)

    def _deadline(self) -> int | None:
        if self.recovery is None:
            return None
        due = (self.recovery.next_deadline(), self.controller.next_deadline())
        return min((one for one in due if one is not None), default=None)

    def _carry(self, kind: str, arrive: Callable[[], object]) -> None:
        number = self._counts[kind]
        self._counts[kind] += 1
        if not self.loses(kind, number):
            for copy in range(self._copies if kind != "live" else 1):
                at_ns = self.now_ns + self._delay_ns * (1 + copy)
                heapq.heappush(self._way, (at_ns, next(self._serial), arrive))

    def _live(self, sqn: int) -> None:
        assert self.recovery is not None
        if self.recovery.is_on or not self.controller.accept_run(sqn, 1):
            self.recovery.on_fragment(sqn, None, b"%d" % sqn, self.now_ns)
        else:
            self.events.append(Delivered(sqn, sqn, b"%d" % sqn, 0))

    def _on_tsni(self, sqn: int) -> None:
        assert self.recovery is not None
        self.recovery.on_tsni(sqn, self.now_ns)

    def _take(self) -> None:
        recovery = self.recovery
        if recovery is None:
            return
        for event in self.controller.take_events():
            if isinstance(event, Delivered):
                assert bytes(event.payload) == b"%d" % event.sqn
            self.events.append(event)
        self.most_held = max(self.most_held, self.controller.held)
        asks, recovery.asks = recovery.asks, []
        for ask in asks:
            self.asks.append(ask)
            self._carry("ask", lambda ask=ask: self._answer(ask))  # type: ignore[misc]

    def _answer(self, ask: AskRetained | AskNewest | AskAgain) -> None:
        recovery, retention = self.recovery, self.retention
        assert recovery is not None
        match ask:
            case AskRetained():
                low, high = retention.low_sqn, add(retention.next_sqn, -1)
                self._carry("answer", lambda: recovery.on_retained(low, high, self.now_ns))
            case AskNewest():
                self.tsni()
            case AskAgain(sqn=sqn):
                sent = retention.find(sqn)
                if sent is not None:
                    self._carry("answer", lambda: recovery.on_again(sqn, None, sent, self.now_ns, 0, None))
