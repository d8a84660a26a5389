"""The lines of a portal's page: every metric once, in the columns of the guide; how values are written."""

from __future__ import annotations

from collections import Counter

import pytest

from dro.metrics.table import ENDPOINT, HISTOGRAM, PEER, PORTAL, metrics, rows
from supervisor.admin.status import PortalStatus
from supervisor.monitor.answers.answers import path_summary, sorted_rows
from supervisor.monitor.answers.top import TopRow
from supervisor.monitor.pages.lines import BYTES, LIMIT, MAXIMUM, OTHER, Line, portal_groups
from supervisor.monitor.pages.views import portal_part
from supervisor.monitor.pages.web import cell, head, number, query


def portal(kind: str, **counters: int) -> PortalStatus:
    return PortalStatus("P1", kind, "ready", 1, 1, 1, counters)


def lines(kind: str, **counters: int) -> dict[str, Line]:
    return {line.title: line for group in portal_groups(portal(kind, **counters)) for line in group.lines}


@pytest.mark.parametrize("kind", [ENDPOINT, PEER])
def test_every_metric_is_in_one_line(kind: str) -> None:
    found = Counter(name for group in portal_groups(portal(kind)) for line in group.lines for name in line.names)
    assert found == Counter(metric.row for metric in metrics(PORTAL, kind))


@pytest.mark.parametrize("kind", [ENDPOINT, PEER])
def test_the_groups_have_what_their_heads_say(kind: str) -> None:
    groups = {group.title: [line.metric.removeprefix("dro_portal_") for line in group.lines]
              for group in portal_groups(portal(kind))}  # fmt: skip
    assert all(
        name.startswith(("handed", "taken_over", "duplicate_window", "forward_latency")) for name in groups[OTHER]
    )
    assert "received_messages_total" in groups["Receive statistics"]
    assert "dropped_messages_total" in groups["Send statistics"]
    assert ("Link" in groups) == ("UDP of the link" in groups) == (kind == PEER)


def test_columns_are_those_of_the_guide() -> None:
    found = lines(PEER, SENT=7, SENT_BYTES=1234567, LINK_BATCH_MIN_BYTES=99, BATCH_MIN_MESSAGES=2, QUEUED_BYTES=1,
                  QUEUED_BYTES_MAX=2, QUEUE_LIMIT=3)  # fmt: skip
    assert found["Transport topic fragments/bytes sent"].shown == ["7", "1,234,567"]
    assert found["Minimum messages/bytes per batch"].shown == ["2", "99"]
    assert found["Current/maximum data bytes enqueued (limit)"].shown == ["1", "2", "3"]
    assert found["Maximum messages/bytes per batch"].shown == ["none yet", "none yet"]
    assert found["Last keepalive responded to"].shown == ["none yet"]
    assert lines(PEER, KEEPALIVE_ANSWERED_S=86400)["Last keepalive responded to"].shown == ["1970-01-02 00:00:00 UTC"]


@pytest.mark.parametrize("kind", [ENDPOINT, PEER])
def test_every_value_has_its_unit_or_says_it(kind: str) -> None:
    for group in portal_groups(portal(kind)):
        for line in group.lines:
            assert list(line.more.values()) == list(zip(line.names[1:], line.shown[1:], strict=True)), line.title
            assert set(line.more) <= set(group.heads)
            assert line.unit or line.metric.endswith(("seconds", "_up", "_blocked")), line.title
    found = lines(kind, QUEUE_LIMIT=3)
    assert found["Unicast data messages/bytes received"].unit == "messages"
    assert list(found["Unicast data messages/bytes received"].more) == [BYTES]
    (queue,) = (line for title, line in found.items() if title.startswith("Current/maximum data bytes enqueued"))
    assert (queue.unit, list(queue.more), queue.text) == ("bytes", [MAXIMUM, LIMIT], "0 bytes, 0 bytes, 3 bytes")
    assert (queue.is_zero, found["Unicast data messages/bytes received"].is_zero) == (False, True)


