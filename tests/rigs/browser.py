"""Looks at pages as people do: Chromium without a window, light and dark, on a phone, with axe."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from axe_core_python.selenium import Axe  # type: ignore[import-untyped]
from selenium import webdriver

PHONE: Final = 390
"""Pixels that it is wide."""


def made_options() -> webdriver.ChromeOptions:
    made = webdriver.ChromeOptions()
    for argument in (
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
        "--disable-background-networking", "--disable-component-update", "--window-size=1280,1100",
    ):  # fmt: skip
        made.add_argument(argument)
    made.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return made


def started(options: webdriver.ChromeOptions) -> Iterator[webdriver.Chrome]:
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
    try:
        yield made
    finally:
        made.quit()


def reset(browser: webdriver.Chrome) -> webdriver.Chrome:
    """Bring it into the state of its start."""
    browser.get("about:blank")
    for kind in ("browser", "performance"):
        log_of(browser, kind)
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    return browser


def be_a_phone(browser: webdriver.Chrome) -> None:
    metrics = {"width": PHONE, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def log_of(browser: webdriver.Chrome, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = browser.get_log(kind)  # type: ignore[no-untyped-call]
    return found


def asked_hosts(browser: webdriver.Chrome) -> set[str]:
    """List the hosts of all that was loaded."""
    messages = [json.loads(entry["message"])["message"] for entry in log_of(browser, "performance")]
    urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return {urlsplit(url).netloc for url in urls if urlsplit(url).scheme in ("http", "https", "ws", "wss")}


def violations(browser: webdriver.Chrome, *rules: str) -> list[tuple[str, list[str]]]:
    """List what axe objects to, by all rules or by these."""
    options: dict[str, Any] = {"resultTypes": ["violations"]}  # what passes takes a third of the time
    if rules:
        options["runOnly"] = list(rules)
    found: dict[str, Any] = Axe().run(browser, options=options)
    return [(v["id"], [node["html"][:120] for node in v["nodes"][:3]]) for v in found["violations"]]


def set_scheme(browser: webdriver.Chrome, scheme: str) -> None:
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
