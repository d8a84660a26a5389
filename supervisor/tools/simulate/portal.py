"""A portal of a simulated DRO: a host of `portals.decisions.engine`, with what a process has around it.

`SimLink` is what the portal leads to, as `portals.shell.link.Link` is for a real one; `endpoint` and `peer` have one
kind each. Messages to siblings and data to them take their time separately, so that control may overtake data.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

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
    HostEffect,
    InterestIgnored,
    ReadQueue,
    SendInitialState,
    SendToSibling,
    SourceIgnored,
)
from portals.decisions.engine import EngineLink, PortalEngine
from portals.decisions.messages import PortalMessage
from portals.decisions.recorded_interest import Matcher
from portals.decisions.relearning import CHECK_NS
from supervisor.tools.simulate.clock import SimClock
from supervisor.tools.simulate.messages import Sent

CONTROL_NS: Final = ms(1) // 5
"""A message to a sibling, or to the route manager."""
DATA_NS: Final = ms(1) // 10


class SimLink(EngineLink, Protocol):
    """Connects a simulated portal with what it leads to."""

    def send(self, proxy: Proxy, sent: Sent) -> None:
        """Send by a proxy source of this portal."""

    def describe(self) -> PortalUp | PortalGone: ...

    def on_route_info(self, message: bytes) -> None: ...

    def on_config(self, config: EndpointConfig | PeerConfig) -> None:
        """Take over a changed configuration."""

    def start(self) -> None: ...

    def on_killed(self) -> None:
        """The process is gone, and with it its sockets."""


class Daemon(Protocol):
    """Gives what a portal needs of its DRO."""

    name: str
    node_id: int
    portals: dict[int, SimPortal]

    def siblings_of(self, portal: SimPortal) -> list[SimPortal]: ...

    def report(self, worker: int, report: PortalUp | PortalGone) -> None:
        """Report to the route manager what the portal is now."""

    def pass_route_info(self, worker: int, message: bytes, sender: tuple[int, int]) -> None:
        """Pass it from another DRO to the route manager."""


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
        self, clock: SimClock, dro: Daemon, worker: int, incarnation: int, config: EndpointConfig | PeerConfig
    ) -> None:
        self.clock, self.dro, self.worker, self.incarnation, self.config = clock, dro, worker, incarnation, config
        self.name = f"{dro.name}/{config.name}"
        self.is_alive = True
        domain_id = config.domain_id if isinstance(config, EndpointConfig) else 0
        self.acl = AclEnforcement(config.acl, sending=config.sending, receiving=config.receiving)
        self.core = PortalCore(
            worker,
            incarnation,
            domain_id,
            source_deletion_delay_ns=ms(config.source_deletion_delay_ms),
            matcher=compiled,
            acl=self.acl,
        )
        self.engine = PortalEngine(self.core, self)
        self.link: SimLink
        self.counts: Counter[str] = Counter()
        """Messages: `received` by the link, `taken` from siblings, `sent`, and those dropped, by reason; log events."""
        self.handed: Counter[int] = Counter()
        """Messages to siblings, by worker."""
        self._forwarding: dict[int, tuple[int, ...]] = {}  # workers, by handle of an own source
        self._unread: dict[int, list[tuple[tuple[int, int], Sent]]] = {}  # what siblings have handed over, by worker
        self._proxies: dict[bytes, Proxy] = {}
        self._feeds: dict[tuple[int, int], Proxy] = {}  # by sibling and its handle
        self._acts_soon = False

    def start(self) -> None:
        """Begin to work: meet the siblings, and look for what the link leads to."""
        for sibling in self.dro.siblings_of(self):
            self._unread[sibling.worker] = []
            self.core.on_sibling_up(sibling.worker, sibling.incarnation, 0, 0, self.clock.now_ns)
        self.link.start()
        self.engine.start(self.link)
        self.clock.after(CHECK_NS, self._check_relearnt)

    def _check_relearnt(self) -> None:
        if self.is_alive and not self.engine.check_relearnt():
            self.clock.after(CHECK_NS, self._check_relearnt)

    # what the engine asks for

    is_returning: Final = False

    def now_ns(self) -> int:
        return self.clock.now_ns

    def act_soon(self) -> None:
        if not self._acts_soon:
            self._acts_soon = True
            self.clock.after(0, self._on_soon)

    def _on_soon(self) -> None:
        self._acts_soon = False
        if self.is_alive:
            self.engine.on_due()

    def run_in_slices(self, steps: Iterator[None]) -> None:
        self.clock.after(0, lambda: deque(steps, maxlen=0) if self.is_alive else None)

    def perform(self, effect: HostEffect) -> None:
        match effect:
            case SendToSibling(worker=worker, message=message):  # a proxy source is advertised when it is opened
                self._tell(worker, message)
            case SendInitialState(worker=worker, messages=messages):
                for told in messages:
                    if told is not None:
                        self._tell(worker, told)
            case ChangeForwarding(handle=handle, workers=workers):
                self._forwarding[handle] = workers
            case ReadQueue(worker=worker):
                for key, sent in self._unread.pop(worker, ()):
                    self.take(key, sent)
            case ExpireQueue():
                pass
            case FeederEnded() | SourceIgnored() | InterestIgnored():
                self.counts[type(effect).__name__] += 1

    def on_interest(self, event: InterestEvent) -> None:
        """Not counted here."""

    def on_acted(self) -> None:
        self.clock.arm(self)

    def _tell(self, worker: int, message: PortalMessage) -> None:
        sibling = self.dro.portals.get(worker)
        if sibling is not None and sibling.is_alive:
            self.clock.after(CONTROL_NS, lambda: sibling.on_message(self, message))

    def on_message(self, sibling: SimPortal, message: PortalMessage) -> None:
        if self.is_alive and sibling.is_alive:
            self.core.on_message(sibling.worker, sibling.incarnation, message, self.clock.now_ns)
            self.engine.act()

    def on_sibling_up(self, sibling: SimPortal) -> None:
        """A new incarnation of a sibling works."""
        self._unread[sibling.worker] = []
        self.core.on_sibling_up(sibling.worker, sibling.incarnation, 0, 0, self.clock.now_ns)
        self.engine.act()

    def on_sibling_down(self, sibling: SimPortal) -> None:
        self.core.on_sibling_down(sibling.worker, self.clock.now_ns)
        self.engine.act()

    def kill(self) -> None:
        self.is_alive = False
        self.link.on_killed()

    def on_routes(self, table: RouteTable) -> None:
        if self.is_alive:
            self.engine.on_routes(table)
            self.engine.on_paths(table)

    def on_config(self, config: EndpointConfig | PeerConfig) -> None:
        """Take over a changed configuration of the portal."""
        acl = AclEnforcement(config.acl, sending=self.config.sending, receiving=self.config.receiving)
        if config.acl != self.config.acl:
            self.acl = acl
            self.core.on_acl(acl, self.clock.now_ns)
        self.config = config
        self.link.on_config(config)
        self.engine.act()

    def report_up(self) -> None:
        self.report(self.link.describe())

    def report(self, report: PortalUp | PortalGone) -> None:
        self.dro.report(self.worker, report)

    def report_route_info(self, message: bytes, sender: tuple[int, int] = (0, 0)) -> None:
        """`sender`: address and port, in a TRD."""
        self.dro.pass_route_info(self.worker, message, sender)

    # time

    def next_deadline(self) -> int | None:
        return self.engine.next_deadline() if self.is_alive else None

    def on_timer(self, now_ns: int) -> None:
        self.engine.on_due()

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
        """Take it from a sibling, for a proxy source here."""
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
