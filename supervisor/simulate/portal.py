"""A portal of a simulated DRO: the real `PortalCore` with its exchange between siblings, around it what a process has.

`LinkEnd` is what the portal leads to, as `portals.shell.link.Link` is for a real one; `endpoint` and `peer` have one
kind each. Messages to siblings and data to them take their time separately, so that control may overtake data.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from dro.bus.messages import PortalGone, PortalUp, RouteTable
from dro.clock import ms
from dro.config.dro_xml.model import EndpointConfig, PeerConfig
from dro.patterns import Pattern, PatternError
from dro.proto.interest.events import InterestEvent
from dro.sqn import ahead
from portals.datapath.duplicate_window import DuplicateWindow
from portals.decisions.acl_enforcement import AclEnforcement
from portals.decisions.core import PortalCore
from portals.decisions.effects import (
    ChangeForwarding,
    ExpireQueue,
    FeederEnded,
    GoOn,
    InterestIgnored,
    ProxyEffect,
    ReadQueue,
    SendToSibling,
    SourceIgnored,
    TellEverything,
)
from portals.decisions.messages import PortalMessage
from portals.decisions.recorded_interest import Matcher
from portals.decisions.relearning import CHECK_NS, Relearning
from supervisor.simulate.clock import Clock
from supervisor.simulate.messages import Sent

if TYPE_CHECKING:
    from supervisor.simulate.network import Dro

CONTROL_NS: Final = ms(1) // 5
"""A message to a sibling, or to the route manager."""
DATA_NS: Final = ms(1) // 10


class LinkEnd(Protocol):
    """What a portal leads to."""

    def take_interest(self) -> list[InterestEvent]: ...

    def perform(self, effect: ProxyEffect) -> None: ...

    def send(self, proxy: Proxy, sent: Sent) -> None:
        """By a proxy source of this portal."""

    def flush(self) -> None:
        """All that has been decided has been performed."""

    def describe(self) -> PortalUp | PortalGone: ...

    def on_routes(self, table: RouteTable) -> None: ...

    def send_route_info(self, message: bytes) -> None: ...

    def on_cost(self) -> None:
        """The portal has another one."""

    def start(self) -> None: ...

    def on_killed(self) -> None:
        """The process is gone, and with it its sockets."""

    def next_deadline(self) -> int | None: ...

    def on_timer(self, now_ns: int) -> None: ...


@dataclass(slots=True)
class Proxy:
    """A proxy source: what feeds it now, and what has been sent."""

    otid: bytes
    topic: bytes
    feeder: tuple[int, int]
    window: DuplicateWindow


def compiled(pattern: bytes, kind: int) -> Matcher | None:
    try:
        return Pattern(pattern, kind, lambda _: None)
    except PatternError:
        return None


class SimPortal:
    """One incarnation of a portal."""

    def __init__(
        self, clock: Clock, dro: Dro, worker: int, incarnation: int, config: EndpointConfig | PeerConfig
    ) -> None:
        self.clock, self.dro, self.worker, self.incarnation, self.config = clock, dro, worker, incarnation, config
        self.cost = config.cost
        self.name = f"{dro.name}/{config.name}"
        self.is_alive = True
        domain_id = config.domain_id if isinstance(config, EndpointConfig) else 0
        acl = AclEnforcement(config.acl, sending=config.sending, receiving=config.receiving)
        self.core = PortalCore(
            worker,
            incarnation,
            domain_id,
            source_deletion_delay_ns=ms(config.source_deletion_delay_ms),
            matcher=compiled,
            acl=acl,
        )
        self.link: LinkEnd
        self.counts: Counter[str] = Counter()
        """Messages: `received` by the link, `taken` from siblings, `sent`, and those dropped, by reason."""
        self.handed: Counter[int] = Counter()
        """Messages to siblings, by worker."""
        self._forwarding: dict[int, tuple[int, ...]] = {}  # workers, by handle of an own source
        self._unread: dict[int, list[tuple[tuple[int, int], Sent]]] = {}  # what siblings have handed over, by worker
        self._proxies: dict[bytes, Proxy] = {}
        self._feeds: dict[tuple[int, int], Proxy] = {}  # by sibling and its handle
        self._relearning = Relearning(clock.now_ns)
        self._is_acting = False

    def start(self) -> None:
        """Begin to work: meet the siblings, and look for what the link leads to."""
        for sibling in self.dro.siblings_of(self):
            self._unread[sibling.worker] = []
            self.core.on_sibling_up(sibling.worker, sibling.incarnation, 0, 0, self.clock.now_ns)
        self.link.start()
        self.act()
        self.clock.after(CHECK_NS, self._check_relearnt)

    def _check_relearnt(self) -> None:
        if not self.is_alive:
            return
        if self._relearning.is_over(self.core.known, self.clock.now_ns, is_told=self.core.siblings.have_told):
            self.core.on_relearnt(self.clock.now_ns)
            self.act()
        else:
            self.clock.after(CHECK_NS, self._check_relearnt)

    # decisions

    def act(self) -> None:
        """Carry out what the core asks for and what the link reports, until there is nothing more."""
        if self._is_acting or not self.is_alive:
            return
        self._is_acting = True
        while effects := self.core.take_effects():
            for effect in effects:
                match effect:
                    case SendToSibling(worker=worker, message=message):
                        self._tell(worker, message)
                    case TellEverything(worker=worker, messages=messages):
                        for told in messages:
                            if told is not None:
                                self._tell(worker, told)
                    case GoOn(steps=steps):
                        for _ in steps:
                            pass
                    case ChangeForwarding(handle=handle, workers=workers):
                        self._forwarding[handle] = workers
                    case ReadQueue(worker=worker):
                        for key, sent in self._unread.pop(worker, ()):
                            self.take(key, sent)
                    case ExpireQueue():
                        pass
                    case FeederEnded() | SourceIgnored() | InterestIgnored():
                        self.counts[type(effect).__name__] += 1
                    case _:
                        self.link.perform(effect)
            self._take_interest()
        self._is_acting = False
        self.link.flush()
        self.clock.arm(self)

    def _take_interest(self) -> None:
        for event in self.link.take_interest():
            self.core.on_interest(event, self.clock.now_ns)

    def take_interest(self) -> None:
        """The link has something to report."""
        self._take_interest()
        self.act()

    def _tell(self, worker: int, message: PortalMessage) -> None:
        sibling = self.dro.portals.get(worker)
        if sibling is not None and sibling.is_alive:
            self.clock.after(CONTROL_NS, lambda: sibling.hear(self, message))

    def hear(self, sibling: SimPortal, message: PortalMessage) -> None:
        if self.is_alive and sibling.is_alive:
            self.core.on_message(sibling.worker, sibling.incarnation, message, self.clock.now_ns)
            self.act()

    def meet(self, sibling: SimPortal) -> None:
        """A new incarnation of a sibling works."""
        self._unread[sibling.worker] = []
        self.core.on_sibling_up(sibling.worker, sibling.incarnation, 0, 0, self.clock.now_ns)
        self.act()

    def miss(self, sibling: SimPortal) -> None:
        self.core.on_sibling_down(sibling.worker, self.clock.now_ns)
        self.act()

    def kill(self) -> None:
        self.is_alive = False
        self.link.on_killed()

    def on_routes(self, table: RouteTable) -> None:
        if self.is_alive:
            self.core.on_routes(table.version, table.routes, self.clock.now_ns)
            self.link.on_routes(table)
            self.act()

    def set_cost(self, cost: int) -> None:
        self.cost = cost
        self.link.on_cost()
        self.report_up()
        self.act()

    def report_up(self) -> None:
        report = self.link.describe()
        self.dro.to_routes(lambda routes, now_ns: routes.on_report(self.worker, report, now_ns))

    def report_route_info(self, message: bytes) -> None:
        self.dro.to_routes(lambda routes, now_ns: routes.on_info(self.worker, message, now_ns))

    # time

    def next_deadline(self) -> int | None:
        if not self.is_alive:
            return None
        deadlines = (self.core.next_deadline(), self.link.next_deadline())
        return min((at for at in deadlines if at is not None), default=None)

    def on_timer(self, now_ns: int) -> None:
        for part in (self.core, self.link):
            if (deadline := part.next_deadline()) is not None and deadline <= now_ns:
                part.on_timer(now_ns)
        self.take_interest()

    # data

    def on_data(self, handle: int, sent: Sent) -> None:
        """Take data of an own source, as the link brings it."""
        self.counts["received"] += 1
        for worker in self._forwarding.get(handle, ()):
            sibling = self.dro.portals.get(worker)
            if sibling is not None and sibling.is_alive:
                self.handed[worker] += 1
                key, message = (self.worker, handle), sent.past(self.name)
                self.clock.after(DATA_NS, partial(sibling.take, key, message))

    def end_source(self, handle: int) -> None:
        self._forwarding.pop(handle, None)
        self.core.own.end(handle)

    def take(self, key: tuple[int, int], sent: Sent) -> None:
        """From a sibling, for a proxy source here."""
        if not self.is_alive:
            return
        if key[0] in self._unread:
            self._unread[key[0]].append((key, sent))
            return
        self.counts["taken"] += 1
        proxy = self._feeds.get(key)
        if proxy is None:
            self.counts["dropped: no proxy source"] += 1
            return
        newest = proxy.window.next_sqn
        if not proxy.window.take_run(sent.sqn, 1, False, self.clock.now_ns):
            self.counts["dropped: duplicate"] += 1
        elif newest >= 0 and key != proxy.feeder and ahead(newest, sent.sqn) > 0:
            self.counts["dropped: overtaken"] += 1
        else:
            self.counts["sent"] += 1
            self.link.send(proxy, sent.past(self.name))

    # proxy sources, as the link opens and closes them

    def feed(self, otid: bytes, topic: bytes, worker: int, handle: int) -> Proxy:
        """One that exists is fed from there from now on; what comes from where it was fed is sent, too."""
        window = self.config.sqn_window
        proxy = self._proxies.get(otid)
        if proxy is None:
            proxy = self._proxies[otid] = Proxy(
                otid, topic, (worker, handle), DuplicateWindow(window.size, window.increment)
            )
        proxy.feeder = worker, handle
        self._feeds[worker, handle] = proxy
        return proxy

    def end_proxy(self, otid: bytes) -> Proxy | None:
        proxy = self._proxies.pop(otid, None)
        for key in [key for key, fed in self._feeds.items() if fed is proxy]:
            del self._feeds[key]
        return proxy
