"""Each trend over weeks is found on days and hours whose answer is known."""

from __future__ import annotations

import random
import statistics
from datetime import UTC, date, datetime, timedelta
from typing import Final

import pytest
from pyspark.sql import SparkSession

from analytics import trends

FIRST: Final = date(2024, 1, 1)
HOUR: Final = timedelta(hours=1)
DAYS: Final = "dro string, portal string, day string, portal_type string, sent_bytes_p95 double"
START: Final = datetime(2024, 2, 1, tzinfo=UTC)


def day(nth: int) -> str:
    return (FIRST + timedelta(days=nth)).isoformat()


def test_a_link_that_grows_is_full_when_its_line_says_so(spark: SparkSession) -> None:
    """Two portals over eight weeks: one sends 1000 bytes a second more each day, one always the same."""
    rows = [
        ("D", name, day(nth), "peer", 60.0 * (100_000 + slope * nth))
        for name, slope in (("grows", 1000), ("rests", 0))
        for nth in range(56)
    ]
    days = spark.createDataFrame(rows, DAYS)
    found = {row["portal"]: row for row in trends.forecasts(days, 500_000).collect()}
    assert found["grows"]["growth_per_day"] == pytest.approx(1000)
    for name in ("earliest", "full_on", "latest"):  # all days lie on the line; a fifth is left free
        assert found["grows"][name].isoformat() in (day(300), day(301)), name
    assert found["rests"]["full_on"] is None


def test_the_band_of_a_forecast_is_wider_where_days_differ(spark: SparkSession) -> None:
    chance = random.Random(3)
    rows = [("D", "P", day(nth), "peer", 60.0 * (100_000 + 1000 * nth + chance.gauss(0, 9000))) for nth in range(84)]
    days = spark.createDataFrame(rows, DAYS)
    [row] = trends.forecasts(days, 500_000).collect()
    weeks = [max(rows[n : n + 7], key=lambda r: r[4]) for n in range(0, 84, 7)]
    points = [(date.fromisoformat(r[2]).toordinal() - date(1970, 1, 1).toordinal(), r[4] / 60) for r in weeks]
    line = statistics.linear_regression([x for x, _ in points], [y for _, y in points])
    rest = sum((y - line.slope * x - line.intercept) ** 2 for x, y in points)
    spread = 1.96 * (rest / (len(points) - 2)) ** 0.5
    for name, shift in (("earliest", spread), ("full_on", 0.0), ("latest", -spread)):
        at = date(1970, 1, 1) + timedelta(days=(400_000 - line.intercept - shift) / line.slope)
        assert abs((row[name] - at).days) <= 1, name
    assert row["earliest"] < row["full_on"] < row["latest"]


def test_an_hour_unlike_those_of_the_weeks_before_is_found(spark: SparkSession) -> None:
    rows = []
    for hour in range(24 * 7 * 6):
        value = 1000 + hour % 24 * 100 + (hour // 168) % 3
        if hour == 24 * 7 * 5 + 30:
            value *= 5
        rows.append(("D", "P", START + hour * HOUR, value, 10, 0, 0))
    columns = "dro string, portal string, hour timestamp, received_bytes long, sent_bytes long, dropped_messages long,"
    [row] = trends.anomalies(spark.createDataFrame(rows, f"{columns} send_blocked_us long")).collect()
    assert (row["hour"].astimezone(UTC), row["measure"]) == (START + (24 * 7 * 5 + 30) * HOUR, "received_bytes")
    assert (row["value"], round(row["usual"]), row["weeks"]) == (5 * (1600 + 2), 1601, 4)


def test_what_a_change_of_configuration_changed_is_told_apart_from_chance(spark: SparkSession) -> None:
    chance = random.Random(5)
    at = START + 100 * HOUR
    hours: list[tuple[object, ...]] = []
    before: list[int] = []
    after: list[int] = []
    for nth in range(200):
        value = round(chance.gauss(1000 if nth <= 100 else 1400, 50))
        (before if nth < 100 else after).append(value)
        hours.append(("D", "P", START + nth * HOUR, value, 7, 100, 10, 0))
    columns = "dro string, portal string, hour timestamp, sent_bytes long, dropped_messages long, rtt_us_sum long,"
    told = spark.createDataFrame(hours, f"{columns} rtt_samples long, send_blocked_us long")
    spans = [("D", START, 0, 10), ("D", at, 360_000_000_000, 400_000_000_000)]
    samples = spark.createDataFrame(
        [(dro, config, first, last, 1) for dro, config, first, last in spans],
        "dro string, config_loaded timestamp, ts_first long, ts_last long, samples long",
    )
    found = {row["measure"]: row for row in trends.before_and_after(samples, told).collect()}
    sent = found["sent_bytes"]
    after.pop(0)  # the hour of the change counts to neither
    assert sent["difference"] == statistics.fmean(after) - statistics.fmean(before)
    band = 1.96 * (statistics.variance(before) / len(before) + statistics.variance(after) / len(after)) ** 0.5
    assert abs(sent["high"] - sent["difference"] - band) < 1e-9
    assert sent["differs"]
    assert not any(found[other]["differs"] for other in ("dropped_messages", "rtt_us", "send_blocked_us"))


def test_growth_of_interest_goes_back_days_over_a_leap_day(spark: SparkSession) -> None:
    rows = [("D", "P", day(nth), 1, 10 * nth, nth, 0, 0) for nth in range(100)]
    columns = "dro string, portal string, day string, interest_changes long, interest_topics_local long,"
    columns += "interest_patterns_local long, interest_topics_remote long, interest_patterns_remote long"
    found = {row["day"]: row for row in trends.interest_growth(spark.createDataFrame(rows, columns)).collect()
             if row["scope"] == "local"}  # fmt: skip
    last = found[day(99)]
    assert (last["interest"], last["over_7_days"], last["over_30_days"], last["over_90_days"]) == (1089, 77, 330, 990)
    assert last["slope"] == 11
    assert found[day(3)]["over_7_days"] is None
