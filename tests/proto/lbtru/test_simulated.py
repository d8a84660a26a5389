"""An hour of a source and its receivers over networks that lose, delay and swap packets, each from a seed.

Every datagram from the first that a receiver has is handed up once, or reported lost, and never both; what both ends
keep stays within its bounds. `DRO_LONG` tries a thousand seeds.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from itertools import count
from operator import itemgetter
from typing import Final

import pytest

from dro.clock import NS_PER_S, ms, s
from dro.proto.lbtru.clients import ClientAnswer, ClientConnected, ClientDisconnected, ClientEffect, ClientList, SendSyn
from dro.proto.lbtru.connect import ConnectConfig, ConnectCore, SendConnectRequest
from dro.proto.ratelimit import RateLimiter
from dro.proto.repair.effects import Retransmit, SendNcf
from dro.proto.repair.loss import LBTRU_LOSS, LossReason, NakDue, Skipped, Unrecoverable
from dro.proto.repair.receiver import ReceiverSession
from dro.proto.repair.retransmit import Chunk
from dro.proto.repair.session_messages import SendSm
from dro.proto.repair.source import Effect, SourceConfig, SourceSession
from dro.proto.session_events import Ended
from dro.sqn import ahead
from tests.rigs.effort import IS_LONG

SEEDS: Final = 1000 if IS_LONG else 12
HOUR: Final = s(3600)
WINDOW_BYTES: Final = 65536
RECEIVERS: Final = 2
FIRST_SQN: Final = 0xFFFFFF00


class SimulatedReceiver:
    """One receiver: what it handed up and gave up. After an end of session it joins anew, as by an advertisement."""

    def __init__(self, net: SimulatedNet, name: int) -> None:
        self.net = net
        self.address = (f"192.0.2.{name}", 14360)
        self.ends = 0
        self.has_left = False
        self.join()

    def join(self) -> None:
        self.up: set[int] = set()
        self.lost: set[int] = set()
        self.first: int | None = None
        session = ReceiverSession(LBTRU_LOSS, self.net.rng.random, self.net.now)
        self.core = ConnectCore(ConnectConfig(), session, self.net.now)

    def on_data(self, sqn: int, trail: int, is_repair: bool) -> None:
        self.core.on_heard(self.net.now)
        session = self.core.session
        before = session.expected
        if session.on_data(sqn, trail, is_repair, self.net.now):
            self.first = sqn if before is None else self.first
            assert sqn not in self.up, "twice"
            assert sqn not in self.lost, "after it was reported lost"
            self.up.add(sqn)
        self.perform()

    def on_session_message(self, lead: int, trail: int) -> None:
        self.core.on_heard(self.net.now)
        session = self.core.session
        if session.expected is None:
            self.first = lead + 1 & 0xFFFFFFFF
        session.on_session_message(lead, trail, self.net.now)
        self.perform()

    def on_ncf(self, sqns: tuple[int, ...], reason: int) -> None:
        self.core.session.on_ncf(sqns, reason, FIRST_SQN, self.net.now)
        self.perform()

    def on_reset(self) -> None:
        self.core.on_reset(self.net.now)
        self.perform()

    def perform(self) -> None:
        net, session = self.net, self.core.session
        for send in self.core.take_sends():
            is_request = isinstance(send, SendConnectRequest)
            net.carry(net.source.on_sign, self, is_request)
        for event in session.take_events():
            match event:
                case NakDue(sqns=sqns):
                    net.carry(net.source.on_nak, self, sqns)
                case Unrecoverable(ranges=ranges, reason=reason):
                    assert reason in LossReason
                    for first, n in ranges:
                        given_up = {first + i & 0xFFFFFFFF for i in range(n)}
                        assert not given_up & self.up
                        self.lost |= given_up
                case Skipped():
                    raise AssertionError("no gap is as large as that")
                case Ended():
                    self.ends += 1
                    self.join()
        assert session.missing <= net.sent

    def next_deadline(self) -> int | None:
        return self.core.next_deadline()

    def tick(self) -> None:
        self.core.on_timer(self.net.now)
        self.perform()


class SimulatedSource:
    """A source that sends now and then, often several datagrams at once."""

    def __init__(self, net: SimulatedNet) -> None:
        self.net = net
        config = SourceConfig(window_size_bytes=WINDOW_BYTES, charge_data=False, first_sqn=FIRST_SQN)
        limiter, self.rx = RateLimiter(0, ms(100), 0), RateLimiter(200_000, ms(100), 0)
        self.core = SourceSession(config, limiter, self.rx, 0)
        self.clients = ClientList(self.core, s(10))
        self.receivers: dict[tuple[str, int], SimulatedReceiver] = {}

    def send(self) -> None:
        net = self.net
        for _ in range(net.rng.choice((1, 1, 2, 5, 40))):
            size = net.rng.randrange(60, 1400)
            sqn, trail = self.core.next_sqn, self.core.trail
            self.core.on_sent_run(1, size - 20, Chunk(bytes(size), 0, size, size), net.now)
            net.sent += 1
            for address in self.clients.addresses:
                net.carry(self.receivers[address].on_data, sqn, trail, False)

    def on_sign(self, receiver: SimulatedReceiver, is_request: bool) -> None:
        self.receivers[receiver.address] = receiver
        take = self.clients.on_request if is_request else self.clients.on_acknowledgement
        self.perform(take(receiver.address, self.net.now))

    def on_nak(self, receiver: SimulatedReceiver, sqns: tuple[int, ...]) -> None:
        self.perform(self.clients.on_nak(receiver.address, sqns, self.net.now))

    def perform(self, effects: list[ClientEffect]) -> None:
        carry, of = self.net.carry, self.receivers
        for effect in effects:
            match effect:
                case SendSyn(client=client, message=sm):
                    carry(of[client].on_session_message, sm.lead, sm.trail)
                case ClientAnswer(client=client, effect=Retransmit(sqn=sqn)):
                    carry(of[client].on_data, sqn, self.core.trail, True)
                case ClientAnswer(client=client, effect=SendNcf(reason=reason, sqns=sqns)):
                    carry(of[client].on_ncf, sqns, reason)
                case ClientConnected() | ClientDisconnected():
                    pass
                case other:
                    carry(of[other.client].on_reset)

    def perform_of_core(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SendSm):
                for address in self.clients.addresses:
                    self.net.carry(self.receivers[address].on_session_message, effect.lead, effect.trail)

    def tick(self) -> None:
        self.perform_of_core(self.core.on_timer(self.net.now))
        self.perform(self.clients.on_timer(self.net.now))
        assert self.core.txw_bytes <= WINDOW_BYTES + 1400
        assert self.clients.waiting_count <= RECEIVERS * self.core.txw_msgs

    def next_deadline(self) -> int | None:
        deadlines = (self.core.next_deadline(), self.clients.next_deadline())
        return min((deadline for deadline in deadlines if deadline is not None), default=None)


class SimulatedNet:
    """Carries packets: each is lost, or comes after a delay of its own; now and then nothing comes for a while."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0
        self.sent = 0
        self.loss = self.rng.choice((0.0, 0.01, 0.05, 0.2, 0.5))
        self.delay = self.rng.choice((0, ms(1), ms(30), ms(400)))
        self.cut_until = 0
        self.serial = count()
        self.queue: list[tuple[int, int, Callable[..., object], tuple[object, ...]]] = []
        self.source = SimulatedSource(self)
        self.receivers = [SimulatedReceiver(self, number) for number in range(RECEIVERS)]

    def carry(self, what: Callable[..., object], *args: object) -> None:
        if self.now >= self.cut_until and self.rng.random() >= self.loss:
            self.at(self.now + round(self.rng.random() * self.delay), what, *args)

    def at(self, when: int, what: Callable[..., object], *args: object) -> None:
        heapq.heappush(self.queue, (when, next(self.serial), what, args))

    def cut(self, pause: int) -> None:
        self.cut_until = self.now + pause

    def run(self, until: int) -> None:
        """Do all that is due; who is called is asked for its next deadline."""
        parties: list[SimulatedSource | SimulatedReceiver] = [self.source, *self.receivers]
        timers: dict[int, int | None] = {id(party): party.next_deadline() for party in parties}
        while True:
            running = [(timer, one) for one in parties if (timer := timers[id(one)]) is not None]
            due, party = min(running, key=itemgetter(0))
            if self.queue and self.queue[0][0] <= due:
                when, _, what, args = heapq.heappop(self.queue)
                if when > until:
                    return
                self.now = max(self.now, when)
                what(*args)
                called = getattr(what, "__self__", None)
                if isinstance(called, SimulatedSource | SimulatedReceiver):
                    timers[id(called)] = called.next_deadline()
                continue
            if due > until:
                return
            self.now = max(self.now, due)
            party.tick()
            timers[id(party)] = party.next_deadline()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_datagram_is_handed_up_once_or_reported_lost(seed: int) -> None:
    net = SimulatedNet(seed)
    when = 0
    while when < HOUR:
        when += round(net.rng.expovariate(0.2) * NS_PER_S)
        net.at(when, net.source.send)
        if net.rng.random() < 0.02:
            pause = net.rng.choice((s(1), s(8), s(15), s(90)))
            net.at(when, net.cut, pause)
    net.run(HOUR)
    # what is missing now is repaired or given up, and the tail is noticed
    loss, net.loss, net.cut_until = net.loss, 0.0, 0
    net.run(HOUR + s(120))
    after = net.source.core.next_sqn
    for receiver in net.receivers:
        assert receiver.first is not None
        assert receiver.core.session.missing == 0
        expected = {receiver.first + n & 0xFFFFFFFF for n in range(ahead(after, receiver.first))}
        assert receiver.up | receiver.lost == expected
        if loss <= 0.05 and expected:  # one that was cut off until after the last datagram has none
            assert len(receiver.up) > len(receiver.lost)
    assert net.sent > 1000
