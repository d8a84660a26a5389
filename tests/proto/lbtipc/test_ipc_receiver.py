"""LBT-IPC receiver: beginning, messages of life, the end after silence, connections that end or are not made."""

from __future__ import annotations

import pytest

from dro.clock import ms, s
from dro.proto.lbtipc.receiver import (
    ConnectMemory,
    IpcReceiverConfig,
    IpcReceiverCore,
    IpcReceiverStats,
    IpcState,
)
from dro.proto.session_events import Began, Ended


def joined(config: IpcReceiverConfig | None = None) -> IpcReceiverCore:
    core = IpcReceiverCore(config or IpcReceiverConfig(), 0)
    core.on_timer(0)
    assert core.take_events() == [ConnectMemory(0)]
    core.on_connected(0)
    return core


def run(core: IpcReceiverCore, until_ns: int) -> list[object]:
    """Let time pass; what the core asked for, without attempts to connect."""
    events: list[object] = []
    while (deadline := core.next_deadline()) is not None and deadline <= until_ns:
        core.on_timer(deadline)
        made = core.take_events()
        assert made, "a deadline leads to something"
        events += [event for event in made if not isinstance(event, ConnectMemory)]
    return events


def test_t31_the_end_comes_a_timeout_after_the_last_message_of_life() -> None:
    core = joined()
    for at in (10_000, 20_000):
        assert run(core, ms(at)) == []
        core.on_life(ms(at))
    assert core.take_events() == [Began(ms(10_000))]
    core.on_closed(ms(25_000))
    assert run(core, ms(79_999)) == []
    assert run(core, ms(80_000)) == [Ended(ms(80_000))]
    assert (core.state, core.was_connected, core.next_deadline()) == (IpcState.ENDED, True, None)


def test_data_begins_a_session_and_keeps_it() -> None:
    core = joined(IpcReceiverConfig(activity_timeout_ns=s(5)))
    core.on_records(2, 3, 1000, s(1))
    core.on_records(1, 0, 10, s(4))
    assert core.take_events() == [Began(s(1))]
    assert core.active_ns == s(4)
    assert core.stats == IpcReceiverStats(msgs_rcved=3, bytes_rcved=1010, lbm_msgs_rcved=3)
    assert run(core, s(9)) == [Ended(s(9))]


def test_a_session_that_cannot_be_joined_is_tried_each_second_until_the_timeout() -> None:
    core = IpcReceiverCore(IpcReceiverConfig(activity_timeout_ns=s(5)), s(100))
    tried = []
    while (deadline := core.next_deadline()) is not None:
        core.on_timer(deadline)
        for event in core.take_events():
            match event:
                case ConnectMemory(at_ns):
                    tried.append(at_ns)
                    core.on_closed(at_ns)
                case Ended(at_ns):
                    assert at_ns == s(105)
    assert tried == [s(100 + after) for after in range(5)]
    assert core.state is IpcState.ENDED
    assert not core.was_connected


def test_a_connection_that_ends_is_made_again_and_the_clock_of_silence_goes_on() -> None:
    core = joined(IpcReceiverConfig(activity_timeout_ns=s(5)))
    core.on_life(s(1))
    core.on_closed(s(2))
    core.take_events()
    assert core.next_deadline() == s(1), "the last attempt was at 0"
    core.on_timer(s(2))
    assert core.take_events() == [ConnectMemory(s(2))]
    core.on_connected(s(2))
    assert core.next_deadline() == s(6)
    assert run(core, s(6)) == [Ended(s(6))]


def test_without_a_timeout_the_session_ends_with_its_connection() -> None:
    core = joined(IpcReceiverConfig(activity_timeout_ns=0))
    assert core.next_deadline() is None
    core.on_closed(s(1000))
    core.on_timer(s(1000))
    assert core.take_events() == [Ended(s(1000))]


@pytest.mark.parametrize("is_joined", [False, True])
def test_memory_that_cannot_be_read_ends_it_once(*, is_joined: bool) -> None:
    core = joined() if is_joined else IpcReceiverCore(IpcReceiverConfig(), 0)
    core.on_broken(s(1))
    core.on_broken(s(2))
    core.on_life(s(3))
    core.on_connected(s(3))
    assert core.take_events() == [Ended(s(1))]
    assert core.next_deadline() is None
    core.on_timer(s(100))
    assert core.take_events() == []
