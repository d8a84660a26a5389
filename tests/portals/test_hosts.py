"""A portal decides the same in the process and in the simulator: one script for both, and what their cores ask for.

The companion, the sibling and the route manager are played by the script: each step is a call with the same arguments
at the same time. Compared is all that the core of the portal and the core of the link ask for, and when.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Final, Protocol, cast

import pytest

from dro.bus.messages import Origin, Route, RouteTable
from dro.clock import NS_PER_MS, NS_PER_S
from dro.config.dro_xml.load import load_dro
from dro.config.dro_xml.model import DroConfig
from dro.proto.peerlink.messages import (
    Hello,
    SourceEnd,
    SourceRecord,
    canary_of,
    canary_response,
    hello,
    pattern_interest,
    source,
    source_end,
    topic_interest,
)
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.dro_blocks import CAPABILITY3_PCRE, PATTERN_PCRE, TnwgKeepalive
from portals.decisions.core import PortalCore
from portals.decisions.effects import Effect, GoOn, SendInitialState
from portals.decisions.engine import PortalEngine
from portals.decisions.messages import ForwardStart, InterestAdded, PortalMessage, SourceGone, SourceSeen
from portals.peer.link_core import LinkCore
from portals.peer.link_effects import LinkCoreEffect, RunSteps, SendAllInterest, SendAllSources, SendInOrder
from portals.peer.process.portal import PeerPortal
from supervisor.tools.simulate.clock import SimClock
from supervisor.tools.simulate.peer import ADDRESS, PeerEnd, Pipe, Wire
from supervisor.tools.simulate.portal import Daemon, SimPortal
from tests.fakes.stream import FakeStream
from tests.fakes.um_contexts import Stepper
from tests.fakes.worker import FakeWorker

ME, SIBLING = 1, 2
HERE, THERE = 10, 20  # domains behind the sibling, and behind the companion
NODE_ID: Final = 1 << 63 | 5
DRO: Final = """\
<tnw-gateway version="1.0"><daemon><name>A</name></daemon><portals>
<peer><name>A-B</name><cost>{cost}</cost><source-deletion-delay>100</source-deletion-delay>
<single-tcp><interface>127.0.0.1</interface><acceptor><listen-port>14000</listen-port></acceptor></single-tcp>
<acl><inbound><ace match="reject"><topic>{closed}</topic></ace><ace match="accept"><topic>.*</topic></ace></inbound>
</acl><canary interval="500" timeout="1500"/></peer></portals></tnw-gateway>"""


class Host(Protocol):
    """A portal A-B, with B as companion."""

    link: LinkCore
    core: PortalCore
    engine: PortalEngine
    notes: list[object]

    def now_ns(self) -> int: ...

    def connect(self) -> object:
        """Return a new connection of a companion."""

    def receive(self, connection: object, message: bytes) -> None: ...

    def cut(self, connection: object) -> None: ...

    def configure(self, config: DroConfig) -> None: ...

    def run(self, milliseconds: int) -> None: ...


def noted(effect: Effect | LinkCoreEffect) -> tuple[object, Effect | LinkCoreEffect]:
    """Return what is compared of an effect, and the effect: messages that are made one by one are made now."""
    match effect:
        case SendAllInterest(messages=messages):
            made = list(messages)
            return ("all interest", made), replace(effect, messages=iter(made))
        case SendAllSources(messages=messages):
            made = list(messages)
            return ("all sources", made), replace(effect, messages=iter(made))
        case GoOn() | RunSteps():
            return type(effect).__name__, effect
        case SendInitialState(worker=worker, messages=steps):
            told = list(steps)
            return ("everything", worker, told), SendInitialState(worker, iter(told))
        case _:
            return effect, effect


def by_time(host: Host) -> dict[int, list[str]]:
    """Sort what was asked for at each time; what a turn does first is the host's."""
    found: defaultdict[int, list[str]] = defaultdict(list)
    for at_ns, note in cast("list[tuple[int, object]]", host.notes):
        found[at_ns].append(repr(note))
    return {at_ns: sorted(notes) for at_ns, notes in found.items()}


def watched(host: Host) -> None:
    """Note what both cores ask for, in the order in which it is carried out."""

    def watch(take: Callable[[], list[Effect]] | Callable[[], list[LinkCoreEffect]]) -> Callable[[], list[object]]:
        def taken() -> list[object]:
            pairs = [noted(effect) for effect in take()]
            host.notes += [(host.now_ns(), note) for note, _ in pairs]
            return [effect for _, effect in pairs]

        return taken

    host.core.take_effects = watch(host.core.take_effects)  # type: ignore[assignment,method-assign]
    host.link.take_effects = watch(host.link.take_effects)  # type: ignore[assignment,method-assign]
    host.link.hello = replace(host.link.hello, context_instance=b"portal A")
    host.link._padding = bytes(100)


