"""The two hosts of an `<endpoint>` portal, and the player of its scripts, who plays the TRD, the sibling and routes.

What others say in the TRD is given to the topic resolution of the portal, and what it says is noted, record by record.
Sessions are those of a simulated TRD in both hosts: nothing is sent, and they end as the script says.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol, cast

from dro.bus.messages import Route
from dro.clock import NS_PER_MS
from dro.config.dro_xml.load import load_dro
from dro.config.dro_xml.model import DroConfig, EndpointConfig
from dro.config.um.options import UmOptions
from dro.loop import Loop
from dro.proto.context.engine import ContextEngine
from dro.proto.context.sources import BoundSource
from dro.proto.resolver.events import FoundSource
from dro.transport.kind import JoinedSessions, SenderPool
from dro.transport.session import OnEnded, ReceiverTransport, SenderTransport
from dro.um.fragment.resolution import TopicResolution
from dro.wire.lbmr import packet as lbmr
from dro.wire.source_string import LbtrmAddress, TcpAddress, TransportAddress
from portals.decisions.core import PortalCore
from portals.decisions.engine import PortalEngine
from portals.decisions.messages import PATTERN_NONE, PATTERN_PCRE, KnownSource, SourceSeen
from portals.endpoint.known_sources import join_info_of
from portals.endpoint.portal import EndpointPortal
from supervisor.tools.simulate.clock import SimClock
from supervisor.tools.simulate.endpoint import EndpointEnd
from supervisor.tools.simulate.messages import Sent
from supervisor.tools.simulate.portal import SimPortal
from supervisor.tools.simulate.trd import Member, SimSession, Trd
from tests.fakes.transport import FakeSender, FakeTransport
from tests.fakes.um_contexts import Stepper
from tests.fakes.worker import FakeWorker
from tests.rigs.portal_hosts.peer import daemon
from tests.rigs.portal_hosts.script import SIBLING, START_NS, Host, Player, note_effects, run_stepped, to_bytes
from tests.rigs.site import DRO, PORTAL, Site

ME: Final = 1
HERE, THERE, BEYOND = 1, 99, 98  # domains of the TRD, and two behind the sibling
_FIRST_IP: Final = 0x7F000010
_UM: Final = """\
<um-configuration version="1.0"><applications><application name="A"><contexts><context name="own">
<sources><topic pattern="^own"><options type="source">
<option name="transport" default-value="tcp"/>
<option name="resolver_advertisement_sustain_interval" default-value="3000"/>
</options></topic></sources>
<receivers><topic pattern="^own"><options type="receiver">
<option name="resolver_query_minimum_initial_interval" default-value="500"/>
</options></topic></receivers>
<wildcard-receivers><wildcard-receiver pattern="^own" pattern-type="pcre"><options type="wildcard-receiver">
<option name="resolver_query_minimum_interval" default-value="700"/>
</options></wildcard-receiver></wildcard-receivers>
</context></contexts></application></applications></um-configuration>"""
_DAEMON: Final = "<xml-config>{folder}/um.xml</xml-config>"
_MORE: Final = """
      <source-context-name>own</source-context-name><receiver-context-name>own</receiver-context-name>
      <cost>{cost}</cost><source-deletion-delay>500</source-deletion-delay>
      <acl><inbound><ace match="reject"><topic>{closed}</topic></ace><ace match="accept"><topic>.*</topic></ace>
      </inbound></acl>"""


class NoChance(random.Random):
    """Everything that is drawn is the least, and names the portal."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return 0 if stop is None else start

    def getrandbits(self, k: int) -> int:
        return 1

    def randbytes(self, n: int) -> bytes:
        return b"portal A"[:n]


@dataclass(frozen=True)
class Record:
    """Was sent to the TRD."""

    record: object


