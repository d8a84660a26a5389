"""The picture of the network: what is in it, that nothing covers anything, and names of any kind."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Final
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from dro.bus.listing import PathRow
from supervisor.monitor.known.network import SeenRow
from supervisor.monitor.pages.layout import GAP, place
from supervisor.monitor.pages.picture import EDGES_MAX, EDGES_TOLD, NODES_MAX, network_picture

FIRST_ID: Final = 1 << 63
Pairs = Sequence[tuple[int, int]]


def dro_id(number: int) -> str:
    return str(FIRST_ID + number)


def network(links: Pairs, trds: Pairs) -> list[SeenRow]:
    """`links` join DROs by their numbers, `trds` DROs and domains; DRO 0 is asked."""
    count = 1 + max([*(max(pair) for pair in links), *(dro for dro, _ in trds)])
    rows = []
    for dro in range(count):
        base = SeenRow(f"D{dro}", dro_id(dro), 1, "0000002a", is_own=dro == 0)
        for other in [b if a == dro else a for a, b in links if dro in (a, b)]:
            portal = "" if dro else f"to D{other}"
            rows.append(replace(
                base, kind="DRO", neighbour=dro_id(other), neighbour_name=f"D{other}", ingress_cost=dro + 1,
                egress_cost=dro + 1, portal=portal,
            ))  # fmt: skip
        for domain in [domain for owner, domain in trds if owner == dro]:
            portal = "" if dro else f"P{domain}"
            rows.append(replace(base, kind="TRD", neighbour=str(domain), ingress_cost=1, egress_cost=1, portal=portal))
    return rows


def large(dros: int, trds: int, more_links: int) -> list[SeenRow]:
    choose = random.Random(1)
    links = [(dro, choose.randrange(max(0, dro - 6), dro)) for dro in range(1, dros)]
    for _ in range(more_links):
        a, b = sorted(choose.sample(range(dros), 2))
        links += [(b, a)] if (b, a) not in links else []
    return network(links, [(domain % dros, domain + 1) for domain in range(trds)])


ONE: Final = network([], [(0, 1), (0, 2)])
TRIANGLE: Final = network([(0, 1), (1, 2), (0, 2)], [(0, 1), (1, 2), (2, 3)])
NETWORKS: Final = {
    "one DRO": ONE,
    "triangle": TRIANGLE,
    "ring": network([(i, (i + 1) % 6) for i in range(6)], [(i, i + 1) for i in range(6)]),
    "tree": network([(0, 1), (0, 2), (1, 3), (1, 4), (2, 5), (2, 6)], [(3, 1), (4, 2), (5, 3), (6, 4)]),
    "mesh": network(list(combinations(range(5), 2)), [(i, i + 1) for i in range(5)]),
    "shared TRDs": network([], [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3), (2, 4_294_967_295)]),
    "star": network([], [(0, domain) for domain in range(1, 31)]),
    "two parts": network([(0, 1), (2, 3)], [(0, 1), (3, 2)]),
    "50 DROs and 100 TRDs": large(50, 100, 12),
}


def drawn(
    rows: Iterable[SeenRow], path: Sequence[PathRow] = (), rates: dict[str, tuple[float, float]] | None = None
) -> etree._Element:
    return etree.fromstring(network_picture(list(rows), path, rates or {}))


def with_class(root: etree._Element, *names: str) -> list[etree._Element]:
    """Elements that have all of these."""
    return [e for e in root.iter() if set(names) <= set((e.get("class") or "").split())]


def title_of(element: etree._Element) -> str:
    return element.findtext("{*}title") or ""


def texts(element: etree._Element) -> list[str]:
    return [text.text or "" for text in element.findall("{*}text")]


def boxes(root: etree._Element) -> list[tuple[float, float, float, float]]:
    """Left, top, right and bottom of all nodes and portals."""
    found = []
    for e in root.iter("{*}rect", "{*}circle"):
        if e.tag.endswith("rect"):
            x, y, w, h = (float(e.get(name) or "") for name in ("x", "y", "width", "height"))
            found.append((x, y, x + w, y + h))
        else:
            x, y, r = (float(e.get(name) or "") for name in ("cx", "cy", "r"))
            found.append((x - r, y - r, x + r, y + r))
    return found


def way(*nodes: int, number: int = 1, share: int = 100) -> list[PathRow]:
    """Negative numbers are DROs, less one."""
    return [
        PathRow("TRD", str(n), way=number, share=share) if n > 0 else PathRow("DRO", dro_id(-n - 1), f"D{-n - 1}",
        way=number, share=share) for n in nodes
    ]  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_nodes_are_inside_and_none_covers_another(name: str) -> None:
    rows = NETWORKS[name]
    root = drawn(rows)
    _, _, width, height = map(float, (root.get("viewBox") or "").split())
    found = boxes(root)
    names = {row.node_id for row in rows} | {row.neighbour for row in rows}
    assert len(found) == len(names) + sum(bool(row.portal) for row in rows)
    for left, top, right, bottom in found:
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
    for a, b in combinations(found, 2):
        assert max(a[0], b[0]) >= min(a[2], b[2]) or max(a[1], b[1]) >= min(a[3], b[3])


@pytest.mark.parametrize(("name", "most"), [("star", 1500), ("mesh", 900), ("50 DROs and 100 TRDs", 3300)])
def test_boxes_are_pushed_apart_before_all_is_stretched(name: str, most: float) -> None:
    root = drawn(NETWORKS[name])
    assert max(float(root.get("width") or 0), float(root.get("height") or 0)) <= most


@pytest.mark.parametrize("name", NETWORKS)
def test_every_portal_and_link_has_one_line(name: str) -> None:
    rows = NETWORKS[name]
    root = drawn(rows)
    wanted = {frozenset((row.node_id, row.neighbour)) for row in rows}
    edges = with_class(root, "edge")
    assert len(edges) == len(wanted)
    assert all(len(edge.findall("{*}polyline")) == 1 for edge in edges)
    assert len(with_class(root, "edge", "own")) == len(with_class(root, "portal")) == sum(r.is_own for r in rows)


def test_a_lone_dro_with_two_trds_is_a_straight_line() -> None:
    root = drawn(ONE)
    assert len({float(y) for c in root.iter("{*}circle") if (y := c.get("cy"))}) == 1


def test_the_picture_depends_on_neither_the_order_of_rows_nor_rates() -> None:
    rows = NETWORKS["ring"]
    first = network_picture(rows)
    assert network_picture(rows[::-1]) == first
    place.cache_clear()
    assert network_picture(rows) == first
    assert boxes(drawn(rows, rates={"P1": (1e12, 3.0)})) == boxes(drawn(rows))


def test_links_have_both_costs_where_they_differ() -> None:
    root = drawn(TRIANGLE)
    by_title = {title_of(edge): texts(edge) for edge in with_class(root, "edge")}
    assert sorted(texts_[0] for texts_ in by_title.values()) == ["1", "1", "1", "1 + 2", "1 + 3", "2 + 3"]
    assert "DRO D0 to DRO D1 by portal to D1, cost 1 at DRO D0 and cost 2 at DRO D1" in by_title
    row = replace(TRIANGLE[2], ingress_cost=4, egress_cost=5)
    (edge,) = with_class(drawn([row]), "edge")
    assert texts(edge) == ["4/5"]
    assert "cost 4 in and 5 out" in title_of(edge)


def test_a_path_is_marked_with_its_direction() -> None:
    root = drawn(TRIANGLE, way(1, -1, -2, 2))
    marked = [title_of(edge) for edge in with_class(root, "edge", "on-path")]
    assert len(marked) == 3
    assert all(title.endswith("; on the path") for title in marked)
    assert len(with_class(root, "arrow")) == 3
    assert len(with_class(root, "trd", "on-path")) == len(with_class(root, "dro", "on-path")) == 2
    assert sorted(texts(portal)[0] for portal in with_class(root, "portal", "on-path")) == ["P1", "to D1"]
    assert "The path: TRD 1, DRO D0, DRO D1, TRD 2." in (root.findtext(".//{*}desc") or "")


def test_an_arrow_points_where_the_path_goes() -> None:
    tips: dict[str, set[bool]] = {}
    for name, path in (("there", way(1, -1, 2)), ("back", way(2, -1, 1))):
        root = drawn(ONE, path)
        assert len(with_class(root, "arrow")) == 2
        for arrow in with_class(root, "arrow"):
            tip, *tail = [float(corner.partition(",")[0]) for corner in (arrow.get("points") or "").split()]
            tips.setdefault(name, set()).add(tip > max(tail))
    assert tips == {"there": {True}, "back": {False}}


def test_ways_of_equal_cost_are_all_marked_and_not_joined() -> None:
    root = drawn(TRIANGLE, [*way(1, -1, -2, 2, share=25), *way(1, -1, -3, -2, 2, number=2, share=75)])
    assert len(with_class(root, "edge", "on-path")) == 5
    words = root.findtext(".//{*}desc") or ""
    assert "The path, 25 percent of the sources: TRD 1, DRO D0, DRO D1, TRD 2." in words


def test_of_two_links_to_one_dro_the_path_takes_the_one_that_it_names() -> None:
    rows = [*TRIANGLE, replace(TRIANGLE[0], portal="spare", remark="the DRO is a neighbour already")]
    path = way(1, -1, -2)
    path[1] = replace(path[1], left_at="spare")
    (edge,) = [e for e in with_class(drawn(rows, path), "edge", "on-path") if "DRO D1" in title_of(e)]
    assert "by portal spare" in title_of(edge)
    path[1] = replace(path[1], left_at="to D1")
    root = drawn(rows, path)
    (cut,) = with_class(root, "edge", "cut")
    assert "cost 2" not in title_of(cut)  # the other end told of the one that works
    assert len(with_class(root, "edge")) == 7
    (edge,) = [e for e in with_class(root, "edge", "on-path") if "DRO D1" in title_of(e)]
    assert "by portal to D1" in title_of(edge)


def test_an_edge_that_nothing_passes_is_cut_and_says_why() -> None:
    down = replace(TRIANGLE[0], kind="", neighbour="", neighbour_name="", ingress_cost=0, egress_cost=0, remark="down")
    silent = replace(TRIANGLE[-1], kind="DRO", neighbour=dro_id(9), remark="that DRO is not heard")
    rows = [down, *TRIANGLE[1:3], *TRIANGLE[3:-1], silent]
    root = drawn(rows)
    edges = with_class(root, "edge", "cut")
    assert [len(with_class(edge, "mark")) for edge in edges] == [1, 1]
    assert "to no known neighbour by portal to D1, no cost known; nothing passes: down" in title_of(edges[0])
    assert title_of(edges[1]).endswith("nothing passes: that DRO is not heard")
    (portal,) = with_class(root, "portal", "cut")
    assert texts(portal) == ["to D1", "down"]
    assert len(with_class(root, "open")) == 1
    assert "nothing passes: down" in (root.findtext(".//{*}desc") or "")


def test_what_is_down_says_since_when_and_what_was_never_seen_is_dotted() -> None:
    noon_s = 1_700_000_000.0
    cut = replace(TRIANGLE[0], remark="paused", since_s=noon_s)
    rows = [cut, *TRIANGLE[1:3], replace(TRIANGLE[3], remark="not listed", since_s=noon_s - 60), *TRIANGLE[4:]]
    root = drawn(rows)
    (edge,) = with_class(root, "edge", "cut")
    assert title_of(edge).endswith("nothing passes: paused since 2023-11-14 22:13:20 UTC")
    (portal,) = with_class(root, "portal", "cut")
    assert texts(portal) == ["to D1", "paused since 22:13"]
    assert title_of(portal) == "portal to D1: paused since 2023-11-14 22:13:20 UTC"
    unseen = replace(TRIANGLE[0], neighbour="", kind="", remark="no neighbour", is_seen=False)
    root = drawn([unseen, *TRIANGLE[1:3]])
    assert len(with_class(root, "edge", "never")) == 1
    assert len(with_class(root, "open", "never")) == len(with_class(root, "portal", "never")) == 1
    assert with_class(root, "cut") == []
    (other,) = [e for e in with_class(root, "dro") if texts(e) == ["D2"]]
    assert "never" in str(other.get("class")), "its neighbour lists it; it was not heard itself"


def test_rates_are_at_the_portals_of_the_dro_that_is_asked() -> None:
    root = drawn(ONE, rates={"P1": (1234.5, 0.0), "other": (9.0, 9.0)})
    portals = {texts(portal)[0]: texts(portal)[1:] for portal in with_class(root, "portal")}
    assert portals == {"P1": ["in 1.23k out 0 messages/s"], "P2": []}
    (rate,) = with_class(root, "rate")
    assert rate.text == "in 1.23k out 0 messages/s"


@pytest.mark.parametrize(
    ("rate", "text"),
    [(0.0, "0"), (0.25, "0.25"), (999.0, "999"), (999.4, "999"), (999.6, "1k"), (12345.0, "12.3k"), (2.5e6, "2.5M"),
     (7e9, "7G")],
)  # fmt: skip
def test_rates_have_three_figures(rate: float, text: str) -> None:
    (found,) = with_class(drawn(ONE, rates={"P1": (rate, 0.0)}), "rate")
    assert found.text == f"in {text} out 0 messages/s"


def test_readers_of_the_screen_get_words_and_links() -> None:
    root = drawn(TRIANGLE)
    (picture,) = [e for e in root.iter() if e.get("role") == "img"]
    ids = {e.get("id"): e.text for e in picture if e.get("id")}
    assert ids[picture.get("aria-labelledby")] == "The network"
    words = str(ids[picture.get("aria-describedby")])
    assert words.startswith("3 DROs, 3 TRDs. DRO D0 is asked. DRO D0 to TRD 1 by portal P1, cost 1.")
    assert not list(picture.iter("{*}a"))  # it would hide them
    assert len(list(root.iter("{*}a"))) == 3


def test_words_of_a_large_network_are_few() -> None:
    root = drawn(NETWORKS["50 DROs and 100 TRDs"])
    words = root.findtext(".//{*}desc") or ""
    assert words.count(" to ") <= 2 * EDGES_TOLD
    assert "edges, of which these are told:" in words
    assert "by portal P1" in words


def test_nothing_that_the_policy_of_the_pages_forbids_is_in_it() -> None:
    root = drawn(TRIANGLE, way(1, -1, -2, 2), {"P1": (1.0, 2.0)})
    for element in root.iter():
        assert not element.tag.endswith(("}style", "}script"))
        assert not {name for name in element.keys() if name == "style" or str(name).startswith("on")}  # noqa: SIM118
        assert {element.get("fill"), element.get("stroke")} <= {None, "none"}


hostile = st.text(max_size=40) | st.sampled_from(
    ["</svg><script>alert(1)</script>", "\"'><&amp;", "\x00\x1b[31m\n", "W" * 5000, "漢字" * 50, "\ud800", "\uffff",
     "a/b?c=d&e#f%", "..", "\u202e"]
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(hostile, hostile, hostile, hostile)
def test_names_are_anything(dro: str, portal: str, other: str, remark: str) -> None:
    rows = [
        replace(TRIANGLE[0], dro=dro, portal=portal, neighbour_name=other),
        replace(TRIANGLE[2], dro=dro, portal=portal, remark=remark),
        replace(TRIANGLE[3], dro=other),
    ]
    text = network_picture(rows, [PathRow("DRO", dro_id(0), dro)], {portal: (1.0, 1.0)})
    root = etree.fromstring(text)
    assert not {e.tag.rpartition("}")[2] for e in root.iter()} - {
        "svg", "g", "a", "title", "desc", "polyline", "polygon", "rect", "circle", "text",
    }  # fmt: skip
    assert len(with_class(root, "portal")) == (2 if portal else 0)
    for link in root.iter("{*}a"):
        url = urlsplit(link.get("href") or "")
        assert (url.scheme, url.netloc, url.path, url.fragment) == ("", "", "/portal", "")
        wanted = portal.encode(errors="replace").decode()
        assert parse_qs(url.query, keep_blank_values=True, strict_parsing=True) == {"name": [wanted]}
    shown = [text.text or "" for text in root.iter("{*}text")]
    assert max(map(len, shown)) <= 40
    assert all(c.isprintable() or c == "\ufffd" or ord(c) > 127 for text in shown for c in text)
    found = boxes(root)
    for a, b in combinations(found, 2):
        assert max(a[0], b[0]) >= min(a[2], b[2]) or max(a[1], b[1]) >= min(a[3], b[3])


def test_a_long_name_is_cut_and_whole_in_the_title() -> None:
    name = "portal-of-the-trading-floor-in-the-third-building"
    root = drawn([replace(ONE[0], portal=name, dro="D" * 60)])
    (portal,) = with_class(root, "portal")
    assert texts(portal)[0].endswith("…")
    assert len(texts(portal)[0]) < 25
    assert title_of(portal) == f"portal {name}"
    (dro,) = with_class(root, "dro", "own")
    assert title_of(dro) == f"DRO {'D' * 60}, node id {dro_id(0)}, this one"


def test_a_dro_without_a_name_has_its_whole_node_id() -> None:
    (dro,) = with_class(drawn([SeenRow("", dro_id(5), 1, "0")]), "dro")
    assert texts(dro) == [dro_id(5)]


def test_too_large_a_network_is_a_sentence() -> None:
    text = network_picture(network([], [(0, domain) for domain in range(1, NODES_MAX)]))
    assert text.startswith('<p class="network">The network has 1 DRO, 299 TRDs, 299 edges: ')
    links = list(combinations(range(60), 2))
    assert len(links) > EDGES_MAX
    assert network_picture(network(links, [])).startswith('<p class="network">')
    assert network_picture([]) == '<p class="network">No DRO is known yet.</p>'


def test_a_dro_that_lists_itself_has_an_edge_of_no_length() -> None:
    root = drawn([replace(TRIANGLE[0], neighbour=dro_id(0))], [PathRow("DRO", dro_id(0))] * 2)
    assert len(with_class(root, "dro")) == len(with_class(root, "portal")) == 1
    assert "NaN" not in etree.tostring(root, encoding="unicode")


def test_the_last_layouts_are_kept_and_no_more() -> None:
    place.cache_clear()
    for domain in range(1, 9):
        network_picture(network([], [(0, at) for at in range(1, domain + 1)]))
    network_picture(network([], [(0, at) for at in range(1, 9)]), rates={"P1": (1.0, 1.0)})
    info = place.cache_info()
    assert (info.hits, info.currsize) == (1, info.maxsize)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 25), st.randoms(use_true_random=False))
def test_boxes_of_any_network_are_apart(count: int, choose: random.Random) -> None:
    sizes = tuple((choose.uniform(1, 200), choose.uniform(1, 80)) for _ in range(count))
    edges = tuple((choose.randrange(count), choose.randrange(count), choose.uniform(1, 200)) for _ in range(count))
    points = place(sizes, edges)
    assert len(points) == count
    for a, b in combinations(range(count), 2):
        x, y = abs(points[a][0] - points[b][0]), abs(points[a][1] - points[b][1])
        assert x >= (sizes[a][0] + sizes[b][0]) / 2 + GAP - 1e-6 or y >= (sizes[a][1] + sizes[b][1]) / 2 + GAP - 1e-6
