"""`<acl>` and everything in it: element in, record out.

Patterns are compiled by the evaluator; values are checked here according to their kind of condition. Source: DRO guide,
chapters 4.2.3 and 7.3. Guess: a text `.*` of `<topic>` stands for every topic, as in an example of the guide.
"""

from __future__ import annotations

import re
from typing import Final

from dro.config.dro_xml.model import AceConfig, AclConfig, ConditionConfig
from dro.config.reading.reader import ElementReader
from dro.config.um.interfaces import ANY

TOPIC_KINDS: Final = ("topic", "pcre-pattern", "regex-pattern")
NUMBER_KINDS: Final = ("udp-source-port", "udp-destination-port", "tcp-source-port", "xport-id")
SESSION_KINDS: Final = ("transport", "source-ip", "multicast-group", *NUMBER_KINDS)
MATCH_ALL: Final = ".*"
_LOOKS_LIKE_A_PATTERN: Final = re.compile(r"[*+?^$|\[\]\\]")


def read_acl(el: ElementReader) -> AclConfig | None:
    """`<acl>`; None when absent."""
    if not el.is_present:
        return None
    acl = AclConfig(read_direction(el.child("inbound")), read_direction(el.child("outbound")))
    if acl.inbound is None and acl.outbound is None:
        el.warning("has neither <inbound> nor <outbound>, so everything passes")
    el.done()
    return acl


def read_direction(el: ElementReader) -> tuple[AceConfig, ...] | None:
    """`<inbound>` or `<outbound>`; None when absent."""
    if not el.is_present:
        return None
    entries = tuple(read_ace(ace, is_inbound=el.name == "inbound") for ace in el.children("ace"))
    if not entries:
        el.error("<ace> is missing", remedy="add <ace>, or remove it")
    el.done()
    return entries


def read_ace(el: ElementReader, *, is_inbound: bool) -> AceConfig:
    """`<ace>`. Warns about one that can never decide."""
    match = el.text("match")
    conditions = tuple(_read_condition(child) for child in el.children(*TOPIC_KINDS, *SESSION_KINDS))
    if not conditions:
        el.error("no condition", remedy="add <topic> or another condition")
    elif not is_inbound and all(c.kind in SESSION_KINDS for c in conditions):
        el.warning("has only conditions that do not apply to outbound, so it never matches")
    if len({c.value for c in conditions if c.kind == "topic" and c.value != MATCH_ALL}) > 1:
        el.warning("conditions are joined by AND: two different <topic> never match")
    el.done()
    return AceConfig(match == "accept", conditions, el.file, el.line)


def _read_condition(el: ElementReader) -> ConditionConfig:
    value: str | int
    comparison = "eq"
    if el.name in TOPIC_KINDS:
        value = el.text()
        if not value:
            el.error("is empty", remedy="write a topic" if el.name == "topic" else "write a pattern")
        elif el.name == "regex-pattern":
            el.warning("deprecated, use <pcre-pattern>")
        elif el.name == "topic" and value == MATCH_ALL:
            el.warning("'.*' is taken as every topic; use <pcre-pattern>")
        elif el.name == "topic" and _LOOKS_LIKE_A_PATTERN.search(value):
            el.warning(f"{value[:40]!r} is compared literally; use <pcre-pattern> for a pattern")
    else:
        value = el.integer("value") if el.name in NUMBER_KINDS else _text_value(el)
        comparison = el.text("comparison")
    el.done()
    return ConditionConfig(el.name, value, comparison, el.line)


def _text_value(el: ElementReader) -> str:
    """Read a transport or an address; one that does not fit has been reported, so any will do."""
    return el.text("value") or ANY
