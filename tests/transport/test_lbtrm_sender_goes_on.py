"""LBT-RM sessions of sources over the death of their process: receivers hear the same session, and lose nothing."""

from __future__ import annotations

import errno
import gc
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dro.clock import s
from dro.config.um.options import UmOptions
from dro.kept.store import Kept
from dro.loop import Loop
from dro.transport import mmsg
from dro.transport.datagrams import logs
from dro.transport.kind import SenderEvents, SessionHost
from dro.transport.lbtrm import kind
from dro.transport.lbtrm.kind import LbtrmSenders
from dro.transport.lbtrm.sender import LbtrmSender
from dro.transport.runs import KIND_DATA, Run, RunTable
from dro.transport.session import SenderTransport
from dro.wire import lbtrm
from dro.wire.lbmc.message import HEADER as LBMC
from dro.wire.source_string import LbtrmAddress
from dro.wire.transport import NCF_DO_NOT_RETRY
from tests.fakes.clock import SteppedClock
from tests.fakes.kept import Killed, Lives
from tests.fakes.loopback import wait_for_loopback

LOOPBACK = "127.0.0.1"
TOPIC = 7
SENT = b"sent"


class LastSends:
    """In place of what sends: lets `takes` datagrams through, then the socket is full, or the process ends."""

    def __init__(self, takes: int | None) -> None:
        self.takes = takes

    def send(
        self, sock: socket.socket, buffer: bytearray, entries: list[tuple[int, int, int]], to: None = None
    ) -> tuple[int, int]:
        if self.takes is None:
            raise Killed
        taken, self.takes = entries[: self.takes], 0
        for at, nbytes, _ in taken:
            sock.send(memoryview(buffer)[at : at + nbytes])
        return len(taken), errno.EAGAIN


class LbtrmSenderLife:
    """One process with a pool of sessions."""

    def __init__(self, kept: Kept, clock: SteppedClock, options: UmOptions, seed: int) -> None:
        self.loop = Loop(clock)
        self.clock = clock
        self.kept = kept
        self.options = options
        self.closed: list[SenderTransport] = []
        host = SessionHost(self.loop, options, mmsg.DatagramBatch(), random.Random(seed), kept=kept)
        self.pool = LbtrmSenders(host, SenderEvents(lambda *_: None, self.closed.append), False)
        self.senders: list[LbtrmSender] = []

    def acquire(self, former: int = 0) -> LbtrmSender:
        sender = self.pool.acquire(self.options, former)
        assert isinstance(sender, LbtrmSender)
        if sender not in self.senders:
            self.senders.append(sender)
        return sender

    def turn(self, to_ns: int | None = None) -> None:
        if to_ns is not None:
            self.clock.time_ns = to_ns
        wait_for_loopback()
        while self.loop.run_once(0):
            pass

    def die(self) -> None:
        """End as `kill -9` does: nothing is said to anybody, and the descriptors are closed."""
        for sender in self.senders:
            if not sender._is_closed:
                sender._socket.close()
                sender._control_socket.close()
                if sender._log is not None:
                    os.close(sender._log._fd)
        self.loop.close()


