"""The events: against the published list, against the guide for operators, and all in use.

Whether the fields and the severity of a call are those of its event is checked in every test, by `tests.conftest`.
"""

from __future__ import annotations

import csv
import logging
import pickle
import re
from pathlib import Path
from typing import Final

import pytest

from dro.config.reading.problems import DeprecatedElement
from dro.config.reading.schema import elements
from dro.log.events import DEPRECATED_ELEMENTS, LogEvent, configuration_warning
from dro.log.lines import SEVERITIES, JsonFormatter, TextFormatter
from tests.conftest import check_event

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("dro", "portals", "router", "supervisor")
WITH_ID: Final = [event for event in LogEvent if event.id]


def published() -> dict[str, str]:
    """Severity by id. Source: the list of the monitoring reference."""
    with (ROOT / "tests" / "golden" / "log-ids.csv").open(newline="") as file:
        return {row["id"]: row["severity"] for row in csv.DictReader(file)}


@pytest.mark.parametrize("event", WITH_ID, ids=[event.name for event in WITH_ID])
def test_an_event_with_an_id_is_published_as_it_says(event: LogEvent) -> None:
    assert event.level is not None
    assert published()[event.id] == SEVERITIES[event.level]
    assert event.shown <= event.fields | {"process"}


def test_an_id_stands_for_one_event() -> None:
    assert len({event.id for event in WITH_ID}) == len(WITH_ID)


def test_events_are_told_apart_and_can_be_counted() -> None:
    assert len(dict.fromkeys(LogEvent, 0)) == len({str(event) for event in LogEvent}) == len(list(LogEvent))


def test_every_event_is_logged_somewhere() -> None:
    sources = "".join(path.read_text() for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    used = set(re.findall(r"\bLogEvent\.([A-Z_]+)\b", sources)) | {event.name for event in DEPRECATED_ELEMENTS.values()}
    assert {event.name for event in LogEvent} == used


def test_nothing_is_logged_but_events() -> None:
    a_variable = r"_EVENT_OF|why|DEPRECATED_ELEMENTS"
    level = "debug|info|warning|error|exception|critical"
    call = re.compile(rf"\blog\.(?:{level})\((?!\s*(?:LogEvent\.|{a_variable}))")
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            assert not call.search(path.read_text()), path


def test_deprecated_elements() -> None:
    assert set(DEPRECATED_ELEMENTS) <= elements().keys()
    assert len(DEPRECATED_ELEMENTS) == 9
    for name, event in DEPRECATED_ELEMENTS.items():
        assert str(event) == f"%s: <{name}>: deprecated, ignored"


def test_the_warning_about_a_deprecated_element_has_its_id(caplog: pytest.LogCaptureFixture) -> None:
    warn = configuration_warning(logging.getLogger("x"))
    warning = pickle.loads(pickle.dumps(DeprecatedElement("/etc/dro.xml:17", "topic-purge")))
    assert warning == "/etc/dro.xml:17: <topic-purge>: deprecated, ignored"
    for text in (warning, DeprecatedElement("a:1", "other"), "100 % <topic-purge>: deprecated, ignored"):
        warn(text)
    text = TextFormatter("tnwgd")
    assert [text.body(record) for record in caplog.records] == [
        "Gwd-6814-16: /etc/dro.xml:17: <topic-purge>: deprecated, ignored process=tnwgd",
        "a:1: <other>: deprecated, ignored process=tnwgd",
        "100 % <topic-purge>: deprecated, ignored process=tnwgd",
    ]
    assert JsonFormatter("tnwgd").body(caplog.records[0]) == (
        '"id": "Gwd-6814-16", "process": "tnwgd", "text": "/etc/dro.xml:17: <topic-purge>: deprecated, ignored",'
        ' "fields": {}'
    )


def test_the_guide_explains_every_id() -> None:
    text = (ROOT / "docs" / "log.md").read_text()
    explained: set[str] = set()
    for row in re.findall(r"^\| ((?:Core|Gwd|GwdApi)-[^|]+) \|", text, re.MULTILINE):
        first, *more = row.split(", ")
        stem = first[: first.index("-", first.index("-") + 1)]
        for part in [first[len(stem) :], *more]:
            low, _, high = part.partition(" to ")
            width = len(low) - 1
            numbers = range(int(low[1:]), int(high[1:] or 0) + 1) if high else [int(low[1:])]
            explained |= {f"{stem}-{number:0{width}d}" for number in numbers}
    assert {event.id for event in WITH_ID} == explained


def test_shapes_show_their_fields() -> None:
    event = LogEvent.DRO_RUNNING
    assert event.shown == {"dro", "node_id"}
    assert (
        event.render({"dro": "a{n}", "node_id": "3", "more": "x"})
        == "Gateway named [a{n}] with node id: 3 has started."
    )
    with pytest.raises(KeyError):
        event.render({"dro": "a"})


@pytest.mark.parametrize(
    ("level", "extra"),
    [
        (logging.INFO, {"topic": "t"}),
        (logging.INFO, {"topic": "t", "otid": "o", "more": 1}),
        (logging.WARNING, {"topic": "t", "otid": "o"}),
    ],
)
def test_a_call_that_does_not_fit_its_event_is_noticed(level: int, extra: dict[str, object]) -> None:
    check_event(LogEvent.PROXY_SOURCE_CREATED, logging.INFO, {"topic": "t", "otid": "o"})
    with pytest.raises(AssertionError):
        check_event(LogEvent.PROXY_SOURCE_CREATED, level, extra)
