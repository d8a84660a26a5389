"""A stream of bytes as LBMC messages, however it is cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.errors import DecodeError
from dro.proto.unicast.splitter import MessageSplitter
from dro.wire.lbmc.codes import FULL_HEADER_SIZE, FULL_HEADER_TYPES, MESSAGE_MAX, MINIMAL_HEADER_SIZE, MessageType

KINDS = st.sampled_from(MessageType)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    kind = draw(KINDS)
    least = (FULL_HEADER_SIZE if kind in FULL_HEADER_TYPES else MINIMAL_HEADER_SIZE) - MINIMAL_HEADER_SIZE
    body = draw(st.binary(min_size=least, max_size=least + 40))
    return bytes([kind, 0]) + (len(body) + 4).to_bytes(2, "big") + body


def split(splitter: MessageSplitter, data: bytes) -> list[bytes]:
    splitter.feed(data)
    found = []
    while splitter.has_message():
        message = splitter.next_message()
        assert message is not None
        found.append(message)
    assert splitter.next_message() is None
    return found


@given(st.lists(messages(), max_size=20), st.lists(st.integers(0, 800), max_size=20))
def test_messages_come_out_as_they_went_in_however_the_stream_is_cut(sent: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(sent)
    splitter = MessageSplitter()
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    got = [message for begin, end in itertools.pairwise(edges) for message in split(splitter, stream[begin:end])]
    assert got == sent
    assert len(splitter) == 0


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_any_bytes_are_messages_or_an_error_and_little_is_held(pieces: list[bytes]) -> None:
    splitter = MessageSplitter()
    fed = handed = 0
    for piece in pieces:
        fed += len(piece)
        try:
            handed += sum(map(len, split(splitter, piece)))
        except DecodeError:
            assert splitter.has_message(), "the error is told again"
            return
        assert len(splitter) == fed - handed <= MESSAGE_MAX


@pytest.mark.parametrize("head", ["00000000", "0000000b", "08ff0003", "07000010", "10000010", "47455420"])
def test_what_is_no_message_is_found_with_its_first_four_bytes(head: str) -> None:
    splitter = MessageSplitter()
    splitter.feed(bytes.fromhex(head)[:3])
    assert splitter.next_message() is None
    splitter.feed(bytes.fromhex(head)[3:])
    with pytest.raises(DecodeError):
        splitter.next_message()
