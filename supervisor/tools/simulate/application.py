"""A simulated application in a TRD: one source, and receivers of topics or patterns, with what they have got."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from dro.proto.interest.events import Symbol
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.options import standard_options
from portals.decisions.messages import PATTERN_NONE, PATTERN_PCRE
from supervisor.tools.simulate.messages import Sent
from supervisor.tools.simulate.portal import compiled
from supervisor.tools.simulate.trd import SimSession, Trd


@dataclass(slots=True)
class Got:
    """Records what one receiver got of one source. Times in ns."""

    newest: int = -1
    taken: int = 0
    repeated: int = 0
    """Copies of what was taken already: two sessions of the TRD carry the source."""
    overtaken: int = 0
    """Older than what was taken already, so that it would come out of order."""
    passed: tuple[str, ...] = ()
    """Of the newest."""
    at_ns: int = 0
    longest_ns: int = 0
    """Between two messages, since it was set to 0."""
    sqns: set[int] = field(default_factory=set)


class SimApplication:
    """Implements `Member`."""

    portal_name: Final = ""

    def __init__(self, trd: Trd, rng: Random, topic: bytes, symbols: list[Symbol]) -> None:
        self._trd = trd
        self.topic, self.symbols = topic, symbols
        self.domain_id, self.name = trd.domain_id, trd.name
        self._matches = [self._matcher(*symbol) for symbol in symbols]
        self.got: dict[bytes, Got] = {}  # by OTID
        self.copies: Counter[tuple[bytes, int]] = Counter()
        """Of each message, over all sessions."""
        self._options = standard_options(rng.randbytes(8), lbmr.SenderType.APPLICATION, trd.domain_id)
        self.session = SimSession(self, rng.randbytes(32), topic)
        self.sqn = 0
        """Of the next message."""
        self._trd.enter(self)
        self._trd.advertise(self.session)
        self._ask()

    @staticmethod
    def _matcher(symbol: bytes, pattern: int) -> Callable[[bytes], bool]:
        matcher = compiled(symbol, pattern) if pattern != PATTERN_NONE else None
        return matcher if matcher is not None else lambda topic: topic == symbol

    def _send(self, body: lbmr.Body) -> None:
        self._trd.send_packets(self, [lbmr.encode(lbmr.Packet(lbmr.VERSION, self._options, body))])

    def _ask(self) -> None:
        """Ask as a receiver does: TQRs for all that is wanted."""
        topics = tuple(symbol for symbol, pattern in self.symbols if pattern == PATTERN_NONE)
        patterns = tuple(
            lbmr.WildcardTqr(pattern=symbol, pattern_type=lbmr.PatternType.PCRE)
            for symbol, pattern in self.symbols
            if pattern == PATTERN_PCRE
        )
        if topics:
            self._send(lbmr.Queries(topics))
        if patterns:
            self._send(lbmr.WildcardQueries(patterns))

    def on_packet(self, packet: lbmr.Packet, sender_ip: int) -> None:
        body = packet.body
        if isinstance(body, lbmr.TopicResolutionRequest):
            self._ask()
        elif isinstance(body, lbmr.TopicManagement):
            used = [r for r in body.records if r.kind == lbmr.TmrType.USE and not r.is_response]
            wanted = [r for r in used if (r.name, r.pattern_type) in self.symbols]
            answers = tuple(lbmr.Tmr(lbmr.TmrType.USE, r.flags | lbmr.TmrFlag.RESPONSE, r.name) for r in wanted)
            if answers:
                self._send(lbmr.TopicManagement(answers))

    def publish(self) -> None:
        self._trd.send(self.session, Sent(self.session.otid, self.topic, self.sqn))
        self.sqn += 1

    def wants(self, session: SimSession) -> bool:
        return any(matches(session.topic) for matches in self._matches)

    def on_data(self, session: SimSession, sent: Sent) -> None:
        now_ns = self._trd.clock.now_ns
        got = self.got.setdefault(sent.otid, Got())
        self.copies[sent.otid, sent.sqn] += 1
        if sent.sqn in got.sqns:
            got.repeated += 1
            return
        if sent.sqn <= got.newest:
            got.overtaken += 1
            return
        if got.taken:
            got.longest_ns = max(got.longest_ns, now_ns - got.at_ns)
        got.sqns.add(sent.sqn)
        got.newest, got.passed, got.at_ns = sent.sqn, sent.passed, now_ns
        got.taken += 1

    def on_joined(self, session: SimSession) -> None:
        """Data follows."""

    on_left = on_changed = on_joined

    def on_unicast(self, message: bytes, sender_ip: int) -> None:
        """Only DROs get it."""
