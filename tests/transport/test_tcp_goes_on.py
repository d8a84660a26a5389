"""LBT-TCP over the death of a process: what was not passed on is in the kernel, and the next one reads it there."""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from dro.clock import s
from dro.config.um.options import UmOptions
from dro.kept.store import NOTHING_KEPT, Kept
from dro.loop import Loop
from dro.proto.context.sources import BoundSource
from dro.proto.tcp.filters import INCLUDE, requests_in
from dro.proto.tcp.receiver import TcpReceiverConfig, TcpReceiverCore, TcpState
from dro.proto.unicast.connections import OnOutcome, Outcome
from dro.transport import mmsg, sockets
from dro.transport.kind import SessionHost
from dro.transport.read_space import READ_BYTES, ReadSpace
from dro.transport.sockets import OS_SOCKETS, unacknowledged_bytes
from dro.transport.tcp.kept_receiver import CONNECTION_PREFIX, LEAST_BUFFER_BYTES, KeptTcpReceiver
from dro.transport.tcp.kind import TcpReceivers
from dro.transport.tcp.receiver import TcpReceiver
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.codes import MESSAGE_MAX
from dro.wire.lbmc.data_blocks import SSF_DEFAULT_EXCLUDE, SsfInit
from dro.wire.lbmc.message import HEADER as LBMC
from dro.wire.lbmr.packet import Tir
from dro.wire.source_string import TcpAddress, format_source
from tests.fakes.clock import SteppedClock
from tests.fakes.kept import Lives
from tests.fakes.session_sink import RunsSink

LOOPBACK = "127.0.0.1"
SESSION = 0xA1B2C3D4
SID = lbmc.encode(lbmc.tcp_sid_message(SESSION))


class Life:
    """One process that joins the session."""

    def __init__(
        self, address: TcpAddress, kept: Kept, clock: SteppedClock, buffer_bytes: int, read_bytes: int
    ) -> None:
        self.loop = Loop(clock)
        self.clock = clock
        self.sink = RunsSink()
        self.core = TcpReceiverCore(TcpReceiverConfig(session_id=SESSION, activity_timeout_ns=0))
        self.calls = 0
        self.asked: list[tuple[int, int]] = []
        self.session = KeptTcpReceiver(
            self.loop, address, self.core, self.sink, self.sink.on_ended, space=ReadSpace(read_bytes),
            send_unicast=self._send_unicast, kept=kept,
            connect=partial(
                OS_SOCKETS.connecting, (LOOPBACK, address.port), LOOPBACK, buffer_bytes=buffer_bytes, keepalive=False
            ),
        )  # fmt: skip
        read = self.session._on_readable

        def count_calls() -> bool:
            self.calls += 1
            return read()

        self.session._on_readable = count_calls  # type: ignore[method-assign]
        self.session.advertised(clock.time_ns)
        self.turn()

    def _send_unicast(self, ip: int, port: int, message: bytes, on_outcome: OnOutcome) -> None:
        self.asked += [(request.mode, request.topic_index) for request in requests_in(message)]
        on_outcome(Outcome.SENT)

    def turn(self) -> None:
        idle = 0
        while idle < 3:
            idle = 0 if self.loop.run_once(0) else idle + 1

    def sqns(self) -> list[int]:
        return [sqn for _, sqn, _ in self.sink.got]

    def die(self) -> None:
        """End as `kill -9` does: the descriptor is closed, and nothing is said."""
        if self.session._stream is not None:
            self.session._stream.sock.close()  # type: ignore[attr-defined]
        self.loop.close()


class Scene:
    """A source that one life after the other hears."""

    def __init__(self, folder: Path, *, buffer_bytes: int = 0, read_bytes: int = READ_BYTES) -> None:
        self.clock = SteppedClock(s(5))
        self.lives = Lives(folder)
        self.listener = socket.create_server((LOOPBACK, 0))
        self.listener.setblocking(False)
        self.address = TcpAddress(sockets.ip_number(LOOPBACK), self.listener.getsockname()[1], SESSION)
        self.name = CONNECTION_PREFIX + format_source(self.address).encode()
        self._sizes = buffer_bytes, read_bytes
        self.life = self.begin_life(self.lives.kept)
        self.source, _ = self.listener.accept()
        self.source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.source.setblocking(False)
        assert self.source.recv(100) == SID

    def begin_life(self, kept: Kept) -> Life:
        return Life(self.address, kept, self.clock, *self._sizes)

    def restart(self, *, is_open: bool = True) -> Life:
        self.life.die()
        self.life = self.begin_life(self.lives.next_life(is_open=is_open))
        return self.life

    def put(self, data: bytes) -> None:
        """Send all of it, while the receiver reads, and wait until it has come; a kernel may take its time."""
        until = time.monotonic() + 5
        while data or unacknowledged_bytes(self.source):
            with contextlib.suppress(BlockingIOError):
                data = data[self.source.send(data) :] if data else data
            self.life.turn()
            assert time.monotonic() < until, f"{len(data)} bytes are left"
        self.life.turn()

    def until(self, holds: Callable[[], object]) -> None:
        until = time.monotonic() + 5
        while not holds():
            self.life.turn()
            assert time.monotonic() < until, self.life.sqns()

    def is_connected_anew(self) -> bool:
        try:
            self.listener.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        self.life.session.leave()
        self.life.loop.close()
        self.listener.close()
        self.source.close()
        self.lives.close()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.close()


