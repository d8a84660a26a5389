"""Draws the network that the route manager knows as SVG, to be put into a page.

Colours are the style sheet's: the text has classes, no styles. `network` is the root.

| class | what has it |
|---|---|
| `dro`, `trd`, `open` | a node: a DRO, a TRD, what a portal without a neighbour leads to |
| `portal` | a portal of the DRO that is asked, in the middle of its edge: a link to its page |
| `edge` | a portal of another DRO, or a link of two DROs |
| `own` | the DRO that is asked, and the edges of its portals |
| `on-path` | nodes and edges of the path; an edge has an `arrow` for its direction as well |
| `cut` | an edge that nothing passes any more, its portal, the `mark` on it, and a node that no edge leads to |
| `never` | an edge that nothing has passed yet, its portal, and a node that was never heard |
| `label`, `cost`, `rate`, `remark` | text: names; costs; messages per second; why nothing passes, and since when |

Lines and shapes have no fill or stroke of their own but `fill="none"` on edges, so all of that is the style sheet's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Final
from unicodedata import east_asian_width
from urllib.parse import quote

from lxml import etree

from dro.bus.listing import PathRow
from dro.log.lines import printable
from supervisor.monitor.known.network import SeenRow
from supervisor.monitor.pages.layout import Point, Size, place

NODES_MAX: Final = 300
EDGES_MAX: Final = 1500
EDGES_TOLD: Final = 60
"""More are not told in words one by one."""
NAME_MAX: Final = 150.0
"""Width of a name; longer ones are cut, and whole in the title."""
FONT: Final = 13
SMALL_FONT: Final = 11
MARGIN: Final = 10.0
_TRD, _DRO, _OPEN, _PORTAL = "trd", "dro", "open", "portal"
_PORTAL_WIDTH: Final = 176.0
_SIZES: Final = {_TRD: (52.0, 52.0), _DRO: (72.0, 38.0), _OPEN: (26.0, 26.0), _PORTAL: (_PORTAL_WIDTH, 38.0)}
"""Of the smallest."""
_LINK, _TO_TRD, _PART = 190.0, 130.0, 150.0
"""Lengths of edges: between two DROs, to a TRD, and each part of one with a portal in its middle."""
_NO_RATES: Final[Mapping[str, tuple[float, float]]] = MappingProxyType({})


@dataclass(slots=True)
class _Node:
    kind: str
    label: str
    title: str
    is_own: bool = False
    on_path: bool = False
    state: str = ""  # class of what nothing passes: cut or never
    remark: str = ""

    @property
    def size(self) -> Size:
        least_width, height = _SIZES[self.kind]
        match self.kind:
            case "dro":
                return max(least_width, _width(self.label, FONT) + 20), height
            case "trd":
                diameter = max(least_width, _width(self.label, SMALL_FONT) + 12)
                return diameter, diameter
            case _:
                return least_width, height


@dataclass(slots=True)
class _Edge:
    """A portal, or two that are linked. A row for each end that tells of it."""

    ends: tuple[str, str]
    rows: list[SeenRow]
    via: str = ""  # key of the box of the portal of the DRO that is asked
    directions: set[str] = field(default_factory=set)  # keys of the nodes that the path leads to

    @property
    def stops(self) -> tuple[str, ...]:
        """Keys of the nodes that its line connects."""
        return (self.ends[0], self.via, self.ends[1]) if self.via else self.ends

    @property
    def is_own(self) -> bool:
        return any(row.is_own for row in self.rows)

    @property
    def remark(self) -> str:
        return next((row.remark for row in self.rows if row.remark), "")

    @property
    def since_s(self) -> float:
        return max(row.since_s for row in self.rows)

    @property
    def state(self) -> str:
        """The class of what nothing passes."""
        return ("cut" if any(row.is_seen for row in self.rows) else "never") if self.remark else ""

    @property
    def portal(self) -> str:
        return next((row.portal for row in self.rows if row.portal), "")

    def classes(self) -> str:
        marks = {"own": self.is_own, "on-path": bool(self.directions), self.state: bool(self.state)}
        return " ".join(["edge", *(name for name, is_so in marks.items() if is_so)])


@dataclass(slots=True)
class _Network:
    nodes: dict[str, _Node] = field(default_factory=dict)
    edges: list[_Edge] = field(default_factory=list)


def network_picture(
    topology: Sequence[SeenRow],
    path: Sequence[PathRow] = (),
    rates: Mapping[str, tuple[float, float]] = _NO_RATES,
) -> str:
    """Draw all DROs, TRDs and what joins them, with `path` marked. As SVG, or a paragraph why there is none.

    `rates`: messages per second received and sent, by name of a portal of the DRO that is asked.
    """
    network = _network(topology)
    if not network.nodes:
        return _sentence("No DRO is known yet.")
    if len(network.nodes) > NODES_MAX or len(network.edges) > EDGES_MAX:
        kinds = [node.kind for node in network.nodes.values()]
        count = ", ".join(
            (_count(kinds.count(_DRO), "DRO"), _count(kinds.count(_TRD), "TRD"), _count(len(network.edges), "edge"))
        )
        return _sentence(f"The network has {count}: too many for a picture. The lists have all of them.")
    _mark(network, path)
    _mark_lost(network)
    return _drawn(network, _places(network), path, rates)


def _sentence(text: str) -> str:
    return f'<p class="network">{text}</p>'


# what there is


def _key(kind: str, node_id: str) -> str:
    return f"{kind.lower()} {node_id}"


def _network(topology: Sequence[SeenRow]) -> _Network:
    """Make nodes and edges, in an order that does not depend on that of the rows."""
    rows = sorted(  # by names first, as a DRO that starts again has another node id
        topology,
        key=lambda row: (
            not row.is_own, row.dro, row.node_id, row.portal, row.kind, row.neighbour_name, row.neighbour
        ),
    )  # fmt: skip
    network = _Network()
    for row in rows:
        title = f"DRO {row.dro or 'without a name'}, node id {row.node_id}"
        network.nodes.setdefault(
            _key(_DRO, row.node_id),
            _Node(_DRO, _cut(row.dro or row.node_id), f"{title}, this one" if row.is_own else title, row.is_own),
        )
    between: dict[frozenset[str], list[_Edge]] = {}
    for number, row in enumerate(rows):
        if row.neighbour or row.portal:
            here, there = _key(_DRO, row.node_id), _neighbour(network, row, number)
            edges = between.setdefault(frozenset((here, there)), [])
            if row.portal or not edges:
                edges.append(_Edge((here, there), [row]))
                network.edges.append(edges[-1])
            else:  # the other end of a link
                min(edges, key=lambda edge: (len(edge.rows), bool(edge.remark))).rows.append(row)
            if row.portal:
                edges[-1].via = f"portal {number}"
                label = _cut(row.portal, _PORTAL_WIDTH - 12)
                network.nodes[edges[-1].via] = _Node(_PORTAL, label, f"portal {row.portal}")
    return network


def _neighbour(network: _Network, row: SeenRow, number: int) -> str:
    """Find the node that an edge leads to, by key; it is made if no DRO has told of itself by it."""
    if not row.neighbour:
        key = f"open {number}"
        network.nodes[key] = _Node(_OPEN, "?", "no neighbour is known")
    elif row.kind.lower() == _TRD:
        key = _key(_TRD, row.neighbour)
        network.nodes.setdefault(key, _Node(_TRD, f"TRD {row.neighbour}", f"topic resolution domain {row.neighbour}"))
    else:
        key = _key(_DRO, row.neighbour)
        label = _cut(row.neighbour_name or row.neighbour)
        network.nodes.setdefault(key, _Node(_DRO, label, f"DRO with node id {row.neighbour}, which was never heard"))
    return key


def _mark(network: _Network, path: Sequence[PathRow]) -> None:
    """Mark nodes and edges of all paths."""
    by_ends: dict[frozenset[str], list[_Edge]] = {}
    for edge in network.edges:
        by_ends.setdefault(frozenset(edge.ends), []).append(edge)
    for row in path:
        if (node := network.nodes.get(_key(row.kind, row.node_id))) is not None:
            node.on_path = True
    for one, other in pairwise(path):  # from the end of a path to the begin of the next there is no edge
        here, there = _key(one.kind, one.node_id), _key(other.kind, other.node_id)
        found = by_ends.get(frozenset((here, there)), [])
        portals = {one.left_at, other.entered_at}
        named = [edge for edge in found if edge.portal and edge.portal in portals]
        for edge in (named or found)[:1]:
            edge.directions.add(there)
            if edge.via:
                network.nodes[edge.via].on_path = True


def _mark_lost(network: _Network) -> None:
    """Mark the nodes that no edge leads to any more, and those that were never heard."""
    edges: dict[str, list[_Edge]] = {}
    heard = set()
    for edge in network.edges:
        for key in edge.ends:
            edges.setdefault(key, []).append(edge)
        heard |= {_key(_DRO, row.node_id) for row in edge.rows}
    for key, found in edges.items():
        node = network.nodes[key]
        if node.kind == _OPEN or (node.kind == _DRO and key not in heard):
            node.state = "never"
        elif not node.is_own and all(edge.state for edge in found):
            node.state = "cut" if any(edge.state == "cut" for edge in found) else "never"
            node.remark = since(max(edge.since_s for edge in found), "%H:%M") if node.state == "cut" else ""


def _places(network: _Network) -> dict[str, Point]:
    """Find the centres; the smallest picture around them begins at `MARGIN`."""
    keys = list(network.nodes)
    at = {key: number for number, key in enumerate(keys)}
    sizes = tuple(node.size for node in network.nodes.values())
    joined = []
    for edge in network.edges:
        length = _PART if edge.via else _LINK if edge.ends[1].startswith(_DRO) else _TO_TRD
        joined += [(at[one], at[other], length) for one, other in pairwise(edge.stops)]
    points = place(sizes, tuple(joined))
    left = min(x - w / 2 for (x, _), (w, _) in zip(points, sizes, strict=True)) - MARGIN
    top = min(y - h / 2 for (_, y), (_, h) in zip(points, sizes, strict=True)) - MARGIN
    return {key: (x - left, y - top) for key, (x, y) in zip(keys, points, strict=True)}


# words


def _width(text: str, font: int) -> float:
    """Estimate the width of the text, rather more than less."""
    wide = sum(
        1.05 if east_asian_width(c) in "WF" else 0.95 if c in "MWmw@%" else 0.66 if c.isupper() else 0.58 for c in text
    )
    return wide * font


def clean(text: str) -> str:
    """Return what XML may have: no control characters, halves of surrogate pairs, or the two that are no characters."""
    return "".join(
        c if not 0xD800 <= ord(c) < 0xE000 and ord(c) not in (0xFFFE, 0xFFFF) else "\ufffd" for c in printable(text)
    )


def _cut(text: str, width: float = NAME_MAX, font: int = FONT) -> str:
    """Return as much of the text as fits."""
    text = clean(text[:200])
    if _width(text, font) <= width:
        return text
    while _width(f"{text}…", font) > width:
        text = text[:-1]
    return f"{text}…"


def short(rate: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if rate >= size * 0.9995:
            return f"{rate / size:.3g}{unit}"
    return f"{rate:.3g}"


def since(since_s: float, form: str = "%Y-%m-%d %H:%M:%S UTC") -> str:
    """Write since when nothing passes; nothing if that is not known."""
    return time.strftime(f"since {form}", time.gmtime(since_s)) if since_s else ""


def _one_cost(row: SeenRow) -> str:
    if row.ingress_cost == row.egress_cost:
        return str(row.egress_cost or "")
    return f"{row.ingress_cost}/{row.egress_cost}"


def _cost(edge: _Edge, places: Mapping[str, Point]) -> str:
    """Write the costs of both ends where they differ, from left to right, or downwards on a steep line."""
    (x, y), (other_x, other_y) = (places[key] for key in edge.ends)
    axis = 1 if abs(other_y - y) > abs(other_x - x) else 0
    rows = sorted(edge.rows, key=lambda row: places[_key(_DRO, row.node_id)][axis])
    costs = [cost for row in rows if (cost := _one_cost(row))]
    return " + ".join(costs if len(set(costs)) > 1 else costs[:1])


def _cost_words(row: SeenRow) -> str:
    if row.ingress_cost == row.egress_cost:
        return f"cost {row.egress_cost}" if row.egress_cost else "no cost known"
    return f"cost {row.ingress_cost} in and {row.egress_cost} out"


def _edge_words(edge: _Edge, nodes: Mapping[str, _Node]) -> str:
    first, second = (_node_words(key, nodes[key]) for key in edge.ends)
    portal = f" by portal {edge.portal}" if edge.portal else ""
    names = {_key(_DRO, row.node_id): row for row in edge.rows}
    costs = " and ".join(
        _cost_words(row) + (f" at {_node_words(key, nodes[key])}" if len(names) > 1 else "")
        for key, row in names.items()
    )
    remark = f"; nothing passes: {edge.remark} {since(edge.since_s)}".rstrip() if edge.remark else ""
    return f"{first} to {second}{portal}, {costs}{remark}{'; on the path' if edge.directions else ''}"


def _node_words(key: str, node: _Node) -> str:
    return {_DRO: f"DRO {node.label}", _OPEN: "no known neighbour"}.get(node.kind, node.label)


def _words(network: _Network, path: Sequence[PathRow]) -> Iterator[str]:
    """Say what the picture shows, for who does not see it."""
    kinds = [node.kind for node in network.nodes.values()]
    yield f"{_count(kinds.count(_DRO), 'DRO')}, {_count(kinds.count(_TRD), 'TRD')}."
    for row in network.nodes.values():
        if row.is_own:
            yield f"DRO {row.label} is asked."
    told = network.edges
    if len(told) > EDGES_TOLD:
        told = [edge for edge in told if edge.is_own or edge.remark or edge.directions][:EDGES_TOLD]
        yield f"{len(network.edges)} edges, of which these are told:"
    for edge in told:
        yield f"{_edge_words(edge, network.nodes)}."
    for number in dict.fromkeys(row.way for row in path):
        nodes = [row for row in path if row.way == number]
        steps = ", ".join(f"{row.kind} {row.dro or row.node_id}" for row in nodes[:EDGES_TOLD])
        share = f", {nodes[0].share} percent of the sources" if nodes[0].share != 100 else ""
        yield f"The path{share}: {steps}."


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'s' * (number != 1)}"


# the drawing


def _drawn(
    network: _Network, places: Mapping[str, Point], path: Sequence[PathRow], rates: Mapping[str, tuple[float, float]]
) -> str:
    boxes = [(places[key], node.size) for key, node in network.nodes.items()]
    width = math.ceil(max(x + w / 2 for (x, _), (w, _) in boxes) + MARGIN)
    height = math.ceil(max(y + h / 2 for (_, y), (_, h) in boxes) + MARGIN)
    size = {"viewBox": f"0 0 {width} {height}", "width": str(width), "height": str(height)}
    root = etree.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "class": "network", **size})
    # a picture hides what is in it from screen readers, so the links are beside it
    names = {"role": "img", "aria-labelledby": "network-title", "aria-describedby": "network-words"}
    picture, links = _add(root, "g", **names), _add(root, "g", "portals")
    _add(picture, "title", text="The network", id="network-title")
    _add(picture, "desc", text=" ".join(_words(network, path)), id="network-words")
    for edge in network.edges:
        _draw_edge(picture, edge, network.nodes, places)
    for key, node in network.nodes.items():
        if node.kind != _PORTAL:
            _draw_node(picture, node, places[key])
    for edge in network.edges:
        if edge.via:
            _draw_portal(links, edge, network.nodes[edge.via], places[edge.via], rates.get(edge.portal))
    return etree.tostring(root, encoding="unicode")


def _add(parent: etree._Element, tag: str, classes: str = "", text: str = "", **attributes: str) -> etree._Element:
    found = etree.SubElement(parent, tag, {name.replace("_", "-"): value for name, value in attributes.items()})
    if classes:
        found.set("class", classes)
    if text:
        found.text = clean(text)
    return found


def _text(parent: etree._Element, classes: str, at: Point, text: str, font: int = FONT) -> None:
    """Write text that is centred there."""
    _add(
        parent, "text", classes, text, x=f"{at[0]:.1f}", y=f"{at[1]:.1f}", font_size=str(font), text_anchor="middle",
        dominant_baseline="central",
    )  # fmt: skip


def _draw_edge(parent: etree._Element, edge: _Edge, nodes: Mapping[str, _Node], places: Mapping[str, Point]) -> None:
    group = _add(parent, "g", edge.classes())
    _add(group, "title", text=_edge_words(edge, nodes))
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (places[key] for key in edge.stops))
    _add(group, "polyline", points=line, fill="none")
    parts = [_seen(one, other, nodes, places) for one, other in pairwise(edge.stops)]
    start, end = parts[-1]
    at = 0.8 if len(parts) == 1 else 0.5  # beside the cost, or in the other part
    for target in sorted(edge.directions):
        _draw_arrow(group, *((start, end) if target == edge.ends[1] else (end, start)), at)
    if edge.remark:
        x, y = _between(start, end, at)
        _text(group, "mark", (x, y), "\N{MULTIPLICATION SIGN}", FONT + 5)
        if not edge.via and edge.since_s:
            _text(group, "remark", (x, y + 14), since(edge.since_s, "%H:%M"), SMALL_FONT)
    if cost := _cost(edge, places):
        _text(group, "cost", _between(*parts[0], 0.5), cost, SMALL_FONT)


def _seen(one: str, other: str, nodes: Mapping[str, _Node], places: Mapping[str, Point]) -> tuple[Point, Point]:
    """Find the ends of a line between two nodes that neither of them covers."""
    a, b = places[one], places[other]
    return _clipped(a, b, nodes[one].size), _clipped(b, a, nodes[other].size)


def _between(one: Point, other: Point, part: float) -> Point:
    return one[0] + (other[0] - one[0]) * part, one[1] + (other[1] - one[1]) * part


def _clipped(centre: Point, other: Point, size: Size) -> Point:
    """Find where the line to the other point leaves the box."""
    x, y = other[0] - centre[0], other[1] - centre[1]
    part = min(size[0] / 2 / abs(x) if x else 1.0, size[1] / 2 / abs(y) if y else 1.0, 1.0)
    return _between(centre, other, part)


def _draw_arrow(parent: etree._Element, start: Point, end: Point, part: float) -> None:
    """Draw an arrow after this part of the line, towards its end."""
    x, y = end[0] - start[0], end[1] - start[1]
    length = math.hypot(x, y) or 1.0
    x, y = x / length * 5, y / length * 5
    at = _between(start, end, part)
    corners = [(at[0] + 1.4 * x, at[1] + 1.4 * y), (at[0] - x - y, at[1] - y + x), (at[0] - x + y, at[1] - y - x)]
    _add(parent, "polygon", "arrow", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in corners))


def _node_classes(node: _Node) -> str:
    return " ".join(
        [node.kind, *(["own"] * node.is_own), *(["on-path"] * node.on_path), *([node.state] * bool(node.state))]
    )


def _draw_node(parent: etree._Element, node: _Node, at: Point) -> None:
    group = _add(parent, "g", _node_classes(node))
    _add(group, "title", text=node.title)
    if node.kind == _DRO:
        _draw_box(group, node, at, radius=8)
    else:
        _add(group, "circle", cx=f"{at[0]:.1f}", cy=f"{at[1]:.1f}", r=f"{node.size[0] / 2:.1f}")
    x, y = at
    _text(group, "label", (x, y - 8 * bool(node.remark)), node.label, FONT if node.kind == _DRO else SMALL_FONT)
    if node.remark:
        _text(group, "remark", (x, y + 9), node.remark, SMALL_FONT)


def _draw_box(parent: etree._Element, node: _Node, at: Point, radius: int) -> None:
    (x, y), (width, height) = at, node.size
    _add(
        parent, "rect", x=f"{x - width / 2:.1f}", y=f"{y - height / 2:.1f}", width=f"{width:.1f}",
        height=f"{height:.1f}", rx=str(radius),
    )  # fmt: skip


def _draw_portal(parent: etree._Element, edge: _Edge, node: _Node, at: Point, rate: tuple[float, float] | None) -> None:
    node.state = edge.state
    link = _add(parent, "a", _node_classes(node))
    link.set("href", f"/portal?name={quote(edge.portal, safe='', errors='replace')}")
    remark = f": {edge.remark} {since(edge.since_s)}".rstrip() if edge.remark else ""
    _add(link, "title", text=f"{node.title}{remark or ', messages per second over ten seconds' * (rate is not None)}")
    _draw_box(link, node, at, radius=2)
    if edge.remark:
        text = f"{edge.remark} {since(edge.since_s, '%H:%M')}".rstrip()
        second, classes = _cut(text, _PORTAL_WIDTH - 12, SMALL_FONT), "remark"
    elif rate is not None:
        second, classes = f"in {short(rate[0])} out {short(rate[1])} messages/s", "rate"
    else:
        second, classes = "", ""
    x, y = at
    _text(link, "label", (x, y - 8 * bool(second)), node.label)
    if second:
        _text(link, classes, (x, y + 9), second, SMALL_FONT)
