"""A link that is lost for a moment costs nothing; with a companion that confirms no data, what TCP had under way."""

from __future__ import annotations

import random
import socket
import struct
from pathlib import Path
from typing import Final

import pytest

from dro.clock import ms
from dro.metrics.slots import Slot
from dro.metrics.table import PORTAL, bounds_of
from dro.proto.peerlink.connecting import PAUSE_NS
from dro.proto.peerlink.hold import HOLD_NS
from dro.proto.peerlink.session import LinkEnd
from dro.transport.stream import PlainStream
from dro.wire.lbmc import message as lbmc
from portals.peer.datagrams.link_datagrams import LinkDatagrams
from portals.peer.stream.connector import Acceptor
from portals.peer.stream.link_frames import SRCIDX_BYTES
from tests.network.conftest import Make, without_resuming
from tests.network.plans import PAIR, RING
from tests.network.test_outages import SETTLED_MS, SOUTH, Flow
from tests.network.test_udp_links import FAST, tls
from tests.rigs.effort import IS_LONG
from tests.rigs.network import QUICK, Network

AWAY_MS = 1500
SIZE = 100
ON_LINK = lbmc.HEADER.size + SIZE + SRCIDX_BYTES
SMALL = "<receive-buffer>4096</receive-buffer><send-buffer>8192</send-buffer>"
PER_STEP = 10
"""Messages each 10 ms, both ways."""
SITES = {"A": "B", "B": "A"}


def run(flow: Flow, milliseconds: int) -> None:
    for _ in range(0, milliseconds, 10):
        send(flow, PER_STEP)
        flow.net.run(10)


def send(flow: Flow, count: int) -> None:
    for sender, source, _ in flow.ways:
        sender.send(source, count, SIZE)


def reset(net: Network, end: str, *, reads_rest: bool = True) -> None:
    """As by a RST from the network, which leaves what each end has received and not read."""
    connection = net.dros[end].peers[SITES[end]].connection
    assert connection is not None
    if reads_rest:
        connection.read_rest()
    stream = connection.base
    assert isinstance(stream, PlainStream)
    stream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection._lost("reset by the test", "", LinkEnd.ERROR)


def close_acceptor(net: Network) -> None:
    net.dros["B"].peers["A"]._connector.close()


def open_acceptor(net: Network) -> None:
    acceptor, initiator = net.dros["B"].peers["A"]._connector, net.dros["A"].peers["B"]
    assert isinstance(acceptor, Acceptor)
    acceptor.start()
    assert initiator.link.connecting is not None
    initiator.link.connecting.at_once(net.loop.now_ns())
    initiator._shell.act_soon()


def lost_bytes(net: Network) -> list[int]:
    """By direction: of A, of B."""
    return [net.dros[end].peers[other].sender.counters.lost_bytes for end, other in SITES.items()]


def missing(flow: Flow, first: list[int]) -> list[list[int]]:
    """Numbers of what was sent from there on and has not come, both ways."""
    return [
        sorted(set(range(begin, sender.sent(source))) - set(receiver.got(source)))
        for begin, (sender, source, receiver) in zip(first, flow.ways, strict=True)
    ]


def sent(flow: Flow) -> list[int]:
    return [sender.sent(source) for sender, source, _ in flow.ways]


KINDS = ("TCP", "TLS", "LZ4", "TLS and LZ4", "UDP", "UDP, TLS and LZ4")
ROUNDS: Final = 30 if IS_LONG else 6
"""Each of the three lengths of a stall twice."""
ROUNDS_BEFORE = (ROUNDS, 6, 6, 4, 6, 4)


