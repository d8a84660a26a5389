"""Session pools: which session a source lands on, and what a session that ends leaves behind."""

from __future__ import annotations

import os
import random
import resource
import socket
from collections.abc import Iterator

import pytest

from dro.clock import ms, s
from dro.config.um.options import UmOptions
from dro.errors import ResourceError
from dro.loop import Loop
from dro.proto.repair.effects import SendNcf
from dro.sqn import MASK
from dro.transport import mmsg, sockets
from dro.transport.kind import SessionHost
from dro.transport.lbtrm.sender import LbtrmSender
from dro.transport.session import SenderTransport
from dro.transport.stream import PlainStream
from dro.transport.tcp.sender import TcpSender
from dro.um.fragment.source_sessions import SourceSessions
from dro.wire import lbtrm
from dro.wire.source_string import LbtrmAddress, TcpAddress

LOOPBACK = "127.0.0.1"
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
PORTS = range(10400 + 40 * WORKER, 10404 + 40 * WORKER)
NAK_PORTS = range(10410 + 40 * WORKER, 10418 + 40 * WORKER)


def options(transport: str, datagram_max_bytes: int = 8192, /, **source: int | str) -> UmOptions:
    """Two groups, four TCP ports of which three make the pool; `source` are options of that scope."""
    common: dict[tuple[str, str], int | str | tuple[str, ...]] = {
        ("source", "transport"): transport,
        ("context", "transport_lbtrm_datagram_max_size"): datagram_max_bytes,
        ("context", "resolver_multicast_interface"): LOOPBACK,
        ("context", "transport_lbtrm_multicast_address_low"): f"239.204.{WORKER}.1",
        ("context", "transport_lbtrm_multicast_address_high"): f"239.204.{WORKER}.2",
        ("context", "transport_lbtrm_source_port_low"): NAK_PORTS[0],
        ("context", "transport_lbtrm_source_port_high"): NAK_PORTS[-1],
        ("source", "transport_tcp_interface"): LOOPBACK,
        ("context", "transport_tcp_port_low"): PORTS[0],
        ("context", "transport_tcp_port_high"): PORTS[-1],
        ("context", "transport_tcp_maximum_ports"): 3,
    }
    return UmOptions(common | {("source", name): value for name, value in source.items()})


class Pools:
    def __init__(self) -> None:
        self.loop = Loop()
        self.made = SourceSessions(
            SessionHost(self.loop, options("tcp"), mmsg.DatagramBatch(), random.Random(1)),
            on_client=lambda sender, client, connected: None,
            sm_before_data=False,
        )

    def tcp(self, **source: int | str) -> int:
        """The port that a new source lands on."""
        address = self.made.acquire(options("tcp", **source)).address
        assert isinstance(address, TcpAddress)
        return address.port

    def lbtrm(self, **source: int | str) -> str:
        """The group that a new source lands on."""
        address = self.made.acquire(options("lbtrm", **source)).address
        assert isinstance(address, LbtrmAddress)
        return sockets.ip_text(address.group)

    def on(self, where: int | str) -> SenderTransport:
        found = [
            x
            for x in self.made.senders()
            if where in (getattr(x.address, "port", 0), sockets.ip_text(getattr(x.address, "group", 0)))
        ]
        assert len(found) == 1
        return found[0]


@pytest.fixture
def pools() -> Iterator[Pools]:
    made = Pools()
    yield made
    made.made.close()
    made.loop.close()


def groups(*last: int) -> list[str]:
    return [f"239.204.{WORKER}.{n}" for n in last]


def test_lbtrm_sources_take_each_group_once_and_then_share_in_turn(pools: Pools) -> None:
    assert [pools.lbtrm() for _ in range(6)] == groups(1, 2, 1, 2, 1, 2)
    assert len({x.address for x in pools.made.senders()}) == 2
    pools.made.release(pools.on(groups(1)[0]), 0)
    pools.made.release(pools.on(groups(1)[0]), 0)
    assert len(pools.made.senders()) == 2
    pools.made.release(pools.on(groups(1)[0]), 0)
    assert len(pools.made.senders()) == 1
    assert pools.lbtrm() == groups(1)[0]


def test_an_explicit_group_outside_of_the_pool_is_shared_with_nobody_else(pools: Pools) -> None:
    outside = f"239.205.{WORKER}.9"
    assert pools.lbtrm(transport_lbtrm_multicast_address=outside) == outside
    assert [pools.lbtrm() for _ in range(4)] == groups(1, 2, 1, 2)
    assert pools.lbtrm(transport_lbtrm_multicast_address=outside) == outside
    assert len(pools.made.senders()) == 3


def test_explicit_groups_may_fill_the_pool(pools: Pools) -> None:
    for group in groups(1, 2):
        assert pools.lbtrm(transport_lbtrm_multicast_address=group) == group
    assert [pools.lbtrm() for _ in range(3)] == groups(1, 2, 1)
    assert len(pools.made.senders()) == 2


def test_another_destination_port_is_another_pool(pools: Pools) -> None:
    assert [pools.lbtrm() for _ in range(2)] == groups(1, 2)
    assert [pools.lbtrm(transport_lbtrm_destination_port=24399) for _ in range(3)] == groups(1, 2, 1)
    assert [pools.lbtrm() for _ in range(2)] == groups(2, 1)
    assert len(pools.made.senders()) == 4


