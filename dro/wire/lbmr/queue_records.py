"""Queuing in LBMR: queue resolution and queue management. Decoded for display only; a DRO forwards none of it.

Source: wire notes LBMR section 9, ambiguities A5 and A11.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct
from typing import Final, TypeAlias

from dro.errors import DecodeError
from dro.wire.cursor import Reader
from dro.wire.lbmr.options import TirOptions, read_tir_options, write_tir_options
from dro.wire.lbmr.tlv import fits, read_z, strip_counted, write_counted, write_z

SIGNATURE_SIZE: Final = 20
_OPTIONS: Final = 0x8000
_QIR: Final = Struct("!IIIHH")
_GROUP: Final = Struct("!HH")
_QUEUE: Final = Struct("!IHHHH")


@dataclass(frozen=True, slots=True)
class QueueGroup:
    index: int
    size: int


@dataclass(frozen=True, slots=True)
class QueueBlock:
    """One instance of a queue. A master flag 0x8000 exists; whether in `index` or `reserved` is open (A11)."""

    ip: int
    port: int
    index: int
    group_index: int
    reserved: int = 0


@dataclass(frozen=True, slots=True)
class Qir:
    """Queue information record, the answer to a query for a queue."""

    queue: bytes
    topic: bytes
    queue_id: int
    version: int
    previous_version: int
    groups: tuple[QueueGroup, ...] = ()
    blocks: tuple[QueueBlock, ...] = ()
    options: TirOptions | None = None


@dataclass(frozen=True, slots=True)
class QueueResolution:
    """Packet type 6: queues that are looked for, and those that answer."""

    queues: tuple[bytes, ...]
    records: tuple[Qir, ...]


def read_qqr(r: Reader) -> bytes:
    return read_z(r, "qqr.queue")


def read_qir(r: Reader) -> Qir:
    """One QIR; `r` is left on the byte after it. Raises: DecodeError."""
    queue = read_z(r, "qir.queue")
    topic = read_z(r, "qir.topic")
    queue_id, version, previous, groups, blocks = r.unpack("qir", _QIR)
    options = read_tir_options(r) if groups & _OPTIONS else None
    groups &= ~_OPTIONS
    r.need("qir.groups", groups * _GROUP.size + blocks * _QUEUE.size)
    return Qir(
        queue,
        topic,
        queue_id,
        version,
        previous,
        tuple(QueueGroup(*r.unpack("qir.group", _GROUP)) for _ in range(groups)),
        tuple(QueueBlock(*r.unpack("qir.block", _QUEUE)) for _ in range(blocks)),
        options,
    )


@fits("qir")
def write_qir(qir: Qir) -> bytes:
    """Write a QIR. Raises: DecodeError for a value that does not fit."""
    if len(qir.groups) >= _OPTIONS:
        raise DecodeError("qir.groups", f"{len(qir.groups)} groups")
    groups = len(qir.groups) | (_OPTIONS if qir.options is not None else 0)
    parts = [write_z("qir.queue", qir.queue), write_z("qir.topic", qir.topic)]
    parts.append(_QIR.pack(qir.queue_id, qir.version, qir.previous_version, groups, len(qir.blocks)))
    if qir.options is not None:
        parts.append(write_tir_options(qir.options))
    parts += [_GROUP.pack(g.index, g.size) for g in qir.groups]
    parts += [_QUEUE.pack(b.ip, b.port, b.index, b.group_index, b.reserved) for b in qir.blocks]
    return b"".join(parts)


# queue management


class QueuePacket(IntEnum):
    """Packet types of queue management."""

    INSTANCE_LIST = 1
    JOIN_REQUEST = 2
    JOIN_REJECTION = 3
    INSTANCE_KEEPALIVE = 4
    ELECTION_CALL = 5
    ELECTION_VOTE = 6
    CONFIRM_INSTANCE_LIST = 7
    RESUME_OPERATION = 8


class QueueFlag(IntEnum):
    """Bits of `QueueManagement.flags`; the last two in instance lists only."""

    IGNORE = 0x80
    NAME = 0x40
    NEW_LIST = 0x20
    KEEPALIVE_REQUESTED = 0x10


@dataclass(frozen=True, slots=True)
class QueueInstance:
    """An instance in a list. Flags: 0x8000 master, 0x4000 queue election master, 0x2000 post election master."""

    ip: int
    port: int
    index: int
    group_index: int
    flags: int


@dataclass(frozen=True, slots=True)
class InstanceList:
    highest_rcr_tsp: int
    instances: tuple[QueueInstance, ...]


@dataclass(frozen=True, slots=True)
class ElectionCall:
    new_version: int


@dataclass(frozen=True, slots=True)
class ElectionVote:
    highest_rcr_tsp: int
    age: int


@dataclass(frozen=True, slots=True)
class ResumeOperation:
    highest_rcr_tsp: int


QueueDetail: TypeAlias = InstanceList | ElectionCall | ElectionVote | ResumeOperation | None


@dataclass(frozen=True, slots=True)
class QueueManagement:
    """Extended type 2. `packet_type` and `detail` go together; the NAME bit of `flags` follows `queue` when writing.

    `value` is the last word of the fixed part: code of a rejection, bias of a vote; the number of instances of a list
    is made when writing.
    """

    flags: int
    packet_type: int
    signature: bytes
    queue_id: int
    queue_version: int
    ip: int
    port: int
    instance_index: int
    group_index: int
    value: int = 0
    detail: QueueDetail = None
    queue: bytes | None = field(default=None, kw_only=True)


_MANAGEMENT: Final = Struct("!BB20sIIIHHHH")
_LIST: Final = Struct("!I")
_VOTE: Final = Struct("!II")
_DETAILS: Final[dict[int, type]] = {
    QueuePacket.INSTANCE_LIST: InstanceList,
    QueuePacket.ELECTION_CALL: ElectionCall,
    QueuePacket.ELECTION_VOTE: ElectionVote,
    QueuePacket.RESUME_OPERATION: ResumeOperation,
}


def read_queue_management(r: Reader) -> QueueManagement:
    """Read from after the two bytes of the packet header to the end of the body. Raises: DecodeError."""
    at = r.pos
    flags, packet_type, signature, queue_id, version, ip, port, instance, group, value = r.unpack("qmgmt", _MANAGEMENT)
    if not QueuePacket.INSTANCE_LIST <= packet_type <= QueuePacket.RESUME_OPERATION:
        raise DecodeError("qmgmt.packet_type", f"type {packet_type} is not known", at + 1)
    detail = _read_detail(r, packet_type, value)
    queue = strip_counted(r.take("qmgmt.queue", r.left)) if flags & QueueFlag.NAME else None
    return QueueManagement(
        flags, packet_type, signature, queue_id, version, ip, port, instance, group, value, detail, queue=queue
    )


def _read_detail(r: Reader, packet_type: int, value: int) -> QueueDetail:
    match packet_type:
        case QueuePacket.INSTANCE_LIST:
            highest = r.u32("qmgmt.highest_rcr_tsp")
            r.need("qmgmt.instances", value * _QUEUE.size)
            return InstanceList(
                highest, tuple(QueueInstance(*r.unpack("qmgmt.instance", _QUEUE)) for _ in range(value))
            )
        case QueuePacket.ELECTION_CALL:
            return ElectionCall(r.u32("qmgmt.new_version"))
        case QueuePacket.ELECTION_VOTE:
            return ElectionVote(*r.unpack("qmgmt.vote", _VOTE))
        case QueuePacket.RESUME_OPERATION:
            return ResumeOperation(r.u32("qmgmt.highest_rcr_tsp"))
    return None


@fits("qmgmt")
def write_queue_management(message: QueueManagement) -> bytes:
    """Write what follows the two-byte packet header. Raises: DecodeError for a value or detail that does not fit."""
    detail = message.detail
    if type(detail) is not _DETAILS.get(message.packet_type, type(None)) or len(message.signature) != SIGNATURE_SIZE:
        raise DecodeError("qmgmt", f"detail or signature does not fit packet type {message.packet_type}")
    value = len(detail.instances) if isinstance(detail, InstanceList) else message.value
    flags = message.flags & ~QueueFlag.NAME | (QueueFlag.NAME if message.queue is not None else 0)
    fixed = _MANAGEMENT.pack(
        flags,
        message.packet_type,
        message.signature,
        message.queue_id,
        message.queue_version,
        message.ip,
        message.port,
        message.instance_index,
        message.group_index,
        value,
    )
    return fixed + _write_detail(detail) + (write_counted(message.queue) if message.queue is not None else b"")


def _write_detail(detail: QueueDetail) -> bytes:
    match detail:
        case InstanceList(highest, instances):
            return _LIST.pack(highest) + b"".join(
                [_QUEUE.pack(i.ip, i.port, i.index, i.group_index, i.flags) for i in instances]
            )
        case ElectionCall(value) | ResumeOperation(value):
            return _LIST.pack(value)
        case ElectionVote(highest, age):
            return _VOTE.pack(highest, age)
    return b""
