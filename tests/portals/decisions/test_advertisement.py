"""What an advertisement keeps when it crosses a DRO, for whatever a stranger advertises."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from dro.errors import DecodeError
from dro.wire.cursor import Reader
from dro.wire.lbmr import options
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.options import ContextInstance, read_tir_options, write_tir_options
from dro.wire.lbmr.tlv import UnknownOption
from dro.wire.source_string import LbtrmAddress
from portals.decisions.advertisement import NOT_SERVED, is_name, pass_through_of, proxy_options, served
from portals.decisions.messages import SourceSeen
from tests.builders import lbmr_strategies

OTID = bytes(range(32))


def seen(pass_through: bytes = b"", hop_count: int = 0, cost: int = 0) -> SourceSeen:
    return SourceSeen(1, OTID, b"AAA", 7, hop_count, cost, pass_through)


@given(tir=lbmr_strategies.tir)
def test_options_cross_unchanged_but_for_those_made_anew_and_those_not_served(tir: lbmr.Tir) -> None:
    made = proxy_options(seen(pass_through_of(tir)), 4)
    again = read_tir_options(Reader(write_tir_options(lbmr.TirOptions(made)))).items
    remade = (lbmr.OtidOption, lbmr.Cost, lbmr.DomainId)
    items = () if tir.options is None else tir.options.items
    kept = [served(item) for item in items if not isinstance(item, (*remade, *NOT_SERVED))]
    assert again[:2] == (lbmr.Cost(1, 4), lbmr.DomainId(7))
    assert list(again[2:]) == kept


@given(tir=lbmr_strategies.tir)
def test_an_index_is_added_and_goes_no_further_than_one_dro(tir: lbmr.Tir) -> None:
    made = lbmr.TirOptions(proxy_options(seen(pass_through_of(tir)), 4, 0xFFFF))
    assert made.hotlink_index == 0xFFFF
    plain = lbmr.TirOptions(proxy_options(seen(pass_through_of(tir)), 4))
    beyond = lbmr.TirOptions(proxy_options(seen(pass_through_of(lbmr.Tir(b"t", tir.transport, 60, 1, made))), 4))
    assert (plain.hotlink_index, beyond.hotlink_index) == (0, 0)
    rest = tuple(item for item in made.items if not isinstance(item, options.ExtendedFunctionality))
    assert rest == tuple(item for item in plain.items if not isinstance(item, options.ExtendedFunctionality))


def test_what_receivers_ask_the_origin_for_crosses_and_queues_do_not() -> None:
    request = options.ExtendedFunctionality(port=14391, ip=0x0A000001, flags=options.Functionality.LATE_JOIN)
    kept: tuple[lbmr.TirOption, ...] = (
        options.Ume(1, 2, 3, 4, 5, 6, 7, 8),
        options.UmeStore(1, 2, 3, 4, 5),
        options.UmeStoreGroup(1, 2),
        options.LateJoin(port=1, ip=2, transport_index=3, high_sqn=4, low_sqn=5),
        options.StoreContextInstance(1, bytes(8)),
        ContextInstance(instance=bytes(8)),
        UnknownOption(0x20, b"\x80\xff"),
    )
    queues = options.Functionality.UMQ | options.Functionality.ULB
    offered = replace(request, flags=request.flags | queues)
    address = LbtrmAddress(0x0A000001, 14400, 0xE00A0A0A, 14400, 5)
    items = (*kept, offered, options.UmqRcrIndex(7))
    tir = lbmr.Tir(b"AAA", address, lbmr.TIR_TTL, 7, lbmr.TirOptions(items))
    assert read_tir_options(Reader(pass_through_of(tir))).items == (*kept, request)
    only = lbmr.Tir(b"AAA", address, lbmr.TIR_TTL, 7, lbmr.TirOptions((options.UmqRcrIndex(7),)))
    assert pass_through_of(only) == b""


MAX_COST = (1 << 31) - 1  # the field is signed


@pytest.mark.parametrize(
    ("cost", "portal_cost", "expected"),
    [(0, 1, 1), (10, 5, 15), (MAX_COST, 1, MAX_COST), (-5, 4, 0), (-(1 << 31), 1, 0), (MAX_COST * 2, 0, MAX_COST)],
)
def test_costs_add_up_and_never_become_that_of_a_final_advertisement(
    cost: int, portal_cost: int, expected: int
) -> None:
    found = proxy_options(seen(cost=cost), portal_cost)[0]
    assert isinstance(found, lbmr.Cost)
    assert found.cost == expected
    assert not found.is_final


def test_the_hop_count_ends_at_255() -> None:
    assert proxy_options(seen(hop_count=254), 1)[0] == lbmr.Cost(255, 1)
    with pytest.raises(DecodeError):
        proxy_options(seen(hop_count=255), 1)


@pytest.mark.parametrize(
    ("symbol", "fits"), [(b"A", True), (b"a" * 255, True), (b"", False), (b"a" * 256, False), (b"a\0b", False)]
)
def test_a_name_is_what_a_nul_ended_field_can_hold(symbol: bytes, fits: bool) -> None:
    assert is_name(symbol) is fits
