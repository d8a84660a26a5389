"""Batching and blocking of one session's messages, with a session that refuses on command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import pytest

from dro.clock import ms
from dro.config.um.sets import BatchingOptions
from dro.transport.session import SenderTransport
from dro.um.message.writer import Piece, SessionWriter
from tests.fakes.um_contexts import Stepper


class Session:
    """As far as a writer sees it, a TCP session that takes `room` more messages."""

    def __init__(self) -> None:
        self.room = 1000
        self.sent: list[list[bytes]] = []
        self.payloads: list[int] = []  # user data of each
        self.times: list[int] = []
        self.is_blocked = False
        self.fragment_max_bytes = 1000
        self.datagram_max_bytes = 8192
        self.on_unblocked: Callable[[], object] | None = None

    def send_message(self, message: bytes, now_ns: int, payload_bytes: int = 0) -> bool:
        if not self.room:
            self.is_blocked = True
            return False
        self.room -= 1
        self.sent.append([message])
        self.payloads.append(payload_bytes)
        self.times.append(now_ns)
        return True

    def send_packed(self, messages: Sequence[bytes], payload_bytes: int, now_ns: int) -> int:
        taken = min(self.room, len(messages))
        self.room -= taken
        self.is_blocked = taken < len(messages)
        self.sent.append(list(messages[:taken]))
        self.payloads.append(payload_bytes)
        self.times.append(now_ns)
        return taken

    def unblock(self, room: int) -> None:
        self.room = room
        self.is_blocked = False
        assert self.on_unblocked is not None
        self.on_unblocked()


def writer_on(session: Session, stepper: Stepper) -> SessionWriter:
    return SessionWriter(stepper.loop, cast(SenderTransport, session), BatchingOptions(ms(50), 300))


def pieces(*messages: bytes) -> list[Piece]:
    return [Piece(message, len(message)) for message in messages]


def test_messages_with_flush_leave_at_once(stepper: Stepper) -> None:
    session = Session()
    writer = writer_on(session, stepper)
    writer.send(pieces(b"a"), 0, flush=True)
    writer.send(pieces(b"b", b"c"), 0, flush=True)
    assert session.sent == [[b"a"], [b"b"], [b"c"]]
    assert writer.is_idle


def test_messages_without_flush_wait_for_the_interval_the_minimum_or_a_flush(stepper: Stepper) -> None:
    session = Session()
    writer = writer_on(session, stepper)
    now_ns = stepper.loop.now_ns()
    writer.send(pieces(b"a"), now_ns, flush=False)
    writer.send(pieces(b"b"), now_ns, flush=False)
    assert session.sent == []
    assert not writer.is_idle
    stepper.run(40)
    assert session.sent == []
    stepper.run(20)
    assert session.sent == [[b"a", b"b"]]
    now_ns = stepper.loop.now_ns()
    writer.send(pieces(bytes(200)), now_ns, flush=False)
    writer.send(pieces(bytes(100)), now_ns, flush=False)
    assert session.sent[1:] == [[bytes(200), bytes(100)]]
    writer.send(pieces(b"c"), now_ns, flush=False)
    writer.send(pieces(b"d"), now_ns, flush=True)
    assert session.sent[2:] == [[b"c", b"d"]]
    writer.send(pieces(b"e"), now_ns, flush=False)
    writer.flush(now_ns)
    assert session.sent[3:] == [[b"e"]]
    stepper.run(200)
    assert len(session.sent) == 4


def test_a_message_cut_short_by_blocking_is_completed_in_order(stepper: Stepper) -> None:
    session = Session()
    session.room = 1
    writer = writer_on(session, stepper)
    calls: list[str] = []
    writer.send(pieces(b"a", b"b", b"c"), 0, flush=True)
    assert session.sent == [[b"a"]]
    assert writer.is_blocked
    writer.call_when_ready(lambda: calls.append("ready"))
    session.unblock(1)
    assert session.sent == [[b"a"], [b"b"]]
    assert writer.is_blocked
    assert calls == []
    session.unblock(10)
    assert session.sent == [[b"a"], [b"b"], [b"c"]]
    assert not writer.is_blocked
    assert calls == ["ready"]
    session.unblock(10)
    assert calls == ["ready"]


def test_a_batch_taken_in_part_goes_on_where_it_stopped(stepper: Stepper) -> None:
    session = Session()
    session.room = 1
    writer = writer_on(session, stepper)
    writer.send(pieces(b"a"), 0, flush=False)
    writer.send(pieces(b"b"), 0, flush=False)
    writer.send(pieces(b"c"), 0, flush=True)
    assert session.sent == [[b"a"]]
    session.unblock(1)
    session.unblock(5)
    assert [message for batch in session.sent for message in batch] == [b"a", b"b", b"c"]


def test_what_waits_is_dropped_with_the_writer(stepper: Stepper) -> None:
    session = Session()
    writer = writer_on(session, stepper)
    writer.send(pieces(b"a"), stepper.loop.now_ns(), flush=False)
    writer.close()
    stepper.run(200)
    assert session.sent == []


def test_a_batch_leaves_at_its_time_with_the_user_data_of_all(stepper: Stepper) -> None:
    session = Session()
    writer = writer_on(session, stepper)
    began = stepper.loop.now_ns()
    assert stepper.loop.next_deadline() is None
    writer.send([Piece(b"head+a", 1)], began, flush=False)
    assert stepper.loop.next_deadline() == began + ms(50)
    stepper.run(20)
    writer.send([Piece(b"head+bc", 2)], stepper.loop.now_ns(), flush=False)
    assert stepper.loop.next_deadline() == began + ms(50), "that of the first"
    stepper.run(30)
    assert (session.sent, session.payloads, session.times) == ([[b"head+a", b"head+bc"]], [3], [began + ms(50)])
    assert writer.is_idle
    assert stepper.loop.next_deadline() is None
    writer.send([Piece(b"head+d", 1)], stepper.loop.now_ns(), flush=False)
    writer.flush(began + ms(51))
    assert (session.payloads[1:], session.times[1:]) == ([1], [began + ms(51)])
    writer.send([Piece(b"head+ef", 2)], began + ms(52), flush=True)
    assert (session.payloads[2:], session.times[2:]) == ([2], [began + ms(52)])


def test_a_later_batch_has_a_time_of_its_own(stepper: Stepper) -> None:
    session = Session()
    writer = writer_on(session, stepper)
    writer.send(pieces(b"a"), stepper.loop.now_ns(), flush=False)
    stepper.run(30)
    writer.flush(stepper.loop.now_ns())
    second = stepper.loop.now_ns()
    writer.send(pieces(b"b"), second, flush=False)
    stepper.run(40)
    assert session.sent == [[b"a"]]
    stepper.run(10)
    assert session.times[1:] == [second + ms(50)]


def test_what_waits_behind_a_blocked_message_keeps_its_order_and_its_batches(stepper: Stepper) -> None:
    session = Session()
    session.room = 0
    writer = writer_on(session, stepper)
    ready: list[str] = []
    writer.send([Piece(b"h+a", 1), Piece(b"h+b", 2)], 0, flush=True)
    assert (writer.is_blocked, writer.is_idle, session.sent) == (True, False, [])
    session.is_blocked = False  # another source of the session would be let through: what waits comes first
    assert writer.is_blocked
    writer.send([Piece(b"h+c", 3)], 0, flush=False)
    writer.send([Piece(b"h+d", 4)], 0, flush=False)
    writer.flush(0)
    for name in ("one", "two"):
        writer.call_when_ready(lambda name=name: ready.append(name))  # type: ignore[misc]  # bound now
    stepper.clock.time_ns += 5
    session.unblock(3)
    assert session.sent == [[b"h+a"], [b"h+b"], [b"h+c"]]
    assert (session.payloads[:2], set(session.times)) == ([1, 2], {stepper.clock.time_ns})
    assert (ready, writer.is_blocked) == ([], True)
    session.unblock(3)
    assert session.sent[3:] == [[b"h+d"]]
    assert (ready, writer.is_blocked, writer.is_idle) == (["one", "two"], False, True)


def test_a_writer_that_is_closed_forgets_what_waits_and_who(stepper: Stepper) -> None:
    session = Session()
    session.room = 0
    writer = writer_on(session, stepper)
    writer.send(pieces(b"a"), 0, flush=True)
    writer.call_when_ready(lambda: pytest.fail("closed"))
    writer.send(pieces(b"b"), stepper.loop.now_ns(), flush=False)
    writer.close()
    assert stepper.loop.next_deadline() is None
    session.unblock(10)
    assert session.sent == []
