"""Interest of remote domains as neighbouring DROs announce it in a TRD, and its expiry.

State: which DRO announced which (symbol, domain), and when last. Owned by an endpoint portal, one table for topics and
one for patterns. An entry is tested every `check_interval`, at most `max_entries` of them in one round, the others in
rounds shortly afterwards; an entry that was not repeated for `timeout` is removed, 300 to 390 s after its last repeat.

Source: DRO guide, `<remote-topic>`, `<remote-pattern>`. Guess: several DROs may announce the same interest, so it ends
when the last of them withdraws it; rounds are at least 50 ms apart; interest in the TRD's own domain is ignored.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Final, TypeAlias

from dro.clock import NS_PER_MS
from dro.proto.interest.events import InterestEvent, InterestGained, InterestLost, Symbol
from dro.proto.new_entries import NewEntryLimiter, NewEntryRate
from dro.wire.lbmr import packet as lbmr

NEW_INTEREST: Final = NewEntryRate(in_all=10_000, of_one=10_000)
ROUND_GAP_NS: Final = 50 * NS_PER_MS  # between rounds, however many entries are due


@dataclass(frozen=True, slots=True)
class RemoteInterestOptions:
    """`<remote-topic>` or `<remote-pattern>`."""

    check_interval_ns: int = 90_000 * NS_PER_MS
    max_entries: int = 100  # tested in one round
    timeout_ns: int = 300_000 * NS_PER_MS


DEFAULT_OPTIONS: Final = RemoteInterestOptions()

_Key: TypeAlias = tuple[Symbol, int]  # what, and the domain that wants it
_Times: TypeAlias = tuple[int, int]  # last heard, next test
_Claim: TypeAlias = tuple[_Key, bytes]  # and the context that said so


class RemoteInterest:
    """Interest of domains beyond the TRD. `entries_max` bounds what strangers can make it remember."""

    def __init__(
        self,
        options: RemoteInterestOptions = DEFAULT_OPTIONS,
        *,
        own_domain_id: int = 0,
        is_for_patterns: bool = False,
        entries_max: int = 1_000_000,
    ) -> None:
        self._options = options
        self._own_domain_id = own_domain_id
        self._is_for_patterns = is_for_patterns
        self._entries_max = entries_max
        self._claims: OrderedDict[_Claim, _Times] = OrderedDict()  # in order of their next test
        self._tellers: dict[_Key, int] = {}
        self._domains: Counter[Symbol] = Counter()  # how many want it
        self.kinds: Counter[int] = Counter()  # topics or patterns that are wanted, by pattern type
        self._newcomers = NewEntryLimiter(NEW_INTEREST)
        self._earliest_round_ns = 0
        self._events: list[InterestEvent] = []
        self.refused = 0

    def __len__(self) -> int:
        return len(self._tellers)

    @property
    def limited(self) -> int:
        """How often something new was left out, as too much came in one second."""
        return self._newcomers.refused

    def set_options(self, options: RemoteInterestOptions, now_ns: int) -> None:
        """Other intervals; every entry is tested after a new one from now at the latest."""
        if options == self._options:
            return
        self._options = options
        latest_ns = now_ns + options.check_interval_ns
        for claim, (heard_ns, test_ns) in self._claims.items():  # the order of the tests stays
            self._claims[claim] = (heard_ns, min(test_ns, latest_ns))

    def __contains__(self, key: tuple[Symbol, int]) -> bool:
        return key in self._tellers

    def items(self) -> list[tuple[Symbol, int]]:
        """All (symbol, domain id)."""
        return list(self._tellers)

    def on_packet(self, packet: lbmr.Packet, now_ns: int, source_ip: int = 0) -> None:
        """Interest messages of other DROs; everything else is ignored."""
        options = packet.options
        if not isinstance(packet.body, lbmr.TnwgInterest) or options is None or not options.is_from_dro:
            return
        for record in packet.body.records:
            self.on_record(record, options.source_id or b"", now_ns, source_ip)

    def on_record(self, record: lbmr.InterestRecord, teller: bytes, now_ns: int, source_ip: int = 0) -> None:
        """One record; of the other kind (topic, pattern): ignored."""
        if record.is_pattern != self._is_for_patterns or record.domain_id in (0, self._own_domain_id):
            return
        key = ((record.symbol, record.pattern_type if record.is_pattern else 0), record.domain_id)
        claim = (key, teller)
        if record.is_cancel:
            self._drop(claim)
        elif claim in self._claims:
            self._claims[claim] = (now_ns, self._claims[claim][1])
        elif len(self._claims) >= self._entries_max:
            self.refused += 1
        elif self._newcomers.admit(source_ip, now_ns):
            self._add(claim, now_ns)

    def take_known(self, symbol: Symbol, domain_id: int, now_ns: int) -> None:
        """An older incarnation of the portal had recorded this: it holds for `timeout`, and then if a DRO says so."""
        claim = ((symbol, domain_id), b"")
        if claim not in self._claims and len(self._claims) < self._entries_max:
            self._add(claim, now_ns)

    def _add(self, claim: _Claim, now_ns: int) -> None:
        key = claim[0]
        self._claims[claim] = (now_ns, now_ns + self._options.check_interval_ns)
        told = self._tellers.get(key, 0)
        self._tellers[key] = told + 1
        if not told:
            self._domains[key[0]] += 1
            self.kinds[key[0][1]] += self._domains[key[0]] == 1
            self._events.append(InterestGained(*key))

    def next_deadline(self) -> int | None:
        if not self._claims:
            return None
        return max(next(iter(self._claims.values()))[1], self._earliest_round_ns)

    def on_timer(self, now_ns: int) -> None:
        due = self.next_deadline()
        if due is None or due > now_ns:
            return
        self._earliest_round_ns = now_ns + ROUND_GAP_NS
        for _ in range(min(max(self._options.max_entries, 1), len(self._claims))):
            claim, (heard_ns, test_ns) = next(iter(self._claims.items()))
            if test_ns > now_ns:
                return
            if now_ns - heard_ns >= self._options.timeout_ns:
                self._drop(claim)
            else:
                self._claims[claim] = (heard_ns, now_ns + self._options.check_interval_ns)
                self._claims.move_to_end(claim)

    def take_events(self) -> list[InterestEvent]:
        events, self._events = self._events, []
        return events

    # ------------------------------------------------------------------------------------------------ inside

    def _drop(self, claim: _Claim) -> None:
        if self._claims.pop(claim, None) is None:
            return
        key = claim[0]
        self._tellers[key] -= 1
        if not self._tellers[key]:
            del self._tellers[key]
            self._domains[key[0]] -= 1
            if not self._domains[key[0]]:
                del self._domains[key[0]]
                self.kinds[key[0][1]] -= 1
            self._events.append(InterestLost(*key))
