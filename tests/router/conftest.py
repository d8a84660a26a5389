"""Fixtures of the route manager's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.um_contexts import Stepper


@pytest.fixture
def stepper() -> Iterator[Stepper]:
    made = Stepper()
    yield made
    made.loop.close()
