"""Multicast immediate messages through networks of DROs: each TRD that should have one gets it, once.

Named after the row of the feature table: with a topic and without to all TRDs of a ring, each once; not filtered by an
access list that rejects the topic.
"""

from __future__ import annotations

from typing import Final

import pytest

from dro.metrics.slots import Slot
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.codes import MessageType
from dro.wire.lbmc.data_blocks import ODomain, OtidBlock, TopicName
from tests.network.conftest import Make
from tests.network.plans import ALL, CHAIN, PAIR, RING
from tests.rigs.immediate import Immediate, give_groups
from tests.rigs.network import Network, Ports

DIRECT: Final[Ports] = {"A": [1, 2]}
TRANSIT: Final[Ports] = {"A": [1, 2], "B": [2, 3], "C": [3, 4]}
PARALLEL: Final[Ports] = {"A": [1, 2], "B": [1, 2], "C": [2, 3], "D": [2, 3]}
LOOP: Final[Ports] = {"A": [1, 2], "B": [2, 3], "C": [3, 4], "D": [4, 1]}
MIXED: Final[Ports] = {"A": [1, 2, "B"], "B": [3, "A"], "C": [2, 3]}
PLANS: Final = {
    "direct": DIRECT, "transit": TRANSIT, "parallel": PARALLEL, "loop": LOOP, "mixed": MIXED, **ALL,
}  # fmt: skip
QUIET_MS: Final = 500


class Everybody:
    """A network that has settled, and one application in each TRD."""

    def __init__(self, net: Network) -> None:
        give_groups(net.plan)
        self.net = net
        net.start()
        net.run(3000, 20)
        self.by_trd = {trd: Immediate(net.application(trd).context) for trd in net.plan.trds}

    def send(self, trd: int, payload: bytes, topic: bytes = b"quotes", *, has_otid: bool = True) -> None:
        sender = self.by_trd[trd]
        sender.send(payload, sender.blocks(trd, topic, has_otid=has_otid))

    def settle(self) -> None:
        self.net.run(QUIET_MS, 10)

    def payloads(self) -> dict[int, list[bytes]]:
        return {trd: sorted(one.payloads) for trd, one in self.by_trd.items()}

    def total(self, slot: Slot) -> int:
        return sum(w.counters[slot] for dro in self.net.dros.values() for w in dro.workers.values() if w.index)


@pytest.mark.parametrize("topic", [b"quotes", b""], ids=["topic", "topicless"])
@pytest.mark.parametrize("plan", PLANS)
def test_every_trd_gets_each_message_once(make: Make, plan: str, topic: bytes) -> None:
    all_of_them = Everybody(make(PLANS[plan]))
    trds = all_of_them.net.plan.trds
    for number in range(5):
        for trd in trds:
            all_of_them.send(trd, b"%d:%d" % (trd, number), topic)
            all_of_them.net.run(10)
    all_of_them.settle()
    for trd, payloads in all_of_them.payloads().items():
        assert payloads == sorted(b"%d:%d" % (other, n) for other in trds if other != trd for n in range(5))
    for one in all_of_them.by_trd.values():
        for message in one.heard:
            origin, name = message.get(ODomain), message.get(TopicName)
            assert origin is not None
            assert message.payload.startswith(b"%d:" % origin.domain_id)
            assert (name.topic if name is not None else b"") == topic
            assert message.get(OtidBlock) is not None
    sent, other = Slot.IMMEDIATE_TOPIC_SENT, Slot.IMMEDIATE_TOPICLESS_SENT
    assert (all_of_them.total(sent) > 0, all_of_them.total(other) > 0) == (bool(topic), not topic)
    assert all_of_them.total(Slot.IMMEDIATE_TOPIC_DROPPED_DUP) == 0, "one DRO brings it into each TRD"


def test_an_access_list_does_not_hold_them_back(make: Make) -> None:
    reject = "<ace match='reject'><topic>quotes</topic></ace>"
    acl = f"<acl><inbound>{reject}</inbound><outbound>{reject}</outbound></acl>"
    all_of_them = Everybody(make(DIRECT, portal_xml={"A-1": acl, "A-2": acl}))
    all_of_them.send(1, b"x")
    all_of_them.settle()
    assert all_of_them.payloads() == {1: [], 2: [b"x"]}


@pytest.mark.parametrize("plan", [DIRECT, PAIR], ids=["direct", "link"])
def test_the_first_dro_fills_in_what_can_be(make: Make, plan: Ports) -> None:
    """Domain 0: the sender did not know it. Without an OTID: that of the session."""
    all_of_them = Everybody(make(plan))
    sender = all_of_them.by_trd[1]
    for payload in (b"a", b"b"):
        sender.send(payload, sender.blocks(0, b"quotes", has_otid=False))
    all_of_them.settle()
    heard = all_of_them.by_trd[2].heard
    assert [message.payload for message in heard] == [b"a", b"b"]
    assert {origin.domain_id for m in heard if (origin := m.get(ODomain)) is not None} == {1}
    assert len({made.otid for m in heard if (made := m.get(OtidBlock)) is not None}) == 1


