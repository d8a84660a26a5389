"""The two hosts of a `<peer>` portal, and the player of its scripts, who plays companion, sibling and routes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Protocol, cast

from dro.bus.messages import Origin, Route
from dro.clock import NS_PER_MS
from dro.config.dro_xml.load import load_dro
from dro.config.dro_xml.model import DroConfig
from dro.proto.peerlink import messages as link
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.dro_blocks import CAPABILITY3_PCRE, PATTERN_PCRE, TnwgKeepalive
from portals.decisions.core import PortalCore
from portals.decisions.engine import PortalEngine
from portals.peer import link_effects
from portals.peer.link_core import LinkCore
from portals.peer.process.portal import PeerPortal
from supervisor.tools.simulate.clock import SimClock
from supervisor.tools.simulate.peer import ADDRESS, PeerEnd, Pipe, Wire
from supervisor.tools.simulate.portal import Daemon, SimPortal
from tests.fakes.stream import FakeStream
from tests.fakes.um_contexts import Stepper
from tests.fakes.worker import FakeWorker
from tests.rigs.portal_hosts.script import SIBLING, START_NS, Host, Player, note_effects, run_stepped

ME: Final = 1
HERE, THERE = 10, 20  # domains behind the sibling, and behind the companion
NODE_BIT: Final = 1 << 63
NODE_ID: Final = NODE_BIT | 5
DRO: Final = """\
<tnw-gateway version="1.0"><daemon><name>A</name></daemon><portals>
<peer><name>A-B</name><cost>{cost}</cost><source-deletion-delay>100</source-deletion-delay>
<single-tcp><interface>127.0.0.1</interface><acceptor><listen-port>14000</listen-port></acceptor></single-tcp>
<acl><inbound><ace match="reject"><topic>{closed}</topic></ace><ace match="accept"><topic>.*</topic></ace></inbound>
</acl><canary interval="500" timeout="1500"/></peer></portals></tnw-gateway>"""


class PeerHost(Host, Protocol):
    """A portal A-B, with B as companion."""

    link: LinkCore

    def connect(self) -> object:
        """Return a new connection of a companion."""

    def receive(self, connection: object, message: bytes) -> None: ...

    def cut(self, connection: object) -> None: ...


class _Configured:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._values = {"closed": "closed", "cost": "1"}
        self.notes: list[tuple[int, object]] = []

    def _config(self, **changes: str) -> DroConfig:
        self._values |= changes
        path = self._folder / "dro.xml"
        path.write_text(DRO.format(**self._values))
        return load_dro(str(path), warn=lambda _: None)

    def _watch(self, link: LinkCore, portal: Any) -> None:  # noqa: ANN401  one of either host
        self.link, self.core = link, cast(PortalCore, portal.core)
        note_effects(cast(Host, self), self.core)
        note_effects(cast(Host, self), link)
        link.hello = replace(link.hello, context_instance=b"portal A")
        link._padding = bytes(100)


class PeerProcess(_Configured):
    """The process."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        config = self._config()
        self._stepper = Stepper()
        worker = FakeWorker(self._stepper.loop, folder, ME, "A-B")
        self.portal = PeerPortal(worker.ctx, config.peers[0], config)
        self.engine: PortalEngine = self.portal._shell.engine
        self._watch(self.portal.link, self.portal)

    def now_ns(self) -> int:
        return self._stepper.clock.time_ns

    def connect(self) -> object:
        stream = FakeStream()
        self.portal._on_stream(stream, ADDRESS)
        return stream

    def receive(self, connection: object, message: bytes) -> None:
        assert isinstance(connection, FakeStream)
        assert connection.events is not None
        connection.to_read += message
        connection.events.on_readable()
        self._stepper.settle()

    def cut(self, connection: object) -> None:
        assert isinstance(connection, FakeStream)
        assert connection.events is not None
        connection.events.on_lost()

    def configure(self, **changes: str) -> None:
        self.portal._on_reconfigure(self._config(**changes))

    def run(self, milliseconds: int) -> None:
        run_stepped(self._stepper, milliseconds)

    def close(self) -> None:
        self.portal.close()
        self._stepper.loop.close()


