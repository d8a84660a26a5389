"""What waits for the stream of a peer link."""

from __future__ import annotations

import random

import pytest

from dro.proto.peerlink.messages import SourceRecord
from dro.proto.peerlink.sources import OfferedSources
from dro.proto.unicast.connections import Outcome
from portals.peer.stream.writer import ROOM_BYTES, LinkWriter
from tests.fakes.stream import FakeStream
from tests.fakes.um_contexts import Stepper


class Bench:
    def __init__(self, room: int | None = None) -> None:
        self.stepper = Stepper()
        self.stream = FakeStream(room)
        self.rooms = 0
        self.lost = 0
        self.writer = LinkWriter(self.stepper.loop, self._on_room, self._on_lost)

    def _on_room(self) -> None:
        self.rooms += 1

    def _on_lost(self) -> None:
        self.lost += 1

    def open(self) -> Bench:
        self.writer.open(self.stream)
        self.stepper.settle()
        return self

    def unblock(self, room: int | None) -> None:
        self.stream.room = room
        self.writer.on_writable()
        self.stepper.settle()


@pytest.fixture(name="bench")
def _bench() -> Bench:
    return Bench().open()


def test_all_of_a_turn_is_written_at_its_end_in_order(bench: Bench) -> None:
    bench.writer.put(b"one")
    bench.writer.put(bytearray(b"two"))
    assert bench.stream.written == b""
    bench.stepper.settle()
    assert bench.stream.written == b"onetwo"
    assert (bench.writer.waiting, bench.writer.given, bench.writer.taken) == (0, 6, 6)


def test_urgent_messages_go_before_what_was_not_begun(bench: Bench) -> None:
    bench.stream.room = 2
    bench.writer.put(b"begun")
    bench.stepper.settle()
    bench.writer.put(b"later")
    bench.writer.put_urgent(b"URGENT")
    bench.unblock(None)
    assert bench.stream.written == b"begunURGENTlater"


def test_an_urgent_message_that_was_begun_is_finished_first(bench: Bench) -> None:
    bench.stream.room = 0
    bench.writer.put(b"data")
    bench.writer.put_urgent(b"FIRST")
    bench.stepper.settle()
    bench.unblock(2)
    bench.writer.put_urgent(b"SECOND")
    bench.unblock(None)
    assert bench.stream.written == b"FIRSTSECONDdata"


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_torn_however_little_is_taken(seed: int) -> None:
    rng = random.Random(seed)
    bench = Bench(room=0).open()
    ordered, urgent = [], []
    for number in range(60):
        message = f"<{number}{'u' if number % 3 == 0 else 'd'}{'x' * rng.randrange(9)}>".encode()
        if number % 3:
            ordered.append(message)
            bench.writer.put(message)
        else:
            urgent.append(message)
            bench.writer.put_urgent(message)
        bench.unblock(rng.randrange(12))
    while bench.writer.waiting:
        bench.unblock(rng.randrange(1, 12))
    pieces = [piece + b">" for piece in bytes(bench.stream.written).split(b">")[:-1]]
    assert [piece for piece in pieces if b"d" in piece] == ordered
    assert [piece for piece in pieces if b"u" in piece] == urgent
    assert sorted(pieces) == sorted([*ordered, *urgent])
    assert bench.writer.taken == bench.writer.given == sum(map(len, ordered))


def test_room_is_reported_when_there_is_some_again(bench: Bench) -> None:
    assert bench.rooms == 1  # it was opened
    bench.stream.room = 0
    bench.writer.put(bytes(ROOM_BYTES))
    bench.stepper.settle()
    assert not bench.writer.has_room
    bench.unblock(10)
    assert (bench.writer.has_room, bench.rooms) == (True, 2)
    bench.unblock(None)
    assert bench.rooms == 2


