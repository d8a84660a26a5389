"""Histories by network: a DRO that is silent, or whose answer never ends, delays no other; an address is named."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from supervisor.history.main import main
from supervisor.history.sample_writer import SampleWriter
from supervisor.history.scrape import Scraper
from supervisor.history.store import Store

LINE = b'dro_portal_up{dro="G",portal="P",portal_type="peer"} 1\n'


class Served(ThreadingHTTPServer):
    """Answers at /good; at /silent it never does, at /body and /headers a byte comes now and then."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.asked: Counter[str] = Counter()
        self.is_over = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"


class Answers(BaseHTTPRequestHandler):
    server: Served

    def do_GET(self) -> None:
        self.server.asked[self.path] += 1
        if self.path == "/silent":
            self.server.is_over.wait()
            return
        self.send_response(200)
        if self.path == "/headers":
            self.flush_headers()
            self._trickle(b"X")
            return
        self.end_headers()
        if self.path == "/body":
            self._trickle(b"#")
        elif self.path == "/wrong":
            self.wfile.write(b"<html>")
        else:
            self.wfile.write(LINE)

    def _trickle(self, byte: bytes) -> None:
        with contextlib.suppress(OSError):
            while not self.server.is_over.wait(0.05):
                self.wfile.write(byte)
                self.wfile.flush()

    def log_message(self, *_: Any) -> None:  # noqa: ANN401 - as in the library
        pass


@pytest.fixture
def served() -> Iterator[Served]:
    with Served() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.is_over.set()
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("other", ["/good?", "/silent", "/headers", "/body"])
def test_one_that_does_not_answer_delays_no_other(
    other: str, served: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path, "scrape")
    urls = [served.url + other, f"{served.url}/good", f"{served.url}/wrong", "http://127.0.0.1:1/metrics"]
    scraper = Scraper(urls, SampleWriter(store), limit_s=0.5)
    running = threading.Thread(target=scraper.run, args=(0.1,))
    with caplog.at_level(logging.INFO):
        running.start()
        deadline = time.monotonic() + 60

        def is_told() -> bool:
            return other == "/good?" or any(other in message for message in caplog.messages)

        while (served.asked["/good"] < 20 or not is_told()) and time.monotonic() < deadline:
            time.sleep(0.01)
        scraper.stop()
        running.join(5)
        assert not running.is_alive(), "it ends at once, whoever is still asked"
    store.close()
    assert served.asked["/good"] >= 20
    assert served.asked[other] < 20 or other == "/good?", "who is still asked is not asked again"
    assert f"{urls[3]}: Connection refused; is it the address of <web-monitor>, with /metrics?" in caplog.messages
    assert any(f"{urls[2]}: " in message for message in caplog.messages), "what is no list of metrics is told"
    wrong = {m for m in caplog.messages if other in m and other != "/good?"}
    assert all("no whole answer within 0.5 s" in m or "timed out" in m for m in wrong), wrong
    files = list(tmp_path.glob("table=portal/day=*/dro=G/*.parquet"))
    assert sum(pq.ParquetFile(path).metadata.num_rows for path in files) >= 19


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_an_address_that_is_taken_is_named(host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = host.strip("[]")
    with socket.create_server((bare, 0), family=socket.AF_INET6 if ":" in bare else socket.AF_INET) as other:
        port = other.getsockname()[1]
        assert main(["receive", "--history", str(tmp_path), "--listen", f"{host}:{port}"]) == 1
    told = capsys.readouterr().err
    assert f"cannot listen at {bare} port {port}: Address already in use" in told
    assert "choose another address or port by --listen" in told
