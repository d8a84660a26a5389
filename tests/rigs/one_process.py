"""A whole DRO in the test's own process: real portals and route manager, real loopback sockets, time that tests move.

The bus is a list of calls on the one loop, rings and counter pages are files in the test's folder. What a test sees is
what applications see: client contexts in each TRD, with the UM options of the site. Whatever every context of a TRD
sends on the topic resolution channel is kept, so a test can say that nothing was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from dro.bus.messages import PeerUp, Role
from dro.config.dro_xml.load import load_dro
from dro.config.dro_xml.model import DroConfig, EndpointConfig
from dro.loop import Loop
from dro.metrics.slots import DROP_SLOTS, Slot
from dro.proto.context.sources import BoundSource
from dro.um.fragment.context import FragmentContext
from dro.um.fragment.own_source import FragmentSource
from dro.um.fragment.tr_channel import TrChannel
from dro.um.message.client_config import Config
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmr import packet as lbmr
from portals.endpoint.library import open_rows
from portals.endpoint.portal import EndpointPortal
from router.settings import exchange_timing_of, own_dro, timing_of
from router.worker import RouteManager
from tests.fakes.um_contexts import RecordingSink, Stepper
from tests.fakes.worker import FakeChannels, FakeWorker
from tests.rigs.site import DRO, PORTAL, Site

ROUTE_MANAGER = 0
QUICK_ROUTES = '<route-info check-interval="50"/><route-recalculation backoff-interval="100"/>'


def write_dro(site: Site, portal_xml: Mapping[int, str], daemon: str) -> None:
    """The DRO file of a site, with these elements in each endpoint and behind the name and log of the daemon."""
    portals = "".join(PORTAL.format(trd=trd, extra=portal_xml.get(trd, "")) for trd in site.trds)
    text = DRO.format(name=site.name, portals=portals, daemon="")
    begin, end = text.index("<route-info"), text.index("  </daemon>")
    (site.folder / "dro.xml").write_text(f"{text[:begin]}{daemon}\n{text[end:]}")


class _Channels(FakeChannels):
    """Frames reach their worker in a later turn, in order."""

    def __init__(self, dro: OneProcess, me: int) -> None:
        super().__init__()
        self._dro = dro
        self._me = me

    def send_ctl(self, worker: int, frame: bytes) -> None:
        super().send_ctl(worker, frame)
        to = self._dro.workers[worker].channels
        self._dro.loop.call_soon(lambda: to.on_ctl(self._me, frame))


class _Worker(FakeWorker):
    """One that talks to the others."""

    def __init__(self, dro: OneProcess, index: int, name: str, role: Role) -> None:
        super().__init__(dro.loop, dro.folder, index, name, role)
        self.channels = _Channels(dro, index)


class Application:
    """One client context in a TRD."""

    def __init__(self, dro: OneProcess, trd: int) -> None:
        self._dro = dro
        self.trd = trd
        self.sink = RecordingSink()
        self.context = FragmentContext(Config.load(dro.site.config(trd)).options, dro.loop, sink=self.sink)
        self._sqn: dict[FragmentSource, int] = {}

    def source(self, topic: bytes) -> FragmentSource:
        source = self.context.open_source(topic)
        self._sqn[source] = 0
        return source

    def send(self, source: FragmentSource, count: int = 1) -> None:
        for _ in range(count):
            payload = b"%s %d" % (source.topic, self._sqn[source])
            header = lbmc.HEADER.pack(0, 0, 12 + len(payload), source.topic_index, self._sqn[source])
            assert source.transport.send_message(header + payload, self._dro.loop.now_ns())
            self._sqn[source] += 1

    def heard(self, topic: bytes) -> list[int]:
        """Topic sqns of what came, in order of arrival."""
        return [sqn for name, sqn, _ in self.sink.fragments if name == topic]

    def bound(self, topic: bytes) -> list[BoundSource[Any]]:
        return [bound for bound in self.sink.current if bound.topic == topic]

    def topics(self) -> set[bytes]:
        """Topics with a joined source."""
        return {bound.topic for bound in self.sink.current}


class OneProcess:
    """See the module text. Portal k is the endpoint in TRD k, worker k of the bus."""

    def __init__(self, site: Site, stepper: Stepper) -> None:
        self.site = site
        self.folder: Path = site.folder
        self.stepper = stepper
        self.loop: Loop = stepper.loop
        self.config = self.load()
        self.workers: dict[int, _Worker] = {}
        self.portals: dict[int, EndpointPortal] = {}
        self.applications: list[Application] = []
        self.tr_sent: dict[int, list[lbmr.Body]] = {}  # by portal; without domain routes, which never cease
        manager = self.workers[ROUTE_MANAGER] = _Worker(self, ROUTE_MANAGER, "route-manager", Role.ROUTE_MANAGER)
        RouteManager(
            manager.ctx,
            own_dro(self.config, manager.identity.dro_node_id),
            timing_of(self.config),
            exchange_timing_of(self.config),
        )
        for number, endpoint in enumerate(self.config.portals, start=1):
            self._start(number, endpoint)
        for one in list(self.workers.values()):
            self.introduce(one)

    def add_worker(self, index: int, name: str, role: Role) -> _Worker:
        """For a portal that a test makes; `introduce` it then."""
        worker = self.workers[index] = _Worker(self, index, name, role)
        return worker

    def introduce(self, new: _Worker) -> None:
        """Every worker learns of every other once."""
        for other in self.workers.values():
            for one, peer in ((new, other), (other, new)):
                if one is not peer and peer.index not in one.peers:
                    one.peers[peer.index] = up = PeerUp(peer.index, 1, peer.name, peer.role, "ring", "")
                    one.told["on_peer_up"](up) if "on_peer_up" in one.told else None

    def _start(self, number: int, endpoint: EndpointConfig) -> None:
        worker = self.workers[number] = _Worker(self, number, endpoint.name, Role.ENDPOINT)
        portal = self.portals[number] = EndpointPortal(worker.ctx, endpoint, library=open_rows(worker.ctx, self.config))
        self.tr_sent[number] = []
        self._count(number, portal.receiving.resolution.channel)

    def _count(self, number: int, channel: TrChannel) -> None:
        send = channel.send

        def counted(datagrams: list[bytes]) -> None:
            datagrams = list(datagrams)
            bodies = [lbmr.decode(datagram).body for datagram in datagrams]
            self.tr_sent[number] += [body for body in bodies if not isinstance(body, lbmr.RemoteDomainRoute)]
            send(datagrams)

        channel.send = counted  # type: ignore[method-assign,assignment]  # the same, and counted

    def load(self) -> DroConfig:
        return load_dro(str(self.folder / "dro.xml"), warn=lambda _: None)

    def application(self, trd: int) -> Application:
        application = Application(self, trd)
        self.applications.append(application)
        return application

    def page(self, portal: int, slot: Slot) -> int:
        """A slot of a portal's page, gauges as of now."""
        there = self.portals[portal]
        there._shell.refresh_gauges()
        return self.workers[portal].counters[slot]

    def dropped(self, portal: int) -> int:
        """Fragments dropped at a portal, for whatever reason."""
        return sum(self.workers[portal].counters[slot] for slot in DROP_SLOTS.values())

    def until(self, holds: Callable[[], bool], limit_ms: int = 20_000) -> None:
        self.stepper.until(holds, limit_ms=limit_ms)

    def run(self, milliseconds: int) -> None:
        self.stepper.run(milliseconds)

    # a changed configuration

    def write(self, portal_xml: Mapping[int, str], daemon: str = "") -> DroConfig:
        """Another DRO file: `portal_xml` are more elements of each endpoint; what it comes to."""
        write_dro(self.site, portal_xml, daemon or QUICK_ROUTES)
        return self.load()

    def reconfigure(self, config: DroConfig) -> None:
        """As the parent does, in every worker. Raises what a worker raises."""
        self.config = config
        for worker in self.workers.values():
            worker.told["on_reconfigure"](config)

    def close(self) -> None:
        for application in self.applications:
            application.context.close()
        for portal in self.portals.values():
            portal.receiving.close()
            portal.sending.close()
        self.site.close()


@contextmanager
def one_process(
    folder: Path,
    stepper: Stepper,
    trds: int = 3,
    *,
    transports: Mapping[int, str] | None = None,
    portal_xml: Mapping[int, str] | None = None,
    um: Mapping[int, str] | None = None,
    daemon: str = "",
) -> Iterator[OneProcess]:
    """A DRO with routes, closed at the end. Arguments as those of `Site`; `daemon`: more elements of `<daemon>`."""
    with ExitStack() as stack:
        site = Site(folder, trds, transports=transports, portal_xml=portal_xml, um=um)
        stack.callback(site.close)
        if daemon:
            write_dro(site, portal_xml or {}, f"{QUICK_ROUTES}{daemon}")
        dro = OneProcess(site, stepper)
        stack.callback(dro.close)
        dro.until(lambda: all(portal.core.routes.version for portal in dro.portals.values()))
        yield dro
