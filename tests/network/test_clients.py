"""What applications are told with a DRO between them: the connections of a source, and messages in either order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sized

import pytest

from dro.config.um.options import UmOptions
from dro.um.message.client_config import Config
from dro.um.message.context import MessageContext
from dro.um.message.events import Connect, Data, Disconnect, Event, Loss, LossBurst, SourceEvent
from dro.um.message.receiver import CallbackListener, MessageReceiver
from tests.network.conftest import Make
from tests.rigs.network import Network, late

TOPIC = "quotes"
CLEAN_MS = 20_000
"""Until the interest of a receiver that was closed is gone, by the default of `<remote-topic>`."""


class Clients:
    """Contexts of the message level, closed with the test."""

    def __init__(self) -> None:
        self.contexts: list[MessageContext] = []

    def context(self, net: Network, trd: int, **receiver: int) -> MessageContext:
        config = Config.load(net.plan.config(trd))
        for name, value in receiver.items():
            config = config.with_("receiver", name, value)
        self.contexts.append(MessageContext(config, net.loop))
        return self.contexts[-1]

    def close(self) -> None:
        for context in self.contexts:
            context.close_children()
            context.close()


@pytest.fixture
def clients() -> Iterator[Clients]:
    made = Clients()
    yield made
    made.close()


class Receiver:
    """One receiver in a context of its own, and what it was told."""

    def __init__(self, context: MessageContext) -> None:
        self.events: list[Event] = []
        self.context = context
        self.receiver: MessageReceiver = context.receiver(TOPIC, CallbackListener(self.events.append), UmOptions())

    def data(self) -> list[bytes]:
        return [event.data for event in self.events if isinstance(event, Data)]

    def lost(self) -> list[Event]:
        return [event for event in self.events if isinstance(event, Loss | LossBurst)]


def test_a_source_is_told_of_each_proxy_receiver_and_of_its_end(make: Make, clients: Clients) -> None:
    """A leads to two receivers and B to one: two connections, and each ends with the last interest behind it."""
    net = make({"A": [1, 2], "B": [1, 3]}, transport="tcp")
    net.start()
    events: list[SourceEvent] = []
    source = clients.context(net, 1).source(TOPIC, UmOptions(), on_event=events.append)
    first, second, other = (Receiver(clients.context(net, trd)) for trd in (2, 2, 3))

    def told() -> list[type[SourceEvent]]:
        return [type(event) for event in events]

    net.until(lambda: len(told()) == 2)
    net.run(3000)
    assert told() == [Connect, Connect]
    first.receiver.close()
    net.run(CLEAN_MS, 50)
    source.send(b"1")
    net.run(100)
    assert told() == [Connect, Connect]
    second.receiver.close()
    net.until(lambda: len(told()) == 3, limit_ms=CLEAN_MS, step_ms=50)
    source.send(b"2")
    net.run(100)
    other.receiver.close()
    net.until(lambda: len(told()) == 4, limit_ms=CLEAN_MS, step_ms=50)
    net.run(3000)
    assert told() == [Connect, Connect, Disconnect, Disconnect]
    assert source.clients == set()
    assert [one.data() for one in (first, second, other)] == [[], [b"1"], [b"1", b"2"]]


def test_what_a_dro_gets_late_comes_late_in_arrival_order_and_in_place_else(make: Make, clients: Clients) -> None:
    """The DRO passes on what there is, and the repair of its gap behind that."""
    net = make({"A": [1, 2]})
    net.start()
    sender = net.application(1)
    source = sender.source(TOPIC.encode())
    in_order, at_arrival = (Receiver(clients.context(net, 2, ordered_delivery=mode)) for mode in (1, -1))
    net.until(lambda: all(one.context.core.bound_sources for one in (in_order, at_arrival)))
    sender.send(source, 5)
    net.run(100)
    sender.lose(source)
    sender.send(source, 4)
    net.until(lambda: len(in_order.data()) == len(at_arrival.data()) == 10)

    def numbers(one: Receiver) -> list[int]:
        return [int(data.split()[1]) for data in one.data()]

    assert numbers(in_order) == [*range(10)]
    assert numbers(at_arrival) == [0, 1, 2, 3, 4, 6, 7, 8, 9, 5]
    assert in_order.lost() == at_arrival.lost() == []


def test_messages_are_whole_in_both_orders_while_a_tenth_of_the_datagrams_is_lost(
    make: Make, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In front of the DRO and behind it; a message of several fragments counts as arrived with the last of them."""
    rng = random.Random(7)
    dropped = 0
    is_lossy = False

    def lossy(_view: object, _offsets: object, lengths: Sized, _senders: object, at: int, *_: object) -> int:
        """Leaves all datagrams to the group, but for the lost ones."""
        nonlocal dropped
        while is_lossy and at < len(lengths) and rng.random() < 0.1:
            dropped += 1
            at += 1
        return at

    module = "dro.transport.datagrams.receiver."
    monkeypatch.setattr(module + "scan_datagrams", lossy)
    net = make({"A": [1, 2]})
    net.start()
    source = clients.context(net, 1).source(TOPIC, UmOptions())
    in_order, at_arrival = (Receiver(clients.context(net, 2, ordered_delivery=mode)) for mode in (1, -1))
    net.until(lambda: all(one.context.core.bound_sources for one in (in_order, at_arrival)))
    net.run(500)
    sent = [(b"%d " % number).ljust(rng.choice((10, 1000, 30_000)), b".") for number in range(300)]
    for payload in sent[:3]:
        source.send(payload)
        net.run(10)
    is_lossy = True
    for payload in sent[3:]:
        source.send(payload)
        net.run(10)
    net.until(lambda: len(in_order.data()) == len(at_arrival.data()) == len(sent))
    assert dropped > 100
    assert in_order.data() == sent
    assert sorted(at_arrival.data()) == sorted(sent)
    assert late([int(data.split()[0].rstrip(b".")) for data in at_arrival.data()])
    assert in_order.lost() == at_arrival.lost() == []
