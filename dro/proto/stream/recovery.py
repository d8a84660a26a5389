"""Late join and off-transport recovery (OTR) of one stream: which messages its origin is asked for, and when.

Stands in front of the delivery controller of the stream: takes what comes live and what is sent again, and says what to
ask for. Called by `dro.proto.stream.stream` and the message level of a context; never by a DRO, which passes requests
and answers on.

    phase      live fragments                      asks                                   next
    ASKING     held, up to the proximity           which messages are retained, each      FETCHING: told
                                                   interval                               LIVE: nobody has answered
    FETCHING   through the controller, in order;   for each that is missing, oldest       LIVE: nothing is missing, and
               beyond the proximity dropped        first; a silent source for its sqn     the session has begun
    LIVE       through the controller              OTR: what is missing a while after it
                                                   was noticed, at once when much waits

A message is asked for again each interval, which doubles in OTR, and is given up after a time: a loss. While messages
are fetched, what the source says it does not retain any more is given up as soon as it says so. A burst of losses,
which the controller reports at once, is nothing to recover. All sqns are settled once, by the controller.

Source: client library notes, sections 5 and 6; transport notes, section 13. Guess: what is missing between the retained
messages and the first live one, or comes to be missing while others are fetched, is fetched with them; a request that
is repeated asks as well what is retained. Guess: the limits.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile
from typing import Final, TypeAlias

from dro.clock import ms
from dro.proto.delivery.order import GAPS_MAX, HELD_MAX, MISSING_MAX, DeliveryController
from dro.proto.delivery.reassembly import Frag, Payload
from dro.proto.stream.asks import AskAgain, AskLimits, AskNewest, AskRetained, RecoveryConfig, RetransmissionAsk
from dro.sqn import add, ahead
from dro.state import StateLayout
from dro.wire.lbmc.headers import MessageHeaders

HELD_MAX_BYTES: Final = 1 << 26
"""Limits the live fragments that wait until the source has said what it retains."""
ASKED_MAX: Final = 1 << 16
"""Requests that are not answered, where options set no limit."""
SPAN_MAX: Final = 1 << 30
"""Sqns from the oldest that is missing to the newest: of more nobody could say which is older."""
_INTERVAL_LEAST_NS: Final = ms(1)


class RecoveryPhase(Enum):
    ASKING = "asking"
    FETCHING = "fetching"
    LIVE = "live"


@dataclass(slots=True)
class _Ask:
    """One sqn that was asked for."""

    is_otr: bool
    next_ns: int
    interval_ns: int
    end_ns: int


_Waiting: TypeAlias = tuple[Frag | None, bytes, int, MessageHeaders | None]


class Recovery:
    """See the module text. `asks`: what is to be sent, taken by the host."""

    __slots__ = (
        "__weakref__",
        "_asked",
        "_controller",
        "_cursor",
        "_due_end",
        "_end",
        "_has_begun",
        "_heap",
        "_info_left",
        "_info_ns",
        "_noticed",
        "_silent_left",
        "_silent_ns",
        "_tsni",
        "_waiting",
        "_waiting_bytes",
        "_window",
        "asks",
        "config",
        "dropped",
        "phase",
    )

    def __init__(self, controller: DeliveryController, config: RecoveryConfig, now_ns: int) -> None:
        self._controller = controller
        self.config = config
        self._window = min(config.proximity, config.held_max or HELD_MAX, MISSING_MAX)
        """How far ahead of what is missing fragments are held."""
        self.phase = RecoveryPhase.LIVE if config.late_join is None else RecoveryPhase.ASKING
        self.asks: list[RetransmissionAsk] = []
        self.dropped = 0  # live fragments, to be fetched later
        self._waiting: dict[int, _Waiting] = {}  # while ASKING, by sqn
        self._waiting_bytes = 0
        self._tsni: int | None = None  # while ASKING: the newest
        self._has_begun = False  # something was heard on the session
        self._end: int | None = None  # the sqn after the newest that is to be fetched, once something is known
        self._asked: dict[int, _Ask] = {}  # ascending
        self._heap: list[tuple[int, int]] = []  # when, and which sqn, may be over already
        self._cursor = 0  # all that is missing before it was asked for
        self._noticed: deque[tuple[int, int]] = deque()  # gaps for OTR: end, when their time comes
        self._due_end: int | None = None  # OTR asks for what is missing before it
        self._info_ns: int | None = None  # when to ask again what is retained
        self._info_left = config.info_max
        self._silent_ns: int | None = None
        self._silent_left = config.silent_max
        if config.late_join is not None:
            controller.hold(is_on=True)
            self._info_ns = now_ns
            self.on_timer(now_ns)

    @property
    def is_on(self) -> bool:
        """Whether it has to see every fragment."""
        return self.phase is not RecoveryPhase.LIVE or self.config.otr is not None

    # what comes

    def on_fragment(
        self,
        sqn: int,
        frag: Frag | None,
        payload: Payload,
        now_ns: int,
        flags: int = 0,
        headers: MessageHeaders | None = None,
    ) -> None:
        """Take a live fragment, as `DeliveryController.on_fragment` does."""
        match self.phase:
            case RecoveryPhase.ASKING:
                self._hold(sqn, (frag, bytes(payload), flags, headers))
                return
            case RecoveryPhase.FETCHING:
                self._on_live()
                self._admit(sqn, (frag, payload, flags, headers), now_ns)
            case RecoveryPhase.LIVE:
                self._controller.on_fragment(sqn, frag, payload, now_ns, flags, headers)
                if self._asked:
                    self._asked.pop(sqn, None)
                self._notice(now_ns)
        self._go_on(now_ns)

    def on_tsni(self, sqn: int, now_ns: int) -> None:
        """The source says on a session that `sqn` is its newest."""
        match self.phase:
            case RecoveryPhase.ASKING:
                if self._tsni is None or ahead(sqn, self._tsni) > 0:
                    self._tsni = sqn
                return
            case RecoveryPhase.FETCHING:
                self._on_live()
                self._reach(add(sqn, 1))
            case RecoveryPhase.LIVE:
                self._controller.on_tsni(sqn, now_ns)
                self._notice(now_ns)
        self._go_on(now_ns)

    def on_again(
        self, sqn: int, frag: Frag | None, payload: Payload, now_ns: int, flags: int, headers: MessageHeaders | None
    ) -> bool:
        """Take a fragment that was sent again; False when it was not asked for, or is here already."""
        ask = self._asked.get(sqn)
        limits = self.config.late_join if ask is None or not ask.is_otr else self.config.otr
        if ask is None or limits is None:
            return False
        self._give(sqn, (frag, payload, flags | limits.flag, headers), now_ns)
        self._go_on(now_ns)
        return True

    def on_retained(self, low: int, high: int, now_ns: int) -> None:
        """The source says that it retains `low` to `high`; `high` + 1 to `high`: nothing."""
        after = add(high, 1)
        if not 0 <= ahead(after, low) <= SPAN_MAX:
            return
        if self.phase is RecoveryPhase.ASKING:
            self._begin(low, after, now_ns)
        elif self.phase is RecoveryPhase.FETCHING and self._asked and ahead(low, self._newest_end()) <= 0:
            expected = self._controller.expected
            if expected is not None and ahead(low, expected) > 0:
                self._controller.give_up(low)
        self._go_on(now_ns)

    # time

    def next_deadline(self) -> int | None:
        heap, asked = self._heap, self._asked
        while heap and ((ask := asked.get(heap[0][1])) is None or ask.next_ns != heap[0][0]):
            heapq.heappop(heap)
        known = [due for due in (self._info_ns, self._silent_ns) if due is not None]
        if heap:
            known.append(heap[0][0])
        if self._noticed:
            known.append(self._noticed[0][1])
        return min(known, default=None)

    def on_timer(self, now_ns: int) -> None:
        config = self.config
        if self._info_ns is not None and self._info_ns <= now_ns:
            self._info_ns = None
            if self.phase is RecoveryPhase.ASKING:
                if self._info_left > 0:
                    self._info_left -= 1
                    self._ask_retained(now_ns)
                else:
                    self._begin_live(now_ns)
        if self._silent_ns is not None and self._silent_ns <= now_ns:
            self._silent_ns = None
            if self._silent_left > 0:
                self._silent_left -= 1
                self.asks.append(AskNewest())
                self._silent_ns = now_ns + max(config.silent_interval_ns, _INTERVAL_LEAST_NS)
        self._repeat(now_ns)
        self._go_on(now_ns)

    def close(self) -> None:
        """Ask for nothing more."""
        self.asks.clear()
        self._asked.clear()
        self._heap.clear()
        self._noticed.clear()
        self._waiting.clear()
        self._info_ns = self._silent_ns = None
        self.phase = RecoveryPhase.LIVE
        self._due_end = None
        self._controller.hold(is_on=False)

    # the beginning

    def _hold(self, sqn: int, fragment: _Waiting) -> None:
        """Keep a live fragment until it is known what is retained."""
        self._has_begun = True
        if len(self._waiting) < max(self._window, 1) and self._waiting_bytes < HELD_MAX_BYTES:
            if sqn not in self._waiting:
                self._waiting[sqn] = fragment
                self._waiting_bytes += len(fragment[1])
        else:
            self.dropped += 1
            self._tsni = sqn if self._tsni is None or ahead(sqn, self._tsni) > 0 else self._tsni

    def _take_waiting(self) -> dict[int, _Waiting]:
        waiting, self._waiting, self._waiting_bytes = self._waiting, {}, 0
        return waiting

    def _begin(self, low: int, after: int, now_ns: int) -> None:
        """Begin with what is retained."""
        controller, config = self._controller, self.config
        waiting = self._take_waiting()
        start = low
        if config.request_max and ahead(after, low) > config.request_max:
            start = add(after, -config.request_max)
        for sqn in waiting:
            if 0 < ahead(start, sqn) <= MISSING_MAX:
                start = sqn
        controller.begin_at(start)
        self.phase, self._end, self._cursor, self._info_ns = RecoveryPhase.FETCHING, after, start, None
        if self._tsni is not None:
            self._has_begun = True
            self._reach(add(self._tsni, 1))
        for sqn in sorted(waiting, key=lambda one: ahead(one, start)):
            self._admit(sqn, waiting[sqn], now_ns)
        if low == after and not self._has_begun and config.asks_silent:
            self._silent_ns = now_ns

    def _begin_live(self, now_ns: int) -> None:
        """Begin with what came: nobody has said what is retained."""
        self._be_live()
        if self._tsni is not None and not self._waiting:
            self._controller.on_tsni(self._tsni, now_ns)
        for sqn, fragment in self._take_waiting().items():
            self._controller.on_fragment(sqn, fragment[0], fragment[1], now_ns, fragment[2], fragment[3])
        self._notice(now_ns)

    def _be_live(self) -> None:
        self.phase = RecoveryPhase.LIVE
        self._silent_ns = None
        self._controller.hold(is_on=False)

    # while fetching

    def _on_live(self) -> None:
        self._has_begun = True
        self._silent_ns = None

    def _newest_end(self) -> int:
        """Return the sqn after the newest that is known."""
        known, end = self._controller.known_end, self._end
        return end if end is not None and ahead(end, known) > 0 else known

    def _reach(self, end: int) -> bool:
        """Note that all before `end` were sent; False for a leap that is too wide to be true."""
        assert self._end is not None
        leap = ahead(end, self._newest_end())
        expected = self._controller.expected
        if leap > MISSING_MAX or (expected is not None and ahead(end, expected) > SPAN_MAX):
            return False
        if leap > 0:
            self._end = end
        return True

    def _admit(self, sqn: int, fragment: tuple[Frag | None, Payload, int, MessageHeaders | None], now_ns: int) -> None:
        """Take a live fragment unless it is too far ahead of what is missing."""
        controller = self._controller
        assert controller.expected is not None
        distance = ahead(sqn, controller.expected)
        if not self._reach(add(sqn, 1)) or (distance > 0 and (distance > self._window or not controller.has_room)):
            self.dropped += 1
            return
        self._give(sqn, fragment, now_ns)

    def _give(self, sqn: int, fragment: tuple[Frag | None, Payload, int, MessageHeaders | None], now_ns: int) -> None:
        """Give the controller a fragment; what is missing before it has no deadline there."""
        frag, payload, flags, headers = fragment
        self._controller.expect_before(sqn)
        self._controller.on_fragment(sqn, frag, payload, now_ns, flags, headers)
        self._asked.pop(sqn, None)

    # asking

    def _notice(self, now_ns: int) -> None:
        """Note when OTR is to ask for a gap that has just come to be known."""
        if self.config.otr is None:
            return
        end = self._controller.gaps_end
        noticed = self._noticed
        if end is None:
            noticed.clear()
        elif not noticed or noticed[-1][0] != end:
            if self._due_end is not None and ahead(end, self._due_end) <= 0:
                return
            if len(noticed) >= GAPS_MAX:
                noticed[-1] = (end, noticed[-1][1])
            else:
                noticed.append((end, now_ns + self.config.otr_delay_ns))

    def _go_on(self, now_ns: int) -> None:
        """Forget what is settled, and ask for what may be asked for now."""
        controller, config, asked = self._controller, self.config, self._asked
        expected = controller.expected
        if expected is None or self.phase is RecoveryPhase.ASKING:
            return
        settled = list(takewhile(lambda sqn: not 0 <= ahead(sqn, expected) <= SPAN_MAX, asked))
        for sqn in settled:
            del asked[sqn]
        if self.phase is RecoveryPhase.FETCHING:
            limits, end = config.late_join, self._newest_end()
            if expected == end and self._has_begun:
                self._be_live()
                return
        else:
            limits, noticed = config.otr, self._noticed
            is_full = controller.held >= config.otr_threshold
            while noticed and (is_full or noticed[0][1] <= now_ns):
                if self._due_end is None:
                    self._cursor = expected
                self._due_end = noticed.popleft()[0]
            if self._due_end is not None and ahead(self._due_end, expected) <= 0:
                self._due_end = None
            if self._due_end is None:
                return
            end = self._due_end
        if limits is None:
            return
        cursor = self._cursor
        if ahead(expected, cursor) > 0:
            cursor = expected
        while ahead(end, cursor) > 0 and len(asked) < (limits.outstanding_max or ASKED_MAX):
            if cursor != expected and self.phase is RecoveryPhase.FETCHING and not self._is_near(cursor, expected):
                break
            if controller.is_missing(cursor):
                self._ask(cursor, limits, now_ns, is_otr=self.phase is RecoveryPhase.LIVE)
            cursor = add(cursor, 1)
        self._cursor = cursor

    def _is_near(self, sqn: int, expected: int) -> bool:
        """Tell whether a fragment that is not the next one can be held when it comes."""
        assert self.config.late_join is not None
        room = max(self._window, self.config.late_join.outstanding_max)
        return ahead(sqn, expected) < min(room, MISSING_MAX) and self._controller.has_room

    def _ask(self, sqn: int, limits: AskLimits, now_ns: int, *, is_otr: bool) -> None:
        interval_ns = max(limits.interval_ns, _INTERVAL_LEAST_NS)
        end_ns = now_ns + limits.timeout_ns
        ask = self._asked[sqn] = _Ask(is_otr, min(now_ns + interval_ns, end_ns), interval_ns, end_ns)
        heapq.heappush(self._heap, (ask.next_ns, sqn))
        self.asks.append(AskAgain(sqn, is_otr))

    def _ask_retained(self, now_ns: int) -> None:
        self.asks.append(AskRetained())
        self._info_ns = now_ns + max(self.config.info_interval_ns, _INTERVAL_LEAST_NS)

    def _repeat(self, now_ns: int) -> None:
        """Ask again, or give up, what was not answered."""
        heap, asked, config = self._heap, self._asked, self.config
        is_over: int | None = None
        while heap and heap[0][0] <= now_ns:
            when_ns, sqn = heapq.heappop(heap)
            ask = asked.get(sqn)
            if ask is None or ask.next_ns != when_ns:
                continue
            if not self._controller.is_missing(sqn):
                del asked[sqn]
                continue
            limits = config.otr if ask.is_otr else config.late_join
            assert limits is not None
            if ask.end_ns <= now_ns:
                if is_over is None or ahead(sqn, is_over) > 0:
                    is_over = sqn
                continue
            if ask.is_otr:
                ask.interval_ns = min(2 * ask.interval_ns, max(limits.interval_max_ns, _INTERVAL_LEAST_NS))
            ask.next_ns = min(now_ns + ask.interval_ns, ask.end_ns)
            heapq.heappush(heap, (ask.next_ns, sqn))
            self.asks.append(AskAgain(sqn, ask.is_otr))
            if not ask.is_otr and self._info_ns is None:
                self._ask_retained(now_ns)
        if is_over is not None:
            self._controller.give_up(add(is_over, 1))


StateLayout(
    Recovery,
    1,
    phase=RecoveryPhase,
    asks=list[RetransmissionAsk],
    dropped=int,
    _waiting=dict[int, _Waiting],
    _waiting_bytes=int,
    _tsni=int | None,
    _has_begun=bool,
    _end=int | None,
    _asked=dict[int, _Ask],
    _heap=list[tuple[int, int]],
    _cursor=int,
    _noticed=deque[tuple[int, int]],
    _due_end=int | None,
    _info_ns=int | None,
    _info_left=int,
    _silent_ns=int | None,
    _silent_left=int,
)
