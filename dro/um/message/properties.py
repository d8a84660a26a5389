"""Write and read what stands beside the data of a message: properties, channel, hot failover number, marks of batches.

Values of properties are bool, int, float and str. An int is sent as the smallest signed type that holds it, a float as
a double, unless `Byte`, `Short`, `Int`, `Long` or `Float` say which; these are also what is received, and are
ordinary numbers. No state. Source: client library notes, sections 2 and 12; wire notes LBMC, section 8.

Guess: text of keys and strings is UTF-8. The length of the properties is the first element of the chain: the dissector
finds it in no other place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from struct import error, pack
from typing import Final, NamedTuple, TypeAlias

from dro.errors import DecodeError, LocalProtocolError
from dro.um.message.events import (
    FLAG_HF_32,
    FLAG_HF_64,
    FLAG_HF_OPTIONAL,
    Data,
    HFReset,
    RequestMsg,
    Responding,
    UsageError,
    check_data,
)
from dro.wire.lbmc.blocks import AnyBlock
from dro.wire.lbmc.data_blocks import BATCH_END, BATCH_START, AppHdrChain, AppHdrType, ChainElement
from dro.wire.lbmc.failover import (
    CHANNEL_MAX,
    HotFailover,
    channel_element,
    failover_element,
    read_channel,
    read_failover,
)
from dro.wire.lbmc.headers import MessageHeaders, ReturnAddress
from dro.wire.lbmc.properties import Property, PropertyType
from dro.wire.lbmc.properties import decode as decode_block
from dro.wire.lbmc.properties import encode as encode_block

CHANNEL_LAST: Final = CHANNEL_MAX
NAME_MAX_BYTES: Final = 250
PROPERTIES_MAX: Final = 0xFFFF
PROPERTY_BYTES: Final = 200
"""About what one takes in memory, beside its text."""
Value: TypeAlias = bool | int | float | str
Properties: TypeAlias = Mapping[str, Value]


class Byte(int):
    """An integer of 8 bits."""


class Short(int):
    """An integer of 16 bits."""


class Int(int):
    """An integer of 32 bits."""


class Long(int):
    """An integer of 64 bits."""


class Float(float):
    """A number of single precision, as far as it goes: the value is rounded when it is sent."""


_BITS: Final[Mapping[type[int], tuple[int, PropertyType]]] = {
    Byte: (8, PropertyType.BYTE),
    Short: (16, PropertyType.SHORT),
    Int: (32, PropertyType.INT),
    Long: (64, PropertyType.LONG),
}
_INTEGERS: Final = {kind: wrapper for wrapper, (_, kind) in _BITS.items()}


def encode_properties(properties: Properties) -> bytes:
    """Write the block that stands behind the data. Raises: UsageError that names the property."""
    if len(properties) > PROPERTIES_MAX:
        raise UsageError(f"{len(properties)} properties, at most {PROPERTIES_MAX} fit a message")
    return encode_block(_property(name, value) for name, value in properties.items())


def _property(name: str, value: Value) -> Property:
    if not isinstance(name, str):
        raise UsageError(f"property {name!r}: names are text")
    key = name.encode("utf-8", "surrogateescape")
    if not 0 < len(key) <= NAME_MAX_BYTES or b"\0" in key:
        why = f"names have 1 to {NAME_MAX_BYTES} bytes and no NUL"
        raise UsageError(f"property {name[:80]!r} of {len(key)} bytes: {why}")
    match value:
        case bool():
            return Property(key, PropertyType.BOOLEAN, value)
        case int():
            return Property(key, _type_of(name, value), int(value))
        case Float():
            try:
                pack("<f", value)
            except (OverflowError, error) as e:
                raise UsageError(f"property {name[:80]!r}: {value!r} is too large for a Float") from e
            return Property(key, PropertyType.FLOAT, float(value))
        case float():
            return Property(key, PropertyType.DOUBLE, value)
        case str():
            text = value.encode("utf-8", "surrogateescape")
            if b"\0" in text:
                raise UsageError(f"property {name[:80]!r}: a string cannot have a NUL")
            return Property(key, PropertyType.STRING, text)
    raise UsageError(f"property {name[:80]!r} is {type(value).__name__}: use bool, int, float or str")


def _type_of(name: str, value: int) -> PropertyType:
    """Choose the type of an integer: its own, or the smallest. Raises: UsageError."""
    own = _BITS.get(type(value))
    for bits, kind in _BITS.values() if own is None else (own,):
        if -(1 << bits - 1) <= value < 1 << bits - 1:
            return kind
    raise UsageError(f"property {name[:80]!r}: {int(value)} does not fit {64 if own is None else own[0]} bits")


def decode_properties(block: bytes) -> dict[str, Value]:
    """Read a block of either byte order; of several with one name the last counts. Raises: DecodeError."""
    return {_text(found.key): _value(found) for found in decode_block(block)}


def _value(found: Property) -> Value:
    value = found.value
    if isinstance(value, bytes):
        return _text(value)
    wrapper = _INTEGERS.get(found.type)
    if wrapper is not None:
        return wrapper(value)
    return Float(value) if found.type is PropertyType.FLOAT else value


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


class ComposedMessage(NamedTuple):
    """A message as a source sends it: its data, with the properties behind, and the blocks before."""

    data: bytes
    blocks: tuple[AnyBlock, ...]


def compose(
    data: bytes, properties: Properties | None = None, channel: int | None = None, failover: HotFailover | None = None
) -> ComposedMessage:
    """Put together what is said beside the data. Raises: UsageError for what cannot be said."""
    elements: list[ChainElement] = []
    check_data(data)
    for what, number in ("channel", channel), ("hot failover number", failover and failover.number):
        if not isinstance(number, int | None):
            raise UsageError(f"{what} {number!r} is no whole number")
    if properties:
        if not isinstance(properties, Mapping):
            raise UsageError(f"properties have to be a mapping of names to values, not {type(properties).__name__}")
        block = encode_properties(properties)
        elements.append(ChainElement(AppHdrType.PROPERTIES_LENGTH, len(block).to_bytes(4, "big")))
        data += block
    try:
        if channel is not None:
            elements.append(channel_element(channel))
        if failover is not None:
            elements.append(failover_element(failover))
    except LocalProtocolError as e:
        raise UsageError(str(e)) from e
    return ComposedMessage(data, (AppHdrChain(tuple(elements)),) if elements else ())


def properties_size(properties: Properties | None) -> int:
    """Count the bytes that they take in memory, about."""
    if properties is None:
        return 0
    return sum(PROPERTY_BYTES + len(name) + (len(v) if isinstance(v, str) else 0) for name, v in properties.items())


def batch_marks(start: bool, end: bool) -> int:
    return (BATCH_START if start else 0) | (BATCH_END if end else 0)


class MessageContent(NamedTuple):
    """Holds what a received message says. `faults`: headers that cannot be read, as if they were not there."""

    data: bytes
    properties: Properties | None = None
    channel: int | None = None
    failover: HotFailover | None = None
    flags: int = 0  # of hot failover
    faults: tuple[DecodeError, ...] = ()


def read_content(payload: bytes, headers: MessageHeaders | None) -> MessageContent:
    """Take a whole message apart. The data ends where the properties begin, even if these cannot be read."""
    if headers is None or not headers.elements:
        return MessageContent(payload)
    faults: list[DecodeError] = []
    properties: Properties | None = None
    length = headers.properties_length
    if length > len(payload):
        faults.append(DecodeError("lbmc.properties", f"{length} bytes announced, the message has {len(payload)}"))
    elif length:
        cut = len(payload) - length
        try:
            properties = decode_properties(payload[cut:])
        except DecodeError as e:
            faults.append(e)
        payload = payload[:cut]
    channel: int | None = None
    failover: HotFailover | None = None
    try:
        if (found := headers.element(AppHdrType.CHANNEL_NUMBER)) is not None:
            channel = read_channel(found[0])
    except DecodeError as e:
        faults.append(e)
    try:
        if (found := headers.element(AppHdrType.HOT_FAILOVER_SQN)) is not None:
            failover = read_failover(found[0])
    except DecodeError as e:
        faults.append(e)
    return MessageContent(payload, properties, channel, failover, _flags(failover), tuple(faults))


def make_event(
    topic: str,
    source: str,
    sqn: int,
    payload: bytes,
    flags: int,
    otid: bytes,
    headers: MessageHeaders,
    make_response: Callable[[ReturnAddress], Responding],
    on_fault: Callable[[str, str, DecodeError], object],
) -> Data | HFReset:
    """Make the event of a whole message with headers; `on_fault` is told, by topic and source, what cannot be read."""
    content = read_content(payload, headers)
    for fault in content.faults:
        on_fault(topic, source, fault)
    failover = content.failover
    if failover is not None and failover.number is None:
        return HFReset(topic, source, failover.generation)
    made = Data(
        topic, source, sqn, content.data, flags | content.flags, otid, content.properties, content.channel, failover
    )
    if headers.returns_to is None:
        return made
    fields = {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}
    return RequestMsg(**fields, response=make_response(headers.returns_to))


def _flags(failover: HotFailover | None) -> int:
    if failover is None or failover.number is None:
        return 0
    return (FLAG_HF_64 if failover.bits == 64 else FLAG_HF_32) | (FLAG_HF_OPTIONAL if failover.is_optional else 0)