def records_of(datagram: bytes) -> Iterator[object]:
    """Yield what a datagram says; context information is no affair of the simulator."""
    match lbmr.decode(datagram).body:
        case lbmr.Queries(tqrs, tirs):
            yield from (*(("Tqr", topic) for topic in tqrs), *tirs)
        case lbmr.WildcardQueries(patterns, tirs):
            yield from (*patterns, *tirs)
        case lbmr.TopicManagement(records) | lbmr.TnwgInterest(records):
            yield from records
        case lbmr.RemoteDomainRoute(domains=domains):
            yield "domain route", domains
        case lbmr.TnwgContextInfo() | lbmr.ContextInfo() | lbmr.RemoteContextInfo():
            pass
        case body:
            yield body


class PlayedMember:
    """Another context of the TRD. Implements `Member`."""

    def __init__(self, ip: int, name: str, *, is_dro: bool, domain_id: int = HERE) -> None:
        self.ip, self.name, self.is_dro = ip, name, is_dro
        self.options: UmOptions
        kind = lbmr.SenderType.DRO if is_dro else lbmr.SenderType.APPLICATION
        self.packet_options = lbmr.standard_options(name.encode().ljust(8), kind, domain_id)

    def on_packet(self, packet: lbmr.Packet, sender_ip: int) -> None: ...

    def on_unicast(self, message: bytes, sender_ip: int) -> None: ...

    def on_data(self, session: SimSession, sent: Sent) -> None: ...

    def on_session_ended(self, session: SimSession) -> None: ...

    def on_servers_back(self) -> None: ...


class EndpointHost(Host, Protocol):
    """A portal in TRD 1."""

    trd: Trd
    um: UmOptions

    def hear(self, packet: lbmr.Packet, sender_ip: int) -> None:
        """Take it from the channel of the TRD."""


class _Endpoint:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._site = Site(folder, 1)
        (folder / "um.xml").write_text(_UM)
        self._values = {"closed": "closed", "cost": "4"}
        self.notes: list[tuple[int, object]] = []
        self.um = self._config().sending.context()

    def _config(self, **changes: str) -> EndpointConfig:
        self._values |= changes
        return self._load().portals[0]

    def _load(self) -> DroConfig:
        path = self._folder / "dro.xml"
        portal = PORTAL.format(trd=HERE, extra=_MORE.format(**self._values))
        path.write_text(DRO.format(name="A", portals=portal, daemon=_DAEMON.format(folder=self._folder)))
        return load_dro(str(path), warn=lambda _: None)

    def _watch(self, core: PortalCore, context: ContextEngine) -> None:
        self.core = core
        note_effects(cast(Host, self), core)
        take = context.take_effects

        def taken(now_ns: int) -> Iterator[Any]:
            for effect in take(now_ns):
                self.notes.append((now_ns, effect))
                yield effect

        context.take_effects = taken  # type: ignore[method-assign]  # the same, and noted

    def _note_datagrams(self, datagrams: Iterable[bytes]) -> None:
        now_ns = cast(Host, self).now_ns()
        for datagram in datagrams:
            self.notes += [(now_ns, Record(record)) for record in records_of(datagram)]