class LbtrmSenderScene:
    """One life after the other that sends to a receiver of the group."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = SteppedClock(s(5))
        self.lives = Lives(folder)
        group = f"239.208.{os.getpid() % 250}.{random.randrange(1, 250)}"
        self.wire = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        self.wire.bind((group, 0))
        joined = socket.inet_aton(group) + socket.inet_aton(LOOPBACK)
        self.wire.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, joined)
        self.wire.setblocking(False)
        self.options = UmOptions({
            ("context", "resolver_multicast_interface"): LOOPBACK,
            ("context", "transport_lbtrm_multicast_address_low"): group,
            ("context", "transport_lbtrm_multicast_address_high"): group,
            ("context", "transport_lbtrm_data_rate_limit"): 0,
            ("context", "transport_lbtrm_retransmit_rate_limit"): 0,
            ("source", "transport_lbtrm_destination_port"): self.wire.getsockname()[1],
        })  # fmt: skip
        self.asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.number = 0
        self.life = self.begin_life(self.lives.kept)
        self.sender = self.life.acquire()

    def begin_life(self, kept: Kept) -> LbtrmSenderLife:
        self.number += 1
        return LbtrmSenderLife(kept, self.clock, self.options, self.number)

    @property
    def address(self) -> LbtrmAddress:
        assert isinstance(self.sender.address, LbtrmAddress)
        return self.sender.address

    def restart(self, *, former: bool = True) -> LbtrmSender:
        """The process ends, and the next one has a source on the session."""
        self.life.die()
        self.life = self.begin_life(self.lives.next_life())
        self.sender = self.life.acquire(self.sender.transport_index if former else 0)
        return self.sender

    def send(self, *sqns: int, size: int = 60, topic: int = TOPIC) -> None:
        for sqn in sqns:
            assert self.sender.send_message(message(sqn, size, topic), self.clock.time_ns, size - 12)

    def take(self) -> list[bytes]:
        """What has left since the last time."""
        self.life.turn()
        wait_for_loopback()
        found = []
        while True:
            try:
                found.append(self.wire.recv(70_000))
            except BlockingIOError:
                return found

    def nak(self, *sqns: int) -> list[bytes]:
        """A receiver asks; returns what leaves at once, without session messages."""
        address = self.address
        packet = lbtrm.encode(lbtrm.Nak(address.nak_port, address.session_id, sqns))
        self.asking.sendto(packet, (LOOPBACK, address.nak_port))
        return [found for found in self.take() if not isinstance(lbtrm.decode(found), lbtrm.SessionMessage)]

    def files(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()} - {"rows"}

    def close(self) -> None:
        for sender in self.life.senders:
            sender.close(0, self.clock.time_ns)
        self.life.loop.close()
        self.wire.close()
        self.asking.close()
        self.lives.close()
        vars(self).clear()
        gc.collect()  # the memory of processes that ended is open else while others count files


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[LbtrmSenderScene]:
    made = LbtrmSenderScene(tmp_path)
    yield made
    made.close()


def message(sqn: int, size: int = 60, topic: int = TOPIC) -> bytes:
    return LBMC.pack(0, 0, size, topic, sqn) + bytes([sqn & 0xFF]) * (size - 12)


def sqns_of(datagrams: list[bytes]) -> list[int]:
    return [packet.sqn for packet in map(lbtrm.decode, datagrams) if isinstance(packet, lbtrm.Data)]


def the_sm(datagrams: list[bytes]) -> tuple[int, int]:
    """Lead and trail of the only session message."""
    [packet] = [packet for packet in map(lbtrm.decode, datagrams) if isinstance(packet, lbtrm.SessionMessage)]
    return packet.lead, packet.trail


def again(datagram: bytes, trail: int = 0) -> bytes:
    """As it is sent once more."""
    return datagram[:12] + trail.to_bytes(4, "big") + bytes([datagram[16] | lbtrm.FLAG_RETRANSMISSION]) + datagram[17:]


def refused(datagrams: list[bytes]) -> dict[int, int]:
    """Reasons by sqn."""
    return {sqn: ncf.reason for ncf in map(lbtrm.decode, datagrams) if isinstance(ncf, lbtrm.Ncf) for sqn in ncf.sqns}


@pytest.mark.parametrize("former", [True, False])
def test_a_session_goes_on_behind_what_was_sent(scene: LbtrmSenderScene, former: bool) -> None:
    scene.send(10, 11, 12)
    address, index = scene.address, scene.sender.transport_index
    assert sqns_of(scene.take()) == [0, 1, 2]
    sender = scene.restart(former=former)
    assert (sender.address, sender.transport_index) == (address, index)
    assert sender.is_heard(scene.clock.time_ns, scene.clock.time_ns), "receivers have joined it already"
    assert the_sm(scene.take()) == (2, 0)
    scene.send(13)
    [datagram] = scene.take()
    found = lbtrm.decode(datagram)
    assert isinstance(found, lbtrm.Data)
    assert (found.sqn, found.session_id, found.ucast_port) == (3, address.session_id, address.nak_port)
    assert bytes(found.payload) == message(13)


def test_its_sources_share_it_again(scene: LbtrmSenderScene) -> None:
    sender = scene.restart()
    assert scene.life.acquire(sender.transport_index) is sender
    assert scene.life.acquire() is sender


def send_mixed(scene: LbtrmSenderScene, *, expected: int = 3) -> None:
    """Datagrams that are logged together, and differ."""
    buffer = bytearray()
    table = RunTable()
    for sqn, size in ((100, 8000), (101, 7000), (102, 7500)):
        table.add_run(Run(TOPIC, sqn, 1, len(buffer), size, size, 0, 0, KIND_DATA))
        buffer += message(sqn, size)
    assert scene.sender.send_batch(buffer, table, scene.clock.time_ns) == expected


def test_what_a_former_life_has_sent_is_sent_again_as_it_was(scene: LbtrmSenderScene) -> None:
    scene.send(10, 11)
    send_mixed(scene)
    scene.send(12)
    sent = scene.take()
    assert sqns_of(sent) == list(range(6))
    scene.restart()
    scene.send(13)
    sent += [datagram for datagram in scene.take() if sqns_of([datagram])]
    for number in (4, 0, 6, 2, 3, 5, 1):
        assert scene.nak(number) == [again(sent[number])]
    scene.restart()
    scene.take()
    assert scene.nak(*range(7)) == [*map(again, sent)], "that of both lives"


def test_what_was_logged_and_never_left_is_told_of_and_sent_when_asked_for(scene: LbtrmSenderScene) -> None:
    scene.send(10)
    scene.take()
    scene.sender._trains._sends = LastSends(None)  # type: ignore[assignment]
    with pytest.raises(Killed):
        send_mixed(scene)
    assert scene.take() == []
    scene.restart()
    assert the_sm(scene.take()) == (3, 0)
    found = [lbtrm.decode(datagram) for datagram in scene.nak(1, 2, 3)]
    payloads = [bytes(each.payload) for each in found if isinstance(each, lbtrm.Data)]
    assert payloads == [message(100, 8000), message(101, 7000), message(102, 7500)]


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_what_the_socket_did_not_take_is_not_told_of(scene: LbtrmSenderScene, taken: int) -> None:
    scene.send(10)
    scene.sender._trains._sends = LastSends(taken)  # type: ignore[assignment]
    send_mixed(scene, expected=taken)
    scene.restart()
    sent = scene.take()
    assert the_sm(sent) == (taken, 0)
    assert len(scene.nak(*range(taken + 3))) == taken + 1
    scene.send(11)
    assert sqns_of(scene.take()) == [taken + 1]
    assert scene.restart().core.next_sqn == taken + 2


@pytest.fixture
def small_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for about 180 datagrams of 1400 bytes."""
    monkeypatch.setattr(kind, "log_bytes", lambda _: 0)


