"""Every element and attribute of the DRO file, driven by the table: default, limits, and what is refused and how."""

from __future__ import annotations

import csv
import re
from dataclasses import fields
from pathlib import Path

import pytest

import dro.config
from dro.config.dro_xml.model import DaemonConfig, DroConfig, EndpointConfig, PeerConfig
from dro.config.reading.problems import ConfigErrors
from dro.config.reading.schema import Field, elements, fields_of
from tests.builders.dro_file import load
from tests.builders.one_element import (
    COMPANIONS,
    REQUIRED,
    Case,
    document,
    ident,
    is_living,
    living_fields,
    path_to,
    sample,
)

DATA = Path(dro.config.__file__).with_name("data")
# Limits that the rules between values narrow further.
UNREACHABLE = {
    ("sqn-window", "size", "min"),
    ("sqn-window", "increment", "max"),
    ("remote-topic-interest", "min-interval", "max"),
    ("remote-topic-interest", "max-interval", "min"),
    ("remote-pattern-interest", "min-interval", "max"),
    ("remote-pattern-interest", "max-interval", "min"),
}


def test_the_table_has_what_the_published_dtd_has_in_its_order() -> None:
    """Elements and attributes of our own may stand between those of the DTD."""
    dtd = (DATA / "dro-config.dtd").read_text(encoding="utf-8")
    published = dict(re.findall(r"<!ELEMENT (\S+) (.*)>", dtd))
    assert len(published) == 106
    for name, model in published.items():
        spec = elements()[name]
        assert [child for child in spec.children if child in published] == re.findall(r"(?<!#)\b[a-z][\w-]*", model)
        assert spec.is_ordered == ("," in model or (bool(spec.children) and "|" not in model))
        assert (spec.content is not None) == ("#PCDATA" in model)
    assert set(re.findall(r"<!ATTLIST (\S+) (\S+)", dtd)) <= {
        (s.name, a) for s in elements().values() for a in s.attributes
    }


def test_every_row_is_read() -> None:
    with (DATA / "dro-xml.csv").open(encoding="utf-8", newline="") as f:
        assert sum(1 for _ in csv.DictReader(f)) == sum(len(s.attributes) + 1 for s in elements().values())


def test_every_field_of_a_row_is_one_of_the_record_around_it() -> None:
    for kind, element in ((DaemonConfig, "daemon"), (EndpointConfig, "endpoint"), (PeerConfig, "peer")):
        assert {f for child in elements()[element].children for f in fields_of(child)} <= {f.name for f in fields(kind)}


@pytest.mark.parametrize("field", living_fields("integer", "port", "enum", "boolean"), ids=ident)
def test_a_written_default_means_the_same_as_none(field: Field) -> None:
    if field.default is None:
        optional = ("rate-limit", "uid", "gid", "compression", "receive-buffer", "send-buffer")
        assert field.is_required or field.element in optional
        return
    path = path_to(field.element)
    companion = COMPANIONS.get((field.element, field.attribute), "")
    without = document(path, companion) if field.attribute else document(path[:-1])
    assert load(Case(field).document(field.default)) == load(without)


@pytest.mark.parametrize("field", living_fields("integer", "port"), ids=ident)
def test_limits_are_taken_and_what_lies_beyond_is_refused(field: Field) -> None:
    case = Case(field)
    step = 8 if field.valid.startswith("multiple of 8") else 1
    if " | " in field.valid:
        made = {load(case.document(choice)) for choice in field.choices}
        assert len(made) == len(field.choices)
        assert "write one of" in case.refusal(str(field.minimum + 1))
    else:
        if (field.element, field.attribute, "max") not in UNREACHABLE:
            load(case.document(str(field.maximum - field.maximum % step)))
        if (field.element, field.attribute, "min") not in UNREACHABLE:
            lowest, next_one = (load(case.document(str(field.minimum + n))) for n in (0, step))
            assert lowest != next_one, "the value is not used"
    for beyond in (field.minimum - 1, field.maximum + 1):
        assert "out of range" in case.refusal(str(beyond))
    for text in ("", "x", "1.5", "1 2", "0x10", "\u0661"):
        assert "is not a whole number" in case.refusal(text)


@pytest.mark.parametrize("field", living_fields("enum", "boolean"), ids=ident)
def test_choices_take_every_spelling_and_no_other(field: Field) -> None:
    made: dict[str, DroConfig] = {}
    for spelling, canonical in field.choices.items():
        if (field.element, spelling) != ("log", "file"):
            made.setdefault(canonical, load(Case(field).document(spelling)))
            assert made[canonical] == load(Case(field).document(spelling))
    assert len(set(made.values())) == len(made), "the value is not used"
    assert "write one of" in Case(field).refusal("carrier-pigeon")


