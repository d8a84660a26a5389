"""Lies about routes: whoever speaks for a DRO that others hear as well is denied, and changes nothing for long."""

from __future__ import annotations

from itertools import product

import pytest

from dro.clock import ms, s
from dro.config.dro_xml.model import EndpointConfig
from router.core import OneSidedLink
from router.route_info import RouteHead, write_route
from router.route_info_exchange import (
    BYTES_MAX,
    RAISE_NS,
    SPEAKER_BYTES_MAX,
    VERSIONS_AHEAD,
    ExchangeTiming,
    InfoDropped,
    InfoDropReason,
    RouteInfoExchange,
)
from router.topology import VERSION_MASK, DroRecord, Neighbour
from supervisor.tools.simulate.network import SimNetwork
from supervisor.tools.simulate.plan import endpoint
from tests.router.networks import DRO_BIT, deliver, planned, signatures, started, take, ways
from tests.router.test_route_info_exchange import ME, OTHER, OWN, dropped, exchange, route, sent

DROS = ("A", "B", "C", "D")
FORGER = 0x0A00_0063, 40000
"""Address and port of a stranger in a TRD."""


def chain() -> SimNetwork:
    """A and B over a link, B and C over a TRD, C and D over a link; E goes round from A to D. Companions: M of A."""
    trds: dict[str, list[EndpointConfig]] = {name: [endpoint("own", nth)] for nth, name in enumerate((*DROS, "M"), 1)}
    trds["E"] = []
    for name in "BC":
        trds[name].append(endpoint("middle", 50))
    return started(planned(trds, *(("A", "B", 1), ("C", "D", 1), ("A", "E", 9), ("D", "E", 9), ("M", "A", 1))))


def forged(network: SimNetwork, victim: str, kind: str) -> bytes:
    """What a forger makes of the newest message of the victim."""
    core = network.dros[victim].routes.core
    own, sqn = core.routes.own(), core.exchange.sqn
    version, ttl, neighbours = own.version, 100, own.neighbours
    match kind:
        case "no neighbours":
            version, neighbours = version + 1, ()
        case "far ahead":
            version, neighbours = version + VERSIONS_AHEAD - 1, ()
        case "as far as it goes":
            version, neighbours = version + 32767, ()
        case "kept from others":
            version, neighbours, ttl = version + 1, (), 1
        case "the same again":
            sqn, ttl = sqn + 30000, 1
        case _:
            raise AssertionError(kind)
    record = DroRecord(own.node_id, neighbours, version=version, name=victim)
    return write_route(record, sqn=sqn, ttl=ttl, topology=1, configuration=0, gateway_version=0)


KINDS = ("no neighbours", "far ahead", "as far as it goes", "kept from others", "the same again")


@pytest.mark.parametrize(("kind", "place"), list(product(KINDS, ("link", "TRD", "TRD of two DROs"))))
def test_half_a_minute_of_lies_about_each_dro_in_turn_changes_no_route(kind: str, place: str) -> None:
    network = chain()
    portal, sender = {
        "link": ("A/from-M", (0, 0)), "TRD": ("A/own", FORGER), "TRD of two DROs": ("B/middle", FORGER),
    }[place]  # fmt: skip
    before = {pair: ways(network, *pair) for pair in product(range(1, 5), repeat=2) if pair[0] != pair[1]}
    calculated_ns = network.calculated_ns
    for nth in range(300):
        deliver(network, portal, forged(network, DROS[nth % 4], kind), sender=sender)
        network.run(ms(100))
        assert network.calculated_ns == calculated_ns, f"after {nth} messages"
        for dro in network.up():
            assert len(dro.routes.core.exchange.others) == 5, f"{dro.name} after {nth} messages"
    network.run(s(3))
    assert {pair: ways(network, *pair) for pair in before} == before
    assert len(signatures(network)) == 1


def test_one_lie_is_over_as_soon_as_the_dro_has_heard_of_it() -> None:
    network = chain()
    deliver(network, "A/from-M", forged(network, "D", "no neighbours"))
    network.run(ms(50))
    node_id = network.dros["D"].node_id
    own = network.dros["D"].routes.core.routes.own()
    others = [dro.routes.core.exchange.others for dro in network.up() if dro.name != "D"]
    assert all(of[node_id].record.neighbours == own.neighbours for of in others)


def test_what_a_forger_has_told_is_not_believed_again_while_others_tell_of_the_dro() -> None:
    e = exchange()
    e.on_message(1, route(1), 0)
    e.on_message(2, route(2, version=2, cost=9), ms(10))
    e.on_message(1, route(1), ms(11))
    e.on_message(1, route(3, version=3), ms(20))
    e.take_effects()
    for nth in range(100):
        now_ns = s(1 + nth)
        e.on_message(2, route(90 + nth, version=90 + nth, cost=9), now_ns)
        e.on_message(1, route(4 + nth, version=3), now_ns)
    assert dropped(e) == [InfoDropReason.DOUBTED] * 100
    assert e.others[OTHER].record.neighbours == (Neighbour(2, 1, 1),)
    e.on_message(2, route(200, version=200, cost=9), s(104))
    assert e.others[OTHER].record.neighbours == (Neighbour(2, 9, 9),), "nobody else tells of it any more"


def test_news_that_come_by_a_faster_way_are_confirmed_by_the_other_one() -> None:
    e = exchange()
    e.on_message(1, route(1), 0)
    for nth in range(2, 50):
        for worker in (2, 1):
            e.on_message(worker, route(nth, version=nth), ms(100 * nth))
    assert InfoDropReason.DOUBTED not in dropped(e)
    assert e.others[OTHER].head.version == 49


