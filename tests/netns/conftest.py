"""Fixtures of the network tests."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.rigs.netns.harness import Net
    from tests.rigs.netns.judged import Watch


@pytest.fixture
def judged(net: Net) -> Callable[..., AbstractContextManager[Watch]]:
    """`tests.rigs.netns.judged.judged` of this test's network: `with judged("trd1", "trd2") as watch:`."""
    from tests.rigs.netns.judged import judged as judged_of

    return functools.partial(judged_of, net)
