"""Limits on log lines: those that remote hosts can cause, and repeated ones (throttling).

Both use the public form: the last line written before suppression is marked `THROTTLED MSG: `, the suppressed ones are
counted, and `...previous THROTTLED MSG repeated <n> times in <s> seconds` follows when the repetition ends or has
lasted for a while, here with the line and the time of the last one as fields. Source: monitoring reference.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from dro.clock import NS_PER_S
from dro.log.events import LogEvent
from dro.log.lines import MARKED

REPORT_NS: Final = 10 * NS_PER_S  # how long lines are counted at least before they are reported
EVENTS_BURST: Final = 100
EVENTS_EVERY_NS: Final = 5 * NS_PER_S
SAME_BURST: Final = 3  # equal lines within REPORT_NS that are written when others stand between them
SAME_KEYS: Final = 64


def repeated(times: int, duration_ns: int) -> tuple[int, int]:
    """Return what `LogEvent.LINES_REPEATED` says of lines that were not written: how often, in seconds."""
    return times, max(1, round(duration_ns / NS_PER_S))


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_ns: int
    suppressed: int = 0
    since_ns: int = 0  # the line that was marked
    last_ns: int = 0  # when the last came that was not written
    text: str = ""
    level: int = logging.WARNING


_LIMITED: Final[weakref.WeakSet[LimitedLogger]] = weakref.WeakSet()


class LimitedLogger:
    """At most `burst` lines per key at once and in `interval_ns`; the rest is counted and reported, as seldom.

    For what a stranger can cause. Keys are bounded: the one unused for longest is forgotten first.
    """

    def __init__(
        self,
        log: logging.Logger,
        now_ns: Callable[[], int] = time.monotonic_ns,
        *,
        burst: int = 5,
        interval_ns: int = 60 * NS_PER_S,
        max_keys: int = 1024,
    ) -> None:
        self._log = log
        self._now_ns = now_ns
        self._burst = burst
        self._interval_ns = interval_ns
        self._report_ns = max(REPORT_NS, interval_ns // burst)
        self._max_keys = max_keys
        self._buckets: OrderedDict[object, _Bucket] = OrderedDict()
        _LIMITED.add(self)

    @classmethod
    def of_events(cls, log: logging.Logger, now_ns: Callable[[], int] = time.monotonic_ns) -> LimitedLogger:
        """Make one for what goes well, and strangers cause: a hundred lines of each kind at once, then one in 5 s."""
        return cls(log, now_ns, burst=EVENTS_BURST, interval_ns=EVENTS_BURST * EVENTS_EVERY_NS)

    def event(self, event: LogEvent, extra: Mapping[str, object] | None = None, *, key: object = None) -> bool:
        """Log the event unless `key`, if not None the event itself, has had its share; True when it was written."""
        now_ns = self._now_ns()
        level = logging.WARNING if event.level is None else event.level
        key = event if key is None else key
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= self._max_keys:
                _, oldest = self._buckets.popitem(last=False)
                self._report(oldest, now_ns)
            bucket = self._buckets[key] = _Bucket(self._burst, now_ns)
        else:
            self._buckets.move_to_end(key)
            filled = (now_ns - bucket.filled_ns) * self._burst / self._interval_ns
            bucket.tokens, bucket.filled_ns = min(self._burst, bucket.tokens + filled), now_ns
        if bucket.suppressed and now_ns - bucket.since_ns >= self._report_ns:
            self._report(bucket, now_ns)
        if bucket.tokens < 1:
            bucket.suppressed += 1
            bucket.last_ns = now_ns
            return False
        bucket.tokens -= 1
        fields = dict(extra or {})
        if bucket.tokens < 1:
            fields[MARKED] = True
            if not bucket.suppressed:
                bucket.since_ns, bucket.text, bucket.level = now_ns, event, level
        self._log.log(level, event, extra=fields)
        return True

    def report(self, *, at_once: bool = False) -> None:
        """Tell of every key what was not written for some time, or until now."""
        now_ns = self._now_ns()
        for bucket in self._buckets.values():
            if bucket.suppressed and (at_once or now_ns - bucket.since_ns >= self._report_ns):
                self._report(bucket, now_ns)

    def forget(self) -> None:
        """Every key has its whole share again, and nothing was left out."""
        self._buckets.clear()

    def _report(self, bucket: _Bucket, now_ns: int) -> None:
        if bucket.suppressed:
            times, seconds = repeated(bucket.suppressed, now_ns - bucket.since_ns)
            bucket.suppressed, bucket.since_ns = 0, now_ns
            extra = last_field(now_ns - bucket.last_ns) | {"line": bucket.text}
            self._log.log(bucket.level, LogEvent.LINES_REPEATED, times, seconds, extra=extra)


def report_limited(*, at_once: bool = False) -> None:
    """`report` of every limited logger of the process."""
    for limited in list(_LIMITED):
        limited.report(at_once=at_once)


def forget_limited() -> None:
    """Forget after a fork what the parent has left out: the parent tells it."""
    for limited in list(_LIMITED):
        limited.forget()


def last_field(ago_ns: int) -> dict[str, object]:
    """The field that says when the last of the lines came."""
    return {"last_s_ago": f"{ago_ns / NS_PER_S:.1f}"}


@dataclass(slots=True)
class _Same:
    level: int
    since_ns: int
    written: int = 1
    counted: int = 0
    last_ns: int = 0


@dataclass(frozen=True, slots=True)
class RepeatReport:
    """A line about lines that were not written."""

    level: int
    repeated: tuple[int, int]  # times, seconds
    body: str
    last_ago_ns: int


class LineVerdict:
    """What becomes of a line."""

    WRITE: Final = 0
    MARK: Final = 1
    COUNT: Final = 2


class Repeats:
    """Lines that say the same: the first is written, the second marked, more are counted, the last is timed.

    With other lines in between, SAME_BURST lines pass before that within REPORT_NS: what comes and goes is seen.
    """

    def __init__(self) -> None:
        self._same: OrderedDict[tuple[int, str], _Same] = OrderedDict()
        self._previous: tuple[int, str] | None = None
        self._overdue: list[RepeatReport] = []

    def on_line(self, level: int, body: str, now_ns: int) -> int:
        """A `LineVerdict`."""
        key = (level, body)
        is_next, self._previous = key == self._previous, key
        same = self._same.get(key)
        if same is None:
            if len(self._same) >= SAME_KEYS:
                self._forget(now_ns)
            self._same[key] = _Same(level, now_ns)
            return LineVerdict.WRITE
        if not same.counted and now_ns - same.since_ns >= REPORT_NS:
            same.since_ns, same.written = now_ns, 1
            return LineVerdict.WRITE
        if same.written > SAME_BURST or same.counted:
            same.counted += 1
            same.last_ns = now_ns
            return LineVerdict.COUNT
        same.written += 1
        if is_next or same.written > SAME_BURST:
            same.written, same.since_ns = SAME_BURST + 1, now_ns
            return LineVerdict.MARK
        return LineVerdict.WRITE

    def take_reports(self, now_ns: int, *, at_once: bool = False) -> list[RepeatReport]:
        """Return what was counted for long enough, or until now. Forgets what is not repeated any more."""
        reports, self._overdue = self._overdue, []
        for key, same in list(self._same.items()):
            if not at_once and now_ns - same.since_ns < REPORT_NS:
                continue
            if same.counted:
                reports.append(_report(key, same, now_ns))
                same.counted, same.since_ns = 0, now_ns
            else:
                del self._same[key]
        return reports

    def _forget(self, now_ns: int) -> None:
        """Make room: forget the oldest that has nothing to tell, else the oldest."""
        for key, same in self._same.items():
            if not same.counted:
                del self._same[key]
                return
        key, same = self._same.popitem(last=False)
        if len(self._overdue) < SAME_KEYS:
            self._overdue.append(_report(key, same, now_ns))


def _report(key: tuple[int, str], same: _Same, now_ns: int) -> RepeatReport:
    return RepeatReport(same.level, repeated(same.counted, now_ns - same.since_ns), key[1], now_ns - same.last_ns)
