"""From counters to a report, with real parts: a DRO under load and kills, Prometheus, remote write, Parquet, Spark."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from analytics.aggregate import aggregate
from analytics.report import main as report
from analytics.store.objects import ObjectStore
from analytics.views import tables_of
from dro.metrics.table import PORTAL, metrics
from supervisor.admin.client import Client, find_dro
from supervisor.admin.status import PortalsStatus
from tests.rigs.flow import PAUSE, PAUSED, RECEIVED, Board
from tests.rigs.loaded import Loaded
from tests.rigs.object_store import bucket
from tests.rigs.prometheus import Prometheus
from tests.rigs.site import ROOT, Site, drained, reserve_block
from tests.rigs.waiting import wait_until
from tests.rigs.web import fetch

MESSAGES: Final = ("received", "forwarded", "sent", "dropped")
SUMS: Final = tuple(f"{what}_{unit}" for what in MESSAGES for unit in ("messages", "bytes"))
BY_REASON: Final = ("dropped_messages", "receive_exception_messages")
MANY: Final = 2000
Sums = Mapping[str, Counter[str]]
"""Of each portal what it has counted, by the names of gold tables; what is 0 is not there."""


class Chain:
    """A DRO that keeps a history itself, a Prometheus that sends what it scrapes to another one, both in a bucket."""

    def __init__(self, folder: Path, uri: str) -> None:
        port, self._guard = reserve_block(2)
        self.own, self.sent = ObjectStore(uri.replace("/history?", "/own?")), ObjectStore(uri)
        self.receiver = Loaded(
            [sys.executable, "-m", "supervisor.history.main", "receive", "--history", uri, "--journal",
             str(folder / "journal"), "--listen", f"127.0.0.1:{port}", "--roll", "2"],
            cwd=ROOT,
        )  # fmt: skip
        self.site = Site(folder, 2, has_monitor=True)
        journal = folder / "own"
        self.site.arguments = (
            "--history", self.own.address, "--history-interval", "0.5", "--history-journal", str(journal)
        )  # fmt: skip
        wait_until(lambda: _written(f"127.0.0.1:{port}") == 0, "the receiver", 60)
        url = f"http://127.0.0.1:{port}/api/v1/write"
        self.prometheus = Prometheus(
            folder / "prometheus", f"127.0.0.1:{port + 1}", [self.site.web], 1, remote_write=url
        )
        self.prometheus.start()
        # it sends nothing of the seconds before: what it says of itself has to come first
        wait_until(lambda: _written(f"127.0.0.1:{port}") > 0, "remote write", 60)
        self.site.start()
        # what it had counted before the first scrape would not be growth
        self.site.wait(lambda: self.prometheus.query("dro_start_time_seconds"), "the first scrape", 60)
        self.board = Board.create(folder, "T", 20)
        for way, name, trd in (("--receive", "receiver", 2), ("--send", "source", 1)):
            pace = ("--rate", "500") if way == "--send" else ()
            self.site.python(
                "-m", "tests.rigs.flow", str(self.site.config(trd)), way, str(self.board.path), *pace, name=name
            )
        self.flows_again()

    def flows_again(self) -> None:
        """Wait until something that was sent from now on has come of each topic."""
        self.board.mark()
        self.site.wait(lambda: min(self.board.after_mark()) >= 0, "everything flows", 60)

    def kill(self, worker: str) -> None:
        """Kill a process, and wait for the next one of its name."""
        before = self.site.workers()[worker]
        os.kill(before, signal.SIGKILL)
        self.site.wait(lambda: self.site.workers().get(worker, before) != before, f"another {worker}", 60)

    def settle(self) -> Sums:
        """Stop the source; what the portals have counted when nothing is on its way."""
        self.board[PAUSE] = 1
        self.site.wait(lambda: self.board[PAUSED] and self.board.is_caught_up(self.board), "the last messages")
        with self.site.books() as books:
            self.site.wait(lambda: drained(books), "books")
        client = Client(find_dro(str(self.site.pid)))
        try:
            told = client.ask(PortalsStatus, "portals")
        finally:
            client.close()
        found = {portal.name: Counter[str]() for portal in told.portals}
        for portal in told.portals:
            for metric in metrics(PORTAL, portal.kind):
                value = sum(portal.counters[name] for name in _cells(metric.row)) if metric.kind == "counter" else 0
                _count(found[portal.name], metric.name, dict(metric.labels), value)
        return {name: +sums for name, sums in found.items()}

    def seen(self) -> Sums:
        """The same as Prometheus has it."""
        found: dict[str, Counter[str]] = {}
        for one in self.prometheus.query('{__name__=~"dro_portal_.*(messages|bytes)_total"}'):
            labels = one["metric"]
            _count(found.setdefault(labels["portal"], Counter()), labels["__name__"], labels, int(one["value"][1]))
        return {name: +sums for name, sums in found.items()}

    def end(self) -> None:
        """Everything, in the order in which nothing is lost."""
        self.site.stop()
        self.prometheus.close()
        self.receiver.terminate()
        assert self.receiver.wait(30) == 0

    def close(self) -> None:
        self.site.close()
        self.prometheus.close()
        self.receiver.kill()
        self.receiver.wait(30)
        self._guard.close()


def _written(address: str) -> int:
    """Samples that the receiver has taken; -1 while it does not answer."""
    status, text = fetch(address, "/metrics")
    found = re.search(rb"^dro_history_samples_written_total (\d+)$", text, re.MULTILINE)
    return int(found[1]) if status == 200 and found is not None else -1


def _cells(row: str) -> tuple[str, ...]:
    return () if row in ("DATA_RCVD", "CONTROL_MESSAGES_RCVD", "GATEWAY_CONTROL_GENERATED") else (row,)


def _count(sums: Counter[str], metric: str, labels: Mapping[str, str], value: int) -> None:
    name = metric.removeprefix("dro_portal_").removesuffix("_total")
    if name in SUMS or name in BY_REASON:
        sums[name] += value
        if name in BY_REASON:
            sums[f"{name}_{labels['reason']}"] += value


def of_gold(spark: SparkSession, history: ObjectStore, names: set[str]) -> Sums:
    """The sums over all hours."""
    hours = tables_of(spark, history)("portal_hour")
    rows = [row.asDict() for row in hours.groupBy("portal").sum(*sorted(names)).collect()]
    return {row["portal"]: +Counter({name: row[f"sum({name})"] for name in names}) for row in rows}


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    with bucket() as uri:
        made = Chain(tmp_path, uri)
        yield made
        made.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.prometheus
def test_gold_equals_the_counters_and_what_prometheus_had_seen(
    chain: Chain, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    for worker in ("P2", "history", "P1", "monitor"):
        chain.kill(worker)
        chain.flows_again()
    chain.site.wait(lambda: chain.board[RECEIVED] > MANY, "many messages", 60)
    counted = chain.settle()
    assert counted["P2"]["sent_messages"] >= MANY
    wait_until(
        lambda: chain.seen() == counted, "Prometheus has seen everything", 30, lambda: f"{chain.seen()} {counted}"
    )
    chain.end()
    names = {name for sums in counted.values() for name in sums}
    for history in (chain.own, chain.sent):
        done = aggregate(spark, history)
        assert (done.left_out, done.days) == ((), 1)
        assert of_gold(spark, history, names) == counted, history
        assert aggregate(spark, history).partitions == 0, "nothing has changed"
    capsys.readouterr()
    assert report(["busiest-portal", "--history", chain.sent.address, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    busiest = max(counted, key=lambda name: counted[name]["received_bytes"] + counted[name]["sent_bytes"])
    assert {row["portal"] for row in told} == {busiest}
    assert sum(row["bytes"] for row in told) == counted[busiest]["received_bytes"] + counted[busiest]["sent_bytes"]