@pytest.mark.usefixtures("small_log")
def test_what_the_log_has_dropped_is_refused_and_the_trail_says_so(scene: LbtrmSenderScene) -> None:
    scene.send(*range(300), size=1400)
    sent = scene.take()
    scene.restart()
    lead, trail = the_sm(scene.take())
    assert lead == 299
    assert 100 < trail < 150
    assert scene.sender.core.trail == trail
    assert refused(scene.nak(trail - 1)) == {trail - 1: NCF_DO_NOT_RETRY}
    assert scene.nak(trail) == [again(sent[trail], trail)]
    scene.send(*range(300, 310), size=1400)
    found = lbtrm.decode(scene.take()[-1])
    assert isinstance(found, lbtrm.Data)
    assert found.trail > trail, "the log has made room for the one before"
    assert refused(scene.nak(trail)) == {trail: NCF_DO_NOT_RETRY}


@pytest.mark.usefixtures("small_log")
def test_memory_of_the_former_life_that_is_used_again_is_not_sent(scene: LbtrmSenderScene) -> None:
    scene.send(*range(300), size=1400)
    sent = scene.take()
    scene.restart()
    _, trail = the_sm(scene.take())
    assert scene.nak(trail + 50) == [again(sent[trail + 50], trail)], "the record is known now"
    for number in range(300, 600):
        scene.send(number, size=1400)
        sent += scene.take()
        trail = scene.sender.core.trail
        if trail < 300:
            scene.clock.time_ns += s(1)  # beyond the interval in which it ignores
            assert scene.nak(trail) == [again(sent[trail], trail)]
            assert refused(scene.nak(trail - 1)) == {trail - 1: NCF_DO_NOT_RETRY}
    assert trail == 300, "the former life has gone, and this one has a window of its own"
    assert scene.nak(300) == [again(sent[300], 300)]


