"""The event loop when callbacks of one turn close and reopen what later events of that turn are about."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from dro.loop import Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def connected() -> tuple[socket.socket, socket.socket]:
    a, b = socket.socketpair()
    a.setblocking(False)
    b.setblocking(False)
    return a, b


def reuse(fd: int) -> socket.socket:
    """A new, silent socket whose descriptor is `fd`, which has just been closed."""
    made: list[socket.socket] = []
    while not made or made[-1].fileno() != fd:
        assert len(made) < 50, "the descriptor did not come back"
        made.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    for other in made[:-1]:
        other.close()
    return made[-1]


def test_an_event_of_a_closed_descriptor_does_not_reach_its_successor(loop: Loop) -> None:
    pairs = [connected(), connected()]
    successors = []
    calls: list[str] = []

    def replace(mine: socket.socket, other: socket.socket) -> None:
        """Whichever is called first closes the other one, whose event is still to come."""
        mine.recv(10)
        loop.remove_reader(mine)
        fd = other.fileno()
        loop.remove_reader(other)
        other.close()
        successors.append(reuse(fd))
        loop.add_reader(fd, lambda: calls.append("reader"))
        loop.add_writer(fd, lambda: calls.append("writer"))

    (a, a_far), (b, b_far) = pairs
    loop.add_reader(a, lambda: replace(a, b))
    loop.add_reader(b, lambda: replace(b, a))
    a_far.send(b"x")
    b_far.send(b"x")
    loop.run_once(0)
    assert len(successors) == 1
    assert calls == []
    loop.run_once(0)
    assert calls == ["writer"]  # its own event: a new datagram socket can be written to
    loop.remove_reader(successors[0])
    loop.remove_writer(successors[0])
    for sock in (a, a_far, b, b_far, *successors):
        sock.close()


def test_a_hang_up_that_the_reader_handles_does_not_reach_the_writer_of_its_successor(loop: Loop) -> None:
    mine, far = connected()
    calls: list[str] = []
    successors = []

    def on_readable() -> None:
        fd = mine.fileno()
        loop.remove_reader(mine)
        loop.remove_writer(mine)
        mine.close()
        successors.append(reuse(fd))
        loop.add_writer(fd, lambda: calls.append("connected"))

    loop.add_reader(mine, on_readable)
    loop.add_writer(mine, lambda: calls.append("old writer"))
    far.close()
    loop.run_once(0)
    assert calls == []
    loop.remove_writer(successors[0])
    successors[0].close()


def test_a_timer_that_replaces_a_descriptor_keeps_the_old_event_from_the_new_callback(loop: Loop) -> None:
    mine, far = connected()
    calls: list[str] = []
    successors = []

    def on_timer() -> None:
        fd = mine.fileno()
        loop.remove_reader(mine)
        mine.close()
        successors.append(reuse(fd))
        loop.add_reader(fd, lambda: calls.append("reader"))

    loop.add_reader(mine, lambda: calls.append("old reader"))
    far.send(b"x")
    loop.call_at(loop.now_ns(), on_timer)
    loop.run_once(0)
    assert calls == []
    loop.remove_reader(successors[0])
    for sock in (far, *successors):
        sock.close()


def test_a_reader_with_more_to_do_comes_again_until_it_is_done_and_not_after_its_removal(loop: Loop) -> None:
    mine, far = connected()
    left = [3]
    calls: list[int] = []

    def on_readable() -> bool:
        if not calls:
            mine.recv(10)
        calls.append(left[0])
        left[0] -= 1
        if left[0] == 1:
            loop.remove_reader(mine)
        return True

    loop.add_reader(mine, on_readable)
    far.send(b"x")
    for _ in range(5):
        loop.run_once(0)
    assert calls == [3, 2]
    assert not loop.run_once(0)
    mine.close()
    far.close()
