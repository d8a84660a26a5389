"""The exchange of route information: what is believed, passed on, told and forgotten, and when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.clock import ms, s
from dro.wire.lbmc.dro_blocks import RouteInfo
from dro.wire.lbmc.message import decode
from router.route_info import RouteHead, read_head, write_route
from router.route_info_exchange import (
    BUSY_MAX_NS,
    DROS_MAX,
    FORGOTTEN_NS,
    ExchangeTiming,
    InfoDropped,
    InfoDropReason,
    News,
    RouteInfoExchange,
    SendInfo,
    is_newer,
)
from router.topology import DroRecord, Neighbour
from tests.router.networks import DRO_BIT

ME, OTHER = DRO_BIT | 1, DRO_BIT | 2
OWN = DroRecord(ME, (Neighbour(1, 1, 1),), version=3, name="G1")


def exchange(workers: int = 3, sqn: int = 0) -> RouteInfoExchange:
    """With links 1 to `workers`, at time 0."""
    made = RouteInfoExchange(OWN, ExchangeTiming(), configuration=0, gateway_version=0, sqn=sqn, now_ns=0)
    for worker in range(1, workers + 1):
        made.on_link(worker, 0)
    made.take_effects()
    return made


def route(sqn: int = 1, *, node_id: int = OTHER, version: int = 1, ttl: int = 9, cost: int = 1) -> bytes:
    record = DroRecord(node_id, (Neighbour(2, cost, cost),), version=version, name="G2")
    return write_route(record, sqn=sqn, ttl=ttl, topology=5, configuration=0, gateway_version=0)


def sent(e: RouteInfoExchange) -> list[tuple[tuple[int, ...], RouteHead]]:
    return [(effect.workers, read_head(effect.message)) for effect in e.take_effects() if isinstance(effect, SendInfo)]


def dropped(e: RouteInfoExchange) -> list[InfoDropReason]:
    return [effect.why for effect in e.take_effects() if isinstance(effect, InfoDropped)]


@given(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF), st.integers(1, 0x7FFF), st.integers(0, 0xFFFF))
def test_newer_is_by_version_then_by_sqn_around_the_end_of_16_bits(v: int, n: int, ahead: int, other: int) -> None:
    old = RouteHead(OTHER, 0, v, n, 1)
    assert is_newer(RouteHead(OTHER, 0, v, (n + ahead) & 0xFFFF, 1), old)
    assert not is_newer(RouteHead(OTHER, 0, v, (n - ahead) & 0xFFFF, 1), old)
    assert is_newer(RouteHead(OTHER, 0, (v + ahead) & 0xFFFF, other, 1), old)
    assert not is_newer(RouteHead(OTHER, 0, (v - ahead) & 0xFFFF, other, 1), old)
    assert not is_newer(old, old)


def test_what_is_new_goes_on_by_all_other_links_with_a_ttl_one_less() -> None:
    e = exchange()
    e.on_message(2, route(), 0)
    assert sent(e) == [((1, 3), RouteHead(OTHER, 5, 1, 1, 8))]
    assert [*e.take_changes()] == [(News.DISCOVERED, e.others[OTHER].record)]
    for worker in (1, 2, 3):
        e.on_message(worker, route(), 0)
    assert dropped(e) == [InfoDropReason.REPEATED] * 3
    e.on_message(1, route(2), ms(1))
    assert sent(e) == [((2, 3), RouteHead(OTHER, 5, 1, 2, 8))]
    assert [*e.take_changes()] == [], "nothing but its sqn"
    e.on_message(1, route(3, version=2), ms(1))
    e.on_message(1, route(4, version=1), ms(1))
    assert [what for what, _ in e.take_changes()] == [News.UPDATED]


@pytest.mark.parametrize("ttl", [0, 1])
def test_at_the_hop_limit_it_is_taken_but_goes_no_further(ttl: int) -> None:
    e = exchange()
    e.on_message(2, route(ttl=ttl), 0)
    assert sent(e) == []
    assert OTHER in e.others
    e.on_link(4, 0)
    assert [head.node_id for _, head in sent(e)] == [ME]


def test_a_new_link_gets_the_own_message_first_and_then_all_others() -> None:
    e = exchange()
    e.on_message(2, route(node_id=DRO_BIT | 8), 0)
    e.on_message(2, route(node_id=DRO_BIT | 7), 0)
    sent(e)
    e.on_link(4, ms(1))
    got = sent(e)
    assert {workers for workers, _ in got} == {(4,)}
    assert [head.node_id & 0xF for _, head in got] == [1, 8, 7]


def test_who_is_silent_for_too_long_is_forgotten_and_old_messages_do_not_bring_him_back() -> None:
    e = exchange()
    e.on_message(2, route(7), ms(100))
    e.on_check(ms(4099))
    assert OTHER in e.others
    e.on_check(ms(4100))
    assert e.others == {}
    assert [what for what, _ in e.take_changes()] == [News.DISCOVERED, News.TIMED_OUT]
    e.take_effects()
    e.on_message(3, route(7), ms(5000))
    e.on_message(3, route(6), ms(5000))
    assert dropped(e) == [InfoDropReason.REPEATED] * 2
    e.on_message(3, route(8), ms(5000))
    assert OTHER in e.others
    e.on_check(ms(9000))
    e.on_message(3, route(2), ms(9000) + FORGOTTEN_NS)
    assert OTHER in e.others, "after a while it may be anew"


def test_who_was_heard_over_a_link_that_is_busy_is_waited_for_but_not_forever() -> None:
    e = exchange()
    e.on_message(1, route(), 0)
    e.on_message(2, route(node_id=OTHER + 1), 0)
    e.take_changes()
    gone = []
    for n in range(200):
        e.on_link_busy(1, ms(500 * n))
        e.on_check(ms(500 * n))
        gone += [(ms(500 * n), record.node_id) for what, record in e.take_changes() if what is News.TIMED_OUT]
    assert gone == [(s(4), OTHER + 1), (BUSY_MAX_NS + s(4), OTHER)]


def test_repeated_messages_keep_nobody_alive() -> None:
    e = exchange()
    for now_ns in range(0, s(4), ms(500)):
        e.on_message(2, route(), now_ns)
    e.on_check(s(4))
    assert e.others == {}


def test_it_tells_of_itself_at_every_interval_and_at_once_of_changes() -> None:
    e = exchange(sqn=41)
    assert e.next_deadline() == s(1)
    e.on_timer(s(1) - 1)
    assert sent(e) == []
    e.on_timer(s(1))
    assert sent(e) == [((1, 2, 3), RouteHead(ME, 0, 3, 45, 100))], "three went before, one to each link"
    e.describe(DroRecord(ME, (), version=4), 9, 0)
    assert e.next_deadline() == s(1)
    e.on_timer(s(1) + ms(1))
    assert sent(e) == [((1, 2, 3), RouteHead(ME, 9, 4, 46, 100))]
    e.describe(DroRecord(ME, (), version=4), 10, 0)
    assert e.next_deadline() == s(2) + ms(1), "another signature is no change"
    assert e.sqn == 46


def test_while_portals_are_waited_for_others_are_not_told_of_their_absence() -> None:
    e = exchange()
    e.describe(DroRecord(ME, (), version=4), 0, s(30))
    assert e.next_deadline() == s(2), "half of the time-out"
    e.describe(OWN, 0, ms(300))
    assert e.next_deadline() == ms(300)
    e.on_timer(ms(300))
    assert sent(e)[0][1].version == 3


def test_nobody_is_told_without_links() -> None:
    e = exchange(workers=1)
    e.on_link_gone(1)
    assert e.next_deadline() is None
    e.on_timer(s(100))
    e.on_message(1, route(), 0)
    assert (sent(e), e.others) == ([], {})


def test_the_own_message_comes_back_and_that_is_no_liar() -> None:
    e = exchange(sqn=5)
    e.on_timer(s(1))
    (own,) = (effect.message for effect in e.take_effects() if isinstance(effect, SendInfo))
    e.on_message(2, own, s(1))
    older = write_route(OWN, sqn=2, ttl=3, topology=0, configuration=0, gateway_version=0)
    e.on_message(2, older, s(1))
    assert dropped(e) == [InfoDropReason.OWN] * 2
    for lie in (route(1, node_id=ME, version=4), route(900, node_id=ME, version=3), route(1, node_id=ME, version=3)):
        e.on_message(2, lie, s(1))
    assert dropped(e) == [InfoDropReason.OWN_NODE_ID] * 3
    assert e.others == {}


def test_there_is_a_limit_to_dros() -> None:
    e = exchange(workers=1)
    for n in range(DROS_MAX + 2):
        e.on_message(1, route(node_id=DRO_BIT | (n + 10)), 0)
    assert len(e.others) == DROS_MAX
    assert dropped(e) == [InfoDropReason.TOO_MANY_DROS] * 2
    e.on_message(1, route(2, node_id=DRO_BIT | 10), 0)
    assert dropped(e) == [], "those that are known go on"
    e.on_check(s(5))
    e.on_message(1, route(node_id=DRO_BIT | 9), s(5))
    assert len(e.others) == 1


def test_who_sees_another_topology_is_named() -> None:
    e = exchange()
    e.on_message(1, route(), 0)
    assert e.differing(5) == []
    assert [other.record.name for other in e.differing(6)] == ["G2"]


def test_other_intervals_hold_at_once() -> None:
    e = exchange()
    e.set_timing(ExchangeTiming(ms(100), ms(300), 2))
    e.set_configuration(77)
    assert e.next_deadline() == ms(100)
    e.on_timer(ms(100))
    (effect,) = e.take_effects()
    assert isinstance(effect, SendInfo)
    assert read_head(effect.message).ttl == 2
    info = decode(effect.message).get(RouteInfo)
    assert info is not None
    assert info.configuration_signature == 77
    e.on_message(1, route(), ms(100))
    e.on_check(ms(400))
    assert e.others == {}
