"""The monitor of a loaded DRO: the same series from start to stop; nothing done to it reaches forwarding."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from dro.clock import NS_PER_S
from supervisor.admin.client import Client, find_dro
from supervisor.monitor.guard import MAX_CONNECTIONS, MAX_OF_ADDRESS
from supervisor.parent.backoff import LONG_LIFE_NS
from tests.rigs import web
from tests.rigs.effort import IS_LONG
from tests.rigs.flow import DUPLICATES, MISSING, WRONG
from tests.rigs.ring import WORKERS, Ring
from tests.rigs.scraper import Scraper, series
from tests.rigs.site import ROUTE_MANAGER, Site

TOPICS: Final = 10
RATE: Final = 200
KILLS: Final = 50 if IS_LONG else 6
TOO_MANY: Final = 50

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def monitored(folder: Path, trds: int, environment: Mapping[str, str] | None = None) -> Iterator[Site]:
    """A DRO whose monitor answers."""
    made = Site(folder, trds, has_monitor=True)
    made.environment = {**made.environment, **(environment or {})}
    try:
        made.start()
        made.wait(lambda: status_of(made, "/readyz") == 200, "the monitor")
        yield made
    finally:
        made.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with monitored(tmp_path, 3) as made:
        yield made


def fetch(site: Site, path: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    return web.fetch(site.web, path, headers)


def status_of(site: Site, path: str) -> int:
    return fetch(site, path)[0]


def states_of(site: Site, portal: str) -> list[str]:
    """Those whose series is 1, which has to be one."""
    values, _ = series(fetch(site, "/metrics")[1].decode())
    return [
        dict(labels)["state"]
        for (name, labels), value in values.items()
        if name == "dro_portal_state" and ("portal", portal) in labels and value
    ]


def is_past(when_s: float) -> bool:
    return time.monotonic() > when_s


def is_alive_again(site: Site, worker: str, pid: int) -> bool:
    """In another process than that one."""
    return site.workers().get(worker, pid) != pid


def test_the_series_are_the_same_from_the_first_answer_to_the_last(tmp_path: Path) -> None:
    """Before the DRO runs, through kills of its portals one after another, and while it ends."""
    site = Site(tmp_path, 3, has_monitor=True)
    scraper = Scraper(site.web)
    scraper.start()
    try:
        site.start()
        ring = Ring(site, TOPICS, RATE)
        born_s = dict.fromkeys(WORKERS, 0.0)
        for nth in range(KILLS):
            worker = WORKERS[nth % len(WORKERS)]
            # younger ones are started again later and later
            site.wait(partial(is_past, born_s[worker] + 1.1 * LONG_LIFE_NS / NS_PER_S), "its age")
            pid = site.kill(worker)
            site.wait(partial(is_alive_again, site, worker, pid), "the next life")
            born_s[worker] = time.monotonic()
        ring.wait_flowing_again()
        assert site.stop() == 0
    finally:
        site.close()
        scraper.stop()
    assert scraper.problems == []
    assert [status for status, _ in scraper.answers if status != 200 and status] == []
    restarts = [value for (name, _), value in scraper.values.items() if name == "dro_portal_restarts_total"]
    assert sum(restarts) == KILLS
    assert scraper.values["dro_up", (("dro", site.name),)] == 0, "it was scraped while it ended"


def test_the_series_are_the_same_and_add_up_from_start_to_stop(site: Site) -> None:
    """Through kills of every worker, a pause, and the end of the DRO."""
    ring = Ring(site, TOPICS, RATE)
    scraper = Scraper(site.web)
    scraper.start()
    for worker in (*WORKERS, ROUTE_MANAGER, WORKERS[0]):
        site.kill(worker)
        ring.wait_flowing_again()
    with Client(find_dro(str(site.pid))) as client:
        client.request("portal pause", name="P1")
        site.wait(lambda: fetch(site, "/readyz") == (503, b"P1 is paused\n"), "the pause")
        assert status_of(site, "/healthz") == 200
        client.request("portal resume", name="P1")
        site.wait(lambda: status_of(site, "/readyz") == 200, "the return")
    ring.wait_flowing_again()
    site.wait(lambda: states_of(site, "P1") == ["ready"], "the metrics follow")
    site.wait(lambda: len(scraper.answers) > 50, "enough scrapes")
    scraper.stop()
    assert scraper.problems == []
    of_p1 = ("dro", site.name), ("portal", "P1"), ("portal_type", "endpoint")
    assert scraper.values["dro_portal_restarts_total", of_p1] == 3
    with site.books() as books:
        dropped = sum(books.dropped(1).values())
    assert dropped > 0, "the kills cost something, which is in the sums"


def test_it_shows_the_end_of_the_others_and_ends_last(site: Site) -> None:
    """While a portal takes its time to end, the metrics are there and say that the DRO is not up."""
    pid = site.worker("P1")
    os.kill(pid, signal.SIGSTOP)
    assert site.daemon is not None
    site.daemon.terminate()
    site.wait(lambda: set(site.workers()) == {"P1", "monitor"}, "the end of the others")
    site.wait(lambda: series(fetch(site, "/metrics")[1].decode())[0]["dro_up", (("dro", site.name),)] == 0, "the news")
    assert status_of(site, "/readyz") == 503
    os.kill(pid, signal.SIGCONT)
    assert site.daemon.wait(20) == 0
    site.daemon = None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_what_happens_to_the_monitor_does_not_happen_to_the_others(site: Site, number: signal.Signals) -> None:
    ring = Ring(site, TOPICS, RATE)
    others = {name: pid for name, pid in site.workers().items() if name != "monitor"}
    before = site.worker("monitor")
    os.kill(before, number)
    if number == signal.SIGKILL:
        site.wait(lambda: site.workers().get("monitor", before) != before, "another monitor")
        site.wait(lambda: status_of(site, "/readyz") == 200, "its answer")
    ring.settle()
    assert others.items() <= site.workers().items()
    for flow in ring.flows.values():
        assert (flow[MISSING], flow[DUPLICATES], flow[WRONG]) == (0, 0, 0), flow.story()
    assert site.stop() == 0


def is_cut_off(sock: socket.socket) -> bool:
    """By the other end."""
    try:
        return not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_bad_clients_are_dropped_and_others_are_served(site: Site) -> None:
    """Connections that say nothing, endless headers, paths that climb, foreign names; a flow beside them is whole."""
    ring = Ring(site, TOPICS, RATE)
    host, port = site.web.split(":")
    slow = socket.create_connection((host, int(port)))
    slow.sendall(b"GET /metrics HTTP/1.1\r\n")  # and no more: the patience with it ends meanwhile
    with contextlib.ExitStack() as opened:

        def connect(source: str, count: int) -> list[socket.socket]:
            return [opened.enter_context(socket.create_connection((host, int(port)), source_address=(source, 0)))
                    for _ in range(count)]  # fmt: skip

        idle = connect("127.0.0.1", MAX_OF_ADDRESS + TOO_MANY)
        site.wait(lambda: sum(map(is_cut_off, idle)) >= TOO_MANY, "the end of those that are too many")
        site.wait(lambda: "too many connections of one address" in site.log, "a line about them")
        other = http.client.HTTPConnection(site.web, timeout=10, source_address=("127.0.0.2", 0))
        other.request("GET", "/metrics")
        assert other.getresponse().status == 200, "another address has a share of its own"
        other.close()
        idle = [sock for n in range(2, 3 + MAX_CONNECTIONS // MAX_OF_ADDRESS)
                for sock in connect(f"127.0.0.{n}", MAX_OF_ADDRESS)]  # fmt: skip
        site.wait(lambda: sum(map(is_cut_off, idle)) >= MAX_OF_ADDRESS, "the end of those beyond the whole limit")
    site.wait(lambda: status_of(site, "/healthz") == 200, "an answer after them")
    for path in ("/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/metrics/../../etc/passwd", "/static/..%2f..%2fx"):
        assert status_of(site, path) == 404
    assert fetch(site, "/metrics", {"Host": "evil.example:15304"})[0] == 421
    assert fetch(site, "/metrics", {"Host": "localhost"})[0] == 200
    for method in ("POST", "PUT", "DELETE"):
        connection = http.client.HTTPConnection(site.web, timeout=10)
        connection.request(method, "/metrics", headers={"Origin": "http://evil.example"})
        assert connection.getresponse().status == 405
        connection.close()
    with socket.create_connection((host, int(port))) as sock:
        with contextlib.suppress(ConnectionError):
            for _ in range(200):
                sock.sendall(b"X-Filler: " + b"a" * 1000 + b"\r\n")
        with contextlib.suppress(ConnectionError):
            assert b" 400 " in sock.recv(200)
    with slow:
        site.wait(lambda: "no whole request in time" in site.log, "the end of its patience")
    assert status_of(site, "/metrics") == 200
    assert site.log.count("client of the web monitor dropped") < 20
    values, _ = series(fetch(site, "/metrics/workers")[1].decode())
    counted = {dict(labels)["reason"]: value for (name, labels), value in values.items()
               if name == "dro_monitor_clients_dropped_total"}  # fmt: skip
    assert counted["too_many_connections_of_one_address"] >= TOO_MANY
    assert counted["too_many_connections"] >= MAX_OF_ADDRESS
    assert (counted["foreign_host"], counted["no_whole_request_in_time"]) >= (1, 1)
    assert status_of(site, "/openapi.json") == status_of(site, "/docs") == 404
    ring.settle()
    for flow in ring.flows.values():
        assert (flow[MISSING], flow[DUPLICATES], flow[WRONG]) == (0, 0, 0), flow.story()


def test_it_answers_while_name_servers_do_not(tmp_path: Path) -> None:
    """The host's own name is in no file of hosts; look-ups take longer than the parent waits for an answer."""
    (tmp_path / "sitecustomize.py").write_text(
        "import socket, threading\nsocket.getfqdn = lambda name='': threading.Event().wait()\n"
    )
    with monitored(tmp_path, 1, {"PYTHONPATH": str(tmp_path)}) as site:
        assert fetch(site, "/metrics", {"Host": socket.gethostname()})[0] == 200
        assert fetch(site, "/metrics", {"Host": "evil.example"})[0] == 421
        assert site.stop() == 0


