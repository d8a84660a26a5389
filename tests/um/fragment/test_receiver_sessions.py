"""Joined sessions: is something missing of what came before a moment?"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from dro.clock import s
from dro.config.um.options import UmOptions
from dro.loop import Loop
from dro.proto.context.sources import BoundSource
from dro.proto.repair.loss import NakDue
from dro.transport import mmsg, sockets
from dro.transport.datagrams.receiver import DatagramReceiver
from dro.transport.kind import SessionHost
from dro.transport.runs import Run
from dro.transport.session import ReceiverTransport
from dro.transport.tcp.kind import TcpReceivers
from dro.um.fragment.receiver_sessions import ReceiverSessions
from dro.wire.source_string import LbtrmAddress, TcpAddress
from tests.builders.um_options import with_all
from tests.fakes.runs import RunSink

LOOPBACK = "127.0.0.1"


class Nobody(RunSink):
    """A sink."""

    def on_bound(self, source: BoundSource[Any], now_ns: int) -> None:
        raise AssertionError

    def on_runs(self, transport: ReceiverTransport, view: memoryview, runs: list[Run], now_ns: int) -> None:
        raise AssertionError

    def on_began(self, transport: ReceiverTransport, now_ns: int) -> None:
        pass

    def on_unbound(self, source: BoundSource[Any], *, ended: bool, now_ns: int) -> None:
        raise AssertionError


@pytest.fixture
def joined() -> Iterator[ReceiverSessions]:
    loop = Loop()
    options = with_all(UmOptions(), [("context", "resolver_multicast_interface", LOOPBACK)])
    made = ReceiverSessions(
        SessionHost(loop, options, mmsg.DatagramBatch(), random.Random(1)), Nobody(), lambda *_: None
    )
    yield made
    made.close()
    loop.close()


def join(joined: ReceiverSessions) -> ReceiverTransport:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind((LOOPBACK, 0))
        port = probe.getsockname()[1]
    group = sockets.ip_number(f"239.203.{os.getpid() % 250}.{random.randrange(1, 255)}")
    transport = joined.join(LbtrmAddress(sockets.ip_number(LOOPBACK), group, 7, port, 1), 0)
    assert transport is not None
    return transport


def take(joined: ReceiverSessions, *sqns: int, again: bool = False) -> None:
    (session,) = joined.sessions()
    assert isinstance(session, DatagramReceiver)
    for sqn in sqns:
        session.core.on_data(sqn & 0xFFFFFFFF, 0, again, 0)


@pytest.mark.parametrize("first", [5, 0xFFFFFFFE])
def test_a_session_is_whole_when_all_before_the_mark_is_there(joined: ReceiverSessions, first: int) -> None:
    transport = join(joined)
    assert transport.mark() is None
    assert transport.is_whole(None), "nothing has come, so nothing is missing"
    take(joined, first, first + 1, first + 4)
    mark = transport.mark()
    assert mark == (first + 5) & 0xFFFFFFFF
    assert not transport.is_whole(mark)
    take(joined, first + 7, first + 8)
    take(joined, first + 2, again=True)
    assert not transport.is_whole(mark)
    take(joined, first + 3, again=True)
    assert transport.is_whole(mark), "what was lost later does not count"
    assert not transport.is_whole(transport.mark())


def test_what_was_given_up_is_missing_no_more(joined: ReceiverSessions) -> None:
    transport = join(joined)
    take(joined, 1, 3)
    mark = transport.mark()
    (session,) = joined.sessions()
    assert isinstance(session, DatagramReceiver)
    session.core.on_timer(s(20))
    assert transport.is_whole(mark)


def test_a_session_that_was_left_has_nothing_missing(joined: ReceiverSessions) -> None:
    transport = join(joined)
    take(joined, 1, 3)
    mark = transport.mark()
    joined.leave(transport)
    assert transport.is_whole(mark)
    assert transport.mark() is None


def test_a_nak_packet_is_as_large_as_the_datagrams_may_be() -> None:
    loop = Loop()
    given = [
        ("context", "resolver_multicast_interface", LOOPBACK),
        ("context", "transport_lbtrm_datagram_max_size", "516"),
    ]
    host = SessionHost(loop, with_all(UmOptions(), given), mmsg.DatagramBatch(), random.Random(1))
    sessions = ReceiverSessions(host, Nobody(), lambda *_: None)
    join(sessions)
    take(sessions, 1, 300)
    (session,) = sessions.sessions()
    assert isinstance(session, DatagramReceiver)
    session.core.on_timer(s(1))
    asked = [len(event.sqns) for event in session.core.take_events() if isinstance(event, NakDue)]
    assert asked == [125, 125, 48], "16 bytes in front and 4 for each"
    sessions.close()
    loop.close()


def test_a_tcp_address_is_tried_once_a_second_whatever_else_is_joined() -> None:
    loop = Loop()
    options = UmOptions()
    receivers = TcpReceivers(
        SessionHost(loop, options, mmsg.DatagramBatch(), random.Random(1)), Nobody(), lambda *_: None
    )
    began = loop.now_ns()
    for port in (1, 2):
        receivers.join(TcpAddress(sockets.ip_number(LOOPBACK), port, 1), options, began).leave()
    again = receivers.join(TcpAddress(sockets.ip_number(LOOPBACK), 1, 1), options, began)
    assert loop.next_deadline() == began + s(1)
    again.leave()
    loop.close()


def test_tcp_is_always_whole(joined: ReceiverSessions) -> None:
    transport = joined.join(TcpAddress(sockets.ip_number(LOOPBACK), 9, 1), 0)
    assert transport is not None
    assert transport.mark() is None
    assert transport.is_whole(None)


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
