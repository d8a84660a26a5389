"""What applications notice of the DROs between their TRDs, whoever of them comes first."""

from __future__ import annotations

import pytest

from dro.proto.interest.announced import DomainRouteTable
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.codes import MessageType
from dro.wire.lbmc.data_blocks import Destination, Stream
from tests.network.conftest import Make
from tests.network.plans import CHAIN, PAIR
from tests.rigs.network import Network, Ports

TOPIC = b"quotes"


def test_contexts_learn_the_domain_id_whether_they_come_before_the_dro_or_later(make: Make) -> None:
    net = make(PAIR, daemon="")
    early = {trd: net.application(trd).context for trd in (1, 2)}
    net.run(3000, 100)
    assert [context.domain_id for context in early.values()] == [0, 0]
    net.start()
    net.until(lambda: all(context.domain_id == trd for trd, context in early.items()), limit_ms=2000)
    late = net.application(1).context
    net.until(lambda: late.domain_id == 1, limit_ms=2000)


def test_a_source_that_was_quiet_for_long_is_heard_by_a_new_receiver(make: Make) -> None:
    """Neither advertises nor asks any more when the receiver comes, two DROs away."""
    net = make(CHAIN, daemon="")
    net.start()
    sender = net.application(1)
    source = sender.source(TOPIC)
    net.run(75_000, 100)
    receiver = net.application(3)
    receiver.context.want_topic(TOPIC)
    net.until(lambda: bool(receiver.bound(TOPIC)), limit_ms=2000)
    net.run(500)
    sender.send(source, 10)
    net.until(lambda: receiver.got(source) == [*range(10)], limit_ms=1000)


def test_dros_that_start_after_a_quiet_receiver_find_it(make: Make) -> None:
    """It asks no more: the portals ask for everything when they start."""
    net = make(PAIR, daemon="")
    receiver, sender = net.application(2), net.application(1)
    receiver.context.want_topic(TOPIC)
    source = sender.source(TOPIC)
    net.run(75_000, 100)
    net.start()
    net.until(lambda: bool(receiver.bound(TOPIC)), limit_ms=16_000)
    net.run(500)
    sender.send(source, 10)
    net.until(lambda: receiver.got(source) == [*range(10)], limit_ms=1000)


def test_a_session_ends_at_the_dro(make: Make) -> None:
    """Two receivers are one connection to the source, and what they are connected to is a portal."""
    net = make(PAIR, transport="tcp")
    net.start()
    sender, receivers = net.application(1), [net.application(2), net.application(2)]
    source = sender.source(TOPIC)
    for receiver in receivers:
        receiver.context.want_topic(TOPIC)
    net.until(lambda: all(receiver.bound(TOPIC) for receiver in receivers))
    net.run(500)
    sender.send(source, 10)
    net.until(lambda: all(receiver.got(source) == [*range(10)] for receiver in receivers))
    assert source.transport.core.stats.num_clients == 1  # type: ignore[attr-defined]
    addresses = {receiver.bound(TOPIC)[0].transport.address for receiver in receivers}
    assert len(addresses) == 1
    assert source.transport.address not in addresses


class Context:
    """One that knows by its routes which DRO takes a unicast message for a domain."""

    def __init__(self, net: Network, trd: int) -> None:
        self.net, self.trd = net, trd
        self.core = net.application(trd).context
        self.routes = DomainRouteTable()
        self.sent = 0
        self.got: list[bytes] = []
        self.core.on_domain_route = lambda domains, ip, port: self.routes.learn(domains, ip, port, net.loop.now_ns())
        self.core.on_unicast = lambda message, _: self.got.append(lbmc.decode(message).payload)

    def send(self, other: Context, payload: bytes) -> bool:
        """A unicast message, if there is a route."""
        dro = self.routes.find(other.trd, self.net.loop.now_ns())
        if dro is not None:
            to, here = other.core.request_address, self.core.request_address
            blocks = (Destination(other.trd, *to, self.trd, *here), Stream(1, self.sent, self.core.context_instance))
            self.core.send_unicast(*dro, lbmc.encode(lbmc.Message(MessageType.MESSAGE, 0, 0, blocks, payload)))
            self.sent += 1
        return dro is not None

    def reaches(self, other: Context) -> bool:
        """One more message is sent; whether one has come."""
        self.send(other, b"here")
        return bool(other.got)


CHECK_MS = 750


@pytest.mark.parametrize(
    ("daemon", "backoff_ms"),
    [("", 5000), ('<route-recalculation backoff-interval="1000"/>', 1000)],
    ids=["default timers", "backoff of a second"],
)
@pytest.mark.parametrize(
    ("dros", "checks"),
    [({"A": [1, 2]}, 1), (PAIR, 1), ({"A": [1, 3], "B": [3, 2]}, 4)],
    ids=["one DRO", "link", "TRD"],
)
def test_unicast_messages_cross_as_soon_as_routes_are_calculated(
    make: Make, dros: Ports, checks: int, daemon: str, backoff_ms: int
) -> None:
    """At the first check after the backoff interval; two DROs in a TRD need some checks to hear of each other."""
    net = make(dros, daemon=daemon)
    one, two = Context(net, 1), Context(net, 2)
    net.run(100)
    net.start()
    net.run(backoff_ms)
    assert not one.reaches(two)
    assert not two.reaches(one)
    net.until(lambda: one.reaches(two) and two.reaches(one), limit_ms=checks * CHECK_MS + 250)


def test_a_context_that_comes_later_hears_of_routes_within_a_second(make: Make) -> None:
    net = make(PAIR, daemon="")
    two = Context(net, 2)
    net.start()
    net.run(20_000, 50)
    one = Context(net, 1)
    net.until(lambda: one.reaches(two), limit_ms=1000)
