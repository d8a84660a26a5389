"""From fragments to events, without sockets: order, loss, sessions that change, listeners that come and go."""

from __future__ import annotations

from typing import Any

import pytest

from dro.config.um.options import UmOptions
from dro.errors import ConfigError
from dro.log.events import LogEvent
from dro.proto.context.sources import BoundSource
from dro.transport.runs import KIND_DATA, Run, RunTable, read_messages
from dro.um.message.delivery import Delivery, DeliveryStream, topic_bytes, topic_text
from dro.um.message.events import (
    BOS,
    EOS,
    FLAG_END_BATCH,
    FLAG_RETRANSMIT,
    FLAG_START_BATCH,
    Data,
    Event,
    Loss,
    LossBurst,
    MessageBatch,
    NoSource,
    UsageError,
)
from dro.um.message.receiver import CallbackListener
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.block import Block, RawBlock
from dro.wire.lbmc.codes import MessageType
from dro.wire.lbmc.data_blocks import BATCH_END, BATCH_START, Batch, Frag
from dro.wire.lbmr.packet import Cost, Tir
from dro.wire.source_string import LbtrmAddress, TcpAddress, TransportAddress, format_source
from tests.builders.lbmc_messages import data_message
from tests.builders.tir_options import tir_options
from tests.fakes.runs import table_of
from tests.fakes.transport import FakeTransport
from tests.fakes.um_contexts import Stepper

OTID = bytes(range(32))
GENERATION_NS = 10_000_000_000


class Ear:
    """A listener that keeps everything."""

    def __init__(self, *, wants_batches: bool = False) -> None:
        self.events: list[Event] = []
        self.batches: list[MessageBatch] = []
        self.sources: list[tuple[str, bool]] = []
        self._wants_batches = wants_batches

    @property
    def wants_batches(self) -> bool:
        return self._wants_batches

    def on_events(self, events: list[Event]) -> None:
        self.events += events

    def on_batch(self, batch: MessageBatch) -> None:
        self.batches.append(batch)

    def on_source(self, topic: str, source: str, *, added: bool) -> None:
        self.sources.append((source, added))

    def close(self) -> None: ...

    @property
    def data(self) -> list[bytes]:
        return [event.data for event in self.events if isinstance(event, Data)]

    def take(self) -> list[Event]:
        events, self.events = self.events, []
        return events


def lbtrm(session: int) -> LbtrmAddress:
    return LbtrmAddress(0x0A000001, 0xE00A0A0A, session, 14400, 14390)


class Scene:
    """A delivery layer with sessions on which messages are put by hand."""

    def __init__(self, stepper: Stepper, options: UmOptions | None = None) -> None:
        self.stepper = stepper
        self.options = options or UmOptions()
        self.delivery = Delivery(stepper.loop, self.options)
        self.left: list[TransportAddress] = []

    @property
    def now_ns(self) -> int:
        return self.stepper.loop.now_ns()

    def listen(self, ear: Ear, topic: bytes = b"t", *, by_pattern: bool = False) -> None:
        self.delivery.add(topic, ear, self.options, by_pattern=by_pattern)

    def bind(
        self,
        address: TransportAddress,
        topic_index: int = 1,
        topic: bytes = b"t",
        otid: bytes = OTID,
        cost: Cost | None = None,
    ) -> BoundSource:
        generation = 0 if isinstance(address, TcpAddress) else GENERATION_NS
        transport = FakeTransport(address, generation)
        transport.is_in_order = isinstance(address, TcpAddress)
        tir = Tir(topic, address, 60, topic_index, tir_options(otid=otid, cost=cost))
        source = BoundSource(topic, otid, topic_index, transport, tir, False)
        transport.sources[topic_index] = source
        self.delivery.on_bound(source, self.now_ns)
        return source

    def unbind(self, source: BoundSource[Any], *, ended: bool = True) -> None:
        source.transport.sources.pop(source.topic_index, None)
        self.delivery.on_unbound(source, ended=ended, now_ns=self.now_ns)

    def put(self, source: BoundSource[Any], *messages: bytes) -> None:
        packet = memoryview(b"".join(messages))
        out = RunTable()
        read_messages(packet, 0, len(packet), 0, out)
        self.delivery.on_fragments(packet, [(source.transport, out)], self.now_ns)

    def data(self, source: BoundSource[Any], *sqns: int) -> None:
        for sqn in sqns:
            self.put(source, message(sqn))


