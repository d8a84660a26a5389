"""What may cross a peer link, which way it goes, and which links carry nothing."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

import pytest

from dro.log.events import LogEvent
from dro.metrics.slots import Slot
from dro.proto.peerlink.messages import SourceRecord
from dro.proto.peerlink.messages import source as source_message
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.data_blocks import TopicName
from dro.wire.lbmr.options import ContextInstance
from portals.decisions.effects import OpenProxySource
from portals.decisions.messages import PATTERN_PCRE, SourceSeen
from router.own_portals import LOOP
from tests.network.conftest import Make
from tests.network.plans import CHAIN, PAIR, RING
from tests.rigs.network import Network

TOPIC = b"orders"
OPEN, CLOSED = b"open", b"closed"
REJECTS = '<ace match="reject"><topic>closed</topic></ace><ace match="accept"><pcre-pattern>.*</pcre-pattern></ace>'


def acl(direction: str) -> str:
    return f"<acl><{direction}>{REJECTS}</{direction}></acl>"


@pytest.mark.parametrize("is_by_pattern", [False, True], ids=["topics", "pattern"])
@pytest.mark.parametrize(
    "lists",
    [{"A-B": acl("outbound")}, {"B-A": acl("inbound")}, {"B-C": acl("outbound")}, {"C-B": acl("inbound")}],
    ids=lambda lists: "".join(f"{portal} {text[5:13]}" for portal, text in lists.items()),
)
def test_a_list_of_a_peer_portal_keeps_a_topic_away(make: Make, lists: Mapping[str, str], is_by_pattern: bool) -> None:
    """From TRD 1, by A, B and C, to TRD 3; the way back is open."""
    net = make(CHAIN, portal_xml=lists)
    net.start()
    ends = net.application(1), net.application(3)
    sources = {(end, topic): end.source(topic) for end in ends for topic in (OPEN, CLOSED)}
    for end in ends:
        if is_by_pattern:
            end.context.want_pattern(b".*", PATTERN_PCRE, lambda name: True)
        else:
            end.context.want_topic(OPEN)
            end.context.want_topic(CLOSED)
    first, last = ends
    net.until(lambda: bool(last.bound(OPEN)) and len({b.topic for b in first.sink.current}) == 2)
    net.run(3000, 50)
    for (end, _), source in sources.items():
        end.send(source, 10)
    net.run(500)
    everything = list(range(10))
    assert last.got(sources[first, OPEN]) == everything
    assert last.got(sources[first, CLOSED]) == []
    assert first.got(sources[last, OPEN]) == first.got(sources[last, CLOSED]) == everything


def test_changed_attributes_of_a_source_cross_the_links(make: Make) -> None:
    net = make(CHAIN)
    net.start()
    sender, receiver = net.application(1), net.application(3)
    source = sender.source(TOPIC)
    receiver.context.want_topic(TOPIC)
    net.until(lambda: len(receiver.bound(TOPIC)) == 1)
    (bound,) = receiver.bound(TOPIC)
    instance = ContextInstance(instance=b"instance")
    assert bound.tir.options is not None
    assert instance not in bound.tir.options.items
    source.update([instance])
    net.until(lambda: any(instance in b.tir.options.items for b in receiver.bound(TOPIC) if b.tir.options))
    sender.send(source, 10)
    net.run(300)
    assert receiver.got(source) == list(range(10))
    assert (len(receiver.sink.bound), receiver.sink.unbound) == (1, [])


@pytest.mark.parametrize("dear", ["B", "D"])
def test_the_cheaper_way_round_is_taken(make: Make, dear: str) -> None:
    """What a receiver sees as cost is that of the whole way: 6 portals, one hop for each DRO."""
    net = make(RING, portal_xml={f"A-{dear}": "<cost>10</cost>", f"{dear}-A": "<cost>10</cost>"})
    net.start()
    sender, receiver = net.application(1), net.application(3)
    source = sender.source(TOPIC)
    receiver.context.want_topic(TOPIC)
    net.until(lambda: len(receiver.bound(TOPIC)) == 1)
    net.run(500)
    sender.send(source, 10)
    net.run(300)
    assert receiver.got(source) == list(range(10))
    assert {other: net.dros["A"].page(other, Slot.SENT) for other in "BD"} == {dear: 0, {"B": "D", "D": "B"}[dear]: 10}
    (bound,) = receiver.bound(TOPIC)
    assert bound.tir.options is not None
    assert bound.tir.options.cost is not None
    assert (bound.tir.options.cost.hop_count, bound.tir.options.cost.cost) == (3, 6)


def refused(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Portal and reason of each refusal of a link."""
    kinds = (LogEvent.LINK_REFUSED, LogEvent.NAMED_LINK_REFUSED)
    return [(r.__dict__["portal"], r.__dict__["reason"]) for r in caplog.records if r.msg in kinds]


def exchange(net: Network) -> None:
    """Messages from TRD 1 to TRD 2 arrive."""
    sender, receiver = net.application(1), net.application(2)
    source = sender.source(TOPIC)
    receiver.context.want_topic(TOPIC)
    net.until(lambda: any(bound.otid == source.otid for bound in receiver.bound(TOPIC)))
    sender.send(source, 20)
    net.run(300)
    assert receiver.got(source) == list(range(20))
    net.end(sender)
    net.end(receiver)


def test_what_is_wrong_about_one_source_leaves_the_link_alone(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    net = make(PAIR)
    net.start()
    net.until(lambda: all(dro.endpoints for dro in net.dros.values()) and net.dros["A"].has_link("B"))
    peer = net.dros["A"].peers["B"]
    link = peer.connection
    assert link is not None
    about = lbmc.decode(source_message(SourceRecord(77, 1, b"T", bytes(32), 3)))
    link.writer.put(lbmc.encode(replace(about, blocks=tuple(b for b in about.blocks if not isinstance(b, TopicName)))))
    peer.perform(OpenProxySource(1, SourceSeen(5, bytes(32), b"T", 1, 0, 0, bytes(40_000))), 0)
    exchange(net)
    assert peer.connection is link
    said = [r.msg for r in caplog.records]
    assert said.count(LogEvent.PEER_SOURCE_UNREADABLE) == said.count(LogEvent.PROXY_SOURCE_REFUSED) == 1


def test_a_link_to_oneself_is_refused_by_name(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    net = make(PAIR | {"A": [1, "B", "A.1", "A.2"]})
    net.start()
    net.run(3000, 50)
    assert sorted(set(refused(caplog))) == [("A-A.1", LOOP), ("A-A.2", LOOP)]
    exchange(net)
    assert [net.dros["A"].page(port, Slot.SENT) for port in ("B", "A.1", "A.2")] == [20, 0, 0]
