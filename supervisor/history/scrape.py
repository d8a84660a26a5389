"""Scrapes DROs into a history, for who has no Prometheus."""

from __future__ import annotations

import http.client
import logging
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from dro.errors import ResourceError
from supervisor.history.sample_writer import SampleWriter
from supervisor.history.series import RemoteSample

LIMIT_S: Final = 10.0
"""For a whole answer."""
MAX_BYTES: Final = 64 << 20
_PIECE: Final = 1 << 16
_log: Final = logging.getLogger("tnwgd-history")


class _Answer(NamedTuple):
    """Holds what came from `url`, which was asked at `ts_ms`: text, or why there is none."""

    url: str
    ts_ms: int
    found: bytes | Exception


class Scraper:
    """Asks DROs for their metrics, each in a thread of its own; what they answer is written by the caller's."""

    def __init__(self, urls: Sequence[str], writer: SampleWriter, *, limit_s: float = LIMIT_S) -> None:
        self._urls = urls
        self._writer = writer
        self._limit_s = limit_s
        self._answers: SimpleQueue[_Answer | None] = SimpleQueue()
        self._asked_s: dict[str, float] = {}
        """When those were asked that have not answered yet."""
        self._is_late: set[str] = set()

    def run(self, interval_s: float) -> None:
        """Ask all every `interval_s` seconds until `stop` is called."""
        while True:
            self._ask()
            if self._keep(interval_s):
                return

    def stop(self) -> None:
        """Make `run` return; a handler of signals may call it."""
        self._answers.put(None)

    def _ask(self) -> None:
        for url in self._urls:
            if url not in self._asked_s:
                self._asked_s[url] = time.monotonic()
                threading.Thread(target=self._fetch, args=(url,), daemon=True).start()

    def _keep(self, for_s: float) -> bool:
        """Write answers as they come for `for_s` seconds; whether that is the end."""
        end_s = time.monotonic() + for_s
        while (rest_s := end_s - time.monotonic()) > 0:
            try:
                answer = self._answers.get(timeout=rest_s)
            except Empty:
                break
            if answer is None:
                return True
            del self._asked_s[answer.url]
            self._is_late.discard(answer.url)
            self._write(answer)
        self._tell_late()
        return False

    def _fetch(self, url: str) -> None:
        ts_ms = time.time_ns() // 1_000_000
        try:
            found: bytes | Exception = _text(url, self._limit_s)
        except (OSError, http.client.HTTPException, ValueError) as e:
            found = e
        self._answers.put(_Answer(url, ts_ms, found))

    def _write(self, answer: _Answer) -> None:
        try:
            if isinstance(answer.found, Exception):
                raise answer.found
            samples = list(_samples(answer.found.decode(), answer.ts_ms))
        except (OSError, http.client.HTTPException, ValueError) as e:
            reason = getattr(e, "reason", e)  # what urllib has put round it
            text = getattr(reason, "strerror", "") or reason
            _log.error("%s: %s; is it the address of <web-monitor>, with /metrics?", answer.url, text)
            return
        try:
            count, problem = self._writer.keep(samples)
        except ResourceError as e:
            _log.error("%s", e)
            return
        if problem:
            _log.warning("%s: %s; the other %d samples are kept", answer.url, problem, count)

    def _tell_late(self) -> None:
        """Log once who should have answered; name servers and headers can take longer than the limit."""
        for url, asked_s in self._asked_s.items():
            if url not in self._is_late and time.monotonic() - asked_s > self._limit_s + 1:
                self._is_late.add(url)
                _log.error("%s: no whole answer within %g s, it is still waited for", url, self._limit_s)


def _text(url: str, limit_s: float) -> bytes:
    end_s = time.monotonic() + limit_s
    found = bytearray()
    with urllib.request.urlopen(url, timeout=limit_s) as answer:
        while piece := answer.read1(_PIECE):
            found += piece
            if len(found) > MAX_BYTES:
                raise ValueError(f"the answer has more than {MAX_BYTES} bytes")
            if time.monotonic() > end_s:
                raise TimeoutError(f"no whole answer within {limit_s:g} s")
    return bytes(found)


def _samples(text: str, ts_ms: int) -> Iterator[RemoteSample]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield RemoteSample((("__name__", sample.name), *sample.labels.items()), ts_ms, sample.value)
