"""Places the boxes of a picture of a network: near what they are joined to, none over another, the same each time.

Distances in the picture follow the lengths of the shortest ways along the edges: pairs of boxes are moved towards or
from each other by ever smaller steps, in an order that a fixed seed gives. Boxes that still overlap are pushed apart.
Source: Zheng, Pawar and Goodman, "Graph Drawing by Stochastic Gradient Descent", 2018.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from random import Random
from typing import Final

import networkx as nx

Point = tuple[float, float]
Size = tuple[float, float]
"""Width and height."""
Edge = tuple[int, int, float]
"""The boxes at its ends, and how far their centres should be from each other."""

GAP: Final = 16.0
"""Between two boxes, at least."""
FLAT: Final = 40.0
"""What is no higher above its middle is a line that bends a little."""
PUSHES: Final = 60
SMALL: Final = 40
"""Boxes of a network that is worth more steps and several attempts, to find one without crossings."""
ATTEMPTS: Final = 8
STEPS, STEPS_OF_SMALL = 15, 80
_FIRST_STEP, _LAST_STEP = 1.0, 0.01  # as parts of the longest and the shortest squared distance


@lru_cache(maxsize=4)
def place(sizes: tuple[Size, ...], edges: tuple[Edge, ...]) -> tuple[Point, ...]:
    """The centres of the boxes. Kept for the last few networks, as it takes time and a picture is asked for often."""
    if len(sizes) < 2:
        return ((0.0, 0.0),) * len(sizes)
    pairs = _distances(len(sizes), edges)
    if len(sizes) > SMALL:
        return tuple(_attempt(0, sizes, pairs))
    attempts = [_attempt(seed, sizes, pairs) for seed in range(ATTEMPTS)]
    best = min(attempts, key=lambda points: _faults(points, sizes, edges, pairs))
    return tuple(best)


def _attempt(seed: int, sizes: Sequence[Size], pairs: list[Edge]) -> list[Point]:
    return _apart(_turned(_near(len(sizes), pairs, Random(seed))), sizes)


def _distances(count: int, edges: Sequence[Edge]) -> list[Edge]:
    """Measure all pairs. What is not joined at all is put a little farther than the longest way."""
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(count))
    for a, b, length in edges:
        graph.add_edge(a, b, length=length)
    known = dict(nx.all_pairs_dijkstra_path_length(graph, weight="length"))
    farthest = max((max(row.values()) for row in known.values()), default=0.0) or 1.0
    return [(a, b, known[a].get(b, farthest * 1.1)) for a, b in combinations(range(count), 2)]


def _near(count: int, pairs: list[Edge], random: Random) -> list[Point]:
    """Find points with about these distances."""
    shortest, longest = min(d for _, _, d in pairs), max(d for _, _, d in pairs)
    xs = [random.random() * longest for _ in range(count)]
    ys = [random.random() * longest for _ in range(count)]
    pairs = pairs[:]
    steps = STEPS_OF_SMALL if count <= SMALL else STEPS
    first, last = _FIRST_STEP * longest**2, _LAST_STEP * shortest**2
    for step in range(steps):
        size = first * (last / first) ** (step / (steps - 1))
        random.shuffle(pairs)
        for a, b, wanted in pairs:
            x, y = xs[a] - xs[b], ys[a] - ys[b]
            there = math.hypot(x, y) or 1e-9
            part = min(size / (wanted * wanted), 1.0) * (there - wanted) / (2 * there)
            x, y = x * part, y * part
            xs[a] -= x
            ys[a] -= y
            xs[b] += x
            ys[b] += y
    return list(zip(xs, ys, strict=True))


def _turned(points: list[Point]) -> list[Point]:
    """Turn the longest side level, the first box to the left of the middle and above it, and a line straight."""
    middle_x, middle_y = (sum(axis) / len(points) for axis in zip(*points, strict=True))
    points = [(x - middle_x, y - middle_y) for x, y in points]
    xx, yy, xy = (sum(p[i] * p[j] for p in points) for i, j in ((0, 0), (1, 1), (0, 1)))
    angle = math.atan2(2 * xy, xx - yy) / 2
    cos, sin = math.cos(angle), math.sin(angle)
    points = [(x * cos + y * sin, y * cos - x * sin) for x, y in points]
    flip_x, flip_y = (next((-1 if p[axis] > 1 else 1 for p in points if abs(p[axis]) > 1), 1) for axis in (0, 1))
    is_line = max(abs(y) for _, y in points) < FLAT
    return [(x * flip_x, 0.0 if is_line else y * flip_y) for x, y in points]


def _apart(points: list[Point], sizes: Sequence[Size]) -> list[Point]:
    """Push boxes from each other until none overlap; if that takes too long, stretch the whole."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    for _ in range(PUSHES):
        moved = False
        for a, b, x, y in _overlaps(xs, ys, sizes):
            moved = True
            if x < y:
                half = x / 2 + 0.01 if xs[a] <= xs[b] else -x / 2 - 0.01
                xs[a] -= half
                xs[b] += half
            else:
                half = y / 2 + 0.01 if ys[a] <= ys[b] else -y / 2 - 0.01
                ys[a] -= half
                ys[b] += half
        if not moved:
            break
    stretch = max((_stretch(xs, ys, sizes, a, b) for a, b, _, _ in _overlaps(xs, ys, sizes)), default=1.0)
    return [(x * stretch, y * stretch) for x, y in zip(xs, ys, strict=True)]


