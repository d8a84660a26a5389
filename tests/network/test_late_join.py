"""Late join and off-transport recovery of applications through real portals: over DROs, links and TRDs between."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from random import Random

import pytest

from dro.config.um.options import UmOptions
from dro.metrics.slots import Slot
from dro.transport.stream import PlainStream
from dro.transport.tcp.receiver import TcpReceiver
from dro.um.message.client_config import Config, object_options
from dro.um.message.context import MessageContext
from dro.um.message.events import FLAG_OTR, FLAG_RETRANSMIT, Data, Event, Loss, LossBurst
from dro.um.message.receiver import CallbackListener
from dro.um.message.source import MessageSource
from tests.network.conftest import Make
from tests.network.plans import CHAIN, PAIR
from tests.network.test_hotlinks import PLANES, indexes
from tests.rigs.network import Network, Ports
from tests.um.message.test_context import opened
from tests.um.message.test_late_join import lose

TOPIC = "orders/eu"
Open = Callable[[Network, int], MessageContext]
BETWEEN = {"A": [1, 3], "B": [3, 2]}
FAR = {"A": [1, "B"], "B": [2, "A"], "C": [2, 3]}
"""Two DROs and a link between TRDs 1 and 2, a third DRO to TRD 3."""
SIZE = 2000


@pytest.fixture
def open_context() -> Iterator[Open]:
    with ExitStack() as stack:
        yield lambda net, trd: stack.enter_context(opened(Config.load(net.plan.config(trd)), net.stepper))


def retaining(size: int = 1 << 24, **more: int) -> UmOptions:
    return object_options("source", {"late_join": 1, "retransmit_retention_size_threshold": size, **more})


def listen(context: MessageContext, **options: int) -> list[Event]:
    events: list[Event] = []
    context.receiver(TOPIC, CallbackListener(events.append), object_options("receiver", dict(options)))
    return events


def data_of(events: list[Event]) -> list[Data]:
    return [event for event in events if isinstance(event, Data)]


class Counter:
    """A source that sends its numbers, and what a receiver has of them."""

    def __init__(self, net: Network, source: MessageSource) -> None:
        self.net, self.source, self.sent = net, source, 0

    def send(self, count: int, *, together: int = 1, size: int = 0) -> None:
        for _ in range(count):
            self.source.send((b"%d" % self.sent).ljust(size))
            self.sent += 1
            if not self.sent % together:
                self.net.run(10)

    def check(self, events: list[Event], limit_ms: int = 60_000) -> list[Data]:
        """Everything has come once and in order, and nothing is lost."""
        self.net.until(lambda: len(data_of(events)) >= self.sent, limit_ms=limit_ms)
        got = data_of(events)
        assert [int(event.data) for event in got] == [event.sqn for event in got] == list(range(self.sent))
        assert not [event for event in events if isinstance(event, Loss | LossBurst)]
        return got


@pytest.mark.parametrize(
    ("dros", "transport", "order"),
    [
        ({"A": [1, 2]}, "lbtrm", -1),
        (BETWEEN, "tcp", -1),
        (BETWEEN, {1: "lbtrm", 3: "tcp", 2: "lbtrm"}, 1),
        (FAR, "lbtrm", 1),
        (FAR, "tcp", 1),
        (CHAIN, "tcp", 1),
    ],
    ids=["one DRO", "TRD between", "TRD between, mixed", "link and TRD, LBT-RM", "link and TRD, TCP", "links"],
)
def test_a_late_receiver_gets_what_is_retained_and_then_what_is_sent(
    make: Make, open_context: Open, dros: Ports, transport: str | dict[int, str], order: int
) -> None:
    net = make(dros, transport=transport)
    last = 2 if dros is BETWEEN else max(net.plan.trds)
    net.start()
    net.run(5000, 50)
    counter = Counter(net, open_context(net, 1).source(TOPIC, retaining()))
    counter.send(1000, together=50)
    events = listen(open_context(net, last), ordered_delivery=order)
    while not data_of(events):
        counter.send(2)
    counter.send(50)
    got = counter.check(events)
    flags = [event.flags for event in got]
    assert flags[:1000] == [FLAG_RETRANSMIT] * 1000
    assert flags[-20:] == [0] * 20
    assert flags == sorted(flags, reverse=True), "live ones come behind those"


def test_several_receivers_in_several_domains_join_late_at_once(make: Make, open_context: Open) -> None:
    net = make(CHAIN)
    net.start()
    net.run(5000, 50)
    counter = Counter(net, open_context(net, 1).source(TOPIC, retaining()))
    counter.send(200, together=50)
    everybody = [listen(open_context(net, trd)) for trd in (1, 2, 2, 3)]
    counter.send(20)
    for events in everybody:
        counter.check(events)


@pytest.mark.parametrize("transport", ["lbtrm", "tcp"])
def test_a_source_that_starts_behind_a_dro_is_heard_from_its_first_message(
    make: Make, open_context: Open, transport: str
) -> None:
    """The receiver is there first; without late join it would miss what is sent before it has joined."""
    net = make(PAIR, transport=transport)
    net.start()
    events = listen(open_context(net, 2))
    net.run(5000, 50)
    counter = Counter(net, open_context(net, 1).source(TOPIC, retaining()))
    counter.send(50)
    counter.check(events)


@pytest.mark.parametrize("transport", ["lbtrm", "tcp"])
def test_otr_brings_what_a_dro_has_lost_that_starts_anew(make: Make, open_context: Open, transport: str) -> None:
    net = make(PAIR, transport=transport)
    net.start()
    events = listen(open_context(net, 2), use_otr=1)
    counter = Counter(net, open_context(net, 1).source(TOPIC, retaining()))
    net.run(5000, 50)
    counter.send(50)
    counter.check(events)
    net.kill("B")
    counter.send(100)
    net.start("B")
    while len(data_of(events)) < 51 and counter.sent < 2000:
        counter.send(10)
    counter.send(20)
    got = counter.check(events)
    assert sum(bool(event.flags & FLAG_OTR) for event in got) >= 50


def test_otr_brings_each_hundredth_message_that_is_lost_on_a_session(make: Make, open_context: Open) -> None:
    net = make(BETWEEN, transport="tcp")
    net.start()
    receiver = open_context(net, 2)
    events = listen(receiver, use_otr=1, otr_request_initial_delay=200)
    counter = Counter(net, open_context(net, 1).source(TOPIC, retaining()))
    net.run(5000, 50)
    counter.send(10)
    counter.check(events)
    rng = Random(9)
    lost = [number for number in range(1000) if rng.random() < 0.01]
    assert lost
    lose(receiver, *lost)
    counter.send(1001, together=5)
    got = counter.check(events)
    assert [int(event.data) - 10 for event in got if event.flags] == lost


def test_otr_brings_what_a_portal_drops_that_has_no_room(make: Make, open_context: Open) -> None:
    """A receiver that is slow for a moment; the portal keeps little for it."""
    net = make({"A": [1, 2]}, transport="tcp", um="source transport_session_maximum_buffer 8192\n")
    net.start()
    receiver = open_context(net, 2)
    events = listen(receiver, use_otr=1)
    counter = Counter(net, open_context(net, 1).source(TOPIC, retaining(transport_session_maximum_buffer=1 << 20)))
    net.run(5000, 50)
    counter.send(10)
    counter.check(events)
    (bound,) = receiver.core.bound_sources
    transport = bound.transport
    assert isinstance(transport, TcpReceiver)
    stream = transport._stream
    assert isinstance(stream, PlainStream)
    net.loop.remove_reader(stream.sock)
    counter.send(900, together=10, size=SIZE * 5)
    dropped = net.dros["A"].dropped()
    assert dropped > 0
    net.loop.add_reader(stream.sock, transport._on_readable)
    counter.send(50)
    got = counter.check(events)
    assert sum(bool(event.flags & FLAG_OTR) for event in got) >= dropped


def test_hotlinks_join_late_once(make: Make, open_context: Open) -> None:
    """Both planes carry the source; one of them does as whom to ask, and each message comes once."""
    net = make(PLANES, portal_xml=indexes(PLANES, shift=0))
    net.start()
    net.run(5000, 50)
    counter = Counter(net, open_context(net, 1).source(TOPIC, retaining(use_hotlink=1)))
    counter.send(100, together=10)
    receiver = open_context(net, 3)
    events = listen(receiver, use_hotlink=1)
    while not data_of(events):
        counter.send(2)
    net.until(lambda: len(receiver.core.bound_sources) == 2)
    counter.send(50)
    counter.check(events)
    assert len(receiver.late_join._askers) == 1


def test_portals_keep_nothing_of_it(make: Make, open_context: Open) -> None:
    """What is left in memory when the applications are gone, is what the DROs keep: TCP has no window."""
    net = make(PAIR, transport="tcp")
    net.start()
    net.run(5000, 50)
    tracemalloc.start()
    try:
        sender, receiver = open_context(net, 1), open_context(net, 2)
        counter = Counter(net, sender.source(TOPIC, retaining()))
        counter.send(500, together=50, size=SIZE)
        events = listen(receiver)
        got = counter.check(events)
        assert all(event.flags & FLAG_RETRANSMIT for event in got)
        whole = sum(trace.size for trace in tracemalloc.take_snapshot().traces if SIZE <= trace.size < 2 * SIZE)
        assert whole > 500 * SIZE, "the source retains them"
        counter.source.close()
        receiver.close_children()
        del counter, got, events
        net.run(1000, 50)
        left = [trace for trace in tracemalloc.take_snapshot().traces if SIZE <= trace.size < 2 * SIZE]
        assert sum(trace.size for trace in left) < 50 * SIZE
        rows = [net.dros["A"].page("B", slot) for slot in (Slot.UNICAST_FORWARDED, Slot.UNICAST_SENT)]
        assert max(rows) >= 500, "they have gone by there"
    finally:
        tracemalloc.stop()
