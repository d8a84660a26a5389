"""LBMC messages and blocks that only tests make."""

from __future__ import annotations

from collections.abc import Iterable

from dro.wire.lbmc.blocks import AnyBlock
from dro.wire.lbmc.codes import END_DATA, MessageType
from dro.wire.lbmc.data_blocks import AppHdrChain, AppHdrType, ChainElement
from dro.wire.lbmc.message import Message, decode, walk


def decode_all(data: bytes) -> tuple[Message, ...]:
    """Messages laid end to end; 1 to 3 stray bytes at the end are ignored. Raises: DecodeError at the first bad one."""
    return tuple(decode(data, pos) for pos, _ in walk(data, 0, len(data)))


def data_message(
    topic_index: int,
    sqn: int,
    payload: bytes,
    *,
    blocks: Iterable[AnyBlock] = (),
    kind: MessageType = MessageType.MESSAGE,
) -> Message:
    """A message with user data: live, or by `kind` a retransmission."""
    return Message(kind, topic_index, sqn, tuple(blocks), payload, END_DATA)


def properties_chain(length: int) -> AppHdrChain:
    """The block that announces `length` bytes of message properties at the end of the message."""
    return AppHdrChain((ChainElement(AppHdrType.PROPERTIES_LENGTH, length.to_bytes(4, "big")),))
