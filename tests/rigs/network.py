"""A network of DROs in the test's own process: real portals and route managers, real loopback sockets, stepped time.

Each DRO is as in `tests.rigs.one_process`, and has peer portals too. A `Plan` says which DROs there are and what their
portals lead to; its files are those that a real `tnwgd` would read, so the process tests use them as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from dro.bus.messages import PeerDown, PeerUp, Role
from dro.clock import NS_PER_MS
from dro.config.dro_xml.load import load_dro
from dro.config.dro_xml.model import DroConfig
from dro.loop import Loop
from dro.metrics.slots import DROP_SLOTS, Slot
from dro.proto.context.sources import BoundSource
from dro.proto.peerlink.session import LinkEnd
from dro.proto.repair.retransmit import Chunk
from dro.transport.datagrams.sender import DatagramSender
from dro.transport.stream import PlainStream
from dro.um.fragment.context import FragmentContext
from dro.um.fragment.own_source import FragmentSource
from dro.um.message.client_config import Config
from dro.wire.lbmc import message as lbmc
from portals.endpoint.library import open_rows
from portals.endpoint.portal import EndpointPortal
from portals.peer.process.portal import PeerPortal
from portals.peer.stream.connector import Initiator
from router.settings import exchange_timing_of, own_dro, timing_of
from router.worker import RouteManager
from tests.fakes.um_contexts import RecordingSink, Stepper
from tests.fakes.worker import FakeChannels, FakeWorker
from tests.rigs.books import Books
from tests.rigs.delayed_link import Relay
from tests.rigs.site import PORTS_PER_TRD, reserve_block, trd_text

QUICK: Final = (
    '<route-info propagation-interval="200" check-interval="50" timeout="1000"/>'
    '<route-recalculation backoff-interval="100"/>'
)
PATIENT: Final = QUICK.replace('timeout="1000"', 'timeout="15000"')
"""Routes stay while a link, or the whole machine, is slow for a while."""
Ports = Mapping[str, Sequence[int | str]]
"""By DRO: what its portals lead to, a TRD by its domain or a DRO by its name.

