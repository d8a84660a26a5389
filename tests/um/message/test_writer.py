"""Batching and blocking of one session's messages, with a session that refuses on command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from dro.clock import ms
from dro.config.um.sets import BatchingOptions
from dro.um.message.writer import Piece, SessionWriter
from dro.um.transport.session import SenderTransport
from tests.fakes.um_contexts import Stepper


class Session:
    """As far as a writer sees it, a TCP session that takes `room` more messages."""

    def __init__(self) -> None:
        self.room = 1000
        self.sent: list[list[bytes]] = []
        self.is_blocked = False
        self.fragment_max_bytes = 1000
        self.on_unblocked: Callable[[], object] | None = None

    def send_message(self, message: bytes, now_ns: int, payload_bytes: int = 0) -> bool:
        if not self.room:
            self.is_blocked = True
            return False
        self.room -= 1
        self.sent.append([message])
        return True

    def send_batch(self, messages: Sequence[bytes], payload_bytes: int, now_ns: int) -> int:
        taken = min(self.room, len(messages))
        self.room -= taken
        self.is_blocked = taken < len(messages)
        self.sent.append(list(messages[:taken]))
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
