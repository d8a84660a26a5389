"""Fragmentation (T27), implicit batching (T26) and the TSNI schedule."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.clock import ms, s
from dro.proto.delivery.batching import ImplicitBatch
from dro.proto.delivery.config import DeliveryConfig
from dro.proto.delivery.fragment import fragments, message_limit, split
from dro.proto.delivery.order import DeliveryController
from dro.proto.delivery.reassembly import Delivered
from dro.proto.delivery.tsni import TsniSchedule


def test_t27_three_fragments_with_the_tail_in_the_last() -> None:
    got = fragments(bytes(20000), 7, 8144)
    assert [(f.sqn, f.first_sqn, f.offset, len(f.piece), f.total) for f in got] == [
        (7, 7, 0, 8144, 20000),
        (8, 7, 8144, 8144, 20000),
        (9, 7, 16288, 3712, 20000),
    ]
    assert message_limit(8192) == 8172
    assert message_limit(65535) == 65487  # what UDP carries counts on TCP as well


@given(payload=st.binary(max_size=300), room=st.integers(1, 50), first=st.integers(0, 0xFFFFFFFF))
def test_fragments_join_to_the_message(payload: bytes, room: int, first: int) -> None:
    pieces = fragments(payload, first, room)
    assert len(pieces) == max(1, -(-len(payload) // room))
    c = DeliveryController(DeliveryConfig())
    for f in pieces:
        c.on_fragment(f.sqn, (f.first_sqn, f.offset, f.total), f.piece, 0)
    (message,) = c.take_events()
    assert isinstance(message, Delivered)
    assert bytes(message.payload) == payload


def test_a_datagram_without_room_is_an_error() -> None:
    with pytest.raises(ValueError, match="no room"):
        list(split(b"x", 0))


def test_t26_batches() -> None:
    batch = ImplicitBatch[str](8172)
    assert batch.add("a", 1000, 0) == []
    assert batch.add("b", 900, ms(50)) == []
    assert batch.next_deadline() == ms(200)
    assert batch.on_timer(ms(199)) == []
    assert batch.on_timer(ms(200)) == [["a", "b"]]
    assert batch.next_deadline() is None
    assert batch.add("c", 1500, ms(300)) == []
    assert batch.add("d", 600, ms(310)) == [["c", "d"]]
    assert batch.add("e", 1500, ms(400)) == []
    assert batch.add("f", 7000, ms(405)) == [["e"], ["f"]]
    assert batch.add("g", 10, ms(500), flush=True) == [["g"]]
    assert batch.is_empty


def test_a_batch_takes_what_just_fits_and_leaves_at_the_minimum() -> None:
    batch = ImplicitBatch[str](3000)
    assert batch.is_empty is True
    assert batch.add("a", 2047, 0) == []
    assert batch.is_empty is False
    assert batch.add("b", 953, 0) == [["a", "b"]]
    assert batch.add("c", 2047, 0) == []
    assert batch.add("d", 954, 0) == [["c"]]
    assert batch.add("e", 1093, 0) == [], "the length of what has left does not count"
    assert batch.add("f", 1, 0) == [["d", "e", "f"]]
    assert batch.add("g", 2048, 0) == [["g"]]
    assert (batch.flush(), batch.on_timer(ms(1000)), batch.next_deadline()) == ([], [], None)


def test_a_flushed_message_takes_the_batch_with_it() -> None:
    batch = ImplicitBatch[int](8172)
    batch.add(1, 100, 0)
    assert batch.add(2, 10, 0, flush=True) == [[1, 2]]


def test_a_small_message_after_one_that_did_not_fit_waits_its_own_interval() -> None:
    batch = ImplicitBatch[int](1000, 5000)
    batch.add(1, 900, 0)
    assert batch.add(2, 200, ms(150)) == [[1]]
    assert batch.next_deadline() == ms(350)


def test_the_interval_is_at_least_three_milliseconds() -> None:
    batch = ImplicitBatch[int](1000, 500, 0)
    batch.add(1, 10, 0)
    assert batch.next_deadline() == ms(3)
    assert ImplicitBatch[int](1000, 500, ms(4)).add(1, 500, 0) == [[1]]
    assert batch.flush() == [[1]]
    assert batch.flush() == []


@given(lengths=st.lists(st.integers(1, 1500), max_size=60), flushes=st.randoms(use_true_random=False))
def test_batches_keep_order_and_room(lengths: list[int], flushes: Random) -> None:
    batch = ImplicitBatch[int](2000, 1000)
    out: list[int] = []
    for index, length in enumerate(lengths):
        for datagram in batch.add(index, length, index):
            assert sum(lengths[i] for i in datagram) <= 2000
            out.extend(datagram)
        if flushes.random() < 0.1:
            out.extend(i for datagram in batch.flush() for i in datagram)
            assert out == list(range(index + 1))
    for datagram in batch.flush():
        out.extend(datagram)
    assert out == list(range(len(lengths)))


def sends(schedule: TsniSchedule, until_ns: int) -> list[int]:
    out = []
    while (deadline := schedule.next_deadline()) is not None and deadline <= until_ns:
        assert not schedule.on_timer(deadline - 1)
        assert schedule.on_timer(deadline)
        out.append(deadline)
    return out


def test_tsni_every_interval_for_the_threshold() -> None:
    schedule = TsniSchedule()
    assert schedule.next_deadline() is None
    schedule.on_data(ms(100))
    assert sends(schedule, s(1000)) == [ms(100) + s(5) * k for k in range(1, 13)]


def test_data_starts_the_tsni_series_over() -> None:
    schedule = TsniSchedule()
    schedule.on_data(0)
    assert sends(schedule, s(11)) == [s(5), s(10)]
    schedule.on_data(s(12))
    assert schedule.next_deadline() == s(17)
    assert not schedule.on_timer(s(15))
    assert schedule.on_timer(s(17) - 1) is False
    assert schedule.on_timer(s(17)) is True
    assert schedule.next_deadline() == s(22)


def test_tsni_without_end_and_without_interval() -> None:
    endless = TsniSchedule(threshold_ns=0)
    endless.on_data(0)
    assert len(sends(endless, s(500))) == 100
    off = TsniSchedule(interval_ns=0)
    off.on_data(0)
    assert off.next_deadline() is None


def test_a_late_tsni_timer_sends_one() -> None:
    schedule = TsniSchedule()
    schedule.on_data(0)
    assert schedule.on_timer(s(22))
    assert schedule.next_deadline() == s(25)
