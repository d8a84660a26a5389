"""The data of a link in shared memory: what a process that was killed at any time leaves to the next one."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import dropwhile
from pathlib import Path

import pytest

from dro.errors import DecodeError
from dro.proto.peerlink.messages import SourceEnd, SourceRecord
from dro.proto.peerlink.resume import LinkPiece
from dro.proto.peerlink.sources import SourceMessage, end_message
from dro.transport.runs import RunTable
from dro.wire.lbmc import message as lbmc
from portals.peer.stream.link_frames import PACKET_HEADER, for_link
from portals.peer.stream.link_log import LEAST_BYTES, LinkLog
from tests.fakes.kept import Lives

MOST = 2000
RECORD = SourceRecord(7, 1, b"topic", bytes(range(32)), 4711, options=b"\x01\x02")


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    made = Lives(tmp_path)
    yield made
    made.close()


class Book:
    """Writes a log as a sender does, and remembers what has to be in it."""

    def __init__(self, log: LinkLog, header: int) -> None:
        self.log, self.header = log, header
        self.units: list[bytes | SourceMessage] = []  # messages, or packets; and ends of sources
        self.positions: list[int] = []
        self.end = 0
        self.held = 0
        self.sqn = 0

    def take(self, sizes: list[int]) -> bool:
        buffer, table = bytearray(), RunTable()
        for size in sizes:
            table.add(7, self.sqn, len(buffer), 12 + size, 0, 0)
            buffer += lbmc.HEADER.pack(0, 0, 12 + size, 1, self.sqn) + bytes([self.sqn & 0xFF]) * size
            self.sqn += 1
        data, cuts, _ = for_link(buffer, table, {7: 4711}, self.held, MOST, self.header)
        if not self.log.note(data, cuts, begins=not self.held):
            return False
        if self.header:
            self._add_packets(data, cuts)
        else:
            at = 0
            for begin, _ in lbmc.walk(bytes(data), 0, len(data)):
                at = begin
                length = lbmc.MINIMAL.unpack_from(data, at)[2]
                self._add(bytes(data[at : at + length]), length)
        self.held = len(data) - cuts[-1] if cuts else self.held + len(data)
        return True

    def _add_packets(self, data: bytearray, cuts: list[int]) -> None:
        begin = 0
        for number, end in enumerate([*cuts, len(data)]):
            part = bytes(data[begin:end])
            if number == 0 and self.held:
                before = self.units[-1]
                assert isinstance(before, bytes)
                self.units[-1] = before + part
            else:
                self._add(part, 1)
            begin = end

    def _add(self, unit: bytes | SourceMessage, size: int) -> None:
        self.units.append(unit)
        self.positions.append(self.end)
        self.end += size

    def close_batch(self) -> None:
        self.held = 0

    def end_source(self) -> None:
        self.close_batch()
        end = end_message(replace(RECORD, otid=self.end.to_bytes(32, "big")))
        assert self.log.note_end(end)
        self._add(end, 0)

    def wanted(self, position: int) -> list[bytes | SourceMessage]:
        """What is left behind that position; what has ended right before it need not be told."""
        left = [unit for unit, at in zip(self.units, self.positions, strict=True) if at >= position]
        return [*dropwhile(lambda unit: isinstance(unit, SourceMessage), left)]


def units_of(pieces: list[LinkPiece], header: int) -> list[bytes | SourceMessage]:
    found: list[bytes | SourceMessage] = []
    for piece in pieces:
        if isinstance(piece, SourceMessage):
            found.append(piece)
            continue
        data, ends = bytes(piece[0]), piece[1]
        assert ends[-1] == len(data)
        if not header:
            ends = [at + lbmc.MINIMAL.unpack_from(data, at)[2] for at, _ in lbmc.walk(data, 0, len(data))]
        found += [data[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    return found


def opened(lives: Lives, header: int, capacity: int = LEAST_BYTES) -> LinkLog:
    log = LinkLog.open(lives.kept, capacity, header)
    assert log is not None
    return log


@pytest.mark.parametrize("header", [0, PACKET_HEADER])
@pytest.mark.parametrize("seed", range(6))
def test_the_next_life_finds_all_that_was_not_confirmed(lives: Lives, header: int, seed: int) -> None:
    chance = random.Random(seed)
    log = opened(lives, header)
    log.restart(0)
    book = Book(log, header)
    for _ in range(6):
        for _ in range(chance.randrange(1, 40)):
            assert book.take([chance.randrange(1500) for _ in range(chance.randrange(1, 12))])
            if chance.random() < 0.5:
                book.close_batch()
            if chance.random() < 0.1:
                book.end_source()
        position = chance.choice([at for at in book.positions if at >= log.confirmed])
        log.confirm(position)
        assert book.take([10])  # writes the mark
        lives.next_life()
        book.log = log = opened(lives, header)
        book.close_batch()
        first, pieces = log.pieces()
        assert first <= position == log.confirmed
        assert log.end == book.end
        assert units_of(pieces, header)[-len(book.wanted(position)) :] == book.wanted(position)
        ends = [piece for piece in pieces if isinstance(piece, SourceMessage)]
        assert all(isinstance(end.about, SourceEnd) and end.record.options == RECORD.options for end in ends)


@pytest.mark.parametrize("header", [0, PACKET_HEADER])
def test_the_oldest_make_room(lives: Lives, header: int) -> None:
    log = opened(lives, header)
    log.restart(0)
    book = Book(log, header)
    for _ in range(3000):
        assert book.take([900])
    lives.next_life()
    log = opened(lives, header)
    first, pieces = log.pieces()
    assert first > 0
    assert units_of(pieces, header) == book.wanted(first)
    assert sum(len(piece[0]) for piece in pieces if not isinstance(piece, SourceMessage)) > LEAST_BYTES * 0.8


@pytest.mark.parametrize("header", [0, PACKET_HEADER])
def test_what_was_taken_in_a_turn_that_was_not_finished_is_known(lives: Lives, header: int) -> None:
    log = opened(lives, header)
    log.restart(0)
    book, turn = Book(log, header), lives.kept.turn
    assert book.take([10, 2000, 30])
    turn.now += 1
    assert book.take([10, 20])
    assert book.take([30])
    lives.next_life()
    lives.kept.turn.former = turn.now - 1
    assert opened(lives, header).sent_before() == {7: [(3, 3)]}


@pytest.mark.parametrize("at", range(9, 72, 5))  # its head, and where its packets end
def test_a_log_that_was_changed_is_not_believed(lives: Lives, at: int) -> None:
    log = opened(lives, PACKET_HEADER)
    log.restart(0)
    book = Book(log, PACKET_HEADER)
    for _ in range(20):
        assert book.take([700, 800])
    folder = lives.kept.folder
    assert folder is not None
    whole = (folder / "link").read_bytes()
    lives.next_life()
    (folder / "link").write_bytes(bytes(at) + whole[at:])
    log = opened(lives, PACKET_HEADER)
    if log.goes_on:
        with pytest.raises(DecodeError):
            log.pieces()


def test_nothing_is_kept_without_memory(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "")

    log = opened(lives, 0)
    log.restart(0)
    monkeypatch.setattr(os, "posix_fallocate", is_full)
    assert not Book(log, 0).take([100])
