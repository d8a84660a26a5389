"""The printed fields of LBMC messages, for the dissector.

Works on the bytes and not on `lbmc` records, so that everything before a fault is still printed, and so that blocks
which the daemon only forwards are shown field by field as well. Names and forms are those of the standard dissectors
(`lbmc_tables`).

Where those dissectors accept bytes that the codec refuses (a length past the end, another version), the fields are
printed in their form, followed by the error. So is a block of an unknown code whose ignore bit is clear: a receiver
must not use the message, so the walk is completed and the error reported.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from dro.dissect import lbmc_tables as tables
from dro.dissect.fields import FieldList, colon_hex, hexint
from dro.dissect.spec import Layout, printed_text
from dro.errors import DecodeError
from dro.wire.lbmc import properties
from dro.wire.lbmc.block import IGNORE8
from dro.wire.lbmc.codes import (
    BLOCK_MIN,
    END_DATA,
    END_NONE,
    FULL_HEADER_TYPES,
    MESSAGE_MAX,
    MINIMAL_HEADER_SIZE,
    BlockType,
)
from dro.wire.lbmc.message import header_size

_NUMBERS_NEED: Final = 8  # header and topic index: the standard dissector looks at both before it prints
_CHAIN_PROPERTIES_TYPE: Final = 6
_EXTOPT_CONFIG: Final = 0x0100
_EXTOPT_SELECTOR: Final = 0x0101
_EXTOPT_MORE: Final = 0x20
_EXTOPT_HEAD: Final = 8


def lbmc_fields(data: bytes, out: FieldList, *, pos: int = 0, data_len: bool = True) -> None:
    """Print the messages laid end to end in `data` from `pos` on; 1 to 3 stray bytes at the end are ignored.

    `data_len`: whether the length of the user data is printed beside it. Raises: DecodeError at the first fault.
    """
    unknown: DecodeError | None = None
    while len(data) - pos >= MINIMAL_HEADER_SIZE:
        message = _Dissection(data, pos, out, data_len)
        pos = message.message()
        unknown = unknown or message.unknown
    if unknown is not None:
        raise unknown


class _Dissection:
    """One message on its way to `out`."""

    def __init__(self, data: bytes, pos: int, out: FieldList, data_len: bool) -> None:
        self.data = data
        self.pos = pos
        self.out = out
        self.data_len = data_len
        self.end = len(data)
        self.has_frag = False
        self.properties_length = 0
        self.option = bytearray()  # pieces of an extended option so far
        self.option_open = False
        self.unknown: DecodeError | None = None  # the first block that a receiver must know and we do not

    def message(self) -> int:
        """Print the message; returns the offset behind it."""
        data, pos = self.data, self.pos
        kind = data[pos] & 0x0F
        msglen = data[pos + 2] << 8 | data[pos + 3]
        full = kind in FULL_HEADER_TYPES
        self.end = min(pos + msglen, len(data))
        if self.end - pos < (_NUMBERS_NEED if full else MINIMAL_HEADER_SIZE):
            raise DecodeError("lbmc.msglen", f"{msglen} bytes, {len(data) - pos} left: less than a header", pos)
        at = tables.MESSAGE.print_fields(data, pos, pos, self.end, self.out)
        if header_size(kind) > MESSAGE_MAX:
            raise DecodeError("lbmc.type", f"{kind:#x} is not known", pos)
        if full:
            at = tables.MESSAGE_NUMBERS.print_fields(data, pos, at, self.end, self.out)
        at, code = self.blocks(at, data[pos + 1])
        if code == END_DATA:
            self.user_data(at)
        if pos + msglen > len(data):
            raise DecodeError("lbmc.msglen", f"{msglen} bytes, {len(data) - pos} left", pos)
        if data[pos] >> 4:
            raise DecodeError("lbmc.version", f"{data[pos] >> 4} is not known", pos)
        return pos + msglen

    def blocks(self, at: int, code: int) -> tuple[int, int]:
        """Print the chain that begins with `code` at `at`; returns where it ends and the code that ended it."""
        data = self.data
        while code not in (END_DATA, END_NONE) and self.end - at >= BLOCK_MIN:
            size = data[at + 1]
            if size == 0:
                raise DecodeError(f"lbmc.block.{code:#04x}", "length 0", at)
            self.block(code, at, min(at + size, self.end))
            if size < BLOCK_MIN or at + size > self.end:
                raise DecodeError(f"lbmc.block.{code:#04x}", f"{size} bytes, {self.end - at} left in the message", at)
            code = data[at]
            at += size
        return at, code

    def block(self, code: int, at: int, end: int) -> None:
        if code == BlockType.AUTHENTICATION:
            self.authentication(at, end)
            return
        layout = tables.BLOCKS.get(code, tables.UNKNOWN)
        if layout is tables.UNKNOWN and self.unknown is None and not (end - at > 2 and self.data[at + 2] & IGNORE8):
            self.unknown = DecodeError(f"lbmc.block.{code:#04x}", "is not known, and its ignore bit is clear", at)
        if code == BlockType.UME_PREG_RESP and end - at > 2 and self.data[at + 2] & tables.PREG_RESP_ERROR_BIT:
            layout = tables.PREG_RESP_ERROR
        behind = layout.print_fields(self.data, at, at, end, self.out)
        match code:
            case BlockType.FRAG:
                self.has_frag = True
            case BlockType.APPHDR if behind == end:
                raise DecodeError("lbmc.apphdr.data", "is empty", at)
            case BlockType.APPHDR_CHAIN:
                self.chain_elements(self.data[at + 3], behind, end)
            case BlockType.TSNI:
                self.repeat(tables.TSNI_RECORD, (end - behind) // 8, behind, end)
            case BlockType.TOPIC_MD_INTEREST:
                self.repeat(tables.TOPIC_MD_DOMAIN, self.u16(at + 4), behind, end)
            case BlockType.PATTERN_MD_INTEREST:
                self.repeat(tables.PATTERN_MD_DOMAIN, self.u16(at + 4), behind, end)
            case BlockType.CTXINFO if self.data[at + 2] & 0x08:
                tables.CTXINFO_NAME.print_fields(self.data, at, behind, end, self.out)
            case BlockType.EXTOPT:
                self.extended_option(at, end)
            case _ if code in tables.VARIANTS:
                self.variant(code, at, behind, end)

    def repeat(self, layout: Layout, count: int, at: int, end: int) -> int:
        """Print `count` records; the end of the block stops it, whatever the count says."""
        for _ in range(count):
            at = layout.print_fields(self.data, at, at, end, self.out)
        return at

    def u16(self, at: int) -> int:
        return self.data[at] << 8 | self.data[at + 1]

    def text(self, name: str, at: int, length: int, end: int) -> int:
        raw = self.take(name, at, length, end)
        self.out.add(name, printed_text(raw))
        return at + length

    def take(self, name: str, at: int, length: int, end: int) -> bytes:
        if length > end - at:
            raise DecodeError(name, f"needs {length} bytes, {end - at} left", at)
        return self.data[at : at + length]

    def chain_elements(self, kind: int, at: int, end: int) -> None:
        while at < end:
            is_properties = kind == _CHAIN_PROPERTIES_TYPE
            layout = tables.CHAIN_PROPERTIES if is_properties else tables.CHAIN_ELEMENT
            length = self.data[at + 1] if at + 1 < end else 0
            stop = at + length
            behind = layout.print_fields(self.data, at, at, min(max(stop, at + 2), end), self.out)
            if stop > end or (behind == stop and not is_properties):
                raise DecodeError("lbmc.apphdr_chain.element", f"{length} bytes, {end - at} left", at)
            if is_properties:
                self.properties_length += int.from_bytes(self.data[at + 4 : at + 8], "big")
            kind = self.data[at]
            at = stop

    def authentication(self, at: int, end: int) -> None:
        data = self.data
        operation = data[at + 3] if end - at > 3 else 0
        layout = tables.AUTH.get(operation, tables.AUTH_UNKNOWN)
        behind = layout.print_fields(data, at, at, end, self.out)
        if operation not in tables.AUTH:
            raise DecodeError("lbmc.auth_unknown.opid", f"{operation} is not known", at)
        prefix = tables.AUTH_NAMES[operation]
        for i, part in enumerate(tables.AUTH_PARTS[operation]):
            name, length = f"{prefix}.{part}", data[at + 4 + i]
            raw = self.take(name, behind, length, end)
            self.out.add(name, printed_text(raw) if part == "user_name" else colon_hex(raw))
            behind += length

    def variant(self, code: int, at: int, behind: int, end: int) -> None:
        """Print what the type byte of a queuing block selects; an unknown type has no further fields."""
        data = self.data
        layouts = tables.VARIANTS[code]
        kind = data[at + 3]
        if code == BlockType.UMQ_ACK:
            behind = self.repeat(tables.UMQ_ACK_ID, data[at + 2] & 0x0F, behind, end)
        elif code == BlockType.UMQ_RXREQ:
            layout = tables.UMQ_RXREQ_REGID if data[at + 2] & 0x40 else tables.UMQ_RXREQ_ADDRESS
            behind = layout.print_fields(data, at, behind, end, self.out)
        if kind not in layouts:
            return
        behind = layouts[kind].print_fields(data, at, behind, end, self.out)
        if (code, kind) in tables.INDEXED:
            name, length_at = tables.INDEXED[code, kind]
            raw = self.take(f"{name}.index", behind, data[at + length_at], end)
            if data[at + tables.INDEX_NUMERIC_AT] & 1:
                self.out.add(f"{name}.numeric_index", str(int.from_bytes(raw, "big")))
            else:
                self.out.add(f"{name}.string_index", printed_text(raw))
        elif (code, kind) == (BlockType.UMQ_CMD, 2):
            self.repeat(tables.UMQ_CMD_ID, data[at + 30], behind, end)
        elif (code, kind) == (BlockType.UMQ_CMD_RESP, 1):
            self.queue_topics(int.from_bytes(data[at + 20 : at + 24], "big"), behind, end)

    def queue_topics(self, count: int, at: int, end: int) -> None:
        for _ in range(count):
            behind = tables.UMQ_TOPIC.print_fields(self.data, at, at, end, self.out)
            appsets, topic_length = self.u16(at + 4), self.data[at + 6]
            behind = self.text(f"{tables.UMQ_TOPIC_NAME}.topic", behind, topic_length, end)
            for _ in range(appsets):
                at = behind
                behind = tables.UMQ_APPSET.print_fields(self.data, at, at, end, self.out)
                behind = self.text(f"{tables.UMQ_APPSET_NAME}.name", behind, self.data[at + 4], end)
                behind = self.repeat(tables.UMQ_RECEIVER_TYPE, self.u16(at), behind, end)
            at = behind

    def extended_option(self, at: int, end: int) -> None:
        """Print one block of an extended option; a fragmented one is printed whole when its last piece is there."""
        body = self.data[at + _EXTOPT_HEAD : end]
        subtype, offset = self.u16(at + 4), self.u16(at + 6)
        more = bool(self.data[at + 2] & _EXTOPT_MORE)
        if not more and not self.option_open:
            self.option_value("lbmc.extopt", subtype, body)
            return
        self.out.add("lbmc.extopt.data", colon_hex(body))
        if offset != len(self.option):
            raise DecodeError("lbmc.extopt.fragment_offset", f"{offset}, but {len(self.option)} bytes came before", at)
        self.option += body
        self.option_open = more
        if more:
            return
        self.out.add("lbmc.extopt.reassembled_data.subtype", str(subtype))
        self.out.add("lbmc.extopt.reassembled_data.length", str(len(self.option)))
        self.option_value("lbmc.extopt.reassembled_data", subtype, bytes(self.option))
        self.option.clear()

    def option_value(self, prefix: str, subtype: int, value: bytes) -> None:
        if subtype == _EXTOPT_CONFIG:
            self.config_options(value)
        elif subtype == _EXTOPT_SELECTOR:
            self.out.add(f"{prefix}.msgsel", printed_text(value))
        else:
            self.out.add(f"{prefix}.data", colon_hex(value))

    def config_options(self, value: bytes) -> None:
        at = 0
        while at < len(value):
            name_end = value.find(0, at + 2)
            value_end = value.find(0, name_end + 1) if name_end >= 0 else -1
            if value_end < 0:
                raise DecodeError("lbmc.extopt.cfgopt", "a string without its NUL")
            scope = str(value[at])
            self.out.add("lbmc.extopt.cfgopt.scope", scope)
            self.out.add("lbmc.extopt.cfgopt.parent", scope)  # the standard dissector prints the scope here too
            self.out.add("lbmc.extopt.cfgopt.name", printed_text(value[at + 2 : name_end]))
            self.out.add("lbmc.extopt.cfgopt.value", printed_text(value[name_end + 1 : value_end]))
            at = value_end + 1

    def user_data(self, at: int) -> None:
        """Print the user data and, unless the message is a fragment, the message properties behind it."""
        length = 0 if self.has_frag else self.properties_length
        if length > self.end - at:
            raise DecodeError("lbmc.properties", f"{length} bytes announced, {self.end - at} bytes of payload", at)
        cut = self.end - length
        if cut > at:
            self.out.add("data.data", colon_hex(self.data[at:cut]))
            if self.data_len:
                self.out.add("data.len", str(cut - at))
        if length:
            _message_properties(self.data[cut : self.end], self.out)


_VALUE_NAMES: Final[dict[int, str]] = {
    properties.PropertyType.BOOLEAN: "boolean_value",
    properties.PropertyType.BYTE: "byte_value",
    properties.PropertyType.SHORT: "short_value",
    properties.PropertyType.INT: "int_value",
    properties.PropertyType.LONG: "long_value",
    properties.PropertyType.FLOAT: "float_value",
    properties.PropertyType.DOUBLE: "double_value",
}
_VALUE_SIZES: Final[dict[int, int]] = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 4, 7: 8}


def _message_properties(block: bytes, out: FieldList) -> None:
    """Print a properties block. Raises: DecodeError; an unknown value type is printed as 4 bytes, then refused."""
    prefix = "lbmc.lbm_msg_properties"
    if len(block) >= 4:  # the magic is printed as a little-endian number whatever the order
        out.add(f"{prefix}.data.magic", hexint(int.from_bytes(block[:4], "little"), 8))
    if len(block) >= properties.HEAD_SIZE:
        order = properties.MAGICS.get(block[:4], "little")
        out.add(f"{prefix}.data.num_fields", str(int.from_bytes(block[4:6], order)))
        tables.PROPERTIES_TAIL.print_fields(block, 0, 0, len(block), out)
    order, count = properties.read_head(block)
    layout = Struct(">IIII" if order == "big" else "<IIII")
    room = len(block)
    unknown: DecodeError | None = None
    for i in range(count):
        key_at, value_at, digest, kind = layout.unpack_from(block, properties.HEAD_SIZE + i * properties.FIELD_SIZE)
        for name, number in (("key_offset", key_at), ("value_offset", value_at), ("hash", digest), ("type", kind)):
            out.add(f"{prefix}.hdr.{name}", str(number))
        key = properties.read_text(block, key_at)
        room -= len(key)
        if room >= 0:
            out.add(f"{prefix}.hdr.key", printed_text(key))
        if kind == properties.PropertyType.STRING:
            text = properties.read_text(block, value_at)
            room -= len(text)
            if room >= 0:
                out.add(f"{prefix}.hdr.string_value", printed_text(text))
        else:
            raw = block[value_at : value_at + _VALUE_SIZES.get(kind, 4)]
            if len(raw) < _VALUE_SIZES.get(kind, 4):
                raise DecodeError("lbmc.properties.value", f"needs {_VALUE_SIZES.get(kind, 4)} bytes", len(block))
            if kind not in _VALUE_NAMES:
                unknown = unknown or DecodeError("lbmc.properties.type", f"{kind} is not known", value_at)
                out.add(f"{prefix}.hdr.unknown_value", colon_hex(raw))
            else:
                out.add(f"{prefix}.hdr.{_VALUE_NAMES[kind]}", _number_text(kind, raw, order))
        if room < 0:
            raise DecodeError("lbmc.properties", "keys and values overlap", value_at)
    if unknown is not None:
        raise unknown


def _number_text(kind: int, raw: bytes, order: properties.ByteOrder) -> str:
    sign = ">" if order == "big" else "<"
    if kind == properties.PropertyType.FLOAT:
        return f"{Struct(sign + 'f').unpack(raw)[0]:.6g}"
    if kind == properties.PropertyType.DOUBLE:
        return f"{Struct(sign + 'd').unpack(raw)[0]:.15g}"
    return str(int.from_bytes(raw, order))  # unsigned, as the standard dissector prints them
