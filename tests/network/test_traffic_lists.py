"""What lists of portals tell of traffic: fragments of proxy sources."""

from __future__ import annotations

from typing import Final

from tests.network.conftest import Make
from tests.network.plans import CHAIN
from tests.network.test_answers import rows
from tests.rigs.network import Network

TOPIC: Final = b"topic"


def proxied(net: Network, dro: str, portal: str) -> dict[str, int]:
    """By topic: fragments of its only proxy source in that portal."""
    return {row.symbol: row.fragments for row in rows(net, dro, "proxies", portal) if row.proxy == "source"}


# fragments


def test_each_proxy_source_tells_the_messages_that_were_sent(make: Make) -> None:
    """Over links and into a TRD; what one source sends does not count for another."""
    net = make(CHAIN)
    net.start()
    sender, receiver = net.application(1), net.application(3)
    first, second = sender.source(TOPIC), sender.source(b"other")
    for topic in (TOPIC, b"other"):
        receiver.context.want_topic(topic)
    net.until(lambda: len(receiver.sink.current) == 2)
    portals = (("A", "A-B"), ("B", "B-C"), ("C", "C-3"))
    for where in portals:
        assert proxied(net, *where) == {"topic": 0, "other": 0}
    sender.send(first, 300)
    sender.send(second, 7, size=1000)
    net.until(lambda: len(receiver.got(first)) == 300 and len(receiver.got(second)) == 7)
    sender.send(first, 11)
    net.until(lambda: len(receiver.got(first)) == 311)
    for where in portals:
        assert proxied(net, *where) == {"topic": 311, "other": 7}
    assert {row.fragments for row in rows(net, "A", "proxies", "A-1")} == {0}, "a proxy receiver has no number"
