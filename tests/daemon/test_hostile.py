"""What strangers send to the ports of a running DRO is counted and dropped; nothing ends, and the flows go on."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from dro.errors import DecodeError
from dro.metrics.slots import Slot
from dro.transport import sockets
from dro.wire import lbtrm, otid
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmr import packet as lbmr
from dro.wire.source_string import LbtrmAddress, TcpAddress, TransportAddress
from tests.bench.cost_unit import memory_bytes
from tests.bench.traffic.strangers import mutations, vectors
from tests.rigs.flow import DUPLICATES, MISSING, WRONG
from tests.rigs.ring import Ring
from tests.rigs.site import Site

TOPICS = 10
RATE = 300
WANTED = 6000  # malformed datagrams of each kind that must be counted
CHUNK = 100
LOCAL = 0x7F000001

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    """TRD 1 and 2 with LBT-RM, TRD 3 with TCP. All tests share the DRO: no flood may be felt by the next."""
    site = Site(tmp_path_factory.mktemp("hostile"), 3, transports={3: "tcp"})
    try:
        site.start()
        yield Ring(site, TOPICS, RATE)
    finally:
        site.close()


@pytest.fixture
def unharmed(ring: Ring) -> Iterator[Ring]:
    """Afterwards the same processes run, have not grown much, and everything flows and is complete."""
    site = ring.site
    workers = site.workers()
    memory = {name: memory_bytes(pid) for name, pid in workers.items()}
    yield ring
    ring.wait_flowing_again()
    assert site.workers() == workers, site.logs
    grown = {name: memory_bytes(pid) - memory[name] for name, pid in workers.items()}
    assert max(grown.values()) < 24 << 20, grown
    ring.wait(lambda: all(flow[MISSING] == 0 for flow in ring.flows.values()), "repairs")
    assert all((flow[DUPLICATES], flow[WRONG]) == (0, 0) for flow in ring.flows.values())
    with site.books() as books:
        assert all(books[n, Slot.UNRECOVERABLE] == 0 for n in books.pages)
    assert "Traceback" not in site.log


Send = Callable[[bytes], None]
Sender = Callable[[str, int], Send]


@pytest.fixture
def sender() -> Iterator[Sender]:
    """Makes senders of datagrams to a group of the loopback interface, or to a port of 127.0.0.1."""
    with contextlib.ExitStack() as stack:

        def make(address: str, port: int) -> Send:
            sock = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 0)

            def send(datagram: bytes) -> None:
                sock.sendto(datagram, (address, port))

            return send

        yield make


def is_bad_tr(datagram: bytes) -> bool:
    return lbmr.decode_lenient(datagram)[1] is not None


def is_bad_lbtrm(datagram: bytes) -> bool:
    try:
        lbtrm.decode(datagram)
    except DecodeError:
        return True
    return False


def flood_until_counted(ring: Ring, portals: dict[int, int], datagrams: Iterator[bytes], send: Send) -> int:
    """Send until each of the portals has counted as many bad datagrams more as it says there; how many were sent."""
    sent = 0
    with ring.site.books() as books:
        targets = {n: books[n, Slot.BAD_DATAGRAMS] + count for n, count in portals.items()}

        def flood() -> bool:
            nonlocal sent
            for _ in range(CHUNK):
                send(next(datagrams))
            sent += CHUNK
            return all(books[n, Slot.BAD_DATAGRAMS] >= target for n, target in targets.items())

        ring.wait(flood, "malformed datagrams are counted")
    return sent


def test_malformed_topic_resolution_is_counted(unharmed: Ring, sender: Sender) -> None:
    site = unharmed.site
    bad = filter(is_bad_tr, mutations(random.Random(1), vectors("lbmr.jsonl", "lbmr")))
    send = sender(f"{site.net(1)}.1", site.port(1))
    assert flood_until_counted(unharmed, {1: WANTED}, bad, send) >= WANTED / 2  # a portal has two contexts


def test_malformed_datagrams_on_a_data_group_are_counted(unharmed: Ring, sender: Sender) -> None:
    site = unharmed.site
    bad = filter(is_bad_lbtrm, mutations(random.Random(2), vectors("transports.jsonl", "lbtrm")))
    send = sender(f"{site.net(1)}.10", site.port(1) + 20)
    flood_until_counted(unharmed, {1: WANTED}, bad, send)


def test_malformed_and_foreign_naks_are_counted(unharmed: Ring, sender: Sender) -> None:
    site = unharmed.site
    rng = random.Random(3)
    ports = range(site.port(2) + 21, site.port(2) + 44)  # the portal's NAK ports are among them
    sends = [sender("127.0.0.1", port) for port in ports]

    def naks() -> Iterator[bytes]:
        noise = mutations(rng, vectors("transports.jsonl", "lbtrm"))
        while True:
            yield next(filter(is_bad_lbtrm, noise))
            port = rng.choice(ports)
            yield lbtrm.encode(lbtrm.Nak(port, rng.getrandbits(32), tuple(rng.getrandbits(32) for _ in range(300))))

    def send(datagram: bytes) -> None:
        for one in sends:
            one(datagram)

    flood_until_counted(unharmed, {2: WANTED // 3}, naks(), send)


def test_noise_on_the_tcp_ports_closes_only_its_own_connections(unharmed: Ring) -> None:
    """Request ports and the ports of TCP proxy sources: noise, headers without end, and silence."""
    site = unharmed.site
    rng = random.Random(4)
    ports = [port for trd in site.trds for port in (*range(site.port(trd) + 1, site.port(trd) + 20),
                                                    *range(site.port(trd) + 44, site.port(trd) + 64))]  # fmt: skip
    silent: list[socket.socket] = []
    listening: set[int] = set()
    with contextlib.ExitStack() as stack, site.books() as books:
        before = books[3, Slot.BAD_DATAGRAMS]

        def flood() -> bool:
            for port in ports:
                sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
                sock.settimeout(5)
                try:
                    sock.connect(("127.0.0.1", port))
                    listening.add(port)
                    match rng.randrange(4):
                        case 0:
                            sock.sendall(rng.randbytes(rng.randrange(1, 5000)))
                        case 1:
                            sock.sendall(struct.pack("!BBH", 0x08, 0x6B, 2) * 50)  # lengths that cannot be
                        case 2:
                            sock.sendall(struct.pack("!BBH", 0x08, 0x6B, 65535) + bytes(60_000))
                        case _:
                            if len(silent) < 40:
                                silent.append(stack.enter_context(sock))
                                continue
                except OSError:
                    pass  # refused, or closed while we wrote
                sock.close()
            return books[3, Slot.BAD_DATAGRAMS] >= before + 20

        unharmed.wait(flood, "bad connections are counted")
        assert len(listening & set(range(site.port(3) + 44, site.port(3) + 64))) > 1
        unharmed.wait_flowing_again()


def advertise(sender: Sender, site: Site, trd: int, topic: bytes, address: TransportAddress) -> Callable[[], None]:
    """What a stranger's context would send to advertise a source."""
    source = otid.encode(address, 7, 1, 1)
    options = lbmr.TirOptions((lbmr.OtidOption(source),))
    tir = lbmr.Tir(topic, address, lbmr.TIR_TTL, 7, options)
    packet = lbmr.Packet(1, lbmr.standard_options(bytes(range(8)), 0, 0), lbmr.Queries(tirs=(tir,)))
    datagram = lbmr.encode(packet)
    send = sender(f"{site.net(trd)}.1", site.port(trd))
    return lambda: send(datagram)