def test_a_link_that_was_cut_leaves_no_doubt_about_the_way_round() -> None:
    e = exchange()
    e.on_message(1, route(1), 0)
    e.on_link_gone(1)
    e.on_message(2, route(2, version=2, cost=9), ms(10))
    e.on_link(1, ms(20))
    e.on_message(1, route(3, version=3), ms(20))
    e.on_message(2, route(4, version=4), ms(30))
    assert InfoDropReason.DOUBTED not in dropped(e)
    assert e.others[OTHER].head.version == 4


def test_the_portal_that_was_believed_is_asked_even_if_a_message_may_go_no_further() -> None:
    e = exchange()
    e.on_message(1, route(1), 0)
    sent(e)
    e.on_message(2, route(2, version=2, ttl=1), ms(1))
    assert sent(e) == [((1,), RouteHead(OTHER, 5, 2, 2, 100))]


def test_in_a_trd_each_address_is_a_speaker() -> None:
    e = exchange()
    e.on_message(1, route(1), 0, (5, 1))
    e.on_message(1, route(2, version=2, cost=9), 1, FORGER)
    assert [workers for workers, _ in sent(e)[-1:]] == [(1,)], "the DROs of the TRD are asked"
    e.on_message(1, route(3, version=3), 2, (5, 1))
    e.on_message(1, route(4, version=4, cost=9), 3, (FORGER[0], FORGER[1] + 1))
    assert dropped(e) == [InfoDropReason.DOUBTED], "by another connection as well"


def test_the_own_node_id_with_news_is_denied_once_a_second() -> None:
    e = exchange()
    ahead = route(5, node_id=ME, version=4)
    e.on_message(1, ahead, 0)
    assert e.take_foreign(0) == 4
    e.on_message(1, ahead, 0)
    assert e.take_foreign(RAISE_NS - 1) is None
    assert e.next_deadline() == RAISE_NS
    assert e.take_foreign(RAISE_NS) == 4
    e.on_message(1, route(5, node_id=ME, version=OWN.version + VERSIONS_AHEAD), RAISE_NS)
    assert e.take_foreign(2 * RAISE_NS) is None, "nobody believes that"
    assert dropped(e) == [InfoDropReason.OWN_NODE_ID] * 3


def test_a_version_that_jumps_is_refused() -> None:
    e = exchange()
    e.on_message(1, route(1, version=VERSION_MASK - 9), 0)
    e.on_message(2, route(2, version=VERSIONS_AHEAD - 9), 0)
    assert dropped(e) == [InfoDropReason.REFUSED]
    e.on_message(2, route(2, version=VERSIONS_AHEAD - 10), 0)
    assert e.others[OTHER].head.version == VERSIONS_AHEAD - 10


def test_who_was_forged_when_it_fell_silent_may_come_back_at_once() -> None:
    e = exchange()
    e.on_message(1, route(1), 0)
    e.on_message(2, route(9, version=9), s(1))
    e.on_check(s(6))
    assert e.others == {}
    e.on_message(1, route(2), s(7))
    assert OTHER in e.others


def large(node: int, count: int, version: int = 1) -> bytes:
    record = DroRecord(DRO_BIT | node, tuple(Neighbour(n + 1, 1, 1) for n in range(count)), version=version)
    return write_route(record, sqn=1, ttl=1, topology=0, configuration=0, gateway_version=0)


def test_route_information_is_bounded_by_bytes_of_each_speaker_and_in_all() -> None:
    e = RouteInfoExchange(OWN, ExchangeTiming(), configuration=0, gateway_version=0, sqn=0, now_ns=0)
    for worker in (1, 2, 3):
        e.on_link(worker, 0)
    for node in range(10, 80):
        e.on_message(1 + node % 2, large(node, 2000), 0)
    e.on_message(3, large(500, 10), 0)
    of_one = sum(len(o.data) for o in e.others.values() if o.worker == 1)
    in_all = sum(len(o.data) for o in e.others.values())
    assert SPEAKER_BYTES_MAX * 0.9 < of_one <= SPEAKER_BYTES_MAX
    assert BYTES_MAX * 0.9 < in_all <= BYTES_MAX
    assert DRO_BIT | 500 in e.others, "a small one has room beside them"
    why = {(d.why, d.detail.split()[0]) for d in e.take_effects() if isinstance(d, InfoDropped)}
    assert why == {(InfoDropReason.TOO_MANY_DROS, "what")}
    first = next(iter(e.others))
    e.on_message(1 + first % 2, large(first & 0xFFFF, 10, version=2), 1)
    e.on_check(s(10))
    assert e.others == {}
    e.on_message(1, large(600, 2000), s(10))
    assert len(e.others) == 1, "what is forgotten takes no room"


def test_links_that_only_one_side_lists_are_told_of_in_a_bounded_number() -> None:
    network = chain()
    take(network, "A")
    for node in range(3):
        record = DroRecord(DRO_BIT | 1000 + node, tuple(Neighbour(DRO_BIT | 5000 + n, 1, 1) for n in range(2000)))
        for sqn in range(18):
            data = write_route(record, sqn=sqn, ttl=1, topology=0, configuration=0, gateway_version=0)
            deliver(network, "A/from-M", data, s(sqn))
    network.run(s(20))
    told = [e for e in take(network, "A") if isinstance(e, OneSidedLink)]
    assert 0 < len(told) <= 1000, "of 6,000"


def test_a_denial_is_news_of_nothing_for_those_who_have_believed_nobody_else() -> None:
    network = chain()
    signature = signatures(network)
    deliver(network, "A/from-M", forged(network, "A", "far ahead"))
    network.run(ms(500))
    assert len(signatures(network)) == 1
    assert signatures(network) != signature, "the version counts"
