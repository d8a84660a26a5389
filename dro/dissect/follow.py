"""Recognition from advertisements: which ports carry which protocol, and which topics are on which session.

UM ports are configurable, but every source advertises its address. A `Directory` reads the topic resolution packets of
a capture and from then on knows the groups, NAK ports and TCP ports in use and the topic behind each topic index. In
order of precedence: rules given by the user, advertisements, default ports. All tables are bounded; the oldest entries
are removed first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from dro.dissect.packet import fields
from dro.errors import DecodeError
from dro.wire.lbmr import packet as lbmr
from dro.wire.source_string import LbtrmAddress, LbtruAddress, TcpAddress, TransportAddress
from dro.wire.srs.messages import SRS_PORT

LBMR: Final = "lbmr"
LBMC: Final = "lbmc"
LBTRM: Final = "lbtrm"
LBTRU: Final = "lbtru"
LBTTCP: Final = "lbttcp"
LBMSRS: Final = "lbmsrs"
UDP_PROTOS: Final = (LBMR, LBMC, LBTRM, LBTRU)
TCP_PROTOS: Final = (LBTTCP, LBMC, LBMSRS)

MAX_ENDPOINTS: Final = 65536
MAX_SOURCES: Final = 262144
_MAX_FLOWS: Final = 65536
_VIEW_BYTES: Final = 4 << 20  # of packets whose reading is remembered, because advertisements repeat
_VIEW_PACKET: Final = 4096

# default ports of the UM configuration guide
_LBMR_PORT: Final = 12965
_LBMRD_PORT: Final = 15380
_LBMR_UNICAST: Final = range(14402, 14407)
_LBTRM_GROUPS: Final = range(0xE00A0A0A, 0xE00A0A0F)  # 224.10.10.10 to .14
_LBTRM_PORT: Final = 14400
_LBTRM_NAK: Final = range(14390, 14400)
_MIM: Final = (0xE00A0A15, 14401)  # 224.10.10.21
_LBTRU_SOURCE: Final = range(14380, 14390)
_LBTRU_RECEIVER: Final = range(14360, 14380)
_TCP_SOURCE: Final = range(14371, 14391)
_TCP_ANY: Final = range(14371, 14396)  # sources, then request ports

SessionKey = tuple[str, int, int, int]
"""Transport session: protocol, address of the source, its port (LBT-RM: NAK port), session id (0: none)."""

Endpoint = tuple[int, int]
K = TypeVar("K")
V = TypeVar("V")


class _Table(Generic[K, V]):
    """A dictionary that forgets what was put first when it is full."""

    __slots__ = ("_limit", "items")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.items: OrderedDict[K, V] = OrderedDict()

    def put(self, key: K, value: V) -> bool:
        """True when this told something new."""
        known = self.items.get(key)
        if known is not None and known == value:
            self.items.move_to_end(key)
            return False
        self.items[key] = value
        self.items.move_to_end(key)
        if len(self.items) > self._limit:
            self.items.popitem(last=False)
        return True


@dataclass(frozen=True, slots=True)
class DecodeAs:
    """A user's rule: traffic of these ports, on either side, is `proto`."""

    is_tcp: bool
    low: int
    high: int
    proto: str


