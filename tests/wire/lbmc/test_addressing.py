"""Where a message goes, read in place: the same that a full decode finds."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.errors import DecodeError
from dro.wire.lbmc import addressing as ad
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.codes import MessageType
from dro.wire.lbmc.data_blocks import CtxInstD, Destination, Frag, Stream, TopicName
from dro.wire.lbmc.dro_blocks import CtxInfo, RouteInfo, TopicSource

u32, u16 = st.integers(0, 0xFFFFFFFF), st.integers(0, 0xFFFF)
instances = st.binary(min_size=8, max_size=8)
blocks = st.one_of(
    st.builds(Destination, u32, u32, u16, u32, u32, u16, hops_taken=u16, growth=st.binary(max_size=4)),
    st.builds(CtxInstD, instances),
    st.builds(Stream, u32, u32, instances),
    st.builds(TopicName, st.binary(min_size=1, max_size=30).filter(lambda name: not name.endswith(b"\0"))),
    st.builds(Frag, u32, u32, u32),
    st.just(RouteInfo(5, 1, 1, 1)),
    st.just(CtxInfo(flags=0)),
    st.just(TopicSource(5)),
)


@st.composite
def messages(draw: st.DrawFn) -> lbmc.Message:
    found = tuple(draw(st.lists(blocks, max_size=6)))
    if draw(st.booleans()):
        return lbmc.control_message(*found)
    kind = draw(st.sampled_from([MessageType.MESSAGE, MessageType.RETRANSMISSION]))
    return lbmc.Message(kind, 1, 2, found, draw(st.binary(max_size=50)))


@given(messages())
def test_the_addressing_is_that_of_the_first_block_of_each_kind(message: lbmc.Message) -> None:
    found = ad.read_addressing(lbmc.encode(message))
    assert found.is_data is (message.type is not MessageType.CONTROL)
    there, instance, stream = message.get(Destination), message.get(CtxInstD), message.get(Stream)
    assert (found.destination is None) is (there is None)
    if there is not None and found.destination is not None:
        to = found.destination
        assert (to.domain_id, to.ip, to.port, to.hops_taken) == (
            there.domain_id,
            there.ip,
            there.port,
            there.hops_taken,
        )
    assert found.instance == (None if instance is None else instance.ctxinst)
    assert found.stream == (None if stream is None else (stream.ctxinst, stream.stream_id, stream.sqn))
    of_dros = [block.code for block in message.blocks if block.code in ad.OF_DROS]
    assert found.dro_code == (of_dros[0] if of_dros and not found.is_data else 0)


@given(messages(), u16)
def test_hops_are_rewritten_and_nothing_else(message: lbmc.Message, hops: int) -> None:
    data = lbmc.encode(message)
    to = ad.read_addressing(data).destination
    if to is not None:
        again = ad.with_hops(data, to, hops)
        changed = ad.read_addressing(again).destination
        assert changed is not None
        assert changed.hops_taken == hops
        assert ad.with_hops(again, changed, to.hops_taken) == data


@given(messages(), st.data())
def test_a_damaged_message_is_an_error_or_read(message: lbmc.Message, data: st.DataObject) -> None:
    whole = bytearray(lbmc.encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(4, len(whole))) if len(whole) > 4 else 4
        if at < len(whole):
            whole[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DecodeError):
        ad.read_addressing(bytes(whole))


@pytest.mark.parametrize(("code", "size"), [(0x64, 24), (0x0C, 8), (0x4B, 16)])
def test_a_block_that_is_too_short_is_an_error(code: int, size: int) -> None:
    block = bytes([0xFF, size]) + bytes(size - 2)
    with pytest.raises(DecodeError):
        ad.read_addressing(bytes([8, code]) + (4 + size).to_bytes(2, "big") + block)
