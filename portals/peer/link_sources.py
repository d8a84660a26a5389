"""Keeps what the companion offers over one connection: what is let in, and under which number.

What is offered has numbers of its connection; the next connection takes over what it offers again, by OTID, with its
handle and with the siblings that want it. Hop count and cost come from the routes, as a link carries neither. Part of
`portals.peer.link_core`.

Source: peer link notes, section 9; forwarding notes, section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from dro.errors import DecodeError
from dro.log.events import LogEvent
from dro.proto.peerlink.messages import SourceEnd, SourceRecord, read_source
from dro.proto.peerlink.sources import OfferedByCompanion, OfferVerdict
from dro.table import Table
from dro.wire.lbmc.message import Message
from dro.wire.source_string import TcpAddress, address_text
from portals.decisions.messages import SourceSeen
from portals.peer.link_effects import AddSource, ChangeSource, LinkCoreEffect, Log, RemoveSource

FORMER_CONNECTION: Final = 0
NO_ADDRESS: Final = TcpAddress(0, 0)
"""Stand for the connections of the process before; others have numbers from 1 on."""
JoinFilter = Callable[[bytes, TcpAddress], bool]
"""Whether a source of the topic may enter the DRO over the link."""


@dataclass(frozen=True, slots=True)
class DomainCosts:
    """Hop count and cost from each domain to this portal; what the routes do not know is at the companion at least."""

    cost: int
    by_domain: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    def to(self, domain_id: int) -> tuple[int, int]:
        return self.by_domain.get(domain_id, (1, self.cost))


class LateData(Protocol):
    """Data of a source may come after its end."""

    def on_end(self, otid: bytes, number: int) -> None:
        """Let a source that has ended linger."""

    def take(self, otid: bytes) -> int | None:
        """The source is offered anew: the number that lingered, which is to be removed now."""


class LinkSources:
    """See the module text."""

    def __init__(
        self,
        connection: int,
        peer: TcpAddress,
        sources_max: int,
        costs: DomainCosts,
        may_enter: JoinFilter | None,
        ask: Callable[[LinkCoreEffect], object],
        late: LateData | None,
        held: Sequence[LinkSources],
    ) -> None:
        """With `late`, a source that has ended stays until `remove`. `held`: those of connections before."""
        self.connection = connection
        self._peer = peer
        self._offered = OfferedByCompanion(sources_max)
        self._costs = costs
        self._may_enter = may_enter
        self._ask = ask
        self._late = late
        self._held = held
        self._let_in: Table[int, None] = Table()
        self.ignored = 0
        """Sources that were offered and not taken."""

    def __len__(self) -> int:
        return len(self._offered)

    @property
    def digest(self) -> int | None:
        return self._offered.digest

    @property
    def left(self) -> int:
        """Count those that are let in and were not removed or taken over."""
        return len(self._let_in)

    def all(self) -> Iterator[SourceRecord]:
        return self._offered.all()

    def is_known(self, number: int) -> bool:
        """Offered, let in or not."""
        return self._offered.has(number)

    def on_message(self, message: Message) -> None:
        """Take a message of the companion about one source."""
        try:
            about = read_source(message)
        except DecodeError as e:
            fields = {"peer": address_text(self._peer), "error": str(e)}
            self._ask(Log(LogEvent.PEER_SOURCE_UNREADABLE, fields, is_limited=True))
            return
        if isinstance(about, SourceEnd):
            self.on_end(about)
        else:
            self.on_source(about)

    def on_source(self, record: SourceRecord) -> None:
        """New, or offered with other attributes, or in the place of others."""
        verdict, gone = self._offered.on_source(record)
        if verdict is not OfferVerdict.TAKEN:
            self.ignored += 1
            fields = {"topic": record.topic.decode(errors="replace"), "otid": record.otid.hex()}
            fields["reason"] = verdict.value
            self._ask(Log(LogEvent.PEER_SOURCE_IGNORED, fields, is_limited=True))
            return
        for other in gone:
            self.remove(other.srcidx)
        if self._late is not None and (before := self._late.take(record.otid)) is not None:
            self.remove(before)
        self._put(record)

    def hold(self, source: SourceSeen) -> None:
        """Let in a source of a connection that this process never had, under any number."""
        number, options = len(self._offered) + 1, source.pass_through
        record = SourceRecord(number, source.domain_id, source.topic, source.otid, 0, options=options)
        if self._offered.on_source(record)[0] is OfferVerdict.TAKEN:
            self._let_in[number] = None
            self._ask(AddSource(self.connection, record, source.hop_count, source.cost, None))

    def _put(self, record: SourceRecord) -> None:
        cost = self._costs.to(record.domain_id)
        if self._may_enter is not None and not self._may_enter(record.topic, self._peer):
            self.remove(record.srcidx)
        elif record.srcidx in self._let_in:
            self._ask(ChangeSource(self.connection, record, *cost))
        else:
            self._let_in[record.srcidx] = None
            self._ask(AddSource(self.connection, record, *cost, self._taken_over(record)))

    def _taken_over(self, record: SourceRecord) -> tuple[int, int] | None:
        """Find the same source as a connection before had it; it is not held any more."""
        for sources in self._held:
            known = sources._offered.find(record.otid)
            if known is None or (known.topic, known.domain_id) != (record.topic, record.domain_id):
                continue
            if known.srcidx in sources._let_in:
                del sources._let_in[known.srcidx]
                return sources.connection, known.srcidx
        return None

    def on_end(self, end: SourceEnd) -> None:
        if self._offered.on_end(end) is None:
            return
        if self._late is not None:
            self._late.on_end(end.otid, end.srcidx)
        else:
            self.remove(end.srcidx)

    def remove(self, number: int) -> None:
        if number in self._let_in:
            del self._let_in[number]
            self._ask(RemoveSource(self.connection, number))

    def remove_all(self) -> Iterator[None]:
        """Remove in steps what is held of the connection."""
        for number in self._let_in.snapshot():
            self.remove(number)
            yield

    def set_costs(self, costs: DomainCosts) -> Iterator[None]:
        """Tell anew what is offered of domains that are reached otherwise."""
        self._costs, before = costs, self._costs
        return self._review(lambda record: before.to(record.domain_id) != costs.to(record.domain_id))

    def set_filter(self, may_enter: JoinFilter | None) -> Iterator[None]:
        """Let in only what it accepts."""
        self._may_enter = may_enter
        return self._review(lambda _: True)

    def _review(self, concerns: Callable[[SourceRecord], bool]) -> Iterator[None]:
        for record in self._offered.all():
            if concerns(record):
                self._put(record)
            yield
