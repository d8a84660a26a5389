"""Late join and off-transport recovery of applications through real portals: over DROs, links and TRDs between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from dro.config.um.options import UmOptions
from dro.um.message.client_config import Config, object_options
from dro.um.message.context import MessageContext
from dro.um.message.events import FLAG_RETRANSMIT, Data, Event, Loss, LossBurst
from dro.um.message.receiver import CallbackListener
from tests.network.conftest import Make
from tests.network.plans import CHAIN, PAIR
from tests.rigs.network import Network, Ports
from tests.um.message.test_context import opened

TOPIC = "orders/eu"
Open = Callable[[Network, int], MessageContext]


@pytest.fixture
def open_context() -> Iterator[Open]:
    with ExitStack() as stack:
        yield lambda net, trd: stack.enter_context(opened(Config.load(net.plan.config(trd)), net.stepper))


def retaining(size: int = 1 << 20) -> UmOptions:
    return object_options("source", {"late_join": 1, "retransmit_retention_size_threshold": size})


def listen(context: MessageContext, **options: int) -> list[Event]:
    events: list[Event] = []
    context.receiver(TOPIC, CallbackListener(events.append), object_options("receiver", dict(options)))
    return events


def data_of(events: list[Event]) -> list[Data]:
    return [event for event in events if isinstance(event, Data)]


@pytest.mark.parametrize("transport", ["lbtrm", "tcp"])
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    "dros", [{"A": [1, 2]}, PAIR, CHAIN, {"A": [1, 3], "B": [3, 2]}], ids=["one DRO", "link", "links", "TRD between"]
)
def test_a_late_receiver_gets_what_is_retained_and_then_what_is_sent(
    make: Make, open_context: Open, dros: Ports, transport: str, order: int
) -> None:
    net = make(dros, transport=transport)
    last = 2 if 3 in dros["A"] else max(net.plan.trds)
    net.start()
    net.run(5000, 50)
    sender = open_context(net, 1)
    source = sender.source(TOPIC, retaining())
    for number in range(1000):
        source.send(b"%d" % number)
        if not number % 50:
            net.run(10)
    events = listen(open_context(net, last), ordered_delivery=order)
    number = 1000
    while number < 1200 and (number < 1050 or not data_of(events)):
        source.send(b"%d" % number)
        number += 1
        net.run(20)
    for number in range(number, number + 50):
        source.send(b"%d" % number)
        net.run(20)
    net.until(lambda: len(data_of(events)) == number + 1)
    got = data_of(events)
    assert [int(event.data) for event in got] == [event.sqn for event in got] == list(range(number + 1))
    assert all(event.flags == FLAG_RETRANSMIT for event in got[:1000])
    assert all(event.flags == 0 for event in got[-20:])
    flags = [event.flags for event in got]
    assert flags == sorted(flags, reverse=True)
    assert not [event for event in events if isinstance(event, Loss | LossBurst)]
