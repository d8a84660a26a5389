"""TCP sessions of sources over the death of their process: each connection goes on where it was, without a gap."""

from __future__ import annotations

import gc
import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dro.clock import s
from dro.config.um.options import UmOptions
from dro.kept.store import Kept
from dro.loop import Loop
from dro.transport import mmsg
from dro.transport.kind import SenderEvents, SessionHost
from dro.transport.session import SenderTransport
from dro.transport.stream import PlainStream
from dro.transport.tcp import kind
from dro.transport.tcp.kind import TcpSenders
from dro.transport.tcp.sender import TcpSender
from dro.wire.lbmc.message import HEADER as LBMC
from dro.wire.source_string import TcpAddress
from tests.fakes.clock import SteppedClock
from tests.fakes.kept import Killed, Lives

LOOPBACK = "127.0.0.1"
SIZE = 1000
SESSION_BUFFER = 100_000


class TcpSenderLife:
    """One process with a pool of sessions."""

    def __init__(self, kept: Kept, options: UmOptions, seed: int) -> None:
        self.loop = Loop(SteppedClock(s(5)))
        self.options = options
        self.clients: list[bool] = []
        self.closed: list[SenderTransport] = []
        events = SenderEvents(lambda *told: self.clients.append(told[2]), self.closed.append)
        self.host = SessionHost(self.loop, options, mmsg.DatagramBatch(), random.Random(seed), kept=kept)
        self.host.filters.request_address = (1, 14391)
        self.pool = TcpSenders(self.host, events, False)
        self.senders: list[TcpSender] = []

    def acquire(self, former: int = 0) -> TcpSender:
        sender = self.pool.acquire(self.options, former)
        assert isinstance(sender, TcpSender)
        if sender not in self.senders:
            self.senders.append(sender)
        return sender

    def turn(self) -> None:
        idle = 0
        while idle < 3:
            idle = 0 if self.loop.run_once(0) else idle + 1

    def die(self) -> None:
        """End as `kill -9` does: nothing is said to anybody, and the descriptors are closed."""
        for sender in self.senders:
            sender._listener.close()
            for stream in sender._clients.values():
                assert isinstance(stream, PlainStream)
                stream.sock.close()
            if sender._kept is not None and sender._kept._log is not None:
                os.close(sender._kept._log._fd)
        self.loop.close()


class TcpReader:
    """A receiver: what it should have got, and what it has got."""

    def __init__(self, port: int) -> None:
        self.sock = socket.socket()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.sock.connect((LOOPBACK, port))
        self.sock.setblocking(False)
        self.due = bytearray()
        self.got = bytearray()
        self.is_over = False

    def read(self, most: int = 1 << 20) -> None:
        with suppress(BlockingIOError):
            found = self.sock.recv(most)
            self.got += found
            self.is_over |= not found


class TcpSenderScene:
    """One life after the other that sends on a session."""

    def __init__(self, folder: Path, **more: int | str) -> None:
        self.folder = folder
        self.lives = Lives(folder)
        self.number = 0
        self.readers: list[TcpReader] = []
        self.options = UmOptions({
            ("source", "transport_tcp_interface"): LOOPBACK,
            ("context", "transport_tcp_maximum_ports"): 1,
            ("source", "transport_session_maximum_buffer"): SESSION_BUFFER,
            ("source", "transport_tcp_sender_socket_buffer"): 20_000,
            **{("source", name): value for name, value in more.items()},
        })  # fmt: skip
        self.sqn = 0
        self.life = self.begin_life(self.lives.kept)
        self.sender = self.life.acquire()

    def begin_life(self, kept: Kept) -> TcpSenderLife:
        self.number += 1
        return TcpSenderLife(kept, self.options, self.number)

    @property
    def port(self) -> int:
        assert isinstance(self.sender.address, TcpAddress)
        return self.sender.address.port

    def connect(self) -> TcpReader:
        reader = TcpReader(self.port)
        before = self.sender.core.stats.num_clients
        self.readers.append(reader)
        self.until(lambda: self.sender.core.stats.num_clients > before)
        return reader

    def restart(self, *, former: bool = True) -> TcpSender:
        """The process ends, and the next one has a source on the session."""
        self.life.die()
        self.life = self.begin_life(self.lives.next_life())
        self.sender = self.life.acquire(self.sender.transport_index if former else 0)
        return self.sender

    def send(self, count: int = 1) -> int:
        """Send so many messages, or as many as are taken; returns how many were."""
        for number in range(count):
            message = LBMC.pack(0, 0, SIZE, 7, self.sqn) + bytes([self.sqn & 0xFF]) * (SIZE - 12)
            if not self.sender.send_message(message, s(5)):
                return number
            self.sqn += 1
            for reader in self.readers:
                reader.due += message
        return count

    def fill(self, reader: TcpReader) -> None:
        """Send until nothing more is taken; all but that reader read."""
        for _ in range(5000):
            taken = self.send()
            for other in self.readers:
                if other is not reader:
                    other.read()
            self.life.turn()
            if not taken:
                return
        pytest.fail("everything is taken")

    def read_all(self) -> None:
        """All receivers get what they should, and not more."""
        self.until(lambda: all(reader.got == reader.due or reader.is_over for reader in self.readers))
        for reader in self.readers:
            reader.read()
            assert not reader.is_over
            assert reader.got == reader.due

    def until(self, holds: Callable[[], object]) -> None:
        until = time.monotonic() + 10
        while not holds():
            self.life.turn()
            for reader in self.readers:
                reader.read()
            assert time.monotonic() < until, [(len(reader.got), len(reader.due)) for reader in self.readers]

    def files(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()} - {"rows"}

    def close(self) -> None:
        for sender in self.life.senders:
            sender.close(0, s(5))
        self.life.loop.close()
        for reader in self.readers:
            reader.sock.close()
        self.lives.close()
        vars(self).clear()
        gc.collect()  # the memory of processes that ended is open else while others count files


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[TcpSenderScene]:
    made = TcpSenderScene(tmp_path)
    yield made
    made.close()


