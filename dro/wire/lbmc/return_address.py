"""A return address as bytes, by which another program may respond in the place of the one that got the request.

Source: client library notes, section 7: it has to name the domain. Guess: the layout, which is ours.

    0  u8 version (1)   1  u32 domain   5  u32 address   9  u16 port   11  u32 request index
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from dro.errors import DecodeError
from dro.wire.lbmc.headers import ContextAddress, ReturnAddress, is_request_port

_LAYOUT: Final = Struct("!BIIHI")
_VERSION: Final = 1


def encode_return(returns_to: ReturnAddress) -> bytes:
    to = returns_to.requester
    return _LAYOUT.pack(_VERSION, to.domain_id, to.ip, to.port, returns_to.request_index)


def decode_return(data: bytes) -> ReturnAddress:
    """Read what `encode_return` has written. Raises: DecodeError."""
    if len(data) != _LAYOUT.size:
        raise DecodeError("response", f"{len(data)} bytes instead of {_LAYOUT.size}")
    version, domain_id, ip, port, index = _LAYOUT.unpack(data)
    if version != _VERSION or not index or not is_request_port(ip, port):
        raise DecodeError("response", "no return address of a request")
    return ReturnAddress(index, ContextAddress(domain_id, ip, port))
