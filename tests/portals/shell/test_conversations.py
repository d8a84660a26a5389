"""Batches between a portal and its siblings: slices, confirmations, siblings that take nothing or are not usable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dro.errors import DecodeError
from portals.decisions.engine import STEP
from portals.decisions.messages import (
    PORTAL_MESSAGES,
    ForwardStart,
    FramesAcked,
    InterestAdded,
    PortalHello,
    PortalMessage,
    SourceSeen,
)
from portals.decisions.outbox import BATCH_RECORDS, BATCHES_ON_THE_WAY, SILENT_TICKS, TICK_NS
from portals.shell.conversations import AT_ONCE_BYTES, Conversations
from tests.fakes.um_contexts import Stepper
from tests.fakes.worker import FakeWorker

SIBLING, OTHER = 2, 3
MANY = 4 * STEP


class Talk:
    """What one portal says and hears; `acts` has the number of messages that had been heard before each act."""

    def __init__(self, stepper: Stepper, folder: Path) -> None:
        self.stepper = stepper
        self.worker = FakeWorker(stepper.loop, folder, 1, "P1")
        self.heard: list[tuple[int, PortalMessage]] = []
        self.acts: list[int] = []
        self.on_message: Callable[[int, PortalMessage], object] = lambda *_: None
        self.left = 0
        """Calls of `act` that it takes until all is carried out."""
        self.asks = 0
        """What `left` is after each message."""
        self.talk = Conversations(self.worker.ctx, self._on_message, self._act, lambda: self.left > 0)

    def _act(self) -> None:
        self.acts.append(len(self.heard))
        self.left = max(0, self.left - 1)

    def _on_message(self, worker: int, message: PortalMessage) -> None:
        self.heard.append((worker, message))
        self.left = max(self.left, self.asks)
        self.on_message(worker, message)

    def hear(self, worker: int, *messages: PortalMessage) -> None:
        self.talk.on_frame(worker, b"".join(map(PORTAL_MESSAGES.encode, messages)))

    def sent(self, worker: int = SIBLING) -> list[list[PortalMessage]]:
        """Frame by frame."""
        frames, self.worker.channels.sent = self.worker.channels.sent, []
        return [list(PORTAL_MESSAGES.decode_all(frame)) for to, frame in frames if to == worker]


@pytest.fixture
def talk(stepper: Stepper, tmp_path: Path) -> Talk:
    return Talk(stepper, tmp_path)


def many(count: int = MANY, first: int = 0) -> list[PortalMessage]:
    return [SourceSeen(n, bytes(32), b"T", 2, 0, 0, b"") for n in range(first, first + count)]


def test_a_long_frame_is_worked_off_in_slices_and_confirmed_then(talk: Talk) -> None:
    talk.talk.begin(SIBLING)
    talk.hear(SIBLING, *many())
    assert (talk.heard, talk.sent()) == ([], [])
    talk.stepper.settle()
    assert [message for _, message in talk.heard] == many()
    assert talk.acts == [STEP, 2 * STEP, 3 * STEP, MANY, MANY, MANY]
    assert talk.sent() == [[FramesAcked(1)]]


def test_a_frame_is_confirmed_when_what_it_led_to_is_carried_out(talk: Talk) -> None:
    talk.talk.begin(SIBLING)
    talk.left = 1
    talk.hear(SIBLING, ForwardStart(1))
    assert (talk.heard, talk.talk.is_behind) == ([], True), "what came before it waits"
    talk.stepper.settle()
    assert (talk.heard, talk.sent()) == ([(SIBLING, ForwardStart(1))], [[FramesAcked(1)]])
    talk.asks = 5
    talk.hear(SIBLING, *many(STEP - 1))
    while talk.talk.is_behind:
        assert talk.sent() == []
        talk.stepper.loop.run_once(0)
    assert (talk.left, talk.sent()) == (0, [[FramesAcked(1)]])


def test_a_sender_that_is_back_has_not_said_what_it_said_before(talk: Talk) -> None:
    """Its frame of before is confirmed to nobody."""
    talk.talk.begin(SIBLING)

    talk.asks = 1 << 60
    talk.hear(SIBLING, *many(STEP - 1))
    while not talk.heard:
        talk.stepper.loop.run_once(0)
    talk.asks = talk.left = 0
    talk.talk.end(SIBLING)
    talk.talk.begin(SIBLING)
    talk.hear(SIBLING, ForwardStart(1))
    talk.stepper.settle()
    assert talk.heard[-1] == (SIBLING, ForwardStart(1))
    assert talk.sent() == [[FramesAcked(1)]]


def test_a_short_frame_is_worked_off_at_once_unless_others_wait(talk: Talk) -> None:
    talk.talk.begin(SIBLING)
    talk.talk.begin(OTHER)
    talk.hear(SIBLING, ForwardStart(1))
    assert (len(talk.heard), talk.sent()) == (1, [[FramesAcked(1)]])
    talk.hear(SIBLING, *many())
    talk.hear(SIBLING, ForwardStart(2))
    assert len(talk.heard) == 1, "order is kept"
    talk.hear(OTHER, ForwardStart(3))
    assert talk.heard[-1] == (OTHER, ForwardStart(3))
    talk.stepper.settle()
    assert talk.heard[-1] == (SIBLING, ForwardStart(2))
    assert talk.sent() == [[FramesAcked(1)], [FramesAcked(1)]]


def test_only_so_much_of_short_frames_is_worked_off_at_once_in_a_turn(talk: Talk) -> None:
    """What followed from hundreds of them made a turn of 80 ms."""
    talk.talk.begin(SIBLING)
    frame = [ForwardStart(n) for n in range(5)]
    at_once = AT_ONCE_BYTES // len(b"".join(map(PORTAL_MESSAGES.encode, frame))) * len(frame)
    for _ in range(2):
        talk.heard.clear()
        for _ in range(AT_ONCE_BYTES):
            talk.hear(SIBLING, *frame)
        assert len(talk.heard) == at_once
        talk.stepper.settle()
        assert len(talk.heard) == AT_ONCE_BYTES * len(frame)


def test_an_exchange_goes_on_after_much_that_need_not_be_told(talk: Talk) -> None:
    talk.talk.begin(SIBLING)
    looked = 0

    def messages() -> Iterator[PortalMessage | None]:
        nonlocal looked
        while looked < 10 * BATCH_RECORDS:
            looked += 1
            yield None
        yield ForwardStart(1)

    talk.talk.enqueue_all(SIBLING, messages())
    talk.talk.send()
    assert (looked, talk.sent()) == (BATCH_RECORDS, []), "a bounded number at once"
    talk.stepper.settle()
    assert talk.sent() == [[ForwardStart(1)]]


def test_siblings_take_turns(talk: Talk) -> None:
    for worker in (SIBLING, OTHER):
        talk.talk.begin(worker)
        talk.hear(worker, *many())
    talk.stepper.settle()
    turns = [talk.heard[at][0] for at in range(0, 2 * MANY, STEP)]
    assert turns == [SIBLING, OTHER] * (MANY // STEP)


def test_a_confirmation_does_not_wait_for_the_frames_before_it(talk: Talk) -> None:
    talk.talk.begin(SIBLING)
    talk.talk.enqueue_all(SIBLING, iter(many(BATCH_RECORDS * (BATCHES_ON_THE_WAY + 2))))
    talk.talk.send()
    talk.stepper.settle()
    assert [len(frame) for frame in talk.sent()] == [BATCH_RECORDS] * BATCHES_ON_THE_WAY
    talk.hear(SIBLING, *many())
    talk.hear(SIBLING, FramesAcked(1))
    talk.stepper.loop.run_once(0)
    assert len(talk.heard) <= MANY
    talk.stepper.settle()
    frames = talk.sent()
    assert sorted(map(len, frames)) == [1, BATCH_RECORDS]


def test_an_exchange_leaves_batch_by_batch_as_it_is_confirmed(talk: Talk) -> None:
    talk.talk.begin(SIBLING)
    talk.talk.enqueue(SIBLING, PortalHello(1, 1, 0, 0))
    talk.talk.enqueue_all(SIBLING, iter(many(1000)))
    talk.talk.send()
    assert len(talk.worker.channels.sent) == 1, "the first batch at once, others in later turns"
    told: list[PortalMessage] = []
    while True:
        talk.stepper.settle()
        frames = talk.sent()
        if not frames:
            break
        assert len(frames) <= BATCHES_ON_THE_WAY
        told += [message for frame in frames for message in frame]
        for _ in frames:
            talk.hear(SIBLING, FramesAcked(1))
    assert told == [PortalHello(1, 1, 0, 0), *many(1000)]


def test_a_message_to_all_is_encoded_once(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[PortalMessage] = []
    encode = PORTAL_MESSAGES.encode

    def counted(message: PortalMessage) -> bytes:
        encoded.append(message)
        return encode(message)

    monkeypatch.setattr(PORTAL_MESSAGES, "encode", counted)
    for message in many(3):
        for worker in range(2, 12):
            if message == many(1)[0]:
                talk.talk.begin(worker)
            talk.talk.enqueue(worker, message)
    talk.talk.send()
    assert encoded == many(3)
    assert {len(frame) for frame in talk.sent(11)} == {3}


def test_frames_of_a_sibling_that_cannot_be_used_yet_wait_unconfirmed(talk: Talk) -> None:
    talk.hear(SIBLING, ForwardStart(1))
    talk.hear(SIBLING, *many())
    talk.stepper.settle()
    assert (talk.heard, talk.sent()) == ([], [])
    talk.talk.keep_waiting(SIBLING)
    assert talk.sent() == [[FramesAcked(0)]]
    talk.talk.begin(SIBLING)
    talk.stepper.settle()
    assert [message for _, message in talk.heard] == [ForwardStart(1), *many()]
    assert talk.sent() == [[FramesAcked(1)], [FramesAcked(1)]]


def test_what_was_not_worked_off_is_lost_with_its_sender(talk: Talk) -> None:
    talk.talk.begin(SIBLING)
    talk.hear(SIBLING, *many())
    talk.talk.enqueue(SIBLING, ForwardStart(1))
    talk.talk.end(SIBLING)
    talk.talk.enqueue(SIBLING, ForwardStart(2))
    talk.talk.enqueue_all(SIBLING, iter(many()))
    talk.talk.send()
    talk.stepper.settle()
    talk.hear(SIBLING, FramesAcked(1))
    assert (talk.heard, talk.sent()) == ([], [])
    talk.talk.begin(SIBLING)
    talk.hear(SIBLING, ForwardStart(5))
    assert [message for _, message in talk.heard] == [ForwardStart(5)]


def test_a_sender_that_ends_while_its_frame_is_worked_off(talk: Talk) -> None:
    talk.talk.begin(SIBLING)
    talk.on_message = lambda worker, _: talk.talk.end(worker)
    talk.hear(SIBLING, *many())
    talk.stepper.settle()
    assert len(talk.heard) == STEP


def test_new_interest_that_waits_for_its_pace_leaves_later(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here ten a second, one by one."""
    for name, value in (("BURST", 1), ("PACE", 10), ("BATCH_RECORDS", 1)):
        monkeypatch.setattr(f"portals.decisions.outbox.{name}", value)
    talk.talk.begin(SIBLING)
    for n in range(4):
        talk.talk.enqueue(SIBLING, InterestAdded(b"%d" % n, 0, 1))
    talk.talk.send()
    for n in range(4):
        talk.stepper.settle()
        assert talk.sent() == [[InterestAdded(b"%d" % n, 0, 1)]]
        talk.hear(SIBLING, FramesAcked(1))
        talk.stepper.run(90)
        assert talk.sent() == []
        talk.stepper.run(10)


def test_a_sibling_that_confirms_nothing_is_given_up_after_some_ticks(talk: Talk) -> None:
    talk.talk.begin(SIBLING)
    talk.talk.end(SIBLING)
    talk.talk.begin(SIBLING)
    talk.talk.enqueue(SIBLING, ForwardStart(1))
    talk.talk.send()
    talk.stepper.run(SILENT_TICKS * TICK_NS // 1_000_000, step_ms=100)
    assert talk.worker.channels.given_up == []
    talk.stepper.run(TICK_NS // 1_000_000, step_ms=100)
    assert talk.worker.channels.given_up == [SIBLING]
    talk.talk.end(SIBLING)
    talk.stepper.run(TICK_NS // 1_000_000, step_ms=100)
    assert talk.stepper.loop.next_deadline() is None, "no tick without siblings"
    talk.talk.begin(OTHER)
    assert talk.stepper.loop.next_deadline() is not None


def test_a_frame_that_is_none_is_an_error_of_its_own_kind(talk: Talk) -> None:
    talk.talk.begin(SIBLING)
    with pytest.raises(DecodeError):
        talk.talk.on_frame(SIBLING, b"\xc1" + bytes(AT_ONCE_BYTES // 2))
