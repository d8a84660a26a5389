"""Every message that one process of a DRO sends to another, and the codec of each conversation.

Three conversations: parent -> worker and worker -> parent over the control socket that exists from the fork on, and
portal <-> route manager over the control channel of `dro.bus.channel`, where portals also talk to each other. Tags are
never reused for another message; each codec has its own.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from dro.bus.codec import Codec, Form
from dro.shares import ALL_SHARES

ROUTE_MANAGER: Final = 0
"""Worker index of the route manager; portals follow in the order of the configuration, from 1."""


class Role(IntEnum):
    """What a worker is."""

    ROUTE_MANAGER = 1
    ENDPOINT = 2
    PEER = 3
    MONITOR = 4
    HISTORY = 5
    STATISTICS = 6


# parent -> worker


@dataclass(frozen=True, slots=True)
class PeerUp:
    """A sibling can be talked to. A worker is told once it is ready itself; a new incarnation means a new life."""

    worker: int
    incarnation: int
    name: str
    role: Role
    ring: str  # path of its fragment ring, empty when it has none
    ctl: str  # ZeroMQ endpoints


@dataclass(frozen=True, slots=True)
class PeerDown:
    """A sibling has ended; nothing that it said holds any more."""

    worker: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class PeerRemoved:
    """A sibling has left for good, by order of the operator: nothing that it said is held for a return."""

    worker: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Reconfigure:
    """A changed configuration lies, pickled by the parent, in the file `path`; take over what can change live."""

    serial: int
    path: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Withdraw, deliver what you hold, say `Drained`, and go on living without traffic until `Stop`."""

    limit_ms: int


@dataclass(frozen=True, slots=True)
class SetLog:
    """The log goes elsewhere, or looks different: fields of `dro.log.setup.Settings`."""

    kind: str
    file: str
    frequency: str
    size_bytes: int
    level: int
    utc: bool
    json: bool


@dataclass(frozen=True, slots=True)
class Stop:
    """End yourself in good order within `grace_ms`.

    `hands_over`: at the end of this turn, without a word to your network: your next life goes on from what you leave.
    """

    grace_ms: int
    hands_over: bool = False


@dataclass(frozen=True, slots=True)
class Ping:
    """Say that you are alive."""

    serial: int


@dataclass(frozen=True, slots=True)
class ListRows:
    """An operator wants the list `what`: a page of it, from the beginning (`cursor` 0) or after another page."""

    serial: int
    what: str
    text: str  # only rows with this in the name of their topic; of a path, its two domains
    cursor: int


@dataclass(frozen=True, slots=True)
class Recalculate:
    """To the route manager: an operator wants routes to be calculated, though nothing has changed."""


@dataclass(frozen=True, slots=True)
class Leave:
    """To the route manager: this DRO ends soon. Make it dear, and say `RoutesAvoid` when all others know."""


ParentMessage = (
    PeerUp | PeerDown | Stop | Ping | PeerRemoved | Reconfigure | Drain | SetLog | ListRows | Recalculate | Leave
)
PARENT_MESSAGES: Final = Codec[ParentMessage](
    {1: PeerUp, 2: PeerDown, 3: Stop, 4: Ping, 5: PeerRemoved, 6: Reconfigure, 7: Drain, 8: SetLog, 9: ListRows,
     10: Recalculate, 11: Leave}
)  # fmt: skip


# worker -> parent


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker runs; from now on it may be announced to its siblings.

    `goes_on`: from its former incarnation; `ForwardsAgain` follows.
    """

    incarnation: int
    ring: str
    ctl: str
    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The operating system refused what the worker needs; `remedy` names what to change."""

    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """The worker has ended its business and exits next."""


@dataclass(frozen=True, slots=True)
class Pong:
    serial: int


@dataclass(frozen=True, slots=True)
class PeerStuck:
    """A sibling takes no control messages any more, so its state cannot be kept right: it has to start anew."""

    worker: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Reconfigured:
    """Answer to `Reconfigure`: everything is in force, or `problem` says why nothing changed."""

    serial: int
    problem: str


@dataclass(frozen=True, slots=True)
class Drained:
    """Answer to `Drain`: nothing is held any more, or `waiting` says what still was at the limit."""

    waiting: str


@dataclass(frozen=True, slots=True)
class Rows:
    """Answer to `ListRows`: a JSON array of rows of `dro.bus.listing`. More follows unless `cursor` is 0."""

    serial: int
    rows: str
    cursor: int
    problem: str


@dataclass(frozen=True, slots=True)
class RoutesCalculated:
    """The route manager has sent its portals a new table."""

    version: int
    routes: int


@dataclass(frozen=True, slots=True)
class RoutesAvoid:
    """Answer to `Leave`: all DROs have calculated. `paths` between domains still lead through this one, for want of
    another way."""

    paths: int


@dataclass(frozen=True, slots=True)
class Trouble:
    """A worker works, but not all that it should; `reason` is empty when that is over."""

    reason: str


