"""Charts as images: their lines, gaps and words, and that nothing in them reaches out."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from supervisor.monitor.known.hour import INTERVAL_S, LOOKS, Series
from supervisor.monitor.pages.charts import SHORTEST_S, chart

ROOT = Path(__file__).resolve().parents[3]
END_S = 1_700_001_000.0  # 22:30 UTC
SVG = "{http://www.w3.org/2000/svg}"
NAMESPACES = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def series(value: Callable[[int], float | None], name: str = "received", unit: str = "messages/s") -> Series:
    """A whole hour."""
    first_s = END_S - (LOOKS - 1) * INTERVAL_S
    return Series(name, unit, [(first_s + at * INTERVAL_S, value(at)) for at in range(LOOKS)])


def drawn(title: str, *lines: Series) -> etree._Element:
    return etree.fromstring(chart(title, lines))


def lines_of(root: etree._Element, number: int = 0) -> list[list[tuple[float, float]]]:
    """The points of each part of a line between gaps."""
    return [
        [(float(x), float(y)) for x, y in re.findall(r"([\d.]+) ([\d.]+)", path.get("d") or "")]
        for group in root.iter(f"{SVG}g")
        if f"serie-{number}" in (group.get("class") or "").split()
        for path in group.findall(f"{SVG}path")
    ]


def texts(root: etree._Element) -> list[str]:
    return [text.text or "" for text in root.iter(f"{SVG}text")]


def test_lines_follow_their_values() -> None:
    root = drawn("P1", series(float), series(lambda at: 359.0 - at, "sent"))
    (up,), (down,) = lines_of(root, 0), lines_of(root, 1)
    assert len(up) == len(down) == LOOKS
    assert all(a[0] < b[0] and a[1] > b[1] for a, b in pairwise(up))
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(down))


def test_gaps_are_not_bridged() -> None:
    root = drawn("P1", series(lambda at: None if 100 <= at < 130 or at >= 350 else 1.0))
    assert [len(part) for part in lines_of(root)] == [100, 220]


def test_a_point_between_gaps_is_seen() -> None:
    root = drawn("P1", series(lambda at: 2.0 if at in (0, 50, 359) else None))
    parts = lines_of(root)
    assert [len(part) for part in parts] == [2, 2, 2]
    assert all(b[0] - a[0] > 1 for a, b in parts)


def test_the_axes_have_times_in_utc_and_short_numbers() -> None:
    found = texts(drawn("P1: messages", series(lambda at: 1000.0 * at)))
    assert [text for text in found if re.match(r"\d\d:", text)] == [
        "21:30 UTC", "21:40", "21:50", "22:00", "22:10", "22:20", "22:30",
    ]  # fmt: skip
    assert {"P1: messages, last hour", "messages/s", "received", "0"} <= set(found)
    assert any(text.endswith("k") for text in found)


def test_the_axis_is_of_ten_minutes_when_less_is_known() -> None:
    root = drawn("P1", Series("queue", "bytes", [(END_S - 10, 5.0), (END_S, 5.0)]))
    assert "P1, last 10 minutes" in texts(root)
    (((first, _), (last, _)),) = lines_of(root)
    width = max(float(rect.get("width") or 0) for rect in root.iter(f"{SVG}rect") if rect.get("x") == "0")
    assert width * INTERVAL_S / SHORTEST_S / 2 < last - first < width * INTERVAL_S / SHORTEST_S


@pytest.mark.parametrize(
    ("known_s", "said"), [(0, "10 minutes"), (600, "10 minutes"), (1500, "25 minutes"), (3500, "58 minutes"),
                          (3580, "hour"), (7200, "hour")]
)  # fmt: skip
def test_the_title_says_how_much_is_shown(known_s: int, said: str) -> None:
    points: list[tuple[float, float | None]] = [(END_S - s, 1.0) for s in range(known_s, -1, -10)]
    assert f"P1, last {said}" in texts(drawn("P1", Series("queue", "bytes", points)))


@pytest.mark.parametrize("most", [0.36, 1.0, 7.0, 500.0, 123456.0])
def test_there_is_room_above_the_highest_value(most: float) -> None:
    root = drawn("P1", series(lambda _: most, "RTT", "ms"))
    ((first, *_),) = lines_of(root)
    assert first[1] > 10, "of the height of the plot, whose upper edge is 0"


def axis(root: etree._Element) -> list[str]:
    """The numbers beside the upright axis."""
    groups = [g for g in root.iter(f"{SVG}g") if {"axis", "y"} <= set((g.get("class") or "").split())]
    return [text.text or "" for group in groups for text in group.iter(f"{SVG}text")]


@pytest.mark.parametrize(("most", "steps"), [(1.0, ["0", "1"]), (2.0, ["0", "1", "2"]), (5.0, list("012345"))])
def test_an_axis_has_no_parts_of_bytes(most: float, steps: list[str]) -> None:
    assert axis(drawn("P1", series(lambda at: most * (at % 2), "queue", "bytes"))) == steps
    assert all(float(text) == int(text) for text in axis(drawn("P1", series(lambda _: 37.0, "queue", "bytes"))))


def test_an_idle_queue_is_said_to_be_idle() -> None:
    root = drawn("P1: queue", series(lambda _: 0.0, "queue", "bytes"))
    assert "P1: queue, last hour: 0 bytes throughout" in texts(root)
    assert axis(root) == ["0"]
    assert "throughout" not in "".join(texts(drawn("P1", series(lambda at: float(at == 7), "queue", "bytes"))))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_all_that_is_drawn_is_inside(count: int) -> None:
    root = drawn("P1", *(series(lambda at, k=k: at * k + 1.0, f"line {k}") for k in range(count)))  # type: ignore[misc]
    _, _, width, height = map(float, (root.get("viewBox") or "").split())
    for group in root.iter(f"{SVG}g"):
        shift = re.match(r"translate\(([\d.]+), ([\d.]+)\)", group.get("transform") or "")
        if shift is not None:
            for element in group.iter(f"{SVG}text", f"{SVG}rect"):
                below = float(element.get("height") or 4)  # of text: what is under its line
                assert 0 <= float(shift[1]) + float(element.get("x") or 0) <= width
                assert 0 <= float(shift[2]) + float(element.get("y") or 0) <= height - below
    assert texts(root)[-count:] == ["line 0", "line 1 (dashed)", "line 2 (dotted)"][:count]


def test_lines_do_not_differ_by_colour_alone() -> None:
    root = drawn("P1", *(series(float, name) for name in ("received", "sent", "dropped")))
    assert {"received", "sent (dashed)", "dropped (dotted)"} <= set(texts(root))
    css = root.findtext(f".//{SVG}style") or ""
    assert all(f".serie-{number} .line{{stroke-dasharray:" in css for number in range(3))


def test_colours_follow_the_scheme_of_the_reader() -> None:
    css = root_css(chart("P1", [series(float)]))
    light, dark = css.split("@media (prefers-color-scheme:dark)")
    for rule in (".graph>.background", ".plot>.background", " text", ".guide.line", ".color-0 .line", ".color-2 .line"):
        assert rule in light
        assert rule in dark


def root_css(image: bytes) -> str:
    return etree.fromstring(image).findtext(f".//{SVG}style") or ""


def test_words_say_what_is_drawn() -> None:
    root = drawn(
        "P1", series(lambda at: float(at) or None), series(lambda at: 7.0 if at < 9 else None, "sent"),
        series(lambda _: None, "dropped"),
    )  # fmt: skip
    by_id = {element.get("id"): element.text for element in root if element.get("id")}
    assert root.get("role") == "img"
    assert by_id[root.get("aria-labelledby")] == "P1, last hour"
    assert by_id[root.get("aria-describedby")] == (
        "From 21:30 to 22:30 UTC. received: from 1 to 359 messages/s, at the end 359. "
        "sent: from 7 to 7 messages/s, unknown at the end. dropped: no data."
    )


@pytest.mark.parametrize("lines", [(), (Series("RTT", "ms", []),), (series(lambda _: None),)])
def test_nothing_known_is_said(lines: Sequence[Series]) -> None:
    root = drawn("P1", *lines)
    assert "no data" in texts(root)
    assert not lines_of(root)
    assert "throughout" not in "".join(texts(root))


def test_zeros_are_a_line() -> None:
    assert len(lines_of(drawn("P1", series(lambda _: 0.0)))) == 1


@pytest.mark.parametrize(
    "lines",
    [[series(float), series(float, unit="bytes")], [series(float, str(number)) for number in range(4)]],
)
def test_what_does_not_fit_one_chart_is_refused(lines: list[Series]) -> None:
    with pytest.raises(ValueError, match="do not fit one chart"):
        chart("P1", lines)


def outside(image: bytes) -> list[str]:
    """What is in an image that runs or is fetched."""
    root = etree.fromstring(image)
    found = [url for url in re.findall(r"\w+:(?://[^\s\"'<>]+)", image.decode()) if url not in NAMESPACES]
    found += re.findall(r"url\(|@import|@font-face|javascript|googleapis|<\?xml-stylesheet", image.decode())
    for element in root.iter():
        if not isinstance(element.tag, str):
            found.append(str(element))
            continue
        if element.tag.rpartition("}")[2] not in ("svg", "defs", "style", "title", "desc", "g", "rect", "path", "text"):
            found.append(element.tag)
        found += [str(name) for name in element.attrib if str(name).startswith("on") or str(name).endswith("href")]
    return found


def test_nothing_is_run_or_fetched() -> None:
    lines = [series(float), series(float, "sent")]
    assert outside(chart("P1", lines)) == []
    assert outside(chart("P1", [])) == []
    assert outside(b"<svg><script/><!-- --><a href='x' style='a:url(x)'/>http://pygal.org</svg>")  # it finds them


def test_the_same_lines_make_the_same_image() -> None:
    lines = [series(float)]
    assert chart("P1", lines) == chart("P1", lines)


hostile = st.text(max_size=80) | st.sampled_from(
    ["</svg><script>alert(1)</script>", "]]>\"'><&amp;", "\x00\x1b[31m\n", "W" * 5000, "\ud800", "\uffff", "{{ x }}",
     "%s"]
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(hostile)
def test_titles_are_anything(title: str) -> None:
    image = chart(title, [Series("RTT", "ms", [(END_S, 1.0)])])
    assert [found for found in outside(image) if "://" not in found and found not in title] == []
    shown = etree.fromstring(image).findtext(f"{SVG}title") or ""
    assert len(shown) <= 4 * 60
    assert title.isprintable() is False or len(title) > 60 or "\uffff" in title or shown == f"{title}, last 10 minutes"


@settings(max_examples=30, deadline=None)
@given(st.lists(st.none() | st.floats(0, 1e15), max_size=30))
def test_values_are_anything(values: list[float | None]) -> None:
    points = [(END_S + at * INTERVAL_S, value) for at, value in enumerate(values)]
    image = chart("P1", [Series("queue", "bytes", points)])
    assert b"nan" not in image.lower()
    assert (b"no data" in image) == all(value is None for value in values)


def test_the_library_leaves_no_finder_of_modules() -> None:
    code = "import supervisor.monitor.pages.charts; import importlib.util as u; print(u.find_spec('no_such_module'))"
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "None\n", "")


def test_a_chart_takes_little_time() -> None:
    """It takes 25 ms; the limit leaves room for a machine that is slow or busy."""
    lines = [series(lambda at, k=k: float((at * 7919 * k) % 1000), f"line {k}") for k in (1, 2, 3)]  # type: ignore[misc]
    times = []
    for _ in range(5):
        began_s = time.process_time()
        image = chart("P1", lines)
        times.append(time.process_time() - began_s)
    assert min(times) < 0.15
    assert len(image) < 60_000
