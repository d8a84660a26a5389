"""The core of a link on a clock that the tests move: who is the companion, and what is held of a lost link."""

from __future__ import annotations

from pathlib import Path

import pytest

from dro.clock import ms
from dro.log.events import LogEvent
from dro.proto.peerlink.connecting import ANSWER_NS, PAUSED_NS
from dro.proto.peerlink.hold import QUIET_NS
from dro.proto.peerlink.messages import Hello, SourceRecord, hello, keepalive, topic_interest
from dro.proto.peerlink.messages import source as source_record
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.dro_blocks import GatewayName, RouteInfo, RouteInfoNeighbor
from portals.decisions.effects import JoinKnownSource
from portals.decisions.messages import SourceSeen
from portals.peer.link_effects import AddSource, Admit, CompanionAway, CountLost, Log, RemoveSource, SendUrgent
from portals.peer.link_sources import FORMER_CONNECTION
from supervisor.tools.simulate.peer import Pipe
from supervisor.tools.simulate.plan import dro_of, peer
from tests.rigs.portal_hosts.peer import NODE_ID, THERE, SimulatedPeer, greeting

ANSWER_MS = ANSWER_NS // ms(1)
INTERVAL_MS = 5000
"""Is the gap between keepalives, by default."""


@pytest.fixture
def host(tmp_path: Path) -> SimulatedPeer:
    """An acceptor A-B, to which nobody has connected."""
    return SimulatedPeer(tmp_path, dro_of("A", [], [peer("A-B", is_initiator=False)]))


def connected(host: SimulatedPeer, message: bytes) -> Pipe:
    pipe = host.connect()
    assert isinstance(pipe, Pipe)
    host.receive(pipe, message)
    return pipe


def route(name: bytes, node_id: int) -> bytes:
    neighbours = (RouteInfoNeighbor(1, 1, 1), RouteInfoNeighbor(1 << 63 | 1, 1, 1))
    return lbmc.encode(lbmc.control_message(RouteInfo(node_id, 1, 1, 5), GatewayName(name), *neighbours))


def asked(host: SimulatedPeer, *kinds: type) -> list[object]:
    return [note for _, note in host.notes if isinstance(note, kinds)]


def refusals(host: SimulatedPeer) -> list[object]:
    return [e.fields["reason"] for e in asked(host, Log) if isinstance(e, Log) and e.event is LogEvent.PEER_REFUSED]


def number_of_link(host: SimulatedPeer) -> int:
    assert host.link.link is not None
    return host.link.link.number


# who takes the place of a link


