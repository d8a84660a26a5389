"""Fixtures of the tests of whole networks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from portals.peer.process.portal import PeerPortal
from tests.fakes.um_contexts import Stepper
from tests.rigs.network import Network, Ports, network

Make = Callable[..., Network]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """A network of the test, closed with it; arguments as those of `tests.rigs.network.Plan` after the folder."""
    with ExitStack() as stack:

        def made(dros: Ports, **options: object) -> Network:
            stepper = Stepper()
            stack.callback(stepper.loop.close)
            return stack.enter_context(network(tmp_path, stepper, dros, **options))

        yield made


def without_resuming(monkeypatch: pytest.MonkeyPatch, name: str = "B-A") -> None:
    """Make that portal one that confirms nothing, as other DROs do not."""
    complete = PeerPortal._complete_hello
    monkeypatch.setattr(
        PeerPortal,
        "_complete_hello",
        lambda self, own: replace(complete(self, own), resumes=self._config.name != name),
    )