def message(sqn: int, payload: bytes | None = None, *blocks: Block | RawBlock, topic_index: int = 1) -> bytes:
    body = b"%d" % sqn if payload is None else payload
    return lbmc.encode(data_message(topic_index, sqn, body, blocks=blocks))


@pytest.fixture
def scene(stepper: Stepper) -> Scene:
    return Scene(stepper)


def test_a_run_in_order_goes_through_whole(scene: Scene) -> None:
    ear, bulk = Ear(), Ear(wants_batches=True)
    scene.listen(ear)
    scene.listen(bulk)
    source = scene.bind(lbtrm(1))
    scene.put(source, *[message(sqn, b"%03d" % sqn) for sqn in range(100)])
    name = format_source(source.address, 1)
    assert ear.events[0] == BOS("t", name)
    assert ear.events[1] == Data("t", name, 0, b"000", 0, OTID)
    assert ear.data == [b"%03d" % sqn for sqn in range(100)]
    assert bulk.batches == [MessageBatch("t", name, 0, ear.data, OTID)]
    assert bulk.events == [BOS("t", name)]


@pytest.mark.parametrize("size", [0, 1, 64])
def test_sizes_and_the_wrap_of_sequence_numbers(scene: Scene, size: int) -> None:
    ear = Ear()
    scene.listen(ear)
    source = scene.bind(lbtrm(1))
    sqns = [(0xFFFFFFF0 + i) & 0xFFFFFFFF for i in range(32)]
    scene.put(source, *[message(sqn, bytes(size)) for sqn in sqns])
    name = format_source(source.address, 1)
    assert ear.events[1:] == [Data("t", name, sqn, bytes(size), 0, OTID) for sqn in sqns]


def test_fragments_are_joined_and_disorder_is_put_in_order(scene: Scene) -> None:
    ear = Ear()
    scene.listen(ear)
    source = scene.bind(lbtrm(1))
    scene.data(source, 0)
    scene.put(source, message(2, b"lo", Frag(1, 3, 5)))
    scene.data(source, 3)
    scene.put(source, message(1, b"hel", Frag(1, 0, 5)))
    scene.data(source, 3, 1, 0)  # duplicates
    assert ear.data == [b"0", b"hello", b"3"]
    assert [event.sqn for event in ear.events if isinstance(event, Data)] == [0, 2, 3]


def test_who_takes_messages_gets_those_of_several_fragments_too(scene: Scene) -> None:
    got: list[MessageBatch] = []
    scene.delivery.add(b"t", CallbackListener(None, got.append), scene.options)
    source = scene.bind(lbtrm(1))
    scene.put(source, message(1, b"hel", Frag(1, 0, 5)), message(2, b"lo", Frag(1, 3, 5)))
    assert got == [MessageBatch("t", format_source(source.address, 1), 2, [b"hello"], OTID)]


def test_flags_tell_batches_and_retransmissions(scene: Scene) -> None:
    ear = Ear()
    scene.listen(ear)
    source = scene.bind(lbtrm(1))
    scene.put(source, message(0, b"a", Batch(flags=BATCH_START)), message(1, b"b", Batch(flags=BATCH_END)))
    again = data_message(1, 2, b"c", kind=MessageType.RETRANSMISSION)
    scene.put(source, lbmc.encode(again))
    flags = [event.flags for event in ear.events if isinstance(event, Data)]
    assert flags == [FLAG_START_BATCH, FLAG_END_BATCH, FLAG_RETRANSMIT]


def test_a_block_that_must_be_understood_and_is_not_costs_the_message(scene: Scene) -> None:
    ear = Ear()
    scene.listen(ear)
    source = scene.bind(lbtrm(1))
    scene.put(source, message(0, b"a", RawBlock(0x70, b"\x80\x00")))
    scene.put(source, message(1, b"b", RawBlock(0x70, b"\x7f\x00")))
    broken = bytearray(message(2, b"c", Batch()))
    broken[13] = 3  # a block of three bytes
    scene.put(source, bytes(broken))
    scene.data(source, 3)
    assert ear.data == [b"a"]
    assert scene.delivery.malformed == 2
    scene.stepper.run(10_000, 1000)
    scene.data(source, 4)
    assert [event for event in ear.events if isinstance(event, Loss)] == [
        Loss("t", format_source(source.address, 1), sqn) for sqn in (1, 2)
    ]
    assert ear.data == [b"a", b"3", b"4"]


