"""Links with `<udp>`: what is lost on the way is repaired, whatever is done to the datagrams."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from dro.metrics.slots import Slot
from dro.proto.peerlink.messages import SourceEnd
from dro.transport.trains import Trains
from dro.wire import lbtru
from dro.wire.lbmc.dro_blocks import TopicSource
from dro.wire.lbmc.message import Message
from dro.wire.peer_datagram import DatagramDrop
from portals.decisions.effects import CloseProxySource, OpenProxySource
from portals.decisions.messages import SourceSeen
from portals.peer.datagrams import packet_writer
from portals.peer.datagrams.link_datagrams import LinkDatagrams
from portals.peer.stream.link_frames import PACKET_HEADER
from tests.network.conftest import Make, without_resuming
from tests.network.plans import CHAIN, PAIR
from tests.network.test_answers import rows
from tests.network.test_outages import NORTH, SOUTH, Flow
from tests.rigs.certificates import Authority
from tests.rigs.network import Network

FAST = (
    '<peer-rate-limit data="100000000" retransmit="100000000"/>'
    '<nak-handling backoff-interval="20" suppress-interval="20" ignore-interval="10"/>'
    '<session-message min-interval="20" max-interval="200"/>'
)


def tls(folder: Path) -> str:
    authority = Authority(folder)
    certificate, key = authority.leaf("dro")
    return (
        f"<tls><certificate>{certificate}</certificate><certificate-key>{key}</certificate-key>"
        f"<trusted-certificates>{authority.trusted}</trusted-certificates></tls>"
    )


class Wire:
    """All links; what `lose` says gets lost in front of the socket."""

    def __init__(self) -> None:
        self.lose: Callable[[bytes], bool] = lambda _: False


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    made, send = Wire(), LinkDatagrams._send

    class Lossy(Trains):
        def send_sizes(self, buffer: bytearray | memoryview, sizes: list[int], ends: list[int]) -> int:
            for start, end in zip([0, *ends], ends, strict=False):
                packet = bytearray(buffer[start:end])
                if not made.lose(bytes(packet)):
                    super().send_sizes(packet, [len(packet)], [len(packet)])
            return len(sizes)

    monkeypatch.setattr(packet_writer, "Trains", Lossy)
    monkeypatch.setattr(LinkDatagrams, "_send", lambda self, packet: made.lose(packet) or send(self, packet))
    return made


def links_up(net: Network) -> bool:
    return all(portal.link.watch.is_up for dro in net.dros.values() for portal in dro.peers.values())


def counted(net: Network, slot: Slot) -> int:
    total = 0
    for dro in net.dros.values():
        for other, portal in dro.peers.items():
            portal.refresh_gauges()
            total += dro.page(other, slot)
    return total


@pytest.mark.parametrize("kind", ["plain", "LZ4", "TLS", "TLS and LZ4"])
def test_everything_arrives_once_over_a_link_that_loses(make: Make, tmp_path: Path, wire: Wire, kind: str) -> None:
    more = (tls(tmp_path) if "TLS" in kind else "") + ("<compression>LZ4</compression>" if "LZ4" in kind else "")
    net = make(CHAIN, udp=FAST, tcp=more)
    net.start()
    net.until(lambda: links_up(net))
    flow = Flow(net)
    rng = random.Random(5)
    wire.lose = lambda _: rng.random() < 0.1
    flow.run(2000)
    net.run(2000)
    for sender, source, receiver in flow.ways:
        got = receiver.got(source)
        assert sender.sent(source) >= 200
        assert got == list(range(got[0], sender.sent(source)))
    assert counted(net, Slot.UDP_NAKS_SENT) > 10
    assert counted(net, Slot.UDP_RETRANSMITTED) > 10
    assert counted(net, Slot.UNRECOVERABLE) == counted(net, Slot.BAD_DATAGRAMS) == 0
    for dro in net.dros.values():
        assert dro.books.problems() == []


def test_both_ends_count_the_same_datagrams(make: Make, wire: Wire) -> None:
    """Also over connections that follow each other."""
    net = make(PAIR, udp=FAST)
    net.start()
    net.until(lambda: links_up(net))
    flow = Flow(net, 1, 2)
    rng = random.Random(7)
    for _ in range(2):
        wire.lose = lambda _: rng.random() < 0.1
        flow.run(1000)
        wire.lose = lambda _: False
        flow.run(300)
        net.run(1000)
        if net.dros["A"].peers["B"].link.watch.links == 1:
            net.dros["A"].cut("B")
            net.until(lambda: links_up(net))
            flow.return_ms()
    counted(net, Slot.LINK_UP)  # refreshes
    for here, there in (("A", "B"), ("B", "A")):

        def sent(slot: Slot, here: str = here, there: str = there) -> int:
            return net.dros[here].page(there, slot)

        def heard(slot: Slot, here: str = here, there: str = there) -> int:
            return net.dros[there].page(here, slot)

        assert heard(Slot.UDP_LOST) > 10
        assert heard(Slot.UDP_RCVD) - heard(Slot.UDP_DUPLICATES) == sent(Slot.UDP_SENT)
        assert heard(Slot.UDP_UNRECOVERED_WINDOW) == heard(Slot.UDP_UNRECOVERED_TIMEOUT) == 0
        assert heard(Slot.UDP_RCVD_BYTES) >= sent(Slot.UDP_SENT_BYTES) > 20 * sent(Slot.UDP_SENT)
        assert sent(Slot.UDP_RETRANSMITTED) >= heard(Slot.UDP_LOST)
        assert sent(Slot.UDP_RETRANSMITTED_BYTES) > 20 * sent(Slot.UDP_RETRANSMITTED)
        assert heard(Slot.UDP_NAK_PACKETS_SENT) >= sent(Slot.UDP_NAK_PACKETS_RCVD) > 10
        assert heard(Slot.UDP_NAKS_SENT) >= sent(Slot.UDP_NAKS_RCVD) >= sent(Slot.UDP_RETRANSMITTED)
        recovery = [heard(Slot[f"UDP_RECOVERY_{name}_US"]) for name in ("MIN", "MEAN", "MAX")]
        assert recovery == sorted(recovery)
        assert 0 < recovery[-1] < 10_000_000
        per_loss = [heard(Slot[f"UDP_NAKS_PER_LOSS_{name}"]) for name in ("MIN", "MEAN", "MAX")]
        assert per_loss[0] == 1
        assert per_loss == sorted(per_loss)
        assert (sent(Slot.CONNECTS), sent(Slot.LINK_RECONNECTS)) == (2, 1)


def test_data_of_a_source_that_is_not_told_is_counted_in_the_end(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """By messages and bytes, when it has waited for long enough or with the connection."""
    without_resuming(monkeypatch)
    net = make(PAIR, udp=FAST)
    net.start()
    net.until(lambda: links_up(net))
    flow = Flow(net, 1, 2)
    flow.run(200)
    there, page = net.dros["B"].peers["A"], net.dros["B"].workers[2].counters
    assert page is there._ctx.counters
    for waits in (True, False):
        known = there.link.offers
        assert known is not None
        for record in [one for one in known.all() if one.topic == SOUTH]:
            known._offered.on_end(SourceEnd(record.srcidx, record.otid))
            there._remove(known, record.srcidx)
        unknown, nbytes = page[Slot.UNKNOWN_SOURCE], page[Slot.UNKNOWN_SOURCE_BYTES]
        before = page[Slot.TOPIC_RCVD]
        sender, source, _ = flow.ways[0]
        sender.send(source, 3, 100)
        net.run(300)
        assert page[Slot.UNKNOWN_SOURCE] == unknown, "it may be told yet"
        if waits:
            net.run(3000)
        else:
            net.dros["B"].cut("A")
        assert page[Slot.UNKNOWN_SOURCE] - unknown == 3
        assert page[Slot.UNKNOWN_SOURCE_BYTES] - nbytes >= 300
        assert page[Slot.TOPIC_RCVD] == before
        net.until(lambda: links_up(net))
        net.dros["A"].cut("B")
        net.until(lambda: links_up(net))
        flow.return_ms()
    assert page[Slot.NO_TOPIC_RCVD] == 0


def test_data_that_comes_before_its_source_is_told_is_forwarded(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """UDP may be faster than TCP, and what waited for a link leaves by it at once."""
    net = make(PAIR, udp=FAST)
    net.start()
    net.until(lambda: links_up(net))
    flow = Flow(net, 1, 2)
    flow.return_ms()
    there = net.dros["B"].peers["A"]
    take, behind = there.link.on_message, list[tuple[int, Message, bytes]]()

    def is_late(number: int, message: Message, raw: bytes) -> bool:
        if message.get(TopicSource) is None:
            return take(number, message, raw)
        behind.append((number, message, raw))
        return True

    with monkeypatch.context() as patched:
        patched.setattr(there.link, "on_message", is_late)
        net.dros["A"].cut("B")
        flow.run(20)
        net.until(lambda: links_up(net))
        flow.run(20)
        net.run(100)
    assert behind
    for told in behind:
        assert there.link.on_message(*told)
    there._follow()
    flow.run(100)
    net.run(300)
    sender, source, receiver = flow.ways[0]
    got = receiver.got(source)
    assert got == list(range(got[0], sender.sent(source)))
    assert counted(net, Slot.UNKNOWN_SOURCE) == 0


def test_a_new_connection_brings_nothing_twice_and_goes_on(make: Make, wire: Wire) -> None:
    net = make(PAIR, udp=FAST)
    net.start()
    net.until(lambda: links_up(net))
    flow = Flow(net, 1, 2)
    rng = random.Random(6)
    wire.lose = lambda _: rng.random() < 0.05
    for _ in range(3):
        flow.run(300)
        net.dros["A"].cut("B")
        net.until(lambda: links_up(net))
    flow.return_ms()
    net.run(1000)
    for sender, source, receiver in flow.ways:
        got = receiver.got(source)
        assert got == sorted(set(got))
        assert got[-1] == sender.sent(source) - 1


def test_without_udp_the_link_does_not_work_and_is_made_anew(make: Make, wire: Wire) -> None:
    is_cut = True
    wire.lose = lambda _: is_cut
    net = make(PAIR, udp='<connect attempt-interval="100" max-attempts="3"/>')
    net.start()
    net.until(lambda: net.dros["A"].has_link("B"))
    net.until(lambda: not net.dros["A"].has_link("B"))
    assert not links_up(net)
    is_cut = False
    net.until(lambda: links_up(net))
    Flow(net, 1, 2).check()


def test_what_is_no_packet_of_the_link_is_counted_by_reason(make: Make) -> None:
    net = make(PAIR, udp=FAST)
    net.start()
    net.until(lambda: links_up(net))
    flow = Flow(net, 1, 2)
    flow.run(200)
    portal = net.dros["B"].peers["A"]
    assert portal._udp is not None
    to = ("127.0.0.1", net.plan.udp_port("B", "A"))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.bind(("127.0.0.2", 0))
        stranger.sendto(b"hello", to)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        other.sendto(b"", to)
        other.sendto(b"\x55garbage", to)
        other.sendto(lbtru.encode(lbtru.Data(0, 0, 0, b"old", options=(lbtru.sid_option(1),))), to)
        assert portal._udp._datagrams is not None
        core = portal._udp._datagrams.core
        assert core.receiver.expected is not None
        sid, expected = (lbtru.sid_option(core.ids.companion),), core.receiver.expected
        other.sendto(lbtru.encode(lbtru.SessionMessage(0, expected - 1, 0, options=sid)), to)
    net.run(50)
    assert portal._udp.counts.dropped == {"foreign": 1, "size": 1, "version": 1, "session": 1}
    assert counted(net, Slot.BAD_DATAGRAMS) == 4
    flow.check()


def test_sealed_datagrams_cannot_be_changed_repeated_or_made_up(make: Make, tmp_path: Path, wire: Wire) -> None:
    net = make(PAIR, udp=FAST, tcp=tls(tmp_path))
    net.start()
    net.until(lambda: links_up(net))
    flow = Flow(net, 1, 2)
    heard: list[bytes] = []

    def note(datagram: bytes) -> bool:
        heard.append(datagram)
        return False

    wire.lose = note
    flow.run(200)
    portal = net.dros["B"].peers["A"]
    assert portal._udp is not None
    sealed = next(one for one in heard if one[0] == 1 and len(one) > 60)
    to = ("127.0.0.1", net.plan.udp_port("B", "A"))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        for datagram in (sealed, sealed[:-1] + bytes([sealed[-1] ^ 1]), lbtru.encode(lbtru.Data(0, 0))):
            other.sendto(datagram, to)
    net.run(50)
    dropped = portal._udp.counts.dropped
    reasons = {DatagramDrop.REPLAYED.value, DatagramDrop.FORGED.value, DatagramDrop.LAYOUT.value}
    assert set(dropped) <= reasons
    assert sum(dropped.values()) == 3
    flow.check()


def test_one_side_without_udp_is_refused_by_both(make: Make) -> None:
    net = make(PAIR, udp=FAST)
    file = net.plan.file("B")
    text = file.read_text()
    begin, end = text.index("<udp>"), text.index("</udp>") + len("</udp>")
    file.write_text(text[:begin] + text[end:])
    net.start()
    net.run(3000)
    assert not net.dros["A"].has_link("B")
    assert not net.dros["B"].has_link("A")


class Busy:
    """More data than a link takes, from A to B, and 20 sources a second that come and go at that portal of A."""

    def __init__(self, net: Network) -> None:
        self.net = net
        self.flow = Flow(net, 1, 2)
        self.portals = [net.dros["A"].peers["B"], net.dros["B"].peers["A"]]
        self.waiting = 0
        """Steps after which a message about a source waited behind data."""
        self._number = 0

    def run(self, milliseconds: int) -> None:
        sender, data, _ = self.flow.ways[0]
        portal = self.portals[0]
        for _ in range(0, milliseconds, 100):
            sender.send(data, 1, 1200)
            for _ in range(2):
                self._number += 1
                otid = self._number.to_bytes(32, "big")
                portal.perform(OpenProxySource(1, SourceSeen(self._number, otid, b"passing", 1, 1, 1, b"")), 0)
                portal.perform(CloseProxySource((self._number - 20).to_bytes(32, "big", signed=True)), 0)
            self.net.run(100, 100)
            packets = portal.sender._packets  # type: ignore[attr-defined]
            self.waiting += packets is not None and any(isinstance(one, bytes) for one in packets._waiting)

    @property
    def answers(self) -> int:
        """To the questions of A, each with what B has recorded."""
        return self.portals[0].link.rtt.us.count

    @property
    def repairs(self) -> list[int]:
        return [portal.link.watch.repairs for portal in self.portals]

    @property
    def links(self) -> list[int]:
        return [portal.link.watch.links for portal in self.portals]


@pytest.fixture
def busy(make: Make) -> Busy:
    net = make(PAIR, udp='<peer-rate-limit data="50000"/>')
    net.start()
    net.until(lambda: links_up(net))
    return Busy(net)


def test_a_link_at_its_rate_limit_stays_up_while_sources_come_and_go(busy: Busy) -> None:
    """Their messages always wait behind data; the link is asked every 30 s, and nothing is told once more."""
    before = busy.answers
    busy.run(300_000)
    assert busy.waiting > 2500, "of 3000 steps"
    assert busy.answers >= before + 8
    assert (busy.links, busy.repairs) == ([1, 1], [0, 0])


def test_what_the_companion_has_missed_is_repaired_at_the_rate_limit(busy: Busy) -> None:
    busy.run(2000)
    offers = busy.portals[1].link.offers
    assert offers is not None
    missed = next(one for one in offers.all() if one.topic == SOUTH)
    offers.on_end(SourceEnd(missed.srcidx, missed.otid))
    while not any(busy.repairs):
        busy.run(1000)
    busy.run(100_000)
    assert missed in offers.all()
    assert (busy.links, busy.repairs) == ([1, 1], [1, 0])


def test_datagrams_that_are_missing_when_the_link_is_lost_are_counted(
    make: Make, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_resuming(monkeypatch)
    net = make(PAIR, udp=FAST)
    net.start()
    flow = Flow(net, 1, 2)
    flow.run(300)
    net.run(100)
    edges = [sender.sent(source) for sender, source, _ in flow.ways]
    dropped: list[bytes] = []

    def lose(packet: bytes) -> bool:
        dropped.append(packet[PACKET_HEADER:])
        return True

    wire.lose = lose
    for _ in range(2):
        for sender, source, _ in flow.ways:
            sender.send(source, 5)
        net.stepper.settle()
        wire.lose = lambda packet: packet[PACKET_HEADER:] in dropped
    net.dros["B"].cut("A")
    flow.run(2500)
    net.run(500)
    for edge, (sender, source, receiver) in zip(edges, flow.ways, strict=True):
        gone = set(range(edge, sender.sent(source))) - set(receiver.got(source))
        assert gone == set(range(edge, edge + 5))
    assert counted(net, Slot.UNRECOVERABLE) == 2, "a packet each way"
    for here, there, topic in (("A", "B", NORTH), ("B", "A", SOUTH)):
        (row,) = rows(net, here, "losses", f"{here}-{there}")
        assert (row.lost, row.cause, row.topics) == (1, "link ended", (topic.decode(),))


def test_a_datagram_that_nobody_repairs_in_time_is_listed_once(make: Make, wire: Wire) -> None:
    net = make(PAIR, udp=FAST.replace("<nak-handling ", '<nak-handling generation-interval="500" '))
    net.start()
    net.until(lambda: links_up(net))
    flow = Flow(net, 1, 2)
    flow.run(300)
    assert rows(net, "B", "losses", "B-A") == []
    sender, source, receiver = flow.ways[0]
    number = sender.sent(source)
    mark = b"%s %d " % (source.otid.hex().encode(), number)
    wire.lose = lambda packet: mark in packet  # and every repair of it
    flow.run(2000)
    wire.lose = lambda _: False
    (row,) = rows(net, "B", "losses", "B-A")
    assert (row.portal, row.lost, row.cause, row.topics) == ("B-A", 1, "timeout", ("south",))
    (heard,) = rows(net, "B", "sources", "B-A")
    assert (row.source, row.otid) == (heard.source.partition("[")[0], source.otid.hex())
    assert counted(net, Slot.UNRECOVERABLE) == 1
    assert rows(net, "A", "losses", "A-B") == rows(net, "B", "losses", "B-A", "north") == []
    net.until(lambda: receiver.got(source) == [n for n in range(sender.sent(source)) if n != number])
