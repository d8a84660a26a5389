"""The configuration reference is that of the tables, with an example for every element that means what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from lxml import etree

from dro.config.change.reload_class import ReloadClass, reload_class
from dro.config.reading.problems import ConfigErrors
from dro.config.reading.schema import XML_SPACE, elements
from dro.config.report.reference import configuration_reference, example, sample, state
from dro.config.um.options import option_table
from tests.builders.dro_file import load
from tests.builders.one_element import PORTALS, STEP, misfits_of_the_dtd, path_to, required

REFERENCE = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_the_reference_is_up_to_date() -> None:
    assert REFERENCE.read_text(encoding="utf-8") == configuration_reference(), (
        "run: python -m dro.config.report.reference > docs/configuration.md"
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
    assert "..." not in example(name) or name == "certificate-key-password"


def embedded(name: str) -> bytes:
    """The smallest valid file around the example."""
    text, path = example(name), [] if name == "tnw-gateway" else path_to(name)
    if name == "companion":
        text, path = example("tcp"), path[:-1]
    for step, below in zip(reversed(path[:-1]), reversed(path), strict=False):
        siblings = required(step, below) if below != "tcp" else "<name>P9</name>"
        text = f"<{step} {STEP.get(step, '')}>{siblings}{text}</{step}>"
    if name != "tnw-gateway":
        text = f'<tnw-gateway version="1.0">{text}{PORTALS if path[0] == "daemon" else ""}</tnw-gateway>'
    root = etree.fromstring(text)
    for element in list(root.iter()):
        spec = elements()[str(element.tag)]
        if spec.is_ordered:
            element[:] = sorted(element, key=lambda child: spec.children.index(str(child.tag)))
    return etree.tostring(root)


@pytest.mark.parametrize("name", list(elements()))
def test_an_example_stands_in_a_valid_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lan1.cfg").write_text("context resolver_multicast_address 239.1.1.1\n")
    application = "<applications><application><contexts/></application></applications>"
    (tmp_path / "um.xml").write_text(f'<um-configuration version="1.0">{application}</um-configuration>')
    (tmp_path / "route.keys").write_text("a0" * 32)
    (tmp_path / "route.keys").chmod(0o600)
    raw = embedded(name)
    assert not misfits_of_the_dtd(raw)
    warnings: list[str] = []

    if name in ("tcp", "companion"):
        with pytest.raises(ConfigErrors, match="use <single-tcp>"):
            load(raw)
        return
    load(raw, warnings)
    expected = ("nothing to forward to", "deprecated", "never matches", "advised")
    assert not [warning for warning in warnings if not any(part in warning for part in expected)]


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
        ("peer", "in effect"),
        ("nak-handling", "in effect"),
        ("udp", "in effect"),
        ("coalesce-threshold", "warned about: messages are always copied into one datagram, ignored"),
        ("topic", "in effect"),
        ("transport-module", "in effect"),
        ("daemon-monitor", "in effect, deprecated"),
        ("hotlink-index", "in effect"),
        ("topicmap", "warned about: names are kept without tables of a fixed size, ignored"),
        ("regex-pattern", "in effect, deprecated"),
        ("route-recalculation", "in effect"),
        ("tcp", "refused: use `<single-tcp>`"),
        ("topic-purge", "ignored with a warning"),
    ],
)
def test_states(name: str, expected: str) -> None:
    assert state(elements()[name]) == expected
