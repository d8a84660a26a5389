"""The blocking interface: queues, waiting, names, and what happens in the wrong order. Nothing is sent here."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from dro.errors import ConfigError, ResourceError
from dro.um.blocking_api import BlockingContext
from dro.um.handles import QUEUE_MAX
from dro.um.message.client_config import Config
from dro.um.message.context import MessageContext
from dro.um.message.events import Event, NoSource, SqnRange, UsageError, WouldBlock
from tests.fakes.um_contexts import PATIENCE_S, private_config


@pytest.fixture
def context(tcp_config: Config) -> Iterator[BlockingContext]:
    with BlockingContext(tcp_config, "east") as made:
        yield made


def happen(context: BlockingContext, count: int) -> None:
    """So many events for receivers of the topic t."""
    with context.lock:
        for _ in range(count):
            context.core.delivery.on_no_source(b"t")


def in_callback(context: BlockingContext, call: Callable[[], object]) -> object:
    """What a call gives, or raises, on the thread that callbacks run on."""
    results: list[object] = []
    done = threading.Event()

    def run() -> None:
        try:
            results.append(call())
        except Exception as e:
            results.append(e)
        done.set()

    with context.lock:
        context.lock.call_soon(run)
    assert done.wait(PATIENCE_S)
    return results[0]


@pytest.mark.parametrize(("queue_max", "resumed_at"), [(4, 2), (5, 2), (1, 0), (0, 0)])
def test_a_queue_that_is_too_full_pauses_the_data_until_half_of_it_is_taken(
    context: BlockingContext, queue_max: int, resumed_at: int
) -> None:
    receiver = context.receiver("t", queue_max=queue_max)
    happen(context, queue_max)
    assert not context.lock.is_paused
    happen(context, 1)
    for left in range(queue_max, -1, -1):
        assert context.lock.is_paused
        assert receiver.get(0) == NoSource("t")
        if left <= resumed_at:
            break
    assert not context.lock.is_paused
    assert left == resumed_at


def test_a_closed_receiver_gives_nothing_more_and_holds_nobody_up(context: BlockingContext) -> None:
    receiver = context.receiver("t", queue_max=1)
    happen(context, 3)
    with receiver as same:
        assert same is receiver
        assert context.lock.is_paused
    assert not context.lock.is_paused
    assert list(receiver) == []
    with pytest.raises(UsageError, match="the receiver is closed"):
        receiver.get()
    happen(context, 1)
    with pytest.raises(UsageError, match="the receiver is closed"):
        receiver.get(0)


def test_who_waits_is_woken_by_an_event_and_by_the_end(context: BlockingContext) -> None:
    receiver = context.receiver("t")
    with pytest.raises(TimeoutError, match="no event"):
        receiver.get(0)
    got: list[Event] = []
    thread = threading.Thread(target=lambda: got.extend(receiver), daemon=True)
    thread.start()
    happen(context, 2)
    deadline = time.monotonic() + PATIENCE_S
    while len(got) < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    receiver.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert got == [NoSource("t")] * 2


def test_events_go_to_the_queue_or_to_the_callbacks(context: BlockingContext) -> None:
    told: list[Event] = []
    receivers = (
        context.receiver("t", on_event=told.append),
        context.receiver("t", on_messages=lambda batch: None),
        context.wildcard_receiver("^t$", on_event=told.append),
        context.wildcard_receiver("^t$", on_messages=lambda batch: None),
    )
    happen(context, 1)
    assert told == [NoSource("t")]
    for receiver in receivers:
        with pytest.raises(UsageError, match="this receiver hands its events to a callback"):
            receiver.get(0)


def test_everything_has_its_name(context: BlockingContext) -> None:
    changes: list[tuple[str, str, bool]] = []
    assert (context.name, context.domain_id) == ("east", 0)
    assert context.request_address.startswith("TCP:127.0.0.1:")
    source = context.source("t")
    receiver = context.receiver("t", on_source=lambda *change: changes.append(change))
    wild = context.wildcard_receiver("^t")
    receiver.wait_sources(timeout=PATIENCE_S)
    wild.wait_topics(timeout=PATIENCE_S)
    source.wait_receivers(timeout=PATIENCE_S)
    assert (source.topic, receiver.topic, wild.pattern) == ("t", "t", "^t")
    assert receiver.sources == [source.source_string]
    assert changes == [("t", source.source_string, True)]
    assert (wild.topics, len(source.otid), len(source.clients)) == (frozenset({"t"}), 32, 1)
    assert context.stats().context.tr_src_topics == 1
    assert context.core.children == 3


def test_sub_receivers_of_a_pattern_are_told(context: BlockingContext) -> None:
    told: list[tuple[str, str]] = []
    context.source("t")
    wild = context.wildcard_receiver(
        "^t", on_created=lambda t: told.append(("+", t)), on_deleted=lambda t: told.append(("-", t))
    )
    wild.wait_topics(timeout=PATIENCE_S)
    with context.lock:
        context.core.core.on_topic_unmatched(b"^t", 1, b"t")
    assert (wild.topics, told) == (frozenset(), [("+", "t"), ("-", "t")])


def test_a_wait_that_takes_too_long_says_for_what(context: BlockingContext) -> None:
    source, receiver, wild = context.source("t"), context.receiver("t"), context.wildcard_receiver("^t")
    receiver.wait_sources(timeout=PATIENCE_S)
    with pytest.raises(TimeoutError, match=r"^receivers have not connected$"):
        source.wait_receivers(2, timeout=0)
    with pytest.raises(TimeoutError, match=r"^no 2 sources of 't'$"):
        receiver.wait_sources(2, timeout=0.01)
    with pytest.raises(TimeoutError, match=r"^no 3 topics for '\^t'$"):
        wild.wait_topics(3, timeout=0.01)
    receiver.wait_sources(0, timeout=0)


def test_waiting_for_several_goes_on_until_all_are_there(context: BlockingContext) -> None:
    receiver, wild = context.receiver("t.1"), context.wildcard_receiver("^t")
    done: list[str] = []

    def wait() -> None:
        receiver.wait_sources(2)
        wild.wait_topics(2)
        done.append("all")

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    context.source("t.1")
    receiver.wait_sources(timeout=PATIENCE_S)
    assert done == []
    context.source("t.1")
    context.source("t.2")
    thread.join(PATIENCE_S)
    assert done == ["all"]


def test_nothing_waits_on_the_thread_of_the_callbacks(context: BlockingContext) -> None:
    source, receiver, wild = context.source("t"), context.receiver("u"), context.wildcard_receiver("^t")
    waits = (
        lambda: source.wait_receivers(timeout=0),
        lambda: receiver.wait_sources(timeout=0),
        lambda: wild.wait_topics(timeout=0),
        lambda: receiver.get(0),
        context.close,
    )
    for wait in waits:
        assert isinstance(in_callback(context, wait), UsageError)
    with context.lock:
        context.core.delivery.on_no_source(b"u")
    assert in_callback(context, receiver.get) == NoSource("u"), "what is there is given"
    assert in_callback(context, lambda: source.send(b"x", flush=False)) == SqnRange(0, 0)
    assert in_callback(context, source.close) is None


def test_a_refused_send_waits_its_time_or_tells_by_an_event(lbtrm_config: Config) -> None:
    config = lbtrm_config.with_("context", "transport_lbtrm_data_rate_limit", 1_000_000)
    told = threading.Event()
    with BlockingContext(config) as context:
        source = context.source("t", on_event=lambda event: told.set())
        sent = 0
        with context.lock:  # its thread can wake nobody meanwhile
            with pytest.raises(WouldBlock):  # noqa: PT012  # as many as it takes
                while True:
                    source.send(bytes(7000), block=False)
                    sent += 1
            with pytest.raises(TimeoutError, match=r"^the session is blocked$"):
                source.send(bytes(7000), timeout=0)
        assert source.send(bytes(7000)) == SqnRange(sent, sent)
        assert told.wait(PATIENCE_S)


# the wrong order


def test_a_context_is_closed_once_and_when_nothing_is_open(tcp_config: Config) -> None:
    context = BlockingContext(tcp_config)
    assert context.name == ""
    with context as same:
        assert same is context
        receiver = context.receiver("t")
        with pytest.raises(UsageError, match="1 sources and receivers of the context are still open"):
            context.close()
        receiver.close()
        context.close()
        context.close()
    with pytest.raises(UsageError, match="the context is closed"):
        context.receiver("t")


def test_a_context_that_cannot_be_opened_leaves_nothing_open(
    tcp_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ResourceError("no group")

    before, threads = os.listdir("/proc/self/fd"), threading.active_count()
    with monkeypatch.context() as patch:
        patch.setattr("dro.um.message.context.FragmentContext", fail)
        with pytest.raises(ResourceError):
            BlockingContext(tcp_config)
    assert (os.listdir("/proc/self/fd"), threading.active_count()) == (before, threads)


def test_leaving_waits_for_what_was_sent_and_lingers_unless_something_failed(
    tcp_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: dict[str, list[bool]] = {"is_drained": [], "has_ended": []}
    for name, seen in checks.items():

        def answer(core: MessageContext, seen: list[bool] = seen) -> bool:
            seen.append(core.is_closed)
            return len(seen) == 3

        monkeypatch.setattr(MessageContext, name, property(answer))
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    with BlockingContext(tcp_config, linger=0.75) as context:
        context.receiver("t")
    assert checks == {"is_drained": [False] * 3, "has_ended": [False] * 3}
    assert slept == [0.005, 0.005, 0.75, 0.005, 0.005]
    slept.clear()
    with pytest.raises(ValueError, match="fault"), BlockingContext(tcp_config, linger=0.75) as context:  # noqa: PT012
        context.receiver("t")
        raise ValueError("the application's fault")
    assert slept == []
    assert {name: len(seen) for name, seen in checks.items()} == {"is_drained": 3, "has_ended": 3}


def test_a_source_that_closes_waits_until_its_messages_are_handed_over(
    context: BlockingContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = context.source("t")
    seen: list[int] = []

    def is_idle(writer: object) -> bool:
        seen.append(context.core.children)
        return len(seen) >= 3

    monkeypatch.setattr("dro.um.message.writer.SessionWriter.is_idle", property(is_idle))
    source.close()
    assert seen == [1, 1, 1], "and no longer"
    assert context.core.children == 0


def test_waiting_for_the_end_gives_up_in_time(tcp_config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dro.um.blocking_api.DRAIN_TIMEOUT_S", 0.05)
    monkeypatch.setattr(MessageContext, "is_drained", property(lambda core: False))
    with BlockingContext(tcp_config):
        pass


def test_options_of_an_object_are_checked(context: BlockingContext) -> None:
    for make in (context.source, context.receiver, context.wildcard_receiver):
        with pytest.raises(ConfigError, match="unknown UM option"):
            make("t", no_such_option=1)
    assert context.core.children == 0


def test_a_queue_holds_fifty_thousand_unless_told_otherwise(context: BlockingContext) -> None:
    context.receiver("t")
    happen(context, QUEUE_MAX)
    assert not context.lock.is_paused
    happen(context, 1)
    assert context.lock.is_paused


def test_without_a_configuration_that_of_the_environment_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    config = private_config("tcp")
    monkeypatch.setattr(Config, "load", classmethod(lambda cls: config))
    with BlockingContext() as context:
        assert context.core.options.get_str("source", "transport") == "tcp"
