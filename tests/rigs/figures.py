"""What a web monitor says of the counters of a portal, in each of the four places where it says it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Final

from lxml import html

from dro.metrics.slots import Slot
from dro.metrics.table import HISTOGRAM, PORTAL, Metric, metrics
from tests.rigs.scraper import Key, series
from tests.rigs.waiting import wait_until
from tests.rigs.web import fetch

TOLD_WITHIN_S: Final = 20.0
Figures = dict[str, int]
"""By the name of the row, or of the slot: bytes are `NAME_BYTES`."""


@dataclass(frozen=True)
class Told:
    """One look at a portal. `texts` and `shown`: what its page writes, and what its JSON says that it is to write."""

    metrics: Figures
    api: Figures
    json: Figures
    texts: dict[str, str]
    shown: dict[str, str]

    def of(self, name: str) -> tuple[object, ...]:
        """What each place says of one counter."""
        return self.metrics[name], self.api[name], self.json[name], self.texts.get(name)

    def differences(self) -> set[str]:
        """Names of counters that are not the same everywhere; of what is written as a plain number the page too."""
        found = set()
        for name, value in self.json.items():
            numbers = {self.metrics[name], self.api[name], value}
            text = self.texts.get(name, "").replace(",", "")
            if text.isdecimal():
                numbers.add(int(text))
            if len(numbers) > 1 or self.texts.get(name) != self.shown.get(name):
                found.add(name)
        return found


def look(where: str, portal: str) -> Told:
    """Ask the monitor at `where` in all places."""
    status: dict[str, Any] = json.loads(_body(where, f"/v1/portals/{portal}"))
    table = metrics(PORTAL, status["kind"])
    values, _ = series(_body(where, "/metrics").decode())
    view = json.loads(_body(where, f"/portal.json?name={portal}"))
    lines = [line for group in view["groups"] for line in group["lines"]]
    page: Any = html.fromstring(_body(where, f"/portal?name={portal}"))
    cells = page.xpath("//td[@data-name]")
    of_portal = _of_portal(values, portal)
    counters: Figures = status["counters"]
    return Told(
        {metric.row: _of_metric(metric, of_portal) for metric in table},
        {metric.row: sum(counters[Slot(slot).name] for slot in _counted(metric)) for metric in table},
        {name: value for line in lines for name, value in zip(line["names"], line["values"], strict=True)},
        {cell.get("data-name"): cell.text_content() for cell in cells},
        {name: shown for line in lines for name, shown in zip(line["names"][:3], line["shown"], strict=False)},
    )


def figures(where: str, portal: str) -> Figures:
    """The counters of a portal, as the admin API tells them."""
    counters: Figures = json.loads(_body(where, f"/v1/portals/{portal}"))["counters"]
    return counters


def assert_same_everywhere(where: str, portal: str) -> Figures:
    """Wait until each counter has been the same in all places at one look, and the page has all of them.

    A link at rest still has keepalives and what the DROs tell each other, so not all are so at the same look.
    """
    told = look(where, portal)
    assert told.json.keys() == told.metrics.keys() == told.api.keys()
    assert told.texts.keys() == told.shown.keys()
    assert len(told.texts) > 100
    differing = told.differences()

    def are_the_same() -> bool:
        nonlocal told, differing
        if differing:
            told = look(where, portal)
            differing &= told.differences()
        return not differing

    wait_until(
        are_the_same, f"{portal} is the same everywhere", TOLD_WITHIN_S,
        lambda: str({name: told.of(name) for name in differing}),
    )  # fmt: skip
    return told.json


def _body(where: str, path: str) -> bytes:
    status, body = fetch(where, path)
    assert status == 200, (path, status, body)
    return body


def _of_portal(values: dict[Key, float], portal: str) -> dict[Key, float]:
    """Those of one portal, without the labels that all of it have."""
    base = {"dro", "portal", "portal_type"}
    return {
        (name, tuple((key, value) for key, value in labels if key not in base)): number
        for (name, labels), number in values.items()
        if ("portal", portal) in labels
    }


def _of_metric(metric: Metric, of_portal: dict[Key, float]) -> int:
    """In the unit of the counter page; a gauge without a sample is 0 there."""
    labels = tuple(sorted(metric.labels))
    if metric.kind == HISTOGRAM:
        return round(of_portal[f"{metric.name}_count", labels])
    value = of_portal[metric.name, labels]
    return 0 if math.isnan(value) else round(value / metric.scale)


def _counted(metric: Metric) -> tuple[int, ...]:
    return metric.slots[:-1] if metric.kind == HISTOGRAM else metric.slots
