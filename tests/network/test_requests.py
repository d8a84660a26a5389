"""Requests of applications to those of other TRDs, through real portals, and their responses."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final
from weakref import ref

import pytest

from dro.errors import ResourceError
from dro.um.message.client_config import Config
from dro.um.message.context import MessageContext
from dro.um.message.events import Data, RequestMsg, ResponseMsg
from tests.network.conftest import Make
from tests.network.plans import CHAIN, PAIR
from tests.rigs.freed import collector_off
from tests.rigs.network import Network, Ports
from tests.um.message.test_context import opened

ONE_PIECE: Final = random.Random(7).randbytes(60_000)
PIECES: Final = random.Random(8).randbytes(1_000_000)
Open = Callable[[Network, int], MessageContext]


@pytest.fixture
def open_context() -> Iterator[Open]:
    with ExitStack() as stack:
        yield lambda net, trd: stack.enter_context(opened(Config.load(net.plan.config(trd)), net.stepper))


def echo(request: Data) -> None:
    assert isinstance(request, RequestMsg)
    request.response.send(request.data[::-1])


@pytest.mark.parametrize(
    ("dros", "udp", "data"),
    [
        ({"A": [1, 2]}, None, b"ask"),
        ({"A": [1, 2]}, None, PIECES),
        (CHAIN, None, ONE_PIECE),
        (PAIR, "", ONE_PIECE),
        ({"A": [1, 3], "B": [3, 2]}, None, ONE_PIECE),
    ],
    ids=["one DRO", "one DRO, in pieces", "links", "UDP link", "TRD between"],
)
def test_a_request_is_answered_from_another_domain(
    make: Make, open_context: Open, dros: Ports, udp: str | None, data: bytes
) -> None:
    net = make(dros, udp=udp)
    last = max(net.plan.trds) if 3 not in dros["A"] else 2
    asker, answerer = open_context(net, 1), open_context(net, last)
    answerer.on_immediate = echo
    told: list[ResponseMsg] = []
    failures: list[ResourceError] = []
    net.start()

    net.until(lambda: answerer.request_target.startswith(f"TCP:{last}:"))
    net.run(3000, 50)
    asker.uim_request(answerer.request_target, data, told.append, failures.append)
    net.until(lambda: bool(told or failures))
    assert not failures
    assert told[0].data == data[::-1]


def test_a_request_waits_for_the_first_offer_of_a_dro(make: Make, open_context: Open) -> None:
    """One is enough for a context that has just come."""
    net = make({"A": [1, 2]})
    answerer = open_context(net, 2)
    answerer.on_immediate = echo
    net.start()
    net.run(10_000, 50)
    asker = open_context(net, 1)
    told: list[ResponseMsg] = []
    failures: list[ResourceError] = []
    asker.uim_request(answerer.request_target, b"ask", told.append, failures.append)
    net.until(lambda: bool(told), limit_ms=3000)
    assert (told, failures) == ([ResponseMsg(b"ksa", answerer.request_target)], [])


class Answers(list[ResponseMsg]):
    """What a request refers to; can be referred to weakly."""


def test_requests_that_are_over_are_freed(make: Make, open_context: Open) -> None:
    net = make({"A": [1, 2]})
    asker, answerer = open_context(net, 1), open_context(net, 2)
    requests: list[ref[Answers]] = []

    def ask() -> None:
        answers = Answers()
        requests.append(ref(answers))
        handle = asker.uim_request(answerer.request_target, ONE_PIECE, answers.append)
        net.until(lambda: bool(answers))
        handle.close()

    answerer.on_immediate = echo
    net.start()
    net.run(10_000, 50)
    with collector_off():
        for _ in range(3):
            ask()
            assert requests[-1]() is None
