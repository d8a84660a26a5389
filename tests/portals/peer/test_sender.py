"""The data of a peer link in batches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dro.clock import ms
from dro.proto.peerlink.messages import SourceEnd, SourceRecord, read_source
from dro.proto.peerlink.resume import read_progress
from dro.proto.peerlink.sources import OfferedSources
from dro.transport.runs import KIND_TSNI, Run, RunTable
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.data_blocks import SrcIdx
from dro.wire.lbmc.dro_blocks import TopicSource
from portals.peer.options import Batching
from portals.peer.stream.sender import LinkSender
from portals.peer.stream.writer import ROOM_BYTES, LinkWriter
from tests.fakes.stream import FakeStream
from tests.fakes.um_contexts import Stepper


class Bench:
    """A sender whose link is up; `send` sends messages of source 7."""

    def __init__(self, *, min_bytes: int = 8192, most: int = 65500, smart: bool = False) -> None:
        self.stepper = Stepper()
        self.stream = FakeStream()
        self.sender = LinkSender(self.stepper.loop, Batching(min_bytes, ms(200), most))
        self.writer = LinkWriter(self.stepper.loop, self.sender.on_room, lambda: None)
        self.sender.attach(self.writer)
        self.sender.packs_all = smart
        self.sender.topics[7] = 4711
        self.unblocked = 0
        self.sender.on_unblocked = self._on_unblocked
        self.sqn = 0
        self.writer.open(self.stream)
        self.sender.on_up()

    def _on_unblocked(self) -> None:
        self.unblocked += 1

    def send(self, *sizes: int) -> int:
        buffer, table = bytearray(), RunTable()
        for size in sizes:
            table.add(7, self.sqn, len(buffer), 12 + size, 0, 0)
            buffer += lbmc.HEADER.pack(0, 0, 12 + size, 1, self.sqn) + bytes(size)
            self.sqn += 1
        taken = self.sender.send_batch(buffer, table, self.stepper.clock.now_ns())
        assert table.rows == 0 or taken == 0
        self.sender.flush()
        self.stepper.settle()
        return taken

    def sqns(self) -> list[int]:
        written = bytes(self.stream.written)
        messages = [lbmc.decode(written, at) for at, _ in lbmc.walk(written, 0, len(written))]
        assert all(message.blocks == (SrcIdx(7),) for message in messages)
        return [message.sqn for message in messages if message.sqn is not None]


def test_a_batch_waits_for_its_size_or_its_age() -> None:
    bench = Bench(min_bytes=300)
    bench.send(100)
    bench.send(100)
    assert bench.sqns() == []
    bench.send(100)
    assert bench.sqns() == [0, 1, 2]
    bench.send(100)
    bench.stepper.run(190)
    assert bench.sqns() == [0, 1, 2]
    bench.stepper.run(20)
    assert bench.sqns() == [0, 1, 2, 3]
    assert bench.sender.counters.batch_bytes.count == 2


def test_a_smart_batch_leaves_at_the_end_of_the_turn() -> None:
    bench = Bench(min_bytes=1_000_000, smart=True)
    bench.send(10, 20, 30)
    assert bench.sqns() == [0, 1, 2]
    assert bench.sender.counters.batch_bytes.count == 1


def test_batches_have_at_most_max_datagram() -> None:
    bench = Bench(min_bytes=1000, most=1000)
    bench.send(*[300] * 10)
    bench.stepper.run(210)
    assert bench.sqns() == [*range(10)]
    assert bench.sender.counters.batch_bytes.count == 4  # three of 324 bytes fit


def test_control_messages_keep_their_place() -> None:
    bench = Bench()
    control = lbmc.encode(lbmc.control_message(SrcIdx(9)))
    bench.send(10)
    bench.sender.send_control(control)
    bench.send(10)
    bench.stepper.run(210)
    kinds = [
        lbmc.decode(bytes(bench.stream.written), at).blocks
        for at, _ in lbmc.walk(bench.stream.written, 0, len(bench.stream.written))
    ]
    assert kinds == [(SrcIdx(7),), (SrcIdx(9),), (SrcIdx(7),)]


def test_a_full_link_takes_nothing_and_says_when_it_does_again() -> None:
    bench = Bench(min_bytes=1)
    bench.stream.room = 0
    assert bench.send(*[60_000] * 5) == 5
    assert bench.writer.waiting > ROOM_BYTES
    assert bench.send(10) == 0
    assert bench.sender.is_blocked
    seen = bench.unblocked
    bench.stream.room = None
    bench.writer.on_writable()
    assert bench.unblocked == seen + 1
    assert bench.send(10) == 1


def test_a_link_that_is_down_takes_nothing() -> None:
    bench = Bench()
    bench.send(10)
    bench.writer.close()
    bench.sender.on_down()
    assert bench.send(10) == 0
    bench.stream = FakeStream()
    bench.sender.attach(bench.writer)
    bench.writer.open(bench.stream)
    bench.sender.attach(bench.writer)
    assert bench.send(10) == 0  # the companion does not know the sources yet
    bench.sender.on_up()
    assert bench.send(10) == 1
    bench.stepper.run(210)
    assert bench.sqns() == [0, 3], "the batch that was not sent is kept"


def test_what_is_kept_is_counted_when_it_is_thrown_away() -> None:
    bench = Bench()
    bench.stream.unacknowledged = 5
    bench.send(10)
    bench.writer.close()
    bench.sender.on_down()
    assert bench.sender.counters.lost_bytes == 5
    bench.sender.throw_away()
    assert bench.sender.counters.lost_bytes == 5 + bench.sender.counters.batch_bytes.maximum > 15
    bench.writer.open(FakeStream())
    bench.sender.attach(bench.writer)
    bench.sender.on_up()
    bench.stepper.settle()
    assert (bench.writer.given, bench.writer.waiting) == (0, 0)


def test_it_has_settled_when_all_was_taken() -> None:
    bench = Bench()
    bench.stream.room = 0
    bench.send(100)
    has_settled = bench.sender.settling(0, 0, is_last=True)
    bench.stepper.settle()
    assert not has_settled(0)
    bench.stream.room = None
    bench.writer.on_writable()
    assert has_settled(0)


@pytest.mark.parametrize("kind", [KIND_TSNI])
def test_session_information_goes_behind_the_data(kind: int) -> None:
    bench = Bench(min_bytes=1)
    bench.send(10)
    table = RunTable()
    table.add_run(Run(7, 5, 1, 0, 0, 0, 0, 0, kind))
    bench.sender.send_batch(bytearray(), table, 0)
    bench.stepper.settle()
    messages = [
        lbmc.decode(bytes(bench.stream.written), at)
        for at, _ in lbmc.walk(bench.stream.written, 0, len(bench.stream.written))
    ]
    assert [message.type.name for message in messages] == ["MESSAGE", "CONTROL"]


COMPANION = b"instance"


def resumed(bench: Bench, position: int) -> None:
    """Another connection to the same companion, which has all before `position`."""
    bench.writer.close()
    bench.sender.on_down()
    bench.stream = FakeStream()
    bench.writer = LinkWriter(bench.stepper.loop, bench.sender.on_room, lambda: None)
    bench.sender.attach(bench.writer, COMPANION)
    bench.writer.open(bench.stream)
    assert bench.sender.on_got(position) == ""
    bench.sender.on_up()
    bench.stepper.settle()


def resuming(*, min_bytes: int) -> Bench:
    bench = Bench(min_bytes=min_bytes)
    bench.sender.sent.limit_bytes = 1 << 20
    resumed(bench, 0)
    bench.stream.written.clear()
    return bench


def said(bench: Bench) -> list[str]:
    """What has been written, in order."""
    written = bytes(bench.stream.written)
    found = []
    for at, size in lbmc.walk(written, 0, len(written)):
        raw = written[at : at + size]
        if (position := read_progress(raw)) is not None:
            found.append(f"{position.kind.name} {position.position}")
            continue
        message = lbmc.decode(raw)
        number = message.get(SrcIdx)
        assert number is not None
        if message.get(TopicSource) is None:
            found.append(f"{message.sqn} of {number.source_index}")
        else:
            about = read_source(message)
            found.append(f"{'END' if isinstance(about, SourceEnd) else 'SOURCE'} {about.srcidx}")
    return found


def offered(bench: Bench) -> tuple[OfferedSources, SourceRecord]:
    """A source with the number 7."""
    made, record = OfferedSources(), SourceRecord(0, 1, b"topic", bytes(32), 4711)
    for number in range(7):
        record = made.offer(replace(record, otid=bytes([number]) * 32))
    assert record.srcidx == 7
    bench.sender.number_of = lambda otid: next((m.record.srcidx for m in made.all() if m.record.otid == otid), None)
    return made, record


def test_what_the_companion_has_not_got_leaves_again_before_new_data() -> None:
    bench = resuming(min_bytes=1)
    bench.send(10)
    one = bench.sender.sent.end
    bench.send(10)
    bench.send(10)
    assert said(bench) == ["0 of 7", "1 of 7", "2 of 7"]
    resumed(bench, one)
    bench.send(10)
    assert said(bench) == [f"BEGINS {one}", "1 of 7", "2 of 7", "3 of 7"]
    assert bench.sender.counters.lost_bytes == 0
    assert bench.sender.on_got(4 * one) == ""
    resumed(bench, 4 * one)
    assert said(bench) == [f"BEGINS {4 * one}"]


def test_nothing_leaves_before_the_companion_has_said_where_to_go_on() -> None:
    bench = resuming(min_bytes=1)
    bench.send(10)
    bench.writer.close()
    bench.sender.on_down()
    bench.stream = FakeStream()
    bench.writer = LinkWriter(bench.stepper.loop, bench.sender.on_room, lambda: None)
    bench.sender.attach(bench.writer, COMPANION)
    bench.writer.open(bench.stream)
    bench.sender.on_up()
    assert bench.send(10) == 0
    assert said(bench) == []
    assert bench.sender.on_got(0) == ""
    bench.stepper.settle()
    assert said(bench) == ["BEGINS 0", "0 of 7"]


def test_a_source_that_has_ended_is_offered_again_for_what_is_sent_again() -> None:
    bench = resuming(min_bytes=1)
    sources, record = offered(bench)
    bench.send(10)
    assert bench.sender.send_control(sources.end(record.otid))
    resumed(bench, 0)
    assert said(bench) == ["SOURCE 7", "BEGINS 0", "0 of 7", "END 7"]


def test_a_source_that_ends_while_there_is_no_link_ends_behind_its_data() -> None:
    bench = resuming(min_bytes=1)
    sources, record = offered(bench)
    bench.send(10)
    bench.writer.close()
    bench.sender.on_down()
    assert bench.sender.send_control(sources.end(record.otid))
    bench.writer = LinkWriter(bench.stepper.loop, bench.sender.on_room, lambda: None)
    resumed(bench, 0)
    assert said(bench) == ["SOURCE 7", "BEGINS 0", "0 of 7", "END 7"]


def test_a_source_that_is_offered_under_another_number_goes_on_with_that() -> None:
    bench = resuming(min_bytes=1)
    sources, record = offered(bench)
    bench.send(10, 20)
    bench.sender.send_control(sources.end(record.otid))
    assert sources.offer(record).srcidx == 8
    resumed(bench, 0)
    assert said(bench) == ["BEGINS 0", "0 of 8", "1 of 8", "END 7"]


def test_control_messages_of_sources_stay_behind_what_is_sent_again() -> None:
    bench = resuming(min_bytes=1)
    sources, record = offered(bench)
    for _ in range(ROOM_BYTES // 60_000 * 2):
        bench.send(60_000)
    bench.writer.close()
    bench.sender.on_down()
    bench.stream = FakeStream()
    bench.stream.room = 0
    bench.writer = LinkWriter(bench.stepper.loop, bench.sender.on_room, lambda: None)
    bench.sender.attach(bench.writer, COMPANION)
    bench.writer.open(bench.stream)
    assert bench.sender.on_got(0) == ""
    bench.sender.on_up()
    bench.stepper.settle()
    assert bench.writer.waiting < ROOM_BYTES + 61_000, "a part of it waits there"
    assert bench.send(10) == 0
    assert bench.sender.send_control(sources.end(record.otid))
    bench.stream.room = 1 << 30
    bench.writer.on_writable()
    bench.stepper.settle()
    bench.send(10)
    *data, end, last = said(bench)
    assert data == ["BEGINS 0", *(f"{sqn} of 7" for sqn in range(8))]
    assert (end, last) == ("END 7", "9 of 7")


def test_a_link_that_is_given_up_goes_on_behind_that() -> None:
    bench = resuming(min_bytes=1)
    bench.send(10)
    end = bench.sender.sent.end
    bench.writer.close()
    bench.sender.on_down()
    bench.sender.throw_away()
    assert bench.sender.counters.lost_bytes == end
    bench.writer = LinkWriter(bench.stepper.loop, bench.sender.on_room, lambda: None)
    resumed(bench, 0)
    bench.send(10)
    assert said(bench) == [f"BEGINS {end}", "1 of 7"]
    assert bench.sender.counters.lost_bytes == end
