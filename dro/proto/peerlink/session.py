"""The dialogue on one connection of a peer link: who the other side is, that it lives, and how long an answer takes.

State: what was said and heard since the connection was made. HELLO is sent at once; nothing else before the HELLO of
the other side. Any byte shows life. Source: peer link notes, sections 5, 13 and 15; DRO guide, `<gateway-keepalive>`.
Guess: a response that answers no query of ours is ignored and counted. Each response has digests of what its sender
had recorded when the query came, which is what was told before the query: when they differ, something was missed. For
the sake of these a busy link is asked too, each `COMPARED_NS`. A link is idle when nothing was sent, or nothing came.
A canary is a keepalive of nearly the size of a packet that goes the way of the data, and its answer too. A link with
canaries carries data from the first answer on, for as long as each is followed by another one within the timeout, and
again once there have been `PROVEN` answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from dro.clock import ms, s
from dro.proto.peerlink.messages import (
    COMPRESSION_LZ4,
    NO_DIGESTS,
    Digests,
    Hello,
    MessageKind,
    canary_of,
    canary_response,
    digests_of,
    hello,
    keepalive,
    kind_of,
    read_hello,
    response_to,
)
from dro.proto.peerlink.resume import Progress, read_progress
from dro.samples import Samples
from dro.sqn import MASK
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.dro_blocks import KA_QUERY, KA_RESPONSE, TnwgKeepalive

HELLO_LIMIT_NS: Final = s(10)
"""For HELLO, when there is no keepalive timeout, or a longer one."""
COMPARED_NS: Final = s(30)
FAST_MAX_MS: Final = 5_000, 15_000
"""Gap and timeout, as in the configuration: longer ones are not believed."""
HURRY_NS: Final = ms(200)
"""Between canaries while none is answered."""
PROVEN: Final = 5
ANSWERS_MAX: Final = 200
"""In a second, to queries. No DRO asks so often."""
_ASKED_MAX: Final = 16  # queries without a response that are remembered
_US: Final = 1000


@dataclass(frozen=True, slots=True)
class CanaryOptions:
    """`<canary>` in ns; `padding` makes its size, and cannot be compressed."""

    interval_ns: int
    timeout_ns: int
    padding: bytes


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """`<gateway-keepalive>` in ns, 0: off; and what the configuration of this side wants of the other."""

    interval_ns: int
    timeout_ns: int
    only_when_idle: bool
    uses_udp: bool = False
    uses_compression: bool = False
    canary: CanaryOptions | None = None

    def agreed(self, ours: tuple[int, int] | None, theirs: tuple[int, int] | None) -> LinkOptions:
        """Return options with the keepalives that HELLO has told: the longer times of the two if both are fast."""
        if ours is None or theirs is None:
            return self
        interval_ms, timeout_ms = (max(one, other) for one, other in zip(ours, theirs, strict=True))
        if interval_ms > FAST_MAX_MS[0] or timeout_ms > FAST_MAX_MS[1]:
            return self
        return replace(self, interval_ns=ms(interval_ms), timeout_ns=ms(timeout_ms), only_when_idle=True)


@dataclass(frozen=True, slots=True)
class SendControl:
    """Before everything that waits."""

    message: bytes


@dataclass(frozen=True, slots=True)
class SendCanary:
    """With the data, in its place."""

    message: bytes


@dataclass(frozen=True, slots=True)
class DataPathState:
    """Whether the link carries data, as canaries show. `silent_ns`: since the last answer, or since it was made."""

    is_so: bool
    silent_ns: int


@dataclass(frozen=True, slots=True)
class LinkUp:
    """Both have said who they are. `is_compressed`: from the next byte on, in both directions."""

    hello: Hello
    is_compressed: bool


class LinkEnd(Enum):
    """Why a connection has ended, for the counters; the values are the labels."""

    REMOTE = "remote_close"  # by the companion
    ERROR = "socket_error"
    TIMEOUT = "keepalive_timeout"  # silence
    NEGOTIATION = "negotiation"  # the two do not agree
    SHUTDOWN = "shutdown"  # by this portal


@dataclass(frozen=True, slots=True)
class CloseLink:
    """The connection is of no use: `text` says why, `remedy` what to do."""

    text: str
    remedy: str = ""
    end: LinkEnd = LinkEnd.NEGOTIATION


@dataclass(frozen=True, slots=True)
class Warned:
    """For the log; the link works."""

    text: str
    remedy: str


@dataclass(frozen=True, slots=True)
class RefreshNeeded:
    """The other side has not recorded what it was told: tell it once more."""

    interest: bool
    sources: bool


LinkEffect = SendControl | SendCanary | DataPathState | LinkUp | CloseLink | Warned | RefreshNeeded | Progress


@dataclass(slots=True)
class RttStatistics:
    """Keeps the answer times of the keepalives of a portal."""

    us: Samples = field(default_factory=Samples)
    last_us: int = 0
    last_ns: int = 0  # when the last response came
    asked: int = 0  # keepalives sent
    on_sample: Callable[[int], object] | None = None

    def add(self, rtt_us: int, now_ns: int) -> None:
        if self.on_sample is not None:
            self.on_sample(rtt_us)
        self.us.add(rtt_us)
        self.last_us, self.last_ns = rtt_us, now_ns


def _no_digests() -> Digests:
    return NO_DIGESTS


class LinkSession:
    """Made for each connection; `on_connected` begins the dialogue."""

    def __init__(
        self,
        own: Hello,
        options: LinkOptions,
        now_ns: int,
        *,
        rtt: RttStatistics | None = None,
        told: Callable[[], Digests] = _no_digests,
        recorded: Callable[[], Digests] = _no_digests,
        waits: bool = False,
    ) -> None:
        """`told`: digests of what this side wants and offers, as a question that is put now comes behind it;
        `recorded`: of what is known here of the other side's, as far as all of it was taken; `waits`: HELLO is sent by
        `take_hello` only, so that the other side says nothing else before."""
        self.hello: Hello | None = None
        """Of the other side."""
        self.rtt = rtt if rtt is not None else RttStatistics()
        self.unhandled = 0
        """Messages that nobody here understands, or may use, and responses to no query."""
        self.own = own
        self.options = options
        """As the two have agreed, once both have said who they are."""
        self._told, self._recorded = told, recorded
        self._effects: list[LinkEffect] = []
        self._began_ns = self._heard_ns = self._sent_ns = self._asked_ns = now_ns
        self._index = 0
        self._asked: dict[int, tuple[int, Digests]] = {}  # by index: when, and what had been told by then
        self._is_refreshed = False  # it was told all once more because of that
        self.carries = True
        """Data: as far as canaries show."""
        self._canary: CanaryOptions | None = None  # of a link that is up
        self._canaries: dict[int, None] = {}  # their indexes, of those without an answer
        self._canary_sent_ns = self._canary_answer_ns = now_ns
        self._answers = 0  # in a row
        self._is_first = True  # no canary was in vain yet
        self._is_over = False
        self._waits = waits
        self._answers_from_ns = now_ns  # of the second that counts
        self._answers_now = 0

    def take_effects(self) -> list[LinkEffect]:
        effects, self._effects = self._effects, []
        return effects

    @property
    def is_up(self) -> bool:
        return self.hello is not None and not self._is_over

    @property
    def resumes(self) -> bool:
        """Whether both sides confirm data, and go on with what was not confirmed."""
        return self.own.resumes and self.hello is not None and self.hello.resumes

    @property
    def heard_ns(self) -> int:
        """When anything came last."""
        return self._heard_ns

    # what happens

    def on_connected(self, now_ns: int) -> None:
        self._began_ns = self._heard_ns = self._sent_ns = self._asked_ns = now_ns
        if not self._waits:
            self._effects.append(SendControl(hello(self.own)))

    def take_hello(self) -> bytes:
        """Take HELLO, when it was not sent yet."""
        waits, self._waits = self._waits, False
        return hello(self.own) if waits else b""

    def ask(self, now_ns: int) -> None:
        """Whether anybody answers."""
        self._ask(now_ns)

    def on_received(self, now_ns: int) -> None:
        """Note that some bytes have come."""
        self._heard_ns = now_ns

    def on_sent(self, now_ns: int) -> None:
        """Some bytes, other than keepalives."""
        self._sent_ns = max(self._sent_ns, now_ns)

    def on_message(self, raw: bytes, now_ns: int) -> lbmc.Message | None:
        """A message that is neither data nor control of a source; it is returned if it is not part of the dialogue.

        Raises: DecodeError; the connection is to be closed.
        """
        if self._is_over:
            return None
        if self.resumes and (progress := read_progress(raw)) is not None:
            self._effects.append(progress)
            return None
        kind = kind_of(raw)
        if self.hello is None:
            self._on_first(raw, kind, now_ns)
            return None
        if kind is not MessageKind.CONTROL:
            if kind is MessageKind.OTHER:
                self.unhandled += 1
                return None
            return lbmc.decode(raw)
        message = lbmc.decode(raw)
        if message.must_drop:
            self.unhandled += 1
            return None
        alive = message.get(TnwgKeepalive)
        if alive is not None:
            self._on_keepalive(alive, canary_of(message), now_ns)
            return None
        return None if read_hello(message) is not None else message  # a second HELLO is ignored

    def _on_first(self, raw: bytes, kind: MessageKind, now_ns: int) -> None:
        other = read_hello(lbmc.decode(raw)) if kind is MessageKind.CONTROL else None
        if other is None:
            self._close("it said something else before it said who it is", "check that a DRO is at the other end")
        elif other.version < 1:
            self._close(f"it speaks version {other.version} of the protocol", "use a newer DRO there")
        elif other.context_instance == self.own.context_instance:
            self._close("the link leads back to this portal", "correct its address")
        else:
            self._on_hello(other, now_ns)

    def _on_hello(self, other: Hello, now_ns: int) -> None:
        options = self.options
        if bool(other.udp_port) != options.uses_udp:
            where = "only here" if options.uses_udp else "only at the companion"
            self._close(f"<udp> is configured {where}", "configure it on both sides or on none")
            return
        compresses = COMPRESSION_LZ4 in other.compression
        if compresses != options.uses_compression:
            where = "only here" if options.uses_compression else "only at the companion"
            self._effects.append(
                Warned(f"<compression> is configured {where}, the link is not compressed", "configure it on both sides")
            )
        self.hello = other
        self.options = options.agreed(self.own.fast_ms, other.fast_ms)
        if options.canary is not None and other.has_canaries:
            self._canary, self.carries = options.canary, False
            self._canary_answer_ns = now_ns
            self._canary_sent_ns = now_ns - self._canary_gap_ns(options.canary)  # the first one is due
        elif options.canary is not None:
            remedy = "use a DRO there that does, or remove <canary>"
            self._effects.append(Warned("the companion answers no canaries, the link is used without", remedy))
        self._effects.append(LinkUp(other, compresses and options.uses_compression))

    def _close(self, text: str, remedy: str, end: LinkEnd = LinkEnd.NEGOTIATION) -> None:
        self._is_over = True
        self._effects.append(CloseLink(text, remedy, end))

    # keepalives

    def _may_answer(self, now_ns: int) -> bool:
        if now_ns - self._answers_from_ns >= s(1):
            self._answers_from_ns, self._answers_now = now_ns, 0
        self._answers_now += 1
        return self._answers_now <= ANSWERS_MAX

    def _on_keepalive(self, alive: TnwgKeepalive, canary: bytes, now_ns: int) -> None:
        if alive.flags & KA_QUERY and not self._may_answer(now_ns):
            self.unhandled += 1
        elif alive.flags & KA_QUERY and canary:
            self._effects.append(SendCanary(canary_response(alive, canary)))
        elif alive.flags & KA_RESPONSE and canary and alive.index in self._canaries:
            while (oldest := next(iter(self._canaries))) != alive.index:
                del self._canaries[oldest]
                self._answers = 0
            del self._canaries[alive.index]
            self._on_canary_answer(now_ns)
        elif alive.flags & KA_QUERY:
            self._effects.append(SendControl(response_to(alive, self._recorded() if self._compares else NO_DIGESTS)))
        elif alive.flags & KA_RESPONSE and (asked := self._asked.pop(alive.index, None)) is not None:
            asked_ns, told = asked
            self.rtt.add((now_ns - asked_ns) // _US, now_ns)
            self._compare(digests_of(alive), told)
        else:
            self.unhandled += 1

    def _on_canary_answer(self, now_ns: int) -> None:
        silent_ns, self._canary_answer_ns = now_ns - self._canary_answer_ns, now_ns
        self._answers += 1
        if not self.carries and (self._is_first or self._answers >= PROVEN):
            self.carries, self._is_first = True, False
            self._effects.append(DataPathState(True, silent_ns))

    @property
    def _compares(self) -> bool:
        return self.hello is not None and self.hello.has_digests and self.own.has_digests

    def _compare(self, recorded: Digests, told: Digests) -> None:
        """Compare what the other side had recorded with what it had been told."""
        interest, sources = told.differences(recorded) if self._compares else (False, False)
        if not interest and not sources:
            if told != NO_DIGESTS:
                self._is_refreshed = False
        elif not self._is_refreshed:
            self._is_refreshed = True
            self._asked = {index: (asked_ns, NO_DIGESTS) for index, (asked_ns, _) in self._asked.items()}
            self._effects.append(RefreshNeeded(interest, sources))
        else:
            self._close("it has recorded something else than it was told", "nothing: the link starts anew")

    # time

    def next_deadline(self) -> int | None:
        if self._is_over:
            return None
        deadlines = []
        options = self.options
        if self.hello is None:
            deadlines.append(self._began_ns + self._hello_limit_ns)
        elif options.interval_ns and not self._waits:
            deadlines.append(self._next_query_ns())
        if options.interval_ns and options.timeout_ns:
            deadlines.append(self._heard_ns + options.timeout_ns)
        if self._canary is not None and not self._waits:
            deadlines.append(self._canary_sent_ns + self._canary_gap_ns(self._canary))
            if self._is_unproven:
                deadlines.append(self._canary_answer_ns + self._canary.timeout_ns)
        return min(deadlines, default=None)

    @property
    def _hello_limit_ns(self) -> int:
        return min(HELLO_LIMIT_NS, self.options.timeout_ns or HELLO_LIMIT_NS)

    def _canary_gap_ns(self, canary: CanaryOptions) -> int:
        """Return the gap between canaries, which is shorter while routes wait for an answer."""
        return canary.interval_ns if self.carries else min(canary.interval_ns, HURRY_NS)

    @property
    def _is_unproven(self) -> bool:
        """Whether no answer within the timeout has consequences."""
        return self.carries or self._is_first

    def _next_query_ns(self) -> int:
        options = self.options
        if not options.only_when_idle:
            return self._asked_ns + options.interval_ns
        idle_ns = max(min(self._heard_ns, self._sent_ns), self._asked_ns) + options.interval_ns
        return min(idle_ns, self._asked_ns + max(COMPARED_NS, options.interval_ns)) if self._compares else idle_ns

    def on_timer(self, now_ns: int) -> None:
        if self._is_over:
            return
        options = self.options
        if self.hello is None and now_ns >= self._began_ns + self._hello_limit_ns:
            self._close("it did not say who it is in time", "check that a DRO is at the other end", LinkEnd.TIMEOUT)
        elif options.interval_ns and options.timeout_ns and now_ns >= self._heard_ns + options.timeout_ns:
            silent_ms = (now_ns - self._heard_ns) // 1_000_000
            self._close(f"nothing came for {silent_ms} ms", "check the network between the two", LinkEnd.TIMEOUT)
        elif self.hello is not None and options.interval_ns and not self._waits and now_ns >= self._next_query_ns():
            self._ask(now_ns)
        if self._canary is not None and not self._is_over and not self._waits:
            self._send_canary(self._canary, now_ns)

    def _send_canary(self, canary: CanaryOptions, now_ns: int) -> None:
        silent_ns = now_ns - self._canary_answer_ns
        if self._is_unproven and silent_ns >= canary.timeout_ns:
            self.carries, self._is_first, self._answers = False, False, 0
            self._effects.append(DataPathState(False, silent_ns))
        if now_ns >= self._canary_sent_ns + self._canary_gap_ns(canary):
            self._canary_sent_ns = now_ns
            self._index = self._index + 1 & MASK
            self._canaries[self._index] = None
            if len(self._canaries) > _ASKED_MAX:
                del self._canaries[next(iter(self._canaries))]
            self._effects.append(SendCanary(keepalive(self._index, now_ns // _US, canary.padding)))

    def _ask(self, now_ns: int) -> None:
        self._index = self._index + 1 & MASK
        self._asked_ns = now_ns
        self.rtt.asked += 1
        self._asked[self._index] = now_ns, self._told()
        if len(self._asked) > _ASKED_MAX:
            del self._asked[next(iter(self._asked))]
        self._effects.append(SendControl(keepalive(self._index, now_ns // _US)))
