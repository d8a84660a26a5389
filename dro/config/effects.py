"""What becomes of each value of the DRO file in this release: one answer for every row of the table of elements.

`USED_BY` says for values with an effect which part of the program takes them, and how it shows; a test builds that
part from two files that differ in the value. What has no entry there is refused or warned about (`unsupported.py`),
is deprecated, or is a container whose content counts. Called by the reference of the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dro.config.schema import XML_SPACE, elements
from dro.config.unsupported import SOME, limit_of

Row = tuple[str, str]
"""Element and attribute; the attribute is empty for the content or the element itself."""


class Kind(Enum):
    """What becomes of a value."""

    USED = "used"
    REFUSED = "refused"
    WARNED = "warned about"
    IGNORED = "ignored with a warning"
    HOLDS = "counts by what it holds"


@dataclass(frozen=True, slots=True)
class Effect:
    """`text` says what uses the value, or why nothing does."""

    kind: Kind
    text: str = ""

    def __str__(self) -> str:
        return self.text or self.kind.value


_USE_QUERY: Final = "portal, local interest"
_TELL: Final = "portal, what it tells the TRD for other domains"
_SWEEP: Final = "portal, interest that neighbour DROs told"
_ACL: Final = "portal, access control: proxies are made or not"
_UM: Final = "portal, options of its contexts, proxy sources and proxy receivers"
_LOG: Final = "log of all processes"
_RM: Final = "route manager"

USED_BY: Final[Mapping[Row, str]] = {
    ("tnw-gateway", "version"): "reader: another version is refused",
    # daemon
    ("name", ""): "DRO: run directory, UM application; portal: name of its process, in the log and in `tnwgdctl`",
    ("log", ""): f"{_LOG}: file",
    ("log", "type"): f"{_LOG}: destination",
    ("log", "frequency"): f"{_LOG}: rolling by time",
    ("log", "size"): f"{_LOG}: rolling by size",
    ("uid", ""): "all processes: user id",
    ("gid", ""): "all processes: group id",
    ("pidfile", ""): "parent: file with its process id",
    ("xml-config", ""): f"{_UM}, over all other layers",
    ("route-info", "check-interval"): f"{_RM}: when changes are looked at",
    ("route-recalculation", "backoff-interval"): f"{_RM}: quiet time before a calculation",
    ("route-recalculation", "warning-interval"): f"{_RM}: time after which the log warns",
    # endpoint
    ("domain-id", ""): "route manager, advertisements of the portal, interest",
    ("cost", ""): "route manager, and cost in the advertisements of proxy sources",
    ("source-deletion-delay", ""): "portal, proxy sources without a feeder",
    ("max-queue", ""): "portal, sending half: bytes that may wait; size of its ring",
    ("lbm-config", ""): _UM,
    ("option", "scope"): _UM,
    ("option", "name"): _UM,
    ("option", "value"): _UM,
    ("source-context-name", ""): "portal, sending context: which `<context>` of a UM XML file counts",
    ("receiver-context-name", ""): "portal, receiving context: which `<context>` of a UM XML file counts",
    ("sqn-window", "size"): "portal, window of duplicates of each proxy source",
    ("sqn-window", "increment"): "portal, window of duplicates of each proxy source",
    # access control
    ("acl", ""): _ACL,
    ("inbound", ""): f"{_ACL}; without it everything may enter",
    ("outbound", ""): f"{_ACL}; without it everything may leave",
    ("ace", "match"): _ACL,
    ("topic", ""): _ACL,
    ("pcre-pattern", ""): _ACL,
    ("regex-pattern", ""): _ACL,
    **{
        (kind, attribute): _ACL
        for kind in (
            "transport", "source-ip", "multicast-group", "udp-source-port", "udp-destination-port", "tcp-source-port",
            "xport-id",
        )
        for attribute in ("value", "comparison")
    },
    # topic resolution
    **{
        (element, attribute): f"{_USE_QUERY}: {what}"
        for element in ("topic-use-query", "pattern-use-query")
        for attribute, what in (
            ("timeout", "wait after a use query"),
            ("max", "use queries before interest goes"),
            ("periodic-interval", "silence after which it asks"),
        )
    },
    **{
        (element, attribute): f"{_TELL}: {what}"
        for element, kind in (
            ("remote-topic-interest", "interest in topics"),
            ("remote-pattern-interest", "interest in patterns"),
            ("domain-route", "domains that it reaches"),
        )
        for attribute, what in (("min-interval", f"first gap, {kind}"), ("max-interval", f"longest gap, {kind}"))
    },
    ("rate-limit", "bps"): "portal, what it sends to the TRD: bits of the kind around it",
    ("rate-limit", "objects-per-second"): "portal, what it sends to the TRD: records of the kind around it",
    ("initial-request", "periodic-interval"): f"{_TELL}: gap of the requests at start",
    ("initial-request", "duration"): f"{_TELL}: how long it requests at start",
    **{
        (element, attribute): f"{_SWEEP}: {what}"
        for element, most in (("remote-topic", "max-topics"), ("remote-pattern", "max-patterns"))
        for attribute, what in (("check-interval", "gap of tests"), (most, "entries of one round"), ("timeout", "age"))
    },
}  # fmt: skip


def has_used_content(element: str) -> bool:
    """Has any value of the element an effect?"""
    return any(row[0] == element for row in USED_BY)


def effect_of(element: str, attribute: str) -> Effect:
    """Of one row of the table. Raises: LookupError for a row that nothing answers for, which a test rules out."""
    spec = elements()[element]
    if spec.status == "eliminated" and "tcp" in (element, *spec.parents[:1]):
        return Effect(Kind.REFUSED, "refused: use `<single-tcp>`")
    limit = limit_of(element)
    if not limit or limit.startswith(SOME):
        used = USED_BY.get((element, attribute))
        if used is not None:
            return Effect(Kind.USED, used)
        if attribute == XML_SPACE and has_used_content(element):
            return Effect(Kind.USED, "reader: white space of the content")
        if limit and not attribute and spec.content is None:
            return Effect(Kind.HOLDS)
    if limit:
        return Effect(Kind.REFUSED if "refused" in limit.partition(":")[0] else Kind.WARNED, limit)
    if spec.status != "no":
        return Effect(Kind.IGNORED)
    if not attribute and spec.content is None:
        return Effect(Kind.HOLDS)
    raise LookupError(f"<{element}> {attribute}: neither used nor refused nor warned about")


def rows() -> list[Row]:
    """All rows of the table in its order."""
    return [(spec.name, attribute) for spec in elements().values() for attribute in ("", *spec.attributes)]