def _overlaps(xs: list[float], ys: list[float], sizes: Sequence[Size]) -> list[tuple[int, int, float, float]]:
    """Find pairs that are too near, and by how much in x and in y."""
    widest = max(width for width, _ in sizes) + GAP
    order = sorted(range(len(sizes)), key=xs.__getitem__)
    found = []
    for at, a in enumerate(order):
        for b in order[at + 1 :]:
            if xs[b] - xs[a] >= widest:
                break
            x = (sizes[a][0] + sizes[b][0]) / 2 + GAP - (xs[b] - xs[a])
            y = (sizes[a][1] + sizes[b][1]) / 2 + GAP - abs(ys[b] - ys[a])
            if x > 0 and y > 0:
                found.append((a, b, x, y))
    return found


def _stretch(xs: list[float], ys: list[float], sizes: Sequence[Size], a: int, b: int) -> float:
    """Find the factor for all places after which these two do not overlap."""
    x, y = abs(xs[a] - xs[b]) or 1e-3, abs(ys[a] - ys[b]) or 1e-3
    return min(
        ((sizes[a][0] + sizes[b][0]) / 2 + GAP) / x,
        ((sizes[a][1] + sizes[b][1]) / 2 + GAP) / y,
    )


def _faults(points: Sequence[Point], sizes: Sequence[Size], edges: Sequence[Edge], pairs: list[Edge]) -> float:
    """Measure what makes a picture hard to read: edges over boxes or each other; then distances that are wrong."""
    stress = sum((math.dist(points[a], points[b]) / wanted - 1) ** 2 for a, b, wanted in pairs)
    crossings = sum(
        _cross(points[a], points[b], points[c], points[d])
        for (a, b, _), (c, d, _) in combinations(edges, 2)
        if len({a, b, c, d}) == 4
    )
    covered = sum(
        _passes(points[a], points[b], points[box], sizes[box])
        for a, b, _ in edges
        for box in range(len(sizes))
        if box not in (a, b)
    )
    return crossings + 3 * covered + stress / len(pairs)


def _cross(a: Point, b: Point, c: Point, d: Point) -> bool:
    return _side(a, b, c) * _side(a, b, d) < 0 and _side(c, d, a) * _side(c, d, b) < 0


def _side(a: Point, b: Point, c: Point) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def _passes(a: Point, b: Point, centre: Point, size: Size) -> bool:
    """Say whether the line from a to b meets the box, by its diagonals."""
    (x, y), w, h = centre, size[0] / 2, size[1] / 2
    return _cross(a, b, (x - w, y - h), (x + w, y + h)) or _cross(a, b, (x - w, y + h), (x + w, y - h))
