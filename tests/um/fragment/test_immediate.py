"""Multicast immediate messages of contexts: sessions that open and close by themselves, what waits, what is bounded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dro.proto.unicast.connections import Outcome
from dro.transport.lbtrm import immediate
from dro.um.fragment.context import FragmentContext
from dro.um.message.client_config import Config
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.codes import MessageType
from dro.wire.lbmc.data_blocks import ODomain
from tests.fakes.um_contexts import RecordingSink, Stepper, private_config


@pytest.fixture
def config() -> Config:
    made = private_config("lbtrm")
    group = made.options.get_str("context", "resolver_multicast_address").rpartition(".")[0]
    port = made.options.get_int("context", "resolver_multicast_port")
    return made.with_("context", "mim_address", f"{group}.250").with_("context", "mim_destination_port", port + 3)


class Pair:
    """Two contexts of one TRD, and what the second hears."""

    def __init__(self, stepper: Stepper, config: Config) -> None:
        self.stepper = stepper
        self.one = FragmentContext(config.options, stepper.loop, sink=RecordingSink())
        self.two = FragmentContext(config.options, stepper.loop, sink=RecordingSink())
        self.heard: list[bytes] = []
        self.own: list[bytes] = []
        self.outcomes: list[Outcome] = []
        self.two.immediate.listen(lambda message, _: self.heard.append(lbmc.decode(message).payload))
        self.one.immediate.listen(lambda message, _: self.own.append(message))

    def send(self, payload: bytes, sqn: int = 0) -> None:
        message = lbmc.encode(lbmc.Message(MessageType.MESSAGE, 0, sqn, (ODomain(1),), payload))
        self.one.immediate.send(message, self.outcomes.append)

    def close(self) -> None:
        self.one.close()
        self.two.close()


@pytest.fixture
def pair(stepper: Stepper, config: Config) -> Iterator[Pair]:
    made = Pair(stepper, config)
    yield made
    made.close()


def test_messages_come_in_order_and_not_to_their_sender(pair: Pair) -> None:
    for number in range(20):
        pair.send(b"%d" % number, number)
    pair.stepper.until(lambda: len(pair.heard) == 20)
    assert pair.heard == [b"%d" % number for number in range(20)]
    assert pair.own == []
    assert pair.outcomes == [Outcome.SENT] * 20


def test_without_a_group_nothing_is_heard(stepper: Stepper, config: Config) -> None:
    made = Pair(stepper, config.with_("context", "mim_incoming_address", "0.0.0.0"))
    made.send(b"x")
    stepper.run(200)
    assert (made.heard, made.outcomes) == ([], [Outcome.SENT])
    made.close()


def test_a_session_ends_when_nothing_is_sent_and_another_begins(stepper: Stepper, config: Config) -> None:
    made = Pair(stepper, config.with_("context", "mim_src_deletion_timeout", 500))
    made.send(b"a")
    first = made.one.immediate.session().address
    stepper.run(400)
    made.send(b"b", 1)
    assert made.one.immediate.session().address == first
    stepper.run(700)
    made.send(b"c")
    assert made.one.immediate.session().address != first
    stepper.until(lambda: made.heard == [b"a", b"b", b"c"])
    made.close()


def test_what_the_rate_limit_holds_back_waits_up_to_a_bound(stepper: Stepper, config: Config) -> None:
    slow = config.with_("context", "transport_lbtrm_data_rate_limit", 800_000)
    made = Pair(stepper, slow.with_("context", "transport_lbtrm_rate_interval", 10))
    made.one.immediate.queue_max_bytes = 5000
    for number in range(20):
        made.send(b"%d" % number + bytes(900), number)
    assert made.outcomes.count(Outcome.FULL) > 5
    stepper.until(lambda: len(made.outcomes) == 20)
    sent = made.outcomes.count(Outcome.SENT)
    assert sent >= 5
    stepper.until(lambda: len(made.heard) == sent)
    assert [int(payload.rstrip(b"\0")) for payload in made.heard] == list(range(sent))
    made.close()


def test_what_waits_at_the_end_has_failed(stepper: Stepper, config: Config) -> None:
    made = Pair(stepper, config.with_("context", "transport_lbtrm_data_rate_limit", 80_000))
    for number in range(20):
        made.send(bytes(900), number)
    made.close()
    assert len(made.outcomes) == 20
    assert made.outcomes.count(Outcome.FAILED) > 10


def test_a_message_that_no_datagram_takes_is_refused(pair: Pair) -> None:
    pair.send(bytes(9000))
    assert pair.outcomes == [Outcome.TOO_LARGE]


def test_without_a_port_for_repairs_nothing_is_sent(
    stepper: Stepper, config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    port = config.options.get_int("context", "transport_lbtrm_source_port_low")
    narrow = config.with_("context", "transport_lbtrm_source_port_high", port)
    made = Pair(stepper, narrow)
    source = made.one.open_source(b"t")
    made.send(b"x")
    assert made.outcomes == [Outcome.FAILED]
    assert "no session for immediate messages" in caplog.text
    source.close(final=False, linger_ns=0)
    made.send(b"x")
    assert made.outcomes == [Outcome.FAILED, Outcome.SENT]
    made.close()


def test_senders_that_are_silent_are_forgotten_and_too_many_are_not_heard(
    stepper: Stepper, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(immediate, "SESSIONS_MAX", 2)
    made = Pair(stepper, config.with_("context", "mim_activity_timeout", 2000))
    others = [FragmentContext(config.options, stepper.loop, sink=RecordingSink()) for _ in range(2)]
    message = lbmc.encode(lbmc.Message(MessageType.MESSAGE, 0, 0, (ODomain(1),), b"x"))
    for context in (made.one, *others):
        context.immediate.send(message, lambda _: None)
        stepper.run(20)
    assert made.heard == [b"x", b"x"]
    receiver = made.two.immediate._receiver
    assert isinstance(receiver, immediate.ImmediateReceiver)
    assert len(receiver) == 2
    for context in (made.one, *others):
        context.immediate.close()
        context.pools.close()
    stepper.until(lambda: len(receiver) == 0, limit_ms=10_000, step_ms=100)
    for context in others:
        context.close()
    made.close()