def test_whoever_knows_the_hello_of_the_companion_does_not_take_its_place(host: SimulatedPeer) -> None:
    first = connected(host, greeting())
    for _ in range(3):
        pipe = connected(host, greeting())
        host.run(ANSWER_MS // 2)
        assert pipe.is_open
        host.receive(first, keepalive(1, 0))
        host.run(ANSWER_MS)
        assert not pipe.is_open
    assert number_of_link(host) == 1
    assert refusals(host) == ["the companion is connected, and answers"] * 3


def test_a_second_host_with_the_same_configuration_is_refused_by_name(host: SimulatedPeer) -> None:
    connected(host, greeting())
    other = connected(host, greeting(b"host B 2", node_id=1 << 63 | 99))
    host.run(10)
    assert (number_of_link(host), other.is_open) == (1, False)
    why = f"another DRO of the same name is connected: B, and this one has node id {1 << 63 | 99}"
    assert refusals(host) == [why]
    assert why in host.link.watch.error, "in status as well"


@pytest.mark.parametrize("silent_ms", [INTERVAL_MS - 1000, INTERVAL_MS - 100])
def test_of_two_who_want_the_place_of_a_silent_link_the_first_has_it(host: SimulatedPeer, silent_ms: int) -> None:
    """The companion, and a stranger 550 ms later, before or after the interval is over."""
    connected(host, greeting())
    host.run(silent_ms)
    waits = connected(host, greeting())
    host.run(550)
    stranger = connected(host, greeting(name=b"stranger"))
    host.run(ANSWER_MS + 100)
    assert (waits.is_open, stranger.is_open) == (True, False)
    assert number_of_link(host) == 2
    assert [e.connection for e in asked(host, Admit) if isinstance(e, Admit)] == [1, 2]


def test_anyone_takes_the_place_of_a_silent_link_that_does_not_answer(host: SimulatedPeer) -> None:
    connected(host, greeting())
    host.run(INTERVAL_MS)
    stranger = connected(host, greeting(name=b"stranger"))
    host.run(ANSWER_MS - 100)
    assert number_of_link(host) == 1
    host.run(200)
    assert (number_of_link(host), stranger.is_open) == (2, True)


def test_a_process_that_did_not_run_asks_once_more(host: SimulatedPeer) -> None:
    """Else a pause of the machine would give the link to whoever wants its place."""
    first = connected(host, greeting())
    waits = connected(host, greeting())
    host.clock.now_ns += ms(ANSWER_MS) + PAUSED_NS
    host.end.on_timer(host.clock.now_ns)
    host.run(1)
    assert waits.is_open
    host.receive(first, keepalive(1, 0))
    host.run(ANSWER_MS)
    assert (number_of_link(host), waits.is_open) == (1, False)


# who the companion is


def test_the_neighbour_is_known_from_hello(host: SimulatedPeer) -> None:
    connected(host, greeting(node_id=1 << 63 | 7))
    assert host.link.neighbour == 1 << 63 | 7


def test_a_companion_that_tells_no_node_id_is_known_by_its_name_and_not_by_what_comes_first(
    host: SimulatedPeer,
) -> None:
    """Route information of a third DRO comes first after a reconnect."""
    pipe = connected(host, hello(Hello(b"B", b"instance")))
    host.receive(pipe, route(b"X", 1 << 63 | 77))
    assert host.link.neighbour == 0
    host.receive(pipe, route(b"B", 1 << 63 | 55))
    assert host.link.neighbour == 1 << 63 | 55


def test_the_own_route_information_is_the_first_that_leaves_on_a_connection(host: SimulatedPeer) -> None:
    connected(host, greeting())
    messages = [route(b"any", node_id) for node_id in (7, NODE_ID, 8)]
    for message in messages:
        host.end.on_route_info(message)
    assert asked(host, CountLost, SendUrgent) == [CountLost((messages[0],)), *map(SendUrgent, messages[1:])]


# what is held of a link that was lost


def lost(host: SimulatedPeer) -> None:
    """B has wanted two topics, and its link has been away for a second."""
    pipe = connected(host, greeting())
    for topic in (b"one", b"two"):
        for message in topic_interest(topic, (THERE,)):
            host.receive(pipe, message)
    host.run(1000)
    host.cut(pipe)
    host.run(1000)
    assert host.link.heard.held == 2


def wanted(host: SimulatedPeer) -> set[bytes]:
    return {topic for topic in (b"one", b"two") if host.core.recorded.interested(topic)}


def test_a_companion_that_wants_less_than_before_is_believed(host: SimulatedPeer) -> None:
    lost(host)
    again = connected(host, greeting())
    for message in topic_interest(b"one", (THERE,)):
        host.receive(again, message)
    host.run(QUIET_NS // ms(1) - 100)
    assert wanted(host) == {b"one", b"two"}
    host.run(200)
    assert wanted(host) == {b"one"}


def test_another_instance_of_the_companion_is_not_fed(host: SimulatedPeer) -> None:
    lost(host)
    connected(host, greeting(b"portal 2"))
    host.run(1)
    assert wanted(host) == set()
    assert asked(host, CompanionAway) == [CompanionAway()], "what waits for it is thrown away"


def test_sources_of_the_process_before_are_held_for_those_who_had_them_until_they_are_offered(
    host: SimulatedPeer,
) -> None:
    """Who had them may have died with that process: their data came before anybody was known to want it."""
    lost(host)
    host.notes.clear()
    had = [SourceSeen(n, bytes([n]) * 32, b"one", THERE, 3, 7, b"") for n in (5, 6)]
    for source in had:
        host.end.perform(JoinKnownSource(source), host.clock.now_ns)
    first, second = [effect for effect in asked(host, AddSource) if isinstance(effect, AddSource)]
    assert [(e.connection, e.record.otid, e.hop_count, e.cost) for e in (first, second)] == [
        (FORMER_CONNECTION, source.otid, 3, 7) for source in had
    ]
    again = connected(host, greeting())
    host.receive(again, source_record(SourceRecord(9, THERE, b"one", had[1].otid, 1)))
    taken_over = asked(host, AddSource)[2]
    assert isinstance(taken_over, AddSource)
    assert taken_over.before == (FORMER_CONNECTION, second.record.srcidx)
    host.end.perform(JoinKnownSource(had[0]), host.clock.now_ns)
    assert len(asked(host, AddSource)) == 3, "the companion is there, and offers what it has"
    host.run(QUIET_NS // ms(1) + 100)
    assert asked(host, RemoveSource) == [RemoveSource(FORMER_CONNECTION, first.record.srcidx)]
