"""Samples as Prometheus metrics: names, labels and values, and the text that is made of them.

The set of series depends on the configuration alone: a process that does not run, or has not run yet, has the same
ones, and every state is there as 0 or 1. Names and rules: `docs/metrics.md`.

An encoder of prometheus_client makes the text of a set of series once, in each format that is asked for. `Texts` keeps
it, and fills in the values of each scrape for as long as the set is the same: encoding anew takes ten times as long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.utils import floatToGoString

from dro.metrics.table import COUNTER, HISTOGRAM, Metric

Values = Sequence[int]
Labels = Mapping[str, str]
_Sample = tuple[tuple[str, str, str], str, dict[str, str]]  # family: name, kind, help; name; labels
_FAMILIES: Final = {COUNTER: CounterMetricFamily, HISTOGRAM: HistogramMetricFamily}
_shown: Final[Callable[[float], str]] = floatToGoString
MAX_FORMATS: Final = 4
"""Texts that are kept: the header `Accept` may ask for any number of versions."""


class _Series(NamedTuple):
    """One or more series, one after another."""

    name: str
    kind: str
    text: str
    labels: Labels
    states: tuple[str, ...] = ()  # a series for each

    def samples(self) -> Iterator[_Sample]:
        for more in [{"state": state} for state in self.states] or [{}]:
            yield (self.name, self.kind, self.text), self.name, {**self.labels, **more}


class _Page(NamedTuple):
    """All series of one process."""

    metrics: tuple[Metric, ...]
    base: Labels

    def samples(self) -> Iterator[_Sample]:
        for metric in self.metrics:
            name, labels = metric.name, {**self.base, **dict(metric.labels)}
            family = name, metric.kind, metric.help
            if metric.kind != HISTOGRAM:
                yield family, name, labels
                continue
            for bound in (*metric.bounds, math.inf):
                yield family, f"{name}_bucket", {**labels, "le": "+Inf" if math.isinf(bound) else f"{bound:g}"}
            yield family, f"{name}_count", labels
            yield family, f"{name}_sum", labels


class Families:
    """Collects the values of many series, and in few words beside them what they are of."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.series: list[_Series | _Page] = []
        """In the same order; equal to those of another scrape when the series are the same."""

    def add_page(self, metrics: tuple[Metric, ...], values: Values, base: Labels) -> None:
        """Add every series of one process; `values` are the cells of its page, `base` its own labels."""
        self.series.append(_Page(metrics, base))
        found = self.values
        for metric in metrics:
            slots = metric.slots
            if metric.kind == HISTOGRAM:
                *buckets, total = [values[slot] for slot in slots]
                counts = list(accumulate(buckets))
                found += (*counts, counts[-1], total * metric.scale)
            else:
                number = values[slots[0]] if len(slots) == 1 else sum([values[slot] for slot in slots])
                found.append(math.nan if metric.may_lack and not number else number * metric.scale)

    def add(self, name: str, kind: str, text: str, labels: Labels, value: float) -> None:
        """Add one series."""
        self.series.append(_Series(name, kind, text, labels))
        self.values.append(value)

    def add_states(self, name: str, text: str, base: Labels, states: tuple[str, ...], now: str) -> None:
        """Add a series for each state that there is, 1 for the one of now."""
        self.series.append(_Series(name, "gauge", text, base, states))
        self.values.extend(state == now for state in states)

    def collect(self, values: Iterable[float] = ()) -> Iterable[Family]:
        """Give families as the encoders of prometheus_client want them: by metric, in the order of their coming.
        `values`: in the place of those that were collected."""
        found: dict[str, Family] = {}
        samples = (sample for series in self.series for sample in series.samples())
        for (about, name, labels), value in zip(samples, values or self.values, strict=True):
            family = found.get(about[0])
            if family is None:
                # its own classes take the suffix `_total` off, and put it on again
                family = found[about[0]] = _FAMILIES.get(about[1], GaugeMetricFamily)(about[0], about[2])
            family.add_sample(name, labels, value)
        return found.values()


class Texts:
    """Makes the text of families; keeps what stays the same as long as the series do."""

    def __init__(self) -> None:
        self._series: list[_Series | _Page] = []
        self._kept: dict[str, _Text] = {}  # by content type

    def encoded(self, families: Families, accept: str) -> tuple[bytes, str]:
        """The text and its type, in the format that the header `Accept` asks for."""
        encoder, content_type = choose_encoder(accept)
        if families.series != self._series:
            self._series = families.series
            self._kept.clear()
        text = self._kept.get(content_type)
        if text is None:
            if len(self._kept) == MAX_FORMATS:
                self._kept.clear()
            text = self._kept[content_type] = _Text(families, encoder)
        return text.filled(families.values), content_type


class _Text:
    """The text of one set of series in one format, without the values."""

    def __init__(self, families: Families, encoder: Callable[[Any], bytes]) -> None:
        # each value tells its own place: the encoder sorts them by family
        numbered = encoder(_Collected(families.collect(range(len(families.values))))).decode()
        between, order = [""], []
        for line in numbered.split("\n"):  # a line break within a label is escaped
            if line and not line.startswith("#"):
                series, _, value = line.rpartition(" ")
                between[-1] += f"{series} "
                order.append(int(float(value)))
                between.append("\n")
            else:
                between[-1] += f"{line}\n"
        between[-1] = between[-1].removesuffix("\n")
        self._parts: Final = [part for text in between for part in (text, "")][:-1]
        self._order: Final = order

    def filled(self, values: list[float]) -> bytes:
        parts = self._parts.copy()
        parts[1::2] = [_shown(values[at]) if values[at] else "0.0" for at in self._order]  # most are 0
        return "".join(parts).encode()


class _Collected:
    """Families in the place of a registry of prometheus_client."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families