@pytest.mark.parametrize(
    ("kind", "rounds", "resumes"),
    [(kind, ROUNDS, True) for kind in KINDS]
    + [(kind, rounds, False) for kind, rounds in zip(KINDS, ROUNDS_BEFORE, strict=True)],
)
def test_a_reset_costs_nothing_or_what_was_under_way(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, rounds: int, resumes: bool
) -> None:
    rng = random.Random(kind)
    if not resumes:
        without_resuming(monkeypatch)
    more = (tls(tmp_path) if "TLS" in kind else "") + ("<compression>LZ4</compression>" if "LZ4" in kind else "")
    net = make(PAIR, tcp=SMALL + more, udp=FAST if "UDP" in kind else None)
    net.start()
    flow = Flow(net, 1, 2)
    run(flow, 500)
    lost = 0
    for nth in range(rounds):
        before, counted = sent(flow), lost_bytes(net)
        run(flow, 100)
        if stalled_ms := 0 if "UDP" in kind else (0, 50, 300)[nth % 3]:
            for end, other in SITES.items():
                net.dros[end].set_reading(other, reads=False)
            run(flow, stalled_ms)
        send(flow, rng.randrange(50) + (2000 if "LZ4" in kind and stalled_ms else 0))  # else TCP has room for all
        for _ in range(rng.randrange(10)):
            net.loop.run_once(0)
        close_acceptor(net)
        reset(net, rng.choice("AB"))
        cut = sent(flow)
        run(flow, AWAY_MS)
        assert max(net.dros[end].page(other, Slot.QUEUED_BYTES) for end, other in SITES.items()) > 0
        open_acceptor(net)
        run(flow, 500)
        net.run(500)
        for gone, edge, was, now in zip(missing(flow, before), cut, counted, lost_bytes(net), strict=True):
            assert gone == list(range(gone[0], gone[0] + len(gone))) if gone else True, f"round {nth}: {gone}"
            assert not gone or gone[-1] < edge, f"round {nth}: {gone} of {edge}"
            assert len(gone) * ON_LINK <= now - was + ON_LINK, f"round {nth}: {gone}, {now - was} bytes counted"
            lost += len(gone)
    for _, source, receiver in flow.ways:
        got = receiver.got(source)
        assert got == sorted(set(got))
    for dro in net.dros.values():
        assert dro.books.problems() == []
        assert dro.dropped() == 0
    assert (lost, lost_bytes(net)) == (0, [0, 0]) if resumes else lost or "UDP" in kind
    print(f"{kind}: {rounds} resets, {lost} messages lost of {sum(sent(flow))}, {sum(lost_bytes(net))} bytes counted")


SLOW: Final = QUICK.replace('backoff-interval="100"', 'backoff-interval="10000"')
"""Routes do not follow before the hold is over."""


def flowing(make: Make, **options: object) -> Flow:
    net = make(PAIR, **options)
    net.start()
    flow = Flow(net, 1, 2)
    run(flow, 300)
    return flow


def proxies(net: Network, end: str = "A") -> int:
    """Proxy sources of that end of the link."""
    return len(net.dros[end].peers[SITES[end]].sources)


