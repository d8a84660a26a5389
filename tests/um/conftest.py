"""Fixtures of the client library's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dro.um.message.client_config import Config
from tests.fakes.simulated_network import SimulatedNetwork
from tests.fakes.um_contexts import Stepper, private_config


@pytest.fixture(params=["lbtrm", "tcp"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def um_config(transport: str) -> Config:
    """Options for contexts of one test, on both transports in turn."""
    return private_config(transport)


@pytest.fixture
def lbtrm_config() -> Config:
    return private_config("lbtrm")


@pytest.fixture
def tcp_config() -> Config:
    return private_config("tcp")


@pytest.fixture
def stepper() -> Iterator[Stepper]:
    made = Stepper()
    yield made
    made.loop.close()


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> SimulatedNetwork:
    """A network without sockets, for the contexts of the test."""
    made = SimulatedNetwork()
    made.install(monkeypatch)
    return made
