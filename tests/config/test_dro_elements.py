"""Every element and attribute of the DRO file, driven by the table: default, limits, and what is refused and how."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import pytest

import dro.config
from dro.config.load import parse_dro
from dro.config.model import DroConfig
from dro.config.problems import ConfigErrors
from dro.config.schema import XML_SPACE, Field, elements

DATA = Path(dro.config.__file__).with_name("data")
PARENT = {
    "name": "daemon", "lbm-config": "endpoint", "publishing-interval": "daemon-monitor", "rate-limit": "domain-route",
    "port": "udp", "address": "initiator", "listen-port": "acceptor",
}  # fmt: skip
# Values that have to go along when a limit is tried, so that rules between values stay satisfied.
COMPANIONS = {
    ("sqn-window", "size"): 'increment="8"',
    ("sqn-window", "increment"): 'size="8388608"',
    ("route-recalculation", "backoff-interval"): 'warning-interval="4294967295"',
    ("route-recalculation", "warning-interval"): 'backoff-interval="0"',
    ("remote-topic-interest", "min-interval"): 'max-interval="4294967295"',
    ("remote-topic-interest", "max-interval"): 'min-interval="0"',
    ("remote-pattern-interest", "min-interval"): 'max-interval="4294967295"',
    ("remote-pattern-interest", "max-interval"): 'min-interval="0"',
    ("domain-route", "min-interval"): 'max-interval="4294967295"',
    ("domain-route", "max-interval"): 'min-interval="0"',
    ("session-message", "min-interval"): 'max-interval="4294967295"',
    ("session-message", "max-interval"): 'min-interval="0"',
}
# Limits that the rules between values narrow further.
UNREACHABLE = {
    ("sqn-window", "size", "min"),
    ("sqn-window", "increment", "max"),
    ("remote-topic-interest", "min-interval", "max"),
    ("remote-topic-interest", "max-interval", "min"),
    ("remote-pattern-interest", "min-interval", "max"),
    ("remote-pattern-interest", "max-interval", "min"),
}


def path_to(name: str) -> list[str]:
    """Element names from `daemon` or `portals` down to the element."""
    path = [name]
    while path[0] not in ("daemon", "portals"):
        spec = elements()[path[0]]
        path.insert(0, PARENT.get(path[0], spec.parents[0]))
    return path


def is_living(name: str) -> bool:
    return all(elements()[step].status == "no" for step in path_to(name))


REQUIRED = {
    "endpoint": {"name": "<name>E9</name>", "domain-id": "<domain-id>9</domain-id>"},
    "peer": {
        "name": "<name>P9</name>",
        "single-tcp": "<single-tcp><acceptor><listen-port>9</listen-port></acceptor></single-tcp>",
    },
    "single-tcp": {"acceptor": "<acceptor><listen-port>9</listen-port></acceptor>"},
    "acceptor": {"listen-port": "<listen-port>9</listen-port>"},
    "initiator": {"address": "<address>192.0.2.9</address>", "port": "<port>9</port>"},
    "udp": {"port": "<port>9</port>"},
    "tls": {"certificate": "<certificate>c</certificate>", "certificate-key": "<certificate-key>k</certificate-key>"},
    "inbound": {"ace": '<ace match="accept"><topic>T</topic></ace>'},
    "outbound": {"ace": '<ace match="accept"><topic>T</topic></ace>'},
    "ace": {"topic": "<topic>T</topic>"},
    "lbm-attributes": {"option": '<option scope="source" name="late_join" value="1"/>'},
    "publishing-interval": {"group": '<group name="default" ivl="5"/>'},
}
STEP = {"ace": 'match="accept"'}
INSTEAD = {"initiator": "acceptor"}
TEXT = {"interface": "127.0.0.1", "address": "192.0.2.1", "web-monitor": "*:1", "lbm-config": "/dev/null"}
TEXT |= {"cipher-suites": "ECDHE-RSA-AES128-GCM-SHA256", "source-ip": "192.0.2.1", "multicast-group": "239.1.1.1"}
PORTALS = "<portals><endpoint><name>E9</name><domain-id>9</domain-id></endpoint></portals>"


def sample(field: Field) -> str:
    """A value that fits."""
    if field.element == "option":
        return {"scope": "source", "name": "late_join", "value": "1"}[field.attribute]
    if field.type in ("enum", "boolean"):
        return next(iter(field.choices))
    if field.type in ("integer", "port"):
        return field.default or str(field.minimum)
    return TEXT.get(field.element, "text")


def required(parent: str, but: str = "") -> str:
    left_out = {but, INSTEAD.get(but, but)}
    return "".join(text for name, text in REQUIRED.get(parent, {}).items() if name not in left_out)


def document(path: list[str], attributes: str = "", content: str = "") -> bytes:
    """A valid file but for the element under test, which alone stands in line 2."""
    name = path[-1]
    given = attributes if "match=" in attributes else f"{STEP.get(name, '')} {attributes}"
    text = f"\n<{name} {given}>{required(name)}{content}</{name}>"
    for step in reversed(path[:-1]):
        text = f"<{step} {STEP.get(step, '')}>{required(step, name)}{text}</{step}>"
        name = step
    portals = PORTALS if path[0] == "daemon" else ""
    return f'<tnw-gateway version="1.0">{text}{portals}</tnw-gateway>'.encode()


def load(raw: bytes) -> DroConfig:
    warnings: list[str] = []
    return parse_dro(raw, "dro.xml", warn=warnings.append)


@dataclass(frozen=True)
class Case:
    """One value of the table in a document of its own."""

    field: Field

    def document(self, value: str) -> bytes:
        name, attribute = self.field.element, self.field.attribute
        companion = COMPANIONS.get((name, attribute), "")
        if attribute:
            others = " ".join(
                f'{other.attribute}="{sample(other)}"'
                for other in elements()[name].attributes.values()
                if other.is_required and other.attribute != attribute
            )
            return document(path_to(name), f'{attribute}="{value}" {companion} {others}')
        return document(path_to(name), content=value)

    def refusal(self, value: str) -> str:
        with pytest.raises(ConfigErrors) as caught:
            load(self.document(value))
        message = str(caught.value.errors[0])
        shown = f' {self.field.attribute}="{value[:40]}"' if self.field.attribute else ""
        assert message.startswith(f"dro.xml:2: <{self.field.element}{shown}>: ")
        assert caught.value.errors[0].remedy
        return message


def living_fields(*types: str) -> list[Field]:
    found = []
    for spec in elements().values():
        if spec.parents and is_living(spec.name):
            fields = [*spec.attributes.values(), *([spec.content] if spec.content else [])]
            found += [field for field in fields if field.type in types and field.attribute != XML_SPACE]
    return [field for field in found if field.element != "option"]  # tested with whole files


def ident(field: Field) -> str:
    return f"{field.element}-{field.attribute}"


def test_the_table_has_106_elements_and_agrees_with_the_dtd() -> None:
    dtd = (DATA / "dro-config.dtd").read_text(encoding="utf-8")
    in_dtd = {line.split()[1] for line in dtd.splitlines() if line.startswith("<!ELEMENT")}
    assert set(elements()) == in_dtd
    assert len(in_dtd) == 106
    attributes = {tuple(line.split()[1:3]) for line in dtd.splitlines() if line.startswith("<!ATTLIST")}
    assert {(s.name, a) for s in elements().values() for a in s.attributes} == attributes
    for spec in elements().values():
        for child in spec.children:
            assert spec.name in elements()[child].parents
    with (DATA / "dro-xml.csv").open(encoding="utf-8", newline="") as f:
        assert sum(1 for _ in csv.DictReader(f)) == sum(len(s.attributes) + 1 for s in elements().values())


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
    parse_dro(document(path, attributes), "dro.xml", warn=warnings.append)
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
