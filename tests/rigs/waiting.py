"""Waiting for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T | None],
    what: str,
    seconds: float = 30,
    detail: Callable[[], str] = str,
    *,
    every_s: float = 0.005,
) -> T:
    """The first true value of `condition`. Raises: TimeoutError naming `what`, with `detail`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() >= deadline:
            raise TimeoutError(f"{what}: not within {seconds} s\n{detail()}")
        time.sleep(every_s)
    return value
