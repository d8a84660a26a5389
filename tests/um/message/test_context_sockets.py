"""Contexts of the message level on real sockets and stepped time: blocked, silent and encrypted sessions."""

from __future__ import annotations

import pytest

from dro.errors import ResourceError
from dro.um.message.client_config import Config
from dro.um.message.context import MessageContext
from dro.um.message.events import BOS, EOS, Data, Event, SourceEvent, Wakeup
from dro.um.message.receiver import CallbackListener
from tests.fakes.um_contexts import Stepper, private_config
from tests.um.message.test_context import NOTHING, opened


def test_one_wakeup_answers_all_that_was_refused_before(stepper: Stepper) -> None:
    config = private_config("lbtrm", context__transport_lbtrm_data_rate_limit=1_000_000)
    told: list[SourceEvent] = []
    with opened(config, stepper) as a:
        source = a.source("t", NOTHING, told.append)
        for _ in range(2):
            while not source.writer.is_blocked:
                source.send(bytes(500))
            source.tell_wakeup()
            source.tell_wakeup()
            stepper.run(1000)
    assert told == [Wakeup(), Wakeup()]


def test_a_session_lost_in_silence_ends_and_is_found_again(stepper: Stepper) -> None:
    config = private_config("lbtrm", receiver__transport_lbtrm_activity_timeout=3000)
    events: list[Event] = []
    with opened(config, stepper) as b:
        b.receiver("t", CallbackListener(events.append), NOTHING)
        for _ in range(2):
            with opened(config, stepper) as a:
                source = a.source("t", NOTHING)
                stepper.until(lambda: bool(b.delivery.sources_of(b"t")))
                source.send(b"x")
                stepper.until(lambda: isinstance(events[-1], Data))
            stepper.until(lambda: isinstance(events[-1], EOS))
    assert [type(event) for event in events] == [BOS, Data, EOS] * 2


def test_what_could_not_be_delivered_yet_keeps_the_context_from_its_end(stepper: Stepper) -> None:
    config = private_config("tcp", source__transport_session_maximum_buffer=20_000)
    context = MessageContext(config, stepper.loop)
    reader = MessageContext(config, stepper.loop)
    source = context.source("t", NOTHING)
    reader.receiver("t", CallbackListener(None), NOTHING)
    stepper.until(lambda: bool(source.clients))
    while not source.writer.is_blocked:  # nobody turns the loop
        source.send(bytes(60_000))
    source.close()
    assert not context.has_ended
    stepper.run(100)
    assert context.has_ended
    for made in (context, reader):
        made.close_children()
        made.close()


def test_a_session_whose_certificate_is_missing_is_no_plain_one(tcp_config: Config, stepper: Stepper) -> None:
    with (
        opened(tcp_config.with_("context", "use_tls", 1), stepper) as context,
        pytest.raises(ResourceError, match="check tls_certificate"),
    ):
        context.source("t", NOTHING)
