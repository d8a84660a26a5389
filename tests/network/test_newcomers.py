"""Connections to a link that is there: who is refused, who takes its place, and who is given up."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from dro.log.events import LogEvent
from dro.metrics.slots import Slot
from dro.proto.peerlink.connecting import ANSWER_NS
from dro.proto.peerlink.messages import Hello, hello, keepalive
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.dro_blocks import GatewayName
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


def received(sock: socket.socket) -> bytes:
    """The first message."""
    data = sock.recv(65536)
    return data[: int.from_bytes(data[2:4], "big")]


def test_a_companion_that_asks_and_reads_nothing_is_given_up(make: Make) -> None:
    """Else what waits for it would grow by 9 MB a second, without an end."""
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
