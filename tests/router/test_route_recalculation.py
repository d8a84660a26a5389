"""The route manager's core: when it calculates, what it sends, and what it does not."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.bus.messages import Origin, Route, RouteTable
from dro.clock import ms, s
from router.own_portals import DomainTaken
from router.route_recalculation import (
    KEPT_HOLD_NS,
    RESTART_HOLD_NS,
    RouteCore,
    SendTable,
    StillChanging,
    Timing,
    TopologyChange,
    TopologyChanged,
)
from router.topology import DroRecord, Neighbour
from tests.router.test_paths import DRO_BIT

ORIGINS = (Origin(10, 1, 0), Origin(20, 4, 0))
BOTH_WAYS = (Route((20,), 10, 2, 1), Route((10,), 20, 1, 2))
GUIDE = Timing(check_ns=ms(750), backoff_ns=s(5), warning_ns=s(10))


def core(timing: Timing = GUIDE, incarnation: int = 1) -> RouteCore:
    return RouteCore(DRO_BIT | 5, timing, incarnation=incarnation, now_ns=0)


def sent(c: RouteCore) -> list[SendTable]:
    return [effect for effect in c.take_effects() if isinstance(effect, SendTable)]


def settled() -> RouteCore:
    """Portals 1 and 2 in domains 10 and 20, calculated."""
    c = core()
    c.on_portal_up(1, 10, 1, now_ns=0)
    c.on_portal_up(2, 20, 1, now_ns=0)
    c.on_timer(now_ns=s(6))
    assert c.table is not None
    c.take_effects()
    return c


def test_nothing_to_do_before_the_first_portal() -> None:
    c = core()
    assert c.next_deadline() is None
    c.on_timer(now_ns=s(100))
    assert c.take_effects() == []
    assert c.table is None


def test_the_first_table_comes_at_the_first_check_after_the_backoff() -> None:
    c = core()
    c.on_portal_up(1, 10, 1, now_ns=ms(100))
    c.on_portal_up(2, 20, 1, now_ns=ms(300))
    assert c.next_deadline() == ms(6000)  # 5.3 s has come at the eighth check of 750 ms
    c.on_timer(now_ns=ms(5999))
    assert sent(c) == []
    c.on_timer(now_ns=ms(6000))
    assert sent(c) == [SendTable(c.table)]  # type: ignore[arg-type]  # there is one now
    assert c.table is not None
    assert c.table.routes == BOTH_WAYS
    assert c.next_deadline() is None


def test_the_change_is_told_with_the_version_that_follows() -> None:
    c = core(incarnation=3)
    c.on_portal_up(1, 10, 1, now_ns=0)
    assert c.take_effects() == [TopologyChanged(TopologyChange.LINK_UP, 10, (3 << 32) + 1)]
    c.on_timer(now_ns=s(6))
    assert c.table is not None
    assert c.table.version == (3 << 32) + 1
    assert c.table.routes == ()


def test_a_star_has_a_route_for_every_ordered_pair() -> None:
    c = core()
    for worker in range(1, 5):
        c.on_portal_up(worker, worker * 10, 1, now_ns=0)
    c.on_timer(now_ns=s(6))
    assert c.table is not None
    assert len(c.table.routes) == 12
    assert all((r.source_domains, r.interested_domain) == ((r.ingress * 10,), r.egress * 10) for r in c.table.routes)


def test_a_restarted_portal_gets_the_table_and_the_others_hear_nothing() -> None:
    c = settled()
    c.on_portal_gone(1, now_ns=s(10))
    assert sent(c) == []
    c.on_portal_up(1, 10, 1, now_ns=s(11))
    assert sent(c) == [SendTable(c.table, 1)]  # type: ignore[arg-type]  # there is one
    assert c.next_deadline() is None
    c.on_timer(now_ns=s(60))
    assert c.take_effects() == []


def test_a_link_that_breaks_and_is_back_again_and_again_changes_nothing() -> None:
    c = core()
    c.on_portal_up(1, 10, 1, now_ns=0)
    c.on_portal_up(2, 0, 1, now_ns=0, neighbour=DRO_BIT | 9, since_us=1)
    c.on_timer(now_ns=s(6))
    before = c.table
    for number in range(100):
        c.on_portal_gone(2, now_ns=s(10) + number * ms(200))
        c.on_portal_up(2, 0, 1, now_ns=s(10) + number * ms(200) + 1, neighbour=DRO_BIT | 9, since_us=2 + number)
        assert c.is_settled
        assert c.next_deadline() is None
    assert c.table is before


def test_a_portal_that_stays_away_is_taken_out() -> None:
    c = settled()
    before = c.table
    assert before is not None
    c.on_portal_gone(1, now_ns=s(10))
    c.on_portal_gone(1, now_ns=s(11))
    c.on_timer(now_ns=s(16))
    assert c.table is not None
    assert sent(c) == [SendTable(c.table)]
    assert c.table.version == before.version + 1
    assert c.table.routes == ()


def quick() -> RouteCore:
    """Two portals and their table, with a backoff that is shorter than the hold for a restart."""
    c = core(Timing(check_ns=ms(5), backoff_ns=ms(20), warning_ns=s(10)))
    c.on_portal_up(1, 10, 1, now_ns=0)
    c.on_portal_up(2, 20, 1, now_ns=0)
    c.on_timer(now_ns=s(1))
    c.take_effects()
    return c


def test_a_portal_whose_process_ended_is_waited_for_but_not_one_that_was_removed() -> None:
    c = quick()
    c.on_portal_gone(1, now_ns=s(2), restarts=True)
    assert c.next_deadline() == s(2) + RESTART_HOLD_NS
    c.on_portal_gone(1, now_ns=s(2) + ms(5))
    assert c.next_deadline() == s(2) + ms(20)
    c.on_timer(now_ns=s(2) + ms(20))
    assert [e.worker for e in sent(c)] == [None]
    assert c.table is not None
    assert c.table.routes == ()


def test_a_removal_does_not_cut_short_the_wait_for_another_portal() -> None:
    c = quick()
    c.on_portal_gone(1, now_ns=s(2), restarts=True)
    c.on_portal_gone(2, now_ns=s(2))
    assert c.next_deadline() == s(2) + RESTART_HOLD_NS


def test_a_removed_portal_may_come_again_under_another_number() -> None:
    c = quick()
    c.on_portal_gone(1, now_ns=s(2))
    c.on_portal_up(3, 10, 1, now_ns=s(2) + ms(1))
    c.on_timer(now_ns=s(3))
    assert not any(isinstance(e, DomainTaken) for e in c.take_effects())
    assert c.table is not None
    assert {(r.ingress, r.egress) for r in c.table.routes} == {(3, 2), (2, 3)}


def test_the_removal_of_what_is_not_there_changes_nothing() -> None:
    c = quick()
    c.on_portal_gone(7, now_ns=s(2))
    assert c.next_deadline() is None
    assert c.take_effects() == []


def test_a_new_cost_is_a_change() -> None:
    c = settled()
    c.on_portal_up(1, 10, 7, now_ns=s(10))
    assert c.next_deadline() is not None
    c.on_timer(now_ns=s(16))
    assert len(sent(c)) == 2  # the table that held, then the new one


def test_each_change_pushes_the_calculation_out_for_as_long_as_the_warning_interval() -> None:
    c = settled()
    warnings: list[tuple[int, int]] = []
    for now in range(s(20), s(30), s(2)):
        c.on_portal_up(3, 30, now // s(1), now_ns=now)
        c.on_timer(now_ns=now)
        warnings += [(now, e.waiting_ns) for e in c.take_effects() if isinstance(e, StillChanging)]
        assert c.table is not None
        assert len(c.table.routes) == 2
    assert warnings == []
    c.on_timer(now_ns=s(30))
    assert [e for e in c.take_effects() if isinstance(e, StillChanging)] == [StillChanging(s(10))]
    assert c.table is not None
    assert len(c.table.routes) == 6


@pytest.mark.parametrize("every_s", [1, 2, 3, 4, 5, 6])
def test_one_far_link_that_changes_without_end_does_not_keep_all_else_waiting(every_s: int) -> None:
    """Finding of a review: with changes at most 5 s apart there was no table at all."""
    c = settled()
    times = []
    for now_s in range(20, 300):
        if now_s % every_s == 0:
            far = (Neighbour(DRO_BIT | 8, now_s, 1),)
            c.on_dro(DroRecord(DRO_BIT | 9, far, version=now_s), s(now_s))
        if now_s == 30:
            c.on_portal_gone(2, s(30))
        c.on_timer(s(now_s))
        times += [now_s] * any(table.is_new for table in sent(c))
    assert c.table is not None
    assert c.table.routes == ()
    assert min(time for time in times if time >= 30) <= 41
    assert max(b - a for a, b in pairwise(times)) <= 11 + every_s


def test_a_second_portal_of_a_domain_is_ignored() -> None:
    c = settled()
    c.on_portal_up(3, 20, 1, now_ns=s(10))
    assert c.take_effects() == [DomainTaken(3, 20)]
    assert c.next_deadline() is None


@pytest.mark.parametrize("check_ns", [0, 1, ms(750)])
def test_deadlines_are_never_missed_by_their_own_timer(check_ns: int) -> None:
    c = core(Timing(check_ns, backoff_ns=0, warning_ns=s(10)))
    c.on_portal_up(1, 10, 1, now_ns=ms(100))
    deadline = c.next_deadline()
    assert deadline is not None
    assert deadline >= ms(100)
    c.on_timer(now_ns=deadline)
    assert c.table is not None


def test_a_portal_that_restarts_has_a_second_however_short_the_backoff_is() -> None:
    c = core(Timing(check_ns=ms(50), backoff_ns=ms(100), warning_ns=s(10)))
    for worker in (1, 2, 3):
        c.on_portal_up(worker, worker * 10, 1, now_ns=0)
    c.on_timer(now_ns=ms(100))
    version = sent(c)[0].table.version
    c.on_portal_gone(1, now_ns=s(2), restarts=True)
    assert c.next_deadline() == s(3)
    c.on_timer(now_ns=ms(2999))
    assert sent(c) == []
    c.on_portal_up(1, 10, 1, now_ns=ms(2999))
    assert [effect.table.version for effect in sent(c)] == [version]
    assert c.next_deadline() is None
    c.on_portal_gone(2, now_ns=s(5), restarts=True)
    c.on_timer(now_ns=s(6))
    assert [len(effect.table.routes) for effect in sent(c)] == [2]  # it did not return: 1 and 3 are left
    c.on_portal_gone(3, now_ns=s(7))
    assert c.next_deadline() == ms(7100)


def test_a_restarted_route_manager_waits_for_the_report_of_each_living_portal() -> None:
    """A table without a portal that is slow to report would end its flows."""
    c = core(Timing(check_ns=ms(50), backoff_ns=ms(100), warning_ns=s(10)), incarnation=2)
    for worker in (1, 2, 3):
        c.on_portal_expected(worker, now_ns=0)
    c.on_portal_up(1, 10, 1, now_ns=ms(1))
    c.on_portal_expected(1, now_ns=ms(2))  # has reported: nothing to wait for
    c.on_portal_up(2, 20, 1, now_ns=ms(3))
    c.on_timer(now_ns=s(9))
    assert sent(c) == []
    c.on_portal_up(3, 20, 1, now_ns=s(9))  # the report counts also when its domain is taken
    assert c.next_deadline() == ms(150)
    c.on_timer(now_ns=s(9))
    assert [len(effect.table.routes) for effect in sent(c)] == [2]


@pytest.mark.parametrize("is_back", [True, False])
def test_a_portal_that_died_with_the_route_manager_is_waited_for(is_back: bool) -> None:
    """It is not up yet, so nobody says that it is expected; the table that is kept says so."""
    kept = settled().kept
    assert kept is not None
    c = RouteCore(DRO_BIT | 5, Timing(ms(50), ms(100), s(10)), incarnation=2, now_ns=0, kept=kept)
    c.on_portal_up(1, 10, 1, now_ns=ms(1))
    assert c.next_deadline() == KEPT_HOLD_NS
    if is_back:
        c.on_portal_expected(2, now_ns=ms(200))
        c.on_portal_up(2, 20, 1, now_ns=ms(300))
    c.on_timer(now_ns=KEPT_HOLD_NS)
    assert [len(effect.table.routes) for effect in sent(c) if effect.is_new] == [2 if is_back else 0]


def test_a_portal_that_never_reports_is_left_out_in_the_end() -> None:
    c = core(Timing(check_ns=ms(50), backoff_ns=ms(100), warning_ns=s(60)))
    c.on_portal_expected(1, now_ns=0)
    c.on_portal_expected(2, now_ns=0)
    c.on_portal_expected(3, now_ns=0)
    c.on_portal_up(1, 10, 1, now_ns=0)
    c.on_portal_gone(2, now_ns=s(5))  # removed: nobody waits for it
    c.on_portal_gone(3, now_ns=s(5), restarts=True)
    assert c.next_deadline() == s(5) + RESTART_HOLD_NS
    c.on_portal_expected(3, now_ns=ms(5500))
    assert c.next_deadline() == ms(15_500)
    c.on_timer(now_ns=ms(15_500))
    assert [effect.worker for effect in sent(c)] == [None]


def test_a_changed_cost_is_told_as_such() -> None:
    c = settled()
    c.on_portal_up(1, 10, 7, now_ns=s(10))
    assert [e.what for e in c.take_effects() if isinstance(e, TopologyChanged)] == [TopologyChange.NODE_UPDATED]


def test_a_new_timing_holds_for_what_is_due_already() -> None:
    c = settled()
    c.on_portal_up(1, 10, 7, now_ns=s(10))
    assert c.next_deadline() == ms(15_000)
    c.set_timing(Timing(check_ns=ms(100), backoff_ns=ms(250), warning_ns=s(10)))
    assert c.next_deadline() == ms(10_300)  # at a multiple of the new interval
    c.set_timing(Timing(check_ns=ms(100), backoff_ns=s(60), warning_ns=s(20)))
    assert c.next_deadline() == s(30), "the warning"
    c.set_timing(GUIDE)
    c.on_timer(now_ns=s(15))
    assert c.next_deadline() is None


def test_a_new_timing_without_a_change_calculates_nothing() -> None:
    c = settled()
    c.set_timing(Timing(check_ns=ms(1), backoff_ns=0, warning_ns=0))
    assert c.next_deadline() is None
    assert c.take_effects() == []


def test_what_a_change_costs_from_its_beginning_to_its_end() -> None:
    """Every effect and every deadline; the checks count from when the route manager began."""
    c = RouteCore(DRO_BIT | 5, Timing(ms(100), ms(250), ms(450)), incarnation=2, now_ns=ms(30))
    c.on_portal_up(1, 10, 1, now_ns=ms(40))
    assert c.next_deadline() == ms(330)
    c.on_portal_up(2, 20, 3, now_ns=ms(200))
    assert c.next_deadline() == ms(530), "the calculation at 450, and the warning at 490, at the same check"
    c.on_portal_up(2, 20, 4, now_ns=ms(400))
    assert c.next_deadline() == ms(530), "the longest wait is over at 490"
    version = (2 << 32) + 1
    up, updated = TopologyChange.LINK_UP, TopologyChange.NODE_UPDATED
    changes = [TopologyChanged(*one, version) for one in ((up, 10), (up, 20), (updated, c.node_id))]
    assert c.take_effects() == changes
    c.on_timer(ms(530) - 1)
    assert c.take_effects() == []
    c.on_timer(ms(530))
    assert c.take_effects() == [StillChanging(ms(490)), SendTable(RouteTable(version, BOTH_WAYS, ORIGINS))]
    assert c.next_deadline() is None
    c.on_portal_gone(2, now_ns=ms(800))
    c.on_portal_up(2, 20, 4, now_ns=ms(810))
    assert c.take_effects() == [
        TopologyChanged(TopologyChange.LINK_DOWN, 20, version + 1),
        TopologyChanged(up, 20, version),
        SendTable(RouteTable(version, BOTH_WAYS, ORIGINS), 2),
    ]
    assert c.next_deadline() is None
    c.on_portal_gone(1, now_ns=ms(900))
    assert c.next_deadline() == ms(1230)
    c.on_timer(ms(1230))
    assert c.take_effects() == [
        TopologyChanged(TopologyChange.LINK_DOWN, 10, version + 1),
        SendTable(RouteTable(version + 1, ())),
    ]


def test_a_warning_comes_once_for_each_unrest() -> None:
    c = RouteCore(DRO_BIT | 5, Timing(ms(1), ms(50), ms(20)), incarnation=1, now_ns=0)
    for began_ns in (s(1), s(2)):
        c.on_portal_up(1, 10, began_ns, now_ns=began_ns)
        for now_ns in range(began_ns, began_ns + ms(60), ms(1)):
            c.on_timer(now_ns)
        assert [e.waiting_ns for e in c.take_effects() if isinstance(e, StillChanging)] == [ms(20)]


def test_a_portal_that_has_not_reported_is_waited_for_also_after_another_came_back() -> None:
    c = settled()
    c.on_portal_expected(3, now_ns=s(20))
    c.on_portal_gone(1, now_ns=s(21), restarts=True)
    c.on_portal_up(1, 10, 1, now_ns=s(22))
    c.on_portal_up(2, 20, 9, now_ns=s(22))
    c.take_effects()
    c.on_timer(now_ns=s(29))
    assert sent(c) == []
    assert c.next_deadline() == s(30)


FAST = replace(GUIDE, first_ns=ms(20))


def calculated(c: RouteCore, until_ns: int) -> list[int]:
    """When it calculates, each time at its own deadline."""
    times = []
    while (due_ns := c.next_deadline()) is not None and due_ns <= until_ns:
        c.on_timer(due_ns)
        times += [due_ns] * any(table.is_new for table in sent(c))
    return times


def test_the_first_change_is_calculated_fast() -> None:
    c = core(FAST)
    c.on_portal_up(1, 10, 1, now_ns=ms(100))
    c.on_portal_up(2, 20, 1, now_ns=ms(110))
    assert calculated(c, s(10)) == [ms(120)]
    assert c.table is not None
    assert len(c.table.routes) == 2
    c.on_portal_gone(2, now_ns=s(20))
    assert calculated(c, s(30)) == [s(20) + ms(20)]


def test_a_restarted_route_manager_waits_for_what_others_tell() -> None:
    """A table without routes would take them all from the portals, a moment before the right one."""
    c = RouteCore(DRO_BIT | 5, replace(FAST, propagation_ns=s(2)), incarnation=2, now_ns=s(100))
    c.on_portal_up(1, 10, 1, now_ns=s(100))
    c.on_portal_up(2, 0, 1, now_ns=s(100), neighbour=DRO_BIT | 6)
    assert calculated(c, s(102) - 1) == []
    c.on_dro(DroRecord(DRO_BIT | 6, (Neighbour(20, 1, 1), Neighbour(DRO_BIT | 5, 1, 1))), s(101))
    assert calculated(c, s(110)) == [s(102)]
    assert c.table is not None
    assert len(c.table.routes) == 2
    c.on_portal_gone(2, now_ns=s(120))
    assert calculated(c, s(130)) == [s(120) + ms(20)], "fast from then on"


def test_changes_that_go_on_are_calculated_less_and_less_often() -> None:
    c = core(FAST)
    times = []
    for n in range(3000):
        now_ns = ms(10 * n)
        c.on_portal_up(1, 10, 1 + n, now_ns=now_ns)
        times += calculated(c, now_ns + ms(10) - 1)
    gaps = [after - before for before, after in pairwise(times)]
    assert times[0] == ms(20)
    assert gaps[:4] == [ms(50), ms(90), ms(170), ms(330)]
    assert max(gaps) == gaps[-1] == s(5) + ms(10), "a change waits no longer than without the fast profile"
    calculated(c, s(36))
    c.on_portal_up(1, 10, 1, now_ns=s(36))
    quiet = calculated(c, s(60))
    c.on_portal_up(1, 10, 2, now_ns=quiet[-1] + s(5))
    assert calculated(c, s(90)) == [quiet[-1] + s(5) + ms(20)], "fast again after quiet"


@given(
    first_ms=st.integers(0, 5000),
    backoff_ms=st.integers(0, 5000),
    pauses_ms=st.lists(st.integers(0, 3000), max_size=40),
)
def test_however_changes_come_each_is_calculated_within_the_longer_of_both_times(
    first_ms: int, backoff_ms: int, pauses_ms: list[int]
) -> None:
    c = core(Timing(ms(750), ms(backoff_ms), s(10), first_ns=ms(first_ms)))
    now_ns = 0
    for n, pause_ms in enumerate(pauses_ms):
        c.on_portal_up(1, 10, 1 + n % 2, now_ns=now_ns)
        first_due_ns = c.next_deadline()
        assert first_due_ns is None or first_due_ns <= now_ns + ms(max(first_ms, backoff_ms))
        now_ns += ms(pause_ms)
        calculated(c, now_ns)
    assert len(calculated(c, now_ns + s(11))) <= 1
    assert c.is_settled or not pauses_ms


def test_a_portal_that_restarts_has_its_second_with_fast_recalculation_too() -> None:
    c = core(FAST)
    c.on_portal_up(1, 10, 1, now_ns=0)
    c.on_portal_up(2, 20, 1, now_ns=0)
    calculated(c, s(1))
    c.on_portal_gone(2, now_ns=s(20), restarts=True)
    c.on_portal_up(2, 20, 1, now_ns=s(20) + ms(500))
    assert calculated(c, s(40)) == []
