"""Route information that is signed: what a signature covers, who is believed, and what a stranger can change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.clock import ms, s
from dro.wire.lbmc.message import decode
from router.authentication import Authentication
from router.core import OneSidedLink
from router.route_info import NEIGHBOURS_MAX, is_repeat, read_head, read_record, with_ttl, write_route
from router.route_info_exchange import ExchangeTiming, InfoDropped, InfoDropReason, RouteInfoExchange, SendInfo
from router.topology import DroRecord, Hotlink, Neighbour
from supervisor.tools.simulate.network import SimNetwork
from supervisor.tools.simulate.plan import endpoint
from tests.router.networks import DRO_BIT, SETTLED_NS, deliver, planned, signatures, take, ways
from tests.router.test_route_info_exchange import ME, OTHER, OWN, dropped

KEY, OLD, FOREIGN = b"k" * 16, b"o" * 20, b"f" * 32
NETWORK = Authentication((KEY,))
RECORD = DroRecord(OTHER, (Neighbour(2, 1, 1), Neighbour(7, 3, 4)), (Hotlink(2, 9),), 5, "G2", 1)
TTL_AT = 32
UNSIGNED, UNKNOWN_KEY = "it is not signed", "no key of this DRO has signed it"


def unsigned(record: DroRecord = RECORD, *, sqn: int = 1, ttl: int = 9, room: bool = False) -> bytes:
    return write_route(
        record, sqn=sqn, ttl=ttl, topology=5, configuration=6, gateway_version=7, has_signature=room,
    )  # fmt: skip


def signed(record: DroRecord = RECORD, *, sqn: int = 1, ttl: int = 9, key: bytes = KEY) -> bytes:
    return Authentication((key,)).sign(unsigned(record, sqn=sqn, ttl=ttl, room=True))


# the message


def test_a_signed_message_is_believed_with_every_ttl() -> None:
    for ttl in (0, 1, 255):
        assert NETWORK.objection(with_ttl(signed(), ttl)) == ""


@pytest.mark.parametrize("record", [RECORD, DroRecord(OTHER, ())], ids=["whole", "no neighbour"])
def test_no_other_byte_can_be_changed(record: DroRecord) -> None:
    data = signed(record)
    for at in range(len(data)):
        for bit in (0x01, 0x80):
            changed = data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]
            assert (NETWORK.objection(changed) == "") is (at == TTL_AT), at


@given(st.integers(0, 200))
def test_a_message_that_is_cut_or_longer_is_not_believed(nbytes: int) -> None:
    data = signed()
    assert NETWORK.objection(data[: min(nbytes, len(data) - 1)])
    assert NETWORK.objection(data + bytes(nbytes + 1))


def test_the_signature_of_another_message_does_not_fit() -> None:
    one, other = signed(sqn=1), signed(sqn=2)
    assert NETWORK.objection(one[:-16] + other[-16:]) == UNKNOWN_KEY


def test_what_is_not_signed_or_with_another_key_is_named() -> None:
    assert NETWORK.objection(unsigned()) == UNSIGNED
    assert NETWORK.objection(unsigned(room=True)) == UNKNOWN_KEY
    assert NETWORK.objection(signed(key=FOREIGN)) == UNKNOWN_KEY


def test_the_first_key_signs_and_every_key_verifies() -> None:
    both = Authentication((KEY, OLD))
    assert [both.objection(signed(key=key)) for key in (KEY, OLD, FOREIGN)] == ["", "", UNKNOWN_KEY]
    made = both.sign(unsigned(room=True))
    assert (NETWORK.objection(made), Authentication((OLD,)).objection(made)) == ("", UNKNOWN_KEY)


def test_unsigned_messages_may_be_taken_but_none_with_another_key() -> None:
    lenient = Authentication((KEY,), accepts_unsigned=True)
    answers = [lenient.objection(data) for data in (unsigned(), signed(), signed(key=FOREIGN))]
    assert answers == ["", "", UNKNOWN_KEY]


def test_who_has_no_keys_reads_the_same_of_a_signed_message() -> None:
    data = signed()
    assert read_record(data) == read_record(unsigned()) == RECORD
    message = decode(data)
    assert not message.must_drop
    assert message.blocks[-1].ignore


def test_another_sqn_or_key_is_a_repeat_and_a_signature_that_comes_is_none() -> None:
    assert is_repeat(signed(sqn=1), signed(sqn=2, ttl=3))
    assert is_repeat(signed(key=KEY), signed(key=OLD))
    assert not is_repeat(signed(), unsigned())
    dearer = DroRecord(OTHER, (Neighbour(2, 2, 1),), version=5)
    assert not is_repeat(signed(DroRecord(OTHER, (Neighbour(2, 1, 1),), version=5)), signed(dearer))


def test_there_is_room_for_the_signature_of_the_largest_dro() -> None:
    neighbours = tuple(Neighbour(n, 1, 1) for n in range(1, NEIGHBOURS_MAX + 1))
    indexes = tuple(Hotlink(n, 1) for n in range(1, NEIGHBOURS_MAX + 1))
    data = signed(DroRecord(OTHER, neighbours, indexes, name="N" * 251, sharing=1))
    assert read_head(data).node_id == OTHER
    assert NETWORK.objection(data) == ""


def test_keys_do_not_show() -> None:
    assert "kkkk" not in repr(Authentication((KEY,)))


# the exchange


def exchange(authentication: Authentication | None = NETWORK) -> RouteInfoExchange:
    made = RouteInfoExchange(
        OWN, ExchangeTiming(), configuration=0, gateway_version=0, sqn=0, now_ns=0, authentication=authentication
    )
    for worker in (1, 2):
        made.on_link(worker, 0)
    made.take_effects()
    return made


def test_the_own_message_is_signed() -> None:
    e = exchange()
    e.on_link(3, 0)
    told = [effect.message for effect in e.take_effects() if isinstance(effect, SendInfo)]
    assert [NETWORK.objection(message) for message in told] == [""]


def test_what_is_signed_is_passed_on_and_still_signed() -> None:
    e = exchange()
    for sqn in (1, 2):
        e.on_message(1, signed(sqn=sqn), 0)
        [passed] = e.take_effects()
        assert isinstance(passed, SendInfo)
        assert read_head(passed.message).ttl == 8
        assert NETWORK.objection(passed.message) == ""
    assert len([*e.take_changes()]) == 1, "the second repeats the first"


@pytest.mark.parametrize(("data", "why"), [(unsigned(), UNSIGNED), (signed(key=FOREIGN), UNKNOWN_KEY)])
def test_what_is_not_signed_is_dropped_and_not_passed_on(data: bytes, why: str) -> None:
    e = exchange()
    e.on_message(1, data, 0)
    assert e.take_effects() == [InfoDropped(1, InfoDropReason.UNAUTHENTIC, OTHER, "", why)]
    assert e.others == {}


def test_news_of_a_known_dro_that_are_not_signed_change_nothing() -> None:
    e = exchange()
    e.on_message(1, signed(), 0)
    known = e.others[OTHER].head
    e.take_effects()
    e.on_message(2, unsigned(sqn=2), ms(1))
    e.on_message(2, unsigned(DroRecord(OTHER, (), version=6)), ms(1))
    assert dropped(e) == [InfoDropReason.UNAUTHENTIC] * 2
    assert e.others[OTHER].head == known
    assert e.others[OTHER].heard_ns == 0, "and do not keep it alive"


def test_an_old_message_is_dropped_as_one_that_is_known() -> None:
    e = exchange()
    e.on_message(1, signed(sqn=5), 0)
    e.take_effects()
    e.on_message(1, signed(sqn=4), ms(1))
    e.on_message(1, unsigned(sqn=5), ms(1))
    assert dropped(e) == [InfoDropReason.REPEATED] * 2


def test_an_unsigned_use_of_the_own_node_id_need_not_be_denied() -> None:
    e = exchange()
    forged = DroRecord(ME, (), version=OWN.version + 5)
    e.on_message(1, unsigned(forged), s(2))
    assert (dropped(e), e.take_foreign(s(2))) == ([InfoDropReason.UNAUTHENTIC], None)
    e.on_message(1, signed(forged), s(2))
    assert (dropped(e), e.take_foreign(s(2))) == ([InfoDropReason.OWN_NODE_ID], OWN.version + 5)


@pytest.mark.parametrize(("before", "after"), [(None, NETWORK), (NETWORK, None)], ids=["introduced", "given up"])
def test_the_own_message_of_before_a_reload_comes_from_nobody_else(
    before: Authentication | None, after: Authentication | None
) -> None:
    e = exchange(before)
    e.on_link(3, 0)
    [told] = e.take_effects()
    assert isinstance(told, SendInfo)
    e.set_authentication(after)
    for _ in range(2):
        e.on_message(1, with_ttl(told.message, 7), 0)
        assert dropped(e) == [InfoDropReason.OWN]
        e.on_link(2, 0)
        e.take_effects()


def test_other_keys_hold_for_the_next_message_of_either_side() -> None:
    e = exchange()
    e.set_authentication(Authentication((OLD, KEY)))
    e.on_message(1, signed(key=OLD), 0)
    assert OTHER in e.others
    e.take_effects()
    e.on_timer(s(1))
    [told] = e.take_effects()
    assert isinstance(told, SendInfo)
    assert Authentication((OLD,)).objection(told.message) == ""
    e.set_authentication(None)
    e.on_message(1, unsigned(sqn=2), s(1))
    assert e.others[OTHER].head.sqn == 2


# the network


def chain(authentication: Authentication | None) -> SimNetwork:
    """A in TRD 1, B in TRD 3, and TRD 2 between them."""
    network = SimNetwork(
        planned({name: [endpoint("own", own, 5), endpoint("two", 2, 5)] for name, own in (("A", 1), ("B", 3))})
    )
    network.start()
    for dro in network.up():
        dro.routes.core.set_authentication(authentication)
    network.run(SETTLED_NS)
    return network


def routes(network: SimNetwork) -> list[object]:
    tables = [dro.routes.core.routes.table for dro in network.up()]
    assert all(tables)
    return [table.routes for table in tables if table is not None]


def invent(network: SimNetwork, key: bytes | None) -> None:
    """Somebody in TRD 2 tells both of a DRO that leads to their domains at the least cost, for 20 s."""
    record = DroRecord(DRO_BIT | 666, (Neighbour(1, 1, 1), Neighbour(2, 1, 1), Neighbour(3, 1, 1)))
    for sqn in range(1, 21):
        data = unsigned(record, sqn=sqn) if key is None else signed(record, sqn=sqn, key=key)
        for to in ("A/two", "B/two"):
            deliver(network, to, data, s(sqn), sender=(0x0A00_0063, 40000))
    network.run(s(20))


def test_without_keys_an_invented_dro_draws_the_routes_to_it() -> None:
    network = chain(None)
    before = routes(network)
    assert ways(network, 1, 3)
    invent(network, None)
    assert routes(network) != before
    assert ways(network, 1, 3) == []


@pytest.mark.parametrize("key", [None, FOREIGN], ids=["unsigned", "another key"])
def test_with_keys_an_invented_dro_changes_no_route(key: bytes | None) -> None:
    network = chain(NETWORK)
    before, way = routes(network), ways(network, 1, 3)
    take(network, "A")
    invent(network, key)
    assert (routes(network), ways(network, 1, 3)) == (before, way)
    assert way == [("A/own", "A/two", "TRD2", "B/two", "B/own")]
    drops = [e.why for e in take(network, "A") if isinstance(e, InfoDropped) and e.node_id == DRO_BIT | 666]
    assert drops == [InfoDropReason.UNAUTHENTIC] * 20


def change(network: SimNetwork, name: str, authentication: Authentication | None) -> None:
    """A reload of one DRO; some seconds until the next."""
    network.dros[name].routes.core.set_authentication(authentication)
    network.run(s(7))


def test_the_key_is_changed_step_by_step_and_no_route_changes() -> None:
    network = chain(Authentication((OLD,)))
    before = routes(network), signatures(network)
    for keys in ((OLD, KEY), (KEY, OLD), (KEY,)):
        for name in ("A", "B"):
            take(network, name)
            change(network, name, Authentication(keys))
            assert not [e for e in take(network, name) if isinstance(e, OneSidedLink)]
            assert (routes(network), signatures(network)) == before


def test_signatures_are_introduced_dro_by_dro_and_no_route_changes() -> None:
    network = chain(None)
    before = routes(network), signatures(network)
    for lenient in (True, False):
        for name in ("A", "B"):
            change(network, name, Authentication((KEY,), accepts_unsigned=lenient))
            assert (routes(network), signatures(network)) == before


def test_a_dro_with_another_key_is_none_of_the_network() -> None:
    network = chain(NETWORK)
    change(network, "B", Authentication((FOREIGN,)))
    network.run(SETTLED_NS)
    assert ways(network, 1, 3) == []
    assert all(dro.routes.core.exchange.others == {} for dro in network.up())
