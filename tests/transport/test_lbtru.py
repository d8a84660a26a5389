"""LBT-RU on loopback sockets: one source and its receivers, repairs, strangers, ports, and deaths of processes."""

from __future__ import annotations

import errno
import gc
import os
import random
import socket
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dro.clock import ms, s
from dro.config.um.options import OptionKey, UmOptions
from dro.config.um.rules import Value
from dro.errors import ResourceError
from dro.kept.store import NOTHING_KEPT, Kept
from dro.loop import Loop
from dro.transport import mmsg
from dro.transport.kind import SenderEvents, SessionHost
from dro.transport.lbtru.kind import LbtruReceivers, LbtruSenders
from dro.transport.lbtru.receiver import LbtruReceiver
from dro.transport.lbtru.sender import LbtruSender
from dro.transport.runs import KIND_DATA, Run, RunTable
from dro.transport.session import SenderTransport
from dro.wire import lbtru
from dro.wire.lbmc.message import HEADER as LBMC
from dro.wire.source_string import LbtruAddress
from tests.fakes.clock import SteppedClock
from tests.fakes.kept import Lives
from tests.fakes.loopback import wait_for_loopback
from tests.fakes.session_sink import KeepingSink

LOOPBACK = "127.0.0.1"
TOPIC = 7
Options = dict[OptionKey, Value]
BASE: Options = {
    ("source", "transport_lbtru_interface"): LOOPBACK,
    ("receiver", "transport_lbtru_interface"): LOOPBACK,
    ("context", "transport_lbtru_data_rate_limit"): 0,
    ("context", "transport_lbtru_retransmit_rate_limit"): 0,
}


def free_ports(count: int) -> list[int]:
    """Find ports that nobody has."""
    probes = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
    for probe in probes:
        probe.bind((LOOPBACK, 0))
    found = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return found


def message(sqn: int, size: int = 60) -> bytes:
    return LBMC.pack(0, 0, size, TOPIC, sqn) + bytes([sqn & 0xFF]) * (size - 12)


class SourceLife:
    """One process with a pool of sessions."""

    def __init__(self, clock: SteppedClock, options: Options, kept: Kept = NOTHING_KEPT) -> None:
        self.loop, self.clock = Loop(clock), clock
        self.options = UmOptions(BASE | options)
        self.clients: list[tuple[str, bool]] = []
        self.closed: list[SenderTransport] = []
        host = SessionHost(self.loop, self.options, mmsg.DatagramBatch(), random.Random(), kept=kept)
        events = SenderEvents(lambda _, name, is_there: self.clients.append((name, is_there)), self.closed.append)
        self.pool = LbtruSenders(host, events, True)

    def acquire(self, former: int = 0, **options: int) -> LbtruSender:
        own = {("source", f"transport_lbtru_{name}"): value for name, value in options.items()}
        sender = self.pool.acquire(self.options.merged(UmOptions(own)), former)
        assert isinstance(sender, LbtruSender)
        return sender

    def die(self) -> None:
        """End as `kill -9` does."""
        for sender in self.pool._open.values():
            assert isinstance(sender, LbtruSender)
            sender._socket.close()
            if sender._log is not None:
                os.close(sender._log._fd)
        self.loop.close()


class ReceiverLife:
    """One process that joins sessions."""

    def __init__(self, clock: SteppedClock, options: Options, kept: Kept = NOTHING_KEPT) -> None:
        self.loop, self.clock = Loop(clock), clock
        self.options = UmOptions(BASE | options)
        self.sink = KeepingSink()
        host = SessionHost(self.loop, self.options, mmsg.DatagramBatch(), random.Random(1), kept=kept)
        self.receivers = LbtruReceivers(host, self.sink, self.sink.on_ended)

    def join(self, address: LbtruAddress) -> LbtruReceiver:
        return self.receivers.join(address, self.options, self.clock.time_ns)

    @property
    def port(self) -> int:
        [shared] = self.receivers._sockets.values()
        port: int = shared._socket.getsockname()[1]
        return port

    def sqns(self) -> list[int]:
        return [sqn for _, sqn, _ in self.sink.got]

    def die(self) -> None:
        """End as `kill -9` does."""
        for shared in self.receivers._sockets.values():
            shared._socket.close()
        self.loop.close()