`B.2` is one more link to B; `A.1` and `A.2` in DRO A are the two ends of one to itself."""


REUSE: Final = "context request_tcp_reuseaddr 1\nsource transport_tcp_reuseaddr 1\n"
_FIRST: Final = ("</cost>", "</hotlink-index>")


def late(got: Sequence[int]) -> list[int]:
    """Numbers that came behind a greater one."""
    return [number for number, newest in zip(got[1:], accumulate(got, max), strict=False) if number < newest]


def _link(dro: str, port: str) -> tuple[str, ...]:
    """The same for both ends."""
    other, _, number = port.partition(".")
    return (dro, dro) if other == dro else (*sorted((dro, other)), number)


def _is_initiator(dro: str, port: str) -> bool:
    return (dro, "1") < tuple(port.split("."))


class Plan:
    """Writes a file for each DRO and each TRD into `folder`; `close` frees the ports."""

    def __init__(
        self,
        folder: Path,
        dros: Ports,
        *,
        transport: str | Mapping[int, str] = "lbtrm",
        portal_xml: Mapping[str, str] | None = None,
        peer_xml: str = "<smart-batch>1</smart-batch>",
        daemon: str = QUICK,
        um: str = "",
        udp: str | None = None,
        tcp: str = "",
        delays_ms: Mapping[tuple[str, str], int] | None = None,
        has_monitors: bool = False,
    ) -> None:
        """`has_monitors`: each DRO has a web monitor, at `web`.

        `transport`: of all TRDs, or by TRD. `delays_ms`: of TCP links that take so long, by their two DROs.

        `portal_xml`: more elements by portal name (`A-1`, `A-B`), in the order of the file; `_FIRST` go first.

        `udp`: what `<udp>` of each peer has behind its port; None for links without it. `tcp`: more of `<single-tcp>`
        behind the end, for both ends.
        """
        self.folder = folder
        self.dros = dros
        self.trds = sorted({port for ports in dros.values() for port in ports if isinstance(port, int)})
        ends = [(dro, port) for dro, ports in dros.items() for port in ports if isinstance(port, str)]
        self.links = sorted({_link(*end) for end in ends})
        self._first_web = len(self.trds) * PORTS_PER_TRD + 3 * len(self.links)
        size = self._first_web + len(dros)
        self.base, self._guard = reserve_block(size)
        self._portal_xml = portal_xml or {}
        self._peer_xml = peer_xml
        self._udp, self._tcp = udp, tcp
        self.delays_ms = {_link(*ends): delay_ms for ends, delay_ms in (delays_ms or {}).items()}
        for trd in self.trds:
            kind = transport if isinstance(transport, str) else transport[trd]
            self.config(trd).write_text(self._trd(trd, kind) + REUSE + um)
        for dro in dros:
            portals = "".join(self._portal(dro, port) for port in dros[dro])
            monitor = f"<web-monitor>{self.web(dro)}</web-monitor>" if has_monitors else ""
            self.file(dro).write_text(
                f'<?xml version="1.0"?>\n<tnw-gateway version="1.0"><daemon><name>{dro}{self.base}</name>'
                f'<log type="console"/>{monitor}{daemon}</daemon><portals>{portals}</portals></tnw-gateway>\n'
            )

    def config(self, trd: int) -> Path:
        return self.folder / f"trd{trd}.cfg"

    def file(self, dro: str) -> Path:
        return self.folder / f"{dro}.xml"

    def web(self, dro: str) -> str:
        """Address and port of its web monitor."""
        return f"127.0.0.1:{self.base + self._first_web + list(self.dros).index(dro)}"

    def link_port(self, one: str, other: str) -> int:
        return self.base + len(self.trds) * PORTS_PER_TRD + self.links.index(_link(one, other))

    def port(self, trd: int) -> int:
        """Port of topic resolution, which is the first of the TRD's block; see `tests.rigs.site.TRD` for the others."""
        return self.base + self.trds.index(trd) * PORTS_PER_TRD

    def net(self, trd: int) -> str:
        """The first three numbers of the TRD's multicast groups."""
        port = self.port(trd)
        return f"239.{193 + port // 256 % 62}.{port % 256}"

    def _trd(self, trd: int, transport: str) -> str:
        return trd_text(self.net(trd), self.port(trd), transport)

    def _portal(self, dro: str, port: int | str) -> str:
        name = f"{dro}-{port}"
        extra = self._portal_xml.get(name, "")
        at = max(extra.rfind(end) + len(end) if end in extra else 0 for end in _FIRST)
        first, rest = extra[:at], extra[at:]
        if isinstance(port, int):
            return (
                f"<endpoint><name>{name}</name><domain-id>{port}</domain-id>{first}"
                f"<lbm-config>trd{port}.cfg</lbm-config>{rest}</endpoint>"
            )
        number = self.link_port(dro, port)
        to = self.relay_port(dro, port) if _link(dro, port) in self.delays_ms else number
        connects = f"<address>127.0.0.1</address><port>{to}</port>"
        listens = f"<acceptor><listen-port>{number}</listen-port></acceptor>"
        end = f'<initiator reconnect-interval="1000">{connects}</initiator>' if _is_initiator(dro, port) else listens
        tcp = f"<single-tcp><interface>127.0.0.1</interface><nodelay/>{self._tcp}{end}</single-tcp>"
        if self._udp is not None:
            tcp += f"<udp><port>{self.udp_port(dro, port)}</port>{self._udp}</udp>"
        return f"<peer><name>{name}</name>{first}{tcp}{self._peer_xml}{rest}</peer>"

    def udp_port(self, dro: str, port: str) -> int:
        """Of that end of the link."""
        first = self.base + len(self.trds) * PORTS_PER_TRD + len(self.links)
        return first + 2 * self.links.index(_link(dro, port)) + _is_initiator(dro, port)

    def relay_port(self, one: str, other: str) -> int:
        """Where the initiator of a link that has a delay connects to; such a link has no `<udp>`."""
        return self.base + len(self.trds) * PORTS_PER_TRD + len(self.links) + 2 * self.links.index(_link(one, other))

    def close(self) -> None:
        self._guard.close()


class _Channels(FakeChannels):
    """Frames reach their worker in a later turn, in order."""

    def __init__(self, dro: Dro, me: int) -> None:
        super().__init__()
        self._dro = dro
        self._me = me

    def send_ctl(self, worker: int, frame: bytes) -> None:
        to = self._dro.workers[worker].channels
        self._dro.loop.call_soon(lambda: to.on_ctl(self._me, frame))


class _Worker(FakeWorker):
    def __init__(self, dro: Dro, index: int, name: str, role: Role) -> None:
        super().__init__(dro.loop, dro.folder, index, name, role)
        self.identity.dro_node_id = dro.node_id
        self.channels = _Channels(dro, index)


