"""Who takes the place of a link, and who is taken for the companion."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from dro.log.events import LogEvent
from dro.metrics.slots import Slot
from dro.proto.peerlink.connecting import ANSWER_NS
from dro.proto.peerlink.messages import Hello, hello, keepalive
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.dro_blocks import GatewayName, RouteInfo, RouteInfoNeighbor
from portals.peer.stream.writer import URGENT_MAX
from tests.network.conftest import Make
from tests.network.plans import PAIR
from tests.rigs.network import Network

ANSWER_MS = ANSWER_NS // 1_000_000


def linked(make: Make) -> Network:
    net = make(PAIR)
    net.start()
    net.until(lambda: all(dro.endpoints for dro in net.dros.values()) and net.dros["B"].has_link("A"))
    net.run(1000)
    return net


def greeting_of_a(net: Network, **changes: object) -> bytes:
    """The HELLO of A, which is known to whoever has seen it."""
    link = net.dros["B"].peers["A"].connection
    assert link is not None
    assert link.session.hello is not None
    return hello(replace(link.session.hello, **changes))  # type: ignore[arg-type]


def connect(net: Network, content: bytes) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", net.plan.link_port("A", "B")), 5)
    sock.sendall(content)
    sock.setblocking(False)
    return sock


def is_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(65536) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [getattr(r, "reason", "") for r in caplog.records if r.msg is LogEvent.PEER_REFUSED]


def test_whoever_knows_the_hello_of_the_companion_does_not_take_its_place(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    net = linked(make)
    link = net.dros["B"].peers["A"].connection
    for _ in range(3):
        sock = connect(net, greeting_of_a(net))
        net.run(ANSWER_MS + 100)
        assert is_closed(sock)
        sock.close()
    assert net.dros["B"].peers["A"].connection is link
    assert refusals(caplog) == ["the companion is connected, and answers"] * 3


def test_a_second_host_with_the_same_configuration_is_refused_by_name(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    net = linked(make)
    peer = net.dros["B"].peers["A"]
    link = peer.connection
    sock = connect(net, greeting_of_a(net, node_id=1 << 63 | 99, context_instance=b"anotherA"))
    net.until(lambda: is_closed(sock))
    assert peer.connection is link
    (why,) = refusals(caplog)
    assert why.startswith("another DRO of the same name is connected: A")
    assert why.endswith(f"and this one has node id {1 << 63 | 99}")
    assert why in peer.link.watch.error, "in status as well"
    sock.close()


def test_a_companion_that_has_lost_its_link_unnoticed_is_taken_when_nobody_answers_there(make: Make) -> None:
    net = linked(make)
    greeting = greeting_of_a(net)
    peer = net.dros["B"].peers["A"]
    link = peer.connection
    net.dros["A"].set_reading("B", reads=False)
    net.dros["A"].peers["B"].on_route_info = lambda message: None  # type: ignore[method-assign]
    net.run(10)
    sock = connect(net, greeting)
    net.run(ANSWER_MS // 2)
    assert peer.connection is link
    assert not is_closed(sock)
    net.run(ANSWER_MS // 2 + 100)
    assert peer.connection is not link
    assert peer.link.watch.is_up
    greeted = lbmc.decode(received(sock)).get(GatewayName)
    assert greeted is not None, "once it was admitted"
    assert greeted.name.startswith(b"B")
    sock.close()


def test_of_two_who_want_the_place_of_a_silent_link_one_has_it(make: Make) -> None:
    net = linked(make)
    greeting, stranger = greeting_of_a(net), greeting_of_a(net, name=b"stranger")
    peer = net.dros["B"].peers["A"]
    net.dros["A"].set_reading("B", reads=False)
    net.dros["A"].peers["B"].on_route_info = lambda message: None  # type: ignore[method-assign]
    net.run(10)
    waits = connect(net, greeting)
    net.run(ANSWER_MS // 2)
    link = peer.connection
    assert link is not None
    link.session._heard_ns -= 60_000_000_000  # silent for longer than an interval of keepalives
    other = connect(net, stranger)
    net.until(lambda: peer.connection is not link)
    taken = peer.connection
    net.run(ANSWER_MS + 100)
    assert peer.connection is taken
    assert is_closed(waits)
    for sock in (waits, other):
        sock.close()


def received(sock: socket.socket) -> bytes:
    """The first message."""
    data = sock.recv(65536)
    return data[: int.from_bytes(data[2:4], "big")]


def route(name: bytes, node_id: int) -> bytes:
    neighbours = (RouteInfoNeighbor(1, 1, 1), RouteInfoNeighbor(1 << 63 | 1, 1, 1))
    return lbmc.encode(lbmc.control_message(RouteInfo(node_id, 1, 1, 5), GatewayName(name), *neighbours))


def test_a_companion_that_tells_no_node_id_is_known_by_its_name_and_not_by_what_comes_first(make: Make) -> None:
    """A review: route information of a third DRO came first after a reconnect, and was taken for the companion's."""
    net = make(PAIR)
    net.start("B")
    net.run(100)
    third, own = 1 << 63 | 77, 1 << 63 | 55
    sock = connect(net, hello(Hello(b"A", b"instance")) + route(b"X", third) + route(b"A", own))
    peer = net.dros["B"].peers["A"]
    net.until(lambda: peer.link.neighbour != 0)
    assert peer.link.neighbour == own
    sock.close()


def test_the_own_route_information_is_the_first_that_leaves_on_a_connection(make: Make) -> None:
    net = make(PAIR)
    net.start("B")
    net.run(100)
    sock = connect(net, hello(Hello(b"A", b"instance")))
    peer = net.dros["B"].peers["A"]
    net.until(lambda: peer.connection is not None)
    peer.link._has_told_own = False
    sent: list[bytes] = []
    assert peer.connection is not None
    peer.connection.writer.put_urgent = sent.append  # type: ignore[assignment,method-assign]
    for node_id in (7, peer.link.hello.node_id, 8):
        peer.on_route_info(route(b"any", node_id))
    assert [lbmc.decode(message).get(RouteInfo).node_id for message in sent] == [peer.link.hello.node_id, 8]  # type: ignore[union-attr]
    sock.close()


def test_the_neighbour_is_known_from_hello(make: Make) -> None:
    net = linked(make)
    assert net.dros["B"].peers["A"].link.neighbour == net.dros["A"].node_id


def test_a_companion_that_asks_and_reads_nothing_is_given_up(make: Make) -> None:
    """A review: 9 MB of memory a second, without an end."""
    net = make(PAIR)
    net.start("B")
    net.run(100)
    sock = connect(net, hello(Hello(b"A", b"instance", has_digests=True)))
    peer = net.dros["B"].peers["A"]
    net.until(lambda: peer.connection is not None)
    link = peer.connection
    assert link is not None
    for n in range(2000):
        link.session.on_message(keepalive(n, n), net.loop.now_ns())
    assert len(link.session.take_effects()) <= 200, "answers in a second"
    before = net.dros["B"].page("A", Slot.GATEWAY_CONTROL_DROPPED)
    while peer.connection is link and link.writer.waiting <= 2 * URGENT_MAX:
        link.writer.put_urgent(bytes(60_000))
        net.loop.run_once(0)
    assert peer.connection is not link
    assert "does not read" in peer.link.watch.error
    assert net.dros["B"].page("A", Slot.GATEWAY_CONTROL_DROPPED) >= before
    sock.close()
