"""A service of requests and responses across DROs: every responder answers, large answers come, targets are found.

Contexts of applications, in networks of real portals. With the options as they are unless a test says otherwise.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final

import pytest

from dro.config.um.options import UmOptions
from dro.um.message.client_config import Config
from dro.um.message.context import MessageContext
from dro.um.message.events import Data, Event, RequestMsg, ResponseMsg
from dro.um.message.receiver import CallbackListener
from dro.um.message.requests import Response
from dro.wire.lbmc.return_address import decode_return
from tests.network.conftest import Make
from tests.network.plans import CHAIN
from tests.rigs.immediate import give_groups
from tests.rigs.network import Network, Ports
from tests.um.message.test_context import opened

FOUR: Final[Ports] = {"A": [1, "B"], "B": [2, "A", "C"], "C": [3, 4, "B"]}
TRANSIT: Final[Ports] = {"A": [1, 2], "B": [2, 3]}
DIAMOND: Final[Ports] = {"A": [1, 2, 3], "B": [2, 4], "C": [3, 4]}
PARALLEL: Final[Ports] = {"A": [1, 2], "B": [1, 2], "C": [2, 3], "D": [2, 3]}
MEGABYTE: Final = random.Random(5).randbytes(1 << 20)
ROUTE_WAIT_MS: Final = 3000
NOTHING: Final = UmOptions()
Open = Callable[[Network, int], MessageContext]


@pytest.fixture
def open_context() -> Iterator[Open]:
    with ExitStack() as stack:
        yield lambda net, trd: stack.enter_context(opened(Config.load(net.plan.config(trd)), net.stepper))


def respond_with(answer: bytes) -> Callable[[Event], None]:
    def respond(event: Event) -> None:
        if isinstance(event, RequestMsg):
            event.response.send(answer)

    return respond


@pytest.mark.parametrize("answer", [b"here", MEGABYTE], ids=["small", "1 MiB"])
def test_a_request_on_a_topic_is_answered_from_three_trds(make: Make, open_context: Open, answer: bytes) -> None:
    """With default options, and all answers at once to one context."""
    net = make(FOUR)
    asker = open_context(net, 1)
    responders = {trd: open_context(net, trd) for trd in (2, 3, 4)}
    for trd, context in responders.items():
        context.receiver("service", CallbackListener(respond_with(b"%d" % trd + answer)), NOTHING)
    source = asker.source("service", NOTHING)
    net.start()
    net.until(lambda: all(context.delivery.sources_of(b"service") for context in responders.values()))
    net.until(lambda: all(context.request_target.startswith(f"TCP:{t}:") for t, context in responders.items()))
    net.run(3000, 50)
    told: list[ResponseMsg] = []
    source.request(b"who?", told.append)
    net.until(lambda: len(told) == len(responders))
    assert sorted(response.data[:1] for response in told) == [b"2", b"3", b"4"]
    assert {response.data[1:] for response in told} == {answer}
    assert {response.source for response in told} == {context.request_target for context in responders.values()}


@pytest.mark.parametrize("dros", [CHAIN, TRANSIT], ids=["links", "TRD between"])
def test_a_large_answer_crosses_two_dros_with_default_options(make: Make, open_context: Open, dros: Ports) -> None:
    net = make(dros)
    asker, answerer = open_context(net, 1), open_context(net, 3)
    answerer.immediate.on_immediate = respond_with(MEGABYTE)
    net.start()
    net.until(lambda: answerer.request_target.startswith("TCP:3:"))
    net.run(3000, 50)
    told: list[ResponseMsg] = []
    asker.uim_request(answerer.request_target, b"?", told.append)
    net.until(lambda: bool(told))
    assert told[0].data == MEGABYTE


def test_a_response_can_be_sent_by_a_program_in_a_third_trd(make: Make, open_context: Open) -> None:
    net = make(CHAIN)
    asker, asked, other = (open_context(net, trd) for trd in (1, 2, 3))
    kept: list[bytes] = []

    def keep(event: Data) -> None:
        assert isinstance(event, RequestMsg)
        kept.append(event.response.serialize())

    asked.immediate.on_immediate = keep
    net.start()
    net.until(lambda: asked.request_target.startswith("TCP:2:"))
    net.run(3000, 50)
    told: list[ResponseMsg] = []
    asker.uim_request(asked.request_target, b"?", told.append)
    net.until(lambda: bool(kept))
    Response(other.requests, decode_return(kept[0])).send(b"from afar")
    net.until(lambda: bool(told))
    assert told == [ResponseMsg(b"from afar", other.request_target)]


# targets


class Outcomes:
    """What became of messages by unicast."""

    def __init__(self, net: Network, context: MessageContext) -> None:
        self._net = net
        self._context = context
        self.failed: list[str] = []
        self.sent = 0

    def send(self, target: str, data: bytes = b"x", topic: str | None = None) -> str:
        """Send it, and return why it was not sent, or nothing; in the time that a way is waited for."""
        self.failed.clear()
        self.sent = 0
        self._context.uim(target, data, topic, on_sent=self._on_sent, on_failed=lambda why, _: self.failed.append(why))
        self._net.until(lambda: bool(self.failed or self.sent), limit_ms=ROUTE_WAIT_MS + 100)
        return self.failed[0] if self.failed else ""

    def _on_sent(self) -> None:
        self.sent += 1


def test_a_target_behind_a_dro_that_is_gone_is_an_error_in_time(make: Make, open_context: Open) -> None:
    net = make(TRANSIT)
    one, three = open_context(net, 1), open_context(net, 3)
    got: list[Data] = []
    three.immediate.on_immediate = got.append
    net.start()
    net.until(lambda: three.request_target.startswith("TCP:3:"))
    net.run(3000, 50)
    outcomes, target = Outcomes(net, one), three.request_target
    assert outcomes.send(target) == ""
    net.until(lambda: bool(got))
    net.kill("B")
    net.run(20_000, 50)
    assert outcomes.send(target) == "no DRO offers domain 3"
    net.kill("A")
    assert outcomes.send("TCP:2:127.0.0.1:14391").startswith("the connection was refused")
    net.run(10_000, 50)
    assert outcomes.send("TCP:2:127.0.0.1:14391") == "no DRO offers domain 2"


@pytest.mark.parametrize("dros", [CHAIN, TRANSIT], ids=["links", "TRD between"])
@pytest.mark.parametrize("topic", ["orders", None])
def test_a_source_string_leads_to_the_origin_across_two_dros(
    make: Make, open_context: Open, dros: Ports, topic: str | None
) -> None:
    """It is that of the proxy source, which the receiver sees."""
    net = make(dros)
    one, three = open_context(net, 1), open_context(net, 3)
    source = three.source("quotes", NOTHING)
    receiver = one.receiver("quotes", CallbackListener(None), NOTHING)
    events: list[Event] = []
    three.receiver("orders", CallbackListener(events.append), NOTHING)
    without: list[Data] = []
    three.immediate.on_immediate = without.append
    net.start()
    net.until(lambda: bool(receiver.sources))
    net.run(3000, 50)
    [found] = receiver.sources
    assert found != source.source_string
    assert Outcomes(net, one).send(f"SOURCE:{found}", b"to the origin", topic) == ""
    got = events if topic else without
    net.until(lambda: bool(got))
    [event] = got
    assert isinstance(event, Data)
    assert (event.data, event.topic, event.source) == (b"to the origin", topic or "", one.request_target)


# multicast


@pytest.mark.parametrize("dros", [TRANSIT, DIAMOND, PARALLEL], ids=["transit", "diamond", "parallel"])
def test_every_context_gets_a_multicast_message_once(make: Make, open_context: Open, dros: Ports) -> None:
    net = make(dros)
    give_groups(net.plan)
    contexts = {trd: open_context(net, trd) for trd in net.plan.trds}
    got: dict[int, list[Event]] = {trd: [] for trd in contexts}
    for trd, context in contexts.items():
        context.receiver("quotes", CallbackListener(got[trd].append), NOTHING)
    net.start()
    net.until(lambda: all(context.request_target.startswith(f"TCP:{t}:") for t, context in contexts.items()))
    net.run(3000, 50)
    sent = [b"%d" % n for n in range(20)] + [MEGABYTE[:60_000]]
    for data in sent:
        contexts[1].mim(data, "quotes")
        net.run(10)
    others = set(contexts) - {1}
    net.until(lambda: all(len(got[trd]) >= len(sent) for trd in others))
    net.run(500)
    for trd in others:
        assert [event.data for event in got[trd] if isinstance(event, Data)] == sent
    assert got[1] == []


def test_a_multicast_request_is_answered_from_every_trd(make: Make, open_context: Open) -> None:
    net = make(DIAMOND)
    give_groups(net.plan)
    contexts = {trd: open_context(net, trd) for trd in net.plan.trds}
    for trd, context in contexts.items():
        context.immediate.on_immediate = respond_with(b"%d" % trd)
    net.start()
    net.until(lambda: all(context.request_target.startswith(f"TCP:{t}:") for t, context in contexts.items()))
    net.run(3000, 50)
    told: list[ResponseMsg] = []
    contexts[1].mim_request(b"who?", told.append)
    net.until(lambda: len(told) == 3)
    net.run(500)
    assert sorted(response.data for response in told) == [b"2", b"3", b"4"]
