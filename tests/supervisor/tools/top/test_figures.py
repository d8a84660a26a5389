"""From samples to rows: rates, states, what is said of the parent, and the problems that were seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.tools.top.figures import SILENT_S, Count, DroFigures, Figures, PortalFigures
from supervisor.tools.top.problems import KEPT, ProblemHistory
from supervisor.tools.top.sample import Complaint, ParentAnswer, Sample
from tests.builders.top_samples import MANAGER, NOON_S, P1, P2, PARENT, STATUS, WORKERS, portal, sample


def views(*samples: Sample) -> list[DroFigures]:
    figures = Figures()
    return [figures.take(one) for one in samples]


def line(view: DroFigures, name: str) -> PortalFigures:
    return next(p for p in view.portals if p.name == name)


def texts(view: DroFigures, *, is_over: bool = False) -> list[str]:
    return [problem.text for problem in view.problems if problem.is_over == is_over]


def test_rates_are_those_between_two_samples() -> None:
    before = portal("P1", TOPIC_RCVD=1000, TOPIC_RCVD_BYTES=50_000, SENT=70, SENT_BYTES=700, SEND_BLOCKED_US=0)
    after = portal("P1", TOPIC_RCVD=1500, TOPIC_RCVD_BYTES=90_000, SENT=71, SENT_BYTES=710, SEND_BLOCKED_US=500_000,
                   QUEUED_BYTES=123)  # fmt: skip
    first, second = views(sample(10.0, before), sample(12.0, after))
    assert line(first, "P1").received == Count(1000, None)
    assert line(first, "P1").blocked is None
    shown = line(second, "P1")
    assert (shown.received, shown.received_bytes) == (Count(1500, 250.0), Count(90_000, 20_000.0))
    assert (shown.sent, shown.sent_bytes) == (Count(71, 0.5), Count(710, 5.0))
    assert (shown.blocked, shown.queue_bytes, shown.queue_limit) == (0.25, 123, 1000)


def test_a_portal_that_comes_has_no_rate_yet_and_one_with_another_index_began_anew() -> None:
    old, new = portal("P1", SENT=5), replace(portal("P1", SENT=900), index=7)
    shown = views(sample(0.0, old), sample(1.0, new, portal("P2", SENT=9)), sample(2.0, new))
    assert line(shown[1], "P1").sent == Count(900, 900.0)
    assert line(shown[1], "P2").sent == Count(9, None)
    assert line(shown[2], "P1").sent == Count(900, 0.0)
    assert [p.name for p in shown[2].portals] == ["P1"]


def test_the_leading_reason_is_that_of_the_interval() -> None:
    before = portal("P1", DROPPED_BLOCKED=500)
    after = portal("P1", DROPPED_BLOCKED=501, UNICAST_DATA_NO_ROUTE=9)
    quiet, busy = (line(view, "P1") for view in views(sample(0.0, before), sample(2.0, after)))
    assert (quiet.dropped, quiet.reason, quiet.reason_of_all) == (Count(500, None), "", "would_block")
    assert (busy.dropped, busy.reason, busy.reason_of_all) == (Count(510, 5.0), "no_route", "would_block")


def test_the_round_trip_time_is_that_of_the_last_answers() -> None:
    counters = [
        {},
        {"RTT_SAMPLES": 2, "RTT_SUM": 3000, "RTT_MEAN_US": 1500},
        {"RTT_SAMPLES": 2, "RTT_SUM": 3000, "RTT_MEAN_US": 1500},
        {"RTT_SAMPLES": 4, "RTT_SUM": 13_000, "RTT_MEAN_US": 3250},
    ]
    shown = views(*(sample(float(at), portal("P2", **values)) for at, values in enumerate(counters)))
    assert [line(view, "P2").rtt_ms for view in shown] == [None, 1.5, 1.5, 5.0]
    (late,) = views(sample(0.0, portal("P2", **counters[3])))
    assert line(late, "P2").rtt_ms == 3.25


def test_processes_have_their_part_of_a_processor() -> None:
    _, view = views(sample(0.0, cpu_s={P1: 1.0, PARENT: 5.0}), sample(2.0, cpu_s={P1: 1.5, PARENT: 5.1, P2: 0.0}))
    shown = {p.name: (p.state, p.pid, p.cpu_percent, p.restarts, p.longest_turn_ms) for p in view.processes}
    assert list(shown) == ["tnwgd", "route-manager", "P1", "P2"]
    assert shown["tnwgd"] == ("ready", PARENT, 5.0, 0, 0.0)
    assert shown["P1"] == ("ready", P1, 25.0, 0, 12.345)
    assert {p.memory_bytes for p in view.processes} == {1 << 20}


def test_a_restarted_worker_has_no_processor_time_before_its_second_sample() -> None:
    again = replace(WORKERS[1], pid=222, restarts=1, last_death="killed by SIGKILL", uptime_s=3.0, incarnation=4)
    status = replace(STATUS, workers=(WORKERS[0], again, WORKERS[2]))
    _, view = views(sample(0.0, cpu_s={P1: 9.0}), sample(5.0, status=status, cpu_s={222: 0.1}))
    p1 = next(p for p in view.processes if p.name == "P1")
    assert (p1.pid, p1.cpu_percent, p1.restarts) == (222, None, 1)
    (problem,) = view.problems
    assert (problem.text, problem.is_over) == ("P1 was restarted: killed by SIGKILL", True)
    assert problem.since_s == NOON_S + 2.0  # when its new process started


def test_a_dro_whose_parent_answers_has_no_notice() -> None:
    (view,) = views(sample(4.0, portal("P1"), status_s=3.5, silent_s=0.5))
    assert (view.head.state, view.head.notice, view.head.answer_age_s) == ("running", "", 0.5)
    assert (view.head.uptime_s, view.head.routes, view.is_dead, view.problems) == (11.5, 6, False, ())


@pytest.mark.parametrize(
    ("parent", "more", "stopped"),
    [
        (ParentAnswer.ALIVE, "", False),
        (ParentAnswer.STOPPED, "; a signal has stopped it, kill -CONT 100 lets it go on", True),
    ],
)
def test_a_silent_parent_is_named_with_the_time_and_rates_go_on(parent: ParentAnswer, more: str, stopped: bool) -> None:
    last = sample(20.0, portal("P1", SENT=30), status_s=8.0, silent_s=12.0, parent=parent)
    _, view = views(sample(10.0, portal("P1", SENT=10)), last)
    assert view.head.notice == (f"the parent (pid 100) does not answer for 12s{more}; counters are read from its pages")
    assert line(view, "P1").sent == Count(30, 2.0)
    assert view.processes[0].state == ("stopped" if stopped else "silent")
    assert texts(view) == []  # it is in the head
    assert view.head.uptime_s == 23.0


def test_a_parent_counts_as_silent_after_a_while_and_its_silence_is_remembered() -> None:
    _, nearly, silent, again = views(
        sample(0.0),
        sample(2.0, status_s=0.0, silent_s=SILENT_S - 0.1),
        sample(4.0, status_s=0.0, silent_s=SILENT_S),
        sample(5.0),
    )
    assert nearly.head.notice == ""
    assert silent.head.notice
    assert again.head.notice == ""
    assert texts(again, is_over=True) == [silent.head.notice]


def test_a_dead_dro_has_its_last_values_and_no_complaints_of_its_processes() -> None:
    last = sample(3.0, portal("P1", SENT=30), parent=ParentAnswer.DEAD, living=frozenset(), processes={}, silent_s=2.0)
    _, view = views(sample(1.0, portal("P1", SENT=30)), last)
    assert view.head.notice == "the parent (pid 100) is dead; these are its last values"
    assert (view.head.state, view.head.uptime_s, view.is_dead) == ("dead", None, True)
    assert line(view, "P1").sent == Count(30, 0.0)
    assert {p.state for p in view.processes} == {"dead"}
    assert line(view, "P1").state == "dead"
    assert view.problems == ()


def test_of_a_dead_parent_it_is_said_what_still_runs_and_what_is_gone() -> None:
    (view,) = views(sample(3.0, parent=ParentAnswer.DEAD, living=frozenset({P1, MANAGER}), has_pages=False))
    assert view.head.notice == (
        "the parent (pid 100) has ended and its files have been removed; these are its last values; "
        "2 of its processes still run"
    )


def test_what_does_not_work_is_a_problem_until_it_does() -> None:
    starting = replace(STATUS, workers=(*WORKERS[:2], replace(WORKERS[2], state="starting")))
    resting = replace(STATUS, workers=(*WORKERS[:2], replace(WORKERS[2], state="paused", pid=0)))
    bad, late, good, paused, ending = views(
        sample(0.0, status=starting),
        sample(1.0, status=starting),
        sample(2.0),
        sample(3.0, status=resting),
        sample(4.0, status=replace(starting, is_stopping=True)),
    )
    assert texts(bad) == ["P2 is starting"]
    assert (late.problems[0].since_s, late.problems[0].last_s) == (NOON_S, NOON_S + 1)
    assert texts(good, is_over=True) == ["P2 is starting"]
    assert texts(paused) == texts(ending) == []
    assert ending.head.state == "stopping"


def test_a_worker_that_has_died_unnoticed_is_dead() -> None:
    (view,) = views(sample(0.0, portal("P1"), living=frozenset({PARENT, MANAGER, P2})))
    assert line(view, "P1").state == "dead"
    assert texts(view) == ["P1 is dead"]


def test_drops_full_queues_and_what_the_dro_tells_are_problems() -> None:
    told = Complaint("neighbours P2", "P2: no link for 5s: refused")
    first, second = views(
        sample(0.0, portal("P1")),
        sample(2.0, portal("P1", DROPPED_SIZE=10, QUEUED_BYTES=800, SRSES=1), complaints=(told,)),
    )
    assert texts(first) == []
    assert sorted(texts(second)) == [
        "P1 drops 5 messages/s, most for size_error", "P1 gets no answer from any SRS",
        "P2: no link for 5s: refused", "the queue of P1 is full to 80 %",
    ]  # fmt: skip


def test_problems_that_last_come_first_and_old_ones_are_forgotten() -> None:
    problems = ProblemHistory()
    lasting = Complaint("lasting", "lasting")
    for at in range(KEPT + 5):
        problems.take(float(at), [lasting, Complaint(f"p{at}", f"problem {at}")])
    problems.take(100.0, [lasting])
    shown = problems.latest
    assert (shown[0].text, shown[0].since_s, shown[0].last_s) == ("lasting", 0.0, 100.0)
    assert [p.text for p in shown[1:]] == [f"problem {at}" for at in range(KEPT + 4, 5, -1)]


def test_a_problem_that_comes_again_begins_anew_and_an_event_is_noted_once() -> None:
    problems = ProblemHistory()
    for at, wrong in enumerate((True, False, True)):
        problems.take(float(at), [Complaint("x", f"x {at}")] if wrong else [])
        problems.add_once("restart", 0.5 + at, "restarted")
    assert [(p.text, p.since_s, p.is_over) for p in problems.latest] == [("x 2", 2.0, False), ("restarted", 0.5, True)]