def test_a_gap_is_reported_once_the_transport_has_given_up(scene: Scene) -> None:
    ear = Ear()
    scene.listen(ear)
    source = scene.bind(lbtrm(1))
    name = format_source(source.address, 1)
    scene.data(source, 0, 2)
    scene.stepper.run(9_900, 100)
    scene.data(source, 3)
    assert ear.data == [b"0"]
    scene.stepper.run(200, 100)
    assert ear.data == [b"0"]  # nothing came that could tell
    scene.data(source, 4)
    assert ear.take()[2:] == [
        Loss("t", name, 1), Data("t", name, 2, b"2", 0, OTID), Data("t", name, 3, b"3", 0, OTID),
        Data("t", name, 4, b"4", 0, OTID),
    ]  # fmt: skip


def test_a_tcp_gap_is_lost_at_once_and_a_tsni_shows_the_last_one(scene: Scene) -> None:
    ear = Ear()
    scene.listen(ear)
    source = scene.bind(TcpAddress(0x0A000001, 14371, 5))
    name = format_source(source.address, 1)
    scene.data(source, 0, 2)
    scene.put(source, lbmc.encode(lbmc.tsni_message([(1, 3)])))
    assert ear.events == [
        BOS("t", name), Data("t", name, 0, b"0", 0, OTID), Loss("t", name, 1), Data("t", name, 2, b"2", 0, OTID),
        Loss("t", name, 3),
    ]  # fmt: skip


@pytest.mark.parametrize("hops", [0, 1, 2])
def test_a_tcp_gap_behind_a_dro_is_waited_for(stepper: Stepper, hops: int) -> None:
    """`transport_tcp_dro_loss_recovery_timeout`: the DRO may repair it; without one nobody does."""
    scene = Scene(stepper, UmOptions().with_("receiver", "transport_tcp_dro_loss_recovery_timeout", 500))
    ear = Ear()
    scene.listen(ear)
    source = scene.bind(TcpAddress(0x0A000001, 14371, 5), cost=Cost(hops, 0))
    scene.data(source, 0, 2)
    assert ear.data == ([b"0"] if hops else [b"0", b"2"])


def test_the_loss_check_interval_reports_without_further_traffic(stepper: Stepper) -> None:
    options = UmOptions().with_("receiver", "delivery_control_loss_check_interval", 500)
    scene = Scene(stepper, options)
    ear = Ear()
    scene.listen(ear)
    source = scene.bind(lbtrm(1))
    scene.data(source, 0, 2)
    stepper.run(11_000, 100)
    assert ear.data == [b"0", b"2"]
    assert Loss("t", format_source(source.address, 1), 1) in ear.events


def test_a_large_gap_is_one_burst(scene: Scene) -> None:
    ear = Ear()
    scene.listen(ear)
    source = scene.bind(lbtrm(1))
    scene.data(source, 0, 5000)
    assert LossBurst("t", format_source(source.address, 1), 1, 4999) in ear.events
    assert ear.data == [b"0", b"5000"]


def test_another_session_of_the_same_source_goes_on_by_sequence_number(scene: Scene) -> None:
    ear = Ear()
    scene.listen(ear)
    old = scene.bind(lbtrm(1))
    scene.data(old, 0, 1, 2)
    new = scene.bind(lbtrm(2), topic_index=9)
    scene.unbind(old)
    for sqn in range(5):
        scene.put(new, message(sqn, topic_index=9))
    old_name, new_name = format_source(old.address, 1), format_source(new.address, 9)
    assert ear.data == [b"0", b"1", b"2", b"3", b"4"]
    assert [event for event in ear.events if not isinstance(event, Data)] == [
        BOS("t", old_name), EOS("t", old_name), BOS("t", new_name),
    ]  # fmt: skip
    assert [event.source for event in ear.events if isinstance(event, Data)] == [old_name] * 3 + [new_name] * 2
    assert ear.sources == [(old_name, True), (new_name, True), (old_name, False)]


