"""The blocking interface: queues, waiting, names, and what happens in the wrong order. Nothing is sent here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dro.um.blocking_api import BlockingContext
from dro.um.message.client_config import Config
from dro.um.message.events import Event, NoSource, SqnRange, UsageError
from tests.fakes.um_contexts import PATIENCE_S
from tests.rigs.waiting import wait_until

pytestmark = pytest.mark.usefixtures("network")


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


def test_the_end_of_what_more_is_waited_for_ends_the_wait(context: BlockingContext) -> None:
    source, receiver, wild = context.source("t"), context.receiver("t"), context.wildcard_receiver("^t")
    raised: list[str] = []

    def wait(wait: Callable[[int], None]) -> None:
        with pytest.raises(UsageError) as e:
            wait(3)
        raised.append(str(e.value))

    waits = (source.wait_receivers, receiver.wait_sources, wild.wait_topics)
    threads = [threading.Thread(target=wait, args=(one,), daemon=True) for one in waits]
    for thread in threads:
        thread.start()
    waiting: list[Any] = [made._changes._condition for made in (source, receiver, wild)]
    wait_until(lambda: all(condition._waiters for condition in waiting), "three that wait", PATIENCE_S)
    for made in (source, receiver, wild):
        made.close()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(raised) == ["the receiver is closed", "the receiver is closed", "the source is closed"]


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
