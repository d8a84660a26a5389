"""What the pages show: their menu, words, heads and folded rows, of a DRO whose parent does not answer."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest
from lxml import html

from dro.bus.listing import LISTS, PathRow
from dro.metrics.table import ENDPOINT
from supervisor.admin.status import ConfigRecord, PortalStatus
from supervisor.monitor.answers.drops import DropRow, drop_rows
from supervisor.monitor.answers.lists import Listing
from supervisor.monitor.answers.models import MemoryRow
from supervisor.monitor.answers.top import TopRow
from supervisor.monitor.pages.lines import portal_groups
from supervisor.monitor.pages.views import SHOWN
from supervisor.monitor.pages.web import LISTED, MENU, TIMES, head
from supervisor.samples.events import EventRow
from tests.supervisor.monitor.test_app import Monitor

ADDRESSES = [address for _, pages in MENU for address, _ in pages]


@pytest.fixture(scope="module")
def monitor(tmp_path_factory: pytest.TempPathFactory) -> Monitor:
    return Monitor(tmp_path_factory.mktemp("dro"))


def page(monitor: Monitor, address: str) -> Any:  # noqa: ANN401 - lxml's has no types
    answer = monitor(address, accept="text/html")
    assert answer.status in (200, 503), address  # 503: it is the parent who knows
    return html.fromstring(answer.body)


def texts(root: Any, path: str) -> list[str]:  # noqa: ANN401 - lxml's has no types
    return [" ".join(found.text_content().split()) for found in root.xpath(path)]


def test_pages_are_in_four_groups(monitor: Monitor) -> None:
    assert len(ADDRESSES) == len(set(ADDRESSES))
    assert {f"/lists/{what}" for what in LISTED if what != "topology"} < set(ADDRESSES)
    names = [name for _, pages in MENU for _, name in pages]
    assert not {"Topic", "Top"} & set(names), "beside Topics nobody can tell them apart"
    root = page(monitor, "/")
    assert texts(root, "//nav//summary") == ["Network", "Traffic", "Problems", "System"]
    assert root.xpath("//nav//a/@href") == ADDRESSES
    assert texts(root, "//header//*[@aria-current='page']") == ["A"]
    assert root.xpath("//nav/details/@open") == []


@pytest.mark.parametrize(("group", "address"), [(group, address) for group, pages in MENU for address, _ in pages])
def test_the_group_of_a_page_is_open_and_the_page_is_marked(monitor: Monitor, group: str, address: str) -> None:
    root = page(monitor, f"{address}?portal=P1")
    assert texts(root, "//nav/details[@open]/summary") == texts(root, "//summary[@class='here']") == [group]
    assert root.xpath("//header//*[@aria-current='page']/@href") == [address]


def test_a_dro_is_called_dro_and_a_path_path(monitor: Monitor, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = (PathRow("DRO", "1", "A"), PathRow("DRO", "2", "B", way=2, share=50))
    monkeypatch.setattr(monitor.answers, "path", lambda *_: Listing(nodes))
    monkeypatch.setattr(monitor.answers, "config", lambda **_: ConfigRecord("dro.xml", 0.0, "<a/>"))
    shown = {address: page(monitor, address) for address in (*ADDRESSES, "/", "/path?from=1&to=2", "/portal?name=P2")}
    for address, root in shown.items():
        words = root.text_content()
        assert not re.search(r"UM Router|\bDro\b|\bways?\b", words), address
    assert texts(shown["/path?from=1&to=2"], "//ol/li")[1].startswith("path 2, 50 % of the sources: DRO B")
    titles = [text for root in shown.values() for text in texts(root, "//h1")]
    assert {"Configuration", "Path", "Explain a topic", "Processes and memory"} <= set(titles)


def test_drops_come_first_and_reasons_without_any_are_folded(monitor: Monitor, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = {"DROPPED_BLOCKED": 3, "DROPPED_BLOCKED_BYTES": 30, "UNICAST_DATA_NO_ROUTE": 7}
    status = [PortalStatus(f"P{n}", ENDPOINT, "ready", n, n, 1, counters if n < 3 else {}) for n in range(1, 7)]
    monkeypatch.setattr(monitor.answers, "portals", lambda: status)
    root, count = page(monitor, "/lists/drops"), len(list(drop_rows(status)))
    assert texts(root, "//main/div/table[@id='rows']/tbody/tr/td[5]") == ["7", "7", "3", "3"]
    assert count > 2 * SHOWN
    assert texts(root, "//main/details[not(@open)]/summary") == [f"{SHOWN - 4} of these reasons without drops"]
    assert set(texts(root, "//main/details//tbody/tr/td[5]")) == {"0"}
    assert len(root.xpath("//tbody/tr")) == SHOWN, "a DRO with many portals has thousands"
    last = page(monitor, f"/lists/drops?offset={count - 5}")
    assert texts(last, "//table[@id='rows']/tbody") == ["none"]
    assert texts(last, "//main/details/summary") == ["5 of these reasons without drops"]
    monkeypatch.setattr(monitor.answers, "portals", lambda: status[2:])
    assert texts(page(monitor, "/lists/drops"), "//table[@id='rows']/tbody") == ["none"]
    monkeypatch.setattr(monitor.answers, "portals", lambda: status[:0])
    assert page(monitor, "/lists/drops").xpath("//main//details") == []


def test_a_portal_tells_by_what_it_resolves_topics(monitor: Monitor, monkeypatch: pytest.MonkeyPatch) -> None:
    status = PortalStatus("P1", ENDPOINT, "ready", 1, 1, 1, {"LBMRDS": 1}, ("lbmrd 10.0.0.1:15380",))
    monkeypatch.setattr(monitor.answers, "portal", lambda _: status)
    facts = page(monitor, "/portal?name=P1").xpath("//dl[@id='facts']")[0].text_content()
    assert "Resolves topics by" + "lbmrd 10.0.0.1:15380 (silent)" in facts


def test_counters_of_a_portal_that_are_zero_are_folded(monitor: Monitor) -> None:
    root = page(monitor, "/portal?name=P1")
    names = [line.names[:3] for group in portal_groups(monitor.answers.portal("P1")) for line in group.lines]
    assert sorted(root.xpath("//td/@data-name")) == sorted(name for found in names for name in found)
    upper = [set(texts(row, "td[@data-name]")) for row in root.xpath("//main/div//tbody/tr[td/@data-name]")]
    assert upper
    assert {"0"} not in upper
    folded = root.xpath("//main/details[not(@open)]")
    assert folded
    for part in folded:
        rows = part.xpath(".//tbody/tr")
        assert texts(part, "summary") == [f"{len(rows)} counters that are 0"]
        assert set(texts(part, ".//td[@data-name]")) <= {"0", "none yet"}


def test_folded_parts_stay_as_they_are_when_numbers_are_brought(monitor: Monitor) -> None:
    """The script replaces what is in `data-live`; a part in there that somebody has opened would close."""
    for address in ("/", "/lists/drops", "/portal?name=P1", "/portal?name=P2", "/memory"):
        assert page(monitor, address).xpath("//*[@data-live]//details") == []


def test_heads_of_numbers_say_what_is_counted(monitor: Monitor) -> None:
    units = "messages|bytes|fragments|datagrams|topics|patterns|sources|domains|chunks|regions|batches|samples|"
    units += r"attempts|repairs|reconnects|threads|descriptors|restarts|%|\(s\)|\(ms\)|\(µs\)|\(days\)|/s"
    ids = {"domain id", "from domain", "to domain", "version", "hotlink index", "serial", "pid"}
    costs = {"cost", "ingress cost", "egress cost", "hop count"}
    kinds = [*LISTS.values(), DropRow, TopRow, EventRow, MemoryRow]
    numbers = [
        field.name for kind in kinds for field in fields(kind) if field.type in ("int", "float", "tuple[int, ...]")
    ]
    found = {head(name) for name in numbers if name not in (*TIMES, "way")} - {"domains"}
    for address in ("/", "/memory"):
        found |= {text.lower() for text in texts(page(monitor, address), "//th[@class='number']")}
    assert {name for name in found if not re.search(units, name)} <= ids | costs
    heads = texts(page(monitor, "/"), "//table[@id='portals']//th[@class='number']")
    assert heads[:3] == ["Received (messages/s)", "Sent (messages/s)", "Received (messages)"]
