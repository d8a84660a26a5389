"""Message properties: the typed name-value pairs at the very end of a message, after the user data.

The APPHDR_CHAIN block of the message announces their length (`AppHdrChain`). They belong to the
whole message: of a fragmented one only the reassembled bytes hold them. The block is written in the byte order of
its writer; both orders are read. No state.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct, error
from typing import Final, Literal

from dro.errors import DecodeError, LocalProtocolError
from dro.wire.lbmc.data_blocks import AppHdrChain
from dro.wire.lbmc.message import Message

ByteOrder = Literal["big", "little"]
PropertyValue = bool | int | float | bytes

MAGIC: Final = 0xABACDABA
HEAD_SIZE: Final = 8
FIELD_SIZE: Final = 16
MAGICS: Final[dict[bytes, ByteOrder]] = {MAGIC.to_bytes(4, "big"): "big", MAGIC.to_bytes(4, "little"): "little"}


class PropertyType(IntEnum):
    """Type of a value; strings and keys are bytes without their NUL, integers are signed."""

    BOOLEAN = 1
    BYTE = 2
    SHORT = 3
    INT = 4
    LONG = 5
    FLOAT = 6
    DOUBLE = 7
    STRING = 8


VALUE_FORMATS: Final[dict[int, str]] = {
    PropertyType.BOOLEAN: "?",
    PropertyType.BYTE: "b",
    PropertyType.SHORT: "h",
    PropertyType.INT: "i",
    PropertyType.LONG: "q",
    PropertyType.FLOAT: "f",
    PropertyType.DOUBLE: "d",
}
_SIGN: Final[dict[ByteOrder, str]] = {"big": ">", "little": "<"}


@dataclass(frozen=True, slots=True)
class Property:
    """One property. `hash` is written as 0 and never used: its function is not known (Guess)."""

    key: bytes
    type: PropertyType
    value: PropertyValue
    hash: int = 0


def split(message: Message) -> tuple[bytes, bytes]:
    """User data and properties block of a message that is not a fragment. Raises: DecodeError on a length too large."""
    chain = message.get(AppHdrChain)
    length = 0 if chain is None else chain.properties_length
    if length > len(message.payload):
        raise DecodeError("lbmc.properties", f"{length} bytes announced, {len(message.payload)} bytes of payload")
    cut = len(message.payload) - length
    return message.payload[:cut], message.payload[cut:]


def decode(data: bytes) -> tuple[Property, ...]:
    """The properties in the order of the block; `data` is the block alone.

    Raises: DecodeError. Guess: keys and values may lie in any order but do not share bytes, so together they are no
    longer than the block; more is refused, which bounds the memory by the length of the message.
    """
    order, count = read_head(data)
    layout = Struct(f"{_SIGN[order]}IIII")
    room = len(data)
    properties: list[Property] = []
    for i in range(count):
        at = HEAD_SIZE + i * FIELD_SIZE
        key_at, value_at, digest, kind = layout.unpack_from(data, at)
        key = read_text(data, key_at)
        value, size = _read_value(data, value_at, kind, order)
        room -= len(key) + size
        if room < 0:
            raise DecodeError("lbmc.properties", "keys and values overlap", at)
        properties.append(Property(key, PropertyType(kind), value, digest))
    return tuple(properties)


def encode(properties: Iterable[Property], order: ByteOrder = "little") -> bytes:
    """The block: heads first, then each key with its value. Raises: LocalProtocolError on a value out of range."""
    items = tuple(properties)
    sign = _SIGN[order]
    layout = Struct(f"{sign}IIII")
    heads = bytearray()
    tail = bytearray()
    start = HEAD_SIZE + len(items) * FIELD_SIZE
    try:
        for item in items:
            if b"\0" in item.key:
                raise LocalProtocolError(f"property key {item.key!r} contains a NUL")
            key_at = start + len(tail)
            tail += item.key + b"\0"
            heads += layout.pack(key_at, start + len(tail), item.hash, item.type)
            tail += _write_value(item, sign)
        head = Struct(f"{sign}IHBB").pack(MAGIC, len(items), 0, 0)
    except (error, OverflowError) as e:
        raise LocalProtocolError(f"message properties: {e}") from e
    return head + bytes(heads) + bytes(tail)


def read_head(data: bytes) -> tuple[ByteOrder, int]:
    """Byte order and number of properties. Raises: DecodeError when it is no properties block or too short."""
    if len(data) < HEAD_SIZE:
        raise DecodeError("lbmc.properties", f"needs {HEAD_SIZE} bytes, has {len(data)}", len(data))
    order = MAGICS.get(data[:4])
    if order is None:
        raise DecodeError("lbmc.properties.magic", data[:4].hex(), 0)
    if data[6]:
        raise DecodeError("lbmc.properties.version", f"version {data[6] >> 4}, type {data[6] & 15} is not known", 6)
    count = int.from_bytes(data[4:6], order)
    if HEAD_SIZE + count * FIELD_SIZE > len(data):
        raise DecodeError("lbmc.properties.num_fields", f"{count} do not fit {len(data)} bytes", 4)
    return order, count


def read_text(data: bytes, at: int) -> bytes:
    """The bytes from `at` up to their NUL. Raises: DecodeError when there is none."""
    stop = data.find(0, at)
    if stop < 0:
        raise DecodeError("lbmc.properties", "a string without its NUL", min(at, len(data)))
    return data[at:stop]


def _read_value(data: bytes, at: int, kind: int, order: ByteOrder) -> tuple[PropertyValue, int]:
    if kind == PropertyType.STRING:
        text = read_text(data, at)
        return text, len(text)
    if kind not in VALUE_FORMATS:
        raise DecodeError("lbmc.properties.type", f"{kind} is not known", at)
    layout = Struct(_SIGN[order] + VALUE_FORMATS[kind])
    if at + layout.size > len(data):
        raise DecodeError("lbmc.properties.value", f"needs {layout.size} bytes", min(at, len(data)))
    value: PropertyValue = layout.unpack_from(data, at)[0]
    return value, layout.size


def _write_value(item: Property, sign: str) -> bytes:
    if item.type == PropertyType.STRING:
        if not isinstance(item.value, bytes) or b"\0" in item.value:
            raise LocalProtocolError(f"property {item.key!r}: {item.value!r} is no string without NUL")
        return item.value + b"\0"
    return Struct(sign + VALUE_FORMATS[item.type]).pack(item.value)