@dataclass(frozen=True, slots=True)
class ForwardsAgain:
    """A portal that goes on forwards what its former incarnation did, as far as its siblings have told it."""


WorkerReport = (
    Ready | StartFailed | Stopped | Pong | PeerStuck | Reconfigured | Drained | Rows | RoutesCalculated | RoutesAvoid
    | Trouble | ForwardsAgain
)  # fmt: skip
WORKER_REPORTS: Final = Codec[WorkerReport](
    {1: Ready, 2: StartFailed, 3: Stopped, 4: Pong, 5: PeerStuck, 6: Reconfigured, 7: Drained, 8: Rows,
     9: RoutesCalculated, 10: RoutesAvoid, 11: Trouble, 12: ForwardsAgain}
)  # fmt: skip


# portal <-> route manager


@dataclass(frozen=True, slots=True)
class PortalUp:
    """Portal -> route manager: this portal works, in that domain, or, with `domain_id` 0, over a link to another DRO.

    `neighbour`: the node id of that DRO, 0 while it is not known. `since_us`: when its initiator began to connect, by
    the clock of that one; both ends of a link report the same. 0: not known.
    """

    worker: int
    domain_id: int
    cost: int
    neighbour: int = 0
    hotlink_index: int = 0
    since_us: int = 0


@dataclass(frozen=True, slots=True)
class PortalGone:
    """Portal -> route manager: it stopped working in its domain, or its link is down; the worker itself may live on."""

    worker: int


@dataclass(frozen=True, slots=True)
class RouteInfoHeard:
    """Portal -> route manager: route information of some DRO, as an LBMC message.

    `ip` and `port`: of the connection by which it came, in a TRD.
    """

    worker: int
    message: bytes
    ip: int = 0
    port: int = 0


@dataclass(frozen=True, slots=True)
class LinkBusy:
    """Portal -> route manager: so much has come over its link that route information has to wait for its turn."""

    worker: int


@dataclass(frozen=True, slots=True)
class SendRouteInfo:
    """Route manager -> portal: pass this LBMC message on, to the companion or to the other DROs of the TRD."""

    message: bytes


@dataclass(frozen=True, slots=True)
class Route:
    """Where traffic from these domains to another one enters and leaves this DRO; indexes of workers.

    `shares`: the trees for which this holds. No two routes of a pair of domains hold for the same tree.
    """

    source_domains: tuple[int, ...]
    interested_domain: int
    ingress: int
    egress: int
    shares: int = ALL_SHARES


@dataclass(frozen=True, slots=True)
class Origin:
    """The path from a domain to this DRO: its cost, and the DROs on it without this one."""

    domain_id: int
    cost: int
    hop_count: int


@dataclass(frozen=True, slots=True)
class RouteTable:
    """Route manager -> portals: the routes through this DRO, to a portal its own; replaces every earlier table.

    `version` grows with each calculation, over restarts of the route manager too. `origins`: of all domains that
    traffic comes from.
    """

    version: int
    routes: tuple[Route, ...]
    origins: tuple[Origin, ...] = ()


@dataclass(frozen=True, slots=True)
class _SharedTable:
    """How `RouteTable` travels: source domains that many routes have in common are there once, and one object."""

    version: int
    sources: tuple[bytes, ...]
    """Each an array of 32-bit numbers, which is read several times as fast as a tuple."""
    routes: tuple[int, ...]
    """Gives the place of the source domains of each route in `sources`, and its other fields."""
    origins: tuple[Origin, ...]


def _shared(table: RouteTable) -> _SharedTable:
    sources = {id(route.source_domains): route.source_domains for route in table.routes}
    places = {one: place for place, one in enumerate(sources)}
    routes: list[int] = []
    for r in table.routes:
        routes += places[id(r.source_domains)], r.interested_domain, r.ingress, r.egress, r.shares
    packed = tuple(array("I", domains).tobytes() for domains in sources.values())
    return _SharedTable(table.version, packed, tuple(routes), table.origins)


def _whole(table: _SharedTable) -> RouteTable:
    sources = {place: tuple(array("I", packed)) for place, packed in enumerate(table.sources)}
    try:
        routes = tuple(Route(sources[place], *rest) for place, *rest in zip(*[iter(table.routes)] * 5, strict=True))
    except KeyError as e:
        raise ValueError("a route without source domains") from e
    return RouteTable(table.version, routes, table.origins)


# What portals send each other stands beside them, with tags from 32 on: the two unions share one channel.

RouteMessage = PortalUp | PortalGone | RouteTable | RouteInfoHeard | SendRouteInfo | LinkBusy
ROUTE_MESSAGES: Final = Codec[RouteMessage](
    {2: PortalUp, 3: PortalGone, 4: RouteTable, 5: RouteInfoHeard, 6: SendRouteInfo, 7: LinkBusy},
    {RouteTable: Form(_SharedTable, _shared, _whole)},
)
