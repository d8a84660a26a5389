"""Tells and decides what concerns many topics, step by step: each step one thing, by the state of that moment.

Part of `portals.decisions.core`. First what a new incarnation of a sibling is told (`everything`): what it had before,
and all that the portal knows, in the order in which it is waited for, as proxies and sources do not wait for interest;
None for what was looked at and need not be told. Then decisions, of which the core takes the first at once and the
others in slices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from dro.table import Table
from portals.decisions.acl_enforcement import AclEnforcement
from portals.decisions.effects import CloseProxyReceiver, CloseProxySource, DelayDeletion, FeederEnded
from portals.decisions.messages import (
    ForwardStop,
    InterestAdded,
    KnownInterest,
    KnownProxy,
    KnownSource,
    PortalMessage,
    ToldAll,
    ToldProxies,
)
from portals.decisions.siblings import WantedProxy

if TYPE_CHECKING:
    from portals.decisions.core import PortalCore

MAX_WORKER: Final = 256  # more than any


def everything(core: PortalCore, worker: int, incarnation: int) -> Iterator[PortalMessage | None]:
    """For that incarnation of the sibling; a portal that is withdrawn meanwhile tells nothing more."""
    told: Table[int, None] = Table()
    for source in core.own.wanted_before(worker):
        if core.is_withdrawn or source is None or source.handle in told:
            yield None
        else:
            told[source.handle] = None
            yield KnownProxy(source)
    yield ToldProxies()
    yield from _known_before(core, worker, incarnation)
    for symbol in core.recorded.domains.snapshot():
        domains = core.recorded.domains.get(symbol, ()) if core.recorded.is_told(symbol) else ()
        for domain_id in sorted(domains):
            yield None if core.is_withdrawn else InterestAdded(*symbol, domain_id)
        if not domains:
            yield None
    for handle in core.own.seen.snapshot():
        yield None if core.is_withdrawn or handle in told else core.own.seen.get(handle)
    yield ToldAll()


def _known_before(core: PortalCore, worker: int, incarnation: int) -> Iterator[PortalMessage | None]:
    """What an older incarnation of the sibling had told; its interest is known to all, so only one tells that."""
    for offer in core.siblings.offers_before(worker, incarnation):
        proxy = None if offer is None else core.proxies.get(offer.source.otid)
        is_fed = offer is not None and proxy is not None and proxy.feeder == offer.key
        yield KnownSource(offer.source) if offer and is_fed and offer.source.way and not core.is_withdrawn else None
    if core.me < min((other for other in core.siblings.up if other != worker), default=MAX_WORKER):
        for known in core.siblings.interest_before(worker, incarnation):
            yield None if known is None or core.is_withdrawn else KnownInterest(*known[0], known[1])


def decide_sources(core: PortalCore, otids: Iterable[bytes], now_ns: int) -> Iterator[None]:
    for otid in otids:
        core.decide_source(otid, now_ns)
        yield


def decide_found(core: PortalCore, topic: bytes, now_ns: int) -> Iterator[None]:
    """Search the patterns that find a topic, then decide what was put off until then."""
    otids = yield from core.recorded.search(topic)
    yield from decide_sources(core, otids, now_ns)
    core.recorded.forget(topic)


def decide_topics(core: PortalCore, topics: Iterable[bytes | None], now_ns: int) -> Iterator[None]:
    for topic in topics:
        if topic is not None:
            core.decide_topic(topic, now_ns)
        yield


def follow_acl(core: PortalCore, acl: AclEnforcement, before: AclEnforcement, now_ns: int) -> Iterator[None]:
    """Apply what differs between two access control lists."""
    if not acl.lets_in_like(before):
        for symbol in core.siblings.symbols.snapshot():
            core.decide_receiver(symbol)
            yield
    if acl.lets_out_like(before):
        return
    for changes in core.recorded.changes():
        for change in changes if not core.is_withdrawn else ():
            core.send_to_all(change)
        yield
    yield from decide_sources(core, core.known_otids(), now_ns)


def drop_before(core: PortalCore, worker: int, incarnation: int, now_ns: int) -> Iterator[None]:
    """Drop what only older incarnations of the sibling had said."""
    yield from drop_interest_before(core, worker, incarnation)
    for otid in core.siblings.remove_offers_before(worker, incarnation):
        core.decide_source(otid, now_ns)
        yield


def drop_interest_before(core: PortalCore, worker: int, incarnation: int) -> Iterator[None]:
    for symbol in core.siblings.remove_interest_before(worker, incarnation):
        core.decide_receiver(symbol)
        yield


def close_receivers(core: PortalCore) -> Iterator[None]:
    for symbol in core.proxy_receivers.snapshot():
        domains = core.proxy_receivers.pop(symbol, None)
        if domains is None:
            continue
        core.receiver_kinds[symbol[1]] -= 1
        core.ask(CloseProxyReceiver(*symbol, tuple(sorted(domains))))
        yield


def close_sources(core: PortalCore) -> Iterator[None]:
    for otid in core.proxies.snapshot():
        if core.proxies.pop(otid, None) is not None:
            core.ask(CloseProxySource(otid))
        yield


def stop_before(core: PortalCore, proxy: WantedProxy, now: tuple[int, int] | None = None) -> None:
    """Stop the feeder before, which has been kept long enough, or is another one by now."""
    before, proxy.before = proxy.before, now
    if before is not None and before not in (proxy.feeder, now):
        core.send(before[0], ForwardStop(before[1]))
        core.ask(FeederEnded(*before))


def stop_fed(core: PortalCore, now_ns: int) -> None:
    """Stop the feeders of proxy sources whose end was advertised a moment ago; they are deleted soon."""
    for otid in core.deletion_delay.take_fed(now_ns):
        proxy = core.proxies[otid]
        if proxy.feeder is not None and any(proxy.feeder == offer.key for offer in core.siblings.offers(otid)):
            core.send(proxy.feeder[0], ForwardStop(proxy.feeder[1]))
        proxy.feeder = None
        core.ask(DelayDeletion(otid, core.deletion_delay.begin(otid, now_ns, is_soon=True)))
