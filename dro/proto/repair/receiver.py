"""The receiver side of one session that repairs loss; with `LBTRM_LOSS` that of LBT-RM, with `LBTRU_LOSS` of LBT-RU.

`ReceiverSession` gets every DATA, session message and NCF of its session, and the time. It decides which datagrams to
hand up (in order of arrival; it never reorders), keeps the statistics, and emits events: NAKs to send, datagrams given
up, beginning and end of the session. Shells call it once per batch where they can (`on_run`).

Source: UM Concepts, "LBT-RM"; UM Configuration Guide, receiver options; statistics names of the C API.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from dro.clock import NS_PER_MS, NS_PER_US
from dro.proto.repair.loss import (
    LossConfig,
    LossDetector,
    LossReason,
    NakDue,
    Rng,
    SessionEvent,
    Skipped,
    SqnRange,
    Unrecoverable,
    merged,
)
from dro.proto.session_events import Began, Ended
from dro.samples import Samples
from dro.sqn import HALF, MASK, ahead
from dro.state import Same, StateLayout
from dro.wire.transport import NCF_DO_NOT_RETRY, NCF_IGNORED, NCF_RX_DELAY, NCF_SHED

ALL_ONES: Final = 0xFFFFFFFFFFFFFFFF
MEAN_WEIGHT: Final = 8
"""A new sample moves an exponentially weighted mean by 1/8 of its distance. Guess: the weight is not public."""


@dataclass(slots=True)
class ReceiverStats:
    """Statistics of one receiver session, under the names of the C API; times in ms.

    The session counts what it sees. `lbm_msgs_rcved`, `lbm_msgs_no_topic_rcved`, `lbm_reqs_rcved` and
    `dgrams_dropped_*` other than `_other` belong to whoever decodes. Duplicates are part of `msgs_rcved`. The
    minima start at all ones.
    """

    msgs_rcved: int = 0
    bytes_rcved: int = 0
    nak_pckts_sent: int = 0
    naks_sent: int = 0
    lost: int = 0
    ncfs_ignored: int = 0
    ncfs_shed: int = 0
    ncfs_rx_delay: int = 0
    ncfs_unknown: int = 0
    nak_stm_min: int = ALL_ONES
    nak_stm_mean: int = 0
    nak_stm_max: int = 0
    nak_tx_min: int = ALL_ONES
    nak_tx_mean: int = 0
    nak_tx_max: int = 0
    duplicate_data: int = 0
    unrecovered_txw: int = 0
    unrecovered_tmo: int = 0
    out_of_order: int = 0
    lbm_msgs_rcved: int = 0
    lbm_msgs_no_topic_rcved: int = 0
    lbm_reqs_rcved: int = 0
    dgrams_dropped_size: int = 0
    dgrams_dropped_type: int = 0
    dgrams_dropped_version: int = 0
    dgrams_dropped_hdr: int = 0
    dgrams_dropped_sid: int = 0
    dgrams_dropped_other: int = 0


@dataclass(slots=True)
class Recoveries:
    """Keeps after how long, and how many NAKs for each, missing datagrams came that this side had asked for."""

    us: Samples = field(default_factory=Samples)
    naks: Samples = field(default_factory=Samples)


class ReceiverSession:
    """One joined transport session.

    `expected` is the sqn after the newest known one, None before synchronisation and after the end. The first
    original DATA synchronises on itself, a session message on the sqn after its lead; what is older is never asked
    for. `has_events` tells whether `take_events` has something, `active_ns` when the session was last heard.

    Guess: a repair counts in `nak_stm_*` and `nak_tx_*` when this side had asked for it at least once. Guess: an
    sqn older than the synchronisation point is counted as a duplicate like any other old one.

    Guess: a jump of more than `max_gap` sqns is believed only when the next datagram or session message lies in the
    same region; until then it is dropped (`dgrams_dropped_other`), so that one stray packet cannot move the session.
    """

    __slots__ = (
        "_begun",
        "_cfg",
        "_events",
        "_gaps",
        "_loss",
        "_nak_stm",
        "_nak_tx",
        "_recoveries",
        "_suspect",
        "_timeout_ns",
        "active_ns",
        "expected",
        "has_ended",
        "has_events",
        "stats",
    )

    def __init__(
        self,
        cfg: LossConfig,
        rng: Rng,
        joined_ns: int,
        *,
        stats: ReceiverStats | None = None,
        recoveries: Recoveries | None = None,
    ) -> None:
        """`stats` and `recoveries` of a session that goes on with those of one before."""
        self.expected: int | None = None
        self.has_events = False
        self.has_ended = False
        self.stats = ReceiverStats() if stats is None else stats
        self._recoveries = Recoveries() if recoveries is None else recoveries
        self._cfg = cfg
        self._loss = LossDetector(cfg, rng)
        self._gaps = self._loss.gaps
        self._events: list[SessionEvent] = []
        self._begun = False
        self.active_ns = joined_ns
        self._timeout_ns = cfg.preactivity_timeout_ns or cfg.activity_timeout_ns
        self._suspect: int | None = None
        self._nak_stm = float(self.stats.nak_stm_mean)
        self._nak_tx = float(self.stats.nak_tx_mean)

    def go_on_at(self, expected: int, now_ns: int) -> None:
        """Go on with a session of a former process, to which nothing is missing before `expected`; before any data."""
        self.expected = expected
        self._on_activity(now_ns)

    # data

    def on_run(self, first_sqn: int, count: int, trail: int, now_ns: int, nbytes: int = 0) -> None:
        """`count` originals from `first_sqn`, which the caller knows to be `expected`; hand all of them up.

        `trail` is that of the last one, `nbytes` their UDP payload in all.
        """
        self.expected = (first_sqn + count) & MASK
        self.active_ns = now_ns
        self._suspect = None
        stats = self.stats
        stats.msgs_rcved += count
        stats.bytes_rcved += nbytes
        if self._gaps:
            self._move_trail(trail, now_ns)

    def on_data(self, sqn: int, trail: int, is_retransmission: bool, now_ns: int, nbytes: int = 0) -> bool:
        """One datagram. True: hand it up; False: drop it (a duplicate, too old, or not to be believed yet)."""
        if self.has_ended:
            return False
        stats = self.stats
        stats.msgs_rcved += 1
        stats.bytes_rcved += nbytes
        expected = self.expected
        if expected is None:
            self._on_activity(now_ns)
            if is_retransmission:
                return False
            self.expected = (sqn + 1) & MASK
            return True
        jump = (sqn - expected) & MASK
        if jump < HALF:
            if jump > self._cfg.max_gap and not self._is_confirmed(sqn):
                stats.dgrams_dropped_other += 1
                return False
            self._on_activity(now_ns)
            self._suspect = None
            if jump:
                self._open_gap(expected, jump, now_ns)
            self.expected = (sqn + 1) & MASK
            is_new = True
        else:
            self._on_activity(now_ns)
            is_new = self._on_older(sqn, is_retransmission, now_ns)
        if self._gaps:
            self._move_trail(trail, now_ns)
        return is_new

    def _on_older(self, sqn: int, is_retransmission: bool, now_ns: int) -> bool:
        gap = self._loss.repair(sqn)
        stats = self.stats
        if gap is None:
            stats.duplicate_data += 1
            return False
        if not is_retransmission:
            stats.out_of_order += 1
        if gap.naks:
            self._recoveries.us.add((now_ns - gap.found_ns) // NS_PER_US)
            self._recoveries.naks.add(gap.naks)
            waited_ms = (now_ns - gap.found_ns) // NS_PER_MS
            first = stats.nak_stm_min == ALL_ONES
            self._nak_stm = waited_ms if first else self._nak_stm + (waited_ms - self._nak_stm) / MEAN_WEIGHT
            self._nak_tx = gap.naks if first else self._nak_tx + (gap.naks - self._nak_tx) / MEAN_WEIGHT
            stats.nak_stm_min = min(stats.nak_stm_min, waited_ms)
            stats.nak_stm_max = max(stats.nak_stm_max, waited_ms)
            stats.nak_stm_mean = round(self._nak_stm)
            stats.nak_tx_min = min(stats.nak_tx_min, gap.naks)
            stats.nak_tx_max = max(stats.nak_tx_max, gap.naks)
            stats.nak_tx_mean = round(self._nak_tx)
        return True

    # control packets

    def on_session_message(self, lead: int, trail: int, now_ns: int) -> None:
        """The source's newest sqn is `lead`: synchronise on it, or find the tail missing."""
        if self.has_ended:
            return
        expected = self.expected
        after = (lead + 1) & MASK
        if expected is None:
            self._on_activity(now_ns)
            self.expected = after
            return
        jump = (after - expected) & MASK
        if jump < HALF:
            if jump > self._cfg.max_gap and not self._is_confirmed(lead):
                self.stats.dgrams_dropped_other += 1
                return
            self._suspect = None
            self._open_gap(expected, jump, now_ns)
            self.expected = after
        self._on_activity(now_ns)
        if self._gaps:
            self._move_trail(trail, now_ns)

    def on_ncf(self, sqns: Iterable[int], reason: int, trail: int, now_ns: int) -> None:
        """NAK confirmation: the source names sqns that it will not send again now. No sign of activity.

        Each sqn named counts, missing or not; reasons above 3 are taken like "ignored".
        """
        if self.has_ended:
            return
        loss = self._loss
        count = 0
        given_up: list[SqnRange] = []
        for first, n in merged([(sqn, 1) for sqn in sqns]):
            count += n
            if reason != NCF_DO_NOT_RETRY:
                loss.suppress(first, n, now_ns)
            else:
                given_up += loss.take(first, n)
        stats = self.stats
        if given_up:
            oldest = given_up[0][0]
            given_up.sort(key=lambda found: ahead(found[0], oldest))
            self._give_up(merged(given_up), LossReason.TXW, now_ns)
        elif reason == NCF_IGNORED:
            stats.ncfs_ignored += count
        elif reason == NCF_RX_DELAY:
            stats.ncfs_rx_delay += count
        elif reason == NCF_SHED:
            stats.ncfs_shed += count
        elif reason != NCF_DO_NOT_RETRY:
            stats.ncfs_unknown += count
        if self._gaps:
            self._move_trail(trail, now_ns)

    # time

    def next_deadline(self) -> int | None:
        """Return when `on_timer` has work, ns; the past is possible. None once the session has ended."""
        if self.has_ended:
            return None
        end_ns = self.active_ns + self._timeout_ns
        return min(self._loss.next_deadline(), end_ns) if self._gaps else end_ns

    def on_timer(self, now_ns: int) -> None:
        """Do everything that is due at or before `now_ns`: give up, end the session, or ask again."""
        if self.has_ended:
            return
        end_ns = self.active_ns + self._timeout_ns
        if self._gaps and (lost := self._loss.pop_expired(min(now_ns, end_ns))):
            self._give_up(lost, LossReason.TMO, now_ns)
        if now_ns >= end_ns:
            self.end(now_ns)
        elif self._gaps and (sqns := self._loss.pop_naks(now_ns)):
            most = self._cfg.max_naks_per_packet
            for at in range(0, len(sqns), most):
                self._emit(NakDue(tuple(sqns[at : at + most]), now_ns))
                self.stats.nak_pckts_sent += 1
            self.stats.naks_sent += len(sqns)

    def take_events(self) -> list[SessionEvent]:
        """Return what has happened since the last call, in order."""
        events, self._events = self._events, []
        self.has_events = False
        return events

    # questions

    @property
    def end_ns(self) -> int:
        """Return when the session ends unless something comes, ns."""
        return int(self.active_ns + self._timeout_ns)

    @property
    def missing(self) -> int:
        """Datagrams that are asked for."""
        return self._loss.count

    @property
    def contiguous(self) -> int:
        """Newest sqn up to which nothing is missing (the sqn of an LBT-RU ACK); 0xFFFFFFFF before any data."""
        if self.expected is None:
            return MASK
        first = self._loss.oldest if self._gaps else self.expected
        return (first - 1) & MASK

    # within

    def _emit(self, event: SessionEvent) -> None:
        self._events.append(event)
        self.has_events = True

    def _on_activity(self, now_ns: int) -> None:
        self.active_ns = now_ns
        if not self._begun:
            self._begun = True
            self._timeout_ns = self._cfg.activity_timeout_ns
            self._emit(Began(now_ns))

    def end(self, now_ns: int) -> None:
        """End the session; outstanding loss goes unreported, as documented."""
        self.has_ended = True
        self.expected = None
        self._loss.clear()
        self._emit(Ended(now_ns))

    def _is_confirmed(self, sqn: int) -> bool:
        """Say whether the packet before this one named the same far region; this one is the next suspect."""
        suspect, self._suspect = self._suspect, sqn
        if suspect is None:
            return False
        return abs(ahead(sqn, suspect)) <= self._cfg.max_gap

    def _open_gap(self, first_sqn: int, count: int, now_ns: int) -> None:
        """Note that `count` sqns are missing; at most `max_gap` in all are asked for, the newest ones."""
        self.stats.lost += count
        most = self._cfg.max_gap
        skipped = max(0, count - most)
        kept = count - skipped
        overflow = self._loss.count + kept - most
        if overflow > 0:
            self._give_up(self._loss.pop_oldest(overflow), LossReason.TXW, now_ns)
        if skipped:
            self.stats.unrecovered_txw += skipped
            self._emit(Skipped(first_sqn, skipped, now_ns))
        self._loss.open_gap((first_sqn + skipped) & MASK, kept, now_ns)

    def _move_trail(self, trail: int, now_ns: int) -> None:
        if 0 < ((trail - self._loss.oldest) & MASK) < HALF:
            self._give_up(self._loss.pop_before(trail), LossReason.TXW, now_ns)

    def _give_up(self, ranges: Sequence[SqnRange], reason: LossReason, now_ns: int) -> None:
        count = sum([count for _, count in ranges])
        if reason is LossReason.TXW:
            self.stats.unrecovered_txw += count
        else:
            self.stats.unrecovered_tmo += count
        self._emit(Unrecoverable(tuple(ranges), reason, now_ns))


StateLayout(Recoveries, 1, us=Same, naks=Same)
StateLayout(
    ReceiverSession,
    1,
    expected=int | None,
    has_events=bool,
    has_ended=bool,
    stats=Same,
    active_ns=int,
    _recoveries=Same,
    _loss=Same,
    _events=list[SessionEvent],
    _begun=bool,
    _timeout_ns=int,
    _suspect=int | None,
    _nak_stm=float,
    _nak_tx=float,
)
