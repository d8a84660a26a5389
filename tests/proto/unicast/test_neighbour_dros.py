"""The other DROs of a TRD: who announces what, when, and for how long it holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.clock import ms, s
from dro.proto.unicast.neighbour_dros import (
    ANSWER_NS,
    FORGET_NS,
    NEIGHBOURS_MAX,
    OF_ONE_MAX,
    REPEAT_NS,
    START_NS,
    START_QUERIES,
    NeighbourDro,
    NeighbourDros,
)
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.tnwg import TnwgAddress, TnwgContextFlag, TnwgContextInfo, TnwgContextInstance, TnwgDomain
from tests.builders import lbmr_strategies

HERE = 3
QUERY, SOURCE = TnwgContextFlag.QUERY, TnwgContextFlag.DRO_SOURCE
ME, OTHER = NeighbourDro(b"instance", 1, 11), NeighbourDro(b"another!", 2, 22)


class Dro:
    def __init__(self, own: NeighbourDro = ME, now_ns: int = 0) -> None:
        self.core = NeighbourDros(own, HERE, now_ns)
        self.now_ns = now_ns

    def run(self, ns: int) -> list[tuple[int, TnwgContextInfo]]:
        """What it says in that time, and when."""
        end_ns, said = self.now_ns + ns, []
        while (deadline := self.core.next_deadline()) is not None and deadline <= end_ns:
            self.now_ns = max(self.now_ns, deadline)
            self.core.on_timer(self.now_ns)
            said += [(self.now_ns, body) for body in self.core.take_outgoing()]
        self.now_ns = end_ns
        return said

    def hear(self, body: lbmr.Body, *, source_ip: int = 9) -> None:
        packet = lbmr.Packet(lbmr.VERSION, None, body)
        self.core.on_packet(lbmr.decode(lbmr.encode(packet)), self.now_ns, source_ip)


def announcement(dro: NeighbourDro, flags: int = SOURCE) -> TnwgContextInfo:
    teller = Dro(dro)
    ((_, body),) = teller.run(0)
    return replace(body, flags=flags)


def test_it_announces_itself_with_a_query_at_first_and_then_every_ten_seconds() -> None:
    said = Dro().run(s(33))
    starts = [n * START_NS for n in range(START_QUERIES)]
    assert [at for at, _ in said] == [*starts, *(starts[-1] + n * REPEAT_NS for n in (1, 2, 3))]
    assert [bool(body.flags & QUERY) for _, body in said] == [True] * START_QUERIES + [False] * 3
    assert all(body.flags & SOURCE for _, body in said)


def test_two_dros_know_each_other_from_their_first_words() -> None:
    one, two = Dro(ME), Dro(OTHER)
    for _, body in one.run(0):
        two.hear(body)
    for _, body in two.run(0):
        one.hear(body)
    assert (list(one.core), list(two.core)) == ([OTHER], [ME])
    assert [len(one.core.take_news()) for _ in range(2)] == [1, 0]


def test_a_query_is_answered_at_once_but_not_more_than_twice_a_second() -> None:
    dro = Dro()
    dro.run(s(5))
    for _ in range(3):
        dro.hear(announcement(OTHER, SOURCE | QUERY))
    assert [(at, bool(body.flags & QUERY)) for at, body in dro.run(ms(100))] == [(s(5), False)]
    dro.hear(announcement(OTHER, SOURCE | QUERY))
    assert [at for at, _ in dro.run(s(1))] == [s(5) + ANSWER_NS]
    dro.hear(announcement(OTHER))
    assert dro.run(s(1)) == [], "what is no query is not answered"


def test_without_a_request_port_nothing_is_announced_and_others_are_heard() -> None:
    dro = Dro(NeighbourDro(b"instance", 0, 0))
    dro.hear(announcement(OTHER, SOURCE | QUERY))
    assert list(dro.core) == [OTHER]
    assert dro.run(s(20)) == []


def test_a_dro_that_says_nothing_is_forgotten_after_three_announcements() -> None:
    dro = Dro(NeighbourDro(b"instance", 0, 0))
    dro.hear(announcement(OTHER))
    dro.run(FORGET_NS - 1)
    assert list(dro.core) == [OTHER]
    dro.hear(announcement(OTHER))
    assert [len(dro.core.take_news()) for _ in range(2)] == [1, 0], "not new"
    dro.run(FORGET_NS - 1)
    assert list(dro.core) == [OTHER]
    dro.run(1)
    assert list(dro.core) == []
    dro.hear(announcement(OTHER))
    assert dro.core.take_news(), "new again"


def test_a_dro_that_returns_with_the_same_address_replaces_the_old_one() -> None:
    dro = Dro()
    dro.hear(announcement(OTHER))
    dro.core.take_news()
    returned = replace(OTHER, instance=b"reborn!!")
    dro.hear(announcement(returned))
    assert list(dro.core) == [returned]
    assert dro.core.take_news()


@pytest.mark.parametrize(
    "body",
    [
        announcement(ME),
        announcement(OTHER, 0),
        announcement(OTHER, TnwgContextFlag.DRO_RECEIVER),
        announcement(OTHER, SOURCE | TnwgContextFlag.PROXY),
        replace(announcement(OTHER), options=announcement(OTHER).options[:1]),
        replace(announcement(OTHER), options=announcement(OTHER).options[1:]),
        replace(announcement(OTHER), options=(*announcement(OTHER).options[:2], TnwgDomain(HERE + 1))),
        announcement(replace(OTHER, ip=0)),
    ],
)
def test_what_is_no_portal_of_another_dro_in_this_trd_is_ignored(body: TnwgContextInfo) -> None:
    dro = Dro()
    dro.hear(body)
    assert list(dro.core) == []


def test_strangers_cannot_bring_many_at_once_nor_too_many_at_all() -> None:
    dro = Dro(NeighbourDro(b"instance", 0, 0))
    for number in range(20):
        dro.hear(announcement(NeighbourDro(b"inst%04d" % number, 5, number + 1)))
    assert len(list(dro.core)) == 8
    for number in range(600):
        dro.now_ns += s(1) // 20
        dro.hear(announcement(NeighbourDro(b"more%04d" % number, 6, number + 1)), source_ip=number)
    assert len(list(dro.core)) == NEIGHBOURS_MAX


@given(st.lists(st.tuples(lbmr_strategies.packets, st.integers(0, s(60))), max_size=20))
def test_any_packet_does_no_harm(packets: list[tuple[lbmr.Packet, int]]) -> None:
    dro = Dro()
    for packet, ns in packets:
        dro.core.on_packet(packet, dro.now_ns, 5)
        dro.run(ns)
        assert len(list(dro.core)) <= NEIGHBOURS_MAX


def test_one_address_announces_a_bounded_number_of_dros() -> None:
    """A review: anybody could make a portal connect to 256 addresses of his choice."""
    core = NeighbourDros(NeighbourDro(b"12345678", 1, 2), 1, 0)
    for nth in range(40):
        items = (TnwgContextInstance(b"%08d" % nth), TnwgAddress(nth + 1, ip=7), TnwgDomain(1))
        packet = lbmr.Packet(lbmr.VERSION, None, lbmr.TnwgContextInfo(0, TnwgContextFlag.DRO_SOURCE, options=items))
        core.on_packet(packet, s(nth), 9)
        core.on_packet(packet, s(nth), 9)
        if nth < OF_ONE_MAX:
            core.on_timer(s(nth))
    assert len(list(core)) == OF_ONE_MAX
    assert core.is_there(7)
    assert not core.is_there(9)
    core.on_packet(
        lbmr.Packet(
            lbmr.VERSION, None,
            lbmr.TnwgContextInfo(
                0, TnwgContextFlag.DRO_SOURCE,
                options=(TnwgContextInstance(b"somebody"), TnwgAddress(5, ip=8), TnwgDomain(1)),
            ),
        ),
        s(40), 8,
    )  # fmt: skip
    assert core.is_there(8), "others have room"
    core.on_timer(s(200))
    assert not core.is_there(7)
