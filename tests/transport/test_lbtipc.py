"""LBT-IPC on one loop: sessions joined, refused, paced, overrun and ended, and what strangers do at the socket."""

from __future__ import annotations

import errno
import os
import random
import socket
from collections.abc import Callable, Iterator

import pytest

from dro.clock import ms, s
from dro.config.um.options import UmOptions
from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.loop import Loop
from dro.transport import mmsg
from dro.transport.kind import SenderEvents, SessionHost
from dro.transport.lbtipc import memory as shared
from dro.transport.lbtipc import sender as sender_module
from dro.transport.lbtipc.kind import IpcReceivers, IpcSenders, is_near
from dro.transport.lbtipc.sender import IpcSender
from dro.transport.registry import is_near as is_any_near
from dro.transport.runs import Run, RunTable
from dro.um.blocking_api import BlockingContext
from dro.um.message.events import Data
from dro.wire import lbtipc
from dro.wire.lbmc.message import HEADER
from dro.wire.lbtipc import IpcHello, IpcPosition, IpcRefusal, IpcWelcome, OtherLayout, Refused
from dro.wire.source_string import IpcAddress, SmxAddress
from tests.fakes.clock import SteppedClock
from tests.fakes.session_sink import KeepingSink
from tests.fakes.um_contexts import PATIENCE_S, private_config
from tests.fakes.worker import logged

TOPIC = 7
THIRD = 43_680  # two of them are a record, and three records fill the smallest memory
SMALLEST = 65536  # of the option; the memory is as large as three records
OTHER_GROUP = 2_000_000_001


class Reader:
    """A context that joins sessions, on a loop of its own."""

    def __init__(self, scene: IpcScene, **more: int | str) -> None:
        self.loop = Loop(scene.clock)
        self.sink = KeepingSink()
        options = UmOptions({("receiver", f"transport_lbtipc_{name}"): value for name, value in more.items()})
        host = SessionHost(self.loop, options, mmsg.DatagramBatch(), random.Random(3))
        self.lost: list[tuple[int, str]] = []
        self.session = IpcReceivers(host, self.sink, self.on_ended).join(scene.address, options, scene.clock.time_ns)
        self.session.on_lost = lambda session, count, cause, now_ns: self.lost.append((count, cause))

    def on_ended(self, session: object, now_ns: int) -> None:
        assert session is self.session
        self.sink.on_ended(self.session, now_ns)
        self.session.leave()

    def turn(self, turns: int | None = None) -> None:
        turn(self.loop, turns)

    def numbers(self) -> list[int]:
        return [sqn for _, sqn, _ in self.sink.got]

    def end(self) -> None:
        self.session.leave()
        self.loop.close()


def turn(loop: Loop, turns: int | None = None) -> None:
    idle = 0
    while idle < 3 and turns != 0:
        idle = 0 if loop.run_once(0) else idle + 1
        turns = None if turns is None else turns - 1


def message(sqn: int, size: int = 100) -> bytes:
    return HEADER.pack(0, 0, size, TOPIC, sqn) + bytes(size - HEADER.size)


