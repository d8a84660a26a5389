"""DROs and links of a ring that go and come back, while messages flow through it both ways."""

from __future__ import annotations

import pytest

from dro.clock import NS_PER_MS, ms
from dro.metrics.slots import Slot
from dro.proto.peerlink.hold import HOLD_NS
from dro.um.fragment.own_source import FragmentSource
from portals.decisions.routes import HELD_NS, LONGER_NS
from tests.network.conftest import Make
from tests.network.plans import CHAIN, PAIR, RING
from tests.rigs.network import QUICK, Application, Network, late

SOUTH, NORTH = b"south", b"north"
SETTLED_MS = 2500 + (HELD_NS + LONGER_NS) // ms(1)
"""Until routes are calculated, and what is kept of the ones before is gone."""


class Flow:
    """A message each 10 ms from TRD `one` to TRD `other`, and one back."""

    def __init__(self, net: Network, one: int = 1, other: int = 3) -> None:
        self.net = net
        self.trds = one, other
        self.applications = net.application(one), net.application(other)
        first, second = self.applications
        self.ways: list[tuple[Application, FragmentSource, Application]] = [
            (first, first.source(SOUTH), second),
            (second, second.source(NORTH), first),
        ]
        for _, source, receiver in self.ways:
            receiver.context.want_topic(source.topic)
        net.until(lambda: all(receiver.bound(source.topic) for _, source, receiver in self.ways))

    def run(self, milliseconds: int) -> None:
        for _ in range(0, milliseconds, 10):
            for sender, source, _ in self.ways:
                sender.send(source)
            self.net.run(10)

    def is_through(self) -> bool:
        """What is sent now arrives, both ways."""
        self.run(10)
        return all(receiver.last_sqn() == sender.sent(source) - 1 for sender, source, receiver in self.ways)

    def return_ms(self, limit_ms: int = 10_000) -> int:
        """Send until it arrives again."""
        for waited in range(0, limit_ms, 10):
            if self.is_through():
                return waited
        raise AssertionError(f"no flow within {limit_ms} ms")

    def check(self) -> None:
        """From now on all arrives; nothing has arrived twice, or was counted twice.

        What waited for a link while the rest went round it comes late, for receivers on LBT-RM to put in order; else
        all has come in order.
        """
        before = [sender.sent(source) for sender, source, _ in self.ways]
        self.run(500)
        self.net.run(500, 50)
        for (sender, source, receiver), first in zip(self.ways, before, strict=True):
            got = receiver.got(source)
            assert len(got) == len(set(got))
            assert late(got) == sorted(late(got))
            assert [number for number in got if number >= first] == list(range(first, sender.sent(source)))
        for dro in self.net.dros.values():
            assert dro.books.problems() == []
        for trd, (sender, source, _) in zip(self.trds, self.ways, strict=True):
            for dro in self.net.dros.values():
                if trd in dro.endpoints:
                    assert dro.page(trd, Slot.TOPIC_RCVD) <= sender.sent(source)

    def passes(self, dro: str, port: int | str) -> bool:
        """Do messages leave this DRO by that portal now?"""
        before = self.net.dros[dro].page(port, Slot.SENT)
        self.run(50)
        return self.net.dros[dro].page(port, Slot.SENT) > before


def test_another_cost_moves_the_flow_and_loses_nothing(ring: Flow) -> None:
    """Make before break: the path before goes on until the new one is there."""
    before = [sender.sent(source) for sender, source, _ in ring.ways]
    ring.net.dros["A"].set_cost("B", 10)
    ring.run(SETTLED_MS)
    assert (ring.passes("A", "B"), ring.passes("A", "D")) == (False, True)
    ring.net.run(500, 50)
    for (sender, source, receiver), first in zip(ring.ways, before, strict=True):
        assert receiver.got(source)[first:] == list(range(first, sender.sent(source)))
    ring.check()