def test_room_is_reported_as_well_when_it_went_while_the_stream_was_blocked(bench: Bench) -> None:
    bench.stream.room = 0
    bench.writer.put(b"x")
    bench.stepper.settle()
    bench.writer.put(bytes(ROOM_BYTES))
    bench.stepper.settle()
    bench.unblock(None)
    assert (bench.writer.has_room, bench.rooms) == (True, 2)


def test_a_stream_is_stuck_since_it_took_something_last(bench: Bench) -> None:
    bench.stream.room = 3
    assert bench.writer.stuck_ns is None
    bench.writer.put(b"abcdef")
    bench.stepper.settle()
    began_ns = bench.stepper.clock.time_ns
    bench.stepper.run(100)
    assert bench.writer.stuck_ns == began_ns
    bench.unblock(0)
    assert bench.writer.stuck_ns == began_ns, "it took nothing"
    bench.unblock(1)
    assert bench.writer.stuck_ns == bench.stepper.clock.time_ns > began_ns
    bench.unblock(None)
    assert (bench.writer.stuck_ns, bench.stream.written) == (None, b"abcdef")


def test_what_is_told_is_made_while_there_is_room() -> None:
    bench = Bench(room=0).open()
    made = []

    def messages() -> object:
        for number in range(1000):
            made.append(number)
            yield bytes(1024)

    bench.writer.put_in_slices(messages())  # type: ignore[arg-type]
    bench.stepper.settle()
    assert len(made) == ROOM_BYTES // 1024
    bench.unblock(100 << 10)
    assert len(made) == ROOM_BYTES // 1024 + 100
    bench.unblock(None)
    assert len(bench.stream.written) == 1000 * 1024


def test_several_tellings_follow_each_other(bench: Bench) -> None:
    bench.writer.put_in_slices(iter([b"a", b"b"]))
    bench.writer.put_in_slices(iter([b"c"]))
    bench.stepper.settle()
    assert bench.stream.written == b"abc"


