"""Both sides of topic resolution over TCP: a server and its client, a context and its SRS.

What a server sends must be readable, what a client can make it remember is bounded, and with time it forgets. What a
context hands up must be sendable, and it forgets what the SRS does not tell again.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from dro.clock import s
from dro.errors import DecodeError
from dro.proto.resolver_service.client import ServiceClient
from dro.proto.resolver_service.link import LinkFault
from dro.proto.srs.settings import SrsLimits, SrsSettings, SrsTimes
from dro.wire.lbmr import packet as lbmr
from dro.wire.srs import rsocket
from dro.wire.srs.messages import (
    EXT_DOMAIN,
    EXT_LBMR,
    InterestMode,
    RegistrationRequest,
    RegistrationResponse,
    encode,
)
from dro.wire.srs.rsocket import ExtFrame, Frame, FrameType, RequestFrame
from tests.builders.srs_records import all_records, client_frames
from tests.fakes.srs import FakeSrsClient, SrsSite
from tests.fuzz.seeds import vectors
from tests.fuzz.target import Target


def _srs(data: bytes) -> Hashable:
    """Bytes of one client of a server: what others are told can be read, and nothing is left when its time is over."""
    limits = SrsLimits(client_record_bytes=20_000, client_patterns=5, queue_bytes=30_000)
    site = SrsSite(SrsSettings(SrsTimes(source_state_ns=s(5), interest_state_ns=s(5)), limits))
    witness, stranger = site.client(2, InterestMode.FLOOD_AND_FORWARD), FakeSrsClient(site, 1)
    if data[:1] == b"R":
        stranger.register()
        stranger.open_stream()
    data = data[1:]
    for at in range(0, len(data), 997):
        site.server.on_bytes(stranger.connection, data[at : at + 997], site.now_ns)
    site.settle()
    told, is_closed = witness.take(), stranger.is_closed
    assert site.server.records.record_bytes <= 20_000
    if not is_closed:
        stranger.lose()
    site.wait(40)
    assert site.server.records.record_bytes == 0
    assert len(site.server.clients) == 1
    assert not witness.is_closed
    if is_closed and not told:
        raise DecodeError("srs", stranger.errors[-1].decode()[:30] if stranger.errors else "")
    return tuple([type(record).__name__ for record in told[:4]]), is_closed, len(witness.frames)


def _srs_seeds() -> list[bytes]:
    """Bytes behind a letter that says whether the client has registered."""
    runs: list[list[Frame]] = [
        client_frames()[3:],
        [RequestFrame(5, FrameType.REQUEST_FNF, encode(record)) for record in all_records()],
        [ExtFrame(EXT_LBMR, data) for data in vectors("lbmr")[:10]],
    ]
    written = [b"".join(map(rsocket.encode, run)) for run in (client_frames(), *runs)]
    return [b"-" + written[0], *(b"R" + raw for raw in written[1:])]


def _srs_client(data: bytes) -> Hashable:
    """Bytes of an SRS to a context: what is handed up can be sent, and is gone when the SRS tells it no more."""
    now_ns = s(10)
    client = ServiceClient(b"context.", lbmr.SenderType.DRO, 7, now_ns)
    registration = RegistrationRequest(1, 0x0A000001, 14391, 1, 0, InterestMode.FLOOD_AND_FORWARD, 7)
    client.on_connected(0, registration, now_ns)
    signs: list[Hashable] = []
    try:
        for at in range(0, len(data), 997):
            signs += [error.where for error in client.on_bytes(0, data[at : at + 997], now_ns)]
    except LinkFault as fault:
        signs.append(str(fault)[:40])
    client.on_closed(0)
    client.on_connected(0, registration, now_ns)
    client.on_bytes(0, _REGISTERED, now_ns)
    handed: list[lbmr.Packet] = []
    for _ in range(120):
        now_ns += s(1)
        client.on_timer(now_ns)
        handed += client.take_packets()
    signs += [type(packet.body).__name__ for packet in handed if lbmr.encode(packet)][:3]
    assert not client._told._held
    return tuple(signs[:6])


_REGISTERED: Final = rsocket.encode(rsocket.PayloadFrame(1, encode(RegistrationResponse(1, 7)), is_complete=True))


def _srs_client_seeds() -> list[bytes]:
    records = b"".join(map(encode, all_records()))
    frames: list[Frame] = [
        *(rsocket.PayloadFrame(3, encode(record)) for record in all_records()),
        rsocket.PayloadFrame(3, records),
        *(ExtFrame(EXT_LBMR, data) for data in vectors("lbmr")[:10]),
        ExtFrame(EXT_DOMAIN, (9).to_bytes(4, "big")),
        rsocket.KeepaliveFrame(True),
        rsocket.ErrorFrame(0, 0x101, b"no"),
    ]
    return [_REGISTERED + rsocket.encode(frame) for frame in frames]


TARGETS: Final = (
    Target("core-srs", _srs_seeds, _srs, short=150),
    Target("core-srs-client", _srs_client_seeds, _srs_client, short=150),
)
