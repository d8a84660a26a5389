"""Draws the lines of the last hour of a portal as SVG, to be loaded as an image.

An image sees no style sheet of the page, so colours are here, light and dark; lines differ in their dashes as well.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

import pygal
from lxml import etree
from pygal.style import Style

from supervisor.monitor.known.hour import HOUR_S, INTERVAL_S, Series
from supervisor.monitor.pages.picture import clean, short

# it is for maps; before 3.12 Python warns of a finder of its kind whenever a module is not found
sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, pygal.PluginImportFixer)]

WIDTH, HEIGHT = 720, 300
TITLE_MAX: Final = 60
"""Characters."""
TICKS_S: Final = (60, 120, 300, 600)
TICKS_MAX: Final = 8
SHORTEST_S: Final = 600.0
LEAST: Final = 1e-6
"""What is less is shown as zero."""
ROOM: Final = 1.1
"""How far the axis goes, in parts of the highest value: a line at its end would be half outside."""
NO_DATA: Final = "no data"
WHOLE: Final = "bytes"
"""A unit that has no parts."""
Points = Sequence[tuple[float, float | None]]
_ID: Final = "hour"
_DASHES: Final = ("", "dashed", "dotted")
_PATTERNS: Final = {"": "none", "dashed": "7 4", "dotted": "1 5"}
_LIGHT: Final = ("#1d4ed8", "#b45309", "#be123c")
_DARK: Final = ("#93c5fd", "#fcd34d", "#fda4af")
_STYLE: Final = Style(
    font_family="system-ui, sans-serif", title_font_size=16, label_font_size=12, major_label_font_size=12,
    legend_font_size=13, no_data_font_size=20,
)  # fmt: skip


def _colours(lines: Sequence[str], back: str, text: str, guide: str) -> str:
    """Write rules that stand after those of the library and weigh as much."""
    root = f"#chart-{_ID}"
    rules = [
        f"{root} .graph>.background,{root} .plot>.background{{fill:{back}}}",
        f"{root} text{{fill:{text}}}",
        f"{root} .axis .guide.line,{root} .axis .major.guide.line{{stroke:{guide};stroke-dasharray:4 4}}",
        f"{root} .axis>.line{{stroke:{text}}}",
    ]
    for at, colour in enumerate(lines):
        rules.append(f"{root} .color-{at} .line{{stroke:{colour}}}{root} .color-{at}.reactive{{fill:{colour}}}")
    return "".join(rules)


_CSS: Final = "".join([
    f"#chart-{_ID} .line{{stroke-width:2;stroke-linecap:round;stroke-linejoin:round}}",
    f"#chart-{_ID} .axis .line{{stroke-width:1}}",
    *(f"#chart-{_ID} .serie-{at} .line{{stroke-dasharray:{_PATTERNS[dash]}}}" for at, dash in enumerate(_DASHES)),
    _colours(_LIGHT, "#ffffff", "#1f2937", "#d1d5db"),
    f"@media (prefers-color-scheme:dark){{{_colours(_DARK, '#111827', '#e5e7eb', '#374151')}}}",
])  # fmt: skip


def chart(title: str, series: Sequence[Series]) -> bytes:
    """Draw up to three lines of one unit over the hour that ends with the last point; gaps stay gaps.

    While there is no hour yet the chart begins with the first point, ten minutes before the end at least. The title
    says how long it is, and that there is nothing but zeros, where the axis has no other step.
    """
    units = list(dict.fromkeys(one.unit for one in series))
    if len(units) > 1 or len(series) > len(_DASHES):
        raise ValueError(f"{len(series)} lines in {units} do not fit one chart")
    end_s = max((time_s for one in series for time_s, _ in one.points), default=HOUR_S)
    first_s = min((time_s for one in series for time_s, _ in one.points), default=end_s)
    start_s = max(end_s - HOUR_S, min(first_s - INTERVAL_S, end_s - SHORTEST_S))
    values = [value for one in series for _, value in one.points if value is not None]
    most = max(values, default=0.0)
    title = clean(title if len(title) <= TITLE_MAX else f"{title[: TITLE_MAX - 1]}…") + _span(end_s - start_s)
    if values and most < LEAST:
        title += f": 0 {units[0]} throughout"
    made = pygal.XY(
        style=_STYLE, css=("file://graph.css", f"inline:{_CSS}"), js=(), title=title, width=WIDTH, height=HEIGHT,
        margin=8, y_title=units[0] if units else "", x_labels=_ticks(start_s, end_s),
        xrange=(start_s, end_s), range=(0.0, most * ROOM if most >= LEAST else 1.0),
        y_labels=None if most >= LEAST else [0], order_min=0 if units == [WHOLE] else None,  # no step below 1
        value_formatter=short, max_scale=6,
        no_data_text=NO_DATA, show_dots=False, allow_interruptions=True, legend_at_bottom=True,
        legend_at_bottom_columns=len(series) or 1, truncate_legend=-1,
    )  # fmt: skip
    made.uuid = _ID  # otherwise one by chance
    for one, dash in zip(series or [Series(NO_DATA, "", [])], _DASHES, strict=False):
        made.add(f"{one.name} ({dash})" if dash else one.name, [*_lines(one.points)] or [(end_s, None)])
    return _image(made.render_tree(), title, " ".join(_words(series, start_s, end_s)))


def _image(root: etree._Element, title: str, words: str) -> bytes:
    """Take out of what the library wrote all that no image needs: scripts, comments and parts for the mouse."""
    for element in [*root.iter(etree.Comment, "script"), *root.iter("g")]:
        parent = element.getparent()
        if parent is not None and (element.tag != "g" or "tooltip-overlay" in element.get("class", "")):
            parent.remove(element)
    heading = root.find("title")
    assert heading is not None
    heading.text = title
    heading.set("id", "title")
    described = etree.Element("desc", id="words")
    described.text = clean(words)
    heading.addnext(described)
    for name, value in {"role": "img", "aria-labelledby": "title", "aria-describedby": "words"}.items():
        root.set(name, value)
    return etree.tostring(root, encoding="utf-8", xml_declaration=True)


def _ticks(start_s: float, end_s: float) -> list[dict[str, object]]:
    """Choose up to eight round times; the first says which time it is."""
    step = next((step for step in TICKS_S if (end_s - start_s) / step <= TICKS_MAX), TICKS_S[-1])
    first = math.ceil(start_s / step) * step
    times = range(first, math.floor(end_s) + 1, step)
    return [{"value": at, "label": f"{_time(at)}{' UTC' * (at == first)}"} for at in times]


def _span(span_s: float) -> str:
    minutes = round(span_s / 60)
    return ", last hour" if minutes >= 60 else f", last {minutes} minutes"


def _time(time_s: float) -> str:
    return f"{datetime.fromtimestamp(time_s, UTC):%H:%M}"


def _lines(points: Points) -> Iterator[tuple[float, float | None]]:
    """Yield the points; one between two gaps is drawn as long as its time, as a line needs two."""
    values = [None, *(value for _, value in points), None]
    for at, (time_s, value) in enumerate(points):
        if value is not None and values[at] is None and values[at + 2] is None:
            yield time_s - INTERVAL_S, value
        yield time_s, value


def _words(series: Sequence[Series], start_s: float, end_s: float) -> Iterator[str]:
    yield f"From {_time(start_s)} to {_time(end_s)} UTC."
    for one in series:
        known = [value for _, value in one.points if value is not None]
        if not known:
            yield f"{one.name}: {NO_DATA}."
            continue
        last = one.points[-1][1]
        now = f"at the end {short(last)}" if last is not None else "unknown at the end"
        yield f"{one.name}: from {short(min(known))} to {short(max(known))} {one.unit}, {now}."