class _LoopClock(SimClock):
    """The clock of a simulated TRD on a loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    @property
    def now_ns(self) -> int:  # type: ignore[override]  # read only
        return self._loop.now_ns()

    def after(self, delay_ns: int, event: Callable[[], object]) -> None:
        self._loop.call_later(delay_ns, event)


class _PlayedTransport(FakeTransport):
    """A session of the TRD, as a process sees it."""

    def __init__(self, session: SimSession, member: Member) -> None:
        super().__init__(session.address)
        self.session, self._member = session, member
        self.is_in_order, self.shows_life = session.is_in_order, session.shows_life

    @property
    def active_ns(self) -> int:
        return self.session.active_ns

    def leave(self) -> None:
        self.session.joined.pop(self._member, None)


class _PlayedReceivers(PlayedMember):
    """Sessions that the portal has joined. Implements `JoinedSessions`, and is the portal in the TRD."""

    def __init__(self, trd: Trd, options: UmOptions, on_ended: OnEnded) -> None:
        super().__init__(0, "portal", is_dro=True)
        self.options = options
        trd.members[self] = self.ip
        self._trd, self._on_ended = trd, on_ended
        self._transports: dict[SimSession, ReceiverTransport] = {}

    def join(self, address: TransportAddress, options: UmOptions, now_ns: int) -> ReceiverTransport:
        session = self._trd.join(self, address)
        transport = self._transports[session] = _PlayedTransport(session, self)
        return transport

    def on_servers_back(self) -> None: ...

    def on_session_ended(self, session: SimSession) -> None:
        self._on_ended(self._transports[session], self._trd.clock.now_ns)


class _PlayedSender(FakeSender):
    """The session of all proxy sources of one transport; it sends nothing."""

    on_unblocked: Callable[[], object] | None = None
    fragment_max_bytes = 8192
    is_blocked = False

    def __init__(self, address: TransportAddress) -> None:
        self.address = address

    def close(self, linger_ns: int, now_ns: int) -> None: ...


class _PlayedSenders(SenderPool[int]):
    def __init__(self, address: TransportAddress) -> None:
        super().__init__()
        self._sender = cast(SenderTransport, _PlayedSender(address))

    def acquire(self, options: UmOptions, former: int = 0) -> SenderTransport:
        return self._sender


class EndpointProcess(_Endpoint):
    """The process."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._stepper = Stepper()
        worker = FakeWorker(self._stepper.loop, folder, ME, "P1")
        self.portal = EndpointPortal(worker.ctx, self._config(), NoChance())
        self.engine: PortalEngine = self.portal._shell.engine
        self.trd = Trd(_LoopClock(self._stepper.loop), HERE)
        joined, pools = self.portal.receiving.joined, self.portal.sending.pools
        played = _PlayedReceivers(self.trd, self.um, joined._on_ended)
        joined._by_address = dict.fromkeys((TcpAddress, LbtrmAddress), cast(JoinedSessions[Any], played))
        pools._pools = {
            "tcp": _PlayedSenders(TcpAddress(0x7F000001, 14371)),
            "lbtrm": _PlayedSenders(LbtrmAddress(0x7F000001, 0xEFFF0001, 1, 14400, 14400)),
        }
        self._resolution: TopicResolution = self.portal.receiving.resolution
        self._resolution.channel.send = self._note_datagrams  # type: ignore[method-assign]
        self._watch(self.portal.core, self._resolution.engine)

    def now_ns(self) -> int:
        return self._stepper.clock.time_ns

    def hear(self, packet: lbmr.Packet, sender_ip: int) -> None:
        self._resolution._on_datagrams(iter([(lbmr.encode(packet), sender_ip)]), self.now_ns())

    def configure(self, **changes: str) -> None:
        self._values |= changes
        self.portal._on_reconfigure(self._load())

    def run(self, milliseconds: int) -> None:
        run_stepped(self._stepper, milliseconds)

    def close(self) -> None:
        self.portal.close()
        self._site.close()
        self._stepper.loop.close()


