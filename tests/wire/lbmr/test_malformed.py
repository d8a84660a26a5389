"""What a bad LBMR packet still yields: one case for each rule on validity."""

from __future__ import annotations

import pytest

from dro.errors import DecodeError
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.extended import RemoteContextRecord, RemoteName
from dro.wire.lbmr.queue_records import ElectionCall, Qir
from dro.wire.lbmr.tlv import UnknownOption
from dro.wire.source_string import TcpAddress, UnknownTransport
from tests.builders.tir_options import tir_options

TIR_A = "41414100" + "000601" + "2c00000007" + "0a1d034c3823"
GOOD = "4100"


def lenient(text: str) -> tuple[lbmr.Packet | None, DecodeError | None]:
    return lbmr.decode_lenient(bytes.fromhex(text))


DROPPED = {  # nothing of the packet is used
    "empty": ("", "packet"),
    "header cut": ("180000", "packet"),
    "version 2": ("20000000", "packet.version"),
    "version 15": ("f0000000", "packet.version"),
    "type 5": ("15000000", "packet.type"),
    "extended type 0": ("17000000", "packet.extended_type"),
    "extended type 8": ("17080000", "packet.extended_type"),
    "options bit without options": ("18000000", "packet.options"),
    "length option not last": ("1800000080040010840880000000000182040000", "packet.options"),
    "length option of length 5": ("1800000080050004", "packet.options"),
    "total of options 0": ("1800000080040000", "packet.options"),
    "total of options reaches into the header": ("1800000080040005", "packet.options"),
    "packet option of length 0": ("18000000" + "82000000" + "80040008", "packet.option"),
    "packet option of length 3": ("18000000" + "850380" + "80040007", "packet.option"),
    "packet option longer than the block": ("18000000" + "85088000" + "80040008", "packet.option"),
    "unknown packet option that must not be ignored": ("18000000" + "85040000" + "80040008", "packet.option"),
    "local domain of another length": ("18000000" + "840600000000" + "8004000a", "packet.option"),
    "block that ends inside an option": ("18000000848004000580040008", "packet.option"),
    "route with domain 0": ("170600010a080001383700000000001400000000", "route.domains"),
    "route with bad length": ("170600010a080001383700000000001800000002", "route.length"),
    "route with more domains than there are": ("1706ffff0a0800013837000000040000" + "0000000c", "route.length"),
    "route cut": ("170600020a0800013837000000000018000000020000", "route.domains"),
    "context information shorter than its fixed part": ("17031300" + "00" * 16, "ctxinfo.len"),
    "context information with a name cut": ("17031b008001" + "00" * 14 + "73", "ctxinfo.name"),
    "remote context length": ("170700060000000000", "rctxinfo.len"),
    "remote context longer than the packet": ("1707001700010000000f8000040b000073746f7265", "rctxinfo.len"),
    "remote context record of length 3": ("1707000c0001000000038000", "rctxinfo.record"),
    "remote context unknown option": ("170700100001000000088000" + "05048000", "rctxinfo.option"),
    "remote context option length": ("17070010000100000008800002040000", "rctxinfo.option"),
    "remote context address of 12": ("1707001800010000001080000110" + "0000" + "00" * 8, "rctxinfo.option"),
    "remote context bytes left": ("1707000a000000000000", "rctxinfo.len"),
    "tnwg length 7": ("170500070000000000040000", "tnwg.len"),
    "tnwg longer than the packet": ("1705001900000000" + "00100001000c00000000000241414100", "tnwg.len"),
    "tnwg function 3": ("1705000c0003000000040000", "tnwg.function"),
    "tnwg context shorter than its fixed part": ("1705001400010000000b01008000000000000000", "tnwg.context"),
    "tnwg context with bytes left": ("1705001800010000000c0100800000000000000000000000", "tnwg.context"),
    "tnwg option of length 3": ("1705001800010000001001008000000000000000" + "02030000", "tnwg.option"),
    "tnwg option domain of length 4": ("1705001800010000001001008000000000000000" + "02040000", "tnwg.option"),
    "tnwg unknown option that must not be ignored": (
        "1705001800010000001001008000000000000000" + "55040000",
        "tnwg.option",
    ),
    "tnwg request of length 1": ("1705000a000200000001", "tnwg.request"),
    "topic management length 3": ("1400000000030000", "tmb.len"),
    "topic management longer than the packet": ("14000000000d00010008010041414100", "tmb.len"),
    "election shorter than its fixed part": ("17010000001b0000" + "00" * 20, "pser.len"),
    "election options total 3": ("17010000001c8000" + "00" * 20 + "00000003", "pser.options"),
    "election option of length 1": ("17010000001c8000" + "00" * 20 + "000000060100", "pser.option"),
    "election option of odd size": ("17010000001c8000" + "00" * 20 + "00000007030000", "pser.option"),
    "queue management type 0": ("17020000" + "00" * 40, "qmgmt.packet_type"),
    "queue management type 9": ("17020009" + "00" * 40, "qmgmt.packet_type"),
    "queue management with instances missing": ("17020001" + "00" * 38 + "ffff" + "00" * 4, "qmgmt.instances"),
}