class ProcessHost:
    def __init__(self, folder: Path, config: DroConfig) -> None:
        self.stepper = Stepper()
        worker = FakeWorker(self.stepper.loop, folder, ME, "A-B")
        self.portal = PeerPortal(worker.ctx, config.peers[0], config)
        self.link, self.core, self.engine = self.portal.link, self.portal.core, self.portal._shell.engine
        self.notes: list[object] = []

    def now_ns(self) -> int:
        return self.stepper.clock.time_ns

    def connect(self) -> object:
        stream = FakeStream()
        self.portal._on_stream(stream, ADDRESS)
        self.stepper.settle()
        return stream

    def receive(self, connection: object, message: bytes) -> None:
        assert isinstance(connection, FakeStream)
        assert connection.events is not None
        connection.to_read += message
        connection.events.on_readable()
        self.stepper.settle()

    def cut(self, connection: object) -> None:
        assert isinstance(connection, FakeStream)
        assert connection.events is not None
        connection.events.on_lost()
        self.stepper.settle()

    def configure(self, config: DroConfig) -> None:
        self.portal._on_reconfigure(config)
        self.stepper.settle()

    def run(self, milliseconds: int) -> None:
        self.stepper.settle()
        self.stepper.run(milliseconds)

    def close(self) -> None:
        self.portal.close()
        self.stepper.loop.close()


class SimulatedHost:
    def __init__(self, config: DroConfig) -> None:
        self.clock = SimClock()
        self.clock.now_ns = NS_PER_S
        dro = SimpleNamespace(
            name="A",
            node_id=NODE_ID,
            portals={},
            siblings_of=lambda _: [],
            report=lambda *_: None,
            pass_route_info=lambda *_: None,
        )
        self.portal = SimPortal(self.clock, cast(Daemon, dro), ME, 1, config.peers[0])
        self.wire = Wire(self.clock, "A-B")
        self.end = PeerEnd(self.portal, config.peers[0], self.wire, random.Random(1))
        self.portal.link = self.end
        self.portal.start()
        self.link, self.core, self.engine = self.end.link, self.portal.core, self.portal.engine
        self.notes: list[object] = []

    def now_ns(self) -> int:
        return self.clock.now_ns

    def connect(self) -> object:
        nobody = SimpleNamespace(portal=SimpleNamespace(is_alive=False), on_broken=lambda _: None)
        pipe = Pipe(self.wire, self.end, cast(PeerEnd, nobody))
        self.end.on_connected(pipe)
        self.run(0)
        return pipe

    def receive(self, connection: object, message: bytes) -> None:
        self.end.on_received(cast(Pipe, connection), message)
        self.run(0)

    def cut(self, connection: object) -> None:
        self.end.on_broken(cast(Pipe, connection))
        self.run(0)

    def configure(self, config: DroConfig) -> None:
        self.portal.on_config(config.peers[0])
        self.run(0)

    def run(self, milliseconds: int) -> None:
        self.clock.run_until(self.clock.now_ns + milliseconds * NS_PER_MS)

    def close(self) -> None:
        """Nothing is open."""


def record(number: int, topic: bytes) -> SourceRecord:
    return SourceRecord(number, THERE, topic, bytes([number]) * 32, 3)


def greeting(instance: bytes = b"portal B", name: bytes = b"B", node_id: int = 1 << 63 | 7) -> bytes:
    return hello(
        Hello(name, instance, capabilities3=CAPABILITY3_PCRE, has_digests=True, has_canaries=True, node_id=node_id)
    )


def canaries(host: Host) -> list[bytes]:
    """The answers to the canaries that were sent so far."""
    sent = [note.message for _, note in cast("list[tuple[int, object]]", host.notes) if isinstance(note, SendInOrder)]
    answers = []
    for message in sent:
        decoded = lbmc.decode(message)
        alive = decoded.get(TnwgKeepalive)
        if alive is not None and canary_of(decoded):
            answers.append(canary_response(alive, canary_of(decoded)))
    return answers


def from_sibling(host: Host, *messages: PortalMessage) -> None:
    for message in messages:
        host.core.on_message(SIBLING, 1, message, host.now_ns())
    host.engine.act()
    host.run(0)


def routes(host: Host, version: int, *found: Route) -> None:
    table = RouteTable(version, found, (Origin(THERE, 2, version + 6), Origin(HERE, 0, 1)) if found else ())
    host.engine.on_routes(table)
    host.engine.on_paths(table)
    host.run(0)


