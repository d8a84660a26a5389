"""Targets that are cores of topic resolution, interest and contexts.

What they send must be readable, what strangers can make them remember is bounded by small limits, which a script
reaches, and with time they forget.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from ipaddress import IPv4Network
from typing import Final

from dro.clock import s
from dro.config.dro_xml.model import ContextQueryConfig
from dro.errors import DecodeError
from dro.patterns import Pattern, PatternError
from dro.proto.interest.announced import DomainRouteTable
from dro.proto.interest.remote_domains import RemoteInterest
from dro.proto.interest.tqr_use_query import LocalInterest
from dro.proto.lbmrd.daemon import LbmrdCore
from dro.proto.lbmrd.nat import NatRule, Translation
from dro.proto.resolver.core import DATAGRAM_MAX_BYTES, Resolver, ResolverConfig, SourceAd
from dro.proto.unicast.contexts import KnownContexts
from dro.proto.unicast.neighbour_dros import NeighbourDro, NeighbourDros
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.codes import MessageType
from dro.wire.lbmc.dro_blocks import CTXINFO_QUERY, CtxInfo
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.extended import ContextFlag, RemoteContextRecord, RemoteName
from dro.wire.lbmr.packet import HEADER_SIZE
from dro.wire.lbmr.records import write_tmr
from portals.decisions.immediate.contexts import BEHIND, ContextQuestions, Tell
from portals.endpoint.context_packets import info_of, infos_of_remote, question_packet, remote_packet
from tests.fakes.channel import tir
from tests.fuzz.player import SMALL, Player, Wanted, core_target, scripts
from tests.fuzz.seeds import recorded, vectors

_IP: Final = 0x0A000001


def _compiled(pattern: bytes, kind: int) -> Callable[[bytes], bool] | None:
    try:
        return Pattern(pattern, kind)
    except PatternError:
        return None


def _lbmr_packets() -> list[bytes]:
    return [*vectors("lbmr"), *recorded(12965)[:40]]


def _resolver(source_type: int) -> Callable[[bytes], Hashable]:
    is_dro = source_type == lbmr.SenderType.DRO
    config = ResolverConfig(
        b"resolver", source_type, domain_id=1 if is_dro else 0, domain_propagation_ns=-1, cache_max=SMALL,
        hears_itself=not is_dro, answers_use_queries=not is_dro,
    )  # fmt: skip

    def check(data: bytes) -> Hashable:
        core = Resolver(config, compile_pattern=_compiled)
        core.add_source(SourceAd(tir(b"BBB")), 0)
        gone = core.add_source(SourceAd(tir(b"gone", index=9)), 0)
        for topic in (b"AAA", b"BBB", b"OPT", b"29west.example.multi.0"):
            core.add_receiver(topic, 0)
        core.add_wildcard(b"[A-M]", lbmr.PatternType.PCRE, lambda topic: b"A" <= topic[:1] <= b"M", 0)
        events: set[str] = set()

        def drain(now_ns: int) -> None:
            for datagram in core.take_outgoing():
                assert len(datagram) <= DATAGRAM_MAX_BYTES
                lbmr.decode(datagram)
            events.update([type(event).__name__ for event in core.take_events()])
            assert len(core.cache) <= SMALL

        def hear(packet: bytes, now_ns: int) -> Hashable:
            decoded, trouble = lbmr.decode_lenient(packet)
            if decoded is None:
                assert trouble is not None
                raise trouble
            core.on_packet(decoded, _IP + packet[-1], now_ns)
            return None

        drain(0)
        player = Player(core, drain, 12)
        player.play(data, hear, s(30))
        core.remove_source(gone, player.now_ns, final=True)
        player.play(b"\0\0" + (4).to_bytes(2, "big") + b"\x12\0\0\0", hear, s(10))
        assert not core.finals_pending
        return tuple(sorted(events)), len(core.cache)

    return check


def _interest(data: bytes) -> Hashable:
    """What is known of a TRD's interest and of that of other domains, and where those are."""
    local = LocalInterest(entries_max=SMALL)
    remote = [RemoteInterest(own_domain_id=1, is_for_patterns=kind, entries_max=SMALL) for kind in (False, True)]
    routes = DomainRouteTable(entries_max=SMALL, offers_max=2)
    wanted = [Wanted() for _ in range(3)]
    tables: tuple[LocalInterest | RemoteInterest, ...] = (local, *remote)

    class Both:
        def next_deadline(self) -> int | None:
            due = [core.next_deadline() for core in tables]
            return min((at for at in due if at is not None), default=None)

        def on_timer(self, now_ns: int) -> None:
            for core in tables:
                core.on_timer(now_ns)

    def drain(now_ns: int) -> None:
        for tmr in local.take_outgoing():
            write_tmr(tmr)
        for core, known in zip(tables, wanted, strict=True):
            known.take(core.take_events())
            assert len(core) <= SMALL
            assert sum(core.kinds.values()) == (len(local) if core is local else len({key for key, _ in known.keys}))
        assert {key for key, _ in wanted[0].keys} == set(local.symbols())
        for core, known in zip(remote, wanted[1:], strict=True):
            assert known.keys == set(core.items())
        assert len(routes) <= SMALL

    def hear(packet: bytes, now_ns: int) -> Hashable:
        decoded = lbmr.decode(packet)
        for core in tables:
            core.on_packet(decoded, now_ns, packet[-1] & 3)
        if isinstance(decoded.body, lbmr.RemoteDomainRoute):
            route = decoded.body
            routes.learn(route.domains, route.address, route.port, now_ns)
            for domain in route.domains[:3]:
                routes.find(domain, now_ns)
        return type(decoded.body).__name__

    signs = Player(Both(), drain).play(data, hear, s(3600))
    assert not len(local)
    assert not any(map(len, remote))
    return tuple(sorted(map(str, signs)))[:6], local.refused > 0, remote[0].refused > 0


