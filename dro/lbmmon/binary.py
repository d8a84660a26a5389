"""Encodes and decodes the binary statistics of a daemon: C structures in the byte order of who sends them.

`data/binary.csv` says where a member stands and which field of a `DROMonMsg` it shows; a type that is the name of a
message stands for all its fields by their numbers, `=` for what is found out here, and what no row names is 0: padding,
and the interest beyond a peer portal, which has none. Source: DRO guide, 8.2; header of the daemon statistics messages.
Guess: a message that is too long for its length has 65535 there; last_activity is an age.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from struct import Struct
from typing import Any, Final, NamedTuple

from dro.errors import DecodeError, LocalProtocolError
from dro.lbmmon.fields import message_class, rows_of
from dro.lbmmon.made import Made

MAGIC, ANTIMAGIC, VERSION = 0x4542, 0x4245, 1
RM_LOCAL, RM_PORTAL, RM_OTHERGW, RM_OTHERGW_NBR, PORTSTAT, GATEWAYCFG, PORTCFG, MALLINFO = range(2, 10)
NAMES: Final = dict(enumerate(
    ("RM_LOCAL", "RM_PORTAL", "RM_OTHERGW", "RM_OTHERGW_NBR", "PORTSTAT", "GATEWAYCFG", "PORTCFG", "MALLINFO"), 2
))  # fmt: skip
HEADER_BYTES: Final = 16
LENGTH_MAX: Final = 0xFFFF
TOPOLOGY, PORTAL_STATS, MALLOC_INFO = "route-manager-topology", "portal-stats", "malloc-info"
"""Groups that are made of a `DROMonMsg`."""
NATIVE: Final = "="
"""Byte order of this host, as `struct` has it."""
_HEADS: Final = {
    RM_LOCAL: "local", RM_PORTAL: "portal", RM_OTHERGW: "othergw", RM_OTHERGW_NBR: "neighbor",
    PORTSTAT: "record_header", PORTCFG: "portal_config", MALLINFO: "malloc_info",
}  # fmt: skip
_RECORDS: Final = ("endpoint", "peer")
"""Structures of portals by their types."""
_CODES: Final = {2: "H", 4: "I", 8: "Q"}
_US_PER_S: Final = 1_000_000
Value = int | str
_About = tuple[int, *tuple[str | int, ...]]
_Bodies = Iterator[tuple[_About, bytes]]
"""Types of messages and what they are about, with what follows the header."""


@dataclass(frozen=True, slots=True)
class BinaryMessage:
    """Says what a message has, by the names of members: `receive_stats.data_msgs_rcvd`.

    `name`: of its type. `text`: of a daemon's configuration; `options`: of a portal's. `is_big_endian`: its sender.
    """

    kind: int
    name: str
    version: int
    length: int
    time_us: int
    values: Mapping[str, Value]
    text: str = ""
    options: tuple[tuple[str, str], ...] = ()
    is_big_endian: bool = False


class _Member(NamedTuple):
    """One number or text of a structure. `path`: of the field, from the message that the structure shows."""

    name: str
    size: int
    offset: int
    path: str
    is_text: bool = False


class StructureLayout(NamedTuple):
    """A structure as `struct` has it, without a byte order."""

    members: tuple[_Member, ...]
    form: str
    size: int


def _members(structure: str) -> Iterator[_Member]:
    for row in rows_of("binary"):
        name, offset, path = row["member"], int(row["offset"]), row["field"]
        if row["structure"] != structure:
            continue
        if row["type"] in ("uint", "text"):
            yield _Member(name, int(row["size"]), offset, path, row["type"] == "text")
            continue
        fields = sorted(message_class(row["type"]).DESCRIPTOR.fields, key=lambda field: field.number)
        size = int(row["size"]) // len(fields)
        for n, field in enumerate(fields):
            yield _Member(f"{name}.{field.name}".lstrip("."), size, offset + n * size, f"{path}.{field.name}")


@cache
def layout(structure: str) -> StructureLayout:
    """Lay out a structure, with all gaps and the padding at its end."""
    members, form, end = tuple(_members(structure)), "", 0
    for member in members:
        form += f"{member.offset - end}x" + (f"{member.size}s" if member.is_text else _CODES[member.size])
        end = member.offset + member.size
    alignment = max(member.size for member in members if not member.is_text)
    tail = -end % alignment
    return StructureLayout(members, f"{form}{tail}x", end + tail)


def _pack(structure: str, order: str, made: Made = None, **found: Value) -> bytes:
    """Make the bytes of a structure from a message, and from what has been found out."""
    of, values = layout(structure), list[Any]()
    for name, size, _, path, is_text in of.members:
        value: Any = found[name] if path == "=" else reduce(getattr, path.split("."), made)
        values.append(_cut(value, size) if is_text else value & ((1 << 8 * size) - 1))
    return Struct(order + of.form).pack(*values)


def _cut(text: str, size: int) -> bytes:
    """Encode a text so that a NUL fits behind it."""
    data = text.encode()
    return data if len(data) < size else data[: size - 1].decode(errors="ignore").encode()


def _message(kind: int, body: bytes, time_ns: int, order: str) -> bytes:
    """Put the header in front."""
    length, (second, rest_ns) = min(HEADER_BYTES + len(body), LENGTH_MAX), divmod(time_ns, 1_000_000_000)
    header = _pack("header", order, magic=MAGIC, type=kind, version=VERSION, length=length, tv_sec=second,
                   tv_usec=rest_ns // 1000)  # fmt: skip
    return header + body


def binary_messages(
    stats: Made, group: str, *, time_ns: int, portal: str | None = None, order: str = NATIVE
) -> list[tuple[tuple[str | int, ...], bytes]]:
    """Make the messages of a group from a `DROMonMsg`, in the order that readers need, each with what it is about.

    `portal`: statistics of this one alone. `order`: of bytes, `<` or `>`.
    """
    bodies: Mapping[str, Callable[[], Iterable[tuple[_About, bytes]]]] = {
        TOPOLOGY: lambda: _topology(stats.stats, time_ns // 1000, order),
        PORTAL_STATS: lambda: _portal_stats(stats.stats, portal, order),
        MALLOC_INFO: lambda: [((MALLINFO,), _pack("malloc_info", order, stats.stats.local))],
    }
    if group not in bodies:
        raise LocalProtocolError(f"group {group} is not made of statistics")
    return [((group, *about), _message(about[0], body, time_ns, order)) for about, body in bodies[group]()]


def _topology(stats: Made, now_us: int, order: str) -> _Bodies:
    yield (RM_LOCAL,), _pack("local", order, stats.local)
    for portal in sorted(stats.portals, key=lambda portal: portal.portal_index):
        kind = _type_of(portal)
        adjacent = portal.peer.adjacent_gateway_id if kind else portal.endpoint.domain_id
        yield (RM_PORTAL, portal.portal_name), _pack("portal", order, portal, node_or_adjacent_id=adjacent, type=kind)
    for other in stats.other_gateways:
        age_us = max(0, now_us - other.last_activity_sec * _US_PER_S - other.last_activity_usec)
        second, rest_us = divmod(age_us, _US_PER_S)
        yield (RM_OTHERGW, other.gateway_id), _pack(
            "othergw", order, other, last_activity_sec=second, last_activity_usec=rest_us,
            num_neighbors=len(other.other_portals),
        )  # fmt: skip
        for n, one in enumerate(other.other_portals):
            is_dro = one.WhichOneof("PortalType") == "adjacent_gateway_id"
            adjacent = one.adjacent_gateway_id if is_dro else one.adjacent_domain_id
            body = _pack("neighbor", order, one, node_id=adjacent, domain_or_gateway=int(is_dro))
            yield (RM_OTHERGW_NBR, other.gateway_id, n), body


def _portal_stats(stats: Made, name: str | None, order: str) -> _Bodies:
    for portal in sorted(stats.portals, key=lambda portal: portal.portal_index):
        if name in (None, portal.portal_name):
            kind = _type_of(portal)
            record = _pack(_RECORDS[kind], order, portal, udp_peer=int(portal.peer.HasField("udp_receive")))
            head = _pack("record_header", order, portal, portal_type=kind, record_length=len(record))
            yield (PORTSTAT, portal.portal_name), head + record


def _type_of(portal: Made) -> int:
    return int(portal.HasField("peer"))


def gateway_config(text: str, time_ns: int, order: str = NATIVE) -> bytes:
    """Make the message of a daemon's configuration, whole."""
    return _message(GATEWAYCFG, text.encode() + b"\0", time_ns, order)


