"""A plugin of pytest for `--measure`: coverage notes for each line the tests that ran it, their fixtures included."""

from __future__ import annotations

from collections.abc import Iterator

import coverage
import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """The context of a test is its module and function: `tests.bus.test_ring.test_a_chunk_never_wraps`."""
    path, _, function = item.nodeid.partition("[")[0].partition("::")
    current = coverage.Coverage.current()
    assert current is not None
    current.switch_context(f"{path.removesuffix('.py').replace('/', '.')}.{function}")
    try:
        return (yield)
    finally:
        current.switch_context("")