class Scene:
    """A source, and receivers that join its session; what is sent to them may be lost on purpose."""

    def __init__(self, folder: Path) -> None:
        self.clock = SteppedClock(s(5))
        self.folder = folder
        self.sources: list[SourceLife] = []
        self.parties: list[ReceiverLife] = []
        self.closing: list[Lives] = []
        [low] = free_ports(1)
        self.ports: Options = {
            ("receiver", "transport_lbtru_port_low"): low,
            ("receiver", "transport_lbtru_port_high"): low + 1,
            ("context", "transport_lbtru_port_low"): 20000 + low % 10_000,
            ("context", "transport_lbtru_port_high"): 20000 + low % 10_000 + 20,
        }

    def lives(self, name: str) -> Lives:
        (self.folder / name).mkdir()
        self.closing.append(Lives(self.folder / name))
        return self.closing[-1]

    def source(self, kept: Kept = NOTHING_KEPT, options: Options | None = None) -> SourceLife:
        self.sources.append(SourceLife(self.clock, self.ports | (options or {}), kept))
        return self.sources[-1]

    def receiver(self, kept: Kept = NOTHING_KEPT, options: Options | None = None) -> ReceiverLife:
        self.parties.append(ReceiverLife(self.clock, self.ports | (options or {}), kept))
        return self.parties[-1]

    def pair(self, **options: int) -> tuple[LbtruSender, ReceiverLife, LbtruReceiver]:
        """A source and one receiver that is connected."""
        sender, party = self.source().acquire(**options), self.receiver()
        session = party.join(sender.address)
        self.turn()
        assert sender.is_heard(0, 0)
        return sender, party, session

    def turn(self, to_ns: int | None = None) -> None:
        """Run all that is due, and what it leads to."""
        if to_ns is not None:
            self.clock.time_ns = to_ns
        for _ in range(4):
            for loop in (*(one.loop for one in self.sources), *(one.loop for one in self.parties)):
                wait_for_loopback()
                while not loop._closed and loop.run_once(0):
                    pass

    def close(self) -> None:
        for source in self.sources:
            for sender in list(source.pool._open.values()):
                sender.close(0, self.clock.time_ns)
            source.loop.close()
        for party in self.parties:
            party.receivers.close()
            party.loop.close()
        for lives in self.closing:
            lives.close()
        self.sources.clear()
        self.parties.clear()
        gc.collect()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.close()


def send(scene: Scene, sender: LbtruSender, *sqns: int, size: int = 60) -> None:
    for sqn in sqns:
        assert sender.send_message(message(sqn, size), scene.clock.time_ns, size - 12)


def ask(scene: Scene, address: LbtruAddress, packet: lbtru.Packet | bytes, sock: socket.socket) -> list[lbtru.Packet]:
    """Say something to a source; what it answers."""
    datagram = packet if isinstance(packet, bytes) else lbtru.encode(packet)
    sock.sendto(datagram, (LOOPBACK, address.port))
    scene.turn()
    found = []
    while True:
        try:
            found.append(lbtru.decode(sock.recv(70_000)))
        except BlockingIOError:
            return found


@pytest.fixture
def stranger() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((LOOPBACK, 0))
        sock.setblocking(False)
        yield sock