def test_a_source_that_comes_back_soon_is_the_same_one(scene: Scene) -> None:
    ear = Ear()
    scene.listen(ear)
    first = scene.bind(TcpAddress(0x0A000001, 14371, 5))
    scene.data(first, 0, 1)
    scene.unbind(first)
    scene.stepper.run(5_000, 1000)
    second = scene.bind(TcpAddress(0x0A000002, 14371, 6))
    scene.data(second, 1, 2, 4)
    assert ear.data == [b"0", b"1", b"2", b"4"]
    assert [event.sqn for event in ear.events if isinstance(event, Loss)] == [3]


def test_a_source_that_stays_away_is_forgotten(scene: Scene) -> None:
    ear = Ear()
    scene.listen(ear)
    source = scene.bind(lbtrm(1))
    scene.data(source, 0, 2)
    scene.unbind(source)
    assert len(scene.delivery.streams()) == 1
    scene.stepper.run(59_000, 1000)
    assert len(scene.delivery.streams()) == 1
    scene.stepper.run(1000, 1000)
    assert scene.delivery.streams() == []
    assert ear.data == [b"0"]  # what waited behind the gap is gone without a word
    assert not any(isinstance(event, Loss) for event in ear.events)


def test_a_receiver_closed_and_made_again_starts_anew(scene: Scene) -> None:
    first, second = Ear(), Ear()
    scene.listen(first)
    source = scene.bind(lbtrm(1))
    scene.data(source, 0)
    scene.unbind(source)
    scene.delivery.remove(b"t", first)
    scene.listen(second)
    scene.data(scene.bind(lbtrm(1)), 7)
    assert second.data == [b"7"]
    assert not any(isinstance(event, Loss | LossBurst) for event in second.events)


def test_a_receiver_closed_when_it_is_told_of_a_source_costs_no_other_topic_its_data(scene: Scene) -> None:
    class Leaving(Ear):
        def on_events(self, events: list[Event]) -> None:
            super().on_events(events)
            scene.delivery.remove(b"t", self)
            scene.unbind(first, ended=False)

    leaving, ear = Leaving(), Ear()
    scene.listen(leaving)
    scene.listen(ear, b"u")
    first = scene.bind(lbtrm(1))
    second = BoundSource(b"u", OTID, 2, first.transport, Tir(b"u", first.address, 60, 2), False)
    first.transport.sources[2] = second
    scene.delivery.on_bound(second, scene.now_ns)
    scene.put(first, message(0), message(0, topic_index=2))
    assert leaving.events == [BOS("t", format_source(first.address, 1))]
    assert ear.data == [b"0"]
    assert isinstance(first.user, DeliveryStream)
    assert first.user.controller.expected is None, "what comes for nobody is not followed"


def test_leaving_is_no_end(scene: Scene) -> None:
    ear = Ear()
    scene.listen(ear)
    source = scene.bind(lbtrm(1))
    scene.data(source, 0)
    scene.unbind(source, ended=False)
    assert not any(isinstance(event, EOS) for event in ear.events)
    assert scene.delivery.streams() == []


def test_a_connection_that_never_stood_has_no_end(scene: Scene) -> None:
    ear = Ear()
    scene.listen(ear)
    source = scene.bind(TcpAddress(0x0A000001, 14371, 5))
    source.transport.was_connected = False
    scene.unbind(source)
    assert ear.events == []
    assert scene.delivery.streams() == []


def test_bos_comes_with_activity_and_at_once_for_those_who_come_later(scene: Scene) -> None:
    ear, late, wild = Ear(), Ear(), Ear()
    scene.listen(ear)
    source = scene.bind(lbtrm(1))
    assert ear.events == []
    source.transport.has_begun = True
    scene.delivery.on_began(source.transport, scene.now_ns)
    bos = BOS("t", format_source(source.address, 1))
    assert ear.events == [bos]
    scene.listen(late)
    scene.listen(wild, by_pattern=True)
    assert late.events == wild.events == [bos]
    scene.data(source, 0)
    assert ear.data == late.data == wild.data == [b"0"]
    scene.delivery.remove(b"t", late)
    scene.delivery.remove(b"t", wild, by_pattern=True)
    scene.delivery.remove(b"t", wild, by_pattern=True)
    scene.data(source, 1)
    assert ear.data == [b"0", b"1"]
    assert late.data == wild.data == [b"0"]


def test_fragments_of_unknown_topics_are_counted(scene: Scene) -> None:
    source = scene.bind(lbtrm(1))
    scene.put(source, message(0, topic_index=2), message(1, topic_index=2))
    assert source.transport.lbm_msgs_no_topic_rcved == 2


