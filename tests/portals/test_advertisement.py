"""What an advertisement keeps when it crosses a DRO, for whatever a stranger advertises."""

from __future__ import annotations

import pytest
from hypothesis import given

from dro.errors import DecodeError
from dro.wire import lbmr
from dro.wire.cursor import Reader
from dro.wire.lbmr_options import read_tir_options, write_tir_options
from portals.endpoint.advertisement import MAX_COST, is_name, pass_through_of, proxy_options
from portals.messages import SourceSeen
from tests.fakes import lbmr_strategies

OTID = bytes(range(32))


def seen(pass_through: bytes = b"", hop_count: int = 0, cost: int = 0) -> SourceSeen:
    return SourceSeen(1, OTID, b"AAA", 7, hop_count, cost, pass_through)


@given(tir=lbmr_strategies.tir)
def test_options_cross_unchanged_but_for_those_that_every_dro_makes_anew(tir: lbmr.Tir) -> None:
    options = proxy_options(seen(pass_through_of(tir)), 4)
    again = read_tir_options(Reader(write_tir_options(lbmr.TirOptions(options)))).items
    remade = (lbmr.OtidOption, lbmr.Cost, lbmr.DomainId)
    kept = [] if tir.options is None else [item for item in tir.options.items if not isinstance(item, remade)]
    assert again[:2] == (lbmr.Cost(1, 4), lbmr.DomainId(7))
    assert list(again[2:]) == kept


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
