"""The printed fields of LBT-RM and LBT-RU packets and of LBT-TCP streams, for the dissector.

Works on the bytes, so that everything before a fault is still printed. The checks are those of `lbtrm` and `lbtru`;
names and forms those of the standard dissectors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dro.dissect.fields import FieldList
from dro.dissect.lbmc import lbmc_fields
from dro.dissect.spec import Layout, compile_spec
from dro.errors import DecodeError
from dro.wire import lbtrm, lbtru
from dro.wire.transport import OPTION_HEAD, DropReason, TransportDecodeError, read_options

_Parts = dict[int, tuple[Layout, ...]]
"""By packet type: the layouts behind the header."""
_Lists = dict[int, tuple[Layout, int]]
"""By packet type: the entry of its list, and the offset of their number."""


def _layouts(*specs: str) -> tuple[Layout, ...]:
    return tuple(compile_spec(*spec.split(" ", 1)) for spec in specs)


_RM_HEADER: Final = compile_spec("lbtrm.hdr", "_:d1[ver=f0:x2,type=f:x2] next_hdr:x1 ucast_port:d2 session_id:x4")
_RM_PARTS: Final[_Parts] = {
    lbtrm.PacketType.DATA: _layouts(
        "lbtrm.data sqn:x4 trail_sqn:x4 flags_fec_type:x1[ucast_naks=80,rx=20] flags_tgsz:x1 fec_symbol:x2"
    ),
    lbtrm.PacketType.SM: _layouts(
        "lbtrm.sm sm_sqn:x4 lead_sqn:x4 trail_sqn:x4 flags_fec_type:x1[ucast_naks=80] flags_tgsz:x1 reserved:x2"
    ),
    lbtrm.PacketType.NAK: _layouts("lbtrm.nak num_naks:d2 _:d2[format=f:x2]"),
    lbtrm.PacketType.NCF: _layouts("lbtrm.ncf trail_sqn:x4 num_ncfs:d2 reserved:x1 _:d1[reason=f0:x2,format=f:x2]"),
}
_RM_LISTS: Final[_Lists] = {
    lbtrm.PacketType.NAK: (compile_spec("lbtrm.nak.list", "nak:d4"), 8),
    lbtrm.PacketType.NCF: (compile_spec("lbtrm.ncf.list", "ncf:d4"), 12),
}
_RU_HEADER: Final = compile_spec("lbtru.hdr", "_:d1[ver=f0:d,type=f:x2] next_hdr:x1")
_RU_RESERVED: Final = "lbtru.hdr res:x2"
_RU_PARTS: Final[_Parts] = {
    lbtru.PacketType.DATA: _layouts("lbtru.hdr flags:x2[rx=4000]", "lbtru.data sqn:x4 trail:x4"),
    lbtru.PacketType.SM: _layouts("lbtru.hdr flags:x2[syn=8000]", "lbtru.sm sqn:x4 lead:x4 trail:x4"),
    lbtru.PacketType.NAK: _layouts(_RU_RESERVED, "lbtru.nak num:d2 _:d2[format=f:d]"),
    lbtru.PacketType.NCF: _layouts(
        _RU_RESERVED, "lbtru.ncf trail:x4 num:d2 reserved:x1 _:d1[reason=f0:x2,format=f:x2]"
    ),
    lbtru.PacketType.ACK: _layouts(_RU_RESERVED, "lbtru.ack sqn:x4"),
    lbtru.PacketType.CREQ: _layouts("lbtru.hdr request:x2"),
    lbtru.PacketType.RST: _layouts("lbtru.hdr reason:x2"),
}
_RU_LISTS: Final[_Lists] = {
    lbtru.PacketType.NAK: (compile_spec("lbtru.nak.list", "nak:d4"), 4),
    lbtru.PacketType.NCF: (compile_spec("lbtru.ncf.list", "ncf:d4"), 8),
}
_RU_OPTION: Final = "next_hdr:d1 hdr_len:d1 flags:x2[ignore=8000]"
_RU_OPTIONS: Final[dict[int, Layout]] = {
    lbtru.OPTION_SID: compile_spec("lbtru.opt_sid", f"{_RU_OPTION} session_id:x4"),
    lbtru.OPTION_CID: compile_spec("lbtru.opt_cid", f"{_RU_OPTION} client_id:x4"),
}
_RU_OPTION_UNKNOWN: Final = compile_spec("lbtru.opt_unknown", "next_hdr:d1 hdr_len:d1")


def lbtrm_fields(data: bytes, out: FieldList) -> None:
    """Print one LBT-RM packet. Raises: DecodeError at the first fault; what stands before it is printed."""
    at = _head(_RM_HEADER, _RM_PARTS, _RM_LISTS, data, out)
    version_error = _checked(lbtrm.check, data)
    _, at = read_options("lbtrm", data, at, data[1])
    _payload(data, at, version_error, out)


def lbtru_fields(data: bytes, out: FieldList) -> None:
    """Print one LBT-RU packet. Raises: DecodeError at the first fault; what stands before it is printed."""
    at = _head(_RU_HEADER, _RU_PARTS, _RU_LISTS, data, out)
    version_error = _checked(lbtru.check, data)
    _payload(data, _ru_options(data, at, out), version_error, out)


def _head(header: Layout, parts: _Parts, lists: _Lists, data: bytes, out: FieldList) -> int:
    """Print the fixed fields and the list of a packet; returns where its options begin."""
    at = header.print_fields(data, 0, 0, len(data), out)
    kind = data[0] & 0x0F
    for layout in parts.get(kind, ()):
        at = layout.print_fields(data, 0, at, len(data), out)
    if kind in lists:
        entry, count_at = lists[kind]
        for _ in range(_u16(data, count_at)):
            at = entry.print_fields(data, at, at, len(data), out)
    return at


def _payload(data: bytes, at: int, version_error: DecodeError | None, out: FieldList) -> None:
    if data[0] & 0x0F == lbtrm.PacketType.DATA:  # as in LBT-RU
        lbmc_fields(data, out, pos=at, data_len=False)
    if version_error is not None:
        raise version_error


def lbttcp_fields(data: bytes, out: FieldList) -> None:
    """Print a run of whole LBMC messages of one direction of a connection. Raises: DecodeError, also on stray bytes."""
    lbmc_fields(data, out, data_len=False)
    left = _stray(data)
    if left:
        raise DecodeError("lbttcp", f"{left} bytes of a message that is not whole", len(data) - left)


def _checked(check: Callable[[bytes], int], data: bytes) -> DecodeError | None:
    """Return the error of another version, so that the fields can be printed first; any other error is raised."""
    try:
        check(data)
    except TransportDecodeError as e:
        if e.reason is not DropReason.VERSION:
            raise
        return e
    return None


def _ru_options(data: bytes, at: int, out: FieldList) -> int:
    kind = data[1]
    while kind:
        size = data[at + 1] if at + 1 < len(data) else 0
        if size:
            layout = _RU_OPTIONS.get(kind, _RU_OPTION_UNKNOWN)
            layout.print_fields(data, at, at, min(at + size, len(data)), out)
        if size < OPTION_HEAD.size or at + size > len(data):
            raise DecodeError("lbtru.option", f"option of {size} bytes, {max(len(data) - at, 0)} left", at)
        kind = data[at]
        at += size
    return at


def _u16(data: bytes, at: int) -> int:
    return data[at] << 8 | data[at + 1]


def _stray(data: bytes) -> int:
    pos = 0
    while len(data) - pos >= 4:
        pos += _u16(data, pos + 2)
    return len(data) - pos
