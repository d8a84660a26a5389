"""Messages come back as they went, and nothing else comes in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgpack import packb

from dro.bus.codec import Codec
from dro.bus.messages import (
    PARENT_MESSAGES,
    ROUTE_MESSAGES,
    WORKER_REPORTS,
    PeerUp,
    PortalUp,
    Ready,
    Role,
    Route,
    RouteTable,
)
from dro.errors import DecodeError, LocalProtocolError


class Colour(IntEnum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True, slots=True)
class Inner:
    name: bytes
    count: int


@dataclass(frozen=True, slots=True)
class Everything:
    flag: bool
    count: int
    text: str
    raw: bytes
    ratio: float
    colour: Colour
    maybe: int | None
    many: tuple[int, ...]
    inner: Inner
    inners: tuple[Inner, ...]
    maybe_inners: tuple[Inner, ...] | None
    colours: tuple[Colour, ...]
    nested: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Positive:
    value: int

    def __post_init__(self) -> None:
        if self.value < 1:
            raise ValueError("not positive")


CODEC = Codec[Everything | Inner | Positive]({1: Everything, 2: Inner, 3: Positive})

inners = st.builds(Inner, st.binary(max_size=20), st.integers(-(2**63), 2**64 - 1))
everything = st.builds(
    Everything,
    flag=st.booleans(),
    count=st.integers(-(2**63), 2**64 - 1),
    text=st.text(max_size=20),
    raw=st.binary(max_size=20),
    ratio=st.floats(allow_nan=False),
    colour=st.sampled_from(Colour),
    maybe=st.none() | st.integers(0, 9),
    many=st.lists(st.integers(0, 2**32), max_size=5).map(tuple),
    inner=inners,
    inners=st.lists(inners, max_size=3).map(tuple),
    maybe_inners=st.none() | st.lists(inners, max_size=3).map(tuple),
    colours=st.lists(st.sampled_from(Colour), max_size=3).map(tuple),
    nested=st.lists(st.lists(st.text(max_size=3), max_size=3).map(tuple), max_size=3).map(tuple),
)


@given(everything)
def test_what_is_decoded_is_what_was_encoded(message: Everything) -> None:
    back = CODEC.decode(CODEC.encode(message))
    assert back == message
    assert isinstance(back, Everything)
    assert type(back.colour) is Colour


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_decode_error_and_nothing_else(frame: bytes) -> None:
    try:
        CODEC.decode(frame)
    except DecodeError:
        return


@given(everything, st.data())
def test_a_damaged_message_raises_decode_error_and_nothing_else(message: Everything, data: st.DataObject) -> None:
    frame = bytearray(CODEC.encode(message))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] = data.draw(st.integers(0, 255))
    try:
        CODEC.decode(bytes(frame[: data.draw(st.integers(0, len(frame)))]))
    except DecodeError:
        return


@pytest.mark.parametrize(
    "array",
    [
        [],
        [9],
        [True, b"x", 1],  # True == 1, yet no tag
        ["2", b"x", 1],
        [2],
        [2, b"x"],
        [2, b"x", 1, 2],
        [2, "x", 1],
        [2, b"x", True],
        [2, b"x", 1.0],
        [2, b"x", None],
        [3, 0],
    ],
)
def test_a_message_that_does_not_fit_is_refused(array: list[object]) -> None:
    with pytest.raises(DecodeError):
        CODEC.decode(packb(array))


def test_an_enum_refuses_a_number_that_it_does_not_have() -> None:
    frame = PARENT_MESSAGES.encode(PeerUp(1, 2, "E1", Role.ENDPOINT, "", "a", "b"))
    wrong = frame.replace(bytes([1, 2, 0xA2]) + b"E1" + bytes([2]), bytes([1, 2, 0xA2]) + b"E1" + bytes([99]))
    assert wrong != frame
    with pytest.raises(DecodeError, match="PeerUp"):
        PARENT_MESSAGES.decode(wrong)


def test_a_message_of_another_conversation_cannot_be_sent() -> None:
    with pytest.raises(LocalProtocolError):
        CODEC.encode(PortalUp(1, 1, 1))  # type: ignore[arg-type]  # the point of the test
    with pytest.raises(LocalProtocolError):
        CODEC.encode(Inner(b"", 2**64))


@dataclass(frozen=True, slots=True)
class Unsendable:
    table: dict[str, int]


def test_a_field_that_cannot_travel_is_found_when_the_codec_is_made() -> None:
    with pytest.raises(TypeError, match=r"Unsendable\.table"):
        Codec[Unsendable]({1: Unsendable})
    with pytest.raises(TypeError, match="two tags"):
        Codec[Inner]({1: Inner, 2: Inner})


def test_a_channel_of_two_conversations_has_one_codec_that_knows_both() -> None:
    inners = Codec[Inner]({9: Inner})
    both = inners | ROUTE_MESSAGES
    inner, up = Inner(b"x", 1), PortalUp(7, 1, 1)
    assert both.encode(inner) == inners.encode(inner)
    assert both.encode(up) == ROUTE_MESSAGES.encode(up)
    assert [both.decode(both.encode(message)) for message in (inner, up)] == [inner, up]
    with pytest.raises(DecodeError, match="unknown tag"):
        inners.decode(both.encode(up))


def test_two_conversations_that_share_a_tag_cannot_share_a_channel() -> None:
    with pytest.raises(TypeError, match=r"\[2, 3, 4\]"):
        ROUTE_MESSAGES | PARENT_MESSAGES


def test_the_messages_of_the_program_travel() -> None:
    table = RouteTable(7, (Route(1, 2, 1, 2), Route(2, 1, 2, 1)))
    assert ROUTE_MESSAGES.decode(ROUTE_MESSAGES.encode(table)) == table
    ready = Ready(3, "/r", "ipc://a", "ipc://b")
    assert WORKER_REPORTS.decode(WORKER_REPORTS.encode(ready)) == ready
