"""LBT-TCP source: slow receivers (T30), whole messages only, session check, wakeups, bounded buffers."""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.clock import ms
from dro.errors import LocalProtocolError
from dro.proto.tcp.source import (
    CloseClient,
    CloseReason,
    Connected,
    Discarded,
    Disconnected,
    SlowReceiver,
    TcpSourceConfig,
    TcpSourceCore,
    Wakeup,
)

A, B = 1, 2
BEHAVIORS = list(SlowReceiver)


def core(
    behavior: SlowReceiver = SlowReceiver.NORMAL, clients: tuple[int, ...] = (A, B), most: int = 65_536
) -> TcpSourceCore:
    made = TcpSourceCore(TcpSourceConfig(behavior=behavior, max_buffer_bytes=most), Random(1).random)
    assert not made.has_events
    for client in clients:
        assert made.on_connected(client, 0)
    made.take_events()
    return made


def write(c: TcpSourceCore, client: int, most: int | None = None, now_ns: int = 0) -> bytes:
    """What a socket with room for `most` bytes takes."""
    data = b"".join(c.pending(client, 1_000_000))[:most]
    c.on_written(client, len(data), now_ns)
    return data


def message(number: int, size: int) -> bytes:
    """LBMC-like: type and number, then its own length, so that a reader can check the framing."""
    return number.to_bytes(2) + size.to_bytes(2) + bytes(size - 4)


def numbers(stream: bytes) -> list[int]:
    """Split a stream into messages; fails when the framing is lost."""
    found, pos = [], 0
    while pos < len(stream):
        size = int.from_bytes(stream[pos + 2 : pos + 4])
        assert 4 <= size <= len(stream) - pos
        found.append(int.from_bytes(stream[pos : pos + 2]))
        pos += size
    return found


def test_t30_normal() -> None:
    c = core()
    for i, t in enumerate((0, 10, 20, 30), 1):
        assert c.send(message(i, 16_384), ms(t))
        assert numbers(write(c, A)) == [i]
    assert not c.send(message(5, 16_384), ms(40))
    assert c.pending(A) == []
    assert not c.has_events
    assert numbers(write(c, B, now_ns=ms(100))) == [1, 2, 3, 4]
    assert c.has_events
    assert c.take_events() == [Wakeup(ms(100))]
    assert not c.has_events
    assert c.send(message(5, 16_384), ms(101))


def test_t30_source_paced() -> None:
    c = core(SlowReceiver.SOURCE_PACED)
    for i, t in enumerate((0, 10, 20, 30, 40), 1):
        assert c.send(message(i, 16_384), ms(t))
        assert numbers(write(c, A)) == [i]
    assert c.take_events() == [Discarded(B, 1, ms(40))]
    assert c.pending_bytes(B) == 65_536
    assert numbers(write(c, B)) == [2, 3, 4, 5]
    assert c.stats.msgs_discarded == 1
    assert c.stats.bytes_buffered == 0


def test_bounded_latency_drops_for_the_slow_and_waits_for_the_fastest() -> None:
    c = core(SlowReceiver.BOUNDED_LATENCY)
    for i in range(1, 6):
        assert c.send(message(i, 16_384), ms(i))
        write(c, A)
    assert c.take_events() == [Discarded(B, 1, ms(5))]
    accepted = [c.send(message(i, 16_384), ms(i)) for i in range(6, 11)]
    assert accepted == [True] * 4 + [False]
    write(c, A, 16_384, ms(20))
    assert Wakeup(ms(20)) in c.take_events()


def test_a_message_that_was_begun_is_completed() -> None:
    c = core(SlowReceiver.SOURCE_PACED, (B,), 1000)
    c.send(message(1, 400), 0)
    c.send(message(2, 400), 0)
    stream = write(c, B, 100)
    for i in range(3, 10):
        assert c.send(message(i, 400), ms(i))
        assert c.pending_bytes(B) <= 1000
    stream += write(c, B)
    assert numbers(stream) == [1, 9]
    assert c.stats.msgs_discarded == 7


def test_a_message_of_which_nothing_has_gone_out_can_be_discarded() -> None:
    c = core(SlowReceiver.SOURCE_PACED, (B,), 1000)
    batch = b"".join(message(i, 100) for i in range(10))
    c.send_run(batch, 0, range(100, 1001, 100), 0)
    stream = write(c, B, 300)
    c.send(message(10, 1000), 0)
    stream += write(c, B)
    assert numbers(stream) == [0, 1, 2, 10]


