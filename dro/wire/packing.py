"""Packing that checks: the writing half of the fixed layouts."""

from __future__ import annotations

from struct import Struct, error

from dro.errors import LocalProtocolError


def pack(layout: Struct, *values: object) -> bytes:
    """The bytes of `values`. Raises: LocalProtocolError when one does not fit its field, a bug of the caller."""
    try:
        packed = layout.pack(*values)
    except error as e:
        raise LocalProtocolError(f"{layout.format} cannot hold {values}: {e}") from e
    if layout.unpack(packed) != values:  # struct pads and cuts byte strings without a word
        raise LocalProtocolError(f"{layout.format} cannot hold {values}: a byte string has the wrong length")
    return packed