def test_listener_and_session_stay(scene: TcpSenderScene) -> None:
    address, index = scene.sender.address, scene.sender.transport_index
    reader = scene.connect()
    scene.send(3)
    sender = scene.restart()
    assert (sender.address, sender.transport_index) == (address, index)
    assert scene.life.acquire(index) is sender
    scene.send(2)
    scene.read_all()
    assert len(reader.got) == 5 * SIZE
    scene.connect()
    scene.send(2)
    scene.read_all()
    assert scene.life.clients == [True, True]


def test_a_slow_receiver_gets_all_of_the_stream(scene: TcpSenderScene) -> None:
    _quick, slow = scene.connect(), scene.connect()
    scene.fill(slow)
    assert scene.sender.core.stats.bytes_buffered > SESSION_BUFFER // 2
    missing = len(slow.due) - len(slow.got)
    sender = scene.restart()
    assert 0 < sender.core.stats.bytes_buffered < missing, "the rest is in the system"
    scene.send(5)
    scene.read_all()
    scene.send(5)
    scene.read_all()
    assert sender.core.stats.bytes_buffered == 0


def test_or_over_many_lives_that_end_at_any_place(scene: TcpSenderScene) -> None:
    quick, slow = scene.connect(), scene.connect()
    lots = random.Random(4)
    for _ in range(20):
        scene.send(lots.randrange(60))
        slow.read(lots.randrange(1, 30_000))
        quick.read()
        if lots.random() < 0.5:
            scene.life.turn()
        scene.restart()
    scene.read_all()


@pytest.mark.parametrize("written", [0, 1])
def test_what_was_logged_and_not_written_to_all_is_written_by_the_next_life(
    scene: TcpSenderScene, written: int
) -> None:
    scene.connect()
    scene.connect()
    scene.send(2)
    write, calls = scene.sender._write, iter(range(written))

    def write_or_die(client: int, now_ns: int, took_ns: int | None = None) -> None:
        if next(calls, None) is None:
            raise Killed
        write(client, now_ns, took_ns)

    scene.sender._write = write_or_die  # type: ignore[method-assign]
    with pytest.raises(Killed):
        scene.send()
    message = LBMC.pack(0, 0, SIZE, 7, 2) + bytes([2]) * (SIZE - 12)
    for reader in scene.readers:
        reader.due += message
    scene.sqn += 1
    scene.restart()
    scene.send(2)
    scene.read_all()


def test_a_receiver_that_came_later_gets_only_what_came_after(scene: TcpSenderScene) -> None:
    scene.connect()
    scene.send(10)
    late = scene.connect()
    scene.restart()
    scene.read_all()
    assert not late.got
    scene.send(3)
    later = scene.connect()
    scene.send(2)
    scene.restart()
    scene.read_all()
    assert [len(reader.got) for reader in (late, later)] == [5 * SIZE, 2 * SIZE]


def test_what_nobody_heard_is_not_given_to_who_comes_later(scene: TcpSenderScene) -> None:
    scene.send(5)
    reader = scene.connect()
    scene.restart()
    scene.send(1)
    scene.read_all()
    assert len(reader.got) == SIZE


def test_who_went_while_nobody_was_there_is_gone(scene: TcpSenderScene) -> None:
    scene.connect()
    gone = scene.connect()
    scene.send(2)
    scene.read_all()
    scene.life.die()
    gone.sock.close()
    scene.readers.remove(gone)
    scene.life = scene.begin_life(scene.lives.next_life())
    scene.sender = scene.life.acquire(scene.sender.transport_index)
    scene.until(lambda: scene.sender.core.stats.num_clients == 1)
    scene.send(2)
    scene.read_all()
    assert len(scene.lives.sockets.held) == 2


