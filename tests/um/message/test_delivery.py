"""From fragments to events, without sockets: order, loss, sessions that change, listeners that come and go."""

from __future__ import annotations

import pytest

from dro.config.um.options import UmOptions
from dro.proto.context.sources import BoundSource
from dro.proto.stream.stream import PARK_NS, Carrier
from dro.transport.runs import KIND_DATA, Run, RunTable, read_messages
from dro.um.message.delivery import Delivery
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
)
from dro.um.message.receiver import CallbackListener
from dro.wire import otid as otid_codec
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.block import Block, RawBlock
from dro.wire.lbmc.codes import MessageType
from dro.wire.lbmc.data_blocks import BATCH_END, BATCH_START, Batch, Frag
from dro.wire.lbmr.packet import Cost, Tir
from dro.wire.source_string import TcpAddress, TransportAddress, format_source
from tests.builders.lbmc_messages import data_message
from tests.builders.tir_options import tir_options
from tests.fakes.runs import table_of
from tests.fakes.streams import GENERATION_NS, OTID, lbtrm, stream_of
from tests.fakes.transport import FakeTransport
from tests.fakes.um_contexts import Stepper


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


class Scene:
    """A delivery layer with sessions on which messages are put by hand."""

    def __init__(self, stepper: Stepper, options: UmOptions | None = None) -> None:
        self.stepper = stepper
        self.options = options or UmOptions()
        self.delivery = Delivery(stepper.loop, self.options)

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
    ) -> Carrier:
        transport = FakeTransport(address, 0 if isinstance(address, TcpAddress) else GENERATION_NS)
        transport.is_in_order = isinstance(address, TcpAddress)
        return self.bind_to(transport, topic_index, topic, otid, cost)

    def bind_to(
        self, transport: FakeTransport, topic_index: int, topic: bytes, otid: bytes = OTID, cost: Cost | None = None
    ) -> Carrier:
        tir = Tir(topic, transport.address, 60, topic_index, tir_options(otid=otid, cost=cost))
        source: Carrier = BoundSource(topic, otid, topic_index, transport, tir, False)
        transport.sources[topic_index] = source
        self.delivery.on_bound(source, self.now_ns)
        return source

    def unbind(self, source: Carrier, *, ended: bool = True) -> None:
        transport_of(source).sources.pop(source.topic_index, None)
        self.delivery.on_unbound(source, ended=ended, now_ns=self.now_ns)

    def put(self, source: Carrier, *messages: bytes) -> None:
        packet = memoryview(b"".join(messages))
        out = RunTable()
        read_messages(packet, 0, len(packet), 0, out)
        self.delivery.on_fragments(packet, [(transport_of(source), out)], self.now_ns)

    def data(self, source: Carrier, *sqns: int) -> None:
        for sqn in sqns:
            self.put(source, message(sqn))


def transport_of(source: Carrier) -> FakeTransport:
    assert isinstance(source.transport, FakeTransport)
    return source.transport


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


def test_a_source_that_stays_away_is_forgotten(scene: Scene) -> None:
    ear = Ear()
    scene.listen(ear)
    source = scene.bind(lbtrm(1))
    scene.data(source, 0, 2)
    scene.unbind(source)
    assert scene.stepper.loop.next_deadline() == scene.now_ns + PARK_NS
    scene.stepper.run(60_000, 1000)
    assert scene.stepper.loop.next_deadline() is None
    scene.data(scene.bind(lbtrm(1)), 7)
    assert ear.data == [b"0", b"7"]
    assert not any(isinstance(event, Loss | LossBurst) for event in ear.events)


def test_a_source_that_came_back_is_not_forgotten_later(scene: Scene) -> None:
    scene.listen(Ear())
    scene.unbind(scene.bind(lbtrm(1)))
    scene.bind(lbtrm(2))
    assert scene.stepper.loop.next_deadline() is None


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
    stream = stream_of(first)
    scene.bind_to(transport_of(first), 2, b"u")
    scene.put(first, message(0), message(0, topic_index=2))
    assert leaving.events == [BOS("t", format_source(first.address, 1))]
    assert ear.data == [b"0"]
    assert stream.controller.expected is None, "what comes for nobody is not followed"


def test_bos_comes_with_activity_and_at_once_for_those_who_come_later(scene: Scene) -> None:
    ear, late, wild = Ear(), Ear(), Ear()
    scene.listen(ear)
    source = scene.bind(lbtrm(1))
    assert ear.events == []
    transport_of(source).has_begun = True
    scene.delivery.on_began(transport_of(source), scene.now_ns)
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
    assert transport_of(source).lbm_msgs_no_topic_rcved == 2


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
    scene.delivery.on_fragments(packet, [(transport_of(source), table_of([run]))], scene.now_ns)
    assert ear.data == [payload for batch in bulk.batches for payload in batch.payloads]
    assert ear.data == [b"%03d" % sqn for sqn in range(count)]


