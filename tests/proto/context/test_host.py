"""How the effects of an engine are carried out: one by one, never from within, together, and not after the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

from dro.proto.context.effects import ContextEffect
from dro.proto.context.engine import ContextEngine
from dro.proto.context.host import ContextHost


class Numbers(ContextHost):
    """Has an engine whose effects are numbers, and carries each out by `act`."""

    def __init__(self, act: Callable[[Numbers, int], object]) -> None:
        super().__init__(cast(ContextEngine, self))
        self.waiting: list[int] = []
        self.done: list[int] = []
        self.pumped = 0
        self._act = act

    def take_effects(self, now_ns: int) -> Iterator[int]:
        assert now_ns == 7
        while self.waiting:
            yield self.waiting.pop(0)

    def now_ns(self) -> int:
        return 7

    def perform(self, effect: ContextEffect) -> None:
        number = cast(int, effect)
        self.done.append(number)
        self._act(self, number)

    def on_pumped(self) -> None:
        self.pumped += 1


def test_what_an_effect_causes_is_carried_out_after_it() -> None:
    def act(host: Numbers, number: int) -> None:
        if number < 3:
            host.waiting.append(number + 1)
            host.pump()
            assert host.done[-1] == number

    host = Numbers(act)
    host.waiting = [1]
    host.pump()
    assert (host.done, host.pumped) == ([1, 2, 3], 1)


def test_what_is_asked_for_together_waits_for_the_end() -> None:
    host = Numbers(lambda *_: None)
    with host.together():
        with host.together():
            host.waiting = [1, 2]
            host.pump()
        assert host.done == []
    assert (host.done, host.pumped) == ([1, 2], 1)


def test_a_host_that_is_closed_from_within_does_nothing_more() -> None:
    def act(host: Numbers, number: int) -> None:
        host.is_closed = number == 2

    host = Numbers(act)
    host.waiting = [1, 2, 3]
    host.pump()
    host.pump()
    assert (host.done, host.pumped) == ([1, 2], 0)
