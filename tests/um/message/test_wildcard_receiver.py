"""Wildcard receivers and the context around them: topics that come and go, callbacks, refusals, shared sessions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dro.config.um.options import UmOptions
from dro.errors import ConfigError
from dro.log.events import LogEvent
from dro.patterns import PCRE, PatternError
from dro.um.message.context import MessageContext
from dro.um.message.events import Event, NoSource, UsageError
from dro.um.message.receiver import CallbackListener
from dro.um.message.wildcard_receiver import PatternReceiver
from tests.fakes.um_contexts import Stepper, private_config

pytestmark = pytest.mark.usefixtures("network")

NOTHING = UmOptions()


@pytest.fixture
def context(stepper: Stepper) -> Iterator[MessageContext]:
    made = MessageContext(private_config("tcp"), stepper.loop, name="east")
    yield made
    made.close_children()
    made.close()


class Heard:
    """One wildcard receiver and all that it was told."""

    def __init__(self, context: MessageContext, pattern: str = "^t") -> None:
        self.told: list[tuple[str, str]] = []
        self.events: list[Event] = []
        self.sources: list[tuple[str, bool]] = []
        listener = CallbackListener(
            self.events.append, on_source=lambda topic, source, added: self.sources.append((topic, added))
        )
        self.made: PatternReceiver = context.wildcard(
            pattern, listener, NOTHING, lambda t: self.told.append(("+", t)), lambda t: self.told.append(("-", t))
        )


def test_topics_of_a_pattern_come_and_go_for_each_of_its_receivers(context: MessageContext, stepper: Stepper) -> None:
    one, two, other = Heard(context), Heard(context), Heard(context, "^u")
    assert context.children == 3
    context.source("t.1", NOTHING)
    stepper.until(lambda: bool(one.sources))
    for heard in (one, two):
        assert (heard.told, heard.made.topics, heard.sources) == ([("+", "t.1")], {"t.1"}, [("t.1", True)])
    assert other.told == []
    late = Heard(context)
    assert (late.told, late.sources) == ([("+", "t.1")], [("t.1", True)]), "known from the others"
    one.made.on_matched(b"t.1")
    assert one.told == [("+", "t.1")], "told once"
    context.core.on_topic_unmatched(b"^t", PCRE, b"t.1")
    context.core.on_topic_unmatched(b"^t", PCRE, b"t.1")
    assert [heard.told for heard in (one, two, late)] == [[("+", "t.1"), ("-", "t.1")]] * 3
    assert one.made.topics == set()
    context.core.on_topic_matched(b"^t", PCRE, b"t.2")
    two.made.close()
    two.made.close()
    context.core.on_topic_matched(b"^t", PCRE, b"t.3")
    context.core.on_topic_unmatched(b"^t", PCRE, b"t.2")
    assert two.told[2:] == [("+", "t.2")], "closed"
    assert (two.made.is_closed, two.made.topics) == (True, set())
    assert one.told[2:] == [("+", "t.2"), ("+", "t.3"), ("-", "t.2")]
    assert context.children == 4


def test_a_receiver_that_is_closed_when_it_is_told_of_a_topic_does_not_listen_to_it(
    context: MessageContext, stepper: Stepper
) -> None:
    sources: list[str] = []
    listener = CallbackListener(lambda event: None, on_source=lambda topic, source, added: sources.append(topic))
    made = context.wildcard("^t", listener, NOTHING, lambda topic: made.close())
    context.source("t.1", NOTHING)
    stepper.run(1000, 20)
    assert (made.is_closed, made.topics, sources) == (True, set(), [])
    assert context.core.bound_sources == []
    assert context.children == 1


def test_a_callback_that_fails_is_logged_with_its_topic(
    context: MessageContext, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(topic: str) -> None:
        raise ValueError("the application's fault")

    made = context.wildcard("^t", CallbackListener(None), NOTHING, fail, fail)
    context.core.on_topic_matched(b"^t", PCRE, b"t.1")
    context.core.on_topic_unmatched(b"^t", PCRE, b"t.1")
    assert [(r.msg, vars(r)["topic"]) for r in caplog.records] == [(LogEvent.TOPIC_CALLBACK, "t.1")] * 2
    assert made.topics == set()
    silent = context.wildcard("^u", CallbackListener(None), NOTHING)
    context.core.on_topic_matched(b"^u", PCRE, b"u.1")
    assert silent.topics == {"u.1"}


def test_what_can_be_no_pattern_is_refused_and_leaves_nothing(context: MessageContext) -> None:
    listener = CallbackListener(None)
    with pytest.raises(ConfigError) as refused:
        context.wildcard("x", listener, NOTHING.with_("wildcard_receiver", "pattern_type", "appcb"))
    assert str(refused.value) == (
        "wildcard_receiver pattern_type: patterns that the application matches are not supported; use pcre or regex"
    )
    with pytest.raises(PatternError):
        context.wildcard("(", listener, NOTHING)
    with pytest.raises(UsageError, match=r"^pattern 'x{70}.x00y{9}' cannot be used: "):
        context.wildcard("x" * 70 + "\0" + "y" * 90, listener, NOTHING)
    assert (context.children, context.core.topic_count) == (0, 0)


# the context


def test_a_context_says_where_requests_go_with_its_domain_when_it_knows_one(
    context: MessageContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    ip, port = context.core.request_address
    assert (ip, context.request_target) == (0x7F000001, f"TCP:127.0.0.1:{port}")
    monkeypatch.setattr(type(context.core), "domain_id", 7)
    assert context.request_target == f"TCP:7:127.0.0.1:{port}"
    monkeypatch.setattr(type(context.core), "request_address", (0, 0))
    assert context.request_target == ""
    assert context.core.name == "east"


def test_sources_of_one_session_share_its_writer_until_the_last_is_closed(stepper: Stepper) -> None:
    context = MessageContext(private_config("tcp", context__transport_tcp_maximum_ports=1), stepper.loop)
    one, two = (context.source(topic, NOTHING) for topic in ("t.1", "t.2"))
    assert one.writer is two.writer
    assert (one.writer.users, context.children) == (2, 2)
    two.send(b"waits", flush=False)
    assert not context.is_drained
    one.close()
    assert (two.writer.users, context.has_ended) == (1, True)
    assert len(context.core.pools.senders()) == 1
    with pytest.raises(UsageError, match="1 sources and receivers of the context are still open"):
        context.close()
    two.close()
    assert (context.is_drained, context.children, context.core.pools.senders()) == (True, 0, [])
    again = context.source("t.3", NOTHING)
    assert again.writer is not two.writer
    context.close_children()
    context.close()
    context.close()
    stepper.settle()
    assert (context.is_closed, stepper.loop.next_deadline()) == (True, None)
    for make in (
        lambda: context.source("t", NOTHING),
        lambda: context.receiver("t", CallbackListener(None), NOTHING),
        lambda: context.wildcard("t", CallbackListener(None), NOTHING),
    ):
        with pytest.raises(UsageError, match="the context is closed"):
            make()


def test_receivers_that_connect_are_told_to_the_sources_of_their_session_alone(stepper: Stepper) -> None:
    context = MessageContext(private_config("tcp", context__transport_tcp_maximum_ports=2), stepper.loop)
    one, two, shared = (context.source(f"t.{n}", NOTHING) for n in range(3))
    assert shared.writer is one.writer
    receiver = context.receiver("t.0", CallbackListener(None), NOTHING)
    stepper.until(lambda: bool(one.clients))
    assert (shared.clients, two.clients) == (one.clients, set())
    assert receiver.sources == [one.source_string]
    receiver.close()
    receiver.close()
    stepper.until(lambda: not one.clients)
    assert (shared.clients, context.children) == (set(), 3)
    context.close_children()
    context.close()


def test_a_topic_that_cannot_be_used_is_refused_by_name(context: MessageContext) -> None:
    bad = "x" * 70 + "\0" + "y" * 90
    for make in (
        lambda: context.source(bad, NOTHING),
        lambda: context.receiver(bad, CallbackListener(None), NOTHING),
    ):
        with pytest.raises(UsageError, match=r"^topic 'x{70}.x00y{9}' cannot be used: "):
            make()
    assert (context.children, context.core.pools.senders(), context.core.topic_count) == (0, [], 0)
    heard: list[Event] = []
    context.receiver("t", CallbackListener(heard.append), NOTHING)
    context.core.on_no_source(b"t")
    assert heard == [NoSource("t")]
