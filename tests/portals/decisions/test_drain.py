"""Portals of one DRO, one or two of them drained: nothing is lost, nobody waits for the dead, everything ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dro.clock import ms, s
from dro.proto.context.sources import BoundSource
from dro.wire.lbmr.packet import Tir
from dro.wire.source_string import TcpAddress
from portals.datapath.handover import QUIET_TICKS, ForwardEntry
from portals.decisions.core import PortalCore
from portals.decisions.drain import TICK_NS, DrainCore, DrainHelp
from portals.decisions.messages import ForwardingStopped, HandoverAcked, HandoverEnded, PortalMessage, Withdraw
from tests.fakes.transport import FakeTransport

ADDRESS = TcpAddress(0x7F000001, 14371, 1)
LIMIT = s(30)
LINGER = ms(300)


@dataclass
class FakeRest:
    until_ns: int
    is_read_on: bool

    def is_over(self, now_ns: int) -> bool:
        return now_ns >= self.until_ns


class Transport(FakeTransport):
    """The one session of a portal."""

    def __init__(self, portal: Portal) -> None:
        super().__init__(ADDRESS)
        self.portal = portal
        self.at = 1

    def is_whole(self, mark: int | None) -> bool:
        return self.portal.is_whole


@dataclass
class Portal:
    """One portal with one source that every sibling gets; data is on its way until `carry`."""

    index: int
    dro: Dro
    is_whole: bool = True
    linger_ns: int = LINGER
    is_read_on: bool = True
    finals_ns: int = ms(100)
    up: set[int] = field(default_factory=set)
    out: dict[int, int] = field(default_factory=dict)
    taken: dict[int, int] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    drain: DrainCore | None = None
    closed_ns: int | None = None
    proxies: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        transport = Transport(self)
        source: BoundSource[Any] = BoundSource(b"t", bytes(32), 1, transport, Tir(b"t", ADDRESS, 60, 1), False)
        self.entry = ForwardEntry(1, source)
        self.core = cast(PortalCore, self)  # it takes itself what its core would be told
        self.help = DrainHelp(self)

    # what happens

    def order(self, limit_ns: int = LIMIT, end_delay_ns: int = 0) -> None:
        if self.drain is None:
            self.drain = DrainCore(self, self.dro.now_ns + limit_ns, end_delay_ns=end_delay_ns)
        else:
            self.drain.on_again(self.dro.now_ns + limit_ns)

    def tick(self) -> None:
        self.help.on_tick(self.dro.now_ns)
        if self.drain is not None:
            self.drain.on_tick(self.dro.now_ns)

    def forward(self, worker: int, fragments: int) -> None:
        """Hand over, if the sibling still gets something: what lies before the edge, too."""
        if worker in self.entry.egress or worker in self.entry.closing:
            self.out[worker] = self.out.get(worker, 0) + fragments

    def carry(self, worker: int) -> None:
        """All that the sibling has handed over arrives and is sent."""
        self.taken[worker] = self.dro.portals[worker].out.get(self.index, 0)

    def hear(self, worker: int, message: PortalMessage) -> None:
        match message:
            case Withdraw():
                self.help.on_withdraw(worker)
            case HandoverEnded(fragments=fragments):
                self.help.on_handover_ended(worker, fragments)
            case ForwardingStopped(fragments=fragments):
                if self.drain is not None:
                    self.drain.on_forwarding_stopped(worker, fragments)
            case HandoverAcked():
                if self.drain is not None:
                    self.drain.on_handover_acked(worker)
            case _:
                raise AssertionError(message)

    def lose(self, worker: int) -> None:
        self.up.discard(worker)
        self.entry.want(tuple(w for w in self.entry.egress if w != worker))
        self.help.on_gone(worker)
        if self.drain is not None:
            self.drain.on_gone(worker)

    def forward_nothing_to(self, worker: int) -> None:
        assert worker not in self.entry.egress

    # what a drain sees

    def entries(self) -> Iterable[ForwardEntry]:
        return [self.entry]

    def send(self, worker: int, message: PortalMessage) -> None:
        if worker in self.up:
            self.dro.wire[self.index, worker].append(message)

    def name(self, worker: int) -> str:
        return f"P{worker}"

    def handed(self, worker: int) -> int:
        return self.out.get(worker, 0)

    def accounted(self, worker: int) -> int:
        return self.taken.get(worker, 0)

    def quiescence(self, worker: int | None, now_ns: int) -> FakeRest:
        self.calls.append(f"rest {worker or 'all'}")
        return FakeRest(now_ns + self.linger_ns, self.is_read_on)

    def on_forwarding_stopped(self, worker: int) -> None:
        self.calls.append(f"release {worker}")
        assert worker not in self.entry.closing
        self.entry.want(tuple(w for w in self.entry.egress if w != worker))

    @property
    def siblings(self) -> Portal:
        """Those that are up are here, too."""
        return self

    def withdraw(self) -> None:
        self.calls.append("withdraw")

    def close_receivers(self) -> None:
        self.calls.append("close receivers")
        assert not self.entry.egress
        assert not self.entry.closing

    def end_sources(self) -> None:
        self.calls.append("end sources")
        for worker in self.up:
            assert self.dro.portals[worker].accounted(self.index) == self.handed(worker), "all of it has been sent"

    def close_sources(self) -> None:
        self.calls.append("close sources")
        self.closed_ns = self.dro.now_ns
        for worker in self.up:
            assert self.accounted(worker) == self.dro.portals[worker].handed(self.index), "all of it has come"

    def finals_pending(self) -> int:
        return int(self.closed_ns is not None and self.dro.now_ns < self.closed_ns + self.finals_ns)

    def drained(self, waiting: str) -> None:
        self.answers.append(waiting)


class Dro:
    """Portals 1 to `count`; messages between two of them arrive in order, at some time."""

    def __init__(self, count: int = 3) -> None:
        self.now_ns = 0
        numbers = range(1, count + 1)
        self.wire: dict[tuple[int, int], list[PortalMessage]] = {(a, b): [] for a in numbers for b in numbers if a != b}
        self.portals = {n: Portal(n, self) for n in numbers}
        for n, portal in self.portals.items():
            portal.up = {m for m in numbers if m != n}
            portal.entry.want(tuple(portal.up))

    @property
    def living(self) -> list[Portal]:
        return [p for p in self.portals.values() if p.up or p.drain is not None]

    def deliver(self, sender: int, to: int) -> None:
        if self.wire[sender, to]:
            message = self.wire[sender, to].pop(0)
            if sender in self.portals[to].up:
                self.portals[to].hear(sender, message)

    def kill(self, worker: int) -> None:
        self.portals[worker].up.clear()
        for portal in self.portals.values():
            portal.lose(worker)
        for pair, waiting in self.wire.items():
            if worker in pair:
                waiting.clear()

    def pass_time(self, duration_ns: int) -> None:
        """Everything that is on its way arrives in each tick."""
        end_ns = self.now_ns + duration_ns
        while self.now_ns < end_ns:
            self.now_ns += TICK_NS
            for pair in self.wire:
                while self.wire[pair]:
                    self.deliver(*pair)
            for a, b in self.wire:
                if self.portals[a].up:
                    self.portals[a].carry(b)
            for portal in self.portals.values():
                if portal.up or portal.drain is not None:
                    portal.tick()


def test_a_drain_takes_its_steps_in_order() -> None:
    dro = Dro()
    drained, sibling = dro.portals[1], dro.portals[2]
    sibling.forward(1, 100)
    drained.forward(2, 50)
    drained.order(end_delay_ns=ms(60))
    assert drained.calls == ["withdraw"]
    dro.pass_time(s(2))
    assert drained.answers == [""]
    assert sorted(drained.calls) == ["close receivers", "close sources", "end sources", "rest all", "withdraw"]
    assert drained.calls.index("close receivers") < drained.calls.index("end sources")
    assert drained.calls.index("rest all") < drained.calls.index("close sources")
    assert sibling.calls == ["release 1", "rest 1"]
    assert drained.closed_ns is not None
    assert drained.closed_ns >= (QUIET_TICKS + 1) * TICK_NS + LINGER + ms(60)
    assert dro.portals[3].entry.egress == (2,)


def test_it_is_not_over_while_proxy_sources_are_being_closed() -> None:
    """Many are closed over several turns."""
    dro = Dro()
    drained = dro.portals[1]
    drained.proxies.add(bytes(32))
    drained.order()
    dro.pass_time(s(2))
    assert ("close sources" in drained.calls, drained.answers) == (True, [])
    assert drained.drain is not None
    assert drained.drain.waiting == "it still waited for final advertisements of 1 proxy sources"
    drained.proxies.clear()
    dro.pass_time(TICK_NS)
    assert drained.answers == [""]


def test_proxy_sources_stay_no_longer_when_nobody_reads_on() -> None:
    ends = []
    for is_read_on in (True, False):
        dro = Dro()
        dro.portals[1].is_read_on = is_read_on
        dro.portals[1].order(end_delay_ns=s(1))
        dro.pass_time(s(3))
        closed_ns = dro.portals[1].closed_ns
        assert closed_ns is not None
        ends.append(closed_ns)
    assert ends[0] - ends[1] == s(1)


def test_it_waits_for_repairs_of_what_siblings_forward() -> None:
    dro = Dro()
    dro.portals[2].is_whole = False
    dro.portals[1].order()
    dro.pass_time(s(5))
    assert "close sources" not in dro.portals[1].calls
    assert "end sources" in dro.portals[1].calls, "the other direction does not wait"
    dro.portals[2].forward(1, 1)
    dro.portals[2].is_whole = True
    dro.pass_time(s(2))
    assert dro.portals[1].answers == [""]


def test_it_waits_for_its_own_repairs() -> None:
    dro = Dro()
    drained = dro.portals[1]
    drained.is_whole = False
    drained.order()
    dro.pass_time(s(5))
    assert "close receivers" not in drained.calls
    assert "close sources" in drained.calls, "the other direction does not wait"
    drained.is_whole = True
    dro.pass_time(s(2))
    assert drained.answers == [""]


def test_a_sibling_that_cannot_send_is_waited_for_and_named_at_the_limit() -> None:
    dro = Dro(2)
    drained, sibling = dro.portals[1], dro.portals[2]
    drained.forward(2, 10)
    drained.order(limit_ns=s(3))
    sibling.carry = lambda worker: None  # type: ignore[method-assign]  # its queue does not move
    dro.pass_time(s(4))
    assert drained.answers == ["it still waited for P2 to send and repair what was handed over"]
    assert "end sources" not in drained.calls
    sibling.taken[1] = 10
    dro.pass_time(s(2))
    assert drained.answers == ["it still waited for P2 to send and repair what was handed over"], (
        "the order was answered"
    )
    assert drained.drain is not None
    assert drained.drain.is_over


def test_each_step_is_named_at_the_limit() -> None:
    dro = Dro(2)
    drained, sibling = dro.portals[1], dro.portals[2]
    drained.is_whole = sibling.is_whole = False
    drained.order(limit_ns=0)
    dro.pass_time(TICK_NS)
    assert drained.answers == ["it still waited for repairs of 1 joined sessions; P2 to stop forwarding"]
    drained.answers.clear()
    drained.is_whole = sibling.is_whole = True
    drained.order(limit_ns=0)
    dro.pass_time(TICK_NS)
    assert drained.answers == ["it still waited for its own forwarding to end; P2 to stop forwarding"]
    drained.answers.clear()
    drained.is_whole = sibling.is_whole = False
    drained.order(limit_ns=ms(800))
    dro.pass_time(s(1))
    assert drained.answers == ["it still waited for repairs of 1 joined sessions; P2 to stop forwarding"]
    drained.is_whole = sibling.is_whole = True
    sibling.forward(1, 7)
    drained.carry = lambda worker: None  # type: ignore[method-assign]
    drained.order(limit_ns=ms(800))
    dro.pass_time(s(1))
    assert drained.answers[1:] == ["it still waited for queued fragments of P2 to be sent"]
    drained.taken[2] = 7
    drained.linger_ns = s(5)
    drained.order(limit_ns=ms(800))
    dro.pass_time(s(1))
    assert drained.answers[2:] == ["it still waited for receivers of the proxy sources to take or repair what was sent"]
    drained.finals_ns = s(60)
    drained.order(limit_ns=s(6))
    dro.pass_time(s(7))
    assert drained.answers[3:] == ["it still waited for final advertisements of 1 proxy sources"]


def test_the_order_may_come_again_while_it_goes_on_and_when_it_is_over() -> None:
    dro = Dro()
    dro.portals[1].order()
    dro.pass_time(ms(100))
    dro.portals[1].order()
    dro.pass_time(s(2))
    assert dro.portals[1].answers == [""]
    dro.portals[1].order()
    dro.pass_time(TICK_NS)
    assert dro.portals[1].answers == ["", ""]
    assert dro.portals[1].calls.count("withdraw") == 1


def test_a_portal_alone_in_its_dro_drains() -> None:
    dro = Dro(1)
    dro.portals[1].order()
    dro.pass_time(s(1))
    assert dro.portals[1].answers == [""]


def test_a_sibling_that_dies_is_not_waited_for() -> None:
    for moment in range(0, 40):
        dro = Dro()
        dro.portals[2].forward(1, 10)
        dro.portals[1].forward(2, 10)
        dro.portals[1].order()
        dro.pass_time(moment * TICK_NS)
        dro.kill(2)
        dro.pass_time(s(2))
        assert dro.portals[1].answers == [""], moment


def test_siblings_forget_a_portal_that_dies_while_it_drains() -> None:
    for moment in range(0, 20):
        dro = Dro()
        dro.portals[1].order()
        dro.pass_time(moment * TICK_NS)
        dro.kill(1)
        assert dro.portals[2].help.is_idle
        assert dro.portals[2].entry.closing == {}
        assert dro.portals[2].entry.egress == (3,)


def test_a_sibling_that_is_drained_already_still_helps() -> None:
    dro = Dro()
    dro.portals[2].order()
    dro.pass_time(s(3))
    dro.portals[1].order()
    dro.pass_time(s(3))
    assert (dro.portals[1].answers, dro.portals[2].answers) == ([""], [""])


def test_a_drained_sibling_that_dies_keeps_nobody_from_draining() -> None:
    """What was being handed over to it is over with it."""
    dro = Dro()
    dro.portals[1].is_whole = False
    dro.portals[2].order()
    dro.pass_time(ms(100))
    dro.portals[1].order()
    dro.pass_time(ms(100))
    dro.kill(2)
    dro.portals[1].is_whole = True
    dro.pass_time(s(2))
    assert dro.portals[1].answers == [""]


def test_the_limit_is_the_first_tick_at_which_it_is_over() -> None:
    dro = Dro(2)
    dro.portals[1].is_whole = False
    dro.portals[1].order(limit_ns=5 * TICK_NS)
    dro.pass_time(4 * TICK_NS)
    assert dro.portals[1].answers == []
    dro.pass_time(TICK_NS)
    assert len(dro.portals[1].answers) == 1


class Drains(RuleBasedStateMachine):
    """Up to two of three portals drain, at any moments, while data flows, messages tarry and portals die.

    `Portal` asserts at the moment when its sources end and when its proxy sources close.
    """

    def __init__(self) -> None:
        super().__init__()
        self.dro = Dro()

    @rule(worker=st.sampled_from((1, 2)))
    def order(self, worker: int) -> None:
        if self.dro.portals[worker].up:
            self.dro.portals[worker].order(limit_ns=s(1000))

    @rule(pair=st.sampled_from([(a, b) for a in (1, 2, 3) for b in (1, 2, 3) if a != b]), count=st.integers(1, 9))
    def forward(self, pair: tuple[int, int], count: int) -> None:
        self.dro.portals[pair[0]].forward(pair[1], count)

    @rule(pair=st.sampled_from([(a, b) for a in (1, 2, 3) for b in (1, 2, 3) if a != b]))
    def carry(self, pair: tuple[int, int]) -> None:
        self.dro.portals[pair[0]].carry(pair[1])

    @rule(pair=st.sampled_from([(a, b) for a in (1, 2, 3) for b in (1, 2, 3) if a != b]))
    def deliver(self, pair: tuple[int, int]) -> None:
        self.dro.deliver(*pair)

    @rule(worker=st.sampled_from((1, 2, 3)), is_whole=st.booleans())
    def repair(self, worker: int, is_whole: bool) -> None:
        self.dro.portals[worker].is_whole = is_whole

    @rule(worker=st.sampled_from((1, 2, 3)), count=st.sampled_from((1, QUIET_TICKS, 20)))
    def tick(self, worker: int, count: int) -> None:
        for _ in range(count):
            self.dro.now_ns += TICK_NS
            self.dro.portals[worker].tick()

    @rule(worker=st.sampled_from((1, 2, 3)))
    def kill(self, worker: int) -> None:
        if self.dro.portals[worker].drain is None and len(self.dro.living) == 3:
            self.dro.kill(worker)

    @invariant()
    def nothing_is_answered_before_it_is_over(self) -> None:
        for portal in self.dro.portals.values():
            if portal.answers:
                assert portal.answers == [""] * len(portal.answers)
                assert {"end sources", "close sources"} <= set(portal.calls)

    def teardown(self) -> None:
        for portal in self.dro.portals.values():
            portal.is_whole = True
        self.dro.pass_time(s(5))
        for portal in self.dro.portals.values():
            if portal.drain is not None:
                assert portal.answers, portal.calls
                assert portal.drain.waiting == ""
        super().teardown()


TestDrains = Drains.TestCase
TestDrains.settings = settings(max_examples=100, stateful_step_count=40)