def test_runs_of_unknown_topics_cost_the_others_nothing(scene: Scene) -> None:
    ear = Ear()
    scene.listen(ear)
    source = scene.bind(lbtrm(1))
    scene.put(source, message(0, topic_index=2), message(0), message(1, topic_index=3))
    assert (ear.data, transport_of(source).lbm_msgs_no_topic_rcved) == ([b"0"], 2)


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


def test_the_loss_check_is_due_while_a_gap_is_open_and_no_longer(stepper: Stepper) -> None:
    scene = Scene(stepper, UmOptions().with_("receiver", "delivery_control_loss_check_interval", 500))
    scene.listen(Ear())
    source = scene.bind(lbtrm(1))
    scene.data(source, 0)
    assert stepper.loop.next_deadline() is None
    scene.data(source, 2)
    stream = stream_of(source)
    assert stepper.loop.next_deadline() == stream.controller.next_deadline()
    scene.data(source, 1)
    assert stepper.loop.next_deadline() is None
    scene.data(source, 4)
    stepper.run(700, 100)
    scene.data(source, 6)
    assert stepper.loop.next_deadline() == stream.controller.next_deadline() is not None


# listeners


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
    transport_of(first).has_begun = True
    scene.bind_to(transport_of(first), 2, b"t", bytes(32))
    assert ear.events == [BOS("t", format_source(first.address, 2))]


def test_what_nobody_listens_to_is_not_waited_for(stepper: Stepper) -> None:
    scene = Scene(stepper, UmOptions().with_("receiver", "delivery_control_loss_check_interval", 500))
    ear = Ear()
    scene.listen(ear)
    source, other = scene.bind(lbtrm(1)), scene.bind(lbtrm(2), otid=bytes(32))
    scene.data(source, 0, 2)
    scene.unbind(source, ended=False)
    assert stepper.loop.next_deadline() is None
    scene.data(other, 0, 2)
    scene.unbind(other)
    scene.delivery.remove(b"t", ear)
    assert stepper.loop.next_deadline() is None


def test_a_delivery_that_closes_leaves_nothing_due_and_says_nothing(stepper: Stepper) -> None:
    scene = Scene(stepper, UmOptions().with_("receiver", "delivery_control_loss_check_interval", 500))
    ear = Ear()
    scene.listen(ear)
    for number in range(2):
        scene.data(scene.bind(lbtrm(number), otid=bytes([number]) * 32), 0, 2)
    scene.unbind(scene.bind(lbtrm(9), otid=bytes(32)))
    ear.take()
    scene.delivery.close()
    assert (stepper.loop.next_deadline(), scene.delivery.sources_of(b"t"), ear.events) == (None, [], [])


# hotlinks


def test_events_name_the_origin_and_the_session(stepper: Stepper) -> None:
    scene, ear, late = Scene(stepper, UmOptions().with_("receiver", "use_hotlink", 1)), Ear(), Ear()
    scene.listen(ear)
    origin_otid = otid_codec.encode(lbtrm(77), 5, 6, 7)
    one, other = (scene.bind(TcpAddress(number, 2, 3), otid=origin_otid) for number in range(2))
    for source in (one, other):
        scene.data(source, 0, 1)
    scene.listen(late)
    origin, names = format_source(lbtrm(77), 5), [format_source(source.address, 1) for source in (one, other)]
    assert (late.sources, scene.delivery.sources_of(b"t")) == ([(origin, True)], [origin])
    assert late.events == [BOS("t", origin, name) for name in names]
    for source in (one, other):
        scene.unbind(source)
    assert [event for event in ear.events if not isinstance(event, Data)] == [
        kind("t", origin, name) for kind in (BOS, EOS) for name in names
    ]
    assert (ear.sources, ear.data) == ([(origin, True), (origin, False)], [b"0", b"1"])
    scene.delivery.close()


def test_flags_are_those_of_the_c_api_and_what_is_not_given_is_nothing() -> None:
    assert (FLAG_START_BATCH, FLAG_END_BATCH, FLAG_RETRANSMIT) == (0x1, 0x2, 0x8)
    assert Data("t", "source", 1, b"x") == Data("t", "source", 1, b"x", 0, b"")
    assert LossBurst("t", "source", 1) == LossBurst("t", "source", 1, 0)