class SimulatedPeer(_Configured):
    """The same in the simulator."""

    def __init__(self, folder: Path, other: DroConfig | None = None) -> None:
        """`other`: configuration than that of the scripts."""
        super().__init__(folder)
        config = (other or self._config()).peers[0]
        self.clock = SimClock()
        self.clock.now_ns = START_NS
        self.portal = SimPortal(self.clock, daemon(), ME, 1, config)
        self._wire = Wire(self.clock, "A-B")
        self.end = PeerEnd(self.portal, config, self._wire, random.Random(1))
        self.portal.link = self.end
        self.portal.start()
        self.engine = self.portal.engine
        self._watch(self.end.link, self.portal)

    def now_ns(self) -> int:
        return self.clock.now_ns

    def connect(self) -> object:
        nobody = SimpleNamespace(portal=SimpleNamespace(is_alive=False), on_broken=lambda _: None)
        pipe = Pipe(self._wire, self.end, cast(PeerEnd, nobody))
        self.end.on_connected(pipe)
        self.run(0)
        return pipe

    def receive(self, connection: object, message: bytes) -> None:
        self.end.on_received(cast(Pipe, connection), message)
        self.run(0)

    def cut(self, connection: object) -> None:
        self.end.on_broken(cast(Pipe, connection))
        self.run(0)

    def configure(self, **changes: str) -> None:
        self.portal.on_config(self._config(**changes).peers[0])

    def run(self, milliseconds: int) -> None:
        self.clock.run_until(self.clock.now_ns + milliseconds * NS_PER_MS)

    def close(self) -> None:
        """Nothing is open."""


def greeting(instance: bytes = b"portal B", name: bytes = b"B", node_id: int = NODE_BIT | 7) -> bytes:
    own = link.Hello(
        name, instance, capabilities3=CAPABILITY3_PCRE, has_digests=True, has_canaries=True, node_id=node_id
    )
    return link.hello(own)


def daemon() -> Daemon:
    """A simulated DRO with nothing but the portal."""
    nothing: Callable[..., None] = lambda *_: None  # noqa: E731  for two
    dro = SimpleNamespace(
        name="A", node_id=NODE_ID, portals={}, siblings_of=lambda _: [], report=nothing, pass_route_info=nothing
    )
    return cast(Daemon, dro)


class PeerPlayer(Player):
    """Connections have names; nodes, and sources of the companion, numbers."""

    host: PeerHost
    routes = Route((THERE,), HERE, ME, SIBLING), Route((HERE,), THERE, SIBLING, ME)

    def __init__(self, host: PeerHost) -> None:
        super().__init__(host)
        self._connections: dict[str, object] = {}
        self._canaries: list[bytes] = []  # that were sent, not answered
        do = link_effects
        kinds = (do.SendInOrder, do.SendUrgent, do.SendInterest, do.SendAllInterest, do.SendAllSources)
        self.writer.special |= dict.fromkeys(kinds, self._sent)

    def _sent(self, effect: Any) -> str:  # noqa: ANN401  one with messages
        messages = [effect.message] if hasattr(effect, "message") else effect.messages
        text = [" ".join(map(self.writer.write, lbmc.decode(message).blocks)) for message in messages]
        return " | ".join([type(effect).__name__, *text])

    def do_routes(self, version: str, which: str) -> None:
        self.origins = Origin(THERE, 2, int(version) + 6), Origin(HERE, 0, 1)
        super().do_routes(version, which)

    def do_connect(self, name: str) -> None:
        self._connections[name] = self.host.connect()

    def do_cut(self, name: str) -> None:
        self.host.cut(self._connections[name])

    def _receive(self, name: str, *messages: bytes) -> None:
        for message in messages:
            self.host.receive(self._connections[name], message)

    def do_hello(self, connection: str, instance: str = "portal B", name: str = "B", node: str = "7") -> None:
        self._receive(connection, greeting(instance.encode(), name.encode(), NODE_BIT | int(node)))

    def do_wants(self, connection: str, topic: str = "", pattern: str = "") -> None:
        if topic:
            self._receive(connection, *link.topic_interest(topic.encode(), (THERE,)))
        if pattern:
            self._receive(connection, *link.pattern_interest(pattern.encode(), PATTERN_PCRE, 1, (THERE,)))

    def do_offers(self, connection: str, number: str, topic: str, otid: str = "") -> None:
        """`otid`: repeated number, that of the source unless it is given."""
        record = link.SourceRecord(int(number), THERE, topic.encode(), bytes([int(otid or number)]) * 32, 3)
        self._receive(connection, link.source(record))

    def do_ends(self, connection: str, number: str) -> None:
        end = link.SourceEnd(int(number), bytes([int(number)]) * 32)
        self._receive(connection, link.source_end(THERE, end, int(number)))

    def do_says(self, connection: str, what: str) -> None:
        """`nothing`, in a message."""
        assert what == "nothing"
        self._receive(connection, lbmc.encode(lbmc.control_message()))

    def do_answers(self, connection: str, which: str) -> None:
        """Answer the `first` canary that was sent so far, or the `last`."""
        self._receive(connection, self._canaries[{"first": 0, "last": -1}[which]])

    def obey(self, line: str) -> None:
        super().obey(line)
        for _, note in self.host.notes:
            if isinstance(note, link_effects.SendInOrder):
                decoded = lbmc.decode(note.message)
                alive, canary = decoded.get(TnwgKeepalive), link.canary_of(decoded)
                if alive is not None and canary:
                    self._canaries.append(link.canary_response(alive, canary))
