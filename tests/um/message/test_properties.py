"""What applications say beside the data: properties of all types, channels, explicit batches, unreadable headers."""

from __future__ import annotations

import asyncio
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.errors import DecodeError
from dro.log.events import LogEvent
from dro.um.async_api import Context
from dro.um.blocking_api import BlockingContext
from dro.um.message.client_config import Config
from dro.um.message.events import FLAG_END_BATCH, FLAG_HF_64, FLAG_START_BATCH, Data, MessageBatch, UsageError
from dro.um.message.properties import (
    Byte,
    Float,
    Int,
    Long,
    Properties,
    Short,
    compose,
    decode_properties,
    encode_properties,
    read_content,
)
from dro.wire.lbmc.data_blocks import AppHdrChain, ChainElement
from dro.wire.lbmc.failover import HotFailover
from dro.wire.lbmc.headers import MessageHeaders
from dro.wire.lbmc.properties import Property, PropertyType, decode, encode
from tests.fakes.um_contexts import PATIENCE_S
from tests.um.message.test_messages import ready, take

ALL: Properties = {
    "boolean": True, "byte": Byte(-3), "short": Short(4), "int": Int(5), "long": Long(6), "float": Float(0.5),
    "double": 0.1, "string": "äöü \udcff", "least": -128, "k" * 250: "",
}  # fmt: skip
TYPES = [
    PropertyType.BOOLEAN, PropertyType.BYTE, PropertyType.SHORT, PropertyType.INT, PropertyType.LONG,
    PropertyType.FLOAT, PropertyType.DOUBLE, PropertyType.STRING, PropertyType.BYTE, PropertyType.STRING,
]  # fmt: skip


def test_each_value_has_its_type() -> None:
    block = encode_properties(ALL)
    assert [found.type for found in decode(block)] == TYPES
    found = decode_properties(block)
    assert found == ALL
    assert [type(found[name]) for name in ("byte", "short", "int", "long", "float", "double")] == [
        Byte, Short, Int, Long, Float, float,
    ]  # fmt: skip
    assert encode_properties(found) == block


@pytest.mark.parametrize(
    ("value", "kind"),
    [(127, PropertyType.BYTE), (128, PropertyType.SHORT), (-32769, PropertyType.INT), (1 << 31, PropertyType.LONG)],
)
def test_an_integer_has_the_smallest_type(value: int, kind: PropertyType) -> None:
    assert [found.type for found in decode(encode_properties({"n": value}))] == [kind]


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"n": Byte(128)}, "128 does not fit 8 bits"),
        ({"n": 1 << 63}, "does not fit 64 bits"),
        ({"k" * 251: 1}, "of 251 bytes: names have 1 to 250"),
        ({"": 1}, "of 0 bytes"),
        ({"a\0": 1}, "no NUL"),
        ({"s": "a\0"}, "cannot have a NUL"),
        ({"f": Float(1e300)}, "too large for a Float"),
        ({"o": b"bytes"}, "is bytes: use bool, int, float or str"),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(properties: Properties, why: str) -> None:
    with pytest.raises(UsageError, match="property") as refused:
        compose(b"", properties)
    assert why in str(refused.value)


@pytest.mark.parametrize("channel", [-1, 1 << 32])
def test_a_channel_has_32_bits(channel: int) -> None:
    with pytest.raises(UsageError, match="channel"):
        compose(b"", channel=channel)


VALUES = (
    st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False) | st.text("aä\n", max_size=9)
)


@given(
    st.binary(max_size=40),
    st.dictionaries(st.text("aäb", min_size=1, max_size=9), VALUES, min_size=1, max_size=9),
    st.none() | st.integers(0, (1 << 32) - 1),
    st.none() | st.builds(HotFailover, st.integers(0, (1 << 64) - 1), st.just(64), st.booleans(), st.integers(0, 255)),
)
def test_what_is_put_together_comes_apart(
    data: bytes, properties: Properties, channel: int | None, failover: HotFailover | None
) -> None:
    made = compose(data, properties, channel, failover)
    (chain,) = made.blocks
    assert isinstance(chain, AppHdrChain)
    found = read_content(made.data, MessageHeaders(None, chain.elements))
    assert (found.data, found.properties, found.channel, found.failover) == (data, properties, channel, failover)
    assert bool(found.flags & FLAG_HF_64) is (failover is not None)


def test_both_byte_orders_are_read() -> None:
    items = [Property(b"n", PropertyType.INT, 7), Property(b"s", PropertyType.STRING, b"x")]
    assert [decode_properties(encode(items, order)) for order in ("big", "little")] == [{"n": 7, "s": "x"}] * 2


@pytest.mark.parametrize(
    ("elements", "payload", "data"),
    [
        ([(6, (9).to_bytes(4, "big"), 0)], b"datagarbage!!", b"data"),
        ([(6, (99).to_bytes(4, "big"), 0)], b"all of it", b"all of it"),
        ([(1, b"", 0)], b"x", b"x"),
        ([(2, b"12345", 0)], b"x", b"x"),
    ],
    ids=["no block", "too long", "channel", "number"],
)
def test_headers_that_cannot_be_read_leave_the_data(
    elements: list[tuple[int, bytes, int]], payload: bytes, data: bytes
) -> None:
    found = read_content(payload, MessageHeaders(None, elements))
    assert (found.data, found.properties, found.channel, found.failover) == (data, None, None, None)
    assert all(isinstance(fault, DecodeError) for fault in found.faults)
    assert len(found.faults) == 1


