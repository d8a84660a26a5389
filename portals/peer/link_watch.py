"""Whether a peer portal has a link, since when, and why not: what operators are told about it.

A link that is not there is named once after `ABSENT_NS`, and then every `AGAIN_NS`: silence is no answer. State: the
time of the last change, the last reason, and counts since the start of the portal.

Source: DRO guide 5.5.2 has only the events of links that come and go. Guess: both times.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from dro.clock import NS_PER_S, s
from dro.proto.peerlink.session import LinkEnd

ABSENT_NS: Final = s(60)
AGAIN_NS: Final = s(3600)
NO_ANSWER: Final = (
    "no canary is answered",
    "look for firewalls and for a smaller MTU on the way; tnwgdctl peers shows what waits for the link",
)


@dataclass(frozen=True, slots=True)
class Absence:
    """For the log. `waiting_s`: for so long there is no link."""

    waiting_s: int
    reason: str
    remedy: str


class LinkWatch:
    """One per peer portal. No clock, no socket."""

    def __init__(self, now_ns: int, *, is_initiator: bool, address: str) -> None:
        """`address`: of the companion, or where this side listens."""
        self.is_up = False
        self.carries = True
        """Data, as far as canaries show."""
        self.since_ns = now_ns
        self.links = 0
        self.repairs = 0
        """How often the companion was told everything once more."""
        self.ends: Counter[LinkEnd] = Counter()
        """Counts ends of links, and connections about which the two did not agree."""
        self.failures = 0
        """Attempts that have not led to a link."""
        self.error = ""
        self.remedy = ""
        self._is_initiator = is_initiator
        self._address = address
        self._due_ns: int | None = now_ns + ABSENT_NS

    def on_up(self, now_ns: int) -> None:
        self.is_up, self.since_ns, self._due_ns = True, now_ns, None
        self.error = self.remedy = ""
        self.links += 1

    def on_down(self, now_ns: int, why: str, remedy: str, end: LinkEnd) -> None:
        if self.is_up:
            self.ends[end] += 1
            self.is_up, self.since_ns, self._due_ns = False, now_ns, now_ns + ABSENT_NS
        else:
            self.on_attempt_failed(end)
        self.on_failed(why, remedy)

    def on_attempt_failed(self, end: LinkEnd) -> None:
        """No connection, or one that came to nothing."""
        self.failures += 1
        if end is LinkEnd.NEGOTIATION:
            self.ends[end] += 1

    def on_failed(self, why: str, remedy: str = "") -> None:
        """Note why there is no link; empty when there is no reason any more."""
        if not self.is_up:
            self.error, self.remedy = why, remedy

    def on_claimed(self, why: str, remedy: str) -> None:
        """Somebody else wants the place of the companion, link or not."""
        self.error, self.remedy = why, remedy

    def next_deadline(self) -> int | None:
        return self._due_ns

    def on_timer(self, now_ns: int) -> Absence | None:
        if self._due_ns is None or now_ns < self._due_ns:
            return None
        self._due_ns = now_ns + AGAIN_NS
        return Absence((now_ns - self.since_ns) // NS_PER_S, *self.why_not())

    def why_not(self) -> tuple[str, str]:
        """Say why there is no link, and what to do."""
        start = "start the DRO there or resume its portal"
        if self._is_initiator:
            usual = f"{start}; compare <address> and <port> with its <acceptor>; look for firewalls"
            return self.error or "no attempt to connect has come to an end", self.remedy or usual
        usual = f"{start}; its <initiator> has to lead to {self._address}; look for firewalls"
        return self.error or f"nobody has connected to {self._address}", self.remedy or usual
