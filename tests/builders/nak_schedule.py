"""When a receiver asked for what it missed, worked out from outside: what reached its host, and its NAKs on the wire.

The documented schedule, in ms after: the datagram that showed the gap, for the first NAK; the NAK before, for a
repeat; the NCF, when one has come since the NAK before. Nothing of the program under test is used here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

NS_PER_MS: Final = 1_000_000
DATA, SM, NCF = 0, 2, 4
RETRANSMISSION: Final = 0x20
NCF_GRACE_MS: Final = 50


@dataclass(frozen=True, slots=True)
class Windows:
    """When NAKs may come, ms; the defaults of the three options. Backoffs are random, 0.5 to 1.5 times the option."""

    initial_backoff: float = 50.0
    backoff: float = 200.0
    suppress: float = 1000.0

    @property
    def first(self) -> tuple[float, float]:
        return self.initial_backoff * 0.5, self.initial_backoff * 1.5

    @property
    def repeat(self) -> tuple[float, float]:
        return self.backoff * 0.5, self.backoff * 1.5

    @property
    def after_ncf(self) -> tuple[float, float]:
        return self.suppress, self.suppress


@dataclass(frozen=True, slots=True)
class Arrival:
    """A datagram of the session that reached the receiver's host."""

    at_ns: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Asked:
    """A NAK packet on the wire, on the same clock."""

    at_ns: int
    sqns: tuple[int, ...]


@dataclass
class Schedule:
    """Delays in ms. `unasked` was missing and repaired without a NAK of ours, `needless` asked for though it was there.

    `either`: delays of a NAK that an NCF came within `NCF_GRACE_MS` of, by kind: whether that NCF was read before the
    NAK was sent, or even passed the tap after it, cannot be seen from outside. A NAK counts as needless when the
    datagram had arrived `grace_ms` before it: one that waits in the socket of a receiver which has no processor time is
    not known to it.
    """

    first: list[float] = field(default_factory=list)
    repeats: list[float] = field(default_factory=list)
    after_ncf: list[float] = field(default_factory=list)
    either: list[dict[str, float]] = field(default_factory=list)
    unasked: list[int] = field(default_factory=list)
    needless: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)  # asked for before anything showed that they are missing


def high_of(payload: bytes) -> int | None:
    """The highest sqn that a datagram tells of: its own, or the lead of a session message."""
    if payload[0] == DATA and not payload[16] & RETRANSMISSION:
        return int.from_bytes(payload[8:12], "big")
    return int.from_bytes(payload[12:16], "big") if payload[0] == SM else None


def schedule_of(arrivals: Sequence[Arrival], asked: Iterable[Asked], grace_ms: float) -> Schedule:
    """Both in order of time. Sqns start at 0 and do not wrap."""
    shown: dict[int, int] = {}  # sqn -> when a later one arrived first
    came: dict[int, int] = {}
    confirmed: dict[int, list[int]] = {}
    next_sqn = 0
    for a in arrivals:
        if a.payload[0] == DATA:
            came.setdefault(int.from_bytes(a.payload[8:12], "big"), a.at_ns)
        elif a.payload[0] == NCF:
            for at in range(16, len(a.payload), 4):
                confirmed.setdefault(int.from_bytes(a.payload[at : at + 4], "big"), []).append(a.at_ns)
        if (high := high_of(a.payload)) is not None and high >= next_sqn:
            shown.update({sqn: a.at_ns for sqn in range(next_sqn, high + 1) if sqn not in came})
            next_sqn = high + 1
    found = Schedule()
    grace_ns = min(grace_ms, NCF_GRACE_MS) * NS_PER_MS
    last: dict[int, int] = {}
    for nak in asked:
        for sqn in nak.sqns:
            if sqn not in shown or nak.at_ns < shown[sqn]:
                found.unknown.append(sqn)
                continue
            if sqn in came and nak.at_ns > came[sqn] + grace_ms * NS_PER_MS:
                found.needless.append(sqn)
            before = last.get(sqn)
            since = -1 if before is None else before
            heard = [t for t in confirmed.get(sqn, ()) if t < nak.at_ns]
            delays: dict[str, float] = {}
            if heard and heard[-1] > since - grace_ns:
                delays["after_ncf"] = (nak.at_ns - heard[-1]) / NS_PER_MS
            if not [t for t in heard if since < t <= nak.at_ns - grace_ns]:
                kind, at_ns = ("first", shown[sqn]) if before is None else ("repeats", before)
                delays[kind] = (nak.at_ns - at_ns) / NS_PER_MS
            if len(delays) > 1:
                found.either.append(delays)
            else:
                for kind, delay in delays.items():
                    getattr(found, kind).append(delay)
            last[sqn] = nak.at_ns
    found.unasked = [sqn for sqn in shown if sqn in came and sqn not in last]
    return found


def outside(delays: Iterable[float], window: tuple[float, float], early_ms: float, late_ms: float) -> list[float]:
    """Delays that lie outside of a window which is wider by these."""
    low, high = window[0] - early_ms, window[1] + late_ms
    return sorted(d for d in delays if not low <= d <= high)