def test_changes_of_interest_stay_behind_what_was_told_about_it() -> None:
    bench = Bench(room=0).open()
    bench.writer.put(bytearray(b"data"))
    bench.writer.put_in_slices(iter([b"source"]))
    bench.writer.put_all_interest(bytes(ROOM_BYTES // 2) for _ in range(3))
    bench.stepper.settle()
    bench.writer.put_interest([b"CHANGE"])
    bench.writer.put_interest([b"ANOTHER"])
    bench.stepper.settle()
    assert not bench.writer.has_put_all
    bench.unblock(None)
    written = bytes(bench.stream.written).replace(b"\0", b"")
    assert written.index(b"CHANGE") < written.index(b"ANOTHER")
    assert bench.stream.written.endswith(b"CHANGEANOTHERsource")
    assert bench.writer.has_put_all
    bench.writer.put(bytearray(b"data"))
    bench.writer.put_interest([b"URGENT"])
    bench.stepper.settle()
    assert bench.stream.written.endswith(b"URGENTdata"), "nothing was being told"
    assert bench.writer.control.sent == 7, "each once: all but the data"


def test_sources_count_as_told_from_when_nothing_can_get_before_them() -> None:
    """Though data never stops waiting."""
    bench, offered = Bench(room=0).open(), OfferedSources()
    for number in (1, 2):
        offered.offer(SourceRecord(0, 1, b"T", bytes(31) + bytes([number]), number))
    first, second = offered.all()
    for piece in (bytes(100), first, bytes(100), second, bytes(100), offered.end(bytes(31) + b"\1"), bytes(100)):
        bench.writer.put(piece)
    bench.stepper.settle()
    told = []
    for room in (100, 1, len(first), 99, 1, len(second) + 99, 1):
        bench.unblock(room)
        told.append([record.topic_index for record in bench.writer.sources.all()])
    assert told == [[], [1], [1], [1], [1, 2], [1, 2], [2]]
    assert bench.writer.has_put_all
    assert bench.writer.waiting


def test_what_is_told_once_more_has_been_told_when_the_stream_has_taken_it() -> None:
    bench = Bench(room=0).open()
    bench.writer.put(bytes(1000))
    bench.writer.put_in_slices(iter([b"again"]))
    bench.stepper.settle()
    for room in (1000, 4):
        assert not bench.writer.has_put_all
        bench.writer.put(bytes(1000))
        bench.unblock(room)
    assert not bench.writer.has_put_all
    bench.unblock(1000)
    assert bench.writer.has_put_all
    assert bench.writer.waiting


def test_all_interest_is_told_twice_at_most_while_the_stream_is_slow() -> None:
    bench = Bench(room=0).open()
    for number in range(9):
        bench.writer.put_all_interest(iter([bytes(ROOM_BYTES), b"<%d>" % number]))
        bench.stepper.settle()
    bench.unblock(None)
    assert bytes(bench.stream.written).replace(b"\0", b"") == b"<0><1>"
    bench.writer.put_all_interest(iter([b"<9>"]))
    bench.stepper.settle()
    assert bench.stream.written.endswith(b"<9>")


def test_a_closed_one_forgets_and_takes_nothing(bench: Bench) -> None:
    bench.stream.room = 1
    bench.writer.put(b"lost")
    bench.stepper.settle()
    bench.writer.close()
    bench.writer.put(b"nothing")
    bench.writer.put_urgent(b"nothing")
    bench.writer.put_in_slices(iter([b"nothing"]))
    bench.stepper.settle()
    assert (bench.stream.written, bench.writer.waiting, bench.writer.has_room) == (b"l", 0, False)
    assert bench.writer.taken == bench.writer.given
    bench.stream = FakeStream()
    bench.open()
    bench.writer.put(b"anew")
    bench.stepper.settle()
    assert bench.stream.written == b"anew"


def test_a_closed_one_says_what_it_has_not_begun_and_what_may_be_lost() -> None:
    bench = Bench(room=3).open()
    bench.writer.put(bytearray(b"begun"))
    bench.writer.put(b"control")
    bench.writer.put(bytearray(b"whole"))
    told: list[Outcome] = []
    bench.writer.put_unicast(b"unicast", told.append)
    bench.stepper.settle()
    bench.stream.unacknowledged = 1000
    assert (told, bench.writer.waiting_unicast) == ([], 7)
    bench.writer.close()
    assert told == [Outcome.DOWN]
    assert (bench.writer.control.lost, bench.writer.control.lost_bytes, bench.writer.control.sent) == (1, 7, 0)
    assert bench.writer.unsent == [b"whole"]
    assert bench.writer.lost == 1000 + len(b"un") + len(b"unicast")


def test_what_is_sent_counts_once_it_is_begun() -> None:
    bench = Bench(room=0).open()
    told: list[Outcome] = []
    bench.writer.put_urgent(b"urgent")
    bench.writer.put(b"source")
    bench.writer.put_unicast(b"unicast", told.append)
    bench.stepper.settle()
    bench.unblock(6)
    assert (bench.writer.control.sent, bench.writer.control.sent_bytes, told) == (1, 6, [])
    bench.unblock(1)
    assert (bench.writer.control.sent, bench.writer.control.sent_bytes, told) == (2, 12, [])
    bench.unblock(6)
    assert (told, bench.writer.waiting_unicast) == ([Outcome.SENT], 0)
    bench.unblock(None)
    assert bench.stream.written == b"urgentsourceunicast"
    assert (bench.writer.control.sent, told) == (2, [Outcome.SENT])
    bench.writer.close()
    bench.writer.put_unicast(b"unicast", told.append)
    assert (bench.writer.control.lost, told) == (0, [Outcome.SENT, Outcome.DOWN])


def test_a_stream_that_broke_is_reported_once(bench: Bench) -> None:
    bench.stream.is_broken = True
    bench.writer.put(b"x")
    bench.stepper.settle()
    assert bench.lost == 1
