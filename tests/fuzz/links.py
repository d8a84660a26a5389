"""Targets that are the dialogue of a peer link, with what is told over it, and the route manager."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final

from dro.bus.messages import ROUTE_MESSAGES, PortalUp
from dro.clock import ms, s
from dro.proto.peerlink import messages as peer_messages
from dro.proto.peerlink.interest import HeardInterest
from dro.proto.peerlink.messages import Digests, Hello
from dro.proto.peerlink.session import CanaryOptions, CloseLink, LinkOptions, LinkSession, SendCanary, SendControl
from dro.proto.peerlink.sources import OfferedByCompanion
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.dro_blocks import TopicSource
from router.core import OwnDro, RouteManagerCore
from router.route_info import read_head, write_route
from router.route_info_exchange import ExchangeTiming, InfoDropped, SendInfo
from router.route_recalculation import SendTable, Timing
from router.topology import DroRecord, Neighbour
from tests.fuzz.player import SMALL, Player, Wanted, core_target, scripts
from tests.fuzz.wire import peer_message_seeds

_HELLO: Final = Hello(b"B", b"another!", 1, 0, 0x30000, has_digests=True, fast_ms=(200, 700), has_canaries=True)


def _link(data: bytes) -> Hashable:
    """The dialogue of a peer link, and what is told over it."""
    own = Hello(b"A", b"instance", has_digests=True, fast_ms=(500, 1500))
    options = LinkOptions(s(5), s(15), only_when_idle=True, canary=CanaryOptions(s(1), s(3), b"x" * 40))
    interest, sources, wanted = HeardInterest(SMALL), OfferedByCompanion(SMALL), Wanted()
    core = LinkSession(own, options, 0, recorded=lambda: Digests(interest.digest, sources.digest))
    kinds: set[str] = set()
    core.on_connected(0)

    def drain(now_ns: int) -> None:
        for effect in core.take_effects():
            kinds.add(type(effect).__name__ + (effect.text[:9] if isinstance(effect, CloseLink) else ""))
            if isinstance(effect, SendControl | SendCanary):
                lbmc.decode(effect.message)
        wanted.take(interest.take_events())
        assert len(wanted.keys) <= SMALL
        assert len(sources) <= SMALL
        assert len(core._asked) <= 16
        assert len(core._canaries) <= 16
        assert interest.digest is None or interest.digest == _digest_of(wanted)

    def hear(packet: bytes, now_ns: int) -> Hashable:
        core.on_received(now_ns)
        raw = next((packet[at : at + size] for at, size in lbmc.walk(packet, 0, len(packet))), b"")
        message = core.on_message(raw, now_ns) if raw else None
        if message is None:
            return None
        if not interest.on_message(message) and message.get(TopicSource) is not None:
            told = peer_messages.read_source(message)
            if isinstance(told, peer_messages.SourceEnd):
                sources.on_end(told)
            else:
                sources.on_source(told)
        return tuple([block.code for block in message.blocks[:2]])

    Player(core, drain).play(data, hear, s(40))
    assert not core.is_up
    return tuple(sorted(kinds)), len(wanted.keys), len(sources)


def _digest_of(wanted: Wanted) -> int | None:
    """Of the same interest, told in one piece."""
    again = HeardInterest()
    for (name, kind), domain_id in sorted(wanted.keys):
        told = peer_messages.topic_interest(name, (domain_id,)) if not kind else peer_messages.pattern_interest(
            name, kind, 1, (domain_id,))  # fmt: skip
        for message in told:
            again.on_message(lbmc.decode(message))
    return again.digest


_DRO_BIT: Final = 1 << 63
_ME: Final = _DRO_BIT | 1
_TIMING: Final = Timing(check_ns=ms(750), backoff_ns=s(5), warning_ns=s(10))


def _router(data: bytes) -> Hashable:
    """ROUTE messages over two links, which come and go."""
    core = RouteManagerCore(OwnDro(_ME, "G1"), _TIMING, ExchangeTiming(), incarnation=1, now_ns=0)
    core.on_portal_up(PortalUp(1, 1, 1), 0)
    core.on_portal_up(PortalUp(2, 0, 1, _DRO_BIT | 2), 0)
    core.on_portal_up(PortalUp(3, 0, 5, _DRO_BIT | 3), 0)
    kinds: set[str] = set()
    heard = 0

    def drain(now_ns: int) -> None:
        for effect in core.take_effects():
            kinds.add(type(effect).__name__ + (effect.why.name if isinstance(effect, InfoDropped) else ""))
            if isinstance(effect, SendInfo):
                assert read_head(effect.message).ttl > 0
            elif isinstance(effect, SendTable):
                assert ROUTE_MESSAGES.decode(ROUTE_MESSAGES.encode(effect.table)) == effect.table

    def hear(packet: bytes, now_ns: int) -> Hashable:
        nonlocal heard
        heard += 1
        core.on_route_info(2 + len(packet) % 2, packet, now_ns)
        if heard % 7 == 0:
            core.on_portal_gone(3, now_ns)
            core.on_portal_up(PortalUp(3, 0, 5, _DRO_BIT | 3), now_ns)
        return tuple(core.exchange.others)[:4]

    Player(core, drain, 60).play(data, hear, s(80))
    assert not core.exchange.others
    assert not core.exchange._forgotten
    return tuple(sorted(kinds))


_NETWORK: Final = (
    (2, (2, _ME)), (2, (2, 5, _ME)), (3, (3, _ME)), (3, (_ME, _DRO_BIT | 4)), (4, (4, _DRO_BIT | 3)), (1, (1,)),
    (9, tuple(range(20, 40))),
)  # fmt: skip
"""DROs and their neighbours."""


def _route_packets() -> Iterator[bytes]:
    for node, neighbours in _NETWORK:
        for sqn, version in ((1, 1), (2, 1), (3, 2)):
            listed = tuple([Neighbour(n, 1, 1) for n in neighbours])
            record = DroRecord(_DRO_BIT | node, listed, version=version, name=f"G{node}")
            yield write_route(record, sqn=sqn, ttl=9, topology=sqn, configuration=0, gateway_version=0)


TARGETS: Final = (
    core_target("core-link", scripts(peer_message_seeds, peer_messages.hello(_HELLO)), _link),
    core_target("core-router", scripts(_route_packets), _router, 20),
)
