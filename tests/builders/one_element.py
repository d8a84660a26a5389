"""One value of the DRO file in a valid document of its own, from the table of elements."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from lxml import etree

from dro.config.reading.problems import ConfigErrors
from dro.config.reading.schema import XML_SPACE, Field, elements
from tests.builders.dro_file import ROUTE_KEYS, load

DTD = Path(__file__).parents[2] / "dro" / "config" / "data" / "dro-config.dtd"


def misfits_of_the_dtd(raw: bytes) -> str:
    """What the published DTD has against a document without our own elements; empty: nothing."""
    dtd, root = etree.DTD(str(DTD)), etree.fromstring(raw)
    own = elements().keys() - set(re.findall(r"<!ELEMENT (\S+)", DTD.read_text(encoding="utf-8")))
    etree.strip_elements(root, *own, with_tail=False)
    return "" if dtd.validate(root) else str(dtd.error_log)


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
    "route-authentication": {"key-file": f"<key-file>{ROUTE_KEYS}</key-file>"},
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
TEXT |= {"key-file": ROUTE_KEYS}
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
