"""Log events of a running DRO by way of its monitor: as a list and as streams, through a kill of the monitor."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.admin.client import Client, find_dro
from supervisor.monitor.known.events import MAX_LISTENERS
from tests.daemon.test_monitor import fetch, monitored, status_of
from tests.rigs.scraper import series
from tests.rigs.site import Site

pytestmark = pytest.mark.slow


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with monitored(tmp_path, 2) as made:
        yield made


class Stream:
    """An open stream of events."""

    def __init__(self, site: Site, query: str = "", headers: dict[str, str] | None = None) -> None:
        self._connection = http.client.HTTPConnection(site.web, timeout=20)
        self._connection.request("GET", f"/v1/events/stream{query}", headers=headers or {})
        self.answer = self._connection.getresponse()

    def next(self) -> tuple[str, str, dict[str, Any]]:
        """Serial, category and data of the next event."""
        found: dict[str, str] = {}
        while line := self.answer.readline().decode().rstrip("\n") or not found:
            if isinstance(line, str) and not line.startswith(":"):
                key, _, value = line.partition(": ")
                found[key] = value
        return found["id"], found["event"], json.loads(found["data"])

    def until(self, name: str, **fields: str) -> dict[str, Any]:
        """The next event of that name with these fields."""
        while True:
            _, _, row = self.next()
            if row["name"] == name and fields.items() <= row["fields"].items():
                return row

    def close(self) -> None:
        self._connection.close()
        self.answer.close()


def events(site: Site, query: str = "") -> list[dict[str, Any]]:
    status, body = fetch(site, f"/v1/events{query}")
    return list(json.loads(body)["rows"]) if status == 200 else []


def order(site: Site, command: str, name: str) -> None:
    with Client(find_dro(str(site.pid))) as client:
        client.request(command, name=name)


def dropped_clients(site: Site) -> dict[str, float]:
    values, _ = series(fetch(site, "/metrics/workers")[1].decode())
    return {dict(labels)["reason"]: value for (name, labels), value in values.items()
            if name == "dro_monitor_clients_dropped_total"}  # fmt: skip


def test_a_pause_is_in_the_list_and_in_open_streams(site: Site) -> None:
    with contextlib.closing(Stream(site)) as of_all:
        assert of_all.answer.status == 200
        assert of_all.answer.headers["Content-Type"].startswith("text/event-stream")
        order(site, "portal pause", name="P1")
        row = of_all.until("OPERATION_DONE", operation="pause", worker="P1")
        assert (row["worker"], row["category"], row["level"]) == ("tnwgd", "portal", "information")
        assert row in events(site, "?category=portal")
        assert row not in events(site, f"?category=portal&after={row['serial']}")
        order(site, "portal resume", name="P1")
        site.wait(lambda: any(one["worker"] == "P1" for one in events(site)), "an event of the portal itself")
        with contextlib.closing(Stream(site, headers={"Last-Event-ID": str(row["serial"] - 1)})) as again:
            serial, category, first = again.next()
            assert (serial, category, first) == (str(row["serial"]), "portal", row)
        assert events(site, "?category=drops") == []
    for query in ("?level=loud", "?category=weather", "?limit=0", "?limit=1001", "?after=-1", "?after=x"):
        assert status_of(site, f"/v1/events{query}") == 422
    assert site.stop() == 0


def test_only_so_many_streams_are_open_and_a_closed_one_makes_room(site: Site) -> None:
    streams = [Stream(site) for _ in range(40)]
    try:
        assert [stream.answer.status for stream in streams] == [200] * MAX_LISTENERS + [503] * (40 - MAX_LISTENERS)
        assert streams[-1].answer.read() == b"32 streams are open already\n"
        assert status_of(site, "/healthz") == 200
        assert dropped_clients(site)["too_many_streams"] == 40 - MAX_LISTENERS
        streams[0].close()

        def has_room() -> bool:
            with contextlib.closing(Stream(site)) as one:
                return one.answer.status == 200

        site.wait(has_room, "room for another one")
        order(site, "portal pause", name="P1")
        for stream in streams[1:MAX_LISTENERS]:
            stream.until("OPERATION_DONE", operation="pause")
    finally:
        for stream in streams:
            stream.close()
    assert site.stop() == 0


def test_a_stream_that_is_not_read_is_ended_and_counted(site: Site) -> None:
    host, port = site.web.split(":")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    sock.connect((host, int(port)))
    sock.sendall(b"GET /v1/events/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
    path = Path(find_dro(str(site.pid))) / "events"
    row = {"time_s": 1, "level": "error", "event": "", "name": "", "worker": "P1", "text": "x" * 1000,
           "fields": {str(n): "y" * 200 for n in range(10)}}  # fmt: skip
    data = json.dumps(row).encode()
    with (
        sock,
        contextlib.closing(Stream(site, "?level=error")) as read,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
    ):
        sender.settimeout(20)

        def sent() -> bool:
            for _ in range(10):
                sender.sendto(data, str(path))
                assert read.next()[2]["text"] == row["text"]
            return dropped_clients(site)["answer_not_taken"] == 1

        site.wait(sent, "the end of the stream that is not read", 60)
        sender.sendto(b"no event", str(path))
        sender.sendto(data, str(path))
        assert read.next()[2]["fields"] == row["fields"]

    def malformed() -> bool:
        values, _ = series(fetch(site, "/metrics")[1].decode())
        labels = ("dro", site.name), ("reason", "malformed")
        return values["dro_monitor_events_dropped_total", labels] == 1

    site.wait(malformed, "the count of what was no event")


def test_events_come_again_after_a_kill_of_the_monitor(site: Site) -> None:
    order(site, "portal pause", name="P1")
    last = events(site)[-1]["serial"]
    before = site.kill("monitor")
    site.wait(lambda: site.workers().get("monitor", before) != before, "another monitor")
    site.wait(lambda: status_of(site, "/healthz") == 200, "its answer")
    order(site, "portal resume", name="P1")
    site.wait(lambda: any(one["name"] == "WORKER_READY" and one["fields"]["worker"] == "P1" for one in events(site)),
              "the return of the portal")  # fmt: skip
    assert events(site)[0]["serial"] > last
    assert status_of(site, f"/v1/events?after={last}") == 200
    assert events(site, f"?after={last}")
