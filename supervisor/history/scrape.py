"""Scrapes DROs into a history, for who has no Prometheus."""

from __future__ import annotations

import http.client
import logging
import time
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from dro.errors import ResourceError
from supervisor.history.sample_writer import SampleWriter
from supervisor.history.series import RemoteSample

LIMIT_S: Final = 10.0
MAX_BYTES: Final = 64 << 20
_log: Final = logging.getLogger("tnwgd-history")


def scrape(url: str, writer: SampleWriter) -> int:
    """Fetch the metrics of a DRO and keep them; how many samples. Raises: ResourceError."""
    ts_ms = time.time_ns() // 1_000_000
    try:
        with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
            text = answer.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise ValueError(f"the answer has more than {MAX_BYTES} bytes")
        samples = list(_samples(text.decode(), ts_ms))
    except (OSError, http.client.HTTPException, ValueError) as e:
        raise ResourceError(f"{url}: {e}", remedy="is it the address of <web-monitor>, with /metrics?") from e
    count, problem = writer.keep(samples)
    if problem:
        _log.warning("%s: %s; the other samples are kept", url, problem)
    return count


def scrape_all(urls: Sequence[str], writer: SampleWriter) -> None:
    """Scrape each once; who does not answer is named. Raises: ResourceError when nothing can be written."""
    for url in urls:
        try:
            scrape(url, writer)
        except ResourceError as e:
            _log.error("%s", e)
    writer.tend()


def _samples(text: str, ts_ms: int) -> Iterator[RemoteSample]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield RemoteSample((("__name__", sample.name), *sample.labels.items()), ts_ms, sample.value)
