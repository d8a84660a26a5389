"""ZeroMQ channels on the loop: order, incarnations, full channels."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from dro.bus.channel import CTL_TURN_NS, Channels
from dro.clock import ms
from dro.errors import LocalProtocolError, ResourceError
from dro.loop import Loop
from dro.os_errors import remedy_of

Until = Callable[[Callable[[], bool]], None]


class Worker:
    """Channels that remember what they heard."""

    def __init__(self, loop: Loop, run_dir: Path, index: int, incarnation: int) -> None:
        self.index = index
        self.incarnation = incarnation
        self.channels = Channels(loop, run_dir, index, incarnation)
        self.ctl: list[tuple[int, bytes]] = []
        self.stuck: list[tuple[int, int]] = []
        self.channels.on_ctl = lambda worker, message: self.ctl.append((worker, message))
        self.channels.on_stuck = lambda worker, incarnation: self.stuck.append((worker, incarnation))

    def meets(self, other: Worker) -> None:
        self.channels.connect(other.index, other.incarnation, other.channels.ctl_address)


Make = Callable[..., Worker]


@pytest.fixture
def make(loop: Loop, run_dir: Path) -> Iterator[Make]:
    made: list[Worker] = []

    def worker(index: int, incarnation: int = 1) -> Worker:
        made.append(Worker(loop, run_dir, index, incarnation))
        return made[-1]

    yield worker
    for one in made:
        one.channels.close()
        one.channels.close()  # idempotent


def test_messages_arrive_in_order_with_their_sender(make: Make, until: Until) -> None:
    a, b = make(1), make(2)
    a.meets(b)
    b.meets(a)
    for n in range(1000):
        assert a.channels.send_ctl(2, b"%d" % n)
    assert b.channels.send_ctl(1, b"back")
    until(lambda: len(b.ctl) == 1000 and len(a.ctl) == 1)
    assert b.ctl == [(1, b"%d" % n) for n in range(1000)]
    assert a.ctl == [(2, b"back")]


def test_a_wake_up_makes_a_loop_turn_and_says_nothing(make: Make, loop: Loop, until: Until) -> None:
    a, b = make(1), make(2)
    a.channels.wake(2)  # nobody is there
    a.meets(b)
    b.meets(a)
    a.channels.wake(2)
    a.channels.send_ctl(2, b"behind it")
    until(lambda: bool(b.ctl))
    assert b.ctl == [(1, b"behind it")]
    assert (b.channels.malformed, b.channels.stale) == (0, 0)
    while loop.run_once(0):
        pass
    a.channels.wake(2)
    assert loop.run_once(10_000_000_000), "asleep until then"


def test_a_sibling_of_an_older_program_has_no_bell_and_is_woken_all_the_same(
    make: Make, loop: Loop, run_dir: Path, until: Until
) -> None:
    a, b = make(1), make(2)
    (run_dir / "w2.1.bell").unlink()
    a.meets(b)
    until(lambda: not loop.run_once(0))
    a.channels.wake(2)
    assert loop.run_once(10_000_000_000), "by a frame"
    assert (b.ctl, b.channels.malformed) == ([], 0)


def test_a_bell_that_nobody_takes_holds_nobody_up(make: Make, loop: Loop, until: Until) -> None:
    a, b = make(1), make(2)
    a.meets(b)
    for _ in range(70_000):  # more than a pipe holds
        a.channels.wake(2)
    b.meets(a)
    a.channels.send_ctl(2, b"behind")
    until(lambda: bool(b.ctl))
    until(lambda: not loop.run_once(0))
    b.channels.close()
    a.channels.wake(2)  # a pipe without a reader


def test_messages_that_take_long_share_their_turns_with_others(make: Make, loop: Loop, until: Until) -> None:
    a, b = make(1), make(2)
    a.meets(b)
    b.meets(a)
    heard_in_turn: list[int] = []

    def work(worker: int, message: bytes) -> None:
        began_ns = time.thread_time_ns()
        while time.thread_time_ns() - began_ns < ms(2):
            pass
        b.ctl.append((worker, message))

    b.channels.on_ctl = work
    for n in range(40):
        a.channels.send_ctl(2, b"%d" % n)

    def is_done() -> bool:
        heard_in_turn.append(len(b.ctl))
        return len(b.ctl) == 40

    until(is_done)
    assert b.ctl == [(1, b"%d" % n) for n in range(40)]
    assert max(after - before for before, after in pairwise(heard_in_turn)) <= 1 + CTL_TURN_NS // ms(2)


def test_both_ways_under_load_nothing_hangs(make: Make, until: Until) -> None:
    a, b = make(1), make(2)
    a.meets(b)
    b.meets(a)
    echoed: list[bytes] = []
    b.channels.on_ctl = lambda worker, message: b.channels.send_ctl(worker, message)
    a.channels.on_ctl = lambda worker, message: echoed.append(message)
    for n in range(3000):
        a.channels.send_ctl(2, b"%d" % n)
    until(lambda: len(echoed) == 3000)
    assert echoed == [b"%d" % n for n in range(3000)]


def test_what_a_stranger_says_waits_until_it_is_announced(make: Make, until: Until) -> None:
    a, b, c = make(1, 5), make(2), make(3)
    a.meets(b)
    a.channels.send_ctl(2, b"one")
    a.channels.send_ctl(2, b"two")
    c.meets(b)
    b.meets(c)
    c.channels.send_ctl(2, b"mark")
    until(lambda: b.ctl == [(3, b"mark")] and len(b.channels._held_ctl) == 2)
    b.meets(a)
    a.channels.send_ctl(2, b"three")
    until(lambda: len(b.ctl) == 4)
    assert b.ctl[1:] == [(1, b"one"), (1, b"two"), (1, b"three")]


def test_what_a_stranger_said_is_heard_although_nobody_says_more(make: Make, until: Until) -> None:
    a, b = make(1, 5), make(2)
    a.meets(b)
    a.channels.send_ctl(2, b"one")
    until(lambda: len(b.channels._held_ctl) == 1)
    b.meets(a)
    until(lambda: b.ctl == [(1, b"one")])


def test_an_old_life_is_not_heard_after_the_new_one_is_announced(make: Make, until: Until) -> None:
    old, b = make(1, 5), make(2)
    b.meets(old)
    old.meets(b)
    old.channels.send_ctl(2, b"before")
    until(lambda: b.ctl == [(1, b"before")])
    new = make(1, 6)
    b.meets(new)
    new.meets(b)
    old.channels.send_ctl(2, b"ghost")
    until(lambda: b.channels.stale == 1)
    new.channels.send_ctl(2, b"after")
    until(lambda: len(b.ctl) == 2)
    assert b.ctl == [(1, b"before"), (1, b"after")]


def test_after_a_disconnect_nothing_is_sent_or_heard(make: Make, until: Until) -> None:
    a, b = make(1), make(2)
    a.meets(b)
    b.meets(a)
    b.channels.disconnect(1)
    b.channels.disconnect(1)
    assert not b.channels.send_ctl(1, b"")
    assert not b.channels.send_ctl(1, b"x")
    a.channels.send_ctl(2, b"x")
    until(lambda: b.channels.stale == 1)
    assert b.ctl == []


def test_a_sibling_that_takes_no_control_messages_is_reported(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dro.bus.channel.CTL_HWM", 10)
    a = make(1)
    a.channels.connect(2, 8, a.channels.ctl_address + "x")  # nobody there
    sent = 0
    while a.channels.send_ctl(2, b"x"):
        sent += 1
        assert sent < 1000
    assert sent == 10
    assert a.stuck == [(2, 8)]
    assert not a.channels.send_ctl(2, b"")


def test_a_frame_without_its_envelope_is_counted(make: Make, until: Until, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = make(1), make(2)
    a.meets(b)
    b.meets(a)
    monkeypatch.setattr(a.channels, "_envelope", b"")
    a.channels.send_ctl(2, b"short")
    until(lambda: b.channels.malformed == 1)
    assert b.ctl == []


def test_a_message_larger_than_the_channel_takes_is_a_bug(make: Make) -> None:
    a, b = make(1), make(2)
    a.meets(b)
    with pytest.raises(LocalProtocolError, match="a control message of 16777205 bytes"):
        a.channels.send_ctl(2, bytes((16 << 20) - 11))
    assert a.channels.send_ctl(2, bytes((16 << 20) - 12))


@pytest.mark.parametrize("size", [107, 108])
def test_a_path_too_long_for_a_socket_is_told(loop: Loop, run_dir: Path, size: int) -> None:
    deep = run_dir / ("\N{GREEK SMALL LETTER PI}" + "x" * (size - len(f"{run_dir}/22/w1.1.ctl")))
    deep.mkdir()
    if size == 107:
        Channels(loop, deep, 1, 1).close()
        return
    with pytest.raises(ResourceError) as e:
        Channels(loop, deep, 1, 1)
    assert e.value.what == f"ipc://{deep}/w1.1.ctl is too long for a socket"
    assert e.value.remedy == "use a shorter XDG_RUNTIME_DIR"


def test_a_socket_that_cannot_be_bound_is_told(loop: Loop, run_dir: Path) -> None:
    with pytest.raises(ResourceError) as e:
        Channels(loop, run_dir / "missing", 1, 1)
    why = f"cannot bind ipc://{run_dir}/missing/w1.1.ctl: No such file or directory"
    assert e.value.what.startswith(why)
    assert e.value.remedy == remedy_of(errno.ENOENT)


def test_of_strangers_only_so_many_messages_wait(make: Make, until: Until, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dro.bus.channel.MAX_HELD", 2)
    a, b = make(1), make(2)
    a.meets(b)
    for n in range(2):
        a.channels.send_ctl(2, b"%d" % n)
    b.meets(a)
    until(lambda: len(b.ctl) == 2)
    assert b.ctl == [(1, b"0"), (1, b"1")]
    c = make(3)
    c.meets(b)
    for n in range(3):
        c.channels.send_ctl(2, b"%d" % n)
    with pytest.raises(LocalProtocolError, match="2 control messages of workers never announced"):
        until(lambda: False)


def test_closed_channels_neither_say_nor_hear(make: Make, loop: Loop, until: Until) -> None:
    a, b = make(1), make(2)
    a.meets(b)
    b.meets(a)
    a.channels.send_ctl(2, b"x")
    until(lambda: bool(b.ctl))
    for n in range(5):
        a.channels.send_ctl(2, b"%d" % n)
    b.channels.close()
    assert not b.channels.send_ctl(1, b"x")
    b.channels.wake(1)
    loop.run_once(0)
    assert b.ctl == [(1, b"x")]


def test_a_worker_may_close_its_channels_from_a_callback(make: Make, until: Until) -> None:
    a, b = make(1), make(2)
    a.meets(b)
    b.meets(a)

    def hear_and_leave(worker: int, message: bytes) -> None:
        b.ctl.append((worker, message))
        b.channels.close()

    b.channels.on_ctl = hear_and_leave
    for _ in range(10):
        a.channels.send_ctl(2, b"x")
    until(lambda: bool(b.ctl))
    assert len(b.ctl) == 1


def test_only_the_user_of_the_dro_can_send_to_a_worker(make: Make) -> None:
    """Whatever the mask of the process and the mode of the run directory are."""
    before = os.umask(0)
    try:
        address = make(1).channels.ctl_address
        assert os.umask(0) == 0, "the mask is what it was"
    finally:
        os.umask(before)
    assert stat.S_IMODE(Path(address.removeprefix("ipc://")).stat().st_mode) == 0o600