class IpcScene:
    """One session of a source, and those who read it."""

    def __init__(self, **more: int | str) -> None:
        self.clock = SteppedClock(s(5))
        self.loop = Loop(self.clock)
        self.clients: list[tuple[str, bool]] = []
        self.closed: list[object] = []
        self.readers: list[Reader] = []
        values = {"transmission_window_size": SMALLEST} | more
        scoped = {"datagram_max_size": "context", "id_low": "context", "id_high": "context"}
        self.options = UmOptions(
            {(scoped.get(name, "source"), f"transport_lbtipc_{name}"): value for name, value in values.items()}
        )
        events = SenderEvents(lambda _, *told: self.clients.append(told), self.closed.append)
        self.host = SessionHost(self.loop, self.options, mmsg.DatagramBatch(), random.Random())
        self.pool = IpcSenders(self.host, events, False)
        sender = self.pool.acquire(self.options)
        assert isinstance(sender, IpcSender)
        self.sender = sender
        self.address = sender.address
        self.unblocked = 0
        sender.on_unblocked = self._on_unblocked
        self.sqn = 0

    def _on_unblocked(self) -> None:
        self.unblocked += 1

    def join(self, **more: int | str) -> Reader:
        reader = Reader(self, **more)
        self.readers.append(reader)
        for _ in range(2):
            reader.turn()
            turn(self.loop)
        reader.turn()
        return reader

    def send(self, size: int = 100, count: int = 1) -> int:
        """Send messages as one record; how many were taken."""
        messages = [message(self.sqn + number, size) for number in range(count)]
        taken = self.sender.send_packed(messages, 0, self.clock.time_ns)
        self.sqn += taken
        return taken

    def turn(self) -> None:
        """Let everybody do what there is to do."""
        for _ in range(3):
            turn(self.loop)
            for reader in self.readers:
                reader.turn()

    def later(self, ns: int, step_ns: int = ms(500)) -> None:
        end_ns = self.clock.time_ns + ns
        while self.clock.time_ns < end_ns:
            self.clock.time_ns = min(end_ns, self.clock.time_ns + step_ns)
            self.turn()

    def stranger(self) -> socket.socket:
        return shared.connect(self.address)

    def close(self) -> None:
        for reader in self.readers:
            reader.end()
        self.sender.close(0, self.clock.time_ns)
        self.loop.close()


Make = Callable[..., IpcScene]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[IpcScene] = []

    def make(**more: int | str) -> IpcScene:
        made.append(IpcScene(**more))
        return made[-1]

    yield make
    for scene in made:
        scene.close()


def test_messages_cross_in_order_and_both_count_them(make: Make) -> None:
    scene = make()
    readers = [scene.join(), scene.join()]
    for number in range(200):
        assert scene.send(100 + number, count=1 + number % 3)
        if number % 10 == 0:
            scene.turn()
    scene.turn()
    for reader in readers:
        assert reader.numbers() == list(range(scene.sqn))
        assert reader.sink.events == ["began"]
        counters = reader.session.core.stats
        assert (counters.msgs_rcved, counters.lbm_msgs_rcved) == (200, scene.sqn)
        assert counters.bytes_rcved == scene.sender.core.stats.bytes_sent
    stats = scene.sender.statistics()
    assert scene.sender.core.stats.msgs_sent == scene.sqn
    assert scene.sender.core.stats.num_clients == 2
    assert stats.source == readers[0].session.statistics().source
    assert [connected for _, connected in scene.clients] == [True, True]


