"""When daemon statistics are due, on a clock that is told."""

from __future__ import annotations

import pytest

from dro.clock import s
from dro.config.dro_xml.model import PublishingConfig
from supervisor.statistics.intervals import (
    GATEWAY_CONFIG,
    MALLOC_INFO,
    PORTAL_CONFIG,
    PORTAL_STATS,
    TOPOLOGY,
    WORDS,
    DueGroup,
    IntervalsCore,
)

GUIDE = PublishingConfig((("default", 3), ("gateway-config", 120), ("portal-config", 120)))
G1_TRD1 = PublishingConfig((("default", 6), ("gateway-config", 120), ("portal-config", 120)))
NONE = PublishingConfig()


def core(daemon: PublishingConfig = GUIDE, **portals: PublishingConfig) -> IntervalsCore:
    made = IntervalsCore()
    made.configure(daemon, portals, 0)
    return made


def times(intervals: IntervalsCore, until_s: int) -> dict[DueGroup, list[int]]:
    found: dict[DueGroup, list[int]] = {}
    while (at := intervals.next_deadline()) is not None and at <= s(until_s):
        for due in intervals.take_due(at):
            found.setdefault(DueGroup(due.group, due.portal), []).append(at // s(1))
    return found


def test_the_example_of_the_guide() -> None:
    found = times(core(P1=G1_TRD1, P2=NONE), 120)
    assert (
        found[DueGroup(TOPOLOGY)]
        == found[DueGroup(MALLOC_INFO)]
        == found[DueGroup(PORTAL_STATS, "P2")]
        == list(range(3, 121, 3))
    )
    assert found[DueGroup(PORTAL_STATS, "P1")] == list(range(6, 121, 6))
    assert (
        found[DueGroup(GATEWAY_CONFIG)]
        == found[DueGroup(PORTAL_CONFIG, "P1")]
        == found[DueGroup(PORTAL_CONFIG, "P2")]
        == [120]
    )


def test_a_group_without_interval_and_default_is_not_sent_by_time_but_in_a_snapshot() -> None:
    intervals = core(PublishingConfig((("malloc-info", 5), ("portal-stats", 0))), P1=NONE)
    assert set(times(intervals, 100)) == {DueGroup(MALLOC_INFO)}
    assert [one.group for one in intervals.snapshot("", "")] == list(WORDS.values())
    assert all(one.is_forced for one in intervals.snapshot("", ""))


def test_configurations_are_always_sent_and_statistics_when_they_have_changed() -> None:
    due = core(PublishingConfig((("default", 1),)), P1=NONE).take_due(s(1))
    assert {one.group: one.is_forced for one in due} == {
        GATEWAY_CONFIG: True, PORTAL_CONFIG: True, PORTAL_STATS: False, TOPOLOGY: False, MALLOC_INFO: False,
    }  # fmt: skip


def test_a_request_changes_an_interval_at_once_and_for_all_portals_or_one() -> None:
    intervals = core(PublishingConfig((("default", 100),)), P1=NONE, **{"P 2": NONE})
    intervals.order(PORTAL_STATS, "P 2", 1, s(10))
    intervals.order(MALLOC_INFO, "", 0, s(10))
    found = times(intervals, 100)
    assert found[DueGroup(PORTAL_STATS, "P 2")] == list(range(11, 101))
    assert found[DueGroup(PORTAL_STATS, "P1")] == [100]
    assert DueGroup(MALLOC_INFO) not in found
    assert [one.portal for one in intervals.snapshot(PORTAL_CONFIG, "P 2")] == ["P 2"]
    intervals.order(PORTAL_STATS, "", 7, s(100))
    assert set(times(intervals, 107)) >= {DueGroup(PORTAL_STATS, "P1"), DueGroup(PORTAL_STATS, "P 2")}


def test_what_is_late_is_sent_once() -> None:
    intervals = core(PublishingConfig((("malloc-info", 1),)))
    assert len(intervals.take_due(s(100))) == 1
    assert intervals.next_deadline() == s(101)


def test_a_request_lasts_over_another_process_and_a_changed_configuration() -> None:
    intervals = core(PublishingConfig((("default", 100),)), P1=NONE)
    intervals.order(PORTAL_STATS, "P1", 2, 0)
    following = core(PublishingConfig((("default", 100),)), P1=NONE)
    following.restore(intervals.ordered(), 0)
    following.configure(PublishingConfig((("default", 50),)), {"P1": NONE, "P2": NONE}, 0)
    found = times(following, 10)
    assert found == {DueGroup(PORTAL_STATS, "P1"): [2, 4, 6, 8, 10]}
    following.configure(PublishingConfig((("default", 50),)), {"P2": NONE}, s(10))
    assert DueGroup(PORTAL_STATS, "P1") not in times(following, 200)
    assert following.portals == {"P2"}


def test_what_goes_on_as_before_keeps_its_time() -> None:
    intervals = core(PublishingConfig((("default", 10),)), P1=NONE)
    intervals.configure(PublishingConfig((("default", 10),)), {"P1": NONE, "P2": NONE}, s(5))
    found = times(intervals, 15)
    assert found[DueGroup(PORTAL_STATS, "P1")] == [10]
    assert found[DueGroup(PORTAL_STATS, "P2")] == [15]


@pytest.mark.parametrize("group", ["", *WORDS.values()])
def test_a_snapshot_of_an_absent_portal_is_empty(group: str) -> None:
    assert core(P1=NONE).snapshot(group, "P9") == []
