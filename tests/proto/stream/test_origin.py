"""Whom receivers ask: what an advertisement says of the origin of a source, through DROs and by SRS as well."""

from __future__ import annotations

import pytest

from dro.proto.stream.origin import RetainingOrigin, offer, origin_of
from dro.wire import otid
from dro.wire.lbmc.headers import ContextAddress
from dro.wire.lbmr.options import (
    Cost,
    DomainId,
    ExtendedFunctionality,
    Functionality,
    LateJoin,
    TirOption,
    TirOptions,
    Ume,
)
from dro.wire.source_string import TcpAddress

OTID = otid.encode(TcpAddress(0x0A000001, 14371, 5), 77, 8, 9)
OLD_OTID = OTID[:-1] + b"\0"
PLAIN = ExtendedFunctionality(port=14391, ip=0x0A000001)
FLAGGED = ExtendedFunctionality(port=14391, ip=0x0A000001, flags=Functionality.LATE_JOIN)
OPTION = LateJoin(port=14392, ip=0x0A000002, transport_index=3, high_sqn=0, low_sqn=0)
STORES = Ume(0, 0, 0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ((), None),
        ((PLAIN,), None),
        ((FLAGGED,), RetainingOrigin(ContextAddress(0, 0x0A000001, 14391), 9, 77)),
        ((OPTION, PLAIN), RetainingOrigin(ContextAddress(0, 0x0A000002, 14392), 3, 77)),
        ((OPTION, Cost(2, 3), DomainId(4), FLAGGED), RetainingOrigin(ContextAddress(4, 0x0A000002, 14392), 3, 77)),
        ((LateJoin(port=0, ip=0, transport_index=3, high_sqn=0, low_sqn=0), FLAGGED),
         RetainingOrigin(ContextAddress(0, 0x0A000001, 14391), 3, 77)),
        ((STORES, FLAGGED), RetainingOrigin(ContextAddress(0, 0x0A000001, 14391), 9, 77, True)),
        ((ExtendedFunctionality(port=0, ip=0, flags=Functionality.LATE_JOIN),), None),
    ],
)  # fmt: skip
def test_the_origin_is_named_by_what_it_advertises(
    items: tuple[TirOption, ...], expected: RetainingOrigin | None
) -> None:
    assert origin_of(TirOptions(items), OTID) == expected


def test_without_an_otid_that_is_known_nobody_is_asked() -> None:
    assert origin_of(None, OTID) is None
    assert origin_of(TirOptions((FLAGGED,)), b"\xff" * 32) is None
    assert origin_of(TirOptions((FLAGGED,)), OLD_OTID) == RetainingOrigin(ContextAddress(0, 0x0A000001, 14391), 0, 77)


def test_an_offer_is_understood() -> None:
    assert origin_of(TirOptions(offer(1, 2, 3)), OTID) == RetainingOrigin(ContextAddress(0, 1, 2), 3, 77)