def test_a_source_whose_lbtrm_session_carries_no_messages_is_counted(unharmed: Ring, sender: Sender) -> None:
    site = unharmed.site
    rng = random.Random(5)
    address = LbtrmAddress(LOCAL, sockets.ip_number(f"{site.net(1)}.13"), 77, site.port(1) + 20, site.port(1) + 43)
    tell = advertise(sender, site, 1, b"flow1.0", address)

    def content() -> bytes:
        """Ten bytes more than there are, a length of zero, half a header, or no LBMC version that exists."""
        match rng.randrange(4):
            case 0:
                return lbmc.HEADER.pack(0, 0, 40, 7, 1) + bytes(18)
            case 1:
                return struct.pack("!BBH", 0, 0, 0)
            case 2:
                return bytes(3)
            case _:
                return b"\xf0" + rng.randbytes(40)

    def datagrams() -> Iterator[bytes]:
        sqn = 0
        while True:
            if sqn % 50 == 0:
                tell()
            yield lbtrm.encode(
                lbtrm.Data(address.nak_port, address.session_id, sqn, 0, lbtrm.FLAG_UCAST_NAKS, 3, sqn & 7, content())
            )
            sqn += 1

    flood_until_counted(unharmed, {1: WANTED // 3}, datagrams(), sender(sockets.ip_text(address.group), address.dport))


def test_a_source_whose_tcp_session_carries_no_messages_is_left(unharmed: Ring, sender: Sender) -> None:
    site = unharmed.site
    with socket.create_server(("127.0.0.1", 0)) as server:
        tell = advertise(sender, site, 3, b"flow3.0", TcpAddress(LOCAL, server.getsockname()[1], 5))
        accepted: list[int] = []

        def serve() -> None:
            with contextlib.suppress(OSError):  # until the server is closed
                while True:
                    client, _ = server.accept()
                    accepted.append(1)
                    with client, contextlib.suppress(OSError):
                        client.sendall(random.Random(6).randbytes(100_000))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with site.books() as books:
            before = books[3, Slot.BAD_DATAGRAMS]

            def counted() -> bool:
                tell()
                # left, advertised again, joined again
                return len(accepted) >= 2 and books[3, Slot.BAD_DATAGRAMS] >= before + 2

            unharmed.wait(counted, "the bad stream is counted")
        server.shutdown(socket.SHUT_RDWR)
        thread.join(30)
        assert not thread.is_alive()


def test_the_dro_stops_in_good_order_after_all_that(ring: Ring) -> None:
    ring.settle()
    with ring.site.books() as books:
        assert books.problems() == []
    assert ring.site.stop() == 0
