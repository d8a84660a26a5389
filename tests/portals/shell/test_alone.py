"""A portal's shell whose siblings and route manager are only messages: every message, timer, counter and log line."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from dro.bus.descriptors import DescriptorWriter
from dro.bus.messages import (
    ROUTE_MESSAGES,
    ForwardsAgain,
    LinkBusy,
    PeerDown,
    PeerRemoved,
    PeerUp,
    PortalGone,
    PortalUp,
    Role,
    Route,
    RouteInfoHeard,
    RouteMessage,
    RouteTable,
    SendRouteInfo,
)
from dro.bus.ring_size import RING_MAX_BYTES
from dro.clock import ms, s
from dro.kept.store import NOTHING_KEPT, Kept
from dro.log.events import LogEvent
from dro.metrics.slots import PairSlot, Slot
from dro.proto.interest.events import InterestGained
from dro.shared_memory.ring import DATA_AT
from dro.transport.runs import Run
from portals.datapath.handover import QUIET_TICKS
from portals.decisions.core import AT_ONCE, PortalCore
from portals.decisions.drain import TICK_NS, Quiescence
from portals.decisions.effects import (
    AdvertiseProxySource,
    CloseProxyReceiver,
    CloseProxySource,
    JoinKnownSource,
    OpenProxyReceiver,
    OpenProxySource,
    ProxyEffect,
)
from portals.decisions.engine import ACT_NS, INTEREST_AT_ONCE, STEP
from portals.decisions.messages import (
    PATTERN_NONE,
    PATTERN_PCRE,
    PATTERN_REGEX,
    PORTAL_MESSAGES,
    ForwardingStopped,
    ForwardStart,
    ForwardStop,
    FramesAcked,
    HandoverAcked,
    HandoverEnded,
    InitialStateSent,
    InterestAdded,
    KnownProxiesSent,
    KnownProxy,
    KnownSource,
    KnownSourcesSent,
    PortalHello,
    PortalMessage,
    SourceGone,
    SourceSeen,
    StateConfirmed,
    Withdraw,
)
from portals.decisions.recorded_interest import PATTERNS_MAX
from portals.decisions.relearning import CHECK_NS
from portals.decisions.routes import HELD_NS, LONGER_NS
from portals.decisions.siblings import REJOIN_HOLD_NS
from portals.shell.kept_sources import KeptSources
from portals.shell.portal import (
    DELIVER_NS,
    GAUGES_NS,
    GOES_ON_NS,
    KNOWN_NS,
    LOOK_NS,
    RING_RETRY_NS,
    PortalShell,
)
from tests.fakes.kept import HeldSockets
from tests.fakes.patterns import compile_pattern
from tests.fakes.queues import hand_over
from tests.fakes.siblings import all_messages, confirm_at_once
from tests.fakes.um_contexts import Stepper
from tests.fakes.worker import FakeWorker, logged
from tests.portals.datapath.test_data_path import data
from tests.portals.shell.test_portal import DOMAIN, OTID, NothingHeld, OtherLink

ME, SIBLING, THIRD = 1, 2, 3
MANAGER = 0
HERE, THERE = 10, 20  # the domains of the portal and of its sibling
ROUTES = RouteTable(7, (Route((HERE,), THERE, ME, SIBLING), Route((THERE,), HERE, SIBLING, ME)))
HANDLE = 1 << 24 | 1  # of the first source of an incarnation 1
KNOWN_HERE = SourceSeen(1 << 24 | 7, OTID, b"KNOWN", DOMAIN, 0, 1, b"", b"how it was joined")
SEEN = SourceSeen(5, OTID, b"AAA", THERE, 0, 1, b"")
WITH_RINGS = (Role.ENDPOINT, Role.PEER)


class TimedLink(OtherLink):
    """A link with a deadline; notes what the shell does within `together`, and when it asks for what is pending."""

    def __init__(self, shell: PortalShell, worker: FakeWorker) -> None:
        super().__init__(shell)
        self.worker = worker
        self.deadline: int | None = None
        self.timers: list[int] = []
        self.is_together = False
        self.pending: list[int] = []
        self.held: Quiescence = NothingHeld()
        self.finals = 0
        self.acts_within: list[ProxyEffect] = []
        self.stops_ns = 0
        self.takes_ns = 0
        """Time that each effect takes."""
        self.performed_at_stop: list[ProxyEffect] = []
        self.advertised: list[bytes] = []

    @contextmanager
    def together(self) -> Iterator[None]:
        self.is_together = True
        yield
        self.is_together = False

    def perform(self, effect: ProxyEffect, now_ns: int) -> None:
        assert self.is_together
        assert now_ns == self.worker.loop.now_ns()
        if isinstance(effect, AdvertiseProxySource):
            self.advertised.append(effect.otid)
            return
        self.shell.engine.act()  # as a link that finds a cached source at once
        super().perform(effect, now_ns)
        self.finals += isinstance(effect, CloseProxySource)
        if isinstance(effect, JoinKnownSource):
            self.hear(effect.source.topic, 3)
        self.worker.loop.clock.time_ns += self.takes_ns  # type: ignore[attr-defined]  # of the stepper

    def send_pending(self, now_ns: int) -> None:
        assert not self.is_together
        self.pending.append(now_ns)

    def next_deadline(self) -> int | None:
        return self.deadline

    def on_timer(self, now_ns: int) -> None:
        self.timers.append(now_ns)
        self.deadline = None

    def describe(self) -> PortalUp:
        return PortalUp(ME, HERE, 4)

    def quiescence(self, worker: int | None, now_ns: int) -> Quiescence:
        return self.held

    def finals_pending(self) -> int:
        return self.finals

    def stop(self) -> int:
        self.performed_at_stop = list(self.effects)
        return self.stops_ns


class Alone:
    """The portal P1; `sibling` is told of by the bus, its ring is a file of the test."""

    def __init__(self, stepper: Stepper, folder: Path, *, goes_on: bool = False, kept: Kept = NOTHING_KEPT) -> None:
        self.stepper = stepper
        self.worker = FakeWorker(stepper.loop, folder, ME, "P1")
        self.worker.goes_on, self.worker.kept_state = goes_on, kept
        confirm_at_once(self.worker)
        self.core = PortalCore(ME, 1, HERE, source_deletion_delay_ns=ms(100), matcher=compile_pattern)
        self.shell = PortalShell(self.worker.ctx, self.core, 1000)
        self.link = TimedLink(self.shell, self.worker)
        self.shell.start(self.link)
        self.sibling = FakeWorker(stepper.loop, folder, SIBLING, "P2")
        self.ring = self.sibling.create_ring(1 << 16)
        self.queues = DescriptorWriter(self.ring)

    @property
    def now_ns(self) -> int:
        return self.stepper.clock.time_ns

    def peer_up(self, worker: int, role: Role = Role.ENDPOINT, incarnation: int = 1) -> None:
        peer = self.worker.peers[worker] = PeerUp(worker, incarnation, f"P{worker}", role, "ring", "")
        self.worker.told["on_peer_up"](peer)

    def hear(self, worker: int, message: PortalMessage | RouteMessage) -> None:
        if isinstance(message, PortalUp | PortalGone | RouteTable | RouteInfoHeard | SendRouteInfo | LinkBusy):
            frame = ROUTE_MESSAGES.encode(message)
        else:
            frame = PORTAL_MESSAGES.encode(message)
        self.worker.channels.on_ctl(worker, frame)

    def joined(self) -> None:
        """The sibling is up and routes lead both ways; what was said so far is forgotten."""
        self.peer_up(SIBLING)
        self.hear(MANAGER, ROUTES)
        self.stepper.settle()
        self.sent()

    def sent(self) -> list[tuple[int, PortalMessage | RouteMessage]]:
        frames, self.worker.channels.sent = self.worker.channels.sent, []
        return all_messages(frames)

    def effects(self) -> list[ProxyEffect]:
        found, self.link.effects = self.link.effects, []
        return found

    def announced(self) -> int:
        """Batches that were handed to the sibling."""
        self.shell.ingress.flush()
        return self.shell._queues._heads.get(SIBLING, 0)

    def handed(self, fragments: int, *, is_taken: bool = True) -> None:
        """The sibling hands over so many fragments of 13 bytes."""
        chunk = b"".join(data(9, sqn, b"x") for sqn in range(fragments))
        hand_over(self.ring, self.queues, ME, chunk, [Run(SEEN.handle, 0, fragments, 0, 13, 13, 0, 0, 0)])
        if is_taken:
            self.shell._intake.poll(SIBLING)  # it does not greet in every test
            self.shell._intake.take()


@pytest.fixture
def alone(stepper: Stepper, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Alone:
    caplog.set_level(logging.INFO)
    return Alone(stepper, tmp_path)


# the bus


def test_the_route_manager_is_told_of_the_portal_until_it_is_down(alone: Alone) -> None:
    assert alone.link.pending == [alone.now_ns], "it has acted once"
    alone.shell.report_up()
    assert alone.sent() == [], "there is no route manager yet"
    alone.peer_up(MANAGER, Role.ROUTE_MANAGER)
    alone.shell.report_up()
    assert alone.sent() == [(MANAGER, PortalUp(ME, HERE, 4))] * 2
    alone.worker.told["on_peer_down"](PeerDown(MANAGER, 1))
    alone.shell.report_up()
    assert alone.sent() == []


@pytest.mark.parametrize("role", [Role.ENDPOINT, Role.PEER, Role.MONITOR])
def test_other_portals_are_siblings_at_once(alone: Alone, role: Role) -> None:
    page = alone.worker.counters
    page.set(page.pair(SIBLING) + PairSlot.HANDED, 9)
    page.set(page.pair(SIBLING) + PairSlot.HANDED_BYTES, 900)
    alone.peer_up(SIBLING, role)
    initial = [PortalHello(ME, 1, 9, 900), KnownProxiesSent(), KnownSourcesSent(), InitialStateSent()]
    said = initial if role in WITH_RINGS else []
    assert alone.sent() == [(SIBLING, message) for message in said]


def test_a_sibling_whose_ring_cannot_be_opened_is_none_until_it_can(
    alone: Alone, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """For want of descriptors, perhaps: what it says waits, and it is told that this portal lives."""
    alone.hear(MANAGER, RouteTable(7, (Route((HERE,), THERE, ME, THIRD), Route((THERE,), HERE, THIRD, ME))))
    alone.link.say(InterestGained((b"AAA", PATTERN_NONE)))
    alone.peer_up(THIRD)
    alone.hear(THIRD, SEEN)
    alone.hear(THIRD, InterestAdded(b"BBB", PATTERN_NONE, THERE))
    ((level, event, fields),) = logged(caplog)
    assert (level, event, fields["sibling"]) == ("WARNING", LogEvent.RING_NOT_OPENED, "P3")
    assert str(fields["error"]).startswith("cannot open the fragment ring")
    alone.stepper.run(RING_RETRY_NS // ms(1))
    assert [PORTAL_MESSAGES.decode(frame) for _, frame in alone.worker.channels.sent] == [FramesAcked(0)]
    assert (alone.sent(), alone.effects(), alone.core.siblings.up) == ([], [], [])
    FakeWorker(alone.stepper.loop, tmp_path, THIRD, "P3").create_ring(1 << 16)
    alone.stepper.run(RING_RETRY_NS // ms(1))
    hello, *others = alone.sent()
    assert hello == (THIRD, PortalHello(ME, 1, 0, 0))
    interest = InterestAdded(b"AAA", PATTERN_NONE, HERE)
    told = (KnownProxiesSent(), KnownSourcesSent(), interest, InitialStateSent(), ForwardStart(5))
    assert others == [(THIRD, m) for m in told]
    assert alone.effects() == [OpenProxySource(THIRD, SEEN), OpenProxyReceiver(b"BBB", PATTERN_NONE, (THERE,))]
    alone.stepper.run(5 * RING_RETRY_NS // ms(1))
    assert alone.worker.rings[1:] == []


def test_a_sibling_without_a_ring_that_ends_is_not_tried_again(alone: Alone) -> None:
    alone.peer_up(THIRD)
    alone.hear(THIRD, SEEN)
    del alone.worker.peers[THIRD]
    alone.worker.told["on_peer_down"](PeerDown(THIRD, 1))
    assert (alone.sent(), alone.core.next_deadline()) == ([], None)
    alone.stepper.run(2 * RING_RETRY_NS // ms(1))
    assert alone.worker.channels.sent == []
    alone.peer_up(SIBLING)
    alone.stepper.settle()
    assert alone.core.siblings.by_topic == {}, "what it said is forgotten"


class GoesOn(Alone):
    """The portal P1, whose former incarnation was killed; notes what it forwards when it forwards again."""

    def __init__(self, stepper: Stepper, folder: Path) -> None:
        super().__init__(stepper, folder, goes_on=True)
        self.forwards: list[int] = []
        self.forwarded: list[tuple[int, tuple[int, ...]]] = []
        self.shell.on_forwards_again = self._on_forwards_again
        FakeWorker(stepper.loop, folder, THIRD, "P3").create_ring(1 << 16)

    def _on_forwards_again(self) -> None:
        self.forwards.append(self.now_ns)
        self.forwarded += [(entry.handle, entry.egress) for entry in self.shell.entries.values()]


@pytest.fixture
def going_on(stepper: Stepper, tmp_path: Path) -> GoesOn:
    return GoesOn(stepper, tmp_path)


def test_a_portal_that_goes_on_forwards_again_when_all_siblings_have_named_what_they_had(going_on: GoesOn) -> None:
    for worker in (SIBLING, THIRD):
        going_on.peer_up(worker)
    going_on.stepper.settle()
    going_on.hear(SIBLING, KnownSource(KNOWN_HERE))
    going_on.hear(SIBLING, KnownSourcesSent())
    going_on.stepper.settle()
    assert going_on.forwards == []
    going_on.hear(THIRD, KnownSourcesSent())
    going_on.stepper.settle()
    assert going_on.forwards == [going_on.now_ns]
    assert going_on.forwarded == [(KNOWN_HERE.handle, (SIBLING,))], "under its former handle, at once"
    going_on.stepper.run(2 * KNOWN_NS // ms(1))
    assert len(going_on.forwards) == 1


@pytest.mark.parametrize("is_met", [True, False])
def test_a_portal_with_nothing_to_rejoin_says_that_it_forwards_when_it_is_ready(going_on: GoesOn, is_met: bool) -> None:
    """Its start has nothing to wait for, but `Ready` has to come first; alone it waits no longer than its limit."""
    going_on.stepper.run(100)
    assert going_on.worker.reports == []
    going_on.worker.ready()
    if is_met:
        going_on.peer_up(SIBLING)
        going_on.stepper.settle()
        going_on.hear(SIBLING, KnownSourcesSent())
        going_on.hear(SIBLING, PortalHello(SIBLING, 1, 0, 0))
        going_on.stepper.run(200)
    else:
        going_on.stepper.run(3000)
        assert going_on.worker.reports == []
    going_on.stepper.run(GOES_ON_NS // ms(1))
    assert going_on.worker.reports == [ForwardsAgain()]


def test_a_portal_that_goes_on_joins_what_it_had_before_it_forwards(going_on: GoesOn) -> None:
    going_on.peer_up(SIBLING)
    going_on.stepper.settle()
    going_on.link.takes_ns = ACT_NS
    going_on.hear(SIBLING, KnownSource(KNOWN_HERE))
    going_on.hear(SIBLING, KnownSourcesSent())
    going_on.stepper.settle()
    assert going_on.forwarded == [(KNOWN_HERE.handle, (SIBLING,))]


def test_a_portal_that_goes_on_waits_no_longer_than_its_limit(going_on: GoesOn) -> None:
    began_ns = going_on.now_ns
    going_on.peer_up(SIBLING)
    going_on.peer_up(THIRD)
    going_on.hear(SIBLING, KnownSourcesSent())
    going_on.stepper.run(KNOWN_NS // ms(1) - 10)
    assert going_on.forwards == []
    going_on.stepper.run(20)
    assert going_on.forwards == [began_ns + KNOWN_NS]


def test_a_portal_that_goes_on_does_not_wait_for_a_sibling_that_is_down(going_on: GoesOn) -> None:
    going_on.peer_up(SIBLING)
    going_on.peer_up(THIRD)
    going_on.hear(SIBLING, KnownSourcesSent())
    going_on.stepper.settle()
    del going_on.worker.peers[THIRD]
    going_on.worker.told["on_peer_down"](PeerDown(THIRD, 1))
    going_on.stepper.settle()
    assert len(going_on.forwards) == 1


def test_a_portal_that_went_on_forwards_before_it_meets_anybody(stepper: Stepper, tmp_path: Path) -> None:
    """Its siblings may have died with it, and know nothing."""
    folder = tmp_path / "kept"
    folder.mkdir()
    kept = Kept(HeldSockets(), folder=folder)
    before = KeptSources(kept, needs_join_info=True)
    before.keep(KNOWN_HERE, (SIBLING, THIRD))
    before.keep(replace(KNOWN_HERE, handle=8, otid=bytes(32)), (THIRD,))
    before.forget(8)
    alone = Alone(stepper, tmp_path, goes_on=True, kept=kept)
    (entry,) = alone.shell.entries.values()
    assert (entry.handle, entry.egress) == (KNOWN_HERE.handle, (SIBLING, THIRD))
    alone.peer_up(SIBLING)
    alone.stepper.settle()
    assert (SIBLING, KnownProxy(replace(KNOWN_HERE, join_info=b""))) in alone.sent()
    alone.stepper.run(2 * REJOIN_HOLD_NS // ms(1))
    assert entry.egress == (SIBLING,), "nobody has come up in the place of the other"


def test_siblings_learn_that_the_portal_knows_its_domain_when_little_more_comes(alone: Alone) -> None:
    alone.joined()
    alone.stepper.run(3 * CHECK_NS // ms(1))
    assert alone.sent() == [], "the sibling may know of more"
    alone.hear(SIBLING, InitialStateSent())
    for n in range(3):
        alone.link.say(InterestGained((b"%d" % n, PATTERN_NONE)))
        alone.stepper.run(CHECK_NS // ms(1))
        assert (SIBLING, StateConfirmed()) not in alone.sent()
    alone.stepper.run(CHECK_NS // ms(1))
    assert alone.sent() == []
    alone.stepper.run(CHECK_NS // ms(1))
    assert alone.sent() == [(SIBLING, StateConfirmed())]
    alone.stepper.run(3 * CHECK_NS // ms(1))
    assert alone.sent() == [], "once"


def test_what_concerns_many_topics_is_carried_out_in_slices(alone: Alone) -> None:
    alone.joined()
    for n in range(200):
        alone.hear(SIBLING, InterestAdded(b"%d" % n, PATTERN_NONE, THERE))
    alone.stepper.settle()
    alone.effects()
    acts: list[int] = []
    send_pending = alone.link.send_pending

    def count(now_ns: int) -> None:
        acts.append(len(alone.link.effects))
        send_pending(now_ns)

    alone.link.send_pending = count  # type: ignore[method-assign]
    alone.hear(MANAGER, RouteTable(8, ()))
    alone.stepper.run((HELD_NS + LONGER_NS) // ms(1) + 10)
    assert len(alone.effects()) == 200
    first, *others = [after - before for before, after in pairwise(acts) if after > before]
    assert (first, max(others)) == (AT_ONCE, STEP)


def test_a_sibling_that_is_down_feeds_nothing_and_is_remembered_for_three_seconds(alone: Alone) -> None:
    alone.joined()
    alone.hear(SIBLING, InterestAdded(b"AAA", PATTERN_NONE, THERE))
    alone.stepper.settle()
    assert alone.effects() == [OpenProxyReceiver(b"AAA", PATTERN_NONE, (THERE,))]
    alone.stepper.run(100)
    alone.handed(2, is_taken=False)
    alone.worker.told["on_peer_down"](PeerDown(SIBLING, 1))
    held_until_ns = alone.now_ns + REJOIN_HOLD_NS
    assert alone.core.next_deadline() == held_until_ns == alone.now_ns + s(3)
    alone.stepper.settle()
    with pytest.raises(ValueError, match="released"):
        bytes(alone.worker.rings[0].queues)
    page = alone.worker.counters
    assert page[Slot.FORWARDED] == page[Slot.DROPPED_DELETED] == 2, "what it had announced is read to the end"
    alone.handed(2)
    assert page[Slot.FORWARDED] == 2
    alone.stepper.run(REJOIN_HOLD_NS // ms(1) - 10)
    assert alone.effects() == []
    alone.stepper.run(10)
    assert alone.effects() == [CloseProxyReceiver(b"AAA", PATTERN_NONE, (THERE,))]


def test_a_sibling_that_is_removed_is_forgotten_at_once(alone: Alone) -> None:
    alone.joined()
    alone.hear(SIBLING, InterestAdded(b"AAA", PATTERN_NONE, THERE))
    alone.stepper.settle()
    alone.effects()
    alone.worker.told["on_peer_down"](PeerDown(SIBLING, 1))
    alone.worker.told["on_peer_removed"](PeerRemoved(SIBLING, 1))
    assert alone.effects() == [CloseProxyReceiver(b"AAA", PATTERN_NONE, (THERE,))]


def test_fragments_that_were_on_the_way_to_a_dead_worker_are_counted_and_told(
    alone: Alone, caplog: pytest.LogCaptureFixture
) -> None:
    alone.joined()
    for _ in range(2):  # the second time there is nothing new
        alone.hear(SIBLING, PortalHello(SIBLING, 1, 6, 600))
        alone.hear(SIBLING, KnownProxiesSent())
        alone.stepper.settle()
    page = alone.worker.counters
    assert (page[Slot.DROPPED_RESTART], page[Slot.DROPPED_RESTART_BYTES]) == (6, 600)
    assert logged(caplog) == [("INFO", LogEvent.FRAGMENTS_LOST, {"sibling": "P2", "fragments": 6})]


def test_what_is_announced_to_a_sibling_that_is_down_waits_for_three_seconds(alone: Alone) -> None:
    alone.joined()
    alone.link.hear(b"AAA", 3)
    alone.hear(SIBLING, ForwardStart(HANDLE))
    alone.stepper.settle()
    for incarnation, down_ns, expired in ((2, REJOIN_HOLD_NS // 2, 0), (3, 2 * REJOIN_HOLD_NS, 2)):
        alone.worker.told["on_peer_down"](PeerDown(SIBLING, incarnation - 1))
        alone.link.receive(data(3, incarnation, b"x"))
        alone.stepper.run(down_ns // ms(1))
        announced = alone.announced()
        alone.sent()
        alone.peer_up(SIBLING, incarnation=incarnation)
        ((_, hello),) = [said for said in alone.sent() if isinstance(said[1], PortalHello)]
        assert isinstance(hello, PortalHello)
        assert (hello.announced, hello.expired) == (announced, expired)
        alone.hear(SIBLING, ForwardStart(HANDLE))
        alone.stepper.settle()
    assert announced == 2
    alone.worker.told["on_peer_down"](PeerDown(SIBLING, 3))
    alone.stepper.run(2 * REJOIN_HOLD_NS // ms(1))
    alone.link.receive(data(3, 4, b"x"))
    assert alone.announced() == 2, "nobody waits for it any more"


@pytest.mark.parametrize("is_heard", [True, False])
def test_what_was_announced_meanwhile_is_read_when_somebody_hears_it(alone: Alone, is_heard: bool) -> None:
    """After two seconds at the latest; what had expired is dropped before."""
    alone.link.can_deliver = lambda now_ns: False  # type: ignore[method-assign]
    alone.joined()
    page = alone.worker.counters
    alone.hear(SIBLING, PortalHello(SIBLING, 1, 5, 65, 2, 1))
    alone.handed(2, is_taken=False)
    alone.handed(3, is_taken=False)
    alone.hear(SIBLING, KnownProxy(SEEN))
    alone.hear(SIBLING, KnownProxiesSent())
    alone.stepper.settle()
    alone.stepper.run(500)
    assert (page[Slot.DROPPED_RESTART], page[Slot.FORWARDED], page[Slot.SENT]) == (2, 2, 0)
    if is_heard:
        alone.link.can_deliver = lambda now_ns: True  # type: ignore[method-assign]
        alone.stepper.run(LOOK_NS // ms(1))
    else:
        alone.stepper.run((DELIVER_NS - ms(600)) // ms(1))
        assert page[Slot.FORWARDED] == 2
        alone.stepper.run(200)
    assert (page[Slot.DROPPED_RESTART], page[Slot.FORWARDED], page[Slot.DROPPED_DELETED]) == (2, 5, 0)


def test_what_a_worker_says_that_nobody_told_of_is_ignored(alone: Alone) -> None:
    alone.joined()
    alone.hear(THIRD, InterestAdded(b"AAA", PATTERN_NONE, THERE))
    alone.stepper.settle()
    assert (alone.effects(), alone.core.siblings.symbols) == ([], set())


def test_routes_reach_the_core_and_the_link(alone: Alone) -> None:
    alone.joined()
    assert (alone.core.routes.version, alone.link.reachable) == (7, {THERE})
    alone.hear(
        MANAGER, RouteTable(8, (*ROUTES.routes, Route((30,), THERE, THIRD, SIBLING), Route((HERE,), 30, ME, THIRD)))
    )
    assert (alone.core.routes.version, alone.link.reachable) == (8, {THERE, 30})


# own sources


def test_a_source_is_told_of_when_it_comes_changes_and_goes(alone: Alone) -> None:
    alone.joined()
    source = alone.link.hear(b"AAA", 3)
    entry = alone.shell.entries[HANDLE]
    assert (source.user, entry.source, entry.handle, alone.sent()) == (entry, source, HANDLE, [])
    alone.stepper.settle()
    first = SourceSeen(HANDLE, OTID, b"AAA", 99, 0, 1, b"")
    assert alone.sent() == [(SIBLING, first)]
    alone.shell.change_source(source, 1, 5, b"\x01")
    assert alone.sent() == []
    alone.stepper.settle()
    assert alone.sent() == [(SIBLING, SourceSeen(HANDLE, OTID, b"AAA", 99, 1, 5, b"\x01"))]
    alone.shell.remove_source(source)
    assert (source.user, alone.shell.entries, alone.sent()) == (None, {}, [])
    alone.stepper.settle()
    assert alone.sent() == [(SIBLING, SourceGone(HANDLE))]
    alone.shell.change_source(source, 2, 6, b"")
    alone.shell.remove_source(source)
    alone.stepper.settle()
    assert alone.sent() == []


def test_siblings_get_the_fragments_of_a_source_from_when_they_ask_to_when_they_do_no_more(alone: Alone) -> None:
    alone.joined()
    alone.link.hear(b"AAA", 3)
    counts: list[int] = []
    for message in (ForwardStart(HANDLE), ForwardStop(HANDLE), ForwardStart(HANDLE + 9)):
        alone.hear(SIBLING, message)
        alone.stepper.settle()
        alone.link.receive(data(3, len(counts), b"x"))
        counts.append(alone.announced())
    assert counts == [1, 1, 1]


# what is to be done


def test_interest_and_sources_are_worked_off_in_one_turn(alone: Alone) -> None:
    alone.joined()
    alone.link.pending.clear()
    for topic in (b"AAA", b"BBB"):
        alone.link.say(InterestGained((topic, PATTERN_NONE)))
    alone.hear(SIBLING, SEEN)
    alone.stepper.settle()
    told = [ForwardStart(5), InterestAdded(b"AAA", PATTERN_NONE, HERE), InterestAdded(b"BBB", PATTERN_NONE, HERE)]
    assert alone.sent() == [(SIBLING, message) for message in told]
    assert alone.effects() == [OpenProxySource(SIBLING, SEEN)]
    assert alone.link.pending == [alone.now_ns] * 2, "once for all that came in the turn, once for what was confirmed"
    alone.link.say(InterestGained((b"CCC", PATTERN_NONE)))
    alone.stepper.settle()
    assert alone.sent() == [(SIBLING, InterestAdded(b"CCC", PATTERN_NONE, HERE))]


def test_a_failure_while_it_acts_does_not_stop_it_from_acting_later(alone: Alone) -> None:
    alone.joined()
    alone.link.say(InterestGained((b"AAA", PATTERN_NONE)))
    perform = alone.link.perform

    def fail(effect: ProxyEffect, now_ns: int) -> None:
        raise ZeroDivisionError

    alone.link.perform = fail  # type: ignore[method-assign]
    alone.stepper.settle()
    alone.sent()
    alone.hear(SIBLING, SEEN)
    with pytest.raises(ZeroDivisionError):
        alone.stepper.settle()
    alone.link.perform = perform  # type: ignore[method-assign]
    alone.link.say(InterestGained((b"BBB", PATTERN_NONE)))
    alone.stepper.settle()
    assert alone.sent() == [(SIBLING, ForwardStart(5)), (SIBLING, InterestAdded(b"BBB", PATTERN_NONE, HERE))]

    alone.stepper.settle()
    assert (alone.sent(), alone.shell.engine.is_behind) == ([], False)


def test_a_proxy_source_is_advertised_when_its_feeder_has_been_asked_and_has_confirmed(alone: Alone) -> None:
    """Wait for the confirmation: who hears of it may send at once, and the feeder might not forward that yet."""
    alone.joined()
    alone.link.say(InterestGained((SEEN.topic, PATTERN_NONE)))
    alone.stepper.settle()
    on_ctl = alone.worker.channels.on_ctl
    kept: list[tuple[int, bytes]] = []
    alone.hear(SIBLING, SEEN)
    alone.worker.channels.on_ctl = lambda worker, frame: kept.append((worker, frame))
    alone.stepper.settle()
    assert ForwardStart(SEEN.handle) in [message for _, message in alone.sent()]
    assert (len(alone.effects()), alone.link.advertised) == (1, [])
    alone.worker.channels.on_ctl = on_ctl
    for worker, frame in kept:
        on_ctl(worker, frame)
    alone.stepper.settle()
    assert alone.link.advertised == [SEEN.otid]


def slow_sources(alone: Alone, count: int) -> list[SourceSeen]:
    """So many sources are wanted and offered; from now on each effect takes all the time that a turn may."""
    sources = [replace(SEEN, handle=5 + i, topic=b"T%d" % i, otid=bytes([i]) * 32) for i in range(count)]
    for source in sources:
        alone.link.say(InterestGained((source.topic, PATTERN_NONE)))
    alone.stepper.settle()
    alone.effects()
    alone.link.takes_ns = ACT_NS
    for source in sources:
        alone.hear(SIBLING, source)
    return sources


def test_what_takes_longer_than_a_turn_may_is_carried_out_in_the_next_in_order(alone: Alone) -> None:
    alone.joined()
    sources = slow_sources(alone, 3)
    done = []
    for _ in range(100):
        alone.stepper.loop.run_once(0)
        done.append(alone.effects())
    assert [opened for opened in done if opened] == [[OpenProxySource(SIBLING, source)] for source in sources]


def test_what_was_left_by_a_failure_is_carried_out_in_the_next_turn(alone: Alone) -> None:
    alone.joined()
    sources = slow_sources(alone, 3)
    perform = alone.link.perform
    failed: list[ProxyEffect] = []

    def fail_once(effect: ProxyEffect, now_ns: int) -> None:
        if not failed:
            failed.append(effect)
            raise ZeroDivisionError
        perform(effect, now_ns)

    alone.link.perform = fail_once  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        alone.stepper.settle()
    alone.stepper.settle()
    assert alone.effects() == [OpenProxySource(SIBLING, source) for source in sources[1:]]


def test_the_time_before_it_acts_is_not_taken_from_it(alone: Alone) -> None:
    """What was due may have taken long."""
    alone.joined()
    slow_sources(alone, 3)
    alone.link.takes_ns = 1

    def on_timer(now_ns: int) -> None:
        alone.link.deadline = None
        alone.stepper.clock.time_ns += 2 * ACT_NS

    alone.link.on_timer = on_timer  # type: ignore[method-assign]
    alone.link.deadline = alone.now_ns
    alone.stepper.loop.run_once(0)
    assert (len(alone.effects()), alone.shell.engine.is_behind) == (3, False)


def test_no_interest_is_passed_on_while_effects_wait(alone: Alone) -> None:
    alone.joined()
    slow_sources(alone, 3)
    alone.link.say(InterestGained((b"ABC", PATTERN_NONE)))
    for performed in (1, 2):
        alone.stepper.loop.run_once(0)
        assert (len(alone.link.effects), len(alone.core.recorded.domains)) == (performed, 3)
    alone.stepper.settle()
    assert len(alone.core.recorded.domains) == 4


def test_the_core_does_nothing_that_is_due_while_effects_wait(alone: Alone) -> None:
    alone.joined()
    sources = slow_sources(alone, 8)
    alone.stepper.settle()
    for source in sources[:4]:
        alone.hear(SIBLING, SourceGone(source.handle))
    alone.stepper.settle()
    alone.stepper.clock.time_ns += ms(200)
    for source in sources[4:]:
        alone.hear(SIBLING, replace(source, cost=9))
    alone.shell.engine.act()
    turns = 0
    while alone.shell.engine.is_behind:
        assert len(alone.core.proxies) == 8, "the deletion of four is due"
        alone.stepper.loop.run_once(0)
        turns += 1
    assert turns
    alone.stepper.settle()
    assert alone.effects()[-4:] == [CloseProxySource(source.otid) for source in sources[:4]]


def test_long_decisions_wait_for_what_the_ones_before_led_to(alone: Alone) -> None:
    alone.joined()
    for n in range(200):
        alone.hear(SIBLING, InterestAdded(b"%d" % n, PATTERN_NONE, THERE))
    alone.stepper.settle()
    alone.effects()
    alone.link.takes_ns = ACT_NS
    alone.hear(MANAGER, RouteTable(8, ()))
    alone.stepper.settle()
    alone.stepper.clock.time_ns += HELD_NS + LONGER_NS
    waiting = 0
    while len(alone.link.effects) < 200:
        alone.stepper.loop.run_once(0)
        waiting = max(waiting, len(alone.shell.engine._effects))
    assert waiting <= AT_ONCE


def test_known_sources_that_have_still_to_be_joined_keep_their_handles(alone: Alone) -> None:
    alone.joined()
    alone.hear(SIBLING, InitialStateSent())
    alone.stepper.run((2 * CHECK_NS - ms(10)) // ms(1))
    alone.stepper.clock.time_ns += ms(10)
    alone.link.takes_ns = ACT_NS
    for n in range(2):
        alone.hear(SIBLING, InterestAdded(b"%d" % n, PATTERN_NONE, THERE))
    alone.hear(SIBLING, KnownSource(replace(SEEN, handle=77, domain_id=99)))
    alone.shell.engine.act()
    assert alone.shell.engine.is_behind
    alone.stepper.settle()
    assert (SIBLING, StateConfirmed()) in alone.sent()
    assert {*alone.shell.entries} == {77}
    assert alone.shell.entries[77].egress == (SIBLING,)


def test_a_link_with_more_to_do_than_a_turn_may_take_goes_on_in_the_next(
    alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone.joined()
    loop = alone.stepper.loop
    left = 3

    def on_timer(now_ns: int) -> None:
        nonlocal left
        left -= 1
        alone.link.deadline = now_ns if left else None

    monkeypatch.setattr(alone.link, "on_timer", on_timer)
    alone.link.deadline = alone.now_ns
    alone.shell.engine.act()
    for count in (2, 1, 0):
        assert loop.run_once(0)
        assert left == count
    assert loop.next_deadline() == alone.now_ns + GAUGES_NS


def test_the_deadlines_of_core_and_link_are_kept_as_they_are_then(alone: Alone) -> None:
    alone.joined()
    loop, begin_ns = alone.stepper.loop, alone.now_ns
    assert loop.next_deadline() == begin_ns + GAUGES_NS
    alone.link.deadline = begin_ns + ms(50)
    alone.shell.engine.act()
    alone.shell.engine.act()
    assert loop.next_deadline() == begin_ns + ms(50)
    alone.link.deadline = begin_ns + ms(90)  # the first one is past, nothing is done for it
    alone.shell.engine.act()
    assert loop.next_deadline() == begin_ns + ms(90)
    alone.stepper.run(200)
    assert alone.link.timers == [begin_ns + ms(90)]
    alone.worker.told["on_peer_down"](PeerDown(SIBLING, 1))
    alone.stepper.run(int(REJOIN_HOLD_NS // ms(1)))
    assert alone.core.next_deadline() is None
    alone.link.deadline = alone.now_ns + ms(10)
    alone.shell.engine.act()
    alone.link.deadline = None
    alone.shell.engine.act()
    alone.stepper.run(100)
    assert len(alone.link.timers) == 1


@pytest.mark.parametrize(
    ("offers", "line"),
    [
        ([SourceSeen(5, OTID, b"A\xff", THERE, 255, 1, b"")], (LogEvent.SOURCE_HOPS, {"topic": "A\ufffd"})),
        (
            [SEEN, SourceSeen(6, OTID, b"BBB", THERE, 0, 1, b"")],
            (LogEvent.SOURCE_OTHER_TOPIC, {"otid": OTID.hex(), "topic": "BBB"}),
        ),
    ],
)
def test_offers_that_cannot_be_used_are_told(
    alone: Alone, caplog: pytest.LogCaptureFixture, offers: list[SourceSeen], line: tuple[LogEvent, dict[str, object]]
) -> None:
    alone.joined()
    for seen in offers:
        alone.hear(SIBLING, seen)
    alone.stepper.settle()
    assert logged(caplog) == [("WARNING", *line)]


def test_interest_without_a_name_is_told_cut_short(alone: Alone, caplog: pytest.LogCaptureFixture) -> None:
    alone.link.say(InterestGained((b"a\0" + b"b" * 100, PATTERN_NONE)))
    alone.stepper.settle()
    assert logged(caplog) == [("WARNING", LogEvent.INTEREST_WITHOUT_NAME, {"symbol": b"a\0" + b"b" * 78})]


def test_a_pattern_beyond_the_most_that_are_taken_is_told(alone: Alone, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(PATTERNS_MAX + 2):
        alone.link.say(InterestGained((b"%d" % number, PATTERN_PCRE)))
    alone.stepper.settle()
    remedy = "let receivers share fewer patterns; see which there are with tnwgdctl interest"
    told = ("WARNING", LogEvent.PATTERN_WAITS, {"symbol": b"%d" % PATTERNS_MAX, "remedy": remedy})
    assert told in logged(caplog)


# gauges, the ring, the end


def test_gauges_are_shown_twice_a_second_until_it_stops(alone: Alone) -> None:
    alone.joined()
    wanted = [(b"T", PATTERN_NONE), (b"P1", PATTERN_PCRE), (b"P2", PATTERN_PCRE), (b"R", PATTERN_REGEX)]
    for symbol in wanted:
        alone.hear(SIBLING, InterestAdded(*symbol, THERE))
    page = alone.worker.counters
    gauges = [Slot.PROXY_RECEIVERS, Slot.RECEIVER_TOPICS, Slot.RECEIVER_PCRE, Slot.RECEIVER_REGEX]
    alone.stepper.run(490)
    assert ([page[slot] for slot in gauges], alone.link.refreshed) == ([0, 0, 0, 0], 0)
    alone.stepper.run(10)
    assert ([page[slot] for slot in gauges], alone.link.refreshed) == ([4, 1, 2, 1], 1)
    alone.stepper.run(1000)
    assert alone.link.refreshed == 3
    alone.worker.told["on_stop"]()
    alone.stepper.run(1000)
    assert alone.link.refreshed == 4, "the last one was due already"


def test_the_ring_and_the_queue_have_the_configured_size(alone: Alone, tmp_path: Path) -> None:
    assert (tmp_path / "P1.ring").stat().st_size == RING_MAX_BYTES + DATA_AT
    assert alone.worker.counters[Slot.QUEUE_LIMIT] == 1000


def test_what_an_earlier_incarnation_had_queued_is_lost_with_it(stepper: Stepper, tmp_path: Path) -> None:
    worker = FakeWorker(stepper.loop, tmp_path, ME, "P1")
    worker.counters.set(worker.counters.pair(SIBLING) + PairSlot.QUEUED, 3)
    core = PortalCore(ME, 1, HERE, source_deletion_delay_ns=0, matcher=lambda pattern, kind: None)
    PortalShell(worker.ctx, core, 1000)
    assert worker.counters[Slot.DROPPED_RESTART] == 3


def test_it_ends_when_the_link_has_had_its_time(alone: Alone) -> None:
    alone.joined()
    alone.worker.told["on_peer_down"](PeerDown(SIBLING, 1))
    alone.link.stops_ns, alone.link.deadline = ms(300), alone.now_ns + ms(600)
    alone.worker.told["on_stop"]()
    alone.shell.engine.act()
    alone.stepper.run(290)
    assert (alone.link.is_closed, alone.worker.ends) == (False, [])
    alone.stepper.run(10)
    assert (alone.link.is_closed, alone.worker.ends) == (True, ["finish"])


def test_a_portal_that_stops_opens_nothing_that_it_does_not_close(alone: Alone) -> None:
    """What is opened behind the end of all others would never be advertised as ended."""
    alone.joined()
    sources = slow_sources(alone, 3)
    alone.stepper.loop.run_once(0)
    alone.link.stops_ns = s(2)
    alone.worker.told["on_stop"]()
    opened: list[ProxyEffect] = [OpenProxySource(SIBLING, source) for source in sources]
    assert alone.link.performed_at_stop == opened
    alone.hear(SIBLING, InterestAdded(b"BBB", PATTERN_NONE, THERE))
    for topic in (b"T1", b"BBB"):
        alone.link.say(InterestGained((topic, PATTERN_NONE)))
        alone.hear(SIBLING, replace(SEEN, handle=9, topic=topic, otid=topic.ljust(32)))
    alone.stepper.run(1900)
    assert alone.effects() == opened


def test_a_portal_that_stops_sets_no_timers(alone: Alone) -> None:
    alone.link.stops_ns = s(60)
    alone.worker.told["on_stop"]()
    alone.link.deadline = alone.now_ns + ms(10)
    alone.shell.engine.act()
    alone.stepper.run(1000)
    assert alone.link.timers == []


# drains


class Held:
    """Receivers have what was sent after some time, and may read on."""

    is_read_on = True

    def __init__(self, until_ns: int) -> None:
        self.until_ns = until_ns

    def is_over(self, now_ns: int) -> bool:
        return now_ns >= self.until_ns


def test_a_drain_of_the_portal_from_the_order_to_the_answer(alone: Alone, caplog: pytest.LogCaptureFixture) -> None:
    alone.joined()
    alone.peer_up(MANAGER, Role.ROUTE_MANAGER)
    alone.link.say(InterestGained((b"AAA", PATTERN_NONE)))
    alone.hear(SIBLING, SEEN)
    alone.hear(SIBLING, InterestAdded(b"BBB", PATTERN_NONE, THERE))
    own = alone.link.hear(b"BBB", 3)
    alone.stepper.settle()
    alone.hear(SIBLING, ForwardStart(HANDLE))
    alone.stepper.settle()
    alone.handed(2)
    assert [(sqn, payload) for _, sqn, payload in alone.link.sender.sent] == [(0, b"x"), (1, b"x")]
    alone.link.receive(data(3, 0, b"x"))
    alone.sent()
    alone.effects()
    alone.link.say(InterestGained((b"CCC", PATTERN_NONE)))
    assert not alone.shell.drain.is_draining

    alone.worker.told["on_drain"](5000)
    assert alone.shell.drain.is_draining
    assert logged(caplog) == [("INFO", LogEvent.DRAIN_BEGINS, {"limit_ms": 5000})]
    assert alone.sent() == [(SIBLING, InterestAdded(b"CCC", PATTERN_NONE, HERE)), (SIBLING, Withdraw())]
    alone.link.receive(data(3, 1, b"x"))
    assert alone.announced() == 2, "fragments on their way are still handed over"
    alone.stepper.run(QUIET_TICKS * 20)
    assert alone.sent() == []
    alone.stepper.run(40)
    assert alone.sent() == [(SIBLING, HandoverEnded(2))]
    assert alone.effects() == [CloseProxyReceiver(b"BBB", PATTERN_NONE, (THERE,))]
    alone.hear(SIBLING, HandoverAcked())
    alone.stepper.run(20)
    assert alone.sent() == [(SIBLING, SourceGone(HANDLE))]
    alone.link.held = Held(alone.now_ns + s(1))
    alone.hear(SIBLING, ForwardingStopped(2))
    alone.stepper.run(1080)
    assert alone.effects() == []
    alone.stepper.run(20)
    assert alone.effects() == [CloseProxySource(OTID)], "the deletion delay after receivers had all of it"
    alone.stepper.run(500)
    assert (alone.worker.answers, alone.shell.drain.is_over, alone.sent()) == ([], False, [])
    alone.link.finals = 0
    alone.stepper.run(20)
    assert (alone.worker.answers, alone.shell.drain.is_over) == ([""], True)
    assert (alone.sent(), alone.link.reachable) == ([(MANAGER, PortalGone(ME))], set())
    assert logged(caplog) == [("INFO", LogEvent.DRAIN_OVER, {})]

    alone.shell.report_up()
    alone.shell.remove_source(own)
    alone.hear(MANAGER, RouteTable(8, ()))
    alone.stepper.run(HELD_NS // ms(1) + 1000)
    assert (alone.sent(), alone.worker.answers) == ([], [""])
    assert (alone.effects(), alone.link.reachable) == ([], set()), "the table without it changes nothing"
    alone.worker.told["on_drain"](5000)
    assert alone.worker.answers == ["", ""]
    assert logged(caplog) == [("INFO", LogEvent.DRAIN_OVER, {})]
    assert alone.sent() == [], "the route manager knows"


def test_a_drain_that_comes_to_its_limit_says_what_it_waits_for_and_may_be_ordered_again(
    alone: Alone, caplog: pytest.LogCaptureFixture
) -> None:
    alone.joined()
    alone.worker.told["on_drain"](100)
    alone.stepper.run(90)
    assert alone.worker.answers == []
    alone.stepper.run(10)
    why = "it still waited for P2 to stop forwarding; P2 to send and repair what was handed over"
    assert alone.worker.answers == [why]
    assert logged(caplog)[1:] == [("WARNING", LogEvent.DRAIN_AT_LIMIT, {"waiting": why})]
    alone.worker.told["on_drain"](200)
    assert logged(caplog) == []
    alone.stepper.run(200)
    assert alone.worker.answers == [why, why]
    alone.worker.told["on_peer_down"](PeerDown(SIBLING, 1))
    alone.worker.told["on_drain"](200)
    assert alone.worker.answers == [why, why, ""]


def test_a_sibling_that_is_drained_is_helped(alone: Alone) -> None:
    alone.joined()
    alone.link.hear(b"AAA", 3)
    alone.hear(SIBLING, ForwardStart(HANDLE))
    alone.stepper.settle()
    alone.link.receive(data(3, 0, b"x"))
    alone.sent()
    alone.hear(SIBLING, Withdraw())
    alone.stepper.settle()
    assert alone.stepper.loop.next_deadline() == alone.now_ns + TICK_NS
    alone.stepper.run((QUIET_TICKS + 2) * 20)
    assert alone.sent() == [(SIBLING, ForwardingStopped(1))]
    alone.link.receive(data(3, 1, b"x"))
    assert alone.announced() == 1
    assert alone.stepper.loop.next_deadline() == alone.now_ns + GAUGES_NS - (QUIET_TICKS + 2) * TICK_NS, "no tick"
    alone.link.held = Held(alone.now_ns + ms(100))
    alone.hear(SIBLING, HandoverEnded(0))
    alone.stepper.run(80)
    assert alone.sent() == []
    alone.stepper.run(100)
    assert alone.sent() == [(SIBLING, HandoverAcked())]


def test_a_message_before_the_withdrawal_of_a_sibling_comes_before_it(alone: Alone) -> None:
    """A source that it asked for is handed over to the end."""
    alone.joined()
    alone.link.hear(b"AAA", 3)
    alone.hear(SIBLING, ForwardStart(HANDLE))
    alone.hear(SIBLING, Withdraw())
    alone.link.receive(data(3, 0, b"x"))
    assert alone.announced() == 1
    assert [*alone.shell.entries[HANDLE].closing] == [SIBLING]


@pytest.mark.parametrize("is_drained", [True, False])
def test_what_siblings_asked_for_before_a_drain_is_done_before_it(alone: Alone, is_drained: bool) -> None:
    """Behind the count that ends a handover nothing more is handed over."""
    alone.joined()
    alone.link.hear(b"AAA", 3)
    alone.stepper.settle()
    alone.link.takes_ns = ACT_NS
    alone.hear(SIBLING, InterestAdded(b"BBB", PATTERN_NONE, THERE))
    alone.hear(SIBLING, InterestAdded(b"CCC", PATTERN_NONE, THERE))
    alone.hear(SIBLING, ForwardStart(HANDLE))
    if is_drained:
        alone.worker.told["on_drain"](60_000)
    else:
        alone.hear(SIBLING, Withdraw())
    assert [*alone.shell.entries[HANDLE].closing] == [SIBLING]


def test_a_change_of_forwarding_that_waits_reopens_no_handover(alone: Alone, tmp_path: Path) -> None:
    FakeWorker(alone.stepper.loop, tmp_path, THIRD, "P3").create_ring(1 << 16)
    alone.joined()
    alone.peer_up(THIRD)
    alone.link.hear(b"AAA", 3)
    for worker in (SIBLING, THIRD):
        alone.hear(worker, ForwardStart(HANDLE))
    alone.hear(SIBLING, Withdraw())
    alone.stepper.settle()
    alone.sent()
    entry = alone.shell.entries[HANDLE]
    alone.stepper.run((QUIET_TICKS + 1) * 20)
    assert [*entry.closing] == [SIBLING]
    alone.link.takes_ns = ACT_NS
    for n in range(9):
        alone.hear(SIBLING, InterestAdded(b"%d" % n, PATTERN_NONE, THERE))
        if n == 4:
            alone.hear(THIRD, ForwardStop(HANDLE))
    alone.stepper.loop.run_once(0)
    assert alone.shell.engine.is_behind
    alone.stepper.clock.time_ns += TICK_NS
    for _ in range(20):
        alone.stepper.loop.run_once(0)
        assert SIBLING not in entry.egress
    assert (SIBLING, ForwardingStopped(0)) in alone.sent()


def test_a_drain_is_over_when_all_proxy_sources_are_closed(alone: Alone) -> None:
    alone.joined()
    count = AT_ONCE + 2 * STEP
    slow_sources(alone, count)
    alone.stepper.settle()
    assert len(alone.effects()) == count
    alone.worker.told["on_drain"](60_000)
    alone.hear(SIBLING, HandoverAcked())
    alone.hear(SIBLING, ForwardingStopped(0))
    closed = 0
    while not alone.worker.answers:
        alone.stepper.clock.time_ns += TICK_NS
        alone.stepper.loop.run_once(0)
        closed += len(alone.effects())
        alone.link.finals = 0
    assert (alone.worker.answers, closed) == ([""], count)


def test_a_drained_sibling_that_is_down_is_forgotten(alone: Alone) -> None:
    alone.joined()
    alone.link.hear(b"AAA", 3)
    alone.hear(SIBLING, ForwardStart(HANDLE))
    alone.hear(SIBLING, Withdraw())
    alone.worker.told["on_peer_down"](PeerDown(SIBLING, 1))
    alone.stepper.run(20)
    assert alone.stepper.loop.next_deadline() == alone.now_ns + GAUGES_NS - TICK_NS


@pytest.mark.parametrize("is_drained", [True, False])
def test_a_portal_that_stops_drains_no_more(alone: Alone, is_drained: bool) -> None:
    """Neither itself nor a sibling."""
    alone.joined()
    if is_drained:
        alone.worker.told["on_drain"](100)
    else:
        alone.hear(SIBLING, Withdraw())
    alone.sent()
    alone.link.stops_ns = s(60)
    alone.worker.is_stopping = True
    alone.worker.told["on_stop"]()
    alone.hear(SIBLING, HandoverEnded(0))
    alone.stepper.run(GAUGES_NS // ms(1))
    deadline = alone.stepper.loop.next_deadline()
    assert deadline is not None
    assert deadline > alone.now_ns + TICK_NS
    assert (alone.sent(), alone.worker.answers) == ([], [])


def test_what_one_datagram_asks_for_is_passed_on_some_in_each_turn(alone: Alone) -> None:
    alone.joined()
    count = 3 * INTEREST_AT_ONCE
    for n in range(count):
        alone.link.say(InterestGained((b"%d" % n, PATTERN_NONE)))
    for turn in (1, 2, 3, 3):
        alone.stepper.loop.run_once(0)
        assert len(alone.core.recorded.domains) == turn * INTEREST_AT_ONCE
    alone.stepper.settle()
    assert len([m for _, m in alone.sent() if isinstance(m, InterestAdded)]) == count
