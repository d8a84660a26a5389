"""Topic resolution by unicast resolver daemons: the channel of a context, and whole contexts that find each other."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from dro.config.um.options import UmOptions
from dro.config.um.sets import UnicastResolverOptions
from dro.config.um.text_file import parse_um_text
from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.loop import Loop
from dro.transport.mmsg import DatagramBatch
from dro.transport.sockets import OS_SOCKETS, ip_number
from dro.um.fragment.context import FragmentContext
from dro.um.fragment.unicast_channel import UnicastChannel
from dro.wire.lbmr import packet as lbmr
from tests.fakes.um_contexts import RecordingSink, Stepper, private_config

LOOPBACK = "127.0.0.1"
KEEPALIVE = lbmr.encode(lbmr.Packet(1, None, lbmr.ReceiverAlive()))
ANSWER = lbmr.encode(lbmr.Packet(1, None, lbmr.Queries()))


def free_udp_port() -> int:
    """A port of all loopback addresses that nobody has; the kernel gives it to nobody else soon."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        probe.bind(("0.0.0.0", 0))
        return int(probe.getsockname()[1])


class ReflectingDaemon:
    """Keeps its clients; answers keepalives, and sends all else to the other clients."""

    def __init__(self, loop: Loop, port: int = 0) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((LOOPBACK, port))
        self.socket.setblocking(False)
        self.port = self.socket.getsockname()[1]
        self.clients: dict[tuple[str, int], None] = {}
        self.got: list[bytes] = []
        self._loop = loop
        loop.add_reader(self.socket, self._on_readable)

    def _on_readable(self) -> bool:
        try:
            datagram, sender = self.socket.recvfrom(65535)
        except BlockingIOError:
            return False
        self.clients[sender] = None
        self.got.append(datagram)
        if datagram[0] & 7 in (2, 3):
            self.socket.sendto(ANSWER, sender)
        else:
            for client in self.clients:
                if client != sender:
                    self.socket.sendto(datagram, client)
        return True

    def close(self) -> None:
        self._loop.remove_reader(self.socket)
        self.socket.close()


class Channel:
    def __init__(self, stepper: Stepper, text: str) -> None:
        self.got: list[tuple[bytes, int]] = []
        self.back = 0
        options = UnicastResolverOptions.of(parse_um_text(text, lambda _: None, file="u.cfg"))
        self.made = UnicastChannel(
            stepper.loop, options, DatagramBatch(), self._on_datagrams, OS_SOCKETS,
            keepalive=lambda: KEEPALIVE, on_daemon_back=self._on_back, rng=random.Random(1),
        )  # fmt: skip

    def _on_datagrams(self, datagrams: Iterator[tuple[bytes, int]], now_ns: int) -> None:
        self.got += datagrams

    def _on_back(self) -> None:
        self.back += 1


def answering(channel: Channel) -> list[bool]:
    return [server.answers for server in channel.made.servers()]


def daemons(*ports: int, more: str = "") -> str:
    listed = ",".join(f"{LOOPBACK}:{port}" for port in ports)
    return f"""context resolver_unicast_daemon {listed}
    context resolver_unicast_port_low 20000
    context resolver_unicast_port_high 60000
    context resolver_unicast_interface 127.0.0.1\n{more}"""


def test_nothing_is_sent_before_there_is_something_to_say_unless_that_is_forced(stepper: Stepper) -> None:
    with closing(ReflectingDaemon(stepper.loop)) as daemon:
        quiet = Channel(stepper, daemons(daemon.port))
        stepper.run(2000)
        assert daemon.got == []
        assert answering(quiet) == [False], "nothing was asked"
        forced = Channel(stepper, daemons(daemon.port, more="context resolver_unicast_force_alive 1"))
        stepper.run(1100)
        assert daemon.got == [KEEPALIVE] * 3
        quiet.made.send([b"\x10query"])
        stepper.settle()
        assert forced.got[-1] == (b"\x10query", ip_number(LOOPBACK))
        assert quiet.got == [(ANSWER, ip_number(LOOPBACK))], "a daemon does not send back what it was sent"
        assert quiet.made.local_address == ip_number(LOOPBACK)
        assert answering(quiet) == answering(forced) == [True]
        stepper.run(1100)
        assert quiet.got == [(ANSWER, ip_number(LOOPBACK))] * 3
        for channel in (quiet, forced):
            channel.made.close()


