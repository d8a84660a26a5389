"""Packets between source and receiver of LBT-IPC."""

from __future__ import annotations

import pytest

from dro.errors import DecodeError
from dro.wire.lbtipc import (
    NEW,
    PACKET_MAX,
    WAKE,
    IpcHello,
    IpcPacket,
    IpcPosition,
    IpcRefusal,
    IpcWelcome,
    OtherLayout,
    Refused,
    decode,
    encode,
)

LAYOUT = 0x1234
PACKETS: list[IpcPacket] = [
    IpcHello(0xA1B2C3D4), IpcHello(1, 7), IpcWelcome(9, True), IpcWelcome(NEW - 1, False), IpcPosition(1 << 40),
    *(IpcRefusal(reason) for reason in Refused),
]  # fmt: skip


@pytest.mark.parametrize("packet", PACKETS, ids=repr)
def test_what_is_said_is_heard(packet: IpcPacket) -> None:
    data = encode(packet, LAYOUT)
    assert len(data) <= PACKET_MAX
    assert data != WAKE
    assert decode(data, LAYOUT) == packet
    for end in range(len(data)):
        with pytest.raises(DecodeError):
            decode(data[:end], LAYOUT)
    with pytest.raises(DecodeError):
        decode(data + b"x", LAYOUT)


@pytest.mark.parametrize("packet", [IpcHello(1), IpcWelcome(2, True)], ids=repr)
def test_another_layout_is_told_apart_whatever_follows(packet: IpcPacket) -> None:
    data = encode(packet, LAYOUT + 1)
    assert decode(data, LAYOUT) == decode(data + b"more", LAYOUT) == OtherLayout(LAYOUT + 1)


def test_a_refusal_is_understood_in_every_layout() -> None:
    assert decode(encode(IpcRefusal(Refused.LAYOUT), 1), 2) == IpcRefusal(Refused.LAYOUT)


@pytest.mark.parametrize("data", [b"", b"w", b"HLIPX" + bytes(20), b"RLIPC" + bytes(2) + b"\xff", bytes(64)])
def test_what_is_none_of_them_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(data, LAYOUT)
