"""Samples as Prometheus metrics: what the encoder of prometheus_client makes of them, and what it must not make."""

from __future__ import annotations

import math
import time

import pytest
from fastapi import Request
from prometheus_client.parser import text_string_to_metric_families

from dro.bus.counters import GENERAL_SLOTS
from dro.metrics.slots import Slot
from dro.metrics.table import ENDPOINT, PEER, PORTAL, metrics
from supervisor.monitor.app import RECENT_S, Recent, encoded
from supervisor.samples.exposition import Families

BASE = {"dro": "A", "portal": "P", "portal_type": PEER}


def samples(families: Families, accept: str = "") -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    body, _ = encoded(families, accept)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def key(name: str, **labels: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return name, tuple(sorted((BASE | labels).items()))


def page(**cells: int) -> list[int]:
    values = [0] * GENERAL_SLOTS
    for name, value in cells.items():
        values[Slot[name]] = value
    return values


def of_page(portal_type: str, **cells: int) -> Families:
    found = Families()
    found.add_page(metrics(PORTAL, portal_type), page(**cells), BASE)
    return found


def test_a_counter_has_its_name_its_labels_and_its_bytes_beside_it() -> None:
    found = samples(of_page(PEER, DROPPED_DUP=3, DROPPED_DUP_BYTES=300))
    assert found[key("dro_portal_dropped_messages_total", traffic="data", reason="duplicate")] == 3
    assert found[key("dro_portal_dropped_bytes_total", traffic="data", reason="duplicate")] == 300


def test_a_sum_is_of_its_rows() -> None:
    found = samples(of_page(PEER, TOPIC_RCVD=1, UNICAST_DATA_RCVD=20, IMMEDIATE_TOPIC_RCVD_BYTES=7, CONTROL_RCVD=400))
    assert found[key("dro_portal_received_data_messages_total")] == 21
    assert found[key("dro_portal_received_data_bytes_total")] == 7
    assert found[key("dro_portal_received_control_messages_total")] == 400


def test_times_are_seconds_and_there_is_none_before_the_first_sample() -> None:
    name = key("dro_portal_rtt_min_seconds")
    assert math.isnan(samples(of_page(PEER))[name])
    assert samples(of_page(PEER, RTT_MIN_US=1500))[name] == 0.0015


def test_buckets_of_a_histogram_add_up() -> None:
    found = samples(of_page(PEER, RTT=2, RTT_1=3, RTT_14=4, RTT_SUM=5_000_000))
    bucket = "dro_portal_rtt_seconds_bucket"
    assert [found[key(bucket, le=le)] for le in ("0.0001", "0.00025", "2.5", "+Inf")] == [2, 5, 5, 9]
    assert (found[key("dro_portal_rtt_seconds_count")], found[key("dro_portal_rtt_seconds_sum")]) == (9, 5.0)


def test_a_portal_type_has_its_own_series_whatever_is_on_the_page() -> None:
    endpoint, peer = samples(of_page(ENDPOINT)), samples(of_page(PEER))
    assert key("dro_portal_connects_total") in peer.keys() - endpoint.keys()
    assert key("dro_portal_socket_drops_total") in endpoint.keys() - peer.keys()
    assert endpoint.keys() == samples(of_page(ENDPOINT, SENT=1, RTT_SAMPLES=9)).keys()


def test_each_state_is_there_as_0_or_1() -> None:
    found = Families()
    found.add_states("dro_portal_state", "State", BASE, ("ready", "paused"), "paused")
    values = {labels[-1][1]: value for (_, labels), value in samples(found).items()}
    assert values == {"ready": 0, "paused": 1}


def test_who_asks_for_openmetrics_gets_it() -> None:
    body, content_type = encoded(of_page(PEER), "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
    assert encoded(of_page(PEER), "")[1].startswith("text/plain")


def test_a_flood_of_scrapes_gets_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    collected: list[Families] = []

    def collect() -> Families:
        collected.append(of_page(PEER, SENT=len(collected)))
        return collected[-1]

    recent = Recent(collect)
    plain = Request({"type": "http", "headers": []})
    openmetrics = Request({"type": "http", "headers": [(b"accept", b"application/openmetrics-text; version=1.0.0")]})
    first = recent.answer(plain).body
    assert [recent.answer(plain).body for _ in range(3)] == [first] * 3
    assert len(collected) == 1
    assert bytes(recent.answer(openmetrics).body).endswith(b"# EOF\n")
    now_s += 2 * RECENT_S
    assert recent.answer(openmetrics).body != first
    assert len(collected) == 3
