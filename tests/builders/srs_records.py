"""Records and conversations of topic resolution over TCP."""

from __future__ import annotations

from typing import Final

from dro.wire import otid
from dro.wire.source_string import TcpAddress, format_source
from dro.wire.srs import messages as lbmsrs
from dro.wire.srs.messages import InterestInfo, MessageId, SourceDelete, SourceInfo, SourceLeave, SrsRecord
from dro.wire.srs.rsocket import (
    UNBOUNDED_N,
    Frame,
    FrameType,
    KeepaliveFrame,
    PayloadFrame,
    RequestFrame,
    SetupFrame,
)

INSTANCE: Final = bytes.fromhex("a1b2c3d4e5f60718")


def source_info(topic: bytes, index: int = 7, *, cost: int = 0, ip: int = 0x0A000001) -> SourceInfo:
    address = TcpAddress(ip, 14371, 0x0A1B2C3D)
    return SourceInfo(
        otid.encode(address, index, 1, 1), topic, format_source(address, index).encode(), index, host_id=0x01020304,
        functionality=3, request_ip=ip, request_port=14391, domain_id=100, ulb_source_id=1, ulb_queue_id=2,
        ulb_registration_id=3, context_instance=INSTANCE, context_type=1, version=0x61400, version_flags=1, ttl=60,
        cost=cost,
    )  # fmt: skip


def interest(kind: int, name: bytes, *, domain_id: int = 100, instance: bytes = INSTANCE) -> InterestInfo:
    return InterestInfo(kind, name, domain_id, instance, 1, 2, 3, 4)


def all_records() -> list[SrsRecord]:
    """A record of every kind."""
    sir = source_info(b"AAA")
    return [
        sir,
        source_info(b"AAA", cost=lbmsrs.END_COST),
        SourceDelete(sir.otid, b"AAA"),
        *(interest(kind, b"^B") for kind in range(MessageId.RECEIVER_INFO, MessageId.SOURCE_LEAVE)),
        SourceLeave(sir.otid, b"AAA", sir.source, INSTANCE, 1, 2, 3, 4),
    ]


def request(message: lbmsrs.SrsMessage, stream_id: int, kind: FrameType, n: int = 0) -> RequestFrame:
    return RequestFrame(stream_id, kind, lbmsrs.encode(message), n)


def client_frames(mode: int = lbmsrs.InterestMode.FILTER_AND_FORWARD) -> list[Frame]:
    """What a client sends: set-up, registration, stream request, all records, a keepalive."""
    registration = lbmsrs.RegistrationRequest(1, 0x0A010203, 14391, 0xABCDEF01, 0x0A010203, mode, 100)
    return [
        SetupFrame(500, 3000),
        request(registration, 1, FrameType.REQUEST_RESPONSE),
        request(lbmsrs.StreamRequest(), 3, FrameType.REQUEST_STREAM, UNBOUNDED_N),
        RequestFrame(5, FrameType.REQUEST_FNF, b"".join(map(lbmsrs.encode, all_records()))),
        KeepaliveFrame(True),
    ]


def server_frames() -> list[Frame]:
    """What a server answers."""
    return [
        PayloadFrame(1, lbmsrs.encode(lbmsrs.RegistrationResponse(77, 100)), is_complete=True),
        PayloadFrame(3, b"".join(map(lbmsrs.encode, all_records()))),
        KeepaliveFrame(False, 5),
    ]