def message(sqn: int, size: int = 40, topic: int = 7) -> bytes:
    return LBMC.pack(0, 0, size, topic, sqn) + bytes([sqn & 0xFF]) * (size - 12)


def test_a_connection_goes_on_and_the_session_id_is_not_said_again(scene: Scene) -> None:
    scene.put(message(1) + message(2))
    assert scene.life.sqns() == [1, 2]
    scene.life.die()
    scene.source.send(message(3) + message(4))
    scene.life = scene.begin_life(scene.lives.next_life())
    scene.put(message(5))
    assert scene.life.sqns() == [3, 4, 5]
    assert scene.life.core.state is TcpState.CONNECTED
    assert scene.life.session.is_connected
    assert not scene.is_connected_anew()
    with pytest.raises(BlockingIOError):
        scene.source.recv(100)


def test_a_message_that_came_in_part_goes_on_with_the_rest(scene: Scene) -> None:
    whole = message(2, 1000)
    scene.put(message(1) + whole[:500])
    assert scene.life.sqns() == [1]
    scene.restart()
    scene.put(whole[500:] + message(3))
    assert scene.life.sqns() == [2, 3]


def test_what_was_handed_up_in_the_turn_of_the_death_comes_again(scene: Scene) -> None:
    def die_then(event: str, _: object) -> None:
        if event == "runs":
            raise KeyboardInterrupt

    scene.life.sink.on_event = die_then
    scene.source.send(message(1) + message(2))
    with pytest.raises(KeyboardInterrupt):
        scene.life.turn()
    assert scene.life.sqns() == [1, 2]
    scene.restart()
    assert scene.life.sqns() == [1, 2]
    scene.put(message(3))
    assert scene.life.sqns() == [1, 2, 3]


@pytest.mark.parametrize("read_bytes", [64, READ_BYTES])
def test_a_message_may_be_split_at_any_byte(tmp_path: Path, read_bytes: int) -> None:
    scene = Scene(tmp_path, read_bytes=read_bytes)
    sent = message(1) + message(2, 41) + message(3)
    for cut in range(1, len(sent)):
        scene.life.sink.got.clear()
        scene.source.send(sent[:cut])
        scene.life.turn()
        if cut % 10 == 0:
            known = scene.life.sqns()
            scene.restart()
            scene.life.sink.got[:0] = [(7, sqn, b"") for sqn in known]
        scene.source.send(sent[cut:])
        scene.until(lambda: len(scene.life.sink.got) >= 3)
        assert scene.life.sqns() == [1, 2, 3], cut
    scene.close()


@pytest.mark.parametrize("buffer_bytes", [0, 4096, LEAST_BUFFER_BYTES])
def test_the_longest_messages_come_through_small_buffers(tmp_path: Path, buffer_bytes: int) -> None:
    scene = Scene(tmp_path, buffer_bytes=buffer_bytes)
    rng = random.Random(1)
    sizes = [MESSAGE_MAX, MESSAGE_MAX, 12, 40_000, MESSAGE_MAX, 13, MESSAGE_MAX]
    data = b"".join(message(n, size) for n, size in enumerate(sizes))
    while data:
        count = rng.choice([1, 3, 100, 5000, 70_000])
        scene.put(data[:count])
        data = data[count:]
    assert [(sqn, len(body) + 12) for _, sqn, body in scene.life.sink.got] == list(enumerate(sizes))
    scene.put(message(99))
    assert scene.name in scene.lives.sockets.held, "at the end of a message it is kept, whatever was before"
    scene.close()


@pytest.mark.parametrize("read_bytes", [100, 5000])
def test_messages_longer_than_what_is_read_at_once_come_through(tmp_path: Path, read_bytes: int) -> None:
    scene = Scene(tmp_path, read_bytes=read_bytes)
    sizes = [MESSAGE_MAX, 40, 6000, 90, 101, MESSAGE_MAX]
    scene.put(b"".join(message(n, size) for n, size in enumerate(sizes)))
    assert scene.life.sqns() == list(range(len(sizes)))
    scene.close()


@pytest.mark.parametrize("part", [1, 3, 4, 11, 500])
def test_the_beginning_of_a_message_keeps_nobody_busy(scene: Scene, part: int) -> None:
    whole = message(2, 1000)
    scene.put(message(1) + whole[:part])
    scene.life.calls = 0
    for _ in range(50):
        scene.life.loop.run_once(0)
    assert scene.life.calls == 0
    for at in range(part, 1000, 100):
        scene.put(whole[at : at + 100])
    assert scene.life.calls <= 3, "one call for the length, and one for the whole"
    assert scene.life.sqns() == [1, 2]
    assert scene.name in scene.lives.sockets.held


