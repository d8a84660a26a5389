"""LBT-IPC over the death of a process: of a source whose session goes on in the next one, and of a receiver."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from dro.clock import ms, s
from dro.config.um.options import UmOptions
from dro.kept.store import Kept
from dro.loop import Loop
from dro.transport import mmsg
from dro.transport.kind import SenderEvents, SessionHost
from dro.transport.lbtipc.kind import IpcReceivers, IpcSenders
from dro.transport.lbtipc.sender import IpcSender
from dro.wire.lbmc.message import HEADER
from dro.wire.source_string import IpcAddress
from tests.fakes.clock import SteppedClock
from tests.fakes.kept import Lives
from tests.fakes.session_sink import KeepingSink

TOPIC = 7
SIZE = 1000


def turn(loop: Loop) -> None:
    idle = 0
    while idle < 3:
        idle = 0 if loop.run_once(0) else idle + 1


class SourceLife:
    """One process with sources."""

    def __init__(self, kept: Kept, options: UmOptions, clock: SteppedClock) -> None:
        self.loop = Loop(clock)
        self.options = options
        self.clients: list[bool] = []
        events = SenderEvents(lambda *told: self.clients.append(told[2]), lambda sender: None)
        self.host = SessionHost(self.loop, options, mmsg.DatagramBatch(), random.Random(), kept=kept)
        self.pool = IpcSenders(self.host, events, False)

    def acquire(self, former: int = 0) -> IpcSender:
        sender = self.pool.acquire(self.options, former)
        assert isinstance(sender, IpcSender)
        return sender

    def die(self) -> None:
        """End as `kill -9` does: nothing is said to anybody, and the descriptors are closed."""
        for sender in self.pool._open.values():
            assert isinstance(sender, IpcSender)
            sender._listener.close()
            for client in sender._clients.values():
                client.sock.close()
            os.close(sender._fd)
            os.close(sender._memory.ring.fd)
        self.loop.close()


class ReceiverLife:
    """One process that joins a session."""

    def __init__(self, address: IpcAddress, kept: Kept, clock: SteppedClock) -> None:
        self.loop = Loop(clock)
        self.sink = KeepingSink()
        options = UmOptions()
        host = SessionHost(self.loop, options, mmsg.DatagramBatch(), random.Random(3), kept=kept)
        receivers = IpcReceivers(host, self.sink, self.sink.on_ended)
        self.session = receivers.join(address, options, clock.time_ns)
        self.lost = 0
        self.session.on_lost = self._on_lost
        turn(self.loop)

    def _on_lost(self, session: object, count: int, cause: str, now_ns: int) -> None:
        self.lost += count

    def numbers(self) -> list[int]:
        return [sqn for _, sqn, _ in self.sink.got]

    def die(self) -> None:
        if self.session._sock is not None:
            self.session._sock.close()
        self.loop.close()


class LivesScene:
    """Source and receiver, each one life after the other."""

    def __init__(self, folder: Path, behavior: str) -> None:
        self.folder = folder / "source"
        self.folder.mkdir()
        (folder / "receiver").mkdir()
        self.clock = SteppedClock(s(5))
        self.options = UmOptions({
            ("source", "transport_lbtipc_behavior"): behavior,
            ("source", "transport_lbtipc_transmission_window_size"): 65536,
        })  # fmt: skip
        self.source_lives, self.receiver_lives = Lives(self.folder), Lives(folder / "receiver")
        self.life = SourceLife(self.source_lives.kept, self.options, self.clock)
        self.sender = self.life.acquire()
        self.receivers: list[ReceiverLife] = []
        self.sqn = 0

    def join(self, kept: Kept | None = None) -> ReceiverLife:
        life = ReceiverLife(self.sender.address, kept or self.receiver_lives.kept, self.clock)
        self.receivers.append(life)
        self.turn()
        return life

    def turn(self) -> None:
        for _ in range(4):
            turn(self.life.loop)
            for receiver in self.receivers:
                turn(receiver.loop)

    def send(self, count: int = 1) -> int:
        for number in range(count):
            message = HEADER.pack(0, 0, SIZE, TOPIC, self.sqn) + bytes(SIZE - HEADER.size)
            if not self.sender.send_message(message, self.clock.time_ns):
                return number
            self.sqn += 1
        return count

    def restart_source(self, *, former: bool = True) -> None:
        self.life.die()
        self.life = SourceLife(self.source_lives.next_life(), self.options, self.clock)
        self.sender = self.life.acquire(self.sender.transport_index if former else 0)

    def restart_receiver(self, *, is_open: bool = True) -> ReceiverLife:
        former = self.receivers.pop()
        former.die()
        life = ReceiverLife(self.sender.address, self.receiver_lives.next_life(is_open=is_open), self.clock)
        self.receivers.append(life)
        return life

    def close(self) -> None:
        for receiver in self.receivers:
            receiver.session.leave()
            receiver.loop.close()
        for sender in list(self.life.pool._open.values()):
            sender.close(0, self.clock.time_ns)
        self.life.loop.close()
        self.source_lives.close()
        self.receiver_lives.close()
        vars(self).clear()
        gc.collect()


@pytest.fixture(params=["source_paced", "receiver_paced"])
def scene(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LivesScene]:
    made = LivesScene(tmp_path, request.param)
    yield made
    made.close()


def test_a_receiver_notices_nothing_of_a_source_that_was_killed(scene: LivesScene) -> None:
    receiver = scene.join()
    address, index = scene.sender.address, scene.sender.transport_index
    scene.send(3)
    scene.restart_source()
    assert (scene.sender.address, scene.sender.transport_index) == (address, index)
    assert scene.life.acquire(index) is scene.sender
    assert scene.life.clients == [True]
    scene.send(2)
    scene.turn()
    assert receiver.numbers() == [0, 1, 2, 3, 4]
    assert receiver.sink.events == ["began"]
    late = scene.join(Lives(scene.folder.parent / "receiver").kept)
    scene.send()
    scene.turn()
    assert (receiver.numbers()[-1], late.numbers()) == (5, [5])
    assert receiver.lost == 0


def test_or_of_many_that_die_at_any_place(scene: LivesScene) -> None:
    receiver = scene.join()
    rng = random.Random(4)
    for _ in range(20):
        scene.send(rng.randrange(60))
        if rng.random() < 0.5:
            turn(scene.life.loop)
        if rng.random() < 0.5:
            turn(receiver.loop)
        scene.restart_source()
    scene.turn()
    assert len(receiver.numbers()) + receiver.lost == scene.sqn
    assert receiver.numbers() == sorted(set(receiver.numbers()))


def test_a_receiver_that_waits_is_not_overrun_by_the_next_process(scene: LivesScene) -> None:
    if not scene.sender.core.is_receiver_paced:
        return
    receiver = scene.join()
    scene.send(100)
    turn(receiver.loop)
    scene.send(100)
    scene.receivers.remove(receiver)
    scene.restart_source()
    sent = scene.send(1000)
    assert sent < 400
    assert scene.sender.is_blocked
    scene.receivers.append(receiver)
    scene.turn()
    assert not scene.sender.is_blocked
    assert receiver.numbers() == list(range(scene.sqn))
    scene.send(200)
    scene.turn()
    assert (receiver.numbers(), receiver.lost) == (list(range(scene.sqn)), 0)


def test_what_was_sent_before_is_known(scene: LivesScene) -> None:
    scene.join()
    scene.send(20)
    scene.restart_source()
    before = scene.life.pool.sent_before[scene.sender.transport_index]
    assert before.of(TOPIC) == [(0, 20)]
    assert before.of(TOPIC + 1) == []
    scene.life.pool.forget_waiting()
    assert scene.life.pool.sent_before == {}
    scene.send()
    scene.turn()
    assert scene.receivers[0].numbers() == list(range(21))


def test_sessions_that_nobody_goes_on_with_leave_nothing(scene: LivesScene) -> None:
    receiver = scene.join()
    scene.send(2)
    former = scene.sender.address
    scene.restart_source(former=False)
    assert scene.sender.address != former
    assert scene.sender.address.transport_id == 20002, "the other one may still be wanted"
    scene.life.pool.forget_waiting()
    names = {path.name for path in scene.folder.iterdir()}
    assert names == {"rows", f"sent.{scene.sender.transport_index}", f"lbtipc.{scene.sender.transport_index}"}
    scene.turn()
    assert receiver.numbers() == [0, 1]
    assert not receiver.session._has_joined
    scene.clock.time_ns += s(61)
    scene.turn()
    assert receiver.sink.events == ["began", "ended"]


def test_a_session_that_is_closed_leaves_nothing(scene: LivesScene) -> None:
    scene.join()
    scene.send(2)
    scene.sender.close(0, 0)
    scene.life.pool.forget(scene.sender)
    assert {path.name for path in scene.folder.iterdir()} == {"rows"}
    assert scene.source_lives.sockets.held == {}


@pytest.mark.parametrize("broken", ["memory", "log", "cut"])
def test_what_cannot_be_gone_on_with_is_made_anew(scene: LivesScene, broken: str) -> None:
    scene.join()
    index = scene.sender.transport_index
    path = scene.folder / (f"sent.{index}" if broken == "log" else f"lbtipc.{index}")
    former = scene.sender.address
    scene.life.die()
    if broken == "cut":
        os.truncate(path, 8192)
    else:
        path.unlink()
    scene.life = SourceLife(scene.source_lives.next_life(), scene.options, scene.clock)
    scene.sender = scene.life.acquire(index)
    if broken != "log":
        assert scene.sender.address != former
    assert scene.sender.address.transport_id in (20001, 20002)


# receivers


def test_the_next_process_of_a_receiver_goes_on_behind_what_was_passed_on(scene: LivesScene) -> None:
    receiver = scene.join()
    scene.send(3)
    scene.turn()
    assert receiver.numbers() == [0, 1, 2]
    scene.send(2)
    turn(scene.life.loop)
    following = scene.restart_receiver()
    scene.turn()
    assert following.numbers() == [3, 4]
    assert scene.life.clients == [True], "the connection is the same"
    scene.send()
    scene.turn()
    assert following.numbers() == [3, 4, 5]


def test_it_reads_nothing_before_the_gate_opens(scene: LivesScene) -> None:
    scene.join()
    scene.send(3)
    scene.turn()
    following = scene.restart_receiver(is_open=False)
    scene.send(2)
    for _ in range(5):
        scene.clock.time_ns += ms(700)
        scene.turn()
    assert following.numbers() == []
    scene.receiver_lives.kept.gate.open()
    scene.turn()
    assert following.numbers() == [3, 4]
    assert scene.life.clients == [True]


def test_over_many_lives_of_both_nothing_is_missing(scene: LivesScene) -> None:
    rng = random.Random(8)
    scene.join()
    got: list[int] = []
    lost = 0
    for _ in range(40):
        scene.send(rng.randrange(40))
        if rng.random() < 0.7:
            scene.turn()
        got += scene.receivers[0].numbers()
        lost += scene.receivers[0].lost
        scene.receivers[0].sink.got.clear()
        scene.receivers[0].lost = 0
        (scene.restart_source if rng.random() < 0.5 else scene.restart_receiver)()
    scene.turn()
    got += scene.receivers[0].numbers()
    assert lost == scene.receivers[0].lost == 0
    assert got == list(range(scene.sqn))


def test_a_session_that_is_left_leaves_nothing(scene: LivesScene) -> None:
    receiver = scene.join()
    assert len(scene.receiver_lives.sockets.held) == 1
    receiver.session.leave()
    assert scene.receiver_lives.sockets.held == {}
    scene.turn()
    assert scene.life.clients == [True, False]
