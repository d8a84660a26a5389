"""Scrapes a web monitor again and again, and judges every answer: the same series, none falls, books balance."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from tests.rigs.web import fetch

PARTS: Final = ("forwarded", "sent", "dropped", "queued")
PERIOD_S: Final = 0.05
OF_OTHERS: Final = ("dro_other_", "dro_portal_info")  # what other DROs tell comes and goes with them
Key = tuple[str, tuple[tuple[str, str], ...]]


def series(text: str) -> tuple[dict[Key, float], set[Key]]:
    """All values, and which of them may only grow."""
    values, growing, is_growing = {}, set(), False
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            is_growing = line.endswith((" counter", " histogram"))
        elif not line.startswith("#"):
            head, _, value = line.rpartition(" ")
            key = _key(head)
            values[key] = float(value)
            if is_growing:
                growing.add(key)
    return values, growing


@cache
def _key(head: str) -> Key:
    """Name and labels, read by the library; most lines come again and again."""
    ((sample,),) = (family.samples for family in text_string_to_metric_families(f"{head} 0\n"))
    return sample.name, tuple(sorted(sample.labels.items()))


@dataclass
class Scraper:
    """Scrapes, 20 times a second unless it is said, until it is stopped, then judges every answer. Before the first one
    and after the last one nobody listens; between them there has to be one each time."""

    where: str  # address and port of the web monitor
    may_be_killed: bool = False  # the monitor, so that nobody answers for a while
    period_s: float = PERIOD_S
    scrapes: int = 0
    answers: list[tuple[int, bytes]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    values: dict[Key, float] = field(default_factory=dict)
    _names: set[Key] = field(default_factory=set)
    _is_over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        assert self._thread is not None
        self._is_over.set()
        self._thread.join()
        answered = [nth for nth, (status, _) in enumerate(self.answers) if status]
        before = b""
        for status, body in self.answers[answered[0] : answered[-1] + 1]:
            if not status and self.may_be_killed:
                continue
            if status != 200:
                self.problems.append(f"scrape {self.scrapes}: status {status}")
            elif body != before:  # within a tenth of a second it is the same
                self._judge(*series(body.decode()))
            before = body

    def _run(self) -> None:
        while not self._is_over.wait(self.period_s):
            self.answers.append(fetch(self.where, "/metrics"))

    def _judge(self, values: dict[Key, float], growing: set[Key]) -> None:
        self.scrapes += 1
        names = {key for key in values if not key[0].startswith(OF_OTHERS)}
        self._names = self._names or names
        if names != self._names:
            self.problems.append(f"scrape {self.scrapes}: {sorted(names ^ self._names)[:3]}")
        for key in names:
            if key[0] == "dro_start_time_seconds" and values[key] != self.values.get(key, values[key]):
                self.problems.append(f"scrape {self.scrapes}: another start, {self.values[key]} and {values[key]}")
        for key in growing:
            if values[key] < self.values.get(key, 0):
                self.problems.append(f"scrape {self.scrapes}: {key} fell from {self.values[key]} to {values[key]}")
        self.problems += [f"scrape {self.scrapes}: {problem}" for problem in unbalanced(values)]
        self.values = values


def unbalanced(values: dict[Key, float]) -> Iterator[str]:
    """Portals and traffic for which forwarded is not sent + dropped + queued."""
    sums: defaultdict[tuple[str, str, str], dict[str, float]] = defaultdict(lambda: dict.fromkeys(PARTS, 0.0))
    for key, value in values.items():
        found = _flow(key)
        if found is not None:
            sums[found[0]][found[1]] += value
    assert len(sums) >= 8, "they were found"
    for flow, of in sums.items():
        if of["forwarded"] != of["sent"] + of["dropped"] + of["queued"]:
            yield f"{flow}: {of}"


@cache
def _flow(key: Key) -> tuple[tuple[str, str, str], str] | None:
    """Portal, traffic and unit that a series counts, and which part of them."""
    name, label = key[0], dict(key[1])
    for unit in ("messages", "bytes"):
        for part in ("forwarded", "sent", "dropped"):
            if name == f"dro_portal_{part}_{unit}_total" and label["traffic"] != "gateway_control":
                return (label["portal"], label["traffic"], unit), part
        if name == f"dro_portal_send_queue_{unit}":
            is_topic = (label["queue"], label["portal_type"]) == ("data", "endpoint")
            return (label["portal"], "transport_topic" if is_topic else label["queue"], unit), "queued"
    return None