class SimulatedEndpoint(_Endpoint):
    """The same in the simulator."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        config = self._config()
        self._clock = SimClock()
        self._clock.now_ns = START_NS
        self.trd = Trd(self._clock, HERE)
        self.portal = SimPortal(self._clock, daemon(), ME, 1, config)
        self._end = EndpointEnd(self.portal, config, self.trd, NoChance())
        self.portal.link = self._end
        self.portal.start()
        self.engine = self.portal.engine
        self.trd.send_packets = lambda member, datagrams: self._note_datagrams(datagrams)  # type: ignore[method-assign]
        self._watch(self.portal.core, self._end.context.engine)

    def now_ns(self) -> int:
        return self._clock.now_ns

    def hear(self, packet: lbmr.Packet, sender_ip: int) -> None:
        self._end.context.on_packet(packet, sender_ip)

    def configure(self, **changes: str) -> None:
        self.portal.on_config(self._config(**changes))

    def run(self, milliseconds: int) -> None:
        self._clock.run_until(self._clock.now_ns + milliseconds * NS_PER_MS)

    def close(self) -> None:
        self._site.close()


@dataclass
class PlayedSource:
    """A source of another context; `tir` is what it advertises now."""

    owner: PlayedMember
    session: SimSession
    tir: lbmr.Tir


class EndpointPlayer(Player):
    """Contexts of the TRD and their sources have names."""

    host: EndpointHost
    routes = (
        Route((HERE,), THERE, ME, SIBLING),
        Route((HERE,), BEYOND, ME, SIBLING),
        Route((THERE, BEYOND), HERE, SIBLING, ME),
    )

    def __init__(self, host: EndpointHost) -> None:
        super().__init__(host)
        self._members: dict[str, PlayedMember] = {}
        self._sources: dict[str, PlayedSource] = {}
        self._addresses: dict[TransportAddress, str] = {}
        self.writer.special |= {
            Record: lambda sent: f"sent {self._write_sent(sent.record)}",
            TcpAddress: self._name, LbtrmAddress: self._name,
            _PlayedTransport: lambda session: self._name(session.address),
            SimSession: lambda session: self._name(session.address),
            FoundSource: lambda source: self._write_source(source.topic, source.tir),
            BoundSource: lambda source: self._write_source(source.topic, source.tir),
        }  # fmt: skip

    def _name(self, address: TransportAddress) -> str:
        return self._addresses.get(address, "own " + type(address).__name__)

    def _write_source(self, topic: bytes, tir: lbmr.Tir) -> str:
        cost = tir.options.cost if tir.options is not None else None
        at = f" cost={cost.cost} hops={cost.hop_count}" if cost is not None else ""
        return f"{self._name(tir.transport)}({topic.decode()}{at})"

    def _write_sent(self, record: object) -> str:
        return " ".join(map(self.writer.write, record)) if isinstance(record, tuple) else self.writer.write(record)

    def _say(self, name: str, body: lbmr.Body) -> None:
        member = self._members[name]
        self.host.hear(lbmr.Packet(lbmr.VERSION, member.packet_options, body), member.ip)

    # contexts

    def do_context(self, name: str, kind: str, at: str = "", domain: str = "1") -> None:
        """`kind`: application or dro; `at`: the context whose host it is on, or a host of its own."""
        ip = self._members[at].ip if at else _FIRST_IP + len(self._members)
        self._members[name] = member = PlayedMember(ip, name, is_dro=kind == "dro", domain_id=int(domain))
        member.options = self.host.um

    def do_dies(self, name: str) -> None:
        """Nothing comes from it any more, and its sessions end."""
        for source in self._sources.values():
            if source.owner is self._members[name]:
                self.host.trd.close_session(source.session)

    def do_wants(self, name: str, topic: str = "", pattern: str = "") -> None:
        if topic:
            self._say(name, lbmr.Queries((topic.encode(),)))
        if pattern:
            self._say(name, lbmr.WildcardQueries((lbmr.WildcardTqr(PATTERN_PCRE, pattern.encode()),)))

    def do_uses(self, name: str, topic: str = "", pattern: str = "") -> None:
        """Answer a use query."""
        flags = lbmr.TmrFlag.RESPONSE | (lbmr.TmrFlag.PCRE if pattern else 0)
        self._say(name, lbmr.TopicManagement((lbmr.Tmr(lbmr.TmrType.USE, flags, (topic or pattern).encode()),)))

    def do_interest(self, name: str, symbol: str, domain: str, pattern: str = "", cancel: str = "") -> None:
        """`pattern` and `cancel`: any word for yes."""
        flags = (lbmr.InterestFlag.PATTERN if pattern else 0) | (lbmr.InterestFlag.CANCEL if cancel else 0)
        kind = PATTERN_PCRE if pattern else PATTERN_NONE
        self._say(name, lbmr.TnwgInterest((lbmr.InterestRecord(int(domain), symbol.encode(), flags, kind),)))

    def do_leads(self, name: str, *domains: str) -> None:
        """Say that the ways to these domains begin there."""
        ip = self._members[name].ip
        self._say(name, lbmr.RemoteDomainRoute(address=ip, port=14391, route_index=0, domains=tuple(map(int, domains))))

    # sources

    def do_source(self, name: str, owner: str, topic: str, transport: str, otid: str = "") -> None:
        """`otid`: of the origin; one that is made of the name otherwise. It is not advertised yet."""
        member, number = self._members[owner], len(self._sources) + 1
        address: TransportAddress = TcpAddress(member.ip, 14371, number)
        if transport == "lbtrm":
            address = LbtrmAddress(member.ip, 0xEFFF0001, number, 14400, 14400)
        made = to_bytes(otid or f"{name[0]}*32")
        items = (lbmr.OtidOption(made), lbmr.DomainId(HERE))
        tir = lbmr.Tir(topic.encode(), address, lbmr.TIR_TTL, number, lbmr.TirOptions(items))
        self._addresses[address] = name
        session = SimSession(self.host.trd, member, address, self.host.um, sm_before_data=member.is_dro)
        self.host.trd._sessions[address] = session
        self._sources[name] = PlayedSource(member, session, tir)

    def do_shares(self, name: str, like: str, topic: str) -> None:
        """Make a source with the session and the topic index of another one."""
        self._sources[name] = replace(source := self._sources[like], tir=replace(source.tir, topic=topic.encode()))

    def do_advertises(self, *names: str, cost: str = "", hops: str = "1", domain: str = "", otid: str = "") -> None:
        """Advertise all in one turn, with what is given, or as before."""
        for source in map(self._sources.__getitem__, names):
            options = source.tir.options or lbmr.TirOptions()
            if domain:
                options = options.replacing(lbmr.DomainId(int(domain)))
            if otid:
                options = options.replacing(lbmr.OtidOption(to_bytes(otid)))
            if cost:
                options = options.replacing(lbmr.Cost(hop_count=int(hops), cost=int(cost)))
            source.tir = replace(source.tir, options=options)
            self._tell(source.owner, source.tir)

    def do_keeps(self, seconds: str, *names: str) -> None:
        """Advertise them every second."""
        for _ in range(int(seconds)):
            self.do_advertises(*names)
            self.host.run(1000)

    def do_ends(self, name: str) -> None:
        """By a final advertisement."""
        source = self._sources[name]
        final = (source.tir.options or lbmr.TirOptions()).replacing(lbmr.Cost(hop_count=0, cost=lbmr.FINAL_COST))
        self._tell(source.owner, replace(source.tir, options=final))

    def _tell(self, owner: PlayedMember, tir: lbmr.Tir) -> None:
        self._say(owner.name, lbmr.Queries((), (tir,)))

    def do_known(self, handle: str, name: str, cost: str = "4") -> None:
        """The sibling has a source that an earlier incarnation of the portal had joined."""
        source = self._sources[name]
        tir, owner = source.tir, source.owner
        otid = (tir.options or lbmr.TirOptions()).otid or b""
        bound: BoundSource[Any] = BoundSource(
            tir.topic, otid, tir.topic_index, source.session, tir, owner.is_dro,
            source_id=owner.packet_options.source_id, source_ip=owner.ip,
        )  # fmt: skip
        seen = SourceSeen(int(handle), otid, tir.topic, HERE, 0, int(cost), b"", join_info_of(bound))
        self.host.core.on_message(SIBLING, 1, KnownSource(seen), self.host.now_ns())
        self.host.engine.act()