def test_no_source_is_told_to_plain_receivers(scene: Scene) -> None:
    ear, wild = Ear(), Ear()
    scene.listen(ear)
    scene.listen(wild, by_pattern=True)
    scene.delivery.on_no_source(b"t")
    assert ear.events == [NoSource("t")]
    assert wild.events == []


@pytest.mark.parametrize("mode", [-1, 0])
def test_arrival_order(stepper: Stepper, mode: int) -> None:
    scene = Scene(stepper, UmOptions().with_("receiver", "ordered_delivery", mode))
    ear = Ear()
    scene.listen(ear)
    source = scene.bind(lbtrm(1))
    scene.data(source, 0, 3)
    scene.put(source, message(2, b"lo", Frag(1, 3, 5)))
    scene.put(source, message(1, b"hel", Frag(1, 0, 5)))
    assert ear.data == ([b"0", b"3", b"hello"] if mode else [b"0", b"3", b"lo", b"hel"])


def test_topics_are_text_and_bytes() -> None:
    assert topic_text(topic_bytes("näme")) == "näme"
    assert topic_bytes(topic_text(b"\xff\xfe")) == b"\xff\xfe"
    for bad in ("", "x" * 256):
        with pytest.raises(UsageError):
            topic_bytes(bad)


def losses(ear: Ear) -> list[int]:
    return [event.sqn for event in ear.events if isinstance(event, Loss)]


def test_what_only_a_dead_session_could_repair_is_lost_at_once(scene: Scene) -> None:
    ear = Ear()
    scene.listen(ear)
    old = scene.bind(lbtrm(1))
    scene.data(old, 0, 1, 3)
    scene.unbind(old)
    new = scene.bind(lbtrm(2))
    scene.data(new, 6, 8)
    assert ear.data == [b"0", b"1", b"3", b"6"]
    assert losses(ear) == [2, 4, 5], "7 is what the new session repairs"
    scene.data(new, 7)
    assert ear.data[-2:] == [b"7", b"8"]


def test_while_the_other_session_lives_its_repairs_are_waited_for(scene: Scene) -> None:
    ear = Ear()
    scene.listen(ear)
    old = scene.bind(lbtrm(1))
    scene.data(old, 0, 2)
    new = scene.bind(lbtrm(2), topic_index=9)
    scene.put(new, message(4, topic_index=9))
    assert (ear.data, losses(ear)) == ([b"0"], [])
    scene.data(old, 1)
    assert (ear.data, losses(ear)) == ([b"0", b"1", b"2"], [])
    scene.unbind(old)
    assert (ear.data, losses(ear)) == ([b"0", b"1", b"2", b"4"], [3])


def test_what_the_new_session_itself_is_missing_is_waited_for(scene: Scene) -> None:
    ear = Ear()
    scene.listen(ear)
    old = scene.bind(lbtrm(1))
    scene.data(old, 0)
    scene.unbind(old)
    new = scene.bind(lbtrm(2))
    assert isinstance(new.transport, FakeTransport)
    new.transport.at, new.transport.whole_to = 20, 18
    scene.data(new, 4)
    assert (ear.data, losses(ear)) == ([b"0"], [])
    scene.data(new, 3)
    assert (ear.data, losses(ear)) == ([b"0"], []), "it repairs, and is not done"
    new.transport.whole_to = 20
    scene.data(new, 5)
    assert (ear.data, losses(ear)) == ([b"0", b"3", b"4", b"5"], [1, 2])


def test_a_second_session_that_never_carries_data_takes_nothing_over(scene: Scene) -> None:
    ear = Ear()
    scene.listen(ear)
    old = scene.bind(lbtrm(1))
    scene.data(old, 0, 2)
    silent = scene.bind(lbtrm(2), topic_index=9)
    silent.transport.has_begun = True
    scene.delivery.on_began(silent.transport, scene.now_ns)
    scene.unbind(silent)
    scene.data(old, 3)
    assert (ear.data, losses(ear)) == ([b"0"], [])
    scene.data(old, 1)
    assert ear.data == [b"0", b"1", b"2", b"3"]


