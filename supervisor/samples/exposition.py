"""Samples as Prometheus metrics: names, labels and values, for prometheus_client's exposition.

The set of series depends on the configuration alone: a process that does not run, or has not run yet, has the same
ones, and every state is there as 0 or 1. Names and rules: `docs/metrics.md`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family

from dro.metrics.table import COUNTER, HISTOGRAM, Metric

Values = Sequence[int]
_FAMILIES: Final = {COUNTER: CounterMetricFamily, HISTOGRAM: HistogramMetricFamily}


class Families:
    """Collects series of many processes by the name of their metric, in the order in which the names came."""

    def __init__(self) -> None:
        self._found: dict[str, Family] = {}

    def __iter__(self) -> Iterator[Family]:
        return iter(self._found.values())

    def add_page(self, metrics: Iterable[Metric], values: Values, base: Mapping[str, str]) -> None:
        """Add every series of one process; `values` are the cells of its page, `base` its own labels."""
        for metric in metrics:
            labels = {**base, **dict(metric.labels)}
            if metric.kind == HISTOGRAM:
                self._add_histogram(metric, values, labels)
            else:
                number = sum([values[slot] for slot in metric.slots])
                value = math.nan if metric.may_lack and not number else number * metric.scale
                self.add(metric.name, metric.kind, metric.help, labels, value)

    def add(self, name: str, kind: str, text: str, labels: Mapping[str, str], value: float) -> None:
        """Add one series."""
        family = self._family(name, kind, text)
        family.add_sample(name, dict(labels), value)

    def add_states(self, name: str, text: str, base: Mapping[str, str], states: Iterable[str], now: str) -> None:
        """Add a series for each state that there is, 1 for the one of now."""
        for state in states:
            self.add(name, "gauge", text, {**base, "state": state}, state == now)

    def _add_histogram(self, metric: Metric, values: Values, labels: Mapping[str, str]) -> None:
        *buckets, total = [values[slot] for slot in metric.slots]
        counts = list(accumulate(buckets))
        family = self._family(metric.name, HISTOGRAM, metric.help)
        for bound, count in zip((*metric.bounds, math.inf), counts, strict=True):
            text = "+Inf" if math.isinf(bound) else f"{bound:g}"
            family.add_sample(f"{metric.name}_bucket", {**labels, "le": text}, count)
        family.add_sample(f"{metric.name}_count", dict(labels), counts[-1])
        family.add_sample(f"{metric.name}_sum", dict(labels), total * metric.scale)

    def _family(self, name: str, kind: str, text: str) -> Family:
        family = self._found.get(name)
        if family is None:
            # its own classes take the suffix `_total` off, and put it on again
            family = self._found[name] = _FAMILIES.get(kind, GaugeMetricFamily)(name, text)
        return family
