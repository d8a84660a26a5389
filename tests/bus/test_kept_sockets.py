"""Sockets that a worker keeps with its parent: both sides on one loop, real descriptors, none of which is left over."""

from __future__ import annotations

import array
import gc
import os
import resource
import socket
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from dro.bus import kept_sockets
from dro.bus.kept_sockets import MAX_KEPT_NAME, NO_SOCKETS, KeptSockets, SocketKeeper, SocketsAtFork
from dro.errors import LocalProtocolError
from dro.loop import Loop
from dro.os_errors import remedy_of
from tests.bus.conftest import Until, files_by_name, open_files

MANY: Final = 600
"""Messages with descriptors, more than the kernel takes at once."""


class Lives:
    """The lives of one worker in one process: a fork is a copy of each descriptor."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.told: list[tuple[str, str]] = []  # by the parent
        self.refused: list[tuple[str, str]] = []  # of the worker
        self.keeper = SocketKeeper(loop, lambda why, remedy: self.told.append((why, remedy)))
        self.end: socket.socket
        self.worker = self.fork()

    def fork(self) -> KeptSockets:
        at_fork = self.keeper.attach()
        self.end = at_fork.end
        by_name = {name: os.dup(fd) for name, fd in at_fork.by_name.items()}
        at_fork = SocketsAtFork(at_fork.end, by_name)
        self.worker = KeptSockets(self.loop, at_fork, lambda why, remedy: self.refused.append((why, remedy)))
        return self.worker

    def kill(self) -> KeptSockets:
        """The next life, after the last words of this one."""
        self.worker.close()
        self.keeper.detach()
        return self.fork()

    def close(self) -> None:
        self.worker.close()
        self.keeper.detach()
        self.keeper.clear()


@pytest.fixture(autouse=True)
def no_leak() -> Iterator[None]:
    gc.collect()  # what other tests have left open is none of these
    before = files_by_name()
    yield
    assert files_by_name() <= before


@pytest.fixture
def lives(no_leak: None, loop: Loop) -> Iterator[Lives]:
    made = Lives(loop)
    yield made
    made.close()


@pytest.fixture
def pair(no_leak: None) -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    yield one, other
    one.close()
    other.close()


@pytest.fixture
def loop(no_leak: None) -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


Pair = tuple[socket.socket, socket.socket]


def ends(sock: socket.socket) -> bool:
    """Whether the other side is open nowhere any more."""
    sock.setblocking(False)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False


def test_the_next_life_takes_what_was_kept_with_all_that_waits_in_it(lives: Lives, pair: Pair) -> None:
    mine, peer = pair
    lives.worker.keep(b"link", mine)
    peer.send(b"unread")
    mine.close()
    worker = lives.kill()
    assert worker.names() == [b"link"]
    assert worker.take(b"other") is None
    taken = worker.take(b"link")
    assert taken is not None
    with taken:
        assert (taken.getblocking(), taken.recv(10)) == (False, b"unread")
        assert (worker.take(b"link"), worker.names()) == (None, [])
        taken.send(b"answer")
    assert peer.recv(10) == b"answer"
    assert not ends(peer), "the parent holds it until it is dropped"
    assert lives.kill().names() == [b"link"], "it is there for every later life"


def test_a_connection_ends_with_its_drop(lives: Lives, until: Until, pair: Pair) -> None:
    mine, peer = pair
    lives.worker.keep(b"link", mine)
    until(lambda: len(lives.keeper) == 1)
    mine.close()
    assert not ends(peer)
    lives.worker.drop(b"link")
    until(lambda: ends(peer))
    lives.worker.drop(b"link")
    assert lives.kill().names() == []


def test_what_nobody_takes_is_dropped_at_once(lives: Lives, until: Until, pair: Pair) -> None:
    mine, peer = pair
    lives.worker.keep(b"a", mine)
    lives.worker.keep(b"b", mine)
    mine.close()
    worker = lives.kill()
    taken = worker.take(b"a")
    worker.drop_rest()
    until(lambda: len(lives.keeper) == 1)
    assert taken is not None
    taken.close()
    assert lives.kill().names() == [b"a"]
    assert not ends(peer)


def test_a_name_that_exists_is_replaced(lives: Lives, until: Until, pair: Pair) -> None:
    mine, peer = pair
    with socket.socket() as other:
        lives.worker.keep(b"link", other)
        lives.kill().keep(b"link", mine)  # without a look at what was there
        assert lives.worker.names() == []
        mine.close()
        taken = lives.kill().take(b"link")
    assert taken is not None
    with taken:
        taken.send(b"x")
    assert peer.recv(1) == b"x"


def test_the_last_of_keep_drop_keep_counts(lives: Lives, until: Until, pair: Pair) -> None:
    mine, peer = pair
    with socket.socket() as other:
        for before in (False, True):  # with all of it in the queue, behind others
            if before:
                fill(lives, other)
            lives.worker.keep(b"link", other)
            lives.worker.drop(b"link")
            lives.worker.keep(b"link", mine)
            lives.worker.drop(b"none")
            lives.worker.keep(b"none", other)
            lives.worker.drop(b"none")
            until(lambda: not lives.worker._waiting)
            worker = lives.kill()
            taken = worker.take(b"link")
            assert taken is not None
            with taken:
                taken.send(b"x")
            assert peer.recv(1) == b"x"
            assert b"none" not in worker.names()
            worker.drop(b"link")


def fill(lives: Lives, sock: socket.socket) -> None:
    for number in range(MANY):
        lives.worker.keep(b"%d" % number, sock)
    assert lives.worker._waiting, "the kernel takes all of it: more are needed"


def test_more_than_the_kernel_takes_waits(lives: Lives, until: Until, pair: Pair) -> None:
    mine, peer = pair
    before = open_files()
    fill(lives, mine)
    queued = list(lives.worker._waiting)
    assert open_files() == before, "what waits takes no descriptor"
    for name in queued[::2]:
        lives.worker.drop(name)
    lives.worker.drop(b"0")  # is on its way
    mine.close()
    until(lambda: not lives.worker._waiting)
    lives.keeper.detach()
    sent = [b"%d" % number for number in range(1, MANY) if b"%d" % number not in queued]
    assert set(lives.keeper._fds) == set(sent), "what is queued, dropped or closed, is not sent"
    assert not ends(peer)
    lives.keeper.clear()
    assert ends(peer)
    assert (lives.told, lives.refused) == ([], [])


def test_what_is_queued_arrives_in_order(lives: Lives, until: Until, pair: Pair) -> None:
    fill(lives, pair[0])
    until(lambda: len(lives.keeper) == MANY)
    assert list(lives.keeper._fds) == [b"%d" % number for number in range(MANY)]


def test_a_worker_that_is_killed_leaves_what_the_kernel_has(lives: Lives, pair: Pair) -> None:
    fill(lives, pair[0])
    queued = len(lives.worker._waiting)
    assert len(lives.kill().names()) == MANY - queued


def test_too_many_are_not_kept(lives: Lives, until: Until, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_sockets, "MAX_KEPT", 2)
    for name in (b"a", b"b", b"a", b"c"):
        lives.worker.keep(name, pair[0])
    until(lambda: bool(lives.told))
    assert lives.told == [("2 are kept already", "spread the topics over more portals")]
    assert sorted(lives.keeper._fds) == [b"a", b"b"]


@pytest.mark.parametrize("left", [0, 5])
def test_without_a_descriptor_left_a_socket_is_not_kept(lives: Lives, until: Until, pair: Pair, left: int) -> None:
    """Also when the last ones are needed for forks. What had the name before is not that socket, so it goes."""
    highest = max(int(fd) for fd in os.listdir("/proc/self/fd"))
    fillers = [os.dup(0)]
    while fillers[-1] < highest:  # a number that was free among those of other tests would be one that is left
        fillers.append(os.dup(0))
    lives.worker.keep(b"a", pair[0])
    until(lambda: len(lives.keeper) == 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + left, hard))
        lives.worker.keep(b"a", pair[1])
        lives.worker.keep(b"b", pair[1])
        until(lambda: len(lives.told) == 2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in fillers:
            os.close(fd)
    assert lives.told == [("the parent has no descriptor left for it", remedy_of(24))] * 2
    assert len(lives.keeper) == 0


def rights(*socks: socket.socket) -> list[tuple[int, int, array.array[int]]]:
    fds = array.array("i", [sock.fileno() for sock in socks])
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)] if socks else []


@pytest.mark.parametrize(
    ("packet", "count"),
    [
        (b"k" + bytes(MAX_KEPT_NAME + 1), 1),
        (b"d" + bytes(MAX_KEPT_NAME + 1), 0),
        (b"k" + bytes(100_000), 1),
        (b"x", 1),
        (b"klink", 0),
        (b"klink", 2),
        (b"klink", 9),
    ],
)
def test_a_broken_message_ends_nothing(lives: Lives, until: Until, pair: Pair, packet: bytes, count: int) -> None:
    before = open_files()
    lives.end.sendmsg([packet], rights(*[pair[0]] * count))
    lives.worker.keep(b"good", pair[0])
    until(lambda: len(lives.keeper) == 1)
    assert lives.told == [("its message is broken", "report it")]
    assert lives.keeper._fds.keys() == {b"good"}
    assert open_files() == before + 1


def test_an_empty_message_is_an_end(lives: Lives, until: Until, pair: Pair) -> None:
    lives.worker.keep(b"a", pair[0])
    lives.end.sendmsg([b""], rights(pair[0]))
    lives.worker.keep(b"b", pair[0])
    until(lambda: lives.keeper._end is None)
    lives.worker.keep(b"c", pair[0])  # to nobody
    assert lives.kill().names() == [b"a"]


def test_the_longest_name_is_kept(lives: Lives, pair: Pair) -> None:
    longest = bytes(MAX_KEPT_NAME)
    lives.worker.keep(longest, pair[0])
    with pytest.raises(LocalProtocolError, match="201 bytes"):
        lives.worker.keep(longest + b"x", pair[0])
    assert lives.kill().names() == [longest]


def test_what_the_kernel_refuses_is_told_and_nothing_else_waits_for_it(
    lives: Lives, until: Until, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives.worker.keep(b"a", pair[0])

    class Refusing:
        def __init__(self, end: socket.socket) -> None:
            self.end = end

        def __getattr__(self, name: str) -> Callable[..., object]:
            found: Callable[..., object] = getattr(self.end, name)
            return found

        def sendmsg(self, *_: object) -> None:
            raise OSError(109, "Too many references: cannot splice")

    end = lives.worker._end
    monkeypatch.setattr(lives.worker, "_end", Refusing(end))
    lives.worker.keep(b"a", pair[1])
    monkeypatch.setattr(lives.worker, "_end", end)
    lives.worker.keep(b"b", pair[1])
    assert lives.refused == [("Too many references: cannot splice", remedy_of(24))]
    assert lives.kill().names() == [b"b"]


def test_a_child_closes_what_is_of_the_parent_or_of_others(lives: Lives, pair: Pair) -> None:
    lives.worker.keep(b"a", pair[0])
    lives.kill()
    before = open_files()
    lives.keeper.close_inherited(keeps_sockets=True)
    assert (open_files(), lives.worker.names()) == (before - 1, [b"a"])
    lives.keeper._end = None
    lives.keeper.close_inherited(keeps_sockets=False)
    assert (open_files(), len(lives.keeper)) == (before - 2, 0)


def test_a_host_without_a_parent_keeps_nothing(pair: Pair) -> None:
    NO_SOCKETS.keep(b"a", pair[0])
    assert (NO_SOCKETS.names(), NO_SOCKETS.take(b"a")) == ([], None)
    NO_SOCKETS.drop(b"a")
    NO_SOCKETS.drop_rest()
    NO_SOCKETS.close()
    assert pair[0].fileno() >= 0
