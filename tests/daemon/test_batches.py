"""Batches over real DROs: a source that does not flush, and a link that batches.

The bounds are tight in `tests/network/test_batches.py`, where no other process takes the processor.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from dro.um.blocking_api import BlockingContext
from dro.um.message.client_config import Config
from dro.um.message.events import Data, Event
from tests.daemon.test_peers import Chain
from tests.network.plans import PAIR
from tests.rigs.network import Plan
from tests.rigs.waiting import wait_until

pytestmark = pytest.mark.slow

INTERVAL_S: Final = 0.5
LINK: Final = "<batching><min-length>60000</min-length><batch-interval>500</batch-interval></batching>"
MESSAGES: Final = 50


def test_small_messages_come_singly_after_the_intervals_of_source_and_link(tmp_path: Path) -> None:
    plan = Plan(tmp_path, PAIR, peer_xml=LINK)
    dros = Chain(plan)
    came: list[tuple[bytes, float]] = []

    def on_event(event: Event) -> None:
        if isinstance(event, Data):
            came.append((event.data, time.monotonic()))

    with ExitStack() as stack:
        stack.callback(plan.close)
        for name in PAIR:
            dros.start_dro(name)
            stack.callback(dros.end, name)
        sender, ear = (stack.enter_context(BlockingContext(Config.load(plan.config(trd)))) for trd in (1, 2))
        ear.receiver("t", on_event=on_event)
        source = sender.source("t", implicit_batching_interval=500, implicit_batching_minimum_length=60_000)

        def is_heard() -> bool:
            source.send(b"probe")
            return bool(came)

        wait_until(is_heard, "the way", 60, dros.logs)
        source.send(b"the last probe")
        wait_until(lambda: came[-1][0] == b"the last probe", "what was sent before", 30, dros.logs)
        came.clear()
        began = time.monotonic()
        for number in range(MESSAGES):
            source.send(b"%d" % number, flush=False)
        assert time.monotonic() < began + INTERVAL_S, "sent in one interval"
        wait_until(lambda: len(came) == MESSAGES, "all of them", 30, dros.logs)
    assert [data for data, _ in came] == [b"%d" % number for number in range(MESSAGES)]
    delays = [at - began for _, at in came]
    assert min(delays) > 2 * INTERVAL_S - 0.05
    assert max(delays) < 2 * INTERVAL_S + 5, "nothing but the intervals waits; the rest is of a busy machine"
