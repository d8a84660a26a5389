"""The last hour of portals, by a clock of the test's own."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.metrics.slots import Slot
from dro.metrics.table import ENDPOINT, PEER, PORTAL, metrics
from supervisor.admin.status import PortalStatus
from supervisor.monitor.known.hour import DROPPED, HOUR_S, INTERVAL_S, LOOKS, QUEUE, RECEIVED, RTT, SENT, Hour

START_S = 1_700_000_000.0
E1 = PortalStatus("E1", ENDPOINT, "ready", 1, 1)
P1 = PortalStatus("P1", PEER, "ready", 0, 5)


def counted(portal: PortalStatus, **counters: int) -> PortalStatus:
    return replace(portal, counters=counters)


def values_of(hour: Hour, portal: str, name: str) -> list[float | None]:
    (series,) = [series for series in hour.series(portal) if series.name == name]
    return [value for _, value in series.points]


def looked(*statuses: PortalStatus) -> Hour:
    """An hour with a look for each."""
    hour = Hour()
    for number, status in enumerate(statuses):
        hour.look(START_S + number * INTERVAL_S, [status])
    return hour


def test_rates_are_differences_per_second() -> None:
    hour = looked(
        counted(E1, TOPIC_RCVD=1000, SENT=50, DROPPED_BLOCKED=7),
        counted(E1, TOPIC_RCVD=1200, SENT=50, DROPPED_BLOCKED=8),
        counted(E1, TOPIC_RCVD=1200, SENT=150, DROPPED_BLOCKED=38),
    )
    assert values_of(hour, "E1", RECEIVED) == [None, 20.0, 0.0]
    assert values_of(hour, "E1", SENT) == [None, 0.0, 10.0]
    assert values_of(hour, "E1", DROPPED) == [None, 0.1, 3.0]
    assert hour.rates("E1") == (0.0, 10.0)
    assert hour.all_rates() == {"E1": (0.0, 10.0)}
    times = [time_s for time_s, _ in hour.series("E1")[0].points]
    assert times == [START_S, START_S + 10, START_S + 20]


@pytest.mark.parametrize("portal", [E1, P1])
@pytest.mark.parametrize(
    ("metric", "line"),
    [("received", RECEIVED), ("sent", SENT), ("dropped", DROPPED), ("receive_exception", DROPPED)],
)
def test_all_traffic_of_applications_is_in_the_rates(portal: PortalStatus, metric: str, line: str) -> None:
    """Every series of the metric that portals of the kind have counts once, and nothing else does."""
    series = [m for m in metrics(PORTAL, portal.kind) if m.name == f"dro_portal_{metric}_messages_total"]
    is_of_dros = ("traffic", "gateway_control")
    slots = [m.slots[0] for m in series if is_of_dros not in m.labels]
    assert 4 <= len(slots) < len(series)
    hour = looked(counted(portal), counted(portal, **{Slot(slot).name: 10 << at for at, slot in enumerate(slots)}))
    assert values_of(hour, portal.name, line) == [None, float((1 << len(slots)) - 1)]
    others = [name for name in (RECEIVED, SENT, DROPPED) if name != line]
    assert [values_of(hour, portal.name, name) for name in others] == [[None, 0.0]] * 2


def test_what_waits_is_that_of_all_queues() -> None:
    queues = {"QUEUED_BYTES": 1, "UNICAST_QUEUED_BYTES": 20, "IMMEDIATE_QUEUED_TOPIC_BYTES": 300}
    hour = looked(counted(E1, **queues, QUEUED_BYTES_MAX=7000), counted(E1))
    assert values_of(hour, "E1", QUEUE) == [321.0, 0.0]


def test_the_answer_time_is_the_mean_since_the_look_before() -> None:
    hour = looked(
        counted(P1, RTT_3=2, RTT_SUM=90_000),
        counted(P1, RTT_3=3, RTT_5=3, RTT_SUM=98_000),  # four more answers in 8 ms
        counted(P1, RTT_3=3, RTT_5=3, RTT_SUM=98_000),
    )
    assert values_of(hour, "P1", RTT) == [None, 2.0, None]


def test_an_endpoint_portal_has_no_answer_time() -> None:
    assert [series.name for series in looked(E1).series("E1")] == [RECEIVED, SENT, DROPPED, QUEUE]
    assert [series.name for series in looked(P1).series("P1")] == [RECEIVED, SENT, DROPPED, QUEUE, RTT]


def test_a_portal_that_was_added_again_has_counted_from_0() -> None:
    counters = dict.fromkeys(("TOPIC_RCVD", "SENT", "DROPPED_BLOCKED"), 100)
    hour = looked(counted(E1, **counters), counted(replace(E1, index=7), **counters), counted(replace(E1, index=7)))
    for name in (RECEIVED, SENT, DROPPED):
        assert values_of(hour, "E1", name) == [None, 10.0, 0.0]


def test_a_portal_that_was_away_has_a_gap() -> None:
    hour = looked(counted(E1, SENT=0), counted(E1, SENT=10), P1, counted(E1, SENT=1000), counted(E1, SENT=1010))
    assert values_of(hour, "E1", SENT) == [None, 1.0, None, None, 1.0]
    assert values_of(hour, "E1", QUEUE) == [0.0, 0.0, None, 0.0, 0.0]
    assert values_of(hour, "P1", QUEUE) == [None, None, 0.0, None, None]
    assert hour.rates("P1") is None


def test_a_late_look_has_the_rate_of_the_whole_time() -> None:
    hour = looked(counted(E1, SENT=0))
    hour.look(START_S + 40, [counted(E1, SENT=40)])
    assert hour.rates("E1") == (0.0, 1.0)


def test_points_older_than_an_hour_are_gone() -> None:
    hour = looked(*(counted(E1, SENT=10 * number) for number in range(LOOKS + 5)))
    (sent,) = [series for series in hour.series("E1") if series.name == SENT]
    assert len(sent.points) == LOOKS
    assert sent.points[0] == (START_S + 5 * INTERVAL_S, 1.0)
    assert sent.points[-1] == (START_S + (LOOKS + 4) * INTERVAL_S, 1.0)
    hour.look(START_S + 10 * HOUR_S, [E1])
    assert [len(series.points) for series in hour.series("E1")] == [1] * 4


def test_a_clock_that_was_set_back_begins_anew() -> None:
    hour = looked(counted(E1, SENT=0), counted(E1, SENT=10))
    hour.look(START_S + INTERVAL_S, [counted(E1, SENT=99)])  # at the same time: it tells nothing
    assert hour.rates("E1") == (0.0, 1.0)
    hour.look(START_S - 3600, [counted(E1, SENT=20)])
    assert values_of(hour, "E1", SENT) == [None]
    hour.look(START_S - 3590, [counted(E1, SENT=30)])
    assert values_of(hour, "E1", SENT) == [None, 1.0]


def test_a_portal_of_another_kind_is_another_portal() -> None:
    hour = looked(counted(E1, SENT=0), counted(replace(E1, kind=PEER), SENT=1000))
    assert values_of(hour, "E1", RTT) == [None, None]
    assert hour.rates("E1") is None


def test_a_portal_that_left_is_kept_for_an_hour() -> None:
    hour = looked(counted(E1, SENT=0), counted(E1, SENT=10))
    hour.look(START_S + HOUR_S, [P1])
    assert values_of(hour, "E1", SENT) == [1.0, None]
    hour.look(START_S + HOUR_S + INTERVAL_S, [P1])
    assert hour.series("E1") == ()


def test_unknown_portals_have_nothing() -> None:
    assert (Hour().series("E1"), Hour().rates("E1"), Hour().all_rates()) == ((), None, {})


def test_memory_is_bounded_when_portals_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 40
    monkeypatch.setattr("supervisor.monitor.known.hour.PORTALS_MAX", most)
    hour, used = Hour(), []
    tracemalloc.start()
    try:
        for number in range(4 * most):
            hour.look(START_S + number * INTERVAL_S, [replace(P1, name=f"P{number}")])
            if number % most == most - 1:
                used.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    known = [number for number in range(4 * most) if hour.series(f"P{number}")]
    assert known == list(range(3 * most, 4 * most))
    assert used[-1] < 1.1 * used[0]
    assert used[0] < most * 5 * LOOKS * 10  # bytes: eight for a number, and what is around it


def test_series_are_json() -> None:
    hour = looked(P1, counted(P1, RTT=1, RTT_SUM=100))
    rtt = json.loads(json.dumps(asdict(hour.series("P1")[-1]), allow_nan=False))
    assert rtt == {"name": "RTT", "unit": "ms", "points": [[START_S, None], [START_S + 10, 0.1]]}


@given(st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**12)), max_size=20))
def test_no_rate_is_ever_negative(counts: list[tuple[int, int]]) -> None:
    hour = looked(*(counted(E1, TOPIC_RCVD=received, SENT=sent) for received, sent in counts))
    for series in hour.series("E1"):
        assert len(series.points) == len(counts)
        assert all(value is None or value >= 0 for _, value in series.points)