def test_the_first_attempt_is_made_at_once_and_the_next_after_a_pause(make: Make) -> None:
    flow = flowing(make)
    net = flow.net
    run(flow, 1000)
    before = sent(flow)
    reset(net, "B")
    run(flow, 20)
    assert net.dros["A"].has_link("B")
    reset(net, "A")
    run(flow, PAUSE_NS // ms(1) - 10)
    assert not net.dros["A"].has_link("B"), "the link did not last"
    net.until(lambda: net.dros["A"].has_link("B"))
    net.run(500)
    assert missing(flow, before) == [[], []]


@pytest.mark.parametrize("udp", [None, FAST])
def test_a_connection_that_is_replaced_is_read_to_its_end(make: Make, udp: str | None) -> None:
    """The acceptor has not seen that it is over when the initiator is back."""
    flow = flowing(make, udp=udp)
    net = flow.net
    run(flow, 1000)
    before = sent(flow)
    net.dros["B"].set_reading("A", reads=False)
    run(flow, 20)
    reset(net, "A")
    run(flow, 300)
    net.until(lambda: net.dros["B"].peers["A"].link.watch.links == 2)
    there, back = missing(flow, before)
    assert there == []
    assert len(back) <= (PER_STEP if udp else 0), "nobody hears its datagrams until it has seen the new connection"


def test_sources_that_are_deleted_without_delay_are_held_too(make: Make) -> None:
    at_once = "<source-deletion-delay>0</source-deletion-delay>"
    flow = flowing(make, portal_xml=dict.fromkeys(("A-1", "A-B", "B-A", "B-2"), at_once))
    net = flow.net
    before = sent(flow)
    close_acceptor(net)
    reset(net, "A")
    run(flow, AWAY_MS)
    open_acceptor(net)
    run(flow, 500)
    net.run(500)
    assert missing(flow, before) == [[], []]


def test_what_waits_goes_when_the_link_is_not_back_in_time(make: Make) -> None:
    flow = flowing(make, daemon=SLOW)
    net = flow.net
    close_acceptor(net)
    reset(net, "A")
    run(flow, HOLD_NS // ms(1) - 50)
    assert proxies(net) == 1
    assert net.dros["A"].page("B", Slot.QUEUED_BYTES) > 0
    run(flow, 100)
    assert proxies(net) == 0
    assert net.dros["A"].page("B", Slot.QUEUED_BYTES) == 0
    dropped = {reason: count for reason, count in net.dros["A"].books.dropped(2).items() if count}
    assert dropped.keys() == {"not_operational"}
    assert net.dros["A"].books.problems() == []
    edge = sent(flow)
    open_acceptor(net)
    net.until(lambda: flow.is_through())
    assert [gone[-1] >= edge[0] for gone in missing(flow, [0, 0])], "nothing from before comes"


def test_routes_that_go_elsewhere_end_the_hold(make: Make) -> None:
    flow = flowing(make)
    net = flow.net
    close_acceptor(net)
    reset(net, "A")
    run(flow, 1000)
    assert proxies(net) == 1, "for as long as every route that changes"
    run(flow, 4000)
    assert proxies(net) == 0


@pytest.mark.parametrize("is_down_first", [True, False])
def test_a_drain_does_not_wait_for_a_companion_that_is_away(make: Make, is_down_first: bool) -> None:
    flow = flowing(make, daemon=SLOW, transport="tcp")
    net = flow.net
    worker = next(worker for worker in net.dros["A"].workers.values() if worker.name == "A-B")
    if not is_down_first:
        worker.told["on_drain"](60_000)
    close_acceptor(net)
    reset(net, "A")
    run(flow, 500)
    if is_down_first:
        assert worker.counters[Slot.QUEUED_BYTES] > 0
        worker.told["on_drain"](60_000)
    run(flow, 2000 if is_down_first else HOLD_NS // ms(1) + 2000)
    assert worker.answers == [""]


def test_a_portal_whose_link_is_down_stops_at_once(make: Make) -> None:
    flow = flowing(make, daemon=SLOW)
    net = flow.net
    worker = next(worker for worker in net.dros["A"].workers.values() if worker.name == "A-B")
    close_acceptor(net)
    reset(net, "A")
    run(flow, 500)
    worker.told["on_stop"]()
    net.stepper.settle()
    assert "finish" in worker.ends


def test_a_link_that_is_lost_before_its_datagrams_got_through(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to a request waits to be read when the link is over."""
    net = make(PAIR, udp=FAST)
    with monkeypatch.context() as patch:
        patch.setattr(LinkDatagrams, "start", LinkDatagrams._arm)
        net.start()
        net.until(lambda: net.dros["A"].has_link("B"))
        net.run(300)
    reset(net, "A")
    flow = Flow(net, 1, 2)
    run(flow, 300)
    assert net.dros["A"].peers["B"].link.watch.links == 1
    assert missing(flow, [0, 0]) == [[], []]


def test_at_default_timers_an_outage_that_is_shorter_than_the_backoff_costs_nothing(make: Make) -> None:
    net = make(PAIR, daemon="")
    net.start()
    flow = Flow(net, 1, 2)
    flow.run(9000)
    before = sent(flow)
    close_acceptor(net)
    reset(net, "A")
    flow.run(4500)
    open_acceptor(net)
    flow.run(8000)
    net.run(500)
    assert missing(flow, before) == [[], []]


@pytest.mark.parametrize("away_ms", [700, 1500])
def test_what_has_waited_comes_late_when_the_rest_has_gone_round(make: Make, away_ms: int) -> None:
    """In its order, for receivers on LBT-RM to put in place; `check` looks at that."""
    net = make(RING)
    net.start()
    flow = Flow(net)
    flow.run(300)
    close_acceptor(net)
    reset(net, "B")
    flow.run(away_ms)
    assert flow.is_through(), "the other way round"
    assert net.dros["A"].page("B", Slot.QUEUED_BYTES) > 0
    open_acceptor(net)
    net.until(lambda: net.dros["A"].has_link("B"))
    flow.run(SETTLED_MS)
    flow.check()


def ends_of(net: Network, end: str) -> dict[str, int]:
    """What the portal at that end has counted of connects and ends of links."""
    net.dros[end].peers[SITES[end]].refresh_gauges()
    names = [
        "CONNECTS", "LINK_RECONNECTS", "CONNECT_FAILURES",
        *[f"DISCONNECTED_{reason}" for reason in ("REMOTE", "ERROR", "TIMEOUT", "NEGOTIATION", "SHUTDOWN")],
    ]  # fmt: skip
    counts = {name: net.dros[end].page(SITES[end], Slot[name]) for name in names}
    return {name: count for name, count in counts.items() if count}


def test_ends_of_a_link_are_counted_by_reason_at_both_ends(make: Make) -> None:
    keepalive = '<gateway-keepalive interval="200" timeout="600"/>'
    net = make(PAIR, portal_xml={"A-B": keepalive, "B-A": keepalive})
    net.start()
    net.until(lambda: all(dro.has_link(SITES[name]) for name, dro in net.dros.items()))
    assert ends_of(net, "B") == {"CONNECTS": 1}
    net.run(1000)
    net.dros["A"].cut("B")
    net.until(lambda: "DISCONNECTED_REMOTE" in ends_of(net, "B"))
    assert ends_of(net, "A")["DISCONNECTED_ERROR"] == ends_of(net, "B")["DISCONNECTED_REMOTE"] == 1
    net.until(lambda: net.dros["A"].has_link("B"))
    net.dros["A"].set_reading("B", reads=False)
    net.until(lambda: "DISCONNECTED_TIMEOUT" in ends_of(net, "A"))
    close_acceptor(net)
    failures = ends_of(net, "A").get("CONNECT_FAILURES", 0)
    net.until(lambda: ends_of(net, "A").get("CONNECT_FAILURES", 0) > failures)
    open_acceptor(net)
    net.until(lambda: all(dro.peers[SITES[name]].link.watch.is_up for name, dro in net.dros.items()))
    peer = net.dros["A"].peers["B"]
    peer.close()
    counts = ends_of(net, "A")
    assert counts["DISCONNECTED_SHUTDOWN"] == 1
    assert counts["CONNECTS"] == sum(count for name, count in counts.items() if name.startswith("DISCONNECTED"))
    assert counts["LINK_RECONNECTS"] == counts["CONNECTS"] - 1
    page = net.dros["A"].peers["B"]._ctx.counters
    assert page[Slot.KEEPALIVES_SENT] >= page[Slot.RTT_SAMPLES] > 0
    buckets = page[Slot.RTT], *(page[Slot[f"RTT_{at}"]] for at in range(1, len(bounds_of(PORTAL, "RTT")) + 1))
    assert sum(buckets) == page[Slot.RTT_SAMPLES]


def test_what_a_link_carries_is_counted_once_and_by_its_kind(make: Make) -> None:
    """Control messages as written at one end and as read at the other, and none of data."""
    flow = flowing(make)
    net = flow.net
    net.run(500)
    for end, other in SITES.items():
        net.dros[end].peers[other].refresh_gauges()
    for here, there in SITES.items():
        there_page = net.dros[there].peers[here]._ctx.counters
        here_page = net.dros[here].peers[there]._ctx.counters
        assert here_page[Slot.GATEWAY_CONTROL_SENT] == there_page[Slot.GATEWAY_CONTROL_RCVD] > 5
        assert here_page[Slot.GATEWAY_CONTROL_SENT_BYTES] == there_page[Slot.GATEWAY_CONTROL_RCVD_BYTES]
        batches = [here_page[Slot[f"BATCH_{name}_MESSAGES"]] for name in ("MIN", "MEAN", "MAX")]
        assert 0 < batches[0] <= batches[1] <= batches[2]
        assert here_page[Slot.UNICAST_QUEUE_LIMIT] == net.dros[here].peers[there]._unicast._most
        assert there_page[Slot.UNKNOWN_SOURCE] == 0
    lost = net.dros["A"].page("B", Slot.GATEWAY_CONTROL_NOT_OPERATIONAL)
    close_acceptor(net)
    reset(net, "A")
    flow.applications[0].context.want_topic(b"another")
    run(flow, 500)
    assert net.dros["A"].page("B", Slot.GATEWAY_CONTROL_NOT_OPERATIONAL) > lost


def test_a_source_that_the_companion_has_not_told_of_is_counted(make: Make) -> None:
    flow = flowing(make)
    net = flow.net
    there = net.dros["B"].peers["A"]
    page, offers = there._ctx.counters, there.link.offers
    assert offers is not None
    for record in [one for one in offers.all() if one.topic == SOUTH]:
        there._remove(offers, record.srcidx)
    before = page[Slot.TOPIC_RCVD], page[Slot.UNKNOWN_SOURCE], page[Slot.UNKNOWN_SOURCE_BYTES]
    sender, source, _ = flow.ways[0]
    sender.send(source, 5, SIZE)
    net.run(500)
    after = page[Slot.TOPIC_RCVD], page[Slot.UNKNOWN_SOURCE], page[Slot.UNKNOWN_SOURCE_BYTES]
    assert (after[0], after[1]) == (before[0], before[1] + 5)
    assert after[2] - before[2] == 5 * (ON_LINK - SRCIDX_BYTES)