class Dro:
    """One of them, as it runs."""

    def __init__(self, plan: Plan, name: str, node_id: int, loop: Loop) -> None:
        self.name, self.node_id, self.loop = name, node_id, loop
        self.folder = plan.folder / f"{name}.{node_id & 0xFFFF}"
        self.folder.mkdir()
        self.config: DroConfig = load_dro(str(plan.file(name)), warn=lambda _: None)
        self.workers: dict[int, _Worker] = {}
        self.endpoints: dict[int, EndpointPortal] = {}  # by domain
        self.peers: dict[str, PeerPortal] = {}  # by the DRO at the other end
        self.workers[0] = _Worker(self, 0, "route-manager", Role.ROUTE_MANAGER)
        self._start_manager()
        for index, part in enumerate(self.config.portals, start=1):
            worker = self.workers[index] = _Worker(self, index, part.name, Role.ENDPOINT)
            self.endpoints[part.domain_id] = EndpointPortal(
                worker.ctx, part, library=open_rows(worker.ctx, self.config)
            )
        for index, peer in enumerate(self.config.peers, start=len(self.config.portals) + 1):
            worker = self.workers[index] = _Worker(self, index, peer.name, Role.PEER)
            self.peers[peer.name.partition("-")[2]] = PeerPortal(worker.ctx, peer, self.config)
        for one in self.workers.values():
            for other in self.workers.values():
                if one is not other:
                    one.peers[other.index] = up = PeerUp(other.index, 1, other.name, other.role, "ring", "")
                    one.told["on_peer_up"](up)

    def _start_manager(self) -> None:
        me = own_dro(self.config, self.node_id)
        timing = timing_of(self.config), exchange_timing_of(self.config)
        self.manager = RouteManager(self.workers[0].ctx, me, *timing)

    def restart_manager(self) -> None:
        """The next life of the route manager's process."""
        manager = self.workers[0]
        manager.incarnation += 1
        self._start_manager()
        up = PeerUp(0, manager.incarnation, manager.name, manager.role, "", "")
        for index, worker in self.workers.items():
            if index:
                worker.told["on_peer_down"](PeerDown(0, manager.incarnation - 1))
                worker.told["on_peer_up"](up)
                manager.told["on_peer_up"](manager.peers[index])

    @property
    def portals(self) -> dict[str, EndpointPortal | PeerPortal]:
        """By name."""
        found: dict[str, EndpointPortal | PeerPortal] = {f"{self.name}-{d}": p for d, p in self.endpoints.items()}
        return found | {f"{self.name}-{other}": p for other, p in self.peers.items()}

    def page(self, port: int | str, slot: Slot) -> int:
        """A slot of the page of the portal that leads there."""
        worker = next(w for w in self.workers.values() if w.name == f"{self.name}-{port}")
        return worker.counters[slot]

    def dropped(self) -> int:
        """Fragments that its portals have dropped, but for duplicates."""
        slots = [slot for reason, slot in DROP_SLOTS.items() if reason != "duplicate"]
        return sum(worker.counters[slot] for worker in self.workers.values() if worker.index for slot in slots)

    @property
    def books(self) -> Books:
        return Books({index: worker.counters for index, worker in self.workers.items() if index})

    def proxies(self) -> int:
        """Proxy sources and proxy receivers of all its portals."""
        for portal in self.portals.values():
            portal._shell.refresh_gauges()
        gauges = (Slot.PROXY_SOURCES, Slot.PROXY_RECEIVERS, Slot.REMOTE_TOPICS, Slot.REMOTE_PCRE)
        return sum(worker.counters[slot] for worker in self.workers.values() if worker.index for slot in gauges)

    def has_link(self, other: str) -> bool:
        return self.peers[other].connection is not None

    def cut(self, other: str) -> None:
        """This end closes the connection of a link; an initiator connects again after a while."""
        connection = self.peers[other].connection
        assert connection is not None
        connection._lost("closed by the test", "", LinkEnd.ERROR)

    def close_link(self, other: str) -> None:
        """As `cut`, and this end neither connects nor listens until `mend`."""
        self.peers[other]._connector.close()
        if self.has_link(other):
            self.cut(other)

    def mend(self, other: str) -> None:
        portal = self.peers[other]
        connector = portal._connector
        if isinstance(connector, Initiator):
            connector._is_closed = False
            assert portal.link.connecting is not None
            portal.link.connecting.on_over(self.loop.now_ns())
            portal._shell.act_soon()
        else:
            connector.start()

    def set_reading(self, other: str, *, reads: bool) -> None:
        """Whether this end takes what comes over a link."""
        connection = self.peers[other].connection
        assert connection is not None
        stream = connection.base
        assert isinstance(stream, PlainStream)
        if reads:
            self.loop.add_reader(stream.sock, connection._on_readable)
        else:
            self.loop.remove_reader(stream.sock)

    def set_cost(self, other: str, cost: int) -> None:
        """As a reload does, of the portal that leads to DRO `other`."""
        peers = tuple(replace(p, cost=cost) if p.name == f"{self.name}-{other}" else p for p in self.config.peers)
        self.config = replace(self.config, peers=peers)
        self.peers[other]._on_reconfigure(self.config)

    def kill(self) -> None:
        """Its sockets close, without a word to anybody."""
        for portal in self.peers.values():
            portal.close()
        for endpoint in self.endpoints.values():
            for context in (endpoint.receiving, endpoint.sending):
                context.resolution.channel.send = lambda datagrams: None  # type: ignore[method-assign]
                context.close()
        for worker in self.workers.values():
            worker.channels.on_ctl = lambda *_: None
            worker.channels.send_ctl = lambda *_: None  # type: ignore[method-assign]