def test_a_batch_that_is_larger_than_the_room_behind_a_begun_message_loses_its_own_oldest() -> None:
    c = core(SlowReceiver.SOURCE_PACED, (B,), 1000)
    c.send(message(1, 900), 0)
    stream = write(c, B, 100)
    batch = b"".join(message(i, 100) for i in range(2, 12))
    assert c.send_run(batch, 0, range(100, 1001, 100), ms(1)) == 10
    assert c.pending_bytes(B) == 1000
    stream += write(c, B)
    assert numbers(stream) == [1, 10, 11]
    assert c.take_events() == [Discarded(B, 8, ms(1))]


@pytest.mark.parametrize(("begun_bytes", "lost"), [(99, 1), (100, 1), (101, 2), (200, 2), (201, 3), (899, 9)])
def test_as_few_messages_as_possible_are_lost(begun_bytes: int, lost: int) -> None:
    """Behind the rest of a begun message one of 50 bytes, then a batch of 900 bytes from the middle of its buffer."""
    c = core(SlowReceiver.SOURCE_PACED, (B,), 1000)
    c.send(message(0, 900), 0)
    stream = write(c, B, 900 - begun_bytes)
    c.send(message(1, 60), 0)
    batch = bytes(70) + b"".join(message(i, 100) for i in range(2, 11))
    assert c.send_run(batch, 70, range(170, 971, 100), ms(1)) == 9
    assert c.take_events() == [Discarded(B, lost, ms(1))]
    assert c.stats.msgs_discarded == lost
    assert numbers(stream + write(c, B)) == [0, *range(1 + lost, 11)]


def test_of_a_batch_that_waits_only_the_oldest_messages_are_lost() -> None:
    c = core(SlowReceiver.SOURCE_PACED, (B,), 1000)
    batch = bytes(30) + b"".join(message(i, 100) for i in range(10))
    c.send_run(batch, 30, range(130, 1031, 100), 0)
    c.send(message(10, 201), ms(1))
    assert c.take_events() == [Discarded(B, 3, ms(1))]
    assert (c.pending_bytes(B), c.stats.bytes_buffered) == (901, 901)
    assert numbers(write(c, B)) == [*range(3, 11)]


def test_a_begun_message_that_is_complete_leaves_nothing_behind() -> None:
    c = core(clients=(A,))
    c.send(message(1, 400), 0)
    mark = c.mark()
    write(c, A, 100)
    assert [len(view) for view in c.pending(A)] == [300]
    assert c.has_passed(mark), "it has been begun"
    write(c, A, 300)
    assert (c.pending(A), c.pending_bytes(A)) == ([], 0)


def test_the_sender_is_woken_as_soon_as_the_refused_message_fits() -> None:
    c = core(clients=(A,), most=1000)
    assert c.send_run(bytes(1250), 50, (650, 1250), 0) == 1
    for left in (500, 401):
        write(c, A, c.pending_bytes(A) - left)
        assert c.take_events() == []
    write(c, A, 1, ms(3))
    assert c.take_events() == [Wakeup(ms(3))]
    write(c, A, 1)
    assert c.take_events() == [], "once"


def test_receivers_that_wait_share_what_is_left_of_the_buffer() -> None:
    c = core(most=1000)
    c.send(message(1, 200), 0)
    assert c.send_run(bytes(1000), 0, range(100, 1001, 100), 0) == 3
    assert c.stats.bytes_buffered == 1000


def test_the_defaults_are_a_buffer_of_64_kib_and_1024_receivers() -> None:
    c = TcpSourceCore(TcpSourceConfig(), Random(1).random)
    assert [c.on_connected(client, 0) for client in range(1025)] == [True] * 1024 + [False]
    one = TcpSourceCore(TcpSourceConfig(), Random(1).random)
    one.on_connected(A, 0)
    assert one.send_run(bytes(70_000), 0, (1, 65_537), 0) == 1
    assert one.send(bytes(65_535), 0)
    assert not one.send(b"x", 0)


def test_a_message_larger_than_the_buffer_goes_when_nothing_waits() -> None:
    c = core(most=1000)
    assert c.send(message(1, 5000), 0)
    assert not c.send(message(2, 10), 0)
    write(c, A)
    write(c, B)
    assert c.take_events() == [Wakeup(0)]
    assert c.send(message(2, 10), 0)