@pytest.mark.parametrize("use_session_id", [1, 0])
def test_what_is_sent_after_a_receiver_has_connected_comes_once_in_order(scene: Scene, use_session_id: int) -> None:
    sender = scene.source().acquire(use_session_id=use_session_id)
    assert bool(sender.address.session_id) == bool(use_session_id)
    send(scene, sender, 1, 2)
    party = scene.receiver()
    session = party.join(sender.address)
    assert not session.was_connected
    scene.turn()
    assert session.was_connected
    assert scene.sources[0].clients == [(f"{LOOPBACK}:{party.port}", True)]
    send(scene, sender, 3, 4)
    buffer, table = bytearray(), RunTable()
    for sqn, size in ((5, 60), (6, 5000), (7, 300), (8, 300)):
        table.add_run(Run(TOPIC, sqn, 1, len(buffer), size, size, 0, 0, KIND_DATA))
        buffer += message(sqn, size)
    assert sender.send_batch(buffer, table, scene.clock.time_ns) == 4
    scene.turn()
    assert party.sink.got == [
        (TOPIC, sqn, message(sqn, size)[12:])
        for sqn, size in ((3, 60), (4, 60), (5, 60), (6, 5000), (7, 300), (8, 300))
    ]
    assert party.sink.events == ["began"]
    assert sender.statistics().counters.msgs_sent >= 6
    assert (session.core.stats.lost, session.core.stats.dgrams_dropped_sid) == (0, 0)


def test_a_train_goes_to_each_of_several_receivers(scene: Scene) -> None:
    sender = scene.source().acquire()
    parties = [scene.receiver() for _ in range(3)]
    for party in parties:
        party.join(sender.address)
    scene.turn()
    size, count = 1400, 200
    buffer = bytearray(b"".join(message(sqn, size) for sqn in range(count)))
    table = RunTable()
    table.add_run(Run(TOPIC, 0, count, 0, size, size, 0, 0, KIND_DATA))
    assert sender.send_batch(buffer, table, scene.clock.time_ns) == count
    scene.turn()
    assert all(party.sqns() == list(range(count)) for party in parties)
    counters = sender.statistics().counters
    assert getattr(counters, "num_clients", None) == 3
    assert counters.msgs_sent == count


def lose(sender: LbtruSender, to: int) -> None:
    """Let what is sent from now on not reach the receiver with that port, until `heal`."""
    sender._client_trains.clients = [client for client in sender._client_trains.clients if client[1] != to]


def heal(sender: LbtruSender) -> None:
    sender._client_trains.clients = sender._clients.addresses


def test_who_misses_something_gets_it_again_and_nobody_else_does(scene: Scene) -> None:
    sender = scene.source().acquire()
    first, second = scene.receiver(), scene.receiver()
    missing, whole = first.join(sender.address), second.join(sender.address)
    scene.turn()
    send(scene, sender, 1)
    lose(sender, first.port)
    send(scene, sender, 2, 3)
    heal(sender)
    send(scene, sender, 4)
    scene.turn()
    assert first.sqns() == [1, 4, 2, 3]
    assert second.sqns() == [1, 2, 3, 4]
    assert missing.core.stats.nak_pckts_sent == 1
    assert (whole.core.stats.duplicate_data, whole.core.stats.lost) == (0, 0)
    assert missing.core.stats.lost == sender.core.stats.rxs_sent == 2
    assert missing.counts().naks_sent == 2


def test_a_lost_tail_is_noticed_by_a_session_message(scene: Scene) -> None:
    sender, party, session = scene.pair()
    send(scene, sender, 1)
    lose(sender, party.port)
    send(scene, sender, 2)
    heal(sender)
    scene.turn()
    assert party.sqns() == [1]
    scene.turn(scene.clock.time_ns + ms(200))
    assert party.sqns() == [1, 2]
    assert session.is_whole(session.mark())


def test_a_silent_receiver_is_forgotten_and_one_that_acknowledges_is_not(scene: Scene) -> None:
    sender, party, _ = scene.pair(client_activity_timeout=2000)
    for _ in range(10):
        scene.turn(scene.clock.time_ns + ms(500))
    assert sender.is_heard(0, 0)
    name = f"{LOOPBACK}:{party.port}"
    party.die()
    scene.parties.clear()
    for _ in range(5):
        scene.turn(scene.clock.time_ns + ms(500))
    assert not sender.is_heard(0, 0)
    assert scene.sources[0].clients == [(name, True), (name, False)]
    sent = sender.counts()
    send(scene, sender, 5)
    assert sender.counts() == sent


