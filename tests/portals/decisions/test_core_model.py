"""Endpoint cores under arbitrary events: what they ask of a shell makes sense, and they come to rest as they should.

What they tell each other goes through real outboxes in batches of few records, and what they do step by step is
interrupted by the other events after each step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dro.clock import ms, s
from dro.config.dro_xml.model import AceConfig, AclConfig, ConditionConfig
from dro.proto.interest.events import InterestGained, InterestLost
from portals.decisions.acl_enforcement import OPEN, AclEnforcement
from portals.decisions.core import PortalCore
from portals.decisions.effects import (
    ChangeForwarding,
    CloseProxyReceiver,
    CloseProxySource,
    DelayDeletion,
    Effect,
    FeedProxySource,
    GoOn,
    OpenProxyReceiver,
    OpenProxySource,
    SendInitialState,
    SendToSibling,
    UpdateProxyReceiver,
    UpdateProxySource,
)
from portals.decisions.messages import PATTERN_NONE, PATTERN_PCRE, PORTAL_MESSAGES
from portals.decisions.outbox import Outbox
from portals.decisions.recorded_interest import Matcher
from tests.builders.routes import whole

PORTALS = (1, 2, 3)
TOPICS = (b"AA", b"AB", b"BB")
SYMBOLS = ((b"AA", PATTERN_NONE), (b"AB", PATTERN_NONE), (b"A", PATTERN_PCRE), (b"B", PATTERN_PCRE))
ROUTES = [
    [(1, 2, 1, 2), (2, 1, 2, 1), (1, 3, 1, 3), (3, 1, 3, 1), (2, 3, 2, 3), (3, 2, 3, 2)],
    [(1, 2, 1, 2), (2, 1, 2, 1)],  # domain 3 is not reached by this DRO
    [(1, 2, 1, 3), (1, 3, 1, 3), (3, 1, 3, 1), (2, 1, 3, 1)],  # domain 2 lies behind domain 3
    [],
]


def _list(*entries: tuple[bool, str, str]) -> tuple[AceConfig, ...]:
    return tuple(AceConfig(accept, (ConditionConfig(kind, value),)) for accept, kind, value in entries)


_NOT_AA = _list((False, "topic", "AA"), (True, "topic", ".*"))
_ONLY_B = _list((True, "pcre-pattern", "^B"))
LISTS = (None, AclConfig(outbound=_NOT_AA), AclConfig(inbound=_NOT_AA), AclConfig(_ONLY_B, _ONLY_B))


def starts_with(pattern: bytes, kind: int) -> Matcher | None:
    return lambda topic: topic.startswith(pattern)


@dataclass
class Shell:
    """What a shell would have open after the effects of one core; complains about effects that do not fit."""

    worker: int
    core: PortalCore
    incarnation: int
    receivers: dict[tuple[bytes, int], set[int]] = field(default_factory=dict)
    proxies: dict[bytes, tuple[int, int] | None] = field(default_factory=dict)
    ending: set[bytes] = field(default_factory=set)
    """Those that are fed although their end has been advertised."""
    forwarding: dict[int, tuple[int, ...]] = field(default_factory=dict)
    own: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    long_work: list[Iterator[object]] = field(default_factory=list)

    def perform(self, effect: Effect) -> None:
        match effect:
            case OpenProxyReceiver(symbol=symbol, pattern=pattern, domains=domains):
                assert (symbol, pattern) not in self.receivers
                assert domains
                self.receivers[symbol, pattern] = set(domains)
            case UpdateProxyReceiver(symbol=symbol, pattern=pattern, added=added, removed=removed):
                domains_now = self.receivers[symbol, pattern]
                assert domains_now >= set(removed)
                assert not domains_now & set(added)
                domains_now -= set(removed)
                domains_now |= set(added)
                assert domains_now
            case CloseProxyReceiver(symbol=symbol, pattern=pattern, domains=domains):
                assert self.receivers.pop((symbol, pattern)) == set(domains)
            case OpenProxySource(worker=worker, source=source):
                assert source.otid not in self.proxies
                self.proxies[source.otid] = (worker, source.handle)
            case FeedProxySource(worker=worker, source=source):
                assert self.proxies[source.otid] != (worker, source.handle) or source.otid in self.ending
                self.proxies[source.otid] = (worker, source.handle)
                self.ending.discard(source.otid)
            case UpdateProxySource(worker=worker, source=source):
                assert self.proxies[source.otid] == (worker, source.handle)
            case DelayDeletion(otid=otid, is_fed=True):
                assert self.proxies[otid] is not None
                assert otid not in self.ending
                self.ending.add(otid)
            case DelayDeletion(otid=otid):
                assert self.proxies[otid] is not None
                self.proxies[otid] = None
                self.ending.discard(otid)
            case CloseProxySource(otid=otid):
                del self.proxies[otid]
                self.ending.discard(otid)
            case ChangeForwarding(handle=handle, workers=workers):
                assert self.forwarding[handle] != workers
                self.forwarding[handle] = workers
            case GoOn(steps=steps):
                self.long_work.append(steps)
            case SendToSibling() | SendInitialState():
                raise AssertionError("messages are delivered by the machine")


class Portals(RuleBasedStateMachine):
    """Three portals of one DRO; messages between two of them arrive in order, at some time."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.version = 1
        self.routes = ROUTES[0]
        self.shells: dict[int, Shell] = {}
        self.lives = dict.fromkeys(PORTALS, 0)
        self.access = dict.fromkeys(PORTALS, OPEN)
        self.wire = {(a, b): Outbox(0) for a in PORTALS for b in PORTALS if a != b}
        self.wanted: dict[int, set[tuple[bytes, int, int]]] = {worker: set() for worker in PORTALS}
        for worker in PORTALS:
            self.start(worker)

    # helpers

    def take(self) -> None:
        for worker, shell in self.shells.items():
            for effect in shell.core.take_effects():
                match effect:
                    case SendToSibling(worker=to, message=message):
                        self.wire[worker, to].put(message, PORTAL_MESSAGES.encode(message))
                    case SendInitialState(worker=to, messages=messages):
                        self.wire[worker, to].put_all(messages)
                    case _:
                        shell.perform(effect)

    def deliver(self, sender: int, to: int) -> bool:
        batch = self.wire[sender, to].take(self.now_ns)
        for message in PORTAL_MESSAGES.decode_all(batch):
            if to in self.shells:
                self.shells[to].core.on_message(sender, self.lives[sender], message, self.now_ns)
            self.take()
        self.wire[sender, to].on_acked(1 if batch else 0)
        return bool(batch)

    def go_on(self) -> bool:
        """A step of each long work."""
        had_any = False
        for shell in self.shells.values():
            shell.long_work = [steps for steps in shell.long_work if next(steps, self) is not self]
            had_any |= bool(shell.long_work)
        self.take()
        return had_any

    # what happens

    @rule(worker=st.sampled_from(PORTALS))
    def start(self, worker: int) -> None:
        if worker in self.shells:
            return
        self.lives[worker] += 1
        life = self.lives[worker]
        core = PortalCore(
            worker, life, worker, source_deletion_delay_ns=ms(1000), matcher=starts_with, acl=self.access[worker]
        )
        core.on_routes(self.version, whole(self.routes), self.now_ns)
        self.shells[worker] = Shell(worker, core, life)
        self.wanted[worker].clear()
        for other, shell in list(self.shells.items()):
            if other != worker:
                self.wire[worker, other] = Outbox(self.now_ns)
                self.wire[other, worker] = Outbox(self.now_ns)
                shell.core.on_sibling_up(worker, life, 0, 0, self.now_ns)
                core.on_sibling_up(other, self.lives[other], 0, 0, self.now_ns)
        self.take()

    @rule(worker=st.sampled_from(PORTALS), is_for_good=st.booleans())
    def kill(self, worker: int, is_for_good: bool) -> None:
        """For good: removed from the DRO; `start` then is another portal that got its number."""
        if self.shells.pop(worker, None) is None:
            return
        for other, shell in self.shells.items():
            self.wire[worker, other] = Outbox(self.now_ns)
            self.wire[other, worker] = Outbox(self.now_ns)
            shell.core.on_sibling_down(worker, self.now_ns)
            if is_for_good:
                shell.core.on_sibling_removed(worker, self.now_ns)
        self.take()

    @rule(worker=st.sampled_from(PORTALS), symbol=st.sampled_from(SYMBOLS), beyond=st.booleans())
    def want(self, worker: int, symbol: tuple[bytes, int], beyond: bool) -> None:
        if worker in self.shells:
            domain = 2 if beyond and worker == 3 else worker
            self.wanted[worker].add((*symbol, domain))
            self.shells[worker].core.on_interest(InterestGained(symbol, domain), self.now_ns)
            self.take()

    @rule(worker=st.sampled_from(PORTALS), symbol=st.sampled_from(SYMBOLS), beyond=st.booleans())
    def unwant(self, worker: int, symbol: tuple[bytes, int], beyond: bool) -> None:
        if worker in self.shells:
            domain = 2 if beyond and worker == 3 else worker
            self.wanted[worker].discard((*symbol, domain))
            self.shells[worker].core.on_interest(InterestLost(symbol, domain), self.now_ns)
            self.take()

    @rule(worker=st.sampled_from(PORTALS), number=st.integers(0, 5))
    def see(self, worker: int, number: int) -> None:
        """Each OTID belongs to one topic and to one domain, that of the portal that sees it."""
        if worker in self.shells:
            shell = self.shells[worker]
            otid, topic = bytes([worker, number]) * 16, TOPICS[number % 3]
            handle = shell.core.own.add(otid, topic, worker, 0, 0, b"")
            assert handle not in shell.own
            shell.own[handle] = (otid, topic)
            shell.forwarding[handle] = ()
            self.take()

    @rule(worker=st.sampled_from(PORTALS), at=st.integers(0, 20))
    def lose(self, worker: int, at: int) -> None:
        shell = self.shells.get(worker)
        if shell is not None and shell.own:
            handle = list(shell.own)[at % len(shell.own)]
            del shell.own[handle]
            del shell.forwarding[handle]
            shell.core.own.end(handle)
            self.take()

    @rule(worker=st.sampled_from(PORTALS), number=st.integers(0, len(LISTS) - 1))
    def restrict(self, worker: int, number: int) -> None:
        self.access[worker] = AclEnforcement(LISTS[number])
        if worker in self.shells:
            self.shells[worker].core.on_acl(self.access[worker], self.now_ns)
            self.take()

    @rule(worker=st.sampled_from(PORTALS), at=st.integers(0, 20), cost=st.integers(0, 2))
    def advertise(self, worker: int, at: int, cost: int) -> None:
        shell = self.shells.get(worker)
        if shell is not None and shell.own:
            shell.core.own.change(list(shell.own)[at % len(shell.own)], 0, cost, b"")
            self.take()

    @rule(worker=st.sampled_from(PORTALS), delay=st.sampled_from([0, ms(500), ms(1000), ms(3000)]))
    def delay(self, worker: int, delay: int) -> None:
        if worker in self.shells:
            self.shells[worker].core.deletion_delay.change(delay)

    @rule(routes=st.sampled_from(ROUTES))
    def reroute(self, routes: list[tuple[int, int, int, int]]) -> None:
        self.version += 1
        self.routes = routes
        for shell in self.shells.values():
            shell.core.on_routes(self.version, whole(routes), self.now_ns)
        self.take()

    @rule(pair=st.sampled_from([(a, b) for a in PORTALS for b in PORTALS if a != b]), count=st.integers(1, 5))
    def carry(self, pair: tuple[int, int], count: int) -> None:
        for _ in range(count):
            self.deliver(*pair)

    @rule()
    def step(self) -> None:
        self.go_on()

    @rule(worker=st.sampled_from(PORTALS))
    def relearn(self, worker: int) -> None:
        if worker in self.shells:
            self.shells[worker].core.on_relearnt(0)
            self.take()

    @rule(duration=st.sampled_from([ms(1), ms(999), ms(1000), s(3)]))
    def wait(self, duration: int) -> None:
        self.now_ns += duration
        for shell in self.shells.values():
            shell.core.on_timer(self.now_ns)
        self.take()

    @invariant()
    def deadlines_lie_ahead(self) -> None:
        for shell in self.shells.values():
            shell.core.on_timer(self.now_ns)
            deadline = shell.core.next_deadline()
            assert deadline is None or deadline > self.now_ns
        self.take()

    def teardown(self) -> None:
        """At rest, every proxy follows from interest, routes and sources, and is fed by who hears the source."""
        for worker in PORTALS:
            self.relearn(worker)
        for _ in range(3):
            while self.go_on() or any(self.deliver(*pair) for pair in self.wire):
                pass
            self.wait(s(10))
        for egress, shell in self.shells.items():
            open_proxies: dict[bytes, set[tuple[int, int]]] = {}
            for ingress, there in self.shells.items():
                for handle, (otid, topic) in there.own.items():
                    domains = {
                        domain
                        for symbol, pattern, domain in self.wanted[egress]
                        if (topic.startswith(symbol) if pattern else topic == symbol)
                    }
                    if not self.access[egress].may_leave(topic):
                        continue
                    if ingress != egress and any((ingress, d, ingress, egress) in self.routes for d in domains):
                        open_proxies.setdefault(otid, set()).add((ingress, handle))
            assert not shell.ending
            assert shell.proxies.keys() == open_proxies.keys()
            for otid, feeder in shell.proxies.items():
                assert feeder in open_proxies[otid]
                assert feeder is not None
                assert egress in self.shells[feeder[0]].forwarding[feeder[1]]
            fed = [feeder for feeder in shell.proxies.values() if feeder is not None]
            for ingress, there in self.shells.items():
                for handle, workers in there.forwarding.items():
                    assert (egress in workers) == ((ingress, handle) in fed)
            wanted_receivers = {
                (symbol, pattern)
                for sibling in self.shells
                for symbol, pattern, domain in self.wanted[sibling]
                if any(r[1:] == (domain, egress, sibling) for r in self.routes)
                and (pattern or self.access[sibling].may_leave(symbol))
                and self.access[egress].may_ask(symbol, pattern)
            }
            assert shell.receivers.keys() == wanted_receivers
        super().teardown()


@pytest.fixture(autouse=True)
def few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("portals.decisions.core.AT_ONCE", 1)
    monkeypatch.setattr("portals.decisions.outbox.BATCH_RECORDS", 2)


TestPortals = Portals.TestCase
TestPortals.settings = settings(max_examples=300, stateful_step_count=40)
