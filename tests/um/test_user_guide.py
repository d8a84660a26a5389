"""The examples of the user guide do what it says: they are taken from the page and run."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from dro.um.blocking_api import BlockingContext
from dro.um.message.client_config import Config

GUIDE = Path(__file__).parents[2] / "docs" / "user-guide.md"


def example(number: int) -> dict[str, Any]:
    """Names that the n-th Python block of the guide defines."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(blocks[number], f"user-guide.md block {number}", "exec"), names)
    return names


EXPECTED = [f"quote {n}".encode() for n in range(50)]


def test_the_asyncio_example_receives_what_it_sends(um_config: Config) -> None:
    exchange = example(0)["exchange"]
    assert asyncio.run(asyncio.wait_for(exchange(um_config, "guide.asyncio", 50), 60)) == EXPECTED


def test_the_blocking_example_receives_what_it_sends(um_config: Config) -> None:
    assert example(1)["exchange"](um_config, "guide.blocking", 50) == EXPECTED


def test_the_service_of_the_guide_answers(um_config: Config) -> None:
    with BlockingContext(um_config) as one, BlockingContext(um_config) as two:
        for context in (one, two):
            example(3)["serve"](context, "prices", {b"ACME": b"99"})
        prices = asyncio.run(asyncio.wait_for(example(4)["price"](um_config, "prices", b"ACME", 2), 60))
    assert prices == [b"99", b"99"]


def test_a_request_that_is_passed_on_is_answered(tcp_config: Config) -> None:
    with (
        BlockingContext(tcp_config) as front,
        BlockingContext(tcp_config) as worker,
        BlockingContext(tcp_config) as asker,
    ):
        example(5)["pass_on"](front, worker)
        assert asker.request(front.request_address, b"ask", 60) == b"ASK"


def test_the_request_example_is_answered(um_config: Config) -> None:
    assert example(2)["ask"](um_config, b"ask") == b"ASK"