def test_a_source_that_is_gone_is_noticed_by_its_silence(scene: Scene) -> None:
    sender, party, _ = scene.pair()
    sender.close(0, scene.clock.time_ns)
    scene.turn(scene.clock.time_ns + s(59))
    assert party.sink.events == ["began"]
    scene.turn(scene.clock.time_ns + s(2))
    assert party.sink.events == ["began", "ended"]


def test_a_reset_ends_the_session_at_once(scene: Scene) -> None:
    sender, party, _ = scene.pair()
    sender._clients.close()
    scene.turn(scene.clock.time_ns + ms(500))  # it acknowledges
    assert party.sink.events == ["began", "ended"]


@pytest.mark.parametrize(
    ("packet", "answers"),
    [
        (lbtru.Ack(5), [lbtru.Reset()]),
        (lbtru.Nak((1, 2)), [lbtru.Reset()]),
        (lbtru.ConnectRequest(1), []),
        (lbtru.SessionMessage(1, 2, 3), []),
        (b"", []),
        (b"\x0f" * 40, []),
        (b"\x03\x00\x00\x00\xff\xff\x00\x00", []),
    ],
)
def test_what_a_stranger_says_changes_nothing(
    scene: Scene, stranger: socket.socket, packet: lbtru.Packet | bytes, answers: list[lbtru.Packet]
) -> None:
    sender, party, _ = scene.pair()
    assert ask(scene, sender.address, packet, stranger) == answers
    assert sender.counts().bad == (0 if answers else 1)
    send(scene, sender, 1)
    scene.turn()
    assert party.sqns() == [1]
    assert len(scene.sources[0].clients) == 1


def test_a_request_for_another_session_at_that_place_is_not_answered(scene: Scene, stranger: socket.socket) -> None:
    sender, _, _ = scene.pair()
    other = (lbtru.sid_option(sender.address.session_id ^ 1),)
    for packet in (lbtru.ConnectRequest(options=other), lbtru.Ack(0, options=other), lbtru.Nak((0,), options=other)):
        assert ask(scene, sender.address, packet, stranger) == []
    assert sender.counts().bad == 3
    [syn] = ask(scene, sender.address, lbtru.ConnectRequest(), stranger)
    assert isinstance(syn, lbtru.SessionMessage)
    assert syn.flags == lbtru.FLAG_SYN
    assert syn.session_id == sender.address.session_id


def test_no_more_receivers_than_may_be(scene: Scene, stranger: socket.socket, caplog: pytest.LogCaptureFixture) -> None:
    sender, party, _ = scene.pair()
    sender._clients.most = 1
    assert ask(scene, sender.address, lbtru.ConnectRequest(), stranger) == []
    assert "LBT-RU receiver refused" in caplog.text
    send(scene, sender, 1)
    scene.turn()
    assert party.sqns() == [1]


@pytest.mark.parametrize(
    ("datagram", "counter"),
    [
        (b"\x00\x00\x00", "dgrams_dropped_size"),
        (b"\x10\x00" + bytes(20), "dgrams_dropped_version"),
        (b"\x01\x00" + bytes(20), "dgrams_dropped_type"),
        (b"\x00\x01" + bytes(10) + b"\x00\x02\x00\x00", "dgrams_dropped_hdr"),
        (lbtru.encode(lbtru.SessionMessage(1, 2, 3)), "unknown_msgs_rcved"),
    ],
)
def test_bad_and_foreign_datagrams_are_counted_by_reason(
    scene: Scene, stranger: socket.socket, datagram: bytes, counter: str
) -> None:
    sender, party, _ = scene.pair()
    stranger.sendto(datagram, (LOOPBACK, party.port))
    send(scene, sender, 1)
    scene.turn()
    [shared] = party.receivers._sockets.values()
    assert getattr(shared.stats, counter) == 1
    assert shared.stats.bad + shared.stats.unknown_msgs_rcved == 1
    assert party.sqns() == [1]
    assert party.receivers.counts().bad == (0 if counter == "unknown_msgs_rcved" else 1)


