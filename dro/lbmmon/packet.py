"""Encodes and decodes packets of statistics: header, attributes of who sent them, csv text or protobuf message.

Source: UM operations guide, monitoring. Guess: packets of protobuf have the same table of attributes as csv; what is no
such table stands before a message that names its sender. A length of 0 means that the data are what follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address
from struct import Struct
from typing import Final

from dro.errors import DecodeError, LocalProtocolError
from dro.lbmmon import csv_form, pb_form
from dro.lbmmon.fields import CONTROL, CSV, DRO, KINDS, PB, RECEIVER_TOPIC, SRS, STORE, UMDS, WILDCARD_RECEIVER
from dro.lbmmon.records import DroStats, LibraryStats, Message, MonitorSender, Unread

SIGNATURE: Final = 0x1B33041B
HEADER: Final = Struct("!IHHHH")
_PAIR: Final = Struct("!HH")
NAMES: Final = {CSV: "csv", PB: "pb"}
VERSIONS: Final = {CSV: 5, PB: 1}
APPLICATION_MAX: Final = 255
"""Bytes of an application id."""
_HOST, _TIME, _APPLICATION, _FORMAT, _OBJECT, _PID, _MIM, _INSTANCE, _DOMAIN = range(9)
_WIDTHS: Final = {_TIME: 4, _OBJECT: 8, _PID: 8, _MIM: 4, _DOMAIN: 4}
_KINDS: Final = {name: number for number, name in KINDS.items()}
_OTHERS: Final = {STORE: "statistics of a store", UMDS: "statistics of UMDS", CONTROL: "a control message",
                  SRS: "statistics of an SRS"}  # fmt: skip


def encode(stats: LibraryStats | DroStats, module: int, separator: str = ",") -> bytes:
    """Make the packet, in the module `CSV` or `PB`; csv has what the library counts alone."""
    attributes = _table(module, stats.sender)
    if isinstance(stats, DroStats):
        if module != PB:
            raise LocalProtocolError("csv has no form for statistics of a DRO")
        return framed(DRO, attributes, pb_form.dro_bytes(stats))
    data = pb_form.library_bytes(stats) if module == PB else csv_form.library_text(stats, separator).encode()
    return framed(_KINDS[stats.kind], attributes, data)


def framed(kind: int, attributes: bytes, data: bytes) -> bytes:
    """Put the header in front."""
    length = len(data) if len(data) <= 0xFFFF else 0
    return HEADER.pack(SIGNATURE, kind, len(attributes), length, 0) + attributes + data


def attribute_table(values: dict[int, bytes]) -> bytes:
    """Make a block of attributes, without those that are empty."""
    entries = [_PAIR.pack(kind, len(value)) + value for kind, value in values.items() if value]
    block = b"".join(entries)
    return _PAIR.pack(len(entries), _PAIR.size + len(block)) + block


def format_attribute(module: int) -> dict[int, bytes]:
    return {_FORMAT: bytes((module, VERSIONS[module]))}


def _table(module: int, sender: MonitorSender) -> bytes:
    numbers = {_TIME: sender.time_s, _OBJECT: sender.object_id, _PID: sender.pid, _MIM: sender.is_mim,
               _DOMAIN: sender.domain_id}  # fmt: skip
    values = {kind: int(n).to_bytes(8, "big")[8 - _WIDTHS[kind] :] for kind, n in numbers.items()}
    values[_HOST] = IPv4Address(sender.host or 0).packed
    values[_APPLICATION] = sender.application.encode()[:APPLICATION_MAX]
    values[_INSTANCE] = sender.context_instance
    return attribute_table(dict(sorted((values | format_attribute(module)).items())))


def split(packet: bytes) -> tuple[int, bytes, bytes]:
    """Take a packet apart: its type, block of attributes, and data. Raises: DecodeError."""
    if len(packet) < HEADER.size:
        raise DecodeError("lbmmon", "the header is cut off")
    signature, kind, attributes, length, _ = HEADER.unpack_from(packet)
    if signature != SIGNATURE:
        raise DecodeError("lbmmon.signature", "no packet of lbmmon", 0)
    begin = HEADER.size + attributes
    end = begin + length if length else max(begin, len(packet))
    if end > len(packet):
        raise DecodeError("lbmmon", "the packet is cut off")
    return kind, packet[HEADER.size : begin], packet[begin:end]


def _attributes(block: bytes) -> dict[int, bytes]:
    """Read the values by type; those that are not known are kept as well."""
    if not block:
        return {}
    if len(block) < _PAIR.size:
        raise DecodeError("lbmmon.attributes", "the block is cut off")
    count, _ = _PAIR.unpack_from(block)
    at, found = _PAIR.size, dict[int, bytes]()
    for _ in range(count):
        kind, length = _PAIR.unpack_from(block, at) if at + _PAIR.size <= len(block) else (0, len(block))
        at += _PAIR.size + length
        if at > len(block):
            raise DecodeError("lbmmon.attributes", "an attribute is cut off")
        found[kind] = block[at - length : at]
    return found


def _module(attributes: dict[int, bytes]) -> int:
    """Tell which format the data have. Raises: DecodeError."""
    told = attributes.get(_FORMAT, b"")
    module = told[0] if len(told) == 2 else 0
    if module not in (CSV, PB):
        raise DecodeError("lbmmon.format", f"format module {module} is not known: pb and csv are read")
    return module


def _sender(told: dict[int, bytes]) -> MonitorSender:
    numbers = {kind: told.get(kind, b"") for kind in _WIDTHS}
    if wide := [kind for kind, value in numbers.items() if len(value) > 8]:
        raise DecodeError("lbmmon.attributes", f"attribute {wide[0]} has more than 8 bytes")
    of = {kind: int.from_bytes(value, "big") for kind, value in numbers.items()}
    host = told.get(_HOST, b"")
    return MonitorSender(
        of[_TIME], told.get(_APPLICATION, b"").partition(b"\0")[0].decode(errors="replace"),
        str(IPv4Address(host)) if len(host) == 4 else "", of[_PID], of[_OBJECT],
        bool(of[_MIM]), told.get(_INSTANCE, b""), of[_DOMAIN],
    )  # fmt: skip


def decode(packet: bytes, separator: str = "", only: int = 0) -> Iterator[Message]:
    """Read one packet; the separator of csv is found out unless it is given. Raises: DecodeError.

    `only`: the module `CSV` or `PB`, if others are refused.
    """
    kind, block, data = split(packet)
    if kind in _OTHERS:
        return iter([Unread(f"{_OTHERS[kind]} (packet type {kind})")])
    if kind not in (*KINDS, RECEIVER_TOPIC, WILDCARD_RECEIVER, DRO):
        raise DecodeError("lbmmon.type", f"packet type {kind} is not known", 4)
    name = "DROMonMsg" if kind == DRO else "UMSMonMsg"
    try:
        attributes = _attributes(block)
        sender, module = _sender(attributes), _module(attributes)
    except DecodeError:
        if only == CSV or (made := pb_form.with_attributes(name, data)) is None:
            raise
        return pb_form.messages_of(made)
    if only not in (0, module):
        raise DecodeError("lbmmon.format", f"it is {NAMES[module]}, not {NAMES[only]}")
    if module == PB:
        return pb_form.messages_of(pb_form.parsed(name, data), sender)
    if kind == DRO:
        raise DecodeError("lbmmon.type", "csv has no form for statistics of a DRO", 4)
    return iter([csv_form.message(kind, data.decode(errors="replace"), sender, separator)])
