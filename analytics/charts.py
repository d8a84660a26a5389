"""Draws an answer as an SVG image: the greatest lines or bars of it, in colours for a light and a dark page."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final

import pygal
from lxml import etree
from pygal.style import Style

if TYPE_CHECKING:
    from analytics.questions import Chart

# it is for maps; before 3.12 Python warns of a finder of its kind whenever a module is not found
sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, pygal.PluginImportFixer)]

LINES: Final = 6
BARS: Final = 12
NAME: Final = 30
"""Characters of a name; the table has all of it."""
_LIGHT: Final = ("#1d4ed8", "#b45309", "#be123c", "#15803d", "#7e22ce", "#0e7490")
_DARK: Final = ("#93c5fd", "#fcd34d", "#fda4af", "#86efac", "#d8b4fe", "#67e8f9")
_DASHES: Final = ("none", "7 4", "1 5", "12 4", "7 4 1 4", "3 3")
_STYLE: Final = Style(font_family="system-ui, sans-serif", label_font_size=12, major_label_font_size=12,
                      legend_font_size=13, no_data_font_size=20)  # fmt: skip
_STEPS_S: Final = (3600, 3 * 3600, 6 * 3600, 12 * 3600, *(86_400 * days for days in (1, 2, 7, 14, 28, 91, 182, 364)))
TICKS: Final = 8
"""Times that an axis has at most."""
Row = Mapping[str, Any]
Points = Mapping[str, Sequence[tuple[object, float]]]
WIDTH, HEIGHT = 960, 360


def _css(of: str) -> str:
    def colours(lines: Sequence[str], back: str, text: str, guide: str) -> str:
        rules = [
            f"{of} .graph>.background,{of} .plot>.background{{fill:{back}}}{of} text{{fill:{text}}}",
            f"{of} .axis .guide.line,{of} .axis .major.guide.line{{stroke:{guide}}}{of} .axis>.line{{stroke:{text}}}",
        ]
        for at, colour in enumerate(lines):
            rules.append(f"{of} .color-{at} .line{{stroke:{colour}}}{of} .color-{at}.reactive{{fill:{colour}}}"
                         f"{of} .color-{at} .rect{{fill:{colour};stroke:{colour};fill-opacity:1}}")  # fmt: skip
        return "".join(rules)

    dashes = (f"{of} .serie-{at} .line{{stroke-width:2;stroke-dasharray:{d}}}" for at, d in enumerate(_DASHES))
    dark = colours(_DARK, "#111827", "#e5e7eb", "#374151")
    light = colours(_LIGHT, "#ffffff", "#1f2937", "#d1d5db")
    return "".join(dashes) + light + f"@media (prefers-color-scheme:dark){{{dark}}}"


_CSS: Final = ("file://graph.css", f"inline:{_css('#chart-one')}")


def svg(chart: Chart, rows: Iterable[Row], title: str) -> bytes:
    """Draw the rows. Empty when there is nothing to draw."""
    found: dict[str, list[tuple[object, float]]] = defaultdict(list)
    for row in rows:
        if row[chart.y] is not None and row[chart.x] is not None:
            name = " ".join(str(row[part]) for part in chart.series if row[part] is not None) or chart.y
            found[name].append((row[chart.x], float(row[chart.y])))
            if chart.to and row[chart.to[0]] is not None:
                found[name].append((row[chart.to[0]], float(row[chart.to[1]])))
    if not found:
        return b""
    made = _bars(chart, found) if chart.kind == "bar" else _lines(chart, found)
    made.uuid = "one"  # otherwise one by chance
    root = made.render_tree()
    root.set("role", "img")
    root.set("aria-label", title)
    for element in [*root.iter("script"), *(g for g in root.iter("g") if "tooltip-overlay" in g.get("class", ""))]:
        parent = element.getparent()
        assert parent is not None
        parent.remove(element)
    return etree.tostring(root, encoding="utf-8")


def _lines(chart: Chart, found: Points) -> pygal.XY:
    """Draw the lines with the greatest values; where they meet their dashes tell them apart."""
    chosen = sorted(found, key=lambda name: (-max(abs(y) for _, y in found[name]), name))[:LINES]
    times = [_seconds(x) for name in chosen for x, _ in found[name]]
    made = pygal.XY(
        style=_STYLE, css=_CSS, js=(), width=WIDTH, height=HEIGHT, margin=8, y_title=_words(chart.y), max_scale=6,
        value_formatter=_number, x_value_formatter=_time, x_label_rotation=20, show_dots=False,
        x_labels=_ticks(min(times), max(times)),
        no_data_text="no data", legend_at_bottom=False, legend_at_bottom_columns=1, truncate_legend=NAME,
    )  # fmt: skip
    for name in sorted(chosen):
        points = sorted((_seconds(x), y) for x, y in found[name])
        made.add(name, points if len(points) > 1 else [(points[0][0] - 1, points[0][1]), *points])
    return made


def _ticks(first: float, last: float) -> list[int]:
    """Choose times for an axis: whole hours or days, or the first time where there is none of these."""
    step = next((step for step in _STEPS_S if (last - first) / step < TICKS), _STEPS_S[-1])
    return list(range(-int(-first // step) * step, int(last) + 1, step)) or [int(first)]


def _bars(chart: Chart, found: Points) -> pygal.HorizontalBar:
    """Draw the greatest bars, each with its name."""
    bars: dict[str, float] = defaultdict(float)
    for name, points in found.items():
        for x, y in points:
            bars[name if chart.series else str(x)] += y
    chosen = sorted(bars, key=lambda name: (-bars[name], name))[:BARS][::-1]
    made = pygal.HorizontalBar(
        style=_STYLE, css=_CSS, js=(), width=WIDTH, height=HEIGHT, margin=8, x_title=_words(chart.y), x_labels=chosen,
        max_scale=6, value_formatter=_number, no_data_text="no data", show_legend=False, truncate_label=NAME,
    )  # fmt: skip
    made.add(_words(chart.y), [bars[name] for name in chosen])
    return made


def _words(name: str) -> str:
    return name.replace("_", " ")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}"


def _seconds(x: object) -> float:
    at = date.fromisoformat(x) if isinstance(x, str) else x
    assert isinstance(at, date)
    if not isinstance(at, datetime):
        at = datetime(at.year, at.month, at.day, tzinfo=UTC)
    return at.timestamp()  # Spark gives local times


def _time(seconds: float) -> str:
    at = datetime.fromtimestamp(seconds, UTC)
    return f"{at:%Y-%m-%d}" if at.hour == at.minute == 0 else f"{at:%m-%d %H:%M}"