def _neighbours(data: bytes) -> Hashable:
    """Other DROs of a TRD, and contexts behind a link and in the TRD."""
    core = NeighbourDros(NeighbourDro(b"instance", 1, 11), 1, 0)
    most = news = 0

    def drain(now_ns: int) -> None:
        nonlocal news
        for body in core.take_outgoing():
            lbmr.encode(lbmr.Packet(1, None, body))
        news += len(core.take_news())

    def hear(packet: bytes, now_ns: int) -> Hashable:
        nonlocal most
        core.on_packet(lbmr.decode(packet), now_ns, packet[-1])
        found = list(core)
        most = max(most, len(found))
        assert len({(one.ip, one.port) for one in found}) == len(found)
        assert all(one.instance != b"instance" for one in found)
        return None

    Player(core, drain).play(data, hear, s(90))
    assert not list(core)
    return most, min(news, 9)


def _neighbour_packets() -> list[bytes]:
    options = lbmr.standard_options(b"stranger", 1, 1)
    tellers = [NeighbourDros(NeighbourDro(b"another%d" % n, n, 22), 1, 0) for n in range(1, 6)]
    for teller in tellers:
        teller.on_timer(0)
    bodies = [body for teller in tellers for body in teller.take_outgoing()]
    return [*(lbmr.encode(lbmr.Packet(1, options, body)) for body in bodies), *vectors("lbmr", "", ("tnwg_ctx",))]


