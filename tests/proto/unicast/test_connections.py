"""Connections to request ports: what waits, what becomes of it, and how long they live."""

from __future__ import annotations

from collections import Counter
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from dro.clock import ms, s
from dro.proto.unicast.connections import (
    PIECES_MAX,
    PROGRESS_NS,
    REST_NS,
    CloseTarget,
    ConnectionLimits,
    Connections,
    ConnectTarget,
    Outcome,
    Target,
    Write,
)

A, B, C = (0x7F000001, 1), (0x7F000001, 2), (0x7F000002, 1)
LIMITS = ConnectionLimits(idle_ns=s(20), buffer_bytes=100, connections_max=2)


class Scene:
    def __init__(self, limits: ConnectionLimits = LIMITS) -> None:
        self.core = Connections(limits)
        self.now_ns = s(1)
        self.outcomes: list[tuple[bytes, Outcome]] = []

    def send(self, target: Target, message: bytes) -> None:
        self.core.send(target, message, lambda outcome: self.outcomes.append((message, outcome)), self.now_ns)

    def open(self, target: Target) -> None:
        self.core.on_open(target, self.now_ns)

    def write(self, target: Target) -> bytes:
        """All that can be written."""
        data = b"".join(self.core.pieces(target))
        if data:
            self.core.on_taken(target, len(data), self.now_ns)
        return data

    def pass_time(self, ns: int) -> None:
        end_ns = self.now_ns + ns
        while (deadline := self.core.next_deadline()) is not None and deadline <= end_ns:
            self.now_ns = max(self.now_ns, deadline)
            self.core.on_timer(self.now_ns)
        self.now_ns = end_ns

    def told(self) -> list[tuple[bytes, Outcome]]:
        outcomes, self.outcomes = self.outcomes, []
        return outcomes


def test_the_first_message_makes_a_connection_and_the_next_ones_share_it() -> None:
    scene = Scene()
    scene.send(A, b"one")
    scene.send(A, b"two")
    assert scene.core.take_effects() == [ConnectTarget(A)]
    assert scene.core.pieces(A) == [], "not open yet"
    scene.open(A)
    assert scene.core.take_effects() == [Write(A)]
    assert scene.write(A) == b"onetwo"
    scene.send(A, b"three")
    assert scene.core.take_effects() == [Write(A)]
    assert scene.write(A) == b"three"
    assert scene.told() == [(m, Outcome.SENT) for m in (b"one", b"two", b"three")]


def test_a_message_is_sent_when_its_last_byte_is_taken() -> None:
    scene = Scene()
    scene.send(A, b"one")
    scene.send(A, b"two")
    scene.open(A)
    scene.core.on_taken(A, 2, scene.now_ns)
    assert scene.told() == []
    assert b"".join(scene.core.pieces(A)) == b"etwo"
    scene.core.on_taken(A, 2, scene.now_ns)
    assert scene.told() == [(b"one", Outcome.SENT)]
    scene.core.on_blocked(A)
    assert scene.core.pieces(A) == []
    scene.core.take_effects()
    scene.core.on_writable(A)
    assert scene.core.take_effects() == [Write(A)]
    assert scene.write(A) == b"wo"


def test_beyond_the_buffer_the_newest_are_dropped_but_one_alone_may_be_larger() -> None:
    scene = Scene()
    scene.send(A, bytes(150))
    scene.send(A, b"x")
    scene.send(B, bytes(60))
    scene.send(B, b"y" * 41)
    scene.send(B, b"z" * 40)
    assert scene.told() == [(b"x", Outcome.FULL), (b"y" * 41, Outcome.FULL)]


def test_an_idle_connection_is_closed_and_a_used_one_is_not() -> None:
    scene = Scene()
    for target in (A, B):
        scene.send(target, b"m")
        scene.open(target)
        scene.write(target)
    scene.core.take_effects()
    scene.pass_time(s(15))
    scene.send(B, b"n")
    scene.write(B)
    scene.core.take_effects()
    scene.pass_time(s(6))
    assert scene.core.take_effects() == [CloseTarget(A)]
    scene.pass_time(s(15))
    assert scene.core.take_effects() == [CloseTarget(B)]
    assert (len(scene.core), scene.core.next_deadline()) == (0, None)