def test_another_session_at_the_place_of_one_that_is_joined_is_dropped(scene: Scene) -> None:
    """A source process that was started again, on the same port."""
    port = free_ports(1)[0]
    first = scene.source()
    old = first.acquire(port=port)
    party = scene.receiver()
    session = party.join(old.address)
    scene.turn()
    first.die()
    new = scene.source().acquire(port=port)
    assert new.address.session_id != old.address.session_id
    new._clients.add((LOOPBACK, party.port), scene.clock.time_ns)
    heal(new)
    new._copies = 1
    send(scene, new, 1)
    scene.turn()
    assert party.sqns() == []
    assert session.core.stats.dgrams_dropped_sid == 1
    later = party.join(new.address)
    scene.turn()
    send(scene, new, 2)
    scene.turn()
    assert party.sqns() == [2]
    assert later.core.stats.lost == 0


def test_the_rate_limit_counts_each_copy(scene: Scene) -> None:
    limit: Options = {
        ("context", "transport_lbtru_data_rate_limit"): 800_000,  # 10,000 bytes in 100 ms
        ("context", "transport_lbtru_rate_interval"): 100,
    }
    sender = scene.source(options=limit).acquire()
    parties = [scene.receiver() for _ in range(2)]
    for party in parties:
        party.join(sender.address)
    scene.turn()
    woken: list[int] = []
    sender.on_unblocked = lambda: woken.append(scene.clock.time_ns)
    taken = [sender.send_message(message(sqn, 1000), scene.clock.time_ns, 988) for sqn in range(6)]
    assert taken == [True] * 4 + [False] * 2
    assert sender.is_blocked
    scene.turn(scene.clock.time_ns + ms(100))
    assert len(woken) == 1
    assert not sender.is_blocked
    assert [party.sqns() for party in parties] == [[0, 1, 2, 3]] * 2


def test_when_the_socket_is_full_each_receiver_gets_the_rest_in_order(scene: Scene) -> None:
    sender = scene.source().acquire()
    parties = [scene.receiver() for _ in range(3)]
    for party in parties:
        party.join(sender.address)
    scene.turn()
    trains = sender._client_trains
    room = [5, 2, 0]  # of three datagrams for each: all to the first, two to the second, none to the third

    class FullSends:
        """In place of what sends, while there is no room."""

        def send(
            self, sock: socket.socket, buffer: memoryview, entries: list[tuple[int, int, int]], to: tuple[str, int]
        ) -> tuple[int, int]:
            most = room.pop(0) if room else len(entries)
            for at, nbytes, _ in entries[:most]:
                sock.sendto(buffer[at : at + nbytes], to)
            return (len(entries), 0) if most >= len(entries) else (most, errno.EAGAIN)

    trains._sends = FullSends()  # type: ignore[assignment]
    buffer, table = bytearray(), RunTable()
    for sqn, size in enumerate((7000, 6500, 6800)):
        table.add_run(Run(TOPIC, sqn, 1, len(buffer), size, size, 0, 0, KIND_DATA))
        buffer += message(sqn, size)
    assert sender.send_batch(buffer, table, scene.clock.time_ns) == 3
    assert sender.is_blocked
    assert not sender.send_message(message(9), scene.clock.time_ns, 48), "what follows waits"
    scene.turn()
    assert not sender.is_blocked
    send(scene, sender, 3)
    scene.turn()
    assert [party.sqns() for party in parties] == [[0, 1, 2, 3]] * 3
    assert sender.core.stats.rxs_sent == 0


