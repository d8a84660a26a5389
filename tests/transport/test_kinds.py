"""From options to sessions, of each kind: which option decides what, and what is refused with which remedy."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from dro.clock import ms, s
from dro.config.um.options import UmOptions
from dro.config.um.sets import LbtrmReceiverOptions
from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.loop import Loop
from dro.proto.repair.loss import NakDue
from dro.proto.tcp.filters import INCLUDE
from dro.transport import mmsg, sockets
from dro.transport.kind import SenderEvents, SessionHost
from dro.transport.lbtrm.kind import LbtrmReceivers, LbtrmSenders
from dro.transport.lbtrm.sender import LbtrmSender
from dro.transport.session import SenderTransport, SessionCounts
from dro.transport.tcp.kind import TRIED_MAX, TcpReceivers, TcpSenders
from dro.transport.tcp.sender import TcpSender
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.data_blocks import SsfCreq, SsfInit
from dro.wire.source_string import LbtrmAddress, TcpAddress, format_source
from tests.fakes.clock import SteppedClock
from tests.fakes.faulty_sockets import FaultySockets
from tests.fakes.session_sink import KeepingSink

LOOPBACK = "127.0.0.1"
IP = sockets.ip_number(LOOPBACK)
BEGAN = s(5)
PLACE = os.getpid() % 250


def options(**more: int | str) -> UmOptions:
    """On loopback; `more` as `scope__name=value`, not checked as files are."""
    usual: dict[str, int | str] = {
        "context__resolver_multicast_interface": LOOPBACK,
        "receiver__transport_tcp_interface": LOOPBACK,
        "source__transport_tcp_interface": LOOPBACK,
        "context__transport_lbtrm_multicast_address_low": f"239.207.{PLACE}.1",
        "context__transport_lbtrm_multicast_address_high": f"239.207.{PLACE}.2",
    }
    return UmOptions({(key.partition("__")[0], key.partition("__")[2]): value for key, value in (usual | more).items()})


class Host:
    """What a context lends, and what its sessions tell."""

    def __init__(self) -> None:
        self.clock = SteppedClock(BEGAN)
        self.loop = Loop(self.clock)
        self.sink = KeepingSink()
        self.sockets = FaultySockets()
        self.closed: list[SenderTransport] = []
        self.clients: list[bool] = []

    def lent(self, made: UmOptions) -> SessionHost:
        return SessionHost(self.loop, made, mmsg.DatagramBatch(), random.Random(1), self.sockets)

    @property
    def events(self) -> SenderEvents:
        return SenderEvents(lambda *told: self.clients.append(told[2]), self.closed.append)


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()
    yield made
    made.loop.close()


# LBT-RM, receiving


def joined(host: Host, **more: int | str) -> tuple[LbtrmReceivers, UmOptions]:
    made = options(**more)
    return LbtrmReceivers(host.lent(made), host.sink, host.sink.on_ended), made


def address(group: str = f"239.207.{PLACE}.9", session: int = 7) -> LbtrmAddress:
    return LbtrmAddress(IP, sockets.ip_number(group), session, 24900, 14390)


def test_sessions_of_a_group_share_its_socket_which_closes_with_the_last(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    before = os.listdir("/proc/self/fd")
    receivers, made = joined(host, receiver__transport_lbtrm_nak_generation_interval=7000)
    one, two = (receivers.join(address(session=n), made, BEGAN) for n in (1, 2))
    other = receivers.join(address(f"239.207.{PLACE}.8"), made, BEGAN)
    assert list(receivers.groups) == [(address().group, 24900), (other.address.group, 24900)]  # type: ignore[union-attr]
    assert {session.generation_ns for session in (one, two, other)} == {s(7)}
    told = [vars(r)["source"] for r in caplog.records if r.msg is LogEvent.SESSION_JOINED]
    assert told == [format_source(session.address) for session in (one, two, other)]
    group = receivers.groups[address().group, 24900]
    group.stats.unknown_msgs_rcved, group.stats.dgrams_dropped_size = 3, 2
    one.leave()
    assert len(receivers.groups) == 2
    two.leave()
    assert list(receivers.groups) == [(other.address.group, 24900)]  # type: ignore[union-attr]  # as above
    assert receivers.counts() == SessionCounts(bad=2, unknown=3), "of groups that were left, too"
    receivers.groups[other.address.group, 24900].stats.unknown_msgs_rcved = 5  # type: ignore[union-attr]  # as above
    assert receivers.counts() == SessionCounts(bad=2, unknown=8)
    receivers.close()
    receivers.close()
    assert (receivers.groups, os.listdir("/proc/self/fd")) == ({}, before)
    assert host.loop.next_deadline() is None


@pytest.mark.parametrize(("datagram_max", "most"), [(516, 125), (4096, 1020), (19, 1), (20, 1), (24, 2)])
def test_a_nak_packet_holds_what_fits_a_datagram(
    host: Host, datagram_max: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    receivers, made = joined(host)
    o = replace(LbtrmReceiverOptions.of(made), datagram_max_bytes=datagram_max)
    monkeypatch.setattr(LbtrmReceiverOptions, "of", lambda _: o)
    session = receivers.join(address(), made, BEGAN)
    session.core.on_data(0, 0, False, BEGAN)
    session.core.on_data(5000, 0, False, BEGAN)
    session.core.on_timer(BEGAN + s(1))
    sizes = [len(event.sqns) for event in session.core.take_events() if isinstance(event, NakDue)]
    assert max(sizes) == most
    receivers.close()


def test_what_is_no_group_is_not_joined(host: Host) -> None:
    before = os.listdir("/proc/self/fd")
    receivers, made = joined(host)
    with pytest.raises(ResourceError, match=r"^10\.1\.2\.3 is no multicast group$"):
        receivers.join(address("10.1.2.3"), made, BEGAN)
    assert (receivers.groups, os.listdir("/proc/self/fd")) == ({}, before)


def test_an_interface_that_naks_cannot_leave_from_is_told(host: Host) -> None:
    before = os.listdir("/proc/self/fd")
    receivers, made = joined(host, context__resolver_multicast_interface="203.0.113.1")
    with pytest.raises(ResourceError) as raised:
        receivers.join(address(), made, BEGAN)
    assert raised.value.what == "no UDP port on 203.0.113.1 for NAKs: Cannot assign requested address"
    assert raised.value.remedy == "change resolver_multicast_interface"
    assert os.listdir("/proc/self/fd") == before


# LBT-RM, sending


def rm_senders(host: Host, *, sm_before_data: bool = False, **more: int | str) -> tuple[LbtrmSenders, UmOptions]:
    made = options(**more)
    return LbtrmSenders(host.lent(made), host.events, sm_before_data), made


def close(*senders: SenderTransport) -> None:
    for sender in senders:
        sender.close(0, BEGAN)


def test_an_lbtrm_session_is_what_its_options_say(host: Host) -> None:
    senders, made = rm_senders(
        host,
        context__transport_lbtrm_source_port_low=24800,
        context__transport_lbtrm_source_port_high=24899,
        context__transport_lbtrm_data_rate_limit=8_000_000,
        context__transport_lbtrm_retransmit_rate_limit=800_000,
        context__transport_lbtrm_rate_interval=20,
        context__transport_lbtrm_datagram_max_size=1000,
        source__transport_lbtrm_destination_port=24901,
        source__transport_lbtrm_tgsz=16,
    )
    sender = senders.acquire(made)
    assert isinstance(sender, LbtrmSender)
    where = sender.address
    assert isinstance(where, LbtrmAddress)
    assert (where.ip, sockets.ip_text(where.group), where.dport) == (IP, f"239.207.{PLACE}.1", 24901)
    assert 24800 <= where.nak_port <= 24899
    assert where.session_id != 0 != sender.transport_index != where.session_id
    assert (sender.datagram_max_bytes, sender.fragment_max_bytes) == (1000, 980)
    sent = 0
    while sender.send_message(bytes(980), BEGAN):
        sent += 1
    assert sent == 20, "8 Mbit/s for 20 ms"
    behind = [(sender.core.next_sqn - number) & 0xFFFFFFFF for number in range(1, 21)]
    sender.core.on_nak(behind, BEGAN)
    assert (sender.core.stats.rxs_sent, sender.core.rctlr_rx_msgs) == (2, 18), "0.8 Mbit/s for 20 ms, the rest waits"
    second = senders.acquire(made)
    assert second is not sender
    close(sender, second)
    assert host.closed == [sender, second]


@pytest.mark.parametrize(("limit_bps", "at_once", "waiting"), [(800_000, 2, 100), (80_000, 0, 65), (0, 300, 0)])
def test_repairs_wait_for_their_limit_up_to_what_it_carries_in_a_second_and_at_least_64_kb(
    host: Host, limit_bps: int, at_once: int, waiting: int
) -> None:
    senders, made = rm_senders(
        host,
        context__transport_lbtrm_data_rate_limit=0,
        context__transport_lbtrm_retransmit_rate_limit=limit_bps,
        context__transport_lbtrm_rate_interval=20,
    )
    sender = senders.acquire(made)
    assert isinstance(sender, LbtrmSender)
    for _ in range(300):
        assert sender.send_message(bytes(980), BEGAN)
    sender.core.on_nak(range(300), BEGAN)
    stats = sender.core.stats
    assert (stats.rxs_sent, sender.core.rctlr_rx_msgs, stats.naks_shed) == (at_once, waiting, 300 - at_once - waiting)
    close(sender)


@pytest.mark.parametrize("sm_before_data", [True, False])
def test_only_proxy_sources_send_session_messages_before_data(host: Host, sm_before_data: bool) -> None:
    senders, made = rm_senders(host, sm_before_data=sm_before_data)
    sender = senders.acquire(made)
    assert host.loop.next_deadline() == (BEGAN + ms(200) if sm_before_data else None)
    close(sender)


@pytest.mark.parametrize(
    ("low", "high"), [("10.0.0.1", "239.1.1.1"), ("239.1.1.1", "240.0.0.1"), ("239.1.1.2", "239.1.1.1")]
)
def test_a_range_that_holds_no_groups_is_refused(host: Host, low: str, high: str) -> None:
    senders, made = rm_senders(
        host,
        context__transport_lbtrm_multicast_address_low=low,
        context__transport_lbtrm_multicast_address_high=high,
    )
    with pytest.raises(ResourceError) as raised:
        senders.acquire(made)
    assert raised.value.what == f"no groups from {low} to {high}"
    assert raised.value.remedy == ("set transport_lbtrm_multicast_address_low and _high to a range of multicast groups")


def test_a_group_that_is_none_is_refused_and_one_group_is_a_range(host: Host) -> None:
    senders, made = rm_senders(host, source__transport_lbtrm_multicast_address="10.1.2.3")
    with pytest.raises(ResourceError) as raised:
        senders.acquire(made)
    assert (raised.value.what, raised.value.remedy) == (
        "10.1.2.3 is no multicast group", "change transport_lbtrm_multicast_address",
    )  # fmt: skip
    only = f"239.207.{PLACE}.5"
    senders, made = rm_senders(
        host,
        context__transport_lbtrm_multicast_address_low=only,
        context__transport_lbtrm_multicast_address_high=only,
    )
    sender = senders.acquire(made)
    assert senders.acquire(made) is sender
    explicit = options(source__transport_lbtrm_multicast_address=only)
    assert senders.acquire(explicit) is sender
    close(sender)


# TCP


def test_a_tcp_session_is_what_its_options_say(host: Host) -> None:
    made = options(
        context__transport_tcp_datagram_max_size=1000,
        source__transport_session_maximum_buffer=5000,
        source__transport_tcp_listen_backlog=1,
        context__transport_tcp_port_low=24700,
        context__transport_tcp_port_high=24799,
    )
    senders = TcpSenders(host.lent(made), host.events, False)
    sender = senders.acquire(made)
    assert isinstance(sender, TcpSender)
    where = sender.address
    assert isinstance(where, TcpAddress)
    assert (where.ip, 24700 <= where.port <= 24799) == (IP, True)
    assert where.session_id != 0 != sender.transport_index != where.session_id
    assert (sender.datagram_max_bytes, sender.fragment_max_bytes) == (1000, 1000)
    with socket.create_connection((LOOPBACK, where.port)):
        while not host.clients:
            host.loop.run_once(0)
        while sender.send_message(bytes(1000), BEGAN):
            pass
        assert 0 < sender.core.stats.bytes_buffered <= 5000
        close(sender)
    assert (host.clients, host.closed) == ([True], [sender])


def test_a_session_on_every_interface_is_advertised_with_the_address_of_the_host(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "default_address", lambda: "10.9.8.7")
    made = options(source__transport_tcp_interface="0.0.0.0", source__transport_tcp_use_session_id=0)
    sender = TcpSenders(host.lent(made), host.events, False).acquire(made)
    assert isinstance(sender.address, TcpAddress)
    assert (sockets.ip_text(sender.address.ip), sender.address.session_id) == ("10.9.8.7", 0)
    close(sender)


def test_a_maximum_of_no_ports_is_one(host: Host) -> None:
    made = options(context__transport_tcp_maximum_ports=0)
    senders = TcpSenders(host.lent(made), host.events, False)
    sender = senders.acquire(made)
    assert [senders.acquire(made) for _ in range(2)] == [sender] * 2
    close(sender)


@pytest.mark.parametrize(("value", "is_filtered"), [("inclusion", True), ("none", False), ("ulb", False)])
def test_a_session_filters_as_its_first_source_says(host: Host, value: str, is_filtered: bool) -> None:
    first = options(source__transport_source_side_filtering_behavior=value, context__transport_tcp_maximum_ports=1)
    lent = host.lent(first)
    lent.filters.request_address = (IP, 14391)
    senders = TcpSenders(lent, host.events, False)
    sender = senders.acquire(first)
    assert senders.acquire(options(context__transport_tcp_maximum_ports=1)) is sender
    lent.filters.add_topic(sender.transport_index, 5)
    assert isinstance(sender, TcpSender)
    assert sender.core.on_connected(1, BEGAN)
    assert sender.is_heard(0, BEGAN) is not is_filtered, "it has asked for nothing"
    (offer,) = sender.core.pending(1) or [memoryview(b"")]
    found = lbmc.decode(offer.tobytes()).get(SsfInit) if offer else None
    assert (found is not None) is is_filtered
    if found is not None:
        assert (found.transport_index, found.ip, found.port) == (sender.transport_index, IP, 14391)
        request = SsfCreq(INCLUDE, found.transport_index, 5, found.client_index)
        assert not lent.filters.on_requests([request])
        assert sender.is_heard(0, BEGAN)
        senders.forget(sender)
        assert lent.filters.on_requests([request]) == "no such session"
    close(sender)


def test_a_session_that_filters_needs_a_request_port(host: Host) -> None:
    made = options(source__transport_source_side_filtering_behavior="inclusion")
    before = os.listdir("/proc/self/fd")
    with pytest.raises(ResourceError, match="inclusion needs a request port") as told:
        TcpSenders(host.lent(made), host.events, False).acquire(made)
    assert told.value.remedy == "set request_tcp_bind_request_port to 1"
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize(
    ("method", "timeout_ms", "ends_ns", "keepalive"),
    [("timer", 3000, s(3), False), ("so_keepalive", 3000, None, True), ("so_keepalive", 0, None, False)],
)
def test_silence_of_a_tcp_session_is_watched_as_the_option_says(
    host: Host, method: str, timeout_ms: int, ends_ns: int | None, keepalive: bool
) -> None:
    made = options(receiver__transport_tcp_activity_method=method, receiver__transport_tcp_activity_timeout=timeout_ms)
    connecting = host.sockets.opened
    receivers = TcpReceivers(host.lent(made), host.sink, host.sink.on_ended)
    with socket.create_server((LOOPBACK, 0)) as listener:
        session = receivers.join(TcpAddress(IP, listener.getsockname()[1], 7), made, BEGAN)
        assert (connecting, host.loop.next_deadline()) == ([], BEGAN), "not at once"
        while not session.is_connected:
            host.loop.run_once(0)
        assert host.loop.next_deadline() == (None if ends_ns is None else BEGAN + ends_ns)
        assert bool(connecting[0].getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)) is keepalive
        session.leave()
    assert receivers.counts() == SessionCounts()
    receivers.close()


def test_addresses_that_were_tried_are_remembered_for_a_second_and_not_too_many(host: Host) -> None:
    made = options()
    receivers = TcpReceivers(host.lent(made), host.sink, host.sink.on_ended)

    def tried_at(port: int, now_ns: int) -> int | None:
        session = receivers.join(TcpAddress(IP, port, 1), made, now_ns)
        at_ns = host.loop.next_deadline()
        session.leave()
        return at_ns

    assert tried_at(1, BEGAN) == BEGAN
    assert tried_at(1, BEGAN + 1) == BEGAN + s(1)
    assert tried_at(1, BEGAN + 2) == BEGAN + s(2)
    assert tried_at(1, BEGAN + s(4)) == BEGAN + s(4)
    assert tried_at(2, BEGAN + s(4)) == BEGAN + s(4)
    for port in range(3, TRIED_MAX + 1):
        tried_at(port, BEGAN + s(4))
    assert tried_at(2, BEGAN + s(4)) == BEGAN + s(5)
    tried_at(TRIED_MAX + 1, BEGAN + s(4))
    assert tried_at(1, BEGAN + s(4)) == BEGAN + s(4), "the oldest of too many"
