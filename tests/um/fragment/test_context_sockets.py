"""Contexts at fragment level, on real sockets of the loopback interface: what sockets alone can show."""

from __future__ import annotations

import errno
import os
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dro.config.um.sets import ResolverOptions
from dro.errors import ResourceError
from dro.transport import mmsg
from dro.transport.session import SessionCounts
from dro.um.fragment.context import FragmentContext
from dro.um.fragment.own_source import FragmentSource
from dro.um.message.client_config import Config
from dro.wire import otid
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmr import packet as lbmr
from dro.wire.source_string import TcpAddress
from tests.builders.tir_options import tir_options
from tests.fakes.fussy_socket import no_buffer_space
from tests.fakes.um_contexts import RecordingSink, Stepper, groups, private_config


@contextmanager
def context(config: Config, stepper: Stepper) -> Iterator[tuple[FragmentContext, RecordingSink]]:
    sink = RecordingSink()
    core = FragmentContext(config.options, stepper.loop, sink=sink, rng=random.Random())
    try:
        yield core, sink
    finally:
        core.close()


def send(source: FragmentSource, stepper: Stepper, sqn: int, payload: bytes = b"hello") -> None:
    header = lbmc.HEADER.pack(0, 0, 12 + len(payload), source.topic_index, sqn)
    assert source.transport.send_message(header + payload, stepper.loop.now_ns())


def tr_socket(config: Config) -> socket.socket:
    """A socket that sends into the TR channel of these options."""
    o = ResolverOptions.of(config.options)
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
    sock.connect((o.outgoing_address, o.outgoing_port))
    return sock


def test_a_source_is_found_bound_heard_and_gone(um_config: Config, stepper: Stepper) -> None:
    with context(um_config, stepper) as (a, _), context(um_config, stepper) as (b, sink):
        source = a.open_source(b"quotes.IBM")
        b.want_topic(b"quotes.IBM")
        stepper.until(lambda: len(sink.bound) == 1)
        bound = sink.bound[0]
        assert (bound.topic, bound.otid, bound.topic_index) == (b"quotes.IBM", source.otid, source.topic_index)
        assert bound.address == source.transport.address
        assert bound.source_id == a.context_instance
        stepper.run(50)  # a TCP session connects
        for sqn in range(3):
            send(source, stepper, sqn)
        stepper.until(lambda: len(sink.fragments) == 3)
        assert [sqn for _, sqn, _ in sink.fragments] == [0, 1, 2]
        assert [t.address for t in sink.began] == [bound.address]
        source.close(final=True, linger_ns=0)
        stepper.until(lambda: bool(sink.unbound))
        assert sink.unbound == [(bound, True)]


def test_what_was_sent_before_a_final_advertisement_is_heard(um_config: Config, stepper: Stepper) -> None:
    with context(um_config, stepper) as (a, _), context(um_config, stepper) as (b, sink):
        source = a.open_source(b"quotes.IBM")
        b.want_topic(b"quotes.IBM")
        stepper.until(lambda: len(sink.bound) == 1)
        stepper.run(50)
        for sqn in range(600):  # more than a turn takes in
            send(source, stepper, sqn)
        source.close(final=True, linger_ns=1_000_000_000)
        stepper.until(lambda: bool(sink.unbound))
        assert [sqn for _, sqn, _ in sink.fragments] == list(range(600))
        assert sink.unbound == [(sink.bound[0], True)]


def test_the_request_port_that_is_advertised_is_real(lbtrm_config: Config, stepper: Stepper) -> None:
    with context(lbtrm_config, stepper) as (a, _), context(lbtrm_config, stepper) as (b, sink):
        a.open_source(b"t")
        b.want_topic(b"t")
        stepper.until(lambda: bool(sink.bound))
        options = sink.bound[0].tir.options
        assert options is not None
        assert options.extended is not None
        assert (options.extended.ip, options.extended.port) == a.request_address
        with socket.create_connection(("127.0.0.1", a.request_address[1])):
            pass


def test_strangers_may_send_anything_into_the_channel(lbtrm_config: Config, stepper: Stepper) -> None:
    with context(lbtrm_config, stepper) as (b, sink), tr_socket(lbtrm_config) as sock:
        heard: list[int] = []
        b.on_tr_packet = lambda _packet, ip, _now: heard.append(ip)
        for size in range(60):
            sock.send(random.Random(size).randbytes(size))
        packet = lbmr.Packet(1, lbmr.standard_options(b"stranger", 0, 0), lbmr.Queries((b"t",)))
        sock.send(lbmr.encode(packet))
        stepper.until(lambda: b.resolution.channel.stats.tr_dgrams_rcved == 61)
        stepper.settle()
        assert heard[-1] == 0x7F000001
        assert sum(b.stats.malformed.values()) == b.stats.tr_dgrams_dropped_malformed > 10
        assert sink.bound == []


