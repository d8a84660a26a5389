"""A `ReceiverSession` driven by a script in ms, its outputs noted with the time at which they became due."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dro.clock import ms
from dro.proto.repair.loss import LossConfig, NakDue, Skipped, SqnRange, Unrecoverable
from dro.proto.repair.receiver import ReceiverSession, ReceiverStats
from dro.proto.session_events import Began, Ended

Note = tuple[object, ...]
"""("up", t, sqn), ("drop", t, sqn), ("nak", t, sqns), ("lost", t, reason, sqns), ("bos", t), ("eos", t); t in ms."""


def sqns_of(ranges: Iterable[SqnRange]) -> tuple[int, ...]:
    return tuple((first + i) & 0xFFFFFFFF for first, count in ranges for i in range(count))


def _in_ms(at_ns: int) -> float:
    return at_ns // 1_000_000 if at_ns % 1_000_000 == 0 else at_ns / 1_000_000


class ReceiverBench:
    """Time goes forward by the inputs; before each of them, everything due earlier or at the same time is run."""

    def __init__(self, cfg: LossConfig | None = None, draws: Iterable[float] = (), joined_ms: int = 0) -> None:
        self._draws: Iterator[float] = iter(draws)
        self.session = ReceiverSession(cfg or LossConfig(), self._draw, ms(joined_ms))
        self.notes: list[Note] = []

    def _draw(self) -> float:
        return next(self._draws, 0.5)

    @property
    def stats(self) -> ReceiverStats:
        return self.session.stats

    def tick(self, t: float) -> None:
        """Run everything due at or before `t`, each at its own time."""
        self._drain()
        while (deadline := self.session.next_deadline()) is not None and deadline <= ms(t):
            self.session.on_timer(deadline)
            self._drain()

    def data(self, t: float, sqn: int, trail: int = 0, *, rx: bool = False) -> None:
        self.tick(t)
        is_new = self.session.on_data(sqn, trail, rx, ms(t))
        self._drain()
        self.notes.append(("up" if is_new else "drop", t, sqn))
        self.tick(t)

    def run(self, t: float, first_sqn: int, count: int, trail: int = 0) -> None:
        self.tick(t)
        self.session.on_run(first_sqn, count, trail, ms(t))
        self.tick(t)

    def sm(self, t: float, lead: int, trail: int = 0) -> None:
        self.tick(t)
        self.session.on_session_message(lead, trail, ms(t))
        self.tick(t)

    def ncf(self, t: float, reason: int, sqns: tuple[int, ...], trail: int = 0) -> None:
        self.tick(t)
        self.session.on_ncf(sqns, reason, trail, ms(t))
        self.tick(t)

    def _drain(self) -> None:
        had_events = self.session.has_events
        events = self.session.take_events()
        assert had_events == bool(events)
        assert not self.session.has_events
        for event in events:
            at = _in_ms(event.at_ns)
            match event:
                case NakDue(sqns=sqns):
                    self.notes.append(("nak", at, sqns))
                case Unrecoverable(ranges=ranges, reason=reason):
                    self.notes.append(("lost", at, reason.value, sqns_of(ranges)))
                case Skipped(first_sqn=first, count=count):
                    self.notes.append(("skipped", at, first, count))
                case Began():
                    self.notes.append(("bos", at))
                case Ended():
                    self.notes.append(("eos", at))

    def of(self, *kinds: str) -> list[Note]:
        """The notes of these kinds, in order."""
        return [note for note in self.notes if note[0] in kinds]


def synchronised(
    cfg: LossConfig | None = None, draws: Iterable[float] = (), sqn: int = 10, trail: int = 0
) -> ReceiverBench:
    """Joined at 0 and synchronised by DATA `sqn` at 0."""
    bench = ReceiverBench(cfg, draws)
    bench.data(0, sqn, trail)
    assert bench.notes == [("bos", 0), ("up", 0, sqn)]
    bench.notes.clear()
    return bench
