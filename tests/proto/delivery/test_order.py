"""The delivery controller against the timed cases of the transport notes (T27 to T29) and its own rules."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from dro.clock import ms
from dro.config.um.options import UmOptions
from dro.config.um.sets import DeliveryOptions
from dro.proto.delivery.config import DeliveryConfig
from dro.proto.delivery.order import (
    ARRIVAL,
    ARRIVAL_FRAGMENTS,
    GAPS_MAX,
    IN_ORDER,
    DeliveryController,
    DeliveryEvent,
    LossBurst,
    Lost,
)
from dro.proto.delivery.reassembly import Delivered
from dro.sqn import HALF, add
from dro.wire.lbmc.headers import MessageHeaders


def short(events: list[DeliveryEvent]) -> list[str]:
    """Events in a line: `7` a message, `-7` a loss, `8..10` a burst."""
    out = []
    for event in events:
        match event:
            case Delivered(sqn=sqn):
                out.append(str(sqn))
            case Lost(sqn=sqn):
                out.append(f"-{sqn}")
            case LossBurst(first_sqn=first, count=count):
                out.append(f"{first}..{first + count - 1}")
    return out


def taken(c: DeliveryController) -> list[str]:
    has_events = c.has_events
    events = c.take_events()
    assert has_events is bool(events)
    assert c.has_events is False
    return short(events)


def feed(c: DeliveryController, *sqns: int, at: float = 0) -> list[str]:
    for sqn in sqns:
        c.on_fragment(sqn, None, b"%d" % sqn, ms(at))
    return taken(c)


def test_what_is_given_up_from_beside_in_a_long_row_is_a_burst() -> None:
    """The work does not grow with what the other side says; what is held comes in its place."""
    c = DeliveryController(DeliveryConfig(recovers=True))
    assert feed(c, 0) == ["0"]
    c.expect_before(1 << 30)
    assert feed(c, 500_000) == ["1..499999", "500000", f"500001..{(1 << 30) - 1}"]
    assert c.expected == 1 << 30
    c.expect_before((1 << 30) + 5000)
    assert feed(c, (1 << 30) + 2000) == []
    c.give_up((1 << 30) + 5000)
    assert taken(c) == [
        f"{1 << 30}..{(1 << 30) + 1999}",
        f"{(1 << 30) + 2000}",
        f"{(1 << 30) + 2001}..{(1 << 30) + 4999}",
    ]


def test_more_in_a_row_than_is_told_one_by_one_is_a_burst() -> None:
    c = DeliveryController(DeliveryConfig(burst_limit=10_000, row_max=100, immediate=True))
    assert feed(c, 0, 101, at=0) == ["0", *(f"-{n}" for n in range(1, 101)), "101"]
    assert feed(c, 203, at=1) == ["102..202", "203"]


def test_what_is_held_is_counted_with_its_headers() -> None:
    c = DeliveryController(DeliveryConfig())
    headers = MessageHeaders(None, ((1, b"x" * 100, 0),))
    c.on_fragment(0, None, b"0", 0)
    for sqn in (2, 3):
        c.on_fragment(sqn, None, b"abc", 0, 0, headers)
    assert c.held_bytes == 2 * (3 + headers.size)
    assert headers.size > 100
    c.on_fragment(1, None, b"1", 0)
    assert c.held_bytes == 0
    assert taken(c) == ["0", "1", "2", "3"]


def test_what_a_source_retains_is_fetched_however_much_it_is() -> None:
    """Nothing is kept for what is missing, so nothing bounds it."""
    c = DeliveryController(DeliveryConfig())
    c.begin_at(0)
    c.hold(is_on=True)
    c.expect_before(1 << 20)
    assert feed(c, 1 << 20, 0) == ["0"]
    assert c.expected == 1


def tsni(c: DeliveryController, sqn: int, at: float) -> list[str]:
    c.on_tsni(sqn, ms(at))
    return taken(c)


def tick(c: DeliveryController, at: float) -> list[str]:
    c.on_timer(ms(at))
    return taken(c)


PIECES = [(7, (7, 0, 20000), 8144), (8, (7, 8144, 20000), 8144), (9, (7, 16288, 20000), 3712)]


@pytest.mark.parametrize("mode", [IN_ORDER, ARRIVAL])
def test_t27_reassembly_when_the_middle_comes_last(mode: int) -> None:
    c = DeliveryController(DeliveryConfig(ordered_delivery=mode))
    for index, at in ((0, 0), (2, 1)):
        sqn, frag, length = PIECES[index]
        c.on_fragment(sqn, frag, bytes([sqn]) * length, ms(at), flags=1 << index)
        assert c.take_events() == []
    sqn, frag, length = PIECES[1]
    c.on_fragment(sqn, frag, bytes([sqn]) * length, ms(40), flags=2)
    (message,) = c.take_events()
    assert isinstance(message, Delivered)
    assert (message.sqn, message.first_sqn, message.flags, message.fragment) == (9, 7, 7, None)
    assert message.payload == b"\x07" * 8144 + b"\x08" * 8144 + b"\x09" * 3712


def test_t27_fragments_are_handed_up_as_they_come_in_mode_0() -> None:
    c = DeliveryController(DeliveryConfig(ordered_delivery=ARRIVAL_FRAGMENTS))
    for index in (0, 2, 1):
        sqn, frag, length = PIECES[index]
        c.on_fragment(sqn, frag, bytes(length), ms(index))
        (event,) = c.take_events()
        assert isinstance(event, Delivered)
        assert (event.sqn, event.first_sqn, event.fragment, len(event.payload)) == (sqn, 7, frag, length)


def test_t28_a_loss_is_reported_by_the_first_event_after_the_generation_interval() -> None:
    c = DeliveryController(DeliveryConfig())
    assert feed(c, 7) == ["7"]
    assert tsni(c, 8, 5001) == []
    assert tsni(c, 8, 10001) == []
    assert c.next_deadline() is None
    assert tick(c, 15001) == []
    assert tsni(c, 8, 15002) == ["-8"]
    assert c.stats.lost == 1
    assert not c.is_waiting


def test_t28_the_loss_check_interval_reports_at_its_own_multiples() -> None:
    c = DeliveryController(DeliveryConfig(loss_check_interval_ns=ms(2500)))
    feed(c, 7)
    assert tsni(c, 8, 5001) == []
    assert c.next_deadline() == ms(17500)
    assert tick(c, 17499.999) == []
    assert tick(c, 17500) == ["-8"]
    assert c.next_deadline() is None


def test_t28_a_repair_before_the_event_is_a_message_and_no_loss() -> None:
    c = DeliveryController(DeliveryConfig())
    feed(c, 7)
    tsni(c, 8, 5001)
    assert feed(c, 8, at=15000) == ["8"]
    assert tsni(c, 8, 20000) == []


@pytest.mark.parametrize("mode", [IN_ORDER, ARRIVAL, ARRIVAL_FRAGMENTS])
def test_t28_a_burst_is_one_event_at_once(mode: int) -> None:
    c = DeliveryController(DeliveryConfig(ordered_delivery=mode))
    feed(c, 7)
    assert feed(c, 1100, at=100) == ["8..1099", "1100"]
    assert feed(c, 500, at=101) == []
    assert (c.stats.bursts, c.stats.lost, c.stats.duplicates) == (1, 1092, 1)


def test_a_gap_of_just_the_limit_is_no_burst() -> None:
    c = DeliveryController(DeliveryConfig())
    feed(c, 7)
    assert feed(c, 7 + 1024 + 1) == []
    assert len(c._held) == 1


@pytest.mark.parametrize("mode", [IN_ORDER, ARRIVAL])
def test_a_burst_before_the_first_message_is_not_reported(mode: int) -> None:
    c = DeliveryController(DeliveryConfig(ordered_delivery=mode, burst_limit=10))
    c.on_fragment(7, (7, 0, 200), bytes(100), 0)
    assert feed(c, 50) == ["50"]
    assert (c.stats.bursts, c.stats.lost, c.stats.discarded) == (0, 0, 0)
    c.on_fragment(51, (49, 200, 300), bytes(100), 0)
    assert c.stats.orphans == 1, "its message began in the burst"
    assert c.accept_run(52, 1)


def test_a_burst_discards_what_is_held_and_covers_it() -> None:
    c = DeliveryController(DeliveryConfig(burst_limit=10))
    feed(c, 1)
    assert feed(c, 3, 4, at=1) == []
    assert feed(c, 20, at=2) == ["2..19", "20"]
    assert c.stats.discarded == 2
    assert feed(c, 2, 3, 5, at=3) == []


def test_a_burst_in_arrival_order_begins_behind_what_was_handed_up() -> None:
    c = DeliveryController(DeliveryConfig(ordered_delivery=ARRIVAL, burst_limit=10))
    assert feed(c, 1, 3, 4) == ["1", "3", "4"]
    assert feed(c, 20, at=1) == ["-2", "5..19", "20"]
    assert feed(c, 22, 24, at=2) == ["22", "24"]
    assert feed(c, 50, at=3) == ["-21", "-23", "25..49", "50"]


@pytest.mark.parametrize(
    ("config", "expect"),
    [
        (DeliveryConfig(immediate=True), ["-2", "3"]),
        (DeliveryConfig(immediate=True, dro_loss_recovery_timeout_ns=ms(500)), ["-2", "3"]),
        (DeliveryConfig(immediate=True, dro_loss_recovery_timeout_ns=ms(500), from_dro=True), []),
    ],
    ids=["a", "d", "b and c"],
)
def test_t29_a_gap_on_tcp(config: DeliveryConfig, expect: list[str]) -> None:
    c = DeliveryController(config)
    assert feed(c, 1) == ["1"]
    assert feed(c, 3, at=10) == expect


def test_the_defaults_are_those_of_the_options() -> None:
    o = DeliveryOptions.of(UmOptions())
    default = DeliveryConfig()
    assert o.fill(DeliveryConfig, generation_interval_ns=o.lbtrm_generation_ns) == default
    assert (default.immediate, default.from_dro) == (False, False)


def test_t29_b_the_missing_one_comes_in_time() -> None:
    c = DeliveryController(DeliveryConfig(immediate=True, dro_loss_recovery_timeout_ns=ms(500), from_dro=True))
    feed(c, 1)
    feed(c, 3, at=10)
    assert feed(c, 2, at=200) == ["2", "3"]
    assert c.next_deadline() is None


def test_t29_c_the_timer_gives_it_up() -> None:
    c = DeliveryController(DeliveryConfig(immediate=True, dro_loss_recovery_timeout_ns=ms(500), from_dro=True))
    feed(c, 1)
    feed(c, 3, at=10)
    assert c.next_deadline() == ms(510)
    assert tick(c, 509.999) == []
    assert tick(c, 510) == ["-2", "3"]


def test_held_messages_follow_their_loss_events() -> None:
    c = DeliveryController(DeliveryConfig(generation_interval_ns=ms(100)))
    feed(c, 1)
    assert feed(c, 3, 4, 6, at=10) == []
    assert feed(c, 7, at=109.9) == []
    assert feed(c, 8, at=110) == ["-2", "3", "4", "-5", "6", "7", "8"]


def test_each_gap_waits_from_its_own_time() -> None:
    c = DeliveryController(DeliveryConfig(generation_interval_ns=ms(100)))
    feed(c, 1)
    feed(c, 3, at=10)
    feed(c, 5, at=60)
    assert feed(c, 6, at=120) == ["-2", "3"]
    assert feed(c, 7, at=159) == []
    assert feed(c, 8, at=160) == ["-4", "5", "6", "7", "8"]


def test_what_comes_in_step_behind_a_gap_takes_no_place_of_another_gap() -> None:
    c = DeliveryController(DeliveryConfig(generation_interval_ns=ms(100)))
    last = GAPS_MAX + 10
    feed(c, 0, *range(2, last))
    feed(c, last + 1, at=10)
    feed(c, last + 3, at=20)
    assert tsni(c, last + 3, 110)[-2:] == [f"-{last}", f"{last + 1}"]


def test_the_repair_that_is_itself_the_late_event_is_delivered() -> None:
    c = DeliveryController(DeliveryConfig(generation_interval_ns=ms(100)))
    feed(c, 1)
    feed(c, 3, at=10)
    assert feed(c, 2, at=500) == ["2", "3"]


def test_nothing_is_reported_before_the_first_message() -> None:
    c = DeliveryController(DeliveryConfig(generation_interval_ns=ms(100)))
    assert tsni(c, 8, 0) == []
    assert feed(c, 10, at=10) == []
    assert feed(c, 11, at=110) == ["10", "11"]
    assert c.stats.lost == 0


def test_a_message_lost_right_after_the_first_tsni_is_waited_for() -> None:
    c = DeliveryController(DeliveryConfig())
    tsni(c, 8, 0)
    feed(c, 10, at=10)
    assert feed(c, 9, at=60) == ["9", "10"]


def test_the_newest_tsni_before_the_first_message_counts() -> None:
    c = DeliveryController(DeliveryConfig(burst_limit=10))
    for sqn in (7, 8, 6):
        tsni(c, sqn, 0)
    feed(c, 10)
    assert (c.expected, c.is_waiting) == (9, True)


@pytest.mark.parametrize(("first", "expected"), [(8, 9), (9, 10), (10, 9), (19, 9), (20, 21)])
def test_delivery_begins_behind_the_tsni_unless_that_is_too_far_or_later(first: int, expected: int) -> None:
    c = DeliveryController(DeliveryConfig(burst_limit=10))
    tsni(c, 8, 0)
    feed(c, first)
    assert c.expected == expected


def test_a_middle_right_behind_the_tsni_begins_delivery() -> None:
    c = DeliveryController(DeliveryConfig())
    tsni(c, 8, 0)
    c.on_fragment(9, (7, 200, 300), bytes(100), 0)
    assert (c.expected, c.stats.orphans) == (10, 1)


def test_fragments_in_arrival_order_begin_with_any_of_them() -> None:
    c = DeliveryController(DeliveryConfig(ordered_delivery=ARRIVAL_FRAGMENTS))
    c.on_fragment(9, (7, 200, 300), bytes(100), 0, 5)
    assert c.take_events() == [Delivered(9, 7, bytes(100), 5, (7, 200, 300))]
    c.on_fragment(10, None, b"x", 0, 3)
    assert c.take_events() == [Delivered(10, 10, b"x", 3, None)]


def test_a_tsni_shows_only_what_is_newer() -> None:
    c = DeliveryController(DeliveryConfig(loss_check_interval_ns=ms(1)))
    feed(c, 7)
    for sqn, waits in ((6, False), (7, False), (8, True)):
        tsni(c, sqn, 5)
        assert (c.is_waiting, c.next_deadline()) == (waits, ms(10_005) if waits else None)
    tsni(c, 8, 6)
    assert tick(c, 10_005) == ["-8"]
    assert (c.expected, c.is_waiting) == (9, False)


def test_the_start_is_the_first_message_start() -> None:
    c = DeliveryController(DeliveryConfig())
    c.on_fragment(9, (7, 200, 300), bytes(100), 0)
    assert c.expected is None
    assert feed(c, 10) == ["10"]
    assert feed(c, 9) == []
    assert (c.stats.orphans, c.stats.duplicates) == (1, 1)


def test_a_lost_fragment_costs_its_message_and_no_other() -> None:
    for mode in (IN_ORDER, ARRIVAL):
        c = DeliveryController(DeliveryConfig(ordered_delivery=mode, generation_interval_ns=ms(100)))
        feed(c, 6)
        c.on_fragment(7, (7, 0, 300), bytes(100), ms(1))
        c.on_fragment(9, (7, 200, 300), bytes(100), ms(2))
        expect = ["-8", "10"] if mode == IN_ORDER else ["10", "-8"]
        got = feed(c, 10, at=3) + tsni(c, 10, 102)
        assert got == expect
        c.on_fragment(8, (7, 100, 300), bytes(100), ms(103))
        assert c.take_events() == []


def test_the_rest_of_a_message_that_lost_a_piece_is_counted_and_not_kept() -> None:
    c = DeliveryController(DeliveryConfig(ordered_delivery=ARRIVAL, generation_interval_ns=ms(100)))
    feed(c, 6)
    c.on_fragment(7, (7, 0, 400), bytes(100), ms(1))
    c.on_fragment(9, (7, 200, 400), bytes(100), ms(2))
    assert tsni(c, 9, 102) == ["-8"]
    c.on_fragment(10, (7, 300, 400), bytes(100), ms(103))
    assert (c.take_events(), c.stats.orphans) == ([], 1)


def test_a_message_over_the_bound_is_lost_once_and_never_stored() -> None:
    for mode in (IN_ORDER, ARRIVAL):
        c = DeliveryController(DeliveryConfig(ordered_delivery=mode, message_max_bytes=250))
        feed(c, 6)
        c.on_fragment(7, (7, 0, 4_000_000_000), bytes(100), 0)
        c.on_fragment(8, (7, 100, 4_000_000_000), bytes(100), 0)
        assert taken(c) == ["-7"]
        assert feed(c, 9) == ["9"]
        assert (c.stats.too_long, c.stats.lost) == (1, 1)


@pytest.mark.parametrize(
    "frag",
    [
        (7, 0, 50),
        (7, 90, 120),
        (8, 0, 300),
        (7, 4_294_967_290, 20),
        (9, 100, 300),
        (7, 100, 0),
        (6, 0, 300),
        (7, 100, 300),
    ],
)
@pytest.mark.parametrize("mode", [IN_ORDER, ARRIVAL])
def test_fragments_that_cannot_be_are_refused(mode: int, frag: tuple[int, int, int]) -> None:
    c = DeliveryController(DeliveryConfig(ordered_delivery=mode))
    feed(c, 6)
    c.on_fragment(7, frag, bytes(100), 0)
    assert taken(c) == ["-7"]
    assert feed(c, 8) == ["8"]
    assert (c.stats.malformed, c.stats.lost) == (1, 1)


def test_what_cannot_be_and_is_older_than_the_start_is_no_loss() -> None:
    c = DeliveryController(DeliveryConfig(ordered_delivery=ARRIVAL))
    feed(c, 12)
    for sqn in (11, 10, 11):
        c.on_fragment(sqn, (sqn, 0, 50), bytes(100), 0)
    assert (c.take_events(), c.stats.malformed, c.stats.lost) == ([], 3, 0)


@pytest.mark.parametrize("quarters", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("mode", [IN_ORDER, ARRIVAL, ARRIVAL_FRAGMENTS])
def test_a_start_long_ago_makes_no_sqn_older_than_itself(mode: int, quarters: int) -> None:
    """A quarter is that of all sqns, which wrap."""
    c = DeliveryController(DeliveryConfig(ordered_delivery=mode))
    for quarter in range(quarters):
        assert c.accept_run(7 + quarter * (1 << 30) & 0xFFFFFFFF, 1 << 30)
        end = 7 + (quarter + 1) * (1 << 30) & 0xFFFFFFFF
        assert feed(c, add(end, -5)) == []
    assert c.stats.duplicates == quarters
    if mode != ARRIVAL_FRAGMENTS:
        c.on_fragment(end, (add(end, 1), 0, 100), b"12", 0)
        assert taken(c) == [f"-{end}"]


def test_the_first_sqn_may_be_a_loss() -> None:
    c = DeliveryController(DeliveryConfig(ordered_delivery=ARRIVAL))
    tsni(c, 8, 0)
    assert feed(c, 10) == ["10"]
    c.on_fragment(9, (9, 0, 50), bytes(100), 0)
    assert (taken(c), c.stats.lost) == (["-9"], 1)


def test_a_fragment_out_of_step_costs_the_message_once() -> None:
    c = DeliveryController(DeliveryConfig())
    feed(c, 6)
    for sqn, offset in ((7, 0), (8, 150), (9, 250)):
        c.on_fragment(sqn, (7, offset, 350), bytes(100), 0)
    assert taken(c) == ["-8"]
    assert (c.stats.malformed, c.stats.orphans) == (1, 1)


def test_a_whole_message_ends_the_one_under_way() -> None:
    c = DeliveryController(DeliveryConfig())
    feed(c, 6)
    c.on_fragment(7, (7, 0, 300), bytes(100), 0)
    assert feed(c, 8) == ["8"]
    c.on_fragment(9, (7, 100, 300), bytes(100), 0)
    assert c.take_events() == []
    assert (c.stats.malformed, c.stats.orphans) == (0, 1)
    assert c.accept_run(10, 1)


def test_the_map_limit_gives_up_the_oldest_gap() -> None:
    c = DeliveryController(DeliveryConfig(map_limit=3))
    feed(c, 1)
    assert feed(c, 3, 4, 6) == []
    assert feed(c, 8) == ["-2", "3", "4"]
    assert len(c._held) == 2


@pytest.mark.parametrize(("limit", "expect"), [(2999, ["-2", "3"]), (3000, [])])
def test_held_bytes_are_bounded_as_well(limit: int, expect: list[str]) -> None:
    c = DeliveryController(DeliveryConfig(held_max_bytes=limit))
    feed(c, 1)
    for sqn in (3, 5, 6):
        c.on_fragment(sqn, None, bytes(1000), 0)
    assert taken(c) == expect


def test_bytes_that_were_handed_up_or_discarded_are_not_held_any_more() -> None:
    c = DeliveryController(
        DeliveryConfig(held_max_bytes=100, map_limit=1, burst_limit=10, generation_interval_ns=ms(10))
    )

    def hold(sqn: int, at: float) -> list[str]:
        c.on_fragment(sqn, None, bytes(100), ms(at))
        return taken(c)

    assert feed(c, 1) == ["1"]
    assert hold(3, 0) == []
    assert feed(c, 2) == ["2", "3"]
    assert hold(5, 1) == []
    assert tsni(c, 5, 11) == ["-4", "5"]
    assert hold(7, 12) == []
    assert feed(c, 30, at=13) == ["6..29", "30"]
    assert (c.is_waiting, c.stats.discarded) == (False, 1)
    assert hold(32, 14) == []
    c.on_end()
    assert hold(34, 15) == []
    assert c.is_waiting


def test_bytes_that_waited_between_two_losses_are_not_held_any_more() -> None:
    c = DeliveryController(DeliveryConfig(held_max_bytes=200, generation_interval_ns=ms(10)))
    feed(c, 1)
    for start, at in ((3, 0), (8, 20)):
        for sqn in (start, start + 2):
            c.on_fragment(sqn, None, bytes(100), ms(at))
        assert taken(c) == []
        assert tsni(c, start + 2, at + 10) == [f"-{start - 1}", f"{start}", f"-{start + 1}", f"{start + 2}"]
        assert feed(c, start + 3, at=at + 10) == [f"{start + 3}"]


def test_as_much_as_the_default_of_held_bytes_may_wait() -> None:
    c = DeliveryController(DeliveryConfig())
    feed(c, 1)
    mebibyte = bytes(1 << 20)  # held 256 times, and there once
    for sqn in range(3, 3 + 256):
        c.on_fragment(sqn, None, mebibyte, 0)
    assert taken(c) == []
    assert feed(c, 300)[:2] == ["-2", "3"]


def test_missing_sqns_are_bounded_when_bursts_are_off() -> None:
    c = DeliveryController(DeliveryConfig(burst_limit=1_000_000_000, map_limit=0))
    feed(c, 1)
    assert feed(c, 2_000_000) == ["2..1999999", "2000000"]
    assert tsni(c, 2_200_000, 1) == []
    events = tsni(c, 2_400_000, 2)
    assert len(events) == 400_000
    assert not c.is_waiting


def test_as_many_sqns_may_be_missing_as_one_gap_may_have() -> None:
    most = 262_144
    config = DeliveryConfig(burst_limit=1_000_000_000, map_limit=0)
    for gap, expect in ((most, []), (most + 1, [f"2..{most + 2}"])):
        c = DeliveryController(config)
        feed(c, 1)
        assert tsni(c, 1 + gap, 0) == expect
    c = DeliveryController(config)
    feed(c, 1)
    assert tsni(c, 3, 0) == []
    assert feed(c, 4) == []
    assert tsni(c, 2 + most, 1) == []
    assert tsni(c, 3 + most, 1) == ["-2", "-3", "4"]


@pytest.mark.parametrize(("gaps", "at_first"), [(4095, 4095), (4096, 4095)])
def test_more_gaps_than_have_a_time_of_their_own_share_the_last(gaps: int, at_first: int) -> None:
    c = DeliveryController(DeliveryConfig(generation_interval_ns=ms(100), map_limit=0))
    feed(c, 0, *range(2, 2 * gaps + 2, 2))
    feed(c, 2 * gaps + 2, at=10)
    assert tsni(c, 0, 100).count("-1") == 1
    assert c.stats.lost == at_first
    tsni(c, 0, 110)
    assert (c.stats.lost, c.is_waiting) == (gaps + 1, False)


def test_sqns_wrap() -> None:
    c = DeliveryController(DeliveryConfig(generation_interval_ns=ms(100)))
    assert feed(c, 0xFFFFFFFE) == [str(0xFFFFFFFE)]
    assert feed(c, 1) == []
    assert feed(c, 0xFFFFFFFF) == [str(0xFFFFFFFF)]
    assert feed(c, 2, at=100) == ["-0", "1", "2"]


def test_runs_are_settled_without_events() -> None:
    c = DeliveryController(DeliveryConfig())
    assert c.accept_run(0xFFFFFFF0, 32)
    assert c.expected == 16
    assert c.take_events() == []
    assert feed(c, 15) == []
    assert not c.accept_run(17, 1)
    assert feed(c, 17) == []
    assert not c.accept_run(16, 1), "a gap is open: the held one must follow"
    assert feed(c, 16) == ["16", "17"]
    assert c.accept_run(18, 1)
    assert (c.stats.delivered, c.stats.duplicates) == (35, 1)


def test_a_run_does_not_pass_a_message_under_way() -> None:
    c = DeliveryController(DeliveryConfig())
    c.on_fragment(7, (7, 0, 200), bytes(100), 0)
    assert not c.accept_run(8, 1)


@pytest.mark.parametrize("mode", [IN_ORDER, ARRIVAL, ARRIVAL_FRAGMENTS])
def test_losses_are_reported_after_a_run_as_after_a_message(mode: int) -> None:
    c = DeliveryController(DeliveryConfig(ordered_delivery=mode, immediate=True))
    assert c.accept_run(5, 2)
    assert sorted(feed(c, 8)) == ["-7", "8"]
    assert feed(c, 4) == ([] if mode == IN_ORDER else ["4"])
    assert asdict(c.stats) == dict.fromkeys(asdict(c.stats), 0) | {
        "delivered": 3 + (mode != IN_ORDER), "lost": 1, "duplicates": int(mode == IN_ORDER)
    }  # fmt: skip


def test_a_run_after_a_tsni_waits_for_what_lies_between() -> None:
    c = DeliveryController(DeliveryConfig())
    tsni(c, 8, 0)
    assert not c.accept_run(10, 1)
    assert feed(c, 10, 9) == ["9", "10"]


def test_a_run_in_arrival_order_passes_a_message_under_way() -> None:
    c = DeliveryController(DeliveryConfig(ordered_delivery=ARRIVAL))
    c.on_fragment(7, (7, 0, 200), bytes(100), 0)
    assert c.accept_run(8, 1)


def test_the_end_of_the_session_is_silent_about_what_waits() -> None:
    c = DeliveryController(DeliveryConfig())
    feed(c, 1, 3, 4)
    c.on_end()
    assert c.take_events() == []
    assert (c.stats.discarded, len(c._held), c.expected) == (2, 0, 5)
    assert (c.is_waiting, c.next_deadline()) == (False, None)
    assert feed(c, 5) == ["5"]


@pytest.mark.parametrize("mode", [IN_ORDER, ARRIVAL, ARRIVAL_FRAGMENTS])
def test_a_message_half_there_at_the_end_of_the_session_is_not_completed_by_the_next(mode: int) -> None:
    c = DeliveryController(DeliveryConfig(ordered_delivery=mode))
    c.on_fragment(7, (7, 0, 200), bytes(100), 0)
    c.on_end()
    c.take_events()
    c.on_fragment(8, (7, 100, 200), bytes(100), 0)
    assert taken(c) == (["8"] if mode == ARRIVAL_FRAGMENTS else [])
    assert feed(c, 9) == ["9"]
    feed(c, 11)
    c.on_end()
    assert c.stats.discarded == int(mode == IN_ORDER), "in arrival order it was handed up"
    assert feed(c, 12) == ["12"]


def test_an_end_before_the_first_fragment_changes_nothing() -> None:
    c = DeliveryController(DeliveryConfig())
    c.on_end()
    assert (c.expected, c.stats.discarded) == (None, 0)
    assert feed(c, 5) == ["5"]


def test_a_tsni_may_show_a_burst_while_another_gap_is_open() -> None:
    c = DeliveryController(DeliveryConfig(burst_limit=10, loss_check_interval_ns=ms(1)))
    feed(c, 1, 3)
    assert tsni(c, 50, 1) == ["2..50"]
    assert (c.expected, c.is_waiting, c.next_deadline(), c.stats.discarded) == (51, False, None, 1)


def test_views_are_copied_when_they_must_wait() -> None:
    c = DeliveryController(DeliveryConfig())
    buffer = bytearray(b"a")
    feed(c, 1)
    c.on_fragment(3, None, memoryview(buffer), 0)
    buffer[0] = ord("b")
    c.on_fragment(2, None, memoryview(buffer), 0)
    got = [event.payload for event in c.take_events() if isinstance(event, Delivered)]
    assert [bytes(payload) for payload in got] == [b"b", b"a"]


def test_arrival_order_takes_what_is_older_than_the_start() -> None:
    c = DeliveryController(DeliveryConfig(ordered_delivery=ARRIVAL))
    assert feed(c, 12, 11, 13) == ["12", "11", "13"]
    assert feed(c, 12) == []


@pytest.mark.parametrize("mode", [IN_ORDER, ARRIVAL])
def test_a_replaced_session_ends_the_wait_for_what_came_before_the_new_one(mode: int) -> None:
    c = DeliveryController(DeliveryConfig(ordered_delivery=mode))
    feed(c, 0, 1, 3)
    shown = {IN_ORDER: ["-2", "3", "-4", "-5", "6"], ARRIVAL: ["-2", "-4", "-5"]}
    feed(c, 6, 8)
    c.on_replaced(6)
    assert taken(c) == shown[mode]
    assert c.is_waiting, "what is missing behind the new session's first one may still come"
    assert feed(c, 7, at=1) == {IN_ORDER: ["7", "8"], ARRIVAL: ["7"]}[mode]
    c.on_replaced(6)
    assert (c.take_events(), c.expected) == ([], 9)


def test_a_replaced_session_before_the_first_fragment_changes_nothing() -> None:
    c = DeliveryController(DeliveryConfig())
    c.on_replaced(6)
    assert (c.expected, c.take_events()) == (None, [])


def test_bytes_held_when_the_session_ended_do_not_count_for_the_next() -> None:
    c = DeliveryController(DeliveryConfig(held_max_bytes=100))
    c.on_fragment(0, None, b"", 0)
    c.on_fragment(2, None, bytes(60), 0)
    c.on_end()
    c.take_events()
    c.on_fragment(5, None, bytes(60), 0)
    assert (c.take_events(), c.is_waiting, len(c._held)) == ([], True, 1)


@pytest.mark.parametrize("mode", [IN_ORDER, ARRIVAL])
def test_flags_of_one_message_are_not_those_of_the_next(mode: int) -> None:
    c = DeliveryController(DeliveryConfig(ordered_delivery=mode))
    for sqn, flags in ((0, 1), (1, 2), (2, 0), (3, 4)):
        first = sqn // 2 * 2
        c.on_fragment(sqn, (first, (sqn - first) * 5, 10), bytes(5), 0, flags)
    assert [event.flags for event in c.take_events() if isinstance(event, Delivered)] == [3, 4]


def test_flags_of_a_message_that_lost_a_piece_are_not_those_of_the_next() -> None:
    c = DeliveryController(DeliveryConfig(immediate=True))
    feed(c, 0)
    c.on_fragment(1, (1, 0, 15), bytes(5), 0, 1)
    c.on_fragment(4, (4, 0, 10), bytes(5), 0, 0)
    c.on_fragment(5, (4, 5, 10), bytes(5), 0, 4)
    assert [event.flags for event in c.take_events() if isinstance(event, Delivered)] == [4]


def test_a_newest_sqn_exactly_half_around_is_a_burst() -> None:
    controller = DeliveryController(DeliveryConfig())
    controller.on_fragment(9, None, b"x", 0)
    controller.take_events()
    controller.on_tsni(9 + HALF, 0)
    assert controller.take_events() == [LossBurst(10, HALF)]
    assert controller.expected == 10 + HALF
