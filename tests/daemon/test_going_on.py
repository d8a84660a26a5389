"""`kill -9` of portals, again and again under load: receivers miss and double nothing, and get all in order."""

from __future__ import annotations

import random
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from dro.um.blocking_api import BlockingContext
from dro.um.message.client_config import Config
from dro.um.message.events import Data, Event, Loss, LossBurst
from tests.rigs.site import Site

pytestmark = pytest.mark.slow

TOPICS = 10
KILLS = 15  # for each transport of the sources
PAUSE_S = 1.3  # a life that ends sooner is not gone on from, once the one before has


class Inbox:
    """Numbers of one topic in the order in which they came, and how many were reported lost."""

    def __init__(self) -> None:
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


@pytest.mark.parametrize("transport", ["lbtrm", "tcp"])
def test_receivers_miss_and_double_nothing_while_portals_are_killed(tmp_path: Path, transport: str) -> None:
    """Sources in TRD 1, receivers in TRD 2, whose proxy sources send by LBT-RM, and in TRD 3, by TCP."""
    victims = random.Random(transport)
    site = Site(tmp_path, 3, transports={1: transport, 3: "tcp"})
    inboxes = [[Inbox() for _ in range(TOPICS)] for _ in (2, 3)]
    publisher: Publisher | None = None
    try:
        site.start()
        with (
            BlockingContext(Config.load(site.config(1))) as origin,
            BlockingContext(Config.load(site.config(2))) as second,
            BlockingContext(Config.load(site.config(3))) as third,
        ):
            for context, mine in zip((second, third), inboxes, strict=True):
                for n, inbox in enumerate(mine):
                    context.receiver(f"numbers.{n}", on_event=inbox.on_event)
            publisher = Publisher(origin, 0.002)
            publisher.start()

            def have_passed(goal: int) -> bool:
                return all(i.numbers and i.numbers[-1] >= goal for mine in inboxes for i in mine)

            site.wait(partial(have_passed, 200), "messages")
            for _ in range(KILLS):
                site.kill(victims.choice(("P1", "P2", "P3")))
                began = time.monotonic()
                site.wait(partial(have_passed, publisher.sent + 50), "messages")
                time.sleep(max(0.0, PAUSE_S - (time.monotonic() - began)))
            publisher.stop()
            site.wait(partial(have_passed, publisher.sent - 1), "the last messages")
    finally:
        if publisher is not None:
            publisher.stop()
        site.close()
    for mine in inboxes:
        for inbox in mine:
            assert inbox.lost == 0
            assert inbox.numbers == list(range(inbox.numbers[0], publisher.sent))
