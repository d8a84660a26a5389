"""The web monitor in a browser: each page of a DRO of a loaded network, light, dark, on a phone, without JavaScript.

Source: DRO guide, 5.4; `docs/watch.md`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import pytest
from lxml import html
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from supervisor.monitor.pages.web import LISTED
from tests.daemon.test_peers import Chain
from tests.network.plans import TRIANGLE
from tests.rigs.browser import (
    PHONE,
    asked_hosts,
    be_a_phone,
    log_of,
    made_options,
    reset,
    set_scheme,
    started,
    violations,
)
from tests.rigs.effort import IS_LONG
from tests.rigs.flow import Board
from tests.rigs.network import Plan
from tests.rigs.waiting import wait_until
from tests.rigs.web import fetch

pytestmark = [pytest.mark.slow, pytest.mark.chromium]
PAGES: Final = (
    "/", "/topology", "/path", "/path?from=1&to=3", "/topic", "/topic?topic=flow.0&from=1&to=3", "/memory",
    "/configuration", "/configuration?portal=A-1", "/portal?name=A-1", "/portal?name=A-C", "/link?portal=A-C",
    "/portal?name=nowhere", *(f"/lists/{what}" for what in LISTED),
)  # fmt: skip
LOOKED_AT: Final = PAGES if IS_LONG else PAGES[: 2 - len(LISTED)]
"""By axe, which takes seconds: lists differ in their columns alone, so two of them are enough."""


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    """Three DROs in a triangle and a flow from TRD 1 to TRD 3; the monitor of A is looked at."""
    folder = tmp_path_factory.mktemp("triangle")
    made = Chain(Plan(folder, TRIANGLE, has_monitors=True))
    flow = Board.create(folder, "flow", 5)
    try:
        for name in TRIANGLE:
            made.start_dro(name)
        made.start("send", "tests.rigs.flow", str(made.plan.config(1)), "--send", str(flow.path), "--rate", "50")
        made.start("receive", "tests.rigs.flow", str(made.plan.config(3)), "--receive", str(flow.path))
        wait_until(lambda: flow.is_flowing, "a flow", 60, made.logs)
        wait_until(lambda: fetch(made.plan.web("A"), "/readyz")[0] == 200, "the monitor", 30, made.logs)
        yield made
    finally:
        for name in list(made.processes):
            made.end(name)
        made.plan.close()


@pytest.fixture(scope="module")
def chrome() -> Iterator[webdriver.Chrome]:
    yield from started(made_options())


@pytest.fixture
def browser(chrome: webdriver.Chrome) -> webdriver.Chrome:
    """Give the browser in the state of its start."""
    return reset(chrome)


def address(network: Chain, page: str = "/") -> str:
    return f"http://{network.plan.web('A')}{page}"


def texts_of(browser: webdriver.Chrome, selector: str) -> list[str]:
    """In one step, as the page replaces its parts."""
    script = "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent.trim().replace(/\\s+/g, ' '))"
    found: list[str] = browser.execute_script(script, selector)
    return found


def text_of(browser: webdriver.Chrome, selector: str) -> str:
    return texts_of(browser, selector)[0]


def test_every_page_is_accessible_and_asks_nobody_else(network: Chain, browser: webdriver.Chrome) -> None:
    for page in LOOKED_AT:
        set_scheme(browser, "light")
        browser.get(address(network, page))
        assert violations(browser) == [], page
        set_scheme(browser, "dark")
        assert violations(browser, "color-contrast") == [], page  # nothing else differs
        assert network.name("A") in browser.title
    errors = [entry for entry in log_of(browser, "browser") if "404" not in entry["message"]]  # of /portal?name=nowhere
    assert errors == []
    assert asked_hosts(browser) == {network.plan.web("A")}


def test_charts_of_the_last_hour_are_drawn(network: Chain, browser: webdriver.Chrome) -> None:
    set_scheme(browser, "dark")

    def points() -> int:
        status, body = fetch(network.plan.web("A"), "/v1/portals/A-C/series")
        assert status == 200
        return sum(value is not None for _, value in json.loads(body)[0]["points"])

    wait_until(lambda: points() >= 2, "two looks ten seconds apart", 120)
    browser.get(address(network, "/portal?name=A-C"))
    widths = "return [...document.querySelectorAll('.charts img')].map(i => i.complete ? i.naturalWidth : 0)"
    browser.execute_script("document.querySelectorAll('.charts img').forEach(i => i.loading = 'eager')")
    wait_until(lambda: browser.execute_script(widths).count(0) == 0, "three charts", 120)
    assert log_of(browser, "browser") == []


def test_pages_fit_a_phone(network: Chain, browser: webdriver.Chrome) -> None:
    be_a_phone(browser)
    for page in PAGES:
        browser.get(address(network, page))
        width = browser.execute_script("return document.documentElement.scrollWidth")
        assert width <= PHONE, (page, width)
    assert [entry for entry in log_of(browser, "browser") if "404" not in entry["message"]] == []
    assert asked_hosts(browser) == {network.plan.web("A")}


def test_links_lead_to_pages(network: Chain, browser: webdriver.Chrome) -> None:
    todo, seen = ["/"], set()
    while todo:
        page = todo.pop()
        status, body = fetch(network.plan.web("A"), page)
        assert status == 200, page
        seen.add(page)
        if page.partition("?")[0] in ("/", "/topology", "/portal", "/configuration"):
            root: Any = html.fromstring(body)
            links = root.xpath("//a/@href")
            todo += [link for link in links if link.startswith("/") and link not in seen and link not in todo]
    assert len(seen) > 35
    assert {"/portal?name=A-B", "/configuration?portal=A-1", "/lists/blocked", "/main.json"} <= seen


def test_numbers_are_brought_without_a_reload(network: Chain, browser: webdriver.Chrome) -> None:
    browser.get(address(network))
    browser.execute_script("window.isSamePage = true")

    def received() -> int:
        return int(text_of(browser, "#portals tbody tr:first-child td:nth-of-type(5)").replace(",", "") or 0)

    before = received()
    wait_until(lambda: received() > before + 100, "more messages", 90)
    wait_until(lambda: re.search(r"out [45]\d", text_of(browser, "#network")), "rates in the picture", 90)
    assert browser.execute_script("return window.isSamePage")
    browser.find_element(By.ID, "live").send_keys(Keys.ENTER)
    wait_until(lambda: text_of(browser, "#live") == "Paused", "the pause", 30)


def test_the_path_between_two_domains(network: Chain, browser: webdriver.Chrome) -> None:
    browser.get(address(network, "/path"))
    for name, value in (("from", "1"), ("to", "3")):
        browser.find_element(By.NAME, name).send_keys(value)
    browser.find_element(By.NAME, "to").submit()
    wait_until(lambda: "Hop Count" in browser.page_source, "the answer", 90)
    assert texts_of(browser, "#answer .facts > div") == ["Hop Count3", "Aggregate Cost4"]
    nodes = [item.partition(":")[0] for item in texts_of(browser, "ol.path li")]
    assert nodes == ["TRD 1", f"DRO {network.name('A')}", f"DRO {network.name('C')}", "TRD 3"]
    assert browser.find_elements(By.CSS_SELECTOR, "#network .on-path")
    browser.get(address(network, "/path?from=1&to=77"))
    assert "77" in text_of(browser, ".alarm")


def test_a_topic_is_found_and_explained(network: Chain, browser: webdriver.Chrome) -> None:
    browser.get(address(network, "/topic"))
    browser.find_element(By.NAME, "topic").send_keys("flow.")
    browser.find_element(By.NAME, "topic").submit()
    wait_until(lambda: len(browser.find_elements(By.CSS_SELECTOR, "#found tbody tr")) == 15, "five topics", 90)
    browser.get(address(network, "/topic?topic=flow.0&from=1&to=3"))
    assert text_of(browser, "#why .good").startswith("nothing hinders it")
    browser.get(address(network, "/topic?topic=flow.0&from=1&to=2"))
    assert text_of(browser, "#why .alarm").startswith("does not flow")


def test_pages_work_without_javascript(network: Chain) -> None:
    options = made_options()
    options.add_experimental_option("prefs", {"profile.managed_default_content_settings.javascript": 2})
    for browser in started(options):
        browser.get(address(network, "/portal?name=A-1"))
        assert not browser.find_element(By.ID, "live").is_displayed()
        received = browser.find_element(By.CSS_SELECTOR, "[data-name=TOPIC_RCVD]").text
        assert int(received.replace(",", "")) > 0
        browser.get(address(network, "/lists/sources?sort=topic"))
        topics = [cell.text for cell in browser.find_elements(By.CSS_SELECTOR, "#rows tbody td:nth-child(2)")]
        assert topics == [f"flow.{n}" for n in range(5)]
        browser.get(address(network, "/path?from=1&to=2"))
        assert "Hop Count" in browser.page_source
        browser.find_element(By.XPATH, "//nav//summary[.='Problems']").send_keys(Keys.ENTER)
        browser.find_element(By.LINK_TEXT, "Drops").send_keys(Keys.ENTER)
        wait_until(partial(browser.find_elements, By.XPATH, "//h1[.='Drops by reason']"), "the page", 30)


def test_both_ends_of_a_link_are_side_by_side(network: Chain, browser: webdriver.Chrome) -> None:
    ends = ["What", f"{network.name('A')} / A-C", f"{network.name('C')} / C-A"]

    def are_shown() -> bool:
        browser.get(address(network, "/link?portal=A-C"))
        return texts_of(browser, "#link thead th") == ends

    wait_until(are_shown, "both ends", 90)
    names, near, far = (texts_of(browser, f"#link tbody tr > :nth-child({n})") for n in (1, 2, 3))
    rows = dict(zip(names, zip(near, far, strict=True), strict=True))
    assert rows["role"] == ("initiator", "acceptor")
    assert rows["local"] == rows["remote"][::-1]


def test_the_page_and_its_json_are_the_same(network: Chain) -> None:
    web = network.plan.web("A")
    view = json.loads(fetch(web, "/portal.json?name=A-B")[1])
    page: Any = html.fromstring(fetch(web, "/portal?name=A-B")[1])
    titles = [line["title"].lower() for group in view["groups"] for line in group["lines"]]
    heads = page.xpath("//table[contains(@class, 'counters')]/tbody//th")
    assert sorted(head.text_content().lower() for head in heads) == sorted(titles), "zeros are folded"
    names = {name for group in view["groups"] for line in group["lines"] for name in line["names"][:3]}
    assert {cell.get("data-name") for cell in page.xpath("//td[@data-name]")} == names
    assert re.fullmatch(r"[0-9a-f]{8}", _fact(web, "Topology Signature"))
    assert _fact(web, "DRO Count") == "3"
    assert _fact(web, "Topic Resolution Domain Count") == "3"
    others = json.loads(fetch(web, "/topology.json")[1])["dros"][1:]
    activity = [str(fact["value"]) for dro in others for fact in dro["facts"] if fact["name"] == "Last Activity"]
    assert len(activity) == 2
    assert all(re.fullmatch(r"\d+ seconds ago", text) for text in activity)


def _fact(web: str, name: str) -> str:
    own = json.loads(fetch(web, "/topology.json")[1])["dros"][0]
    return str(next(fact["value"] for fact in own["facts"] if fact["name"] == name))
