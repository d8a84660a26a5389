"""The rows of the table of elements that need more than `test_elements.py` gives: and that none is left out."""

from __future__ import annotations

import pytest

from dro.config.reading.problems import ConfigErrors
from dro.config.reading.schema import XML_SPACE, Field, elements
from tests.builders.dro_file import load
from tests.builders.one_element import COMPANIONS, Case, document, ident, living_fields, path_to, sample

DRIVEN = ("integer", "port", "enum", "boolean", "string", "path", "regex", "host", "interface", "IPv4")
FORMER_LINK = {"tcp", "companion"}


def fields() -> list[Field]:
    return [
        field
        for spec in elements().values()
        for field in (*([spec.content] if spec.content else []), *spec.attributes.values())
    ]


def field_of(element: str, attribute: str = "") -> Field:
    spec = elements()[element]
    found = spec.attributes[attribute] if attribute else spec.content
    assert found is not None
    return found


def refusal(field: Field, value: str) -> str:
    """The first error that names the element, which stands in line 2."""
    with pytest.raises(ConfigErrors) as caught:
        load(Case(field).document(value))
    named = [e for e in caught.value.errors if e.element.startswith(f"<{field.element}")]
    assert named[0].line == 2
    assert named[0].remedy
    return str(named[0])


def test_no_row_is_left_out() -> None:
    driven = {(f.element, f.attribute) for f in living_fields(*DRIVEN)}
    here = {(f.element, f.attribute) for f in (*SPACED, *DEPRECATED, *READ)}
    here |= {("option", name) for name in ("scope", "name", "value")}
    here |= {
        ("tnw-gateway", "version"),
        ("web-monitor", ""),
        ("cipher-suites", ""),
        ("companion", "reconnect-interval"),
    }
    rows = {(f.element, f.attribute) for f in fields()}
    assert driven | here == rows
    assert not driven & here


# white space

SPACED = [field for field in fields() if field.attribute == XML_SPACE]
WITH_BLANKS = {
    "lbm-config": "  /dev/null  ", "xml-config": "  /dev/null  ", "source-context-name": "  a  ",
    "receiver-context-name": "  a  ", "web-monitor": "  *:1  ",
}  # fmt: skip


def spaced(field: Field, attribute: str) -> object:
    """What a text with blanks at its ends comes to; an error is an outcome, too."""
    text = WITH_BLANKS.get(field.element, "  a  b  ")
    given = f'{attribute} type="file"' if field.element == "log" else attribute
    try:
        return load(document(path_to(field.element), given, text))
    except ConfigErrors as e:
        return str(e)


@pytest.mark.parametrize("field", SPACED, ids=ident)
def test_white_space_is_trimmed_unless_preserved(field: Field) -> None:
    assert spaced(field, 'xml:space="default"') == spaced(field, "")
    assert spaced(field, 'xml:space="preserve"') != spaced(field, "")
    assert "'keep' is not allowed; write default or preserve" in str(spaced(field, 'xml:space="keep"'))


# deprecated: checked, and without function

READ = [
    field
    for field in fields()
    if field.element
    in ("daemon-monitor", "group", "remote-snapshot-request", "remote-config-changes-request", "regex-pattern")
    and field.attribute != XML_SPACE
]
DEPRECATED = [
    field
    for field in fields()
    if elements()[field.element].status != "no"
    and field not in READ
    and field.attribute != XML_SPACE
    and field.element not in FORMER_LINK
]


@pytest.mark.parametrize("field", DEPRECATED, ids=ident)
def test_what_has_no_function_any_more_is_still_checked(field: Field) -> None:
    without = load(document(path_to(field.element)))
    for value in (
        field.default,
        *(field.choices if field.type == "enum" else (str(field.minimum), str(field.maximum))),
    ):
        if value is not None:
            assert load(Case(field).document(value)) == without
    if field.type == "enum":
        assert "is not allowed; write one of" in refusal(field, "often")
    else:
        assert "is out of range" in refusal(field, str(field.minimum - 1))
        assert "is out of range" in refusal(field, str(field.maximum + 1))
        assert "is not a whole number" in refusal(field, "often")


def test_the_former_link_is_refused_whatever_it_says() -> None:
    field = field_of("companion", "reconnect-interval")
    path = path_to("companion")
    for value in (str(field.default), "often"):
        with pytest.raises(ConfigErrors, match="<tcp>: this form of the peer link does not exist any more"):
            load(document(path, f'reconnect-interval="{value}"'))


# deprecated, and read