@pytest.fixture
def ring(make: Make) -> Flow:
    """The way between TRDs 1 and 3 is that by DRO B, whose node id is smaller than that of D."""
    net = make(RING)
    net.start()
    flow = Flow(net)
    flow.return_ms()
    flow.run(300)
    assert (flow.passes("A", "B"), flow.passes("A", "D")) == (True, False)
    return flow


@pytest.mark.parametrize("victim", RING)
@pytest.mark.parametrize("away_ms", [0, 3000])
def test_a_dro_of_a_ring_that_restarts(ring: Flow, victim: str, away_ms: int) -> None:
    """It is killed and comes back under another node id."""
    net = ring.net
    net.kill(victim)
    ring.run(away_ms)
    if away_ms and victim in ("B", "D"):
        assert ring.is_through(), "the other way round"
    net.start(victim)
    ring.return_ms()
    ring.run(2000)  # until routes have settled
    ring.check()


@pytest.mark.parametrize(
    ("victim", "transport"), [*((victim, "lbtrm") for victim in CHAIN), ("A", "lbtru"), ("B", "lbtru"), ("A", "tcp")]
)
def test_a_dro_of_a_chain_that_restarts(make: Make, victim: str, transport: str) -> None:
    net = make(CHAIN, transport=transport)
    net.start()
    flow = Flow(net)
    flow.run(300)
    net.kill(victim)
    flow.run(1500)
    assert not flow.is_through()
    net.start(victim)
    flow.return_ms()
    flow.run(1000)
    flow.check()


@pytest.mark.parametrize(("end", "other"), [("A", "B"), ("B", "A"), ("B", "C"), ("C", "B")])
def test_a_connection_that_one_end_closes(ring: Flow, end: str, other: str) -> None:
    """It is made again; what has gone another way meanwhile comes back to it."""
    ring.net.dros[end].cut(other)
    ring.return_ms()
    ring.run(SETTLED_MS)
    assert ring.net.dros[end].has_link(other)
    assert ring.net.dros[other].has_link(end)
    assert (ring.passes("A", "B"), ring.passes("A", "D")) == (True, False)
    ring.check()


@pytest.mark.parametrize(("end", "other"), [("A", "B"), ("C", "B")])
def test_a_link_that_is_away_is_gone_round_until_it_is_back(ring: Flow, end: str, other: str) -> None:
    dro = ring.net.dros[end]
    dro.close_link(other)
    assert ring.return_ms() < 1000
    ring.run(SETTLED_MS)
    assert (ring.passes("A", "B"), ring.passes("A", "D")) == (False, True)
    ring.check()
    dro.mend(other)
    ring.net.until(lambda: dro.has_link(other))
    ring.run(SETTLED_MS)
    assert (ring.passes("A", "B"), ring.passes("A", "D")) == (True, False)
    ring.check()


CANARY = '<canary interval="100" timeout="500"/>'


def test_nothing_takes_a_degraded_link_after_the_next_calculation(make: Make) -> None:
    """Data would get over it, as what waits for the link only delays canaries; without data the cause may end."""
    net = make(RING, portal_xml={"A-B": CANARY, "B-A": CANARY})
    net.start()
    flow = Flow(net)
    flow.return_ms()
    net.until(lambda: flow.passes("A", "B"))
    portal = net.dros["A"].peers["B"]
    ways = portal.link.costs
    send, portal.sender.send_canary = portal.sender.send_canary, lambda message: None  # type: ignore[method-assign]
    net.until(lambda: not portal.link.watch.carries)
    flow.run(SETTLED_MS)
    assert (flow.passes("A", "B"), flow.passes("B", "A"), flow.passes("A", "D")) == (False, False, True)
    assert not portal.core.proxies
    assert portal.link.costs is ways, "what the companion offers is not told anew"
    flow.check()
    portal.sender.send_canary = send  # type: ignore[method-assign]
    net.until(lambda: portal.link.watch.carries)
    flow.run(SETTLED_MS)
    assert (flow.passes("A", "B"), flow.passes("A", "D")) == (True, False)
    assert portal.link.watch.links == 1
    flow.check()


