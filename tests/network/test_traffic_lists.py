"""What lists of portals tell of traffic: fragments of proxy sources, who blocks, what is lost."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from dro.metrics.slots import Slot
from dro.um.fragment.own_source import FragmentSource
from tests.network.conftest import Make
from tests.network.plans import CHAIN, PAIR
from tests.network.test_answers import rows
from tests.network.test_udp_links import links_up
from tests.rigs.network import Application, Network

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


# what is blocked


@pytest.fixture
def raw() -> Iterator[socket.socket]:
    """A connection to be made, which reads only when it is told."""
    with socket.socket() as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        yield made


def read_all(sock: socket.socket) -> None:
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while sock.recv(1 << 20):
            pass


def joined(net: Network, raw: socket.socket) -> tuple[Application, FragmentSource, Application]:
    """A sender with a source, and a receiver in the other TRD, where `raw` is connected to the proxy source as well."""
    net.start()
    sender, receiver = net.application(1), net.application(2)
    source = sender.source(TOPIC)
    receiver.context.want_topic(TOPIC)
    net.until(lambda: len(receiver.bound(TOPIC)) == 1)
    proxy = next(row for row in rows(net, "A", "proxies", "A-2") if row.proxy == "source")
    ip, port = proxy.source.split(":")[1:3]
    raw.connect((ip, int(port)))
    net.run(10)
    return sender, source, receiver


@pytest.mark.parametrize(
    ("behavior", "state"), [("normal", "blocking"), ("bounded_latency", "waiting"), ("source_paced", "waiting")]
)
def test_a_receiver_that_does_not_read_is_listed_until_it_reads(
    make: Make, raw: socket.socket, behavior: str, state: str
) -> None:
    """With its address, topics, what waits and what was discarded for it."""
    um = f"source transport_tcp_multiple_receiver_behavior {behavior}\n"
    net = make({"A": [1, 2]}, transport="tcp", um=um + "source transport_tcp_sender_socket_buffer 4096\n")
    sender, source, receiver = joined(net, raw)
    assert rows(net, "A", "blocked", "A-2") == []

    def send_until(holds: Callable[[], bool]) -> None:
        while not holds():
            sender.send(source, 5, size=4000)
            net.run(10)

    send_until(lambda: bool(rows(net, "A", "blocked", "A-2")))
    send_until(lambda: rows(net, "A", "blocked", "A-2")[0].state == state)
    net.run(3000)
    (row,) = rows(net, "A", "blocked", "A-2")
    assert (row.portal, row.address) == ("A-2", "{}:{}".format(*raw.getsockname()))
    assert (row.state, row.topics) == (state, ("topic",))
    assert row.blocked_s >= 3.0
    assert row.waiting_bytes > 4000
    assert rows(net, "A", "blocked", "A-2", "topic") == [row]
    assert rows(net, "A", "blocked", "A-2", "other") == rows(net, "A", "blocked", "A-1") == []
    if behavior == "normal":
        assert row.dropped == 0
        before = row.waiting_bytes
        sender.send(source, 5, size=4000)
        net.run(10)
        assert rows(net, "A", "blocked", "A-2")[0].waiting_bytes > before + 5 * 4000, "in the queue as well"
    else:
        send_until(lambda: rows(net, "A", "blocked", "A-2")[0].dropped >= 5)

    def is_read() -> bool:
        read_all(raw)
        return rows(net, "A", "blocked", "A-2") == []

    net.until(is_read)
    net.until(lambda: receiver.got(source) == list(range(sender.sent(source))))


def test_a_receiver_that_is_gone_blocks_nothing(make: Make, raw: socket.socket) -> None:
    net = make({"A": [1, 2]}, transport="tcp", um="source transport_tcp_sender_socket_buffer 4096\n")
    sender, source, _ = joined(net, raw)
    while not rows(net, "A", "blocked", "A-2"):
        sender.send(source, 5, size=4000)
        net.run(10)
    raw.close()
    net.until(lambda: rows(net, "A", "blocked", "A-2") == [])


def test_a_link_that_does_not_take_what_waits_is_listed_until_it_does(make: Make) -> None:
    """Also while it is down; topics of the link are named, eight at most."""
    net = make(PAIR, transport="tcp", portal_xml={"A-B": "<max-queue>100000</max-queue>"})
    net.start()
    sender, receiver = net.application(1), net.application(2)
    sources = [sender.source(b"topic.%d" % number) for number in range(10)]
    for source in sources:
        receiver.context.want_topic(source.topic)
    net.until(lambda: len(receiver.sink.current) == 10)
    a, b = net.dros["A"], net.dros["B"]
    assert rows(net, "A", "blocked", "A-B") == []
    b.set_reading("A", reads=False)
    while not ((found := rows(net, "A", "blocked", "A-B")) and found[0].dropped and found[0].blocked_s >= 2.0):
        sender.send(sources[0], 5, size=20_000)  # the kernel may make more room for a while
        net.run(10)
    (row,) = found
    (peer,) = rows(net, "A", "peers", "A-B")
    assert (row.portal, row.address, row.state) == ("A-B", peer.remote, "blocking")
    assert row.blocked_s >= 2.0
    assert row.waiting_bytes == peer.waiting_bytes + peer.queued_bytes > 100_000
    assert row.dropped == a.page("B", Slot.DROPPED_BLOCKED)
    assert len(row.topics) == 8
    assert set(row.topics) < {f"topic.{number}" for number in range(10)}
    (last,) = rows(net, "A", "blocked", "A-B", "c.9")
    assert last.topics == ("topic.9",)
    assert rows(net, "A", "blocked", "A-B", "none") == rows(net, "B", "blocked", "B-A") == []
    a.close_link("B")
    net.run(1000)
    (row,) = rows(net, "A", "blocked", "A-B")
    assert (row.state, row.address) == ("down", peer.remote)
    assert 1.0 <= row.blocked_s < 2.0
    a.mend("B")
    net.until(lambda: rows(net, "A", "blocked", "A-B") == [])
    net.until(lambda: links_up(net))
    assert a.page("B", Slot.QUEUED_BYTES) == 0


# what is lost

NO_REPAIRS: Final = "receiver transport_lbtrm_send_naks 0\nreceiver transport_lbtrm_nak_generation_interval 500\n"
SMALL_WINDOW: Final = "source transport_lbtrm_transmission_window_limit 20000\n"


@pytest.mark.parametrize("cause", ["timeout", "window advance", "jump"])
def test_what_nobody_repairs_is_listed_once(make: Make, cause: str) -> None:
    """A loss of three datagrams, and one a while later."""
    options = {"timeout": NO_REPAIRS, "jump": ""}
    naks = "receiver transport_lbtrm_send_naks 0\n"
    net = make({"A": [1, 2]}, um=options.get(cause, naks + SMALL_WINDOW))
    net.start()
    sender, receiver = net.application(1), net.application(2)
    source = sender.source(TOPIC)
    receiver.context.want_topic(TOPIC)
    net.until(lambda: len(receiver.bound(TOPIC)) == 1)
    sender.send(source, 3)
    net.until(lambda: len(receiver.got(source)) == 3)
    assert rows(net, "A", "losses", "A-1") == []

    def lose(count: int) -> None:
        sender.lose(source, 100_000 if cause == "jump" else count)
        for _ in range(100):
            sender.send(source, 1, size=1000)
            net.run(10)

    began_s = time.time()
    lose(3)
    net.until(lambda: bool(rows(net, "A", "losses", "A-1")))
    net.run(3000)
    (first,) = rows(net, "A", "losses", "A-1")
    (heard,) = rows(net, "A", "sources", "A-1")
    assert heard.source.startswith(first.source)
    assert (first.portal, first.topics, first.otid, first.cause) == ("A-1", ("topic",), source.otid.hex(), cause)
    jumped = 100_001 - 65_536  # the first datagram behind a jump is not believed
    assert first.lost == (jumped if cause == "jump" else 3)
    assert began_s - 0.001 < first.began_s <= first.ended_s <= time.time() + 0.001
    if cause != "jump":
        lose(1)
        net.until(lambda: len(rows(net, "A", "losses", "A-1")) == 2)
        second = rows(net, "A", "losses", "A-1")[1]
        assert (second.lost, second.source) == (1, first.source)
        assert second.began_s >= first.ended_s
        portal = net.dros["A"].endpoints[1]
        portal.refresh_gauges()
        assert net.dros["A"].page(1, Slot.UNRECOVERABLE) == 4
    assert rows(net, "A", "losses", "A-1", "topic") == rows(net, "A", "losses", "A-1")
    assert rows(net, "A", "losses", "A-1", "other") == rows(net, "A", "losses", "A-2") == []


def test_what_is_repaired_is_no_loss(make: Make) -> None:
    net = make({"A": [1, 2]})
    net.start()
    sender, receiver = net.application(1), net.application(2)
    source = sender.source(TOPIC)
    receiver.context.want_topic(TOPIC)
    net.until(lambda: len(receiver.bound(TOPIC)) == 1)
    sender.send(source, 3)
    sender.lose(source)
    sender.send(source, 3)
    session = net.dros["A"].endpoints[1].receiving.joined
    net.until(lambda: sorted(receiver.got(source)) == [*range(7)])
    assert session.counts().naks_sent == 1
    net.run(12_000, 100)
    assert session.counts().unrecoverable == 0
    assert rows(net, "A", "losses", "A-1") == []
