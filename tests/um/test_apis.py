"""Both interfaces of the library, asyncio and blocking: queues, names, options, and how they end. Nothing is sent here.

What one of them has alone is in `test_async_api` and `test_blocking_api`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final, TypeAlias

import pytest

from dro.errors import ConfigError, ResourceError
from dro.um.async_api import Context
from dro.um.blocking_api import BlockingContext
from dro.um.handles import QUEUE_MAX
from dro.um.message.client_config import Config
from dro.um.message.context import MessageContext
from dro.um.message.events import Event, NoSource, SqnRange, UsageError
from tests.fakes.um_contexts import PATIENCE_S, private_config

pytestmark = pytest.mark.usefixtures("network")

Opened: TypeAlias = Any
"""A context of either interface, and what it gives."""


class Blocking:
    """The blocking interface."""

    module: Final = "dro.um.blocking_waits"
    open: Final[Callable[..., AbstractContextManager[Any]]] = BlockingContext
    sleeping: Final = time

    def do(self, given: Opened) -> Opened:
        return given

    def is_paused(self, context: Opened) -> bool:
        return bool(context.lock.is_paused)

    def locked(self, context: Opened) -> AbstractContextManager[object]:
        return context.lock  # type: ignore[no-any-return]

    def sleeper(self, slept: list[float]) -> Callable[[float], object]:
        return slept.append

    def close(self) -> None:
        pass


class Asyncio:
    """The asyncio interface: its loop turns while something is waited for."""

    module: Final = "dro.um.async_waits"
    sleeping: Final = asyncio

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def do(self, given: Awaitable[Opened]) -> Opened:
        return self._loop.run_until_complete(asyncio.wait_for(given, PATIENCE_S))

    @contextlib.contextmanager
    def open(self, *given: Opened, **more: Opened) -> Iterator[Context]:
        async def entered() -> Context:
            return await whole.enter_async_context(Context(*given, **more))

        whole = contextlib.AsyncExitStack()
        context = self.do(entered())
        try:
            yield context
        except BaseException as e:
            self.do(whole.__aexit__(type(e), e, e.__traceback__))
            raise
        self.do(whole.aclose())

    def is_paused(self, context: Opened) -> bool:
        return bool(context.core.loop.is_paused)

    def locked(self, context: Opened) -> AbstractContextManager[object]:
        return contextlib.nullcontext()

    def sleeper(self, slept: list[float]) -> Callable[[float], object]:
        genuine = asyncio.sleep

        async def sleep(seconds: float) -> None:
            slept.append(seconds)
            await genuine(0)

        return sleep

    def close(self) -> None:
        self._loop.close()


Api = Blocking | Asyncio


@pytest.fixture(params=[Asyncio, Blocking], ids=["asyncio", "blocking"])
def api(request: pytest.FixtureRequest) -> Iterator[Api]:
    made: Api = request.param()
    yield made
    made.close()


@pytest.fixture
def context(api: Api, tcp_config: Config) -> Iterator[Any]:
    with api.open(tcp_config, "east") as made:
        yield made


def happen(api: Api, context: Opened, count: int) -> None:
    """So many events for receivers of the topic t."""
    with api.locked(context):
        for _ in range(count):
            context.core.delivery.on_no_source(b"t")


@pytest.mark.parametrize(("queue_max", "resumed_at"), [(4, 2), (5, 2), (1, 0), (0, 0)])
def test_a_queue_that_is_too_full_pauses_the_data_until_half_of_it_is_taken(
    api: Api, context: Opened, queue_max: int, resumed_at: int
) -> None:
    receiver = api.do(context.receiver("t", queue_max=queue_max))
    happen(api, context, queue_max)
    assert not api.is_paused(context)
    happen(api, context, 1)
    for left in range(queue_max, -1, -1):
        assert api.is_paused(context)
        assert api.do(receiver.get()) == NoSource("t")
        if left <= resumed_at:
            break
    assert not api.is_paused(context)
    assert left == resumed_at


def test_two_full_queues_pause_until_both_have_room(api: Api, context: Opened) -> None:
    receivers = [api.do(context.receiver("t", queue_max=1)) for _ in range(2)]
    happen(api, context, 2)
    paused = []
    for receiver in receivers:
        for _ in range(2):
            api.do(receiver.get())
        paused.append(api.is_paused(context))
    assert paused == [True, False]


def test_a_closed_receiver_gives_nothing_more_and_holds_nobody_up(api: Api, context: Opened) -> None:
    receiver = api.do(context.receiver("t", queue_max=1))
    happen(api, context, 3)
    assert api.is_paused(context)
    api.do(receiver.close())
    assert not api.is_paused(context)
    happen(api, context, 1)
    with pytest.raises(UsageError, match="the receiver is closed"):
        api.do(receiver.get())


def test_a_queue_holds_fifty_thousand_unless_told_otherwise(api: Api, context: Opened) -> None:
    assert QUEUE_MAX == 50_000
    api.do(context.receiver("t"))
    api.do(context.wildcard_receiver("^t$"))
    happen(api, context, QUEUE_MAX)
    assert not api.is_paused(context)
    happen(api, context, 1)
    assert api.is_paused(context)


def test_events_go_to_the_queue_or_to_the_callbacks(api: Api, context: Opened) -> None:
    told: list[Event] = []
    receivers = [
        api.do(make(pattern, **{callback: heard}))
        for make, pattern in ((context.receiver, "t"), (context.wildcard_receiver, "^t$"))
        for callback, heard in (("on_event", told.append), ("on_messages", lambda batch: None))
    ]
    happen(api, context, 1)
    assert told == [NoSource("t")]
    for receiver in receivers:
        with pytest.raises(UsageError, match="this receiver hands its events to a callback"):
            api.do(receiver.get())


def test_everything_has_its_name(api: Api, context: Opened) -> None:
    changes: list[tuple[str, str, bool]] = []
    assert (context.name, context.domain_id) == ("east", 0)
    assert context.request_address.startswith("TCP:127.0.0.1:")
    source = api.do(context.source("t"))
    receiver = api.do(context.receiver("t", on_source=lambda *change: changes.append(change)))
    wild = api.do(context.wildcard_receiver("^t"))
    for wait in (receiver.wait_sources, wild.wait_topics, source.wait_receivers):
        api.do(wait())
    assert (source.topic, receiver.topic, wild.pattern) == ("t", "t", "^t")
    assert receiver.sources == [source.source_string]
    assert changes == [("t", source.source_string, True)]
    assert (wild.topics, len(source.otid), len(source.clients)) == (frozenset({"t"}), 32, 1)
    assert context.stats().context.tr_src_topics == 1
    assert context.core.children == 3


def test_sub_receivers_of_a_pattern_are_told(api: Api, context: Opened) -> None:
    told: list[tuple[str, str]] = []
    api.do(context.source("t"))
    wild = api.do(
        context.wildcard_receiver(
            "^t", on_created=lambda t: told.append(("+", t)), on_deleted=lambda t: told.append(("-", t))
        )
    )
    api.do(wild.wait_topics())
    with api.locked(context):
        context.core.core.on_topic_unmatched(b"^t", 1, b"t")
    assert (wild.topics, told) == (frozenset(), [("+", "t"), ("-", "t")])


def test_options_of_an_object_are_checked(api: Api, context: Opened) -> None:
    for make in (context.source, context.receiver, context.wildcard_receiver):
        with pytest.raises(ConfigError, match="unknown UM option"):
            api.do(make("t", no_such_option=1))
    assert context.core.children == 0


def test_without_a_configuration_that_of_the_environment_holds(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    config = private_config("tcp")
    monkeypatch.setattr(Config, "load", classmethod(lambda cls: config))
    with api.open() as context:
        assert context.core.options.get_str("source", "transport") == "tcp"


# the end


def test_a_context_that_cannot_be_opened_leaves_nothing_open(
    api: Api, tcp_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ResourceError("no group")

    before, threads = os.listdir("/proc/self/fd"), threading.active_count()
    with monkeypatch.context() as patch:
        patch.setattr("dro.um.message.context.FragmentContext", fail)
        with pytest.raises(ResourceError), api.open(tcp_config):
            pass
    assert (os.listdir("/proc/self/fd"), threading.active_count()) == (before, threads)


def test_leaving_waits_for_what_was_sent_and_lingers_unless_something_failed(
    api: Api, tcp_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: dict[str, list[bool]] = {"is_drained": [], "has_ended": []}
    for name, seen in checks.items():

        def answer(core: MessageContext, seen: list[bool] = seen) -> bool:
            seen.append(core.is_closed)
            return len(seen) == 3

        monkeypatch.setattr(MessageContext, name, property(answer))
    slept: list[float] = []
    monkeypatch.setattr(api.sleeping, "sleep", api.sleeper(slept))
    with api.open(tcp_config, linger=0.75) as context:
        api.do(context.receiver("t"))
    assert checks == {"is_drained": [False] * 3, "has_ended": [False] * 3}
    assert slept == [0.005, 0.005, 0.75, 0.005, 0.005]
    slept.clear()
    with pytest.raises(ValueError, match="fault"), api.open(tcp_config, linger=0.75) as context:  # noqa: PT012
        api.do(context.receiver("t"))
        raise ValueError("the application's fault")
    assert slept == []
    assert {name: len(seen) for name, seen in checks.items()} == {"is_drained": 3, "has_ended": 3}


def test_waiting_for_the_end_gives_up_in_time(api: Api, tcp_config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{api.module}.DRAIN_TIMEOUT_S", 0.05)
    monkeypatch.setattr(MessageContext, "is_drained", property(lambda core: False))
    with pytest.raises(ResourceError, match="context ends with messages that have not left"), api.open(tcp_config):
        pass


def test_a_source_that_nothing_is_taken_from_tells_so_when_it_closes(
    api: Api, context: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{api.module}.DRAIN_TIMEOUT_S", 0.05)
    with monkeypatch.context() as patch:
        patch.setattr("dro.um.message.writer.SessionWriter.is_idle", property(lambda _: False))
        api.do(api.do(context.source("u")).close(wait=False))
        source = api.do(context.source("t"))
        with pytest.raises(ResourceError, match="source of 't' ends with messages that have not left"):
            api.do(source.close())
    assert context.core.children == 0


def test_a_source_that_closes_waits_until_its_messages_are_handed_over(
    api: Api, context: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def is_idle(writer: object) -> bool:
        seen.append(context.core.children)
        return len(seen) >= 3

    source = api.do(context.source("t"))
    with monkeypatch.context() as patch:
        patch.setattr("dro.um.message.writer.SessionWriter.is_idle", property(is_idle))
        api.do(source.close())
        api.do(source.close())
    assert [*seen, context.core.children] == [1, 1, 1, 0], "and no longer"


@pytest.mark.parametrize(
    ("data", "more", "why"),
    [
        ("text", {}, "data of a message has to be bytes, this is str"),
        (None, {}, "data of a message has to be bytes, this is NoneType"),
        (b"", {"properties": ["a"]}, "properties have to be a mapping"),
        (b"", {"channel": 1.5}, "channel 1.5 is no whole number"),
    ],
)
def test_what_is_no_message_is_named(api: Api, context: Opened, data: object, more: Opened, why: str) -> None:
    source = api.do(context.source("t"))
    with pytest.raises(UsageError, match=why):
        api.do(source.send(data, **more))
    if not more:
        with pytest.raises(UsageError, match=why):
            api.do(context.uim("TCP:127.0.0.1:9", data))
    assert api.do(source.send(bytearray(b"taken"))) == SqnRange(0, 0)