def portal_config(
    index: int, portal_type: int, name: str, attr_type: str, options: Sequence[tuple[str, str]], time_ns: int,
    order: str = NATIVE,
) -> bytes:  # fmt: skip
    """Make the message of one set of a portal's options."""
    head = _pack("portal_config", order, portal_num=index, portal_type=portal_type, num_options=len(options),
                 portal_name=name, attr_type=attr_type)  # fmt: skip
    texts = b"".join([text.encode() + b"\0" for option in options for text in option])
    return _message(PORTCFG, head + texts, time_ns, order)


def type_of(message: bytes) -> int:
    """Say which type a message has. Raises: DecodeError."""
    return int(_header(message)[1]["type"])


def _header(message: bytes) -> tuple[str, Mapping[str, Value]]:
    """Find out the byte order, and read the header in it."""
    if len(message) < HEADER_BYTES:
        raise DecodeError("binary.header", "the header is cut off")
    magic = int.from_bytes(message[:2], "little")
    if magic not in (MAGIC, ANTIMAGIC):
        raise DecodeError("binary.magic", "no daemon statistics", 0)
    order = "<" if magic == MAGIC else ">"
    return order, _read("header", order, message, 0)


def _read(structure: str, order: str, message: bytes, at: int) -> dict[str, Value]:
    """Read the members of a structure. Raises: DecodeError."""
    of = layout(structure)
    if at + of.size > len(message):
        raise DecodeError(f"binary.{structure}", f"{at + of.size} bytes are needed, {len(message)} are there")
    found = Struct(order + of.form).unpack_from(message, at)
    return {
        member.name: value.partition(b"\0")[0].decode(errors="replace") if member.is_text else value
        for member, value in zip(of.members, found, strict=True)
    }


