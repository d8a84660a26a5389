"""Hot failover, properties and explicit batches across DROs: real portals, real contexts, a clock that tests move."""

from __future__ import annotations

from typing import Final

import pytest

from dro.config.um.options import UmOptions
from dro.um.message.client_config import Config
from dro.um.message.context import MessageContext
from dro.um.message.events import FLAG_END_BATCH, FLAG_HF_32, FLAG_START_BATCH, Data, Event, Loss, LossBurst
from dro.um.message.failover import FailoverNumbering
from dro.um.message.properties import Byte, Float, Int, Long, Properties, Short, batch_marks, compose
from dro.um.message.receiver import CallbackListener
from dro.um.message.source import MessageSource
from tests.network.conftest import Make
from tests.network.plans import PAIR
from tests.rigs.network import Network

TWO_WAYS: Final = {"A": [1, 3], "B": [2, 3]}
"""Sources are in TRDs 1 and 2, the receiver is in TRD 3."""
TOPIC: Final = "orders"
ALL: Final[Properties] = {
    "boolean": False, "byte": Byte(1), "short": Short(2), "int": Int(3), "long": Long(4), "float": Float(0.5),
    "double": 0.1, "string": "text",
}  # fmt: skip


def context_in(net: Network, trd: int) -> MessageContext:
    return MessageContext(Config.load(net.plan.config(trd)), net.loop)


def listen(context: MessageContext, *, hot_failover: bool = False) -> list[Event]:
    events: list[Event] = []
    context.receiver(TOPIC, CallbackListener(events.append), UmOptions(), hot_failover=hot_failover)
    return events


def close(*contexts: MessageContext) -> None:
    for context in contexts:
        context.close_children()
        context.close()


@pytest.mark.parametrize("transport", ["lbtrm", "tcp"])
def test_a_dro_that_dies_on_the_path_of_one_source_costs_no_number(make: Make, transport: str) -> None:
    net = make(TWO_WAYS, transport=transport)
    net.start()
    net.run(3000, 20)
    senders, ear = [context_in(net, trd) for trd in (1, 2)], context_in(net, 3)
    events = listen(ear, hot_failover=True)
    sources = [sender.source(TOPIC, UmOptions(), hot_failover=True) for sender in senders]
    numbering = [FailoverNumbering(), FailoverNumbering()]
    net.until(lambda: len(ear.core.bound_sources) == 2)

    def send(number: int, *which: int) -> None:
        for one in which:
            data = b"%d" % number
            made = numbering[one].compose(data, number, 32, is_optional=False, properties={"n": number}, channel=None)
            sources[one].send(made.data, blocks=made.blocks)
        net.run(20)

    def got() -> list[int | None]:
        return [event.hf_sqn for event in events if isinstance(event, Data)]

    send(0, 0, 1)
    net.until(lambda: got() == [0])
    for number in range(1, 30):
        send(number, 0, 1)
    net.kill("A")
    for number in range(30, 60):
        send(number, 0, 1)
    send(60, 1)
    net.until(lambda: got()[-1:] == [60])
    messages = [event for event in events if isinstance(event, Data)]
    assert got() == list(range(61))
    assert [event.properties for event in messages] == [{"n": number} for number in range(61)]
    assert {event.flags for event in messages} == {FLAG_HF_32}
    assert not [event for event in events if isinstance(event, Loss | LossBurst)]
    close(*senders, ear)


def flow(net: Network, source: MessageSource, events: list[Event]) -> None:
    """Send until something is heard, and forget it."""

    def is_heard() -> bool:
        source.send(b"probe")
        return any(isinstance(event, Data) for event in events)

    net.until(is_heard)
    net.run(300)
    events.clear()


@pytest.mark.parametrize(("first", "second"), [("lbtrm", "tcp"), ("tcp", "lbtrm")])
def test_properties_channels_and_batches_cross(make: Make, first: str, second: str) -> None:
    """Whole and in fragments, from one transport to the other over a peer link."""
    net = make(PAIR, transport={1: first, 2: second}, um="context transport_tcp_datagram_max_size 8192\n")
    net.start()
    net.run(3000, 20)
    sender, ear = context_in(net, 1), context_in(net, 2)
    source, events = sender.source(TOPIC, UmOptions()), listen(ear)
    flow(net, source, events)
    for size in (3, 50_000):
        made = compose(b"x" * size, ALL, 9)
        source.send(made.data, blocks=made.blocks)
    for number in range(4):
        marks = batch_marks(number == 0, number == 3)
        source.send(b"%d" % number, marks=marks, blocks=compose(b"", channel=number).blocks)
    net.until(lambda: len(events) >= 6)
    got = [event for event in events if isinstance(event, Data)]
    assert [(event.data, event.properties, event.channel) for event in got[:2]] == [
        (b"x" * size, ALL, 9) for size in (3, 50_000)
    ]
    assert [(event.data, event.flags, event.channel) for event in got[2:]] == [
        (b"0", FLAG_START_BATCH, 0), (b"1", 0, 1), (b"2", 0, 2), (b"3", FLAG_END_BATCH, 3),
    ]  # fmt: skip
    close(sender, ear)
