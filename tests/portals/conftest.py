"""Fixtures of the portals' tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dro.log.limits import LimitedLogger
from portals.decisions import acl_enforcement
from tests.fakes.um_contexts import Stepper


@pytest.fixture(autouse=True)
def fresh_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test finds its lines suppressed because of those before it."""
    monkeypatch.setattr(acl_enforcement, "limited", LimitedLogger(acl_enforcement.log).event)


@pytest.fixture
def stepper() -> Iterator[Stepper]:
    made = Stepper()
    yield made
    made.loop.close()
