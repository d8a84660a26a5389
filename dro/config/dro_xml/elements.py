"""What the table cannot express of `<endpoint>` and the elements it shares with `<peer>` and `<daemon>`: values with
special syntax, and rules on several values.

Everything else goes from the rows into the records of `model.py`. Source: DRO guide, chapter 7.3, elements of these
names.
"""

from __future__ import annotations

import re
from typing import Final

from dro.config.dro_xml.elements_acl import read_acl
from dro.config.dro_xml.model import (
    AnnouncementConfig,
    EndpointConfig,
    InitialRequestConfig,
    PublishingConfig,
    SqnWindowConfig,
)
from dro.config.reading.reader import ElementReader
from dro.config.reading.record import check, read_record
from dro.config.um.sources import Reading, read_portal_um

MAX_NAME_BYTES: Final = 127  # Guess: over-long names are errors, the limit is not documented
PROCESS_NAMES: Final = frozenset({"route-manager", "tnwgd", "monitor", "statistics"})
"""Of processes of the DRO that are no portals: commands and the log would not know which one is meant."""
_OF_PORTALS: Final = frozenset({"default", "portal-config", "portal-stats"})
_CONTEXT_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,127}")


def read_name(el: ElementReader) -> str:
    """`<name>` of the daemon or a portal; empty when absent."""
    name = el.text()
    if el.is_present:
        if not name:
            el.error("is empty", remedy="write a name")
        elif len(name.encode()) > MAX_NAME_BYTES:
            el.error(f"longer than {MAX_NAME_BYTES} bytes", remedy="shorten it")
        elif not name.isprintable():
            el.error(f"{name!r} has characters that do not print", remedy="leave them out")
    el.done()
    return name


def read_portal_name(el: ElementReader) -> str:
    """`<name>` of a portal."""
    name = read_name(el)
    if name in PROCESS_NAMES:
        el.error(f"{name!r} is the name of another process of the DRO", remedy="choose another name")
    return name


def read_endpoint(el: ElementReader, reading: Reading) -> EndpointConfig:
    """`<endpoint>` with the UM options of its files and attributes."""
    return read_record(el, EndpointConfig, **portal_fields(el, reading))


def portal_fields(el: ElementReader, reading: Reading) -> dict[str, object]:
    """The fields that both kinds of portals have and that need more than their rows."""
    source_name = read_context_name(el.child("source-context-name"))
    receiver_name = read_context_name(el.child("receiver-context-name"))
    um = read_portal_um(el, reading, source_name, receiver_name)
    return {
        "name": read_portal_name(el.required_child("name")),
        "lbm_config": um.paths,
        "um": um.um,
        "sending": um.sending,
        "receiving": um.receiving,
        "acl": read_acl(el.child("acl")),
        "source_context_name": source_name,
        "receiver_context_name": receiver_name,
        "publishing": read_publishing(el.child("publishing-interval"), in_portal=True),
        "line": el.line,
        "file": el.file,
    }


def read_context_name(el: ElementReader) -> str:
    """`<source-context-name>` or `<receiver-context-name>`; empty when absent."""
    name = el.text()
    if el.is_present and not _CONTEXT_NAME.fullmatch(name):
        el.error(f"{name[:40]!r} is not a context name", remedy="write 1 to 127 of A-Z a-z 0-9 - _")
    el.done()
    return name


def read_publishing(el: ElementReader, *, in_portal: bool = False) -> PublishingConfig | None:
    """`<publishing-interval>`: the last setting of a group holds. A portal has the groups of `_OF_PORTALS` alone."""
    if not el.is_present:
        return None
    intervals: dict[str, int] = {}
    groups = el.children("group")
    for group in groups:
        name, interval_s = group.text("name"), group.integer("ivl")
        group.done()
        if in_portal and name and name not in _OF_PORTALS:
            group.warning(f"{name} has no effect in a portal, ignored")
        elif name:
            intervals[name] = interval_s
    if not groups:
        el.error("<group> is missing", remedy="add <group>")
    el.done()
    return PublishingConfig(tuple(intervals.items()))


@check.register
def _announcement(announcement: AnnouncementConfig, el: ElementReader) -> None:
    """Check the gaps. Guess: the guide wants the shortest below the longest for interest; for routes equal is fine."""
    low, high = announcement.min_interval_ms, announcement.max_interval_ms
    if low > high or (low == high and el.name != "domain-route"):
        el.error(f"min-interval {low} is not below max-interval {high}", remedy="lower min-interval")


@check.register
def _initial_request(request: InitialRequestConfig, el: ElementReader) -> None:
    """Ignore the rate limit, which the guide shows inside it in one place; it has no function there."""
    el.ignore("rate-limit", "has no function here, ignored")


@check.register
def _sqn_window(window: SqnWindowConfig, el: ElementReader) -> None:
    """Check that the increment divides the size and is smaller."""
    if window.increment >= window.size:
        el.error(f"increment {window.increment} is not below size {window.size}", remedy="lower the increment")
    elif window.size % window.increment:
        el.error(f"increment {window.increment} does not divide size {window.size}", remedy="use a divisor of size")