@pytest.mark.parametrize("is_restarted", [False, True], ids=["late", "restarted"])
def test_a_link_that_is_back_makes_nothing_by_routes_of_before(make: Make, is_restarted: bool) -> None:
    """The route manager does not answer, so the table that the portal has is that from before the cut."""
    net = make(PAIR)
    net.start()
    flow = Flow(net, 1, 2)
    flow.run(300)
    dro = net.dros["A"]
    portal, channels = dro.peers["B"], dro.workers[0].channels
    heard: list[tuple[int, bytes]] = []
    on_ctl, channels.on_ctl = channels.on_ctl, lambda *message: heard.append(message)
    assert portal.core.proxies
    dro.close_link("B")
    flow.run(HOLD_NS // NS_PER_MS + 500)
    dro.mend("B")
    net.until(lambda: dro.has_link("B"))
    flow.run(500)
    wants = [symbol for symbol in portal.core.recorded.domains if symbol[0] == SOUTH]
    assert (len(wants), len(portal.core.proxies), len(portal.link.told)) == (1, 0, 0)
    if is_restarted:
        dro.restart_manager()
    else:
        channels.on_ctl = on_ctl
        for message in heard:
            on_ctl(*message)
    flow.return_ms()
    flow.run(1000)
    flow.check()


def test_a_link_is_back_before_routes_are_calculated_without_it(make: Make) -> None:
    """The calculation is not made then: the table that holds stays in force, and so do the proxies."""
    net = make(PAIR, daemon=QUICK.replace('backoff-interval="100"', 'backoff-interval="5000"'))
    net.start()
    flow = Flow(net, 1, 2)
    flow.run(300)
    portal = net.dros["A"].peers["B"]
    version, table = portal.core.routes.version, portal.core.routes.table
    net.dros["A"].cut("B")
    flow.run(50)
    assert (portal.core.routes.version, portal.core.routes.table) == (version, table)
    assert portal.core.proxies
    assert flow.return_ms() <= 2500
    flow.check()
    assert portal.core.routes.version == version


@pytest.mark.parametrize("end", "AB")
def test_the_only_link_is_away_for_a_moment(make: Make, end: str) -> None:
    """The initiator connects again within 1.2 s."""
    net = make(PAIR)
    net.start()
    flow = Flow(net, 1, 2)
    flow.run(300)
    net.dros[end].cut("B" if end == "A" else "A")
    assert flow.return_ms() <= 2500
    flow.run(1000)
    flow.check()


def test_a_link_that_flaps(ring: Flow) -> None:
    for _ in range(5):
        ring.net.dros["B"].cut("A")
        ring.run(300)
        ring.net.until(lambda: ring.net.dros["B"].has_link("A"))
    ring.return_ms()
    ring.run(2000)
    ring.check()


def test_a_link_that_is_not_read_drops_what_waits_too_long(make: Make) -> None:
    """What does not fit into `<max-queue>` is dropped and counted, and the flow goes on when it is read again."""
    net = make(PAIR, transport="tcp", portal_xml={"A-B": "<max-queue>100000</max-queue>"})
    net.start()
    flow = Flow(net, 1, 2)
    flow.run(300)
    sender, source, receiver = flow.ways[0]
    net.dros["B"].set_reading("A", reads=False)
    limit = net.dros["A"].page("B", Slot.QUEUE_LIMIT)
    assert limit == 100_000
    while not net.dros["A"].page("B", Slot.DROPPED_BLOCKED):
        sender.send(source, 50, size=20_000)
        net.run(10)
    sender.send(source, 50, size=20_000)
    net.run(10)
    assert 0 < net.dros["A"].page("B", Slot.QUEUED_BYTES) <= limit
    assert sender.sent(source) < 5000
    net.dros["B"].set_reading("A", reads=True)
    flow.return_ms()
    flow.run(300)
    flow.check()
    dropped = sum(net.dros["A"].page("B", slot) for slot in (Slot.DROPPED_BLOCKED,))
    assert len(receiver.got(source)) == sender.sent(source) - dropped
    assert net.dros["A"].page("B", Slot.QUEUED_BYTES) == 0