def test_units_are_those_of_the_titles() -> None:
    found = lines(ENDPOINT) | lines(PEER, SENT=7, SENT_BYTES=8)
    assert {title: found[title].unit for title in (
        "Transport topic control msgs/bytes received", "NAKs sent by the proxy receivers", "Proxy Sources",
        "Mean RTT (microseconds)", "msgs_rcved", "ncfs_shed", "times that the link came up", "1 while the link is up",
    )} == {
        "Transport topic control msgs/bytes received": "messages", "NAKs sent by the proxy receivers": "NAKs",
        "Proxy Sources": "sources", "Mean RTT (microseconds)": "µs", "msgs_rcved": "datagrams", "ncfs_shed": "NCFs",
        "times that the link came up": "times", "1 while the link is up": "",
    }  # fmt: skip
    assert found["Transport topic fragments/bytes sent"].text == "7 fragments, 8 bytes"
    assert found["Minimum messages/bytes per batch"].text == "none yet, none yet"


def test_a_sum_is_that_of_its_parts_and_a_histogram_tells_its_spread() -> None:
    found = lines(PEER, TOPIC_RCVD=5, IMMEDIATE_TOPIC_RCVD=2)
    assert found["Data messages/bytes received"].values[0] == 7
    bounds = next(metric.bounds for metric in metrics(PORTAL, PEER) if metric.kind == HISTOGRAM and metric.row == "RTT")
    cells = next(list(row.slots) for row in rows(PORTAL) if row.name == "RTT")
    told = lines(PEER, **{cells[0]: 98, cells[3]: 2})["answer times of keepalives"]
    assert told.shown == [f"100 samples; half up to {bounds[0] * 1000:g} ms, 99 % up to {bounds[3] * 1000:g} ms"]
    assert lines(PEER)["answer times of keepalives"].shown == ["none yet"]


@pytest.mark.parametrize(
    ("value", "name", "text"),
    [
        (-1, "certificate_days", "none"), (True, "rejected", "yes"), (False, "rejected", ""), (1234, "lost", "1,234"),
        (1234, "domain_id", "1234"), ((1, 2), "domains", "1, 2"), ({"a": "b"}, "fields", "a b"),
        (0.0, "began_s", "1970-01-01 00:00:00 UTC"), (2.25, "blocked_s", "2.2"), ("x", "topic", "x"),
    ],
)  # fmt: skip
def test_cells(value: object, name: str, text: str) -> None:
    assert cell(value, name) == text


def test_heads_numbers_and_queries() -> None:
    names = ("blocked_s", "began_s", "fragments_per_s", "waiting_bytes", "bytes", "bytes_sent", "rtt_last_us", "lost")
    assert [head(name) for name in names] == [
        "blocked (s)", "began", "fragments/s", "waiting (bytes)", "bytes", "bytes sent", "RTT last (µs)",
        "lost (datagrams)",
    ]  # fmt: skip
    assert [number(value) for value in (None, 3, 0.25, 12.5, 1e6)] == ["?", "3", "0.2", "12", "1,000,000"]
    assert query(portal="a&b", topic="", offset=0) == "?portal=a%26b"
    assert query() == "?"


def test_rows_are_sorted_by_a_field() -> None:
    rows = [TopRow("b", "P1", "", "", 1.0, 5), TopRow("a", "P1", "", "", 2.0, 4)]
    assert [row.topic for row in sorted_rows(rows, "topic")] == ["a", "b"]
    assert [row.topic for row in sorted_rows(rows, "-fragments")] == ["b", "a"]
    assert sorted_rows(rows, "") == rows


def test_the_part_of_a_portal_in_a_configuration() -> None:
    text = "<a><portals><peer><name>B</name></peer><endpoint><name>A</name></endpoint></portals></a>"
    assert portal_part(text, 0) == "<endpoint><name>A</name></endpoint>\n"
    assert portal_part(text, 1) == "<peer><name>B</name></peer>\n"
    assert path_summary([]) == (0, 0)
