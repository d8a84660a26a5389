"""LBT-TCP receiver: joining, session id, beginning and end, joining again."""

from __future__ import annotations

import pytest

from dro.clock import ms, s
from dro.proto.session_events import Began, Ended
from dro.proto.tcp.receiver import (
    CloseSession,
    ConnectSession,
    SendSessionId,
    TcpReceiverConfig,
    TcpReceiverCore,
    TcpReceiverStats,
    TcpState,
)


def connected(cfg: TcpReceiverConfig | None = None) -> TcpReceiverCore:
    core = TcpReceiverCore(cfg or TcpReceiverConfig())
    core.on_advertised(0)
    core.on_connected(ms(1))
    core.take_events()
    return core


def test_a_join_connects_names_the_session_and_begins_with_the_first_message() -> None:
    core = TcpReceiverCore(TcpReceiverConfig(session_id=0xABC))
    assert (core.state, core.has_events, core.was_connected, core.active_ns) == (TcpState.CLOSED, False, False, 0)
    core.on_advertised(ms(5))
    assert (core.state, core.has_events, core.active_ns) == (TcpState.CONNECTING, True, ms(5))
    assert core.take_events() == [ConnectSession(ms(5))]
    assert not core.has_events
    core.on_advertised(ms(6))
    assert not core.was_connected
    core.on_connected(ms(7))
    assert (core.state, core.was_connected, core.active_ns) == (TcpState.CONNECTED, True, ms(7))
    assert core.take_events() == [SendSessionId(0xABC, ms(7))]
    core.on_messages(0, 3, ms(8))
    assert not core.has_events
    core.on_messages(4, 400, ms(9))
    core.on_messages(4, 400, ms(10))
    assert core.take_events() == [Began(ms(9))]
    core.on_closed(ms(11))
    assert core.take_events() == [CloseSession(ms(11)), Ended(ms(11))]
    assert core.stats == TcpReceiverStats(803, 8, 0, 0)
    assert (core.state, core.was_connected, core.active_ns) == (TcpState.CLOSED, True, ms(10))


def test_no_session_id_no_message() -> None:
    core = TcpReceiverCore(TcpReceiverConfig())
    core.on_advertised(0)
    core.on_connected(1)
    assert core.take_events() == [ConnectSession(0)]


def test_a_failed_attempt_ends_without_having_begun() -> None:
    core = TcpReceiverCore(TcpReceiverConfig())
    core.on_advertised(0)
    core.on_closed(ms(3))
    assert core.take_events() == [ConnectSession(0), CloseSession(ms(3)), Ended(ms(3))]
    core.on_closed(ms(4))
    assert core.take_events() == []


def test_an_address_that_does_not_answer_is_given_up() -> None:
    core = TcpReceiverCore(TcpReceiverConfig())
    core.on_advertised(0)
    assert core.next_deadline() == s(10)
    core.on_timer(s(10) - 1)
    assert core.take_events() == [ConnectSession(0)]
    core.on_timer(s(10))
    assert core.take_events() == [CloseSession(s(10)), Ended(s(10))]
    core.on_connected(s(11))
    assert core.state is TcpState.CLOSED


def test_a_later_advertisement_joins_again_but_not_at_once() -> None:
    core = connected()
    core.on_messages(1, 10, ms(2))
    core.on_closed(ms(500))
    core.take_events()
    core.on_advertised(ms(999))
    assert core.take_events() == []
    for at in (1000, 2000):
        core.on_advertised(ms(at))
        core.on_connected(ms(at + 1))
        core.on_messages(1, 10, ms(at + 2))
        assert core.take_events() == [ConnectSession(ms(at)), Began(ms(at + 2))]
        core.on_closed(ms(at + 3))
        core.on_advertised(ms(at + 999))
        assert core.take_events() == [CloseSession(ms(at + 3)), Ended(ms(at + 3))]


def test_without_activity_timeout_a_silent_connection_lives_for_ever() -> None:
    core = connected()
    assert core.next_deadline() is None
    core.on_timer(s(10**9))
    assert core.state is TcpState.CONNECTED


@pytest.mark.parametrize("quiet", [True, False])
def test_activity_timeout(quiet: bool) -> None:
    core = connected(TcpReceiverConfig(activity_timeout_ns=ms(100)))
    assert core.next_deadline() == ms(101)
    if not quiet:
        core.on_messages(1, 10, ms(90))
        assert core.next_deadline() == ms(190)
    core.on_timer(ms(101))
    assert (core.state is TcpState.CLOSED) == quiet
    core.on_timer(ms(190))
    assert core.take_events()[-1] == Ended(ms(101) if quiet else ms(190))
    core.on_messages(1, 10, ms(200))
    assert core.take_events() == []
    assert core.next_deadline() is None


def test_a_connection_that_was_taken_over_says_nothing_and_goes_on() -> None:
    core = TcpReceiverCore(TcpReceiverConfig(session_id=0xABC, activity_timeout_ns=s(1)))
    core.on_taken_over(ms(1))
    assert core.state is TcpState.CLOSED, "it was not asked for"
    core.on_advertised(ms(1))
    core.take_events()
    core.on_taken_over(ms(2))
    core.on_taken_over(ms(3))
    assert (core.state, core.was_connected, core.active_ns) == (TcpState.CONNECTED, True, ms(2))
    assert core.next_deadline() == ms(2) + s(1)
    assert core.take_events() == []
    core.on_messages(1, 40, ms(4))
    core.on_closed(ms(5))
    assert core.take_events() == [Began(ms(4)), CloseSession(ms(5)), Ended(ms(5))]
