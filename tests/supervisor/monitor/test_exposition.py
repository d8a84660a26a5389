"""Samples as Prometheus metrics: what the encoder of prometheus_client makes of them, and what it must not make."""

from __future__ import annotations

import asyncio
import math
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi import Request
from prometheus_client.exposition import choose_encoder
from prometheus_client.parser import text_string_to_metric_families

from dro.bus.counters import GENERAL_SLOTS
from dro.metrics.slots import Slot
from dro.metrics.table import ENDPOINT, PEER, PORTAL, metrics
from supervisor.monitor.app import RECENT_S, Recent
from supervisor.monitor.known.metrics import Metrics
from supervisor.samples.exposition import MAX_FORMATS, Families, Texts
from supervisor.samples.watch import KnownDros
from tests.builders.monitored import add_pages, known

PLAIN = ""
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
OF_PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
FORMATS = (PLAIN, OPENMETRICS, OF_PROMETHEUS, "text/plain; version=1.0.0; escaping=dots")
BASE = {"dro": "A", "portal": "P", "portal_type": PEER}


def samples(families: Families, accept: str = "") -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    body, _ = Texts().encoded(families, accept)
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
    body, content_type = Texts().encoded(of_page(PEER), "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
    assert Texts().encoded(of_page(PEER), "")[1].startswith("text/plain")


def test_a_flood_of_scrapes_gets_one_answer() -> None:
    asyncio.run(flood())


async def flood() -> None:
    now_s = 100.0
    collected: list[Families] = []

    def collect() -> Families:
        collected.append(of_page(PEER, SENT=len(collected)))
        return collected[-1]

    recent = Recent(collect, lambda: now_s)
    plain = Request({"type": "http", "headers": []})
    openmetrics = Request({"type": "http", "headers": [(b"accept", b"application/openmetrics-text; version=1.0.0")]})
    first, *others = [answer.body for answer in await asyncio.gather(*(recent.answer(plain) for _ in range(4)))]
    assert others == [first] * 3
    assert len(collected) == 1
    assert bytes((await recent.answer(openmetrics)).body).endswith(b"# EOF\n")
    now_s += 2 * RECENT_S
    assert (await recent.answer(openmetrics)).body != first
    assert len(collected) == 3


class Judge:
    """prometheus_client's own encoders, as a registry of theirs is given to them."""

    def __init__(self, families: Families) -> None:
        self.collect = families.collect

    def encoded(self, accept: str) -> tuple[bytes, str]:
        encoder, content_type = choose_encoder(accept)
        return encoder(self), content_type


@pytest.mark.parametrize("accept", FORMATS)
def test_the_text_is_that_of_prometheus_client(tmp_path: Path, accept: str) -> None:
    """Of all that a DRO has, at one scrape after another with other values."""
    add_pages(tmp_path, 6)
    metrics, texts = Metrics("1.0", "r"), Texts()
    dropped: dict[str, int] = {}
    for seed in range(3):
        of_dro = metrics.of_dro(known(tmp_path, 6))
        assert texts.encoded(of_dro, accept) == Judge(of_dro).encoded(accept)
        of_workers = metrics.of_workers(known(tmp_path, 6), dropped)
        assert Texts().encoded(of_workers, accept) == Judge(of_workers).encoded(accept)
        for path in tmp_path.iterdir():
            path.unlink()
        add_pages(tmp_path, 6, seed)


def test_labels_and_values_of_any_kind_are_written_as_prometheus_client_does() -> None:
    found, labels = Families(), {"dro": 'a"b\\c\nd # e} 5 é\u2028\x85', "portal": ""}
    for nth, value in enumerate(
        (0, 1, True, False, 0.1, 1e5, 1e6, 123456789, 1 << 63, 1e-7, 1e300, math.inf, -math.inf, math.nan, -5.5)
    ):
        found.add(f"dro_number_{nth % 4}", "gauge", "A help\nof two # lines\\", {**labels, "nth": str(nth)}, value)
        found.add(f"dro_count_{nth % 4}_total", "counter", "", {}, value)
    for accept in FORMATS:
        assert Texts().encoded(found, accept) == Judge(found).encoded(accept)
        assert Texts().encoded(Families(), accept) == Judge(Families()).encoded(accept)


def test_the_text_follows_the_portals_and_only_the_newest_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_pages(tmp_path, 6)
    metrics, texts = Metrics("1.0", "r"), Texts()
    families_made = 0
    collect = Families.collect

    def counted(self: Families, values: object = ()) -> object:
        nonlocal families_made
        families_made += 1
        return collect(self, values)  # type: ignore[arg-type]

    def scrape(now: KnownDros) -> set[str]:
        found = metrics.of_dro(now)
        body, _ = texts.encoded(found, PLAIN)
        assert body == Judge(found).encoded(PLAIN)[0]
        return {line.rpartition(" ")[0] for line in body.decode().splitlines() if "dro_" in line and line[0] != "#"}

    monkeypatch.setattr(Families, "collect", counted)
    before = scrape(known(tmp_path, 4))
    assert families_made == 2, "one by the judge"
    assert scrape(known(tmp_path, 4)) == before
    assert families_made == 3, "the judge's"
    added = scrape(known(tmp_path, 5)) - before
    assert added
    assert all('portal="P5"' in series for series in added)
    assert scrape(known(tmp_path, 5, left_out=5)) == before
    assert scrape(known(tmp_path, 5, left_out=2)) == {
        series for series in before | added if 'portal="P2"' not in series
    }
    assert scrape(known(tmp_path, 4, name="B")).isdisjoint(before)
    assert scrape(known(tmp_path, 4, others=3)) > before
    paused = known(tmp_path, 4)
    workers = tuple(replace(worker, state="paused", pid=0) for worker in paused.status.workers)
    assert scrape(replace(paused, status=replace(paused.status, workers=workers))) == before
    for version in range(1, 50):
        texts.encoded(metrics.of_dro(known(tmp_path, 4)), f"application/openmetrics-text; version={version}.0.0")
        assert len(texts._kept) <= MAX_FORMATS


def test_a_portal_has_so_many_series(tmp_path: Path) -> None:
    """What a portal more costs a Prometheus; counted in the answer, in which none is there twice."""
    add_pages(tmp_path, 20)
    metrics = Metrics("1.0", "r")

    def count(portals: int) -> int:
        body, _ = Texts().encoded(metrics.of_dro(known(tmp_path, portals)), PLAIN)
        lines = [line.rpartition(" ")[0] for line in body.decode().splitlines() if not line.startswith("#")]
        assert len(set(lines)) == len(lines)
        return len(lines)

    beside = 14  # of no table: information, cost, index, up, restarts, a series for each of nine states
    of_both = sum(beside + len(of_page(kind).values) for kind in (ENDPOINT, PEER))
    assert [count(n + 2) - count(n) for n in (2, 10, 18)] == [of_both] * 3
    assert 4500 < count(20) < 6500


@pytest.mark.prometheus
def test_promtool_finds_nothing_in_20_portals(tmp_path: Path) -> None:
    add_pages(tmp_path, 20)
    metrics = Metrics("1.0", "r")
    for found in (metrics.of_dro(known(tmp_path, 20)), metrics.of_workers(known(tmp_path, 20), {})):
        body, _ = Texts().encoded(found, PLAIN)
        done = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_log_lines_of_the_parent_are_among_those_of_all(tmp_path: Path) -> None:
    told = known(tmp_path, 2)
    told = replace(told, status=replace(told.status, logged={"error": 3}))
    found = samples(Metrics("1", "r").of_dro(told))
    by_severity = {dict(labels)["severity"]: value for (name, labels), value in found.items()
                   if name == "dro_log_messages_total"}  # fmt: skip
    assert by_severity["error"] == 3
    assert by_severity["warning"] == 0