# what is easily off by one


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("gap", [0, 20])
def test_every_message_of_a_run_is_handed_up_whatever_lies_between_them(scene: Scene, count: int, gap: int) -> None:
    bulk, ear = Ear(wants_batches=True), Ear()
    scene.listen(bulk)
    scene.listen(ear)
    source = scene.bind(lbtrm(1))
    packet = memoryview(b"".join(bytes(gap) + message(sqn, b"%03d" % sqn) for sqn in range(count)))
    run = Run(1, 0, count, gap, 15, 15 + gap, gap, 0, KIND_DATA)
    scene.delivery.on_fragments(packet, [(source.transport, table_of([run]))], scene.now_ns)
    assert ear.data == [payload for batch in bulk.batches for payload in batch.payloads]
    assert ear.data == [b"%03d" % sqn for sqn in range(count)]


def test_runs_of_unknown_topics_cost_the_others_nothing(scene: Scene) -> None:
    ear = Ear()
    scene.listen(ear)
    source = scene.bind(lbtrm(1))
    scene.put(source, message(0, topic_index=2), message(0), message(1, topic_index=3))
    assert (ear.data, source.transport.lbm_msgs_no_topic_rcved) == ([b"0"], 2)


def test_blocks_are_found_wherever_the_message_stands_and_without_data_there_is_none(scene: Scene) -> None:
    ear = Ear()
    scene.listen(ear)
    source = scene.bind(lbtrm(1))
    nothing = bytearray(message(2, b"", Batch(flags=0)))
    nothing[12] = 0xFF  # nothing follows the block
    scene.put(source, message(0, b"\0\0"), message(1, b"b", Batch(flags=BATCH_START | BATCH_END)), bytes(nothing))
    name = format_source(source.address, 1)
    assert ear.events[1:] == [
        Data("t", name, 0, b"\0\0", 0, OTID),
        Data("t", name, 1, b"b", FLAG_START_BATCH | FLAG_END_BATCH, OTID),
        Data("t", name, 2, b"", 0, OTID),
    ]


@pytest.mark.parametrize(("generation_s", "waits_s"), [(3, 3), (0, 7)])
def test_a_gap_is_waited_for_as_long_as_the_session_repairs_and_else_as_the_option_says(
    stepper: Stepper, generation_s: int, waits_s: int
) -> None:
    options = UmOptions().with_("receiver", "transport_lbtrm_nak_generation_interval", 7000)
    scene = Scene(stepper, options.with_("receiver", "delivery_control_loss_check_interval", 100))
    ear = Ear()
    scene.listen(ear)
    transport = FakeTransport(lbtrm(1), generation_s * 1_000_000_000)
    source = BoundSource(b"t", OTID, 1, transport, Tir(b"t", transport.address, 60, 1), False)
    transport.sources[1] = source
    scene.delivery.on_bound(source, scene.now_ns)
    scene.data(source, 0, 2)
    stepper.run(waits_s * 1000 - 100, 50)
    assert ear.data == [b"0"]
    stepper.run(300, 50)
    assert ear.data == [b"0", b"2"]
    assert stepper.loop.next_deadline() is None


def test_the_loss_check_is_due_while_a_gap_is_open_and_no_longer(stepper: Stepper) -> None:
    scene = Scene(stepper, UmOptions().with_("receiver", "delivery_control_loss_check_interval", 500))
    scene.listen(Ear())
    source = scene.bind(lbtrm(1))
    scene.data(source, 0)
    assert stepper.loop.next_deadline() is None
    scene.data(source, 2)
    (stream,) = scene.delivery.streams()
    assert stepper.loop.next_deadline() == stream.controller.next_deadline()
    scene.data(source, 1)
    assert stepper.loop.next_deadline() is None
    scene.data(source, 4)
    stepper.run(700, 100)
    scene.data(source, 6)
    assert stepper.loop.next_deadline() == stream.controller.next_deadline() is not None


# listeners and their options


def of(**receiver: int) -> UmOptions:
    options = UmOptions()
    for name, value in receiver.items():
        options = options.with_("receiver", name, value)
    return options


def test_who_comes_later_learns_of_every_source(scene: Scene) -> None:
    first, late = Ear(), Ear()
    scene.listen(first)
    begun, silent = scene.bind(lbtrm(1)), scene.bind(lbtrm(2), topic_index=9, otid=bytes(32))
    scene.data(begun, 0)
    scene.listen(late)
    names = [format_source(begun.address, 1), format_source(silent.address, 9)]
    assert late.sources == first.sources == [(name, True) for name in names]
    assert late.events == [BOS("t", names[0])]
    assert scene.delivery.sources_of(b"t") == names
    assert scene.delivery.sources_of(b"u") == []