def test_the_next_life_knows_the_fragments_of_each_topic(scene: LbtrmSenderScene) -> None:
    scene.send(10, 11, 12)
    scene.send(5, topic=8)
    send_mixed(scene)
    scene.restart()
    before = scene.life.pool.sent_before[scene.sender.transport_index]
    assert before.of(TOPIC) == [(10, 3), (100, 3)]
    assert before.of(8) == [(5, 1)]
    assert before.of(9) == []


def test_of_a_long_past_only_the_last_turn_and_the_newest_pieces_are_looked_through(scene: LbtrmSenderScene) -> None:
    turn = scene.lives.kept.turn
    scene.send(*range(600))
    turn.now = 2
    scene.send(*range(600, 1000))
    scene.life.die()
    kept = scene.lives.next_life()
    kept.turn.former = 1
    scene.life = scene.begin_life(kept)
    index = scene.life.acquire(scene.sender.transport_index).transport_index
    [(first, fragments)] = scene.life.pool.sent_before[index].of(TOPIC)
    assert first + fragments == 1000
    assert 590 <= first < 600, "all of the turn that was not finished, and the end of the one before"


def end_of(scene: LbtrmSenderScene, what: str) -> None:
    """Spoil what the session has left."""
    prefix = next(iter(scene.lives.sockets.held)).rpartition(b" ")[0]
    path = scene.folder / f"sent.{scene.sender.transport_index}"
    if what == "log":
        with path.open("r+b") as file:
            file.write(bytes(4096))
    elif what == "file":
        path.unlink()
    elif what == "row":
        assert scene.lives.kept.rows is not None
        scene.lives.kept.rows.free(SENT, b"%d" % scene.sender.transport_index)
    else:
        scene.lives.sockets.drop(prefix + b" " + what.encode())


@pytest.mark.parametrize("what", ["log", "file", "row", "data", "naks"])
@pytest.mark.parametrize("former", [True, False])
def test_a_session_of_which_something_is_missing_is_a_new_one(scene: LbtrmSenderScene, what: str, former: bool) -> None:
    scene.send(10, 11)
    address, index = scene.address, scene.sender.transport_index
    end_of(scene, what)
    sender = scene.restart(former=former)
    assert sender.transport_index != index
    assert (scene.address.session_id, sender.core.next_sqn) != (address.session_id, 2)
    assert scene.address.session_id not in (0, address.session_id)
    assert not sender.is_heard(scene.clock.time_ns, scene.clock.time_ns)
    assert scene.files() == {f"sent.{sender.transport_index}"}
    assert all(b" %d " % sender.transport_index in name for name in scene.lives.sockets.held)
    assert len(scene.lives.sockets.held) == 2
    scene.take()
    scene.send(12)
    assert sqns_of(scene.take()) == [0]
    assert scene.lives.sockets.taken == [] or scene.lives.sockets.taken[0].fileno() < 0
    scene.restart()
    assert scene.lives.kept.rows is not None
    assert scene.lives.kept.rows.former(SENT, b"%d" % index) is None


