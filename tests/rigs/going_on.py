"""Portals of one DRO that end again and again under load, and what receivers with default options get.

Sources in TRD 1; receivers in TRD 2, whose proxy sources send by LBT-RM, and in TRD 3, by TCP, or by LBT-IPC as the
sources do.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, pairwise
from pathlib import Path

from dro.log.events import LogEvent
from dro.um.blocking_api import BlockingContext
from dro.um.message.client_config import Config
from dro.um.message.events import Data, Event, Loss, LossBurst
from tests.rigs.orders import order
from tests.rigs.other_program import SiteOfItsOwn
from tests.rigs.site import ROUTE_MANAGER, Site

TOPICS = 10
PORTALS = ("P1", "P2", "P3")
PAUSE_S = 1.3  # a life that ends sooner is not gone on from, once the one before has


class Inbox:
    """Numbers of one topic in the order in which they came, and how many were reported lost."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.numbers: list[int] = []
        self.lost = 0

    def on_event(self, event: Event) -> None:
        match event:
            case Data(data=data):
                self.numbers.append(int(data[:10]))
            case Loss():
                self.lost += 1
            case LossBurst(count=count):
                self.lost += count
            case _:
                pass

    def problem(self, sent: int) -> str:
        """Say what is not as it was sent; empty when all has come once and in order."""
        got, wanted = self.numbers, range(self.numbers[0], sent)
        if not self.lost and got == list(wanted):
            return ""
        missing, doubled = sorted(set(wanted).difference(got)), len(got) - len(set(got))
        late = sum(before > after for before, after in pairwise(got))
        return f"{self.name}: {self.lost} reported lost, missing {missing[:9]}, {doubled} doubled, {late} out of order"


class Publisher:
    """Sends each topic its next number, about so often, in a thread."""

    def __init__(self, context: BlockingContext, pause_s: float) -> None:
        self.sent = 0
        self._sources = [context.source(f"numbers.{n}") for n in range(TOPICS)]
        self._stop = threading.Event()
        self._pause_s = pause_s
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._pause_s):
            for source in self._sources:
                source.send(b"%010d" % self.sent + bytes(self.sent * 37 % 1900))
            self.sent += 1

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)


@dataclass
class Ended:
    """What ends did: `pauses_ms` until all receivers had messages again that were sent after the end.

    `clean_starts`: lives that did not go on, as the one before had ended within a second, on a busy machine.
    """

    pauses_ms: list[float] = field(default_factory=list)
    messages: int = 0
    clean_starts: int = 0
    problems: list[str] = field(default_factory=list)


def kill_portals(
    folder: Path, transport: str, kills: int, victims: random.Random, *, at_once: Sequence[int] = (1,)
) -> Ended:
    """Kill portals, each chosen by chance; `transport` is that of the sources.

    `at_once`: how many at a time, as by chance; of several one may be the route manager.
    """

    def kill(site: Site) -> None:
        count = victims.choice(at_once)
        for name in victims.sample(PORTALS if count == 1 else (*PORTALS, ROUTE_MANAGER), count):
            site.kill(name)

    return end_portals(folder, transport, kills, kill)


def restart_portals(folder: Path, transport: str, restarts: int) -> Ended:
    """Have portals restarted, in turn, by an operator's order."""
    turns = cycle(PORTALS)
    return end_portals(folder, transport, restarts, lambda site: order(site.pid, "portal", "restart", next(turns)))


def order_meanwhile(folder: Path, transport: str, give: Callable[[Site], object]) -> Ended:
    """Have the whole DRO do what `give` orders, once, beside 1,000 messages a second."""
    return end_portals(folder, transport, 1, give, SiteOfItsOwn, rest_s=0.01)


def end_portals(
    folder: Path,
    transport: str,
    times: int,
    end: Callable[[Site], object],
    kind: type[Site] = Site,
    rest_s: float = 0.002,
) -> Ended:
    """Have portals ended, so often, each time by `end`; `transport` is that of the sources.

    `rest_s`: between two messages of a topic.
    """
    site = kind(folder, 3, transports={1: transport, 3: "lbtipc" if transport == "lbtipc" else "tcp"})
    inboxes = [Inbox(f"TRD {trd}, numbers.{n}") for trd in (2, 3) for n in range(TOPICS)]
    outcome = Ended()
    publisher: Publisher | None = None
    try:
        site.start()
        with (
            BlockingContext(Config.load(site.config(1))) as origin,
            BlockingContext(Config.load(site.config(2))) as second,
            BlockingContext(Config.load(site.config(3))) as third,
        ):
            for number, inbox in enumerate(inboxes):
                context = second if number < TOPICS else third
                context.receiver(f"numbers.{number % TOPICS}", on_event=inbox.on_event)
            publisher = Publisher(origin, rest_s)
            publisher.start()

            def have_passed(goal: int) -> bool:
                return all(inbox.numbers and inbox.numbers[-1] >= goal for inbox in inboxes)

            site.wait(partial(have_passed, 200), "messages")
            for _ in range(times):
                sent = publisher.sent
                end(site)
                began = time.monotonic()
                site.wait(partial(have_passed, sent + 5), "messages")
                outcome.pauses_ms.append((time.monotonic() - began) * 1000)
                time.sleep(max(0.0, PAUSE_S - (time.monotonic() - began)))
            publisher.stop()
            site.wait(partial(have_passed, publisher.sent - 1), "the last messages")
    finally:
        if publisher is not None:
            publisher.stop()
        site.close()
    outcome.clean_starts = site.log.count(LogEvent.WORKER_STARTS_CLEAN)
    outcome.messages = publisher.sent * len(inboxes)
    outcome.problems = [problem for inbox in inboxes if (problem := inbox.problem(publisher.sent))]
    return outcome