def test_a_batch_of_runs_crosses_in_several_records(make: Make) -> None:
    scene = make()
    reader = scene.join()
    size, count = 1000, 300
    buffer = bytearray(b"".join(message(number, size) for number in range(count)))
    table = RunTable()
    table.add_run(Run(TOPIC + 1, 0, count, 0, size, size, 0, 0, 0))
    assert scene.sender.send_batch(buffer, table, scene.clock.time_ns) == count
    assert table.rows == 0
    for _ in range(4):
        scene.turn()
    assert reader.numbers()[-1] == count - 1
    assert {topic for topic, _, _ in reader.sink.got} == {TOPIC + 1}, "the index that is sent with"
    assert reader.session.core.stats.msgs_rcved + reader.session.lost == -(-count * size // 87_381)


def test_what_nobody_hears_is_counted_and_who_joins_begins_with_the_next(make: Make) -> None:
    scene = make()
    assert scene.send() == 1
    reader = scene.join()
    assert scene.sender.is_heard(0, 0)
    scene.send()
    scene.turn()
    assert reader.numbers() == [1]
    assert scene.sender.core.stats.msgs_sent == 2


# T31


def test_t31_the_end_comes_a_timeout_after_the_last_message_of_life(make: Make) -> None:
    scene = make()
    reader = scene.join()
    assert reader.sink.events == []
    scene.later(s(10))
    assert reader.sink.events == ["began"], "a message of life is activity"
    scene.later(s(15))
    scene.sender.close(0, scene.clock.time_ns)
    scene.turn()
    scene.later(s(54.5))
    assert reader.sink.events == ["began"]
    scene.later(s(0.5))
    assert reader.sink.events == ["began", "ended"]
    assert reader.session.was_connected


def test_t31_source_paced_the_newest_three_of_five_are_left(make: Make) -> None:
    scene = make()
    reader = scene.join()
    for _ in range(5):
        assert scene.send(THIRD, count=2) == 2
    scene.turn()
    assert reader.numbers() == [4, 5, 6, 7, 8, 9]
    assert reader.lost == [(2, "overrun")]
    assert reader.session.counts().unrecoverable == 2


def test_t31_receiver_paced_the_fourth_waits_until_one_was_read(make: Make) -> None:
    scene = make(behavior="receiver_paced")
    reader = scene.join()
    for _ in range(3):
        assert scene.send(THIRD, count=2) == 2
    assert scene.send(THIRD, count=2) == 0
    assert scene.sender.is_blocked
    assert scene.send() == 0, "nothing overtakes it"
    (blocked,) = scene.sender.statistics().blocked
    assert (blocked.address, blocked.waiting_bytes, blocked.blocks_others) == (scene.clients[0][0], 6 * THIRD, True)
    scene.turn()
    assert not scene.sender.is_blocked
    assert scene.unblocked == 1
    assert scene.send(THIRD, count=2) == 2
    scene.turn()
    assert reader.numbers() == list(range(8))
    assert reader.lost == []


def test_receiver_paced_one_that_is_slow_to_begin_says_how_far_it_is(make: Make) -> None:
    """What was written before it had the memory counts as what came after it."""
    scene = make(behavior="receiver_paced")
    reader = Reader(scene)
    scene.readers.append(reader)
    reader.turn(2)
    turn(scene.loop)
    assert scene.sender.core.stats.num_clients == 1
    for _ in range(3):
        assert scene.send(THIRD, count=2) == 2
    assert scene.send(THIRD, count=2) == 0
    scene.turn()
    assert not scene.sender.is_blocked
    assert reader.numbers() == list(range(6))


def test_receiver_paced_goes_on_where_there_is_less_memory_than_the_window(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receiver that has read all there is room for has read less than it says by itself."""
    scene = make(behavior="receiver_paced", transmission_window_size=24 << 20)
    reader = scene.join()
    allocate, free = os.posix_fallocate, 1 << 20

    def allocate_some(fd: int, offset: int, nbytes: int) -> None:
        nonlocal free
        free -= nbytes
        if free < 0:
            raise OSError(errno.ENOSPC, "full")
        allocate(fd, offset, nbytes)

    monkeypatch.setattr(os, "posix_fallocate", allocate_some)
    refused = 0
    while scene.sqn < 2000 and refused < 3000:
        if not scene.send(3000):
            refused += 1
            scene.turn()
    scene.turn()
    assert reader.numbers() == list(range(2000))
    assert reader.lost == []
    assert refused


def test_a_receiver_that_was_stopped_reads_what_there_is_before_it_ends(make: Make) -> None:
    scene = make()
    reader = scene.join()
    scene.send(count=3)
    scene.clock.time_ns += s(61)
    reader.turn()
    assert reader.numbers() == [0, 1, 2]
    assert "ended" not in reader.sink.events


def test_t31_receiver_paced_a_receiver_that_is_gone_holds_nothing_up(make: Make) -> None:
    scene = make(behavior="receiver_paced")
    quick, slow = scene.join(), scene.join()
    scene.readers.remove(slow)
    for _ in range(3):
        assert scene.send(THIRD, count=2) == 2
    assert scene.send(THIRD, count=2) == 0
    scene.turn()
    assert scene.sender.is_blocked, "the other one has read nothing"
    assert len(scene.sender.statistics().blocked) == 1
    slow.end()
    scene.turn()
    assert scene.unblocked == 1
    assert scene.send(THIRD, count=2) == 2
    scene.turn()
    assert quick.numbers() == list(range(8))


def test_receiver_paced_nothing_is_lost_whatever_the_sizes(make: Make) -> None:
    scene = make(behavior="receiver_paced")
    readers = [scene.join() for _ in range(3)]
    rng = random.Random(5)
    refused = 0
    while scene.sqn < 3000:
        if not scene.send(rng.choice([20, 500, 20_000, 65_535])):
            refused += 1
            scene.turn()
        if rng.random() < 0.1:
            turn(rng.choice(readers).loop, 1)
            turn(scene.loop)
    scene.turn()
    assert refused > 10
    for reader in readers:
        assert reader.numbers() == list(range(scene.sqn))
        assert reader.lost == []


# joining


def test_only_so_many_receivers_join_and_the_next_when_one_is_gone(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    scene = make(maximum_receivers_per_transport=1)
    first, second = scene.join(), scene.join(activity_timeout=5000)
    assert not second.session.was_connected
    (_, refused, fields), (_, not_joined, _) = logged(caplog)
    assert (refused, not_joined) == (LogEvent.IPC_RECEIVER_REFUSED, LogEvent.IPC_NOT_JOINED)
    assert "transport_lbtipc_maximum_receivers_per_transport" in str(fields["remedy"])
    scene.send()
    scene.turn()
    assert (first.numbers(), second.numbers()) == ([0], [])
    first.session.leave()
    scene.later(s(2))
    scene.send()
    scene.turn()
    assert second.numbers() == [1]
    assert second.session.was_connected


def test_a_session_that_stays_full_ends_unconnected(make: Make) -> None:
    scene = make(maximum_receivers_per_transport=0)
    reader = scene.join(activity_timeout=5000)
    scene.later(s(5))
    assert reader.sink.events == ["ended"]
    assert not reader.session.was_connected


def test_one_of_another_layout_is_refused_at_either_end(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = make()
    sock = scene.stranger()
    sock.send(lbtipc.encode(OtherLayout(shared.LAYOUT + 1), 0))
    turn(scene.loop)
    assert lbtipc.decode(sock.recv(64), 0) == IpcRefusal(Refused.LAYOUT)
    assert sock.recv(64) == b""
    sock.close()
    monkeypatch.setattr(shared, "LAYOUT", shared.LAYOUT + 1)
    reader = Reader(scene)
    scene.readers.append(reader)
    reader.turn(2)
    monkeypatch.undo()
    turn(scene.loop)
    reader.turn()
    assert not reader.session.was_connected


def test_a_user_that_is_neither_the_own_nor_root_is_refused(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scene = make()
    monkeypatch.setattr(shared, "peer_of", lambda sock: shared.Peer(os.getpid(), os.geteuid() + 12345, OTHER_GROUP))
    reader = scene.join()
    assert not reader.session.was_connected
    assert scene.sender.core.stats.num_clients == 0
    assert "as the user of the source" in str(logged(caplog)[0][2]["remedy"])
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    reader.session._connect(scene.clock.time_ns)
    assert "as the user of the receiver" in str(logged(caplog)[0][2]["remedy"])


def test_a_user_with_a_group_of_the_source_may_join(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = make()
    monkeypatch.setattr(shared, "peer_of", lambda sock: shared.Peer(os.getpid(), os.geteuid() + 12345, OTHER_GROUP))
    monkeypatch.setattr(os, "getgroups", lambda: [OTHER_GROUP])
    assert scene.join().session.was_connected


def test_a_session_of_another_id_is_refused(make: Make) -> None:
    scene = make()
    sock = scene.stranger()
    sock.send(lbtipc.encode(IpcHello(scene.address.session_id ^ 1), shared.LAYOUT))
    turn(scene.loop)
    assert lbtipc.decode(sock.recv(64), shared.LAYOUT) == IpcRefusal(Refused.SESSION)
    sock.close()


def test_a_source_that_does_not_answer_is_asked_again(make: Make) -> None:
    scene = make()
    reader = Reader(scene)
    scene.readers.append(reader)
    reader.turn()
    for _ in range(3):
        scene.clock.time_ns += s(1)
        reader.turn()
    scene.turn()
    scene.send()
    scene.turn()
    assert reader.numbers() == [0]
    assert scene.sender.core.stats.num_clients == 1


def test_a_receiver_that_joins_again_goes_on_where_it_was(make: Make) -> None:
    scene = make()
    reader = scene.join()
    scene.send()
    scene.turn()
    (client,) = scene.sender._clients.values()
    other = scene.join()  # so that the source goes on to write
    scene.sender._drop(client)
    scene.send()
    scene.later(s(2))
    assert (reader.numbers(), other.numbers()) == ([0, 1], [1])


# what strangers do


def garbage(rng: random.Random) -> bytes:
    packets: list[lbtipc.IpcPacket] = [IpcHello(1), IpcWelcome(1, True), IpcPosition(9), IpcRefusal(Refused.FULL)]
    good = lbtipc.encode(rng.choice(packets), shared.LAYOUT)
    made = bytearray(rng.choice([good, rng.randbytes(rng.randrange(1, 200)), b"w"]))
    made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)
    return bytes(made)


def test_garbage_at_the_socket_closes_the_connection_and_nothing_else(make: Make) -> None:
    scene = make(behavior="receiver_paced")
    reader = scene.join()
    rng = random.Random(9)
    for _ in range(300):
        sock = scene.stranger()
        sock.send(garbage(rng))
        turn(scene.loop)
        sock.close()
    scene.send()
    scene.turn()
    assert reader.numbers() == [0]
    assert scene.sender.counts().bad > 100
    assert scene.sender.core.stats.num_clients == 1
    assert not scene.sender._opening


def test_descriptors_that_are_sent_to_a_source_are_not_taken(make: Make) -> None:
    scene = make()
    sock = scene.stranger()
    turn(scene.loop)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        socket.send_fds(sock, [lbtipc.encode(IpcHello(scene.address.session_id), shared.LAYOUT)], [0, 1, 2])
        turn(scene.loop)
    assert len(os.listdir("/proc/self/fd")) == before
    sock.close()


def test_a_flood_of_connections_is_bounded_and_others_join(make: Make) -> None:
    scene = make()
    socks = []
    for _ in range(3 * sender_module.OPENING_MAX):
        socks.append(scene.stranger())
        turn(scene.loop)
        assert len(scene.sender._opening) <= sender_module.OPENING_MAX
    scene.join()
    assert scene.sender.core.stats.num_clients == 1
    for sock in socks:
        sock.close()
    turn(scene.loop)
    assert not scene.sender._opening


def test_a_source_without_descriptors_accepts_later(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = make()

    class Exhausted:
        def __init__(self, sock: socket.socket) -> None:
            self.fileno = sock.fileno

        def accept(self) -> None:
            raise OSError(24, "Too many open files")

    listener = scene.sender._listener
    monkeypatch.setattr(scene.sender, "_listener", Exhausted(listener))
    reader = scene.join()
    assert not reader.session.was_connected
    monkeypatch.setattr(scene.sender, "_listener", listener)
    scene.later(s(1.5), ms(100))
    assert reader.session.was_connected


class FalseSource:
    """Answers in place of a source."""

    def __init__(self, answers: list[tuple[bytes, list[int]]]) -> None:
        self.address = IpcAddress(shared.host_id(), random.getrandbits(32), 20001)
        listener = shared.listen(self.address)
        assert listener is not None
        self.clock = SteppedClock(s(5))
        self.listener = listener
        self.answers = answers

    def answer(self, reader: Reader) -> None:
        reader.turn(2)
        sock, _ = self.listener.accept()
        sock.recv(64)
        for data, fds in self.answers:
            socket.send_fds(sock, [data], fds)
        reader.turn()
        sock.close()
        reader.turn()
        self.listener.close()


WELCOME = lbtipc.encode(IpcWelcome(0, False), shared.LAYOUT)


@pytest.mark.parametrize("what", ["no descriptor", "other file", "short file", "other packet", "cut", "three"])
def test_a_source_that_is_none_ends_the_session(what: str) -> None:
    fd = os.memfd_create("other", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 100 if what == "short file" else 1 << 20)
    data = {"other packet": lbtipc.encode(IpcHello(1), shared.LAYOUT), "cut": WELCOME[:-1]}.get(what, WELCOME)
    fds = {"no descriptor": [], "three": [fd, fd, fd]}.get(what, [fd])
    before = len(os.listdir("/proc/self/fd"))
    source = FalseSource([(data, fds)])
    reader = Reader(source)  # type: ignore[arg-type]
    source.answer(reader)
    assert reader.sink.events == ["ended"]
    assert reader.session.counts().bad == 1
    reader.end()
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(fd)


def test_memory_that_another_user_could_cut_short_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    address = IpcAddress(shared.host_id(), random.getrandbits(32), 20001)
    memory = shared.make_memory(address, SMALLEST, None)
    fd = shared.for_readers(memory)
    with pytest.raises(PermissionError):
        os.ftruncate(memory.ring.fd, 4096)
    assert shared.stays_whole(fd)
    other = os.memfd_create("other")
    assert shared.stays_whole(other)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert shared.stays_whole(fd)
    assert shared.stays_whole(other), "of a group of ours"
    monkeypatch.setattr(os, "getegid", lambda: OTHER_GROUP)
    monkeypatch.setattr(os, "getgroups", lambda: [])
    assert shared.stays_whole(fd)
    assert shared.stays_whole(other) is (os.getuid() == 0)
    os.close(other)
    os.close(fd)
    memory.close(unlink=False)


def test_memory_whose_bytes_change_ends_the_session_or_not_but_nothing_else(make: Make) -> None:
    rng = random.Random(17)
    ends = 0
    for _ in range(60):
        scene = make()
        reader = scene.join()
        for _ in range(5):
            scene.send(200, count=3)
        scene.turn()
        assert reader.numbers() == list(range(15))
        for _ in range(3):
            scene.send(200, count=3)
        ring = scene.sender._memory.ring
        for _ in range(rng.randrange(1, 30)):
            at = rng.randrange(6000)
            ring.mv[at] = rng.randrange(256)
            cell = rng.choice([8, 16, 24, 32, 33, *range(512, 600)])
            if rng.random() < 0.3:
                scene.sender._memory._cells[cell] = rng.choice([0, 1, 7, 1 << 20, (1 << 64) - 1])
        scene.readers.remove(reader)
        for _ in range(3):
            turn(scene.loop)
            reader.turn(50)
        ends += reader.session.counts().bad
        assert reader.session.counts().bad == reader.sink.events.count("ended") <= 1
        reader.end()
    assert ends > 10


def test_bytes_that_are_no_messages_end_the_session_and_are_counted(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    scene = make()
    reader = scene.join()
    scene.sender.send_packed([message(0), b"\xff" * 50], 0, scene.clock.time_ns)
    scene.turn()
    assert reader.numbers() == [0]
    assert reader.sink.events == ["began", "ended"]
    assert reader.session.counts().bad == 1
    assert LogEvent.IPC_BROKEN in caplog.text


# pools


def ids(pool: IpcSenders, options: UmOptions, count: int) -> list[int]:
    found = []
    for _ in range(count):
        sender = pool.acquire(options)
        assert isinstance(sender, IpcSender)
        found.append(sender.address.transport_id)
    return found


def close_all(pool: IpcSenders) -> None:
    for sender in list(pool._open.values()):
        sender.close(0, 0)


def test_the_pool_is_used_up_and_then_by_turns(make: Make) -> None:
    scene = make()
    assert ids(scene.pool, scene.options, 9) == [20002, 20003, 20004, 20005, *range(20001, 20006)]
    explicit = scene.options.with_("source", "transport_lbtipc_id", 30000)
    assert ids(scene.pool, explicit, 2) == [30000, 30000]
    inside = scene.options.with_("source", "transport_lbtipc_id", 20004)
    assert ids(scene.pool, inside, 1) == [20004]
    assert 30000 not in ids(scene.pool, scene.options, 20)
    assert len({sender.address.session_id for sender in scene.pool._open.values()}) == 6  # type: ignore[union-attr]
    other = make()
    assert other.address.transport_id == 20001, "two contexts may have the same id"
    for pool in (scene.pool, other.pool):
        close_all(pool)


def test_a_pool_without_ids_names_the_options(make: Make) -> None:
    scene = make()
    none = scene.options.with_("context", "transport_lbtipc_id_low", 9).with_("context", "transport_lbtipc_id_high", 8)
    with pytest.raises(ResourceError) as error:
        scene.pool.acquire(none)
    assert "transport_lbtipc_id_low" in str(error.value.remedy)


def test_a_name_that_is_taken_leads_to_another_session_id(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = make()
    taken = scene.address.session_id
    ids_to_come = iter([5, taken, taken, taken + 1])
    monkeypatch.setattr(SessionHost, "new_id", lambda host: next(ids_to_come))
    del scene.pool._open[20001]
    sender = scene.pool.acquire(scene.options)
    assert isinstance(sender, IpcSender)
    assert sender.address == IpcAddress(shared.host_id(), taken + 1, 20001)
    sender.close(0, 0)


def test_a_machine_without_memory_names_the_option(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = make()

    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ResourceError) as error:
        scene.pool.acquire(scene.options)
    assert "transport_lbtipc_transmission_window_size" in str(error.value.remedy)
    assert len(os.listdir("/proc/self/fd")) == before


# where a session is


def test_only_sessions_of_this_host_are_near_and_the_log_says_so_once(
    make: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = make().address
    assert is_near(address)
    caplog.clear()
    caplog.set_level("INFO")
    far = [IpcAddress(address.host_id ^ 1, number, 20001) for number in range(9)]
    assert not any(map(is_any_near, far))
    assert caplog.text.count(LogEvent.IPC_ELSEWHERE) <= 1
    assert is_any_near(SmxAddress(1, 2, 3))
    assert 0 < address.host_id < 1 << 32


def test_the_socket_has_the_name_of_the_session(make: Make) -> None:
    scene = make()
    name = f"@LBTIPC_{scene.address.session_id:x}_20001"
    with open("/proc/net/unix", encoding="ascii", errors="replace") as file:
        assert any(line.split()[-1:] == [name] for line in file)


@pytest.mark.parametrize("behavior", ["source_paced", "receiver_paced"])
def test_contexts_carry_messages_of_all_sizes(behavior: str) -> None:
    payloads = [bytes([number % 251]) * (1 + number * 701 % 70_000) for number in range(250)]
    config = private_config("lbtipc", source__transport_lbtipc_behavior=behavior)
    with BlockingContext(config) as a, BlockingContext(config) as b:
        source, receiver = a.source("topic"), b.receiver("topic")
        receiver.wait_sources(timeout=PATIENCE_S)
        source.wait_receivers(timeout=PATIENCE_S)
        for payload in payloads:
            source.send(payload)
        got: list[bytes] = []
        while len(got) < len(payloads):
            if isinstance(event := receiver.get(timeout=PATIENCE_S), Data):
                assert event.source.startswith("LBT-IPC:")
                got.append(event.data)
        assert got == payloads