def test_an_address_in_use_costs_the_monitor_alone(tmp_path: Path) -> None:
    site = Site(tmp_path, 2, has_monitor=True)
    host, port = site.web.split(":")
    taken = socket.create_server((host, int(port)))
    try:
        site.start()
        site.wait(lambda: "web monitor cannot listen" in site.log, "a line about it")
        taken.close()
        site.wait(lambda: status_of(site, "/readyz") == 200, "the monitor, once the address is free")
    finally:
        taken.close()
        site.close()


@pytest.mark.prometheus
def test_prometheus_scrapes_it_and_promtool_finds_nothing(site: Site, tmp_path: Path) -> None:
    for path in ("/metrics", "/metrics/workers"):
        status, body = fetch(site, path)
        assert status == 200
        done = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b""), path
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [{"job_name": "dro", "static_configs": [{"targets": [site.web]}]}],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    address = f"127.0.0.1:{site.port(1) + 31}"
    with (tmp_path / "prometheus.log").open("wb") as log:
        server = subprocess.Popen(
            ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
             f"--web.listen-address={address}"],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        query = f'http://{address}/api/v1/query?query=dro_up%7Bjob="dro"%7D'

        def scraped() -> bool:
            with contextlib.suppress(OSError), urllib.request.urlopen(query, timeout=5) as answer:
                found = json.load(answer)["data"]["result"]
                return bool(found) and found[0]["value"][1] == "1"
            return False

        site.wait(scraped, "a scrape", 60)
    finally:
        server.terminate()
        server.wait(20)
