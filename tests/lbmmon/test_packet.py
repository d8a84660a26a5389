"""Packets of statistics, as published definitions read them, and back again; what is no packet is refused."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any, Final

import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from dro.errors import DecodeError, LocalProtocolError
from dro.lbmmon.fields import (
    CONTEXT,
    CSV,
    DRO,
    KINDS,
    PB,
    RECEIVER_TOPIC,
    STORE,
    WILDCARD_RECEIVER,
    csv_orders,
    message_class,
)
from dro.lbmmon.packet import attribute_table, decode, encode, format_attribute, framed
from dro.lbmmon.records import (
    DroStats,
    LibraryStats,
    Message,
    MonitorSender,
    PatternReport,
    ReportedSource,
    TopicReport,
    Unread,
)
from tests.builders.golden_statistics import proto_rows, published_class
from tests.builders.statistics import NUMBERS, SENDERS, U64, dro_message, library_stats

SENDER: Final = MonitorSender(1_700_000_000, "app", "10.0.0.1", 77, 1 << 40, True, b"instance", 5)
SESSION: Final = LibraryStats(
    SENDER, "source_transport", "LBTRM:10.0.0.1:14390:1:224.1.1.1:14400", {"lbtrm.msgs_sent": 255}
)
HEAD: Final = struct.Struct("!IHHHH")


def only(packet: bytes, separator: str = "") -> Message:
    (message,) = decode(packet, separator)
    return message


def refused(packet: bytes) -> str:
    with pytest.raises(DecodeError) as told:
        list(decode(packet))
    return str(told.value)


def test_the_table_has_every_published_field() -> None:
    assert len(proto_rows()) == 522
    for name in ("DROMonMsg", "UMSMonMsg", "UMMonControlMsg", "UMMonAttributes"):
        ours, published = _shape(message_class(name).DESCRIPTOR), _shape(published_class(name).DESCRIPTOR)
        assert ours == published
        assert ours[0]


def _shape(descriptor: Any) -> list[Any]:  # noqa: ANN401  made at run time
    """All that a description says, and those of messages inside."""
    made = descriptor_pb2.DescriptorProto()
    descriptor.CopyToProto(made)
    inside = sorted(descriptor.nested_types, key=lambda one: one.name)
    enums = sorted(made.enum_type, key=lambda one: one.name)
    return [list(made.field), list(made.oneof_decl), enums, *[(one.name, _shape(one)) for one in inside]]


def test_the_header_and_the_attributes_are_where_they_are_published() -> None:
    packet = encode(SESSION, CSV)
    signature, kind, block, length, filler = HEAD.unpack_from(packet)
    assert (signature, kind, filler) == (0x1B33041B, 0, 0)
    assert len(packet) == HEAD.size + block + length
    attributes = packet[HEAD.size : HEAD.size + block]
    assert struct.unpack_from("!HH", attributes) == (9, block)
    found, at = {}, 4
    while at < block:
        number, size = struct.unpack_from("!HH", attributes, at)
        found[number] = attributes[at + 4 : at + 4 + size]
        at += 4 + size
    assert found == {
        0: b"\x0a\0\0\1", 1: struct.pack("!I", 1_700_000_000), 2: b"app", 3: b"\x01\x05", 4: struct.pack("!Q", 1 << 40),
        5: struct.pack("!Q", 77), 6: b"\0\0\0\1", 7: b"instance", 8: b"\0\0\0\5",
    }  # fmt: skip
    assert attribute_table(format_attribute(PB)) == b"\0\1\0\x0a\0\3\0\2\2\1"
    assert packet[-length:] == b'16,"LBTRM:10.0.0.1:14390:1:224.1.1.1:14400",ff,0,0,0,0,0,0,0,0,0,0,0,0'


def test_published_definitions_read_a_message_of_a_dro() -> None:
    message = dro_message()
    packet = encode(DroStats(SENDER, message), PB)
    _, kind, block, length, _ = HEAD.unpack_from(packet)
    read = published_class("DROMonMsg").FromString(packet[HEAD.size + block :])
    assert (kind, length) == (DRO, len(packet) - HEAD.size - block)
    told = read.attributes
    assert (told.sender_ipv4_address, told.timestamp, told.application_id) == ("10.0.0.1", 1_700_000_000, "app")
    assert (told.object_id, told.process_id, told.domain_id) == (1 << 40, 77, 5)
    assert told.context_instance == b"instance"
    assert str(read.stats) == str(message.stats)
    assert str(read.configs) == str(message.configs)
    assert [p.WhichOneof("PortalType") for p in read.stats.portals] == ["endpoint", "endpoint", "peer", "peer"]
    assert message.attributes.application_id != "app", "the message of the caller is as it was"
    again = only(packet)
    assert isinstance(again, DroStats)
    assert again.sender == SENDER


@given(library_stats())
def test_published_definitions_read_what_the_library_counts(stats: LibraryStats) -> None:
    packet = encode(stats, PB)
    _, kind, block, _, _ = HEAD.unpack_from(packet)
    read = published_class("UMSMonMsg").FromString(packet[HEAD.size + block :])
    assert KINDS[kind] == stats.kind
    place = read.stats.context if stats.kind == "context" else getattr(read.stats, f"{stats.kind}s")[0]
    for path, value in stats.values.items():
        one = place
        for name in path.split("."):
            one = getattr(one, name)
        assert one == value
    if "transport" in stats.kind:
        assert (place.source_string, place.source_flag) == (stats.source, stats.sender.is_mim)
        assert place.WhichOneof("TransportType") == next(iter(stats.values)).partition(".")[0]


@given(library_stats(), st.sampled_from([CSV, PB]), st.sampled_from(",;|:\t x"))
def test_what_is_encoded_is_decoded(stats: LibraryStats, module: int, separator: str) -> None:
    packet = encode(stats, module, separator)
    assert only(packet, separator) == stats
    assert only(packet) == stats, "the separator is found out"


@settings(max_examples=30)
@given(SENDERS, st.lists(NUMBERS, min_size=1))
def test_a_message_of_a_dro_is_decoded(sender: MonitorSender, numbers: list[int]) -> None:
    at = iter(range(10_000))
    message = dro_message(lambda: numbers[next(at) % len(numbers)])
    read = only(encode(DroStats(replace(sender, is_mim=False), message), PB))
    assert isinstance(read, DroStats)
    assert read.sender == replace(sender, is_mim=False)
    assert read.message.stats == message.stats
    assert read.message.configs == message.configs


@pytest.mark.parametrize("module", [CSV, PB])
@pytest.mark.parametrize("kind", ["event_queue", "context"])
def test_a_minimum_of_nothing_is_the_highest_number(kind: str, module: int) -> None:
    read = only(encode(LibraryStats(SENDER, kind, "", {}), module))
    assert isinstance(read, LibraryStats)
    assert {name: value for name, value in read.values.items() if value} == {
        name: U64 for name in read.values if name.endswith("_min")
    }
    assert len(read.values) == {"event_queue": 57, "context": 24}[kind]
    session = only(encode(LibraryStats(SENDER, "receiver_transport", "LBT-RU:1.2.3.4:5", {}), module))
    assert isinstance(session, LibraryStats)
    assert session.values["lbtru.nak_stm_min"] == U64
    assert session.values["lbtru.lost"] == 0


def test_orders_of_csv_name_fields_of_the_same_object() -> None:
    places = {0: "SourceTransport", 1: "ReceiverTransport", 2: "EventQueue", 3: "Context"}
    for (kind, transport), names in csv_orders().items():
        path = ".".join(["UMSMonMsg.Stats", places[kind], *([transport.upper()] if transport else [])])
        fields = [row["field name"] for row in proto_rows() if row["message path"] == path]
        assert sorted(set(names) - {"reserved"}) == sorted(fields)
        assert len(set(names)) == len(names)


def test_csv_has_no_statistics_of_a_dro() -> None:
    with pytest.raises(LocalProtocolError, match="csv has no form"):
        encode(DroStats(SENDER, dro_message()), CSV)
    assert "csv has no form" in refused(framed(DRO, attribute_table(format_attribute(CSV)), b"1"))


def test_data_longer_than_their_field_are_what_follows() -> None:
    message = dro_message()
    message.configs.gateway.config_data = "x" * 70_000
    packet = encode(DroStats(SENDER, message), PB)
    assert HEAD.unpack_from(packet)[3] == 0
    read = only(packet)
    assert isinstance(read, DroStats)
    assert read.message.configs == message.configs
    refused(packet[:-1])


@pytest.mark.parametrize("size", [65_535, 65_536])
def test_the_longest_data_that_the_header_can_tell(size: int) -> None:
    packet = framed(3, b"", bytes(size))
    assert HEAD.unpack_from(packet)[3] == (size if size <= 65_535 else 0)


def csv_packet(kind: int, text: bytes, **attributes: bytes) -> bytes:
    told = {int(name[1:]): value for name, value in attributes.items()}
    return framed(kind, attribute_table({**format_attribute(CSV), **told}), text)


def test_topics_and_patterns_are_read() -> None:
    nobody = MonitorSender(0, "", "", 0, 0)
    topic = csv_packet(RECEIVER_TOPIC, b'"a,b|c",2, "TCP:1",00ff,a,\'LBTRM:"2"\',01,1f\0')
    assert only(topic) == TopicReport(
        nobody, "a,b|c", (ReportedSource("TCP:1", "00ff", 10), ReportedSource('LBTRM:"2"', "01", 31))
    )
    assert only(csv_packet(WILDCARD_RECEIVER, b'"^a.*",1')) == PatternReport(nobody, "^a.*", 1)
    made = message_class("UMSMonMsg")()
    one = made.events.receiver_topics.add(topic="t").sources.add(source_string="TCP:1", otid="ff", topic_idx=3)
    one.source_state, one.timestamp_sec, one.timestamp_usec = 2, 5, 7
    made.events.receiver_topics[0].sources.add(source_state=9)
    made.events.wildcard_receivers.add(pattern="p", type=-1)
    packet = framed(RECEIVER_TOPIC, attribute_table(format_attribute(PB)), made.SerializeToString())
    assert list(decode(packet)) == [
        TopicReport(nobody, "t", (ReportedSource("TCP:1", "ff", 3, "SOURCE_DELETED", 5_000_007),
                                  ReportedSource("", "", 0, "9"))),
        PatternReport(nobody, "p", -1),
    ]  # fmt: skip


def test_older_texts_have_fewer_fields_and_blanks_are_skipped() -> None:
    read = only(csv_packet(3, b" 1,\t2 ,ff", _1=b"\0\0\0\0\0\0\0\7", _99=b"x"))
    assert isinstance(read, LibraryStats)
    assert (read.sender.time_s, read.values) == (
        7, {"tr_dgrams_sent": 1, "tr_bytes_sent": 2, "tr_dgrams_rcved": 255},
    )  # fmt: skip


def test_statistics_of_others_are_named() -> None:
    assert only(framed(STORE, b"", b"anything")) == Unread("statistics of a store (packet type 6)")


def test_the_table_says_who_sent_a_message_without_attributes() -> None:
    message = dro_message()
    message.ClearField("attributes")
    packet = framed(DRO, attribute_table({**format_attribute(PB), 2: b"dro1\0", 5: b"\7"}), message.SerializeToString())
    read = only(packet)
    assert isinstance(read, DroStats)
    assert (read.sender.application, read.sender.pid) == ("dro1", 7)


@pytest.mark.parametrize("block", [b"", b"\x0a\x08lbmmon", b"\0\0\0\4", b"\xff"])
def test_a_message_that_names_its_sender_needs_no_table(block: bytes) -> None:
    packet = encode(SESSION, PB)
    data = packet[HEAD.size + HEAD.unpack_from(packet)[2] :]
    read = only(framed(0, block, data))
    assert isinstance(read, LibraryStats)
    assert read.sender == SENDER
    assert read.values["lbtrm.msgs_sent"] == 255


_PB = attribute_table(format_attribute(PB))


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (b"", "the header is cut off"),
        (bytes(12), "no packet of lbmmon"),
        (encode(SESSION, PB)[:-1], "the packet is cut off"),
        (encode(SESSION, CSV)[:30], "the packet is cut off"),
        (framed(11, _PB, b""), "packet type 11 is not known"),
        (framed(3, b"", b"1"), "format module 0 is not known"),
        (framed(3, b"\0\1\0\6\0\3\0\2\x0a\0", b"1"), "format module 10 is not known"),
        (framed(3, b"\0", b"1"), "the block is cut off"),
        (framed(3, b"\0\1\0\6\0\3\0\2\2", b"1"), "an attribute is cut off"),
        (framed(3, b"\xff\xff\0\4", b"1"), "an attribute is cut off"),
        (framed(3, attribute_table({**format_attribute(PB), 4: bytes(9)}), b""), "attribute 4 has more than 8 bytes"),
        (framed(3, _PB, b"\xff\xff"), "no protobuf message"),
        (framed(DRO, _PB, b"\x0a\3\x1a\1\xff"), "no protobuf message"),
        (csv_packet(0, b"0"), "2 fields are needed, 1 are there"),
        (csv_packet(0, b'32,"TCP:1",1'), "transport '32' is not known"),
        (csv_packet(0, b'0a,"TCP:1",1'), "transport '0a' is not known"),
        (csv_packet(3, b"1,,2"), "'' is no hexadecimal number"),
        (csv_packet(3, b"1,-2"), "'-2' is no hexadecimal number"),
        (csv_packet(3, b"1,10000000000000000"), "is no hexadecimal number of 64 bits"),
        (csv_packet(3, b'1,"2'), "a text is not closed"),
        (csv_packet(4, b'"t",ffffffffffffffff,"x",0,1'), "fields are needed, 5 are there"),
    ],
)  # fmt: skip
def test_what_is_no_packet_is_refused(packet: bytes, reason: str) -> None:
    assert reason in refused(packet)


@given(st.data())
def test_packets_that_are_cut_or_changed_are_read_or_refused(data: st.DataObject) -> None:
    stats = data.draw(library_stats())
    packet = bytearray(encode(stats, data.draw(st.sampled_from([CSV, PB]))))
    for _ in range(data.draw(st.integers(0, 3))):
        packet[data.draw(st.integers(0, len(packet) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(packet[: data.draw(st.integers(0, len(packet)))])
    try:
        found = list(decode(cut))
    except DecodeError:
        return
    assert all(not isinstance(one, LibraryStats) or max(one.values.values(), default=0) <= U64 for one in found)


@pytest.mark.parametrize("text", ["a," + " " * 50_000 + '"x', '"' * 50_001, "'" + " " * 50_000, " " * 50_000 + "x'"])
def test_a_text_of_a_stranger_is_read_in_one_pass(text: str) -> None:
    packet = framed(CONTEXT, attribute_table(format_attribute(CSV)), text.encode())
    with pytest.raises(DecodeError):
        list(decode(packet))


@pytest.mark.parametrize(("module", "only", "said"), [(PB, CSV, "it is pb, not csv"), (CSV, PB, "it is csv, not pb")])
def test_one_format_alone_is_read_where_it_is_asked_for(module: int, only: int, said: str) -> None:
    values = {"tcp.bytes_rcved": 1}
    stats = LibraryStats(MonitorSender(1, "a", "", 2, 3), "receiver_transport", "TCP:192.0.2.1:14371", values)
    assert list(decode(encode(stats, module), only=module)) == list(decode(encode(stats, module)))
    with pytest.raises(DecodeError, match=said):
        decode(encode(stats, module), only=only)
