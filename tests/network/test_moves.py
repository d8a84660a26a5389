"""Flows that move between a long way and a short one: nothing is lost, doubled, out of order, or late for long."""

from __future__ import annotations

import random
from typing import Final

import pytest

from dro.metrics.slots import Slot
from portals.datapath.feeder_order import QUIET_NS
from tests.network.conftest import Make
from tests.rigs.effort import IS_LONG
from tests.rigs.network import Application, Network

TOPIC: Final = b"quotes"
LOOP: Final = {"A": [1, "B", "C"], "B": [2, 3, "A", "C", "D"], "C": [5, "A", "B"], "D": [4, "B"]}
"""TRD 1 has the source. The way to DRO B is direct and long, or by C; D is a DRO further downstream."""
TRANSPORTS: Final = {1: "lbtrm", 2: "lbtrm", 3: "tcp", 4: "tcp", 5: "lbtrm"}
LONG_MS: Final = 100
STEP_MS: Final = 10
PER_STEP: Final = 10
"""A thousand messages a second."""
MOVES: Final = 20 if IS_LONG else 8
"""Four settled ones, then hasty ones: both ways of each."""


class Flow:
    """From TRD 1 to all that want it; notes for each receiver the longest time in which nothing came."""

    def __init__(self, net: Network) -> None:
        self.net = net
        self.sender = net.application(1)
        self.source = self.sender.source(TOPIC)
        self.receivers = {trd: net.application(trd) for trd in (2, 3, 4)}
        for receiver in self.receivers.values():
            receiver.context.want_topic(TOPIC)
        net.until(lambda: all(receiver.bound(TOPIC) for receiver in self.receivers.values()))
        self.longest_ms = dict.fromkeys(self.receivers, 0)
        self._waits_ms = dict.fromkeys(self.receivers, 0)
        self._had = dict.fromkeys(self.receivers, 0)

    def run(self, milliseconds: int) -> None:
        for _ in range(0, milliseconds, STEP_MS):
            self.sender.send(self.source, PER_STEP)
            self.net.run(STEP_MS)
            for trd, receiver in self.receivers.items():
                had, self._had[trd] = self._had[trd], len(receiver.sink.fragments)
                self._waits_ms[trd] = 0 if self._had[trd] > had else self._waits_ms[trd] + STEP_MS
                self.longest_ms[trd] = max(self.longest_ms[trd], self._waits_ms[trd])

    def begin(self) -> None:
        """Until all receivers have what is sent; from here on it counts."""
        self.run(500)
        self.net.run(2 * LONG_MS)
        assert all(self.last(receiver) == self.sender.sent(self.source) - 1 for receiver in self.receivers.values())
        for receiver in self.receivers.values():
            receiver.sink.fragments.clear()
        self._had = dict.fromkeys(self.receivers, 0)
        self.longest_ms = dict.fromkeys(self.receivers, 0)
        self.first = self.sender.sent(self.source)

    @staticmethod
    def last(receiver: Application) -> int:
        return receiver.last_sqn()

    def passes(self, other: str) -> bool:
        """Do messages leave DRO A for that one alone?"""
        before = {name: self.net.dros["A"].page(name, Slot.SENT) for name in "BC"}
        self.run(50)
        return {name for name in "BC" if self.net.dros["A"].page(name, Slot.SENT) > before[name]} == {other}

    def check(self) -> None:
        self.net.run(2 * LONG_MS)
        sent = list(range(self.first, self.sender.sent(self.source)))
        for trd, receiver in self.receivers.items():
            assert receiver.heard(TOPIC) == sent, trd
        for dro in self.net.dros.values():
            assert dro.books.problems() == []
            assert dro.dropped() == 0


@pytest.fixture
def flow(make: Make) -> Flow:
    net = make(LOOP, transport=TRANSPORTS, delays_ms={("A", "B"): LONG_MS})
    net.start()
    return Flow(net)


def test_moves_between_ways_of_different_delay_lose_nothing_and_cause_no_long_pause(flow: Flow) -> None:
    """Settled moves and hasty ones, to receivers on LBT-RM and on TCP and over one more peer link."""
    rng = random.Random(5)
    flow.run(3000)
    assert flow.passes("B")
    flow.begin()
    for number in range(MOVES):
        flow.net.dros["A"].set_cost("B", (10, 1)[number % 2])
        flow.run(3500 if number < 4 else rng.randrange(1000, 2500))
        if number < 4:
            assert flow.passes("CB"[number % 2])
    flow.check()
    assert 0 < max(flow.longest_ms.values()) <= LONG_MS + QUIET_NS // 1_000_000