def test_what_does_not_name_its_domain_is_dropped_and_told(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    all_of_them = Everybody(make(DIRECT))
    sender = all_of_them.by_trd[1]
    sender.send(b"x", [TopicName(b"quotes")])
    all_of_them.settle()
    assert all_of_them.payloads() == {1: [], 2: []}
    assert all_of_them.net.dros["A"].page(1, Slot.IMMEDIATE_NO_DOMAIN) == 1
    assert any("does not name its domain" in record.getMessage() for record in caplog.records)


def test_requests_are_counted_apart_and_keep_their_origin(make: Make) -> None:
    all_of_them = Everybody(make(CHAIN))
    sender = all_of_them.by_trd[1]
    sender.send(b"x", sender.blocks(1, b"quotes", is_request=True))
    all_of_them.settle()
    assert all_of_them.payloads() == {1: [], 2: [b"x"], 3: [b"x"]}
    dros = all_of_them.net.dros
    assert dros["A"].page(1, Slot.IMMEDIATE_TOPIC_REQ_RCVD) == 1
    assert dros["C"].page(3, Slot.IMMEDIATE_TOPIC_REQ_SENT) == 1
    [message] = all_of_them.by_trd[3].heard
    assert message.get(ODomain) == ODomain(1)


@pytest.mark.parametrize("victim", ["B", "D"])
def test_the_other_way_round_when_a_dro_of_a_ring_dies(make: Make, victim: str) -> None:
    all_of_them = Everybody(make(RING))
    all_of_them.send(1, b"before")
    all_of_them.settle()
    all_of_them.net.kill(victim)
    all_of_them.net.run(4000, 20)
    all_of_them.send(1, b"after")
    all_of_them.settle()
    away = {"B": 2, "D": 4}[victim]
    for trd, payloads in all_of_them.payloads().items():
        assert payloads == ([] if trd == 1 else [b"before"] if trd == away else [b"after", b"before"])


def test_nothing_comes_twice_while_routes_change(make: Make) -> None:
    """One message each 10 ms while a DRO of a ring goes and comes back."""
    all_of_them = Everybody(make(RING))
    number = 0

    def run(milliseconds: int) -> None:
        nonlocal number
        for _ in range(0, milliseconds, 10):
            all_of_them.send(1, b"%06d" % number)
            number += 1
            all_of_them.net.run(10)

    run(300)
    all_of_them.net.kill("B")
    run(3000)
    all_of_them.net.start("B")
    run(4000)
    all_of_them.settle()
    for trd in (2, 3, 4):
        payloads = all_of_them.by_trd[trd].payloads
        assert len(set(payloads)) == len(payloads)
    assert sorted(all_of_them.by_trd[4].payloads) == [b"%06d" % n for n in range(number)]


def test_one_that_is_too_large_for_the_next_trd_is_dropped_and_told(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    net = make(DIRECT)
    with net.plan.config(2).open("a") as file:
        file.write("context transport_lbtrm_datagram_max_size 1000\n")
    all_of_them = Everybody(net)
    all_of_them.send(1, bytes(2000))
    all_of_them.send(1, bytes(500))
    all_of_them.settle()
    assert all_of_them.payloads()[2] == [bytes(500)]
    assert net.dros["A"].page(2, Slot.IMMEDIATE_TOPIC_DROPPED_SIZE) == 1
    assert any("larger than a datagram" in record.getMessage() for record in caplog.records)


def test_a_portal_without_a_group_hears_nothing(make: Make) -> None:
    net = make(DIRECT)
    net.start()
    net.run(2000, 20)
    sender = Immediate(net.application(1).context)
    sender.send(b"x", sender.blocks(1))
    net.run(QUIET_MS, 10)
    assert net.dros["A"].page(1, Slot.IMMEDIATE_TOPICLESS_RCVD) == 0


def test_what_breaks_its_layout_ends_at_the_first_dro(make: Make) -> None:
    all_of_them = Everybody(make(PAIR))
    good = lbmc.encode(lbmc.Message(MessageType.MESSAGE, 0, 0, (ODomain(1),), b"x"))
    broken = good[:13] + b"\x03" + good[14:]  # a block of 3 bytes
    told: list[object] = []
    all_of_them.by_trd[1]._context.immediate.send(broken, told.append)
    all_of_them.settle()
    assert all_of_them.payloads()[2] == []
    assert all_of_them.net.dros["A"].page(1, Slot.IMMEDIATE_BROKEN) == 1
