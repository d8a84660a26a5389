"""Patterns of interest, compiled once for all that hold them in a portal."""

from __future__ import annotations

from weakref import WeakValueDictionary

from dro.bus.actor import WorkerContext
from dro.log.events import LogEvent
from dro.patterns import Pattern, PatternError
from portals.decisions.recorded_interest import Matcher


class Matchers:
    """Matchers, which live as long as the core has the interest, or a context wants it."""

    def __init__(self, ctx: WorkerContext) -> None:
        self._ctx = ctx
        self._living: WeakValueDictionary[tuple[bytes, int], Matcher] = WeakValueDictionary()

    def __call__(self, pattern: bytes, kind: int) -> Matcher | None:
        """None for a pattern that does not compile, which is logged."""
        key = (pattern, kind)
        matcher = self._living.get(key)
        if matcher is None:
            try:
                matcher = self._living[key] = Pattern(pattern, kind, self._on_limit)
            except PatternError as e:
                self._ctx.limited(LogEvent.PATTERN_IGNORED, extra={"pattern": pattern, "error": str(e)})
        return matcher

    def _on_limit(self, pattern: bytes) -> None:
        self._ctx.limited(LogEvent.PATTERN_LIMIT, {"pattern": pattern})


def shown(topic: bytes) -> str:
    """Decode a topic for logs and lists."""
    return topic.decode(errors="replace")