@pytest.mark.parametrize("case", DROPPED)
def test_a_bad_packet_is_dropped_whole(case: str) -> None:
    text, where = DROPPED[case]
    packet, trouble = lenient(text)
    assert packet is None
    assert trouble is not None
    assert trouble.where == where


KEPT = {  # how many records stand before the error
    "tqr count too large": ("10ff0000" + GOOD, 1, "tqr.topic"),
    "tqr without nul": ("10020000" + GOOD + "4242", 1, "tqr.topic"),
    "tqr too long": ("10020000" + GOOD + "42" * 256 + "00", 1, "tqr.topic"),
    "tir count too large": ("1000ffff" + TIR_A, 1, "tir.topic"),
    "tir name without nul": ("10000002" + TIR_A + "42", 1, "tir.topic"),
    "tir cut in its fixed part": ("10000002" + TIR_A + "420000060000", 1, "tir"),
    "tir cut in its body": ("10000002" + TIR_A + "4200000600000000000700", 1, "tir.transport"),
    "tcp body of 7": ("10000002" + TIR_A + "4200000700000000000700000000000000", 1, "tir.transport"),
    "lbtrm body of 10": ("10000002" + TIR_A + "4200100a00000000000700000000000000000000", 1, "tir.transport"),
    "options without length option": (
        "10000002" + TIR_A + "42008006000000000007" + "0708000000000000" * 2,
        1,
        "tir.options",
    ),
    "option total 3": ("10000002" + TIR_A + "420080060000000000070004000300000000" + "0000", 1, "tir.options"),
    "option total beyond the packet": (
        "10000002" + TIR_A + "4200800600000000000700040040" + "00" * 6,
        1,
        "tir.options",
    ),
    "option total ends inside an option": (
        "10000002" + TIR_A + "420080060000000000070004000a" + "0708800000000000" + "000000000000",
        1,
        "tir.option",
    ),
    "option of a wrong fixed size": (
        "10000002" + TIR_A + "420080060000000000070004000e" + "070a8000000000000000" + "000000000000",
        1,
        "tir.option",
    ),
    "option of length 0": (
        "10000002" + TIR_A + "4200800600000000000700040008" + "07008000" + "000000000000",
        1,
        "tir.option",
    ),
    "unknown option that must not be ignored": (
        "10000002" + TIR_A + "4200800600000000000700040008" + "20040000" + "000000000000",
        1,
        "tir.option",
    ),
    "wildcard count too large": ("11030000" + "014100" + "024200", 2, "wctqr.pattern_type"),
    "tmr of length 3": ("14000000000f0002" + "00070100424200" + "00030100", 1, "tmr"),
    "tmr of length 4, without a name": ("14000000000f0002" + "00070100424200" + "00040100", 1, "tmr"),
    "tmr beyond its block": ("14000000000f0002" + "00070100424200" + "00080100", 1, "tmr.name"),
    "tmr name without nul": ("1400000000110002" + "00070100424200" + "000601004141", 1, "tmr.name"),
    "fewer tmrs than the length says": ("14000000000f0001" + "00070100424200" + "00000000", 1, "tmb.len"),
    "interest count too large": ("1705001800000000" + "00100002" + "000c00000000000241414100", 1, "interest"),
    "interest record of length 7": (
        "1705002000000000" + "00180002" + "000c00000000000241414100" + "0007000000000002",
        1,
        "interest.len",
    ),
    "interest record beyond the body": (
        "1705002000000000" + "00180002" + "000c00000000000241414100" + "0009000000000002",
        1,
        "interest.symbol",
    ),
    "interest with bytes left": (
        "1705001900000000" + "00110001" + "000c00000000000241414100" + "00",
        1,
        "tnwg.interest",
    ),
    "interest body shorter than the message": (
        "1705001900000000" + "00100001" + "000c00000000000241414100" + "00",
        0,
        "tnwg.interest",
    ),
    "qqr count too large": ("16020000" + GOOD, 1, "qqr.queue"),
    "qir with blocks missing": ("16000001" + "51005400" + "00" * 12 + "00010001" + "00" * 15, 0, "qir.groups"),
}


