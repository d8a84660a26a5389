"""Sources of the message level without a network: bytes, sequence numbers, TSNIs, events and the end, exactly."""

from __future__ import annotations

import struct
from typing import Any, cast

import pytest

from dro.clock import ms, s
from dro.config.um.options import UmOptions
from dro.config.um.sets import BatchingOptions
from dro.log.events import LogEvent
from dro.loop import Loop
from dro.proto.delivery.config import DeliveryConfig
from dro.transport.session import SenderTransport
from dro.um.fragment.own_source import FragmentSource
from dro.um.message.context import MessageContext
from dro.um.message.events import Connect, Disconnect, SourceEvent, SqnRange, UsageError, Wakeup, WouldBlock
from dro.um.message.source import MESSAGE_MAX_BYTES, MessageSource
from dro.um.message.writer import SessionWriter
from tests.fakes.um_contexts import Stepper
from tests.um.message.test_writer import Session

INDEX = 0x01020304
LARGEST = 8192 - 20 - 12  # user data of one message


class Scene:
    """A source, in the place of its context and of its fragment source, on a session that only keeps records."""

    def __init__(self, stepper: Stepper, options: UmOptions) -> None:
        self.stepper = stepper
        self.session = Session()
        self.events: list[SourceEvent] = []
        self.tsnis: list[tuple[int, int]] = []
        self.takes_tsnis = True
        self.order: list[object] = []
        self.writer = SessionWriter(stepper.loop, cast(SenderTransport, self.session), BatchingOptions(ms(50), 300))
        self.source = MessageSource(
            cast(MessageContext, self), "t", cast(FragmentSource, self), self.writer, options, self.events.append
        )

    @property
    def loop(self) -> Loop:
        return self.stepper.loop

    @property
    def now_ns(self) -> int:
        return self.stepper.clock.time_ns

    # in the place of the context and of the fragment source

    topic_index = INDEX
    source_string = "TCP:10.0.0.1:14371:1[16909060]"

    def on_source_closed(self, source: MessageSource) -> None:
        assert source is self.source
        self.order.append("closed")

    def send_tsni(self, sqn: int, now_ns: int) -> bool:
        if self.takes_tsnis:
            self.tsnis.append((sqn, now_ns))
        return self.takes_tsnis

    def close(self, *, final: bool, linger_ns: int) -> None:
        self.order.append((final, linger_ns))


def options(interval_ms: int = 1000, threshold_s: int = 60, **more: int | str) -> UmOptions:
    made = UmOptions().with_("source", "transport_topic_sequence_number_info_interval", interval_ms)
    made = made.with_("source", "transport_topic_sequence_number_info_active_threshold", threshold_s)
    for name, value in more.items():
        scope, _, key = name.partition("__")
        made = made.with_(scope, key, value)
    return made


@pytest.fixture
def scene(stepper: Stepper) -> Scene:
    return Scene(stepper, options())


def whole(sqn: int, data: bytes) -> bytes:
    return struct.pack("!BBHII", 0, 0, 12 + len(data), INDEX, sqn) + data


def part(sqn: int, first: int, offset: int, total: int, data: bytes) -> bytes:
    head = struct.pack("!BBHII", 0, 1, 28 + len(data), INDEX, sqn)
    return head + struct.pack("!BBHIII", 0, 16, 0, first, offset, total) + data


