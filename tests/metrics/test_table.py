"""The metric tables against the guide's list of counters, against the rules for Prometheus, and against the code."""

from __future__ import annotations

import ast
import csv
import re
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from dro.metrics.slots import PairSlot, RouterSlot, Slot, WorkerSlot
from dro.metrics.table import (
    COUNTER,
    ENDPOINT,
    GAUGE,
    HISTOGRAM,
    PEER,
    PORTAL,
    PORTAL_TYPES,
    ROUTE_MANAGER,
    WORKER,
    Metric,
    bytes_field,
    flows,
    metrics,
    rows,
)
from supervisor.samples.reference import reference

ROOT: Final = Path(__file__).parents[2]
GUIDE: Final = ROOT / "tests/golden/guide-counters.csv"
TABLES: Final = [(PORTAL, ENDPOINT), (PORTAL, PEER), (ROUTE_MANAGER, ""), (WORKER, "")]
CONFIGURED: Final = {"dro_portal_info", "dro_portal_cost", "dro_info"}  # from the configuration: no counters
PAGES: Final = {
    "5.4.1": (WORKER, ""), "5.4.2": (PORTAL, ENDPOINT), "5.4.3": (PORTAL, PEER), "5.4.4": (ROUTE_MANAGER, ""),
}  # fmt: skip
REMEDY: Final = "run: python -m supervisor.samples.reference > docs/metrics.md"
ENUMS: Final[dict[str, Any]] = {"Slot": Slot, "PairSlot": PairSlot, "RouterSlot": RouterSlot, "WorkerSlot": WorkerSlot}
# cells that are written by arithmetic, or by a name that is put together
BY_ARITHMETIC: Final = re.compile(
    r"_BYTES$|_\d+$|_SUM$|^LOG_|^BATCH_M.._|^BATCH_MEAN|^UDP_RECOVERY_M|^UDP_NAKS_PER_LOSS|^RTT_M|^LINK_BATCH_M|^(ARENA|ORDBLKS|HBLKS|HBLKHD|UORDBLKS|FORDBLKS)$"
)
BY_FLOW: Final = {
    name
    for flow in flows(PEER)
    for name in (flow.forwarded, flow.queued, *(name for name in flow.dropped if name.endswith("_RESTART")))
}
NEVER: Final = {"GATEWAY_CONTROL_QUEUE_FAILURE"}  # what waits for a link is in lists, which always have room


def guide_rows() -> list[dict[str, str]]:
    with GUIDE.open(encoding="utf-8") as file:
        found = [row for row in csv.DictReader(file) if row["page"][:5] in PAGES]
    return [row for row in found if not row["page"].startswith("5.4.4") or row["page"] == "5.4.4 Local"]


GUIDE_ROWS: Final = [
    row for row in guide_rows() if row["metric"].startswith("dro_") and row["metric"] not in CONFIGURED
]


def test_the_guide_was_read() -> None:
    assert len(GUIDE_ROWS) > 230


@pytest.mark.parametrize("row", GUIDE_ROWS, ids=lambda row: f"{row['page'][:5]}-{row['metric']}-{row['labels']}")
def test_every_counter_of_the_guide_has_a_series(row: dict[str, str]) -> None:
    table, portal_type = PAGES[row["page"][:5]]
    labels = tuple(tuple(pair.split("=")) for pair in row["labels"].split())
    found = [m for m in metrics(table, portal_type) if (m.name, m.labels) == (row["metric"], labels)]
    assert len(found) == 1
    if table == PORTAL and row["column"] == "1":
        assert found[0].field == row["field"]
        assert found[0].title.replace(" (generated)", "") in row["counter"]
    if table == PORTAL and row["column"] == "2" and "bytes_total" in row["metric"]:
        assert (found[0].column, found[0].field) == (2, row["field"])


def test_the_field_of_the_bytes_follows_from_that_of_the_messages() -> None:
    assert bytes_field("data_fragments_dropped_dup") == "data_fragment_bytes_dropped_dup"
    assert bytes_field("unicast_cntl_msgs_rcvd") == "unicast_cntl_msg_bytes_rcvd"
    assert bytes_field("transport_topic_control_rcvd") == "transport_topic_control_bytes_rcvd"


def all_metrics() -> list[tuple[str, Metric]]:
    return [(portal_type, metric) for table, portal_type in TABLES for metric in metrics(table, portal_type)]


