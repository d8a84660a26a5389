"""Plays a script of packets to a core on a fake clock, from its beginning.

A core that is due must not stay due.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import cache
from random import Random
from typing import Final, Protocol

from dro.clock import ms
from dro.errors import DecodeError
from dro.proto.interest.events import InterestEvent, InterestGained, Symbol
from tests.fuzz.mutate import DELAYS_MS, script, steps_of
from tests.fuzz.seeds import Seeds
from tests.fuzz.target import Target

SMALL: Final = 8
"""Limits of what is remembered."""
_AT_ONCE: Final = 100


class Core(Protocol):
    def next_deadline(self) -> int | None: ...
    def on_timer(self, now_ns: int) -> object: ...


class Player:
    """The clock. `drain` takes what the core wants to be done, after everything that it is told."""

    def __init__(self, core: Core, drain: Callable[[int], object], timers: int = 400) -> None:
        """`timers`: so many are on time between two packets."""
        self.core, self.drain, self.now_ns = core, drain, 0
        self._timers = timers

    def play(self, data: bytes, hear: Callable[[bytes, int], Hashable], settle_ns: int) -> set[Hashable]:
        """What `hear` gave for the packets that it took. Raises: DecodeError when it took none."""
        signs: set[Hashable] = set()
        why = DecodeError("script", "no packet")
        for after_ms, packet in steps_of(data):
            self._run(self.now_ns + ms(after_ms))
            try:
                signs.add(hear(packet, self.now_ns))
            except DecodeError as e:
                why = e
            self.drain(self.now_ns)
        self._run(self.now_ns + settle_ns)
        if not signs:
            raise why
        return signs

    def _run(self, until_ns: int) -> None:
        """All timers up to then; when they are many, the last ones late."""
        at_once, last_ns = 0, -1
        for _ in range(self._timers):
            due_ns = self.core.next_deadline()
            if due_ns is None or due_ns > until_ns:
                break
            self.now_ns = max(self.now_ns, due_ns)
            at_once = at_once + 1 if self.now_ns == last_ns else 0
            last_ns = self.now_ns
            assert at_once < _AT_ONCE, "it stays due"
            self.core.on_timer(self.now_ns)
            self.drain(self.now_ns)
        self.now_ns = until_ns
        if (due_ns := self.core.next_deadline()) is not None and due_ns <= until_ns:
            self.core.on_timer(until_ns)
            self.drain(until_ns)


def scripts(packets: Callable[[], Iterable[bytes]], first: bytes = b"", alone: int = 1000) -> Seeds:
    """Scripts of these packets in some orders, and of `alone` of them by themselves, each behind `first`."""

    def made() -> list[bytes]:
        draw, known = Random(1), list(packets())
        begin = [(0, first)] if first else []
        found = [script([*begin, (DELAYS_MS[n % len(DELAYS_MS)], packet)]) for n, packet in enumerate(known[:alone])]
        for count in (4, 12, 12, 12, 30):
            some = draw.choices(known, k=count)
            found.append(script([*begin, *((draw.choice(DELAYS_MS), packet) for packet in some)]))
        return found

    return cache(made)


class Wanted:
    """What events of interest add up to."""

    def __init__(self) -> None:
        self.keys: set[tuple[Symbol, int]] = set()

    def take(self, events: Iterable[InterestEvent]) -> None:
        for event in events:
            key = (event.symbol, event.domain_id)
            if isinstance(event, InterestGained):
                assert key not in self.keys, "gained twice"
                self.keys.add(key)
            else:
                assert key in self.keys, "lost and not gained"
                self.keys.remove(key)


def core_target(name: str, seeds: Seeds, check: Callable[[bytes], Hashable], short: int = 100) -> Target:
    """A target whose inputs are scripts."""
    return Target(name, seeds, check, form="script", short=short)
