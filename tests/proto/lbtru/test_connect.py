"""The receiver's end of an LBT-RU session by a script in ms: connecting, acknowledging, and the end (T14, T24)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from dro.clock import ms
from dro.proto.lbtru.connect import ConnectConfig, ConnectCore, SendAcknowledgement, SendConnectRequest
from dro.proto.repair.loss import LBTRU_LOSS, NakDue, Unrecoverable
from dro.proto.repair.receiver import ReceiverSession
from dro.proto.session_events import Began, Ended

Note = tuple[object, ...]


class ConnectBench:
    """A `ConnectCore` joined at 0; the random draw is always 0.5."""

    def __init__(self, config: ConnectConfig | None = None) -> None:
        self.core = ConnectCore(config or ConnectConfig(), ReceiverSession(LBTRU_LOSS, lambda: 0.5, 0), 0)
        self.notes: list[Note] = []
        self.up: list[int] = []

    def tick(self, t: float) -> None:
        while (deadline := self.core.next_deadline()) is not None and deadline <= ms(t):
            self.core.on_timer(deadline)
            self._note(deadline // ms(1))

    def data(self, t: float, sqn: int, *, is_repair: bool = False) -> None:
        self.tick(t)
        self.core.on_heard(ms(t))
        if self.core.session.on_data(sqn, 0, is_repair, ms(t)):
            self.up.append(sqn)
        self._note(t)

    def session_message(self, t: float, lead: int) -> None:
        self.tick(t)
        self.core.on_heard(ms(t))
        self.core.session.on_session_message(lead, 0, ms(t))
        self._note(t)

    def reset(self, t: float) -> None:
        self.tick(t)
        self.core.on_reset(ms(t))
        self._note(t)

    def _note(self, t: float) -> None:
        for send in self.core.take_sends():
            match send:
                case SendConnectRequest():
                    self.notes.append((t, "creq"))
                case SendAcknowledgement(sqn=sqn):
                    self.notes.append((t, "ack", sqn))
        for event in self.core.session.take_events():
            match event:
                case Began():
                    self.notes.append((t, "bos"))
                case Ended():
                    self.notes.append((t, "eos"))
                case NakDue(sqns=sqns):
                    self.notes.append((t, "nak", *sqns))
                case Unrecoverable():
                    self.notes.append((t, "lost", event.count))

    def of(self, *kinds: str) -> list[Note]:
        return [note for note in self.notes if note[1] in kinds]


def requests(times: Iterable[int]) -> list[Note]:
    return [(t, "creq") for t in times]


def test_t24a_it_asks_until_it_is_answered_and_acknowledges_from_then_on() -> None:
    bench = ConnectBench()
    bench.tick(200)
    bench.session_message(230, 9)
    bench.tick(230)
    bench.data(300, 10)
    bench.tick(1300)
    assert bench.notes == [
        *requests((0, 100, 200)), (230, "bos"), (230, "ack", 9), (730, "ack", 10), (1230, "ack", 10),
    ]  # fmt: skip
    assert bench.up == [10]


def test_t24b_after_the_last_attempt_it_ends_without_having_begun() -> None:
    bench = ConnectBench()
    bench.tick(100_000)
    assert bench.notes == [*requests(range(0, 60_000, 100)), (60_000, "eos")]
    assert bench.core.next_deadline() is None


@pytest.mark.parametrize(("attempts", "interval_ms", "end"), [(3, 10, 30), (700, 200, 140_000)])
def test_attempts_are_what_is_configured_whatever_the_activity_timeout_is(
    attempts: int, interval_ms: int, end: int
) -> None:
    bench = ConnectBench(ConnectConfig(interval_ns=ms(interval_ms), attempts=attempts))
    bench.tick(200_000)
    assert bench.notes == [*requests(range(0, end, interval_ms)), (end, "eos")]


def test_data_before_the_answer_is_an_answer() -> None:
    bench = ConnectBench()
    bench.data(50, 7)
    bench.tick(600)
    assert bench.notes == [*requests((0,)), (50, "bos"), (50, "ack", 7), (550, "ack", 7)]
    assert bench.up == [7]


def test_t14_the_first_nak_leaves_at_once() -> None:
    bench = ConnectBench()
    bench.data(0, 10)
    bench.data(10, 12)
    bench.tick(500)
    assert bench.of("nak") == [(10, "nak", 11), (210, "nak", 11), (410, "nak", 11)]
    bench.data(510, 11, is_repair=True)
    bench.tick(2000)
    assert len(bench.of("nak")) == 3
    assert bench.up == [10, 12, 11]


def test_an_acknowledgement_names_the_datagram_up_to_which_nothing_is_missing() -> None:
    bench = ConnectBench()
    bench.data(0, 10)
    bench.data(1, 12)
    bench.tick(501)
    bench.data(600, 11, is_repair=True)
    bench.tick(1000)
    assert bench.of("ack") == [(0, "ack", 10), (500, "ack", 10), (1000, "ack", 12)]


def test_silence_for_the_activity_timeout_ends_it_and_nothing_is_acknowledged_any_more() -> None:
    bench = ConnectBench()
    bench.session_message(0, 9)
    bench.tick(59_999)
    assert bench.of("eos") == []
    bench.tick(200_000)
    assert bench.of("eos") == [(60_000, "eos")]
    assert bench.of("ack")[-1][0] == 59_500


def test_what_is_missing_is_given_up_after_the_generation_interval() -> None:
    bench = ConnectBench()
    bench.data(0, 10)
    bench.data(10, 13)
    for t in range(1000, 20_000, 1000):
        bench.session_message(t, 13)
    assert bench.of("lost") == [(10_010, "lost", 2)]


@pytest.mark.parametrize("is_connected", [True, False])
def test_a_reset_ends_it_once(is_connected: bool) -> None:
    bench = ConnectBench()
    bench.tick(0)
    if is_connected:
        bench.session_message(1, 5)
        bench.tick(1)
    before = len(bench.notes)
    bench.reset(40)
    bench.reset(41)
    bench.tick(100_000)
    assert bench.notes[before:] == [(40, "eos")]


def test_who_goes_on_with_a_session_acknowledges_at_once_and_asks_nothing() -> None:
    bench = ConnectBench()
    bench.core.session.go_on_at(8, 0)
    bench.core.on_heard(0)
    bench.tick(600)
    assert bench.notes == [(0, "ack", 7), (0, "bos"), (500, "ack", 7)]


def test_without_an_interval_only_the_first_acknowledgement_leaves() -> None:
    bench = ConnectBench(ConnectConfig(acknowledgement_ns=0))
    bench.session_message(0, 9)
    bench.tick(59_000)
    assert bench.notes == [(0, "creq"), (0, "bos"), (0, "ack", 9)]
    bench.tick(60_000)
    assert bench.notes[3:] == [(60_000, "eos")]


def test_requests_are_a_millisecond_apart_at_least() -> None:
    bench = ConnectBench(ConnectConfig(interval_ns=0, attempts=5))
    bench.tick(100)
    assert bench.notes == [*requests(range(5)), (5, "eos")]
