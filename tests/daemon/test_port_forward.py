"""A peer link through programs that forward ports: address translation as guide 4.6 has it, between two real DROs.

The initiator is configured with an address of the forwarder, and the acceptor sees another one of it; neither knows
the address of the other.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from dro.loop import Loop
from tests.daemon.test_peers import Chain
from tests.fakes.um_contexts import turn_until
from tests.network.plans import PAIR
from tests.rigs.link_relay import LinkRelay
from tests.rigs.network import Application, Plan

HOST, TO_ACCEPTOR, TO_INITIATOR = "127.0.0.1", "127.0.0.2", "127.0.0.3"
COUNT = 200
WINDOW = 50
OVER = b""


@contextmanager
def datagrams_forwarded(to_acceptor: int, to_initiator: int) -> Iterator[None]:
    """What comes to one address leaves from the other; the ports stay as they are."""
    with socket.socket(type=socket.SOCK_DGRAM) as outside, socket.socket(type=socket.SOCK_DGRAM) as inside:
        outside.bind((TO_ACCEPTOR, to_acceptor))
        inside.bind((TO_INITIATOR, to_initiator))

        def forward(one: socket.socket, other: socket.socket, port: int) -> None:
            while (datagram := one.recv(1 << 16)) != OVER:
                other.sendto(datagram, (HOST, port))

        dros_to = ((outside, inside, to_acceptor), (inside, outside, to_initiator))
        threads = [threading.Thread(target=forward, args=way, daemon=True) for way in dros_to]
        for thread in threads:
            thread.start()
        yield
        for one in (outside, inside):
            one.sendto(OVER, one.getsockname())
        for thread in threads:
            thread.join(30)


@pytest.mark.parametrize("udp", [pytest.param(None, id="TCP"), pytest.param("", id="UDP", marks=pytest.mark.long)])
def test_a_link_works_both_ways_through_a_port_forward(tmp_path: Path, udp: str | None) -> None:
    plan = Plan(tmp_path, PAIR, udp=udp, delays_ms={("A", "B"): 0})
    outside = plan.relay_port("A", "B")
    file = plan.file("A")
    text = file.read_text()
    assert f"<address>{HOST}</address>" in text
    file.write_text(text.replace(f"<address>{HOST}</address>", f"<address>{TO_ACCEPTOR}</address>"))
    pair, loop = Chain(plan), Loop()
    with ExitStack() as stack:
        stack.callback(plan.close)
        stack.callback(loop.close)
        relay = LinkRelay(outside, plan.link_port("A", "B"), listens=TO_ACCEPTOR, connects=TO_INITIATOR)
        stack.enter_context(relay)
        if udp is not None:
            stack.enter_context(datagrams_forwarded(plan.udp_port("B", "A"), plan.udp_port("A", "B")))
        for dro in ("B", "A"):
            pair.start_dro(dro)
            stack.callback(pair.end, dro)
        network = SimpleNamespace(plan=plan, loop=loop)
        ends = [Application(network, trd) for trd in (1, 2)]  # type: ignore[arg-type]  # has a plan and a loop
        sources = [end.source(b"from %d" % trd) for trd, end in enumerate(ends, start=1)]
        dros_to = list(zip(ends, sources, reversed(ends), strict=True))
        for _, source, receiver in dros_to:
            receiver.context.want_topic(source.topic)
        turn_until(loop, lambda: all(receiver.bound(source.topic) for _, source, receiver in dros_to))

        def is_heard() -> bool:
            for sender, source, receiver in dros_to:
                got = receiver.got(source)
                if not got or sender.sent(source) - got[-1] < WINDOW:
                    sender.send(source)
            return all(len(receiver.got(source)) >= COUNT for _, source, receiver in dros_to)

        turn_until(loop, is_heard)
        for _, source, receiver in dros_to:
            got = receiver.got(source)
            assert got == list(range(got[0], got[0] + len(got)))
        log = (tmp_path / "A.log").read_text(), (tmp_path / "B.log").read_text()
        assert f"connected to the companion peer={TO_ACCEPTOR}:{outside} " in log[0]
        assert f"accepted the companion peer={TO_INITIATOR}:" in log[1]
        for end in ends:
            end.context.close()