def records(body: lbmr.Body) -> int:
    match body:
        case lbmr.Queries(first, second) | lbmr.WildcardQueries(first, second):
            return len(first) + len(second)
        case lbmr.TopicManagement(found) | lbmr.TnwgInterest(found):
            return len(found)
        case lbmr.QueueResolution(queues, found):
            return len(queues) + len(found)
    raise AssertionError(body)


@pytest.mark.parametrize("case", KEPT)
def test_records_before_the_error_are_kept(case: str) -> None:
    text, count, where = KEPT[case]
    packet, trouble = lenient(text)
    assert trouble is not None
    assert trouble.where == where
    assert packet is not None
    assert records(packet.body) == count
    with pytest.raises(DecodeError) as caught:
        lbmr.decode(bytes.fromhex(text))
    assert (caught.value.where, caught.value.why) == (trouble.where, trouble.why)


def test_an_unknown_option_with_the_ignore_bit_is_kept_in_its_place() -> None:
    text = "10000001" + "4200800600000000000700040010" + "200480ff" + "0708800000000005" + "0a0000010001"
    packet = lbmr.decode(bytes.fromhex(text))
    assert isinstance(packet.body, lbmr.Queries)
    options = packet.body.tirs[0].options
    assert options is not None
    assert options.items == (UnknownOption(0x20, b"\x80\xff"), lbmr.Cost(0, 5))
    assert options.unknown == (UnknownOption(0x20, b"\x80\xff"),)
    assert lbmr.encode(packet).hex() == text


def test_an_unknown_packet_option_with_the_ignore_bit_is_kept() -> None:
    text = "18000000" + "900580ff01" + "80040009"
    packet = lbmr.decode(bytes.fromhex(text))
    assert packet.options is not None
    assert packet.options.items == (UnknownOption(0x90, b"\x80\xff\x01"),)
    assert lbmr.encode(packet).hex() == text


def test_an_unknown_transport_is_kept_and_the_next_record_read() -> None:
    text = "10000002" + "4200" + "1103" + "003c00000001" + "aabbcc" + TIR_A
    packet = lbmr.decode(bytes.fromhex(text))
    assert isinstance(packet.body, lbmr.Queries)
    assert [tir.topic for tir in packet.body.tirs] == [b"B", b"AAA"]
    assert lbmr.encode(packet).hex() == text


def test_a_session_id_of_zero_keeps_its_long_form() -> None:
    text = "10000001" + "4200" + "000a" + "003c00000001" + "0a0000010000000003e8"
    packet = lbmr.decode(bytes.fromhex(text))
    assert isinstance(packet.body, lbmr.Queries)
    assert packet.body.tirs[0].transport == TcpAddress(0x0A000001, 1000)
    assert lbmr.encode(packet).hex() == text