def test_each_datagram_goes_to_one_daemon_and_never_for_long_to_a_dead_one(
    stepper: Stepper, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with closing(ReflectingDaemon(stepper.loop)) as one:
        two = ReflectingDaemon(stepper.loop)
        channel = Channel(stepper, daemons(one.port, two.port))
        for number in range(100):
            channel.made.send([b"\x10%d" % number])
            stepper.run(10)
        queries = [datagram for daemon in (one, two) for datagram in daemon.got if datagram != KEEPALIVE]
        assert sorted(queries) == sorted(b"\x10%d" % number for number in range(100))
        assert all(10 < sum(d != KEEPALIVE for d in daemon.got) < 90 for daemon in (one, two))
        two.close()
        assert answering(channel) == [True, True]
        stepper.run(1800)
        assert answering(channel) == [True, False]
        before = len(one.got)
        channel.made.send([b"\x10x"] * 50)
        stepper.run(1000)
        assert one.got[before:].count(b"\x10x") == 50
        two = ReflectingDaemon(stepper.loop, two.port)
        stepper.run(600)
        name = f"{LOOPBACK}:{two.port}"
        assert [(r.msg, str(vars(r)["daemon"]), vars(r)["active"]) for r in caplog.records] == [
            (LogEvent.DAEMON_SILENT, name, 1),
            (LogEvent.DAEMON_HEARD, name, 2),
        ]
        assert channel.back == 0
        channel.made.close()
        two.close()


def test_it_is_told_when_a_daemon_is_heard_after_all_were_silent(stepper: Stepper) -> None:
    daemon = ReflectingDaemon(stepper.loop)
    channel = Channel(stepper, daemons(daemon.port))
    channel.made.send([b"\x10a"])
    stepper.run(3000)
    daemon.close()
    stepper.run(3000)
    with closing(ReflectingDaemon(stepper.loop, daemon.port)) as again:
        stepper.run(600)
        assert channel.back == 1
        assert again.clients
        channel.made.close()


@pytest.mark.parametrize("ignores", [True, False])
def test_datagrams_of_others_are_dropped_counted_and_told(
    stepper: Stepper, caplog: pytest.LogCaptureFixture, ignores: bool
) -> None:
    more = f"context resolver_unicast_ignore_unknown_source {int(ignores)}"
    with closing(ReflectingDaemon(stepper.loop)) as daemon:
        channel = Channel(stepper, daemons(daemon.port, more=more))
        channel.made.send([b"\x10a"])
        stepper.settle()
        (client,) = daemon.clients
        with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as stranger:
            stranger.sendto(b"\x10b", client)
            stepper.settle()
        assert (b"\x10b" in [datagram for datagram, _ in channel.got]) is not ignores
        assert [(r.msg, vars(r)["dropped"]) for r in caplog.records] == [(LogEvent.TR_UNKNOWN_SENDER, 1)] * ignores
        assert channel.made.stats.tr_dgrams_rcved == 2
        assert channel.made.unexpected == ignores
        channel.made.close()


def test_entries_may_have_an_interface_and_a_port_of_their_own(stepper: Stepper) -> None:
    source_port = free_udp_port()
    with closing(ReflectingDaemon(stepper.loop)) as one, closing(ReflectingDaemon(stepper.loop)) as two:
        text = f"""context resolver_unicast_daemon 127.0.0.2:{source_port}->{LOOPBACK}:{one.port}
        context resolver_unicast_address {LOOPBACK}
        context resolver_unicast_destination_port {two.port}
        context resolver_unicast_interface 127.0.0.3
        context resolver_unicast_port {source_port}
        context resolver_unicast_force_alive 1\n"""
        channel = Channel(stepper, text)
        stepper.run(20)
        assert list(one.clients) == [("127.0.0.2", source_port)]
        assert list(two.clients) == [("127.0.0.3", source_port)]
        with pytest.raises(ResourceError, match=r"no port of resolver_unicast_daemon can be bound on 127\.0\.0\.2"):
            Channel(stepper, text)
        channel.made.close()


def test_a_port_range_that_is_used_up_names_the_option(stepper: Stepper) -> None:
    port = free_udp_port()
    text = f"""context resolver_unicast_daemon {LOOPBACK}:9
    context resolver_unicast_interface {LOOPBACK}
    context resolver_unicast_port_low {port}
    context resolver_unicast_port_high {port}\n"""
    channel = Channel(stepper, text)
    with pytest.raises(ResourceError, match="no port of resolver_unicast_port_low/_high can be bound"):
        Channel(stepper, text)
    channel.made.close()
    Channel(stepper, text).made.close()


# whole contexts


def context(stepper: Stepper, options: UmOptions, seed: int) -> tuple[FragmentContext, RecordingSink]:
    sink = RecordingSink()
    made = FragmentContext(
        options, stepper.loop, sink=sink, rng=random.Random(seed)
    )  # fmt: skip
    return made, sink


def options_for(*ports: int) -> UmOptions:
    listed = ",".join(f"{LOOPBACK}:{port}" for port in ports)
    return private_config(
        "tcp",
        context__resolver_unicast_daemon=listed,
        context__resolver_unicast_port_low=20000,
        context__resolver_unicast_port_high=60000,
    ).options


def test_contexts_find_each_other_and_what_was_made_while_no_daemon_ran(stepper: Stepper) -> None:
    daemon = ReflectingDaemon(stepper.loop)
    options = options_for(daemon.port)
    source_context, _ = context(stepper, options, 1)
    receiver_context, sink = context(stepper, options, 2)
    source_context.open_source(b"first")
    receiver_context.want_topic(b"first")
    stepper.until(lambda: [bound.topic for bound in sink.current] == [b"first"])
    daemon.close()
    stepper.run(2000)
    receiver_context.want_topic(b"second")
    stepper.run(90_000, 50)  # both are quiet by now
    source_context.open_source(b"second")
    stepper.run(90_000, 50)
    assert [bound.topic for bound in sink.current] == [b"first"], "sessions go on without a daemon"
    with closing(ReflectingDaemon(stepper.loop, daemon.port)):
        stepper.until(lambda: len(sink.current) == 2, limit_ms=1500)
        receiver_context.close()
        source_context.close()


def test_the_host_of_a_dro_is_told_by_what_its_packets_name(stepper: Stepper) -> None:
    with closing(ReflectingDaemon(stepper.loop)) as daemon:
        options = options_for(daemon.port)
        listener, sink = context(stepper, options, 1)
        listener.want_topic(b"t")
        stepper.run(50)
        (client,) = daemon.clients
        standard = lbmr.standard_options(b"dro.dro.", lbmr.SenderType.DRO, 7)
        for body in (
            lbmr.TopicResolutionRequest(1),
            lbmr.RemoteDomainRoute(ip_number("10.1.2.3"), 14391, 0, (9,)),
            lbmr.TopicResolutionRequest(1),
        ):
            daemon.socket.sendto(lbmr.encode(lbmr.Packet(1, standard, body)), client)
        stepper.settle()
        assert listener.domain_id == 7
        hosts = listener.engine.bound._dros._hosts
        assert [socket.inet_ntoa(ip.to_bytes(4, "big")) for ip in hosts] == [LOOPBACK, "10.1.2.3"]
        assert sink.current == []
        listener.close()