def test_sources_share_ports_by_turns_and_an_explicit_one_joins_the_pool(scene: Scene) -> None:
    most: Options = {("context", "transport_lbtru_maximum_ports"): 2}
    source = scene.source(options=most)
    first, second = source.acquire(), source.acquire()
    assert first is not second
    assert [source.acquire(), source.acquire(), source.acquire()] == [first, second, first]
    explicit = source.acquire(port=free_ports(1)[0])
    assert source.acquire(port=explicit.address.port) is explicit
    assert explicit in {source.acquire() for _ in range(3)}


def test_a_port_that_is_taken_is_refused_by_name_or_another_one_is_used(
    scene: Scene, stranger: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    taken = stranger.getsockname()[1]
    source = scene.source()
    with pytest.raises(ResourceError, match="transport_lbtru_port"):
        source.acquire(port=taken)
    sender = source.acquire(port=taken, allow_ephemeral=1)
    assert sender.address.port != taken
    assert "ports of LBT-RU are taken" in caplog.text


def test_receivers_find_another_port_when_the_range_is_taken(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    one: Options = {("receiver", "transport_lbtru_port_high"): scene.ports["receiver", "transport_lbtru_port_low"]}
    sender = scene.source().acquire()
    parties = [scene.receiver(options=one) for _ in range(2)]
    for party in parties:
        party.join(sender.address)
    assert "ports of LBT-RU are taken" in caplog.text
    scene.turn()
    send(scene, sender, 1)
    scene.turn()
    assert [party.sqns() for party in parties] == [[1]] * 2


def test_the_last_session_closes_the_socket_and_what_ended_is_freed(scene: Scene) -> None:
    sender, party, session = scene.pair()
    [shared] = party.receivers._sockets.values()
    session.leave()
    assert party.receivers._sockets == {}
    ends: list[Callable[[], object]] = [weakref.ref(shared), weakref.ref(session), weakref.ref(sender)]
    sender.close(0, scene.clock.time_ns)
    scene.sources[0].pool.forget(sender)
    scene.sources[0].closed.clear()
    gc.disable()
    try:
        del shared, session, sender
        assert [end() for end in ends] == [None] * 3
    finally:
        gc.enable()


def test_a_session_lingers_while_repairs_may_be_asked_for(scene: Scene) -> None:
    sender, party, _ = scene.pair()
    send(scene, sender, 1)
    sender.close(s(10), scene.clock.time_ns)
    scene.turn(scene.clock.time_ns + s(5))
    assert scene.sources[0].closed == []
    scene.turn(scene.clock.time_ns + s(6))
    assert scene.sources[0].closed == [sender]
    assert party.sqns() == [1]


def test_data_of_another_port_of_the_source_is_not_of_the_session(scene: Scene, stranger: socket.socket) -> None:
    sender, party, _ = scene.pair()
    send(scene, sender, 1)
    scene.turn()
    forged = lbtru.Data(sender.core.next_sqn, 0, 0, message(2), options=(lbtru.sid_option(sender.address.session_id),))
    stranger.sendto(lbtru.encode(forged), (LOOPBACK, party.port))
    scene.turn()
    send(scene, sender, 3)
    scene.turn()
    assert party.sqns() == [1, 3]
    assert party.receivers.counts().unknown == 1


def test_a_session_without_data_does_not_end(scene: Scene) -> None:
    source = scene.source()
    source.pool._sm_before_data = False  # as the sources of applications
    sender, party = source.acquire(), scene.receiver()
    party.join(sender.address)
    for _ in range(20):
        scene.turn(scene.clock.time_ns + s(9))
    assert party.sink.events == ["began"]


def test_a_receiver_that_was_stopped_reads_what_waits_before_it_ends(scene: Scene) -> None:
    sender, party, _ = scene.pair(client_activity_timeout=100_000)
    send(scene, sender, 1)
    scene.turn()
    send(scene, sender, 2, 3)
    wait_for_loopback()
    scene.clock.time_ns += s(61)
    scene.turn()
    assert party.sqns() == [1, 2, 3]
    assert party.sink.events == ["began"]


def test_a_taken_port_is_replaced_by_one_other_for_all_sources(scene: Scene, stranger: socket.socket) -> None:
    source, taken = scene.source(), stranger.getsockname()[1]
    assert source.acquire(port=taken, allow_ephemeral=1) is source.acquire(port=taken, allow_ephemeral=1)


# over the death of a process


def test_a_source_goes_on_with_its_receivers_and_repairs_what_the_former_process_sent(scene: Scene) -> None:
    lives = scene.lives("source")
    life = scene.source(lives.kept)
    sender = life.acquire()
    party = scene.receiver()
    session = party.join(sender.address)
    scene.turn()
    send(scene, sender, 1)
    scene.turn()
    lose(sender, party.port)
    send(scene, sender, 2)
    address, index, socket_port = sender.address, sender.transport_index, party.port
    life.die()
    scene.sources.clear()
    next_life = scene.source(lives.next_life())
    sender = next_life.acquire(index)
    assert sender.address == address
    assert sender.is_heard(0, 0), "its receivers have not gone"
    assert next_life.clients == [(f"{LOOPBACK}:{socket_port}", True)]
    send(scene, sender, 3)
    scene.turn()
    assert party.sqns() == [1, 3, 2]
    assert party.sink.events == ["began"]
    assert session.core.stats.lost == 1
    assert next_life.pool.sent_before[index].of(TOPIC) == [(1, 2)]


def test_clients_that_came_and_went_are_those_of_the_next_process(scene: Scene, stranger: socket.socket) -> None:
    lives = scene.lives("source")
    life = scene.source(lives.kept)
    sender = life.acquire(client_activity_timeout=1000)
    ask(scene, sender.address, lbtru.ConnectRequest(), stranger)
    party = scene.receiver()
    for _ in range(2):
        scene.turn(scene.clock.time_ns + ms(700))
        if not party.receivers._sockets:
            party.join(sender.address)
    scene.turn()
    assert sorted(is_there for _, is_there in life.clients) == [False, True, True]
    index = sender.transport_index
    life.die()
    scene.sources.clear()
    next_life = scene.source(lives.next_life())
    assert next_life.acquire(index).is_heard(0, 0)
    assert next_life.clients == [(f"{LOOPBACK}:{party.port}", True)]
    for end in next_life.pool._open.values():
        end.close(0, scene.clock.time_ns)
    assert lives.sockets.held == {}
    assert [path.name for path in (scene.folder / "source").iterdir()] == ["rows"]


def test_a_receiver_goes_on_where_the_former_process_was(scene: Scene) -> None:
    lives = scene.lives("receiver")
    sender = scene.source().acquire()
    party = scene.receiver(lives.kept)
    party.join(sender.address)
    scene.turn()
    send(scene, sender, 1, 2)
    scene.turn()
    assert party.sqns() == [1, 2]
    port = party.port
    party.die()
    scene.parties.clear()
    send(scene, sender, 3)  # waits in the socket
    party = scene.receiver(lives.next_life())
    session = party.join(sender.address)
    scene.turn()
    assert party.port == port
    send(scene, sender, 4)
    scene.turn()
    assert party.sqns() == [3, 4]
    assert session.core.stats.lost == 0
    assert len(scene.sources[0].clients) == 1, "nobody had to connect anew"
    scene.turn(scene.clock.time_ns + ms(500))
    assert sender.is_heard(0, 0)


def test_a_receiver_asks_for_what_came_while_no_process_could_read(scene: Scene) -> None:
    lives = scene.lives("receiver")
    sender = scene.source().acquire()
    party = scene.receiver(lives.kept)
    party.join(sender.address)
    scene.turn()
    send(scene, sender, 1)
    scene.turn()
    lose(sender, party.port)
    send(scene, sender, 2)
    heal(sender)
    party.die()
    scene.parties.clear()
    party = scene.receiver(lives.next_life())
    party.join(sender.address)
    send(scene, sender, 3)
    scene.turn()
    assert party.sqns() == [2, 3], "in order, as those behind a stream would take a gap for a loss"
