"""The delivery controller: one source and topic, from fragments as the transport hands them up to messages and losses.

State: the next topic sqn that is not settled (`expected`), the fragments held beyond it, the gaps with their deadlines.
Called by the client library for each fragment and TSNI of a source; never by a DRO, which forwards in arrival order.

Three modes (`ordered_delivery`): 1 messages in topic order, -1 messages in arrival order, 0 fragments in arrival order.
All three settle every sqn after the first exactly once: handed up, reported as lost, or part of a burst.
Gap rules (UM documentation, "delivery controller and unrecoverable loss"):

    gap seen            deadline = now + NAK generation interval of the transport (or the DRO recovery timeout, or 0)
    deadline over       the next fragment or TSNI reports `Lost` per sqn and delivers what was held behind;
                        without such an event a timer does, but only with a loss check interval, or on TCP and IPC
    gap > burst limit   `LossBurst` at once, everything held is discarded, delivery goes on at the new sqn
    map over its limit  the oldest gaps are given up until it fits
    session replaced    what is missing before the first fragment of the new session is given up at once
    leading loss        nothing is reported before the first message was handed up

Guess: `LossBurst` covers from the first sqn that was not settled, so held fragments that it discards are inside it.
Guess: a TSNI heard before the first fragment sets where a gap may begin, so that a message lost right after it can
still be recovered; it starts nothing by itself. Guess: bounds that no option names are `MISSING_MAX` missing sqns (one
gap beyond that is a burst even if bursts are switched off, several gaps are given up from the oldest), `HELD_MAX` and
`held_max_bytes`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, TypeAlias

from dro.proto.delivery.config import NEVER_NS, DeliveryConfig, DeliveryStats, held_size
from dro.proto.delivery.reassembly import ArrivalReassembly, Delivered, Frag, InOrderReassembly, Payload, Refusal
from dro.sqn import MASK, add, ahead
from dro.state import Same, StateLayout
from dro.wire.lbmc.headers import MessageHeaders

IN_ORDER: Final = 1
ARRIVAL: Final = -1
ARRIVAL_FRAGMENTS: Final = 0

MISSING_MAX: Final = 1 << 18  # missing sqns that one controller follows
HELD_MAX: Final = 1 << 22  # fragments held when the option sets no limit
START_KEPT: Final = 1 << 30  # sqns; older ones may come from a source that has been heard for long
GAPS_MAX: Final = 4096  # gaps with a deadline of their own; later ones share the last


@dataclass(frozen=True, slots=True)
class Lost:
    """One topic sqn was given up."""

    sqn: int


@dataclass(frozen=True, slots=True)
class LossBurst:
    """`count` sqns from `first_sqn` on were given up at once."""

    first_sqn: int
    count: int


DeliveryEvent: TypeAlias = Delivered | Lost | LossBurst


_Held: TypeAlias = tuple[Frag | None, bytes, int, MessageHeaders | None]  # FRAG block, payload, flags, headers


class DeliveryController:
    """Order, duplicates, gaps and reassembly of one source and topic.

    Fast path: `accept_run` when the caller has unfragmented messages from `expected` on and hands them up itself.
    Otherwise `on_fragment` per fragment and `take_events` before the payload's buffer is reused: a payload that can be
    handed up at once is passed on as it is, what must wait is copied.
    """

    __slots__ = (
        "_burst_limit",
        "_cfg",
        "_events",
        "_floor",
        "_gaps",
        "_handed_up",
        "_held",
        "_held_bytes",
        "_high",
        "_in_order",
        "_joiner",
        "_map_limit",
        "_tentative",
        "_wait_ns",
        "expected",
        "is_recovering",
        "stats",
    )

    def __init__(self, cfg: DeliveryConfig) -> None:
        self._cfg = cfg
        self._wait_ns = cfg.loss_wait_ns
        self._burst_limit = min(cfg.burst_limit, MISSING_MAX)
        self._map_limit = cfg.map_limit or HELD_MAX
        self._in_order = cfg.ordered_delivery == IN_ORDER
        self.expected: int | None = None  # first sqn that is not settled; None before the first fragment
        self.stats = DeliveryStats()
        self.is_recovering = False  # see `hold`
        self._high = 0  # newest known sqn + 1
        self._floor = 0  # where delivery began
        self._tentative: int | None = None  # sqn after the newest TSNI heard before the first fragment
        self._handed_up = False
        self._held: dict[int, _Held | None] = {}  # None: handed up at arrival
        self._held_bytes = 0
        self._gaps: deque[tuple[int, int]] = deque()  # (end, deadline): missing sqns before `end`; both ascend
        self._joiner: InOrderReassembly | ArrivalReassembly = (
            InOrderReassembly(cfg.message_max_bytes) if self._in_order else ArrivalReassembly(cfg.message_max_bytes)
        )
        self._events: list[DeliveryEvent] = []

    @property
    def is_waiting(self) -> bool:
        """Whether a gap is open."""
        return bool(self._gaps)

    @property
    def held_bytes(self) -> int:
        """Bytes of fragments that wait for others."""
        return self._held_bytes + self._joiner.held_bytes

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    def accept_run(self, first_sqn: int, count: int) -> bool:
        """Settle `count` >= 1 whole, unfragmented messages; the caller hands them up itself.

        False: not the next ones, or something is waiting or half assembled; give them to `on_fragment` one by one.
        """
        if self._gaps or self.is_recovering or (self._in_order and not self._joiner.is_idle):
            return False
        if first_sqn != self.expected:
            if self.expected is not None or self._tentative is not None:
                return False
            self._floor = first_sqn
        self.expected = self._high = (first_sqn + count) & MASK
        self._handed_up = True
        self.stats.delivered += count
        return True

    def drop_run(self, first_sqn: int, count: int) -> bool:
        """Count `count` >= 1 fragments as duplicates, if all of them are settled; else give them to `on_fragment`."""
        if self.expected is None or not self._in_order or ahead(add(first_sqn, count), self.expected) > 0:
            return False
        self.stats.duplicates += count
        return True

    def on_fragment(
        self,
        sqn: int,
        frag: Frag | None,
        payload: Payload,
        now_ns: int,
        flags: int = 0,
        headers: MessageHeaders | None = None,
    ) -> None:
        """Take one LBMC data message; `frag` is (first sqn, offset, total) of its FRAG block.

        `flags` come back as given, `headers` those of the first fragment.
        """
        expected = self.expected
        if expected is None:
            expected = self._begin(sqn, frag)
            if expected is None:
                self.stats.orphans += 1
                return
        distance = ahead(sqn, expected)
        if distance == 0 and not self._gaps:
            self.expected = self._high = (sqn + 1) & MASK
            self._hand(sqn, frag, payload, flags, headers)
            return
        if distance < 0 or sqn in self._held:
            self._on_settled(sqn, frag, payload, flags, headers)
        else:
            if ahead(sqn, self._high) >= 0:
                self._extend(sqn, 1, now_ns)
            self._place(sqn, frag, payload, flags, headers)
        if self._gaps:
            self._expire(now_ns)
            self._fit()

    def on_tsni(self, sqn: int, now_ns: int) -> None:
        """The source says that `sqn` is its newest topic sqn."""
        if self.expected is None:
            after = add(sqn, 1)
            if self._tentative is None or ahead(after, self._tentative) > 0:
                self._tentative = after
            return
        if ahead(sqn, self._high) >= 0:
            self._extend(add(sqn, 1), 0, now_ns)
        if self._gaps:
            self._expire(now_ns)
            self._fit()

    def on_replaced(self, first_sqn: int) -> None:
        """Give up what is missing before `first_sqn`: a session took over with it, and none is left that could repair.

        Guess: a repair that reaches a DRO only now, and comes over the new session, is too late then.
        """
        if self.expected is not None and not self.is_recovering and not self._cfg.recovers:
            self._give_up(first_sqn)

    def on_end(self) -> None:
        """The last session that fed this source has ended: what waits is neither delivered nor reported.

        Source: UM documentation, "unreported loss at the end of a session"; also seen in a real capture.
        """
        self.stats.discarded += sum(held is not None for held in self._held.values())
        self._held.clear()
        self._held_bytes = 0
        self._gaps.clear()
        self._joiner.drop()
        if self.expected is not None:
            self.expected = self._high

    def next_deadline(self) -> int | None:
        """Return when `on_timer` has something to give up; None while only an event may do so."""
        if not self._gaps or self._gaps[0][1] >= NEVER_NS:
            return None
        deadline = self._gaps[0][1]
        check_ns = self._cfg.loss_check_interval_ns
        if self._cfg.immediate:
            return deadline
        return -(-deadline // check_ns) * check_ns if check_ns > 0 else None

    def on_timer(self, now_ns: int) -> None:
        deadline = self.next_deadline()
        if deadline is not None and deadline <= now_ns:
            self._expire(now_ns)

    def take_events(self) -> list[DeliveryEvent]:
        """Return what happened since the last call, in order."""
        events = self._events
        if events:
            self._events = []
        return events

    def hold(self, *, is_on: bool) -> None:
        """Deliver in order whatever the mode is, and nothing by `accept_run`; a replaced session loses nothing."""
        self.is_recovering = is_on

    @property
    def _orders(self) -> bool:
        return self._in_order or self.is_recovering

    def begin_at(self, sqn: int) -> None:
        """Begin at `sqn` before the first fragment; what is missing from there on is a loss that is reported."""
        self.expected = self._high = self._floor = sqn
        self._handed_up = True

    def expect_before(self, end: int) -> None:
        """All sqns before `end` were sent: what is missing of them waits, and is given up by `give_up` alone."""
        if ahead(end, self._high) > 0:
            if self._gaps and self._gaps[-1][1] == NEVER_NS:
                self._gaps.pop()
            self._gaps.append((end, NEVER_NS))
            self._high = end

    def give_up(self, end: int) -> None:
        """Settle everything before `end`, which was sent: what is missing is lost, more in a row as a burst."""
        self.expect_before(end)
        self._give_up(end)

    def _give_up(self, end: int) -> int:
        """Settle everything before `end`: what is held is handed up, what is missing is lost. Returns `expected`."""
        start = self.expected
        assert start is not None
        span = ahead(end, start)
        row_max = self._burst_limit if self.is_recovering or self._cfg.recovers else self._cfg.row_max
        if span > row_max:  # the work must not grow with what the other side says
            held = sorted(at for at in (ahead(sqn, start) for sqn in self._held) if at < span)
            for at in (*held, span):
                sqn = add(start, at)
                if (missing := ahead(sqn, self.expected or 0)) > row_max:
                    self._lose_burst(sqn, missing)
                self._give_up_each(sqn)
        return self._give_up_each(end)

    def is_missing(self, sqn: int) -> bool:
        """Whether `sqn` is not settled and not here, sent or not yet."""
        return self.expected is not None and ahead(sqn, self.expected) >= 0 and sqn not in self._held

    @property
    def known_end(self) -> int:
        """The sqn after the newest that is known."""
        return self._high

    @property
    def gaps_end(self) -> int | None:
        """The sqn behind the newest gap; None without one."""
        return self._gaps[-1][0] if self._gaps else None

    @property
    def held(self) -> int:
        """Fragments that wait for others."""
        return len(self._held)

    @property
    def has_room(self) -> bool:
        """Whether more fragments can be held, with as many bytes again as are held."""
        return len(self._held) < self._map_limit and 2 * self._held_bytes < self._cfg.held_max_bytes

    def _begin(self, sqn: int, frag: Frag | None) -> int | None:
        """Set where delivery begins; None while only middles of messages came."""
        tentative = self._tentative
        if tentative is not None and 0 <= ahead(sqn, tentative) <= self._burst_limit:
            start = tentative
        elif frag is None or frag[1] == 0 or self._cfg.ordered_delivery == ARRIVAL_FRAGMENTS:
            start = sqn
        else:
            return None
        self.expected = self._high = self._floor = start
        return start

    def _extend(self, sqn: int, length: int, now_ns: int) -> None:
        """Go on to `sqn`, beyond the newest known one: all between is missing. `length` 1: `sqn` itself is here."""
        expected = self.expected
        assert expected is not None
        gap = sqn - self._high & MASK  # half around when it follows a TSNI
        if gap > self._burst_limit:
            self._burst(expected, sqn)
        elif gap > 0:
            if len(self._gaps) >= GAPS_MAX:
                self._gaps.pop()
            self._gaps.append((sqn, now_ns + self._wait_ns))
        self._high = add(sqn, length)

    def _burst(self, expected: int, sqn: int) -> None:
        if self._orders:
            self.stats.discarded += len(self._held)
        elif self._held:  # handed up at arrival: the burst begins after the newest of them
            newest = max(ahead(held, expected) for held in self._held)
            expected = self._give_up(add(expected, newest))
        missing = sqn - expected & MASK  # it may be more than half around
        self._held.clear()
        self._held_bytes = 0
        self._gaps.clear()
        self._lose_burst(sqn, missing)

    def _lose_burst(self, sqn: int, missing: int) -> None:
        """Go on at `sqn`: so many before it are lost."""
        self._joiner.on_lost(add(sqn, -1))
        self.expected = sqn
        if self._handed_up:
            self.stats.bursts += 1
            self.stats.lost += missing
            self._events.append(LossBurst(add(sqn, -missing), missing))

    def _place(self, sqn: int, frag: Frag | None, payload: Payload, flags: int, headers: MessageHeaders | None) -> None:
        """Take a fragment whose sqn is not settled."""
        if self._orders and sqn != self.expected:
            self._held[sqn] = (frag, bytes(payload), flags, headers)
            self._held_bytes += held_size(payload, headers)
            return
        if sqn == self.expected:
            self.expected = add(sqn, 1)
            self._hand(sqn, frag, payload, flags, headers)
            self._drain()
        else:
            self._held[sqn] = None
            self._hand(sqn, frag, payload, flags, headers)

    def _drain(self) -> int:
        """Settle what is held right behind `expected`, and forget gaps that are closed. Returns `expected`."""
        expected = self.expected
        assert expected is not None
        held = self._held
        while expected in held:
            entry = held.pop(expected)
            if entry is not None:
                self._held_bytes -= held_size(entry[1], entry[3])
                self._hand(expected, *entry)
            expected = (expected + 1) & MASK
        self.expected = expected
        gaps = self._gaps
        while gaps and ahead(gaps[0][0], expected) <= 0:
            gaps.popleft()
        return expected

    def _expire(self, now_ns: int) -> None:
        """Give up the gaps whose time is over."""
        gaps = self._gaps
        end: int | None = None
        while gaps and gaps[0][1] <= now_ns:
            end = gaps.popleft()[0]
        if end is not None:
            self._give_up(end)

    def _give_up_each(self, end: int) -> int:
        """Do it sqn by sqn."""
        expected = self.expected
        assert expected is not None
        held, lost = self._held, None  # the last of those that are missing in a row
        while ahead(end, expected) > 0:
            if expected in held:
                if lost is not None:
                    self._joiner.on_lost(lost)
                    lost = None
                entry = held.pop(expected)
                if entry is not None:
                    self._held_bytes -= held_size(entry[1], entry[3])
                    self._hand(expected, *entry)
            else:
                self._lose(expected)
                lost = expected
            expected = (expected + 1) & MASK
        if lost is not None:
            self._joiner.on_lost(lost)
        self.expected = expected
        return self._drain()

    def _fit(self) -> None:
        """Give up the oldest gaps while more is held or missing than may be."""
        end = self.expected
        assert end is not None
        while self._is_over_limit(end):
            after = (at for at in (ahead(sqn, end) for sqn in self._held) if at > 0)
            end = add(end, min(after, default=ahead(self._high, end)))
            end = self._give_up(end)

    def _is_over_limit(self, expected: int) -> bool:
        held = len(self._held)
        missing = 0 if self.is_recovering else ahead(self._high, expected) - held
        return held > self._map_limit or self._held_bytes > self._cfg.held_max_bytes or missing > MISSING_MAX

    def _on_settled(
        self, sqn: int, frag: Frag | None, payload: Payload, flags: int, headers: MessageHeaders | None
    ) -> None:
        """Take a duplicate, a repair that came too late, or in arrival order one from before the first fragment."""
        if not self._orders and self._is_before_start(sqn):
            self._hand(sqn, frag, payload, flags, headers)
        else:
            self.stats.duplicates += 1

    def _is_before_start(self, sqn: int) -> bool:
        """Say whether `sqn` is before the start, which is forgotten before sqns have gone half around."""
        assert self.expected is not None
        if not 0 <= ahead(self.expected, self._floor) < START_KEPT:
            self._floor = add(self.expected, -START_KEPT)
        return ahead(sqn, self._floor) < 0

    def _lose(self, sqn: int) -> None:
        if self._handed_up:
            self.stats.lost += 1
            self._events.append(Lost(sqn))

    def _hand(self, sqn: int, frag: Frag | None, payload: Payload, flags: int, headers: MessageHeaders | None) -> None:
        """Hand a settled fragment to reassembly, or up."""
        if self._cfg.ordered_delivery == ARRIVAL_FRAGMENTS:
            first = sqn if frag is None else frag[0]
            outcome: Delivered | Refusal | None = Delivered(sqn, first, payload, flags, frag, headers)
        else:
            outcome = self._joiner.take(sqn, frag, payload, flags, headers)
        if isinstance(outcome, Delivered):
            self._handed_up = True
            self.stats.delivered += 1
            self._events.append(outcome)
        elif outcome is not None:
            self._count_refusal(outcome, sqn)

    def _count_refusal(self, why: Refusal, sqn: int) -> None:
        """Count why a message cannot be delivered, and report it as lost, once, by the sqn that showed it.

        Not so from before the first fragment: sqns are not followed there, so it could be more than once.
        """
        match why:
            case Refusal.ORPHAN:
                self.stats.orphans += 1
                return
            case Refusal.MALFORMED:
                self.stats.malformed += 1
            case Refusal.TOO_LONG:
                self.stats.too_long += 1
        if self._handed_up and (self._in_order or not self._is_before_start(sqn)):
            self.stats.lost += 1
            self._events.append(Lost(sqn))


StateLayout(
    DeliveryController,
    2,
    expected=int | None,
    is_recovering=bool,
    stats=Same,
    _high=int,
    _floor=int,
    _tentative=int | None,
    _handed_up=bool,
    _held=dict[int, _Held | None],
    _held_bytes=int,
    _gaps=deque[tuple[int, int]],
    _joiner=Same,
    _events=list[DeliveryEvent],
)