def test_a_session_that_is_closed_leaves_nothing(scene: LbtrmSenderScene) -> None:
    scene.send(10)
    scene.sender.close(0, scene.clock.time_ns)
    index = scene.sender.transport_index
    assert scene.life.closed == [scene.sender]
    assert (scene.files(), scene.lives.sockets.held) == (set(), {})
    scene.life.die()
    kept = scene.lives.next_life()
    assert kept.rows is not None
    assert kept.rows.former(SENT, b"%d" % index) is None
    scene.life = scene.begin_life(kept)


def test_a_session_that_goes_on_leaves_nothing_either(scene: LbtrmSenderScene) -> None:
    scene.send(10)
    scene.restart().close(0, scene.clock.time_ns)
    assert (scene.files(), scene.lives.sockets.held) == (set(), {})


def test_what_no_source_asks_for_is_forgotten(scene: LbtrmSenderScene) -> None:
    scene.send(10)
    index = scene.sender.transport_index
    scene.life.die()
    scene.life = scene.begin_life(scene.lives.next_life())
    scene.life.pool.forget_waiting()
    assert (scene.files(), scene.lives.sockets.held) == (set(), {})
    assert [sock.fileno() for sock in scene.lives.sockets.taken] == [-1, -1]
    scene.sender = scene.life.acquire(index)
    assert scene.sender.transport_index != index


def test_what_goes_on_is_not_forgotten(scene: LbtrmSenderScene) -> None:
    scene.send(10)
    sender = scene.restart()
    scene.life.pool.forget_waiting()
    assert scene.life.pool.sent_before == {}
    assert (len(scene.files()), len(scene.lives.sockets.held)) == (1, 2)
    sent = scene.take()
    assert the_sm(sent) == (0, 0)
    assert len(scene.nak(0)) == 1
    assert scene.restart().transport_index == sender.transport_index


def refuse_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)


@pytest.mark.parametrize("asked", [True, False])
def test_without_memory_a_session_goes_on_and_ends_with_its_process(
    scene: LbtrmSenderScene, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.send(10)
    sent = scene.take()
    scene.restart()
    scene.take()
    if asked:
        assert scene.nak(0) == [again(sent[0])]
    refuse_memory(monkeypatch)
    for number in range(50):
        scene.send(number, size=8000)
    assert sqns_of(scene.take()) == list(range(1, 51))
    assert (scene.files(), scene.lives.sockets.held) == (set(), {})
    scene.clock.time_ns += s(1)
    assert refused(scene.nak(0)) == {0: NCF_DO_NOT_RETRY}
    assert sqns_of(scene.nak(1)) == [1]
    monkeypatch.undo()
    assert scene.restart().core.next_sqn == 0


@pytest.mark.parametrize("headers_share", [1, 2])
def test_the_log_is_the_window_round_after_round(
    scene: LbtrmSenderScene, monkeypatch: pytest.MonkeyPatch, headers_share: int
) -> None:
    """What the trail says to be there is repaired as it was sent, also where the log has less room than the window."""
    monkeypatch.setattr(logs, "HEADERS_SHARE", headers_share)
    monkeypatch.setattr(logs, "LOG_LEAST", 0)
    window_bytes = 300_000
    scene.sender.close(0, scene.clock.time_ns)
    scene.life.pool.forget(scene.sender)
    scene.life.options = scene.options.with_("source", "transport_lbtrm_transmission_window_size", window_bytes)
    scene.sender = scene.life.acquire()
    sent: list[bytes] = []
    for _ in range(40):
        send_mixed(scene)
        scene.send(len(sent) + 3, size=3000)
        scene.send(len(sent) + 4)
        sent += scene.take()
    core, log = scene.sender.core, scene.sender._log
    assert core.next_sqn == len(sent) == 40 * 5
    assert scene.sender._is_window
    assert log is not None
    assert log.capacity < headers_share * window_bytes + 4096
    kept = range(core.trail, core.next_sqn)
    assert 0.8 * window_bytes < sum(len(sent[sqn]) for sqn in kept) < 1.1 * window_bytes
    for sqn in kept:
        assert scene.nak(sqn) == [again(sent[sqn], core.trail)]
    assert refused(scene.nak(core.trail - 1)) == {core.trail - 1: NCF_DO_NOT_RETRY}
