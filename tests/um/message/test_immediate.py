"""Immediate messages and requests between contexts of one TRD: who gets them, by unicast, by multicast, by topic."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final, NamedTuple

import pytest

from dro.config.um.options import UmOptions
from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.proto.unicast.messages import NotTaken
from dro.um.message.client_config import Config
from dro.um.message.context import MessageContext
from dro.um.message.events import (
    BOS,
    FLAG_IMMEDIATE,
    FLAG_TOPICLESS,
    Data,
    Event,
    MessageBatch,
    RequestMsg,
    ResponseMsg,
    UsageError,
    WouldBlock,
)
from dro.um.message.immediate import MULTICAST_MAX_BYTES, log_failure
from dro.um.message.receiver import CallbackListener
from dro.um.message.requests import Response
from dro.wire.lbmc.return_address import decode_return
from tests.fakes.um_contexts import Stepper, private_config
from tests.fakes.worker import logged
from tests.um.message.test_context import NOTHING, opened
from tests.um.message.test_requests import closed_port

LARGE: Final = random.Random(7).randbytes(100_000)


def with_group(config: Config) -> Config:
    """Immediate messages on a group and port of these contexts alone."""
    net = config.options.get_str("context", "resolver_multicast_address").rpartition(".")[0]
    port = config.options.get_int("source", "transport_lbtrm_destination_port")
    return config.with_("context", "mim_address", f"{net}.250").with_("context", "mim_destination_port", port)


class Pair(NamedTuple):
    one: MessageContext
    two: MessageContext
    stepper: Stepper

    def send(self, way: str, data: bytes, topic: str | None = None) -> None:
        """From the first to the second, by unicast or by multicast."""
        if way == "uim":
            self.one.uim(self.two.request_target, data, topic, on_failed=log_failure("test"))
        else:
            self.one.mim(data, topic)

    def listen(self, topic: str) -> list[Event]:
        events: list[Event] = []
        self.two.receiver(topic, CallbackListener(events.append), NOTHING)
        return events


@pytest.fixture
def pair(stepper: Stepper) -> Iterator[Pair]:
    config = with_group(private_config("tcp"))
    with opened(config, stepper) as one, opened(config, stepper) as two:
        yield Pair(one, two, stepper)


both_ways = pytest.mark.parametrize("way", ["uim", "mim"])


@both_ways
def test_one_with_a_topic_comes_to_the_receivers_of_the_topic_alone(pair: Pair, way: str) -> None:
    first, second, other = pair.listen("quotes"), pair.listen("quotes"), pair.listen("other")
    by_pattern: list[Event] = []
    elsewhere: list[Data] = []
    pair.two.wildcard("quo", CallbackListener(by_pattern.append), NOTHING)
    pair.two.immediate.on_immediate = pair.two.immediate.on_immediate_topic = elsewhere.append
    pair.send(way, b"x", "quotes")
    pair.stepper.until(lambda: bool(second))
    [event] = first
    assert isinstance(event, Data)
    assert (event.topic, event.data, event.flags) == ("quotes", b"x", FLAG_IMMEDIATE)
    if way == "uim":
        assert event.source == pair.one.request_target
    else:
        assert event.source.startswith("LBTRM:127.0.0.1:")
        assert len(event.otid) == 32
    assert second == first
    assert other == by_pattern == elsewhere == []


@both_ways
def test_without_such_a_receiver_it_comes_to_all_whose_pattern_matches(pair: Pair, way: str) -> None:
    heard: dict[str, list[Event]] = {pattern: [] for pattern in ("^quo", "tes$", "^other")}
    for pattern, events in heard.items():
        pair.two.wildcard(pattern, CallbackListener(events.append), NOTHING)
    pair.send(way, b"x", "quotes")
    pair.stepper.until(lambda: bool(heard["tes$"]))
    assert heard["^quo"] == heard["tes$"]
    assert heard["^other"] == []


@both_ways
def test_a_topic_that_nobody_receives_and_none_at_all_have_callbacks(pair: Pair, way: str) -> None:
    with_topic: list[Data] = []
    without: list[Data] = []
    pair.two.immediate.on_immediate_topic = with_topic.append
    pair.two.immediate.on_immediate = without.append
    pair.send(way, b"a", "quotes")
    pair.send(way, b"b")
    pair.stepper.until(lambda: bool(without))
    assert [(event.topic, event.data, event.flags) for event in with_topic + without] == [
        ("quotes", b"a", FLAG_IMMEDIATE),
        ("", b"b", FLAG_IMMEDIATE | FLAG_TOPICLESS),
    ]


@both_ways
def test_a_callback_may_close_the_context(pair: Pair, way: str) -> None:
    """Nothing comes after that, and no timer is left."""
    taken: list[Data] = []

    def close(event: Data) -> None:
        taken.append(event)
        pair.two.close()

    pair.two.immediate.on_immediate = close
    pair.send(way, b"a")
    pair.send(way, b"b")
    pair.stepper.until(lambda: bool(taken))
    pair.stepper.run(500)
    assert [event.data for event in taken] == [b"a"]
    timer = pair.two.immediate._timer
    assert timer is None or not timer.is_pending


def test_what_waits_for_a_way_is_told_of_the_end(pair: Pair) -> None:
    told: list[str] = []
    pair.one.uim("TCP:77:127.0.0.1:1", b"x", None, on_failed=lambda why, _: told.append(why))
    pair.stepper.settle()
    assert told == []
    pair.one.close()
    assert told == ["the context is closed"]


def test_a_failure_may_end_others_that_wait_for_the_same_way(pair: Pair) -> None:
    told: list[str] = []
    first = pair.one.uim_request("TCP:77:127.0.0.1:1", b"1", print, lambda _: others[0].close())
    others = [pair.one.uim_request("TCP:77:127.0.0.1:1", b"2", print, lambda e: told.append(str(e)))]
    pair.stepper.run(4000)
    assert (first.is_open, others[0].is_open, told) == (False, False, [])


def test_what_nobody_takes_is_counted(pair: Pair) -> None:
    pair.send("uim", b"x", "quotes")
    pair.send("mim", b"x", "quotes")
    pair.stepper.until(lambda: pair.two.immediate.not_taken == 1)
    pair.stepper.until(lambda: pair.two.unicast.dropped[NotTaken.NOBODY] == 1)


@both_ways
def test_large_ones_come_whole(pair: Pair, way: str) -> None:
    events = pair.listen("quotes")
    pair.send(way, LARGE, "quotes")
    pair.stepper.until(lambda: bool(events))
    [event] = events
    assert isinstance(event, Data)
    assert event.data == LARGE


def test_multicast_messages_keep_their_order_and_a_new_session_begins_anew(stepper: Stepper) -> None:
    config = with_group(private_config("tcp", context__mim_src_deletion_timeout=1000))
    with opened(config, stepper) as one, opened(config, stepper) as two:
        got: list[Data] = []
        two.immediate.on_immediate = got.append
        for n in range(3):
            one.mim(b"%d" % n)
        stepper.until(lambda: len(got) == 3)
        stepper.run(30_000, 100)
        for n in range(3, 5):
            one.mim(b"%d" % n)
        stepper.until(lambda: len(got) == 5)
        assert [event.data for event in got] == [b"%d" % n for n in range(5)]
        assert [event.sqn for event in got] == [0, 1, 2, 0, 1]


def test_a_loss_of_multicast_messages_is_told(pair: Pair) -> None:
    told: list[tuple[str, int]] = []
    got: list[Data] = []
    pair.two.immediate.on_immediate = got.append
    pair.two.immediate.on_mim_loss = lambda source, sqn: told.append((source, sqn))
    pair.one.mim(b"0")
    assert pair.one.immediate._writer is not None
    pair.one.immediate._writer._next_sqn += 1  # one that never left
    pair.one.mim(b"2")
    pair.stepper.until(lambda: len(got) == 2)
    assert told == [(got[0].source, 1)]


def test_nothing_is_heard_without_a_group(stepper: Stepper) -> None:
    config = with_group(private_config("tcp"))
    deaf = config.with_("context", "mim_incoming_address", "0.0.0.0")
    with opened(config, stepper) as one, opened(deaf, stepper) as two, opened(config, stepper) as three:
        got: dict[MessageContext, list[Data]] = {two: [], three: []}
        for context, events in got.items():
            context.immediate.on_immediate = events.append
        one.mim(b"x")
        stepper.until(lambda: bool(got[three]))
        assert got[two] == []


def test_more_than_may_wait_is_refused_and_nothing_of_it_is_sent(stepper: Stepper) -> None:
    config = with_group(private_config("tcp", context__transport_lbtrm_data_rate_limit=1_000_000))
    with opened(config, stepper) as one, opened(config, stepper) as two:
        got: list[Data] = []
        two.immediate.on_immediate = got.append
        taken = 0

        def fill() -> None:
            nonlocal taken
            while taken < 1000:
                one.mim(LARGE)
                taken += 1

        with pytest.raises(WouldBlock, match="rate limit"):
            fill()
        assert 5 < taken < 15
        stepper.until(lambda: len(got) == taken)
        one.mim(b"room again")
        stepper.until(lambda: got[-1].data == b"room again")
        with pytest.raises(UsageError, match="at most 1000000 can be sent"):
            one.mim(bytes(1_000_001))


@both_ways
def test_a_topic_that_a_message_cannot_carry_is_refused(pair: Pair, way: str) -> None:
    with pytest.raises(UsageError, match="at most 251"):
        pair.send(way, b"x", "t" * 252)
    with pytest.raises(UsageError, match="has 0 bytes"):
        pair.send(way, b"x", "")


# requests


def answer(event: object) -> None:
    assert isinstance(event, RequestMsg)
    event.response.send(event.data.upper())
    event.response.send(b"again")


def ask(pair: Pair, way: str, topic: str | None) -> list[ResponseMsg]:
    told: list[ResponseMsg] = []
    if way == "uim":
        pair.one.uim_request(pair.two.request_target, b"ask", told.append, topic=topic)
    else:
        pair.one.mim_request(b"ask", told.append, topic)
    return told


@both_ways
@pytest.mark.parametrize("topic", ["quotes", None])
def test_requests_are_answered_from_within_a_callback(pair: Pair, way: str, topic: str | None) -> None:
    pair.two.receiver("quotes", CallbackListener(answer), NOTHING)
    pair.two.immediate.on_immediate = answer
    told = ask(pair, way, topic)
    pair.stepper.until(lambda: len(told) == 2)
    assert told == [ResponseMsg(data, pair.two.request_target) for data in (b"ASK", b"again")]


@pytest.mark.parametrize("data", [b"ask", LARGE], ids=["small", "large"])
def test_a_request_on_a_topic_is_answered_by_every_receiver(stepper: Stepper, data: bytes) -> None:
    config = private_config("tcp")
    with opened(config, stepper) as one, opened(config, stepper) as two, opened(config, stepper) as three:
        asked: list[Event] = []
        told: list[ResponseMsg] = []
        source = one.source("quotes", NOTHING)

        def on_event(event: Event, name: bytes) -> None:
            asked.append(event)
            if isinstance(event, RequestMsg):
                event.response.send(name + event.data)

        for context, name in ((two, b"two"), (three, b"three")):
            context.receiver("quotes", CallbackListener(lambda event, name=name: on_event(event, name)), NOTHING)  # type: ignore[misc]
        stepper.until(lambda: len(source.clients) == 2)
        source.send(b"plain")
        request = source.request(data, told.append)
        stepper.until(lambda: len(told) == 2)
        assert sorted(response.data for response in told) == sorted((b"two" + data, b"three" + data))
        kinds = [type(event) for event in asked if not isinstance(event, BOS)]
        assert sorted(kinds, key=str) == [Data, Data, RequestMsg, RequestMsg]
        requests = [event for event in asked if isinstance(event, RequestMsg)]
        assert requests[0].topic == "quotes"
        assert (requests[0].flags, requests[0].source) == (0, source.source_string)
        request.close()
        requests[0].response.send(b"late")
        stepper.until(lambda: one.unicast.dropped[NotTaken.NOBODY] == 1)
        assert len(told) == 2


def test_a_receiver_of_batches_has_requests_one_by_one(pair: Pair) -> None:
    events: list[Event] = []
    batches: list[MessageBatch] = []
    pair.two.receiver("quotes", CallbackListener(events.append, batches.append), NOTHING)
    pair.send("uim", b"x", "quotes")
    ask(pair, "uim", "quotes")
    pair.stepper.until(lambda: bool(events))
    assert [batch.payloads for batch in batches] == [[b"x"]]
    assert [type(event) for event in events] == [RequestMsg]


def test_another_program_can_respond_with_the_bytes_of_a_response(pair: Pair) -> None:
    kept: list[bytes] = []

    def keep(event: Data) -> None:
        assert isinstance(event, RequestMsg)
        kept.append(event.response.serialize())

    pair.two.immediate.on_immediate = keep
    told = ask(pair, "uim", None)
    pair.stepper.until(lambda: bool(kept))
    Response(pair.two.requests, decode_return(kept[0])).send(b"from elsewhere")
    pair.stepper.until(lambda: bool(told))
    assert told[0].data == b"from elsewhere"


# targets


def test_a_source_string_names_the_context_that_has_the_source(pair: Pair) -> None:
    source = pair.two.source("quotes", NOTHING)
    got: list[Data] = []
    pair.two.immediate.on_immediate = got.append
    with pytest.raises(ResourceError, match="no receiver here has that source"):
        pair.one.uim(f"SOURCE:{source.source_string}", b"x", on_failed=log_failure(""))
    receiver = pair.one.receiver("quotes", CallbackListener(None), NOTHING)
    pair.stepper.until(lambda: receiver.sources == [source.source_string])
    pair.one.uim(f"SOURCE:{receiver.sources[0]}", b"x", on_failed=log_failure(""))
    pair.stepper.until(lambda: bool(got))


def test_a_source_whose_context_has_no_request_port_is_named(stepper: Stepper) -> None:
    config = private_config("tcp")
    with (
        opened(config, stepper) as one,
        opened(config.with_("context", "request_tcp_bind_request_port", 0), stepper) as two,
    ):
        two.source("quotes", NOTHING)
        receiver = one.receiver("quotes", CallbackListener(None), NOTHING)
        stepper.until(lambda: bool(receiver.sources))
        with pytest.raises(ResourceError, match="its context has no request port"):
            one.uim(f"SOURCE:{receiver.sources[0]}", b"x", on_failed=log_failure(""))


def test_who_is_gone_is_told(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []
    target = f"TCP:127.0.0.1:{closed_port()}"
    pair.one.uim(target, b"x", on_failed=lambda why, _: told.append(why))
    pair.stepper.until(lambda: bool(told))
    assert told[0].startswith("the connection was refused")
    pair.one.uim(target, b"x", on_failed=log_failure(target))
    found: list[object] = []

    def is_logged() -> bool:
        found.extend(fields["target"] for _, event, fields in logged(caplog) if event == LogEvent.IMMEDIATE_NOT_SENT)
        return bool(found)

    pair.stepper.until(is_logged)
    assert found == [target]


def test_a_closed_context_sends_nothing(stepper: Stepper) -> None:
    with opened(with_group(private_config("tcp")), stepper) as one:
        target = one.request_target
    with pytest.raises(UsageError, match="closed"):
        one.mim(b"x")
    with pytest.raises(UsageError, match="closed"):
        one.uim(target, b"x", on_failed=log_failure(""))


def test_options_say_whether_a_context_can_ask(stepper: Stepper) -> None:
    deaf = with_group(private_config("tcp", context__request_tcp_bind_request_port=0))
    with opened(deaf, stepper) as one:
        source = one.source("quotes", UmOptions())
        with pytest.raises(ResourceError, match="no request port"):
            one.mim_request(b"x", print)
        with pytest.raises(ResourceError, match="no request port"):
            source.request(b"x", print)


def test_the_largest_message_to_all_arrives_in_its_pieces(stepper: Stepper) -> None:
    """Send a million bytes; its headers have room beside them."""
    config = with_group(private_config("tcp", context__transport_lbtrm_data_rate_limit=8_000_000))
    a, b = MessageContext(config, stepper.loop), MessageContext(config, stepper.loop)
    got: list[bytes] = []
    b.immediate.on_immediate = lambda message: got.append(message.data)
    a.mim(b"hello")
    stepper.until(lambda: bool(got))
    a.mim(bytes(MULTICAST_MAX_BYTES))
    stepper.until(lambda: len(got) == 2, step_ms=50)
    assert got[1] == bytes(MULTICAST_MAX_BYTES)
    small = config.with_("context", "transport_lbtrm_datagram_max_size", 500)
    c = MessageContext(small, stepper.loop)
    with pytest.raises(UsageError, match=r"of 1000000 bytes takes \d+ in \d+ pieces, at most 1100000 can wait"):
        c.mim(bytes(MULTICAST_MAX_BYTES))
    for context in (a, b, c):
        context.close()