@dataclass(frozen=True, slots=True)
class LbmrView:
    """What one topic resolution packet holds, as far as following and counting need it."""

    kind: str
    tqrs: tuple[bytes, ...] = ()
    patterns: tuple[bytes, ...] = ()
    tirs: tuple[lbmr.Tir, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()  # TCP ports that take requests
    records: int = 0  # of other types
    error: DecodeError | None = None


def session_key(address: TransportAddress) -> SessionKey | None:
    """The key of a session on the network; None for shared memory and the like."""
    match address:
        case LbtrmAddress(ip, _, session_id, _, nak_port):
            return (LBTRM, ip, nak_port, session_id)
        case LbtruAddress(ip, port, session_id):
            return (LBTRU, ip, port, session_id)
        case TcpAddress(ip, port, session_id):
            return (LBTTCP, ip, port, session_id)
        case _:
            return None


class Directory:
    """Learns from topic resolution, answers what a port carries and what a topic index means."""

    def __init__(self, rules: Sequence[DecodeAs] = ()) -> None:
        self._rules = tuple(rules)
        self._groups: _Table[Endpoint, bool] = _Table(MAX_ENDPOINTS)
        self._nak_ports: _Table[Endpoint, bool] = _Table(MAX_ENDPOINTS)
        self._lbtru: _Table[Endpoint, int] = _Table(MAX_ENDPOINTS)  # to the newest session id
        self._tcp: _Table[Endpoint, int] = _Table(MAX_ENDPOINTS)
        self._requests: _Table[Endpoint, bool] = _Table(MAX_ENDPOINTS)
        self._sids: _Table[tuple[int, int, int, int], int] = _Table(MAX_ENDPOINTS)  # of one TCP connection
        self._addresses: _Table[SessionKey, TransportAddress] = _Table(MAX_ENDPOINTS)
        self._topics: _Table[tuple[SessionKey, int], bytes] = _Table(MAX_SOURCES)
        self._views: dict[bytes, LbmrView] = {}
        self._view_bytes = 0
        self._udp_flows: dict[tuple[int, int, int, int], str | None] = {}
        self._tcp_flows: dict[tuple[int, int, int, int], str | None] = {}

    # learning

    def on_lbmr(self, data: bytes) -> LbmrView:
        """Read a topic resolution packet and remember the sessions and topics that it names."""
        view = self._views.get(data)
        if view is None:
            view = _view(data)
            if len(data) <= _VIEW_PACKET:
                if self._view_bytes > _VIEW_BYTES:
                    self._views.clear()
                    self._view_bytes = 0
                self._views[data] = view
                self._view_bytes += len(data) + 512
        is_new = False
        for tir in view.tirs:
            is_new |= self._learn(tir)
        for endpoint in view.endpoints:
            is_new |= self._requests.put(endpoint, True)
        if is_new:
            self._udp_flows.clear()
            self._tcp_flows.clear()
        return view

    def on_tcp_sid(self, receiver_flow: tuple[int, int, int, int], session_id: int) -> None:
        """A receiver told the source at the far end of its connection which session it means."""
        src, sport, dst, dport = receiver_flow
        self._sids.put((dst, dport, src, sport), session_id)

    def _learn(self, tir: lbmr.Tir) -> bool:
        key = session_key(tir.transport)
        if key is None:
            return False
        self._topics.put((key, tir.topic_index), tir.topic)
        self._addresses.put(key, tir.transport)
        match tir.transport:
            case LbtrmAddress(ip, group, _, dport, nak_port):
                is_new = self._groups.put((group, dport), True)
                return self._nak_ports.put((ip, nak_port), True) or is_new
            case LbtruAddress(ip, port, session_id):
                return self._lbtru.put((ip, port), session_id)
            case TcpAddress(ip, port, session_id):
                return self._tcp.put((ip, port), session_id)
        return False

    # answers

    def udp_proto(self, src: int, sport: int, dst: int, dport: int) -> str | None:
        """Protocol of a datagram, None when it is not known as one of UM's."""
        flow = (src, sport, dst, dport)
        try:
            return self._udp_flows[flow]
        except KeyError:
            pass
        if len(self._udp_flows) >= _MAX_FLOWS:
            self._udp_flows.clear()
        proto = self._udp_flows[flow] = self._find_udp(src, sport, dst, dport)
        return proto

    def tcp_proto(self, src: int, sport: int, dst: int, dport: int) -> str | None:
        flow = (src, sport, dst, dport)
        try:
            return self._tcp_flows[flow]
        except KeyError:
            pass
        if len(self._tcp_flows) >= _MAX_FLOWS:
            self._tcp_flows.clear()
        proto = self._tcp_flows[flow] = self._find_tcp(src, sport, dst, dport)
        return proto

    def _find_tcp(self, src: int, sport: int, dst: int, dport: int) -> str | None:
        proto = self._by_rule(True, sport, dport)
        if proto is not None:
            return proto
        if self._is_advertised(src, sport) or self._is_advertised(dst, dport):
            return LBTTCP
        if SRS_PORT in (sport, dport):
            return LBMSRS
        return LBTTCP if sport in _TCP_ANY or dport in _TCP_ANY else None

    def has_rule_for_tcp(self, sport: int, dport: int) -> bool:
        """Whether the user says what this is. An advertised port may still carry TLS or compressed data."""
        return self._by_rule(True, sport, dport) is not None

    def _is_advertised(self, ip: int, port: int) -> bool:
        return (ip, port) in self._tcp.items or (ip, port) in self._requests.items

    def tcp_session(self, src: int, sport: int, dst: int, dport: int) -> SessionKey | None:
        """Session of a connection as seen from its source; None when the sender is not the source's side."""
        endpoint = (src, sport)
        newest = self._tcp.items.get(endpoint)
        if newest is None and sport not in _TCP_SOURCE:
            return None
        session_id = self._sids.items.get((src, sport, dst, dport))
        if session_id is None or (LBTTCP, src, sport, session_id) not in self._addresses.items:
            session_id = newest if newest is not None else session_id or 0
        return (LBTTCP, src, sport, session_id)

    def lbtru_session(self, ip: int, port: int, session_id: int | None) -> SessionKey:
        """Session of an LBT-RU source; a packet without the option belongs to the newest one advertised there."""
        if session_id is None:
            session_id = self._lbtru.items.get((ip, port), 0)
        return (LBTRU, ip, port, session_id)

    def address(self, key: SessionKey) -> TransportAddress | None:
        return self._addresses.items.get(key)

    def topic(self, key: SessionKey, index: int) -> bytes | None:
        return self._topics.items.get((key, index))

    def _by_rule(self, is_tcp: bool, sport: int, dport: int) -> str | None:
        for rule in self._rules:
            if rule.is_tcp == is_tcp and (rule.low <= dport <= rule.high or rule.low <= sport <= rule.high):
                return rule.proto
        return None

    def _find_udp(self, src: int, sport: int, dst: int, dport: int) -> str | None:
        proto = self._by_rule(False, sport, dport)
        if proto is not None:
            return proto
        if (dst, dport) in self._groups.items or (dst, dport) in self._nak_ports.items:
            return LBTRM
        if (src, sport) in self._lbtru.items or (dst, dport) in self._lbtru.items:
            return LBTRU
        if dport == _LBMR_PORT:
            return LBMR
        if (dport == _LBMRD_PORT and sport in _LBMR_UNICAST) or (sport == _LBMRD_PORT and dport in _LBMR_UNICAST):
            return LBMR
        if dst >> 28 == 0xE:
            is_default = (dst in _LBTRM_GROUPS and dport == _LBTRM_PORT) or (dst, dport) == _MIM
            return LBTRM if is_default else None
        if dport in _LBTRM_NAK:
            return LBTRM
        if (sport in _LBTRU_SOURCE and dport in _LBTRU_RECEIVER) or (
            dport in _LBTRU_SOURCE and sport in _LBTRU_RECEIVER
        ):
            return LBTRU
        return None


def _view(data: bytes) -> LbmrView:
    packet, _ = lbmr.decode_lenient(data)
    error = fields(LBMR, data).error
    if packet is None:
        return LbmrView("unreadable", error=error)
    match packet.body:
        case lbmr.Queries(tqrs, tirs):
            kind = "queries" if tqrs or tirs else "keepalive"
            return LbmrView(kind, tqrs=tqrs, tirs=tirs, endpoints=_requests(tirs), error=error)
        case lbmr.WildcardQueries(patterns, tirs):
            texts = tuple(pattern.pattern for pattern in patterns)
            return LbmrView("wildcard queries", patterns=texts, tirs=tirs, endpoints=_requests(tirs), error=error)
        case lbmr.TopicManagement(records):
            return LbmrView("topic management", records=len(records), error=error)
        case lbmr.TnwgInterest(records):
            return LbmrView("DRO interest", records=len(records), error=error)
        case lbmr.RemoteDomainRoute(address, port):
            return LbmrView("domain route", endpoints=((address, port),), records=1, error=error)
        case body:
            return LbmrView(_KINDS.get(type(body), "other"), records=1, error=error)


_KINDS: Final[dict[type, str]] = {
    lbmr.ReceiverAlive: "keepalive",
    lbmr.SourceAlive: "keepalive",
    lbmr.QueueResolution: "queue resolution",
    lbmr.ProxySourceElection: "proxy source election",
    lbmr.QueueManagement: "queue management",
    lbmr.ContextInfo: "context information",
    lbmr.TopicResolutionRequest: "topic resolution request",
    lbmr.TnwgContextInfo: "DRO context information",
    lbmr.TnwgTopicResolutionRequest: "DRO topic resolution request",
    lbmr.RemoteContextInfo: "remote context information",
}


def _requests(tirs: tuple[lbmr.Tir, ...]) -> tuple[Endpoint, ...]:
    found: list[Endpoint] = []
    for tir in tirs:
        extended = tir.options.extended if tir.options else None
        if extended is not None and extended.ip and extended.port:
            found.append((extended.ip, extended.port))
    return tuple(found)