def test_names_follow_the_rules_of_prometheus() -> None:
    for _, metric in all_metrics():
        assert re.fullmatch(r"dro_[a-z][a-z0-9_]*", metric.name)
        assert metric.help
        assert metric.help[0].isupper() or metric.help[0].isdigit()
        assert (metric.kind == COUNTER) == metric.name.endswith("_total"), metric.name
        assert metric.kind in (COUNTER, GAUGE, HISTOGRAM)
        assert not metric.name.endswith(("_us", "_ms", "_milliseconds")), "seconds and bytes only"
        assert all(re.fullmatch(r"[a-z_]+", text) for pair in metric.labels for text in pair)


def test_no_series_is_there_twice_and_a_family_is_of_one_kind() -> None:
    for table, portal_type in TABLES:
        found = Counter((m.name, m.labels) for m in metrics(table, portal_type))
        assert found.most_common(1)[0][1] == 1
    kinds: dict[str, set[tuple[str, str, tuple[str, ...]]]] = {}
    for _, metric in all_metrics():
        kinds.setdefault(metric.name, set()).add((metric.kind, metric.help, tuple(name for name, _ in metric.labels)))
    assert {name for name, found in kinds.items() if len(found) > 1} == set()


@pytest.mark.parametrize("table", [PORTAL, ROUTE_MANAGER, WORKER])
def test_no_two_rows_take_the_same_cell(table: str) -> None:
    cells = Counter(cell for row in rows(table) for cell in row.slots.values())
    assert cells.most_common(1)[0][1] == 1
    common = {cell for row in rows(WORKER) for cell in row.slots.values()}
    assert table == WORKER or not common & cells.keys(), "the page of a worker has both"


def test_everything_forwarded_is_accounted_for_by_rows_of_the_same_traffic() -> None:
    for portal_type in PORTAL_TYPES:
        found = {flow.traffic: flow for flow in flows(portal_type)}
        assert set(found) == {"transport_topic" if portal_type == ENDPOINT else "data", "unicast",
                              "immediate_topic", "immediate_topicless"}  # fmt: skip
        assert all(flow.queued and flow.sent and len(flow.dropped) >= 4 for flow in found.values())


def names_in_code() -> dict[tuple[str, str], str]:
    """(enumeration, name) -> a file that uses it."""
    found: dict[tuple[str, str], str] = {}
    for package in ("dro", "portals", "router", "supervisor", "tests"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if "dro.metrics.slots" not in text:
                continue
            tree = ast.parse(text)
            known = {
                alias.asname or alias.name: alias.name
                for node in ast.walk(tree)
                if isinstance(node, ast.ImportFrom) and node.module == "dro.metrics.slots"
                for alias in node.names
            }
            for node in ast.walk(tree):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in known:
                    found.setdefault((known[node.value.id], node.attr), str(path.relative_to(ROOT)))
    return found


def test_every_name_that_the_code_uses_is_in_a_table() -> None:
    unknown = {
        (enum, name): path
        for (enum, name), path in names_in_code().items()
        if enum in ENUMS and name not in ENUMS[enum].__members__ and not name.startswith("__")
    }
    assert unknown == {}


def test_every_cell_is_named_by_the_code_that_counts() -> None:
    named = {name for (_, name), path in names_in_code().items() if not path.startswith("tests/")}
    text = "".join(
        path.read_text(encoding="utf-8")
        for package in ("dro", "portals", "router", "supervisor")
        for path in (ROOT / package).rglob("*.py")
    )
    for enum in ("Slot", "RouterSlot", "WorkerSlot"):
        for name in ENUMS[enum].__members__:
            is_found = name in named or BY_ARITHMETIC.search(name) or name in BY_FLOW or f'"{name}"' in text
            assert is_found != (name in NEVER), name


def test_adding_a_counter_is_one_row_and_one_line() -> None:
    """The name of a row is in its table and where it counts, and nowhere else in the product."""
    places = Counter(
        str(path.relative_to(ROOT))
        for package in ("dro", "portals", "router", "supervisor", "deploy", "docs")
        for path in (ROOT / package).rglob("*")
        if path.suffix in (".py", ".csv", ".pxd", ".md") and "UDP_DUPLICATES" in path.read_text(encoding="utf-8")
    )
    assert set(places) - {"docs/metrics.md"} == {"dro/metrics/data/portal.csv", "portals/peer/datagrams/gauges.py"}


def test_the_reference_is_up_to_date() -> None:
    path = ROOT / "docs/metrics.md"
    assert path.read_text(encoding="utf-8") == reference(), REMEDY