def test_unknown_elements_are_passed_over() -> None:
    assert read_content(b"x", MessageHeaders(None, [(9, b"?", 0)])).faults == ()


pytestmark_network = pytest.mark.usefixtures("network")


@pytestmark_network
@pytest.mark.parametrize("mode", [1, -1])
@pytest.mark.parametrize("size", [3, 40_000])
def test_properties_and_channels_arrive(um_config: Config, transport: str, mode: int, size: int) -> None:
    with BlockingContext(um_config) as a, BlockingContext(um_config) as b:
        source, receiver = a.source("t"), b.receiver("t", ordered_delivery=mode)
        ready(source, receiver, transport)
        source.send(b"x" * size, properties=ALL, channel=7)
        source.send(b"y" * size)
        first, second = take(receiver, 2)
    assert (first.data, first.properties, first.channel, first.hf_sqn) == (b"x" * size, ALL, 7, None)
    assert (second.data, second.properties, second.channel) == (b"y" * size, None, None)


@pytestmark_network
def test_fragments_come_with_the_properties_in_their_bytes(um_config: Config, transport: str) -> None:
    with BlockingContext(um_config) as a, BlockingContext(um_config) as b:
        source, receiver = a.source("t"), b.receiver("t", ordered_delivery=0)
        ready(source, receiver, transport)
        source.send(b"x" * 100_000, properties=ALL)
        source.send(b"y", properties={"n": 1})
        pieces: list[Data] = []
        while not pieces or pieces[-1].data != b"y":
            pieces += take(receiver, 1)
    assert pieces[-1].properties == {"n": 1}
    assert b"".join(piece.data for piece in pieces[:-1]) == b"x" * 100_000 + encode_properties(ALL)
    assert {piece.properties for piece in pieces[:-1]} == {None}


@pytestmark_network
def test_a_receiver_of_batches_gets_messages_with_headers_as_events(um_config: Config, transport: str) -> None:
    batches: list[MessageBatch] = []
    events: list[object] = []
    with BlockingContext(um_config) as a, BlockingContext(um_config) as b:
        source, marker = a.source("t"), b.receiver("t")
        b.receiver("t", on_messages=batches.append, on_event=events.append)
        ready(source, marker, transport)
        source.send(b"1", channel=3)
        source.send(b"2")
        take(marker, 2)
    assert [batch.payloads for batch in batches] == [[b"2"]]
    assert [event.data for event in events if isinstance(event, Data)] == [b"1"]


@pytestmark_network
def test_malformed_properties_are_counted_and_named(
    um_config: Config, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    chain = AppHdrChain((ChainElement(6, (5).to_bytes(4, "big")),))
    with BlockingContext(um_config) as a, BlockingContext(um_config) as b:
        source, receiver = a.source("t"), b.receiver("t")
        ready(source, receiver, transport)
        with a.lock:
            a.core._sources[0].send(b"data12345", blocks=(chain,))
        (message,) = take(receiver, 1)
        assert (message.data, message.properties) == (b"data", None)
        assert b.stats().context.headers_malformed == 1
    assert LogEvent.HEADERS_LEFT_OUT in [record.msg for record in caplog.records]


@pytestmark_network
def test_messages_of_a_batch_wait_for_its_end(um_config: Config, transport: str) -> None:
    marks = [FLAG_START_BATCH, 0, FLAG_END_BATCH, FLAG_START_BATCH | FLAG_END_BATCH]
    with BlockingContext(um_config) as a, BlockingContext(um_config) as b:
        source, receiver, other = a.source("t"), b.receiver("t"), a.source("other")
        heard = b.receiver("other")
        ready(source, receiver, transport)
        ready(other, heard, transport)
        source.send(b"0", start_batch=True)
        source.send(b"1")
        other.send(b"flushed")
        assert take(heard, 1)[0].data == b"flushed"
        sender = a.core._sources[0].writer.sender
        before = sender.statistics().counters.msgs_sent
        source.send(b"2", end_batch=True)
        source.send(b"3", start_batch=True, end_batch=True)
        got = take(receiver, 4)
        assert before == (1 if sender is a.core._sources[1].writer.sender else 0)
    assert [(message.data, message.sqn, message.flags) for message in got] == [
        (b"%d" % n, n, flags) for n, flags in enumerate(marks)
    ]


@pytestmark_network
@pytest.mark.parametrize("end", ["flush", "full", "close"])
def test_a_batch_without_an_end_is_sent(um_config: Config, transport: str, end: str) -> None:
    with BlockingContext(um_config) as a, BlockingContext(um_config) as b:
        source, receiver = a.source("t"), b.receiver("t")
        ready(source, receiver, transport)
        source.send(b"x" * 5000, start_batch=True)
        if end == "full":
            source.send(b"y" * 5000)
        elif end == "flush":
            source.flush()
        else:
            source.close()
        assert take(receiver, 1)[0].data == b"x" * 5000


@pytestmark_network
def test_asyncio_has_the_same(um_config: Config, transport: str) -> None:
    async def run() -> Data:
        async with Context(um_config) as a, Context(um_config) as b:
            source, receiver = await a.source("t"), await b.receiver("t")
            await receiver.wait_sources()
            if transport == "tcp":
                await source.wait_receivers()
            await source.send(b"x", properties=ALL, channel=1, start_batch=True, end_batch=True)
            async for event in receiver:
                if isinstance(event, Data):
                    return event
            raise AssertionError

    got = asyncio.run(asyncio.wait_for(run(), PATIENCE_S))
    assert (got.properties, got.channel, got.flags) == (ALL, 1, FLAG_START_BATCH | FLAG_END_BATCH)