def test_a_receiver_for_which_something_was_discarded_is_closed(tmp_path: Path) -> None:
    scene = TcpSenderScene(tmp_path, transport_tcp_multiple_receiver_behavior="source_paced")
    quick, slow = scene.connect(), scene.connect()
    for _ in range(1000):
        scene.send()
        quick.read()
        scene.life.turn()
        if scene.sender.core.stats.msgs_discarded:
            break
    assert len(scene.lives.sockets.held) == 2
    scene.restart()
    scene.until(lambda: slow.is_over)
    assert slow.due.startswith(slow.got)
    scene.readers.remove(slow)
    slow.sock.close()
    scene.send(3)
    scene.read_all()
    scene.close()


def test_what_the_log_does_not_have_any_more_closes_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "_log_bytes", lambda _: 0)
    scene = TcpSenderScene(tmp_path, transport_session_maximum_buffer=1_000_000)
    _quick, slow = scene.connect(), scene.connect()
    scene.fill(slow)
    scene.restart()
    scene.until(lambda: slow.is_over)
    assert slow.due.startswith(slow.got)
    scene.readers.remove(slow)
    slow.sock.close()
    scene.send(3)
    scene.read_all()
    assert len(scene.lives.sockets.held) == 2
    scene.close()


def test_a_fixed_port_goes_on(tmp_path: Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as probe:
        port = probe.getsockname()[1]
    scene = TcpSenderScene(tmp_path, transport_tcp_port=port)
    index = scene.sender.transport_index
    scene.connect()
    scene.send(3)
    assert scene.restart(former=False).transport_index == index
    scene.send(3)
    scene.read_all()
    assert (scene.port, scene.life.acquire()) == (port, scene.sender)
    scene.close()


def test_a_session_that_filters_is_not_kept(tmp_path: Path) -> None:
    scene = TcpSenderScene(tmp_path, transport_source_side_filtering_behavior="inclusion")
    scene.connect()
    assert (scene.lives.sockets.held, scene.files()) == ({}, set())
    scene.close()


def test_nor_is_an_encrypted_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kind, "stream_maker", lambda *_, **__: lambda *arguments: PlainStream(*arguments))
    scene = TcpSenderScene(tmp_path)
    scene.connect()
    scene.send(3)
    assert (scene.lives.sockets.held, scene.files()) == ({}, set())
    scene.read_all()
    scene.close()


def spoil(scene: TcpSenderScene, what: str) -> None:
    """Spoil what the session has left."""
    index = scene.sender.transport_index
    if what == "log":
        with (scene.folder / f"sent.{index}").open("r+b") as file:
            file.write(bytes(4096))
    elif what == "row":
        assert scene.lives.kept.rows is not None
        scene.lives.kept.rows.free(b"sent", b"%d" % index)
    else:
        scene.lives.sockets.drop(b"tcp %d %d listener" % (index, scene.port))


@pytest.mark.parametrize("what", ["log", "row", "listener"])
def test_a_session_of_which_something_is_missing_is_a_new_one(scene: TcpSenderScene, what: str) -> None:
    reader = scene.connect()
    scene.send(3)
    spoil(scene, what)
    index = scene.sender.transport_index
    assert scene.restart().transport_index != index
    assert scene.files() == {f"sent.{scene.sender.transport_index}"}
    assert [*scene.lives.sockets.held] == [b"tcp %d %d listener" % (scene.sender.transport_index, scene.port)]
    assert all(sock.fileno() < 0 for sock in scene.lives.sockets.taken)
    scene.until(lambda: reader.is_over)
    assert reader.got == reader.due
    scene.readers.clear()
    reader.sock.close()
    scene.connect()
    scene.send(1)
    scene.read_all()


def test_a_session_that_is_closed_leaves_nothing(scene: TcpSenderScene) -> None:
    scene.connect()
    scene.send(1)
    scene.restart().close(0, s(5))
    assert (scene.lives.sockets.held, scene.files()) == ({}, set())
    assert scene.life.closed == [scene.sender]


def test_what_no_source_asks_for_is_forgotten(scene: TcpSenderScene) -> None:
    reader = scene.connect()
    scene.send(1)
    scene.life.die()
    scene.life = scene.begin_life(scene.lives.next_life())
    scene.life.pool.forget_waiting()
    assert (scene.lives.sockets.held, scene.files()) == ({}, set())
    scene.until(lambda: reader.is_over)
    scene.sender = scene.life.acquire(scene.sender.transport_index)
