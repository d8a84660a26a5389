"""The source side of one session that repairs loss: that of LBT-RM, and with `charge_data` off that of LBT-RU.

`SourceSession` numbers datagrams, keeps references to what was sent for retransmission, answers NAKs and schedules
session messages. It takes and returns numbers and buffer references; packets are built by its shell.

Order of use: the shell asks the data limiter how many datagrams may be sent, writes headers with `next_sqn` and
`trail`, sends, and reports them with `on_sent_run`.

Source: UM Concepts, "LBT-RM"; UM Configuration Guide, source options; statistics names of the C API; a UM 6.14
capture (first sqn 0, no session message before the first data).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from dro.clock import NS_PER_S, ms, s
from dro.proto.ratelimit import RateLimiter
from dro.proto.repair.effects import Buffer, Retransmit, RetransmitStats, SendNcf
from dro.proto.repair.retransmit import Chunk, Retransmitter, TransmissionWindow
from dro.proto.repair.session_messages import SendSm, SmSchedule
from dro.sqn import MASK, ahead
from dro.state import Same, StateLayout

Effect = Retransmit | SendNcf | SendSm


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """Source options of one session; the defaults are those of LBT-RM. Times in ns.

    `rx_queue_bytes` bounds the retransmissions that wait for the limit. Guess: 625000, what the default limit of
    5 Mbit/s carries in one second; scale it with the limit. `sm_before_data` lets a proxy source send session
    messages before its first data (lead is then the sqn before `first_sqn`). `max_ncfs_per_packet` is what fits a
    datagram of 8192 bytes.
    """

    window_size_bytes: int = 25_165_824
    window_limit_bytes: int = 0
    ignore_ns: int = ms(500)
    sm_min_ns: int = ms(200)
    sm_max_ns: int = s(10)
    rx_queue_bytes: int = 625_000
    charge_data: bool = True
    sm_before_data: bool = False
    first_sqn: int = 0
    max_ncfs_per_packet: int = 2044


LBTRU_SOURCE: Final = SourceConfig(charge_data=False)


@dataclass(slots=True)
class SourceStats(RetransmitStats):
    """Statistics of one source session, under the names of the C API; `bytes_sent` counts UDP payload of originals."""

    msgs_sent: int = 0
    bytes_sent: int = 0


class SourceSession:
    """One transport session that this side sends on.

    `next_sqn` is that of the datagram to be sent next, `trail` the oldest that can be sent again; with nothing in
    the window both are equal.
    """

    __slots__ = (
        "_cfg",
        "_last_data_ns",
        "_retransmitter",
        "_sm",
        "_window",
        "next_sm_sqn",
        "next_sqn",
        "stats",
        "trail",
    )

    def __init__(
        self,
        cfg: SourceConfig,
        data_limiter: RateLimiter,
        rx_limiter: RateLimiter,
        start_ns: int,
        *,
        stats: SourceStats | None = None,
    ) -> None:
        """`stats` of a session that goes on with those of one before."""
        self._cfg = cfg
        self.next_sqn = cfg.first_sqn & MASK
        self.trail = self.next_sqn
        self.next_sm_sqn = 0
        self.stats = SourceStats() if stats is None else stats
        self._window = TransmissionWindow(cfg.window_size_bytes, cfg.window_limit_bytes, self.next_sqn)
        self._retransmitter = Retransmitter(
            self._window,
            rx_limiter,
            data_limiter if cfg.charge_data else None,
            ignore_ns=cfg.ignore_ns,
            queue_bytes=cfg.rx_queue_bytes,
            max_ncfs_per_packet=cfg.max_ncfs_per_packet,
            stats=self.stats,
        )
        self._sm = SmSchedule(cfg.sm_min_ns, cfg.sm_max_ns)
        self._last_data_ns: int | None = None
        if cfg.sm_before_data:
            self._sm.restart(start_ns)

    @property
    def lead(self) -> int:
        """The newest sqn sent; the one before `first_sqn` when there is none yet."""
        return (self.next_sqn - 1) & MASK

    @property
    def rx_holder(self) -> Hashable:
        """Return who stands in the line of the retransmission limit: an object outside for the limiter's state."""
        return self._retransmitter

    def on_sent_run(self, count: int, payload_bytes_each: int, ref: Chunk, now_ns: int) -> None:
        """`count` datagrams, numbered from `next_sqn`, were sent; they lie in `ref` and stay there unchanged.

        `payload_bytes_each`: user data in one datagram, UM headers not counted; it is what the window is measured
        in. Datagrams of another length (the short end of a train) make a call of their own.
        """
        self._window.append(count, payload_bytes_each, ref)
        self._on_sent(count, count * ref.length, now_ns)

    def on_sent_mixed(self, ends: Sequence[int], payloads: Sequence[int], buffer: Buffer, now_ns: int) -> None:
        """Do as `on_sent_run` for datagrams of any lengths that fill `buffer`: number i up to `ends[i]`."""
        self._window.append_mixed(ends, payloads, buffer)
        self._on_sent(len(ends), ends[-1], now_ns)

    def _on_sent(self, count: int, nbytes: int, now_ns: int) -> None:
        window = self._window
        self.next_sqn = window.next_index & MASK
        self.trail = window.trail_index & MASK
        self._last_data_ns = now_ns
        self._sm.restart(now_ns)
        stats = self.stats
        stats.msgs_sent += count
        stats.bytes_sent += nbytes

    def adopt(self, count: int, find: Callable[[int], tuple[Buffer, int, int] | None]) -> None:
        """Take over the newest `count` datagrams that the process before has sent; `find` says where one lies."""
        self._window.adopt(count, find)

    def leave_adopted(self) -> None:
        """Let go of the datagrams that were taken over."""
        self._window.leave_adopted()
        self.trail = self._window.trail_index & MASK

    def leave_logged(self, first_sqn: int, is_all_logged: bool) -> None:
        """Let go of datagrams in the log before this one: their memory is used again.

        `is_all_logged`: all that was sent so far lies there, not only what was taken over.
        """
        window = self._window
        window.leave_logged(window.next_index + ahead(first_sqn, self.next_sqn), is_all_logged)
        self.trail = window.trail_index & MASK

    def go_on(self, now_ns: int) -> None:
        """Go on behind the datagrams that were taken over."""
        self.next_sqn, self.trail = self._window.next_index & MASK, self._window.trail_index & MASK
        self._last_data_ns = now_ns
        self.next_sm_sqn = now_ns // NS_PER_S & MASK
        self._sm.restart(now_ns)

    def on_nak(self, sqns: Iterable[int], now_ns: int) -> list[Effect]:
        """One NAK packet of this session; returns what to send, in order."""
        return [*self._retransmitter.on_nak(sqns, now_ns)]

    def begin(self, now_ns: int) -> None:
        """Send session messages from now on, also before the first data."""
        if self._sm.due_ns is None:
            self._sm.restart(now_ns)

    def for_one_receiver(self) -> Retransmitter:
        """Return what answers the NAKs of one receiver, where repairs go to those alone that ask for them."""
        return self._retransmitter.another()

    def on_send_failed(self, sqn: int, length: int) -> None:
        """A `Retransmit` of `length` bytes could not be sent; a receiver may ask again at once."""
        self._retransmitter.on_send_failed(sqn, length)

    def next_deadline(self) -> int | None:
        """Return when `on_timer` has work, ns."""
        sm_ns, rx_ns = self._sm.due_ns, self._retransmitter.wake_ns
        if rx_ns is None:
            return sm_ns
        return rx_ns if sm_ns is None else min(sm_ns, rx_ns)

    def on_timer(self, now_ns: int) -> list[Effect]:
        """Delayed retransmissions, then the session message that is due; returns what to send, in order."""
        effects: list[Effect] = []
        rx_ns = self._retransmitter.wake_ns
        if rx_ns is not None and rx_ns <= now_ns:
            effects += self._retransmitter.drain(now_ns)
        if self._sm.take(now_ns):
            effects.append(self.make_sm(now_ns))
        return effects

    def make_sm(self, now_ns: int) -> SendSm:
        """A session message of now, outside of the schedule (an LBT-RU source answers a connect with one)."""
        sm_sqn = self.next_sm_sqn
        self.next_sm_sqn = (sm_sqn + 1) & MASK
        return SendSm(sm_sqn, self.lead, self.trail, now_ns)

    def busy_until(self, now_ns: int, generation_ns: int) -> int:
        """Return until when a receiver could still ask for something, ns; `now_ns` when nobody can.

        A lost tail is noticed by the first session message, after the minimum interval, and asked for during the
        generation interval of the receivers. Guess: a lost session message is not allowed for.
        """
        if self._last_data_ns is None:
            return now_ns
        return max(now_ns, self._last_data_ns + self._cfg.sm_min_ns + generation_ns)

    def close(self) -> None:
        """Give up what waits and what could be sent again; nothing is sent at the end of a session."""
        self._retransmitter.close()
        self._window.clear()
        self._sm.due_ns = None

    # snapshots of the C API's statistics

    @property
    def txw_msgs(self) -> int:
        return len(self._window)

    @property
    def txw_bytes(self) -> int:
        return self._window.payload_bytes

    @property
    def rctlr_rx_msgs(self) -> int:
        return self._retransmitter.waiting_count


StateLayout(
    SourceSession,
    1,
    next_sqn=int,
    trail=int,
    next_sm_sqn=int,
    stats=Same,
    _last_data_ns=int | None,
    _window=Same,
    _retransmitter=Same,
    _sm=Same,
)
