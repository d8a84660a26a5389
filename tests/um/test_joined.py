"""Joined sessions: is something missing of what came before a moment?"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator

import pytest

from dro.clock import s
from dro.config.options import UmOptions
from dro.loop import Loop
from dro.um import mmsg, sockets
from dro.um.joined import Joined
from dro.um.runs import Run
from dro.um.session import BoundSource, ReceiverTransport
from dro.wire.source_string import LbtrmAddress, TcpAddress

LOOPBACK = "127.0.0.1"


class Nobody:
    """A sink."""

    def on_bound(self, source: BoundSource, now_ns: int) -> None:
        raise AssertionError

    def on_fragments(self, transport: ReceiverTransport, view: memoryview, runs: list[Run], now_ns: int) -> None:
        raise AssertionError

    def on_began(self, transport: ReceiverTransport, now_ns: int) -> None:
        pass

    def on_unbound(self, source: BoundSource, *, ended: bool, now_ns: int) -> None:
        raise AssertionError


@pytest.fixture
def joined() -> Iterator[Joined]:
    loop = Loop()
    options = UmOptions().with_all([("context", "resolver_multicast_interface", LOOPBACK)])
    made = Joined(loop, options, mmsg.DatagramBatch(), random.Random(1), Nobody(), lambda *_: None)
    yield made
    made.close()
    loop.close()


def join(joined: Joined) -> ReceiverTransport:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind((LOOPBACK, 0))
        port = probe.getsockname()[1]
    group = sockets.ip_number(f"239.203.{os.getpid() % 250}.{random.randrange(1, 255)}")
    transport = joined.join(LbtrmAddress(sockets.ip_number(LOOPBACK), group, 7, port, 1), 0)
    assert transport is not None
    return transport


def take(joined: Joined, *sqns: int, again: bool = False) -> None:
    (session,) = joined.sessions()
    for sqn in sqns:
        session.session.core.on_data(sqn & 0xFFFFFFFF, 0, again, 0)  # type: ignore[union-attr]  # of LBT-RM


@pytest.mark.parametrize("first", [5, 0xFFFFFFFE])
def test_a_session_is_whole_when_all_before_the_mark_is_there(joined: Joined, first: int) -> None:
    transport = join(joined)
    assert joined.mark(transport) is None
    assert joined.is_whole(transport, None), "nothing has come, so nothing is missing"
    take(joined, first, first + 1, first + 4)
    mark = joined.mark(transport)
    assert mark == (first + 5) & 0xFFFFFFFF
    assert not joined.is_whole(transport, mark)
    take(joined, first + 7, first + 8)
    take(joined, first + 2, again=True)
    assert not joined.is_whole(transport, mark)
    take(joined, first + 3, again=True)
    assert joined.is_whole(transport, mark), "what was lost later does not count"
    assert not joined.is_whole(transport, joined.mark(transport))


def test_what_was_given_up_is_missing_no_more(joined: Joined) -> None:
    transport = join(joined)
    take(joined, 1, 3)
    mark = joined.mark(transport)
    (session,) = joined.sessions()
    session.session.core.on_timer(s(20))
    assert joined.is_whole(transport, mark)


def test_a_session_that_was_left_has_nothing_missing(joined: Joined) -> None:
    transport = join(joined)
    take(joined, 1, 3)
    mark = joined.mark(transport)
    transport.leave()
    assert joined.is_whole(transport, mark)
    assert joined.mark(transport) is None


def test_tcp_is_always_whole(joined: Joined) -> None:
    transport = joined.join(TcpAddress(sockets.ip_number(LOOPBACK), 9, 1), 0)
    assert transport is not None
    assert joined.mark(transport) is None
    assert joined.is_whole(transport, None)


def test_bytes_that_nobody_acknowledged_are_counted() -> None:
    with socket.create_server((LOOPBACK, 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
        with ours, theirs:
            assert sockets.unacknowledged_bytes(ours) == 0
            ours.setblocking(False)
            sent = 0
            while True:
                try:
                    sent += ours.send(bytes(65536))
                except BlockingIOError:
                    break
            assert 0 < sockets.unacknowledged_bytes(ours) <= sent
            theirs.settimeout(10)
            while sockets.unacknowledged_bytes(ours):
                assert theirs.recv(1 << 20)