def test_a_message_is_one_fragment_as_long_as_it_fits_and_else_full_ones_and_a_rest(scene: Scene) -> None:
    source = scene.source
    assert source.send(b"hello") == SqnRange(0, 0)
    assert source.send(b"") == SqnRange(1, 1)
    fits, room = bytes(LARGEST), LARGEST - 16
    assert source.send(fits) == SqnRange(2, 2)
    longer = bytes(range(256)) * 70
    cut = longer[: LARGEST + 1]
    assert source.send(cut) == SqnRange(3, 4)
    assert source.send(longer[: 2 * room + 1]) == SqnRange(5, 7)
    assert scene.session.sent == [
        [whole(0, b"hello")],
        [whole(1, b"")],
        [whole(2, fits)],
        [part(3, 3, 0, LARGEST + 1, cut[:room])],
        [part(4, 3, room, LARGEST + 1, cut[room:])],
        [part(5, 5, 0, 2 * room + 1, longer[:room])],
        [part(6, 5, room, 2 * room + 1, longer[room : 2 * room])],
        [part(7, 5, 2 * room, 2 * room + 1, longer[2 * room : 2 * room + 1])],
    ]
    assert scene.session.payloads == [5, 0, LARGEST, room, 17, room, room, 1]
    assert (source.next_sqn, source.messages_sent) == (8, 5)
    assert source.source_string == scene.source_string


@pytest.mark.parametrize(
    ("first", "size", "last", "following"), [(0xFFFFFFFF, 5, 0xFFFFFFFF, 0), (0xFFFFFFFE, 20000, 0, 1)]
)
def test_sequence_numbers_wrap(scene: Scene, first: int, size: int, last: int, following: int) -> None:
    scene.source._next_sqn = first  # four thousand million messages later
    assert scene.source.send(bytes(size)) == SqnRange(first, last)
    assert scene.source.next_sqn == following
    scene.stepper.run(1000)
    assert [sqn for sqn, _ in scene.tsnis] == [last]


