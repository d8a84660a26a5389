"""Sender sessions of LBT-RM over the death of their process, where memory or the parent refuses something."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from dro.clock import s
from dro.config.um.options import UmOptions
from dro.kept.store import Kept
from dro.loop import Loop
from dro.transport import mmsg
from dro.transport.kind import SenderEvents, SessionHost
from dro.transport.lbtrm.kind import LbtrmSenders
from dro.transport.lbtrm.sender import LbtrmSender
from dro.wire import lbtrm
from dro.wire.lbmc.message import HEADER as LBMC
from tests.fakes.clock import SteppedClock
from tests.fakes.kept import HeldSockets, Lives

OPTIONS = UmOptions({("context", "resolver_multicast_interface"): "127.0.0.1"})


class Life:
    """One process with sender sessions."""

    def __init__(self, kept: Kept, clock: SteppedClock) -> None:
        self.loop = Loop(clock)
        self.clock = clock
        self.opened: list[LbtrmSender] = []
        host = SessionHost(self.loop, OPTIONS, mmsg.DatagramBatch(), random.Random(), kept=kept)
        self.pool = LbtrmSenders(host, SenderEvents(lambda *_: None, lambda *_: None), False)

    def acquire(self, former: int = 0) -> LbtrmSender:
        sender = self.pool.acquire(OPTIONS, former)
        assert isinstance(sender, LbtrmSender)
        self.opened.append(sender)
        return sender

    def die(self) -> None:
        """End as `kill -9` does."""
        for sender in self.opened:
            sender._trains.close()
            sender._socket.close()
            sender._control_socket.close()
        self.loop.close()


class Scene:
    """One life after the other."""

    def __init__(self, folder: Path) -> None:
        self.clock = SteppedClock(s(5))
        self.folder = folder
        self.lives = Lives(folder)
        self.life = Life(self.lives.kept, self.clock)

    def send(self, sender: LbtrmSender, sqn: int, size: int = 40) -> None:
        self.clock.time_ns += s(1)
        assert sender.send_message(LBMC.pack(0, 0, size, 7, sqn) + bytes(size - 12), self.clock.time_ns, size - 12)

    def restart(self) -> None:
        self.life.die()
        self.life = Life(self.lives.next_life(), self.clock)

    def logs(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("sent.*"))

    def close(self) -> None:
        self.life.die()
        self.lives.close()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.close()


def ask(sender: LbtrmSender, sqn: int, now_ns: int) -> None:
    """Let a receiver ask for one datagram."""
    address = sender.address
    sender.on_packet(lbtrm.encode(lbtrm.Nak(address.nak_port, address.session_id, (sqn,))), 0, now_ns)


@pytest.mark.parametrize("asked_before", [False, True])
def test_without_memory_a_session_goes_on_and_repairs_what_it_sent_itself(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, asked_before: bool
) -> None:
    before = scene.life.acquire()
    for sqn in range(5):
        scene.send(before, sqn)
    scene.restart()
    sender = scene.life.acquire(before.transport_index)
    assert sender.address == before.address
    if asked_before:
        ask(sender, 1, scene.clock.time_ns)

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    for sqn in range(5, 35):
        scene.send(sender, sqn, 7000)
    assert scene.logs() == []
    assert scene.lives.sockets.held == {}
    repairs = sender.core.stats.rxs_sent
    ask(sender, 2, scene.clock.time_ns)
    assert sender.core.stats.rxs_sent == repairs
    ask(sender, 34, scene.clock.time_ns)
    assert len(sender.core._retransmitter._queued) + sender.core.stats.rxs_sent == repairs + 1


def test_logs_of_sessions_whose_sockets_are_not_kept_do_not_pile_up(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HeldSockets, "keep", lambda *_: None)
    for _ in range(3):
        sender = scene.life.acquire()
        scene.send(sender, 1)
        scene.life.pool.forget_waiting()
        assert scene.logs() == [f"sent.{sender.transport_index}"]
        scene.restart()


def test_a_session_whose_row_is_gone_is_not_gone_on_with(scene: Scene) -> None:
    sender = scene.life.acquire()
    rows = scene.lives.kept.rows
    assert rows is not None
    rows.free(b"sent", b"%d" % sender.transport_index)
    scene.restart()
    other = scene.life.acquire(sender.transport_index)
    assert other.address.session_id not in (0, sender.address.session_id)
    assert other.transport_index != sender.transport_index