def test_a_connection_that_ends_within_a_message_has_ended(scene: Scene) -> None:
    scene.put(message(1) + message(2)[:20])
    scene.source.shutdown(socket.SHUT_WR)
    scene.life.turn()
    assert scene.life.sqns() == [1]
    assert scene.life.sink.events == ["began", "ended"]
    assert scene.lives.sockets.held == {}


def test_a_connection_that_ended_between_two_lives_gives_what_it_had(scene: Scene) -> None:
    scene.put(message(1))
    scene.life.die()
    scene.source.send(message(2))
    scene.source.close()
    scene.life = scene.begin_life(scene.lives.next_life())
    assert scene.life.sqns() == [2]
    assert scene.life.sink.events == ["began", "ended"]
    assert scene.lives.sockets.held == {}


def test_nothing_is_read_before_the_gate_opens(scene: Scene) -> None:
    scene.put(message(1))
    scene.restart(is_open=False)
    scene.put(message(2) + message(3))
    assert scene.life.sqns() == []
    assert scene.life.calls == 0
    scene.lives.kept.gate.open()
    scene.life.turn()
    assert scene.life.sqns() == [2, 3]


def test_a_session_that_is_left_while_the_gate_is_closed_is_not_read(scene: Scene) -> None:
    scene.restart(is_open=False)
    scene.life.session.leave()
    scene.lives.kept.gate.open()
    scene.life.turn()
    assert scene.life.sqns() == []
    assert scene.life.calls == 0


def test_a_session_that_is_left_leaves_nothing_and_its_source_sees_the_end(scene: Scene) -> None:
    scene.put(message(1))
    duplicate = scene.lives.sockets.held[scene.name].dup()
    scene.life.session.leave()
    assert scene.lives.sockets.held == {}
    assert scene.source.recv(10) == b"", "whoever else holds the socket"
    duplicate.close()


def test_a_stream_that_cannot_be_split_ends_and_is_not_kept(scene: Scene) -> None:
    scene.put(message(1) + LBMC.pack(0, 0, 3, 7, 1))
    assert scene.life.sqns() == [1]
    assert scene.life.session.bad_stream == 1
    assert scene.lives.sockets.held == {}


# a source that filters

OFFER = SsfInit(0xFFFF_FFFF, 0xFFFF_FFFE, sockets.ip_number("127.0.0.9"), 0xFFFF, flags=SSF_DEFAULT_EXCLUDE)


def bind(life: Life, index: int) -> None:
    tir = Tir(b"topic", life.session.address, 10, index)
    life.session.add_source(BoundSource(b"topic", b"12345678", index, life.session, tir, False))


def test_a_source_that_filters_is_asked_again_for_all(scene: Scene) -> None:
    bind(scene.life, 7)
    scene.put(lbmc.encode(lbmc.control_message(OFFER)) + message(1))
    assert scene.life.asked == [(INCLUDE, 7)]
    scene.life.die()
    scene.life = scene.begin_life(scene.lives.next_life())
    bind(scene.life, 7)
    bind(scene.life, 8)
    scene.life.turn()
    assert scene.life.asked == [(INCLUDE, 7), (INCLUDE, 8)]
    assert scene.life.session._requests is not None
    assert scene.life.session._requests.offer == OFFER
    scene.put(message(2))
    assert scene.life.sqns() == [2]


def test_a_connection_without_a_place_for_the_offer_is_not_kept(scene: Scene) -> None:
    scene.life.session._row = None
    scene.put(lbmc.encode(lbmc.control_message(OFFER)))
    assert scene.lives.sockets.held == {}
    scene.put(message(1))
    assert scene.lives.sockets.held == {}
    assert scene.life.sqns() == [1]


def test_an_offer_of_a_connection_before_is_forgotten(scene: Scene) -> None:
    scene.put(lbmc.encode(lbmc.control_message(OFFER)))
    scene.life.die()
    kept = scene.lives.next_life()
    kept.sockets.drop(scene.name)
    scene.life = scene.begin_life(kept)
    assert scene.is_connected_anew()
    assert scene.life.session._requests is None
    scene.restart()
    assert scene.life.session._requests is None


# as a kind


@pytest.mark.parametrize("buffer_bytes", [0, 5000])
def test_connections_are_left_where_something_is_kept_and_not_encrypted(scene: Scene, buffer_bytes: int) -> None:
    options = UmOptions({("receiver", "transport_tcp_receiver_socket_buffer"): buffer_bytes})
    sink, loop = RunsSink(), scene.life.loop
    for kept, kind in ((NOTHING_KEPT, TcpReceiver), (scene.lives.kept, KeptTcpReceiver)):
        host = SessionHost(loop, options, mmsg.DatagramBatch(), random.Random(1), kept=kept)
        session = TcpReceivers(host, sink, sink.on_ended).join(scene.address, options, scene.clock.time_ns)
        assert type(session) is kind
        session.leave()
