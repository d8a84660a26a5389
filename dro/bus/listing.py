"""Lists of a worker's topics, sources, interest, proxies and routes, in pages: the rows, and the listings in progress.

A request goes client -> parent -> worker and its page back the same way; for more, the client asks again with the
cursor of the last page. A listing covers the keys that existed when it began, so a key that persists is listed exactly
once; each row has its state when the page is built. The worker is never busy for longer than `PAGE_NS` with a page,
however much it has to search, and a page may be empty with more to follow.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Final

from dro.bus.messages import ListRows, Rows
from dro.clock import ms

PAGE_ROWS: Final = 500
PAGE_BYTES: Final = 60_000  # half of what a control socket carries at once
PAGE_NS: Final = ms(5)
LISTINGS_MAX: Final = 4  # under way in one worker; one more ends the oldest


@dataclass(frozen=True, slots=True)
class TopicRow:
    """What a portal knows of one topic; domains ascending."""

    portal: str
    topic: str
    sources: int  # heard in its TRD
    joined: int  # of these
    wanted_by: tuple[int, ...]  # domains with interest, reached through its TRD
    asked_for: tuple[int, ...]  # domains on whose behalf it asks its TRD
    proxies: int  # proxy sources of the topic that it sends on
    rejected: str = ""  # by its access control list: inbound, outbound or both


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One source that a portal hears in its TRD. `state`: joined, not wanted, rejected, alternative (the same source is
    joined another way)."""

    portal: str
    topic: str
    otid: str
    domain_id: int  # where it originates
    source: str  # its transport session
    state: str
    forwarded_to: tuple[str, ...]  # portals with a proxy source of it
    hop_count: int
    cost: int  # as advertised


@dataclass(frozen=True, slots=True)
class InterestRow:
    """Receivers of a domain want a topic or pattern; `via` is local (the TRD of the portal) or remote (beyond it)."""

    portal: str
    symbol: str
    kind: str  # topic, pcre or regex
    domain_id: int
    via: str
    rejected: bool  # may not leave the DRO there


@dataclass(frozen=True, slots=True)
class ProxyRow:
    """One proxy source or proxy receiver of a portal. `domains` of a receiver: on whose behalf it asks; of a source:
    its origin. `fragments`: taken to be sent since the proxy source exists, each once; they grow, and those that wait
    or find the queue full are among them."""

    portal: str
    proxy: str  # source or receiver
    symbol: str
    kind: str  # topic, pcre or regex
    domains: tuple[int, ...]
    otid: str = ""
    source: str = ""  # its transport session
    fed_by: str = ""  # the portal that hears the origin; empty while none does
    fragments: int = 0


@dataclass(frozen=True, slots=True)
class RouteRow:
    """Traffic from one domain to another enters and leaves the DRO at these portals."""

    from_domain: int
    to_domain: int
    ingress: str
    egress: str
    share: int = 100  # percent of the sources; others of the pair go another way of equal cost


@dataclass(frozen=True, slots=True)
class TopologyRow:
    """A DRO as the route manager knows it, and one of its neighbours, which is left empty when it has none."""

    dro: str  # its name, which may be empty
    node_id: str  # decimal: JSON readers would round the number
    version: int  # 16 bits, grows with its link state changes
    signature: str  # of the topology as it sees it, hexadecimal
    agrees: bool = True  # with the signature of the DRO that is asked
    is_own: bool = False  # it is the DRO that is asked
    age_s: float = 0.0  # since it was heard last
    sharing: str = ""  # of equal costs: in use; ready, or why it hinders the others; empty if no DRO is ready for it
    neighbour: str = ""  # domain id, or node id of a DRO; empty while that is not known
    neighbour_name: str = ""  # of a DRO
    kind: str = ""  # of the neighbour, TRD or DRO
    ingress_cost: int = 0  # from the neighbour to the DRO
    egress_cost: int = 0
    hotlink_index: int = 0
    portal: str = ""  # that leads there, of the DRO that is asked
    remark: str = ""  # why nothing passes there


@dataclass(frozen=True, slots=True)
class PathRow:
    """A node of a path between two domains. Portals have names if they are of the DRO that is asked."""

    kind: str  # TRD or DRO
    node_id: str
    dro: str = ""
    entered_at: str = ""
    ingress_cost: int = 0
    left_at: str = ""
    egress_cost: int = 0
    way: int = 1  # of several of equal cost; the first is that of all that is not the data of a source
    share: int = 100  # percent of the sources that take it