@pytest.mark.parametrize("field", living_fields("string", "path", "regex", "host", "interface", "IPv4"), ids=ident)
def test_texts_arrive_in_the_model(field: Field) -> None:
    if field.element in ("transport-module", "format-module", "xml-config"):
        return  # option strings and XML files have tests of their own
    path = path_to(field.element)
    name_only = document(path[:-1]) if not field.attribute and field.element != "name" else None
    text = sample(field)
    if field.element == "log":
        assert load(document(path, 'type="file"', "a.log")).daemon.log.file == "a.log"
        return
    config = load(Case(field).document(text))
    if name_only and field.element not in REQUIRED.get(path[-2], {}) and field.element != "lbm-license-file":
        assert config != load(name_only)
    assert text in repr(config) or field.element == "certificate-key-password"


@pytest.mark.parametrize("name", ["keepalive", "nodelay"])
def test_flags_are_set_by_being_there(name: str) -> None:
    tcp = load(document(path_to(name))).peers[0].tcp
    assert getattr(tcp, name) is True
    tcp = load(document(path_to(name)[:-1])).peers[0].tcp
    assert getattr(tcp, name) is False


@pytest.mark.parametrize("field", living_fields("IPv4"), ids=ident)
def test_addresses_are_addresses(field: Field) -> None:
    assert "is not an IPv4 address" in Case(field).refusal("1234")


READ_THOUGH_DEPRECATED = {
    "daemon-monitor", "publishing-interval", "group", "remote-snapshot-request", "remote-config-changes-request",
    "regex-pattern",
}  # fmt: skip
FORMER_LINK = {"tcp", "companion"}


@pytest.mark.parametrize(
    "name",
    [
        n
        for n in elements()
        if n != "tnw-gateway" and not is_living(n) and n not in READ_THOUGH_DEPRECATED | FORMER_LINK
    ],
)
def test_deprecated_elements_are_warned_about_and_ignored(name: str) -> None:
    path = path_to(name)
    given = {a.attribute: sample(a) for a in elements()[name].attributes.values()}
    attributes = " ".join(f'{attribute}="{value}"' for attribute, value in given.items())
    warnings: list[str] = []
    load(document(path, attributes), warnings)
    outer = next(step for step in path if elements()[step].status != "no")
    assert f"dro.xml:{2 if outer == name else 1}: <{outer}>: deprecated, ignored" in warnings
    with pytest.raises(ConfigErrors, match="unknown attribute"):
        load(document(path, 'nonsense="1"'))


@pytest.mark.parametrize("name", [n for n in elements() if n != "tnw-gateway" and is_living(n)])
def test_unknown_attributes_and_children_are_errors_with_place(name: str) -> None:
    for raw, element in (
        (document(path_to(name), 'nonsense="7"'), f'<{name} nonsense="7">'),
        (document(path_to(name), content="<nonsense/>"), "<nonsense>"),
    ):
        with pytest.raises(ConfigErrors) as caught:
            load(raw)
        wanted = [e for e in caught.value.errors if e.element == element]
        assert wanted
        assert wanted[0].file == "dro.xml"
        assert wanted[0].remedy


@pytest.mark.parametrize(
    ("attributes", "part"),
    [
        ('size="64" increment="128"', "increment 128 is not below size 64"),
        ('size="64" increment="64"', "increment 64 is not below size 64"),
        ('size="64" increment="24"', "increment 24 does not divide size 64"),
        ('size="63" increment="8"', "63 is not a multiple of 8; write 56 or 64"),
    ],
)
def test_rules_of_the_sqn_window(attributes: str, part: str) -> None:
    with pytest.raises(ConfigErrors) as caught:
        load(document(path_to("sqn-window"), attributes))
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("name", "attributes", "is_error"),
    [
        ("remote-topic-interest", 'min-interval="60000"', True),
        ("remote-topic-interest", 'min-interval="59999"', False),
        ("remote-pattern-interest", 'max-interval="1000"', True),
        ("domain-route", 'min-interval="1000"', False),
        ("domain-route", 'min-interval="1001"', True),
        ("route-recalculation", 'backoff-interval="10000"', False),
        ("route-recalculation", 'backoff-interval="10001"', True),
    ],
)
def test_rules_between_intervals(name: str, attributes: str, is_error: bool) -> None:
    if is_error:
        with pytest.raises(ConfigErrors, match=f"dro.xml:2: <{name}>: "):
            load(document(path_to(name), attributes))
    else:
        load(document(path_to(name), attributes))


@pytest.mark.parametrize(
    ("parent", "bps", "objects"),
    [
        ("topic-use-query", 500_000, 500),
        ("pattern-use-query", 500_000, 500),
        ("remote-topic-interest", 500_000, 0),
        ("remote-pattern-interest", 500_000, 0),
        ("domain-route", 0, 50),
    ],
)
def test_rate_limits_have_the_defaults_of_their_parent(parent: str, bps: int, objects: int) -> None:
    path = ["portals", "endpoint", "topic-resolution", parent]
    for raw, wanted in (
        (document(path), (bps, objects)),
        (document([*path, "rate-limit"]), (bps, objects)),
        (document([*path, "rate-limit"], 'bps="7"'), (7, objects)),
        (document([*path, "rate-limit"], 'objects-per-second="8"'), (bps, 8)),
    ):
        limit = getattr(load(raw).portals[0].topic_resolution, parent.replace("-", "_")).rate_limit
        assert (limit.bps, limit.objects_per_second) == wanted