def test_tcp_sources_take_new_ports_up_to_the_maximum_and_then_share_in_turn(pools: Pools) -> None:
    assert [pools.tcp() for _ in range(7)] == [PORTS[i] for i in (0, 1, 2, 0, 1, 2, 0)]


def test_an_explicit_port_joins_the_pool(pools: Pools) -> None:
    assert pools.tcp(transport_tcp_port=PORTS[3]) == PORTS[3]
    assert [pools.tcp() for _ in range(5)] == [PORTS[i] for i in (0, 1, 3, 0, 1)]
    assert pools.tcp(transport_tcp_port=PORTS[3]) == PORTS[3]


def test_ports_of_others_are_skipped_and_without_any_left_sources_share(pools: Pools) -> None:
    with socket.create_server((LOOPBACK, PORTS[0])), socket.create_server((LOOPBACK, PORTS[2])):
        assert [pools.tcp() for _ in range(4)] == [PORTS[i] for i in (1, 3, 1, 3)]


def test_no_port_at_all_names_the_option(pools: Pools) -> None:
    with (
        socket.create_server((LOOPBACK, PORTS[0])),
        pytest.raises(ResourceError, match="no port of transport_tcp_port") as found,
    ):
        pools.tcp(transport_tcp_port=PORTS[0])
    assert "transport_tcp_port" in found.value.remedy
    assert pools.tcp(transport_tcp_port=PORTS[0]) == PORTS[0]


def test_no_nak_port_leaves_nothing_open(pools: Pools) -> None:
    taken = []
    for port in NAK_PORTS:
        taken.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        taken[-1].bind((LOOPBACK, port))
    with pytest.raises(ResourceError, match="transport_lbtrm_source_port"):
        pools.lbtrm()
    for sock in taken:
        sock.close()
    assert pools.lbtrm() == groups(1)[0]


@pytest.mark.parametrize("transport", ["tcp", "lbtrm"])
def test_no_descriptor_left_is_a_resource_error_that_leaves_nothing_open(pools: Pools, transport: str) -> None:
    """Tried with none, one, two left ..., until it works; each attempt but the last gives back what it had."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as probe:
        lowest = probe.fileno()
    refused: list[ResourceError] = []
    in_use = {int(name) for name in os.listdir("/proc/self/fd")}  # other tests of this process may have many
    try:
        for limit in (x for x in range(lowest, soft) if x == lowest or x - 1 not in in_use):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            try:
                pools.made.acquire(options(transport))
                break
            except ResourceError as e:
                refused.append(e)
                if limit > lowest:
                    with socket.socket() as again:
                        assert again.fileno() == lowest
            assert len(refused) < 10, f"with nine descriptors left: {refused[-1]}"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert refused
    assert len(pools.made.senders()) == 1


def test_a_session_lingers_after_its_last_source_and_the_place_is_free(pools: Pools) -> None:
    pools.lbtrm()
    sender = pools.on(groups(1)[0])
    assert isinstance(sender, LbtrmSender)
    assert sender.send_message(bytes.fromhex("0000000c0000000100000000"), pools.loop.now_ns())
    pools.made.release(sender, s(10))
    assert not sender._is_closed
    assert pools.made.senders() == []
    assert pools.lbtrm() == groups(1)[0]
    assert pools.on(groups(1)[0]) is not sender
    pools.made.close()
    assert sender._is_closed
    assert pools.loop.next_deadline() is None


def test_a_source_that_leaves_twice_ends_nobody_elses_session(pools: Pools) -> None:
    port = pools.tcp()
    sender = pools.on(port)
    pools.made.release(sender, 0)
    assert pools.tcp() == port
    pools.made.release(sender, 0)
    assert not pools.on(port).is_flushing
    assert pools.made.senders() == [pools.on(port)]


def test_what_is_not_supported_or_makes_no_sense_says_so(pools: Pools) -> None:
    with pytest.raises(ResourceError, match="lbtrdma"):
        pools.made.acquire(options("lbtrdma"))
    with pytest.raises(ResourceError, match="no multicast group"):
        pools.lbtrm(transport_lbtrm_multicast_address="10.1.2.3")


def test_keepalive_is_set_on_receivers_when_it_is_asked_for(pools: Pools) -> None:
    port = pools.tcp(transport_tcp_activity_timeout=20_000)
    sender = pools.on(port)
    assert isinstance(sender, TcpSender)
    with socket.create_connection((LOOPBACK, port)):
        while not sender.core.stats.num_clients:
            pools.loop.run_once(ms(10))
        (stream,) = sender._clients.values()
        assert isinstance(stream, PlainStream)
        accepted = stream.sock
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10


def test_ncfs_are_within_the_largest_datagram(pools: Pools) -> None:
    """None of the datagrams that are asked for was ever sent by this session."""
    sender = pools.made.acquire(options("lbtrm", 500))
    assert isinstance(sender, LbtrmSender)
    behind = [sender.core.next_sqn - n & MASK for n in range(1, 301)]
    effects = sender.core.on_nak(behind, pools.loop.now_ns())
    sizes = [len(lbtrm.encode(lbtrm.Ncf(1, 2, 3, e.reason, 0, e.sqns))) for e in effects if isinstance(e, SendNcf)]
    assert len(sizes) == 3
    assert max(sizes) <= 500
