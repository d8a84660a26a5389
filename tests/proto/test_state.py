"""Cores that are stored and go on as new ones, beside undisturbed ones: all that can be seen of both is the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, fields, is_dataclass, replace
from functools import partial
from typing import Any, ClassVar, Final, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgpack import packb, unpackb

from dro.clock import ms
from dro.errors import DecodeError, LocalProtocolError
from dro.proto.context.bound import BoundSources
from dro.proto.context.effects import ContextEffect, JoinSession
from dro.proto.delivery.config import DeliveryConfig
from dro.proto.delivery.order import ARRIVAL, ARRIVAL_FRAGMENTS, IN_ORDER, DeliveryController
from dro.proto.delivery.tsni import TsniSchedule
from dro.proto.ratelimit import RateLimiter
from dro.proto.repair.effects import Retransmit
from dro.proto.repair.loss import LossConfig, LossDetector
from dro.proto.repair.receiver import ReceiverSession
from dro.proto.repair.retransmit import Chunk
from dro.proto.repair.source import Effect, SourceConfig, SourceSession
from dro.proto.resolver.core import Resolver
from dro.proto.resolver.events import FoundSource
from dro.proto.stream.retention import Retention
from dro.proto.stream.stream import SourceStream
from dro.proto.tcp.receiver import TcpReceiverConfig, TcpReceiverCore
from dro.proto.tcp.source import SlowReceiver, TcpSourceConfig, TcpSourceCore
from dro.sqn import MASK, add
from dro.state import LAYOUTS, restore, snapshot
from dro.timers import DUE_MAX, Calendar
from dro.wire.lbmr import packet as lbmr
from dro.wire.source_string import TcpAddress, TransportAddress
from portals.datapath.duplicate_window import DuplicateWindow
from tests.fakes.session_view import ToldSession

START: Final = MASK - 40  # every longer run wraps
Step = tuple[int, int, int, int, bool]
"""Which input, with two numbers, after how long in ms; whether the core is stored before."""
STEPS: Final = st.lists(
    st.tuples(
        st.integers(0, 1000),
        st.integers(-30, 30) | st.integers(-3, 3) | st.integers(-2000, 2000),
        st.integers(0, 40),
        st.sampled_from([0, 0, 1, 5, 10, 50, 200, 1500, 20_000]),
        st.sampled_from([False, False, False, True]),
    ),
    min_size=4,
    max_size=70,
)


class Rig:
    """Cores of one session with their surroundings; `inputs` names what can happen to them."""

    inputs: ClassVar[str]
    core: Any
    cores: Sequence[object]
    outside: Sequence[object] = ()
    now = 0
    draws = 0.0
    last: Effect | None = None

    def draw(self) -> float:
        self.draws = (self.draws + 0.37) % 1.0
        return self.draws

    def decoded(self, a: int, b: int) -> None:
        """Count as one who decodes does."""
        stats = self.core.stats
        for n, field in enumerate(fields(stats)):
            if field.name.startswith(("lbm_", "dgrams_")):
                setattr(stats, field.name, getattr(stats, field.name) + n)

    def look(self) -> object:
        """Return all that can be asked."""
        raise NotImplementedError

    def act(self, which: int, a: int, b: int, step: int) -> object:
        self.now += ms(step)
        names = self.inputs.split()
        return getattr(self, names[which % len(names)])(a, b), self.look()

    def hand_on(self, new: Rig) -> Rig:
        states = [packb(snapshot(core, self.outside)) for core in self.cores]
        for core, state in zip(new.cores, states, strict=True):
            restore(core, unpackb(state), new.outside)
        new.now, new.draws, new.last = self.now, self.draws, self.last
        return new


class Receiver(Rig):
    inputs = "data data repair run session_message ncf tick tick take decoded"

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  of the configuration
        cfg = LossConfig(
            backoff_ns=ms(20), suppress_ns=ms(100), generation_ns=ms(1000), activity_timeout_ns=ms(15_000), max_gap=50,
            max_naks_per_packet=4, **options,
        )  # fmt: skip
        self.core = ReceiverSession(cfg, self.draw, 0)
        self.cores = (self.core,)

    def sqn(self, distance: int) -> int:
        return add(START if self.core.expected is None else self.core.expected, distance)

    def data(self, a: int, b: int) -> object:
        return self.core.on_data(self.sqn(a), self.sqn(-40 - b), False, self.now, b)

    def repair(self, a: int, b: int) -> object:
        return self.core.on_data(self.sqn(-abs(a)), self.sqn(-40 - b), True, self.now, b)

    def run(self, a: int, b: int) -> object:
        if self.core.expected is not None:
            self.core.on_run(self.core.expected, 1 + b, self.sqn(a - 40), self.now, 10 * b)
        return None

    def session_message(self, a: int, b: int) -> object:
        return self.core.on_session_message(self.sqn(a), self.sqn(-b), self.now)

    def ncf(self, a: int, b: int) -> object:
        return self.core.on_ncf([self.sqn(n - b) for n in range(abs(a) % 9)], b % 5, self.sqn(-40 - b), self.now)

    def tick(self, a: int, b: int) -> object:
        return self.core.on_timer(self.now)

    def take(self, a: int, b: int) -> object:
        return self.core.take_events()

    def look(self) -> object:
        c = self.core
        asked = c.next_deadline(), c.missing, c.contiguous, c.expected, c.has_events, c.has_ended, c.active_ns
        return asked, astuple(c.stats), astuple(c._recoveries)


class Source(Rig):
    inputs = "data data mixed nak nak fail tick tick make_sm other leave close"

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  of the configuration
        self.data_limiter, self.rx_limiter = RateLimiter(80_000, ms(10), 0), RateLimiter(16_000, ms(10), 0)
        cfg = SourceConfig(
            window_size_bytes=9000, first_sqn=START, rx_queue_bytes=2000, max_ncfs_per_packet=5, **options
        )
        self.core = SourceSession(cfg, self.data_limiter, self.rx_limiter, 0)
        self.outside = self.core.rx_holder, object()
        self.cores = self.core, self.data_limiter, self.rx_limiter
        self.is_closed = False

    def seen(self, effects: list[Effect]) -> object:
        self.last = next((effect for effect in effects if isinstance(effect, Retransmit)), None)
        return [
            (e.sqn, bytes(e.buffer[e.offset :][: e.length]), e.at_ns) if isinstance(e, Retransmit) else e
            for e in effects
        ]

    def data(self, a: int, b: int) -> object:
        length = 20 + abs(a) * 3
        buffer = bytes((a + b + n) & 0xFF for n in range((1 + b % 9) * (length + 3)))
        stride = length + 3 * (b % 2)
        return self.core.on_sent_run(1 + b % 9, length - 20, Chunk(buffer, 2 * (b % 2), stride, length), self.now)

    def mixed(self, a: int, b: int) -> object:
        ends = [(n + 1) * (40 + abs(a)) + (n % 3) * 7 for n in range(1 + b)]
        payloads = [(n + b) % 30 for n in range(1 + b)]
        return self.core.on_sent_mixed(ends, payloads, bytes((a + n) & 0xFF for n in range(ends[-1])), self.now)

    def nak(self, a: int, b: int) -> object:
        return self.seen(self.core.on_nak([add(self.core.next_sqn, n - b) for n in range(abs(a) % 15)], self.now))

    def fail(self, a: int, b: int) -> object:
        if isinstance(self.last, Retransmit):
            self.core.on_send_failed(self.last.sqn, self.last.length)
        return None

    def tick(self, a: int, b: int) -> object:
        return self.seen(self.core.on_timer(self.now))

    def make_sm(self, a: int, b: int) -> object:
        return self.core.make_sm(self.now)

    def other(self, a: int, b: int) -> object:
        """Another one of the context asks the limit of retransmissions, and stands in line."""
        sender = self.outside[1]
        return self.rx_limiter.take(20 + b, self.now, sender) or self.rx_limiter.hold(sender, 20 + b, self.now)

    def leave(self, a: int, b: int) -> None:
        self.rx_limiter.release(self.outside[1])

    def close(self, a: int, b: int) -> object:
        return self.core.close() if abs(a) > 500 else None

    def look(self) -> object:
        c = self.core
        limits = [(limit.credit, len(limit._line)) for limit in (self.data_limiter, self.rx_limiter)]
        asked = c.next_deadline(), c.next_sqn, c.trail, c.lead, c.txw_msgs, c.txw_bytes, c.rctlr_rx_msgs
        return asked, c._window.memory_bytes, c.busy_until(self.now, ms(100)), astuple(c.stats), limits


class TcpReceiver(Rig):
    inputs = "advertised advertised connected connected messages messages closed tick take decoded"

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  of the configuration
        self.core = TcpReceiverCore(TcpReceiverConfig(**options))
        self.cores = (self.core,)

    def advertised(self, a: int, b: int) -> object:
        return self.core.on_advertised(self.now)

    def connected(self, a: int, b: int) -> object:
        return self.core.on_connected(self.now)

    def messages(self, a: int, b: int) -> object:
        return self.core.on_messages(b % 3, b, self.now)

    def closed(self, a: int, b: int) -> object:
        return self.core.on_closed(self.now)

    def tick(self, a: int, b: int) -> object:
        return self.core.on_timer(self.now)

    def take(self, a: int, b: int) -> object:
        return self.core.take_events()

    def look(self) -> object:
        c = self.core
        return c.next_deadline(), c.state, c.active_ns, c.was_connected, c.has_events, astuple(c.stats)


class TcpSource(Rig):
    inputs = "connected connected disconnected session bad_input send send send written written take order"

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  of the configuration
        self.core = TcpSourceCore(
            TcpSourceConfig(max_buffer_bytes=300, session_id=7, random_order=True, max_clients=3, **options), self.draw
        )
        self.cores = (self.core,)

    def connected(self, a: int, b: int) -> object:
        return self.core.on_connected(b % 5, self.now) if b % 5 not in self.core._clients else None

    def disconnected(self, a: int, b: int) -> object:
        return self.core.on_disconnected(b % 5, self.now)

    def session(self, a: int, b: int) -> object:
        return self.core.on_session_id(b % 5, 7 + (a == 0), self.now)

    def bad_input(self, a: int, b: int) -> object:
        return self.core.on_bad_input(b % 5, self.now) if a == 0 else None

    def send(self, a: int, b: int) -> object:
        start = b % 3
        ends = [start + (n + 1) * (1 + abs(a) % 31) + n % 2 for n in range(1 + b % 12)]
        return self.core.send_run(bytes((a + n) & 0xFF for n in range(ends[-1])), start, ends, self.now)

    def written(self, a: int, b: int) -> object:
        return self.core.on_written(b % 5, self.core.pending_bytes(b % 5) * min(abs(a), 10) // 10, self.now)

    def take(self, a: int, b: int) -> object:
        return self.core.take_events()

    def order(self, a: int, b: int) -> object:
        return self.core.send_order()

    def look(self) -> object:
        c = self.core
        clients = [(n, c.pending_bytes(n), c.discarded(n), [bytes(v) for v in c.pending(n)]) for n in c._clients]
        return clients, c.has_events, astuple(c.stats)


class Delivery(Rig):
    inputs = "whole part part part part part part part tsni tick run drop replaced end take"

    def __init__(self, mode: int, **options: Any) -> None:  # noqa: ANN401  of the configuration
        cfg = DeliveryConfig(
            mode, generation_interval_ns=ms(300), burst_limit=100, map_limit=16, message_max_bytes=180,
            held_max_bytes=150, **options,
        )  # fmt: skip
        self.core = DeliveryController(cfg)
        self.cores = (self.core,)

    def sqn(self, distance: int) -> int:
        return add(START if self.core.expected is None else self.core.expected, distance)

    def whole(self, a: int, b: int) -> object:
        return self.core.on_fragment(self.sqn(a), None, memoryview(bytes(b)), self.now, b)

    def part(self, a: int, b: int) -> object:
        """Part `sqn % 4` of a message of four, most of them as they should be."""
        sqn = self.sqn(a % 4 if b % 4 else a)
        at, size = sqn % 4, 5 if sqn & 12 == 12 else 45
        frag = (add(sqn, -at), at * size if b < 30 else 0, 4 * size if b else 1000)
        return self.core.on_fragment(sqn, frag, bytes([at] * size), self.now, 1 << at)

    def tsni(self, a: int, b: int) -> object:
        return self.core.on_tsni(self.sqn(a), self.now)

    def tick(self, a: int, b: int) -> object:
        return self.core.on_timer(self.now)

    def run(self, a: int, b: int) -> object:
        return self.core.accept_run(self.sqn(a if b % 4 == 0 else 0), 1 + b)

    def drop(self, a: int, b: int) -> object:
        return self.core.drop_run(self.sqn(-abs(a)), 1 + b)

    def replaced(self, a: int, b: int) -> object:
        return self.core.on_replaced(self.sqn(b))

    def end(self, a: int, b: int) -> object:
        return self.core.on_end() if b % 4 == 0 else None

    def take(self, a: int, b: int) -> object:
        return self.core.take_events()

    def look(self) -> object:
        c = self.core
        return c.next_deadline(), c.expected, c.is_waiting, c.has_events, c._joiner.is_idle, astuple(c.stats)


class Tsni(Rig):
    inputs = "data tick tick"

    def __init__(self) -> None:
        self.core = TsniSchedule(ms(100), ms(3000))
        self.cores = (self.core,)

    def data(self, a: int, b: int) -> object:
        return self.core.on_data(self.now)

    def tick(self, a: int, b: int) -> object:
        return self.core.on_timer(self.now)

    def look(self) -> object:
        return self.core.next_deadline()


class Window(Rig):
    inputs = "near near behind advance"

    def __init__(self, size: int, increment: int) -> None:
        self.core = DuplicateWindow(size, increment)
        self.cores = (self.core,)

    def take_run(self, distance: int, count: int, is_repair: bool = False) -> object:
        sqn = add(START if self.core.next_sqn < 0 else self.core.next_sqn, distance)
        return self.core.take_run(sqn, count, is_repair, self.now)

    def near(self, a: int, b: int) -> object:
        return self.take_run(a, 1 + b % 20, b > 30)

    def behind(self, a: int, b: int) -> object:
        """Ask for runs that follow each other below the newest, as after a restart."""
        sqn = self.core._stray_next if b > 10 else add(self.core.next_sqn, -100)
        return self.core.take_run(sqn, 1 + b % 3, False, self.now)

    def advance(self, a: int, b: int) -> object:
        return self.core.advance(1 + b) if self.core.next_sqn >= 0 else None

    def look(self) -> object:
        c = self.core
        return c.taken, c.next_sqn, c.too_old, c.has_restarted, c.has_jumped


class Bound(Rig):
    """Sources that were found on four sessions; resolver and wanted topics are this rig."""

    inputs = "found found switched changed gone gone refused ended unwant check advertised dro hear tick tick"

    def __init__(self) -> None:
        self.unwanted: set[bytes] = set()
        self.told: list[object] = []
        self.sessions = [
            ToldSession(TcpAddress(n, 14371, 1), is_in_order=n % 2 == 0, shows_life=n % 2 == 1) for n in range(4)
        ]
        self.outside = self.sessions
        self.calendar = Calendar()
        self.effects: list[ContextEffect] = []
        self.core = BoundSources(
            cast(Resolver, self), lambda topic: topic not in self.unwanted, self.calendar, self.effects
        )
        self.cores = (self.core,)

    def hand_on(self, new: Rig) -> Rig:
        assert isinstance(new, Bound)
        new.unwanted = self.unwanted.copy()
        for session, heard in zip(new.sessions, self.sessions, strict=True):
            session.active_ns = heard.active_ns
        return super().hand_on(new)

    def act(self, which: int, a: int, b: int, step: int) -> object:
        self.core.now_ns = self.now + ms(step)
        return super().act(which, a, b, step)

    def on_source_ended(self, *of: object) -> None:
        self.told.append(of)

    def leave_topic(self, topic: bytes) -> None:
        self.told.append(topic)

    def source(self, a: int, b: int) -> FoundSource:
        topic, otid = b"t%d" % (a % 3), bytes([b % 2]) * 32
        options = lbmr.TirOptions((lbmr.Cost(1, b % 3), lbmr.OtidOption(otid)))
        tir = lbmr.Tir(topic, self.sessions[a % 4].address, lbmr.TIR_TTL, b % 5, options)
        return FoundSource(topic, tir, otid, False, b % 3, 1, True, b"dro %4d" % (b % 4), a % 2)

    def known(self, a: int, b: int) -> FoundSource:
        """Return a bound source as it was found, if there is one."""
        if not (bound := self.core.sources):
            return self.source(a, b)
        one = bound[a % len(bound)]
        return FoundSource(one.topic, one.tir, one.otid, False, 0, 1, True, one.source_id, one.source_ip)

    def found(self, a: int, b: int) -> None:
        self.core.on_found(self.source(a, b), is_known=b % 7 == 0)

    def switched(self, a: int, b: int) -> None:
        self.core.on_switched(self.known(a, b), self.source(a + 3, b))

    def changed(self, a: int, b: int) -> None:
        self.core.on_changed(self.source(a, b))

    def gone(self, a: int, b: int) -> None:
        self.core.on_gone(self.known(a, b))

    def refused(self, a: int, b: int) -> None:
        self.core.on_refused(self.known(a, b))

    def ended(self, a: int, b: int) -> None:
        self.core.on_session_ended(self.sessions[a % 4])

    def unwant(self, a: int, b: int) -> None:
        self.unwanted ^= {b"t%d" % (a % 3)}
        self.core.leave_unwanted(b"t%d" % (b % 3))

    def check(self, a: int, b: int) -> None:
        self.core.leave_all_unwanted()

    def advertised(self, a: int, b: int) -> None:
        options = lbmr.standard_options(b"dro %4d" % (b % 4), lbmr.SenderType.DRO, 1)
        self.core.replace_dead((self.source(a, b).tir,), options, a % 2)

    def dro(self, a: int, b: int) -> None:
        self.core.on_dro_packet(a % 2)

    def hear(self, a: int, b: int) -> None:
        self.sessions[a % 4].active_ns = self.now

    def tick(self, a: int, b: int) -> None:
        self.calendar.run_due(self.now)

    def look(self) -> object:
        seen: list[object] = []
        while self.effects:
            effect = self.effects.pop(0)
            seen.append(type(effect))
            if isinstance(effect, JoinSession):
                self.core.on_joined(effect.source, self.sessions[self.session_of(effect.source.address)])
        told, self.told = self.told, []
        bound = [(b.topic, b.otid, b.address, b.topic_index, b.tir, b.source_id) for b in self.core.sources]
        return seen, told, sorted(bound, key=repr), self.core.topics(), self.calendar.next_deadline()

    def session_of(self, address: TransportAddress) -> int:
        return next(n for n, session in enumerate(self.sessions) if session.address == address)


RIGS: Final[dict[str, Callable[[], Rig]]] = {
    "receiver": Receiver,
    "receiver-preactivity": partial(Receiver, preactivity_timeout_ns=ms(3000), naks_per_round=7),
    "receiver-silent": partial(Receiver, send_naks=False),
    "source": Source,
    "source-lbtru": partial(Source, charge_data=False, sm_before_data=True, window_limit_bytes=6000),
    "tcp-receiver": partial(TcpReceiver, session_id=7, activity_timeout_ns=ms(2000)),
    **{f"tcp-source-{b.value}": partial(TcpSource, behavior=b) for b in SlowReceiver},
    "delivery-in-order": partial(Delivery, IN_ORDER, loss_check_interval_ns=ms(100)),
    "delivery-immediate": partial(Delivery, IN_ORDER, immediate=True),
    "delivery-arrival": partial(Delivery, ARRIVAL, loss_check_interval_ns=ms(100)),
    "delivery-fragments": partial(Delivery, ARRIVAL_FRAGMENTS),
    "tsni": Tsni,
    "duplicate-window": partial(Window, 128, 8),
    "bound-sources": Bound,
}


def compare(make: Callable[[], Rig], steps: Sequence[Step]) -> None:
    undisturbed, moved = make(), make()
    for which, a, b, step, is_stored in steps:
        if is_stored:
            moved = moved.hand_on(make())
        assert moved.act(which, a, b, step) == undisturbed.act(which, a, b, step)


@pytest.mark.parametrize("name", RIGS)
@given(steps=STEPS)
def test_a_new_core_goes_on_where_another_has_stopped(name: str, steps: Sequence[Step]) -> None:
    compare(RIGS[name], steps)


JUNK: Final[st.SearchStrategy[object]] = st.sampled_from(
    [None, -1, 3, 1 << 63, 1 << 70, True, "text", b"bytes", 0.5, [], [[]], [0], {}]
)


def spoilt(state: Any, at: int, junk: object) -> Any:  # noqa: ANN401  any part of a state
    """Return the state with one of its values or lists replaced."""
    places = 0

    def copied(value: object) -> object:
        nonlocal places
        if isinstance(value, list):
            value = [copied(item) for item in value]
        places += 1
        return junk if places == at else value

    copied(state)
    at = 1 + at % places
    places = 0
    return copied(state)


@pytest.mark.parametrize("name", RIGS)
@given(steps=STEPS, at=st.integers(0, 10_000), junk=JUNK)
def test_a_state_of_another_shape_changes_nothing(name: str, steps: Sequence[Step], at: int, junk: object) -> None:
    old, new = RIGS[name](), RIGS[name]()
    for which, a, b, step, _ in steps:
        old.act(which, a, b, step)
    state = spoilt(unpackb(packb(snapshot(old.core, old.outside))), at, junk)
    before = snapshot(new.core, new.outside)
    try:
        restore(new.core, state, new.outside)
    except DecodeError:
        assert snapshot(new.core, new.outside) == before


def test_what_a_layout_forgets_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [(0, 0, 0, 5000, False), (6, 0, 0, 5000, True)]
    compare(Receiver, steps)
    layout = LAYOUTS[ReceiverSession]
    shapes = {at: shape for at, shape in layout.shapes.items() if at != "active_ns"}
    monkeypatch.setitem(vars(layout), "shapes", shapes)
    with pytest.raises(AssertionError):
        compare(Receiver, steps)


MADE_WITH: Final = {
    "ArrivalReassembly": "_max",
    "BoundSources": "_calendar _effects _is_wanted _resolver",
    "DeliveryController": "_burst_limit _cfg _in_order _map_limit _wait_ns",
    "DroWatch": "",
    "DuplicateWindow": "_increment _size",
    "InOrderReassembly": "_max",
    "LossDetector": "_cfg _naks_per_round _rng",
    "Planes": "_waits config",
    "RateLimiter": "_interval_ns is_unlimited quota",
    "ReceiverSession": "_cfg",
    "Recovery": "__weakref__ _controller _window config",
    "Retention": "__weakref__ _config",
    "Retransmitter": "_data_limiter _ignore_ns _limiter _max_ncfs _queue_limit",
    "SmSchedule": "_max_ns _min_ns",
    "SourceSession": "_cfg",
    "SourceStream": "due otid planes topic",
    "TcpReceiverCore": "_cfg",
    "TcpSourceCore": "_cfg _filter _rng",
    "TransmissionWindow": "_limit_bytes _size_bytes",
    "TsniSchedule": "_interval_ns _threshold_ns",
}
"""What a new core has from its constructor."""
FOLLOWS: Final = {
    "BoundSources": "_bound _by_session _by_topic _ended _ending _unchecked",
    "LossDetector": "_heap _serial _starts count gaps",
    "ReceiverSession": "_gaps",
    "Retransmitter": "_window stats",
    "TcpSourceCore": "_clients",
    "TransmissionWindow": "_adopted_to _arena _arena_run _arena_used _find_adopted _head _logged_to _runs _starts"
    " memory_bytes payload_bytes trail_index",
}
"""What is made of the rest of the state, or shared with the one that has it."""


PROPERTIES: Final = {
    "BoundSources": "records ended unchecked",
    "LossDetector": "_missing",
    "TcpSourceCore": "_state",
    "TransmissionWindow": "_content",
}


def test_each_attribute_is_state_or_configuration() -> None:
    checked = set()
    for kind, layout in [*LAYOUTS.items()]:
        name = kind.__name__
        if is_dataclass(kind) and name not in MADE_WITH:
            assert [*layout.shapes] == [field.name for field in fields(kind)], name
            continue
        named = {*layout.shapes, *MADE_WITH[name].split(), *FOLLOWS.get(name, "").split()}
        assert named - {*PROPERTIES.get(name, "").split()} == set(vars(kind)["__slots__"]), name
        checked.add(name)
    assert checked == MADE_WITH.keys()
    assert {SourceStream.__name__, Retention.__name__} <= checked


@pytest.mark.parametrize(
    "steps",
    [
        [(0, 0, 0, 0, False), (4, 0, 0, 0, False), (13, 0, 0, 10, False), (13, 0, 0, 10, True)],
        [(0, 0, 0, 0, False), (10, 7, 6, 1, False), (10, 1, 0, 1, False), (10, 6, 6, 1, True)],
        [(0, 0, 0, 0, False), (11, 0, 0, 20_000, False), (10, 9, 2, 0, True)],
    ],
    ids=["a source that is about to end", "contexts of DROs", "hosts of DROs"],
)
def test_what_a_context_waits_for_is_handed_on(steps: Sequence[Step]) -> None:
    compare(Bound, steps)


@pytest.mark.parametrize("name", ["ended", "check"])
def test_what_is_left_in_slices_is_left_to_its_end(name: str) -> None:
    old = Bound()
    for n in range(DUE_MAX + 9):
        one, topic = old.source(0, 0), b"%d" % n
        old.core.on_found(replace(one, topic=topic, tir=replace(one.tir, topic=topic, topic_index=n)))
    old.look()
    old.unwanted = old.core.topics()
    getattr(old, name)(0, 0)
    old.look()
    assert len(old.core.sources) == 9
    new = old.hand_on(Bound())
    for rig in (old, new):
        rig.act(13, 0, 0, 0)
    assert (new.core.sources, new.look()) == ([], old.look())


def test_another_version_is_refused_by_name() -> None:
    state = snapshot(TsniSchedule())
    state[0] = "TsniSchedule 0"
    with pytest.raises(DecodeError, match="TsniSchedule: 'TsniSchedule 0', not 'TsniSchedule 1'"):
        restore(TsniSchedule(), state)


@pytest.mark.parametrize("turns", [[], [0, 1], [0, 0, 0], [-1, -1, -1], [2, 1, 0]])
def test_an_order_of_naks_that_is_none_is_refused(turns: list[int]) -> None:
    def detector() -> LossDetector:
        made = LossDetector(LossConfig(), lambda: 0.5)
        for number in range(3):
            made.open_gap(10 * number, 1, ms(number))
        return made

    state = snapshot(detector())
    gaps, order = state[1]
    assert order == [0, 1, 2]
    core = detector()
    with pytest.raises(DecodeError, match="not the order of the next NAKs"):
        restore(core, [state[0], [gaps, turns], *state[2:]])
    assert snapshot(core) == state


def test_who_stands_in_line_must_be_named() -> None:
    limiter, holder = RateLimiter(8000, ms(10), 0), object()
    limiter.hold(holder, 100, 0)
    with pytest.raises(LocalProtocolError, match="object is not among the objects outside"):
        snapshot(limiter)
    assert snapshot(limiter, (holder,))
