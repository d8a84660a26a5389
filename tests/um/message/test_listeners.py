"""Who listens to which topic, and with which options."""

from __future__ import annotations

import pytest

from dro.config.um.options import UmOptions
from dro.errors import ConfigError
from dro.log.events import LogEvent
from dro.um.message.events import UsageError
from dro.um.message.listeners import ListenersByTopic, topic_bytes, topic_text
from dro.um.message.receiver import CallbackListener


@pytest.fixture
def listeners() -> ListenersByTopic:
    return ListenersByTopic(UmOptions())


def someone() -> CallbackListener:
    return CallbackListener(None)


def of(**receiver: int) -> UmOptions:
    options = UmOptions()
    for name, value in receiver.items():
        options = options.with_("receiver", name, value)
    return options


def test_topics_are_text_and_bytes() -> None:
    assert topic_text(topic_bytes("näme")) == "näme"
    assert topic_bytes(topic_text(b"\xff\xfe")) == b"\xff\xfe"
    for bad in ("", "x" * 256):
        with pytest.raises(UsageError):
            topic_bytes(bad)


def test_plain_receivers_with_other_options_are_refused_by_name(listeners: ListenersByTopic) -> None:
    topic = b"t" * 90
    listeners.add(topic, someone(), of(ordered_delivery=0))
    with pytest.raises(ConfigError) as caught:
        listeners.add(topic, someone(), of(ordered_delivery=1, delivery_control_loss_check_interval=500))
    assert str(caught.value) == (
        f"receiver delivery_control_loss_check_interval: another receiver of topic {'t' * 80!r} in this context has "
        "the value 0; give both the same options, or open this one in another context"
    )
    for same in (of(ordered_delivery=0), of(ordered_delivery=0, hf_duplicate_delivery=1)):
        listeners.add(topic, someone(), same)  # an option without effect makes no difference
    listeners.add(topic, someone(), of(ordered_delivery=0).with_("source", "transport", "lbtrm"))


def test_wildcard_receivers_that_differ_are_warned_about_once_for_each_option(
    listeners: ListenersByTopic, caplog: pytest.LogCaptureFixture
) -> None:
    for topic in (b"t", b"u"):
        listeners.add(topic, someone(), of(ordered_delivery=0), by_pattern=True)
        for _ in range(2):
            listeners.add(topic, someone(), of(ordered_delivery=1), by_pattern=True)
    told = [(r.msg, vars(r)["topic"], vars(r)["option"], vars(r)["value"]) for r in caplog.records]
    assert told == [(LogEvent.RECEIVERS_DIFFER, "t", "receiver ordered_delivery", 0)]
    listeners.add(b"v", someone(), of(delivery_control_loss_check_interval=1))
    listeners.add(b"v", someone(), of(delivery_control_loss_check_interval=2), by_pattern=True)
    listeners.add(b"u", someone(), of(ordered_delivery=1))  # nobody opened another one for this topic
    assert len(caplog.records) == 2


def test_the_next_first_receiver_chooses_the_options_anew(listeners: ListenersByTopic) -> None:
    ear = someone()
    listeners.add(b"t", ear, of(ordered_delivery=0))
    listeners.add(b"t", ear, of(ordered_delivery=0), by_pattern=True)
    listeners.remove(b"t", ear)
    listeners.remove(b"t", ear)
    listeners.remove(b"t", ear, by_pattern=True)
    listeners.add(b"t", someone(), of(ordered_delivery=1))
    with pytest.raises(ConfigError):
        listeners.add(b"t", someone(), of(ordered_delivery=0))


@pytest.mark.parametrize("size", [1, 255])
def test_a_name_may_have_up_to_255_bytes(size: int) -> None:
    assert topic_bytes("x" * size) == b"x" * size
    with pytest.raises(UsageError, match=rf"'{'x' * 80}' has 256 bytes; a topic or pattern has 1 to 255"):
        topic_bytes("x" * 256)
