"""Late join and OTR of one stream: what is asked for and when, and that every sqn is settled once and in order."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dro.clock import ms, s
from dro.proto.delivery.config import DeliveryConfig
from dro.proto.delivery.order import MISSING_MAX, LossBurst
from dro.proto.delivery.reassembly import Delivered
from dro.proto.stream.asks import AskAgain, AskNewest, AskRetained
from dro.proto.stream.recovery import RecoveryPhase
from dro.proto.stream.retention import RetentionConfig
from dro.sqn import MASK, add
from dro.state import restore, snapshot
from tests.fakes.origins import LATE, LATE_FLAG, OTR, OTR_FLAG, USUAL, Talk

ORDERS = pytest.mark.parametrize("order", [1, -1, 0])
ONLY_OTR = replace(USUAL, late_join=None, otr=OTR)


def in_order(talk: Talk, first: int, count: int) -> bool:
    return talk.got == [add(first, n) for n in range(count)] and not talk.lost


@ORDERS
@pytest.mark.parametrize("first", [0, MASK - 500])
def test_a_late_receiver_gets_what_is_retained_before_what_is_live(order: int, first: int) -> None:
    talk = Talk(delivery=DeliveryConfig(ordered_delivery=order, immediate=True), first_sqn=first)
    talk.send(1000)
    talk.join()
    talk.send(300, every_ms=10)
    talk.run(5000)
    assert in_order(talk, first, 1300)
    assert talk.flagged(LATE_FLAG)[:1000] == [add(first, n) for n in range(1000)]
    assert talk.flagged(LATE_FLAG) == talk.got[: len(talk.flagged(LATE_FLAG))], "those come first"
    assert LATE_FLAG not in [event.flags for event in talk.events if isinstance(event, Delivered)][1000:]
    assert talk.recovery is not None
    assert talk.recovery.phase is RecoveryPhase.LIVE
    assert talk.recovery.next_deadline() is None
    before = len(talk.asks)
    talk.send(100, every_ms=10)
    talk.run(1000)
    assert (talk.got[-100:], len(talk.asks)) == ([add(first, 1300 + n) for n in range(100)], before)


@ORDERS
def test_what_is_lost_and_doubled_on_the_way_changes_nothing(order: int) -> None:
    talk = Talk(delivery=DeliveryConfig(ordered_delivery=order), copies=2)
    rng = Random(3)
    talk.loses = lambda kind, _number: kind != "live" and rng.random() < 0.3
    talk.send(300)
    talk.join()
    talk.send(200, every_ms=10)
    talk.run(60_000)
    assert in_order(talk, 0, 500)


def test_without_a_limit_not_more_are_asked_for_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dro.proto.stream.recovery.ASKED_MAX", 100)
    talk = Talk(replace(USUAL, late_join=replace(LATE, outstanding_max=0), proximity=1 << 31))
    talk.loses = lambda kind, number: kind == "answer" and number > 0
    talk.send(500)
    talk.join()
    talk.run(2000)
    assert len({ask.sqn for ask in talk.asks if isinstance(ask, AskAgain)}) == 100


def test_no_more_than_so_many_are_outstanding_and_the_oldest_is_asked_for_first() -> None:
    talk = Talk()
    talk.send(100)
    talk.join()
    talk.run(45)
    asked = [ask.sqn for ask in talk.asks if isinstance(ask, AskAgain)]
    assert asked == list(range(10))
    talk.run(5000)
    assert [ask.sqn for ask in talk.asks if isinstance(ask, AskAgain)] == list(range(100))


@pytest.mark.parametrize(("wanted", "expected"), [(0, 50), (7, 7), (50, 50), (80, 50)])
def test_a_receiver_may_ask_for_the_newest_alone(wanted: int, expected: int) -> None:
    talk = Talk(replace(USUAL, request_max=wanted))
    talk.send(50)
    talk.join()
    talk.run(1000)
    assert talk.got == list(range(50 - expected, 50))


def test_a_request_is_repeated_and_at_last_given_up_as_a_loss() -> None:
    talk = Talk()
    talk.send(3)
    talk.join()
    talk.run(45)
    talk.loses = lambda kind, _number: kind == "answer"
    talk.run(9_900)
    assert (talk.got, talk.lost) == ([], [])
    repeats = [ask.sqn for ask in talk.asks if isinstance(ask, AskAgain)]
    assert repeats == [0, 1, 2] * 20
    talk.run(200)
    assert talk.lost == [0, 1, 2]
    talk.send(1)
    talk.run(100)
    assert talk.got == [3]


def test_what_is_not_retained_any_more_is_given_up_when_the_source_says_so() -> None:
    talk = Talk(retains=RetentionConfig(size_threshold_bytes=100))
    talk.send(60)
    talk.join()
    talk.run(45)
    talk.send(500)
    talk.run(3000)
    low = talk.retention.low_sqn
    assert talk.lost
    assert set(talk.lost) | set(talk.got) >= set(range(low, 560))
    assert not set(talk.lost) & set(talk.got)
    assert talk.got == sorted(talk.got)
    assert max(talk.lost) < low


def test_a_source_that_does_not_answer_is_listened_to_after_a_while() -> None:
    talk = Talk(replace(USUAL, info_max=5))
    talk.send(10)
    talk.loses = lambda kind, _number: kind == "answer"
    talk.join()
    talk.send(3)
    talk.run(4_900)
    assert (talk.got, talk.asked(AskRetained)) == ([], 5)
    talk.run(200)
    assert talk.got == [10, 11, 12]
    talk.send(2)
    talk.run(1000)
    assert (talk.got, talk.lost, talk.asked(AskRetained)) == ([10, 11, 12, 13, 14], [], 5)


def test_a_first_request_that_is_lost_is_repeated() -> None:
    talk = Talk()
    talk.send(10)
    talk.loses = lambda kind, number: kind == "ask" and number == 0
    talk.join()
    talk.send(5)
    talk.run(990)
    assert talk.got == []
    talk.run(200)
    assert in_order(talk, 0, 15)


@pytest.mark.parametrize("asks", [True, False])
def test_a_source_that_has_sent_nothing_is_asked_for_its_sqn(asks: bool) -> None:
    talk = Talk(replace(USUAL, asks_silent=asks), first_sqn=7)
    talk.join()
    talk.run(200)
    assert talk.asked(AskNewest) == asks
    talk.run(5000)
    assert talk.asked(AskNewest) == asks, "the answer has come"
    talk.send(3)
    talk.run(100)
    assert in_order(talk, 7, 3)


def test_a_source_that_says_nothing_of_its_sqn_is_asked_so_often_and_no_more() -> None:
    talk = Talk(replace(USUAL, silent_max=4))
    talk.loses = lambda kind, _number: kind == "live"
    talk.join()
    talk.run(60_000)
    assert talk.asked(AskNewest) == 4


def test_a_message_lost_right_after_a_silent_source_was_joined_is_reported() -> None:
    """The receiver knows where it begins."""
    talk = Talk(delivery=DeliveryConfig(immediate=True))
    talk.join()
    talk.run(200)
    talk.send(3, lost=range(1))
    talk.run(100)
    assert (talk.got, talk.lost) == ([1, 2], [0])


def test_what_was_sent_between_the_answer_and_the_first_live_message_is_fetched() -> None:
    """A connection that is slow to come up, as it is across DROs."""
    talk = Talk(delivery=DeliveryConfig(immediate=True))
    talk.send(20)
    talk.join()
    talk.run(1000)
    assert in_order(talk, 0, 20)
    talk.send(5, lost=range(5))
    talk.send(1)
    talk.run(1000)
    assert in_order(talk, 0, 26)


def test_a_tsni_shows_what_was_sent_before_the_session_was_there() -> None:
    talk = Talk(delivery=DeliveryConfig(immediate=True))
    talk.send(20)
    talk.join()
    talk.run(1000)
    talk.send(5, lost=range(5))
    talk.tsni()
    talk.run(1000)
    assert in_order(talk, 0, 25)


@pytest.mark.parametrize(("proximity", "held"), [(0, 0), (5, 5), (5000, 400), (0x7FFFFFFF, 400)])
def test_live_messages_far_ahead_are_dropped_and_fetched_later(proximity: int, held: int) -> None:
    talk = Talk(replace(USUAL, proximity=proximity))
    talk.send(1000)
    talk.join()
    talk.send(400)
    talk.run(60_000)
    assert in_order(talk, 0, 1400)
    assert talk.most_held <= held + 10
    assert talk.recovery is not None
    assert bool(talk.recovery.dropped) == (proximity < 400)


def test_as_much_is_held_as_the_map_takes() -> None:
    talk = Talk(replace(USUAL, held_max=50), DeliveryConfig(map_limit=50))
    talk.send(1000)
    talk.join()
    talk.send(400)
    talk.run(60_000)
    assert in_order(talk, 0, 1400)
    assert talk.most_held <= 50


def test_an_absurd_sqn_is_not_waited_for() -> None:
    talk = Talk()
    talk.send(5)
    talk.join()
    talk.run(1000)
    assert talk.recovery is not None
    talk.recovery.on_fragment(add(5, MISSING_MAX + 10), None, b"?", talk.now_ns)
    talk.recovery.on_retained(9, 3, talk.now_ns)
    assert not talk.recovery.on_again(3, None, b"?", talk.now_ns, 0, None), "it was not asked for"
    talk.send(3)
    talk.run(1000)
    assert in_order(talk, 0, 8)


# off-transport recovery


@ORDERS
def test_otr_asks_for_what_stays_away(order: int) -> None:
    talk = Talk(ONLY_OTR, DeliveryConfig(ordered_delivery=order, immediate=True, recovers=True))
    talk.join()
    talk.send(10, lost=range(3, 6))
    talk.run(1900)
    assert (talk.asks, talk.lost) == ([], [])
    assert talk.got == ([0, 1, 2] if order == 1 else [0, 1, 2, 6, 7, 8, 9])
    talk.run(200)
    assert sorted(talk.got) == list(range(10))
    assert talk.flagged(OTR_FLAG) == [3, 4, 5]
    assert not talk.lost
    assert len(talk.asks) == 3


def test_otr_asks_less_and_less_often_and_gives_up() -> None:
    talk = Talk(ONLY_OTR)
    talk.join()
    talk.loses = lambda kind, _number: kind == "ask"
    talk.send(4, lost=range(1, 2))
    talk.run(2030)
    times: list[int] = []
    for _ in range(620):
        before = len(talk.asks)
        talk.run(100)
        times += [round((talk.now_ns - s(3)) / s(1))] * (len(talk.asks) - before)
    assert times == [1, 3, 7, 15, 25, 35, 45, 55]
    assert talk.lost == [1]
    assert talk.got == [0, 2, 3]


def test_what_the_transport_repairs_in_time_is_not_asked_for() -> None:
    talk = Talk(ONLY_OTR)
    talk.join()
    talk.send(5, lost=range(2, 3))
    talk.run(1000)
    assert talk.recovery is not None
    talk.recovery.on_fragment(2, None, b"2", talk.now_ns)
    talk.run(10_000)
    assert (in_order(talk, 0, 5), talk.asks) == (True, [])


def test_otr_begins_at_once_when_much_waits() -> None:
    talk = Talk(replace(ONLY_OTR, otr_threshold=50))
    talk.join()
    talk.send(50, lost=range(1, 2))
    talk.run(25)
    assert talk.asks == []
    talk.send(5)
    talk.run(100)
    assert talk.flagged(OTR_FLAG) == [1]
    assert in_order(talk, 0, 55)


@pytest.mark.parametrize(("most", "at_once"), [(5, 5), (0, 300)])
def test_otr_asks_for_so_many_at_once(most: int, at_once: int) -> None:
    talk = Talk(replace(ONLY_OTR, otr=replace(OTR, outstanding_max=most)))
    talk.join()
    talk.send(400, lost=range(50, 350))
    talk.run(2030)
    assert len(talk.asks) == at_once
    talk.run(20_000)
    assert in_order(talk, 0, 400)


def test_a_burst_is_reported_and_nothing_of_it_is_asked_for() -> None:
    talk = Talk(ONLY_OTR, DeliveryConfig(burst_limit=100, recovers=True))
    talk.join()
    talk.send(200, lost=range(10, 15))
    talk.run(1000)
    talk.send(200, lost=range(150))
    talk.run(10_000)
    (burst,) = [event for event in talk.events if isinstance(event, LossBurst)]
    assert (burst, talk.asks) == (LossBurst(10, 340), [])
    assert talk.got == [*range(10), *range(350, 400)]


def test_otr_finds_by_a_tsni_what_came_last() -> None:
    talk = Talk(ONLY_OTR)
    talk.join()
    talk.send(5, lost=range(3, 5))
    talk.tsni()
    talk.run(3000)
    assert in_order(talk, 0, 5)


def test_both_are_used_one_after_the_other() -> None:
    talk = Talk(replace(USUAL, otr=OTR))
    talk.send(100)
    talk.join()
    talk.send(100, every_ms=10)
    talk.send(10, lost=range(2, 5))
    talk.run(5000)
    assert in_order(talk, 0, 210)
    assert talk.flagged(OTR_FLAG) == [202, 203, 204]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_every_sqn_is_settled_once_whatever_is_lost(data: st.DataObject) -> None:
    order = data.draw(st.sampled_from([1, -1]))
    config = data.draw(st.sampled_from([replace(USUAL, otr=OTR), USUAL, ONLY_OTR, replace(USUAL, proximity=3)]))
    rng = Random(data.draw(st.integers(0, 1 << 32)))
    shares = {kind: data.draw(st.sampled_from([0.0, 0.05, 0.5])) for kind in ("live", "ask", "answer")}
    delivery = DeliveryConfig(ordered_delivery=order, recovers=config.otr is not None, loss_check_interval_ns=ms(500))
    first = data.draw(st.sampled_from([0, MASK - 20]))
    talk = Talk(config, delivery, first_sqn=first, copies=data.draw(st.integers(1, 2)))
    talk.loses = lambda kind, _number: rng.random() < shares[kind]
    talk.send(data.draw(st.integers(0, 60)))
    talk.join()
    for _ in range(data.draw(st.integers(1, 4))):
        talk.send(data.draw(st.integers(0, 40)), every_ms=data.draw(st.sampled_from([0, 10, 300])))
        talk.run(data.draw(st.sampled_from([0, 100, 3000])))
    talk.loses = lambda _kind, _number: False
    talk.send(1)
    talk.tsni()
    talk.run(200_000)
    settled = talk.got + talk.lost
    assert len(settled) == len(set(settled))
    assert add(talk.retention.next_sqn, -1) in talk.got
    if order == 1:
        assert [add(sqn, -first) for sqn in talk.got] == sorted(add(sqn, -first) for sqn in talk.got)
    places = sorted(add(sqn, -first) for sqn in settled)
    assert places == list(range(places[0], places[0] + len(places))), "no gap is left"
    assert talk.recovery is not None
    assert not talk.recovery._asked


def test_a_recovery_that_is_stored_goes_on() -> None:
    talk = Talk(replace(USUAL, otr=OTR))
    talk.send(100)
    talk.join()
    talk.run(100)
    talk.send(3)
    assert talk.recovery is not None
    states = snapshot(talk.controller), snapshot(talk.recovery)
    talk.join()
    assert talk.recovery is not None
    restore(talk.controller, states[0])
    restore(talk.recovery, states[1])
    talk.run(2000)
    assert in_order(talk, 0, 103)


def test_a_stream_that_is_over_asks_for_nothing() -> None:
    talk = Talk()
    talk.send(100)
    talk.join()
    talk.run(45)
    assert talk.recovery is not None
    talk.recovery.close()
    assert talk.recovery.next_deadline() is None
    talk.recovery.on_timer(talk.now_ns + s(30))
    assert (talk.recovery.asks, talk.recovery._asked) == ([], {})