def test_a_batch_is_taken_as_far_as_there_is_room() -> None:
    c = core(most=1000)
    batch = b"".join(message(i, 100) for i in range(20))
    ends = list(range(100, 2001, 100))
    assert c.send_run(batch, 0, ends, 0) == 10
    write(c, A)
    write(c, B, 250)
    assert c.send_run(batch, 1000, ends[10:], 0) == 2
    assert numbers(write(c, A)) == [10, 11]
    c.on_written(B, 0, 0)
    assert not c.send_run(batch, 1200, ends[12:], 0)
    stream = write(c, B)
    assert len(stream) == 750 + 200
    assert Wakeup(0) in c.take_events()
    assert c.stats.msgs_sent == 12
    assert c.stats.bytes_sent == 1200


def test_without_receivers_everything_is_taken_and_nothing_kept() -> None:
    c = core(clients=(), most=1000)
    assert c.send_run(bytes(100_000), 0, range(100, 100_001, 100), 0) == 1000
    assert c.send_run(b"", 0, (), 0) == 0
    assert c.stats.bytes_buffered == 0


def test_a_receiver_gets_what_is_sent_after_it_connected() -> None:
    c = core(clients=(A,))
    c.send(message(1, 10), 0)
    assert c.on_connected(B, ms(1))
    assert c.take_events() == [Connected(B, ms(1))]
    c.send(message(2, 10), ms(2))
    assert numbers(write(c, A)) == [1, 2]
    assert numbers(write(c, B)) == [2]


def test_a_receiver_that_leaves_frees_its_share() -> None:
    c = core(most=1000)
    c.send(message(1, 900), 0)
    write(c, A)
    assert not c.send(message(2, 900), 0)
    c.on_disconnected(B, ms(5))
    assert c.take_events() == [Disconnected(B, ms(5)), Wakeup(ms(5))]
    assert c.stats.bytes_buffered == 0
    assert c.stats.num_clients == 1
    c.on_disconnected(B, ms(6))
    c.on_written(B, 10, ms(6))
    assert c.take_events() == []
    assert (c.pending(B), c.pending_bytes(B)) == ([], 0)


def test_the_session_id_is_checked() -> None:
    c = TcpSourceCore(TcpSourceConfig(session_id=0xABC), Random(1).random)
    c.on_connected(A, 0)
    c.on_connected(B, 0)
    c.take_events()
    assert c.on_session_id(A, 0xABC, ms(1))
    assert not c.on_session_id(B, 0xABD, ms(2))
    assert c.take_events() == [CloseClient(B, CloseReason.SESSION_ID, ms(2)), Disconnected(B, ms(2))]
    assert c.send_order() == [A]
    assert c.on_session_id(B, 0xABD, ms(3))


def test_a_session_without_id_takes_any() -> None:
    c = core()
    assert c.on_session_id(A, 0x123, 0)
    assert not c.has_events


def test_bad_input_closes_the_connection() -> None:
    c = core()
    c.on_bad_input(A, ms(1))
    assert c.take_events() == [CloseClient(A, CloseReason.BAD_INPUT, ms(1)), Disconnected(A, ms(1))]


def test_too_many_clients_are_turned_away() -> None:
    c = TcpSourceCore(TcpSourceConfig(max_clients=1), Random(1).random)
    assert c.on_connected(A, 0)
    assert not c.on_connected(B, 1)
    assert c.take_events() == [Connected(A, 0), CloseClient(B, CloseReason.TOO_MANY, 1)]


def test_mistakes_of_the_shell_are_noticed() -> None:
    c = core()
    with pytest.raises(LocalProtocolError):
        c.on_connected(A, 0)
    with pytest.raises(LocalProtocolError):
        c.on_written(A, 1, 0)


def test_the_order_of_receivers_is_serial_or_random() -> None:
    serial = core(clients=(5, 3, 9))
    assert serial.send_order() == [5, 3, 9]
    drawn = TcpSourceCore(TcpSourceConfig(random_order=True), Random(4).random)
    for client in range(3):
        drawn.on_connected(client, 0)
    assert {tuple(drawn.send_order()) for _ in range(100)} == set(permutations(range(3)))


def test_all_receivers_share_the_bytes_of_a_batch() -> None:
    c = core()
    batch = bytearray(message(1, 1000))
    c.send_run(batch, 0, (1000,), 0)
    assert c.pending(A)[0].obj is batch
    assert c.pending(B)[0].obj is batch


