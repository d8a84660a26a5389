"""Messages come back as they went, and nothing else comes in."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field, make_dataclass, replace
from enum import IntEnum
from typing import NewType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgpack import packb

from dro.bus.codec import Codec, from_json
from dro.bus.messages import (
    PARENT_MESSAGES,
    ROUTE_MANAGER,
    ROUTE_MESSAGES,
    WORKER_REPORTS,
    PeerUp,
    PortalGone,
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


SAMPLE = Everything(
    True, 1, "t", b"r", 0.5, Colour.RED, 2, (3,), Inner(b"i", 4), (Inner(b"j", 5),), (Inner(b"k", 6),), (Colour.BLUE,),
    (("n",),),
)  # fmt: skip
FIELDS = [1, True, 1, "t", b"r", 0.5, 1, 2, [3], [b"i", 4], [[b"j", 5]], [[b"k", 6]], [2], [["n"]]]


def test_a_message_is_an_array_of_its_tag_and_its_fields() -> None:
    assert CODEC.encode(SAMPLE) == packb(FIELDS)
    assert CODEC.decode(packb(FIELDS)) == SAMPLE
    assert CODEC.decode(memoryview(packb(FIELDS))) == SAMPLE


@pytest.mark.parametrize(
    ("place", "wrong", "problem"),
    [
        (1, 1, "Everything.flag: not bool"),
        (2, True, "Everything.count: not int"), (2, "1", "Everything.count: not int"),
        (3, b"t", "Everything.text: not str"),
        (4, "r", "Everything.raw: not bytes"),
        (5, 1, "Everything.ratio: not float"),
        (6, True, "Everything.colour: not int"), (6, "1", "Everything.colour: not int"),
        (6, 3, "Everything.colour: 3 is not a valid Colour"),
        (7, "2", "Everything.maybe: not int"),
        (8, 3, "Everything.many: not list"), (8, None, "Everything.many: not list"),
        (8, ["3"], "Everything.many: not int"), (8, [3, True], "Everything.many: not int"),
        (9, None, "Everything.inner: not list"), (9, b"i4", "Everything.inner: not list"),
        (9, [b"i"], "Inner: 1 fields, not 2"),
        (9, [b"i", 4, 5], "Inner: 3 fields, not 2"),
        (9, ["i", 4], "Inner.name: not bytes"),
        (10, [4], "Everything.inners: not list"), (10, [[b"j", "5"]], "Inner.count: not int"),
        (11, [None], "Everything.maybe_inners: not list"), (11, 0, "Everything.maybe_inners: not list"),
        (12, [9], "Everything.colours: 9 is not a valid Colour"), (12, [True], "Everything.colours: not int"),
        (13, ["n"], "Everything.nested: not list"), (13, [["n", 1]], "Everything.nested: not str"),
    ],
)  # fmt: skip
def test_each_field_takes_its_own_kind_alone(place: int, wrong: object, problem: str) -> None:
    with pytest.raises(DecodeError, match=f"^{re.escape(problem)}$"):
        CODEC.decode(packb([*FIELDS[:place], wrong, *FIELDS[place + 1 :]]))


@pytest.mark.parametrize(
    ("frame", "problem"),
    [(b"", "not msgpack"), (b"\xc1", "not msgpack"), (packb([1]) + b"x", "not msgpack"),
     (b"\x81\xa1a\x01", r"not \[tag"), (packb([9]), "unknown tag 9"), (packb([3, 0]), "Positive: not positive")],
)  # fmt: skip
def test_what_is_no_message_is_told_apart(frame: bytes, problem: str) -> None:
    with pytest.raises(DecodeError, match=problem):
        CODEC.decode(frame)


@pytest.mark.parametrize(
    "changes",
    [{"maybe_inners": 5}, {"inners": (1,)}, {"inners": 7}, {"inner": 7}, {"count": object()}, {"text": 1j}],
)
def test_a_field_that_is_not_what_it_claims_cannot_be_sent(changes: dict[str, object]) -> None:
    with pytest.raises(LocalProtocolError, match="cannot send Everything"):
        CODEC.encode(replace(SAMPLE, **changes))  # type: ignore[arg-type]  # the point of the test


Domain = NewType("Domain", int)
Narrow = NewType("Narrow", Domain)


@dataclass(frozen=True, slots=True)
class Named:
    domain: Narrow
    maybe: Domain | None


def test_a_named_type_travels_as_what_it_is() -> None:
    codec = Codec[Named]({1: Named})
    for maybe in (None, Domain(6)):
        assert codec.decode(packb([1, 5, maybe])) == Named(Narrow(Domain(5)), maybe)
    with pytest.raises(DecodeError):
        codec.decode(packb([1, "5", None]))


@pytest.mark.parametrize(
    "hint",
    [tuple[int, int], tuple[int], int | str, int | str | None, dict[str, int], list[int], object, complex, "int"],
)
def test_types_that_a_message_cannot_carry(hint: object) -> None:
    kind = make_dataclass("Odd", [("field", hint)], frozen=True)
    if hint == "int":
        assert Codec({1: kind}).encode(kind(7)) == packb([1, 7])
        return
    with pytest.raises(TypeError, match=r"Odd\.field: a message cannot carry"):
        Codec({1: kind})


def test_tags_and_roles_keep_their_numbers() -> None:
    """They are never reused: whoever has an older number in hand would take one message for another."""
    tags = {
        "PeerUp": 1, "PeerDown": 2, "Stop": 3, "Ping": 4, "PeerRemoved": 5, "Reconfigure": 6, "Drain": 7, "SetLog": 8,
        "ListRows": 9, "Recalculate": 10, "Leave": 11,
    }  # fmt: skip
    reports = {
        "Ready": 1, "StartFailed": 2, "Stopped": 3, "Pong": 4, "PeerStuck": 5, "Reconfigured": 6, "Drained": 7,
        "Rows": 8, "RoutesCalculated": 9, "RoutesAvoid": 10, "Trouble": 11, "ForwardsAgain": 12,
    }  # fmt: skip
    routes = {"PortalUp": 2, "PortalGone": 3, "RouteTable": 4, "RouteInfoHeard": 5, "SendRouteInfo": 6, "LinkBusy": 7}
    for codec, expected in ((PARENT_MESSAGES, tags), (WORKER_REPORTS, reports), (ROUTE_MESSAGES, routes)):
        assert {kind.__name__: tag for kind, tag in codec._tags.items()} == expected
    roles = {"ROUTE_MANAGER": 1, "ENDPOINT": 2, "PEER": 3, "MONITOR": 4, "HISTORY": 5, "STATISTICS": 6}
    assert {role.name: role.value for role in Role} == roles
    assert ROUTE_MANAGER == 0


def test_an_enum_refuses_a_number_that_it_does_not_have() -> None:
    frame = PARENT_MESSAGES.encode(PeerUp(1, 2, "E1", Role.ENDPOINT, "", "a"))
    wrong = frame.replace(bytes([1, 2, 0xA2]) + b"E1" + bytes([2]), bytes([1, 2, 0xA2]) + b"E1" + bytes([99]))
    assert wrong != frame
    with pytest.raises(DecodeError, match=r"^PeerUp\.role: 99 is not a valid Role"):
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


def test_messages_that_were_joined_are_read_one_by_one() -> None:
    messages: list[PortalUp | PortalGone | RouteTable] = [PortalUp(7, 1, 1), PortalGone(300), PortalUp(2, 2, 2)]
    frame = b"".join([ROUTE_MESSAGES.encode(message) for message in messages])
    assert list(ROUTE_MESSAGES.decode_all(frame)) == messages
    assert list(ROUTE_MESSAGES.decode_all(b"")) == []


@pytest.mark.parametrize("tail", [b"\x93\x02\x07", b"\xc1", b"\x92\x63\x00", b"\x00", b"\xdd\xff\xff\xff\xff"])
def test_what_follows_a_message_and_is_none_is_an_error_when_its_turn_comes(tail: bytes) -> None:
    read = ROUTE_MESSAGES.decode_all(ROUTE_MESSAGES.encode(PortalGone(1)) + tail)
    assert next(read) == PortalGone(1)
    with pytest.raises(DecodeError):
        next(read)


@dataclass(frozen=True)
class Small:
    name: str
    size: int = 3
    share: float = 0.5
    other: str | None = None
    colour: Colour = Colour.RED


@dataclass(frozen=True)
class Large:
    small: Small
    more: tuple[Small, ...] = ()
    names: dict[str, tuple[int, ...]] = field(default_factory=dict)
    count: Positive = Positive(1)


def test_an_object_has_the_default_of_what_is_missing_and_its_other_fields_are_ignored() -> None:
    assert from_json(Small, {"name": "a", "newer": [1]}) == Small("a")
    assert from_json(Small, {"name": "a", "share": 1, "other": "x", "colour": 2}) == Small(
        "a", 3, 1.0, "x", Colour.BLUE
    )
    assert type(from_json(Small, {"name": "a", "share": 1}).share) is float
    large = Large(Small("a"), (Small("b", 4), Small("c", other="d")), {"x": (1, 2), "y": ()}, Positive(7))
    assert from_json(Large, json.loads(json.dumps(asdict(large)))) == large


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "Large: not dict"), ([], "Large: not dict"), ({}, "Large.small: missing"),
        ({"small": {}}, "Small.name: missing"), ({"small": "a"}, "Large.small: not dict"),
        ({"small": {"name": 7}}, "Small.name: not str"), ({"small": {"name": None}}, "Small.name: not str"),
        ({"small": {"name": "a", "size": "3"}}, "Small.size: not int"),
        ({"small": {"name": "a", "size": True}}, "Small.size: not int"),
        ({"small": {"name": "a", "size": 3.0}}, "Small.size: not int"),
        ({"small": {"name": "a", "share": "1"}}, "Small.share: not float"),
        ({"small": {"name": "a", "share": True}}, "Small.share: not float"),
        ({"small": {"name": "a", "share": 10**400}}, "Small: int too large to convert to float"),
        ({"small": {"name": "a", "other": 1}}, "Small.other: not str"),
        ({"small": {"name": "a", "colour": 3}}, "Small.colour: 3 is not a valid Colour"),
        ({"small": {"name": "a"}, "more": {}}, "Large.more: not list"),
        ({"small": {"name": "a"}, "more": [1]}, "Large.more: not dict"),
        ({"small": {"name": "a"}, "names": []}, "Large.names: not dict"),
        ({"small": {"name": "a"}, "names": {"x": ["1"]}}, "Large.names: not int"),
        ({"small": {"name": "a"}, "count": {"value": 0}}, "Positive: not positive"),
    ],
)  # fmt: skip
def test_an_object_that_does_not_fit_is_refused(value: object, problem: str) -> None:
    with pytest.raises(DecodeError, match=f"^{re.escape(problem)}$"):
        from_json(Large, value)


def test_json_has_no_bytes() -> None:
    with pytest.raises(TypeError, match=r"Inner\.name: a message cannot carry"):
        from_json(Inner, {"name": "a", "count": 1})


def test_the_messages_of_the_program_travel() -> None:
    table = RouteTable(7, (Route((1,), 2, 1, 2), Route((2,), 1, 2, 1)))
    assert ROUTE_MESSAGES.decode(ROUTE_MESSAGES.encode(table)) == table
    ready = Ready(3, "/r", "ipc://a")
    assert WORKER_REPORTS.decode(WORKER_REPORTS.encode(ready)) == ready


def test_source_domains_that_routes_have_in_common_travel_once() -> None:
    many = tuple(range(1 << 20, (1 << 20) + 500))
    table = RouteTable(7, (*(Route(many, domain, 1, 2) for domain in range(500)), Route((1,), 2, 2, 1, 5)))
    frame = ROUTE_MESSAGES.encode(table)
    assert len(frame) < 10_000
    read = ROUTE_MESSAGES.decode(frame)
    assert isinstance(read, RouteTable)
    assert read == table
    assert {id(route.source_domains) for route in read.routes[:500]} == {id(read.routes[0].source_domains)}


@pytest.mark.parametrize(
    ("sources", "routes"),
    [((), (0, 2, 1, 2, 1)), ((b"1234",), (-1, 2, 1, 2, 1)), ((b"1234",), (0, 2, 1, 2)), ((b"123",), ()), (((1,),), ())],
    ids=["no sources", "others", "part of a route", "part of a domain", "no bytes"],
)
def test_a_table_that_does_not_fit_together_is_refused(sources: tuple[object, ...], routes: tuple[int, ...]) -> None:
    with pytest.raises(DecodeError, match=r"^_SharedTable[.:]"):
        ROUTE_MESSAGES.decode(packb([4, 7, sources, routes, ()]))


def test_a_domain_that_is_too_large_cannot_be_sent() -> None:
    with pytest.raises(LocalProtocolError):
        ROUTE_MESSAGES.encode(RouteTable(7, (Route((1 << 32,), 2, 1, 2),)))