def test_a_source_on_a_session_that_has_begun_begins_at_once(scene: Scene) -> None:
    ear = Ear()
    scene.listen(ear)
    first = scene.bind(lbtrm(1))
    first.transport.has_begun = True
    second = BoundSource(b"t", bytes(32), 2, first.transport, Tir(b"t", first.address, 60, 2), False)
    first.transport.sources[2] = second
    scene.delivery.on_bound(second, scene.now_ns)
    assert ear.events == [BOS("t", format_source(first.address, 2))]


def test_plain_receivers_with_other_options_are_refused_by_name(scene: Scene) -> None:
    topic = b"t" * 90
    scene.delivery.add(topic, Ear(), of(ordered_delivery=0))
    with pytest.raises(ConfigError) as caught:
        scene.delivery.add(topic, Ear(), of(ordered_delivery=1, delivery_control_loss_check_interval=500))
    assert str(caught.value) == (
        f"receiver delivery_control_loss_check_interval: another receiver of topic {'t' * 80!r} in this context has "
        "the value 0; give both the same options, or open this one in another context"
    )
    for same in (of(ordered_delivery=0), of(ordered_delivery=0, hf_duplicate_delivery=1)):
        scene.delivery.add(topic, Ear(), same)  # an option without effect makes no difference
    scene.delivery.add(topic, Ear(), of(ordered_delivery=0).with_("source", "transport", "lbtrm"))