BOTH_WAYS: Final = Route((HERE,), THERE, SIBLING, ME), Route((THERE,), HERE, ME, SIBLING)


def linked(host: Host) -> object:
    """B is there, wants and offers something; the sibling too."""
    connection = host.connect()
    host.receive(connection, greeting())
    for message in (*topic_interest(b"wanted", (THERE,)), *pattern_interest(b"^w", PATTERN_PCRE, 1, (THERE,))):
        host.receive(connection, message)
    for number, topic in enumerate((b"open", b"closed", b"other"), start=1):
        host.receive(connection, source(record(number, topic)))
    host.core.on_sibling_up(SIBLING, 1, 0, 0, host.now_ns())
    host.engine.act()
    routes(host, 1, *BOTH_WAYS)
    wanted = SourceSeen(77, b"w" * 32, b"wanted", HERE, 0, 1, b"")
    from_sibling(host, InterestAdded(b"open", 0, HERE), InterestAdded(b"closed", 0, HERE), wanted)
    handles = [seen.handle for seen in host.core.own.seen.values() if seen.topic == b"open"]
    from_sibling(host, *map(ForwardStart, handles))
    return connection


def canaries_fail_and_come_back(host: Host, _: Callable[..., DroConfig]) -> None:
    connection = linked(host)
    host.receive(connection, canaries(host)[0])
    host.run(4_000)
    for _round in range(6):
        host.receive(connection, canaries(host)[-1])
        host.run(500)
    host.run(2_000)


def lists_and_costs_change(host: Host, configured: Callable[..., DroConfig]) -> None:
    connection = linked(host)
    host.configure(configured(closed="other"))
    host.run(100)
    host.configure(configured(closed="open", cost=7))
    host.run(100)
    routes(host, 2, *BOTH_WAYS)
    host.receive(connection, source(record(4, b"open")))
    host.receive(connection, source_end(THERE, SourceEnd(3, bytes([3]) * 32), 3))
    host.run(100)


def a_link_is_lost_and_confirmed(host: Host, _: Callable[..., DroConfig]) -> None:
    connection = linked(host)
    host.run(1_000)
    host.cut(connection)
    host.run(3_000)
    again = host.connect()
    host.receive(again, greeting())
    for message in topic_interest(b"wanted", (THERE,)):
        host.receive(again, message)
    host.receive(again, source(record(9, b"open")))
    host.receive(again, source(replace(record(1, b"open"), srcidx=8)))
    host.run(3_000)


def a_link_is_lost_for_good(host: Host, _: Callable[..., DroConfig]) -> None:
    connection = linked(host)
    host.cut(connection)
    host.run(12_000)
    again = host.connect()
    host.receive(again, greeting(b"portal 2"))
    from_sibling(host, SourceGone(77))
    host.run(1_000)


def another_one_wants_the_place(host: Host, _: Callable[..., DroConfig]) -> None:
    linked(host)
    host.run(1_000)
    for name, node_id in ((b"C", 1 << 63 | 9), (b"B", 1 << 63 | 9), (b"B", 1 << 63 | 7)):
        host.receive(host.connect(), greeting(b"portal 3", name, node_id))
        host.run(1_500)


def nobody_says_anything_more(host: Host, _: Callable[..., DroConfig]) -> None:
    linked(host)
    routes(host, 2)
    host.run(70_000)
    routes(host, 3, *BOTH_WAYS)
    host.receive(host.connect(), lbmc.encode(lbmc.control_message()))
    host.run(70_000)


SCRIPTS: Final = (
    canaries_fail_and_come_back,
    lists_and_costs_change,
    a_link_is_lost_and_confirmed,
    a_link_is_lost_for_good,
    another_one_wants_the_place,
    nobody_says_anything_more,
)


@pytest.fixture
def configured(tmp_path: Path) -> Callable[..., DroConfig]:
    def read(closed: str = "closed", cost: int = 1) -> DroConfig:
        path = tmp_path / "dro.xml"
        path.write_text(DRO.format(closed=closed, cost=cost))
        return load_dro(str(path), warn=lambda _: None)

    return read


@pytest.fixture
def hosts(tmp_path: Path, configured: Callable[..., DroConfig]) -> Iterator[tuple[Host, Host]]:
    process, simulated = ProcessHost(tmp_path, configured()), SimulatedHost(configured())
    for host in (process, simulated):
        watched(host)
    yield process, simulated
    process.close()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_both_hosts_ask_for_the_same(
    hosts: tuple[Host, Host], configured: Callable[..., DroConfig], script: Callable[..., None]
) -> None:
    for host in hosts:
        script(host, configured)
    process, simulated = hosts
    assert len(process.notes) > 30
    assert by_time(simulated) == by_time(process)
