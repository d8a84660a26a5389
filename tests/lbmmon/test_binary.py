"""Binary statistics of a daemon, as the published structures lay them out, in both byte orders, and back again."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dro.errors import DecodeError, LocalProtocolError
from dro.lbmmon.binary import (
    GATEWAYCFG,
    HEADER_BYTES,
    MALLINFO,
    MALLOC_INFO,
    NATIVE,
    PORTAL_STATS,
    PORTCFG,
    PORTSTAT,
    RM_LOCAL,
    RM_OTHERGW,
    RM_OTHERGW_NBR,
    RM_PORTAL,
    TOPOLOGY,
    binary_messages,
    decode_binary,
    gateway_config,
    layout,
    portal_config,
    type_of,
)
from tests.builders.golden_statistics import members, read_structure, size_of, structures
from tests.builders.statistics import NUMBERS, U64, dro_message

GROUPS: Final = (TOPOLOGY, PORTAL_STATS, MALLOC_INFO)
TIME_NS: Final = 1_700_000_000_123_456_789
STRUCTURES: Final = {
    "header": "tnwg_dstat_msg_hdr_t", "malloc_info": "tnwg_mallinfo_stat_grp_record_t",
    "local": "tnwg_rm_stat_grp_local_info_t", "portal": "tnwg_rm_stat_grp_portal_info_t",
    "othergw": "tnwg_rm_stat_grp_othergw_info_t", "neighbor": "tnwg_rm_stat_grp_othergw_neighbor_t",
    "record_header": "tnwg_dstat_record_hdr_t", "endpoint": "tnwg_portal_endpoint_dstat_record_t",
    "peer": "tnwg_portal_peer_dstat_record_t", "portal_config": "tnwg_pcfg_stat_grp_rec_hdr_t",
}  # fmt: skip
BODIES: Final[Mapping[int, str]] = {
    RM_LOCAL: "local", RM_PORTAL: "portal", RM_OTHERGW: "othergw", RM_OTHERGW_NBR: "neighbor", MALLINFO: "malloc_info",
    PORTCFG: "portal_config",
}  # fmt: skip
ORDERS: Final[Mapping[str, Literal["little", "big"]]] = {"<": "little", ">": "big"}
BEYOND_PEERS: Final = {f"remote_interest_{what}" for what in ("topics", "pcre_patterns", "regex_patterns")}
OPTIONS: Final = [("operational_mode", "embedded"), ("resolver_cache", ""), ("", "x")]


def golden(message: bytes, order: Literal["little", "big"]) -> dict[str, int | str]:
    """Read the fixed part of a message by the published structures; the header first, as `header.type`."""
    found = {f"header.{name}": value for name, value in read_structure(STRUCTURES["header"], message, 0, order).items()}
    kind = int(found["header.type"])
    if kind == PORTSTAT:
        found |= read_structure(STRUCTURES["record_header"], message, HEADER_BYTES, order)
        record = STRUCTURES["peer" if found["portal_type"] else "endpoint"]
        found |= read_structure(record, message, HEADER_BYTES + size_of(STRUCTURES["record_header"]), order)
    elif kind in BODIES:
        found |= read_structure(STRUCTURES[BODIES[kind]], message, HEADER_BYTES, order)
    return found


def all_messages(stats: Any, order: str = NATIVE, time_ns: int = TIME_NS) -> list[bytes]:  # noqa: ANN401  a message
    made = [one for group in GROUPS for _, one in binary_messages(stats, group, time_ns=time_ns, order=order)]
    made.append(gateway_config("<tnw-gateway/>\r\n\u00e9", time_ns, order))
    made.append(portal_config(3, 1, "P3", "event queue", OPTIONS, time_ns, order))
    return made


def refused(message: bytes) -> str:
    with pytest.raises(DecodeError) as told:
        decode_binary(message)
    return str(told.value)


@pytest.mark.parametrize(("ours", "published"), STRUCTURES.items())
def test_members_stand_where_they_are_published(ours: str, published: str) -> None:
    there = {name: (offset, size) for name, _, offset, size in members(published) if "padding" not in name}
    here = {member.name: (member.offset, member.size) for member in layout(ours).members}
    if ours == "peer":
        there = {name: place for name, place in there.items() if name not in BEYOND_PEERS}
    assert here == there
    assert layout(ours).size == size_of(published)


def test_the_published_table_is_whole() -> None:
    assert len(structures()) == 22
    assert sum(1 for structure in STRUCTURES.values() for _ in members(structure)) > 270


@pytest.mark.parametrize("order", ORDERS)
def test_messages_have_the_published_sizes(order: str) -> None:
    sizes = {RM_LOCAL: 304, RM_PORTAL: 312, RM_OTHERGW: 296, RM_OTHERGW_NBR: 32, MALLINFO: 40}
    found = set()
    for message in all_messages(dro_message(), order):
        kind = type_of(message)
        found.add(kind)
        assert golden(message, ORDERS[order])["header.length"] == len(message)
        assert len(message) in (960, 1376) if kind == PORTSTAT else len(message) == sizes.get(kind, len(message))
    assert found == {*sizes, PORTSTAT, GATEWAYCFG, PORTCFG}
    assert len(portal_config(0, 0, "P", "source", [], 0, order)) == 352
    assert len(gateway_config("", 0, order)) == 17
    assert len(gateway_config("abc", 0, order)) == 20
    assert len(portal_config(0, 0, "P", "source", [("ab", "c")], 0, order)) == 352 + 5


@settings(max_examples=40)
@given(st.sampled_from(list(ORDERS)), st.lists(NUMBERS, min_size=1, max_size=30))
def test_published_structures_read_the_numbers_of_the_message(order: str, numbers: list[int]) -> None:
    at = iter(range(10_000))
    stats = dro_message(lambda: numbers[next(at) % len(numbers)])
    for message in all_messages(stats, order):
        read = golden(message, ORDERS[order])
        header = (0x4542, 1, 1_700_000_000, 123_456)
        assert tuple(read[f"header.{name}"] for name in ("magic", "version", "tv_sec", "tv_usec")) == header
        again = decode_binary(message)
        ours = {name: value for name, value in read.items() if not name.startswith("header.")}
        if ours.get("portal_type") == 1 and again.kind == PORTSTAT:
            assert [ours.pop(name) for name in BEYOND_PEERS] == [0, 0, 0]
        assert again.values == ours
        assert (again.kind, again.length) == (read["header.type"], len(message))
        assert (again.time_us, again.is_big_endian) == (1_700_000_000_123_456, order == ">")


def test_every_member_has_the_number_of_its_field() -> None:
    """By names alone: those of the protobuf form that differ are listed here a second time."""
    stats = dro_message()
    renamed = {
        "self_version": "version",
        "topology": "topology_signature",
        "ingress_cost": "cost",
        "index": "portal_index",
    }
    topology = [(type_of(m), decode_binary(m).values) for _, m in binary_messages(stats, TOPOLOGY, time_ns=TIME_NS)]
    others = stats.stats.other_gateways
    told = {RM_LOCAL: [stats.stats.local], RM_PORTAL: stats.stats.portals, RM_OTHERGW: others,
            RM_OTHERGW_NBR: [portal for other in others for portal in other.other_portals]}  # fmt: skip
    special = {"node_or_adjacent_id", "type", "num_neighbors", "node_id", "domain_or_gateway"}
    special |= {"last_activity_sec", "last_activity_usec"}
    for kind, made in told.items():
        read = [values for one, values in topology if one == kind]
        assert len(read) == len(made) > 0
        for values, message in zip(read, made, strict=True):
            for name in values.keys() - special:
                assert values[name] == getattr(message, renamed.get(name, name)), name
    for _, message in binary_messages(stats, PORTAL_STATS, time_ns=TIME_NS):
        values = dict(decode_binary(message).values)
        portal = stats.stats.portals[int(values["index"])]
        own = portal.peer if values.pop("portal_type") else portal.endpoint
        parts = {"receive_stats": "receive", "send_stats": "send", "udp_receive_stats": "udp_receive",
                 "udp_send_stats": "udp_send"}  # fmt: skip
        assert values.pop("record_length") == len(message) - 288
        assert values.pop("udp_peer", 1) == 1
        for name, value in values.items():
            head, _, rest = name.partition(".")
            place = getattr(own, parts[head]) if rest else own
            field = rest or renamed.get(head, head)
            if own is portal.peer and not rest:
                field = field.removeprefix("local_")
            place = place if field in place.DESCRIPTOR.fields_by_name else portal
            assert value == getattr(place, field), name
    ((_, message),) = binary_messages(stats, MALLOC_INFO, time_ns=TIME_NS)
    assert decode_binary(message).values == {
        field.name: getattr(stats.stats.local.malloc_info, field.name)
        for field in stats.stats.local.malloc_info.DESCRIPTOR.fields
    }


def test_other_dros_are_followed_by_their_neighbours_and_portals_come_by_index() -> None:
    stats = dro_message()
    first, last = stats.stats.portals[0], stats.stats.portals[-1]
    first.portal_index, last.portal_index = last.portal_index, first.portal_index
    made = binary_messages(stats, TOPOLOGY, time_ns=TIME_NS)
    neighbours = [len(other.other_portals) for other in stats.stats.other_gateways]
    assert neighbours == [2, 2, 3, 3]
    expected = [RM_LOCAL, *[RM_PORTAL] * 4]
    for count in neighbours:
        expected += [RM_OTHERGW, *[RM_OTHERGW_NBR] * count]
    assert [type_of(message) for _, message in made] == expected
    read = [decode_binary(message) for _, message in made]
    assert [one.values["index"] for one in read if one.kind == RM_PORTAL] == [0, 1, 2, 3]
    assert [one.values["num_neighbors"] for one in read if one.kind == RM_OTHERGW] == neighbours
    assert len({key for key, _ in made}) == len(made)
    assert {key[0] for key, _ in made} == {TOPOLOGY}


def test_ids_of_what_is_adjacent() -> None:
    stats = dro_message()
    made = [decode_binary(message) for _, message in binary_messages(stats, TOPOLOGY, time_ns=TIME_NS)]
    portals = [(one.values["type"], one.values["node_or_adjacent_id"]) for one in made if one.kind == RM_PORTAL]
    assert portals == [(0, p.endpoint.domain_id) for p in stats.stats.portals[:2]] + [
        (1, p.peer.adjacent_gateway_id) for p in stats.stats.portals[2:]
    ]
    last = stats.stats.other_gateways[-1].other_portals
    nearby = [(one.values["domain_or_gateway"], one.values["node_id"]) for one in made if one.kind == RM_OTHERGW_NBR]
    assert nearby[-3:] == [(0, last[0].adjacent_domain_id), (0, last[1].adjacent_domain_id),
                           (1, last[2].adjacent_gateway_id)]  # fmt: skip


@pytest.mark.parametrize(
    ("ago_us", "age"), [(0, (0, 0)), (1, (0, 1)), (61_500_000, (61, 500_000)), (-5_000_000, (0, 0))]
)
def test_the_last_activity_is_an_age(ago_us: int, age: tuple[int, int]) -> None:
    stats = dro_message()
    other = stats.stats.other_gateways[0]
    other.last_activity_sec, other.last_activity_usec = divmod(TIME_NS // 1000 - ago_us, 1_000_000)
    read = next(
        values
        for values in [
            decode_binary(message).values for _, message in binary_messages(stats, TOPOLOGY, time_ns=TIME_NS)
        ]
        if values.get("gateway_id") == other.gateway_id
    )
    assert (read["last_activity_sec"], read["last_activity_usec"]) == age


def test_a_portal_can_be_asked_for_alone() -> None:
    stats = dro_message()
    ((key, message),) = binary_messages(stats, PORTAL_STATS, time_ns=TIME_NS, portal="P2")
    assert decode_binary(message).values["portal_name"] == "P2"
    assert key in [other for other, _ in binary_messages(stats, PORTAL_STATS, time_ns=TIME_NS)]
    assert binary_messages(stats, PORTAL_STATS, time_ns=TIME_NS, portal="P9") == []


def test_a_peer_link_by_tcp_has_no_counters_of_datagrams() -> None:
    stats = dro_message()
    for part in ("udp_receive", "udp_send"):
        stats.stats.portals[2].peer.ClearField(part)
    ((_, message),) = binary_messages(stats, PORTAL_STATS, time_ns=TIME_NS, portal="P2")
    values = decode_binary(message).values
    assert {values[name] for name in values if name.startswith("udp_")} == {0}
    assert len(message) == 1376


def test_numbers_wrap_at_the_size_of_their_member() -> None:
    stats = dro_message()
    stats.stats.local.version, stats.stats.local.recalc_duration_sec = 0x1_0002, U64
    (_, message), *_ = binary_messages(stats, TOPOLOGY, time_ns=TIME_NS)
    values = decode_binary(message).values
    assert (values["self_version"], values["recalc_duration_sec"]) == (2, 0xFFFFFFFF)


@pytest.mark.parametrize(
    ("name", "sent"), [("n" * 255, "n" * 255), ("n" * 300, "n" * 255), ("n" * 254 + "\u00e9", "n" * 254), ("", "")]
)
def test_a_name_ends_with_a_nul(name: str, sent: str) -> None:
    stats = dro_message()
    stats.stats.portals[0].portal_name = name
    (_, message), *_ = binary_messages(stats, PORTAL_STATS, time_ns=TIME_NS)
    assert message[32:288] == sent.encode().ljust(256, b"\0")
    assert message[287] == 0
    assert decode_binary(message).values["portal_name"] == sent


@pytest.mark.parametrize(("size", "length"), [(65_518, 65_535), (65_519, 65_535), (200_000, 65_535), (65_517, 65_534)])
def test_a_text_that_is_too_long_for_the_length_is_whole(size: int, length: int) -> None:
    message = gateway_config("x" * size, TIME_NS)
    read = decode_binary(message)
    assert (read.text, read.length, len(message)) == ("x" * size, length, 17 + size)


@given(
    st.sampled_from(list(ORDERS)), st.integers(0, 9), st.integers(0, 1),
    st.lists(st.tuples(*[st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=9)] * 2), max_size=9),
)  # fmt: skip
def test_configurations_come_back(order: str, index: int, kind: int, options: list[tuple[str, str]]) -> None:
    message = portal_config(index, kind, "P x", "wildcard receiver", options, TIME_NS, order)
    read = decode_binary(message)
    assert read.values == {
        "portal_num": index, "portal_type": kind, "num_options": len(options), "portal_name": "P x",
        "attr_type": "wildcard receiver",
    }  # fmt: skip
    assert read.options == tuple(options)
    text = "".join(name for option in options for name in option)
    assert decode_binary(gateway_config(text, TIME_NS, order)).text == text


def test_an_own_message_is_in_the_order_of_this_host() -> None:
    message = gateway_config("", TIME_NS)
    assert int.from_bytes(message[:2], sys.byteorder) == 0x4542
    assert decode_binary(message).is_big_endian == (sys.byteorder == "big")


def test_what_follows_the_length_is_left_out() -> None:
    message = gateway_config("text", TIME_NS)
    assert decode_binary(message + b"more") == decode_binary(message)


def test_a_configuration_is_no_group_of_statistics() -> None:
    with pytest.raises(LocalProtocolError, match="gateway-config"):
        binary_messages(dro_message(), "gateway-config", time_ns=TIME_NS)


def changed(message: bytes, at: int, value: bytes) -> bytes:
    return message[:at] + value + message[at + len(value) :]


def test_what_is_no_message_is_refused() -> None:
    stats = dro_message()
    (_, local), *_ = binary_messages(stats, TOPOLOGY, time_ns=TIME_NS, order="<")
    (_, portal), *_ = binary_messages(stats, PORTAL_STATS, time_ns=TIME_NS, order="<")
    options = portal_config(0, 0, "P", "source", [("a", "b")], TIME_NS, "<")
    assert "the header is cut off" in refused(local[:15])
    assert "no daemon statistics at byte 0" in refused(changed(local, 0, b"\x42\x42"))
    for kind in (0, 1, 10):
        assert f"type {kind} is not known" in refused(changed(local, 2, bytes((kind, 0))))
    assert "304 bytes are announced, 303 are there" in refused(local[:-1])
    assert "304 bytes are needed, 303 are there" in refused(changed(local, 6, (303).to_bytes(2, "little")))
    assert "2 is neither endpoint nor peer" in refused(changed(portal, 16, b"\2"))
    assert "1084 is not that of this type" in refused(changed(portal, 24, (1084).to_bytes(4, "little")))
    assert "4294967295 is not" in refused(changed(portal, 24, b"\xff" * 4))
    assert "1376 bytes are needed, 960 are there" in refused(
        changed(changed(portal, 16, b"\1"), 24, (1088).to_bytes(4, "little"))
    )
    assert "4 texts are announced, 2 are there" in refused(changed(options, 24, b"\2"))
    assert "8589934590 texts are announced" in refused(changed(options, 24, b"\xff" * 4))
    assert "1 texts are announced, 0 are there" in refused(changed(gateway_config("text", 0, "<"), 20, b"x"))
    with pytest.raises(DecodeError):
        type_of(b"\x45")


@given(st.data())
def test_messages_that_are_cut_or_changed_are_read_or_refused(data: st.DataObject) -> None:
    message = bytearray(
        data.draw(st.sampled_from(all_messages(dro_message(), data.draw(st.sampled_from(list(ORDERS))))))
    )
    for _ in range(data.draw(st.integers(0, 3))):
        message[data.draw(st.integers(0, min(len(message), 400) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(message[: data.draw(st.integers(0, len(message)))])
    try:
        read = decode_binary(cut)
    except DecodeError:
        return
    assert read.kind == type_of(cut)
