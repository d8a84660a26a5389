"""What the message level does over time, on stepped time: TSNI, no-source events, sub-receivers that go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event as Flag

import pytest

from dro.config.um.options import UmOptions
from dro.errors import ConfigError
from dro.um.blocking_api import BlockingContext
from dro.um.message.client_config import Config
from dro.um.message.context import MessageContext
from dro.um.message.events import BOS, EOS, Data, Event, Loss, NoSource
from dro.um.message.receiver import CallbackListener
from tests.fakes.um_contexts import Stepper, private_config

pytestmark = pytest.mark.usefixtures("network")

NOTHING = UmOptions()


@contextmanager
def opened(config: Config, stepper: Stepper) -> Iterator[MessageContext]:
    context = MessageContext(config, stepper.loop)
    try:
        yield context
    finally:
        context.close_children()
        context.close()


def test_a_lost_last_message_is_known_by_its_tsni(stepper: Stepper) -> None:
    config = private_config("tcp", source__transport_topic_sequence_number_info_interval=1000)
    events: list[Event] = []
    with opened(config, stepper) as a, opened(config, stepper) as b:
        source = a.source("t", NOTHING)
        b.receiver("t", CallbackListener(events.append), NOTHING)
        stepper.until(lambda: bool(source.clients))
        source.send(b"first")
        stepper.until(lambda: len(events) == 2)
        source._next_sqn += 1  # a message that never left
        stepper.run(800)
        assert len(events) == 2
        stepper.run(400)
        assert [type(event) for event in events] == [BOS, Data, Loss]


def test_a_message_puts_the_next_tsni_off(stepper: Stepper) -> None:
    config = private_config("lbtrm", source__transport_topic_sequence_number_info_interval=1000)
    with opened(config, stepper) as a:
        source = a.source("t", NOTHING)
        source.send(b"x")
        stepper.run(600)
        source.send(b"y")
        stepper.run(900)
        assert a.core.pools.senders()[0].statistics().counters.msgs_sent == 2
        stepper.run(200)
        assert a.core.pools.senders()[0].statistics().counters.msgs_sent == 3


def test_an_idle_source_stops_telling_its_sqn(stepper: Stepper) -> None:
    config = private_config(
        "lbtrm", source__transport_topic_sequence_number_info_interval=1000,
        source__transport_topic_sequence_number_info_active_threshold=5,
    )  # fmt: skip
    with opened(config, stepper) as a:
        source = a.source("t", NOTHING)
        stepper.run(3_000, 100)
        assert a.core.pools.senders()[0].statistics().counters.msgs_sent == 0
        source.send(b"x")
        stepper.run(20_000, 100)
        assert a.core.pools.senders()[0].statistics().counters.msgs_sent == 6  # the message and five TSNIs


def test_a_source_that_closes_sends_what_waits_for_company(stepper: Stepper) -> None:
    config = private_config("tcp")
    events: list[Event] = []
    with opened(config, stepper) as a, opened(config, stepper) as b:
        source = a.source("t", NOTHING)
        b.receiver("t", CallbackListener(events.append), NOTHING)
        stepper.until(lambda: bool(source.clients))
        source.send(b"x", flush=False)
        source.close()
        stepper.run(1000)
        assert [event.data for event in events if isinstance(event, Data)] == [b"x"]


def test_no_source_after_so_many_queries(stepper: Stepper) -> None:
    config = private_config("lbtrm", receiver__resolution_no_source_notification_threshold=3)
    events: list[Event] = []
    with opened(config, stepper) as b:
        b.receiver("t", CallbackListener(events.append), NOTHING)
        stepper.run(1_000, 20)
        assert events == [NoSource("t")]


def test_a_sub_receiver_without_a_source_goes_after_ten_queries(stepper: Stepper) -> None:
    config = private_config("lbtrm", source__resolver_send_final_advertisements=1)
    events: list[Event] = []
    created: list[str] = []
    deleted: list[str] = []
    with opened(config, stepper) as b:
        wild = b.wildcard("^q", CallbackListener(events.append), NOTHING, created.append, deleted.append)
        with opened(config, stepper) as a:
            source = a.source("quotes", NOTHING)
            stepper.until(lambda: wild.topics == {"quotes"})
            source.send(b"x")
            stepper.until(lambda: len(events) == 2)
            source.close()
            stepper.until(lambda: isinstance(events[-1], EOS))
        stepper.run(9_000, 50)
        assert deleted == []
        stepper.run(6_000, 50)
        assert (created, deleted) == (["quotes"], ["quotes"])
        assert wild.topics == set()
        with opened(config, stepper) as a:
            a.source("quotes", NOTHING)
            stepper.until(lambda: created == ["quotes", "quotes"])


def test_closing_during_a_callback_is_safe(stepper: Stepper) -> None:
    config = private_config("lbtrm")
    with opened(config, stepper) as a, opened(config, stepper) as b:
        source = a.source("t", NOTHING)
        seen: list[Event] = []

        def on_event(event: Event) -> None:
            seen.append(event)
            if isinstance(event, Data):
                b.close_children()

        b.receiver("t", CallbackListener(on_event), NOTHING)
        b.wildcard("t", CallbackListener(seen.append), NOTHING)
        stepper.until(lambda: bool(b.delivery.sources_of(b"t")))
        for _ in range(20):
            source.send(b"x")
        stepper.run(100)
        assert sum(isinstance(event, Data) for event in seen) == 1
        assert b.core.joined.sessions() == []


def test_receivers_of_a_topic_in_one_context_share_their_options_or_are_refused(tcp_config: Config) -> None:
    """None gets silently what another one asked for."""
    with BlockingContext(tcp_config) as context:
        context.receiver("t")
        with pytest.raises(ConfigError) as caught:
            context.receiver("t", ordered_delivery=0)
        assert str(caught.value) == (
            "receiver ordered_delivery: another receiver of topic 't' in this context has the value 1; "
            "give both the same options, or open this one in another context"
        )
        context.receiver("t", ordered_delivery=1)
        context.receiver("u", ordered_delivery=0)
        context.receiver("u", ordered_delivery=0).close()


def test_a_receiver_takes_other_options_once_the_first_is_closed(tcp_config: Config) -> None:
    with BlockingContext(tcp_config) as context:
        context.receiver("t").close()
        context.receiver("t", ordered_delivery=-1)


def test_a_wildcard_receiver_that_differs_from_a_plain_one_is_warned_about(
    tcp_config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    with BlockingContext(tcp_config) as context:
        context.source("w.1")
        created = Flag()
        context.wildcard_receiver("^w", on_created=lambda _: created.set())
        assert created.wait(60)
        assert "differ" not in caplog.text
        context.receiver("w.1", ordered_delivery=0)
        assert "receivers of a topic differ: the options of the first one hold" in caplog.text