def test_topic_resolution_that_finds_a_full_receive_buffer_is_counted(um_config: Config, stepper: Stepper) -> None:
    with context(um_config, stepper) as (core, _), tr_socket(um_config) as sock:
        heard: list[lbmr.Body] = []
        core.on_tr_packet = lambda packet, _ip, _now: heard.append(packet.body)
        receiver = core.resolution.channel._receivers[0]
        assert receiver is not None
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = lbmr.Queries(tqrs=(b"t" * 200,) * 5)
        for _ in range(100):
            sock.send(lbmr.encode(lbmr.Packet(1, lbmr.standard_options(b"stranger", 0, 0), body)))
        stepper.run(100)
        assert 0 < len(heard) < 100
        assert core.counts() == SessionCounts(socket_drops=100 - len(heard))


# sessions that fail, and the end


def test_a_tcp_session_that_cannot_be_connected_is_tried_once_a_second(tcp_config: Config, stepper: Stepper) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with context(tcp_config, stepper) as (b, sink), tr_socket(tcp_config) as sock:
        b.want_topic(b"t")
        address = TcpAddress(0x7F000001, port, 77)
        tir = lbmr.Tir(b"t", address, 60, 5, tir_options(otid=otid.encode(address, 5, 1, 1)))
        packet = lbmr.Packet(1, lbmr.standard_options(b"stranger", 0, 0), lbmr.Queries((), (tir,)))
        for _ in range(30):
            sock.send(lbmr.encode(packet))
            stepper.run(100)
        assert 2 <= len(sink.bound) <= 4
        assert all(not source.transport.was_connected for source, _ in sink.unbound)


def test_a_session_ends_after_its_activity_timeout(stepper: Stepper) -> None:
    config = private_config("lbtrm", receiver__transport_lbtrm_activity_timeout=5000)
    with context(config, stepper) as (b, sink):
        b.want_topic(b"t")
        with context(config, stepper) as (a, _):
            source = a.open_source(b"t")
            stepper.until(lambda: bool(sink.bound))
            send(source, stepper, 0)
            stepper.run(100)
        stepper.run(4_000, 50)
        assert sink.unbound == []
        stepper.run(2_000, 50)
        assert sink.unbound == [(sink.bound[0], True)]
        assert groups(b.joined) == []


def test_what_cannot_be_bound_names_the_option(stepper: Stepper) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        config = private_config("tcp", context__request_tcp_port=port)
        with pytest.raises(ResourceError, match="request_tcp_port"), context(config, stepper):
            pass
        config = private_config("tcp", source__transport_tcp_port=port)
        with context(config, stepper) as (a, _), pytest.raises(ResourceError, match="transport_tcp_port"):
            a.open_source(b"t")
    unsupported = private_config("lbtrdma")
    with context(unsupported, stepper) as (a, _), pytest.raises(ResourceError, match="lbtrdma"):
        a.open_source(b"t")
    without = private_config("tcp", context__request_tcp_bind_request_port=0)
    with context(without, stepper) as (a, _):
        assert a.request_address == (0, 0)


def test_closing_twice_and_using_nothing_afterwards(um_config: Config, stepper: Stepper) -> None:
    with context(um_config, stepper) as (a, _), context(um_config, stepper) as (b, sink):
        a.open_source(b"t")
        b.want_topic(b"t")
        stepper.until(lambda: bool(sink.bound))
        b.close()
        b.close()
        a.close()
        stepper.run(1000)
        assert sink.unbound == []
        assert b.bound_sources == []


def test_a_fault_of_the_tr_socket_is_told_and_the_next_packet_is_heard(
    lbtrm_config: Config, stepper: Stepper, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with context(lbtrm_config, stepper) as (a, _), tr_socket(lbtrm_config) as sock:
        heard: list[lbmr.Body] = []
        a.on_tr_packet = lambda packet, _ip, _now: heard.append(packet.body)
        packet = lbmr.encode(lbmr.Packet(1, lbmr.standard_options(b"stranger", 0, 0), lbmr.Queries((b"t",))))
        with monkeypatch.context() as patch:
            patch.setattr(mmsg, "_receive", no_buffer_space)
            sock.send(packet)
            stepper.loop.run_once(0)
        assert [vars(record).get("error") for record in caplog.records] == [os.strerror(errno.ENOBUFS)]
        stepper.until(lambda: bool(heard))
