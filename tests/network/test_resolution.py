"""Who finds whom by topic resolution through DROs, and how soon: receiver first, quiet ones, packets that are lost.

Real portals and contexts with the default timers of topic resolution, on a clock that the tests move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Final

import pytest

from dro.clock import s
from dro.proto.interest.tqr_use_query import JITTER_PART
from dro.um.fragment.context import FragmentContext
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc import properties
from dro.wire.lbmc.block import Block
from dro.wire.lbmc.codes import MessageType
from dro.wire.lbmc.data_blocks import AppHdrChain, AppHdrType, ChainElement
from dro.wire.lbmc.properties import Property, PropertyType
from dro.wire.lbmr import packet as lbmr
from tests.network.conftest import Make
from tests.network.plans import PAIR
from tests.rigs.network import Application, Network, Ports

TOPIC: Final = b"quotes"
DIRECT: Final[Ports] = {"A": [1, 2]}
TRANSIT: Final[Ports] = {"A": [1, 2], "B": [2, 3]}
SILENT: Final = (
    "receiver resolver_query_minimum_initial_interval 0\nreceiver resolver_query_maximum_initial_interval 0\n"
    "receiver resolver_query_sustain_interval 0\n"
)
ENDLESS: Final = (
    "receiver resolver_query_minimum_sustain_duration 0\nsource resolver_advertisement_minimum_sustain_duration 0\n"
)
START_MS: Final = 12_000
"""Until routes are there, and the portals have ended their initial requests."""


class Ear:
    """What is said on the topic resolution channel of a TRD, with times in seconds."""

    def __init__(self, net: Network, trd: int) -> None:
        self._loop = net.loop
        self.heard: list[tuple[float, lbmr.Body]] = []
        net.application(trd).context.on_tr_packet = self._on_packet

    def _on_packet(self, packet: lbmr.Packet, sender_ip: int, now_ns: int) -> None:
        self.heard.append((self._loop.now_ns() / s(1), packet.body))

    def times(self, chosen: Callable[[lbmr.Body], bool]) -> list[float]:
        return [at for at, body in self.heard if chosen(body)]


def asks_for(body: lbmr.Body) -> bool:
    return isinstance(body, lbmr.Queries) and TOPIC in body.tqrs


def is_interest(body: lbmr.Body, domain_id: int) -> bool:
    return isinstance(body, lbmr.TnwgInterest) and (domain_id, TOPIC) in [(r.domain_id, r.symbol) for r in body.records]


def use_record(body: lbmr.Body, *, is_response: bool) -> bool:
    return isinstance(body, lbmr.TopicManagement) and any(
        record.kind == lbmr.TmrType.USE and bool(record.flags & lbmr.TmrFlag.RESPONSE) == is_response
        for record in body.records
    )


def contexts(net: Network) -> list[FragmentContext]:
    portals = [endpoint for dro in net.dros.values() for endpoint in dro.endpoints.values()]
    return [c for portal in portals for c in (portal.sending, portal.receiving)] + [a.context for a in net.applications]


@contextmanager
def cut_off(net: Network) -> Iterator[None]:
    """Nothing that anybody says on a topic resolution channel arrives."""
    silenced = {context.resolution.channel for context in contexts(net)}
    for channel in silenced:
        channel.send = lambda datagrams: None  # type: ignore[method-assign]
    yield
    for channel in silenced:
        del channel.send


def die(net: Network, application: Application) -> None:
    """Its process is killed: it says no goodbye."""
    application.context.resolution.channel.send = lambda datagrams: None  # type: ignore[method-assign]
    net.end(application)


def flows(net: Network, sender: Application, receiver: Application) -> bool:
    """Does what is sent now arrive?"""
    (source,) = sender._sqn
    sender.send(source)
    net.run(100)
    return receiver.got(source)[-1:] == [sender.sent(source) - 1]


@pytest.mark.parametrize("transport", ["lbtrm", "tcp"])
@pytest.mark.parametrize("plan", [DIRECT, PAIR], ids=["direct", "link"])
def test_little_is_lost_when_a_source_sends_at_once_to_a_receiver_that_waits(
    make: Make, plan: Ports, transport: str
) -> None:
    """No more than in the first 100 ms; the TRD of the source was asked for the topic, and told who wants it."""
    net = make(plan, transport=transport, daemon="")
    net.start()
    ear = Ear(net, 1)
    receiver, sender = net.application(2), net.application(1)
    net.run(START_MS, 50)
    receiver.context.want_topic(TOPIC)
    net.run(10_000, 20)
    assert ear.times(asks_for)
    assert ear.times(lambda body: is_interest(body, 2))
    source = sender.source(TOPIC)
    for _ in range(100):
        sender.send(source)
        net.run(10)
    net.run(500)
    got = receiver.got(source)
    assert got == list(range(got[0], 100))
    assert got[0] <= 10


@pytest.mark.parametrize(("options", "is_found"), [(SILENT, False), ("", True)], ids=["silent", "default"])
def test_a_receiver_is_found_by_its_queries(make: Make, options: str, is_found: bool) -> None:
    """One that comes when no portal requests everybody to speak any more."""
    net = make(DIRECT, daemon="")
    net.start()
    net.run(START_MS, 50)
    with net.plan.config(2).open("a") as file:
        file.write(options)
    receiver, sender = net.application(2), net.application(1)
    source = sender.source(TOPIC)
    receiver.context.want_topic(TOPIC)
    net.run(90_000, 100)
    assert bool(net.dros["A"].proxies()) == is_found
    sender.send(source, 10)
    net.run(500)
    assert receiver.got(source) == ([*range(10)] if is_found else [])


def lost(make: Make, um: str) -> tuple[Network, Application, Application]:
    """A source and a receiver that were cut off for two minutes, from their beginning and from that of the DROs."""
    net = make(PAIR, daemon="", um=um)
    sender, receiver = net.application(1), net.application(2)
    net.start()
    with cut_off(net):
        sender.source(TOPIC)
        receiver.context.want_topic(TOPIC)
        net.run(120_000, 200)
        assert not receiver.bound(TOPIC)
    return net, sender, receiver


def test_a_request_heals_topic_resolution_that_was_cut_off_until_all_were_quiet(make: Make) -> None:
    """Without it nobody finds anybody for as long as one looks."""
    net, sender, receiver = lost(make, "")
    net.run(60_000, 200)
    assert not receiver.bound(TOPIC)
    request = lbmr.TopicResolutionRequest(lbmr.RequestFlag.QUERY)
    context = net.application(2).context
    context.resolution.send([lbmr.encode(lbmr.Packet(lbmr.VERSION, context.packet_options, request))])
    net.until(lambda: flows(net, sender, receiver), limit_ms=3000)


def test_endless_sustaining_heals_topic_resolution_that_was_cut_off(make: Make) -> None:
    net, sender, receiver = lost(make, ENDLESS)
    net.until(lambda: flows(net, sender, receiver), limit_ms=3000)


def test_a_receiver_that_dies_is_forgotten_300_to_315_s_later(make: Make) -> None:
    """By default: use queries begin 300 s after its last word, and then there are five of them, each 3 s."""
    net = make(DIRECT, daemon="")
    net.start()
    sender, receiver = net.application(1), net.application(2)
    sender.source(TOPIC)
    receiver.context.want_topic(TOPIC)
    net.until(lambda: flows(net, sender, receiver))
    die(net, receiver)
    net.run(298_000, 500)
    assert net.dros["A"].proxies() == 2
    net.run(15_000, 500)
    assert net.dros["A"].proxies() == 2
    net.until(lambda: not net.dros["A"].proxies(), limit_ms=300_000 // JITTER_PART + 5000, step_ms=200)


def test_use_queries_are_asked_of_a_quiet_receiver_and_not_of_one_that_asks(make: Make) -> None:
    """Each 5 s; they are answered. After the death of the receiver it is forgotten within 5 and 15 s."""
    periodic = '<topic-resolution><topic-use-query periodic-interval="5000"/></topic-resolution>'
    net = make(DIRECT, daemon="", portal_xml={"A-2": periodic})
    net.start()
    ear = Ear(net, 2)
    sender, receiver = net.application(1), net.application(2)
    sender.source(TOPIC)
    receiver.context.want_topic(TOPIC)
    net.until(lambda: flows(net, sender, receiver))

    def asked() -> list[float]:
        return ear.times(lambda body: use_record(body, is_response=False))

    def answered() -> list[float]:
        return ear.times(lambda body: use_record(body, is_response=True))

    net.run(60_000, 50)
    assert ear.times(asks_for)
    assert (asked(), answered()) == ([], [])
    net.run(40_000, 50)
    assert 5 <= len(asked()) <= 8
    assert all(5 <= after - before <= 6 for before, after in pairwise(asked()))
    assert [round(at, 1) for at in answered()] == pytest.approx([round(at, 1) for at in asked()], abs=0.5)
    assert net.dros["A"].proxies() == 2
    die(net, receiver)
    net.run(14_000, 50)
    assert net.dros["A"].proxies() == 2
    net.until(lambda: not net.dros["A"].proxies(), limit_ms=8000)


def test_interest_is_repeated_between_the_least_and_the_greatest_interval(make: Make) -> None:
    """In the TRD between two DROs, on behalf of the domain beyond."""
    net = make(TRANSIT, daemon="")
    net.start()
    net.run(START_MS, 50)
    ear = Ear(net, 2)
    net.application(3).context.want_topic(TOPIC)
    net.run(200_000, 100)
    times = ear.times(lambda body: is_interest(body, 3))
    gaps = [after - before for before, after in pairwise(times)]
    assert gaps == pytest.approx([1, 2, 4, 8, 16, 32, 60, 60][: len(gaps)], abs=0.3)
    assert len(gaps) >= 7


EVERY_TYPE: Final = (
    Property(b"flag", PropertyType.BOOLEAN, True), Property(b"byte", PropertyType.BYTE, -7),
    Property(b"short", PropertyType.SHORT, -300), Property(b"int", PropertyType.INT, -5),
    Property(b"long", PropertyType.LONG, 1 << 40), Property(b"float", PropertyType.FLOAT, 0.25),
    Property(b"double", PropertyType.DOUBLE, 2.5), Property(b"text", PropertyType.STRING, b"caf\xc3\xa9"),
)  # fmt: skip
PROPERTIES: Final = properties.encode(EVERY_TYPE)
HEADERS: Final = {
    "properties": (ChainElement(AppHdrType.PROPERTIES_LENGTH, len(PROPERTIES).to_bytes(4, "big")), PROPERTIES),
    "hot failover": (ChainElement(AppHdrType.HOT_FAILOVER_SQN, bytes.fromhex("80000001fedcba9876543210")), b""),
    "channel": (ChainElement(AppHdrType.CHANNEL_NUMBER, bytes.fromhex("00000000deadbeef")), b""),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_headers_of_applications_cross_as_they_are(make: Make, kind: str) -> None:
    """From LBT-RM over a peer link to TCP: message properties of every type, numbers of hot failover and channels."""
    element, tail = HEADERS[kind]
    blocks: tuple[Block, ...] = (AppHdrChain((element,)),)
    net = make(PAIR, transport={1: "lbtrm", 2: "tcp"})
    net.start()
    sender, receiver = net.application(1), net.application(2)
    source = sender.source(TOPIC)
    receiver.context.want_topic(TOPIC)
    net.until(lambda: flows(net, sender, receiver))
    first = sender.sent(source)
    for sqn in range(first, first + 5):
        message = lbmc.Message(MessageType.MESSAGE, source.topic_index, sqn, blocks, b"%d" % sqn + tail)
        assert source.transport.send_message(lbmc.encode(message), net.loop.now_ns())
    net.run(500)
    got = [lbmc.decode(raw) for _, sqn, raw in receiver.sink.fragments if sqn >= first]
    assert [(m.sqn, m.blocks, m.payload) for m in got] == [
        (sqn, blocks, b"%d" % sqn + tail) for sqn in range(first, first + 5)
    ]
    if tail:
        assert properties.decode(properties.split(got[0])[1]) == EVERY_TYPE
