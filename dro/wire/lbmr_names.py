"""The two kinds of string in LBMR: NUL-terminated, and counted by an enclosing record length.

Both are bytes, since no character set is promised. Source: wire notes LBMR section 2 and ambiguity A9.
"""

from __future__ import annotations

from typing import Final

from dro.errors import DecodeError
from dro.wire.cursor import Reader

NAME_MAX: Final = 255
"""Longest topic, pattern or queue name without its NUL: the buffers of the public API have 256 bytes."""


def read_z(r: Reader, where: str) -> bytes:
    """A NUL-terminated name, without the NUL. Raises: DecodeError when there is none within `NAME_MAX` bytes."""
    return r.cstring(where, NAME_MAX)


def write_z(where: str, name: bytes) -> bytes:
    """Raises: DecodeError for a name that could not be read back: too long, or with a NUL inside."""
    if len(name) > NAME_MAX or b"\0" in name:
        raise DecodeError(where, f"a name has at most {NAME_MAX} bytes and no NUL")
    return name + b"\0"


def strip_counted(raw: bytes) -> bytes:
    """The name in a counted field: one trailing NUL is not part of it. Guess: both forms occur (A9)."""
    return raw[:-1] if raw.endswith(b"\0") else raw


def write_counted(name: bytes) -> bytes:
    """A counted string goes out with a NUL, the habit of the protocol. Guess: A9, not settled by a capture."""
    return name + b"\0"