def test_wildcard_receivers_that_differ_are_warned_about_once_for_each_option(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    for topic in (b"t", b"u"):
        scene.delivery.add(topic, Ear(), of(ordered_delivery=0), by_pattern=True)
        for _ in range(2):
            scene.delivery.add(topic, Ear(), of(ordered_delivery=1), by_pattern=True)
    told = [(r.msg, vars(r)["topic"], vars(r)["option"], vars(r)["value"]) for r in caplog.records]
    assert told == [(LogEvent.RECEIVERS_DIFFER, "t", "receiver ordered_delivery", 0)]
    scene.delivery.add(b"v", Ear(), of(delivery_control_loss_check_interval=1))
    scene.delivery.add(b"v", Ear(), of(delivery_control_loss_check_interval=2), by_pattern=True)
    scene.delivery.add(b"u", Ear(), of(ordered_delivery=1))  # nobody opened another one for this topic
    assert len(caplog.records) == 2


def test_the_next_first_receiver_chooses_the_options_anew(stepper: Stepper) -> None:
    scene = Scene(stepper)
    ear = Ear()
    scene.delivery.add(b"t", ear, of(ordered_delivery=0))
    scene.delivery.add(b"t", ear, of(ordered_delivery=0), by_pattern=True)
    scene.delivery.remove(b"t", ear)
    scene.delivery.remove(b"t", ear)
    scene.delivery.remove(b"t", ear, by_pattern=True)
    scene.delivery.add(b"t", Ear(), of(ordered_delivery=1))
    with pytest.raises(ConfigError):
        scene.delivery.add(b"t", Ear(), of(ordered_delivery=0))


@pytest.mark.parametrize("size", [1, 255])
def test_a_name_may_have_up_to_255_bytes(size: int) -> None:
    assert topic_bytes("x" * size) == b"x" * size
    with pytest.raises(UsageError, match=rf"'{'x' * 80}' has 256 bytes; a topic or pattern has 1 to 255"):
        topic_bytes("x" * 256)


# sources that are away for a while


def test_a_source_that_came_back_is_not_forgotten_later(scene: Scene) -> None:
    first, second = Ear(), Ear()
    scene.listen(first)
    source = scene.bind(lbtrm(1))
    scene.data(source, 0)
    scene.unbind(source)
    again = scene.bind(lbtrm(2))
    scene.delivery.remove(b"t", first)
    scene.listen(second)
    scene.stepper.run(61_000, 1000)
    assert len(scene.delivery.streams()) == 1
    scene.data(again, 1, 2)
    assert second.data == [b"1", b"2"]


def test_of_too_many_sources_that_are_away_the_first_that_left_is_forgotten(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dro.um.message.delivery.PARKED_MAX", 2)
    scene.listen(Ear())
    otids = [bytes([number]) * 32 for number in range(4)]

    def leave(number: int) -> None:
        source = scene.bind(lbtrm(number + 1), otid=otids[number])
        scene.data(source, 0)
        scene.unbind(source)

    def known() -> list[int]:
        return [otids.index(stream.otid) for stream in scene.delivery.streams()]

    leave(0)
    leave(1)
    assert known() == [0, 1]
    back = scene.bind(lbtrm(1), otid=otids[0])
    leave(2)
    assert known() == [0, 1, 2], "one has come back"
    scene.unbind(back)
    assert known() == [0, 2]
    scene.stepper.run(60_000, 1000)
    assert known() == []
    assert scene.stepper.loop.next_deadline() is None
    leave(1)
    scene.stepper.run(100)
    leave(0)
    assert known() == [1, 0]
    leave(3)
    assert known() == [0, 3], "who has left again has left later"


def test_what_is_forgotten_waits_for_nothing_and_is_counted(stepper: Stepper) -> None:
    scene = Scene(stepper, UmOptions().with_("receiver", "delivery_control_loss_check_interval", 500))
    ear = Ear()
    scene.listen(ear)
    source, other = scene.bind(lbtrm(1)), scene.bind(lbtrm(2), otid=bytes(32))
    scene.data(source, 0, 2)
    stream, _ = scene.delivery.streams()
    scene.unbind(source, ended=False)
    assert (stepper.loop.next_deadline(), stream.controller.stats.discarded) == (None, 1)
    assert [left.otid for left in scene.delivery.streams()] == [other.otid]
    scene.data(other, 0, 2)
    scene.unbind(other)
    scene.delivery.remove(b"t", ear)
    assert (stepper.loop.next_deadline(), scene.delivery.streams()) == (None, [])


def test_a_delivery_that_closes_leaves_nothing_due_and_says_nothing(stepper: Stepper) -> None:
    scene = Scene(stepper, UmOptions().with_("receiver", "delivery_control_loss_check_interval", 500))
    ear = Ear()
    scene.listen(ear)
    for number in range(2):
        scene.data(scene.bind(lbtrm(number), otid=bytes([number]) * 32), 0, 2)
    scene.unbind(scene.bind(lbtrm(9), otid=bytes(32)))
    ear.take()
    scene.delivery.close()
    assert (stepper.loop.next_deadline(), scene.delivery.streams(), ear.events) == (None, [], [])


# takeovers


def test_a_new_session_that_dies_before_it_was_whole_takes_nothing_over(scene: Scene) -> None:
    ear = Ear()
    scene.listen(ear)
    old = scene.bind(lbtrm(1))
    scene.data(old, 0, 2)
    new = scene.bind(lbtrm(2), topic_index=9)
    assert isinstance(new.transport, FakeTransport)
    new.transport.at = 20
    scene.put(new, message(6, topic_index=9))
    scene.unbind(new)
    new.transport.whole_to = 20  # as a session that was left
    scene.data(old, 3)
    assert (ear.data, losses(ear)) == ([b"0"], [])
    scene.data(old, 1)
    assert ear.data == [b"0", b"1", b"2", b"3"]


def test_a_takeover_begins_with_the_data_of_the_new_session(scene: Scene) -> None:
    ear = Ear()
    scene.listen(ear)
    old = scene.bind(lbtrm(1))
    scene.data(old, 0)
    new = scene.bind(lbtrm(2), topic_index=9)
    new.transport.has_begun = True
    scene.delivery.on_began(new.transport, scene.now_ns)
    scene.data(old, 3)  # still by the old one
    scene.unbind(old)
    assert (ear.data, losses(ear)) == ([b"0"], [])
    scene.put(new, message(5, topic_index=9))
    assert (ear.data, losses(ear)) == ([b"0", b"3", b"5"], [1, 2, 4])
    scene.put(new, message(8, topic_index=9))
    assert ear.data == [b"0", b"3", b"5"], "what it misses from then on it repairs"


def test_flags_are_those_of_the_c_api_and_what_is_not_given_is_nothing() -> None:
    assert (FLAG_START_BATCH, FLAG_END_BATCH, FLAG_RETRANSMIT) == (0x1, 0x2, 0x8)
    assert Data("t", "source", 1, b"x") == Data("t", "source", 1, b"x", 0, b"")
    assert LossBurst("t", "source", 1) == LossBurst("t", "source", 1, 0)
