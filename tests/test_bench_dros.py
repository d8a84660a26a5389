"""What the benches of networks count."""

from __future__ import annotations

from dro.wire.lbmr import packet as lbmr
from tests.bench.chain import knows_all
from tests.bench.dros import is_from_dro, records_of
from tests.bench.hub import peak_of

DRO = lbmr.standard_options(bytes(8), lbmr.SenderType.DRO, 1)
APPLICATION = lbmr.standard_options(bytes(8), lbmr.SenderType.APPLICATION, 1)


def test_records_are_counted_by_their_headers_or_one_by_one() -> None:
    (tqrs,) = lbmr.pack_tqrs([b"a", b"b", b"c"], APPLICATION, 8192)
    (tmrs,) = lbmr.pack_tmrs([lbmr.Tmr(lbmr.TmrType.LEAVE, 0, b"a")] * 2, DRO, 8192)
    assert [records_of(datagram) for datagram in (tqrs, tmrs, b"", b"\x01")] == [3, 2, 0, 0]
    assert [is_from_dro(datagram) for datagram in (tqrs, tmrs, b"")] == [False, True, False]


def test_the_most_lines_of_a_kind_in_a_second() -> None:
    log = "".join(
        f"[2026-11-21 20:03:{second:02}.480411] [information] Gwd-1: {text} peer=x\n"
        for second, text in ((11, "accepted"), (11, "accepted"), (11, "another"), (12, "accepted"))
    )
    assert peak_of(log, "accepted") == (3, 2)
    assert peak_of(log, "nothing") == (0, 0)


def test_the_routes_that_were_calculated_last_count() -> None:
    line = "route recalculation took 0.1 seconds route_version=1.1 routes={} process=route-manager\n"
    assert not knows_all("")
    assert not knows_all(line.format(6) + line.format(2))
    assert knows_all(line.format(2) + line.format(6))
