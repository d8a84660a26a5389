"""The one stream that hot failover makes of all sources of a topic: each number once, from the source that is first.

State: the next number that is not settled, what is held beyond it, the gaps, how far each source has come. Called by
the hot failover receivers of the message level, with messages as the delivery controllers of the sources hand them up.

    number before the next one, or here already   a duplicate
    number beyond the newest one                  between them is a gap; it is held, or in arrival order handed up
    all live sources have passed a gap            settled at once
    the wait is over                              settled, whatever may still come
    a source passed it and had lost nothing       an intentional gap: nobody sent it, it is not reported
    no source did                                 `NumbersLost`
    jump of more than `GAP_MAX`                   everything before is given up

A source that resets its numbers begins a generation. The first one that does so makes all begin anew; the others follow
when their own reset comes, and what they send before that is of the generation that is over. A reset that is lost
shows in the messages after it.

Source: client library notes, section 11; transport notes, 12 (limits). Guess: the number of a lost message is unknown,
so all numbers of an interval in which sources lost something, and which none has passed whole, are lost. Guess: a
source is in the generation that the stream had when it was found; what is outdated counts all the same when no source
of the newer generation is left.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Final, Generic, TypeAlias, TypeVar

from dro.clock import NS_PER_S
from dro.wire.lbmc.failover import HotFailover

GAP_MAX: Final = 1_073_741_824
GAPS_MAX: Final = 4096
HELD_MAX: Final = 1 << 22
HELD_MAX_BYTES: Final = 1 << 28

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FailoverConfig:
    """Tell one merged stream of its receiver."""

    wait_ns: int = 10 * NS_PER_S
    is_in_order: bool = True
    map_limit: int = 200_000  # messages held, 0 = only the bounds of this module
    optional_messages: bool = True
    duplicate_delivery: bool = False


@dataclass(frozen=True, slots=True)
class Merged(Generic[T]):
    """A message for the application."""

    item: T
    is_duplicate: bool = False


@dataclass(frozen=True, slots=True)
class NumbersLost:
    """`count` numbers from `first` on were given up."""

    first: int
    count: int


@dataclass(frozen=True, slots=True)
class NumbersReset:
    """Numbers begin anew: `source` was the first to say so."""

    source: str
    generation: int


FailoverEvent: TypeAlias = Merged[T] | NumbersLost | NumbersReset


@dataclass(slots=True)
class _NumberGap:
    start: int
    end: int
    deadline_ns: int
    is_intended: bool = False  # a source has passed it, and had lost nothing


@dataclass(slots=True)
class _FailoverProgress:
    """How far one source has come; numbers as in `FailoverStream`."""

    base: int | None  # generation of the stream when it was found; None: there was none
    offset: int | None = None  # from its generations to those of the stream; None: not heard
    is_current: bool = False  # heard in the generation of the stream
    newest: int | None = None
    passed: int | None = None  # it has sent everything before that it will
    has_lost: bool = False  # since then


@dataclass(slots=True)
class FailoverStats:
    """Counts of one merged stream."""

    delivered: int = 0
    duplicates: int = 0
    lost: int = 0  # numbers
    intended: int = 0  # numbers that no source sent
    outdated: int = 0  # messages of a generation that is over


class FailoverStream(Generic[T]):
    """Numbers are counted on beyond their bits inside, and cut to them in events."""

    __slots__ = (
        "_bits",
        "_cfg",
        "_events",
        "_first",
        "_gaps",
        "_generation",
        "_held",
        "_held_bytes",
        "_high",
        "_next",
        "_sources",
        "stats",
    )

    def __init__(self, cfg: FailoverConfig) -> None:
        self._cfg = cfg
        self.stats = FailoverStats()
        self._next: int | None = None  # None before the first message
        self._high = 0  # newest number + 1
        self._bits = 32
        self._generation: int | None = None
        self._first = 0  # generation
        self._held: dict[int, tuple[T, int, bool] | None] = {}  # item, size, optional; None: handed up at arrival
        self._held_bytes = 0
        self._gaps: list[_NumberGap] = []  # in order; the first one begins at `_next`
        self._sources: dict[str, _FailoverProgress] = {}
        self._events: list[FailoverEvent[T]] = []

    # input

    def on_source(self, source: str, *, added: bool, now_ns: int) -> None:
        """Note that a source was found, or is gone: what only it could have sent is waited for no longer."""
        if added:
            self._sources[source] = _FailoverProgress(self._generation)
        else:
            self._sources.pop(source, None)
        self._settle(now_ns)

    def on_message(
        self, source: str, failover: HotFailover, item: T, size: int, now_ns: int, *, is_whole: bool = True
    ) -> None:
        """Take the next message of a source. `is_whole`: nothing that it sent before is still missing."""
        known = self._sources.get(source) or _FailoverProgress(
            self._generation
        )  # one that is gone may leave messages behind
        if not self._follow(source, known, failover):
            self.stats.outdated += 1
            return
        if failover.number is None:
            return
        place = self._place_of(failover.number, failover.bits)
        if self._take(place, item, size, failover, now_ns):
            self._hand_duplicate(item, failover)
        self._advance(known, place, is_whole=is_whole)
        self._settle(now_ns)
        self._fit()

    def on_lost(self, source: str) -> None:
        """Note that a source has lost a message; which number it had is not known."""
        known = self._sources.get(source)
        if known is not None:
            known.has_lost = True

    def next_deadline(self) -> int | None:
        return self._gaps[0].deadline_ns if self._gaps else None

    def on_timer(self, now_ns: int) -> None:
        self._settle(now_ns)

    def take_events(self) -> list[FailoverEvent[T]]:
        """Return what happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    # generations

    def _follow(self, source: str, known: _FailoverProgress, failover: HotFailover) -> bool:
        """Find the generation of a message, and begin it if it is new; False: it is of one that is over."""
        own, is_reset = failover.generation, failover.number is None
        if self._generation is None:
            self._generation = self._first = own
            known.offset, known.is_current = 0, True
            if is_reset:
                self._events.append(NumbersReset(source, own))
            return True
        is_joined = any(one.is_current for one in self._sources.values() if one is not known)
        if known.offset is None:
            known.offset = self._found_in(known, is_reset=is_reset, is_joined=is_joined) - own
        ahead = (own + known.offset - self._generation + 128) % 256 - 128
        if ahead > 0:
            generation = (self._generation + ahead) % 256
            self._begin_anew(generation)
            self._events.append(NumbersReset(source, generation))
        elif ahead < 0:
            if is_joined:
                return False
            known.offset -= ahead
        known.is_current = True
        return True

    def _found_in(self, known: _FailoverProgress, *, is_reset: bool, is_joined: bool) -> int:
        """Choose the generation of the first message that is heard of a source."""
        assert self._generation is not None
        if is_reset and known.base is not None and is_joined:
            return self._generation  # it begins beside others, and with a reset
        return (self._first if known.base is None else known.base) + is_reset

    def _begin_anew(self, generation: int) -> None:
        while self._gaps:
            self._give_up(self._gaps[0].end)
        self._next, self._generation = None, generation
        self._held.clear()
        self._held_bytes = 0
        for one in self._sources.values():
            one.newest = one.passed = None
            one.has_lost = one.is_current = False

    # numbers

    def _place_of(self, number: int, bits: int) -> int:
        """Count a number on from the next one, by the shorter way around."""
        self._bits = bits
        if self._next is None:
            self._next = self._high = number
            return number
        half = 1 << bits - 1
        return self._next + (number - self._next + half) % (half * 2) - half

    def _take(self, place: int, item: T, size: int, failover: HotFailover, now_ns: int) -> bool:
        """Take a message, and say whether it is a duplicate."""
        expected = self._next
        assert expected is not None
        if place < expected or place in self._held:
            return True
        if place - self._high > GAP_MAX:
            while self._gaps:
                self._give_up(self._gaps[0].end)
            self._drain()
            self._report(self._high, place)
            self._next = self._high = place
        if place >= self._high:
            if place > self._high:
                self._gaps.append(_NumberGap(self._high, place, now_ns + self._cfg.wait_ns))
            self._high = place + 1
        else:
            self._change(place, place + 1, is_here=True)
        if place == self._next and not self._gaps:
            self._next = place + 1
            self._hand(item, failover.is_optional)
        elif self._cfg.is_in_order:
            self._held[place] = (item, size, failover.is_optional)
            self._held_bytes += size
        else:
            self._held[place] = None
            self._hand(item, failover.is_optional)
        return False

    def _advance(self, known: _FailoverProgress, place: int, *, is_whole: bool) -> None:
        """Note how far a source has come, and which gaps it left on purpose."""
        known.newest = place if known.newest is None else max(place, known.newest)
        if not is_whole:
            return
        after = known.newest + 1
        if known.passed is not None and not known.has_lost and self._gaps:
            self._change(known.passed, after, is_here=False)
        known.passed = after
        known.has_lost = False

    def _change(self, start: int, end: int, *, is_here: bool) -> None:
        """Take from the gaps what is here, or mark what was left out on purpose."""
        gaps = self._gaps
        first = bisect_right(gaps, start, key=lambda gap: gap.end)
        behind = bisect_left(gaps, end, first, key=lambda gap: gap.start)
        changed: list[_NumberGap] = []
        for gap in gaps[first:behind]:
            if gap.is_intended and not is_here:
                changed.append(gap)
                continue
            low, high = max(gap.start, start), min(gap.end, end)
            if gap.start < low:
                changed.append(_NumberGap(gap.start, low, gap.deadline_ns, gap.is_intended))
            if not is_here:
                changed.append(_NumberGap(low, high, gap.deadline_ns, is_intended=True))
            if high < gap.end:
                changed.append(_NumberGap(high, gap.end, gap.deadline_ns, gap.is_intended))
        gaps[first:behind] = changed

    # settling

    def _settle(self, now_ns: int) -> None:
        """Hand up what is complete, and give up what nobody will send or what has taken too long."""
        if self._next is None:
            return
        self._drain()
        gaps = self._gaps
        if not gaps:
            return
        passed = self._passed_by_all()
        while gaps:
            gap = gaps[0]
            end = gap.end
            if gap.deadline_ns > now_ns:
                if passed is None or passed <= gap.start:
                    return
                end = min(end, passed)
            self._give_up(end)

    def _passed_by_all(self) -> int | None:
        """Find the number that every live source has passed; None while one has said nothing, or there is none."""
        lowest: int | None = None
        for one in self._sources.values():
            if one.passed is None:
                return None
            lowest = one.passed if lowest is None else min(lowest, one.passed)
        return lowest

    def _give_up(self, end: int) -> None:
        """Settle the first gap up to `end`."""
        gap = self._gaps[0]
        if gap.is_intended:
            self.stats.intended += end - gap.start
        else:
            self._report(gap.start, end)
        self._next = end
        if end < gap.end:
            gap.start = end
        else:
            del self._gaps[0]
            self._drain()

    def _drain(self) -> None:
        """Settle what is held right behind the next number."""
        held, place = self._held, self._next
        assert place is not None
        while place in held:
            entry = held.pop(place)
            if entry is not None:
                item, size, is_optional = entry
                self._held_bytes -= size
                self._hand(item, is_optional)
            place += 1
        self._next = place

    def _report(self, start: int, end: int) -> None:
        self.stats.lost += end - start
        self._events.append(NumbersLost(start % (1 << self._bits), end - start))

    def _fit(self) -> None:
        """Give up the oldest gaps while more is held than may be."""
        limit = self._cfg.map_limit or HELD_MAX
        while self._gaps and (
            len(self._held) > limit or self._held_bytes > HELD_MAX_BYTES or len(self._gaps) > GAPS_MAX
        ):
            self._give_up(self._gaps[0].end)

    def _hand(self, item: T, is_optional: bool) -> None:
        if not is_optional or self._cfg.optional_messages:
            self.stats.delivered += 1
            self._events.append(Merged(item))

    def _hand_duplicate(self, item: T, failover: HotFailover) -> None:
        self.stats.duplicates += 1
        if self._cfg.duplicate_delivery and (not failover.is_optional or self._cfg.optional_messages):
            self._events.append(Merged(item, is_duplicate=True))