def test_a_refused_connection_fails_what_waits_and_rests_before_the_next_attempt() -> None:
    scene = Scene()
    scene.send(A, b"one")
    scene.core.on_lost(A, scene.now_ns)
    assert scene.core.take_effects() == [ConnectTarget(A), CloseTarget(A)]
    scene.send(A, b"two")
    assert scene.told() == [(b"one", Outcome.FAILED), (b"two", Outcome.FAILED)]
    assert scene.core.take_effects() == []
    scene.pass_time(REST_NS + s(1))
    scene.send(A, b"three")
    assert scene.core.take_effects() == [ConnectTarget(A)]


def test_a_connection_that_ends_may_be_made_again_at_once() -> None:
    scene = Scene()
    scene.send(A, b"one")
    scene.open(A)
    scene.core.on_lost(A, scene.now_ns)
    scene.send(A, b"two")
    assert scene.told() == [(b"one", Outcome.FAILED)]
    assert scene.core.take_effects() == [ConnectTarget(A), Write(A), CloseTarget(A), ConnectTarget(A)]


def test_who_sends_again_when_told_of_a_failure_meets_the_rest() -> None:
    scene = Scene()
    scene.core.send(A, b"one", lambda _: scene.send(A, b"again"), scene.now_ns)
    scene.core.on_lost(A, scene.now_ns)
    assert scene.told() == [(b"again", Outcome.FAILED)]


def test_an_attempt_or_a_write_without_progress_has_failed() -> None:
    scene = Scene()
    scene.send(A, b"one")
    scene.send(B, b"two")
    scene.open(B)
    scene.core.on_blocked(B)
    scene.pass_time(PROGRESS_NS + s(1))
    assert sorted(scene.told()) == [(b"one", Outcome.FAILED), (b"two", Outcome.FAILED)]


def test_more_connections_than_allowed_displace_the_one_unused_for_longest() -> None:
    scene = Scene()
    for target in (A, B):
        scene.send(target, b"m")
        scene.open(target)
        scene.write(target)
    scene.send(A, b"n")
    scene.write(A)
    scene.core.take_effects()
    scene.send(C, b"o")
    assert scene.core.take_effects() == [CloseTarget(B), ConnectTarget(C)]
    scene.send(A, b"waits")
    scene.told()
    scene.send(B, b"p")
    assert scene.told() == [(b"p", Outcome.FULL)], "all others have something to send"


def test_a_close_fails_what_waits() -> None:
    scene = Scene()
    scene.send(A, b"one")
    scene.core.close()
    assert (scene.told(), scene.core.next_deadline()) == ([(b"one", Outcome.FAILED)], None)


def test_an_idle_life_of_zero_makes_no_busy_timer() -> None:
    scene = Scene(ConnectionLimits(idle_ns=0, buffer_bytes=10))
    scene.send(A, b"one")
    deadline = scene.core.next_deadline()
    assert deadline is not None
    assert deadline - scene.now_ns >= ms(10)
    scene.open(A)
    scene.write(A)
    scene.pass_time(ms(10))
    assert len(scene.core) == 0


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["send", "open", "lost", "write", "part", "block", "writable", "time"]),
        st.sampled_from([A, B, C]),
        st.integers(1, 120),
    ),
    max_size=80,
)


@given(ACTIONS)
def test_every_message_has_one_outcome_and_what_is_sent_keeps_its_order(actions: list[tuple[str, Target, int]]) -> None:
    core, now_ns = Connections(LIMITS), 0
    outcomes: Counter[int] = Counter()
    sent: list[int] = []
    targets: list[Target] = []

    def tell(number: int, outcome: Outcome) -> None:
        outcomes[number] += 1
        if outcome is Outcome.SENT:
            sent.append(number)

    for action, target, size in actions:
        match action:
            case "send":
                targets.append(target)
                core.send(target, bytes(size), partial(tell, len(targets) - 1), now_ns)
            case "open":
                core.on_open(target, now_ns)
            case "lost":
                core.on_lost(target, now_ns)
            case "write" | "part":
                pieces = core.pieces(target)
                assert len(pieces) <= PIECES_MAX
                if total := sum(map(len, pieces)):
                    core.on_taken(target, total if action == "write" else min(size, total), now_ns)
            case "block":
                core.on_blocked(target)
            case "writable":
                core.on_writable(target)
            case "time":
                now_ns += size * ms(200)
                core.on_timer(now_ns)
        assert len(core) <= 2
        core.take_effects()
    core.close()
    assert outcomes == dict.fromkeys(range(len(targets)), 1)
    for target in (A, B, C):
        of_one = [number for number in sent if targets[number] == target]
        assert of_one == sorted(of_one)
