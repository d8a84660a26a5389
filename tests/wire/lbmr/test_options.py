"""Options of a TIR as senders build and change them."""

from __future__ import annotations

from dro.wire.lbmr import packet as lbmr
from dro.wire.source_string import LbtrmAddress, TcpAddress
from tests.builders.tir_options import tir_options

OTID = bytes(range(32))


def test_options_are_made_in_ascending_order_of_code() -> None:
    options = tir_options(
        extended=lbmr.ExtendedFunctionality(14391, 0x0A000001, 1),
        domain_id=7,
        context_instance=b"12345678",
        otid=OTID,
        cost=lbmr.Cost(2, 11),
        late_join=lbmr.LateJoin(1, 2, 3, 4, 5),
    )
    tir = lbmr.Tir(b"A", TcpAddress(1, 1), 60, 1, options)
    data = lbmr.encode(lbmr.Packet(1, None, lbmr.Queries((), (tir,))))
    assert data.hex() == (
        "10000001" + "4100" + "8006003c00000001" + "0004006c"
        "041880000001000000000002000000030000000400000005"
        "070880020000000b" + "08248000" + OTID.hex() + "090c8000" + b"12345678".hex() + "0d08800000000007"
        "0e108000383700000a00000100000001" + "000000010001"
    )


def test_replacing_an_option_keeps_its_place() -> None:
    options = lbmr.TirOptions((lbmr.OtidOption(OTID), lbmr.Cost(1, 5), lbmr.DomainId(3)))
    final = options.replacing(lbmr.Cost(1, lbmr.FINAL_COST))
    assert final.items == (lbmr.OtidOption(OTID), lbmr.Cost(1, -1), lbmr.DomainId(3))
    assert final.is_final
    assert not options.is_final


def test_a_new_option_goes_where_its_code_belongs() -> None:
    options = tir_options(otid=OTID, extended=lbmr.ExtendedFunctionality(1, 1))
    added = options.replacing(lbmr.Cost(0, 1)).replacing(lbmr.DomainId(9))
    assert [type(item) for item in added.items] == [
        lbmr.Cost,
        lbmr.OtidOption,
        lbmr.DomainId,
        lbmr.ExtendedFunctionality,
    ]
    assert lbmr.TirOptions().replacing(lbmr.DomainId(9)).items == (lbmr.DomainId(9),)


def test_an_option_that_is_not_there_reads_as_none() -> None:
    options = lbmr.TirOptions()
    assert (options.otid, options.cost, options.domain_id, options.context_instance) == (None, None, None, None)
    assert (options.extended, options.first(lbmr.LateJoin)) == (None, None)
    assert (options.all(lbmr.UmeStore), options.unknown) == ((), ())
    assert not options.is_final
    empty = lbmr.PacketOptions()
    assert (empty.source_id, empty.source_type, empty.version, empty.local_domain) == (None, None, None, None)
    assert not empty.is_from_dro


def test_all_stores_of_a_source_are_found() -> None:
    stores = tuple(lbmr.UmeStore(0, 14567, index, 1, 1) for index in range(3))
    groups = (lbmr.UmeStoreGroup(0, 3),)
    options = lbmr.TirOptions((*groups, *stores))
    assert options.all(lbmr.UmeStore) == stores
    assert options.all(lbmr.UmeStoreGroup) == groups


def test_an_empty_block_differs_from_no_block() -> None:
    for options, size in ((None, 0), (lbmr.TirOptions(), 4)):
        tir = lbmr.Tir(b"A", TcpAddress(1, 1), 60, 1, options)
        data = lbmr.encode(lbmr.Packet(1, None, lbmr.Queries((), (tir,))))
        assert len(data) == 4 + 2 + 8 + 6 + size
        body = lbmr.decode(data).body
        assert isinstance(body, lbmr.Queries)
        assert body.tirs[0].options == options


def test_topic_management_records_say_what_they_are() -> None:
    query = lbmr.Tmr(lbmr.TmrType.USE, 0, b"A")
    assert (query.is_response, query.is_pattern, query.pattern_type) == (False, False, 0)
    response = lbmr.Tmr(lbmr.TmrType.USE, lbmr.TmrFlag.RESPONSE | lbmr.TmrFlag.PCRE, b"A.*")
    assert (response.is_response, response.is_pattern, response.pattern_type) == (True, True, lbmr.PatternType.PCRE)
    assert lbmr.Tmr(1, lbmr.TmrFlag.REGEX, b"A+").pattern_type == lbmr.PatternType.REGEX


def test_interest_records_say_what_they_are() -> None:
    record = lbmr.InterestRecord(2, b"A", lbmr.InterestFlag.PATTERN | lbmr.InterestFlag.REFRESH, 1)
    assert (record.is_pattern, record.is_cancel) == (True, False)
    assert lbmr.InterestRecord(2, b"A", lbmr.InterestFlag.CANCEL).is_cancel


def test_what_the_sources_of_a_session_have_alike_is_kept_once() -> None:
    """A hundred thousand of them must not each hold a copy of the address of their session and of their context."""

    def advertised(index: int) -> lbmr.Tir:
        address = LbtrmAddress(0x0A000001, 0xE00A0A0A, 7, 14400, 14401)
        options = lbmr.TirOptions((lbmr.OtidOption(bytes([index]) * 32), lbmr.ExtendedFunctionality(14392, 0x0A000001)))
        return lbmr.Tir(b"%d" % index, address, 60, index, options)

    packet = lbmr.decode(lbmr.encode(lbmr.Packet(1, None, lbmr.Queries((), (advertised(1), advertised(2))))))
    assert isinstance(packet.body, lbmr.Queries)
    one, other = packet.body.tirs
    assert (one, other) == (advertised(1), advertised(2))
    assert one.transport is other.transport
    assert one.options is not None
    assert other.options is not None
    assert one.options.extended is other.options.extended
