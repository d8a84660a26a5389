"""Return addresses as bytes: what is written is read, all else is refused."""

from __future__ import annotations

import pytest

from dro.errors import DecodeError
from dro.wire.lbmc.headers import ContextAddress, ReturnAddress
from dro.wire.lbmc.return_address import decode_return, encode_return

SOMEBODY = ReturnAddress(7, ContextAddress(3, 0x0A010203, 14391))
WRITTEN = bytes.fromhex("01 00000003 0a010203 3837 00000007")


def test_it_is_written_and_read() -> None:
    assert encode_return(SOMEBODY) == WRITTEN
    assert decode_return(WRITTEN) == SOMEBODY


@pytest.mark.parametrize(
    "data",
    [
        b"", WRITTEN[:-1], WRITTEN + b"x", b"\2" + WRITTEN[1:], WRITTEN[:11] + bytes(4),
        WRITTEN[:9] + bytes(2) + WRITTEN[11:], WRITTEN[:5] + b"\xe0" + WRITTEN[6:],
    ],
    ids=["nothing", "short", "long", "version", "no request", "no port", "a group"],
)  # fmt: skip
def test_what_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_return(data)
