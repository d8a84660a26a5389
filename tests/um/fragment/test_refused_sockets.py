"""A context whose sockets are refused: the error names the option, and what was opened before is closed."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from dro.config.um.options import UmOptions
from dro.errors import ResourceError
from dro.proto.unicast.connections import Outcome
from dro.transport.tcp.receiver import TcpReceiver
from dro.um.fragment.context import FragmentContext
from dro.wire.source_string import LbtrmAddress, TcpAddress
from tests.fakes.faulty_sockets import FaultySockets
from tests.fakes.um_contexts import RecordingSink, Stepper, private_config
from tests.rigs.freed import collector_off

LOOPBACK = 0x7F000001


class Refused:
    """A context, and the sockets that it is given."""

    def __init__(self, stepper: Stepper) -> None:
        self.sockets = FaultySockets()
        self.sink = RecordingSink()
        self.options: UmOptions = private_config("lbtrm").options
        self.made = FragmentContext(self.options, stepper.loop, sink=self.sink, sockets=self.sockets)


@pytest.fixture
def context(stepper: Stepper) -> Iterator[Refused]:
    made = Refused(stepper)
    yield made
    made.made.close()


@pytest.fixture(autouse=True)
def others_keep_theirs() -> Iterator[None]:
    """Free what other tests have left before, and nothing of it meanwhile: descriptors are compared."""
    with collector_off():
        yield


def descriptors() -> list[str]:
    return os.listdir("/proc/self/fd")


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        ("multicast_receiver", "change resolver_multicast_incoming_address and _port"),
        ("multicast_sender", "no multicast_sender; change the route"),
        ("bind_in_range", "change request_tcp_port_low/_high"),
    ],
)
def test_a_context_that_gets_no_socket_names_the_option(stepper: Stepper, refused: str, why: str) -> None:
    before = descriptors()
    with pytest.raises(ResourceError, match=why):
        FragmentContext(
            private_config("tcp").options, stepper.loop, sink=RecordingSink(), sockets=FaultySockets(refused)
        )
    assert descriptors() == before


def test_a_context_whose_sessions_cannot_be_had_closes_its_channel(
    stepper: Stepper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kind of transport may need something of its own before the first session."""

    def refuse(*_: object) -> None:
        raise ResourceError("nothing to be had", remedy="buy some")

    before = descriptors()
    monkeypatch.setattr("dro.um.fragment.context.ImmediateMessages", refuse)
    with pytest.raises(ResourceError, match="nothing to be had"):
        FragmentContext(private_config("tcp").options, stepper.loop, sink=RecordingSink())
    assert descriptors() == before


@pytest.mark.parametrize(
    ("transport", "refused", "why"),
    [
        ("lbtrm", "bind_in_range", "change transport_lbtrm_source_port_low/_high"),
        ("lbtrm", "multicast_sender", "no multicast_sender; change the route"),
        ("tcp", "bind_in_range", "change transport_tcp_port_low/_high"),
    ],
)
def test_a_source_that_gets_no_socket_names_the_option(
    context: Refused, transport: str, refused: str, why: str
) -> None:
    before = descriptors()
    context.sockets.refused.add(refused)
    with pytest.raises(ResourceError, match=why):
        context.made.open_source(b"T", options=private_config(transport).options)
    assert descriptors() == before
    context.sockets.refused.clear()
    context.made.open_source(b"T", options=private_config(transport).options)


def test_a_group_that_cannot_be_joined_names_the_option(context: Refused) -> None:
    before = descriptors()
    context.sockets.refused.add("nak_socket")
    with pytest.raises(ResourceError, match="no nak_socket"):
        context.made.joined.join(LbtrmAddress(LOOPBACK, 0xEF010101, 1, 14400, 14401), 0)
    assert descriptors() == before
    context.sockets.refused.clear()
    context.made.joined.join(LbtrmAddress(LOOPBACK, 0xEF010101, 1, 14400, 14401), 0)
    before = descriptors()
    context.sockets.refused.add("multicast_receiver")
    with pytest.raises(ResourceError, match="change transport_lbtrm_multicast_address"):
        context.made.joined.join(LbtrmAddress(LOOPBACK, 0xEF010102, 1, 14400, 14401), 0)
    assert descriptors() == before


def test_a_session_that_cannot_connect_has_ended(context: Refused, stepper: Stepper) -> None:
    context.sockets.refused.add("connecting")
    before = descriptors()
    session = context.made.joined.join(TcpAddress(LOOPBACK, 9, 1), stepper.loop.now_ns())
    stepper.settle()
    assert isinstance(session, TcpReceiver)
    assert not session.was_connected
    assert descriptors() == before


def test_a_message_whose_connection_cannot_be_made_has_failed(context: Refused, stepper: Stepper) -> None:
    context.sockets.refused.add("connecting")
    before = descriptors()
    outcomes: list[Outcome] = []
    context.made.send_unicast(LOOPBACK, 9, b"x", outcomes.append)
    stepper.settle()
    assert outcomes == [Outcome.FAILED]
    assert descriptors() == before


def test_all_sockets_of_a_context_are_given_to_it(context: Refused, stepper: Stepper) -> None:
    before = len(context.sockets.opened)
    assert before == 3, "channel, both ways, and request port"
    context.made.open_source(b"T")
    context.made.open_source(b"T", options=private_config("tcp").options)
    context.made.joined.join(LbtrmAddress(LOOPBACK, 0xEF010101, 1, 14400, 14401), 0)
    context.made.joined.join(TcpAddress(LOOPBACK, 9, 1), stepper.loop.now_ns())
    stepper.settle()
    assert len(context.sockets.opened) - before == 6
    context.made.close()
    assert all(sock.fileno() == -1 for sock in context.sockets.opened)
