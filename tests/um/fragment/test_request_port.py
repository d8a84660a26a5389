"""The request port and the connections to those of others, on real sockets."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import random
import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from dro.config.um.options import UmOptions
from dro.config.um.sets import RequestOptions
from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.proto.unicast.connections import REST_NS, Outcome
from dro.transport import sockets
from dro.transport.stream import StreamMaker
from dro.um.fragment.context import FragmentContext
from dro.um.fragment.request_port import (
    ACCEPT_PAUSE_NS,
    ACCEPTS_PER_TURN,
    CONNECTIONS_MAX,
    MESSAGES_PER_TURN,
    READ_BYTES,
    RequestPort,
)
from dro.um.fragment.unicast_sender import UnicastSender
from tests.fakes.um_contexts import RecordingSink, Stepper, private_config

LOOPBACK = sockets.ip_number("127.0.0.1")


def request_options(**more: object) -> RequestOptions:
    made = replace(RequestOptions.of(private_config("tcp").options), interface="127.0.0.1")
    return replace(made, **more)  # type: ignore[arg-type]  # its fields


def message(body: bytes) -> bytes:
    return b"\x08\xff" + (4 + len(body)).to_bytes(2, "big") + body


class Port:
    def __init__(self, stepper: Stepper, **more: object) -> None:
        self.stepper = stepper
        self.got: list[tuple[bytes, tuple[int, int]]] = []
        self.made = RequestPort(stepper.loop, request_options(**more), 5, lambda *got: self.got.append(got))
        self.clients: list[socket.socket] = []

    @property
    def number(self) -> int:
        return self.made.address[1]

    @property
    def messages(self) -> list[bytes]:
        return [data for data, _ in self.got]

    def client(self, data: bytes = b"") -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.number))
        self.clients.append(client)
        client.sendall(data)
        self.stepper.settle()
        return client


@pytest.fixture
def port(stepper: Stepper) -> Iterator[Port]:
    made = Port(stepper, listen_backlog=200)
    yield made
    made.made.close()
    for client in made.clients:
        client.close()


def test_the_default_range_has_room_for_all(stepper: Stepper, caplog: pytest.LogCaptureFixture) -> None:
    """Four endpoint portals wanted eight of its five ports, so a star of the guide did not start."""
    rng = random.Random(os.urandom(8))
    address = f"127.{rng.randrange(1, 255)}.{rng.randrange(255)}.{rng.randrange(1, 255)}"
    where = RequestOptions.of(UmOptions({("context", "request_tcp_interface"): address}))
    with caplog.at_level(logging.INFO), contextlib.ExitStack() as opened:
        ports = [RequestPort(stepper.loop, where, 5, lambda *_: None) for _ in range(8)]
        for port in ports:
            opened.callback(port.close)
        numbers = [port.address[1] for port in ports]
        assert numbers[:5] == [14391, 14392, 14393, 14394, 14395]
        assert len(set(numbers)) == 8
        told = [vars(r) for r in caplog.records]
        assert [(r["msg"], r["port"]) for r in told] == [(LogEvent.REQUEST_PORT_OUTSIDE, n) for n in numbers[5:]]
        with pytest.raises(ResourceError, match=r"no port of request_tcp_port_low/_high can be bound .*\(4 tried\)"):
            RequestPort(stepper.loop, replace(where, port_high=14394), 5, lambda *_: None)


def is_closed(client: socket.socket) -> bool:
    client.settimeout(0)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_each_message_is_handed_on_with_the_address_that_it_came_from(port: Port) -> None:
    one = port.client(message(b"a") + message(b"bb"))
    two = port.client(message(b"ccc")[:5])
    assert port.got == [(message(text), (LOOPBACK, one.getsockname()[1])) for text in (b"a", b"bb")]
    two.sendall(message(b"ccc")[5:])
    port.stepper.settle()
    assert port.got[2:] == [(message(b"ccc"), (LOOPBACK, two.getsockname()[1]))]
    one.close()
    port.stepper.settle()
    assert len(port.made) == 1


def test_connections_are_accepted_so_many_in_a_turn(port: Port) -> None:
    ip, number = port.made.address
    assert ip == LOOPBACK
    port.clients = [socket.create_connection(("127.0.0.1", number)) for _ in range(ACCEPTS_PER_TURN + 2)]
    port.stepper.loop.run_once(0)
    assert len(port.made) == ACCEPTS_PER_TURN
    assert port.stepper.loop.next_deadline() == 0, "there may be more"
    port.stepper.settle()
    assert len(port.made) == ACCEPTS_PER_TURN + 2
    port.made.close()
    assert all(map(is_closed, port.clients))
    assert port.stepper.loop.next_deadline() is None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", number))


def test_messages_are_handed_on_so_many_in_a_turn(port: Port) -> None:
    sent = [message(b"%d" % number) for number in range(3 * MESSAGES_PER_TURN)]
    client = port.client()
    client.sendall(b"".join(sent))
    for turn in (1, 2, 3):
        port.stepper.loop.run_once(0)
        assert len(port.got) == turn * MESSAGES_PER_TURN
    port.stepper.settle()
    assert port.messages == sent
    assert port.stepper.loop.next_deadline() is None, "not called for nothing"


def test_the_largest_messages_pass_whole(port: Port) -> None:
    sent = [message(bytes([number]) * 65531) for number in range(8)]
    client = port.client()
    client.setblocking(False)
    data = memoryview(b"".join(sent))
    while data:
        try:
            data = data[client.send(data) :]
        except BlockingIOError:
            port.stepper.settle()
    port.stepper.settle()
    assert port.messages == sent
    assert len(sent[0]) >= READ_BYTES - 1


def test_a_broken_stream_is_closed_counted_and_told(port: Port, caplog: pytest.LogCaptureFixture) -> None:
    client = port.client(message(b"good") + b"GET / HTTP/1.1\r\n")
    assert port.messages == [message(b"good")]
    assert is_closed(client)
    assert (port.made.broken, len(port.made)) == (1, 0)
    peer = f"127.0.0.1:{client.getsockname()[1]}"
    assert [(r.msg, vars(r)["peer"]) for r in caplog.records] == [(LogEvent.REQUEST_STREAM_BROKEN, peer)]


def test_a_thousand_connections_displace_those_silent_for_longest(port: Port, caplog: pytest.LogCaptureFixture) -> None:
    faithful = port.client(message(b"here"))
    for number in range(1000):
        port.client()
        if number % 100 == 0:
            faithful.sendall(message(b"still here"))
            port.stepper.settle()
    assert len(port.made) == CONNECTIONS_MAX
    assert not is_closed(faithful)
    assert len(port.got) == 11
    assert sum(map(is_closed, port.clients)) == 1001 - CONNECTIONS_MAX
    told = [r.msg for r in caplog.records]
    assert told
    assert set(told) == {LogEvent.REQUEST_PORT_FULL}
    assert len(told) < 10


def test_garbage_from_many_harms_nobody_else(port: Port) -> None:
    rng = random.Random(7)
    honest = port.client()
    sent = 0
    for _ in range(200):
        half = message(rng.randbytes(rng.randrange(100)))
        port.client(rng.choice([rng.randbytes(rng.randrange(1, 400)), half[: rng.randrange(1, len(half))], b"\0" * 9]))
        port.clients.pop().close()
        honest.sendall(message(b"%d" % sent))
        sent += 1
    port.stepper.settle()
    honest_at = (LOOPBACK, honest.getsockname()[1])
    assert [data for data, sender in port.got if sender == honest_at] == [message(b"%d" % n) for n in range(sent)]
    assert port.made.broken > 50
    assert len(port.made) == 1, "the others have gone"


def test_a_port_that_closes_while_it_hands_on_hands_on_no_more(stepper: Stepper) -> None:
    got = []

    def close(data: bytes, sender: tuple[int, int]) -> None:
        got.append(data)
        made.close()

    made = RequestPort(stepper.loop, request_options(), 5, close)
    with socket.create_connection(("127.0.0.1", made.address[1])) as client:
        client.sendall(message(b"one") + message(b"two"))
        stepper.settle()
        assert got == [message(b"one")]
        assert is_closed(client)


def test_a_port_on_every_interface_is_advertised_with_the_address_of_the_context(stepper: Stepper) -> None:
    port = RequestPort(stepper.loop, request_options(interface=sockets.ANY), 0x0A000001, lambda *_: None)
    assert port.address[0] == 0x0A000001
    port.close()


def test_a_port_that_cannot_be_had_names_its_option(stepper: Stepper) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        for more, option in (
            ({"port": number}, "request_tcp_port"),
            ({"port": 0, "port_low": number, "port_high": number}, "request_tcp_port_low/_high"),
        ):
            with pytest.raises(ResourceError) as raised:
                RequestPort(stepper.loop, request_options(**more), 5, lambda *_: None)
            assert raised.value.remedy == f"widen or move {option}"
            assert "(1 tried)" in raised.value.what


def test_a_port_that_cannot_accept_pauses_and_tells(
    port: Port, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(sock: socket.socket) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "accept", fail)
        port.client()
    assert [(r.msg, vars(r)["error"], vars(r)["port"]) for r in caplog.records] == [
        (LogEvent.REQUEST_PORT_FAILED, "Too many open files", port.number)
    ]
    port.stepper.settle()
    assert len(port.made) == 0
    port.stepper.clock.time_ns += ACCEPT_PAUSE_NS
    port.stepper.settle()
    assert len(port.made) == 1


def without_certificate() -> StreamMaker:
    raise ResourceError("TLS cannot be used: no file", remedy="check tls_certificate")


def test_without_a_certificate_nothing_is_taken_and_nothing_sent(
    stepper: Stepper, caplog: pytest.LogCaptureFixture
) -> None:
    made = RequestPort(stepper.loop, request_options(), 5, lambda *_: None, without_certificate)
    with socket.create_connection(("127.0.0.1", made.address[1])) as client:
        stepper.settle()
        assert is_closed(client)
    outcomes: list[Outcome] = []
    sender = UnicastSender(stepper.loop, request_options(), without_certificate)
    sender.send(LOOPBACK, made.address[1], message(b"x"), outcomes.append)
    stepper.settle()
    assert outcomes == [Outcome.FAILED]
    sender.close()
    made.close()
    said = [r.msg for r in caplog.records if r.msg != LogEvent.LINES_REPEATED]  # of tests before, in this process
    assert said == [LogEvent.REQUEST_PORT_FAILED, LogEvent.UNICAST_CONNECTION_LOST]


# to others


@pytest.fixture
def sender(stepper: Stepper) -> Iterator[UnicastSender]:
    made = UnicastSender(stepper.loop, request_options(response_buffer_bytes=1 << 20))
    yield made
    made.close()


def test_messages_arrive_in_order_over_one_connection_which_is_closed_when_idle(
    port: Port, sender: UnicastSender
) -> None:
    outcomes: list[Outcome] = []
    sent = [message(b"%d" % number) for number in range(300)]
    for data in sent:
        sender.send(LOOPBACK, port.number, data, outcomes.append)
    port.stepper.settle()
    assert port.messages == sent
    assert outcomes == [Outcome.SENT] * 300
    assert len({at for _, at in port.got}) == len(port.made) == 1
    sender.send(LOOPBACK, port.number, message(b"more"))
    port.stepper.run(22_000, 1000)
    assert (len(port.made), len(port.got)) == (0, 301)
    sender.send(LOOPBACK, port.number, message(b"and more"))
    port.stepper.settle()
    assert port.messages[-1] == message(b"and more")


def test_a_receiver_that_does_not_read_gets_everything_when_it_does(stepper: Stepper, sender: UnicastSender) -> None:
    outcomes: list[Outcome] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        sent = [message(bytes(60_000)) for _ in range(200)]
        number = server.getsockname()[1]
        for data in sent:
            sender.send(LOOPBACK, number, data, outcomes.append)
            stepper.settle()
        assert 0 < outcomes.count(Outcome.SENT) < 200
        assert outcomes.count(Outcome.FULL) > 0
        peer, _ = server.accept()
        peer.settimeout(0)
        got = 0
        while len(outcomes) < 200:
            try:
                got += len(peer.recv(1 << 20))
            except BlockingIOError:
                stepper.settle()
        peer.settimeout(10)
        while got < outcomes.count(Outcome.SENT) * len(sent[0]):
            got += len(peer.recv(1 << 20))
        assert set(outcomes) == {Outcome.SENT, Outcome.FULL}
        peer.close()


def test_a_refused_connection_fails_and_is_told(
    stepper: Stepper, sender: UnicastSender, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
    outcomes: list[Outcome] = []
    for _ in range(3):
        sender.send(LOOPBACK, number, message(b"x"), outcomes.append)
        stepper.settle()
    assert outcomes == [Outcome.FAILED] * 3
    assert [(r.msg, vars(r)["peer"]) for r in caplog.records] == [
        (LogEvent.UNICAST_CONNECTION_LOST, f"127.0.0.1:{number}")
    ], "one attempt"
    with socket.create_server(("127.0.0.1", number)):
        stepper.run(REST_NS // 1_000_000 + 1000)
        sender.send(LOOPBACK, number, message(b"x"), outcomes.append)
        stepper.settle()
        assert outcomes[3:] == [Outcome.SENT]


def test_a_connection_that_the_other_side_closes_is_made_again(port: Port, sender: UnicastSender) -> None:
    sender.send(LOOPBACK, port.number, message(b"one"))
    port.stepper.settle()
    for connection in list(port.made._connections):
        port.made._end(connection)
    port.stepper.settle()
    assert len(sender) == 0
    sender.send(LOOPBACK, port.number, message(b"two"))
    port.stepper.settle()
    assert port.messages == [message(b"one"), message(b"two")]


@pytest.mark.parametrize("ip", ["0.0.0.0", "255.255.255.255", "239.1.1.1"])
def test_an_address_that_nobody_can_have_is_a_failure(stepper: Stepper, sender: UnicastSender, ip: str) -> None:
    outcomes: list[Outcome] = []
    sender.send(sockets.ip_number(ip), 9, message(b"x"), outcomes.append)
    stepper.settle()
    assert outcomes == [Outcome.FAILED]


def test_contexts_send_to_each_other_and_leave_nothing_open(stepper: Stepper) -> None:
    before = len(os.listdir("/proc/self/fd"))
    options = private_config("tcp").options
    one, two = (FragmentContext(options, stepper.loop, sink=RecordingSink()) for _ in range(2))
    got: list[bytes] = []
    two.on_unicast = lambda data, _: got.append(data)
    outcomes: list[Outcome] = []
    one.send_unicast(*two.request_address, message(b"hello"), outcomes.append)
    stepper.settle()
    assert (got, outcomes) == ([message(b"hello")], [Outcome.SENT])
    one.close()
    two.close()
    one.send_unicast(*two.request_address, message(b"late"), outcomes.append)
    stepper.settle()
    assert outcomes[1:] == [Outcome.FAILED]
    assert len(os.listdir("/proc/self/fd")) == before
