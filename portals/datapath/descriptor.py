"""Descriptors: where the fragments of a batch are in the ring of the portal that received them.

One message per batch and egress portal, so its cost is spread over the batch. It is packed by hand because it is on the
fragment path; all other messages between workers use `dro.bus.codec`.

Layout, little-endian: header {u64 ring position, u32 bytes, u32 runs}, then per run {u32 handle, u32 first topic sqn,
u32 fragments, u32 offset in the chunk, u32 length, u32 stride, u16 headroom, u8 next header, u8 kind}. Sender and
incarnation are in the envelope of the channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from dro.errors import DecodeError
from dro.um.transport.runs import HEADER_BYTES, KIND_CONTROL, KIND_DATA, KIND_TSNI, MINIMAL_BYTES

_HEADER: Final = Struct("<QII")
_RUN: Final = Struct("<IIIIIIHBB")


class ForwardRun(NamedTuple):
    """As `runs.Run`, with the source's handle in place of a topic index; `offset` counts from the chunk."""

    handle: int
    first_sqn: int
    fragments: int
    offset: int
    length: int
    stride: int
    headroom: int
    next_header: int
    kind: int


class Descriptor(NamedTuple):
    position: int
    size: int
    runs: tuple[ForwardRun, ...]


def encode(position: int, size: int, runs: Sequence[ForwardRun]) -> bytes:
    head = _HEADER.pack(position, size, len(runs))
    if len(runs) == 1:
        return head + _RUN.pack(*runs[0])
    return head + b"".join([_RUN.pack(*run) for run in runs])


def decode(frame: bytes) -> Descriptor:
    """Raises: DecodeError when the frame is no descriptor, or a run cannot be, or does not lie within the chunk."""
    if len(frame) < _HEADER.size:
        raise DecodeError("descriptor", f"{len(frame)} bytes")
    position, size, count = _HEADER.unpack_from(frame)
    if len(frame) != _HEADER.size + count * _RUN.size:
        raise DecodeError("descriptor", f"{count} runs in {len(frame)} bytes")
    runs = tuple(ForwardRun(*fields) for fields in _RUN.iter_unpack(memoryview(frame)[_HEADER.size :]))
    for run in runs:
        _check(run, size)
    return Descriptor(position, size, runs)


def _check(run: ForwardRun, size: int) -> None:
    """What the egress relies on: it writes into the headroom and steps by the stride."""
    _, _, fragments, offset, length, stride, headroom, _, kind = run
    if kind == KIND_DATA:
        is_sound = fragments > 0 and length >= HEADER_BYTES
    elif kind == KIND_CONTROL:
        is_sound = fragments == 1 and length >= MINIMAL_BYTES
    else:
        is_sound = kind == KIND_TSNI and fragments == 1 and length == 0
    if not is_sound or (fragments > 1 and stride < length + headroom):
        raise DecodeError("descriptor", f"no run of kind {kind}: {fragments} fragments of {length} bytes")
    if length and (offset < headroom or offset + (fragments - 1) * stride + length > size):
        raise DecodeError("descriptor", "a run reaches out of its chunk")