class Application:
    """One client context in a TRD."""

    def __init__(self, network: Network, trd: int) -> None:
        self._network = network
        self.sink = RecordingSink()
        self.context = FragmentContext(Config.load(network.plan.config(trd)).options, network.loop, sink=self.sink)
        self._sqn: dict[FragmentSource, int] = {}

    def source(self, topic: bytes) -> FragmentSource:
        source = self.context.open_source(topic)
        self._sqn[source] = 0
        return source

    def send(self, source: FragmentSource, count: int = 1, size: int = 0) -> None:
        for _ in range(count):
            assert source.transport.send_message(self._message(source, size), self._network.loop.now_ns())

    def _message(self, source: FragmentSource, size: int) -> bytes:
        payload = b"%s %d " % (source.otid.hex().encode(), self._sqn[source])
        payload = payload.ljust(size, b".")
        header = lbmc.HEADER.pack(0, 0, 12 + len(payload), source.topic_index, self._sqn[source])
        self._sqn[source] += 1
        return header + payload

    def lose(self, source: FragmentSource, count: int = 1) -> None:
        """Messages that get lost; the session has them, and repairs them when it is asked to."""
        transport = source.transport
        assert isinstance(transport, DatagramSender)
        for _ in range(count):
            datagram = bytearray(transport._header) + self._message(source, 0)
            size = len(datagram)
            transport._write_headers(datagram, (0,))
            transport.core.on_sent_run(1, size, Chunk(datagram, 0, size, size), self._network.loop.now_ns())

    def sent(self, source: FragmentSource) -> int:
        return self._sqn[source]

    def heard(self, topic: bytes) -> list[int]:
        """Topic sqns of what came, in order of arrival."""
        return [sqn for name, sqn, _ in self.sink.fragments if name == topic]

    def last_sqn(self) -> int:
        """That of what came last; -1 before."""
        return self.sink.fragments[-1][1] if self.sink.fragments else -1

    def got(self, source: FragmentSource) -> list[int]:
        """What came of this source, by the numbers in the messages, in order of arrival."""
        sender = source.otid.hex().encode()
        parts = [message[lbmc.HEADER.size :].split(b" ", 2) for _, _, message in self.sink.fragments]
        return [int(number) for otid, number, _ in parts if otid == sender]

    def bound(self, topic: bytes) -> list[BoundSource[Any]]:
        return [bound for bound in self.sink.current if bound.topic == topic]


class Network:
    """See the module text."""

    def __init__(self, plan: Plan, stepper: Stepper) -> None:
        self.plan, self.stepper, self.loop = plan, stepper, stepper.loop
        self.dros: dict[str, Dro] = {}
        self.applications: list[Application] = []
        self._next_id = 1
        self._relays = [
            Relay(self.loop, plan.relay_port(*ends[:2]), plan.link_port(*ends[:2]), delay_ms * NS_PER_MS)
            for ends, delay_ms in plan.delays_ms.items()
        ]

    def start(self, *names: str) -> None:
        """These DROs, or all, in that order; each life has a node id of its own, that grows."""
        for name in names or self.plan.dros:
            self.dros[name] = Dro(self.plan, name, 1 << 63 | self._next_id, self.loop)
            self._next_id += 1

    def kill(self, name: str) -> None:
        self.dros.pop(name).kill()

    def end(self, application: Application) -> None:
        """It leaves its topics, and closes."""
        self.applications.remove(application)
        application.context.close()

    def application(self, trd: int) -> Application:
        self.applications.append(Application(self, trd))
        return self.applications[-1]

    def until(self, holds: Callable[[], bool], limit_ms: int = 30_000, step_ms: int = 10) -> None:
        self.stepper.until(holds, limit_ms=limit_ms, step_ms=step_ms)

    def run(self, milliseconds: int, step_ms: int = 10) -> None:
        self.stepper.run(milliseconds, step_ms)

    def close(self) -> None:
        for application in self.applications:
            application.context.close()
        for dro in self.dros.values():
            dro.kill()
        for relay in self._relays:
            relay.close()
        self.plan.close()


@contextmanager
def network(folder: Path, stepper: Stepper, dros: Ports, **options: object) -> Iterator[Network]:
    """A network of which nothing runs yet; `options` are those of `Plan`."""
    made = Network(Plan(folder, dros, **options), stepper)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.close()
