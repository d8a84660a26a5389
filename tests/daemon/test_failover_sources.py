"""Hot failover over real DROs: two sources, each behind a DRO of its own, and one of the DROs is killed."""

from __future__ import annotations

import re
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.daemon.test_peers import Chain
from tests.rigs.lbm_tools import Tool
from tests.rigs.network import Plan
from tests.rigs.waiting import wait_until

pytestmark = pytest.mark.slow

TWO_WAYS: Final = {"A": [1, 3], "B": [2, 3]}
MESSAGES: Final = 400
TOPIC: Final = "orders"


def test_a_dro_that_is_killed_costs_no_number(tmp_path: Path) -> None:
    plan = Plan(tmp_path, TWO_WAYS)
    dros = Chain(plan)
    with ExitStack() as stack:
        stack.callback(plan.close)
        for name in TWO_WAYS:
            dros.start_dro(name)
            stack.callback(dros.end, name)
        receiver = stack.enter_context(
            Tool("lbmhfrcv", "-c", str(plan.config(3)), "-v", "-O", "-r", str(MESSAGES), TOPIC)
        )
        sources = [
            stack.enter_context(
                Tool(
                    "lbmhfsrc",
                    "-c",
                    str(plan.config(trd)),
                    "-M",
                    str(MESSAGES),
                    "-i",
                    "7",
                    "-P",
                    "20",
                    "--wait-for-line",
                    TOPIC,
                )
            )
            for trd in (1, 2)
        ]

        wait_until(lambda: receiver.read().count(", source found") == 2, "both sources", 60)
        for source in sources:
            source.write_line()
        receiver.wait_for("[hf 60]")
        dros.processes["A"].kill()
        assert receiver.wait() == 0
        for source in sources:
            source.signal(signal.SIGTERM)
            source.wait()
    numbers = [int(number) for number in re.findall(r"\[hf (\d+)\]", receiver.out)]
    assert numbers[-1] == MESSAGES + 6
    assert numbers == list(range(numbers[0], MESSAGES + 7))
    assert receiver.received == (MESSAGES, MESSAGES * 25, 0, 0, 0)
