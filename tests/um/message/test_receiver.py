"""The application's callbacks: which is called with what, what a failing one costs, and silence after the end."""

from __future__ import annotations

import pytest

from dro.log.events import LogEvent
from dro.um.message.events import BOS, Data, Event, MessageBatch
from dro.um.message.receiver import CallbackListener

DATA: list[Event] = [Data("t", "source", sqn, b"%d" % sqn, 8, b"otid") for sqn in (5, 6)]
BATCH = MessageBatch("t", "source", 5, [b"5", b"6"], b"otid")
BEGIN = BOS("t", "source")


def test_events_go_to_their_callback_in_order() -> None:
    events: list[Event] = []
    listener = CallbackListener(events.append)
    assert listener.wants_batches is False
    listener.on_events([BEGIN, *DATA])
    listener.on_batch(BATCH)
    listener.on_source("t", "source", added=True)
    assert events == [BEGIN, *DATA]


def test_messages_go_to_theirs_and_the_rest_to_the_other() -> None:
    events: list[Event] = []
    batches: list[MessageBatch] = []
    sources: list[tuple[str, str, bool]] = []
    listener = CallbackListener(events.append, batches.append, lambda *change: sources.append(change))
    assert listener.wants_batches is True
    listener.on_events([BEGIN, *DATA])
    listener.on_batch(BATCH)
    listener.on_source("t", "source", added=True)
    listener.on_source("t", "source", added=False)
    assert events == [BEGIN]
    assert batches == [MessageBatch("t", "source", e.sqn, [e.data], b"otid") for e in DATA if isinstance(e, Data)] + [
        BATCH
    ]
    assert sources == [("t", "source", True), ("t", "source", False)]
    only = CallbackListener(None, batches.append)
    only.on_events([BEGIN, DATA[0]])
    assert len(batches) == 4


def test_a_callback_that_fails_is_logged_with_its_topic_and_called_again(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[object] = []

    def fail(*what: object) -> None:
        calls.append(what)
        raise ValueError("the application's fault")

    listener = CallbackListener(fail, fail, fail)
    listener.on_events([BEGIN, *DATA])
    listener.on_batch(BATCH)
    listener.on_source("t", "source", added=True)
    assert len(calls) == 5
    assert [(r.msg, vars(r)["topic"]) for r in caplog.records] == [
        *[(LogEvent.RECEIVER_EVENT_CALLBACK, "t")] * 3,
        (LogEvent.MESSAGE_CALLBACK, "t"),
        (LogEvent.SOURCE_CALLBACK, "t"),
    ]


def test_a_receiver_that_was_closed_hears_nothing_not_even_the_rest_of_what_it_is_hearing() -> None:
    calls: list[object] = []

    def close(*what: object) -> None:
        calls.append(what)
        listener.close()

    listener = CallbackListener(close, close, close)
    listener.on_events([BEGIN, *DATA])
    assert calls == [(BEGIN,)]
    listener.on_events(DATA)
    listener.on_batch(BATCH)
    listener.on_source("t", "source", added=True)
    assert calls == [(BEGIN,)]
