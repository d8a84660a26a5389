"""A link whose connection breaks and comes back goes on where it was: nothing is lost, doubled or out of order."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dro.clock import ms
from dro.log.events import LogEvent
from dro.metrics.slots import Slot
from dro.proto.peerlink.hold import HOLD_NS
from dro.proto.peerlink.resume import ProgressKind, progress
from dro.proto.peerlink.session import LinkEnd
from portals.peer.process.portal import PeerPortal
from tests.fakes.worker import logged
from tests.network import test_udp_links
from tests.network.conftest import Make, without_resuming
from tests.network.plans import PAIR
from tests.network.test_lost_links import (
    KINDS,
    SITES,
    SLOW,
    SMALL,
    close_acceptor,
    flowing,
    missing,
    reset,
    run,
    send,
    sent,
)
from tests.network.test_outages import Flow
from tests.network.test_udp_links import FAST, Wire, tls
from tests.rigs.network import Network

wire = test_udp_links.wire


def has_come(flow: Flow) -> None:
    """All that was sent ever has come, in order and once."""
    flow.net.run(1500)
    for sender, source, receiver in flow.ways:
        assert receiver.got(source) == list(range(sender.sent(source)))
    for dro in flow.net.dros.values():
        assert dro.books.problems() == []


def peers(net: Network) -> list[PeerPortal]:
    return [net.dros[end].peers[other] for end, other in SITES.items()]


def comes_back(flow: Flow) -> None:
    """Do not wait for the interval of the initiator."""
    net = flow.net
    before = [peer.link.watch.links for peer in peers(net)]
    run(flow, 10)
    connecting = net.dros["A"].peers["B"].link.connecting
    assert connecting is not None
    for _ in range(200):
        if all(peer.link.watch.links > links for peer, links in zip(peers(net), before, strict=True)):
            return
        if connecting.next_deadline() is not None:
            connecting.at_once(net.loop.now_ns())
            net.dros["A"].peers["B"]._shell.act_soon()
        run(flow, 10)
    raise AssertionError("the link is not back")


def broken_at_any_time(flow: Flow, rng: random.Random) -> None:
    """Some load, and a connection that breaks in the middle of it, with what one of its ends has not read."""
    net = flow.net
    run(flow, 10 * rng.randrange(6))
    end = rng.choice("AB")
    is_deaf = rng.random() < 0.3
    if is_deaf:
        net.dros[end].set_reading(SITES[end], reads=False)
        run(flow, rng.choice((10, 50, 100)))
    send(flow, rng.randrange(60))
    for _ in range(rng.randrange(12)):
        net.loop.run_once(0)
    if net.dros[end].peers[SITES[end]].connection is not None:
        reset(net, end, reads_rest=rng.random() < 0.5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [1, 2])
def test_connections_that_break_at_any_time(make: Make, tmp_path: Path, kind: str, seed: int) -> None:
    rng = random.Random(f"{kind} {seed}")
    more = (tls(tmp_path) if "TLS" in kind else "") + ("<compression>LZ4</compression>" if "LZ4" in kind else "")
    net = make(PAIR, tcp=SMALL + more, udp=FAST if "UDP" in kind else None)
    net.start()
    flow = Flow(net, 1, 2)
    run(flow, 300)
    for _ in range(30):
        broken_at_any_time(flow, rng)
        if rng.random() < 0.3:  # once more, at any point of the dialogue
            for _ in range(rng.randrange(60)):
                net.loop.run_once(0)
            end = rng.choice("AB")
            if net.dros[end].peers[SITES[end]].connection is not None:
                reset(net, end, reads_rest=False)
        comes_back(flow)
    has_come(flow)
    assert [peer.sender.counters.lost_bytes for peer in peers(net)] == [0, 0]


def test_datagrams_that_are_missing_when_the_connection_breaks(make: Make, wire: Wire) -> None:
    rng = random.Random(3)
    net = make(PAIR, udp=FAST)
    net.start()
    flow = Flow(net, 1, 2)
    run(flow, 300)
    for _ in range(20):
        wire.lose = lambda _: rng.random() < 0.3
        run(flow, 10 * rng.randrange(1, 10))
        reset(net, rng.choice("AB"))
        wire.lose = lambda _: False
        comes_back(flow)
    has_come(flow)
    assert test_udp_links.counted(net, Slot.UNRECOVERABLE) == 0


def test_datagrams_that_never_come_are_lost_when_the_link_stays_away(make: Make, wire: Wire) -> None:
    """What had come behind them was held back, and is handed up."""
    flow = flowing(make, udp=FAST, daemon=SLOW)
    net = flow.net
    lost: list[bytes] = []

    def lose(packet: bytes) -> bool:
        """The first large one of one direction, and its repairs."""
        key = packet[4:8] + packet[16:20]
        if len(packet) > 1000 and not lost:
            lost.append(key)
        return len(packet) > 1000 and key == lost[0]

    wire.lose = lose
    before = sent(flow)
    for _ in range(2):
        send(flow, 100)
        net.stepper.settle()
    close_acceptor(net)
    reset(net, "A")
    net.run(100)
    assert test_udp_links.counted(net, Slot.UNRECOVERABLE) == 0
    assert [len(numbers) for numbers in missing(flow, before)].count(200) == 1, "what came behind it is held back"
    net.run(HOLD_NS // ms(1))
    assert test_udp_links.counted(net, Slot.UNRECOVERABLE) == 1
    assert sorted(len(numbers) for numbers in missing(flow, before)) == [0, 100]


@pytest.mark.parametrize("udp", [None, FAST])
def test_a_source_that_ends_while_its_data_is_under_way(make: Make, udp: str | None) -> None:
    """It is offered once more for what has not come, and ends behind that."""
    at_once = "<source-deletion-delay>0</source-deletion-delay>"
    ports = ("A-1", "A-B", "B-A", "B-2")
    flow = flowing(make, udp=udp, portal_xml=dict.fromkeys(ports, at_once), tcp=SMALL)
    net = flow.net
    (sender, source, receiver), _ = flow.ways
    portal = net.dros["A"].peers["B"]
    run(flow, 50)
    net.dros["B"].set_reading("A", reads=False)
    sender.send(source, 20, 100)
    net.run(20)
    (otid,) = portal.sources.by_otid.snapshot()
    portal.link.announced._close(otid)
    portal._carry_out()
    net.run(10)
    assert not portal.link.offered.has(otid)
    reset(net, "A", reads_rest=False)
    net.dros["B"].set_reading("A", reads=True)
    net.until(lambda: net.dros["A"].has_link("B"))
    net.run(1500)
    assert receiver.got(source) == list(range(sender.sent(source)))
    assert not portal.link.offered.has(otid)
    offers = net.dros["B"].peers["A"].link.offers
    assert offers is not None
    assert len(offers) == 0


def test_a_companion_that_has_restarted_gets_nothing_old(make: Make) -> None:
    flow = flowing(make)
    net = flow.net
    (_, source, receiver), _ = flow.ways
    net.dros["B"].set_reading("A", reads=False)
    send(flow, 50)
    net.run(50)
    edge = sent(flow)[0]
    assert net.dros["A"].peers["B"].sender.sent.end > 0
    net.kill("B")
    net.start("B")
    net.until(lambda: net.dros["A"].has_link("B"))
    flow.return_ms()
    late = [number for number in range(edge - 50, edge) if number in receiver.got(source)]
    assert late == []
    assert net.dros["A"].peers["B"].sender.counters.lost_bytes > 0


def test_more_than_max_queue_is_lost_counted_and_logged_once(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    flow = flowing(make)
    net = flow.net
    for peer in peers(net):
        peer.sender.sent.limit_bytes = 3000
    before = sent(flow)
    net.dros["B"].set_reading("A", reads=False)
    for _ in range(20):
        send(flow, 5)
        net.run(10)
    reset(net, "A", reads_rest=False)
    reset(net, "B", reads_rest=False)
    comes_back(flow)
    net.run(1000)
    there, _ = missing(flow, before)
    assert there
    assert there == list(range(there[0], there[-1] + 1))
    counted = net.dros["A"].peers["B"].sender.counters.lost_bytes
    assert counted >= len(there) * 120
    told = [fields for _, event, fields in logged(caplog) if event is LogEvent.PEER_DATA_FORGOTTEN]
    assert len(told) == 1


@pytest.mark.parametrize(
    ("kind", "position", "text"),
    [
        (ProgressKind.GOT, 0, "takes back"),
        (ProgressKind.GOT, 1 << 50, "was sent"),
        (ProgressKind.BEGINS, 0, "begins twice"),
    ],
)
def test_a_companion_that_miscounts_is_closed(
    make: Make, caplog: pytest.LogCaptureFixture, kind: ProgressKind, position: int, text: str
) -> None:
    caplog.set_level("INFO")
    flow = flowing(make)
    net = flow.net
    run(flow, 200)
    forger = net.dros["B"].peers["A"].connection
    assert forger is not None
    forger.writer.put_urgent(progress(kind, position))
    run(flow, 20)
    watch = net.dros["A"].peers["B"].link.watch
    assert watch.ends[LinkEnd.NEGOTIATION] == 1
    reasons = [str(fields.get("reason")) for _, event, fields in logged(caplog) if event is LogEvent.PEER_LINK_LOST]
    assert any("miscounts data" in reason and text in reason for reason in reasons)
    comes_back(flow)
    has_come(flow)


def test_with_a_companion_that_goes_on_miscounting_the_link_works_as_without_confirming(make: Make) -> None:
    flow = flowing(make)
    net = flow.net
    run(flow, 200)
    net.dros["B"].peers["A"]._resumption._received._base += 98
    run(flow, 400)
    comes_back(flow)
    has_come(flow)
    peer = net.dros["A"].peers["B"]
    assert peer.link.watch.ends[LinkEnd.NEGOTIATION] == 1
    assert not peer.sender.resumes
    reset(net, "A")
    comes_back(flow)
    has_come(flow)


@pytest.mark.parametrize("old", ["A-B", "B-A"])
def test_with_a_companion_that_does_not_offer_it_nothing_is_said_of_it(
    make: Make, monkeypatch: pytest.MonkeyPatch, old: str
) -> None:
    without_resuming(monkeypatch, old)
    flow = flowing(make)
    for peer in peers(flow.net):
        assert peer.connection is not None
        assert not peer.sender.resumes
        assert peer.sender.sent.end == 0
        assert peer.connection.session.unhandled == 0
    has_come(flow)


def test_a_link_that_breaks_all_the_time_changes_no_route(make: Make) -> None:
    """At default timers: it is there again each time, so there is nothing to calculate, however long that goes on."""
    net = make(PAIR, daemon="")
    net.start()
    flow = Flow(net, 1, 2)
    flow.run(9000)
    before, tables = sent(flow), [net.dros[dro].manager._core.routes.table for dro in "AB"]
    for _ in range(60):
        reset(net, "A")
        comes_back(flow)
        flow.run(180)
    has_come(flow)
    assert missing(flow, before) == [[], []]
    assert [net.dros[dro].manager._core.routes.table for dro in "AB"] == tables