@pytest.mark.parametrize("kind", [2, 3])
def test_counts_of_keepalives_mean_nothing(kind: int) -> None:
    body = lbmr.decode(bytes((0x10 | kind, 5, 0, 7))).body
    assert body == (lbmr.ReceiverAlive() if kind == 2 else lbmr.SourceAlive())


def _packet(body: lbmr.Body) -> lbmr.Packet:
    return lbmr.Packet(1, None, body)


UNWRITABLE = {
    "nul in a topic": _packet(lbmr.Queries((b"A\0B",))),
    "topic too long": _packet(lbmr.Queries((b"A" * 256,))),
    "too many queries": _packet(lbmr.Queries((b"A",) * 256)),
    "pattern type": _packet(lbmr.WildcardQueries((lbmr.WildcardTqr(256, b"A"),))),
    "port": _packet(lbmr.Queries((), (lbmr.Tir(b"A", TcpAddress(1, 65536), 60, 1),))),
    "topic index": _packet(lbmr.Queries((), (lbmr.Tir(b"A", TcpAddress(1, 1), 60, -1),))),
    "otid of 31 bytes": _packet(
        lbmr.Queries((), (lbmr.Tir(b"A", TcpAddress(1, 1), 60, 1, tir_options(otid=bytes(31))),))
    ),
    "known code as unknown transport": _packet(lbmr.Queries((), (lbmr.Tir(b"A", UnknownTransport(0x10, b""), 60, 1),))),
    "cost": _packet(
        lbmr.Queries((), (lbmr.Tir(b"A", TcpAddress(1, 1), 60, 1, tir_options(cost=lbmr.Cost(1, 1 << 31))),))
    ),
    "version": lbmr.Packet(2, None, lbmr.ReceiverAlive()),
    "source id of 4 bytes": lbmr.Packet(1, lbmr.standard_options(b"abcd", 0, 0), lbmr.ReceiverAlive()),
    "request flags": _packet(lbmr.TopicResolutionRequest(0x10000)),
    "domain 0": _packet(lbmr.RemoteDomainRoute(1, 1, 0, (1, 0))),
    "too many domains": _packet(lbmr.RemoteDomainRoute(1, 1, 0, (1,) * 65536)),
    "symbol too long": _packet(lbmr.TnwgInterest((lbmr.InterestRecord(1, b"A" * 256),))),
    "symbols too many": _packet(lbmr.TnwgInterest((lbmr.InterestRecord(1, b"A" * 255),) * 300)),
    "tmrs too many": _packet(lbmr.TopicManagement((lbmr.Tmr(1, 0, b"A" * 255),) * 300)),
    "context name too long": _packet(lbmr.ContextInfo(0, 0, name=b"A" * 235)),
    "context instance of 7 bytes": _packet(lbmr.ContextInfo(0, 0, instance=bytes(7))),
    "remote name too long": _packet(lbmr.RemoteContextInfo((RemoteContextRecord((RemoteName(b"A" * 251),)),))),
    "detail of another packet type": _packet(
        lbmr.QueueManagement(0, 2, bytes(20), 1, 1, 1, 1, 1, 1, 0, ElectionCall(1))
    ),
    "signature": _packet(lbmr.QueueManagement(0, 2, bytes(19), 1, 1, 1, 1, 1, 1)),
    "hop count": _packet(lbmr.TnwgContextInfo(256, 0)),
    "election port": _packet(lbmr.ProxySourceElection(0, 1, 1, 1, 1, 65536, 1, b"A")),
    "queue id": _packet(lbmr.QueueResolution((), (Qir(b"A", b"B", -1, 1, 1),))),
}


@pytest.mark.parametrize("case", UNWRITABLE)
def test_a_value_that_does_not_fit_is_refused(case: str) -> None:
    with pytest.raises(DecodeError):
        lbmr.encode(UNWRITABLE[case])
