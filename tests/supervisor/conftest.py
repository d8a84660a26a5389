"""Runs DROs of fake workers in processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.fakes.dro_run import FakeDro


@pytest.fixture
def start() -> Iterator[Callable[..., FakeDro]]:
    running: list[FakeDro] = []

    def make(*names: str, without: tuple[str, ...] = ()) -> FakeDro:
        running.append(FakeDro(*names, without=without))
        return running[-1]

    yield make
    for dro in running:
        dro.close()
