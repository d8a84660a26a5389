"""`tnwgdctl topology` and `path` as text, for Graphviz and as JSON."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dro.bus.listing import PathRow, TopologyRow
from supervisor.tools.ctl.main import main
from supervisor.tools.ctl.topology import cost_of, dot_text, dros_of, path_text, topology_text

G1 = TopologyRow("G1", "9223372036854775809", 3, "0000abcd", is_own=True)
G2 = TopologyRow('G"\n2', "9223372036854775810", 7, "00001234", agrees=False, age_s=0.4)
ALONE = TopologyRow("", "9223372036854775811", 1, "0000abcd", age_s=2.0)
ROWS = [
    replace(G1, portal="P1", kind="TRD", neighbour="1", ingress_cost=1, egress_cost=1, hotlink_index=4),
    replace(
        G1, portal="P2", kind="DRO", neighbour=G2.node_id, neighbour_name=G2.dro, ingress_cost=5, egress_cost=5
    ),
    replace(G1, portal="P3", remark="down"),
    replace(G2, kind="TRD", neighbour="2", ingress_cost=2, egress_cost=3),
    replace(G2, kind="DRO", neighbour=G1.node_id, neighbour_name="G1", ingress_cost=6, egress_cost=6),
    replace(G2, kind="DRO", neighbour="9223372036854775999", ingress_cost=1, egress_cost=1, remark="not heard"),
    ALONE,
]  # fmt: skip


def test_each_dro_is_described_once() -> None:
    lines = topology_text(ROWS).split("\n")
    assert len(lines) == 1 + len(ROWS)
    head = "DRO NODE ID VERSION SIGNATURE AGE PORTAL TO NEIGHBOUR NAME COST IN COST OUT HOTLINK REMARK"
    assert " ".join(lines[0].split()) == head
    assert lines[1].split() == ["G1", G1.node_id, "3", "0000abcd", "this", "DRO", "P1", "TRD", "1", "1", "1", "4"]
    assert lines[2].split() == ["P2", "DRO", G2.node_id, 'G"\\x0a2', "5", "5"]
    assert lines[3].split() == ["P3", "down"]
    assert lines[4].split()[:6] == ['G"\\x0a2', G2.node_id, "7", "00001234", "differs", "0.4"]
    assert lines[7].split() == [ALONE.node_id, "1", "0000abcd", "2.0"]


def test_json_has_the_neighbours_of_each_dro_in_it() -> None:
    first, second, third = dros_of(ROWS)
    assert {name: first[name] for name in ("dro", "is_own", "agrees")} == {"dro": "G1", "is_own": True, "agrees": True}
    assert [n["neighbour"] for n in first["neighbours"]] == ["1", G2.node_id, ""]
    assert second["neighbours"][2]["remark"] == "not heard"
    assert (third["node_id"], third["neighbours"]) == (ALONE.node_id, [])


def test_graphviz_gets_each_link_once_with_the_cost_of_both_portals() -> None:
    text = dot_text(ROWS)
    assert text.split("\n") == [
        "graph dros {",
        f'  "{G1.node_id}" [shape=box, label="G1"];',
        f'  "{G2.node_id}" [shape=box, label="G\\"\\\\x0a2"];',
        f'  "{ALONE.node_id}" [shape=box, label="{ALONE.node_id}"];',
        '  "1" [label="TRD 1"];',
        '  "2" [label="TRD 2"];',
        f'  "{G1.node_id}" -- "1" [label="1"];',
        f'  "{G1.node_id}" -- "{G2.node_id}" [label="5 + 6"];',
        f'  "{G2.node_id}" -- "2" [label="2/3"];',
        f'  "{G2.node_id}" -- "9223372036854775999" [label="1", style=dashed];',
        "}",
    ]


def test_a_path_has_its_sum() -> None:
    rows = [
        PathRow("TRD", "1"),
        PathRow("DRO", G1.node_id, "G1", "P1", 1, "P2", 5),
        PathRow("DRO", G2.node_id, "G2", "", 6, "", 3),
        PathRow("TRD", "2"),
    ]
    assert cost_of(rows) == 15
    lines = path_text(rows).split("\n")
    assert lines[2].split() == ["DRO", G1.node_id, "G1", "P1", "1", "P2", "5"]
    assert lines[-1] == "cost 15, 3 hops"
    assert path_text(rows[:1]).endswith("cost 0, 0 hops")


@pytest.mark.parametrize("words", [("path", "0", "1"), ("path", "1", "x"), ("path", "1"), ("path", "1", "4294967296")])
def test_what_is_no_domain_is_a_wrong_argument(words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert ended.value.code == 2
