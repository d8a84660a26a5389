"""The data of a link when its process is killed at each step: all reaches the companion, once and in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dro.clock import ms
from dro.proto.peerlink.messages import SourceRecord
from dro.proto.peerlink.resume import read_progress
from dro.proto.peerlink.sources import OfferedSources
from dro.transport.runs import RunTable
from dro.wire.lbmc import message as lbmc
from portals.datapath.duplicate_window import DuplicateWindow
from portals.peer.options import Batching
from portals.peer.stream.kept_link import KeptLink
from portals.peer.stream.link_log import LEAST_BYTES, LinkLog
from portals.peer.stream.sender import LinkSender
from portals.peer.stream.writer import LinkWriter
from tests.fakes.kept import Killed, Lives
from tests.fakes.stream import FakeStream
from tests.fakes.um_contexts import Stepper

COMPANION = b"compani1"
SOURCE = SourceRecord(0, 1, b"topic", bytes(32), 4711)


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    made = Lives(tmp_path)
    yield made
    made.close()


class Companion:
    """Takes whole messages off what was written, and knows up to where it has data."""

    def __init__(self) -> None:
        self.sqns: list[int] = []
        self.position = 0
        self.ends = 0
        self.told: list[int] = []

    def take(self, written: bytes) -> None:
        at = 0
        while len(written) - at >= lbmc.MINIMAL.size and at + lbmc.MINIMAL.unpack_from(written, at)[2] <= len(written):
            size = lbmc.MINIMAL.unpack_from(written, at)[2]
            raw = written[at : at + size]
            at += size
            if (begins := read_progress(raw)) is not None:
                assert begins.position == self.position
                continue
            message = lbmc.decode(raw)
            if message.sqn is not None:
                self.sqns.append(message.sqn)
                self.position += size
            else:
                self.ends += 1


class Life:
    """One process, whose sibling announces turns of messages; what a turn took is noted when it is over."""

    def __init__(self, lives: Lives, companion: Companion, step: Callable[[], object]) -> None:
        kept = KeptLink(lives.kept.rows)
        log = LinkLog.open(lives.kept, LEAST_BYTES, 0)
        assert log is not None
        self.stepper, self.stream, self.companion, self.step = Stepper(), FakeStream(), companion, step
        self.sender = LinkSender(self.stepper.loop, Batching(1000, ms(200), 65500))
        self.goes_on = kept.goes_on and log.goes_on
        self.turn = lives.kept.turn
        self.sender.keep_in(log, kept.companion if self.goes_on else b"", lambda: None)
        kept.note(COMPANION, 0)
        number = OfferedSources(kept).offer(SOURCE).srcidx
        assert number == 1, "it keeps its number"
        self.sender.topics[number] = 4711
        self.sender.number_of = lambda _: number
        self.window = DuplicateWindow(1000, 100)
        for sqn, count in self.sender.sent_before.pop(number, ()):
            self.window.take_run(sqn, count)
        self.writer = LinkWriter(self.stepper.loop, self.sender.on_room, lambda: None)
        for name in ("note",):
            self._make_mortal(log, name)
        self._make_mortal(self.stream, "send_pieces")

    def _make_mortal(self, thing: object, name: str) -> None:
        """Let the process be killed before or after each call."""
        call = getattr(thing, name)

        def mortal(*words: object, **more: object) -> object:
            self.step()
            made = call(*words, **more)
            self.step()
            return made

        setattr(thing, name, mortal)

    def connect(self) -> None:
        self.sender.attach(self.writer, COMPANION)
        self.writer.open(self.stream)
        assert self.sender.on_got(self.companion.position) == ""
        self.sender.on_up()
        self.stepper.settle()

    def take_turn(self, first: int, count: int) -> None:
        buffer, table = bytearray(), RunTable()
        for sqn in range(first, first + count):
            if self.window.take_run(sqn, 1):
                table.add(1, sqn, len(buffer), 112, 0, 0)
                buffer += lbmc.HEADER.pack(0, 0, 112, 1, sqn) + bytes(100)
        if table.rows:
            assert self.sender.send_batch(buffer, table, 0)
        self.sender.flush()
        self.step()
        self.stepper.settle()


@pytest.mark.parametrize("received", [0.0, 0.4, 1.0])
def test_a_process_that_is_killed_at_any_step_loses_and_doubles_nothing(tmp_path: Path, received: float) -> None:
    deaths = 0
    for last in range(1, 60):
        folder = tmp_path / str(last)
        folder.mkdir()
        lives, companion, steps = Lives(folder), Companion(), [last]

        def step(steps: list[int] = steps) -> None:
            steps[0] -= 1
            if not steps[0]:
                raise Killed

        place, turns = 0, [3, 7, 1, 12, 5, 2]
        life = Life(lives, companion, step)
        try:
            life.connect()
            for count in turns:
                life.take_turn(place, count)
                place += count
                life.turn.former, life.turn.now = life.turn.now, life.turn.now + 1
        except Killed:
            deaths += 1
        companion.take(bytes(life.stream.written[: int(received * len(life.stream.written))]))
        former = life.turn.former
        lives.next_life()
        lives.kept.turn.former, lives.kept.turn.now = former, former + 2
        life = Life(lives, companion, lambda: None)
        assert life.goes_on
        life.connect()
        life.take_turn(place, 30 - place)
        life.stepper.run(250)
        companion.take(bytes(life.stream.written))
        lives.close()
        assert companion.sqns == [*range(30)], f"killed at step {last}"
    assert 20 < deaths < 59, "some are not killed at all"


def test_a_source_that_had_ended_ends_behind_its_data(lives: Lives) -> None:
    companion = Companion()
    life = Life(lives, companion, lambda: None)
    life.connect()
    life.take_turn(0, 5)
    sources = OfferedSources()
    sources.offer(SOURCE)
    life.sender.send_control(sources.end(SOURCE.otid))
    lives.next_life()
    life = Life(lives, companion, lambda: None)
    life.sender.number_of = lambda _: None
    life.connect()
    companion.take(bytes(life.stream.written))
    assert companion.sqns == [*range(5)]
    assert companion.ends == 2, "it is told once more before its data, and ends behind it"


def test_another_companion_gets_nothing_old(lives: Lives) -> None:
    life = Life(lives, Companion(), lambda: None)
    life.connect()
    life.take_turn(0, 5)
    lives.next_life()
    companion = Companion()
    life = Life(lives, companion, lambda: None)
    life.sender.throw_away()
    life.sender.attach(life.writer, b"another1")
    life.writer.open(life.stream)
    assert life.sender.on_got(0) == ""
    life.sender.on_up()
    life.take_turn(10, 2)
    life.stepper.run(250)
    companion.take(bytes(life.stream.written))
    assert companion.sqns == [10, 11]


def test_a_number_belongs_to_a_source_for_as_long_as_it_is_offered(lives: Lives) -> None:
    kept = KeptLink(lives.kept.rows)
    one, other = bytes(32), bytes([1]) * 32
    assert (kept.take(one), kept.take(other)) == (1, 2)
    lives.next_life()
    kept = KeptLink(lives.kept.rows)
    assert kept.take(other) == 2
    kept.free(other)
    assert (kept.take(other), kept.take(one)) == (3, 1)


def test_who_it_is_outlives_the_process_unless_it_is_to_be_forgotten(lives: Lives) -> None:
    kept = KeptLink(lives.kept.rows)
    instance = kept.instance
    assert not kept.goes_on
    kept.note(COMPANION, 4711)
    lives.next_life()
    kept = KeptLink(lives.kept.rows)
    assert (kept.goes_on, kept.instance, kept.companion, kept.position) == (True, instance, COMPANION, 4711)
    kept.forget()
    kept.note(COMPANION, 4712)
    lives.next_life()
    kept = KeptLink(lives.kept.rows)
    assert not kept.goes_on
    assert kept.instance != instance
    assert (kept.companion, kept.position) == (b"", 0)
