"""A DRO file in which every element and attribute stands with a value, and the same file with one of them changed.

For tests that go through the whole table of elements: two endpoints and two peers, of which one connects and has TLS
and a UDP part, and the other listens.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from dro.config.reading.schema import XML_SPACE, Field, elements
from tests.builders.dro_file import OTHER_KEYS, ROUTE_KEYS

Path = tuple[str, ...]
# Texts that are not what the sample of their row, or one that ends otherwise, may be.
TEXTS: Final = {
    "web-monitor": ("*:8080", "*:8081"), "interface": ("127.0.0.1", "192.0.2.10"), "compression": ("LZ4", "LZ4"),
    "cipher-suites": ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384"),
    "key-file": (ROUTE_KEYS, OTHER_KEYS), "format-module": ("separator=,", "separator=|"),
}  # fmt: skip
# Numbers that have to fit each other: what stands there, and what else could.
NUMBERS: Final = {
    ("sqn-window", "size"): ("4096", "8192"), ("sqn-window", "increment"): ("512", "1024"),
    ("route-recalculation", "backoff-interval"): ("10", "20"),
    ("route-recalculation", "warning-interval"): ("100", "200"),
    ("sourcemap", "size"): ("64", "128"), ("max-datagram", ""): ("8000", "9000"),
    ("peer-rate-limit", "interval"): ("10", "20"), ("gateway-keepalive", "interval"): ("4000", "6000"),
    ("gateway-keepalive", "timeout"): ("14000", "16000"), ("log", "size"): ("7", "8"),
    ("monitor", "interval"): ("5", "6"),
}  # fmt: skip
MIN_MAX: Final = {"min-interval": ("20", "30"), "max-interval": ("400", "500")}
FIRST_CHOICE: Final = {
    ("log", "type"): "file", ("rate-limit", "bps"): "1000", ("smart-batch", ""): "1",
    ("group", "name"): "default", ("tnw-gateway", "version"): "1.0", ("option", "scope"): "context",
    ("group", "ivl"): "5",
}  # fmt: skip
NAMES: Final = {"daemon": "D", "endpoint[1]": "E1", "endpoint[2]": "E2", "peer[1]": "P1", "peer[2]": "P2"}


@dataclass(frozen=True)
class Place:
    """One value in the file: the path to its element from the root, and the attribute, empty for the content.

    Portals, and the two entries of an access list, have their number behind the name.
    """

    path: Path
    attribute: str

    @property
    def element(self) -> str:
        return plain(self.path[-1])

    @property
    def field(self) -> Field:
        spec = elements()[self.element]
        if self.attribute:
            return spec.attributes[self.attribute]
        assert spec.content is not None
        return spec.content

    def __str__(self) -> str:
        return "/".join(self.path[1:]) + (f"@{self.attribute}" if self.attribute else "")


def plain(step: str) -> str:
    return step.partition("[")[0]


@functools.cache
def values(place: Place) -> tuple[str, str]:
    """What stands at a place, and another value that fits."""
    field = place.field
    name, attribute = place.element, place.attribute
    if name == "name":
        return NAMES[place.path[-2]], "else"
    if name == "domain-id":
        number = place.path[-2][-2]
        return number, f"{number}7"
    if name == "ace":
        return ("accept", "reject") if place.path[-1] == "ace[1]" else ("reject", "accept")
    if (name, attribute) in NUMBERS:
        return NUMBERS[name, attribute]
    if attribute in MIN_MAX:
        return MIN_MAX[attribute]
    if name == "option":
        port = 15000 + int(place.path[2][-2])
        return {
            "scope": ("context", "context"),
            "name": ("resolver_multicast_port", "resolver_multicast_incoming_port"),
            "value": (str(port), str(port + 100)),
        }[attribute]
    if field.type in ("integer", "port") and " | " not in field.valid:
        first = int(FIRST_CHOICE.get((name, attribute), max(field.minimum, 7)))
        first += str(first) == field.default
        return str(first), str(first + 1)
    if field.type in ("enum", "boolean", "integer"):
        canonical = list(dict.fromkeys(field.choices.values()))
        first_choice = FIRST_CHOICE.get((name, attribute), canonical[0])
        if (name, attribute) == ("transport-module", "module"):
            return "lbm", "lbmsnmp"  # udp has other options
        others = [choice for choice in canonical if choice != first_choice]
        return first_choice, others[-1] if others else first_choice
    first_text = field.sample or field.default or ""
    return TEXTS.get(name, (first_text, f"{first_text}2"))


def text(change: Place | None = None, *, without: Path = ()) -> bytes:
    """The file, with one value changed or one element left out."""
    return _element(("tnw-gateway",), change, without).encode()


def places() -> Iterator[Place]:
    """Every value in the file."""
    yield from _places(("tnw-gateway",))


def _children(path: Path) -> Iterator[str]:
    name = plain(path[-1])
    for child in elements()[name].children:
        if child in ("tcp", "lbm-config", "xml-config") or elements()[child].status == "eliminated":
            continue
        if (path[-1] == "peer[1]" or "peer[1]" in path) and child == "acceptor":
            continue
        if "peer[2]" in path and child in ("initiator", "tls", "udp"):
            continue
        if child in ("endpoint", "peer", "ace"):
            yield from (f"{child}[1]", f"{child}[2]")
        else:
            yield child


def _places(path: Path) -> Iterator[Place]:
    spec = elements()[plain(path[-1])]
    for attribute in spec.attributes:
        if attribute != XML_SPACE:
            yield Place(path, attribute)
    if spec.content is not None:
        yield Place(path, "")
    for child in _children(path):
        yield from _places((*path, child))


@functools.cache
def _unchanged(path: Path) -> str:
    return _element(path, None, (), is_new=True)


def _element(path: Path, change: Place | None, without: Path, *, is_new: bool = False) -> str:
    if path == without:
        return ""
    below = (without, change.path if change else ())
    if not is_new and not any(one[: len(path)] == path for one in below):
        return _unchanged(path)
    spec = elements()[plain(path[-1])]

    def value(attribute: str) -> str:
        place = Place(path, attribute)
        return values(place)[place == change]

    attributes = "".join(f" {name}={quoteattr(value(name))}" for name in spec.attributes if name != XML_SPACE)
    content = escape(value("")) if spec.content is not None else ""
    inner = "".join(_element((*path, child), change, without) for child in _children(path))
    return f"<{spec.name}{attributes}>{content}{inner}</{spec.name}>\n"
