"""What one sibling has still to be told: changes, and everything once when it is new.

State: one record for each thing that changed and has not been sent, the rest of the exchange, and how much the sibling
has confirmed. Owned by `portals.shell.conversations`; knows no socket and no clock.

    changes        the newest state of each topic, source or request replaces an older one that has not left yet; so
                   what waits is bounded by what there is, and the order for one and the same thing is kept
    new interest   as changes, at most `PACE` a second: strangers make it, and each record costs every sibling its work
    everything     after the changes, as it is when it leaves
    the last       `StateConfirmed`, when nothing else is left

Messages leave in batches of about a millisecond's work; the next leaves when the sibling has worked off one before. A
sibling that confirms nothing for `SILENT_TICKS` ticks in a row, although a batch is on the way, has broken its promise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Final

from dro.clock import NS_PER_S, s
from dro.table import Table
from portals.decisions.messages import (
    PORTAL_MESSAGES,
    ForwardStart,
    ForwardStop,
    InterestAdded,
    InterestRemoved,
    PortalMessage,
    SourceGone,
    SourceSeen,
    StateConfirmed,
    Withdraw,
)

BATCH_RECORDS: Final = 256
BATCH_BYTES: Final = 64 << 10
BATCHES_ON_THE_WAY: Final = 8
"""Both portals have turns of some milliseconds: with two, an exchange waited for confirmations half of the time."""
SPARE: Final = 64
PACE: Final = 5_000  # Guess: records of new interest a second; a sibling needs up to 70 us for one
BURST: Final = 10_000  # Guess
TICK_NS: Final = s(5)
SILENT_TICKS: Final = 6
"""Guess: half a minute. Ticks and not a time: a DRO that was frozen as a whole has not waited."""


OnWorkedOff = Callable[[], object]
_Record = tuple[bytes, OnWorkedOff | None]


def _thing(message: PortalMessage) -> Hashable:
    """Find what the message is about; of two messages about one thing the newer says all."""
    match message:
        case InterestAdded(symbol=name, pattern=pattern, domain_id=domain_id):
            return name, pattern, domain_id
        case InterestRemoved(symbol=name, pattern=pattern, domain_id=domain_id):
            return name, pattern, domain_id
        case SourceSeen(handle=handle) | SourceGone(handle=handle):
            return handle
        case ForwardStart(handle=handle) | ForwardStop(handle=handle):
            return "forward", handle
        case _:
            return type(message).__name__


class _Waiting:
    """Records by what they are about, in the order in which they came to wait."""

    def __init__(self) -> None:
        self._records: Table[Hashable, _Record] = Table()
        self._order: deque[Hashable] = deque()  # of these; what is not among them any more is passed over

    def __len__(self) -> int:
        return len(self._records)

    def put(self, thing: Hashable, record: _Record) -> None:
        if thing not in self._records:
            self._order.append(thing)
        self._records[thing] = record

    def drop(self, thing: Hashable) -> None:
        self._records.pop(thing, None)
        if len(self._order) > 2 * len(self._records) + SPARE:  # what comes and goes while another one waits
            self._order = deque(dict.fromkeys(thing for thing in self._order if thing in self._records))

    def take(self) -> _Record:
        """The first; there must be one."""
        while (record := self._records.pop(self._order.popleft(), None)) is None:
            pass
        return record


class Outbox:
    """See the module text. One for each incarnation of a sibling."""

    def __init__(self, now_ns: int) -> None:
        self._changes = _Waiting()
        self._new_interest = _Waiting()
        self._everything: Iterator[PortalMessage | None] = iter(())
        self._last: bytes = b""
        self._on_the_way: deque[list[OnWorkedOff]] = deque()  # batches: who is told when each is worked off
        self.is_cut = False
        self._allowance_ns = BURST * NS_PER_S // PACE
        self._paced_ns = now_ns
        self._ticks = 0

    def __len__(self) -> int:
        """Changes that wait."""
        return len(self._changes) + len(self._new_interest)

    # what is to be told

    def put(self, message: PortalMessage, encoded: bytes, on_worked_off: OnWorkedOff | None = None) -> None:
        """Put a message. `on_worked_off`: see `on_acked`; not for one that another replaces."""
        thing, record = _thing(message), (encoded, on_worked_off)
        match message:
            case StateConfirmed():
                self._last = encoded
            case InterestAdded():
                self._changes.drop(thing)
                self._new_interest.put(thing, record)
            case InterestRemoved():
                self._new_interest.drop(thing)
                self._changes.put(thing, record)
            case Withdraw():
                self._new_interest = _Waiting()
                self._changes.put(thing, record)
            case _:
                self._changes.put(thing, record)

    def put_all(self, everything: Iterator[PortalMessage | None]) -> None:
        """Take one message after the other from an iterator, when it is its turn."""
        self._everything = everything

    # the batches

    def take(self, now_ns: int) -> bytes:
        """The next batch: encoded messages, one after the other. Empty when there is nothing, or it has to wait.

        `is_cut` says afterwards that so much was looked at, perhaps without a message, that the caller takes a break.
        """
        self.is_cut = False
        if len(self._on_the_way) >= BATCHES_ON_THE_WAY:
            return b""
        records: list[bytes] = []
        told: list[OnWorkedOff] = []
        room = BATCH_BYTES
        for record, on_worked_off in self._records(now_ns):
            records.append(record)
            if on_worked_off is not None:
                told.append(on_worked_off)
            room -= len(record)
            if len(records) >= BATCH_RECORDS or room <= 0:
                self.is_cut = True
                break
        batch = b"".join(records)
        if batch:
            self._on_the_way.append(told)
        return batch

    def _records(self, now_ns: int) -> Iterator[_Record]:
        while self._changes:
            yield self._changes.take()
        while self._new_interest and self._may_add(now_ns):
            yield self._new_interest.take()
        for message in self._everything:
            yield b"" if message is None else PORTAL_MESSAGES.encode(message), None
        if self._last and not self._new_interest:
            last, self._last = self._last, b""
            yield last, None

    def _may_add(self, now_ns: int) -> bool:
        self._allowance_ns = min(self._allowance_ns + now_ns - self._paced_ns, BURST * NS_PER_S // PACE)
        self._paced_ns = now_ns
        if self._allowance_ns < NS_PER_S // PACE:
            return False
        self._allowance_ns -= NS_PER_S // PACE
        return True

    def next_deadline(self) -> int | None:
        """Return when new interest that waits for its pace may leave; None when none waits for that."""
        if not self._new_interest or len(self._on_the_way) >= BATCHES_ON_THE_WAY:
            return None
        return self._paced_ns + BATCH_RECORDS * NS_PER_S // PACE

    # what the sibling confirms

    def on_acked(self, batches: int) -> list[OnWorkedOff]:
        """Note that the sibling has worked off so many more; 0 says that it is alive. Returns who is to be told."""
        self._ticks = 0
        on_the_way = self._on_the_way
        return [told for _ in range(min(batches, len(on_the_way))) for told in on_the_way.popleft()]

    def on_tick(self) -> bool:
        """Say whether the sibling has broken its promise; called every `TICK_NS`."""
        self._ticks = self._ticks + 1 if self._on_the_way else 0
        return self._ticks > SILENT_TICKS