def _contexts(data: bytes) -> Hashable:
    """Questions for contexts and their answers, from the TRD and from siblings; all of them can be told on."""
    core = ContextQuestions(ContextQueryConfig(500, 3, 20, 5), KnownContexts(contexts_max=SMALL))
    told = 0

    def drain(now_ns: int) -> None:
        nonlocal told
        for effect in core.take_effects():
            told += isinstance(effect, Tell)
            if isinstance(effect, Tell) and effect.worker == BEHIND:
                is_question = effect.info.flags & CTXINFO_QUERY
                body: lbmr.Body = question_packet(effect.info) if is_question else remote_packet(effect.info)
                lbmr.decode(lbmr.encode(lbmr.Packet(1, None, body)))
            lbmc.decode(lbmc.encode(lbmc.control_message(effect.info)))
        assert len(core.known) <= SMALL

    def hear(packet: bytes, now_ns: int) -> Hashable:
        core.on_unknown(packet[-8:].rjust(8, b"i"), now_ns)
        if packet[:1] == bytes((MessageType.CONTROL,)):
            found = [lbmc.decode(packet).get(CtxInfo)]
        else:
            match lbmr.decode(packet).body:
                case lbmr.ContextInfo() as body:
                    found = [info_of(body, 1)]
                case lbmr.RemoteContextInfo() as body:
                    found = [*infos_of_remote(body)]
                case _:
                    found = []
        infos = [info for info in found if info is not None]
        if not infos:
            raise DecodeError("contexts", "no information")
        came_from = packet[-1] % 3 if packet[0] == MessageType.CONTROL else BEHIND
        for info in infos:
            core.on_info(info, came_from, now_ns)
        return infos[0].flags & 0xFF00, len(infos[0].name).bit_length()

    signs = Player(core, drain).play(data, hear, s(60))
    assert not len(core)
    return tuple(sorted(map(str, signs)))[:5], min(told, 9)


def context_packets() -> list[bytes]:
    known = [lbmc.decode(data).get(CtxInfo) for data in vectors("lbmc", "", ("peer_ctxinfo",))]
    longest = (
        lbmr.ContextInfo(0, ContextFlag.QUERY, name=b"n" * 234),
        lbmr.RemoteContextInfo((RemoteContextRecord((RemoteName(b"n" * 250),), 0x8000),)),
    )
    return [
        *(lbmc.encode(lbmc.control_message(info)) for info in known if info is not None),
        *vectors("lbmr", "", ("ctxinfo", "rctxinfo")), *(lbmr.encode(lbmr.Packet(1, None, body)) for body in longest),
    ]  # fmt: skip


def _lbmrd(data: bytes) -> Hashable:
    """The daemon with translation between two networks, one client of each packet's last byte."""
    rules = (NatRule(0x0A1D034C, None, 1, None), NatRule(None, 12090, None, 2))
    networks = ((IPv4Network("0.0.0.0/1"), "low"), (IPv4Network("128.0.0.0/1"), "high"))
    core = LbmrdCore(Translation(networks, {("low", "high"): rules}), own=0, ttl_ns=s(20), activity_ns=s(5),
                     clients_max=SMALL, now_ns=0)  # fmt: skip

    def drain(now_ns: int) -> None:
        core.take_notes()
        assert core.client_count == sum(len(group.clients) for group in core.groups.values()) <= SMALL
        for group in core.groups.values():
            assert group.addresses[1::2].count(0) == len(group.addresses) // 2 == len(group.clients)
            assert [client.place for client in group.clients] == list(range(len(group.clients)))

    def hear(packet: bytes, now_ns: int) -> Hashable:
        sender = ((packet or b"\0")[-1] & 15) * 0x1100_0000_0000 + (now_ns & 1) + 1
        sends = [*core.on_datagram(packet, sender, now_ns), *(core.next_sends() or ())]
        assert core.next_sends() is None
        for send in sends:
            assert 0 <= send.start < send.stop <= len(send.group.clients)
            assert len(send.data) in (len(packet), HEADER_SIZE)
        return (packet or b"\0")[0] & 7, len(sends), *(send.data is packet for send in sends)

    signs = Player(core, drain).play(data, hear, s(60))
    assert core.client_count == 0
    return tuple(sorted(map(str, signs)))


TARGETS: Final = (
    core_target("core-lbmrd", scripts(_lbmr_packets), _lbmrd),
    core_target("core-resolver", scripts(_lbmr_packets, alone=0), _resolver(lbmr.SenderType.APPLICATION), 30),
    core_target("core-resolver-dro", scripts(_lbmr_packets, alone=0), _resolver(lbmr.SenderType.DRO), 30),
    core_target("core-interest", scripts(_lbmr_packets), _interest),
    core_target("core-neighbour-dros", scripts(_neighbour_packets), _neighbours),
    core_target("core-contexts", scripts(context_packets), _contexts),
)
