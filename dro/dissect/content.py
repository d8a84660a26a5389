"""Where the LBMC messages of a captured packet are, and which source they belong to.

Used for every data packet by counting and by topic following. Works on offsets and builds one small tuple per packet;
for a packet that is not plain it returns None, and the dissector is used instead.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from dro.dissect.capture import UmPacket
from dro.dissect.follow import LBMC, LBTRM, LBTRU, LBTTCP, Directory, SessionKey
from dro.wire import lbtrm, lbtru

_RM: Final = Struct("!BBHIIIB")  # to the flags byte
_RU: Final = lbtru.DATA_LAYOUT
_RM_DATA: Final = lbtrm.DATA_HEADER
_RU_DATA: Final = lbtru.DATA_LAYOUT.size
_RM_RETRANSMISSION: Final = lbtrm.FLAG_RETRANSMISSION
_RU_RETRANSMISSION: Final = 0x4000
_OPTION_HEAD: Final = 4

_RU_FROM_CLIENT: Final = frozenset({lbtru.PacketType.NAK, lbtru.PacketType.ACK, lbtru.PacketType.CREQ})


class DataHead(NamedTuple):
    """The transport part of a packet that carries LBMC."""

    session: SessionKey | None  # None: not a transport session, such as a request connection
    sqn: int  # of the datagram; -1 on TCP
    is_retransmission: bool
    start: int  # offset of the first LBMC message in the packet's data


def data_head(packet: UmPacket, directory: Directory) -> DataHead | None:
    """None when the packet carries no LBMC, or nothing that can be found."""
    data = packet.data
    proto = packet.proto
    if proto == LBTRM:
        if len(data) < _RM_DATA or data[0]:
            return None
        _, option, port, session_id, sqn, _, flags = _RM.unpack_from(data)
        start = _RM_DATA
        if option:
            start, _ = skip_options(data, _RM_DATA, option)
            if start < 0:
                return None
        return DataHead((LBTRM, packet.src, port, session_id), sqn, bool(flags & _RM_RETRANSMISSION), start)
    if proto == LBTRU:
        if len(data) < _RU_DATA or data[0]:
            return None
        _, option, flags, sqn, _ = _RU.unpack_from(data)
        start, sid = skip_options(data, _RU_DATA, option) if option else (_RU_DATA, None)
        if start < 0:
            return None
        session = directory.lbtru_session(packet.src, packet.sport, sid)
        return DataHead(session, sqn, bool(flags & _RU_RETRANSMISSION), start)
    if proto == LBTTCP:
        session_tcp = directory.tcp_session(packet.src, packet.sport, packet.dst, packet.dport)
        return DataHead(session_tcp, -1, False, 0)
    return DataHead(None, -1, False, 0) if proto == LBMC else None


def lbtru_session(packet: UmPacket, directory: Directory, session_id: int) -> tuple[SessionKey, tuple[int, int]]:
    """Session and client (address, port) of an LBT-RU packet; `session_id` 0 when it names none."""
    sid = session_id or None
    if packet.data[0] & 0x0F in _RU_FROM_CLIENT:
        return directory.lbtru_session(packet.dst, packet.dport, sid), (packet.src, packet.sport)
    return directory.lbtru_session(packet.src, packet.sport, sid), (packet.dst, packet.dport)


def skip_options(data: bytes, at: int, kind: int) -> tuple[int, int | None]:
    """Offset behind a chain of transport options (-1 when it is broken) and the session id in it, if any."""
    session_id = None
    size = len(data)
    while kind:
        if at + _OPTION_HEAD > size:
            return -1, session_id
        length = data[at + 1]
        if length < _OPTION_HEAD or at + length > size:
            return -1, session_id
        if kind == lbtru.OPTION_SID and length >= 8:
            session_id = int.from_bytes(data[at + 4 : at + 8], "big")
        kind = data[at]
        at += length
    return at, session_id
