"""Strategies for DRO files: valid ones, made from the table of elements, and mutations of any document."""

from __future__ import annotations

import re
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from hypothesis import strategies as st

from dro.config.reading.schema import XML_SPACE, Field, elements
from tests.builders.dro_file import ROUTE_KEYS

TEXTS: Final = {
    "name": "P", "address": "far.example", "interface": "127.0.0.1", "web-monitor": "*:8080", "pidfile": "a.pid",
    "lbm-config": "/dev/null", "lbm-license-file": "a.lic", "log": "a.log", "certificate": "c.pem",
    "certificate-key": "k.pem", "certificate-key-password": "secret", "trusted-certificates": "t.pem",
    "cipher-suites": "AES256-SHA256,TLS_AES_128_GCM_SHA256", "source-context-name": "out",
    "receiver-context-name": "in", "key-file": ROUTE_KEYS,
    "source-ip": "192.0.2.1", "multicast-group": "239.1.1.1", "daemon-monitor": "stats", "regex-pattern": "a.*b",
    "transport-module": "topic=/t;context|ttl=1;address=192.0.2.9",
    "format-module": "separator=|", "pcre-pattern": "^a",
}  # fmt: skip
OPTIONS: Final = (
    ("context", "request_tcp_port_high", "15000"), ("source", "transport", "lbtrm"), ("receiver", "use_late_join", "0"),
    ("context", "resolver_unicast_daemon", "127.0.0.1:15380"), ("context", "monitor_appid", 'a "b" &lt; -- c'),
    ("wildcard_receiver", "resolver_no_source_linger_timeout", "7"),
)  # fmt: skip
# Attributes and elements that go together in ways the table does not tell.
FIXED: Final = {
    "sqn-window": ("size", "increment"), "route-recalculation": ("backoff-interval", "warning-interval"),
    "remote-topic-interest": ("min-interval", "max-interval"), "session-message": ("min-interval", "max-interval"),
    "remote-pattern-interest": ("min-interval", "max-interval"), "domain-route": ("min-interval", "max-interval"),
}  # fmt: skip
NEVER: Final = {"xml-config", "tcp", "topic-resolution-of-peers"}
NEEDED: Final = {
    "endpoint": ("name", "domain-id"), "peer": ("name", "single-tcp"), "tls": ("certificate", "certificate-key"),
    "initiator": ("address", "port"), "acceptor": ("listen-port",), "udp": ("port",), "inbound": ("ace",),
    "outbound": ("ace",), "lbm-attributes": ("option",), "publishing-interval": ("group",), "batching": (),
    "route-authentication": ("key-file",),
}  # fmt: skip


def value(field: Field) -> st.SearchStrategy[str]:
    """Texts that fit one value of the table."""
    if field.type in ("enum", "boolean"):
        return st.sampled_from(sorted(field.choices))
    if field.type in ("integer", "port"):
        if " | " in field.valid:
            return st.sampled_from(sorted(field.choices))
        top = min(field.maximum, 65535)
        return st.integers(field.minimum, max(top, field.minimum)).map(str)
    if field.element == "topic":
        return st.text(alphabet="aZ09./_ -&<>\"'é", min_size=1, max_size=12).filter(lambda t: bool(t.strip(" ")))
    return st.just(TEXTS.get(field.element, "text"))


@st.composite
def element(draw: st.DrawFn, name: str, number: int = 0) -> str:
    """One element with valid content; `number` makes names and domains differ."""
    spec = elements()[name]
    attributes = dict[str, str]()
    for field in spec.attributes.values():
        if field.attribute in (XML_SPACE, *FIXED.get(name, ())) or (name == "ace" and field.attribute != "match"):
            continue
        if field.is_required or draw(st.booleans()):
            attributes[field.attribute] = draw(value(field))
    if name == "option":
        attributes = dict(zip(("scope", "name", "value"), draw(st.sampled_from(OPTIONS)), strict=True))
    if name == "log":
        attributes["type"] = draw(st.sampled_from(["console", "file", "syslog"]))
    inner = ""
    if name == "name":
        inner = f"{'portal' if number else 'dro'} {number}"
    elif name == "domain-id":
        inner = str(number)
    elif spec.content is not None:
        inner = escape(draw(value(spec.content)))
        if name == "topic" and draw(st.booleans()):
            attributes["xml:space"] = "preserve"
    elif name == "ace":
        kinds = draw(st.lists(st.sampled_from(sorted(set(spec.children) - {"pcre-pattern"})), min_size=1, max_size=3))
        inner = "".join(draw(element(kind)) for kind in kinds)
    else:
        needed = NEEDED.get(name, ())
        for child in spec.children:
            if child in NEVER or (child in ("initiator", "acceptor")):
                continue
            if child in needed or draw(st.integers(0, 3)) == 0:
                inner += draw(element(child, number))
        if name == "single-tcp":
            inner += draw(st.sampled_from(["initiator", "acceptor"]).flatmap(element))
    shown = "".join(f" {key}={text if '&lt;' in text else quoteattr(text)}" for key, text in attributes.items()
                    if "&lt;" not in text)  # fmt: skip
    shown += "".join(f" {key}='{text}'" for key, text in attributes.items() if "&lt;" in text)
    return f"<{name}{shown}>{inner}</{name}>\n"


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """A whole valid file, if the rules between values allow it."""
    daemon = draw(element("daemon"))
    kinds = draw(st.lists(st.sampled_from(["endpoint", "peer"]), min_size=1, max_size=3))
    portals = "".join(draw(element(kind, number)) for number, kind in enumerate(kinds, start=1))
    return f'<tnw-gateway version="1.0">\n{daemon}<portals>\n{portals}</portals></tnw-gateway>'.encode()


@st.composite
def mutated(draw: st.DrawFn, original: bytes) -> bytes:
    """A document after a few edits: bytes changed, tokens moved, doubled or dropped."""
    raw = bytearray(original)
    tokens = sorted(set(re.findall(rb"<[^>]*>|[^<>\s]+", original)))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(raw)))
        length = draw(st.integers(0, 30))
        match draw(st.sampled_from(["bytes", "token", "drop", "double", "number"])):
            case "bytes":
                raw[at : at + length] = draw(st.binary(max_size=8))
            case "token":
                raw[at:at] = draw(st.sampled_from(tokens))
            case "drop":
                del raw[at : at + length]
            case "double":
                raw[at:at] = raw[at : at + length]
            case "number":
                found = list(re.finditer(rb"\d+", bytes(raw)))
                if found:
                    place = draw(st.sampled_from(found))
                    raw[place.start() : place.end()] = str(draw(st.integers(-(2**70), 2**70))).encode()
    return bytes(raw)
