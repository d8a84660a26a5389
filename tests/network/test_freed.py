"""What ends is freed at once, by reference counting alone: a worker's collector of cycles may never look at it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from dro.bus.cycle_search import own_bytes
from dro.bus.descriptors import DescriptorReader
from dro.bus.messages import PeerDown
from dro.clock import NS_PER_MS
from dro.proto.context.sources import BoundSource
from dro.proto.lbtru.clients import ClientList
from dro.proto.lbtru.connect import ConnectCore
from dro.proto.peerlink.datagram_session import DatagramSession
from dro.proto.peerlink.hold import HOLD_NS
from dro.proto.peerlink.session import LinkSession
from dro.proto.repair.receiver import ReceiverSession
from dro.proto.repair.retransmit import TransmissionWindow
from dro.proto.repair.source import SourceSession
from dro.proto.tcp.receiver import TcpReceiverCore
from dro.proto.tcp.source import TcpSourceCore
from dro.proto.unicast.splitter import MessageSplitter
from dro.shared_memory.records import RecordReader, RecordWriter
from dro.shared_memory.ring import RingReader
from dro.transport.datagrams.receiver import DatagramReceiver
from dro.transport.lbtipc.receiver import IpcReceiver
from dro.transport.lbtipc.sender import IpcSender
from dro.transport.lbtrm.receiver import LbtrmGroup
from dro.transport.lbtrm.sender import LbtrmSender
from dro.transport.lbtru.receiver import LbtruSocket
from dro.transport.lbtru.sender import LbtruSender
from dro.transport.lbtru.trains import ClientTrains
from dro.transport.runs import RunTable
from dro.transport.scan import Stream
from dro.transport.stream import PlainStream
from dro.transport.tcp.receiver import TcpReceiver
from dro.transport.tcp.sender import TcpSender
from dro.transport.trains import Trains
from dro.um.fragment.own_source import FragmentSource
from dro.wire.lz4_frame import FrameReader
from portals.datapath.duplicate_window import DuplicateWindow
from portals.datapath.outgoing import Lane, ProxySource
from portals.decisions.outbox import Outbox
from portals.peer.datagrams.link_datagrams import LinkDatagrams
from portals.peer.datagrams.packet_writer import PacketWriter
from portals.peer.newcomers import UNGREETED_MAX
from portals.peer.stream.connection import PeerConnection
from portals.peer.stream.lz4_stream import Lz4Stream
from portals.peer.stream.peer_tls import PeerTlsStream
from portals.peer.stream.receiver import LinkReader, LinkReceiver
from portals.peer.stream.writer import LinkWriter
from tests.network.conftest import Make
from tests.network.plans import PAIR
from tests.network.test_fuzzed_links import greeting
from tests.network.test_udp_links import tls
from tests.rigs.freed import collector_off, living, only_in_cycles
from tests.rigs.network import Network

CONNECTION: Final = (
    DatagramSession, FrameReader, LinkDatagrams, LinkReader, LinkReceiver, LinkSession, LinkWriter, Lz4Stream,
    PacketWriter, PeerConnection, PeerTlsStream, PlainStream, RunTable, SourceSession, Stream, TransmissionWindow,
)  # fmt: skip
SESSION: Final = (
    BoundSource, ClientList, ClientTrains, ConnectCore, DatagramReceiver, DuplicateWindow, FragmentSource, IpcReceiver,
    IpcSender, Lane, LbtrmGroup, LbtrmSender, LbtruSender, LbtruSocket, PlainStream, ProxySource, ReceiverSession,
    RecordReader, RecordWriter, SourceSession, Stream, TcpReceiver, TcpReceiverCore, TcpSender, TcpSourceCore, Trains,
    TransmissionWindow,
)  # fmt: skip
GROWN: Final = 6 << 20
LINKS: Final = ["plain", "TLS", "LZ4", "TLS and LZ4", "udp", "udp, TLS and LZ4"]
TOPIC: Final = b"T"


@pytest.fixture(autouse=True)
def off() -> Iterator[None]:
    with collector_off():
        yield


def pair(make: Make, folder: Path, link: str = "plain", transport: str = "lbtrm") -> Network:
    """Two DROs whose link is up."""
    more = (tls(folder) if "TLS" in link else "") + ("<compression>LZ4</compression>" if "LZ4" in link else "")
    net = make(PAIR, transport=transport, tcp=more, udp="" if "udp" in link else None)
    net.start()
    net.until(lambda: has_link(net))
    return net


def has_link(net: Network) -> bool:
    return all(portal.link.watch.is_up for dro in net.dros.values() for portal in dro.peers.values())


def flow(net: Network, *, ends_silently: bool = False) -> None:
    """A source in TRD 1 and a receiver in TRD 2 come, data crosses the link, and they go, or their programs end."""
    sender, receiver = net.applications or (net.application(1), net.application(2))
    receiver.context.want_topic(TOPIC)
    source = sender.source(TOPIC)
    net.until(lambda: bool(receiver.bound(TOPIC)))
    for _ in range(30):
        sender.send(source, 10, 500)
        net.run(10)
    assert len(receiver.got(source)) > 200
    if ends_silently:
        net.end(sender)
        net.end(receiver)
        net.run(90_000, step_ms=500)
    else:
        source.close(final=True, linger_ns=0)
        receiver.context.unwant_topic(TOPIC)
        net.run(30_000, step_ms=200)
    sender._sqn.clear()  # what the applications have kept of them
    for kept in (receiver.sink.bound, receiver.sink.unbound, receiver.sink.began):
        kept.clear()


def alone(net: Network) -> None:
    """The initiator leaves the acceptor alone."""
    net.dros["A"].close_link("B")
    net.run(3000)


def stranger(net: Network) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", net.plan.link_port("A", "B")))
    net.stepper.settle()
    return made


def refused(net: Network) -> None:
    net.dros["B"].close_link("A")
    net.dros["A"].mend("B")
    net.run(10_000, step_ms=100)
    assert not net.dros["A"].has_link("B")
    net.dros["A"].close_link("B")
    net.run(2000)


def says(*content: bytes) -> Callable[[Network], None]:
    """Strangers that connect, say each something, and go away."""

    def talk(net: Network) -> None:
        for said in content:
            with stranger(net) as sock:
                sock.sendall(said)
                net.stepper.settle()
            net.run(1000)

    return talk


def stays_silent(net: Network) -> None:
    with stranger(net):
        net.run(60_000, step_ms=200)


def up_with_data(net: Network) -> None:
    net.dros["A"].mend("B")
    net.until(lambda: has_link(net))
    flow(net)
    net.dros["A"].cut("B")
    net.until(lambda: has_link(net))
    alone(net)


ENDS: Final[dict[str, Callable[[Network], None]]] = {
    "refused": refused,
    "silent, then gone": says(b""),
    "silent until it is closed": stays_silent,
    "part of a message": says(b"\x08\x00", b"\x16\x03\x01", greeting()[:-1]),
    "garbage": says(b"\xff" * 5000, bytes(20), b"\x16\x03\x01\x00\x05abcde"),
    "greeted": says(greeting(), greeting() + b"\x08\x00", greeting() + bytes(100)),
    "up with data": up_with_data,
}


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("end", ENDS)
def test_of_a_connection_that_ends_nothing_is_left(make: Make, tmp_path: Path, end: str, link: str) -> None:
    net = pair(make, tmp_path, link)
    alone(net)
    ENDS[end](net)  # what is made once is made now
    net.run(2 * HOLD_NS // NS_PER_MS, step_ms=200)
    only_in_cycles()
    before = living(*CONNECTION)
    ENDS[end](net)
    net.run(2 * HOLD_NS // NS_PER_MS, step_ms=200)
    assert living(*CONNECTION) == before
    assert not only_in_cycles()


@pytest.mark.parametrize("transport", ["lbtrm", "lbtru", "tcp", "lbtipc"])
@pytest.mark.parametrize("ends_silently", [False, True])
def test_of_sessions_and_proxies_that_end_nothing_is_left(
    make: Make, tmp_path: Path, transport: str, *, ends_silently: bool
) -> None:
    net = pair(make, tmp_path, transport=transport)
    flow(net)  # what is made once is made now
    before = living(*SESSION)
    flow(net, ends_silently=ends_silently)
    assert living(*SESSION) == before


def test_a_receiver_that_leaves_takes_the_transmission_window_with_it(make: Make, tmp_path: Path) -> None:
    """Also while the source goes on."""
    net = pair(make, tmp_path)
    sender, receiver = net.application(1), net.application(2)
    source = sender.source(TOPIC)
    net.run(1000)
    before = living(LbtrmSender, TransmissionWindow, Trains, Lane)
    receiver.context.want_topic(TOPIC)
    net.until(lambda: bool(receiver.bound(TOPIC)))
    sender.send(source, 100, 500)
    net.run(100)
    assert living(LbtrmSender, TransmissionWindow, Trains, Lane) != before
    receiver.context.unwant_topic(TOPIC)
    net.run(60_000, step_ms=200)
    assert living(LbtrmSender, TransmissionWindow, Trains, Lane) == before


def test_of_a_sibling_that_ends_nothing_is_left(make: Make, tmp_path: Path) -> None:
    net = pair(make, tmp_path)
    kinds = (Outbox, RingReader, DescriptorReader)
    endpoint, peer = net.dros["A"].workers[1], net.dros["A"].workers[2]
    up = endpoint.peers[peer.index]
    only_in_cycles()
    before = living(*kinds)
    endpoint.peers.pop(peer.index)
    endpoint.told["on_peer_down"](PeerDown(peer.index, 1))
    endpoint.rings.clear()
    net.run(5000, step_ms=100)
    assert before - living(*kinds) == {"Outbox": 1, "RingReader": 1, "DescriptorReader": 2}
    assert not only_in_cycles()
    endpoint.peers[peer.index] = up
    endpoint.told["on_peer_up"](up)
    net.run(1000)
    assert living(*kinds) == before


def test_of_connections_to_request_ports_nothing_is_left(make: Make) -> None:
    """Two DROs in one TRD tell each other routes over them."""
    kinds = (PlainStream, MessageSplitter)
    net = make({"A": [1, 3], "B": [1, 2]})
    net.start()
    before = living(*kinds)
    net.until(lambda: living(*kinds)["PlainStream"] >= before["PlainStream"] + 4)
    net.kill("B")
    net.run(120_000, step_ms=200)
    assert living(*kinds) == before


# memory


def attempts_of(net: Network) -> list[str]:
    """Why the initiator has not reached its companion, for each time from now on."""
    watch, found = net.dros["A"].peers["B"].link.watch, list[str]()
    on_failed = watch.on_failed

    def note(why: str, remedy: str = "") -> None:
        found.append(why)
        on_failed(why, remedy)

    watch.on_failed = note  # type: ignore[method-assign]
    return found


def test_attempts_to_reach_a_companion_that_is_away_cost_nothing(make: Make, tmp_path: Path) -> None:
    net = pair(make, tmp_path)
    net.dros["B"].close_link("A")
    net.run(5000, step_ms=50)
    attempts = attempts_of(net)
    before = own_bytes()
    while len(attempts) < 60:
        net.run(1000, step_ms=50)
    assert own_bytes() - before < GROWN


@pytest.mark.parametrize("link", ["plain", "TLS"])
def test_silent_connections_to_an_acceptor_cost_almost_nothing(make: Make, tmp_path: Path, link: str) -> None:
    net = pair(make, tmp_path, link)
    alone(net)
    before = own_bytes()
    strangers = []
    for _ in range(200):
        strangers.append(stranger(net))
        assert own_bytes() - before < GROWN
    assert len(net.dros["B"].peers["A"].link.newcomers) == UNGREETED_MAX
    for sock in strangers:
        sock.close()
    net.run(1000)
    assert own_bytes() - before < GROWN