def test_what_no_receiver_could_take_is_refused(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dro.um.message.source.MESSAGE_MAX_BYTES", 20_000)
    with pytest.raises(UsageError, match="message of 20001 bytes, at most 20000 can be sent"):
        scene.source.send(bytes(20_001))
    assert (scene.source.next_sqn, scene.source.messages_sent, scene.session.sent) == (0, 0, [])
    assert scene.source.send(bytes(20_000)) == SqnRange(0, 2)


def test_what_a_source_sends_a_receiver_of_this_library_takes() -> None:
    assert MESSAGE_MAX_BYTES == DeliveryConfig().message_max_bytes == 1 << 28


def test_a_blocked_source_refuses_and_takes_nothing(scene: Scene) -> None:
    scene.session.room = 1
    scene.source.send(bytes(10_000))  # the second half of it waits
    with pytest.raises(WouldBlock, match="source of 't'"):
        scene.source.send(b"refused")
    assert (scene.source.next_sqn, scene.source.messages_sent) == (2, 1)
    scene.source.tell_wakeup()
    scene.source.tell_wakeup()
    scene.session.unblock(10)
    assert scene.events == [Wakeup()]
    scene.session.unblock(10)
    assert scene.events == [Wakeup()]
    assert scene.source.send(b"taken") == SqnRange(2, 2)


def test_messages_that_wait_for_company_leave_with_a_flush(scene: Scene) -> None:
    scene.source.send(b"a", flush=False)
    scene.source.send(b"b", flush=False)
    assert scene.session.sent == []
    scene.source.flush()
    assert scene.session.sent == [[whole(0, b"a"), whole(1, b"b")]]
    assert scene.session.payloads == [2]


# TSNIs


def test_the_last_sqn_is_told_each_interval_after_the_last_message(scene: Scene) -> None:
    assert scene.loop.next_deadline() is None, "nothing was sent"
    began = scene.now_ns
    scene.source.send(b"a")
    assert scene.loop.next_deadline() == began + s(1)
    scene.stepper.run(400)
    scene.source.send(bytes(10_000))
    scene.stepper.run(1900)
    assert scene.tsnis == [(2, began + ms(1400))]
    scene.stepper.run(100)
    assert scene.tsnis == [(2, began + ms(1400)), (2, began + ms(2400))]
    assert scene.loop.next_deadline() == began + ms(3400)


@pytest.mark.parametrize(("interval_ms", "threshold_s", "told"), [(0, 60, 0), (1000, 3, 3), (1001, 3, 2)])
def test_an_idle_source_stops_telling_after_its_threshold(
    stepper: Stepper, interval_ms: int, threshold_s: int, told: int
) -> None:
    scene = Scene(stepper, options(interval_ms, threshold_s))
    scene.source.send(b"a")
    scene.stepper.run(10_000)
    assert len(scene.tsnis) == told
    assert scene.loop.next_deadline() is None
    scene.source.send(b"b")
    scene.stepper.run(10_000)
    assert len(scene.tsnis) == 2 * told


def test_a_tsni_that_cannot_be_sent_is_tried_each_tenth_of_a_second(scene: Scene) -> None:
    began = scene.now_ns
    scene.takes_tsnis = False
    scene.source.send(b"a")
    scene.stepper.run(1000)
    assert scene.loop.next_deadline() == began + ms(1100)
    scene.stepper.run(110)
    scene.takes_tsnis = True
    scene.stepper.run(70)
    assert scene.tsnis == []
    scene.stepper.run(20)
    assert scene.tsnis == [(0, began + ms(1200))]
    assert scene.loop.next_deadline() == began + ms(2000)


def test_no_tsni_overtakes_what_still_waits(scene: Scene) -> None:
    began = scene.now_ns
    scene.session.room = 1
    scene.source.send(bytes(10_000))
    scene.stepper.run(1050)
    assert scene.tsnis == []
    scene.session.unblock(10)
    scene.stepper.run(50)
    assert scene.tsnis == [(1, began + ms(1100))]


# events


def test_receivers_that_come_and_go_are_told_and_remembered(scene: Scene) -> None:
    scene.source.on_client("10.0.0.1:5", connected=True)
    scene.source.on_client("10.0.0.2:5", connected=True)
    assert scene.source.clients == {"10.0.0.1:5", "10.0.0.2:5"}
    scene.source.on_client("10.0.0.1:5", connected=False)
    scene.source.on_client("10.0.0.9:5", connected=False)
    assert scene.source.clients == {"10.0.0.2:5"}
    assert scene.events == [
        Connect("10.0.0.1:5"), Connect("10.0.0.2:5"), Disconnect("10.0.0.1:5"), Disconnect("10.0.0.9:5"),
    ]  # fmt: skip


def test_a_callback_that_fails_is_logged_with_its_topic(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: SourceEvent) -> None:
        raise ValueError("the application's fault")

    scene.source.on_event = fail
    scene.source.on_client("10.0.0.1:5", connected=True)
    assert [(r.msg, vars(r)["topic"]) for r in caplog.records] == [(LogEvent.SOURCE_EVENT_CALLBACK, "t")]
    scene.source.on_event = None
    scene.source.on_client("10.0.0.2:5", connected=True)
    assert len(scene.source.clients) == 2


# the end


@pytest.mark.parametrize("transport", ["lbtrm", "lbtru"])
@pytest.mark.parametrize(
    ("asked", "option", "final"), [(None, 0, False), (None, 1, True), (True, 0, True), (False, 1, False)]
)
def test_a_source_that_closes_sends_what_waits_and_lingers_as_receivers_repair(
    stepper: Stepper, asked: bool | None, option: int, final: bool, transport: str
) -> None:
    more: dict[str, Any] = {
        "source__transport": transport,
        "source__resolver_send_final_advertisements": option,
        f"receiver__transport_{transport}_nak_generation_interval": 7000,
    }
    scene = Scene(stepper, options(**more))
    scene.source.send(b"sent")
    scene.source.send(b"waits", flush=False)
    scene.source.close(final=asked)
    assert scene.session.sent == [[whole(0, b"sent")], [whole(1, b"waits")]]
    assert scene.order == ["closed", (final, s(7))]
    scene.source.close()
    assert len(scene.order) == 2
    assert scene.source.is_closed
    with pytest.raises(UsageError, match="source of 't' is closed"):
        scene.source.send(b"x")
    scene.source.on_client("10.0.0.1:5", connected=True)
    scene.stepper.run(5000)
    assert (scene.events, scene.tsnis) == ([], [])
    assert scene.loop.next_deadline() is None