def test_pending_is_limited_to_what_one_gathered_write_takes() -> None:
    c = core()
    for i in range(100):
        c.send(message(i, 10), 0)
    assert len(c.pending(A)) == 64
    assert len(c.pending(A, 3)) == 3
    write(c, A, 5)
    assert [len(view) for view in c.pending(A, 3)] == [5, 10, 10]


@given(
    behavior=st.sampled_from(BEHAVIORS),
    seed=st.integers(0, 10_000),
    most=st.sampled_from([100, 1000, 5000]),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("send"), st.lists(st.integers(4, 600), min_size=1, max_size=20)),
            st.tuples(st.just("write"), st.tuples(st.sampled_from([A, B]), st.integers(0, 3000))),
        ),
        max_size=60,
    ),
)
def test_streams_are_whole_messages_in_order(
    behavior: SlowReceiver, seed: int, most: int, steps: list[tuple[str, tuple[int, int] | list[int]]]
) -> None:
    """Whatever is written when: no message twice, none out of order, none cut; all of them in `normal`."""
    c = core(behavior, most=most)
    streams = {A: b"", B: b""}
    sent: list[int] = []
    largest = 0
    number = 0
    shift = Random(seed).randrange(50)
    for kind, values in steps:
        if kind == "write":
            client, room = values
            streams[client] += write(c, client, room)
            continue
        batch = bytearray(bytes(shift))
        ends: list[int] = []
        for size in values:
            batch += message((number + len(ends)) & 0xFFFF, size)
            ends.append(len(batch))
        largest = max([largest, *values])
        accepted = c.send_run(batch, shift, ends, 0)
        sent += range(number, number + accepted)
        number += accepted
        assert 0 <= accepted <= len(ends)
        if behavior is SlowReceiver.SOURCE_PACED:
            assert accepted > 0
        for client in (A, B):
            assert c.pending_bytes(client) <= max(most, largest) + largest
        assert c.stats.bytes_buffered == c.pending_bytes(A) + c.pending_bytes(B)
    got = {client: numbers(streams[client] + write(c, client)) for client in (A, B)}
    discarded = 2 * len(sent) - len(got[A]) - len(got[B])
    for client in (A, B):
        assert got[client] == sorted(set(got[client]))
        assert set(got[client]) <= set(sent)
        if sent:
            assert got[client][-1] == sent[-1]
    assert c.stats.msgs_discarded == discarded
    assert sum(event.messages for event in c.take_events() if isinstance(event, Discarded)) == discarded
    if behavior is SlowReceiver.NORMAL:
        assert discarded == 0
    assert c.stats.bytes_buffered == 0


@pytest.mark.parametrize("behavior", BEHAVIORS)
def test_a_refused_sender_is_always_woken(behavior: SlowReceiver) -> None:
    c = core(behavior, most=500)
    random = Random(3)
    refusals = wakeups = 0
    for i in range(500):
        if not c.send(message(i, random.randrange(4, 300)), 0):
            refusals += 1
            c.take_events()
            write(c, A)
            write(c, B)
            wakeups += c.take_events().count(Wakeup(0))
        elif random.random() < 0.3:
            write(c, random.choice((A, B)), random.randrange(400))
    assert wakeups == refusals
    assert (refusals > 0) == (behavior is not SlowReceiver.SOURCE_PACED)


def test_a_mark_is_passed_when_every_client_has_what_it_had_pending() -> None:
    c = core()
    assert c.has_passed(c.mark())
    for number in range(3):
        assert c.send(message(number, 1000), 0)
    mark = c.mark()
    write(c, A, 2500)
    assert c.send(message(3, 1000), 0), "what comes later does not count"
    write(c, A, 501)
    assert not c.has_passed(mark), "the other client has nothing yet"
    write(c, B, 3000)
    assert c.has_passed(mark)
    assert not c.has_passed(c.mark())


def test_a_mark_does_not_wait_for_a_client_that_went() -> None:
    c = core()
    assert c.send(message(1, 1000), 0)
    mark = c.mark()
    write(c, A)
    c.on_disconnected(B, 0)
    assert c.has_passed(mark)
    assert c.on_connected(B, 0), "another one under its number"
    assert c.send(message(2, 1000), 0)
    assert c.has_passed(mark)


def test_messages_that_are_discarded_are_not_waited_for() -> None:
    c = core(SlowReceiver.SOURCE_PACED, clients=(A,), most=2000)
    assert c.send(message(1, 1500), 0)
    mark = c.mark()
    assert c.send(message(2, 1500), 0)
    assert c.has_passed(mark)