@dataclass(frozen=True, slots=True)
class PeerRow:
    """A peer portal and its link. `state`: up, degraded (it carries nothing), handshake, connecting, waiting (for the
    next attempt), listening, or cannot listen. Bytes and fragments count since the start of the DRO, bytes of the
    stream since the link is up."""

    portal: str
    role: str  # initiator or acceptor
    state: str
    since_s: float  # up, or down, for so long
    dro: str = ""  # name of the companion's DRO, as it has told
    node_id: str = ""  # decimal; empty while it has not told
    local: str = ""  # address and port
    remote: str = ""  # configured, or of the connection
    error: str = ""  # why there is no link, or why the last one ended
    remedy: str = ""
    attempts: int = 0  # of the initiator, since the last link
    next_attempt_s: float = -1.0  # -1: none is due
    transport: str = ""  # TCP, with LZ4, with TLS and its version
    certificate: str = ""  # names in that of the companion
    certificate_days: int = -1  # for so long it is valid; -1: no TLS
    own_certificate_days: int = -1
    rtt_samples: int = 0
    rtt_last_us: int = 0
    rtt_min_us: int = 0
    rtt_max_us: int = 0
    rtt_mean_us: int = 0
    answered_s: float = -1.0  # since the last answer to a keepalive; -1: none yet
    keepalive_interval_ms: int = 0
    keepalive_timeout_ms: int = 0
    keepalive_only_when_idle: bool = False
    interest_told: int = 0  # topics and patterns
    interest_heard: int = 0
    sources_told: int = 0
    sources_heard: int = 0
    fragments_sent: int = 0
    fragments_sent_bytes: int = 0
    fragments_received: int = 0
    fragments_received_bytes: int = 0
    batches: int = 0
    batch_min_bytes: int = 0
    batch_mean_bytes: int = 0
    batch_max_bytes: int = 0
    bytes_sent: int = 0  # of the stream
    bytes_received: int = 0
    waiting_bytes: int = 0  # for the stream
    queued: int = 0  # fragments, in the queue of <max-queue>
    queued_bytes: int = 0
    queue_limit_bytes: int = 0
    repairs: int = 0  # by digests: the companion was told everything once more
    reconnects: int = 0  # links after the first
    lost_bytes: int = 0  # that may not have arrived when a connection ended
    ignored_sources: int = 0  # offered by the companion and not taken


@dataclass(frozen=True, slots=True)
class BlockedRow:
    """A TCP receiver of proxy sources, or a link to another DRO, that does not take what waits for it.

    `state`: waiting (others of its session go on), blocking (its session takes nothing more, so they wait as well), or
    down (there is no link).
    """

    portal: str
    address: str  # of the receiver or companion, and its port
    state: str
    blocked_s: float  # since it took something last, or the link went down
    waiting_bytes: int  # for it, with what its session has in the queue of the portal
    dropped: int  # messages: for a receiver since it is connected, for a link by its queue since the start of the DRO
    topics: tuple[str, ...] = ()  # that it gets, `TOPICS_MAX` at most


@dataclass(frozen=True, slots=True)
class LossRow:
    """Datagrams of one transport session, or of a link, that a portal gave up as lost, none more than a second after
    the one before. `cause`: timeout (nobody repaired them in time), window advance (the source cannot send them any
    more, or refused to), jump (too many at once to ask for), link ended.
    """

    portal: str
    source: str  # the transport session
    began_s: float  # since 1970
    ended_s: float
    lost: int  # sequence numbers
    cause: str
    topics: tuple[str, ...] = ()  # that the session carried then, `TOPICS_MAX` at most; which lost something is unknown
    otid: str = ""  # if it carried only one source


Row = TopicRow | SourceRow | InterestRow | ProxyRow | RouteRow | TopologyRow | PathRow | PeerRow | BlockedRow | LossRow
TOPICS_MAX: Final = 8
"""In one row."""
PROXIES: Final = "proxies"
BLOCKED: Final = "blocked"
LOSSES: Final = "losses"
TOPIC: Final = "topic"  # one, by its whole name
PEERS: Final = "peers"
DEGRADED: Final = "degraded"
ROUTES: Final = "routes"
TOPOLOGY: Final = "topology"
PATH: Final = "path"
IN_USE, READY = "in use", "ready"
"""Of equal-cost sharing, in a `TopologyRow`."""
PORTAL_LISTS: Final[dict[str, type[Row]]] = {
    "topics": TopicRow, "sources": SourceRow, "interest": InterestRow, PROXIES: ProxyRow, TOPIC: TopicRow,
    BLOCKED: BlockedRow, LOSSES: LossRow,
}  # fmt: skip
LISTS: Final[dict[str, type[Row]]] = {
    **PORTAL_LISTS, PEERS: PeerRow, ROUTES: RouteRow, TOPOLOGY: TopologyRow, PATH: PathRow,
}  # fmt: skip
_NAMES: Final = {kind: tuple(field.name for field in fields(kind)) for kind in LISTS.values()}


class Listings:
    """The listings of one worker that are under way. An abandoned one is kept until `LISTINGS_MAX` later ones."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._open: dict[int, Iterator[Row | None]] = {}  # by the cursor of the next page
        self._last_cursor = 0

    def page(self, question: ListRows, begin: Callable[[], Iterator[Row | None]]) -> Rows:
        """The next page. `begin` starts the listing; None among its rows is something looked at and not wanted."""
        if question.cursor:
            found = self._open.pop(question.cursor, None)
            if found is None:
                return Rows(question.serial, "[]", 0, "the listing has lapsed; ask again")
            rows = found
        else:
            rows = begin()
        texts: list[str] = []
        size, until_ns = 0, self._clock_ns() + PAGE_NS
        for row in rows:
            if row is not None:
                texts.append(json.dumps({name: getattr(row, name) for name in _NAMES[type(row)]}))
                size += len(texts[-1]) + 1
            if len(texts) >= PAGE_ROWS or size >= PAGE_BYTES or self._clock_ns() >= until_ns:
                return Rows(question.serial, f"[{','.join(texts)}]", self._keep(rows), "")
        return Rows(question.serial, f"[{','.join(texts)}]", 0, "")

    def _keep(self, rows: Iterator[Row | None]) -> int:
        if len(self._open) >= LISTINGS_MAX:
            del self._open[next(iter(self._open))]
        self._last_cursor += 1
        self._open[self._last_cursor] = rows
        return self._last_cursor