@pytest.mark.parametrize(
    ("element", "attribute", "default", "other", "wrong", "message"),
    [
        ("daemon-monitor", "topic", "tnwgd.monitor", "w.stats", None, ""),
        ("group", "name", None, "portal-stats", "weather", "'weather' is not allowed; write one of default, "),
        ("group", "ivl", None, "0", "-1", "-1 is out of range"),
        ("group", "ivl", None, "4294967295", "4294967296", "4294967296 is out of range"),
        ("remote-snapshot-request", "allow", "0", "1", "2", "'2' is not allowed; write one of 0, 1"),
        ("remote-config-changes-request", "allow", "0", "1", "yes", "'yes' is not allowed; write one of 0, 1"),
    ],
)
def test_statistics_of_the_daemon(
    element: str, attribute: str, default: str | None, other: str, wrong: str | None, message: str
) -> None:
    field = field_of(element, attribute)
    assert field.default == default
    changed = load(Case(field).document(other))
    if default is not None:
        assert load(Case(field).document(default)) == load(document(path_to(element))) != changed
    else:
        assert field.is_required
        assert changed != load(Case(field).document("config" if attribute == "name" else "17").replace(
            b'"config"', b'"portal-config"'))  # fmt: skip
        with pytest.raises(ConfigErrors, match=f"<{element}>: attribute {attribute} is missing"):
            load(document(path_to(element)))
    if wrong is not None:
        assert message in refusal(field, wrong)


def test_posix_expressions() -> None:
    field = field_of("regex-pattern")
    warnings: list[str] = []
    one = load(Case(field).document("^a|b$"), warnings)
    assert any("<regex-pattern>: deprecated, use <pcre-pattern>" in warning for warning in warnings)
    assert one != load(Case(field).document("^a|c$"))
    with pytest.raises(ConfigErrors, match=r"dro\.xml:\d+: <regex-pattern>: "):
        load(Case(field).document("(a"))
    assert "is empty" in refusal(field, "")


# of their own kind


def test_the_version_of_the_file() -> None:
    raw = document(["portals"], content="<endpoint><name>A</name><domain-id>1</domain-id></endpoint>")
    load(raw)
    with pytest.raises(ConfigErrors, match=r"'2\.0' is not allowed; write one of 1\.0"):
        load(raw.replace(b'"1.0"', b'"2.0"'))
    with pytest.raises(ConfigErrors, match="<tnw-gateway>: attribute version is missing"):
        load(raw.replace(b' version="1.0"', b""))


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("*:1", ("", 1)),
        ("*:65535", ("", 65535)),
        ("eth0:80", ("eth0", 80)),
        ("192.0.2.0/24:8080", ("192.0.2.0/24", 8080)),
    ],
)
def test_where_the_web_monitor_listens(text: str, where: tuple[str, int]) -> None:
    made = load(document(path_to("web-monitor"), content=text)).daemon.web_monitor
    assert made is not None
    assert (made.interface, made.port) == where


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no port from 1 to 65535; write interface:port, as in *:15304"),
        ("*", "has no port"),
        ("*:0", "has no port"),
        ("*:65536", "has no port"),
        ("*:x", "has no port"),
        ("a b:1", "'a b' is not an interface"),
    ],
)
def test_where_it_cannot_listen(text: str, message: str) -> None:
    assert message in refusal(field_of("web-monitor"), text)


def test_cipher_suites() -> None:
    field = field_of("cipher-suites")
    tls = load(Case(field).document("AES256-SHA256,TLS_AES_128_GCM_SHA256")).peers[0].tcp.tls
    assert tls is not None
    assert tls.cipher_suites == ("AES256-SHA256", "TLS_AES_128_GCM_SHA256")
    for value in ("", "PLAIN", " , "):
        assert "no usable cipher suite; write OpenSSL names" in refusal(field, value)


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("scope", "hfx", "'hfx' is not allowed; write one of receiver, context, source, "),
        ("scope", "context", "unknown UM option; it exists in scope source"),
        ("name", "late_joint", "source late_joint: unknown UM option; did you mean late_join?"),
        ("value", "maybe", "'maybe' is not a whole number; use 1 or 0"),
        ("name", "", "is empty; write a value"),
        ("value", "", "is empty; write a value"),
    ],
)  # fmt: skip
def test_options_of_the_um_library(attribute: str, value: str, message: str) -> None:
    given = {"scope": "source", "name": "late_join", "value": "1"}
    path = path_to("option")

    def text(values: dict[str, str]) -> bytes:
        return document(path, " ".join(f'{name}="{v}"' for name, v in values.items()))

    one, other = load(text(given)), load(text(given | {"value": "0"}))
    assert one != other
    with pytest.raises(ConfigErrors) as caught:
        load(text(given | {attribute: value}))
    assert message in str(caught.value)
    without = {name: v for name, v in given.items() if name != attribute}
    with pytest.raises(ConfigErrors, match=f"<option>: attribute {attribute} is missing"):
        load(text(without))


def test_companions_are_of_rows_that_exist() -> None:
    assert all(field_of(element, attribute) for element, attribute in COMPANIONS)
    assert sample(field_of("option", "scope")) == "source"
