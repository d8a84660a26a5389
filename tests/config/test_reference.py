"""The configuration reference is that of the tables, with an example for every element that means what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from lxml import etree

from dro.config.options import option_table
from dro.config.reference import configuration_reference, example, sample, state
from dro.config.reload_class import ReloadClass, reload_class
from dro.config.schema import XML_SPACE, elements

REFERENCE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_reference_is_up_to_date() -> None:
    assert REFERENCE.read_text(encoding="utf-8") == configuration_reference(), (
        "run: python -m dro.config.reference > docs/configuration.md"
    )


def test_every_element_attribute_and_option_is_in_it() -> None:
    text = REFERENCE.read_text(encoding="utf-8")
    for spec in elements().values():
        section = text.partition(f"### `<{spec.name}>`\n")[2].partition("\n### ")[0]
        assert "```xml" in section
        for attribute in spec.attributes:
            assert f"| `{attribute}` |" in section
    for option in option_table().values():
        assert f"`{option.name}`" in text or option.rule.kind.value == "api"


@pytest.mark.parametrize("name", list(elements()))
def test_an_example_fits_the_table(name: str) -> None:
    element = etree.fromstring(example(name))
    spec = elements()[name]
    assert set(element.attrib) == set(spec.attributes) - {XML_SPACE}
    for field in spec.attributes.values():
        if field.attribute != XML_SPACE:
            field.check(element.get(field.attribute, ""))
    if spec.content is not None:
        spec.content.check(element.text or "")
        assert element.text == sample(spec.content)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cost", ReloadClass.LIVE),
        ("topic", ReloadClass.LIVE),
        ("rate-limit", ReloadClass.LIVE),
        ("log", ReloadClass.LIVE),
        ("domain-id", ReloadClass.PORTAL),
        ("name", ReloadClass.PORTAL),
        ("option", ReloadClass.PORTAL),
        ("listen-port", ReloadClass.PORTAL),
        ("interface", ReloadClass.PORTAL),
        ("uid", ReloadClass.DAEMON),
        ("late-join", ReloadClass.NONE),
        ("topicmap", ReloadClass.NONE),
    ],
)
def test_reload_classes(name: str, expected: ReloadClass) -> None:
    assert reload_class(name) is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cost", "in effect"),
        ("peer", "refused: peer portals are not supported yet"),
        ("nak-handling", "refused: peer portals are not supported yet"),
        ("topic", "in effect"),
        ("transport-module", "warned about: not supported yet, ignored"),
        ("hotlink-index", "some values refused: hotlinks are not supported yet"),
        ("topicmap", "warned about: names are kept without tables of a fixed size, ignored"),
        ("regex-pattern", "in effect, deprecated"),
        ("route-recalculation", "in effect"),
        ("tcp", "refused: use `<single-tcp>`"),
        ("topic-purge", "ignored with a warning"),
    ],
)
def test_states(name: str, expected: str) -> None:
    assert state(elements()[name]) == expected
