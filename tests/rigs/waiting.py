"""Waiting for a condition."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def readable(descriptors: Iterable[int], seconds: float | None) -> list[int]:
    """List those that can be read, after so long at most; of any number, unlike `select`, which ends at 1,023."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [found for found, _ in poll.poll(None if seconds is None else seconds * 1000)]


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
