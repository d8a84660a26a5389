"""LBT-RM over the death of a process: the next one reads on in the same socket, and asks for what is missing."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dro.clock import ms, s
from dro.config.um.options import UmOptions
from dro.kept.store import Kept
from dro.loop import Loop
from dro.transport import mmsg, sockets
from dro.transport.datagrams.held import HOLD_NS
from dro.transport.datagrams.receiver import DatagramReceiver
from dro.transport.kind import SessionHost
from dro.transport.lbtrm.kind import LbtrmReceivers
from dro.transport.lbtrm.receiver import GROUP_PREFIX, ROW_KIND
from dro.transport.sockets import OS_SOCKETS
from dro.wire import lbtrm
from dro.wire.lbmc.message import HEADER as LBMC
from dro.wire.source_string import LbtrmAddress, format_source
from tests.fakes.clock import SteppedClock
from tests.fakes.kept import Lives
from tests.fakes.loopback import wait_for_loopback
from tests.fakes.session_sink import RunsSink

LOOPBACK = "127.0.0.1"
SESSION = 0xA1B2C3D4
OPTIONS = UmOptions({("context", "resolver_multicast_interface"): LOOPBACK})


class Life:
    """One process with that session joined."""

    def __init__(self, address: LbtrmAddress, kept: Kept, clock: SteppedClock) -> None:
        self.loop = Loop(clock)
        self.clock = clock
        self.sink = RunsSink()
        host = SessionHost(self.loop, OPTIONS, mmsg.DatagramBatch(), random.Random(1), kept=kept)
        self.receivers = LbtrmReceivers(host, self.sink, self.sink.on_ended)
        self.address = address
        self.session = self.join()

    def join(self) -> DatagramReceiver:
        return self.receivers.join(self.address, OPTIONS, self.clock.time_ns)

    def turn(self, to_ns: int | None = None) -> None:
        if to_ns is not None:
            self.clock.time_ns = to_ns
        wait_for_loopback()
        while self.loop.run_once(0):
            pass
        wait_for_loopback()

    def sqns(self) -> list[int]:
        return [sqn for _, sqn, _ in self.sink.got]

    def die(self) -> None:
        """End as `kill -9` does: nothing is said to anybody, and the descriptors are closed."""
        for group in self.receivers.groups.values():
            group._socket.close()
        if self.receivers._nak_socket is not None:
            self.receivers._nak_socket.close()
        self.loop.close()


class Scene:
    """A source on the loopback interface, and one life after the other that hears it."""

    def __init__(self, folder: Path) -> None:
        self.clock = SteppedClock(s(5))
        self.lives = Lives(folder)
        group = sockets.ip_number(f"239.207.{os.getpid() % 250}.{random.randrange(1, 255)}")
        self.naks = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.naks.bind((LOOPBACK, 0))
        self.naks.setblocking(False)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((LOOPBACK, 0))
            port = probe.getsockname()[1]
        self.nak_port: int = self.naks.getsockname()[1]
        self.address = LbtrmAddress(sockets.ip_number(LOOPBACK), group, SESSION, port, self.nak_port)
        self.source = OS_SOCKETS.multicast_sender(group, port, LOOPBACK, ttl=0, buffer_bytes=4 << 20)
        self.group_name = GROUP_PREFIX + f"{sockets.ip_text(group)}:{port}:{LOOPBACK}".encode()
        self.life = Life(self.address, self.lives.kept, self.clock)

    @property
    def row(self) -> bytes:
        return format_source(self.address).encode()

    def send(self, *sqns: int, flags: int = 0x80) -> None:
        for sqn in sqns:
            message = LBMC.pack(0, 0, 40, 7, sqn) + bytes(28)
            self.source.send(lbtrm.encode(lbtrm.Data(self.nak_port, SESSION, sqn, 0, flags, payload=message)))

    def say_lead(self, lead: int) -> None:
        self.source.send(lbtrm.encode(lbtrm.SessionMessage(self.nak_port, SESSION, 1, lead, 0)))

    def hear(self, *sqns: int) -> None:
        self.send(*sqns)
        self.life.turn()

    def restart(self, *, is_open: bool = True) -> None:
        self.life.die()
        self.life = Life(self.address, self.lives.next_life(is_open=is_open), self.clock)

    def asked(self) -> set[int]:
        """Sqns that were named in NAKs."""
        found: set[int] = set()
        while True:
            try:
                packet = lbtrm.decode(self.naks.recv(65536))
            except BlockingIOError:
                return found
            assert isinstance(packet, lbtrm.Nak)
            found |= set(packet.sqns)

    def close(self) -> None:
        self.life.receivers.close()
        self.life.loop.close()
        self.naks.close()
        self.source.close()
        self.lives.close()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.close()


def test_what_came_between_two_lives_waits_in_the_socket(scene: Scene) -> None:
    scene.hear(10, 11, 12)
    scene.life.die()
    scene.send(13, 14)
    scene.life = Life(scene.address, scene.lives.next_life(), scene.clock)
    scene.hear(15)
    assert scene.life.sqns() == [13, 14, 15]
    assert scene.life.session.core.missing == 0
    assert scene.life.sink.events == ["began"]


def test_what_nobody_could_hear_is_asked_for_by_the_first_datagram(scene: Scene) -> None:
    scene.hear(10, 11, 12)
    scene.restart()
    scene.hear(16)
    scene.life.turn(scene.clock.time_ns + ms(200))
    assert scene.asked() == {13, 14, 15}
    assert scene.life.sqns() == []  # a stream behind the portal has no place for what comes late
    scene.send(13, 15, 14, flags=0xC0)
    scene.life.turn()
    assert scene.life.sqns() == [13, 14, 15, 16]
    scene.hear(18)
    assert scene.life.sqns() == [13, 14, 15, 16, 18]


def test_or_by_the_first_session_message(scene: Scene) -> None:
    scene.hear(10, 11, 12)
    scene.restart()
    scene.say_lead(14)
    scene.life.turn()
    scene.life.turn(scene.clock.time_ns + ms(200))
    assert scene.asked() == {13, 14}


def test_a_hole_of_the_former_life_is_asked_for_again_with_all_behind_it(scene: Scene) -> None:
    scene.hear(10, 12, 13)
    scene.restart()
    scene.hear(14)
    assert scene.life.session.core.missing == 3
    assert scene.life.session.mark() == 15


@pytest.mark.parametrize("hole", [1, 40_000])
def test_the_first_datagram_is_believed_however_far_ahead_it_is(scene: Scene, hole: int) -> None:
    scene.hear(10)
    scene.restart()
    scene.hear(11 + hole)
    assert scene.life.sqns() == []
    scene.life.turn(scene.clock.time_ns + HOLD_NS + ms(300))
    assert scene.life.sqns() == [11 + hole]
    assert scene.life.session.core.missing == hole
    assert scene.life.session.core.stats.dgrams_dropped_other == 0


def test_what_was_not_passed_on_yet_is_not_noted(scene: Scene) -> None:
    """The sink asks for the end of the turn as an ingress does; a kill before that leaves the row as it was."""
    rows = scene.lives.kept.rows
    assert rows is not None
    noted: list[int] = []

    def pass_on() -> None:
        row = rows.row(ROW_KIND, scene.row)
        assert row is not None
        noted.append(scene.life.session._noted or 0)

    scene.life.sink.on_event = lambda event, _: scene.life.loop.at_turn_end(pass_on)
    scene.hear(10)
    scene.hear(11, 12)
    assert noted == [0, 11]
    assert scene.life.session._noted == 13


def test_nothing_is_read_before_the_gate_opens(scene: Scene) -> None:
    scene.hear(10)
    scene.restart(is_open=False)
    scene.hear(11, 12)
    assert scene.life.sqns() == []
    scene.lives.kept.gate.open()
    scene.life.turn()
    assert scene.life.sqns() == [11, 12]


def test_a_session_that_is_left_leaves_nothing(scene: Scene) -> None:
    scene.hear(10)
    assert list(scene.lives.sockets.held) == [scene.group_name]
    scene.life.session.leave()
    scene.life.turn()
    assert scene.lives.sockets.held == {}
    scene.life.receivers.close()
    rows = scene.lives.next_life().rows
    assert rows is not None
    assert rows.former(ROW_KIND, scene.row) is None
    scene.life = Life(scene.address, scene.lives.kept, scene.clock)
    scene.hear(20)
    assert scene.life.sqns() == [20]
    assert scene.life.session.core.missing == 0


def test_a_session_that_ends_and_comes_back_begins_anew(scene: Scene) -> None:
    scene.hear(10)
    scene.restart()
    scene.hear(11)
    scene.life.turn(scene.clock.time_ns + s(70))
    assert scene.life.sink.events == ["began", "ended"]
    scene.life.session = scene.life.join()
    scene.hear(30)
    assert scene.life.session.core.missing == 0


def test_a_group_whose_device_is_gone_gets_a_new_socket(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.hear(10)
    scene.life.die()
    with monkeypatch.context() as patch:

        def refuse(*_: object) -> None:
            raise OSError(19, "No such device")

        patch.setattr(sockets, "adopt_group", refuse)
        scene.life = Life(scene.address, scene.lives.next_life(), scene.clock)
    scene.hear(12)
    scene.life.turn(scene.clock.time_ns + HOLD_NS + ms(300))
    assert scene.life.sqns() == [12]
    assert scene.life.session.core.missing == 1


def test_what_is_held_back_when_the_next_kill_comes_is_asked_for_again(scene: Scene) -> None:
    scene.hear(10)
    scene.restart()
    scene.hear(13)
    scene.send(11, flags=0x80 | lbtrm.FLAG_RETRANSMISSION)
    scene.life.turn()
    assert scene.life.sqns() == []
    scene.restart()
    scene.hear(13)
    assert scene.life.session.core.missing == 2
    scene.send(11, 12, flags=0x80 | lbtrm.FLAG_RETRANSMISSION)
    scene.life.turn()
    assert scene.life.sqns() == [11, 12, 13]
