"""A simulated application in a TRD: one source, and receivers of topics or patterns, with what they have got."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from dro.config.um.options import DEFAULTS, UmOptions
from dro.proto.context.sources import BoundSource
from dro.proto.interest.events import Symbol
from dro.um.fragment.options import query_options, wildcard_options
from dro.wire.lbmr import packet as lbmr
from portals.decisions.messages import PATTERN_NONE
from supervisor.tools.simulate.context import SimContext
from supervisor.tools.simulate.messages import Sent
from supervisor.tools.simulate.portal import compiled
from supervisor.tools.simulate.trd import Trd


@dataclass(slots=True)
class Got:
    """Records what one receiver got of one source. Times in ns."""

    newest: int = -1
    taken: int = 0
    passed: tuple[str, ...] = ()
    """Of the newest."""
    at_ns: int = 0
    longest_ns: int = 0
    """Between two messages, since it was set to 0."""
    sqns: set[int] = field(default_factory=set)


class SimApplication:
    """Implements `ContextUser`, with the default options of UM."""

    def __init__(
        self,
        trd: Trd,
        rng: Random,
        topic: bytes,
        symbols: list[Symbol],
        options: UmOptions = DEFAULTS,
    ) -> None:
        self.trd = trd
        self.topic, self.symbols = topic, symbols
        self.domain_id, self.name = trd.domain_id, trd.name
        self.got: dict[bytes, Got] = {}  # by OTID
        self._matches: list[Callable[[bytes], bool]] = []
        self.sqn = 0
        """Of the next message."""
        self._context = SimContext(trd, self, options, rng)
        with self._context.together():
            self.source = self._context.open_source(topic, options)
            self.otid = self.source.own.otid
            self._want(options)

    def _want(self, options: UmOptions) -> None:
        wanted, now_ns = self._context.engine.wanted, self.trd.clock.now_ns
        queries = query_options(options, uses_hotlinks=True)
        for symbol, pattern in self.symbols:
            if pattern == PATTERN_NONE:
                self._matches.append(symbol.__eq__)
                wanted.add_topic(symbol, now_ns, queries)
            elif (matcher := compiled(symbol, pattern)) is not None:
                self._matches.append(matcher)
                wanted.add_pattern((symbol, pattern), matcher, now_ns, wildcard_options(options), queries)

    def publish(self) -> None:
        self.trd.send(self.source.session, Sent(self.otid, self.topic, self.sqn))
        self.sqn += 1

    def wants(self, topic: bytes) -> bool:
        return any(matches(topic) for matches in self._matches)

    def on_data(self, source: BoundSource[Any], sent: Sent) -> None:
        now_ns = self.trd.clock.now_ns
        got = self.got.setdefault(sent.otid, Got())
        if sent.sqn <= got.newest:
            return  # a copy, or it would come out of order
        if got.taken:
            got.longest_ns = max(got.longest_ns, now_ns - got.at_ns)
        got.sqns.add(sent.sqn)
        got.newest, got.passed, got.at_ns = sent.sqn, sent.passed, now_ns
        got.taken += 1

    def on_bound(self, source: BoundSource[Any]) -> None:
        """Data follows."""

    on_unbound = on_changed = on_bound

    def on_packet(self, packet: lbmr.Packet, sender_ip: int) -> None:
        """The engine has taken all that concerns an application."""

    def on_unicast(self, message: bytes, sender_ip: int) -> None:
        """Only DROs get it."""

    def on_servers_back(self) -> None:
        """The context has told all."""