def decode_binary(message: bytes) -> BinaryMessage:
    """Read a message in the byte order that it has. Raises: DecodeError."""
    order, header = _header(message)
    kind, length = int(header["type"]), int(header["length"])
    if kind not in NAMES:
        raise DecodeError("binary.type", f"type {kind} is not known", 2)
    if length != LENGTH_MAX:
        if len(message) < length:
            raise DecodeError("binary.length", f"{length} bytes are announced, {len(message)} are there", 6)
        message = message[:length]
    values, text, options = dict[str, Value](), "", tuple[tuple[str, str], ...]()
    at = HEADER_BYTES
    if kind != GATEWAYCFG:
        values = _read(_HEADS[kind], order, message, at)
        at += layout(_HEADS[kind]).size
    if kind == PORTSTAT:
        portal_type = int(values["portal_type"])
        if portal_type >= len(_RECORDS):
            raise DecodeError("binary.portal_type", f"{portal_type} is neither endpoint nor peer", HEADER_BYTES)
        if int(values["record_length"]) != layout(_RECORDS[portal_type]).size:
            raise DecodeError("binary.record_length", f"{values['record_length']} is not that of this type")
        values |= _read(_RECORDS[portal_type], order, message, at)
    elif kind == GATEWAYCFG:
        (text,) = _texts(message[at:], 1)
    elif kind == PORTCFG:
        texts = _texts(message[at:], 2 * int(values["num_options"]))
        options = tuple(zip(texts[::2], texts[1::2], strict=True))
    time_us = int(header["tv_sec"]) * _US_PER_S + int(header["tv_usec"])
    version = int(header["version"])
    return BinaryMessage(kind, NAMES[kind], version, length, time_us, values, text, options, order == ">")


def _texts(data: bytes, count: int) -> list[str]:
    """Read texts with a NUL behind each. Raises: DecodeError."""
    *texts, _ = data.split(b"\0")
    if len(texts) < count:
        raise DecodeError("binary.texts", f"{count} texts are announced, {len(texts)} are there")
    return [text.decode(errors="replace") for text in texts[:count]]
