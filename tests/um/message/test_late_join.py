"""Late join and off-transport recovery between contexts of one TRD, on real sockets and stepped time."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from weakref import ref

import pytest

from dro.config.um.options import UmOptions
from dro.log.events import LogEvent
from dro.proto.stream.recovery import RecoveryPhase
from dro.proto.unicast.messages import Retransmission
from dro.transport.runs import RunTable
from dro.transport.session import ReceiverTransport
from dro.um.message.client_config import Config, object_options
from dro.um.message.context import MessageContext
from dro.um.message.events import FLAG_OTR, FLAG_RETRANSMIT, Data, Event, Loss, LossBurst
from dro.um.message.receiver import CallbackListener
from dro.um.message.unicast import ASKED_MAX_BYTES, QUEUED_MAX_BYTES
from dro.wire.lbmc.data_blocks import LjiReq, UmeRxReq
from dro.wire.lbmc.headers import ContextAddress
from dro.wire.lbmr.options import Functionality, LateJoin
from tests.fakes.um_contexts import Stepper, private_config
from tests.rigs.freed import collector_off
from tests.um.message.test_context import NOTHING, opened

TRANSPORTS = pytest.mark.parametrize("transport", ["tcp", "lbtrm"])
NOBODY = ContextAddress(0, 0x7F000001, 1)


class Party:
    """Contexts of one TRD."""

    def __init__(self, stepper: Stepper, stack: ExitStack) -> None:
        self.stepper, self._stack = stepper, stack
        self._configs: dict[str, Config] = {}

    def context(self, transport: str = "tcp", **more: str | int) -> MessageContext:
        config = self._configs.setdefault(transport, private_config(transport))
        for key, value in more.items():
            scope, _, name = key.partition("__")
            config = config.with_(scope, name, value)
        return self._stack.enter_context(opened(config, self.stepper))

    def until(self, count: int, events: list[Event]) -> list[Data]:
        self.stepper.until(lambda: len(data_of(events)) >= count)
        return data_of(events)


@pytest.fixture
def party(stepper: Stepper) -> Iterator[Party]:
    with ExitStack() as stack:
        yield Party(stepper, stack)


def retaining(size: int = 1 << 24) -> UmOptions:
    return object_options("source", {"late_join": 1, "retransmit_retention_size_threshold": size})


def listen(context: MessageContext, **options: int) -> list[Event]:
    events: list[Event] = []
    context.receiver("t", CallbackListener(events.append), object_options("receiver", dict(options)))
    return events


def data_of(events: Sequence[Event]) -> list[Data]:
    return [event for event in events if isinstance(event, Data)]


def losses(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, Loss | LossBurst)]


def lose(context: MessageContext, *numbers: int) -> None:
    """Let a context not hear those of its next runs."""
    hear, left = context.delivery._on_runs, [*numbers]
    seen = 0

    def partly(transport: ReceiverTransport, view: memoryview, runs: RunTable, now_ns: int) -> None:
        nonlocal seen
        kept = []
        for run in runs:
            for nth in range(run.fragments):
                if seen not in left:
                    at = run.offset + nth * run.stride
                    kept.append(run._replace(first_sqn=run.first_sqn + nth, offset=at, fragments=1))
                seen += 1
        hear(transport, view, kept, now_ns)

    context.delivery._on_runs = partly  # type: ignore[method-assign,assignment]


@TRANSPORTS
@pytest.mark.parametrize("order", [1, -1])
def test_a_late_receiver_gets_messages_of_all_sizes(party: Party, transport: str, order: int) -> None:
    rng = random.Random(5)
    sent = [rng.randbytes(rng.choice([0, 1, 100, 9_000, 200_000])) for _ in range(60)]
    source = party.context(transport).source("t", retaining())
    for data in sent[:50]:
        source.send(data)
        party.stepper.run(10)
    events = listen(party.context(transport), ordered_delivery=order)
    party.until(50, events)
    for data in sent[50:]:
        source.send(data)
        party.stepper.run(20)
    got = party.until(60, events)
    assert [event.data for event in got] == sent
    assert [event.flags for event in got] == [FLAG_RETRANSMIT] * 50 + [0] * 10
    assert not losses(events)


def test_a_receiver_that_does_not_want_it_gets_what_is_live(party: Party) -> None:
    source = party.context().source("t", retaining())
    source.send(b"early")
    without = listen(party.context(), use_late_join=0)
    with_it = listen(party.context())
    party.until(1, with_it)
    party.stepper.until(lambda: len(source.clients) == 2)
    source.send(b"live")
    assert [event.data for event in party.until(2, with_it)] == [b"early", b"live"]
    assert [event.data for event in party.until(1, without)] == [b"live"]


def test_by_default_a_source_keeps_one_message(party: Party) -> None:
    source = party.context().source("t", object_options("source", {"late_join": 1}))
    for number in range(5):
        source.send(b"%d" % number)
    events = listen(party.context())
    assert [event.data for event in party.until(1, events)] == [b"4"]


def test_a_wildcard_receiver_joins_late_too(party: Party) -> None:
    source = party.context().source("t", retaining())
    for number in range(20):
        source.send(b"%d" % number)
    events: list[Event] = []
    party.context().wildcard("^t", CallbackListener(events.append), NOTHING)
    assert [event.data for event in party.until(20, events)] == [b"%d" % number for number in range(20)]


@TRANSPORTS
def test_a_source_that_has_sent_nothing_says_so_on_its_session(party: Party, transport: str) -> None:
    source = party.context(transport).source("t", retaining())
    receiver = party.context(transport)
    events = listen(receiver)
    party.stepper.until(lambda: bool(receiver.delivery._streams.of_topic(b"t")))
    (stream,) = receiver.delivery._streams.of_topic(b"t")
    party.stepper.until(lambda: stream.recovery.phase is RecoveryPhase.LIVE)
    assert stream.controller.expected == 0
    source.send(b"first")
    (first,) = party.until(1, events)
    assert (first.data, first.flags) == (b"first", 0)


def test_a_source_without_a_request_port_offers_nothing(party: Party, caplog: pytest.LogCaptureFixture) -> None:
    sender = party.context(context__request_tcp_bind_request_port=0)
    source = sender.source("t", retaining())
    source.send(b"early")
    assert [record.msg for record in caplog.records if record.msg == LogEvent.LATE_JOIN_WITHOUT_PORT]
    events = listen(party.context())
    party.stepper.until(lambda: bool(source.clients))
    source.send(b"live")
    assert [event.data for event in party.until(1, events)] == [b"live"]


def test_what_is_offered_is_advertised(party: Party) -> None:
    sender, receiver = party.context(), party.context()
    source = sender.source("t", retaining())
    listen(receiver)
    party.stepper.until(lambda: bool(receiver.core.bound_sources))
    (bound,) = receiver.core.bound_sources
    options = bound.tir.options
    assert options is not None
    extended, offered = options.extended, options.first(LateJoin)
    assert extended is not None
    assert offered is not None
    assert extended.flags == Functionality.LATE_JOIN
    assert (offered.ip, offered.port) == (extended.ip, extended.port) == sender.core.request_address
    assert offered.transport_index == source.fragments.transport.transport_index


def test_the_next_life_of_a_source_is_another_stream(party: Party) -> None:
    sender, receiver = party.context(), party.context()
    events = listen(receiver)
    for life in (b"one ", b"two "):
        source = sender.source("t", retaining())
        for number in range(10):
            source.send(life + b"%d" % number)
        party.until(10 if life == b"one " else 20, events)
        source.close()
        party.stepper.run(200)
    got = data_of(events)
    assert [event.data for event in got] == [life + b"%d" % n for life in (b"one ", b"two ") for n in range(10)]
    assert len({event.otid for event in got}) == 2


@TRANSPORTS
def test_otr_brings_what_was_lost(party: Party, transport: str, caplog: pytest.LogCaptureFixture) -> None:
    source = party.context(transport).source("t", retaining())
    receiver = party.context(transport)
    events = listen(receiver, use_otr=1, use_late_join=0)
    party.stepper.until(lambda: bool(receiver.core.bound_sources))
    party.stepper.until(lambda: bool(source.clients) or transport == "lbtrm")
    lose(receiver, 3, 4, 11, 40)
    for number in range(100):
        source.send(b"%d" % number)
        party.stepper.run(10)
    got = party.until(100, events)
    assert [int(event.data) for event in got] == list(range(100))
    assert [int(event.data) for event in got if event.flags] == [3, 4, 11, 40]
    assert {event.flags for event in got if event.flags} == {FLAG_OTR}
    assert not losses(events)
    assert len([record for record in caplog.records if record.msg == LogEvent.OTR_STARTED]) == 1, "others cool down"


@pytest.mark.parametrize(("use", "is_brought"), [(0, False), (1, True), (2, False)])
def test_otr_of_all_sources_has_to_be_switched_on(party: Party, use: int, is_brought: bool) -> None:
    source = party.context().source("t", retaining())
    receiver = party.context()
    events = listen(receiver, use_otr=use)
    party.stepper.until(lambda: bool(source.clients))
    source.send(b"0")
    party.until(1, events)
    lose(receiver, 0)
    for number in range(1, 4):
        source.send(b"%d" % number)
    party.until(4 if is_brought else 3, events)
    assert [int(event.data) for event in data_of(events)] == ([0, 1, 2, 3] if is_brought else [0, 2, 3])
    assert bool(losses(events)) is not is_brought


def test_what_otr_cannot_bring_is_a_loss(party: Party) -> None:
    source = party.context().source("t", object_options("source", {"late_join": 1}))
    receiver = party.context()
    events = listen(receiver, use_otr=1, otr_request_message_timeout=5000)
    party.stepper.until(lambda: bool(source.clients))
    source.send(b"0")
    party.until(1, events)
    lose(receiver, 0)
    source.send(b"1")
    source.send(b"2")
    party.stepper.run(6_900)
    assert [event.data for event in data_of(events)] == [b"0"]
    party.stepper.run(300)
    assert [event.data for event in data_of(events)] == [b"0", b"2"]
    assert [type(event) for event in losses(events)] == [Loss]


# strangers


def ask(context: MessageContext, *blocks: LjiReq | UmeRxReq, to: ContextAddress) -> None:
    for block in blocks:
        context.unicast.send_control(to, block)


def test_requests_for_what_is_not_there_are_counted_and_not_answered(party: Party) -> None:
    sender, stranger = party.context(), party.context()
    source = sender.source("t", retaining())
    source.send(b"x")
    to, own = sender.unicast.own_address, stranger.unicast.own_address
    transport, topic = source.fragments.transport.transport_index, source.fragments.topic_index
    taken: list[Retransmission] = []

    def take(again: Retransmission) -> bool:
        taken.append(again)
        return True

    stranger.unicast.on_retransmission = take
    ask(
        stranger,
        LjiReq(1, transport ^ 1, topic, own.ip, own.port),
        UmeRxReq(1, transport, topic ^ 1, 0, own.ip, own.port),
        UmeRxReq(1, transport, topic, 9, own.ip, own.port),
        UmeRxReq(7, transport, topic, 0, own.ip, own.port),
        to=to,
    )
    party.stepper.until(lambda: bool(taken))
    assert sender.late_join.not_retained == 3
    assert [(again.request_index, again.message.payload) for again in taken] == [(7, b"x")]


def test_a_flood_of_requests_keeps_no_more_than_a_bounded_amount(party: Party) -> None:
    sender, stranger = party.context(), party.context()
    source = sender.source("t", retaining())
    source.send(bytes(60_000))
    own = stranger.unicast.own_address
    wanted = UmeRxReq(
        1, source.fragments.transport.transport_index, source.fragments.topic_index, 0, NOBODY.ip, own.port
    )
    stranger.core.unicast._port.close()  # type: ignore[union-attr]  # it takes nothing, and does not say so
    message = sender.unicast._reader.read(stranger.unicast._writer.control((wanted,), NOBODY, own), (1, 2))
    for _ in range(4 * QUEUED_MAX_BYTES // 60_000):
        sender.late_join._on_request(wanted, message)  # type: ignore[arg-type]
    assert 0 < sender.unicast._queued_bytes <= ASKED_MAX_BYTES, "one that asks has its share, no more"
    assert sender.late_join.not_sent > 0
    for number in range(1, 3 * QUEUED_MAX_BYTES // ASKED_MAX_BYTES):
        other = replace(wanted, ip=0x7F010000 + number)
        message = sender.unicast._reader.read(stranger.unicast._writer.control((other,), NOBODY, own), (1, 2))
        for _ in range(2 * ASKED_MAX_BYTES // 60_000):
            sender.late_join._on_request(other, message)  # type: ignore[arg-type]
    assert QUEUED_MAX_BYTES // 4 < sender.unicast._queued_bytes <= QUEUED_MAX_BYTES // 2, "all of them have half"
    party.stepper.run(20_000, 100)
    assert sender.unicast._queued_bytes == 0
    assert not sender.unicast._asked_bytes


def test_asked_for_again_and_again_a_source_tells_its_sqn_ten_times_a_second(party: Party) -> None:
    sender = party.context("lbtrm")
    source = sender.source("t", retaining())
    for _ in range(100):
        for _ in range(20):
            sender.late_join._send_tsni(source)
        party.stepper.run(10)
    assert 9 <= sender.core.pools.senders()[0].statistics().counters.msgs_sent <= 11


def test_answers_to_nobody_are_not_taken(party: Party) -> None:
    sender, stranger = party.context(), party.context()
    source = sender.source("t", retaining())
    source.send(b"x")
    receiver = party.context()
    events = listen(receiver)
    party.until(1, events)
    (index,) = receiver.late_join._askers
    again = source.retention
    assert again is not None
    for number in (index, index ^ 1):
        stranger.unicast.send_again(receiver.unicast.own_address, again.find(0) or b"", number)
    party.stepper.until(lambda: sum(receiver.unicast.dropped.values()) == 2)
    assert len(data_of(events)) == 1


def test_what_has_ended_is_freed(party: Party) -> None:
    sender, receiver = party.context(), party.context()
    source = sender.source("t", retaining())
    source.send(b"x")
    with collector_off():
        events: list[Event] = []
        opened_receiver = receiver.receiver("t", CallbackListener(events.append), NOTHING)
        party.until(1, events)
        (stream,) = receiver.delivery._streams.of_topic(b"t")
        held, kept = ref(stream.recovery), ref(source.retention)
        del stream
        opened_receiver.close()
        source.close()
        del source
        party.stepper.run(200)
        assert not receiver.late_join._askers
        assert not receiver.late_join._indexes
        assert not sender.late_join._sources
        assert held() is None
        assert kept() is None
